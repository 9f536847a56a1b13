//! C2 of a skinny group: `O += P V`, values in place.
//!
//! A tile of 16 keys' values, 32 columns in place, is an operand already: its pairs are an even column and the next odd
//! one of a key. So P of a key, in the low half of a word with zeros in the other, gives sums of even columns, and in the
//! high half of odd ones: half of each product is zeros, but nothing is packed. With up to 16 rows that is faster, as
//! products don't limit.
//!
//! Sums over a block's keys begin with zero, in memory that stays in L1d, and vectors add them to O: that puts columns in
//! order, and leaves O alone where a value isn't finite.
#![allow(unsafe_code, reason = "tile instructions and feature-gated calls")]

use half::bf16;

use super::pv::{PanelPv, load_u32, unpacked_value};
use super::tiles::{Amx, DEPTH, SIDE, Square, Strided, Tiles, strided};
use crate::kernel::arch::*;
use crate::kernel::call::{Pv, Skipped};
use crate::kernel::prefetch::TileRows;
use crate::kernel::simd::Simd;
use crate::kernel::zmm::{LANES, NOT_FINITE, Zmm, store_pairs};
use crate::problem::Precision;
use crate::tile::{BLOCK_KEYS, L0a, L0b, ORow, PTile, STRIP};

/// The largest planned group.
pub const ROWS: usize = SIDE;

/// Steps of a block: 32 keys each, of P's high or low part.
const STEPS: usize = BLOCK_KEYS / DEPTH;
/// P of 16 keys, in the low halves of words, then in the high ones; of the next 16 alike.
type Spread = [Square; 4];
/// A strip of 32 values that aren't at one distance.
type Copies = [[bf16; STRIP]; DEPTH];

const _: () = assert!(size_of::<[Spread; STEPS]>() <= size_of::<L0b>() / 2);
const _: () = assert!(size_of::<[Copies; STEPS]>() <= size_of::<L0b>() / 2);

/// Copies a strip of some keys' values, and zeros behind them.
fn copy(values: &[&[bf16]], strip: usize, copies: &mut Copies) {
    for (copy, row) in copies.iter_mut().zip(values) {
        copy.copy_from_slice(&row[strip * STRIP..][..STRIP]);
    }
    copies[values.len()..].fill([bf16::ZERO; _]);
}

/// [`Kernel::pv`] of up to [`ROWS`] rows.
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
#[inline(never)]
pub fn pv(
    kernel: Amx,
    call: &Pv<'_>,
    p: &L0a,
    [spread_p, copies]: &mut L0b,
    o: &mut [ORow],
) -> Skipped {
    let values = call.values.as_slice();
    let spread_p: &mut [Spread] = bytemuck::cast_slice_mut(spread_p.0.as_flattened_mut());
    let copies: &mut [Copies] = bytemuck::cast_slice_mut(copies.0.as_flattened_mut());
    let tiles = &Tiles::new(kernel);
    let c2 = PanelPv::of(kernel, tiles, call, 0, p);
    let prefetch = &mut TileRows::of(call.prefetch);
    let mut skipped = Skipped::NONE;
    // With both parts of P half of the keys are as many steps.
    let (at_once, low) = match call.precision {
        Precision::Bf16 => (BLOCK_KEYS, false),
        Precision::Bf16x2 => (Skipped::TAIL, true),
    };
    const { assert!(Skipped::TAIL.is_multiple_of(DEPTH)) };
    for first in (0..call.keys).step_by(at_once) {
        let keys = first..call.keys.min(first + at_once);
        let steps = keys.len().div_ceil(DEPTH);
        let step_keys = |i| keys.start + i * DEPTH..keys.end.min(keys.start + (i + 1) * DEPTH);
        let (high_p, low_p) = spread_p.split_at_mut(steps);
        spread(&p.high, first, high_p);
        if low {
            spread(&p.low, first, &mut low_p[..steps]);
        }
        let mut in_place = [None; STEPS];
        for (i, in_place) in in_place.iter_mut().enumerate().take(steps) {
            let keys = step_keys(i);
            if keys.len() == DEPTH {
                *in_place = strided(&values[keys], call.strips * STRIP);
            }
        }
        // Of the strip that is multiplied, and of the one before, which vectors take meanwhile.
        let mut sums: [[Square; 4]; 2] = [[[[0; _]; _]; _]; _];
        for strip in 0..=call.strips {
            if strip < call.strips {
                let mut operands = [Strided::NOTHING; STEPS];
                for (i, copies) in copies.iter_mut().enumerate().take(steps) {
                    operands[i] = match in_place[i] {
                        Some(rows) => rows.from(strip * size_of::<[bf16; STRIP]>()),
                        None => {
                            copy(&values[step_keys(i)], strip, copies);
                            Strided::of(copies)
                        }
                    };
                }
                let both = if low { 2 * steps } else { steps };
                operands.copy_within(..both - steps, steps);
                let operands = &operands[..both];
                let prefetch = prefetch.next(both, operands.as_ptr());
                // SAFETY: P has four tiles for each step, and each step 32 rows of a strip of values, as `strided` or
                // `copy` has them.
                unsafe {
                    c2.tiles.outputs_in_place(
                        spread_p.as_ptr(),
                        operands,
                        &mut sums[strip % 2],
                        prefetch,
                    );
                }
            }
            let Some(strip) = strip
                .checked_sub(1)
                .filter(|strip| skipped.all & 1 << strip == 0)
            else {
                continue;
            };
            let (sums, o): (&[[[f32; SIDE]; SIDE]; 4], _) = (
                bytemuck::cast_ref(&sums[strip % 2]),
                call.strip(0, strip, o),
            );
            if !finite(kernel.zmm, sums, call.rows) {
                let skipped = if first == 0 {
                    &mut skipped.all
                } else {
                    &mut skipped.tail
                };
                *skipped |= 1 << strip;
                continue;
            }
            if first == 0 {
                if call.first {
                    o[..call.rows].fill([0.0; STRIP]);
                } else {
                    c2.rescale(o);
                }
            }
            add(kernel.zmm, sums, &mut o[..call.rows]);
            c2.add_residuals(
                |key| unpacked_value(values[key], strip * STRIP),
                keys.clone(),
                o,
            );
        }
    }
    skipped
}

/// Spreads pairs of P, rows x pairs as [`transpose_p`](super::pv::transpose_p) leaves them, from key `first` on.
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

/// Whether values may be finite: one that isn't makes no row's sum finite, not even with a P of zero. A P that isn't
/// affects its own row alone.
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
