//! The end of a task, and of a request's last: partial results over KV splits are merged, normalised
//! and stored (Algorithm 2 line 20).

use crate::bits::{Increment, NAN, add_increment_f32, difference, one_nan};
use crate::group::{Group, Partial};
use crate::kernel::{Backend, Epilogue, Kernel, Visitor};
use crate::problem::{Elements, Lse, LseBase, Output, Rescale};
use crate::tile::{PANEL_ROWS, RowState, STRIP, strips};

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
        part.exponent[r] = if seen { exponent } else { f32::NEG_INFINITY };
        part.sum[r] = sum;
        part.max[r] = state.max[r];
    }
    factors
}

/// Brings two partial results of a row to one exponent, adds the earlier one's sum to the other's,
/// and returns the increments of either O. Rescaling is again an integer addition: exponents are
/// integers in either mode.
fn align(earlier: &Partial<'_>, part: &mut Partial<'_>, row: usize) -> [Increment; 2] {
    let exponent = earlier.exponent[row].max(part.exponent[row]);
    let increments = [earlier.exponent[row], part.exponent[row]]
        .map(|own| Increment::pow2(difference(own, exponent)));
    let before = add_increment_f32(earlier.sum[row], increments[0]);
    let own = add_increment_f32(part.sum[row], increments[1]);
    part.exponent[row] = exponent;
    part.sum[row] = before + own;
    part.max[row] = part.max[row].max(earlier.max[row]);
    increments
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

/// Where a group's rows are written.
pub struct Write<'a> {
    /// The output from element `from` on.
    pub o: Elements<'a>,
    /// See `o`.
    pub from: usize,
    /// Strides of the output.
    pub strides: [usize; 3],
    /// lse and the largest score of the rows, contiguous, panel by panel.
    pub stats: &'a mut [Stats],
    /// The base of lse, and its value without keys.
    pub format: Lse,
}

/// What a row's scores come to.
#[derive(Clone, Copy, Default)]
pub struct Stats {
    /// As it is written.
    lse: f32,
    /// The largest scaled score.
    max_logit: f32,
}

impl<'a> Write<'a> {
    /// The whole output, with room for the statistics of a group's rows.
    pub fn to(output: &'a mut Output<'_>, stats: &'a mut [Stats]) -> Self {
        Self {
            o: output.o.reborrow(),
            from: 0,
            strides: output.o_strides,
            stats,
            format: output.lse_format,
        }
    }

    /// The same, borrowed anew.
    pub fn reborrow(&mut self) -> Write<'_> {
        Write {
            o: self.o.reborrow(),
            stats: self.stats,
            ..*self
        }
    }
}

/// Rows that are written strip by strip: with more of them the processor sees no order in the lines
/// written, and each is waited for.
const WRITTEN_AT_ONCE: usize = 2;

/// How the rows of a panel are written.
struct Rows {
    /// One over the sum of exponentials.
    inverse: [f32; PANEL_ROWS],
    /// Where they begin in the output.
    start: [usize; PANEL_ROWS],
}

impl Visitor for PanelEnd<'_, '_> {
    type Output = ();

    fn visit<K: Kernel>(mut self, kernel: K) {
        let len = self.group.panel_rows(self.panel);
        let mut increments = [[Increment::NONE; 2]; PANEL_ROWS];
        if let Some(earlier) = self.earlier {
            for (r, increments) in increments[..len].iter_mut().enumerate() {
                *increments = align(earlier, self.part, r);
            }
        }
        let mut write = self.write.take();
        let rows = write.as_mut().map(|write| self.rows(write));
        let mut call = Epilogue {
            rows: 0..0,
            factor: self.factor,
            increments: &increments,
            inverse: rows.as_ref().map(|rows| &rows.inverse),
        };
        let mut write = write.zip(rows.as_ref());
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
                    Some((write, rows)) => {
                        let at = |r: usize| rows.start[r] - write.from + i * STRIP;
                        // The last strip may have columns beyond the width.
                        let width = STRIP.min(d_v - i * STRIP);
                        kernel.epilogue(&call, earlier, o, |r, row| {
                            write.o.write(at(r), &row[..width]);
                        });
                    }
                    None => kernel.epilogue(&call, earlier, o, |_, _| {}),
                }
            }
        }
    }
}

impl PanelEnd<'_, '_> {
    /// Writes the statistics of the rows; returns the place and the factor of their O.
    fn rows(&self, write: &mut Write<'_>) -> Rows {
        let mut rows = Rows {
            inverse: [0.0; PANEL_ROWS],
            start: [0; PANEL_ROWS],
        };
        let problem = self.group.problem;
        for r in 0..self.group.panel_rows(self.panel) {
            let (j, h) = self.group.position(self.panel * PANEL_ROWS + r);
            let (exponent, sum) = (self.part.exponent[r], self.part.sum[r]);
            let empty = !problem.sees_any(self.group.request, self.group.head, j);
            let log2 = log2_sum(exponent, sum);
            // A row that sees keys, all of them with a score of -inf, is 0 / 0 as in
            // the definition.
            let inverse = if empty { 0.0 } else { sum.recip() };
            rows.inverse[r] = match problem.sink {
                // Without a key no sink changes O, not even NaN.
                Some(sink) if !empty => with_sink(inverse, log2, sink[h]),
                _ => inverse,
            };
            write.stats[self.panel * PANEL_ROWS + r] = Stats {
                lse: if empty {
                    write.format.empty.value()
                } else {
                    lse(log2, write.format.base)
                },
                max_logit: max_logit(self.part.max[r], problem.softmax_scale),
            };
            rows.start[r] = self.group.start(j, h, write.strides);
        }
        rows
    }
}

/// Merges the partial results of a panel in the order of their keys, and writes them.
pub fn merge_panel<'b>(
    backend: Backend,
    group: &Group<'_>,
    panel: usize,
    mut parts: impl Iterator<Item = Partial<'b>>,
    write: Write<'_>,
) {
    let mut write = Some(write);
    let (mut earlier, mut next) = (None, parts.next());
    while let Some(mut part) = next {
        next = parts.next();
        backend.with(PanelEnd {
            group,
            panel,
            part: &mut part,
            factor: &[1.0; PANEL_ROWS],
            earlier: earlier.as_ref(),
            write: write.take_if(|_| next.is_none()),
        });
        earlier = Some(part);
    }
}

/// Writes the statistics of a group's rows, which [`Write`] had contiguous, to the output.
pub fn write_stats(group: &Group<'_>, stats: &[Stats], output: &mut Output<'_>) {
    let [s0, s1, s2] = output.lse_strides;
    for (r, stats) in stats[..group.rows.len()].iter().enumerate() {
        let (j, h) = group.position(r);
        // Heads before positions.
        let at = group.start(j, h, [s0, s2, s1]);
        if let Some(lse) = &mut output.lse {
            lse[at] = stats.lse;
        }
        if let Some(max_logits) = &mut output.max_logits {
            max_logits[at] = stats.max_logit;
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
