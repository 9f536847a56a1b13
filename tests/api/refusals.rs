//! What calls refuse, as tables: a change of a good call, the error that follows, and its words.
//! Refused calls write nothing.

use amla::{
    Argument, Data, Elements, Error, Options, Output, Plan, Problem, ProblemShape, TensorRef,
    combine, decode, reference, run_tasks,
};

use crate::calls::{REFERENCES, SMALL, bits, bits16, pattern, pattern16};
use crate::common::{Case, backends, modes, run_unseen, workspace};

// -------------------------------------------------------------------------------------------------
// Errors and their words
// -------------------------------------------------------------------------------------------------

/// An error, and what it displays.
type Refusal = (Error, String);

type Want = fn() -> Refusal;

const INT: usize = i32::MAX as usize;

fn out_of_range(argument: Argument, value: usize, min: usize, max: usize) -> Refusal {
    let error = Error::OutOfRange {
        argument,
        value,
        min,
        max,
    };
    let name = argument.name();
    (error, format!("{name} is {value}, not in {min}..={max}"))
}

fn too_short(argument: Argument, len: usize, needed: usize) -> Refusal {
    let error = Error::TooShort {
        argument,
        len,
        needed,
    };
    let name = argument.name();
    let text = format!("{name} holds {len} elements, {needed} are needed");
    (error, text)
}

fn wrong_length(argument: Argument, len: usize, expected: usize) -> Refusal {
    let error = Error::WrongLength {
        argument,
        len,
        expected,
    };
    let name = argument.name();
    let text = format!("{name} has {len} elements, expected {expected}");
    (error, text)
}

fn overflow(argument: Argument, dimension: usize) -> Refusal {
    let error = Error::Overflow {
        argument,
        dimension,
    };
    let name = argument.name();
    let text = format!("sizes and strides of {name} overflow in dimension {dimension}");
    (error, text)
}

fn overlap(argument: Argument, dimension: usize, stride: usize, min: usize) -> Refusal {
    let error = Error::Overlap {
        argument,
        dimension,
        stride,
        min,
    };
    let name = argument.name();
    let text = format!(
        "{name} has stride {stride} in dimension {dimension}; elements overlap below {min}"
    );
    (error, text)
}

fn non_finite(value: f32) -> Refusal {
    let text = format!("softmax_scale is {value}, not a finite number");
    (Error::NonFiniteScale { value }, text)
}

fn seqlen(request: usize, value: i32, limit: usize) -> Refusal {
    let error = Error::Seqlen {
        request,
        value,
        limit,
    };
    let text = format!("cache_seqlens[{request}] is {value}, not in 0..={limit}");
    (error, text)
}

// -------------------------------------------------------------------------------------------------
// Calls that must be refused
// -------------------------------------------------------------------------------------------------

/// Two requests of two positions and three heads, of 40 and 7 keys, with values of their own.
pub fn good() -> Case {
    let mut case = Case::new(2, 2, 40, 3, SMALL).separate_v();
    case.lens = Some(vec![40, 7]);
    case
}

/// Errors are compared as text, as one may hold a NaN.
#[track_caller]
pub fn assert_refused(result: Result<(), Error>, (error, text): &Refusal, call: &str) {
    let got = result.expect_err(call);
    assert_eq!(format!("{got:?}"), format!("{error:?}"), "{call}");
    assert_eq!(got.to_string(), *text, "{call}");
}

/// Calls with outputs of either format, which must stay as they were.
#[track_caller]
pub fn untouched(
    (o_len, lse_len): (usize, usize),
    arrange: impl Fn(&mut Output),
    mut call: impl FnMut(Output) -> Result<(), Error>,
    want: &Refusal,
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
        assert_refused(call(output), want, name);
    }
    assert_eq!(bits(&o32), bits(&pattern(o_len)), "{name} touched o");
    assert_eq!(bits16(&o16), bits16(&pattern16(o_len)), "{name} touched o");
    assert_eq!(bits(&lse), bits(&pattern(lse_len)), "{name} touched lse");
}

#[track_caller]
fn references_refuse(
    problem: &Problem,
    block_n: usize,
    (o_len, lse_len): (usize, usize),
    want: &Refusal,
) {
    for (name, reference) in REFERENCES {
        let (mut o, mut lse) = (pattern(o_len), pattern(lse_len));
        let result = reference(problem, block_n, &mut o, &mut lse);
        assert_refused(result, want, name);
        assert_eq!(bits(&o), bits(&pattern(o_len)), "{name} touched o");
        assert_eq!(bits(&lse), bits(&pattern(lse_len)), "{name} touched lse");
    }
}

#[track_caller]
fn golden_refuses(problem: &Problem, (o_len, lse_len): (usize, usize), want: &Refusal) {
    let (mut o, mut lse) = (vec![-7.75; o_len], vec![-7.75; lse_len]);
    let result = reference::golden(problem, &mut o, &mut lse);
    assert_refused(result, want, "golden");
    assert!(
        o.iter().chain(&lse).all(|&x| x == -7.75),
        "golden touched its outputs"
    );
}

/// Everything that takes a problem refuses this one.
#[track_caller]
fn refused(problem: &Problem, want: &Refusal) {
    let good = good();
    let plan = Plan::new(&good.problem()).unwrap();
    let dense = |_: &mut Output| {};
    assert_refused(Plan::new(problem).map(drop), want, "Plan::new");
    let mut workspace = workspace();
    for backend in backends() {
        for options in modes(backend) {
            let call = |output: Output| decode(problem, &options, &mut workspace, output);
            untouched(good.sizes(), dense, call, want, "decode");
            for task in [0, plan.tasks() - 1, usize::MAX] {
                let mut partial = pattern(plan.partial_len());
                let task = task..task.saturating_add(1);
                let result =
                    run_unseen(problem, &options, &plan, task, &mut workspace, &mut partial);
                assert_refused(result, want, "run_tasks");
                assert_eq!(bits(&partial), bits(&pattern(partial.len())), "run_tasks");
            }
        }
    }
    let partials = pattern(plan.partials_len());
    let rows = 0..plan.merges();
    let call = |output: Output| combine(problem, &plan, rows.clone(), &partials, &output.into());
    untouched(good.sizes(), dense, call, want, "combine");
    if !matches!(want.0, Error::UnsupportedDims { .. }) {
        golden_refuses(problem, good.sizes(), want);
        references_refuse(problem, 16, good.sizes(), want);
    }
}

/// `decode` and `combine` refuse outputs of these lengths, arranged so.
#[track_caller]
fn refused_output(
    case: &Case,
    lengths: (usize, usize),
    arrange: impl Fn(&mut Output),
    want: &Refusal,
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
            untouched(lengths, arrange, call, want, "decode");
        }
    }
    let mut partials = pattern(plan.partials_len());
    let rows = 0..plan.merges();
    let call = |output: Output| combine(&problem, &plan, rows.clone(), &partials, &output.into());
    untouched(lengths, arrange, call, want, "combine");
    let call = |output: Output| {
        let (output, options) = (&output.into(), Options::default());
        let tasks = 0..plan.tasks();
        run_tasks(
            &problem,
            &options,
            &plan,
            tasks,
            &mut workspace,
            &mut partials,
            output,
        )
    };
    untouched(lengths, arrange, call, want, "run_tasks");
    assert_eq!(bits(&partials), bits(&pattern(partials.len())), "run_tasks");
}

// -------------------------------------------------------------------------------------------------
// Inputs
// -------------------------------------------------------------------------------------------------

/// A change of a good problem, and the refusal.
type Input = (fn(&mut Problem), Want);

/// Single cases of [`good`], whose tensors hold 1536, 10240 and 10240 elements.
const INPUTS: &[Input] = {
    use Argument::{CacheSeqlens, DQk, DV, HQ, Kv, Q, SK, SQ, V};
    &[
        (|p| p.shape.s_q = 0, || out_of_range(SQ, 0, 1, INT)),
        (
            |p| p.shape.s_q = INT + 1,
            || out_of_range(SQ, INT + 1, 1, INT),
        ),
        (
            |p| p.shape.s_k = INT + 1,
            || out_of_range(SK, INT + 1, 0, INT),
        ),
        (|p| p.shape.h_q = 0, || out_of_range(HQ, 0, 1, INT)),
        (
            |p| p.shape.h_q = INT + 1,
            || out_of_range(HQ, INT + 1, 1, INT),
        ),
        (|p| p.shape.d_qk = 0, || out_of_range(DQk, 0, 1, INT)),
        (
            |p| p.shape.d_qk = INT + 1,
            || out_of_range(DQk, INT + 1, 1, INT),
        ),
        (|p| p.shape.d_v = 0, || out_of_range(DV, 0, 1, INT)),
        (
            |p| p.shape.d_v = INT + 1,
            || out_of_range(DV, INT + 1, 1, INT),
        ),
        // Values wider than the cache that they begin.
        (
            |p| (p.v, p.shape.d_v) = (None, 129),
            || out_of_range(DV, 129, 1, 128),
        ),
        (
            |p| (p.v, p.shape.d_v) = (None, 512),
            || out_of_range(DV, 512, 1, 128),
        ),
        (
            |p| (p.v, p.shape.d_v) = (None, INT),
            || out_of_range(DV, INT, 1, 128),
        ),
        (|p| p.softmax_scale = f32::NAN, || non_finite(f32::NAN)),
        (|p| p.softmax_scale = -f32::NAN, || non_finite(-f32::NAN)),
        (
            |p| p.softmax_scale = f32::INFINITY,
            || non_finite(f32::INFINITY),
        ),
        (
            |p| p.softmax_scale = f32::NEG_INFINITY,
            || non_finite(f32::NEG_INFINITY),
        ),
        // A shape that needs more than the tensors hold.
        (|p| p.shape.s_k += 1, || too_short(Kv, 10_240, 10_240 + 128)),
        (|p| p.shape.h_q += 1, || too_short(Q, 1536, 1536 + 128)),
        // Strides that are too large by one element.
        (|p| p.q.strides[2] += 1, || too_short(Q, 1536, 1536 + 2)),
        (
            |p| p.kv.strides[0] += 1,
            || too_short(Kv, 10_240, 10_240 + 1),
        ),
        (
            |p| p.v.as_mut().unwrap().strides[1] += 1,
            || too_short(V, 10_240, 10_240 + 39),
        ),
        (|p| shorten(&mut p.q, 1536), || too_short(Q, 0, 1536)),
        (
            |p| shorten(&mut p.q, 128),
            || too_short(Q, 1536 - 128, 1536),
        ),
        (|p| shorten(&mut p.q, 1), || too_short(Q, 1536 - 1, 1536)),
        (|p| shorten(&mut p.kv, 10_240), || too_short(Kv, 0, 10_240)),
        (
            |p| shorten(&mut p.kv, 10_240 - 127),
            || too_short(Kv, 127, 10_240),
        ),
        (
            |p| shorten(&mut p.kv, 10_240 - 128),
            || too_short(Kv, 128, 10_240),
        ),
        (
            |p| shorten(p.v.as_mut().unwrap(), 1),
            || too_short(V, 10_240 - 1, 10_240),
        ),
        (
            |p| shorten(p.v.as_mut().unwrap(), 129),
            || too_short(V, 10_240 - 129, 10_240),
        ),
        (
            |p| p.cache_seqlens = Some(&[]),
            || wrong_length(CacheSeqlens, 0, 2),
        ),
        (
            |p| p.cache_seqlens = Some(&[1]),
            || wrong_length(CacheSeqlens, 1, 2),
        ),
        (
            |p| p.cache_seqlens = Some(&[1, 2, 3]),
            || wrong_length(CacheSeqlens, 3, 2),
        ),
        (|p| p.cache_seqlens = Some(&[-1, 40]), || seqlen(0, -1, 40)),
        (
            |p| p.cache_seqlens = Some(&[i32::MIN, 40]),
            || seqlen(0, i32::MIN, 40),
        ),
        (|p| p.cache_seqlens = Some(&[41, 40]), || seqlen(0, 41, 40)),
        (
            |p| p.cache_seqlens = Some(&[40, i32::MAX]),
            || seqlen(1, i32::MAX, 40),
        ),
        (|p| p.cache_seqlens = Some(&[40, -1]), || seqlen(1, -1, 40)),
        (|p| p.cache_seqlens = Some(&[40, 41]), || seqlen(1, 41, 40)),
    ]
};

/// Takes the last elements off.
fn shorten(tensor: &mut TensorRef, by: usize) {
    let Data::Bf16(data) = tensor.data else {
        unreachable!()
    };
    tensor.data = Data::Bf16(&data[..data.len() - by]);
}

#[test]
fn refuses_inputs() {
    let good = good();
    for (change, want) in INPUTS {
        let mut problem = good.problem();
        change(&mut problem);
        refused(&problem, &want());
    }
}

#[test]
fn refuses_huge_counts() {
    let good = good();
    type Set = fn(&mut ProblemShape) -> &mut usize;
    let counts: [(Argument, Set, usize); 5] = [
        (Argument::SQ, |s| &mut s.s_q, 1),
        (Argument::SK, |s| &mut s.s_k, 0),
        (Argument::HQ, |s| &mut s.h_q, 1),
        (Argument::DQk, |s| &mut s.d_qk, 1),
        (Argument::DV, |s| &mut s.d_v, 1),
    ];
    for (argument, set, min) in counts {
        for value in [usize::MAX / 3, usize::MAX] {
            if value <= INT {
                continue;
            }
            let mut problem = good.problem();
            *set(&mut problem.shape) = value;
            refused(&problem, &out_of_range(argument, value, min, INT));
        }
    }
}

#[test]
fn refuses_dims_without_a_kernel() {
    for (d_qk, d_v) in [
        (64, 63),
        (572, 128),
        (576, 511),
        (1, 1),
        (12, 8),
        (576, 520),
    ] {
        let case = Case::new(1, 1, 1, 1, (d_qk, d_v)).separate_v();
        let error = Error::UnsupportedDims {
            d_qk,
            d_v,
            multiple: 8,
            max: (576, 512),
        };
        let text = format!(
            "(d_qk, d_v) = ({d_qk}, {d_v}) is not a pair of multiples of 8 up to (576, 512)"
        );
        refused(&case.problem(), &(error, text));
        // The references take any of these.
        let (o, lse) = case.sizes();
        let (mut o, mut lse) = (vec![0.0; o], vec![0.0; lse]);
        reference::golden(&case.problem(), &mut o, &mut lse).unwrap();
    }
}

/// Strides whose extents exceed `usize`: the first by its own size, the others by a product that
/// wraps to a small number, for dimensions of 3.
const OVERFLOWING: [usize; 3] = [usize::MAX, usize::MAX / 2 + 1, usize::MAX / 2 + 2];

#[test]
fn refuses_inputs_whose_strides_overflow() {
    let mut good = Case::new(3, 3, 3, 3, SMALL).separate_v();
    good.lens = Some(vec![3, 0, 1]);
    for stride in OVERFLOWING {
        for dimension in 0..3 {
            let mut problem = good.problem();
            problem.q.strides[dimension] = stride;
            refused(&problem, &overflow(Argument::Q, dimension));
        }
        for dimension in 0..2 {
            let mut problem = good.problem();
            problem.kv.strides[dimension] = stride;
            refused(&problem, &overflow(Argument::Kv, dimension));
            let mut problem = good.problem();
            problem.v.as_mut().unwrap().strides[dimension] = stride;
            refused(&problem, &overflow(Argument::V, dimension));
        }
    }
    // Each extent fits, their sum doesn't.
    for (stride, dimension) in [(usize::MAX / 2, 0), (usize::MAX / 4, 1)] {
        let mut problem = good.problem();
        problem.q.strides = [stride; 3];
        refused(&problem, &overflow(Argument::Q, dimension));
    }
}

// -------------------------------------------------------------------------------------------------
// Outputs
// -------------------------------------------------------------------------------------------------

type Arrange = fn(&mut Output);

/// Elements that O and lse lack, a change of their strides, and the refusal.
type OutputRow = ([usize; 2], Arrange, Want);

/// O and lse of [`good`] have 1536 and 12 elements: `[b, s_q, h_q] = [2, 2, 3]` rows of 128, `[b, h_q, s_q] = [2, 3, 2]`.
const OUTPUTS: &[OutputRow] = {
    use Argument::{Lse, O};
    const DENSE: Arrange = |_| {};
    &[
        ([1536, 0], DENSE, || too_short(O, 0, 1536)),
        ([1535, 0], DENSE, || too_short(O, 1, 1536)),
        ([128, 0], DENSE, || too_short(O, 1536 - 128, 1536)),
        ([1, 0], DENSE, || too_short(O, 1536 - 1, 1536)),
        ([0, 12], DENSE, || too_short(Lse, 0, 12)),
        ([0, 11], DENSE, || too_short(Lse, 1, 12)),
        ([0, 1], DENSE, || too_short(Lse, 11, 12)),
        (
            [0, 0],
            |o| o.o_strides[0] += 1,
            || too_short(O, 1536, 1536 + 1),
        ),
        (
            [0, 0],
            |o| o.lse_strides[0] += 1,
            || too_short(Lse, 12, 12 + 1),
        ),
        (
            [0, 0],
            |o| o.lse_strides[1] += 1,
            || too_short(Lse, 12, 12 + 2),
        ),
        (
            [0, 0],
            |o| o.o_strides = [768, 384, 127],
            || overlap(O, 2, 127, 128),
        ),
        (
            [0, 0],
            |o| o.o_strides = [768, 384, 0],
            || overlap(O, 2, 0, 128),
        ),
        (
            [0, 0],
            |o| o.o_strides = [768, 383, 128],
            || overlap(O, 1, 383, 384),
        ),
        (
            [0, 0],
            |o| o.o_strides = [767, 384, 128],
            || overlap(O, 0, 767, 768),
        ),
        (
            [0, 0],
            |o| o.o_strides = [0, 384, 128],
            || overlap(O, 0, 0, 128),
        ),
        (
            [0, 0],
            |o| o.o_strides = [128, 768, 255],
            || overlap(O, 2, 255, 256),
        ),
        (
            [0, 0],
            |o| o.lse_strides = [6, 2, 0],
            || overlap(Lse, 2, 0, 1),
        ),
        (
            [0, 0],
            |o| o.lse_strides = [6, 1, 1],
            || overlap(Lse, 2, 1, 3),
        ),
        (
            [0, 0],
            |o| o.lse_strides = [5, 2, 1],
            || overlap(Lse, 0, 5, 6),
        ),
        (
            [0, 0],
            |o| o.lse_strides = [1, 4, 1],
            || overlap(Lse, 2, 1, 2),
        ),
    ]
};

#[test]
fn refuses_outputs() {
    let case = good();
    let (o, lse) = case.sizes();
    for (less, arrange, want) in OUTPUTS {
        refused_output(&case, (o - less[0], lse - less[1]), arrange, &want());
    }
}

#[test]
fn refuses_outputs_whose_strides_overflow() {
    let case = Case::new(3, 3, 3, 3, SMALL);
    for stride in OVERFLOWING {
        for dimension in 0..3 {
            let arrange = |output: &mut Output| output.o_strides[dimension] = stride;
            refused_output(
                &case,
                case.sizes(),
                arrange,
                &overflow(Argument::O, dimension),
            );
            let arrange = |output: &mut Output| output.lse_strides[dimension] = stride;
            refused_output(
                &case,
                case.sizes(),
                arrange,
                &overflow(Argument::Lse, dimension),
            );
        }
    }
}

#[test]
fn references_refuse_other_lengths_and_blocks() {
    let case = good();
    let (o, lse) = case.sizes();
    let problem = case.problem();
    for len in [0, o - 1, o + 1] {
        let want = wrong_length(Argument::O, len, o);
        golden_refuses(&problem, (len, lse), &want);
        references_refuse(&problem, 16, (len, lse), &want);
    }
    for len in [0, lse - 1, lse + 1] {
        let want = wrong_length(Argument::Lse, len, lse);
        golden_refuses(&problem, (o, len), &want);
        references_refuse(&problem, 16, (o, len), &want);
    }
    for block_n in [0, reference::MAX_BLOCK + 1, usize::MAX] {
        let want = out_of_range(Argument::BlockN, block_n, 1, 512);
        references_refuse(&problem, block_n, (o, lse), &want);
    }
}
