//! Rows as they are stored, rounded to BF16: 32 columns at a time through FP32. As in
//! the dots, subnormal numbers become zero.

use super::*;
use crate::format::Scales;

/// Columns of one step: a vector of BF16.
const STEP: usize = 2 * LANES;

/// Writes the first columns of `row` to `out`; what isn't whole steps, and NaN among
/// FP8, goes the general way.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(super) fn widen(row: &Row<'_>, out: &mut [bf16]) {
    match *row {
        Row::F16(row) if out.len().is_multiple_of(STEP) => {
            let (row, _) = row.as_chunks::<STEP>();
            for (out, x) in out.as_chunks_mut::<STEP>().0.iter_mut().zip(row) {
                // SAFETY: 32 FP16 are 64 bytes; no alignment needed.
                let x = unsafe { _mm512_loadu_si512(x.as_ptr().cast()) };
                let low = _mm512_cvtph_ps(_mm512_castsi512_si256(x));
                let high = _mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(x));
                store_rounded(out, low, high);
            }
        }
        Row::Int8 { values, scale } if out.len().is_multiple_of(STEP) => {
            let scale = _mm512_set1_ps(scale);
            let (values, _) = values.as_chunks::<STEP>();
            for (out, x) in out.as_chunks_mut::<STEP>().0.iter_mut().zip(values) {
                let [low, high] = x.as_chunks::<LANES>().0 else {
                    continue;
                };
                let low = _mm512_cvtepi32_ps(sign_extend(low));
                let high = _mm512_cvtepi32_ps(sign_extend(high));
                store_rounded(out, _mm512_mul_ps(low, scale), _mm512_mul_ps(high, scale));
            }
        }
        Row::Fp8 { values, scales, .. } if out.len() >= values.len() && !has_nan(values) => {
            let (columns, rest) = out.split_at_mut(values.len());
            match scales {
                Scales::F32(scales) => widen_fp8::<128>(values, columns, |i| {
                    f32::from_le_bytes(scales.as_chunks().0[i])
                }),
                Scales::E8m0(scales) => {
                    widen_fp8::<64>(values, columns, |i| format::e8m0_to_f32(scales[i]));
                }
            }
            format::widen(&row.behind(values.len()), rest);
        }
        _ => format::widen(row, out),
    }
}

/// Tiles of e4m3, each with its scale; no NaN.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn widen_fp8<const TILE: usize>(values: &[u8], out: &mut [bf16], scale: impl Fn(usize) -> f32) {
    // Sign, exponent and mantissa in FP32's places make a number too small by 2^120.
    let places = _mm512_set1_epi32(0x87f0_0000_u32.cast_signed());
    let missing = _mm512_set1_ps(f32::from_bits((127 + 120) << 23));
    let tiles = values.chunks(TILE).zip(out.chunks_mut(TILE));
    for (i, (values, out)) in tiles.enumerate() {
        let scale = _mm512_set1_ps(scale(i));
        let (values, _) = bytemuck::cast_slice::<u8, i8>(values).as_chunks::<STEP>();
        for (out, x) in out.as_chunks_mut::<STEP>().0.iter_mut().zip(values) {
            let [low, high] = x.as_chunks::<LANES>().0 else {
                continue;
            };
            let mut halves = [sign_extend(low), sign_extend(high)];
            for x in &mut halves {
                *x = _mm512_and_si512(_mm512_slli_epi32::<20>(*x), places);
            }
            let low = _mm512_mul_ps(_mm512_castsi512_ps(halves[0]), missing);
            let high = _mm512_mul_ps(_mm512_castsi512_ps(halves[1]), missing);
            store_rounded(out, _mm512_mul_ps(low, scale), _mm512_mul_ps(high, scale));
        }
    }
}

/// Whether any of the e4m3 is NaN.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn has_nan(values: &[u8]) -> bool {
    let mut found = false;
    for &x in values {
        found |= x & 0x7f == 0x7f;
    }
    found
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn sign_extend(x: &[i8; LANES]) -> __m512i {
    // SAFETY: 16 bytes; no alignment needed.
    _mm512_cvtepi8_epi32(unsafe { _mm_loadu_si128(x.as_ptr().cast()) })
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn store_rounded(out: &mut [bf16; STEP], low: __m512, high: __m512) {
    let rounded = from_pairs(_mm512_cvtne2ps_pbh(high, low));
    // SAFETY: 32 BF16 are 64 bytes; no alignment needed.
    unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), rounded) }
}
