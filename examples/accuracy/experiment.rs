//! Which computations are compared, and their errors over all samples.

use std::ops::Range;

use amla::reference::{self, Blocks};
use amla::{
    Backend, BackendId, Elements, Error, Options, Output, Precision, Problem, Rescale, Workspace,
};
use amla_examples::cli::precision_name;
use amla_examples::metrics;
use amla_examples::progress::Progress;
use half::bf16;
use rayon::ThreadPoolBuilder;
use rayon::prelude::*;

use crate::cli::Cli;
use crate::inputs::{D_QK, D_V, DISTRIBUTIONS, Distribution, Dtype, Sample, scale};
use crate::plain;

/// Query heads that one task of a scalar reference computes.
const SLICE: usize = 16;

/// How attention is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Flash attention, the paper's Algorithm 1.
    Base,
    /// The paper's Algorithm 2 to the letter.
    AsPrinted,
    /// Algorithm 2 with the corrected compensation.
    Compensated,
    /// Integer reference exponents.
    Exact,
}

impl Method {
    /// Its name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::AsPrinted => "as_printed",
            Self::Compensated => "compensated",
            Self::Exact => "exact",
        }
    }

    /// Its name in tables.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Base => "Base",
            Self::AsPrinted => "AMLA as printed",
            Self::Compensated => "compensated",
            Self::Exact => "exact",
        }
    }
}

/// The code that computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// Scalar code beside the paper.
    Reference,
    /// The library's kernel, on the backend of the experiment.
    Kernel,
}

/// The format of the output, as an index into a [`Scores`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Rounded to BF16.
    Bf16,
    /// Unrounded.
    F32,
}

impl Format {
    /// Both, the paper's first.
    pub const ALL: [Self; 2] = [Self::Bf16, Self::F32];

    /// Its name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
        }
    }

    /// Its name in tables.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Bf16 => "BF16",
            Self::F32 => "FP32",
        }
    }
}

/// One of the compared computations: a row of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub method: Method,
    pub engine: Engine,
    pub precision: Precision,
}

/// The rows of the tables, in order.
pub const RUNS: [Run; 9] = {
    use Engine::{Kernel, Reference};
    use Method::{AsPrinted, Base, Compensated, Exact};
    use Precision::{Bf16, Bf16x2};
    [
        Run::new(Base, Reference, Bf16),
        Run::new(AsPrinted, Reference, Bf16),
        Run::new(Compensated, Reference, Bf16),
        Run::new(Compensated, Kernel, Bf16),
        Run::new(Compensated, Kernel, Bf16x2),
        Run::new(Exact, Reference, Bf16),
        Run::new(Exact, Kernel, Bf16),
        Run::new(Exact, Reference, Bf16x2),
        Run::new(Exact, Kernel, Bf16x2),
    ]
};

impl Run {
    pub const fn new(method: Method, engine: Engine, precision: Precision) -> Self {
        Self {
            method,
            engine,
            precision,
        }
    }

    /// The name of its precision in JSON.
    pub const fn precision_name(&self) -> &'static str {
        precision_name(self.precision)
    }
}

/// An error against Golden.
#[derive(Clone, Copy, Debug, Default)]
pub struct Score {
    /// Relative Frobenius error, the mean over samples.
    pub error: f64,
    /// Standard error of that mean; 0 where there is one sample only.
    pub deviation: f64,
    /// The largest absolute error of any element.
    pub worst: f64,
}

impl Score {
    fn of(got: &[f32], golden: &[f64]) -> Self {
        Self {
            error: metrics::relative_frobenius(got, golden),
            deviation: 0.0,
            worst: metrics::worst(got, golden),
        }
    }

    /// The standard error as a part of the error.
    pub fn standard_error(&self) -> f64 {
        self.deviation / self.error
    }

    fn mean(scores: impl ExactSizeIterator<Item = Self> + Clone) -> Self {
        let count = scores.len() as f64;
        let error = scores.clone().map(|score| score.error).sum::<f64>() / count;
        let squares: f64 = scores.clone().map(|s| (s.error - error).powi(2)).sum();
        Self {
            error,
            deviation: (squares / (count - 1.0).max(1.0) / count).sqrt(),
            worst: scores.map(|score| score.worst).fold(0.0, f64::max),
        }
    }
}

/// The errors under one distribution.
pub struct Column {
    pub distribution: &'static Distribution,
    measured: Measured,
}

impl Column {
    /// The score of a run, which must be one of [`RUNS`].
    pub fn score(&self, run: &Run, format: Format) -> Score {
        let index = RUNS.iter().position(|other| other == run);
        self.measured.scores[index.expect("a run of the experiment")][format as usize]
    }

    /// The score of unrounded inputs, in FP32.
    pub fn unrounded(&self, dtype: Dtype, engine: Engine) -> Score {
        self.measured.unrounded[dtype as usize][engine as usize]
    }

    /// The error of Golden itself once rounded to BF16, a lower bound on all others.
    pub fn rounding(&self) -> Score {
        self.measured.rounding
    }
}

/// The scores of one sample, or their means over many.
struct Measured {
    /// Of each of the [`RUNS`], in each [`Format`].
    scores: [[Score; 2]; RUNS.len()],
    /// Of Golden rounded to BF16.
    rounding: Score,
    /// Of inputs in each [`Dtype`]: plain FP32, and the kernel in its default mode, with FP32 output.
    unrounded: [[Score; 2]; 2],
}

impl Measured {
    fn mean(samples: &[Self]) -> Self {
        Self {
            scores: std::array::from_fn(|run| {
                std::array::from_fn(|format| {
                    Score::mean(samples.iter().map(|sample| sample.scores[run][format]))
                })
            }),
            rounding: Score::mean(samples.iter().map(|sample| sample.rounding)),
            unrounded: std::array::from_fn(|dtype| {
                std::array::from_fn(|engine| {
                    Score::mean(samples.iter().map(|s| s.unrounded[dtype][engine]))
                })
            }),
        }
    }
}

/// The conditions of a measurement.
pub struct Experiment {
    pub samples: usize,
    pub rows: usize,
    pub context: usize,
    pub block_n: usize,
    pub seed: u64,
    pub distributions: Vec<&'static Distribution>,
    pub backend: Backend,
}

impl Experiment {
    pub fn new(cli: &Cli, backend: Backend) -> Self {
        let chosen = |distribution: &&Distribution| {
            cli.distribution.is_empty()
                || cli.distribution.iter().any(|d| d.name == distribution.name)
        };
        Self {
            samples: cli.samples,
            rows: cli.rows,
            context: cli.context,
            block_n: cli.block_n,
            seed: cli.seed,
            distributions: DISTRIBUTIONS.iter().filter(chosen).collect(),
            backend,
        }
    }

    /// The engine's name, as JSON and tables give it.
    pub fn engine_name(&self, engine: Engine) -> &'static str {
        match engine {
            Engine::Reference => "reference",
            Engine::Kernel => self.backend.id().name(),
        }
    }

    /// Measures all distributions on `threads` threads. The result doesn't depend on their number.
    pub fn run(&self, threads: usize) -> Result<Vec<Column>, String> {
        let pool = ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .map_err(|error| error.to_string())?;
        let tasks: Vec<_> = self
            .distributions
            .iter()
            .flat_map(|&distribution| (0..self.samples).map(move |index| (distribution, index)))
            .collect();
        let steps = tasks.len() * (RUNS.len() + Dtype::ALL.len());
        let progress = Progress::new("accuracy", steps);

        let measured: Vec<Measured> = pool
            .install(|| {
                tasks
                    .into_par_iter()
                    .with_max_len(1)
                    .map(|(distribution, index)| self.measure(distribution, index, &progress))
                    .collect::<Result<_, Error>>()
            })
            .map_err(|error| error.to_string())?;

        let columns = self.distributions.iter().zip(measured.chunks(self.samples));
        Ok(columns
            .map(|(&distribution, samples)| Column {
                distribution,
                measured: Measured::mean(samples),
            })
            .collect())
    }

    /// Measures one sample.
    fn measure(
        &self,
        distribution: &Distribution,
        index: usize,
        progress: &Progress,
    ) -> Result<Measured, Error> {
        let index = u32::try_from(index).expect("at most a million samples");
        let sample = Sample::draw(distribution, index, self.seed, self.rows, self.context);
        let golden = self.by_slices(|heads| sample.slice(heads), reference::golden)?;
        let score = |o: &[f32]| Score::of(o, &golden);

        let mut scores = [[Score::default(); 2]; RUNS.len()];
        scores
            .par_iter_mut()
            .zip(RUNS)
            .try_for_each(|([bf16, f32], run)| {
                match run.engine {
                    // Its output is FP32; BF16 is rounded from it.
                    Engine::Reference => {
                        let o = self.reference(&run, &sample)?;
                        *bf16 = score(&rounded(&o));
                        *f32 = score(&o);
                    }
                    Engine::Kernel => {
                        let problem = sample.problem();
                        *bf16 = score(&self.kernel(&run, &problem, Format::Bf16)?);
                        *f32 = score(&self.kernel(&run, &problem, Format::F32)?);
                    }
                }
                progress.step();
                Ok(())
            })?;
        let rounding: Vec<_> = golden.iter().map(|&o| bf16::from_f64(o).to_f32()).collect();
        let mut unrounded = [[Score::default(); 2]; 2];
        for dtype in Dtype::ALL {
            unrounded[dtype as usize] = self.measure_unrounded(&sample, dtype)?;
            progress.step();
        }
        Ok(Measured {
            scores,
            rounding: score(&rounding),
            unrounded,
        })
    }

    /// Measures one sample in a format of more bits, against Golden of that.
    fn measure_unrounded(&self, sample: &Sample, dtype: Dtype) -> Result<[Score; 2], Error> {
        let stored = sample.stored(dtype);
        let golden = self.by_slices(|heads| stored.slice(heads), reference::golden)?;
        let [q, kv] = stored.numbers();
        let mut o = vec![0.0; self.rows * D_V];
        o.par_chunks_mut(D_V)
            .zip(q.par_chunks(D_QK))
            .for_each(|(o, q)| plain::attend(q, &kv, scale(), o));
        let plain = Score::of(&o, &golden);
        let exact = Run::new(Method::Exact, Engine::Kernel, Precision::Bf16);
        let o = self.kernel(&exact, &stored.problem(), Format::F32)?;
        Ok([plain, Score::of(&o, &golden)])
    }

    /// A reference's output.
    fn reference(&self, run: &Run, sample: &Sample) -> Result<Vec<f32>, Error> {
        let unsplit = Blocks::from(self.block_n);
        // References for the kernel have the kernel's KV splits.
        let blocks = if unsplit.keys == Blocks::KERNEL.keys {
            Blocks::KERNEL
        } else {
            unsplit
        };
        let slice = |heads| sample.slice(heads);
        self.by_slices(slice, |problem, o, lse| match run.method {
            Method::Base => reference::base(problem, unsplit, o, lse),
            Method::AsPrinted => reference::amla_as_printed(problem, unsplit, o, lse),
            Method::Compensated => reference::amla_compensated(problem, blocks, o, lse),
            // AMX's tiles accumulate in O.
            Method::Exact
                if run.precision == Precision::Bf16 && self.backend.id() == BackendId::Amx =>
            {
                reference::amla_exact_split_max(problem, blocks, o, lse)
            }
            Method::Exact => reference::amla_exact(problem, blocks, run.precision, o, lse),
        })
    }

    /// The output of `compute`, in parallel over slices of the heads.
    fn by_slices<'a, T: Copy + Default + Send>(
        &self,
        slice: impl Fn(Range<usize>) -> Problem<'a> + Sync,
        compute: impl Fn(&Problem<'_>, &mut [T], &mut [T]) -> Result<(), Error> + Sync,
    ) -> Result<Vec<T>, Error> {
        let mut o = vec![T::default(); self.rows * D_V];
        o.par_chunks_mut(SLICE * D_V)
            .enumerate()
            .try_for_each(|(i, o)| {
                let first = i * SLICE;
                let heads = first..first + o.len() / D_V;
                let mut lse = vec![T::default(); heads.len()];
                compute(&slice(heads), o, &mut lse)
            })?;
        Ok(o)
    }

    /// The kernel's output, converted to FP32 if the format is BF16.
    fn kernel(&self, run: &Run, problem: &Problem<'_>, format: Format) -> Result<Vec<f32>, Error> {
        let options = Options {
            backend: self.backend,
            rescale: match run.method {
                Method::Compensated => Rescale::Compensated,
                _ => Rescale::Exact,
            },
            precision: run.precision,
            ..Options::default()
        };
        let mut workspace = bytemuck::zeroed_box::<Workspace>();
        let mut lse = vec![0.0; self.rows];
        let mut decode = |o: Elements<'_>| {
            let output = Output::dense(problem.shape, o, &mut lse);
            amla::decode(problem, &options, &mut workspace, output)
        };
        match format {
            Format::Bf16 => {
                let mut o = vec![bf16::ZERO; self.rows * D_V];
                decode(Elements::Bf16(&mut o))?;
                Ok(o.into_iter().map(f32::from).collect())
            }
            Format::F32 => {
                let mut o = vec![0.0; self.rows * D_V];
                decode(Elements::F32(&mut o))?;
                Ok(o)
            }
        }
    }
}

fn rounded(o: &[f32]) -> Vec<f32> {
    o.iter().map(|&o| bf16::from_f32(o).to_f32()).collect()
}
