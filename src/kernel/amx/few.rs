//! C2 of a group of few rows: `O += P V`, values as they lie.
//!
//! A tile of 16 keys' values, 32 columns as they lie, is an operand already: its pairs are an even column and the next odd
//! one of a key. So P of a key, in the low half of a word with zeros in the other, gives sums of even columns, and in the
//! high half of odd ones: half of each product is zeros, but nothing is packed. With few rows that is faster, as
//! products are not what limits.
//!
//! Sums over a block's keys begin with zero, in memory that stays in L1d, and vectors add them to O: that puts columns in
//! order, and leaves O alone where a value isn't finite.

use core::arch::x86_64::*;

use half::bf16;

use super::asks::Asks;
use super::c2::{C2, load_u32, lying_value, packed_value};
use super::tiles::{DEPTH, Lying, Piece};
use super::*;
use crate::kernel::simd::Simd;
use crate::kernel::zmm::{NOT_FINITE, store_pairs};

/// Up to so many rows of a group, as it was planned.
pub const ROWS: usize = SIDE;

/// Steps of a block: 32 keys each, of P's high or low part.
const STEPS: usize = BLOCK_KEYS / DEPTH;
/// P of 16 keys, in the low halves of words, then in the high ones; of the next 16 alike.
type Spread = [Piece; 4];
/// A strip of 32 values that don't lie at one distance, or not as rows.
type Copies = [[bf16; STRIP]; DEPTH];

const _: () = assert!(size_of::<[Spread; STEPS]>() <= size_of::<L0b>() / 2);
const _: () = assert!(size_of::<[Copies; STEPS]>() <= size_of::<L0b>() / 2);

/// A block's values.
#[derive(Clone, Copy)]
pub enum Values<'a> {
    /// As they lie.
    Rows(&'a [&'a [bf16]]),
    /// In strips of pairs.
    Packed(&'a [VBuffer; 3]),
}

impl Values<'_> {
    /// How these lie, of so many columns each, if a step can load them so.
    fn lying(self, keys: Range<usize>, columns: usize) -> Option<Lying> {
        match self {
            Values::Rows(rows) if keys.len() == DEPTH => lying(&rows[keys], columns),
            _ => None,
        }
    }

    /// A strip of a key's.
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
    fn value(self, key: usize, strip: usize) -> [__m512; STRIP / LANES] {
        match self {
            Values::Rows(rows) => lying_value(rows[key], strip * STRIP),
            Values::Packed(v) => packed_value(&v.as_flattened()[strip].0, key),
        }
    }

    /// Copies a strip of them, up to so many keys, and zeros behind them.
    fn copy(self, keys: Range<usize>, strip: usize, copies: &mut Copies) {
        match self {
            Values::Rows(rows) => {
                for (copy, row) in copies.iter_mut().zip(&rows[keys.clone()]) {
                    copy.copy_from_slice(&row[strip * STRIP..][..STRIP]);
                }
            }
            Values::Packed(v) => {
                let v = &v.as_flattened()[strip].0;
                for (copy, key) in copies.iter_mut().zip(keys.clone()) {
                    for (copy, pair) in copy.iter_mut().zip(&v[key / 2]) {
                        *copy = bf16::from_bits(half_of(*pair, key));
                    }
                }
            }
        }
        copies[keys.len()..].fill([bf16::ZERO; _]);
    }
}

/// [`Kernel::pv`] and [`Kernel::pv_direct`].
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
#[inline(never)]
pub fn pv(
    kernel: Amx,
    call: &Pv<'_>,
    p: &L0a,
    values: Values<'_>,
    [spread_p, copies]: &mut L0b,
    o: &mut [OStrip],
) -> Left {
    let spread_p: &mut [Spread] = bytemuck::cast_slice_mut(spread_p.0.as_flattened_mut());
    let copies: &mut [Copies] = bytemuck::cast_slice_mut(copies.0.as_flattened_mut());
    let c2 = C2::new(kernel, call, p);
    let asks = &mut Asks::of(call.next);
    let mut left = Left::NOTHING;
    // With both parts of P half of the keys are as many steps.
    let (at_once, low) = match call.precision {
        Precision::Bf16 => (BLOCK_KEYS, false),
        Precision::Bf16x2 => (Left::TAIL, true),
    };
    const { assert!(Left::TAIL.is_multiple_of(DEPTH)) };
    for first in (0..call.keys).step_by(at_once) {
        let keys = first..call.keys.min(first + at_once);
        let steps = keys.len().div_ceil(DEPTH);
        let step_keys = |i| keys.start + i * DEPTH..keys.end.min(keys.start + (i + 1) * DEPTH);
        let (high_p, low_p) = spread_p.split_at_mut(steps);
        spread(&p.high, first, high_p);
        if low {
            spread(&p.low, first, &mut low_p[..steps]);
        }
        let mut lying = [None; STEPS];
        for (i, lying) in lying.iter_mut().enumerate().take(steps) {
            *lying = values.lying(step_keys(i), o.len() * STRIP);
        }
        // Of the strip that is multiplied, and of the one before, which vectors take meanwhile.
        let mut sums: [[Piece; 4]; 2] = [[[[0; _]; _]; _]; _];
        for strip in 0..=o.len() {
            if strip < o.len() {
                let mut places = [Lying::NOTHING; STEPS];
                for (i, copies) in copies.iter_mut().enumerate().take(steps) {
                    places[i] = match lying[i] {
                        Some(lying) => lying.from(strip * size_of::<[bf16; STRIP]>()),
                        None => {
                            values.copy(step_keys(i), strip, copies);
                            Lying::of(copies)
                        }
                    };
                }
                let both = if low { 2 * steps } else { steps };
                places.copy_within(..both - steps, steps);
                let places = &places[..both];
                let ask = asks.next(both, places.as_ptr());
                // SAFETY: P has four tiles for each step, and each step 32 rows of a strip of values, as `lying` or
                // `copy` has them.
                unsafe {
                    c2.tiles
                        .outputs_lying(spread_p.as_ptr(), places, &mut sums[strip % 2], ask);
                }
            }
            let Some(strip) = strip
                .checked_sub(1)
                .filter(|strip| left.all & 1 << strip == 0)
            else {
                continue;
            };
            let (sums, o): (&[[[f32; SIDE]; SIDE]; 4], _) =
                (bytemuck::cast_ref(&sums[strip % 2]), &mut o[strip]);
            if !finite(kernel.zmm, sums, call.rows) {
                let left = if first == 0 {
                    &mut left.all
                } else {
                    &mut left.tail
                };
                *left |= 1 << strip;
                continue;
            }
            if first == 0 {
                match call.increment {
                    None => o[..call.rows].fill([0.0; STRIP]),
                    Some(_) => c2.rescale(o),
                }
            }
            add(kernel.zmm, sums, &mut o[..call.rows]);
            c2.add_residuals(|key| values.value(key, strip), keys.clone(), o);
        }
    }
    left
}

/// Spreads pairs of P, rows x pairs as [`transpose_p`](super::c2::transpose_p) leaves them, from key `first` on.
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
fn spread(p: &PTile, first: usize, out: &mut [Spread]) {
    let groups = p.0[first / 2..].as_chunks::<SIDE>().0;
    for (p, out) in groups.iter().zip(out) {
        for (r, p) in p.iter().enumerate() {
            let pairs = load_u32(&p.as_chunks().0[0]);
            let halves = [
                _mm512_castsi512_si256(pairs),
                _mm512_extracti64x4_epi64::<1>(pairs),
            ];
            for (half, out) in halves.into_iter().zip(out.as_chunks_mut::<2>().0) {
                let low = _mm512_cvtepu16_epi32(half);
                store_pairs(&mut out[0][r], low);
                store_pairs(&mut out[1][r], _mm512_slli_epi32::<16>(low));
            }
        }
    }
}

/// Whether values may be: one that isn't makes no finite sum with any row, not even with a P of zero. A row whose P
/// isn't is alone with that.
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
fn finite(zmm: Zmm, sums: &[[[f32; SIDE]; SIDE]; 4], rows: usize) -> bool {
    let mut columns = [!0; 4];
    for r in 0..rows {
        for (sums, columns) in sums.iter().zip(&mut columns) {
            let sums = zmm.load(&sums[r]);
            *columns = _mm512_mask_fpclass_ps_mask::<NOT_FINITE>(*columns, sums);
        }
    }
    columns == [0; 4]
}

/// Adds the sums of even and odd columns to O.
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
fn add(zmm: Zmm, sums: &[[[f32; SIDE]; SIDE]; 4], o: &mut [[f32; STRIP]]) {
    let [even, odd, more_even, more_odd] = sums;
    for (r, o) in o.iter_mut().enumerate() {
        let o = o.as_chunks_mut::<LANES>().0.as_chunks_mut::<2>().0;
        for ([even, odd], o) in [[even, odd], [more_even, more_odd]].into_iter().zip(o) {
            let sums = zmm.interleave(zmm.load(&even[r]), zmm.load(&odd[r]));
            for (sum, o) in sums.into_iter().zip(o) {
                zmm.store(zmm.add(zmm.load(o), sum), o);
            }
        }
    }
}
