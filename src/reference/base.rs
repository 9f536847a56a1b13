//! Base: Algorithm 1, FlashAttention with mixed-precision products.

use libm::expf;

use super::arithmetic::{finite_or_zero, log_sum_exp, rowmax, rowsum, to_bf16};
use super::row::{Row, check, check_row, each_row, one_row};
use super::{Blocks, MAX_BLOCK};
use crate::error::Error;
use crate::problem::Problem;

/// FlashAttention with mixed-precision products: Algorithm 1, `alg:flash_attention`, the paper's Base.
///
/// P is rounded to BF16 for the product P V, as a matrix unit takes it. The row sum is that of the
/// unrounded P. Outputs and shared behaviour are as in the [module](super)'s documentation.
///
/// # Errors
///
/// What is wrong with the problem; [`Error::OutOfRange`] for [`Blocks`] out of their range;
/// [`Error::WrongLength`] for an output. Nothing has been written then.
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

/// [`base`] of one row, as [`golden_row`](super::golden_row) is of [`golden`](super::golden).
///
/// # Errors
///
/// Those of [`base`], or [`Error::OutOfRange`] for a row that doesn't exist.
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
