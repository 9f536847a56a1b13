//! C2 of panels: `O += P V`, strip by strip. A packed strip of V stays in L1d while all panels pass over it.
#![allow(unsafe_code, reason = "tile instructions, pointer loads")]

use core::ops::Range;

use half::bf16;

use super::tiles::{Amx, SIDE, Tiles};
use crate::bits::bf16_to_f32;
use crate::kernel::arch::*;
use crate::kernel::call::{Pv, Skipped};
use crate::kernel::prefetch::TileRows;
use crate::kernel::scalar::half_of;
use crate::kernel::simd::Simd;
use crate::kernel::zmm::{self, Interleaved, LANES, load_row, store_pairs};
use crate::problem::Precision;
use crate::tile::{L0a, L0b, ORow, PANEL_ROWS, PTile, STRIP};

/// Rows and columns of a register tile.
const SQUARE: usize = 2 * SIDE;

/// Transposes P in place to tiles of rows x pairs: each 16 x 16 of its pairs x rows, with zeros for
/// pairs behind the last.
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
pub fn transpose_p(p: &mut PTile, row_tiles: usize, keys: usize) {
    let pairs = keys.div_ceil(2);
    p.0[pairs..pairs.next_multiple_of(SIDE)].fill([0; _]);
    for p in p.0[..pairs.next_multiple_of(SIDE)]
        .as_chunks_mut::<SIDE>()
        .0
    {
        for tile in 0..row_tiles {
            let mut block = [_mm512_setzero_si512(); LANES];
            for (block, p) in block.iter_mut().zip(&*p) {
                *block = load_u32(&p.as_chunks().0[tile]);
            }
            zmm::transpose(&mut block);
            for (p, block) in p.iter_mut().zip(block) {
                store_pairs(&mut p.as_chunks_mut().0[tile], block);
            }
        }
    }
}

/// [`Kernel::pv`].
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
#[inline(never)]
pub fn pv(kernel: Amx, call: &Pv<'_>, p: &[&L0a], memory: &mut L0b, o: &mut [ORow]) -> Skipped {
    let tiles = &Tiles::new(kernel);
    let memory: &mut [u32] = bytemuck::cast_slice_mut(memory[0].0.as_flattened_mut());
    let v: &mut [[u32; STRIP]] = memory.as_chunks_mut().0;
    let prefetch = &mut TileRows::of(call.prefetch);
    let mut skipped = Skipped::NONE;
    for strip in 0..call.strips {
        if !pack_strip(call.values.as_slice(), STRIP * strip, v) {
            skipped.all |= 1 << strip;
            continue;
        }
        for (panel, p) in p.iter().enumerate() {
            let c2 = PanelPv::of(kernel, tiles, call, panel, p);
            let o = call.strip(panel, strip, o);
            c2.strip(v, prefetch, o);
            c2.add_residuals(|key| packed_value(v, key), 0..call.keys, o);
        }
    }
    skipped
}

/// Rows of a panel, a bit each.
#[derive(Clone, Copy)]
struct RowSet(u64);

impl RowSet {
    /// Those of the first `rows` that qualify.
    fn of(rows: usize, qualifies: impl Fn(usize) -> bool) -> Self {
        Self((0..rows).fold(0, |set, r| set | u64::from(qualifies(r)) << r))
    }
}

impl Iterator for RowSet {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let row = self.0.trailing_zeros() as usize;
        self.0 &= self.0.wrapping_sub(1);
        (row < PANEL_ROWS).then_some(row)
    }
}

/// C2 of a panel.
pub struct PanelPv<'a> {
    kernel: Amx,
    pub tiles: &'a Tiles,
    call: &'a Pv<'a>,
    rows: usize,
    p: &'a L0a,
    /// Rows whose O the rescale moves: in most blocks none.
    moved: RowSet,
    /// Rows whose largest P has a residual.
    residuals: RowSet,
}

impl<'a> PanelPv<'a> {
    pub fn of(kernel: Amx, tiles: &'a Tiles, call: &'a Pv<'_>, panel: usize, p: &'a L0a) -> Self {
        let rows = call.panel_rows(panel);
        Self {
            kernel,
            tiles,
            call,
            rows,
            p,
            moved: if call.first {
                RowSet(0)
            } else {
                RowSet::of(rows, |r| p.increment[r] != 0)
            },
            residuals: match call.precision {
                Precision::Bf16 => RowSet::of(rows, |r| p.residuals.p[r] != 0),
                Precision::Bf16x2 => RowSet(0),
            },
        }
    }

    /// Adds the increments of rows that have one to a strip of O, where there are any.
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
    pub fn rescale(&self, o: &mut [ORow]) {
        let zmm = self.kernel.zmm;
        for r in self.moved {
            for o in o[r].as_chunks_mut().0 {
                zmm.store(zmm.add_increment(zmm.load(o), self.p.increment[r]), o);
            }
        }
    }

    /// A strip of O; `v` holds the values.
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
    fn strip(&self, v: &[[u32; STRIP]], prefetch: &mut TileRows<'_>, o: &mut [ORow]) {
        let Self { call, p, .. } = *self;
        self.rescale(o);
        let add = !call.first;
        match call.precision {
            Precision::Bf16 => self.products(&p.high, v, 0..call.keys, add, prefetch, o),
            // Half by half, so that both parts of the same products are close in the sum.
            Precision::Bf16x2 => {
                for first in (0..call.keys).step_by(Skipped::TAIL) {
                    let keys = first..call.keys.min(first + Skipped::TAIL);
                    let v = &v[first / 2..];
                    self.products(&p.high, v, keys.clone(), add || first > 0, prefetch, o);
                    self.products(&p.low, v, keys, true, prefetch, o);
                }
            }
        }
    }

    /// `o[row][column] (+)= sum over pairs of p[row][pair] . v[pair][column]`.
    #[inline]
    fn products(
        &self,
        p: &PTile,
        v: &[[u32; STRIP]],
        keys: Range<usize>,
        add: bool,
        prefetch: &mut TileRows<'_>,
        o: &mut [ORow],
    ) {
        let pairs = keys.start / 2..keys.end.div_ceil(2);
        let p = &p.0[pairs.start..pairs.end.next_multiple_of(SIDE)];
        let v = &v[..p.len()];
        let steps = p.len() / SIDE;
        let row_tiles = self.rows.div_ceil(SIDE);
        assert!(row_tiles * SIDE <= o.len());
        let p: *const u32 = p.as_ptr().cast();
        let v: *const u32 = v.as_ptr().cast();
        let o: *mut f32 = o.as_mut_ptr().cast();
        for column in (0..STRIP).step_by(SQUARE) {
            for row in (0..row_tiles / 2 * SQUARE).step_by(SQUARE) {
                let (p, v) = (p.wrapping_add(row), v.wrapping_add(column));
                let o = o.wrapping_add(row * STRIP + column);
                let prefetch = prefetch.next(steps, v);
                // SAFETY: each 16 pairs of P hold 16 rows of tiles, of which there are `steps`; V has as many; O has
                // `SQUARE` rows from `row` on and columns from `column` on.
                unsafe { self.tiles.outputs(p, v, steps, o, add, prefetch) };
            }
        }
        if row_tiles % 2 == 1 {
            let row = SIDE * (row_tiles - 1);
            let (p, o) = (p.wrapping_add(row), o.wrapping_add(row * STRIP));
            let prefetch = prefetch.next(steps, v);
            // SAFETY: the same with `SIDE` rows and all columns of the strip.
            unsafe { self.tiles.outputs_of_16(p, v, steps, o, add, prefetch) };
        }
    }

    /// Adds the residual of each row's largest P times that key's value, if it is among these keys.
    #[inline]
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
    pub fn add_residuals(
        &self,
        value: impl Fn(usize) -> [__m512; STRIP / LANES],
        keys: Range<usize>,
        o: &mut [ORow],
    ) {
        let (zmm, residuals) = (self.kernel.zmm, &self.p.residuals);
        for r in self.residuals {
            let p = residuals.p[r];
            // One half is zero.
            let key = 2 * residuals.pair[r] as usize + usize::from(p > 0xffff);
            if !keys.contains(&key) {
                continue;
            }
            let p = zmm.splat(bf16_to_f32(half_of(p, key)));
            for (o, v) in o[r].as_chunks_mut().0.iter_mut().zip(value(key)) {
                zmm.store(zmm.mul_add(v, p, zmm.load(o)), o);
            }
        }
    }
}

/// A key's part of a packed strip.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
pub fn packed_value(v: &[[u32; STRIP]], key: usize) -> [__m512; STRIP / LANES] {
    let pairs: &[[u32; LANES]; STRIP / LANES] = &v[key / 2].as_chunks().0.as_chunks().0[0];
    pairs.each_ref().map(|pairs| {
        let pairs = load_u32(pairs);
        _mm512_castsi512_ps(match key % 2 {
            0 => _mm512_slli_epi32::<16>(pairs),
            _ => _mm512_and_si512(pairs, _mm512_set1_epi32(0xffff_0000_u32.cast_signed())),
        })
    })
}

/// The same of a value in place.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
pub fn unpacked_value(value: &[bf16], column: usize) -> [__m512; STRIP / LANES] {
    let value = &value[column..][..STRIP];
    let [a, b] = [load_row(value), load_row(&value[2 * LANES..])];
    [
        _mm512_castsi512_si256(a),
        _mm512_extracti64x4_epi64::<1>(a),
        _mm512_castsi512_si256(b),
        _mm512_extracti64x4_epi64::<1>(b),
    ]
    .map(|x| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(x))))
}

/// Interleaves a strip of values; zero where a pair has no second key, and up to whole tiles. Returns whether
/// they are finite.
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
fn pack_strip(values: &[&[bf16]], column: usize, v: &mut [[u32; STRIP]]) -> bool {
    let mut interleaved = Interleaved::new();
    for (pair, v) in values.chunks(2).zip(&mut *v) {
        interleaved.put(pair, column, v);
    }
    let pairs = values.len().div_ceil(2);
    v[pairs..pairs.next_multiple_of(SIDE)].fill([0; _]);
    interleaved.finite()
}

#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
pub fn load_u32(x: &[u32; LANES]) -> __m512i {
    // SAFETY: 16 u32 are 64 bytes; no alignment needed.
    unsafe { _mm512_loadu_si512(x.as_ptr().cast()) }
}
