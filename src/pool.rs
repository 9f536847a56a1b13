//! A plan on rayon's threads (feature `rayon`, which needs std).

extern crate std;

use core::borrow::BorrowMut;
use std::sync::{Mutex, PoisonError};
use std::vec::Vec;

use ::rayon::current_num_threads;
use ::rayon::iter::{IntoParallelIterator, IntoParallelRefMutIterator, ParallelIterator};

use crate::attend::Options;
use crate::error::{Argument, Error};
use crate::group::{Group, Partial};
use crate::isa::Backend;
use crate::plan::{Plan, combine, groups, run_task};
use crate::problem::{Output, Problem, in_range};
use crate::results::{Write, together, write_lse};
use crate::tile::{PANEL_ROWS, Workspace};

/// [`decode`](crate::decode) on the current rayon pool, with the same result to the
/// bit: each workspace belongs to one thread at a time, and `partials` holds
/// [`partial_len`](Plan::partial_len) numbers for each of the plan's tasks, which
/// the threads take one after the other. So they do panels of rows when results are put
/// together, if O lies in the order of requests, positions and heads.
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
    if current_num_threads() > 1 {
        combine_on_rayon(problem, plan, partials, output)
    } else {
        combine(problem, plan, partials, output)
    }
}

/// [`combine`], each panel of rows on whatever thread is free.
fn combine_on_rayon(
    problem: &Problem<'_>,
    plan: &Plan,
    partials: &mut [f32],
    mut output: Output<'_>,
) -> Result<(), Error> {
    let Some(panels) = panels(problem, plan, partials, &mut output) else {
        return combine(problem, plan, partials, output);
    };
    let done: Vec<_> = panels.into_par_iter().map(Panel::finish).collect();
    for (group, panel, lse) in done {
        write_lse(&group, panel, &lse, &mut output);
    }
    Ok(())
}

/// All that makes a panel's rows of the output.
struct Panel<'p, 'o> {
    group: Group<'p>,
    panel: usize,
    /// The results over one range of keys after the other.
    parts: Vec<Partial<'o>>,
    /// The output up to the panel's last element.
    write: Write<'o>,
}

/// The panels, in the order of the output; `None` if that isn't the order of groups and rows.
fn panels<'p, 'o>(
    problem: &'p Problem<'_>,
    plan: &Plan,
    partials: &'o mut [f32],
    output: &'o mut Output<'_>,
) -> Option<Vec<Panel<'p, 'o>>> {
    let d_v = problem.shape.d_v;
    let (lse, strides) = (output.lse_format, output.o_strides);
    let mut partials = partials.chunks_mut(plan.partial_len());
    let (mut o, mut end) = (output.o.reborrow(), 0);
    let mut panels = Vec::new();
    for (cut, at) in groups(problem) {
        let group = cut.group(problem, at, 0);
        let parts = partials.by_ref().take(cut.splits().len());
        let mut parts: Vec<_> = parts
            .map(|memory| Partial::view(memory, d_v).panels())
            .collect();
        for panel in 0..group.panels() {
            let from = end;
            for r in 0..group.panel_rows(panel) {
                let (j, h) = group.position(panel * PANEL_ROWS + r);
                let start = group.start(j, h, strides);
                if start < end {
                    return None;
                }
                end = start + d_v;
            }
            let [own, rest] = o.split_at(end - from);
            o = rest;
            panels.push(Panel {
                group: group.clone(),
                panel,
                parts: parts.iter_mut().filter_map(Iterator::next).collect(),
                write: Write {
                    lse,
                    strides,
                    o: own,
                    from,
                },
            });
        }
    }
    Some(panels)
}

impl<'p> Panel<'p, '_> {
    /// Writes O; whose rows they are, and their lse.
    fn finish(self) -> (Group<'p>, usize, [f32; PANEL_ROWS]) {
        let Self {
            group,
            panel,
            parts,
            write,
        } = self;
        let lse = together(Backend::detect(), &group, panel, parts.into_iter(), write);
        (group, panel, lse)
    }
}

#[cfg(test)]
mod tests {
    use std::vec;

    use half::bf16;

    use super::*;
    use crate::problem::Elements;
    use crate::shape::Shape;

    /// Two panels for each request.
    const HEADS: usize = PANEL_ROWS + 6;

    /// How many panels may be written at the same time, with these strides of O.
    fn shared(strides: [usize; 3]) -> Option<usize> {
        let shape = Shape {
            b: 2,
            s_q: 1,
            s_k: 3,
            h_q: HEADS,
            h_kv: 1,
            d_qk: 64,
            d_v: 64,
        };
        let (q, kv) = (vec![bf16::ONE; 2 * HEADS * 64], vec![bf16::ONE; 2 * 3 * 64]);
        let problem = Problem::dense(shape, &q, &kv, 1.0);
        let plan = Plan::new(&problem).unwrap();
        let mut partials = vec![0.0; plan.tasks() * plan.partial_len()];
        let (mut o, mut lse) = (vec![0.0_f32; 2 * HEADS * 64], vec![0.0; 2 * HEADS]);
        let mut output = Output {
            o_strides: strides,
            ..Output::dense(shape, Elements::F32(&mut o), &mut lse)
        };
        panels(&problem, &plan, &mut partials, &mut output).map(|panels| panels.len())
    }

    /// The tests of results can't tell whether panels were shared: they are the same.
    #[test]
    fn panels_are_shared_where_the_output_has_their_order() {
        assert_eq!(shared([HEADS * 64, HEADS * 64, 64]), Some(4));
        assert_eq!(shared([64, 64, 2 * 64]), None);
    }
}
