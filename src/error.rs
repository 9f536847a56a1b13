//! Typed errors: each names the argument, its value and the limit it broke.

use core::fmt;

use crate::shape::Shape;

/// An argument of the public interface, as errors name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Argument {
    /// Number of requests.
    B,
    /// Query positions per request.
    SQ,
    /// Rows of the KV cache per request.
    SK,
    /// Query heads.
    HQ,
    /// Width of a query and of a cached row.
    DQk,
    /// Width of a value and of an output row.
    DV,
    /// The queries.
    Q,
    /// The latent KV cache.
    Kv,
    /// The separate values.
    V,
    /// Valid keys per request.
    CacheSeqlens,
    /// The factor on the scores.
    SoftmaxScale,
    /// The attention output.
    O,
    /// The log-sum-exp output.
    Lse,
    /// The index of a task within its plan.
    Task,
    /// The partial results of a plan's tasks.
    Partials,
    /// The caller's scratch memory.
    Workspace,
    /// Keys per block of a reference.
    BlockN,
}

impl Argument {
    /// The argument's name as the interface spells it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::B => "b",
            Self::SQ => "s_q",
            Self::SK => "s_k",
            Self::HQ => "h_q",
            Self::DQk => "d_qk",
            Self::DV => "d_v",
            Self::Q => "q",
            Self::Kv => "kv",
            Self::V => "v",
            Self::CacheSeqlens => "cache_seqlens",
            Self::SoftmaxScale => "softmax_scale",
            Self::O => "o",
            Self::Lse => "lse",
            Self::Task => "task",
            Self::Partials => "partials",
            Self::Workspace => "workspace",
            Self::BlockN => "block_n",
        }
    }
}

/// Why a call was refused; nothing has been written to its outputs.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// No kernel is instantiated for this pair of widths.
    UnsupportedDims {
        /// Width of a query.
        d_qk: usize,
        /// Width of a value.
        d_v: usize,
        /// The pairs there are.
        supported: &'static [(usize, usize)],
    },
    /// A count lies outside its range.
    OutOfRange {
        /// Which count.
        argument: Argument,
        /// What was given.
        value: usize,
        /// The smallest value allowed.
        min: usize,
        /// The largest value allowed.
        max: usize,
    },
    /// A buffer holds fewer elements than needed (bytes, for a workspace).
    TooShort {
        /// Which buffer.
        argument: Argument,
        /// Its length in elements.
        len: usize,
        /// The length needed.
        needed: usize,
    },
    /// A list's length isn't the one its shape asks for.
    WrongLength {
        /// Which list.
        argument: Argument,
        /// Its length.
        len: usize,
        /// The length expected.
        expected: usize,
    },
    /// The extent of a tensor does not fit in `usize`.
    Overflow {
        /// Which tensor.
        argument: Argument,
        /// The dimension, counted from the outermost, whose extent overflows.
        dimension: usize,
    },
    /// Two elements of an output would share a place.
    Overlap {
        /// Which output.
        argument: Argument,
        /// The dimension, counted from the outermost, whose stride is too small.
        dimension: usize,
        /// Its stride in elements.
        stride: usize,
        /// The smallest stride that keeps elements apart.
        min: usize,
    },
    /// A request claims more keys than the cache holds, or fewer than none.
    Seqlen {
        /// Which request.
        request: usize,
        /// Its `cache_seqlens` entry.
        value: i32,
        /// Rows of the cache.
        limit: usize,
    },
    /// The plan was made for another problem: another shape, or requests of other
    /// lengths.
    PlanMismatch {
        /// The shape planned for.
        planned: Shape,
        /// The shape given.
        given: Shape,
    },
    /// `softmax_scale`, or its product with `log2(e)`, is infinite or not a number.
    NonFiniteScale {
        /// What was given.
        value: f32,
    },
    /// The scratch memory is not aligned.
    Misaligned {
        /// Which buffer.
        argument: Argument,
        /// The alignment needed, in bytes.
        align: usize,
    },
    /// The processor lacks what this backend needs, or the backend belongs to
    /// another architecture.
    BackendUnavailable {
        /// The name of what was asked for.
        backend: &'static str,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::UnsupportedDims {
                d_qk,
                d_v,
                supported,
            } => {
                write!(f, "(d_qk, d_v) = ({d_qk}, {d_v}) is not one of ")?;
                for (i, (qk, v)) in supported.iter().enumerate() {
                    let comma = if i == 0 { "" } else { ", " };
                    write!(f, "{comma}({qk}, {v})")?;
                }
                Ok(())
            }
            Self::OutOfRange {
                argument,
                value,
                min,
                max,
            } => write!(f, "{} is {value}, not in {min}..={max}", argument.name()),
            Self::TooShort {
                argument,
                len,
                needed,
            } => write!(
                f,
                "{} holds {len} elements, {needed} are needed",
                argument.name()
            ),
            Self::WrongLength {
                argument,
                len,
                expected,
            } => write!(
                f,
                "{} has {len} elements, expected {expected}",
                argument.name()
            ),
            Self::Overflow {
                argument,
                dimension,
            } => write!(
                f,
                "the extent of {} overflows in dimension {dimension}",
                argument.name()
            ),
            Self::Overlap {
                argument,
                dimension,
                stride,
                min,
            } => write!(
                f,
                "{} has stride {stride} in dimension {dimension}; elements overlap below {min}",
                argument.name()
            ),
            Self::Seqlen {
                request,
                value,
                limit,
            } => write!(f, "cache_seqlens[{request}] is {value}, not in 0..={limit}"),
            Self::PlanMismatch { planned, given } => write!(
                f,
                "the plan is for other lengths or another shape: {planned:?}, not {given:?}"
            ),
            Self::NonFiniteScale { value } => {
                write!(f, "softmax_scale is {value}, not a finite number")
            }
            Self::Misaligned { argument, align } => {
                write!(f, "{} is not aligned to {align} bytes", argument.name())
            }
            Self::BackendUnavailable { backend } => {
                write!(f, "backend {backend} can't run on this processor")
            }
        }
    }
}

impl core::error::Error for Error {}
