//! Any processor: the `wide` crate's vectors, which become whatever the build's
//! target features allow (SSE2 in a default x86-64 build, NEON on aarch64).
//!
//! | kernel | register tile | peak model |
//! |---|---|---|
//! | C1, C2 | 4 x 8 lanes (6 x 16 with AVX) over FP32 operands ([`super::fp32`]) | a multiply and an add per lane, fused where the build has FMA |

use bytemuck::cast;
use half::bf16;
use wide::{f32x8, i32x8};

use super::fp32::{self, DEPTH, Outer, Start};
use super::shared::{self, Bases, EXP2, EXP2_MIN};
use super::{Isa, Pv, Rows, Softmax};
use crate::bits::{Increment, add_increment_f32, add_increment_f32_slice};
use crate::format::{self, Row};
use crate::problem::{Precision, Rescale};
use crate::tile::{L0a, L0b, OStrip, PANEL_ROWS, QPanel, RowState, STile, VBuffer};

const LANES: usize = 8;

/// Register tile: rows x vectors, as the number of vector registers allows.
const TILE_ROWS: usize = if cfg!(target_feature = "avx") { 6 } else { 4 };
const TILE_VECTORS: usize = if cfg!(target_feature = "avx") { 2 } else { 1 };

/// Needs nothing, so that anyone may hold it.
#[derive(Clone, Copy)]
pub struct Portable;

impl Isa for Portable {
    fn widen(self, row: &Row<'_>, out: &mut [bf16]) {
        format::widen(row, out);
    }

    fn pack_q<const D_QK: usize>(self, rows: &[&[bf16]], negate: bool, panel: &mut QPanel) {
        shared::pack_q::<D_QK>(rows, negate, panel);
    }

    fn pack_v<const D_V: usize>(
        self,
        values: &[&[bf16]],
        first: usize,
        _next: &[&[bf16]],
        v: &mut [VBuffer; 3],
    ) -> bool {
        shared::pack_v::<D_V>(values, first, v)
    }

    fn qk<const D_QK: usize>(
        self,
        q: &QPanel,
        rows: usize,
        keys: &Rows<'_>,
        _next: &[&[bf16]],
        scratch: &mut L0b,
        s: &mut STile,
    ) {
        fp32::qk::<Self, D_QK>(self, q, rows, keys, scratch, s);
    }

    fn softmax(self, call: &Softmax<'_>, s: &STile, p: &mut L0a, state: &mut RowState) {
        let vectors = call.rows.div_ceil(LANES);
        let mut max = [f32::NEG_INFINITY; PANEL_ROWS];
        for (v, out) in max.as_chunks_mut().0.iter_mut().take(vectors).enumerate() {
            *out = block_max(call, s, v).to_array();
        }
        let bases = shared::advance(call, &max, state);
        for v in 0..vectors {
            exponentiate(call, s, &bases, v, p, state);
        }
        if call.rescale == Rescale::Exact && call.precision == Precision::Bf16 {
            shared::collect_peaks(call, &bases, s, &p.high, state);
        }
    }

    fn pv<const D_V: usize>(
        self,
        call: &Pv<'_>,
        p: &L0a,
        v: &[VBuffer; 3],
        scratch: &mut L0b,
        o: &mut [OStrip],
    ) {
        fp32::pv::<Self, D_V>(self, call, p, v, scratch, o);
    }

    fn rescale(self, xs: &mut [f32], increment: Increment) {
        add_increment_f32_slice(xs, increment);
    }

    fn fold(self, x: &mut [f32], dx: Increment, y: &[f32], dy: Increment) {
        shared::fold(x, dx, y, dy);
    }

    fn axpy(self, factor: f32, value: &[bf16], o: &mut [OStrip], row: usize) {
        shared::axpy(factor, value, o, row);
    }

    fn dot_loop(self, iterations: u64) -> u64 {
        const CHAINS: usize = TILE_ROWS * TILE_VECTORS;
        let mut acc = [f32x8::splat(0.0); CHAINS];
        let x = f32x8::splat(core::hint::black_box(0.5));
        for _ in 0..iterations {
            for acc in &mut acc {
                *acc = x.mul_add(*acc, x);
            }
        }
        core::hint::black_box(acc);
        iterations * (CHAINS * LANES * 2) as u64
    }
}

impl Outer for Portable {
    fn outer<const SM: usize, const SK: usize>(
        self,
        a: &[f32; DEPTH * 64],
        b: &[[f32; 64]],
        columns: usize,
        start: Start<'_>,
        c: &mut [[f32; 64]],
    ) {
        for column in (0..columns).step_by(TILE_VECTORS * LANES) {
            let mut row = 0;
            while row < c.len() {
                row += match c.len() - row {
                    1 => tile::<1, SM, SK>(a, b, row, column, start, c),
                    2 => tile::<2, SM, SK>(a, b, row, column, start, c),
                    3 => tile::<3, SM, SK>(a, b, row, column, start, c),
                    4 => tile::<4, SM, SK>(a, b, row, column, start, c),
                    5 if TILE_ROWS > 5 => tile::<5, SM, SK>(a, b, row, column, start, c),
                    _ => tile::<TILE_ROWS, SM, SK>(a, b, row, column, start, c),
                };
            }
        }
    }
}

/// One register tile of [`Outer::outer`]; returns `ROWS`.
#[inline(always)]
fn tile<const ROWS: usize, const SM: usize, const SK: usize>(
    a: &[f32; DEPTH * 64],
    b: &[[f32; 64]],
    row: usize,
    column: usize,
    start: Start<'_>,
    c: &mut [[f32; 64]],
) -> usize {
    let c = &mut c[row..row + ROWS];
    let mut acc = [[f32x8::splat(0.0); TILE_VECTORS]; ROWS];
    if matches!(start, Start::Load | Start::Rescale(_)) {
        for (acc, c) in acc.iter_mut().zip(&*c) {
            for (acc, c) in acc.iter_mut().zip(c[column..].as_chunks().0) {
                *acc = f32x8::new(*c);
            }
        }
    }
    if let Start::Rescale(increment) = start {
        for (acc, &bits) in acc.iter_mut().zip(&increment[row..row + ROWS]) {
            // Most blocks don't move the reference: nothing to add then.
            if bits != 0 {
                for acc in acc {
                    *acc = add_increment(*acc, bits);
                }
            }
        }
    }
    for (k, b) in b.iter().enumerate() {
        let b = b[column..][..TILE_VECTORS * LANES].as_chunks().0;
        let b: [f32x8; TILE_VECTORS] = core::array::from_fn(|v| f32x8::new(b[v]));
        for (i, acc) in acc.iter_mut().enumerate() {
            let a = f32x8::splat(a[(row + i) * SM + k * SK]);
            for (acc, b) in acc.iter_mut().zip(b) {
                *acc = a.mul_add(b, *acc);
            }
        }
    }
    for (acc, c) in acc.iter().zip(c) {
        for (&acc, c) in acc.iter().zip(c[column..].as_chunks_mut().0) {
            *c = match start {
                Start::Add => (f32x8::new(*c) + acc).to_array(),
                _ => acc.to_array(),
            };
        }
    }
    ROWS
}

/// [`add_increment_f32`] on eight lanes.
#[inline(always)]
fn add_increment(x: f32x8, bits: i32) -> f32x8 {
    let increment = Increment::from_bits_clamped(bits);
    f32x8::new(x.to_array().map(|x| add_increment_f32(x, increment)))
}

/// Ones where the rows of vector `v` see a key.
#[inline(always)]
fn sees(mask: u64, v: usize) -> f32x8 {
    const BITS: [i32; LANES] = [1, 2, 4, 8, 16, 32, 64, 128];
    let rows = i32::from(mask.to_le_bytes()[v]);
    cast((i32x8::splat(rows) & i32x8::new(BITS)).simd_eq(i32x8::new(BITS)))
}

#[inline(always)]
fn scores(s: &[f32; PANEL_ROWS], v: usize) -> f32x8 {
    f32x8::new(s.as_chunks().0[v])
}

fn block_max(call: &Softmax<'_>, s: &STile, v: usize) -> f32x8 {
    let mut max = f32x8::splat(f32::NEG_INFINITY);
    for (k, s) in s.0[..call.keys].iter().enumerate() {
        let s = scores(s, v);
        // False for NaN, which so never becomes the maximum.
        let mut greater = s.simd_gt(max);
        if let Some(mask) = call.mask {
            greater &= sees(mask[k], v);
        }
        max = greater.bitselect(s, max);
    }
    max
}

/// P of eight rows, pair by pair, and the row sums.
fn exponentiate(
    call: &Softmax<'_>,
    s: &STile,
    bases: &Bases,
    v: usize,
    p: &mut L0a,
    state: &mut RowState,
) {
    let scale = f32x8::splat(call.scale);
    let max = f32x8::new(bases.max.as_chunks().0[v]);
    let offset = f32x8::new(bases.offset.as_chunks().0[v]);
    let factor = f32x8::new(bases.factor.as_chunks().0[v]);
    let mut sums = [f32x8::splat(0.0); 2];
    let mut rounded = [f32x8::splat(0.0); 2];
    for (pair, s) in s.0[..call.keys].chunks(2).enumerate() {
        let mut high = [f32x8::splat(0.0); 2];
        let mut low = [f32x8::splat(0.0); 2];
        for (i, s) in s.iter().enumerate() {
            let mut prob = exp2((scores(s, v) - max).mul_add(scale, offset));
            if let Some(mask) = call.mask {
                prob &= sees(mask[2 * pair + i], v);
            }
            sums[i] += prob;
            if call.rescale == Rescale::Compensated {
                prob *= factor;
            }
            high[i] = round(prob);
            rounded[i] += high[i];
            if call.precision == Precision::Bf16x2 {
                low[i] = round(prob - high[i]);
                rounded[i] += low[i];
            }
        }
        p.high.0[pair].as_chunks_mut().0[v] = join(high);
        if call.precision == Precision::Bf16x2 {
            p.low.0[pair].as_chunks_mut().0[v] = join(low);
        }
    }
    for (sum, parts) in [(&mut state.sum, sums), (&mut state.rounded_sum, rounded)] {
        let sum = &mut sum.as_chunks_mut().0[v];
        *sum = (f32x8::new(*sum) + (parts[0] + parts[1])).to_array();
    }
}

/// 2^t; zero below 2^-126, NaN for NaN.
#[inline(always)]
fn exp2(t: f32x8) -> f32x8 {
    // Adding 1.5 * 2^23 rounds to an integer, which is then the low bits.
    const ROUND: f32 = 12_582_912.0;
    let shifted = t + f32x8::splat(ROUND);
    let r = t - (shifted - f32x8::splat(ROUND));
    let mut y = f32x8::splat(EXP2[4]);
    for c in [EXP2[3], EXP2[2], EXP2[1], EXP2[0], 1.0] {
        y = y.mul_add(r, f32x8::splat(c));
    }
    // The paper's lemma: times 2^j is an addition to the exponent, and t >= -126
    // keeps it within the lemma's premise.
    let j: i32x8 = cast::<_, i32x8>(shifted) - cast::<_, i32x8>(f32x8::splat(ROUND));
    let scaled: f32x8 = cast(cast::<_, i32x8>(y) + (j << 23));
    let flushed = t.simd_lt(f32x8::splat(EXP2_MIN));
    let number = t.simd_eq(t);
    number.bitselect(flushed.bitselect(f32x8::splat(0.0), scaled), t)
}

/// Rounds to BF16, to nearest even, in FP32's bits; NaN stays NaN.
#[inline(always)]
fn round(x: f32x8) -> f32x8 {
    let bits: i32x8 = cast(x);
    let odd = (bits >> 16) & i32x8::splat(1);
    let rounded = bits + odd + i32x8::splat(0x7fff);
    let quiet = bits | i32x8::splat(0x0040_0000);
    let number: i32x8 = cast(x.simd_eq(x));
    let bits = (number & rounded) | (!number & quiet);
    cast(bits & i32x8::splat(0xffff_0000_u32.cast_signed()))
}

/// The upper halves of two rounded vectors, as pairs.
#[inline(always)]
fn join([even, odd]: [f32x8; 2]) -> [u32; LANES] {
    let (even, odd) = (even.to_array(), odd.to_array());
    core::array::from_fn(|i| even[i].to_bits() >> 16 | odd[i].to_bits())
}
