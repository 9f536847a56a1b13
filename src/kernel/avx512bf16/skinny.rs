//! C1 and C2 of skinny panels, where memory limits as much as the dots do: only Q is packed, and C1 prefetches keys to come.
//! Up to 8 rows of a group are fused; tiles of so few rows here are for the last panel of more.
//!
//! | kernel | register tile | operands |
//! |---|---|---|
//! | C1 | 4 keys x 1 to 6 rows, tile by tile over the same keys | Q row-major, K in place |
//! | C2 | 1 to 6 rows x 4 vectors of 16 columns, tile by tile over a strip of V | V in place, P by broadcast |
//!
//! C1 has features in the lanes: a score is a sum over 16 lanes in the end, which
//! costs two shuffles, where rows or keys in the lanes would leave lanes idle or
//! cost 72 shuffles per key to transpose it. C2 interleaves two keys by halves
//! of 128 bits on their way into the dot, and O's columns alike.
#![allow(unsafe_code, reason = "pointer loads and stores")]
#![allow(
    clippy::needless_range_loop,
    reason = "counted loops unroll early, so that accumulators become registers"
)]

use super::common::*;
use super::p;
use super::pv::{TILE_ROWS, add_to, padded, rescale, skips, tile_rows};
use crate::kernel::prefetch::Spread;
use crate::tile::MAX_D_QK;

/// Up to this many rows C1 here beats that for panels, whose tiles take a load for every dot with one vector of
/// rows, and idle lanes otherwise. With more Q leaves L1d.
pub const C1_ROWS: usize = 28;
/// Up to this many rows C2 here beats that for panels: with more it pays to interleave V once for all tiles.
pub const C2_ROWS: usize = p::BLOCK_ROWS;

/// Dots of one query row.
const fn vectors(d_qk: usize) -> usize {
    d_qk / (2 * LANES)
}

/// Packs Q for C1 here: row-major, from the panel's start.
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
pub fn pack_q(call: &PackQ<'_>, panel: &mut QPanel) {
    let PackQ { d_qk, rows, .. } = *call;
    let sign = _mm512_set1_epi32(if call.negate { 0x8000_8000_u32 } else { 0 }.cast_signed());
    let out = panel.0.as_flattened_mut().as_chunks_mut().0;
    for (row, out) in rows.iter().zip(out.chunks_mut(vectors(d_qk))) {
        for (pairs, out) in row[..d_qk].chunks(2 * LANES).zip(out) {
            store_pairs(out, _mm512_xor_si512(load_row(pairs), sign));
        }
    }
}

/// Keys of a group of C1, that the registers hold beside up to 6 rows.
const KEYS: usize = 4;

/// C1 of up to [`C1_ROWS`] rows: all rows over a group of keys, then over the next.
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
pub fn qk(kernel: Avx512Bf16, call: &Qk<'_>, q: &QPanel, s: &mut STile) {
    if call.d_qk == MAX_D_QK {
        qk_of_width::<true>(kernel, call, q, s);
    } else {
        qk_of_width::<false>(kernel, call, q, s);
    }
}

/// The same of keys that are the widest, or aren't.
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
fn qk_of_width<const WIDEST: bool>(kernel: Avx512Bf16, call: &Qk<'_>, q: &QPanel, s: &mut STile) {
    let (keys, rows) = (call.keys, call.rows);
    let groups = keys.len().div_ceil(KEYS);
    // As many tiles as `KeyTile::next` makes of the rows.
    let tiles = ((rows + 1) / 4).max(1);
    let mut prefetch = Spread::of(call.prefetch, groups * tiles * vectors(call.d_qk));
    let q = q.0.as_flattened();
    for (group, s) in s.0.as_chunks_mut().0[..groups].iter_mut().enumerate() {
        // A group at the end repeats its last key; nobody reads the copies.
        let keys = core::array::from_fn(|i| {
            let row = keys[(group * KEYS + i).min(keys.len() - 1)];
            row[..call.d_qk].as_ptr()
        });
        let tile = KeyTile::<WIDEST> {
            zmm: kernel.zmm,
            // Zen 4's L2 has more slots for lines on their way, and its L1d drops more.
            hint: if kernel.core == Core::Zen4 {
                Hint::L2
            } else {
                Hint::L1
            },
            vectors: vectors(call.d_qk),
            keys,
        };
        let mut row = 0;
        while row < rows {
            row += tile.next(q, rows, row, &mut prefetch, s);
        }
    }
}

/// A group of keys.
struct KeyTile<const WIDEST: bool> {
    zmm: Zmm,
    hint: Hint,
    /// Vectors of each: a constant of the widest, whose tiles need the registers.
    vectors: usize,
    /// Each is valid for reads of as many.
    keys: [*const bf16; KEYS],
}

impl<const WIDEST: bool> KeyTile<WIDEST> {
    const fn vectors(&self) -> usize {
        if WIDEST {
            vectors(MAX_D_QK)
        } else {
            self.vectors
        }
    }

    /// The next rows of `rows`: from `row` on, as many as one tile has. Returns their number.
    #[inline]
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
    fn next(
        &self,
        q: &[u32],
        rows: usize,
        row: usize,
        prefetch: &mut Spread<'_>,
        s: &mut [[f32; PANEL_ROWS]; KEYS],
    ) -> usize {
        let remaining = rows - row;
        match remaining {
            1 => self.qk::<1>(q, row, prefetch, s),
            2 => self.qk::<2>(q, row, prefetch, s),
            3 => self.qk::<3>(q, row, prefetch, s),
            6 => self.qk::<6>(q, row, prefetch, s),
            _ if matches!(remaining % 4, 1 | 2) => self.qk::<5>(q, row, prefetch, s),
            _ => self.qk::<4>(q, row, prefetch, s),
        }
    }

    /// Scores of the `ROWS` rows from `row` on. Returns `ROWS`.
    #[inline]
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
    fn qk<const ROWS: usize>(
        &self,
        q: &[u32],
        row: usize,
        prefetch: &mut Spread<'_>,
        s: &mut [[f32; PANEL_ROWS]; KEYS],
    ) -> usize {
        let pairs = self.vectors() * LANES;
        let q = &q[row * pairs..][..ROWS * pairs];
        let keys = self.keys;
        let mut acc = [[_mm512_setzero_ps(); ROWS]; KEYS];
        for v in 0..self.vectors() {
            prefetch.step(self.zmm, self.hint);
            let mut queries = [as_pairs(_mm512_setzero_si512()); ROWS];
            for r in 0..ROWS {
                // SAFETY: q has the pairs of ROWS rows, by the slicing above, and v is one of
                // the vectors that those of a row fill; no alignment needed.
                queries[r] = as_pairs(unsafe {
                    _mm512_loadu_si512(q.as_ptr().add(r * pairs + v * LANES).cast())
                });
            }
            for i in 0..KEYS {
                // SAFETY: the key is valid for reads of its vectors, and v is one of them; no alignment needed.
                let k = as_pairs(unsafe { _mm512_loadu_si512(keys[i].add(v * 2 * LANES).cast()) });
                for r in 0..ROWS {
                    acc[i][r] = _mm512_dpbf16_ps(acc[i][r], queries[r], k);
                }
            }
        }
        let mut sums = [0.0; 32];
        for (acc, sums) in acc.as_flattened().chunks(4).zip(sums.as_chunks_mut().0) {
            let zero = _mm512_setzero_ps();
            let acc = core::array::from_fn(|i| acc.get(i).copied().unwrap_or(zero));
            *sums = self.zmm.sum_lanes(acc);
        }
        for (sums, s) in sums.chunks(ROWS).zip(s) {
            s[row..row + ROWS].copy_from_slice(sums);
        }
        ROWS
    }
}

/// Columns that two vectors of O hold: those of one vector of V.
pub const VECTOR_PAIR: usize = 2 * LANES;
/// Vector pairs of a strip.
pub const VECTOR_PAIRS: usize = STRIP / VECTOR_PAIR;

/// C2 of up to [`C2_ROWS`] rows: [`Kernel::pv`]. Returns the strips that it skipped.
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
pub fn pv(kernel: Avx512Bf16, call: &Pv<'_>, p: &L0a, o: &mut [ORow]) -> Strips {
    let rows = padded(call);
    let pairs = call.keys.div_ceil(2);
    let low = match call.precision {
        Precision::Bf16 => &[][..],
        Precision::Bf16x2 => &p::blocks(&p.low)[0][..pairs],
    };
    let c2 = C2 {
        zmm: kernel.zmm,
        high: &p::blocks(&p.high)[0][..pairs],
        low,
        weights: &p.weights,
        increment: (!call.first).then_some(&p.increment),
        skips: skips(call),
        strips: call.strips,
        values: &rows.as_chunks().0[..pairs],
    };
    let mut skipped = 0;
    for strip in 0..call.strips {
        let o = call.strip(0, strip, o);
        // A V that isn't finite makes no row's O finite, since 0 times it is NaN: the first tile tells where to look.
        let mut row = c2.next(strip, 0, call.rows, o);
        if row == 0 {
            skipped |= 1 << strip;
            continue;
        }
        while row < call.rows {
            row += c2.next(strip, row, call.rows, o);
        }
    }
    skipped
}

/// P of a pair.
type Words = [u32; C2_ROWS];

/// The operands of all tiles of C2.
struct C2<'a> {
    zmm: Zmm,
    high: &'a [Words],
    low: &'a [Words],
    weights: &'a [f32; PANEL_ROWS],
    increment: Option<&'a [i32; PANEL_ROWS]>,
    skips: bool,
    strips: usize,
    /// Each is valid for reads of as many strips.
    values: &'a [[*const bf16; 2]],
}

/// The accumulators of a tile: rows x vector pairs x 2.
type Acc<const ROWS: usize> = [[[__m512; 2]; VECTOR_PAIRS]; ROWS];

impl C2<'_> {
    /// The next of `rows` rows, from `row` on. Returns how many; if these are the first, 0 where values aren't finite and O
    /// was left as it was.
    #[inline]
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
    fn next(&self, strip: usize, row: usize, rows: usize, o: &mut [ORow]) -> usize {
        match tile_rows(rows - row) {
            0 | 1 => self.tile::<1>(strip, row, o),
            2 => self.tile::<2>(strip, row, o),
            3 => self.tile::<3>(strip, row, o),
            4 => self.tile::<4>(strip, row, o),
            5 => self.tile::<5>(strip, row, o),
            _ => self.tile::<TILE_ROWS>(strip, row, o),
        }
    }

    /// `ROWS` rows from `row` on: [`next`](Self::next).
    #[inline]
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
    fn tile<const ROWS: usize>(&self, strip: usize, row: usize, o: &mut [ORow]) -> usize {
        let o: &mut [[f32; STRIP]; ROWS] = &mut o[row..].as_chunks_mut().0[0];
        let mut acc: Acc<ROWS> = [[[_mm512_setzero_ps(); 2]; VECTOR_PAIRS]; ROWS];
        // As panels do: `pv::StripTile::accumulates_in_o`.
        let in_o = !self.low.is_empty() && self.increment.is_some();
        if in_o {
            // Not in place: O may have to stay.
            let mut moved = *o;
            rescale(self.zmm, self.increment, row, &mut moved);
            for r in 0..ROWS {
                for i in 0..VECTOR_PAIRS {
                    let o: &[_; 2] = &moved[r].as_chunks().0.as_chunks().0[i];
                    acc[r][i] = in_halves([load(&o[0]), load(&o[1])]);
                }
            }
        }
        // One call, which is inlined.
        for part in [self.high, self.low] {
            if !part.is_empty() {
                acc = self.accumulate(part, strip, row, acc);
            }
        }
        if row == 0 && self.skips && !finite(&acc) {
            // SAFETY: values are valid for reads of all strips, of which this is one.
            if !unsafe { strip_is_finite(self.values, strip) } {
                return 0;
            }
        }
        if !in_o {
            rescale(self.zmm, self.increment, row, o);
        }
        let before = self.increment.is_some() && !in_o;
        let weights = &self.weights[row..][..ROWS];
        for r in 0..ROWS {
            for i in 0..VECTOR_PAIRS {
                let o: &mut [_; 2] = &mut o[r].as_chunks_mut().0.as_chunks_mut().0[i];
                let columns = in_order(acc[r][i]);
                for j in 0..2 {
                    add_to(&mut o[j], before, columns[j], weights[r]);
                }
            }
        }
        ROWS
    }

    /// `acc[row][column] += sum over pairs of p[pair][row] . v[pair][column]`.
    #[inline]
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
    fn accumulate<const ROWS: usize>(
        &self,
        p: &[Words],
        strip: usize,
        row: usize,
        mut acc: Acc<ROWS>,
    ) -> Acc<ROWS> {
        assert!(strip < self.strips && row + ROWS <= C2_ROWS);
        for (p, pair) in p.iter().zip(self.values) {
            // SAFETY: values are valid for reads of all strips, of which this is one, asserted above.
            let v = unsafe { interleaved(pair, strip) };
            for r in 0..ROWS {
                // SAFETY: row + ROWS <= C2_ROWS, asserted above.
                let p = unsafe { *p.get_unchecked(row + r) };
                let p = as_pairs(_mm512_set1_epi32(p.cast_signed()));
                for i in 0..VECTOR_PAIRS {
                    acc[r][i][0] = _mm512_dpbf16_ps(acc[r][i][0], as_pairs(v[i][0]), p);
                    acc[r][i][1] = _mm512_dpbf16_ps(acc[r][i][1], as_pairs(v[i][1]), p);
                }
            }
        }
        acc
    }
}

/// A vector pair's columns from how V's halves of 128 bits interleave: four of the first vector of 16 are followed by those eight further on.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
fn in_order([a, b]: [__m512; 2]) -> [__m512; 2] {
    let first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    let second = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
    [
        _mm512_permutex2var_ps(a, first, b),
        _mm512_permutex2var_ps(a, second, b),
    ]
}

/// The opposite.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
fn in_halves([a, b]: [__m512; 2]) -> [__m512; 2] {
    let low = _mm512_setr_epi32(0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
    let high = _mm512_setr_epi32(4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    [
        _mm512_permutex2var_ps(a, low, b),
        _mm512_permutex2var_ps(a, high, b),
    ]
}

/// [`Kernel::permute`] of fused groups: [`Columns::Own`] is the order in which V's halves interleave.
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
pub fn permute(o: &mut [ORow], to: Columns) {
    for o in o
        .iter_mut()
        .flat_map(|row| row.as_chunks_mut().0.as_chunks_mut::<2>().0)
    {
        let columns = [load(&o[0]), load(&o[1])];
        let [a, b] = match to {
            Columns::Own => in_halves(columns),
            Columns::Natural => in_order(columns),
        };
        store(&mut o[0], a);
        store(&mut o[1], b);
    }
}

#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
fn finite<const ROWS: usize>(acc: &Acc<ROWS>) -> bool {
    let mut wrong = 0;
    for r in 0..ROWS {
        for i in 0..VECTOR_PAIRS {
            wrong |= _mm512_fpclass_ps_mask::<NOT_FINITE>(acc[r][i][0]);
            wrong |= _mm512_fpclass_ps_mask::<NOT_FINITE>(acc[r][i][1]);
        }
    }
    wrong == 0
}

/// A strip of a pair of values, column by column within halves of 128 bits.
///
/// # Safety
/// Both values are valid for reads of the strip's columns.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
pub unsafe fn interleaved(pair: &[*const bf16; 2], strip: usize) -> [[__m512i; 2]; VECTOR_PAIRS] {
    let mut v = [[_mm512_setzero_si512(); 2]; VECTOR_PAIRS];
    for i in 0..VECTOR_PAIRS {
        // SAFETY: the caller's promise; vector pairs are the strip's.
        v[i] = unsafe { interleaved_columns(pair, strip * STRIP + i * VECTOR_PAIR) };
    }
    v
}

/// The same of a vector pair, from its first column on.
///
/// # Safety
/// Both values are valid for reads of its columns.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
pub unsafe fn interleaved_columns([even, odd]: &[*const bf16; 2], column: usize) -> [__m512i; 2] {
    // SAFETY: the caller's promise; a vector pair is 64 bytes, and the loads need no alignment.
    let (even, odd) = unsafe {
        (
            _mm512_loadu_si512(even.add(column).cast()),
            _mm512_loadu_si512(odd.add(column).cast()),
        )
    };
    [
        _mm512_unpacklo_epi16(even, odd),
        _mm512_unpackhi_epi16(even, odd),
    ]
}

/// A vector pair of a row of O.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
pub fn read(o: &[f32; STRIP], i: usize) -> [__m512; 2] {
    let o: &[_; 2] = &o.as_chunks().0.as_chunks().0[i];
    o.map(|o| load(&o))
}

#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
pub fn write(o: &mut [f32; STRIP], i: usize, acc: [__m512; 2]) {
    let o: &mut [_; 2] = &mut o.as_chunks_mut().0.as_chunks_mut().0[i];
    for i in 0..2 {
        store(&mut o[i], acc[i]);
    }
}
