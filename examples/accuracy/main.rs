//! The paper's two accuracy tables, computed again: twelve distributions of the inputs, each method's
//! error against Golden, in the scalar references and on this machine's backend.
//!
//! ```text
//! cargo run --release --example accuracy
//! cargo run --release --example accuracy -- --json --svg accuracy.svg
//! ```

mod bars;
mod cli;
mod experiment;
mod inputs;
mod plain;
mod plot;
mod report;

use std::process::ExitCode;

use amla_examples::output::{PlotFile, print, print_object};

use crate::cli::Cli;
use crate::experiment::Experiment;

fn main() -> ExitCode {
    amla_examples::cli::main(run)
}

fn run(cli: &Cli) -> Result<ExitCode, String> {
    let backend = cli.processor.backend()?;
    let svg = cli.svg.as_deref().map(PlotFile::open).transpose()?;

    let experiment = Experiment::new(cli, backend);
    let results = experiment.run(cli.processor.threads())?;

    if let Some(file) = svg {
        file.write(&plot::draw(&experiment, &results)?)?;
    }
    if cli.json {
        print_object(&report::json(&experiment, &results).trim_end())?;
    } else {
        let text = report::tables(&experiment, &results) + &bars::verdicts(&experiment, &results);
        print(&text.trim_end())?;
    }
    Ok(ExitCode::SUCCESS)
}
