//! Scalar code to read beside the paper: Golden, Base (Algorithm 1), Algorithm 2 as printed, corrected, and with the exact
//! rescale that the kernel has by default.
//!
//! | function | source | P in the product P V | O follows the maximum by |
//! |---|---|---|---|
//! | [`golden`] | equation `eq:atten` | FP64 | two passes: it needn't |
//! | [`base`] | Algorithm 1, `alg:flash_attention` | BF16 | a multiplication |
//! | [`amla_as_printed`] | Algorithm 2, `alg:ascend_mla` | BF16, times S16 | an integer addition, not total |
//! | [`amla_compensated`] | Algorithm 2 with the appendix | BF16, times S16 | a total integer addition |
//! | [`amla_exact`] | ours | BF16, or a BF16 pair | `2^n` exactly, where it moved |
//! | [`amla_exact_split_max`] | ours, accumulating in place | BF16, the largest a BF16 pair | the same |
//!
//! They take the kernel's [`Problem`], of any widths, go through it row by row (a row is one query head of one query
//! position of one request), and share no arithmetic with the kernel but [`crate::bits`].
//!
//! # Outputs
//!
//! `o` is dense `[b, s_q, h_q, d_v]`; `lse`, the natural logarithm of the sum of the exponentials of the scaled scores, is
//! dense `[b, h_q, s_q]`. With ragged queries (`q_indptr`), `b` is 1 and `s_q` the tokens. Their lengths must be exactly
//! that.
//!
//! # What they share
//!
//! * A row sees the keys that [`Problem`] says: below `len`, and left by the causal mask, the window, the tail mask or the
//!   choice of sparse attention. Other keys and their values take no part, so whatever lies there can't leak.
//! * Rows that aren't stored as BF16 are rounded to it first, as in the kernel.
//! * A sink adds to the sum that O is divided by, not to lse.
//! * A row that sees no key gets `O = 0` and `lse = +inf`.
//! * Other than that, non-finite values go through as IEEE 754 arithmetic has it: a score of NaN or +inf makes its row NaN,
//!   one of -inf weighs nothing (but 0 times an infinite value is NaN), a NaN in V makes that column NaN. A row whose visible
//!   scores are all -inf is 0/0: O and lse are NaN. While the running maximum is -inf, 0 is subtracted from the scores in its
//!   place ([`golden`] needs no such rule, and [`amla_as_printed`] lacks it).
//! * Inputs are BF16, products are accumulated in FP32 ([`golden`]: FP64). The order of summation is not part of any of the
//!   algorithms, nor specified for the Cube; here the scores are summed as the kernel does, so that both have the same S
//!   to the bit, and the product P V adds key by key to O itself where the paper has a matrix T of its own (Algorithm 1,
//!   lines 6 and 7; Algorithm 2, lines 17 and 18).
//! * How keys are cut is a parameter, [`Blocks`]: blocks of 512 in the paper, blocks of 192 and splits in this crate's
//!   kernel.
//! * The paper divides the scores by the root of D_k; here [`Problem::softmax_scale`] multiplies them.

use core::f64::consts::LN_2;
use core::ops::{AddAssign, Mul, Range};

use half::bf16;
use libm::{ceilf, exp, exp2f, expf, floorf, log, rintf};

use crate::bits::{
    HEADROOM, Increment, add_increment_f32_slice, as_printed_f32, bf16_round, bf16_widen,
    compensation, difference, mul_pow2_f32,
};
use crate::error::{Argument, Error, right_length};
use crate::format;
use crate::problem::{Precision, Problem, in_range};
use crate::schedule::splits;
use crate::tile::{BLOCK_KEYS, MAX_D_QK, MAX_D_V, STRIP, ascend::BASE_K};

/// How a row's keys are cut: into blocks, and before that into splits, if the row is long.
///
/// A split is attended to on its own, and results are merged by their lse, in FP64. The paper has blocks only; the kernel
/// splits long requests so that threads can share them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Keys of a block: 1 to [`MAX_BLOCK`].
    pub keys: usize,
    /// Whether requests are split as the kernel splits them ([`crate::schedule::splits`]); d_v is at most 512 then.
    pub split: bool,
}

impl Blocks {
    /// The paper's.
    pub const PAPER: Self = Self {
        keys: 512,
        split: false,
    };
    /// The kernel's.
    pub const KERNEL: Self = Self {
        keys: BLOCK_KEYS,
        split: true,
    };

    /// # Errors
    /// [`Error::OutOfRange`].
    fn check(self, problem: &Problem) -> Result<(), Error> {
        in_range(Argument::BlockN, self.keys, 1, MAX_BLOCK)?;
        let widest = if self.split { MAX_D_V } else { usize::MAX };
        in_range(Argument::DV, problem.shape.d_v, 1, widest)
    }
}

/// Blocks of so many keys, and no splits.
impl From<usize> for Blocks {
    fn from(keys: usize) -> Self {
        Self { keys, split: false }
    }
}

/// Most keys in a block: the paper's own block, and the size of the references' score buffers on the stack.
pub const MAX_BLOCK: usize = 512;

// ---------------------------------------------------------------------------------------------------------------------
// Golden
// ---------------------------------------------------------------------------------------------------------------------

/// The textbook: equation `eq:atten` in FP64, with a softmax of two passes, the maximum first (the paper's Golden, which is
/// FP32 there).
///
/// Outputs and shared behaviour are as in the [module](self)'s documentation. Scores beyond a row's first 512 are computed in
/// both passes, as there is no place to keep `s_k` of them.
///
/// # Errors
///
/// What is wrong with the problem, or [`Error::WrongLength`] for an output. Nothing has been written then.
pub fn golden(problem: &Problem, o: &mut [f64], lse: &mut [f64]) -> Result<(), Error> {
    check(problem, o.len(), lse.len())?;
    each_row(problem, false, o, lse, textbook);
    Ok(())
}

/// [`golden`] of one row, `[request, position, head]`: its O goes to `o`, `[d_v]`, and its lse is returned. For those who
/// share the rows among threads, or need only some of them.
///
/// # Errors
///
/// Those of [`golden`], or [`Error::OutOfRange`] for a row that there isn't.
pub fn golden_row(problem: &Problem, at: [usize; 3], o: &mut [f64]) -> Result<f64, Error> {
    let at = check_row(problem, at, o.len())?;
    let mut lse = 0.0;
    one_row(problem, false, at, o, &mut lse, textbook);
    Ok(lse)
}

fn textbook(row: &Row, o: &mut [f64]) -> f64 {
    /// Scores that the second pass needn't compute again.
    const KEPT: usize = 512;
    let scale = f64::from(row.problem.softmax_scale);
    let visible = || row.keys.clone().filter(|&k| row.sees(k)).enumerate();
    let mut key = [bf16::ZERO; MAX_D_QK];
    let mut score = |k| scale * dot::<f64>(row.q, row.key(k, &mut key));
    let mut scores = [0.0; KEPT];
    let mut m = f64::NEG_INFINITY;
    let mut nan = false;
    for (i, k) in visible() {
        let s = score(k);
        if let Some(kept) = scores.get_mut(i) {
            *kept = s;
        }
        m = m.max(s);
        nan |= s.is_nan();
    }
    if m == f64::NEG_INFINITY && !nan {
        o.fill(f64::NAN);
        return m;
    }
    o.fill(0.0);
    let mut l = 0.0;
    let mut value = [bf16::ZERO; MAX_D_QK];
    for (i, k) in visible() {
        let s = scores.get(i).copied().unwrap_or_else(|| score(k));
        let p = exp(s - m);
        l += p;
        axpy(o, p, row.value(k, &mut value));
    }
    for o in o {
        *o /= l;
    }
    m + log(l)
}

// ---------------------------------------------------------------------------------------------------------------------
// Base
// ---------------------------------------------------------------------------------------------------------------------

/// FlashAttention with mixed-precision products: Algorithm 1, `alg:flash_attention`, the paper's Base.
///
/// P is rounded to BF16 for the product P V, as a matrix unit takes it; the row sum is that of the unrounded P. Outputs and shared behaviour are as in the [module](self)'s documentation.
///
/// # Errors
///
/// What is wrong with the problem; [`Error::OutOfRange`] if `blocks` isn't as [`Blocks`] says; [`Error::WrongLength`] for an
/// output. Nothing has been written then.
pub fn base(
    problem: &Problem,
    blocks: impl Into<Blocks>,
    o: &mut [f32],
    lse: &mut [f32],
) -> Result<(), Error> {
    check(problem, o.len(), lse.len())?;
    let blocks = blocks.into();
    blocks.check(problem)?;
    each_row(problem, blocks.split, o, lse, |row, o| {
        flash_attention(row, blocks.keys, o)
    });
    Ok(())
}

/// [`base`] of one row, as [`golden_row`] is of [`golden`].
///
/// # Errors
///
/// Those of [`base`], or [`Error::OutOfRange`] for a row that there isn't.
pub fn base_row(
    problem: &Problem,
    blocks: impl Into<Blocks>,
    at: [usize; 3],
    o: &mut [f32],
) -> Result<f32, Error> {
    let at = check_row(problem, at, o.len())?;
    let blocks = blocks.into();
    blocks.check(problem)?;
    let mut lse = 0.0;
    one_row(problem, blocks.split, at, o, &mut lse, |row, o| {
        flash_attention(row, blocks.keys, o)
    });
    Ok(lse)
}

fn flash_attention(row: &Row, block_n: usize, o: &mut [f32]) -> f64 {
    let mut buffer = [0.0; MAX_BLOCK];
    // Line 1.
    o.fill(0.0);
    let mut m = f32::NEG_INFINITY;
    let mut l = 0.0;
    // Lines 2 and 3.
    for keys in row.blocks(block_n) {
        // Line 4, C1: S = Q K^T.
        let s = &mut buffer[..keys.len()];
        row.qk(&keys, s);
        // Line 5, V1: the scale and the running maximum,
        for s in &mut *s {
            *s *= row.problem.softmax_scale;
        }
        row.hide(&keys, s);
        let m_prev = m;
        m = m.max(rowmax(s));
        let shift = finite_or_zero(m);
        // P = exp(S - m),
        let p = s;
        for p in &mut *p {
            *p = expf(*p - shift);
        }
        // and l.
        let m_up = expf(m_prev - shift);
        l = l * m_up + rowsum(p);
        // Line 7, V2: the old O by exp(m_{i-1} - m_i).
        for o in &mut *o {
            *o *= m_up;
        }
        // Lines 6 and 7, C2: O += P V.
        for p in &mut *p {
            *p = to_bf16(*p);
        }
        row.pv(&keys, p, o);
    }
    // Line 9.
    for o in o {
        *o /= l;
    }
    log_sum_exp(m.into(), l)
}

// ---------------------------------------------------------------------------------------------------------------------
// Algorithm 2, as printed
// ---------------------------------------------------------------------------------------------------------------------

/// Algorithm 2, `alg:ascend_mla`, **to the letter, with its defects**: for comparison only.
///
/// Everything is in FP32 and base e, as printed; `round` is to nearest, `Cast_to_int32` drops the fraction. What goes wrong,
/// and [`amla_compensated`] has right:
///
/// 1. Line 9 is inverted. The appendix (equation `eqn:modifiediteration`) has c = r/r' = S16/S32, so the printed
///    compensation adds the error of the rounded scale a second time instead of removing it. Relative Frobenius error
///    after BF16 output, N(0,1), 8192 keys in blocks of 192, 640 rows: 3.06e-3; Base 1.78e-3, the appendix's way 1.81e-3.
/// 2. The integer addition of lines 14 and 15 is not total ([`as_printed_f32`]): an exact zero, such as a padded column of V
///    leaves in O, becomes NaN, an infinity or a huge number when n falls, and infinities become finite.
/// 3. The 1e-6 of line 11 adds eight units in the last place with every block, needed or not.
/// 4. The -30 of line 11 leaves the old O too large where the maximum rises further than 30 ln 2 at once.
/// 5. With every score of the first block -inf, m, n and P are NaN, and the row stays NaN whatever follows.
/// 6. `n + m / ln 2` of line 7 cancels for a large m: S32 is off by the rounding of `m / ln 2`.
///
/// Outputs are as in the [module](self)'s documentation; lse is `m + ln l` with Algorithm 2's
/// m and l.
///
/// # Errors
///
/// Those of [`base`].
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

// ---------------------------------------------------------------------------------------------------------------------
// Algorithm 2, corrected
// ---------------------------------------------------------------------------------------------------------------------

/// Algorithm 2, `alg:ascend_mla`, with the compensation of the appendix (equation `eqn:modifiediteration`):
/// `Rescale::Compensated`.
///
/// The corrections, by line:
///
/// * Lines 5 to 7 are in base 2: `log2(e) * softmax_scale` is one constant, scores and maxima are in units of log2, and
///   `n + m` is exact. While m is -inf, lines 6 to 10 take 0 in its place.
/// * Line 9 has c = S16/S32, the appendix's r/r' ([`compensation`]).
/// * Lines 11 and 12: no 1e-6; rounded to nearest; n is bounded by -255, which flushes every number, and not by -30
///   ([`Increment::compensated`]).
/// * Lines 13 to 16: the addition is total ([`crate::bits`]), and is skipped where n and c are what they were.
///
/// The row sum is that of the unrounded P. Outputs and shared behaviour are as in the [module](self)'s documentation.
///
/// # Errors
///
/// Those of [`base`].
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
        // Line 1. The first block replaces n and c; they only say that O holds nothing.
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

// ---------------------------------------------------------------------------------------------------------------------
// Exact rescale
// ---------------------------------------------------------------------------------------------------------------------

/// Algorithm 2 with an integer in the maximum's place, so that rescaling is exact and needs no compensation:
/// `Rescale::Exact`.
///
/// The comments give the lines of Algorithm 2 that each step replaces. With scores in units of log2, the reference exponent
/// is `e_i = e_{i-1}` as long as `ceil(rowmax(S_i))` isn't larger, and 3 above that otherwise; and:
///
/// * With `rowmax(S_i) - e_i = f_i + r_i`, where f_i is a whole number and r_i in 0 to 1, P = `2^(S - rowmax(S_i) + f_i)` goes to BF16.
///   So the largest P is a power of two and exact, as Algorithm 1's P = 1 is. O gets P V times the weight `2^r_i`, one
///   FP32 number for a row and block that comes with the addition (lines 7 to 10, 17 and 18).
/// * In [`Precision::Bf16x2`], P is `2^(S - e_i)`, in 0 to 1, and goes to the pair hi = bf16(P), lo = bf16(P - hi).
/// * O is multiplied by `2^(e_{i-1} - e_i)` (lines 11 to 16), exactly, and only when e moved.
/// * O is normalised by the sum of the *rounded* P (hi + lo), so that rounding errors common to the weights cancel; lse is
///   taken from the sum of the unrounded P.
/// * In [`Precision::Bf16x2`], an infinite element of V may give NaN in its column instead of the infinity, as lo may be zero
///   or negative.
///
/// Outputs and shared behaviour are as in the [module](self)'s documentation.
///
/// # Errors
///
/// Those of [`base`].
pub fn amla_exact(
    problem: &Problem,
    blocks: impl Into<Blocks>,
    precision: Precision,
    o: &mut [f32],
    lse: &mut [f32],
) -> Result<(), Error> {
    exact(problem, blocks.into(), precision, Largest::Exact, o, lse)
}

/// [`amla_exact`] in [`Precision::Bf16`] for kernels whose products are accumulated in O itself, as AMX's tiles do: nothing can be
/// weighed there, so P is `2^(S - e_i)`. The largest P of a row is rounded like any other then; each block's is
/// taken as a pair hi = bf16(P), lo = bf16(P - hi).
///
/// # Errors
///
/// Those of [`base`].
pub fn amla_exact_split_max(
    problem: &Problem,
    blocks: impl Into<Blocks>,
    o: &mut [f32],
    lse: &mut [f32],
) -> Result<(), Error> {
    let precision = Precision::Bf16;
    exact(problem, blocks.into(), precision, Largest::Split, o, lse)
}

/// How the largest P of a block is more than BF16.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Largest {
    /// P is relative to it.
    Exact,
    /// It has two parts.
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
            // Line 5, V1: the maximum, and the reference exponent, an integer. A negative scale's sign goes into S.
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
            // Line 6. The difference comes before the product: it is exact for the scores that matter.
            let shift = finite_or_zero(max);
            let mut offset = offset(max, scale, e);
            let mut weight = 1.0;
            if precision == Precision::Bf16 && largest == Largest::Exact {
                let whole = floorf(offset);
                if whole != f32::NEG_INFINITY {
                    weight = exp2f(offset - whole);
                }
                offset = whole;
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

// ---------------------------------------------------------------------------------------------------------------------
// Rows
// ---------------------------------------------------------------------------------------------------------------------

/// One query head of one query position of one request.
struct Row<'a> {
    problem: &'a Problem<'a>,
    /// The request.
    b: usize,
    /// The query position.
    j: usize,
    /// The KV head.
    head: usize,
    /// The query, `[d_qk]`.
    q: &'a [bf16],
    /// The keys to attend to; at least 1. A mask may hide some of them.
    keys: Range<usize>,
}

impl<'a> Row<'a> {
    /// Key `k`; put together in `row` if it lies in parts.
    fn key<'b>(&self, k: usize, row: &'b mut [bf16; MAX_D_QK]) -> &'b [bf16]
    where
        'a: 'b,
    {
        let mut keys = self.problem.keys(self.b, self.head, k..k + 1);
        let parts = keys.next().unwrap_or([format::Row::EMPTY; 2]);
        as_bf16(parts, self.problem.k_widths(), row)
    }

    /// Value `k`; in `row` if it isn't stored as BF16.
    fn value<'b>(&self, k: usize, row: &'b mut [bf16; MAX_D_QK]) -> &'b [bf16]
    where
        'a: 'b,
    {
        let value = self.problem.value(self.b, self.head, k);
        as_bf16(
            [value, format::Row::EMPTY],
            [self.problem.shape.d_v, 0],
            row,
        )
    }

    /// Whether the row sees key `k`.
    fn sees(&self, k: usize) -> bool {
        self.problem.sees(self.b, self.j, k)
    }

    /// Takes the scores of keys that the row doesn't see to -inf.
    fn hide(&self, keys: &Range<usize>, s: &mut [f32]) {
        for (s, k) in s.iter_mut().zip(keys.clone()) {
            if !self.sees(k) {
                *s = f32::NEG_INFINITY;
            }
        }
    }

    /// The blocks of keys; the last may be short.
    fn blocks(&self, block_n: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let end = self.keys.end;
        self.keys
            .clone()
            .step_by(block_n)
            .map(move |start| start..end.min(start.saturating_add(block_n)))
    }

    /// C1: `s = Q K^T`, unscaled, in FP32: chunks of [`BASE_K`] features, each summed from zero in the order of the dot
    /// instructions (of a pair, the odd feature first), and the chunks' sums in order.
    fn qk(&self, keys: &Range<usize>, s: &mut [f32]) {
        /// Keys that go together, so that their sums needn't wait for each other.
        const KEYS: usize = 16;
        let mut q = [0.0; BASE_K];
        let mut k = [[0.0; KEYS]; BASE_K];
        let mut row = [bf16::ZERO; MAX_D_QK];
        for (s, first) in s.chunks_mut(KEYS).zip(keys.clone().step_by(KEYS)) {
            let mut sums = [0.0; KEYS];
            for start in (0..self.q.len()).step_by(BASE_K) {
                let features = start..self.q.len().min(start + BASE_K);
                for (q, x) in q.iter_mut().zip(&self.q[features.clone()]) {
                    *q = bf16_widen(x.to_bits());
                }
                for i in 0..s.len() {
                    let key = self.key(first + i, &mut row);
                    for (k, x) in k.iter_mut().zip(&key[features.clone()]) {
                        k[i] = bf16_widen(x.to_bits());
                    }
                }
                let mut chunk = [0.0; KEYS];
                let (q, k) = (&q[..features.len()], &k[..features.len()]);
                for (q, k) in q.chunks(2).zip(k.chunks(2)) {
                    for (q, k) in q.iter().zip(k).rev() {
                        for (sum, k) in chunk.iter_mut().zip(k) {
                            *sum += q * k;
                        }
                    }
                }
                for (sum, chunk) in sums.iter_mut().zip(chunk) {
                    *sum += chunk;
                }
            }
            s.copy_from_slice(&sums[..s.len()]);
        }
    }

    /// C2: `o += P V` in FP32.
    fn pv(&self, keys: &Range<usize>, p: &[f32], o: &mut [f32]) {
        self.columns_pv(keys, p, 0, o);
    }

    /// `o += weight * (P V)`, the product first.
    fn weighed_pv(&self, keys: &Range<usize>, p: &[f32], weight: f32, o: &mut [f32]) {
        for (strip, o) in o.chunks_mut(STRIP).enumerate() {
            let mut product = [0.0; STRIP];
            self.columns_pv(keys, p, strip * STRIP, &mut product[..o.len()]);
            for (o, product) in o.iter_mut().zip(product) {
                *o += weight * product;
            }
        }
    }

    /// [`pv`](Self::pv) of the columns from `first` on.
    fn columns_pv(&self, keys: &Range<usize>, p: &[f32], first: usize, o: &mut [f32]) {
        let mut row = [bf16::ZERO; MAX_D_QK];
        for (&p, k) in p.iter().zip(keys.clone()) {
            if self.sees(k) {
                axpy(o, p, &self.value(k, &mut row)[first..]);
            }
        }
    }
}

/// A row as BF16: as it lies, or put together in `row`.
fn as_bf16<'b>(
    [first, second]: [format::Row<'b>; 2],
    [width, rope]: [usize; 2],
    row: &'b mut [bf16; MAX_D_QK],
) -> &'b [bf16] {
    let lies = first.as_bf16();
    if rope == 0 && !lies.is_empty() {
        return lies;
    }
    let (head, tail) = row.split_at_mut(width);
    format::convert(&first, head);
    format::convert(&second, &mut tail[..rope]);
    &row[..width + rope]
}

/// The problem, and the lengths of dense outputs.
fn check(problem: &Problem, o: usize, lse: usize) -> Result<(), Error> {
    check_problem(problem)?;
    let s = &problem.shape;
    let [b, s_q] = problem.q_dims();
    let rows = b.saturating_mul(s_q).saturating_mul(s.h_q);
    right_length(Argument::O, o, rows.saturating_mul(s.d_v))?;
    right_length(Argument::Lse, lse, rows)
}

/// The problem, and that it has the row: unit, position within it, head.
fn check_row(problem: &Problem, [b, j, h]: [usize; 3], o: usize) -> Result<[usize; 3], Error> {
    check_problem(problem)?;
    let s = &problem.shape;
    let below = |argument, value, limit: usize| {
        // Without any, the range is the empty 1..=0.
        in_range(
            argument,
            value,
            usize::from(limit == 0),
            limit.saturating_sub(1),
        )
    };
    below(Argument::B, b, s.b)?;
    let positions = match problem.sparse {
        Some(_) => s.s_q,
        None => problem.queries(b),
    };
    below(Argument::SQ, j, positions)?;
    below(Argument::HQ, h, s.h_q)?;
    right_length(Argument::O, o, s.d_v)?;
    let (b, j) = problem.unit(b, j);
    Ok([b, j, h])
}

fn check_problem(problem: &Problem) -> Result<(), Error> {
    problem.check()?;
    // Rows that don't lie as BF16 are put together in a buffer.
    let lie =
        problem.queries_as_they_lie() && problem.keys_as_they_lie() && problem.values_as_they_lie();
    let widest = if lie { usize::MAX } else { MAX_D_QK };
    let s = &problem.shape;
    in_range(Argument::DQk, s.d_qk.max(s.d_v), 1, widest)
}

/// Calls `attend` with every row that sees a key and the row's place in `o`, for its lse: -inf if the row's scores are all
/// -inf. If the request is to be split, calls it with each split and merges.
fn each_row<T: Real>(
    problem: &Problem,
    split: bool,
    o: &mut [T],
    lse: &mut [T],
    mut attend: impl FnMut(&Row, &mut [T]) -> f64,
) {
    let s = &problem.shape;
    let [_, s_q] = problem.q_dims();
    for b in 0..problem.units() {
        for (j, h) in (0..problem.queries(b)).flat_map(|j| (0..s.h_q).map(move |h| (j, h))) {
            let [request, token] = problem.token(b, j);
            let o = &mut o[((request * s_q + token) * s.h_q + h) * s.d_v..][..s.d_v];
            let lse = &mut lse[(request * s.h_q + h) * s_q + token];
            one_row(problem, split, [b, j, h], o, lse, &mut attend);
        }
    }
}

/// [`each_row`] of one.
fn one_row<T: Real>(
    problem: &Problem,
    split: bool,
    [b, j, h]: [usize; 3],
    o: &mut [T],
    lse: &mut T,
    mut attend: impl FnMut(&Row, &mut [T]) -> f64,
) {
    let s = &problem.shape;
    if !problem.sees_any(b, j) {
        o.fill(0.0.into());
        *lse = f32::INFINITY.into();
        return;
    }
    let mut attend = |keys, o: &mut [T]| {
        let mut row = [bf16::ZERO; MAX_D_QK];
        let row = Row {
            problem,
            b,
            j,
            head: h / s.group(),
            q: as_bf16(problem.query(b, j, h), problem.q_widths(), &mut row),
            keys,
        };
        attend(&row, o)
    };
    let visible = problem.visible(b, j);
    let visible_keys = visible.clone();
    let total = if split {
        let span = problem.span(b);
        let mut splits = splits(span.len())
            .map(|keys| {
                let (start, end) = (span.start + keys.start, span.start + keys.end);
                start.max(visible.start)..end.min(visible.end)
            })
            .filter(|keys| !keys.is_empty());
        let mut total = attend(splits.next().unwrap_or(visible.clone()), o);
        let mut part = [T::from(0.0); MAX_D_V];
        for keys in splits {
            let part = &mut part[..s.d_v];
            let part_lse = attend(keys, part);
            total = merge(o, total, part, part_lse);
        }
        total
    } else {
        attend(visible, o)
    };
    if let Some(sink) = problem.sink {
        let sink = f64::from(sink[h]);
        if total != f64::NEG_INFINITY {
            let share = (1.0 + exp(sink - total)).recip();
            o.iter_mut()
                .for_each(|o| *o = T::round((*o).into() * share));
        } else if sink != f64::NEG_INFINITY {
            // The sink has all the weight: what is finite comes to nothing.
            o.fill(0.0.into());
            let weight = T::round(if sink.is_nan() { sink } else { 0.0 });
            let mut row = [bf16::ZERO; MAX_D_QK];
            for k in visible_keys.filter(|&k| problem.sees(b, j, k)) {
                let value = problem.value(b, h / s.group(), k);
                let value = as_bf16([value, format::Row::EMPTY], [s.d_v, 0], &mut row);
                axpy(o, weight, value);
            }
        }
    }
    *lse = T::round(if total == f64::NEG_INFINITY {
        f64::NAN
    } else {
        total
    });
}

/// Merges normalised results over different keys: O weighted by the exponentials of lse, which is returned. In FP64, so that
/// merging adds no error of its own.
fn merge<T: Real>(o: &mut [T], lse: f64, part: &[T], part_lse: f64) -> f64 {
    // A side whose scores are all -inf weighs nothing, whatever its O.
    if part_lse == f64::NEG_INFINITY {
        return lse;
    }
    if lse == f64::NEG_INFINITY {
        o.copy_from_slice(part);
        return part_lse;
    }
    let m = lse.max(part_lse);
    let (a, b) = (exp(lse - m), exp(part_lse - m));
    for (o, &part) in o.iter_mut().zip(part) {
        *o = T::round((a * (*o).into() + b * part.into()) / (a + b));
    }
    m + log(a + b)
}

// ---------------------------------------------------------------------------------------------------------------------
// Arithmetic
// ---------------------------------------------------------------------------------------------------------------------

/// FP32 or FP64.
trait Real: Copy + From<f32> + Into<f64> + AddAssign + Mul<Output = Self> {
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
fn dot<T: Real>(q: &[bf16], k: &[bf16]) -> T {
    let mut lanes = [T::from(0.0); LANES];
    let mut add = |q: &[bf16], k: &[bf16]| {
        for ((lane, q), k) in lanes.iter_mut().zip(q).zip(k) {
            *lane += T::from(bf16_widen(q.to_bits())) * T::from(bf16_widen(k.to_bits()));
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
fn axpy<T: Real>(o: &mut [T], p: T, v: &[bf16]) {
    for (o, v) in o.iter_mut().zip(v) {
        *o += p * T::from(bf16_widen(v.to_bits()));
    }
}

/// The sum of a block's P.
fn rowsum(p: &[f32]) -> f32 {
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

/// The largest score of a block, NaNs left aside; -inf if there is none.
fn rowmax(s: &[f32]) -> f32 {
    s.iter().copied().fold(f32::NEG_INFINITY, f32::max)
}

/// The last of the largest positive P of a block.
fn last_largest(p: &[f32]) -> Option<usize> {
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
fn times(max: f32, scale: f32) -> f32 {
    if max == f32::NEG_INFINITY {
        max
    } else {
        max * scale
    }
}

/// `max * scale - e`, rounded once, or -inf if there is no maximum. Beyond 2^22, where FP32 has no fraction left, the
/// product is rounded first, as it was when e was taken from it.
#[expect(clippy::cast_possible_truncation, reason = "rounds to FP32")]
fn offset(max: f32, scale: f32, e: f32) -> f32 {
    if times(max, scale) == f32::NEG_INFINITY {
        f32::NEG_INFINITY
    } else if e.abs() < 4_194_304.0 {
        (f64::from(max) * f64::from(scale) - f64::from(e)) as f32
    } else {
        max * scale - e
    }
}

/// What to subtract from the scores: the maximum, or 0 while there is none.
fn finite_or_zero(m: f32) -> f32 {
    if m == f32::NEG_INFINITY { 0.0 } else { m }
}

/// Rounded to BF16, then back to FP32.
fn to_bf16(x: f32) -> f32 {
    bf16_widen(bf16_round(x))
}

/// `m + ln(l)`; -inf if l is zero, as it is where every score is -inf.
fn log_sum_exp(m: f64, l: f32) -> f64 {
    if l == 0.0 {
        f64::NEG_INFINITY
    } else {
        m + log(l.into())
    }
}
