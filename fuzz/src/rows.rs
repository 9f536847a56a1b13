//! Stored rows by the definitions of their formats.

use amla::{Data, TensorRef};
use half::bf16;

/// The first columns of the row at these indices, as the kernel is to take them.
pub fn row(tensor: &TensorRef, at: [usize; 3], width: usize) -> Vec<f32> {
    let start = offset(at, tensor.strides);
    let columns = 0..width;
    // FP8, MODEL1, INT8 and E4M3 are BF16 rows stored in less.
    let rounded = |x: f32| bf16::from_f32(x).to_f32();
    match tensor.data {
        Data::Bf16(data) => numbers(&data[start..][..width]),
        Data::F16(data) => numbers(&data[start..][..width]),
        Data::F32(data) => data[start..][..width].to_vec(),
        Data::Q8_0(blocks) => columns
            .map(|c| {
                let block = &blocks[start + c / 32];
                block.d.to_f32() * f32::from(block.qs[c % 32])
            })
            .collect(),
        Data::Q4_0(blocks) => columns
            .map(|c| {
                let block = &blocks[start + c / 32];
                let both = block.qs[c % 16];
                let integer = if c % 32 < 16 { both & 15 } else { both >> 4 };
                block.d.to_f32() * (f32::from(integer) - 8.0)
            })
            .collect(),
        Data::Fp8(bytes) => {
            let bytes = &bytes[start..];
            let scale =
                |c: usize| f32::from_le_bytes(bytes[512 + c / 128 * 4..][..4].try_into().unwrap());
            columns
                .map(|c| match c {
                    ..512 => rounded(e4m3(bytes[c]) * scale(c)),
                    _ => rope(&bytes[528..], c - 512),
                })
                .collect()
        }
        Data::Model1 {
            bytes,
            scales,
            scale_stride,
        } => {
            let scales = &bytes[scales + at[0] * tensor.strides[0] + at[1] * scale_stride..];
            let bytes = &bytes[start..];
            columns
                .map(|c| match c {
                    ..448 => rounded(e4m3(bytes[c]) * e8m0(scales[c / 64])),
                    _ => rope(&bytes[448..], c - 448),
                })
                .collect()
        }
        Data::Int8 {
            values,
            scales,
            strides,
        } => {
            let scale = scales[offset(at, strides)];
            columns
                .map(|c| rounded(f32::from(values[start + c]) * scale))
                .collect()
        }
        Data::E4m3 {
            values,
            scales,
            strides,
        } => {
            let scale = scales[offset(at, strides)];
            columns
                .map(|c| rounded(e4m3(values[start + c]) * scale))
                .collect()
        }
    }
}

fn numbers<T: Copy + Into<f32>>(row: &[T]) -> Vec<f32> {
    row.iter().map(|&x| x.into()).collect()
}

fn offset(at: [usize; 3], strides: [usize; 3]) -> usize {
    at.into_iter()
        .zip(strides)
        .map(|(i, stride)| i * stride)
        .sum()
}

fn rope(bytes: &[u8], i: usize) -> f32 {
    bf16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]).to_f32()
}

/// Four bits of exponent, three of mantissa; no infinity, one NaN of each sign.
pub fn e4m3(x: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(x >> 3 & 15), f32::from(x & 7));
    let magnitude = match (exponent, x & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa * (-9.0_f32).exp2(),
        _ => (8.0 + mantissa) * 2.0_f32.powi(exponent - 10),
    };
    if x & 0x80 == 0 { magnitude } else { -magnitude }
}

/// A power of two, or NaN.
pub fn e8m0(x: u8) -> f32 {
    match x {
        255 => f32::NAN,
        _ => libm::ldexpf(1.0, i32::from(x) - 127),
    }
}
