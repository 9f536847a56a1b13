//! Runs problems on a pool of threads and measures them against the processor's peak.

use std::hint::black_box;
use std::slice;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use amla::{
    Elements, Error, Options, Output, Plan, Problem, ProblemShape, Rayon, Workspace, decode_on,
};
use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};

/// Iterations of the dot loop between two looks at the clock: tens of microseconds.
const DOTS: u64 = 4096;

/// Threads, a workspace for each, and the memory for partial results.
pub struct Engine {
    /// Backend and modes of the next run.
    pub options: Options,
    /// None if the calling thread computes alone.
    pool: Option<Arc<ThreadPool>>,
    workspaces: Vec<Box<Workspace>>,
    partials: Vec<f32>,
}

/// A speed; each figure is a median over repetitions.
#[derive(Clone, Copy, Debug)]
pub struct Measurement {
    /// Time of one run.
    pub seconds: f64,
    /// Speed of the kernel, the sum over all threads.
    pub gflops: f64,
    /// Speed of the backend's own multiply-add in registers, the sum over all threads.
    pub peak_gflops: f64,
    /// Kernel over peak, each repetition against the peaks beside it.
    pub utilization: f64,
    /// First and third quartile of the repetitions that `utilization` is the median of.
    pub quartiles: [f64; 2],
}

impl Engine {
    /// An engine of `threads` threads.
    ///
    /// # Errors
    /// The system refuses the threads.
    pub fn new(options: Options, threads: usize) -> Result<Self, ThreadPoolBuildError> {
        let pool = (threads > 1)
            .then(|| ThreadPoolBuilder::new().num_threads(threads).build())
            .transpose()?;
        Ok(Self {
            options,
            pool: pool.map(Arc::new),
            workspaces: (0..threads.max(1))
                .map(|_| bytemuck::zeroed_box())
                .collect(),
            partials: Vec::new(),
        })
    }

    /// The number of threads.
    pub fn threads(&self) -> usize {
        self.workspaces.len()
    }

    /// Computes `problem`; the result does not depend on the number of threads.
    ///
    /// # Errors
    /// The problem or the output is malformed.
    pub fn run(&mut self, problem: &Problem, output: Output) -> Result<(), Error> {
        let options = &self.options;
        let Some(pool) = &self.pool else {
            return amla::decode(problem, options, &mut self.workspaces[0], output);
        };
        let plan = Plan::for_threads(problem, self.workspaces.len())?;
        let len = plan.partials_len();
        if self.partials.len() < len {
            self.partials.resize(len, 0.0);
        }
        let (workspaces, partials) = (&mut self.workspaces, &mut self.partials);
        pool.install(|| {
            decode_on(
                &Rayon, problem, options, &plan, workspaces, partials, output,
            )
        })
    }

    /// Runs `problem`, of `flop` floating-point operations, for about `budget` and at least once.
    /// Peak and kernel run in turn, so that noise on a shared machine hits both.
    ///
    /// # Errors
    /// The problem is malformed.
    pub fn measure(
        &mut self,
        problem: &Problem,
        flop: f64,
        budget: Duration,
    ) -> Result<Measurement, Error> {
        self.measure_in_turn(slice::from_ref(problem), flop, budget)
    }

    /// The same for several problems of one shape; each run takes the next of them. If they exceed
    /// the processor's caches, keys come from memory.
    ///
    /// # Errors
    /// A problem is malformed.
    pub fn measure_in_turn(
        &mut self,
        problems: &[Problem],
        flop: f64,
        budget: Duration,
    ) -> Result<Measurement, Error> {
        let shape = output_shape(&problems[0]);
        let rows = shape.b * shape.s_q * shape.h_q;
        let mut o = vec![0.0; rows * shape.d_v];
        let mut lse = vec![0.0; rows];
        let mut turns = problems.iter().cycle();
        // Within the pool, as a model's layers are computed one after the other.
        let pool = self.pool.clone();
        let mut kernel = |engine: &mut Self, runs: u32| {
            let mut sample = || {
                let start = Instant::now();
                for problem in turns.by_ref().take(runs as usize) {
                    let output = Output::dense(shape, Elements::F32(&mut o), &mut lse);
                    engine.run(problem, output)?;
                }
                Ok(start.elapsed().as_secs_f64() / f64::from(runs))
            };
            match &pool {
                Some(pool) => pool.install(sample),
                None => sample(),
            }
        };

        // The first run is slower: it touches new memory. A sample lasts long enough for the clock.
        // The two peaks beside it last about as long, so that preemption hits both equally often.
        kernel(self, 1)?;
        let once = kernel(self, 1)?;
        let runs = (4e-3 / once).ceil().clamp(1.0, 1000.0) as u32;
        let beside = Duration::from_secs_f64((f64::from(runs) * once / 2.0).clamp(2e-3, 0.1));

        let gflop = flop * 1e-9;
        let (mut seconds, mut peaks, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        let start = Instant::now();
        let mut before = self.peak_gflops(beside);
        loop {
            let time = kernel(self, runs)?;
            let after = self.peak_gflops(beside);
            let peak = (before + after) / 2.0;
            seconds.push(time);
            peaks.push(peak);
            ratios.push(gflop / time / peak);
            before = after;
            if start.elapsed() >= budget {
                break;
            }
        }
        let seconds = quantile(&mut seconds, 0.5);
        Ok(Measurement {
            seconds,
            gflops: gflop / seconds,
            peak_gflops: quantile(&mut peaks, 0.5),
            utilization: quantile(&mut ratios, 0.5),
            quartiles: [0.25, 0.75].map(|q| quantile(&mut ratios, q)),
        })
    }

    /// GFLOP/s of the backend's multiply-add on registers, on all threads
    /// at once for about `duration`.
    pub fn peak_gflops(&self, duration: Duration) -> f64 {
        let ready = Barrier::new(self.threads());
        let work = || {
            // Each thread has its own clock: waking up and waiting for other threads don't count.
            ready.wait();
            let start = Instant::now();
            let mut flop = 0;
            while start.elapsed() < duration {
                flop += self.options.backend.dot_loop(black_box(DOTS));
            }
            flop as f64 * 1e-9 / start.elapsed().as_secs_f64()
        };
        match &self.pool {
            Some(pool) => pool.broadcast(|_| work()).into_iter().sum(),
            None => work(),
        }
    }
}

/// The shape of a problem's dense outputs: one request of all tokens if queries are ragged.
pub fn output_shape(problem: &Problem) -> ProblemShape {
    let Some(indptr) = problem.q_indptr else {
        return problem.shape;
    };
    let tokens = indptr
        .last()
        .map_or(0, |&end| usize::try_from(end).unwrap_or_default());
    ProblemShape {
        b: 1,
        s_q: tokens,
        ..problem.shape
    }
}

/// The quantile `q` of the values, interpolated linearly.
pub fn quantile(values: &mut [f64], q: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let position = q * (values.len() - 1) as f64;
    let [low, high] = [position.floor(), position.ceil()].map(|index| values[index as usize]);
    low + (high - low) * position.fract()
}
