//! A Vector core's program: V1, Rescale, V2 and Last as instructions that bring rows from GM to UB,
//! compute there, and write rows back.
//!
//! Each of the two Vector cores has half of a group's rows. It processes them in chunks. Input and output
//! chunks are double buffered, so that transfers and arithmetic overlap.

use core::ops::Range;

use crate::arch::{BF16, FP32, HALVES, VECTOR_CORES};
use crate::kernel::Kernel;
use crate::load::Algorithm;
use crate::op::{Action, Buffer, Cost, Dependency, Matrix, Op, Pipe, Region, Slot, Tile, Work};
use crate::queue::Queue;

/// Passes of each stage's arithmetic over the chunk. A pass takes one cycle per vector of
/// [`Machine::lanes`](crate::Machine::lanes) elements. An assumption: neither the paper nor CANN's
/// platform file has figures.
mod passes {
    /// Scale, maximum, subtract, exponential (as two), sum, round (Algorithm 1, line 5).
    pub const SOFTMAX: usize = 7;
    /// The same, and P S16 (Algorithm 2, line 10).
    pub const SOFTMAX_AND_SCALE: usize = 8;
    /// A row's N spread over O's columns (Algorithm 2, line 14).
    pub const SPREAD: usize = 1;
    /// Multiply, add (Algorithm 1, line 7).
    pub const UPDATE: usize = 2;
    /// Divide, round (Algorithm 2, line 20).
    pub const NORMALISE: usize = 2;
}

/// Chunks so far. The number selects a chunk's buffer, and the signal that it waits for.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counts {
    input: usize,
    output: usize,
}

/// One stage on one core, one chunk of rows at a time.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    work: Work,
    core: usize,
    chunk: usize,
}

/// Maximum number of instructions of a chunk.
pub(crate) const CHUNK_OPS: usize = 3;

/// The rows of a group that belong to Vector core `core`.
fn rows_of(rows: usize, core: usize) -> Range<usize> {
    let half = rows.div_ceil(VECTOR_CORES);
    (core * half).min(rows)..((core + 1) * half).min(rows)
}

/// Chunks of Vector core `core`.
fn chunks(kernel: &Kernel, core: usize) -> usize {
    rows_of(kernel.load.rows, core)
        .len()
        .div_ceil(kernel.tiling.vector_rows)
}

/// Chunks of all Vector cores.
pub(crate) fn row_chunks(kernel: &Kernel) -> usize {
    (0..VECTOR_CORES).map(|core| chunks(kernel, core)).sum()
}

/// Rows that go through UB at the same time.
struct Chunk {
    region: Region,
    last: bool,
}

impl Rows {
    pub fn new(work: Work, core: usize) -> Self {
        let chunk = 0;
        Self { work, core, chunk }
    }

    /// The instructions of this chunk; false after the last chunk, or if the core has no rows.
    pub fn step(
        &mut self,
        kernel: &Kernel,
        counts: &mut Counts,
        out: &mut Queue<Op, CHUNK_OPS>,
    ) -> bool {
        let chunks = chunks(kernel, self.core);
        if chunks == 0 {
            return false;
        }
        let rows = rows_of(kernel.load.rows, self.core);
        let row = rows.start + self.chunk * kernel.tiling.vector_rows;
        let columns = match self.work {
            Work::V1(i) => kernel.load.keys_of(i),
            _ => kernel.load.d_v,
        };
        let chunk = Chunk {
            region: Region {
                row,
                rows: kernel.tiling.vector_rows.min(rows.end - row),
                column: 0,
                columns,
            },
            last: self.chunk + 1 == chunks,
        };
        if let Some(op) = self.input(kernel, counts, &chunk) {
            out.push(op);
        }
        out.push(self.compute(kernel, counts, &chunk));
        if !matches!(self.work, Work::Rescale(_)) {
            counts.input += 1;
        }
        out.push(self.output(kernel, counts, &chunk));
        counts.output += 1;
        self.chunk += 1;
        !chunk.last
    }

    fn op(&self, pipe: Pipe, action: Action, chunk: &Chunk, cost: Cost) -> Op {
        Op::new(pipe, self.work, action, chunk.region, cost)
    }

    /// The chunk of `matrix` in UB.
    fn tile(&self, matrix: Matrix, item: usize, chunk: &Chunk) -> Tile {
        Tile::at(matrix, item, chunk.region.row, 0)
    }

    fn ub_in(&self, counts: &Counts) -> Slot {
        Slot {
            buffer: Buffer::UbIn(self.core),
            index: counts.input % HALVES,
        }
    }

    fn ub_out(&self, counts: &Counts) -> Slot {
        Slot {
            buffer: Buffer::UbOut(self.core),
            index: counts.output % HALVES,
        }
    }

    /// The matrix that comes in, and its item.
    fn incoming(&self, kernel: &Kernel) -> Option<(Matrix, usize)> {
        match self.work {
            Work::V1(i) => Some((Matrix::S, i)),
            Work::V2(i) => Some((Matrix::T, i)),
            Work::Last(group) => Some((Matrix::O, kernel.last_item(group))),
            _ => None,
        }
    }

    /// The matrix that goes out, and its item.
    fn outgoing(&self, kernel: &Kernel) -> (Matrix, usize) {
        match self.work {
            Work::V1(i) => (Matrix::P, i),
            Work::Rescale(i) => (Matrix::N, i),
            Work::V2(i) | Work::C1(i) | Work::C2(i) => (Matrix::O, i),
            Work::Last(group) => (Matrix::O, kernel.last_item(group)),
        }
    }

    /// GM to UB.
    fn input(&self, kernel: &Kernel, counts: &Counts, chunk: &Chunk) -> Option<Op> {
        let core = self.core;
        let (matrix, item) = self.incoming(kernel)?;
        let output = kernel.output(kernel.load.group(item), core);
        let matrices = match self.work {
            Work::V2(i) if !kernel.load.is_first(i) => 2,
            _ => 1,
        };
        let bytes = (matrices * chunk.region.len() * FP32) as f64;
        let cost = Cost::Bytes { bytes, hbm: false };
        let free = (counts.input + 1).saturating_sub(HALVES);
        let op = self
            .op(Pipe::VectorIn(core), Action::ChunkIn, chunk, cost)
            .waits(Dependency::UbInReleased, core, free)
            .signals(Dependency::UbInArrived, core);
        let op = match self.work {
            Work::V1(i) => {
                let op = op
                    .reads(kernel.gm(Buffer::Scores, i), Tile::full(Matrix::S, i))
                    .waits(Dependency::ScoresReady, 0, i + 1);
                if chunk.last {
                    op.signals(Dependency::ScoresConsumed, core)
                } else {
                    op
                }
            }
            Work::V2(i) => {
                let mut op = op
                    .reads(kernel.gm(Buffer::Products, i), Tile::full(Matrix::T, i))
                    .waits(Dependency::ProductsReady, 0, i + 1)
                    .waits(Dependency::OutputUpdated, core, i);
                if !kernel.load.is_first(i) {
                    op = op.reads(output, Tile::full(Matrix::O, i - 1));
                }
                if chunk.last {
                    op = op.signals(Dependency::ProductsConsumed, core);
                }
                op
            }
            _ => {
                let op = op.reads(output, Tile::full(Matrix::O, item));
                match kernel.algorithm {
                    Algorithm::Amla => op.waits(Dependency::OutputAccumulated, 0, item + 1),
                    Algorithm::Base => op.waits(Dependency::OutputUpdated, core, item + 1),
                }
            }
        };
        Some(op.writes(self.ub_in(counts), self.tile(matrix, item, chunk), 1, 1))
    }

    /// In UB.
    fn compute(&self, kernel: &Kernel, counts: &Counts, chunk: &Chunk) -> Op {
        let core = self.core;
        let passes = match (self.work, kernel.algorithm) {
            (Work::V1(_), Algorithm::Base) => passes::SOFTMAX,
            (Work::V1(_), Algorithm::Amla) => passes::SOFTMAX_AND_SCALE,
            (Work::Rescale(_), _) => passes::SPREAD,
            (Work::Last(_), _) => passes::NORMALISE,
            _ => passes::UPDATE,
        };
        let vectors = chunk.region.columns.div_ceil(kernel.machine.lanes);
        let cycles = (passes * chunk.region.rows * vectors) as f64;
        let (matrix, item) = self.outgoing(kernel);
        let free = (counts.output + 1).saturating_sub(HALVES);
        let mut op = self
            .op(
                Pipe::Vector(core),
                Action::Compute,
                chunk,
                Cost::Cycles(cycles),
            )
            .writes(self.ub_out(counts), self.tile(matrix, item, chunk), 1, 1)
            .waits(Dependency::UbOutReleased, core, free)
            .signals(Dependency::UbOutArrived, core);
        if let Some((matrix, item)) = self.incoming(kernel) {
            op = op
                .reads(self.ub_in(counts), self.tile(matrix, item, chunk))
                .waits(Dependency::UbInArrived, core, counts.input + 1)
                .signals(Dependency::UbInReleased, core);
        }
        op
    }

    /// UB to GM.
    fn output(&self, kernel: &Kernel, counts: &Counts, chunk: &Chunk) -> Op {
        let core = self.core;
        let (matrix, item) = self.outgoing(kernel);
        let size = match self.work {
            Work::Rescale(_) | Work::V2(_) => FP32,
            _ => BF16,
        };
        let action = match self.work {
            Work::Rescale(_) => Action::AtomicAddInt,
            _ => Action::ChunkOut,
        };
        let bytes = (chunk.region.len() * size) as f64;
        let cost = Cost::Bytes { bytes, hbm: false };
        let op = self
            .op(Pipe::VectorOut(core), action, chunk, cost)
            .reads(self.ub_out(counts), self.tile(matrix, item, chunk))
            .waits(Dependency::UbOutArrived, core, counts.output + 1)
            .signals(Dependency::UbOutReleased, core);
        let output = kernel.output(kernel.load.group(item), core);
        let (op, done) = match self.work {
            Work::V1(i) => {
                let slot = kernel.gm(Buffer::Probabilities, i);
                let tile = Tile::full(Matrix::P, i);
                let free = (i + 1).saturating_sub(kernel.pipeline.tiles());
                let op = op
                    .writes(slot, tile, row_chunks(kernel), kernel.stripes_of_p(i))
                    .waits(Dependency::ProbabilitiesConsumed, 0, free);
                (op, Dependency::ProbabilitiesReady)
            }
            Work::Rescale(i) => {
                // After the previous block's P V is in O, which has to be rescaled as well.
                let from = Some(Tile::full(Matrix::O, i - 1));
                let to = Tile::full(Matrix::Rescaled, i);
                let op = op.updates(output, from, to, row_chunks(kernel)).waits(
                    Dependency::OutputAccumulated,
                    0,
                    i,
                );
                (op, Dependency::OutputRescaled)
            }
            Work::V2(i) => {
                let from = (!kernel.load.is_first(i)).then(|| Tile::full(Matrix::O, i - 1));
                let to = Tile::full(Matrix::O, i);
                let op = op.updates(output, from, to, chunks(kernel, core));
                (op, Dependency::OutputUpdated)
            }
            _ => (op, Dependency::ResultsReady),
        };
        if chunk.last {
            op.signals(done, core)
        } else {
            op
        }
    }
}
