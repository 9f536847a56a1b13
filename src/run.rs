//! Calls: at once on one thread, or a plan's tasks.
//!
//! Results are always merged in the order of the keys, so that bits don't depend on how many threads ran the tasks.

use core::mem;
use core::ops::Range;

use crate::attend::{JoinsHeads, Options, Task};
use crate::epilogue::{MERGED_ROWS, Merge, Write};
use crate::error::{Argument, Error};
use crate::group::{Group, Partial};
use crate::kernel::Backend;
use crate::kernel::shared::{atomic_u16, atomic_u32};
use crate::plan::{Cut, Plan, row_groups};
use crate::problem::{Elements, Output, Problem, SharedElements, SharedOutput, in_range};
use crate::tile::{PANEL_ROWS, PANELS, Workspace, strips};

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
    Plan::for_threads(problem, 1)?;
    output.check(problem.q_dims(), &problem.shape)?;
    let mut write = Write::to(&mut output);
    let groups = row_groups(problem, PANELS);
    for (cut, group) in join_heads(groups, options) {
        run_all_keys(&cut, &group, options, workspace, write.reborrow());
    }
    Ok(())
}

/// Joins neighbouring groups to one where their KV heads are attended in turn.
fn join_heads<'a>(
    groups: impl Iterator<Item = (Cut, Group<'a>)>,
    options: &Options,
) -> impl Iterator<Item = (Cut, Group<'a>)> {
    let mut groups = groups.peekable();
    core::iter::from_fn(move || {
        let (cut, mut group) = groups.next()?;
        let most = PANEL_ROWS / group.rows.len().max(1);
        let mut joins = None;
        while group.heads < most
            && groups.peek().is_some_and(|(_, next)| group.is_before(next))
            && *joins.get_or_insert_with(|| options.backend_of(&group).with(JoinsHeads(&group)))
        {
            groups.next();
            group.heads += 1;
        }
        Some((cut, group))
    })
}

/// Attends the rows of `group` to all keys of its request, one KV split after the other. All was checked.
fn run_all_keys(
    cut: &Cut,
    group: &Group<'_>,
    options: &Options,
    workspace: &mut Workspace,
    write: Write<'_>,
) {
    let len = group.heads * Partial::len(group.room(), group.problem.shape.d_v);
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
            partial: part,
            earlier: (split > 0).then_some(&mut *earlier),
            write: write.take_if(|_| split == last),
        });
        // In turn, each KV head's queries are packed anew.
        packed |= group.heads == 1 && group.sees_any();
        mem::swap(&mut part, &mut earlier);
    }
}

/// Computes some neighbouring tasks of the plan. Those with partial results write them to `partials`:
/// [`partial_len`](Plan::partial_len) numbers for each, one after the other. The others write their rows of O and lse to `output`.
///
/// Tasks are independent: any thread may run any of them, in any order. When all are done, [`combine`] merges the partial
/// results.
///
/// The arguments are checked and the first task is looked for once, each in time proportional to `b`: that counts where tasks
/// are small and requests many.
///
/// # Errors
/// Whatever is wrong with the arguments, a plan made for another problem, or `tasks` out of
/// range; `partials` and `output` are then untouched.
pub fn run_tasks(
    problem: &Problem<'_>,
    options: &Options,
    plan: &Plan,
    tasks: Range<usize>,
    workspace: &mut Workspace,
    partials: &mut [f32],
    output: &SharedOutput<'_>,
) -> Result<(), Error> {
    problem.check_sizes()?;
    plan.matches(problem)?;
    output.check(problem.q_dims(), &problem.shape)?;
    in_range(Argument::Task, tasks.end, 0, plan.tasks())?;
    in_range(Argument::Task, tasks.start, 0, tasks.end)?;
    let (len, each) = (partials.len(), plan.partial_len());
    let with_partials = plan.partial_tasks().min(tasks.end);
    let needed = with_partials
        .saturating_sub(tasks.start)
        .saturating_mul(each);
    let partials = partials.get_mut(..needed).ok_or(Error::TooShort {
        argument: Argument::Partials,
        len,
        needed,
    })?;
    // Before anything is written. Neighbours often are of the same request.
    let mut checked = None;
    for (_, group) in plan.groups(problem, tasks.clone()) {
        if checked != Some(group.request) {
            problem.check_pages(group.request)?;
            checked = Some(group.request);
        }
    }
    let mut partials = partials.chunks_exact_mut(each);
    let mut thread = Thread::new(options, workspace, output);
    thread.run(plan.groups(problem, tasks), || partials.next());
    Ok(())
}

/// What a thread runs one task after the other with. All was checked.
pub struct Thread<'a, 'o> {
    options: &'a Options,
    workspace: &'a mut Workspace,
    output: &'a SharedOutput<'o>,
    /// The task whose queries the workspace holds.
    packed: Option<Group<'a>>,
}

impl<'a, 'o> Thread<'a, 'o> {
    /// Before its first task.
    pub const fn new(
        options: &'a Options,
        workspace: &'a mut Workspace,
        output: &'a SharedOutput<'o>,
    ) -> Self {
        Self {
            options,
            workspace,
            output,
            packed: None,
        }
    }

    /// Runs neighbouring tasks, each into the next partial result, or into the output where there is none.
    pub fn run<'p>(
        &mut self,
        groups: impl Iterator<Item = (Cut, Group<'a>)>,
        mut partial: impl FnMut() -> Option<&'p mut [f32]>,
    ) {
        for (cut, group) in join_heads(groups, self.options) {
            match partial() {
                Some(partial) => self.run_split(group, partial),
                None => {
                    self.packed = None;
                    let write = Write::shared(self.output);
                    run_all_keys(&cut, &group, self.options, self.workspace, write);
                }
            }
        }
    }

    /// Runs a task into a partial result.
    fn run_split(&mut self, group: Group<'a>, partial: &mut [f32]) {
        // Neighbours have other KV splits.
        debug_assert!(group.heads == 1);
        let before = self.packed.as_ref();
        let [own, _] = &mut self.workspace.partials;
        let own = &mut own[..partial.len()];
        self.options.backend_of(&group).with(Task {
            group: &group,
            options: self.options,
            tiles: &mut self.workspace.tiles,
            kv: &mut self.workspace.kv,
            packed: before.is_some_and(|before| before.same_rows(&group)),
            partial: own,
            earlier: None,
            write: None,
        });
        Partial::copy(own, partial, group.room(), group.problem.shape.d_v);
        if group.sees_any() {
            self.packed = Some(group);
        }
    }
}

/// Merges partial results in the order of the keys, and writes O and lse: some of the plan's [`merges`](Plan::merges), on any
/// thread. Others may run meanwhile.
///
/// `partials` holds [`partial_len`](Plan::partial_len) numbers for each of the tasks that have them, one after the other.
///
/// # Errors
/// Whatever is wrong with the arguments; the output is then untouched.
pub fn combine(
    problem: &Problem<'_>,
    plan: &Plan,
    merges: Range<usize>,
    partials: &[f32],
    output: &SharedOutput<'_>,
) -> Result<(), Error> {
    plan.check(problem)?;
    output.check(problem.q_dims(), &problem.shape)?;
    plan.check_partials(partials)?;
    in_range(Argument::Merges, merges.end, 0, plan.merges())?;
    in_range(Argument::Merges, merges.start, 0, merges.end)?;
    combine_checked(problem, plan, merges, partials, output);
    Ok(())
}

/// The same where all was checked.
pub fn combine_checked(
    problem: &Problem<'_>,
    plan: &Plan,
    mut merges: Range<usize>,
    mut partials: &[f32],
    output: &SharedOutput<'_>,
) {
    // Every backend adds to the same bits.
    let backend = Backend::detect();
    let part_len = plan.partial_len();
    let strips = strips(problem.shape.d_v);
    let mut next = 0;
    let tasks = plan.groups(problem, 0..plan.partial_tasks());
    for (cut, group) in tasks.filter(|(cut, group)| cut.is_first(&group.keys)) {
        let parts;
        (parts, partials) = partials.split_at(cut.splits().len() * part_len);
        let own = next..next + group.rows.len() * strips;
        next = own.end;
        while merges.start < merges.end.min(own.end) {
            let left = merges.end.min(own.end) - merges.start;
            let at = merges.start - own.start;
            let row = at / (MERGED_ROWS * strips) * MERGED_ROWS;
            let count = MERGED_ROWS.min(group.rows.len() - row);
            let at = at - row * strips;
            let (strip, first) = (at / count, at % count);
            // Some strips of all these rows, or some rows of one strip.
            let (rows, taken) = match left / count {
                taken @ 1.. if first == 0 => (0..count, taken.min(strips - strip)),
                _ => (first..count.min(first + left), 1),
            };
            merges.start += rows.len() * taken;
            backend.with(Merge {
                group: &group,
                rows: row + rows.start..row + rows.end,
                strips: strip..strip + taken,
                parts,
                part_len,
                output,
            });
        }
        if merges.is_empty() {
            break;
        }
    }
}

impl<'a> From<Elements<'a>> for SharedElements<'a> {
    fn from(elements: Elements<'a>) -> Self {
        match elements {
            Elements::Bf16(data) => Self::Bf16(atomic_u16(bytemuck::cast_slice_mut(data))),
            Elements::F16(data) => Self::F16(atomic_u16(bytemuck::cast_slice_mut(data))),
            Elements::F32(data) => Self::F32(atomic_u32(data)),
        }
    }
}

impl<'a> From<Output<'a>> for SharedOutput<'a> {
    fn from(output: Output<'a>) -> Self {
        Self {
            o: output.o.into(),
            o_strides: output.o_strides,
            lse: output.lse.map(atomic_u32),
            lse_strides: output.lse_strides,
            max_logits: output.max_logits.map(atomic_u32),
            lse_format: output.lse_format,
        }
    }
}
