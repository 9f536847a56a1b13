//! The twelve distributions, the paper's figures under them, and samples.

use std::ops::Range;

use amla::{Data, Problem, ProblemShape, TensorRef};
use half::{bf16, f16};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rand_distr::{Distribution as _, StandardNormal, Uniform};

/// Width of a query and of a cached row.
pub const D_QK: usize = 576;
/// Width of a value: the first columns of the cached row.
pub const D_V: usize = 512;

/// What the elements of Q and K are drawn from, before rounding to BF16.
#[derive(Clone, Copy, Debug)]
enum Law {
    /// Mean 0; the paper writes the variance.
    Normal { variance: f32 },
    /// Between `-limit` and `limit`.
    Uniform { limit: f32 },
}

/// A column of the paper's tables.
#[derive(Clone, Copy, Debug)]
pub struct Distribution {
    /// As the paper writes it.
    pub name: &'static str,
    law: Law,
    /// The paper's figure for Base.
    pub paper_base: f64,
    /// The paper's figure for AMLA.
    pub paper_amla: f64,
    /// The largest valid relative difference of our Base from the paper's.
    pub base_tolerance: Option<f64>,
}

impl Distribution {
    /// Whether it belongs in the paper's table of normal distributions.
    pub fn is_normal(&self) -> bool {
        matches!(self.law, Law::Normal { .. })
    }

    const fn normal(
        name: &'static str,
        variance: f32,
        paper_base: f64,
        paper_amla: f64,
        base_tolerance: Option<f64>,
    ) -> Self {
        Self {
            name,
            law: Law::Normal { variance },
            paper_base,
            paper_amla,
            base_tolerance,
        }
    }

    const fn uniform(
        name: &'static str,
        limit: f32,
        paper_base: f64,
        paper_amla: f64,
        base_tolerance: Option<f64>,
    ) -> Self {
        Self {
            name,
            law: Law::Uniform { limit },
            paper_base,
            paper_amla,
            base_tolerance,
        }
    }
}

/// The columns of the paper's tables, in its order.
pub static DISTRIBUTIONS: [Distribution; 12] = [
    Distribution::normal("N(0,1)", 1.0, 1.77e-3, 1.81e-3, Some(0.03)),
    Distribution::normal("N(0,4)", 4.0, 1.74e-3, 1.75e-3, Some(0.03)),
    Distribution::normal("N(0,9)", 9.0, 1.65e-3, 1.66e-3, Some(0.03)),
    Distribution::normal("N(0,16)", 16.0, 1.51e-3, 1.51e-3, Some(0.03)),
    Distribution::normal("N(0,25)", 25.0, 1.33e-3, 1.35e-3, Some(0.03)),
    Distribution::normal("N(0,100)", 100.0, 7.82e-4, 7.86e-4, Some(0.10)),
    Distribution::uniform("U(-1,1)", 1.0, 1.97e-3, 2.01e-3, Some(0.03)),
    Distribution::uniform("U(-3,3)", 3.0, 1.77e-3, 1.78e-3, Some(0.03)),
    Distribution::uniform("U(-5,5)", 5.0, 1.69e-3, 1.69e-3, Some(0.03)),
    Distribution::uniform("U(-10,10)", 10.0, 1.24e-3, 1.24e-3, Some(0.03)),
    Distribution::uniform("U(-20,20)", 20.0, 7.04e-4, 7.04e-4, Some(0.10)),
    Distribution::uniform("U(-60,60)", 60.0, 2.26e-4, 2.26e-4, None),
];

/// One random problem: a request with one query position.
pub struct Sample {
    rows: usize,
    context: usize,
    q: Vec<bf16>,
    kv: Vec<bf16>,
    /// The same before they were rounded.
    unrounded: [Vec<f32>; 2],
}

impl Sample {
    /// Sample `index` of `distribution`. Its random stream is its own, so it doesn't depend on other
    /// samples, nor on the thread. Its cache doesn't depend on the number of rows.
    pub fn draw(
        distribution: &Distribution,
        index: u32,
        seed: u64,
        rows: usize,
        context: usize,
    ) -> Self {
        let column = DISTRIBUTIONS
            .iter()
            .take_while(|other| other.name != distribution.name)
            .count() as u64;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(column << 32 | u64::from(index));
        let kv = elements(distribution.law, &mut rng, context * D_QK);
        let q = elements(distribution.law, &mut rng, rows * D_QK);
        let round = |x: &[f32]| x.iter().copied().map(bf16::from_f32).collect();
        Self {
            rows,
            context,
            q: round(&q),
            kv: round(&kv),
            unrounded: [q, kv],
        }
    }

    /// The problem.
    pub fn problem(&self) -> Problem<'_> {
        self.slice(0..self.rows)
    }

    /// The part of the problem that some of the query heads make.
    pub fn slice(&self, heads: Range<usize>) -> Problem<'_> {
        let q = &self.q[heads.start * D_QK..heads.end * D_QK];
        Problem::dense(self.shape(heads.len()), q, &self.kv, scale())
    }

    /// The same numbers in another format.
    pub fn stored(&self, dtype: Dtype) -> Stored<'_> {
        let halves = |x: &[f32]| x.iter().copied().map(f16::from_f32).collect();
        Stored {
            sample: self,
            halves: match dtype {
                Dtype::F16 => Some([0, 1].map(|i| halves(&self.unrounded[i]))),
                Dtype::F32 => None,
            },
        }
    }

    fn shape(&self, h_q: usize) -> ProblemShape {
        ProblemShape {
            b: 1,
            s_q: 1,
            s_k: self.context,
            h_q,
            h_kv: 1,
            d_qk: D_QK,
            d_v: D_V,
        }
    }
}

/// The factor on the scores.
pub fn scale() -> f32 {
    1.0 / (D_QK as f32).sqrt()
}

/// A format of more bits than BF16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// FP16.
    F16,
    /// FP32.
    F32,
}

impl Dtype {
    /// Both.
    pub const ALL: [Self; 2] = [Self::F16, Self::F32];

    /// Its name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::F32 => "f32",
        }
    }

    /// Its name in tables.
    pub const fn title(self) -> &'static str {
        match self {
            Self::F16 => "FP16",
            Self::F32 => "FP32",
        }
    }
}

/// A sample in such a format.
pub struct Stored<'a> {
    sample: &'a Sample,
    halves: Option<[Vec<f16>; 2]>,
}

impl Stored<'_> {
    /// The problem.
    pub fn problem(&self) -> Problem<'_> {
        self.slice(0..self.sample.rows)
    }

    /// The part of the problem that some of the query heads make.
    pub fn slice(&self, heads: Range<usize>) -> Problem<'_> {
        let plain = Problem::dense(self.sample.shape(heads.len()), &[], &[], scale());
        let columns = heads.start * D_QK..heads.end * D_QK;
        let [q, kv] = match &self.halves {
            Some([q, kv]) => [Data::F16(&q[columns]), Data::F16(kv)],
            None => {
                let [q, kv] = &self.sample.unrounded;
                [Data::F32(&q[columns]), Data::F32(kv)]
            }
        };
        Problem {
            q: TensorRef { data: q, ..plain.q },
            kv: TensorRef {
                data: kv,
                ..plain.kv
            },
            ..plain
        }
    }

    /// Queries and keys in FP32.
    pub fn numbers(&self) -> [Vec<f32>; 2] {
        match &self.halves {
            Some(halves) => [0, 1].map(|i| halves[i].iter().map(|x| x.to_f32()).collect()),
            None => self.sample.unrounded.clone(),
        }
    }
}

fn elements(law: Law, rng: &mut ChaCha8Rng, count: usize) -> Vec<f32> {
    let draw = (0..count).map(|_| match law {
        Law::Normal { variance } => {
            let unit: f32 = StandardNormal.sample(rng);
            variance.sqrt() * unit
        }
        Law::Uniform { limit } => {
            let unit = Uniform::new(-1.0, 1.0).expect("a fixed range");
            limit * unit.sample(rng)
        }
    });
    draw.collect()
}
