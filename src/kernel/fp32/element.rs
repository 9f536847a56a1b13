//! Numbers as rows store them, converted into vectors of FP32.
#![allow(unsafe_code, reason = "loads by way of pointers to rows")]

use half::bf16;

use crate::format::{BLOCK, Dtype};
use crate::kernel::memory::Word;
use crate::kernel::simd::{Simd, even, odd};

/// Numbers that every row has a multiple of: a block of ggml's, a cache line of BF16.
pub const CHUNK: usize = BLOCK;

/// How a row's numbers are stored. Two vectors have `2 * LANES` neighbours.
pub trait Element<S: Simd> {
    /// Its name.
    const DTYPE: Dtype;
    /// Whether the first vector has the neighbours of even index, the second those of odd index: what conversion yields.
    /// Otherwise they are in their order.
    const SPLIT: bool = false;

    /// Vector `h`, 0 or 1, of the numbers from `at` on, a multiple of `2 * LANES`.
    ///
    /// # Safety
    /// The row is valid for reads of these numbers.
    unsafe fn vector(simd: S, row: *const Word, at: usize, h: usize) -> S::F32;

    /// Both vectors, with the numbers in their order.
    ///
    /// # Safety
    /// The row is valid for reads of these numbers.
    #[inline(always)]
    unsafe fn in_order(simd: S, row: *const Word, at: usize) -> [S::F32; 2] {
        // SAFETY: the caller's promise.
        let (a, b) = unsafe {
            (
                Self::vector(simd, row, at, 0),
                Self::vector(simd, row, at, 1),
            )
        };
        if Self::SPLIT {
            simd.interleave(a, b)
        } else {
            [a, b]
        }
    }

    /// Both vectors, with the numbers of even index in the first.
    ///
    /// # Safety
    /// The row is valid for reads of these numbers.
    #[inline(always)]
    unsafe fn split(simd: S, row: *const Word, at: usize) -> [S::F32; 2] {
        // SAFETY: the caller's promise.
        let (a, b) = unsafe {
            (
                Self::vector(simd, row, at, 0),
                Self::vector(simd, row, at, 1),
            )
        };
        if Self::SPLIT {
            [a, b]
        } else {
            simd.deinterleave(a, b)
        }
    }
}

/// Whether conversion of a dtype yields numbers of even index apart from others.
pub const fn splits(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::Bf16)
}

/// BF16.
pub struct Bf16;
/// FP16.
pub struct F16;
/// FP32.
pub struct F32;
/// ggml's blocks of 32 integers and a scale.
pub struct Q8;
/// The same, with integers of 4 bits.
pub struct Q4;

impl<S: Simd> Element<S> for Bf16 {
    const DTYPE: Dtype = Dtype::Bf16;
    const SPLIT: bool = true;

    #[inline(always)]
    unsafe fn vector(simd: S, row: *const Word, at: usize, h: usize) -> S::F32 {
        // SAFETY: the caller's promise.
        let pairs = simd.load_pairs(unsafe { words(row.add(at), 2 * S::LANES) });
        if h == 0 {
            even(simd, pairs)
        } else {
            odd(simd, pairs)
        }
    }
}

impl<S: Simd> Element<S> for F16 {
    const DTYPE: Dtype = Dtype::F16;

    #[inline(always)]
    unsafe fn vector(simd: S, row: *const Word, at: usize, h: usize) -> S::F32 {
        // SAFETY: the caller's promise.
        simd.load_f16(unsafe { words(row.add(at + h * S::LANES), S::LANES) })
    }
}

impl<S: Simd> Element<S> for F32 {
    const DTYPE: Dtype = Dtype::F32;

    #[inline(always)]
    unsafe fn vector(simd: S, row: *const Word, at: usize, h: usize) -> S::F32 {
        // SAFETY: the caller's promise; rows of FP32 come from a slice of them, so that they are aligned.
        simd.load(unsafe { &*row.add(2 * (at + h * S::LANES)).cast() })
    }
}

impl<S: Simd> Element<S> for Q8 {
    const DTYPE: Dtype = Dtype::Q8_0;

    #[inline(always)]
    unsafe fn vector(simd: S, row: *const Word, at: usize, h: usize) -> S::F32 {
        const { assert!(BLOCK.is_multiple_of(2 * S::LANES)) };
        let first = at % BLOCK + h * S::LANES;
        // SAFETY: the caller's promise: of the block, the scale and as many integers from the first on; two are a word.
        let (scale, integers) = unsafe {
            let block = row.add(Dtype::Q8_0.words(at / BLOCK * BLOCK));
            (*block, words(block.add(1 + first / 2), S::LANES / 2))
        };
        simd.mul(simd.number(simd.load_i8(integers)), simd.splat_f16(scale))
    }
}

impl<S: Simd> Element<S> for Q4 {
    const DTYPE: Dtype = Dtype::Q4_0;

    #[inline(always)]
    unsafe fn vector(simd: S, row: *const Word, at: usize, h: usize) -> S::F32 {
        const { assert!((BLOCK / 2).is_multiple_of(2 * S::LANES) || BLOCK == 2 * S::LANES) };
        let first = at % BLOCK + h * S::LANES;
        // SAFETY: the caller's promise: of the block, the scale and as many integers from the first on; four are a word, two of
        // the first half of the numbers.
        let (scale, integers) = unsafe {
            let block = row.add(Dtype::Q4_0.words(at / BLOCK * BLOCK));
            let bytes = first % (BLOCK / 2);
            (*block, words(block.add(1 + bytes / 2), S::LANES / 2))
        };
        // The second half's integers are left where they are, times 16.
        let (mask, eight, shift) = if first < BLOCK / 2 {
            (0x0f, 8, 1.0)
        } else {
            (0xf0, 128, 0.0625)
        };
        let integers = simd.and(simd.load_i8(integers), simd.splat_i32(mask));
        let number = simd.number(simd.add_i32(integers, simd.splat_i32(-eight)));
        simd.mul(number, simd.mul(simd.splat_f16(scale), simd.splat(shift)))
    }
}

/// # Safety
/// As many words are valid for reads.
#[inline(always)]
unsafe fn words<'a>(at: *const Word, len: usize) -> &'a [bf16] {
    // SAFETY: the caller's promise; rows aren't written while a call runs.
    unsafe { core::slice::from_raw_parts(at, len) }
}
