//! Few rows, where memory limits or nearly so: C1, V1 and C2 of some keys, then of the next.
//!
//! Steps of 16 keys find these in L1d once more in C2. Where Q and O of more rows leave no room for that, steps have 64:
//! Q and O, which come from L2 then, come for as many. Meanwhile lines of rows to come are asked for, in the order
//! that they lie there, into L2, which on Intel's cores has the more slots for lines on their way (`docs/adr/0026`).
//!
//! | stage | register tile | streams |
//! |---|---|---|
//! | C1 | 4 keys x 1 to 4 rows or 2 keys x 5 to 8, features in the lanes; with more rows two such tiles | Q, a vector of each row in turn; K from the cache itself |
//! | V1 | up to 16 rows, 16 of a row's keys in the lanes | S and P, row by row |
//! | C2 | 1 to 4 rows x 4 vectors of 16 columns or 5 to 8 x 2; with more rows two such tiles | V from the cache itself, P by broadcast |
//!
//! Both matrix products widen a vector of BF16 into its even and its odd elements, once for all rows of a tile; so O's columns
//! lie until the task is done. Its rows lie close together: those of a panel's strips are 16 KiB apart and would share a few
//! sets of L1d.
//!
//! Of the widths only lengths depend, and rows are pointers here: all widths but MLA's share their code.
#![allow(unsafe_code, reason = "loads by way of pointers to rows")]
#![allow(
    clippy::needless_range_loop,
    reason = "counted loops unroll early, so that accumulators become registers"
)]

use core::arch::x86_64::*;

use half::bf16;

use crate::kernel::prefetch::LINE;
use crate::kernel::simd::{Simd, even, odd};
use crate::kernel::zmm::requests::{Ask, Block, Mla, Other, Requests, Widths};
use crate::kernel::zmm::stream::{self, ByRow, GROUP, KEYS};
use crate::kernel::zmm::{LANES, NOT_FINITE, Zmm};
use crate::kernel::{Left, STREAM_KEYS, Softmax, Streamed, Streams, Strips, fp32};
use crate::tile::{BLOCK_KEYS, L0a, OStrip, PANEL_ROWS, QPanel, RowState, STRIP};

/// Up to so many rows, as a panel's memory holds no more in FP32.
pub const ROWS: usize = if stream::ROWS < PANEL_ROWS / 2 {
    stream::ROWS
} else {
    PANEL_ROWS / 2
};
/// Rows of a register tile.
const TILE_ROWS: usize = 8;
/// Up to so many rows have short steps.
const SHORT_ROWS: usize = 4;
/// Vectors of keys of a step: of a short one, and of others.
const SHORT: usize = 1;
const LONG: usize = 4;
/// Keys between a step's last and the first that it asks for.
const GAP: usize = 4;
/// Lines of a strip of values.
const PIECES: usize = STRIP / LINE;

// The last step may have a single key of the block, and asks for as many as it computes on.
const _: () = assert!(STREAM_KEYS >= BLOCK_KEYS + KEYS + LONG * KEYS + GAP);
// A row's vectors are its lines, and two of FP32 when widened.
const _: () = assert!(LINE == 2 * LANES);

/// [`Kernel::pack_stream_q`](crate::kernel::Kernel::pack_stream_q).
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
pub fn pack_q(zmm: Zmm, d_qk: usize, rows: &[&[bf16]], negate: bool, panel: &mut QPanel) {
    fp32::few::pack_q(zmm, d_qk, rows, negate, panel);
}

/// [`Kernel::stream`](crate::kernel::Kernel::stream).
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
pub fn stream<const D_QK: usize, const D_V: usize>(
    zmm: Zmm,
    call: &Softmax<'_>,
    block: &Streams<'_, D_QK, D_V>,
    from: usize,
    p: &mut L0a,
    state: &mut RowState,
    o: &mut [OStrip],
) -> Streamed {
    if const { Mla::has(D_QK, D_V) } {
        Call::of(zmm, Mla, call.rows, block).stream(call, from, p, state, o)
    } else {
        let widths = Other::of(D_QK, D_V);
        Call::of(zmm, widths, call.rows, block).stream(call, from, p, state, o)
    }
}

/// [`Kernel::settle_stream`].
pub fn settle(o: &mut [OStrip], rows: usize, back: bool) {
    let strips = o.len();
    let o = o.as_flattened_mut();
    if back {
        for strip in 0..strips {
            o.copy_within(strip * PANEL_ROWS..strip * PANEL_ROWS + rows, strip * rows);
        }
    } else {
        // From the end, so that nothing is overwritten that is still to be moved.
        for strip in (0..strips).rev() {
            o.copy_within(strip * rows..(strip + 1) * rows, strip * PANEL_ROWS);
        }
    }
}

/// What all steps have.
struct Call<'a, W> {
    zmm: Zmm,
    /// As [`pack_q`] packs it.
    q: &'a [f32],
    block: Block<'a, W>,
}

impl<'a, W: Widths> Call<'a, W> {
    fn of<const D_QK: usize, const D_V: usize>(
        zmm: Zmm,
        widths: W,
        rows: usize,
        block: &Streams<'a, D_QK, D_V>,
    ) -> Self {
        let q: &[f32] = bytemuck::cast_slice(block.q.0.as_flattened());
        Self {
            zmm,
            q: &q[..rows * D_QK],
            block: Block::of(widths, block),
        }
    }

    /// All stages of the keys from one on, in steps as the rows need them.
    #[inline]
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
    fn stream(
        &self,
        call: &Softmax<'_>,
        from: usize,
        p: &mut L0a,
        state: &mut RowState,
        o: &mut [OStrip],
    ) -> Streamed {
        let o = &mut o.as_flattened_mut()[..self.block.widths.strips() * call.rows];
        if call.rows <= SHORT_ROWS {
            self.steps::<SHORT>(call, from, p, state, o)
        } else {
            self.steps::<LONG>(call, from, p, state, o)
        }
    }

    /// The same in steps of so many vectors of keys.
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
    fn steps<const VECTORS: usize>(
        &self,
        call: &Softmax<'_>,
        from: usize,
        p: &mut L0a,
        state: &mut RowState,
        o: &mut [[f32; STRIP]],
    ) -> Streamed {
        let zmm = self.zmm;
        let at_once = const { VECTORS * KEYS };
        let (mut s, mut probs) = (
            ByRow([[[0.0; KEYS]; VECTORS]; _]),
            ByRow([[[0.0; KEYS]; VECTORS]; _]),
        );
        let tile_rows = call.rows.div_ceil(call.rows.div_ceil(TILE_ROWS));
        for first in (from..call.keys).step_by(at_once) {
            let len = at_once.min(call.keys - first);
            // Whole vectors of keys: scores of those beyond count for nothing.
            let whole = len.next_multiple_of(KEYS);
            let step = Step {
                zmm,
                rows: call.rows,
                widths: self.block.widths,
                lines: self.block.widths.lines(),
                keys: &self.block.keys[first..][..whole],
                values: self.block.values[first..][..whole].as_chunks().0,
                asked: self.block.asked[first + at_once + GAP..][..whole].split_at(whole / 2),
            };
            for row in (0..call.rows).step_by(tile_rows) {
                match tile_rows.min(call.rows - row) {
                    1 if VECTORS == SHORT => step.qk::<1, 4, VECTORS>(row, self.q, &mut s),
                    2 if VECTORS == SHORT => step.qk::<2, 4, VECTORS>(row, self.q, &mut s),
                    3 if VECTORS == SHORT => step.qk::<3, 4, VECTORS>(row, self.q, &mut s),
                    5 if VECTORS == LONG => step.qk::<5, 2, VECTORS>(row, self.q, &mut s),
                    6 if VECTORS == LONG => step.qk::<6, 2, VECTORS>(row, self.q, &mut s),
                    7 if VECTORS == LONG => step.qk::<7, 2, VECTORS>(row, self.q, &mut s),
                    8 if VECTORS == LONG => step.qk::<8, 2, VECTORS>(row, self.q, &mut s),
                    _ => step.qk::<4, 4, VECTORS>(row, self.q, &mut s),
                }
            }
            softmax(zmm, call, first, len, &s, &mut probs, state);
            let increment = &state.increment[..call.rows];
            if increment.iter().any(|&n| n != 0) {
                stream::advance(zmm, increment, o);
            }
            let mut all = 0;
            for row in (0..call.rows).step_by(tile_rows) {
                match tile_rows.min(call.rows - row) {
                    1 if VECTORS == SHORT => step.pv::<1, 2, VECTORS>(row, &probs, &mut all, o),
                    2 if VECTORS == SHORT => step.pv::<2, 2, VECTORS>(row, &probs, &mut all, o),
                    3 if VECTORS == SHORT => step.pv::<3, 2, VECTORS>(row, &probs, &mut all, o),
                    5 if VECTORS == LONG => step.pv::<5, 1, VECTORS>(row, &probs, &mut all, o),
                    6 if VECTORS == LONG => step.pv::<6, 1, VECTORS>(row, &probs, &mut all, o),
                    7 if VECTORS == LONG => step.pv::<7, 1, VECTORS>(row, &probs, &mut all, o),
                    8 if VECTORS == LONG => step.pv::<8, 1, VECTORS>(row, &probs, &mut all, o),
                    _ => step.pv::<4, 2, VECTORS>(row, &probs, &mut all, o),
                }
            }
            if all != 0 {
                for (r, probs) in probs.0.iter().enumerate().take(call.rows) {
                    for (k, &prob) in probs.as_flattened().iter().enumerate().take(len) {
                        fp32::put_prob(p, k, r, prob);
                    }
                }
                return Streamed {
                    keys: first..first + len,
                    left: Left { all, tail: 0 },
                };
            }
        }
        Streamed::ALL
    }
}

/// V1: nothing is rounded.
#[inline(never)]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
fn softmax<const VECTORS: usize>(
    zmm: Zmm,
    call: &Softmax<'_>,
    first: usize,
    len: usize,
    s: &ByRow<VECTORS>,
    p: &mut ByRow<VECTORS>,
    state: &mut RowState,
) {
    let known = stream::softmax(zmm, call, first, len, s, p, state);
    stream::add_rounded(zmm, known.sums, state);
}

/// A step's keys and those to come.
struct Step<'a, W> {
    zmm: Zmm,
    /// Of Q and O.
    rows: usize,
    widths: W,
    /// Lines of a key, where the compiler doesn't see it.
    lines: usize,
    /// Each is valid for as many lines as `widths` says.
    keys: &'a [*const bf16],
    /// Each is valid for as many strips as `widths` says.
    values: &'a [[*const bf16; KEYS]],
    /// What C1 asks for, and what C2 does. These may lie anywhere.
    asked: (&'a [*const bf16], &'a [*const bf16]),
}

impl<W> Ask<1> for Step<'_, W> {
    #[inline(always)]
    fn ask(&self, [at]: &mut [*const bf16; 1]) {
        self.zmm.prefetch_far(*at);
        *at = at.wrapping_add(LINE);
    }
}

impl<W: Widths> Step<'_, W> {
    /// C1: scores of the `N` rows from `row` on, `K` keys at a time; for each pair of those a row to come is asked for.
    #[inline(never)]
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
    fn qk<const N: usize, const K: usize, const VECTORS: usize>(
        &self,
        row: usize,
        q: &[f32],
        s: &mut ByRow<VECTORS>,
    ) {
        const { assert!(K.is_multiple_of(2) && GROUP.is_multiple_of(K)) };
        let (zmm, rows) = (self.zmm, self.rows);
        assert!(row + N <= rows && q.len() == rows * self.lines * LINE);
        assert!(self.lines <= self.widths.lines());
        for (tile, keys) in self.keys.as_chunks::<K>().0.iter().enumerate() {
            // One of these, or two.
            let asked = [tile * (K / 2), (tile + 1) * (K / 2) - 1].map(|i| self.asked.0[i]);
            let mut acc = [[zmm.splat(0.0); N]; K];
            for line in 0..self.lines {
                for asked in &asked[..K / 2] {
                    zmm.prefetch_far(asked.wrapping_add(line * LINE));
                }
                let mut pairs = [zmm.splat_i32(0); K];
                for k in 0..K {
                    // SAFETY: a key is valid for so many lines, by the assertion; no alignment needed.
                    pairs[k] = unsafe { _mm512_loadu_si512(keys[k].add(line * LINE).cast()) };
                }
                for half in 0..2 {
                    let mut key = [zmm.splat(0.0); K];
                    for k in 0..K {
                        key[k] = if half == 0 {
                            even(zmm, pairs[k])
                        } else {
                            odd(zmm, pairs[k])
                        };
                    }
                    for r in 0..N {
                        let at = ((2 * line + half) * rows + row + r) * LANES;
                        // SAFETY: q has two vectors a line of all rows, by the assertion; no alignment needed.
                        let q = unsafe { _mm512_loadu_ps(q.as_ptr().add(at)) };
                        for k in 0..K {
                            acc[k][r] = zmm.mul_add(key[k], q, acc[k][r]);
                        }
                    }
                }
            }
            // As many rows at once as four sums allow.
            for r in (0..N).step_by(GROUP / K) {
                let mut four = [zmm.splat(0.0); GROUP];
                for (i, four) in four.iter_mut().enumerate() {
                    if r + i / K < N {
                        *four = acc[i % K][r + i / K];
                    }
                }
                let sums = zmm.sum_lanes(four);
                for (s, sums) in s.0[row..][r..N].iter_mut().zip(sums.as_chunks::<K>().0) {
                    s.as_flattened_mut().as_chunks_mut().0[tile] = *sums;
                }
            }
        }
    }

    /// C2: the `N` rows of O from `row` on, strip by strip, `V` pairs of vectors at a time. Leaves the strips that are `left`,
    /// and adds those to them in which values aren't finite. Such a V makes no row's O finite, since 0 times it is NaN: the
    /// first row of all tells where to look.
    #[inline(never)]
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
    fn pv<const N: usize, const V: usize, const VECTORS: usize>(
        &self,
        row: usize,
        p: &ByRow<VECTORS>,
        left: &mut Strips,
        o: &mut [[f32; STRIP]],
    ) {
        const { assert!(V == PIECES || 2 * V == PIECES) };
        assert!(o.len() == self.widths.strips() * self.rows);
        let zmm = self.zmm;
        let parts = const { PIECES / V };
        let p: &[_; N] = &p.0[row..].as_chunks().0[0];
        // With two tiles of rows the second asks for the same again, which costs next to nothing.
        let times = parts * self.widths.strips();
        let requests = Requests::of([self.asked.1], self.widths, times);
        assert!(self.values.len() <= VECTORS);
        for (strip, o) in o.chunks_mut(self.rows).enumerate() {
            if *left >> strip & 1 != 0 {
                continue;
            }
            let o: &mut [[[[f32; LANES]; 2]; PIECES]; N] =
                &mut bytemuck::cast_slice_mut(&mut o[row..]).as_chunks_mut().0[0];
            // Where another part follows.
            let mut before = [[[[0.0; LANES]; 2]; V]; N];
            for part in 0..parts {
                let mut acc = [[[zmm.splat(0.0); 2]; V]; N];
                for r in 0..N {
                    for i in 0..V {
                        for h in 0..2 {
                            acc[r][i][h] = zmm.load(&o[r][part * V + i][h]);
                            if part + 1 < parts {
                                zmm.store(acc[r][i][h], &mut before[r][i][h]);
                            }
                        }
                    }
                }
                for (vector, values) in self.values.iter().enumerate() {
                    let time = (strip * parts + part) * self.values.len() + vector;
                    let mut lines = requests.time(time, const { KEYS / (PIECES / V) }, self);
                    for k in 0..KEYS {
                        if k.is_multiple_of(parts) {
                            lines.ask(self);
                        }
                        let mut v = [[zmm.splat(0.0); 2]; V];
                        for i in 0..V {
                            let column = strip * STRIP + (part * V + i) * LINE;
                            // SAFETY: values have the columns of all strips, of which this is one by the assertion; no
                            // alignment needed.
                            let pairs = unsafe { _mm512_loadu_si512(values[k].add(column).cast()) };
                            v[i] = [even(zmm, pairs), odd(zmm, pairs)];
                        }
                        for r in 0..N {
                            let p = zmm.splat(p[r][vector][k]);
                            for i in 0..V {
                                for h in 0..2 {
                                    acc[r][i][h] = zmm.mul_add(p, v[i][h], acc[r][i][h]);
                                }
                            }
                        }
                    }
                }
                let mut wrong = 0;
                if row == 0 {
                    for v in acc[0].as_flattened() {
                        wrong |= _mm512_fpclass_ps_mask::<NOT_FINITE>(*v);
                    }
                    // SAFETY: values have the columns of all strips, of which this is one by the assertion.
                    if wrong != 0 && unsafe { stream::finite(self.values, strip) } {
                        wrong = 0;
                    }
                }
                for r in 0..N {
                    for i in 0..V {
                        for h in 0..2 {
                            if wrong == 0 {
                                zmm.store(acc[r][i][h], &mut o[r][part * V + i][h]);
                            } else if part > 0 {
                                o[r][i][h] = before[r][i][h];
                            }
                        }
                    }
                }
                if wrong != 0 {
                    *left |= 1 << strip;
                    break;
                }
            }
        }
    }
}
