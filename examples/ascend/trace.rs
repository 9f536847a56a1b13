//! When each pipe did what: a recording of a run, and a chart of it for the terminal.

use amla::Shape;
use amla::ascend::{Kernel, Observer, Op, Pipe, Work};

/// Gaps between instructions of one stage up to this don't show, in seconds.
const GAP: f64 = 0.3e-6;
/// Characters of a line of the chart.
const COLUMNS: usize = 120;
/// Cycles of the loop that the window on the preload shows.
const CYCLES: usize = 3;

/// A pipe at work on one stage.
#[derive(Clone, Copy)]
pub struct Span {
    pub pipe: Pipe,
    pub work: Work,
    pub start: f64,
    pub end: f64,
}

/// A run.
pub struct Trace {
    pub spans: Vec<Span>,
    /// The kernel's time, in seconds.
    pub end: f64,
    /// The part of it at the start, and that at the end, that charts show: preload with some of the
    /// loop, and the drain.
    pub windows: [(&'static str, f64, f64); 2],
}

#[derive(Default)]
struct Recorder {
    spans: Vec<Span>,
    /// The last span of each pipe.
    last: [Option<usize>; Pipe::ALL.len()],
}

impl Observer for Recorder {
    fn done(&mut self, op: &Op, start: f64, end: f64) {
        let last = &mut self.last[op.pipe.index()];
        if let Some(index) = *last {
            let span = &mut self.spans[index];
            if span.work == op.work && start - span.end < GAP {
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
    /// What goes wrong while `kernel` runs.
    pub fn of(kernel: &Kernel) -> Result<Self, String> {
        let mut recorder = Recorder::default();
        let report = kernel
            .run_with(kernel.order(), &mut recorder)
            .map_err(|e| e.to_string())?;
        let (spans, end) = (recorder.spans, report.kernel_seconds);
        // As many C2 as the loop has cycles in the window, and as much time at the end.
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

    /// The chart.
    pub fn text(&self, shape: &Shape) -> String {
        let mut text = format!(
            "\ns_q {}, s_k {}: {:.1} us without the launch. 1: C1, v: V1, r: Rescale, 2: C2, u: V2, L: Last; CAPITALS and 3, 4: odd blocks\n",
            shape.s_q,
            shape.s_k,
            self.end * 1e6
        );
        for (name, start, end) in self.windows {
            text += &format!("\n{name}, {:.1} to {:.1} us\n", start * 1e6, end * 1e6);
            for pipe in Pipe::ALL {
                text += &format!(
                    "{:>7} |{}|\n",
                    pipe.to_string(),
                    self.lane(pipe, start, end)
                );
            }
        }
        text
    }

    /// One pipe between two moments: the stage that it spends most of each column's time on.
    fn lane(&self, pipe: Pipe, start: f64, end: f64) -> String {
        let column = (end - start) / COLUMNS as f64;
        let mut most = [(column / 4.0, ' '); COLUMNS];
        for span in self.spans.iter().filter(|span| span.pipe == pipe) {
            for (index, (best, letter)) in most.iter_mut().enumerate() {
                let left = start + index as f64 * column;
                let overlap = span.end.min(left + column) - span.start.max(left);
                if overlap > *best {
                    (*best, *letter) = (overlap, name(span.work));
                }
            }
        }
        most.iter().map(|(_, letter)| letter).collect()
    }
}

/// A stage's letter.
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
