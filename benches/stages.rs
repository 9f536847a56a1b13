//! Each stage of the kernel on every backend: one panel of 64 rows, one block of
//! 192 keys, widths (576, 512), everything in cache.
//!
//!     cargo bench --features stages --bench stages

#![allow(missing_docs, reason = "what criterion_group makes")]

mod common;

use std::time::Duration;

use amla::stages::{self, Before, Reference, Stages, Work};
use amla::{Options, Precision, Rescale, Workspace};
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};

type Group<'a> = BenchmarkGroup<'a, WallTime>;
type Stage<'a> = fn(&mut Stages<'a>) -> Work;

/// One stage, throughput in what it says it does.
fn stage<'a>(group: &mut Group<'_>, name: &str, stages: &mut Stages<'a>, run: Stage<'a>) {
    group.throughput(Throughput::Elements(match run(stages) {
        Work::Flop(n) | Work::Elements(n) => n,
    }));
    group.bench_function(name, |b| b.iter(|| run(stages)));
}

fn all(criterion: &mut Criterion) {
    let mut workspace = bytemuck::zeroed_box::<Workspace>();
    let q = common::inputs(1, stages::ROWS * stages::D_QK);
    let kv = common::inputs(2, stages::KEYS * stages::D_QK);
    for backend in common::backends() {
        let options = Options {
            backend,
            ..Options::default()
        };
        let mut s = Stages::new(options, &mut workspace, q, kv);
        let mut group = criterion.benchmark_group(backend.id().name());
        stage(&mut group, "pack_q", &mut s, Stages::pack_q);
        stage(&mut group, "qk", &mut s, Stages::qk);
        for (rescale, precision) in [
            (Rescale::Exact, Precision::Bf16),
            (Rescale::Exact, Precision::Bf16x2),
            (Rescale::Compensated, Precision::Bf16),
            (Rescale::Compensated, Precision::Bf16x2),
        ] {
            s.set_options(Options {
                backend,
                rescale,
                precision,
                ..Options::default()
            });
            let name = |what: &str| format!("softmax/{rescale:?}/{precision:?}/{what}");
            stage(&mut group, &name("stays"), &mut s, |s| {
                s.softmax(Reference::Stays)
            });
            if precision == Precision::Bf16 {
                stage(&mut group, &name("moves"), &mut s, |s| {
                    s.softmax(Reference::Moves)
                });
                stage(&mut group, &name("first"), &mut s, |s| {
                    s.softmax(Reference::First)
                });
            }
        }
        s.set_options(options);
        s.spread_scores(64.0);
        stage(&mut group, "softmax/Exact/Bf16/stays, wide", &mut s, |s| {
            s.softmax(Reference::Stays)
        });
        s.spread_scores(4.0);
        for (name, run) in [
            ("pv/first block", (|s| s.pv(1, Before::Overwrite)) as Stage),
            ("pv/nothing to rescale", |s| s.pv(1, Before::Nothing)),
            ("pv/every row rescaled", |s| s.pv(1, Before::Rescale)),
            ("pv/two panels", |s| {
                s.pv(stages::PANELS.min(2), Before::Nothing)
            }),
            ("pv/all panels", |s| s.pv(stages::PANELS, Before::Nothing)),
        ] {
            stage(&mut group, name, &mut s, run);
        }
        s.set_options(Options {
            precision: Precision::Bf16x2,
            ..options
        });
        stage(&mut group, "pv/Bf16x2", &mut s, |s| {
            s.pv(1, Before::Nothing)
        });
        // Up and down in turn, so that O stays what it is.
        stage(&mut group, "rescale, twice", &mut s, |s| {
            let (Work::Flop(up) | Work::Elements(up)) = s.rescale(1);
            let (Work::Flop(down) | Work::Elements(down)) = s.rescale(-1);
            Work::Elements(up + down)
        });
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(1000));
    targets = all
}
criterion_main!(benches);
