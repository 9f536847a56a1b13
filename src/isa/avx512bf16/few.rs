//! C1 and C2 for up to [`FEW_ROWS`] rows, where memory limits as much as the dots
//! do: nothing is packed but Q, and meanwhile memory is asked for rows to come.
//!
//! | kernel | register tile | streams |
//! |---|---|---|
//! | C1 | 8 keys x 1 or 2 rows, 6 x 3 or 4, 4 x 5 or 6, 3 x 7 or 8, one vector each | Q row-major, K from the cache itself |
//! | C2 | 1 row x 16 vectors of 16 columns, 2 or 3 x 8, 4 to 6 x 4 (7 and 8 in two) | V from the cache itself, P by broadcast |
//!
//! C1 has features in the lanes: a score is a sum over 16 lanes in the end, which
//! costs two shuffles, where rows or keys in the lanes would leave lanes idle or
//! cost 72 shuffles per key to transpose it. C2 interleaves two keys by half lanes
//! of 128 bits on their way into the dot, and O's columns alike.

use super::*;
use crate::isa::ahead::Ahead;

/// Up to so many rows these kernels beat those for panels.
pub(super) const FEW_ROWS: usize = 8;

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

/// C1 of up to [`FEW_ROWS`] rows.
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
        0 | 1 => qk_rows::<D_QK, 1, 8>(zmm, q, keys, next, s),
        2 => qk_rows::<D_QK, 2, 8>(zmm, q, keys, next, s),
        3 => qk_rows::<D_QK, 3, 6>(zmm, q, keys, next, s),
        4 => qk_rows::<D_QK, 4, 6>(zmm, q, keys, next, s),
        5 => qk_rows::<D_QK, 5, 4>(zmm, q, keys, next, s),
        6 => qk_rows::<D_QK, 6, 4>(zmm, q, keys, next, s),
        7 => qk_rows::<D_QK, 7, 3>(zmm, q, keys, next, s),
        _ => qk_rows::<D_QK, 8, 3>(zmm, q, keys, next, s),
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn qk_rows<const D_QK: usize, const ROWS: usize, const KEYS: usize>(
    zmm: Zmm,
    q: &QPanel,
    keys: &Rows<'_>,
    next: &[&[bf16]],
    s: &mut STile,
) {
    let keys = keys.as_slice();
    let steps = keys.len().div_ceil(KEYS) * vectors(D_QK);
    let mut ahead = Ahead::of(next, steps);
    let (q, _) = q.0.as_flattened().as_chunks();
    let q: [&[[u32; LANES]]; ROWS] =
        core::array::from_fn(|r| &q[r * vectors(D_QK)..][..vectors(D_QK)]);
    for (group, s) in s.0.chunks_mut(KEYS).enumerate() {
        let first = group * KEYS;
        if first >= keys.len() {
            break;
        }
        // A group at the end repeats its last key; nobody reads the copies.
        let rows: [&[bf16; D_QK]; KEYS] = core::array::from_fn(|i| {
            let row = keys[(first + i).min(keys.len() - 1)];
            &row.as_chunks().0[0]
        });
        let mut acc = [[_mm512_setzero_ps(); ROWS]; KEYS];
        for v in 0..vectors(D_QK) {
            ahead.step(zmm);
            let q: [__m512bh; ROWS] = core::array::from_fn(|r| load_pairs(&q[r][v]));
            for (acc, row) in acc.iter_mut().zip(rows) {
                let k = as_pairs(load_row(&row[v * 2 * LANES..]));
                for (acc, q) in acc.iter_mut().zip(q) {
                    *acc = _mm512_dpbf16_ps(*acc, q, k);
                }
            }
        }
        let mut sums = [0.0; 32];
        for (acc, sums) in acc.as_flattened().chunks(4).zip(sums.as_chunks_mut().0) {
            let zero = _mm512_setzero_ps();
            let acc = core::array::from_fn(|i| acc.get(i).copied().unwrap_or(zero));
            *sums = zmm.sum_lanes(acc);
        }
        for (sums, s) in sums.chunks(ROWS).zip(s) {
            s[..ROWS].copy_from_slice(sums);
        }
    }
}

/// Columns that two vectors of O hold: those of one vector of V.
const PIECE: usize = 2 * LANES;

/// C2 of up to [`FEW_ROWS`] rows: [`Isa::pv_direct`].
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
        0 | 1 if D_V.is_multiple_of(8 * PIECE) => pv_rows::<1, 0, 8>(&c2, next, D_V, o),
        0 | 1 if D_V.is_multiple_of(4 * PIECE) => pv_rows::<1, 0, 4>(&c2, next, D_V, o),
        2 if D_V.is_multiple_of(4 * PIECE) => pv_rows::<2, 0, 4>(&c2, next, D_V, o),
        3 if D_V.is_multiple_of(4 * PIECE) => pv_rows::<3, 0, 4>(&c2, next, D_V, o),
        0 | 1 => pv_rows::<1, 0, 2>(&c2, next, D_V, o),
        2 => pv_rows::<2, 0, 2>(&c2, next, D_V, o),
        3 => pv_rows::<3, 0, 2>(&c2, next, D_V, o),
        4 => pv_rows::<4, 0, 2>(&c2, next, D_V, o),
        5 => pv_rows::<5, 0, 2>(&c2, next, D_V, o),
        6 => pv_rows::<6, 0, 2>(&c2, next, D_V, o),
        7 => pv_rows::<4, 3, 2>(&c2, next, D_V, o),
        _ => pv_rows::<4, 4, 2>(&c2, next, D_V, o),
    }
}

/// What all tiles of C2 share.
struct Few<'a> {
    zmm: Zmm,
    call: &'a Pv<'a>,
    p: &'a L0a,
    values: &'a [&'a [bf16]],
}

/// `FIRST` rows and then `THEN` more, `PIECES` pieces at a time.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn pv_rows<const FIRST: usize, const THEN: usize, const PIECES: usize>(
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
        if pv_tile::<FIRST, PIECES>(c2, ahead, visit, 0, true, o) {
            pv_tile::<THEN, PIECES>(c2, ahead, visit, FIRST, false, o);
        } else {
            left |= ((1 << strips) - 1) << (visit * strips);
        }
    }
    left
}

/// `ROWS` rows from `row` on, of the visit's columns. If `check`, O is left as it
/// was and the result is `false` where it would not be finite.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn pv_tile<const ROWS: usize, const PIECES: usize>(
    c2: &Few<'_>,
    ahead: &mut Ahead<'_>,
    visit: usize,
    row: usize,
    check: bool,
    o: &mut [OStrip],
) -> bool {
    // Where V's halves of 128 bits interleave, four columns of the first vector of
    // 16 are followed by those eight further on.
    let low = _mm512_setr_epi32(0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
    let high = _mm512_setr_epi32(4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    let mut acc: Acc<ROWS, PIECES> = [[[_mm512_setzero_ps(); 2]; PIECES]; ROWS];
    if let Some(increment) = c2.call.increment {
        for (r, acc) in acc.iter_mut().enumerate() {
            let increment = increment[row + r];
            for (i, acc) in acc.iter_mut().enumerate() {
                let piece = &o[i * PIECE / STRIP][row + r].as_chunks().0[i % 2 * 2..];
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
    acc = accumulate(c2, &c2.p.high, column, row, &acc, ahead);
    match c2.call.precision {
        Precision::Bf16 => add_residuals(c2, column, row, &mut acc),
        Precision::Bf16x2 => acc = accumulate(c2, &c2.p.low, column, row, &acc, ahead),
    }
    if check {
        let mut wrong = 0;
        for &acc in acc.as_flattened().as_flattened() {
            wrong |= _mm512_fpclass_ps_mask::<NOT_FINITE>(acc);
        }
        if wrong != 0 {
            return false;
        }
    }
    let first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    let second = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
    for (r, acc) in acc.iter().enumerate() {
        for (i, &[a, b]) in acc.iter().enumerate() {
            let piece = &mut o[i * PIECE / STRIP][row + r].as_chunks_mut().0[i % 2 * 2..];
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
    row: usize,
    acc: &Acc<ROWS, PIECES>,
    ahead: &mut Ahead<'_>,
) -> Acc<ROWS, PIECES> {
    // A copy, which registers hold. An argument's memory would be written with every pair.
    let mut acc = *acc;
    let pairs = c2.values.len().div_ceil(2);
    assert!(row + ROWS <= PANEL_ROWS);
    for (k, p) in p.0[..pairs].iter().enumerate() {
        if row == 0 {
            ahead.step(c2.zmm);
        }
        let v: [_; PIECES] = interleaved(c2.values, k, column);
        for (acc, p) in acc.iter_mut().zip(&p[row..row + ROWS]) {
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
    row: usize,
    acc: &mut Acc<ROWS, PIECES>,
) {
    let residuals = &c2.p.residuals;
    for r in 0..ROWS {
        let v: [_; PIECES] = interleaved(c2.values, residuals.pair[row + r] as usize, column);
        let p = as_pairs(_mm512_set1_epi32(residuals.p[row + r].cast_signed()));
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
