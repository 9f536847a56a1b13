//! What the fuzz targets do with their input, apart from libFuzzer: the root's
//! `tests/regressions.rs` includes the same files and replays the corpora on stable.
//!
//! Each target is a function `run` that panics if something is wrong, and `kind`, a word for
//! what an input holds, by which `examples/seeds.rs` chooses and names the seeds.

#![allow(
    dead_code,
    reason = "what is shared with tests and an example has more than is used"
)]

// What the tests share, and the example's reader, which `safetensors` reads with.
#[path = "../../examples/decode/case.rs"]
mod case;
#[path = "../../tests/common/mod.rs"]
mod common;
#[path = "../../examples/decode/file.rs"]
mod file;
#[path = "../../tests/common/hosts.rs"]
pub mod hosts;
#[path = "../../examples/decode/layout.rs"]
mod layout;
#[path = "../../tests/common/promise.rs"]
mod promise;
#[path = "../../examples/decode/sparse.rs"]
mod sparse;
#[path = "../../examples/decode/stored.rs"]
mod stored;
#[path = "../../examples/decode/tensors.rs"]
mod tensors;

pub mod draw;
mod exact;
mod rows;

pub mod bf16_round;
pub mod decode;
pub mod formats;
pub mod merge;
pub mod plan;
pub mod rescale_bits;
pub mod safetensors;
pub mod schedule;
