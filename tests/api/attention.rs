//! Calls described step by step are the problems that one would write out.

use amla::{
    Argument, Attention, Backend, BackendId, Data, Elements, Error, IndexList, Indices, Inputs,
    Options, Output, Pages, Precision, Problem, ProblemShape, Rescale, Sparse, TailMask, TensorRef,
    TensorView, Workspace, Workspaces, decode,
};
use half::{bf16, f16};

use crate::common::normal;

const B: usize = 2;
const S_Q: usize = 3;
const H_Q: usize = 4;
const KEYS: usize = 40;

/// O and lse of a problem, and of an attention in every way that it computes.
#[track_caller]
fn same(attention: &Attention<'_>, want: &Problem<'_>, options: &Options) {
    let s = want.shape;
    let rows = match want.q_indptr {
        Some(indptr) => indptr[s.b] as usize * s.h_q,
        None => s.b * s.s_q * s.h_q,
    };
    let (mut o, mut lse) = (vec![0.0; rows * s.d_v], vec![0.0; rows]);
    let dense = ProblemShape {
        b: if want.q_indptr.is_some() { 1 } else { s.b },
        s_q: rows / s.h_q / if want.q_indptr.is_some() { 1 } else { s.b },
        ..s
    };
    let output = Output::dense(dense, Elements::F32(&mut o), &mut lse);
    decode(want, options, &mut Workspace::boxed(), output).unwrap();
    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let (got_o, got_lse) = attention.decode_alloc().unwrap();
    assert_eq!((bits(&got_o), bits(&got_lse)), (bits(&o), bits(&lse)));
    let mut alone = vec![0.0; o.len()];
    attention
        .decode(&mut Workspace::boxed(), &mut alone)
        .unwrap();
    assert_eq!(bits(&alone), bits(&o));
    let (mut o, mut lse) = (vec![0.0; o.len()], vec![0.0; lse.len()]);
    let mut workspaces = Workspaces::new();
    for _ in 0..2 {
        attention
            .decode_parallel(&mut workspaces, &mut o, Some(&mut lse))
            .unwrap();
        assert_eq!((bits(&o), bits(&lse)), (bits(&got_o), bits(&got_lse)));
    }
}

struct Tensors {
    q: Vec<bf16>,
    kv: Vec<bf16>,
}

impl Tensors {
    fn new() -> Self {
        Self {
            q: normal(1, 1.0, B * S_Q * H_Q * 576),
            kv: normal(2, 1.0, B * KEYS * 576),
        }
    }

    fn attention(&self) -> Attention<'_> {
        Attention::mla(
            TensorView::new(&self.q, [B, S_Q, H_Q, 576]),
            TensorView::new(&self.kv, [B, KEYS, 1, 576]),
            0.05,
        )
    }

    fn problem(&self) -> Problem<'_> {
        let shape = ProblemShape {
            b: B,
            s_q: S_Q,
            s_k: KEYS,
            h_q: H_Q,
            h_kv: 1,
            d_qk: 576,
            d_v: 512,
        };
        Problem::dense(shape, &self.q, &self.kv, 0.05)
    }
}

#[test]
fn a_latent_cache() {
    let tensors = Tensors::new();
    let (attention, problem) = (tensors.attention(), tensors.problem());
    let options = Options::default();
    same(&attention, &problem, &options);
    let causal = Problem {
        causal: true,
        window: Some(9),
        cache_seqlens: Some(&[40, 7]),
        sink: Some(&[0.5; H_Q]),
        ..problem
    };
    let sink = [0.5; H_Q];
    let attention = attention.lengths(&[40, 7]).sink(&sink);
    same(&attention.causal().window(9), &causal, &options);
    let mask = TailMask {
        words: &[0b101; B * S_Q],
        tail: 3,
    };
    let masked = Problem {
        causal: false,
        window: None,
        tail_mask: Some(mask),
        ..causal
    };
    same(&attention.tail_mask(mask), &masked, &options);
    let portable = Options {
        backend: Backend::request(BackendId::Portable).unwrap(),
        rescale: Rescale::Compensated,
        precision: Precision::Bf16x2,
        inputs: Inputs::Bf16,
    };
    let chosen = attention
        .backend(portable.backend)
        .rescale(portable.rescale)
        .precision(portable.precision)
        .inputs(portable.inputs);
    assert_eq!(*chosen.options(), portable);
    same(&chosen.tail_mask(mask), &masked, &portable);
}

#[test]
fn other_values() {
    let tensors = Tensors::new();
    let problem = tensors.problem();
    let options = Options::default();
    let mut narrow = problem;
    narrow.shape.d_v = 256;
    narrow.v_offset = 64;
    let attention = tensors.attention().value_width(256).value_offset(64);
    same(&attention, &narrow, &options);
    let v: Vec<f16> = normal(3, 1.0, B * KEYS * 128)
        .iter()
        .map(|x| f16::from_f32(x.to_f32()))
        .collect();
    let apart = Problem {
        shape: ProblemShape {
            d_v: 128,
            ..problem.shape
        },
        v: Some(TensorRef {
            data: Data::F16(&v),
            strides: [KEYS * 128, 128, 128],
        }),
        ..problem
    };
    let attention = Attention::new(
        TensorView::new(&tensors.q, [B, S_Q, H_Q, 576]),
        TensorView::new(&tensors.kv, [B, KEYS, 1, 576]),
        TensorView::new(&v, [B, KEYS, 1, 128]),
        0.05,
    );
    same(&attention, &apart, &options);
    // Heads before keys in memory: two KV heads of half as many keys.
    let (first, second) = ([B, S_Q, H_Q, 288], [B, KEYS, 2, 288]);
    let strides = [KEYS * 576, 288, KEYS * 288];
    let heads = Attention::mla(
        TensorView::new(&tensors.q[..B * S_Q * H_Q * 288], first),
        TensorView::new(&tensors.kv, second).strides(strides),
        0.05,
    );
    let mut split = problem;
    (split.shape.h_kv, split.shape.d_qk, split.shape.d_v) = (2, 288, 224);
    split.q.data = Data::Bf16(&tensors.q[..B * S_Q * H_Q * 288]);
    split.q.strides = [S_Q * H_Q * 288, H_Q * 288, 288];
    split.kv.strides = strides;
    same(&heads, &split, &options);
}

#[test]
fn caches_in_pages_and_ragged_ones() {
    let tensors = Tensors::new();
    let problem = tensors.problem();
    let options = Options::default();
    let pages = TensorView::new(&tensors.kv, [5, 16, 1, 576]);
    let table = [4, 0, 1, 2, 3, -1];
    let paged = Problem {
        shape: ProblemShape {
            s_k: 48,
            ..problem.shape
        },
        pages: Some(Pages {
            block_table: &table,
            max_blocks: 3,
            stride: 3,
            page_size: 16,
            pages: 5,
        }),
        kv: TensorRef {
            data: Data::Bf16(&tensors.kv),
            strides: [16 * 576, 576, 576],
        },
        cache_seqlens: Some(&[37, 20]),
        ..problem
    };
    let q = TensorView::new(&tensors.q, [B, S_Q, H_Q, 576]);
    let attention = Attention::mla(q, pages, 0.05).paged(&table);
    same(&attention.lengths(&[37, 20]), &paged, &options);
    let indices: Vec<i32> = (0..(B * S_Q * 7) as i32).map(|i| i * 11 % 80).collect();
    let sparse = Sparse {
        indices: Indices {
            indices: IndexList::I32(&indices),
            strides: [S_Q * 7, 7, 0],
            topk: 7,
            topk_length: None,
            topk_length_strides: [0, 0],
        },
        extra: None,
    };
    let chosen = Problem {
        sparse: Some(sparse),
        ..paged
    };
    let attention = attention.lengths(&[37, 20]).sparse(sparse);
    same(&attention, &chosen, &options);
    let ragged = Problem {
        shape: ProblemShape {
            s_q: 4,
            s_k: 50,
            ..problem.shape
        },
        q_indptr: Some(&[0, 2, 6]),
        kv_indptr: Some(&[0, 30, 80]),
        ..problem
    };
    let attention = Attention::mla(
        TensorView::new(&tensors.q, [1, B * S_Q, H_Q, 576]),
        TensorView::new(&tensors.kv, [1, B * KEYS, 1, 576]),
        0.05,
    );
    let attention = attention
        .ragged_queries(&[0, 2, 6])
        .ragged_keys(&[0, 30, 80]);
    same(&attention, &ragged, &options);
}

#[test]
fn a_split_cache() {
    let tensors = Tensors::new();
    let options = Options::default();
    let part = |rows: &[bf16], columns: std::ops::Range<usize>| -> Vec<bf16> {
        let rows = rows.chunks(576).map(|row| &row[columns.clone()]);
        rows.collect::<Vec<_>>().concat()
    };
    let (q, q_rope) = (part(&tensors.q, 0..512), part(&tensors.q, 512..576));
    let (kv, k_rope) = (part(&tensors.kv, 0..512), part(&tensors.kv, 512..576));
    let attention = Attention::mla(
        TensorView::new(&q, [B, S_Q, H_Q, 512]),
        TensorView::new(&kv, [B, KEYS, 1, 512]),
        0.05,
    );
    let attention = attention.split_rope(
        TensorView::new(&q_rope, [B, S_Q, H_Q, 64]),
        TensorView::new(&k_rope, [B, KEYS, 1, 64]),
    );
    same(&attention, &tensors.problem(), &options);
}

#[test]
fn tells_which_view_does_not_fit() {
    let tensors = Tensors::new();
    let q = TensorView::new(&tensors.q, [B, S_Q, H_Q, 576]);
    let kv = |dims| TensorView::new(&tensors.kv, dims);
    let refused = |attention: Attention, argument, dimension, value, needed| {
        let error = Error::Dimension {
            argument,
            dimension,
            value,
            needed,
        };
        let mut o = vec![7.0_f32; B * S_Q * H_Q * 512];
        let got = attention.decode(&mut Workspace::boxed(), &mut o);
        assert_eq!(got, Err(error));
        assert!(o.iter().all(|&x| x == 7.0));
        assert_eq!(attention.decode_alloc(), Err(error));
        assert_eq!(
            error.to_string(),
            format!("dimension {dimension} of {argument} is {value}, not {needed}")
        );
    };
    let one = |dims| Attention::mla(q, kv(dims), 1.0);
    refused(one([1, KEYS, 1, 576]), Argument::Kv, 0, 1, B);
    refused(one([B, KEYS, 1, 512]), Argument::Kv, 3, 512, 576);
    let ragged = one([B, KEYS, 1, 576]);
    let indptr = &[0, 1, 2];
    refused(ragged.ragged_keys(indptr), Argument::Kv, 0, B, 1);
    refused(ragged.ragged_queries(indptr), Argument::Q, 0, B, 1);
    let v = |dims| Attention::new(q, kv([B, KEYS, 1, 576]), kv(dims), 1.0);
    refused(v([B, KEYS - 1, 1, 512]), Argument::V, 1, KEYS - 1, KEYS);
    refused(v([B, KEYS, 2, 256]), Argument::V, 2, 2, 1);
    let rope = |q_dims, k_dims| {
        let q_rope = TensorView::new(&tensors.q, q_dims);
        tensors.attention().split_rope(q_rope, kv(k_dims))
    };
    let (good_q, good_k) = ([B, S_Q, H_Q, 64], [B, KEYS, 1, 64]);
    refused(rope([B, S_Q, 3, 64], good_k), Argument::QRope, 2, 3, H_Q);
    refused(rope(good_q, [3, KEYS, 1, 64]), Argument::KRope, 0, 3, B);
    refused(rope(good_q, [B, KEYS, 1, 32]), Argument::KRope, 3, 32, 64);
    let table = Attention::mla(q, kv([5, 16, 1, 576]), 1.0).paged(&[0, 1, 2]);
    let error = Error::WrongLength {
        argument: Argument::BlockTable,
        len: 3,
        expected: 2,
    };
    assert_eq!(table.decode_alloc(), Err(error));
    // What else is wrong, the problem's checks find.
    let short = TensorView::new(&tensors.kv[..99], [B, KEYS, 1, 576]);
    let got = Attention::mla(q, short, 1.0).decode_alloc();
    assert!(matches!(
        got,
        Err(Error::TooShort {
            argument: Argument::Kv,
            ..
        })
    ));
    let mut o = [0.0_f32; 5];
    let got = tensors.attention().decode(&mut Workspace::boxed(), &mut o);
    assert!(matches!(
        got,
        Err(Error::TooShort {
            argument: Argument::O,
            ..
        })
    ));
}

/// A thread's stack may be smaller than a workspace.
#[test]
fn a_workspace_needs_no_stack() {
    let thread = std::thread::Builder::new().stack_size(256 << 10);
    let done = thread.spawn(|| {
        let tensors = Tensors::new();
        let (o, _) = tensors.attention().decode_alloc().unwrap();
        o.len()
    });
    assert_eq!(done.unwrap().join().unwrap(), B * S_Q * H_Q * 512);
}
