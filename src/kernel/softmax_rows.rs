//! V1 of few rows, with a row's keys in the lanes: that of the fused kernels whose rows don't share the lanes.
//!
//! P is relative to the running reference alone, not to the largest score of the keys at hand. So the keys' largest score only has
//! to be compared with the reference, which seldom moves: the processor predicts that, and doesn't wait for it.

use core::ops::Range;

use crate::kernel::Softmax;
use crate::kernel::advance::{self, advance, distance};
use crate::kernel::simd::{Simd, lanes, lanes_mut};
use crate::problem::Rescale;
use crate::tile::{PANEL_ROWS, RowState};

/// Rows at most: as many as a panel's memory holds in FP32.
pub const ROWS: usize = if PANEL_ROWS < 32 { PANEL_ROWS / 2 } else { 16 };
/// Keys at most: a bit of a word each.
pub const KEYS: usize = 64;
/// Rows whose sums are added up at once.
const GROUP: usize = 4;
/// Numbers of the widest vectors.
const LANES: usize = 16;

const _: () = assert!(ROWS.is_multiple_of(GROUP) && KEYS == u64::BITS as usize);

/// Scores, and then P: row by row.
#[repr(align(64))]
pub struct Scores(pub [[f32; KEYS]; ROWS]);

/// Of each row, from step to step: `P = exp2((s - score) * scale + offset)`, and the largest score. The difference comes before the product: it is exact for the scores that
/// matter, so that large ones lose nothing, with or without a fused multiply-add.
#[repr(align(64))]
pub struct Bases {
    /// The largest scores so far, lane by lane; -inf in lanes beyond.
    largest: [[f32; LANES]; ROWS],
    /// The unscaled score at the reference, rounded.
    score: [f32; ROWS],
    /// What that rounding took, in log2 units; -inf where no key was seen yet.
    offset: [f32; ROWS],
}

impl Bases {
    /// Those of the rows' references.
    pub fn of(call: &Softmax<'_>, state: &RowState) -> Self {
        let mut bases = Self {
            largest: [[f32::NEG_INFINITY; _]; _],
            score: [0.0; ROWS],
            offset: [f32::NEG_INFINITY; ROWS],
        };
        bases.follow(call, state);
        bases
    }

    /// Moves references to the largest scores so far. It is rare, and the same for all backends.
    #[cold]
    #[inline(never)]
    fn advance(
        &mut self,
        call: &Softmax<'_>,
        state: &mut RowState,
        increment: &mut [i32; PANEL_ROWS],
    ) {
        let mut maxima = [f32::NEG_INFINITY; PANEL_ROWS];
        for (r, max) in maxima[..call.rows].iter_mut().enumerate() {
            *max = self.largest(r);
        }
        let mut unused = advance::Bases::NONE;
        advance(call, 0..call.rows, &maxima, state, increment, &mut unused);
        self.follow(call, state);
    }

    /// Follows references that moved.
    fn follow(&mut self, call: &Softmax<'_>, state: &RowState) {
        for (r, &reference) in state.reference[..call.rows].iter().enumerate() {
            if reference.is_finite() {
                // Within half of the range, so that differences to negative scores don't overflow.
                const MOST: f32 = f32::MAX / 2.0;
                let score = (reference / call.scale).clamp(-MOST, MOST);
                let score = if call.scale == 0.0 { 0.0 } else { score };
                self.score[r] = score;
                self.offset[r] = distance(score, call.scale, reference);
            } else {
                self.score[r] = 0.0;
                self.offset[r] = if reference > 0.0 {
                    f32::NAN
                } else {
                    f32::NEG_INFINITY
                };
            }
        }
    }

    /// A row's largest score so far.
    fn largest(&self, r: usize) -> f32 {
        let mut lanes = self.largest[r];
        let mut half = LANES;
        while half > 1 {
            half /= 2;
            for i in 0..half {
                // Not `f32::max`: there is no NaN.
                lanes[i] = if lanes[i] < lanes[i + half] {
                    lanes[i + half]
                } else {
                    lanes[i]
                };
            }
        }
        lanes[0]
    }

    /// Adds the largest scores to the rows'.
    #[inline(never)]
    pub fn store_largest(&self, call: &Softmax<'_>, state: &mut RowState) {
        for (r, max) in state.max[..call.rows].iter_mut().enumerate() {
            *max = max.max(self.largest(r));
        }
    }
}

/// How P is stored for C2, beside P in FP32.
pub trait StoreRows<S: Simd> {
    /// Whether it is rounded.
    const ROUNDED: bool;
    /// Stores vector `v` of a row's P, and returns the numbers as they are stored.
    fn store(&mut self, simd: S, prob: S::F32, row: usize, v: usize) -> S::F32;
}

/// C2 takes P in FP32.
pub struct Unrounded;

impl<S: Simd> StoreRows<S> for Unrounded {
    const ROUNDED: bool = false;

    #[inline(always)]
    fn store(&mut self, _simd: S, prob: S::F32, _row: usize, _v: usize) -> S::F32 {
        prob
    }
}

/// V1 of some of the call's keys: `p` holds their scores, and P afterwards; 0 for those behind the last, up to full `vectors`.
/// The keys are those from a step's first on. Returns whether a reference moved; if so, `increment` says by how much.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "inlined everywhere")]
pub fn softmax_rows<S: Simd, T: StoreRows<S>>(
    simd: S,
    to: &mut T,
    call: &Softmax<'_>,
    keys: Range<usize>,
    vectors: usize,
    p: &mut Scores,
    bases: &mut Bases,
    state: &mut RowState,
    increment: &mut [i32; PANEL_ROWS],
) -> bool {
    let seen = (call.mask.is_some() || keys.len() < vectors * S::LANES).then(|| seen(call, keys));
    let seen = |r: usize| seen.as_ref().map(|seen| seen[r]);
    let mut above = simd.splat(f32::NEG_INFINITY);
    for r in 0..call.rows {
        let max = row_max(simd, &lanes::<S>(&p.0[r])[..vectors], seen(r));
        let largest = &mut lanes_mut::<S>(&mut bases.largest[r])[0];
        simd.store(simd.max(max, simd.load(largest)), largest);
        // NaN doesn't count: where nothing was seen, for one.
        let over = simd.sub(
            simd.mul(max, simd.splat(call.scale)),
            simd.splat(state.reference[r]),
        );
        above = simd.max(over, above);
    }
    let moved = simd.any(simd.not_ge(simd.splat(0.0), above));
    if moved {
        bases.advance(call, state, increment);
    }
    let (scale, zero) = (simd.splat(call.scale), simd.splat(0.0));
    let exact = call.rescale == Rescale::Exact;
    for first in (0..call.rows).step_by(GROUP) {
        let rows = first..call.rows.min(first + GROUP);
        let (mut sums, mut stored) = ([zero; GROUP], [zero; GROUP]);
        for (r, (sum, stored)) in rows.zip(sums.iter_mut().zip(&mut stored)) {
            let (score, offset) = (simd.splat(bases.score[r]), simd.splat(bases.offset[r]));
            let mut total = [zero; 2];
            for (v, p) in lanes_mut::<S>(&mut p.0[r])[..vectors]
                .iter_mut()
                .enumerate()
            {
                let below = simd.sub(simd.load(p), score);
                let mut prob = simd.exp2(simd.mul_add(below, scale, offset));
                if let Some(seen) = seen(r) {
                    prob = simd.select(simd.mask_of(seen, v), prob, zero);
                }
                total[0] = simd.add(total[0], prob);
                if !exact {
                    prob = simd.mul(prob, simd.splat(state.factor[r]));
                }
                simd.store(prob, p);
                total[1] = simd.add(total[1], to.store(simd, prob, r, v));
            }
            [*sum, *stored] = total;
        }
        let sums = simd.sum_lanes(sums);
        // The compensated mode has no use for others.
        let stored = if T::ROUNDED && exact {
            simd.sum_lanes(stored)
        } else {
            sums
        };
        for (total, sums) in [(&mut state.sum, sums), (&mut state.rounded_sum, stored)] {
            // All four, zeros among them, so that who reads four next needn't wait.
            let total: &mut [f32; GROUP] = &mut total.as_chunks_mut().0[first / GROUP];
            for (total, sum) in total.iter_mut().zip(sums) {
                *total += sum;
            }
        }
    }
    moved
}

/// The largest scores of a row, lane by lane.
#[inline(always)]
fn row_max<S: Simd>(simd: S, scores: &[S::Lanes], seen: Option<u64>) -> S::F32 {
    let lowest = simd.splat(f32::NEG_INFINITY);
    let mut max = lowest;
    for (v, s) in scores.iter().enumerate() {
        let mut s = simd.load_fours(s);
        if let Some(seen) = seen {
            s = simd.select(simd.mask_of(seen, v), s, lowest);
        }
        max = simd.max(s, max);
    }
    max
}

/// Which keys each row sees: a bit each.
fn seen(call: &Softmax<'_>, keys: Range<usize>) -> [u64; ROWS] {
    let Some(mask) = call.mask else {
        return [u64::MAX >> (KEYS - keys.len()); ROWS];
    };
    let mut seen = [0; ROWS];
    for (k, rows) in mask[keys].iter().enumerate() {
        for (r, seen) in seen.iter_mut().enumerate().take(call.rows) {
            *seen |= (rows >> r & 1) << k;
        }
    }
    seen
}
