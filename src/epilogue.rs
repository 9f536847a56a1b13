//! The end of a task, and of a request's last: partial results over KV splits are merged, normalised
//! and stored (Algorithm 2 line 20).

use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::bits::{Increment, NAN, add_increment_f32, difference, one_nan};
use crate::group::{Group, Partial, PartialRows};
use crate::kernel::shared::atomic_u32;
use crate::kernel::{Epilogue, Kernel, Visitor};
use crate::problem::{Elements, Lse, LseBase, Output, Rescale, SharedElements, SharedOutput};
use crate::tile::{MAX_D_V, ORow, PANEL_ROWS, RowState, RowSums, STRIP, strips};

/// Brings a task's O and sums into the form of [`Partial`], adds the result over earlier keys, and stores
/// rows that have no later ones.
pub fn run<K: Kernel>(
    kernel: K,
    group: &Group<'_>,
    rescale: Rescale,
    states: &[RowState],
    partial: &mut Partial<'_>,
    mut earlier: Option<Partial<'_>>,
    mut write: Option<Write<'_>>,
) {
    for (panel, state) in states.iter().enumerate().take(group.panels()) {
        let mut part = partial.reborrow().panel(panel);
        let factor = factors(state, group.panel_rows(panel), rescale, &mut part);
        let earlier = earlier.as_mut();
        let earlier = earlier.map(|earlier| earlier.reborrow().panel(panel));
        let end = PanelEnd {
            group,
            panel,
            part: &mut part,
            factor: &factor,
            earlier: earlier.as_ref(),
            write: write.as_mut().map(Write::reborrow),
        };
        end.visit(kernel);
    }
}

/// Each row's exponent, sum and largest score, and the factor of its O.
fn factors(
    state: &RowState,
    rows: usize,
    rescale: Rescale,
    part: &mut Partial<'_>,
) -> [f32; PANEL_ROWS] {
    let mut factors = [1.0; PANEL_ROWS];
    for (r, to) in factors.iter_mut().enumerate().take(rows) {
        let reference = state.reference[r];
        let (exponent, sum, factor) = match rescale {
            // O is a sum over the rounded P: normalised by their sum, errors that
            // they have in common cancel.
            Rescale::Exact => (reference, state.sum[r], state.sum[r] / state.rounded_sum[r]),
            Rescale::Compensated => {
                // O carries c, and the sum is relative to 2^m: both to 2^e, where
                // e = rint(m) = -n.
                let exponent = libm::rintf(reference);
                let fraction = if exponent == reference {
                    1.0 // Also for -inf, where nothing was seen.
                } else {
                    libm::exp2f(reference - exponent)
                };
                (exponent, state.sum[r] * fraction, state.c[r].recip())
            }
        };
        // A row without a sum has seen no key, or none with a score above -inf.
        let seen = sum != 0.0;
        if seen {
            *to = factor;
        }
        let exponent = if seen { exponent } else { f32::NEG_INFINITY };
        part.sums[r] = [exponent, sum, state.max[r]];
    }
    factors
}

/// Brings two partial results of a row to one exponent. Returns their common exponent, sum and largest score, and the increments
/// of the O of either. Rescaling is again an integer addition: exponents are integers in either mode.
fn align(earlier: RowSums, later: RowSums) -> (RowSums, [Increment; 2]) {
    let exponent = earlier[0].max(later[0]);
    let increments = [earlier, later].map(|[own, ..]| Increment::pow2(difference(own, exponent)));
    let before = add_increment_f32(earlier[1], increments[0]);
    let own = add_increment_f32(later[1], increments[1]);
    (
        [exponent, before + own, later[2].max(earlier[2])],
        increments,
    )
}

/// The end of a panel's partial result.
struct PanelEnd<'a, 'b> {
    group: &'a Group<'a>,
    panel: usize,
    /// The panel's result; over all keys so far, afterwards.
    part: &'a mut Partial<'b>,
    /// The factor of its O.
    factor: &'a [f32; PANEL_ROWS],
    /// The result over earlier keys.
    earlier: Option<&'a Partial<'b>>,
    /// Where it is written, if there are no later keys.
    write: Option<Write<'a>>,
}

/// Where rows are written.
pub struct Write<'a> {
    o: Rows<'a>,
    /// Strides of O.
    strides: [usize; 3],
    /// lse and the largest scores, where they are wanted.
    stats: [Option<&'a [AtomicU32]>; 2],
    /// Their strides: heads before positions.
    stats_strides: [usize; 3],
    /// The base of lse, and its value without keys.
    format: Lse,
}

/// The rows of O.
enum Rows<'a> {
    /// One thread's.
    Own(Elements<'a>),
    /// Several threads'.
    Shared(SharedElements<'a>),
}

impl Rows<'_> {
    /// As [`Elements::write`].
    #[inline(always)]
    fn write(&mut self, at: usize, row: &[f32]) {
        match self {
            Self::Own(o) => o.write(at, row),
            Self::Shared(o) => o.write(at, row),
        }
    }
}

impl<'a> Write<'a> {
    /// The output of one thread.
    pub fn to(output: &'a mut Output<'_>) -> Self {
        let [lse, max_logits] = [&mut output.lse, &mut output.max_logits];
        let stats = [lse, max_logits].map(|rows| rows.as_mut().map(|rows| atomic_u32(rows)));
        Self {
            o: Rows::Own(output.o.reborrow()),
            strides: output.o_strides,
            stats,
            stats_strides: output.lse_strides,
            format: output.lse_format,
        }
    }

    /// The output of several threads.
    pub const fn shared(output: &SharedOutput<'a>) -> Self {
        Self {
            o: Rows::Shared(output.o),
            strides: output.o_strides,
            stats: [output.lse, output.max_logits],
            stats_strides: output.lse_strides,
            format: output.lse_format,
        }
    }

    /// The same, borrowed anew.
    pub fn reborrow(&mut self) -> Write<'_> {
        Write {
            o: match &mut self.o {
                Rows::Own(o) => Rows::Own(o.reborrow()),
                Rows::Shared(o) => Rows::Shared(*o),
            },
            ..*self
        }
    }

    /// Writes lse and the largest score of a row, and returns the factor of its O.
    fn stats(&self, group: &Group<'_>, row: usize, [exponent, sum, max]: RowSums) -> f32 {
        let problem = group.problem;
        let (j, h) = group.position(row);
        let empty = !problem.sees_any(group.request, group.head, j);
        let log2 = log2_sum(exponent, sum);
        let lse = if empty {
            self.format.empty.value()
        } else {
            lse(log2, self.format.base)
        };
        let [s0, s1, s2] = self.stats_strides;
        let at = group.start(j, h, [s0, s2, s1]);
        let numbers = [lse, max_logit(max, problem.softmax_scale)];
        for (to, number) in self.stats.iter().zip(numbers) {
            if let Some(to) = to {
                to[at].store(number.to_bits(), Ordering::Relaxed);
            }
        }
        // A row that sees keys, all of them with a score of -inf, is 0 / 0 as in
        // the definition.
        let inverse = if empty { 0.0 } else { sum.recip() };
        match problem.sink {
            // Without a key no sink changes O, not even NaN.
            Some(sink) if !empty => with_sink(inverse, log2, sink[h]),
            _ => inverse,
        }
    }

    /// Where a row of O begins.
    fn start(&self, group: &Group<'_>, row: usize) -> usize {
        let (j, h) = group.position(row);
        group.start(j, h, self.strides)
    }
}

/// Rows that are written strip by strip: with more of them the processor sees no order in the lines
/// written, and each is waited for.
const WRITTEN_AT_ONCE: usize = 2;

impl Visitor for PanelEnd<'_, '_> {
    type Output = ();

    fn visit<K: Kernel>(mut self, kernel: K) {
        let len = self.group.panel_rows(self.panel);
        let RowEnds {
            increments,
            inverse,
            starts,
        } = self.rows();
        let mut write = self.write.take();
        let mut call = Epilogue {
            rows: 0..0,
            next: &[],
            factor: Some(self.factor),
            increments: &increments,
            inverse: write.as_ref().map(|_| &inverse[..]),
        };
        let at_once = match write {
            Some(_) => WRITTEN_AT_ONCE,
            None => PANEL_ROWS,
        };
        let strip_rows = self.group.strip_rows(self.panel);
        let d_v = self.group.problem.shape.d_v;
        for first in (0..len).step_by(at_once) {
            call.rows = first..len.min(first + at_once);
            for (i, o) in self
                .part
                .o
                .chunks_mut(strip_rows)
                .take(strips(d_v))
                .enumerate()
            {
                let earlier = self.earlier.map(|earlier| &earlier.o[i * strip_rows..]);
                match &mut write {
                    Some(write) => kernel.epilogue(&call, earlier, o, |r, row| {
                        write.o.write(starts[r] + i * STRIP, columns(row, i, d_v));
                    }),
                    None => kernel.epilogue(&call, earlier, o, stay),
                }
            }
        }
    }
}

/// What a panel's rows need beside their O.
struct RowEnds {
    /// Of the result over earlier keys, and of the panel's.
    increments: [[Increment; 2]; PANEL_ROWS],
    /// One over the sum of exponentials, if they are written.
    inverse: [f32; PANEL_ROWS],
    /// Where they begin in the output.
    starts: [usize; PANEL_ROWS],
}

impl PanelEnd<'_, '_> {
    /// Adds the sums over earlier keys, and writes lse. The same for all backends.
    #[inline(never)]
    fn rows(&mut self) -> RowEnds {
        let mut rows = RowEnds {
            increments: [[Increment::NONE; 2]; PANEL_ROWS],
            inverse: [0.0; PANEL_ROWS],
            starts: [0; PANEL_ROWS],
        };
        for r in 0..self.group.panel_rows(self.panel) {
            if let Some(earlier) = self.earlier {
                let sums = &mut self.part.sums[r];
                (*sums, rows.increments[r]) = align(earlier.sums[r], *sums);
            }
            if let Some(write) = &self.write {
                let row = self.panel * PANEL_ROWS + r;
                rows.inverse[r] = write.stats(self.group, row, self.part.sums[r]);
                rows.starts[r] = write.start(self.group, row);
            }
        }
        rows
    }
}

/// The columns of a strip; the last may have some beyond the width.
fn columns(row: &ORow, strip: usize, d_v: usize) -> &[f32] {
    &row[..STRIP.min(d_v - strip * STRIP)]
}

/// Rows that are merged at once: their O is on the stack.
pub const MERGED_ROWS: usize = 8;

/// The partial results of some rows, merged in the order of their keys. They are left as they are: several threads may merge rows
/// of the same task.
pub struct Merge<'a> {
    /// All rows.
    pub group: &'a Group<'a>,
    /// Some rows of the group: of one panel, and at most [`MERGED_ROWS`].
    pub rows: Range<usize>,
    /// Strips of their O.
    pub strips: Range<usize>,
    /// The partial results of the group, in the order of keys, and the numbers that each has.
    pub parts: &'a [f32],
    /// See `parts`.
    pub part_len: usize,
    /// Where the rows are written.
    pub output: &'a SharedOutput<'a>,
}

impl Visitor for Merge<'_> {
    type Output = ();

    fn visit<K: Kernel>(self, kernel: K) {
        self.run(&mut |call, earlier, o| kernel.epilogue(call, earlier, o, stay));
    }
}

/// Rows that aren't written stay.
fn stay(_: usize, _: &ORow) {}

/// A backend's [`Kernel::epilogue`] of rows that stay.
type Add<'a> = &'a mut dyn FnMut(&Epilogue<'_>, Option<&[ORow]>, &mut [ORow]);

impl Merge<'_> {
    /// One code for all backends, but for the additions.
    fn run(&self, add: Add<'_>) {
        /// Results whose sums come before their O: one waits for the other, and memory would be waited for each time.
        const AT_ONCE: usize = 16;
        /// Results from one that is added to the one that is prefetched meanwhile.
        const DISTANCE: usize = 4;
        const STRIPS: usize = MAX_D_V / STRIP;
        let (group, rows) = (self.group, self.rows.clone());
        let d_v = group.problem.shape.d_v;
        let offsets = PartialRows::of(group, &rows, self.part_len);
        let mut parts = self.parts.chunks_exact(self.part_len);
        let mut o = [[0.0; STRIP]; STRIPS * MERGED_ROWS];
        let mut sums = [[0.0; 3]; MERGED_ROWS];
        // Starts with the result over the earliest keys.
        if let Some(part) = parts.next() {
            sums[..rows.len()].copy_from_slice(offsets.sums(part));
            for (strip, o) in self.strips.clone().zip(o.chunks_mut(MERGED_ROWS)) {
                o[..rows.len()].copy_from_slice(offsets.o(part, strip));
            }
        }
        let mut increments = [[[Increment::NONE; 2]; MERGED_ROWS]; AT_ONCE];
        while parts.len() > 0 {
            for (part, increments) in parts.clone().zip(&mut increments) {
                let rows = sums.iter_mut().zip(offsets.sums(part)).zip(increments);
                for ((sums, own), increments) in rows {
                    let moves;
                    (*sums, moves) = align(*sums, *own);
                    // What is merged is in the place of the later keys: a sum has no order.
                    *increments = [moves[1], moves[0]];
                }
            }
            for (strip, o) in self.strips.clone().zip(o.chunks_mut(MERGED_ROWS)) {
                let mut coming = parts.clone().skip(DISTANCE);
                for (part, increments) in parts.clone().zip(&increments) {
                    let call = Epilogue {
                        rows: 0..rows.len(),
                        increments,
                        next: coming.next().map_or(&[], |part| offsets.o(part, strip)),
                        ..Epilogue::NONE
                    };
                    add(&call, Some(offsets.o(part, strip)), o);
                }
            }
            // To the next ones.
            parts.nth(AT_ONCE - 1);
        }
        let write = Write::shared(self.output);
        let mut inverse = [0.0; MERGED_ROWS];
        for ((row, sums), inverse) in rows.clone().zip(sums).zip(&mut inverse) {
            // Merges of other strips store the same.
            *inverse = write.stats(group, row, sums);
        }
        let call = Epilogue {
            rows: 0..rows.len(),
            inverse: Some(&inverse),
            ..Epilogue::NONE
        };
        for (strip, o) in self.strips.clone().zip(o.chunks_mut(MERGED_ROWS)) {
            add(&call, None, o);
            for (row, o) in rows.clone().zip(o) {
                let at = write.start(group, row) + strip * STRIP;
                self.output.o.write(at, columns(o, strip, d_v));
            }
        }
    }
}

/// A row's largest score, scaled; the sign of the scale is in Q.
#[expect(clippy::cast_possible_truncation, reason = "rounds to FP32")]
fn max_logit(max: f32, softmax_scale: f32) -> f32 {
    // Not the product alone: -inf * 0 would be NaN.
    if max == f32::NEG_INFINITY {
        return max;
    }
    one_nan((f64::from(max) * f64::from(softmax_scale).abs()) as f32)
}

/// `log2(sum * 2^exponent)`; -inf if every visible score was.
fn log2_sum(exponent: f32, sum: f32) -> f64 {
    if sum == 0.0 {
        f64::NEG_INFINITY
    } else {
        f64::from(exponent) + libm::log2(f64::from(sum))
    }
}

/// The logarithm in its base; NaN if every visible score was -inf.
#[expect(clippy::cast_possible_truncation, reason = "rounds to FP32")]
fn lse(log2: f64, base: LseBase) -> f32 {
    if log2 == f64::NEG_INFINITY {
        return NAN;
    }
    one_nan(match base {
        LseBase::E => (log2 * core::f64::consts::LN_2) as f32,
        LseBase::Two => log2 as f32,
    })
}

/// The factor of O where the sum of exponentials includes a sink.
#[expect(clippy::cast_possible_truncation, reason = "rounds to FP32")]
fn with_sink(inverse: f32, log2: f64, sink: f32) -> f32 {
    if sink == f32::NEG_INFINITY {
        return inverse;
    }
    if (log2 == f64::NEG_INFINITY || inverse == 0.0) && !sink.is_nan() {
        // The sink has all the weight.
        return 0.0;
    }
    let sink = f64::from(sink) * core::f64::consts::LOG2_E;
    (f64::from(inverse) / (1.0 + libm::exp2(sink - log2))) as f32
}
