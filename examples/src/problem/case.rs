//! A problem that owns its tensors.

use std::ops::Range;

use amla::{Pages, Problem, ProblemShape, TailMask};
use half::bf16;

use super::layout::Table;
use super::sparse::SparseKeys;
use super::stored::{Elements, ExpectedIn, Stored};

/// A problem that owns its tensors.
pub struct Case {
    /// The problem's sizes.
    pub shape: ProblemShape,
    pub(super) q: Stored,
    pub(super) q_rope: Option<Stored>,
    /// Runs from 0 to the number of queries.
    pub(super) q_indptr: Option<Vec<i32>>,
    pub(super) kv: Stored,
    pub(super) k_rope: Option<Stored>,
    pub(super) v: Option<Stored>,
    pub(super) pages: Option<Table>,
    pub(super) kv_indptr: Option<Vec<i32>>,
    pub(super) cache_seqlens: Option<Vec<i32>>,
    /// Whether a query sees no key after its own.
    pub causal: bool,
    /// The number of keys up to a query's own that it sees.
    pub window: Option<usize>,
    pub(super) tail_mask: Option<Tail>,
    pub(super) sparse: Option<SparseKeys>,
    pub(super) sink: Option<Vec<f32>>,
    pub(super) softmax_scale: f32,
    /// `[b, s_q, h_q]` of the outputs: `[1, tokens, h_q]` with `q_indptr`.
    pub rows: [usize; 3],
    /// `rows x d_v`
    pub expected_o: Option<Vec<f64>>,
    /// `rows`, but heads before positions.
    pub expected_lse: Option<Vec<f64>>,
    /// The precision of the expected values: BF16's, FP16's or FP32's, the lowest of both tensors.
    pub expected_in: ExpectedIn,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// A tail mask, `tail / 64` words rounded up for each query.
pub(super) struct Tail {
    pub words: Vec<u64>,
    pub tail: usize,
}

impl Case {
    /// A problem over dense tensors, every key visible to every query.
    pub fn dense(shape: ProblemShape, q: Vec<bf16>, kv: Vec<bf16>, softmax_scale: f32) -> Self {
        let rows = [shape.b, shape.s_q, shape.h_q];
        let stored = |values, dims| Stored {
            elements: Elements::Bf16(values),
            dims,
            row: shape.d_qk,
        };
        Self {
            rows,
            shape,
            q: stored(q, rows),
            q_rope: None,
            q_indptr: None,
            kv: stored(kv, [shape.b, shape.s_k, shape.h_kv]),
            k_rope: None,
            v: None,
            pages: None,
            kv_indptr: None,
            cache_seqlens: None,
            causal: false,
            window: None,
            tail_mask: None,
            sparse: None,
            sink: None,
            softmax_scale,
            expected_o: None,
            expected_lse: None,
            expected_in: ExpectedIn::F32,
            notes: Vec::new(),
        }
    }

    /// Formats of queries, keys and separate values.
    pub fn dtypes(&self) -> [Option<&'static str>; 3] {
        let v = self.v.as_ref().map(Stored::dtype);
        [Some(self.q.dtype()), Some(self.kv.dtype()), v]
    }

    /// Applies the command line's masks. Drops expected values that were computed without them.
    pub fn restrict(&mut self, causal: bool, window: Option<usize>) {
        let more = causal && !self.causal;
        let other = window.is_some() && window != self.window;
        self.causal |= causal;
        self.window = window.or(self.window);

        let changed = match (more, other) {
            (false, false) => return,
            (true, false) => "--causal",
            (false, true) => "--window",
            (true, true) => "--causal and --window",
        };
        let [o, lse] = [self.expected_o.take(), self.expected_lse.take()].map(|x| x.is_some());
        self.expected_in = ExpectedIn::F32;
        let expected = match (o, lse) {
            (false, false) => return,
            (true, false) => "expected_o was",
            (false, true) => "expected_lse was",
            (true, true) => "expected_o and expected_lse were",
        };
        self.notes.push(format!(
            "{expected} computed without {changed}: not compared, errors are against Golden"
        ));
    }

    /// The problem, borrowed.
    pub fn problem(&self) -> Problem<'_> {
        Problem {
            q: self.q.tensor(),
            q_rope: self.q_rope.as_ref().map(Stored::tensor),
            q_indptr: self.q_indptr.as_deref(),
            kv: self.kv.tensor(),
            k_rope: self.k_rope.as_ref().map(Stored::tensor),
            v: self.v.as_ref().map(Stored::tensor),
            pages: self.pages.as_ref().map(|table| Pages {
                block_table: &table.entries,
                max_blocks: table.max_blocks,
                stride: table.max_blocks,
                page_size: table.page_size,
                pages: table.pages,
            }),
            kv_indptr: self.kv_indptr.as_deref(),
            cache_seqlens: self.cache_seqlens.as_deref(),
            causal: self.causal,
            window: self.window,
            tail_mask: self.tail_mask.as_ref().map(|mask| TailMask {
                words: &mask.words,
                tail: mask.tail,
            }),
            sparse: self.sparse.as_ref().map(SparseKeys::sparse),
            sink: self.sink.as_deref(),
            ..Problem::dense(self.shape, &[], &[], self.softmax_scale)
        }
    }
}

/// For a case whose problem is valid.
impl Case {
    /// Request and query position of each query, in the outputs' order.
    pub fn positions(&self) -> impl Iterator<Item = [usize; 2]> {
        (0..self.shape.b).flat_map(|b| (0..self.queries(b)).map(move |j| [b, j]))
    }

    /// Floating-point operations of both matrix products, over visible keys only.
    pub fn flop(&self) -> f64 {
        let s = self.shape;
        let keys: usize = self.positions().map(|[b, j]| self.seen(b, j)).sum();
        2.0 * (s.h_q * (s.d_qk + s.d_v)) as f64 * keys as f64
    }

    /// The number of keys that query position `j` of request `b` sees.
    fn seen(&self, b: usize, j: usize) -> usize {
        if let Some(sparse) = &self.sparse {
            return sparse.seen([b, j], self.len(b));
        }
        let visible = self.visible(b, j);
        let Some(mask) = &self.tail_mask else {
            return visible.len();
        };
        let [request, token] = self.token(b, j);
        let words = mask.tail.div_ceil(64);
        let words = &mask.words[(request * self.shape.s_q + token) * words..];
        let hidden = (0..mask.tail).filter(|i| {
            let key = (self.len(b) + i).checked_sub(mask.tail);
            words[i / 64] >> (i % 64) & 1 == 0 && key.is_some_and(|key| visible.contains(&key))
        });
        visible.len() - hidden.count()
    }

    /// The keys that query position `j` of request `b` sees if no tail mask hides them.
    fn visible(&self, b: usize, j: usize) -> Range<usize> {
        let len = self.len(b);
        // One more than the position's own key.
        let end = (len + j + 1).saturating_sub(self.queries(b));
        let start = self.window.map_or(0, |window| end.saturating_sub(window));
        let end = if self.causal { end } else { len };
        start.min(end)..end
    }

    /// Keys of request `b`.
    fn len(&self, b: usize) -> usize {
        match (&self.cache_seqlens, &self.kv_indptr) {
            (Some(lens), _) => usize::try_from(lens[b]).unwrap_or_default(),
            (None, Some(indptr)) => between(indptr, b).len(),
            (None, None) => self.shape.s_k,
        }
    }

    /// Query positions of request `b`.
    fn queries(&self, b: usize) -> usize {
        let indptr = self.q_indptr.as_ref();
        indptr.map_or(self.shape.s_q, |indptr| between(indptr, b).len())
    }

    /// The index of query position `j` of request `b` in tensors of queries.
    fn token(&self, b: usize, j: usize) -> [usize; 2] {
        match &self.q_indptr {
            Some(indptr) => [0, between(indptr, b).start + j],
            None => [b, j],
        }
    }
}

/// The rows of request `b` by offsets.
fn between(indptr: &[i32], b: usize) -> Range<usize> {
    let [start, end] = [indptr[b], indptr[b + 1]].map(|x| usize::try_from(x).unwrap_or_default());
    start..end
}

/// `[b, s_q, h_q]` to `[b, h_q, s_q]`.
pub fn heads_first<T: Copy>(values: &[T], [_, s_q, h_q]: [usize; 3]) -> Vec<T> {
    (0..values.len())
        .map(|i| {
            let (request, head, position) = (i / (h_q * s_q), i / s_q % h_q, i % s_q);
            values[(request * s_q + position) * h_q + head]
        })
        .collect()
}
