//! Steps of a plan, timed one by one, and two threads, timed as they are.

use std::hint;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
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
/// Threads are at work for this long before they are timed.
const AWAKE: Duration = Duration::from_millis(10);
/// Runs that are timed then.
const RUNS: usize = 9;

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
        let mut times = pool.install(|| (0..1000).map(|_| woken(threads)).collect::<Vec<_>>());
        let wake = quantile(&mut times, 0.5).max(WAKE);
        Ok(Self { pool, wake })
    }

    pub fn threads(&self) -> usize {
        self.pool.current_num_threads()
    }
}

/// Seconds until all threads of the current pool are at work, as layers follow one another.
fn woken(threads: usize) -> f64 {
    let start = Instant::now();
    let (begun, last) = (AtomicUsize::new(0), AtomicU64::new(0));
    Rayon.parallel_for(threads, &|_| {
        last.fetch_max(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        begun.fetch_add(1, Ordering::Relaxed);
        // One thread may not take two of them.
        while begun.load(Ordering::Relaxed) < threads {
            hint::spin_loop();
        }
    });
    last.into_inner() as f64 * 1e-9
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

    /// The steps of the plan for some threads, with the split that is proposed for them.
    ///
    /// # Errors
    /// A step is refused.
    pub fn steps(&mut self, workers: usize) -> Result<Steps, String> {
        let split = Split::for_threads(&self.shape, workers);
        let default = Problem::dense(self.shape, &self.q, &self.kv, 1.0 / 24.0);
        let problem = Problem { split, ..default };
        let plan = Plan::for_threads(&problem, workers).map_err(text)?;
        let mut partials = vec![0.0; plan.partials_len()];
        let mut tasks = vec![Vec::new(); plan.tasks()];
        let count = plan.merges();
        // As a pool's threads take them: no more than there are tasks.
        let each = count.div_ceil(workers.min(plan.tasks())).max(1);
        let start_of = |i: usize| count.min(i * each);
        let mut merges = vec![Vec::new(); count.div_ceil(each)];
        let (mut alone, mut split_alone) = (Vec::new(), Vec::new());
        let (options, workspace) = (&self.options, &mut self.workspace);
        // Once more, as all memory is touched for the first time then.
        for repetition in 0..=self.repetitions {
            for (problem, times) in [(&default, &mut alone), (&problem, &mut split_alone)] {
                let output = Output::dense(self.shape, Elements::F32(&mut self.o), &mut self.lse);
                let start = Instant::now();
                decode(problem, options, workspace, output).map_err(text)?;
                times.push(start.elapsed().as_secs_f64());
            }
            let output = Output::dense(self.shape, Elements::F32(&mut self.o), &mut self.lse);
            let output = &SharedOutput::from(output);
            let mut run = |range: Range<usize>| {
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
            let merge = |merges| {
                let start = Instant::now();
                combine(&problem, &plan, merges, &partials, output).map_err(text)?;
                Ok::<_, String>(start.elapsed().as_secs_f64())
            };
            for (i, times) in merges.iter_mut().enumerate() {
                let checks = merge(0..0)?;
                times.push((merge(start_of(i)..start_of(i + 1))? - checks).max(0.0));
            }
            if repetition == 0 {
                let steps = tasks.iter_mut().chain(&mut merges);
                steps
                    .chain([&mut alone, &mut split_alone])
                    .for_each(Vec::clear);
            }
        }
        let medians = |times: Vec<Vec<f64>>| {
            let medians = times.into_iter().map(|mut times| quantile(&mut times, 0.5));
            medians.collect::<Vec<_>>()
        };
        // The tasks of each row group read all keys; partial results are written and read.
        let splits = problem.split.ranges(self.shape.s_k).len();
        let groups = match plan.partial_tasks() {
            0 => plan.tasks(),
            tasks => tasks / splits,
        };
        let keys = groups * self.shape.s_k * self.shape.d_qk * size_of::<bf16>();
        let moved = 2 * plan.partials_len() * size_of::<f32>();
        Ok(Steps {
            every: match split {
                Split::ByLength => None,
                Split::Every(keys) => Some(keys),
            },
            alone: quantile(&mut alone, 0.5),
            split_alone: quantile(&mut split_alone, 0.5),
            tasks: medians(tasks),
            merges: medians(merges),
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
        for _ in 0..self.repetitions {
            let beside = Duration::from_millis(2);
            peaks.push(all.peak_gflops(beside) / one.peak_gflops(beside));
            let mut run = |many: bool| {
                let output = Output::dense(self.shape, Elements::F32(&mut self.o), &mut self.lse);
                let start = Instant::now();
                let result = if many {
                    let (workspaces, partials) = (&mut workspaces, &mut partials);
                    decode_on(
                        &Rayon,
                        &problem,
                        &self.options,
                        &plan,
                        workspaces,
                        partials,
                        output,
                    )
                } else {
                    decode(&default, &self.options, &mut self.workspace, output)
                };
                result.map_err(text)?;
                Ok::<_, String>(start.elapsed().as_secs_f64())
            };
            let mut medians = [0.0; 2];
            for (many, median) in [false, true].into_iter().zip(&mut medians) {
                *median = pool.pool.install(|| {
                    // As layers follow one another: the system has given each thread a processor.
                    let start = Instant::now();
                    while start.elapsed() < AWAKE {
                        run(many)?;
                    }
                    let times = (0..RUNS).map(|_| run(many)).collect::<Result<Vec<_>, _>>();
                    Ok::<_, String>(quantile(&mut times?, 0.5))
                })?;
            }
            gains.push(medians[0] / medians[1]);
            times.push(medians[1]);
        }
        Ok(format!(
            "\n        measured: {:.1} us, speed-up {:.2}; of a loop in registers {:.2}",
            quantile(&mut times, 0.5) * 1e6,
            quantile(&mut gains, 0.5),
            quantile(&mut peaks, 0.5),
        ))
    }
}

fn text(error: amla::Error) -> String {
    error.to_string()
}
