//! C1 and C2 for up to [`FEW_ROWS`] rows in FP32 (C2 only for backends without streams), where memory limits as much as the
//! multiplications do: nothing is packed but Q and P, K and V come from where they lie
//! and are widened in registers, and meanwhile memory is asked for rows to come.
//!
//! | kernel | register tile (32 registers; 16) |
//! |---|---|
//! | C1 | 8 keys x 1 or 2 rows, 5 x 3, 4 x 4, 3 x 5, 2 x 6 to 8 (8 x 1, 4 x 2, 3 x 3, 2 x 4 or 5, 1 x 6 to 8), one vector each |
//! | C2 | 1 row x 8 pairs of vectors, 2 or 3 x 4, 4 to 6 x 2, 7 or 8 x 1 (1 or 2 x 2, 3 to 6 x 1, 7 and 8 in two) |
//!
//! C1 has features in the lanes, C2 columns; both work on a row's even and odd elements
//! apart, as they come out of pairs; so O's columns lie until the task is done.

use half::bf16;

use super::super::prefetch::Ahead;
use super::super::simd::{Simd, even, lanes, lanes_mut, odd, split};
use super::super::{Left, Pv, Rows, Strips, scalar};
use crate::tile::{L0a, L0b, MAX_D_V, OStrip, PANEL_ROWS, QPanel, STRIP, STile};

/// Up to so many rows these kernels beat those for panels.
pub const FEW_ROWS: usize = 8;

// A panel's memory, pairs of `PANEL_ROWS` rows, holds so many rows as FP32.
const _: () = assert!(FEW_ROWS <= PANEL_ROWS / 2);

/// Vectors of one query row, even and odd ones in turn.
const fn vectors<S: Simd>(d_qk: usize) -> usize {
    d_qk / S::LANES
}

/// Q as C1 reads it here, widened, from the panel's start: of each row a vector, in turn, then the next ones.
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

/// C1 of up to [`FEW_ROWS`] rows, as [`pack_q`] packed them.
#[inline(always)]
pub fn qk<S: Simd>(
    simd: S,
    q: &[f32],
    rows: usize,
    keys: &Rows<'_>,
    next: &[&[bf16]],
    s: &mut STile,
) {
    macro_rules! tiles {
        ($($rows:literal: $many:literal $few:literal,)*) => {
            match rows {
                $($rows => if S::REGISTERS >= 32 {
                    qk_rows::<S, $rows, $many>(simd, q, keys, next, s);
                } else {
                    qk_rows::<S, $rows, $few>(simd, q, keys, next, s);
                })*
                _ => {}
            }
        };
    }
    tiles!(1: 8 8, 2: 8 4, 3: 5 3, 4: 4 2, 5: 3 2, 6: 2 1, 7: 2 1, 8: 2 1,);
}

#[inline(always)]
fn qk_rows<S: Simd, const ROWS: usize, const KEYS: usize>(
    simd: S,
    q: &[f32],
    keys: &Rows<'_>,
    next: &[&[bf16]],
    s: &mut STile,
) {
    let keys = keys.as_slice();
    let d_qk = q.len() / ROWS;
    let steps = vectors::<S>(d_qk) / 2;
    let mut ahead = Ahead::of(next, keys.len().div_ceil(KEYS) * steps);
    let q = lanes::<S>(q);
    assert!(q.len() >= ROWS * 2 * steps && d_qk >= steps * 2 * S::LANES);
    let zero = simd.splat(0.0);
    for (group, s) in s.0.chunks_mut(KEYS).enumerate() {
        let first = group * KEYS;
        if first >= keys.len() {
            break;
        }
        // A group at the end repeats its last key; nobody reads the copies.
        let mut rows: [&[bf16]; KEYS] = [&[]; KEYS];
        for (i, row) in rows.iter_mut().enumerate() {
            *row = &keys[(first + i).min(keys.len() - 1)][..d_qk];
        }
        // Counted loops and indices, so that the accumulators stay in registers; Q's
        // vectors are read once for all keys.
        let mut acc = [[zero; ROWS]; KEYS];
        for v in 0..steps {
            ahead.step_far(simd);
            for half in 0..2 {
                let mut queries = [zero; ROWS];
                for r in 0..ROWS {
                    let at = (2 * v + half) * ROWS + r;
                    // SAFETY: v < steps, and q has 2 * steps vectors of ROWS rows, asserted above.
                    queries[r] = simd.load(unsafe { q.get_unchecked(at) });
                }
                for i in 0..KEYS {
                    let at = v * 2 * S::LANES;
                    // SAFETY: v < steps, and a row has d_qk elements, which are steps times
                    // 2 * LANES at least, by the slicing above and the definition of steps.
                    let pairs = unsafe { rows[i].get_unchecked(at..at + 2 * S::LANES) };
                    let pairs = simd.load_pairs(pairs);
                    let key = if half == 0 {
                        even(simd, pairs)
                    } else {
                        odd(simd, pairs)
                    };
                    for r in 0..ROWS {
                        acc[i][r] = simd.mul_add(key, queries[r], acc[i][r]);
                    }
                }
            }
        }
        let mut sums = [0.0; 32];
        for (acc, sums) in acc.as_flattened().chunks(4).zip(sums.as_chunks_mut().0) {
            let mut four = [zero; 4];
            for (four, acc) in four.iter_mut().zip(acc) {
                *four = *acc;
            }
            *sums = simd.sum_lanes(four);
        }
        for (sums, s) in sums.chunks(ROWS).zip(s) {
            s[..ROWS].copy_from_slice(sums);
        }
    }
}

/// C2 of up to [`FEW_ROWS`] rows: [`super::super::Kernel::pv_direct`].
#[inline(always)]
pub fn pv<S: Simd>(
    simd: S,
    call: &Pv<'_>,
    p: &L0a,
    values: &Rows<'_>,
    scratch: &mut L0b,
    o: &mut [OStrip],
) -> Left {
    let values = values.as_slice();
    let rows = scratch[0].0.as_flattened_mut().as_chunks_mut();
    let mut c2 = Few {
        simd,
        call,
        values,
        p,
        drafts: rows.0.as_chunks_mut().0,
    };
    let d_v = o.len() * STRIP;
    // As many pairs of vectors as there are registers for, and columns.
    macro_rules! tiles {
        ($($rows:literal = $many_first:literal + $many_then:literal: $many:literal $fewer:literal,
           $first:literal + $then:literal: $few:literal;)*) => {
            match call.rows {
                $($rows => if S::REGISTERS < 32 {
                    c2.rows::<$first, $then, $few>(o)
                } else if d_v.is_multiple_of(2 * $many * S::LANES) {
                    c2.rows::<$many_first, $many_then, $many>(o)
                } else {
                    c2.rows::<$many_first, $many_then, $fewer>(o)
                })*
                _ => Strips::MAX,
            }
        };
    }
    let all = tiles!(
        1 = 1 + 0: 8 2, 1 + 0: 2;
        2 = 2 + 0: 4 2, 2 + 0: 2;
        3 = 3 + 0: 4 2, 3 + 0: 1;
        4 = 4 + 0: 2 2, 4 + 0: 1;
        5 = 5 + 0: 2 2, 5 + 0: 1;
        6 = 6 + 0: 2 2, 6 + 0: 1;
        7 = 7 + 0: 1 1, 4 + 3: 1;
        8 = 8 + 0: 1 1, 4 + 4: 1;
    );
    Left { all, tail: 0 }
}

/// O of a strip, before it is known to be finite.
type Draft = [[f32; STRIP]; FEW_ROWS];

/// What all tiles of C2 share.
struct Few<'a, S> {
    simd: S,
    call: &'a Pv<'a>,
    values: &'a [&'a [bf16]],
    p: &'a L0a,
    drafts: &'a mut [Draft],
}

impl<S: Simd> Few<'_, S> {
    /// `FIRST` rows and then `THEN` more, `PIECES` pairs of vectors at a time.
    #[inline(always)]
    fn rows<const FIRST: usize, const THEN: usize, const PIECES: usize>(
        &mut self,
        o: &mut [OStrip],
    ) -> Strips {
        let columns = PIECES * 2 * S::LANES;
        // Whole visits, and whole strips.
        let strips = columns.div_ceil(STRIP);
        let visits = o.len() * STRIP / columns;
        let ahead = &mut Ahead::of(self.call.next, visits * self.call.keys.div_ceil(2));
        let mut left = 0;
        for (chunk, o) in o.chunks_mut(strips).enumerate() {
            let mut finite = true;
            for column in (0..strips * STRIP).step_by(columns) {
                let from = chunk * strips * STRIP + column;
                // A V that isn't finite makes no row's O finite, since 0 times it is NaN.
                finite &= self.tile::<FIRST, PIECES>(0, from, column, o, ahead);
                if THEN > 0 {
                    self.tile::<THEN, PIECES>(FIRST, from, column, o, ahead);
                }
            }
            let finite = finite || {
                let columns = chunk * strips * STRIP..(chunk + 1) * strips * STRIP;
                scalar::finite(self.values.iter().copied(), &columns)
            };
            if finite {
                for (o, draft) in o.iter_mut().zip(&*self.drafts) {
                    o[..FIRST + THEN].copy_from_slice(&draft[..FIRST + THEN]);
                }
            } else {
                left |= ((1 << strips) - 1) << (chunk * strips);
            }
        }
        left
    }

    /// `ROWS` rows from `row` on, of the columns from `from` on, which are those from
    /// `column` on of the strips `o`. Leaves them in the drafts and tells whether all are
    /// finite.
    #[inline(always)]
    fn tile<const ROWS: usize, const PIECES: usize>(
        &mut self,
        row: usize,
        from: usize,
        column: usize,
        o: &[OStrip],
        ahead: &mut Ahead<'_>,
    ) -> bool {
        static ZEROS: [bf16; MAX_D_V] = [bf16::ZERO; _];
        let simd = self.simd;
        let zero = simd.splat(0.0);
        // The strip, and the vector in it, where a piece begins.
        let place = |i: usize| {
            let column = column + i * 2 * S::LANES;
            (column / STRIP, column % STRIP / S::LANES)
        };
        let mut acc = [[[zero; 2]; PIECES]; ROWS];
        if let Some(increment) = self.call.increment {
            // By way of the drafts: the accumulators must be indexed by constants alone to
            // stay in registers, and the rescaling is too long to be unrolled.
            for (r, &increment) in increment[row..row + ROWS].iter().enumerate() {
                for i in 0..PIECES {
                    let (strip, v) = place(i);
                    let o = &lanes::<S>(&o[strip][row + r])[v..v + 2];
                    let draft = &mut lanes_mut::<S>(&mut self.drafts[strip][row + r])[v..v + 2];
                    for (o, draft) in o.iter().zip(draft) {
                        let o = simd.load(o);
                        // Most blocks don't move the reference: nothing to add then.
                        let moved = if increment == 0 {
                            o
                        } else {
                            simd.add_increment(o, increment)
                        };
                        simd.store(moved, draft);
                    }
                }
            }
            for r in 0..ROWS {
                for i in 0..PIECES {
                    let (strip, v) = place(i);
                    let o = lanes::<S>(&self.drafts[strip][row + r]);
                    acc[r][i] = [simd.load(&o[v]), simd.load(&o[v + 1])];
                }
            }
        }
        let end = from + PIECES * 2 * S::LANES;
        assert!(row + ROWS <= FEW_ROWS && end <= MAX_D_V);
        let p = self.p.whole().into_iter().flatten();
        for (values, p) in self.values.chunks(2).zip(p) {
            if row == 0 {
                ahead.step_far(simd);
            }
            let odd_value = values
                .get(1)
                .map_or(&ZEROS[from..end], |row| &row[from..end]);
            let pair = [odd_value, &values[0][from..end]];
            for h in 0..2 {
                let p = &p[h][row..row + ROWS];
                for i in 0..PIECES {
                    let pairs = simd.load_pairs(&pair[h][i * 2 * S::LANES..]);
                    let (even, odd) = (even(simd, pairs), odd(simd, pairs));
                    for r in 0..ROWS {
                        let p = simd.splat(p[r]);
                        acc[r][i][0] = simd.mul_add(p, even, acc[r][i][0]);
                        acc[r][i][1] = simd.mul_add(p, odd, acc[r][i][1]);
                    }
                }
            }
        }
        // What isn't finite leaves NaN.
        let mut wrong = zero;
        for r in 0..ROWS {
            for i in 0..PIECES {
                let [even, odd] = acc[r][i];
                wrong = simd.add(wrong, simd.sub(even, even));
                wrong = simd.add(wrong, simd.sub(odd, odd));
                let (strip, v) = place(i);
                let out = lanes_mut::<S>(&mut self.drafts[strip][row + r]);
                simd.store(even, &mut out[v]);
                simd.store(odd, &mut out[v + 1]);
            }
        }
        simd.sum_lanes([wrong, zero, zero, zero])[0] == 0.0
    }
}
