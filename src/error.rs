//! Typed errors: each names the argument, its value and the limit it broke.

use core::fmt;

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
    /// KV heads.
    HKv,
    /// Width of a query and of a cached row.
    DQk,
    /// Width of a value and of an output row.
    DV,
    /// The queries.
    Q,
    /// The queries' rotary part.
    QRope,
    /// Where each request's queries begin.
    QIndptr,
    /// The latent KV cache.
    Kv,
    /// The keys' rotary part.
    KRope,
    /// Where each request's keys begin.
    KvIndptr,
    /// The scales of quantised rows.
    Scales,
    /// Which pages hold a request's keys.
    BlockTable,
    /// Keys per page.
    PageSize,
    /// Pages of the cache.
    Pages,
    /// The separate values.
    V,
    /// The column of a key at which its value begins.
    VOffset,
    /// Valid keys per request.
    CacheSeqlens,
    /// Whether queries see no later keys.
    Causal,
    /// How many keys a query sees up to its own.
    Window,
    /// Which of the last keys each query sees.
    TailMask,
    /// Keys of a KV split.
    SplitKeys,
    /// The indices of the keys that queries attend to.
    Indices,
    /// Indices of each query position.
    Topk,
    /// How many of them count.
    TopkLength,
    /// The second cache.
    ExtraKv,
    /// The indices in the second cache.
    ExtraIndices,
    /// Indices of each query position in the second cache.
    ExtraTopk,
    /// How many of them count.
    ExtraTopkLength,
    /// Each head's attention sink.
    Sink,
    /// The factor on the scores.
    SoftmaxScale,
    /// The attention output.
    O,
    /// The log-sum-exp output.
    Lse,
    /// How a call is cut into tasks.
    Plan,
    /// The output of largest scores.
    MaxLogits,
    /// The index of a task within its plan.
    Task,
    /// Merges of [`combine`](crate::combine).
    Merges,
    /// The partial results of a plan's tasks.
    Partials,
    /// The caller's scratch memory.
    Workspace,
    /// Keys per block of a reference.
    BlockN,
    /// A row to be encoded.
    Row,
    /// Where an encoded row goes.
    Bytes,
    /// Where an encoded row's integers go.
    Values,
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
            Self::HKv => "h_kv",
            Self::DQk => "d_qk",
            Self::DV => "d_v",
            Self::Q => "q",
            Self::QRope => "q_rope",
            Self::QIndptr => "q_indptr",
            Self::Kv => "kv",
            Self::KRope => "k_rope",
            Self::KvIndptr => "kv_indptr",
            Self::Scales => "scales",
            Self::BlockTable => "block_table",
            Self::PageSize => "page_size",
            Self::Pages => "pages",
            Self::V => "v",
            Self::VOffset => "v_offset",
            Self::CacheSeqlens => "cache_seqlens",
            Self::Causal => "causal",
            Self::Window => "window",
            Self::TailMask => "tail_mask",
            Self::SplitKeys => "split_keys",
            Self::Indices => "indices",
            Self::Topk => "topk",
            Self::TopkLength => "topk_length",
            Self::ExtraKv => "extra_kv",
            Self::ExtraIndices => "extra_indices",
            Self::ExtraTopk => "extra_topk",
            Self::ExtraTopkLength => "extra_topk_length",
            Self::Sink => "sink",
            Self::SoftmaxScale => "softmax_scale",
            Self::O => "o",
            Self::Lse => "lse",
            Self::Plan => "plan",
            Self::MaxLogits => "max_logits",
            Self::Task => "task",
            Self::Merges => "merges",
            Self::Partials => "partials",
            Self::Workspace => "workspace",
            Self::BlockN => "block_n",
            Self::Row => "row",
            Self::Bytes => "bytes",
            Self::Values => "values",
        }
    }
}

/// Why a call was refused; nothing has been written to its outputs.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// Kernels can't have this pair of widths.
    UnsupportedDims {
        /// Width of a query.
        d_qk: usize,
        /// Width of a value.
        d_v: usize,
        /// What either is a multiple of.
        multiple: usize,
        /// The largest of each.
        max: (usize, usize),
    },
    /// A count is out of its range.
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
    /// A count is no positive multiple of what it must be.
    NotMultiple {
        /// Which count.
        argument: Argument,
        /// What was given.
        value: usize,
        /// What it must be a multiple of.
        of: usize,
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
    /// A list doesn't have the length that its shape demands.
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
    /// Two elements of an output would overlap.
    Overlap {
        /// Which output.
        argument: Argument,
        /// The dimension, counted from the outermost, whose stride is too small.
        dimension: usize,
        /// Its stride in elements.
        stride: usize,
        /// The smallest stride without an overlap.
        min: usize,
    },
    /// A request's length is negative, or more than the cache holds.
    Seqlen {
        /// Which request.
        request: usize,
        /// Its `cache_seqlens` entry.
        value: i32,
        /// Rows of the cache.
        limit: usize,
    },
    /// A number of indices is negative, or more than each query position has.
    TopkLength {
        /// Which list of lengths.
        argument: Argument,
        /// Which request; 0 with ragged queries.
        request: usize,
        /// Which of its query positions, or which token; 0 if they share the entry.
        position: usize,
        /// The entry.
        value: i32,
        /// Indices of each query position.
        limit: usize,
    },
    /// An entry of the block table is no page of the cache.
    Page {
        /// Which request.
        request: usize,
        /// Which entry of its part of the block table.
        index: usize,
        /// The entry.
        value: i32,
        /// Pages of the cache.
        limit: usize,
    },
    /// Offsets decrease, begin below 0, or give a request more rows than the shape has.
    Indptr {
        /// Which offsets.
        argument: Argument,
        /// The request between whose offsets it is.
        request: usize,
        /// Its first offset.
        start: i32,
        /// The next request's.
        end: i32,
        /// Rows of a request at most.
        limit: usize,
    },
    /// A tensor's format has no rows of the width needed. For O: merging takes FP32 only.
    Format {
        /// Which tensor.
        argument: Argument,
        /// The width.
        width: usize,
    },
    /// Query heads don't divide among the KV heads.
    Heads {
        /// Query heads.
        h_q: usize,
        /// KV heads.
        h_kv: usize,
    },
    /// A dimension of a view isn't what others demand ([`Attention`](crate::Attention)).
    Dimension {
        /// The view.
        argument: Argument,
        /// Which dimension, from the outermost on.
        dimension: usize,
        /// What it is.
        value: usize,
        /// What it must be.
        needed: usize,
    },
    /// Two arguments that exclude each other.
    Conflict {
        /// One.
        first: Argument,
        /// The other.
        second: Argument,
    },
    /// The plan was made for another problem: another shape, or requests of other
    /// lengths.
    PlanMismatch {
        /// The first thing that differs: a size or a list of lengths or offsets;
        /// [`Argument::Plan`] where the plan itself is damaged or from another build.
        argument: Argument,
        /// What the plan has: the size, or all rows of the list; `None` if there was none.
        planned: Option<u64>,
        /// The same of the problem given.
        given: Option<u64>,
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
    /// The processor lacks the backend's instructions, or the process may not use them
    /// ([`Backend::permit_amx`](crate::Backend::permit_amx)).
    BackendUnavailable {
        /// The name of the requested backend.
        backend: &'static str,
    },
    /// The process may not use the backend ([`Backend::set_max`](crate::Backend::set_max)).
    BackendAboveMax {
        /// The name of the requested backend.
        backend: &'static str,
        /// The name of the fastest that it may use.
        max: &'static str,
    },
    /// A cap on backends came after one was detected or requested.
    BackendInUse {
        /// The name of the backend that was to be the fastest.
        max: &'static str,
    },
}

impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Error {
    /// An entry of a list that is wrong.
    fn fmt_entry(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Seqlen {
                request,
                value,
                limit,
            } => write!(f, "cache_seqlens[{request}] is {value}, not in 0..={limit}"),
            Self::TopkLength {
                argument,
                request,
                position,
                value,
                limit,
            } => write!(
                f,
                "{argument}[{request}][{position}] is {value}, not in 0..={limit}"
            ),
            Self::Page {
                request,
                index,
                value,
                limit,
            } => write!(
                f,
                "block_table[{request}][{index}] is {value}, not in 0..{limit}"
            ),
            Self::Indptr {
                argument,
                request,
                start,
                end,
                limit,
            } => indptr(f, argument, request, [start, end], limit),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::UnsupportedDims {
                d_qk,
                d_v,
                multiple,
                max: (max_qk, max_v),
            } => write!(
                f,
                "(d_qk, d_v) = ({d_qk}, {d_v}) is not a pair of multiples of {multiple} up to ({max_qk}, {max_v})"
            ),
            Self::OutOfRange {
                argument,
                value,
                min,
                max,
            } => write!(f, "{argument} is {value}, not in {min}..={max}"),
            Self::NotMultiple {
                argument,
                value,
                of,
            } => write!(f, "{argument} is {value}, not a positive multiple of {of}"),
            Self::TooShort {
                argument,
                len,
                needed,
            } => {
                let what = if argument == Argument::Workspace {
                    "bytes"
                } else {
                    "elements"
                };
                write!(f, "{argument} holds {len} {what}, {needed} are needed")
            }
            Self::WrongLength {
                argument,
                len,
                expected,
            } => write!(f, "{argument} has {len} elements, expected {expected}"),
            Self::Overflow {
                argument,
                dimension,
            } => write!(
                f,
                "sizes and strides of {argument} overflow in dimension {dimension}"
            ),
            Self::Overlap {
                argument,
                dimension,
                stride,
                min,
            } => write!(
                f,
                "{argument} has stride {stride} in dimension {dimension}; elements overlap below {min}"
            ),
            Self::Seqlen { .. }
            | Self::TopkLength { .. }
            | Self::Page { .. }
            | Self::Indptr { .. } => self.fmt_entry(f),
            Self::Format {
                argument: Argument::O,
                ..
            } => f.write_str("o is not in FP32, which merging takes"),
            Self::Format { argument, width } => {
                write!(f, "{argument} is in a format without rows of width {width}")
            }
            Self::Heads { h_q, h_kv } => write!(f, "h_q is {h_q}, not a multiple of h_kv, {h_kv}"),
            Self::Dimension {
                argument,
                dimension,
                value,
                needed,
            } => write!(
                f,
                "dimension {dimension} of {argument} is {value}, not {needed}"
            ),
            Self::Conflict { first, second } => write!(f, "{first} and {second} can't be combined"),
            Self::PlanMismatch {
                argument,
                planned,
                given,
            } => plan_mismatch(f, argument, planned, given),
            Self::NonFiniteScale { value } if value.is_finite() => write!(
                f,
                "softmax_scale is {value:e}, whose product with log2(e) is infinite"
            ),
            Self::NonFiniteScale { value } => {
                write!(f, "softmax_scale is {value}, not a finite number")
            }
            Self::Misaligned { argument, align } => {
                write!(f, "{argument} is not aligned to {align} bytes")
            }
            Self::BackendUnavailable { backend } => {
                write!(f, "backend {backend} can't run on this processor")?;
                match backend {
                    "amx" => f.write_str(", or this process may not use it"),
                    _ => Ok(()),
                }
            }
            Self::BackendAboveMax { backend, max } => {
                write!(f, "backend {backend} is above {max}, this process's cap")
            }
            Self::BackendInUse { max } => write!(
                f,
                "{max} can't be made the cap: this process has used a backend already"
            ),
        }
    }
}

impl core::error::Error for Error {}

/// Which offset is wrong, and by what.
fn indptr(
    f: &mut fmt::Formatter<'_>,
    argument: Argument,
    request: usize,
    [start, end]: [i32; 2],
    limit: usize,
) -> fmt::Result {
    let next = request + 1;
    if start < 0 {
        return write!(f, "{argument}[{request}] is {start}, below 0");
    }
    if end < start {
        return write!(
            f,
            "{argument}[{next}] is {end}, less than {argument}[{request}], {start}"
        );
    }
    let most = if argument == Argument::QIndptr {
        Argument::SQ
    } else {
        Argument::SK
    };
    write!(
        f,
        "{argument} gives request {request} rows {start} to {end}, more than {most}, {limit}"
    )
}

/// What differs, and how. Of lists a plan knows how many rows they have in all.
fn plan_mismatch(
    f: &mut fmt::Formatter<'_>,
    argument: Argument,
    planned: Option<u64>,
    given: Option<u64>,
) -> fmt::Result {
    let is_list = matches!(
        argument,
        Argument::QIndptr
            | Argument::KvIndptr
            | Argument::CacheSeqlens
            | Argument::TopkLength
            | Argument::ExtraTopkLength
    );
    match (planned, given) {
        (None, Some(_)) => write!(f, "the plan is for a call without {argument}"),
        (Some(_), None) => write!(f, "the plan is for a call with {argument}"),
        (Some(planned), Some(given)) if argument != Argument::Plan => match is_list {
            false => write!(f, "the plan is for {argument} {planned}, not {given}"),
            true if planned == given => {
                write!(
                    f,
                    "the plan is for other {argument}, also of {planned} rows in all"
                )
            }
            true => write!(
                f,
                "the plan is for {argument} of {planned} rows in all, not {given}"
            ),
        },
        _ => f.write_str("the plan is damaged, or from another build"),
    }
}

/// Errs with [`Error::WrongLength`] unless a slice has its expected length.
pub(crate) const fn right_length(
    argument: Argument,
    len: usize,
    expected: usize,
) -> Result<(), Error> {
    if len != expected {
        return Err(Error::WrongLength {
            argument,
            len,
            expected,
        });
    }
    Ok(())
}
