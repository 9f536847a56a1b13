//! `amla`: multi-head latent attention (MLA) decode of DeepSeek-V3-class models.
//!
//! It computes `O = softmax(softmax_scale * Q K^T) V`. All query heads share one latent KV row of 576
//! BF16 numbers per token, whose first 512 are the value.
//!
//! The algorithm is AMLA (*MUL by ADD in FlashAttention rescaling*): the output
//! accumulator is rescaled by integer additions on its floats' bits. See
//! `docs/algorithm.md` for what maps to which equation.
//!
//! **Small tiles.** A [`Workspace`] takes 1.9 MiB. Built with `RUSTFLAGS='--cfg amla_tiles="small"'`, a
//! choice of the final program, it takes 152 KiB. One thread's decode at full width then fits the 256
//! KiB of a microcontroller (`examples/bare-metal`). Blocks of keys are shorter, so results differ in
//! their last bits. Widths and bounds on errors are the same (`docs/adr/0017`).
//!
//! No allocation, no threads, no global state but the processor's features, detected once, and a cap on backends
//! ([`Backend::set_max`]). One thread calls [`decode`]; several share a [`Plan`]'s tasks, as a pool
//! ([`decode_on`]) or by themselves ([`run_tasks`], [`combine`]), with the same result to the bit.
//!
//! **What bits depend on.** The bits of a result depend on its own request (queries, keys, options, and how many rows `s_q` and `h_q`
//! make), on the backend, and on how its keys are split: by their number, or as the caller says ([`Split`]). They never depend on other
//! requests of the batch, on threads and tasks, or on where tensors are in memory.
//!
//! ```
//! use amla::{Elements, Options, Output, Problem, ProblemShape, Workspace, decode};
//! use half::bf16;
//!
//! let shape = ProblemShape { b: 1, s_q: 1, s_k: 100, h_q: 16, h_kv: 1, d_qk: 576, d_v: 512 };
//! let q = vec![bf16::from_f32(0.5); 16 * 576];
//! let kv = vec![bf16::from_f32(0.25); 100 * 576];
//! let problem = Problem::dense(shape, &q, &kv, 1.0 / 24.0);
//!
//! let mut workspace = bytemuck::zeroed_box::<Workspace>();
//! let (mut o, mut lse) = (vec![0.0_f32; 16 * 512], vec![0.0_f32; 16]);
//! let output = Output::dense(shape, Elements::F32(&mut o), &mut lse);
//! decode(&problem, &Options::default(), &mut workspace, output)?;
//! assert!((o[0] - 0.25).abs() < 1e-6);
//! # Ok::<(), amla::Error>(())
//! ```
#![no_std]
#![deny(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

mod attend;
mod attention;
pub mod bits;
mod dims;
mod epilogue;
mod error;
mod fallback;
pub mod format;
mod group;
mod kernel;
mod merge;
#[cfg(feature = "alloc")]
mod owned;
mod plan;
#[cfg(target_has_atomic = "ptr")]
mod pool;
mod problem;
pub mod reference;
mod run;
pub mod schedule;
mod shape;
mod slots;
mod source;
#[cfg(feature = "stages")]
pub mod stages;
pub mod tile;

pub use attend::Options;
pub use attention::{Attention, Input, OutputNumber, TensorView};
pub use dims::SUPPORTED_DIMS;
pub use error::{Argument, Error};
pub use format::Data;
pub use kernel::{Backend, BackendId};
pub use merge::{Part, merge};
#[cfg(feature = "rayon")]
pub use owned::Workspaces;
pub use plan::Plan;
#[cfg(feature = "rayon")]
pub use pool::Rayon;
#[cfg(target_has_atomic = "ptr")]
pub use pool::{ParallelFor, decode_on};
pub use problem::{
    Elements, EmptyLse, Extra, IndexList, Indices, Inputs, Lse, LseBase, Output, Pages, Precision,
    Problem, Rescale, SharedElements, SharedOutput, Sparse, TailMask, TensorRef,
};
pub use run::{combine, decode, run_tasks};
pub use schedule::Split;
pub use shape::ProblemShape;
pub use tile::{BLOCK_KEYS, Workspace};
