//! Very few rows, where memory limits: C1, V1 and C2 of some keys, then of the next.
//!
//! What memory delivers must not wait for anything, so 16 keys come to L1d once and stay there until C2 is done
//! with them: a core has few slots for lines on their way, and those from L2 would take them from those from
//! memory. In all of C1 and C2, lines of rows to come are asked for one after the other, in the order that they lie
//! there, each with work before the next (C2 of fewer than 512 columns has too few tiles of dots for that, and asks for several
//! at once); and once more a few keys later, since a core drops what it has no slot for (`docs/adr/0026`).
//!
//! On Intel's cores and Zen 4's requests to L1d keep its few slots for as long as memory takes: there each line is asked for
//! into L2; on Intel's once, as they drop nothing, on Zen 4's twice or three times. With 5 rows and more (on Zen 4 with 4), whose Q
//! and O leave keys little room in L1d in any case, steps have 64 keys there. On cores that do two dots a cycle 5 rows and more go
//! through [`lanes`].
//!
//! Intel's cores do multiply-adds at twice the rate of dots. There C1 of 2 to 4 rows, with MLA's widths, widens keys, and so does C2
//! unless P is in two parts. They have the bits of dots but where those make zeros of subnormal numbers ([`widens`]).
//!
//! | stage | register tile | streams |
//! |---|---|---|
//! | C1 | 4 keys x 1 to 4 rows, features in the lanes; with more rows two such tiles | Q row-major, K from the cache itself |
//! | V1 | up to 8 rows, 16 of a row's keys in the lanes | S, and P by row |
//! | C2 | 1 to 4 rows x 4 vectors of 16 columns; with more rows two such tiles | V from the cache itself, P by broadcast |
//!
//! Meanwhile O's rows lie close together, as those of a panel's strips are 16 KiB apart and would share a few sets of
//! L1d, and their columns as V's halves interleave.

use core::ops::Range;

use super::few::{self, PIECES, deinterleave, interleave, interleaved};
use super::lanes;
use super::*;
use crate::kernel::prefetch::{Asking, LINE};
use crate::kernel::zmm::requests::{self, Ask, Block, Lines, Mla, Other, Requests, Widths};
use crate::kernel::zmm::stream::{self, ByRow, GROUP, KEYS, Known};
use crate::kernel::{STREAM_KEYS, Streamed, Streams};
use crate::problem::Rescale;

/// Up to so many rows.
pub(super) const ROWS: usize = 8;
/// Rows of a register tile.
pub(super) const TILE_ROWS: usize = 4;
/// Pairs of a vector of keys.
const PAIRS: usize = KEYS / 2;
/// Vectors of keys of a step: of a short one, and of others.
const SHORT: usize = 1;
const LONG: usize = 4;
/// Keys between a step's last and the first that it asks for: where that is into L1d, with more those at hand would leave it.
const GAP: usize = 4;
/// Keys between a long step's first and the first that it asks for, where a core drops requests: C1 takes keys twice as fast as it asks
/// for others, so that its last ones are just behind those.
const LEAD: usize = LONG * KEYS / 2 + 8;
/// Before that it asks for a line of one in so many rows, which have one in each page of 4 KiB, so that pages are looked up
/// side by side. Requests wait for that one after the other.
const PAGE_ROWS: usize = 3;
/// Times that it asks for a line, at most.
const ASKS: usize = 3;
/// And it asks once or twice more for those that lie so many before, where a core drops requests.
const AGAIN: [usize; ASKS] = [0, 6, 12];

// The last step may have a single key of the block, and asks for as many as it computes on.
const _: () = assert!(STREAM_KEYS >= BLOCK_KEYS + KEYS + LONG * KEYS + GAP);
const _: () = assert!(AGAIN[ASKS - 1] <= KEYS + GAP && KEYS + GAP <= LEAD);

/// P of a step, as C2 takes it.
struct Probs<const V: usize> {
    /// As V1 computes it.
    whole: ByRow<V>,
    /// Rounded, row by row, and what that took.
    parts: [[[[u32; PAIRS]; V]; ROWS]; 2],
    /// Rounded, in FP32, where C2 has multiply-adds.
    rounded: ByRow<V>,
    /// Parts that count.
    len: usize,
    /// The rows of whose largest that counts too.
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

    /// A row's, as other kernels have it.
    fn spread(&self, r: usize, to: &mut Residuals) {
        to.pair[r] = u32::try_from(self.key / 2).unwrap_or(0);
        // A BF16's bits are the upper half of its FP32's.
        to.p[r] = self.p.to_bits() >> 16 << (16 * (self.key % 2));
    }
}

/// [`Kernel::stream`].
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
pub(super) fn stream<const D_QK: usize, const D_V: usize>(
    kernel: Avx512Bf16,
    call: &Softmax<'_>,
    block: &Streams<'_, D_QK, D_V>,
    from: usize,
    p: &mut L0a,
    state: &mut RowState,
    o: &mut [OStrip],
) -> Streamed {
    if const { Mla::has(D_QK, D_V) } {
        of_widths(kernel, Mla, call, block, from, p, state, o)
    } else {
        of_widths(kernel, Other::of(D_QK, D_V), call, block, from, p, state, o)
    }
}

/// The same of such widths.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
#[expect(clippy::too_many_arguments, reason = "called twice, with other types")]
fn of_widths<W: Widths, const D_QK: usize, const D_V: usize>(
    kernel: Avx512Bf16,
    widths: W,
    call: &Softmax<'_>,
    block: &Streams<'_, D_QK, D_V>,
    from: usize,
    p: &mut L0a,
    state: &mut RowState,
    o: &mut [OStrip],
) -> Streamed {
    if kernel.shares_lanes(call.rows) {
        let q = block.q.0.as_flattened();
        let o = &mut o.as_flattened_mut()[..widths.strips() * call.rows];
        let block = Block::of(widths, block);
        return lanes::stream(kernel, &block, q, call, from, p, state, o);
    }
    Call::of(kernel.zmm, widths, call.rows, block).stream(kernel.asking, call, from, p, state, o)
}

/// Whether so many rows of such a width have multiply-adds of widened keys, with the bits of dots (subnormal numbers apart): on
/// Intel's cores, whose multiply-adds are twice as fast. With one row it would gain nothing.
const fn widens(asking: Asking, rows: usize, d_qk: usize) -> bool {
    matches!(asking, Asking::L2) && rows >= 2 && rows <= TILE_ROWS && d_qk == MAX_D_QK
}

/// [`Kernel::pack_stream_q`]: row-major, from the panel's start; and behind it, where C1 takes those, the same in FP32: of each line
/// all rows, of a row's the numbers of even index and then those of odd index.
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
pub(super) fn pack_q<const D_QK: usize>(
    kernel: Avx512Bf16,
    rows: &[&[bf16]],
    negate: bool,
    panel: &mut QPanel,
) {
    if kernel.shares_lanes(rows.len()) {
        return lanes::pack_q(D_QK, rows, negate, panel);
    }
    few::pack_q::<D_QK>(rows, negate, panel);
    if widens(kernel.asking, rows.len(), D_QK) {
        let (q, wide) = panel
            .0
            .as_flattened_mut()
            .split_at_mut(rows.len() * D_QK / 2);
        let wide: &mut [f32] = bytemuck::cast_slice_mut(wide);
        let wide = wide.as_chunks_mut().0.as_chunks_mut::<2>().0;
        for (r, q) in q.chunks(D_QK / 2).enumerate() {
            for (line, q) in q.as_chunks().0.iter().enumerate() {
                let q = simd::split(kernel.zmm, from_pairs(load_pairs(q)));
                let [even, odd] = &mut wide[line * rows.len() + r];
                store(even, q[0]);
                store(odd, q[1]);
            }
        }
    }
}

/// What all steps have.
struct Call<'a, W> {
    zmm: Zmm,
    q: &'a [u32],
    /// The same as [`pack_q`] widens it, or what lies there.
    wide: &'a [f32],
    block: Block<'a, W>,
}

impl<'a, W: Widths> Call<'a, W> {
    fn of<const D_QK: usize, const D_V: usize>(
        zmm: Zmm,
        widths: W,
        rows: usize,
        block: &Streams<'a, D_QK, D_V>,
    ) -> Self {
        const { assert!(D_QK.is_multiple_of(2 * LINE)) };
        Self {
            zmm,
            q: &block.q.0.as_flattened()[..rows * D_QK / 2],
            wide: bytemuck::cast_slice(
                &block.q.0.as_flattened()[rows * D_QK / 2..][..rows.min(TILE_ROWS) * D_QK],
            ),
            block: Block::of(widths, block),
        }
    }

    /// All stages of the keys from one on, in steps as the rows need them and as memory is asked.
    #[inline]
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
    fn stream(
        &self,
        asking: Asking,
        call: &Softmax<'_>,
        from: usize,
        p: &mut L0a,
        state: &mut RowState,
        o: &mut [OStrip],
    ) -> Streamed {
        let o = &mut o.as_flattened_mut()[..self.block.widths.strips() * call.rows];
        use Asking::{L1dTwice, L2, L2Twice};
        match (asking, call.rows) {
            (L1dTwice, ..=TILE_ROWS) => self.steps::<1, SHORT, false, 2>(call, from, p, state, o),
            (L2Twice, ..TILE_ROWS) if W::MLA => {
                self.steps::<1, SHORT, true, 3>(call, from, p, state, o)
            }
            (L2Twice, TILE_ROWS) if W::MLA => {
                self.steps::<1, LONG, true, 2>(call, from, p, state, o)
            }
            (L2Twice, _) if W::MLA => self.steps::<2, LONG, true, 2>(call, from, p, state, o),
            (L2, ..=TILE_ROWS) | (_, ..TILE_ROWS) => {
                self.steps::<1, SHORT, true, 1>(call, from, p, state, o)
            }
            (_, TILE_ROWS) => self.steps::<1, LONG, true, 1>(call, from, p, state, o),
            (_, _) => self.steps::<2, LONG, true, 1>(call, from, p, state, o),
        }
    }

    /// The same in steps of so many vectors of keys and over so many tiles of rows. With `TO_L2` lines to come are asked
    /// into L2 alone; each so many `TIMES`.
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
    fn steps<const TILES: usize, const VECTORS: usize, const TO_L2: bool, const TIMES: usize>(
        &self,
        call: &Softmax<'_>,
        from: usize,
        p: &mut L0a,
        state: &mut RowState,
        o: &mut [[f32; STRIP]],
    ) -> Streamed {
        let (zmm, rows) = (self.zmm, call.rows);
        let at_once = const { VECTORS * KEYS };
        let lead = const {
            if VECTORS == LONG && TIMES > 1 {
                LEAD
            } else {
                VECTORS * KEYS + GAP
            }
        };
        let mut s = ByRow([[[0.0; KEYS]; VECTORS]; _]);
        let mut probs = Probs {
            whole: ByRow([[[0.0; KEYS]; VECTORS]; _]),
            parts: [[[[0; PAIRS]; VECTORS]; ROWS]; 2],
            rounded: ByRow([[[0.0; KEYS]; VECTORS]; _]),
            len: if call.precision == Precision::Bf16x2 {
                2
            } else {
                1
            },
            carried: 0,
            residuals: [Residual::NONE; _],
        };
        let tile_rows = rows.div_ceil(TILES);
        for first in (from..call.keys).step_by(at_once) {
            let len = at_once.min(call.keys - first);
            // Whole vectors of keys: scores of those beyond count for nothing.
            let whole = len.next_multiple_of(KEYS);
            let asked = first + lead;
            let step = Step::<W, TILES, TO_L2, TIMES> {
                zmm,
                rows,
                widths: self.block.widths,
                half_lines: self.block.widths.lines() / 2,
                pairs: PAIRS,
                keys: &self.block.keys[first..][..whole],
                values: self.block.values[first..][..whole].as_chunks().0,
                asked: AGAIN
                    .map(|before| asked - before)
                    .map(|from| self.block.asked[from..][..whole].split_at(whole / 2)),
            };
            if const { VECTORS == LONG && TIMES > 1 } {
                for row in self.block.asked[asked..][..whole].iter().step_by(PAGE_ROWS) {
                    zmm.prefetch_far(*row);
                }
            }
            // With two tiles group by group, as both need its keys.
            let groups = whole / GROUP;
            let some = if TILES == 1 { groups } else { 1 };
            for group in (0..groups).step_by(some) {
                for tile in 0..TILES {
                    let row = tile * tile_rows;
                    let group = group..group + some;
                    match tile_rows.min(rows - row) {
                        1 if const { TILES == 1 && VECTORS == SHORT } => {
                            step.qk::<1, VECTORS>(group, row, self.q, self.wide, &mut s)
                        }
                        2 if const { TILES == 2 || VECTORS == SHORT } => {
                            step.qk::<2, VECTORS>(group, row, self.q, self.wide, &mut s)
                        }
                        3 if const { TILES == 2 || VECTORS == SHORT } => {
                            step.qk::<3, VECTORS>(group, row, self.q, self.wide, &mut s)
                        }
                        _ => step.qk::<4, VECTORS>(group, row, self.q, self.wide, &mut s),
                    }
                }
            }
            let wide = const { Step::<W, TILES, TO_L2, TIMES>::WIDENS };
            softmax(zmm, call, first, len, &s, wide, state, &mut probs);
            if state.increment[..rows].iter().any(|&n| n != 0) {
                stream::advance(zmm, &state.increment[..rows], o);
            }
            let mut all = 0;
            for tile in 0..TILES {
                let row = tile * tile_rows;
                match tile_rows.min(rows - row) {
                    1 if const { TILES == 1 && VECTORS == SHORT } => {
                        step.pv::<1, VECTORS>(row, &probs, &mut all, o)
                    }
                    2 if const { TILES == 2 || VECTORS == SHORT } => {
                        step.pv::<2, VECTORS>(row, &probs, &mut all, o)
                    }
                    3 if const { TILES == 2 || VECTORS == SHORT } => {
                        step.pv::<3, VECTORS>(row, &probs, &mut all, o)
                    }
                    _ => step.pv::<4, VECTORS>(row, &probs, &mut all, o),
                }
            }
            if all != 0 {
                probs.spread(rows, p);
                return Streamed {
                    keys: first..first + len,
                    left: Left { all, tail: 0 },
                };
            }
        }
        Streamed::ALL
    }
}

/// [`Kernel::settle_stream`].
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
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
struct Step<'a, W, const TILES: usize, const TO_L2: bool, const TIMES: usize> {
    zmm: Zmm,
    /// Of Q and O.
    rows: usize,
    widths: W,
    /// Half of the lines of a key, where the compiler doesn't see it.
    half_lines: usize,
    /// Pairs of a vector of keys, hidden from the compiler as well.
    pairs: usize,
    /// Each is valid for as many lines as `widths` says.
    keys: &'a [*const bf16],
    /// Each is valid for as many strips as `widths` says.
    values: &'a [[*const bf16; KEYS]],
    /// What C1 asks for, and what C2 does; and closer ones, that were asked for before. These may lie anywhere.
    asked: [(&'a [*const bf16], &'a [*const bf16]); ASKS],
}

impl<W: Widths, const TILES: usize, const TO_L2: bool, const TIMES: usize>
    Step<'_, W, TILES, TO_L2, TIMES>
{
    /// Whether several rows have multiply-adds: where [`widens`] holds, with MLA's widths (others are asked so on Zen 4 as well).
    const WIDENS: bool = W::MLA && TILES == 1 && TO_L2 && TIMES == 1;

    /// C1 of a tile, one of `TILES`: scores of the `N` rows from `row` on over groups of keys.
    #[inline(never)]
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
    fn qk<const N: usize, const V: usize>(
        &self,
        groups: Range<usize>,
        row: usize,
        q: &[u32],
        wide: &[f32],
        s: &mut ByRow<V>,
    ) {
        let (zmm, rows) = (self.zmm, self.rows);
        let pairs = self.widths.lines() * LANES;
        assert!(q.len() == rows * pairs && self.half_lines <= self.widths.lines() / 2);
        let q = &q[row * pairs..][..N * pairs];
        debug_assert!(!Self::WIDENS || row == 0);
        let wide = if Self::WIDENS {
            &wide[..2 * N * pairs]
        } else {
            &[]
        };
        // A group asks for two rows to come: where there are two tiles, each for one of them.
        const { assert!(requests::ROWS == 2 * (KEYS / GROUP)) };
        let second = usize::from(row > 0);
        for group in groups {
            let keys: &[_; GROUP] = &self.keys.as_chunks().0[group];
            let mut acc = [[_mm512_setzero_ps(); N]; GROUP];
            for half in 0..2 {
                let mut asked = self.asked.map(|rows| {
                    if TILES == 1 {
                        rows.0[2 * group + half]
                    } else {
                        rows.0[2 * group + second].wrapping_add(half * self.half_lines * LINE)
                    }
                });
                // Unrolled, requests would be moved together, and Q to the stack.
                for i in 0..self.half_lines {
                    let v = half * self.half_lines + i;
                    if Self::WIDENS && N > 1 {
                        let mut wide_keys = [[_mm512_setzero_ps(); 2]; GROUP];
                        for k in 0..GROUP {
                            // SAFETY: a key is valid for as many lines as `widths` says, and v is one of them by the assertion;
                            // no alignment needed.
                            let key = unsafe { _mm512_loadu_si512(keys[k].add(v * LINE).cast()) };
                            wide_keys[k] = simd::split(zmm, key);
                        }
                        // As a dot adds: the odd product first.
                        for half in [1, 0] {
                            acc[0][0] = zmm.prefetch_between(asked[0], acc[0][0]);
                            asked[0] = asked[0].wrapping_add(LINE);
                            for r in 0..N {
                                // SAFETY: `wide` has two vectors of each of N rows for each line of a key, by the slicing above, and v is
                                // one of those lines, by the assertion; no alignment needed.
                                let q = unsafe {
                                    _mm512_loadu_ps(
                                        wide.as_ptr().add(((v * N + r) * 2 + half) * LANES),
                                    )
                                };
                                for k in 0..GROUP {
                                    acc[k][r] = _mm512_fmadd_ps(q, wide_keys[k][half], acc[k][r]);
                                }
                            }
                        }
                        continue;
                    }
                    self.ask(&mut asked);
                    let mut q_pairs = [as_pairs(_mm512_setzero_si512()); N];
                    for r in 0..N {
                        // SAFETY: q has the pairs of N rows, by the slicing above, and v is one of
                        // the vectors that those of a row fill, by the assertion; no alignment needed.
                        q_pairs[r] = as_pairs(unsafe {
                            _mm512_loadu_si512(q.as_ptr().add(r * pairs + v * LANES).cast())
                        });
                    }
                    for k in 0..GROUP {
                        // SAFETY: a key is valid for as many lines as `widths` says, and v is one of them by the assertion;
                        // no alignment needed.
                        let key =
                            as_pairs(unsafe { _mm512_loadu_si512(keys[k].add(v * LINE).cast()) });
                        for r in 0..N {
                            acc[k][r] = _mm512_dpbf16_ps(acc[k][r], q_pairs[r], key);
                        }
                        if TILES == 1 && k + 1 == GROUP / 2 {
                            self.ask(&mut asked);
                        }
                    }
                }
            }
            for r in 0..N {
                let sums = zmm.sum_lanes([acc[0][r], acc[1][r], acc[2][r], acc[3][r]]);
                s.0[row + r].as_flattened_mut().as_chunks_mut().0[group] = sums;
            }
        }
    }

    /// C2 of a tile, one of `TILES`: the `N` rows of O from `row` on, strip by strip. Leaves the strips that are `left`, and
    /// adds those to them in which values aren't finite. Such a V makes no row's O finite, since 0 times it is NaN:
    /// the first row of all tells where to look.
    #[inline(never)]
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
    fn pv<const N: usize, const V: usize>(
        &self,
        row: usize,
        probs: &Probs<V>,
        left: &mut Strips,
        o: &mut [[f32; STRIP]],
    ) {
        assert!(o.len() == self.widths.strips() * self.rows && self.values.len() <= V);
        let carried = probs.carried >> row & ((1 << N) - 1);
        // Where there are two tiles, each asks for half of the rows.
        let asked = self.asked.map(|(_, rows)| {
            let half = rows.len() / 2;
            if row > 0 { &rows[half..] } else { rows }
        });
        let times = TILES * self.widths.strips();
        let requests = Requests::of(asked, self.widths, times);
        for (strip, o) in o.chunks_mut(self.rows).enumerate() {
            let o: &mut [_; N] = &mut o[row..].as_chunks_mut().0[0];
            if *left >> strip & 1 != 0 {
                continue;
            }
            let mut acc = [[[_mm512_setzero_ps(); 2]; PIECES]; N];
            for r in 0..N {
                for i in 0..PIECES {
                    acc[r][i] = read(&o[r], i);
                }
            }
            for (vector, values) in self.values.iter().enumerate() {
                let time = strip * self.values.len() + vector;
                let mut lines = requests.time(time, PAIRS, self);
                if Self::WIDENS && N > 1 && probs.len == 1 {
                    acc = self.add_wide(
                        strip,
                        values,
                        &rows_of(&probs.rounded.0, row, vector),
                        &mut lines,
                        acc,
                    );
                    continue;
                }
                let [high, low] = &probs.parts;
                let high = rows_of(high, row, vector);
                // Apart, so that the usual loop doesn't look for a low part with each pair.
                acc = if probs.len == 1 {
                    self.add_dots(strip, values, [high], &mut lines, acc)
                } else {
                    self.add_dots(
                        strip,
                        values,
                        [high, rows_of(low, row, vector)],
                        &mut lines,
                        acc,
                    )
                };
            }
            if carried != 0 {
                // Masks where it doesn't count: no branch that the processor would have to foresee, and nothing of other
                // rows, not even the sign of a zero.
                for r in 0..N {
                    let residual = &probs.residuals[row + r];
                    let counts = if carried >> r & 1 != 0 {
                        __mmask16::MAX
                    } else {
                        0
                    };
                    let p = _mm512_set1_ps(residual.p);
                    // SAFETY: values are valid for the columns of all strips, of which this is one by the assertion.
                    let v = unsafe { widened(self.values.as_flattened()[residual.key], strip) };
                    for i in 0..PIECES {
                        for (acc, v) in acc[r][i].iter_mut().zip(v[i]) {
                            *acc = _mm512_mask3_fmadd_ps(p, v, *acc, counts);
                        }
                    }
                }
            }
            if row == 0 {
                let mut wrong = 0;
                for acc in acc[0].as_flattened() {
                    wrong |= _mm512_fpclass_ps_mask::<NOT_FINITE>(*acc);
                }
                // SAFETY: values are valid for the columns of all strips, of which this is one by the assertion.
                if wrong != 0 && !unsafe { stream::finite(self.values, strip) } {
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

    /// C2 of a strip and a vector of keys by dots, with P in so many parts.
    #[inline]
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
    fn add_dots<const N: usize, const PARTS: usize>(
        &self,
        strip: usize,
        values: &[*const bf16; KEYS],
        parts: [[&[u32; PAIRS]; N]; PARTS],
        lines: &mut Lines<ASKS>,
        mut acc: [[[__m512; 2]; PIECES]; N],
    ) -> [[[__m512; 2]; PIECES]; N] {
        assert!(strip < self.widths.strips() && self.pairs <= PAIRS);
        let values: &[_; PAIRS] = &values.as_chunks().0.as_chunks().0[0];
        // Unrolled, loads and requests of several pairs would be moved together, and accumulators to the stack.
        for k in 0..self.pairs {
            lines.ask_first(self);
            // SAFETY: values are valid for the columns of all strips, of which this is one by the assertion.
            let v = unsafe { interleaved(&values[k], strip) };
            lines.ask_second(self);
            for p in &parts {
                for r in 0..N {
                    for i in 0..PIECES {
                        add(&mut acc[r][i], &v[i], p[r][k]);
                    }
                }
            }
        }
        acc
    }

    /// C2 of a strip and a vector of keys by multiply-adds.
    #[inline]
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
    fn add_wide<const N: usize>(
        &self,
        strip: usize,
        values: &[*const bf16; KEYS],
        p: &[&[f32; KEYS]; N],
        lines: &mut Lines<ASKS>,
        mut acc: [[[__m512; 2]; PIECES]; N],
    ) -> [[[__m512; 2]; PIECES]; N] {
        assert!(strip < self.widths.strips());
        for k in 0..PAIRS {
            // As a dot adds: the odd product first.
            for key in [2 * k + 1, 2 * k] {
                if key % 2 == 1 {
                    lines.ask_first(self);
                } else {
                    lines.ask_second(self);
                }
                // SAFETY: values are valid for the columns of all strips, of which this is one by the assertion.
                let v = unsafe { widened(values[key], strip) };
                for r in 0..N {
                    let p = _mm512_set1_ps(p[r][key]);
                    for i in 0..PIECES {
                        for j in 0..2 {
                            acc[r][i][j] = _mm512_fmadd_ps(p, v[i][j], acc[r][i][j]);
                        }
                    }
                }
            }
        }
        acc
    }
}

impl<W, const TILES: usize, const TO_L2: bool, const TIMES: usize> Ask<ASKS>
    for Step<'_, W, TILES, TO_L2, TIMES>
{
    /// Asks for a line of a row to come, and mostly again for one of a row that is closer; then come those behind them.
    #[inline(always)]
    fn ask(&self, at: &mut [*const bf16; ASKS]) {
        for &at in &at[..TIMES] {
            if TO_L2 {
                self.zmm.prefetch_far(at);
            } else {
                self.zmm.prefetch(at);
            }
        }
        for at in at {
            *at = at.wrapping_add(LINE);
        }
    }
}

/// A piece of a row of O.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
pub(super) fn read(o: &[f32; STRIP], piece: usize) -> [__m512; 2] {
    let o: &[_; 2] = &o.as_chunks().0.as_chunks().0[piece];
    o.map(|o| load(&o))
}

#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
pub(super) fn write(o: &mut [f32; STRIP], piece: usize, acc: [__m512; 2]) {
    let o: &mut [_; 2] = &mut o.as_chunks_mut().0.as_chunks_mut().0[piece];
    for i in 0..2 {
        store(&mut o[i], acc[i]);
    }
}

/// A strip of a key's values in FP32, in the order in which those of a pair interleave.
///
/// # Safety
/// The value is valid for reads of the strip's columns.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
unsafe fn widened(value: *const bf16, strip: usize) -> [[__m512; 2]; PIECES] {
    let mut v = [[_mm512_setzero_ps(); 2]; PIECES];
    for i in 0..PIECES {
        // SAFETY: the caller's promise; pieces are the strip's.
        v[i] = unsafe { widened_piece(value, strip * STRIP + i * few::PIECE) };
    }
    v
}

/// The same of the columns of two vectors, from some column on.
///
/// # Safety
/// The value is valid for reads of these columns.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
unsafe fn widened_piece(value: *const bf16, column: usize) -> [__m512; 2] {
    let zero = _mm512_setzero_si512();
    // SAFETY: the caller's promise; a piece is 64 bytes, and the load needs no alignment.
    let row = unsafe { _mm512_loadu_si512(value.add(column).cast()) };
    [
        _mm512_castsi512_ps(_mm512_unpacklo_epi16(zero, row)),
        _mm512_castsi512_ps(_mm512_unpackhi_epi16(zero, row)),
    ]
}

/// A vector of keys' P of the rows from `row` on.
#[inline(always)]
fn rows_of<T, const N: usize, const V: usize>(p: &[[T; V]], row: usize, vector: usize) -> [&T; N] {
    let p: &[_; N] = &p[row..].as_chunks().0[0];
    let mut rows = [&p[0][vector]; N];
    for r in 1..N {
        rows[r] = &p[r][vector];
    }
    rows
}

/// A piece of a row of O and a pair's P, times their values.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
fn add(o: &mut [__m512; 2], v: &[__m512i; 2], p: u32) {
    let p = as_pairs(_mm512_set1_epi32(p.cast_signed()));
    for i in 0..2 {
        o[i] = _mm512_dpbf16_ps(o[i], as_pairs(v[i]), p);
    }
}

/// V1 of the keys from `first` on, `len` of them; if `wide`, with what is rounded in FP32 as well.
#[inline(never)]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
#[expect(clippy::too_many_arguments, reason = "called in one place")]
fn softmax<const V: usize>(
    zmm: Zmm,
    call: &Softmax<'_>,
    first: usize,
    len: usize,
    s: &ByRow<V>,
    wide: bool,
    state: &mut RowState,
    probs: &mut Probs<V>,
) {
    let known = stream::softmax(zmm, call, first, len, s, &mut probs.whole, state);
    let exact = call.rescale == Rescale::Exact;
    let whole = call.precision == Precision::Bf16x2;
    let mut row = |r: usize| {
        let mut sum = _mm512_setzero_ps();
        for v in 0..V {
            let prob = load(&probs.whole.0[r][v]);
            let high = _mm512_cvtneps_pbh(prob);
            let mut kept = _mm512_cvtpbh_ps(high);
            probs.parts[0][r][v] = words(high);
            if wide {
                store(&mut probs.rounded.0[r][v], kept);
            }
            if whole {
                let rest = _mm512_cvtneps_pbh(_mm512_sub_ps(prob, kept));
                probs.parts[1][r][v] = words(rest);
                kept = _mm512_add_ps(kept, _mm512_cvtpbh_ps(rest));
            }
            sum = if v == 0 {
                kept
            } else {
                _mm512_add_ps(sum, kept)
            };
        }
        sum
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

impl<const V: usize> Probs<V> {
    /// What rounding took from a row's largest, if it counts.
    #[inline(always)]
    fn residual(&self, r: usize) -> Option<&Residual> {
        (self.carried >> r & 1 != 0).then(|| &self.residuals[r])
    }

    /// Keeps what rounding took from each row's largest P, where that may count: as a row's sum grows, other keys' P, from
    /// which nothing is kept, lose as much.
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
    fn carry(
        &mut self,
        zmm: Zmm,
        rows: usize,
        known: &Known<V>,
        s: &ByRow<V>,
        state: &mut RowState,
    ) {
        let offset = &known.bases.offset;
        let Some((counts, bits)) = residuals(zmm, rows, offset, known.totals, state) else {
            return;
        };
        for r in 0..rows {
            // The last key of those that have the largest score.
            let max = _mm512_set1_ps(known.bases.max[r]);
            let mut key = 0;
            for v in 0..V {
                let scores = load(&s.0[r][v]);
                let tops = _mm512_mask_cmp_ps_mask::<_CMP_GE_OQ>(known.seen[r][v], scores, max);
                if let Some(last) = tops.checked_ilog2() {
                    key = v * KEYS + last as usize;
                }
            }
            self.residuals[r] = Residual { key, p: bits[r] };
        }
        self.carried = u32::from(counts);
    }

    /// As other kernels have it, pair by pair.
    #[cold]
    fn spread(&self, rows: usize, p: &mut L0a) {
        for (part, to) in self.parts.iter().zip([&mut p.high, &mut p.low]) {
            for (r, part) in part.iter().enumerate().take(rows) {
                for (pair, to) in part.as_flattened().iter().zip(&mut p::blocks_mut(to)[0]) {
                    to[r] = *pair;
                }
            }
        }
        // It is relative to the reference.
        p.weights = [1.0; _];
        for r in 0..rows {
            let residual = self.residual(r).unwrap_or(&Residual::NONE);
            residual.spread(r, &mut p.residuals);
        }
    }
}

/// What rounding took from each row's largest P, and the rows of which it may count; it goes to the sums of those.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
fn residuals(
    zmm: Zmm,
    rows: usize,
    offset: &[f32; LANES],
    totals: __m512,
    state: &mut RowState,
) -> Option<(__mmask16, [f32; LANES])> {
    /// The part of a row's sum from which on a P counts: 2^-6 of its error of 2^-9.
    const COUNTS: f32 = 1.0 / 64.0;
    let largest = zmm.exp2(load(offset));
    let least = _mm512_mul_ps(totals, _mm512_set1_ps(COUNTS));
    let counts = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(largest, least);
    let counts = counts & __mmask16::MAX >> (LANES - rows);
    if counts == 0 {
        return None;
    }
    let high = _mm512_cvtpbh_ps(_mm512_cvtneps_pbh(largest));
    let residual = _mm512_cvtneps_pbh(_mm512_sub_ps(largest, high));
    let residual = _mm512_maskz_mov_ps(counts, _mm512_cvtpbh_ps(residual));
    stream::add_rounded(zmm, residual, state);
    let mut bits = [0.0; LANES];
    store(&mut bits, residual);
    Some((counts, bits))
}

/// The pairs of a row's P.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
fn words(p: __m256bh) -> [u32; PAIRS] {
    // SAFETY: both are 32 bytes of which every pattern is a value.
    unsafe { core::mem::transmute(p) }
}
