//! Merging of results over different keys of the same queries: a shared prefix and the keys behind it,
//! or caches sharded over devices or processes.

use crate::bits::one_nan;
use crate::error::{Argument, Error, right_length};
use crate::problem::{Elements, Lse, LseBase, Output};
use crate::shape::ProblemShape;

/// O and lse of some queries over some keys, as [`decode`](crate::decode) writes them without a sink.
/// Their strides are those of the output that they are merged into.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// As [`Output::o`].
    pub o: &'a [f32],
    /// As [`Output::lse`].
    pub lse: &'a [f32],
    /// As [`Output::max_logits`], where the total has them; otherwise ignored.
    pub max_logits: Option<&'a [f32]>,
}

/// Merges `parts` into the results that `total` holds: the results over all of their keys.
///
/// `shape` is that of a problem with these results. Its `s_k` is ignored; for ragged queries `b` is 1
/// and `s_q` the tokens.
///
/// A part's weight is the exponential of its lse. Rows that saw no key have the lse of
/// `total.lse_format` and weigh nothing. Sums are in FP64 and in the given order, so that the same parts
/// in the same order give the same bits. NaN stays NaN, and so does a row whose scores were all -inf.
/// Where `empty` is minus infinity, infinity is a number. A row's largest score is that of all parts.
///
/// # Errors
/// What is wrong with `total`, [`Error::TooShort`] if it has no lse, [`Error::Format`] unless its O is FP32,
/// or [`Error::WrongLength`] for the first part whose lengths aren't those of `total`. Nothing has been
/// written then.
pub fn merge(shape: &ProblemShape, total: Output<'_>, parts: &[Part<'_>]) -> Result<(), Error> {
    total.check([shape.b, shape.s_q], shape)?;
    let Output {
        o: Elements::F32(o),
        o_strides,
        lse,
        lse_strides,
        mut max_logits,
        lse_format,
    } = total
    else {
        return Err(Error::Format {
            argument: Argument::O,
            width: shape.d_v,
        });
    };
    let lse = lse.ok_or(Error::TooShort {
        argument: Argument::Lse,
        len: 0,
        needed: 1,
    })?;
    for part in parts {
        right_length(Argument::O, part.o.len(), o.len())?;
        right_length(Argument::Lse, part.lse.len(), lse.len())?;
        if let Some(max_logits) = &max_logits {
            let len = part.max_logits.unwrap_or_default().len();
            right_length(Argument::MaxLogits, len, max_logits.len())?;
        }
    }
    if [shape.b, shape.s_q, shape.h_q].contains(&0) {
        return Ok(());
    }
    for b in 0..shape.b {
        for j in 0..shape.s_q {
            for h in 0..shape.h_q {
                let start = b * o_strides[0] + j * o_strides[1] + h * o_strides[2];
                let columns = start..start + shape.d_v;
                let at = b * lse_strides[0] + h * lse_strides[1] + j * lse_strides[2];
                let row = || {
                    let columns = columns.clone();
                    parts
                        .iter()
                        .map(move |p| (&p.o[columns.clone()], p.lse[at]))
                };
                merge_row(&mut o[columns.clone()], &mut lse[at], row, lse_format);
                if let Some(max_logits) = &mut max_logits {
                    let largest = parts.iter().filter_map(|part| Some(part.max_logits?[at]));
                    max_logits[at] = one_nan(largest.fold(max_logits[at], f32::max));
                }
            }
        }
    }
    Ok(())
}

/// Merges one row; `parts` iterates over each part's O and lse.
fn merge_row<'a, I: Iterator<Item = (&'a [f32], f32)>>(
    o: &mut [f32],
    lse: &mut f32,
    parts: impl Fn() -> I,
    format: Lse,
) {
    let all = || core::iter::once(*lse).chain(parts().map(|(_, lse)| lse));
    // Without empty rows; NaN must stay.
    let seen = |lse: &f32| *lse != format.empty.value() && *lse != f32::NEG_INFINITY;
    let max = all().filter(seen).fold(f32::NEG_INFINITY, f32::max);
    let weight = |lse: f32| {
        let below = f64::from(lse) - f64::from(max);
        seen(&lse).then(|| exp(below, format.base))
    };
    let total: f64 = all().filter_map(weight).sum();
    if total == 0.0 {
        o.fill(0.0);
        *lse = format.empty.value();
        return;
    }
    let own = weight(*lse);
    // Some columns at a time, so that FP64 sums fit the stack.
    const COLUMNS: usize = 64;
    for (i, o) in o.chunks_mut(COLUMNS).enumerate() {
        let mut sums = [0.0; COLUMNS];
        for (sum, &o) in sums.iter_mut().zip(&*o) {
            *sum = weighed(own, o);
        }
        for (part, lse) in parts() {
            let weight = weight(lse);
            let part = &part[i * COLUMNS..][..o.len()];
            for (sum, &o) in sums.iter_mut().zip(part) {
                *sum += weighed(weight, o);
            }
        }
        for (o, sum) in o.iter_mut().zip(sums) {
            *o = round(sum / total);
        }
    }
    *lse = round(f64::from(max) + log(total, format.base));
}

/// A part's term: nothing if it saw no key, whatever its O. If its weight underflows, the term is zero,
/// or NaN where O isn't finite, as for a key of such a weight.
fn weighed(weight: Option<f64>, o: f32) -> f64 {
    weight.map_or(0.0, |weight| weight * f64::from(o))
}

fn exp(x: f64, base: LseBase) -> f64 {
    match base {
        LseBase::E => libm::exp(x),
        LseBase::Two => libm::exp2(x),
    }
}

fn log(x: f64, base: LseBase) -> f64 {
    match base {
        LseBase::E => libm::log(x),
        LseBase::Two => libm::log2(x),
    }
}

#[expect(clippy::cast_possible_truncation, reason = "rounds to FP32")]
const fn round(x: f64) -> f32 {
    one_nan(x as f32)
}
