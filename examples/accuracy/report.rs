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

/// What computes these: its name, and whose it is.
fn unrounded_names(experiment: &Experiment, engine: Engine) -> [&'static str; 2] {
    let name = match engine {
        Engine::Reference => "plain FP32",
        Engine::Kernel => "exact",
    };
    [name, experiment.engine_name(engine)]
}

/// The kernel's name for these in what is said of it.
pub fn unrounded_label(experiment: &Experiment) -> String {
    unrounded_names(experiment, Engine::Kernel).join(", ")
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
                let [name, group] = unrounded_names(experiment, engine);
                text += &format!("{group}\n");
                text += &row(name, &columns, &|column| {
                    column.unrounded(dtype, engine).error
                });
            }
        }
    }
    text
}

/// A table's title, and the names of its columns.
fn heading(title: &str, columns: &[&Column]) -> String {
    let names = columns.iter().map(|column| column.distribution.name);
    let names: String = names.map(|name| format!(" {name:>9}")).collect();
    format!("\n{title}\n{:20}{names}\n", "")
}

fn row(name: &str, columns: &[&Column], error: &dyn Fn(&Column) -> f64) -> String {
    let errors = columns.iter().map(|column| error(column));
    let errors: String = errors.map(|error| format!(" {error:>9.2e}")).collect();
    format!("  {name:<18}{errors}\n")
}

/// Rows of one origin stand below its name.
fn table(title: &str, format: Format, experiment: &Experiment, columns: &[&Column]) -> String {
    let mut text = heading(title, columns);
    let bf16 = format == Format::Bf16;
    if bf16 {
        text += "the paper\n";
        text += &row("Base", columns, &|column| column.distribution.paper_base);
        text += &row("AMLA", columns, &|column| column.distribution.paper_amla);
    }
    for engine in [Engine::Reference, Engine::Kernel] {
        text += &format!("{}\n", experiment.engine_name(engine));
        for run in RUNS.iter().filter(|run| run.engine == engine) {
            text += &row(&run_name(run), columns, &|column| {
                column.score(run, format).error
            });
        }
    }
    if bf16 {
        text += "Golden\n";
        text += &row("rounded to BF16", columns, &|column| {
            column.rounding().error
        });
    }
    text
}

/// A run's method and precision.
fn run_name(run: &Run) -> String {
    let precision = match run.precision {
        amla::Precision::Bf16 => String::new(),
        amla::Precision::Bf16x2 => format!(" {}", run.precision_name()),
    };
    run.method.title().to_owned() + &precision
}

/// A run's name in plots, and in what is said of it.
pub fn label(experiment: &Experiment, run: &Run) -> String {
    format!("{}, {}", run_name(run), experiment.engine_name(run.engine))
}
