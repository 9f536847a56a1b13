//! Conversion of stored rows to BF16.

use super::*;
use crate::format::{self, Row, Scales};

struct Convert<'a> {
    row: Row<'a>,
    width: usize,
}

impl Visitor for Convert<'_> {
    type Output = Vec<bf16>;

    fn visit<K: Kernel>(self, kernel: K) -> Vec<bf16> {
        let mut out = std::vec![bf16::ONE; self.width];
        kernel.convert(&self.row, &self.row, &mut out);
        out
    }
}

/// Against the general function, which is tested against the formats' definitions.
fn check(row: Row<'_>, width: usize) {
    let mut want = std::vec![bf16::ONE; width];
    format::convert(&row, &mut want);
    for backend in backends() {
        let got = backend.with(Convert { row, width });
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            // Subnormal numbers may become zero, as in the dots, even those that round to a normal one.
            let subnormal = match row {
                Row::F32(row) => row[i].is_subnormal(),
                _ => !want.is_normal() && want.is_finite(),
            };
            let zero = subnormal && got.to_bits() & 0x7fff == 0;
            let nan = want.is_nan() && got.is_nan();
            let same = got.to_bits() == want.to_bits();
            assert!(same || zero || nan, "{backend:?} {got:?} {want:?}");
        }
    }
}

#[test]
fn fp16_and_int8_rows_are_converted_alike() {
    let halves: Vec<_> = (0..=u16::MAX).map(half::f16::from_bits).collect();
    for width in [64, 192, 100] {
        for row in halves.chunks_exact(width) {
            check(Row::F16(row), width);
        }
    }
    let values: Vec<i8> = (i8::MIN..=i8::MAX).collect();
    let values = &values;
    for scale in [1.0, 0.007_3, 1e30, f32::NAN, 0.0] {
        check(Row::Int8 { values, scale }, 256);
    }
}

/// All BF16 numbers, and FP32 ones just below a tie, on it and above it.
#[test]
fn fp32_and_bf16_rows_are_converted_alike() {
    let words: Vec<_> = (0..=u16::MAX).map(bf16::from_bits).collect();
    let numbers: Vec<_> = (words.iter())
        .flat_map(|x| [0, 0x7fff, 0x8000, 0x8001].map(|low| u32::from(x.to_bits()) << 16 | low))
        .map(f32::from_bits)
        .collect();
    for width in [64, 192, 100] {
        for row in numbers.chunks_exact(width) {
            check(Row::F32(row), width);
        }
        for row in words.chunks_exact(width) {
            check(Row::Bf16(row), width);
        }
    }
}

#[test]
fn fp8_rows_are_converted_alike() {
    // All codes in each tile, with and without the two NaNs.
    let codes: Vec<u8> = (0..=u8::MAX).cycle().take(512).collect();
    let numbers: Vec<u8> = codes.iter().map(|x| x & !1).collect();
    let rope: Vec<u8> = numbers.iter().copied().take(128).collect();
    let rope = &rope;
    let floats: Vec<u8> = [1.0_f32, 3e-3, 1e20, 0.0]
        .into_iter()
        .flat_map(f32::to_le_bytes)
        .collect();
    for values in [&codes, &numbers] {
        let row = |values, scales| Row::Fp8 {
            values,
            scales,
            rope,
        };
        for width in [512, 576, 500] {
            check(row(values, Scales::F32(&floats)), width);
        }
        let scales = Scales::E8m0(&[127, 0, 120, 254, 255, 130, 1, 9]);
        check(row(&values[..448], scales), 512);
    }
}
