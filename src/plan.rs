//! How a call is cut into independent tasks.
//!
//! What a request's bits depend on is cut by the shape, by its own lengths and by [`Split`] alone: groups of rows, and KV
//! splits. What of it is a task is a matter of the number of threads.

use core::ops::Range;

use crate::dims::check_dims;
use crate::error::{Argument, Error};
use crate::group::{Group, Partial};
use crate::kernel::strip_rows;
use crate::problem::Problem;
use crate::schedule::Split;
use crate::shape::ProblemShape;
use crate::tile::{GROUP_ROWS, PANEL_ROWS, PANELS, strips};

mod cut;
mod lengths;

use cut::Tasks;
pub use cut::{Cut, row_groups};
use lengths::{COUNTS, LISTS, List, PlannedLengths};

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

impl Plan {
    /// Numbers that a plan takes as such ([`to_words`](Self::to_words)).
    pub const WORDS: usize = SIZES.len() + COUNTS.len() + 2 * LISTS.len() + 4;

    /// Threads that [`new`](Self::new) plans for.
    pub const THREADS: usize = 16;

    /// Plans a problem for some threads: [`THREADS`](Self::THREADS).
    ///
    /// # Errors
    /// Whatever is wrong with the problem.
    pub fn new(problem: &Problem<'_>) -> Result<Self, Error> {
        Self::for_threads(problem, Self::THREADS)
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

    /// FP32 numbers that hold the partial results of any plan for calls with these heads and at most these `b`, `s_q`, `s_k`
    /// and `d_v`: any lengths, ragged or sparse (with `s_k` indices at most), for any number of threads. For hosts that fix
    /// their memory before lengths are known.
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

    /// How many merges there are: of each row with partial results one for each 64 columns of O. They have the order of
    /// tasks; within a task's rows that of eight rows, columns, rows.
    #[must_use]
    pub const fn merges(&self) -> usize {
        self.cut.combined.saturating_mul(strips(self.shape.d_v))
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
