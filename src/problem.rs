//! What is to be computed: shapes, tensors and options, and their validation.

use half::bf16;

use crate::error::{Argument, Error};
use crate::shape::Shape;

/// A borrowed BF16 tensor whose last dimension is contiguous.
///
/// `strides` are in elements and cover every dimension but the last.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a, const RANK: usize> {
    /// The elements.
    pub data: &'a [bf16],
    /// Elements from one index to the next, outermost dimension first.
    pub strides: [usize; RANK],
}

impl<'a> Tensor<'a, 3> {
    /// Row `(i, j, k)`, `width` elements wide. The extent was checked.
    pub(crate) fn row(&self, [i, j, k]: [usize; 3], width: usize) -> &'a [bf16] {
        let start = i * self.strides[0] + j * self.strides[1] + k * self.strides[2];
        &self.data[start..start + width]
    }
}

impl<'a> Tensor<'a, 2> {
    /// Row `(i, j)`, `width` elements wide. The extent was checked.
    pub(crate) fn row(&self, [i, j]: [usize; 2], width: usize) -> &'a [bf16] {
        let start = i * self.strides[0] + j * self.strides[1];
        &self.data[start..start + width]
    }
}

/// One batched MLA decode: `O = softmax(softmax_scale * Q K^T) V` per request.
#[derive(Clone, Copy, Debug)]
pub struct Problem<'a> {
    /// The sizes.
    pub shape: Shape,
    /// Absorbed queries, `[b, s_q, h_q, d_qk]`.
    pub q: Tensor<'a, 3>,
    /// Latent cache, `[b, s_k, d_qk]`; unless `v` is given, its first `d_v`
    /// columns are the values.
    pub kv: Tensor<'a, 2>,
    /// Separate values, `[b, s_k, d_v]`.
    pub v: Option<Tensor<'a, 2>>,
    /// Valid keys of each request, `[b]`, at most `s_k`; all of them if absent.
    /// Rows beyond are never read.
    pub cache_seqlens: Option<&'a [i32]>,
    /// Whether query `j` sees only the first `len - (s_q - 1 - j)` keys.
    pub causal: bool,
    /// Factor on the scores; finite, and so is its product with `log2(e)`.
    pub softmax_scale: f32,
}

impl<'a> Problem<'a> {
    /// A problem over dense tensors, every key visible to every query.
    #[must_use]
    pub const fn dense(shape: Shape, q: &'a [bf16], kv: &'a [bf16], softmax_scale: f32) -> Self {
        let q_row = shape.h_q.saturating_mul(shape.d_qk);
        Self {
            shape,
            q: Tensor {
                data: q,
                strides: [q_row.saturating_mul(shape.s_q), q_row, shape.d_qk],
            },
            kv: Tensor {
                data: kv,
                strides: [shape.s_k.saturating_mul(shape.d_qk), shape.d_qk],
            },
            v: None,
            cache_seqlens: None,
            causal: false,
            softmax_scale,
        }
    }

    /// `log2(e) * softmax_scale`, rounded once: takes scores to log2 units.
    #[expect(clippy::cast_possible_truncation, reason = "rounds to FP32")]
    pub(crate) fn log2_scale(&self) -> f32 {
        (f64::from(self.softmax_scale) * core::f64::consts::LOG2_E) as f32
    }

    /// Keys of request `b`.
    pub(crate) fn len(&self, b: usize) -> usize {
        self.cache_seqlens.map_or(self.shape.s_k, |lens| {
            usize::try_from(lens[b]).unwrap_or_default()
        })
    }

    /// Keys that query position `j` of request `b` sees.
    pub(crate) fn visible(&self, b: usize, j: usize) -> usize {
        let hidden = if self.causal {
            self.shape.s_q - 1 - j
        } else {
            0
        };
        self.len(b).saturating_sub(hidden)
    }

    /// Key `k` of request `b`.
    pub(crate) fn key(&self, b: usize, k: usize) -> &'a [bf16] {
        self.kv.row([b, k], self.shape.d_qk)
    }

    /// Value `k` of request `b`.
    pub(crate) fn value(&self, b: usize, k: usize) -> &'a [bf16] {
        self.v
            .as_ref()
            .unwrap_or(&self.kv)
            .row([b, k], self.shape.d_v)
    }

    /// Checks every argument, whatever the widths.
    ///
    /// # Errors
    /// The first argument found at fault.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let s = &self.shape;
        // Key indices travel in 32-bit lanes.
        let max = i32::MAX as usize;
        for (argument, value, min) in [
            (Argument::SQ, s.s_q, 1),
            (Argument::SK, s.s_k, 0),
            (Argument::HQ, s.h_q, 1),
            (Argument::DQk, s.d_qk, 1),
            (Argument::DV, s.d_v, 1),
        ] {
            in_range(argument, value, min, max)?;
        }
        if self.v.is_none() {
            in_range(Argument::DV, s.d_v, 1, s.d_qk)?;
        }
        if !self.log2_scale().is_finite() {
            return Err(Error::NonFiniteScale {
                value: self.softmax_scale,
            });
        }
        reaches(
            Argument::Q,
            self.q.data.len(),
            [s.b, s.s_q, s.h_q],
            self.q.strides,
            s.d_qk,
        )?;
        reaches(
            Argument::Kv,
            self.kv.data.len(),
            [s.b, s.s_k],
            self.kv.strides,
            s.d_qk,
        )?;
        if let Some(v) = &self.v {
            reaches(Argument::V, v.data.len(), [s.b, s.s_k], v.strides, s.d_v)?;
        }
        if let Some(lens) = self.cache_seqlens {
            if lens.len() != s.b {
                return Err(Error::WrongLength {
                    argument: Argument::CacheSeqlens,
                    len: lens.len(),
                    expected: s.b,
                });
            }
            for (request, &value) in lens.iter().enumerate() {
                if !usize::try_from(value).is_ok_and(|len| len <= s.s_k) {
                    return Err(Error::Seqlen {
                        request,
                        value,
                        limit: s.s_k,
                    });
                }
            }
        }
        Ok(())
    }
}

/// Where the output's elements go, and in which format.
#[derive(Debug)]
pub enum Elements<'a> {
    /// Rounded to nearest even.
    Bf16(&'a mut [bf16]),
    /// Unrounded.
    F32(&'a mut [f32]),
}

impl Elements<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Bf16(data) => data.len(),
            Self::F32(data) => data.len(),
        }
    }
}

/// Where results go.
///
/// A row that sees no key gets `O = 0` and `lse = +inf` (FlashMLA's convention).
#[derive(Debug)]
pub struct Output<'a> {
    /// `[b, s_q, h_q, d_v]`, the last dimension contiguous.
    pub o: Elements<'a>,
    /// Strides of `o` over `(b, s_q, h_q)`, in elements.
    pub o_strides: [usize; 3],
    /// `[b, h_q, s_q]`: natural logarithm of the sum of exponentials.
    pub lse: &'a mut [f32],
    /// Strides of `lse` over `(b, h_q, s_q)`, in elements.
    pub lse_strides: [usize; 3],
}

impl<'a> Output<'a> {
    /// Dense outputs.
    #[must_use]
    pub const fn dense(shape: Shape, o: Elements<'a>, lse: &'a mut [f32]) -> Self {
        let row = shape.h_q.saturating_mul(shape.d_v);
        Self {
            o,
            o_strides: [row.saturating_mul(shape.s_q), row, shape.d_v],
            lse,
            lse_strides: [shape.h_q.saturating_mul(shape.s_q), shape.s_q, 1],
        }
    }

    /// Checks that every element of the shape has a place of its own.
    ///
    /// # Errors
    /// The first argument found at fault.
    pub(crate) fn check(&self, s: &Shape) -> Result<(), Error> {
        let o = [s.b, s.s_q, s.h_q];
        reaches(Argument::O, self.o.len(), o, self.o_strides, s.d_v)?;
        disjoint(Argument::O, o, self.o_strides, s.d_v)?;
        let lse = [s.b, s.h_q, s.s_q];
        reaches(Argument::Lse, self.lse.len(), lse, self.lse_strides, 1)?;
        disjoint(Argument::Lse, lse, self.lse_strides, 1)
    }
}

pub(crate) const fn in_range(
    argument: Argument,
    value: usize,
    min: usize,
    max: usize,
) -> Result<(), Error> {
    if value < min || value > max {
        return Err(Error::OutOfRange {
            argument,
            value,
            min,
            max,
        });
    }
    Ok(())
}

/// The buffer of `len` elements reaches the last row of `dims`.
fn reaches<const RANK: usize>(
    argument: Argument,
    len: usize,
    dims: [usize; RANK],
    strides: [usize; RANK],
    width: usize,
) -> Result<(), Error> {
    if dims.contains(&0) {
        return Ok(());
    }
    let mut needed = width;
    for (dimension, (dim, stride)) in dims.into_iter().zip(strides).enumerate() {
        needed = (dim - 1)
            .checked_mul(stride)
            .and_then(|extent| needed.checked_add(extent))
            .ok_or(Error::Overflow {
                argument,
                dimension,
            })?;
    }
    if len < needed {
        return Err(Error::TooShort {
            argument,
            len,
            needed,
        });
    }
    Ok(())
}

/// No two rows of an output share an element: taken from the smallest stride
/// up, each stride steps over everything inside it.
fn disjoint<const RANK: usize>(
    argument: Argument,
    dims: [usize; RANK],
    strides: [usize; RANK],
    width: usize,
) -> Result<(), Error> {
    if dims.contains(&0) {
        return Ok(());
    }
    let mut order = [0; RANK];
    for (i, place) in order.iter_mut().enumerate() {
        *place = i;
    }
    order.sort_unstable_by_key(|&i| strides[i]);
    let mut extent = width;
    for dimension in order {
        if dims[dimension] < 2 {
            continue;
        }
        let stride = strides[dimension];
        if stride < extent {
            return Err(Error::Overlap {
                argument,
                dimension,
                stride,
                min: extent,
            });
        }
        extent = extent.saturating_add((dims[dimension] - 1).saturating_mul(stride));
    }
    Ok(())
}

/// How the output accumulator follows the running maximum (`docs/algorithm.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Rescale {
    /// The reference exponent is an integer, so that every rescale is an exact
    /// power of two and most blocks need none.
    #[default]
    Exact,
    /// Algorithm 2 with the compensation of the paper's appendix. With
    /// [`Precision::Bf16x2`] there is nothing to compensate.
    Compensated,
}

/// How P enters the second matrix product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Precision {
    /// One BF16 per probability.
    #[default]
    Bf16,
    /// A BF16 pair, high and low part: about 16 bits, for twice the work in C2.
    Bf16x2,
}
