//! What one Cube core has to do: its share of a call.

use super::machine::Machine;
use super::op::Work;
use crate::schedule::{self, Stage};
use crate::shape::Shape;

/// Which algorithm the kernel runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Algorithm 1: V2 rescales O on the Vector cores.
    Base,
    /// Algorithm 2: O is rescaled in GM.
    Amla,
}

/// In which order Cube and Vector stages are issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pipeline {
    /// C1 V1 C2 V2 of one block after the other, each when the one before is done.
    Serial,
    /// [`schedule::preload`]'s order.
    Preload,
}

impl Pipeline {
    /// How many tiles of S, of P and of T there are in GM.
    #[must_use]
    pub const fn tiles(self) -> usize {
        match self {
            Self::Serial => 1,
            // As many of P: the Vector cores write one while the Cube core reads the other
            // (`schedule::PROBABILITY_TILES`).
            Self::Preload => schedule::SCORE_TILES,
        }
    }
}

/// The busiest core's share: row groups, one after the other, each over all keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Row groups of this core.
    pub groups: usize,
    /// Rows of each.
    pub rows: usize,
    /// Keys of each.
    pub keys: usize,
    /// Keys of a block.
    block: usize,
    /// Width of Q and K.
    pub d_qk: usize,
    /// Width of V and O.
    pub d_v: usize,
    /// FLOP of the whole call, on all cores.
    pub flop: f64,
    algorithm: Algorithm,
}

impl Load {
    /// The share of the core that has most to do, if row groups of up to `rows` rows (`s_q` positions
    /// of the heads that share a KV head) are dealt out evenly.
    ///
    /// FLOP are the paper's, `2 N_1 S_1 S_2 (D_k + D_v)` for each request (`subsec:arithmeticintensity`).
    #[must_use]
    pub fn new(
        machine: &Machine,
        shape: Shape,
        rows: usize,
        block: usize,
        algorithm: Algorithm,
    ) -> Self {
        let all = shape.s_q.saturating_mul(shape.h_q) / shape.h_kv.max(1);
        let groups = all.div_ceil(rows.max(1));
        let dealt = shape.b.saturating_mul(shape.h_kv).saturating_mul(groups);
        let rows_of_all = shape.b as f64 * shape.h_q as f64 * shape.s_q as f64;
        Self {
            groups: dealt.div_ceil(machine.cube_cores.max(1)),
            rows: all.div_ceil(groups.max(1)),
            keys: shape.s_k,
            block: block.min(shape.s_k).max(1),
            d_qk: shape.d_qk,
            d_v: shape.d_v,
            flop: 2.0 * rows_of_all * shape.s_k as f64 * (shape.d_qk + shape.d_v) as f64,
            algorithm,
        }
    }

    /// Keys of a whole block.
    #[must_use]
    pub const fn block(&self) -> usize {
        self.block
    }

    /// Blocks of a group.
    #[must_use]
    pub const fn blocks(&self) -> usize {
        self.keys.div_ceil(self.block)
    }

    /// Blocks of all groups.
    #[must_use]
    pub const fn items(&self) -> usize {
        self.groups.saturating_mul(self.blocks())
    }

    /// The group that block `item` belongs to.
    #[must_use]
    pub const fn group(&self, item: usize) -> usize {
        item / self.blocks()
    }

    /// Whether `item` is the first block of its group.
    #[must_use]
    pub const fn is_first(&self, item: usize) -> bool {
        item.is_multiple_of(self.blocks())
    }

    /// The first key of block `item`.
    #[must_use]
    pub const fn first_key(&self, item: usize) -> usize {
        item % self.blocks() * self.block
    }

    /// Keys of block `item`: the last of a group may have fewer.
    #[must_use]
    pub const fn keys_of(&self, item: usize) -> usize {
        let left = self.keys - self.first_key(item);
        if left < self.block { left } else { self.block }
    }

    /// FP32 columns that V2 brings to UB: T and O in Base, none in AMLA but O's for normalising.
    pub(super) const fn output_columns(&self) -> usize {
        match self.algorithm {
            Algorithm::Base => 2 * self.d_v,
            Algorithm::Amla => self.d_v,
        }
    }

    /// Whether this problem has such a stage.
    #[must_use]
    pub const fn has(&self, work: Work) -> bool {
        match (work, self.algorithm) {
            (Work::C1(i) | Work::V1(i) | Work::C2(i), _) | (Work::V2(i), Algorithm::Base) => {
                i < self.items()
            }
            (Work::Rescale(i), Algorithm::Amla) => i < self.items() && !self.is_first(i),
            (Work::Last(group), _) => group < self.groups,
            _ => false,
        }
    }

    /// The stages in the order in which they are issued.
    #[must_use]
    pub const fn order(&self, pipeline: Pipeline) -> Order {
        let stages = match pipeline {
            Pipeline::Preload => Stages::Preload(schedule::preload(self.items())),
            Pipeline::Serial => Stages::Serial {
                items: self.items(),
                step: 0,
            },
        };
        Order {
            load: *self,
            stages,
            pending: [None; 3],
        }
    }
}

/// C1, V1, C2 of every block, and `Last`.
#[derive(Clone, Debug)]
enum Stages {
    Preload(schedule::Preload),
    Serial { items: usize, step: usize },
}

impl Iterator for Stages {
    type Item = Stage;

    fn next(&mut self) -> Option<Stage> {
        match self {
            Self::Preload(steps) => steps.next().map(|step| step.stage),
            Self::Serial { items, step } => {
                let (item, stage) = (*step / 3, *step % 3);
                *step += 1;
                match stage {
                    0 if item == *items => Some(Stage::Last),
                    _ if item >= *items => None,
                    0 => Some(Stage::C1(item)),
                    1 => Some(Stage::V1(item)),
                    _ => Some(Stage::C2(item)),
                }
            }
        }
    }
}

/// The stages of a [`Load`], from [`Load::order`]: C1, V1 and C2 as [`crate::schedule`] has them, and
/// between them the Vector stages that it leaves out.
///
/// * A group's first block has no Rescale; every other V1(i) is followed by Rescale(i).
/// * Base has V2(i) behind C2(i), in the preload order behind V1(i + 1), which the Cube core needs
///   earlier.
/// * A group's Last follows when all its blocks are through.
#[derive(Clone, Debug)]
pub struct Order {
    load: Load,
    stages: Stages,
    /// What comes before the next stage, last first.
    pending: [Option<Work>; 3],
}

impl Order {
    /// What follows `stage` on the Vector cores, first first.
    fn followers(&self, stage: Stage) -> [Option<Work>; 3] {
        let load = &self.load;
        let serial = matches!(self.stages, Stages::Serial { .. });
        let base = load.algorithm == Algorithm::Base;
        match stage {
            Stage::V1(i) => {
                let update = (base && !serial && i > 0).then(|| Work::V2(i - 1));
                let last = (load.is_first(i) && i > 0).then(|| Work::Last(load.group(i) - 1));
                let rescale = (!base && !load.is_first(i)).then_some(Work::Rescale(i));
                [update, last, rescale]
            }
            Stage::C2(i) if base && (serial || i + 1 == load.items()) => {
                [Some(Work::V2(i)), None, None]
            }
            _ => [None; 3],
        }
    }
}

impl Iterator for Order {
    type Item = Work;

    fn next(&mut self) -> Option<Work> {
        if let Some(work) = self.pending.iter_mut().find_map(Option::take) {
            return Some(work);
        }
        let stage = self.stages.next()?;
        self.pending = self.followers(stage);
        let last_group = self.load.groups.saturating_sub(1);
        Some(Work::of(stage, last_group))
    }
}
