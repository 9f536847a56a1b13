//! Algorithm 2: as printed, corrected, and with the exact rescale.

use core::f64::consts::LN_2;

use libm::{ceilf, exp2f, expf, floorf, rintf};

use super::arithmetic::{
    finite_or_zero, last_largest, log_sum_exp, offset, rowmax, rowsum, times, to_bf16,
};
use super::row::{check, each_row};
use super::{Blocks, MAX_BLOCK};
use crate::bits::{
    HEADROOM, Increment, add_increment_f32_slice, as_printed_f32, compensation, difference,
    mul_pow2_f32,
};
use crate::error::Error;
use crate::problem::{Precision, Problem};

// -------------------------------------------------------------------------------------------------
// Algorithm 2, as printed
// -------------------------------------------------------------------------------------------------

/// Algorithm 2, `alg:ascend_mla`, **to the letter, with its defects**: for comparison only.
///
/// Everything is in FP32 and base e, as printed. `round` is to nearest, `Cast_to_int32` drops the
/// fraction. The defects, which [`amla_compensated`] corrects:
///
/// 1. Line 9 is inverted. The appendix (equation `eqn:modifiediteration`) has c = r/r' = S16/S32. The
///    printed compensation adds the error of the rounded scale a second time instead of removing it
///    (figures in `docs/algorithm.md`).
/// 2. The integer addition of lines 14 and 15 is not total ([`as_printed_f32`]). When n falls, an
///    exact zero in O, such as that of a padded column of V, becomes NaN, an infinity or a huge
///    number. Infinities become finite.
/// 3. The 1e-6 of line 11 adds eight units in the last place with every block, needed or not.
/// 4. The -30 of line 11 leaves the old O too large where the maximum rises by more than 30 ln 2 at
///    once.
/// 5. With every score of the first block -inf, m, n and P are NaN, and the row stays NaN.
/// 6. `n + m / ln 2` of line 7 cancels for a large m: S32 is off by the rounding of `m / ln 2`.
///
/// Outputs are as in the [module](super)'s documentation; lse is `m + ln l` with Algorithm 2's m and l.
///
/// # Errors
///
/// Those of [`base`](super::base).
pub fn amla_as_printed(
    problem: &Problem,
    blocks: impl Into<Blocks>,
    o: &mut [f32],
    lse: &mut [f32],
) -> Result<(), Error> {
    check(problem, o.len(), lse.len())?;
    let blocks = blocks.into();
    blocks.check(problem)?;
    const LN_2: f32 = core::f32::consts::LN_2;
    each_row(problem, blocks.split, o, lse, |row, o| {
        let mut buffer = [0.0; MAX_BLOCK];
        // Line 1.
        o.fill(0.0);
        let mut m = f32::NEG_INFINITY;
        let mut l = 0.0;
        let mut n = f32::NEG_INFINITY;
        let mut c = 1.0;
        let mut s16 = 1.0;
        // Lines 2 and 3.
        for keys in row.blocks(blocks.keys) {
            let (m_prev, n_prev, c_prev) = (m, n, c);
            // Line 4, C1: S = Q K^T.
            let s = &mut buffer[..keys.len()];
            row.qk(&keys, s);
            // Line 5, V1.
            for s in &mut *s {
                *s *= problem.softmax_scale;
            }
            row.hide(&keys, s);
            m = m_prev.max(rowmax(s));
            let m_up = expf(m_prev - m);
            // Line 6.
            n = rintf(-m / LN_2);
            let p = s;
            for p in &mut *p {
                *p = expf(*p - m);
            }
            l = l * m_up + rowsum(p);
            // Line 7.
            let s32 = expf(LN_2 * (n + m / LN_2));
            // Line 8.
            s16 = to_bf16(s32);
            // Line 9: inverted.
            c = s32 / s16;
            let epsilon = 1.5 * (c / c_prev - 1.0);
            // Line 10.
            for p in &mut *p {
                *p = to_bf16(*p * s16);
            }
            // Line 11.
            let increment = (n - n_prev).max(-30.0) + epsilon + 1e-6;
            // Line 12.
            #[expect(clippy::cast_possible_truncation, reason = "as printed; saturates")]
            let increment = (increment * 8_388_608.0) as i32;
            // Line 13.
            if keys.start > row.keys.start {
                // Lines 14 and 15, AtomicAdd<INT32>.
                for o in &mut *o {
                    *o = as_printed_f32(*o, increment);
                }
            }
            // Lines 17 and 18, C2 and AtomicAdd<FP32>: O += P V.
            row.pv(&keys, p, o);
        }
        // Line 20.
        for o in o {
            *o /= l * s16;
        }
        log_sum_exp(m.into(), l)
    });
    Ok(())
}

// -------------------------------------------------------------------------------------------------
// Algorithm 2, corrected
// -------------------------------------------------------------------------------------------------

/// Algorithm 2, `alg:ascend_mla`, with the compensation of the appendix (equation
/// `eqn:modifiediteration`): `Rescale::Compensated`.
///
/// The corrections, by line:
///
/// * Lines 5 to 7 are in base 2: `log2(e) * softmax_scale` is one constant, scores and maxima are in
///   units of log2, and `n + m` is exact. While m is -inf, lines 6 to 10 take 0 for it.
/// * Line 9 has c = S16/S32, the appendix's r/r' ([`compensation`]).
/// * Lines 11 and 12 have no 1e-6 and round to nearest. n is bounded by -255, which flushes every
///   number, and not by -30 ([`Increment::compensated`]).
/// * Lines 13 to 16: the addition is total ([`crate::bits`]), and is skipped where n and c didn't
///   change.
///
/// The row sum is that of the unrounded P. Outputs and shared behaviour are as in the
/// [module](super)'s documentation.
///
/// # Errors
///
/// Those of [`base`](super::base).
pub fn amla_compensated(
    problem: &Problem,
    blocks: impl Into<Blocks>,
    o: &mut [f32],
    lse: &mut [f32],
) -> Result<(), Error> {
    check(problem, o.len(), lse.len())?;
    let blocks = blocks.into();
    blocks.check(problem)?;
    let scale = problem.log2_scale();
    each_row(problem, blocks.split, o, lse, |row, o| {
        let mut buffer = [0.0; MAX_BLOCK];
        // Line 1. The first block replaces n and c.
        o.fill(0.0);
        let mut m = f32::NEG_INFINITY;
        let mut l = 0.0;
        let mut n = 0.0;
        let mut c = 1.0;
        let mut s16 = 1.0;
        // Lines 2 and 3.
        for keys in row.blocks(blocks.keys) {
            let (m_prev, n_prev, c_prev) = (m, n, c);
            // Line 4, C1: S = Q K^T.
            let s = &mut buffer[..keys.len()];
            row.qk(&keys, s);
            // Line 5, V1: S and m in units of log2.
            for s in &mut *s {
                *s *= scale;
            }
            row.hide(&keys, s);
            m = m_prev.max(rowmax(s));
            let shift = finite_or_zero(m);
            let m_up = exp2f(m_prev - shift);
            // Line 6.
            n = rintf(-shift);
            let p = s;
            for p in &mut *p {
                *p = exp2f(*p - shift);
            }
            l = l * m_up + rowsum(p);
            // Line 7.
            let s32 = exp2f(n + shift);
            // Line 8.
            s16 = to_bf16(s32);
            // Line 9, with the appendix's c.
            c = s16 / s32;
            let epsilon = compensation(c_prev, c);
            // Line 10.
            for p in &mut *p {
                *p = to_bf16(*p * s16);
            }
            // Lines 11 and 12.
            let increment = Increment::compensated(difference(n, n_prev), epsilon);
            // Line 13.
            if keys.start > row.keys.start && !increment.is_none() {
                // Lines 14 and 15, AtomicAdd<INT32>.
                add_increment_f32_slice(o, increment);
            }
            // Lines 17 and 18, C2 and AtomicAdd<FP32>: O += P V.
            row.pv(&keys, p, o);
        }
        // Line 20.
        for o in o {
            *o /= l * s16;
        }
        log_sum_exp(f64::from(m) * LN_2, l)
    });
    Ok(())
}

// -------------------------------------------------------------------------------------------------
// Exact rescale
// -------------------------------------------------------------------------------------------------

/// Algorithm 2 with an integer as the reference instead of the maximum: rescaling is exact and needs no
/// compensation. `Rescale::Exact`.
///
/// The comments give the lines of Algorithm 2 that each step replaces. Scores are in units of log2. The
/// reference exponent is `e_i = e_{i-1}` as long as `ceil(rowmax(S_i))` isn't larger, and 3 above that
/// otherwise. Then:
///
/// * `rowmax(S_i) - e_i = f_i + r_i`, where f_i is an integer and r_i in 0 to 1. P =
///   `2^(S - rowmax(S_i) + f_i)` is rounded to BF16. The largest P is a power of two and exact, as
///   Algorithm 1's P = 1 is.
/// * O gets P V times the weight `2^r_i`, one FP32 number for a row and block (lines 7 to 10, 17 and
///   18).
/// * In [`Precision::Bf16x2`], P is `2^(S - e_i)`, in 0 to 1, and is stored as the pair hi = bf16(P),
///   lo = bf16(P - hi).
/// * O is multiplied by `2^(e_{i-1} - e_i)` (lines 11 to 16), exactly, and only when e moved.
/// * O is normalised by the sum of the *rounded* P (hi + lo): rounding errors common to the weights
///   cancel. lse is taken from the sum of the unrounded P.
/// * In [`Precision::Bf16x2`], an infinite element of V may give NaN in its column instead of the
///   infinity, as lo may be zero or negative.
///
/// Outputs and shared behaviour are as in the [module](super)'s documentation.
///
/// # Errors
///
/// Those of [`base`](super::base).
pub fn amla_exact(
    problem: &Problem,
    blocks: impl Into<Blocks>,
    precision: Precision,
    o: &mut [f32],
    lse: &mut [f32],
) -> Result<(), Error> {
    exact(problem, blocks.into(), precision, Largest::Exact, o, lse)
}

/// [`amla_exact`] in [`Precision::Bf16`] for kernels whose products are accumulated in O itself, as
/// AMX's tiles do. Products can't be weighed there, so P is `2^(S - e_i)`, and the largest P of a row is
/// no power of two. In each block it is stored as a pair hi = bf16(P), lo = bf16(P - hi).
///
/// # Errors
///
/// Those of [`base`](super::base).
pub fn amla_exact_split_max(
    problem: &Problem,
    blocks: impl Into<Blocks>,
    o: &mut [f32],
    lse: &mut [f32],
) -> Result<(), Error> {
    let precision = Precision::Bf16;
    exact(problem, blocks.into(), precision, Largest::Split, o, lse)
}

/// How the largest P of a block has more bits than BF16.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Largest {
    /// It is a power of two.
    Exact,
    /// It is a pair.
    Split,
}

fn exact(
    problem: &Problem,
    blocks: Blocks,
    precision: Precision,
    largest: Largest,
    o: &mut [f32],
    lse: &mut [f32],
) -> Result<(), Error> {
    check(problem, o.len(), lse.len())?;
    blocks.check(problem)?;
    let scale = problem.log2_scale().abs();
    each_row(problem, blocks.split, o, lse, |row, o| {
        let mut buffer = [0.0; MAX_BLOCK];
        let mut lo_buffer = [0.0; MAX_BLOCK];
        // Line 1.
        o.fill(0.0);
        let mut e = f32::NEG_INFINITY;
        let mut l = 0.0; // the sum of P
        let mut l_rounded = 0.0; // the sum of the rounded P
        // Lines 2 and 3.
        for keys in row.blocks(blocks.keys) {
            let e_prev = e;
            // Line 4, C1: S = Q K^T.
            let s = &mut buffer[..keys.len()];
            row.qk(&keys, s);
            // Line 5, V1: the maximum, and the reference exponent, an integer. The sign of the scale
            // goes into S.
            if problem.softmax_scale < 0.0 {
                s.iter_mut().for_each(|s| *s = -*s);
            }
            row.hide(&keys, s);
            let max = rowmax(s);
            let block_e = ceilf(times(max, scale));
            e = if block_e > e_prev {
                block_e + HEADROOM
            } else {
                e_prev
            };
            let n = difference(e_prev, e);
            // Line 6. The difference before the product: it is exact for the scores that matter.
            let shift = finite_or_zero(max);
            let mut offset = offset(max, scale, e);
            let mut weight = 1.0;
            if precision == Precision::Bf16 && largest == Largest::Exact {
                let integer = floorf(offset);
                if integer != f32::NEG_INFINITY {
                    weight = exp2f(offset - integer);
                }
                offset = integer;
            }
            let p = s;
            for p in &mut *p {
                *p = exp2f((*p - shift) * scale + offset);
            }
            l = mul_pow2_f32(l, n) + rowsum(p) * weight;
            // Lines 11 to 16.
            if n != 0 {
                add_increment_f32_slice(o, Increment::pow2(n));
            }
            // Line 10, then lines 17 and 18, C2: O += P V.
            l_rounded = mul_pow2_f32(l_rounded, n);
            match precision {
                Precision::Bf16 if largest == Largest::Exact => {
                    for p in &mut *p {
                        *p = to_bf16(*p);
                    }
                    l_rounded += rowsum(p) * weight;
                    row.weighed_pv(&keys, p, weight, o);
                }
                Precision::Bf16 => {
                    let largest = last_largest(p);
                    let residual = largest.map_or(0.0, |k| to_bf16(p[k] - to_bf16(p[k])));
                    for p in &mut *p {
                        *p = to_bf16(*p);
                    }
                    if let Some(k) = largest {
                        p[k] += residual;
                    }
                    l_rounded += rowsum(p);
                    row.pv(&keys, p, o);
                }
                Precision::Bf16x2 => {
                    let lo = &mut lo_buffer[..keys.len()];
                    for (lo, p) in lo.iter_mut().zip(&mut *p) {
                        let hi = to_bf16(*p);
                        *lo = to_bf16(*p - hi);
                        *p = hi;
                    }
                    l_rounded += rowsum(p) + rowsum(lo);
                    row.pv(&keys, p, o);
                    row.pv(&keys, lo, o);
                }
            }
        }
        // Line 20.
        for o in o {
            *o /= l_rounded;
        }
        log_sum_exp(f64::from(e) * LN_2, l)
    });
    Ok(())
}
