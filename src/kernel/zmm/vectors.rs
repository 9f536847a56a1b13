//! The vectors of AVX-512: 16 FP32 lanes.
#![allow(unsafe_code, reason = "pointer loads and feature-gated intrinsics")]

use half::bf16;

use crate::kernel::arch::*;
use crate::kernel::detect;
use crate::kernel::prefetch::Core;
use crate::kernel::simd::{EXP2, EXP2_MIN, Simd, methods};

/// Lanes of a vector.
pub const LANES: usize = 16;
/// What `vfpclassps` calls quiet NaN, the infinities and signalling NaN.
pub const NOT_FINITE: i32 = 0x01 | 0x08 | 0x10 | 0x80;

/// Reduces the lanes of each of four vectors by an operation, given for 512, 256 and 128 bits.
macro_rules! reduce {
    ($x:ident, $zmm:ident, $ymm:ident, $xmm:ident) => {{
        let [a, b, c, d] = $x;
        // By 128 bits: a0 + a2, b0 + b2, a1 + a3, b1 + b3; then a, b, c, d.
        let ab = $zmm(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
        let cd = $zmm(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
        let (ab, cd) = (_mm512_castps_pd(ab), _mm512_castps_pd(cd));
        let low = _mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd));
        let high = _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd));
        let x = $zmm(low, high);
        let x = $ymm(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x));
        let x = $xmm(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
        let mut lanes = [0.0; 4];
        _mm_storeu_ps(lanes.as_mut_ptr(), x);
        lanes
    }};
}

/// Proof that the processor has AVX-512 F, BW, DQ and VL.
#[derive(Clone, Copy)]
pub struct Zmm(());

impl Zmm {
    /// The token, if the processor qualifies.
    pub fn new() -> Option<Self> {
        detect::has_avx512().then_some(Self(()))
    }

    methods! {
        unsafe;
        /// The largest of each vector's lanes, none of which may be NaN.
        pub max_lanes(x: [__m512; 4]) -> [f32; 4] = reduce!(x, _mm512_max_ps, _mm256_max_ps, _mm_max_ps);
        /// The nearest integers.
        pub round(x: __m512) -> __m512 = _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x);
        /// `a >= b`, or either is NaN.
        pub not_below(a: __m512, b: __m512) -> __mmask16 = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(a, b);
        /// `x` times `2^j` where the mask holds, 0 elsewhere.
        pub scale(mask: __mmask16, x: __m512, j: __m512) -> __m512 = _mm512_maskz_scalef_ps(mask, x, j);
    }

    /// A fence for the compiler, without an instruction: it moves no load or request across, nor what makes accumulators or is made of
    /// them. Otherwise it loads more at once than registers hold, and puts it on the stack.
    #[inline]
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
    pub fn apart<const N: usize>(self, acc: &mut [__m512; N]) {
        for acc in acc {
            // SAFETY: there is no instruction.
            unsafe {
                asm!(
                    "/* {} */",
                    inout(zmm_reg) * acc,
                    options(nostack, preserves_flags)
                );
            }
        }
    }

    /// Like [`apart`](Zmm::apart), but only for what makes `x` or is made of it.
    #[inline(always)]
    pub fn in_order<const N: usize>(self, x: &mut [__m512; N]) {
        // SAFETY: the token proves the features.
        unsafe { self.still(x) }
    }

    #[inline]
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
    pub fn still<const N: usize>(self, x: &mut [__m512; N]) {
        for x in x {
            // SAFETY: there is no instruction.
            unsafe {
                asm!(
                    "/* {} */",
                    inout(zmm_reg) * x,
                    options(nostack, nomem, preserves_flags)
                );
            }
        }
    }
}

/// Four numbers, read at once. Volatile, as the compiler would make one load of several fours.
#[cfg(not(amla_emulated))]
#[inline(always)]
fn four(numbers: &[f32; 4]) -> __m128 {
    /// At any address.
    #[repr(C, packed)]
    #[derive(Clone, Copy)]
    struct Four(__m128);
    // SAFETY: a valid reference to as many numbers; the type needs no alignment.
    unsafe { core::ptr::read_volatile(numbers.as_ptr().cast::<Four>()).0 }
}

#[cfg(amla_emulated)]
fn four([a, b, c, d]: &[f32; 4]) -> __m128 {
    _mm_setr_ps(*a, *b, *c, *d)
}

impl Simd for Zmm {
    type Lanes = [f32; LANES];
    type F32 = __m512;
    type I32 = __m512i;
    type Mask = __mmask16;

    methods! {
        unsafe;
        splat(x: f32) -> __m512 = _mm512_set1_ps(x);
        load(from: &[f32; LANES]) -> __m512 = _mm512_loadu_ps(from.as_ptr());
        load_fours(from: &[f32; LANES]) -> __m512 = {
            let [a, b, c, d]: &[[f32; 4]; LANES / 4] = &from.as_chunks().0.as_chunks().0[0];
            let [a, b, c, d] = [a, b, c, d].map(four);
            let ab = _mm512_insertf32x4::<1>(_mm512_castps128_ps512(a), b);
            _mm512_insertf32x4::<3>(_mm512_insertf32x4::<2>(ab, c), d)
        };
        store(x: __m512, to: &mut [f32; LANES]) = _mm512_storeu_ps(to.as_mut_ptr(), x);
        add(a: __m512, b: __m512) -> __m512 = _mm512_add_ps(a, b);
        sub(a: __m512, b: __m512) -> __m512 = _mm512_sub_ps(a, b);
        mul(a: __m512, b: __m512) -> __m512 = _mm512_mul_ps(a, b);
        mul_add(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fmadd_ps(a, b, c);
        max(a: __m512, b: __m512) -> __m512 = _mm512_max_ps(a, b);
        not_ge(a: __m512, b: __m512) -> __mmask16 = _mm512_cmp_ps_mask::<_CMP_NGE_UQ>(a, b);
        any(mask: __mmask16) -> bool = mask != 0;
        select(mask: __mmask16, yes: __m512, no: __m512) -> __m512 = _mm512_mask_blend_ps(mask, no, yes);
        #[expect(clippy::cast_possible_truncation, reason = "takes 16 of 64 rows")]
        mask_of(rows: u64, v: usize) -> __mmask16 = (rows >> (v * LANES)) as __mmask16;

        splat_i32(x: i32) -> __m512i = _mm512_set1_epi32(x);
        load_pairs(row: &[bf16]) -> __m512i = {
            let pairs: &[bf16; 2 * LANES] = &row.as_chunks().0[0];
            _mm512_loadu_si512(pairs.as_ptr().cast())
        };
        load_f16(words: &[bf16]) -> __m512 = {
            let numbers: &[bf16; LANES] = &words.as_chunks().0[0];
            _mm512_cvtph_ps(_mm256_loadu_si256(numbers.as_ptr().cast()))
        };
        load_i8(words: &[bf16]) -> __m512i = {
            let integers: &[bf16; LANES / 2] = &words.as_chunks().0[0];
            _mm512_cvtepi8_epi32(_mm_loadu_si128(integers.as_ptr().cast()))
        };
        number(x: __m512i) -> __m512 = _mm512_cvtepi32_ps(x);
        splat_f16(word: bf16) -> __m512 = _mm512_cvtph_ps(_mm512_castsi512_si256(_mm512_set1_epi16(word.to_bits().cast_signed())));
        to_bits(x: __m512) -> __m512i = _mm512_castps_si512(x);
        from_bits(x: __m512i) -> __m512 = _mm512_castsi512_ps(x);
        add_i32(a: __m512i, b: __m512i) -> __m512i = _mm512_add_epi32(a, b);
        and(a: __m512i, b: __m512i) -> __m512i = _mm512_and_si512(a, b);
        or(a: __m512i, b: __m512i) -> __m512i = _mm512_or_si512(a, b);
        shl<const N: u32>(x: __m512i) -> __m512i = _mm512_slli_epi32::<N>(x);
        gt_i32(a: __m512i, b: __m512i) -> __mmask16 = _mm512_cmpgt_epi32_mask(a, b);

        interleave(a: __m512, b: __m512) -> [__m512; 2] = {
            let low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            let high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
            [_mm512_permutex2var_ps(a, low, b), _mm512_permutex2var_ps(a, high, b)]
        };
        deinterleave(a: __m512, b: __m512) -> [__m512; 2] = {
            let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            let odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
            [_mm512_permutex2var_ps(a, even, b), _mm512_permutex2var_ps(a, odd, b)]
        };
        sum_lanes(x: [__m512; 4]) -> [f32; 4] = reduce!(x, _mm512_add_ps, _mm256_add_ps, _mm_add_ps);
        prefetch(at: *const bf16) = _mm_prefetch::<_MM_HINT_T0>(at.cast());
        prefetch_l2(at: *const bf16) = _mm_prefetch::<_MM_HINT_T1>(at.cast());
        prefetches_into_l2() -> bool = detect::core() != Core::Zen5;
    }

    /// Otherwise the compiler would put one's multiply-adds, which wait for each other, in a row.
    #[inline(always)]
    fn exp2_each<const N: usize>(self, t: [__m512; N]) -> [__m512; N] {
        let (mut r, mut j, mut normal) = (t, t, [0; N]);
        for i in 0..N {
            normal[i] = self.not_below(t[i], self.splat(EXP2_MIN));
            j[i] = self.round(t[i]);
        }
        self.in_order(&mut j);
        for i in 0..N {
            r[i] = self.sub(t[i], j[i]);
        }
        self.in_order(&mut r);
        let mut y = [self.splat(EXP2[4]); N];
        for c in [EXP2[3], EXP2[2], EXP2[1], EXP2[0], 1.0] {
            for i in 0..N {
                y[i] = self.mul_add(y[i], r[i], self.splat(c));
            }
            self.in_order(&mut y);
        }
        for i in 0..N {
            y[i] = self.scale(normal[i], y[i], j[i]);
        }
        y
    }

    #[inline(always)]
    fn exp2(self, t: __m512) -> __m512 {
        let j = self.round(t);
        let y = self.exp2_fraction(self.sub(t, j));
        self.scale(self.not_below(t, self.splat(EXP2_MIN)), y, j)
    }
}
