//! AMX with BF16 products: `tdpbf16ps` adds to a tile of 16 x 16 FP32 sums the products of 16 rows of 32
//! BF16 and 32 rows of 16, which are 16 rows of pairs; subnormals are zeros.
//!
//! | kernel | `a` | `b` | `c` |
//! |---|---|---|---|
//! | C1 ([`qk`]) | K in place, 16 keys x 32 features | Q panel, 16 pairs of features x 16 rows | S, keys x rows |
//! | C2 ([`pv`]) | P, 16 rows x 16 pairs of keys | V strip, 16 pairs of keys x 16 columns | O, rows x columns |
//! | C2, up to 16 rows ([`skinny`]) | P, 16 rows x 16 keys | V in place, 16 keys x 32 columns | O, even and odd columns |
//!
//! Layouts are those of `avx512bf16`, but for 16 x 16 pairs and rows of Q, which are contiguous, and of P, which are
//! transposed in their place. A register tile is four sums and two of either operand, or for 16 rows four of one. It loads
//! a tile for each product then, which L1d serves where it can: C1 has all rows pass over 64 keys, C2 over a strip of V. Peak:
//! 16384 FLOP per product.
//!
//! Memory is slower than products, so all stages prefetch the next block beside them.
//!
//! `docs/experiments.md` has what was measured.
#![allow(unsafe_code, reason = "tile instructions and feature-gated calls")]

mod pv;
mod qk;
mod skinny;
mod tiles;

use half::bf16;
pub use tiles::Amx;
use tiles::{DEPTH, SIDE, Tiles};

use super::PackQ;
use super::prefetch::{self, Budget, Hint, Spread, TILE_LINES};
use super::scalar::prob_of;
use super::simd;
use super::softmax::{self, StoreBf16};
use super::zmm::{self, LANES};
use super::{Epilogue, Kernel, Pv, Qk, Skipped, Softmax};
use crate::bits::Increment;
use crate::format::Row;
use crate::problem::Precision;
use crate::tile::{BLOCK_KEYS, BLOCK_PAIRS, L0a, L0b, ORow, QPanel, RowState, STRIP, STile};

impl Kernel for Amx {
    /// As many lines as each stage's work leaves room for.
    fn prefetch_budget(self, rows: &prefetch::Shape) -> Budget {
        let tiles = rows.panel_rows.div_ceil(SIDE);
        let row_lines = rows.d_qk / DEPTH;
        // Register tiles of two by two have two tiles of rows each, and half of the keys or columns.
        let c1 = tiles * (BLOCK_KEYS / qk::VISIT) * row_lines * TILE_LINES;
        let v1 = tiles * BLOCK_PAIRS;
        let c2 =
            rows.group_rows.div_ceil(SIDE) * (rows.d_v / STRIP) * (BLOCK_KEYS / DEPTH) * TILE_LINES;
        Budget {
            distance: BLOCK_KEYS,
            c1: c1 / row_lines,
            v1: v1 / row_lines,
            c2: c2 / row_lines,
        }
    }

    fn pack_q(self, call: &PackQ<'_>, panel: &mut [QPanel]) {
        // SAFETY: the token proves the features.
        unsafe { zmm::transpose_q::<true>(self.zmm, call, &mut panel[0]) }
    }

    fn qk(self, call: &Qk<'_>, q: &[QPanel], scratch: &mut L0b, s: &mut STile) {
        qk::qk(self, call, &q[0].0[..call.d_qk / 2], scratch, s);
    }

    fn prob(self, p: &L0a, precision: Precision, k: usize, r: usize) -> f32 {
        let pair = k / 2;
        prob_of(p, precision, k, r, |tile| {
            tile.0[pair / SIDE * SIDE + r % SIDE][r / SIDE * SIDE + pair % SIDE]
        })
    }

    fn pv(self, call: &Pv<'_>, p: &[&L0a], scratch: &mut L0b, o: &mut [ORow]) -> Skipped {
        // SAFETY: the token proves the features.
        unsafe {
            if call.planned_rows <= skinny::ROWS {
                skinny::pv(self, call, p[0], scratch, o)
            } else {
                pv::pv(self, call, p, scratch, o)
            }
        }
    }

    fn convert(self, row: &Row<'_>, next: &Row<'_>, out: &mut [bf16]) {
        zmm::dots::convert_row(self.zmm, self.dots, row, next, out);
    }

    with_features! {
        [#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]] Amx

        // With P transposed for C2.
        fn softmax(kernel, call: &Softmax<'_>, s: &STile, p: &mut L0a, state: &mut RowState) {
            let steps = call.rows.div_ceil(LANES) * call.keys.div_ceil(2);
            let mut prefetch = Spread::of(call.prefetch, steps);
            let beside = || prefetch.step(kernel.zmm, Hint::L2);
            let to = StoreBf16::<_, RESIDUAL>(kernel.dots);
            softmax::softmax(kernel.zmm, to, call, None, s, p, state, beside);
            let tiles = call.rows.div_ceil(SIDE);
            pv::transpose_p(&mut p.high, tiles, call.keys);
            if call.precision == Precision::Bf16x2 {
                pv::transpose_p(&mut p.low, tiles, call.keys);
            }
        }

        fn epilogue(
            kernel,
            call: &Epilogue<'_>,
            earlier: Option<&[ORow]>,
            o: &mut [ORow],
            store: impl FnMut(usize, &ORow),
        ) {
            simd::epilogue(kernel.zmm, call, earlier, o, store);
        }

        fn rescale(kernel, xs: &mut [f32], increment: Increment) {
            simd::rescale(kernel.zmm, xs, increment);
        }
    }

    fn dot_loop(self, iterations: u64) -> u64 {
        Tiles::new(self).products(iterations)
    }
}

/// One over the share of a row's sum from which on its largest P has a residual, which vectors add: that takes as long as a
/// quarter of C2 where all rows have one. Residuals of others are as small as what rounding takes from the rest.
const RESIDUAL: u32 = 64;
