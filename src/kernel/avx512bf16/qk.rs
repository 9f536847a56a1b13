//! C1 of panels: `S^T = K Q^T` with query rows in the lanes.
//!
//! C1 walks the query's width in chunks of 96 (the paper's baseK): the panel's chunk is 12 KiB and stays in
//! L1d while all keys of the block pass over it, and sums of 96 products round less than sums of 576.
//! Tiles reduce a few keys at a time (`docs/experiments.md`, C1).
#![allow(unsafe_code, reason = "pointer loads and stores")]
#![allow(
    clippy::needless_range_loop,
    reason = "counted loops unroll early, so that accumulators become registers"
)]

use super::common::*;
use crate::kernel::advance::Maxima;
use crate::kernel::prefetch::Spread;
use crate::tile::ascend;

/// Feature pairs of one visit to the Q panel.
const PAIRS_K: usize = ascend::BASE_K / 2;

/// [`Kernel::qk`] in register tiles of `KEYS` keys x `VECS` vectors of rows: all keys of the block over one chunk of the
/// Q panel, then over the next. The width is no constant, as that would gain nothing.
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
pub fn qk<const KEYS: usize, const VECS: usize, const GROUP: usize>(
    zmm: Zmm,
    call: &Qk<'_>,
    q: &[[u32; PANEL_ROWS]],
    s: &mut STile,
) {
    let keys = call.keys;
    let d_qk = 2 * q.len();
    let Some(&last) = keys.last() else { return };
    // A group at the reduce repeats the last key; nobody reads the copies.
    let mut rows = [last; BLOCK_KEYS];
    for (row, key) in rows.iter_mut().zip(keys) {
        *row = &key[..d_qk];
    }
    let groups = &rows.as_chunks::<KEYS>().0[..keys.len().div_ceil(KEYS)];
    // The column and the group that are prefetched.
    let (mut column, mut next) = (0, 2);
    let mut far = Spread::of(call.prefetch, groups.len() * q.chunks(PAIRS_K).len() * 3);
    let STile(scores, max) = s;
    *max = [f32::NEG_INFINITY; _];
    for (chunk, q) in q.chunks(PAIRS_K).enumerate() {
        for (group, s) in groups.iter().zip(scores.as_chunks_mut().0) {
            while next >= groups.len() {
                next -= groups.len();
                column += 2 * PAIRS_K;
            }
            let tile = KeyTile {
                zmm,
                keys: group,
                column: 2 * PAIRS_K * chunk,
                next: &groups[next],
                next_column: column,
            };
            next += 1;
            let max = (2 * (PAIRS_K * chunk + q.len()) == d_qk).then_some(&mut *max);
            tile.qk::<VECS, GROUP>(q, &mut far, s, max);
        }
    }
}

/// A group of keys, and the one that is prefetched meanwhile.
struct KeyTile<'a, const KEYS: usize> {
    zmm: Zmm,
    keys: &'a [&'a [bf16]; KEYS],
    /// Where the chunk begins.
    column: usize,
    next: &'a [&'a [bf16]; KEYS],
    /// Where the other's chunk does. Behind the last column nothing is left to prefetch.
    next_column: usize,
}

/// Pairs at a tile's reduce that its keys take a few at a time.
const LAST: usize = 8;

impl<const KEYS: usize> KeyTile<'_, KEYS> {
    /// `s[key][row] (+)= sum over pairs of k[key][pair] . q[pair][row]`.
    ///
    /// Over the last pairs `GROUP` keys go first, then as many others: scores of the former are added up and
    /// written beside products of the latter, where all at once they would hold the next tile's up. A core that does
    /// two dots a cycle needs more of them at once than that leaves.
    ///
    /// With the last chunk the sums are the scores, and `max` takes the largest of each row.
    #[inline]
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
    fn qk<const VECS: usize, const GROUP: usize>(
        &self,
        q: &[[u32; PANEL_ROWS]],
        far: &mut Spread<'_>,
        s: &mut [[f32; PANEL_ROWS]; KEYS],
        mut max: Option<&mut Maxima>,
    ) {
        const { assert!(KEYS.is_multiple_of(GROUP) && KEYS <= 3 * GROUP) };
        let mut acc = [[_mm512_setzero_ps(); VECS]; KEYS];
        // A minimum, for the compiler not to know how many: it would unroll, and bring dependent dots side by side.
        let (most, last) = q.split_at(q.len() - q.len().min(LAST));
        for (line, q) in most.chunks(LANES).enumerate() {
            // A few at a time: a core drops prefetches for which it has no slot.
            self.prefetch(2 * LANES * line);
            // Groups of wider tiles prefetch nothing else.
            if const { VECS < 3 } {
                far.step(self.zmm, Hint::L2);
            }
            let column = self.column + 2 * LANES * line;
            accumulate(q, self.keys, column, &mut acc);
        }
        // The line that the chunk ends in, where it doesn't begin with one.
        self.prefetch(2 * PAIRS_K - 1);
        let column = self.column + 2 * most.len();
        self.reduce::<VECS, GROUP, 0>(last, column, &acc, s, max.as_deref_mut());
        if KEYS > GROUP {
            self.reduce::<VECS, GROUP, 1>(last, column, &acc, s, max.as_deref_mut());
        }
        if KEYS > 2 * GROUP {
            self.reduce::<VECS, GROUP, 2>(last, column, &acc, s, max);
        }
    }

    /// The last pairs of the keys from `G * GROUP` on; adds up and stores their sums. `G` is a constant for all
    /// accumulators to be indexed by constants, as they have to be in registers.
    #[inline]
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
    fn reduce<const VECS: usize, const GROUP: usize, const G: usize>(
        &self,
        q: &[[u32; PANEL_ROWS]],
        column: usize,
        all: &[[__m512; VECS]; KEYS],
        s: &mut [[f32; PANEL_ROWS]; KEYS],
        max: Option<&mut Maxima>,
    ) {
        let mut acc = [[_mm512_setzero_ps(); VECS]; GROUP];
        for i in 0..GROUP {
            acc[i] = all[G * GROUP + i];
        }
        accumulate(q, &self.keys.as_chunks().0[G], column, &mut acc);
        let s: &mut [_; GROUP] = &mut s.as_chunks_mut().0[G];
        if self.column > 0 {
            for (acc, s) in acc.iter_mut().zip(&*s) {
                for (acc, s) in acc.iter_mut().zip(s.as_chunks().0) {
                    *acc = _mm512_add_ps(load(s), *acc);
                }
            }
        }
        for (acc, s) in acc.iter().zip(s) {
            for (&acc, s) in acc.iter().zip(s.as_chunks_mut().0) {
                store(s, acc);
            }
        }
        if let Some(max) = max {
            for (v, max) in max.as_chunks_mut().0.iter_mut().take(VECS).enumerate() {
                let mut largest = load(max);
                for acc in &acc {
                    // The second where the first is NaN.
                    largest = _mm512_max_ps(acc[v], largest);
                }
                store(max, largest);
            }
        }
    }

    /// Prefetches a line of each of the other keys: that of an element of its chunk.
    #[inline(always)]
    fn prefetch(&self, element: usize) {
        let column = (self.next_column + element).min(self.next[0].len() - 1);
        for key in self.next {
            self.zmm.prefetch(key.as_ptr().wrapping_add(column));
        }
    }
}

/// `acc[key][row] += sum over pairs of k[key][pair] . q[pair][row]`, keys from `column` on.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
fn accumulate<const KEYS: usize, const VECS: usize>(
    q: &[[u32; PANEL_ROWS]],
    keys: &[&[bf16]; KEYS],
    column: usize,
    acc: &mut [[__m512; VECS]; KEYS],
) {
    assert!(keys.iter().all(|k| column + 2 * q.len() <= k.len()));
    for (pair, q) in q.iter().enumerate() {
        let q: [__m512bh; VECS] = core::array::from_fn(|v| load_pairs(&q.as_chunks().0[v]));
        let column = column + 2 * pair;
        for (acc, k) in acc.iter_mut().zip(keys) {
            // SAFETY: column + 1 < column + 2 * q.len() for all of q, and k holds as many
            // elements, asserted above; the load needs no alignment.
            let k = unsafe { k.as_ptr().add(column).cast::<i32>().read_unaligned() };
            let k = as_pairs(_mm512_set1_epi32(k));
            for (acc, q) in acc.iter_mut().zip(q) {
                *acc = _mm512_dpbf16_ps(*acc, q, k);
            }
        }
    }
}
