//! What is to be computed: sizes, tensors and options.
//!
//! | module | holds |
//! |---|---|
//! | `sequence` | the sequences of a batch, their lengths and tokens |
//! | `kv` | rows of queries, keys and values in memory: paged, ragged, split, sparse |
//! | `mask` | which keys a query sees |
//! | `validate` | the checks of a problem |
//! | `output` | where results go |

mod kv;
mod mask;
mod output;
mod sequence;
mod validate;

use half::bf16;

pub(crate) use kv::Run;
pub use output::{Elements, EmptyLse, Lse, LseBase, Output, SharedElements, SharedOutput};
pub(crate) use validate::in_range;

use crate::format::{Data, Row};
use crate::schedule::Split;
use crate::shape::ProblemShape;

/// A borrowed tensor whose last dimension is contiguous. Its sizes are those of the [`ProblemShape`]; a
/// [`TensorView`](crate::TensorView) has its own.
#[derive(Clone, Copy, Debug)]
pub struct TensorRef<'a> {
    /// The elements.
    pub data: Data<'a>,
    /// Elements from one index to the next of every dimension but the last, outermost dimension
    /// first.
    pub strides: [usize; 3],
}

impl<'a> TensorRef<'a> {
    /// The row at these indices, `width` elements wide. The extent was checked.
    pub(crate) fn row(&self, at: [usize; 3], width: usize) -> Row<'a> {
        self.data.row(at, self.strides, width)
    }
}

/// A cache in pages of equal size, in any order: vLLM's and FlashMLA's.
#[derive(Clone, Copy, Debug)]
pub struct Pages<'a> {
    /// `[b, max_blocks]`: the page that holds keys from `i * page_size` on of a request.
    ///
    /// Some entries are never read: those behind a request's last key, and those of pages that a
    /// window hides from all queries.
    pub block_table: &'a [i32],
    /// Entries of a request.
    pub max_blocks: usize,
    /// Entries of `block_table` from one request to the next: `max_blocks` where they are contiguous, 0
    /// where requests share them.
    pub stride: usize,
    /// Keys per page.
    pub page_size: usize,
    /// Pages of the cache. A block table names at most `i32::MAX`, [`Sparse`] any number.
    pub pages: usize,
}

/// Which of a request's last keys each of its queries sees: the branches of a speculative tree.
#[derive(Clone, Copy, Debug)]
pub struct TailMask<'a> {
    /// `[b, s_q, words]`, or `[tokens, words]` with `q_indptr`; `words = tail / 64` rounded up.
    ///
    /// Bit `i % 64` of word `i / 64` is 1 where the query sees key `len - tail + i`. Each query
    /// sees all keys before those.
    pub words: &'a [u64],
    /// How many keys the mask covers, at least 1. Of a shorter request the first bits are ignored.
    pub tail: usize,
}

/// Which keys each query attends to, by their indices in the cache: DeepSeek's sparse attention,
/// as FlashMLA decodes it.
///
/// In a paged cache an index is `page * page_size + key in the page`, otherwise the key's number
/// within its request. Indices that are negative or beyond the cache (the request's
/// `cache_seqlens`, unless it is paged) are skipped.
#[derive(Clone, Copy, Debug)]
pub struct Sparse<'a> {
    /// The keys of each query position.
    pub indices: Indices<'a>,
    /// Keys of a second cache, behind those of the first.
    pub extra: Option<Extra<'a>>,
}

/// Indices of keys, `[b, s_q, h_kv, topk]`; `[tokens, h_kv, topk]` with `q_indptr`.
#[derive(Clone, Copy, Debug)]
pub struct Indices<'a> {
    /// The indices; those of a query position and KV head are contiguous.
    pub indices: IndexList<'a>,
    /// Strides over `(b, s_q, h_kv)`, 0 where requests, positions or heads share their indices. The
    /// first is ignored with `q_indptr`.
    pub strides: [usize; 3],
    /// Indices of each query position and KV head.
    pub topk: usize,
    /// How many of them count, `[b, s_q]`, or `[tokens]` with `q_indptr`; all if absent. It ends with the
    /// last position's number.
    pub topk_length: Option<&'a [i32]>,
    /// Strides of `topk_length` over `(b, s_q)`: `[1, 0]` for a number for each request. The first is
    /// ignored with `q_indptr`.
    pub topk_length_strides: [usize; 2],
}

/// Indices in 32 bits, or in 64 for caches of more than 2^31 rows.
#[derive(Clone, Copy, Debug)]
pub enum IndexList<'a> {
    /// In 32 bits.
    I32(&'a [i32]),
    /// In 64 bits.
    I64(&'a [i64]),
}

impl IndexList<'_> {
    /// How many there are in memory.
    #[must_use]
    pub const fn len(&self) -> usize {
        match self {
            Self::I32(indices) => indices.len(),
            Self::I64(indices) => indices.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Index `i`, unless it is negative.
    fn get(&self, i: usize) -> Option<usize> {
        match self {
            Self::I32(indices) => usize::try_from(indices[i]).ok(),
            Self::I64(indices) => usize::try_from(indices[i]).ok(),
        }
    }
}

impl<'a> From<&'a [i32]> for IndexList<'a> {
    fn from(indices: &'a [i32]) -> Self {
        Self::I32(indices)
    }
}

impl<'a> From<&'a [i64]> for IndexList<'a> {
    fn from(indices: &'a [i64]) -> Self {
        Self::I64(indices)
    }
}

/// A second cache for sparse attention; values are columns of its rows, as of the first cache's.
#[derive(Clone, Copy, Debug)]
pub struct Extra<'a> {
    /// `[pages, page_size, h_kv, d_qk]`.
    pub kv: TensorRef<'a>,
    /// Pages of it.
    pub pages: usize,
    /// Keys per page.
    pub page_size: usize,
    /// The keys of each query position.
    pub indices: Indices<'a>,
}

/// One batched attention: `O = softmax(softmax_scale * Q K^T) V` per request and head.
///
/// Tensors of queries have dimensions `(request, position, head)`. With `q_indptr` they have
/// `(-, token, head)`, and their first stride is ignored.
///
/// Tensors of keys have `(request, key, head)`, `(-, token, head)` with `kv_indptr`, or
/// `(page, key in the page, head)` with `pages`.
#[derive(Clone, Copy, Debug)]
pub struct Problem<'a> {
    /// The sizes.
    pub shape: ProblemShape,
    /// Absorbed queries, `[b, s_q, h_q, d_qk]`; only the first `d_v` columns of them if `q_rope`
    /// has the others.
    pub q: TensorRef<'a>,
    /// The queries' rotary part, `[b, s_q, h_q, d_qk - d_v]`, where it is a tensor of its own.
    pub q_rope: Option<TensorRef<'a>>,
    /// Where each request's queries begin in `q`, `[b + 1]`.
    ///
    /// Request `i` has `q_indptr[i + 1] - q_indptr[i]` positions, at most `s_q`. Outputs of tokens
    /// before the first request's are not written.
    pub q_indptr: Option<&'a [i32]>,
    /// Cache, `[b, s_k, h_kv, d_qk]`, or `d_v` columns of it if `k_rope` has the others. Unless
    /// `v` is given, `d_v` of its columns are the values.
    pub kv: TensorRef<'a>,
    /// The column of `kv`'s rows at which the values begin, 0 where the rotary part is last:
    /// at most `d_qk - d_v`. 0 with `v`, with `k_rope`, and for FP8 and MODEL1 rows; a
    /// multiple of 32 for ggml's blocks.
    pub v_offset: usize,
    /// The keys' rotary part, `[b, s_k, h_kv, d_qk - d_v]`, where it is a tensor of its own.
    pub k_rope: Option<TensorRef<'a>>,
    /// Separate values, `[b, s_k, h_kv, d_v]`.
    pub v: Option<TensorRef<'a>>,
    /// The cache is paged.
    pub pages: Option<Pages<'a>>,
    /// The cache is ragged: where each request's keys begin, `[b + 1]`.
    pub kv_indptr: Option<&'a [i32]>,
    /// Valid keys of each request, `[b]`, at most `s_k` and what the cache has for it; all of them
    /// if absent.
    ///
    /// Rows beyond are never read, unless [`Sparse`] chooses them from a paged cache. The list ends with
    /// the last request's length.
    pub cache_seqlens: Option<&'a [i32]>,
    /// Elements of `cache_seqlens` from one request to the next: 1 where they are contiguous, 0 where
    /// requests have the same.
    pub cache_seqlens_stride: usize,
    /// Whether query `j` of a request's `n` sees only the first `len - (n - 1 - j)` keys, the last
    /// of which is its own.
    pub causal: bool,
    /// How many keys a query sees up to and with its own, which is key `len - n + j`. Only `causal`
    /// hides later keys.
    pub window: Option<usize>,
    /// Which of the last keys each query sees; instead of `causal`.
    pub tail_mask: Option<TailMask<'a>>,
    /// Each query attends to chosen keys only. Not with `causal`, `window` or `tail_mask`; a second
    /// cache not with `k_rope` or `v`. The block table is then ignored.
    pub sparse: Option<Sparse<'a>>,
    /// Attention sink of each query head, `[h_q]`: the natural logarithm of another term in the sum
    /// that O is divided by. lse doesn't include it.
    pub sink: Option<&'a [f32]>,
    /// How keys are cut into ranges that threads compute in parallel.
    pub split: Split,
    /// Factor on the scores; finite, and so is its product with `log2(e)`.
    pub softmax_scale: f32,
}

impl<'a> Problem<'a> {
    /// A problem over dense tensors, every key visible to every query.
    #[must_use]
    pub const fn dense(
        shape: ProblemShape,
        q: &'a [bf16],
        kv: &'a [bf16],
        softmax_scale: f32,
    ) -> Self {
        let q_row = shape.h_q.saturating_mul(shape.d_qk);
        let kv_row = shape.h_kv.saturating_mul(shape.d_qk);
        Self {
            shape,
            q: TensorRef {
                data: Data::Bf16(q),
                strides: [q_row.saturating_mul(shape.s_q), q_row, shape.d_qk],
            },
            q_rope: None,
            q_indptr: None,
            kv: TensorRef {
                data: Data::Bf16(kv),
                strides: [shape.s_k.saturating_mul(kv_row), kv_row, shape.d_qk],
            },
            v_offset: 0,
            k_rope: None,
            v: None,
            pages: None,
            kv_indptr: None,
            cache_seqlens: None,
            cache_seqlens_stride: 1,
            causal: false,
            window: None,
            tail_mask: None,
            sparse: None,
            sink: None,
            split: Split::ByLength,
            softmax_scale,
        }
    }

    /// `log2(e) * softmax_scale`, rounded once: takes scores to log2 units.
    #[expect(clippy::cast_possible_truncation, reason = "rounds to FP32")]
    pub(crate) fn log2_scale(&self) -> f32 {
        (f64::from(self.softmax_scale) * core::f64::consts::LOG2_E) as f32
    }
}

/// How the output accumulator follows the running maximum (`docs/algorithm.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Rescale {
    /// The reference exponent is an integer, so that every rescale is an exact power of two and
    /// most blocks need none.
    #[default]
    Exact,
    /// Algorithm 2 with the compensation of the paper's appendix. With [`Precision::Bf16x2`] there
    /// is nothing to compensate.
    Compensated,
}

/// How a backend that multiplies BF16 takes inputs of FP16, FP32 or ggml's blocks. Other backends multiply them as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Inputs {
    /// As they are: the call is computed by the backend of the same processor that multiplies in FP32.
    #[default]
    AsGiven,
    /// Rounded to BF16, to nearest even: faster, with an error of up to 2^-9 of each number.
    Bf16,
}

/// The least precision of P in the second matrix product. A backend that multiplies in FP32
/// doesn't round P.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Precision {
    /// One BF16 per probability.
    #[default]
    Bf16,
    /// A BF16 pair, high and low part: about 16 bits, for twice the work in C2 of a backend with
    /// BF16 dots.
    Bf16x2,
}
