//! Problems, runs and comparisons that the integration tests share.
#![allow(dead_code, reason = "each test file uses its part")]

pub mod precision;

use std::cell::RefCell;
use std::io::Write;
use std::ops::Range;
use std::sync::LazyLock;

use amla::{
    Backend, BackendId, Data, Elements, Error, Lse, Options, Output, Plan, Precision, Problem,
    ProblemShape, Rescale, SharedOutput, TensorRef, Workspace, combine, decode, reference,
    run_tasks,
};
use half::bf16;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};

/// The variable that restricts tests to the backend that it names.
pub const CHOICE: &str = "AMLA_TEST_BACKEND";

/// Whether tests are to run on this backend. Panics if the variable names none.
pub fn wanted(id: BackendId) -> bool {
    let Some(name) = std::env::var_os(CHOICE).filter(|name| !name.is_empty()) else {
        return true;
    };
    let chosen = name.to_str().and_then(BackendId::from_name);
    chosen.unwrap_or_else(|| panic!("{CHOICE}: there is no backend {name:?}")) == id
}

/// The backend, or `None` (said aloud, past the test harness's capture) where the
/// processor can't run it or another is wanted.
pub fn backend(id: BackendId) -> Option<Backend> {
    Backend::permit_amx();
    let reason = match Backend::request(id) {
        Ok(backend) if wanted(id) => return Some(backend),
        Ok(_) => "another is wanted",
        Err(_) if id == BackendId::Amx => {
            "this processor lacks its instructions, or this process may not use them"
        }
        Err(_) => "this processor lacks its instructions",
    };
    let _ = writeln!(std::io::stderr(), "backend {} NOT RUN: {reason}", id.name());
    None
}

/// All backends that tests are to run on and the processor can.
pub fn backends() -> impl Iterator<Item = Backend> {
    Backend::permit_amx();
    let can_run = |id| Backend::request(id).ok();
    BackendId::ALL
        .into_iter()
        .filter(|&id| wanted(id))
        .filter_map(can_run)
}

/// Stamps tests of the including file, each a `fn(Backend)`, onto every backend; for
/// `#[macro_use] mod common`.
#[allow(unused_macros, reason = "each test file uses its part")]
macro_rules! suites {
    ($($(#[$meta:meta])* $test:ident),* $(,)?) => {
        suites!(@ portable, Portable, [$($(#[$meta])* $test,)*]);
        suites!(@ avx2, Avx2, [$($(#[$meta])* $test,)*]);
        suites!(@ avx512, Avx512, [$($(#[$meta])* $test,)*]);
        suites!(@ avx512bf16, Avx512Bf16, [$($(#[$meta])* $test,)*]);
        suites!(@ amx, Amx, [$($(#[$meta])* $test,)*]);
        suites!(@ neon, Neon, [$($(#[$meta])* $test,)*]);
        suites!(@ neonbf16, NeonBf16, [$($(#[$meta])* $test,)*]);

        #[test]
        fn every_backend_is_stamped() {
            let stamped = [
                amla::BackendId::Portable,
                amla::BackendId::Avx2,
                amla::BackendId::Avx512,
                amla::BackendId::Avx512Bf16,
                amla::BackendId::Amx,
                amla::BackendId::Neon,
                amla::BackendId::NeonBf16,
            ];
            assert_eq!(amla::BackendId::ALL, stamped, "see `suites!` in tests/common/mod.rs");
        }
    };
    (@ $name:ident, $id:ident, [$($(#[$meta:meta])* $test:ident,)*]) => {
        mod $name {
            $(
                #[test]
                $(#[$meta])*
                fn $test() {
                    if let Some(backend) = super::common::backend(amla::BackendId::$id) {
                        super::$test(backend);
                    }
                }
            )*
        }
    };
}

/// Whether the backend stores P in FP32.
pub fn stores_p_in_fp32(backend: Backend) -> bool {
    !matches!(
        backend.id(),
        BackendId::Avx512Bf16 | BackendId::Amx | BackendId::NeonBf16
    )
}

/// Every way to compute on a backend.
pub fn modes(backend: Backend) -> [Options; 4] {
    let with = |rescale, precision| Options {
        backend,
        rescale,
        precision,
        ..Options::default()
    };
    [
        with(Rescale::Exact, Precision::Bf16),
        with(Rescale::Exact, Precision::Bf16x2),
        with(Rescale::Compensated, Precision::Bf16),
        with(Rescale::Compensated, Precision::Bf16x2),
    ]
}

/// Seeded BF16 numbers of a normal distribution: out of a first draw, as many tests have more data
/// than work.
pub fn normal(seed: u64, sigma: f32, n: usize) -> Vec<bf16> {
    static DRAWN: LazyLock<Vec<f32>> = LazyLock::new(|| {
        let rng = ChaCha8Rng::seed_from_u64(0);
        StandardNormal.sample_iter(rng).take(1 << 16).collect()
    });
    let drawn = &**DRAWN;
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut numbers = Vec::with_capacity(n.next_multiple_of(4));
    while numbers.len() < n {
        let word = rng.next_u64();
        let indices = [word, word >> 16, word >> 32, word >> 48].map(|i| usize::from(i as u16));
        numbers.extend(indices.map(|i| bf16::from_f32(sigma * drawn[i])));
    }
    numbers.truncate(n);
    numbers
}

/// O, in FP32, and lse, dense, of the lengths `sizes`.
pub fn run(problem: &Problem, sizes: (usize, usize), options: &Options) -> (Vec<f32>, Vec<f32>) {
    run_with(problem, sizes, options, Lse::default())
}

pub fn run_with(
    problem: &Problem,
    (o, lse): (usize, usize),
    options: &Options,
    lse_format: Lse,
) -> (Vec<f32>, Vec<f32>) {
    // Poisoned: every element must be written.
    let (mut o, mut lse) = (vec![-7.75e33; o], vec![-7.75e33; lse]);
    let output = Output {
        lse_format,
        ..Output::dense(problem.shape, Elements::F32(&mut o), &mut lse)
    };
    decode(problem, options, &mut workspace(), output).unwrap();
    assert_one_nan(&o);
    assert_one_nan(&lse);
    (o, lse)
}

/// A problem that owns its tensors.
#[derive(Clone)]
pub struct Case {
    pub shape: ProblemShape,
    pub q: Vec<bf16>,
    pub kv: Vec<bf16>,
    pub v: Option<Vec<bf16>>,
    pub lens: Option<Vec<i32>>,
    pub causal: bool,
    pub scale: f32,
}

impl Case {
    /// N(0, 1) data at the given sizes, all keys visible.
    pub fn new(b: usize, s_q: usize, s_k: usize, h_q: usize, (d_qk, d_v): (usize, usize)) -> Self {
        let shape = ProblemShape {
            b,
            s_q,
            s_k,
            h_q,
            h_kv: 1,
            d_qk,
            d_v,
        };
        Self {
            shape,
            q: normal(1, 1.0, b * s_q * h_q * d_qk),
            kv: normal(2, 1.0, b * s_k * d_qk),
            v: None,
            lens: None,
            causal: false,
            scale: (d_qk as f32).sqrt().recip(),
        }
    }

    pub fn problem(&self) -> Problem<'_> {
        let ProblemShape { s_k, d_v, .. } = self.shape;
        Problem {
            v: self.v.as_ref().map(|data| TensorRef {
                data: Data::Bf16(data),
                strides: [s_k * d_v, d_v, 0],
            }),
            cache_seqlens: self.lens.as_deref(),
            causal: self.causal,
            ..Problem::dense(self.shape, &self.q, &self.kv, self.scale)
        }
    }

    /// One query row, to be overwritten.
    pub fn q_row(&mut self, b: usize, j: usize, h: usize) -> &mut [bf16] {
        let ProblemShape { s_q, h_q, d_qk, .. } = self.shape;
        let row = (b * s_q + j) * h_q + h;
        &mut self.q[row * d_qk..][..d_qk]
    }

    /// One key, to be overwritten.
    pub fn key(&mut self, b: usize, k: usize) -> &mut [bf16] {
        let ProblemShape { s_k, d_qk, .. } = self.shape;
        &mut self.kv[(b * s_k + k) * d_qk..][..d_qk]
    }

    /// Values apart from the keys, N(0, 1).
    pub fn separate_v(mut self) -> Self {
        let ProblemShape { b, s_k, d_v, .. } = self.shape;
        self.v = Some(normal(3, 1.0, b * s_k * d_v));
        self
    }

    /// The part of a key that is the value, to be overwritten.
    pub fn value_in_key(&mut self, b: usize, k: usize) -> &mut [bf16] {
        let d_v = self.shape.d_v;
        &mut self.key(b, k)[..d_v]
    }

    pub fn value(&mut self, b: usize, k: usize) -> &mut [bf16] {
        let ProblemShape { s_k, d_v, .. } = self.shape;
        &mut self.v.as_mut().unwrap()[(b * s_k + k) * d_v..][..d_v]
    }

    /// `(O, lse)` of Golden.
    pub fn golden(&self) -> (Vec<f64>, Vec<f64>) {
        let (o, lse) = self.sizes();
        let (mut o, mut lse) = (vec![0.0; o], vec![0.0; lse]);
        reference::golden(&self.problem(), &mut o, &mut lse).unwrap();
        (o, lse)
    }

    pub fn run(&self, options: &Options) -> (Vec<f32>, Vec<f32>) {
        run(&self.problem(), self.sizes(), options)
    }

    /// `(O, lse)` lengths.
    pub fn sizes(&self) -> (usize, usize) {
        let rows = self.shape.b * self.shape.s_q * self.shape.h_q;
        (rows * self.shape.d_v, rows)
    }

    /// `[O, sum of P |v| / l, lse]` of Golden; the second is what rounding errors scale with.
    fn golden_with_magnitudes(&self) -> [Vec<f64>; 3] {
        let ProblemShape { d_qk, d_v, .. } = self.shape;
        let mut case = self.clone();
        case.v = Some(with_magnitudes(&self.kv, self.v.as_deref(), (d_qk, d_v)));
        case.shape.d_v = 2 * d_v;
        let (o, lse) = case.golden();
        let [o, magnitudes] = halves(&o, d_v);
        [o, magnitudes, lse]
    }

    /// Runs every mode and checks each element against Golden, with the bound of
    /// [`tolerance`]; non-finite results must stand where Golden has them.
    #[track_caller]
    pub fn check(&self, backend: Backend) {
        let [want_o, magnitudes, want_lse] = self.golden_with_magnitudes();
        for options in modes(backend) {
            let (o, lse) = self.run(&options);
            assert_eq!((o.len(), lse.len()), (want_o.len(), want_lse.len()));
            let limit = tolerance(&options);
            for (i, (&got, &want)) in o.iter().zip(&want_o).enumerate() {
                let (row, column) = (i / self.shape.d_v, i % self.shape.d_v);
                assert!(
                    close(got, want, limit * magnitudes[i] + 1e-35),
                    "O[{row}][{column}] = {got}, want {want} +- {:e}, {options:?}",
                    limit * magnitudes[i]
                );
            }
            for (row, (&got, &want)) in lse.iter().zip(&want_lse).enumerate() {
                // FP32 rounds lse itself, and the scores that it is made of.
                let limit = 4e-7 * want.abs().max(8.0);
                assert!(
                    close(got, want, limit),
                    "lse[{row}] = {got}, want {want}, {options:?}"
                );
            }
        }
    }
}

/// Rows of values, the keys' first columns unless given, each followed by its magnitudes. Golden of
/// both takes the scores of one.
pub fn with_magnitudes(
    keys: &[bf16],
    values: Option<&[bf16]>,
    (d_qk, d_v): (usize, usize),
) -> Vec<bf16> {
    let (rows, width) = values.map_or((keys, d_qk), |values| (values, d_v));
    let mut both = Vec::new();
    for row in rows.chunks(width).map(|row| &row[..d_v]) {
        both.extend_from_slice(row);
        both.extend(row.iter().map(|x| bf16::from_bits(x.to_bits() & 0x7fff)));
    }
    both
}

/// O of [`with_magnitudes`]: of the values, of their magnitudes.
pub fn halves(o: &[f64], d_v: usize) -> [Vec<f64>; 2] {
    let half = |i| {
        o.chunks(d_v)
            .skip(i)
            .step_by(2)
            .flatten()
            .copied()
            .collect()
    };
    [half(0), half(1)]
}

/// Bound on the error of an element of O, relative to the sum of its terms'
/// magnitudes.
pub fn tolerance(options: &Options) -> f64 {
    // A BF16 probability is off by 2^-8 of itself at most, and so is the sum that
    // normalises it; a pair by 2^-17, as its low half has a sign of its own.
    let rounding = match options.precision {
        Precision::Bf16 => 2.0 * 2_f64.powi(-8),
        Precision::Bf16x2 => 2.0 * 2_f64.powi(-17),
    };
    // The compensation, an integer addition, misses by half of a ratio that is at
    // most 2^-7 off one (`bits::compensation`); two in a row can add up.
    let compensation = match (options.rescale, options.precision) {
        (Rescale::Compensated, Precision::Bf16) => 2_f64.powi(-7),
        // With a pair there is nothing to compensate.
        _ => 0.0,
    };
    // FP32 sums, and scores of modest size.
    let fp32 = 1e-5;
    rounding + compensation + fp32
}

/// Finite and within `limit` of each other, or of the same class.
pub fn close(got: f32, want: f64, limit: f64) -> bool {
    same_class(got, want) && (!want.is_finite() || (f64::from(got) - want).abs() <= limit)
}

/// Both finite, both NaN, or the same infinity.
pub fn same_class(got: f32, want: f64) -> bool {
    if want.is_nan() {
        got.is_nan()
    } else if want.is_infinite() {
        f64::from(got) == want
    } else {
        got.is_finite()
    }
}

/// Results have one NaN: of an operation on two, which one it gives isn't defined.
pub fn assert_one_nan(results: &[f32]) {
    for x in results.iter().filter(|x| x.is_nan()) {
        assert_eq!(x.to_bits(), 0x7fc0_0000);
    }
}

/// Relative Frobenius error over the finite elements.
pub fn frobenius(got: &[f32], want: &[f64]) -> f64 {
    let (mut d2, mut w2) = (0.0, 0.0);
    for (&got, &want) in got.iter().zip(want).filter(|(_, w)| w.is_finite()) {
        d2 += (f64::from(got) - want).powi(2);
        w2 += want.powi(2);
    }
    if d2 == 0.0 { 0.0 } else { (d2 / w2).sqrt() }
}

/// A workspace that holds what the thread's last call left there.
pub fn used_workspace<T>(use_it: impl FnOnce(&mut Workspace) -> T) -> T {
    thread_local! {
        static USED: RefCell<Box<Workspace>> = RefCell::new(workspace());
    }
    USED.with(|used| use_it(&mut used.borrow_mut()))
}

pub fn workspace() -> Box<Workspace> {
    bytemuck::zeroed_box()
}

/// Runs tasks of a plan, all of them, in that order and one by one, and combines their results, some merges at a time, from the last on.
pub fn run_plan(
    problem: &Problem,
    options: &Options,
    plan: &Plan,
    order: impl Iterator<Item = usize>,
    output: Output,
) -> Result<(), Error> {
    let output = &SharedOutput::from(output);
    let mut partials = vec![f32::NAN; plan.partials_len()];
    used_workspace(|workspace| {
        for task in order {
            let own = task.min(plan.partial_tasks()) * plan.partial_len();
            let own = &mut partials[own..];
            run_tasks(
                problem,
                options,
                plan,
                task..task + 1,
                workspace,
                own,
                output,
            )?;
        }
        let mut end = plan.merges();
        for merges in [1, 9, 70, 200].into_iter().cycle() {
            let start = end.saturating_sub(merges);
            combine(problem, plan, start..end, &partials, output)?;
            end = start;
            if end == 0 {
                break;
            }
        }
        Ok(())
    })
}

/// Runs neighbouring tasks that write to outputs nobody looks at.
pub fn run_unseen(
    problem: &Problem,
    options: &Options,
    plan: &Plan,
    tasks: Range<usize>,
    workspace: &mut Workspace,
    partials: &mut [f32],
) -> Result<(), Error> {
    let ProblemShape {
        b, s_q, h_q, d_v, ..
    } = problem.shape;
    let [b, s_q] = match problem.q_indptr {
        Some(indptr) => [1, indptr.last().map_or(0, |&tokens| tokens.max(0) as usize)],
        None => [b, s_q],
    };
    // Shapes that are refused may be of any size.
    let rows = b.saturating_mul(s_q).saturating_mul(h_q);
    let rows = if rows < 1 << 16 { rows } else { 0 };
    let (mut o, mut lse) = (vec![0.0; rows * d_v.min(512)], vec![0.0; rows]);
    let shape = ProblemShape {
        b,
        s_q,
        ..problem.shape
    };
    let output = Output::dense(shape, Elements::F32(&mut o), &mut lse);
    let output = &SharedOutput::from(output);
    run_tasks(problem, options, plan, tasks, workspace, partials, output)
}
