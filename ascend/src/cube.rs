//! The Cube core's program: C1 and C2 as instructions of MTE2, MTE1, MMAD and FixP
//! (`subsec:cubestagepipeline`).
//!
//! The loops of a product are, from the outermost: columns of `singleN`, rows of `singleM`, accumulators
//! of baseM x baseN, depth. An accumulator is therefore written to GM once. A stripe of Q or P is read
//! from L1 in every column, and occupies its buffer for the stage. A tile of K or V occupies its buffer
//! for one column. Hence four buffers for Q/P (256 / 128 rows times 576 / 288 in depth), and three for K/V
//! (576 / 288 in depth, and one for double buffering).

use crate::arch::{BF16, FP32, FRACTAL, HALVES};
use crate::kernel::Kernel;
use crate::load::Algorithm;
use crate::op::{Action, Buffer, Cost, Dependency, Matrix, Op, Pipe, Region, Slot, Tile, Work};
use crate::queue::Queue;
use crate::tiling::Cut;
use crate::vector::row_chunks;

/// Tiles of each kind so far. The number selects a tile's buffer, and the signal that it waits for.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counts {
    /// Stripes of Q and P in L1.
    qp: usize,
    /// Tiles of K and V in L1.
    kv: usize,
    /// Pairs of operands in L0.
    operands: usize,
    /// Accumulators in L0C.
    accumulators: usize,
}

/// The loops of one product, one step at a time.
#[derive(Clone, Copy)]
pub(crate) struct Product {
    work: Work,
    item: usize,
    cut: Cut,
    /// M, N, K.
    size: [usize; 3],
    /// [`Counts`] at the product's first step.
    before: Counts,
    at: At,
}

/// The indices of the loops: of single tiles, and of base tiles within them.
#[derive(Clone, Copy, Default)]
struct At {
    n: usize,
    m: usize,
    base_n: usize,
    base_m: usize,
    k: usize,
    base_k: usize,
}

/// Maximum number of instructions of a step.
pub(crate) const STEP_OPS: usize = 6;

impl Product {
    pub fn new(kernel: &Kernel, work: Work, before: Counts) -> Option<Self> {
        let load = &kernel.load;
        let (item, cut, n, k) = match work {
            Work::C1(i) => (i, kernel.tiling.c1, load.keys_of(i), load.d_qk),
            Work::C2(i) => (i, kernel.tiling.c2, load.d_v, load.keys_of(i)),
            _ => return None,
        };
        Some(Self {
            work,
            item,
            cut,
            size: [load.rows, n, k],
            before,
            at: At::default(),
        })
    }

    /// The instructions of this step; false after the last step.
    pub fn step(
        &mut self,
        kernel: &Kernel,
        counts: &mut Counts,
        out: &mut Queue<Op, STEP_OPS>,
    ) -> bool {
        let (left, right) = (self.left(), self.right());
        if self.first_use_of_right() {
            out.push(self.load_right(kernel, counts));
        }
        if self.first_use_of_left() {
            out.push(self.load_left(kernel, counts));
        }
        let operand = Slot {
            buffer: Buffer::L0a,
            index: counts.operands % HALVES,
        };
        out.push(self.fetch_left(kernel, counts, operand, left));
        out.push(self.fetch_right(kernel, counts, right));
        out.push(self.multiply(kernel, counts, left, right));
        counts.operands += 1;
        if self.is_last_in_depth() {
            out.push(self.store(kernel, counts));
            counts.accumulators += 1;
        }
        self.advance()
    }

    // ---------------------------------------------------------------------------------------------
    // The loops
    // ---------------------------------------------------------------------------------------------

    fn singles(&self) -> [usize; 3] {
        let (cut, [m, n, k]) = (&self.cut, self.size);
        [
            m.div_ceil(cut.single_m),
            n.div_ceil(cut.single_n),
            k.div_ceil(cut.single_k),
        ]
    }

    /// Base tiles within the current single tiles: rows, columns, depth.
    fn bases(&self) -> [usize; 3] {
        let (cut, at, [m, n, k]) = (&self.cut, &self.at, self.size);
        [
            part(m, cut.single_m, at.m).div_ceil(cut.base_m),
            part(n, cut.single_n, at.n).div_ceil(cut.base_n),
            part(k, cut.single_k, at.k).div_ceil(cut.base_k),
        ]
    }

    fn advance(&mut self) -> bool {
        let ([m, n, k], [base_m, base_n, base_k]) = (self.singles(), self.bases());
        let at = &mut self.at;
        for (index, end) in [
            (&mut at.base_k, base_k),
            (&mut at.k, k),
            (&mut at.base_m, base_m),
            (&mut at.base_n, base_n),
            (&mut at.m, m),
            (&mut at.n, n),
        ] {
            *index += 1;
            if *index < end {
                return true;
            }
            *index = 0;
        }
        false
    }

    fn first_use_of_left(&self) -> bool {
        let at = &self.at;
        [at.n, at.base_n, at.base_m, at.base_k] == [0; 4]
    }

    fn first_use_of_right(&self) -> bool {
        let at = &self.at;
        [at.m, at.base_n, at.base_m, at.base_k] == [0; 4]
    }

    fn is_last_base(&self) -> bool {
        let (at, [base_m, base_n, base_k]) = (&self.at, self.bases());
        [at.base_m, at.base_n, at.base_k] == [base_m - 1, base_n - 1, base_k - 1]
    }

    fn last_use_of_left(&self) -> bool {
        self.is_last_base() && self.at.n + 1 == self.singles()[1]
    }

    fn last_use_of_right(&self) -> bool {
        self.is_last_base() && self.at.m + 1 == self.singles()[0]
    }

    fn is_first_in_depth(&self) -> bool {
        self.at.k == 0 && self.at.base_k == 0
    }

    fn is_last_in_depth(&self) -> bool {
        self.at.k + 1 == self.singles()[2] && self.at.base_k + 1 == self.bases()[2]
    }

    fn is_first_accumulator(&self) -> bool {
        let at = &self.at;
        [at.n, at.m, at.base_n, at.base_m] == [0; 4]
    }

    fn is_last_accumulator(&self) -> bool {
        let ([m, n, _], [base_m, base_n, _]) = (self.singles(), self.bases());
        let at = &self.at;
        [at.n, at.m, at.base_n, at.base_m] == [n - 1, m - 1, base_n - 1, base_m - 1]
    }

    /// The left tile in L1 and its number.
    fn single_left(&self) -> (Region, usize) {
        let (cut, at, [m, _, k]) = (&self.cut, &self.at, self.size);
        let region = Region {
            row: at.m * cut.single_m,
            rows: part(m, cut.single_m, at.m),
            column: at.k * cut.single_k,
            columns: part(k, cut.single_k, at.k),
        };
        (region, self.before.qp + at.m * self.singles()[2] + at.k)
    }

    /// The right tile in L1 and its number.
    fn single_right(&self) -> (Region, usize) {
        let (cut, at, [_, n, k]) = (&self.cut, &self.at, self.size);
        let region = Region {
            row: at.n * cut.single_n,
            rows: part(n, cut.single_n, at.n),
            column: at.k * cut.single_k,
            columns: part(k, cut.single_k, at.k),
        };
        (region, self.before.kv + at.n * self.singles()[2] + at.k)
    }

    /// The left operand in L0A.
    fn left(&self) -> Region {
        let (cut, at, (single, _)) = (&self.cut, &self.at, self.single_left());
        within(single, [at.base_m, at.base_k], [cut.base_m, cut.base_k])
    }

    /// The right operand in L0B.
    fn right(&self) -> Region {
        let (cut, at, (single, _)) = (&self.cut, &self.at, self.single_right());
        within(single, [at.base_n, at.base_k], [cut.base_n, cut.base_k])
    }

    /// The accumulator.
    fn accumulator(&self) -> Region {
        let (left, right) = (self.left(), self.right());
        Region {
            row: left.row,
            rows: left.rows,
            column: right.row,
            columns: right.rows,
        }
    }

    // ---------------------------------------------------------------------------------------------
    // The instructions
    // ---------------------------------------------------------------------------------------------

    fn is_c1(&self) -> bool {
        matches!(self.work, Work::C1(_))
    }

    fn tile(&self, left: bool, region: Region) -> Tile {
        let matrix = match (self.is_c1(), left) {
            (true, true) => Matrix::Q,
            (true, false) => Matrix::K,
            (false, true) => Matrix::P,
            (false, false) => Matrix::V,
        };
        Tile::at(matrix, self.item, region.row, region.column)
    }

    fn op(&self, pipe: Pipe, action: Action, region: Region, cost: Cost) -> Op {
        Op::new(pipe, self.work, action, region, cost)
    }

    /// MTE2: a stripe of Q or P.
    fn load_left(&self, kernel: &Kernel, counts: &mut Counts) -> Op {
        let (region, number) = self.single_left();
        let [m, n, k] = self.size;
        let buffers = kernel.tiling.qp_buffers;
        // Reads: once per base tile of the stripe, in every column of accumulators.
        let columns = base_tiles(n, self.cut.single_n, self.cut.base_n);
        let [base_m, _, base_k] = self.bases();
        let bytes = (region.len() * BF16) as f64;
        // The first read of Q is from HBM; later ones, and all of P, are from L2.
        let hbm = self.is_c1() && kernel.load.is_first(self.item);
        let slot = Slot {
            buffer: Buffer::L1Qp,
            index: number % buffers,
        };
        let mut op = self
            .op(
                Pipe::Mte2,
                Action::LoadA,
                region,
                Cost::Bytes { bytes, hbm },
            )
            .writes(slot, self.tile(true, region), 1, columns * base_m * base_k)
            .waits(
                Dependency::QpReleased,
                0,
                (number + 1).saturating_sub(buffers),
            )
            .signals(Dependency::QpArrived, 0);
        counts.qp += 1;
        if !self.is_c1() {
            let stripes = m.div_ceil(self.cut.single_m) * k.div_ceil(self.cut.single_k);
            let slot = kernel.gm(Buffer::Probabilities, self.item);
            op.source = Some(slot);
            op = op.reads(slot, Tile::full(Matrix::P, self.item));
            op = op.waits_for_all(
                kernel.vector_cores(),
                Dependency::ProbabilitiesReady,
                self.item + 1,
            );
            if number + 1 == self.before.qp + stripes {
                op = op.signals(Dependency::ProbabilitiesConsumed, 0);
            }
        }
        op
    }

    /// MTE2: a tile of K or V.
    fn load_right(&self, kernel: &Kernel, counts: &mut Counts) -> Op {
        let (region, number) = self.single_right();
        let buffers = kernel.tiling.kv_buffers;
        let rows = base_tiles(self.size[0], self.cut.single_m, self.cut.base_m);
        let [_, base_n, base_k] = self.bases();
        let bytes = (region.len() * BF16) as f64;
        // V is a part of K, which C1 has read: it is in L2.
        let cost = Cost::Bytes {
            bytes,
            hbm: self.is_c1(),
        };
        let slot = Slot {
            buffer: Buffer::L1Kv,
            index: number % buffers,
        };
        let op = self
            .op(Pipe::Mte2, Action::LoadRight, region, cost)
            .writes(slot, self.tile(false, region), 1, rows * base_n * base_k)
            .waits(
                Dependency::KvReleased,
                0,
                (number + 1).saturating_sub(buffers),
            )
            .signals(Dependency::KvArrived, 0);
        counts.kv += 1;
        // Base, serial: the next block starts after V2 of this one.
        let serial = kernel.pipeline_is_serial_base() && self.is_c1() && self.first_use_of_left();
        if serial {
            op.waits_for_all(
                kernel.vector_cores(),
                Dependency::ProductsConsumed,
                self.item,
            )
        } else {
            op
        }
    }

    /// MTE1: the left operand.
    fn fetch_left(&self, kernel: &Kernel, counts: &Counts, to: Slot, region: Region) -> Op {
        let (single, number) = self.single_left();
        let cycles = (region.len() * BF16) as f64 / kernel.machine.l0a_port;
        let from = Slot {
            buffer: Buffer::L1Qp,
            index: number % kernel.tiling.qp_buffers,
        };
        let op = self
            .op(Pipe::Mte1, Action::FetchA, region, Cost::Cycles(cycles))
            .reads(from, self.tile(true, single))
            .writes(to, self.tile(true, region), 1, 1)
            .waits(Dependency::QpArrived, 0, number + 1)
            .waits(
                Dependency::L0Released,
                0,
                (counts.operands + 1).saturating_sub(HALVES),
            );
        if self.last_use_of_left() {
            op.signals(Dependency::QpReleased, 0)
        } else {
            op
        }
    }

    /// MTE1: the right operand, after the left one.
    fn fetch_right(&self, kernel: &Kernel, counts: &Counts, region: Region) -> Op {
        let (single, number) = self.single_right();
        let cycles = (region.len() * BF16) as f64 / kernel.machine.l0b_port;
        let from = Slot {
            buffer: Buffer::L1Kv,
            index: number % kernel.tiling.kv_buffers,
        };
        let to = Slot {
            buffer: Buffer::L0b,
            index: counts.operands % HALVES,
        };
        let op = self
            .op(Pipe::Mte1, Action::FetchRight, region, Cost::Cycles(cycles))
            .reads(from, self.tile(false, single))
            .writes(to, self.tile(false, region), 1, 1)
            .waits(Dependency::KvArrived, 0, number + 1)
            .signals(Dependency::L0Arrived, 0);
        if self.last_use_of_right() {
            op.signals(Dependency::KvReleased, 0)
        } else {
            op
        }
    }

    /// MMAD: accumulates in L0C over the operands' depth.
    fn multiply(&self, kernel: &Kernel, counts: &Counts, left: Region, right: Region) -> Op {
        let fractals = |n: usize| n.div_ceil(FRACTAL) as f64;
        let cycles = fractals(left.rows) * fractals(right.rows) * fractals(left.columns);
        let half = counts.operands % HALVES;
        let operand = |buffer| Slot {
            buffer,
            index: half,
        };
        let depth = base_tiles(self.size[2], self.cut.single_k, self.cut.base_k);
        let first = self.is_first_in_depth();
        let mut op = self
            .op(
                Pipe::Mmad,
                Action::Multiply {
                    first,
                    depth: left.columns,
                },
                self.accumulator(),
                Cost::Cycles(cycles),
            )
            .reads(operand(Buffer::L0a), self.tile(true, left))
            .reads(operand(Buffer::L0b), self.tile(false, right))
            .writes(kernel.l0c(counts.accumulators), self.sum(), depth, 1)
            .waits(Dependency::L0Arrived, 0, counts.operands + 1)
            .signals(Dependency::L0Released, 0);
        if first {
            let free = (counts.accumulators + 1).saturating_sub(HALVES);
            op = op.waits(Dependency::L0cReleased, 0, free);
        }
        if self.is_last_in_depth() {
            op = op.signals(Dependency::L0cArrived, 0);
        }
        op
    }

    /// The accumulator as a tile of S or T.
    fn sum(&self) -> Tile {
        let region = self.accumulator();
        let matrix = if self.is_c1() { Matrix::S } else { Matrix::T };
        Tile::at(matrix, self.item, region.row, region.column)
    }

    /// FixP: S to GM, T to GM (Base), or T added to O in GM (AMLA).
    fn store(&self, kernel: &Kernel, counts: &Counts) -> Op {
        let (item, [m, n, _]) = (self.item, self.size);
        let region = self.accumulator();
        let cut = &self.cut;
        let parts =
            base_tiles(m, cut.single_m, cut.base_m) * base_tiles(n, cut.single_n, cut.base_n);
        let bytes = (region.len() * FP32) as f64;
        let cost = Cost::Bytes { bytes, hbm: false };
        let first_block = kernel.load.is_first(item);
        let amla = kernel.algorithm == Algorithm::Amla;
        let action = if amla && !self.is_c1() && !first_block {
            Action::AtomicAdd
        } else {
            Action::Store
        };
        let mut op = self
            .op(Pipe::FixP, action, region, cost)
            .reads(kernel.l0c(counts.accumulators), self.sum())
            .waits(Dependency::L0cArrived, 0, counts.accumulators + 1)
            .signals(Dependency::L0cReleased, 0);
        let (first, last) = (self.is_first_accumulator(), self.is_last_accumulator());
        let free = (item + 1).saturating_sub(kernel.pipeline.tiles());
        if self.is_c1() {
            let tile = Tile::full(Matrix::S, item);
            op = op.writes(
                kernel.gm(Buffer::Scores, item),
                tile,
                parts,
                row_chunks(kernel),
            );
            if first {
                op = op.waits_for_all(kernel.vector_cores(), Dependency::ScoresConsumed, free);
            }
            if last {
                op = op.signals(Dependency::ScoresReady, 0);
            }
        } else if amla {
            let slot = kernel.gm(Buffer::Output, kernel.load.group(item));
            let from = (!first_block).then_some(Tile::full(Matrix::Rescaled, item));
            op = op.updates(slot, from, Tile::full(Matrix::O, item), parts);
            if first {
                let rescales = kernel.rescales_through(item);
                op = op.waits_for_all(kernel.vector_cores(), Dependency::OutputRescaled, rescales);
            }
            if last {
                op = op.signals(Dependency::OutputAccumulated, 0);
            }
        } else {
            let tile = Tile::full(Matrix::T, item);
            op = op.writes(
                kernel.gm(Buffer::Products, item),
                tile,
                parts,
                row_chunks(kernel),
            );
            if first {
                op = op.waits_for_all(kernel.vector_cores(), Dependency::ProductsConsumed, free);
            }
            if last {
                op = op.signals(Dependency::ProductsReady, 0);
            }
        }
        op
    }
}

/// The length of part `index` of `total`, cut into parts of `size`.
fn part(total: usize, size: usize, index: usize) -> usize {
    size.min(total - index * size)
}

/// Base tiles in all single tiles of one dimension.
fn base_tiles(total: usize, single: usize, base: usize) -> usize {
    let full = total / single;
    full * single.div_ceil(base) + (total % single).div_ceil(base)
}

/// Base tile `[row, column]` of a single tile.
fn within(single: Region, [row, column]: [usize; 2], [rows, columns]: [usize; 2]) -> Region {
    Region {
        row: single.row + row * rows,
        rows: part(single.rows, rows, row),
        column: single.column + column * columns,
        columns: part(single.columns, columns, column),
    }
}
