//! What hosts hand over, as in the library's own `tests/hosts/`, `tests/formats.rs` and
//! `tests/sparse.rs`: the same problems, through C.

use amla::format::{Q4_0, Q8_0};
use amla::{
    Backend, BackendId, Data, EmptyLse, IndexList, Indices, Inputs, Lse, LseBase, Options,
    Precision, Problem, ProblemShape, Sparse, Split, TensorRef, format,
};
use half::{bf16, f16};

use crate::common::{Case, modes, normal};
use crate::host::{Host, Keys, Layout, PLAIN, paged};
use crate::suite::{Cases, F32, Target, sparse};
use crate::toolchain::{c, run, scratch, tool, valgrind};

const MLA: (usize, usize) = (576, 512);
const MHA: (usize, usize) = (192, 128);
const TINY: (usize, usize) = (64, 64);

fn backends() -> impl Iterator<Item = Backend> {
    let request = |id| Backend::request(id).ok();
    BackendId::ALL.into_iter().filter_map(request)
}

const TARGETS: [Target; 3] = [
    F32,
    Target {
        dtype: 1,
        lse: Lse {
            base: LseBase::Two,
            empty: EmptyLse::MinusInfinity,
        },
        gap: 7,
    },
    Target {
        dtype: 2,
        gap: 1,
        ..F32
    },
];

/// Layouts, masks, heads, sinks; `len` is the longest request's.
fn hosts(len: usize) -> Vec<(Host, Layout)> {
    let ragged = Layout {
        keys: Keys::Ragged,
        spare: 3,
        padding: 5,
        ragged_q: true,
        split_q: true,
        split_k: false,
    };
    let split = Layout {
        padding: 1,
        split_q: false,
        split_k: true,
        ..paged(16)
    };
    let latent = Host::new([5, 1], MLA, &[(1, len), (1, 0), (1, 193)]);
    let several = Host::new([16, 1], MLA, &[(2, len), (3, 7), (1, 200)]);
    let grouped = Host::new([6, 2], MHA, &[(2, len), (2, 40)]).separate_v();
    let tiny = Host::new([3, 1], TINY, &[(4, 30), (4, 3)]);
    vec![
        (latent.clone(), PLAIN),
        (latent.clone(), split),
        (latent.sink(|h| h as f32 - 2.0), paged(64)),
        (several.clone(), ragged),
        (several.causal(true), paged(53)),
        (grouped.clone().window(17), PLAIN),
        (grouped.causal(true).sink(|_| 1.0), ragged),
        (tiny.tree(9, 3), paged(2)),
    ]
}

/// Everything that problems can be, in all modes on all backends where `all`.
fn cases(len: usize, all: bool) -> Cases {
    let mut cases = Cases::default();
    let mut count = 0;
    for backend in backends() {
        let modes = modes(backend);
        let mut add = |problem: &Problem| {
            let modes: &[Options] = if all {
                &modes
            } else {
                &modes[count % 4..][..1]
            };
            for options in modes {
                cases.decode(problem, options, TARGETS[count % 3]);
                count += 1;
            }
            // Rounded to BF16 where the backend multiplies that.
            let rounded = Options {
                inputs: Inputs::Bf16,
                ..modes[0]
            };
            if rounded.precision == Precision::Bf16 && wider(problem) {
                cases.decode(problem, &rounded, TARGETS[count % 3]);
            }
        };
        for (host, layout) in hosts(len) {
            let laid = host.laid(layout);
            let problem = laid.problem();
            add(&problem);
            if layout.padding == 1 {
                let split = Split::Every(96);
                add(&Problem { split, ..problem });
            }
        }
        stored(len, &mut add);
        let case = Case::new(2, 2, len, 4, MLA);
        let indices: Vec<i32> = (0..2 * 2 * 40).map(|i| (i * 7 + i / 3) % 300 - 2).collect();
        add(&sparse(&case.problem(), &indices, &[40, 13]));
        new_in_version_2(len, &mut add);
        add(&Case::new(0, 1, 10, 1, TINY).problem());
        add(&Case::new(1, 1, 0, 1, TINY).problem());
    }
    for row in normal(9, 3.0, 3 * 600).chunks(600) {
        cases.encode(row);
    }
    merges(&mut cases);
    one_line(&mut cases, len);
    cases
}

/// Values behind the rotary part, lists with strides, sparse attention over split caches with indices of each head.
fn new_in_version_2(len: usize, add: &mut impl FnMut(&Problem)) {
    let case = Case::new(2, 2, len, 4, MLA);
    let rope_first = Problem {
        v_offset: 64,
        cache_seqlens: Some(&[7]),
        cache_seqlens_stride: 0,
        ..case.problem()
    };
    add(&rope_first);
    let host = Host::new([6, 2], MHA, &[(2, 90), (2, 41)]).separate_v();
    let laid = host.laid(Layout {
        split_q: true,
        split_k: true,
        ..paged(16)
    });
    let problem = laid.problem();
    let pages = problem.pages.unwrap();
    add(&Problem {
        cache_seqlens: Some(&[40, -1, 41]),
        cache_seqlens_stride: 2,
        pages: Some(amla::Pages { stride: 0, ..pages }),
        ..problem
    });
    let indices: Vec<i64> = (0..2 * 2 * 2 * 30).map(|i| i * 7 % 150 - 3).collect();
    let sparse = Indices {
        indices: IndexList::I64(&indices),
        strides: [120, 60, 30],
        topk: 30,
        topk_length: Some(&[30, 0, 13, 29]),
        topk_length_strides: [2, 1],
    };
    add(&Problem {
        cache_seqlens: None,
        sparse: Some(Sparse {
            indices: sparse,
            extra: None,
        }),
        ..problem
    });
    add(&Problem {
        q_indptr: Some(&[0, 1, 3]),
        cache_seqlens: None,
        sparse: Some(Sparse {
            indices: Indices {
                strides: [0, 60, 30],
                topk_length: Some(&[30, 7, 13]),
                topk_length_strides: [0, 1],
                ..sparse
            },
            extra: None,
        }),
        ..problem
    });
}

/// Whether rounding to BF16 changes anything.
fn wider(problem: &Problem) -> bool {
    let wide = |data: &Data| {
        matches!(
            data,
            Data::F16(_) | Data::F32(_) | Data::Q8_0(_) | Data::Q4_0(_)
        )
    };
    wide(&problem.q.data) || wide(&problem.kv.data)
}

/// Caches in every format.
fn stored(len: usize, add: &mut impl FnMut(&Problem)) {
    let case = Case::new(1, 1, len, 3, MLA);
    let good = case.problem();
    let with = |data, row: usize| Problem {
        kv: TensorRef {
            data,
            strides: [len * row, row, 0],
        },
        ..good
    };
    let halves: Vec<f16> = case.kv.iter().map(|x| f16::from_f32(x.to_f32())).collect();
    add(&with(Data::F16(&halves), 576));
    // Of queries too, more than BF16 holds.
    let thirds = |x: &[bf16]| -> Vec<f32> { x.iter().map(|x| x.to_f32() / 3.0).collect() };
    let [q, kv] = [thirds(&case.q), thirds(&case.kv)];
    let with_q = |problem| Problem {
        q: TensorRef {
            data: Data::F32(&q),
            ..good.q
        },
        ..problem
    };
    add(&with_q(with(Data::F32(&kv), 576)));
    add(&with_q(with(Data::F16(&halves), 576)));
    add(&with_q(good));
    let mut q8 = vec![Q8_0::default(); len * 18];
    let mut q4 = vec![Q4_0::default(); len * 18];
    format::encode_q8_0(&kv, &mut q8).unwrap();
    format::encode_q4_0(&kv, &mut q4).unwrap();
    add(&with(Data::Q8_0(&q8), 18));
    add(&with_q(with(Data::Q4_0(&q4), 18)));

    let mut fp8 = vec![0; len * format::FP8_ROW];
    for (row, bytes) in case.kv.chunks(576).zip(fp8.chunks_mut(format::FP8_ROW)) {
        format::encode_fp8(row, bytes).unwrap();
    }
    add(&with(Data::Fp8(&fp8), format::FP8_ROW));

    let mut values = vec![0; len * 576];
    let rows = case.kv.chunks(576).zip(values.chunks_mut(576));
    let scales: Vec<f32> = rows
        .map(|(row, values)| format::encode_int8(row, values).unwrap())
        .collect();
    let data = Data::Int8 {
        values: &values,
        scales: &scales,
        strides: [len, 1, 0],
    };
    add(&with(data, 576));

    let mut values = vec![0; len * 576];
    let rows = case.kv.chunks(576).zip(values.chunks_mut(576));
    let scales: Vec<f32> = rows
        .map(|(row, values)| format::encode_e4m3(row, values).unwrap())
        .collect();
    let data = Data::E4m3 {
        values: &values,
        scales: &scales,
        strides: [len, 1, 0],
    };
    add(&with(data, 576));

    let case = Case::new(1, 1, len, 3, (512, 512));
    let apart = len * format::MODEL1_ROW;
    let mut model1 = vec![0; apart + len * format::MODEL1_SCALES];
    let (rows, scales) = model1.split_at_mut(apart);
    let stored = rows
        .chunks_mut(format::MODEL1_ROW)
        .zip(scales.chunks_mut(format::MODEL1_SCALES));
    for (row, (bytes, scales)) in case.kv.chunks(512).zip(stored) {
        format::encode_model1(row, bytes, scales).unwrap();
    }
    add(&Problem {
        kv: TensorRef {
            data: Data::Model1 {
                bytes: &model1,
                scales: apart,
                scale_stride: format::MODEL1_SCALES,
            },
            strides: [model1.len(), format::MODEL1_ROW, 0],
        },
        ..case.problem()
    });
}

fn one_line(cases: &mut Cases, len: usize) {
    for [b, s_q, s_k, h_q] in [
        [1, 1, len, 16],
        [2, 3, 100, 5],
        [3, 2, 1, 1],
        [1, 1, 0, 2],
        [0, 1, 7, 2],
    ] {
        cases.mla(&Case::new(b, s_q, s_k, h_q, MLA).problem());
    }
}

fn merges(cases: &mut Cases) {
    let shape = ProblemShape {
        b: 2,
        s_q: 3,
        s_k: 0,
        h_q: 2,
        h_kv: 1,
        d_qk: 128,
        d_v: 100,
    };
    let rows = shape.b * shape.s_q * shape.h_q;
    let numbers =
        |seed, n| -> Vec<f32> { normal(seed, 2.0, n).iter().map(|x| x.to_f32()).collect() };
    for count in [1_u64, 2, 5, 65] {
        for target in TARGETS {
            let part = |seed| {
                let mut lse = numbers(100 + seed, rows);
                lse[seed as usize % rows] = target.lse.empty.value();
                (numbers(200 + seed, rows * shape.d_v), lse)
            };
            let parts: Vec<_> = (0..count).map(part).collect();
            cases.merge(shape, &parts, target.lse);
        }
    }
}

#[test]
fn c_computes_what_rust_computes() {
    for compiler in ["gcc", "clang"] {
        if tool(compiler) {
            let program = c(compiler, "tests/c/suite.c").built();
            cases(2060, true).compare(&scratch("cases"), |cases, results| {
                let mut command = std::process::Command::new(&program);
                run(command.arg(cases).arg(results).arg("guarded"));
            });
        }
    }
}

#[test]
fn c_computes_it_sanitized() {
    if tool("gcc") {
        let program = c("gcc", "tests/c/suite.c").sanitized().built();
        cases(300, false).compare(&scratch("cases"), |cases, results| {
            run(std::process::Command::new(&program).arg(cases).arg(results));
        });
    }
}

/// Valgrind knows no AVX-512, which detection then doesn't find: the portable backend's cases.
#[test]
fn c_computes_it_under_valgrind() {
    if tool("gcc") && tool("valgrind") {
        let program = c("gcc", "tests/c/suite.c").built();
        let mut cases = Cases::default();
        let portable = Backend::request(BackendId::Portable).unwrap();
        for (i, (host, layout)) in hosts(200).into_iter().enumerate() {
            let options = modes(portable)[i % 4];
            cases.decode(&host.laid(layout).problem(), &options, TARGETS[i % 3]);
        }
        stored(200, &mut |problem| {
            cases.decode(problem, &modes(portable)[0], F32)
        });
        cases.encode(&normal(9, 3.0, 600));
        merges(&mut cases);
        one_line(&mut cases, 200);
        cases.compare(&scratch("cases"), |cases, results| {
            valgrind(&program, &[cases, results]);
        });
    }
}
