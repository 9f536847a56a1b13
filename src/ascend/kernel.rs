//! A kernel: what is computed, how it is cut, in which order, on which machine.

use super::engine::{self, Observer};
use super::fault::Fault;
use super::machine::{Machine, VECTOR_CORES};
use super::op::{Buffer, Dependency, Slot, Work};
use super::problem::{Algorithm, Load, Order, Pipeline};
use super::report::Report;
use super::scoreboard::MAX_SLOTS;
use super::tiling::{HALVES, Tiling};
use super::vector;
use crate::shape::Shape;

/// A kernel that fits its machine, from [`Kernel::new`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kernel {
    pub(super) machine: Machine,
    pub(super) tiling: Tiling,
    pub(super) algorithm: Algorithm,
    pub(super) pipeline: Pipeline,
    pub(super) load: Load,
    pub(super) ignored: Option<Dependency>,
}

impl Kernel {
    /// A kernel for the busiest core of `machine`, which runs `shape`.
    ///
    /// # Errors
    /// What of the tiling doesn't fit ([`Tiling::check`]), what of the machine isn't a number, or that
    /// there is nothing to do.
    pub fn new(
        machine: Machine,
        tiling: Tiling,
        algorithm: Algorithm,
        pipeline: Pipeline,
        shape: Shape,
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

    /// The same kernel, but nobody waits for `dependency`: what breaks tells what it is for.
    #[must_use]
    pub const fn ignoring(self, dependency: Dependency) -> Self {
        Self {
            ignored: Some(dependency),
            ..self
        }
    }

    /// What the core has to do.
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

    /// Runs [`Kernel::order`] and says how long it takes.
    ///
    /// It takes about 200 KiB of stack.
    ///
    /// # Errors
    /// What goes wrong, if a dependency is ignored.
    pub fn run(&self) -> Result<Report, Fault> {
        self.run_with(self.order(), &mut ())
    }

    /// Runs stages in any order, and shows `observer` every instruction. Cube and Vector cores each
    /// take theirs from it, in its order.
    ///
    /// # Errors
    /// What is wrong with the order: the operand that isn't there, the result that is overwritten, the
    /// dependency that is never met, the stage that doesn't exist or is missing.
    pub fn run_with(
        &self,
        order: impl Iterator<Item = Work> + Clone,
        observer: &mut impl Observer,
    ) -> Result<Report, Fault> {
        engine::run(self, order, observer)
    }

    /// Where a tile of S, P or T of block `item` lies in GM.
    pub(super) const fn gm(&self, buffer: Buffer, item: usize) -> Slot {
        let index = match buffer {
            Buffer::Output => item % (MAX_SLOTS / VECTOR_CORES) * VECTOR_CORES,
            _ => item % self.pipeline.tiles(),
        };
        Slot { buffer, index }
    }

    /// Where O of a row group lies in GM, for Vector core `core`: in AMLA all of it is one, as the Cube
    /// core works on it; in Base each core has its rows to itself.
    pub(super) const fn output(&self, group: usize, core: usize) -> Slot {
        let mut slot = self.gm(Buffer::Output, group);
        if matches!(self.algorithm, Algorithm::Base) {
            slot.index += core;
        }
        slot
    }

    pub(super) const fn l0c(&self, accumulator: usize) -> Slot {
        Slot {
            buffer: Buffer::L0c,
            index: accumulator % HALVES,
        }
    }

    pub(super) const fn pipeline_is_serial_base(&self) -> bool {
        matches!(
            (self.pipeline, self.algorithm),
            (Pipeline::Serial, Algorithm::Base)
        )
    }

    /// Vector cores that have rows: a single row has no second half.
    pub(super) fn vector_cores(&self) -> usize {
        self.load.rows.min(VECTOR_CORES)
    }

    /// Chunks of rows on all Vector cores.
    pub(super) fn row_chunks(&self) -> usize {
        (0..VECTOR_CORES)
            .map(|core| vector::chunks(self, core))
            .sum()
    }

    /// Tiles of P that C2 loads to L1.
    pub(super) const fn stripes_of_p(&self, item: usize) -> usize {
        let cut = &self.tiling.c2;
        let depth = self.load.keys_of(item).div_ceil(cut.single_k);
        self.load.rows.div_ceil(cut.single_m) * depth
    }

    /// Rescales up to that of block `item`: each block has one but the first of a group.
    pub(super) const fn rescales_through(&self, item: usize) -> usize {
        item - self.load.group(item)
    }

    /// The row group that a stage works on.
    pub(super) const fn group_of(&self, work: Work) -> usize {
        match work {
            Work::Last(group) => group,
            Work::C1(i) | Work::V1(i) | Work::Rescale(i) | Work::C2(i) | Work::V2(i) => {
                self.load.group(i)
            }
        }
    }

    /// The last block of a group.
    pub(super) const fn last_item(&self, group: usize) -> usize {
        (group + 1) * self.load.blocks() - 1
    }
}
