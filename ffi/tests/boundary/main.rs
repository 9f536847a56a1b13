//! The functions of `amla.h` called from Rust.
//!
//! Their sources are compiled into this test, so that Miri, the sanitizers and coverage see the code
//! that turns pointers into slices. Good calls give the bits that `amla` gives. Malformed ones, made by
//! the hundred, give the status that each must, with every output untouched. `c/` tests the same in C.
#![allow(unsafe_code, reason = "calls what C calls")]
#![allow(dead_code, reason = "not all of the sources' numbers are needed")]

extern crate alloc;

#[path = "../../src/call.rs"]
mod call;
#[path = "../../src/choice.rs"]
mod choice;
#[path = "../../src/encode.rs"]
mod encode;
#[path = "../../src/environment.rs"]
mod environment;
#[path = "../../src/fault.rs"]
mod fault;
#[path = "../../src/info.rs"]
mod info;
#[path = "../../src/memory.rs"]
mod memory;
#[path = "../../src/merge.rs"]
mod merge;
#[path = "../../src/parallel.rs"]
mod parallel;
#[path = "../../src/report.rs"]
mod report;
#[path = "../../src/run.rs"]
mod run;
#[path = "../../src/types.rs"]
mod types;

mod calls;
mod encoders;
mod library;
mod messages;
mod mla;
mod results;
mod tensors;
mod world;
