//! Where results go.

use core::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use half::{bf16, f16};

use super::validate::{check_disjoint, check_extent};
use crate::bits::bf16_round;
use crate::error::{Argument, Error};
use crate::shape::ProblemShape;

/// The output's elements, in one of its formats.
#[derive(Debug)]
pub enum Elements<'a> {
    /// Rounded to nearest even.
    Bf16(&'a mut [bf16]),
    /// Rounded to nearest even; infinite from 65520 on.
    F16(&'a mut [f16]),
    /// Unrounded.
    F32(&'a mut [f32]),
}

impl<'a> Elements<'a> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Bf16(data) => data.len(),
            Self::F16(data) => data.len(),
            Self::F32(data) => data.len(),
        }
    }

    /// A shorter borrow of the same elements.
    pub(crate) fn reborrow(&mut self) -> Elements<'_> {
        match self {
            Self::Bf16(data) => Elements::Bf16(data),
            Self::F16(data) => Elements::F16(data),
            Self::F32(data) => Elements::F32(data),
        }
    }

    /// Writes numbers from element `at` on, rounded to the format. Inlined, so that it is compiled
    /// with the caller's target features.
    #[inline(always)]
    pub(crate) fn write(&mut self, at: usize, row: &[f32]) {
        let at = at..at + row.len();
        match self {
            Self::Bf16(o) => {
                for (o, x) in o[at].iter_mut().zip(row) {
                    *o = bf16::from_bits(bf16_round(*x));
                }
            }
            Self::F16(o) => {
                for (o, x) in o[at].iter_mut().zip(row) {
                    *o = f16::from_f32(*x);
                }
            }
            Self::F32(o) => o[at].copy_from_slice(row),
        }
    }
}

/// Elements that several threads write, in one of the formats of [`Elements`].
#[derive(Clone, Copy, Debug)]
pub enum SharedElements<'a> {
    /// As [`Elements::Bf16`].
    Bf16(&'a [AtomicU16]),
    /// As [`Elements::F16`].
    F16(&'a [AtomicU16]),
    /// As [`Elements::F32`].
    F32(&'a [AtomicU32]),
}

impl SharedElements<'_> {
    const fn len(&self) -> usize {
        match self {
            Self::Bf16(data) | Self::F16(data) => data.len(),
            Self::F32(data) => data.len(),
        }
    }

    /// As [`Elements::write`], but not inlined: numbers are stored one by one with any features.
    #[inline(never)]
    pub(crate) fn write(&self, at: usize, row: &[f32]) {
        let at = at..at + row.len();
        match self {
            Self::Bf16(o) => {
                for (o, x) in o[at].iter().zip(row) {
                    o.store(bf16_round(*x), Ordering::Relaxed);
                }
            }
            Self::F16(o) => {
                for (o, x) in o[at].iter().zip(row) {
                    o.store(f16::from_f32(*x).to_bits(), Ordering::Relaxed);
                }
            }
            Self::F32(o) => {
                for (o, x) in o[at].iter().zip(row) {
                    o.store(x.to_bits(), Ordering::Relaxed);
                }
            }
        }
    }
}

/// How log-sum-exp is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lse {
    /// The logarithm's base.
    pub base: LseBase,
    /// lse of a row that sees no key.
    pub empty: EmptyLse,
}

/// The base of a logarithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LseBase {
    /// Natural: FlashMLA's and CANN's.
    #[default]
    E,
    /// Binary: FlashInfer's.
    Two,
}

/// lse of a row that sees no key, whose O is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EmptyLse {
    /// Infinity, as in FlashMLA.
    #[default]
    Infinity,
    /// Minus infinity, the logarithm of the empty sum.
    MinusInfinity,
}

impl EmptyLse {
    /// As a number.
    #[must_use]
    pub const fn value(self) -> f32 {
        match self {
            Self::Infinity => f32::INFINITY,
            Self::MinusInfinity => f32::NEG_INFINITY,
        }
    }
}

/// Where results go.
///
/// A row that sees no key gets `O = 0` and the lse of [`EmptyLse`]. Every NaN is the quiet one of its
/// format without sign and payload, `0x7fc00000` in FP32.
#[derive(Debug)]
pub struct Output<'a> {
    /// `[b, s_q, h_q, d_v]`, the last dimension contiguous; `[tokens, h_q, d_v]` with
    /// `q_indptr`.
    pub o: Elements<'a>,
    /// Strides of `o` over `(b, s_q, h_q)`, in elements; the first is ignored with `q_indptr`.
    pub o_strides: [usize; 3],
    /// `[b, h_q, s_q]`, or `[h_q, tokens]` with `q_indptr`: logarithm of the sum of exponentials.
    /// `None` where nobody needs it.
    pub lse: Option<&'a mut [f32]>,
    /// Strides of `lse` and `max_logits` over `(b, h_q, s_q)`, in elements.
    pub lse_strides: [usize; 3],
    /// With the dimensions and strides of `lse`: each row's largest `softmax_scale * q.k` of the keys
    /// that it sees, whatever the base of lse. NaN doesn't count, and a row that sees no key has minus
    /// infinity. `None` where nobody needs it.
    pub max_logits: Option<&'a mut [f32]>,
    /// How `lse` is written.
    pub lse_format: Lse,
}

impl<'a> Output<'a> {
    /// Dense outputs, O and lse.
    #[must_use]
    pub const fn dense(shape: ProblemShape, o: Elements<'a>, lse: &'a mut [f32]) -> Self {
        let row = shape.h_q.saturating_mul(shape.d_v);
        Self {
            o,
            o_strides: [row.saturating_mul(shape.s_q), row, shape.d_v],
            lse: Some(lse),
            lse_strides: [shape.h_q.saturating_mul(shape.s_q), shape.s_q, 1],
            max_logits: None,
            lse_format: Lse {
                base: LseBase::E,
                empty: EmptyLse::Infinity,
            },
        }
    }

    /// What it says of its buffers.
    fn extents(&self) -> Extents {
        Extents {
            o: self.o.len(),
            o_strides: self.o_strides,
            lse: [&self.lse, &self.max_logits].map(|rows| rows.as_ref().map(|rows| rows.len())),
            lse_strides: self.lse_strides,
        }
    }

    /// Checks that the buffers have every element of the results, none of them twice. `[b, s_q]` are
    /// the dimensions of queries.
    ///
    /// # Errors
    /// The first argument found at fault.
    pub(crate) fn check(&self, dims: [usize; 2], shape: &ProblemShape) -> Result<(), Error> {
        self.extents().check(dims, shape)
    }
}

/// An [`Output`] that several threads write, each its own part: tasks of a [`Plan`](crate::Plan), and
/// [`combine`](crate::combine).
///
/// Two threads that write the same row leave one of the numbers of either. O is written number by number, which takes three
/// times as long as writes by one thread alone.
#[derive(Clone, Copy, Debug)]
pub struct SharedOutput<'a> {
    /// As [`Output::o`].
    pub o: SharedElements<'a>,
    /// As [`Output::o_strides`].
    pub o_strides: [usize; 3],
    /// As [`Output::lse`].
    pub lse: Option<&'a [AtomicU32]>,
    /// As [`Output::lse_strides`].
    pub lse_strides: [usize; 3],
    /// As [`Output::max_logits`].
    pub max_logits: Option<&'a [AtomicU32]>,
    /// As [`Output::lse_format`].
    pub lse_format: Lse,
}

impl SharedOutput<'_> {
    /// As [`Output::check`].
    pub(crate) fn check(&self, dims: [usize; 2], shape: &ProblemShape) -> Result<(), Error> {
        let extents = Extents {
            o: self.o.len(),
            o_strides: self.o_strides,
            lse: [self.lse, self.max_logits].map(|rows| rows.map(<[_]>::len)),
            lse_strides: self.lse_strides,
        };
        extents.check(dims, shape)
    }
}

/// Lengths and strides of an output's buffers.
struct Extents {
    o: usize,
    o_strides: [usize; 3],
    /// Of lse and of the largest scores, where they are wanted.
    lse: [Option<usize>; 2],
    lse_strides: [usize; 3],
}

impl Extents {
    fn check(&self, [b, s_q]: [usize; 2], s: &ProblemShape) -> Result<(), Error> {
        let o = [b, s_q, s.h_q];
        check_extent(Argument::O, self.o, o, self.o_strides, s.d_v)?;
        check_disjoint(Argument::O, o, self.o_strides, s.d_v)?;
        let lse = [b, s.h_q, s_q];
        for (argument, len) in [Argument::Lse, Argument::MaxLogits]
            .into_iter()
            .zip(self.lse)
        {
            if let Some(len) = len {
                check_extent(argument, len, lse, self.lse_strides, 1)?;
                check_disjoint(argument, lse, self.lse_strides, 1)?;
            }
        }
        Ok(())
    }
}
