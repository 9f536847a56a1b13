//! The running reference of each row, which V1 moves to a block's maximum.

use core::ops::Range;

use super::call::Softmax;
use super::simd::Simd;
use crate::bits::{
    HEADROOM, Increment, bf16_round, bf16_to_f32, compensation, difference, mul_pow2_f32,
};
use crate::problem::{Precision, Rescale};
use crate::tile::{PANEL_ROWS, RowState};

/// The largest score of each row over a block's keys; NaN doesn't count.
pub type Maxima = [f32; PANEL_ROWS];

/// How V1 turns scores into probabilities:
/// `P = exp2((s - max) * scale + offset) * factor`.
///
/// The difference comes before the product: it is exact for the scores that
/// matter, so that large ones lose nothing, with or without a fused multiply-add.
pub struct Bases {
    /// The block's largest score, unscaled; 0 where there is none.
    pub max: [f32; PANEL_ROWS],
    /// That score less the reference, in log2 units; -inf where there is none.
    pub offset: [f32; PANEL_ROWS],
    /// S16 of the compensated mode; ones in the exact one.
    pub factor: [f32; PANEL_ROWS],
}

impl Bases {
    /// Of rows that see no key.
    pub const NONE: Self = Self {
        max: [0.0; PANEL_ROWS],
        offset: [f32::NEG_INFINITY; PANEL_ROWS],
        factor: [1.0; PANEL_ROWS],
    };
}

/// [`advance`] of all rows, for the vectors that have a faster way.
pub trait Advance: Simd {
    /// See [`advance`].
    #[inline(always)]
    fn advance(
        self,
        call: &Softmax<'_>,
        max: &Maxima,
        state: &mut RowState,
        increment: &mut [i32; PANEL_ROWS],
    ) -> Bases {
        let mut bases = Bases::NONE;
        advance(call, 0..call.rows, max, state, increment, &mut bases);
        bases
    }
}

/// Moves the running reference to the block's maximum and rescales the sums
/// (Algorithm 2 lines 5-9, 11, 12; `docs/algorithm.md` for the exact mode).
///
/// `max` holds the largest unscaled score of each row that it sees, NaN ignored; `bases` are [`Bases::NONE`].
#[inline(always)]
pub fn advance(
    call: &Softmax<'_>,
    rows: Range<usize>,
    max: &Maxima,
    state: &mut RowState,
    increment: &mut [i32; PANEL_ROWS],
    bases: &mut Bases,
) {
    for r in rows {
        let score = max[r];
        // Not the product alone: -inf * 0 would be NaN.
        let max = if score == f32::NEG_INFINITY {
            score
        } else {
            score * call.scale
        };
        // Also where a finite score leaves FP32 when scaled.
        let none = max == f32::NEG_INFINITY;
        let old = state.reference[r];
        increment[r] = 0;
        match call.rescale {
            Rescale::Exact => {
                let block = libm::ceilf(max);
                if block > old {
                    let reference = block + HEADROOM;
                    let n = difference(old, reference);
                    state.reference[r] = reference;
                    increment[r] = Increment::pow2(n).bits();
                    state.sum[r] = mul_pow2_f32(state.sum[r], n);
                    state.rounded_sum[r] = mul_pow2_f32(state.rounded_sum[r], n);
                }
            }
            Rescale::Compensated => {
                if max > old {
                    // Lines 6-9 in base 2: n = -rint(m), S32 = 2^(n + m).
                    let e = libm::rintf(max);
                    let s32 = libm::exp2f(max - e);
                    // A pair needs no scale that BF16 can hold: c is 1 then.
                    let s16 = match call.precision {
                        Precision::Bf16 => bf16_to_f32(bf16_round(s32)),
                        Precision::Bf16x2 => s32,
                    };
                    let c = s16 / s32;
                    let n = difference(libm::rintf(old), e);
                    let epsilon = compensation(state.c[r], c);
                    state.reference[r] = max;
                    increment[r] = Increment::compensated(n, epsilon).bits();
                    state.sum[r] *= libm::exp2f(old - max);
                    state.c[r] = c;
                    state.factor[r] = s16;
                }
                bases.factor[r] = state.factor[r];
            }
        }
        if !none {
            bases.max[r] = score;
            bases.offset[r] = match call.rescale {
                Rescale::Exact => offset(score, max, call.scale, state.reference[r]),
                // Relative to the rounded product: the row's largest P is 1.
                Rescale::Compensated => max - state.reference[r],
            };
        }
    }
}

/// `score * scale - reference`: in f64 the product is exact.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "rounds to FP32")]
pub fn distance(score: f32, scale: f32, reference: f32) -> f32 {
    (f64::from(score) * f64::from(scale) - f64::from(reference)) as f32
}

/// [`distance`], where `max` is the product rounded.
#[inline(always)]
fn offset(score: f32, max: f32, scale: f32, reference: f32) -> f32 {
    if reference.abs() < 4_194_304.0 {
        distance(score, scale, reference)
    } else {
        // Beyond 2^22 FP32 has no fraction left; what counts is that the largest
        // P doesn't leave the range of FP32.
        max - reference
    }
}
