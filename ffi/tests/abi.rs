//! The fuzz target `c_abi` (`ffi/fuzz/`) without a fuzzer: its seeds, and every input that once
//! failed, by name.
#![allow(dead_code, reason = "what is shared has more than is used")]
#![allow(unsafe_code, reason = "a caller in C")]

#[path = "../fuzz/c_abi/mod.rs"]
mod c_abi;
#[path = "../../tests/common/mod.rs"]
mod common;
#[path = "../../tests/common/corpus.rs"]
mod corpus;
#[path = "../../fuzz/src/decode.rs"]
mod decode;
#[path = "../../fuzz/src/draw.rs"]
mod draw;
#[path = "../../fuzz/src/exact.rs"]
mod exact;
#[path = "../../tests/common/hosts.rs"]
mod hosts;
#[path = "../../fuzz/src/rows.rs"]
mod rows;
#[path = "../../tests/common/stored.rs"]
mod stored;

// The library as it is, but for its root: that is a static library, which Rust can't call.
#[path = "../src/call.rs"]
mod call;
#[path = "../src/choice.rs"]
mod choice;
#[path = "../src/encode.rs"]
mod encode;
#[path = "../src/environment.rs"]
mod environment;
#[path = "../src/fault.rs"]
mod fault;
#[path = "../src/info.rs"]
mod info;
#[path = "../src/layout.rs"]
mod layout;
#[path = "../src/memory.rs"]
mod memory;
#[path = "../src/merge.rs"]
mod merge;
#[path = "../src/parallel.rs"]
mod parallel;
#[path = "../src/report.rs"]
mod report;
#[path = "../src/run.rs"]
mod run;
#[path = "../src/types.rs"]
mod types;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

#[test]
fn seeds() {
    corpus::replay("c_abi", c_abi::run);
}

/// Dense calls in one line, wrong ones among them, of which few inputs above have any.
#[test]
fn one_line() {
    let mut random = ChaCha8Rng::seed_from_u64(45);
    for _ in 0..400 {
        let data: [u8; 64] = random.random();
        c_abi::mla(&mut draw::Draw::new(&data));
    }
}

/// Of two NaNs, the sum of two tasks' results took over one, `amla_run`'s the other.
#[test]
fn one_nan() {
    corpus::regression("c_abi", "one_nan", c_abi::run);
}

/// What `amla_combine` said was looked for in the detail of `amla_run_parallel`, which came after it.
#[test]
fn refused_merges() {
    corpus::regression("c_abi", "refused_merges", c_abi::run);
}

/// Tasks that have all keys write O, which merges that are refused later leave as it is.
#[test]
fn tasks_before_refused_merges() {
    corpus::regression("c_abi", "tasks_before_refused_merges", c_abi::run);
}
