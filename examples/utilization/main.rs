//! The paper's performance table on this machine: duration and FLOPS utilization (FU) for every
//! context length, beside the paper's figures, and the roofline.
//!
//! ```text
//! cargo run --release --example utilization
//! cargo run --release --example utilization -- --skinny --svg utilization.svg
//! ```

mod cell;
mod cli;
mod inputs;
mod machine;
mod output;
mod plot;
mod roofline;
mod shapes;

use std::process::ExitCode;
use std::time::Duration;

use amla::{Options, ProblemShape};
use amla_examples::cli::{precision_name, rescale_name};
use amla_examples::engine::Engine;
use amla_examples::progress::Progress;

use crate::cell::Cell;
use crate::cli::Cli;
use crate::inputs::{Caches, Inputs};
use crate::output::Output;
use crate::roofline::{Bandwidth, Roofline, VARIANTS};
use crate::shapes::{CONTEXT, flop, shape};

/// Query heads of the table of 1 to 64 heads.
const SKINNY: [usize; 14] = [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64];

fn main() -> ExitCode {
    amla_examples::cli::main(run)
}

fn run(cli: &Cli) -> Result<ExitCode, String> {
    let options = Options {
        backend: cli.processor.backend()?,
        rescale: cli.rescale,
        precision: cli.precision,
        ..Options::default()
    };
    let contexts = cli.contexts();
    let table: Vec<ProblemShape> = cli
        .s_q()
        .into_iter()
        .flat_map(|s_q| contexts.iter().map(move |&s_k| (s_q, s_k)))
        .map(|(s_q, s_k)| shape(cli.batch, s_q, s_k, cli.heads))
        .collect();
    let longest_point = shape(cli.batch, 2, CONTEXT, 128);
    machine::has_room_for(table.iter().chain([&longest_point]))?;
    let mut output = Output::new(cli)?;
    let threads = cli.processor.threads();
    let engine = Engine::new(options, threads).map_err(|e| e.to_string())?;
    let longest = contexts.iter().fold(CONTEXT, |max, &s_k| max.max(s_k));
    let inputs = Inputs::draw(longest);

    let far = Caches::beyond_the_processor(&inputs, CONTEXT, cli.batch);
    let bandwidth = Bandwidth::measure(far.elements(), threads);
    // JSON has no roofline: each of its lines has its own bound.
    let draws_roofline = !cli.json || cli.svg.is_some();
    let cells = [
        (true, table.len()),
        (cli.skinny, SKINNY.len()),
        (draws_roofline, VARIANTS.len()),
    ];
    let cells = cells.iter().filter(|(measured, _)| *measured);
    let mut bench = Bench {
        progress: Progress::new("measuring", cells.map(|(_, cells)| cells).sum()),
        engine,
        budget: Duration::from_secs_f64(cli.seconds),
        bandwidth,
        inputs,
    };
    output.line(&bench.header(cli))?;

    output.line(&cell::TABLE_HEADER)?;
    let mut cells = Vec::new();
    for shape in table {
        let near = Caches::of(&bench.inputs, shape.s_k, shape.b);
        let cell = bench.cell(shape, "paper", &near)?;
        output.cell(&cell, Cell::table_row)?;
        cells.push(cell);
    }
    for line in cell::growth(&cells) {
        output.line(&line)?;
    }

    let mut skinny = Vec::new();
    if cli.skinny {
        output.line(&cell::skinny_header(&far))?;
        for heads in SKINNY {
            let cell = bench.cell(shape(cli.batch, 1, CONTEXT, heads), "few", &far)?;
            output.cell(&cell, Cell::skinny_row)?;
            skinny.push(cell);
        }
    }

    if draws_roofline {
        let mut points = Vec::new();
        for variant in &VARIANTS {
            let shape = ProblemShape {
                b: cli.batch,
                ..variant.shape
            };
            points.push((variant, bench.cell(shape, "roofline", &far)?));
        }
        let roofline = Roofline::new(bench.bandwidth, threads, &points);
        output.line(&roofline.report())?;
        let figure = plot::Figure {
            title: bench.title(),
            roofline: &roofline,
            skinny: &skinny,
            cells: &cells,
        };
        output.svg(|| plot::draw(&figure))?;
    }
    output.line(&cell::LEGEND)?;
    Ok(ExitCode::SUCCESS)
}

/// Measures cells.
struct Bench {
    progress: Progress,
    engine: Engine,
    budget: Duration,
    bandwidth: Bandwidth,
    inputs: Inputs,
}

impl Bench {
    /// Measures `shape`, of the table of that name, over the caches in turn.
    fn cell(
        &mut self,
        shape: ProblemShape,
        table: &'static str,
        caches: &Caches,
    ) -> Result<Cell, String> {
        let q = self.inputs.queries(shape);
        let problems = caches.problems(shape, &q);
        // The number of requests that there was memory for.
        let shape = problems.first().map_or(shape, |problem| problem.shape);
        let threads = self.engine.threads();
        let mut read_gbs = self.bandwidth.all_threads;
        let measured = match problems.as_slice() {
            [problem] => self.engine.measure(problem, flop(shape), self.budget),
            several => {
                let measured = self
                    .engine
                    .measure_in_turn(several, flop(shape), self.budget);
                // Other programs use memory too: the mean of bandwidths before and after.
                self.bandwidth = Bandwidth::measure(caches.elements(), threads);
                read_gbs = f64::midpoint(read_gbs, self.bandwidth.all_threads);
                measured
            }
        }
        .map_err(|e| e.to_string())?;
        self.progress.step();
        Ok(Cell {
            shape,
            table,
            options: self.engine.options,
            threads,
            read_gbs,
            measured,
        })
    }

    /// Processor, backend and threads, in one line.
    fn title(&self) -> String {
        let threads = self.engine.threads();
        format!(
            "{}, {}, {threads} thread{}",
            machine::processor(),
            self.engine.options.backend.id().name(),
            if threads == 1 { "" } else { "s" },
        )
    }

    fn header(&self, cli: &Cli) -> String {
        format!(
            "amla {}: {}\nbatch {}, h_q {}, d_qk 576, d_v 512, rescale {}, P in {}, {} s a cell\n",
            env!("CARGO_PKG_VERSION"),
            self.title(),
            cli.batch,
            cli.heads,
            rescale_name(cli.rescale),
            precision_name(cli.precision),
            cli.seconds,
        )
    }
}
