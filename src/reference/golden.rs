//! Golden: the textbook's attention, in FP64.

use libm::{exp, log};

use super::arithmetic::{axpy, dot};
use super::row::{MAX_WIDTH, Row, check, check_row, check_rows, each_row, one_row, rows, with_row};
use crate::error::{Argument, Error};
use crate::problem::Problem;

/// The textbook: equation `eq:atten` in FP64, with a softmax of two passes, the maximum first. The
/// paper's Golden is FP32.
///
/// Outputs and shared behaviour are as in the [module](super)'s documentation. Scores beyond a row's
/// first 512 are computed in both passes, as there is no memory for `s_k` of them.
///
/// # Errors
///
/// What is wrong with the problem, or [`Error::WrongLength`] for an output. Nothing has been written then.
pub fn golden(problem: &Problem, o: &mut [f64], lse: &mut [f64]) -> Result<(), Error> {
    check(problem, o.len(), lse.len())?;
    each_row(problem, false, o, lse, textbook);
    Ok(())
}

/// [`golden`] of one row, `[request, position, head]`. Writes its O to `o`, `[d_v]`, and returns its
/// lse. For callers that distribute rows over threads, or need only some of them.
///
/// # Errors
///
/// Those of [`golden`], or [`Error::OutOfRange`] for a row that doesn't exist.
pub fn golden_row(problem: &Problem, at: [usize; 3], o: &mut [f64]) -> Result<f64, Error> {
    let at = check_row(problem, at, o.len())?;
    let mut lse = 0.0;
    one_row(problem, false, at, o, &mut lse, textbook);
    Ok(lse)
}

/// [`Output::max_logits`](crate::Output::max_logits) in FP64: each row's largest scaled score, dense as
/// lse; minus infinity for a row that sees no key.
///
/// # Errors
///
/// What is wrong with the problem, or [`Error::WrongLength`] for the output. Nothing has been written then.
pub fn golden_max_logits(problem: &Problem, max_logits: &mut [f64]) -> Result<(), Error> {
    check_rows(problem, Argument::MaxLogits, max_logits.len())?;
    let scale = f64::from(problem.softmax_scale);
    for (at, [_, index]) in rows(problem) {
        max_logits[index] = with_row(problem, at, |row| {
            let mut key = [0.0; MAX_WIDTH];
            let seen = row.keys.clone().filter(|&k| row.sees(k));
            let scores = seen.map(|k| scale * dot::<f64>(row.q, row.key(k, &mut key)));
            scores.fold(f64::NEG_INFINITY, f64::max)
        });
    }
    Ok(())
}

fn textbook(row: &Row, o: &mut [f64]) -> f64 {
    /// Scores that the second pass needn't compute again.
    const STORED: usize = 512;
    let scale = f64::from(row.problem.softmax_scale);
    let visible = || row.keys.clone().filter(|&k| row.sees(k)).enumerate();
    let mut key = [0.0; MAX_WIDTH];
    let mut score = |k| scale * dot::<f64>(row.q, row.key(k, &mut key));
    let mut scores = [0.0; STORED];
    let mut m = f64::NEG_INFINITY;
    let mut nan = false;
    for (i, k) in visible() {
        let s = score(k);
        if let Some(stored) = scores.get_mut(i) {
            *stored = s;
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
    let mut value = [0.0; MAX_WIDTH];
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
