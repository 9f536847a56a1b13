//! Why a call was refused: as a status code, and in detail.

use core::ffi::c_char;
use core::fmt::{self, Write};

use amla::Error;

use crate::memory::{put, sized};
use crate::types::{self, ErrorDetail, Status};

/// What this crate refuses itself, or what `amla` did.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    Null {
        argument: &'static str,
    },
    StructSize {
        argument: &'static str,
        size: u32,
        expected: usize,
    },
    Unknown {
        argument: &'static str,
        value: u32,
    },
    Misaligned {
        argument: &'static str,
        align: usize,
    },
    Extent {
        argument: &'static str,
        len: usize,
    },
    Aliased {
        first: &'static str,
        second: &'static str,
    },
    TooShort {
        argument: &'static str,
        len: usize,
        needed: usize,
    },
    TooMany {
        argument: &'static str,
        len: usize,
        max: usize,
    },
    PartLength {
        argument: &'static str,
        part: usize,
        len: usize,
        expected: usize,
    },
    NotAPlan,
    UnknownBackend,
    Amla(Error),
    Other,
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Amla(error)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Null { argument } => write!(f, "{argument} is null"),
            Self::StructSize {
                argument,
                size,
                expected,
            } => write!(f, "{argument}.struct_size is {size}, not {expected}"),
            Self::Unknown { argument, value } => {
                write!(f, "{argument} is {value}, which has no meaning")
            }
            Self::Misaligned { argument, align } => {
                write!(f, "{argument} is not aligned to {align} bytes")
            }
            Self::Extent { argument, len } => {
                write!(
                    f,
                    "{argument} of {len} elements doesn't fit into the address space"
                )
            }
            Self::Aliased { first, second } => write!(f, "{first} and {second} overlap in memory"),
            Self::TooShort {
                argument,
                len,
                needed,
            } => write!(f, "{argument} has {len} bytes, {needed} are needed"),
            Self::TooMany { argument, len, max } => {
                write!(f, "{argument} is {len}, not in 0..={max}")
            }
            Self::PartLength {
                argument,
                part,
                len,
                expected,
            } => write!(f, "{argument} of part {part} is {len}, not {expected}"),
            Self::NotAPlan => f.write_str("the memory holds no plan"),
            Self::UnknownBackend => f.write_str("there is no backend of this name"),
            Self::Amla(error) => write!(f, "{error}"),
            Self::Other => f.write_str("refused"),
        }
    }
}

/// The numbers of a detail; see [`ErrorDetail`].
#[derive(Clone, Copy, Default)]
struct Numbers {
    value: i64,
    min: i64,
    max: i64,
    index: u64,
    entry: u64,
    number: f64,
}

/// A size as the detail gives it.
fn int(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

impl Fault {
    /// Status, argument, other argument, numbers.
    fn parts(&self) -> (Status, &'static str, &'static str, Numbers) {
        let none = Numbers::default();
        match *self {
            Self::Null { argument } => (types::AMLA_ERROR_NULL_POINTER, argument, "", none),
            Self::StructSize {
                argument,
                size,
                expected,
            } => {
                let numbers = Numbers {
                    value: size.into(),
                    ..exactly(0, expected)
                };
                (types::AMLA_ERROR_STRUCT_SIZE, argument, "", numbers)
            }
            Self::Unknown { argument, value } => {
                let value = value.into();
                (
                    types::AMLA_ERROR_UNKNOWN_VALUE,
                    argument,
                    "",
                    Numbers { value, ..none },
                )
            }
            Self::Misaligned { argument, align } => {
                let max = int(align);
                (
                    types::AMLA_ERROR_MISALIGNED,
                    argument,
                    "",
                    Numbers { max, ..none },
                )
            }
            Self::Extent { argument, len } => {
                let value = int(len);
                (
                    types::AMLA_ERROR_BAD_EXTENT,
                    argument,
                    "",
                    Numbers { value, ..none },
                )
            }
            Self::Aliased { first, second } => (types::AMLA_ERROR_ALIASED, first, second, none),
            Self::TooShort {
                argument,
                len,
                needed,
            } => (
                types::AMLA_ERROR_TOO_SHORT,
                argument,
                "",
                at_least(len, needed),
            ),
            Self::TooMany { argument, len, max } => {
                let numbers = Numbers {
                    value: int(len),
                    max: int(max),
                    ..none
                };
                (types::AMLA_ERROR_OUT_OF_RANGE, argument, "", numbers)
            }
            Self::PartLength {
                argument,
                part,
                len,
                expected,
            } => {
                let Numbers { index, .. } = at(part);
                let numbers = Numbers {
                    index,
                    ..exactly(len, expected)
                };
                (types::AMLA_ERROR_WRONG_LENGTH, argument, "", numbers)
            }
            Self::NotAPlan => (types::AMLA_ERROR_NOT_A_PLAN, "plan", "", none),
            Self::UnknownBackend => (types::AMLA_ERROR_BACKEND_UNAVAILABLE, "backend", "", none),
            Self::Amla(ref error) => parts_of(error),
            Self::Other => (types::AMLA_ERROR_OTHER, "", "", none),
        }
    }
}

fn at_least(len: usize, needed: usize) -> Numbers {
    Numbers {
        value: int(len),
        min: int(needed),
        max: i64::MAX,
        ..Numbers::default()
    }
}

fn exactly(len: usize, expected: usize) -> Numbers {
    Numbers {
        value: int(len),
        min: int(expected),
        max: int(expected),
        ..Numbers::default()
    }
}

fn at(index: usize) -> Numbers {
    Numbers {
        index: u64::try_from(index).unwrap_or(u64::MAX),
        ..Numbers::default()
    }
}

fn parts_of(error: &Error) -> (Status, &'static str, &'static str, Numbers) {
    let none = Numbers::default();
    match *error {
        Error::UnsupportedDims { d_qk, .. } => {
            let value = int(d_qk);
            (
                types::AMLA_ERROR_UNSUPPORTED_DIMS,
                "d_qk",
                "d_v",
                Numbers { value, ..none },
            )
        }
        Error::OutOfRange {
            argument,
            value,
            min,
            max,
        } => {
            let numbers = Numbers {
                value: int(value),
                min: int(min),
                max: int(max),
                ..none
            };
            (types::AMLA_ERROR_OUT_OF_RANGE, argument.name(), "", numbers)
        }
        Error::TooShort {
            argument,
            len,
            needed,
        } => (
            types::AMLA_ERROR_TOO_SHORT,
            argument.name(),
            "",
            at_least(len, needed),
        ),
        Error::WrongLength {
            argument,
            len,
            expected,
        } => (
            types::AMLA_ERROR_WRONG_LENGTH,
            argument.name(),
            "",
            exactly(len, expected),
        ),
        Error::Overflow {
            argument,
            dimension,
        } => (
            types::AMLA_ERROR_OVERFLOW,
            argument.name(),
            "",
            at(dimension),
        ),
        Error::Overlap {
            argument,
            dimension,
            stride,
            min,
        } => {
            let numbers = Numbers {
                value: int(stride),
                min: int(min),
                max: i64::MAX,
                ..at(dimension)
            };
            (types::AMLA_ERROR_OVERLAP, argument.name(), "", numbers)
        }
        Error::Seqlen {
            request,
            value,
            limit,
        } => {
            let numbers = Numbers {
                value: value.into(),
                max: int(limit),
                ..at(request)
            };
            (types::AMLA_ERROR_SEQLEN, "cache_seqlens", "", numbers)
        }
        Error::TopkLength {
            argument,
            request,
            value,
            limit,
        } => {
            let numbers = Numbers {
                value: value.into(),
                max: int(limit),
                ..at(request)
            };
            (types::AMLA_ERROR_TOPK_LENGTH, argument.name(), "", numbers)
        }
        Error::Page {
            request,
            index,
            value,
            limit,
        } => {
            let numbers = Numbers {
                value: value.into(),
                max: int(limit.saturating_sub(1)),
                entry: u64::try_from(index).unwrap_or(u64::MAX),
                ..at(request)
            };
            (types::AMLA_ERROR_PAGE, "block_table", "", numbers)
        }
        Error::Indptr {
            argument,
            request,
            start,
            end,
            limit,
        } => {
            // A negative start is at fault itself.
            let numbers = Numbers {
                value: if start < 0 { start } else { end }.into(),
                min: start.max(0).into(),
                max: int(limit).saturating_add(start.max(0).into()),
                ..at(request)
            };
            (types::AMLA_ERROR_INDPTR, argument.name(), "", numbers)
        }
        Error::Format { argument, width } => {
            let value = int(width);
            (
                types::AMLA_ERROR_FORMAT,
                argument.name(),
                "",
                Numbers { value, ..none },
            )
        }
        Error::Heads { h_q, .. } => {
            let value = int(h_q);
            (
                types::AMLA_ERROR_HEADS,
                "h_q",
                "h_kv",
                Numbers { value, ..none },
            )
        }
        Error::Conflict { first, second } => (
            types::AMLA_ERROR_CONFLICT,
            first.name(),
            second.name(),
            none,
        ),
        Error::PlanMismatch { .. } => (types::AMLA_ERROR_PLAN_MISMATCH, "plan", "", none),
        Error::NonFiniteScale { value } => {
            let number = value.into();
            (
                types::AMLA_ERROR_NON_FINITE_SCALE,
                "softmax_scale",
                "",
                Numbers { number, ..none },
            )
        }
        Error::Misaligned { argument, align } => {
            let max = int(align);
            (
                types::AMLA_ERROR_MISALIGNED,
                argument.name(),
                "",
                Numbers { max, ..none },
            )
        }
        Error::BackendUnavailable { .. } => {
            (types::AMLA_ERROR_BACKEND_UNAVAILABLE, "backend", "", none)
        }
        _ => (types::AMLA_ERROR_OTHER, "", "", none),
    }
}

/// A C string in a fixed buffer, whose last byte stays 0.
struct Text<'a> {
    buffer: &'a mut [c_char],
    len: usize,
}

impl Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.buffer.len().saturating_sub(self.len + 1);
        let places = self.buffer.iter_mut().skip(self.len).take(room);
        for (place, byte) in places.zip(text.bytes()) {
            // `c_char` has a sign on some targets; the messages are ASCII.
            *place = c_char::from_ne_bytes([byte]);
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
    let (status, argument, other, numbers) = fault.parts();
    let Numbers {
        value,
        min,
        max,
        index,
        entry,
        number,
    } = numbers;
    ErrorDetail {
        struct_size,
        status,
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

/// Runs a function's body, and reports why it refused.
///
/// # Safety
/// `detail` is null, or refused, or a struct as long as its `struct_size` says, which may be
/// written when the body has returned.
pub unsafe fn report(detail: *mut ErrorDetail, body: impl FnOnce() -> Result<(), Fault>) -> Status {
    if !detail.is_null() {
        // SAFETY: the caller's pointers are as documented: this function's contract.
        let known = unsafe { sized("detail", detail.cast_const()) };
        if let Err(fault) = known {
            // There is nowhere to explain it.
            return fault.parts().0;
        }
    }
    let Err(fault) = body() else {
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

#[expect(clippy::cast_possible_truncation, reason = "a few bytes")]
const STRUCT_SIZE: u32 = size_of::<ErrorDetail>() as u32;
