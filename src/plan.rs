//! A call cut into independent tasks, and their results merged.
//!
//! How a request's rows and keys are cut depends on the shape, on its own lengths and on [`Split`] alone, and results are
//! always merged in the order of the keys. So its bits don't depend on its neighbours or on how many
//! threads ran the tasks.

use core::mem;
use core::ops::Range;

use crate::attend::{Options, Task};
use crate::dims::check_dims;
use crate::epilogue::{Stats, Write, merge_panel, write_stats};
use crate::error::{Argument, Error};
use crate::group::{Group, Partial};
use crate::kernel::{Backend, strip_rows};
use crate::problem::{Output, Problem, in_range};
use crate::schedule::Split;
use crate::shape::ProblemShape;
use crate::tile::{BLOCK_KEYS, FP32_GROUP_ROWS, GROUP_ROWS, PANEL_ROWS, PANELS, Workspace};

/// With fewer tasks than these, groups are cut to two panels, and then to one: threads shouldn't go without, and panels one by one
/// compute nearly as fast (`docs/adr/0007`).
const MIN_TASKS: usize = 16;

/// The tasks of a problem: requests x KV heads x row groups x KV splits, in that
/// order.
///
/// A row group has up to 256 rows, or 128 or 64 where there would be fewer than 16 tasks.
///
/// It holds numbers only, is computed from shape and lengths, and serves every
/// problem that has the same ones, from layer to layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    shape: ProblemShape,
    lengths: PlannedLengths,
    tasks: usize,
    /// Rows that the largest row group's result has room for: none has more panels.
    rows: usize,
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

    /// The keys that any row may see.
    #[cfg(feature = "rayon")]
    pub fn span(&self) -> Range<usize> {
        self.span.clone()
    }

    /// The ranges that the keys are cut into.
    pub fn splits(&self) -> impl ExactSizeIterator<Item = Range<usize>> + use<> {
        let start = self.span.start;
        let ranges = self.split.ranges(self.span.len());
        ranges.map(move |keys| start + keys.start..start + keys.end)
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

    /// Tasks of one KV head; the largest number if there are more than can be counted.
    fn tasks(&self, panels: usize) -> usize {
        self.row_groups(panels).saturating_mul(self.splits().len())
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

impl Plan {
    /// Numbers that a plan takes as such ([`to_words`](Self::to_words)).
    pub const WORDS: usize = SIZES.len() + COUNTS.len() + 2 * LISTS.len() + 2;

    /// Plans a problem.
    ///
    /// # Errors
    /// Whatever is wrong with the problem.
    pub fn new(problem: &Problem<'_>) -> Result<Self, Error> {
        problem.check()?;
        Self::of(problem)
    }

    /// Plans a problem whose sizes were checked.
    fn of(problem: &Problem<'_>) -> Result<Self, Error> {
        let shape = problem.shape;
        check_dims(shape.d_qk, shape.d_v)?;
        shape.s_q.checked_mul(shape.h_q).ok_or(Error::Overflow {
            argument: Argument::Q,
            dimension: 1,
        })?;
        let lengths = PlannedLengths::of(problem);
        let mut panels = PANELS;
        loop {
            let (tasks, rows) = Self::cut(problem, panels)?;
            if tasks >= MIN_TASKS || panels == 1 {
                return Ok(Self {
                    shape,
                    lengths,
                    tasks,
                    // Room for a row where there is none, so that a length is never 0.
                    rows: rows.max(1),
                });
            }
            panels = panels.div_ceil(2);
        }
    }

    /// How many tasks there are with row groups of `panels` panels, and how many rows the largest one's result has room for.
    fn cut(problem: &Problem<'_>, panels: usize) -> Result<(usize, usize), Error> {
        let shape = problem.shape;
        // Not one by one where they are alike, as b and s_q may be huge where strides are 0.
        let alike = problem.has_equal_requests();
        let (mut tasks, mut rows) = (0_usize, 0);
        let requests = 0..if alike { shape.b.min(1) } else { shape.b };
        for (sequence, count) in requests.flat_map(|request| problem.runs(request)) {
            let cut = Cut::of(problem, sequence);
            // Not the largest number itself, which may stand for more.
            let left = usize::MAX - 1 - tasks;
            let each = cut.tasks(panels);
            in_range(Argument::HKv, shape.h_kv, 0, left / each.max(1))?;
            let each = each * shape.h_kv;
            in_range(Argument::SQ, count, 0, left / each.max(1))?;
            tasks += each * count;
            let planned = cut.group_rows.min(cut.rows);
            rows = rows.max(strip_rows(planned.min(panels * PANEL_ROWS), planned));
        }
        if alike {
            in_range(Argument::B, shape.b, 0, usize::MAX / tasks.max(1))?;
            tasks *= shape.b;
        }
        Ok((tasks, rows))
    }

    /// Panels of a row group.
    pub(crate) const fn panels(&self) -> usize {
        self.rows.div_ceil(PANEL_ROWS)
    }

    /// How many tasks there are.
    #[must_use]
    pub const fn tasks(&self) -> usize {
        self.tasks
    }

    /// The parts of a problem that neighbouring tasks compute.
    pub(crate) fn groups<'a>(
        &self,
        problem: &'a Problem<'a>,
        tasks: Range<usize>,
    ) -> impl Iterator<Item = Group<'a>> + use<'a> {
        let (heads, panels) = (self.shape.h_kv, self.panels());
        let (first, rest) = if tasks.is_empty() {
            (usize::MAX, 0)
        } else {
            self.locate(problem, tasks.start)
        };
        let sequences = problem.sequences_from(first).flat_map(move |sequence| {
            let cut = Cut::of(problem, sequence);
            let from = if sequence == first { rest } else { 0 };
            let each = cut.tasks(panels);
            (from..heads * each).map(move |task| {
                let (head, rest) = (task / each, task % each);
                let splits = cut.splits().len();
                cut.row_group(
                    problem,
                    [sequence, head, rest / splits],
                    panels,
                    rest % splits,
                )
            })
        });
        sequences.take(tasks.len())
    }

    /// The sequence that has a task, and which of its tasks that is.
    fn locate(&self, problem: &Problem<'_>, task: usize) -> (usize, usize) {
        let each = |sequence| self.shape.h_kv * Cut::of(problem, sequence).tasks(self.panels());
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
        Partial::len(self.rows, self.shape.d_v)
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
        let cut = [self.tasks as u64, self.rows as u64];
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
        let cut = [word(), word()];
        let [b, s_q, s_k, h_q, h_kv, d_qk, d_v] = all_sizes(sizes)?;
        let [tasks, rows] = all_sizes(cut)?;
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
            tasks,
            rows,
        };
        check_dims(d_qk, d_v).ok()?;
        let absent = |list: &List| list.hash == 0 && list.total != 0;
        let [.., split] = plan.lengths.counts;
        let possible = (1..=GROUP_ROWS).contains(&rows)
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

    fn matches(&self, problem: &Problem<'_>) -> Result<(), Error> {
        let given = Self::of(problem)?;
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
        let cut = [self.tasks, self.rows].map(|value| (None, Some(value as u64), 0));
        sizes.chain(counts).chain(lists).chain(cut)
    }

    /// # Errors
    /// [`Error::TooShort`] unless there is a result's room for every task.
    pub(crate) fn check_partials(&self, partials: &[f32]) -> Result<(), Error> {
        let needed = self.tasks.saturating_mul(self.partial_len());
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

/// Attends every query to its keys, on one thread, of whose stack it takes up to 64 KiB.
///
/// Results are those of the default floating-point environment, which Rust assumes everywhere: rounding to the nearest,
/// and subnormals as they are.
///
/// # Errors
/// Whatever is wrong with the arguments; the outputs are then untouched.
pub fn decode(
    problem: &Problem<'_>,
    options: &Options,
    workspace: &mut Workspace,
    mut output: Output<'_>,
) -> Result<(), Error> {
    Plan::new(problem)?;
    output.check(problem.q_dims(), &problem.shape)?;
    for (cut, group) in row_groups(problem, PANELS) {
        let mut stats = [Stats::default(); GROUP_ROWS];
        let write = Write::to(&mut output, &mut stats);
        decode_group(&cut, &group, options, workspace, write);
        write_stats(&group, &stats, &mut output);
    }
    Ok(())
}

/// Attends the rows of `group` to all keys of its request, one range of the cut after the other. All
/// was checked.
pub fn decode_group(
    cut: &Cut,
    group: &Group<'_>,
    options: &Options,
    workspace: &mut Workspace,
    write: Write<'_>,
) {
    let d_v = group.problem.shape.d_v;
    let len = Partial::len(group.room(), d_v);
    let Workspace {
        tiles,
        kv,
        partials,
    } = workspace;
    let [mut part, mut earlier] = partials.each_mut().map(|p| &mut p[..len]);
    let mut write = Some(write);
    let last = cut.splits().len() - 1;
    let mut packed = false;
    for (split, keys) in cut.splits().enumerate() {
        let prefetch_end = if split == last {
            keys.end
        } else {
            group.problem.len(group.request)
        };
        let group = &Group {
            keys,
            prefetch_end,
            ..group.clone()
        };
        options.backend_of(group).with(Task {
            group,
            options,
            tiles,
            kv,
            packed,
            partial: Partial::view(part, d_v),
            earlier: (split > 0).then(|| Partial::view(earlier, d_v)),
            write: write.take_if(|_| split == last),
        });
        packed |= group.sees_any();
        mem::swap(&mut part, &mut earlier);
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

/// Computes task `task` of the plan into its `partial` of
/// [`partial_len`](Plan::partial_len) numbers.
///
/// Tasks are independent: any thread may run any of them, in any order.
///
/// # Errors
/// Whatever is wrong with the arguments, a plan made for another shape, or
/// `task` out of range.
pub fn run_task(
    problem: &Problem<'_>,
    options: &Options,
    plan: &Plan,
    task: usize,
    workspace: &mut Workspace,
    partial: &mut [f32],
) -> Result<(), Error> {
    problem.check_sizes()?;
    plan.matches(problem)?;
    // Without a task, the range is the empty 1..=0.
    let none = usize::from(plan.tasks() == 0);
    in_range(Argument::Task, task, none, plan.tasks().saturating_sub(1))?;
    run_checked(problem, options, plan, task..task + 1, workspace, partial)
}

/// Computes some neighbouring tasks of the plan, as [`run_task`] does each, into `partials`:
/// [`partial_len`](Plan::partial_len) numbers for each, one after the other.
///
/// The arguments are checked and the first task is looked for once, each in time proportional to `b`: that counts where tasks
/// are small and requests many.
///
/// # Errors
/// Whatever is wrong with the arguments, a plan made for another problem, or `tasks` out of
/// range; `partials` is then untouched.
pub fn run_tasks(
    problem: &Problem<'_>,
    options: &Options,
    plan: &Plan,
    tasks: Range<usize>,
    workspace: &mut Workspace,
    partials: &mut [f32],
) -> Result<(), Error> {
    problem.check_sizes()?;
    plan.matches(problem)?;
    in_range(Argument::Task, tasks.end, 0, plan.tasks())?;
    in_range(Argument::Task, tasks.start, 0, tasks.end)?;
    run_checked(problem, options, plan, tasks, workspace, partials)
}

/// Tasks of a plan that matches the problem, whose sizes were checked.
fn run_checked(
    problem: &Problem<'_>,
    options: &Options,
    plan: &Plan,
    tasks: Range<usize>,
    workspace: &mut Workspace,
    partials: &mut [f32],
) -> Result<(), Error> {
    let (len, each) = (partials.len(), plan.partial_len());
    let needed = tasks.len().saturating_mul(each);
    let partials = partials.get_mut(..needed).ok_or(Error::TooShort {
        argument: Argument::Partials,
        len,
        needed,
    })?;
    // Before anything is written. Neighbours often are of the same request.
    let mut checked = None;
    for group in plan.groups(problem, tasks.clone()) {
        if checked != Some(group.request) {
            problem.check_pages(group.request)?;
            checked = Some(group.request);
        }
    }
    // The last whose queries were packed.
    let mut before: Option<Group<'_>> = None;
    for (group, partial) in plan.groups(problem, tasks).zip(partials.chunks_mut(each)) {
        let packed = (before.as_ref()).is_some_and(|before| before.same_rows(&group));
        run_group(&group, packed, options, workspace, partial);
        if group.sees_any() {
            before = Some(group);
        }
    }
    Ok(())
}

/// Computes a task, of which all was checked; the workspace may hold the `packed` queries of its rows.
pub fn run_group(
    group: &Group<'_>,
    packed: bool,
    options: &Options,
    workspace: &mut Workspace,
    partial: &mut [f32],
) {
    options.backend_of(group).with(Task {
        group,
        options,
        tiles: &mut workspace.tiles,
        kv: &mut workspace.kv,
        packed,
        partial: Partial::view(partial, group.problem.shape.d_v),
        earlier: None,
        write: None,
    });
}

/// Merges the results of all tasks, in the order of the keys, and writes
/// the outputs.
///
/// `partials` holds [`partial_len`](Plan::partial_len) numbers for each task, one
/// after the other; it is used up.
///
/// # Errors
/// Whatever is wrong with the arguments; the outputs are then untouched.
pub fn combine(
    problem: &Problem<'_>,
    plan: &Plan,
    mut partials: &mut [f32],
    mut output: Output<'_>,
) -> Result<(), Error> {
    plan.check(problem)?;
    output.check(problem.q_dims(), &problem.shape)?;
    plan.check_partials(partials)?;
    let (d_v, len) = (problem.shape.d_v, plan.partial_len());
    // Every backend adds to the same bits.
    let backend = Backend::detect();
    for (cut, group) in row_groups(problem, plan.panels()) {
        let own = partials.split_off_mut(..cut.splits().len() * len);
        let own = own.unwrap_or_default();
        let mut stats = [Stats::default(); GROUP_ROWS];
        for panel in 0..group.panels() {
            let parts = own.chunks_mut(len);
            let parts = parts.map(|memory| Partial::view(memory, d_v).panel(panel));
            let write = Write::to(&mut output, &mut stats);
            merge_panel(backend, &group, panel, parts, write);
        }
        write_stats(&group, &stats, &mut output);
    }
    Ok(())
}
