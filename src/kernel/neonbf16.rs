//! NEON with BF16 matrix products: `bfmmla`, 2 rows x 4 elements times 4 elements x 2 columns.
//!
//! | kernel | register tile | operands | per step of 4 |
//! |---|---|---|---|
//! | C1 | 6 pairs of keys x 4 of rows | K and Q, four features at a time | 6 + 4 loads, 24 products |
//! | C2 | 6 pairs of rows x 4 of columns | P and V, four keys at a time | the same |
//!
//! 24 of the 32 registers accumulate, each 2 x 2 results; 4 hold the operand across and 1 that
//! along. Peak: 32 FLOP per product, where a multiply-add of [`super::neon`] does 8 and `bfdot`
//! would do 16 (`docs/experiments.md`); `docs/backends.md` counts what comes with them.
//!
//! **Quads.** Where other BF16 dots take pairs in a `u32`, this one takes four neighbours of one
//! row in 64 bits, two rows in a register. In the memory of panels of Q, of P and of strips of V there are
//! quads instead of pairs: of four features x rows, of four keys x rows, of four keys x columns. Keys are packed
//! in that order by groups, 96 features at a time, and V by strips, both in L0B; P is reordered in its place.
//!
//! **Numerics.** An instruction adds two pairs, one after the other. Of a pair, the two exact
//! products are added and rounded to odd; then they are added to the sum, rounded to odd:
//! an error of less than one unit in the last place instead of half of one, half as often
//! and of either sign. Subnormal numbers are zeros. (With `FPCR.EBF`, which nobody sets for a
//! program, processors with FEAT_EBF16 round to nearest.)
#![allow(
    unsafe_code,
    reason = "the intrinsics aren't stable: single instructions; loads and stores of vectors"
)]
#![allow(
    clippy::needless_range_loop,
    reason = "counted loops unroll early, so that accumulators become registers"
)]

use core::arch::aarch64::*;
use core::arch::asm;

use half::bf16;

use super::asimd::{LANES, Neon};
use super::prefetch::{self, Budget, Hint, LINE, Spread};
use super::scalar::prob_of;
use super::simd::{self, Simd, lanes, lanes_mut, split};
use super::softmax::{self, RoundPairs, StoreBf16};
use super::{Epilogue, Kernel, PackQ, Pv, Qk, Skipped, Softmax, detect, scalar};
use crate::bits::Increment;
use crate::format::Row;
use crate::problem::Precision;
use crate::tile::{
    BLOCK_KEYS, BLOCK_PAIRS, Fp32Tile, L0a, L0b, MAX_D_QK, ORow, PANEL_ROWS, PTile, QPanel,
    RowState, STRIP, STile, ascend,
};

/// The quads of two rows, or columns: a register's worth.
type Two = [u32; 4];
/// A step of an operand, four deep: a quad for each of a panel's rows or a strip's columns.
type Step = [Two; 32];
/// The same for the keys of a register tile.
type KeyStep = [Two; M];

const _: () = assert!(PANEL_ROWS == 64 && STRIP == 64);

/// Steps of a block of keys.
const BLOCK_STEPS: usize = BLOCK_PAIRS / 2;
/// Steps of one visit to the Q panel.
const STEPS_K: usize = ascend::BASE_K / 4;
/// Registers of the operand along: pairs of keys, or of rows of P.
const M: usize = 6;
/// Of the operand across: pairs of query rows, or of columns.
const N: usize = 4;
/// Keys of a register tile: a block is whole in it.
const KEYS: usize = 2 * M;

/// Proof that the processor has NEON and its BF16 instructions.
#[derive(Clone, Copy)]
pub struct NeonBf16 {
    simd: Neon,
}

impl NeonBf16 {
    /// The token, if the processor qualifies.
    pub fn new() -> Option<Self> {
        let simd = Neon::new();
        detect::has_bf16().then_some(Self { simd })
    }
}

impl Kernel for NeonBf16 {
    fn prefetch_budget(self, rows: &prefetch::Shape) -> Budget {
        if rows.group_rows <= PREFETCHING_ROWS {
            Budget {
                distance: BLOCK_KEYS,
                c2: BLOCK_KEYS,
                ..Budget::NONE
            }
        } else {
            Budget::NONE
        }
    }

    fn convert(self, row: &Row<'_>, next: &Row<'_>, out: &mut [bf16]) {
        scalar::convert_row(self.simd, row, next, out);
    }

    fn pack_q(self, call: &PackQ<'_>, panel: &mut [QPanel]) {
        pack_q(call, &mut panel[0]);
    }

    fn qk(self, call: &Qk<'_>, q: &[QPanel], scratch: &mut L0b, s: &mut STile) {
        let q: &[Step; MAX_D_QK / 4] = bytemuck::cast_ref(&q[0].0);
        // SAFETY: the token proves the features.
        unsafe { qk(self.simd, call, &q[..call.d_qk / 4], &mut scratch[0], s) }
    }

    fn softmax(self, call: &Softmax<'_>, s: &STile, p: &mut L0a, state: &mut RowState) {
        // SAFETY: the token proves the features.
        unsafe { softmax(self, call, s, p, state) }
    }

    fn prob(self, p: &L0a, precision: Precision, k: usize, r: usize) -> f32 {
        prob_of(p, precision, k, r, |tile| {
            quads(tile)[k / 4][r / 2][r % 2 * 2 + k / 2 % 2]
        })
    }

    fn pv(self, call: &Pv<'_>, p: &[&L0a], scratch: &mut L0b, o: &mut [ORow]) -> Skipped {
        // SAFETY: the token proves the features.
        unsafe { pv(self.simd, call, p, scratch, o) }
    }

    fn epilogue(
        self,
        call: &Epilogue<'_>,
        earlier: Option<&[ORow]>,
        o: &mut [ORow],
        store: impl FnMut(usize, &ORow),
    ) {
        simd::epilogue(self.simd, call, earlier, o, store);
    }

    fn rescale(self, xs: &mut [f32], increment: Increment) {
        simd::rescale(self.simd, xs, increment);
    }

    fn dot_loop(self, iterations: u64) -> u64 {
        // SAFETY: the token proves the features.
        unsafe { dot_loop(self.simd, iterations) }
    }
}

/// Groups of up to this many rows prefetch the next block: with more the processor's own prefetcher is fast enough.
const PREFETCHING_ROWS: usize = 16;

/// Query rows as quads.
fn pack_q(call: &PackQ<'_>, panel: &mut QPanel) {
    let PackQ { d_qk, rows, .. } = *call;
    let sign = if call.negate { 0x8000_8000 } else { 0 };
    let panel: &mut [[[u32; 2]; PANEL_ROWS]; MAX_D_QK / 4] = bytemuck::cast_mut(&mut panel.0);
    let panel = &mut panel[..d_qk / 4];
    for (r, row) in rows.iter().enumerate() {
        for (&[a, b, c, d], out) in row[..d_qk].as_chunks().0.iter().zip(&mut *panel) {
            out[r] = [[a, b], [c, d]].map(|pair| scalar::join(pair) ^ sign);
        }
    }
    for out in panel {
        out[rows.len()..].fill([0; 2]);
    }
}

/// A strip of values as quads, with zeros where a step has fewer than four keys. Returns whether all are finite.
#[target_feature(enable = "neon,bf16")]
fn pack_v(
    simd: Neon,
    values: &[&[bf16]],
    column: usize,
    prefetch: &mut Spread<'_>,
    to: &mut [Step],
) -> bool {
    static ZEROS: [bf16; STRIP] = [bf16::ZERO; _];
    let exponent = vdupq_n_u16(0x7f80);
    let mut non_finite = vdupq_n_u16(0);
    for (values, to) in values.chunks(4).zip(to) {
        let mut rows = [&ZEROS[..]; 4];
        for (row, value) in rows.iter_mut().zip(values) {
            *row = &value[column..][..STRIP];
        }
        prefetch.step(simd, Hint::L1);
        for (i, to) in to.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let mut eight = [vdupq_n_u16(0); 4];
            for k in 0..4 {
                eight[k] = load_eight(simd, &rows[k][8 * i..]);
                let wrong = vceqq_u16(vandq_u16(eight[k], exponent), exponent);
                non_finite = vorrq_u16(non_finite, wrong);
            }
            let (low, high) = (pairs(eight[0], eight[1]), pairs(eight[2], eight[3]));
            for h in 0..2 {
                let (low, high) = (low[h], high[h]);
                store_two(simd, vzip1q_u32(low, high), &mut to[2 * h]);
                store_two(simd, vzip2q_u32(low, high), &mut to[2 * h + 1]);
            }
        }
    }
    vmaxvq_u16(non_finite) == 0
}

/// Pairs of two keys.
#[inline]
#[target_feature(enable = "neon,bf16")]
fn pairs(even: uint16x8_t, odd: uint16x8_t) -> [uint32x4_t; 2] {
    [
        vreinterpretq_u32_u16(vzip1q_u16(even, odd)),
        vreinterpretq_u32_u16(vzip2q_u16(even, odd)),
    ]
}

/// C1: all keys of the block over one chunk of the Q panel, then over the next.
#[target_feature(enable = "neon,bf16")]
fn qk(simd: Neon, call: &Qk<'_>, q: &[Step], scratch: &mut Fp32Tile, s: &mut STile) {
    let (keys, rows) = (call.keys, call.rows);
    let memory: &mut [KeyStep] = bytemuck::cast_slice_mut(scratch.0.as_flattened_mut());
    for (chunk, q) in q.chunks(STEPS_K).enumerate() {
        let feature = 4 * STEPS_K * chunk;
        let features = feature..feature + 4 * q.len();
        let a = &mut memory[..q.len()];
        for (group, s) in s.0.chunks_exact_mut(KEYS).enumerate() {
            let first = group * KEYS;
            if first >= keys.len() {
                break;
            }
            for row in keys.iter().skip(first + KEYS).take(KEYS) {
                for line in features.clone().step_by(LINE) {
                    simd.prefetch(&raw const row[line]);
                }
            }
            for i in 0..M {
                // A group at the end repeats its last key; nobody reads the copies.
                let key = |k: usize| &keys[(first + k).min(keys.len() - 1)][features.clone()];
                pack_keys(simd, [key(2 * i), key(2 * i + 1)], i, a);
            }
            for pair in (0..rows.div_ceil(2)).step_by(N) {
                qk_tile(simd, a, q, pair, chunk > 0, s);
            }
        }
    }
}

/// Two keys as quads, eight features at a time.
#[inline]
#[target_feature(enable = "neon,bf16")]
fn pack_keys(simd: Neon, keys: [&[bf16]; 2], i: usize, to: &mut [KeyStep]) {
    for (j, to) in to.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        let first = vreinterpretq_u64_u16(load_eight(simd, &keys[0][8 * j..]));
        let second = vreinterpretq_u64_u16(load_eight(simd, &keys[1][8 * j..]));
        let low = vreinterpretq_u32_u64(vzip1q_u64(first, second));
        let high = vreinterpretq_u32_u64(vzip2q_u64(first, second));
        store_two(simd, low, &mut to[0][i]);
        store_two(simd, high, &mut to[1][i]);
    }
}

/// `s[key][row] (+)= sum over features of k[key][feature] q[row][feature]`, for the query rows
/// from `2 * pair` on.
#[inline]
#[target_feature(enable = "neon,bf16")]
fn qk_tile(
    simd: Neon,
    a: &[KeyStep],
    q: &[Step],
    pair: usize,
    accumulate_on: bool,
    s: &mut [[f32; PANEL_ROWS]],
) {
    let mut acc = [[simd.splat(0.0); N]; M];
    accumulate(simd, a, 0, q, pair, &mut acc);
    let s = &mut s[..KEYS];
    for i in 0..M {
        for j in 0..N / 2 {
            let sums = halves(acc[i][2 * j], acc[i][2 * j + 1]);
            for h in 0..2 {
                let s = &mut lanes_mut::<Neon>(&mut s[2 * i + h])[pair / 2 + j];
                let sum = if accumulate_on {
                    simd.add(simd.load(s), sums[h])
                } else {
                    sums[h]
                };
                simd.store(sum, s);
            }
        }
    }
}

/// V1, with the processor's own conversion.
#[target_feature(enable = "neon,bf16")]
fn softmax(kernel: NeonBf16, call: &Softmax<'_>, s: &STile, p: &mut L0a, state: &mut RowState) {
    softmax::softmax(
        kernel.simd,
        StoreBf16::<NeonBf16>(kernel),
        call,
        None,
        s,
        p,
        state,
        || (),
    );
    reorder_p(kernel.simd, call, &mut p.high);
    if call.precision == Precision::Bf16x2 {
        reorder_p(kernel.simd, call, &mut p.low);
    }
}

impl RoundPairs<Neon> for NeonBf16 {
    #[inline(always)]
    fn round(self, _simd: Neon, [even, odd]: [float32x4_t; 2]) -> int32x4_t {
        // SAFETY: the token proves the features.
        unsafe { vreinterpretq_s32_u16(vzip1q_u16(bfcvtn(even), bfcvtn(odd))) }
    }

    /// In FP32: a dot would round to odd.
    #[inline(always)]
    fn add(self, simd: Neon, sum: float32x4_t, pairs: int32x4_t) -> float32x4_t {
        let [even, odd] = split(simd, pairs);
        simd.add(sum, simd.add(even, odd))
    }
}

/// C2: strip by strip, all rows of all panels over one strip of V.
#[target_feature(enable = "neon,bf16")]
fn pv(simd: Neon, call: &Pv<'_>, p: &[&L0a], scratch: &mut L0b, o: &mut [ORow]) -> Skipped {
    let steps = call.keys.div_ceil(4);
    let memory: &mut [Step] = bytemuck::cast_slice_mut(scratch[0].0.as_flattened_mut());
    let v = &mut memory[..steps];
    let prefetch = &mut Spread::of(call.prefetch, steps * call.strips);
    let mut skipped = Skipped::NONE;
    for strip in 0..call.strips {
        let finite = pack_v(simd, call.values.as_slice(), strip * STRIP, prefetch, v);
        // A second part of P has either sign.
        if !finite && (call.skips || call.precision == Precision::Bf16x2) {
            skipped.all |= 1 << strip;
            continue;
        }
        for (panel, p) in p.iter().enumerate() {
            let o = &mut call.strip(panel, strip, o)[..call.panel_rows(panel)];
            if !call.first {
                simd::rescale_rows(simd, o, &p.increment, 0..STRIP / LANES);
            }
            let low = match call.precision {
                Precision::Bf16 => &[],
                Precision::Bf16x2 => &quads(&p.low)[..steps],
            };
            let mut row = 0;
            while row < o.len() {
                let strip = Strip {
                    simd,
                    high: &quads(&p.high)[..steps],
                    low,
                    v,
                    weights: &p.weights,
                    row,
                };
                let o = &mut o[row..];
                row += match o.len().div_ceil(2) {
                    1 => strip.tile::<1>(!call.first, o),
                    2 => strip.tile::<2>(!call.first, o),
                    3 => strip.tile::<3>(!call.first, o),
                    4 => strip.tile::<4>(!call.first, o),
                    5 => strip.tile::<5>(!call.first, o),
                    _ => strip.tile::<M>(!call.first, o),
                };
            }
        }
    }
    skipped
}

/// A tile of P as quads, once it is reordered.
fn quads(p: &PTile) -> &[Step; BLOCK_STEPS] {
    bytemuck::cast_ref(&p.0)
}

/// Reorders P's pairs as quads in their place, with zeros where a step has no second pair.
#[inline]
#[target_feature(enable = "neon,bf16")]
fn reorder_p(simd: Neon, call: &Softmax<'_>, p: &mut PTile) {
    let pairs = call.keys.div_ceil(2);
    if pairs % 2 == 1 {
        p.0[pairs].fill(0);
    }
    for step in p.0[..pairs.next_multiple_of(2)].as_chunks_mut::<2>().0 {
        let [first, second] = *step;
        let to: &mut Step = bytemuck::cast_mut(step);
        let vectors = lanes_of(&first).iter().zip(lanes_of(&second));
        for ((first, second), to) in vectors.zip(to.as_chunks_mut::<2>().0) {
            let (first, second) = (load_two(simd, first), load_two(simd, second));
            store_two(simd, vzip1q_u32(first, second), &mut to[0]);
            store_two(simd, vzip2q_u32(first, second), &mut to[1]);
        }
    }
}

/// One strip of C2, from row `row` on.
struct Strip<'a> {
    simd: Neon,
    high: &'a [Step],
    low: &'a [Step],
    v: &'a [Step],
    /// The factor of each row's products.
    weights: &'a [f32; PANEL_ROWS],
    row: usize,
}

impl Strip<'_> {
    /// `PAIRS` pairs of rows, the last of which may lack its second one, added to O or
    /// in its place. Returns their number.
    ///
    /// Where P is in two parts, sums begin with O, so that O's error is that of the reference.
    #[inline]
    #[target_feature(enable = "neon,bf16")]
    fn tile<const PAIRS: usize>(&self, old: bool, o: &mut [[f32; STRIP]]) -> usize {
        let simd = self.simd;
        let rows = o.len().min(2 * PAIRS);
        let in_o = old && !self.low.is_empty();
        for column in (0..STRIP / 2).step_by(N) {
            let mut acc = [[simd.splat(0.0); N]; PAIRS];
            if in_o {
                for i in 0..PAIRS {
                    for j in 0..N / 2 {
                        let at = column / 2 + j;
                        let first = simd.load(&lanes::<Neon>(&o[2 * i])[at]);
                        let second = simd.load(&lanes::<Neon>(&o[(2 * i + 1).min(rows - 1)])[at]);
                        [acc[i][2 * j], acc[i][2 * j + 1]] = halves(first, second);
                    }
                }
            }
            accumulate(simd, self.high, self.row / 2, self.v, column, &mut acc);
            accumulate(simd, self.low, self.row / 2, self.v, column, &mut acc);
            for i in 0..PAIRS {
                for j in 0..N / 2 {
                    let at = column / 2 + j;
                    let both = halves(acc[i][2 * j], acc[i][2 * j + 1]);
                    for (row, sum) in (2 * i..rows).zip(both) {
                        let o = &mut lanes_mut::<Neon>(&mut o[row])[at];
                        let before = if old && !in_o {
                            simd.load(o)
                        } else {
                            simd.splat(0.0)
                        };
                        let weight = simd.splat(self.weights[self.row + row]);
                        simd.store(simd.mul_add(sum, weight, before), o);
                    }
                }
            }
        }
        rows
    }
}

/// The register tile: `acc[i][j] += sum over steps of a[first + i] b[second + j]^T`, where these are
/// 2 x 4 each.
#[inline]
#[target_feature(enable = "neon,bf16")]
fn accumulate<const PAIRS: usize, const WIDTH: usize>(
    simd: Neon,
    a: &[[Two; WIDTH]],
    first: usize,
    b: &[Step],
    second: usize,
    acc: &mut [[float32x4_t; N]; PAIRS],
) {
    for (a, b) in a.iter().zip(b) {
        let (a, b) = (&a[first..first + PAIRS], &b[second..second + N]);
        let mut across = [vdupq_n_u32(0); N];
        for j in 0..N {
            across[j] = load_two(simd, &b[j]);
        }
        for i in 0..PAIRS {
            let along = load_two(simd, &a[i]);
            for j in 0..N {
                acc[i][j] = bfmmla(acc[i][j], along, across[j]);
            }
        }
    }
}

#[target_feature(enable = "neon,bf16")]
fn dot_loop(simd: Neon, iterations: u64) -> u64 {
    const CHAINS: usize = M * N;
    let mut acc = [simd.splat(0.0); CHAINS];
    let x = vdupq_n_u32(core::hint::black_box(0x3f80_3f80));
    for _ in 0..iterations {
        for acc in &mut acc {
            *acc = bfmmla(*acc, x, x);
        }
    }
    for acc in acc {
        let mut out = [0.0; LANES];
        simd.store(acc, &mut out);
        core::hint::black_box(out);
    }
    iterations * (CHAINS * 32) as u64
}

/// Products of two rows and two columns, four deep, added to 2 x 2 sums.
#[inline]
#[target_feature(enable = "neon,bf16")]
fn bfmmla(mut sums: float32x4_t, rows: uint32x4_t, columns: uint32x4_t) -> float32x4_t {
    // SAFETY: the processor has the instruction, by this function's features; it touches its
    // registers alone.
    unsafe {
        asm!(
            "bfmmla {0:v}.4s, {1:v}.8h, {2:v}.8h",
            inout(vreg) sums, in(vreg) rows, in(vreg) columns,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sums
}

/// BF16 to nearest, ties to even, in the lower half; NaN stays NaN.
#[inline]
#[target_feature(enable = "neon,bf16")]
fn bfcvtn(x: float32x4_t) -> uint16x8_t {
    let halves: uint16x8_t;
    // SAFETY: as above.
    unsafe {
        asm!(
            "bfcvtn {0:v}.4h, {1:v}.4s",
            lateout(vreg) halves, in(vreg) x,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    halves
}

/// The lower halves of both, and the upper ones: 2 x 2 results to rows and back.
#[inline]
#[target_feature(enable = "neon,bf16")]
fn halves(a: float32x4_t, b: float32x4_t) -> [float32x4_t; 2] {
    let (a, b) = (vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b));
    [
        vreinterpretq_f32_f64(vzip1q_f64(a, b)),
        vreinterpretq_f32_f64(vzip2q_f64(a, b)),
    ]
}

/// Vectors of a row of pairs.
fn lanes_of(pairs: &[u32; PANEL_ROWS]) -> &[Two] {
    pairs.as_chunks().0
}

#[inline]
#[target_feature(enable = "neon,bf16")]
fn load_two(simd: Neon, from: &Two) -> uint32x4_t {
    vreinterpretq_u32_f32(simd.load(bytemuck::cast_ref(from)))
}

#[inline]
#[target_feature(enable = "neon,bf16")]
fn store_two(simd: Neon, x: uint32x4_t, to: &mut Two) {
    simd.store(vreinterpretq_f32_u32(x), bytemuck::cast_mut(to));
}

#[inline]
#[target_feature(enable = "neon,bf16")]
fn load_eight(simd: Neon, from: &[bf16]) -> uint16x8_t {
    vreinterpretq_u16_s32(simd.load_pairs(from))
}
