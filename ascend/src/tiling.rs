//! Hierarchical tiling of the two products for L1 and L0, and its limits (`subsec:cubestagepipeline`).

use amla::tile::ascend as memories;

use crate::arch::{BF16, FP32, FRACTAL, HALVES, VECTOR_CORES};
use crate::fault::Fault;
use crate::load::Load;
use crate::machine::Machine;
use crate::op::Buffer;
use crate::scoreboard::MAX_SLOTS;

/// FP32 numbers per row in UB: m, l, n, c and S16 (Algorithm 2), and N of two blocks.
const STATE: usize = 7;

/// The cut of one product M x N x K, in elements: `single` tiles are in L1, `base` tiles in L0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Rows of a left tile in L1.
    pub single_m: usize,
    /// Columns of a right tile in L1.
    pub single_n: usize,
    /// Depth of both.
    pub single_k: usize,
    /// Rows of a left tile in L0A, and of an accumulator in L0C.
    pub base_m: usize,
    /// Columns of a right tile in L0B, and of an accumulator.
    pub base_n: usize,
    /// Depth of both.
    pub base_k: usize,
}

/// The tiling of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiling {
    /// Rows of a group, M: query heads times positions.
    pub rows: usize,
    /// Keys of a block.
    pub block: usize,
    /// S = Q Kᵀ: N is the block, K is d_qk.
    pub c1: Cut,
    /// P V: N is d_v, K is the block.
    pub c2: Cut,
    /// Bytes of each buffer in L1.
    pub l1_buffer: usize,
    /// Buffers in L1 for Q and P.
    pub qp_buffers: usize,
    /// Buffers in L1 for K and V.
    pub kv_buffers: usize,
    /// Rows of a Vector core's chunk in UB.
    pub vector_rows: usize,
}

impl Tiling {
    /// The paper's tiling, except for singleN and `vector_rows`.
    ///
    /// The paper has singleN = 256. A tile of K would then take two of its 72 KB buffers (256 x 288 BF16
    /// are 144 KB). singleN = 128 fills one buffer and agrees with all its other figures. The paper
    /// doesn't give the rows of a Vector core's chunk.
    pub const PAPER: Self = Self {
        rows: memories::M,
        block: 512,
        c1: Cut {
            single_m: 128,
            single_n: 128,
            single_k: 288,
            base_m: 128,
            base_n: 128,
            base_k: memories::BASE_K,
        },
        c2: Cut {
            single_m: 128,
            single_n: 128,
            single_k: 256,
            base_m: 128,
            base_n: 128,
            base_k: 128,
        },
        l1_buffer: memories::L1_BUFFER,
        qp_buffers: memories::QP_BUFFERS,
        kv_buffers: memories::KV_BUFFERS,
        vector_rows: 8,
    };

    /// Checks that the tiling fits `machine` for this load.
    ///
    /// # Errors
    /// The invalid size, the buffer that overflows, or the kind of buffer whose number is wrong.
    pub fn check(&self, machine: &Machine, load: &Load) -> Result<(), Fault> {
        for (what, value) in [
            ("rows", self.rows),
            ("the block", self.block),
            ("vector rows", self.vector_rows),
            ("the L1 buffer", self.l1_buffer),
        ] {
            multiple(what, value, 1)?;
        }
        let buffers = self.qp_buffers.saturating_add(self.kv_buffers);
        fits(
            Buffer::L1Kv,
            "the partition of L1",
            buffers.saturating_mul(self.l1_buffer),
            machine.l1,
        )?;
        let (rows, block) = (load.rows, load.block());
        self.check_cut(machine, &self.c1, [rows, block, load.d_qk], ["Q", "K"])?;
        self.check_cut(machine, &self.c2, [rows, load.d_v, block], ["P", "V"])?;
        for (buffer, requested) in [
            (Buffer::L1Qp, self.qp_buffers),
            (Buffer::L1Kv, self.kv_buffers),
        ] {
            if requested > MAX_SLOTS {
                let limit = MAX_SLOTS;
                return Err(Fault::TooManyBuffers {
                    buffer,
                    requested,
                    limit,
                });
            }
        }
        fits(
            Buffer::UbIn(0),
            "a Vector core's working set",
            self.ub_bytes(load),
            machine.ub,
        )
    }

    fn check_cut(
        &self,
        machine: &Machine,
        cut: &Cut,
        [m, n, k]: [usize; 3],
        [left, right]: [&'static str; 2],
    ) -> Result<(), Fault> {
        for (what, value) in [
            ("singleM", cut.single_m),
            ("singleN", cut.single_n),
            ("singleK", cut.single_k),
            ("baseM", cut.base_m),
            ("baseN", cut.base_n),
            ("baseK", cut.base_k),
        ] {
            multiple(what, value, FRACTAL)?;
        }
        let l1 = self.l1_buffer;
        let tile = |a: usize, b: usize, bytes| a.saturating_mul(b).saturating_mul(bytes);
        fits(
            Buffer::L1Qp,
            left,
            tile(cut.single_m.min(m), cut.single_k.min(k), BF16),
            l1,
        )?;
        fits(
            Buffer::L1Kv,
            right,
            tile(cut.single_n.min(n), cut.single_k.min(k), BF16),
            l1,
        )?;
        let (base_m, base_n) = (cut.base_m.min(cut.single_m), cut.base_n.min(cut.single_n));
        let base_k = cut.base_k.min(cut.single_k);
        fits(
            Buffer::L0a,
            left,
            tile(base_m, base_k, BF16),
            machine.l0a / HALVES,
        )?;
        fits(
            Buffer::L0b,
            right,
            tile(base_n, base_k, BF16),
            machine.l0b / HALVES,
        )?;
        let accumulator = "an accumulator, baseM x baseN";
        fits(
            Buffer::L0c,
            accumulator,
            tile(base_m, base_n, FP32),
            machine.l0c / HALVES,
        )?;

        // A stripe of Q or P occupies its buffer until the last column, a tile of K or V until the last
        // row. With a single accumulator in that dimension, it does so for one read.
        let depth = k.div_ceil(cut.single_k);
        let columns = n.div_ceil(cut.base_n);
        let bases = |single: usize, base: usize| single.div_ceil(base);
        let stripes = match (columns, bases(cut.single_m.min(m), cut.base_m)) {
            (1, 1) => 1,
            (1, _) => depth,
            _ => m.div_ceil(cut.single_m) * depth,
        };
        let tiles = match (
            m.div_ceil(cut.base_m),
            bases(cut.single_n.min(n), cut.base_n),
        ) {
            (1, 1) => 1,
            _ => depth,
        };
        for (buffer, what, needed, available) in [
            (Buffer::L1Qp, left, stripes, self.qp_buffers),
            (Buffer::L1Kv, right, tiles, self.kv_buffers),
        ] {
            if needed > available {
                return Err(Fault::NotEnoughBuffers {
                    buffer,
                    what,
                    needed,
                    available,
                });
            }
        }
        Ok(())
    }

    /// Bytes of UB that a Vector core needs: two chunks of input, two of output, one of intermediate
    /// results, and the state of its rows.
    #[must_use]
    pub fn ub_bytes(&self, load: &Load) -> usize {
        let rows = load.rows.div_ceil(VECTOR_CORES);
        // S, or T and O; P, or O or N.
        let input = load.block().max(load.output_columns()) * FP32;
        let output = (load.block() * BF16).max(load.d_v * FP32);
        let scratch = load.block().max(load.d_v) * FP32;
        let chunk = self.vector_rows.min(rows);
        chunk * (HALVES * (input + output) + scratch) + STATE * FP32 * rows
    }

    /// Rows of a chunk that fit into UB beside a Vector core's rows of O, if O were resident there
    /// (`subsec:computestage`). O takes 128 KB at 128 rows of a group, and 256 KB at 256. 0: none fit.
    #[must_use]
    pub fn rows_beside_output(machine: &Machine, load: &Load) -> usize {
        let rows = load.rows.div_ceil(VECTOR_CORES);
        let resident = rows * (load.d_v + STATE) * FP32;
        // Chunks of S or T in, P out, and one of intermediate results. O isn't transferred.
        let widest = load.block().max(load.d_v) * FP32;
        let chunk_row = HALVES * (widest + load.block() * BF16) + widest;
        (machine.ub.saturating_sub(resident) / chunk_row).min(rows)
    }
}

fn multiple(what: &'static str, value: usize, multiple_of: usize) -> Result<(), Fault> {
    if value > 0 && value.is_multiple_of(multiple_of) {
        Ok(())
    } else {
        Err(Fault::Size {
            what,
            value,
            multiple_of,
        })
    }
}

fn fits(buffer: Buffer, what: &'static str, bytes: usize, available: usize) -> Result<(), Fault> {
    if bytes <= available {
        Ok(())
    } else {
        Err(Fault::Overflow {
            buffer,
            what,
            bytes,
            available,
        })
    }
}
