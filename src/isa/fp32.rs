//! C1 and C2 for backends that multiply in FP32: the operands of a 64 x 64 x 96
//! step are widened into L0B, and one outer-product micro-kernel does both.
//!
//! The depth of 96 is the paper's baseK in C1. Of each pair the odd element comes
//! first, as the dot instructions have it: S is then the same to the bit. A widened operand is used 64
//! times before the next is made, which is what the widening costs: about one
//! vector instruction in 32.

use half::bf16;

use super::{Pv, Rows};
use crate::bits::bf16_widen;
use crate::problem::Precision;
use crate::tile::{
    BLOCK_PAIRS, BUFFER_STRIPS, L0a, L0b, OStrip, PANEL_ROWS, QPanel, STRIP, STile, VBuffer,
};

/// Depth of one step.
pub const DEPTH: usize = 96;

/// What becomes of what is there.
#[derive(Clone, Copy)]
pub enum Start<'a> {
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

/// The micro-kernel: `c[m][n] (+)= sum over k of a[m * SM + k * SK] * b[k][n]`
/// for every row of `c` and the first `columns` columns at least.
pub trait Outer: Copy {
    /// Runs it.
    fn outer<const SM: usize, const SK: usize>(
        self,
        a: &[f32; DEPTH * 64],
        b: &[[f32; 64]],
        columns: usize,
        start: Start<'_>,
        c: &mut [[f32; 64]],
    );
}

/// [`super::Isa::qk`].
#[inline(always)]
pub fn qk<O: Outer, const D_QK: usize>(
    outer: O,
    q: &QPanel,
    rows: usize,
    keys: &Rows<'_>,
    scratch: &mut L0b,
    s: &mut STile,
) {
    let [a, b] = scratch;
    let a = flatten(&mut a.0);
    for (step, q) in q.0[..D_QK / 2].chunks(DEPTH / 2).enumerate() {
        let depth = 2 * q.len();
        widen_pairs(q, &mut b.0);
        for (keys, s) in keys.as_slice().chunks(64).zip(s.0.chunks_mut(64)) {
            for (key, a) in keys.iter().zip(a.chunks_exact_mut(DEPTH)) {
                widen(&key[step * DEPTH..][..depth], a);
            }
            let start = if step == 0 { Start::Zero } else { Start::Add };
            outer.outer::<DEPTH, 1>(a, &b.0[..depth], rows, start, &mut s[..keys.len()]);
        }
    }
}

/// [`super::Isa::pv`].
#[inline(always)]
pub fn pv<O: Outer, const D_V: usize>(
    outer: O,
    call: &Pv<'_>,
    p: &L0a,
    v: &[VBuffer; 3],
    scratch: &mut L0b,
    o: &mut [OStrip],
) {
    let [a, b] = scratch;
    for first in (0..call.keys.div_ceil(2)).step_by(DEPTH / 2) {
        let pairs = first..(first + DEPTH / 2).min(call.keys.div_ceil(2));
        widen_pairs(&p.high.0[pairs.clone()], &mut a.0);
        if call.precision == Precision::Bf16x2 {
            // In FP32 the two halves are one factor: the sum is exact.
            add_pairs(&p.low.0[pairs.clone()], &mut a.0);
        }
        for (strip, o) in o[..D_V / STRIP].iter_mut().enumerate() {
            let v = &v[strip / BUFFER_STRIPS][strip % BUFFER_STRIPS];
            widen_pairs(&v.0[pairs.clone()], &mut b.0);
            let start = match call.increment {
                _ if first > 0 => Start::Load,
                Some(increment) => Start::Rescale(&increment[..call.rows]),
                None => Start::Zero,
            };
            let depth = 2 * pairs.len();
            let o = &mut o[..call.rows];
            outer.outer::<1, 64>(flatten(&mut a.0), &b.0[..depth], STRIP, start, o);
        }
    }
}

#[inline(always)]
fn flatten(tile: &mut [[f32; 64]; BLOCK_PAIRS]) -> &mut [f32; DEPTH * 64] {
    const { assert!(BLOCK_PAIRS == DEPTH && PANEL_ROWS == 64 && STRIP == 64) };
    bytemuck::cast_mut(tile)
}

/// Splits each row of pairs into two rows of FP32, the odd elements' first.
#[inline(always)]
fn widen_pairs(pairs: &[[u32; 64]], out: &mut [[f32; 64]; BLOCK_PAIRS]) {
    for (pairs, [odd, even]) in pairs.iter().zip(out.as_chunks_mut().0) {
        for ((&pair, even), odd) in pairs.iter().zip(even).zip(odd) {
            *even = f32::from_bits(pair << 16);
            *odd = f32::from_bits(pair & 0xffff_0000);
        }
    }
}

#[inline(always)]
fn add_pairs(pairs: &[[u32; 64]], out: &mut [[f32; 64]; BLOCK_PAIRS]) {
    for (pairs, [odd, even]) in pairs.iter().zip(out.as_chunks_mut().0) {
        for ((&pair, even), odd) in pairs.iter().zip(even).zip(odd) {
            *even += f32::from_bits(pair << 16);
            *odd += f32::from_bits(pair & 0xffff_0000);
        }
    }
}

/// Widens a row, each pair's odd element first.
#[inline(always)]
fn widen(from: &[bf16], to: &mut [f32]) {
    for ([odd, even], from) in to.as_chunks_mut().0.iter_mut().zip(from.as_chunks::<2>().0) {
        *even = bf16_widen(from[0].to_bits());
        *odd = bf16_widen(from[1].to_bits());
    }
}
