//! The instructions of AVX-512 and AMX: the processor's, or under `--cfg amla_emulated` their twins in plain Rust.

#[cfg(not(amla_emulated))]
pub use core::arch::{asm, x86_64::*};

#[cfg(amla_emulated)]
pub use super::emulated::*;
