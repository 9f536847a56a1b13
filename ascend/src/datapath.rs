//! The functional mode: it executes a kernel's instructions on data, in the order in which they end.
//!
//! Tiles move through L1, L0 and UB as BF16 and FP32. FixP adds to O in GM by `AtomicAdd<FP32>`, and the
//! Vector cores rescale O there by `AtomicAdd<INT32>`. An instruction reads the contents of its buffers
//! without a check: the scoreboard has made it.
//!
//! The arithmetic is that of [`amla::reference::amla_compensated`] and [`amla::reference::base`]. The
//! integer addition is the memory's, wrapping and not total (Algorithm 2, lines 14 and 15;
//! `docs/algorithm.md`, defect 2). As on the machine, an exact zero in O gives a wrong result.

use core::f32::consts::{LN_2, LOG2_E};

use amla::bits::{Increment, as_printed_f32, compensation};
use half::bf16;
use libm::{exp2f, expf, logf, rintf};

use crate::arch::{BF16, FP32, HALVES, VECTOR_CORES};
use crate::engine::Observer;
use crate::fault::Fault;
use crate::kernel::Kernel;
use crate::load::Algorithm;
use crate::machine::Machine;
use crate::op::{Action, Buffer, Op, Region, Slot, Work};
use crate::scoreboard::MAX_SLOTS;

/// The operands of a kernel: every row group of the core, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// `[groups, rows, d_qk]`.
    pub q: &'a [bf16],
    /// `[groups, keys, d_qk]`; the first d_v columns are the values.
    pub kv: &'a [bf16],
    /// The factor of the scores (the paper's `1 / sqrt(D_k)`).
    pub softmax_scale: f32,
}

/// The results of a kernel.
#[derive(Debug)]
pub struct Outputs<'a> {
    /// `[groups, rows, d_v]`.
    pub o: &'a mut [f32],
    /// `[groups, rows]`, the natural logarithm of the sum of exponentials.
    pub lse: &'a mut [f32],
}

/// The machine's memories, which the caller provides; [`Datapath::memory`] has their sizes.
#[derive(Debug)]
pub struct Memory<'a> {
    /// L1, and P in GM.
    pub bf16: &'a mut [bf16],
    /// L0, UB, S, T and O in GM, and the rows' state.
    pub f32: &'a mut [f32],
}

/// Maximum number of row groups with O in GM at the same time.
const OUTPUTS: usize = MAX_SLOTS / VECTOR_CORES;
/// Row groups with their state in UB at the same time: one starts before the previous is normalised.
const STATES: usize = 2;
/// Blocks with their factors in UB at the same time: V1 of the next block comes before V2.
const FACTORS: usize = 2;
/// FP32 lanes of a Vector core.
const LANES: usize = Machine::ASCEND_910.lanes;

/// The state of a row in UB. AMLA: Algorithm 2's, with m and n as powers of two. Base: m and l, with m as a
/// power of e.
#[derive(Clone, Copy)]
struct RowState {
    m: f32,
    l: f32,
    n: f32,
    c: f32,
    s16: f32,
}

impl RowState {
    const NUMBERS: usize = 5;
    /// The initial state (line 1).
    const START: Self = Self {
        m: f32::NEG_INFINITY,
        l: 0.0,
        n: 0.0,
        c: 1.0,
        s16: 1.0,
    };

    fn load(from: &[f32]) -> Self {
        Self {
            m: from[0],
            l: from[1],
            n: from[2],
            c: from[3],
            s16: from[4],
        }
    }

    fn store(&self, to: &mut [f32]) {
        to.copy_from_slice(&[self.m, self.l, self.n, self.c, self.s16]);
    }
}

/// Sizes of a kernel's buffers, in elements.
#[derive(Clone, Copy)]
struct Sizes {
    l1_buffer: usize,
    l0a: usize,
    l0b: usize,
    l0c: usize,
    chunk: usize,
    scores: usize,
    products: usize,
    output: usize,
}

impl Sizes {
    fn of(kernel: &Kernel) -> Self {
        let (machine, tiling, load) = (&kernel.machine, &kernel.tiling, &kernel.load);
        let columns = load.block().max(2 * load.d_v);
        Self {
            l1_buffer: tiling.l1_buffer / BF16,
            l0a: machine.l0a / BF16 / HALVES,
            l0b: machine.l0b / BF16 / HALVES,
            l0c: machine.l0c / FP32 / HALVES,
            chunk: tiling.vector_rows * columns,
            scores: load.rows * load.block(),
            products: load.rows * load.d_v,
            output: load.rows * load.d_v,
        }
    }
}

/// Executes a kernel's instructions: an [`Observer`] for [`Kernel::run_with`].
pub struct Datapath<'a> {
    kernel: Kernel,
    sizes: Sizes,
    inputs: Inputs<'a>,
    outputs: Outputs<'a>,
    l1_qp: &'a mut [bf16],
    l1_kv: &'a mut [bf16],
    probabilities: &'a mut [bf16],
    /// L0, whose BF16 operands are converted to FP32.
    l0a: &'a mut [f32],
    l0b: &'a mut [f32],
    l0c: &'a mut [f32],
    ub_in: &'a mut [f32],
    ub_out: &'a mut [f32],
    scores: &'a mut [f32],
    products: &'a mut [f32],
    output: &'a mut [f32],
    states: &'a mut [f32],
    /// V1's factor of each row for the block's Rescale (N) or V2 (exp(m' - m)).
    factors: &'a mut [f32],
    /// The part of a matrix in each buffer of L1: Q/P, K/V.
    l1_regions: [[Region; MAX_SLOTS]; 2],
}

impl<'a> Datapath<'a> {
    /// The lengths of [`Memory`] for `kernel`, in elements: BF16, FP32.
    #[must_use]
    pub fn memory(kernel: &Kernel) -> [usize; 2] {
        let (bf16, f32) = Self::parts(kernel);
        [bf16.iter().sum(), f32.iter().sum()]
    }

    /// The parts of [`Memory`], in the order of the fields.
    fn parts(kernel: &Kernel) -> ([usize; 3], [usize; 10]) {
        let (sizes, tiles) = (Sizes::of(kernel), kernel.pipeline.tiles());
        let base = kernel.algorithm == Algorithm::Base;
        let outputs = kernel.load.groups.min(OUTPUTS);
        (
            [
                kernel.tiling.qp_buffers * sizes.l1_buffer,
                kernel.tiling.kv_buffers * sizes.l1_buffer,
                tiles * sizes.scores,
            ],
            [
                HALVES * sizes.l0a,
                HALVES * sizes.l0b,
                HALVES * sizes.l0c,
                VECTOR_CORES * HALVES * sizes.chunk,
                VECTOR_CORES * HALVES * sizes.chunk,
                tiles * sizes.scores,
                if base { tiles * sizes.products } else { 0 },
                outputs * sizes.output,
                STATES * kernel.load.rows * RowState::NUMBERS,
                FACTORS * kernel.load.rows,
            ],
        )
    }

    /// An executor for one run of `kernel`.
    ///
    /// # Errors
    /// [`Fault::WrongLength`]: the length of an input, an output or a memory.
    pub fn new(
        kernel: &Kernel,
        inputs: Inputs<'a>,
        outputs: Outputs<'a>,
        memory: Memory<'a>,
    ) -> Result<Self, Fault> {
        let load = &kernel.load;
        let rows = load.groups * load.rows;
        let [bf16, f32] = Self::memory(kernel);
        for (what, given, needed) in [
            ("q", inputs.q.len(), rows * load.d_qk),
            ("kv", inputs.kv.len(), load.groups * load.keys * load.d_qk),
            ("o", outputs.o.len(), rows * load.d_v),
            ("lse", outputs.lse.len(), rows),
            ("the memory of BF16", memory.bf16.len(), bf16),
            ("the memory of FP32", memory.f32.len(), f32),
            // Values are the first columns of the keys.
            ("a row of kv", load.d_qk.min(load.d_v), load.d_v),
        ] {
            if given != needed {
                return Err(Fault::WrongLength {
                    what,
                    given,
                    needed,
                });
            }
        }
        let (bf16, f32) = Self::parts(kernel);
        let [l1_qp, l1_kv, probabilities] = split(memory.bf16, bf16);
        let [
            l0a,
            l0b,
            l0c,
            ub_in,
            ub_out,
            scores,
            products,
            output,
            states,
            factors,
        ] = split(memory.f32, f32);
        Ok(Self {
            kernel: *kernel,
            sizes: Sizes::of(kernel),
            inputs,
            outputs,
            l1_qp,
            l1_kv,
            probabilities,
            l0a,
            l0b,
            l0c,
            ub_in,
            ub_out,
            scores,
            products,
            output,
            states,
            factors,
            l1_regions: [[Region::default(); MAX_SLOTS]; 2],
        })
    }

    // ---------------------------------------------------------------------------------------------
    // The Cube core
    // ---------------------------------------------------------------------------------------------

    /// MTE2: a stripe of Q or P to L1.
    fn load_left(&mut self, op: &Op, to: Slot) {
        let (region, load) = (op.region, &self.kernel.load);
        self.l1_regions[0][to.index] = region;
        let l1 = &mut self.l1_qp[to.index * self.sizes.l1_buffer..];
        let (from, stride) = match (op.work, op.source) {
            (Work::C2(_), Some(slot)) => {
                let first = slot.index * self.sizes.scores;
                (&self.probabilities[first..], load.block())
            }
            (work, _) => {
                let first = self.kernel.group_of(work) * load.rows * load.d_qk;
                (&self.inputs.q[first..], load.d_qk)
            }
        };
        for (row, l1) in (region.row..).zip(l1.chunks_mut(region.columns).take(region.rows)) {
            l1.copy_from_slice(&from[row * stride + region.column..][..region.columns]);
        }
    }

    /// MTE2: a tile of K or V to L1, one row per column of the product.
    fn load_right(&mut self, op: &Op, to: Slot) {
        let (region, load) = (op.region, &self.kernel.load);
        let (Work::C1(item) | Work::C2(item)) = op.work else {
            return;
        };
        self.l1_regions[1][to.index] = region;
        let l1 = &mut self.l1_kv[to.index * self.sizes.l1_buffer..];
        let first = load.group(item) * load.keys + load.first_key(item);
        let kv = &self.inputs.kv[first * load.d_qk..];
        let c1 = matches!(op.work, Work::C1(_));
        for (column, l1) in (region.row..).zip(l1.chunks_mut(region.columns).take(region.rows)) {
            for (depth, x) in (region.column..).zip(l1) {
                let (key, feature) = if c1 { (column, depth) } else { (depth, column) };
                *x = kv[key * load.d_qk + feature];
            }
        }
    }

    /// MTE1: to L0A, row by row.
    fn fetch_left(&mut self, op: &Op, from: Slot, to: Slot) {
        let region = op.region;
        let single = self.l1_regions[0][from.index];
        let l1 = &self.l1_qp[from.index * self.sizes.l1_buffer..];
        let l0 = &mut self.l0a[to.index * self.sizes.l0a..];
        for (row, l0) in (region.row..).zip(l0.chunks_mut(region.columns).take(region.rows)) {
            let first = (row - single.row) * single.columns + region.column - single.column;
            for (x, l1) in l0.iter_mut().zip(&l1[first..]) {
                *x = l1.to_f32();
            }
        }
    }

    /// MTE1: to L0B, transposed.
    fn fetch_right(&mut self, op: &Op, from: Slot, to: Slot) {
        let region = op.region;
        let single = self.l1_regions[1][from.index];
        let l1 = &self.l1_kv[from.index * self.sizes.l1_buffer..];
        let l0 = &mut self.l0b[to.index * self.sizes.l0b..];
        for (depth, l0) in (region.column..).zip(l0.chunks_mut(region.rows).take(region.columns)) {
            for (column, x) in (region.row..).zip(l0) {
                let index = (column - single.row) * single.columns + depth - single.column;
                *x = l1[index].to_f32();
            }
        }
    }

    /// MMAD.
    fn multiply(&mut self, op: &Op, half: usize, to: Slot, first: bool, depth: usize) {
        let region = op.region;
        let a = &self.l0a[half * self.sizes.l0a..][..region.rows * depth];
        let b = &self.l0b[half * self.sizes.l0b..][..region.columns * depth];
        let c = &mut self.l0c[to.index * self.sizes.l0c..][..region.len()];
        if first {
            c.fill(0.0);
        }
        for (a, c) in a.chunks(depth).zip(c.chunks_mut(region.columns)) {
            for (&a, b) in a.iter().zip(b.chunks(region.columns)) {
                for (c, &b) in c.iter_mut().zip(b) {
                    *c += a * b;
                }
            }
        }
    }

    /// FixP.
    fn store(&mut self, op: &Op, from: Slot, to: Slot, add: bool) {
        let (region, load) = (op.region, &self.kernel.load);
        let c = &self.l0c[from.index * self.sizes.l0c..][..region.len()];
        let (gm, stride) = match to.buffer {
            Buffer::Scores => (
                &mut self.scores[to.index * self.sizes.scores..],
                load.block(),
            ),
            Buffer::Products => (
                &mut self.products[to.index * self.sizes.products..],
                load.d_v,
            ),
            _ => {
                let first = to.index / VECTOR_CORES * self.sizes.output;
                (&mut self.output[first..], load.d_v)
            }
        };
        for (row, c) in (region.row..).zip(c.chunks(region.columns)) {
            let gm = &mut gm[row * stride + region.column..][..region.columns];
            if add {
                // Algorithm 2, line 18.
                for (o, &c) in gm.iter_mut().zip(c) {
                    *o += c;
                }
            } else {
                gm.copy_from_slice(c);
            }
        }
    }

    // ---------------------------------------------------------------------------------------------
    // The Vector cores
    // ---------------------------------------------------------------------------------------------

    /// GM to UB: rows of S (V1), of T and after them of O (V2), or of O (Last).
    fn chunk_in(&mut self, op: &Op, from: Slot, to: Slot) {
        let (region, load) = (op.region, &self.kernel.load);
        let output = self.kernel.group_of(op.work) % OUTPUTS * self.sizes.output;
        let (gm, stride) = match from.buffer {
            Buffer::Scores => (&self.scores[from.index * self.sizes.scores..], load.block()),
            Buffer::Products => (&self.products[from.index * self.sizes.products..], load.d_v),
            _ => (&self.output[output..], load.d_v),
        };
        let ub = &mut self.ub_in[chunk_index(to) * self.sizes.chunk..][..self.sizes.chunk];
        copy_rows(gm, stride, region, ub);
        if let Work::V2(_) = op.work {
            copy_rows(
                &self.output[output..],
                load.d_v,
                region,
                &mut ub[region.len()..],
            );
        }
    }

    /// Arithmetic.
    fn compute(&mut self, op: &Op, from: Option<Slot>, to: Slot) {
        let chunk = self.sizes.chunk;
        let input = from.map_or(&[][..], |slot| {
            &self.ub_in[chunk_index(slot) * chunk..][..chunk]
        });
        let output = &mut self.ub_out[chunk_index(to) * chunk..][..chunk];
        let (region, load) = (op.region, &self.kernel.load);
        let amla = self.kernel.algorithm == Algorithm::Amla;
        let group = self.kernel.group_of(op.work);
        for (index, out) in output
            .chunks_mut(region.columns)
            .take(region.rows)
            .enumerate()
        {
            let row = region.row + index;
            let columns = index * region.columns..(index + 1) * region.columns;
            let state = &mut self.states[group % STATES * load.rows * RowState::NUMBERS..];
            let state = &mut state[row * RowState::NUMBERS..][..RowState::NUMBERS];
            let factor = |item: usize| item % FACTORS * load.rows + row;
            match op.work {
                Work::V1(i) => {
                    let mut row_state = if load.is_first(i) {
                        RowState::START
                    } else {
                        RowState::load(state)
                    };
                    out.copy_from_slice(&input[columns]);
                    let scale = self.inputs.softmax_scale;
                    self.factors[factor(i)] = if amla {
                        let increment = softmax_amla(out, scale * LOG2_E, &mut row_state);
                        f32::from_bits(increment.bits().cast_unsigned())
                    } else {
                        softmax_base(out, scale, &mut row_state)
                    };
                    row_state.store(state);
                }
                // Algorithm 2, line 14: N for every element of the row.
                Work::Rescale(i) => out.fill(self.factors[factor(i)]),
                // Algorithm 1, line 7. The first block overwrites O.
                Work::V2(i) => {
                    let (t, o) = input.split_at(region.len());
                    out.copy_from_slice(&t[columns.clone()]);
                    if !load.is_first(i) {
                        let m_up = self.factors[factor(i)];
                        for (out, &o) in out.iter_mut().zip(&o[columns]) {
                            *out += o * m_up;
                        }
                    }
                }
                // Algorithm 2, line 20; Algorithm 1, line 9.
                Work::Last(_) | Work::C1(_) | Work::C2(_) => {
                    let row_state = RowState::load(state);
                    for (out, &o) in out.iter_mut().zip(&input[columns]) {
                        *out = o / (row_state.l * row_state.s16);
                    }
                    let ln_base = if amla { LN_2 } else { 1.0 };
                    self.outputs.lse[group * load.rows + row] =
                        row_state.m * ln_base + logf(row_state.l);
                }
            }
        }
    }

    /// UB to GM: rows of P (V1), of O (V2), of the result (Last); N added to O (Rescale).
    fn chunk_out(&mut self, op: &Op, from: Slot, to: Option<Slot>, add: bool) {
        let (region, load) = (op.region, &self.kernel.load);
        let ub = &self.ub_out[chunk_index(from) * self.sizes.chunk..];
        let group = self.kernel.group_of(op.work);
        for (row, ub) in (region.row..).zip(ub.chunks(region.columns).take(region.rows)) {
            if let (Work::V1(_), Some(to)) = (op.work, to) {
                let first = to.index * self.sizes.scores + row * load.block();
                for (p, &x) in self.probabilities[first..].iter_mut().zip(ub) {
                    *p = bf16::from_f32(x);
                }
            } else if let (Work::Last(_), None) = (op.work, to) {
                let first = (group * load.rows + row) * load.d_v;
                self.outputs.o[first..][..load.d_v].copy_from_slice(ub);
            } else {
                let first = group % OUTPUTS * self.sizes.output + row * load.d_v;
                for (o, &x) in self.output[first..].iter_mut().zip(ub) {
                    *o = if add {
                        // Algorithm 2, lines 14 and 15.
                        as_printed_f32(*o, x.to_bits().cast_signed())
                    } else {
                        x
                    };
                }
            }
        }
    }
}

impl Observer for Datapath<'_> {
    fn done(&mut self, op: &Op, _: f64, _: f64) {
        match (op.action, op.source, op.target) {
            (Action::LoadA, _, Some(to)) => self.load_left(op, to),
            (Action::LoadRight, _, Some(to)) => self.load_right(op, to),
            (Action::FetchA, Some(from), Some(to)) => self.fetch_left(op, from, to),
            (Action::FetchRight, Some(from), Some(to)) => self.fetch_right(op, from, to),
            (Action::Multiply { first, depth }, Some(from), Some(to)) => {
                self.multiply(op, from.index, to, first, depth);
            }
            (Action::Store, Some(from), Some(to)) => self.store(op, from, to, false),
            (Action::AtomicAdd, Some(from), Some(to)) => self.store(op, from, to, true),
            (Action::ChunkIn, Some(from), Some(to)) => self.chunk_in(op, from, to),
            (Action::Compute, from, Some(to)) => self.compute(op, from, to),
            (Action::ChunkOut, Some(from), to) => self.chunk_out(op, from, to, false),
            (Action::AtomicAddInt, Some(from), to) => self.chunk_out(op, from, to, true),
            // Every other instruction has a target.
            _ => {}
        }
    }
}

/// V1 of a row, Algorithm 2, lines 5 to 12 with the appendix's compensation. It replaces scores by P before
/// rounding, and returns N. `scale` includes log2(e).
fn softmax_amla(s: &mut [f32], scale: f32, row: &mut RowState) -> Increment {
    let (n_prev, c_prev) = (row.n, row.c);
    // Line 5.
    let m_up = scale_to_maximum(s, scale, row, exp2f);
    // Line 6.
    row.n = rintf(-row.m);
    let p = s;
    for p in &mut *p {
        *p = exp2f(*p - row.m);
    }
    row.l = row.l * m_up + sum_of(p);
    // Lines 7 to 10.
    let s32 = exp2f(row.n + row.m);
    row.s16 = bf16::from_f32(s32).to_f32();
    row.c = row.s16 / s32;
    for p in p {
        *p *= row.s16;
    }
    // Lines 11 and 12.
    #[expect(clippy::cast_possible_truncation, reason = "saturates, and is clamped")]
    let n = (row.n - n_prev) as i32;
    Increment::compensated(n, compensation(c_prev, row.c))
}

/// V1 of a row, Algorithm 1, line 5. It replaces scores by P before rounding, and returns exp(m' - m).
fn softmax_base(s: &mut [f32], scale: f32, row: &mut RowState) -> f32 {
    let m_up = scale_to_maximum(s, scale, row, expf);
    for p in &mut *s {
        *p = expf(*p - row.m);
    }
    row.l = row.l * m_up + sum_of(s);
    m_up
}

/// Scales the scores, updates the maximum m, and returns the sum's factor exp(m' - m).
fn scale_to_maximum(s: &mut [f32], scale: f32, row: &mut RowState, exp: fn(f32) -> f32) -> f32 {
    let m_prev = row.m;
    for s in s {
        *s *= scale;
        row.m = row.m.max(*s);
    }
    exp(m_prev - row.m)
}

/// A row's sum in a Vector core's order: per lane, then across the lanes.
fn sum_of(p: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    for p in p.chunks(LANES) {
        for (lane, p) in lanes.iter_mut().zip(p) {
            *lane += p;
        }
    }
    lanes.iter().sum()
}

/// Copies `region` of a matrix in GM, row by row.
fn copy_rows(gm: &[f32], stride: usize, region: Region, to: &mut [f32]) {
    let rows = region.row..region.row + region.rows;
    for (row, to) in rows.zip(to.chunks_mut(region.columns)) {
        to.copy_from_slice(&gm[row * stride + region.column..][..region.columns]);
    }
}

/// The index of a chunk in UB, among those of all Vector cores.
fn chunk_index(slot: Slot) -> usize {
    match slot.buffer {
        Buffer::UbIn(core) | Buffer::UbOut(core) => core * HALVES + slot.index,
        _ => slot.index,
    }
}

/// Cuts `memory` into parts of these lengths, whose sum is its length.
fn split<T, const N: usize>(mut memory: &mut [T], lengths: [usize; N]) -> [&mut [T]; N] {
    lengths.map(|length| {
        let (part, rest) = core::mem::take(&mut memory).split_at_mut(length);
        memory = rest;
        part
    })
}
