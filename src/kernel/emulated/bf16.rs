//! Conversions to BF16, and dots.
//!
//! Both round to nearest and take subnormals as zeros, of operands and of results, whatever MXCSR says. A dot is two fused
//! multiply-adds, the odd elements' first. Of several NaNs that of the even elements comes before that of the odd ones, the
//! first operand's before the second's, and the sum's last (Intel SDM, VCVTNE2PS2BF16 and VDPBF16PS, table 5-1; Zen 5 does
//! the same).

use super::arithmetic::{nan, quiet};
use super::moves::{joined, parts};
use super::types::*;
use super::{map, zip};

/// The upper half of an FP32.
#[inline(always)]
fn round(x: f32) -> u16 {
    let bits = flushed(x).to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    let bits = if x.is_nan() {
        quiet(x).to_bits()
    } else {
        rounded
    };
    (bits >> 16) as u16
}

#[inline]
pub fn _mm512_cvtneps_pbh(x: __m512) -> __m256bh {
    __m256bh(map(x.0, round))
}

/// `low` comes first.
#[inline]
pub fn _mm512_cvtne2ps_pbh(high: __m512, low: __m512) -> __m512bh {
    __m512bh(joined([map(low.0, round), map(high.0, round)]))
}

#[inline(always)]
pub fn _mm512_cvtpbh_ps(x: __m256bh) -> __m512 {
    __m512(map(x.0, |x| f32::from_bits(u32::from(x) << 16)))
}

#[inline]
pub fn _mm512_dpbf16_ps(sums: __m512, a: __m512bh, b: __m512bh) -> __m512 {
    let mut sums = map(sums.0, flushed);
    let [a, b]: [[[u16; 2]; 16]; 2] = [parts(a.0), parts(b.0)];
    for half in [1, 0] {
        let [a, b] = [a, b].map(|x| map(x, |pair| element(pair[half])));
        add_products(&mut sums, &a, &b);
    }
    __m512(sums)
}

/// Zero, with its sign, instead of a subnormal number.
#[inline(always)]
pub(super) fn flushed(x: f32) -> f32 {
    let bits = x.to_bits();
    let normal = bits & 0x7f80_0000 != 0;
    f32::from_bits(if normal { bits } else { bits & 0x8000_0000 })
}

/// A BF16 as an operand of products.
#[inline(always)]
pub(super) fn element(x: u16) -> f32 {
    flushed(f32::from_bits(u32::from(x) << 16))
}

/// [`add_product`] of each lane. The sums and both factors are [`flushed`].
#[inline(always)]
pub(super) fn add_products(sums: &mut [f32; 16], a: &[f32; 16], b: &[f32; 16]) {
    let products = zip(*a, *b, |a, b| a * b);
    let added = zip(*sums, products, |sum, product| sum + product);
    // A product of BF16 is exact in FP32, unless it leaves the range of normal numbers: there all is as `add_product` has
    // it. Zeros of zeros are exact as well.
    let mut exact = true;
    for i in 0..16 {
        let magnitude = products[i].to_bits() & 0x7fff_ffff;
        let normal = magnitude.wrapping_sub(0x0080_0000) < 0x7f00_0000;
        exact &= (normal | (a[i] == 0.0) | (b[i] == 0.0)) & !added[i].is_nan();
    }
    if exact {
        // Where this is subnormal, nothing was rounded.
        *sums = map(added, flushed);
        return;
    }
    for i in 0..16 {
        sums[i] = add_product(sums[i], a[i], b[i]);
    }
}

/// `sum + a b`, rounded once to FP32; zero if what has 24 bits then is below the normal numbers.
#[inline(never)]
pub(super) fn add_product(sum: f32, a: f32, b: f32) -> f32 {
    /// From here on rounding to 24 bits makes a normal number of it.
    const NORMAL: f64 = f32::MIN_POSITIVE as f64 * (1.0 - 1.0 / (1 << 25) as f64);
    let exact = super::arithmetic::add_to_odd(f64::from(a) * f64::from(b), f64::from(sum));
    if exact.is_nan() {
        nan(&[a, b, sum])
    } else if exact.abs() < NORMAL {
        0.0_f32.copysign(if exact.is_sign_negative() { -1.0 } else { 1.0 })
    } else {
        exact as f32
    }
}
