//! AVX-512 without BF16 dot products: FP32 multiply-adds of 16 lanes.
//!
//! | kernel | register tile ([`super::fp32`]) | peak model |
//! |---|---|---|
//! | C1 | 6 keys x 4 vectors of 16 rows (8 x 3, 12 x 2, 24 x 1 for narrow panels) | 32 FLOP per multiply-add |
//! | C2 | 6 rows x 4 vectors of 16 columns | the same |
//!
//! Groups of up to 16 rows are fused ([`super::fp32::fused`]): C1 in tiles of 4 keys x 6 rows, C2 in tiles of 6 rows x 2 pairs of
//! vectors, or fewer rows.
//!
//! Intel's cores do two of these in the time of half a BF16 dot, so that this is their
//! fastest backend (`docs/adr/0009`).
#![allow(unsafe_code, reason = "calls of feature-gated functions")]

use core::ops::Range;

use half::bf16;

use super::fp32::element::{Element, splits};
use super::fp32::{self, backend, by_dtype};
use super::zmm::{self, Zmm};
use super::{Columns, Epilogue, Kernel, Pv, Qk, Skipped, Softmax, prefetch, simd, softmax};
use crate::bits::Increment;
use crate::format::{Dtype, Row};
use crate::problem::Precision;
use crate::tile::{L0a, L0b, ORow, QPanel, RowState, STile};

backend! {
    Zmm, cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"));
    pack: zmm;
    c1: 0..=16 => 24 x 1, 17..=32 => 12 x 2, 33..=48 => 8 x 3, _ => 6 x 4;
    c2: 4;
    prefetching: 32;
    fused: 16;
    fused c1: 1: 4, 2: 4, 3: 4, 4: 4, 5: 4, 6: 4, 7: 2, 8: 2;
    fused c2: 1: 2, 2: 2, 3: 2, 4: 2, 5: 2, 6: 2, 7: 1, 8: 1;
    chains: 24;
}
