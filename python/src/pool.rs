//! Threads of calls, and the memory that they compute in. Both are made once and serve all calls.
//!
//! Locks are taken with the GIL only, and for no longer than it takes to look something up: in a process that
//! forks, which takes the GIL, none of them is held by another thread.

use std::collections::BTreeMap;
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use amla::{Options, Output, Plan, Problem, Rayon, Workspace, decode, decode_on};
use pyo3::prelude::{PyResult, Python, pyfunction};
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::error::{refused, value};

/// Threads of a call at most.
const MAX_THREADS: usize = 1024;

/// By their number of threads.
static POOLS: Mutex<BTreeMap<usize, Arc<Pool>>> = Mutex::new(BTreeMap::new());
/// Threads of calls that don't say how many; 0 before anybody said.
static DEFAULT: AtomicUsize = AtomicUsize::new(0);

/// Some threads, none of them for calls of one thread, which is the caller's own.
pub struct Pool {
    threads: usize,
    rayon: Option<ThreadPool>,
    /// Of calls that have returned.
    scratch: Mutex<Vec<Scratch>>,
}

/// What one call computes in. It grows with the first calls.
#[derive(Default)]
struct Scratch {
    workspaces: Vec<Box<Workspace>>,
    partials: Vec<f32>,
}

/// As if no panic had been: nothing here is ever half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// In a forked process: threads and what they hold are the parent's.
#[pyfunction]
pub fn forget_threads() {
    let pools = mem::take(&mut *lock(&POOLS));
    // Dropped, it would wait for threads that aren't there.
    mem::forget(pools);
}

pub fn default() -> usize {
    match DEFAULT.load(Ordering::Relaxed) {
        0 => {
            let threads = thread::available_parallelism().map_or(1, usize::from);
            let threads = threads.min(MAX_THREADS);
            DEFAULT.store(threads, Ordering::Relaxed);
            threads
        }
        threads => threads,
    }
}

pub fn set_default(threads: usize) -> PyResult<()> {
    DEFAULT.store(check(threads)?, Ordering::Relaxed);
    Ok(())
}

pub fn check(threads: usize) -> PyResult<usize> {
    if threads == 0 || threads > MAX_THREADS {
        return Err(value(format!(
            "threads is {threads}, not in 1..={MAX_THREADS}"
        )));
    }
    Ok(threads)
}

/// The pool of a checked number of threads.
pub fn of(threads: usize) -> PyResult<Arc<Pool>> {
    let mut pools = lock(&POOLS);
    if let Some(pool) = pools.get(&threads) {
        return Ok(Arc::clone(pool));
    }
    let rayon = if threads > 1 {
        let builder = ThreadPoolBuilder::new().num_threads(threads);
        let builder = builder.thread_name(|i| format!("amla-{i}"));
        let pool = builder.build();
        Some(pool.map_err(|error| value(format!("{threads} threads: {error}")))?)
    } else {
        None
    };
    let pool = Arc::new(Pool {
        threads,
        rayon,
        scratch: Mutex::default(),
    });
    pools.insert(threads, Arc::clone(&pool));
    Ok(pool)
}

impl Pool {
    /// Computes a problem without the GIL, by a plan or by one made for these threads.
    pub fn decode(
        &self,
        py: Python<'_>,
        problem: &Problem<'_>,
        options: &Options,
        plan: Option<&Plan>,
        output: Output<'_>,
    ) -> PyResult<()> {
        let mut scratch = lock(&self.scratch).pop().unwrap_or_default();
        let result = py.detach(|| scratch.decode(self, problem, options, plan, output));
        lock(&self.scratch).push(scratch);
        result.map_err(refused)
    }
}

impl Scratch {
    fn decode(
        &mut self,
        pool: &Pool,
        problem: &Problem<'_>,
        options: &Options,
        plan: Option<&Plan>,
        output: Output<'_>,
    ) -> Result<(), amla::Error> {
        if let (None, None) = (plan, &pool.rayon) {
            return decode(problem, options, &mut self.workspaces(1)[0], output);
        }
        let plan = match plan {
            Some(plan) => *plan,
            None => Plan::for_threads(problem, pool.threads)?,
        };
        // No more than have something to do.
        let threads = pool.threads.min(plan.tasks()).max(1);
        if self.partials.len() < plan.partials_len() {
            self.partials.resize(plan.partials_len(), 0.0);
        }
        self.workspaces(threads);
        let Self {
            workspaces,
            partials,
        } = self;
        let workspaces = &mut workspaces[..threads];
        let run = || {
            decode_on(
                &Rayon, problem, options, &plan, workspaces, partials, output,
            )
        };
        match &pool.rayon {
            Some(threads_of) if threads > 1 => threads_of.install(run),
            _ => run(),
        }
    }

    /// A workspace for each thread, at least.
    fn workspaces(&mut self, threads: usize) -> &mut [Box<Workspace>] {
        while self.workspaces.len() < threads {
            self.workspaces.push(Workspace::boxed());
        }
        &mut self.workspaces
    }
}
