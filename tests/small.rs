//! Every way through the library in the smallest sizes that take it, on the portable backend: what
//! an interpreter, Miri, can do in minutes. `.ci/sanitize miri` runs it there.

mod common;
#[allow(dead_code, reason = "shared with `hosts`, which uses the rest")]
#[path = "common/hosts.rs"]
mod host;

use amla::format::{
    FP8_ROW, Q4_0, Q8_0, encode_e4m3, encode_fp8, encode_int8, encode_q4_0, encode_q8_0,
};
use amla::{
    Backend, BackendId, Data, Elements, IndexList, Indices, Options, Output, Part, Plan, Problem,
    ProblemShape, Sparse, TensorRef, decode, merge,
};
use common::{modes, normal, workspace};
use half::{bf16, f16};
use host::{Host, Keys, Layout, PLAIN, combined, decoded, golden, paged, same};

const TINY: (usize, usize) = (64, 64);
/// With a rotary part.
const PARTS: (usize, usize) = (192, 128);

fn portable() -> Backend {
    Backend::request(BackendId::Portable).unwrap()
}

fn options() -> Options {
    Options {
        backend: portable(),
        ..Options::default()
    }
}

/// C1 and C2 of one row, of few, and of more, over no key, one, and an odd number.
#[test]
fn rows_and_keys() {
    for (h_q, len) in [(1, 0), (1, 1), (3, 3), (9, 3)] {
        Host::new([h_q, 1], TINY, &[(1, len)]).check(portable(), PLAIN);
    }
}

/// Two KV heads, values apart, in parts, in pages and ragged, with all that hides keys.
#[test]
fn layouts_masks_and_sinks() {
    let host = Host::new([2, 2], PARTS, &[(2, 3), (1, 5)]).separate_v();
    let host = host.sink(|h| h as f32);
    let ragged = Layout {
        keys: Keys::Ragged,
        spare: 1,
        padding: 3,
        ragged_q: true,
        split_q: true,
        split_k: true,
    };
    for (host, layout) in [
        (host.clone().causal(true), paged(2)),
        (host.clone().window(2), ragged),
        (host.tree(3, 1), ragged),
    ] {
        let want = host.run(PLAIN, &options());
        same(&host.run(layout, &options()), &want, &layout);
    }
}

/// Two KV splits, merged.
#[test]
fn tasks() {
    let host = Host::new([1, 1], TINY, &[(1, 2048), (1, 2)]);
    let laid = host.laid(PLAIN);
    let problem = laid.problem();
    let plan = Plan::new(&problem).unwrap();
    assert_eq!(plan.tasks(), 3);
    assert_eq!(Plan::from_words(plan.to_words()), Some(plan));
    same(
        &combined(&problem, &options()),
        &decoded(&problem, &options()),
        &"tasks",
    );
}

#[test]
fn chosen_keys() {
    let host = Host::new([2, 1], TINY, &[(1, 4)]);
    let laid = host.laid(PLAIN);
    let chosen = |indices| Problem {
        sparse: Some(Sparse {
            indices: Indices {
                indices: IndexList::I32(indices),
                strides: [indices.len(), indices.len(), 0],
                topk: indices.len(),
                topk_length: None,
                topk_length_strides: [1, 0],
            },
            extra: None,
        }),
        ..laid.problem()
    };
    let want = decoded(&chosen(&[3, 1]), &options());
    let got = decoded(&chosen(&[3, 1, -1, i32::MAX]), &options());
    same(&got, &want, &"places that there aren't");
}

/// What isn't finite goes another way, and spares the other columns.
#[test]
fn infinite_values() {
    let mut host = Host::new([9, 1], TINY, &[(1, 3)]).separate_v();
    host.value(0, 1)[7] = bf16::INFINITY;
    host.check(portable(), PLAIN);
}

/// Rows as they are stored.
#[test]
fn formats() {
    let shape = ProblemShape {
        b: 1,
        s_q: 1,
        s_k: 2,
        h_q: 1,
        h_kv: 1,
        d_qk: 576,
        d_v: 512,
    };
    let (q, kv) = (normal(1, 1.0, 576), normal(2, 1.0, 2 * 576));
    let mut bytes = vec![0; 2 * FP8_ROW];
    let (mut values, mut scales) = (vec![0; 2 * 576], Vec::new());
    for (i, row) in kv.chunks(576).enumerate() {
        encode_fp8(row, &mut bytes[i * FP8_ROW..][..FP8_ROW]).unwrap();
        scales.push(encode_int8(row, &mut values[i * 576..][..576]).unwrap());
    }
    let floats: Vec<f32> = kv.iter().map(|x| x.to_f32() / 3.0).collect();
    let halves: Vec<f16> = floats.iter().copied().map(f16::from_f32).collect();
    let (mut codes, mut q8, mut q4) = (
        vec![0; 2 * 576],
        [Q8_0::default(); 36],
        [Q4_0::default(); 36],
    );
    let factors: Vec<f32> = kv
        .chunks(576)
        .zip(codes.chunks_mut(576))
        .map(|(row, codes)| encode_e4m3(row, codes).unwrap())
        .collect();
    encode_q8_0(&floats, &mut q8).unwrap();
    encode_q4_0(&floats, &mut q4).unwrap();
    for (data, row) in [
        (Data::Fp8(&bytes), FP8_ROW),
        (
            Data::Int8 {
                values: &values,
                scales: &scales,
                strides: [2, 1, 1],
            },
            576,
        ),
        (
            Data::E4m3 {
                values: &codes,
                scales: &factors,
                strides: [2, 1, 1],
            },
            576,
        ),
        (Data::F16(&halves), 576),
        (Data::F32(&floats), 576),
        (Data::Q8_0(&q8), 18),
        (Data::Q4_0(&q4), 18),
    ] {
        let kv = TensorRef {
            data,
            strides: [2 * row, row, row],
        };
        let problem = Problem {
            kv,
            ..Problem::dense(shape, &q, &[], 0.04)
        };
        // Golden converts rows by itself.
        let ((want, _), (o, _)) = (golden(&problem), decoded(&problem, &options()));
        for (got, want) in o.into_iter().zip(want) {
            let got = f64::from(f32::from_bits(got));
            assert!((got - want).abs() < 1e-5, "{data:?}: {got} {want}");
        }
    }
}

/// Outputs of two bytes an element, and results over two KV splits.
#[test]
fn outputs_and_merging() {
    let host = Host::new([2, 1], TINY, &[(1, 4)]);
    let [first, second] = [0..2, 2..4].map(|range| {
        let host = host.keys(|_, k| range.contains(&k));
        host.run(PLAIN, &options())
    });
    let floats = |bits: &[u32]| -> Vec<f32> { bits.iter().copied().map(f32::from_bits).collect() };
    let (mut o, mut lse) = (floats(&first.0), floats(&first.1));
    let (part_o, part_lse) = (floats(&second.0), floats(&second.1));
    let laid = host.laid(PLAIN);
    let problem = laid.problem();
    let output = Output::dense(problem.shape, Elements::F32(&mut o), &mut lse);
    let part = Part {
        o: &part_o,
        lse: &part_lse,
        max_logits: None,
    };
    merge(&problem.shape, output, &[part]).unwrap();
    let (want, _) = host.golden();
    for (got, want) in o.iter().zip(&want) {
        assert!((f64::from(*got) - want).abs() < 1e-5);
    }

    let mut halves = vec![bf16::NAN; o.len()];
    for options in modes(portable()) {
        let output = Output::dense(problem.shape, Elements::Bf16(&mut halves), &mut lse);
        decode(&problem, &options, &mut workspace(), output).unwrap();
        for (got, want) in halves.iter().zip(&want) {
            assert!((f64::from(got.to_f32()) - want).abs() < 0.05);
        }
    }
}
