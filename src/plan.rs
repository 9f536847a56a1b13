//! A call cut into independent tasks, and their results put together.
//!
//! How a request is cut depends on the shape and on its own number of keys alone,
//! and results are always put together in the order of the keys. So a request's
//! bits don't depend on its neighbours or on how many threads ran the tasks.

use core::ops::Range;

use half::bf16;

use crate::attend::{Group, Options, Partial, Task, check_dims};
use crate::bits::{Increment, add_increment_f32, bf16_round};
use crate::error::{Argument, Error};
use crate::isa::{Backend, Isa, Visitor};
use crate::peaks::difference;
use crate::problem::{Elements, Output, Problem, in_range};
use crate::schedule::splits;
use crate::shape::Shape;
use crate::tile::{GROUP_ROWS, PANEL_ROWS, STRIP, Workspace};

/// The tasks of a problem: requests x row groups x ranges of keys, in that order.
///
/// It holds numbers only, is computed from shape and lengths, and serves every
/// problem that has the same ones, from layer to layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    shape: Shape,
    groups: usize,
    group_rows: usize,
    tasks: usize,
    /// A hash of the lengths, so that a plan for others is noticed.
    lengths: u64,
}

impl Plan {
    /// Plans a problem.
    ///
    /// # Errors
    /// Whatever is wrong with the problem.
    pub fn new(problem: &Problem<'_>) -> Result<Self, Error> {
        problem.check()?;
        let shape = problem.shape;
        check_dims(shape.d_qk, shape.d_v)?;
        let rows = shape.s_q.checked_mul(shape.h_q).ok_or(Error::Overflow {
            argument: Argument::Q,
            dimension: 1,
        })?;
        let groups = rows.div_ceil(GROUP_ROWS);
        let tasks = if problem.cache_seqlens.is_some() {
            // At most 16 for each length and group, all of which are in memory.
            let splits = (0..shape.b).map(|b| splits(problem.len(b)).len());
            splits.sum::<usize>().saturating_mul(groups)
        } else {
            // Not one by one: b may be huge where strides are 0.
            let each = groups * splits(shape.s_k).len();
            in_range(Argument::B, shape.b, 0, usize::MAX / each)?;
            shape.b * each
        };
        Ok(Self {
            shape,
            groups,
            // Groups of whole panels, as even as can be.
            group_rows: rows.div_ceil(groups * PANEL_ROWS) * PANEL_ROWS,
            tasks,
            lengths: problem.cache_seqlens.map_or(0, hash),
        })
    }

    /// How many tasks there are.
    #[must_use]
    pub const fn tasks(&self) -> usize {
        self.tasks
    }

    /// Request, row group and split of a task.
    fn locate(&self, problem: &Problem<'_>, task: usize) -> (usize, usize, usize) {
        let of_request = |b| self.groups * splits(problem.len(b)).len();
        let (mut request, mut rest) = (0, task);
        if problem.cache_seqlens.is_none() {
            (request, rest) = (task / of_request(0), task % of_request(0));
        }
        while rest >= of_request(request) {
            rest -= of_request(request);
            request += 1;
        }
        let splits = splits(problem.len(request)).len();
        (request, rest / splits, rest % splits)
    }

    /// FP32 numbers that each task's result takes.
    #[must_use]
    pub fn partial_len(&self) -> usize {
        let rows = (self.shape.s_q * self.shape.h_q).min(self.group_rows);
        Partial::len(rows, self.shape.d_v)
    }

    /// Rows `j * h_q + h` of a group.
    fn rows(&self, group: usize) -> Range<usize> {
        let start = group * self.group_rows;
        start..(start + self.group_rows).min(self.shape.s_q * self.shape.h_q)
    }

    /// The part of a problem that one task computes.
    fn group<'a>(
        &self,
        problem: &'a Problem<'a>,
        request: usize,
        group: usize,
        split: usize,
    ) -> Group<'a> {
        let keys = splits(problem.len(request)).nth(split).unwrap_or(0..0);
        Group {
            problem,
            request,
            rows: self.rows(group),
            reach: keys.end,
            keys,
        }
    }

    /// # Errors
    /// What is wrong with the problem, or [`Error::PlanMismatch`].
    pub(crate) fn check(&self, problem: &Problem<'_>) -> Result<(), Error> {
        if Self::new(problem)? == *self {
            Ok(())
        } else {
            Err(Error::PlanMismatch {
                planned: self.shape,
                given: problem.shape,
            })
        }
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

/// FNV-1a, word by word.
fn hash(lengths: &[i32]) -> u64 {
    lengths.iter().fold(0xcbf2_9ce4_8422_2325, |hash, length| {
        (hash ^ u64::from(length.cast_unsigned())).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Attends every query to its keys, on one thread.
///
/// # Errors
/// Whatever is wrong with the arguments; the outputs are then untouched.
pub fn decode(
    problem: &Problem<'_>,
    options: &Options,
    workspace: &mut Workspace,
    mut output: Output<'_>,
) -> Result<(), Error> {
    let plan = Plan::new(problem)?;
    output.check(&problem.shape)?;
    let Workspace { tiles, partials } = workspace;
    let [total, part] = partials.each_mut().map(|p| &mut p[..plan.partial_len()]);
    let d_v = problem.shape.d_v;
    for request in 0..problem.shape.b {
        for g in 0..plan.groups {
            for split in 0..splits(problem.len(request)).len() {
                let mut group = plan.group(problem, request, g, split);
                group.reach = problem.len(request);
                let memory = if split == 0 { &mut *total } else { &mut *part };
                options.backend.with(Task {
                    group: &group,
                    options,
                    tiles,
                    partial: Partial::view(memory, d_v),
                })?;
                if split > 0 {
                    options.backend.with(Fold {
                        total: &mut Partial::view(total, d_v),
                        part: &Partial::view(part, d_v),
                        rows: group.rows.len(),
                    });
                }
            }
            let group = plan.group(problem, request, g, 0);
            write(&group, &Partial::view(total, d_v), &mut output);
        }
    }
    Ok(())
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
    plan.check(problem)?;
    // Without a task, the range is the empty 1..=0.
    let none = usize::from(plan.tasks() == 0);
    in_range(Argument::Task, task, none, plan.tasks().saturating_sub(1))?;
    let needed = plan.partial_len();
    let len = partial.len();
    let partial = partial.get_mut(..needed).ok_or(Error::TooShort {
        argument: Argument::Partials,
        len,
        needed,
    })?;
    let (request, group, split) = plan.locate(problem, task);
    options.backend.with(Task {
        group: &plan.group(problem, request, group, split),
        options,
        tiles: &mut workspace.tiles,
        partial: Partial::view(partial, problem.shape.d_v),
    })
}

/// Puts the results of all tasks together, in the order of the keys, and writes
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
    partials: &mut [f32],
    mut output: Output<'_>,
) -> Result<(), Error> {
    plan.check(problem)?;
    output.check(&problem.shape)?;
    plan.check_partials(partials)?;
    let d_v = problem.shape.d_v;
    let mut partials = partials.chunks_mut(plan.partial_len());
    for request in 0..problem.shape.b {
        for g in 0..plan.groups {
            let group = plan.group(problem, request, g, 0);
            let mut parts = partials
                .by_ref()
                .take(splits(problem.len(request)).len())
                .map(|memory| Partial::view(memory, d_v));
            // There's always one: requests have a split at least.
            let Some(mut total) = parts.next() else {
                continue;
            };
            for part in parts {
                // Every backend folds to the same bits.
                Backend::detect().with(Fold {
                    total: &mut total,
                    part: &part,
                    rows: group.rows.len(),
                });
            }
            write(&group, &total, &mut output);
        }
    }
    Ok(())
}

/// Adds the result over later keys to that over earlier ones, `total` to `part`.
/// Rescaling is again an integer addition: exponents are integers in either mode.
struct Fold<'a, 'b> {
    total: &'a mut Partial<'b>,
    part: &'a Partial<'b>,
    rows: usize,
}

impl Visitor for Fold<'_, '_> {
    type Output = ();

    fn visit<I: Isa>(self, isa: I) {
        let Self { total, part, rows } = self;
        let strips = total.o.len() / (total.exponent.len() / PANEL_ROWS);
        for row in 0..rows {
            let exponent = total.exponent[row].max(part.exponent[row]);
            let [dx, dy] = [total.exponent[row], part.exponent[row]]
                .map(|own| Increment::pow2(difference(own, exponent)));
            let add = |x, y| add_increment_f32(x, dx) + add_increment_f32(y, dy);
            total.exponent[row] = exponent;
            total.sum[row] = add(total.sum[row], part.sum[row]);
            let (panel, r) = (row / PANEL_ROWS, row % PANEL_ROWS);
            let strips = panel * strips..(panel + 1) * strips;
            for (x, y) in total.o[strips.clone()].iter_mut().zip(&part.o[strips]) {
                isa.fold(&mut x[r], dx, &y[r], dy);
            }
        }
    }
}

/// Normalises and writes the rows of a group (Algorithm 2 line 20).
fn write(group: &Group<'_>, partial: &Partial<'_>, output: &mut Output<'_>) {
    let shape = &group.problem.shape;
    let strips = shape.d_v / STRIP;
    let b = group.request;
    for row in 0..group.rows.len() {
        let (j, h) = group.position(row);
        let empty = group.problem.visible(b, j) == 0;
        let [s0, s1, s2] = output.lse_strides;
        output.lse[b * s0 + h * s1 + j * s2] = if empty {
            f32::INFINITY
        } else {
            lse(partial.exponent[row], partial.sum[row])
        };
        // A row that sees keys, all of them with a score of -inf, is 0 / 0 as in
        // the definition.
        let inverse = if empty { 0.0 } else { partial.sum[row].recip() };
        let (panel, r) = (row / PANEL_ROWS, row % PANEL_ROWS);
        let [s0, s1, s2] = output.o_strides;
        let start = b * s0 + j * s1 + h * s2;
        for (i, strip) in partial.o[panel * strips..][..strips].iter().enumerate() {
            let at = start + i * STRIP..start + (i + 1) * STRIP;
            match &mut output.o {
                Elements::F32(o) => {
                    for (o, x) in o[at].iter_mut().zip(&strip[r]) {
                        *o = x * inverse;
                    }
                }
                Elements::Bf16(o) => {
                    for (o, x) in o[at].iter_mut().zip(&strip[r]) {
                        *o = bf16::from_bits(bf16_round(x * inverse));
                    }
                }
            }
        }
    }
}

/// `ln(sum * 2^exponent)`; NaN if every visible score was -inf.
#[expect(clippy::cast_possible_truncation, reason = "rounds to FP32")]
fn lse(exponent: f32, sum: f32) -> f32 {
    if sum == 0.0 {
        return f32::NAN;
    }
    let log2 = f64::from(exponent) + libm::log2(f64::from(sum));
    (log2 * core::f64::consts::LN_2) as f32
}
