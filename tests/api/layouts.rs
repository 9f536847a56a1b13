//! Strides of inputs and outputs change no bit of the results.

use std::fmt::Debug;

use amla::{
    Backend, Data, Elements, Lse, Options, Output, Plan, Problem, ProblemShape, TensorRef, decode,
};
use half::bf16;

use crate::calls::{
    Bits, MEDIUM, SMALL, bits, bits16, combined, decoded, default_on, pattern, pattern16,
};
use crate::common::{Case, modes, normal, run_plan, workspace};

#[test]
fn dense_is_dense() {
    let shape = ProblemShape {
        b: 2,
        s_q: 3,
        s_k: 5,
        h_q: 7,
        h_kv: 1,
        d_qk: 320,
        d_v: 256,
    };
    const EMPTY: Problem<'_> = Problem::dense(
        ProblemShape {
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
    let v = Some(TensorRef {
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

/// The rows of a dense tensor at these strides, NaN between them, and no element more.
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

/// Rows at these starts are those of `dense`, and all else is the pattern.
#[track_caller]
fn assert_spread<T: Copy + PartialEq + Debug>(
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
pub struct Layout {
    /// Order of the dimensions of q, o and lse, outermost first.
    pub rows: [usize; 3],
    /// Of kv and v.
    pub keys: [usize; 2],
    /// Elements between rows, and between groups of rows.
    pub padding: [usize; 3],
}

pub const ORDERS: [[usize; 3]; 6] = [
    [0, 1, 2],
    [0, 2, 1],
    [1, 0, 2],
    [1, 2, 0],
    [2, 0, 1],
    [2, 1, 0],
];

/// The strided problem and outputs give the bits of the dense ones, and write nowhere else.
pub fn check_layout(case: &Case, options: &Options, layout: Layout, want: &Bits) {
    let ProblemShape {
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
        q: TensorRef {
            data: Data::Bf16(&q),
            strides: q_strides,
        },
        kv: TensorRef {
            data: Data::Bf16(&kv),
            strides: [kv_strides[0], kv_strides[1], 0],
        },
        v: v.as_ref().map(|v| TensorRef {
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
    let mut workspace = workspace();
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
                lse: Some(&mut lse),
                lse_strides,
                max_logits: None,
                lse_format: Lse::default(),
            };
            if through_tasks {
                run_plan(&problem, options, &plan, 0..plan.tasks(), output).unwrap();
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

pub fn strided_inputs_and_outputs(backend: Backend) {
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
pub fn interleaved_outputs(backend: Backend) {
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
            lse: Some(&mut lse[i..]),
            max_logits: None,
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
pub fn keys_that_overlap(backend: Backend) {
    let mut case = Case::new(1, 1, 250, 4, SMALL);
    let stored = case.kv[..249 * 5 + 128].to_vec();
    case.kv = stored.windows(128).step_by(5).flatten().copied().collect();
    let mut overlapping = case.problem();
    overlapping.kv.data = Data::Bf16(&stored);
    overlapping.kv.strides[1] = 5;
    for options in modes(backend) {
        let want = decoded(&case.problem(), &options);
        assert!(decoded(&overlapping, &options) == want);
    }
}

/// Strides of 0: one cache for the whole batch, one query for all heads.
pub fn shared_inputs(backend: Backend) {
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

pub fn bf16_is_f32_rounded(backend: Backend) {
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
        let mut workspace = workspace();
        for through_tasks in [false, true] {
            let (mut o, mut lse) = (pattern16(o_len), pattern(lse_len));
            let output = Output::dense(case.shape, Elements::Bf16(&mut o), &mut lse);
            if through_tasks {
                run_plan(&problem, &options, &plan, 0..plan.tasks(), output).unwrap();
            } else {
                decode(&problem, &options, &mut workspace, output).unwrap();
            }
            assert_eq!(bits16(&o), want, "{options:?}");
            assert_eq!(bits(&lse), want_lse, "{options:?}");
        }
    }
}
