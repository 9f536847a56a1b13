#![no_main]
#![allow(dead_code, reason = "the interface has more than the target calls")]

use amla_fuzz::{decode, draw, hosts};

#[path = "../../ffi/fuzz/c_abi/mod.rs"]
mod c_abi;

// The library as it is, but for its root: that is a static library, which Rust can't call.
#[path = "../../ffi/src/call.rs"]
mod call;
#[path = "../../ffi/src/choice.rs"]
mod choice;
#[path = "../../ffi/src/encode.rs"]
mod encode;
#[path = "../../ffi/src/environment.rs"]
mod environment;
#[path = "../../ffi/src/fault.rs"]
mod fault;
#[path = "../../ffi/src/info.rs"]
mod info;
#[path = "../../ffi/src/layout.rs"]
mod layout;
#[path = "../../ffi/src/memory.rs"]
mod memory;
#[path = "../../ffi/src/merge.rs"]
mod merge;
#[path = "../../ffi/src/parallel.rs"]
mod parallel;
#[path = "../../ffi/src/report.rs"]
mod report;
#[path = "../../ffi/src/run.rs"]
mod run;
#[path = "../../ffi/src/types.rs"]
mod types;

libfuzzer_sys::fuzz_target!(|data: &[u8]| c_abi::run(data));
