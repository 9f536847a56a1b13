//! Threads that share the tasks of a plan.

use std::sync::Mutex;
use std::thread;

use amla::{
    Elements, Error, Options, Plan, Problem, SharedOutput, Workspace, combine, decode, run_tasks,
};
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::common::workspace;
use crate::host::{Bits, PATTERN, output, rows};

/// Threads' workspaces and the memory for results, reused in every run as the previous one left it.
pub struct Crew {
    workspaces: Vec<Box<Workspace>>,
    partials: Vec<f32>,
    o: Vec<f32>,
    lse: Vec<f32>,
    rng: ChaCha8Rng,
}

impl Crew {
    pub fn new(threads: usize, seed: u64) -> Self {
        Self {
            workspaces: (0..threads).map(|_| workspace()).collect(),
            partials: Vec::new(),
            o: Vec::new(),
            lse: Vec::new(),
            rng: ChaCha8Rng::seed_from_u64(seed),
        }
    }

    /// Computes a problem, its tasks in random order, each on the first free thread. Returns the
    /// number of tasks.
    ///
    /// # Errors
    /// The library refuses it.
    pub fn run(&mut self, problem: &Problem, options: &Options) -> Result<usize, Error> {
        // Few long tasks, or many short ones.
        let threads = self.workspaces.len() * self.rng.random_range(1..=16);
        let plan = Plan::for_threads(problem, threads)?;
        if self.partials.len() < plan.partials_len() {
            self.partials.resize(plan.partials_len(), PATTERN);
        }
        poisoned(&mut self.o, rows(problem) * problem.shape.d_v);
        poisoned(&mut self.lse, rows(problem));
        let o = Elements::F32(&mut self.o);
        let output = &SharedOutput::from(output(problem, o, &mut self.lse));
        let partials = &mut self.partials[..plan.partials_len()];
        let memories = partials.chunks_mut(plan.partial_len());
        let memories = memories.chain(std::iter::repeat_with(Default::default));
        let mut tasks: Vec<_> = (0..plan.tasks()).zip(memories).collect();
        tasks.shuffle(&mut self.rng);
        let tasks = &Mutex::new(tasks);
        let next = || tasks.lock().ok()?.pop();
        thread::scope(|scope| {
            let threads: Vec<_> = self
                .workspaces
                .iter_mut()
                .map(|workspace| {
                    scope.spawn(|| {
                        while let Some((task, partial)) = next() {
                            let tasks = task..task + 1;
                            run_tasks(problem, options, &plan, tasks, workspace, partial, output)?;
                        }
                        Ok(())
                    })
                })
                .collect();
            let mut ends = threads.into_iter().map(|thread| thread.join());
            ends.try_for_each(|end| end.expect("a task panicked"))
        })?;
        let (threads, partials) = (self.workspaces.len(), &self.partials[..]);
        let start = |i: usize| plan.merges() * i / threads;
        thread::scope(|scope| {
            let threads: Vec<_> = (0..threads)
                .map(|i| {
                    let merges = start(i)..start(i + 1);
                    scope.spawn(move || combine(problem, &plan, merges, partials, output))
                })
                .collect();
            let mut ends = threads.into_iter().map(|thread| thread.join());
            ends.try_for_each(|end| end.expect("a merge panicked"))
        })?;
        Ok(plan.tasks())
    }

    /// Bytes that are allocated between runs.
    pub fn bytes(&self) -> usize {
        let workspaces = self.workspaces.capacity() * size_of::<Box<Workspace>>()
            + self.workspaces.len() * size_of::<Workspace>();
        let floats = [&self.partials, &self.o, &self.lse].map(Vec::capacity);
        workspaces + floats.iter().sum::<usize>() * size_of::<f32>()
    }

    /// The number of bits of the last run's results that differ from `answer`.
    pub fn differing(&self, (o, lse): &Bits) -> u64 {
        let bits = |got: &[f32], want: &[u32]| -> u64 {
            assert_eq!(got.len(), want.len());
            let pairs = got.iter().zip(want);
            pairs
                .map(|(got, want)| u64::from((got.to_bits() ^ want).count_ones()))
                .sum()
        };
        bits(&self.o, o) + bits(&self.lse, lse)
    }
}

/// `len` numbers that no call computes.
fn poisoned(memory: &mut Vec<f32>, len: usize) {
    memory.clear();
    memory.resize(len, PATTERN);
}

/// O and lse, computed by one thread in fresh memory.
///
/// # Errors
/// The library refuses the problem.
pub fn first_answer(problem: &Problem, options: &Options) -> Result<Bits, Error> {
    let (mut o, mut lse) = (Vec::new(), Vec::new());
    poisoned(&mut o, rows(problem) * problem.shape.d_v);
    poisoned(&mut lse, rows(problem));
    let results = output(problem, Elements::F32(&mut o), &mut lse);
    decode(problem, options, &mut workspace(), results)?;
    let bits = |xs: Vec<f32>| xs.into_iter().map(f32::to_bits).collect();
    Ok((bits(o), bits(lse)))
}
