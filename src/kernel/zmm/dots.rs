//! BF16 among the vectors of AVX-512, for the backends that have the processor's own conversion and dots.
#![allow(unsafe_code, reason = "pointer loads, and feature-gated calls")]

use half::bf16;

use super::convert::{Round, convert};
use super::pack::load_words;
use super::vectors::{LANES, Zmm};
use crate::format::Row;
use crate::kernel::arch::*;
use crate::kernel::detect;
use crate::kernel::softmax::RoundPairs;

/// Proof that the processor has AVX-512 F, BW, DQ, VL and BF16.
#[derive(Clone, Copy)]
pub struct Dots(());

impl Dots {
    /// The token, if the processor qualifies.
    pub fn new() -> Option<Self> {
        detect::has_avx512_bf16().then_some(Self(()))
    }
}

/// [`convert`] with the processor's own conversion: one code for the backends that have it.
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
fn converted(zmm: Zmm, dots: Dots, row: &Row<'_>, next: &Row<'_>, out: &mut [bf16]) {
    convert(zmm, dots, row, next, out);
}

/// As [`crate::kernel::Kernel::convert`].
pub fn convert_row(zmm: Zmm, dots: Dots, row: &Row<'_>, next: &Row<'_>, out: &mut [bf16]) {
    // SAFETY: the token proves the features.
    unsafe { converted(zmm, dots, row, next, out) }
}

impl Round for Dots {
    #[inline(always)]
    fn round(self, low: __m512, high: __m512) -> __m512i {
        // SAFETY: the token proves the features.
        unsafe { from_pairs(_mm512_cvtne2ps_pbh(high, low)) }
    }
}

impl RoundPairs<Zmm> for Dots {
    #[inline(always)]
    fn round(self, _simd: Zmm, [even, odd]: [__m512; 2]) -> __m512i {
        // Word 2i from word i of the even key, 2i + 1 from word i of the odd one,
        // which the conversion leaves 16 words further.
        const INTERLEAVE: [u16; 32] = {
            let mut index = [0; 32];
            let mut i = 0;
            while i < 16 {
                index[2 * i as usize] = i;
                index[2 * i as usize + 1] = i + 16;
                i += 1;
            }
            index
        };
        // SAFETY: the token proves the features.
        unsafe {
            let halves = _mm512_cvtne2ps_pbh(odd, even);
            _mm512_permutexvar_epi16(load_words(&INTERLEAVE), from_pairs(halves))
        }
    }

    #[inline(always)]
    fn add(self, _simd: Zmm, sum: __m512, pairs: __m512i) -> __m512 {
        // SAFETY: the token proves the features.
        unsafe {
            let ones = as_pairs(_mm512_set1_epi32(0x3f80_3f80));
            _mm512_dpbf16_ps(sum, as_pairs(pairs), ones)
        }
    }
}

#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
pub fn load_pairs(x: &[u32; LANES]) -> __m512bh {
    // SAFETY: 16 u32 are 64 bytes; no alignment needed.
    as_pairs(unsafe { _mm512_loadu_si512(x.as_ptr().cast()) })
}

#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
pub fn as_pairs(x: __m512i) -> __m512bh {
    // SAFETY: both are 64 bytes of which every pattern is a value.
    unsafe { core::mem::transmute(x) }
}

#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
pub fn from_pairs(x: __m512bh) -> __m512i {
    // SAFETY: both are 64 bytes of which every pattern is a value.
    unsafe { core::mem::transmute(x) }
}
