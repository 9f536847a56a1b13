//! The model of the Ascend 910.

mod datapath;
#[path = "../../examples/ascend/metrics.rs"]
mod metrics;
mod refusals;
mod statements;
mod table;

use amla::ProblemShape;
use amla_ascend::{Algorithm, Kernel, Machine, Pipeline, Tiling, paper};

const KERNELS: [(Algorithm, Pipeline); 4] = [
    (Algorithm::Base, Pipeline::Serial),
    (Algorithm::Base, Pipeline::Preload),
    (Algorithm::Amla, Pipeline::Serial),
    (Algorithm::Amla, Pipeline::Preload),
];

/// One request, whose rows are one group.
fn one(rows: usize, keys: usize) -> ProblemShape {
    ProblemShape {
        b: 1,
        h_q: rows,
        ..paper::shape(1, keys)
    }
}

fn amla_on(machine: Machine, shape: ProblemShape) -> Kernel {
    let (algorithm, pipeline) = (Algorithm::Amla, Pipeline::Preload);
    Kernel::new(machine, Tiling::PAPER, algorithm, pipeline, shape).unwrap()
}

fn amla(shape: ProblemShape) -> Kernel {
    amla_on(Machine::ASCEND_910, shape)
}

fn kernel((algorithm, pipeline): (Algorithm, Pipeline), shape: ProblemShape) -> Kernel {
    Kernel::new(
        Machine::ASCEND_910,
        Tiling::PAPER,
        algorithm,
        pipeline,
        shape,
    )
    .unwrap()
}
