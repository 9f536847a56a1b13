//! The paper's performance table on this machine: duration and FLOPS utilization
//! (FU) for every context length, beside the paper's figures, and the roofline.
//!
//! ```text
//! cargo run --release --example utilization
//! cargo run --release --example utilization -- --few --svg utilization.svg
//! ```

mod cell;
mod cli;
#[path = "../common/engine.rs"]
mod engine;
mod inputs;
mod machine;
mod output;
#[path = "../common/paper.rs"]
mod paper;
mod plot;
mod roofline;

use std::process::ExitCode;
use std::time::Duration;

use amla::{Backend, Options, Shape};

use crate::cell::Cell;
use crate::cli::Cli;
use crate::engine::Engine;
use crate::inputs::{Caches, Inputs, flop, shape};
use crate::output::Output;
use crate::roofline::{Bandwidth, VARIANTS};

/// Context length of the roofline and of the table of few heads.
const CONTEXT: usize = 4096;
/// Query rows of the table of few heads.
const FEW: [usize; 14] = [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64];

fn main() -> ExitCode {
    match Cli::from_command_line().and_then(|cli| run(&cli)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            output::complain(&message);
            ExitCode::from(2)
        }
    }
}

fn run(cli: &Cli) -> Result<(), String> {
    // Before the first backend is chosen: where there is AMX, it is the fastest.
    Backend::permit_amx();
    let options = Options {
        backend: match cli.backend {
            Some(id) => Backend::request(id).map_err(|e| e.to_string())?,
            None => Backend::detect(),
        },
        rescale: cli.rescale,
        precision: cli.precision,
    };
    let contexts = cli.contexts();
    let table: Vec<Shape> = cli
        .s_q()
        .into_iter()
        .flat_map(|s_q| contexts.iter().map(move |&s_k| (s_q, s_k)))
        .map(|(s_q, s_k)| shape(cli.batch, s_q, s_k, cli.heads))
        .collect();
    let longest_point = shape(cli.batch, 2, CONTEXT, 128);
    machine::has_room_for(table.iter().chain([&longest_point]))?;
    let mut output = Output::new(cli)?;
    let threads = cli.threads.unwrap_or_else(machine::processors);
    let engine = Engine::new(options, threads).map_err(|e| e.to_string())?;
    let longest = contexts.iter().fold(CONTEXT, |max, &s_k| max.max(s_k));
    let inputs = Inputs::draw(longest);

    let far = Caches::beyond_the_processor(&inputs, CONTEXT, cli.batch);
    let bandwidth = Bandwidth::measure(far.elements(), threads);
    let mut bench = Bench {
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

    let mut few = Vec::new();
    if cli.few {
        output.line(&cell::few_header(&far))?;
        for heads in FEW {
            let cell = bench.cell(shape(cli.batch, 1, CONTEXT, heads), "few", &far)?;
            output.cell(&cell, Cell::few_row)?;
            few.push(cell);
        }
    }

    // Only the table and the plot show it: each line of JSON has its own bound.
    if !cli.json || cli.svg.is_some() {
        let mut points = Vec::new();
        for variant in &VARIANTS {
            let shape = Shape {
                b: cli.batch,
                ..variant.shape
            };
            points.push((variant, bench.cell(shape, "roofline", &far)?));
        }
        output.line(&roofline::report(&bench.bandwidth, threads, &points))?;
        let figure = plot::Figure {
            title: bench.title(),
            bandwidth: bench.bandwidth,
            threads,
            points: &points,
            few: &few,
            cells: &cells,
        };
        output.svg(|| plot::draw(&figure))?;
    }
    output.line(&cell::LEGEND)
}

/// What measures cells.
struct Bench {
    engine: Engine,
    budget: Duration,
    bandwidth: Bandwidth,
    inputs: Inputs,
}

impl Bench {
    /// Measures `shape`, of the table of that name, with each of the caches in turn.
    fn cell(&mut self, shape: Shape, table: &'static str, caches: &Caches) -> Result<Cell, String> {
        let q = self.inputs.queries(shape);
        let problems = caches.problems(shape, &q);
        // Of as many requests as there was room for.
        let shape = problems.first().map_or(shape, |problem| problem.shape);
        let threads = self.engine.threads();
        let mut read_gbs = self.bandwidth.all_threads;
        let measured = match problems.as_slice() {
            [problem] => self.engine.measure(problem, flop(shape), self.budget),
            several => {
                let measured = self
                    .engine
                    .measure_in_turn(several, flop(shape), self.budget);
                // Memory is shared with neighbours too: what it gives before and after.
                self.bandwidth = Bandwidth::measure(caches.elements(), threads);
                read_gbs = f64::midpoint(read_gbs, self.bandwidth.all_threads);
                measured
            }
        }
        .map_err(|e| e.to_string())?;
        Ok(Cell {
            shape,
            table,
            options: self.engine.options,
            threads,
            read_gbs,
            measured,
        })
    }

    /// Where and how, in one line.
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
            cell::rescale_name(cli.rescale),
            cell::precision_name(cli.precision),
            cli.seconds,
        )
    }
}
