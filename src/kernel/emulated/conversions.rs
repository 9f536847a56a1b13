//! Between FP32, FP16 and integers.

use bytemuck::cast;

use super::arithmetic::quiet;
use super::map;
use super::moves::select;
use super::types::*;

#[inline(always)]
pub fn _mm512_cvtepi32_ps(x: __m512i) -> __m512 {
    __m512(map(x.0, |x| x as f32))
}

/// To the nearest; what has none, NaN among it, is the smallest integer.
#[inline]
pub fn _mm512_maskz_cvtps_epi32(mask: __mmask16, x: __m512) -> __m512i {
    let rounded = map(x.0, |x| {
        let x = libm::rintf(x);
        if (-2_147_483_648.0..2_147_483_648.0).contains(&x) {
            x as i32
        } else {
            i32::MIN
        }
    });
    __m512i(select(mask, rounded, [0; 16]))
}

#[inline(always)]
pub fn _mm512_cvtepi8_epi32(x: __m128i) -> __m512i {
    let x: [i8; 16] = cast(x.0);
    __m512i(map(x, i32::from))
}

#[inline(always)]
pub fn _mm512_cvtepu16_epi32(x: __m256i) -> __m512i {
    let x: [u16; 16] = cast(x.0);
    __m512i(map(x, i32::from))
}

/// The lower halves.
#[inline(always)]
pub fn _mm512_cvtepi32_epi16(x: __m512i) -> __m256i {
    let words = map(x.0, |x| x as u16);
    __m256i(cast(words))
}

/// From FP16, all of which FP32 has; NaN comes quiet.
#[inline]
pub fn _mm512_cvtph_ps(x: __m256i) -> __m512 {
    let x: [u16; 16] = cast(x.0);
    __m512(map(x, |x| {
        let sign = u32::from(x & 0x8000) << 16;
        let magnitude = u32::from(x & 0x7fff);
        let value = match magnitude {
            // Subnormal: of 2^-24.
            0..0x0400 => magnitude as f32 / 16_777_216.0,
            0x0400..0x7c00 => f32::from_bits((magnitude << 13) + ((127 - 15) << 23)),
            0x7c00 => f32::INFINITY,
            _ => quiet(f32::from_bits(0x7f80_0000 | magnitude << 13)),
        };
        f32::from_bits(value.to_bits() | sign)
    }))
}
