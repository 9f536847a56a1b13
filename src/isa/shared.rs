//! What every backend does alike, element by element.
//!
//! These functions are inlined into each backend's feature-gated callers, so
//! that the compiler vectorises them with that backend's instructions.

use half::bf16;

use super::Softmax;
use crate::bits::{
    Increment, add_increment_f32, bf16_round, bf16_widen, compensation, mul_pow2_f32,
};
use crate::peaks::{PEAK_SHARE, Peak, difference};
use crate::problem::{Precision, Rescale};
use crate::tile::{
    BUFFER_STRIPS, OStrip, PANEL_ROWS, PTile, QPanel, RowState, STRIP, STile, VBuffer,
};

/// `2^r - 1 = r * (C[0] + r * (C[1] + ...))` for `|r| <= 1/2`: relative error of
/// `2^r` below 9.2e-8 before rounding (Remez, constrained to be exact at 0):
/// 0.693147, 0.240222, 0.0555073, 0.00967151, 0.00132647.
pub const EXP2: [f32; 5] = [
    f32::from_bits(0x3f31_7215),
    f32::from_bits(0x3e75_fcde),
    f32::from_bits(0x3d63_5ba9),
    f32::from_bits(0x3c1e_7544),
    f32::from_bits(0x3aad_dd0a),
];

/// Probabilities below 2^-126 are flushed to zero, as the dot instructions do.
pub const EXP2_MIN: f32 = -126.0;

/// Packs query rows into a panel: [`super::Isa::pack_q`].
#[inline(always)]
pub fn pack_q<const D_QK: usize>(rows: &[&[bf16]], negate: bool, panel: &mut QPanel) {
    let sign = if negate { 0x8000_8000 } else { 0 };
    for (r, row) in rows.iter().enumerate() {
        for (pair, out) in row[..D_QK].as_chunks().0.iter().zip(&mut panel.0) {
            out[r] = join(*pair) ^ sign;
        }
    }
    for out in &mut panel.0[..D_QK / 2] {
        out[rows.len()..].fill(0);
    }
}

/// Interleaves values into strips: [`super::Isa::pack_v`].
#[inline(always)]
pub fn pack_v<const D_V: usize>(values: &[&[bf16]], first: usize, v: &mut [VBuffer; 3]) -> bool {
    const ZEROS: [bf16; crate::tile::MAX_D_V] = [bf16::ZERO; _];
    let mut non_finite = 0;
    for (k, pair) in (first / 2..).zip(values.chunks(2)) {
        let even = &pair[0][..D_V];
        let odd = pair.get(1).map_or(&ZEROS[..D_V], |row| &row[..D_V]);
        let strips = even.as_chunks::<STRIP>().0.iter();
        let strips = strips.zip(odd.as_chunks::<STRIP>().0);
        for (strip, (even, odd)) in strips.enumerate() {
            let out = &mut v[strip / BUFFER_STRIPS][strip % BUFFER_STRIPS].0[k];
            for ((out, &even), &odd) in out.iter_mut().zip(even).zip(odd) {
                *out = join([even, odd]);
                non_finite |= u32::from(even.to_bits() & 0x7f80 == 0x7f80);
                non_finite |= u32::from(odd.to_bits() & 0x7f80 == 0x7f80);
            }
        }
    }
    non_finite != 0
}

/// Folds two partial results: [`super::Isa::fold`].
#[inline(always)]
pub fn fold(x: &mut [f32], dx: Increment, y: &[f32], dy: Increment) {
    for (x, &y) in x.iter_mut().zip(y) {
        *x = add_increment_f32(*x, dx) + add_increment_f32(y, dy);
    }
}

/// Adds a multiple of a value to a row: [`super::Isa::axpy`].
#[inline(always)]
pub fn axpy(factor: f32, value: &[bf16], o: &mut [OStrip], row: usize) {
    for (value, o) in value.as_chunks::<STRIP>().0.iter().zip(o) {
        for (o, v) in o[row].iter_mut().zip(value) {
            *o += factor * bf16_widen(v.to_bits());
        }
    }
}

/// Two neighbours in one lane, the even one in the low half.
#[inline(always)]
pub const fn join([even, odd]: [bf16; 2]) -> u32 {
    even.to_bits() as u32 | (odd.to_bits() as u32) << 16
}

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

/// Moves the running reference to the block's maximum and brings the sums along
/// (Algorithm 2 lines 5-9, 11, 12; `docs/algorithm.md` for the exact mode).
///
/// `max` holds the largest unscaled score of each row that it sees, NaN ignored.
#[inline(always)]
pub fn advance(call: &Softmax<'_>, max: &[f32; PANEL_ROWS], state: &mut RowState) -> Bases {
    let mut bases = Bases {
        max: [0.0; PANEL_ROWS],
        offset: [f32::NEG_INFINITY; PANEL_ROWS],
        factor: [1.0; PANEL_ROWS],
    };
    for r in 0..call.rows {
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
        state.increment[r] = 0;
        match call.rescale {
            Rescale::Exact => {
                let block = libm::ceilf(max);
                if block > old {
                    let n = difference(old, block);
                    state.reference[r] = block;
                    state.increment[r] = Increment::pow2(n).bits();
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
                        Precision::Bf16 => bf16_widen(bf16_round(s32)),
                        Precision::Bf16x2 => s32,
                    };
                    let c = s16 / s32;
                    let n = difference(libm::rintf(old), e);
                    let epsilon = compensation(state.c[r], c);
                    state.reference[r] = max;
                    state.increment[r] = Increment::compensated(n, epsilon).bits();
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
    bases
}

/// `score * scale - reference`, where `max` is that product rounded.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "rounds to FP32")]
fn offset(score: f32, max: f32, scale: f32, reference: f32) -> f32 {
    if reference.abs() < 4_194_304.0 {
        // In f64 the product is exact.
        (f64::from(score) * f64::from(scale) - f64::from(reference)) as f32
    } else {
        // Beyond 2^22 FP32 has no fraction left; what counts is that the largest
        // P doesn't leave the range of FP32.
        max - reference
    }
}

/// Rows that [`collect_peaks`] looks at together.
const LANES: usize = 16;

/// Remembers the block's largest probabilities where they are peaks
/// ([`crate::peaks`]), with what rounding took from them.
#[inline(always)]
pub fn collect_peaks(
    call: &Softmax<'_>,
    bases: &Bases,
    s: &STile,
    p: &PTile,
    state: &mut RowState,
) {
    // A bound that needs no exponential: p >= share * sum only if
    // log2(p) >= floor(log2(share * sum)).
    let mut candidates = false;
    let mut candidate = [false; PANEL_ROWS];
    let rows = bases.offset.iter().zip(&state.sum).take(call.rows);
    for (candidate, (&offset, &sum)) in candidate.iter_mut().zip(rows) {
        let bound = (PEAK_SHARE * sum).to_bits() >> 23;
        let bound = i32::try_from(bound).unwrap_or_default() - 128;
        *candidate = offset >= exponent_to_f32(bound);
        candidates |= *candidate;
    }
    if !candidates {
        return;
    }
    // Among the keys that the row sees: a hidden one may have the same score.
    let mut key = [0_i32; PANEL_ROWS];
    for (v, key) in key.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
        if !candidate.as_chunks::<LANES>().0[v].contains(&true) {
            continue;
        }
        let max = &bases.max.as_chunks::<LANES>().0[v];
        for (k, scores) in (0_i32..).zip(&s.0[..call.keys]) {
            let scores = &scores.as_chunks::<LANES>().0[v];
            for (key, (score, max)) in key.iter_mut().zip(scores.iter().zip(max)) {
                *key = if score == max { k } else { *key };
            }
        }
    }
    if let Some(mask) = call.mask {
        let hidden = |r: usize, k: usize| mask[k] >> r & 1 == 0;
        for r in (0..call.rows).filter(|&r| candidate[r]) {
            let found = usize::try_from(key[r]).unwrap_or_default();
            if hidden(r, found) {
                let seen = (0..call.keys)
                    .rev()
                    .find(|&k| !hidden(r, k) && s.0[k][r] == bases.max[r]);
                key[r] = seen.and_then(|k| i32::try_from(k).ok()).unwrap_or_default();
            }
        }
    }
    for r in (0..call.rows).filter(|&r| candidate[r]) {
        let exact = exp2(bases.offset[r]);
        // Infinite or NaN, the row has no peaks.
        if !state.sum[r].is_finite() || exact < PEAK_SHARE * state.sum[r] {
            continue;
        }
        let k = usize::try_from(key[r]).unwrap_or_default();
        let used = bf16_widen(half_of(p.0[k / 2][r], k));
        state.peaks[r].push(Peak {
            key: u32::try_from(call.first_key + k).unwrap_or(u32::MAX),
            exponent: state.reference[r],
            p: exact,
            residual: exact - used,
        });
    }
}

/// The element of a pair that belongs to key `k`.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "takes one half")]
pub const fn half_of(pair: u32, k: usize) -> u16 {
    (pair >> (16 * (k % 2))) as u16
}

/// `2^t` for a moderate `t`.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "an integer already")]
fn exp2(t: f32) -> f32 {
    let j = libm::rintf(t);
    let r = t - j;
    let y = EXP2.iter().rev().fold(0.0, |y, c| y * r + c);
    mul_pow2_f32(y * r + 1.0, j as i32)
}

#[inline(always)]
#[expect(clippy::cast_precision_loss, reason = "small integers")]
const fn exponent_to_f32(x: i32) -> f32 {
    x as f32
}
