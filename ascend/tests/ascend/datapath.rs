//! The functional mode against the references.

use amla::{Problem, ProblemShape, reference};
use amla_ascend::{Algorithm, Cut, Datapath, Inputs, Kernel, Machine, Memory, Outputs, Tiling};
use half::bf16;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Normal};

use crate::{KERNELS, amla, metrics, one};

/// Seeded numbers of a normal distribution.
fn normal(seed: u64, sigma: f32, n: usize) -> Vec<bf16> {
    let numbers = Normal::new(0.0, sigma).unwrap();
    let rng = ChaCha8Rng::seed_from_u64(seed);
    numbers
        .sample_iter(rng)
        .take(n)
        .map(bf16::from_f32)
        .collect()
}

struct Execution {
    o: Vec<f32>,
    lse: Vec<f32>,
}

fn execute(kernel: &Kernel, q: &[bf16], kv: &[bf16], softmax_scale: f32) -> Execution {
    let load = kernel.load();
    let rows = load.groups * load.rows;
    // NaN shows elements that aren't written, or are read before that.
    let (mut o, mut lse) = (vec![f32::NAN; rows * load.d_v], vec![f32::NAN; rows]);
    let [bf16s, f32s] = Datapath::memory(kernel);
    let (mut bf16s, mut f32s) = (vec![bf16::NAN; bf16s], vec![f32::NAN; f32s]);
    let inputs = Inputs {
        q,
        kv,
        softmax_scale,
    };
    let outputs = Outputs {
        o: &mut o,
        lse: &mut lse,
    };
    let memory = Memory {
        bf16: &mut bf16s,
        f32: &mut f32s,
    };
    let mut datapath = Datapath::new(kernel, inputs, outputs, memory).unwrap();
    kernel.run_with(kernel.order(), &mut datapath).unwrap();
    Execution { o, lse }
}

/// All four kernels compute `shape`, of one group, as accurately as the scalar reference of the same
/// algorithm.
fn is_accurate(tiling: Tiling, shape: ProblemShape, sigma: f32) {
    let (rows, scale) = (shape.h_q, 1.0 / 24.0);
    let q = normal(1, sigma, rows * 576);
    let kv = normal(2, sigma, shape.s_k * 576);
    let problem = Problem::dense(shape, &q, &kv, scale);
    let (mut golden, mut golden_lse) = (vec![0.0; rows * 512], vec![0.0; rows]);
    reference::golden(&problem, &mut golden, &mut golden_lse).unwrap();
    // The bound on lse is relative to the largest one.
    let largest = golden_lse
        .iter()
        .fold(1.0_f64, |most, lse| most.max(lse.abs()));
    for (algorithm, pipeline) in KERNELS {
        let kernel = Kernel::new(Machine::ASCEND_910, tiling, algorithm, pipeline, shape).unwrap();
        let (mut o, mut lse) = (vec![0.0; rows * 512], vec![0.0; rows]);
        match algorithm {
            Algorithm::Base => reference::base(&problem, tiling.block, &mut o, &mut lse),
            Algorithm::Amla => {
                reference::amla_compensated(&problem, tiling.block, &mut o, &mut lse)
            }
        }
        .unwrap();
        let reference = metrics::relative_frobenius(&o, &golden);
        let got = execute(&kernel, &q, &kv, scale);
        let error = metrics::relative_frobenius(&got.o, &golden);
        let lse = metrics::worst(&got.lse, &golden_lse);
        let what = format!("{shape:?} {algorithm:?} {pipeline:?}");
        assert!(
            error < 1.02 * reference + 1e-6,
            "{what}: {error:e}, reference {reference:e}"
        );
        assert!(lse < 5e-7 * largest, "{what}: lse {lse:e} of {largest}");
    }
}

#[test]
fn every_kernel_computes_attention() {
    is_accurate(Tiling::PAPER, one(130, 1100), 1.0);
    // A maximum that rises by many powers of two.
    is_accurate(Tiling::PAPER, one(32, 1100), 3.0);
}

#[test]
fn odd_sizes_compute_attention_too() {
    for (rows, keys) in [(1, 1), (1, 700), (17, 513), (256, 64), (255, 512)] {
        is_accurate(Tiling::PAPER, one(rows, keys), 1.0);
    }
}

#[test]
fn other_tilings_compute_attention_too() {
    let cut =
        |[single_m, single_n, single_k]: [usize; 3], [base_m, base_n, base_k]: [usize; 3]| Cut {
            single_m,
            single_n,
            single_k,
            base_m,
            base_n,
            base_k,
        };
    for (block, c1, c2, [l1_buffer, qp_buffers, kv_buffers]) in [
        // One row of tiles in L1, of three in L0.
        (
            512,
            cut([192, 64, 288], [64, 64, 96]),
            cut([192, 64, 256], [96, 64, 128]),
            [112 * 1024, 2, 2],
        ),
        // Squares of 64.
        (
            512,
            cut([64, 64, 288], [64, 64, 144]),
            cut([64, 64, 256], [64, 64, 128]),
            [36 * 1024, 8, 4],
        ),
        // Nothing divides anything.
        (
            384,
            cut([96, 112, 144], [48, 64, 80]),
            cut([96, 112, 128], [80, 64, 48]),
            [112 * 144 * 2, 8, 5],
        ),
    ] {
        let tiling = Tiling {
            block,
            c1,
            c2,
            l1_buffer,
            qp_buffers,
            kv_buffers,
            ..Tiling::PAPER
        };
        is_accurate(tiling, one(192, 600), 1.0);
    }
}

#[test]
fn several_groups_are_computed_in_one_schedule() {
    // Twelve groups on one core: more than O has slots in GM.
    let machine = Machine {
        cube_cores: 1,
        ..Machine::ASCEND_910
    };
    let (groups, rows, keys) = (12, 8, 1100);
    let shape = ProblemShape {
        b: groups,
        ..one(rows, keys)
    };
    let q = normal(3, 1.0, groups * rows * 576);
    let kv = normal(4, 1.0, groups * keys * 576);
    let problem = Problem::dense(shape, &q, &kv, 1.0 / 24.0);
    let (mut o, mut lse) = (vec![0.0; groups * rows * 512], vec![0.0; groups * rows]);
    reference::golden(&problem, &mut o, &mut lse).unwrap();
    for (algorithm, pipeline) in KERNELS {
        let kernel = Kernel::new(machine, Tiling::PAPER, algorithm, pipeline, shape).unwrap();
        let got = execute(&kernel, &q, &kv, 1.0 / 24.0);
        let error = metrics::relative_frobenius(&got.o, &o);
        assert!(error < 1.3e-3, "{error:e}");
        assert!(metrics::worst(&got.lse, &lse) < 2e-6);
    }
}

#[test]
fn slices_of_the_wrong_length_are_refused() {
    let kernel = amla(one(16, 64));
    let (q, kv) = (vec![bf16::ONE; 16 * 576], vec![bf16::ONE; 64 * 576]);
    let [bf16s, f32s] = Datapath::memory(&kernel);
    for (short, what) in [
        "q",
        "kv",
        "o",
        "lse",
        "the memory of BF16",
        "the memory of FP32",
    ]
    .into_iter()
    .enumerate()
    {
        let less = |index: usize, n: usize| if index == short { n - 1 } else { n };
        let (mut o, mut lse) = (vec![0.0; less(2, 16 * 512)], vec![0.0; less(3, 16)]);
        let mut bf16s = vec![bf16::ZERO; less(4, bf16s)];
        let mut f32s = vec![0.0; less(5, f32s)];
        let result = Datapath::new(
            &kernel,
            Inputs {
                q: &q[..less(0, q.len())],
                kv: &kv[..less(1, kv.len())],
                softmax_scale: 1.0,
            },
            Outputs {
                o: &mut o,
                lse: &mut lse,
            },
            Memory {
                bf16: &mut bf16s,
                f32: &mut f32s,
            },
        );
        let fault = result.err().unwrap().to_string();
        assert!(fault.starts_with(&format!("{what} has ")), "{fault}");
    }
}
