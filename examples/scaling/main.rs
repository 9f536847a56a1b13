//! Speed-up on 1 to 256 threads, simulated from what a plan's tasks and merges take one by one on this machine.
//!
//! ```text
//! cargo run --release --example scaling
//! cargo run --release --example scaling -- --heads 16 --context 4096 --json
//! ```

mod cli;
mod measure;
mod plot;
mod point;
mod schedule;

use std::process::ExitCode;

use amla::Options;
use amla_examples::output::{PlotFile, print, print_object};
use amla_examples::progress::Progress;

use crate::cli::Cli;
use crate::measure::{Bench, Pool};
use crate::point::Point;
use crate::schedule::Steps;

fn main() -> ExitCode {
    amla_examples::cli::main(run)
}

fn run(cli: &Cli) -> Result<ExitCode, String> {
    let svg = cli.svg.as_deref().map(PlotFile::open).transpose()?;
    let options = Options {
        backend: cli.processor.backend()?,
        ..Options::default()
    };
    let pool = Pool::new(cli.processor.threads().min(2))?;
    let line = |text: &str| if cli.json { Ok(()) } else { print(&text) };
    line(&header(cli, &options, &pool))?;
    let shapes = cli.shapes();
    let workers = cli.workers();
    let progress = Progress::new("measuring", shapes.len() * workers.len());
    let mut points = Vec::new();
    for shape in shapes {
        let mut bench = Bench::new(shape, options, cli.repetitions)?;
        line(&format!(
            "{} heads, {} keys\n{HEADER}",
            shape.h_q, shape.s_k
        ))?;
        for &workers in &workers {
            let steps = bench.steps(workers)?;
            progress.step();
            for bandwidth in [None, Some(cli.bandwidth)] {
                let makespan = steps.makespan(workers, pool.wake, bandwidth);
                let point = Point {
                    shape,
                    workers,
                    tasks: steps.tasks.len(),
                    makespan,
                    speedup: steps.alone / makespan,
                    bandwidth_limited: bandwidth.is_some(),
                };
                if cli.json {
                    print_object(&point.json())?;
                }
                points.push(point);
            }
            let [free, limited] = &points[points.len() - 2..] else {
                continue;
            };
            let measured = match workers == pool.threads() && workers > 1 {
                true => bench.measured(&pool)?,
                false => String::new(),
            };
            line(&row(&steps, [free, limited], &measured))?;
        }
        line("")?;
    }
    drop(progress);
    if let Some(file) = svg {
        file.write(&plot::draw(&points)?)?;
    }
    Ok(ExitCode::SUCCESS)
}

const HEADER: &str =
    "                       split on                                    with memory's
threads  split   tasks   one, %  time, us  speed-up efficiency, %          limit";

fn row(steps: &Steps, [free, limited]: [&Point; 2], measured: &str) -> String {
    let split = steps.every.map_or("-".to_owned(), |keys| keys.to_string());
    format!(
        "{:>7} {:>6} {:>7} {:>+8.1} {:>9.1} {:>9.2} {:>13.1} {:>14.2}{}",
        free.workers,
        split,
        free.tasks,
        (steps.split_alone / steps.alone - 1.0) * 100.0,
        free.makespan * 1e6,
        free.speedup,
        free.efficiency() * 100.0,
        limited.speedup,
        measured,
    )
}

fn header(cli: &Cli, options: &Options, pool: &Pool) -> String {
    format!(
        "amla {}: {}, d_qk 576, d_v 512, one request, one position\n\
         Each task and merge timed alone, scheduled in order; waking threads takes {:.1} us.\n\
         Split: keys of each, as Split::for_threads has it; - where their number alone decides.\n\
         Split on one: what the split costs a single thread, beside the default.\n\
         With memory's limit: speed-up where all threads read and write {} GB/s.\n",
        env!("CARGO_PKG_VERSION"),
        options.backend.id().name(),
        pool.wake * 1e6,
        cli.bandwidth,
    )
}
