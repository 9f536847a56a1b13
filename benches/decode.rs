//! Whole decodes on one thread: shapes x backends, throughput in FLOP of the two
//! matrix products.
//!
//!     cargo bench --bench decode

#![allow(missing_docs, reason = "what criterion_group makes")]

mod common;

use std::time::Duration;

use amla::{Elements, Options, Output, Problem, ProblemShape, Workspace, decode};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

const D_QK: usize = 576;
const D_V: usize = 512;
const CONTEXTS: [usize; 2] = [1024, 4096];
/// Heads and positions.
const SHAPES: [(usize, usize); 10] = [
    (1, 1),
    (2, 1),
    (4, 1),
    (8, 1),
    (16, 1),
    (64, 1),
    (128, 1),
    (16, 2),
    (64, 2),
    (128, 2),
];

fn shapes(criterion: &mut Criterion) {
    let mut workspace = bytemuck::zeroed_box::<Workspace>();
    let all_q = common::inputs(1, 2 * 128 * D_QK);
    let all_kv = common::inputs(2, CONTEXTS[1] * D_QK);
    for backend in common::backends() {
        let options = Options {
            backend,
            ..Options::default()
        };
        let mut group = criterion.benchmark_group(format!("decode/{}", backend.id().name()));
        for (h_q, s_q) in SHAPES {
            for s_k in CONTEXTS {
                let shape = ProblemShape {
                    b: 1,
                    s_q,
                    s_k,
                    h_q,
                    h_kv: 1,
                    d_qk: D_QK,
                    d_v: D_V,
                };
                let rows = s_q * h_q;
                let q = &all_q[..rows * D_QK];
                let kv = &all_kv[..s_k * D_QK];
                let problem = Problem {
                    causal: true,
                    ..Problem::dense(shape, q, kv, 1.0 / 24.0)
                };
                let (mut o, mut lse) = (vec![0.0; rows * D_V], vec![0.0; rows]);
                let flop = 2 * rows * s_k * (D_QK + D_V);
                group.throughput(Throughput::Elements(flop as u64));
                let id = BenchmarkId::new(format!("h_q {h_q}, s_q {s_q}"), s_k);
                group.bench_function(id, |b| {
                    b.iter(|| {
                        let output = Output::dense(shape, Elements::F32(&mut o), &mut lse);
                        decode(&problem, &options, &mut workspace, output).unwrap();
                    });
                });
            }
        }
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(1000));
    targets = shapes
}
criterion_main!(benches);
