//! Calls of the encoders.

use std::ptr;

use amla::format::{FP8_ROW, MODEL1_ROW, MODEL1_SCALES};

use super::memory::{Guarded, struct_size};
use crate::draw::Draw;
use crate::encode::{
    amla_encode_e4m3, amla_encode_fp8, amla_encode_int8, amla_encode_model1, amla_encode_q4_0,
    amla_encode_q8_0,
};
use crate::types::{self, ErrorDetail};

/// Rows of any length, to memory of any length.
pub fn encoders(draw: &mut Draw) {
    let row: Vec<u16> = vec![draw.u16(); draw.one_of(&[576, 512, 0, 1, 128])];
    let bytes_len = draw.one_of(&[FP8_ROW, MODEL1_ROW, row.len(), 7]);
    let scales_len = draw.one_of(&[MODEL1_SCALES, 4, 0]);
    let (mut bytes, mut scales) = (Guarded::new(bytes_len), Guarded::new(scales_len));
    let pointer: *const u16 = if draw.once_in(8) {
        ptr::null()
    } else {
        row.as_ptr()
    };
    let scale: *mut f32 = scales.pointer();
    let scale = if scales_len < 4 {
        ptr::null_mut()
    } else {
        scale
    };
    // SAFETY: structs of numbers may be zero.
    let mut detail = unsafe { std::mem::zeroed::<ErrorDetail>() };
    detail.struct_size = struct_size::<ErrorDetail>();
    let detail = &raw mut detail;
    let len = row.len();
    // Of FP32 there are half as many, aligned or not.
    let (floats, half): (*const f32, usize) = (pointer.cast(), len / 2);
    let blocks = [bytes_len / 34, bytes_len / 18, half / 32];
    for which in 0..8 {
        let before = [&bytes, &scales].map(|memory| memory.inside().to_vec());
        // SAFETY: each pointer is null or to as much memory as said.
        let status = unsafe {
            match which {
                0 => amla_encode_fp8(pointer, len, bytes.pointer(), bytes_len, detail),
                1 => {
                    let (to, scales) = (bytes.pointer(), scales.pointer());
                    amla_encode_model1(pointer, len, to, bytes_len, scales, scales_len, detail)
                }
                2 => amla_encode_int8(pointer, len, bytes.pointer(), bytes_len, scale, detail),
                3 => amla_encode_e4m3(pointer, len, bytes.pointer(), bytes_len, scale, detail),
                4 => amla_encode_q8_0(floats, half, bytes.pointer(), blocks[0], detail),
                5 => amla_encode_q4_0(floats, half, bytes.pointer(), blocks[1], detail),
                6 => {
                    let count = blocks[0].min(blocks[2]);
                    amla_encode_q8_0(floats, 32 * count, bytes.pointer(), count, detail)
                }
                _ => {
                    let count = blocks[1].min(blocks[2]);
                    amla_encode_q4_0(floats, 32 * count, bytes.pointer(), count, detail)
                }
            }
        };
        assert!((types::AMLA_OK..=types::AMLA_ERROR_OTHER).contains(&status));
        bytes.check();
        scales.check();
        if status != types::AMLA_OK {
            assert!(bytes.inside() == before[0] && scales.inside() == before[1]);
        }
    }
}
