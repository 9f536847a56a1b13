//! Tensors of queries and keys as they are stored.

use amla::format::{FP8_ROW, MODEL1_ROW, MODEL1_SCALES};
use amla::{Data, TensorRef};
use half::{bf16, f16};

/// A contiguous tensor.
pub struct Stored {
    /// Its elements.
    pub elements: Elements,
    /// Requests or pages, positions or keys, heads; ragged tokens are one request.
    pub dims: [usize; 3],
    /// Elements of a row; bytes, for FP8.
    pub row: usize,
}

/// [`Data`], owned.
pub enum Elements {
    /// [`Data::Bf16`]
    Bf16(Vec<bf16>),
    /// [`Data::F16`]
    F16(Vec<f16>),
    /// [`Data::F32`]
    F32(Vec<f32>),
    /// [`Data::Fp8`]
    Fp8(Vec<u8>),
    /// [`Data::Model1`]: the rows of each page, then their scales.
    Model1(Vec<u8>),
    /// [`Data::Int8`]
    Int8 {
        /// The quantised elements.
        values: Vec<i8>,
        /// A scale for each row.
        scales: Vec<f32>,
    },
}

impl Stored {
    /// The tensor, borrowed.
    pub fn tensor(&self) -> TensorRef<'_> {
        let [_, inner, heads] = self.dims;
        // The problem may be invalid, and empty tensors may have dimensions of any size.
        let over = |row: usize| {
            let token = heads.saturating_mul(row);
            [inner.saturating_mul(token), token, row]
        };
        let mut strides = over(self.row);
        let data = match &self.elements {
            Elements::Bf16(values) => Data::Bf16(values),
            Elements::F16(values) => Data::F16(values),
            Elements::F32(values) => Data::F32(values),
            Elements::Fp8(bytes) => Data::Fp8(bytes),
            Elements::Model1(bytes) => {
                strides[1] = MODEL1_ROW;
                Data::Model1 {
                    bytes,
                    scales: inner.saturating_mul(MODEL1_ROW),
                    scale_stride: MODEL1_SCALES,
                }
            }
            Elements::Int8 { values, scales } => Data::Int8 {
                values,
                scales,
                strides: over(1),
            },
        };
        TensorRef { data, strides }
    }

    /// The format's name in tables and in JSON.
    pub const fn dtype(&self) -> &'static str {
        match &self.elements {
            Elements::Bf16(_) => "bf16",
            Elements::F16(_) => "f16",
            Elements::F32(_) => "f32",
            Elements::Fp8(_) => "fp8",
            Elements::Model1(_) => "model1",
            Elements::Int8 { .. } => "int8",
        }
    }
}

/// The format of expected values, the least precise first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExpectedIn {
    /// BF16
    Bf16,
    /// FP16
    F16,
    /// FP32
    F32,
}

/// The format of a file's rows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// BF16.
    Bf16,
    /// FP32.
    F32,
    /// FP16.
    F16,
    /// FlashMLA's FP8.
    Fp8,
    /// FlashMLA's MODEL1.
    Model1,
    /// INT8 with a scale for each row.
    Int8,
}

impl Format {
    /// The format of rows of `row` bytes, a MODEL1 row's scales included.
    pub(super) fn of_bytes(row: usize) -> Option<Self> {
        match row {
            FP8_ROW => Some(Self::Fp8),
            _ if row == MODEL1_ROW + MODEL1_SCALES => Some(Self::Model1),
            _ => None,
        }
    }

    /// The number of columns in a row of `row` elements.
    pub(super) fn columns(self, row: usize) -> usize {
        match self {
            Self::Fp8 => 576,
            Self::Model1 => 512,
            _ => row,
        }
    }
}
