//! FP32 and integers by lanes, comparisons.

use bytemuck::cast;

use super::moves::select;
use super::types::*;
use super::{_mm512_maskz_mov_ps, map, zip};

/// What an invalid operation gives, as infinity less infinity.
const INVALID: f32 = f32::from_bits(0xffc0_0000);
const QUIET: u32 = 0x0040_0000;

pub const _MM_FROUND_TO_NEAREST_INT: i32 = 0;
pub const _MM_FROUND_TO_POS_INF: i32 = 2;
pub const _MM_FROUND_NO_EXC: i32 = 8;

pub const _CMP_LT_OQ: i32 = 0x11;
pub const _CMP_LE_OQ: i32 = 0x12;
pub const _CMP_UNORD_Q: i32 = 0x03;
pub const _CMP_NEQ_UQ: i32 = 0x04;
pub const _CMP_NLT_UQ: i32 = 0x15;
pub const _CMP_NGE_UQ: i32 = 0x19;
pub const _CMP_GE_OQ: i32 = 0x1d;

/// A NaN as an operation hands it on.
#[inline(always)]
pub(super) fn quiet(x: f32) -> f32 {
    f32::from_bits(x.to_bits() | QUIET)
}

/// The first NaN of some operands, or that of an invalid operation. Rust leaves open which NaN an operation gives.
#[cold]
pub(super) fn nan(operands: &[f32]) -> f32 {
    let nan = operands.iter().copied().find(|x| x.is_nan());
    nan.map_or(INVALID, quiet)
}

/// An operation on lanes, whose NaNs come from its operands.
#[inline(always)]
fn lanes<const N: usize>(a: [f32; N], b: [f32; N], f: impl Fn(f32, f32) -> f32) -> [f32; N] {
    let mut x = zip(a, b, f);
    if x.iter().fold(false, |any, x| any | x.is_nan()) {
        for i in 0..N {
            if x[i].is_nan() {
                x[i] = nan(&[a[i], b[i]]);
            }
        }
    }
    x
}

macro_rules! operations {
    ($($name:ident: $Vector:ident, $f:expr;)*) => {$(
        #[inline]
        pub fn $name(a: $Vector, b: $Vector) -> $Vector {
            $Vector(lanes(a.0, b.0, $f))
        }
    )*};
}

operations! {
    _mm512_add_ps: __m512, |a, b| a + b;
    _mm512_sub_ps: __m512, |a, b| a - b;
    _mm512_mul_ps: __m512, |a, b| a * b;
    _mm256_add_ps: __m256, |a, b| a + b;
    _mm_add_ps: __m128, |a, b| a + b;
}

#[inline]
pub fn _mm512_mask_mul_ps(from: __m512, mask: __mmask16, a: __m512, b: __m512) -> __m512 {
    __m512(select(mask, _mm512_mul_ps(a, b).0, from.0))
}

/// The second of two of which none is larger, as of NaNs and of zeros, as it is.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

#[inline(always)]
pub fn _mm512_max_ps(a: __m512, b: __m512) -> __m512 {
    __m512(zip(a.0, b.0, larger))
}

#[inline(always)]
pub fn _mm512_mask_max_ps(from: __m512, mask: __mmask16, a: __m512, b: __m512) -> __m512 {
    __m512(select(mask, _mm512_max_ps(a, b).0, from.0))
}

#[inline(always)]
pub fn _mm256_max_ps(a: __m256, b: __m256) -> __m256 {
    __m256(zip(a.0, b.0, larger))
}

#[inline(always)]
pub fn _mm_max_ps(a: __m128, b: __m128) -> __m128 {
    __m128(zip(a.0, b.0, larger))
}

#[inline(always)]
pub fn _mm512_abs_ps(x: __m512) -> __m512 {
    __m512(map(x.0, |x| f32::from_bits(x.to_bits() & 0x7fff_ffff)))
}

/// `x + y`, rounded to odd: towards zero, and the last bit is set if that lost something. Rounding once more to FP32 then
/// goes as if nothing had been lost.
#[inline(always)]
pub(super) fn add_to_odd(x: f64, y: f64) -> f64 {
    let sum = x + y;
    // What that lost (Knuth's TwoSum).
    let y_part = sum - x;
    let lost = (x - (sum - y_part)) + (y - y_part);
    // False of what isn't finite: nothing is lost there.
    let inexact = (lost > 0.0) | (lost < 0.0);
    let bits = sum.to_bits();
    let next = if (lost > 0.0) == (sum > 0.0) {
        bits.wrapping_add(1)
    } else {
        bits.wrapping_sub(1)
    };
    f64::from_bits(if inexact & (bits & 1 == 0) {
        next
    } else {
        bits
    })
}

/// `a b + c`, rounded once; the product is exact in FP64.
#[inline(always)]
fn fma(a: f32, b: f32, c: f32) -> f32 {
    add_to_odd(f64::from(a) * f64::from(b), f64::from(c)) as f32
}

#[inline]
pub fn _mm512_fmadd_ps(a: __m512, b: __m512, c: __m512) -> __m512 {
    let mut x: [f32; 16] = core::array::from_fn(|i| fma(a.0[i], b.0[i], c.0[i]));
    if x.iter().fold(false, |any, x| any | x.is_nan()) {
        for i in 0..16 {
            if x[i].is_nan() {
                x[i] = nan(&[a.0[i], b.0[i], c.0[i]]);
            }
        }
    }
    __m512(x)
}

#[inline]
pub fn _mm512_fmsub_ps(a: __m512, b: __m512, c: __m512) -> __m512 {
    let minus = map(c.0, |c| if c.is_nan() { c } else { -c });
    _mm512_fmadd_ps(a, b, __m512(minus))
}

#[inline]
pub fn _mm512_mask3_fmadd_ps(a: __m512, b: __m512, c: __m512, mask: __mmask16) -> __m512 {
    __m512(select(mask, _mm512_fmadd_ps(a, b, c).0, c.0))
}

/// To an integer; zero takes its sign from the operand.
#[inline]
pub fn _mm512_roundscale_ps<const HOW: i32>(x: __m512) -> __m512 {
    const { assert!(HOW & !(_MM_FROUND_NO_EXC | 3) == 0) };
    __m512(map(x.0, |x| {
        if x.is_nan() {
            return quiet(x);
        }
        match HOW & 3 {
            _MM_FROUND_TO_NEAREST_INT => libm::rintf(x),
            _MM_FROUND_TO_POS_INF => libm::ceilf(x),
            1 => libm::floorf(x),
            _ => libm::truncf(x),
        }
    }))
}

/// `a 2^floor(b)`.
#[inline]
pub fn _mm512_scalef_ps(a: __m512, b: __m512) -> __m512 {
    __m512(zip(a.0, b.0, scale))
}

#[inline]
pub fn _mm512_maskz_scalef_ps(mask: __mmask16, a: __m512, b: __m512) -> __m512 {
    _mm512_maskz_mov_ps(mask, _mm512_scalef_ps(a, b))
}

fn scale(a: f32, b: f32) -> f32 {
    let signalling = a.is_nan() && a.to_bits() & QUIET == 0;
    if signalling {
        quiet(a)
    } else if b == f32::INFINITY {
        match a {
            0.0 => INVALID,
            _ if a.is_nan() => f32::INFINITY,
            _ => f32::INFINITY.copysign(a),
        }
    } else if b == f32::NEG_INFINITY {
        match a {
            _ if a.is_nan() => 0.0,
            _ if a.is_infinite() => INVALID,
            _ => 0.0_f32.copysign(a),
        }
    } else if a.is_nan() || b.is_nan() {
        nan(&[a, b])
    } else {
        // Any FP32 by these powers leaves FP32, and not FP64.
        let power = libm::floorf(b).clamp(-300.0, 300.0);
        let exponent = (1023 + power as i64).cast_unsigned();
        (f64::from(a) * f64::from_bits(exponent << 52)) as f32
    }
}

/// A bit for each lane where it holds.
#[inline(always)]
fn mask<const N: usize>(holds: impl Fn(usize) -> bool) -> u32 {
    (0..N).fold(0, |mask, i| mask | u32::from(holds(i)) << i)
}

#[inline(always)]
fn mask16(holds: impl Fn(usize) -> bool) -> __mmask16 {
    mask::<16>(holds) as u16
}

#[inline(always)]
pub fn _mm512_cmp_ps_mask<const HOW: i32>(a: __m512, b: __m512) -> __mmask16 {
    // Bit 4 only says which of them signal.
    mask16(|i| {
        let (a, b) = (a.0[i], b.0[i]);
        let unordered = a.is_nan() || b.is_nan();
        match HOW & 15 {
            0x0 => a == b,
            0x1 => a < b,
            0x2 => a <= b,
            0x3 => unordered,
            0x4 => a != b,
            0x5 => a >= b || unordered,
            0x6 => a > b || unordered,
            0x7 => !unordered,
            0x8 => a == b || unordered,
            0x9 => a < b || unordered,
            0xa => a <= b || unordered,
            0xb => false,
            0xc => a != b && !unordered,
            0xd => a >= b,
            0xe => a > b,
            _ => true,
        }
    })
}

#[inline(always)]
pub fn _mm512_mask_cmp_ps_mask<const HOW: i32>(mask: __mmask16, a: __m512, b: __m512) -> __mmask16 {
    mask & _mm512_cmp_ps_mask::<HOW>(a, b)
}

/// The classes of the lanes: a bit each for quiet NaN, zero, zero with a sign, infinity, infinity with a sign,
/// subnormal, finite with a sign (but zero), signalling NaN.
#[inline]
pub fn _mm512_fpclass_ps_mask<const CLASSES: i32>(x: __m512) -> __mmask16 {
    mask16(|i| {
        let x = x.0[i];
        let (bits, sign) = (x.to_bits(), x.is_sign_negative());
        let is = [
            x.is_nan() && bits & QUIET != 0,
            x == 0.0 && !sign,
            x == 0.0 && sign,
            x.is_infinite() && !sign,
            x.is_infinite() && sign,
            x.is_subnormal(),
            x.is_finite() && x != 0.0 && sign,
            x.is_nan() && bits & QUIET == 0,
        ];
        (0..8).any(|class| CLASSES >> class & 1 != 0 && is[class])
    })
}

#[inline]
pub fn _mm512_mask_fpclass_ps_mask<const CLASSES: i32>(mask: __mmask16, x: __m512) -> __mmask16 {
    mask & _mm512_fpclass_ps_mask::<CLASSES>(x)
}

#[inline(always)]
pub fn _mm512_add_epi32(a: __m512i, b: __m512i) -> __m512i {
    __m512i(zip(a.0, b.0, i32::wrapping_add))
}

#[inline(always)]
pub fn _mm512_max_epu16(a: __m512i, b: __m512i) -> __m512i {
    let words: [[u16; 32]; 2] = [cast(a.0), cast(b.0)];
    __m512i(cast(zip(words[0], words[1], u16::max)))
}

#[inline(always)]
pub fn _mm512_slli_epi32<const BITS: u32>(x: __m512i) -> __m512i {
    __m512i(map(x.0, |x| x.unbounded_shl(BITS)))
}

#[inline(always)]
pub fn _mm512_srli_epi32<const BITS: u32>(x: __m512i) -> __m512i {
    __m512i(map(x.0, |x| {
        x.cast_unsigned().unbounded_shr(BITS).cast_signed()
    }))
}

#[inline(always)]
pub fn _mm512_cmpgt_epi32_mask(a: __m512i, b: __m512i) -> __mmask16 {
    mask16(|i| a.0[i] > b.0[i])
}

#[inline(always)]
pub fn _mm512_cmpge_epu16_mask(a: __m512i, b: __m512i) -> __mmask32 {
    let [a, b]: [[u16; 32]; 2] = [cast(a.0), cast(b.0)];
    mask::<32>(|i| a[i] >= b[i])
}
