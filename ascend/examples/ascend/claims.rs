//! The paper's statements about the machine, and the model's figures for each.

use amla::ProblemShape;
use amla_ascend::{
    Algorithm, Dependency, Kernel, Limit, Load, Machine, Observer, Op, Pipe, Pipeline, Report,
    Tiling, Work,
};

use amla_examples::output::print;

use crate::cli::Cli;

/// The paper's variants (tab:arithmetic intensity): name, query heads, KV heads, positions, its figure.
const VARIANTS: [(&str, usize, usize, usize, f64); 5] = [
    ("MHA", 64, 64, 1, 1.0),
    ("GQA", 64, 8, 1, 8.0),
    ("MLA-64", 64, 1, 1, 121.0),
    ("MLA-128", 128, 1, 1, 242.0),
    ("MLA-128, s_q 2", 128, 1, 2, 484.0),
];

/// Seconds of V1, V2 and Rescale on one Vector core: into UB, arithmetic, out of UB.
#[derive(Default)]
struct VectorTimes {
    v1: [f64; 3],
    v2: [f64; 3],
    rescale: [f64; 3],
}

impl Observer for VectorTimes {
    fn done(&mut self, op: &Op, start: f64, end: f64) {
        let step = match op.pipe {
            Pipe::VectorIn(0) => 0,
            Pipe::Vector(0) => 1,
            Pipe::VectorOut(0) => 2,
            _ => return,
        };
        match op.work {
            Work::V1(_) => self.v1[step] += end - start,
            Work::V2(_) => self.v2[step] += end - start,
            Work::Rescale(_) => self.rescale[step] += end - start,
            _ => {}
        }
    }
}

/// A share in percent, to a tenth.
fn percent(share: f64) -> String {
    amla_examples::output::percent(share) + " %"
}

/// Prints every statement with the model's figures.
///
/// # Errors
/// A defect of the machine or the tiling, or a failure of standard output.
pub fn check(cli: &Cli) -> Result<(), String> {
    let machine = cli.machine()?;
    intensities(&machine)?;
    base_and_amla(cli, machine)?;
    preload(cli, machine)?;
    buffers(cli, machine)?;
    residency(cli, &machine)
}

fn run(
    machine: Machine,
    tiling: Tiling,
    how: (Algorithm, Pipeline),
    shape: ProblemShape,
) -> Result<Report, String> {
    Kernel::new(machine, tiling, how.0, how.1, shape)
        .and_then(|kernel| kernel.run())
        .map_err(|e| e.to_string())
}

fn intensities(machine: &Machine) -> Result<(), String> {
    let ridge = machine.peak / machine.hbm;
    print(&format_args!(
        "Arithmetic intensity, FLOP per byte of KV cache, and what binds by the roofline, whose ridge is at {ridge:.0} \
         (tab:arithmetic intensity):"
    ))?;
    for (name, heads, kv_heads, s_q, paper) in VARIANTS {
        let rows = (heads / kv_heads * s_q) as f64;
        // MLA reads one row of 576 for both K and V, the others K and V of 128 each.
        let intensity = if kv_heads == 1 {
            rows * (576.0 + 512.0) / 576.0
        } else {
            rows
        };
        let bound = if intensity < ridge { "HBM" } else { "Cube" };
        print(&format_args!(
            "  {name:<15} {intensity:>6.1}, paper {paper}: {bound}-bound"
        ))?;
    }
    Ok(())
}

fn base_and_amla(cli: &Cli, machine: Machine) -> Result<(), String> {
    print(&"\nBase spends its time in V2's transfers; AMLA is Cube-bound (subsec:computestage):")?;
    for s_q in [1, 2] {
        let shape = cli.shape(s_q, 16384);
        for algorithm in [Algorithm::Base, Algorithm::Amla] {
            for pipeline in [Pipeline::Serial, Pipeline::Preload] {
                let kernel = Kernel::new(machine, cli.tiling(), algorithm, pipeline, shape)
                    .map_err(|e| e.to_string())?;
                let mut times = VectorTimes::default();
                let report = kernel
                    .run_with(kernel.order(), &mut times)
                    .map_err(|e| e.to_string())?;
                let (limit, share) = report.limit();
                let of = |t: f64| percent(t / report.kernel_seconds);
                let vector = if algorithm == Algorithm::Base {
                    let [load, compute, store] = times.v2;
                    format!(
                        "V2 in {}, arithmetic {}, out {}",
                        of(load),
                        of(compute),
                        of(store)
                    )
                } else {
                    format!("Rescale out {}", of(times.rescale[2]))
                };
                print(&format_args!(
                    "  s_q {s_q}, {algorithm:?} {pipeline:?}: FU {}, limit {limit} ({}); V1 in {}, arithmetic {}; {vector}",
                    percent(report.utilization()),
                    percent(share),
                    of(times.v1[0]),
                    of(times.v1[1]),
                ))?;
            }
        }
    }
    Ok(())
}

fn preload(cli: &Cli, machine: Machine) -> Result<(), String> {
    print(&"\nA preload count of 2 suffices and 1 doesn't (thm:preload_tight_bound):")?;
    let shape = cli.shape(2, 8192);
    for lanes in [64, 24, 20, 16, 12] {
        let machine = Machine { lanes, ..machine };
        let kernel = Kernel::new(
            machine,
            cli.tiling(),
            Algorithm::Amla,
            Pipeline::Preload,
            shape,
        )
        .map_err(|e| e.to_string())?;
        let two = kernel.run().map_err(|e| e.to_string())?;
        let one = kernel
            .run_with(kernel.load().order_by(1), &mut ())
            .map_err(|e| e.to_string())?;
        let vector = two
            .demands()
            .iter()
            .find(|(limit, _)| *limit == Limit::Vector)
            .map_or(0.0, |d| d.1);
        let cube = two
            .demands()
            .iter()
            .find(|(limit, _)| *limit == Limit::Mmad)
            .map_or(0.0, |d| d.1);
        print(&format_args!(
            "  V / C = {:.2} ({lanes} lanes): {:.1} us with 2, {:.1} us with 1; the Cube alone {:.1} us",
            vector / cube,
            two.kernel_seconds * 1e6,
            one.kernel_seconds * 1e6,
            cube * 1e6,
        ))?;
    }
    let kernel = Kernel::new(
        machine,
        cli.tiling(),
        Algorithm::Amla,
        Pipeline::Preload,
        shape,
    )
    .map_err(|e| e.to_string())?;
    let early = kernel.ignoring(Dependency::OutputAccumulated).run();
    print(&format_args!(
        "  Stages of a cycle don't depend on each other? Rescale without waiting for C2: {}",
        early.map_or_else(|e| e.to_string(), |_| "nothing happens".to_owned())
    ))
}

fn buffers(cli: &Cli, machine: Machine) -> Result<(), String> {
    print(&"\nSeven buffers of 72 KB, and other splits of L1 (subsec:cubestagepipeline):")?;
    let shape = cli.shape(2, 16384);
    for (qp_buffers, kv_buffers) in [
        (4, 3),
        (4, 2),
        (5, 2),
        (3, 4),
        (3, 3),
        (2, 5),
        (4, 4),
        (1, 6),
    ] {
        let tiling = Tiling {
            qp_buffers,
            kv_buffers,
            ..cli.tiling()
        };
        let result = run(machine, tiling, (Algorithm::Amla, Pipeline::Preload), shape);
        print(&format_args!(
            "  {qp_buffers} for Q/P, {kv_buffers} for K/V: {}",
            match result {
                Ok(report) => format!("FU {}", percent(report.utilization())),
                Err(fault) => fault,
            }
        ))?;
    }
    let mut tiling = cli.tiling();
    tiling.c1.single_n = 256;
    let printed = run(machine, tiling, (Algorithm::Amla, Pipeline::Preload), shape);
    print(&format_args!(
        "  singleN = 256 as printed: {}",
        printed.map_or_else(|fault| fault, |report| percent(report.utilization()))
    ))
}

fn residency(cli: &Cli, machine: &Machine) -> Result<(), String> {
    print(
        &"\nO resident in UB (subsec:computestage): rows that a Vector core could work on beside it",
    )?;
    let tiling = cli.tiling();
    for rows in [64, 128, 144, 160, 176, 192, 256] {
        let shape = ProblemShape {
            h_q: rows,
            ..cli.shape(1, 4096)
        };
        let load = Load::new(machine, shape, tiling.rows, tiling.block, Algorithm::Base);
        print(&format_args!(
            "  M = {rows:>3}: O takes {:>3} KB of {} on each core, {}",
            rows / 2 * 512 * 4 / 1024,
            machine.ub / 1024,
            match Tiling::rows_beside_output(machine, &load) {
                0 => "nothing fits beside it".to_owned(),
                rows => format!("{rows} rows at a time"),
            }
        ))?;
    }
    Ok(())
}
