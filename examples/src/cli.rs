//! What the command lines have in common.

use std::process::ExitCode;
use std::thread::available_parallelism;

use amla::{Backend, BackendId, Inputs, Precision, Rescale};
use clap::builder::{PossibleValuesParser, RangedU64ValueParser, TypedValueParser};
use clap::{Args, Parser};

use crate::output::{columns, tell};

/// Parses the command line and runs the program. An error of either is one line on standard
/// error, `error: ` and what is wrong, and exit code 2.
pub fn main<A: Parser>(run: impl FnOnce(&A) -> Result<ExitCode, String>) -> ExitCode {
    let command = A::command().term_width(columns());
    let parsed = command.try_get_matches();
    let result = match parsed.and_then(|mut matches| A::from_arg_matches_mut(&mut matches)) {
        Ok(args) => run(&args),
        Err(e) if !e.use_stderr() => e.exit(),
        Err(e) => {
            let text = e.render().to_string();
            let first = text.split("\n\n").next().unwrap_or_default();
            Err(first.trim_start_matches("error: ").to_owned())
        }
    };
    result.unwrap_or_else(|message| {
        tell("error", &message);
        ExitCode::from(2)
    })
}

/// Options for the backend and its threads.
#[derive(Args)]
#[command(about = None, long_about = None)]
pub struct Processor {
    /// Kernel to use [default: the fastest that this processor runs]
    #[arg(long, value_name = "NAME", value_parser = backends())]
    backend: Option<BackendId>,

    /// Threads of the kernel [default: one per processor]
    #[arg(long, value_name = "N", value_parser = within(1024))]
    threads: Option<usize>,
}

impl Processor {
    /// The backend that the options name, or the fastest.
    ///
    /// # Errors
    /// The processor lacks its instructions.
    pub fn backend(&self) -> Result<Backend, String> {
        // Before the first backend is chosen: where there is AMX, it is the fastest.
        Backend::permit_amx();
        match self.backend {
            Some(id) => Backend::request(id).map_err(|e| e.to_string()),
            None => Ok(Backend::detect()),
        }
    }

    /// The number of threads.
    pub fn threads(&self) -> usize {
        self.threads.unwrap_or_else(processors)
    }
}

/// The number of processors that this process may use.
pub fn processors() -> usize {
    available_parallelism().map_or(1, usize::from)
}

/// Parses a backend's name.
pub fn backends() -> impl TypedValueParser<Value = BackendId> {
    named(BackendId::ALL, BackendId::name)
}

/// Parses the name of a [`Rescale`].
pub fn rescales() -> impl TypedValueParser<Value = Rescale> {
    named([Rescale::Exact, Rescale::Compensated], rescale_name)
}

/// Parses the name of a [`Precision`].
pub fn precisions() -> impl TypedValueParser<Value = Precision> {
    named([Precision::Bf16, Precision::Bf16x2], precision_name)
}

/// Parses the name of an [`Inputs`].
pub fn inputs() -> impl TypedValueParser<Value = Inputs> {
    named([Inputs::AsGiven, Inputs::Bf16], inputs_name)
}

/// Parses a number from 1 to `max`.
pub fn within(max: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=max)
}

/// Parses one of `values` by its name.
pub fn named<T: Copy + Send + Sync + 'static, const N: usize>(
    values: [T; N],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(values.map(name)).try_map(move |given| {
        values
            .into_iter()
            .find(|&value| name(value) == given)
            .ok_or("unknown value")
    })
}

/// The name of a mode on command lines, in tables and in JSON.
pub const fn rescale_name(rescale: Rescale) -> &'static str {
    match rescale {
        Rescale::Exact => "exact",
        Rescale::Compensated => "compensated",
    }
}

/// The name of how inputs are taken on command lines, in tables and in JSON.
pub const fn inputs_name(inputs: Inputs) -> &'static str {
    match inputs {
        Inputs::AsGiven => "as-given",
        Inputs::Bf16 => "bf16",
    }
}

/// The name of a precision on command lines, in tables and in JSON.
pub const fn precision_name(precision: Precision) -> &'static str {
    match precision {
        Precision::Bf16 => "bf16",
        Precision::Bf16x2 => "bf16x2",
    }
}
