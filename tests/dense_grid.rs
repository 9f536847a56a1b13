//! The grid of FlashMLA's dense decoding test, as our own: its shapes, data, paged cache with
//! poisoned tails, and limits. Half of the cases are in BF16, half in FP16.
//!
//! `cargo test` takes a sample on every backend, `dense_grid_ci` all shapes with one request and
//! a sample of the others, `dense_grid_full` all of it:
//!
//!     cargo test --release --test dense_grid -- --ignored --nocapture dense_grid_full

#[macro_use]
mod common;

use std::io::Write;

use amla::{
    Backend, Data, Elements, Options, Output, Pages, Problem, ProblemShape, TensorRef, decode,
    reference,
};
use common::{normal, workspace};
use half::{bf16, f16};
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Normal};
use rayon::prelude::*;

suites![
    dense_grid,
    #[ignore = "minutes: run with --release"]
    dense_grid_ci,
    #[ignore = "ten minutes with AVX-512, more without: run with --release"]
    dense_grid_full,
];

const D_QK: usize = 576;
const D_V: usize = 512;
const PAGE: usize = 64;
/// Rows of a case that are compared with Golden, which costs more than all else.
const ROWS: usize = 6;

#[derive(Clone, Copy, Debug)]
struct Point {
    b: usize,
    s_q: usize,
    s_k: usize,
    h_q: usize,
    h_kv: usize,
    varlen: bool,
    causal: bool,
}

fn points() -> Vec<Point> {
    let mut points = Vec::new();
    for b in [1, 2, 6, 64] {
        for s_q in [1, 2, 4] {
            for s_k in [20, 140, 4096] {
                for h_q in [1, 3, 9, 63, 64, 126, 128_usize] {
                    for h_kv in [1, 2, 3, 8].into_iter().filter(|&h| h_q.is_multiple_of(h)) {
                        for (varlen, causal) in
                            [(false, false), (false, true), (true, false), (true, true)]
                        {
                            points.push(Point {
                                b,
                                s_q,
                                s_k,
                                h_q,
                                h_kv,
                                varlen,
                                causal,
                            });
                        }
                    }
                }
            }
        }
    }
    points
}

/// `n` of the points, the same in every run.
fn sample(mut points: Vec<Point>, n: usize) -> Vec<Point> {
    points.shuffle(&mut ChaCha8Rng::seed_from_u64(11));
    points.truncate(n);
    points
}

fn dense_grid(backend: Backend) {
    let mut short = points();
    // 4096 keys of 64 requests take a machine of their own.
    short.retain(|p| p.b * p.s_k <= 600 && p.h_kv <= 3);
    let mut long = points();
    long.retain(|p| p.b == 1 && p.s_k == 4096 && p.h_q <= 9 && p.h_kv == 1);
    run(backend, [sample(short, 60), sample(long, 4)].concat());
}

fn dense_grid_ci(backend: Backend) {
    let (alone, batches): (Vec<_>, Vec<_>) = points().into_iter().partition(|p| p.b == 1);
    run(backend, [alone, sample(batches, 100)].concat());
}

fn dense_grid_full(backend: Backend) {
    run(backend, points());
}

fn run(backend: Backend, points: Vec<Point>) {
    let cases = points.len();
    points
        .into_par_iter()
        .enumerate()
        .for_each(|(seed, point)| {
            check(backend, point, seed as u64);
        });
    let _ = writeln!(
        std::io::stderr(),
        "FlashMLA's dense grid on {}: {cases} cases run, {cases} passed",
        backend.id().name()
    );
}

/// FlashMLA's two formats of queries, cache and output.
trait Number: Copy + Into<f64> + Send + Sync {
    const NAN: Self;
    /// The next number of a normal distribution, which BF16 has rounded.
    fn of(x: bf16, i: usize) -> Self;
    fn data(numbers: &[Self]) -> Data<'_>;
    fn elements(numbers: &mut [Self]) -> Elements<'_>;
}

impl Number for bf16 {
    const NAN: Self = Self::NAN;

    fn of(x: bf16, _: usize) -> Self {
        x
    }

    fn data(numbers: &[Self]) -> Data<'_> {
        Data::Bf16(numbers)
    }

    fn elements(numbers: &mut [Self]) -> Elements<'_> {
        Elements::Bf16(numbers)
    }
}

impl Number for f16 {
    const NAN: Self = Self::NAN;

    /// With three bits more.
    fn of(x: bf16, i: usize) -> Self {
        let more = ((i * 40_503) >> 5) as u32 & 0xffff;
        Self::from_f32(f32::from_bits(u32::from(x.to_bits()) << 16 | more))
    }

    fn data(numbers: &[Self]) -> Data<'_> {
        Data::F16(numbers)
    }

    fn elements(numbers: &mut [Self]) -> Elements<'_> {
        Elements::F16(numbers)
    }
}

fn check(backend: Backend, point: Point, seed: u64) {
    // Of neighbours, which differ in masks, one or the other.
    if (seed + seed / 4).is_multiple_of(2) {
        check_in::<bf16>(backend, point, seed);
    } else {
        check_in::<f16>(backend, point, seed);
    }
}

fn check_in<N: Number>(backend: Backend, point: Point, seed: u64) {
    let numbers = |seed, n| -> Vec<N> {
        let numbers = normal(seed, 0.1, n).into_iter().enumerate();
        numbers.map(|(i, x)| N::of(x, i)).collect()
    };
    let Point {
        b,
        s_q,
        s_k,
        h_q,
        h_kv,
        ..
    } = point;
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    // FlashMLA's clamp to +-1 is at ten sigma.
    let q = numbers(2 * seed, b * s_q * h_q * D_QK);
    let row = h_kv * D_QK;
    // One page's rows over and over where there are many: the numbers don't matter, their
    // places do.
    let content = 4096.min(b * s_k.next_multiple_of(PAGE)) * row;
    let content = numbers(2 * seed + 1, content);

    let around = Normal::new(s_k as f32, s_k as f32 / 2.0).unwrap();
    let lens: Vec<i32> = (0..b)
        .map(|i| match (point.varlen, i % 5) {
            (false, _) => s_k,
            // Some have no keys.
            (true, 3) => 0,
            (true, _) => (around.sample(&mut rng) as usize).clamp(s_q.min(s_k), s_k),
        })
        .map(|len| i32::try_from(len).unwrap())
        .collect();

    // Pages in any order; what is no request's key is NaN, what is no page isn't one.
    let max_blocks = s_k.div_ceil(PAGE) + 1;
    let needed = |len: i32| usize::try_from(len).unwrap().div_ceil(PAGE);
    let pages: usize = lens.iter().map(|&len| needed(len)).sum::<usize>() + 2;
    let mut free: Vec<usize> = (0..pages).collect();
    free.shuffle(&mut rng);
    let mut kv = vec![N::NAN; pages * PAGE * row];
    let mut block_table = Vec::new();
    for (request, &len) in lens.iter().enumerate() {
        let len = usize::try_from(len).unwrap();
        for block in 0..max_blocks {
            if block * PAGE >= len {
                block_table.push([2_147_480_000, -1][(request + block) % 2]);
                continue;
            }
            let page = free.pop().unwrap();
            block_table.push(i32::try_from(page).unwrap());
            let rows = PAGE.min(len - block * PAGE) * row;
            let from = (request * s_k + block * PAGE) * row % (content.len() - rows + 1);
            let to = &mut kv[page * PAGE * row..][..rows];
            to.copy_from_slice(&content[from..from + rows]);
        }
    }
    let shape = ProblemShape {
        b,
        s_q,
        s_k,
        h_q,
        h_kv,
        d_qk: D_QK,
        d_v: D_V,
    };
    let problem = Problem {
        kv: TensorRef {
            data: N::data(&kv),
            strides: [PAGE * row, row, D_QK],
        },
        pages: Some(Pages {
            block_table: &block_table,
            max_blocks,
            stride: max_blocks,
            page_size: PAGE,
            pages,
        }),
        cache_seqlens: Some(&lens),
        causal: point.causal,
        ..Problem::dense(shape, &[], &[], (D_QK as f32).sqrt().recip())
    };
    let problem = Problem {
        q: TensorRef {
            data: N::data(&q),
            ..problem.q
        },
        ..problem
    };
    compare::<N>(backend, &problem, &mut rng);
}

/// FlashMLA's limits.
fn compare<N: Number>(backend: Backend, problem: &Problem, rng: &mut ChaCha8Rng) {
    let ProblemShape { b, s_q, h_q, .. } = problem.shape;
    let rows = b * s_q * h_q;
    let (mut o, mut lse) = (vec![N::NAN; rows * D_V], vec![f32::NAN; rows]);
    let output = Output::dense(problem.shape, N::elements(&mut o), &mut lse);
    let options = Options {
        backend,
        ..Options::default()
    };
    decode(problem, &options, &mut workspace(), output).unwrap();
    // Nothing leaks from what isn't a key.
    let finite = |x: N| -> bool { x.into().is_finite() };
    assert!(o.iter().copied().all(finite), "{:?}", problem.shape);
    assert!(lse.iter().all(|x| !x.is_nan() && *x != f32::NEG_INFINITY));
    let (mut dot, mut norms) = (0.0, 0.0);
    for i in 0..ROWS.min(rows) {
        // The first, the last, and some between.
        let row = match i {
            0 => 0,
            1 => rows - 1,
            _ => rng.random_range(0..rows),
        };
        let at = [row / (s_q * h_q), row / h_q % s_q, row % h_q];
        let mut want = vec![0.0; D_V];
        let want_lse = reference::golden_row(problem, at, &mut want).unwrap();
        let got_lse = f64::from(lse[(at[0] * h_q + at[2]) * s_q + at[1]]);
        let off = (got_lse - want_lse).abs();
        let close = off <= 1e-6 || off <= 8.01 / 65536.0 * want_lse.abs();
        assert!(got_lse == want_lse || close, "lse {got_lse} {want_lse}");
        for (&got, want) in o[row * D_V..].iter().zip(&want) {
            let got: f64 = got.into();
            let off = (got - want).abs();
            assert!(
                off <= 8e-4 || off <= 2.01 / 128.0 * want.abs(),
                "{got} {want}"
            );
            dot += got * want;
            norms += got * got + want * want;
        }
    }
    // Over all rows at once, as FlashMLA takes it. With few keys alike, single rows are above the
    // limit now and then where P is in BF16: of 20 keys at 1/20 each, P rounds by up to 2^-8.
    let difference = if norms == 0.0 {
        0.0
    } else {
        1.0 - 2.0 * dot / norms
    };
    assert!(
        difference <= 5e-6,
        "cosine difference {difference} {:?}",
        problem.shape
    );
}
