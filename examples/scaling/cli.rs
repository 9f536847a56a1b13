//! The command line.

use std::path::PathBuf;

use amla::ProblemShape;
use amla_examples::cli::{Processor, within};
use clap::Parser;

/// Speed-up on 1 to 256 threads, simulated from what a plan's tasks and merges take one by one
/// on this machine.
#[derive(Parser)]
#[command(name = "scaling", version)]
pub struct Cli {
    /// Query heads, h_q [repeatable; default: 128 and 16]
    #[arg(long, value_name = "N", value_parser = within(1024))]
    heads: Vec<usize>,

    /// Keys, s_k [repeatable; default: 1024, 4096, 16384, 65536]
    #[arg(long, value_name = "N", value_parser = within(1 << 20))]
    context: Vec<usize>,

    /// Threads to simulate [repeatable; default: 1, 2, 4, ..., 256]
    #[arg(long, value_name = "N", value_parser = within(1024))]
    workers: Vec<usize>,

    #[command(flatten)]
    pub processor: Processor,

    /// Memory bandwidth that all threads share in the second set of rows, in GB/s
    #[arg(long, value_name = "GB/S", default_value_t = 300, value_parser = within(100_000))]
    pub bandwidth: usize,

    /// Times that each step is measured
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = within(1000))]
    pub repetitions: usize,

    /// One JSON object per line and number of threads, without and with the limit of bandwidth
    #[arg(long)]
    pub json: bool,

    /// Also write a plot of the speed-up
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

impl Cli {
    /// One request of each number of heads and keys.
    pub fn shapes(&self) -> Vec<ProblemShape> {
        let contexts = given(&self.context, &[1024, 4096, 16_384, 65_536]);
        let shape = |h_q, s_k| ProblemShape {
            b: 1,
            s_q: 1,
            s_k,
            h_q,
            h_kv: 1,
            d_qk: 576,
            d_v: 512,
        };
        let heads = given(&self.heads, &[128, 16]);
        let shapes = heads
            .iter()
            .flat_map(|&h_q| contexts.iter().map(move |&s_k| shape(h_q, s_k)));
        shapes.collect()
    }

    /// Numbers of threads.
    pub fn workers(&self) -> Vec<usize> {
        given(&self.workers, &[1, 2, 4, 8, 16, 32, 64, 128, 256])
    }
}

fn given(values: &[usize], default: &[usize]) -> Vec<usize> {
    if values.is_empty() { default } else { values }.to_vec()
}
