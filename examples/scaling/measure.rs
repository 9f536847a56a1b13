//! Steps of a plan, timed one by one, and two threads, timed as they are.

use std::time::{Duration, Instant};

use amla::{
    Elements, Options, Output, ParallelFor, Plan, Problem, ProblemShape, Rayon, SharedOutput,
    Split, Workspace, combine, decode, decode_on, run_tasks,
};
use amla_examples::engine::{Engine, quantile};
use half::bf16;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::schedule::Steps;

/// Waking a thread takes this long at least.
const WAKE: f64 = 2e-6;

/// This machine's threads.
pub struct Pool {
    pool: ThreadPool,
    /// Seconds that waking them takes.
    pub wake: f64,
}

impl Pool {
    /// # Errors
    /// The system refuses the threads.
    pub fn new(threads: usize) -> Result<Self, String> {
        let pool = ThreadPoolBuilder::new().num_threads(threads).build();
        let pool = pool.map_err(|e| e.to_string())?;
        let mut times: Vec<_> = (0..200)
            .map(|_| {
                let start = Instant::now();
                pool.install(|| Rayon.parallel_for(threads, &|_| ()));
                start.elapsed().as_secs_f64()
            })
            .collect();
        let wake = quantile(&mut times, 0.5).max(WAKE);
        Ok(Self { pool, wake })
    }

    pub fn threads(&self) -> usize {
        self.pool.current_num_threads()
    }
}

/// A problem, and memory to compute it in.
pub struct Bench {
    shape: ProblemShape,
    options: Options,
    repetitions: usize,
    q: Vec<bf16>,
    kv: Vec<bf16>,
    workspace: Box<Workspace>,
    o: Vec<f32>,
    lse: Vec<f32>,
}

impl Bench {
    /// # Errors
    /// The shape has no plan.
    pub fn new(shape: ProblemShape, options: Options, repetitions: usize) -> Result<Self, String> {
        let normal = |seed, len| {
            let numbers = StandardNormal.sample_iter(ChaCha8Rng::seed_from_u64(seed));
            numbers.take(len).map(bf16::from_f32).collect::<Vec<_>>()
        };
        Ok(Self {
            shape,
            options,
            repetitions,
            q: normal(1, shape.h_q * shape.d_qk),
            kv: normal(2, shape.s_k * shape.d_qk),
            workspace: bytemuck::zeroed_box(),
            o: vec![0.0; shape.h_q * shape.d_v],
            lse: vec![0.0; shape.h_q],
        })
    }

    /// Seconds of a call on one thread, with the default split.
    ///
    /// # Errors
    /// The call is refused.
    pub fn at_once(&mut self) -> Result<f64, String> {
        let problem = Problem::dense(self.shape, &self.q, &self.kv, 1.0 / 24.0);
        let mut times = Vec::new();
        for _ in 0..2 * self.repetitions {
            let output = Output::dense(self.shape, Elements::F32(&mut self.o), &mut self.lse);
            let start = Instant::now();
            decode(&problem, &self.options, &mut self.workspace, output).map_err(text)?;
            times.push(start.elapsed().as_secs_f64());
        }
        Ok(quantile(&mut times, 0.5))
    }

    /// The steps of the plan for some threads, with the split that is proposed for them.
    ///
    /// # Errors
    /// A step is refused.
    pub fn steps(&mut self, workers: usize) -> Result<Steps, String> {
        let split = Split::for_threads(&self.shape, workers);
        let mut problem = Problem::dense(self.shape, &self.q, &self.kv, 1.0 / 24.0);
        problem.split = split;
        let plan = Plan::for_threads(&problem, workers).map_err(text)?;
        let output = Output::dense(self.shape, Elements::F32(&mut self.o), &mut self.lse);
        let output = &SharedOutput::from(output);
        let mut partials = vec![0.0; plan.partials_len()];
        let (options, workspace) = (&self.options, &mut self.workspace);
        let mut tasks = vec![Vec::new(); plan.tasks()];
        let rows = plan.combined_rows();
        // As a pool's threads take them.
        let each = rows.div_ceil(2 * workers).max(1);
        let start_of = |i: usize| rows.min(i * each);
        let mut merges = vec![Vec::new(); rows.div_ceil(each)];
        for _ in 0..self.repetitions {
            let mut run = |range: std::ops::Range<usize>| {
                let own = range.start.min(plan.partial_tasks()) * plan.partial_len();
                let own = &mut partials[own..];
                let start = Instant::now();
                run_tasks(&problem, options, &plan, range, workspace, own, output).map_err(text)?;
                Ok::<_, String>(start.elapsed().as_secs_f64())
            };
            for (task, times) in tasks.iter_mut().enumerate() {
                // A pool's threads check a call once, not with every task.
                let checks = run(task..task)?;
                times.push((run(task..task + 1)? - checks).max(0.0));
            }
            let merge = |rows| {
                let start = Instant::now();
                combine(&problem, &plan, rows, &partials, output).map_err(text)?;
                Ok::<_, String>(start.elapsed().as_secs_f64())
            };
            for (i, times) in merges.iter_mut().enumerate() {
                let checks = merge(0..0)?;
                times.push((merge(start_of(i)..start_of(i + 1))? - checks).max(0.0));
            }
        }
        let medians = |times: Vec<Vec<f64>>| {
            let medians = times.into_iter().map(|mut times| quantile(&mut times, 0.5));
            medians.collect::<Vec<_>>()
        };
        // Every panel's tasks read all keys; partial results are written and read.
        let panels = self.shape.h_q.div_ceil(amla::tile::PANEL_ROWS);
        let keys = panels * self.shape.s_k * self.shape.d_qk * size_of::<bf16>();
        let moved = 2 * plan.partials_len() * size_of::<f32>();
        Ok(Steps {
            every: match split {
                Split::ByLength => None,
                Split::Every(keys) => Some(keys),
            },
            tasks: medians(tasks),
            combine: medians(merges),
            bytes: (keys + moved) as f64,
        })
    }

    /// What the pool's threads gain, beside what they gain in a loop that multiplies in registers.
    ///
    /// # Errors
    /// A call is refused.
    pub fn measured(&mut self, pool: &Pool) -> Result<String, String> {
        let threads = pool.threads();
        let mut problem = Problem::dense(self.shape, &self.q, &self.kv, 1.0 / 24.0);
        let default = problem;
        problem.split = Split::for_threads(&self.shape, threads);
        let plan = Plan::for_threads(&problem, threads).map_err(text)?;
        let mut partials = vec![0.0; plan.partials_len()];
        let mut workspaces: Vec<Box<Workspace>> =
            (0..threads).map(|_| bytemuck::zeroed_box()).collect();
        let [one, all] = [1, threads].map(|threads| Engine::new(self.options, threads));
        let [one, all] = [
            one.map_err(|e| e.to_string())?,
            all.map_err(|e| e.to_string())?,
        ];
        let (mut gains, mut peaks, mut times) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..4 * self.repetitions {
            let beside = Duration::from_millis(2);
            peaks.push(all.peak_gflops(beside) / one.peak_gflops(beside));
            let output = Output::dense(self.shape, Elements::F32(&mut self.o), &mut self.lse);
            let start = Instant::now();
            decode(&default, &self.options, &mut self.workspace, output).map_err(text)?;
            let alone = start.elapsed().as_secs_f64();
            // As layers follow one another: the threads are awake.
            let many = pool.pool.install(|| {
                let mut last = 0.0;
                for _ in 0..3 {
                    let output =
                        Output::dense(self.shape, Elements::F32(&mut self.o), &mut self.lse);
                    let start = Instant::now();
                    decode_on(
                        &Rayon,
                        &problem,
                        &self.options,
                        &plan,
                        &mut workspaces,
                        &mut partials,
                        output,
                    )
                    .map_err(text)?;
                    last = start.elapsed().as_secs_f64();
                }
                Ok::<_, String>(last)
            })?;
            gains.push(alone / many);
            times.push(many);
        }
        Ok(format!(
            "   measured {:.1} us, speed-up {:.2}; of a loop in registers {:.2}",
            quantile(&mut times, 0.5) * 1e6,
            quantile(&mut gains, 0.5),
            quantile(&mut peaks, 0.5),
        ))
    }
}

fn text(error: amla::Error) -> String {
    error.to_string()
}
