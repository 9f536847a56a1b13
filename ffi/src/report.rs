//! A refusal as the caller gets it: a status code, and a detail in memory of the caller's.

use core::ffi::c_char;
use core::fmt::{self, Write};

use crate::environment;
use crate::fault::{Fault, Numbers};
use crate::memory::{put, sized};
use crate::types::{self, ErrorDetail, Status};

/// A C string in a fixed buffer, whose last byte stays 0.
struct Text<'a> {
    buffer: &'a mut [c_char],
    len: usize,
}

impl Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.buffer.len().saturating_sub(self.len + 1);
        let chars = self.buffer.iter_mut().skip(self.len).take(room);
        for (char, byte) in chars.zip(text.bytes()) {
            // `c_char` has a sign on some targets; the messages are ASCII.
            *char = c_char::from_ne_bytes([byte]);
            self.len += 1;
        }
        Ok(())
    }
}

fn text<const N: usize>(what: impl fmt::Display) -> [c_char; N] {
    let mut buffer = [0; N];
    let mut text = Text {
        buffer: &mut buffer,
        len: 0,
    };
    // Nothing fails: what has no room is left out.
    let _ = write!(text, "{what}");
    buffer
}

/// The detail of a fault.
#[cold]
fn explain(fault: &Fault, struct_size: u32) -> ErrorDetail {
    let [argument, other] = fault.arguments();
    let Numbers {
        value,
        min,
        max,
        index,
        entry,
        number,
    } = fault.numbers();
    ErrorDetail {
        struct_size,
        status: fault.status(),
        value,
        min,
        max,
        index,
        entry,
        number,
        argument: text(argument),
        other: text(other),
        message: text(fault),
    }
}

/// Runs a function's body in the [default environment](environment::default), and reports why it refused.
///
/// # Safety
/// `detail` is null, or refused, or a struct as long as its `struct_size` says, which may be
/// written when the body has returned.
pub unsafe fn report(detail: *mut ErrorDetail, body: impl FnOnce() -> Result<(), Fault>) -> Status {
    if !detail.is_null() {
        // SAFETY: the caller's pointers are as documented: this function's contract.
        let known = unsafe { sized("detail", detail.cast_const()) };
        if let Err(fault) = known {
            // No memory for an explanation.
            return fault.status();
        }
    }
    let Err(fault) = environment::default(body) else {
        return types::AMLA_OK;
    };
    let explained = explain(&fault, STRUCT_SIZE);
    if !detail.is_null() {
        // SAFETY: `sized` found it to be aligned and long enough; the body's borrows, should
        // any have been of this memory, are over.
        let _ = unsafe { put("detail", detail, explained) };
    }
    explained.status
}

#[expect(clippy::cast_possible_truncation, reason = "some hundred bytes")]
const STRUCT_SIZE: u32 = size_of::<ErrorDetail>() as u32;
