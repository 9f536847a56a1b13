//! The sequences of a batch: their number, lengths and tokens.
//!
//! A sequence is a run of keys with the query positions that attend to it. It is a request, or one query
//! position of it where each chooses its keys ([`Sparse`](super::Sparse)). Functions number sequences in
//! `b`, and the query positions within one in `j`.

use core::ops::Range;

use super::{Indices, Problem};

impl Problem<'_> {
    /// Sequences of the batch.
    pub(crate) fn sequences(&self) -> usize {
        match self.sparse {
            Some(_) => self.shape.b * self.shape.s_q,
            None => self.shape.b,
        }
    }

    /// The sequence of position `j` of request `b`, and the position within it.
    pub(crate) fn sequence(&self, b: usize, j: usize) -> (usize, usize) {
        match self.sparse {
            Some(_) => (b * self.shape.s_q + j, 0),
            None => (b, j),
        }
    }

    /// Keys of sequence `b`.
    pub(crate) fn len(&self, b: usize) -> usize {
        match &self.sparse {
            Some(sparse) => {
                let request = b / self.shape.s_q;
                sparse.indices.len(request)
                    + sparse.extra.map_or(0, |extra| extra.indices.len(request))
            }
            None => self.cached(b),
        }
    }

    /// Keys that the cache holds of a request.
    pub(super) fn cached(&self, request: usize) -> usize {
        match (self.cache_seqlens, self.kv_indptr) {
            (Some(lens), _) => usize::try_from(lens[request]).unwrap_or_default(),
            (None, Some(indptr)) => segment(indptr, request).len(),
            (None, None) => self.shape.s_k,
        }
    }

    /// Query positions of sequence `b`.
    pub(crate) fn queries(&self, b: usize) -> usize {
        if self.sparse.is_some() {
            return 1;
        }
        self.q_indptr
            .map_or(self.shape.s_q, |indptr| segment(indptr, b).len())
    }

    /// The first two indices of query position `j` in tensors of queries and outputs.
    pub(crate) fn token(&self, b: usize, j: usize) -> [usize; 2] {
        if self.sparse.is_some() {
            return [b / self.shape.s_q, b % self.shape.s_q];
        }
        match self.q_indptr {
            Some(indptr) => [0, segment(indptr, b).start + j],
            None => [b, j],
        }
    }

    /// The first two dimensions of tensors of queries and outputs.
    pub(crate) fn q_dims(&self) -> [usize; 2] {
        match self.q_indptr {
            Some(indptr) => [1, total_rows(indptr)],
            None => [self.shape.b, self.shape.s_q],
        }
    }
}

impl Indices<'_> {
    /// Indices that count for a request.
    pub(super) fn len(&self, request: usize) -> usize {
        self.topk_length.map_or(self.topk, |lengths| {
            usize::try_from(lengths[request]).unwrap_or_default()
        })
    }
}

/// The rows of request `b` in a ragged tensor. The offsets were checked.
pub(super) fn segment(indptr: &[i32], b: usize) -> Range<usize> {
    let [start, end] = [indptr[b], indptr[b + 1]].map(|x| usize::try_from(x).unwrap_or_default());
    start..end
}

/// The rows of a ragged tensor: the end of the last request's.
pub(super) fn total_rows(indptr: &[i32]) -> usize {
    let end = indptr.last().copied().unwrap_or_default();
    usize::try_from(end).unwrap_or_default()
}
