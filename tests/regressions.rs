//! The fuzz targets (`fuzz/`) without a fuzzer: their seeds, and every input that once failed, by
//! name. `c_abi`'s are in `ffi/tests/abi.rs`, `safetensors`' in `examples/tests/regressions.rs`.
#![allow(dead_code, reason = "what is shared has more than is used")]

// What the targets do, as `fuzz/src/lib.rs` has it.
#[path = "../fuzz/src/bf16_round.rs"]
mod bf16_round;
mod common;
#[path = "common/corpus.rs"]
mod corpus;
#[path = "../fuzz/src/decode.rs"]
mod decode;
#[path = "../fuzz/src/draw.rs"]
mod draw;
#[path = "../fuzz/src/exact.rs"]
mod exact;
#[path = "../fuzz/src/formats.rs"]
mod formats;
#[path = "common/hosts.rs"]
mod hosts;
#[path = "../fuzz/src/merge.rs"]
mod merge;
#[path = "../fuzz/src/plan.rs"]
mod plan;
#[path = "common/promise.rs"]
mod promise;
#[path = "../fuzz/src/rescale_bits.rs"]
mod rescale_bits;
#[path = "../fuzz/src/rows.rs"]
mod rows;
#[path = "../fuzz/src/schedule.rs"]
mod schedule;
#[path = "common/stored.rs"]
mod stored;

macro_rules! seeds {
    ($($name:ident $target:literal $run:path;)*) => {$(
        #[test]
        fn $name() {
            corpus::replay($target, $run);
        }
    )*};
}

seeds! {
    rescale_bits_seeds "rescale_bits" rescale_bits::run;
    bf16_round_seeds "bf16_round" bf16_round::run;
    decode_seeds "decode" decode::run;
    plan_seeds "plan" plan::run;
    schedule_seeds "schedule" schedule::run;
    merge_seeds "merge" merge::run;
    formats_seeds "formats" formats::run;
}

/// A row without a key is 0, whatever its head's sink: it took a NaN over.
#[test]
fn nan_sink_of_a_row_without_keys() {
    corpus::regression("decode", "nan_sink_of_a_row_without_keys", decode::run);
}

/// A score at the reference of a fused group is beyond FP32 then; keys of negative scores weighed nothing.
#[test]
fn subnormal_scale_of_large_scores() {
    corpus::regression("decode", "subnormal_scale_of_large_scores", decode::run);
}

/// The bound: P of scores so large may be 0, and 0 times an infinite value is NaN.
#[test]
fn infinite_value_of_scores_without_fraction() {
    corpus::regression(
        "decode",
        "infinite_value_of_scores_without_fraction",
        decode::run,
    );
}

/// What rounding took from the largest P, times a value near the smallest normal number, is zero to
/// a dot and a number to the scalar path.
#[test]
fn products_below_the_smallest_normal_number() {
    corpus::regression(
        "formats",
        "products_below_the_smallest_normal_number",
        formats::run,
    );
}
