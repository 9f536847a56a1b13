//! Very few rows, where memory limits: C1, V1 and C2 of 16 keys, then of the next 16.
//!
//! What memory delivers must not wait for anything, so keys come to L1d once and stay there until C2 is done
//! with them: a core has few slots for lines on their way, and those from L2 would take them from those from
//! memory. In all of C1 and C2, lines of rows to come are asked for one after the other, in the order that they lie
//! there (C2 of fewer than 512 columns has too few tiles of dots for that, and asks for several at once); and once
//! more a few keys later, since a core drops what it has no slot for (`docs/adr/0026`). Intel's cores drop nothing, but
//! requests to L1d keep its few slots for as long as memory takes: there each line is asked for once, into L2, where a
//! single tile leaves so little time that it shows.
//!
//! | stage | register tile | streams |
//! |---|---|---|
//! | C1 | 4 keys x 1 to 4 rows, features in the lanes; with more rows two such tiles | Q row-major, K from the cache itself |
//! | V1 | up to 8 rows, a row's 16 keys in the lanes | S, and P by row |
//! | C2 | 1 to 4 rows x 4 vectors of 16 columns; with more rows two such tiles | V from the cache itself, P by broadcast |
//!
//! Meanwhile O's rows lie close together, as those of a panel's strips are 16 KiB apart and would share a few sets of
//! L1d, and their columns as V's halves interleave.

use core::ops::Range;

use super::few::{PIECES, deinterleave, interleave, interleaved};
use super::*;
use crate::isa::ahead::LINE;
use crate::isa::zmm::stream::{self, ByRow, GROUP, KEYS, Known};
use crate::isa::{STREAM_KEYS, Streamed, Streams};
use crate::problem::Rescale;

/// Up to so many rows.
pub(super) const ROWS: usize = 8;
/// Rows of a register tile.
pub(super) const TILE_ROWS: usize = 4;
/// Pairs of keys of a step.
const PAIRS: usize = KEYS / 2;
/// A step asks for the keys that lie so many behind its own: into L1d, with more those at hand would leave it.
const LEAD: usize = 20;
/// And asks once more for those that lie so many behind.
const AGAIN: usize = 14;
/// Of the keys of a step to come C1 asks for so many, and C2 for the others.
const C1_ASKS: usize = KEYS / 2;
const C2_ASKS: usize = KEYS - C1_ASKS;

const _: () = assert!(STREAM_KEYS >= BLOCK_KEYS + LEAD + KEYS);

/// A register tile's rows.
struct Tile {
    index: usize,
    rows: Range<usize>,
}

/// P of a step, as C2 takes it.
struct Probs {
    /// As V1 computes it.
    whole: ByRow<1>,
    /// Rounded, row by row, and what that took.
    parts: [[[u32; PAIRS]; ROWS]; 2],
    /// Parts that count.
    len: usize,
    /// The rows of whose largest that counts too, in its pair.
    carried: u32,
    /// Where any counts: theirs, and zeros of the others.
    residuals: [Residual; ROWS],
}

/// What rounding took from a P, itself rounded to BF16.
#[derive(Clone, Copy)]
struct Residual {
    key: usize,
    p: f32,
}

impl Residual {
    const NONE: Self = Self { key: 0, p: 0.0 };
}

/// [`Isa::stream`]. With `TO_L2`, for the rows of one tile at most, lines to come are asked into L2 alone.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(super) fn stream<const D_QK: usize, const D_V: usize, const TO_L2: bool>(
    zmm: Zmm,
    call: &Softmax<'_>,
    block: &Streams<'_, D_QK, D_V>,
    from: usize,
    p: &mut L0a,
    state: &mut RowState,
    o: &mut [OStrip],
) -> Streamed {
    let (q, rows) = (block.q.0.as_flattened(), call.rows);
    assert!(!TO_L2 || rows <= TILE_ROWS);
    let tiles = &tiles(rows)[..if TO_L2 { 1 } else { rows.div_ceil(TILE_ROWS) }];
    let o = &mut o.as_flattened_mut()[..D_V / STRIP * rows];
    let mut streamed = Streamed::ALL;
    let mut s = ByRow([[[0.0; KEYS]]; _]);
    let mut probs = Probs {
        whole: ByRow([[[0.0; KEYS]]; _]),
        parts: [[[0; PAIRS]; ROWS]; 2],
        len: if call.precision == Precision::Bf16x2 {
            2
        } else {
            1
        },
        carried: 0,
        residuals: [Residual::NONE; _],
    };
    for first in (from..call.keys).step_by(KEYS) {
        let len = KEYS.min(call.keys - first);
        let step = Step::<D_QK, TO_L2> {
            zmm,
            half_lines: D_QK / LINE / 2,
            keys: stream::step(block.keys, first),
            asked: [
                stream::step(block.asked, first + LEAD),
                stream::step(block.asked, first + AGAIN),
            ],
        };
        for group in 0..KEYS / GROUP {
            for tile in tiles {
                match (tiles.len(), tile.rows.len()) {
                    (1, 1) => step.qk::<1, 1>(tile, group, q, &mut s),
                    (1, 2) => step.qk::<1, 2>(tile, group, q, &mut s),
                    (1, 3) => step.qk::<1, 3>(tile, group, q, &mut s),
                    (1, _) => step.qk::<1, 4>(tile, group, q, &mut s),
                    (_, 2) => step.qk::<2, 2>(tile, group, q, &mut s),
                    (_, 3) => step.qk::<2, 3>(tile, group, q, &mut s),
                    _ => step.qk::<2, 4>(tile, group, q, &mut s),
                }
            }
        }
        softmax(zmm, call, first, len, &s, state, &mut probs);
        if state.increment[..rows].iter().any(|&n| n != 0) {
            stream::advance(zmm, &state.increment[..rows], o);
        }
        let values = stream::step(block.values, first);
        let values = &values.as_chunks().0.as_chunks().0[0];
        let mut all = 0;
        for tile in tiles {
            match (tiles.len(), tile.rows.len()) {
                (1, 1) => step.pv::<1, 1, D_V>(tile, rows, &probs, values, &mut all, o),
                (1, 2) => step.pv::<1, 2, D_V>(tile, rows, &probs, values, &mut all, o),
                (1, 3) => step.pv::<1, 3, D_V>(tile, rows, &probs, values, &mut all, o),
                (1, _) => step.pv::<1, 4, D_V>(tile, rows, &probs, values, &mut all, o),
                (_, 2) => step.pv::<2, 2, D_V>(tile, rows, &probs, values, &mut all, o),
                (_, 3) => step.pv::<2, 3, D_V>(tile, rows, &probs, values, &mut all, o),
                _ => step.pv::<2, 4, D_V>(tile, rows, &probs, values, &mut all, o),
            }
        }
        if all != 0 {
            probs.spread(rows, p);
            streamed = Streamed {
                keys: first..first + len,
                left: Left { all, tail: 0 },
            };
            break;
        }
    }
    streamed
}

/// The register tiles of so many rows; the second has none where one is enough.
fn tiles(rows: usize) -> [Tile; 2] {
    let first = rows.div_ceil(rows.div_ceil(TILE_ROWS).max(1));
    let tile = |index, rows| Tile { index, rows };
    [tile(0, 0..first), tile(1, first..rows)]
}

/// [`Isa::settle_stream`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(super) fn settle(o: &mut [OStrip], rows: usize, back: bool) {
    let strips = o.len();
    let o = o.as_flattened_mut();
    if back {
        for strip in 0..strips {
            for r in 0..rows {
                o[strip * rows + r] = interleave(&o[strip * PANEL_ROWS + r]);
            }
        }
    } else {
        // From the end, so that nothing is overwritten that is still to be moved.
        for strip in (0..strips).rev() {
            for r in (0..rows).rev() {
                o[strip * PANEL_ROWS + r] = deinterleave(&o[strip * rows + r]);
            }
        }
    }
}

/// A step's keys and those to come.
struct Step<'a, const D_QK: usize, const TO_L2: bool> {
    zmm: Zmm,
    /// Half of the lines of a row, where the compiler doesn't see it.
    half_lines: usize,
    keys: &'a [&'a [bf16; D_QK]; KEYS],
    /// Rows to come, and closer ones, that were asked for before.
    asked: [&'a [*const bf16; KEYS]; 2],
}

impl<const D_QK: usize, const TO_L2: bool> Step<'_, D_QK, TO_L2> {
    /// Lines of a row.
    const LINES: usize = D_QK / LINE;

    /// C1 of a tile, one of `TILES`: scores of its `N` rows over a group of keys.
    #[inline(never)]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    fn qk<const TILES: usize, const N: usize>(
        &self,
        tile: &Tile,
        group: usize,
        q: &[u32],
        s: &mut ByRow<1>,
    ) {
        const { assert!(D_QK.is_multiple_of(2 * LINE)) };
        assert!(self.half_lines <= Self::LINES / 2);
        let zmm = self.zmm;
        let q = &q[tile.rows.start * D_QK / 2..][..N * D_QK / 2];
        let s: &mut [_; N] = &mut s.0[tile.rows.start..].as_chunks_mut().0[0];
        let keys: &[_; GROUP] = &self.keys.as_chunks().0[group];
        // A group asks for two rows to come: where there are two tiles, each for one of them.
        const { assert!(C1_ASKS == 2 * (KEYS / GROUP)) };
        let mut acc = [[_mm512_setzero_ps(); N]; GROUP];
        for half in 0..2 {
            let mut asked = self.asked.map(|rows| {
                if TILES == 1 {
                    rows[2 * group + half]
                } else {
                    rows[2 * group + tile.index].wrapping_add(half * (D_QK / 2))
                }
            });
            // Unrolled, requests would be moved together, and Q to the stack.
            for i in 0..self.half_lines {
                let v = half * (Self::LINES / 2) + i;
                self.ask(&mut asked);
                if TILES == 1 {
                    self.ask(&mut asked);
                }
                let mut pairs = [as_pairs(_mm512_setzero_si512()); N];
                for r in 0..N {
                    // SAFETY: q has the D_QK / 2 pairs of N rows, by the slicing above, and v is one of
                    // the vectors that those of a row fill, by the assertion; no alignment needed.
                    pairs[r] = as_pairs(unsafe {
                        _mm512_loadu_si512(q.as_ptr().add(r * D_QK / 2 + v * LANES).cast())
                    });
                }
                for k in 0..GROUP {
                    // SAFETY: the key has D_QK elements, and v is one of the vectors they fill; no
                    // alignment needed.
                    let key = as_pairs(unsafe {
                        _mm512_loadu_si512(keys[k].as_ptr().add(v * LINE).cast())
                    });
                    for r in 0..N {
                        acc[k][r] = _mm512_dpbf16_ps(acc[k][r], pairs[r], key);
                    }
                }
            }
        }
        for r in 0..N {
            let sums = zmm.sum_lanes([acc[0][r], acc[1][r], acc[2][r], acc[3][r]]);
            s[r][0].as_chunks_mut().0[group] = sums;
        }
    }

    /// C2 of a tile, one of `TILES`: its `N` of the `rows` of O, strip by strip. Leaves the strips that are `left`, and
    /// adds those to them in which values aren't finite. Such a V makes every row's O so, since 0 times it is NaN:
    /// the first row of all tells.
    #[inline(never)]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    fn pv<const TILES: usize, const N: usize, const D_V: usize>(
        &self,
        tile: &Tile,
        rows: usize,
        probs: &Probs,
        values: &[[&[bf16; D_V]; 2]; PAIRS],
        left: &mut Strips,
        o: &mut [[f32; STRIP]],
    ) {
        let strips = const { D_V / STRIP };
        let parts = &probs.parts[..probs.len];
        let carried = probs.carried >> tile.rows.start & ((1 << N) - 1);
        for (strip, o) in o.chunks_mut(rows).enumerate().take(strips) {
            let o: &mut [_; N] = &mut o[tile.rows.start..].as_chunks_mut().0[0];
            if *left >> strip & 1 != 0 {
                continue;
            }
            let mut acc = [[[_mm512_setzero_ps(); 2]; PIECES]; N];
            for r in 0..N {
                for i in 0..PIECES {
                    acc[r][i] = read(&o[r], i);
                }
            }
            let mut asked = self.first_asked::<TILES, D_V>(tile.index * strips + strip);
            // The lines that each of these tiles of dots asks for, of one row.
            let lines = const { Self::LINES / (TILES * (D_V / STRIP)).div_ceil(C2_ASKS) };
            for _ in 0..lines % PAIRS {
                self.ask(&mut asked);
            }
            for (k, pair) in values.iter().enumerate() {
                for _ in 0..lines / PAIRS {
                    self.ask(&mut asked);
                }
                // SAFETY: `take` keeps the strip within D_V.
                let v = unsafe { interleaved(pair, strip) };
                let mut add_part = |p: &[[u32; PAIRS]; ROWS]| {
                    let p: &[_; N] = &p[tile.rows.start..].as_chunks().0[0];
                    for r in 0..N {
                        for i in 0..PIECES {
                            add(&mut acc[r][i], &v[i], p[r][k]);
                        }
                    }
                };
                add_part(&parts[0]);
                if let Some(low) = parts.get(1) {
                    add_part(low);
                }
            }
            if carried != 0 {
                // Masks where it doesn't count: no branch that the processor would have to foresee, and nothing of other
                // rows, not even the sign of a zero.
                for r in 0..N {
                    let residual = &probs.residuals[tile.rows.start + r];
                    let counts = if carried >> r & 1 != 0 {
                        __mmask16::MAX
                    } else {
                        0
                    };
                    let p = _mm512_set1_ps(residual.p);
                    // SAFETY: `take` keeps the strip within D_V.
                    let v = unsafe { widened(values.as_flattened()[residual.key], strip) };
                    for i in 0..PIECES {
                        for (acc, v) in acc[r][i].iter_mut().zip(v[i]) {
                            *acc = _mm512_mask3_fmadd_ps(p, v, *acc, counts);
                        }
                    }
                }
            }
            if tile.index == 0 {
                let mut wrong = 0;
                for acc in acc[0].as_flattened() {
                    wrong |= _mm512_fpclass_ps_mask::<NOT_FINITE>(*acc);
                }
                if wrong != 0 {
                    *left |= 1 << strip;
                    continue;
                }
            }
            for r in 0..N {
                for i in 0..PIECES {
                    write(&mut o[r], i, acc[r][i]);
                }
            }
        }
    }

    /// Where the `visit`th of C2's tiles of dots begins to ask. Rows beyond its first are asked for here.
    #[inline(always)]
    fn first_asked<const TILES: usize, const D_V: usize>(&self, visit: usize) -> [*const bf16; 2] {
        let visits = const { TILES * (D_V / STRIP) };
        let row = C1_ASKS + visit * C2_ASKS / visits;
        for row in row + 1..row + C2_ASKS / visits {
            for line in 0..Self::LINES {
                self.ask(&mut self.asked.map(|rows| rows[row].wrapping_add(line * LINE)));
            }
        }
        let line = visit * C2_ASKS % visits * Self::LINES / visits;
        self.asked.map(|rows| rows[row].wrapping_add(line * LINE))
    }

    /// Asks for a line of a row to come, and mostly again for one of a row that is closer; then come those behind them.
    #[inline(always)]
    fn ask(&self, at: &mut [*const bf16; 2]) {
        if TO_L2 {
            self.zmm.prefetch_far(at[0]);
        } else {
            self.zmm.prefetch(at[0]);
            self.zmm.prefetch(at[1]);
        }
        for at in at {
            *at = at.wrapping_add(LINE);
        }
    }
}

/// A piece of a row of O.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn read(o: &[f32; STRIP], piece: usize) -> [__m512; 2] {
    let o: &[_; 2] = &o.as_chunks().0.as_chunks().0[piece];
    o.map(|o| load(&o))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn write(o: &mut [f32; STRIP], piece: usize, acc: [__m512; 2]) {
    let o: &mut [_; 2] = &mut o.as_chunks_mut().0.as_chunks_mut().0[piece];
    for i in 0..2 {
        store(&mut o[i], acc[i]);
    }
}

/// A strip of a key's values in FP32, in the order in which those of a pair interleave.
///
/// # Safety
/// The strip lies within the values.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn widened<const D_V: usize>(value: &[bf16; D_V], strip: usize) -> [[__m512; 2]; PIECES] {
    let zero = _mm512_setzero_si512();
    let mut v = [[_mm512_setzero_ps(); 2]; PIECES];
    for i in 0..PIECES {
        let column = strip * STRIP + i * LINE;
        // SAFETY: the caller's promise; a piece is a line of 64 bytes, and the load needs no alignment.
        let row = unsafe { _mm512_loadu_si512(value.as_ptr().add(column).cast()) };
        v[i][0] = _mm512_castsi512_ps(_mm512_unpacklo_epi16(zero, row));
        v[i][1] = _mm512_castsi512_ps(_mm512_unpackhi_epi16(zero, row));
    }
    v
}

/// A piece of a row of O and a pair's P, times their values.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn add(o: &mut [__m512; 2], v: &[__m512i; 2], p: u32) {
    let p = as_pairs(_mm512_set1_epi32(p.cast_signed()));
    for i in 0..2 {
        o[i] = _mm512_dpbf16_ps(o[i], as_pairs(v[i]), p);
    }
}

/// V1 of the keys from `first` on, `len` of them.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn softmax(
    zmm: Zmm,
    call: &Softmax<'_>,
    first: usize,
    len: usize,
    s: &ByRow<1>,
    state: &mut RowState,
    probs: &mut Probs,
) {
    let known = stream::softmax(zmm, call, first, len, s, &mut probs.whole, state);
    let exact = call.rescale == Rescale::Exact;
    let whole = call.precision == Precision::Bf16x2;
    let mut row = |r: usize| {
        let prob = load(&probs.whole.0[r][0]);
        let high = _mm512_cvtneps_pbh(prob);
        let mut kept = _mm512_cvtpbh_ps(high);
        probs.parts[0][r] = words(high);
        if whole {
            let rest = _mm512_cvtneps_pbh(_mm512_sub_ps(prob, kept));
            probs.parts[1][r] = words(rest);
            kept = _mm512_add_ps(kept, _mm512_cvtpbh_ps(rest));
        }
        kept
    };
    let mut kept = _mm512_setzero_ps();
    for i in 0..call.rows.div_ceil(GROUP) {
        let r = GROUP * i;
        let rows = [row(r), row(r + 1), row(r + 2), row(r + 3)];
        if exact {
            kept = stream::four(kept, i, zmm.sum_lanes(rows));
        }
    }
    stream::add_rounded(zmm, if exact { kept } else { known.sums }, state);
    probs.carried = 0;
    if exact && !whole {
        probs.carry(zmm, call.rows, &known, s, state);
    }
}

impl Probs {
    /// What rounding took from a row's largest, if it counts.
    #[inline(always)]
    fn residual(&self, r: usize) -> Option<&Residual> {
        (self.carried >> r & 1 != 0).then(|| &self.residuals[r])
    }

    /// Keeps what rounding took from each row's largest P, where that may count: as a row's sum grows, other keys' P, from
    /// which nothing is kept, lose as much.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    fn carry(
        &mut self,
        zmm: Zmm,
        rows: usize,
        known: &Known<1>,
        s: &ByRow<1>,
        state: &mut RowState,
    ) {
        /// The part of a row's sum from which on a P counts: 2^-6 of its error of 2^-9.
        const COUNTS: f32 = 1.0 / 64.0;
        let largest = zmm.exp2(load(&known.bases.offset));
        let least = _mm512_mul_ps(known.totals, _mm512_set1_ps(COUNTS));
        let counts = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(largest, least);
        let counts = counts & __mmask16::MAX >> (LANES - rows);
        if counts == 0 {
            return;
        }
        let high = _mm512_cvtpbh_ps(_mm512_cvtneps_pbh(largest));
        let residual = _mm512_cvtneps_pbh(_mm512_sub_ps(largest, high));
        let residual = _mm512_maskz_mov_ps(counts, _mm512_cvtpbh_ps(residual));
        stream::add_rounded(zmm, residual, state);
        let mut bits = [0.0; LANES];
        store(&mut bits, residual);
        for r in 0..rows {
            // The last key of those that have the largest score.
            let max = _mm512_set1_ps(known.bases.max[r]);
            let tops =
                _mm512_mask_cmp_ps_mask::<_CMP_GE_OQ>(known.seen[r][0], load(&s.0[r][0]), max);
            let key = tops.checked_ilog2().unwrap_or(0) as usize;
            self.residuals[r] = Residual { key, p: bits[r] };
        }
        self.carried = u32::from(counts);
    }

    /// As other kernels have it, pair by pair.
    #[cold]
    fn spread(&self, rows: usize, p: &mut L0a) {
        for r in 0..rows {
            for k in 0..PAIRS {
                p.high.0[k][r] = self.parts[0][r][k];
                p.low.0[k][r] = self.parts[1][r][k];
            }
        }
        for r in 0..rows {
            let residual = self.residual(r).unwrap_or(&Residual::NONE);
            p.residuals.pair[r] = u32::try_from(residual.key / 2).unwrap_or(0);
            // A BF16's bits are the upper half of its FP32's.
            p.residuals.p[r] = residual.p.to_bits() >> 16 << (16 * (residual.key % 2));
        }
    }
}

/// The pairs of a row's P.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn words(p: __m256bh) -> [u32; PAIRS] {
    // SAFETY: both are 32 bytes of which every pattern is a value.
    unsafe { core::mem::transmute(p) }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::boxed::Box;
    use std::vec::Vec;

    use super::*;
    use crate::tile::{Tiles, Workspace};

    /// A processor runs one way by itself: they differ in what memory is asked for, and not in a bit of the results.
    #[test]
    fn both_ways_agree() {
        const KEYS: usize = 24;
        const D: usize = 64;
        let Some(both) = Avx512Bf16::both() else {
            std::eprintln!(
                "both ways to ask memory NOT RUN: this processor lacks avx512bf16's instructions"
            );
            return;
        };
        let number = |i: u16| bf16::from_f32(f32::from(i.wrapping_mul(97) % 251) / 125.0 - 1.0);
        let numbers: Vec<_> = (0..).map(number).take(KEYS * D).collect();
        let rows = &numbers.as_chunks::<D>().0;
        let lying: [_; STREAM_KEYS] = core::array::from_fn(|k| &rows[k.min(KEYS - 1)]);
        for n in 1..=ROWS {
            let [a, b] = both.map(|isa| {
                let mut tiles: Box<Workspace> = bytemuck::zeroed_box();
                let Tiles { l1, l0a, .. } = &mut tiles.tiles;
                let q: Vec<&[bf16]> = rows[..n].iter().map(|row| &row[..]).collect();
                isa.pack_q::<D>(&q, false, &mut l1.q[0]);
                let block = Streams {
                    q: &l1.q[0],
                    keys: &lying,
                    asked: &lying.map(|key| key.as_ptr()),
                    values: &lying,
                };
                let call = Softmax {
                    rows: n,
                    keys: KEYS,
                    scale: 1.0,
                    mask: None,
                    maxima: None,
                    rescale: Rescale::Exact,
                    precision: Precision::Bf16,
                };
                let (mut state, mut o) = (RowState::START, [[[0.0; STRIP]; PANEL_ROWS]; D / STRIP]);
                let streamed = isa.stream(&call, &block, 0, l0a, &mut state, &mut o);
                assert_eq!(streamed, Streamed::ALL);
                assert!(o.as_flattened().as_flattened().iter().any(|&x| x != 0.0));
                (o, state.sum, state.reference)
            });
            assert!(a == b, "{n} rows");
        }
    }
}
