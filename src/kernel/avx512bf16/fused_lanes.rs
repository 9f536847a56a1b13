//! The fused kernel for 5 to 8 rows on cores that do two dots a cycle: rows share the lanes, in steps of 96 keys.
//!
//! A dot of C1 takes 16 features of a key, in place by broadcast, and the same features of two rows. When a row's lanes
//! are added up, all rows' scores of two keys are side by side: V1 has no step for one row alone, and P comes out in pairs of keys. C2 has
//! all rows in one tile, so that V is interleaved once; O comes at the end, and products are weighted.
//!
//! | stage | register tile | operands |
//! |---|---|---|
//! | C1 | 6 keys x 4 vectors of 2 rows, or 8 keys x 3; of 7 rows one has a vector to itself | Q by eights of pairs of features, K in place by broadcast |
//! | V1 | two keys of 8 rows in the lanes | S, and P by pairs of keys |
//! | C2 | 5 to 8 rows x 2 vectors of 16 columns | V in place, P by broadcast |
//!
//! C1 prefetches half of the keys to come, C2 the other half; or all keys and all values, where these are rows of their own. They come
//! into L1d, each line once and mostly with dots before the next. V1 prefetches a line of each row of C2's half, lest memory waits for C2.
//! Half a step before, C1 and C2 prefetch a line of every third row, which is one in each page for MLA's contiguous rows: prefetches
//! wait for page walks. O's columns are those of [`super::fused`].
#![allow(unsafe_code, reason = "pointer loads and stores")]
#![allow(
    clippy::needless_range_loop,
    reason = "counted loops unroll early, so that accumulators become registers"
)]

use core::mem::MaybeUninit;
use core::ops::Range;

use super::common::*;
use super::p;
use super::skinny::{self, VECTOR_PAIRS, read, write};
use crate::kernel::softmax::{self, RoundPairs as _};
use crate::kernel::zmm::follow;
use crate::kernel::zmm::fused_rows::{self, Block, KEYS, Prefetch, PrefetchRows};

/// The largest group.
pub const ROWS: usize = 8;
/// Keys of a step.
const STEP: usize = 6 * KEYS;
/// Keys between a step's first and the first that it prefetches, which may be its own: C1 takes keys twice as fast as it
/// prefetches others, and comes to its last ones just after it has prefetched them.
const DISTANCE: usize = STEP / 2 + 8;
/// Lanes of a row in C1: pairs of features of a dot.
const EACH: usize = LANES / 2;
/// Dots of a key with each line of these: of all its lines.
const DOTS: usize = LANES / EACH;
/// Keys of C1's register tiles, which have 24 sums: of three vectors of rows, and of four.
const GROUP_OF_3: usize = 8;
const GROUP_OF_4: usize = 6;
/// Lines of the code of C1's largest tile and of C2's, about: prefetching others does no harm.
const QK_LINES: usize = 22;
const TILE_LINES: usize = 31;
/// Pairs of a vector of keys.
const PAIRS: usize = KEYS / 2;

const _: () = assert!(fused_rows::ROWS == PAIRS);
const _: () = assert!(STEP.is_multiple_of(GROUP_OF_3) && STEP.is_multiple_of(GROUP_OF_4));
// The last step may have a single key of the block, and C1 computes on whole groups; page walks come half a step further on.
const _: () = assert!(FUSED_KEYS >= BLOCK_KEYS + KEYS + GROUP_OF_3 + DISTANCE);
const _: () = assert!(FUSED_KEYS >= BLOCK_KEYS + DISTANCE + STEP / 2);
const _: () = assert!(FUSED_KEYS >= BLOCK_KEYS.next_multiple_of(KEYS) + STEP);

/// Vectors of the rows in C1.
const fn vectors(rows: usize) -> usize {
    if rows <= 6 { 3 } else { 4 }
}

/// The vector of a row in C1, and its first lane there: as `qk` merges vectors in the end.
const fn slot(row: usize, rows: usize) -> [usize; 2] {
    match (row, rows) {
        (5, 6) => [2, EACH],
        _ => [row / 4 * 2 + row % 2, row / 2 % 2 * EACH],
    }
}

/// The row that has C1's last vector to itself, if rows are odd: all of a line at once, with the line's first dot. With five it gains nothing.
const fn alone(rows: usize) -> Option<usize> {
    if rows == 7 { Some(5) } else { None }
}

/// [`Kernel::pack_q`]: for each dot of a key the vectors of all rows, zeros of rows beyond the last. The width is no
/// constant, as loops would be unrolled.
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
#[inline(never)]
pub fn pack_q(call: &PackQ<'_>, panel: &mut QPanel) {
    let PackQ { d_qk, rows, .. } = *call;
    let sign = if call.negate { 0x8000_8000 } else { 0 };
    let vectors = vectors(rows.len());
    let out: &mut [[u32; LANES]] = panel.0.as_flattened_mut().as_chunks_mut().0;
    let out = &mut out[..vectors * (d_qk / 2 / EACH)];
    out.fill([0; LANES]);
    for (r, row) in rows.iter().enumerate() {
        let [vector, lane] = slot(r, rows.len());
        let row: &[[[bf16; 2]; EACH]] = row[..d_qk].as_chunks().0.as_chunks().0;
        for (i, pairs) in row.iter().enumerate() {
            let [dot, lane] = match alone(rows.len()) {
                Some(row) if row == r => [i - i % DOTS, i % DOTS * EACH],
                _ => [i, lane],
            };
            let out = &mut out[dot * vectors + vector][lane..];
            for (&[even, odd], out) in pairs.iter().zip(out) {
                let pair = u32::from(even.to_bits()) | u32::from(odd.to_bits()) << 16;
                *out = pair ^ sign;
            }
        }
    }
}

/// Scores of a step. Not cleared for each block, nor is P: both take a hundredth of the block's time.
#[repr(align(64))]
struct Scores {
    /// Two keys of each row side by side.
    of: [MaybeUninit<[f32; LANES]>; STEP / 2],
    /// How many of these C1 has written.
    len: usize,
    /// The largest of them, of each pair of keys in a tile.
    largest: [[f32; LANES]; GROUP_OF_3 / 2],
}

/// Which rows see which keys, in the order of scores.
type Seen = [__mmask16; STEP / 2];

/// P of a step.
#[repr(align(64))]
struct Probs {
    /// Rounded, pair by pair of keys all rows, and what rounding took.
    parts: [[MaybeUninit<[u32; ROWS]>; STEP / 2]; 2],
    /// Parts that C2 takes.
    len: usize,
    /// How many pairs of each of them V1 has written.
    pairs: usize,
    /// As [`L0a::weights`].
    weights: [f32; LANES],
}

/// [`Kernel::fused`](crate::kernel::Kernel::fused), where Q is as [`pack_q`] packs it.
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
    const HALF_OF_3: usize = GROUP_OF_3 / 2;
    const HALF_OF_4: usize = GROUP_OF_4 / 2;
    let block = Call {
        kernel,
        block,
        call,
    };
    match call.rows {
        5 => block.steps::<5, GROUP_OF_3, HALF_OF_3, 3, 3>(from, p, state, o),
        6 => block.steps::<6, GROUP_OF_3, HALF_OF_3, 3, 3>(from, p, state, o),
        7 => block.steps::<7, GROUP_OF_4, HALF_OF_4, 4, 3>(from, p, state, o),
        _ => block.steps::<ROWS, GROUP_OF_4, HALF_OF_4, 4, 4>(from, p, state, o),
    }
}

/// A block's steps.
struct Call<'a, const MLA: bool> {
    kernel: Avx512Bf16,
    block: &'a Block<'a, MLA>,
    call: &'a Softmax<'a>,
}

impl<const MLA: bool> Call<'_, MLA> {
    /// Of `N` rows, and the tile of C1 that these have ([`Step::scores`]).
    #[inline(never)]
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
    fn steps<
        const N: usize,
        const GROUP: usize,
        const HALF: usize,
        const VECTORS: usize,
        const SHARED: usize,
    >(
        &self,
        from: usize,
        p: &mut L0a,
        state: &mut RowState,
        o: &mut [[f32; STRIP]],
    ) -> FusedEnd {
        let &Self {
            kernel,
            block,
            call,
        } = self;
        let q = block.q(2 * VECTORS);
        let zmm = kernel.zmm;
        let qk = Step::<MLA>::qk::<GROUP, HALF, VECTORS, SHARED> as *const ();
        let tile = Step::<MLA>::tile::<N> as *const ();
        prefetch_code(zmm, qk, QK_LINES);
        prefetch_code(zmm, tile, TILE_LINES);
        let mut s = Scores {
            of: [const { MaybeUninit::uninit() }; _],
            len: 0,
            largest: [[0.0; LANES]; _],
        };
        let mut probs = Probs {
            parts: [const { [const { MaybeUninit::uninit() }; _] }; 2],
            len: if call.precision == Precision::Bf16x2 {
                2
            } else {
                1
            },
            pairs: 0,
            weights: [1.0; _],
        };
        // Then a value that isn't finite makes no score of its key finite, not even of rows beyond, as 0 times it is NaN.
        let heads = core::ptr::eq(block.keys, block.values);
        for first in (from..call.keys).step_by(STEP) {
            let len = STEP.min(call.keys - first);
            // Whole vectors of keys: scores beyond don't count.
            let padded = len.next_multiple_of(KEYS);
            let next = &block.prefetch[first + DISTANCE..];
            let step = Step {
                zmm,
                block,
                lines: block.lines(),
                pairs: PAIRS,
                keys: &block.keys[first..],
                values: block.values[first..][..padded].as_chunks().0,
                next,
                next_in_c2: match block.prefetch_values {
                    None => &next[padded / 2..padded],
                    // All of them are needed at once.
                    Some(values) => &values[first + STEP..][..padded],
                },
            };
            step.scores::<GROUP, HALF, VECTORS, SHARED>(padded, q, &mut s);
            let middles = Middles {
                rows: step.next_in_c2,
                column: block.passes(1).lines / 2 * LINE,
            };
            let finite = softmax(
                kernel,
                call,
                first..first + len,
                &middles,
                &s,
                state,
                &mut p.increment,
                &mut probs,
            );
            if p.increment[..N].iter().any(|&n| n != 0) {
                for o in o.chunks_mut(N) {
                    rescale_rows(zmm, o, &p.increment);
                }
            }
            let skips = call.mask.is_some() || padded > len || probs.len > 1;
            let skipped = if finite && heads || !skips {
                step.pv::<N>(&probs, o);
                0
            } else {
                step.pv_finite::<N>(&probs, o)
            };
            if skipped != 0 {
                probs.spread(N, p);
                return FusedEnd::skipping(skipped, first..first + len);
            }
        }
        FusedEnd::ALL
    }
}

/// The index of two vectors of O.
#[derive(Clone, Copy)]
struct StripPart {
    strip: usize,
    part: usize,
}

/// A step's keys and those to come.
struct Step<'a, const MLA: bool> {
    zmm: Zmm,
    block: &'a Block<'a, MLA>,
    /// Lines of a key, where the compiler doesn't see it.
    lines: usize,
    /// Pairs of a vector of keys, hidden from the compiler as well.
    pairs: usize,
    /// The step's and those behind it. Each is valid for reads of the block's lines.
    keys: &'a [*const bf16],
    /// Each is valid for reads of the block's strips.
    values: &'a [[*const bf16; KEYS]],
    /// Keys that C1 prefetches, and later ones. These may be anywhere.
    next: &'a [*const bf16],
    /// Keys or values that C2 prefetches. These may be anywhere.
    next_in_c2: &'a [*const bf16],
}

impl<const MLA: bool> Step<'_, MLA> {
    /// C1 of `keys` keys and some behind them. A tile has `GROUP` keys, or `HALF` pairs of them, and `VECTORS` vectors of rows, of
    /// which `SHARED` have two.
    #[inline]
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
    fn scores<const GROUP: usize, const HALF: usize, const VECTORS: usize, const SHARED: usize>(
        &self,
        keys: usize,
        q: &[u32],
        s: &mut Scores,
    ) {
        let q = &q.as_chunks().0.as_chunks().0[..self.block.lines() * DOTS];
        let groups = keys.div_ceil(GROUP);
        let keys = self.keys.as_chunks().0.iter();
        let next = self.next.as_chunks().0.iter();
        let Scores { of, len, largest } = s;
        *len = 0;
        largest.fill([f32::NEG_INFINITY; LANES]);
        let tiles = of.as_chunks_mut().0.iter_mut();
        for (group, ((keys, next), tile)) in keys.zip(next).zip(tiles).take(groups).enumerate() {
            self.touch(HALF * group + STEP / 2);
            if self.block.prefetch_values.is_some() {
                let rows = &self.next[HALF * (groups + group)..][..HALF];
                fused_rows::prefetch_rows(self.zmm, Hint::L1, rows, self.block.lines());
            }
            self.qk::<GROUP, HALF, VECTORS, SHARED>(keys, next, q, tile, largest);
            *len += HALF;
        }
    }

    /// Prefetches a line of a row to come, so that its page walk is over when its lines are prefetched.
    #[inline]
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
    fn touch(&self, row: usize) {
        if let Some(&row) = self.next.get(row) {
            self.zmm.prefetch(row);
        }
    }

    /// C1 of a tile of keys, which prefetches half as many rows, as many as C2 does for them.
    #[inline(never)]
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
    fn qk<const GROUP: usize, const HALF: usize, const VECTORS: usize, const SHARED: usize>(
        &self,
        keys: &[*const bf16; GROUP],
        next: &[*const bf16; HALF],
        q: &[[[u32; LANES]; VECTORS]],
        s: &mut [MaybeUninit<[f32; LANES]>; HALF],
        largest: &mut [[f32; LANES]; GROUP_OF_3 / 2],
    ) {
        const { assert!(GROUP == 2 * HALF && 2 * VECTORS <= ROWS) };
        const { assert!(VECTORS - SHARED <= 1) };
        assert!(self.lines <= self.block.lines() && q.len() == self.block.lines() * DOTS);
        // In registers: `apart` may have changed memory for all that the compiler knows. And copied here: a caller's copy may straddle
        // two cache lines, and would be waited for.
        let (keys, mut next) = (*keys, *next);
        let mut acc = [[_mm512_setzero_ps(); VECTORS]; GROUP];
        // Not unrolled, or prefetches would be moved side by side.
        for line in 0..self.lines {
            for dot in 0..DOTS {
                for acc in &mut acc {
                    self.zmm.apart(acc);
                }
                for i in 0..HALF {
                    if i * DOTS / HALF == dot {
                        self.zmm.prefetch(next[i]);
                        next[i] = next[i].wrapping_add(LINE);
                    }
                }
                let mut pairs = [as_pairs(_mm512_setzero_si512()); VECTORS];
                for v in 0..VECTORS {
                    // SAFETY: `q` has the vectors of `DOTS` dots for each line, by the assertion.
                    let q = unsafe { q.get_unchecked(line * DOTS + dot) };
                    pairs[v] = load_pairs(&q[v]);
                }
                for k in 0..GROUP {
                    // SAFETY: a key is valid for reads of the block's lines, of `DOTS` dots each, and this is one of
                    // them, by the assertion.
                    let key = unsafe { broadcast(keys[k].add(line * LINE + 2 * EACH * dot)) };
                    for v in 0..SHARED {
                        acc[k][v] = _mm512_dpbf16_ps(acc[k][v], pairs[v], key);
                    }
                }
                if SHARED < VECTORS && dot == 0 {
                    for k in 0..GROUP {
                        // SAFETY: the same; no alignment needed.
                        let key = unsafe { _mm512_loadu_si512(keys[k].add(line * LINE).cast()) };
                        acc[k][SHARED] =
                            _mm512_dpbf16_ps(acc[k][SHARED], pairs[SHARED], as_pairs(key));
                    }
                }
            }
        }
        for k in 0..HALF {
            // Of two keys, then of two vectors, until each row has two lanes.
            let [first, second] = [acc[2 * k], acc[2 * k + 1]];
            let mut sums = [_mm512_setzero_ps(); ROWS / 2];
            for v in 0..VECTORS {
                sums[v] = added(first[v], second[v]);
            }
            if SHARED < VECTORS {
                // In both halves; in place of an eighth row is a copy.
                sums[SHARED] = _mm512_add_ps(sums[SHARED], swapped_halves(sums[SHARED]));
            } else if VECTORS == 3 {
                // The sixth row; the last two are copies.
                sums[3] = swapped_halves(sums[2]);
            }
            let low = added(sums[0], sums[1]);
            let high = added(sums[2], sums[3]);
            let scores = added_quarters(low, high);
            // SAFETY: 16 f32 are 64 bytes; no alignment needed.
            unsafe { _mm512_storeu_ps(s[k].as_mut_ptr().cast(), scores) }
            // The second where the first is NaN.
            let max = _mm512_max_ps(scores, load(&largest[k]));
            store(&mut largest[k], max);
        }
    }

    /// C2, strip by strip.
    #[inline]
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
    fn pv<const N: usize>(&self, probs: &Probs, o: &mut [[f32; STRIP]]) {
        for (strip, o) in o.as_chunks_mut().0.iter_mut().enumerate() {
            self.strip::<N>(strip, probs, o);
        }
    }

    /// The same but for strips in which values aren't finite. Such a V makes no row's O finite: the first row tells where to look.
    #[inline(never)]
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
    fn pv_finite<const N: usize>(&self, probs: &Probs, o: &mut [[f32; STRIP]]) -> Strips {
        let mut skipped = 0;
        for (strip, o) in o.as_chunks_mut().0.iter_mut().enumerate() {
            let before = *o;
            self.strip::<N>(strip, probs, o);
            // SAFETY: values are valid for the columns of all strips, of which this is one, as C2 has asserted.
            if !finite(&o[0]) && !unsafe { strip_is_finite(self.values, strip) } {
                *o = before;
                skipped |= 1 << strip;
            }
        }
        skipped
    }

    /// C2 of a strip.
    #[inline]
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
    fn strip<const N: usize>(&self, strip: usize, probs: &Probs, o: &mut [[f32; STRIP]; N]) {
        for part in 0..VECTOR_PAIRS {
            self.tile(StripPart { strip, part }, probs, o);
        }
    }

    /// C2 of a part of a strip: all `N` rows of O. Prefetches the lines of the part, with each part of P.
    #[inline(never)]
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
    fn tile<const N: usize>(
        &self,
        StripPart { strip, part }: StripPart,
        probs: &Probs,
        o: &mut [[f32; STRIP]; N],
    ) {
        const { assert!(N <= ROWS) };
        assert!(strip < self.block.strips() && part < VECTOR_PAIRS);
        assert!(self.pairs <= PAIRS && self.values.len() * PAIRS <= probs.pairs);
        let times = VECTOR_PAIRS * self.block.strips();
        let time = VECTOR_PAIRS * strip + part;
        // All of them for the pages of what the next C1 prefetches.
        self.touch(STEP + STEP / 2 * time / times);
        let prefetch = PrefetchRows::of([self.next_in_c2], self.block.passes(times));
        let column = strip * STRIP + part * skinny::VECTOR_PAIR;
        let mut acc = [[_mm512_setzero_ps(); 2]; N];
        for part in &probs.parts[..probs.len] {
            for (vector, values) in self.values.iter().enumerate() {
                let mut lines = prefetch.pass(time * self.values.len() + vector, PAIRS, self);
                let values: &[[_; 2]; PAIRS] = &values.as_chunks().0.as_chunks().0[0];
                // Unrolled, loads and prefetches of several pairs would be moved side by side, and accumulators to the stack.
                for k in 0..self.pairs {
                    lines.prefetch(self);
                    // SAFETY: values are valid for the columns of all strips, of which these are some by the assertion.
                    let v = unsafe { skinny::interleaved_columns(&values[k], column) };
                    // SAFETY: V1 has written the pairs of all vectors of keys in each part that C2 takes, and a vector has no more,
                    // by the assertion.
                    let p = unsafe { part.get_unchecked(vector * PAIRS + k).assume_init_ref() };
                    for r in 0..N {
                        let p = as_pairs(_mm512_set1_epi32(p[r].cast_signed()));
                        acc[r][0] = _mm512_dpbf16_ps(acc[r][0], as_pairs(v[0]), p);
                        acc[r][1] = _mm512_dpbf16_ps(acc[r][1], as_pairs(v[1]), p);
                    }
                }
            }
        }
        for r in 0..N {
            let weight = _mm512_set1_ps(probs.weights[r]);
            let mut sums = read(&o[r], part);
            for i in 0..2 {
                sums[i] = _mm512_fmadd_ps(acc[r][i], weight, sums[i]);
            }
            write(&mut o[r], part, sums);
        }
    }
}

impl<const MLA: bool> Prefetch<1> for Step<'_, MLA> {
    #[inline(always)]
    fn prefetch(&self, [at]: &mut [*const bf16; 1]) {
        self.zmm.prefetch(*at);
        *at = at.wrapping_add(LINE);
    }
}

/// Prefetches lines of a function's code: as long as L1i has a line, L2 sees no use of it, and evicts it for keys; and L1i loses
/// it then.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
fn prefetch_code(zmm: Zmm, code: *const (), lines: usize) {
    for line in 0..lines {
        zmm.prefetch(code.cast::<bf16>().wrapping_add(line * LINE));
    }
}

/// Whether all elements are finite.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
fn finite(row: &[f32; STRIP]) -> bool {
    let wrong = |x| _mm512_fpclass_ps_mask::<NOT_FINITE>(load(x));
    row.as_chunks().0.iter().fold(0, |any, x| any | wrong(x)) == 0
}

/// In each quarter the sums of two lanes side by side of `a`, and then those of `b`.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
fn added(a: __m512, b: __m512) -> __m512 {
    let even = _mm512_shuffle_ps::<0b10_00_10_00>(a, b);
    let odd = _mm512_shuffle_ps::<0b11_01_11_01>(a, b);
    _mm512_add_ps(even, odd)
}

/// The same with quarters in the place of lanes.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
fn added_quarters(a: __m512, b: __m512) -> __m512 {
    let even = _mm512_shuffle_f32x4::<0b10_00_10_00>(a, b);
    let odd = _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b);
    _mm512_add_ps(even, odd)
}

/// Lanes side by side, each in the other's place.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
fn swapped(x: __m512) -> __m512 {
    _mm512_permute_ps::<0b10_11_00_01>(x)
}

/// Halves of a vector, each in the other's place.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
fn swapped_halves(x: __m512) -> __m512 {
    _mm512_shuffle_f32x4::<0b01_00_11_10>(x, x)
}

/// `EACH` pairs of features, for both rows of a vector.
///
/// # Safety
/// `key` is valid for reads of them; no alignment needed.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
unsafe fn broadcast(key: *const bf16) -> __m512bh {
    const { assert!(EACH == 8) };
    // SAFETY: the caller's promise.
    as_pairs(_mm512_broadcast_i64x4(unsafe {
        _mm256_loadu_si256(key.cast())
    }))
}

/// From a lane for each row to both of its lanes.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
fn to_lanes(rows: __m512) -> __m512 {
    _mm512_permutexvar_ps(
        _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7),
        rows,
    )
}

/// From both lanes of a row, which are the same, to one for each row; and copies behind these.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
fn to_rows(lanes: __m512) -> __m512 {
    let first = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 0, 2, 4, 6, 8, 10, 12, 14);
    _mm512_permutexvar_ps(first, lanes)
}

/// A line of each row that C2 will prefetch: one of the middle, so that lines on their way already are spread over all of C2's time.
struct Middles<'a> {
    /// One for each pair of keys, and perhaps others behind them. They may be anywhere.
    rows: &'a [*const bf16],
    column: usize,
}

/// V1 of these keys. Returns whether all scores are finite, also of keys that no row sees.
#[inline(never)]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
#[expect(clippy::too_many_arguments, reason = "called in one place")]
fn softmax(
    kernel: Avx512Bf16,
    call: &Softmax<'_>,
    keys: Range<usize>,
    middles: &Middles<'_>,
    s: &Scores,
    state: &mut RowState,
    increment: &mut [i32; PANEL_ROWS],
    probs: &mut Probs,
) -> bool {
    /// So that latency isn't what limits.
    const CHAINS: usize = GROUP_OF_3 / 2;
    let zmm = kernel.zmm;
    let pairs = keys.len().next_multiple_of(KEYS) / 2;
    let seen = seen(call, keys.start, keys.len());
    let (seen, of, rows) = (
        &seen[..pairs],
        &s.written()[..pairs],
        &middles.rows[..pairs],
    );
    let zero = zmm.splat(0.0);
    let mut max = [zmm.splat(f32::NEG_INFINITY); CHAINS];
    if call.mask.is_none() && keys.len() == STEP {
        // C1 has these keys alone, and has found the largest.
        for i in 0..CHAINS {
            max[i] = load(&s.largest[i]);
        }
    } else {
        let chunks = of.as_chunks::<CHAINS>().0.iter();
        for (s, seen) in chunks.zip(seen.as_chunks::<CHAINS>().0) {
            for i in 0..CHAINS {
                // The second where the first is NaN.
                max[i] = _mm512_mask_max_ps(max[i], seen[i], load(&s[i]), max[i]);
            }
        }
    }
    let mut largest = max[0];
    for i in 1..CHAINS {
        largest = _mm512_max_ps(largest, max[i]);
    }
    let largest = to_rows(_mm512_max_ps(largest, swapped(largest)));
    let so_far = &mut state.max.as_chunks_mut().0[0];
    store(so_far, _mm512_max_ps(largest, load(so_far)));
    let [max, mut offset] = follow::follow(zmm, call, 0, largest, state, increment);
    let exact = call.rescale == Rescale::Exact;
    let two_parts = call.precision == Precision::Bf16x2;
    let scale = zmm.splat(call.scale);
    let mut weight = zmm.splat(1.0);
    if exact && !two_parts {
        [offset, weight] = softmax::weights(zmm, offset);
    }
    store(&mut probs.weights, weight);
    let max = to_lanes(max);
    let offset = to_lanes(offset);
    let factor = to_lanes(load(&state.factor.as_chunks().0[0]));
    let (mut sums, mut zeros, mut stored) = ([zero; 2], [zero; CHAINS], zero);
    let vectors = of.as_chunks::<CHAINS>().0.iter();
    let vectors = vectors.zip(seen.as_chunks::<CHAINS>().0);
    let [high, low] = &mut probs.parts;
    // Of two pairs each.
    let high: &mut [[[_; 2]; CHAINS / 2]] = high.as_chunks_mut().0.as_chunks_mut().0;
    let low: &mut [[[_; 2]; CHAINS / 2]] = low.as_chunks_mut().0.as_chunks_mut().0;
    probs.pairs = 0;
    let vectors = vectors.zip(rows.as_chunks::<CHAINS>().0);
    for (((s, seen), rows), (high, low)) in vectors.zip(high.iter_mut().zip(low)) {
        for row in rows {
            zmm.prefetch(row.wrapping_add(middles.column));
        }
        let mut prob = [zero; CHAINS];
        for i in 0..CHAINS {
            let score = load(&s[i]);
            // NaN where a score isn't finite, which stays.
            zeros[i] = _mm512_or_ps(zeros[i], _mm512_sub_ps(score, score));
            let below = _mm512_sub_ps(score, max);
            prob[i] = _mm512_fmadd_ps(below, scale, offset);
        }
        prob = zmm.exp2_each(prob);
        for i in 0..CHAINS {
            prob[i] = _mm512_maskz_mov_ps(seen[i], prob[i]);
            sums[i % 2] = _mm512_add_ps(sums[i % 2], prob[i]);
            if !exact {
                prob[i] = _mm512_mul_ps(prob[i], factor);
            }
        }
        for i in 0..CHAINS / 2 {
            let prob = [prob[2 * i], prob[2 * i + 1]];
            let pairs = _mm512_cvtne2ps_pbh(prob[1], prob[0]);
            put(&mut high[i], pairs);
            stored = kernel.dots.add(zmm, stored, from_pairs(pairs));
            if two_parts {
                let used = converted(pairs);
                let rest = [
                    _mm512_sub_ps(prob[0], used[0]),
                    _mm512_sub_ps(prob[1], used[1]),
                ];
                let pairs = _mm512_cvtne2ps_pbh(rest[1], rest[0]);
                put(&mut low[i], pairs);
                stored = kernel.dots.add(zmm, stored, from_pairs(pairs));
            }
        }
        probs.pairs += CHAINS;
    }
    let sums = _mm512_add_ps(sums[0], sums[1]);
    let sums = to_rows(_mm512_add_ps(sums, swapped(sums)));
    // Here all rows' pairs of keys are contiguous.
    stored = _mm512_add_ps(stored, swapped_halves(stored));
    for (total, sums) in [
        (&mut state.sum, sums),
        (&mut state.rounded_sum, if exact { stored } else { sums }),
    ] {
        let total = &mut total.as_chunks_mut().0[0];
        store(total, _mm512_fmadd_ps(sums, weight, load(total)));
    }
    let mut all = zeros[0];
    for i in 1..CHAINS {
        all = _mm512_or_ps(all, zeros[i]);
    }
    _mm512_fpclass_ps_mask::<NOT_FINITE>(all) == 0
}

/// P of two pairs of keys.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
fn put(to: &mut [MaybeUninit<[u32; ROWS]>; 2], p: __m512bh) {
    const { assert!(2 * ROWS == LANES) };
    // SAFETY: twice 8 u32 are 64 bytes; no alignment needed.
    unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), from_pairs(p)) }
}

/// In FP32, the first half and then the second.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
fn converted(p: __m512bh) -> [__m512; 2] {
    let p = from_pairs(p);
    let halves = [_mm512_castsi512_si256(p), _mm512_extracti64x4_epi64::<1>(p)];
    let mut wide = [_mm512_setzero_ps(); 2];
    for i in 0..2 {
        let words = _mm512_cvtepu16_epi32(halves[i]);
        wide[i] = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words));
    }
    wide
}

/// Which rows see which of a step's keys.
fn seen(call: &Softmax<'_>, first: usize, len: usize) -> Seen {
    let mut seen = [__mmask16::MAX; _];
    if call.mask.is_none() && len.is_multiple_of(KEYS) {
        return seen;
    }
    for (i, seen) in seen.iter_mut().enumerate() {
        *seen = 0;
        for key in 0..2 {
            let at = 2 * i + key;
            let rows = match call.mask {
                _ if at >= len => 0,
                Some(mask) => mask[first + at],
                None => u64::MAX,
            };
            for r in 0..ROWS {
                *seen |= __mmask16::from(rows >> r & 1 != 0) << (2 * r + key);
            }
        }
    }
    seen
}

impl Scores {
    /// What C1 has written.
    fn written(&self) -> &[[f32; LANES]] {
        // SAFETY: C1 has written `len` of them, tile by tile.
        unsafe { core::slice::from_raw_parts(self.of.as_ptr().cast(), self.of[..self.len].len()) }
    }
}

impl Probs {
    /// Stores P in the tile of other kernels.
    #[cold]
    fn spread(&self, rows: usize, p: &mut L0a) {
        let parts = self.parts[..self.len].iter();
        for (part, to) in parts.zip([&mut p.high, &mut p.low]) {
            let pairs = part[..self.pairs].iter();
            for (pair, to) in pairs.zip(&mut p::blocks_mut(to)[0]) {
                // SAFETY: V1 has written these pairs of each part that C2 takes.
                let pair = unsafe { pair.assume_init_ref() };
                to[..rows].copy_from_slice(&pair[..rows]);
            }
        }
        p.weights[..rows].copy_from_slice(&self.weights[..rows]);
        // The largest has none.
        p.residuals.p = [0; _];
    }
}
