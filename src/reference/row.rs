//! One query row: its keys and values, its products, and its results.

use core::ops::Range;

use libm::{exp, log};

use super::arithmetic::{Real, axpy};
use crate::error::{Argument, Error, right_length};
use crate::format;
use crate::problem::{Problem, in_range};
use crate::tile::{MAX_D_V, STRIP, ascend::BASE_K};

/// Of the widest rows: twice the kernel's widest values.
pub(super) const MAX_WIDTH: usize = 2 * MAX_D_V;

/// One query head of one query position of one request.
pub(super) struct Row<'a> {
    pub problem: &'a Problem<'a>,
    /// The sequence.
    b: usize,
    /// The query position.
    j: usize,
    /// The KV head.
    head: usize,
    /// The query, `[d_qk]`.
    pub q: &'a [f32],
    /// The keys to attend to; at least 1. A mask may hide some of them.
    pub keys: Range<usize>,
}

impl<'a> Row<'a> {
    /// Key `k`, in `row`.
    pub fn key<'b>(&self, k: usize, row: &'b mut [f32; MAX_WIDTH]) -> &'b [f32]
    where
        'a: 'b,
    {
        let mut keys = self.problem.keys(self.b, self.head, k..k + 1);
        let parts = keys.next().unwrap_or([format::Row::EMPTY; 2]);
        numbers(parts, self.problem.k_widths(), row)
    }

    /// Value `k`, in `row`.
    pub fn value<'b>(&self, k: usize, row: &'b mut [f32; MAX_WIDTH]) -> &'b [f32]
    where
        'a: 'b,
    {
        let value = self.problem.value(self.b, self.head, k);
        numbers(
            [value, format::Row::EMPTY],
            [self.problem.shape.d_v, 0],
            row,
        )
    }

    /// Whether the row sees key `k`.
    pub fn sees(&self, k: usize) -> bool {
        self.problem.sees(self.b, self.head, self.j, k)
    }

    /// Sets the scores of keys that the row doesn't see to -inf.
    pub fn hide(&self, keys: &Range<usize>, s: &mut [f32]) {
        for (s, k) in s.iter_mut().zip(keys.clone()) {
            if !self.sees(k) {
                *s = f32::NEG_INFINITY;
            }
        }
    }

    /// The blocks of keys; the last may be short.
    pub fn blocks(&self, block_n: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let end = self.keys.end;
        self.keys
            .clone()
            .step_by(block_n)
            .map(move |start| start..end.min(start.saturating_add(block_n)))
    }

    /// C1: `s = Q K^T`, unscaled, in FP32.
    ///
    /// Each chunk of [`BASE_K`] features is summed from zero in the order of the dot instructions:
    /// of a pair, the odd feature first. The chunks' sums are added in order.
    pub fn qk(&self, keys: &Range<usize>, s: &mut [f32]) {
        /// Keys at a time, so that their sums needn't wait for each other.
        const KEYS: usize = 16;
        let mut q = [0.0; BASE_K];
        let mut k = [[0.0; KEYS]; BASE_K];
        let mut row = [0.0; MAX_WIDTH];
        for (s, first) in s.chunks_mut(KEYS).zip(keys.clone().step_by(KEYS)) {
            let mut sums = [0.0; KEYS];
            for start in (0..self.q.len()).step_by(BASE_K) {
                let features = start..self.q.len().min(start + BASE_K);
                for (q, x) in q.iter_mut().zip(&self.q[features.clone()]) {
                    *q = *x;
                }
                for i in 0..s.len() {
                    let key = self.key(first + i, &mut row);
                    for (k, x) in k.iter_mut().zip(&key[features.clone()]) {
                        k[i] = *x;
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
    pub fn pv(&self, keys: &Range<usize>, p: &[f32], o: &mut [f32]) {
        self.columns_pv(keys, p, 0, o);
    }

    /// `o += weight * (P V)`, the product first.
    pub fn weighed_pv(&self, keys: &Range<usize>, p: &[f32], weight: f32, o: &mut [f32]) {
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
        let mut row = [0.0; MAX_WIDTH];
        for (&p, k) in p.iter().zip(keys.clone()) {
            if self.sees(k) {
                axpy(o, p, &self.value(k, &mut row)[first..]);
            }
        }
    }
}

/// A row's numbers, in `row`.
pub(super) fn numbers<'b>(
    [first, second]: [format::Row<'b>; 2],
    [width, rope]: [usize; 2],
    row: &'b mut [f32; MAX_WIDTH],
) -> &'b [f32] {
    let (head, tail) = row.split_at_mut(width);
    format::convert(&first, head);
    format::convert(&second, &mut tail[..rope]);
    &row[..width + rope]
}

/// Checks the problem, and the lengths of dense outputs.
pub(super) fn check(problem: &Problem, o: usize, lse: usize) -> Result<(), Error> {
    check_problem(problem)?;
    let d_v = problem.shape.d_v;
    right_length(Argument::O, o, count_rows(problem).saturating_mul(d_v))?;
    right_length(Argument::Lse, lse, count_rows(problem))
}

/// Checks the problem, and the length of a dense output of one number for each row.
pub(super) fn check_rows(problem: &Problem, argument: Argument, len: usize) -> Result<(), Error> {
    check_problem(problem)?;
    right_length(argument, len, count_rows(problem))
}

fn count_rows(problem: &Problem) -> usize {
    let [b, s_q] = problem.q_dims();
    b.saturating_mul(s_q).saturating_mul(problem.shape.h_q)
}

/// Checks the problem and the row `[request, position, head]`; returns its sequence, the position
/// within that, and the head.
pub(super) fn check_row(
    problem: &Problem,
    [b, j, h]: [usize; 3],
    o: usize,
) -> Result<[usize; 3], Error> {
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
    below(Argument::SQ, j, problem.positions(b))?;
    below(Argument::HQ, h, s.h_q)?;
    right_length(Argument::O, o, s.d_v)?;
    let (b, j) = problem.sequence(b, j);
    Ok([b, j, h])
}

fn check_problem(problem: &Problem) -> Result<(), Error> {
    problem.check()?;
    // Rows are converted in a buffer.
    let s = &problem.shape;
    in_range(Argument::DQk, s.d_qk.max(s.d_v), 1, MAX_WIDTH)
}

/// Calls `attend` with every row that sees a key, and the row's part of `o`. It returns lse, which is
/// -inf if the row's scores are all -inf. With `split`, calls it with each KV split and merges.
pub(super) fn each_row<T: Real>(
    problem: &Problem,
    split: bool,
    o: &mut [T],
    lse: &mut [T],
    mut attend: impl FnMut(&Row, &mut [T]) -> f64,
) {
    let d_v = problem.shape.d_v;
    for (at, [row, index]) in rows(problem) {
        let o = &mut o[row * d_v..][..d_v];
        one_row(problem, split, at, o, &mut lse[index], &mut attend);
    }
}

/// All rows, `[sequence, position, head]`, and where their results are among dense rows of O and in lse.
pub(super) fn rows(problem: &Problem) -> impl Iterator<Item = ([usize; 3], [usize; 2])> {
    let h_q = problem.shape.h_q;
    let [_, s_q] = problem.q_dims();
    problem.sequences_from(0).flat_map(move |b| {
        let positions = (0..problem.queries(b)).flat_map(move |j| (0..h_q).map(move |h| (j, h)));
        positions.map(move |(j, h)| {
            let [request, token] = problem.token(b, j);
            let row = (request * s_q + token) * h_q + h;
            ([b, j, h], [row, (request * h_q + h) * s_q + token])
        })
    })
}

/// Calls `attend` with a row and all keys that it may see.
pub(super) fn with_row<R>(
    problem: &Problem,
    [b, j, h]: [usize; 3],
    attend: impl FnOnce(&Row) -> R,
) -> R {
    let mut row = [0.0; MAX_WIDTH];
    attend(&Row {
        problem,
        b,
        j,
        head: h / problem.shape.group(),
        q: numbers(problem.query(b, j, h), problem.q_widths(), &mut row),
        keys: problem.visible(b, j),
    })
}

/// [`each_row`] of one row.
pub(super) fn one_row<T: Real>(
    problem: &Problem,
    split: bool,
    [b, j, h]: [usize; 3],
    o: &mut [T],
    lse: &mut T,
    mut attend: impl FnMut(&Row, &mut [T]) -> f64,
) {
    let s = &problem.shape;
    let head = h / s.group();
    if !problem.sees_any(b, head, j) {
        o.fill(0.0.into());
        *lse = f32::INFINITY.into();
        return;
    }
    let mut attend =
        |keys, o: &mut [T]| with_row(problem, [b, j, h], |row| attend(&Row { keys, ..*row }, o));
    let visible = problem.visible(b, j);
    let visible_keys = visible.clone();
    let total = if split {
        let span = problem.span(b);
        let mut splits = problem
            .split
            .ranges(span.len())
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
            let factor = (1.0 + exp(sink - total)).recip();
            o.iter_mut()
                .for_each(|o| *o = T::round((*o).into() * factor));
        } else if sink != f64::NEG_INFINITY {
            // The sink has all the weight, and finite values have none.
            o.fill(0.0.into());
            let weight = T::round(if sink.is_nan() { sink } else { 0.0 });
            let mut row = [0.0; MAX_WIDTH];
            for k in visible_keys.filter(|&k| problem.sees(b, head, j, k)) {
                let value = problem.value(b, head, k);
                let value = numbers([value, format::Row::EMPTY], [s.d_v, 0], &mut row);
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

/// Merges normalised results over different keys: O weighted by the exponentials of lse. Returns the
/// merged lse. In FP64, so that merging adds no error of its own.
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
