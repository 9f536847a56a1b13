//! C1 and C2 for backends that multiply in FP32, over any vectors: the operands of a
//! 64 x 64 x 96 step are widened into L0B, and one register tile does both.
//!
//! The depth of 96 is the paper's baseK in C1, and half a block's keys in C2; small tiles have
//! fewer rows and keys. Of each pair the odd element comes first, as the dot instructions have it:
//! S is then the same to the bit. The operand across the lanes is widened by the first tile that
//! needs it, on its way through the registers, and used 64 times; the other one a few rows at a
//! time, so that out-of-order execution hides it behind the tile before.
#![allow(unsafe_code, reason = "loads of single numbers within a register tile")]
#![allow(
    clippy::needless_range_loop,
    reason = "counted loops unroll early, so that accumulators become registers"
)]

pub mod few;

use core::ops::Range;

use half::bf16;

use super::prefetch::{Ahead, LINE};
use super::simd::{Simd, even, lanes, lanes_mut, odd, pairs};
use super::{Left, Pv, Rows, scalar};
use crate::tile::{
    BLOCK_PAIRS, L0a, L0b, OStrip, PANEL_ROWS, PTileWhole, STRIP, STile, VBuffer, Widened, ascend,
};

/// Pairs of one step of C1.
const PAIRS: usize = ascend::BASE_K / 2;
/// Its depth, a pair of which are two.
const DEPTH: usize = 2 * PAIRS;
/// Pairs of one step of C2: half of a block's.
const KEY_PAIRS: usize = BLOCK_PAIRS / 2;

/// The operand of which single numbers meet whole vectors: that of the tile's row `m` and
/// element `h` (the odd one first) of pair `p` lies at `m * ROW + p * PAIR + h * HALF`.
struct Single<'a, const ROW: usize, const PAIR: usize, const HALF: usize>(&'a [f32]);

/// Pairs between C1's requests to memory where it makes them for panels of `asking` rows at most:
/// else all of a tile.
pub const fn step(rows: usize, asking: usize) -> usize {
    if rows <= asking { 8 } else { PAIRS }
}

/// C1: keys, their odd elements before the even ones.
type Keys<'a> = Single<'a, DEPTH, 1, PAIRS>;
/// C2: P, keys x rows.
type Probabilities<'a> = Single<'a, 1, { 2 * PANEL_ROWS }, PANEL_ROWS>;
/// The operand across the lanes, widened: of each pair the odd element's row first.
type Operand<const WIDTH: usize, const PAIRS: usize> = [[[f32; WIDTH]; 2]; PAIRS];

/// The operand across the lanes before it is widened, by pairs.
trait Narrow<S: Simd> {
    /// Element `h` of pair `p`.
    type Row<'a>: Copy
    where
        Self: 'a;
    /// How many pairs there are.
    fn pairs(&self) -> usize;
    /// Element `h` (the odd one first) of pair `p`.
    fn row(&self, simd: S, p: usize, h: usize) -> Self::Row<'_>;
    /// Its vector `v`.
    fn vector(&self, simd: S, row: Self::Row<'_>, v: usize) -> S::F32;
}

/// Q: pairs of features.
struct Queries<'a>(&'a [[u32; PANEL_ROWS]]);

impl<S: Simd> Narrow<S> for Queries<'_> {
    type Row<'a>
        = (usize, usize)
    where
        Self: 'a;

    #[inline(always)]
    fn pairs(&self) -> usize {
        self.0.len()
    }

    #[inline(always)]
    fn row(&self, _simd: S, p: usize, h: usize) -> (usize, usize) {
        (p, h)
    }

    #[inline(always)]
    fn vector(&self, simd: S, (p, h): (usize, usize), v: usize) -> S::F32 {
        let pairs = simd.to_bits(simd.load(&pairs::<S>(&self.0[p])[v]));
        if h == 0 {
            odd(simd, pairs)
        } else {
            even(simd, pairs)
        }
    }
}

/// V: the columns of a strip, as they lie in the cache. Of two vectors one has the columns of
/// even index, one the others: that is what widening yields.
struct Values<'a> {
    /// At least one, and the strip lies within each.
    rows: &'a [&'a [bf16]],
    strip: usize,
}

impl<S: Simd> Narrow<S> for Values<'_> {
    type Row<'a>
        = &'a [bf16; STRIP]
    where
        Self: 'a;

    #[inline(always)]
    fn pairs(&self) -> usize {
        self.rows.len().div_ceil(2)
    }

    #[inline(always)]
    fn row(&self, simd: S, p: usize, h: usize) -> &[bf16; STRIP] {
        static ZEROS: [bf16; STRIP] = [bf16::ZERO; _];
        let (k, last) = (2 * p + 1 - h, self.rows.len() - 1);
        // SAFETY: both indices are at most `last`, of a row that there is, as `pv`, which alone makes one of these, takes its
        // rows from `chunks`, none of which is empty; the strip lies within every row, as `pv` asserts.
        let [row, ahead] = unsafe {
            [k, k + AHEAD].map(|k| {
                let row = self.rows.get_unchecked(k.min(last)).as_ptr();
                row.add(self.strip * STRIP)
            })
        };
        simd.prefetch(ahead);
        simd.prefetch(ahead.wrapping_add(LINE));
        if k > last {
            return &ZEROS;
        }
        // SAFETY: STRIP elements from `row` on lie within the row, as argued above, and are
        // borrowed for as long as `self`.
        unsafe { &*row.cast() }
    }

    #[inline(always)]
    fn vector(&self, simd: S, row: &[bf16; STRIP], v: usize) -> S::F32 {
        let pairs = simd.load_pairs(&row[v / 2 * 2 * S::LANES..]);
        if v.is_multiple_of(2) {
            even(simd, pairs)
        } else {
            odd(simd, pairs)
        }
    }
}

/// Rows of V asked for before they are needed.
const AHEAD: usize = 8;

/// What becomes of what is there.
#[derive(Clone, Copy)]
enum Start<'a> {
    /// It is overwritten.
    Zero,
    /// The accumulators start from it.
    Load,
    /// The accumulators start from zero and are added to it at the end.
    Add,
    /// The accumulators start from it after adding each row's increment to its
    /// bits.
    Rescale(&'a [i32]),
}

/// The register tile: `c[m][n] (+)= sum over k of a[m][k] * b[k][n]` for `M` rows and the
/// `N` vectors from `column` on. With `FIRST` it widens `b` from the narrow operand and tells
/// whether all that it added up is finite.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "inlined everywhere")]
fn tile<
    S: Simd,
    const M: usize,
    const N: usize,
    const FIRST: bool,
    const STEP: usize,
    const ROW: usize,
    const PAIR: usize,
    const HALF: usize,
    const WIDTH: usize,
    const PAIRS: usize,
>(
    simd: S,
    a: &Single<'_, ROW, PAIR, HALF>,
    narrow: &impl Narrow<S>,
    b: &mut Operand<WIDTH, PAIRS>,
    column: usize,
    start: Start<'_>,
    c: &mut [[f32; WIDTH]],
    ahead: &mut Ahead<'_>,
) -> bool {
    let c = &mut c[..M];
    let first = column / S::LANES;
    assert!(first + N <= WIDTH / S::LANES && narrow.pairs() <= PAIRS);
    assert!(a.0.len() > (M - 1) * ROW + (PAIRS - 1) * PAIR + HALF);
    if let Start::Rescale(increment) = start {
        // In L1, not in the accumulators: those must be indexed by constants alone to stay in
        // registers, and this loop is too long to be unrolled.
        rescale_rows(simd, c, &increment[..M], first..first + N);
    }
    let mut acc = [[simd.splat(0.0); N]; M];
    if matches!(start, Start::Load | Start::Rescale(_)) {
        for m in 0..M {
            let c = &lanes::<S>(&c[m])[first..first + N];
            for v in 0..N {
                acc[m][v] = simd.load(&c[v]);
            }
        }
    }
    let pairs = narrow.pairs();
    if STEP < PAIRS {
        for step in (0..pairs).step_by(STEP) {
            ahead.step_far(simd);
            let some = step..pairs.min(step + STEP);
            accumulate::<S, M, N, FIRST, ROW, PAIR, HALF, _, _>(
                simd, a, narrow, b, first, some, &mut acc,
            );
        }
    } else {
        accumulate::<S, M, N, FIRST, ROW, PAIR, HALF, _, _>(
            simd,
            a,
            narrow,
            b,
            first,
            0..pairs,
            &mut acc,
        );
    }
    for m in 0..M {
        let c = &mut lanes_mut::<S>(&mut c[m])[first..first + N];
        for v in 0..N {
            let sum = match start {
                Start::Add => simd.add(simd.load(&c[v]), acc[m][v]),
                _ => acc[m][v],
            };
            simd.store(sum, &mut c[v]);
        }
    }
    if !FIRST {
        return true;
    }
    // What isn't finite leaves NaN.
    let zero = simd.splat(0.0);
    let mut wrong = zero;
    for m in 0..M {
        for v in 0..N {
            wrong = simd.add(wrong, simd.sub(acc[m][v], acc[m][v]));
        }
    }
    simd.sum_lanes([wrong, zero, zero, zero])[0] == 0.0
}

/// The products of some pairs, added up in registers.
#[inline(always)]
fn accumulate<
    S: Simd,
    const M: usize,
    const N: usize,
    const FIRST: bool,
    const ROW: usize,
    const PAIR: usize,
    const HALF: usize,
    const WIDTH: usize,
    const PAIRS: usize,
>(
    simd: S,
    a: &Single<'_, ROW, PAIR, HALF>,
    narrow: &impl Narrow<S>,
    b: &mut Operand<WIDTH, PAIRS>,
    first: usize,
    pairs: Range<usize>,
    acc: &mut [[S::F32; N]; M],
) {
    for (i, b) in b[pairs.clone()].iter_mut().enumerate() {
        let p = pairs.start + i;
        for h in 0..2 {
            let b = &mut lanes_mut::<S>(&mut b[h])[first..first + N];
            let mut vectors = [simd.splat(0.0); N];
            if FIRST {
                let row = narrow.row(simd, p, h);
                for v in 0..N {
                    vectors[v] = narrow.vector(simd, row, first + v);
                    simd.store(vectors[v], &mut b[v]);
                }
            } else {
                for v in 0..N {
                    vectors[v] = simd.load(&b[v]);
                }
            }
            for m in 0..M {
                // SAFETY: m < M, p < PAIRS and h < 2: within what `tile` asserted.
                let x = unsafe { *a.0.as_ptr().add(m * ROW + p * PAIR + h * HALF) };
                let x = simd.splat(x);
                for v in 0..N {
                    acc[m][v] = simd.mul_add(x, vectors[v], acc[m][v]);
                }
            }
        }
    }
}

/// [`super::Kernel::qk`] with register tiles of `KEYS` keys x `N` vectors.
#[inline(always)]
pub fn qk<S: Simd, const KEYS: usize, const N: usize, const STEP: usize>(
    simd: S,
    q: &[[u32; PANEL_ROWS]],
    rows: usize,
    keys: &Rows<'_>,
    next: &[&[bf16]],
    scratch: &mut L0b,
    s: &mut STile,
) {
    let keys = keys.as_slice();
    let tiles = keys.len().div_ceil(KEYS) * rows.div_ceil(N * S::LANES);
    let ahead = &mut Ahead::of(next, tiles * q.len() / STEP);
    let [a, b] = scratch;
    let (a, b) = (a.0.as_flattened_mut(), operand(b));
    let (whole, rest) = q.as_chunks::<PAIRS>();
    for (step, q) in whole.iter().enumerate() {
        let feature = step * DEPTH;
        qk_step::<S, KEYS, N, STEP, DEPTH>(simd, q, rows, keys, feature, a, b, s, ahead);
    }
    let feature = whole.len() * DEPTH;
    match rest.len() {
        0 => {}
        16 => qk_step::<S, KEYS, N, STEP, 32>(simd, rest, rows, keys, feature, a, b, s, ahead),
        _ => qk_step::<S, KEYS, N, STEP, 64>(simd, rest, rows, keys, feature, a, b, s, ahead),
    }
}

/// `WIDTH` features from `feature` on.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "inlined everywhere")]
fn qk_step<S: Simd, const KEYS: usize, const N: usize, const STEP: usize, const WIDTH: usize>(
    simd: S,
    q: &[[u32; PANEL_ROWS]],
    rows: usize,
    keys: &[&[bf16]],
    feature: usize,
    a: &mut [f32],
    b: &mut Operand<PANEL_ROWS, PAIRS>,
    s: &mut STile,
    ahead: &mut Ahead<'_>,
) {
    let start = if feature == 0 {
        Start::Zero
    } else {
        Start::Add
    };
    for first in (0..keys.len()).step_by(KEYS) {
        // Unless they were asked for long before.
        if STEP == PAIRS {
            for row in keys.iter().skip(first + KEYS).take(KEYS) {
                let row = &row[feature..feature + WIDTH];
                for line in (0..WIDTH).step_by(LINE) {
                    simd.prefetch(&raw const row[line]);
                }
            }
        }
        for (i, a) in a.chunks_exact_mut(DEPTH).take(KEYS).enumerate() {
            // A group at the end repeats its last key; nobody reads the copies.
            let key = &keys[(first + i).min(keys.len() - 1)][feature..feature + WIDTH];
            widen_key::<S, WIDTH>(simd, key, a);
        }
        let (a, q, s) = (&Keys::of(a), &Queries(q), &mut s.0[first..]);
        for column in (0..rows).step_by(N * S::LANES) {
            if first == 0 {
                tile::<S, KEYS, N, true, STEP, DEPTH, 1, PAIRS, _, _>(
                    simd, a, q, b, column, start, s, ahead,
                );
            } else {
                tile::<S, KEYS, N, false, STEP, DEPTH, 1, PAIRS, _, _>(
                    simd, a, q, b, column, start, s, ahead,
                );
            }
        }
    }
}

impl<'a, const ROW: usize, const PAIR: usize, const HALF: usize> Single<'a, ROW, PAIR, HALF> {
    const fn of(numbers: &'a [f32]) -> Self {
        Self(numbers)
    }
}

/// Both [`super::Kernel::pv`] and [`super::Kernel::pv_direct`], over values wherever they lie,
/// with register tiles of 6 rows x `N` vectors.
#[inline(always)]
pub fn pv<S: Simd, const N: usize>(
    simd: S,
    call: &Pv<'_>,
    p: &L0a,
    values: &[&[bf16]],
    scratch: &mut L0b,
    o: &mut [OStrip],
) -> Left {
    assert!(values.iter().all(|row| row.len() >= o.len() * STRIP));
    let nothing = &mut Ahead::of(&[], 0);
    let [draft, b] = scratch;
    let (draft, b) = (
        &mut draft.0.as_flattened_mut().as_chunks_mut().0[..HEIGHT],
        operand(b),
    );
    let mut left = Left::NOTHING;
    for (half, (p, rows)) in p
        .whole()
        .into_iter()
        .zip(values.chunks(2 * KEY_PAIRS))
        .enumerate()
    {
        for (strip, o) in o.iter_mut().enumerate() {
            let bit = 1 << strip;
            if left.all & bit != 0 {
                continue;
            }
            let values = Values { rows, strip };
            let start = match call.increment {
                _ if half > 0 => Start::Load,
                Some(increment) => Start::Rescale(increment),
                None => Start::Zero,
            };
            if !pv_strip::<S, N>(simd, call.rows, p, &values, draft, b, start, o, nothing) {
                let left = if half == 0 {
                    &mut left.all
                } else {
                    &mut left.tail
                };
                *left |= bit;
            }
        }
    }
    left
}

/// Rows of a register tile of C2.
const HEIGHT: usize = 6;

/// One strip and half of the keys; `false`, and O as it was, if V isn't finite.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "inlined everywhere")]
fn pv_strip<S: Simd, const N: usize>(
    simd: S,
    rows: usize,
    p: &PTileWhole,
    values: &Values<'_>,
    draft: &mut [[f32; STRIP]],
    b: &mut Operand<STRIP, KEY_PAIRS>,
    start: Start<'_>,
    o: &mut OStrip,
    ahead: &mut Ahead<'_>,
) -> bool {
    let p = p.as_flattened().as_flattened();
    // The first rows go by way of a draft, until all values are known to be finite: one that
    // isn't makes no row's O finite, since 0 times it is NaN.
    let first = rows.min(HEIGHT);
    let draft = &mut draft[..first];
    if !matches!(start, Start::Zero) {
        copy_rows(simd, &o[..first], draft);
    }
    if let Start::Rescale(increment) = start {
        rescale_rows(simd, draft, &increment[..first], 0..STRIP / S::LANES);
    }
    let mut finite = true;
    for column in (0..STRIP).step_by(N * S::LANES) {
        let start = match start {
            Start::Zero => start,
            _ => Start::Load,
        };
        let a = &Probabilities::of(p);
        finite &= pv_tile::<S, N, true>(simd, first, a, values, b, column, start, draft, ahead);
    }
    if !finite {
        let columns = values.strip * STRIP..(values.strip + 1) * STRIP;
        if !scalar::finite(values.rows.iter().copied(), &columns) {
            return false;
        }
    }
    copy_rows(simd, draft, &mut o[..first]);
    for column in (0..STRIP).step_by(N * S::LANES) {
        let mut row = first;
        while row < rows {
            let start = match start {
                Start::Rescale(increment) => Start::Rescale(&increment[row..]),
                _ => start,
            };
            let a = &Probabilities::of(&p[row..]);
            let height = (rows - row).min(first);
            let o = &mut o[row..];
            pv_tile::<S, N, false>(simd, height, a, values, b, column, start, o, ahead);
            row += height;
        }
    }
    true
}

/// Vector by vector: calls of `memcpy` for so little are 1 % of C2.
#[inline(always)]
fn copy_rows<S: Simd>(simd: S, from: &[[f32; STRIP]], to: &mut [[f32; STRIP]]) {
    for (from, to) in from.iter().zip(to) {
        for (from, to) in lanes::<S>(from).iter().zip(lanes_mut::<S>(to)) {
            simd.store(simd.load(from), to);
        }
    }
}

/// Adds each row's increment to the bits of some of its vectors.
#[inline(always)]
fn rescale_rows<S: Simd, const WIDTH: usize>(
    simd: S,
    rows: &mut [[f32; WIDTH]],
    increment: &[i32],
    vectors: Range<usize>,
) {
    for (row, &increment) in rows.iter_mut().zip(increment) {
        // Most blocks don't move the reference: nothing to add then.
        if increment != 0 {
            for x in &mut lanes_mut::<S>(row)[vectors.clone()] {
                let moved = simd.add_increment(simd.load(x), increment);
                simd.store(moved, x);
            }
        }
    }
}

/// One tile of C2 of `rows` rows.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "inlined everywhere")]
fn pv_tile<S: Simd, const N: usize, const FIRST: bool>(
    simd: S,
    rows: usize,
    a: &Probabilities<'_>,
    v: &Values<'_>,
    b: &mut Operand<STRIP, KEY_PAIRS>,
    column: usize,
    start: Start<'_>,
    o: &mut [[f32; STRIP]],
    ahead: &mut Ahead<'_>,
) -> bool {
    const PAIR: usize = 2 * PANEL_ROWS;
    match rows {
        1 => tile::<S, 1, N, FIRST, KEY_PAIRS, 1, PAIR, PANEL_ROWS, _, _>(
            simd, a, v, b, column, start, o, ahead,
        ),
        2 => tile::<S, 2, N, FIRST, KEY_PAIRS, 1, PAIR, PANEL_ROWS, _, _>(
            simd, a, v, b, column, start, o, ahead,
        ),
        3 => tile::<S, 3, N, FIRST, KEY_PAIRS, 1, PAIR, PANEL_ROWS, _, _>(
            simd, a, v, b, column, start, o, ahead,
        ),
        4 => tile::<S, 4, N, FIRST, KEY_PAIRS, 1, PAIR, PANEL_ROWS, _, _>(
            simd, a, v, b, column, start, o, ahead,
        ),
        5 => tile::<S, 5, N, FIRST, KEY_PAIRS, 1, PAIR, PANEL_ROWS, _, _>(
            simd, a, v, b, column, start, o, ahead,
        ),
        _ => tile::<S, 6, N, FIRST, KEY_PAIRS, 1, PAIR, PANEL_ROWS, _, _>(
            simd, a, v, b, column, start, o, ahead,
        ),
    }
}

/// L0B's memory as an operand.
#[inline(always)]
fn operand<const WIDTH: usize, const PAIRS: usize>(
    memory: &mut Widened,
) -> &mut Operand<WIDTH, PAIRS> {
    let numbers = &mut memory.0.as_flattened_mut()[..2 * WIDTH * PAIRS];
    &mut bytemuck::cast_slice_mut(numbers)[0]
}

/// Widens `WIDTH` features of a key, the odd ones before the even ones.
#[inline(always)]
fn widen_key<S: Simd, const WIDTH: usize>(simd: S, key: &[bf16], to: &mut [f32]) {
    let (odds, evens) = to.split_at_mut(PAIRS);
    let (odds, evens) = (lanes_mut::<S>(odds), lanes_mut::<S>(evens));
    for v in 0..WIDTH / 2 / S::LANES {
        let pairs = simd.load_pairs(&key[2 * v * S::LANES..]);
        simd.store(odd(simd, pairs), &mut odds[v]);
        simd.store(even(simd, pairs), &mut evens[v]);
    }
}

/// [`super::Kernel::pack_v`]: values that nobody can use as they lie, one behind the other.
#[inline(always)]
pub fn pack_v(d_v: usize, values: &[&[bf16]], first: usize, v: &mut [VBuffer; 3]) -> bool {
    let strips = v.as_flattened_mut().iter_mut();
    let rows = strips.flat_map(|strip| {
        let memory: &mut [bf16] = bytemuck::cast_slice_mut(strip.0.as_flattened_mut());
        memory.chunks_exact_mut(d_v)
    });
    let mut non_finite = false;
    for (value, row) in values.iter().zip(rows.skip(first)) {
        for (value, row) in value.iter().zip(row) {
            *row = *value;
            non_finite |= value.to_bits() & 0x7f80 == 0x7f80;
        }
    }
    non_finite
}

/// What [`pack_v`] left.
#[inline(always)]
pub fn packed(d_v: usize, v: &[VBuffer; 3], keys: usize) -> Rows<'_> {
    let mut rows = Rows::NONE;
    rows.gather(
        v.as_flattened()
            .iter()
            .flat_map(|strip| {
                let memory: &[bf16] = bytemuck::cast_slice(strip.0.as_flattened());
                memory.chunks_exact(d_v)
            })
            .take(keys),
    );
    rows
}

/// Puts the columns of O in order, or `back` into that of [`Values`].
#[inline(always)]
pub fn settle<S: Simd>(simd: S, o: &mut [OStrip], rows: usize, back: bool) {
    for o in o.iter_mut().flat_map(|o| &mut o[..rows]) {
        for [a, b] in lanes_mut::<S>(o).as_chunks_mut().0 {
            let pair = [simd.load(a), simd.load(b)];
            let [first, second] = if back {
                simd.deinterleave(pair[0], pair[1])
            } else {
                simd.interleave(pair[0], pair[1])
            };
            simd.store(first, a);
            simd.store(second, b);
        }
    }
}

/// [`super::Kernel::prob`]
pub fn prob(p: &L0a, k: usize, r: usize) -> f32 {
    let (half, k) = (k / Left::TAIL, k % Left::TAIL);
    p.whole()[half][k / 2][1 - k % 2][r]
}

/// Puts it there.
#[cfg_attr(
    not(all(target_arch = "x86_64", target_feature = "sse2")),
    allow(dead_code, reason = "for backends of other processors")
)]
pub fn put_prob(p: &mut L0a, k: usize, r: usize, prob: f32) {
    let (half, k) = (k / Left::TAIL, k % Left::TAIL);
    p.whole_mut()[half][k / 2][1 - k % 2][r] = prob;
}

/// [`super::Kernel::dot_loop`] with `CHAINS` independent sums.
#[inline(always)]
pub fn dot_loop<S: Simd, const CHAINS: usize>(simd: S, iterations: u64) -> u64 {
    let mut acc = [simd.splat(0.0); CHAINS];
    let x = simd.splat(core::hint::black_box(0.5));
    for _ in 0..iterations {
        for acc in &mut acc {
            *acc = simd.mul_add(x, *acc, x);
        }
    }
    for acc in acc {
        let mut out = <S::Lanes as bytemuck::Zeroable>::zeroed();
        simd.store(acc, &mut out);
        core::hint::black_box(out);
    }
    iterations * (CHAINS * S::LANES * 2) as u64
}

/// Makes a capability token that has vectors ([`Simd`]) a backend: each kernel inlined
/// into a function that has the features, if there are any.
///
/// Register tiles of C1 are `keys x vectors`, each for panels of up to so many rows; of
/// C2, rows x `vectors`. Up to `asking` rows C1 asks memory for rows to come. What goes through all stages a few keys
/// at a time is a module, if there is one: `stream`.
macro_rules! backend {
    (
        $token:ident $(, features: $features:literal)?;
        pack: $pack:ident;
        c1: $($rows:pat => $keys:literal x $vectors:literal),*;
        c2: $columns:literal;
        asking: $asking:literal;
        $(stream: $stream:ident;)?
        chains: $chains:literal;
    ) => {
        #[allow(unsafe_code, reason = "calls of feature-gated functions")]
        #[allow(unused_unsafe, reason = "without features they are safe")]
        impl Kernel for $token {
            const DIRECT_ROWS: usize = usize::MAX;
            const ASKING_ROWS: usize = $asking;
            $(const STREAM_ROWS: usize = $stream::ROWS;)?

            fn pv_asks(self, rows: usize) -> usize {
                // With streams, few rows are what is left of many.
                if Self::STREAM_ROWS == 0 && rows <= fp32::few::FEW_ROWS {
                    64
                } else {
                    0
                }
            }

            fn lead(rows: usize) -> usize {
                // Panels read parts of all keys of a block before the next parts.
                if rows <= fp32::few::FEW_ROWS { 16 } else { $crate::tile::BLOCK_KEYS }
            }

            fn prob(self, p: &L0a, _precision: Precision, k: usize, r: usize) -> f32 {
                fp32::prob(p, k, r)
            }

            fn widen(self, row: &Row<'_>, out: &mut [bf16]) {
                $(#[target_feature(enable = $features)])?
                fn run(simd: $token, row: &Row<'_>, out: &mut [bf16]) {
                    $pack::widen_row(simd, row, out);
                }
                // SAFETY: the token proves the features.
                unsafe { run(self, row, out) }
            }

            fn pack_q<const D_QK: usize>(self, rows: &[&[bf16]], negate: bool, panel: &mut QPanel) {
                $(#[target_feature(enable = $features)])?
                fn run<const D_QK: usize>(
                    simd: $token,
                    rows: &[&[bf16]],
                    negate: bool,
                    panel: &mut QPanel,
                ) {
                    if rows.len() <= fp32::few::FEW_ROWS {
                        fp32::few::pack_q(simd, D_QK, rows, negate, panel);
                    } else {
                        $pack::pack_q::<D_QK>(simd, rows, negate, panel);
                    }
                }
                // SAFETY: the token proves the features.
                unsafe { run::<D_QK>(self, rows, negate, panel) }
            }

            fn pack_v<const D_V: usize>(
                self,
                values: &[&[bf16]],
                first: usize,
                _next: &[&[bf16]],
                v: &mut [VBuffer; 3],
            ) -> bool {
                $(#[target_feature(enable = $features)])?
                fn run(
                    d_v: usize,
                    values: &[&[bf16]],
                    first: usize,
                    v: &mut [VBuffer; 3],
                ) -> bool {
                    fp32::pack_v(d_v, values, first, v)
                }
                // SAFETY: the token proves the features.
                unsafe { run(D_V, values, first, v) }
            }

            fn settle(self, o: &mut [OStrip], rows: usize, back: bool) {
                $(#[target_feature(enable = $features)])?
                fn run(simd: $token, o: &mut [OStrip], rows: usize, back: bool) {
                    fp32::settle(simd, o, rows, back);
                }
                // SAFETY: the token proves the features.
                unsafe { run(self, o, rows, back) }
            }

            fn qk<const D_QK: usize>(
                self,
                q: &QPanel,
                rows: usize,
                keys: &Rows<'_>,
                next: &[&[bf16]],
                scratch: &mut L0b,
                s: &mut STile,
            ) -> Option<$crate::kernel::Maxima> {
                $(#[target_feature(enable = $features)])?
                fn few(
                    simd: $token,
                    q: &[f32],
                    rows: usize,
                    keys: &Rows<'_>,
                    next: &[&[bf16]],
                    s: &mut STile,
                ) {
                    fp32::few::qk(simd, q, rows, keys, next, s);
                }
                $(#[target_feature(enable = $features)])?
                fn run<const KEYS: usize, const VECTORS: usize, const STEP: usize>(
                    simd: $token,
                    q: &[[u32; crate::tile::PANEL_ROWS]],
                    rows: usize,
                    keys: &Rows<'_>,
                    next: &[&[bf16]],
                    scratch: &mut L0b,
                    s: &mut STile,
                ) {
                    fp32::qk::<_, KEYS, VECTORS, STEP>(simd, q, rows, keys, next, scratch, s);
                }
                // SAFETY: the token proves the features.
                unsafe {
                    match rows {
                        ..=fp32::few::FEW_ROWS => {
                            let q = bytemuck::cast_slice(q.0.as_flattened());
                            few(self, &q[..rows * D_QK], rows, keys, next, s);
                        }
                        $($rows => {
                            let q = &q.0[..D_QK / 2];
                            run::<$keys, $vectors, { fp32::step($vectors * <$token as simd::Simd>::LANES, $asking) }>(self, q, rows, keys, next, scratch, s);
                        })*
                    }
                }
                None
            }

            fn softmax(self, call: &Softmax<'_>, s: &STile, p: &mut L0a, state: &mut RowState) {
                $(#[target_feature(enable = $features)])?
                fn run(
                    simd: $token,
                    call: &Softmax<'_>,
                    s: &STile,
                    p: &mut L0a,
                    state: &mut RowState,
                ) {
                    softmax::softmax(simd, softmax::Whole, call, s, p, state, || ());
                }
                // SAFETY: the token proves the features.
                unsafe { run(self, call, s, p, state) }
            }

            fn pv<const D_V: usize>(
                self,
                call: &Pv<'_>,
                p: &L0a,
                v: &[VBuffer; 3],
                scratch: &mut L0b,
                o: &mut [OStrip],
            ) -> Left {
                let values = fp32::packed(D_V, v, call.keys);
                let call = Pv { next: &[], ..*call };
                self.pv_direct::<D_V>(&call, p, &values, scratch, o)
            }

            fn pv_direct<const D_V: usize>(
                self,
                call: &Pv<'_>,
                p: &L0a,
                values: &Rows<'_>,
                scratch: &mut L0b,
                o: &mut [OStrip],
            ) -> Left {
                let o = &mut o[..D_V / STRIP];
                $(#[target_feature(enable = $features)])?
                fn few(
                    simd: $token,
                    call: &Pv<'_>,
                    p: &L0a,
                    values: &Rows<'_>,
                    scratch: &mut L0b,
                    o: &mut [OStrip],
                ) -> Left {
                    fp32::few::pv(simd, call, p, values, scratch, o)
                }
                $(#[target_feature(enable = $features)])?
                fn run(
                    simd: $token,
                    call: &Pv<'_>,
                    p: &L0a,
                    values: &Rows<'_>,
                    scratch: &mut L0b,
                    o: &mut [OStrip],
                ) -> Left {
                    let values = values.as_slice();
                    fp32::pv::<_, $columns>(simd, call, p, values, scratch, o)
                }
                // SAFETY: the token proves the features.
                unsafe {
                    if self.pv_asks(call.rows) > 0 {
                        few(self, call, p, values, scratch, o)
                    } else {
                        run(self, call, p, values, scratch, o)
                    }
                }
            }

            $(
                fn pack_stream_q<const D_QK: usize>(
                    self,
                    rows: &[&[bf16]],
                    negate: bool,
                    panel: &mut QPanel,
                ) {
                    // SAFETY: the token proves the features.
                    unsafe { $stream::pack_q(self, D_QK, rows, negate, panel) }
                }

                fn stream<const D_QK: usize, const D_V: usize>(
                    self,
                    call: &Softmax<'_>,
                    block: &$crate::kernel::Streams<'_, D_QK, D_V>,
                    from: usize,
                    p: &mut L0a,
                    state: &mut RowState,
                    o: &mut [OStrip],
                ) -> $crate::kernel::Streamed {
                    // SAFETY: the token proves the features.
                    unsafe { $stream::stream(self, call, block, from, p, state, o) }
                }

                fn settle_stream(self, o: &mut [OStrip], rows: usize, back: bool) {
                    $stream::settle(o, rows, back);
                }
            )?

            fn rescale(self, xs: &mut [f32], increment: Increment) {
                $(#[target_feature(enable = $features)])?
                fn run(simd: $token, xs: &mut [f32], increment: Increment) {
                    simd::rescale(simd, xs, increment);
                }
                // SAFETY: the token proves the features.
                unsafe { run(self, xs, increment) }
            }

            fn close(
                self,
                call: &Close<'_>,
                earlier: Option<&OStrip>,
                o: &mut OStrip,
                put: impl FnMut(usize, &[f32; STRIP]),
            ) {
                $(#[target_feature(enable = $features)])?
                fn run(
                    simd: $token,
                    call: &Close<'_>,
                    earlier: Option<&OStrip>,
                    o: &mut OStrip,
                    put: impl FnMut(usize, &[f32; STRIP]),
                ) {
                    simd::close(simd, true, call, earlier, o, put);
                }
                // SAFETY: the token proves the features.
                unsafe { run(self, call, earlier, o, put) }
            }

            fn dot_loop(self, iterations: u64) -> u64 {
                $(#[target_feature(enable = $features)])?
                fn run(simd: $token, iterations: u64) -> u64 {
                    fp32::dot_loop::<_, $chains>(simd, iterations)
                }
                // SAFETY: the token proves the features.
                unsafe { run(self, iterations) }
            }
        }
    };
}
pub(super) use backend;
