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
//! Each backend has its tiles ([`Tiles`]). Both matrix products convert a vector of BF16 pairs into its even and its odd elements,
//! once for all rows of a tile. O's columns have that order until the epilogue. O is compact: strip after strip of `rows` rows.
//!
//! Kernels know widths as numbers only, so that all widths share their code.
#![allow(unsafe_code, reason = "loads by way of pointers to rows")]
#![allow(
    clippy::needless_range_loop,
    reason = "counted loops unroll early, so that accumulators become registers"
)]

use half::bf16;

use super::panel::put_prob;
use crate::kernel::prefetch::LINE;
use crate::kernel::simd::{Simd, even, lanes, lanes_mut, odd, rescale_rows, split};
use crate::kernel::softmax_rows::{self, Bases, Scores, Unrounded, softmax_rows};
use crate::kernel::{
    FUSED_KEYS, FUSED_MULTIPLE, FusedBlock, FusedEnd, Skipped, Softmax, Strips, strip_is_finite,
};
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
/// Cache lines of the widest key.
const MAX_LINES: usize = MAX_D_QK / LINE;

// The last step may have a single key of the block, and prefetches as many as it computes on.
const _: () = assert!(FUSED_KEYS >= BLOCK_KEYS + GROUP + LONG + DISTANCE);

/// C1 of some rows, from one row on: [`fused_qk`] within a function that has the backend's features.
pub type Qk<S> = unsafe fn(S, &Step<'_>, usize, &mut Scores);
/// C2 of some rows, from one row on: [`fused_pv`].
pub type Pv<S> = unsafe fn(S, &Step<'_>, usize, &Scores, &mut Output<'_>);

/// A backend's register tiles, as [`backend`](super::backend) lists them: the n-th has n rows.
pub trait Tiles: Simd + 'static {
    /// Those of C1.
    const QK: &'static [Qk<Self>];
    /// Those of C2.
    const PV: &'static [Pv<Self>];
}

/// Q as C1 reads it, in FP32: a vector of each row's even elements, one of each row's odd ones, and so on.
#[inline(always)]
pub fn pack_q<S: Simd>(simd: S, d_qk: usize, rows: &[&[bf16]], negate: bool, panel: &mut QPanel) {
    let sign = simd.splat_i32(if negate { i32::MIN } else { 0 });
    let numbers: &mut [f32] = bytemuck::cast_slice_mut(panel.0.as_flattened_mut());
    let out = lanes_mut::<S>(numbers);
    for (r, row) in rows.iter().enumerate() {
        let out = out[r..].chunks_mut(2 * rows.len());
        for (row, out) in row[..d_qk].chunks_exact(2 * S::LANES).zip(out) {
            let parts = split(simd, simd.load_pairs(row));
            for i in 0..2 {
                // Added to the sign, it flips.
                let flipped = simd.from_bits(simd.add_i32(simd.to_bits(parts[i]), sign));
                simd.store(flipped, &mut out[i * rows.len()]);
            }
        }
    }
}

/// A step's keys.
pub struct Step<'a> {
    /// Of Q and O.
    rows: usize,
    q: &'a [f32],
    lines: usize,
    strips: usize,
    /// Rows that C2 prefetches with each group of keys of each strip.
    rows_each: usize,
    /// Full groups. Each is valid for reads of `lines` lines.
    keys: &'a [*const bf16],
    /// Each is valid for reads of O's strips.
    values: &'a [[*const bf16; GROUP]],
    /// The rows that C1 prefetches, and those that C2 does: half as many as keys each.
    prefetch: [&'a [*const bf16]; 2],
    /// Whether they are prefetched into L2, or else into L1d.
    into_l2: bool,
}

impl Step<'_> {
    #[inline(always)]
    fn prefetch_line<S: Simd>(&self, simd: S, row: *const bf16, line: usize) {
        let at = row.wrapping_add(line * LINE);
        if self.into_l2 {
            simd.prefetch_l2(at);
        } else {
            simd.prefetch(at);
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
    assert!(d_qk.is_multiple_of(2 * LINE) && d_v.is_multiple_of(STRIP) && d_qk >= d_v);
    let (lines, strips) = (d_qk / LINE, d_v / STRIP);
    let q: &[f32] = bytemuck::cast_slice(block.q.0.as_flattened());
    let (keys, values) = (block.keys.pointers(), block.values.pointers());
    let at_once = if rows <= SHORT_ROWS { SHORT } else { LONG };
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
        let prefetch = &block.prefetch[first + at_once + DISTANCE..][..padded];
        let step = Step {
            rows,
            q: &q[..rows * d_qk],
            lines,
            strips,
            rows_each: GROUP / 2 / strips,
            into_l2,
            keys: &keys[first..][..padded],
            values: values[first..][..padded].as_chunks().0,
            prefetch: prefetch.split_at(padded / 2).into(),
        };
        for (row, qk) in row_tiles(rows, T::QK) {
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
        for (row, pv) in row_tiles(rows, T::PV) {
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

/// C1: scores of the `N` rows from `row` on, `K` keys at a time: two or four. For each pair of keys it prefetches a row.
#[inline(always)]
pub fn fused_qk<S: Simd, const N: usize, const K: usize>(
    simd: S,
    step: &Step<'_>,
    row: usize,
    s: &mut Scores,
) {
    const { assert!((K == 2 || K == 4) && LINE.is_multiple_of(2 * S::LANES)) };
    let vectors = const { LINE / (2 * S::LANES) };
    // A single row has sums of even elements and of odd ones apart: too few otherwise for the latency of the multiply-adds.
    let chains = const { if N == 1 { 2 } else { 1 } };
    let rows = step.rows;
    assert!(row + N <= rows && step.q.len() == rows * step.lines * LINE);
    let q = lanes::<S>(step.q);
    for (tile, keys) in step.keys.as_chunks::<K>().0.iter().enumerate() {
        let mut prefetch = [core::ptr::null(); K];
        prefetch[..K / 2].copy_from_slice(&step.prefetch[0][tile * K / 2..][..K / 2]);
        let mut acc = [[[simd.splat(0.0); N]; K]; 2];
        for line in 0..step.lines {
            for i in 0..K / 2 {
                step.prefetch_line(simd, prefetch[i], line);
            }
            for i in 0..vectors {
                let vector = line * vectors + i;
                for half in 0..2 {
                    let mut key = [simd.splat(0.0); K];
                    for k in 0..K {
                        // SAFETY: a key is valid for reads of as many lines, and their vectors.
                        let pairs = unsafe { pairs_at(simd, keys[k], vector * 2 * S::LANES) };
                        key[k] = if half == 0 {
                            even(simd, pairs)
                        } else {
                            odd(simd, pairs)
                        };
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
pub fn fused_pv<S: Simd, const N: usize, const V: usize>(
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
                let (line, end) = (part * step.lines / parts, (part + 1) * step.lines / parts);
                for &row in &step.prefetch[1][visit * step.rows_each..][..step.rows_each] {
                    // Unrolled: a loop that ends after some lines is mispredicted.
                    for i in 0..const { MAX_LINES.div_ceil(STRIP / (V * 2 * S::LANES)) } {
                        if line + i < end {
                            step.prefetch_line(simd, row, line + i);
                        }
                    }
                }
                for k in 0..GROUP {
                    let mut v = [[zero; 2]; V];
                    for i in 0..V {
                        let column = strip * STRIP + part * width + i * 2 * S::LANES;
                        // SAFETY: values are valid for reads of all strips, of which this is one.
                        let pairs = unsafe { pairs_at(simd, values[k], column) };
                        v[i] = [even(simd, pairs), odd(simd, pairs)];
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
            if row == 0 {
                let mut wrong = zero;
                for i in 0..V {
                    for h in 0..2 {
                        wrong = simd.mul_add(acc[0][i][h], zero, wrong);
                    }
                }
                // SAFETY: values are valid for reads of all strips, of which this is one.
                let finite = || unsafe { strip_is_finite(step.values, strip) };
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

/// A row's pairs from an element on.
///
/// # Safety
/// The row is valid for reads of a vector of pairs from there on.
#[inline(always)]
unsafe fn pairs_at<S: Simd>(simd: S, row: *const bf16, element: usize) -> S::I32 {
    // SAFETY: the caller's promise.
    simd.load_pairs(unsafe { core::slice::from_raw_parts(row.add(element), 2 * S::LANES) })
}
