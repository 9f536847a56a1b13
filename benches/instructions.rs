//! Instruction counts under Valgrind, which repeat exactly: every stage, a small
//! decode and the slice functions of [`amla::bits`], on the portable backend and with
//! AVX2; merges with AVX2.
//!
//! `.ci/instructions` runs this and compares with `benches/instructions.txt`.
//! Valgrind has no AVX-512, and detection says so; never build this with
//! `target-cpu=native`.

#![allow(
    missing_docs,
    unused_qualifications,
    reason = "what the macros make of the functions"
)]

mod common;

use std::hint::black_box;
use std::ops::Range;

use amla::bits::{self, Increment};
use amla::stages::{self, Before, Reference, Stages};
use amla::{
    Backend, BackendId, Elements, Options, Output, Plan, Precision, Problem, ProblemShape, Rescale,
    SharedOutput, Split, Workspace, combine, decode, run_tasks,
};
use iai_callgrind::{library_benchmark, library_benchmark_group, main};

const PORTABLE: BackendId = BackendId::Portable;
const AVX2: BackendId = BackendId::Avx2;

fn options(id: BackendId, rescale: Rescale, precision: Precision) -> Options {
    Options {
        backend: Backend::request(id).unwrap(),
        rescale,
        precision,
        ..Options::default()
    }
}

/// Prepared tiles; leaked, for the process ends after one count.
fn prepared(id: BackendId, rescale: Rescale, precision: Precision) -> Stages<'static> {
    let workspace = Box::leak(bytemuck::zeroed_box::<Workspace>());
    let q = common::inputs(1, stages::ROWS * stages::D_QK);
    let kv = common::inputs(2, stages::KEYS * stages::D_QK);
    Stages::new(options(id, rescale, precision), workspace, q, kv)
}

fn exact(id: BackendId) -> Stages<'static> {
    prepared(id, Rescale::Exact, Precision::Bf16)
}

fn exact_x2(id: BackendId) -> Stages<'static> {
    prepared(id, Rescale::Exact, Precision::Bf16x2)
}

fn compensated(id: BackendId) -> Stages<'static> {
    prepared(id, Rescale::Compensated, Precision::Bf16)
}

fn compensated_x2(id: BackendId) -> Stages<'static> {
    prepared(id, Rescale::Compensated, Precision::Bf16x2)
}

#[library_benchmark]
#[bench::portable(exact(PORTABLE))]
#[bench::avx2(exact(AVX2))]
fn pack_q(mut s: Stages<'static>) -> Stages<'static> {
    s.pack_q();
    s
}

#[library_benchmark]
#[bench::portable(exact(PORTABLE))]
#[bench::avx2(exact(AVX2))]
fn qk(mut s: Stages<'static>) -> Stages<'static> {
    s.qk();
    s
}

#[library_benchmark]
#[bench::portable_exact_bf16_first(exact(PORTABLE), Reference::First)]
#[bench::avx2_exact_bf16_first(exact(AVX2), Reference::First)]
#[bench::portable_exact_bf16_stays(exact(PORTABLE), Reference::Stays)]
#[bench::avx2_exact_bf16_stays(exact(AVX2), Reference::Stays)]
#[bench::portable_exact_bf16_moves(exact(PORTABLE), Reference::Moves)]
#[bench::avx2_exact_bf16_moves(exact(AVX2), Reference::Moves)]
#[bench::portable_exact_bf16x2_stays(exact_x2(PORTABLE), Reference::Stays)]
#[bench::avx2_exact_bf16x2_stays(exact_x2(AVX2), Reference::Stays)]
#[bench::portable_compensated_bf16_stays(compensated(PORTABLE), Reference::Stays)]
#[bench::avx2_compensated_bf16_stays(compensated(AVX2), Reference::Stays)]
#[bench::portable_compensated_bf16_moves(compensated(PORTABLE), Reference::Moves)]
#[bench::avx2_compensated_bf16_moves(compensated(AVX2), Reference::Moves)]
#[bench::portable_compensated_bf16x2_stays(compensated_x2(PORTABLE), Reference::Stays)]
#[bench::avx2_compensated_bf16x2_stays(compensated_x2(AVX2), Reference::Stays)]
fn softmax(mut s: Stages<'static>, reference: Reference) -> Stages<'static> {
    s.softmax(reference);
    s
}

#[library_benchmark]
#[bench::portable_first(exact(PORTABLE), 1, Before::Overwrite)]
#[bench::avx2_first(exact(AVX2), 1, Before::Overwrite)]
#[bench::portable_nothing(exact(PORTABLE), 1, Before::Nothing)]
#[bench::avx2_nothing(exact(AVX2), 1, Before::Nothing)]
#[bench::portable_rescale(exact(PORTABLE), 1, Before::Rescale)]
#[bench::avx2_rescale(exact(AVX2), 1, Before::Rescale)]
#[bench::portable_bf16x2_nothing(exact_x2(PORTABLE), 1, Before::Nothing)]
#[bench::avx2_bf16x2_nothing(exact_x2(AVX2), 1, Before::Nothing)]
#[bench::portable_panels(exact(PORTABLE), stages::PANELS, Before::Nothing)]
#[bench::avx2_panels(exact(AVX2), stages::PANELS, Before::Nothing)]
fn pv(mut s: Stages<'static>, panels: usize, before: Before) -> Stages<'static> {
    s.pv(panels, before);
    s
}

#[library_benchmark]
#[bench::portable(exact(PORTABLE))]
#[bench::avx2(exact(AVX2))]
fn rescale(mut s: Stages<'static>) -> Stages<'static> {
    s.rescale(-1);
    s
}

library_benchmark_group!(
    name = stage;
    benchmarks = pack_q, qk, softmax, pv, rescale
);

type Decode = (
    Problem<'static>,
    Options,
    &'static mut Workspace,
    Output<'static>,
);

/// 16 heads, one position, two blocks of keys.
fn small(id: BackendId) -> Decode {
    sixteen_heads(id, 384)
}

/// 16 heads, one position.
fn sixteen_heads(id: BackendId, s_k: usize) -> Decode {
    let shape = ProblemShape {
        b: 1,
        s_q: 1,
        s_k,
        h_q: 16,
        h_kv: 1,
        d_qk: 576,
        d_v: 512,
    };
    let q = common::inputs(1, shape.h_q * shape.d_qk);
    let kv = common::inputs(2, shape.s_k * shape.d_qk);
    (
        Problem::dense(shape, q, kv, 1.0 / 24.0),
        options(id, Rescale::Exact, Precision::Bf16),
        Box::leak(bytemuck::zeroed_box::<Workspace>()),
        Output::dense(
            shape,
            Elements::F32(vec![0.0; shape.h_q * shape.d_v].leak()),
            vec![0.0; shape.h_q].leak(),
        ),
    )
}

#[library_benchmark]
#[bench::portable_small(small(PORTABLE))]
#[bench::avx2_small(small(AVX2))]
fn decode_h16(call: Decode) {
    let (problem, options, workspace, output) = call;
    decode(&problem, &options, workspace, output).unwrap();
}

type Combine = (
    Problem<'static>,
    Plan,
    Range<usize>,
    &'static [f32],
    SharedOutput<'static>,
);

/// 16 heads over 20 splits whose tasks ran, and some of their merges: one, of a row and a strip, or all. Either clears its O
/// first, 16 KiB, which counts as 16,384.
fn split(merges: Option<usize>) -> Combine {
    let (mut problem, options, workspace, output) = sixteen_heads(AVX2, 20 * Split::MULTIPLE);
    problem.split = Split::Every(Split::MULTIPLE);
    let plan = Plan::for_threads(&problem, 20).unwrap();
    assert_eq!(plan.partial_tasks(), 20);
    let partials = vec![0.0; plan.partials_len()].leak();
    let output = SharedOutput::from(output);
    let tasks = 0..plan.tasks();
    run_tasks(
        &problem, &options, &plan, tasks, workspace, partials, &output,
    )
    .unwrap();
    // The first call looks for the processor's features.
    combine(&problem, &plan, 0..0, partials, &output).unwrap();
    let merges = merges.unwrap_or_else(|| plan.merges());
    (problem, plan, 0..merges, partials, output)
}

#[library_benchmark]
#[bench::avx2_one(split(Some(1)))]
#[bench::avx2_all(split(None))]
fn combine_h16(call: Combine) {
    let (problem, plan, merges, partials, output) = call;
    combine(&problem, &plan, merges, partials, &output).unwrap();
}

library_benchmark_group!(
    name = whole;
    benchmarks = decode_h16, combine_h16
);

/// Elements of each slice.
const LEN: usize = 4096;

fn f32s() -> &'static mut [f32] {
    common::numbers(3, LEN).leak()
}

fn f64s() -> &'static mut [f64] {
    let wide = common::numbers(3, LEN).into_iter().map(f64::from);
    wide.collect::<Vec<_>>().leak()
}

fn halves() -> &'static mut [u16] {
    let halves = common::inputs(3, LEN).iter().map(|x| x.to_bits());
    halves.collect::<Vec<_>>().leak()
}

#[library_benchmark]
#[bench::slice(f32s())]
fn mul_pow2_f32(xs: &'static mut [f32]) {
    bits::mul_pow2_f32_slice(black_box(xs), black_box(-3));
}

#[library_benchmark]
#[bench::slice(f64s())]
fn mul_pow2_f64(xs: &'static mut [f64]) {
    bits::mul_pow2_f64_slice(black_box(xs), black_box(-3));
}

#[library_benchmark]
#[bench::slice(halves())]
fn mul_pow2_bf16(xs: &'static mut [u16]) {
    bits::mul_pow2_bf16_slice(black_box(xs), black_box(-3));
}

#[library_benchmark]
#[bench::slice(halves())]
fn mul_pow2_f16(xs: &'static mut [u16]) {
    bits::mul_pow2_f16_slice(black_box(xs), black_box(-3));
}

#[library_benchmark]
#[bench::slice(f32s())]
fn add_increment_f32(xs: &'static mut [f32]) {
    let increment = Increment::compensated(black_box(-3), black_box(0.004));
    bits::add_increment_f32_slice(black_box(xs), increment);
}

#[library_benchmark]
#[bench::slice(f32s(), halves())]
fn bf16_round(xs: &'static mut [f32], out: &'static mut [u16]) {
    bits::bf16_round_slice(black_box(xs), black_box(out));
}

#[library_benchmark]
#[bench::slice(halves(), f32s())]
fn bf16_to_f32(xs: &'static mut [u16], out: &'static mut [f32]) {
    bits::bf16_to_f32_slice(black_box(xs), black_box(out));
}

library_benchmark_group!(
    name = bit;
    benchmarks = mul_pow2_f32, mul_pow2_f64, mul_pow2_bf16, mul_pow2_f16, add_increment_f32,
        bf16_round, bf16_to_f32
);

main!(library_benchmark_groups = stage, whole, bit);
