//! The sequences of a batch: their number, lengths and tokens.
//!
//! A sequence is a run of keys with the query positions that attend to it. It is a request, or one query
//! position of it where each chooses its keys ([`Sparse`](super::Sparse)). Functions number sequences in
//! `b`, and the query positions within one in `j`.

use core::ops::Range;

use super::{Indices, Problem};

impl Problem<'_> {
    /// The sequences from one on. Requests with fewer query positions than others leave numbers out, where each
    /// position is a sequence.
    pub(crate) fn sequences_from(&self, first: usize) -> impl Iterator<Item = usize> {
        let problem = *self;
        let each = match self.sparse {
            Some(_) => self.shape.s_q,
            None => 1,
        };
        let (request, position) = (first / each, first % each);
        (request..self.shape.b).flat_map(move |b| {
            let from = if b == request { position } else { 0 };
            (from..problem.sequences_of(b)).map(move |j| b * each + j)
        })
    }

    /// Sequences of a request.
    fn sequences_of(&self, request: usize) -> usize {
        match self.sparse {
            Some(_) => self.positions(request),
            None => 1,
        }
    }

    /// Query positions of a request.
    pub(crate) fn positions(&self, request: usize) -> usize {
        self.q_indptr
            .map_or(self.shape.s_q, |indptr| segment(indptr, request).len())
    }

    /// The sequence of position `j` of request `b`, and the position within it.
    pub(crate) fn sequence(&self, b: usize, j: usize) -> (usize, usize) {
        match self.sparse {
            Some(_) => (b * self.shape.s_q + j, 0),
            None => (b, j),
        }
    }

    /// Runs of a request's sequences that have the same numbers of keys and queries: the first of each, and how
    /// many there are.
    pub(crate) fn runs(&self, request: usize) -> impl Iterator<Item = (usize, usize)> {
        let problem = *self;
        let count = self.sequences_of(request);
        let mut lists = self.topk_lengths().into_iter().flatten();
        let alike = lists.all(|lengths| lengths.strides[1] == 0);
        let each = if alike { count.max(1) } else { 1 };
        let firsts = (0..count).step_by(each);
        firsts.map(move |j| (problem.sequence(request, j).0, each))
    }

    /// Whether all requests have the same numbers of keys and queries.
    pub(crate) fn has_equal_requests(&self) -> bool {
        let keys = match self.sparse {
            Some(_) => {
                let mut lists = self.topk_lengths().into_iter().flatten();
                lists.all(|lengths| lengths.strides[0] == 0)
            }
            None => {
                let strided = self.cache_seqlens.is_some() && self.cache_seqlens_stride > 0;
                self.kv_indptr.is_none() && !strided
            }
        };
        keys && self.q_indptr.is_none()
    }

    /// How many indices count for each query position: of the first cache, and of the second.
    pub(crate) fn topk_lengths(&self) -> [Option<Lengths<'_>>; 2] {
        let dims = self.q_dims();
        let extra = self.sparse.and_then(|sparse| sparse.extra);
        [
            self.sparse.map(|sparse| sparse.indices),
            extra.map(|extra| extra.indices),
        ]
        .map(|indices| indices?.lengths(dims))
    }

    /// Keys of sequence `b`.
    pub(crate) fn len(&self, b: usize) -> usize {
        match &self.sparse {
            Some(sparse) => {
                let at = self.token(b, 0);
                let extra = sparse.extra.map_or(0, |extra| extra.indices.len(at));
                sparse.indices.len(at) + extra
            }
            None => self.cached(b),
        }
    }

    /// The requests' numbers of keys in [`cache_seqlens`](Self::cache_seqlens), and for how many requests each stands.
    pub(crate) fn seqlens(&self) -> impl Iterator<Item = (i32, usize)> {
        let lengths = self.cache_seqlens.map(|list| Lengths {
            list,
            dims: [self.shape.b, 1],
            strides: [self.cache_seqlens_stride, 0],
        });
        let runs = lengths.into_iter().flat_map(Lengths::runs);
        runs.map(|(_, length, count)| (length, count))
    }

    /// Keys that the cache holds of a request.
    pub(super) fn cached(&self, request: usize) -> usize {
        match (self.cache_seqlens, self.kv_indptr) {
            (Some(lens), _) => {
                usize::try_from(lens[request * self.cache_seqlens_stride]).unwrap_or_default()
            }
            (None, Some(indptr)) => segment(indptr, request).len(),
            (None, None) => self.shape.s_k,
        }
    }

    /// Query positions of sequence `b`.
    pub(crate) fn queries(&self, b: usize) -> usize {
        match self.sparse {
            Some(_) => 1,
            None => self.positions(b),
        }
    }

    /// The first two indices of query position `j` in tensors of queries and outputs.
    pub(crate) fn token(&self, b: usize, j: usize) -> [usize; 2] {
        let [request, position] = match self.sparse {
            Some(_) => [b / self.shape.s_q, b % self.shape.s_q],
            None => [b, j],
        };
        match self.q_indptr {
            Some(indptr) => [0, segment(indptr, request).start + position],
            None => [request, position],
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

impl<'a> Indices<'a> {
    /// Indices that count for a query position, by its indices in tensors of queries.
    pub(super) fn len(&self, [b, j]: [usize; 2]) -> usize {
        let [over_b, over_j] = self.topk_length_strides;
        self.topk_length.map_or(self.topk, |lengths| {
            usize::try_from(lengths[b * over_b + j * over_j]).unwrap_or_default()
        })
    }

    /// How many count for each query position, of which there are `dims`.
    pub(super) fn lengths(&self, dims: [usize; 2]) -> Option<Lengths<'a>> {
        self.topk_length.map(|list| Lengths {
            list,
            dims,
            strides: self.topk_length_strides,
        })
    }
}

/// A number for each query position.
#[derive(Clone, Copy)]
pub(crate) struct Lengths<'a> {
    pub list: &'a [i32],
    /// Those of queries.
    pub dims: [usize; 2],
    pub strides: [usize; 2],
}

impl<'a> Lengths<'a> {
    /// The list's numbers, each once, with the first two indices of the first query position that has it, and for how many it
    /// stands. The list was checked.
    pub(crate) fn runs(self) -> impl Iterator<Item = ([usize; 2], i32, usize)> + use<'a> {
        let Self {
            list,
            dims,
            strides,
        } = self;
        let distinct = [0, 1].map(|i| {
            if strides[i] == 0 {
                dims[i].min(1)
            } else {
                dims[i]
            }
        });
        let repeats = [0, 1].map(|i| dims[i] / distinct[i].max(1));
        let count = repeats[0].saturating_mul(repeats[1]);
        (0..distinct[0])
            .flat_map(move |b| (0..distinct[1]).map(move |j| [b, j]))
            .map(move |at| (at, list[at[0] * strides[0] + at[1] * strides[1]], count))
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
