//! Attention in FP64, from a problem's memory by nothing but its documentation, and how far
//! from it a computation with given roundings may be.
//!
//! The bound follows the definitions, row by row. With weights `w_k = 2^(t_k) / sum of 2^(t_i)`,
//! `t_k` a score in log2 units and `D_k` its distance from the largest:
//!
//! * A score is a sum of products, 96 at a time, then of these sums. Products of BF16 are exact in FP32. It is
//!   off by at most `(96 + d_qk / 96) u` of the sum of magnitudes: its condition counts. Products of other
//!   numbers are rounded, for another `u`.
//! * `t_k` is off by that times the scale, and by some `u D_k` for the products and differences on
//!   the way; by `u |t|` too where the reference isn't exact: in the compensated mode, and from
//!   2^22 on, where FP32 has no fraction left.
//! * So P is off by a factor `exp(ln 2 error)`, a few units in the last place for the exponential,
//!   and what it is rounded to; the compensation misses by `2^-8` with every block at most, or every
//!   16 keys where few rows are computed so.
//! * With P off by factors `1 + g_k`, the output, a quotient of two sums over P, is off by at most
//!   `sum of w_k g_k (|v_k| + |O|) / (1 - sum of w_k g_k)`, and by the summation's own rounding:
//!   as many `u` of `sum of w_k |v_k|` as there are additions.
//! * Each operation may lose what is below the smallest normal number, each operand too.

use amla::Split;
use amla::{
    BLOCK_KEYS, BackendId, Data, IndexList, Inputs, Options, Precision, Problem, Rescale, Sparse,
    TensorRef, tile,
};
use half::bf16;

use crate::rows::row;

/// How something computes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arithmetic {
    /// Half a unit in the last place of 1.
    unit: f64,
    /// What P may be off by once it is rounded.
    probability: f64,
    /// Whether the reference is the rounded maximum, not an integer.
    rounded_reference: bool,
    /// Whether that is made up for by integer additions.
    compensated: bool,
    /// Pairs of rows and keys: with up to that many rows the reference may move after any that many keys.
    /// With more rows it moves with a block.
    steps: &'static [(usize, usize)],
    /// The smallest normal number.
    tiny: f64,
    /// P is surely not 0 down to two to the power of minus this.
    range: f64,
    /// Numbers so large may overflow.
    huge: f64,
    /// Whether some numbers are more than BF16 holds: products of theirs are rounded, and blocks may be halved.
    more_than_bf16: bool,
    /// Whether numbers are rounded to BF16 before anything else.
    pub rounded_inputs: bool,
}

impl Arithmetic {
    /// `reference::golden`.
    pub const FP64: Self = Self {
        unit: f64::EPSILON / 2.0,
        probability: 0.0,
        rounded_reference: true,
        compensated: false,
        steps: &[],
        tiny: f64::MIN_POSITIVE,
        range: 1000.0,
        huge: f64::MAX / 4.0,
        more_than_bf16: false,
        rounded_inputs: false,
    };

    /// The kernel.
    pub fn of(problem: &Problem, options: &Options) -> Self {
        let compensated = options.rescale == Rescale::Compensated;
        let more_than_bf16 = more_than_bf16(problem);
        let own = options.backend.id();
        let multiplies_bf16 = matches!(
            own,
            BackendId::Avx512Bf16 | BackendId::Amx | BackendId::NeonBf16
        );
        let rounded_inputs = more_than_bf16 && multiplies_bf16 && options.inputs == Inputs::Bf16;
        // Which is whose kernels compute.
        let backend = match own {
            BackendId::Avx512Bf16 | BackendId::Amx if more_than_bf16 && !rounded_inputs => {
                BackendId::Avx512
            }
            BackendId::NeonBf16 if more_than_bf16 && !rounded_inputs => BackendId::Neon,
            _ => own,
        };
        Self {
            unit: match backend {
                // Rounds to odd: by less than a unit in the last place, not by half of one.
                BackendId::NeonBf16 => f64::from(f32::EPSILON),
                _ => f64::from(f32::EPSILON) / 2.0,
            },
            probability: match (backend, options.precision) {
                // As docs/algorithm.md has it.
                (BackendId::Avx512Bf16 | BackendId::Amx | BackendId::NeonBf16, Precision::Bf16) => {
                    2.0_f64.powi(-8)
                }
                (
                    BackendId::Avx512Bf16 | BackendId::Amx | BackendId::NeonBf16,
                    Precision::Bf16x2,
                ) => 2.0_f64.powi(-17),
                // P whole.
                _ => 0.0,
            },
            rounded_reference: compensated,
            compensated: compensated && options.precision == Precision::Bf16,
            steps: match backend {
                BackendId::Avx512Bf16 => &[(8, 16)],
                BackendId::Amx => &[(4, 16)],
                BackendId::NeonBf16 => &[],
                _ => &[(4, 16), (16, 64)],
            },
            tiny: f32::MIN_POSITIVE.into(),
            range: 120.0,
            huge: f64::from(f32::MAX) / 4.0,
            more_than_bf16,
            rounded_inputs,
        }
    }
}

impl Arithmetic {
    /// How far a score may be off.
    fn score_error(&self, score: &Score, d_qk: usize) -> f64 {
        let (depth, rest) = (d_qk.min(96), d_qk.div_ceil(96));
        let products = usize::from(self.more_than_bf16);
        let summed = (depth + rest + 2 + products) as f64 * self.unit;
        summed * score.size + score.below * self.tiny
    }
}

/// Whether BF16 doesn't hold the numbers.
fn exact(data: &Data) -> bool {
    matches!(
        data,
        Data::F16(_) | Data::F32(_) | Data::Q8_0(_) | Data::Q4_0(_)
    )
}

/// Whether a tensor has numbers that BF16 doesn't hold.
pub fn more_than_bf16(problem: &Problem) -> bool {
    let extra = problem.sparse.as_ref().and_then(|s| s.extra.as_ref());
    let tensors = [
        Some(&problem.q),
        problem.q_rope.as_ref(),
        Some(&problem.kv),
        problem.k_rope.as_ref(),
        problem.v.as_ref(),
        extra.map(|extra| &extra.kv),
    ];
    tensors.into_iter().flatten().any(|t| exact(&t.data))
}

/// What a number must be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Want {
    /// So far from it at most.
    Near(f64, f64),
    Nan,
    Infinite(f64),
    NotFinite,
    /// Ill-conditioned, or beyond the range of numbers.
    Anything,
}

impl Want {
    pub fn admits(self, got: f64) -> bool {
        match self {
            Self::Near(want, limit) => (got - want).abs() <= limit,
            Self::Nan => got.is_nan(),
            Self::Infinite(want) => got == want,
            Self::NotFinite => !got.is_finite(),
            Self::Anything => true,
        }
    }
}

/// A query of one head, and what it attends to.
pub struct Row {
    /// Scores in log2 units and what is known of them, one for each key that it sees.
    scores: Vec<Score>,
    /// `[keys, d_v]`
    values: Vec<f64>,
    d_v: usize,
    d_qk: usize,
    /// Keys that it might have seen.
    keys: usize,
    /// Rows of the same row group.
    group: usize,
    split: Split,
    sink: Option<f64>,
}

struct Score {
    t: f64,
    /// Sum of the magnitudes of its products, in the same units.
    size: f64,
    /// What subnormal numbers are worth, in units of the smallest normal one.
    below: f64,
    /// A product of infinity and a subnormal number, or zero.
    unsure: bool,
}

/// All rows, `[tokens, h_q]`, of numbers as they are or rounded to BF16.
pub fn rows(problem: &Problem, rounded: bool) -> Vec<Row> {
    let shape = problem.shape;
    let mut rows = Vec::new();
    for b in 0..shape.b {
        let [start, n] = match problem.q_indptr {
            Some(indptr) => [int(indptr[b]), int(indptr[b + 1] - indptr[b])],
            None => [0, shape.s_q],
        };
        for (j, h) in (0..n).flat_map(|j| (0..shape.h_q).map(move |h| (j, h))) {
            let at = match problem.q_indptr {
                Some(_) => [0, start + j, h],
                None => [b, j, h],
            };
            let keys = keys(problem, [b, j, n], at);
            let heads = shape.h_q / shape.h_kv;
            let (first, all) = match problem.sparse {
                Some(_) => (h % heads, heads),
                None => (j * heads + h % heads, n * heads),
            };
            let group = group(problem, first, all);
            rows.push(Row::of(problem, at, &keys, group, rounded));
        }
    }
    rows
}

/// How many of `all` rows are in the group of a row: as even as can be, in whole panels.
fn group(problem: &Problem, row: usize, all: usize) -> usize {
    let parts = [Some(&problem.q), problem.q_rope.as_ref()];
    let most = match parts.into_iter().flatten().any(|part| exact(&part.data)) {
        true => tile::FP32_GROUP_ROWS,
        false => tile::GROUP_ROWS,
    };
    let groups = all.div_ceil(most);
    let each = all.div_ceil(groups * tile::PANEL_ROWS) * tile::PANEL_ROWS;
    each.min(all - row / each * each)
}

/// The cache and the indices of each key of a query position; `None` for a key that it doesn't see.
type Keys<'a> = Vec<Option<(&'a TensorRef<'a>, [usize; 2])>>;

fn keys<'a>(problem: &'a Problem<'a>, [b, j, n]: [usize; 3], at: [usize; 3]) -> Keys<'a> {
    let [outer, token, h] = at;
    let head = h / (problem.shape.h_q / problem.shape.h_kv);
    let cached = match (problem.cache_seqlens, problem.kv_indptr) {
        (Some(lens), _) => int(lens[b * problem.cache_seqlens_stride]),
        (None, Some(indptr)) => int(indptr[b + 1] - indptr[b]),
        (None, None) => problem.shape.s_k,
    };
    let within = |k: usize| match problem.kv_indptr {
        Some(indptr) => [0, int(indptr[b]) + k],
        None => [b, k],
    };
    if let Some(Sparse { indices, extra }) = &problem.sparse {
        let listed = |indices: &amla::Indices| {
            let [over_outer, over_token] = indices.topk_length_strides;
            let len = indices.topk_length.map_or(indices.topk, |lengths| {
                int(lengths[outer * over_outer + token * over_token])
            });
            let [over_outer, over_token, over_head] = indices.strides;
            let start = outer * over_outer + token * over_token + head * over_head;
            let range = start..start + len;
            match indices.indices {
                IndexList::I32(list) => list[range].iter().map(|&i| i64::from(i)).collect(),
                IndexList::I64(list) => list[range].to_vec(),
            }
        };
        let paged = |index: usize, size: usize, pages: usize| {
            (index / size < pages).then_some([index / size, index % size])
        };
        let own = listed(indices).into_iter().map(|index| {
            let index = usize::try_from(index).ok()?;
            let at = match &problem.pages {
                Some(pages) => paged(index, pages.page_size, pages.pages)?,
                None => (index < cached).then(|| within(index))?,
            };
            Some((&problem.kv, at))
        });
        let mut keys: Keys = own.collect();
        if let Some(extra) = extra {
            keys.extend(listed(&extra.indices).into_iter().map(|index| {
                let index = usize::try_from(index).ok()?;
                Some((&extra.kv, paged(index, extra.page_size, extra.pages)?))
            }));
        }
        return keys;
    }
    let seen = |k: usize| {
        // How far behind the query's own key.
        let past = (cached + j) as i64 - (n + k) as i64;
        let before = |window: usize| past >= 0 && past as u64 >= window as u64;
        let shown = problem.tail_mask.is_none_or(|mask| {
            let words = mask.tail.div_ceil(64);
            let row = match problem.q_indptr {
                Some(_) => token,
                None => b * problem.shape.s_q + j,
            };
            (k + mask.tail)
                .checked_sub(cached)
                .is_none_or(|i| mask.words[row * words + i / 64] >> (i % 64) & 1 == 1)
        });
        shown && (past >= 0 || !problem.causal) && !problem.window.is_some_and(before)
    };
    let at = |k: usize| match &problem.pages {
        Some(pages) => {
            let page = pages.block_table[b * pages.stride + k / pages.page_size];
            [int(page), k % pages.page_size]
        }
        None => within(k),
    };
    let keys = (0..cached).map(|k| seen(k).then(|| (&problem.kv, at(k))));
    keys.collect()
}

fn int(x: i32) -> usize {
    x.try_into().unwrap()
}

/// A row in two parts, the second of which may be missing.
fn joined(
    first: &TensorRef,
    second: Option<&TensorRef>,
    at: [usize; 3],
    [d_qk, d_v]: [usize; 2],
) -> Vec<f32> {
    match second {
        Some(rope) => [row(first, at, d_v), row(rope, at, d_qk - d_v)].concat(),
        None => row(first, at, d_qk),
    }
}

impl Row {
    fn of(problem: &Problem, at: [usize; 3], keys: &Keys, group: usize, rounded: bool) -> Self {
        let shape = problem.shape;
        let widths = [shape.d_qk, shape.d_v];
        let taken = |mut row: Vec<f32>| {
            if rounded {
                row.iter_mut()
                    .for_each(|x| *x = bf16::from_f32(*x).to_f32());
            }
            row
        };
        let query = taken(joined(&problem.q, problem.q_rope.as_ref(), at, widths));
        let head = at[2] / (shape.h_q / shape.h_kv);
        let scale = f64::from(problem.softmax_scale) * std::f64::consts::LOG2_E;
        let (mut scores, mut values) = (Vec::new(), Vec::new());
        for (cache, [outer, token]) in keys.iter().flatten() {
            let at = [*outer, *token, head];
            let key = taken(joined(cache, problem.k_rope.as_ref(), at, widths));
            scores.push(Score::of(&query, &key, scale));
            let value = match &problem.v {
                Some(v) => taken(row(v, at, shape.d_v)),
                None => key[problem.v_offset..][..shape.d_v].to_vec(),
            };
            values.extend(value.into_iter().map(f64::from));
        }
        Self {
            scores,
            values,
            d_v: shape.d_v,
            d_qk: shape.d_qk,
            keys: keys.len(),
            group,
            split: problem.split,
            sink: problem.sink.map(|sink| sink[at[2]].into()),
        }
    }

    /// O and lse.
    pub fn want(&self, arithmetic: Arithmetic) -> (Vec<Want>, Want) {
        let all = |o, lse| (vec![o; self.d_v], lse);
        if self.scores.is_empty() {
            return all(Want::Near(0.0, 0.0), Want::Infinite(f64::INFINITY));
        }
        if self
            .scores
            .iter()
            .any(|s| s.unsure || s.size.is_finite() && s.size >= arithmetic.huge)
        {
            return all(Want::Anything, Want::Anything);
        }
        if self
            .scores
            .iter()
            .any(|s| s.t.is_nan() || s.t == f64::INFINITY)
        {
            return all(Want::Nan, Want::Nan);
        }
        let max = self
            .scores
            .iter()
            .fold(f64::NEG_INFINITY, |max, s| max.max(s.t));
        if max == f64::NEG_INFINITY {
            return match self.sink {
                Some(sink) if sink > f64::NEG_INFINITY => all(self.without_weight(), Want::Nan),
                _ => all(Want::Nan, Want::Nan),
            };
        }
        Bound::new(self, arithmetic, max).wants()
    }

    /// The largest scaled score.
    pub fn largest(&self, arithmetic: Arithmetic) -> Want {
        let unsure = |s: &Score| s.unsure || s.size.is_finite() && s.size >= arithmetic.huge;
        if self.scores.iter().any(unsure) {
            return Want::Anything;
        }
        // NaN doesn't count.
        let max = self.scores.iter().map(|s| s.t);
        let max = max.fold(f64::NEG_INFINITY, f64::max);
        if max.is_infinite() {
            return Want::Infinite(max);
        }
        let errors = self.scores.iter().filter(|s| s.t.is_finite());
        let errors = errors.map(|s| arithmetic.score_error(s, self.d_qk));
        let error = errors.fold(0.0, f64::max) + 2.0 * arithmetic.unit * max.abs();
        Want::Near(
            max * std::f64::consts::LN_2,
            error * std::f64::consts::LN_2 + f64::from(f32::MIN_POSITIVE),
        )
    }

    /// O where the sink has all the weight.
    fn without_weight(&self) -> Want {
        match self.values.iter().all(|v| v.is_finite()) {
            true => Want::Near(0.0, 0.0),
            false => Want::Anything,
        }
    }
}

impl Score {
    fn of(query: &[f32], key: &[f32], scale: f64) -> Self {
        let mut score = Self {
            t: 0.0,
            size: 0.0,
            below: 0.0,
            unsure: false,
        };
        let mut finite = 0.0;
        for (q, k) in query.iter().zip(key) {
            let subnormal = |x: &f32| x.is_subnormal();
            score.unsure |= subnormal(q) && k.is_infinite() || q.is_infinite() && subnormal(k);
            let (q, k) = (f64::from(*q), f64::from(*k));
            score.t += q * k;
            score.size += (q * k).abs();
            if (q * k).is_finite() {
                finite += (q * k).abs();
            }
            score.below += q.abs() + k.abs() + 2.0;
        }
        // In plain scores FP32 must hold it, too.
        // Beside an infinite product others make it NaN that don't fit.
        score.unsure |= finite >= f64::from(f32::MAX) / 4.0;
        // Infinities of the two signs, and 0 times one, are NaN in any order.
        score.t *= scale;
        score.unsure |= scale == 0.0 && !score.t.is_finite();
        score.size *= scale.abs();
        score.below *= scale.abs();
        score
    }
}

/// The bound of one row.
struct Bound<'a> {
    row: &'a Row,
    arithmetic: Arithmetic,
    /// The largest score.
    max: f64,
    /// Sum of `2^-D`.
    total: f64,
    /// Distances from the maximum, weights, and what they may be off by before and after they
    /// are rounded.
    keys: Vec<[f64; 4]>,
    /// Roundings of a sum over the keys.
    additions: f64,
}

impl<'a> Bound<'a> {
    fn new(row: &'a Row, arithmetic: Arithmetic, max: f64) -> Self {
        let Arithmetic { unit, .. } = arithmetic;
        let step = arithmetic.steps.iter().find(|step| row.group <= step.0);
        let block = match arithmetic.more_than_bf16 {
            true => BLOCK_KEYS / 2,
            false => BLOCK_KEYS,
        };
        let step = step.map_or(block, |step| step.1);
        // What one task goes through, and how many there are.
        let ranges = row.split.ranges(row.keys);
        let tasks = ranges.len() as f64;
        let blocks = ranges
            .map(|range| range.len().div_ceil(step))
            .max()
            .unwrap_or(0) as f64;
        let additions = 2.0 * row.scores.len() as f64 + blocks + 16.0 * tasks;
        let total: f64 = row.scores.iter().map(|s| (s.t - max).exp2()).sum();
        let missed = match arithmetic.compensated {
            true => 1.02 * 2.0_f64.powi(-8) * (blocks - 1.0).max(0.0),
            false => 0.0,
        };
        let keys = row.scores.iter().map(|s| {
            let distance = max - s.t;
            if distance == f64::INFINITY {
                return [distance, 0.0, 0.0, 0.0];
            }
            let mut error = arithmetic.score_error(s, row.d_qk) + 4.0 * unit * (distance + 2.0);
            let reference = max.abs() + distance + 1.0;
            if arithmetic.rounded_reference || reference >= 4_194_304.0 {
                error += 2.0 * unit * reference + (4.0 + distance) * unit * blocks;
            }
            let error = (error * std::f64::consts::LN_2 + 16.0 * unit).exp_m1();
            let rounded = (1.0 + error) * (1.0 + arithmetic.probability) * (1.0 + missed) - 1.0;
            [distance, (-distance).exp2() / total, error, rounded]
        });
        Self {
            keys: keys.collect(),
            row,
            arithmetic,
            max,
            total,
            additions,
        }
    }

    fn wants(&self) -> (Vec<Want>, Want) {
        let unit = self.arithmetic.unit;
        let off = |i: usize| self.keys.iter().map(|key| key[1] * key[i]).sum::<f64>();
        // Beyond this, first order says nothing.
        const CONDITIONED: f64 = 0.25;
        let (plain, rounded) = (off(2), off(3));
        let known = rounded <= CONDITIONED;
        let lse = (self.max + self.total.log2()) * std::f64::consts::LN_2;
        let lost = self.keys.len() as f64 * 4.0 * self.arithmetic.tiny;
        let lse_limit =
            plain / (1.0 - plain) + self.additions * unit + 4.0 * unit * lse.abs() + lost;
        let o = self
            .columns()
            .into_iter()
            .map(|column| match (column.special(), known) {
                // An infinity times P, of which nothing is known: it may be 0.
                (Some(Want::Infinite(_)), false) => Want::NotFinite,
                (Some(want), _) => want,
                (None, false) => Want::Anything,
                (None, true) => self.near(&column, rounded),
            });
        let o = o.map(|o| self.with_sink(o, lse, lse_limit));
        let lse = if known {
            Want::Near(lse, lse_limit)
        } else {
            Want::Anything
        };
        (o.collect(), lse)
    }

    fn columns(&self) -> Vec<Column> {
        let mut columns = vec![Column::default(); self.row.d_v];
        let rows = self.row.values.chunks(self.row.d_v);
        for (values, &[distance, weight, _, off]) in rows.zip(&self.keys) {
            let certain = distance <= self.arithmetic.range;
            for (column, &v) in columns.iter_mut().zip(values) {
                let size = v.abs();
                column.want += weight * v;
                column.size += weight * size;
                column.moved += weight * off * size;
                column.total += size;
                if size > column.largest {
                    column.largest = size;
                }
                // Infinite or NaN, of a product too: 0 times infinity.
                if !size.is_finite() {
                    column.nan |= v.is_nan() || weight == 0.0 && distance == f64::INFINITY;
                    column.unsure |= !certain;
                    column.infinite[usize::from(v < 0.0)] = true;
                }
            }
        }
        columns
    }

    fn near(&self, column: &Column, off: f64) -> Want {
        let &Column {
            want,
            size,
            moved,
            total,
            largest,
            ..
        } = column;
        if total >= self.arithmetic.huge {
            return Want::Anything;
        }
        let lost = self.additions * 4.0 * self.arithmetic.tiny * (1.0 + largest);
        let summed = self.additions * self.arithmetic.unit * (size + want.abs());
        Want::Near(
            want,
            (moved + off * want.abs()) / (1.0 - off) + 1.1 * summed + lost,
        )
    }

    fn with_sink(&self, o: Want, lse: f64, lse_limit: f64) -> Want {
        let Some(sink) = self.row.sink else {
            return o;
        };
        if sink.is_nan() {
            return Want::Nan;
        }
        let share = 1.0 / (1.0 + (sink - lse).exp());
        match o {
            // The exponential is FP64's, so what counts is how well lse is known.
            Want::Near(want, limit) => {
                let unit = 4.0 * self.arithmetic.unit;
                let off = (1.0 - share) * lse_limit.exp_m1() + unit;
                let tiny = self.arithmetic.tiny * (1.0 + want.abs());
                Want::Near(
                    want * share,
                    (limit + want.abs() * off) * share * (1.0 + off) + tiny,
                )
            }
            // Infinity times nothing is NaN.
            Want::Infinite(_) => Want::NotFinite,
            other => other,
        }
    }
}

/// Sums over the keys.
#[derive(Clone, Copy, Default)]
struct Column {
    want: f64,
    /// Of magnitudes.
    size: f64,
    /// What they may be off by.
    moved: f64,
    /// Of magnitudes without weights.
    total: f64,
    largest: f64,
    nan: bool,
    /// Infinities of either sign, and whether one is so far from the maximum that P may be 0
    /// or not, when its block's turn is.
    infinite: [bool; 2],
    unsure: bool,
}

impl Column {
    /// What it is if it isn't finite.
    fn special(&self) -> Option<Want> {
        match (self.nan, self.unsure, self.infinite) {
            (true, ..) => Some(Want::Nan),
            (_, _, [false, false]) => None,
            (_, true, _) => Some(Want::NotFinite),
            (_, _, [true, true]) => Some(Want::Nan),
            (_, _, [positive, _]) => {
                let sign = if positive { 1.0 } else { -1.0 };
                Some(Want::Infinite(sign * f64::INFINITY))
            }
        }
    }
}
