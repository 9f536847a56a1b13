//! What every backend does alike, element by element.
//!
//! These functions are inlined into each backend's feature-gated callers, so
//! that the compiler vectorises them with that backend's instructions.

use core::ops::Range;

use half::bf16;

use super::call::PackQ;
use super::prefetch::RowLines;
use super::simd::Simd;
use crate::bits::bf16_to_f32;
use crate::format::{self, Row};
use crate::problem::Precision;
use crate::tile::{L0a, PTile, QPanel};

/// A row as it is stored, rounded to BF16: [`super::Kernel::convert`].
#[inline(always)]
pub fn convert_row<S: Simd>(simd: S, row: &Row<'_>, next: &Row<'_>, out: &mut [bf16]) {
    RowLines::all(next, simd);
    format::convert(row, out);
}

/// Packs query rows into a panel: [`super::Kernel::pack_q`].
#[inline(always)]
pub fn pack_q(_simd: impl Copy, call: &PackQ<'_>, panel: &mut QPanel) {
    let PackQ { d_qk, rows, .. } = *call;
    let sign = if call.negate { 0x8000_8000 } else { 0 };
    for (r, row) in rows.iter().enumerate() {
        for (pair, out) in row[..d_qk].as_chunks().0.iter().zip(&mut panel.0) {
            out[r] = join(*pair) ^ sign;
        }
    }
    for out in &mut panel.0[..d_qk / 2] {
        out[rows.len()..].fill(0);
    }
}

/// Two neighbours in one lane, the even one in the low half.
#[inline(always)]
pub const fn join([even, odd]: [bf16; 2]) -> u32 {
    even.to_bits() as u32 | (odd.to_bits() as u32) << 16
}

/// Whether some columns of values are finite. Checked where a product isn't: the cause may be a query, or O.
#[cold]
pub fn finite<'a>(mut values: impl Iterator<Item = &'a [bf16]>, columns: &Range<usize>) -> bool {
    const INFINITY: u16 = bf16::INFINITY.to_bits();
    values.all(|row| {
        // A row at once, which the compiler vectorises.
        let wrong = |x: &bf16| x.to_bits() & INFINITY == INFINITY;
        let row = row[columns.clone()].iter();
        !row.fold(false, |any, x| any | wrong(x))
    })
}

/// The element of a pair that belongs to key `k`.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "takes one half")]
pub const fn half_of(pair: u32, k: usize) -> u16 {
    (pair >> (16 * (k % 2))) as u16
}

/// [`super::Kernel::prob`] of where a tile has the key's pair.
pub fn prob_of(
    p: &L0a,
    precision: Precision,
    k: usize,
    r: usize,
    pair: impl Fn(&PTile) -> u32,
) -> f32 {
    let mut prob = bf16_to_f32(half_of(pair(&p.high), k));
    let residuals = &p.residuals;
    match precision {
        Precision::Bf16x2 => prob += bf16_to_f32(half_of(pair(&p.low), k)),
        Precision::Bf16 if residuals.pair[r] as usize == k / 2 => {
            prob += bf16_to_f32(half_of(residuals.p[r], k));
        }
        Precision::Bf16 => {}
    }
    prob * p.weights[r]
}
