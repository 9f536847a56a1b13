//! The paper's performance table on a model of the Ascend 910, beside the paper's figures: duration,
//! FLOPS utilization (FU), the time of each pipe, and the resource that limits the kernel.
//!
//! ```text
//! cargo run --release --example ascend                          # the table
//! cargo run --release --example ascend -- --gantt --svg 910.svg # and the first cell's pipes over time
//! cargo run --release --example ascend -- --heads 64 --algorithm base
//! cargo run --release --example ascend -- claims                # the paper's statements, checked
//! cargo run --release --example ascend -- sweep                 # other tilings
//! cargo run --release --example ascend -- fit                   # the three fitted constants
//! cargo run --release --example ascend -- execute               # on data, against the references
//! ```

mod cell;
mod chart;
mod claims;
mod cli;
mod execute;
mod fit;
mod metrics;
mod sweep;
mod trace;

use std::process::ExitCode;

use amla_examples::output::{PlotFile, print, print_object};
use amla_examples::progress::Progress;

use crate::cell::Cell;
use crate::cli::{Cli, Command};
use crate::trace::Trace;

fn main() -> ExitCode {
    amla_examples::cli::main(run)
}

fn run(cli: &Cli) -> Result<ExitCode, String> {
    match &cli.command {
        None => table(cli),
        Some(Command::Claims) => claims::check(cli),
        Some(Command::Sweep(options)) => sweep::search(cli, options),
        Some(Command::Fit(options)) => fit::report(options),
        Some(Command::Execute(options)) => execute::compare(cli, options),
    }?;
    Ok(ExitCode::SUCCESS)
}

fn table(cli: &Cli) -> Result<(), String> {
    let kernels = cli.kernels()?;
    let svg = cli.svg.as_deref().map(PlotFile::open).transpose()?;
    let progress = Progress::new("cells", kernels.len());
    let mut cells = Vec::new();
    for (shape, kernel) in &kernels {
        let report = kernel.run().map_err(|e| e.to_string())?;
        let cell = Cell::new(*shape, kernel, report);
        if cli.json {
            print_object(&cell.json())?;
        }
        cells.push(cell);
        progress.step();
    }
    if !cli.json {
        print(&cell::tables(cli, &cells))?;
    }
    if !cli.gantt && svg.is_none() {
        return Ok(());
    }
    let Some((shape, kernel)) = kernels.first() else {
        return Ok(());
    };
    let trace = Trace::of(kernel)?;
    if cli.gantt && !cli.json {
        print(&trace.text(shape))?;
    }
    match svg {
        Some(file) => file.write(&chart::draw(&trace, shape)?),
        None => Ok(()),
    }
}
