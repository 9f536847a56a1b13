//! The checks of a problem: each argument has what the sizes demand of it.

use super::kv::MAX_WIDTH;
use super::sequence::{segment, total_rows};
use super::{Indices, Problem, Sparse, TensorRef};
use crate::error::{Argument, Error, right_length};
use crate::format::{Data, MODEL1_SCALES};
use crate::schedule::Split;
use crate::shape::ProblemShape;

impl Problem<'_> {
    /// Checks every argument. The widths may be any.
    ///
    /// # Errors
    /// The first argument found at fault.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.check_sizes()?;
        // Without a table or keys there is nothing to see, and b may be huge.
        let Some(pages) = &self.pages else {
            return Ok(());
        };
        if self.sparse.is_some() || self.shape.s_k == 0 {
            return Ok(());
        }
        // As where one request's entries are all of them.
        let alike = pages.stride == 0 && self.has_equal_requests();
        let b = self.shape.b.min(if alike { 1 } else { usize::MAX });
        (0..b).try_for_each(|b| self.check_pages(b))
    }

    /// [`check`](Self::check) but for the block table.
    pub(crate) fn check_sizes(&self) -> Result<(), Error> {
        let s = &self.shape;
        // Key indices travel in 32-bit lanes.
        let max = i32::MAX as usize;
        for (argument, value, min) in [
            (Argument::SQ, s.s_q, 1),
            (Argument::SK, s.s_k, 0),
            (Argument::HQ, s.h_q, 1),
            (Argument::HKv, s.h_kv, 1),
            (Argument::DQk, s.d_qk, 1),
            (Argument::DV, s.d_v, 1),
        ] {
            in_range(argument, value, min, max)?;
        }
        s.check_heads()?;
        let split = self.q_rope.is_some() || self.k_rope.is_some();
        if split || self.v.is_none() {
            in_range(Argument::DV, s.d_v, 1, s.d_qk - usize::from(split))?;
        }
        if !self.log2_scale().is_finite() {
            return Err(Error::NonFiniteScale {
                value: self.softmax_scale,
            });
        }
        let sparse = self.sparse.map(|_| Argument::Indices);
        let extra = self.sparse.and_then(|sparse| sparse.extra);
        let extra = extra.map(|_| Argument::ExtraKv);
        let v_offset = (self.v_offset != 0).then_some(Argument::VOffset);
        for (first, second) in [
            (sparse, self.causal.then_some(Argument::Causal)),
            (sparse, self.window.map(|_| Argument::Window)),
            (sparse, self.tail_mask.map(|_| Argument::TailMask)),
            (extra, self.k_rope.map(|_| Argument::KRope)),
            (extra, self.v.map(|_| Argument::V)),
            (v_offset, self.v.map(|_| Argument::V)),
            (
                self.pages.map(|_| Argument::BlockTable),
                self.kv_indptr.map(|_| Argument::KvIndptr),
            ),
            (
                self.tail_mask.map(|_| Argument::TailMask),
                self.causal.then_some(Argument::Causal),
            ),
        ] {
            if let (Some(first), Some(second)) = (first, second) {
                return Err(Error::Conflict { first, second });
            }
        }
        self.check_queries()?;
        self.check_keys()?;
        if let Some(mask) = &self.tail_mask {
            in_range(Argument::TailMask, mask.tail, 1, max)?;
            let [b, s_q] = self.q_dims();
            let words = mask.tail.div_ceil(64);
            check_extent(
                Argument::TailMask,
                mask.words.len(),
                [b, s_q],
                [s_q.saturating_mul(words), words],
                words,
            )?;
        }
        if let Some(sparse) = &self.sparse {
            self.check_sparse(sparse)?;
        }
        if let Some(window) = self.window {
            in_range(Argument::Window, window, 1, usize::MAX)?;
        }
        self.split.check()?;
        if let Some(sink) = self.sink {
            right_length(Argument::Sink, sink.len(), s.h_q)?;
        }
        Ok(())
    }

    fn check_sparse(&self, sparse: &Sparse<'_>) -> Result<(), Error> {
        let s = &self.shape;
        // Sequences and keys are counted.
        s.b.checked_mul(s.s_q).ok_or(Error::Overflow {
            argument: Argument::Indices,
            dimension: 0,
        })?;
        in_range(Argument::DQk, s.d_qk, 1, MAX_WIDTH)?;
        in_range(Argument::DV, s.d_v, 1, MAX_WIDTH)?;
        let [b, s_q] = self.q_dims();
        let dims = [b, s_q, s.h_kv];
        let limit = i32::MAX as usize / 2;
        sparse
            .indices
            .check(Argument::Indices, Argument::TopkLength, dims, limit)?;
        let Some(extra) = &sparse.extra else {
            return Ok(());
        };
        in_range(Argument::PageSize, extra.page_size, 1, usize::MAX)?;
        let tensors = [(Argument::ExtraKv, Some(&extra.kv), s.d_qk)];
        check_tensors(tensors, [extra.pages, extra.page_size, s.h_kv])?;
        let (indices, length) = (Argument::ExtraIndices, Argument::ExtraTopkLength);
        extra.indices.check(indices, length, dims, limit)
    }

    fn check_queries(&self) -> Result<(), Error> {
        let s = &self.shape;
        if let Some(indptr) = self.q_indptr {
            check_indptr(Argument::QIndptr, indptr, s.b, s.s_q)?;
        }
        let [b, s_q] = self.q_dims();
        let [width, rope] = self.q_widths();
        let tensors = [
            (Argument::Q, Some(&self.q), width),
            (Argument::QRope, self.q_rope.as_ref(), rope),
        ];
        check_tensors(tensors, [b, s_q, s.h_q])
    }

    fn check_keys(&self) -> Result<(), Error> {
        let s = &self.shape;
        if let Some(indptr) = self.kv_indptr {
            check_indptr(Argument::KvIndptr, indptr, s.b, s.s_k)?;
        }
        if let Some(lens) = self.cache_seqlens {
            let stride = self.cache_seqlens_stride;
            check_list(Argument::CacheSeqlens, lens.len(), [s.b], [stride])?;
            // One by one they may be without number.
            let alike = stride == 0 && self.kv_indptr.is_none();
            let b = s.b.min(if alike { 1 } else { usize::MAX });
            for (request, value) in (0..b).map(|request| (request, lens[request * stride])) {
                let limit = self
                    .kv_indptr
                    .map_or(s.s_k, |indptr| segment(indptr, request).len());
                if !usize::try_from(value).is_ok_and(|len| len <= limit) {
                    return Err(Error::Seqlen {
                        request,
                        value,
                        limit,
                    });
                }
            }
        }
        let [outer, tokens] = match (&self.pages, self.kv_indptr) {
            (Some(pages), _) => {
                in_range(Argument::PageSize, pages.page_size, 1, usize::MAX)?;
                // Entries of a block table have 32 bits.
                let most = self.sparse.map_or(i32::MAX as usize, |_| usize::MAX);
                in_range(Argument::Pages, pages.pages, 0, most)?;
                [pages.pages, pages.page_size]
            }
            (None, Some(indptr)) => [1, total_rows(indptr)],
            (None, None) => [s.b, s.s_k],
        };
        let [width, rope] = self.k_widths();
        let tensors = [
            (Argument::Kv, Some(&self.kv), width),
            (Argument::KRope, self.k_rope.as_ref(), rope),
            (Argument::V, self.v.as_ref(), s.d_v),
        ];
        check_tensors(tensors, [outer, tokens, s.h_kv])?;
        self.check_values()
    }

    /// Checks where values begin, unless they are a tensor of their own.
    fn check_values(&self) -> Result<(), Error> {
        if self.v.is_some() {
            return Ok(());
        }
        let [width, _] = self.k_widths();
        let extra = match &self.sparse {
            Some(sparse) => sparse.extra.as_ref(),
            None => None,
        };
        let at_column = |rows: &TensorRef<'_>| rows.data.has_column(self.v_offset);
        let last = if at_column(&self.kv) && extra.is_none_or(|extra| at_column(&extra.kv)) {
            width - self.shape.d_v
        } else {
            0
        };
        in_range(Argument::VOffset, self.v_offset, 0, last)
    }

    /// Checks the block table's entries for the keys of request `b`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Overflow`] or [`Error::TooShort`] if the table lacks entries,
    /// [`Error::Page`] for the first entry that is no page.
    pub(crate) fn check_pages(&self, b: usize) -> Result<(), Error> {
        let (Some(pages), None) = (&self.pages, &self.sparse) else {
            return Ok(());
        };
        let blocks = self.len(b).div_ceil(pages.page_size);
        if blocks == 0 {
            return Ok(());
        }
        in_range(Argument::BlockTable, blocks, 0, pages.max_blocks)?;
        let overflow = Error::Overflow {
            argument: Argument::BlockTable,
            dimension: 0,
        };
        let start = b.checked_mul(pages.stride).ok_or(overflow)?;
        let end = start.checked_add(blocks).ok_or(overflow)?;
        let entries = pages.block_table.get(start..end).ok_or(Error::TooShort {
            argument: Argument::BlockTable,
            len: pages.block_table.len(),
            needed: end,
        })?;
        let first = self.span(b).start / pages.page_size;
        for (index, &value) in entries.iter().enumerate().skip(first) {
            if !usize::try_from(value).is_ok_and(|page| page < pages.pages) {
                return Err(Error::Page {
                    request: b,
                    index,
                    value,
                    limit: pages.pages,
                });
            }
        }
        Ok(())
    }
}

// -------------------------------------------------------------------------------------------------
// Parts of a problem
// -------------------------------------------------------------------------------------------------

impl Indices<'_> {
    fn check(
        &self,
        indices: Argument,
        length: Argument,
        [b, s_q, h_kv]: [usize; 3],
        limit: usize,
    ) -> Result<(), Error> {
        in_range(indices, self.topk, 0, limit)?;
        let dims = [b, s_q, h_kv];
        check_extent(indices, self.indices.len(), dims, self.strides, self.topk)?;
        let Some(lengths) = self.lengths([b, s_q]) else {
            return Ok(());
        };
        check_list(length, lengths.list.len(), lengths.dims, lengths.strides)?;
        for ([request, position], value, _) in lengths.runs() {
            if !usize::try_from(value).is_ok_and(|len| len <= self.topk) {
                return Err(Error::TopkLength {
                    argument: length,
                    request,
                    position,
                    value,
                    limit: self.topk,
                });
            }
        }
        Ok(())
    }
}

fn check_indptr(argument: Argument, indptr: &[i32], b: usize, limit: usize) -> Result<(), Error> {
    right_length(argument, indptr.len(), b.saturating_add(1))?;
    for (request, ends) in indptr.windows(2).enumerate() {
        let (start, end) = (ends[0], ends[1]);
        let rows = usize::try_from(i64::from(end) - i64::from(start));
        if start < 0 || !rows.is_ok_and(|rows| rows <= limit) {
            return Err(Error::Indptr {
                argument,
                request,
                start,
                end,
                limit,
            });
        }
    }
    Ok(())
}

fn check_tensors<const N: usize>(
    tensors: [(Argument, Option<&TensorRef<'_>>, usize); N],
    dims: [usize; 3],
) -> Result<(), Error> {
    for (argument, tensor, width) in tensors {
        let Some(TensorRef { data, strides }) = tensor else {
            continue;
        };
        let width = data
            .row_len(width)
            .ok_or(Error::Format { argument, width })?;
        check_extent(argument, data.len(), dims, *strides, width)?;
        match *data {
            Data::Model1 {
                bytes,
                scales,
                scale_stride,
            } => {
                // Scales have no dimension of heads.
                let heads = match argument {
                    Argument::Q | Argument::QRope => Argument::HQ,
                    _ => Argument::HKv,
                };
                in_range(heads, dims[2], 1, 1)?;
                let width = scales.saturating_add(MODEL1_SCALES);
                check_extent(
                    Argument::Scales,
                    bytes.len(),
                    dims,
                    [strides[0], scale_stride, 0],
                    width,
                )?;
            }
            Data::Int8 {
                scales, strides, ..
            }
            | Data::E4m3 {
                scales, strides, ..
            } => check_extent(Argument::Scales, scales.len(), dims, strides, 1)?,
            _ => {}
        }
    }
    Ok(())
}

/// Errs with [`Error::OutOfRange`] unless `value` is in `min..=max`.
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

/// A buffer of `len` elements must have the last row of `dims`, `width` elements wide.
pub(super) fn check_extent<const RANK: usize>(
    argument: Argument,
    len: usize,
    dims: [usize; RANK],
    strides: [usize; RANK],
    width: usize,
) -> Result<(), Error> {
    let needed = extent(argument, dims, strides, width)?;
    if len < needed {
        return Err(Error::TooShort {
            argument,
            len,
            needed,
        });
    }
    Ok(())
}

/// A list of `len` numbers must end with the last of `dims`.
fn check_list<const RANK: usize>(
    argument: Argument,
    len: usize,
    dims: [usize; RANK],
    strides: [usize; RANK],
) -> Result<(), Error> {
    right_length(argument, len, extent(argument, dims, strides, 1)?)
}

/// Elements up to the end of the last row of `dims`, `width` elements wide.
fn extent<const RANK: usize>(
    argument: Argument,
    dims: [usize; RANK],
    strides: [usize; RANK],
    width: usize,
) -> Result<usize, Error> {
    if dims.contains(&0) {
        return Ok(0);
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
    Ok(needed)
}

/// No two rows of an output may share an element. From the smallest stride up, each stride must
/// step over everything inside it.
pub(super) fn check_disjoint<const RANK: usize>(
    argument: Argument,
    dims: [usize; RANK],
    strides: [usize; RANK],
    width: usize,
) -> Result<(), Error> {
    if dims.contains(&0) {
        return Ok(());
    }
    let mut order = [0; RANK];
    for (i, dimension) in order.iter_mut().enumerate() {
        *dimension = i;
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

impl ProblemShape {
    /// # Errors
    /// Unless there are KV heads, of as many query heads each.
    pub(crate) fn check_heads(&self) -> Result<(), Error> {
        in_range(Argument::HKv, self.h_kv, 1, usize::MAX)?;
        if self.h_q.is_multiple_of(self.h_kv) {
            return Ok(());
        }
        Err(Error::Heads {
            h_q: self.h_q,
            h_kv: self.h_kv,
        })
    }
}

impl Split {
    /// # Errors
    /// [`Error::NotMultiple`].
    pub(crate) fn check(self) -> Result<(), Error> {
        match self {
            Self::Every(value) if value == 0 || !value.is_multiple_of(Self::MULTIPLE) => {
                Err(Error::NotMultiple {
                    argument: Argument::SplitKeys,
                    value,
                    of: Self::MULTIPLE,
                })
            }
            _ => Ok(()),
        }
    }
}
