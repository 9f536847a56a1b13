//! Transpositions of Q, interleaving of V, and the loads and stores that they need.
#![allow(unsafe_code, reason = "pointer loads")]

use half::bf16;

use super::vectors::{LANES, Zmm};
use crate::kernel::arch::*;
use crate::kernel::call::PackQ;
use crate::kernel::prefetch::LINE;
use crate::kernel::simd::Simd;
use crate::tile::{PANEL_ROWS, QPanel, STRIP};

/// [`Kernel::pack_q`](crate::kernel::Kernel::pack_q): pairs x rows.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
pub fn pack_q(zmm: Zmm, call: &PackQ<'_>, panel: &mut QPanel) {
    let PackQ { d_qk, rows, .. } = *call;
    transpose_q::<false>(zmm, call, panel);
    for out in &mut panel.0[..d_qk / 2] {
        out[rows.len().next_multiple_of(LANES)..].fill(0);
    }
}

/// Transposes 16 rows x 16 feature pairs at a time, across the panel, and prefetches the rows' next
/// lines: the processor's own prefetcher doesn't follow 64 rows at once. With `TILED` each 16 x 16 is contiguous,
/// otherwise in the panel's rows. Not generic over widths, which would gain nothing.
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
#[inline(never)]
pub fn transpose_q<const TILED: bool>(zmm: Zmm, call: &PackQ<'_>, panel: &mut QPanel) {
    /// Prefetch distance in elements of a row: two transpositions' worth.
    const DISTANCE: usize = 4 * LANES;
    let PackQ {
        d_qk, rows, negate, ..
    } = *call;
    assert!(d_qk.is_multiple_of(2 * LANES));
    let sign = _mm512_set1_epi32(if negate { 0x8000_8000_u32 } else { 0 }.cast_signed());
    for start in (0..DISTANCE.min(d_qk)).step_by(LINE) {
        for row in rows {
            zmm.prefetch(&raw const row[start]);
        }
    }
    for first in (0..d_qk / 2).step_by(LANES) {
        for (v, rows) in rows.chunks(LANES).enumerate() {
            let mut block = [_mm512_setzero_si512(); LANES];
            for (out, row) in block.iter_mut().zip(rows) {
                *out = _mm512_xor_si512(load_row(&row[2 * first..]), sign);
                zmm.prefetch(&raw const row[(2 * first + DISTANCE).min(d_qk - 1)]);
            }
            transpose(&mut block);
            let lines = panel.0[first..][..LANES]
                .as_flattened_mut()
                .as_chunks_mut()
                .0;
            for (i, column) in block.into_iter().enumerate() {
                let line = if TILED {
                    v * LANES + i
                } else {
                    i * (PANEL_ROWS / LANES) + v
                };
                store_pairs(&mut lines[line], column);
            }
        }
    }
}

/// A 16 x 16 transposition of 32-bit lanes: four rounds, each of which swaps the
/// off-diagonal halves of blocks half as large as the last.
///
/// Loops are counted and indices computed so that all of it unrolls into
/// registers.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
pub fn transpose(x: &mut [__m512i; LANES]) {
    for i in 0..8 {
        let (a, b) = (x[i], x[i + 8]);
        x[i] = _mm512_shuffle_i64x2::<0x44>(a, b);
        x[i + 8] = _mm512_shuffle_i64x2::<0xee>(a, b);
    }
    let low = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13);
    let high = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
    for n in 0..8 {
        let i = n % 4 + n / 4 * 8;
        let (a, b) = (x[i], x[i + 4]);
        x[i] = _mm512_permutex2var_epi64(a, low, b);
        x[i + 4] = _mm512_permutex2var_epi64(a, high, b);
    }
    for n in 0..8 {
        let i = n % 2 + n / 2 * 4;
        let (a, b) = (x[i], x[i + 2]);
        x[i] = _mm512_unpacklo_epi64(a, b);
        x[i + 2] = _mm512_unpackhi_epi64(a, b);
    }
    let low = _mm512_setr_epi32(0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30);
    let high = _mm512_setr_epi32(1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
    for n in 0..8 {
        let (a, b) = (x[2 * n], x[2 * n + 1]);
        x[2 * n] = _mm512_permutex2var_epi32(a, low, b);
        x[2 * n + 1] = _mm512_permutex2var_epi32(a, high, b);
    }
}

/// Two keys' words interleaved, 32 columns at a time, and the largest magnitude: with the sign off, BF16 patterns are
/// ordered as integers, and infinity and the NaNs are above all numbers.
pub struct Interleaved {
    indices: [__m512i; 2],
    largest: __m512i,
}

impl Interleaved {
    /// Nothing yet.
    #[inline]
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
    pub fn new() -> Self {
        Self {
            indices: interleave_indices(),
            largest: _mm512_setzero_si512(),
        }
    }

    /// Puts a strip of a pair's columns, from that one on; zeros where it has no second key.
    #[inline]
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
    pub fn put(&mut self, pair: &[&[bf16]], column: usize, out: &mut [u32; STRIP]) {
        const MAGNITUDE: i16 = 0x7fff;
        let [low, high] = self.indices;
        let even = &pair[0][column..][..STRIP];
        let odd = pair.get(1).map(|row| &row[column..][..STRIP]);
        for (i, out) in out.as_chunks_mut().0.chunks_mut(2).enumerate() {
            let column = i * 2 * LANES;
            let even = load_row(&even[column..]);
            let odd = match odd {
                Some(odd) => load_row(&odd[column..]),
                None => _mm512_setzero_si512(),
            };
            for x in [even, odd] {
                let magnitude = _mm512_and_si512(x, _mm512_set1_epi16(MAGNITUDE));
                self.largest = _mm512_max_epu16(self.largest, magnitude);
            }
            store_pairs(&mut out[0], _mm512_permutex2var_epi16(even, low, odd));
            store_pairs(&mut out[1], _mm512_permutex2var_epi16(even, high, odd));
        }
    }

    /// Whether all was.
    #[inline]
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
    pub fn finite(&self) -> bool {
        _mm512_cmpge_epu16_mask(self.largest, _mm512_set1_epi16(0x7f80)) == 0
    }
}

/// How `vpermt2w` interleaves two rows' 32 words: the first 16 pairs, and the others.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
pub fn interleave_indices() -> [__m512i; 2] {
    const INTERLEAVE: [[u16; 32]; 2] = {
        let mut index = [[0; 32]; 2];
        let mut i: u16 = 0;
        while i < 32 {
            // Word i of the first row and word i of the second, which the
            // permutation counts from 32 on.
            let pair = 2 * (i % 16) as usize;
            index[i as usize / 16][pair] = i;
            index[i as usize / 16][pair + 1] = i + 32;
            i += 1;
        }
        index
    };
    [load_words(&INTERLEAVE[0]), load_words(&INTERLEAVE[1])]
}

#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
pub fn load_words(x: &[u16; 2 * LANES]) -> __m512i {
    // SAFETY: 32 u16 are 64 bytes; no alignment needed.
    unsafe { _mm512_loadu_si512(x.as_ptr().cast()) }
}

/// The first 16 pairs of a row.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
pub fn load_row(row: &[bf16]) -> __m512i {
    let pairs: &[bf16; 2 * LANES] = &row.as_chunks().0[0];
    // SAFETY: 32 bf16 are 64 bytes; no alignment needed.
    unsafe { _mm512_loadu_si512(pairs.as_ptr().cast()) }
}

#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
pub fn store_pairs(to: &mut [u32; LANES], x: __m512i) {
    // SAFETY: 16 u32 are 64 bytes; no alignment needed.
    unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), x) }
}
