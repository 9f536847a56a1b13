//! The paper's two accuracy tables, computed again: twelve distributions of
//! the inputs, each method's error against Golden, in the scalar references
//! and on this machine's backend.
//!
//! ```text
//! cargo run --release --example accuracy
//! cargo run --release --example accuracy -- --json --svg accuracy.svg
//! ```

mod bars;
mod cli;
mod experiment;
mod inputs;
#[path = "../common/metrics.rs"]
mod metrics;
mod plot;
mod report;

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use amla::Backend;

use crate::cli::Cli;
use crate::experiment::Experiment;

fn main() -> ExitCode {
    let cli = match Cli::from_command_line() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("accuracy: {message}");
            ExitCode::from(2)
        }
    }
}

fn run(cli: &Cli) -> Result<(), String> {
    // Before the first backend is chosen: where there is AMX, it is the fastest.
    Backend::permit_amx();
    let backend = match cli.backend {
        Some(id) => Backend::request(id).map_err(|error| error.to_string())?,
        None => Backend::detect(),
    };
    // Before the minutes of work, not after them.
    let svg = cli.svg.as_deref().map(open).transpose()?;

    let experiment = Experiment::new(cli, backend);
    let results = experiment.run(cli.threads)?;

    if let (Some(mut file), Some(path)) = (svg, &cli.svg) {
        let plot = plot::draw(&experiment, &results)?;
        replace(&mut file, &plot)
            .map_err(|error| format!("can't write {}: {error}", path.display()))?;
    }
    let text = if cli.json {
        report::json(&experiment, &results)
    } else {
        report::tables(&experiment, &results) + &bars::verdicts(&experiment, &results)
    };
    match io::stdout().write_all(text.as_bytes()) {
        // The reader has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(format!("can't write the report: {error}")),
        Ok(()) => Ok(()),
    }
}

/// Opens `path` for writing and leaves what it holds alone for now.
fn open(path: &Path) -> Result<File, String> {
    File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(|error| format!("can't write {}: {error}", path.display()))
}

/// Makes `text` all that the just opened `file` holds.
fn replace(file: &mut File, text: &str) -> io::Result<()> {
    // Pipes and devices have no length.
    if file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    file.write_all(text.as_bytes())
}
