//! A search for the fastest tiling that fits, and the rank of the paper's.

use std::collections::BTreeMap;

use amla_ascend::{Cut, Fault, Kernel, Machine, Report, Tiling};
use serde_json::json;

use amla_examples::output::{percent, print, print_object};
use amla_examples::progress::Progress;

use crate::cli::{Cli, SweepArgs};

/// Columns of a tile in L1 and in L0.
const COLUMNS: [(usize, usize); 5] = [(64, 64), (128, 64), (128, 128), (256, 128), (256, 256)];
/// Rows of a tile in L1; in L0 they are at most 128.
const ROWS: [usize; 3] = [64, 128, 256];
/// Depth of C1's tiles in L1 and in L0: divisors of 576.
const DEPTHS_1: [(usize, usize); 8] = [
    (96, 96),
    (144, 144),
    (192, 96),
    (192, 192),
    (288, 96),
    (288, 144),
    (576, 96),
    (576, 192),
];
/// Depth of C2's tiles in L1 and in L0: divisors of the block.
const DEPTHS_2: [(usize, usize); 6] = [
    (64, 64),
    (128, 64),
    (128, 128),
    (256, 64),
    (256, 128),
    (512, 128),
];
/// Keys of a block.
const BLOCKS: [usize; 6] = [128, 256, 384, 512, 768, 1024];
/// Buffers for Q/P and for K/V.
const BUFFERS: [(usize, usize); 9] = [
    (1, 2),
    (2, 2),
    (2, 3),
    (4, 2),
    (4, 3),
    (4, 4),
    (6, 3),
    (8, 4),
    (8, 6),
];

/// Searches, and prints the best.
///
/// # Errors
/// A defect of the machine, or a failure of standard output.
pub fn search(cli: &Cli, options: &SweepArgs) -> Result<(), String> {
    let shape = *cli.shapes().first().ok_or("no shape")?;
    let machine = cli.machine()?;
    let run = |tiling| {
        Kernel::new(machine, tiling, cli.algorithm, cli.pipeline, shape)
            .and_then(|kernel| Ok((kernel.run()?, tiling)))
    };
    let paper = run(Tiling::PAPER).map_err(|e| e.to_string())?;
    let mut fits = Vec::new();
    let mut refused = BTreeMap::new();
    let progress = Progress::new("sweep", tilings(&machine, cli.tiling()).count());
    for tiling in tilings(&machine, cli.tiling()) {
        match run(tiling) {
            Ok(result) => fits.push(result),
            Err(fault) => *refused.entry(reason(&fault)).or_insert(0_usize) += 1,
        }
        progress.step();
    }
    fits.sort_by(|a, b| a.0.kernel_seconds.total_cmp(&b.0.kernel_seconds));
    let faster = fits
        .iter()
        .filter(|(report, _)| report.kernel_seconds < paper.0.kernel_seconds * 0.999_99);
    let faster = faster.count();
    if !cli.json {
        print(&format_args!(
            "batch {}, s_q {}, s_k {}, h_q {}: {} tilings fit, {} are refused",
            shape.b,
            shape.s_q,
            shape.s_k,
            shape.h_q,
            fits.len(),
            refused.values().sum::<usize>()
        ))?;
        for (reason, count) in refused {
            print(&format_args!("{count:>9} {reason}"))?;
        }
        print(&HEADER)?;
    }
    let ranked = fits.iter().enumerate().map(|(index, fit)| (index + 1, fit));
    for (rank, (report, tiling)) in ranked.take(options.best) {
        show(cli, rank, report, tiling)?;
    }
    if !cli.json {
        print(&"the paper's:")?;
    }
    show(cli, faster + 1, &paper.0, &paper.1)?;
    if cli.json {
        return Ok(());
    }
    print(&LEGEND)
}

const HEADER: &str = "
rank      us FU, % block                    --c1                    --c2 buffers";

const LEGEND: &str = "
--c1, --c2: singleM,singleN,singleK,baseM,baseN,baseK of Q K^T and of P V
buffers: for Q/P + for K/V, x KiB of L1 each";

/// Prints a tiling and its rank.
fn show(cli: &Cli, rank: usize, report: &Report, tiling: &Tiling) -> Result<(), String> {
    let (time, fu) = (report.seconds() * 1e6, report.utilization());
    if cli.json {
        return print_object(&json!({
            "rank": rank,
            "paper": *tiling == Tiling::PAPER,
            "model_us": time,
            "model_fu": fu,
            "block": tiling.block,
            "c1": cut(&tiling.c1),
            "c2": cut(&tiling.c2),
            "l1_buffer": tiling.l1_buffer,
            "qp_buffers": tiling.qp_buffers,
            "kv_buffers": tiling.kv_buffers,
        }));
    }
    let buffers = format!(
        "{}+{}x{}",
        tiling.qp_buffers,
        tiling.kv_buffers,
        tiling.l1_buffer / 1024
    );
    print(&format_args!(
        "{rank:>4} {time:>7.1} {:>5} {:>5} {:>23} {:>23} {buffers:>7}",
        percent(fu),
        tiling.block,
        cut(&tiling.c1),
        cut(&tiling.c2),
    ))
}

/// Every combination, whether it fits or not. `base` has the sizes that aren't searched.
fn tilings(machine: &Machine, base: Tiling) -> impl Iterator<Item = Tiling> {
    let l1 = machine.l1;
    let shapes = ROWS
        .into_iter()
        .flat_map(|rows| COLUMNS.map(|(single, base)| (rows, single, base)));
    shapes.flat_map(move |(rows, single_n, base_n)| {
        let cut = move |(single_k, base_k)| Cut {
            single_m: rows,
            single_n,
            single_k,
            base_m: rows.min(128),
            base_n,
            base_k,
        };
        let depths = DEPTHS_1
            .into_iter()
            .flat_map(|one| DEPTHS_2.map(|two| (one, two)));
        depths.flat_map(move |(one, two)| {
            let plans = BLOCKS
                .into_iter()
                .flat_map(|block| BUFFERS.map(|buffers| (block, buffers)));
            plans.map(move |(block, (qp_buffers, kv_buffers))| Tiling {
                block,
                c1: cut(one),
                c2: cut(two),
                // A multiple of 1 KiB.
                l1_buffer: l1 / (qp_buffers + kv_buffers) / 1024 * 1024,
                qp_buffers,
                kv_buffers,
                ..base
            })
        })
    })
}

/// A fault without its numbers.
fn reason(fault: &Fault) -> String {
    match fault {
        Fault::Overflow { buffer, what, .. } => format!("{buffer} overflows: {what}"),
        Fault::NotEnoughBuffers { buffer, what, .. } => {
            format!("{buffer}: not enough buffers for {what}")
        }
        other => other.to_string(),
    }
}

/// As the command line takes it.
fn cut(cut: &Cut) -> String {
    format!(
        "{},{},{},{},{},{}",
        cut.single_m, cut.single_n, cut.single_k, cut.base_m, cut.base_n, cut.base_k
    )
}
