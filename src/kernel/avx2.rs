//! AVX2: FP32 multiply-adds of 8 lanes.
//!
//! | kernel | register tile ([`super::fp32`]) | peak model |
//! |---|---|---|
//! | C1 | 6 keys x 2 vectors of 8 rows | 16 FLOP per multiply-add |
//! | C2 | 6 rows x 2 vectors of 8 columns | the same |
//!
//! 12 of the 16 registers accumulate, 2 hold the operand across the lanes and 1 the
//! broadcast.
#![allow(unsafe_code, reason = "feature-gated intrinsics and functions")]

use core::arch::x86_64::*;

use core::ops::Range;

use half::bf16;

use super::advance::Advance;
use super::fp32::element::{Element, splits};
use super::fp32::{self, backend, by_dtype};
use super::simd::{self, Simd, methods};
use super::{
    Columns, Epilogue, Kernel, Pv, Qk, Skipped, Softmax, detect, prefetch, scalar, softmax,
};
use crate::bits::Increment;
use crate::format::{Dtype, Row};
use crate::problem::Precision;
use crate::tile::{L0a, L0b, ORow, QPanel, RowState, STile};

const LANES: usize = 8;

/// Proof that the processor has AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub struct Avx2(());

impl Avx2 {
    /// The token, if the processor qualifies.
    pub fn new() -> Option<Self> {
        detect::has_avx2().then_some(Self(()))
    }
}

impl Advance for Avx2 {}

/// Four numbers at any address, that are read at once.
#[repr(C, packed)]
#[derive(Clone, Copy)]
struct Four(__m128);

impl Simd for Avx2 {
    type Lanes = [f32; LANES];
    type F32 = __m256;
    type I32 = __m256i;
    type Mask = __m256;

    methods! {
        unsafe;
        splat(x: f32) -> __m256 = _mm256_set1_ps(x);
        load(from: &[f32; LANES]) -> __m256 = _mm256_loadu_ps(from.as_ptr());
        load_fours(from: &[f32; LANES]) -> __m256 = {
            let [low, high]: &[[f32; 4]; 2] = &from.as_chunks().0.as_chunks().0[0];
            // Volatile, as the compiler would make one load of both.
            let [low, high] =
                [low, high].map(|x| core::ptr::read_volatile(x.as_ptr().cast::<Four>()).0);
            _mm256_setr_m128(low, high)
        };
        store(x: __m256, to: &mut [f32; LANES]) = _mm256_storeu_ps(to.as_mut_ptr(), x);
        add(a: __m256, b: __m256) -> __m256 = _mm256_add_ps(a, b);
        sub(a: __m256, b: __m256) -> __m256 = _mm256_sub_ps(a, b);
        mul(a: __m256, b: __m256) -> __m256 = _mm256_mul_ps(a, b);
        mul_add(a: __m256, b: __m256, c: __m256) -> __m256 = _mm256_fmadd_ps(a, b, c);
        max(a: __m256, b: __m256) -> __m256 = _mm256_max_ps(a, b);
        not_ge(a: __m256, b: __m256) -> __m256 = _mm256_cmp_ps::<_CMP_NGE_UQ>(a, b);
        any(mask: __m256) -> bool = _mm256_movemask_ps(mask) != 0;
        select(mask: __m256, yes: __m256, no: __m256) -> __m256 = _mm256_blendv_ps(no, yes, mask);
        mask_of(rows: u64, v: usize) -> __m256 = {
            let bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
            let rows = _mm256_set1_epi32(i32::from(rows.to_le_bytes()[v]));
            _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(rows, bits), bits))
        };

        splat_i32(x: i32) -> __m256i = _mm256_set1_epi32(x);
        load_pairs(row: &[bf16]) -> __m256i = {
            let pairs: &[bf16; 2 * LANES] = &row.as_chunks().0[0];
            _mm256_loadu_si256(pairs.as_ptr().cast())
        };
        load_f16(words: &[bf16]) -> __m256 = {
            let numbers: &[bf16; LANES] = &words.as_chunks().0[0];
            _mm256_cvtph_ps(_mm_loadu_si128(numbers.as_ptr().cast()))
        };
        load_i8(words: &[bf16]) -> __m256i = {
            let integers: &[bf16; LANES / 2] = &words.as_chunks().0[0];
            _mm256_cvtepi8_epi32(_mm_loadl_epi64(integers.as_ptr().cast()))
        };
        number(x: __m256i) -> __m256 = _mm256_cvtepi32_ps(x);
        splat_f16(word: bf16) -> __m256 = _mm256_cvtph_ps(_mm_set1_epi16(word.to_bits().cast_signed()));
        to_bits(x: __m256) -> __m256i = _mm256_castps_si256(x);
        from_bits(x: __m256i) -> __m256 = _mm256_castsi256_ps(x);
        add_i32(a: __m256i, b: __m256i) -> __m256i = _mm256_add_epi32(a, b);
        and(a: __m256i, b: __m256i) -> __m256i = _mm256_and_si256(a, b);
        or(a: __m256i, b: __m256i) -> __m256i = _mm256_or_si256(a, b);
        shl<const N: u32>(x: __m256i) -> __m256i = _mm256_sll_epi32(x, _mm_cvtsi32_si128(N.cast_signed()));
        gt_i32(a: __m256i, b: __m256i) -> __m256 = _mm256_castsi256_ps(_mm256_cmpgt_epi32(a, b));

        interleave(a: __m256, b: __m256) -> [__m256; 2] = {
            let (low, high) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
            [_mm256_permute2f128_ps::<0x20>(low, high), _mm256_permute2f128_ps::<0x31>(low, high)]
        };
        deinterleave(a: __m256, b: __m256) -> [__m256; 2] = {
            let low = _mm256_permute2f128_ps::<0x20>(a, b);
            let high = _mm256_permute2f128_ps::<0x31>(a, b);
            [_mm256_shuffle_ps::<0b10_00_10_00>(low, high), _mm256_shuffle_ps::<0b11_01_11_01>(low, high)]
        };
        sum_lanes([a, b, c, d]: [__m256; 4]) -> [f32; 4] = {
            let mut sums = [0.0; 4];
            let sum = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
            let sum = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps::<1>(sum));
            _mm_storeu_ps(sums.as_mut_ptr(), sum);
            sums
        };
        prefetch(at: *const bf16) = _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
}

backend! {
    Avx2, target_feature(enable = "avx2,fma,f16c");
    pack: scalar;
    c1: _ => 6 x 2;
    c2: 2;
    prefetching: 0;
    fused: 16;
    fused c1: 1: 4, 2: 4, 3: 2, 4: 2, 5: 2, 6: 2;
    fused c2: 1: 4, 2: 2, 3: 2, 4: 1, 5: 1, 6: 1;
    chains: 12;
}
