//! The work of one Cube core: its share of a call, and the order of its stages.

use amla::ProblemShape;
use amla::schedule::{self, Stage};

use crate::machine::Machine;
use crate::op::Work;

/// The algorithm of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Algorithm 1: V2 rescales O on the Vector cores.
    Base,
    /// Algorithm 2: O is rescaled in GM.
    Amla,
}

/// The order in which Cube and Vector stages are issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pipeline {
    /// C1, V1, C2, V2 of one block after the other.
    Serial,
    /// [`schedule::preload`]'s order.
    Preload,
}

impl Pipeline {
    /// C1 stages before the loop.
    #[must_use]
    pub const fn preload_count(self) -> usize {
        match self {
            Self::Serial => 0,
            Self::Preload => schedule::PRELOAD_COUNT,
        }
    }

    /// Tiles in GM of each of S, P and T.
    #[must_use]
    pub const fn tiles(self) -> usize {
        match self {
            Self::Serial => 1,
            // P has as many as S: the Vector cores write one while the Cube core reads the other
            // (`schedule::PROBABILITY_TILES`).
            Self::Preload => schedule::SCORE_TILES,
        }
    }
}

/// The share of the busiest core: row groups, one after the other, each over all keys of its request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Row groups of this core.
    pub groups: usize,
    /// Rows of a group.
    pub rows: usize,
    /// Keys of a group.
    pub keys: usize,
    /// Keys of a full block.
    block: usize,
    /// Width of Q and K.
    pub d_qk: usize,
    /// Width of V and O.
    pub d_v: usize,
    /// FLOP of the call, on all cores.
    pub flop: f64,
    algorithm: Algorithm,
}

impl Load {
    /// The share of the busiest core, if row groups are dealt out evenly. A group has up to `rows` rows:
    /// `s_q` positions of the heads that share a KV head.
    ///
    /// FLOP are the paper's, `2 N_1 S_1 S_2 (D_k + D_v)` for each request (`subsec:arithmeticintensity`).
    #[must_use]
    pub fn new(
        machine: &Machine,
        shape: ProblemShape,
        rows: usize,
        block: usize,
        algorithm: Algorithm,
    ) -> Self {
        let head_rows = shape.s_q.saturating_mul(shape.h_q) / shape.h_kv.max(1);
        let head_groups = head_rows.div_ceil(rows.max(1));
        let all_groups = shape
            .b
            .saturating_mul(shape.h_kv)
            .saturating_mul(head_groups);
        let all_rows = shape.b as f64 * shape.h_q as f64 * shape.s_q as f64;
        Self {
            groups: all_groups.div_ceil(machine.cube_cores.max(1)),
            rows: head_rows.div_ceil(head_groups.max(1)),
            keys: shape.s_k,
            block: block.min(shape.s_k).max(1),
            d_qk: shape.d_qk,
            d_v: shape.d_v,
            flop: 2.0 * all_rows * shape.s_k as f64 * (shape.d_qk + shape.d_v) as f64,
            algorithm,
        }
    }

    /// Keys of a full block.
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

    /// Keys of block `item`. The last block of a group may be partial.
    #[must_use]
    pub const fn keys_of(&self, item: usize) -> usize {
        let remaining = self.keys - self.first_key(item);
        if remaining < self.block {
            remaining
        } else {
            self.block
        }
    }

    /// FP32 columns of a row that V2 and Last bring to UB: T and O in Base, O in AMLA.
    pub(crate) const fn output_columns(&self) -> usize {
        match self.algorithm {
            Algorithm::Base => 2 * self.d_v,
            Algorithm::Amla => self.d_v,
        }
    }

    /// Whether the core has this stage.
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

    /// The stages in the order of `pipeline`.
    #[must_use]
    pub const fn order(&self, pipeline: Pipeline) -> Order {
        self.order_by(pipeline.preload_count())
    }

    /// The stages in the order of [`schedule::preload_by`]: `preload_count` C1 stages run before the loop.
    #[must_use]
    pub const fn order_by(&self, preload_count: usize) -> Order {
        Order {
            load: *self,
            preload_count,
            stages: schedule::preload_by(self.items(), preload_count),
            pending: [None; 3],
        }
    }
}

/// The stages of a [`Load`], from [`Load::order`]: C1, V1 and C2 of [`amla::schedule`], and the Vector
/// stages that the schedule omits.
///
/// * Every V1(i) is followed by Rescale(i), except in the first block of a group.
/// * Base has V2(i) after C2(i). With a preload it has V2(i) after V1(i + 1), which the Cube core needs
///   earlier.
/// * A group's Last follows the last block of the group.
#[derive(Clone, Debug)]
pub struct Order {
    load: Load,
    preload_count: usize,
    stages: schedule::Preload,
    /// The stages before the schedule's next one.
    pending: [Option<Work>; 3],
}

impl Order {
    /// The Vector stages that follow `stage`, in order.
    fn followers(&self, stage: Stage) -> [Option<Work>; 3] {
        let load = &self.load;
        let serial = self.preload_count == 0;
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
        let stage = self.stages.next()?.stage;
        self.pending = self.followers(stage);
        let last_group = self.load.groups.saturating_sub(1);
        Some(Work::of(stage, last_group))
    }
}
