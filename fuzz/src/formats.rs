//! Stored rows both ways: what encoders write, decoded again; and rows of any bytes, which every
//! backend takes as the same numbers in BF16 or FP32, to the bit.

use amla::format::{
    FP8_ROW, MODEL1_ROW, MODEL1_SCALES, Q4_0, Q8_0, encode_e4m3, encode_fp8, encode_int8,
    encode_model1, encode_q4_0, encode_q8_0,
};
use amla::{BackendId, Data, Error, Inputs, Options, Problem, ProblemShape, TensorRef};
use half::{bf16, f16};

use crate::common::backends;
use crate::draw::Draw;
use crate::hosts::{Bits, decoded};
use crate::rows::{e8m0, row};

pub fn run(data: &[u8]) {
    let mut draw = Draw::new(data);
    let (format, seed, numbers, bytes) = input(&mut draw);
    if seed % 16 == 15 {
        lengths((seed >> 4) as usize % 701, (seed >> 32) as usize % 701);
    }
    encoded(format, &numbers);
    for h_q in [1, 2 + (seed >> 8) as usize % 8] {
        decodes(format, &bytes, h_q);
    }
}

/// The format, and whether there are numbers that aren't finite.
pub fn kind(data: &[u8]) -> Option<String> {
    let (format, _, numbers, _) = input(&mut Draw::new(data));
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
    E4m3,
    F32,
    Q8_0,
    Q4_0,
}

const FORMATS: [Format; 8] = [
    Format::F16,
    Format::Fp8,
    Format::Model1,
    Format::F32,
    Format::Q8_0,
    Format::Q4_0,
    Format::E4m3,
    Format::Int8,
];

impl Format {
    fn width(self) -> usize {
        match self {
            Self::Fp8 => 576,
            Self::Model1 => 512,
            _ => 128,
        }
    }
}

/// A seed for sizes, a row to encode, and bytes to decode: an input's, over and over.
fn input(draw: &mut Draw) -> (Format, u64, Vec<bf16>, Vec<u8>) {
    let format = draw.one_of(&FORMATS);
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
    (format, seed, numbers, bytes)
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
    assert_eq!(encode_e4m3(&numbers, &mut out).is_ok(), row == bytes);
    let numbers = vec![1.0; row];
    let mut blocks = vec![Q8_0::default(); bytes / 32];
    let right = row == 32 * blocks.len();
    assert_eq!(encode_q8_0(&numbers, &mut blocks).is_ok(), right);
    let mut blocks = vec![Q4_0::default(); bytes / 32];
    assert_eq!(encode_q4_0(&numbers, &mut blocks).is_ok(), right);
}

/// Each number again, but for what the format rounds.
fn encoded(format: Format, numbers: &[bf16]) {
    let width = numbers.len();
    // By which each is divided before it is rounded, and the columns that share it.
    let (back, scales, tile): (Vec<f32>, Vec<f32>, usize);
    let read = |data| {
        row(
            &TensorRef {
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
                assert!(*x == stored.to_f32() || stored.is_nan() && x.is_nan());
            }
            return;
        }
        Format::F32 => return,
        Format::Q8_0 => {
            let row: Vec<f32> = numbers.iter().map(|x| x.to_f32()).collect();
            let mut blocks = [Q8_0::default(); 4];
            encode_q8_0(&row, &mut blocks).unwrap();
            (scales, tile) = (blocks.map(|block| block.d.to_f32()).to_vec(), 32);
            back = read(Data::Q8_0(&blocks));
        }
        Format::Q4_0 => {
            let row: Vec<f32> = numbers.iter().map(|x| x.to_f32()).collect();
            let mut blocks = [Q4_0::default(); 4];
            encode_q4_0(&row, &mut blocks).unwrap();
            (scales, tile) = (blocks.map(|block| block.d.to_f32().abs()).to_vec(), 32);
            back = read(Data::Q4_0(&blocks));
        }
        Format::E4m3 => {
            let mut values = vec![0; width];
            scales = vec![encode_e4m3(numbers, &mut values).unwrap()];
            tile = width;
            back = read(Data::E4m3 {
                values: &values,
                scales: &scales,
                strides: [0; 3],
            });
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
    check_tiles(format, numbers, &back, scales, tile);
    // The columns that stay BF16.
    let unchanged = match format {
        Format::Fp8 => 512..576,
        Format::Model1 => 448..512,
        _ => 0..0,
    };
    for (x, back) in numbers[unchanged.clone()].iter().zip(&back[unchanged]) {
        assert!(x.to_f32().to_bits() == back.to_bits() || x.is_nan() && back.is_nan());
    }
}

/// Numbers that were stored in tiles with these scales, and what they became.
fn check_tiles(format: Format, numbers: &[bf16], back: &[f32], scales: Vec<f32>, tile: usize) {
    let blocks = matches!(format, Format::Q8_0 | Format::Q4_0);
    for (i, scale) in scales.into_iter().enumerate() {
        let columns = i * tile..(i + 1) * tile;
        let (tile, back) = (&numbers[columns.clone()], &back[columns]);
        if tile.iter().any(|x| x.is_infinite()) {
            // A tile of one infinity is NaN; ggml's has infinities, too.
            let nan = |x: &f32| x.is_nan() || blocks && x.is_infinite();
            assert!(back.iter().all(nan), "{tile:?}, {back:?}");
            continue;
        }
        // A scale of FP16 ends where that does, and so early that its reciprocal is none.
        if blocks && !(1e-4..6e4).contains(&scale) {
            continue;
        }
        for (&x, &back) in tile.iter().zip(back) {
            let (x, back) = (x.to_f64(), f64::from(back));
            if x.is_nan() {
                assert!(back.is_nan() || format == Format::Int8 && back == 0.0 || blocks);
                continue;
            }
            let scale = f64::from(scale);
            // Half a step of the numbers around it; a scale that is subnormal is itself off by
            // half of the smallest number, which the largest of its steps multiplies.
            let (step, steps) = match format {
                Format::Int8 => (scale / 2.0, 127.0),
                // The scale is rounded to FP16 after its integers were found.
                Format::Q8_0 => (scale / 2.0 + 128.0 * scale / 2048.0, 127.0),
                // A largest magnitude of 8 steps has its sign alone; one of the other sign has 7.
                Format::Q4_0 => (scale * 1.01 + scale / 256.0, 8.0),
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
}

/// Two rows of any bytes as a cache: the same as their numbers in BF16, or in FP32 if those are more, by every
/// backend.
fn decodes(format: Format, bytes: &[u8], h_q: usize) {
    let (width, values, floats, q8, q4, scales);
    let (data, strides) = match format {
        Format::F16 => {
            width = 128;
            values = halves(bytes);
            (Data::F16(&values), [0, width, 0])
        }
        Format::F32 => {
            width = 128;
            let numbers = bytes.as_chunks().0.iter();
            floats = numbers.map(|&x| f32::from_le_bytes(x)).collect::<Vec<_>>();
            (Data::F32(&floats), [0, width, 0])
        }
        Format::Q8_0 => {
            width = 128;
            q8 = q8_0(bytes);
            (Data::Q8_0(&q8), [0, 4, 0])
        }
        Format::Q4_0 => {
            width = 128;
            q4 = q4_0(bytes);
            (Data::Q4_0(&q4), [0, 4, 0])
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
        Format::Int8 | Format::E4m3 => {
            width = 128;
            let numbers = bytes[256..].as_chunks().0;
            scales = numbers[..2]
                .iter()
                .map(|&x| f32::from_le_bytes(x))
                .collect::<Vec<_>>();
            let (scales, strides) = (&scales[..], [0, 1, 0]);
            let data = match format {
                Format::Int8 => Data::Int8 {
                    values: bytemuck::cast_slice(bytes),
                    scales,
                    strides,
                },
                _ => Data::E4m3 {
                    values: bytes,
                    scales,
                    strides,
                },
            };
            (data, [0, width, 0])
        }
    };
    let kv = TensorRef { data, strides };
    let plain: Vec<f32> = (0..2).flat_map(|k| row(&kv, [0, k, 0], width)).collect();
    let rounded: Vec<bf16> = plain.iter().map(|&x| bf16::from_f32(x)).collect();
    let exact = matches!(
        format,
        Format::F16 | Format::F32 | Format::Q8_0 | Format::Q4_0
    );
    // The formats' own widths have kernels; 128 is one of them.
    let shape = ProblemShape {
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
    let in_bf16 = Problem::dense(shape, &q, &rounded, 0.01);
    let problem = Problem { kv, ..in_bf16 };
    let in_fp32 = Problem {
        kv: TensorRef {
            data: Data::F32(&plain),
            strides: [0, width, 0],
        },
        ..in_bf16
    };
    for backend in backends() {
        let multiplies_bf16 = matches!(
            backend.id(),
            BackendId::Avx512Bf16 | BackendId::Amx | BackendId::NeonBf16
        );
        for inputs in [Inputs::AsGiven, Inputs::Bf16] {
            let as_plain = match exact && !(inputs == Inputs::Bf16 && multiplies_bf16) {
                true => &in_fp32,
                false => &in_bf16,
            };
            let options = Options {
                backend,
                inputs,
                ..Options::default()
            };
            let [got, want] = [&problem, as_plain].map(|problem| decoded(problem, &options));
            same(&got, &want, backend.id().name());
        }
    }
}

fn q8_0(bytes: &[u8]) -> Vec<Q8_0> {
    let blocks = bytes.as_chunks::<34>().0.iter();
    let block = |block: &[u8; 34]| Q8_0 {
        d: f16::from_le_bytes([block[0], block[1]]),
        qs: std::array::from_fn(|i| block[2 + i].cast_signed()),
    };
    blocks.map(block).collect()
}

fn q4_0(bytes: &[u8]) -> Vec<Q4_0> {
    let blocks = bytes.as_chunks::<18>().0.iter();
    let block = |block: &[u8; 18]| Q4_0 {
        d: f16::from_le_bytes([block[0], block[1]]),
        qs: std::array::from_fn(|i| block[2 + i]),
    };
    blocks.map(block).collect()
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
