//! A plan on rayon's threads (feature `rayon`, which needs std).

extern crate std;

use core::borrow::BorrowMut;
use core::cmp::Reverse;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::collections::BinaryHeap;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::vec::Vec;

use ::rayon::iter::{IntoParallelRefMutIterator, ParallelIterator};
use ::rayon::{Yield, current_num_threads, yield_now};

use crate::attend::Options;
use crate::epilogue::{Write, merge_panel, write_lse};
use crate::error::{Argument, Error};
use crate::group::{Group, Partial};
use crate::kernel::Backend;
use crate::plan::{Cut, Plan, combine, decode, decode_group, pieces, run_group};
use crate::problem::{Output, Problem, in_range};
use crate::tile::{PANELS, Workspace};

/// [`decode`](crate::decode) on the current rayon pool, with the same result to the
/// bit: each workspace belongs to one thread at a time, and `partials` holds
/// [`partial_len`](Plan::partial_len) numbers for each of the plan's tasks.
///
/// Where there are rows enough for all threads, each takes some of them with all their keys. Where there
/// are not, they take the plan's tasks, and then panels of rows to put results together. Both need O to lie
/// in the order of requests, KV heads, positions and heads, which with one KV head or one position is the usual one;
/// otherwise they take tasks, and one thread puts the results together.
///
/// # Errors
/// Whatever is wrong with the arguments, or no workspace; the outputs are then
/// untouched.
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
    let mut lse = Vec::new();
    if let Some(panels) = panels_at_once(problem, plan, threads)
        && let Some(shares) = shares(problem, panels, &mut output, &mut lse)
    {
        each(workspaces, shares.into_iter(), |workspace, share| {
            let Share { cut, group, write } = share;
            decode_group(&cut, &group, options, workspace.borrow_mut(), write)
        })?;
        write_all_lse(problem, panels, &lse, &mut output);
        return Ok(());
    }
    let results = partials.chunks_mut(plan.partial_len());
    let tasks = plan.groups(problem, 0..plan.tasks()).zip(results);
    each(workspaces, tasks, |workspace, (group, partial)| {
        run_group(&group, false, options, workspace.borrow_mut(), partial)
    })?;
    let Some(panels) = shares(problem, 1, &mut output, &mut lse) else {
        return combine(problem, plan, partials, output);
    };
    let panels = panels.into_iter().zip(parts(problem, plan, partials));
    // Every backend adds to the same bits.
    let backend = Backend::detect();
    each(workspaces, panels, |_, (panel, parts)| {
        merge_panel(backend, &panel.group, 0, parts.into_iter(), panel.write);
        Ok(())
    })?;
    write_all_lse(problem, 1, &lse, &mut output);
    Ok(())
}

/// Has each thread that gets a workspace work on one item after the other, and wait for the others' last.
fn each<W: Send, T: Send>(
    workspaces: &mut [W],
    items: impl Iterator<Item = T> + Send,
    work: impl Fn(&mut W, T) -> Result<(), Error> + Sync,
) -> Result<(), Error> {
    let queue = Mutex::new(items);
    let busy = AtomicUsize::new(0);
    let next = || {
        // Nothing panics while it is held.
        let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.next().map(|item| (item, Busy::new(&busy)))
    };
    workspaces.par_iter_mut().try_for_each(|workspace| {
        while let Some((item, _busy)) = next() {
            work(workspace, item)?;
        }
        // A thread without work falls asleep, and may take longer to wake, when the next call comes, than the
        // others take to end this one.
        while busy.load(Ordering::Relaxed) > 0 {
            if !matches!(yield_now(), Some(Yield::Executed)) {
                thread::yield_now();
            }
        }
        Ok(())
    })
}

/// While it lives, somebody works.
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

/// What a key costs beside its rows, measured in rows: it is read and its values are packed.
const KEY: u64 = 4;
/// What it costs to put a row's results over one range together, in products of a row and a key.
const RESULT: u64 = 32;
/// What it costs to call the threads once more.
const CALL: u64 = 1 << 13;

/// How many panels of a group a thread does at once, with all keys, if that ends before the plan's tasks
/// would.
fn panels_at_once(problem: &Problem<'_>, plan: &Plan, threads: usize) -> Option<usize> {
    let cost = |rows: usize, keys: usize| (rows as u64 + KEY) * keys as u64;
    let ends = [PANELS, PANELS.div_ceil(2), 1].map(|panels| {
        let pieces = pieces(problem, panels).map(|(cut, group)| {
            let keys = cut.splits().map(|keys| keys.len()).sum();
            cost(group.rows.len(), keys)
        });
        (makespan(pieces, threads), panels)
    });
    let tasks = pieces(problem, plan.panels()).flat_map(|(cut, group)| {
        let rows = group.rows.len();
        let ranges = cut.splits();
        ranges.map(move |keys| cost(rows, keys.len()) + rows as u64 * RESULT)
    });
    let (end, panels) = ends.into_iter().min_by_key(|&(end, _)| end)?;
    (end <= makespan(tasks, threads) + CALL).then_some(panels)
}

/// When the last of the threads is done, each of which takes the next piece of work when it is
/// through with one.
fn makespan(pieces: impl Iterator<Item = u64>, threads: usize) -> u64 {
    let mut ends: BinaryHeap<_> = (0..threads).map(|_| Reverse(0)).collect();
    let mut last = 0;
    for piece in pieces {
        if let Some(mut end) = ends.peek_mut() {
            end.0 += piece;
            last = last.max(end.0);
        }
    }
    last
}

/// Some panels of a group, and where their results go.
struct Share<'p, 'o> {
    cut: Cut,
    group: Group<'p>,
    write: Write<'o>,
}

/// All groups in pieces of so many panels, in the order of the output; `None` if O doesn't have it. They
/// share `lse`.
fn shares<'p, 'o>(
    problem: &'p Problem<'_>,
    panels: usize,
    output: &'o mut Output<'_>,
    lse: &'o mut Vec<f32>,
) -> Option<Vec<Share<'p, 'o>>> {
    let groups: Vec<_> = pieces(problem, panels).collect();
    lse.resize(groups.iter().map(|(_, group)| group.rows.len()).sum(), 0.0);
    let (strides, format) = (output.o_strides, output.lse_format);
    let (mut o, mut lse, mut end) = (output.o.reborrow(), lse.as_mut_slice(), 0);
    let mut shares = Vec::with_capacity(groups.len());
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
            lse: lse.split_off_mut(..group.rows.len())?,
            format,
        };
        shares.push(Share { cut, group, write });
    }
    Some(shares)
}

/// Writes lse of all [`shares`].
fn write_all_lse(problem: &Problem<'_>, panels: usize, mut lse: &[f32], output: &mut Output<'_>) {
    for (_, group) in pieces(problem, panels) {
        let own;
        (own, lse) = lse.split_at(group.rows.len());
        write_lse(&group, own, output);
    }
}

/// The results of each panel over one range of keys after the other.
fn parts<'o>(
    problem: &Problem<'_>,
    plan: &Plan,
    partials: &'o mut [f32],
) -> impl Iterator<Item = Vec<Partial<'o>>> {
    let d_v = problem.shape.d_v;
    let mut partials = partials.chunks_mut(plan.partial_len());
    pieces(problem, plan.panels()).flat_map(move |(cut, group)| {
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
    use crate::shape::Shape;
    use crate::tile::PANEL_ROWS;

    fn shape(b: usize, s_k: usize, h_q: usize) -> Shape {
        Shape {
            b,
            s_q: 1,
            s_k,
            h_q,
            h_kv: 1,
            d_qk: 64,
            d_v: 64,
        }
    }

    /// What is asked about a problem of zeros.
    fn ask<T>(shape: Shape, question: impl FnOnce(&Problem<'_>) -> T) -> T {
        let q = vec![bf16::ZERO; shape.b * shape.h_q * 64];
        let kv = vec![bf16::ZERO; shape.b * shape.s_k * 64];
        question(&Problem::dense(shape, &q, &kv, 1.0))
    }

    /// The tests of results can't tell how they were shared: they are the same.
    #[test]
    fn the_output_is_cut_where_it_has_the_order() {
        let heads = PANEL_ROWS + 6;
        let pieces = |strides, panels| {
            ask(shape(2, 3, heads), |problem| {
                let (mut o, mut lse) = (vec![0.0_f32; 2 * heads * 64], vec![0.0; 2 * heads]);
                let mut output = Output {
                    o_strides: strides,
                    ..Output::dense(problem.shape, Elements::F32(&mut o), &mut lse)
                };
                let mut lse = Vec::new();
                let shares = shares(problem, panels, &mut output, &mut lse)?;
                let shared = |share: &Share<'_, '_>| (share.write.from, share.write.lse.len());
                Some(shares.iter().map(shared).collect::<Vec<_>>())
            })
        };
        let dense = [heads * 64, heads * 64, 64];
        let starts = [0, PANEL_ROWS, heads, heads + PANEL_ROWS].map(|row| row * 64);
        let halves = starts.into_iter().zip([PANEL_ROWS, 6, PANEL_ROWS, 6]);
        let halves: Vec<_> = halves.collect();
        let wholes = vec![(0, heads), (heads * 64, heads)];
        assert_eq!(pieces(dense, 1).as_ref(), Some(&halves));
        let want = if PANELS == 1 { &halves } else { &wholes };
        assert_eq!(pieces(dense, PANELS).as_ref(), Some(want));
        assert_eq!(pieces([64, 64, 2 * 64], 1), None);
    }

    #[test]
    fn threads_take_rows_if_there_are_enough() {
        let panels = |b, s_k, h_q, threads| {
            ask(shape(b, s_k, h_q), |problem| {
                panels_at_once(problem, &Plan::new(problem).unwrap(), threads)
            })
        };
        let rows = 2 * PANEL_ROWS;
        assert_eq!(panels(1, 4096, rows, 2), Some(1));
        assert_eq!(panels(2, 4096, rows, 2), Some(PANELS));
        // One piece for each thread, of the most panels that can be.
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
