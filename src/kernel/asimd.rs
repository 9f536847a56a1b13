//! The vectors of Advanced SIMD, NEON's 128-bit registers, for the backends on them.
#![allow(unsafe_code, reason = "feature-gated intrinsics, loads, stores and prefetches")]

use core::arch::aarch64::*;
use core::arch::asm;

use half::bf16;

use super::advance::Advance;
use super::simd::{Simd, methods};

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

    methods! {
        unsafe;
        splat(x: f32) -> float32x4_t = vdupq_n_f32(x);
        load(from: &[f32; LANES]) -> float32x4_t = vld1q_f32(from.as_ptr());
        store(x: float32x4_t, to: &mut [f32; LANES]) = vst1q_f32(to.as_mut_ptr(), x);
        add(a: float32x4_t, b: float32x4_t) -> float32x4_t = vaddq_f32(a, b);
        sub(a: float32x4_t, b: float32x4_t) -> float32x4_t = vsubq_f32(a, b);
        mul(a: float32x4_t, b: float32x4_t) -> float32x4_t = vmulq_f32(a, b);
        mul_add(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t = vfmaq_f32(c, a, b);
        // FMAX would return a NaN of either side, FMAXNM a signalling one.
        max(a: float32x4_t, b: float32x4_t) -> float32x4_t = vbslq_f32(vcgtq_f32(a, b), a, b);
        not_ge(a: float32x4_t, b: float32x4_t) -> uint32x4_t = vmvnq_u32(vcgeq_f32(a, b));
        any(mask: uint32x4_t) -> bool = vmaxvq_u32(mask) != 0;
        select(mask: uint32x4_t, yes: float32x4_t, no: float32x4_t) -> float32x4_t = vbslq_f32(mask, yes, no);
        mask_of(rows: u64, v: usize) -> uint32x4_t = {
            const BITS: [u32; LANES] = [1, 2, 4, 8];
            #[expect(clippy::cast_possible_truncation, reason = "four bits are wanted")]
            let rows = (rows >> (LANES * v)) as u32;
            vtstq_u32(vdupq_n_u32(rows), vld1q_u32(BITS.as_ptr()))
        };

        splat_i32(x: i32) -> int32x4_t = vdupq_n_s32(x);
        load_pairs(row: &[bf16]) -> int32x4_t = {
            let pairs: &[bf16; 2 * LANES] = &row.as_chunks().0[0];
            vreinterpretq_s32_u16(vld1q_u16(pairs.as_ptr().cast()))
        };
        load_f16(words: &[bf16]) -> float32x4_t = {
            let numbers: &[bf16; LANES] = &words.as_chunks().0[0];
            convert_f16(vld1_u16(numbers.as_ptr().cast()))
        };
        load_i8(words: &[bf16]) -> int32x4_t = {
            let integers: &[bf16; LANES / 2] = &words.as_chunks().0[0];
            let integers = vreinterpret_s8_u32(vdup_n_u32(integers.as_ptr().cast::<u32>().read_unaligned()));
            vmovl_s16(vget_low_s16(vmovl_s8(integers)))
        };
        number(x: int32x4_t) -> float32x4_t = vcvtq_f32_s32(x);
        splat_f16(word: bf16) -> float32x4_t = convert_f16(vdup_n_u16(word.to_bits()));
        to_bits(x: float32x4_t) -> int32x4_t = vreinterpretq_s32_f32(x);
        from_bits(x: int32x4_t) -> float32x4_t = vreinterpretq_f32_s32(x);
        add_i32(a: int32x4_t, b: int32x4_t) -> int32x4_t = vaddq_s32(a, b);
        and(a: int32x4_t, b: int32x4_t) -> int32x4_t = vandq_s32(a, b);
        or(a: int32x4_t, b: int32x4_t) -> int32x4_t = vorrq_s32(a, b);
        shl<const N: u32>(x: int32x4_t) -> int32x4_t = vshlq_s32(x, vdupq_n_s32(N.cast_signed()));
        gt_i32(a: int32x4_t, b: int32x4_t) -> uint32x4_t = vcgtq_s32(a, b);

        interleave(a: float32x4_t, b: float32x4_t) -> [float32x4_t; 2] = [vzip1q_f32(a, b), vzip2q_f32(a, b)];
        deinterleave(a: float32x4_t, b: float32x4_t) -> [float32x4_t; 2] = [vuzp1q_f32(a, b), vuzp2q_f32(a, b)];
        sum_lanes([a, b, c, d]: [float32x4_t; 4]) -> [f32; 4] = {
            let mut sums = [0.0; 4];
            vst1q_f32(sums.as_mut_ptr(), vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d)));
            sums
        };
        #[expect(clippy::pointers_in_nomem_asm_block, reason = "nothing is read as far as the program can tell")]
        prefetch(at: *const bf16) = asm!("prfm pldl1keep, [{}]", in(reg) at, options(nomem, nostack, preserves_flags));
    }
}

/// FP16 as FP32.
///
/// # Safety
/// The processor has NEON.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn convert_f16(numbers: uint16x4_t) -> float32x4_t {
    let converted: float32x4_t;
    // SAFETY: the instruction is NEON's, and touches no memory. (The intrinsic isn't stable.)
    unsafe {
        asm!(
            "fcvtl {converted:v}.4s, {numbers:v}.4h",
            converted = lateout(vreg) converted,
            numbers = in(vreg) numbers,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    converted
}
