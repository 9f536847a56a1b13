//! Stages, pipes, buffers, tiles and dependencies, and the instruction that consists of them.

use core::fmt;

use crate::arch::VECTOR_CORES;
use amla::schedule;

/// A stage of one key block, or of one row group. Blocks are numbered through all row groups of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// S = Q Kᵀ on the Cube core (Algorithm 2, line 4).
    C1(usize),
    /// Softmax on the Vector cores (lines 5 to 12).
    V1(usize),
    /// O's integer addition, `AtomicAdd<INT32>` from the Vector cores (lines 14 and 15).
    ///
    /// A part of V1 in the paper. It is a stage of its own here because it depends on C2(i - 1), and V1(i)
    /// doesn't: the product that C2(i - 1) adds has to be rescaled as well.
    Rescale(usize),
    /// O += P V on the Cube core (lines 17 and 18); Base: T = P V (Algorithm 1, line 6).
    C2(usize),
    /// O = O exp(m' - m) + T on the Vector cores (Algorithm 1, line 7). Base only.
    V2(usize),
    /// Normalisation of a row group's O (Algorithm 2, line 20).
    Last(usize),
}

impl Work {
    /// The stage of [`amla::schedule`]; [`schedule::Stage::Last`] normalises row group `group`.
    #[must_use]
    pub const fn of(stage: schedule::Stage, group: usize) -> Self {
        match stage {
            schedule::Stage::C1(i) => Self::C1(i),
            schedule::Stage::V1(i) => Self::V1(i),
            schedule::Stage::C2(i) => Self::C2(i),
            schedule::Stage::Last => Self::Last(group),
        }
    }

    /// The number of its block, or of its row group.
    pub(crate) const fn number(self) -> usize {
        match self {
            Self::C1(i)
            | Self::V1(i)
            | Self::Rescale(i)
            | Self::C2(i)
            | Self::V2(i)
            | Self::Last(i) => i,
        }
    }

    /// Whether the Cube core runs it.
    #[must_use]
    pub const fn is_cube(self) -> bool {
        matches!(self, Self::C1(_) | Self::C2(_))
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::C1(i) => write!(f, "C1({i})"),
            Self::V1(i) => write!(f, "V1({i})"),
            Self::Rescale(i) => write!(f, "Rescale({i})"),
            Self::C2(i) => write!(f, "C2({i})"),
            Self::V2(i) => write!(f, "V2({i})"),
            Self::Last(i) => write!(f, "Last({i})"),
        }
    }
}

/// A pipe runs instructions one at a time and in order. The Cube core has four
/// (`subsec:cubestagepipeline`), each Vector core three.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pipe {
    /// GM to L1.
    Mte2,
    /// L1 to L0A and L0B.
    Mte1,
    /// Multiply-accumulate, L0A and L0B to L0C.
    Mmad,
    /// L0C to GM.
    FixP,
    /// GM to UB, of a Vector core (its MTE2).
    VectorIn(usize),
    /// Arithmetic of a Vector core.
    Vector(usize),
    /// UB to GM, of a Vector core (its MTE3).
    VectorOut(usize),
}

impl Pipe {
    /// All pipes, in the order of [`Pipe::index`].
    pub const ALL: [Self; 4 + 3 * VECTOR_CORES] = [
        Self::Mte2,
        Self::Mte1,
        Self::Mmad,
        Self::FixP,
        Self::VectorIn(0),
        Self::Vector(0),
        Self::VectorOut(0),
        Self::VectorIn(1),
        Self::Vector(1),
        Self::VectorOut(1),
    ];

    /// The Vector core, or `None` for the Cube core.
    #[must_use]
    pub const fn core(self) -> Option<usize> {
        match self {
            Self::Mte2 | Self::Mte1 | Self::Mmad | Self::FixP => None,
            Self::VectorIn(core) | Self::Vector(core) | Self::VectorOut(core) => Some(core),
        }
    }

    /// Its index in [`Pipe::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        match self {
            Self::Mte2 => 0,
            Self::Mte1 => 1,
            Self::Mmad => 2,
            Self::FixP => 3,
            Self::VectorIn(core) => 4 + 3 * core,
            Self::Vector(core) => 5 + 3 * core,
            Self::VectorOut(core) => 6 + 3 * core,
        }
    }
}

/// Vector cores have CANN's name, as V1 and V2 are stages.
impl fmt::Display for Pipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mte2 => f.write_str("MTE2"),
            Self::Mte1 => f.write_str("MTE1"),
            Self::Mmad => f.write_str("MMAD"),
            Self::FixP => f.write_str("FixP"),
            Self::VectorIn(core) => write!(f, "AIV{core} in"),
            Self::Vector(core) => write!(f, "AIV{core}"),
            Self::VectorOut(core) => write!(f, "AIV{core} out"),
        }
    }
}

/// A kind of buffer that holds tiles (`fig:hier-tiling`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Buffer {
    /// L1's buffers for Q and P.
    L1Qp,
    /// L1's buffers for K and V.
    L1Kv,
    /// Left operands.
    L0a,
    /// Right operands.
    L0b,
    /// Accumulators.
    L0c,
    /// Operands of a Vector core's arithmetic.
    UbIn(usize),
    /// Results of a Vector core's arithmetic.
    UbOut(usize),
    /// S in GM.
    Scores,
    /// P in GM.
    Probabilities,
    /// T in GM. Base only.
    Products,
    /// O in GM.
    Output,
}

impl Buffer {
    /// How many kinds there are.
    pub(crate) const COUNT: usize = 9 + 2 * VECTOR_CORES;

    /// Its index, below [`Buffer::COUNT`].
    pub(crate) const fn index(self) -> usize {
        match self {
            Self::L1Qp => 0,
            Self::L1Kv => 1,
            Self::L0a => 2,
            Self::L0b => 3,
            Self::L0c => 4,
            Self::Scores => 5,
            Self::Probabilities => 6,
            Self::Products => 7,
            Self::Output => 8,
            Self::UbIn(core) => 9 + 2 * core,
            Self::UbOut(core) => 10 + 2 * core,
        }
    }
}

impl fmt::Display for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::L1Qp => f.write_str("L1 for Q/P"),
            Self::L1Kv => f.write_str("L1 for K/V"),
            Self::L0a => f.write_str("L0A"),
            Self::L0b => f.write_str("L0B"),
            Self::L0c => f.write_str("L0C"),
            Self::UbIn(core) => write!(f, "UB of AIV{core}, in"),
            Self::UbOut(core) => write!(f, "UB of AIV{core}, out"),
            Self::Scores => f.write_str("S in GM"),
            Self::Probabilities => f.write_str("P in GM"),
            Self::Products => f.write_str("T in GM"),
            Self::Output => f.write_str("O in GM"),
        }
    }
}

/// One buffer of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot {
    /// The kind.
    pub buffer: Buffer,
    /// The index among the buffers of that kind.
    pub index: usize,
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} [{}]", self.buffer, self.index)
    }
}

/// The matrix that a tile is a part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Matrix {
    /// Queries.
    Q,
    /// Keys.
    K,
    /// Values.
    V,
    /// Probabilities.
    P,
    /// Scores.
    S,
    /// P V of one block, before its addition to O.
    T,
    /// O with the block's P V.
    O,
    /// O after the block's rescale, without its P V.
    Rescaled,
    /// The rescale's increments, one for each element of O.
    N,
}

/// The name of a tile: the part of `matrix` of block `item` that begins at `row` and `column`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tile {
    /// The matrix.
    pub matrix: Matrix,
    /// The key block, numbered through all row groups of a core.
    pub item: usize,
    /// Its first row (K and V: its first column of the product).
    pub row: u32,
    /// Its first column (operands of a product: its first index in depth).
    pub column: u32,
}

impl Tile {
    /// The tile that begins at `row`, `column`.
    #[must_use]
    pub(crate) fn at(matrix: Matrix, item: usize, row: usize, column: usize) -> Self {
        Self {
            matrix,
            item,
            row: small(row),
            column: small(column),
        }
    }

    /// All of a block's matrix.
    #[must_use]
    pub const fn full(matrix: Matrix, item: usize) -> Self {
        Self {
            matrix,
            item,
            row: 0,
            column: 0,
        }
    }
}

impl fmt::Display for Tile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            matrix,
            item,
            row,
            column,
        } = self;
        match matrix {
            Matrix::Rescaled => write!(f, "O rescaled for block {item}")?,
            Matrix::O => write!(f, "O with block {item}")?,
            _ => write!(f, "{matrix:?}({item})")?,
        }
        if (*row, *column) == (0, 0) {
            Ok(())
        } else {
            write!(f, " from {row}, {column}")
        }
    }
}

/// A size as a `u32`, so that instructions and faults are small. Larger sizes don't occur.
pub(crate) fn small(size: usize) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}

/// A dependency between two pipes. Like the hardware's event flags, each is a counter of signals; a
/// Vector core's dependencies have a counter per core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dependency {
    /// MTE2 -> MTE1: a tile of Q or P is in L1.
    QpArrived,
    /// MTE1 -> MTE2: a buffer for Q or P may be overwritten.
    QpReleased,
    /// MTE2 -> MTE1: a tile of K or V is in L1.
    KvArrived,
    /// MTE1 -> MTE2: a buffer for K or V may be overwritten.
    KvReleased,
    /// MTE1 -> MMAD: both operands are in L0.
    L0Arrived,
    /// MMAD -> MTE1: both operands may be overwritten.
    L0Released,
    /// MMAD -> FixP: an accumulator is complete.
    L0cArrived,
    /// FixP -> MMAD: an accumulator may be overwritten.
    L0cReleased,
    /// C1 -> V1: S of a block is in GM.
    ScoresReady,
    /// V1 -> C1: S of a block may be overwritten.
    ScoresConsumed,
    /// V1 -> C2: P of a block is in GM.
    ProbabilitiesReady,
    /// C2 -> V1: P of a block may be overwritten.
    ProbabilitiesConsumed,
    /// C2 -> Rescale and Last: O has the block's P V.
    OutputAccumulated,
    /// Rescale -> C2: O is scaled for the next block.
    OutputRescaled,
    /// C2 -> V2: T of a block is in GM.
    ProductsReady,
    /// V2 -> C2: T of a block may be overwritten.
    ProductsConsumed,
    /// V2 -> V2 and Last: O of the previous block is in GM.
    OutputUpdated,
    /// GM to UB -> arithmetic: a chunk is in UB.
    UbInArrived,
    /// Arithmetic -> GM to UB: a chunk may be overwritten.
    UbInReleased,
    /// Arithmetic -> UB to GM: a chunk is ready.
    UbOutArrived,
    /// UB to GM -> arithmetic: a chunk may be overwritten.
    UbOutReleased,
    /// Last -> host: the result of a row group is in GM.
    ResultsReady,
}

impl Dependency {
    /// All dependencies, in the order of declaration.
    pub const ALL: [Self; 22] = [
        Self::QpArrived,
        Self::QpReleased,
        Self::KvArrived,
        Self::KvReleased,
        Self::L0Arrived,
        Self::L0Released,
        Self::L0cArrived,
        Self::L0cReleased,
        Self::ScoresReady,
        Self::ScoresConsumed,
        Self::ProbabilitiesReady,
        Self::ProbabilitiesConsumed,
        Self::OutputAccumulated,
        Self::OutputRescaled,
        Self::ProductsReady,
        Self::ProductsConsumed,
        Self::OutputUpdated,
        Self::UbInArrived,
        Self::UbInReleased,
        Self::UbOutArrived,
        Self::UbOutReleased,
        Self::ResultsReady,
    ];

    /// Its index in [`Dependency::ALL`].
    pub(crate) const fn index(self) -> usize {
        self as usize
    }

    /// The pipe that signals it; `core` is the index of the Vector core.
    #[must_use]
    pub const fn sender(self, core: usize) -> Pipe {
        match self {
            Self::QpArrived | Self::KvArrived | Self::ProbabilitiesConsumed => Pipe::Mte2,
            Self::QpReleased | Self::KvReleased | Self::L0Arrived => Pipe::Mte1,
            Self::L0Released | Self::L0cArrived => Pipe::Mmad,
            Self::L0cReleased
            | Self::ScoresReady
            | Self::OutputAccumulated
            | Self::ProductsReady => Pipe::FixP,
            Self::ScoresConsumed | Self::ProductsConsumed | Self::UbInArrived => {
                Pipe::VectorIn(core)
            }
            Self::UbInReleased | Self::UbOutArrived => Pipe::Vector(core),
            Self::ProbabilitiesReady
            | Self::OutputRescaled
            | Self::OutputUpdated
            | Self::UbOutReleased
            | Self::ResultsReady => Pipe::VectorOut(core),
        }
    }

    /// Whether it orders the Cube core and a Vector core.
    #[must_use]
    pub const fn is_between_cores(self) -> bool {
        matches!(
            self,
            Self::ScoresReady
                | Self::ScoresConsumed
                | Self::ProbabilitiesReady
                | Self::ProbabilitiesConsumed
                | Self::OutputAccumulated
                | Self::OutputRescaled
                | Self::ProductsReady
                | Self::ProductsConsumed
        )
    }
}

impl fmt::Display for Dependency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::QpArrived => "MTE2 -> MTE1, Q/P in L1",
            Self::QpReleased => "MTE1 -> MTE2, a free Q/P buffer in L1",
            Self::KvArrived => "MTE2 -> MTE1, K/V in L1",
            Self::KvReleased => "MTE1 -> MTE2, a free K/V buffer in L1",
            Self::L0Arrived => "MTE1 -> MMAD, operands in L0A and L0B",
            Self::L0Released => "MMAD -> MTE1, free halves of L0A and L0B",
            Self::L0cArrived => "MMAD -> FixP, a sum in L0C",
            Self::L0cReleased => "FixP -> MMAD, a free half of L0C",
            Self::ScoresReady => "C1 -> V1, S in GM",
            Self::ScoresConsumed => "V1 -> C1, a free S in GM",
            Self::ProbabilitiesReady => "V1 -> C2, P in GM",
            Self::ProbabilitiesConsumed => "C2 -> V1, a free P in GM",
            Self::OutputAccumulated => "C2 -> Rescale, P V added to O",
            Self::OutputRescaled => "Rescale -> C2, O rescaled",
            Self::ProductsReady => "C2 -> V2, T in GM",
            Self::ProductsConsumed => "V2 -> C2, a free T in GM",
            Self::OutputUpdated => "V2 -> V2, O in GM",
            Self::UbInArrived => "GM -> Vector, a chunk in UB",
            Self::UbInReleased => "Vector -> GM, a free input chunk of UB",
            Self::UbOutArrived => "Vector -> GM, a result in UB",
            Self::UbOutReleased => "GM -> Vector, a free output chunk of UB",
            Self::ResultsReady => "Last -> host, the result in GM",
        })
    }
}

/// A counter of signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flag {
    pub dependency: Dependency,
    /// The index of the Vector core; 0 for the Cube core.
    pub core: usize,
}

/// A condition to start: `flag` has at least `signals`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wait {
    pub flag: Flag,
    pub signals: usize,
}

/// An instruction's use of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Reads all of `tile`.
    Read { slot: Slot, tile: Tile },
    /// Writes one of the `parts` of `tile`, which instructions then read `uses` times.
    Write {
        slot: Slot,
        tile: Tile,
        parts: usize,
        uses: usize,
    },
    /// Updates one of the `parts` of `from` in place to `to`. `None`: any contents.
    Update {
        slot: Slot,
        from: Option<Tile>,
        to: Tile,
        parts: usize,
    },
}

/// An instruction's operation on data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A tile of Q or P from GM to L1.
    LoadA,
    /// A tile of K or V from GM to L1.
    LoadRight,
    /// A tile of Q or P from L1 to L0A.
    FetchA,
    /// A tile of K or V from L1 to L0B.
    FetchRight,
    /// L0C = L0A L0B for the first operands in depth, L0C += L0A L0B for the others.
    Multiply {
        /// Whether the operands are the first in depth.
        first: bool,
        /// Depth of the operands.
        depth: usize,
    },
    /// L0C to GM.
    Store,
    /// L0C to GM by `AtomicAdd<FP32>`.
    AtomicAdd,
    /// Rows from GM to UB.
    ChunkIn,
    /// Arithmetic in UB.
    Compute,
    /// Rows from UB to GM.
    ChunkOut,
    /// Rows from UB to GM by `AtomicAdd<INT32>`.
    AtomicAddInt,
}

/// The rectangle of a matrix that an instruction moves or computes, in elements. The columns of an
/// operand are its depth; the rows of K and V are the columns of the product.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Region {
    /// First row.
    pub row: usize,
    /// Rows.
    pub rows: usize,
    /// First column.
    pub column: usize,
    /// Columns.
    pub columns: usize,
}

impl Region {
    /// Number of elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.rows * self.columns
    }

    /// Whether it has no element.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The cost of an instruction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Cost {
    /// Cycles of its pipe.
    Cycles(f64),
    /// Bytes through L2, in the pipe's direction; `hbm` if they come from HBM.
    Bytes { bytes: f64, hbm: bool },
}

/// Maximum number of waits of an instruction.
pub(crate) const WAITS: usize = 5;

/// One instruction of one pipe.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    /// The pipe that runs it.
    pub pipe: Pipe,
    /// The stage that it belongs to.
    pub work: Work,
    /// Its operation.
    pub action: Action,
    /// The part of the matrix that it moves or computes.
    pub region: Region,
    /// The buffer that it reads, if any.
    pub source: Option<Slot>,
    /// The buffer that it writes, if any.
    pub target: Option<Slot>,
    pub(crate) cost: Cost,
    pub(crate) accesses: [Option<Access>; 3],
    pub(crate) waits: [Option<Wait>; WAITS],
    pub(crate) signals: [Option<Flag>; 2],
}

impl Op {
    pub(crate) const fn new(
        pipe: Pipe,
        work: Work,
        action: Action,
        region: Region,
        cost: Cost,
    ) -> Self {
        Self {
            pipe,
            work,
            action,
            region,
            source: None,
            target: None,
            cost,
            accesses: [None; 3],
            waits: [None; WAITS],
            signals: [None; 2],
        }
    }

    /// Reads `tile` in `slot`.
    pub(crate) fn reads(mut self, slot: Slot, tile: Tile) -> Self {
        self.source = self.source.or(Some(slot));
        self.access(Access::Read { slot, tile });
        self
    }

    /// Writes one of the `parts` of `tile` to `slot`; they are then read `uses` times.
    pub(crate) fn writes(mut self, slot: Slot, tile: Tile, parts: usize, uses: usize) -> Self {
        self.target = Some(slot);
        self.access(Access::Write {
            slot,
            tile,
            parts,
            uses,
        });
        self
    }

    /// Updates one of the `parts` of `from` in `slot` to `to`.
    pub(crate) fn updates(
        mut self,
        slot: Slot,
        from: Option<Tile>,
        to: Tile,
        parts: usize,
    ) -> Self {
        self.target = Some(slot);
        self.access(Access::Update {
            slot,
            from,
            to,
            parts,
        });
        self
    }

    /// Waits until `dependency` of `core` has `signals`.
    pub(crate) fn waits(mut self, dependency: Dependency, core: usize, signals: usize) -> Self {
        let flag = Flag { dependency, core };
        let unused = self.waits.iter_mut().find(|wait| wait.is_none());
        *unused.expect("an instruction has at most 5 waits") = Some(Wait { flag, signals });
        self
    }

    /// [`Op::waits`] for the first `cores` Vector cores.
    pub(crate) fn waits_for_all(
        self,
        cores: usize,
        dependency: Dependency,
        signals: usize,
    ) -> Self {
        (0..cores).fold(self, |op, core| op.waits(dependency, core, signals))
    }

    /// Signals `dependency` of `core` at its end.
    pub(crate) fn signals(mut self, dependency: Dependency, core: usize) -> Self {
        let unused = self.signals.iter_mut().find(|signal| signal.is_none());
        *unused.expect("an instruction has at most 2 signals") = Some(Flag { dependency, core });
        self
    }

    fn access(&mut self, access: Access) {
        let unused = self.accesses.iter_mut().find(|access| access.is_none());
        *unused.expect("an instruction has at most 3 operands") = Some(access);
    }
}
