//! C2 of panels: strip by strip, all rows of all panels over one strip of V.
//!
//! V has to be interleaved by pairs of keys. The first rows' tile does it on its way: the dots of six rows hide
//! what reading and writing a strip costs. The packed strip (24 KiB) stays in L1d while all rows pass over it.
#![allow(unsafe_code, reason = "pointer loads and stores")]
#![allow(
    clippy::needless_range_loop,
    reason = "counted loops unroll early, so that accumulators become registers"
)]

use super::common::*;
use super::p;
use crate::kernel::zmm;

/// Vectors across a strip's columns.
const VECTORS: usize = STRIP / LANES;
/// Rows of a register tile, at most.
pub const TILE_ROWS: usize = 6;

/// Rows of the next tile of those that remain: the last two tiles are alike.
pub const fn tile_rows(remaining: usize) -> usize {
    match remaining {
        0..=TILE_ROWS => remaining,
        7 | 8 => 4,
        9 | 10 => 5,
        _ => TILE_ROWS,
    }
}

/// A register tile's part of O.
type Acc<const ROWS: usize> = [[__m512; VECTORS]; ROWS];

/// [`Kernel::pv`]. Returns the strips that it skipped.
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
pub fn pv(zmm: Zmm, call: &Pv<'_>, p: &[&L0a], memory: &mut L0b, o: &mut [ORow]) -> Strips {
    let rows = padded(call);
    let pairs = call.keys.div_ceil(2);
    let memory: &mut [u32] = bytemuck::cast_slice_mut(memory[0].0.as_flattened_mut());
    let v: &mut [[u32; STRIP]] = &mut memory.as_chunks_mut().0[..pairs];
    let mut skipped = 0;
    for strip in 0..call.strips {
        let unpacked = Unpacked {
            rows: &rows.as_chunks().0[..pairs],
            column: strip * STRIP,
        };
        for (panel, p) in p.iter().enumerate() {
            let tile = StripTile::of(zmm, call, p);
            let o = &mut call.strip(panel, strip, o)[..call.panel_rows(panel)];
            let mut done = 0;
            if panel == 0 {
                if !tile.pack::<TILE_ROWS>(&unpacked, v, o) {
                    skipped |= 1 << strip;
                    break;
                }
                done = TILE_ROWS;
            }
            tile.rows(v, done, o);
        }
    }
    skipped
}

/// Values, and zeros where a pair has no second key: each is valid for reads of all strips.
pub fn padded(call: &Pv<'_>) -> [*const bf16; BLOCK_KEYS] {
    static ZEROS: [bf16; MAX_D_V] = [bf16::ZERO; _];
    let d_v = call.strips * STRIP;
    let mut rows = [ZEROS[..d_v].as_ptr(); BLOCK_KEYS];
    for (row, value) in rows.iter_mut().zip(call.values.as_slice()) {
        *row = value[..d_v].as_ptr();
    }
    rows
}

/// Whether strips are skipped in which values aren't finite. A P in two parts has a second part of either sign.
pub fn skips(call: &Pv<'_>) -> bool {
    call.skips || call.precision == Precision::Bf16x2
}

/// C2 of a panel and a strip.
struct StripTile<'a> {
    zmm: Zmm,
    /// In blocks, as all of P here.
    high: &'a PTile,
    low: Option<&'a PTile>,
    weights: &'a [f32; PANEL_ROWS],
    increment: Option<&'a [i32; PANEL_ROWS]>,
    skips: bool,
}

impl<'a> StripTile<'a> {
    fn of(zmm: Zmm, call: &Pv<'_>, p: &'a L0a) -> Self {
        Self {
            zmm,
            high: &p.high,
            low: (call.precision == Precision::Bf16x2).then_some(&p.low),
            weights: &p.weights,
            increment: (!call.first).then_some(&p.increment),
            skips: skips(call),
        }
    }

    /// The rows from `row` on, over a packed strip.
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
    fn rows(&self, v: &[[u32; STRIP]], mut row: usize, o: &mut [ORow]) {
        while row < o.len() {
            row += match tile_rows(o.len() - row) {
                1 => self.tile::<1>(v, row, o),
                2 => self.tile::<2>(v, row, o),
                3 => self.tile::<3>(v, row, o),
                4 => self.tile::<4>(v, row, o),
                5 => self.tile::<5>(v, row, o),
                _ => self.tile::<TILE_ROWS>(v, row, o),
            };
        }
    }

    /// `ROWS` rows: rescale, accumulate in registers, add and write once. Returns `ROWS`.
    #[inline]
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
    fn tile<const ROWS: usize>(&self, v: &[[u32; STRIP]], row: usize, o: &mut [ORow]) -> usize {
        let o: &mut [[f32; STRIP]; ROWS] = &mut o[row..].as_chunks_mut().0[0];
        rescale(self.zmm, self.increment, row, o);
        let mut acc = [[_mm512_setzero_ps(); VECTORS]; ROWS];
        if self.accumulates_in_o() {
            acc = read(o);
        }
        accumulate(self.high, v, row, &mut acc);
        if let Some(low) = self.low {
            accumulate(low, v, row, &mut acc);
        }
        self.add(&acc, row, o);
        ROWS
    }

    /// The first `ROWS` rows, which pack the strip into `v` on their way. If values in it aren't
    /// finite, O is left as it was and the result is `false`.
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
    fn pack<const ROWS: usize>(
        &self,
        unpacked: &Unpacked<'_>,
        v: &mut [[u32; STRIP]],
        o: &mut [ORow],
    ) -> bool {
        let o: &mut [[f32; STRIP]; ROWS] = &mut o.as_chunks_mut().0[0];
        let mut acc = [[_mm512_setzero_ps(); VECTORS]; ROWS];
        if self.accumulates_in_o() {
            // Not in place: O may have to stay.
            let mut moved = *o;
            rescale(self.zmm, self.increment, 0, &mut moved);
            acc = read(&moved);
        }
        unpacked.pack_and_accumulate(self.high, v, &mut acc);
        if let Some(low) = self.low {
            accumulate(low, v, 0, &mut acc);
        }
        // A value that isn't finite makes every row's product so, since 0 times it is NaN. The product may also have
        // left FP32's range.
        if self.skips && !finite(&acc) && !v.as_flattened().iter().all(|&pair| finite_pair(pair)) {
            return false;
        }
        if !self.accumulates_in_o() {
            rescale(self.zmm, self.increment, 0, o);
        }
        self.add(&acc, 0, o);
        true
    }

    /// Whether accumulators begin with O: where P is in two parts, so that O's error is that of the reference.
    const fn accumulates_in_o(&self) -> bool {
        self.low.is_some() && self.increment.is_some()
    }

    /// [`add_to`] of a tile, whose first row is `row`.
    #[inline]
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
    fn add<const ROWS: usize>(&self, acc: &Acc<ROWS>, row: usize, o: &mut [[f32; STRIP]; ROWS]) {
        let weights = &self.weights[row..][..ROWS];
        for r in 0..ROWS {
            for v in 0..VECTORS {
                add_to(
                    &mut o[r].as_chunks_mut().0[v],
                    self.increment.is_some() && !self.accumulates_in_o(),
                    acc[r][v],
                    weights[r],
                );
            }
        }
    }
}

/// Rescales rows of O from `row` on, where a reference moved; without increments O begins.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
pub fn rescale(
    zmm: Zmm,
    increment: Option<&[i32; PANEL_ROWS]>,
    row: usize,
    o: &mut [[f32; STRIP]],
) {
    if let Some(increment) = increment {
        let increment = &increment[row..][..o.len()];
        // Most blocks don't move any.
        if increment.iter().any(|&n| n != 0) {
            rescale_rows(zmm, o, increment);
        }
    }
}

/// Adds to a tile's part of O, as it is `before` or zero, a sum times its weight.
///
/// O comes last: accumulators that begin with zeros are read by dots of two operands. A dot of three shares a way with a store,
/// and the tile before has as many stores as this one has accumulators.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
pub fn add_to(o: &mut [f32; LANES], before: bool, acc: __m512, weight: f32) {
    let lanes = if before { __mmask16::MAX } else { 0 };
    // SAFETY: 16 f32 are 64 bytes; no alignment needed.
    let o_before = unsafe { _mm512_maskz_loadu_ps(lanes, o.as_ptr()) };
    store(o, _mm512_fmadd_ps(acc, _mm512_set1_ps(weight), o_before));
}

#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
fn read<const ROWS: usize>(o: &[[f32; STRIP]; ROWS]) -> Acc<ROWS> {
    let mut acc = [[_mm512_setzero_ps(); VECTORS]; ROWS];
    for r in 0..ROWS {
        for v in 0..VECTORS {
            acc[r][v] = load(&o[r].as_chunks().0[v]);
        }
    }
    acc
}

/// `acc[row][column] += sum over pairs of p[pair][row] . v[pair][column]`.
#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
fn accumulate<const ROWS: usize>(p: &PTile, v: &[[u32; STRIP]], row: usize, acc: &mut Acc<ROWS>) {
    assert!(v.len() <= BLOCK_PAIRS && row + ROWS <= PANEL_ROWS);
    let mut offsets = [0; ROWS];
    for r in 0..ROWS {
        offsets[r] = p::offset(row + r);
    }
    let mut pair = p.0.as_flattened().as_ptr();
    for v in v {
        let v: [__m512bh; VECTORS] = core::array::from_fn(|i| load_pairs(&v.as_chunks().0[i]));
        for r in 0..ROWS {
            // SAFETY: pairs and rows are those of a tile, asserted above, whose blocks are as large as the tile.
            let p = unsafe { *pair.add(offsets[r]) };
            let p = as_pairs(_mm512_set1_epi32(p.cast_signed()));
            for i in 0..VECTORS {
                acc[r][i] = _mm512_dpbf16_ps(acc[r][i], v[i], p);
            }
        }
        pair = pair.wrapping_add(p::BLOCK_ROWS);
    }
}

#[inline]
#[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
fn finite<const ROWS: usize>(acc: &Acc<ROWS>) -> bool {
    let mut wrong = 0;
    for r in 0..ROWS {
        for v in 0..VECTORS {
            wrong |= _mm512_fpclass_ps_mask::<NOT_FINITE>(acc[r][v]);
        }
    }
    wrong == 0
}

const fn finite_pair(pair: u32) -> bool {
    pair & 0x7f80 != 0x7f80 && pair & 0x7f80_0000 != 0x7f80_0000
}

/// A strip of values in place, by pairs.
struct Unpacked<'a> {
    /// Each is valid for reads of the strip.
    rows: &'a [[*const bf16; 2]],
    /// Where the strip begins.
    column: usize,
}

impl Unpacked<'_> {
    /// [`accumulate`] of a panel's first rows, and `v` itself.
    #[inline]
    #[cfg_attr(not(amla_emulated), target_feature(enable = "avx512bf16,avx512dq,avx512vl"))]
    fn pack_and_accumulate<const ROWS: usize>(
        &self,
        p: &PTile,
        v: &mut [[u32; STRIP]],
        acc: &mut Acc<ROWS>,
    ) {
        let [low, high] = zmm::interleave_indices();
        for ((p, v), [even, odd]) in p::blocks(p)[0].iter().zip(v).zip(self.rows) {
            let mut pairs = [as_pairs(low); VECTORS];
            for i in 0..VECTORS / 2 {
                let column = self.column + 2 * LANES * i;
                // SAFETY: both are valid for reads of the strip; no alignment needed.
                let (even, odd) = unsafe {
                    (
                        _mm512_loadu_si512(even.add(column).cast()),
                        _mm512_loadu_si512(odd.add(column).cast()),
                    )
                };
                let first = _mm512_permutex2var_epi16(even, low, odd);
                let second = _mm512_permutex2var_epi16(even, high, odd);
                let v = v.as_chunks_mut().0;
                store_pairs(&mut v[2 * i], first);
                store_pairs(&mut v[2 * i + 1], second);
                pairs[2 * i] = as_pairs(first);
                pairs[2 * i + 1] = as_pairs(second);
            }
            for (acc, p) in acc.iter_mut().zip(&p[..ROWS]) {
                let p = as_pairs(_mm512_set1_epi32(p.cast_signed()));
                for (acc, v) in acc.iter_mut().zip(pairs) {
                    *acc = _mm512_dpbf16_ps(*acc, v, p);
                }
            }
        }
    }
}
