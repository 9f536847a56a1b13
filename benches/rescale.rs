//! The paper's central claim as an ablation: what is it worth on a CPU to rescale
//! O by an integer addition on its floats' bits, instead of by a multiplication?
//!
//! * `in place`: O of the paper, 128 x 512 FP32 (256 KiB, in L2), as a pass of its
//!   own. The addition made total ([`amla::bits`]), the addition as printed, and
//!   the multiplication; each with every row to be rescaled, and with none, where
//!   the skip tests one number per row.
//! * `fused`: one generic FP32 C2 that differs in nothing but what it does to O on
//!   the way into registers. This is the fair comparison: same loop, same loads
//!   and stores.
//! * `C2/<backend>`: the kernel itself; fused, and with a pass of its own before.
//!
//! The passes and the generic C2 are compiled for the build's target features, so
//! there are two ways to run this:
//!
//!     cargo bench --features stages --bench rescale
//!     RUSTFLAGS="-C target-cpu=native" cargo bench --features stages --bench rescale

mod common;

use std::time::Duration;

use amla::bits::{Increment, add_increment_f32, mul_pow2_f32};
use amla::stages::{self, Before, Stages, Work};
use amla::{Options, Workspace};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use wide::{f32x8, i32x8};

/// Columns of O in the paper.
const D_V: usize = 512;
/// Rows of O in the paper.
const ROWS: usize = 128;

/// `xs` in rows, each rescaled by its own power of two, or skipped.
fn by_rows(xs: &mut [f32], powers: &[i32], skip: bool, run: impl Fn(&mut [f32], i32)) {
    for (row, &n) in xs.chunks_mut(D_V).zip(powers) {
        if !skip || n != 0 {
            run(row, n);
        }
    }
}

fn in_place(criterion: &mut Criterion) {
    println!(
        "passes outside of backends are compiled for {}",
        common::BUILD
    );
    let mut group = criterion.benchmark_group("in place");
    group.throughput(Throughput::Bytes((ROWS * D_V * 4) as u64));
    let mut o = common::numbers(1, ROWS * D_V);
    let up_and_down = |n: &mut i32| {
        *n = -*n;
        [*n; ROWS]
    };
    for backend in common::backends() {
        let name = backend.id().name();
        let add = |row: &mut [f32], n| backend.rescale(row, Increment::pow2(n));
        let mut n = 1;
        group.bench_function(format!("integer add, total, {name}"), |b| {
            b.iter(|| by_rows(&mut o, &up_and_down(&mut n), false, add));
        });
        group.bench_function(format!("nothing changed, no skip, {name}"), |b| {
            b.iter(|| by_rows(&mut o, std::hint::black_box(&[0; ROWS]), false, add));
        });
        group.bench_function(format!("nothing changed, skip, {name}"), |b| {
            b.iter(|| by_rows(&mut o, std::hint::black_box(&[0; ROWS]), true, add));
        });
    }
    let mut n = 1;
    group.bench_function("integer add, as printed", |b| {
        b.iter(|| by_rows(&mut o, &up_and_down(&mut n), false, stages::add_as_printed));
    });
    let mut n = 1;
    group.bench_function("multiply", |b| {
        b.iter(|| by_rows(&mut o, &up_and_down(&mut n), false, stages::multiply));
    });
    group.finish();
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
    println!("the generic C2 is compiled for {}", common::BUILD);
    let mut group = criterion.benchmark_group("fused");
    let flop = 2 * KEYS * WIDTH * D_V;
    group.throughput(Throughput::Elements(flop as u64));
    let mut o = vec![[[0.0; WIDTH]; WIDTH]; STRIPS];
    let tile = |seed| {
        let numbers = common::numbers(seed, KEYS * WIDTH);
        let mut tile = Box::new([[0.0; WIDTH]; KEYS]);
        tile.as_flattened_mut().copy_from_slice(&numbers);
        tile
    };
    let (p, v) = (tile(1), tile(2));
    // Always halved, so that O converges.
    for (what, n) in [("every row", -1), ("nothing changed", 0)] {
        let powers = std::hint::black_box([n; WIDTH]);
        let increments = powers.map(Increment::pow2);
        let factors = powers.map(|n| mul_pow2_f32(1.0, n));
        let total = |row: usize, x: Vectors| {
            let increment = increments[row];
            x.map(|x| f32x8::new(x.to_array().map(|x| add_increment_f32(x, increment))))
        };
        let printed = |row: usize, x: Vectors| {
            let increment = i32x8::splat(increments[row].bits());
            x.map(|x| bytemuck::cast(bytemuck::cast::<_, i32x8>(x) + increment))
        };
        let multiply = |row: usize, x: Vectors| {
            let factor = f32x8::splat(factors[row]);
            x.map(|x| x * factor)
        };
        macro_rules! bench {
            ($name:literal, $rescale:expr) => {
                group.bench_function(format!("{what}/{}", $name), |b| {
                    b.iter(|| c2(&mut o, &p, &v, $rescale));
                });
            };
        }
        // What there is to pay for: a load, and no rescaling at all.
        bench!("no rescaling", |_, x| x);
        bench!("integer add, total", total);
        bench!("integer add, as printed", printed);
        bench!("multiply", multiply);
        bench!("integer add, total, or skip", |row, x| {
            if increments[row].is_none() {
                x
            } else {
                total(row, x)
            }
        });
        bench!("multiply, or skip", |row, x| {
            if factors[row] == 1.0 {
                x
            } else {
                multiply(row, x)
            }
        });
    }
    group.finish();
}

// -------------------------------------------------------------------------------------------------
// The kernel's
// -------------------------------------------------------------------------------------------------

fn kernel(criterion: &mut Criterion) {
    let mut workspace = bytemuck::zeroed_box::<Workspace>();
    let q = common::inputs(1, stages::ROWS * stages::D_QK);
    let kv = common::inputs(2, stages::KEYS * stages::D_QK);
    for backend in common::backends() {
        let options = Options {
            backend,
            ..Options::default()
        };
        let mut s = Stages::new(options, &mut workspace, &q, &kv);
        let mut group = criterion.benchmark_group(format!("C2/{}", backend.id().name()));
        let Work::Flop(flop) = s.pv(Before::Overwrite) else {
            unreachable!("C2 is a matrix product");
        };
        group.throughput(Throughput::Elements(flop));
        for (name, run) in [
            (
                "first block: no O to load",
                (|s| s.pv(Before::Overwrite)) as fn(&mut Stages<'_>) -> Work,
            ),
            ("nothing changed, skipped", |s| s.pv(Before::Nothing)),
            ("every row, integer add fused", |s| s.pv(Before::Rescale)),
            ("every row, integer add as a pass", |s| {
                s.rescale(-1);
                s.pv(Before::Nothing)
            }),
            ("every row, multiply as a pass", |s| {
                s.multiply(-1);
                s.pv(Before::Nothing)
            }),
        ] {
            group.bench_function(name, |b| b.iter(|| run(&mut s)));
        }
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(1000));
    targets = in_place, fused, kernel
}
criterion_main!(benches);
