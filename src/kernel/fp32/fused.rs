//! Fused kernel for few rows: C1, V1 and C2 of some keys, then of the next.
//!
//! With few rows memory limits, or nearly so. In steps of 16 keys, C2 finds these in L1d, where C1 left them. Larger Q and O
//! leave no room for that: steps have 64 keys then, so that Q and O, which come from L2, serve more of them. Meanwhile rows
//! to come are prefetched, as evenly as can be: C1 prefetches half of the keys, and C2 the others; or C1 all, and C2 values, where
//! these aren't among the keys.
//!
//! | stage | register tile | operands |
//! |---|---|---|
//! | C1 | `keys` x `rows`, features in the lanes | Q, a vector of each row in turn; K in place |
//! | V1 | a row's keys in the lanes ([`softmax_rows`]) | S and P, row by row |
//! | C2 | `rows` x pairs of vectors of columns | V in place, P by broadcast |
//!
//! Each backend has its tiles ([`Tiles`]), for each way in which rows are stored. Both matrix products convert two vectors of a
//! row's numbers ([`Element`]), once for all rows of a tile. ggml's blocks take several instructions: where a group has three tiles
//! or more, some keys, and then the values of a strip, are converted into L0B first, once for all tiles. Q and O's columns have the
//! order in which vectors come, O until the epilogue. O is compact: strip after strip of `rows` rows.
//!
//! Kernels know widths as numbers only, so that all widths share their code.
#![allow(unsafe_code, reason = "loads by way of pointers to rows")]
#![allow(
    clippy::needless_range_loop,
    reason = "counted loops unroll early, so that accumulators become registers"
)]

use core::ops::Range;

use super::element::{Bf16, CHUNK, Element};
use super::panel::put_prob;
use crate::format::Dtype;
use crate::kernel::call::{PackQ, PackRow};
use crate::kernel::memory::Word;
use crate::kernel::prefetch::LINE;
use crate::kernel::simd::{Simd, lanes, lanes_mut, rescale_rows};
use crate::kernel::softmax_rows::{self, Bases, Scores, Unrounded, softmax_rows};
use crate::kernel::{FUSED_KEYS, FUSED_MULTIPLE, FusedBlock, FusedEnd, Softmax, Strips};
use crate::tile::{BLOCK_KEYS, L0a, L0b, MAX_D_QK, MAX_D_V, ORow, QPanel, RowState, STRIP};

/// Rows of the largest fused group: `limit`, from which on panels are faster, or what a panel's memory holds in FP32.
pub const fn rows(limit: usize) -> usize {
    if limit < softmax_rows::ROWS {
        limit
    } else {
        softmax_rows::ROWS
    }
}

/// Keys that C2 multiplies in one unrolled loop; a step has a multiple.
const GROUP: usize = FUSED_MULTIPLE;
/// Keys of a step: usually, and where Q and O are small.
const LONG: usize = softmax_rows::KEYS;
const SHORT: usize = GROUP;
/// Numbers up to which Q and O are small: those of four rows of MLA.
const SMALL: usize = 4 * (MAX_D_QK + MAX_D_V);
/// Keys between a step's last and the first that it prefetches.
const DISTANCE: usize = 4;
/// Keys that are converted at once for several tiles, so that L1d has room for them beside a tile's Q.
const CONVERTED: usize = 8;
/// Rows of a register tile where a group has several. Taller ones leave room for fewer keys or columns, and gain only by
/// converting these once.
const TALLEST: usize = 6;
/// Chunks of the widest key.
const MAX_CHUNKS: usize = MAX_D_QK / CHUNK;

// The last step may have a single key of the block, and prefetches as many as it computes on.
const _: () = assert!(FUSED_KEYS >= BLOCK_KEYS + GROUP + LONG + DISTANCE);
// L0B holds converted keys, and a step's values of a strip.
const _: () = assert!(GROUP.is_multiple_of(CONVERTED));
const _: () = assert!(size_of::<L0b>() >= size_of::<f32>() * CONVERTED * MAX_D_QK);
const _: () = assert!(size_of::<L0b>() >= size_of::<f32>() * LONG * STRIP);

/// Keys of a step of `rows` rows, of which each has `widths` numbers in Q and in O.
const fn step_keys(rows: usize, widths: usize) -> usize {
    if rows * widths <= SMALL { SHORT } else { LONG }
}

/// C1 of some rows, from one row on: [`fused_qk`] within a function that has the backend's features.
pub type Qk<S> = unsafe fn(S, &Step<'_>, usize, &mut Scores);
/// C2 of some rows, from one row on: [`fused_pv`].
pub type Pv<S> = unsafe fn(S, &Step<'_>, usize, &Scores, &mut Output<'_>);

/// A backend's register tiles, as [`backend`](super::backend) lists them: the n-th has n rows.
pub trait Tiles: Simd + 'static {
    /// Those of C1, for keys that are stored so.
    fn qk(keys: Dtype) -> &'static [Qk<Self>];
    /// Those of C2, for values.
    fn pv(values: Dtype) -> &'static [Pv<Self>];
    /// What converts rows for several tiles, if their conversion takes long.
    fn convert(rows: Dtype) -> Option<Convert<Self>>;
}

/// Converts some numbers of rows: [`convert`] within a function that has the backend's features.
pub type Convert<S> = unsafe fn(S, &[*const Word], Range<usize>, &mut [f32]);

/// Converts some numbers of rows, and leaves those of each in the order of vectors.
///
/// # Safety
/// Rows are valid for reads of these numbers, which are whole chunks.
#[inline(always)]
pub unsafe fn convert<S: Simd, E: Element<S>>(
    simd: S,
    rows: &[*const Word],
    numbers: Range<usize>,
    to: &mut [f32],
) {
    for (&row, to) in rows.iter().zip(to.chunks_exact_mut(numbers.len())) {
        let pairs = lanes_mut::<S>(to).as_chunks_mut::<2>().0;
        for (at, pair) in numbers.clone().step_by(2 * S::LANES).zip(pairs) {
            for h in 0..2 {
                // SAFETY: the caller's promise.
                simd.store(unsafe { E::vector(simd, row, at, h) }, &mut pair[h]);
            }
        }
    }
}

/// Q as C1 reads it, in FP32: a vector of each row, then the next of each. Of two vectors the first has the numbers of even index
/// where `split`, as keys have them.
#[inline(always)]
pub fn pack_q<S: Simd>(simd: S, call: &PackQ<'_>, split: bool, panel: &mut [QPanel]) {
    let mut to = PackedRow::of(simd, call.negate, call.rows.len(), call.d_qk, panel);
    for (r, row) in call.rows.iter().enumerate() {
        let row = row[..call.d_qk].as_ptr();
        for at in (0..call.d_qk).step_by(2 * S::LANES) {
            // SAFETY: the row has these numbers, by the slicing above.
            let vectors = unsafe {
                if split {
                    Bf16::split(simd, row, at)
                } else {
                    Bf16::in_order(simd, row, at)
                }
            };
            to.put(r, at, vectors);
        }
    }
}

/// The same of a row in FP32.
#[inline(always)]
pub fn pack_row<S: Simd>(simd: S, call: &PackRow<'_>, split: bool, panel: &mut [QPanel]) {
    let mut to = PackedRow::of(simd, call.negate, call.rows, call.numbers.len(), panel);
    for (i, [a, b]) in lanes::<S>(call.numbers).as_chunks().0.iter().enumerate() {
        let [a, b] = [simd.load(a), simd.load(b)];
        let vectors = if split {
            simd.deinterleave(a, b)
        } else {
            [a, b]
        };
        to.put(call.row, i * 2 * S::LANES, vectors);
    }
}

/// Packed rows, to be written.
struct PackedRow<'a, S: Simd> {
    simd: S,
    /// Added to a number's bits, it flips the sign.
    sign: S::I32,
    rows: usize,
    to: &'a mut [S::Lanes],
}

impl<'a, S: Simd> PackedRow<'a, S> {
    #[inline(always)]
    fn of(simd: S, negate: bool, rows: usize, d_qk: usize, panel: &'a mut [QPanel]) -> Self {
        let numbers: &mut [f32] = bytemuck::cast_slice_mut(panel);
        Self {
            simd,
            sign: simd.splat_i32(if negate { i32::MIN } else { 0 }),
            rows,
            to: lanes_mut::<S>(&mut numbers[..rows * d_qk]),
        }
    }

    /// Two vectors of a row, from number `at` on.
    #[inline(always)]
    fn put(&mut self, row: usize, at: usize, vectors: [S::F32; 2]) {
        let Self {
            simd, sign, rows, ..
        } = *self;
        for i in 0..2 {
            let flipped = simd.from_bits(simd.add_i32(simd.to_bits(vectors[i]), sign));
            simd.store(flipped, &mut self.to[(at / S::LANES + i) * rows + row]);
        }
    }
}

/// A step's keys, or some of them.
#[derive(Clone, Copy)]
pub struct Step<'a> {
    /// Of Q and O.
    rows: usize,
    q: &'a [f32],
    chunks: usize,
    /// The first key's place in the step.
    first_key: usize,
    /// Full groups, or [`CONVERTED`]. Each is valid for reads of `chunks` chunks.
    keys: &'a [*const Word],
    /// Strips from one on, and how many.
    first_strip: usize,
    strips: usize,
    /// Each is valid for reads of these strips, and begins with the first.
    values: &'a [[*const Word; GROUP]],
    /// Words of a chunk of the rows that are prefetched.
    chunk_words: usize,
    /// The keys that C1 prefetches: as many as it multiplies, or half.
    coming_keys: &'a [*const Word],
    /// What C2 prefetches.
    coming: Coming<'a>,
    /// Whether they are prefetched into L2, or else into L1d.
    into_l2: bool,
    /// Whether strips are skipped in which values aren't finite: where some row doesn't see some key, or keys are repeated.
    skips: bool,
}

/// What C2 prefetches.
#[derive(Clone, Copy)]
enum Coming<'a> {
    /// Keys, with each group of keys of each strip `each`.
    Keys {
        rows: &'a [*const Word],
        each: usize,
    },
    /// Values that aren't among the keys: of each the columns that it multiplies meanwhile.
    Values(&'a [[*const Word; GROUP]]),
}

impl Step<'_> {
    /// Prefetches a chunk of a row: a line or two, or a line's part.
    #[inline(always)]
    fn prefetch_chunk<S: Simd, E: Element<S>>(&self, simd: S, row: *const Word, chunk: usize) {
        let most = const { E::DTYPE.words(CHUNK) };
        // Rows that are converted to FP32 first have shorter chunks.
        let words = match E::DTYPE {
            Dtype::F32 => self.chunk_words,
            _ => most,
        };
        for line in (0..most).step_by(LINE) {
            if line >= words {
                break;
            }
            let at = row.wrapping_add(chunk * words + line);
            if self.into_l2 {
                simd.prefetch_l2(at);
            } else {
                simd.prefetch(at);
            }
        }
    }

    /// Prefetches full keys at once. Not inlined: all register tiles share it.
    #[inline(never)]
    fn prefetch_rows<S: Simd, E: Element<S>>(&self, simd: S, rows: &[*const Word]) {
        for row in rows {
            for chunk in 0..self.chunks {
                self.prefetch_chunk::<S, E>(simd, *row, chunk);
            }
        }
    }
}

/// O, and its strips that C2 skips.
pub struct Output<'a> {
    o: &'a mut [ORow],
    skipped: Strips,
}

/// Both matrix products of a step, in register tiles.
struct Products<T: Tiles> {
    tiles: T,
    rows: usize,
    qk: &'static [Qk<T>],
    pv: &'static [Pv<T>],
    /// What converts keys and values first, if that pays.
    convert: [Option<Convert<T>>; 2],
    /// Words of a chunk of keys, and of values.
    chunk_words: [usize; 2],
}

impl<T: Tiles> Products<T> {
    #[inline(always)]
    fn of(tiles: T, rows: usize, dtypes: [Dtype; 2]) -> Self {
        let [keys, values] = dtypes;
        // For two tiles it doesn't pay.
        let several = count_tiles(rows, T::qk(keys).len()) > 2;
        let convert = dtypes.map(|dtype| T::convert(dtype).filter(|_| several));
        let read = |dtype, convert: Option<_>| convert.map_or(dtype, |_| Dtype::F32);
        Self {
            tiles,
            rows,
            qk: T::qk(read(keys, convert[0])),
            pv: T::pv(read(values, convert[1])),
            convert,
            chunk_words: dtypes.map(|dtype| dtype.words(CHUNK)),
        }
    }

    /// C1: scores of the step's keys.
    #[inline(always)]
    fn c1(&self, step: &Step<'_>, converted: &mut [f32], scores: &mut Scores) {
        let mut run = |step: &Step<'_>| {
            for (row, qk) in row_tiles(self.rows, self.qk) {
                // SAFETY: the token proves the features; tiles are those of how the step's keys are stored.
                unsafe { qk(self.tiles, step, row, scores) };
            }
        };
        let Some(convert) = self.convert[0] else {
            return run(step);
        };
        let d_qk = step.chunks * CHUNK;
        let converted = &mut converted[..CONVERTED * d_qk];
        let each = step.coming_keys.len() * CONVERTED / step.keys.len();
        for (i, keys) in step.keys.as_chunks::<CONVERTED>().0.iter().enumerate() {
            // SAFETY: keys are valid for reads of their width; the token proves the features.
            unsafe { convert(self.tiles, keys, 0..d_qk, converted) };
            run(&Step {
                first_key: i * CONVERTED,
                keys: &pointers::<CONVERTED>(converted, d_qk),
                coming_keys: &step.coming_keys[i * each..][..each],
                ..*step
            });
        }
    }

    /// C2: O of the step's keys, but for strips in which values aren't finite.
    #[inline(always)]
    fn c2(&self, step: &Step<'_>, converted: &mut [f32], p: &Scores, output: &mut Output<'_>) {
        let step = &Step {
            chunk_words: match step.coming {
                Coming::Keys { .. } => self.chunk_words[0],
                Coming::Values(_) => self.chunk_words[1],
            },
            ..*step
        };
        let mut run = |step: &Step<'_>| {
            for (row, pv) in row_tiles(self.rows, self.pv) {
                // SAFETY: the token proves the features; tiles are those of how the step's values are stored.
                unsafe { pv(self.tiles, step, row, p, output) };
            }
        };
        let Some(convert) = self.convert[1] else {
            return run(step);
        };
        let values = step.values.as_flattened();
        let converted = &mut converted[..values.len() * STRIP];
        for strip in 0..step.strips {
            let columns = strip * STRIP..(strip + 1) * STRIP;
            // SAFETY: values are valid for reads of all strips; the token proves the features.
            unsafe { convert(self.tiles, values, columns, converted) };
            run(&Step {
                first_strip: strip,
                strips: 1,
                values: pointers::<LONG>(converted, STRIP)[..values.len()]
                    .as_chunks()
                    .0,
                ..*step
            });
        }
    }
}

/// [`Kernel::fused`](crate::kernel::Kernel::fused).
#[inline(always)]
pub fn fused<T: Tiles>(
    tiles: T,
    call: &Softmax<'_>,
    block: &FusedBlock<'_>,
    p: &mut L0a,
    l0b: &mut L0b,
    state: &mut RowState,
    o: &mut [ORow],
) -> FusedEnd {
    let rows = call.rows;
    let (d_qk, d_v) = (block.keys.width(), block.values.width());
    assert!(d_qk.is_multiple_of(CHUNK) && d_v.is_multiple_of(STRIP) && d_v > 0);
    let (chunks, strips) = (d_qk / CHUNK, d_v / STRIP);
    let dtypes = [block.keys, block.values].map(|rows| rows.dtype());
    let products = Products::of(tiles, rows, dtypes);
    let converted: &mut [f32] = bytemuck::cast_slice_mut(l0b);
    let q: &[f32] = bytemuck::cast_slice(block.q);
    let (keys, values) = (block.keys.pointers(), block.values.pointers());
    let at_once = step_keys(rows, d_qk + d_v);
    let mut scores = Scores([[0.0; _]; _]);
    let mut bases = Bases::of(call, state);
    let into_l2 = tiles.prefetches_into_l2();
    let mut output = Output {
        o: &mut o[..strips * rows],
        skipped: 0,
    };
    let mut end = FusedEnd::ALL;
    for first in (block.from..call.keys).step_by(at_once) {
        let range = first..call.keys.min(first + at_once);
        // Full groups: the scores of keys beyond count for nothing.
        let padded = range.len().next_multiple_of(GROUP);
        let next = first + at_once + DISTANCE;
        let coming_keys = &block.prefetch[next..][..padded];
        let (coming_keys, coming) = match block.prefetch_values {
            Some(values) => {
                let values = values[next..][..padded].as_chunks().0;
                (coming_keys, Coming::Values(values))
            }
            None => {
                let (c1, rows) = coming_keys.split_at(padded / 2);
                let each = GROUP / 2 / strips;
                (c1, Coming::Keys { rows, each })
            }
        };
        let step = Step {
            rows,
            q: &q[..rows * d_qk],
            chunks,
            first_strip: 0,
            strips,
            chunk_words: products.chunk_words[0],
            into_l2,
            skips: call.mask.is_some() || padded > range.len(),
            first_key: 0,
            keys: &keys[first..][..padded],
            values: values[first..][..padded].as_chunks().0,
            coming_keys,
            coming,
        };
        products.c1(&step, converted, &mut scores);
        let vectors = padded / T::LANES;
        let moved = softmax_rows(
            tiles,
            &mut Unrounded,
            call,
            range.clone(),
            vectors,
            &mut scores,
            &mut bases,
            state,
            &mut p.increment,
        );
        if moved {
            for o in output.o.chunks_mut(rows) {
                rescale_rows(tiles, o, &p.increment, 0..STRIP / T::LANES);
            }
        }
        products.c2(&step, converted, &scores, &mut output);
        if output.skipped != 0 {
            if !moved {
                p.increment.fill(0);
            }
            for (r, probs) in scores.0.iter().enumerate().take(rows) {
                for (k, &prob) in probs.iter().enumerate().take(range.len()) {
                    put_prob(p, k, r, prob);
                }
            }
            end = FusedEnd::skipping(output.skipped, range);
            break;
        }
    }
    bases.store_largest(call, state);
    end
}

/// Where rows of `width` numbers begin, up to `N`; behind them the last's end.
fn pointers<const N: usize>(rows: &[f32], width: usize) -> [*const Word; N] {
    core::array::from_fn(|i| rows[(i * width).min(rows.len())..].as_ptr().cast())
}

/// Register tiles of `rows` rows, of which the tallest has `most`.
const fn count_tiles(rows: usize, most: usize) -> usize {
    if rows <= most {
        return 1;
    }
    rows.div_ceil(if most < TALLEST { most } else { TALLEST })
}

/// Rows in as few register tiles as can be, of about the same height: where each begins, and its kernel. A group that has no tile
/// of its own is cut into tiles of [`TALLEST`] at most.
#[inline(always)]
fn row_tiles<F: Copy>(rows: usize, tiles: &[F]) -> impl Iterator<Item = (usize, F)> {
    let count = count_tiles(rows, tiles.len());
    let mut row = 0;
    (0..count).map(move |done| {
        let height = (rows - row).div_ceil(count - done);
        row += height;
        (row - height, tiles[height - 1])
    })
}

/// C1: scores of the `N` rows from `row` on, `K` keys at a time: two or four. For each pair of keys it prefetches a row, or two.
#[inline(always)]
pub fn fused_qk<S: Simd, E: Element<S>, const N: usize, const K: usize>(
    simd: S,
    step: &Step<'_>,
    row: usize,
    s: &mut Scores,
) {
    const { assert!((K == 2 || K == 4) && CHUNK.is_multiple_of(2 * S::LANES)) };
    let vectors = const { CHUNK / (2 * S::LANES) };
    // A single row has sums of first vectors and of second ones apart: too few otherwise for the latency of the multiply-adds.
    let chains = const { if N == 1 { 2 } else { 1 } };
    let rows = step.rows;
    assert!(row + N <= rows && step.q.len() == rows * step.chunks * CHUNK);
    let q = lanes::<S>(step.q);
    let (first, second) = step.coming_keys.split_at(step.keys.len() / 2);
    for (tile, keys) in step.keys.as_chunks::<K>().0.iter().enumerate() {
        let mut prefetch = [core::ptr::null(); K];
        prefetch[..K / 2].copy_from_slice(&first[tile * K / 2..][..K / 2]);
        if let Some(rows) = second.get(tile * K / 2..(tile + 1) * K / 2) {
            step.prefetch_rows::<S, E>(simd, rows);
        }
        let mut acc = [[[simd.splat(0.0); N]; K]; 2];
        for chunk in 0..step.chunks {
            for i in 0..K / 2 {
                step.prefetch_chunk::<S, E>(simd, prefetch[i], chunk);
            }
            for i in 0..vectors {
                let vector = chunk * vectors + i;
                for half in 0..2 {
                    let mut key = [simd.splat(0.0); K];
                    for k in 0..K {
                        // SAFETY: a key is valid for reads of as many chunks, and their vectors.
                        key[k] = unsafe { E::vector(simd, keys[k], vector * 2 * S::LANES, half) };
                    }
                    for r in 0..N {
                        let at = (2 * vector + half) * rows + row + r;
                        // SAFETY: Q has two vectors of each row for each of a key's, as asserted.
                        let q = simd.load(unsafe { q.get_unchecked(at) });
                        for k in 0..K {
                            let acc = &mut acc[half % chains][k][r];
                            *acc = simd.mul_add(key[k], q, *acc);
                        }
                    }
                }
            }
        }
        for r in (0..N).step_by(4 / K) {
            let mut four = [simd.splat(0.0); 4];
            for i in 0..4 {
                if r + i / K < N {
                    four[i] = acc[0][i % K][r + i / K];
                    if chains == 2 {
                        four[i] = simd.add(four[i], acc[1][i % K][r + i / K]);
                    }
                }
            }
            let sums = simd.sum_lanes(four);
            for (s, sums) in s.0[row..][r..N].iter_mut().zip(sums.as_chunks::<K>().0) {
                s.as_chunks_mut().0[step.first_key / K + tile] = *sums;
            }
        }
    }
}

/// C2: the `N` rows of O from `row` on, strip by strip, `V` pairs of vectors at a time. It leaves strips as they are in which values
/// aren't finite, and adds them to those that are skipped. Such a V makes no row's O finite, since 0 times it is NaN:
/// the first row of all tells where to look.
#[inline(always)]
pub fn fused_pv<S: Simd, E: Element<S>, const N: usize, const V: usize>(
    simd: S,
    step: &Step<'_>,
    row: usize,
    p: &Scores,
    output: &mut Output<'_>,
) {
    let width = const { V * 2 * S::LANES };
    let parts = const { STRIP / (V * 2 * S::LANES) };
    const { assert!(STRIP.is_multiple_of(V * 2 * S::LANES)) };
    let zero = simd.splat(0.0);
    let p: &[_; N] = &p.0[row..].as_chunks().0[0];
    for strip in step.first_strip..step.first_strip + step.strips {
        let first_column = (strip - step.first_strip) * STRIP;
        if output.skipped >> strip & 1 != 0 {
            continue;
        }
        let o: &mut [_; N] = &mut output.o[strip * step.rows + row..].as_chunks_mut().0[0];
        // In case that another part than the first isn't finite.
        let before = (parts > 1 && row == 0 && step.skips).then_some(*o);
        for part in 0..parts {
            let mut acc = [[[zero; 2]; V]; N];
            for r in 0..N {
                for i in 0..V {
                    for h in 0..2 {
                        let at = (part * V + i) * 2 + h;
                        acc[r][i][h] = simd.load(&lanes::<S>(&o[r])[at]);
                    }
                }
            }
            for (group, values) in step.values.iter().enumerate() {
                let mut probs = [&[0.0; GROUP]; N];
                for r in 0..N {
                    probs[r] = &p[r].as_chunks().0[group];
                }
                let mut coming = None;
                match &step.coming {
                    // Once where a chunk takes several parts.
                    Coming::Values(rows) if (part * width).is_multiple_of(CHUNK) => {
                        coming = Some(&rows[group]);
                    }
                    Coming::Values(_) => {}
                    Coming::Keys { rows, each } => {
                        let visit = strip * step.values.len() + group;
                        let chunk = part * step.chunks / parts;
                        let end = (part + 1) * step.chunks / parts;
                        for &row in &rows[visit * each..][..*each] {
                            // Less code. Rows of FP32 take so long that a mispredicted branch doesn't count.
                            if E::DTYPE == Dtype::F32 {
                                for chunk in chunk..end {
                                    step.prefetch_chunk::<S, E>(simd, row, chunk);
                                }
                                continue;
                            }
                            // Unrolled: a loop that ends after some chunks is mispredicted.
                            for i in 0..const { MAX_CHUNKS.div_ceil(STRIP / (V * 2 * S::LANES)) } {
                                if chunk + i < end {
                                    step.prefetch_chunk::<S, E>(simd, row, chunk + i);
                                }
                            }
                        }
                    }
                }
                for k in 0..GROUP {
                    let mut v = [[zero; 2]; V];
                    for i in 0..V {
                        let column = part * width + i * 2 * S::LANES;
                        if let Some(coming) = coming
                            && (i * 2 * S::LANES).is_multiple_of(CHUNK)
                        {
                            let column = strip * STRIP + column;
                            step.prefetch_chunk::<S, E>(simd, coming[k], column / CHUNK);
                        }
                        let column = first_column + column;
                        for h in 0..2 {
                            // SAFETY: values are valid for reads of the step's strips, of which this is one.
                            v[i][h] = unsafe { E::vector(simd, values[k], column, h) };
                        }
                    }
                    for r in 0..N {
                        let p = simd.splat(probs[r][k]);
                        for i in 0..V {
                            for h in 0..2 {
                                acc[r][i][h] = simd.mul_add(p, v[i][h], acc[r][i][h]);
                            }
                        }
                    }
                }
            }
            if row == 0 && step.skips {
                let mut wrong = zero;
                for i in 0..V {
                    for h in 0..2 {
                        wrong = simd.mul_add(acc[0][i][h], zero, wrong);
                    }
                }
                // SAFETY: values are valid for reads of the step's strips, of which this is one.
                let finite =
                    || unsafe { values_are_finite::<S, E>(simd, step.values, first_column) };
                if simd.any(simd.not_ge(wrong, zero)) && !finite() {
                    if let Some(before) = before {
                        *o = before;
                    }
                    output.skipped |= 1 << strip;
                    break;
                }
            }
            for r in 0..N {
                for i in 0..V {
                    for h in 0..2 {
                        let at = (part * V + i) * 2 + h;
                        simd.store(acc[r][i][h], &mut lanes_mut::<S>(&mut o[r])[at]);
                    }
                }
            }
        }
    }
}

/// Whether values of a strip, from some column on, are finite. Checked where a product isn't: the cause may be a query, or O.
///
/// # Safety
/// The values are valid for reads of the strip.
#[inline(always)]
unsafe fn values_are_finite<S: Simd, E: Element<S>>(
    simd: S,
    values: &[[*const Word; GROUP]],
    first_column: usize,
) -> bool {
    let zero = simd.splat(0.0);
    let mut wrong = zero;
    for &value in values.as_flattened() {
        for column in (first_column..first_column + STRIP).step_by(2 * S::LANES) {
            for h in 0..2 {
                // SAFETY: the caller's promise.
                let x = unsafe { E::vector(simd, value, column, h) };
                wrong = simd.mul_add(x, zero, wrong);
            }
        }
    }
    !simd.any(simd.not_ge(wrong, zero))
}
