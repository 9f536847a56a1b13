//! Encoders: the bytes of Rust's, and what they refuse.

use std::ptr::null;

use amla::format;
use half::bf16;

use crate::encode::{
    amla_encode_e4m3, amla_encode_fp8, amla_encode_int8, amla_encode_model1, amla_encode_q4_0,
    amla_encode_q8_0,
};
use crate::types::*;
use crate::world::*;

/// A row of 576 numbers, the bits of BF16.
fn row() -> Vec<u16> {
    let number = |i: usize| bf16::from_f32((i * 29 % 97) as f32 - 48.0);
    (0..576).map(|i| number(i).to_bits()).collect()
}

fn numbers(row: &[u16]) -> Vec<bf16> {
    row.iter().copied().map(bf16::from_bits).collect()
}

#[test]
fn encoders_give_rusts_bytes() {
    let (row, mut detail) = (row(), detail());
    let (mut got, mut want) = (vec![0; format::FP8_ROW], vec![0; format::FP8_ROW]);
    format::encode_fp8(&numbers(&row), &mut want).unwrap();
    // SAFETY: row and bytes are this test's, and as long as is said.
    let status = unsafe {
        amla_encode_fp8(
            row.as_ptr(),
            row.len(),
            got.as_mut_ptr(),
            got.len(),
            &mut detail,
        )
    };
    assert_eq!((status, got), (AMLA_OK, want));

    let row = &row[..512];
    let lens = [format::MODEL1_ROW, format::MODEL1_SCALES];
    let ([mut got, mut got_scales], [mut want, mut want_scales]) =
        (lens.map(|n| vec![0; n]), lens.map(|n| vec![0; n]));
    format::encode_model1(&numbers(row), &mut want, &mut want_scales).unwrap();
    // SAFETY: as above.
    let status = unsafe {
        amla_encode_model1(
            row.as_ptr(),
            row.len(),
            got.as_mut_ptr(),
            got.len(),
            got_scales.as_mut_ptr(),
            got_scales.len(),
            &mut detail,
        )
    };
    assert_eq!((status, got, got_scales), (AMLA_OK, want, want_scales));

    let row = &row[..5];
    let (mut got, mut scale, mut want) = (vec![0; 5], 0.0, vec![0; 5]);
    let want_scale = format::encode_int8(&numbers(row), &mut want).unwrap();
    // SAFETY: as above.
    let status = unsafe {
        amla_encode_int8(
            row.as_ptr(),
            row.len(),
            got.as_mut_ptr(),
            got.len(),
            &mut scale,
            &mut detail,
        )
    };
    assert_eq!((status, got, scale), (AMLA_OK, want, want_scale));

    let (mut got, mut scale, mut want) = (vec![0; 5], 0.0, vec![0; 5]);
    let want_scale = format::encode_e4m3(&numbers(row), &mut want).unwrap();
    // SAFETY: as above.
    let status = unsafe {
        amla_encode_e4m3(
            row.as_ptr(),
            row.len(),
            got.as_mut_ptr(),
            got.len(),
            &mut scale,
            &mut detail,
        )
    };
    assert_eq!((status, got, scale), (AMLA_OK, want, want_scale));
}

#[test]
fn encoders_give_rusts_blocks() {
    let mut detail = detail();
    let row: Vec<f32> = numbers(&row()).iter().map(|x| x.to_f32() / 3.0).collect();
    let (mut got, mut want) = ([format::Q8_0::default(); 18], [format::Q8_0::default(); 18]);
    format::encode_q8_0(&row, &mut want).unwrap();
    // SAFETY: row and blocks are this test's, and as many as is said.
    let status =
        unsafe { amla_encode_q8_0(row.as_ptr(), 576, got.as_mut_ptr().cast(), 18, &mut detail) };
    assert_eq!((status, got), (AMLA_OK, want));
    let (mut got, mut want) = ([format::Q4_0::default(); 18], [format::Q4_0::default(); 18]);
    format::encode_q4_0(&row, &mut want).unwrap();
    // SAFETY: as above.
    let status =
        unsafe { amla_encode_q4_0(row.as_ptr(), 576, got.as_mut_ptr().cast(), 18, &mut detail) };
    assert_eq!((status, got), (AMLA_OK, want));
}

/// Arguments of an encoder: the row and its length, one buffer, another one.
#[derive(Clone, Copy)]
struct Encoding {
    row: *const u16,
    row_len: usize,
    bytes: *mut u8,
    bytes_len: usize,
    scales: *mut u8,
    scales_len: usize,
}

type Encoder = fn(Encoding, *mut ErrorDetail) -> Status;

fn fp8(e: Encoding, detail: *mut ErrorDetail) -> Status {
    // SAFETY: as long as is said, or must be refused.
    unsafe { amla_encode_fp8(e.row, e.row_len, e.bytes, e.bytes_len, detail) }
}

fn model1(e: Encoding, detail: *mut ErrorDetail) -> Status {
    let (scales, len) = (e.scales, e.scales_len);
    // SAFETY: as above.
    unsafe { amla_encode_model1(e.row, e.row_len, e.bytes, e.bytes_len, scales, len, detail) }
}

fn int8(e: Encoding, detail: *mut ErrorDetail) -> Status {
    let (values, scale) = (e.bytes.cast(), e.scales.cast());
    // SAFETY: as above.
    unsafe { amla_encode_int8(e.row, e.row_len, values, e.bytes_len, scale, detail) }
}

fn e4m3(e: Encoding, detail: *mut ErrorDetail) -> Status {
    let (values, scale) = (e.bytes, e.scales.cast());
    // SAFETY: as above.
    unsafe { amla_encode_e4m3(e.row, e.row_len, values, e.bytes_len, scale, detail) }
}

fn q8_0(e: Encoding, detail: *mut ErrorDetail) -> Status {
    let (row, blocks) = (e.row.cast(), e.bytes.cast());
    // SAFETY: as above.
    unsafe { amla_encode_q8_0(row, e.row_len, blocks, e.bytes_len, detail) }
}

fn q4_0(e: Encoding, detail: *mut ErrorDetail) -> Status {
    let (row, blocks) = (e.row.cast(), e.bytes.cast());
    // SAFETY: as above.
    unsafe { amla_encode_q4_0(row, e.row_len, blocks, e.bytes_len, detail) }
}

#[test]
fn encoders_deny() {
    let encoders: [(Encoder, usize, usize, usize, &str); 6] = [
        (fp8, 576, format::FP8_ROW, 0, ""),
        (
            model1,
            512,
            format::MODEL1_ROW,
            format::MODEL1_SCALES,
            "scales",
        ),
        (int8, 576, 576, 4, "scale"),
        (e4m3, 576, 576, 4, "scale"),
        (q8_0, 288, 9, 0, ""),
        (q4_0, 288, 9, 0, ""),
    ];
    let mut denied = 0;
    for (i, (encoder, row_len, bytes_len, scales_len, scales_name)) in
        encoders.into_iter().enumerate()
    {
        let bytes_name = ["bytes", "bytes", "values", "values", "blocks", "blocks"][i];
        let (any_len, of_blocks) = (i == 2 || i == 3, i > 3);
        // Both outputs aligned as a scale must be.
        let words = |bytes: usize| vec![0xa5a5_a5a5_u32; bytes.div_ceil(4)];
        // FP32 rows are read of the same memory, aligned as they must be.
        let row: Vec<u32> = row().into_iter().map(u32::from).collect();
        let mut memory = (
            row,
            words(bytes_len * if of_blocks { 34 } else { 1 }),
            words(8),
        );
        let good = Encoding {
            row: memory.0.as_ptr().cast(),
            row_len,
            bytes: memory.1.as_mut_ptr().cast(),
            bytes_len,
            scales: memory.2.as_mut_ptr().cast(),
            scales_len,
        };
        let mut deny = |status: Status, argument: &str, change: &dyn Fn(&mut Encoding)| {
            let (mut wrong, mut detail) = (good, detail());
            change(&mut wrong);
            let got = encoder(wrong, &mut detail);
            let told = text(&detail.argument);
            assert_eq!((got, detail.status, told), (status, status, argument));
            denied += 1;
        };
        let (null_row, wrong_len) = (AMLA_ERROR_NULL_POINTER, AMLA_ERROR_WRONG_LENGTH);
        deny(null_row, "row", &|e| e.row = null());
        deny(AMLA_ERROR_MISALIGNED, "row", &|e| e.row = odd(e.row));
        deny(AMLA_ERROR_BAD_EXTENT, "row", &|e| e.row_len = usize::MAX);
        deny(null_row, bytes_name, &|e| e.bytes = std::ptr::null_mut());
        deny(AMLA_ERROR_BAD_EXTENT, bytes_name, &|e| {
            e.bytes_len = usize::MAX
        });
        let name = if of_blocks { "row" } else { bytes_name };
        deny(wrong_len, name, &|e| e.bytes_len -= 1);
        // INT8 and E4M3 rows have any length, and as many numbers are stored.
        let name = if any_len { bytes_name } else { "row" };
        deny(wrong_len, name, &|e| e.row_len -= 1);
        deny(AMLA_ERROR_ALIASED, bytes_name, &|e| {
            e.bytes = e.row.cast_mut().cast()
        });
        if !scales_name.is_empty() {
            deny(null_row, scales_name, &|e| e.scales = std::ptr::null_mut());
            deny(AMLA_ERROR_ALIASED, bytes_name, &|e| {
                e.scales = e.bytes.wrapping_add(4)
            });
        }
        if i == 1 {
            deny(wrong_len, "scales", &|e| e.scales_len -= 1);
        }
        if of_blocks {
            deny(AMLA_ERROR_MISALIGNED, "row", &|e| {
                e.row = e.row.wrapping_add(1)
            });
            deny(AMLA_ERROR_MISALIGNED, "blocks", &|e| {
                e.bytes = odd(e.bytes.cast_const()).cast_mut()
            });
            deny(wrong_len, "row", &|e| e.bytes_len += 1);
            deny(wrong_len, "row", &|e| e.row_len = 0);
        }
        if any_len {
            deny(AMLA_ERROR_MISALIGNED, "scale", &|e| {
                e.scales = e.scales.wrapping_add(1)
            });
        }
        let mut written = memory.1.iter().chain(&memory.2);
        assert!(written.all(|&word| word == 0xa5a5_a5a5));
    }
    assert_eq!(denied, 65);
}
