//! What tasks leave behind, put together and written: Algorithm 2 line 20.

use crate::bits::{Increment, NAN, add_increment_f32, difference, one_nan};
use crate::group::{Group, Partial};
use crate::kernel::{Backend, Close, Kernel, Visitor};
use crate::problem::{Elements, Lse, LseBase, Output};
use crate::tile::{PANEL_ROWS, STRIP};

/// Brings the exponents of two partial results of a row together, adds the earlier one's sum to the other's,
/// and returns by what O of each moves. Rescaling is again an integer addition: exponents are integers in
/// either mode.
fn meet(earlier: &Partial<'_>, part: &mut Partial<'_>, row: usize) -> [Increment; 2] {
    let exponent = earlier.exponent[row].max(part.exponent[row]);
    let moves = [earlier.exponent[row], part.exponent[row]]
        .map(|own| Increment::pow2(difference(own, exponent)));
    let before = add_increment_f32(earlier.sum[row], moves[0]);
    let own = add_increment_f32(part.sum[row], moves[1]);
    part.exponent[row] = exponent;
    part.sum[row] = before + own;
    moves
}

/// Brings a panel's result to its end: with that over earlier keys, if there is one, and to the output, if
/// it is the last.
pub struct End<'a, 'b> {
    /// Whose rows they are.
    pub group: &'a Group<'a>,
    /// Which of its panels.
    pub panel: usize,
    /// The panel's result; over all keys so far, afterwards.
    pub part: &'a mut Partial<'b>,
    /// What its O is multiplied by.
    pub factor: &'a [f32; PANEL_ROWS],
    /// The result over earlier keys.
    pub earlier: Option<&'a Partial<'b>>,
    /// Whether O's columns are yet to be put in order.
    pub settle: bool,
    /// Where it is written.
    pub write: Option<Write<'a>>,
}

/// Where a group's rows are written.
pub struct Write<'a> {
    /// The output from element `from` on.
    pub o: Elements<'a>,
    /// See `o`.
    pub from: usize,
    /// Strides of the output.
    pub strides: [usize; 3],
    /// lse of the rows, one behind the other, panel by panel.
    pub lse: &'a mut [f32],
    /// How lse is.
    pub format: Lse,
}

impl<'a> Write<'a> {
    /// The whole output, with room for lse of a group's rows.
    pub fn to(output: &'a mut Output<'_>, lse: &'a mut [f32]) -> Self {
        Self {
            o: output.o.reborrow(),
            from: 0,
            strides: output.o_strides,
            lse,
            format: output.lse_format,
        }
    }

    /// The same for a while.
    pub fn reborrow(&mut self) -> Write<'_> {
        Write {
            o: self.o.reborrow(),
            lse: self.lse,
            ..*self
        }
    }
}

/// Rows that are written together, strip by strip: with more of them lines to be written follow in no order that the
/// processor sees, and each is waited for (`docs/adr/0023`).
const WRITTEN_AT_ONCE: usize = 2;

/// What the rows of a panel are written with.
struct Rows {
    /// One over the sum of exponentials.
    inverse: [f32; PANEL_ROWS],
    /// Where they begin in the output.
    start: [usize; PANEL_ROWS],
}

impl Visitor for End<'_, '_> {
    type Output = ();

    fn visit<K: Kernel>(mut self, kernel: K) {
        let len = self.group.panel_rows(self.panel);
        let mut moves = [[Increment::NONE; 2]; PANEL_ROWS];
        if let Some(earlier) = self.earlier {
            for (r, moves) in moves[..len].iter_mut().enumerate() {
                *moves = meet(earlier, self.part, r);
            }
        }
        let mut write = self.write.take();
        let rows = write.as_mut().map(|write| self.rows(write));
        let mut call = Close {
            rows: 0..0,
            factor: self.factor,
            moves: &moves,
            inverse: rows.as_ref().map(|rows| &rows.inverse),
            settle: self.settle,
        };
        let mut write = write.zip(rows.as_ref());
        let at_once = match write {
            Some(_) => WRITTEN_AT_ONCE,
            None => PANEL_ROWS,
        };
        for first in (0..len).step_by(at_once) {
            call.rows = first..len.min(first + at_once);
            for (i, o) in self.part.o.iter_mut().enumerate() {
                let earlier = self.earlier.map(|earlier| &earlier.o[i]);
                match &mut write {
                    Some((write, rows)) => {
                        let at = |r: usize| rows.start[r] - write.from + i * STRIP;
                        kernel.close(&call, earlier, o, |r, row| write.o.write(at(r), row));
                    }
                    None => kernel.close(&call, earlier, o, |_, _| {}),
                }
            }
        }
    }
}

impl End<'_, '_> {
    /// Writes their lse; where their O goes, and by what it is multiplied there.
    fn rows(&self, write: &mut Write<'_>) -> Rows {
        let mut rows = Rows {
            inverse: [0.0; PANEL_ROWS],
            start: [0; PANEL_ROWS],
        };
        let problem = self.group.problem;
        for r in 0..self.group.panel_rows(self.panel) {
            let (j, h) = self.group.position(self.panel * PANEL_ROWS + r);
            let (exponent, sum) = (self.part.exponent[r], self.part.sum[r]);
            let empty = !problem.sees_any(self.group.request, j);
            let log2 = log2_sum(exponent, sum);
            // A row that sees keys, all of them with a score of -inf, is 0 / 0 as in
            // the definition.
            let inverse = if empty { 0.0 } else { sum.recip() };
            rows.inverse[r] = match problem.sink {
                // Without a key, nothing that a sink is changes O: also NaN.
                Some(sink) if !empty => with_sink(inverse, log2, sink[h]),
                _ => inverse,
            };
            write.lse[self.panel * PANEL_ROWS + r] = if empty {
                write.format.empty.value()
            } else {
                lse(log2, write.format.base)
            };
            rows.start[r] = self.group.start(j, h, write.strides);
        }
        rows
    }
}

/// Puts the results of a panel over one range of keys after the other together, and writes them.
pub fn together<'b>(
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
        backend.with(End {
            group,
            panel,
            part: &mut part,
            factor: &[1.0; PANEL_ROWS],
            earlier: earlier.as_ref(),
            settle: false,
            write: write.take_if(|_| next.is_none()),
        });
        earlier = Some(part);
    }
}

/// Writes lse of a group's rows, which [`Write`] had one behind the other, to where it belongs.
pub fn write_lse(group: &Group<'_>, lse: &[f32], output: &mut Output<'_>) {
    let [s0, s1, s2] = output.lse_strides;
    for (r, lse) in lse[..group.rows.len()].iter().enumerate() {
        let (j, h) = group.position(r);
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
