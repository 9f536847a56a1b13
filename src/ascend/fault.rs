//! Why a tiling or a schedule is refused: always with the buffer or the dependency.

use core::fmt;

use super::op::{Buffer, Dependency, Pipe, Slot, Tile, Work};

/// What is wrong with a tiling, or went wrong while a schedule ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// A size is zero, or not a multiple of what the Cube's fractal asks for.
    Size {
        /// Which.
        what: &'static str,
        /// The value.
        value: usize,
        /// What it has to be a multiple of, and at least.
        multiple_of: usize,
    },
    /// A rate of the machine isn't a positive number, or its launch isn't a number from 0.
    Rate {
        /// Which.
        what: &'static str,
    },
    /// More bytes than the buffer has (the inequalities of `subsec:cubestagepipeline`).
    Overflow {
        /// The buffer.
        buffer: Buffer,
        /// What doesn't fit.
        what: &'static str,
        /// Its bytes.
        bytes: usize,
        /// Those that there are.
        available: usize,
    },
    /// A product needs more tiles at once than there are buffers.
    TooFewBuffers {
        /// The kind of buffer.
        buffer: Buffer,
        /// What needs them.
        what: &'static str,
        /// How many.
        needed: usize,
        /// How many there are.
        available: usize,
    },
    /// More buffers of a kind than the model keeps track of.
    TooManyBuffers {
        /// The kind of buffer.
        buffer: Buffer,
        /// How many were asked for.
        asked: usize,
        /// How many there may be.
        limit: usize,
    },
    /// A slice of data for the functional mode has the wrong length.
    WrongLength {
        /// Which.
        what: &'static str,
        /// Its elements.
        given: usize,
        /// Those that it should have.
        needed: usize,
    },
    /// The schedule names a block or a request that the problem doesn't have, or a stage that the
    /// algorithm doesn't have.
    NoSuchWork {
        /// What it names.
        work: Work,
    },
    /// An operand isn't, or isn't all, where the instruction looks for it.
    UseBeforeArrival {
        /// Where the instruction runs.
        pipe: Pipe,
        /// What it is part of.
        work: Work,
        /// Where it looks.
        slot: Slot,
        /// For what.
        wanted: Tile,
        /// What is there, and how many of its pieces.
        held: Option<(Tile, u32, u32)>,
    },
    /// A result would land on data that somebody still has to read.
    OverwriteBeforeUse {
        /// Where the instruction runs.
        pipe: Pipe,
        /// What it is part of.
        work: Work,
        /// Where it writes.
        slot: Slot,
        /// What it writes.
        tile: Tile,
        /// What is there.
        held: Tile,
        /// How often that has yet to be read.
        uses: usize,
    },
    /// Nothing runs any more, and this instruction waits for something that never comes.
    Deadlock {
        /// Where the instruction waits.
        pipe: Pipe,
        /// What it is part of.
        work: Work,
        /// What for.
        dependency: Dependency,
        /// How many signals it needs.
        needed: usize,
        /// How many there were.
        signals: usize,
    },
    /// The schedule ended with data that nobody read.
    NeverUsed {
        /// Where it lies.
        slot: Slot,
        /// What it is.
        tile: Tile,
    },
    /// The schedule didn't normalise each result once (Algorithm 2, line 20).
    NotNormalised {
        /// Row groups that the core had.
        groups: usize,
        /// Results.
        finished: usize,
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
            Self::TooFewBuffers {
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
                asked,
                limit,
            } => write!(
                f,
                "{buffer}: {asked} buffers, the model has at most {limit}"
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
                    Some((tile, arrived, pieces)) if arrived < pieces => {
                        write!(f, "which holds {arrived} of {pieces} pieces of {tile}")
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
                write!(f, "the schedule ends, and nobody used {tile} in {slot}")
            }
            Self::NotNormalised { groups, finished } => write!(
                f,
                "the schedule ends with {finished} results of {groups} row groups: Last is missing, or there \
                 twice"
            ),
        }
    }
}

impl core::error::Error for Fault {}
