//! How requests are cut into tasks, and what those cost.

use core::ops::Range;

use crate::dims::check_dims;
use crate::error::{Argument, Error};
use crate::group::Group;
use crate::kernel::strip_rows;
use crate::problem::{Problem, in_range};
use crate::schedule::Split;
use crate::shape::ProblemShape;
use crate::tile::{BLOCK_KEYS, FP32_GROUP_ROWS, GROUP_ROWS, PANEL_ROWS};

/// The tasks of a way to cut a problem.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tasks {
    /// How many there are.
    pub all: usize,
    /// How many of them have a partial result: the first ones.
    pub partial: usize,
    /// Rows whose partial results are combined.
    pub combined: usize,
    /// Rows that the largest row group's result has room for: none has more panels.
    pub rows: usize,
}

impl Tasks {
    /// Whether each has all keys of its rows.
    pub const fn have_all_keys(&self) -> bool {
        self.partial == 0
    }
}

/// What tasks take, in products of a row and a key.
#[derive(Clone, Copy, Default)]
pub struct Costs {
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
    pub fn makespan(&self, tasks: &Tasks, threads: usize) -> u64 {
        let threads = threads.max(1) as u64;
        let rounds = (tasks.all as u64).div_ceil(threads);
        let end = self.total / threads + (self.longest - self.longest / threads);
        let wait = if tasks.partial > 0 { WAIT } else { 0 };
        end.min(rounds.saturating_mul(self.longest))
            .saturating_add(wait)
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
        // A problem has no more keys, and more threads would find nothing to do.
        let (keys, threads) = (shape.s_k.min(i32::MAX as usize), threads.min(1 << 12));
        let makespan = |splits: usize, len: usize| {
            let tasks = groups.saturating_mul(splits);
            let merge = if splits > 1 { rows * RESULT + WAIT } else { 0 };
            let task = (rows + KEY) * len as u64 + merge + TASK;
            (tasks.div_ceil(threads.max(1)) as u64).saturating_mul(task)
        };
        let by_length = Self::ByLength.ranges(keys).len();
        let len = Self::ByLength.range(0, keys).len();
        // A plan may leave all keys of its rows to a task.
        let default = makespan(by_length, len).min(makespan(1, keys));
        let mut best = (default, Self::ByLength);
        // More tasks than these cost more than they gain.
        let most = threads.saturating_mul(4).div_ceil(groups.max(1));
        for splits in 1..=most.min(keys / Self::MULTIPLE) {
            let len = keys.div_ceil(splits).next_multiple_of(Self::MULTIPLE);
            let time = makespan(keys.div_ceil(len), len);
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
    pub fn of(problem: &Problem<'_>, request: usize) -> Self {
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
    pub fn splits_apart(&self, all_keys: bool) -> usize {
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
    pub const fn row_groups(&self, panels: usize) -> usize {
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
        if self.groups == 0 {
            return Costs::default();
        }
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
    pub fn row_group<'a>(
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
            heads: 1,
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
    pub fn of(
        problem: &Problem<'_>,
        panels: usize,
        all_keys: bool,
    ) -> Result<(Self, Costs), Error> {
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
