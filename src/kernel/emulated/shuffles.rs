//! Permutations: of lanes, and within each 128 bits.

use bytemuck::cast;

use super::moves::{joined, parts};
use super::types::*;

/// Lanes of `a`, then of `b`, by their numbers, of which the lowest bits count.
#[inline(always)]
fn pick<T: Copy, const N: usize>(a: [T; N], index: [usize; N], b: [T; N]) -> [T; N] {
    index.map(|i| {
        let i = i % (2 * N);
        if i < N { a[i] } else { b[i - N] }
    })
}

/// Indices of 32 bits.
#[inline(always)]
fn indices(x: __m512i) -> [usize; 16] {
    x.0.map(|i| i.cast_unsigned() as usize)
}

#[inline]
pub fn _mm512_permutex2var_ps(a: __m512, index: __m512i, b: __m512) -> __m512 {
    __m512(pick(a.0, indices(index), b.0))
}

#[inline]
pub fn _mm512_permutex2var_epi32(a: __m512i, index: __m512i, b: __m512i) -> __m512i {
    __m512i(pick(a.0, indices(index), b.0))
}

#[inline]
pub fn _mm512_permutex2var_epi64(a: __m512i, index: __m512i, b: __m512i) -> __m512i {
    let [a, index, b]: [[u64; 8]; 3] = [cast(a.0), cast(index.0), cast(b.0)];
    __m512i(cast(pick(a, index.map(|i| (i % 16) as usize), b)))
}

#[inline]
pub fn _mm512_permutex2var_epi16(a: __m512i, index: __m512i, b: __m512i) -> __m512i {
    let [a, index, b]: [[u16; 32]; 3] = [cast(a.0), cast(index.0), cast(b.0)];
    __m512i(cast(pick(a, index.map(usize::from), b)))
}

#[inline]
pub fn _mm512_permutexvar_ps(index: __m512i, x: __m512) -> __m512 {
    _mm512_permutex2var_ps(x, index, x)
}

#[inline]
pub fn _mm512_permutexvar_epi16(index: __m512i, x: __m512i) -> __m512i {
    _mm512_permutex2var_epi16(x, index, x)
}

/// The `i`th pair of bits of an immediate.
#[inline(always)]
const fn two_bits(how: i32, i: usize) -> usize {
    (how >> (2 * i) & 3) as usize
}

/// Within each 128 bits.
#[inline(always)]
pub fn _mm512_permute_ps<const HOW: i32>(x: __m512) -> __m512 {
    _mm512_shuffle_ps::<HOW>(x, x)
}

/// Within each 128 bits two lanes of `a`, then two of `b`.
#[inline(always)]
pub fn _mm512_shuffle_ps<const HOW: i32>(a: __m512, b: __m512) -> __m512 {
    __m512(core::array::from_fn(|i| {
        let from = if i % 4 < 2 { &a.0 } else { &b.0 };
        from[i / 4 * 4 + two_bits(HOW, i % 4)]
    }))
}

/// Two times 128 bits of `a`, then of `b`.
#[inline(always)]
fn shuffle_128<T: Copy>(how: i32, a: [T; 16], b: [T; 16]) -> [T; 16] {
    let (a, b): ([[T; 4]; 4], [[T; 4]; 4]) = (parts(a), parts(b));
    joined(core::array::from_fn::<_, 4, _>(|i| {
        let from = if i < 2 { &a } else { &b };
        from[two_bits(how, i)]
    }))
}

#[inline(always)]
pub fn _mm512_shuffle_f32x4<const HOW: i32>(a: __m512, b: __m512) -> __m512 {
    __m512(shuffle_128(HOW, a.0, b.0))
}

#[inline(always)]
pub fn _mm512_shuffle_i64x2<const HOW: i32>(a: __m512i, b: __m512i) -> __m512i {
    __m512i(shuffle_128(HOW, a.0, b.0))
}

/// The lower or the upper lanes of each 128 bits, of which there are `PER`, of `a` and `b` in turn.
#[inline(always)]
fn unpack<T: Copy, const PER: usize, const N: usize>(a: [T; N], b: [T; N], upper: bool) -> [T; N] {
    core::array::from_fn(|i| {
        let lane = i / PER * PER + i % PER / 2 + if upper { PER / 2 } else { 0 };
        if i % 2 == 0 { a[lane] } else { b[lane] }
    })
}

macro_rules! unpacks {
    ($($low:ident, $high:ident: $Vector:ident of $per:literal $Lane:ty, $lanes:literal;)*) => {$(
        #[inline(always)]
        pub fn $low(a: $Vector, b: $Vector) -> $Vector {
            let [a, b]: [[$Lane; $lanes]; 2] = [cast(a.0), cast(b.0)];
            $Vector(cast(unpack::<_, $per, $lanes>(a, b, false)))
        }

        #[inline(always)]
        pub fn $high(a: $Vector, b: $Vector) -> $Vector {
            let [a, b]: [[$Lane; $lanes]; 2] = [cast(a.0), cast(b.0)];
            $Vector(cast(unpack::<_, $per, $lanes>(a, b, true)))
        }
    )*};
}

unpacks! {
    _mm512_unpacklo_ps, _mm512_unpackhi_ps: __m512 of 4 f32, 16;
    _mm512_unpacklo_pd, _mm512_unpackhi_pd: __m512d of 2 u64, 8;
    _mm512_unpacklo_epi16, _mm512_unpackhi_epi16: __m512i of 8 u16, 32;
    _mm512_unpacklo_epi64, _mm512_unpackhi_epi64: __m512i of 2 u64, 8;
}
