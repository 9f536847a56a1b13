//! Upper bounds on errors, each beside the measured error.

use std::fmt::Write;

use amla::Precision::{Bf16, Bf16x2};

use crate::experiment::{Column, Engine, Experiment, Format, Method, RUNS, Run};
use crate::inputs::{DISTRIBUTIONS, Dtype};
use crate::report::{label, unrounded_label};

/// Columns, of the twelve, in which exact must be at most [`MUCH_BETTER`] x Base.
const MUCH_BETTER_IN: usize = 9;
const MUCH_BETTER: f64 = 0.7;
/// Inputs of unit size.
const UNIT: [&str; 2] = ["N(0,1)", "U(-1,1)"];

const BASE: Run = Run::new(Method::Base, Engine::Reference, Bf16);

/// An upper bound, and the measured figures.
struct Bar {
    what: String,
    /// The figure of each column that the bar is about.
    figures: Vec<(f64, &'static str)>,
    limit: f64,
    /// How a figure and the limit are written.
    write: fn(f64) -> String,
}

impl Bar {
    /// Its line of the report; none without a column that it is about.
    fn verdict(&self) -> Option<String> {
        let worst = self.figures.iter().max_by(|a, b| a.0.total_cmp(&b.0))?;
        let met = self.figures.iter().all(|&(figure, _)| figure <= self.limit);
        Some(line(
            met,
            &format!(
                "{}: {} at {}; bar {}",
                self.what,
                (self.write)(worst.0),
                worst.1,
                (self.write)(self.limit),
            ),
        ))
    }
}

fn line(met: bool, what: &str) -> String {
    format!("  {}  {what}\n", if met { "met   " } else { "missed" })
}

fn percent(fraction: f64) -> String {
    format!("{:.2} %", fraction * 100.0)
}

fn in_units(ratio: f64) -> String {
    format!("{ratio:.3} x")
}

/// `a / b`, where equal errors are equal even if both are 0.
fn ratio(a: f64, b: f64) -> f64 {
    if a == b { 1.0 } else { a / b }
}

fn error(error: f64) -> String {
    format!("{error:.2e}")
}

/// One line per bar: `met` or `missed`, the bar, the worst figure and its column.
pub fn verdicts(experiment: &Experiment, columns: &[Column]) -> String {
    let mut text = String::from("\nBars, each with the worst figure against it\n");
    if experiment.context != 8192 || experiment.samples * experiment.rows < 640 {
        text += "  (stated for context 8192 and 640 rows a column or more: this run has other conditions)\n";
    }
    if experiment.block_n != amla::BLOCK_KEYS {
        text += "  (stated for references with the kernel's block: this run has another)\n";
    }
    for tolerance in [0.03, 0.10] {
        let bar = base(columns, tolerance);
        text.extend(bar.verdict());
        let of_base = |column: &Column| column.score(&BASE, Format::Bf16).standard_error();
        text.extend(luck(experiment, columns, &bar, of_base));
    }
    for engine in [Engine::Reference, Engine::Kernel] {
        let exact = Run::new(Method::Exact, engine, Bf16);
        let bar = against_base(experiment, columns, &exact, Format::F32, 1.02);
        text.extend(bar.verdict());
        if columns.len() == DISTRIBUTIONS.len() {
            let better = bar.figures.iter().filter(|f| f.0 <= MUCH_BETTER).count();
            text += &line(
                better >= MUCH_BETTER_IN,
                &format!(
                    "{} or less: in {better} columns; bar {MUCH_BETTER_IN}",
                    bar.what.clone() + ", " + &in_units(MUCH_BETTER),
                ),
            );
        }
    }
    for engine in [Engine::Reference, Engine::Kernel] {
        let run = Run::new(Method::Compensated, engine, Bf16);
        text.extend(against_base(experiment, columns, &run, Format::Bf16, 1.03).verdict());
    }
    for run in &RUNS {
        for format in Format::ALL {
            text.extend(agreement(experiment, columns, run, format).and_then(|bar| bar.verdict()));
        }
    }
    for engine in [Engine::Reference, Engine::Kernel] {
        let run = Run::new(Method::Exact, engine, Bf16x2);
        let bar = Bar {
            what: format!("{}, FP32 output", label(experiment, &run)),
            figures: figures(columns, |column| column.score(&run, Format::F32).error),
            limit: 2e-5,
            write: error,
        };
        text.extend(bar.verdict());
    }
    for dtype in Dtype::ALL {
        let [unit, other] = unrounded(experiment, columns, dtype);
        text.extend(unit.verdict());
        text.extend(other.verdict());
        // Both errors are drawn.
        let of_ratio = |column: &Column| {
            let of = |engine| column.unrounded(dtype, engine).standard_error();
            f64::hypot(of(Engine::Kernel), of(Engine::Reference))
        };
        text.extend(luck(experiment, columns, &other, of_ratio));
    }
    text
}

/// The kernel on inputs that aren't rounded: of unit size by its error, of others against plain FP32.
fn unrounded(experiment: &Experiment, columns: &[Column], dtype: Dtype) -> [Bar; 2] {
    let what = format!(
        "{}, inputs in {}, FP32 output",
        unrounded_label(experiment),
        dtype.title()
    );
    let (unit, other): (Vec<_>, Vec<_>) = columns
        .iter()
        .map(|column| {
            let error = |engine| column.unrounded(dtype, engine).error;
            let name = column.distribution.name;
            (name, error(Engine::Kernel), error(Engine::Reference))
        })
        .partition(|(name, ..)| UNIT.contains(name));
    [
        Bar {
            what: what.clone(),
            figures: unit.into_iter().map(|(name, got, _)| (got, name)).collect(),
            limit: 2e-6,
            write: error,
        },
        Bar {
            what: what + ", over plain FP32",
            figures: other
                .into_iter()
                .map(|(name, got, plain)| (ratio(got, plain), name))
                .collect(),
            limit: 1.2,
            write: in_units,
        },
    ]
}

fn figures(columns: &[Column], figure: impl Fn(&Column) -> f64) -> Vec<(f64, &'static str)> {
    columns
        .iter()
        .map(|column| (figure(column), column.distribution.name))
        .collect()
}

/// Our Base against the paper's, where `tolerance` is allowed.
fn base(columns: &[Column], tolerance: f64) -> Bar {
    let columns = columns
        .iter()
        .filter(|column| column.distribution.base_tolerance == Some(tolerance));
    let mut names = String::new();
    let figures = columns
        .map(|column| {
            let distribution = column.distribution;
            let separator = if names.is_empty() { "" } else { " " };
            write!(names, "{separator}{}", distribution.name).expect("a string has room");
            let ours = column.score(&BASE, Format::Bf16).error;
            let paper = distribution.paper_base;
            ((ratio(ours, paper) - 1.0).abs(), distribution.name)
        })
        .collect();
    Bar {
        what: format!("Base, BF16 output, off the paper's by, of {names}"),
        figures,
        limit: tolerance,
        write: percent,
    }
}

/// How much of the figures of `bar` the draw of the inputs may be to blame for: the largest `share` of its columns.
fn luck(
    experiment: &Experiment,
    columns: &[Column],
    bar: &Bar,
    share: impl Fn(&Column) -> f64,
) -> Option<String> {
    if experiment.samples == 1 {
        return None;
    }
    let shares = columns
        .iter()
        .filter(|column| bar.figures.iter().any(|f| f.1 == column.distribution.name))
        .map(|column| (share(column), column.distribution.name));
    let (most, name) = shares.max_by(|a, b| a.0.total_cmp(&b.0))?;
    Some(format!(
        "          (standard error, by the draw of the inputs: {} at {name})\n",
        percent(most)
    ))
}

/// A run against Base.
fn against_base(
    experiment: &Experiment,
    columns: &[Column],
    run: &Run,
    format: Format,
    limit: f64,
) -> Bar {
    Bar {
        what: format!(
            "{}, {} output, over Base",
            label(experiment, run),
            format.title()
        ),
        figures: figures(columns, |column| {
            ratio(
                column.score(run, format).error,
                column.score(&BASE, format).error,
            )
        }),
        limit,
        write: in_units,
    }
}

/// A run of the kernel against the reference for the same, if there is one.
fn agreement(
    experiment: &Experiment,
    columns: &[Column],
    run: &Run,
    format: Format,
) -> Option<Bar> {
    let reference = Run {
        engine: Engine::Reference,
        ..*run
    };
    if run.engine == Engine::Reference || !RUNS.contains(&reference) {
        return None;
    }
    Some(Bar {
        what: format!(
            "{}, {} output, off its reference by",
            label(experiment, run),
            format.title()
        ),
        figures: figures(columns, |column| {
            let reference = column.score(&reference, format).error;
            (ratio(column.score(run, format).error, reference) - 1.0).abs()
        }),
        limit: 0.02,
        write: percent,
    })
}
