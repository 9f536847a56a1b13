//! Sums, maxima and roundings of the references.

use core::ops::{AddAssign, Mul};

use libm::log;

use crate::bits::{bf16_round, bf16_to_f32};

/// FP32 or FP64.
pub(super) trait Real:
    Copy + From<f32> + Into<f64> + AddAssign + Mul<Output = Self>
{
    /// From FP64, rounded to nearest even.
    fn round(x: f64) -> Self;
}

impl Real for f32 {
    #[expect(clippy::cast_possible_truncation, reason = "rounds to FP32")]
    fn round(x: f64) -> Self {
        x as Self
    }
}

impl Real for f64 {
    fn round(x: f64) -> Self {
        x
    }
}

/// Independent partial sums, so that the compiler may use vectors.
const LANES: usize = 16;

/// The inner product, in `T`.
pub(super) fn dot<T: Real>(q: &[f32], k: &[f32]) -> T {
    let mut lanes = [T::from(0.0); LANES];
    let mut add = |q: &[f32], k: &[f32]| {
        for ((lane, q), k) in lanes.iter_mut().zip(q).zip(k) {
            *lane += T::from(*q) * T::from(*k);
        }
    };
    let (q_chunks, q_tail) = q.as_chunks::<LANES>();
    let (k_chunks, k_tail) = k.as_chunks::<LANES>();
    for (q, k) in q_chunks.iter().zip(k_chunks) {
        add(q, k);
    }
    add(q_tail, k_tail);
    total(lanes)
}

/// `o += p * v`, in `T`.
pub(super) fn axpy<T: Real>(o: &mut [T], p: T, v: &[f32]) {
    for (o, v) in o.iter_mut().zip(v) {
        *o += p * T::from(*v);
    }
}

/// The sum of a block's P.
pub(super) fn rowsum(p: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    for p in p.chunks(LANES) {
        for (lane, p) in lanes.iter_mut().zip(p) {
            *lane += p;
        }
    }
    total(lanes)
}

/// The sum of the lanes, pairwise.
fn total<T: Real>(mut lanes: [T; LANES]) -> T {
    let mut half = LANES / 2;
    while half > 0 {
        let (low, high) = lanes.split_at_mut(half);
        for (low, &mut high) in low.iter_mut().zip(high) {
            *low += high;
        }
        half /= 2;
    }
    lanes[0]
}

/// The largest score of a block, NaN ignored; -inf if there is none.
pub(super) fn rowmax(s: &[f32]) -> f32 {
    s.iter().copied().fold(f32::NEG_INFINITY, f32::max)
}

/// The last of the largest positive P of a block.
pub(super) fn last_largest(p: &[f32]) -> Option<usize> {
    let mut largest = None;
    let mut most = f32::MIN_POSITIVE;
    for (k, &p) in p.iter().enumerate() {
        if p >= most {
            (largest, most) = (Some(k), p);
        }
    }
    largest
}

/// `max * scale`, and -inf for a maximum of -inf, whatever the scale.
pub(super) fn times(max: f32, scale: f32) -> f32 {
    if max == f32::NEG_INFINITY {
        max
    } else {
        max * scale
    }
}

/// `max * scale - e`, rounded once, or -inf if there is no maximum. Beyond 2^22 FP32 has no fraction,
/// and the product is rounded first, as it was when e was taken from it.
#[expect(clippy::cast_possible_truncation, reason = "rounds to FP32")]
pub(super) fn offset(max: f32, scale: f32, e: f32) -> f32 {
    if times(max, scale) == f32::NEG_INFINITY {
        f32::NEG_INFINITY
    } else if e.abs() < 4_194_304.0 {
        (f64::from(max) * f64::from(scale) - f64::from(e)) as f32
    } else {
        max * scale - e
    }
}

/// What to subtract from the scores: the maximum, or 0 while there is none.
pub(super) fn finite_or_zero(m: f32) -> f32 {
    if m == f32::NEG_INFINITY { 0.0 } else { m }
}

/// Rounded to BF16, then back to FP32.
pub(super) fn to_bf16(x: f32) -> f32 {
    bf16_to_f32(bf16_round(x))
}

/// `m + ln(l)`; -inf if l is zero, as it is where every score is -inf.
pub(super) fn log_sum_exp(m: f64, l: f32) -> f64 {
    if l == 0.0 {
        f64::NEG_INFINITY
    } else {
        m + log(l.into())
    }
}
