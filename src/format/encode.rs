//! Encoders of the storage formats.

use half::{bf16, f16};

use super::{
    BLOCK, E4M3_MAX, FP8_COLUMNS, FP8_ROW, FP8_SCALES, MODEL1_COLUMNS, MODEL1_ROW, MODEL1_SCALES,
    Q4_0, Q8_0, ROPE, e8m0_to_f32,
};
use crate::bits::bf16_to_f32;
use crate::error::{Argument, Error, right_length};

/// The nearest e4m3 number, ties to even. Saturates to the largest of its sign. NaN stays NaN.
fn e4m3_from_f32(x: f32) -> u8 {
    let sign = u8::from(x.is_sign_negative()) << 7;
    if x.is_nan() {
        return sign | 0x7f;
    }
    let magnitude = x.abs().min(E4M3_MAX);
    // Steps of 2^-9 below the normal numbers, of 2^(e - 3) among them.
    let exponent = i32::try_from(magnitude.to_bits() >> 23).unwrap_or_default();
    let exponent = (exponent - 127).max(-6);
    let steps = libm::rintf(libm::ldexpf(magnitude, 3 - exponent));
    // A normal number's 8 to 16 steps carry into the exponent by themselves.
    sign | (8 * u8::try_from(exponent + 6).unwrap_or_default() + small(steps))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an integer from 0 to 16"
)]
const fn small(x: f32) -> u8 {
    x as u8
}

/// Encodes a row of 576 numbers as an FP8 row of FlashMLA. The scale of each 128 of the first 512 is
/// their largest magnitude over 448. The last 64 stay BF16.
///
/// # Errors
/// [`Error::WrongLength`] unless there are 576 numbers and [`FP8_ROW`] bytes.
pub fn encode_fp8(row: &[bf16], bytes: &mut [u8]) -> Result<(), Error> {
    right_length(Argument::Row, row.len(), FP8_COLUMNS + ROPE)?;
    right_length(Argument::Bytes, bytes.len(), FP8_ROW)?;
    let (values, rest) = bytes.split_at_mut(FP8_COLUMNS);
    let (scales, rope) = rest.split_at_mut(4 * FP8_SCALES);
    let tiles = row.chunks(128).zip(values.chunks_mut(128));
    for ((row, values), scale) in tiles.zip(scales.as_chunks_mut().0) {
        let factor = largest(row) / E4M3_MAX;
        *scale = factor.to_le_bytes();
        encode_tile(row, factor, values);
    }
    encode_rope(&row[FP8_COLUMNS..], rope);
    Ok(())
}

/// Encodes a row of 512 numbers as a MODEL1 row of FlashMLA. The scale of each 64 of the first 448 is
/// the power of two that takes their largest magnitude to 448 at most. The last 64 stay BF16.
///
/// # Errors
/// [`Error::WrongLength`] unless there are 512 numbers, [`MODEL1_ROW`] bytes and
/// [`MODEL1_SCALES`] of scales.
pub fn encode_model1(row: &[bf16], bytes: &mut [u8], scales: &mut [u8]) -> Result<(), Error> {
    right_length(Argument::Row, row.len(), MODEL1_COLUMNS + ROPE)?;
    right_length(Argument::Bytes, bytes.len(), MODEL1_ROW)?;
    right_length(Argument::Scales, scales.len(), MODEL1_SCALES)?;
    let (values, rope) = bytes.split_at_mut(MODEL1_COLUMNS);
    scales.fill(0);
    let tiles = row.chunks(64).zip(values.chunks_mut(64));
    for ((row, values), scale) in tiles.zip(scales) {
        // FlashMLA's lower bound avoids a division by zero.
        let bits = (largest(row) / E4M3_MAX).max(1e-4).to_bits();
        // Rounded up to a power of two.
        let exponent = (bits + 0x007f_ffff) >> 23;
        *scale = exponent.to_le_bytes()[0];
        encode_tile(row, e8m0_to_f32(*scale), values);
    }
    encode_rope(&row[MODEL1_COLUMNS..], rope);
    Ok(())
}

/// Encodes a row with the scale that it returns: the largest magnitude over 127. INT8 has no NaN, which
/// becomes 0. An infinity makes the scale infinite, and all of the row NaN.
///
/// # Errors
/// [`Error::WrongLength`] unless there are as many `values` as numbers.
pub fn encode_int8(row: &[bf16], values: &mut [i8]) -> Result<f32, Error> {
    right_length(Argument::Values, values.len(), row.len())?;
    let scale = largest(row) / 127.0;
    for (value, x) in values.iter_mut().zip(row) {
        let x = bf16_to_f32(x.to_bits());
        *value = steps(if scale == 0.0 { 0.0 } else { x / scale });
    }
    Ok(scale)
}

/// Encodes a row as e4m3 with the scale that it returns: the largest magnitude over 448. NaN stays NaN. An infinity makes the
/// scale infinite, and all of the row NaN.
///
/// # Errors
/// [`Error::WrongLength`] unless there are as many `values` as numbers.
pub fn encode_e4m3(row: &[bf16], values: &mut [u8]) -> Result<f32, Error> {
    right_length(Argument::Values, values.len(), row.len())?;
    let scale = largest(row) / E4M3_MAX;
    encode_tile(row, scale, values);
    Ok(scale)
}

/// Encodes a row as ggml's Q8_0, bit for bit as its `quantize_row_q8_0_ref` does. Of each 32 numbers the largest magnitude over
/// 127 is the scale, before it is rounded to FP16; integers are rounded to nearest, ties away from zero.
///
/// # Errors
/// [`Error::WrongLength`] unless there are 32 numbers for each of the `blocks`.
pub fn encode_q8_0(row: &[f32], blocks: &mut [Q8_0]) -> Result<(), Error> {
    right_length(Argument::Row, row.len(), blocks.len().saturating_mul(BLOCK))?;
    for (row, block) in row.chunks(BLOCK).zip(blocks) {
        let largest = row.iter().fold(0.0, |max: f32, x| max.max(x.abs()));
        let d = largest / 127.0;
        let inverse = inverse(d);
        block.d = f16::from_f32(d);
        for (q, x) in block.qs.iter_mut().zip(row) {
            *q = rounded(x * inverse);
        }
    }
    Ok(())
}

/// Encodes a row as ggml's Q4_0, bit for bit as its `quantize_row_q4_0_ref` does. Of each 32 numbers the one of the largest
/// magnitude over -8 is the scale, before it is rounded to FP16.
///
/// # Errors
/// [`Error::WrongLength`] unless there are 32 numbers for each of the `blocks`.
pub fn encode_q4_0(row: &[f32], blocks: &mut [Q4_0]) -> Result<(), Error> {
    right_length(Argument::Row, row.len(), blocks.len().saturating_mul(BLOCK))?;
    for (row, block) in row.chunks(BLOCK).zip(blocks) {
        // The first of equal magnitudes.
        let largest = row.iter().fold(
            0.0,
            |max: f32, &x| if x.abs() > max.abs() { x } else { max },
        );
        let d = largest / -8.0;
        let inverse = inverse(d);
        block.d = f16::from_f32(d);
        let (low, high) = row.split_at(BLOCK / 2);
        for (q, (low, high)) in block.qs.iter_mut().zip(low.iter().zip(high)) {
            let [low, high] = [low, high].map(|x| nibble(x * inverse + 8.5));
            *q = low | high << 4;
        }
    }
    Ok(())
}

/// 0 of 0.
fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { d.recip() }
}

#[expect(clippy::cast_possible_truncation, reason = "saturates")]
fn steps(x: f32) -> i8 {
    libm::rintf(x) as i8
}

/// As C's `roundf`.
#[expect(clippy::cast_possible_truncation, reason = "saturates")]
fn rounded(x: f32) -> i8 {
    libm::roundf(x) as i8
}

/// Truncated.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
fn nibble(x: f32) -> u8 {
    (x as u8).min(15)
}

/// The largest magnitude, NaN ignored.
fn largest(row: &[bf16]) -> f32 {
    let magnitudes = row.iter().map(|x| bf16_to_f32(x.to_bits()).abs());
    magnitudes.fold(0.0, f32::max)
}

fn encode_tile(row: &[bf16], scale: f32, values: &mut [u8]) {
    for (value, x) in values.iter_mut().zip(row) {
        let x = bf16_to_f32(x.to_bits());
        *value = e4m3_from_f32(if scale == 0.0 { x } else { x / scale });
    }
}

fn encode_rope(row: &[bf16], bytes: &mut [u8]) {
    for (bytes, x) in bytes.as_chunks_mut().0.iter_mut().zip(row) {
        *bytes = x.to_le_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::super::e4m3_to_f32;
    use super::*;

    #[test]
    fn e4m3_rounds_to_the_nearest() {
        // Every number itself, and around every midpoint.
        for x in 0..0x7e_u8 {
            let (low, high) = (e4m3_to_f32(x), e4m3_to_f32(x + 1));
            assert_eq!(e4m3_from_f32(low), x);
            assert_eq!(e4m3_from_f32(-high), 0x80 | (x + 1));
            let middle = f32::midpoint(low, high);
            assert_eq!(e4m3_from_f32(middle), x + x % 2, "{middle}");
            assert_eq!(e4m3_from_f32(middle.next_down()), x, "{middle}");
            assert_eq!(e4m3_from_f32(middle.next_up()), x + 1, "{middle}");
        }
        assert_eq!(e4m3_from_f32(1e9), 0x7e);
        assert_eq!(e4m3_from_f32(f32::NEG_INFINITY), 0xfe);
        assert_eq!(e4m3_from_f32(-0.0), 0x80);
        assert!(e4m3_to_f32(e4m3_from_f32(f32::NAN)).is_nan());
    }
}
