//! Why a call was refused: its status, the arguments at fault and their numbers.

use core::fmt;

use amla::{BackendId, Error};

use crate::choice::{Known, list};
use crate::types::{self, Status};

/// A refusal of this crate or of `amla`.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    Null {
        argument: &'static str,
    },
    /// Null, though another argument needs it.
    NullBeside {
        argument: &'static str,
        beside: &'static str,
    },
    StructSize {
        argument: &'static str,
        size: u32,
        expected: usize,
    },
    Unknown {
        argument: &'static str,
        value: u32,
        known: Known,
    },
    /// 0, though another argument needs it.
    ZeroBeside {
        argument: &'static str,
        beside: &'static str,
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
    Both {
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
    /// Of another version of the interface.
    PlanVersion {
        version: u64,
    },
    UnknownBackend {
        name: Name,
    },
    Amla(Error),
    /// The call has more memory than there is room for to note.
    TooManyRegions,
}

/// The beginning of a name that a caller gave, 0 behind it.
#[derive(Clone, Copy, Debug)]
pub struct Name(pub [u8; 24]);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for &byte in self.0.iter().take_while(|byte| **byte != 0) {
            let printable = byte.is_ascii_graphic() || byte == b' ';
            fmt::Write::write_char(f, if printable { byte.into() } else { '?' })?;
        }
        Ok(())
    }
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
            Self::NullBeside { argument, beside } => {
                write!(f, "{argument} is null, though {beside}")
            }
            Self::ZeroBeside { argument, beside } => {
                write!(f, "{argument} is 0, though {beside}")
            }
            Self::StructSize {
                argument,
                size: 0,
                expected,
            } => write!(
                f,
                "{argument}.struct_size is not set: it must be the struct's sizeof, {expected}"
            ),
            Self::StructSize {
                argument,
                size,
                expected,
            } => write!(f, "{argument}.struct_size is {size}, not {expected}"),
            Self::Unknown {
                argument,
                value,
                known,
            } => known.refuse(f, argument, value),
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
            Self::Both { first, second } => write!(f, "{first} and {second} can't be combined"),
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
            Self::PlanVersion { version } => write!(
                f,
                "the plan is of version {version} of the interface, not {}",
                types::AMLA_ABI_VERSION
            ),
            Self::UnknownBackend { name } => {
                write!(f, "backend is \"{name}\", not ")?;
                list(f, BackendId::ALL.into_iter(), |f, id| {
                    f.write_str(id.name())
                })
            }
            Self::Amla(error) => write!(f, "{error}"),
            Self::TooManyRegions => {
                f.write_str("the call points to more memory than can be checked for overlaps")
            }
        }
    }
}

impl Fault {
    pub fn status(&self) -> Status {
        match self {
            Self::Null { .. } | Self::NullBeside { .. } => types::AMLA_ERROR_NULL_POINTER,
            Self::StructSize { .. } => types::AMLA_ERROR_STRUCT_SIZE,
            Self::Unknown { .. } | Self::ZeroBeside { .. } => types::AMLA_ERROR_UNKNOWN_VALUE,
            Self::Misaligned { .. } => types::AMLA_ERROR_MISALIGNED,
            Self::Extent { .. } => types::AMLA_ERROR_BAD_EXTENT,
            Self::Aliased { .. } => types::AMLA_ERROR_ALIASED,
            Self::Both { .. } => types::AMLA_ERROR_CONFLICT,
            Self::TooShort { .. } => types::AMLA_ERROR_TOO_SHORT,
            Self::TooMany { .. } => types::AMLA_ERROR_OUT_OF_RANGE,
            Self::PartLength { .. } => types::AMLA_ERROR_WRONG_LENGTH,
            Self::NotAPlan | Self::PlanVersion { .. } => types::AMLA_ERROR_NOT_A_PLAN,
            Self::UnknownBackend { .. } => types::AMLA_ERROR_BACKEND_UNAVAILABLE,
            Self::Amla(error) => status_of(error),
            Self::TooManyRegions => types::AMLA_ERROR_OTHER,
        }
    }

    /// The argument at fault and another one, empty where there is none.
    pub fn arguments(&self) -> [&'static str; 2] {
        match *self {
            Self::Aliased { first, second } | Self::Both { first, second } => [first, second],
            Self::Null { argument }
            | Self::NullBeside { argument, .. }
            | Self::ZeroBeside { argument, .. }
            | Self::StructSize { argument, .. }
            | Self::Unknown { argument, .. }
            | Self::Misaligned { argument, .. }
            | Self::Extent { argument, .. }
            | Self::TooShort { argument, .. }
            | Self::TooMany { argument, .. }
            | Self::PartLength { argument, .. } => [argument, ""],
            Self::NotAPlan | Self::PlanVersion { .. } => ["plan", ""],
            Self::UnknownBackend { .. } => ["backend", ""],
            Self::Amla(ref error) => arguments_of(error),
            Self::TooManyRegions => ["", ""],
        }
    }

    pub fn numbers(&self) -> Numbers {
        match *self {
            Self::StructSize { size, expected, .. } => Numbers {
                value: size.into(),
                ..exactly(0, expected)
            },
            Self::Unknown { value, .. } => Numbers {
                value: value.into(),
                ..Numbers::default()
            },
            Self::Misaligned { align, .. } => Numbers {
                max: int(align),
                ..Numbers::default()
            },
            Self::Extent { len, .. } => value(len),
            Self::TooShort { len, needed, .. } => at_least(len, needed),
            Self::TooMany { len, max, .. } => Numbers {
                max: int(max),
                ..value(len)
            },
            Self::PartLength {
                part,
                len,
                expected,
                ..
            } => Numbers {
                index: at(part).index,
                ..exactly(len, expected)
            },
            Self::Amla(ref error) => numbers_of(error),
            Self::PlanVersion { version } => Numbers {
                value: i64::try_from(version).unwrap_or(i64::MAX),
                min: types::AMLA_ABI_VERSION.into(),
                max: types::AMLA_ABI_VERSION.into(),
                ..Numbers::default()
            },
            Self::Null { .. }
            | Self::NullBeside { .. }
            | Self::ZeroBeside { .. }
            | Self::Aliased { .. }
            | Self::Both { .. }
            | Self::NotAPlan
            | Self::UnknownBackend { .. }
            | Self::TooManyRegions => Numbers::default(),
        }
    }
}

// -------------------------------------------------------------------------------------------------
// Errors of `amla`
// -------------------------------------------------------------------------------------------------

const fn status_of(error: &Error) -> Status {
    match error {
        Error::UnsupportedDims { .. } => types::AMLA_ERROR_UNSUPPORTED_DIMS,
        Error::OutOfRange { .. } | Error::NotMultiple { .. } => types::AMLA_ERROR_OUT_OF_RANGE,
        Error::TooShort { .. } => types::AMLA_ERROR_TOO_SHORT,
        Error::WrongLength { .. } => types::AMLA_ERROR_WRONG_LENGTH,
        Error::Overflow { .. } => types::AMLA_ERROR_OVERFLOW,
        Error::Overlap { .. } => types::AMLA_ERROR_OVERLAP,
        Error::Seqlen { .. } => types::AMLA_ERROR_SEQLEN,
        Error::TopkLength { .. } => types::AMLA_ERROR_TOPK_LENGTH,
        Error::Page { .. } => types::AMLA_ERROR_PAGE,
        Error::Indptr { .. } => types::AMLA_ERROR_INDPTR,
        Error::Format { .. } => types::AMLA_ERROR_FORMAT,
        Error::Heads { .. } => types::AMLA_ERROR_HEADS,
        Error::Conflict { .. } => types::AMLA_ERROR_CONFLICT,
        Error::PlanMismatch { .. } => types::AMLA_ERROR_PLAN_MISMATCH,
        Error::NonFiniteScale { .. } => types::AMLA_ERROR_NON_FINITE_SCALE,
        Error::Misaligned { .. } => types::AMLA_ERROR_MISALIGNED,
        Error::BackendUnavailable { .. } | Error::BackendAboveMax { .. } => {
            types::AMLA_ERROR_BACKEND_UNAVAILABLE
        }
        Error::BackendInUse { .. } => types::AMLA_ERROR_BACKEND_IN_USE,
        _ => types::AMLA_ERROR_OTHER,
    }
}

const fn arguments_of(error: &Error) -> [&'static str; 2] {
    match error {
        Error::UnsupportedDims { .. } => ["d_qk", "d_v"],
        Error::Seqlen { .. } => ["cache_seqlens", ""],
        Error::Page { .. } => ["block_table", ""],
        Error::Heads { .. } => ["h_q", "h_kv"],
        Error::Conflict { first, second } => [first.name(), second.name()],
        Error::PlanMismatch { argument, .. } => ["plan", argument.name()],
        Error::NonFiniteScale { .. } => ["softmax_scale", ""],
        Error::BackendUnavailable { .. }
        | Error::BackendAboveMax { .. }
        | Error::BackendInUse { .. } => ["backend", ""],
        Error::OutOfRange { argument, .. }
        | Error::NotMultiple { argument, .. }
        | Error::TooShort { argument, .. }
        | Error::WrongLength { argument, .. }
        | Error::Overflow { argument, .. }
        | Error::Overlap { argument, .. }
        | Error::TopkLength { argument, .. }
        | Error::Indptr { argument, .. }
        | Error::Format { argument, .. }
        | Error::Misaligned { argument, .. } => [argument.name(), ""],
        _ => ["", ""],
    }
}

fn numbers_of(error: &Error) -> Numbers {
    match *error {
        Error::UnsupportedDims { d_qk, .. } => value(d_qk),
        Error::NotMultiple {
            value: given, of, ..
        } => Numbers {
            min: int(of),
            max: int(usize::MAX),
            ..value(given)
        },
        Error::OutOfRange {
            value: given,
            min,
            max,
            ..
        } => Numbers {
            min: int(min),
            max: int(max),
            ..value(given)
        },
        Error::TooShort { len, needed, .. } => at_least(len, needed),
        Error::WrongLength { len, expected, .. } => exactly(len, expected),
        Error::Overflow { dimension, .. } => at(dimension),
        Error::Overlap {
            dimension,
            stride,
            min,
            ..
        } => Numbers {
            index: at(dimension).index,
            ..at_least(stride, min)
        },
        Error::Seqlen {
            request,
            value,
            limit,
        } => Numbers {
            value: value.into(),
            max: int(limit),
            ..at(request)
        },
        Error::TopkLength {
            request,
            position,
            value,
            limit,
            ..
        } => Numbers {
            value: value.into(),
            max: int(limit),
            entry: at(position).index,
            ..at(request)
        },
        Error::Page {
            request,
            index,
            value,
            limit,
        } => Numbers {
            value: value.into(),
            max: int(limit.saturating_sub(1)),
            entry: at(index).index,
            ..at(request)
        },
        // A negative start is at fault itself.
        Error::Indptr {
            request,
            start,
            end,
            limit,
            ..
        } => Numbers {
            value: if start < 0 { start } else { end }.into(),
            min: start.max(0).into(),
            max: int(limit).saturating_add(start.max(0).into()),
            ..at(request)
        },
        Error::PlanMismatch { planned, given, .. } => {
            // None is 0, which the message tells from a 0 that was given.
            let number = |value: Option<u64>| i64::try_from(value.unwrap_or(0)).unwrap_or(i64::MAX);
            Numbers {
                value: number(given),
                min: number(planned),
                max: number(planned),
                ..Numbers::default()
            }
        }
        Error::Format { width, .. } => value(width),
        Error::Heads { h_q, .. } => value(h_q),
        Error::NonFiniteScale { value } => Numbers {
            number: value.into(),
            ..Numbers::default()
        },
        Error::Misaligned { align, .. } => Numbers {
            max: int(align),
            ..Numbers::default()
        },
        _ => Numbers::default(),
    }
}

// -------------------------------------------------------------------------------------------------
// Numbers
// -------------------------------------------------------------------------------------------------

/// The numbers of an [`ErrorDetail`](types::ErrorDetail).
#[derive(Clone, Copy, Default)]
pub struct Numbers {
    pub value: i64,
    pub min: i64,
    pub max: i64,
    pub index: u64,
    pub entry: u64,
    pub number: f64,
}

/// A size as the detail gives it.
fn int(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

fn value(value: usize) -> Numbers {
    Numbers {
        value: int(value),
        ..Numbers::default()
    }
}

fn at_least(len: usize, needed: usize) -> Numbers {
    Numbers {
        min: int(needed),
        max: i64::MAX,
        ..value(len)
    }
}

fn exactly(len: usize, expected: usize) -> Numbers {
    Numbers {
        min: int(expected),
        max: int(expected),
        ..value(len)
    }
}

fn at(index: usize) -> Numbers {
    Numbers {
        index: u64::try_from(index).unwrap_or(u64::MAX),
        ..Numbers::default()
    }
}
