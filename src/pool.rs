//! A plan on rayon's threads (feature `rayon`, which needs std).

extern crate std;

use core::borrow::BorrowMut;
use std::sync::{Mutex, PoisonError};

use ::rayon::iter::{IntoParallelRefMutIterator, ParallelIterator};

use crate::attend::Options;
use crate::error::{Argument, Error};
use crate::plan::{Plan, combine, run_task};
use crate::problem::{Output, Problem, in_range};
use crate::tile::Workspace;

/// [`decode`](crate::decode) on the current rayon pool, with the same result to the
/// bit: each workspace belongs to one thread at a time, and `partials` holds
/// [`partial_len`](Plan::partial_len) numbers for each of the plan's tasks, which
/// the threads take one after the other.
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
    output: Output<'_>,
) -> Result<(), Error> {
    in_range(Argument::Workspace, workspaces.len(), 1, usize::MAX)?;
    plan.check(problem)?;
    output.check(problem.q_dims(), &problem.shape)?;
    plan.check_partials(partials)?;
    let len = plan.partial_len();
    let queue = Mutex::new(partials.chunks_mut(len).enumerate().take(plan.tasks()));
    let next = || {
        // Nothing panics while it is held.
        let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.next()
    };
    workspaces.par_iter_mut().try_for_each(|workspace| {
        while let Some((task, partial)) = next() {
            run_task(
                problem,
                options,
                plan,
                task,
                workspace.borrow_mut(),
                partial,
            )?;
        }
        Ok(())
    })?;
    combine(problem, plan, partials, output)
}
