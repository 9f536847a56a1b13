//! Fused kernel for few rows: C1, V1 and C2 of some keys, then of the next.
//!
//! With few rows memory limits, or nearly so. In steps of 16 keys, C2 finds these in L1d, where C1 left them. Q and O of more
//! rows leave no room for that: steps have 64 keys then, so that Q and O, which come from L2, serve more of them. Meanwhile rows
//! to come are prefetched: C1 prefetches line by line, C2 a row or a part of one at once.
//!
//! | stage | register tile | operands |
//! |---|---|---|
//! | C1 | `keys` x `rows`, features in the lanes | Q, a vector of each row in turn; K in place |
//! | V1 | a row's keys in the lanes ([`softmax_rows`]) | S and P, row by row |
//! | C2 | `rows` x pairs of vectors of columns | V in place, P by broadcast |
//!
//! Each backend has its tiles ([`Tiles`]), for each way in which rows are stored. Both matrix products convert two vectors of a
//! row's numbers ([`Element`]), once for all rows of a tile. Q and O's columns have the order in which these come, O until the
//! epilogue. O is compact: strip after strip of `rows` rows.
//!
//! Kernels know widths as numbers only, so that all widths share their code.
#![allow(unsafe_code, reason = "loads by way of pointers to rows")]
#![allow(
    clippy::needless_range_loop,
    reason = "counted loops unroll early, so that accumulators become registers"
)]

use super::element::{Bf16, CHUNK, Element};
use super::panel::put_prob;
use crate::format::Dtype;
use crate::kernel::call::{PackQ, PackRow};
use crate::kernel::memory::Word;
use crate::kernel::prefetch::LINE;
use crate::kernel::simd::{Simd, lanes, lanes_mut, rescale_rows};
use crate::kernel::softmax_rows::{self, Bases, Scores, Unrounded, softmax_rows};
use crate::kernel::{FUSED_KEYS, FUSED_MULTIPLE, FusedBlock, FusedEnd, Skipped, Softmax, Strips};
use crate::tile::{BLOCK_KEYS, L0a, MAX_D_QK, ORow, QPanel, RowState, STRIP};

/// Rows of the largest fused group: `limit`, from which on panels are faster, or what a panel's memory holds in FP32.
pub const fn rows(limit: usize) -> usize {
    if limit < softmax_rows::ROWS {
        limit
    } else {
        softmax_rows::ROWS
    }
}

/// Keys that C2 multiplies in one unrolled loop; a step has a multiple.
const GROUP: usize = FUSED_MULTIPLE;
/// Keys of a step: of few rows, and of more.
const SHORT: usize = GROUP;
const LONG: usize = softmax_rows::KEYS;
/// Keys between a step's last and the first that it prefetches.
const DISTANCE: usize = 4;
/// Rows of a register tile where a group has several. Taller ones leave room for fewer keys or columns, and gain only by
/// converting these once.
const TALLEST: usize = 6;
/// Chunks of the widest key.
const MAX_CHUNKS: usize = MAX_D_QK / CHUNK;

// The last step may have a single key of the block, and prefetches as many as it computes on.
const _: () = assert!(FUSED_KEYS >= BLOCK_KEYS + GROUP + LONG + DISTANCE);

/// C1 of some rows, from one row on: [`fused_qk`] within a function that has the backend's features.
pub type Qk<S> = unsafe fn(S, &Step<'_>, usize, &mut Scores);
/// C2 of some rows, from one row on: [`fused_pv`].
pub type Pv<S> = unsafe fn(S, &Step<'_>, usize, &Scores, &mut Output<'_>);

/// A backend's register tiles, as [`backend`](super::backend) lists them: the n-th has n rows.
pub trait Tiles: Simd + 'static {
    /// Those of C1, for keys that are stored so.
    fn qk(keys: Dtype) -> &'static [Qk<Self>];
    /// Those of C2, for values.
    fn pv(values: Dtype) -> &'static [Pv<Self>];
}

/// Q as C1 reads it, in FP32: a vector of each row, then the next of each. Of two vectors the first has the numbers of even index
/// where `split`, as keys have them.
#[inline(always)]
pub fn pack_q<S: Simd>(simd: S, call: &PackQ<'_>, split: bool, panel: &mut [QPanel]) {
    let mut to = PackedRow::of(simd, call.negate, call.rows.len(), call.d_qk, panel);
    for (r, row) in call.rows.iter().enumerate() {
        let row = row[..call.d_qk].as_ptr();
        for at in (0..call.d_qk).step_by(2 * S::LANES) {
            // SAFETY: the row has these numbers, by the slicing above.
            let vectors = unsafe {
                if split {
                    Bf16::split(simd, row, at)
                } else {
                    Bf16::in_order(simd, row, at)
                }
            };
            to.put(r, at, vectors);
        }
    }
}

/// The same of a row in FP32.
#[inline(always)]
pub fn pack_row<S: Simd>(simd: S, call: &PackRow<'_>, split: bool, panel: &mut [QPanel]) {
    let mut to = PackedRow::of(simd, call.negate, call.rows, call.numbers.len(), panel);
    for (i, [a, b]) in lanes::<S>(call.numbers).as_chunks().0.iter().enumerate() {
        let [a, b] = [simd.load(a), simd.load(b)];
        let vectors = if split {
            simd.deinterleave(a, b)
        } else {
            [a, b]
        };
        to.put(call.row, i * 2 * S::LANES, vectors);
    }
}

/// Packed rows, to be written.
struct PackedRow<'a, S: Simd> {
    simd: S,
    /// Added to a number's bits, it flips the sign.
    sign: S::I32,
    rows: usize,
    to: &'a mut [S::Lanes],
}

impl<'a, S: Simd> PackedRow<'a, S> {
    #[inline(always)]
    fn of(simd: S, negate: bool, rows: usize, d_qk: usize, panel: &'a mut [QPanel]) -> Self {
        let numbers: &mut [f32] = bytemuck::cast_slice_mut(panel);
        Self {
            simd,
            sign: simd.splat_i32(if negate { i32::MIN } else { 0 }),
            rows,
            to: lanes_mut::<S>(&mut numbers[..rows * d_qk]),
        }
    }

    /// Two vectors of a row, from number `at` on.
    #[inline(always)]
    fn put(&mut self, row: usize, at: usize, vectors: [S::F32; 2]) {
        let Self {
            simd, sign, rows, ..
        } = *self;
        for i in 0..2 {
            let flipped = simd.from_bits(simd.add_i32(simd.to_bits(vectors[i]), sign));
            simd.store(flipped, &mut self.to[(at / S::LANES + i) * rows + row]);
        }
    }
}

/// A step's keys.
pub struct Step<'a> {
    /// Of Q and O.
    rows: usize,
    q: &'a [f32],
    chunks: usize,
    strips: usize,
    /// Rows that C2 prefetches with each group of keys of each strip, and their chunks.
    rows_each: usize,
    chunks_each: usize,
    /// Full groups. Each is valid for reads of `chunks` chunks.
    keys: &'a [*const Word],
    /// Each is valid for reads of O's strips.
    values: &'a [[*const Word; GROUP]],
    /// The rows that C1 prefetches, and those that C2 does: half as many as keys, or as many.
    prefetch: [&'a [*const Word]; 2],
    /// Whether they are prefetched into L2, or else into L1d.
    into_l2: bool,
    /// Whether strips are skipped in which values aren't finite: where some row doesn't see some key, or keys are repeated.
    skips: bool,
}

impl Step<'_> {
    /// Prefetches a chunk of a row: a line or two, or a line's part.
    #[inline(always)]
    fn prefetch_chunk<S: Simd, E: Element<S>>(&self, simd: S, row: *const Word, chunk: usize) {
        let words = const { E::DTYPE.words(CHUNK) };
        for line in (0..words).step_by(LINE) {
            let at = row.wrapping_add(chunk * words + line);
            if self.into_l2 {
                simd.prefetch_l2(at);
            } else {
                simd.prefetch(at);
            }
        }
    }

    /// Prefetches full keys at once. Not inlined: all register tiles share it.
    #[inline(never)]
    fn prefetch_rows<S: Simd, E: Element<S>>(&self, simd: S, rows: &[*const Word]) {
        for row in rows {
            for chunk in 0..self.chunks {
                self.prefetch_chunk::<S, E>(simd, *row, chunk);
            }
        }
    }
}

/// O, and its strips that C2 skips.
pub struct Output<'a> {
    o: &'a mut [ORow],
    skipped: Strips,
}

/// [`Kernel::fused`](crate::kernel::Kernel::fused).
#[inline(always)]
pub fn fused<T: Tiles>(
    tiles: T,
    call: &Softmax<'_>,
    block: &FusedBlock<'_>,
    from: usize,
    p: &mut L0a,
    state: &mut RowState,
    o: &mut [ORow],
) -> FusedEnd {
    const SHORT_ROWS: usize = 4;
    let rows = call.rows;
    let (d_qk, d_v) = (block.keys.width(), block.values.width());
    assert!(d_qk.is_multiple_of(CHUNK) && d_v.is_multiple_of(STRIP) && d_v > 0);
    let (chunks, strips) = (d_qk / CHUNK, d_v / STRIP);
    let tiles_of = (T::qk(block.keys.dtype()), T::pv(block.values.dtype()));
    let q: &[f32] = bytemuck::cast_slice(block.q);
    let (keys, values) = (block.keys.pointers(), block.values.pointers());
    let at_once = if rows <= SHORT_ROWS { SHORT } else { LONG };
    let apart = block.prefetch_values.is_some();
    let mut scores = Scores([[0.0; _]; _]);
    let mut bases = Bases::of(call, state);
    let into_l2 = tiles.prefetches_into_l2();
    let mut output = Output {
        o: &mut o[..strips * rows],
        skipped: 0,
    };
    for first in (from..call.keys).step_by(at_once) {
        let range = first..call.keys.min(first + at_once);
        // Full groups: the scores of keys beyond count for nothing.
        let padded = range.len().next_multiple_of(GROUP);
        let next = first + at_once + DISTANCE;
        let prefetch = match block.prefetch_values {
            Some(values) => [block.prefetch, values].map(|rows| &rows[next..][..padded]),
            None => block.prefetch[next..][..padded].split_at(padded / 2).into(),
        };
        let each = if apart { GROUP } else { GROUP / 2 };
        let step = Step {
            rows,
            q: &q[..rows * d_qk],
            chunks,
            strips,
            rows_each: each / strips,
            chunks_each: if apart { d_v / CHUNK } else { chunks },
            into_l2,
            skips: call.mask.is_some() || padded > range.len(),
            keys: &keys[first..][..padded],
            values: values[first..][..padded].as_chunks().0,
            prefetch,
        };
        for (row, qk) in row_tiles(rows, tiles_of.0) {
            // SAFETY: the token proves the features.
            unsafe { qk(tiles, &step, row, &mut scores) };
        }
        let vectors = padded / T::LANES;
        let moved = softmax_rows(
            tiles,
            &mut Unrounded,
            call,
            range.clone(),
            vectors,
            &mut scores,
            &mut bases,
            state,
            &mut p.increment,
        );
        if moved {
            for o in output.o.chunks_mut(rows) {
                rescale_rows(tiles, o, &p.increment, 0..STRIP / T::LANES);
            }
        }
        for (row, pv) in row_tiles(rows, tiles_of.1) {
            // SAFETY: the token proves the features.
            unsafe { pv(tiles, &step, row, &scores, &mut output) };
        }
        if output.skipped != 0 {
            for (r, probs) in scores.0.iter().enumerate().take(rows) {
                for (k, &prob) in probs.iter().enumerate().take(range.len()) {
                    put_prob(p, k, r, prob);
                }
            }
            return FusedEnd {
                keys: range,
                skipped: Skipped {
                    all: output.skipped,
                    tail: 0,
                },
            };
        }
    }
    FusedEnd::ALL
}

/// Rows in as few register tiles as can be, of about the same height: where each begins, and its kernel. A group that has no tile
/// of its own is cut into tiles of [`TALLEST`] at most.
#[inline(always)]
fn row_tiles<F: Copy>(rows: usize, tiles: &[F]) -> impl Iterator<Item = (usize, F)> {
    let most = tiles.len();
    let count = if rows <= most {
        1
    } else {
        rows.div_ceil(most.min(TALLEST))
    };
    let mut row = 0;
    (0..count).map(move |done| {
        let height = (rows - row).div_ceil(count - done);
        row += height;
        (row - height, tiles[height - 1])
    })
}

/// C1: scores of the `N` rows from `row` on, `K` keys at a time: two or four. For each pair of keys it prefetches a row, or two.
#[inline(always)]
pub fn fused_qk<S: Simd, E: Element<S>, const N: usize, const K: usize>(
    simd: S,
    step: &Step<'_>,
    row: usize,
    s: &mut Scores,
) {
    const { assert!((K == 2 || K == 4) && CHUNK.is_multiple_of(2 * S::LANES)) };
    let vectors = const { CHUNK / (2 * S::LANES) };
    // A single row has sums of first vectors and of second ones apart: too few otherwise for the latency of the multiply-adds.
    let chains = const { if N == 1 { 2 } else { 1 } };
    let rows = step.rows;
    assert!(row + N <= rows && step.q.len() == rows * step.chunks * CHUNK);
    let q = lanes::<S>(step.q);
    let (first, second) = step.prefetch[0].split_at(step.keys.len() / 2);
    for (tile, keys) in step.keys.as_chunks::<K>().0.iter().enumerate() {
        let mut prefetch = [core::ptr::null(); K];
        prefetch[..K / 2].copy_from_slice(&first[tile * K / 2..][..K / 2]);
        if let Some(rows) = second.get(tile * K / 2..(tile + 1) * K / 2) {
            step.prefetch_rows::<S, E>(simd, rows);
        }
        let mut acc = [[[simd.splat(0.0); N]; K]; 2];
        for chunk in 0..step.chunks {
            for i in 0..K / 2 {
                step.prefetch_chunk::<S, E>(simd, prefetch[i], chunk);
            }
            for i in 0..vectors {
                let vector = chunk * vectors + i;
                for half in 0..2 {
                    let mut key = [simd.splat(0.0); K];
                    for k in 0..K {
                        // SAFETY: a key is valid for reads of as many chunks, and their vectors.
                        key[k] = unsafe { E::vector(simd, keys[k], vector * 2 * S::LANES, half) };
                    }
                    for r in 0..N {
                        let at = (2 * vector + half) * rows + row + r;
                        // SAFETY: Q has two vectors of each row for each of a key's, as asserted.
                        let q = simd.load(unsafe { q.get_unchecked(at) });
                        for k in 0..K {
                            let acc = &mut acc[half % chains][k][r];
                            *acc = simd.mul_add(key[k], q, *acc);
                        }
                    }
                }
            }
        }
        for r in (0..N).step_by(4 / K) {
            let mut four = [simd.splat(0.0); 4];
            for i in 0..4 {
                if r + i / K < N {
                    four[i] = acc[0][i % K][r + i / K];
                    if chains == 2 {
                        four[i] = simd.add(four[i], acc[1][i % K][r + i / K]);
                    }
                }
            }
            let sums = simd.sum_lanes(four);
            for (s, sums) in s.0[row..][r..N].iter_mut().zip(sums.as_chunks::<K>().0) {
                s.as_chunks_mut().0[tile] = *sums;
            }
        }
    }
}

/// C2: the `N` rows of O from `row` on, strip by strip, `V` pairs of vectors at a time. It leaves strips as they are in which values
/// aren't finite, and adds them to those that are skipped. Such a V makes no row's O finite, since 0 times it is NaN:
/// the first row of all tells where to look.
#[inline(always)]
pub fn fused_pv<S: Simd, E: Element<S>, const N: usize, const V: usize>(
    simd: S,
    step: &Step<'_>,
    row: usize,
    p: &Scores,
    output: &mut Output<'_>,
) {
    let width = const { V * 2 * S::LANES };
    let parts = const { STRIP / (V * 2 * S::LANES) };
    const { assert!(STRIP.is_multiple_of(V * 2 * S::LANES)) };
    let zero = simd.splat(0.0);
    let p: &[_; N] = &p.0[row..].as_chunks().0[0];
    let mut before = [[0.0; STRIP]; N];
    for strip in 0..step.strips {
        if output.skipped >> strip & 1 != 0 {
            continue;
        }
        let o: &mut [_; N] = &mut output.o[strip * step.rows + row..].as_chunks_mut().0[0];
        for part in 0..parts {
            let mut acc = [[[zero; 2]; V]; N];
            for r in 0..N {
                for i in 0..V {
                    for h in 0..2 {
                        let at = (part * V + i) * 2 + h;
                        acc[r][i][h] = simd.load(&lanes::<S>(&o[r])[at]);
                        if part + 1 < parts {
                            // In case that another part isn't finite.
                            simd.store(acc[r][i][h], &mut lanes_mut::<S>(&mut before[r])[at]);
                        }
                    }
                }
            }
            for (group, values) in step.values.iter().enumerate() {
                let mut probs = [&[0.0; GROUP]; N];
                for r in 0..N {
                    probs[r] = &p[r].as_chunks().0[group];
                }
                let visit = strip * step.values.len() + group;
                let chunk = part * step.chunks_each / parts;
                let end = (part + 1) * step.chunks_each / parts;
                for &row in &step.prefetch[1][visit * step.rows_each..][..step.rows_each] {
                    // Unrolled: a loop that ends after some chunks is mispredicted.
                    for i in 0..const { MAX_CHUNKS.div_ceil(STRIP / (V * 2 * S::LANES)) } {
                        if chunk + i < end {
                            step.prefetch_chunk::<S, E>(simd, row, chunk + i);
                        }
                    }
                }
                for k in 0..GROUP {
                    let mut v = [[zero; 2]; V];
                    for i in 0..V {
                        let column = strip * STRIP + part * width + i * 2 * S::LANES;
                        for h in 0..2 {
                            // SAFETY: values are valid for reads of all strips, of which this is one.
                            v[i][h] = unsafe { E::vector(simd, values[k], column, h) };
                        }
                    }
                    for r in 0..N {
                        let p = simd.splat(probs[r][k]);
                        for i in 0..V {
                            for h in 0..2 {
                                acc[r][i][h] = simd.mul_add(p, v[i][h], acc[r][i][h]);
                            }
                        }
                    }
                }
            }
            if row == 0 && step.skips {
                let mut wrong = zero;
                for i in 0..V {
                    for h in 0..2 {
                        wrong = simd.mul_add(acc[0][i][h], zero, wrong);
                    }
                }
                // SAFETY: values are valid for reads of all strips, of which this is one.
                let finite =
                    || unsafe { values_are_finite::<S, E, GROUP>(simd, step.values, strip) };
                if simd.any(simd.not_ge(wrong, zero)) && !finite() {
                    let done = part * width;
                    for (o, before) in o.iter_mut().zip(&before) {
                        o[..done].copy_from_slice(&before[..done]);
                    }
                    output.skipped |= 1 << strip;
                    break;
                }
            }
            for r in 0..N {
                for i in 0..V {
                    for h in 0..2 {
                        let at = (part * V + i) * 2 + h;
                        simd.store(acc[r][i][h], &mut lanes_mut::<S>(&mut o[r])[at]);
                    }
                }
            }
        }
    }
}

/// Whether a strip of values is finite. Checked where a product isn't: the cause may be a query, or O.
///
/// # Safety
/// The values are valid for reads of the strip.
#[inline(always)]
pub unsafe fn values_are_finite<S: Simd, E: Element<S>, const N: usize>(
    simd: S,
    values: &[[*const Word; N]],
    strip: usize,
) -> bool {
    let zero = simd.splat(0.0);
    let mut wrong = zero;
    for &value in values.as_flattened() {
        for column in (strip * STRIP..(strip + 1) * STRIP).step_by(2 * S::LANES) {
            for h in 0..2 {
                // SAFETY: the caller's promise.
                let x = unsafe { E::vector(simd, value, column, h) };
                wrong = simd.mul_add(x, zero, wrong);
            }
        }
    }
    !simd.any(simd.not_ge(wrong, zero))
}
