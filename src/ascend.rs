//! An executable model of the Ascend 910: one Cube core and its two Vector cores, their pipes, buffers
//! and memories, running AMLA's [`schedule`](crate::schedule) and the paper's tiling.
//!
//! It answers what a kernel takes on that machine, why, and what another tiling or order would take; it
//! refuses those that overflow a buffer, use data before it is there, or overwrite data that is still
//! needed. `docs/ascend.md` has its assumptions, and where it disagrees with the paper.
//!
//! | module | the paper |
//! |---|---|
//! | [`Machine`], [`Calibration`] | `tab:hier mem`, and what it leaves open |
//! | [`Tiling`], [`Cut`] | `subsec:cubestagepipeline` |
//! | [`Load`], [`Order`] | `subsec:preloadpipeline`, Algorithms 1 and 2 |
//! | [`Kernel`], [`Report`] | `tab:perfexp` |
//! | [`Datapath`] | Algorithms 1 and 2, on data |
//! | [`Work`], [`Pipe`], [`Buffer`], [`Dependency`], [`Op`] | `fig:7buf`, `fig:amla_pipeline` |
//!
//! ```
//! use amla::Shape;
//! use amla::ascend::{Algorithm, Kernel, Limit, Machine, Pipeline, Tiling};
//!
//! // The last cell of the paper's table: 1427 us, FU 86.8 %.
//! let shape = Shape { b: 96, s_q: 2, s_k: 16384, h_q: 128, h_kv: 1, d_qk: 576, d_v: 512 };
//! let machine = Machine::ASCEND_910;
//! let kernel = Kernel::new(machine, Tiling::PAPER, Algorithm::Amla, Pipeline::Preload, shape)?;
//! let report = kernel.run()?;
//! assert_eq!(report.limit().0, Limit::Mmad);
//! assert!((report.utilization() - 0.868).abs() < 0.01);
//! # Ok::<(), amla::ascend::Fault>(())
//! ```

mod cube;
mod datapath;
mod engine;
mod fault;
mod kernel;
mod machine;
mod op;
mod problem;
mod program;
mod queue;
mod report;
mod scoreboard;
mod tiling;
mod vector;

pub use datapath::{Datapath, Inputs, Memory, Outputs};
pub use engine::Observer;
pub use fault::Fault;
pub use kernel::Kernel;
pub use machine::{CUBE_FLOP_PER_CYCLE, Calibration, FRACTAL, Machine, VECTOR_CORES};
pub use op::{Action, Buffer, Dependency, Matrix, Op, Pipe, Region, Slot, Tile, Work};
pub use problem::{Algorithm, Load, Order, Pipeline};
pub use report::{Limit, Report, Traffic};
pub use scoreboard::MAX_SLOTS;
pub use tiling::{Cut, Tiling};
