//! The command line.

use std::path::PathBuf;

use amla::{BackendId, Precision, Rescale};
use clap::Parser;
use clap::builder::{PossibleValuesParser, RangedU64ValueParser, TypedValueParser};

use crate::cell;
use crate::paper;

/// The paper's performance table on this machine, beside the paper's figures,
/// and the roofline.
#[derive(Parser)]
#[command(name = "utilization", version)]
pub struct Cli {
    /// Requests of a call
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = within(1024))]
    pub batch: usize,

    /// Query heads of the table, h_q
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = within(1024))]
    pub heads: usize,

    /// Keys of a request, s_k [repeatable; default: the paper's]
    #[arg(long, value_name = "N", value_parser = within(1 << 20))]
    context: Vec<usize>,

    /// Query positions of a request [repeatable; default: the paper's]
    #[arg(long, value_name = "N", value_parser = within(64))]
    s_q: Vec<usize>,

    /// Threads [default: one per processor]
    #[arg(long, value_name = "N", value_parser = within(1024))]
    pub threads: Option<usize>,

    /// Kernel to use [default: the fastest that this processor runs]
    #[arg(long, value_name = "NAME", value_parser = named(BackendId::ALL, BackendId::name))]
    pub backend: Option<BackendId>,

    /// How the accumulator follows the running maximum
    #[arg(long, value_name = "MODE", default_value = "exact",
          value_parser = named([Rescale::Exact, Rescale::Compensated], cell::rescale_name))]
    pub rescale: Rescale,

    /// How probabilities enter the second product
    #[arg(long, default_value = "bf16",
          value_parser = named([Precision::Bf16, Precision::Bf16x2], cell::precision_name))]
    pub precision: Precision,

    /// Also measure 1 to 64 query heads at context 4096, with caches that come from memory
    #[arg(long)]
    pub few: bool,

    /// How long to measure each cell
    #[arg(long, value_name = "S", default_value_t = 3.0, value_parser = seconds)]
    pub seconds: f64,

    /// One JSON object per line and cell instead of the tables
    #[arg(long)]
    pub json: bool,

    /// Also write a plot of the roofline and of FU
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

impl Cli {
    /// The parsed command line; prints help and ends the program if asked to.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn from_command_line() -> Result<Self, String> {
        Self::try_parse().map_err(|e| {
            if !e.use_stderr() {
                e.exit();
            }
            let text = e.render().to_string();
            let first = text.split("\n\n").next().unwrap_or_default();
            first.trim_start_matches("error: ").to_owned()
        })
    }

    /// The table's columns.
    pub fn contexts(&self) -> Vec<usize> {
        or_else(&self.context, &paper::CONTEXTS)
    }

    /// The table's rows.
    pub fn s_q(&self) -> Vec<usize> {
        or_else(&self.s_q, &paper::S_Q)
    }
}

/// What was given, or the default.
fn or_else(given: &[usize], default: &[usize]) -> Vec<usize> {
    if given.is_empty() { default } else { given }.to_vec()
}

/// From 1 to `max`.
fn within(max: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=max)
}

/// Reads one of `values` by its name.
fn named<T: Copy + Send + Sync + 'static, const N: usize>(
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

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (1e-3..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("not a number from 0.001 to 3600".to_owned()),
    }
}
