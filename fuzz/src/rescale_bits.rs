//! `amla::bits` and every backend's `rescale` against `ldexp` with the flush rule.

use amla::bits::{
    Increment, add_increment_f32, add_increment_f32_slice, mul_pow2_bf16, mul_pow2_bf16_slice,
    mul_pow2_f16, mul_pow2_f16_slice, mul_pow2_f32, mul_pow2_f32_slice, mul_pow2_f64,
    mul_pow2_f64_slice,
};
use half::{bf16, f16};

use crate::common::backends;
use crate::draw::Draw;

pub fn run(data: &[u8]) {
    let mut draw = Draw::new(data);
    let [a, b] = [300, 2100].map(|moderate| draw.exponent(moderate));
    let increments = [
        Increment::pow2(a),
        Increment::compensated(b, draw.f32()),
        Increment::from_bits_clamped(draw.u32().cast_signed()),
    ];
    let offset = draw.among(0..=16);
    let mut patterns = Vec::new();
    while !draw.is_empty() && patterns.len() < 80 {
        patterns.push(draw.u64());
    }
    f64s(&patterns, [a, b]);
    f32s(&patterns, [a, b]);
    bf16s(&patterns, [a, b]);
    f16s(&patterns, [a, b]);
    for increment in increments {
        added(&patterns, offset, increment);
    }
}

/// Which rules the input is about.
pub fn kind(data: &[u8]) -> Option<String> {
    let mut draw = Draw::new(data);
    let sign = |n: i32| match n {
        ..0 => "down",
        0 => "none",
        _ => "up",
    };
    let [a, b] = [300, 2100].map(|moderate| sign(draw.exponent(moderate)));
    Some(format!("{a}-{b}"))
}

/// `x * 2^n` by the rule of a format whose normal numbers are those from `2^min` to below
/// `2^(max + 1)`, for a finite `x`.
fn expected(x: f64, n: i32, [min, max]: [i32; 2]) -> f64 {
    // In [1/2, 1) times a power of two.
    let (fraction, exponent) = libm::frexp(x);
    let (before, after) = (exponent - 1, exponent.saturating_add(n).saturating_sub(1));
    if fraction == 0.0 || before < min || after < min {
        0.0_f64.copysign(x)
    } else if after > max {
        f64::INFINITY.copysign(x)
    } else {
        libm::ldexp(x, n)
    }
}

/// Whether multiplying by `2^a` and then by `2^b` is multiplying by both at once.
fn composes(first_is_normal: bool, a: i32, b: i32) -> bool {
    first_is_normal || (a <= 0) == (b <= 0)
}

macro_rules! number_format {
    ($check:ident, $type:ty, $range:expr, $pattern:expr, $mul:expr, $slice:expr) => {
        fn $check(patterns: &[u64], [a, b]: [i32; 2]) {
            let xs: Vec<$type> = patterns.iter().map(|&bits| $pattern(bits)).collect();
            let mut slice = xs.clone();
            $slice(&mut slice, a);
            for (&x, in_slice) in xs.iter().zip(slice) {
                let got: $type = $mul(x, a);
                let context = || format!("{:#x} * 2^{a} is {:#x}", x.to_bits(), got.to_bits());
                assert_eq!(
                    got.to_bits(),
                    in_slice.to_bits(),
                    "{}, or in a slice",
                    context()
                );
                assert_eq!(
                    got.is_sign_negative(),
                    x.is_sign_negative(),
                    "{}",
                    context()
                );
                if x.is_finite() {
                    let want = expected(x.into(), a, $range);
                    assert_eq!(f64::from(got).to_bits(), want.to_bits(), "{}", context());
                } else {
                    assert_eq!(got.to_bits(), x.to_bits(), "{}", context());
                }
                if composes(got.is_normal(), a, b) {
                    let both = $mul(x, a.saturating_add(b));
                    assert_eq!(
                        $mul(got, b).to_bits(),
                        both.to_bits(),
                        "{}, then 2^{b}",
                        context()
                    );
                }
            }
        }
    };
}

number_format!(
    f64s,
    f64,
    [-1022, 1023],
    f64::from_bits,
    mul_pow2_f64,
    mul_pow2_f64_slice
);
number_format!(
    f32s,
    f32,
    [-126, 127],
    |bits| f32::from_bits(bits as u32),
    mul_pow2_f32,
    mul_pow2_f32_slice
);
number_format!(
    bf16s,
    bf16,
    [-126, 127],
    |bits| bf16::from_bits(bits as u16),
    |x: bf16, n| bf16::from_bits(mul_pow2_bf16(x.to_bits(), n)),
    |xs: &mut [bf16], n| mul_pow2_bf16_slice(bytemuck::cast_slice_mut(xs), n)
);
number_format!(
    f16s,
    f16,
    [-14, 15],
    |bits| f16::from_bits(bits as u16),
    |x: f16, n| f16::from_bits(mul_pow2_f16(x.to_bits(), n)),
    |xs: &mut [f16], n| mul_pow2_f16_slice(bytemuck::cast_slice_mut(xs), n)
);

/// The rule for magnitudes in 64-bit integers, where nothing can wrap.
fn sum(bits: u32, increment: i32) -> u32 {
    let (sign, magnitude) = (bits & 1 << 31, i64::from(bits & !(1 << 31)));
    let sum = magnitude + i64::from(increment);
    match (magnitude, u32::try_from(sum)) {
        (0x7f80_0000.., _) => bits,
        (..0x0080_0000, _) | (_, Err(_) | Ok(..0x0080_0000)) => sign,
        (_, Ok(0x7f80_0000..)) => sign | 0x7f80_0000,
        (_, Ok(sum)) => sign | sum,
    }
}

/// One by one, as a slice, and by each backend at an odd place, whose neighbours stay.
fn added(patterns: &[u64], offset: usize, increment: Increment) {
    let bits: Vec<u32> = patterns.iter().map(|&bits| (bits >> 16) as u32).collect();
    let xs: Vec<f32> = bits.iter().copied().map(f32::from_bits).collect();
    let want: Vec<u32> = bits
        .iter()
        .map(|&bits| sum(bits, increment.bits()))
        .collect();
    let same = |got: &[f32], want: &[u32], what: &str| {
        for (i, (got, &want)) in got.iter().zip(want).enumerate() {
            let (got, x, n) = (got.to_bits(), bits[i], increment.bits());
            assert_eq!(
                got, want,
                "{what}: element {i}, {x:#x} + {n:#x} is {got:#x}"
            );
        }
    };
    let one_by_one: Vec<f32> = xs
        .iter()
        .map(|&x| add_increment_f32(x, increment))
        .collect();
    same(&one_by_one, &want, "one by one");
    let mut slice = xs.clone();
    add_increment_f32_slice(&mut slice, increment);
    same(&slice, &want, "slice");
    let inside = offset.min(xs.len())
        ..xs.len()
            .saturating_sub(offset / 2)
            .max(offset.min(xs.len()));
    let mut expected = bits.clone();
    expected[inside.clone()].copy_from_slice(&want[inside.clone()]);
    for backend in backends() {
        let mut got = xs.clone();
        backend.rescale(&mut got[inside.clone()], increment);
        same(&got, &expected, backend.id().name());
    }
}
