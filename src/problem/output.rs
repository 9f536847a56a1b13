//! Where results go.

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

    /// The elements before `at`, and those from it on.
    #[cfg(feature = "rayon")]
    pub(crate) fn split_at(self, at: usize) -> [Self; 2] {
        match self {
            Self::Bf16(data) => <[_; 2]>::from(data.split_at_mut(at)).map(Elements::Bf16),
            Self::F16(data) => <[_; 2]>::from(data.split_at_mut(at)).map(Elements::F16),
            Self::F32(data) => <[_; 2]>::from(data.split_at_mut(at)).map(Elements::F32),
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

    /// Checks that the buffers have every element of the results, none of them twice. `[b, s_q]` are
    /// the dimensions of queries.
    ///
    /// # Errors
    /// The first argument found at fault.
    pub(crate) fn check(&self, [b, s_q]: [usize; 2], s: &ProblemShape) -> Result<(), Error> {
        let o = [b, s_q, s.h_q];
        check_extent(Argument::O, self.o.len(), o, self.o_strides, s.d_v)?;
        check_disjoint(Argument::O, o, self.o_strides, s.d_v)?;
        let lse = [b, s.h_q, s_q];
        for (argument, rows) in [
            (Argument::Lse, &self.lse),
            (Argument::MaxLogits, &self.max_logits),
        ] {
            if let Some(rows) = rows {
                check_extent(argument, rows.len(), lse, self.lse_strides, 1)?;
                check_disjoint(argument, lse, self.lse_strides, 1)?;
            }
        }
        Ok(())
    }
}
