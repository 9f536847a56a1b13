//! The result of a run: its duration, each pipe's time, bytes at each level, and the limiting resource.

use core::fmt;

use crate::arch::{BF16, VECTOR_CORES};
use crate::kernel::Kernel;
use crate::load::Load;
use crate::op::{Action, Cost, Op, Pipe};

/// Bytes that one Cube core and its Vector cores move.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    /// HBM to L2: the keys of each row group once, and its queries.
    pub hbm: f64,
    /// L2 to L1, by MTE2; includes those from HBM.
    pub l2_to_l1: f64,
    /// L1 to L0A, by MTE1.
    pub l1_to_l0a: f64,
    /// L1 to L0B, by MTE1.
    pub l1_to_l0b: f64,
    /// L0C to L2, by FixP.
    pub l0c_to_l2: f64,
    /// L2 to UB.
    pub l2_to_ub: f64,
    /// UB to L2.
    pub ub_to_l2: f64,
}

/// A resource that limits a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Limit {
    /// The Cube's multiply-adds: "Cube-bound" (`subsec:preloadpipeline`).
    Mmad,
    /// L1 to L0.
    Mte1,
    /// GM to L1 through the core's port.
    Mte2,
    /// L0C to GM through the core's port.
    FixP,
    /// Vector arithmetic.
    Vector,
    /// GM to UB and back.
    VectorTransfers,
    /// This core's share of HBM.
    Hbm,
    /// All reads of L2, by Cube and Vector cores.
    L2Read,
    /// All writes to L2, by Cube and Vector cores.
    L2Write,
    /// No resource is saturated: stages wait for each other.
    Dependencies,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mmad => "Cube (MMAD)",
            Self::Mte1 => "MTE1",
            Self::Mte2 => "MTE2",
            Self::FixP => "FixP",
            Self::Vector => "Vector arithmetic",
            Self::VectorTransfers => "Vector transfers",
            Self::Hbm => "HBM",
            Self::L2Read => "L2 reads",
            Self::L2Write => "L2 writes",
            Self::Dependencies => "dependencies",
        })
    }
}

/// A run of a [`Kernel`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Report {
    kernel: Kernel,
    /// From the first instruction to the last, in seconds.
    pub kernel_seconds: f64,
    /// Time for which each pipe had an instruction, in the order of [`Pipe::ALL`], in seconds.
    pub busy: [f64; Pipe::ALL.len()],
    /// Cycles of arithmetic and of MTE1, in the order of [`Pipe::ALL`]; 0 for pipes whose cost is in bytes.
    pub cycles: [f64; Pipe::ALL.len()],
    /// Bytes at each level.
    pub traffic: Traffic,
    /// Instructions.
    pub instructions: usize,
}

/// Share of the time from which on the busiest resource limits the kernel.
const SATURATED: f64 = 0.85;

impl Report {
    pub(crate) fn new(kernel: &Kernel) -> Self {
        Self {
            kernel: *kernel,
            kernel_seconds: 0.0,
            busy: [0.0; Pipe::ALL.len()],
            cycles: [0.0; Pipe::ALL.len()],
            traffic: Traffic::default(),
            instructions: 0,
        }
    }

    pub(crate) fn count(&mut self, op: &Op, seconds: f64) {
        let pipe = op.pipe.index();
        self.busy[pipe] += seconds;
        self.instructions += 1;
        let traffic = &mut self.traffic;
        match op.cost {
            Cost::Cycles(cycles) => self.cycles[pipe] += cycles,
            Cost::Bytes { bytes, hbm } => {
                let level = match op.pipe {
                    Pipe::FixP => &mut traffic.l0c_to_l2,
                    Pipe::VectorIn(_) => &mut traffic.l2_to_ub,
                    Pipe::VectorOut(_) => &mut traffic.ub_to_l2,
                    _ => &mut traffic.l2_to_l1,
                };
                *level += bytes;
                if hbm {
                    traffic.hbm += bytes;
                }
            }
        }
        let bytes = (op.region.len() * BF16) as f64;
        match op.action {
            Action::FetchA => traffic.l1_to_l0a += bytes,
            Action::FetchRight => traffic.l1_to_l0b += bytes,
            _ => {}
        }
    }

    /// The call's duration including the launch, in seconds.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.kernel_seconds + self.kernel.machine.calibration.launch
    }

    /// FLOPS utilization: the paper's FU, a share of [`crate::Machine::peak`].
    #[must_use]
    pub fn utilization(&self) -> f64 {
        self.load().flop / (self.seconds() * self.kernel.machine.peak)
    }

    /// The work of the core.
    #[must_use]
    pub const fn load(&self) -> &Load {
        &self.kernel.load
    }

    /// Seconds that each resource would need without waits.
    #[must_use]
    pub fn demands(&self) -> [(Limit, f64); 9] {
        let machine = &self.kernel.machine;
        let (clock, traffic) = (machine.clock(), &self.traffic);
        let port = |bytes: f64, rate: f64| bytes / (rate * clock);
        let cycles = |pipe: Pipe| self.cycles[pipe.index()] / clock;
        let vector = (0..VECTOR_CORES)
            .map(|core| cycles(Pipe::Vector(core)))
            .fold(0.0, f64::max);
        let vector_port = machine.ub_port * self.kernel.vector_cores() as f64;
        let read = traffic.l2_to_l1 + traffic.l2_to_ub;
        let written = traffic.l0c_to_l2 + traffic.ub_to_l2;
        [
            (Limit::Mmad, cycles(Pipe::Mmad)),
            (Limit::Mte1, cycles(Pipe::Mte1)),
            (Limit::Mte2, port(traffic.l2_to_l1, machine.l2_read)),
            (Limit::FixP, port(traffic.l0c_to_l2, machine.l2_write)),
            (Limit::Vector, vector),
            (
                Limit::VectorTransfers,
                port(traffic.l2_to_ub.max(traffic.ub_to_l2), vector_port),
            ),
            (Limit::Hbm, traffic.hbm / machine.hbm_per_core()),
            (Limit::L2Read, port(read, machine.l2_read)),
            (Limit::L2Write, port(written, machine.l2_write)),
        ]
    }

    /// The resource that limits the kernel, and its demand as a share of the kernel's time.
    #[must_use]
    pub fn limit(&self) -> (Limit, f64) {
        let (limit, seconds) =
            self.demands()
                .into_iter()
                .fold((Limit::Dependencies, 0.0), |most, demand| {
                    if demand.1 > most.1 { demand } else { most }
                });
        let share = seconds / self.kernel_seconds;
        if share < SATURATED {
            (Limit::Dependencies, share)
        } else {
            (limit, share)
        }
    }
}
