//! The vectors of Advanced SIMD, NEON's 128-bit registers, for the backends on them.
#![allow(unsafe_code, reason = "feature-gated intrinsics, loads, stores and prefetches")]

use core::arch::aarch64::*;
use core::arch::asm;

use half::bf16;

use super::advance::Advance;
use super::simd::Simd;

/// Numbers of a vector.
pub const LANES: usize = 4;

/// Proof that the processor has NEON.
#[derive(Clone, Copy)]
pub struct Neon(());

impl Neon {
    /// The token. Where this file is compiled the whole program uses NEON for its floats:
    /// there is nothing to detect.
    pub const fn new() -> Self {
        const { assert!(cfg!(target_feature = "neon")) };
        Self(())
    }
}

impl Advance for Neon {}

impl Simd for Neon {
    type Lanes = [f32; LANES];
    type F32 = float32x4_t;
    type I32 = int32x4_t;
    type Mask = uint32x4_t;

    #[inline(always)]
    fn splat(self, x: f32) -> float32x4_t {
        // SAFETY: the token proves the feature.
        unsafe { vdupq_n_f32(x) }
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> float32x4_t {
        // SAFETY: the token proves the feature; the array is what is read.
        unsafe { vld1q_f32(from.as_ptr()) }
    }

    #[inline(always)]
    fn store(self, x: float32x4_t, to: &mut [f32; LANES]) {
        // SAFETY: the token proves the feature; the array is what is written.
        unsafe { vst1q_f32(to.as_mut_ptr(), x) }
    }

    #[inline(always)]
    fn add(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: the token proves the feature.
        unsafe { vaddq_f32(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: the token proves the feature.
        unsafe { vsubq_f32(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: the token proves the feature.
        unsafe { vmulq_f32(a, b) }
    }

    #[inline(always)]
    fn mul_add(self, a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        // SAFETY: the token proves the feature.
        unsafe { vfmaq_f32(c, a, b) }
    }

    #[inline(always)]
    fn max(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // FMAX would return a NaN of either side, FMAXNM a signalling one.
        // SAFETY: the token proves the feature.
        unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) }
    }

    #[inline(always)]
    fn not_ge(self, a: float32x4_t, b: float32x4_t) -> uint32x4_t {
        // SAFETY: the token proves the feature.
        unsafe { vmvnq_u32(vcgeq_f32(a, b)) }
    }

    #[inline(always)]
    fn any(self, mask: uint32x4_t) -> bool {
        // SAFETY: the token proves the feature.
        unsafe { vmaxvq_u32(mask) != 0 }
    }

    #[inline(always)]
    fn select(self, mask: uint32x4_t, yes: float32x4_t, no: float32x4_t) -> float32x4_t {
        // SAFETY: the token proves the feature.
        unsafe { vbslq_f32(mask, yes, no) }
    }

    #[inline(always)]
    fn mask_of(self, rows: u64, v: usize) -> uint32x4_t {
        const BITS: [u32; LANES] = [1, 2, 4, 8];
        #[expect(clippy::cast_possible_truncation, reason = "four bits are wanted")]
        let rows = (rows >> (LANES * v)) as u32;
        // SAFETY: the token proves the feature; the array is what is read.
        unsafe { vtstq_u32(vdupq_n_u32(rows), vld1q_u32(BITS.as_ptr())) }
    }

    #[inline(always)]
    fn splat_i32(self, x: i32) -> int32x4_t {
        // SAFETY: the token proves the feature.
        unsafe { vdupq_n_s32(x) }
    }

    #[inline(always)]
    fn load_pairs(self, row: &[bf16]) -> int32x4_t {
        let pairs: &[bf16; 2 * LANES] = &row.as_chunks().0[0];
        // SAFETY: the token proves the feature; 8 BF16 are 16 bytes, of the alignment that
        // the load needs.
        unsafe { vreinterpretq_s32_u16(vld1q_u16(pairs.as_ptr().cast())) }
    }

    #[inline(always)]
    fn to_bits(self, x: float32x4_t) -> int32x4_t {
        // SAFETY: the token proves the feature.
        unsafe { vreinterpretq_s32_f32(x) }
    }

    #[inline(always)]
    fn from_bits(self, x: int32x4_t) -> float32x4_t {
        // SAFETY: the token proves the feature.
        unsafe { vreinterpretq_f32_s32(x) }
    }

    #[inline(always)]
    fn add_i32(self, a: int32x4_t, b: int32x4_t) -> int32x4_t {
        // SAFETY: the token proves the feature.
        unsafe { vaddq_s32(a, b) }
    }

    #[inline(always)]
    fn and(self, a: int32x4_t, b: int32x4_t) -> int32x4_t {
        // SAFETY: the token proves the feature.
        unsafe { vandq_s32(a, b) }
    }

    #[inline(always)]
    fn or(self, a: int32x4_t, b: int32x4_t) -> int32x4_t {
        // SAFETY: the token proves the feature.
        unsafe { vorrq_s32(a, b) }
    }

    #[inline(always)]
    fn shl<const N: u32>(self, x: int32x4_t) -> int32x4_t {
        // SAFETY: the token proves the feature.
        unsafe { vshlq_s32(x, vdupq_n_s32(N.cast_signed())) }
    }

    #[inline(always)]
    fn gt_i32(self, a: int32x4_t, b: int32x4_t) -> uint32x4_t {
        // SAFETY: the token proves the feature.
        unsafe { vcgtq_s32(a, b) }
    }

    #[inline(always)]
    fn interleave(self, a: float32x4_t, b: float32x4_t) -> [float32x4_t; 2] {
        // SAFETY: the token proves the feature.
        unsafe { [vzip1q_f32(a, b), vzip2q_f32(a, b)] }
    }

    #[inline(always)]
    fn deinterleave(self, a: float32x4_t, b: float32x4_t) -> [float32x4_t; 2] {
        // SAFETY: the token proves the feature.
        unsafe { [vuzp1q_f32(a, b), vuzp2q_f32(a, b)] }
    }

    #[inline(always)]
    fn sum_lanes(self, [a, b, c, d]: [float32x4_t; 4]) -> [f32; 4] {
        let mut sums = [0.0; 4];
        // SAFETY: the token proves the feature; the array is what is written.
        unsafe {
            let sum = vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d));
            vst1q_f32(sums.as_mut_ptr(), sum);
        }
        sums
    }

    #[inline(always)]
    #[expect(
        clippy::pointers_in_nomem_asm_block,
        reason = "nothing is read as far as the program can tell"
    )]
    fn prefetch(self, at: *const bf16) {
        // SAFETY: a prefetch faults on no address and touches no memory as far as the
        // program can tell.
        unsafe {
            asm!("prfm pldl1keep, [{}]", in(reg) at, options(nomem, nostack, preserves_flags));
        }
    }
}
