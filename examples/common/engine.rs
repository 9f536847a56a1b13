//! Runs problems on a pool of threads and measures them against the processor's peak.

use std::hint::black_box;
use std::slice;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use amla::{Elements, Error, Options, Output, Plan, Problem, Shape, Workspace, decode_on_rayon};
use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};

/// Iterations of the dot loop between two looks at the clock: tens of microseconds.
const DOTS: u64 = 4096;

/// Threads, a workspace for each, and the memory for partial results.
pub struct Engine {
    /// What the next run uses.
    pub options: Options,
    /// Absent when the caller's thread does everything.
    pool: Option<Arc<ThreadPool>>,
    workspaces: Vec<Box<Workspace>>,
    partials: Vec<f32>,
}

/// What `Engine::measure` found; medians over its repetitions.
#[derive(Clone, Copy, Debug)]
pub struct Measurement {
    /// Time of one run.
    pub seconds: f64,
    /// Speed of the kernel, all threads together.
    pub gflops: f64,
    /// Speed of the backend's own multiply-add in registers, all threads together.
    pub peak_gflops: f64,
    /// Kernel over peak, each repetition against the peaks beside it.
    pub utilization: f64,
    /// First and third quartile of the repetitions that `utilization` is the median of.
    #[allow(dead_code, reason = "not every example shows the spread")]
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

    /// How many threads work.
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
        let plan = Plan::new(problem)?;
        let len = plan.tasks() * plan.partial_len();
        if self.partials.len() < len {
            self.partials.resize(len, 0.0);
        }
        let (workspaces, partials) = (&mut self.workspaces, &mut self.partials);
        pool.install(|| decode_on_rayon(problem, options, &plan, workspaces, partials, output))
    }

    /// Runs `problem`, of `flop` floating-point operations, for about `budget`, at least
    /// once, peak and kernel in turn, so that a neighbour's noise on a shared machine
    /// hits both.
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

    /// The same for several problems of one shape, each run with the next of them:
    /// where they exceed the processor's caches together, each comes from memory.
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
        // From within the pool, as layers are computed one after the other.
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

        // The first run is slower: it touches new memory. A sample lasts long enough
        // for the clock, and the two peaks beside it together as long as it does, within
        // reason: so that who preempts us hits either as often.
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
    fn peak_gflops(&self, duration: Duration) -> f64 {
        let ready = Barrier::new(self.threads());
        let work = || {
            // By its own time: waking up isn't part of it, and a thread doesn't wait for the others' last dots.
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

/// The shape of a problem's dense outputs: where queries are ragged, one request of all
/// their tokens.
pub fn output_shape(problem: &Problem) -> Shape {
    let Some(indptr) = problem.q_indptr else {
        return problem.shape;
    };
    let tokens = indptr
        .last()
        .map_or(0, |&end| usize::try_from(end).unwrap_or_default());
    Shape {
        b: 1,
        s_q: tokens,
        ..problem.shape
    }
}

/// The value that a fraction `q` of them lies below, between its neighbours if need be.
pub fn quantile(values: &mut [f64], q: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let place = q * (values.len() - 1) as f64;
    let [low, high] = [place.floor(), place.ceil()].map(|place| values[place as usize]);
    low + (high - low) * place.fract()
}
