//! Runs random valid problems repeatedly, many threads over one plan, and compares each result with
//! the problem's first answer, bit for bit.
//!
//! ```text
//! cargo run --release --example soak -- --seconds 600 --threads 2
//! cargo run --release --example soak -- --seconds 20 --seed 7 --backend portable --json
//! ```
//!
//! A generation of problems lives at a time. One thread computes the first answers in fresh memory.
//! Then problems are picked at random and their tasks run in random order, over workspaces and
//! partial results that hold data of the previous problem. After a generation no more memory may be
//! allocated than after the first, the threads' buffers aside. The resident memory is printed as
//! well. In a run of a hundred generations or more it must be stable: in the last quarter at most
//! what it was in the second. glibc doesn't return all freed memory at once; it does with
//! `MALLOC_MMAP_THRESHOLD_=65536` in the environment, and memory stays flat.
//!
//! Exit code: 0; 1 if a bit differed, a valid problem was refused or memory grew; 2 if the command
//! line is invalid.

mod crew;
mod recipe;

#[path = "../../tests/common/mod.rs"]
mod common;
#[allow(dead_code, reason = "shared with the tests, which use the rest")]
#[path = "../../tests/common/hosts.rs"]
mod host;

use std::fs;
use std::process::ExitCode;
use std::time::Instant;

use amla::{Backend, BackendId, Error};
use amla_examples::cli::{self, backends, processors, within};
use amla_examples::output::{print, print_object, tell};
use amla_examples::progress::Progress;
use clap::Parser;
use peak_alloc::PeakAlloc;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use crew::Crew;
use host::{Bits, Laid};
use recipe::Recipe;

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// Problems that live at the same time.
const GENERATION: u64 = 32;
/// Runs of each on average.
const ROUNDS: u64 = 16;
/// Bytes that may be allocated on top of those after the first generation: the standard library's
/// buffers and locks. A leak of a byte in every run shows within a minute.
const ALLOCATED: usize = 4 << 10;
/// Bytes that the resident memory may grow by without a leak: generations differ, and the allocator
/// caches freed memory.
const RESIDENT: u64 = 32 << 20;
/// Generations after a quarter of which the allocator's caches are full.
const STABLE: usize = 100;

/// The command line.
#[derive(Parser)]
#[command(
    name = "soak",
    version,
    about = "Runs random valid problems from many threads and compares each result with its first answer"
)]
struct Args {
    /// Time to run; the last run is completed
    #[arg(long, default_value_t = 10.0, value_name = "S", value_parser = seconds)]
    seconds: f64,

    /// Threads that share a plan [default: one per processor]
    #[arg(long, value_name = "N", value_parser = within(1024))]
    threads: Option<usize>,

    /// Seed of the problems
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,

    /// Kernel to use [default: each that this processor runs, at random]
    #[arg(long, value_name = "NAME", value_parser = backends())]
    backend: Option<BackendId>,

    /// Report as one line of JSON
    #[arg(long)]
    json: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.0..=1e6).contains(&seconds) => Ok(seconds),
        _ => Err("not a number from 0 to 1000000".into()),
    }
}

/// The results so far.
#[derive(Default)]
struct Report {
    generations: u64,
    problems: u64,
    runs: u64,
    tasks: u64,
    /// Runs with a bit that differs from the first answer's, and such bits.
    differing: [u64; 2],
    refused: u64,
    /// Bytes allocated after the first and the last generation, the crew's aside.
    allocated: Option<[usize; 2]>,
    /// Resident bytes after each generation; empty if the system doesn't report them.
    resident: Vec<u64>,
}

impl Report {
    /// The most resident bytes in the second and in the last quarter of the generations, if there were
    /// four.
    fn quarters(&self) -> Option<[u64; 2]> {
        let quarter = self.resident.len() / 4;
        let most = |skip: usize| self.resident[skip..][..quarter].iter().copied().max();
        Some([most(quarter)?, most(self.resident.len() - quarter)?])
    }

    fn grew(&self) -> bool {
        let lost = self
            .allocated
            .is_some_and(|[first, last]| last > first + ALLOCATED);
        let swollen = self
            .quarters()
            .is_some_and(|[second, last]| last > second + RESIDENT);
        lost || (self.resident.len() >= STABLE && swollen)
    }

    fn failed(&self) -> bool {
        self.grew() || self.refused > 0 || self.differing != [0; 2]
    }
}

fn main() -> ExitCode {
    cli::main(run)
}

fn run(args: &Args) -> Result<ExitCode, String> {
    Backend::permit_amx();
    let backends: Vec<Backend> = match args.backend {
        Some(id) => vec![Backend::request(id).map_err(|e| e.to_string())?],
        None => BackendId::ALL
            .into_iter()
            .filter_map(|id| Backend::request(id).ok())
            .collect(),
    };
    let threads = args.threads.unwrap_or_else(processors);
    let start = Instant::now();
    let report = soak(args, &backends, threads, start);
    let elapsed = start.elapsed().as_secs_f64();
    if args.json {
        print_object(&object(args, threads, elapsed, &report))?;
    } else {
        print(&text(threads, elapsed, &report))?;
    }
    Ok(ExitCode::from(u8::from(report.failed())))
}

/// The time to run for.
struct Time {
    start: Instant,
    seconds: f64,
    progress: Progress,
}

impl Time {
    /// Whether it is over. Shows how much of it is.
    fn is_over(&self) -> bool {
        let fraction = self.start.elapsed().as_secs_f64() / self.seconds;
        self.progress.update(fraction);
        fraction >= 1.0
    }
}

fn soak(args: &Args, backends: &[Backend], threads: usize, start: Instant) -> Report {
    let time = Time {
        start,
        seconds: args.seconds,
        progress: Progress::new("soak", 0),
    };
    let mut report = Report::default();
    let mut crew = Crew::new(threads, args.seed);
    while report.generations == 0 || !time.is_over() {
        let first = report.generations * GENERATION;
        let recipes: Vec<Recipe> = (first..first + GENERATION)
            .map(|number| Recipe::new(args.seed, number, backends))
            .collect();
        generation(args.seed, &recipes, &mut crew, &time, &mut report);
        drop(recipes);
        report.generations += 1;
        let own = crew.bytes() + report.resident.capacity() * size_of::<u64>();
        let allocated = HEAP.current_usage().saturating_sub(own);
        report.allocated.get_or_insert([allocated; 2])[1] = allocated;
        report.resident.extend(resident());
    }
    report
}

/// Runs one generation of problems, at most for that time.
fn generation(seed: u64, recipes: &[Recipe], crew: &mut Crew, time: &Time, report: &mut Report) {
    let laid: Vec<Laid> = recipes.iter().map(Recipe::laid).collect();
    let stored: Vec<_> = recipes
        .iter()
        .zip(&laid)
        .map(|(r, laid)| r.stored(laid))
        .collect();
    let mut alive: Vec<(usize, Bits)> = Vec::new();
    for (i, recipe) in recipes.iter().enumerate() {
        report.problems += 1;
        match crew::first_answer(
            &recipe.problem(&laid[i], stored[i].as_ref()),
            &recipe.options,
        ) {
            Ok(answer) => alive.push((i, answer)),
            Err(error) => refused(seed, recipe, error, report),
        }
    }
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ report.generations);
    for _ in 0..GENERATION * ROUNDS {
        if alive.is_empty() || time.is_over() {
            return;
        }
        let (i, answer) = &alive[rng.random_range(0..alive.len())];
        let recipe = &recipes[*i];
        let problem = recipe.problem(&laid[*i], stored[*i].as_ref());
        report.runs += 1;
        match crew.run(&problem, &recipe.options) {
            Ok(tasks) => report.tasks += tasks as u64,
            Err(error) => refused(seed, recipe, error, report),
        }
        let bits = crew.differing(answer);
        if bits > 0 {
            report.differing[0] += 1;
            report.differing[1] += bits;
            tell(
                "error",
                &format!("{bits} bits differ, seed {seed}, {recipe:?}"),
            );
        }
    }
}

fn refused(seed: u64, recipe: &Recipe, error: Error, report: &mut Report) {
    report.refused += 1;
    tell(
        "error",
        &format!("refused: {error}; seed {seed}, {recipe:?}"),
    );
}

/// Resident bytes of the process, on Linux.
fn resident() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib << 10)
}

fn object(args: &Args, threads: usize, seconds: f64, report: &Report) -> Value {
    let [differing_runs, differing_bits] = report.differing;
    json!({
        "seed": args.seed,
        "backend": args.backend.map(BackendId::name),
        "threads": threads,
        "seconds": seconds,
        "generations": report.generations,
        "problems": report.problems,
        "runs": report.runs,
        "tasks": report.tasks,
        "differing_runs": differing_runs,
        "differing_bits": differing_bits,
        "refused": report.refused,
        "allocated_first_last": report.allocated,
        "resident_start": report.resident.first(),
        "resident_end": report.resident.last(),
        "resident_most_in_quarters": report.quarters(),
        "failed": report.failed(),
    })
}

fn text(threads: usize, seconds: f64, report: &Report) -> String {
    let Report {
        generations,
        problems,
        runs,
        tasks,
        differing: [differing_runs, differing_bits],
        refused,
        ..
    } = *report;
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / 1048576.0);
    let mut lines = vec![
        format!(
            "{seconds:.1} s, {threads} threads: {problems} problems in {generations} generations"
        ),
        format!("{runs} runs of {tasks} tasks"),
        format!("differing bits: {differing_bits}, in {differing_runs} runs; refused: {refused}"),
    ];
    lines.extend(report.allocated.map(|[first, last]| {
        format!("allocated: {first} bytes after the first generation, {last} after the last")
    }));
    if let (Some(&start), Some(&end)) = (report.resident.first(), report.resident.last()) {
        lines.push(format!(
            "resident memory: {} at the start, {} at the end",
            mib(start),
            mib(end)
        ));
    }
    lines.extend(report.quarters().map(|[second, last]| {
        format!(
            "at most {} in the second quarter, {} in the last",
            mib(second),
            mib(last)
        )
    }));
    lines.extend(report.grew().then(|| "memory GREW".to_owned()));
    lines.join("\n")
}
