//! Storage formats of rows, their scales, and their encoders.
//!
//! | format | row | scale |
//! |---|---|---|
//! | BF16, FP16 | the numbers | none |
//! | FP8 (FlashMLA's "V32") | 512 e4m3, 4 FP32 scales, 64 BF16: 656 bytes | one for 128 columns |
//! | FP8 (FlashMLA's "MODEL1") | 448 e4m3, 64 BF16: 576 bytes | 7 e8m0 and an unused byte, separate |
//! | INT8, E4M3 | the numbers | one FP32 for a row, separate |
//! | FP32 | the numbers | none |
//! | Q8_0 (ggml's) | 32 INT8 after 32 | one FP16 for 32 columns, before them |
//! | Q4_0 (ggml's) | 32 of 4 bits after 32 | the same |
//!
//! Rows of FP8, INT8 and E4M3 are BF16 rows stored in less: a product of a number with its scale is rounded to nearest even, as FlashMLA
//! does it. FP16, FP32 and ggml's blocks are taken as they are, in FP32, unless a call has inputs rounded to BF16
//! ([`Inputs`](crate::Inputs)).

mod encode;

use bytemuck::Pod;
use half::{bf16, f16};

pub use encode::{encode_e4m3, encode_fp8, encode_int8, encode_model1, encode_q4_0, encode_q8_0};

use crate::bits::{bf16_round, bf16_to_f32};

/// The elements of a tensor, and how they are stored.
///
/// A tensor's strides count elements of the slice here: bytes, for FP8.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// BF16: what the kernel computes with, without a copy.
    Bf16(&'a [bf16]),
    /// FP16.
    F16(&'a [f16]),
    /// FP32.
    F32(&'a [f32]),
    /// Blocks of 32 numbers, for rows of whole blocks: [`encode_q8_0`]. Strides count blocks.
    Q8_0(&'a [Q8_0]),
    /// The same: [`encode_q4_0`].
    Q4_0(&'a [Q4_0]),
    /// Rows of [`FP8_ROW`] bytes, for a cache of width 576: [`encode_fp8`].
    Fp8(&'a [u8]),
    /// Rows of [`MODEL1_ROW`] bytes, for a cache of width 512: [`encode_model1`].
    Model1 {
        /// Rows and scales.
        bytes: &'a [u8],
        /// Bytes from the start of a page (or request) to the scales of its first row.
        scales: usize,
        /// Bytes from one row's [`MODEL1_SCALES`] scales to the next's.
        scale_stride: usize,
    },
    /// INT8 with a scale for each row: [`encode_int8`].
    Int8 {
        /// The numbers.
        values: &'a [i8],
        /// Each row's scale.
        scales: &'a [f32],
        /// Strides of `scales`, as those of the tensor.
        strides: [usize; 3],
    },
    /// e4m3 with a scale for each row: [`encode_e4m3`].
    E4m3 {
        /// The numbers: finite ones and NaN, no infinity.
        values: &'a [u8],
        /// Each row's scale.
        scales: &'a [f32],
        /// Strides of `scales`, as those of the tensor.
        strides: [usize; 3],
    },
}

/// Numbers of a block of ggml's.
pub const BLOCK: usize = 32;

/// ggml's `block_q8_0`: each number is `d` times an integer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct Q8_0 {
    /// The scale.
    pub d: f16,
    /// The integers.
    pub qs: [i8; BLOCK],
}

/// ggml's `block_q4_0`: each number is `d` times an integer from -8 to 7.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct Q4_0 {
    /// The scale.
    pub d: f16,
    /// The integers plus 8: the first 16 in the low halves, the others in the high ones.
    pub qs: [u8; BLOCK / 2],
}

impl<'a> From<&'a [f32]> for Data<'a> {
    fn from(data: &'a [f32]) -> Self {
        Self::F32(data)
    }
}

impl<'a> From<&'a [bf16]> for Data<'a> {
    fn from(data: &'a [bf16]) -> Self {
        Self::Bf16(data)
    }
}

impl<'a> From<&'a [f16]> for Data<'a> {
    fn from(data: &'a [f16]) -> Self {
        Self::F16(data)
    }
}

/// Bytes of an FP8 row: 512 numbers, 4 scales, 64 BF16.
pub const FP8_ROW: usize = FP8_COLUMNS + 4 * FP8_SCALES + 2 * ROPE;
/// Bytes of a MODEL1 row: 448 numbers, 64 BF16.
pub const MODEL1_ROW: usize = MODEL1_COLUMNS + 2 * ROPE;
/// Bytes of a MODEL1 row's scales, the last of which is unused.
pub const MODEL1_SCALES: usize = 8;

const FP8_COLUMNS: usize = 512;
const FP8_SCALES: usize = 4;
const MODEL1_COLUMNS: usize = 448;
/// Columns stored as BF16 beside the FP8 ones.
const ROPE: usize = 64;
/// The largest e4m3 number.
const E4M3_MAX: f32 = 448.0;

/// One row as it is stored.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Row<'a> {
    Bf16(&'a [bf16]),
    F16(&'a [f16]),
    F32(&'a [f32]),
    Q8_0(&'a [Q8_0]),
    Q4_0(&'a [Q4_0]),
    /// Columns of e4m3 with their scales, then BF16 ones, little-endian.
    Fp8 {
        values: &'a [u8],
        scales: Scales<'a>,
        rope: &'a [u8],
    },
    Int8 {
        values: &'a [i8],
        scale: f32,
    },
    E4m3 {
        values: &'a [u8],
        scale: f32,
    },
}

impl<'a> Row<'a> {
    /// A row of no columns.
    pub(crate) const EMPTY: Self = Self::Bf16(&[]);

    /// The row without its first `columns`, which are all of its FP8 ones.
    #[cfg_attr(
        not(all(target_arch = "x86_64", target_feature = "sse2")),
        allow(dead_code, reason = "AVX-512 alone converts a row in parts")
    )]
    pub(crate) fn behind(&self, columns: usize) -> Self {
        match *self {
            Self::Fp8 {
                values,
                scales,
                rope,
            } => Self::Fp8 {
                values: &values[columns..],
                scales,
                rope,
            },
            other => other,
        }
    }

    /// The row from a column on, which is 0 for a row with FP8 ones, and a multiple of [`BLOCK`] for one of blocks.
    pub(crate) fn columns_from(self, column: usize) -> Self {
        match self {
            Self::Bf16(row) => Self::Bf16(&row[column..]),
            Self::F16(row) => Self::F16(&row[column..]),
            Self::F32(row) => Self::F32(&row[column..]),
            Self::Q8_0(row) => Self::Q8_0(&row[column / BLOCK..]),
            Self::Q4_0(row) => Self::Q4_0(&row[column / BLOCK..]),
            Self::Int8 { values, scale } => Self::Int8 {
                values: &values[column..],
                scale,
            },
            Self::E4m3 { values, scale } => Self::E4m3 {
                values: &values[column..],
                scale,
            },
            Self::Fp8 { .. } => self,
        }
    }

    /// The address and the bytes of its memory. Scales apart from it are left out.
    pub(crate) fn memory(&self) -> (*const bf16, usize) {
        match *self {
            Self::Int8 { values, .. } => (values.as_ptr().cast(), values.len()),
            Self::E4m3 { values, .. } => (values.as_ptr().cast(), values.len()),
            Self::Fp8 { values, rope, .. } => (values.as_ptr().cast(), values.len() + rope.len()),
            _ => (self.words().as_ptr(), size_of_val(self.words())),
        }
    }

    /// How its numbers are stored, if kernels can read them in place.
    pub(crate) const fn dtype(&self) -> Option<Dtype> {
        match self {
            Self::Bf16(_) => Some(Dtype::Bf16),
            Self::F16(_) => Some(Dtype::F16),
            Self::F32(_) => Some(Dtype::F32),
            Self::Q8_0(_) => Some(Dtype::Q8_0),
            Self::Q4_0(_) => Some(Dtype::Q4_0),
            _ => None,
        }
    }

    /// The row's memory in words of 16 bits, where kernels can read it in place.
    pub(crate) fn words(&self) -> &'a [bf16] {
        match *self {
            Self::Bf16(row) => row,
            Self::F16(row) => bytemuck::cast_slice(row),
            Self::F32(row) => bytemuck::cast_slice(row),
            Self::Q8_0(row) => bytemuck::cast_slice(row),
            Self::Q4_0(row) => bytemuck::cast_slice(row),
            _ => &[],
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Scales<'a> {
    /// FP32, little-endian, for 128 columns each.
    F32(&'a [u8]),
    /// e8m0, for 64 columns each.
    E8m0(&'a [u8]),
}

/// How rows are stored that kernels can read in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dtype {
    Bf16,
    F16,
    F32,
    Q8_0,
    Q4_0,
}

impl Dtype {
    /// Words of 16 bits that a row of `width` numbers takes.
    pub(crate) const fn words(self, width: usize) -> usize {
        match self {
            Self::Bf16 | Self::F16 => width,
            Self::F32 => 2 * width,
            Self::Q8_0 => width.div_ceil(BLOCK) * (size_of::<Q8_0>() / 2),
            Self::Q4_0 => width.div_ceil(BLOCK) * (size_of::<Q4_0>() / 2),
        }
    }
}

impl Data<'_> {
    /// How rows are stored, if kernels can read them in place.
    pub(crate) const fn dtype(&self) -> Option<Dtype> {
        match self {
            Self::Bf16(_) => Some(Dtype::Bf16),
            Self::F16(_) => Some(Dtype::F16),
            Self::F32(_) => Some(Dtype::F32),
            Self::Q8_0(_) => Some(Dtype::Q8_0),
            Self::Q4_0(_) => Some(Dtype::Q4_0),
            _ => None,
        }
    }

    /// Whether rows are BF16, perhaps stored in less.
    pub(crate) const fn is_bf16(&self) -> bool {
        !matches!(
            self,
            Self::F16(_) | Self::F32(_) | Self::Q8_0(_) | Self::Q4_0(_)
        )
    }

    /// Whether a row can be read from this column on.
    pub(crate) const fn has_column(&self, column: usize) -> bool {
        match self {
            Self::Fp8(_) | Self::Model1 { .. } => column == 0,
            Self::Q8_0(_) | Self::Q4_0(_) => column.is_multiple_of(BLOCK),
            _ => true,
        }
    }

    /// Number of elements, in the units of strides.
    #[must_use]
    pub const fn len(&self) -> usize {
        match self {
            Self::Bf16(data) => data.len(),
            Self::F16(data) => data.len(),
            Self::F32(data) => data.len(),
            Self::Q8_0(blocks) => blocks.len(),
            Self::Q4_0(blocks) => blocks.len(),
            Self::Fp8(bytes) | Self::Model1 { bytes, .. } => bytes.len(),
            Self::Int8 { values, .. } => values.len(),
            Self::E4m3 { values, .. } => values.len(),
        }
    }
}

impl Data<'_> {
    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<'a> Data<'a> {
    /// The memory in words of 16 bits, and how many there are in a unit of strides, if kernels can read rows in place.
    pub(crate) fn words(&self) -> Option<(&'a [bf16], usize)> {
        let words: &[bf16] = match *self {
            Self::Bf16(data) => data,
            Self::F16(data) => bytemuck::cast_slice(data),
            Self::F32(data) => bytemuck::cast_slice(data),
            Self::Q8_0(blocks) => bytemuck::cast_slice(blocks),
            Self::Q4_0(blocks) => bytemuck::cast_slice(blocks),
            _ => return None,
        };
        Some((words, words.len() / self.len().max(1)))
    }

    /// Elements that a row of `width` columns takes; `None` if the format has no rows
    /// of that width.
    pub(crate) const fn row_len(&self, width: usize) -> Option<usize> {
        match self {
            Self::Bf16(_) | Self::F16(_) | Self::F32(_) | Self::Int8 { .. } | Self::E4m3 { .. } => {
                Some(width)
            }
            Self::Q8_0(_) | Self::Q4_0(_) if width.is_multiple_of(BLOCK) => Some(width / BLOCK),
            Self::Fp8(_) if width == FP8_COLUMNS + ROPE => Some(FP8_ROW),
            Self::Model1 { .. } if width == MODEL1_COLUMNS + ROPE => Some(MODEL1_ROW),
            Self::Q8_0(_) | Self::Q4_0(_) | Self::Fp8(_) | Self::Model1 { .. } => None,
        }
    }

    /// The row at these indices. The extent was checked.
    pub(crate) fn row(&self, at: [usize; 3], strides: [usize; 3], width: usize) -> Row<'a> {
        let offset =
            |strides: [usize; 3]| at[0] * strides[0] + at[1] * strides[1] + at[2] * strides[2];
        let start = offset(strides);
        match *self {
            Self::Bf16(data) => Row::Bf16(&data[start..start + width]),
            Self::F16(data) => Row::F16(&data[start..start + width]),
            Self::F32(data) => Row::F32(&data[start..start + width]),
            Self::Q8_0(blocks) => Row::Q8_0(&blocks[start..start + width.div_ceil(BLOCK)]),
            Self::Q4_0(blocks) => Row::Q4_0(&blocks[start..start + width.div_ceil(BLOCK)]),
            Self::Fp8(bytes) => {
                let (values, rest) = bytes[start..start + FP8_ROW].split_at(FP8_COLUMNS);
                let (scales, rope) = rest.split_at(4 * FP8_SCALES);
                Row::Fp8 {
                    values,
                    scales: Scales::F32(scales),
                    rope,
                }
            }
            Self::Model1 {
                bytes,
                scales,
                scale_stride,
            } => {
                let (values, rope) = bytes[start..start + MODEL1_ROW].split_at(MODEL1_COLUMNS);
                let scales = offset([strides[0], scale_stride, 0]) + scales;
                Row::Fp8 {
                    values,
                    scales: Scales::E8m0(&bytes[scales..scales + MODEL1_SCALES]),
                    rope,
                }
            }
            Self::Int8 {
                values,
                scales,
                strides,
            } => Row::Int8 {
                values: &values[start..start + width],
                scale: scales[offset(strides)],
            },
            Self::E4m3 {
                values,
                scales,
                strides,
            } => Row::E4m3 {
                values: &values[start..start + width],
                scale: scales[offset(strides)],
            },
        }
    }
}

/// Numbers that rows are converted to.
pub(crate) trait Number: Pod {
    /// Exact, or rounded to nearest even.
    fn of(x: f32) -> Self;
    /// Exact.
    fn of_bf16(x: bf16) -> Self;
    /// Exact.
    fn get(self) -> f32;
}

impl Number for bf16 {
    #[inline(always)]
    fn of(x: f32) -> Self {
        round(x)
    }

    #[inline(always)]
    fn of_bf16(x: bf16) -> Self {
        x
    }

    #[inline(always)]
    fn get(self) -> f32 {
        bf16_to_f32(self.to_bits())
    }
}

impl Number for f32 {
    #[inline(always)]
    fn of(x: f32) -> Self {
        x
    }

    #[inline(always)]
    fn of_bf16(x: bf16) -> Self {
        x.get()
    }

    #[inline(always)]
    fn get(self) -> f32 {
        self
    }
}

/// Writes the first columns of `row` to `out`.
#[inline(always)]
pub(crate) fn convert<N: Number>(row: &Row<'_>, out: &mut [N]) {
    match *row {
        Row::Bf16(row) => {
            for (out, x) in out.iter_mut().zip(row) {
                *out = N::of_bf16(*x);
            }
        }
        Row::F16(row) => {
            for (out, x) in out.iter_mut().zip(row) {
                *out = N::of(f16_to_f32(x.to_bits()));
            }
        }
        Row::F32(row) => {
            for (out, x) in out.iter_mut().zip(row) {
                *out = N::of(*x);
            }
        }
        Row::Q8_0(blocks) => {
            for (out, block) in out.chunks_mut(BLOCK).zip(blocks) {
                let d = f16_to_f32(block.d.to_bits());
                for (out, &q) in out.iter_mut().zip(&block.qs) {
                    *out = N::of(f32::from(q) * d);
                }
            }
        }
        Row::Q4_0(blocks) => {
            for (out, block) in out.chunks_mut(BLOCK).zip(blocks) {
                let d = f16_to_f32(block.d.to_bits());
                for (i, out) in out.iter_mut().enumerate() {
                    let q = block.qs[i % 16] >> (i / 16 * 4) & 15;
                    *out = N::of((f32::from(q) - 8.0) * d);
                }
            }
        }
        Row::Fp8 {
            values,
            scales,
            rope,
        } => {
            let (columns, tail) = out.split_at_mut(values.len().min(out.len()));
            match scales {
                Scales::F32(scales) => {
                    let scale = |i| f32::from_le_bytes(scales.as_chunks().0[i]);
                    dequantize::<128, _>(values, scale, columns);
                }
                Scales::E8m0(scales) => {
                    dequantize::<64, _>(values, |i| e8m0_to_f32(scales[i]), columns);
                }
            }
            for (out, x) in tail.iter_mut().zip(rope.as_chunks().0) {
                *out = N::of_bf16(bf16::from_le_bytes(*x));
            }
        }
        Row::Int8 { values, scale } => {
            for (out, &x) in out.iter_mut().zip(values) {
                *out = N::of_bf16(round(f32::from(x) * scale));
            }
        }
        Row::E4m3 { values, scale } => {
            for (out, &x) in out.iter_mut().zip(values) {
                *out = N::of_bf16(round(e4m3_to_f32(x) * scale));
            }
        }
    }
}

#[inline(always)]
fn dequantize<const TILE: usize, N: Number>(
    values: &[u8],
    scale: impl Fn(usize) -> f32,
    out: &mut [N],
) {
    let tiles = values.chunks(TILE).zip(out.chunks_mut(TILE));
    for (i, (values, out)) in tiles.enumerate() {
        let scale = scale(i);
        for (out, &x) in out.iter_mut().zip(values) {
            *out = N::of_bf16(round(e4m3_to_f32(x) * scale));
        }
    }
}

#[inline(always)]
fn round(x: f32) -> bf16 {
    bf16::from_bits(bf16_round(x))
}

/// e4m3 (finite, with NaN), exactly.
#[inline(always)]
pub(crate) fn e4m3_to_f32(x: u8) -> f32 {
    // Exponent and mantissa in FP32's fields are a number too small by 2^(127 - 7), subnormals too.
    // One multiplication is exact.
    let magnitude = u32::from(x & 0x7f);
    let number = f32::from_bits(magnitude << 20) * f32::from_bits((127 + 120) << 23);
    let number = if magnitude == 0x7f { f32::NAN } else { number };
    f32::from_bits(number.to_bits() | u32::from(x & 0x80) << 24)
}

/// FP16, exactly.
#[inline(always)]
pub(crate) fn f16_to_f32(x: u16) -> f32 {
    let magnitude = u32::from(x & 0x7fff);
    let number = f32::from_bits(magnitude << 13) * f32::from_bits((127 + 112) << 23);
    // Infinity and NaN have the same mantissa in FP32.
    let special = f32::from_bits(magnitude << 13 | 0x7f80_0000);
    let number = if magnitude >= 0x7c00 { special } else { number };
    f32::from_bits(number.to_bits() | u32::from(x & 0x8000) << 16)
}

/// A power of two, or NaN.
#[inline(always)]
pub(crate) fn e8m0_to_f32(x: u8) -> f32 {
    match x {
        // 2^-127 is subnormal.
        0 => f32::from_bits(0x0040_0000),
        0xff => f32::NAN,
        _ => f32::from_bits(u32::from(x) << 23),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e4m3_is_its_definition() {
        for x in 0..=u8::MAX {
            let (exponent, mantissa) = (i32::from(x >> 3 & 15), f32::from(x & 7));
            let want = match exponent {
                0 => libm::ldexpf(mantissa, -9),
                _ => libm::ldexpf(8.0 + mantissa, exponent - 10),
            };
            let want = if x & 0x7f == 0x7f { f32::NAN } else { want };
            let got = e4m3_to_f32(x);
            assert_eq!(got.is_sign_negative(), x & 0x80 != 0);
            assert!(
                got.abs() == want || got.is_nan() && want.is_nan(),
                "{x:#x} {got} {want}"
            );
        }
    }

    #[test]
    fn f16_is_what_half_says() {
        for bits in 0..=u16::MAX {
            let want = f16::from_bits(bits).to_f32();
            let got = f16_to_f32(bits);
            assert!(
                got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(),
                "{bits:#x}"
            );
        }
    }

    #[test]
    fn e8m0_is_a_power_of_two() {
        for x in 0..u8::MAX {
            assert_eq!(e8m0_to_f32(x), libm::ldexpf(1.0, i32::from(x) - 127));
        }
        assert!(e8m0_to_f32(u8::MAX).is_nan());
    }
}
