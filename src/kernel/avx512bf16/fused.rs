//! The fused kernel, for groups of up to 8 rows, where memory limits: C1, V1 and C2 of some keys, then of the next.
//!
//! Memory must never be idle, so a step's 16 keys come to L1d once and stay there until C2 is done
//! with them: a core has few slots for lines on their way, and lines from L2 would take them from those from
//! memory. C1 and C2 prefetch lines of rows to come in the order of memory, each with work before the next (C2 of
//! fewer than 512 columns has too few tiles of dots for that, and prefetches several at once); and once more a few keys
//! later, since a core drops prefetches for which it has no slot.
//!
//! Intel's cores and Zen 4's prefetch into L2, since lines on their way to L1d take its few slots for as long as memory
//! takes. Intel's drop nothing, and prefetch once. With 5 rows and more (on Zen 4 with 4), whose Q
//! and O leave keys little room in L1d in any case, steps have 64 keys there. Zen 5 has another kernel for 5 rows and
//! more, [`fused_lanes`].
//!
//! | stage | register tile | operands |
//! |---|---|---|
//! | C1 | 4 keys x 1 to 4 rows, features in the lanes; with more rows two such tiles | Q row-major, K in place |
//! | V1 | up to 8 rows, 16 of a row's keys in the lanes | S, and P by row |
//! | C2 | 1 to 4 rows x 4 vectors of 16 columns; with more rows two such tiles | V in place, P by broadcast |
//!
//! O's columns are in the order in which V's halves interleave.
#![allow(unsafe_code, reason = "pointer loads and stores")]
#![allow(
    clippy::needless_range_loop,
    reason = "counted loops unroll early, so that accumulators become registers"
)]

use core::marker::PhantomData;
use core::ops::Range;

use super::common::*;
use super::p;
use super::skinny::{self, VECTOR_PAIRS, interleaved, read, write};
use crate::kernel::simd::lanes;
use crate::kernel::softmax_rows::{Bases, Scores, StoreRows, softmax_rows};
use crate::kernel::zmm::fused_rows::{
    self, Block, KEYS, Lines, Passes, Prefetch, PrefetchRows, prefetch_rows,
};

/// The largest group.
pub const ROWS: usize = 8;
/// Rows of a register tile.
pub const TILE_ROWS: usize = 4;
/// Keys of a register tile of C1, and rows whose largest P are found at once.
const GROUP: usize = 4;
/// Pairs of a vector of keys.
const PAIRS: usize = KEYS / 2;
/// Vectors of keys of a step: of a short one, and of others.
const SHORT: usize = 1;
const LONG: usize = 4;
/// Keys between a step's last and the first that it prefetches: into L1d, a longer distance would evict keys in use.
const MARGIN: usize = 4;
/// Keys between a long step's first and the first that it prefetches, where a core drops prefetches: C1 takes keys twice
/// as fast as it prefetches others, so that its last ones are just behind those.
const DISTANCE: usize = LONG * KEYS / 2 + 8;
/// Before that it prefetches a line of one in this many rows, which have one in each page of 4 KiB, so that page walks
/// overlap. Prefetches wait for theirs one by one.
const PAGE_ROWS: usize = 3;
/// Times that a line is prefetched, at most.
const TIMES: usize = 3;
/// Each time this many keys later.
const LATER: [usize; TIMES] = [0, 6, 12];

// The last step may have a single key of the block, and prefetches as many as it computes on.
const _: () = assert!(FUSED_KEYS >= BLOCK_KEYS + KEYS + LONG * KEYS + MARGIN);
const _: () = assert!(LATER[TIMES - 1] <= KEYS + MARGIN && KEYS + MARGIN <= DISTANCE);

/// How a core prefetches the keys to come.
trait Policy: Copy {
    /// Where to.
    const HINT: Hint;
    /// How often, each time [some keys later](LATER): more than once where a core drops prefetches.
    const TIMES: usize;
}

/// A policy by its numbers.
#[derive(Clone, Copy)]
struct Times<const L2: bool, const N: usize>;

impl<const L2: bool, const N: usize> Policy for Times<L2, N> {
    const HINT: Hint = if L2 { Hint::L2 } else { Hint::L1 };
    const TIMES: usize = N;
}

/// P of a step.
#[repr(align(64))]
struct Probs<const V: usize> {
    /// Proof that the processor rounds.
    _dots: Dots,
    /// Rounded, row by row, and what rounding took.
    parts: [[[[u32; PAIRS]; V]; ROWS]; 2],
    /// Parts that C2 takes.
    len: usize,
    /// The rows whose largest P has a residual that C2 adds.
    carried: u32,
    /// Residuals of these rows; others have some key of the step.
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

    /// A row's, in the tile of other kernels.
    fn spread(&self, r: usize, to: &mut Residuals) {
        to.pair[r] = u32::try_from(self.key / 2).unwrap_or(0);
        // A BF16's bits are the upper half of its FP32's.
        to.p[r] = self.p.to_bits() >> 16 << (16 * (self.key % 2));
    }
}

/// [`Kernel::fused`].
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
pub fn fused<const MLA: bool>(
    kernel: Avx512Bf16,
    call: &Softmax<'_>,
    block: &Block<'_, MLA>,
    from: usize,
    p: &mut L0a,
    state: &mut RowState,
    o: &mut [ORow],
) -> FusedEnd {
    let call = Call {
        kernel,
        block,
        softmax: call,
    };
    match (kernel.core, call.softmax.rows) {
        (Core::Zen5, _) => call.steps::<Times<false, 2>, 1, SHORT>(from, p, state, o),
        (Core::Zen4, ..TILE_ROWS) => call.steps::<Times<true, 3>, 1, SHORT>(from, p, state, o),
        (Core::Zen4, TILE_ROWS) => call.steps::<Times<true, 2>, 1, LONG>(from, p, state, o),
        (Core::Zen4, _) => call.steps::<Times<true, 2>, 2, LONG>(from, p, state, o),
        (Core::Intel, ..=TILE_ROWS) => call.steps::<Times<true, 1>, 1, SHORT>(from, p, state, o),
        (Core::Intel, _) => call.steps::<Times<true, 1>, 2, LONG>(from, p, state, o),
    }
}

/// A block's steps.
struct Call<'a, const MLA: bool> {
    kernel: Avx512Bf16,
    block: &'a Block<'a, MLA>,
    softmax: &'a Softmax<'a>,
}

impl<const MLA: bool> Call<'_, MLA> {
    /// The rows that C1 and C2 prefetch, from keys and from values on; and closer ones again.
    fn prefetched(
        &self,
        [keys, values]: [usize; 2],
        count: usize,
    ) -> [(&[*const bf16], &[*const bf16]); TIMES] {
        LATER.map(|later| {
            let keys = &self.block.prefetch[keys - later..][..count];
            match self.block.prefetch_values {
                None => keys.split_at(count / 2),
                // C2 needs all of them at once.
                Some(rows) => (keys, &rows[values - later..][..count]),
            }
        })
    }

    /// All stages of the keys from one on, in steps of `VECTORS` vectors of keys and over `TILES` tiles of rows.
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
    fn steps<P: Policy, const TILES: usize, const VECTORS: usize>(
        &self,
        from: usize,
        p: &mut L0a,
        state: &mut RowState,
        o: &mut [ORow],
    ) -> FusedEnd {
        let call = self.softmax;
        let (zmm, rows) = (self.kernel.zmm, call.rows);
        let at_once = const { VECTORS * KEYS };
        let distance = const {
            if VECTORS == LONG && P::TIMES > 1 {
                DISTANCE
            } else {
                VECTORS * KEYS + MARGIN
            }
        };
        let mut s = Scores([[0.0; _]; _]);
        let mut bases = Bases::of(call, state);
        let mut probs = Probs {
            _dots: self.kernel.dots,
            parts: [[[[0; PAIRS]; VECTORS]; ROWS]; 2],
            len: if call.precision == Precision::Bf16x2 {
                2
            } else {
                1
            },
            carried: 0,
            residuals: [Residual::NONE; _],
        };
        let tile_rows = rows.div_ceil(TILES);
        let mut end = FusedEnd::ALL;
        for first in (from..call.keys).step_by(at_once) {
            let len = at_once.min(call.keys - first);
            // Whole vectors of keys: scores beyond don't count.
            let padded = len.next_multiple_of(KEYS);
            let next = first + distance;
            let step = Step::<P, TILES, MLA> {
                policy: PhantomData,
                zmm,
                rows,
                q: self.block.q(rows),
                block: self.block,
                in_c2: self.block.passes(TILES * self.block.strips()),
                half_lines: [self.block.lines() / 2, self.block.lines().div_ceil(2)],
                pairs: PAIRS,
                skips: call.mask.is_some() || padded > len,
                keys: &self.block.keys[first..][..padded],
                values: self.block.values[first..][..padded].as_chunks().0,
                next: self.prefetched([next, first + at_once + MARGIN], padded),
            };
            if const { VECTORS == LONG && P::TIMES > 1 } {
                for row in self.block.prefetch[next..][..padded]
                    .iter()
                    .step_by(PAGE_ROWS)
                {
                    zmm.prefetch_l2(*row);
                }
            }
            // With two tiles group by group, as both need its keys.
            let groups = padded / GROUP;
            let some = if TILES == 1 { groups } else { 1 };
            for group in (0..groups).step_by(some) {
                for tile in 0..TILES {
                    let row = tile * tile_rows;
                    let group = group..group + some;
                    match tile_rows.min(rows - row) {
                        1 if const { TILES == 1 && VECTORS == SHORT } => {
                            step.qk::<1>(group, row, &mut s)
                        }
                        2 if const { TILES == 2 || VECTORS == SHORT } => {
                            step.qk::<2>(group, row, &mut s)
                        }
                        3 if const { TILES == 2 || VECTORS == SHORT } => {
                            step.qk::<3>(group, row, &mut s)
                        }
                        _ => step.qk::<4>(group, row, &mut s),
                    }
                }
            }
            let keys = first..first + len;
            let moved = probs.softmax(
                zmm,
                call,
                keys.clone(),
                &mut s,
                &mut bases,
                state,
                &mut p.increment,
            );
            if moved {
                for o in o.chunks_mut(rows) {
                    rescale_rows(zmm, o, &p.increment);
                }
            }
            let mut all = 0;
            for row in (0..TILES).map(|tile| tile * tile_rows) {
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
                probs.spread(rows, moved, p);
                end = FusedEnd::skipping(all, keys);
                break;
            }
        }
        bases.store_largest(call, state);
        end
    }
}

/// A step's keys and those to come.
struct Step<'a, P, const TILES: usize, const MLA: bool> {
    policy: PhantomData<P>,
    zmm: Zmm,
    /// Of Q and O.
    rows: usize,
    q: &'a [u32],
    block: &'a Block<'a, MLA>,
    /// How C2 prefetches.
    in_c2: Passes,
    /// Half of the lines of a key, rounded down and up, where the compiler doesn't see it.
    half_lines: [usize; 2],
    /// Pairs of a vector of keys, hidden from the compiler as well.
    pairs: usize,
    /// Whether strips are skipped in which values aren't finite: where some row doesn't see some key, or keys are repeated.
    skips: bool,
    /// Each is valid for reads of the block's lines.
    keys: &'a [*const bf16],
    /// Each is valid for reads of the block's strips.
    values: &'a [[*const bf16; KEYS]],
    /// What C1 prefetches, and what C2 does; and closer rows, prefetched again. These may be anywhere.
    next: [(&'a [*const bf16], &'a [*const bf16]); TIMES],
}

impl<P: Policy, const TILES: usize, const MLA: bool> Step<'_, P, TILES, MLA> {
    /// C1 of a tile, one of `TILES`: scores of the `N` rows from `row` on over groups of keys.
    #[inline(never)]
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
    fn qk<const N: usize>(&self, groups: Range<usize>, row: usize, s: &mut Scores) {
        let zmm = self.zmm;
        let pairs = self.block.lines() * LANES;
        assert!(self.half_lines[0] + self.half_lines[1] <= self.block.lines());
        let q = &self.q[row * pairs..][..N * pairs];
        // A group prefetches two rows; with two tiles, each one of them. If values are rows of their own, two more.
        const { assert!(fused_rows::ROWS == 2 * (KEYS / GROUP)) };
        let second = usize::from(row > 0);
        let (_, more) = self.next[0].0.split_at(self.keys.len() / 2);
        for group in groups {
            let keys: &[_; GROUP] = &self.keys.as_chunks().0[group];
            if row == 0
                && let Some(rows) = more.get(2 * group..2 * group + 2)
            {
                prefetch_rows(zmm, P::HINT, rows, self.block.lines());
            }
            let mut acc = [[_mm512_setzero_ps(); N]; GROUP];
            for half in 0..2 {
                let mut next = self.next.map(|rows| {
                    if TILES == 1 {
                        rows.0[2 * group + half]
                    } else {
                        rows.0[2 * group + second].wrapping_add(half * self.half_lines[0] * LINE)
                    }
                });
                // Unrolled, prefetches would be moved side by side, and Q to the stack.
                for i in 0..self.half_lines[half] {
                    let v = half * self.half_lines[0] + i;
                    self.prefetch(&mut next);
                    let mut q_pairs = [as_pairs(_mm512_setzero_si512()); N];
                    for r in 0..N {
                        // SAFETY: q has the pairs of N rows, by the slicing above, and v is one of
                        // the vectors that those of a row fill; no alignment needed.
                        q_pairs[r] = as_pairs(unsafe {
                            _mm512_loadu_si512(q.as_ptr().add(r * pairs + v * LANES).cast())
                        });
                    }
                    for k in 0..GROUP {
                        // SAFETY: a key is valid for reads of the block's lines, and v is one of them, by the assertion; no
                        // alignment needed.
                        let key =
                            as_pairs(unsafe { _mm512_loadu_si512(keys[k].add(v * LINE).cast()) });
                        for r in 0..N {
                            acc[k][r] = _mm512_dpbf16_ps(acc[k][r], q_pairs[r], key);
                        }
                        if TILES == 1 && k + 1 == GROUP / 2 {
                            self.prefetch(&mut next);
                        }
                    }
                }
            }
            for r in 0..N {
                let sums = zmm.sum_lanes([acc[0][r], acc[1][r], acc[2][r], acc[3][r]]);
                s.0[row + r].as_chunks_mut().0[group] = sums;
            }
        }
    }

    /// C2 of a tile, one of `TILES`: the `N` rows of O from `row` on, strip by strip. Skips the strips that are `skipped`, and
    /// adds those in which values aren't finite. Such a V makes no row's O finite, since 0 times it is NaN:
    /// the first row of all tells where to look.
    #[inline(never)]
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
    fn pv<const N: usize, const V: usize>(
        &self,
        row: usize,
        probs: &Probs<V>,
        skipped: &mut Strips,
        o: &mut [[f32; STRIP]],
    ) {
        assert!(o.len() == self.block.strips() * self.rows && self.values.len() <= V);
        let carried = probs.carried >> row & ((1 << N) - 1);
        // With two tiles, each prefetches half of the rows.
        let next = self.next.map(|(_, rows)| {
            let half = rows.len() / 2;
            if row > 0 { &rows[half..] } else { rows }
        });
        let prefetch = PrefetchRows::of(next, self.in_c2);
        for (strip, o) in o.chunks_mut(self.rows).enumerate() {
            let o: &mut [_; N] = &mut o[row..].as_chunks_mut().0[0];
            if *skipped >> strip & 1 != 0 {
                continue;
            }
            let mut acc = [[[_mm512_setzero_ps(); 2]; VECTOR_PAIRS]; N];
            for r in 0..N {
                for i in 0..VECTOR_PAIRS {
                    acc[r][i] = read(&o[r], i);
                }
            }
            for (vector, values) in self.values.iter().enumerate() {
                let time = strip * self.values.len() + vector;
                let mut lines = prefetch.pass(time, PAIRS, self);
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
                // Masks where there is none: no branch that the processor would have to foresee, and nothing of other
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
                    let v = unsafe { converted(self.values.as_flattened()[residual.key], strip) };
                    for i in 0..VECTOR_PAIRS {
                        for (acc, v) in acc[r][i].iter_mut().zip(v[i]) {
                            *acc = _mm512_mask3_fmadd_ps(p, v, *acc, counts);
                        }
                    }
                }
            }
            // A second part of P, and a residual, have either sign.
            if row == 0 && (self.skips || probs.len > 1 || probs.carried != 0) {
                let mut wrong = 0;
                for acc in acc[0].as_flattened() {
                    wrong |= _mm512_fpclass_ps_mask::<NOT_FINITE>(*acc);
                }
                // SAFETY: values are valid for the columns of all strips, of which this is one by the assertion.
                if wrong != 0 && !unsafe { strip_is_finite(self.values, strip) } {
                    *skipped |= 1 << strip;
                    continue;
                }
            }
            for r in 0..N {
                for i in 0..VECTOR_PAIRS {
                    write(&mut o[r], i, acc[r][i]);
                }
            }
        }
    }

    /// C2 of a strip and a vector of keys by dots, with P in `PARTS` parts.
    #[inline]
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
    fn add_dots<const N: usize, const PARTS: usize>(
        &self,
        strip: usize,
        values: &[*const bf16; KEYS],
        parts: [[&[u32; PAIRS]; N]; PARTS],
        lines: &mut Lines<TIMES>,
        mut acc: [[[__m512; 2]; VECTOR_PAIRS]; N],
    ) -> [[[__m512; 2]; VECTOR_PAIRS]; N] {
        assert!(strip < self.block.strips() && self.pairs <= PAIRS);
        let values: &[_; PAIRS] = &values.as_chunks().0.as_chunks().0[0];
        // Unrolled, loads and prefetches of several pairs would be moved side by side, and accumulators to the stack.
        for k in 0..self.pairs {
            lines.prefetch_first(self);
            // SAFETY: values are valid for the columns of all strips, of which this is one by the assertion.
            let v = unsafe { interleaved(&values[k], strip) };
            lines.prefetch_second(self);
            for p in &parts {
                for r in 0..N {
                    for i in 0..VECTOR_PAIRS {
                        add(&mut acc[r][i], &v[i], p[r][k]);
                    }
                }
            }
        }
        acc
    }
}

impl<P: Policy, const TILES: usize, const MLA: bool> Prefetch<TIMES> for Step<'_, P, TILES, MLA> {
    /// Prefetches a line of a row to come, and mostly one of closer rows again; then come those behind them.
    #[inline(always)]
    fn prefetch(&self, at: &mut [*const bf16; TIMES]) {
        for &at in &at[..P::TIMES] {
            P::HINT.line(self.zmm, at);
        }
        for at in at {
            *at = at.wrapping_add(LINE);
        }
    }
}

/// A strip of a key's values in FP32, in the order in which those of a pair interleave.
///
/// # Safety
/// The value is valid for reads of the strip's columns.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
unsafe fn converted(value: *const bf16, strip: usize) -> [[__m512; 2]; VECTOR_PAIRS] {
    let mut v = [[_mm512_setzero_ps(); 2]; VECTOR_PAIRS];
    for i in 0..VECTOR_PAIRS {
        // SAFETY: the caller's promise; vector pairs are the strip's.
        v[i] = unsafe { converted_columns(value, strip * STRIP + i * skinny::VECTOR_PAIR) };
    }
    v
}

/// The same of the columns of two vectors, from some column on.
///
/// # Safety
/// The value is valid for reads of these columns.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
unsafe fn converted_columns(value: *const bf16, column: usize) -> [__m512; 2] {
    let zero = _mm512_setzero_si512();
    // SAFETY: the caller's promise; a vector pair is 64 bytes, and the load needs no alignment.
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

/// A vector pair of a row of O and a pair's P, times their values.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
fn add(o: &mut [__m512; 2], v: &[__m512i; 2], p: u32) {
    let p = as_pairs(_mm512_set1_epi32(p.cast_signed()));
    for i in 0..2 {
        o[i] = _mm512_dpbf16_ps(o[i], as_pairs(v[i]), p);
    }
}

impl<const V: usize> StoreRows<Zmm> for Probs<V> {
    const ROUNDED: bool = true;

    #[inline(always)]
    fn store(&mut self, _zmm: Zmm, prob: __m512, row: usize, v: usize) -> __m512 {
        // SAFETY: the token in `self` proves the features.
        unsafe { self.round(prob, row, v) }
    }
}

impl<const V: usize> Probs<V> {
    /// Rounds a vector of P. Returns what C2 takes, but for residuals.
    #[inline]
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
    fn round(&mut self, prob: __m512, row: usize, v: usize) -> __m512 {
        let high = _mm512_cvtneps_pbh(prob);
        let stored = _mm512_cvtpbh_ps(high);
        self.parts[0][row][v] = words(high);
        if self.len == 1 {
            return stored;
        }
        let rest = _mm512_cvtneps_pbh(_mm512_sub_ps(prob, stored));
        self.parts[1][row][v] = words(rest);
        _mm512_add_ps(stored, _mm512_cvtpbh_ps(rest))
    }

    /// V1 of these keys, whose scores `s` has. Returns whether a reference moved.
    #[inline(never)]
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
    #[expect(clippy::too_many_arguments, reason = "called in one place")]
    fn softmax(
        &mut self,
        zmm: Zmm,
        call: &Softmax<'_>,
        keys: Range<usize>,
        s: &mut Scores,
        bases: &mut Bases,
        state: &mut RowState,
        increment: &mut [i32; PANEL_ROWS],
    ) -> bool {
        let vectors = keys.len().div_ceil(KEYS);
        let moved = softmax_rows(zmm, self, call, keys, vectors, s, bases, state, increment);
        if call.rescale == Rescale::Exact && call.precision == Precision::Bf16 {
            self.carry(zmm, call.rows, vectors, s, state);
        }
        moved
    }

    /// The residual of a row's largest P, if C2 adds it.
    #[inline(always)]
    fn residual(&self, r: usize) -> Option<&Residual> {
        (self.carried >> r & 1 != 0).then(|| &self.residuals[r])
    }

    /// Stores the residual of each row's largest P, where it is large enough: as a row's sum grows, other keys' P, which
    /// have no residual, lose as much. The row's sum of rounded P includes it.
    #[inline]
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
    fn carry(&mut self, zmm: Zmm, rows: usize, vectors: usize, p: &Scores, state: &mut RowState) {
        /// The share of a row's sum from which on a P has a residual: 2^-6 of its error of 2^-9.
        const FRACTION: f32 = 1.0 / 64.0;
        self.carried = 0;
        for first in (0..rows).step_by(GROUP) {
            let mut maxima = [_mm512_setzero_ps(); GROUP];
            let rows = first..rows.min(first + GROUP);
            for (r, max) in rows.clone().zip(&mut maxima) {
                for p in &lanes::<Zmm>(&p.0[r])[..vectors] {
                    // The second where the first is NaN.
                    *max = _mm512_max_ps(load(p), *max);
                }
            }
            let maxima = zmm.max_lanes(maxima);
            let (sum, stored) = (&state.sum[first..], &mut state.rounded_sum[first..]);
            let largest = of_four(&maxima);
            let least = _mm512_mul_ps(of_four(sum), _mm512_set1_ps(FRACTION));
            let carried = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(largest, least);
            let carried = carried & ((1 << rows.len()) - 1);
            self.carried |= u32::from(carried) << first;
            let high = _mm512_cvtpbh_ps(_mm512_cvtneps_pbh(largest));
            let residual = _mm512_cvtneps_pbh(_mm512_sub_ps(largest, high));
            let residual = _mm512_maskz_mov_ps(carried, _mm512_cvtpbh_ps(residual));
            let mut residuals = [0.0; LANES];
            store(&mut residuals, residual);
            for (stored, residual) in stored[..GROUP].iter_mut().zip(residuals) {
                *stored += residual;
            }
            if carried == 0 {
                self.residuals[first..][..GROUP].fill(Residual::NONE);
                continue;
            }
            for (i, r) in rows.enumerate() {
                // The last of the keys that have it.
                let max = _mm512_set1_ps(maxima[i]);
                let mut key = 0;
                for (v, p) in lanes::<Zmm>(&p.0[r])[..vectors].iter().enumerate() {
                    let tops = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(load(p), max);
                    if let Some(last) = tops.checked_ilog2() {
                        key = v * KEYS + last as usize;
                    }
                }
                self.residuals[r] = Residual {
                    key,
                    p: residuals[i],
                };
            }
        }
    }

    /// Stores P in the tile of other kernels, pair by pair.
    #[cold]
    fn spread(&self, rows: usize, moved: bool, p: &mut L0a) {
        if !moved {
            p.increment.fill(0);
        }
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

/// Four numbers in each quarter of a vector.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
fn of_four(x: &[f32]) -> __m512 {
    let &[a, b, c, d] = &x.as_chunks().0[0];
    let four = _mm_setr_ps(a, b, c, d);
    _mm512_mask_broadcast_f32x4(_mm512_setzero_ps(), __mmask16::MAX, four)
}

/// The pairs of a row's P.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
fn words(p: __m256bh) -> [u32; PAIRS] {
    // SAFETY: both are 32 bytes of which every pattern is a value.
    unsafe { core::mem::transmute(p) }
}
