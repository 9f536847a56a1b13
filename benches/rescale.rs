//! The paper's central claim as an ablation: what is it worth on a CPU to rescale
//! O by an integer addition on its floats' bits, instead of by a multiplication?
//!
//! * `in place`: O of the paper, 128 x 512 FP32 (256 KiB, in L2), as a pass of its
//!   own. The addition made total ([`amla::bits`]), the addition as printed, and
//!   the multiplication; with every row to be rescaled, and with none, with and
//!   without the skip, which tests one number per row.
//! * `fused`: one generic FP32 C2 that differs in nothing but what it does to O on
//!   the way into registers. This is the fair comparison: same loop, same loads
//!   and stores.
//! * `C2, <backend>`: the kernel itself, as `decode` runs it on 64 rows; rescaling as it does, tile by tile
//!   (on the way into registers, or in place before a tile's sums are added), and with a pass of its own before.
//!
//! Without arguments, each group is also measured in turn, variant by variant in
//! every round, which is what to read on a machine that does other things too.
//!
//! The passes and the generic C2 are compiled for the build's target features, so
//! there are two ways to run this:
//!
//!     cargo bench --features stages --bench rescale
//!     RUSTFLAGS="-C target-cpu=native" cargo bench --features stages --bench rescale

#![allow(missing_docs, reason = "what criterion_group makes")]

mod common;

use std::time::{Duration, Instant};

use amla::bits::{self, Increment, add_increment_f32, mul_pow2_f32};
use amla::stages::{self, Before, Stages, Work};
use amla::{Options, Workspace};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use wide::{f32x8, i32x8};

/// Columns of O in the paper.
const D_V: usize = 512;
/// Rows of O in the paper.
const ROWS: usize = 128;

/// The same state, one way to treat it.
type Variant<'a, T> = (String, Box<dyn Fn(&mut T) + 'a>);

/// Every variant under criterion, and all of them in turn: `paired`.
fn compare<T>(
    criterion: &mut Criterion,
    name: &str,
    throughput: Throughput,
    state: &mut T,
    variants: &[Variant<'_, T>],
) {
    let mut group = criterion.benchmark_group(name);
    group.throughput(throughput);
    for (variant, run) in variants {
        group.bench_function(variant, |b| b.iter(|| run(state)));
    }
    group.finish();
    // Under `cargo test` and the like, criterion measures nothing either.
    if std::env::args().any(|arg| arg == "--bench") && std::env::args().len() == 2 {
        paired(name, state, variants);
    }
}

/// Runs the variants round robin and compares each with the first one of its own
/// round. What else the machine does then meets all of them alike; criterion runs
/// them one after the other, seconds apart.
fn paired<T>(name: &str, state: &mut T, variants: &[Variant<'_, T>]) {
    const ROUNDS: usize = 201;
    const SAMPLE: Duration = Duration::from_micros(300);
    let time = |state: &mut T, run: &dyn Fn(&mut T), calls: u32| {
        let start = Instant::now();
        (0..calls).for_each(|_| run(state));
        start.elapsed()
    };
    let calls: Vec<u32> = variants
        .iter()
        .map(|(_, run)| {
            let once = time(state, run, 100) / 100;
            (SAMPLE.as_nanos() / once.as_nanos().max(1)).clamp(1, 10_000) as u32
        })
        .collect();
    let mut times = vec![Vec::new(); variants.len()];
    for _ in 0..ROUNDS {
        for (((_, run), &calls), times) in variants.iter().zip(&calls).zip(&mut times) {
            times.push(time(state, run, calls).as_secs_f64() * 1e6 / f64::from(calls));
        }
    }
    println!(
        "\n{name}, in turn ({}): least and median time,",
        common::BUILD
    );
    println!("and the median of the ratio to the first within a round (its quartiles)");
    for ((variant, _), own) in variants.iter().zip(&times) {
        let ratios = own.iter().zip(&times[0]).map(|(own, first)| own / first);
        let [least, _, median, _] = quartiles(own.iter().copied());
        let [_, low, ratio, high] = quartiles(ratios);
        println!(
            "  {variant:56} {least:9.2} us {median:9.2} us   x {ratio:.3} ({low:.3}-{high:.3})"
        );
    }
    println!();
}

/// The least number, and the three quartiles.
fn quartiles(numbers: impl Iterator<Item = f64>) -> [f64; 4] {
    let mut sorted: Vec<f64> = numbers.collect();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len() - 1;
    [0, 1, 2, 3].map(|quarter| sorted[last * quarter / 4])
}

// -------------------------------------------------------------------------------------------------
// A pass of its own
// -------------------------------------------------------------------------------------------------

/// O, and the power of two that its rows are to be scaled by.
struct Rows {
    o: Vec<f32>,
    powers: [i32; ROWS],
}

impl Rows {
    /// Up and down in turn, so that O stays what it is.
    fn all(&mut self, run: impl Fn(&mut [f32], i32)) {
        self.powers = self.powers.map(|n| if n == 1 { -1 } else { 1 });
        for (row, &n) in self.o.chunks_mut(D_V).zip(&self.powers) {
            run(row, n);
        }
    }

    /// No row has changed.
    fn none(&mut self, skip: bool, run: impl Fn(&mut [f32], i32)) {
        self.powers = std::hint::black_box([0; ROWS]);
        for (row, &n) in self.o.chunks_mut(D_V).zip(&self.powers) {
            if !skip || n != 0 {
                run(row, n);
            }
        }
    }
}

fn in_place(criterion: &mut Criterion) {
    let mut rows = Rows {
        o: common::numbers(1, ROWS * D_V),
        powers: [1; ROWS],
    };
    let mut variants: Vec<Variant<'_, Rows>> = vec![
        (
            "multiply".into(),
            Box::new(|rows| rows.all(stages::multiply)),
        ),
        (
            "nothing changed, no skip, multiply".into(),
            Box::new(|rows| rows.none(false, stages::multiply)),
        ),
        (
            "nothing changed, skip, multiply".into(),
            Box::new(|rows| rows.none(true, stages::multiply)),
        ),
        (
            "integer add, as printed".into(),
            Box::new(|rows| rows.all(stages::add_as_printed)),
        ),
        (
            "nothing changed, no skip, integer add, as printed".into(),
            Box::new(|rows| rows.none(false, stages::add_as_printed)),
        ),
        (
            "integer add, total, compiled like these".into(),
            Box::new(|rows| rows.all(bits::mul_pow2_f32_slice)),
        ),
    ];
    for backend in common::backends() {
        let name = backend.id().name();
        let add = move |row: &mut [f32], n| backend.rescale(row, Increment::pow2(n));
        variants.push((
            format!("integer add, total, {name}"),
            Box::new(move |rows| rows.all(add)),
        ));
        variants.push((
            format!("nothing changed, no skip, integer add, total, {name}"),
            Box::new(move |rows| rows.none(false, add)),
        ));
        variants.push((
            format!("nothing changed, skip, integer add, total, {name}"),
            Box::new(move |rows| rows.none(true, add)),
        ));
    }
    let bytes = Throughput::Bytes((ROWS * D_V * 4) as u64);
    compare(criterion, "in place", bytes, &mut rows, &variants);
}

// -------------------------------------------------------------------------------------------------
// A C2 that takes its rescaling as an argument
// -------------------------------------------------------------------------------------------------

/// Keys of the block.
const KEYS: usize = 192;
/// Rows of the panel; columns of a strip.
const WIDTH: usize = 64;
const STRIPS: usize = D_V / WIDTH;
/// Register tile, as in the portable backend.
const TILE_ROWS: usize = 4;
const VECTORS: usize = if cfg!(target_feature = "avx") { 2 } else { 1 };

type Vectors = [f32x8; VECTORS];
type Panel = [[f32; WIDTH]; WIDTH];

/// `o = rescale(row, o) + P V`, P transposed, one strip of V for all strips of O.
#[inline(never)]
fn c2(
    o: &mut [Panel],
    p: &[[f32; WIDTH]; KEYS],
    v: &[[f32; WIDTH]; KEYS],
    rescale: impl Fn(usize, Vectors) -> Vectors,
) {
    for o in o {
        for column in (0..WIDTH).step_by(8 * VECTORS) {
            for row in (0..WIDTH).step_by(TILE_ROWS) {
                let o = &mut o[row..row + TILE_ROWS];
                let mut acc = [[f32x8::ZERO; VECTORS]; TILE_ROWS];
                for (i, (acc, o)) in acc.iter_mut().zip(&*o).enumerate() {
                    let o = o[column..].as_chunks().0;
                    *acc = rescale(row + i, std::array::from_fn(|v| f32x8::new(o[v])));
                }
                for (p, v) in p.iter().zip(v) {
                    let v = v[column..].as_chunks().0;
                    let v: Vectors = std::array::from_fn(|i| f32x8::new(v[i]));
                    for (acc, &p) in acc.iter_mut().zip(&p[row..row + TILE_ROWS]) {
                        for (acc, &v) in acc.iter_mut().zip(&v) {
                            *acc = f32x8::splat(p).mul_add(v, *acc);
                        }
                    }
                }
                for (acc, o) in acc.iter().zip(o) {
                    for (acc, o) in acc.iter().zip(o[column..].as_chunks_mut().0) {
                        *o = acc.to_array();
                    }
                }
            }
        }
    }
}

fn fused(criterion: &mut Criterion) {
    let mut o = vec![[[0.0; WIDTH]; WIDTH]; STRIPS];
    let tile = |seed| {
        let numbers = common::numbers(seed, KEYS * WIDTH);
        let mut tile = Box::new([[0.0; WIDTH]; KEYS]);
        tile.as_flattened_mut().copy_from_slice(&numbers);
        tile
    };
    let (p, v) = (&tile(1), &tile(2));
    // Halved each time, so that O converges.
    for (what, n) in [("every row", -1), ("nothing changed", 0)] {
        let powers = std::hint::black_box([n; WIDTH]);
        let increments = powers.map(Increment::pow2);
        let factors = powers.map(|n| mul_pow2_f32(1.0, n));
        let total = move |row: usize, x: Vectors| {
            let increment = increments[row];
            x.map(|x| f32x8::new(x.to_array().map(|x| add_increment_f32(x, increment))))
        };
        let printed = move |row: usize, x: Vectors| {
            let increment = i32x8::splat(increments[row].bits());
            x.map(|x| bytemuck::cast(bytemuck::cast::<_, i32x8>(x) + increment))
        };
        let multiply = move |row: usize, x: Vectors| {
            let factor = f32x8::splat(factors[row]);
            x.map(|x| x * factor)
        };
        let total_or_skip = move |row: usize, x: Vectors| {
            if increments[row].is_none() {
                x
            } else {
                total(row, x)
            }
        };
        let multiply_or_skip = move |row: usize, x: Vectors| {
            if factors[row] == 1.0 {
                x
            } else {
                multiply(row, x)
            }
        };
        let variants: Vec<Variant<'_, Vec<Panel>>> = vec![
            ("multiply".into(), Box::new(move |o| c2(o, p, v, multiply))),
            (
                "multiply, or skip".into(),
                Box::new(move |o| c2(o, p, v, multiply_or_skip)),
            ),
            (
                "integer add, as printed".into(),
                Box::new(move |o| c2(o, p, v, printed)),
            ),
            (
                "integer add, total".into(),
                Box::new(move |o| c2(o, p, v, total)),
            ),
            (
                "integer add, total, or skip".into(),
                Box::new(move |o| c2(o, p, v, total_or_skip)),
            ),
            (
                "O loaded as it is".into(),
                Box::new(move |o| c2(o, p, v, |_, x| x)),
            ),
        ];
        let flop = Throughput::Elements((2 * KEYS * WIDTH * D_V) as u64);
        compare(
            criterion,
            &format!("fused, {what}"),
            flop,
            &mut o,
            &variants,
        );
    }
}

// -------------------------------------------------------------------------------------------------
// The kernel's
// -------------------------------------------------------------------------------------------------

fn kernel(criterion: &mut Criterion) {
    let q = common::inputs(1, stages::ROWS * stages::D_QK);
    let kv = common::inputs(2, stages::KEYS * stages::D_QK);
    for backend in common::backends() {
        let options = Options {
            backend,
            ..Options::default()
        };
        let mut workspace = bytemuck::zeroed_box::<Workspace>();
        let mut s = Stages::new(options, &mut workspace, q, kv);
        let Work::Flop(flop) = s.pv(1, Before::Overwrite) else {
            unreachable!("C2 is a matrix product");
        };
        let variants: Vec<Variant<'_, Stages<'_>>> = vec![
            (
                "nothing changed, skipped".into(),
                Box::new(|s| {
                    s.pv(1, Before::Nothing);
                }),
            ),
            (
                "every row, integer add, tile by tile".into(),
                Box::new(|s| {
                    s.pv(1, Before::Rescale);
                }),
            ),
            (
                "every row, integer add as a pass".into(),
                Box::new(|s| {
                    s.rescale(-1);
                    s.pv(1, Before::Nothing);
                }),
            ),
            (
                "every row, multiply as a pass".into(),
                Box::new(|s| {
                    s.multiply(-1);
                    s.pv(1, Before::Nothing);
                }),
            ),
            (
                "first block: no O".into(),
                Box::new(|s| {
                    s.pv(1, Before::Overwrite);
                }),
            ),
        ];
        let name = format!("C2, {}", backend.id().name());
        compare(
            criterion,
            &name,
            Throughput::Elements(flop),
            &mut s,
            &variants,
        );
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(700));
    targets = in_place, fused, kernel
}
criterion_main!(benches);
