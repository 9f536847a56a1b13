//! The token, loads and stores, and the names that all kernels here use.

pub use half::bf16;

pub use crate::kernel::arch::*;
pub use crate::kernel::call::{Columns, FusedEnd, PackQ, Pv, Qk, Softmax, Strips};
pub use crate::kernel::memory::FUSED_KEYS;
pub use crate::kernel::prefetch::{Core, Hint, LINE};
pub use crate::kernel::simd::Simd;
pub use crate::kernel::zmm::dots::{Dots, as_pairs, from_pairs, load_pairs};
pub use crate::kernel::zmm::{LANES, NOT_FINITE, Zmm, load_row, store_pairs};
use crate::kernel::{detect, scalar, simd};
pub use crate::problem::{Precision, Rescale};
pub use crate::tile::{
    BLOCK_KEYS, BLOCK_PAIRS, L0a, L0b, MAX_D_V, ORow, PANEL_ROWS, PTile, QPanel, Residuals,
    RowState, STRIP, STile,
};

/// Proof that the processor has AVX-512 F, BW, DQ, VL and BF16.
#[derive(Clone, Copy)]
pub struct Avx512Bf16 {
    pub zmm: Zmm,
    pub dots: Dots,
    pub core: Core,
}

impl Avx512Bf16 {
    /// The token, if the processor qualifies.
    pub fn new() -> Option<Self> {
        Some(Self {
            zmm: Zmm::new()?,
            dots: Dots::new()?,
            core: detect::core(),
        })
    }

    /// The same as on another kind of core.
    #[cfg(test)]
    pub fn on(core: Core) -> Option<Self> {
        Self::new().map(|kernel| Self { core, ..kernel })
    }

    /// Whether the core does two dots a cycle, which needs 12 or more that don't wait for each other.
    pub fn two_dots(self) -> bool {
        self.core == Core::Zen5
    }
}

#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
pub fn load(x: &[f32; LANES]) -> __m512 {
    // SAFETY: 16 f32 are 64 bytes; no alignment needed.
    unsafe { _mm512_loadu_ps(x.as_ptr()) }
}

#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
pub fn store(to: &mut [f32; LANES], x: __m512) {
    // SAFETY: 16 f32 are 64 bytes; no alignment needed.
    unsafe { _mm512_storeu_ps(to.as_mut_ptr(), x) }
}

/// Adds each row's increment to the bits of its elements; rare.
#[cold]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
pub fn rescale_rows(zmm: Zmm, rows: &mut [ORow], increment: &[i32]) {
    simd::rescale_rows(zmm, rows, increment, 0..STRIP / LANES);
}

/// [`scalar::finite`] of a strip.
///
/// # Safety
/// The values are valid for reads of the strip's columns and of those before.
#[cold]
pub unsafe fn strip_is_finite<const N: usize>(values: &[[*const bf16; N]], strip: usize) -> bool {
    let columns = strip * STRIP..(strip + 1) * STRIP;
    let values = values.as_flattened().iter().map(|&value| {
        // SAFETY: the caller's promise; they aren't written while the call runs.
        unsafe { core::slice::from_raw_parts(value, columns.end) }
    });
    scalar::finite(values, &columns)
}
