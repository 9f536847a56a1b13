//! Rows as they are stored, rounded to BF16: 32 columns at a time through FP32. As in
//! the dots, subnormal numbers become zero where the processor's own conversion rounds.
#![allow(unsafe_code, reason = "pointer loads, and feature-gated calls")]

use half::bf16;

use super::vectors::{LANES, Zmm};
use crate::format::{self, Row, Scales};
use crate::kernel::arch::*;
use crate::kernel::prefetch::RowLines;
use crate::kernel::simd::Simd;

/// Columns of one step: a vector of BF16.
const STEP: usize = 2 * LANES;

/// [`convert`], rounding by integer additions.
#[inline(always)]
pub fn convert_row(zmm: Zmm, row: &Row<'_>, next: &Row<'_>, out: &mut [bf16]) {
    convert(zmm, zmm, row, next, out);
}

/// How FP32 becomes BF16.
pub trait Round: Copy {
    /// Two vectors, one behind the other.
    fn round(self, low: __m512, high: __m512) -> __m512i;
}

/// By integer additions.
impl Round for Zmm {
    #[inline(always)]
    fn round(self, low: __m512, high: __m512) -> __m512i {
        // SAFETY: the token proves the features.
        unsafe {
            let mut halves = [_mm512_castps_si512(low), _mm512_castps_si512(high)];
            for (bits, x) in halves.iter_mut().zip([low, high]) {
                let upper = _mm512_srli_epi32::<16>(*bits);
                let odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
                let up = _mm512_add_epi32(*bits, _mm512_set1_epi32(0x7fff));
                let rounded = _mm512_srli_epi32::<16>(_mm512_add_epi32(up, odd));
                let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
                let quiet = _mm512_or_si512(upper, _mm512_set1_epi32(0x40));
                *bits = _mm512_mask_mov_epi32(rounded, nan, quiet);
            }
            let low = _mm512_castsi256_si512(_mm512_cvtepi32_epi16(halves[0]));
            _mm512_inserti64x4::<1>(low, _mm512_cvtepi32_epi16(halves[1]))
        }
    }
}

/// Writes the first columns of `row` to `out`; what isn't full steps, and NaN among
/// FP8, goes the general way.
#[inline(always)]
pub fn convert<R: Round>(zmm: Zmm, round: R, row: &Row<'_>, next: &Row<'_>, out: &mut [bf16]) {
    // Line by line between the steps: a core drops what it has no slot for.
    let mut convert = Convert {
        zmm,
        round,
        next: RowLines::of(next),
    };
    let full = out.len().is_multiple_of(STEP);
    let columns = match *row {
        Row::F16(row) if full => {
            let (row, _) = row.as_chunks::<STEP>();
            for (out, x) in out.as_chunks_mut::<STEP>().0.iter_mut().zip(row) {
                // SAFETY: the token proves the features; 32 FP16 are 64 bytes, and the load
                // needs no alignment.
                let [low, high] = unsafe {
                    let x = _mm512_loadu_si512(x.as_ptr().cast());
                    [
                        _mm512_cvtph_ps(_mm512_castsi512_si256(x)),
                        _mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(x)),
                    ]
                };
                convert.store(out, low, high);
            }
            out.len()
        }
        Row::Bf16(row) if full => {
            let (row, _) = row.as_chunks::<STEP>();
            for (out, x) in out.as_chunks_mut::<STEP>().0.iter_mut().zip(row) {
                *out = *x;
                convert.next.step(zmm);
            }
            out.len()
        }
        Row::F32(row) if full => {
            let (row, _) = row.as_chunks::<STEP>();
            for (out, x) in out.as_chunks_mut::<STEP>().0.iter_mut().zip(row) {
                let [low, high] = bytemuck::cast_ref::<_, [[f32; LANES]; 2]>(x);
                // Two lines a step.
                convert.next.step(zmm);
                convert.store(out, zmm.load(low), zmm.load(high));
            }
            out.len()
        }
        Row::Int8 { values, scale } if full => {
            let scale = zmm.splat(scale);
            let (values, _) = values.as_chunks::<STEP>();
            for (out, x) in out.as_chunks_mut::<STEP>().0.iter_mut().zip(values) {
                let [low, high] = convert.sign_extended(x);
                // SAFETY: the token proves the features.
                let [low, high] = unsafe { [_mm512_cvtepi32_ps(low), _mm512_cvtepi32_ps(high)] };
                convert.store(out, zmm.mul(low, scale), zmm.mul(high, scale));
            }
            out.len()
        }
        Row::Fp8 { values, scales, .. } if out.len() >= values.len() && !has_nan(values) => {
            let columns = &mut out[..values.len()];
            match scales {
                Scales::F32(scales) => {
                    let scale = |i| f32::from_le_bytes(scales.as_chunks().0[i]);
                    convert.fp8::<128>(values, columns, scale);
                }
                Scales::E8m0(scales) => {
                    convert.fp8::<64>(values, columns, |i| format::e8m0_to_f32(scales[i]));
                }
            }
            values.len()
        }
        _ => {
            RowLines::all(next, zmm);
            0
        }
    };
    if columns < out.len() {
        format::convert(&row.behind(columns), &mut out[columns..]);
    }
}

/// What all formats need.
struct Convert<R> {
    zmm: Zmm,
    round: R,
    /// A row to come.
    next: RowLines,
}

impl<R: Round> Convert<R> {
    /// Tiles of e4m3, each with its scale; no NaN.
    #[inline(always)]
    fn fp8<const TILE: usize>(
        &mut self,
        values: &[u8],
        out: &mut [bf16],
        scale: impl Fn(usize) -> f32,
    ) {
        let zmm = self.zmm;
        // Sign, exponent and mantissa in FP32's shifts make a number too small by 2^120.
        let shifts = zmm.splat_i32(0x87f0_0000_u32.cast_signed());
        let missing = zmm.splat(f32::from_bits((127 + 120) << 23));
        let tiles = values.chunks(TILE).zip(out.chunks_mut(TILE));
        for (i, (values, out)) in tiles.enumerate() {
            let scale = zmm.splat(scale(i));
            let (values, _) = bytemuck::cast_slice::<u8, i8>(values).as_chunks::<STEP>();
            for (out, x) in out.as_chunks_mut::<STEP>().0.iter_mut().zip(values) {
                let mut halves = [zmm.splat(0.0); 2];
                for (half, x) in halves.iter_mut().zip(self.sign_extended(x)) {
                    let number = zmm.from_bits(zmm.and(zmm.shl::<20>(x), shifts));
                    *half = zmm.mul(zmm.mul(number, missing), scale);
                }
                self.store(out, halves[0], halves[1]);
            }
        }
    }

    #[inline(always)]
    fn sign_extended(&self, x: &[i8; STEP]) -> [__m512i; 2] {
        let low = x.as_ptr();
        // SAFETY: the token proves the features; 16 bytes from the first and from the 17th
        // of 32 on, and the loads need no alignment.
        unsafe {
            [
                _mm512_cvtepi8_epi32(_mm_loadu_si128(low.cast())),
                _mm512_cvtepi8_epi32(_mm_loadu_si128(low.add(LANES).cast())),
            ]
        }
    }

    #[inline(always)]
    fn store(&mut self, out: &mut [bf16; STEP], low: __m512, high: __m512) {
        self.next.step(self.zmm);
        let rounded = self.round.round(low, high);
        // SAFETY: the token proves the features; 32 BF16 are 64 bytes, and the store needs no
        // alignment.
        unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), rounded) }
    }
}

/// Whether any of the e4m3 is NaN.
#[inline(always)]
fn has_nan(values: &[u8]) -> bool {
    let mut found = false;
    for &x in values {
        found |= x & 0x7f == 0x7f;
    }
    found
}
