//! C2 of a panel: `O += P V`, strip by strip.

use core::arch::x86_64::*;

use half::bf16;

use super::asks::Asks;
use super::tiles::DEPTH;
use super::*;
use crate::kernel::simd::Simd;
use crate::kernel::zmm::{Interleaved, load_row, store_pairs};

/// Rows and columns of a register tile.
const SQUARE: usize = 2 * SIDE;

/// Puts P where tiles of it are rows x pairs: transposes each 16 x 16 of its pairs x rows where it lies, with zeros for
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

/// [`Kernel::pack_v`]: strips end in whole tiles.
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
pub fn pack_v<const D_V: usize>(
    zmm: Zmm,
    values: &[&[bf16]],
    first: usize,
    v: &mut [VBuffer; 3],
) -> bool {
    let pairs = (first + values.len()).div_ceil(2);
    for strip in v.as_flattened_mut().iter_mut().take(D_V / STRIP) {
        strip.0[pairs..pairs.next_multiple_of(SIDE)].fill([0; _]);
    }
    zmm::pack_v::<D_V>(zmm, values, first, &[], v)
}

/// Over packed values: [`Kernel::pv`].
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
#[inline(never)]
pub fn pv(kernel: Amx, call: &Pv<'_>, p: &L0a, v: &[VBuffer; 3], o: &mut [OStrip]) {
    let c2 = C2::new(kernel, call, p);
    let asks = &mut Asks::of(call.next);
    for (v, o) in v.as_flattened().iter().zip(o) {
        c2.strip(&v.0, 0..call.keys, asks, o);
        c2.add_residuals(|key| packed_value(&v.0, key), 0..call.keys, o);
    }
}

/// Over values as they lie, for one panel: [`Kernel::pv_direct`]. Half of a block at a time, so that L1d holds a strip of
/// it as it lies, packed in `v`, and what it is multiplied by.
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
#[inline(never)]
pub fn pv_direct(
    kernel: Amx,
    call: &Pv<'_>,
    p: &L0a,
    values: &[&[bf16]],
    v: &mut [[u32; STRIP]],
    o: &mut [OStrip],
) -> Left {
    const { assert!(Left::TAIL.is_multiple_of(DEPTH)) };
    let c2 = C2::new(kernel, call, p);
    let asks = &mut Asks::of(call.next);
    let mut left = Left::NOTHING;
    for (strip, o) in o.iter_mut().enumerate() {
        let column = STRIP * strip;
        let mut done = 0..0;
        for half in values.chunks(Left::TAIL) {
            if !pack_strip(half, column, v) {
                let left = if done.end == 0 {
                    &mut left.all
                } else {
                    &mut left.tail
                };
                *left |= 1 << strip;
                break;
            }
            c2.strip(v, done.end..done.end + half.len(), asks, o);
            done.end += half.len();
        }
        c2.add_residuals(|key| lying_value(values[key], column), done, o);
    }
    left
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

/// What all strips share.
pub struct C2<'a> {
    kernel: Amx,
    pub tiles: Tiles,
    call: &'a Pv<'a>,
    p: &'a L0a,
    /// Rows whose O the rescale moves: in most blocks none.
    moved: RowSet,
    /// Rows of whose largest P rounding took something that counts.
    rounded: RowSet,
}

impl<'a> C2<'a> {
    pub fn new(kernel: Amx, call: &'a Pv<'_>, p: &'a L0a) -> Self {
        Self {
            kernel,
            tiles: Tiles::new(kernel),
            call,
            p,
            moved: call.increment.map_or(RowSet(0), |increment| {
                RowSet::of(call.rows, |r| increment[r] != 0)
            }),
            rounded: match call.precision {
                Precision::Bf16 => RowSet::of(call.rows, |r| p.residuals.p[r] != 0),
                Precision::Bf16x2 => RowSet(0),
            },
        }
    }

    /// Adds the increments of rows that have one to a strip of O, where there are any.
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
    pub fn rescale(&self, o: &mut OStrip) {
        let Some(increment) = self.call.increment else {
            return;
        };
        let zmm = self.kernel.zmm;
        for r in self.moved {
            for o in o[r].as_chunks_mut().0 {
                zmm.store(zmm.add_increment(zmm.load(o), increment[r]), o);
            }
        }
    }

    /// Some keys, of which `v` holds the values; the first come with the rescale.
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
    fn strip(&self, v: &[[u32; STRIP]], keys: Range<usize>, asks: &mut Asks<'_>, o: &mut OStrip) {
        let Self { call, p, .. } = *self;
        if keys.start == 0 {
            self.rescale(o);
        }
        let add = call.increment.is_some() || keys.start > 0;
        match call.precision {
            Precision::Bf16 => self.products(&p.high, v, keys, add, asks, o),
            // Half by half, as where no more are packed at once.
            Precision::Bf16x2 => {
                let middle = keys.end.min(keys.start + Left::TAIL);
                let pairs = (middle - keys.start).div_ceil(2).next_multiple_of(SIDE);
                let (first, second) = v.split_at(pairs);
                self.products(&p.high, first, keys.start..middle, add, asks, o);
                self.products(&p.low, first, keys.start..middle, true, asks, o);
                if middle < keys.end {
                    self.products(&p.high, second, middle..keys.end, true, asks, o);
                    self.products(&p.low, second, middle..keys.end, true, asks, o);
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
        asks: &mut Asks<'_>,
        o: &mut OStrip,
    ) {
        let pairs = keys.start / 2..keys.end.div_ceil(2);
        let p = &p.0[pairs.start..pairs.end.next_multiple_of(SIDE)];
        let v = &v[..p.len()];
        let steps = p.len() / SIDE;
        let row_tiles = self.call.rows.div_ceil(SIDE);
        let p: *const u32 = p.as_ptr().cast();
        let v: *const u32 = v.as_ptr().cast();
        let o: *mut f32 = o.as_mut_ptr().cast();
        for column in (0..STRIP).step_by(SQUARE) {
            for row in (0..row_tiles / 2 * SQUARE).step_by(SQUARE) {
                let (p, v) = (p.wrapping_add(row), v.wrapping_add(column));
                let o = o.wrapping_add(row * STRIP + column);
                let ask = asks.next(steps, v);
                // SAFETY: each 16 pairs of P hold 16 rows of tiles, of which there are `steps`; V has as many; O has
                // `SQUARE` rows from `row` on and columns from `column` on.
                unsafe { self.tiles.outputs(p, v, steps, o, add, ask) };
            }
        }
        if row_tiles % 2 == 1 {
            let row = SIDE * (row_tiles - 1);
            let (p, o) = (p.wrapping_add(row), o.wrapping_add(row * STRIP));
            let ask = asks.next(steps, v);
            // SAFETY: the same with `SIDE` rows and all columns of the strip.
            unsafe { self.tiles.outputs_of_16(p, v, steps, o, add, ask) };
        }
    }

    /// What rounding took from each row's largest P, times that key's value, if it is among these keys.
    #[inline]
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
    pub fn add_residuals(
        &self,
        value: impl Fn(usize) -> [__m512; STRIP / LANES],
        keys: Range<usize>,
        o: &mut OStrip,
    ) {
        let (zmm, residuals) = (self.kernel.zmm, &self.p.residuals);
        for r in self.rounded {
            let p = residuals.p[r];
            // One half is zero.
            let key = 2 * residuals.pair[r] as usize + usize::from(p > 0xffff);
            if !keys.contains(&key) {
                continue;
            }
            let p = zmm.splat(bf16_widen(half_of(p, key)));
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

/// The same of a value as it lies.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bw,avx512dq,avx512vl"))]
pub fn lying_value(value: &[bf16], column: usize) -> [__m512; STRIP / LANES] {
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
