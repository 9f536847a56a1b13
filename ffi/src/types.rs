//! The structs and numbers of `amla.h`. Documentation here is the header's.

use core::ffi::{c_char, c_void};

/// Goes up when a program compiled against an older header would break.
pub const AMLA_ABI_VERSION: u32 = 3;

/// Alignment of a workspace, in bytes.
pub const AMLA_WORKSPACE_ALIGN: usize = 64;
/// Enough for any workspace, for memory that is set aside when a program is compiled.
/// amla_workspace_size() says how much is needed.
pub const AMLA_WORKSPACE_MAX: usize = 2 << 20;
/// Enough for any plan, for memory that is set aside when a program is compiled.
/// amla_plan_size() says how much is needed.
pub const AMLA_PLAN_MAX: usize = 256;
/// Partial results that amla_merge() takes in one call.
pub const AMLA_MERGE_MAX: usize = 64;
/// Room for pairs of widths in amla_capability_set.
pub const AMLA_DIMS_MAX: usize = 16;
/// Width of a query and of a cached row of DeepSeek's MLA.
pub const AMLA_MLA_D_QK: usize = 576;
/// Width of its values, the first numbers of a cached row, and of a row of O.
pub const AMLA_MLA_D_V: usize = 512;
/// Bytes of an FP8 row: 512 e4m3 numbers, 4 FP32 scales, 64 BF16 numbers.
pub const AMLA_FP8_ROW: usize = 656;
/// Bytes of a MODEL1 row: 448 e4m3 numbers, 64 BF16 numbers.
pub const AMLA_MODEL1_ROW: usize = 576;
/// Bytes of a MODEL1 row's e8m0 scales, the last of which is unused.
pub const AMLA_MODEL1_SCALES: usize = 8;

/// What a function returns: AMLA_OK, or why it refused. Numbers never change their meaning.
pub type Status = i32;
/// The call was done.
pub const AMLA_OK: Status = 0;
/// A pointer is null where there must be memory.
pub const AMLA_ERROR_NULL_POINTER: Status = 1;
/// A struct's struct_size is none that this library knows.
pub const AMLA_ERROR_STRUCT_SIZE: Status = 2;
/// A number that stands for a choice, or a bit of flags, has no meaning; or a reserved
/// field isn't 0.
pub const AMLA_ERROR_UNKNOWN_VALUE: Status = 3;
/// Memory isn't aligned as its elements need.
pub const AMLA_ERROR_MISALIGNED: Status = 4;
/// A buffer's size in bytes doesn't fit into the address space.
pub const AMLA_ERROR_BAD_EXTENT: Status = 5;
/// Memory that would be written overlaps other memory of the call.
pub const AMLA_ERROR_ALIASED: Status = 6;
/// The memory doesn't hold a plan.
pub const AMLA_ERROR_NOT_A_PLAN: Status = 7;
/// No kernel is compiled in for this pair of widths.
pub const AMLA_ERROR_UNSUPPORTED_DIMS: Status = 8;
/// A count is out of its range.
pub const AMLA_ERROR_OUT_OF_RANGE: Status = 9;
/// A buffer has fewer elements than needed (bytes, for workspaces and plans).
pub const AMLA_ERROR_TOO_SHORT: Status = 10;
/// A list doesn't have the length that the sizes demand.
pub const AMLA_ERROR_WRONG_LENGTH: Status = 11;
/// Sizes and strides overflow.
pub const AMLA_ERROR_OVERFLOW: Status = 12;
/// Strides make two elements of an output overlap.
pub const AMLA_ERROR_OVERLAP: Status = 13;
/// A request's cache_seqlens is negative, or more than the cache has.
pub const AMLA_ERROR_SEQLEN: Status = 14;
/// A request's topk_length is negative, or more than topk.
pub const AMLA_ERROR_TOPK_LENGTH: Status = 15;
/// An entry of the block table that holds keys is no page.
pub const AMLA_ERROR_PAGE: Status = 16;
/// Offsets fall, start below 0, or leave a request more rows than it may have.
pub const AMLA_ERROR_INDPTR: Status = 17;
/// A tensor's format has no rows of the width needed.
pub const AMLA_ERROR_FORMAT: Status = 18;
/// Query heads don't divide among the KV heads.
pub const AMLA_ERROR_HEADS: Status = 19;
/// Two arguments exclude each other.
pub const AMLA_ERROR_CONFLICT: Status = 20;
/// The plan was made for another problem: another shape, or requests of other lengths.
pub const AMLA_ERROR_PLAN_MISMATCH: Status = 21;
/// softmax_scale, or its product with log2(e), is infinite or not a number.
pub const AMLA_ERROR_NON_FINITE_SCALE: Status = 22;
/// There is no backend of this name, or the processor lacks what it needs, or this process may not
/// use it (amla_permit_amx, amla_set_max_backend).
pub const AMLA_ERROR_BACKEND_UNAVAILABLE: Status = 23;
/// Refused for a reason that this interface has no number for yet; the message says which.
pub const AMLA_ERROR_OTHER: Status = 24;
/// amla_set_max_backend() came after this process used a backend.
pub const AMLA_ERROR_BACKEND_IN_USE: Status = 25;

/// How elements are stored. BF16 and FP16 numbers are the bits of a uint16_t.
pub type Dtype = u32;
/// BF16: what the kernel computes with, without a copy.
pub const AMLA_DTYPE_BF16: Dtype = 1;
/// FP16.
pub const AMLA_DTYPE_F16: Dtype = 2;
/// FP32.
pub const AMLA_DTYPE_F32: Dtype = 3;
/// Rows of AMLA_FP8_ROW bytes for a cache of width 576 (FlashMLA's "V32"); inputs only.
/// Strides count bytes. amla_encode_fp8() writes one.
pub const AMLA_DTYPE_FP8: Dtype = 4;
/// Rows of AMLA_MODEL1_ROW bytes for a cache of width 512, and their scales apart in the
/// same buffer (FlashMLA's "MODEL1"); inputs only. Strides count bytes.
/// amla_encode_model1() writes one.
pub const AMLA_DTYPE_MODEL1: Dtype = 5;
/// INT8 with an FP32 scale for each row; inputs only. amla_encode_int8() writes one.
pub const AMLA_DTYPE_INT8: Dtype = 6;
/// ggml's block_q8_0, 32 numbers in 34 bytes; inputs only. Rows are whole blocks; lengths and strides count
/// blocks. amla_encode_q8_0() writes them.
pub const AMLA_DTYPE_Q8_0: Dtype = 7;
/// ggml's block_q4_0, 32 numbers in 18 bytes; as AMLA_DTYPE_Q8_0. amla_encode_q4_0() writes them.
pub const AMLA_DTYPE_Q4_0: Dtype = 8;
/// e4m3 with an FP32 scale for each row; inputs only. amla_encode_e4m3() writes one.
pub const AMLA_DTYPE_E4M3: Dtype = 9;

/// amla_call.flags: query j of a request's n sees only the first len - (n - 1 - j) keys,
/// the last of which is its own.
pub const AMLA_CAUSAL: u32 = 1;
/// amla_call.flags: block_table_stride, cache_seqlens_stride and topk_length_strides say how these
/// lists are laid out; 0 where requests or query positions share entries. Otherwise those fields are
/// not looked at, and lists are contiguous.
pub const AMLA_LIST_STRIDES: u32 = 2;

/// How the output accumulator follows the running maximum.
pub type Rescale = u32;
/// By exact powers of two; most blocks need none. The default.
pub const AMLA_RESCALE_EXACT: Rescale = 0;
/// The paper's Algorithm 2, with the compensation of its appendix.
pub const AMLA_RESCALE_COMPENSATED: Rescale = 1;

/// How probabilities enter the second matrix product.
pub type Precision = u32;
/// One BF16 for each. The default.
pub const AMLA_PRECISION_BF16: Precision = 0;
/// A BF16 pair, about 16 bits, for twice the work there.
pub const AMLA_PRECISION_BF16X2: Precision = 1;
/// One BF16 for each; and inputs of F16, F32, Q8_0 and Q4_0 are rounded to BF16 by a backend that
/// multiplies BF16. Otherwise it leaves calls with such inputs to the backend of the same processor that
/// multiplies in FP32.
pub const AMLA_PRECISION_BF16_INPUTS: Precision = 2;

/// The base of lse.
pub type LseBase = u32;
/// Natural logarithms: FlashMLA's and CANN's. The default.
pub const AMLA_LSE_BASE_E: LseBase = 0;
/// Binary logarithms: FlashInfer's.
pub const AMLA_LSE_BASE_2: LseBase = 1;

/// lse of a row that sees no key; its O is 0.
pub type LseEmpty = u32;
/// Infinity, as in FlashMLA. The default.
pub const AMLA_LSE_EMPTY_INFINITY: LseEmpty = 0;
/// Minus infinity, the logarithm of the empty sum.
pub const AMLA_LSE_EMPTY_MINUS_INFINITY: LseEmpty = 1;

/// A tensor that is read. Its last dimension is contiguous.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Tensor {
    /// sizeof(struct amla_tensor).
    pub struct_size: u32,
    /// AMLA_DTYPE_*.
    pub dtype: Dtype,
    /// The elements, aligned as their type.
    pub data: *const c_void,
    /// How many elements there are (bytes, for FP8 and MODEL1; blocks, for Q8_0 and Q4_0), from the first to the end
    /// of the memory that may be read.
    pub len: usize,
    /// Elements (bytes, blocks) from one index to the next, outermost dimension first, of every
    /// dimension but the last.
    pub strides: [usize; 3],
    /// AMLA_DTYPE_INT8, AMLA_DTYPE_E4M3: each row's scale. Otherwise not looked at.
    pub scales: *const f32,
    /// How many scales there are.
    pub scales_len: usize,
    /// Scales from one index to the next, as in strides.
    pub scale_strides: [usize; 3],
    /// AMLA_DTYPE_MODEL1: bytes from the start of a page (or request) to the scales of its
    /// first row. Otherwise not looked at.
    pub model1_scales: usize,
    /// AMLA_DTYPE_MODEL1: bytes from one row's AMLA_MODEL1_SCALES scales to the next's.
    pub model1_scale_stride: usize,
}

/// Places of the keys that each query position attends to, [b, s_q, h_kv, topk], or
/// [tokens, h_kv, topk] with q_indptr.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Indices {
    /// sizeof(struct amla_indices).
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// The places. One is page * page_size + key in the page if the cache is paged,
    /// otherwise the key's number within its request. Places that are negative or beyond
    /// the cache are skipped.
    pub indices: *const i32,
    /// How many there are in memory.
    pub indices_len: usize,
    /// Places from one request to the next, and from one query position to the next; the first
    /// isn't looked at with q_indptr.
    pub strides: [usize; 2],
    /// Places of each query position and KV head.
    pub topk: usize,
    /// How many of them count, [b], or [tokens] with q_indptr; null if all. For a number for each
    /// query position, [b, s_q], see topk_length_strides.
    pub topk_length: *const i32,
    /// Up to the last of them: b, or tokens, if they are contiguous; 0 if null.
    pub topk_length_len: usize,
    /// The places in 64 bits, for caches of more than 2^31 rows. Then indices is null, and
    /// indices_len is the number of these.
    pub indices64: *const i64,
    /// Places from one KV head to the next; 0 where heads share them.
    pub stride_h_kv: usize,
    /// With AMLA_LIST_STRIDES: numbers of topk_length from one request to the next, and from one query
    /// position to the next. The first isn't looked at with q_indptr.
    pub topk_length_strides: [usize; 2],
}

/// A second cache for sparse attention, whose keys follow those of the first. Values are
/// columns of its rows, as of the first cache's.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Extra {
    /// sizeof(struct amla_extra).
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// [pages, page_size, h_kv, d_qk].
    pub kv: *const Tensor,
    /// Pages of it.
    pub pages: usize,
    /// Keys of a page.
    pub page_size: usize,
    /// The keys of each query position.
    pub indices: *const Indices,
}

/// Where results go. A row that sees no key gets O = 0, and the lse that lse_empty says. Every NaN is
/// the quiet one of its format with the sign clear and no payload, 0x7fc00000 in FP32.
///
/// All memory from o to o + o_len, from lse to lse + lse_len, and from max_logits to
/// max_logits + max_logits_len, belongs to the call while it runs, also where strides leave gaps.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Output {
    /// sizeof(struct amla_output).
    pub struct_size: u32,
    /// AMLA_DTYPE_F32 (unrounded), AMLA_DTYPE_BF16 or AMLA_DTYPE_F16 (rounded to nearest even).
    pub dtype: Dtype,
    /// [b, s_q, h_q, d_v], the last dimension contiguous; [tokens, h_q, d_v] with q_indptr.
    pub o: *mut c_void,
    /// Elements of o.
    pub o_len: usize,
    /// Elements from one index to the next over (b, s_q, h_q); the first isn't looked at with
    /// q_indptr.
    pub o_strides: [usize; 3],
    /// [b, h_q, s_q], or [h_q, tokens] with q_indptr: logarithm of the sum of exponentials. Null
    /// if nobody needs it.
    pub lse: *mut f32,
    /// Elements of lse; 0 if null.
    pub lse_len: usize,
    /// Elements of lse and max_logits from one index to the next over (b, h_q, s_q).
    pub lse_strides: [usize; 3],
    /// AMLA_LSE_BASE_*.
    pub lse_base: LseBase,
    /// AMLA_LSE_EMPTY_*.
    pub lse_empty: LseEmpty,
    /// With the dimensions and strides of lse: each row's largest softmax_scale * q.k of the keys that
    /// it sees. NaN doesn't count; minus infinity if it sees none. Null if nobody needs it.
    pub max_logits: *mut f32,
    /// Elements of max_logits; 0 if null.
    pub max_logits_len: usize,
}

/// One call: what to compute, from which memory, into which.
///
/// O = softmax(softmax_scale * Q K^T) V for each request and head. Zero all of it, set
/// struct_size, then what the call needs; pointers that stay null are parts that it hasn't.
/// No memory that the call reads may be written while it runs.
///
/// Tensors of queries have dimensions (request, position, head), or (-, token, head) with
/// q_indptr, whose first stride isn't looked at. Tensors of keys have (request, key, head),
/// (-, token, head) with kv_indptr, or (page, key in the page, head) if the cache is paged.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Call {
    /// sizeof(struct amla_call).
    pub struct_size: u32,
    /// AMLA_CAUSAL, AMLA_LIST_STRIDES, both (their sum), or 0.
    pub flags: u32,
    /// Requests.
    pub b: usize,
    /// Query positions of a request; the most of any with q_indptr.
    pub s_q: usize,
    /// Keys of a request; the most of any with cache_seqlens or kv_indptr.
    pub s_k: usize,
    /// Query heads, a multiple of h_kv.
    pub h_q: usize,
    /// KV heads: 1 for MLA and MQA.
    pub h_kv: usize,
    /// Width of a query and of a key.
    pub d_qk: usize,
    /// Width of a value and of a row of O.
    pub d_v: usize,
    /// Factor on the scores.
    pub softmax_scale: f32,
    /// AMLA_RESCALE_*.
    pub rescale: Rescale,
    /// AMLA_PRECISION_*.
    pub precision: Precision,
    /// 0.
    pub reserved: u32,
    /// Name of the backend to use; null for the fastest that the processor has.
    pub backend: *const c_char,
    /// Absorbed queries, [b, s_q, h_q, d_qk]; the first d_v columns of them if q_rope has the
    /// others.
    pub q: *const Tensor,
    /// The queries' rotary part, [b, s_q, h_q, d_qk - d_v], where it is a tensor of its own.
    pub q_rope: *const Tensor,
    /// The cache, [b, s_k, h_kv, d_qk]; the first d_v columns of it if k_rope has the others.
    /// Unless v is given, d_v of its columns are the values, the first ones unless v_offset says so.
    pub kv: *const Tensor,
    /// The keys' rotary part, [b, s_k, h_kv, d_qk - d_v], where it is a tensor of its own.
    pub k_rope: *const Tensor,
    /// Separate values, [b, s_k, h_kv, d_v].
    pub v: *const Tensor,
    /// Ragged queries: where each request's begin in q, [b + 1]; request i has
    /// q_indptr[i + 1] - q_indptr[i] positions, at most s_q. Outputs of tokens before the first
    /// request's are not written.
    pub q_indptr: *const i32,
    /// b + 1; 0 if null.
    pub q_indptr_len: usize,
    /// A ragged cache: where each request's keys begin, [b + 1].
    pub kv_indptr: *const i32,
    /// b + 1; 0 if null.
    pub kv_indptr_len: usize,
    /// Valid keys of each request, [b]; all of them if null. Rows beyond are never read, but where
    /// sparse chooses them from a paged cache.
    pub cache_seqlens: *const i32,
    /// Up to the last of them: b, if they are contiguous; 0 if null.
    pub cache_seqlens_len: usize,
    /// A paged cache: the page that holds keys i * page_size on of a request,
    /// [b, max_blocks]. Entries of pages that a window hides from all queries, or behind a request's
    /// last key, are never read.
    pub block_table: *const i32,
    /// Entries of the block table in memory.
    pub block_table_len: usize,
    /// Entries of a request.
    pub max_blocks: usize,
    /// Keys of a page; 0 if the cache isn't paged.
    pub page_size: usize,
    /// Pages of the cache; more than INT32_MAX with sparse only.
    pub pages: usize,
    /// How far back query j of a request's n sees: its own key, len - n + j, and window - 1
    /// before it. Later keys are for AMLA_CAUSAL to hide. 0 for no limit.
    pub window: usize,
    /// Which of a request's last keys each of its queries sees, instead of AMLA_CAUSAL:
    /// [b, s_q, words] ([tokens, words] with q_indptr), words = tail / 64 rounded up; bit
    /// i % 64 of word i / 64 is 1 where the query sees key len - tail + i. Keys before those it
    /// sees anyway.
    pub tail_mask: *const u64,
    /// Words of it in memory; 0 if null.
    pub tail_mask_len: usize,
    /// How many keys tail_mask covers, at least 1; 0 if null. Of a shorter request the first bits count for nothing.
    pub tail: usize,
    /// Each query attends to chosen keys only; not with AMLA_CAUSAL, window or tail_mask. The block
    /// table is then not looked at.
    pub sparse: *const Indices,
    /// A second cache; with sparse only, and not with k_rope or v.
    pub extra: *const Extra,
    /// Attention sink of each query head, [h_q]: the natural logarithm of another term in the sum
    /// that O is divided by. lse doesn't include it.
    pub sink: *const f32,
    /// h_q; 0 if null.
    pub sink_len: usize,
    /// Where results go. Functions that write none don't look at it.
    pub output: *const Output,
    /// The column of kv's rows at which the values begin: d_qk - d_v where the rotary part is first. 0
    /// with v, with k_rope, and for FP8 and MODEL1 rows.
    pub v_offset: usize,
    /// With AMLA_LIST_STRIDES: entries of block_table from one request to the next; otherwise
    /// max_blocks.
    pub block_table_stride: usize,
    /// With AMLA_LIST_STRIDES: numbers of cache_seqlens from one request to the next; otherwise 1.
    pub cache_seqlens_stride: usize,
    /// Keys of each range that threads compute in parallel: a multiple of 32, or 0 for a length that the number of keys
    /// decides, with 16 ranges of a request at most. Results depend on it to the bit.
    pub split_keys: usize,
}

/// What a plan says.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PlanInfo {
    /// sizeof(struct amla_plan_info).
    pub struct_size: u32,
    /// Written as 0.
    pub reserved: u32,
    /// How many tasks there are.
    pub tasks: usize,
    /// FP32 numbers that each partial result takes.
    pub partial_len: usize,
    /// FP32 numbers that all partial results take: partial_tasks * partial_len, or SIZE_MAX where that is more.
    pub partials_len: usize,
    /// How many tasks have partial results: the first ones. The others write O and lse.
    pub partial_tasks: usize,
    /// Merges of partial results: of each row one for each 64 columns of O.
    pub merges: usize,
}

/// A result over some of the keys: O in FP32 and lse, with the strides and lengths of
/// the output that it is merged into.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Part {
    /// sizeof(struct amla_part).
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// O, FP32.
    pub o: *const f32,
    /// As the output's o_len.
    pub o_len: usize,
    /// The logarithms of the sums.
    pub lse: *const f32,
    /// As the output's lse_len.
    pub lse_len: usize,
    /// The largest scores, where the output has them; otherwise not looked at.
    pub max_logits: *const f32,
    /// As the output's max_logits_len.
    pub max_logits_len: usize,
}

/// Why a call was refused. Set struct_size before each call; the rest is written when a
/// function returns anything but AMLA_OK, and then only.
///
/// Which of the numbers mean something follows from the status; the others are 0. Sizes
/// beyond INT64_MAX are given as INT64_MAX.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ErrorDetail {
    /// sizeof(struct amla_error_detail).
    pub struct_size: u32,
    /// What the function returned.
    pub status: Status,
    /// What was given: a size, a length, an entry of a list.
    pub value: i64,
    /// The smallest value allowed; what a plan was made for, of lists all rows.
    pub min: i64,
    /// The largest value allowed; the alignment needed, in bytes.
    pub max: i64,
    /// Which request, which of amla_merge()'s parts, or which dimension, counted from the
    /// outermost.
    pub index: u64,
    /// Which entry of the request's part of a list; which query position or token of topk_length.
    pub entry: u64,
    /// What was given where it is a floating-point number.
    pub number: f64,
    /// The argument at fault, as it is spelt in amla_call, amla_output or the function; behind a
    /// dot the field of what it points to. AMLA_CAUSAL is "causal"; extra's parts are "extra_kv",
    /// "extra_indices" and "extra_topk_length".
    pub argument: [c_char; 32],
    /// The other one, where two exclude each other; what differs, where a plan doesn't fit.
    pub other: [c_char; 32],
    /// All of it as an English sentence, cut off where it is longer.
    pub message: [c_char; 192],
}

/// amla_capability_set.features: paged caches.
pub const AMLA_FEATURE_PAGES: u64 = 1;
/// amla_capability_set.features: ragged queries and caches.
pub const AMLA_FEATURE_RAGGED: u64 = 2;
/// amla_capability_set.features: sliding windows.
pub const AMLA_FEATURE_WINDOW: u64 = 4;
/// amla_capability_set.features: tail masks.
pub const AMLA_FEATURE_TAIL_MASK: u64 = 8;
/// amla_capability_set.features: sparse attention, with a second cache.
pub const AMLA_FEATURE_SPARSE: u64 = 16;
/// amla_capability_set.features: attention sinks.
pub const AMLA_FEATURE_SINK: u64 = 32;
/// amla_capability_set.features: amla_merge().
pub const AMLA_FEATURE_MERGE: u64 = 64;
/// amla_capability_set.features: sparse attention with q_indptr, k_rope and v, with places for each KV
/// head and topk_length for each query position.
pub const AMLA_FEATURE_SPARSE_SPLIT: u64 = 128;
/// amla_capability_set.features: places in 64 bits.
pub const AMLA_FEATURE_INDICES64: u64 = 256;
/// amla_capability_set.features: max_logits; and lse may be null.
pub const AMLA_FEATURE_MAX_LOGITS: u64 = 512;
/// amla_capability_set.features: AMLA_LIST_STRIDES.
pub const AMLA_FEATURE_LIST_STRIDES: u64 = 1024;
/// amla_capability_set.features: v_offset.
pub const AMLA_FEATURE_V_OFFSET: u64 = 2048;

/// What this library can do.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CapabilitySet {
    /// sizeof(struct amla_capability_set).
    pub struct_size: u32,
    /// AMLA_ABI_VERSION of the library.
    pub abi_version: u32,
    /// AMLA_FEATURE_* that it has.
    pub features: u64,
    /// Bit 1 << AMLA_DTYPE_* for each format that tensors may have.
    pub input_dtypes: u32,
    /// Bit 1 << AMLA_DTYPE_* for each format that O may have.
    pub output_dtypes: u32,
    /// How many pairs of widths there are.
    pub dims_len: u32,
    /// How many backends this process can use.
    pub backends_len: u32,
    /// The pairs (d_qk, d_v).
    pub dims: [[u32; 2]; AMLA_DIMS_MAX],
}
