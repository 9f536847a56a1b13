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
mod output;
mod sweep;
mod trace;

use std::fs;
use std::process::ExitCode;

use crate::cell::Cell;
use crate::cli::{Cli, Command};
use crate::output::line;
use crate::trace::Trace;

fn main() -> ExitCode {
    match Cli::from_command_line().and_then(|cli| run(&cli)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            output::report_error(&message);
            ExitCode::from(2)
        }
    }
}

fn run(cli: &Cli) -> Result<(), String> {
    match &cli.command {
        None => table(cli),
        Some(Command::Claims) => claims::check(cli),
        Some(Command::Sweep(options)) => sweep::search(cli, options),
        Some(Command::Fit(options)) => fit::report(options),
        Some(Command::Execute(options)) => execute::compare(cli, options),
    }
}

fn table(cli: &Cli) -> Result<(), String> {
    let kernels = cli.kernels()?;
    if !cli.json {
        line(&cell::header(cli))?;
    }
    let mut cells = Vec::new();
    for (shape, kernel) in &kernels {
        let report = kernel.run().map_err(|e| e.to_string())?;
        let cell = Cell::new(*shape, kernel, report);
        line(&if cli.json {
            cell.json().to_string()
        } else {
            cell.row()
        })?;
        cells.push(cell);
    }
    if !cli.json {
        line(&cell::summary(&cells))?;
    }
    if !cli.gantt && cli.svg.is_none() {
        return Ok(());
    }
    let Some((shape, kernel)) = kernels.first() else {
        return Ok(());
    };
    let trace = Trace::of(kernel)?;
    if cli.gantt && !cli.json {
        line(&trace.text(shape))?;
    }
    if let Some(path) = &cli.svg {
        let svg = chart::draw(&trace, shape)?;
        fs::write(path, svg).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
    }
    Ok(())
}
