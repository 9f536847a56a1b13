//! C1 and C2 for few rows, where memory limits as much as the dots
//! do: nothing is packed but Q, and meanwhile memory is asked for rows to come.
//!
//! | kernel | register tile | streams |
//! |---|---|---|
//! | C1 | 8 keys x 1 or 2 rows, 6 x 3, 4 x 4 to 6 for more, tile by tile over the same keys | Q row-major, K from the cache itself |
//! | C2 | 1 row x 16 vectors of 16 columns, 2 or 3 x 8, 4 or 5 x 4 | V from the cache itself, P by broadcast |
//!
//! C1 has features in the lanes: a score is a sum over 16 lanes in the end, which
//! costs two shuffles, where rows or keys in the lanes would leave lanes idle or
//! cost 72 shuffles per key to transpose it. C2 interleaves two keys by half lanes
//! of 128 bits on their way into the dot, and O's columns alike.

use super::*;
use crate::isa::ahead::Ahead;

/// Up to so many rows C1 here beats that for panels, whose tiles take a load for every dot with one vector of
/// rows, and idle lanes otherwise. With more Q leaves L1d.
pub(super) const C1_ROWS: usize = 28;
/// Up to so many rows C2 here beats that for panels.
pub(super) const C2_ROWS: usize = 5;

/// Dots of one query row.
const fn vectors(d_qk: usize) -> usize {
    d_qk / (2 * LANES)
}

/// Q as C1 reads it here: row-major, from the panel's start.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(super) fn pack_q<const D_QK: usize>(rows: &[&[bf16]], negate: bool, panel: &mut QPanel) {
    let sign = _mm512_set1_epi32(if negate { 0x8000_8000_u32 } else { 0 }.cast_signed());
    let out = panel.0.as_flattened_mut().as_chunks_mut().0;
    for (row, out) in rows.iter().zip(out.chunks_mut(vectors(D_QK))) {
        for (pairs, out) in row[..D_QK].chunks(2 * LANES).zip(out) {
            store_pairs(out, _mm512_xor_si512(load_row(pairs), sign));
        }
    }
}

/// C1 of up to [`C1_ROWS`] rows.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(super) fn qk<const D_QK: usize>(
    zmm: Zmm,
    q: &QPanel,
    rows: usize,
    keys: &Rows<'_>,
    next: &[&[bf16]],
    s: &mut STile,
) {
    match rows {
        0 | 1 => qk_groups::<D_QK, 8>(zmm, q, 1, keys, next, s),
        2 => qk_groups::<D_QK, 8>(zmm, q, 2, keys, next, s),
        3 => qk_groups::<D_QK, 6>(zmm, q, 3, keys, next, s),
        _ => qk_groups::<D_QK, 4>(zmm, q, rows, keys, next, s),
    }
}

/// All rows over a group of keys, then over the next.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn qk_groups<const D_QK: usize, const KEYS: usize>(
    zmm: Zmm,
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
        let tile = KeyTile::<D_QK, KEYS> { zmm, keys };
        let mut row = 0;
        while row < rows {
            // Most calls ask for nothing, and don't pay for it.
            row += if next.is_empty() {
                tile.next::<false>(q, rows, row, &mut ahead, s)
            } else {
                tile.next::<true>(q, rows, row, &mut ahead, s)
            };
        }
    }
}

/// A group of keys.
struct KeyTile<'a, const D_QK: usize, const KEYS: usize> {
    zmm: Zmm,
    keys: [&'a [bf16; D_QK]; KEYS],
}

impl<const D_QK: usize, const KEYS: usize> KeyTile<'_, D_QK, KEYS> {
    /// The next rows of `rows`: from `row` on, as many as one tile has. Returns their number.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    fn next<const ASK: bool>(
        &self,
        q: &[u32],
        rows: usize,
        row: usize,
        ahead: &mut Ahead<'_>,
        s: &mut [[f32; PANEL_ROWS]; KEYS],
    ) -> usize {
        let left = rows - row;
        match left {
            1 => self.qk::<1, ASK>(q, row, ahead, s),
            2 => self.qk::<2, ASK>(q, row, ahead, s),
            3 => self.qk::<3, ASK>(q, row, ahead, s),
            6 => self.qk::<6, ASK>(q, row, ahead, s),
            _ if matches!(left % 4, 1 | 2) => self.qk::<5, ASK>(q, row, ahead, s),
            _ => self.qk::<4, ASK>(q, row, ahead, s),
        }
    }

    /// Scores of the `ROWS` rows from `row` on. Returns `ROWS`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    fn qk<const ROWS: usize, const ASK: bool>(
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
            if ASK {
                ahead.step(self.zmm);
            }
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
            *sums = self.zmm.sum_lanes(acc);
        }
        for (sums, s) in sums.chunks(ROWS).zip(s) {
            s[row..row + ROWS].copy_from_slice(sums);
        }
        ROWS
    }
}

/// Columns that two vectors of O hold: those of one vector of V.
const PIECE: usize = 2 * LANES;

/// C2 of up to [`C2_ROWS`] rows: [`Isa::pv_direct`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(super) fn pv<const D_V: usize>(
    zmm: Zmm,
    call: &Pv<'_>,
    p: &L0a,
    values: &Rows<'_>,
    next: &[&[bf16]],
    o: &mut [OStrip],
) -> Strips {
    let c2 = Few {
        zmm,
        call,
        p,
        values: values.as_slice(),
    };
    // As many pieces as there are registers for, and columns.
    match call.rows {
        0 | 1 if D_V.is_multiple_of(8 * PIECE) => pv_rows::<1, 8>(&c2, next, D_V, o),
        0 | 1 if D_V.is_multiple_of(4 * PIECE) => pv_rows::<1, 4>(&c2, next, D_V, o),
        2 if D_V.is_multiple_of(4 * PIECE) => pv_rows::<2, 4>(&c2, next, D_V, o),
        3 if D_V.is_multiple_of(4 * PIECE) => pv_rows::<3, 4>(&c2, next, D_V, o),
        0 | 1 => pv_rows::<1, 2>(&c2, next, D_V, o),
        2 => pv_rows::<2, 2>(&c2, next, D_V, o),
        3 => pv_rows::<3, 2>(&c2, next, D_V, o),
        4 => pv_rows::<4, 2>(&c2, next, D_V, o),
        _ => pv_rows::<5, 2>(&c2, next, D_V, o),
    }
}

/// What all tiles of C2 share.
struct Few<'a> {
    zmm: Zmm,
    call: &'a Pv<'a>,
    p: &'a L0a,
    values: &'a [&'a [bf16]],
}

/// `ROWS` rows, `PIECES` pieces at a time.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn pv_rows<const ROWS: usize, const PIECES: usize>(
    c2: &Few<'_>,
    next: &[&[bf16]],
    d_v: usize,
    o: &mut [OStrip],
) -> Strips {
    let visits = d_v / (PIECES * PIECE);
    let ahead = &mut Ahead::of(next, visits * c2.values.len().div_ceil(2));
    let strips = PIECES * PIECE / STRIP;
    let mut left = 0;
    for (visit, o) in o[..d_v / STRIP].chunks_mut(strips).enumerate() {
        // A V that isn't finite makes every row's O so, since 0 times it is NaN.
        if !pv_tile::<ROWS, PIECES>(c2, ahead, visit, o) {
            left |= ((1 << strips) - 1) << (visit * strips);
        }
    }
    left
}

/// All rows of the visit's columns. O is left as it was and the result is `false` where it would not
/// be finite.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn pv_tile<const ROWS: usize, const PIECES: usize>(
    c2: &Few<'_>,
    ahead: &mut Ahead<'_>,
    visit: usize,
    o: &mut [OStrip],
) -> bool {
    // Where V's halves of 128 bits interleave, four columns of the first vector of
    // 16 are followed by those eight further on.
    let low = _mm512_setr_epi32(0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
    let high = _mm512_setr_epi32(4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    let mut acc: Acc<ROWS, PIECES> = [[[_mm512_setzero_ps(); 2]; PIECES]; ROWS];
    if let Some(increment) = c2.call.increment {
        for (r, acc) in acc.iter_mut().enumerate() {
            let increment = increment[r];
            for (i, acc) in acc.iter_mut().enumerate() {
                let piece = &o[i * PIECE / STRIP][r].as_chunks().0[i % 2 * 2..];
                let [a, b] = [load(&piece[0]), load(&piece[1])];
                *acc = [
                    _mm512_permutex2var_ps(a, low, b),
                    _mm512_permutex2var_ps(a, high, b),
                ];
                // Most blocks don't move the reference: nothing to add then.
                if increment != 0 {
                    for acc in acc {
                        *acc = c2.zmm.add_increment(*acc, increment);
                    }
                }
            }
        }
    }
    let column = visit * PIECES * PIECE;
    acc = accumulate(c2, &c2.p.high, column, &acc, ahead);
    match c2.call.precision {
        Precision::Bf16 => add_residuals(c2, column, &mut acc),
        Precision::Bf16x2 => acc = accumulate(c2, &c2.p.low, column, &acc, ahead),
    }
    let mut wrong = 0;
    for &acc in acc.as_flattened().as_flattened() {
        wrong |= _mm512_fpclass_ps_mask::<NOT_FINITE>(acc);
    }
    if wrong != 0 {
        return false;
    }
    let first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    let second = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
    for (r, acc) in acc.iter().enumerate() {
        for (i, &[a, b]) in acc.iter().enumerate() {
            let piece = &mut o[i * PIECE / STRIP][r].as_chunks_mut().0[i % 2 * 2..];
            store(&mut piece[0], _mm512_permutex2var_ps(a, first, b));
            store(&mut piece[1], _mm512_permutex2var_ps(a, second, b));
        }
    }
    true
}

/// The accumulators of a tile: rows x pieces x the two halves of a piece.
type Acc<const ROWS: usize, const PIECES: usize> = [[[__m512; 2]; PIECES]; ROWS];

/// `acc[row][column] + sum over pairs of p[pair][row] . v[pair][column]`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn accumulate<const ROWS: usize, const PIECES: usize>(
    c2: &Few<'_>,
    p: &PTile,
    column: usize,
    acc: &Acc<ROWS, PIECES>,
    ahead: &mut Ahead<'_>,
) -> Acc<ROWS, PIECES> {
    // A copy, which registers hold. An argument's memory would be written with every pair.
    let mut acc = *acc;
    let pairs = c2.values.len().div_ceil(2);
    for (k, p) in p.0[..pairs].iter().enumerate() {
        ahead.step(c2.zmm);
        let v: [_; PIECES] = interleaved(c2.values, k, column);
        for (acc, p) in acc.iter_mut().zip(&p[..ROWS]) {
            let p = as_pairs(_mm512_set1_epi32(p.cast_signed()));
            for (acc, v) in acc.iter_mut().zip(v) {
                acc[0] = _mm512_dpbf16_ps(acc[0], as_pairs(v[0]), p);
                acc[1] = _mm512_dpbf16_ps(acc[1], as_pairs(v[1]), p);
            }
        }
    }
    acc
}

/// What rounding took from each row's largest P, times that key's value.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn add_residuals<const ROWS: usize, const PIECES: usize>(
    c2: &Few<'_>,
    column: usize,
    acc: &mut Acc<ROWS, PIECES>,
) {
    let residuals = &c2.p.residuals;
    for r in 0..ROWS {
        let v: [_; PIECES] = interleaved(c2.values, residuals.pair[r] as usize, column);
        let p = as_pairs(_mm512_set1_epi32(residuals.p[r].cast_signed()));
        for i in 0..PIECES {
            for half in 0..2 {
                acc[r][i][half] = _mm512_dpbf16_ps(acc[r][i][half], as_pairs(v[i][half]), p);
            }
        }
    }
}

/// A pair of values, column by column within halves of 128 bits; zero where there is no second one.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn interleaved<const PIECES: usize>(
    values: &[&[bf16]],
    pair: usize,
    column: usize,
) -> [[__m512i; 2]; PIECES] {
    static ZEROS: [bf16; MAX_D_V] = [bf16::ZERO; _];
    let columns = column..column + PIECES * PIECE;
    let even = &values[2 * pair][columns.clone()];
    let odd = match values.get(2 * pair + 1) {
        Some(value) => &value[columns],
        None => &ZEROS[columns],
    };
    let mut v = [[_mm512_setzero_si512(); 2]; PIECES];
    for (i, v) in v.iter_mut().enumerate() {
        // SAFETY: both have the elements of PIECES pieces, by the slicing above; a piece is 64
        // bytes, and the loads need no alignment.
        let (even, odd) = unsafe {
            (
                _mm512_loadu_si512(even.as_ptr().add(i * PIECE).cast()),
                _mm512_loadu_si512(odd.as_ptr().add(i * PIECE).cast()),
            )
        };
        *v = [
            _mm512_unpacklo_epi16(even, odd),
            _mm512_unpackhi_epi16(even, odd),
        ];
    }
    v
}
