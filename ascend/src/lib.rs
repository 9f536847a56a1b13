//! An executable model of the Ascend 910: one Cube core and its two Vector cores, with their pipes,
//! buffers and memories. It runs AMLA's [`schedule`](amla::schedule) with the paper's tiling.
//!
//! The model gives the duration of a kernel, and the resource that limits it, for any tiling and any
//! order of stages. It refuses a tiling that overflows a buffer. It refuses an order in which an
//! instruction reads data before its arrival, or overwrites data before its last use.
//! `docs/ascend.md` has the model's assumptions, and where it disagrees with the paper.
//!
//! | item | the paper |
//! |---|---|
//! | [`Machine`], [`Calibration`] | `tab:hier mem`, and constants that it lacks |
//! | [`Tiling`], [`Cut`] | `subsec:cubestagepipeline` |
//! | [`Load`], [`Order`] | `subsec:preloadpipeline`, Algorithms 1 and 2 |
//! | [`Kernel`], [`Report`], [`paper`] | `tab:perfexp` |
//! | [`Datapath`] | Algorithms 1 and 2, on data |
//! | [`Work`], [`Pipe`], [`Buffer`], [`Dependency`], [`Op`] | `fig:7buf`, `fig:amla_pipeline` |
//!
//! ```
//! use amla_ascend::{Algorithm, Kernel, Limit, Machine, Pipeline, Tiling, paper};
//!
//! // The last cell of the paper's table: 1427 us, FU 86.8 %.
//! let shape = paper::shape(2, 16384);
//! let machine = Machine::ASCEND_910;
//! let kernel = Kernel::new(machine, Tiling::PAPER, Algorithm::Amla, Pipeline::Preload, shape)?;
//! let report = kernel.run()?;
//! assert_eq!(report.limit().0, Limit::Mmad);
//! assert!((report.utilization() - 0.868).abs() < 0.01);
//! # Ok::<(), amla_ascend::Fault>(())
//! ```
#![no_std]
#![deny(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

// Imports point left:
//
//     arch, paper, queue -> op -> fault -> machine, scoreboard -> load -> tiling -> kernel
//       -> report, vector -> cube -> program -> engine -> datapath
mod arch;
mod cube;
mod datapath;
mod engine;
mod fault;
mod kernel;
mod load;
mod machine;
mod op;
pub mod paper;
mod program;
mod queue;
mod report;
mod scoreboard;
mod tiling;
mod vector;

pub use arch::{CUBE_FLOP_PER_CYCLE, FRACTAL, VECTOR_CORES};
pub use datapath::{Datapath, Inputs, Memory, Outputs};
pub use engine::Observer;
pub use fault::Fault;
pub use kernel::Kernel;
pub use load::{Algorithm, Load, Order, Pipeline};
pub use machine::{Calibration, Machine};
pub use op::{Action, Buffer, Dependency, Matrix, Op, Pipe, Region, Slot, Tile, Work};
pub use report::{Limit, Report, Traffic};
pub use scoreboard::MAX_SLOTS;
pub use tiling::{Cut, Tiling};
