//! The vectors of AVX-512, for the backends that have them: 16 FP32 lanes.
#![allow(unsafe_code, reason = "pointer loads and feature-gated intrinsics")]

pub mod convert;
pub mod dots;
pub mod follow;
pub mod fused_rows;
pub mod softmax_rows;

use crate::kernel::arch::*;

use half::bf16;

use super::prefetch::LINE;
use super::simd::{EXP2, EXP2_MIN, Simd};
use super::softmax::{Bases, Maxima};
use super::{Softmax, detect};
use crate::format::Row;
use crate::tile::{PANEL_ROWS, QPanel, RowState, STRIP};

/// Lanes of a vector.
pub const LANES: usize = 16;
/// What `vfpclassps` calls quiet NaN, the infinities and signalling NaN.
pub const NOT_FINITE: i32 = 0x01 | 0x08 | 0x10 | 0x80;

/// Proof that the processor has AVX-512 F, BW, DQ and VL.
#[derive(Clone, Copy)]
pub struct Zmm(());

impl Zmm {
    /// The token, if the processor qualifies.
    pub fn new() -> Option<Self> {
        detect::has_avx512().then_some(Self(()))
    }

    /// The largest of each vector's lanes, none of which may be NaN.
    #[inline(always)]
    pub fn max_lanes(self, [a, b, c, d]: [__m512; 4]) -> [f32; 4] {
        let mut max = [0.0; 4];
        // SAFETY: the token proves the features; 4 f32 are 16 bytes, and the store needs no
        // alignment.
        unsafe {
            // In the order of `sum_lanes`.
            let ab = _mm512_max_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
            let cd = _mm512_max_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
            let (ab, cd) = (_mm512_castps_pd(ab), _mm512_castps_pd(cd));
            let low = _mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd));
            let high = _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd));
            let x = _mm512_max_ps(low, high);
            let x = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x));
            let x = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            _mm_storeu_ps(max.as_mut_ptr(), x);
        }
        max
    }

    /// A fence for the compiler, without an instruction: it moves no load or request across, nor what makes accumulators or is made of
    /// them. Otherwise it loads more at once than registers hold, and keeps it on the stack.
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

    /// The nearest integers.
    #[inline(always)]
    fn round(self, x: __m512) -> __m512 {
        // SAFETY: the token proves the features.
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x) }
    }

    /// `a >= b`, or either is NaN.
    #[inline(always)]
    fn not_below(self, a: __m512, b: __m512) -> __mmask16 {
        // SAFETY: the token proves the features.
        unsafe { _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(a, b) }
    }

    /// `x` times `2^j` where the mask holds, 0 elsewhere.
    #[inline(always)]
    fn scale(self, mask: __mmask16, x: __m512, j: __m512) -> __m512 {
        // SAFETY: the token proves the features.
        unsafe { _mm512_maskz_scalef_ps(mask, x, j) }
    }

    /// Like [`apart`](Zmm::apart), but only for what makes `x` or is made of it.
    #[inline(always)]
    fn in_order<const N: usize>(self, x: &mut [__m512; N]) {
        // SAFETY: the token proves the features.
        unsafe { self.still(x) }
    }

    #[inline]
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
    fn still<const N: usize>(self, x: &mut [__m512; N]) {
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

impl Simd for Zmm {
    type Lanes = [f32; LANES];
    type F32 = __m512;
    type I32 = __m512i;
    type Mask = __mmask16;

    const REGISTERS: usize = 32;

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        // SAFETY: the token proves the features.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> __m512 {
        // SAFETY: the token proves the features; 16 f32 are 64 bytes, and the load needs no
        // alignment.
        unsafe { _mm512_loadu_ps(from.as_ptr()) }
    }

    #[inline(always)]
    fn store(self, x: __m512, to: &mut [f32; LANES]) {
        // SAFETY: the token proves the features; 16 f32 are 64 bytes, and the store needs no
        // alignment.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), x) }
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: the token proves the features.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: the token proves the features.
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: the token proves the features.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn mul_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: the token proves the features.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: the token proves the features.
        unsafe { _mm512_max_ps(a, b) }
    }

    #[inline(always)]
    fn not_ge(self, a: __m512, b: __m512) -> __mmask16 {
        // SAFETY: the token proves the features.
        unsafe { _mm512_cmp_ps_mask::<_CMP_NGE_UQ>(a, b) }
    }

    #[inline(always)]
    fn select(self, mask: __mmask16, yes: __m512, no: __m512) -> __m512 {
        // SAFETY: the token proves the features.
        unsafe { _mm512_mask_blend_ps(mask, no, yes) }
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "takes 16 of 64 rows")]
    fn mask_of(self, rows: u64, v: usize) -> __mmask16 {
        (rows >> (v * LANES)) as __mmask16
    }

    #[inline(always)]
    fn splat_i32(self, x: i32) -> __m512i {
        // SAFETY: the token proves the features.
        unsafe { _mm512_set1_epi32(x) }
    }

    #[inline(always)]
    fn load_pairs(self, row: &[bf16]) -> __m512i {
        let pairs: &[bf16; 2 * LANES] = &row.as_chunks().0[0];
        // SAFETY: the token proves the features; 32 BF16 are 64 bytes, and the load needs
        // no alignment.
        unsafe { _mm512_loadu_si512(pairs.as_ptr().cast()) }
    }

    #[inline(always)]
    fn to_bits(self, x: __m512) -> __m512i {
        // SAFETY: the token proves the features.
        unsafe { _mm512_castps_si512(x) }
    }

    #[inline(always)]
    fn from_bits(self, x: __m512i) -> __m512 {
        // SAFETY: the token proves the features.
        unsafe { _mm512_castsi512_ps(x) }
    }

    #[inline(always)]
    fn add_i32(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the token proves the features.
        unsafe { _mm512_add_epi32(a, b) }
    }

    #[inline(always)]
    fn and(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the token proves the features.
        unsafe { _mm512_and_si512(a, b) }
    }

    #[inline(always)]
    fn or(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the token proves the features.
        unsafe { _mm512_or_si512(a, b) }
    }

    #[inline(always)]
    fn shl<const N: u32>(self, x: __m512i) -> __m512i {
        // SAFETY: the token proves the features.
        unsafe { _mm512_slli_epi32::<N>(x) }
    }

    #[inline(always)]
    fn gt_i32(self, a: __m512i, b: __m512i) -> __mmask16 {
        // SAFETY: the token proves the features.
        unsafe { _mm512_cmpgt_epi32_mask(a, b) }
    }

    #[inline(always)]
    fn interleave(self, a: __m512, b: __m512) -> [__m512; 2] {
        // SAFETY: the token proves the features.
        unsafe {
            let low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            let high =
                _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
            [
                _mm512_permutex2var_ps(a, low, b),
                _mm512_permutex2var_ps(a, high, b),
            ]
        }
    }

    #[inline(always)]
    fn deinterleave(self, a: __m512, b: __m512) -> [__m512; 2] {
        // SAFETY: the token proves the features.
        unsafe {
            let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            let odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
            [
                _mm512_permutex2var_ps(a, even, b),
                _mm512_permutex2var_ps(a, odd, b),
            ]
        }
    }

    #[inline(always)]
    fn sum_lanes(self, [a, b, c, d]: [__m512; 4]) -> [f32; 4] {
        let mut sums = [0.0; 4];
        // SAFETY: the token proves the features; 4 f32 are 16 bytes, and the store needs no
        // alignment.
        unsafe {
            // By 128 bits: a0 + a2, b0 + b2, a1 + a3, b1 + b3; then a, b, c, d.
            let ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
            let cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
            let (ab, cd) = (_mm512_castps_pd(ab), _mm512_castps_pd(cd));
            let low = _mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd));
            let high = _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd));
            let sum = _mm512_add_ps(low, high);
            let sum = _mm256_add_ps(
                _mm512_castps512_ps256(sum),
                _mm512_extractf32x8_ps::<1>(sum),
            );
            let sum = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps::<1>(sum));
            _mm_storeu_ps(sums.as_mut_ptr(), sum);
        }
        sums
    }

    #[inline(always)]
    fn prefetch(self, at: *const bf16) {
        // SAFETY: a prefetch touches no memory as far as the program can tell.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(at.cast());
        }
    }

    #[inline(always)]
    fn prefetch_l2(self, at: *const bf16) {
        // SAFETY: a prefetch touches no memory as far as the program can tell.
        unsafe {
            _mm_prefetch::<_MM_HINT_T1>(at.cast());
        }
    }

    #[inline(always)]
    fn advance(
        self,
        call: &Softmax<'_>,
        max: &Maxima,
        state: &mut RowState,
        increment: &mut [i32; PANEL_ROWS],
    ) -> Bases {
        // SAFETY: the token proves the features.
        unsafe { follow::panel(self, call, max, state, increment) }
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

/// [`convert::convert`], rounding by integer additions.
#[inline(always)]
pub fn convert_row(zmm: Zmm, row: &Row<'_>, out: &mut [bf16]) {
    convert::convert(zmm, zmm, row, out);
}

/// [`super::Kernel::pack_q`]: pairs x rows.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
pub fn pack_q<const D_QK: usize>(zmm: Zmm, rows: &[&[bf16]], negate: bool, panel: &mut QPanel) {
    transpose_q::<false>(zmm, D_QK, rows, negate, panel);
    for out in &mut panel.0[..D_QK / 2] {
        out[rows.len().next_multiple_of(LANES)..].fill(0);
    }
}

/// Transposes 16 rows x 16 feature pairs at a time, across the panel, and prefetches the rows' next
/// lines: the processor's own prefetcher doesn't follow 64 streams. With `TILED` each 16 x 16 is contiguous,
/// otherwise in the panel's rows. Not generic over widths, which would gain nothing.
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
#[inline(never)]
pub fn transpose_q<const TILED: bool>(
    zmm: Zmm,
    d_qk: usize,
    rows: &[&[bf16]],
    negate: bool,
    panel: &mut QPanel,
) {
    /// Prefetch distance in elements of a row: two transpositions' worth.
    const LEAD: usize = 4 * LANES;
    assert!(d_qk.is_multiple_of(2 * LANES));
    let sign = _mm512_set1_epi32(if negate { 0x8000_8000_u32 } else { 0 }.cast_signed());
    for start in (0..LEAD.min(d_qk)).step_by(LINE) {
        for row in rows {
            zmm.prefetch(&raw const row[start]);
        }
    }
    for first in (0..d_qk / 2).step_by(LANES) {
        for (v, rows) in rows.chunks(LANES).enumerate() {
            let mut block = [_mm512_setzero_si512(); LANES];
            for (out, row) in block.iter_mut().zip(rows) {
                *out = _mm512_xor_si512(load_row(&row[2 * first..]), sign);
                zmm.prefetch(&raw const row[(2 * first + LEAD).min(d_qk - 1)]);
            }
            transpose(&mut block);
            let lines = panel.0[first..][..LANES]
                .as_flattened_mut()
                .as_chunks_mut()
                .0;
            for (i, column) in block.into_iter().enumerate() {
                let line = if TILED {
                    v * LANES + i
                } else {
                    i * (PANEL_ROWS / LANES) + v
                };
                store_pairs(&mut lines[line], column);
            }
        }
    }
}

/// A 16 x 16 transposition of 32-bit lanes: four rounds, each of which swaps the
/// off-diagonal halves of blocks half as large as the last.
///
/// Loops are counted and indices computed so that all of it unrolls into
/// registers.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
pub fn transpose(x: &mut [__m512i; LANES]) {
    for i in 0..8 {
        let (a, b) = (x[i], x[i + 8]);
        x[i] = _mm512_shuffle_i64x2::<0x44>(a, b);
        x[i + 8] = _mm512_shuffle_i64x2::<0xee>(a, b);
    }
    let low = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13);
    let high = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
    for n in 0..8 {
        let i = n % 4 + n / 4 * 8;
        let (a, b) = (x[i], x[i + 4]);
        x[i] = _mm512_permutex2var_epi64(a, low, b);
        x[i + 4] = _mm512_permutex2var_epi64(a, high, b);
    }
    for n in 0..8 {
        let i = n % 2 + n / 2 * 4;
        let (a, b) = (x[i], x[i + 2]);
        x[i] = _mm512_unpacklo_epi64(a, b);
        x[i + 2] = _mm512_unpackhi_epi64(a, b);
    }
    let low = _mm512_setr_epi32(0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30);
    let high = _mm512_setr_epi32(1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
    for n in 0..8 {
        let (a, b) = (x[2 * n], x[2 * n + 1]);
        x[2 * n] = _mm512_permutex2var_epi32(a, low, b);
        x[2 * n + 1] = _mm512_permutex2var_epi32(a, high, b);
    }
}

/// Two keys' words interleaved, 32 columns at a time, and the largest magnitude: with the sign off, BF16 patterns are
/// ordered as integers, and infinity and the NaNs are above all numbers.
pub struct Interleaved {
    indices: [__m512i; 2],
    largest: __m512i,
}

impl Interleaved {
    /// Nothing yet.
    #[inline]
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
    pub fn new() -> Self {
        Self {
            indices: interleave_indices(),
            largest: _mm512_setzero_si512(),
        }
    }

    /// Puts a strip of a pair's columns, from that one on; zeros where it has no second key.
    #[inline]
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
    pub fn put(&mut self, pair: &[&[bf16]], column: usize, out: &mut [u32; STRIP]) {
        const MAGNITUDE: i16 = 0x7fff;
        let [low, high] = self.indices;
        let even = &pair[0][column..][..STRIP];
        let odd = pair.get(1).map(|row| &row[column..][..STRIP]);
        for (i, out) in out.as_chunks_mut().0.chunks_mut(2).enumerate() {
            let column = i * 2 * LANES;
            let even = load_row(&even[column..]);
            let odd = match odd {
                Some(odd) => load_row(&odd[column..]),
                None => _mm512_setzero_si512(),
            };
            for x in [even, odd] {
                let magnitude = _mm512_and_si512(x, _mm512_set1_epi16(MAGNITUDE));
                self.largest = _mm512_max_epu16(self.largest, magnitude);
            }
            store_pairs(&mut out[0], _mm512_permutex2var_epi16(even, low, odd));
            store_pairs(&mut out[1], _mm512_permutex2var_epi16(even, high, odd));
        }
    }

    /// Whether all was.
    #[inline]
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
    pub fn finite(&self) -> bool {
        _mm512_cmpge_epu16_mask(self.largest, _mm512_set1_epi16(0x7f80)) == 0
    }
}

/// How `vpermt2w` interleaves two rows' 32 words: the first 16 pairs, and the others.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
pub fn interleave_indices() -> [__m512i; 2] {
    const INTERLEAVE: [[u16; 32]; 2] = {
        let mut index = [[0; 32]; 2];
        let mut i: u16 = 0;
        while i < 32 {
            // Word i of the first row and word i of the second, which the
            // permutation counts from 32 on.
            let pair = 2 * (i % 16) as usize;
            index[i as usize / 16][pair] = i;
            index[i as usize / 16][pair + 1] = i + 32;
            i += 1;
        }
        index
    };
    [load_words(&INTERLEAVE[0]), load_words(&INTERLEAVE[1])]
}

#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
pub fn load_words(x: &[u16; 2 * LANES]) -> __m512i {
    // SAFETY: 32 u16 are 64 bytes; no alignment needed.
    unsafe { _mm512_loadu_si512(x.as_ptr().cast()) }
}

/// The first 16 pairs of a row.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
pub fn load_row(row: &[bf16]) -> __m512i {
    let pairs: &[bf16; 2 * LANES] = &row.as_chunks().0[0];
    // SAFETY: 32 bf16 are 64 bytes; no alignment needed.
    unsafe { _mm512_loadu_si512(pairs.as_ptr().cast()) }
}

#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
pub fn store_pairs(to: &mut [u32; LANES], x: __m512i) {
    // SAFETY: 16 u32 are 64 bytes; no alignment needed.
    unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), x) }
}
