//! Encoders of the storage formats of caches.

use core::ffi::c_void;

use amla::format::{self, Q4_0, Q8_0};
use half::bf16;

use crate::fault::Fault;
use crate::memory::{Regions, Written, put, slice};
use crate::report::report;
use crate::types::{self, ErrorDetail, Status};

const _: () = assert!(types::AMLA_FP8_ROW == format::FP8_ROW);
const _: () = assert!(types::AMLA_MODEL1_ROW == format::MODEL1_ROW);
const _: () = assert!(types::AMLA_MODEL1_SCALES == format::MODEL1_SCALES);

/// Encodes a row of 576 BF16 numbers for AMLA_DTYPE_FP8. The scale of each 128 of the first 512 is
/// their largest magnitude over 448. The last 64 stay BF16.
///
/// @param row BF16 numbers.
/// @param row_len 576.
/// @param bytes Where the row goes.
/// @param bytes_len AMLA_FP8_ROW.
/// @param detail Null, or where the reason goes if the call is refused.
/// @return AMLA_OK, or whatever is wrong with the arguments; then nothing was written.
///
/// # Safety
/// Pointers are as documented.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amla_encode_fp8(
    row: *const u16,
    row_len: usize,
    bytes: *mut u8,
    bytes_len: usize,
    detail: *mut ErrorDetail,
) -> Status {
    let body = || {
        let mut regions = Regions::new();
        // SAFETY: the caller's pointers are as documented: this function's contract.
        let row = unsafe { numbers(&mut regions, row, row_len) }?;
        let bytes = Written::new(&mut regions, "bytes", bytes, bytes_len)?;
        regions.check()?;
        // SAFETY: the regions were checked; nobody else's by this function's contract.
        let bytes = unsafe { bytes.claim() };
        Ok(format::encode_fp8(row, bytes)?)
    };
    // SAFETY: the caller's pointers are as documented: this function's contract.
    unsafe { report(detail, body) }
}

/// Encodes a row of 512 BF16 numbers for AMLA_DTYPE_MODEL1. The scale of each 64 of the first 448
/// is the power of two that takes their largest magnitude to 448 at most. The last 64 stay BF16.
///
/// @param row BF16 numbers.
/// @param row_len 512.
/// @param bytes Where the row goes.
/// @param bytes_len AMLA_MODEL1_ROW.
/// @param scales Where its scales go.
/// @param scales_len AMLA_MODEL1_SCALES.
/// @param detail Null, or where the reason goes if the call is refused.
/// @return AMLA_OK, or whatever is wrong with the arguments; then nothing was written.
///
/// # Safety
/// Pointers are as documented.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amla_encode_model1(
    row: *const u16,
    row_len: usize,
    bytes: *mut u8,
    bytes_len: usize,
    scales: *mut u8,
    scales_len: usize,
    detail: *mut ErrorDetail,
) -> Status {
    let body = || {
        let mut regions = Regions::new();
        // SAFETY: the caller's pointers are as documented: this function's contract.
        let row = unsafe { numbers(&mut regions, row, row_len) }?;
        let bytes = Written::new(&mut regions, "bytes", bytes, bytes_len)?;
        let scales = Written::new(&mut regions, "scales", scales, scales_len)?;
        regions.check()?;
        // SAFETY: the regions were checked; nobody else's by this function's contract.
        let (bytes, scales) = unsafe { (bytes.claim(), scales.claim()) };
        Ok(format::encode_model1(row, bytes, scales)?)
    };
    // SAFETY: the caller's pointers are as documented: this function's contract.
    unsafe { report(detail, body) }
}

/// Encodes a row of BF16 numbers for AMLA_DTYPE_INT8, by its largest magnitude over 127. INT8
/// has no NaN, which becomes 0; an infinity makes the scale infinite, and the whole row NaN.
///
/// @param row BF16 numbers.
/// @param row_len How many.
/// @param values Where the row goes.
/// @param values_len As row_len.
/// @param scale Where its scale goes.
/// @param detail Null, or where the reason goes if the call is refused.
/// @return AMLA_OK, or whatever is wrong with the arguments; then nothing was written.
///
/// # Safety
/// Pointers are as documented.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amla_encode_int8(
    row: *const u16,
    row_len: usize,
    values: *mut i8,
    values_len: usize,
    scale: *mut f32,
    detail: *mut ErrorDetail,
) -> Status {
    let body = || {
        let mut regions = Regions::new();
        // SAFETY: the caller's pointers are as documented: this function's contract.
        let row = unsafe { numbers(&mut regions, row, row_len) }?;
        let values = Written::new(&mut regions, "values", values, values_len)?;
        // Checked as what is written beside the values; put there when they are.
        let _: Written<f32> = Written::required(&mut regions, "scale", scale)?;
        regions.check()?;
        // SAFETY: the regions were checked; nobody else's by this function's contract.
        let values = unsafe { values.claim() };
        let encoded = format::encode_int8(row, values)?;
        // SAFETY: the caller's pointers are as documented: this function's contract.
        unsafe { put("scale", scale, encoded) }
    };
    // SAFETY: the caller's pointers are as documented: this function's contract.
    unsafe { report(detail, body) }
}

/// Encodes a row of BF16 numbers for AMLA_DTYPE_E4M3, by its largest magnitude over 448. NaN stays
/// NaN; an infinity makes the scale infinite, and the whole row NaN.
///
/// @param row BF16 numbers.
/// @param row_len How many.
/// @param values Where the row goes.
/// @param values_len As row_len.
/// @param scale Where its scale goes.
/// @param detail Null, or where the reason goes if the call is refused.
/// @return AMLA_OK, or whatever is wrong with the arguments; then nothing was written.
///
/// # Safety
/// Pointers are as documented.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amla_encode_e4m3(
    row: *const u16,
    row_len: usize,
    values: *mut u8,
    values_len: usize,
    scale: *mut f32,
    detail: *mut ErrorDetail,
) -> Status {
    let body = || {
        let mut regions = Regions::new();
        // SAFETY: the caller's pointers are as documented: this function's contract.
        let row = unsafe { numbers(&mut regions, row, row_len) }?;
        let values = Written::new(&mut regions, "values", values, values_len)?;
        // Checked as what is written beside the values; put there when they are.
        let _: Written<f32> = Written::required(&mut regions, "scale", scale)?;
        regions.check()?;
        // SAFETY: the regions were checked; nobody else's by this function's contract.
        let values = unsafe { values.claim() };
        let encoded = format::encode_e4m3(row, values)?;
        // SAFETY: the caller's pointers are as documented: this function's contract.
        unsafe { put("scale", scale, encoded) }
    };
    // SAFETY: the caller's pointers are as documented: this function's contract.
    unsafe { report(detail, body) }
}

/// Encodes a row of FP32 numbers as ggml's blocks for AMLA_DTYPE_Q8_0, bit for bit as its
/// quantize_row_q8_0_ref does.
///
/// @param row FP32 numbers.
/// @param row_len 32 * blocks_len.
/// @param blocks Where the row goes: blocks of 34 bytes, aligned to 2.
/// @param blocks_len How many blocks.
/// @param detail Null, or where the reason goes if the call is refused.
/// @return AMLA_OK, or whatever is wrong with the arguments; then nothing was written.
///
/// # Safety
/// Pointers are as documented.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amla_encode_q8_0(
    row: *const f32,
    row_len: usize,
    blocks: *mut c_void,
    blocks_len: usize,
    detail: *mut ErrorDetail,
) -> Status {
    let body = || {
        let mut regions = Regions::new();
        // SAFETY: the caller's pointers are as documented: this function's contract.
        let row = unsafe { slice(&mut regions, "row", row, row_len) }?;
        let blocks = Written::<Q8_0>::new(&mut regions, "blocks", blocks.cast(), blocks_len)?;
        regions.check()?;
        // SAFETY: the regions were checked; nobody else's by this function's contract.
        let blocks = unsafe { blocks.claim() };
        Ok(format::encode_q8_0(row, blocks)?)
    };
    // SAFETY: the caller's pointers are as documented: this function's contract.
    unsafe { report(detail, body) }
}

/// Encodes a row of FP32 numbers as ggml's blocks for AMLA_DTYPE_Q4_0, bit for bit as its
/// quantize_row_q4_0_ref does.
///
/// @param row FP32 numbers.
/// @param row_len 32 * blocks_len.
/// @param blocks Where the row goes: blocks of 18 bytes, aligned to 2.
/// @param blocks_len How many blocks.
/// @param detail Null, or where the reason goes if the call is refused.
/// @return AMLA_OK, or whatever is wrong with the arguments; then nothing was written.
///
/// # Safety
/// Pointers are as documented.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amla_encode_q4_0(
    row: *const f32,
    row_len: usize,
    blocks: *mut c_void,
    blocks_len: usize,
    detail: *mut ErrorDetail,
) -> Status {
    let body = || {
        let mut regions = Regions::new();
        // SAFETY: the caller's pointers are as documented: this function's contract.
        let row = unsafe { slice(&mut regions, "row", row, row_len) }?;
        let blocks = Written::<Q4_0>::new(&mut regions, "blocks", blocks.cast(), blocks_len)?;
        regions.check()?;
        // SAFETY: the regions were checked; nobody else's by this function's contract.
        let blocks = unsafe { blocks.claim() };
        Ok(format::encode_q4_0(row, blocks)?)
    };
    // SAFETY: the caller's pointers are as documented: this function's contract.
    unsafe { report(detail, body) }
}

/// BF16 numbers from their bits.
///
/// # Safety
/// As [`slice`].
unsafe fn numbers<'a>(
    regions: &mut Regions,
    row: *const u16,
    len: usize,
) -> Result<&'a [bf16], Fault> {
    // SAFETY: `bf16` is a transparent `u16`; the rest is handed on.
    unsafe { slice(regions, "row", row.cast::<bf16>(), len) }
}
