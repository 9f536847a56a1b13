//! The sizes of a problem.

/// Sizes of a decode problem, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProblemShape {
    /// Requests in the batch.
    pub b: usize,
    /// Query positions per request (2 or more with multi-token prediction); the most
    /// of any request where `q_indptr` says how many each has.
    pub s_q: usize,
    /// Keys per request; the most of any request where `cache_seqlens` or `kv_indptr`
    /// says how many each has.
    pub s_k: usize,
    /// Query heads.
    pub h_q: usize,
    /// KV heads: 1 for MLA and MQA, where all query heads share one; otherwise each
    /// serves `h_q / h_kv` neighbouring query heads.
    pub h_kv: usize,
    /// Width of a query and of a cached row.
    pub d_qk: usize,
    /// Width of a value and of an output row.
    pub d_v: usize,
}

impl ProblemShape {
    /// Query heads that share a KV head.
    pub(crate) const fn group(&self) -> usize {
        self.h_q / self.h_kv
    }
}
