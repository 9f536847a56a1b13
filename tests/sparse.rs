//! Sparse attention after FlashMLA's tests of its sparse decoding: pages of odd sizes, invalid
//! places, rows without any, sinks, a second cache, FP8.

#[macro_use]
mod common;

use std::io::Write;

use amla::format::{FP8_ROW, MODEL1_ROW, MODEL1_SCALES, encode_fp8, encode_model1};
use amla::{
    Argument, Backend, Data, Elements, Error, Extra, IndexList, Indices, Options, Output, Pages,
    Plan, Problem, ProblemShape, SharedOutput, Sparse, TailMask, TensorRef, decode, reference,
    run_tasks,
};
use common::{Case, modes, normal, workspace};
use half::bf16;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

suites![
    grid,
    all_keys_in_order,
    chosen_from_requests,
    tasks,
    units_stand_alone,
];

/// A paged cache, a second one, and places in both.
struct Chosen {
    shape: ProblemShape,
    q: Vec<bf16>,
    kv: Vec<bf16>,
    extra_kv: Vec<bf16>,
    page_size: usize,
    extra_page_size: usize,
    indices: Vec<i32>,
    extra_indices: Vec<i32>,
    topk_length: Option<Vec<i32>>,
    extra_topk_length: Option<Vec<i32>>,
    sink: Option<Vec<f32>>,
}

/// Axes of the grid, and what follows from one point of it.
#[derive(Clone, Copy, Debug)]
struct Point {
    b: usize,
    s_q: usize,
    h_q: usize,
    dims: (usize, usize),
    page_size: usize,
    topk: usize,
    extra_topk: usize,
    /// Of the places, per mille.
    invalid: u32,
    lengths: bool,
    sink: bool,
}

impl Chosen {
    fn new(point: Point, seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let Point { b, s_q, h_q, .. } = point;
        let (d_qk, d_v) = point.dims;
        let clamped = |seed, n| -> Vec<bf16> {
            let numbers = normal(seed, 0.1, n).into_iter();
            numbers
                .map(|x| bf16::from_f32(x.to_f32().clamp(-1.0, 1.0)))
                .collect()
        };
        let pages = |keys: usize, page_size: usize| keys.div_ceil(page_size) * page_size;
        let keys = pages(2 * point.topk + 10, point.page_size);
        let extra_page_size = 2 * point.page_size + 1;
        let extra_keys = pages(point.extra_topk + 3, extra_page_size);
        let mut indices = |topk: usize, keys: usize| -> Vec<i32> {
            let keys = i32::try_from(keys).unwrap();
            (0..b * s_q)
                .flat_map(|unit| {
                    let mut all: Vec<i32> = (0..keys).collect();
                    all.shuffle(&mut rng);
                    all.truncate(topk);
                    for index in &mut all {
                        // The last row has no valid index at all.
                        let none = unit + 1 == b * s_q && point.invalid > 0;
                        if none || rng.random_ratio(point.invalid, 1000) {
                            let bad = [-1, i32::MIN, keys, keys + 77, 2_147_480_000];
                            *index = bad[rng.random_range(0..bad.len())];
                        }
                    }
                    all
                })
                .collect()
        };
        let [indices, extra_indices] = [(point.topk, keys), (point.extra_topk, extra_keys)]
            .map(|(topk, keys)| indices(topk, keys));
        let mut lengths = |topk: usize| {
            let topk = i32::try_from(topk).unwrap();
            let lengths = (0..b).map(|_| rng.random_range(0..=topk)).collect();
            point.lengths.then_some(lengths)
        };
        Self {
            shape: ProblemShape {
                b,
                s_q,
                s_k: keys,
                h_q,
                h_kv: 1,
                d_qk,
                d_v,
            },
            q: clamped(seed + 1, b * s_q * h_q * d_qk),
            kv: clamped(seed + 2, keys * d_qk),
            extra_kv: clamped(seed + 3, extra_keys * d_qk),
            page_size: point.page_size,
            extra_page_size,
            topk_length: lengths(point.topk),
            extra_topk_length: lengths(point.extra_topk),
            indices,
            extra_indices,
            sink: point.sink.then(|| {
                let some = |h| match h % 4 {
                    0 => f32::INFINITY,
                    1 => f32::NEG_INFINITY,
                    _ => rng.random_range(-3.0..3.0),
                };
                (0..h_q).map(some).collect()
            }),
        }
    }

    fn problem(&self) -> Problem<'_> {
        let ProblemShape { b, s_q, d_qk, .. } = self.shape;
        let paged = |data, page_size: usize| TensorRef {
            data: Data::Bf16(data),
            strides: [page_size * d_qk, d_qk, 0],
        };
        let indices = |indices: &'_ [i32]| {
            let topk = indices.len() / (b * s_q);
            (topk, [s_q * topk, topk, 0])
        };
        let (topk, strides) = indices(&self.indices);
        let (extra_topk, extra_strides) = indices(&self.extra_indices);
        let extra = Extra {
            kv: paged(&self.extra_kv, self.extra_page_size),
            pages: self.extra_kv.len() / d_qk / self.extra_page_size,
            page_size: self.extra_page_size,
            indices: Indices {
                indices: IndexList::I32(&self.extra_indices),
                strides: extra_strides,
                topk: extra_topk,
                topk_length: self.extra_topk_length.as_deref(),
                topk_length_strides: [1, 0],
            },
        };
        Problem {
            kv: paged(&self.kv, self.page_size),
            pages: Some(Pages {
                block_table: &[],
                max_blocks: 0,
                stride: 0,
                page_size: self.page_size,
                pages: self.kv.len() / d_qk / self.page_size,
            }),
            sparse: Some(Sparse {
                indices: Indices {
                    indices: IndexList::I32(&self.indices),
                    strides,
                    topk,
                    topk_length: self.topk_length.as_deref(),
                    topk_length_strides: [1, 0],
                },
                extra: (extra_topk > 0).then_some(extra),
            }),
            sink: self.sink.as_deref(),
            ..Problem::dense(self.shape, &self.q, &self.kv, (d_qk as f32).sqrt().recip())
        }
    }

    fn sizes(&self) -> (usize, usize) {
        let rows = self.shape.b * self.shape.s_q * self.shape.h_q;
        (rows * self.shape.d_v, rows)
    }

    /// FlashMLA's limit: 1e-3, absolute; lse 1e-6 or relative 8.01 / 65536.
    fn check(&self, problem: &Problem, options: &Options) {
        let (rows, lse) = self.sizes();
        let (mut want_o, mut want_lse) = (vec![0.0; rows], vec![0.0; lse]);
        reference::golden(problem, &mut want_o, &mut want_lse).unwrap();
        let (o, lse) = common::run(problem, self.sizes(), options);
        for (got, want) in o.iter().zip(&want_o) {
            assert!(
                (f64::from(*got) - want).abs() <= 1e-3,
                "{got} {want} {:?}",
                self.shape
            );
        }
        for (got, want) in lse.iter().zip(&want_lse) {
            let (got, want) = (f64::from(*got), *want);
            let close = (got - want).abs() <= 1e-6_f64.max(8.01 / 65536.0 * want.abs());
            assert!(got == want || close, "lse {got} {want}");
        }
    }
}

const WIDE: (usize, usize) = (576, 512);
const MODEL1: (usize, usize) = (512, 512);

fn grid(backend: Backend) {
    let options = Options {
        backend,
        ..Options::default()
    };
    let mut cases = 0;
    for (i, page_size) in [2, 53, 61, 64, 69, 576].into_iter().enumerate() {
        for (j, dims) in [WIDE, MODEL1].into_iter().enumerate() {
            for (k, extra_topk) in [0, 70].into_iter().enumerate() {
                for (lengths, sink) in [(false, false), (true, false), (false, true), (true, true)]
                {
                    let n = i + j + k;
                    let point = Point {
                        b: [1, 2, 1][n % 3],
                        s_q: 1 + n % 2,
                        h_q: [64, 3, 20, 9][(n + usize::from(sink)) % 4],
                        dims,
                        page_size,
                        topk: [64, 193, 250, 1][(i + k + usize::from(lengths)) % 4],
                        extra_topk,
                        invalid: [0, 100, 900][(i + j) % 3],
                        lengths,
                        sink,
                    };
                    let chosen = Chosen::new(point, (100 * cases) as u64);
                    let problem = chosen.problem();
                    if cases % 8 == 0 {
                        for options in modes(backend) {
                            chosen.check(&problem, &options);
                        }
                    } else {
                        chosen.check(&problem, &options);
                    }
                    in_fp8(&chosen, &options);
                    cases += 1;
                }
            }
        }
    }
    let name = backend.id().name();
    let _ = writeln!(
        std::io::stderr(),
        "sparse grid on {name}: {cases} cases passed, in BF16 and FP8"
    );
}

/// The same from FP8 caches; Golden decodes them too.
fn in_fp8(chosen: &Chosen, options: &Options) {
    let d_qk = chosen.shape.d_qk;
    let encode = |kv: &[bf16], page_size: usize| -> Vec<u8> {
        let mut bytes = Vec::new();
        for page in kv.chunks(page_size * d_qk) {
            let mut scales = vec![0; page_size * MODEL1_SCALES];
            for (row, scales) in page.chunks(d_qk).zip(scales.chunks_mut(MODEL1_SCALES)) {
                if d_qk == 576 {
                    let mut stored = [0; FP8_ROW];
                    encode_fp8(row, &mut stored).unwrap();
                    bytes.extend_from_slice(&stored);
                } else {
                    let mut stored = [0; MODEL1_ROW];
                    encode_model1(row, &mut stored, scales).unwrap();
                    bytes.extend_from_slice(&stored);
                }
            }
            if d_qk != 576 {
                bytes.extend_from_slice(&scales);
            }
        }
        bytes
    };
    let (page_size, extra) = (chosen.page_size, chosen.extra_page_size);
    let kv = encode(&chosen.kv, page_size);
    let extra_kv = encode(&chosen.extra_kv, extra);
    let stored = |bytes, page_size: usize| {
        if d_qk == 576 {
            TensorRef {
                data: Data::Fp8(bytes),
                strides: [page_size * FP8_ROW, FP8_ROW, 0],
            }
        } else {
            TensorRef {
                data: Data::Model1 {
                    bytes,
                    scales: page_size * MODEL1_ROW,
                    scale_stride: MODEL1_SCALES,
                },
                strides: [page_size * (MODEL1_ROW + MODEL1_SCALES), MODEL1_ROW, 0],
            }
        }
    };
    let mut problem = chosen.problem();
    problem.kv = stored(&kv, page_size);
    if let Some(extra_cache) = problem.sparse.as_mut().unwrap().extra.as_mut() {
        extra_cache.kv = stored(&extra_kv, extra);
    }
    chosen.check(&problem, options);
}

/// The same indices for all positions and heads.
const fn shared(indices: &[i32]) -> Indices<'_> {
    Indices {
        indices: IndexList::I32(indices),
        strides: [0; 3],
        topk: indices.len(),
        topk_length: None,
        topk_length_strides: [1, 0],
    }
}

/// All keys, in their order, are dense attention, bit for bit.
fn all_keys_in_order(backend: Backend) {
    for (h_q, s_k) in [(1, 193), (7, 2060), (64, 500), (70, 0)] {
        let case = Case::new(2, 1, s_k, h_q, (576, 512));
        let indices: Vec<i32> = (0..i32::try_from(s_k).unwrap()).collect();
        let sparse = Problem {
            sparse: Some(Sparse {
                indices: Indices {
                    indices: IndexList::I32(&indices),
                    strides: [0; 3],
                    topk: s_k,
                    topk_length: None,
                    topk_length_strides: [1, 0],
                },
                extra: None,
            }),
            ..case.problem()
        };
        for options in modes(backend) {
            let got = common::run(&sparse, case.sizes(), &options);
            assert_eq!(got, case.run(&options), "{h_q} {s_k}");
        }
        // Half of them elsewhere.
        let (first, second) = indices.split_at(s_k / 2);
        let mut one = case.clone();
        one.shape.b = 1;
        let split = Problem {
            sparse: Some(Sparse {
                indices: shared(first),
                extra: Some(Extra {
                    kv: TensorRef {
                        data: Data::Bf16(&case.kv),
                        strides: [576, 0, 0],
                    },
                    pages: s_k,
                    page_size: 1,
                    indices: shared(second),
                }),
            }),
            ..one.problem()
        };
        for options in modes(backend) {
            let got = common::run(&split, one.sizes(), &options);
            assert_eq!(got, one.run(&options), "{h_q} {s_k}, in two caches");
        }
    }
}

/// Places count within the request where the cache isn't paged.
fn chosen_from_requests(backend: Backend) {
    let mut case = Case::new(3, 2, 300, 20, (128, 128));
    let lens = vec![300, 0, 170];
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let indices: Vec<i32> = (0..3 * 2 * 90)
        .map(|_| rng.random_range(-20..320))
        .collect();
    let sparse = |problem| Problem {
        sparse: Some(Sparse {
            indices: Indices {
                indices: IndexList::I32(&indices),
                strides: [180, 90, 0],
                topk: 90,
                topk_length: None,
                topk_length_strides: [1, 0],
            },
            extra: None,
        }),
        ..problem
    };
    case.lens = Some(lens);
    let options = modes(backend)[0];
    let got = common::run(&sparse(case.problem()), case.sizes(), &options);
    let (mut o, mut lse) = (vec![0.0; got.0.len()], vec![0.0; got.1.len()]);
    reference::golden(&sparse(case.problem()), &mut o, &mut lse).unwrap();
    // Each weight is rounded by 2^-9, above the line and below it.
    let largest = case.kv.iter().map(|x| x.to_f64().abs()).fold(0.0, f64::max);
    for (got, want) in got.0.iter().zip(&o) {
        let limit = largest / 256.0;
        assert!((f64::from(*got) - want).abs() <= limit, "{got} {want}");
    }
    // The request without keys.
    assert!(got.0[40 * 128..80 * 128].iter().all(|&x| x == 0.0));
    assert!(got.1[40..80].iter().all(|&x| x == f32::INFINITY));
    // The same cache, ragged.
    let rows = [0..300, 300..300, 600..770].map(|rows| &case.kv[rows.start * 128..rows.end * 128]);
    let kv = rows.concat();
    let ragged = Problem {
        kv: TensorRef {
            data: Data::Bf16(&kv),
            strides: [0, 128, 0],
        },
        kv_indptr: Some(&[0, 300, 300, 470]),
        cache_seqlens: None,
        ..case.problem()
    };
    assert_eq!(common::run(&sparse(ragged), case.sizes(), &options), got);
}

fn point() -> Point {
    Point {
        b: 2,
        s_q: 2,
        h_q: 65,
        dims: (128, 128),
        page_size: 7,
        topk: 2100,
        extra_topk: 300,
        invalid: 200,
        lengths: true,
        sink: true,
    }
}

fn tasks(backend: Backend) {
    let full = Point {
        lengths: false,
        ..point()
    };
    let chosen = Chosen::new(full, 1);
    let problem = chosen.problem();
    let options = modes(backend)[0];
    let want = common::run(&problem, chosen.sizes(), &options);
    let plan = Plan::new(&problem).unwrap();
    assert!(plan.tasks() > 4, "{}", plan.tasks());
    assert!(plan.partial_tasks() > 0);
    let (mut o, mut lse) = (vec![0.0; want.0.len()], vec![0.0; want.1.len()]);
    let output = Output::dense(problem.shape, Elements::F32(&mut o), &mut lse);
    common::run_plan(&problem, &options, &plan, (0..plan.tasks()).rev(), output).unwrap();
    assert_eq!((o, lse), want);
}

/// The indices from one on.
fn from(indices: IndexList, start: usize) -> IndexList {
    match indices {
        IndexList::I32(indices) => IndexList::I32(&indices[start..]),
        IndexList::I64(indices) => IndexList::I64(&indices[start..]),
    }
}

/// Each query position has the bits that it has alone.
fn units_stand_alone(backend: Backend) {
    let chosen = Chosen::new(point(), 2);
    let problem = chosen.problem();
    let options = modes(backend)[0];
    let (o, lse) = common::run(&problem, chosen.sizes(), &options);
    let ProblemShape {
        s_q,
        h_q,
        d_qk,
        d_v,
        ..
    } = chosen.shape;
    for (b, j) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let shape = ProblemShape {
            b: 1,
            s_q: 1,
            ..chosen.shape
        };
        let mut alone = problem;
        alone.shape = shape;
        alone.q.data = Data::Bf16(&chosen.q[(b * s_q + j) * h_q * d_qk..]);
        let sparse = alone.sparse.as_mut().unwrap();
        let shift = |indices: &mut Indices| {
            let start = b * indices.strides[0] + j * indices.strides[1];
            indices.indices = from(indices.indices, start);
            indices.topk_length = indices.topk_length.map(|lengths| &lengths[b..=b]);
        };
        shift(&mut sparse.indices);
        shift(&mut sparse.extra.as_mut().unwrap().indices);
        let (alone_o, alone_lse) = common::run(&alone, (h_q * d_v, h_q), &options);
        let row = (b * s_q + j) * h_q;
        let same = |x: &[f32], y: &[f32]| x.iter().zip(y).all(|(x, y)| x.to_bits() == y.to_bits());
        assert!(same(&alone_o, &o[row * d_v..][..h_q * d_v]), "{b} {j}");
        for (h, &want) in alone_lse.iter().enumerate() {
            assert_eq!(lse[(b * h_q + h) * s_q + j].to_bits(), want.to_bits());
        }
    }
}

#[test]
fn refusals() {
    let chosen = Chosen::new(point(), 3);
    let good = chosen.problem();
    let with = |change: &dyn Fn(&mut Problem)| {
        let mut problem = good;
        change(&mut problem);
        let error = Plan::new(&problem).map(|_| ()).unwrap_err();
        let (o, lse) = chosen.sizes();
        let (mut o, mut lse) = (vec![7.0; o], vec![7.0; lse]);
        let output = Output::dense(problem.shape, Elements::F32(&mut o), &mut lse);
        let options = Options::default();
        let got = decode(&problem, &options, &mut workspace(), output).unwrap_err();
        assert_eq!(got, error);
        assert!(o.iter().chain(&lse).all(|&x| x == 7.0));
        error
    };
    let first = Argument::Indices;
    for (second, change) in [
        (
            Argument::Causal,
            &(|p: &mut Problem| p.causal = true) as &dyn Fn(&mut Problem),
        ),
        (Argument::Window, &|p| p.window = Some(3)),
        (Argument::TailMask, &|p| {
            p.tail_mask = Some(TailMask {
                words: &[0; 4],
                tail: 1,
            });
        }),
    ] {
        assert_eq!(with(change), Error::Conflict { first, second });
    }
    // Rows of a second cache have no parts.
    let (first, second) = (Argument::ExtraKv, Argument::V);
    let got = with(&|p| p.v = Some(p.kv));
    assert_eq!(got, Error::Conflict { first, second });
    // Without a rotary part there is nothing to split off.
    let got = with(&|p| p.k_rope = Some(p.kv));
    assert!(matches!(got, Error::OutOfRange { .. }), "{got}");
    let sparse = |change: &dyn Fn(&mut Sparse)| with(&|p| change(p.sparse.as_mut().unwrap()));
    let short = sparse(&|s| s.indices.indices = from(s.indices.indices, 1));
    let (len, needed) = (4 * 2100 - 1, 4 * 2100);
    let argument = Argument::Indices;
    assert_eq!(
        short,
        Error::TooShort {
            argument,
            len,
            needed
        }
    );
    assert_eq!(
        sparse(&|s| s.indices.topk_length = Some(&[0, 2101])).to_string(),
        "topk_length[1][0] is 2101, not in 0..=2100"
    );
    assert_eq!(
        sparse(&|s| s.extra.as_mut().unwrap().indices.topk_length = Some(&[-1, 0])).to_string(),
        "extra_topk_length[0][0] is -1, not in 0..=300"
    );
    assert_eq!(
        sparse(&|s| s.indices.topk_length = Some(&[0])).to_string(),
        "topk_length has 1 elements, expected 2"
    );
    assert_eq!(
        sparse(&|s| s.extra.as_mut().unwrap().page_size = 0).to_string(),
        format!("page_size is 0, not in 1..={}", usize::MAX)
    );
    assert!(matches!(
        sparse(&|s| s.extra.as_mut().unwrap().pages += 1),
        Error::TooShort {
            argument: Argument::ExtraKv,
            ..
        }
    ));
    // A plan for other lengths.
    let mut other = good;
    let lengths = chosen
        .topk_length
        .as_ref()
        .map(|l| [l[0] / 2, l[1]])
        .unwrap();
    other.sparse.as_mut().unwrap().indices.topk_length = Some(&lengths);
    let plan = Plan::new(&other).unwrap();
    let mut partial = vec![0.0; plan.partial_len()];
    let refused = common::run_unseen(
        &good,
        &Options::default(),
        &plan,
        0..1,
        &mut workspace(),
        &mut partial,
    );
    let differs = match refused {
        Err(Error::PlanMismatch { argument, .. }) => argument,
        other => panic!("{other:?}"),
    };
    assert_eq!(differs, Argument::TopkLength);
}

/// Strides of 0 make shapes valid that nobody could go through one by one.
#[test]
fn huge_shapes_are_planned_at_once() {
    let int = usize::try_from(i32::MAX).unwrap();
    let shape = ProblemShape {
        b: usize::MAX / 4,
        s_q: 1,
        s_k: 1,
        h_q: 1,
        h_kv: 1,
        d_qk: 64,
        d_v: 64,
    };
    let row = [bf16::ONE; 64];
    for shape in [
        shape,
        ProblemShape {
            b: 1,
            s_q: int,
            ..shape
        },
    ] {
        let mut problem = Problem::dense(shape, &row, &row, 1.0);
        problem.q.strides = [0; 3];
        problem.kv.strides = [0; 3];
        problem.sparse = Some(Sparse {
            indices: Indices {
                indices: IndexList::I32(&[0]),
                strides: [0; 3],
                topk: 1,
                topk_length: None,
                topk_length_strides: [1, 0],
            },
            extra: None,
        });
        let plan = Plan::new(&problem).unwrap();
        assert_eq!(plan.tasks(), shape.b * shape.s_q);
        // The last task is refused as quickly, with lengths or without: no memory has its rows.
        let refuse = |problem: &Problem, plan: &Plan| {
            let (mut o, mut lse) = (vec![0.0; 64], vec![0.0; 1]);
            let output = Output::dense(shape, Elements::F32(&mut o), &mut lse);
            let (last, output) = (plan.tasks() - 1, &SharedOutput::from(output));
            let (tasks, options) = (last..last + 1, Options::default());
            let memory = &mut workspace();
            let refused = run_tasks(problem, &options, plan, tasks, memory, &mut [], output);
            let overflow = |dimension| Error::Overflow {
                argument: Argument::O,
                dimension,
            };
            let want = match shape.s_q.checked_mul(64) {
                _ if shape.b > 1 => overflow(0),
                None => overflow(1),
                Some(needed) => Error::TooShort {
                    argument: Argument::O,
                    len: 64,
                    needed,
                },
            };
            assert_eq!(refused, Err(want));
        };
        refuse(&problem, &plan);
        if shape.b == 1 {
            problem.sparse.as_mut().unwrap().indices.topk_length = Some(&[1]);
            refuse(&problem, &Plan::new(&problem).unwrap());
        }
        problem.sparse = None;
        problem.shape.s_k = 0;
        problem.pages = Some(Pages {
            block_table: &[],
            max_blocks: 0,
            stride: 0,
            page_size: 1,
            pages: 0,
        });
        assert!(Plan::new(&problem).is_ok());
    }
}
