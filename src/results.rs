//! What tasks leave behind, put together and written: Algorithm 2 line 20.

use core::slice;

use crate::attend::{Group, Partial};
use crate::bits::{Increment, NAN, add_increment_f32, difference, one_nan};
use crate::isa::{Backend, Isa, Visitor};
use crate::problem::{Elements, Lse, LseBase, Output};
use crate::tile::{PANEL_ROWS, STRIP};

/// Brings the exponents of two partial results of a row together, adds their sums, and returns by
/// what O of each moves. Rescaling is again an integer addition: exponents are integers in either
/// mode.
fn meet(total: &mut Partial<'_>, part: &Partial<'_>, row: usize) -> [Increment; 2] {
    let exponent = total.exponent[row].max(part.exponent[row]);
    let moves = [total.exponent[row], part.exponent[row]]
        .map(|own| Increment::pow2(difference(own, exponent)));
    let earlier = add_increment_f32(total.sum[row], moves[0]);
    let later = add_increment_f32(part.sum[row], moves[1]);
    total.exponent[row] = exponent;
    total.sum[row] = earlier + later;
    moves
}

/// Adds the result over later keys to that over earlier ones, `total` to `part`.
pub struct Fold<'a, 'b> {
    /// Over earlier keys, and then over all.
    pub total: &'a mut Partial<'b>,
    /// Over later ones.
    pub part: &'a Partial<'b>,
    /// Of both.
    pub rows: usize,
}

impl Visitor for Fold<'_, '_> {
    type Output = ();

    fn visit<I: Isa>(self, isa: I) {
        let Self { total, part, rows } = self;
        let strips = total.strips();
        for row in 0..rows {
            let [dx, dy] = meet(total, part, row);
            let (panel, r) = (row / PANEL_ROWS, row % PANEL_ROWS);
            let strips = panel * strips..(panel + 1) * strips;
            for (x, y) in total.o[strips.clone()].iter_mut().zip(&part.o[strips]) {
                isa.fold(&mut x[r], dx, &y[r], dy);
            }
        }
    }
}

/// Adds the last result, normalises a panel of rows and writes its O, a strip at a time, while it is
/// in L1. Returns lse.
pub struct Finish<'a, 'b> {
    /// Whose rows they are.
    pub group: &'a Group<'a>,
    /// Which of its panels.
    pub panel: usize,
    /// The panel's result over all keys, the last ones aside.
    pub total: &'a mut Partial<'b>,
    /// That over the last ones.
    pub last: Option<&'a Partial<'b>>,
    /// Whether O's columns are yet to be put in order.
    pub settle: bool,
    /// How lse is written.
    pub lse: Lse,
    /// Strides of the output.
    pub strides: [usize; 3],
    /// The output from element `from` on.
    pub o: Elements<'a>,
    /// See `o`.
    pub from: usize,
}

/// What becomes of a row.
#[derive(Clone, Copy, Default)]
struct Row {
    /// By what it moves, and the last result.
    moves: [Increment; 2],
    /// One over the sum of exponentials.
    inverse: f32,
    lse: f32,
    /// Where it begins in the output.
    start: usize,
}

impl Visitor for Finish<'_, '_> {
    type Output = [f32; PANEL_ROWS];

    fn visit<I: Isa>(mut self, isa: I) -> Self::Output {
        let mut rows = [Row::default(); PANEL_ROWS];
        let len = self.group.panel_rows(self.panel);
        for (r, row) in rows[..len].iter_mut().enumerate() {
            *row = self.row(r);
        }
        for (i, o) in self.total.o.iter_mut().enumerate() {
            if let Some(last) = self.last {
                for ((o, last), row) in o.iter_mut().zip(&last.o[i]).zip(&rows[..len]) {
                    let [dx, dy] = row.moves;
                    isa.fold(o, dx, last, dy);
                }
            }
            if self.settle {
                isa.settle(slice::from_mut(o), len, false);
            }
            for (o, row) in o.iter_mut().zip(&rows[..len]) {
                isa.scale(o, row.inverse);
                self.o.write(row.start - self.from + i * STRIP, o);
            }
        }
        rows.map(|row| row.lse)
    }
}

impl Finish<'_, '_> {
    /// Adds the last result's sum, and says what becomes of the row.
    fn row(&mut self, r: usize) -> Row {
        let problem = self.group.problem;
        let (j, h) = self.group.position(self.panel * PANEL_ROWS + r);
        let moves = self
            .last
            .map_or_else(Default::default, |last| meet(self.total, last, r));
        let (exponent, sum) = (self.total.exponent[r], self.total.sum[r]);
        let empty = !problem.sees_any(self.group.request, j);
        let log2 = log2_sum(exponent, sum);
        // A row that sees keys, all of them with a score of -inf, is 0 / 0 as in
        // the definition.
        let inverse = if empty { 0.0 } else { sum.recip() };
        let inverse = match problem.sink {
            // Without a key, nothing that a sink is changes O: also NaN.
            Some(sink) if !empty => with_sink(inverse, log2, sink[h]),
            _ => inverse,
        };
        Row {
            moves,
            inverse,
            lse: if empty {
                self.lse.empty.value()
            } else {
                lse(log2, self.lse.base)
            },
            start: self.group.start(j, h, self.strides),
        }
    }
}

/// Writes the rows of a group: `total` and the `last` result, if there is one, are those over all
/// keys. `settle`: [`Finish::settle`].
pub fn write(
    backend: Backend,
    group: &Group<'_>,
    total: Partial<'_>,
    last: Option<Partial<'_>>,
    settle: bool,
    output: &mut Output<'_>,
) {
    let mut last = last.map(Partial::panels);
    for (panel, mut total) in total.panels().take(group.panels()).enumerate() {
        let last = last.as_mut().and_then(Iterator::next);
        let lse = backend.with(Finish {
            group,
            panel,
            total: &mut total,
            last: last.as_ref(),
            settle,
            lse: output.lse_format,
            strides: output.o_strides,
            o: output.o.reborrow(),
            from: 0,
        });
        write_lse(group, panel, &lse, output);
    }
}

/// Writes lse of a panel's rows.
pub fn write_lse(
    group: &Group<'_>,
    panel: usize,
    lse: &[f32; PANEL_ROWS],
    output: &mut Output<'_>,
) {
    let [s0, s1, s2] = output.lse_strides;
    for (r, lse) in lse[..group.panel_rows(panel)].iter().enumerate() {
        let (j, h) = group.position(panel * PANEL_ROWS + r);
        // Heads before positions.
        output.lse[group.start(j, h, [s0, s2, s1])] = *lse;
    }
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

/// What O is multiplied by when the sum of exponentials takes a sink in.
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
