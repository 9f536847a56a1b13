//! The command line.

use std::path::PathBuf;

use amla::ProblemShape;
use amla_ascend::{Algorithm, Calibration, Cut, Kernel, Machine, Pipeline, Tiling, paper};
use amla_examples::cli::{named, within};
use clap::{Args, Parser, Subcommand};

/// The paper's performance table on a model of the Ascend 910: one Cube core with its two Vector
/// cores, in a chip of 48.
#[derive(Parser)]
#[command(name = "ascend", version)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,

    /// Requests of a call
    #[arg(long, global = true, help_heading = PROBLEM, value_name = "N", default_value_t = 96,
          value_parser = within(1 << 16))]
    pub batch: usize,

    /// Query heads, h_q
    #[arg(long, global = true, help_heading = PROBLEM, value_name = "N", default_value_t = 128,
          value_parser = within(1024))]
    pub heads: usize,

    /// Query positions of a request [repeatable; default: the paper's]
    #[arg(long, global = true, help_heading = PROBLEM, value_name = "N", value_parser = within(64))]
    s_q: Vec<usize>,

    /// Keys of a request, s_k [repeatable; default: the paper's]
    #[arg(long, global = true, help_heading = PROBLEM, value_name = "N", value_parser = within(1 << 20))]
    context: Vec<usize>,

    /// Base: V2 rescales O on the Vector cores; amla: O is rescaled in GM
    #[arg(long, global = true, help_heading = ALGORITHM, value_name = "NAME", default_value = "amla",
          value_parser = named([Algorithm::Base, Algorithm::Amla], algorithm_name))]
    pub algorithm: Algorithm,

    /// Order of stages
    #[arg(long, global = true, help_heading = ALGORITHM, value_name = "NAME", default_value = "preload",
          value_parser = named([Pipeline::Serial, Pipeline::Preload], pipeline_name))]
    pub pipeline: Pipeline,

    #[command(flatten)]
    machine: MachineArgs,

    #[command(flatten)]
    tiling: TilingArgs,

    /// One JSON object per line and cell instead of the tables
    #[arg(long, global = true, help_heading = OUTPUT)]
    pub json: bool,

    /// Also draw the first cell's pipes over time
    #[arg(long, help_heading = OUTPUT)]
    pub gantt: bool,

    /// Also write that as a plot
    #[arg(long, help_heading = OUTPUT, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// Groups of options in `--help`.
const PROBLEM: &str = "Problem";
const ALGORITHM: &str = "Algorithm";
const OUTPUT: &str = "Output";

/// A command other than the table.
#[derive(Subcommand)]
pub enum Command {
    /// Check the paper's statements against the model
    Claims,
    /// Search tilings that fit, for the first cell
    Sweep(SweepArgs),
    /// Fit the machine's three constants, and predict the rest of the table
    Fit(FitArgs),
    /// Execute the first cell's tile loops on data and compare with the references
    Execute(ExecuteArgs),
}

/// Options of `sweep`.
#[derive(Args)]
pub struct SweepArgs {
    /// Number of tilings to show
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = within(1000))]
    pub best: usize,
}

/// Options of `fit`.
#[derive(Args)]
pub struct FitArgs {
    /// Also fit every other choice of four cells
    #[arg(long)]
    pub all: bool,
}

/// Options of `execute`.
#[derive(Args)]
pub struct ExecuteArgs {
    /// Query rows
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = within(1024))]
    pub rows: usize,

    /// Keys
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = within(1 << 16))]
    pub keys: usize,

    /// Standard deviation of queries and keys
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    pub sigma: f32,
}

/// Options of the machine.
#[derive(Args)]
#[command(next_help_heading = "Machine")]
struct MachineArgs {
    /// Cube cores that share GM
    #[arg(long, global = true, value_name = "N", default_value_t = 48, value_parser = within(1024))]
    cube_cores: usize,

    /// BF16 peak of all of them [default: 614 / 0.868]
    #[arg(long, global = true, value_name = "TFLOPS")]
    peak: Option<f64>,

    /// HBM bandwidth
    #[arg(long, global = true, value_name = "TB/s", default_value_t = 3.2)]
    hbm: f64,

    /// Unused bandwidth of its share of HBM that a core may use later, in blocks of keys
    #[arg(long, global = true, value_name = "N", default_value_t = 1.0)]
    hbm_credit: f64,

    /// FP32 lanes of a Vector core
    #[arg(long, global = true, value_name = "N", default_value_t = 64, value_parser = within(4096))]
    lanes: usize,

    /// Nominal: no launch, all of HBM's bandwidth, the nominal clock
    #[arg(long, global = true)]
    ideal: bool,
}

/// Options of the tiling.
#[derive(Args)]
#[command(next_help_heading = "Tiling")]
struct TilingArgs {
    /// Rows of a group, M
    #[arg(long, global = true, value_name = "N")]
    group_rows: Option<usize>,

    /// Keys of a block
    #[arg(long, global = true, value_name = "N")]
    block: Option<usize>,

    /// singleM,singleN,singleK,baseM,baseN,baseK of Q K^T
    #[arg(long, global = true, value_name = "N,N,N,N,N,N", value_parser = cut)]
    c1: Option<Cut>,

    /// The same of P V
    #[arg(long, global = true, value_name = "N,N,N,N,N,N", value_parser = cut)]
    c2: Option<Cut>,

    /// Bytes of each buffer in L1
    #[arg(long, global = true, value_name = "N")]
    l1_buffer: Option<usize>,

    /// Buffers for Q and P
    #[arg(long, global = true, value_name = "N")]
    qp_buffers: Option<usize>,

    /// Buffers for K and V
    #[arg(long, global = true, value_name = "N")]
    kv_buffers: Option<usize>,

    /// Rows of a Vector core's chunk in UB
    #[arg(long, global = true, value_name = "N")]
    vector_rows: Option<usize>,
}

impl Cli {
    /// The machine.
    ///
    /// # Errors
    /// A rate that isn't a positive number.
    pub fn machine(&self) -> Result<Machine, String> {
        let args = &self.machine;
        let default = Machine::ASCEND_910;
        let machine = Machine {
            cube_cores: args.cube_cores,
            peak: args.peak.map_or(default.peak, |tflops| tflops * 1e12),
            hbm: args.hbm * 1e12,
            hbm_credit: args.hbm_credit,
            lanes: args.lanes,
            calibration: if args.ideal {
                Calibration::IDEAL
            } else {
                default.calibration
            },
            ..default
        };
        for (what, rate) in [("peak", machine.peak), ("hbm", machine.hbm)] {
            if !(rate.is_finite() && rate > 0.0) {
                return Err(format!("--{what}: not a positive number"));
            }
        }
        if !(0.0..).contains(&machine.hbm_credit) {
            return Err("--hbm-credit: not a number from 0".to_owned());
        }
        Ok(machine)
    }

    /// The tiling.
    pub fn tiling(&self) -> Tiling {
        let (args, paper) = (&self.tiling, Tiling::PAPER);
        Tiling {
            rows: args.group_rows.unwrap_or(paper.rows),
            block: args.block.unwrap_or(paper.block),
            c1: args.c1.unwrap_or(paper.c1),
            c2: args.c2.unwrap_or(paper.c2),
            l1_buffer: args.l1_buffer.unwrap_or(paper.l1_buffer),
            qp_buffers: args.qp_buffers.unwrap_or(paper.qp_buffers),
            kv_buffers: args.kv_buffers.unwrap_or(paper.kv_buffers),
            vector_rows: args.vector_rows.unwrap_or(paper.vector_rows),
        }
    }

    /// The table's cells.
    pub fn shapes(&self) -> Vec<ProblemShape> {
        let or_else = |given: &[usize], default: &[usize]| {
            if given.is_empty() { default } else { given }.to_vec()
        };
        let contexts = or_else(&self.context, &paper::CONTEXTS);
        let s_q = or_else(&self.s_q, &paper::S_Q);
        s_q.into_iter()
            .flat_map(|s_q| contexts.iter().map(move |&s_k| (s_q, s_k)))
            .map(|(s_q, s_k)| self.shape(s_q, s_k))
            .collect()
    }

    /// A cell.
    pub fn shape(&self, s_q: usize, s_k: usize) -> ProblemShape {
        ProblemShape {
            b: self.batch,
            h_q: self.heads,
            ..paper::shape(s_q, s_k)
        }
    }

    /// The table's kernels.
    ///
    /// # Errors
    /// The defect of the machine or the tiling.
    pub fn kernels(&self) -> Result<Vec<(ProblemShape, Kernel)>, String> {
        self.shapes()
            .into_iter()
            .map(|shape| Ok((shape, self.kernel(shape)?)))
            .collect()
    }

    /// The kernel of one cell.
    ///
    /// # Errors
    /// The defect of the machine or the tiling.
    pub fn kernel(&self, shape: ProblemShape) -> Result<Kernel, String> {
        let (algorithm, pipeline) = (self.algorithm, self.pipeline);
        Kernel::new(self.machine()?, self.tiling(), algorithm, pipeline, shape)
            .map_err(|e| e.to_string())
    }
}

/// The name on the command line.
pub fn algorithm_name(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::Base => "base",
        Algorithm::Amla => "amla",
    }
}

/// The name on the command line.
pub fn pipeline_name(pipeline: Pipeline) -> &'static str {
    match pipeline {
        Pipeline::Serial => "serial",
        Pipeline::Preload => "preload",
    }
}

/// Parses a [`Cut`].
fn cut(text: &str) -> Result<Cut, String> {
    let numbers: Result<Vec<usize>, _> = text.split(',').map(str::parse).collect();
    match numbers.as_deref() {
        Ok(&[single_m, single_n, single_k, base_m, base_n, base_k]) => Ok(Cut {
            single_m,
            single_n,
            single_k,
            base_m,
            base_n,
            base_k,
        }),
        _ => Err("not six numbers with commas between".to_owned()),
    }
}
