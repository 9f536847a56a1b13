//! A kernel: the machine, the tiling, the algorithm, the pipeline and the work of a core.

use amla::ProblemShape;

use crate::arch::{HALVES, VECTOR_CORES};
use crate::fault::Fault;
use crate::load::{Algorithm, Load, Order, Pipeline};
use crate::machine::Machine;
use crate::op::{Buffer, Dependency, Slot, Work};
use crate::scoreboard::MAX_SLOTS;
use crate::tiling::Tiling;

/// A kernel that fits its machine, from [`Kernel::new`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kernel {
    pub(crate) machine: Machine,
    pub(crate) tiling: Tiling,
    pub(crate) algorithm: Algorithm,
    pub(crate) pipeline: Pipeline,
    pub(crate) load: Load,
    pub(crate) ignored: Option<Dependency>,
}

impl Kernel {
    /// The kernel that computes `shape` on `machine`, seen from its busiest core.
    ///
    /// # Errors
    /// A size that is 0, a rate that isn't a positive number, or what [`Tiling::check`] refuses.
    pub fn new(
        machine: Machine,
        tiling: Tiling,
        algorithm: Algorithm,
        pipeline: Pipeline,
        shape: ProblemShape,
    ) -> Result<Self, Fault> {
        for (what, value) in [
            ("b", shape.b),
            ("s_q", shape.s_q),
            ("s_k", shape.s_k),
            ("h_q", shape.h_q),
            ("h_kv", shape.h_kv),
            ("d_qk", shape.d_qk),
            ("d_v", shape.d_v),
            ("rows", tiling.rows),
            ("the block", tiling.block),
        ] {
            if value == 0 {
                let multiple_of = 1;
                return Err(Fault::Size {
                    what,
                    value,
                    multiple_of,
                });
            }
        }
        machine.check()?;
        let load = Load::new(&machine, shape, tiling.rows, tiling.block, algorithm);
        if load.rows == 0 {
            return Err(Fault::Size {
                what: "the rows of a KV head",
                value: 0,
                multiple_of: 1,
            });
        }
        tiling.check(&machine, &load)?;
        Ok(Self {
            machine,
            tiling,
            algorithm,
            pipeline,
            load,
            ignored: None,
        })
    }

    /// The same kernel without the waits for `dependency`: the fault that follows shows its purpose.
    #[must_use]
    pub const fn ignoring(self, dependency: Dependency) -> Self {
        Self {
            ignored: Some(dependency),
            ..self
        }
    }

    /// The work of the core.
    #[must_use]
    pub const fn load(&self) -> &Load {
        &self.load
    }

    /// The tiling.
    #[must_use]
    pub const fn tiling(&self) -> &Tiling {
        &self.tiling
    }

    /// The machine.
    #[must_use]
    pub const fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The algorithm.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The pipeline.
    #[must_use]
    pub const fn pipeline(&self) -> Pipeline {
        self.pipeline
    }

    /// The stages in the pipeline's order.
    #[must_use]
    pub const fn order(&self) -> Order {
        self.load.order(self.pipeline)
    }

    /// The slot in GM of S, P or T of block `item`, or of O of row group `item`.
    pub(crate) const fn gm(&self, buffer: Buffer, item: usize) -> Slot {
        let index = match buffer {
            Buffer::Output => item % (MAX_SLOTS / VECTOR_CORES) * VECTOR_CORES,
            _ => item % self.pipeline.tiles(),
        };
        Slot { buffer, index }
    }

    /// The slot in GM of O of a row group, for Vector core `core`. AMLA has one slot, on which the Cube
    /// core works; Base has one per Vector core, for its rows.
    pub(crate) const fn output(&self, group: usize, core: usize) -> Slot {
        let mut slot = self.gm(Buffer::Output, group);
        if matches!(self.algorithm, Algorithm::Base) {
            slot.index += core;
        }
        slot
    }

    pub(crate) const fn l0c(&self, accumulator: usize) -> Slot {
        Slot {
            buffer: Buffer::L0c,
            index: accumulator % HALVES,
        }
    }

    pub(crate) const fn pipeline_is_serial_base(&self) -> bool {
        matches!(
            (self.pipeline, self.algorithm),
            (Pipeline::Serial, Algorithm::Base)
        )
    }

    /// Vector cores that have rows: one, if the group has a single row.
    pub(crate) fn vector_cores(&self) -> usize {
        self.load.rows.min(VECTOR_CORES)
    }

    /// Tiles of P that C2 loads to L1.
    pub(crate) const fn stripes_of_p(&self, item: usize) -> usize {
        let cut = &self.tiling.c2;
        let depth = self.load.keys_of(item).div_ceil(cut.single_k);
        self.load.rows.div_ceil(cut.single_m) * depth
    }

    /// Rescales up to block `item`'s: every block has one, except the first of a group.
    pub(crate) const fn rescales_through(&self, item: usize) -> usize {
        item - self.load.group(item)
    }

    /// The row group of a stage.
    pub(crate) const fn group_of(&self, work: Work) -> usize {
        match work {
            Work::Last(group) => group,
            Work::C1(i) | Work::V1(i) | Work::Rescale(i) | Work::C2(i) | Work::V2(i) => {
                self.load.group(i)
            }
        }
    }

    /// The last block of a group.
    pub(crate) const fn last_item(&self, group: usize) -> usize {
        (group + 1) * self.load.blocks() - 1
    }
}
