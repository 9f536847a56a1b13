//! Stored rows both ways: what encoders write, decoded again; and rows of any bytes, which every
//! backend takes as the same numbers in BF16, to the bit.

use amla::format::{FP8_ROW, MODEL1_ROW, MODEL1_SCALES, encode_fp8, encode_int8, encode_model1};
use amla::{Data, Error, Options, Problem, Shape, Tensor};
use half::{bf16, f16};

use crate::common::backends;
use crate::draw::Draw;
use crate::hosts::{Bits, decoded};
use crate::rows::{e8m0, row};

pub fn run(data: &[u8]) {
    let mut draw = Draw::new(data);
    let (format, numbers, bytes) = input(&mut draw);
    if draw.once_in(16) {
        lengths(draw.among(0..=700), draw.among(0..=700));
    }
    encoded(format, &numbers);
    decodes(format, &bytes, draw.among(1..=9));
}

/// The format, and whether there are numbers that aren't finite.
pub fn kind(data: &[u8]) -> Option<String> {
    let (format, numbers, _) = input(&mut Draw::new(data));
    let finite = numbers.iter().all(|x| x.is_finite());
    let finite = if finite { "finite" } else { "special" };
    Some(format!("{format:?}-{finite}").to_lowercase())
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Format {
    F16,
    Fp8,
    Model1,
    Int8,
}

impl Format {
    fn width(self) -> usize {
        match self {
            Self::Fp8 => 576,
            Self::Model1 => 512,
            Self::F16 | Self::Int8 => 128,
        }
    }
}

/// A row to encode, and bytes to decode: an input's, over and over.
fn input(draw: &mut Draw) -> (Format, Vec<bf16>, Vec<u8>) {
    let format = draw.one_of(&[Format::F16, Format::Fp8, Format::Model1, Format::Int8]);
    let exponent = draw.exponent(130).clamp(-300, 300);
    let seed = draw.u64();
    let given = draw.u8();
    let rest = draw.rest();
    // Numbers of a few exponents, more or less, and the first of the input's as they are.
    let mut state = seed;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let mut numbers: Vec<bf16> = (0..format.width())
        .map(|_| {
            let bits = next();
            let sign = if bits & 1 == 0 { 1.0 } else { -1.0 };
            let magnitude = 1.0 + (bits >> 1 & 127) as f32 / 128.0;
            bf16::from_f32(sign * libm::ldexpf(magnitude, exponent - (bits >> 8 & 15) as i32))
        })
        .collect();
    let own = rest.as_chunks::<2>().0.iter().take(given.into());
    for (number, &bytes) in numbers.iter_mut().zip(own) {
        *number = bf16::from_le_bytes(bytes);
    }
    let bytes = match rest {
        [] => vec![0; 2 * FP8_ROW],
        _ => rest.iter().copied().cycle().take(2 * FP8_ROW).collect(),
    };
    (format, numbers, bytes)
}

/// Encoders take rows of the format's width only.
fn lengths(row: usize, bytes: usize) {
    let (numbers, mut out) = (vec![bf16::ONE; row], vec![0xa5; bytes]);
    let refused = |result: Result<(), Error>, right: bool, out: &[u8]| {
        assert_eq!(result.is_ok(), right, "{row} numbers, {bytes} bytes");
        assert!(right || out.iter().all(|&x| x == 0xa5));
    };
    refused(
        encode_fp8(&numbers, &mut out),
        row == 576 && bytes == FP8_ROW,
        &out,
    );
    out.fill(0xa5);
    let mut scales = [0xa5; MODEL1_SCALES];
    let right = row == 512 && bytes == MODEL1_ROW;
    refused(encode_model1(&numbers, &mut out, &mut scales), right, &out);
    let mut values = vec![0; bytes];
    assert_eq!(encode_int8(&numbers, &mut values).is_ok(), row == bytes);
}

/// Each number again, but for what the format rounds.
fn encoded(format: Format, numbers: &[bf16]) {
    let width = numbers.len();
    // By which each is divided before it is rounded, and the columns that share it.
    let (back, scales, tile): (Vec<bf16>, Vec<f32>, usize);
    let read = |data| {
        row(
            &Tensor {
                data,
                strides: [0; 3],
            },
            [0; 3],
            width,
        )
    };
    match format {
        Format::F16 => {
            let stored: Vec<f16> = numbers.iter().map(|x| f16::from_f32(x.to_f32())).collect();
            for (x, stored) in read(Data::F16(&stored)).iter().zip(&stored) {
                let same = x.to_f32() == stored.to_f32() || stored.is_nan() && x.is_nan();
                assert!(same || (x.to_f32() / stored.to_f32() - 1.0).abs() <= 1.0 / 256.0);
            }
            return;
        }
        Format::Fp8 => {
            let mut bytes = [0; FP8_ROW];
            encode_fp8(numbers, &mut bytes).unwrap();
            back = read(Data::Fp8(&bytes));
            let stored = bytes[512..528].as_chunks().0.iter();
            (scales, tile) = (stored.map(|&x| f32::from_le_bytes(x)).collect(), 128);
        }
        Format::Model1 => {
            let mut bytes = [0; MODEL1_ROW + MODEL1_SCALES];
            let (values, stored) = bytes.split_at_mut(MODEL1_ROW);
            encode_model1(numbers, values, stored).unwrap();
            (scales, tile) = (stored[..7].iter().map(|&x| e8m0(x)).collect(), 64);
            back = read(Data::Model1 {
                bytes: &bytes,
                scales: MODEL1_ROW,
                scale_stride: 0,
            });
        }
        Format::Int8 => {
            let mut values = vec![0; width];
            scales = vec![encode_int8(numbers, &mut values).unwrap()];
            tile = width;
            back = read(Data::Int8 {
                values: &values,
                scales: &scales,
                strides: [0; 3],
            });
        }
    }
    for (i, scale) in scales.into_iter().enumerate() {
        let columns = i * tile..(i + 1) * tile;
        let (tile, back) = (&numbers[columns.clone()], &back[columns]);
        if tile.iter().any(|x| x.is_infinite()) {
            // A tile of one infinity is NaN.
            assert!(back.iter().all(|x| x.is_nan()), "{tile:?}, {back:?}");
            continue;
        }
        for (&x, &back) in tile.iter().zip(back) {
            let (x, back) = (f64::from(x), f64::from(back));
            if x.is_nan() {
                assert!(back.is_nan() || format == Format::Int8 && back == 0.0);
                continue;
            }
            let scale = f64::from(scale);
            // Half a step of the numbers around it; a scale that is subnormal is itself off by
            // half of the smallest number, which the largest of its steps multiplies.
            let (step, steps) = match format {
                Format::Int8 => (scale / 2.0, 127.0),
                _ => ((x.abs() / 16.0).max(scale / 1024.0), 448.0),
            };
            let lost = steps * libm::ldexp(1.0, -150);
            let limit = step * 1.000_001 + back.abs() / 256.0 + lost + libm::ldexp(1.0, -134);
            assert!(
                (back - x).abs() <= limit,
                "{format:?}: {x:e} became {back:e}, scale {scale:e}"
            );
        }
    }
    // The columns that stay BF16.
    let unchanged = match format {
        Format::Fp8 => 512..576,
        Format::Model1 => 448..512,
        _ => 0..0,
    };
    for (x, back) in numbers[unchanged.clone()].iter().zip(&back[unchanged]) {
        assert_eq!(x.to_bits(), back.to_bits());
    }
}

/// Two rows of any bytes as a cache: the same as their numbers in BF16, by every backend.
fn decodes(format: Format, bytes: &[u8], h_q: usize) {
    let (width, values, scales);
    let (data, strides) = match format {
        Format::F16 => {
            width = 128;
            values = halves(bytes);
            (Data::F16(&values), [0, width, 0])
        }
        Format::Fp8 => {
            width = 576;
            (Data::Fp8(bytes), [0, FP8_ROW, 0])
        }
        Format::Model1 => {
            width = 512;
            let data = Data::Model1 {
                bytes,
                scales: 2 * MODEL1_ROW,
                scale_stride: MODEL1_SCALES,
            };
            (data, [0, MODEL1_ROW, 0])
        }
        Format::Int8 => {
            width = 128;
            let numbers = bytes[256..].as_chunks().0;
            scales = numbers[..2]
                .iter()
                .map(|&x| f32::from_le_bytes(x))
                .collect::<Vec<_>>();
            let data = Data::Int8 {
                values: bytemuck::cast_slice(bytes),
                scales: &scales,
                strides: [0, 1, 0],
            };
            (data, [0, width, 0])
        }
    };
    let kv = Tensor { data, strides };
    let plain: Vec<bf16> = (0..2).flat_map(|k| row(&kv, [0, k, 0], width)).collect();
    // The formats' own widths have kernels; 128 is one of them.
    let shape = Shape {
        b: 1,
        s_q: 1,
        s_k: 2,
        h_q,
        h_kv: 1,
        d_qk: width,
        d_v: width.min(512),
    };
    let q: Vec<bf16> = (0..h_q * width)
        .map(|i| bf16::from_f32((i % 7) as f32 / 8.0 - 0.25))
        .collect();
    let as_plain = Problem::dense(shape, &q, &plain, 0.01);
    let problem = Problem { kv, ..as_plain };
    for backend in backends() {
        let options = Options {
            backend,
            ..Options::default()
        };
        let [got, want] = [&problem, &as_plain].map(|problem| decoded(problem, &options));
        same(&got, &want, backend.id().name());
    }
}

fn halves(bytes: &[u8]) -> Vec<f16> {
    bytes
        .as_chunks()
        .0
        .iter()
        .map(|&x| f16::from_le_bytes(x))
        .collect()
}

/// The same bits; but subnormal numbers, also products of P's second words and values near
/// them, may be zeros to one and themselves to the other.
fn same(got: &Bits, want: &Bits, backend: &str) {
    let pairs = |got: &[u32], want: &[u32]| -> Vec<[u32; 2]> {
        got.iter()
            .zip(want)
            .map(|(&got, &want)| [got, want])
            .collect()
    };
    for pair in [pairs(&got.0, &want.0), pairs(&got.1, &want.1)].concat() {
        let [got, want] = pair.map(f32::from_bits);
        let same = got.to_bits() == want.to_bits();
        let near = (got - want).abs() < 256.0 * f32::MIN_POSITIVE;
        assert!(same || near, "{backend}: {got:e}, want {want:e}");
    }
}
