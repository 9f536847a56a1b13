//! Every way of saying the same thing gives the same bits; and what has no other way, against
//! Golden.

#[macro_use]
mod common;

use amla::{
    Backend, Data, Elements, EmptyLse, Error, Lse, LseBase, Options, Output, Pages, Plan, Problem,
    Shape, TailMask, Tensor, combine, decode, reference, run_task,
};
use common::{Case, modes, normal, run, run_with, workspace};
use half::{bf16, f16};

suites![
    pages,
    ragged_caches,
    ragged_queries,
    parts,
    kv_heads,
    tail_mask_of_a_triangle,
    windows,
    sinks,
    lse_formats,
    f16_output,
    trees_and_windows_against_golden,
    hidden_nan,
    everything_at_once,
];

const SMALL: (usize, usize) = (128, 128);
const MLA: (usize, usize) = (576, 512);
const HEADS: [usize; 5] = [1, 5, 16, 64, 70];

fn default_on(backend: Backend) -> Options {
    modes(backend)[0]
}

/// A batch of ragged lengths, causal.
fn batch(h_q: usize, dims: (usize, usize)) -> Case {
    let mut case = Case::new(4, 2, 1030, h_q, dims);
    case.lens = Some(vec![1030, 0, 1, 193]);
    case.causal = true;
    case
}

fn pages(backend: Backend) {
    for (h_q, dims) in HEADS
        .map(|h| (h, SMALL))
        .into_iter()
        .chain([(3, MLA), (70, MLA)])
    {
        let case = batch(h_q, dims);
        let want = case.run(&default_on(backend));
        for (page_size, gap) in [(1, 0), (2, 3), (16, 0), (53, 1), (64, 0), (576, 7)] {
            let d = dims.0;
            let blocks = 1030_usize.div_ceil(page_size);
            let pages = 4 * blocks;
            // Rows apart from each other, and pages too; poison everywhere else.
            let (token, page) = (d + gap, page_size * (d + gap) + 5 * gap);
            let mut kv = vec![bf16::NAN; pages * page];
            let mut table = vec![0; pages];
            for b in 0..4 {
                let len = usize::try_from(case.lens.as_ref().unwrap()[b]).unwrap();
                for block in 0..blocks {
                    let place = (b * blocks + block) * 7919 % pages;
                    let first = block * page_size;
                    table[b * blocks + block] = match i32::try_from(place) {
                        Ok(place) if first < len => place,
                        _ => [2_147_480_000, -1][block % 2],
                    };
                    for k in first..len.min(first + page_size) {
                        let row = &case.kv[(b * 1030 + k) * d..][..d];
                        kv[place * page + (k - first) * token..][..d].copy_from_slice(row);
                    }
                }
            }
            let problem = Problem {
                kv: Tensor {
                    data: Data::Bf16(&kv),
                    strides: [page, token, 0],
                },
                pages: Some(Pages {
                    block_table: &table,
                    max_blocks: blocks,
                    page_size,
                    pages,
                }),
                ..case.problem()
            };
            let got = run(&problem, case.sizes(), &default_on(backend));
            assert_eq!(got, want, "pages of {page_size}, {h_q} heads");
        }
    }
}

fn ragged_caches(backend: Backend) {
    for h_q in HEADS {
        let case = batch(h_q, SMALL);
        let lens = case.lens.clone().unwrap();
        let (mut kv, mut indptr) = (vec![bf16::NAN; 3 * 128], vec![3]);
        for (b, &len) in lens.iter().enumerate() {
            let len = usize::try_from(len).unwrap();
            kv.extend_from_slice(&case.kv[b * 1030 * 128..][..len * 128]);
            indptr.push(i32::try_from(kv.len() / 128).unwrap());
        }
        let problem = Problem {
            kv: Tensor {
                data: Data::Bf16(&kv),
                strides: [usize::MAX, 128, 0],
            },
            kv_indptr: Some(&indptr),
            cache_seqlens: None,
            ..case.problem()
        };
        for options in modes(backend) {
            assert_eq!(run(&problem, case.sizes(), &options), case.run(&options));
        }
    }
}

fn ragged_queries(backend: Backend) {
    for h_q in [1, 16, 70] {
        let case = batch(h_q, SMALL);
        let indptr = [0, 2, 2, 3, 5];
        let q = normal(9, 1.0, 5 * h_q * 128);
        let mut problem = case.problem();
        problem.q = Tensor {
            data: Data::Bf16(&q),
            strides: [0, h_q * 128, 128],
        };
        problem.q_indptr = Some(&indptr);
        let (mut o, mut lse) = (vec![7.0; 5 * h_q * 128], vec![7.0; 5 * h_q]);
        let output = Output {
            lse_strides: [0, 5, 1],
            ..Output::dense(case.shape, Elements::F32(&mut o), &mut lse)
        };
        decode(&problem, &default_on(backend), &mut workspace(), output).unwrap();
        // Each request alone.
        for b in 0..4 {
            let [start, end] = [indptr[b], indptr[b + 1]].map(|x| usize::try_from(x).unwrap());
            if start == end {
                continue;
            }
            let mut alone = case.clone();
            alone.shape = Shape {
                b: 1,
                s_q: end - start,
                ..case.shape
            };
            alone.q = q[start * h_q * 128..end * h_q * 128].to_vec();
            alone.kv = case.kv[b * 1030 * 128..(b + 1) * 1030 * 128].to_vec();
            alone.lens = Some(vec![case.lens.as_ref().unwrap()[b]]);
            let (want_o, want_lse) = alone.run(&default_on(backend));
            assert_eq!(o[start * h_q * 128..end * h_q * 128], want_o, "request {b}");
            for (i, want) in want_lse.iter().enumerate() {
                let (h, j) = (i / (end - start), i % (end - start));
                assert_eq!(lse[h * 5 + start + j], *want, "request {b}");
            }
        }
    }
}

/// Rotary parts apart, of queries, keys or both.
fn parts(backend: Backend) {
    for dims in [MLA, (192, 128)] {
        let (d_qk, d_v) = dims;
        for h_q in [3, 16, 130] {
            let mut case = batch(h_q, dims);
            case.shape.b = 2;
            case.lens.as_mut().unwrap().truncate(2);
            let cut = |rows: &[bf16], keep: std::ops::Range<usize>| -> Vec<bf16> {
                let rows = rows.chunks(d_qk);
                rows.flat_map(|row| &row[keep.clone()]).copied().collect()
            };
            let [q, q_rope] = [0..d_v, d_v..d_qk].map(|keep| cut(&case.q, keep));
            let [kv, k_rope] = [0..d_v, d_v..d_qk].map(|keep| cut(&case.kv, keep));
            let rope = d_qk - d_v;
            let of_q = |data, width: usize| Tensor {
                data: Data::Bf16(data),
                strides: [2 * h_q * width, h_q * width, width],
            };
            let of_k = |data, width: usize| Tensor {
                data: Data::Bf16(data),
                strides: [1030 * width, width, 0],
            };
            for (split_q, split_k) in [(true, false), (false, true), (true, true)] {
                let mut problem = case.problem();
                if split_q {
                    problem.q = of_q(&q, d_v);
                    problem.q_rope = Some(of_q(&q_rope, rope));
                }
                if split_k {
                    problem.kv = of_k(&kv, d_v);
                    problem.k_rope = Some(of_k(&k_rope, rope));
                }
                let options = default_on(backend);
                assert_eq!(run(&problem, case.sizes(), &options), case.run(&options));
            }
        }
    }
}

/// Each KV head and its query heads are a problem of their own.
fn kv_heads(backend: Backend) {
    for (h_q, h_kv, dims) in [
        (6, 2, SMALL),
        (128, 8, SMALL),
        (9, 3, MLA),
        (5, 5, (64, 64)),
        (140, 2, (192, 128)),
        (4, 4, (192, 128)),
    ] {
        let (d_qk, d_v) = dims;
        let separate = d_qk == 192;
        let mut case = Case::new(2, 2, 300, h_q, dims);
        case.shape.h_kv = h_kv;
        case.causal = true;
        case.kv = normal(21, 1.0, 2 * 300 * h_kv * d_qk);
        let v = normal(22, 1.0, 2 * 300 * h_kv * d_v);
        let values = |first: usize| Tensor {
            data: Data::Bf16(&v[first * d_v..]),
            strides: [300 * h_kv * d_v, h_kv * d_v, d_v],
        };
        let mut problem = case.problem();
        problem.v = separate.then(|| values(0));
        let options = default_on(backend);
        let (o, lse) = run(&problem, case.sizes(), &options);
        let group = h_q / h_kv;
        for head in 0..h_kv {
            let mut alone = problem;
            alone.shape.h_q = group;
            alone.shape.h_kv = 1;
            alone.q.data = Data::Bf16(&case.q[head * group * d_qk..]);
            alone.kv.data = Data::Bf16(&case.kv[head * d_qk..]);
            alone.v = separate.then(|| values(head));
            let sizes = (4 * group * d_v, 4 * group);
            let (want_o, want_lse) = run(&alone, sizes, &options);
            for (i, want) in want_o.chunks(d_v).enumerate() {
                let (position, h) = (i / group, i % group);
                let row = position * h_q + head * group + h;
                assert_eq!(o[row * d_v..][..d_v], *want, "{h_q} {h_kv} {head}");
            }
            for (i, want) in want_lse.iter().enumerate() {
                let (b, h, j) = (i / (2 * group), i / 2 % group, i % 2);
                assert_eq!(lse[(b * h_q + head * group + h) * 2 + j], *want);
            }
        }
    }
}

fn tail_mask_of_a_triangle(backend: Backend) {
    for (s_q, tail) in [(3, 2), (3, 3), (3, 64), (5, 130), (70, 100)] {
        let mut case = Case::new(2, s_q, 330, 3, SMALL);
        case.lens = Some(vec![330, 40]);
        case.causal = true;
        let words: usize = tail_words(tail);
        let mut bits = vec![0_u64; 2 * s_q * words];
        for (row, bits) in bits.chunks_mut(words).enumerate() {
            let hidden = s_q - 1 - row % s_q;
            // A tail shorter than the triangle can't say it all.
            for i in 0..tail.saturating_sub(hidden) {
                bits[i / 64] |= 1 << (i % 64);
            }
        }
        let problem = Problem {
            causal: false,
            tail_mask: Some(TailMask { words: &bits, tail }),
            ..case.problem()
        };
        for options in modes(backend) {
            let got = run(&problem, case.sizes(), &options);
            if tail + 1 >= s_q {
                assert_eq!(got, case.run(&options), "{s_q} {tail}");
            }
        }
    }
}

const fn tail_words(tail: usize) -> usize {
    tail.div_ceil(64)
}

fn windows(backend: Backend) {
    for (h_q, window) in [
        (1, 1),
        (5, 192),
        (16, 193),
        (70, 500),
        (3, 1030),
        (3, usize::MAX),
    ] {
        let mut case = Case::new(1, 1, 1030, h_q, SMALL);
        let windowed = |case: &Case, causal| {
            let problem = Problem {
                window: Some(window),
                causal,
                ..case.problem()
            };
            run(&problem, case.sizes(), &default_on(backend))
        };
        let got = windowed(&case, false);
        assert_eq!(windowed(&case, true), got);
        // The last keys, alone.
        let keys = window.min(1030);
        case.kv.drain(..(1030 - keys) * 128);
        case.shape.s_k = keys;
        assert_eq!(got, case.run(&default_on(backend)), "window {window}");
    }
}

fn sinks(backend: Backend) {
    let case = batch(9, SMALL);
    let options = default_on(backend);
    let (o, lse) = case.run(&options);
    let with = |sink: &[f32]| {
        let problem = Problem {
            sink: Some(sink),
            ..case.problem()
        };
        run(&problem, case.sizes(), &options)
    };
    assert_eq!(with(&[f32::NEG_INFINITY; 9]), (o.clone(), lse.clone()));
    let (none, same_lse) = with(&[f32::INFINITY; 9]);
    assert!(none.iter().all(|&x| x == 0.0));
    assert_eq!(same_lse, lse);
    let sink: Vec<f32> = (0..9_u8).map(|h| f32::from(h) - 3.0).collect();
    let (got, same_lse) = with(&sink);
    assert_eq!(same_lse, lse);
    for (row, (got, o)) in got.chunks(128).zip(o.chunks(128)).enumerate() {
        let (b, j, h) = (row / 18, row / 9 % 2, row % 9);
        let lse = f64::from(lse[(b * 9 + h) * 2 + j]);
        let share = 1.0 / (1.0 + (f64::from(sink[h]) - lse).exp());
        for (got, o) in got.iter().zip(o) {
            let want = f64::from(*o) * share;
            assert!(
                (f64::from(*got) - want).abs() <= 3e-7 * want.abs(),
                "{got} {want}"
            );
        }
    }
    // All scores -inf: the sink has all the weight, if it has any.
    let mut case = Case::new(1, 1, 3, 2, SMALL);
    case.q.fill(bf16::ONE);
    case.kv.fill(bf16::NEG_INFINITY);
    case.v = Some(vec![bf16::ONE; 3 * 128]);
    let problem = Problem {
        sink: Some(&[0.5, f32::NEG_INFINITY]),
        ..case.problem()
    };
    let (o, lse) = run(&problem, case.sizes(), &options);
    assert!(o[..128].iter().all(|&x| x == 0.0) && o[128..].iter().all(|x| x.is_nan()));
    assert!(lse.iter().all(|x| x.is_nan()));
}

fn lse_formats(backend: Backend) {
    let case = batch(3, SMALL);
    let options = default_on(backend);
    let (o, lse) = case.run(&options);
    for base in [LseBase::E, LseBase::Two] {
        for empty in [EmptyLse::Infinity, EmptyLse::MinusInfinity] {
            let format = Lse { base, empty };
            let got = run_with(&case.problem(), case.sizes(), &options, format);
            assert_eq!(got.0, o);
            for (got, natural) in got.1.iter().zip(&lse) {
                let want = match (natural.is_finite(), base) {
                    (false, _) => empty.value(),
                    (true, LseBase::E) => *natural,
                    (true, LseBase::Two) => natural * std::f32::consts::LOG2_E,
                };
                let close = (got - want).abs() <= 2e-7 * want.abs();
                assert!(*got == want || close, "{got} {want}");
            }
        }
    }
}

fn f16_output(backend: Backend) {
    let case = batch(9, SMALL);
    let options = default_on(backend);
    let (want, want_lse) = case.run(&options);
    let (mut o, mut lse) = (vec![f16::NAN; want.len()], vec![0.0; want_lse.len()]);
    let output = Output::dense(case.shape, Elements::F16(&mut o), &mut lse);
    decode(&case.problem(), &options, &mut workspace(), output).unwrap();
    assert!(
        o.iter()
            .zip(&want)
            .all(|(o, want)| *o == f16::from_f32(*want))
    );
    assert_eq!(lse, want_lse);
}

/// Against Golden, with room for the rounding of P.
fn close(problem: &Problem, sizes: (usize, usize), backend: Backend) {
    let (mut want_o, mut want_lse) = (vec![0.0; sizes.0], vec![0.0; sizes.1]);
    reference::golden(problem, &mut want_o, &mut want_lse).unwrap();
    for options in modes(backend) {
        let (o, lse) = run(problem, sizes, &options);
        for (got, want) in o.iter().zip(&want_o) {
            // A weight is off by 2^-8 at most, a value of N(0, 1) below 5.
            assert!(
                (f64::from(*got) - want).abs() <= 2.0 * 5.0 / 256.0,
                "{got} {want}"
            );
        }
        for (got, want) in lse.iter().zip(&want_lse) {
            let (got, want) = (f64::from(*got), *want);
            assert!(
                got == want || (got - want).abs() <= 1e-5,
                "lse {got} {want}"
            );
        }
    }
}

fn trees_and_windows_against_golden(backend: Backend) {
    let mut state = 1_u64;
    let mut word = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        state >> 32 ^ state
    };
    for (s_q, h_q, tail, window) in [
        (4, 3, 7, None),
        (7, 16, 64, Some(100)),
        (40, 5, 130, None),
        (3, 70, 200, Some(192)),
        (2, 1, 300, Some(1)),
        (9, 8, 0, Some(1000)),
    ] {
        let mut case = Case::new(3, s_q, 420, h_q, SMALL);
        case.lens = Some(vec![420, 5, 250]);
        let bits: Vec<u64> = (0..3 * s_q * tail_words(tail))
            .map(|_| word() & word())
            .collect();
        let problem = Problem {
            window,
            tail_mask: Some(TailMask { words: &bits, tail }),
            ..case.problem()
        };
        close(&problem, case.sizes(), backend);
        let causal = Problem {
            window,
            causal: true,
            ..case.problem()
        };
        close(&causal, case.sizes(), backend);
    }
}

/// NaN in keys and values that a mask hides stays there.
fn hidden_nan(backend: Backend) {
    for h_q in [2, 40] {
        let mut case = Case::new(1, 2, 400, h_q, SMALL).separate_v();
        for k in [0, 150, 398] {
            case.key(0, k).fill(bf16::NAN);
            case.value(0, k).fill(bf16::NAN);
        }
        // The last two keys: the first query sees only the second of them.
        let problem = Problem {
            window: Some(200),
            tail_mask: Some(TailMask {
                words: &[0b10, 0b10],
                tail: 2,
            }),
            ..case.problem()
        };
        for options in modes(backend) {
            let (o, lse) = run(&problem, case.sizes(), &options);
            assert!(o.iter().chain(&lse).all(|x| x.is_finite()));
        }
        close(&problem, case.sizes(), backend);
    }
}

/// Pages, ragged queries, parts, heads, a window, a sink, FP16 rotary keys: as tasks and at once.
fn everything_at_once(backend: Backend) {
    let (d_qk, d_v, h_q, h_kv) = (192, 128, 36, 2);
    let shape = Shape {
        b: 3,
        s_q: 5,
        s_k: 1300,
        h_q,
        h_kv,
        d_qk,
        d_v,
    };
    let (tokens, page_size, pages) = (8, 48, 90_usize);
    let q = normal(31, 1.0, tokens * h_q * d_v);
    let q_rope = normal(32, 1.0, tokens * h_q * 64);
    let kv = normal(33, 1.0, pages * page_size * h_kv * d_v);
    let k_rope: Vec<f16> = normal(34, 1.0, pages * page_size * h_kv * 64)
        .into_iter()
        .map(|x| f16::from_f32(x.to_f32()))
        .collect();
    let table: Vec<i32> = (0..3 * 28).map(|i| i * 29 % 90).collect();
    let sink: Vec<f32> = (0..36_u8).map(|h| f32::from(h) / 9.0).collect();
    let by_token = |data, width: usize| Tensor {
        data: Data::Bf16(data),
        strides: [0, h_q * width, width],
    };
    let by_page = |data, width: usize| Tensor {
        data,
        strides: [page_size * h_kv * width, h_kv * width, width],
    };
    let problem = Problem {
        q: by_token(&q, d_v),
        q_rope: Some(by_token(&q_rope, 64)),
        q_indptr: Some(&[0, 3, 3, 8]),
        kv: by_page(Data::Bf16(&kv), d_v),
        k_rope: Some(by_page(Data::F16(&k_rope), 64)),
        pages: Some(Pages {
            block_table: &table,
            max_blocks: 28,
            page_size,
            pages,
        }),
        cache_seqlens: Some(&[1300, 7, 450]),
        causal: true,
        window: Some(1100),
        sink: Some(&sink),
        ..Problem::dense(shape, &[], &[], 0.07)
    };
    let (o_len, lse_len) = (tokens * h_q * d_v, tokens * h_q);
    let (mut want_o, mut want_lse) = (vec![0.0; o_len], vec![0.0; lse_len]);
    reference::golden(&problem, &mut want_o, &mut want_lse).unwrap();
    for options in modes(backend) {
        let plan = Plan::new(&problem).unwrap();
        let mut partials = vec![f32::NAN; plan.tasks() * plan.partial_len()];
        let parts = partials.chunks_mut(plan.partial_len()).enumerate();
        for (task, partial) in parts.rev() {
            run_task(&problem, &options, &plan, task, &mut workspace(), partial).unwrap();
        }
        let mut results = Vec::new();
        for tasks in [false, true] {
            let (mut o, mut lse) = (vec![7.0; o_len], vec![7.0; lse_len]);
            let output = Output {
                lse_strides: [0, tokens, 1],
                ..Output::dense(shape, Elements::F32(&mut o), &mut lse)
            };
            if tasks {
                combine(&problem, &plan, &mut partials, output).unwrap();
            } else {
                decode(&problem, &options, &mut workspace(), output).unwrap();
            }
            results.push((o, lse));
        }
        assert_eq!(results[0], results[1]);
        let (o, lse) = &results[0];
        for (got, want) in o.iter().zip(&want_o) {
            assert!((f64::from(*got) - want).abs() <= 0.02, "{got} {want}");
        }
        for (got, want) in lse.iter().zip(&want_lse) {
            // FP16 rotary keys are rounded to BF16 in Golden too.
            assert!((f64::from(*got) - want).abs() <= 1e-5, "{got} {want}");
        }
    }
}

#[test]
fn refusals() {
    let mut case = Case::new(2, 2, 100, 6, MLA);
    case.lens = Some(vec![100, 65]);
    let table = [0, 1, 2, -1];
    let pages = Pages {
        block_table: &table,
        max_blocks: 2,
        page_size: 64,
        pages: 3,
    };
    let good = Problem {
        kv: Tensor {
            data: Data::Bf16(&case.kv),
            strides: [64 * 576, 576, 0],
        },
        pages: Some(pages),
        ..case.problem()
    };
    let refused = |change: &dyn Fn(&mut Problem)| {
        let mut problem = good;
        change(&mut problem);
        let (o, lse) = case.sizes();
        let (mut o, mut lse) = (vec![7.0; o], vec![7.0; lse]);
        let output = Output::dense(case.shape, Elements::F32(&mut o), &mut lse);
        let error = decode(&problem, &Options::default(), &mut workspace(), output).unwrap_err();
        assert!(o.iter().chain(&lse).all(|&x| x == 7.0));
        if !matches!(error, Error::TooShort { .. } | Error::Overlap { .. }) {
            assert_eq!(Plan::new(&problem).map(|_| ()), Err(error));
        }
        error.to_string()
    };
    let ragged =
        |indptr: &'static [i32]| refused(&|p| (p.pages, p.kv_indptr) = (None, Some(indptr)));
    let with_pages = |change: &dyn Fn(&mut Pages)| refused(&|p| change(p.pages.as_mut().unwrap()));
    for (got, want) in [
        (refused(&|_| ()), "block_table[1][1] is -1, not in 0..3"),
        (
            with_pages(&|p| p.block_table = &[0, 3, 1, 1]),
            "block_table[0][1] is 3, not in 0..3",
        ),
        (
            with_pages(&|p| p.block_table = &[0, 1, 1]),
            "block_table holds 3 elements, 4 are needed",
        ),
        (
            with_pages(&|p| p.max_blocks = 1),
            "block_table is 2, not in 0..=1",
        ),
        (
            with_pages(&|p| p.page_size = 0),
            "page_size is 0, not in 1..=18446744073709551615",
        ),
        (
            refused(&|p| p.kv_indptr = Some(&[0, 100, 165])),
            "block_table and kv_indptr can't be combined",
        ),
        (
            ragged(&[0, 100, 164]),
            "cache_seqlens[1] is 65, not in 0..=64",
        ),
        (
            ragged(&[0, 101, 165]),
            "kv_indptr[0..=1] is 0, 101: not 0 to 100 rows",
        ),
        (
            ragged(&[-1, 1, 1]),
            "kv_indptr[0..=1] is -1, 1: not 0 to 100 rows",
        ),
        (
            refused(&|p| p.q_indptr = Some(&[0, 2, 1])),
            "q_indptr[1..=2] is 2, 1: not 0 to 2 rows",
        ),
        (
            refused(&|p| p.q_indptr = Some(&[0, 2])),
            "q_indptr has 2 elements, expected 3",
        ),
        (
            refused(&|p| p.shape.h_kv = 4),
            "h_q is 6, not a multiple of h_kv, 4",
        ),
        (
            refused(&|p| p.shape.h_kv = 0),
            "h_kv is 0, not in 1..=2147483647",
        ),
        (
            refused(&|p| p.sink = Some(&[0.0; 5])),
            "sink has 5 elements, expected 6",
        ),
        (
            refused(&|p| p.window = Some(0)),
            "window is 0, not in 1..=18446744073709551615",
        ),
        (
            refused(&|p| {
                p.causal = true;
                p.tail_mask = Some(TailMask {
                    words: &[],
                    tail: 0,
                });
            }),
            "tail_mask and causal can't be combined",
        ),
        (
            refused(&|p| {
                p.tail_mask = Some(TailMask {
                    words: &[0; 7],
                    tail: 65,
                })
            }),
            "tail_mask holds 7 elements, 8 are needed",
        ),
        (
            refused(&|p| {
                p.k_rope = Some(Tensor {
                    data: Data::Bf16(&[]),
                    strides: [0; 3],
                })
            }),
            "k_rope holds 0 elements, 64 are needed",
        ),
    ] {
        assert_eq!(got, want);
    }
}
