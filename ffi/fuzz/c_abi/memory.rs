//! Memory of a caller, guarded.

use std::mem::size_of;

use amla::format::{Q4_0, Q8_0};
use half::bf16;

use crate::types;

/// Memory that is read, without a spare byte, so that sanitizers see reads behind it.
pub struct Given {
    pub memory: Box<[u8]>,
    pub before: Box<[u8]>,
}

impl Given {
    pub fn new(bytes: &[u8]) -> Self {
        let memory: Box<[u8]> = bytes.into();
        assert!(memory.is_empty() || memory.as_ptr().cast::<u64>().is_aligned());
        Self {
            memory,
            before: bytes.into(),
        }
    }
}

/// Memory that is written, within zones that aren't.
pub struct Guarded {
    /// Cache lines: a zone, what may be written, and a zone from its last byte on.
    lines: Vec<Line>,
    pub len: usize,
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Bytes that no call has written.
const UNWRITTEN: u8 = 0xc5;

impl Guarded {
    pub fn new(len: usize) -> Self {
        Self {
            lines: vec![Line([UNWRITTEN; 64]); len.div_ceil(64) + 2],
            len,
        }
    }

    pub fn pointer<T>(&mut self) -> *mut T {
        self.lines[1..].as_mut_ptr().cast()
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: lines are bytes without padding, borrowed for as long as `self`.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), 64 * self.lines.len()) }
    }

    pub fn inside(&self) -> &[u8] {
        &self.bytes()[64..64 + self.len]
    }

    /// Nothing around it was written.
    pub fn check(&self) {
        let bytes = self.bytes();
        let around = bytes[..64].iter().chain(&bytes[64 + self.len..]);
        assert!(
            around.into_iter().all(|&x| x == UNWRITTEN),
            "written outside"
        );
    }

    pub fn is_untouched(&self) -> bool {
        self.inside().iter().all(|&x| x == UNWRITTEN)
    }
}

/// Bytes of an element; 1 for an unknown type.
pub fn size_of_element(dtype: u32) -> usize {
    match dtype {
        types::AMLA_DTYPE_BF16 | types::AMLA_DTYPE_F16 => size_of::<bf16>(),
        types::AMLA_DTYPE_F32 => size_of::<f32>(),
        types::AMLA_DTYPE_Q8_0 => size_of::<Q8_0>(),
        types::AMLA_DTYPE_Q4_0 => size_of::<Q4_0>(),
        _ => 1,
    }
}

pub const fn struct_size<T>() -> u32 {
    size_of::<T>() as u32
}
