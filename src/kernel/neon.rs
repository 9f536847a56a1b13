//! NEON: FP32 multiply-adds of 4 lanes, as every AArch64 processor with floating point has
//! them; on those without BF16 instructions (Kunpeng 920, Cortex-A57) the fastest there is.
//!
//! | kernel | register tile ([`super::fp32`]) | peak model |
//! |---|---|---|
//! | C1 | 6 keys x 4 vectors of 4 rows | 8 FLOP per multiply-add |
//! | C2 | 6 rows x 4 vectors of 4 columns | the same |
//!
//! 24 of the 32 registers accumulate, 4 hold the operand across the lanes and 1 the
//! broadcast. BF16 becomes FP32 by a shift (even elements) and a mask (odd ones). How many
//! instructions a multiply-add comes with: `docs/backends.md`.
#![allow(unsafe_code, reason = "calls of feature-gated functions")]

use core::ops::Range;

use half::bf16;

use super::asimd::Neon;
use super::fp32::element::{Element, splits};
use super::fp32::{self, backend, by_dtype};
use super::{Columns, Epilogue, Kernel, Pv, Qk, Skipped, Softmax, prefetch, scalar, simd, softmax};
use crate::bits::Increment;
use crate::format::{Dtype, Row};
use crate::problem::Precision;
use crate::tile::{L0a, L0b, ORow, QPanel, RowState, STile};

backend! {
    Neon, target_feature(enable = "neon");
    pack: scalar;
    c1: _ => 6 x 4;
    c2: 4;
    prefetching: 0;
    fused: 16;
    fused c1: 1: 4, 2: 4, 3: 4, 4: 4, 5: 4, 6: 4, 7: 2, 8: 2;
    fused c2: 1: 8, 2: 4, 3: 4, 4: 2, 5: 2, 6: 2, 7: 1, 8: 1;
    chains: 24;
}
