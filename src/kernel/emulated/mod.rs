//! The instructions that the kernels for AVX-512 and AMX use, in plain Rust: twins of the same names, for tests.
//!
//! With `--cfg amla_emulated` these kernels are compiled over the twins, and so run on any processor with 64-bit
//! little-endian words. The library never is compiled so for use: a twin takes about a hundred times as long as its
//! instruction.
//!
//! | module | twins |
//! |---|---|
//! | [`types`] | the vector types, with the names of [`core::arch`] |
//! | [`moves`] | loads, stores, casts, what sets a vector, masked moves |
//! | [`arithmetic`] | FP32 and integers by lanes, comparisons |
//! | [`shuffles`] | permutations |
//! | [`conversions`] | between FP32, FP16 and integers |
//! | [`bf16`] | conversions to BF16 and dots |
//! | [`assembly`] | `asm!`: an interpreter of blocks on tiles |
//!
//! MXCSR is as a program starts: rounding to nearest, no exceptions, subnormals as they are. The dots and conversions
//! of BF16 and AMX don't look at it: these round to nearest and take subnormals as zeros.
//!
//! On a processor that has the instructions the test module holds each twin against its instruction, bit for bit.
#![allow(unsafe_code, reason = "loads and stores take pointers, as the instructions do")]
#![allow(
    non_camel_case_types,
    clippy::missing_safety_doc,
    clippy::too_many_arguments,
    reason = "names, signatures and conditions are those of core::arch"
)]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "instructions cut and round"
)]
#![allow(clippy::needless_range_loop, reason = "by lanes, of several vectors at once")]
#![cfg_attr(
    not(amla_emulated),
    allow(dead_code, unused_imports, unused_macros, reason = "only tests use the twins")
)]

mod arithmetic;
pub mod assembly;
mod bf16;
mod conversions;
mod moves;
#[cfg(amla_emulated)]
pub mod processor;
mod shuffles;
#[cfg(all(test, target_arch = "x86_64", target_feature = "sse2"))]
mod tests;
mod types;

pub use arithmetic::*;
pub(crate) use assembly::asm;
pub use bf16::*;
pub use conversions::*;
pub use moves::*;
pub use shuffles::*;
pub use types::*;

const _: () = assert!(cfg!(target_endian = "little"));

/// `f` of each lane.
#[inline(always)]
fn map<T: Copy, U, const N: usize>(x: [T; N], f: impl Fn(T) -> U) -> [U; N] {
    core::array::from_fn(|i| f(x[i]))
}

/// `f` of the lanes of two vectors.
#[inline(always)]
fn zip<T: Copy, U: Copy, V, const N: usize>(a: [T; N], b: [U; N], f: impl Fn(T, U) -> V) -> [V; N] {
    core::array::from_fn(|i| f(a[i], b[i]))
}
