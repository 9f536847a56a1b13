//! C1 and C2 of panels for backends that multiply in FP32, over any vectors: the operands of a
//! 64 x 64 x 96 step are converted into L0B, and one register tile does both.
//!
//! The depth of 96 is the paper's baseK in C1, and half a block's keys in C2; small tiles have
//! fewer rows and keys. Of each pair the odd element comes first, as the dot instructions have it:
//! S is then the same to the bit. The operand across the lanes is converted by the first tile that
//! needs it, on its way through the registers, and used by all rows; the other one is converted a few rows at a
//! time, so that out-of-order execution hides it behind the tile before. That is for operands stored as BF16: others are packed
//! in FP32 (Q), or converted before the first tile (V).
#![allow(unsafe_code, reason = "loads of single numbers within a register tile")]
#![allow(
    clippy::needless_range_loop,
    reason = "counted loops unroll early, so that accumulators become registers"
)]

use core::ops::Range;

use half::bf16;

use super::element::{CHUNK, Element};
use crate::format::Dtype;
use crate::kernel::call::PackRow;
use crate::kernel::memory::Word;
use crate::kernel::prefetch::{Hint, LINE, Spread};
use crate::kernel::simd::{Simd, even, lanes, lanes_mut, odd, pairs, rescale_rows};
use crate::kernel::{Columns, Pv, Qk, Skipped, scalar};
use crate::tile::{
    BLOCK_PAIRS, Fp32Tile, L0a, L0b, ORow, PANEL_ROWS, QPanel, STRIP, STile, ascend,
};

/// Pairs of one step of C1.
const PAIRS: usize = ascend::BASE_K / 2;
/// Its depth, a pair of which are two.
pub const DEPTH: usize = 2 * PAIRS;
/// Pairs of one step of C2: half of a block's.
pub const KEY_PAIRS: usize = BLOCK_PAIRS / 2;

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
/// Half of a block's values, a strip of them.
pub type Strip = Operand<STRIP, KEY_PAIRS>;

/// Converts some features of some keys, those of odd index before the others.
pub type ConvertKeys<S> = unsafe fn(S, &[*const Word], Range<usize>, &mut [[f32; DEPTH]]);
/// Converts a strip of values, and returns whether they are finite.
pub type ConvertValues<S> = unsafe fn(S, &Values<'_>, &mut Strip) -> bool;

/// A backend's conversions, by how rows are stored.
pub trait Conversions: Simd {
    /// [`convert_keys`] within a function that has the backend's features.
    fn keys(dtype: Dtype) -> ConvertKeys<Self>;
    /// [`convert_values`].
    fn values(dtype: Dtype) -> ConvertValues<Self>;
}

/// The operand across the lanes, by pairs.
trait Across<S: Simd> {
    /// Whether it is converted for the first time, and what it may contain isn't known.
    const FIRST: bool;
    /// How many pairs there are.
    fn pairs(&self) -> usize;
    /// The `N` vectors from `first` on of element `h` (the odd one first) of pair `p`.
    ///
    /// # Safety
    /// There is such a pair.
    unsafe fn vectors<const N: usize>(
        &mut self,
        simd: S,
        p: usize,
        h: usize,
        first: usize,
    ) -> [S::F32; N];
}

/// One that is converted.
struct Converted<'a, const WIDTH: usize>(&'a [[[f32; WIDTH]; 2]]);

impl<S: Simd, const WIDTH: usize> Across<S> for Converted<'_, WIDTH> {
    const FIRST: bool = false;

    #[inline(always)]
    fn pairs(&self) -> usize {
        self.0.len()
    }

    #[inline(always)]
    unsafe fn vectors<const N: usize>(
        &mut self,
        simd: S,
        p: usize,
        h: usize,
        first: usize,
    ) -> [S::F32; N] {
        // SAFETY: the caller's promise.
        let pair = unsafe { self.0.get_unchecked(p) };
        let row = &lanes::<S>(&pair[h])[first..first + N];
        let mut vectors = [simd.splat(0.0); N];
        for v in 0..N {
            vectors[v] = simd.load(&row[v]);
        }
        vectors
    }
}

/// Q: pairs of features, and where they are converted to.
struct Queries<'a> {
    pairs: &'a [[u32; PANEL_ROWS]],
    to: &'a mut Operand<PANEL_ROWS, PAIRS>,
}

impl<S: Simd> Across<S> for Queries<'_> {
    const FIRST: bool = true;

    #[inline(always)]
    fn pairs(&self) -> usize {
        self.pairs.len().min(PAIRS)
    }

    #[inline(always)]
    unsafe fn vectors<const N: usize>(
        &mut self,
        simd: S,
        p: usize,
        h: usize,
        first: usize,
    ) -> [S::F32; N] {
        // SAFETY: the caller's promise; there is room for as many.
        let (row, to) = unsafe { (self.pairs.get_unchecked(p), self.to.get_unchecked_mut(p)) };
        let row = &pairs::<S>(row)[first..first + N];
        let to = &mut lanes_mut::<S>(&mut to[h])[first..first + N];
        let mut vectors = [simd.splat(0.0); N];
        for v in 0..N {
            let pairs = simd.to_bits(simd.load(&row[v]));
            vectors[v] = if h == 0 {
                odd(simd, pairs)
            } else {
                even(simd, pairs)
            };
            simd.store(vectors[v], &mut to[v]);
        }
        vectors
    }
}

/// V: the columns of a strip, as in the cache.
#[derive(Clone, Copy)]
pub struct Values<'a> {
    /// At least one, and the strip is within each.
    rows: &'a [&'a [Word]],
    dtype: Dtype,
    strip: usize,
}

impl<'a> Values<'a> {
    /// Element `h` of pair `p`: a row from its beginning on, or `None` behind the last. Prefetches the strip of a later row.
    #[inline(always)]
    fn row<S: Simd>(&self, simd: S, p: usize, h: usize) -> Option<&'a [Word]> {
        let (k, last) = (2 * p + 1 - h, self.rows.len() - 1);
        // SAFETY: both indices are at most `last`, of a row that there is: the rows aren't empty.
        let [row, later] =
            unsafe { [k, k + DISTANCE].map(|k| *self.rows.get_unchecked(k.min(last))) };
        let (first, words) = (
            self.dtype.words(self.strip * STRIP),
            self.dtype.words(STRIP),
        );
        for line in (0..words).step_by(LINE) {
            simd.prefetch(later.as_ptr().wrapping_add(first + line));
        }
        (k <= last).then_some(row)
    }
}

/// V of BF16, and where it is converted to. Of two vectors one has the columns of even index, one the others: that is what
/// conversion yields.
struct Bf16Values<'a> {
    values: Values<'a>,
    to: &'a mut Strip,
}

impl<S: Simd> Across<S> for Bf16Values<'_> {
    const FIRST: bool = true;

    #[inline(always)]
    fn pairs(&self) -> usize {
        self.values.rows.len().div_ceil(2)
    }

    #[inline(always)]
    unsafe fn vectors<const N: usize>(
        &mut self,
        simd: S,
        p: usize,
        h: usize,
        first: usize,
    ) -> [S::F32; N] {
        static ZEROS: [bf16; STRIP] = [bf16::ZERO; _];
        let values = Values {
            dtype: Dtype::Bf16,
            ..self.values
        };
        let row = match values.row(simd, p, h) {
            // SAFETY: the strip is within every row, as `pv`, which alone makes one of these, asserts.
            Some(row) => unsafe {
                row.get_unchecked(values.strip * STRIP..)
                    .get_unchecked(..STRIP)
            },
            None => &ZEROS[..],
        };
        // SAFETY: the caller's promise; there is room for as many.
        let to = unsafe { self.to.get_unchecked_mut(p) };
        let to = &mut lanes_mut::<S>(&mut to[h])[first..first + N];
        let mut vectors = [simd.splat(0.0); N];
        for v in 0..N {
            let pairs = simd.load_pairs(&row[(first + v) / 2 * 2 * S::LANES..]);
            vectors[v] = if (first + v).is_multiple_of(2) {
                even(simd, pairs)
            } else {
                odd(simd, pairs)
            };
            simd.store(vectors[v], &mut to[v]);
        }
        vectors
    }
}

/// [`ConvertValues`]: values of a dtype.
#[inline(always)]
pub fn convert_values<S: Simd, E: Element<S>>(
    simd: S,
    values: &Values<'_>,
    to: &mut Strip,
) -> bool {
    let zero = simd.splat(0.0);
    let mut wrong = zero;
    let pairs = values.rows.len().div_ceil(2);
    for (p, to) in to[..pairs].iter_mut().enumerate() {
        for (h, to) in to.iter_mut().enumerate() {
            let Some(row) = values.row(simd, p, h) else {
                to.fill(0.0);
                continue;
            };
            let to = lanes_mut::<S>(to).as_chunks_mut::<2>().0;
            for (i, to) in to.iter_mut().enumerate() {
                for h in 0..2 {
                    let column = values.strip * STRIP + i * 2 * S::LANES;
                    // SAFETY: the strip is within every row, as `pv`, which alone makes these, asserts.
                    let x = unsafe { E::vector(simd, row.as_ptr(), column, h) };
                    wrong = simd.mul_add(x, zero, wrong);
                    simd.store(x, &mut to[h]);
                }
            }
        }
    }
    !simd.any(simd.not_ge(wrong, zero))
}

/// [`ConvertKeys`]: keys of a dtype.
///
/// # Safety
/// Keys are valid for reads of these features, a multiple of [`CHUNK`] from a multiple on.
#[inline(always)]
pub unsafe fn convert_keys<S: Simd, E: Element<S>>(
    simd: S,
    keys: &[*const Word],
    features: Range<usize>,
    to: &mut [[f32; DEPTH]],
) {
    for (&key, to) in keys.iter().zip(to) {
        let (odds, evens) = to.split_at_mut(PAIRS);
        let (odds, evens) = (lanes_mut::<S>(odds), lanes_mut::<S>(evens));
        // A loop of a constant length is unrolled.
        for v in 0..const { PAIRS / S::LANES } {
            let at = features.start + v * 2 * S::LANES;
            if at < features.end {
                // SAFETY: the caller's promise.
                let [even, odd] = unsafe { E::split(simd, key, at) };
                simd.store(odd, &mut odds[v]);
                simd.store(even, &mut evens[v]);
            }
        }
    }
}

/// A row of Q in FP32, as C1 has it across the lanes: of each pair of features the odd one's row first.
#[inline(always)]
pub fn pack_row(call: &PackRow<'_>, panel: &mut [QPanel]) {
    let panel: &mut [[[f32; PANEL_ROWS]; 2]] = bytemuck::cast_slice_mut(panel);
    let sign = if call.negate { -1.0 } else { 1.0 };
    for (pair, to) in call.numbers.as_chunks::<2>().0.iter().zip(panel) {
        for h in 0..2 {
            to[h][call.row] = sign * pair[1 - h];
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
/// `N` vectors from `column` on. If it is the first that has `b`, it tells whether all that it added up is finite.
#[inline(always)]
fn tile<
    S: Simd,
    B: Across<S>,
    const M: usize,
    const N: usize,
    const STEP: usize,
    const ROW: usize,
    const PAIR: usize,
    const HALF: usize,
    const WIDTH: usize,
    const PAIRS: usize,
>(
    simd: S,
    a: &Single<'_, ROW, PAIR, HALF>,
    b: &mut B,
    column: usize,
    start: Start<'_>,
    c: &mut [[f32; WIDTH]],
    prefetch: &mut Spread<'_>,
) -> bool {
    let c = &mut c[..M];
    let first = column / S::LANES;
    let pairs = b.pairs();
    assert!(first + N <= WIDTH / S::LANES && pairs <= PAIRS);
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
    for step in (0..pairs).step_by(STEP) {
        if STEP < PAIRS {
            prefetch.step(simd, Hint::L2);
        }
        for p in step..pairs.min(step + STEP) {
            for h in 0..2 {
                // SAFETY: p is one of the pairs.
                let vectors = unsafe { b.vectors::<N>(simd, p, h, first) };
                for m in 0..M {
                    // SAFETY: m < M, p < PAIRS and h < 2: within what was asserted.
                    let x = unsafe { *a.0.as_ptr().add(m * ROW + p * PAIR + h * HALF) };
                    let x = simd.splat(x);
                    for v in 0..N {
                        acc[m][v] = simd.mul_add(x, vectors[v], acc[m][v]);
                    }
                }
            }
        }
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
    if !B::FIRST {
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

/// [`crate::kernel::Kernel::qk`] with register tiles of `KEYS` keys x `N` vectors. `q` is the panel's memory.
#[inline(always)]
pub fn qk<S: Conversions, const KEYS: usize, const N: usize, const STEP: usize>(
    simd: S,
    call: &Qk<'_>,
    q: &[QPanel],
    scratch: &mut L0b,
    s: &mut STile,
) {
    let (keys, dtype) = (call.keys, call.dtype);
    assert!(call.d_qk.is_multiple_of(CHUNK));
    assert!(keys.iter().all(|key| key.len() >= dtype.words(call.d_qk)));
    let convert = S::keys(dtype);
    let tiles = keys.len().div_ceil(KEYS) * call.rows.div_ceil(N * S::LANES);
    let prefetch = &mut Spread::of(call.prefetch, tiles * call.d_qk / 2 / STEP);
    let [a, b] = scratch;
    let a: &mut [[f32; DEPTH]] = a.0.as_flattened_mut().as_chunks_mut().0;
    let b = operand(b);
    for feature in (0..call.d_qk).step_by(DEPTH) {
        let features = feature..call.d_qk.min(feature + DEPTH);
        let pairs = features.start / 2..features.end / 2;
        let start = if feature == 0 {
            Start::Zero
        } else {
            Start::Add
        };
        for first in (0..keys.len()).step_by(KEYS) {
            // Unless they were prefetched long before.
            if STEP == PAIRS {
                let words = dtype.words(features.start)..dtype.words(features.end);
                for row in keys.iter().skip(first + KEYS).take(KEYS) {
                    for line in words.clone().step_by(LINE) {
                        simd.prefetch(row.as_ptr().wrapping_add(line));
                    }
                }
            }
            let mut group = [core::ptr::null(); KEYS];
            for (i, key) in group.iter_mut().enumerate() {
                // A group at the end repeats its last key; nobody reads the copies.
                *key = keys[(first + i).min(keys.len() - 1)].as_ptr();
            }
            // SAFETY: the token proves the features of the processor; keys have all of these, as asserted.
            unsafe { convert(simd, &group, features.clone(), &mut *a) };
            let (a, s) = (&Keys::of(a.as_flattened()), &mut s.0[first..]);
            for column in (0..call.rows).step_by(N * S::LANES) {
                if call.queries == Dtype::Bf16 && first == 0 {
                    let q: &[[u32; PANEL_ROWS]] = bytemuck::cast_slice(q);
                    let mut q = Queries {
                        pairs: &q[pairs.clone()],
                        to: &mut *b,
                    };
                    tile::<S, _, KEYS, N, STEP, DEPTH, 1, PAIRS, _, PAIRS>(
                        simd, a, &mut q, column, start, s, prefetch,
                    );
                    continue;
                }
                let mut q = Converted(if call.queries == Dtype::Bf16 {
                    &b[..pairs.len()]
                } else {
                    &bytemuck::cast_slice(q)[pairs.clone()]
                });
                tile::<S, _, KEYS, N, STEP, DEPTH, 1, PAIRS, _, PAIRS>(
                    simd, a, &mut q, column, start, s, prefetch,
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
pub fn pv<S: Conversions, const N: usize>(
    simd: S,
    call: &Pv<'_>,
    p: &[&L0a],
    scratch: &mut L0b,
    o: &mut [ORow],
) -> Skipped {
    let (values, dtype) = (call.values.as_slice(), call.values.dtype);
    let words = dtype.words(call.strips * STRIP);
    assert!(values.iter().all(|row| row.len() >= words));
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
            let values = Values { rows, dtype, strip };
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
                    skips: call.skips,
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
    values: Values<'a>,
    start: Start<'a>,
    /// Whether V that isn't finite is.
    skips: bool,
    /// V in FP32, once it is converted.
    b: &'a mut Strip,
}

impl<S: Conversions> StripTile<'_, S> {
    /// All rows, the first of which convert V; `false`, and O as it was, if V isn't finite.
    #[inline(always)]
    fn convert<const N: usize>(&mut self, draft: &mut [ORow], o: &mut [ORow]) -> bool {
        let simd = self.simd;
        if self.values.dtype != Dtype::Bf16 {
            let convert = S::values(self.values.dtype);
            // SAFETY: the token proves the features.
            let finite = unsafe { convert(simd, &self.values, self.b) } || !self.skips;
            if finite {
                self.rows::<N>(0, HEIGHT, o);
            }
            return finite;
        }
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
        if !finite && self.skips {
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
            ($b:expr; $($rows:pat => $m:literal,)*) => {
                match rows {
                    $($rows => tile::<S, _, $m, N, KEY_PAIRS, 1, PAIR, PANEL_ROWS, _, KEY_PAIRS>(
                        self.simd,
                        &Probabilities::of(&self.p[row..]),
                        $b,
                        column,
                        start,
                        o,
                        &mut Spread::of(&[], 0),
                    ),)*
                }
            };
        }
        if FIRST {
            let b = &mut Bf16Values {
                values: self.values,
                to: self.b,
            };
            return tiles!(b; 1 => 1, 2 => 2, 3 => 3, 4 => 4, 5 => 5, _ => 6,);
        }
        let b = &mut Converted(&self.b[..self.values.rows.len().div_ceil(2)]);
        tiles!(b; 1 => 1, 2 => 2, 3 => 3, 4 => 4, 5 => 5, _ => 6,)
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

/// [`crate::kernel::Kernel::permute`]: conversion of BF16 yields columns of even index apart from others.
#[inline(always)]
pub fn permute<S: Simd>(simd: S, values: Dtype, o: &mut [ORow], to: Columns) {
    if values != Dtype::Bf16 {
        return;
    }
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
