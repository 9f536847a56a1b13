//! Tensors of queries and keys as they are stored.

use amla::format::{FP8_ROW, MODEL1_ROW, MODEL1_SCALES};
use amla::{Data, Tensor};
use half::{bf16, f16};

/// A contiguous tensor.
pub struct Stored {
    pub elements: Elements,
    /// Requests or pages, positions or keys, heads; one of all tokens if they are ragged.
    pub dims: [usize; 3],
    /// Elements of a row; bytes, for FP8.
    pub row: usize,
}

/// [`Data`], owned.
pub enum Elements {
    Bf16(Vec<bf16>),
    F16(Vec<f16>),
    Fp8(Vec<u8>),
    /// Of each page the rows, then their scales.
    Model1(Vec<u8>),
    Int8 {
        values: Vec<i8>,
        scales: Vec<f32>,
    },
}

impl Stored {
    /// The tensor, borrowed.
    pub fn tensor(&self) -> Tensor<'_> {
        let [_, inner, heads] = self.dims;
        // Nothing was checked yet, and empty tensors may have dimensions of any size.
        let over = |row: usize| {
            let token = heads.saturating_mul(row);
            [inner.saturating_mul(token), token, row]
        };
        let mut strides = over(self.row);
        let data = match &self.elements {
            Elements::Bf16(values) => Data::Bf16(values),
            Elements::F16(values) => Data::F16(values),
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
        Tensor { data, strides }
    }
}

/// How a file's tensor stores rows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Bf16,
    /// Rounded to BF16 when it is read.
    F32,
    F16,
    Fp8,
    Model1,
    Int8,
}

impl Format {
    /// The formats of bytes, by those of a row; a MODEL1 row's scales count as its own.
    pub fn of_bytes(row: usize) -> Option<Self> {
        match row {
            FP8_ROW => Some(Self::Fp8),
            _ if row == MODEL1_ROW + MODEL1_SCALES => Some(Self::Model1),
            _ => None,
        }
    }

    /// Columns of a row of so many elements.
    pub fn columns(self, row: usize) -> usize {
        match self {
            Self::Fp8 => 576,
            Self::Model1 => 512,
            _ => row,
        }
    }
}
