//! Tensors in every format.

use amla::format::{
    FP8_ROW, MODEL1_ROW, MODEL1_SCALES, Q4_0, Q8_0, encode_e4m3, encode_fp8, encode_int8,
    encode_model1, encode_q4_0, encode_q8_0,
};
use amla::{Data, TensorRef};
use half::{bf16, f16};

/// How a tensor is stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Format {
    Bf16,
    F16,
    Int8,
    Fp8,
    Model1,
    E4m3,
    F32,
    Q8_0,
    Q4_0,
}

/// A tensor in another format.
pub struct Stored {
    elements: Owned,
    strides: [usize; 3],
}

enum Owned {
    Bf16(Vec<bf16>),
    F16(Vec<f16>),
    Int8(Vec<i8>, Vec<f32>),
    Fp8(Vec<u8>),
    /// Rows and scales of each page, the rows first.
    Model1(Vec<u8>, usize),
    E4m3(Vec<u8>, Vec<f32>),
    F32(Vec<f32>),
    Q8_0(Vec<Q8_0>),
    Q4_0(Vec<Q4_0>),
}

/// A number with more bits than BF16 has, near this one.
fn longer((i, x): (usize, &bf16)) -> f32 {
    match x.is_normal() {
        true => f32::from_bits(u32::from(x.to_bits()) << 16 | ((i * 40_503) & 0xffff) as u32),
        false => x.to_f32(),
    }
}

impl Stored {
    /// Numbers and INT8 have the tensor's strides, scales where their rows begin; FP8 and blocks are dense.
    pub fn new(tensor: &TensorRef, dims: [usize; 3], width: usize, format: Format) -> Self {
        let Data::Bf16(data) = tensor.data else {
            unreachable!("tensors are laid out in BF16");
        };
        let [outer, inner, heads] = dims;
        let mut strides = tensor.strides;
        let indices =
            (0..outer * inner * heads).map(|i| [i / heads / inner, i / heads % inner, i % heads]);
        let rows = indices.map(|at| {
            let start = at
                .iter()
                .zip(tensor.strides)
                .map(|(i, stride)| i * stride)
                .sum();
            (start, at)
        });
        let row = |start: usize| &data[start..][..width];
        let elements = match format {
            Format::Bf16 => Owned::Bf16(data.to_vec()),
            Format::F16 => {
                let numbers = data.iter().enumerate().map(longer);
                Owned::F16(numbers.map(f16::from_f32).collect())
            }
            Format::F32 => Owned::F32(data.iter().enumerate().map(longer).collect()),
            Format::Int8 => {
                let (mut values, mut scales) = (vec![0; data.len()], vec![f32::NAN; data.len()]);
                for (start, _) in rows {
                    scales[start] = encode_int8(row(start), &mut values[start..][..width]).unwrap();
                }
                Owned::Int8(values, scales)
            }
            Format::E4m3 => {
                let (mut values, mut scales) = (vec![0; data.len()], vec![f32::NAN; data.len()]);
                for (start, _) in rows {
                    scales[start] = encode_e4m3(row(start), &mut values[start..][..width]).unwrap();
                }
                Owned::E4m3(values, scales)
            }
            Format::Q8_0 | Format::Q4_0 => {
                let blocks = width / 32;
                strides = [inner * heads * blocks, heads * blocks, blocks];
                let mut q8 = vec![Q8_0::default(); outer * strides[0]];
                let mut q4 = vec![Q4_0::default(); outer * strides[0]];
                for ((start, _), i) in rows.zip((0..).step_by(blocks)) {
                    let numbers: Vec<f32> = row(start).iter().map(|x| x.to_f32()).collect();
                    encode_q8_0(&numbers, &mut q8[i..][..blocks]).unwrap();
                    encode_q4_0(&numbers, &mut q4[i..][..blocks]).unwrap();
                }
                match format {
                    Format::Q8_0 => Owned::Q8_0(q8),
                    _ => Owned::Q4_0(q4),
                }
            }
            Format::Fp8 => {
                strides = [inner * heads * FP8_ROW, heads * FP8_ROW, FP8_ROW];
                let mut bytes = vec![0; outer * strides[0]];
                for ((start, _), bytes) in rows.zip(bytes.chunks_mut(FP8_ROW)) {
                    encode_fp8(row(start), bytes).unwrap();
                }
                Owned::Fp8(bytes)
            }
            Format::Model1 => {
                let scales = inner * MODEL1_ROW;
                strides = [inner * (MODEL1_ROW + MODEL1_SCALES), MODEL1_ROW, 0];
                let mut bytes = vec![0; outer * strides[0]];
                for (start, [outer, inner, _]) in rows {
                    let page = &mut bytes[outer * strides[0]..][..strides[0]];
                    let (values, scales) = page.split_at_mut(scales);
                    let values = &mut values[inner * MODEL1_ROW..][..MODEL1_ROW];
                    let scales = &mut scales[inner * MODEL1_SCALES..][..MODEL1_SCALES];
                    encode_model1(row(start), values, scales).unwrap();
                }
                Owned::Model1(bytes, scales)
            }
        };
        Self { elements, strides }
    }

    pub fn tensor(&self) -> TensorRef<'_> {
        let strides = self.strides;
        let data = match &self.elements {
            Owned::Bf16(data) => Data::Bf16(data),
            Owned::F16(data) => Data::F16(data),
            Owned::Int8(values, scales) => Data::Int8 {
                values,
                scales,
                strides,
            },
            Owned::E4m3(values, scales) => Data::E4m3 {
                values,
                scales,
                strides,
            },
            Owned::F32(data) => Data::F32(data),
            Owned::Q8_0(blocks) => Data::Q8_0(blocks),
            Owned::Q4_0(blocks) => Data::Q4_0(blocks),
            Owned::Fp8(bytes) => Data::Fp8(bytes),
            &Owned::Model1(ref bytes, scales) => Data::Model1 {
                bytes,
                scales,
                scale_stride: MODEL1_SCALES,
            },
        };
        TensorRef { data, strides }
    }
}
