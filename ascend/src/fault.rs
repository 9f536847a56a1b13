//! Why a tiling or a schedule is refused. The error names the buffer or the dependency.

use core::fmt;

use crate::op::{Buffer, Dependency, Pipe, Slot, Tile, Work};

/// A defect of a machine, a tiling or a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// A size is zero, or not a multiple of the required number, e.g. the edge of the Cube's fractal.
    Size {
        /// The name of the size.
        what: &'static str,
        /// Its value.
        value: usize,
        /// The required divisor.
        multiple_of: usize,
    },
    /// A rate of the machine isn't a positive number, or its launch or HBM credit is negative or not finite.
    Rate {
        /// The name of the rate.
        what: &'static str,
    },
    /// More bytes than the buffer has (the inequalities of `subsec:cubestagepipeline`).
    Overflow {
        /// The buffer.
        buffer: Buffer,
        /// The tile that doesn't fit.
        what: &'static str,
        /// Its bytes.
        bytes: usize,
        /// The buffer's bytes.
        available: usize,
    },
    /// A product needs more tiles at once than there are buffers.
    NotEnoughBuffers {
        /// The kind of buffer.
        buffer: Buffer,
        /// The operand that needs them.
        what: &'static str,
        /// The number that it needs.
        needed: usize,
        /// The number that the tiling has.
        available: usize,
    },
    /// More buffers of a kind than the model tracks ([`MAX_SLOTS`](crate::MAX_SLOTS)).
    TooManyBuffers {
        /// The kind of buffer.
        buffer: Buffer,
        /// The number that the tiling has.
        requested: usize,
        /// The largest number.
        limit: usize,
    },
    /// A slice of data for the functional mode has the wrong length.
    WrongLength {
        /// The name of the slice.
        what: &'static str,
        /// Its length, in elements.
        given: usize,
        /// The required length, in elements.
        needed: usize,
    },
    /// The schedule has a stage of a block or row group that doesn't exist, or a stage that the algorithm
    /// lacks.
    NoSuchWork {
        /// The stage.
        work: Work,
    },
    /// An operand is missing or incomplete when its instruction starts.
    UseBeforeArrival {
        /// The instruction's pipe.
        pipe: Pipe,
        /// The instruction's stage.
        work: Work,
        /// The buffer that it reads.
        slot: Slot,
        /// The operand.
        wanted: Tile,
        /// The buffer's contents: the tile, the number of parts that have arrived, and of all its parts.
        held: Option<(Tile, u32, u32)>,
    },
    /// A result would overwrite data that an instruction has yet to read.
    OverwriteBeforeUse {
        /// The instruction's pipe.
        pipe: Pipe,
        /// The instruction's stage.
        work: Work,
        /// The buffer that it writes.
        slot: Slot,
        /// The tile that it writes.
        tile: Tile,
        /// The tile that it would overwrite.
        held: Tile,
        /// The number of reads of that tile that are outstanding.
        uses: usize,
    },
    /// No instruction runs, and this one waits for a signal that no instruction will send.
    Deadlock {
        /// The instruction's pipe.
        pipe: Pipe,
        /// The instruction's stage.
        work: Work,
        /// The dependency.
        dependency: Dependency,
        /// The number of signals that it needs.
        needed: usize,
        /// The number of signals so far.
        signals: usize,
    },
    /// The schedule ended with data that no instruction has read.
    NeverUsed {
        /// The buffer.
        slot: Slot,
        /// The unread tile.
        tile: Tile,
    },
    /// The schedule didn't normalise each row group exactly once (Algorithm 2, line 20).
    NotNormalised {
        /// Row groups of the core.
        groups: usize,
        /// Row groups with a result.
        normalised: usize,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Size {
                what,
                value,
                multiple_of: 1,
            } => write!(f, "{what} is {value}"),
            Self::Size {
                what,
                value,
                multiple_of,
            } => write!(
                f,
                "{what} is {value}; it must be a multiple of {multiple_of}, and not 0"
            ),
            Self::Rate { what } => write!(f, "{what} isn't a positive number"),
            Self::Overflow {
                buffer,
                what,
                bytes,
                available,
            } => write!(
                f,
                "{buffer} overflows: {what} takes {bytes} bytes of {available}"
            ),
            Self::NotEnoughBuffers {
                buffer,
                what,
                needed,
                available,
            } => write!(
                f,
                "{buffer}: {what} needs {needed} buffers at once, there are {available}"
            ),
            Self::TooManyBuffers {
                buffer,
                requested,
                limit,
            } => write!(
                f,
                "{buffer}: {requested} buffers, the model has at most {limit}"
            ),
            Self::WrongLength {
                what,
                given,
                needed,
            } => write!(f, "{what} has {given} elements, the kernel needs {needed}"),
            Self::NoSuchWork { work } => {
                write!(f, "the schedule has {work}, which this problem hasn't")
            }
            Self::UseBeforeArrival {
                pipe,
                work,
                slot,
                wanted,
                held,
            } => {
                write!(f, "{work} on {pipe} uses {wanted} before it is in {slot}, ")?;
                match held {
                    None => f.write_str("which is empty"),
                    Some((tile, arrived, parts)) if arrived < parts => {
                        write!(f, "which holds {arrived} of {parts} parts of {tile}")
                    }
                    Some((tile, ..)) => write!(f, "which holds {tile}"),
                }
            }
            Self::OverwriteBeforeUse {
                pipe,
                work,
                slot,
                tile,
                held,
                uses,
            } => write!(
                f,
                "{work} on {pipe} overwrites {held} in {slot} with {tile}, {uses} uses too early"
            ),
            Self::Deadlock {
                pipe,
                work,
                dependency,
                needed,
                signals,
            } => write!(
                f,
                "{work} on {pipe} waits forever for {dependency}: signal {needed} of it, after \
                 {signals} none comes"
            ),
            Self::NeverUsed { slot, tile } => {
                write!(
                    f,
                    "the schedule ends, and no instruction has read {tile} in {slot}"
                )
            }
            Self::NotNormalised { groups, normalised } => write!(
                f,
                "the schedule ends with {normalised} results of {groups} row groups: Last is missing or \
                 repeated"
            ),
        }
    }
}

impl core::error::Error for Fault {}
