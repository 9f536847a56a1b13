//! C1 and C2 for few rows, where memory limits as much as the dots
//! do: nothing is packed but Q, and C1, with up to 12 rows C2 as well ([`Kernel::pv_asks`]), asks memory for rows to come meanwhile.
//! Groups of the fewest rows go through `stream.rs`; tiles of them here are for what is left of more.
//!
//! | kernel | register tile | streams |
//! |---|---|---|
//! | C1 | 4 keys x 1 to 6 rows, tile by tile over the same keys | Q row-major, K from the cache itself |
//! | C2 | 1 to 6 rows x 4 vectors of 16 columns, tile by tile over a strip of V | V from the cache itself, P by broadcast |
//!
//! C1 has features in the lanes: a score is a sum over 16 lanes in the end, which
//! costs two shuffles, where rows or keys in the lanes would leave lanes idle or
//! cost 72 shuffles per key to transpose it. C2 interleaves two keys by half lanes
//! of 128 bits on their way into the dot, and O's columns alike.

use super::c2::{TILE_ROWS, add_to, padded, rescale, tile_rows};
use super::*;
use crate::kernel::prefetch::{Ahead, LINE};
use crate::kernel::scalar;

/// Up to so many rows C1 here beats that for panels, whose tiles take a load for every dot with one vector of
/// rows, and idle lanes otherwise. With more Q leaves L1d.
pub(super) const C1_ROWS: usize = 28;
/// Up to so many rows C2 here beats that for panels: with more it pays to interleave V once for all tiles.
pub(super) const C2_ROWS: usize = p::BLOCK_ROWS;

/// Dots of one query row.
const fn vectors(d_qk: usize) -> usize {
    d_qk / (2 * LANES)
}

/// Q as C1 reads it here: row-major, from the panel's start.
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
pub(super) fn pack_q<const D_QK: usize>(rows: &[&[bf16]], negate: bool, panel: &mut QPanel) {
    let sign = _mm512_set1_epi32(if negate { 0x8000_8000_u32 } else { 0 }.cast_signed());
    let out = panel.0.as_flattened_mut().as_chunks_mut().0;
    for (row, out) in rows.iter().zip(out.chunks_mut(vectors(D_QK))) {
        for (pairs, out) in row[..D_QK].chunks(2 * LANES).zip(out) {
            store_pairs(out, _mm512_xor_si512(load_row(pairs), sign));
        }
    }
}

/// Keys of a group of C1, that the registers hold beside up to 6 rows.
const KEYS: usize = 4;

/// C1 of up to [`C1_ROWS`] rows: all rows over a group of keys, then over the next.
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
pub(super) fn qk<const D_QK: usize>(
    kernel: Avx512Bf16,
    q: &QPanel,
    rows: usize,
    keys: &Rows<'_>,
    next: &[&[bf16]],
    s: &mut STile,
) {
    let keys = keys.as_slice();
    let groups = keys.len().div_ceil(KEYS);
    // As many tiles as `KeyTile::next` makes of the rows.
    let tiles = ((rows + 1) / 4).max(1);
    let mut ahead = Ahead::of(next, groups * tiles * vectors(D_QK));
    let q = q.0.as_flattened();
    for (group, s) in s.0.as_chunks_mut().0[..groups].iter_mut().enumerate() {
        // A group at the end repeats its last key; nobody reads the copies.
        let keys = core::array::from_fn(|i| {
            let row = keys[(group * KEYS + i).min(keys.len() - 1)];
            &row.as_chunks().0[0]
        });
        let tile = KeyTile::<D_QK> { kernel, keys };
        let mut row = 0;
        while row < rows {
            row += tile.next(q, rows, row, &mut ahead, s);
        }
    }
}

/// A group of keys.
struct KeyTile<'a, const D_QK: usize> {
    kernel: Avx512Bf16,
    keys: [&'a [bf16; D_QK]; KEYS],
}

impl<const D_QK: usize> KeyTile<'_, D_QK> {
    /// The next rows of `rows`: from `row` on, as many as one tile has. Returns their number.
    #[inline]
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
    fn next(
        &self,
        q: &[u32],
        rows: usize,
        row: usize,
        ahead: &mut Ahead<'_>,
        s: &mut [[f32; PANEL_ROWS]; KEYS],
    ) -> usize {
        let left = rows - row;
        match left {
            1 => self.qk::<1>(q, row, ahead, s),
            2 => self.qk::<2>(q, row, ahead, s),
            3 => self.qk::<3>(q, row, ahead, s),
            6 => self.qk::<6>(q, row, ahead, s),
            _ if matches!(left % 4, 1 | 2) => self.qk::<5>(q, row, ahead, s),
            _ => self.qk::<4>(q, row, ahead, s),
        }
    }

    /// Scores of the `ROWS` rows from `row` on. Returns `ROWS`.
    #[inline]
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
    fn qk<const ROWS: usize>(
        &self,
        q: &[u32],
        row: usize,
        ahead: &mut Ahead<'_>,
        s: &mut [[f32; PANEL_ROWS]; KEYS],
    ) -> usize {
        let q = &q[row * D_QK / 2..][..ROWS * D_QK / 2];
        let keys: [&[bf16; D_QK]; KEYS] = self.keys;
        let mut acc = [[_mm512_setzero_ps(); ROWS]; KEYS];
        for v in 0..vectors(D_QK) {
            ahead.step_into(self.kernel.asks_l2(), self.kernel.zmm);
            let mut pairs = [as_pairs(_mm512_setzero_si512()); ROWS];
            for r in 0..ROWS {
                // SAFETY: q has the D_QK / 2 pairs of ROWS rows, by the slicing above, and v is one of
                // the vectors that those of a row fill; no alignment needed.
                pairs[r] = as_pairs(unsafe {
                    _mm512_loadu_si512(q.as_ptr().add(r * D_QK / 2 + v * LANES).cast())
                });
            }
            for i in 0..KEYS {
                // SAFETY: the key has D_QK elements, and v is one of the vectors they fill; no alignment
                // needed.
                let k = as_pairs(unsafe {
                    _mm512_loadu_si512(keys[i].as_ptr().add(v * 2 * LANES).cast())
                });
                for r in 0..ROWS {
                    acc[i][r] = _mm512_dpbf16_ps(acc[i][r], pairs[r], k);
                }
            }
        }
        let mut sums = [0.0; 32];
        for (acc, sums) in acc.as_flattened().chunks(4).zip(sums.as_chunks_mut().0) {
            let zero = _mm512_setzero_ps();
            let acc = core::array::from_fn(|i| acc.get(i).copied().unwrap_or(zero));
            *sums = self.kernel.zmm.sum_lanes(acc);
        }
        for (sums, s) in sums.chunks(ROWS).zip(s) {
            s[row..row + ROWS].copy_from_slice(sums);
        }
        ROWS
    }
}

/// Columns that two vectors of O hold: those of one vector of V.
pub(super) const PIECE: usize = 2 * LANES;
/// Pieces of a strip.
pub(super) const PIECES: usize = STRIP / PIECE;

/// C2 of up to [`C2_ROWS`] rows: [`Kernel::pv_direct`].
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
pub(super) fn pv<const D_V: usize>(
    kernel: Avx512Bf16,
    call: &Pv<'_>,
    p: &L0a,
    values: &Rows<'_>,
    o: &mut [OStrip],
) -> Strips {
    let rows = padded::<D_V>(values);
    let pairs = call.keys.div_ceil(2);
    let low = match call.precision {
        Precision::Bf16 => &[][..],
        Precision::Bf16x2 => &p::blocks(&p.low)[0][..pairs],
    };
    let (mut tiles, mut row) = (0, 0);
    while row < call.rows {
        row += tile_rows(call.rows - row);
        tiles += 1;
    }
    let parts = if low.is_empty() { 1 } else { 2 };
    let times = (D_V / STRIP * tiles * parts).max(1);
    let next = if kernel.pv_asks(call.rows) > 0 {
        call.next
    } else {
        &[]
    };
    let passes = &mut Passes::of(next, times, rows[0].as_ptr());
    let c2 = C2 {
        zmm: kernel.zmm,
        high: &p::blocks(&p.high)[0][..pairs],
        low,
        weights: &p.weights,
        increment: call.increment,
        values: &rows.as_chunks().0[..pairs],
    };
    let mut left = 0;
    for (strip, o) in o.iter_mut().enumerate().take(D_V / STRIP) {
        // A V that isn't finite makes no row's O finite, since 0 times it is NaN: the first tile tells where to look.
        let mut row = c2.next(strip, 0, call.rows, passes, o);
        if row == 0 {
            left |= 1 << strip;
            continue;
        }
        while row < call.rows {
            row += c2.next(strip, row, call.rows, passes, o);
        }
    }
    left
}

/// P of a pair.
type Words = [u32; C2_ROWS];

/// What all tiles of C2 share.
struct C2<'a, const D_V: usize> {
    zmm: Zmm,
    high: &'a [Words],
    low: &'a [Words],
    weights: &'a [f32; PANEL_ROWS],
    increment: Option<&'a [i32; PANEL_ROWS]>,
    values: &'a [[&'a [bf16; D_V]; 2]],
}

/// The accumulators of a tile: rows x pieces x the two halves of a piece.
type Acc<const ROWS: usize> = [[[__m512; 2]; PIECES]; ROWS];

impl<const D_V: usize> C2<'_, D_V> {
    /// The next of `rows` rows, from `row` on. Returns how many; if these are the first, 0 where values aren't finite and O
    /// was left as it was.
    #[inline]
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
    fn next(
        &self,
        strip: usize,
        row: usize,
        rows: usize,
        passes: &mut Passes<'_>,
        o: &mut OStrip,
    ) -> usize {
        match tile_rows(rows - row) {
            0 | 1 => self.tile::<1>(strip, row, passes, o),
            2 => self.tile::<2>(strip, row, passes, o),
            3 => self.tile::<3>(strip, row, passes, o),
            4 => self.tile::<4>(strip, row, passes, o),
            5 => self.tile::<5>(strip, row, passes, o),
            _ => self.tile::<TILE_ROWS>(strip, row, passes, o),
        }
    }

    /// `ROWS` rows from `row` on: [`next`](Self::next).
    #[inline]
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
    fn tile<const ROWS: usize>(
        &self,
        strip: usize,
        row: usize,
        passes: &mut Passes<'_>,
        o: &mut OStrip,
    ) -> usize {
        let o: &mut [[f32; STRIP]; ROWS] = &mut o[row..].as_chunks_mut().0[0];
        let mut acc: Acc<ROWS> = [[[_mm512_setzero_ps(); 2]; PIECES]; ROWS];
        // As `C2::goes_on` of panels has it.
        let goes_on = !self.low.is_empty() && self.increment.is_some();
        if goes_on {
            // Not in place: O may have to stay.
            let mut moved = *o;
            rescale(self.zmm, self.increment, row, &mut moved);
            for r in 0..ROWS {
                for i in 0..PIECES {
                    let o: &[_; 2] = &moved[r].as_chunks().0.as_chunks().0[i];
                    acc[r][i] = in_halves([load(&o[0]), load(&o[1])]);
                }
            }
        }
        // One call, which is inlined.
        for part in [self.high, self.low] {
            if !part.is_empty() {
                acc = self.accumulate(part, strip, row, &mut passes.next(), acc);
            }
        }
        if row == 0 && !finite(&acc) {
            let values = self.values.as_flattened().iter().map(|&row| &row[..]);
            let columns = strip * STRIP..(strip + 1) * STRIP;
            if !scalar::finite(values, &columns) {
                return 0;
            }
        }
        if !goes_on {
            rescale(self.zmm, self.increment, row, o);
        }
        let before = self.increment.is_some() && !goes_on;
        let weights = &self.weights[row..][..ROWS];
        for r in 0..ROWS {
            for i in 0..PIECES {
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
        lines: &mut Lines<'_>,
        mut acc: Acc<ROWS>,
    ) -> Acc<ROWS> {
        assert!((strip + 1) * STRIP <= D_V && row + ROWS <= C2_ROWS);
        for (p, pair) in p.iter().zip(self.values) {
            self.zmm.prefetch(lines.next());
            // SAFETY: the values are references to D_V elements, and the strip lies within these, asserted above.
            let v = unsafe { interleaved(&pair.map(|row| row.as_ptr()), strip) };
            for r in 0..ROWS {
                // SAFETY: row + ROWS <= C2_ROWS, asserted above.
                let p = unsafe { *p.get_unchecked(row + r) };
                let p = as_pairs(_mm512_set1_epi32(p.cast_signed()));
                for i in 0..PIECES {
                    acc[r][i][0] = _mm512_dpbf16_ps(acc[r][i][0], as_pairs(v[i][0]), p);
                    acc[r][i][1] = _mm512_dpbf16_ps(acc[r][i][1], as_pairs(v[i][1]), p);
                }
            }
        }
        while lines.left() {
            self.zmm.prefetch(lines.next());
        }
        acc
    }
}

/// Rows to come, as many of them for each time that C2 goes over a block's pairs, which is one loop: those of
/// [`crate::kernel::zmm::requests`] would cut it into parts of 16 keys, and short loops cost more (`docs/adr/0026`).
struct Passes<'a> {
    rows: &'a [&'a [bf16]],
    each: usize,
    /// Where those of a pass begin, and behind them what to ask for where there is nothing.
    begins: [*const bf16; PASS_ROWS],
}

/// Rows of a pass, and one more: a power of two.
const PASS_ROWS: usize = 64;

impl<'a> Passes<'a> {
    /// All of `rows`, unless they are more than so many passes have room for; and `here` where there is nothing to ask for.
    fn of(rows: &'a [&'a [bf16]], passes: usize, here: *const bf16) -> Self {
        Self {
            rows,
            each: rows.len().div_ceil(passes).min(PASS_ROWS - 1),
            begins: [here; _],
        }
    }

    /// The next pass's.
    #[inline]
    fn next(&mut self) -> Lines<'_> {
        let (rows, later) = self.rows.split_at(self.each.min(self.rows.len()));
        self.rows = later;
        for (begin, row) in self.begins.iter_mut().zip(rows) {
            *begin = row.as_ptr();
        }
        Lines {
            begins: &self.begins,
            rows: rows.len(),
            row: 0,
            at: 0,
            len: rows.first().map_or(LINE, |row| row.len()),
        }
    }
}

/// Their lines, one by one: without a branch, as those that the processor can't foresee cost more than all requests.
struct Lines<'a> {
    begins: &'a [*const bf16; PASS_ROWS],
    rows: usize,
    row: usize,
    /// Where in the row, and how long each is.
    at: usize,
    len: usize,
}

impl Lines<'_> {
    /// Whether there is a line that hasn't been asked for.
    fn left(&self) -> bool {
        self.row < self.rows
    }

    /// The next one. Behind the last, any that is there already.
    #[inline(always)]
    fn next(&mut self) -> *const bf16 {
        let line = self.begins[self.row % PASS_ROWS].wrapping_add(self.at);
        self.at += LINE;
        let ends = usize::from(self.at >= self.len);
        self.at &= ends.wrapping_sub(1);
        self.row += ends;
        line
    }
}

/// A piece's columns from how V's halves of 128 bits interleave: four of the first vector of 16 are followed by those eight further on.
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

/// A row of a strip of O as V's halves interleave.
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
pub(super) fn interleave(row: &[f32; STRIP]) -> [f32; STRIP] {
    let mut out = *row;
    for o in out.as_chunks_mut().0.as_chunks_mut::<2>().0 {
        let [a, b] = in_halves([load(&o[0]), load(&o[1])]);
        store(&mut o[0], a);
        store(&mut o[1], b);
    }
    out
}

/// A row from how [`interleave`] left it.
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
pub(super) fn deinterleave(row: &[f32; STRIP]) -> [f32; STRIP] {
    let mut out = *row;
    for o in out.as_chunks_mut().0.as_chunks_mut::<2>().0 {
        let [a, b] = in_order([load(&o[0]), load(&o[1])]);
        store(&mut o[0], a);
        store(&mut o[1], b);
    }
    out
}

#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
fn finite<const ROWS: usize>(acc: &Acc<ROWS>) -> bool {
    let mut wrong = 0;
    for r in 0..ROWS {
        for i in 0..PIECES {
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
pub(super) unsafe fn interleaved(pair: &[*const bf16; 2], strip: usize) -> [[__m512i; 2]; PIECES] {
    let mut v = [[_mm512_setzero_si512(); 2]; PIECES];
    for i in 0..PIECES {
        // SAFETY: the caller's promise; pieces are the strip's.
        v[i] = unsafe { interleaved_piece(pair, strip * STRIP + i * PIECE) };
    }
    v
}

/// The same of a piece, from its first column on.
///
/// # Safety
/// Both values are valid for reads of its columns.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
pub(super) unsafe fn interleaved_piece(
    [even, odd]: &[*const bf16; 2],
    column: usize,
) -> [__m512i; 2] {
    // SAFETY: the caller's promise; a piece is 64 bytes, and the loads need no alignment.
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

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    /// Each line of each row, in the order that they lie there, however many pairs a block has; and nothing but what is there already
    /// where there is nothing to come.
    #[test]
    fn all_passes_ask_for_every_line() {
        let memory = [[bf16::ZERO; 4 * LINE]; 11];
        for n in [0, 1, 5, 11] {
            let rows: Vec<&[bf16]> = memory[..n].iter().map(|row| &row[..]).collect();
            for (passes, pairs) in [(1, 3), (1, 60), (2, 24), (4, 5), (16, 96)] {
                let here = core::ptr::without_provenance(64);
                let mut all = Passes::of(&rows, passes, here);
                let mut asked = Vec::new();
                for _ in 0..passes {
                    let mut lines = all.next();
                    for _ in 0..pairs {
                        let left = lines.left();
                        let line = lines.next();
                        if left {
                            asked.push(line);
                        } else {
                            let again = memory[..n].as_flattened().as_ptr_range().contains(&line);
                            // Or as many lines as rows have.
                            let beyond = line.addr().wrapping_sub(here.addr());
                            assert!(again || beyond < size_of_val(&memory[0]));
                        }
                    }
                    while lines.left() {
                        asked.push(lines.next());
                    }
                }
                let want: Vec<_> = memory[..n]
                    .as_flattened()
                    .chunks(LINE)
                    .map(<[_]>::as_ptr)
                    .collect();
                assert_eq!(asked, want, "{n} rows, {passes} passes of {pairs} pairs");
            }
        }
    }
}
