//! Loads, stores, casts, what sets a vector, masked moves.

use bytemuck::cast;

use super::types::*;
use super::zip;

/// Into all levels of the cache.
pub const _MM_HINT_T0: i32 = 3;
/// Into all levels of the cache but the first.
pub const _MM_HINT_T1: i32 = 2;

/// Nothing that a program could tell.
#[inline(always)]
pub fn _mm_prefetch<const HINT: i32>(_at: *const i8) {}

macro_rules! loads {
    ($($name:ident: $Vector:ident by $Pointer:ty;)*) => {$(
        #[inline(always)]
        pub unsafe fn $name(from: *const $Pointer) -> $Vector {
            // SAFETY: the caller's promise: a vector is there to be read.
            $Vector(unsafe { from.cast::<[_; _]>().read_unaligned() })
        }
    )*};
}

loads! {
    _mm512_loadu_ps: __m512 by f32;
    _mm512_loadu_si512: __m512i by __m512i;
    _mm256_loadu_si256: __m256i by __m256i;
    _mm_loadu_si128: __m128i by __m128i;
}

macro_rules! stores {
    ($($name:ident: $Vector:ident by $Pointer:ty;)*) => {$(
        #[inline(always)]
        pub unsafe fn $name(to: *mut $Pointer, x: $Vector) {
            // SAFETY: the caller's promise: there is room for a vector.
            unsafe { to.cast::<[_; _]>().write_unaligned(x.0) }
        }
    )*};
}

stores! {
    _mm512_storeu_ps: __m512 by f32;
    _mm512_storeu_si512: __m512i by __m512i;
    _mm_storeu_ps: __m128 by f32;
}

/// Lanes beyond the mask aren't read.
#[inline(always)]
pub unsafe fn _mm512_maskz_loadu_ps(mask: __mmask16, from: *const f32) -> __m512 {
    let mut lanes = [0.0; 16];
    for (i, lane) in lanes.iter_mut().enumerate() {
        if mask >> i & 1 != 0 {
            // SAFETY: the caller's promise: this lane is there to be read.
            *lane = unsafe { from.add(i).read_unaligned() };
        }
    }
    __m512(lanes)
}

#[inline(always)]
pub fn _mm512_setzero_ps() -> __m512 {
    __m512([0.0; 16])
}

#[inline(always)]
pub fn _mm512_setzero_si512() -> __m512i {
    __m512i([0; 16])
}

#[inline(always)]
pub fn _mm512_set1_ps(x: f32) -> __m512 {
    __m512([x; 16])
}

#[inline(always)]
pub fn _mm512_set1_epi32(x: i32) -> __m512i {
    __m512i([x; 16])
}

#[inline(always)]
pub fn _mm512_set1_epi16(x: i16) -> __m512i {
    __m512i(cast([x; 32]))
}

#[inline(always)]
pub fn _mm512_setr_epi32(
    a: i32,
    b: i32,
    c: i32,
    d: i32,
    e: i32,
    f: i32,
    g: i32,
    h: i32,
    i: i32,
    j: i32,
    k: i32,
    l: i32,
    m: i32,
    n: i32,
    o: i32,
    p: i32,
) -> __m512i {
    __m512i([a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p])
}

#[inline(always)]
pub fn _mm512_setr_epi64(
    a: i64,
    b: i64,
    c: i64,
    d: i64,
    e: i64,
    f: i64,
    g: i64,
    h: i64,
) -> __m512i {
    __m512i(cast([a, b, c, d, e, f, g, h]))
}

#[inline(always)]
pub fn _mm_setr_ps(a: f32, b: f32, c: f32, d: f32) -> __m128 {
    __m128([a, b, c, d])
}

macro_rules! casts {
    ($($name:ident: $From:ident => $To:ident;)*) => {$(
        #[inline(always)]
        pub fn $name(x: $From) -> $To {
            $To(cast(x.0))
        }
    )*};
}

casts! {
    _mm512_castps_pd: __m512 => __m512d;
    _mm512_castpd_ps: __m512d => __m512;
    _mm512_castps_si512: __m512 => __m512i;
    _mm512_castsi512_ps: __m512i => __m512;
}

/// The parts of a vector, each of `PART` lanes.
#[inline(always)]
pub(super) fn parts<T: Copy, const PARTS: usize, const PART: usize, const N: usize>(
    x: [T; N],
) -> [[T; PART]; PARTS] {
    const { assert!(PARTS * PART == N) };
    core::array::from_fn(|i| core::array::from_fn(|j| x[i * PART + j]))
}

/// The vector that has such parts.
#[inline(always)]
pub(super) fn joined<T: Copy, const PARTS: usize, const PART: usize, const N: usize>(
    x: [[T; PART]; PARTS],
) -> [T; N] {
    const { assert!(PARTS * PART == N) };
    core::array::from_fn(|i| x[i / PART][i % PART])
}

#[inline(always)]
pub fn _mm512_castps512_ps256(x: __m512) -> __m256 {
    _mm512_extractf32x8_ps::<0>(x)
}

#[inline(always)]
pub fn _mm256_castps256_ps128(x: __m256) -> __m128 {
    _mm256_extractf128_ps::<0>(x)
}

#[inline(always)]
pub fn _mm512_castsi512_si256(x: __m512i) -> __m256i {
    _mm512_extracti64x4_epi64::<0>(x)
}

/// Upper lanes are unspecified: zeros here.
#[inline(always)]
pub fn _mm512_castps128_ps512(x: __m128) -> __m512 {
    _mm512_insertf32x4::<0>(_mm512_setzero_ps(), x)
}

/// Upper lanes are unspecified: zeros here.
#[inline(always)]
pub fn _mm512_castsi256_si512(x: __m256i) -> __m512i {
    _mm512_inserti64x4::<0>(_mm512_setzero_si512(), x)
}

#[inline(always)]
pub fn _mm512_extractf32x8_ps<const PART: i32>(x: __m512) -> __m256 {
    __m256(parts::<_, 2, 8, 16>(x.0)[PART as usize])
}

#[inline(always)]
pub fn _mm512_extracti64x4_epi64<const PART: i32>(x: __m512i) -> __m256i {
    __m256i(parts::<_, 2, 8, 16>(x.0)[PART as usize])
}

#[inline(always)]
pub fn _mm256_extractf128_ps<const PART: i32>(x: __m256) -> __m128 {
    __m128(parts::<_, 2, 4, 8>(x.0)[PART as usize])
}

#[inline(always)]
pub fn _mm512_insertf32x4<const PART: i32>(x: __m512, part: __m128) -> __m512 {
    let mut x: [_; 4] = parts(x.0);
    x[PART as usize] = part.0;
    __m512(joined(x))
}

#[inline(always)]
pub fn _mm512_inserti64x4<const PART: i32>(x: __m512i, part: __m256i) -> __m512i {
    let mut x: [_; 2] = parts(x.0);
    x[PART as usize] = part.0;
    __m512i(joined(x))
}

#[inline(always)]
pub fn _mm512_broadcast_i64x4(x: __m256i) -> __m512i {
    __m512i(joined([x.0; 2]))
}

#[inline(always)]
pub fn _mm512_mask_broadcast_f32x4(from: __m512, mask: __mmask16, x: __m128) -> __m512 {
    _mm512_mask_mov_ps(from, mask, __m512(joined([x.0; 4])))
}

/// The lanes of `yes` where the mask has a bit, and of `no` elsewhere.
#[inline(always)]
pub(super) fn select<T: Copy>(mask: __mmask16, yes: [T; 16], no: [T; 16]) -> [T; 16] {
    core::array::from_fn(|i| if mask >> i & 1 != 0 { yes[i] } else { no[i] })
}

#[inline(always)]
pub fn _mm512_mask_mov_ps(from: __m512, mask: __mmask16, x: __m512) -> __m512 {
    __m512(select(mask, x.0, from.0))
}

#[inline(always)]
pub fn _mm512_maskz_mov_ps(mask: __mmask16, x: __m512) -> __m512 {
    _mm512_mask_mov_ps(_mm512_setzero_ps(), mask, x)
}

#[inline(always)]
pub fn _mm512_mask_mov_epi32(from: __m512i, mask: __mmask16, x: __m512i) -> __m512i {
    __m512i(select(mask, x.0, from.0))
}

#[inline(always)]
pub fn _mm512_mask_blend_ps(mask: __mmask16, no: __m512, yes: __m512) -> __m512 {
    _mm512_mask_mov_ps(no, mask, yes)
}

#[inline(always)]
pub fn _mm512_and_si512(a: __m512i, b: __m512i) -> __m512i {
    __m512i(zip(a.0, b.0, |a, b| a & b))
}

#[inline(always)]
pub fn _mm512_or_si512(a: __m512i, b: __m512i) -> __m512i {
    __m512i(zip(a.0, b.0, |a, b| a | b))
}

#[inline(always)]
pub fn _mm512_xor_si512(a: __m512i, b: __m512i) -> __m512i {
    __m512i(zip(a.0, b.0, |a, b| a ^ b))
}

#[inline(always)]
pub fn _mm512_or_ps(a: __m512, b: __m512) -> __m512 {
    _mm512_castsi512_ps(_mm512_or_si512(
        _mm512_castps_si512(a),
        _mm512_castps_si512(b),
    ))
}
