//! The command line.

use std::path::PathBuf;

use amla::{Precision, Rescale};
use amla_examples::cli::{Processor, precisions, rescales, within};
use amla_examples::paper;
use clap::Parser;

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

    #[command(flatten)]
    pub processor: Processor,

    /// How the accumulator follows the running maximum
    #[arg(long, value_name = "MODE", default_value = "exact", value_parser = rescales())]
    pub rescale: Rescale,

    /// How probabilities enter the second product
    #[arg(long, default_value = "bf16", value_parser = precisions())]
    pub precision: Precision,

    /// Also measure 1 to 64 query heads at context 4096, with keys from memory
    #[arg(long, alias = "few")]
    pub skinny: bool,

    /// Time to measure each cell
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
    /// The table's columns.
    pub fn contexts(&self) -> Vec<usize> {
        or_else(&self.context, &paper::CONTEXTS)
    }

    /// The table's rows.
    pub fn s_q(&self) -> Vec<usize> {
        or_else(&self.s_q, &paper::S_Q)
    }
}

/// The given values, or the default.
fn or_else(given: &[usize], default: &[usize]) -> Vec<usize> {
    if given.is_empty() { default } else { given }.to_vec()
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (1e-3..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("not a number from 0.001 to 3600".to_owned()),
    }
}
