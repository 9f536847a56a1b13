//! The public interface: what each entry point refuses, in which words, and that layouts, threads,
//! neighbours and used memory don't change a bit of what it computes.

#[macro_use]
mod common;

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use amla::tile::{GROUP_ROWS, PANEL_ROWS, PANELS};
use amla::{
    Argument, Backend, BackendId, Data, Elements, Error, Lse, Options, Output, Plan, Precision,
    Problem, Rescale, SUPPORTED_DIMS, Shape, TailMask, Tensor, Workspace, combine, decode,
    reference, run_task, run_tasks, schedule,
};
use common::{Case, backends, modes, normal, workspace};
use half::bf16;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};

const SMALL: (usize, usize) = (128, 128);
const MEDIUM: (usize, usize) = (320, 256);

suites![
    strided_inputs_and_outputs,
    interleaved_outputs,
    keys_that_overlap,
    shared_inputs,
    bf16_is_f32_rounded,
    tasks_in_any_order,
    few_rows_beside_many,
    panels_alone_and_together,
    neighbours_do_not_matter,
    what_lies_behind_a_task_does_not_matter,
    how_many_heads_there_are_does_not_matter,
    used_memory_does_not_matter,
    empty_batch,
    a_call_takes_little_stack,
    any_problem,
];

fn default_on(backend: Backend) -> Options {
    Options {
        backend,
        ..Options::default()
    }
}

// -------------------------------------------------------------------------------------------------
// Outputs
// -------------------------------------------------------------------------------------------------

/// What an output holds before a call: NaNs that no call computes, each another.
fn pattern(n: usize) -> Vec<f32> {
    let bits = (0..n).map(|i| 0xffd0_0001 | (i as u32) << 1 & 0xf_ffff);
    bits.map(f32::from_bits).collect()
}

fn pattern16(n: usize) -> Vec<bf16> {
    let bits = (0..n).map(|i| 0xffd1 | (i as u16) << 1 & 0xf);
    bits.map(bf16::from_bits).collect()
}

fn bits(xs: &[f32]) -> Vec<u32> {
    xs.iter().map(|x| x.to_bits()).collect()
}

fn bits16(xs: &[bf16]) -> Vec<u16> {
    xs.iter().map(|x| x.to_bits()).collect()
}

/// O and lse, bit for bit.
type Bits = (Vec<u32>, Vec<u32>);

/// Calls with dense FP32 outputs of that shape.
fn dense(shape: Shape, call: impl FnOnce(Output) -> Result<(), Error>) -> Bits {
    let rows = shape.b * shape.s_q * shape.h_q;
    let (mut o, mut lse) = (pattern(rows * shape.d_v), pattern(rows));
    call(Output::dense(shape, Elements::F32(&mut o), &mut lse)).unwrap();
    (bits(&o), bits(&lse))
}

fn decoded(problem: &Problem, options: &Options) -> Bits {
    dense(problem.shape, |output| {
        decode(problem, options, &mut workspace(), output)
    })
}

/// The same through tasks.
fn combined(problem: &Problem, options: &Options) -> Bits {
    let plan = Plan::new(problem).unwrap();
    let mut partials = pattern(plan.tasks() * plan.partial_len());
    let mut workspace = workspace();
    let memories = partials.chunks_mut(plan.partial_len());
    for (task, partial) in memories.enumerate() {
        run_task(problem, options, &plan, task, &mut workspace, partial).unwrap();
    }
    dense(problem.shape, |output| {
        combine(problem, &plan, &mut partials, output)
    })
}

// -------------------------------------------------------------------------------------------------
// Refusals
// -------------------------------------------------------------------------------------------------

fn good() -> Case {
    let mut case = Case::new(2, 2, 40, 3, SMALL).separate_v();
    case.lens = Some(vec![40, 7]);
    case
}

/// The error and its words; compared as text, as it may hold a NaN.
#[track_caller]
fn assert_refused(result: Result<(), Error>, want: Error, text: &str, call: &str) {
    let got = result.expect_err(call);
    assert_eq!(format!("{got:?}"), format!("{want:?}"), "{call}");
    assert_eq!(got.to_string(), text, "{call}");
}

/// Calls with outputs of either format, which must stay as they were.
#[track_caller]
fn untouched(
    (o_len, lse_len): (usize, usize),
    arrange: impl Fn(&mut Output),
    mut call: impl FnMut(Output) -> Result<(), Error>,
    want: Error,
    text: &str,
    name: &str,
) {
    let (mut o32, mut o16, mut lse) = (pattern(o_len), pattern16(o_len), pattern(lse_len));
    for half in [false, true] {
        let elements = if half {
            Elements::Bf16(&mut o16)
        } else {
            Elements::F32(&mut o32)
        };
        let mut output = Output::dense(good().shape, elements, &mut lse);
        arrange(&mut output);
        assert_refused(call(output), want, text, name);
    }
    assert_eq!(bits(&o32), bits(&pattern(o_len)), "{name} touched o");
    assert_eq!(bits16(&o16), bits16(&pattern16(o_len)), "{name} touched o");
    assert_eq!(bits(&lse), bits(&pattern(lse_len)), "{name} touched lse");
}

type Reference = fn(&Problem, usize, &mut [f32], &mut [f32]) -> Result<(), Error>;

const REFERENCES: [(&str, Reference); 6] = [
    ("base", reference::base),
    ("amla_as_printed", reference::amla_as_printed),
    ("amla_compensated", reference::amla_compensated),
    ("amla_exact", |problem, block_n, o, lse| {
        reference::amla_exact(problem, block_n, Precision::Bf16, o, lse)
    }),
    ("amla_exact, pair", |problem, block_n, o, lse| {
        reference::amla_exact(problem, block_n, Precision::Bf16x2, o, lse)
    }),
    ("amla_exact_split_max", |problem, block_n, o, lse| {
        reference::amla_exact_split_max(problem, block_n, o, lse)
    }),
];

#[track_caller]
fn references_refuse(
    problem: &Problem,
    block_n: usize,
    (o_len, lse_len): (usize, usize),
    want: Error,
    text: &str,
) {
    for (name, reference) in REFERENCES {
        let (mut o, mut lse) = (pattern(o_len), pattern(lse_len));
        let result = reference(problem, block_n, &mut o, &mut lse);
        assert_refused(result, want, text, name);
        assert_eq!(bits(&o), bits(&pattern(o_len)), "{name} touched o");
        assert_eq!(bits(&lse), bits(&pattern(lse_len)), "{name} touched lse");
    }
}

#[track_caller]
fn golden_refuses(problem: &Problem, (o_len, lse_len): (usize, usize), want: Error, text: &str) {
    let (mut o, mut lse) = (vec![-7.75; o_len], vec![-7.75; lse_len]);
    let result = reference::golden(problem, &mut o, &mut lse);
    assert_refused(result, want, text, "golden");
    assert!(
        o.iter().chain(&lse).all(|&x| x == -7.75),
        "golden touched its outputs"
    );
}

/// Everything that takes a problem refuses this one.
#[track_caller]
fn refused(problem: &Problem, want: Error, text: &str) {
    let good = good();
    let plan = Plan::new(&good.problem()).unwrap();
    let dense = |_: &mut Output| {};
    assert_refused(Plan::new(problem).map(drop), want, text, "Plan::new");
    let mut workspace = workspace();
    for backend in backends() {
        for options in modes(backend) {
            let call = |output: Output| decode(problem, &options, &mut workspace, output);
            untouched(good.sizes(), dense, call, want, text, "decode");
            for task in [0, plan.tasks() - 1, usize::MAX] {
                let mut partial = pattern(plan.partial_len());
                let result = run_task(problem, &options, &plan, task, &mut workspace, &mut partial);
                assert_refused(result, want, text, "run_task");
                assert_eq!(bits(&partial), bits(&pattern(partial.len())), "run_task");
            }
        }
    }
    let mut partials = pattern(plan.tasks() * plan.partial_len());
    let call = |output: Output| combine(problem, &plan, &mut partials, output);
    untouched(good.sizes(), dense, call, want, text, "combine");
    assert_eq!(bits(&partials), bits(&pattern(partials.len())), "combine");
    if !matches!(want, Error::UnsupportedDims { .. }) {
        golden_refuses(problem, good.sizes(), want, text);
        references_refuse(problem, 16, good.sizes(), want, text);
    }
}

#[test]
fn refuses_bad_counts() {
    let good = good();
    let problem = good.problem();
    type Set = fn(&mut Shape) -> &mut usize;
    let counts: [(Argument, &str, Set, usize); 5] = [
        (Argument::SQ, "s_q", |s| &mut s.s_q, 1),
        (Argument::SK, "s_k", |s| &mut s.s_k, 0),
        (Argument::HQ, "h_q", |s| &mut s.h_q, 1),
        (Argument::DQk, "d_qk", |s| &mut s.d_qk, 1),
        (Argument::DV, "d_v", |s| &mut s.d_v, 1),
    ];
    let max = i32::MAX as usize;
    for (argument, name, set, min) in counts {
        for value in [0, max + 1, usize::MAX / 3, usize::MAX] {
            if value >= min && value <= max {
                continue;
            }
            let mut problem = problem;
            *set(&mut problem.shape) = value;
            let want = Error::OutOfRange {
                argument,
                value,
                min,
                max,
            };
            refused(
                &problem,
                want,
                &format!("{name} is {value}, not in {min}..={max}"),
            );
        }
    }
}

#[test]
fn refuses_values_wider_than_the_cache() {
    let good = good();
    let mut problem = good.problem();
    problem.v = None;
    for d_v in [129, 512, i32::MAX as usize] {
        problem.shape.d_v = d_v;
        let want = Error::OutOfRange {
            argument: Argument::DV,
            value: d_v,
            min: 1,
            max: 128,
        };
        refused(&problem, want, &format!("d_v is {d_v}, not in 1..=128"));
    }
}

#[test]
fn refuses_dims_without_a_kernel() {
    let mut listed = String::new();
    for (d_qk, d_v) in SUPPORTED_DIMS {
        let comma = if listed.is_empty() { "" } else { ", " };
        listed += &format!("{comma}({d_qk}, {d_v})");
    }
    for (d_qk, d_v) in [
        (64, 63),
        (576, 128),
        (576, 511),
        (1, 1),
        (128, 512),
        (100_000, 512),
    ] {
        let case = Case::new(1, 1, 1, 1, (d_qk, d_v)).separate_v();
        let want = Error::UnsupportedDims {
            d_qk,
            d_v,
            supported: SUPPORTED_DIMS,
        };
        let text = format!("(d_qk, d_v) = ({d_qk}, {d_v}) is not one of {listed}");
        refused(&case.problem(), want, &text);
        // The references take any.
        let (o, lse) = case.sizes();
        let (mut o, mut lse) = (vec![0.0; o], vec![0.0; lse]);
        reference::golden(&case.problem(), &mut o, &mut lse).unwrap();
    }
}

#[test]
fn refuses_scales_that_are_not_finite() {
    let good = good();
    for (value, name) in [
        (f32::NAN, "NaN"),
        (-f32::NAN, "NaN"),
        (f32::INFINITY, "inf"),
        (f32::NEG_INFINITY, "-inf"),
    ] {
        let problem = Problem {
            softmax_scale: value,
            ..good.problem()
        };
        let text = format!("softmax_scale is {name}, not a finite number");
        refused(&problem, Error::NonFiniteScale { value }, &text);
    }
}

#[track_caller]
fn refused_short(problem: &Problem, argument: Argument, len: usize, needed: usize) {
    let want = Error::TooShort {
        argument,
        len,
        needed,
    };
    let name = argument.name();
    let text = format!("{name} holds {len} elements, {needed} are needed");
    refused(problem, want, &text);
}

#[test]
fn refuses_short_inputs() {
    let good = good();
    let whole = good.problem();
    let [q, kv, v] = [2 * 2 * 3 * 128, 2 * 40 * 128, 2 * 40 * 128];
    for short in [0, 1, 127, 128] {
        let mut problem = whole;
        let end = q - 128 + short - usize::from(short > 0);
        problem.q.data = Data::Bf16(&good.q[..end]);
        refused_short(&problem, Argument::Q, problem.q.data.len(), q);
        let mut problem = whole;
        problem.kv.data = Data::Bf16(&good.kv[..short]);
        refused_short(&problem, Argument::Kv, short, kv);
        let mut problem = whole;
        let data = &good.v.as_ref().unwrap()[..v - 1 - short];
        problem.v.as_mut().unwrap().data = Data::Bf16(data);
        refused_short(&problem, Argument::V, v - 1 - short, v);
    }
    // A shape that asks for more than the tensors hold: of each, in the order of checking.
    let mut problem = whole;
    problem.shape.s_k += 1;
    refused_short(&problem, Argument::Kv, kv, kv + 128);
    let mut problem = whole;
    problem.shape.h_q += 1;
    refused_short(&problem, Argument::Q, q, q + 128);
    // Strides that reach too far by one element.
    let mut problem = whole;
    problem.q.strides[2] += 1;
    refused_short(&problem, Argument::Q, q, q + 2);
    let mut problem = whole;
    problem.kv.strides[0] += 1;
    refused_short(&problem, Argument::Kv, kv, kv + 1);
    let mut problem = whole;
    problem.v.as_mut().unwrap().strides[1] += 1;
    refused_short(&problem, Argument::V, v, v + 39);
}

fn overflow(argument: Argument, dimension: usize) -> (Error, String) {
    let want = Error::Overflow {
        argument,
        dimension,
    };
    let name = argument.name();
    (
        want,
        format!("the extent of {name} overflows in dimension {dimension}"),
    )
}

/// Strides whose extents leave `usize`: the first by its own size, the others by a product that
/// wraps to a small number, for dimensions of 3.
const OVERFLOWING: [usize; 3] = [usize::MAX, usize::MAX / 2 + 1, usize::MAX / 2 + 2];

#[test]
fn refuses_inputs_whose_strides_overflow() {
    let mut good = Case::new(3, 3, 3, 3, SMALL).separate_v();
    good.lens = Some(vec![3, 0, 1]);
    let whole = good.problem();
    for stride in OVERFLOWING {
        for dimension in 0..3 {
            let mut problem = whole;
            problem.q.strides[dimension] = stride;
            let (want, text) = overflow(Argument::Q, dimension);
            refused(&problem, want, &text);
        }
        for dimension in 0..2 {
            let mut problem = whole;
            problem.kv.strides[dimension] = stride;
            let (want, text) = overflow(Argument::Kv, dimension);
            refused(&problem, want, &text);
            let mut problem = whole;
            problem.v.as_mut().unwrap().strides[dimension] = stride;
            let (want, text) = overflow(Argument::V, dimension);
            refused(&problem, want, &text);
        }
    }
    // Each extent fits, their sum doesn't.
    let mut problem = whole;
    problem.q.strides = [usize::MAX / 2; 3];
    let (want, text) = overflow(Argument::Q, 0);
    refused(&problem, want, &text);
    problem.q.strides = [usize::MAX / 4; 3];
    let (want, text) = overflow(Argument::Q, 1);
    refused(&problem, want, &text);
}

#[test]
fn refuses_bad_lengths() {
    let good = good();
    for lens in [&[][..], &[1], &[1, 2, 3]] {
        let problem = Problem {
            cache_seqlens: Some(lens),
            ..good.problem()
        };
        let want = Error::WrongLength {
            argument: Argument::CacheSeqlens,
            len: lens.len(),
            expected: 2,
        };
        let text = format!("cache_seqlens has {} elements, expected 2", lens.len());
        refused(&problem, want, &text);
    }
    for value in [-1, i32::MIN, 41, i32::MAX] {
        for request in 0..2 {
            let mut lens = [40; 2];
            lens[request] = value;
            let problem = Problem {
                cache_seqlens: Some(&lens),
                ..good.problem()
            };
            let want = Error::Seqlen {
                request,
                value,
                limit: 40,
            };
            let text = format!("cache_seqlens[{request}] is {value}, not in 0..=40");
            refused(&problem, want, &text);
        }
    }
}

/// `decode` and `combine` refuse outputs of these lengths, arranged so.
#[track_caller]
fn refused_output(
    case: &Case,
    lengths: (usize, usize),
    arrange: impl Fn(&mut Output),
    want: Error,
    text: &str,
) {
    let problem = case.problem();
    let plan = Plan::new(&problem).unwrap();
    let mut workspace = workspace();
    let arrange = &|output: &mut Output| {
        let dense = Output::dense(problem.shape, Elements::F32(&mut []), &mut []);
        (output.o_strides, output.lse_strides) = (dense.o_strides, dense.lse_strides);
        arrange(output);
    };
    for backend in backends() {
        for options in modes(backend) {
            let call = |output: Output| decode(&problem, &options, &mut workspace, output);
            untouched(lengths, arrange, call, want, text, "decode");
        }
    }
    let mut partials = pattern(plan.tasks() * plan.partial_len());
    let call = |output: Output| combine(&problem, &plan, &mut partials, output);
    untouched(lengths, arrange, call, want, text, "combine");
    assert_eq!(bits(&partials), bits(&pattern(partials.len())), "combine");
}

#[test]
fn refuses_short_outputs() {
    let case = good();
    let (o, lse) = case.sizes();
    let refuse = |lengths: (usize, usize), arrange: fn(&mut Output), argument: Argument, needed| {
        let len = if argument == Argument::O {
            lengths.0
        } else {
            lengths.1
        };
        let want = Error::TooShort {
            argument,
            len,
            needed,
        };
        let name = argument.name();
        let text = format!("{name} holds {len} elements, {needed} are needed");
        refused_output(&case, lengths, arrange, want, &text);
    };
    let dense = |_: &mut Output| {};
    for short in [0, 1, o - 128, o - 1] {
        refuse((short, lse), dense, Argument::O, o);
    }
    for short in [0, 1, lse - 1] {
        refuse((o, short), dense, Argument::Lse, lse);
    }
    refuse(
        (o, lse),
        |output| output.o_strides[0] += 1,
        Argument::O,
        o + 1,
    );
    refuse(
        (o, lse),
        |output| output.lse_strides[0] += 1,
        Argument::Lse,
        lse + 1,
    );
    refuse(
        (o, lse),
        |output| output.lse_strides[1] += 1,
        Argument::Lse,
        lse + 2,
    );
}

#[test]
fn refuses_outputs_whose_strides_overflow() {
    let case = Case::new(3, 3, 3, 3, SMALL);
    for stride in OVERFLOWING {
        for dimension in 0..3 {
            let (want, text) = overflow(Argument::O, dimension);
            let arrange = |output: &mut Output| output.o_strides[dimension] = stride;
            refused_output(&case, case.sizes(), arrange, want, &text);
            let (want, text) = overflow(Argument::Lse, dimension);
            let arrange = |output: &mut Output| output.lse_strides[dimension] = stride;
            refused_output(&case, case.sizes(), arrange, want, &text);
        }
    }
}

#[test]
fn refuses_outputs_that_overlap() {
    let case = good();
    let refuse = |argument: Argument, strides: [usize; 3], dimension: usize, min: usize| {
        let stride = strides[dimension];
        let want = Error::Overlap {
            argument,
            dimension,
            stride,
            min,
        };
        let name = argument.name();
        let text = format!(
            "{name} has stride {stride} in dimension {dimension}; elements overlap below {min}"
        );
        let arrange = |output: &mut Output| {
            if argument == Argument::O {
                output.o_strides = strides;
            } else {
                output.lse_strides = strides;
            }
        };
        refused_output(&case, case.sizes(), arrange, want, &text);
    };
    // [b, s_q, h_q] = [2, 2, 3], rows of 128.
    refuse(Argument::O, [768, 384, 127], 2, 128);
    refuse(Argument::O, [768, 384, 0], 2, 128);
    refuse(Argument::O, [768, 383, 128], 1, 384);
    refuse(Argument::O, [767, 384, 128], 0, 768);
    refuse(Argument::O, [0, 384, 128], 0, 128);
    refuse(Argument::O, [128, 768, 255], 2, 256);
    // [b, h_q, s_q] = [2, 3, 2], single elements.
    refuse(Argument::Lse, [6, 2, 0], 2, 1);
    refuse(Argument::Lse, [6, 1, 1], 2, 3);
    refuse(Argument::Lse, [5, 2, 1], 0, 6);
    refuse(Argument::Lse, [1, 4, 1], 2, 2);
}

#[test]
fn refuses_tasks_out_of_range() {
    let case = good();
    let problem = case.problem();
    let plan = Plan::new(&problem).unwrap();
    assert_eq!(plan.tasks(), 2);
    for backend in backends() {
        for task in [2, 3, usize::MAX] {
            let mut partial = pattern(plan.partial_len());
            let options = default_on(backend);
            let result = run_task(
                &problem,
                &options,
                &plan,
                task,
                &mut workspace(),
                &mut partial,
            );
            let want = Error::OutOfRange {
                argument: Argument::Task,
                value: task,
                min: 0,
                max: 1,
            };
            let text = format!("task is {task}, not in 0..=1");
            assert_refused(result, want, &text, "run_task");
            assert_eq!(bits(&partial), bits(&pattern(partial.len())));
        }
    }
}

#[test]
fn refuses_short_partials() {
    let case = good();
    let problem = case.problem();
    let plan = Plan::new(&problem).unwrap();
    let error = |len, needed| {
        let want = Error::TooShort {
            argument: Argument::Partials,
            len,
            needed,
        };
        let text = want.to_string();
        assert!(text.starts_with("partials holds "), "{text}");
        assert!(text.contains(&len.to_string()) && text.contains(&needed.to_string()));
        (want, text)
    };
    let needed = plan.partial_len();
    for len in [0, 1, needed - 1] {
        let (want, text) = error(len, needed);
        for backend in backends() {
            let mut partial = pattern(len);
            let options = default_on(backend);
            let mut workspace = workspace();
            let result = run_task(&problem, &options, &plan, 1, &mut workspace, &mut partial);
            assert_refused(result, want, &text, "run_task");
            assert_eq!(bits(&partial), bits(&pattern(len)));
        }
    }
    let needed = 2 * needed;
    for len in [0, needed / 2, needed - 1] {
        let (want, text) = error(len, needed);
        let mut partials = pattern(len);
        let call = |output: Output| combine(&problem, &plan, &mut partials, output);
        untouched(case.sizes(), |_| {}, call, want, &text, "combine");
        assert_eq!(bits(&partials), bits(&pattern(len)));
    }
}

#[test]
fn refuses_plans_of_another_shape() {
    let case = good();
    let problem = case.problem();
    let plans = [
        Case::new(3, 2, 40, 3, SMALL),
        Case::new(2, 200, 40, 3, SMALL),
        Case::new(2, 2, 2000, 3, SMALL),
        // These have as many tasks.
        Case::new(2, 1, 40, 3, SMALL),
        Case::new(2, 2, 39, 3, SMALL),
        Case::new(2, 2, 40, 4, SMALL),
        Case::new(2, 2, 40, 3, MEDIUM),
    ];
    for other in &plans {
        let plan = Plan::new(&other.problem()).unwrap();
        let mut partials = pattern(plan.tasks() * plan.partial_len() + 100_000);
        let len = partials.len();
        for backend in backends() {
            let options = default_on(backend);
            let mut workspace = workspace();
            let error = run_task(&problem, &options, &plan, 0, &mut workspace, &mut partials)
                .expect_err("run_task");
            assert_eq!(bits(&partials), bits(&pattern(len)));
            let call = |output: Output| combine(&problem, &plan, &mut partials, output);
            let text = error.to_string();
            untouched(case.sizes(), |_| {}, call, error, &text, "combine");
            assert_eq!(bits(&partials), bits(&pattern(len)));
        }
    }
    // The same shape, other lengths: shorter ones make fewer tasks.
    let mut long = Case::new(1, 1, 3000, 1, SMALL);
    let plan = Plan::new(&long.problem()).unwrap();
    long.lens = Some(vec![10]);
    let mut partials = pattern(plan.tasks() * plan.partial_len());
    let mut workspace = workspace();
    let (problem, options) = (long.problem(), Options::default());
    let result = run_task(&problem, &options, &plan, 0, &mut workspace, &mut partials);
    let error = result.unwrap_err();
    assert!(
        error.to_string().contains('2'),
        "not the plan's 2 tasks: {error}"
    );
    assert_eq!(bits(&partials), bits(&pattern(partials.len())));
}

#[test]
fn plans_of_another_shape_with_as_many_tasks_are_told_apart() {
    let case = good();
    let plan = Plan::new(&Case::new(2, 2, 39, 3, SMALL).problem()).unwrap();
    let problem = case.problem();
    let mut partials = vec![0.0; plan.tasks() * plan.partial_len()];
    let (mut o, mut lse) = (vec![0.0; case.sizes().0], vec![0.0; case.sizes().1]);
    let output = Output::dense(case.shape, Elements::F32(&mut o), &mut lse);
    let error = combine(&problem, &plan, &mut partials, output).unwrap_err();
    let planned = Case::new(2, 2, 39, 3, SMALL).shape;
    let given = case.shape;
    assert_eq!(error, Error::PlanMismatch { planned, given });
}

#[test]
fn plans_survive_as_numbers() {
    let mut case = good();
    let problem = case.problem();
    let plan = Plan::new(&problem).unwrap();
    let words = plan.to_words();
    assert_eq!(Plan::from_words(words), Some(plan));
    // Numbers that no plan has, and those of a plan that isn't this problem's.
    for i in 0..Plan::WORDS {
        for value in [0, 1, 257, 1 << 20, u64::MAX] {
            let mut other = words;
            other[i] = value;
            if other == words {
                continue;
            }
            let Some(other) = Plan::from_words(other) else {
                continue;
            };
            let mut partials = pattern(plan.tasks() * plan.partial_len());
            let (options, mut workspace) = (Options::default(), workspace());
            let call = |output: Output| combine(&problem, &other, &mut partials, output);
            let sizes = other.to_words().map(|word| word as usize);
            let [b, s_q, s_k, h_q, h_kv, d_qk, d_v, ..] = sizes;
            let planned = Shape {
                b,
                s_q,
                s_k,
                h_q,
                h_kv,
                d_qk,
                d_v,
            };
            let given = case.shape;
            let error = Error::PlanMismatch { planned, given };
            let text = error.to_string();
            untouched(case.sizes(), |_| {}, call, error, &text, "combine");
            let result = run_tasks(
                &problem,
                &options,
                &other,
                0..1,
                &mut workspace,
                &mut partials,
            );
            assert_eq!(result, Err(error));
            assert_eq!(bits(&partials), bits(&pattern(partials.len())));
        }
    }
    for (i, value) in [(5, 575), (6, 511), (8, 0), (8, 257)] {
        let mut none = words;
        none[i] = value;
        assert_eq!(Plan::from_words(none), None, "word {i} = {value}");
    }
    case.lens = None;
    assert_ne!(Plan::new(&case.problem()).unwrap().to_words(), words);
}

#[test]
fn neighbouring_tasks_are_tasks() {
    let mut case = Case::new(3, 2, 2600, 3, SMALL);
    case.lens = Some(vec![2600, 0, 2300]);
    let (problem, options) = (case.problem(), Options::default());
    let plan = Plan::new(&problem).unwrap();
    let (tasks, len) = (plan.tasks(), plan.partial_len());
    let mut workspace = workspace();
    let mut want = pattern(tasks * len);
    for (task, partial) in want.chunks_mut(len).enumerate() {
        run_task(&problem, &options, &plan, task, &mut workspace, partial).unwrap();
    }
    for (begin, end) in (0..=tasks).flat_map(|end| (0..=end).map(move |begin| (begin, end))) {
        let mut got = pattern(tasks * len);
        let partials = &mut got[begin * len..];
        run_tasks(
            &problem,
            &options,
            &plan,
            begin..end,
            &mut workspace,
            partials,
        )
        .unwrap();
        let mut expected = pattern(tasks * len);
        expected[begin * len..end * len].copy_from_slice(&want[begin * len..end * len]);
        assert_eq!(bits(&got), bits(&expected), "{begin}..{end}");
    }
    let out_of_range = |value, max| Error::OutOfRange {
        argument: Argument::Task,
        value,
        min: 0,
        max,
    };
    let short = Error::TooShort {
        argument: Argument::Partials,
        len: tasks * len - 1,
        needed: tasks * len,
    };
    let mut partials = pattern(tasks * len - 1);
    #[expect(clippy::reversed_empty_ranges, reason = "is refused")]
    for (range, want) in [
        (0..tasks + 1, out_of_range(tasks + 1, tasks)),
        (usize::MAX - 1..usize::MAX, out_of_range(usize::MAX, tasks)),
        (2..1, out_of_range(2, 1)),
        (0..tasks, short),
    ] {
        let result = run_tasks(
            &problem,
            &options,
            &plan,
            range,
            &mut workspace,
            &mut partials,
        );
        assert_eq!(result, Err(want));
        assert_eq!(bits(&partials), bits(&pattern(partials.len())));
    }
}

#[test]
fn references_refuse_other_lengths_and_blocks() {
    let case = good();
    let (o, lse) = case.sizes();
    let problem = case.problem();
    let wrong = |argument: Argument, len, expected| {
        let want = Error::WrongLength {
            argument,
            len,
            expected,
        };
        let name = argument.name();
        (
            want,
            format!("{name} has {len} elements, expected {expected}"),
        )
    };
    for len in [0, o - 1, o + 1] {
        let (want, text) = wrong(Argument::O, len, o);
        golden_refuses(&problem, (len, lse), want, &text);
        references_refuse(&problem, 16, (len, lse), want, &text);
    }
    for len in [0, lse - 1, lse + 1] {
        let (want, text) = wrong(Argument::Lse, len, lse);
        golden_refuses(&problem, (o, len), want, &text);
        references_refuse(&problem, 16, (o, len), want, &text);
    }
    for block_n in [0, reference::MAX_BLOCK + 1, usize::MAX] {
        let want = Error::OutOfRange {
            argument: Argument::BlockN,
            value: block_n,
            min: 1,
            max: reference::MAX_BLOCK,
        };
        let text = format!("block_n is {block_n}, not in 1..=512");
        references_refuse(&problem, block_n, (o, lse), want, &text);
    }
}

#[test]
fn workspace_of_bytes() {
    let (size, align) = (size_of::<Workspace>(), align_of::<Workspace>());
    assert!(size <= 2 << 20, "{size}");
    let mut bytes = vec![0x5a_u8; size + 2 * align];
    let start = bytes.as_ptr().align_offset(align);
    assert!(Workspace::from_bytes(&mut bytes[start..start + size]).is_ok());
    assert!(Workspace::from_bytes(&mut bytes[start..]).is_ok());
    for len in [0, 1, align, size - 1] {
        let result = Workspace::from_bytes(&mut bytes[start..start + len]).map(drop);
        let want = Error::TooShort {
            argument: Argument::Workspace,
            len,
            needed: size,
        };
        // In bytes, whatever the words are.
        let text = want.to_string();
        assert!(text.starts_with("workspace holds "), "{text}");
        assert!(text.contains(&len.to_string()) && text.contains(&size.to_string()));
        assert_refused(result, want, &text, "from_bytes");
    }
    for offset in [1, 2, 4, 8, 16, 32, 63] {
        let bytes = &mut bytes[start + offset..start + offset + size];
        let result = Workspace::from_bytes(bytes).map(drop);
        let want = Error::Misaligned {
            argument: Argument::Workspace,
            align,
        };
        let text = format!("workspace is not aligned to {align} bytes");
        assert_refused(result, want, &text, "from_bytes");
    }
    assert!(bytes.iter().all(|&byte| byte == 0x5a));
}

/// Tiles have sixteen rows: up to four are another's.
#[test]
fn amx_leaves_very_few_rows_to_dots() {
    let [Some(amx), Some(dots)] = [BackendId::Amx, BackendId::Avx512Bf16].map(common::backend)
    else {
        return;
    };
    for (h_q, same) in [(1, true), (4, true), (5, false), (257, false)] {
        let case = Case::new(1, 1, 1031, h_q, MEDIUM);
        for (tiles, dots) in modes(amx).iter().zip(&modes(dots)) {
            let got = decoded(&case.problem(), tiles);
            let want = decoded(&case.problem(), dots);
            assert_eq!(got == want, same, "{h_q}");
            // A last row alone, in tasks as in one call.
            assert_eq!(combined(&case.problem(), tiles), got, "{h_q}");
        }
    }
}

#[test]
fn backends_are_requested_by_name() {
    // So that no other test's asking comes between.
    let amx = Backend::permit_amx();
    assert_eq!(Backend::request(BackendId::Amx).is_ok(), amx);
    assert!(!amx || Backend::detect().id() == BackendId::Amx);
    assert!(Backend::request(Backend::detect().id()).is_ok());
    assert_eq!(Backend::default(), Backend::detect());
    assert_eq!(Options::default().backend, Backend::detect());
    assert_eq!(BackendId::from_name("none"), None);
    for id in BackendId::ALL {
        assert_eq!(BackendId::from_name(id.name()), Some(id));
        match Backend::request(id) {
            Ok(backend) => assert_eq!(backend.id(), id),
            Err(error) => assert_eq!(error, Error::BackendUnavailable { backend: id.name() }),
        }
        let error = Error::BackendUnavailable { backend: id.name() };
        let permit = if id == BackendId::Amx {
            ", or this process may not use it"
        } else {
            ""
        };
        let text = format!("backend {} can't run on this processor{permit}", id.name());
        assert_eq!(error.to_string(), text);
    }
}

#[test]
fn errors_are_errors_and_types_cross_threads() {
    fn error<T: std::error::Error + Send + Sync + Copy + 'static>() {}
    fn shared<T: Send + Sync>() {}
    error::<Error>();
    shared::<Plan>();
    shared::<Problem<'_>>();
    shared::<Options>();
    shared::<Workspace>();
}

// -------------------------------------------------------------------------------------------------
// Huge shapes
// -------------------------------------------------------------------------------------------------

/// Runs `call` on a thread of its own; fails instead of hanging.
#[track_caller]
fn in_no_time<T: Send + 'static>(what: &str, call: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(call()));
    let result = receiver.recv_timeout(Duration::from_secs(5));
    result.unwrap_or_else(|error| panic!("{what}: {error}"))
}

const SOME: [bf16; 576] = [bf16::ONE; 576];

/// Every call with that problem and next to no output: all refuse.
fn all_refuse(problem: &Problem) {
    let (mut o, mut lse) = (pattern(8), pattern(8));
    let mut workspace = workspace();
    for backend in backends() {
        let output = Output::dense(problem.shape, Elements::F32(&mut o), &mut lse);
        decode(problem, &default_on(backend), &mut workspace, output).unwrap_err();
    }
    for (_, reference) in REFERENCES {
        reference(problem, 16, &mut o, &mut lse).unwrap_err();
    }
    reference::golden(problem, &mut [0.0; 8], &mut [0.0; 8]).unwrap_err();
    assert_eq!(
        (bits(&o), bits(&lse)),
        (bits(&pattern(8)), bits(&pattern(8)))
    );
}

#[test]
fn huge_shapes_over_tiny_buffers() {
    let max = usize::MAX;
    let int = i32::MAX as usize;
    for huge in [
        int - 1,
        int,
        int + 1,
        max / 7,
        max / 4 + 1,
        max / 2,
        max - 1,
        max,
    ] {
        for field in 0..8 {
            in_no_time(&format!("{huge} in field {field}"), move || {
                let [b, s_q, s_k, h_q, h_kv, d_qk, d_v] =
                    std::array::from_fn(|i| if i == field || field == 7 { huge } else { 1 });
                let shape = Shape {
                    b,
                    s_q,
                    s_k,
                    h_q,
                    h_kv,
                    d_qk: if field < 5 { 576 } else { d_qk },
                    d_v: if field < 5 { 512 } else { d_v },
                };
                let problem = Problem::dense(shape, &SOME, &SOME, 1.0);
                assert!(Plan::new(&problem).is_err());
                all_refuse(&problem);
            });
        }
    }
}

/// Where a word has 32 bits a valid shape can have more tasks than it counts; where it has 64,
/// none has.
#[cfg(target_pointer_width = "32")]
#[test]
fn more_tasks_than_can_be_counted() {
    let heads = 1 << 28;
    let shape = Shape {
        b: 1,
        s_q: 1,
        s_k: 65_536,
        h_q: heads,
        h_kv: heads,
        d_qk: 64,
        d_v: 64,
    };
    let row = [bf16::ONE; 64];
    let mut problem = Problem::dense(shape, &row, &row, 1.0);
    problem.q.strides = [0; 3];
    problem.kv.strides = [0; 3];
    let text = Plan::new(&problem).unwrap_err().to_string();
    // 16 ranges of keys for each.
    assert_eq!(text, "h_kv is 268435456, not in 0..=268435455");
    problem.shape.s_k -= 1;
    assert_eq!(Plan::new(&problem).map(|plan| plan.tasks()), Ok(1 << 31));
}

/// Strides of 0 make shapes valid that no output could hold.
#[test]
fn huge_shapes_of_repeated_rows() {
    let int = i32::MAX as usize;
    let huge = [int, usize::MAX / 2, usize::MAX];
    let shape = Shape {
        b: 1,
        s_q: 1,
        s_k: 1,
        h_q: 1,
        h_kv: 1,
        d_qk: 576,
        d_v: 512,
    };
    let mut shapes = Vec::new();
    for b in huge {
        shapes.push(Shape { b, ..shape });
        shapes.push(Shape {
            b,
            s_k: int,
            ..shape
        });
        shapes.push(Shape {
            b,
            s_q: int,
            h_q: int,
            s_k: int,
            ..shape
        });
    }
    shapes.push(Shape {
        s_q: int,
        h_q: int,
        ..shape
    });
    shapes.push(Shape { h_q: int, ..shape });
    for shape in shapes {
        in_no_time(&format!("{shape:?}"), move || {
            let mut problem = Problem::dense(shape, &SOME, &SOME, 1.0);
            problem.q.strides = [0; 3];
            problem.kv.strides = [0; 3];
            all_refuse(&problem);
            // 16 splits of each request, more than can be counted, if its rows can.
            let rows = shape.s_q.checked_mul(shape.h_q);
            if (shape.b, shape.s_k) == (usize::MAX, int) && rows.is_some() {
                let text = Plan::new(&problem).unwrap_err().to_string();
                let want = format!("b is {}, not in 0..=", usize::MAX);
                assert!(text.starts_with(&want), "{text}");
            }
            // A plan may be made or refused; its numbers must be right.
            if let Ok(plan) = Plan::new(&problem) {
                assert!(plan.tasks() >= shape.b, "{} tasks", plan.tasks());
                assert!(plan.partial_len() <= 256 * (512 + 3));
                let (mut o, mut lse) = (pattern(8), pattern(8));
                let output = Output::dense(shape, Elements::F32(&mut o), &mut lse);
                combine(&problem, &plan, &mut [], output).unwrap_err();
            }
        });
    }
}

// -------------------------------------------------------------------------------------------------
// Layouts
// -------------------------------------------------------------------------------------------------

#[test]
fn dense_is_dense() {
    let shape = Shape {
        b: 2,
        s_q: 3,
        s_k: 5,
        h_q: 7,
        h_kv: 1,
        d_qk: 320,
        d_v: 256,
    };
    const EMPTY: Problem<'_> = Problem::dense(
        Shape {
            b: usize::MAX,
            s_q: usize::MAX,
            s_k: usize::MAX,
            h_q: usize::MAX,
            h_kv: 1,
            d_qk: usize::MAX,
            d_v: usize::MAX,
        },
        &[],
        &[],
        0.5,
    );
    assert_eq!(EMPTY.q.strides, [usize::MAX; 3]);
    let (q, kv) = (normal(1, 1.0, 2 * 3 * 7 * 320), normal(2, 1.0, 2 * 5 * 320));
    let problem = Problem::dense(shape, &q, &kv, 0.5);
    assert_eq!(problem.shape, shape);
    assert_eq!(problem.q.strides, [3 * 7 * 320, 7 * 320, 320]);
    assert_eq!(problem.kv.strides, [5 * 320, 320, 320]);
    assert_eq!(
        (problem.q.data.len(), problem.kv.data.len()),
        (q.len(), kv.len())
    );
    assert!(problem.v.is_none() && problem.cache_seqlens.is_none() && !problem.causal);
    assert_eq!(problem.softmax_scale, 0.5);
    // Every key visible to every query: lengths of s_k change nothing, shorter ones do.
    let options = Options::default();
    let all = decoded(&problem, &options);
    let with = |lens| Problem {
        cache_seqlens: Some(lens),
        ..problem
    };
    assert_eq!(decoded(&with(&[5, 5]), &options), all);
    assert_ne!(decoded(&with(&[5, 4]), &options), all);
    // The values are the first columns of the cache.
    let v: Vec<bf16> = kv
        .chunks(320)
        .flat_map(|row| &row[..256])
        .copied()
        .collect();
    let v = Some(Tensor {
        data: Data::Bf16(&v),
        strides: [5 * 256, 256, 0],
    });
    assert_eq!(decoded(&Problem { v, ..problem }, &options), all);

    let (mut o, mut lse) = ([0.0; 1], [0.0; 1]);
    let output = Output::dense(shape, Elements::F32(&mut o), &mut lse);
    assert_eq!(output.o_strides, [3 * 7 * 256, 7 * 256, 256]);
    assert_eq!(output.lse_strides, [7 * 3, 3, 1]);
}

/// Strides that put the dimensions in `order`, the outermost first, each with its padding.
fn strides<const RANK: usize>(
    dims: [usize; RANK],
    width: usize,
    order: [usize; RANK],
    padding: [usize; RANK],
) -> [usize; RANK] {
    let mut extent = width;
    let mut strides = [0; RANK];
    for dimension in order.into_iter().rev() {
        strides[dimension] = extent + padding[dimension];
        extent = strides[dimension] * dims[dimension];
    }
    strides
}

/// Where each row starts, in the order of a dense tensor.
fn starts<const RANK: usize>(dims: [usize; RANK], strides: [usize; RANK]) -> Vec<usize> {
    let mut starts = vec![0];
    for (dim, stride) in dims.into_iter().zip(strides) {
        let along = |start: &usize| {
            let start = *start;
            (0..dim).map(move |i| start + i * stride)
        };
        starts = starts.iter().flat_map(along).collect();
    }
    starts
}

/// The rows of a dense tensor where these strides have them, NaN between; not an element longer
/// than needed.
fn spread<const RANK: usize>(
    dense: &[bf16],
    dims: [usize; RANK],
    width: usize,
    strides: [usize; RANK],
) -> Vec<bf16> {
    let starts = starts(dims, strides);
    let len = starts.iter().max().map_or(0, |last| last + width);
    let mut out = vec![bf16::NAN; len];
    for (row, start) in dense.chunks(width).zip(starts) {
        out[start..start + width].copy_from_slice(row);
    }
    out
}

/// Rows where these strides have them are what `dense` has, and all else is the pattern.
#[track_caller]
fn assert_spread<T: Copy + PartialEq + std::fmt::Debug>(
    got: &[T],
    pattern: &[T],
    dense: &[T],
    width: usize,
    starts: &[usize],
) {
    let mut want = pattern.to_vec();
    for (row, &start) in dense.chunks(width).zip(starts) {
        want[start..start + width].copy_from_slice(row);
    }
    let wrong = got.iter().zip(&want).position(|(got, want)| got != want);
    if let Some(i) = wrong {
        let inside = starts
            .iter()
            .any(|&start| (start..start + width).contains(&i));
        panic!(
            "element {i} is {:x?}, want {:x?}; in a row: {inside}",
            got[i], want[i]
        );
    }
    assert_eq!(got.len(), want.len());
}

/// One arrangement of every tensor.
#[derive(Clone, Copy, Debug)]
struct Layout {
    /// Order of the dimensions of q, o and lse, outermost first.
    rows: [usize; 3],
    /// Of kv and v.
    keys: [usize; 2],
    /// Elements between rows, and between groups of rows.
    padding: [usize; 3],
}

const ORDERS: [[usize; 3]; 6] = [
    [0, 1, 2],
    [0, 2, 1],
    [1, 0, 2],
    [1, 2, 0],
    [2, 0, 1],
    [2, 1, 0],
];

/// The strided problem and outputs give the bits of the dense ones, and write nowhere else.
fn check_layout(case: &Case, options: &Options, layout: Layout, want: &Bits) {
    let Shape {
        b,
        s_q,
        s_k,
        h_q,
        h_kv: _,
        d_qk,
        d_v,
    } = case.shape;
    let Layout {
        rows,
        keys,
        padding,
    } = layout;
    let [p0, p1, p2] = padding;
    let q_strides = strides([b, s_q, h_q], d_qk, rows, padding);
    let kv_strides = strides([b, s_k], d_qk, keys, [p2, p0]);
    let v_strides = strides([b, s_k], d_v, keys, [p1, p2]);
    let q = spread(&case.q, [b, s_q, h_q], d_qk, q_strides);
    let kv = spread(&case.kv, [b, s_k], d_qk, kv_strides);
    let v = case.v.as_ref().map(|v| spread(v, [b, s_k], d_v, v_strides));
    let problem = Problem {
        q: Tensor {
            data: Data::Bf16(&q),
            strides: q_strides,
        },
        kv: Tensor {
            data: Data::Bf16(&kv),
            strides: [kv_strides[0], kv_strides[1], 0],
        },
        v: v.as_ref().map(|v| Tensor {
            data: Data::Bf16(v),
            strides: [v_strides[0], v_strides[1], 0],
        }),
        ..case.problem()
    };

    let o_strides = strides([b, s_q, h_q], d_v, rows, [p2, p0, p1]);
    let lse_strides = strides([b, h_q, s_q], 1, rows, [p1, p2, p0]);
    let o_starts = starts([b, s_q, h_q], o_strides);
    let lse_starts = starts([b, h_q, s_q], lse_strides);
    let len = |starts: &[usize], width| starts.iter().max().map_or(0, |last| last + width);
    let (o_len, lse_len) = (len(&o_starts, d_v), len(&lse_starts, 1));
    let want16: Vec<u16> = want
        .0
        .iter()
        .map(|&bits| bf16::from_f32(f32::from_bits(bits)).to_bits())
        .collect();

    let plan = Plan::new(&problem).unwrap();
    let mut partials = vec![f32::NAN; plan.tasks() * plan.partial_len()];
    let mut workspace = workspace();
    let memories = partials.chunks_mut(plan.partial_len());
    for (task, partial) in memories.enumerate() {
        run_task(&problem, options, &plan, task, &mut workspace, partial).unwrap();
    }
    for through_tasks in [false, true] {
        for half in [false, true] {
            let (mut o32, mut o16) = (pattern(o_len), pattern16(o_len));
            let mut lse = pattern(lse_len);
            let output = Output {
                o: if half {
                    Elements::Bf16(&mut o16)
                } else {
                    Elements::F32(&mut o32)
                },
                o_strides,
                lse: &mut lse,
                lse_strides,
                lse_format: Lse::default(),
            };
            if through_tasks {
                combine(&problem, &plan, &mut partials.clone(), output).unwrap();
            } else {
                decode(&problem, options, &mut workspace, output).unwrap();
            }
            if half {
                let before = bits16(&pattern16(o_len));
                assert_spread(&bits16(&o16), &before, &want16, d_v, &o_starts);
            } else {
                assert_spread(&bits(&o32), &bits(&pattern(o_len)), &want.0, d_v, &o_starts);
            }
            let before = bits(&pattern(lse_len));
            assert_spread(&bits(&lse), &before, &want.1, 1, &lse_starts);
        }
    }
}

fn strided_inputs_and_outputs(backend: Backend) {
    for separate in [false, true] {
        let mut case = Case::new(2, 3, 210, 5, MEDIUM);
        case.lens = Some(vec![210, 77]);
        case.causal = true;
        if separate {
            case = case.separate_v();
        }
        for options in modes(backend) {
            let want = decoded(&case.problem(), &options);
            for rows in ORDERS {
                for (keys, padding) in [([0, 1], [0, 0, 0]), ([1, 0], [1, 13, 7])] {
                    let layout = Layout {
                        rows,
                        keys,
                        padding,
                    };
                    check_layout(&case, &options, layout, &want);
                }
            }
        }
    }
}

/// Two results woven into one buffer, row by row.
fn interleaved_outputs(backend: Backend) {
    let one = Case::new(2, 2, 100, 3, SMALL);
    let mut two = one.clone();
    two.scale = -1.5 * one.scale;
    let options = default_on(backend);
    let shape = one.shape;
    let (o_len, lse_len) = one.sizes();
    let (mut o, mut lse) = (pattern(2 * o_len), pattern(2 * lse_len));
    for (i, case) in [&one, &two].into_iter().enumerate() {
        let dense = Output::dense(shape, Elements::F32(&mut []), &mut []);
        let (o_strides, lse_strides) = (dense.o_strides, dense.lse_strides);
        let output = Output {
            o: Elements::F32(&mut o[i * 128..]),
            o_strides: o_strides.map(|stride| 2 * stride),
            lse: &mut lse[i..],
            lse_strides: lse_strides.map(|stride| 2 * stride),
            lse_format: Lse::default(),
        };
        decode(&case.problem(), &options, &mut workspace(), output).unwrap();
    }
    let mut want = (Vec::new(), Vec::new());
    let (one, two) = (
        decoded(&one.problem(), &options),
        decoded(&two.problem(), &options),
    );
    for (one, two) in one.0.chunks(128).zip(two.0.chunks(128)) {
        want.0.extend_from_slice(one);
        want.0.extend_from_slice(two);
    }
    for (one, two) in one.1.into_iter().zip(two.1) {
        want.1.extend([one, two]);
    }
    assert!((bits(&o), bits(&lse)) == want);
}

/// A key that begins five elements after the one before.
fn keys_that_overlap(backend: Backend) {
    let mut case = Case::new(1, 1, 250, 4, SMALL);
    let lying = case.kv[..249 * 5 + 128].to_vec();
    case.kv = lying.windows(128).step_by(5).flatten().copied().collect();
    let mut overlapping = case.problem();
    overlapping.kv.data = Data::Bf16(&lying);
    overlapping.kv.strides[1] = 5;
    for options in modes(backend) {
        let want = decoded(&case.problem(), &options);
        assert!(decoded(&overlapping, &options) == want);
    }
}

/// Strides of 0: one cache for the whole batch, one query for all heads.
fn shared_inputs(backend: Backend) {
    let mut case = Case::new(3, 2, 250, 4, SMALL);
    case.lens = Some(vec![250, 3, 200]);
    let one = case.kv[..250 * 128].to_vec();
    case.kv = one.repeat(3);
    let row = case.q[..128].to_vec();
    case.q = row.repeat(3 * 2 * 4);
    let mut shared = case.problem();
    shared.kv.data = Data::Bf16(&one);
    shared.kv.strides[0] = 0;
    shared.q.data = Data::Bf16(&row);
    shared.q.strides = [0; 3];
    for options in modes(backend) {
        let want = decoded(&case.problem(), &options);
        assert!(decoded(&shared, &options) == want);
        assert!(combined(&shared, &options) == want);
        // Heads of the same query are the same.
        let rows: Vec<&[u32]> = want.0.chunks(128).collect();
        assert!(rows[..8].iter().all(|row| *row == rows[0]));
    }
}

fn bf16_is_f32_rounded(backend: Backend) {
    let mut case = Case::new(3, 2, 300, 9, SMALL).separate_v();
    case.lens = Some(vec![300, 0, 150]);
    case.value(0, 10)[3] = bf16::INFINITY;
    case.value(0, 11)[4] = bf16::NAN;
    case.value(0, 12)[5] = bf16::NEG_INFINITY;
    for k in 0..300 {
        // Large enough that BF16 rounds to infinity, and small enough for its subnormals.
        case.value(0, k)[6] = bf16::MAX;
        case.value(0, k)[7] = bf16::from_f32(3e-38 * (k % 7) as f32 / 7.0);
        case.value(0, k)[8] = bf16::NEG_ZERO;
    }
    case.q_row(2, 1, 4)[0] = bf16::NAN;
    let problem = case.problem();
    let plan = Plan::new(&problem).unwrap();
    let (o_len, lse_len) = case.sizes();
    for options in modes(backend) {
        let (want, want_lse) = decoded(&problem, &options);
        let want = want.into_iter().map(f32::from_bits);
        let want: Vec<u16> = want.map(|x| bf16::from_f32(x).to_bits()).collect();
        let mut partials = vec![0.0; plan.tasks() * plan.partial_len()];
        let mut workspace = workspace();
        let memories = partials.chunks_mut(plan.partial_len());
        for (task, partial) in memories.enumerate() {
            run_task(&problem, &options, &plan, task, &mut workspace, partial).unwrap();
        }
        for through_tasks in [false, true] {
            let (mut o, mut lse) = (pattern16(o_len), pattern(lse_len));
            let output = Output::dense(case.shape, Elements::Bf16(&mut o), &mut lse);
            if through_tasks {
                combine(&problem, &plan, &mut partials, output).unwrap();
            } else {
                decode(&problem, &options, &mut workspace, output).unwrap();
            }
            assert_eq!(bits16(&o), want, "{options:?}");
            assert_eq!(bits(&lse), want_lse, "{options:?}");
        }
    }
}

// -------------------------------------------------------------------------------------------------
// Tasks
// -------------------------------------------------------------------------------------------------

/// A fixed shuffle of `0..n`.
fn shuffled(n: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for i in (1..n).rev() {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        order.swap(i, (state >> 33) as usize % (i + 1));
    }
    order
}

/// Runs the tasks in that order, dealt to so many threads, and combines them.
fn in_order(problem: &Problem, options: &Options, order: &[usize], threads: usize) -> Bits {
    let plan = Plan::new(problem).unwrap();
    assert_eq!(order.len(), plan.tasks());
    let mut partials = vec![f32::NAN; plan.tasks() * plan.partial_len()];
    let mut memories: Vec<Option<&mut [f32]>> =
        partials.chunks_mut(plan.partial_len()).map(Some).collect();
    let mut hands: Vec<Vec<(usize, &mut [f32])>> = (0..threads).map(|_| Vec::new()).collect();
    for (i, &task) in order.iter().enumerate() {
        hands[i % threads].push((task, memories[task].take().unwrap()));
    }
    thread::scope(|scope| {
        for hand in hands {
            let plan = &plan;
            scope.spawn(move || {
                let mut workspace = workspace();
                for (task, partial) in hand {
                    run_task(problem, options, plan, task, &mut workspace, partial).unwrap();
                }
            });
        }
    });
    dense(problem.shape, |output| {
        combine(problem, &plan, &mut partials, output)
    })
}

/// A partial result has room for the largest group, and a request's last may have 2 rows.
fn few_rows_beside_many(backend: Backend) {
    // 2 and 6 beyond three groups of 256. Four requests of four groups are tasks enough for none to be cut.
    for (dims, s_q, heads) in [(SMALL, 10, 77), (MEDIUM, 10, 77), (MEDIUM, 9, 86)] {
        for bad in [None, Some(bf16::INFINITY), Some(bf16::NAN)] {
            let mut case = Case::new(4, s_q, 40, heads, dims);
            if let Some(bad) = bad {
                case.value_in_key(0, 20)[3] = bad;
            }
            for options in modes(backend) {
                let problem = case.problem();
                assert!(decoded(&problem, &options) == combined(&problem, &options));
            }
        }
    }
}

/// Panels that are tasks of their own, in pieces of two and three, and whole groups on one thread.
fn panels_alone_and_together(backend: Backend) {
    // Requests, heads, panels of the largest piece.
    for (dims, b, heads, panels) in [
        ((576, 512), 1, 128, 1),
        (SMALL, 1, 100, 1),
        (SMALL, 1, 200, 1),
        (SMALL, 4, 384, 2),
        (SMALL, 16, 130, 3),
    ] {
        for bad in [None, Some(bf16::INFINITY), Some(bf16::NAN)] {
            let mut case = Case::new(b, 1, 300 / b, heads, dims);
            if let Some(bad) = bad {
                case.value_in_key(0, 10)[3] = bad;
            }
            for options in modes(backend) {
                let problem = case.problem();
                let rows = Plan::new(&problem).unwrap().partial_len() / (dims.1 + 2);
                assert_eq!(rows, panels.min(PANELS) * PANEL_ROWS);
                assert!(
                    decoded(&problem, &options) == combined(&problem, &options),
                    "{heads} heads, {bad:?}, {options:?}"
                );
            }
        }
    }
}

/// One that is run alone doesn't see the next one's keys, one that is run before it does.
fn what_lies_behind_a_task_does_not_matter(backend: Backend) {
    const KEYS: usize = 2304;
    let first = schedule::splits(KEYS).nth(1).unwrap().start;
    // The next task's first key: it is hidden, or its score is minus infinity.
    let mut words = vec![u64::MAX; (KEYS - first).div_ceil(64)];
    words[0] = !1;
    let mask = TailMask {
        words: &words,
        tail: KEYS - first,
    };
    for h_q in [1, 4, 5, 8, 20] {
        for (bad, tail_mask) in [(bf16::NAN, Some(mask)), (bf16::INFINITY, None)] {
            let mut case = Case::new(1, 1, KEYS, h_q, SMALL);
            case.key(0, first)[3] = bad;
            for h in 0..h_q {
                case.q_row(0, 0, h)[3] = bf16::NEG_ONE;
            }
            let problem = Problem {
                tail_mask,
                ..case.problem()
            };
            for options in modes(backend) {
                assert!(decoded(&problem, &options) == combined(&problem, &options));
            }
        }
    }
}

/// Where whole groups would be fewer than 16 tasks, halves or quarters of them are.
#[test]
fn few_tasks_are_cut_finer() {
    let tasks = |b, s_q, s_k, h_q| {
        let (q, kv) = (vec![bf16::ZERO; 64], vec![bf16::ZERO; 64]);
        let mut problem = Problem::dense(
            Shape {
                b,
                s_q,
                s_k,
                h_q,
                h_kv: 1,
                d_qk: 64,
                d_v: 64,
            },
            &q,
            &kv,
            1.0,
        );
        (problem.q.strides, problem.kv.strides) = ([0; 3], [0; 3]);
        let plan = Plan::new(&problem).unwrap();
        assert_eq!(Plan::from_words(plan.to_words()), Some(plan));
        // No result takes more room than its rows.
        let rows = plan.partial_len() / (64 + 2);
        assert!(rows.is_multiple_of(PANEL_ROWS) && rows <= GROUP_ROWS);
        (plan.tasks(), rows / PANEL_ROWS)
    };
    let rows = |panels: usize| panels * PANEL_ROWS;
    if PANELS < 4 {
        // A group is a panel.
        assert_eq!(tasks(1, 1, 4096, rows(4)), (8, 1));
        return;
    }
    // Two ranges of keys.
    assert_eq!(tasks(1, 1, 4096, rows(2)), (4, 1));
    assert_eq!(tasks(1, 2, 4096, rows(2)), (8, 1));
    assert_eq!(tasks(4, 1, 4096, rows(2)), (16, 1));
    assert_eq!(tasks(4, 2, 4096, rows(2)), (16, 2));
    assert_eq!(tasks(8, 2, 4096, rows(2)), (16, 4));
    assert_eq!(tasks(8, 1, 4096, rows(2)), (16, 2));
    // Rows of the last panel; groups of four panels, of three and of less than one.
    assert_eq!(tasks(1, 1, 100, rows(2) + 1), (3, 1));
    assert_eq!(tasks(1, 1, 100, rows(4)), (4, 1));
    assert_eq!(tasks(4, 1, 100, rows(6)), (16, 2));
    assert_eq!(tasks(8, 1, 100, rows(6) - 1), (16, 3));
    assert_eq!(tasks(1, 1, 100, 1), (1, 1));
    assert_eq!(tasks(16, 1, 100, 1), (16, 1));
}

fn tasks_in_any_order(backend: Backend) {
    let one_cache = |b, s_q, s_k, h_q| {
        let mut case = Case::new(1, s_q, s_k, h_q, (64, 64));
        case.shape.b = b;
        case.q = normal(5, 1.0, b * s_q * h_q * 64);
        case.causal = true;
        case
    };
    let mut cases = Vec::new();
    // Splits of one request.
    for (s_k, splits) in [
        (2047, 1),
        (2048, 2),
        (8191, 2),
        (8192, 4),
        (16_383, 4),
        (16_384, 8),
    ] {
        cases.push((one_cache(1, 2, s_k, 3), splits));
    }
    // A ragged batch, where each request has its own.
    let mut ragged = one_cache(7, 2, 17_001, 2);
    ragged.lens = Some(vec![0, 1, 2047, 2048, 5000, 17_001, 33]);
    cases.push((ragged, 1 + 1 + 1 + 2 + 2 + 8 + 1));
    // Several row groups.
    let mut groups = one_cache(2, 3, 2100, 129);
    groups.lens = Some(vec![2100, 40]);
    cases.push((groups, (3_usize * 129).div_ceil(PANEL_ROWS) * (2 + 1)));
    for (i, (case, tasks)) in cases.iter().enumerate() {
        let mut problem = case.problem();
        problem.kv.strides[0] = 0;
        let plan = Plan::new(&problem).unwrap();
        assert_eq!(plan.tasks(), *tasks, "{:?}", case.shape);
        let forward: Vec<usize> = (0..*tasks).collect();
        let reverse: Vec<usize> = (0..*tasks).rev().collect();
        for options in [0, 1 + i % 3].map(|mode| modes(backend)[mode]) {
            let want = decoded(&problem, &options);
            let context = format!("{:?}, {options:?}", case.shape);
            assert!(
                in_order(&problem, &options, &reverse, 1) == want,
                "{context}"
            );
            if options == modes(backend)[0] {
                assert!(
                    in_order(&problem, &options, &forward, 1) == want,
                    "{context}"
                );
                assert!(
                    in_order(&problem, &options, &forward, 5) == want,
                    "{context}"
                );
            }
            assert!(
                in_order(&problem, &options, &shuffled(*tasks), 3) == want,
                "{context}"
            );
        }
    }
}

/// Request `b` of `case`, alone.
fn alone(case: &Case, b: usize) -> Case {
    let mut one = case.clone();
    let part = |data: &[bf16]| {
        let len = data.len() / case.shape.b;
        data[b * len..(b + 1) * len].to_vec()
    };
    one.shape.b = 1;
    one.q = part(&case.q);
    one.kv = part(&case.kv);
    one.v = case.v.as_deref().map(part);
    one.lens = case.lens.as_ref().map(|lens| vec![lens[b]]);
    one
}

/// Groups of rows differ in the order of their stages, in who packs V and where, and in who finds the
/// maxima. What a row sees is the same, and so are its bits.
fn how_many_heads_there_are_does_not_matter(backend: Backend) {
    const HEADS: usize = 256;
    let mut many = Case::new(1, 1, 1031, HEADS, MEDIUM);
    for separate in [false, true] {
        if separate {
            many = many.separate_v();
        }
        let [q_len, o_len] = [many.shape.d_qk, many.shape.d_v];
        for options in modes(backend) {
            let (o, lse) = decoded(&many.problem(), &options);
            for heads in [160, 128, 96, 80, 64, 32, 16] {
                // The last panel of so few rows is other kernels' there, or a call of so few.
                let other = match backend.id() {
                    BackendId::Avx512Bf16 => matches!(heads % 64, 1..=28),
                    BackendId::Avx512 | BackendId::Amx => heads <= 16,
                    _ => false,
                };
                if other {
                    continue;
                }
                for first in [0, HEADS - heads] {
                    let mut few = many.clone();
                    few.shape.h_q = heads;
                    few.q = many.q[first * q_len..][..heads * q_len].to_vec();
                    let got = decoded(&few.problem(), &options);
                    let want = (&o[first * o_len..][..heads * o_len], &lse[first..][..heads]);
                    assert!(
                        (&got.0[..], &got.1[..]) == want,
                        "{heads} from {first}, {options:?}"
                    );
                }
            }
        }
    }
}

fn neighbours_do_not_matter(backend: Backend) {
    let mut case = Case::new(5, 2, 4200, 3, SMALL).separate_v();
    case.lens = Some(vec![4200, 1, 0, 2100, 200]);
    case.causal = true;
    // One of them is all NaN.
    for k in 0..200 {
        case.key(4, k).fill(bf16::NAN);
    }
    let requests: Vec<Case> = (0..5).map(|b| alone(&case, b)).collect();
    let order = [3, 0, 4, 2, 1];
    let mut permuted = case.clone();
    let gather = |part: fn(&Case) -> &[bf16]| -> Vec<bf16> {
        order
            .iter()
            .flat_map(|&b| part(&requests[b]))
            .copied()
            .collect()
    };
    permuted.q = gather(|case| &case.q);
    permuted.kv = gather(|case| &case.kv);
    permuted.v = Some(gather(|case| case.v.as_ref().unwrap()));
    permuted.lens = Some(order.map(|b| case.lens.as_ref().unwrap()[b]).to_vec());
    for options in modes(backend) {
        let all = decoded(&case.problem(), &options);
        let permuted = decoded(&permuted.problem(), &options);
        let part = |(o, lse): &Bits, b: usize| {
            let (o_len, lse_len) = requests[0].sizes();
            let o = o[b * o_len..(b + 1) * o_len].to_vec();
            (o, lse[b * lse_len..(b + 1) * lse_len].to_vec())
        };
        for (b, request) in requests.iter().enumerate() {
            let want = part(&all, b);
            let context = format!("request {b}, {options:?}");
            assert!(decoded(&request.problem(), &options) == want, "{context}");
            let place = order.iter().position(|&other| other == b).unwrap();
            assert!(part(&permuted, place) == want, "{context}");
            // A cache of just its keys.
            let mut short = request.clone();
            let len = usize::try_from(request.lens.as_ref().unwrap()[0]).unwrap();
            short.shape.s_k = len;
            short.lens = None;
            short.kv.truncate(len * 128);
            short.v.as_mut().unwrap().truncate(len * 128);
            assert!(decoded(&short.problem(), &options) == want, "{context}");
        }
    }
}

/// All bits of the workspace set, then what another problem left there.
fn used_memory_does_not_matter(backend: Backend) {
    let mut other = Case::new(1, 1, 400, 130, MEDIUM);
    other.kv.fill(bf16::INFINITY);
    let cases = [
        {
            let mut case = Case::new(2, 2, 2100, 9, SMALL);
            case.lens = Some(vec![2100, 0]);
            case
        },
        // Odd and short blocks, panels that aren't full.
        Case::new(1, 1, 193, 65, MEDIUM),
        Case::new(1, 1, 1, 1, (576, 512)),
        Case::new(1, 3, 2, 1, SMALL),
    ];
    let mut bytes = vec![0xff_u8; size_of::<Workspace>() + 64];
    let start = bytes.as_ptr().align_offset(64);
    for case in cases {
        let problem = case.problem();
        let plan = Plan::new(&problem).unwrap();
        for options in modes(backend) {
            let want = decoded(&problem, &options);
            for filled in [true, false] {
                if filled {
                    bytes.fill(0xff);
                }
                let dirty = Workspace::from_bytes(&mut bytes[start..]).unwrap();
                if !filled {
                    let problem = other.problem();
                    dense(other.shape, |output| {
                        decode(&problem, &options, dirty, output)
                    });
                }
                let got = dense(case.shape, |output| {
                    decode(&problem, &options, dirty, output)
                });
                assert!(got == want, "{:?}, {options:?}", case.shape);
            }
            bytes.fill(0xff);
            let dirty = Workspace::from_bytes(&mut bytes[start..]).unwrap();
            let nan = f32::from_bits(u32::MAX);
            let mut partials = vec![nan; plan.tasks() * plan.partial_len()];
            let memories = partials.chunks_mut(plan.partial_len());
            for (task, partial) in memories.enumerate() {
                run_task(&problem, &options, &plan, task, dirty, partial).unwrap();
            }
            let got = dense(case.shape, |output| {
                combine(&problem, &plan, &mut partials, output)
            });
            assert!(got == want, "{:?}, {options:?}", case.shape);
        }
    }
}

/// Threads of hosts, fibers above all, may have little.
fn a_call_takes_little_stack(backend: Backend) {
    // As `amla_run` documents, and what a thread takes itself.
    const STACK: usize = (64 + 16) << 10;
    let options = default_on(backend);
    for h_q in [1, 4, 8, 16, 28, 64, 300] {
        for separate in [false, true] {
            let mut case = Case::new(1, 1, 400, h_q, (576, 512));
            if separate {
                case = case.separate_v();
            }
            let problem = &case.problem();
            let (mut workspace, (o, lse)) = (workspace(), case.sizes());
            let (mut o, mut lse) = (pattern(o), pattern(lse));
            let output = Output::dense(case.shape, Elements::F32(&mut o), &mut lse);
            let call = || decode(problem, &options, &mut workspace, output);
            thread::scope(|scope| {
                let thread = thread::Builder::new().stack_size(STACK);
                thread.spawn_scoped(scope, call).unwrap().join().unwrap()
            })
            .unwrap();
        }
    }
}

fn empty_batch(backend: Backend) {
    let options = default_on(backend);
    for lens in [None, Some(vec![])] {
        let mut case = Case::new(0, 2, 2000, 3, SMALL).separate_v();
        case.lens = lens;
        let problem = case.problem();
        let (mut o, mut lse) = (pattern(7), pattern(7));
        let mut workspace = workspace();
        let output = Output::dense(case.shape, Elements::F32(&mut o), &mut lse);
        decode(&problem, &options, &mut workspace, output).unwrap();
        let plan = Plan::new(&problem).unwrap();
        assert_eq!(plan.tasks(), 0);
        let output = Output::dense(case.shape, Elements::F32(&mut o), &mut lse);
        combine(&problem, &plan, &mut [], output).unwrap();
        assert_eq!(
            (bits(&o), bits(&lse)),
            (bits(&pattern(7)), bits(&pattern(7)))
        );
        for (_, reference) in REFERENCES {
            reference(&problem, 16, &mut [], &mut []).unwrap();
        }
        reference::golden(&problem, &mut [], &mut []).unwrap();
        // There is no task to run.
        for task in [0, 1] {
            let mut partial = pattern(plan.partial_len());
            let result = run_task(
                &problem,
                &options,
                &plan,
                task,
                &mut workspace,
                &mut partial,
            );
            let error = result.unwrap_err();
            let named = matches!(
                error,
                Error::OutOfRange { argument: Argument::Task, value, .. } if value == task
            );
            assert!(named, "{error:?}");
            assert_eq!(bits(&partial), bits(&pattern(partial.len())));
        }
    }
}

// -------------------------------------------------------------------------------------------------
// Anything
// -------------------------------------------------------------------------------------------------

#[derive(Clone, Debug)]
struct Recipe {
    shape: Shape,
    seed: u64,
    separate: bool,
    causal: bool,
    /// Lengths in parts of 255 of `s_k`.
    lens: Option<Vec<u8>>,
    /// Times one over the root of `d_qk`.
    scale: f32,
    layout: Layout,
}

fn recipe() -> impl Strategy<Value = Recipe> {
    let dims = prop_oneof![3 => Just(SMALL), 1 => Just(MEDIUM)];
    let counts = (0..=3_usize, 1..=4_usize, 0..=260_usize, 1..=20_usize);
    let layout = (0..6_usize, any::<bool>(), [0..20_usize, 0..20, 0..20]);
    let lens = proptest::option::of(proptest::collection::vec(any::<u8>(), 3));
    let flags = (any::<bool>(), any::<bool>());
    (
        counts,
        dims,
        lens,
        flags,
        any::<u64>(),
        -1.5_f32..1.5,
        layout,
    )
        .prop_map(
            |((b, s_q, s_k, h_q), (d_qk, d_v), lens, (separate, causal), seed, scale, layout)| {
                Recipe {
                    shape: Shape {
                        b,
                        s_q,
                        s_k,
                        h_q,
                        h_kv: 1,
                        d_qk,
                        d_v,
                    },
                    seed,
                    separate,
                    causal,
                    lens,
                    scale,
                    layout: Layout {
                        rows: ORDERS[layout.0],
                        keys: if layout.1 { [0, 1] } else { [1, 0] },
                        padding: layout.2,
                    },
                }
            },
        )
}

impl Recipe {
    fn case(&self) -> Case {
        let Shape {
            b,
            s_q,
            s_k,
            h_q,
            h_kv: _,
            d_qk,
            d_v,
        } = self.shape;
        let data = |i, n| normal(self.seed.wrapping_add(i), 1.0, n);
        Case {
            shape: self.shape,
            q: data(0, b * s_q * h_q * d_qk),
            kv: data(1, b * s_k * d_qk),
            v: self.separate.then(|| data(2, b * s_k * d_v)),
            lens: self.lens.as_ref().map(|lens| {
                let len = |&part: &u8| i32::try_from(usize::from(part) * s_k / 255).unwrap();
                lens[..b].iter().map(len).collect()
            }),
            causal: self.causal,
            scale: self.scale / (d_qk as f32).sqrt(),
        }
    }
}

fn any_problem(backend: Backend) {
    let mut runner = TestRunner::new(Config {
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(20_250_930),
        ..Config::with_cases(40)
    });
    let check = |recipe: Recipe| {
        let case = recipe.case();
        case.check(backend);
        let options = modes(backend)[recipe.seed as usize % 4];
        let want = decoded(&case.problem(), &options);
        check_layout(&case, &options, recipe.layout, &want);
        Ok(())
    };
    if let Err(error) = runner.run(&recipe(), check) {
        panic!("{error}");
    }
}

/// The rest of the interface's small promises.
#[test]
fn arguments_have_the_names_of_the_interface() {
    for (argument, name) in [
        (Argument::B, "b"),
        (Argument::SQ, "s_q"),
        (Argument::SK, "s_k"),
        (Argument::HQ, "h_q"),
        (Argument::DQk, "d_qk"),
        (Argument::DV, "d_v"),
        (Argument::Q, "q"),
        (Argument::Kv, "kv"),
        (Argument::V, "v"),
        (Argument::CacheSeqlens, "cache_seqlens"),
        (Argument::SoftmaxScale, "softmax_scale"),
        (Argument::O, "o"),
        (Argument::Lse, "lse"),
        (Argument::Task, "task"),
        (Argument::Partials, "partials"),
        (Argument::Workspace, "workspace"),
        (Argument::BlockN, "block_n"),
    ] {
        assert_eq!(argument.name(), name);
    }
    assert_eq!(Rescale::default(), Rescale::Exact);
    assert_eq!(Precision::default(), Precision::Bf16);
}
