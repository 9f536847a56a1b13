//! A recording of a run, with the stages of each pipe over time, and its chart for the terminal.

use amla::ProblemShape;
use amla_ascend::{Kernel, Observer, Op, Pipe, Work};
use amla_examples::output::columns;

/// Pauses within a stage up to this length aren't shown, in seconds.
const SHORTEST_PAUSE: f64 = 0.3e-6;
/// Columns of the terminal beside a lane: its name, and what encloses it.
const BESIDE: usize = 11;
/// Columns of a lane.
const LANE: std::ops::RangeInclusive<usize> = 20..=120;
/// Cycles of the loop in the window on the preload.
const CYCLES: usize = 3;

/// An interval in which a pipe works on one stage, in seconds.
#[derive(Clone, Copy)]
pub struct Span {
    pub pipe: Pipe,
    pub work: Work,
    pub start: f64,
    pub end: f64,
}

/// A recorded run.
pub struct Trace {
    pub spans: Vec<Span>,
    /// The kernel's time, in seconds.
    pub end: f64,
    /// The two windows of a chart, as (name, start, end): the preload with the first cycles of the loop, and
    /// the last cycles with the drain.
    pub windows: [(&'static str, f64, f64); 2],
}

#[derive(Default)]
struct Recorder {
    spans: Vec<Span>,
    /// The index of each pipe's last span.
    last: [Option<usize>; Pipe::ALL.len()],
}

impl Observer for Recorder {
    fn done(&mut self, op: &Op, start: f64, end: f64) {
        let last = &mut self.last[op.pipe.index()];
        if let Some(index) = *last {
            let span = &mut self.spans[index];
            if span.work == op.work && start - span.end < SHORTEST_PAUSE {
                span.end = end;
                return;
            }
        }
        *last = Some(self.spans.len());
        let (pipe, work) = (op.pipe, op.work);
        self.spans.push(Span {
            pipe,
            work,
            start,
            end,
        });
    }
}

impl Trace {
    /// # Errors
    /// The defect of `kernel`'s order.
    pub fn of(kernel: &Kernel) -> Result<Self, String> {
        let mut recorder = Recorder::default();
        let report = kernel
            .run_with(kernel.order(), &mut recorder)
            .map_err(|e| e.to_string())?;
        let (spans, end) = (recorder.spans, report.kernel_seconds);
        // The first window ends with the C2 of its last cycle. The second has the same length.
        let shown = spans
            .iter()
            .filter(|span| matches!(span.work, Work::C2(i) if i < CYCLES))
            .fold(0.0, |most: f64, span| most.max(span.end));
        let windows = [
            ("preload and loop", 0.0, shown.min(end)),
            ("loop and drain", (end - shown).max(0.0), end),
        ];
        Ok(Self {
            spans,
            end,
            windows,
        })
    }

    /// The chart for the terminal.
    pub fn text(&self, shape: &ProblemShape) -> String {
        let width = columns().saturating_sub(BESIDE);
        let width = width.clamp(*LANE.start(), *LANE.end());
        let mut text = format!(
            "
s_q {}, s_k {}: {:.1} us without the launch, pipes over time
stages: 1 C1, v V1, r Rescale, 2 C2, u V2, L Last; odd blocks in CAPITALS, or 3 and 4
pipes: MTE2, MTE1, MMAD, FixP of the Cube core; AIV0 and AIV1, the Vector cores
",
            shape.s_q,
            shape.s_k,
            self.end * 1e6
        );
        for (name, start, end) in self.windows {
            text += &format!("\n{name}, {:.1} to {:.1} us\n", start * 1e6, end * 1e6);
            for pipe in Pipe::ALL {
                let lane = self.lane(pipe, [start, end], width);
                text += &format!("{:>8} |{lane}|\n", pipe.to_string());
            }
        }
        text
    }

    /// One line of the chart. A column shows the stage with most of its time.
    fn lane(&self, pipe: Pipe, [start, end]: [f64; 2], width: usize) -> String {
        let column = (end - start) / width as f64;
        let mut most = vec![(column / 4.0, ' '); width];
        for span in self.spans.iter().filter(|span| span.pipe == pipe) {
            for (index, (best, letter)) in most.iter_mut().enumerate() {
                let from = start + index as f64 * column;
                let overlap = span.end.min(from + column) - span.start.max(from);
                if overlap > *best {
                    (*best, *letter) = (overlap, name(span.work));
                }
            }
        }
        most.iter().map(|(_, letter)| letter).collect()
    }
}

/// The letter of a stage.
fn name(work: Work) -> char {
    let (even, odd, item) = match work {
        Work::C1(i) => ('1', '3', i),
        Work::C2(i) => ('2', '4', i),
        Work::V1(i) => ('v', 'V', i),
        Work::Rescale(i) => ('r', 'R', i),
        Work::V2(i) => ('u', 'U', i),
        Work::Last(_) => ('L', 'L', 0),
    };
    if item.is_multiple_of(2) { even } else { odd }
}
