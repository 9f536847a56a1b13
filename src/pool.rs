//! A plan on rayon's threads (feature `rayon`, which needs std).

extern crate std;

use core::borrow::BorrowMut;
use core::cmp::Reverse;
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::collections::BinaryHeap;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::vec::Vec;

use ::rayon::iter::{IntoParallelRefMutIterator, ParallelIterator};
use ::rayon::{Yield, current_num_threads, yield_now};

use crate::attend::Options;
use crate::epilogue::{Stats, Write, merge_panel, write_stats};
use crate::error::{Argument, Error};
use crate::group::{Group, Partial};
use crate::kernel::Backend;
use crate::plan::{Cut, Plan, combine, decode, decode_group, row_groups, run_group};
use crate::problem::{Output, Problem, in_range};
use crate::tile::{PANELS, Workspace};

/// [`decode`](crate::decode) on the current rayon pool, with the same result to the bit.
///
/// Each workspace belongs to one thread at a time. `partials` holds
/// [`partial_len`](Plan::partial_len) numbers for each of the plan's tasks.
///
/// If there are enough rows for all threads, each takes some of them with all their keys. Otherwise
/// threads take the plan's tasks, and then panels of rows whose partial results they merge.
///
/// Both need O in the order of requests, KV heads, positions and heads, the usual one with one KV head
/// or one position. For other strides threads take tasks, and one thread merges the results.
///
/// # Errors
/// What is wrong with the arguments, or [`Error::OutOfRange`] without a workspace. The outputs are
/// then untouched.
pub fn decode_on_rayon<W: BorrowMut<Workspace> + Send>(
    problem: &Problem<'_>,
    options: &Options,
    plan: &Plan,
    workspaces: &mut [W],
    partials: &mut [f32],
    mut output: Output<'_>,
) -> Result<(), Error> {
    in_range(Argument::Workspace, workspaces.len(), 1, usize::MAX)?;
    plan.check(problem)?;
    output.check(problem.q_dims(), &problem.shape)?;
    plan.check_partials(partials)?;
    let threads = workspaces.len().min(current_num_threads());
    if threads == 1 {
        return decode(problem, options, workspaces[0].borrow_mut(), output);
    }
    let mut stats = Vec::new();
    if let Some(panels) = panels_at_once(problem, plan, threads)
        && let Some(mut tasks) = row_tasks(problem, panels, &mut output, &mut stats)
    {
        // As `panels_at_once` has them.
        tasks.sort_by_key(|task| Reverse(task.cost));
        each(workspaces, tasks.into_iter(), |workspace, task| {
            let RowTask {
                cut, group, write, ..
            } = task;
            decode_group(&cut, &group, options, workspace.borrow_mut(), write);
        });
        write_all_stats(problem, panels, &stats, &mut output);
        return Ok(());
    }
    let results = partials.chunks_mut(plan.partial_len());
    let tasks = plan.groups(problem, 0..plan.tasks()).zip(results);
    each(workspaces, tasks, |workspace, (group, partial)| {
        run_group(&group, false, options, workspace.borrow_mut(), partial);
    });
    let Some(panels) = row_tasks(problem, 1, &mut output, &mut stats) else {
        return combine(problem, plan, partials, output);
    };
    let panels = panels.into_iter().zip(parts(problem, plan, partials));
    // Every backend adds to the same bits.
    let backend = Backend::detect();
    each(workspaces, panels, |_, (panel, parts)| {
        merge_panel(backend, &panel.group, 0, parts.into_iter(), panel.write);
    });
    write_all_stats(problem, 1, &stats, &mut output);
    Ok(())
}

/// Runs `work` on all items. Each thread with a workspace takes one item after the other, and waits for
/// the last items of the others.
fn each<W: Send, T: Send>(
    workspaces: &mut [W],
    items: impl Iterator<Item = T> + Send,
    work: impl Fn(&mut W, T) + Sync,
) {
    let queue = Mutex::new(items);
    let busy = AtomicUsize::new(0);
    let next = || {
        // Nothing panics while the lock is held.
        let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.next().map(|item| (item, Busy::new(&busy)))
    };
    workspaces.par_iter_mut().for_each(|workspace| {
        while let Some((item, _busy)) = next() {
            work(workspace, item);
        }
        // A thread without work falls asleep. It may take longer to wake for the next call than the
        // others take to complete this one.
        while busy.load(Ordering::Relaxed) > 0 {
            if !matches!(yield_now(), Some(Yield::Executed)) {
                thread::yield_now();
            }
        }
    });
}

/// Counts a thread at work while it lives.
struct Busy<'a>(&'a AtomicUsize);

impl<'a> Busy<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Cost of a key beside its rows, in rows: its row is read and its values are packed.
const KEY: u64 = 4;
/// Cost of merging a row's results over one KV split, in products of a row and a key.
const RESULT: u64 = 32;
/// Cost of another call of the threads, in products of a row and a key.
const CALL: u64 = 1 << 13;

/// Panels of a group that a thread computes at once with all keys, if that takes no longer than the
/// plan's tasks.
fn panels_at_once(problem: &Problem<'_>, plan: &Plan, threads: usize) -> Option<usize> {
    let ends = [PANELS, PANELS.div_ceil(2), 1].map(|panels| {
        let costs = row_groups(problem, panels).map(|(cut, group)| cost_of_rows(&cut, &group));
        (makespan(longest_first(costs).into_iter(), threads), panels)
    });
    let tasks = row_groups(problem, plan.panels()).flat_map(|(cut, group)| {
        let ranges = cut.splits();
        ranges.map(move |keys| cost(&group, &keys) + group.rows.len() as u64 * RESULT)
    });
    let (end, panels) = ends.into_iter().min_by_key(|&(end, _)| end)?;
    (end <= makespan(tasks, threads) + CALL).then_some(panels)
}

/// Cost of a group's rows and some keys, in products of a row and a key.
fn cost(group: &Group<'_>, keys: &Range<usize>) -> u64 {
    (group.rows.len() as u64 + KEY) * group.visible_of(keys) as u64
}

/// Cost of a group's rows and all keys, and of merging the results over them.
fn cost_of_rows(cut: &Cut, group: &Group<'_>) -> u64 {
    let merges = cut.splits().len() as u64 - 1;
    cost(group, &cut.span()) + merges * group.rows.len() as u64 * RESULT
}

/// Where rows see fewer keys than others, threads would wait for the longest tasks.
fn longest_first(costs: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut costs: Vec<_> = costs.collect();
    costs.sort_unstable_by_key(|&cost| Reverse(cost));
    costs
}

/// When the last thread is done. A thread takes the next item when it has completed one.
fn makespan(costs: impl Iterator<Item = u64>, threads: usize) -> u64 {
    let mut ends: BinaryHeap<_> = (0..threads).map(|_| Reverse(0)).collect();
    let mut last = 0;
    for cost in costs {
        if let Some(mut end) = ends.peek_mut() {
            end.0 += cost;
            last = last.max(end.0);
        }
    }
    last
}

/// Panels of a group with all their keys, and where their results go.
struct RowTask<'p, 'o> {
    cut: Cut,
    group: Group<'p>,
    write: Write<'o>,
    cost: u64,
}

/// All rows in tasks of at most `panels` panels, in the order of the output; `None` if O has another
/// order. `stats` is divided among them.
fn row_tasks<'p, 'o>(
    problem: &'p Problem<'_>,
    panels: usize,
    output: &'o mut Output<'_>,
    stats: &'o mut Vec<Stats>,
) -> Option<Vec<RowTask<'p, 'o>>> {
    let groups: Vec<_> = row_groups(problem, panels).collect();
    let rows = groups.iter().map(|(_, group)| group.rows.len()).sum();
    stats.resize(rows, Stats::default());
    let (strides, format) = (output.o_strides, output.lse_format);
    let (mut o, mut stats, mut end) = (output.o.reborrow(), stats.as_mut_slice(), 0);
    let mut tasks = Vec::with_capacity(groups.len());
    for (cut, group) in groups {
        let from = end;
        for r in 0..group.rows.len() {
            let (j, h) = group.position(r);
            let start = group.start(j, h, strides);
            if start < end {
                return None;
            }
            end = start + problem.shape.d_v;
        }
        let own;
        [own, o] = o.split_at(end - from);
        let write = Write {
            o: own,
            from,
            strides,
            stats: stats.split_off_mut(..group.rows.len())?,
            format,
        };
        tasks.push(RowTask {
            cost: cost_of_rows(&cut, &group),
            cut,
            group,
            write,
        });
    }
    Some(tasks)
}

/// Writes the statistics of all [`row_tasks`].
fn write_all_stats(
    problem: &Problem<'_>,
    panels: usize,
    mut stats: &[Stats],
    output: &mut Output<'_>,
) {
    for (_, group) in row_groups(problem, panels) {
        let own;
        (own, stats) = stats.split_at(group.rows.len());
        write_stats(&group, own, output);
    }
}

/// The partial results of each panel, one for each KV split.
fn parts<'o>(
    problem: &Problem<'_>,
    plan: &Plan,
    partials: &'o mut [f32],
) -> impl Iterator<Item = Vec<Partial<'o>>> {
    let d_v = problem.shape.d_v;
    let mut partials = partials.chunks_mut(plan.partial_len());
    row_groups(problem, plan.panels()).flat_map(move |(cut, group)| {
        let own = partials.by_ref().take(cut.splits().len());
        let mut own: Vec<_> = own
            .map(|memory| Partial::view(memory, d_v).panels())
            .collect();
        (0..group.panels()).map(move |_| own.iter_mut().filter_map(Iterator::next).collect())
    })
}

#[cfg(test)]
mod tests {
    use std::vec;

    use half::bf16;

    use super::*;
    use crate::problem::Elements;
    use crate::shape::ProblemShape;
    use crate::tile::PANEL_ROWS;

    fn shape(b: usize, s_k: usize, h_q: usize) -> ProblemShape {
        ProblemShape {
            b,
            s_q: 1,
            s_k,
            h_q,
            h_kv: 1,
            d_qk: 64,
            d_v: 64,
        }
    }

    /// Calls `check` with a problem of zeros.
    fn with_zeros<T>(shape: ProblemShape, check: impl FnOnce(&Problem<'_>) -> T) -> T {
        let q = vec![bf16::ZERO; shape.b * shape.h_q * 64];
        let kv = vec![bf16::ZERO; shape.b * shape.s_k * 64];
        check(&Problem::dense(shape, &q, &kv, 1.0))
    }

    /// Results don't show how rows were divided: they are the same to the bit.
    #[test]
    fn the_output_is_cut_where_it_has_the_order() {
        let heads = PANEL_ROWS + 6;
        let tasks = |strides, panels| {
            with_zeros(shape(2, 3, heads), |problem| {
                let (mut o, mut lse) = (vec![0.0_f32; 2 * heads * 64], vec![0.0; 2 * heads]);
                let mut output = Output {
                    o_strides: strides,
                    ..Output::dense(problem.shape, Elements::F32(&mut o), &mut lse)
                };
                let mut stats = Vec::new();
                let tasks = row_tasks(problem, panels, &mut output, &mut stats)?;
                let part = |task: &RowTask<'_, '_>| (task.write.from, task.write.stats.len());
                Some(tasks.iter().map(part).collect::<Vec<_>>())
            })
        };
        let dense = [heads * 64, heads * 64, 64];
        let starts = [0, PANEL_ROWS, heads, heads + PANEL_ROWS].map(|row| row * 64);
        let halves = starts.into_iter().zip([PANEL_ROWS, 6, PANEL_ROWS, 6]);
        let halves: Vec<_> = halves.collect();
        let all = vec![(0, heads), (heads * 64, heads)];
        assert_eq!(tasks(dense, 1).as_ref(), Some(&halves));
        let want = if PANELS == 1 { &halves } else { &all };
        assert_eq!(tasks(dense, PANELS).as_ref(), Some(want));
        assert_eq!(tasks([64, 64, 2 * 64], 1), None);
    }

    #[test]
    fn threads_take_rows_if_there_are_enough() {
        let panels = |b, s_k, h_q, threads| {
            with_zeros(shape(b, s_k, h_q), |problem| {
                panels_at_once(problem, &Plan::new(problem).unwrap(), threads)
            })
        };
        let rows = 2 * PANEL_ROWS;
        assert_eq!(panels(1, 4096, rows, 2), Some(1));
        assert_eq!(panels(2, 4096, rows, 2), Some(PANELS));
        // One task for each thread, of as many panels as possible.
        assert_eq!(panels(1, 4096, 2 * rows, 2), Some(PANELS.div_ceil(2)));
        assert_eq!(panels(1, 16384, rows, 3), None);
        assert_eq!(panels(1, 16384, PANEL_ROWS.min(16), 2), None);
        // Not worth another call.
        assert_eq!(panels(1, 1024, 1, 2), Some(PANELS));
        assert_eq!(panels(0, 0, 1, 2), Some(PANELS));
    }

    #[test]
    fn the_thread_that_is_free_takes_the_next() {
        let end = |threads| makespan([5, 1, 1, 4, 2].into_iter(), threads);
        assert_eq!([1, 2, 3, 9].map(end), [13, 7, 5, 5]);
        assert_eq!(makespan([].into_iter(), 2), 0);
    }
}
