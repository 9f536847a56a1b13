//! The fuzz target `safetensors` without a fuzzer: its seeds.
#![allow(dead_code, reason = "shared code has more than this test uses")]

#[path = "../../tests/common/mod.rs"]
mod common;
#[path = "../../tests/common/corpus.rs"]
mod corpus;
#[path = "../../tests/common/hosts.rs"]
mod hosts;
#[path = "../../fuzz/src/safetensors.rs"]
mod target;

#[test]
fn safetensors_seeds() {
    corpus::replay("safetensors", target::run);
}
