//! V1 of few rows, with a row's keys in the lanes: that of the fused kernels.
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

const _: () = assert!(ROWS.is_multiple_of(GROUP) && KEYS == u64::BITS as usize);

/// Scores, and then P: row by row.
#[repr(align(64))]
pub struct Scores(pub [[f32; KEYS]; ROWS]);

/// `P = exp2((s - score) * scale + offset)` of each row. The difference comes before the product: it is exact for the scores that
/// matter, so that large ones lose nothing, with or without a fused multiply-add.
pub struct Bases {
    /// The unscaled score at the reference, rounded.
    score: [f32; ROWS],
    /// What that rounding took, in log2 units; -inf where no key was seen yet.
    offset: [f32; ROWS],
}

impl Bases {
    /// Those of the rows' references.
    pub fn of(call: &Softmax<'_>, state: &RowState) -> Self {
        let mut bases = Self {
            score: [0.0; ROWS],
            offset: [f32::NEG_INFINITY; ROWS],
        };
        for (r, &reference) in state.reference[..call.rows].iter().enumerate() {
            if reference.is_finite() {
                let score = (reference / call.scale).clamp(f32::MIN, f32::MAX);
                let score = if call.scale == 0.0 { 0.0 } else { score };
                bases.score[r] = score;
                bases.offset[r] = distance(score, call.scale, reference);
            } else if reference > 0.0 {
                bases.offset[r] = f32::NAN;
            }
        }
        bases
    }
}

/// V1 of some of the call's keys: `p` holds their scores, and P afterwards; 0 for those behind the last, up to full `vectors`.
/// The keys are those from a step's first on. Returns whether a reference moved.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "inlined everywhere")]
pub fn softmax_rows<S: Simd>(
    simd: S,
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
        // NaN doesn't count: where nothing was seen, for one.
        let over = simd.sub(
            simd.mul(max, simd.splat(call.scale)),
            simd.splat(state.reference[r]),
        );
        above = simd.max(over, above);
    }
    increment.fill(0);
    let moved = simd.any(simd.not_ge(simd.splat(0.0), above));
    if moved {
        let mut maxima = [f32::NEG_INFINITY; PANEL_ROWS];
        for (r, largest) in maxima.iter_mut().enumerate().take(call.rows) {
            let max = row_max(simd, &lanes::<S>(&p.0[r])[..vectors], seen(r));
            let mut scores = [f32::NEG_INFINITY; KEYS];
            simd.store(max, &mut lanes_mut::<S>(&mut scores)[0]);
            *largest = scores.iter().copied().fold(*largest, f32::max);
        }
        let mut unused = advance::Bases::NONE;
        advance(call, 0..call.rows, &maxima, state, increment, &mut unused);
        *bases = Bases::of(call, state);
    }
    let scale = simd.splat(call.scale);
    for first in (0..call.rows).step_by(GROUP) {
        let rows = first..call.rows.min(first + GROUP);
        let mut sums = [simd.splat(0.0); GROUP];
        for (r, sum) in rows.clone().zip(&mut sums) {
            let (score, offset) = (simd.splat(bases.score[r]), simd.splat(bases.offset[r]));
            for (v, p) in lanes_mut::<S>(&mut p.0[r])[..vectors]
                .iter_mut()
                .enumerate()
            {
                let below = simd.sub(simd.load(p), score);
                let mut prob = simd.exp2(simd.mul_add(below, scale, offset));
                if let Some(seen) = seen(r) {
                    prob = simd.select(simd.mask_of(seen, v), prob, simd.splat(0.0));
                }
                *sum = simd.add(*sum, prob);
                if call.rescale == Rescale::Compensated {
                    prob = simd.mul(prob, simd.splat(state.factor[r]));
                }
                simd.store(prob, p);
            }
        }
        // C2 takes P unrounded.
        for (r, sum) in rows.zip(simd.sum_lanes(sums)) {
            state.sum[r] += sum;
            state.rounded_sum[r] += sum;
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
