//! The sizes of a problem.

/// Sizes of a decode problem, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Requests in the batch.
    pub b: usize,
    /// Query positions per request (2 or more with multi-token prediction).
    pub s_q: usize,
    /// Rows of the KV cache per request; `cache_seqlens` says how many count.
    pub s_k: usize,
    /// Query heads, all sharing the one latent KV head.
    pub h_q: usize,
    /// Width of a query and of a cached row.
    pub d_qk: usize,
    /// Width of a value and of an output row.
    pub d_v: usize,
}
