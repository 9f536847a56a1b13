//! AVX-512 with BF16 dot products: `vdpbf16ps` multiplies 32 BF16 pairs and adds
//! them into 16 FP32 lanes, treating subnormals as zero.
//!
//! | kernel | register tile | operands |
//! |---|---|---|
//! | C1, panels ([`qk`]) | 6 keys x 4 vectors of 16 rows (8 x 3, 12 x 2 for narrow panels) | Q panel 256 B per feature pair, K in place by broadcast |
//! | C1, up to 28 rows ([`skinny`]) | 4 keys x 1 to 6 rows, features in the lanes | Q row-major, K in place |
//! | C2, panels ([`pv`]) | 6 rows x 4 vectors of 16 columns | V strip 256 B per key pair, P by broadcast |
//! | C2, up to 16 rows ([`skinny`]) | 1 to 6 rows x 4 vectors | V in place, P by broadcast |
//! | all stages, up to 8 rows ([`fused`], [`fused_lanes`]) | in those files | K and V in place |
//!
//! Panels have 24 accumulators, so that neither the latency of the dot nor the load ports limit them: 10 loads per
//! 24 dots. Peak: 64 FLOP per dot, at the rate that `dot_loop` measures.
#![allow(unsafe_code, reason = "pointer loads and feature-gated calls of the micro-kernels")]
#![allow(
    clippy::needless_range_loop,
    reason = "counted loops unroll early, so that accumulators become registers"
)]

mod common;
mod fused;
mod fused_lanes;
mod p;
mod pv;
mod qk;
mod skinny;

pub use common::Avx512Bf16;
use half::bf16;
use p::Blocked;

use super::PackQ;
use super::arch::*;
use super::prefetch::{self, Budget, Core};
use super::scalar::prob_of;
use super::simd;
use super::softmax::{self, StoreBf16};
use super::zmm::dots::as_pairs;
use super::zmm::fused_rows::{Block, is_mla};
use super::zmm::{self, LANES};
use super::{Columns, Epilogue, FusedBlock, FusedEnd, Kernel, Pv, Qk, Skipped, Softmax};
use crate::bits::Increment;
use crate::format::{Dtype, Row};
use crate::problem::Precision;
use crate::tile::{BLOCK_KEYS, L0a, L0b, ORow, QPanel, RowState, STile};

/// Whether a fused group has its rows in the lanes.
fn rows_in_lanes(kernel: Avx512Bf16, rows: usize) -> bool {
    kernel.two_dots() && rows > fused::TILE_ROWS
}

impl Kernel for Avx512Bf16 {
    const FUSED_ROWS: usize = fused::ROWS;

    fn prefetch_budget(self, rows: &prefetch::Shape) -> Budget {
        match rows.group_rows {
            // C1 reads keys in the order of memory.
            0..=skinny::C1_ROWS => Budget::c1(16, BLOCK_KEYS),
            // Zen 4 drops what a tile prefetches for itself.
            29..=32 if self.core == Core::Zen4 => Budget::c1(BLOCK_KEYS, BLOCK_KEYS),
            _ => Budget::NONE,
        }
    }

    fn pack_q(self, call: &PackQ<'_>, panel: &mut [QPanel]) {
        let panel = &mut panel[0];
        // SAFETY: the token proves the features.
        unsafe {
            match call.rows.len() {
                len if call.fused.is_some() && rows_in_lanes(self, len) => {
                    fused_lanes::pack_q(call, panel);
                }
                ..=skinny::C1_ROWS => skinny::pack_q(call, panel),
                _ => zmm::pack_q(self.zmm, call, panel),
            }
        }
    }

    fn qk(self, call: &Qk<'_>, q: &[QPanel], _scratch: &mut L0b, s: &mut STile) {
        let q = &q[0];
        let panel = &q.0[..call.d_qk / 2];
        // SAFETY: the token proves the features.
        unsafe {
            match call.rows {
                0..=skinny::C1_ROWS => skinny::qk(self, call, q, s),
                29..=32 if self.two_dots() => qk::qk::<12, 2, 6>(self.zmm, call, panel, s),
                29..=32 => qk::qk::<12, 2, 4>(self.zmm, call, panel, s),
                33..=48 => qk::qk::<8, 3, 4>(self.zmm, call, panel, s),
                _ if self.two_dots() => qk::qk::<6, 4, 6>(self.zmm, call, panel, s),
                _ => qk::qk::<6, 4, 2>(self.zmm, call, panel, s),
            }
        }
    }

    fn prob(self, p: &L0a, precision: Precision, k: usize, r: usize) -> f32 {
        prob_of(p, precision, k, r, |tile| p::pair_of(tile, k / 2, r))
    }

    fn pv(self, call: &Pv<'_>, p: &[&L0a], scratch: &mut L0b, o: &mut [ORow]) -> Skipped {
        // SAFETY: the token proves the features.
        let all = unsafe {
            if call.rows <= skinny::C2_ROWS {
                skinny::pv(self, call, p[0], o)
            } else {
                pv::pv(self.zmm, call, p, scratch, o)
            }
        };
        Skipped { all, tail: 0 }
    }

    fn fused(
        self,
        call: &Softmax<'_>,
        block: &FusedBlock<'_>,
        p: &mut L0a,
        _scratch: &mut L0b,
        state: &mut RowState,
        o: &mut [ORow],
    ) -> FusedEnd {
        let from = block.from;
        // SAFETY: the token proves the features.
        unsafe {
            if is_mla(block.keys.width(), block.values.width()) {
                let block = &Block::<true>::of(block);
                fused_block(self, call, block, from, p, state, o)
            } else {
                let block = &Block::<false>::of(block);
                fused_block(self, call, block, from, p, state, o)
            }
        }
    }

    fn permute(self, fused: bool, _values: Dtype, o: &mut [ORow], to: Columns) {
        if fused {
            // SAFETY: the token proves the features.
            unsafe { skinny::permute(o, to) }
        }
    }

    fn convert(self, row: &Row<'_>, next: &Row<'_>, out: &mut [bf16]) {
        zmm::dots::convert_row(self.zmm, self.dots, row, next, out);
    }

    with_features! {
        [#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]] Avx512Bf16

        // With the processor's own conversion and dots.
        fn softmax(kernel, call: &Softmax<'_>, s: &STile, p: &mut L0a, state: &mut RowState) {
            let to = StoreBf16::<Blocked>(Blocked(kernel.dots));
            // C1 of skinny panels doesn't find the largest scores.
            let max = (call.rows > skinny::C1_ROWS).then_some(&s.1);
            softmax::softmax(kernel.zmm, to, call, max, s, p, state, || ());
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

        fn dot_loop(_kernel, iterations: u64) -> u64 {
            const CHAINS: usize = 24;
            let mut acc = [_mm512_setzero_ps(); CHAINS];
            let x = as_pairs(_mm512_set1_epi32(core::hint::black_box(0x3f80_3f80)));
            for _ in 0..iterations {
                for acc in &mut acc {
                    *acc = _mm512_dpbf16_ps(*acc, x, x);
                }
            }
            core::hint::black_box(acc);
            iterations * (CHAINS * LANES * 4) as u64
        }
    }
}

/// [`Kernel::fused`].
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
fn fused_block<const MLA: bool>(
    kernel: Avx512Bf16,
    call: &Softmax<'_>,
    block: &Block<'_, MLA>,
    from: usize,
    p: &mut L0a,
    state: &mut RowState,
    o: &mut [ORow],
) -> FusedEnd {
    if rows_in_lanes(kernel, call.rows) {
        fused_lanes::fused(kernel, call, block, from, p, state, o)
    } else {
        fused::fused(kernel, call, block, from, p, state, o)
    }
}
