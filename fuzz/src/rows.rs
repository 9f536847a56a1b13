//! Stored rows by the definitions of their formats.

use amla::{Data, Tensor};
use half::bf16;

/// The first columns of the row at these indices, as the kernel is to take them.
pub fn row(tensor: &Tensor, at: [usize; 3], width: usize) -> Vec<bf16> {
    let start = offset(at, tensor.strides);
    let columns = 0..width;
    match tensor.data {
        Data::Bf16(data) => data[start..][..width].to_vec(),
        Data::F16(data) => data[start..][..width]
            .iter()
            .map(|x| bf16::from_f32(x.to_f32()))
            .collect(),
        Data::Fp8(bytes) => {
            let bytes = &bytes[start..];
            let scale =
                |c: usize| f32::from_le_bytes(bytes[512 + c / 128 * 4..][..4].try_into().unwrap());
            columns
                .map(|c| match c {
                    ..512 => bf16::from_f32(e4m3(bytes[c]) * scale(c)),
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
                    ..448 => bf16::from_f32(e4m3(bytes[c]) * e8m0(scales[c / 64])),
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
                .map(|c| bf16::from_f32(f32::from(values[start + c]) * scale))
                .collect()
        }
    }
}

fn offset(at: [usize; 3], strides: [usize; 3]) -> usize {
    at.into_iter()
        .zip(strides)
        .map(|(i, stride)| i * stride)
        .sum()
}

fn rope(bytes: &[u8], i: usize) -> bf16 {
    bf16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]])
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
