//! A plan on the threads of any pool.

use core::borrow::BorrowMut;
use core::hint;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::attend::{JoinsHeads, Options};
use crate::error::{Argument, Error};
use crate::group::Group;
use crate::kernel::shared::Chunks;
use crate::plan::Plan;
use crate::problem::{Output, Problem, SharedOutput, in_range};
use crate::run::{Thread, combine_checked, decode};
use crate::tile::Workspace;

/// Threads as somebody has them: a pool of an engine, a runtime's, OpenMP's.
pub trait ParallelFor {
    /// Calls `body` with each number below `n`, once, on any threads in any order, and returns when all calls have.
    fn parallel_for(&self, n: usize, body: &(dyn Fn(usize) + Sync));
}

/// [`decode`](crate::decode) on as many threads of a pool as there are workspaces, with the same result to the bit.
///
/// `plan` had better be [`for`](Plan::for_threads) this number. `partials` holds its [`partials_len`](Plan::partials_len) numbers.
/// The pool is called once, or not at all where one thread has all there is to do. What it leaves undone is done afterwards.
///
/// # Errors
/// What is wrong with the arguments, or [`Error::OutOfRange`] without a workspace. The outputs are
/// then untouched.
///
/// # Panics
/// If the pool swallowed a panic of `body`.
pub fn decode_on<W: BorrowMut<Workspace> + Send + Sync>(
    pool: &(impl ParallelFor + ?Sized),
    problem: &Problem<'_>,
    options: &Options,
    plan: &Plan,
    workspaces: &mut [W],
    partials: &mut [f32],
    output: Output<'_>,
) -> Result<(), Error> {
    in_range(Argument::Workspace, workspaces.len(), 1, usize::MAX)?;
    plan.check(problem)?;
    output.check(problem.q_dims(), &problem.shape)?;
    plan.check_partials(partials)?;
    let threads = workspaces.len().min(plan.tasks());
    if threads <= 1 {
        return decode(problem, options, workspaces[0].borrow_mut(), output);
    }
    let call = Call {
        problem,
        options,
        plan,
        workspaces: Chunks::new(&mut workspaces[..threads], 1),
        partials: Chunks::new(&mut partials[..plan.partials_len()], plan.partial_len()),
        output: output.into(),
        merged: AtomicUsize::new(0),
        each: plan.merges().div_ceil(threads),
        tasks_each: tasks_each(problem, options, plan, threads),
        wait: plan
            .groups(problem, 0..1)
            .map(|(_, group)| wait(&group))
            .sum(),
    };
    pool.parallel_for(threads, &|_| call.run());
    // What a pool that calls less than it should has left.
    call.run();
    assert!(call.partials.all().is_some(), "a task panicked");
    Ok(())
}

/// How many tasks a thread takes at once: some KV heads of a request, if it attends them in turn, and if no thread then waits long
/// for the others.
fn tasks_each(problem: &Problem<'_>, options: &Options, plan: &Plan, threads: usize) -> usize {
    /// Times that a thread takes tasks, about, where requests are as long as the longest.
    const TIMES: usize = 8;
    let h_kv = problem.shape.h_kv;
    let mut groups = plan.groups(problem, 0..1);
    let Some((_, group)) = groups
        .next()
        .filter(|_| h_kv > 1 && plan.partial_tasks() == 0)
    else {
        return 1;
    };
    if !options.backend_of(&group).with(JoinsHeads(&group)) {
        return 1;
    }
    // Tasks as long as the longest that take as long as all.
    let long = if problem.has_equal_requests() {
        plan.tasks()
    } else {
        let lens = problem
            .sequences_from(0)
            .map(|sequence| problem.len(sequence));
        let (all, most) = lens.fold((0_usize, 1), |(all, most), len| {
            (all.saturating_add(len), len.max(most))
        });
        (all / most).saturating_mul(h_kv)
    };
    let most = (long / threads.saturating_mul(TIMES)).clamp(1, h_kv);
    let divisor = (1..=most).rev().find(|&n| h_kv.is_multiple_of(n));
    divisor.unwrap_or(1)
}

/// A call that several threads share.
struct Call<'a, W> {
    problem: &'a Problem<'a>,
    options: &'a Options,
    plan: &'a Plan,
    workspaces: Chunks<'a, W>,
    partials: Chunks<'a, f32>,
    output: SharedOutput<'a>,
    /// Merges that were begun, divided by `each`, which a thread takes at once.
    merged: AtomicUsize,
    each: usize,
    /// Tasks that a thread takes at once: neighbours may be KV heads that are attended in turn.
    tasks_each: usize,
    /// Times that a thread looks whether the others have completed their tasks: about as long as a task takes, as long tasks come
    /// first. No longer, as another may wait for this one's processor.
    wait: usize,
}

impl<W: BorrowMut<Workspace> + Send> Call<'_, W> {
    /// One thread's part: tasks, one after the other, and merges.
    fn run(&self) {
        if let (_, Some(mut workspace)) = self.workspaces.take()
            && let [workspace] = &mut *workspace
        {
            self.run_tasks(workspace.borrow_mut());
            self.merge();
        }
    }

    fn run_tasks(&self, workspace: &mut Workspace) {
        let mut thread = Thread::new(self.options, workspace, &self.output);
        let mut groups = self.plan.groups(self.problem, 0..self.plan.tasks());
        let mut passed = 0;
        loop {
            let (i, mut partial) = self.partials.take();
            let start = i.saturating_mul(self.tasks_each);
            if start >= self.plan.tasks() {
                break;
            }
            let mut own = partial.as_deref_mut();
            let neighbours = groups.by_ref().skip(start - passed).take(self.tasks_each);
            thread.run(neighbours, || own.take());
            if let Some(partial) = partial {
                partial.give_back();
            }
            passed = start + self.tasks_each;
        }
    }

    /// Waits for the partial results of the others, but not for long: whoever computes the last one merges what is left.
    fn merge(&self) {
        let merges = self.plan.merges();
        let partials = (0..self.wait).find_map(|_| {
            let all = self.partials.all();
            if all.is_none() {
                hint::spin_loop();
            }
            all
        });
        while let Some(partials) = partials {
            let start = self.merged.fetch_add(1, Ordering::Relaxed);
            let start = start.saturating_mul(self.each);
            if start >= merges {
                break;
            }
            let merges = start..merges.min(start + self.each);
            combine_checked(self.problem, self.plan, merges, partials, &self.output);
        }
    }
}

/// A look takes some nanoseconds, in which a thread multiplies a few rows by a key.
fn wait(group: &Group<'_>) -> usize {
    const PRODUCTS: usize = 4;
    (group.rows.len() * group.keys.len() / PRODUCTS).max(1 << 10)
}

#[cfg(feature = "rayon")]
pub use on_rayon::Rayon;

#[cfg(feature = "rayon")]
mod on_rayon {
    extern crate std;

    use core::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use ::rayon::iter::{IndexedParallelIterator, IntoParallelIterator, ParallelIterator};
    use ::rayon::{Yield, yield_now};

    use super::ParallelFor;

    /// The current rayon pool.
    #[derive(Clone, Copy, Debug, Default)]
    pub struct Rayon;

    impl ParallelFor for Rayon {
        fn parallel_for(&self, n: usize, body: &(dyn Fn(usize) + Sync)) {
            let busy = AtomicUsize::new(0);
            (0..n).into_par_iter().with_max_len(1).for_each(|i| {
                let guard = Busy::new(&busy);
                body(i);
                drop(guard);
                // A thread without work falls asleep. It may take longer to wake for the next call than the
                // others take to complete this one.
                while busy.load(Ordering::Relaxed) > 0 {
                    if !matches!(yield_now(), Some(Yield::Executed)) {
                        thread::yield_now();
                    }
                }
            });
        }
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
}
