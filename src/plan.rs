//! How a call is cut into independent tasks.
//!
//! How a request's rows and keys are cut depends on the shape, on its own lengths and on [`Split`] alone, and results are
//! always merged in the order of the keys. So its bits don't depend on its neighbours or on how many
//! threads ran the tasks.

use core::ops::Range;

use crate::dims::check_dims;
use crate::error::{Argument, Error};
use crate::group::{Group, Partial};
use crate::kernel::strip_rows;
use crate::problem::{Problem, in_range};
use crate::schedule::Split;
use crate::shape::ProblemShape;
use crate::tile::{BLOCK_KEYS, FP32_GROUP_ROWS, GROUP_ROWS, PANEL_ROWS, PANELS};

/// Threads that [`Plan::new`] plans for.
const THREADS: usize = 16;

/// The tasks of a problem: requests x KV heads x row groups x KV splits, in that
/// order, later rows first.
///
/// A task computes up to 256 rows of a request and KV head. Either it attends them to all of their keys and writes O and lse, or to
/// one KV split, and has a partial result; tasks with those come first. Which of them, and whether groups have 256 rows, 128 or
/// 64, is what an estimate has as the shortest time on some number of threads. Bits don't depend on it.
///
/// It holds numbers only, is computed from shape and lengths, and serves every
/// problem that has the same ones, from layer to layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    shape: ProblemShape,
    lengths: PlannedLengths,
    cut: Tasks,
}

/// The tasks of a way to cut a problem.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tasks {
    /// How many there are.
    all: usize,
    /// How many of them have a partial result: the first ones.
    partial: usize,
    /// Rows whose partial results are combined.
    combined: usize,
    /// Rows that the largest row group's result has room for: none has more panels.
    rows: usize,
}

impl Tasks {
    /// Whether each has all keys of its rows.
    const fn have_all_keys(&self) -> bool {
        self.partial == 0
    }
}

/// What tasks take, in products of a row and a key.
#[derive(Clone, Copy, Default)]
struct Costs {
    total: u64,
    longest: u64,
}

/// Cost of a key beside its rows, in rows: its row is read and its values are packed.
const KEY: u64 = 4;
/// Cost of merging a row's results over one KV split, in products of a row and a key.
const RESULT: u64 = 32;
/// Cost of a task beside its keys, in products of a row and a key: queries are packed.
const TASK: u64 = 1 << 9;
/// Cost of waiting for all partial results, in products of a row and a key.
const WAIT: u64 = 1 << 9;

impl Costs {
    /// When the last of some threads is done, at most, where each takes the next task when it has completed one.
    fn makespan(&self, tasks: &Tasks, threads: usize) -> u64 {
        let threads = threads.max(1) as u64;
        let rounds = (tasks.all as u64).div_ceil(threads);
        let end = self.total / threads + (self.longest - self.longest / threads);
        let wait = if tasks.partial > 0 { WAIT } else { 0 };
        end.min(rounds.saturating_mul(self.longest))
            .saturating_add(wait)
    }
}

/// What a plan depends on besides the shape, so that one for other lengths is noticed, and what differs told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PlannedLengths {
    /// Those of [`COUNTS`]; `usize::MAX` where there is none.
    counts: [usize; COUNTS.len()],
    /// Those of [`LISTS`].
    lists: [List; LISTS.len()],
}

const COUNTS: [Argument; 4] = [
    Argument::Window,
    Argument::Topk,
    Argument::ExtraTopk,
    Argument::SplitKeys,
];
const LISTS: [Argument; 5] = [
    Argument::QIndptr,
    Argument::KvIndptr,
    Argument::CacheSeqlens,
    Argument::TopkLength,
    Argument::ExtraTopkLength,
];
/// In the order of [`Plan::sizes`].
const SIZES: [Argument; 7] = [
    Argument::B,
    Argument::SQ,
    Argument::SK,
    Argument::HQ,
    Argument::HKv,
    Argument::DQk,
    Argument::DV,
];

/// A list of lengths or offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct List {
    /// Rows in all.
    total: u64,
    /// 0 where there is no list.
    hash: u64,
}

impl List {
    const NONE: Self = Self { total: 0, hash: 0 };

    /// Of lengths and how many of each there are; they were checked not to be negative.
    fn of(runs: impl Iterator<Item = (i32, usize)>) -> Self {
        let mut total = 0_u64;
        let hash = hash_runs(
            OFFSET_BASIS,
            runs.inspect(|&(length, count)| {
                let length = u64::from(length.unsigned_abs());
                total = total.wrapping_add(length.wrapping_mul(count as u64));
            }),
        );
        Self { total, hash }
    }

    /// Of offsets, which were checked not to fall.
    fn of_offsets(list: Option<&[i32]>) -> Self {
        let Some(list) = list else {
            return Self::NONE;
        };
        let total = match list {
            [first, .., last] => first.abs_diff(*last).into(),
            _ => 0,
        };
        Self {
            total,
            ..Self::of(list.iter().map(|&offset| (offset, 1)))
        }
    }
}

impl PlannedLengths {
    fn of(problem: &Problem<'_>) -> Self {
        let topk = problem.sparse.map(|sparse| sparse.indices);
        let extra = problem.sparse.and_then(|sparse| sparse.extra);
        let extra = extra.map(|extra| extra.indices);
        let counts = [
            problem.window,
            topk.map(|indices| indices.topk),
            extra.map(|indices| indices.topk),
            match problem.split {
                Split::ByLength => None,
                Split::Every(keys) => Some(keys),
            },
        ];
        let seqlens = problem.cache_seqlens.map(|_| List::of(problem.seqlens()));
        let [topk, extra] = problem.topk_lengths().map(|lengths| {
            let runs =
                lengths.map(|lengths| lengths.runs().map(|(_, length, count)| (length, count)));
            runs.map_or(List::NONE, List::of)
        });
        Self {
            counts: counts.map(|count| count.unwrap_or(usize::MAX)),
            lists: [
                List::of_offsets(problem.q_indptr),
                List::of_offsets(problem.kv_indptr),
                seqlens.unwrap_or(List::NONE),
                topk,
                extra,
            ],
        }
    }
}

impl Split {
    /// A split of a shape's keys that a number of threads share evenly; by length alone where there are rows enough for them.
    ///
    /// Requests have `s_k` keys. Splits are as long as they can be: a host that wants the same bits for all lengths, or for
    /// threads to come, fixes a length of its own.
    ///
    /// ```
    /// use amla::{ProblemShape, Split};
    /// let shape = ProblemShape { b: 1, s_q: 1, s_k: 4096, h_q: 128, h_kv: 1, d_qk: 576, d_v: 512 };
    /// assert_eq!(Split::for_threads(&shape, 1), Split::ByLength);
    /// assert_eq!(Split::for_threads(&shape, 32), Split::Every(256));
    /// ```
    #[must_use]
    pub fn for_threads(shape: &ProblemShape, threads: usize) -> Self {
        let rows = shape.s_q.saturating_mul(shape.h_q / shape.h_kv.max(1));
        let groups = (shape.b)
            .saturating_mul(shape.h_kv)
            .saturating_mul(rows.div_ceil(PANEL_ROWS));
        let rows = rows.min(PANEL_ROWS) as u64;
        let makespan = |splits: usize, len: usize| {
            let tasks = groups.saturating_mul(splits);
            let merge = if splits > 1 { rows * RESULT + WAIT } else { 0 };
            let task = (rows + KEY) * len as u64 + merge + TASK;
            (tasks.div_ceil(threads.max(1)) as u64).saturating_mul(task)
        };
        let by_length = Self::ByLength.ranges(shape.s_k).len();
        let len = Self::ByLength.range(0, shape.s_k).len();
        // A plan may leave all keys of its rows to a task.
        let default = makespan(by_length, len).min(makespan(1, shape.s_k));
        let mut best = (default, Self::ByLength);
        // More tasks than these cost more than they gain.
        let most = threads.saturating_mul(4).div_ceil(groups.max(1));
        for splits in 1..=most.min(shape.s_k / Self::MULTIPLE) {
            let len = shape.s_k.div_ceil(splits).next_multiple_of(Self::MULTIPLE);
            let time = makespan(shape.s_k.div_ceil(len), len);
            if time < best.0 {
                best = (time, Self::Every(len));
            }
        }
        best.1
    }
}

/// How one request is cut.
#[derive(Clone)]
pub struct Cut {
    /// Rows `j * g + h` that share a KV head.
    rows: usize,
    /// Groups of them.
    groups: usize,
    /// Rows of a group but the last.
    group_rows: usize,
    /// The keys that any row may see.
    span: Range<usize>,
    split: Split,
}

impl Cut {
    fn of(problem: &Problem<'_>, request: usize) -> Self {
        // The product was checked for the longest.
        let rows = problem.queries(request) * problem.shape.group();
        let groups = rows.div_ceil(if problem.has_bf16_queries() {
            GROUP_ROWS
        } else {
            FP32_GROUP_ROWS
        });
        Self {
            rows,
            groups,
            // Groups of whole panels, as even as can be.
            group_rows: rows.div_ceil(groups.max(1) * PANEL_ROWS) * PANEL_ROWS,
            span: problem.span(request),
            split: problem.split,
        }
    }

    /// The ranges that the keys are cut into.
    pub fn splits(&self) -> impl ExactSizeIterator<Item = Range<usize>> + use<> {
        let start = self.span.start;
        let ranges = self.split.ranges(self.span.len());
        ranges.map(move |keys| start + keys.start..start + keys.end)
    }

    /// KV splits that are tasks of their own.
    fn splits_apart(&self, all_keys: bool) -> usize {
        if all_keys { 1 } else { self.splits().len() }
    }

    /// Whether a task's keys are those of the first KV split.
    pub fn is_first(&self, keys: &Range<usize>) -> bool {
        keys.start == self.span.start
    }

    /// Row groups of `panels` panels that `group_rows` rows make.
    const fn row_groups_of_full(&self, panels: usize) -> usize {
        self.group_rows.div_ceil(panels * PANEL_ROWS)
    }

    /// All row groups of `panels` panels.
    const fn row_groups(&self, panels: usize) -> usize {
        let others = self.groups.saturating_sub(1);
        let last = self.rows - others * self.group_rows;
        others * self.row_groups_of_full(panels) + last.div_ceil(panels * PANEL_ROWS)
    }

    /// Rows of the largest row group of `panels` panels.
    fn largest(&self, panels: usize) -> usize {
        self.group_rows.min(self.rows).min(panels * PANEL_ROWS)
    }

    /// What the tasks of one KV head take.
    fn costs(&self, panels: usize, all_keys: bool) -> Costs {
        let splits = self.splits().len() as u64;
        let keys = match all_keys {
            true => self.span.len(),
            false => self.split.range(0, self.span.len()).len(),
        };
        let cost = |rows: usize, groups: usize, keys: usize| {
            let rows = (rows as u64).saturating_add(KEY.saturating_mul(groups as u64));
            rows.saturating_mul(keys as u64)
        };
        let merges =
            |rows: usize, splits: u64| RESULT.saturating_mul(rows as u64).saturating_mul(splits);
        let largest = self.largest(panels);
        Costs {
            total: cost(self.rows, self.row_groups(panels), self.span.len())
                .saturating_add(merges(self.rows, splits - 1)),
            longest: cost(largest, 1, keys)
                .saturating_add(merges(largest, if all_keys { splits - 1 } else { 1 })),
        }
    }

    /// The part of a problem that one task computes: of a request, KV head and row group of `panels` panels, one KV split.
    fn row_group<'a>(
        &self,
        problem: &'a Problem<'a>,
        [request, head, row_group]: [usize; 3],
        panels: usize,
        split: usize,
    ) -> Group<'a> {
        let each = self.row_groups_of_full(panels);
        let first = row_group / each * self.group_rows;
        let end = self.rows.min(first + self.group_rows);
        let start = first + row_group % each * panels * PANEL_ROWS;
        let keys = self.split.range(split, self.span.len());
        let keys = self.span.start + keys.start..self.span.start + keys.end;
        Group {
            problem,
            request,
            head,
            rows: start..end.min(start + panels * PANEL_ROWS),
            prefetch_end: keys.end,
            keys,
            planned_rows: end - first,
            block_keys: BLOCK_KEYS,
        }
    }
}

impl Tasks {
    /// With row groups of `panels` panels, and with all keys in one task or each KV split in its own.
    fn of(problem: &Problem<'_>, panels: usize, all_keys: bool) -> Result<(Self, Costs), Error> {
        let shape = problem.shape;
        check_dims(shape.d_qk, shape.d_v)?;
        shape.s_q.checked_mul(shape.h_q).ok_or(Error::Overflow {
            argument: Argument::Q,
            dimension: 1,
        })?;
        // Not one by one where they are alike, as b and s_q may be huge where strides are 0.
        let alike = problem.has_equal_requests();
        let (mut tasks, mut costs) = (Self::default(), Costs::default());
        let requests = 0..if alike { shape.b.min(1) } else { shape.b };
        for (sequence, count) in requests.flat_map(|request| problem.runs(request)) {
            let cut = Cut::of(problem, sequence);
            // Not the largest number itself, which may stand for more.
            let left = usize::MAX - 1 - tasks.all;
            let splits = cut.splits_apart(all_keys);
            let each = cut.row_groups(panels).saturating_mul(splits);
            in_range(Argument::HKv, shape.h_kv, 0, left / each.max(1))?;
            let each = each * shape.h_kv;
            in_range(Argument::SQ, count, 0, left / each.max(1))?;
            tasks.all += each * count;
            if splits > 1 {
                tasks.partial += each * count;
                // There are as many query rows in memory, or fewer tasks than rows could be counted.
                let rows = cut.rows.saturating_mul(shape.h_kv).saturating_mul(count);
                tasks.combined = tasks.combined.saturating_add(rows);
            }
            let largest = cut.largest(panels);
            let planned = cut.group_rows.min(cut.rows);
            tasks.rows = tasks.rows.max(strip_rows(largest, planned));
            let own = cut.costs(panels, all_keys);
            let times = (shape.h_kv as u64).saturating_mul(count as u64);
            costs.total = costs.total.saturating_add(own.total.saturating_mul(times));
            costs.longest = costs.longest.max(own.longest);
        }
        if alike {
            in_range(Argument::B, shape.b, 0, usize::MAX / tasks.all.max(1))?;
            for count in [&mut tasks.all, &mut tasks.partial] {
                *count *= shape.b;
            }
            tasks.combined = tasks.combined.saturating_mul(shape.b);
            costs.total = costs.total.saturating_mul(shape.b as u64);
        }
        // Room for a row where there is none, so that a length is never 0.
        tasks.rows = tasks.rows.max(1);
        Ok((tasks, costs))
    }
}

impl Plan {
    /// Numbers that a plan takes as such ([`to_words`](Self::to_words)).
    pub const WORDS: usize = SIZES.len() + COUNTS.len() + 2 * LISTS.len() + 4;

    /// Plans a problem for some threads: 16.
    ///
    /// # Errors
    /// Whatever is wrong with the problem.
    pub fn new(problem: &Problem<'_>) -> Result<Self, Error> {
        Self::for_threads(problem, THREADS)
    }

    /// Plans a problem for a number of threads. Any number may run the tasks, with the same bits; of this number none should
    /// wait long for the others.
    ///
    /// # Errors
    /// Whatever is wrong with the problem.
    pub fn for_threads(problem: &Problem<'_>, threads: usize) -> Result<Self, Error> {
        problem.check()?;
        Self::of(problem, threads)
    }

    /// Plans a problem whose sizes were checked.
    fn of(problem: &Problem<'_>, threads: usize) -> Result<Self, Error> {
        let (mut cut, costs) = Tasks::of(problem, PANELS, true)?;
        let mut least = costs.makespan(&cut, threads);
        let others = [PANELS, PANELS.div_ceil(2), 1]
            .into_iter()
            .flat_map(|panels| [true, false].map(|all_keys| (panels, all_keys)));
        // One thread has nothing to wait for.
        for (panels, all_keys) in others.filter(|_| threads > 1) {
            // More tasks than can be counted are no choice.
            if let Ok((other, costs)) = Tasks::of(problem, panels, all_keys)
                && costs.makespan(&other, threads) < least
            {
                (cut, least) = (other, costs.makespan(&other, threads));
            }
        }
        Ok(Self {
            shape: problem.shape,
            lengths: PlannedLengths::of(problem),
            cut,
        })
    }

    /// FP32 numbers that hold the partial results of any plan for calls of at most these sizes: any lengths, ragged or sparse (with
    /// `s_k` indices at most), for any number of threads. For hosts that fix their memory before lengths are known.
    ///
    /// 0 where no call has more than one KV split. The largest number if there are more than can be counted.
    ///
    /// # Errors
    /// What is wrong with the heads, the width of values or the split.
    pub fn bound(shape: &ProblemShape, split: Split) -> Result<usize, Error> {
        shape.check_heads()?;
        split.check()?;
        check_dims(shape.d_qk, shape.d_v)?;
        let splits = split.ranges(shape.s_k).len();
        if splits <= 1 {
            return Ok(0);
        }
        let numbers = |sequences: usize, rows: usize| {
            let sequences = sequences.saturating_mul(shape.b.saturating_mul(shape.h_kv));
            let groups = sequences.saturating_mul(rows.div_ceil(GROUP_ROWS));
            let rows = rows.min(GROUP_ROWS);
            let each = [PANELS, PANELS.div_ceil(2), 1].map(|panels| {
                let tasks = rows.div_ceil(panels * PANEL_ROWS);
                let room = strip_rows(rows.min(panels * PANEL_ROWS), rows);
                tasks * Partial::len(room, shape.d_v)
            });
            let most = each.into_iter().max().unwrap_or_default();
            groups.saturating_mul(splits).saturating_mul(most)
        };
        // Sparse attention has the rows of each position apart.
        let group = shape.group();
        let dense = numbers(1, shape.s_q.saturating_mul(group));
        Ok(dense.max(numbers(shape.s_q, group)))
    }

    /// Panels of a row group.
    pub(crate) const fn panels(&self) -> usize {
        self.cut.rows.div_ceil(PANEL_ROWS)
    }

    /// How many tasks there are.
    #[must_use]
    pub const fn tasks(&self) -> usize {
        self.cut.all
    }

    /// How many tasks have a partial result: the first ones. The others write O and lse.
    #[must_use]
    pub const fn partial_tasks(&self) -> usize {
        self.cut.partial
    }

    /// Rows whose partial results are to be combined.
    #[must_use]
    pub const fn combined_rows(&self) -> usize {
        self.cut.combined
    }

    /// The parts of a problem that neighbouring tasks compute, each with its request's cut.
    pub(crate) fn groups<'a>(
        &self,
        problem: &'a Problem<'a>,
        tasks: Range<usize>,
    ) -> impl Iterator<Item = (Cut, Group<'a>)> + use<'a> {
        let plan = *self;
        let Tasks { all, partial, .. } = self.cut;
        [(true, 0..partial), (false, partial..all)]
            .into_iter()
            .flat_map(move |(partial, of)| {
                let own = tasks.start.max(of.start)..tasks.end.min(of.end);
                let (first, rest) = if own.is_empty() {
                    (usize::MAX, 0)
                } else {
                    plan.locate(problem, partial, own.start - of.start)
                };
                let sequences = problem.sequences_from(first);
                let groups = sequences.flat_map(move |sequence| {
                    let from = if sequence == first { rest } else { 0 };
                    plan.groups_of(problem, sequence, partial, from)
                });
                groups.take(own.len())
            })
    }

    /// The tasks of a sequence from one on, if they are those with partial results, or those without.
    fn groups_of<'a>(
        self,
        problem: &'a Problem<'a>,
        sequence: usize,
        partial: bool,
        from: usize,
    ) -> impl Iterator<Item = (Cut, Group<'a>)> + use<'a> {
        let panels = self.panels();
        let cut = Cut::of(problem, sequence);
        let (each, splits) = (self.tasks_of(&cut, partial), self.splits_of(&cut));
        (from..self.shape.h_kv * each).map(move |task| {
            let (head, rest) = (task / each, task % each);
            // Later positions may see more keys: long tasks first.
            let row_group = cut.row_groups(panels) - 1 - rest / splits;
            let at = [sequence, head, row_group];
            (
                cut.clone(),
                cut.row_group(problem, at, panels, rest % splits),
            )
        })
    }

    /// KV splits that are tasks of their own.
    fn splits_of(&self, cut: &Cut) -> usize {
        cut.splits_apart(self.cut.have_all_keys())
    }

    /// Tasks of one KV head with partial results, or those without.
    fn tasks_of(&self, cut: &Cut, partial: bool) -> usize {
        let splits = self.splits_of(cut);
        match (splits > 1) == partial {
            true => cut.row_groups(self.panels()) * splits,
            false => 0,
        }
    }

    /// The sequence that has a task, and which of its tasks that is, among those with partial results or those without.
    fn locate(&self, problem: &Problem<'_>, partial: bool, task: usize) -> (usize, usize) {
        let each = |sequence| self.shape.h_kv * self.tasks_of(&Cut::of(problem, sequence), partial);
        let (mut request, mut rest) = (0, task);
        if problem.has_equal_requests() {
            let tasks: usize = problem.runs(0).map(|(first, n)| each(first) * n).sum();
            (request, rest) = (task / tasks, task % tasks);
        }
        let mut runs = (request..self.shape.b).flat_map(|request| problem.runs(request));
        let found = runs.find_map(|(first, count)| {
            let each = each(first);
            if rest < count * each {
                return Some((first + rest / each, rest % each));
            }
            rest -= count * each;
            None
        });
        // There are as many tasks as a plan says.
        found.unwrap_or((usize::MAX, 0))
    }

    /// FP32 numbers that each task's result takes.
    #[must_use]
    pub const fn partial_len(&self) -> usize {
        Partial::len(self.cut.rows, self.shape.d_v)
    }

    /// FP32 numbers that all partial results take.
    #[must_use]
    pub const fn partials_len(&self) -> usize {
        self.cut.partial.saturating_mul(self.partial_len())
    }

    /// How it is cut.
    const fn numbers(&self) -> [usize; 4] {
        let Tasks {
            all,
            partial,
            combined,
            rows,
        } = self.cut;
        [all, partial, combined, rows]
    }

    /// The sizes of its shape.
    const fn sizes(&self) -> [usize; SIZES.len()] {
        let ProblemShape {
            b,
            s_q,
            s_k,
            h_q,
            h_kv,
            d_qk,
            d_v,
        } = self.shape;
        [b, s_q, s_k, h_q, h_kv, d_qk, d_v]
    }

    /// The plan as numbers, to be stored or sent where a `Plan` can't be.
    #[must_use]
    pub fn to_words(&self) -> [u64; Self::WORDS] {
        let PlannedLengths { counts, lists } = self.lengths;
        let sizes = self.sizes().into_iter().chain(counts);
        let sizes = sizes.map(|size| size as u64);
        let lists = lists.into_iter().flat_map(|list| [list.total, list.hash]);
        let cut = self.numbers().map(|number| number as u64);
        let mut words = [0; Self::WORDS];
        for (word, value) in words.iter_mut().zip(sizes.chain(lists).chain(cut)) {
            *word = value;
        }
        words
    }

    /// The plan that [`to_words`](Self::to_words) gave these numbers for; `None` if they can't
    /// be any's. Others may still be nobody's plan, which whoever takes them for a problem's
    /// finds out: every plan is compared with the problem.
    #[must_use]
    pub fn from_words(words: [u64; Self::WORDS]) -> Option<Self> {
        let mut words = words.into_iter();
        let mut word = || words.next().unwrap_or_default();
        let sizes = [(); SIZES.len()].map(|()| word());
        let counts = [(); COUNTS.len()].map(|()| word());
        let lists = [(); LISTS.len()].map(|()| List {
            total: word(),
            hash: word(),
        });
        let cut = [(); 4].map(|()| word());
        let [b, s_q, s_k, h_q, h_kv, d_qk, d_v] = all_sizes(sizes)?;
        let [all, partial, combined, rows] = all_sizes(cut)?;
        let plan = Self {
            shape: ProblemShape {
                b,
                s_q,
                s_k,
                h_q,
                h_kv,
                d_qk,
                d_v,
            },
            lengths: PlannedLengths {
                counts: all_sizes(counts)?,
                lists,
            },
            cut: Tasks {
                all,
                partial,
                combined,
                rows,
            },
        };
        check_dims(d_qk, d_v).ok()?;
        let absent = |list: &List| list.hash == 0 && list.total != 0;
        let [.., split] = plan.lengths.counts;
        let possible = (1..=GROUP_ROWS).contains(&rows)
            && partial <= all
            && !lists.iter().any(absent)
            && (split == usize::MAX || split > 0 && split.is_multiple_of(Split::MULTIPLE));
        possible.then_some(plan)
    }

    /// # Errors
    /// What is wrong with the problem, or [`Error::PlanMismatch`].
    pub(crate) fn check(&self, problem: &Problem<'_>) -> Result<(), Error> {
        problem.check()?;
        self.matches(problem)
    }

    pub(crate) fn matches(&self, problem: &Problem<'_>) -> Result<(), Error> {
        // Cut as this one is, whatever the number of threads.
        let (cut, _) = Tasks::of(problem, self.panels(), self.cut.have_all_keys())?;
        let given = Self {
            shape: problem.shape,
            lengths: PlannedLengths::of(problem),
            cut,
        };
        if given == *self {
            Ok(())
        } else {
            Err(self.mismatch(&given))
        }
    }

    /// The first thing in which a call's own plan differs.
    fn mismatch(&self, given: &Self) -> Error {
        let mut pairs = self.facts().zip(given.facts());
        let (planned, given) = pairs.find(|(a, b)| a != b).unwrap_or_default();
        Error::PlanMismatch {
            argument: planned.0.unwrap_or(Argument::Plan),
            planned: planned.1,
            given: given.1,
        }
    }

    /// What a plan says of its call: an argument, if it is one; its number, if there is one; what else tells it apart.
    fn facts(&self) -> impl Iterator<Item = (Option<Argument>, Option<u64>, u64)> {
        let PlannedLengths { counts, lists } = self.lengths;
        let sizes = SIZES.into_iter().zip(self.sizes());
        let sizes = sizes.map(|(size, value)| (Some(size), Some(value as u64), 0));
        let counts = COUNTS.into_iter().zip(counts).map(|(count, value)| {
            let value = (value != usize::MAX).then_some(value as u64);
            (Some(count), value, 0)
        });
        let lists = LISTS.into_iter().zip(lists).map(|(name, list)| {
            let total = (list.hash != 0).then_some(list.total);
            (Some(name), total, list.hash)
        });
        let cut = self.numbers().map(|value| (None, Some(value as u64), 0));
        sizes.chain(counts).chain(lists).chain(cut)
    }

    /// # Errors
    /// [`Error::TooShort`] unless there is room for every partial result.
    pub(crate) fn check_partials(&self, partials: &[f32]) -> Result<(), Error> {
        let needed = self.partials_len();
        if partials.len() < needed {
            return Err(Error::TooShort {
                argument: Argument::Partials,
                len: partials.len(),
                needed,
            });
        }
        Ok(())
    }
}

/// Words as sizes, if all of them are some.
fn all_sizes<const N: usize>(words: [u64; N]) -> Option<[usize; N]> {
    let mut sizes = [0; N];
    for (size, word) in sizes.iter_mut().zip(words) {
        *size = usize::try_from(word).ok()?;
    }
    Some(sizes)
}

/// Where [`hash`] starts.
const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a, word by word.
const fn hash(hash: u64, word: u64) -> u64 {
    (hash ^ word).wrapping_mul(0x0100_0000_01b3)
}

/// [`hash`] of numbers and how many of each there are, however they are divided into runs.
fn hash_runs(mut lengths: u64, runs: impl Iterator<Item = (i32, usize)>) -> u64 {
    let (mut last, mut total) = (0, 0_usize);
    let hash_run = |lengths, number: i32, count: usize| match count {
        0 => lengths,
        _ => hash(
            hash(lengths, u64::from(number.cast_unsigned())),
            count as u64,
        ),
    };
    for (number, count) in runs {
        if number != last {
            lengths = hash_run(lengths, last, total);
            (last, total) = (number, 0);
        }
        total = total.wrapping_add(count);
    }
    hash_run(lengths, last, total)
}

/// All rows in row groups of `panels` panels, in the order of tasks: each with its request's cut and the first of its KV splits.
pub fn row_groups<'p>(
    problem: &'p Problem<'_>,
    panels: usize,
) -> impl Iterator<Item = (Cut, Group<'p>)> {
    problem.sequences_from(0).flat_map(move |request| {
        let cut = Cut::of(problem, request);
        let each = cut.row_groups(panels);
        (0..problem.shape.h_kv * each).map(move |i| {
            let group = cut.row_group(problem, [request, i / each, i % each], panels, 0);
            (cut.clone(), group)
        })
    })
}
