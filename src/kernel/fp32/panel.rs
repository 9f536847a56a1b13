//! C1 and C2 of panels for backends that multiply in FP32, over any vectors: the operands of a
//! 64 x 64 x 96 step are converted into L0B, and one register tile does both.
//!
//! The depth of 96 is the paper's baseK in C1, and half a block's keys in C2; small tiles have
//! fewer rows and keys. Of each pair the odd element comes first, as the dot instructions have it:
//! S is then the same to the bit. The operand across the lanes is converted by the first tile that
//! needs it, on its way through the registers, and used by all rows; the other one is converted a few rows at a
//! time, so that out-of-order execution hides it behind the tile before.
#![allow(unsafe_code, reason = "loads of single numbers within a register tile")]
#![allow(
    clippy::needless_range_loop,
    reason = "counted loops unroll early, so that accumulators become registers"
)]

use core::ops::Range;

use half::bf16;

use crate::kernel::prefetch::{Hint, LINE, Spread};
use crate::kernel::simd::{Simd, even, lanes, lanes_mut, odd, pairs, rescale_rows};
use crate::kernel::{Columns, Pv, Qk, Skipped, scalar};
use crate::tile::{BLOCK_PAIRS, Fp32Tile, L0a, L0b, ORow, PANEL_ROWS, STRIP, STile, ascend};

/// Pairs of one step of C1.
const PAIRS: usize = ascend::BASE_K / 2;
/// Its depth, a pair of which are two.
const DEPTH: usize = 2 * PAIRS;
/// Pairs of one step of C2: half of a block's.
const KEY_PAIRS: usize = BLOCK_PAIRS / 2;

/// The operand of which single numbers meet steps vectors: that of the tile's row `m` and
/// element `h` (the odd one first) of pair `p` is at `m * ROW + p * PAIR + h * HALF`.
struct Single<'a, const ROW: usize, const PAIR: usize, const HALF: usize>(&'a [f32]);

/// Pairs between C1's prefetches of keys to come, which are for panels of `prefetching` rows at most:
/// else all of a tile.
pub const fn step(rows: usize, prefetching: usize) -> usize {
    if rows <= prefetching { 8 } else { PAIRS }
}

/// C1: keys, their odd elements before the even ones.
type Keys<'a> = Single<'a, DEPTH, 1, PAIRS>;
/// C2: P, keys x rows.
type Probabilities<'a> = Single<'a, 1, { 2 * PANEL_ROWS }, PANEL_ROWS>;
/// The operand across the lanes, converted: of each pair the odd element's row first.
type Operand<const WIDTH: usize, const PAIRS: usize> = [[[f32; WIDTH]; 2]; PAIRS];

/// The operand across the lanes before it is converted, by pairs.
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

/// V: the columns of a strip, as in the cache. Of two vectors one has the columns of
/// even index, one the others: that is what conversion yields.
struct Values<'a> {
    /// At least one, and the strip is within each.
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
        // rows from `chunks`, none of which is empty; the strip is within every row, as `pv` asserts.
        let [row, prefetch] = unsafe {
            [k, k + DISTANCE].map(|k| {
                let row = self.rows.get_unchecked(k.min(last)).as_ptr();
                row.add(self.strip * STRIP)
            })
        };
        simd.prefetch(prefetch);
        simd.prefetch(prefetch.wrapping_add(LINE));
        if k > last {
            return &ZEROS;
        }
        // SAFETY: STRIP elements from `row` on are within the row, as argued above, and are
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

/// Rows of V between a row and the one that is prefetched with it.
const DISTANCE: usize = 8;

/// What the accumulators start from.
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
/// `N` vectors from `column` on. With `FIRST` it converts `b` from the narrow operand and tells
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
    prefetch: &mut Spread<'_>,
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
            prefetch.step(simd, Hint::L2);
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

/// [`crate::kernel::Kernel::qk`] with register tiles of `KEYS` keys x `N` vectors.
#[inline(always)]
pub fn qk<S: Simd, const KEYS: usize, const N: usize, const STEP: usize>(
    simd: S,
    call: &Qk<'_>,
    q: &[[u32; PANEL_ROWS]],
    scratch: &mut L0b,
    s: &mut STile,
) {
    let (keys, rows) = (call.keys.as_slice(), call.rows);
    let tiles = keys.len().div_ceil(KEYS) * rows.div_ceil(N * S::LANES);
    let prefetch = &mut Spread::of(call.prefetch, tiles * q.len() / STEP);
    let [a, b] = scratch;
    let (a, b) = (a.0.as_flattened_mut(), operand(b));
    let (steps, rest) = q.as_chunks::<PAIRS>();
    for (step, q) in steps.iter().enumerate() {
        let feature = step * DEPTH;
        qk_step::<S, KEYS, N, STEP, DEPTH>(simd, q, rows, keys, feature, a, b, s, prefetch);
    }
    let feature = steps.len() * DEPTH;
    match rest.len() {
        0 => {}
        16 => qk_step::<S, KEYS, N, STEP, 32>(simd, rest, rows, keys, feature, a, b, s, prefetch),
        _ => qk_step::<S, KEYS, N, STEP, 64>(simd, rest, rows, keys, feature, a, b, s, prefetch),
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
    prefetch: &mut Spread<'_>,
) {
    let start = if feature == 0 {
        Start::Zero
    } else {
        Start::Add
    };
    for first in (0..keys.len()).step_by(KEYS) {
        // Unless they were prefetched long before.
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
            convert_key::<S, WIDTH>(simd, key, a);
        }
        let (a, q, s) = (&Keys::of(a), &Queries(q), &mut s.0[first..]);
        for column in (0..rows).step_by(N * S::LANES) {
            if first == 0 {
                tile::<S, KEYS, N, true, STEP, DEPTH, 1, PAIRS, _, _>(
                    simd, a, q, b, column, start, s, prefetch,
                );
            } else {
                tile::<S, KEYS, N, false, STEP, DEPTH, 1, PAIRS, _, _>(
                    simd, a, q, b, column, start, s, prefetch,
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

/// [`crate::kernel::Kernel::pv`] with register tiles of 6 rows x `N` vectors.
#[inline(always)]
pub fn pv<S: Simd, const N: usize>(
    simd: S,
    call: &Pv<'_>,
    p: &[&L0a],
    scratch: &mut L0b,
    o: &mut [ORow],
) -> Skipped {
    let values = call.values.as_slice();
    assert!(values.iter().all(|row| row.len() >= call.strips * STRIP));
    let [draft, b] = scratch;
    let (draft, b) = (
        &mut draft.0.as_flattened_mut().as_chunks_mut().0[..HEIGHT],
        operand(b),
    );
    let mut skipped = Skipped::NONE;
    for (half, rows) in values.chunks(2 * KEY_PAIRS).enumerate() {
        for strip in 0..call.strips {
            if skipped.all & 1 << strip != 0 {
                continue;
            }
            let values = &Values { rows, strip };
            for (panel, p) in p.iter().enumerate() {
                let mut tile = StripTile::<S> {
                    simd,
                    p: p.fp32()[half].as_flattened().as_flattened(),
                    values,
                    start: match half {
                        0 if call.first => Start::Zero,
                        0 => Start::Rescale(&p.increment),
                        _ => Start::Load,
                    },
                    b: &mut *b,
                };
                let o = &mut call.strip(panel, strip, o)[..call.panel_rows(panel)];
                if panel > 0 {
                    tile.rows::<N>(0, HEIGHT, o);
                } else if !tile.convert::<N>(draft, o) {
                    if half == 0 {
                        skipped.all |= 1 << strip;
                    } else {
                        skipped.tail |= 1 << strip;
                    }
                    break;
                }
            }
        }
    }
    skipped
}

/// Rows of a register tile of C2.
const HEIGHT: usize = 6;

/// A strip of O of a panel, over half of a block's keys.
struct StripTile<'a, S> {
    simd: S,
    p: &'a [f32],
    values: &'a Values<'a>,
    start: Start<'a>,
    /// V in FP32, once it is converted.
    b: &'a mut Operand<STRIP, KEY_PAIRS>,
}

impl<S: Simd> StripTile<'_, S> {
    /// All rows, the first of which convert V; `false`, and O as it was, if V isn't finite.
    #[inline(always)]
    fn convert<const N: usize>(&mut self, draft: &mut [ORow], o: &mut [ORow]) -> bool {
        let simd = self.simd;
        // The first rows have a draft, until all values are known to be finite: one that
        // isn't makes no row's O finite, since 0 times it is NaN.
        let first = o.len().min(HEIGHT);
        let draft = &mut draft[..first];
        if !matches!(self.start, Start::Zero) {
            copy_rows(simd, &o[..first], draft);
        }
        if let Start::Rescale(increment) = self.start {
            rescale_rows(simd, draft, &increment[..first], 0..STRIP / S::LANES);
        }
        let start = match self.start {
            Start::Zero => Start::Zero,
            _ => Start::Load,
        };
        let mut finite = true;
        for column in (0..STRIP).step_by(N * S::LANES) {
            finite &= self.tile::<N, true>(0, first, column, start, draft);
        }
        if !finite {
            let columns = self.values.strip * STRIP..(self.values.strip + 1) * STRIP;
            if !scalar::finite(self.values.rows.iter().copied(), &columns) {
                return false;
            }
        }
        copy_rows(simd, draft, &mut o[..first]);
        self.rows::<N>(first, first, o);
        true
    }

    /// The rows from `from` on, up to `height` in a tile, with V converted.
    #[inline(always)]
    fn rows<const N: usize>(&mut self, from: usize, height: usize, o: &mut [ORow]) {
        for column in (0..STRIP).step_by(N * S::LANES) {
            let mut row = from;
            while row < o.len() {
                let start = match self.start {
                    Start::Rescale(increment) => Start::Rescale(&increment[row..]),
                    start => start,
                };
                let rows = (o.len() - row).min(height);
                self.tile::<N, false>(row, rows, column, start, &mut o[row..]);
                row += rows;
            }
        }
    }

    /// A register tile of `rows` rows, whose P begins with `row`.
    #[inline(always)]
    fn tile<const N: usize, const FIRST: bool>(
        &mut self,
        row: usize,
        rows: usize,
        column: usize,
        start: Start<'_>,
        o: &mut [ORow],
    ) -> bool {
        const PAIR: usize = 2 * PANEL_ROWS;
        macro_rules! tiles {
            ($($rows:pat => $m:literal,)*) => {
                match rows {
                    $($rows => tile::<S, $m, N, FIRST, KEY_PAIRS, 1, PAIR, PANEL_ROWS, _, _>(
                        self.simd,
                        &Probabilities::of(&self.p[row..]),
                        self.values,
                        self.b,
                        column,
                        start,
                        o,
                        &mut Spread::of(&[], 0),
                    ),)*
                }
            };
        }
        tiles!(1 => 1, 2 => 2, 3 => 3, 4 => 4, 5 => 5, _ => 6,)
    }
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

/// L0B's memory as an operand.
#[inline(always)]
fn operand<const WIDTH: usize, const PAIRS: usize>(
    memory: &mut Fp32Tile,
) -> &mut Operand<WIDTH, PAIRS> {
    let numbers = &mut memory.0.as_flattened_mut()[..2 * WIDTH * PAIRS];
    &mut bytemuck::cast_slice_mut(numbers)[0]
}

/// Converts `WIDTH` features of a key, the odd ones before the even ones.
#[inline(always)]
fn convert_key<S: Simd, const WIDTH: usize>(simd: S, key: &[bf16], to: &mut [f32]) {
    let (odds, evens) = to.split_at_mut(PAIRS);
    let (odds, evens) = (lanes_mut::<S>(odds), lanes_mut::<S>(evens));
    for v in 0..WIDTH / 2 / S::LANES {
        let pairs = simd.load_pairs(&key[2 * v * S::LANES..]);
        simd.store(odd(simd, pairs), &mut odds[v]);
        simd.store(even(simd, pairs), &mut evens[v]);
    }
}

/// [`crate::kernel::Kernel::permute`]: [`Values`] has columns of even index apart from others.
#[inline(always)]
pub fn permute<S: Simd>(simd: S, o: &mut [ORow], to: Columns) {
    for o in o {
        for [a, b] in lanes_mut::<S>(o).as_chunks_mut().0 {
            let pair = [simd.load(a), simd.load(b)];
            let [first, second] = match to {
                Columns::Own => simd.deinterleave(pair[0], pair[1]),
                Columns::Natural => simd.interleave(pair[0], pair[1]),
            };
            simd.store(first, a);
            simd.store(second, b);
        }
    }
}

/// [`crate::kernel::Kernel::prob`]
pub fn prob(p: &L0a, k: usize, r: usize) -> f32 {
    let (half, k) = (k / Skipped::TAIL, k % Skipped::TAIL);
    p.fp32()[half][k / 2][1 - k % 2][r]
}

/// Puts it there.
#[allow(dead_code, reason = "for backends that not every build has")]
pub fn put_prob(p: &mut L0a, k: usize, r: usize, prob: f32) {
    let (half, k) = (k / Skipped::TAIL, k % Skipped::TAIL);
    p.fp32_mut()[half][k / 2][1 - k % 2][r] = prob;
}

/// [`crate::kernel::Kernel::dot_loop`] with `CHAINS` independent sums.
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
