//! The figures as tables for people and as JSON for programs.

use std::fmt::Write;

use serde_json::json;

use crate::experiment::{Column, Engine, Experiment, Format, Method, RUNS, Run};
use crate::inputs::{Distribution, Dtype};

/// One line per distribution, run and output format. An error that isn't a
/// finite number is `null`.
pub fn json(experiment: &Experiment, columns: &[Column]) -> String {
    let mut text = String::new();
    for column in columns {
        for run in &RUNS {
            for format in Format::ALL {
                let score = column.score(run, format);
                let line = json!({
                    "distribution": column.distribution.name,
                    "method": run.method.name(),
                    "engine": experiment.engine_name(run.engine),
                    "precision": run.precision_name(),
                    "output": format.name(),
                    "error": score.error,
                    "standard_error": (experiment.samples > 1).then_some(score.deviation),
                    "max_abs_error": score.worst,
                    "paper": paper(run, format, column.distribution),
                    "samples": experiment.samples,
                    "rows": experiment.rows,
                    "context": experiment.context,
                    "block_n": match run.engine {
                        Engine::Reference => experiment.block_n,
                        Engine::Kernel => amla::BLOCK_KEYS,
                    },
                    "seed": experiment.seed,
                });
                writeln!(text, "{line}").expect("a string has room");
            }
        }
        for (dtype, engine) in unrounded() {
            let score = column.unrounded(dtype, engine);
            let line = json!({
                "distribution": column.distribution.name,
                "inputs": dtype.name(),
                "method": match engine {
                    Engine::Reference => "plain_fp32",
                    Engine::Kernel => Method::Exact.name(),
                },
                "engine": experiment.engine_name(engine),
                "output": Format::F32.name(),
                "error": score.error,
                "standard_error": (experiment.samples > 1).then_some(score.deviation),
                "max_abs_error": score.worst,
                "samples": experiment.samples,
                "rows": experiment.rows,
                "context": experiment.context,
                "seed": experiment.seed,
            });
            writeln!(text, "{line}").expect("a string has room");
        }
    }
    text
}

/// What is measured of inputs that aren't rounded to BF16.
fn unrounded() -> impl Iterator<Item = (Dtype, Engine)> {
    let engines = [Engine::Reference, Engine::Kernel];
    let pairs = Dtype::ALL.into_iter();
    pairs.flat_map(move |dtype| engines.map(|engine| (dtype, engine)))
}

/// What computes these, in tables.
pub fn unrounded_label(experiment: &Experiment, engine: Engine) -> String {
    match engine {
        Engine::Reference => "plain FP32 in the same order".to_owned(),
        Engine::Kernel => format!("exact, {}", experiment.engine_name(engine)),
    }
}

/// The paper's figure for the same thing, if it has one.
fn paper(run: &Run, format: Format, distribution: &Distribution) -> Option<f64> {
    match (run.method, format) {
        (_, Format::F32) | (Method::Exact, _) => None,
        (Method::Base, _) => Some(distribution.paper_base),
        (Method::AsPrinted | Method::Compensated, _) => Some(distribution.paper_amla),
    }
}

/// The paper's two tables, each for both output formats.
pub fn tables(experiment: &Experiment, columns: &[Column]) -> String {
    let mut text = format!(
        "Relative Frobenius error against Golden (f64 of the same BF16 inputs).\n\
         Context {}, samples {}, rows a sample {}, keys a block {} (kernel: {}), d_qk 576, d_v 512, seed {}.\n",
        experiment.context,
        experiment.samples,
        experiment.rows,
        experiment.block_n,
        amla::BLOCK_KEYS,
        experiment.seed,
    );
    for (family, is_normal) in [("Normal", true), ("Uniform", false)] {
        let columns: Vec<_> = columns
            .iter()
            .filter(|column| column.distribution.is_normal() == is_normal)
            .collect();
        if columns.is_empty() {
            continue;
        }
        for format in Format::ALL {
            let title = format!("{family} inputs, {} output", format.title());
            text += &table(&title, format, experiment, &columns);
        }
        for dtype in Dtype::ALL {
            let title = format!("{family} inputs in {}, FP32 output", dtype.title());
            text += &heading(&title, &columns);
            for engine in [Engine::Reference, Engine::Kernel] {
                text += &row(&unrounded_label(experiment, engine), &columns, &|column| {
                    column.unrounded(dtype, engine).error
                });
            }
        }
    }
    text
}

fn heading(title: &str, columns: &[&Column]) -> String {
    let mut text = format!("\n{title:<34}");
    for column in columns {
        text += &format!(" {:>9}", column.distribution.name);
    }
    text + "\n"
}

fn row(label: &str, columns: &[&Column], error: &dyn Fn(&Column) -> f64) -> String {
    let mut text = format!("  {label:<32}");
    for column in columns {
        text += &format!(" {:>9.2e}", error(column));
    }
    text + "\n"
}

fn table(title: &str, format: Format, experiment: &Experiment, columns: &[&Column]) -> String {
    let mut text = heading(title, columns);
    let mut row = |label: &str, error: &dyn Fn(&Column) -> f64| {
        text += &row(label, columns, error);
    };
    let bf16 = format == Format::Bf16;
    if bf16 {
        row("the paper's Base", &|column| column.distribution.paper_base);
        row("the paper's AMLA", &|column| column.distribution.paper_amla);
    }
    for run in &RUNS {
        row(&label(experiment, run), &|column| {
            column.score(run, format).error
        });
    }
    if bf16 {
        row("Golden rounded to BF16", &|column| column.rounding().error);
    }
    text
}

/// A run's name in tables and plots.
pub fn label(experiment: &Experiment, run: &Run) -> String {
    let precision = match run.precision {
        amla::Precision::Bf16 => String::new(),
        amla::Precision::Bf16x2 => format!(" {}", run.precision_name()),
    };
    format!(
        "{}{precision}, {}",
        run.method.title(),
        experiment.engine_name(run.engine)
    )
}
