//! AMX with BF16 products: `tdpbf16ps` adds to a tile of 16 x 16 FP32 sums the products of 16 rows of 32
//! BF16 and 32 rows of 16, which lie as 16 rows of pairs; subnormals are zeros.
//!
//! | kernel | `a` | `b` | `c` |
//! |---|---|---|---|
//! | C1 ([`c1`]) | K from the cache itself, 16 keys x 32 features | Q panel, 16 pairs of features x 16 rows | S, keys x rows |
//! | C2 ([`c2`]) | P, 16 rows x 16 pairs of keys | V strip, 16 pairs of keys x 16 columns | O, rows x columns |
//!
//! So panels lie as those of `avx512bf16`, but for 16 x 16 pairs and rows of Q, which are one piece, and of P, which are
//! transposed where they lie. A register tile is four sums and two of either operand, or for 16 rows four of one. It loads
//! a tile for each product then, which L1d serves where it can: C1 has all rows pass over 64 keys, C2 over a strip of V. Peak:
//! 16384 FLOP per product.
//!
//! C2 of up to 16 rows has tiles of V as they lie in the cache ([`few`]).
//!
//! Memory doesn't keep up with products, and is asked for the next block beside them ([`asks`]).
//!
//! `docs/adr/0018` has what was measured.
#![allow(unsafe_code, reason = "tile instructions and feature-gated calls")]

mod asks;
mod c1;
mod c2;
mod few;
mod tiles;

use core::ops::Range;

use half::bf16;
use tiles::{DEPTH, Lying, SIDE, Tiles};

use super::prefetch::Ahead;
use super::simd;
use super::softmax::{self, Pairs};
use super::zmm::dots::{self, Dots};
use super::zmm::{self, LANES, Zmm};
use super::{Close, Kernel, Left, Maxima, Pv, Rows, Softmax, detect, half_of, prob_of};
use crate::bits::{Increment, bf16_widen};
use crate::format::Row;
use crate::problem::Precision;
use crate::schedule::Stage;
use crate::tile::{
    BLOCK_KEYS, BLOCK_PAIRS, L0a, L0b, OStrip, PANEL_ROWS, PTile, QPanel, RowState, STRIP, STile,
    VBuffer,
};

/// Proof that the processor has AMX with BF16 products, that this process may use it, and that the processor has
/// AVX-512 F, BW, DQ, VL and BF16.
#[derive(Clone, Copy)]
pub struct Amx {
    zmm: Zmm,
    dots: Dots,
}

impl Amx {
    /// The token, if the processor and the process qualify.
    pub fn new() -> Option<Self> {
        let (zmm, dots) = (Zmm::new()?, Dots::new()?);
        detect::has_amx().then_some(Self { zmm, dots })
    }
}

impl Kernel for Amx {
    const DIRECT_ROWS: usize = PANEL_ROWS;
    const ALL_ASK: bool = true;

    fn share(stage: Stage, rows: usize, [d_qk, d_v]: [usize; 2]) -> usize {
        let tiles = rows.div_ceil(SIDE);
        let row_lines = d_qk / DEPTH;
        // Register tiles of two by two have two tiles of rows each, and half of the keys or columns.
        let lines = match stage {
            Stage::C1(_) => tiles * (BLOCK_KEYS / c1::VISIT) * row_lines * asks::LINES,
            Stage::V1(_) => tiles * BLOCK_PAIRS,
            Stage::C2(_) => tiles * (d_v / STRIP) * (BLOCK_KEYS / DEPTH) * asks::LINES,
            Stage::Last => 0,
        };
        lines / row_lines
    }

    fn widen(self, row: &Row<'_>, out: &mut [bf16]) {
        // SAFETY: the token proves the features.
        unsafe { dots::widen_row(self.zmm, self.dots, row, out) }
    }

    fn pack_q<const D_QK: usize>(self, rows: &[&[bf16]], negate: bool, panel: &mut QPanel) {
        // SAFETY: the token proves the features.
        unsafe { zmm::transpose_q::<true>(self.zmm, D_QK, rows, negate, panel) }
    }

    fn pack_v<const D_V: usize>(
        self,
        values: &[&[bf16]],
        first: usize,
        _next: &[&[bf16]],
        v: &mut [VBuffer; 3],
    ) -> bool {
        // SAFETY: the token proves the features.
        unsafe { c2::pack_v::<D_V>(self.zmm, values, first, v) }
    }

    fn qk<const D_QK: usize>(
        self,
        q: &QPanel,
        rows: usize,
        keys: &Rows<'_>,
        next: &[&[bf16]],
        scratch: &mut L0b,
        s: &mut STile,
    ) -> Option<Maxima> {
        let q = &q.0[..D_QK / 2];
        c1::qk(self, q, rows, keys.as_slice(), next, scratch, s);
        None
    }

    fn softmax(self, call: &Softmax<'_>, s: &STile, p: &mut L0a, state: &mut RowState) {
        // SAFETY: the token proves the features.
        unsafe { softmax(self, call, s, p, state) }
    }

    fn prob(self, p: &L0a, precision: Precision, k: usize, r: usize) -> f32 {
        let pair = k / 2;
        prob_of(p, precision, k, r, |tile| {
            tile.0[pair / SIDE * SIDE + r % SIDE][r / SIDE * SIDE + pair % SIDE]
        })
    }

    fn pv<const D_V: usize>(
        self,
        call: &Pv<'_>,
        p: &L0a,
        v: &[VBuffer; 3],
        scratch: &mut L0b,
        o: &mut [OStrip],
    ) -> Left {
        let o = &mut o[..D_V / STRIP];
        if call.group_rows <= few::ROWS {
            let v = few::Values::Packed(v);
            // SAFETY: the token proves the features.
            return unsafe { few::pv(self, call, p, v, scratch, o) };
        }
        // SAFETY: the token proves the features.
        unsafe { c2::pv(self, call, p, v, o) }
        Left::NOTHING
    }

    fn pv_direct<const D_V: usize>(
        self,
        call: &Pv<'_>,
        p: &L0a,
        values: &Rows<'_>,
        scratch: &mut L0b,
        o: &mut [OStrip],
    ) -> Left {
        if call.group_rows <= few::ROWS {
            let v = few::Values::Rows(values.as_slice());
            // SAFETY: the token proves the features.
            return unsafe { few::pv(self, call, p, v, scratch, &mut o[..D_V / STRIP]) };
        }
        let memory: &mut [u32] = bytemuck::cast_slice_mut(scratch[0].0.as_flattened_mut());
        let (values, v) = (values.as_slice(), memory.as_chunks_mut().0);
        // SAFETY: the token proves the features.
        unsafe { c2::pv_direct(self, call, p, values, v, &mut o[..D_V / STRIP]) }
    }

    fn rescale(self, xs: &mut [f32], increment: Increment) {
        // SAFETY: the token proves the features.
        unsafe { rescale(self.zmm, xs, increment) }
    }

    fn close(
        self,
        call: &Close<'_>,
        earlier: Option<&OStrip>,
        o: &mut OStrip,
        put: impl FnMut(usize, &[f32; STRIP]),
    ) {
        // SAFETY: the token proves the features.
        unsafe { close(self.zmm, call, earlier, o, put) }
    }

    fn dot_loop(self, iterations: u64) -> u64 {
        Tiles::new(self).products(iterations)
    }
}

/// Rows whose largest P is at least this part of their sum have what rounding takes from it added by vectors,
/// which takes as long as a quarter of C2 where all have; of others it is as small as what rounding takes from the rest.
const LARGEST: u32 = 64;

/// How rows of so many columns lie, if they do at one distance from each to the next. Once for all its callers.
#[inline(never)]
fn lying(rows: &[&[bf16]], columns: usize) -> Option<Lying> {
    let at = |row: &[bf16]| row[..columns].as_ptr().expose_provenance();
    let (first, second) = (at(rows.first()?), at(rows.get(1)?));
    let stride = second.wrapping_sub(first);
    let place = |i: usize| first.wrapping_add(i.wrapping_mul(stride));
    let alike = rows.iter().enumerate().all(|(i, row)| at(row) == place(i));
    alike.then(|| Lying {
        at: core::ptr::with_exposed_provenance(first),
        stride,
    })
}

/// V1, and P as C2 takes it.
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
fn softmax(kernel: Amx, call: &Softmax<'_>, s: &STile, p: &mut L0a, state: &mut RowState) {
    let steps = call.rows.div_ceil(LANES) * call.keys.div_ceil(2);
    let mut ahead = Ahead::of(call.next, steps);
    let beside = || ahead.step_far(kernel.zmm);
    softmax::softmax(
        kernel.zmm,
        Pairs::<_, LARGEST>(kernel.dots),
        call,
        s,
        p,
        state,
        beside,
    );
    let tiles = call.rows.div_ceil(SIDE);
    c2::transpose_p(&mut p.high, tiles, call.keys);
    if call.precision == Precision::Bf16x2 {
        c2::transpose_p(&mut p.low, tiles, call.keys);
    }
}

#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
fn rescale(zmm: Zmm, xs: &mut [f32], increment: Increment) {
    simd::rescale(zmm, xs, increment);
}

#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
fn close(
    zmm: Zmm,
    call: &Close<'_>,
    earlier: Option<&OStrip>,
    o: &mut OStrip,
    put: impl FnMut(usize, &[f32; STRIP]),
) {
    simd::close(zmm, false, call, earlier, o, put);
}
