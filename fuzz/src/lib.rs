//! What the fuzz targets do with their input, apart from libFuzzer: the root's
//! `tests/regressions.rs` includes the same files and replays the corpora on stable.
//!
//! Each target is a function `run` that panics if something is wrong, and `kind`, a word for
//! what an input holds, by which `examples/seeds.rs` chooses and names the seeds.

#![allow(dead_code, reason = "shared code has more than the targets use")]

// Shared with the library's tests.
#[path = "../../tests/common/mod.rs"]
mod common;
#[path = "../../tests/common/hosts.rs"]
pub mod hosts;
#[path = "../../tests/common/promise.rs"]
mod promise;
#[path = "../../tests/common/stored.rs"]
mod stored;

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
