/*
 * The C interface of amla: multi-head latent attention (MLA) decode on CPUs.
 *
 * Made by cbindgen from the documented Rust types in ffi/src: change those.
 *
 * Every struct begins with its own size: zero it, set struct_size to its sizeof, then the fields
 * that the call needs. In C, `struct amla_call call = {.struct_size = sizeof call, ...}`; in C++20,
 * `amla_call call{.b = 1, ...}`; before, `amla_call call{}; call.struct_size = sizeof call;`. Inline
 * functions at the end initialise contiguous tensors and outputs, and dense calls. amla_mla_decode()
 * is a dense call in one line.
 *
 * Functions return AMLA_OK or why they refused; a refused call has written nothing but the
 * amla_error_detail. They allocate nothing, start no threads and may be called from any number of
 * threads at the same time, as long as none writes memory that another reads or writes.
 *
 * The bits of a result depend on its own request (queries, keys, options, and how many query rows
 * s_q and h_q make), on the backend, and on how its keys are split: by their number, or as split_keys says.
 * They never depend on other requests of the batch, on threads and tasks, or on addresses. Results
 * that amla_merge() merges are split where the caller splits.
 *
 * Sizes count elements unless they are said to be in bytes. Lists in brackets are dimensions,
 * outermost first.
 */


#ifndef AMLA_H
#define AMLA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define AMLA_ZERO {}
#else
#define AMLA_ZERO {0}
#endif

// In C++20 fields have defaults, for designated initialisers: struct_size is right, the others are 0.
#if defined(__cplusplus) && __cplusplus > 201703L
#define AMLA_DEFAULT = {}
#define AMLA_SIZE(type) = sizeof(type)
#else
#define AMLA_DEFAULT
#define AMLA_SIZE(type)
#endif

// Goes up when a program compiled against an older header would break.
#define AMLA_ABI_VERSION 3

// Alignment of a workspace, in bytes.
#define AMLA_WORKSPACE_ALIGN 64

// Enough for any workspace, for memory that is set aside when a program is compiled.
// amla_workspace_size() says how much is needed.
#define AMLA_WORKSPACE_MAX (2 << 20)

// Enough for any plan, for memory that is set aside when a program is compiled.
// amla_plan_size() says how much is needed.
#define AMLA_PLAN_MAX 256

// Partial results that amla_merge() takes in one call.
#define AMLA_MERGE_MAX 64

// Room for pairs of widths in amla_capability_set.
#define AMLA_DIMS_MAX 16

// Width of a query and of a cached row of DeepSeek's MLA.
#define AMLA_MLA_D_QK 576

// Width of its values, the first numbers of a cached row, and of a row of O.
#define AMLA_MLA_D_V 512

// Bytes of an FP8 row: 512 e4m3 numbers, 4 FP32 scales, 64 BF16 numbers.
#define AMLA_FP8_ROW 656

// Bytes of a MODEL1 row: 448 e4m3 numbers, 64 BF16 numbers.
#define AMLA_MODEL1_ROW 576

// Bytes of a MODEL1 row's e8m0 scales, the last of which is unused.
#define AMLA_MODEL1_SCALES 8

// amla_call.flags: query j of a request's n sees only the first len - (n - 1 - j) keys,
// the last of which is its own.
#define AMLA_CAUSAL 1

// amla_call.flags: block_table_stride, cache_seqlens_stride and topk_length_strides say how these
// lists are laid out; 0 where requests or query positions share entries. Otherwise those fields are
// not looked at, and lists are contiguous.
#define AMLA_LIST_STRIDES 2

// amla_capability_set.features: paged caches.
#define AMLA_FEATURE_PAGES 1

// amla_capability_set.features: ragged queries and caches.
#define AMLA_FEATURE_RAGGED 2

// amla_capability_set.features: sliding windows.
#define AMLA_FEATURE_WINDOW 4

// amla_capability_set.features: tail masks.
#define AMLA_FEATURE_TAIL_MASK 8

// amla_capability_set.features: sparse attention, with a second cache.
#define AMLA_FEATURE_SPARSE 16

// amla_capability_set.features: attention sinks.
#define AMLA_FEATURE_SINK 32

// amla_capability_set.features: amla_merge().
#define AMLA_FEATURE_MERGE 64

// amla_capability_set.features: sparse attention with q_indptr, k_rope and v, with places for each KV
// head and topk_length for each query position.
#define AMLA_FEATURE_SPARSE_SPLIT 128

// amla_capability_set.features: places in 64 bits.
#define AMLA_FEATURE_INDICES64 256

// amla_capability_set.features: max_logits; and lse may be null.
#define AMLA_FEATURE_MAX_LOGITS 512

// amla_capability_set.features: AMLA_LIST_STRIDES.
#define AMLA_FEATURE_LIST_STRIDES 1024

// amla_capability_set.features: v_offset.
#define AMLA_FEATURE_V_OFFSET 2048

// What a function returns: AMLA_OK, or why it refused. Numbers never change their meaning.
typedef int32_t amla_status;

// What this library can do.
struct amla_capability_set {
    // sizeof(struct amla_capability_set).
    uint32_t struct_size AMLA_SIZE(amla_capability_set);
    // AMLA_ABI_VERSION of the library.
    uint32_t abi_version AMLA_DEFAULT;
    // AMLA_FEATURE_* that it has.
    uint64_t features AMLA_DEFAULT;
    // Bit 1 << AMLA_DTYPE_* for each format that tensors may have.
    uint32_t input_dtypes AMLA_DEFAULT;
    // Bit 1 << AMLA_DTYPE_* for each format that O may have.
    uint32_t output_dtypes AMLA_DEFAULT;
    // How many pairs of widths there are.
    uint32_t dims_len AMLA_DEFAULT;
    // How many backends this process can use.
    uint32_t backends_len AMLA_DEFAULT;
    // The pairs (d_qk, d_v).
    uint32_t dims[AMLA_DIMS_MAX][2] AMLA_DEFAULT;
};

// How the output accumulator follows the running maximum.
typedef uint32_t amla_rescale;

// How probabilities enter the second matrix product.
typedef uint32_t amla_precision;

// How elements are stored. BF16 and FP16 numbers are the bits of a uint16_t.
typedef uint32_t amla_dtype;

// A tensor that is read. Its last dimension is contiguous.
struct amla_tensor {
    // sizeof(struct amla_tensor).
    uint32_t struct_size AMLA_SIZE(amla_tensor);
    // AMLA_DTYPE_*.
    amla_dtype dtype AMLA_DEFAULT;
    // The elements, aligned as their type.
    const void *data AMLA_DEFAULT;
    // How many elements there are (bytes, for FP8 and MODEL1; blocks, for Q8_0 and Q4_0), from the first to the end
    // of the memory that may be read.
    size_t len AMLA_DEFAULT;
    // Elements (bytes, blocks) from one index to the next, outermost dimension first, of every
    // dimension but the last.
    size_t strides[3] AMLA_DEFAULT;
    // AMLA_DTYPE_INT8, AMLA_DTYPE_E4M3: each row's scale. Otherwise not looked at.
    const float *scales AMLA_DEFAULT;
    // How many scales there are.
    size_t scales_len AMLA_DEFAULT;
    // Scales from one index to the next, as in strides.
    size_t scale_strides[3] AMLA_DEFAULT;
    // AMLA_DTYPE_MODEL1: bytes from the start of a page (or request) to the scales of its
    // first row. Otherwise not looked at.
    size_t model1_scales AMLA_DEFAULT;
    // AMLA_DTYPE_MODEL1: bytes from one row's AMLA_MODEL1_SCALES scales to the next's.
    size_t model1_scale_stride AMLA_DEFAULT;
};

// Places of the keys that each query position attends to, [b, s_q, h_kv, topk], or
// [tokens, h_kv, topk] with q_indptr.
struct amla_indices {
    // sizeof(struct amla_indices).
    uint32_t struct_size AMLA_SIZE(amla_indices);
    // 0.
    uint32_t reserved AMLA_DEFAULT;
    // The places. One is page * page_size + key in the page if the cache is paged,
    // otherwise the key's number within its request. Places that are negative or beyond
    // the cache are skipped.
    const int32_t *indices AMLA_DEFAULT;
    // How many there are in memory.
    size_t indices_len AMLA_DEFAULT;
    // Places from one request to the next, and from one query position to the next; the first
    // isn't looked at with q_indptr.
    size_t strides[2] AMLA_DEFAULT;
    // Places of each query position and KV head.
    size_t topk AMLA_DEFAULT;
    // How many of them count, [b], or [tokens] with q_indptr; null if all. For a number for each
    // query position, [b, s_q], see topk_length_strides.
    const int32_t *topk_length AMLA_DEFAULT;
    // Up to the last of them: b, or tokens, if they are contiguous; 0 if null.
    size_t topk_length_len AMLA_DEFAULT;
    // The places in 64 bits, for caches of more than 2^31 rows. Then indices is null, and
    // indices_len is the number of these.
    const int64_t *indices64 AMLA_DEFAULT;
    // Places from one KV head to the next; 0 where heads share them.
    size_t stride_h_kv AMLA_DEFAULT;
    // With AMLA_LIST_STRIDES: numbers of topk_length from one request to the next, and from one query
    // position to the next. The first isn't looked at with q_indptr.
    size_t topk_length_strides[2] AMLA_DEFAULT;
};

// A second cache for sparse attention, whose keys follow those of the first. Values are
// columns of its rows, as of the first cache's.
struct amla_extra {
    // sizeof(struct amla_extra).
    uint32_t struct_size AMLA_SIZE(amla_extra);
    // 0.
    uint32_t reserved AMLA_DEFAULT;
    // [pages, page_size, h_kv, d_qk].
    const struct amla_tensor *kv AMLA_DEFAULT;
    // Pages of it.
    size_t pages AMLA_DEFAULT;
    // Keys of a page.
    size_t page_size AMLA_DEFAULT;
    // The keys of each query position.
    const struct amla_indices *indices AMLA_DEFAULT;
};

// The base of lse.
typedef uint32_t amla_lse_base;

// lse of a row that sees no key; its O is 0.
typedef uint32_t amla_lse_empty;

// Where results go. A row that sees no key gets O = 0, and the lse that lse_empty says. Every NaN is
// the quiet one of its format with the sign clear and no payload, 0x7fc00000 in FP32.
//
// All memory from o to o + o_len, from lse to lse + lse_len, and from max_logits to
// max_logits + max_logits_len, belongs to the call while it runs, also where strides leave gaps.
struct amla_output {
    // sizeof(struct amla_output).
    uint32_t struct_size AMLA_SIZE(amla_output);
    // AMLA_DTYPE_F32 (unrounded), AMLA_DTYPE_BF16 or AMLA_DTYPE_F16 (rounded to nearest even).
    amla_dtype dtype AMLA_DEFAULT;
    // [b, s_q, h_q, d_v], the last dimension contiguous; [tokens, h_q, d_v] with q_indptr.
    void *o AMLA_DEFAULT;
    // Elements of o.
    size_t o_len AMLA_DEFAULT;
    // Elements from one index to the next over (b, s_q, h_q); the first isn't looked at with
    // q_indptr.
    size_t o_strides[3] AMLA_DEFAULT;
    // [b, h_q, s_q], or [h_q, tokens] with q_indptr: logarithm of the sum of exponentials. Null
    // if nobody needs it.
    float *lse AMLA_DEFAULT;
    // Elements of lse; 0 if null.
    size_t lse_len AMLA_DEFAULT;
    // Elements of lse and max_logits from one index to the next over (b, h_q, s_q).
    size_t lse_strides[3] AMLA_DEFAULT;
    // AMLA_LSE_BASE_*.
    amla_lse_base lse_base AMLA_DEFAULT;
    // AMLA_LSE_EMPTY_*.
    amla_lse_empty lse_empty AMLA_DEFAULT;
    // With the dimensions and strides of lse: each row's largest softmax_scale * q.k of the keys that
    // it sees. NaN doesn't count; minus infinity if it sees none. Null if nobody needs it.
    float *max_logits AMLA_DEFAULT;
    // Elements of max_logits; 0 if null.
    size_t max_logits_len AMLA_DEFAULT;
};

// One call: what to compute, from which memory, into which.
//
// O = softmax(softmax_scale * Q K^T) V for each request and head. Zero all of it, set
// struct_size, then what the call needs; pointers that stay null are parts that it hasn't.
// No memory that the call reads may be written while it runs.
//
// Tensors of queries have dimensions (request, position, head), or (-, token, head) with
// q_indptr, whose first stride isn't looked at. Tensors of keys have (request, key, head),
// (-, token, head) with kv_indptr, or (page, key in the page, head) if the cache is paged.
struct amla_call {
    // sizeof(struct amla_call).
    uint32_t struct_size AMLA_SIZE(amla_call);
    // AMLA_CAUSAL, AMLA_LIST_STRIDES, both (their sum), or 0.
    uint32_t flags AMLA_DEFAULT;
    // Requests.
    size_t b AMLA_DEFAULT;
    // Query positions of a request; the most of any with q_indptr.
    size_t s_q AMLA_DEFAULT;
    // Keys of a request; the most of any with cache_seqlens or kv_indptr.
    size_t s_k AMLA_DEFAULT;
    // Query heads, a multiple of h_kv.
    size_t h_q AMLA_DEFAULT;
    // KV heads: 1 for MLA and MQA.
    size_t h_kv AMLA_DEFAULT;
    // Width of a query and of a key.
    size_t d_qk AMLA_DEFAULT;
    // Width of a value and of a row of O.
    size_t d_v AMLA_DEFAULT;
    // Factor on the scores.
    float softmax_scale AMLA_DEFAULT;
    // AMLA_RESCALE_*.
    amla_rescale rescale AMLA_DEFAULT;
    // AMLA_PRECISION_*.
    amla_precision precision AMLA_DEFAULT;
    // 0.
    uint32_t reserved AMLA_DEFAULT;
    // Name of the backend to use; null for the fastest that the processor has.
    const char *backend AMLA_DEFAULT;
    // Absorbed queries, [b, s_q, h_q, d_qk]; the first d_v columns of them if q_rope has the
    // others.
    const struct amla_tensor *q AMLA_DEFAULT;
    // The queries' rotary part, [b, s_q, h_q, d_qk - d_v], where it is a tensor of its own.
    const struct amla_tensor *q_rope AMLA_DEFAULT;
    // The cache, [b, s_k, h_kv, d_qk]; the first d_v columns of it if k_rope has the others.
    // Unless v is given, d_v of its columns are the values, the first ones unless v_offset says so.
    const struct amla_tensor *kv AMLA_DEFAULT;
    // The keys' rotary part, [b, s_k, h_kv, d_qk - d_v], where it is a tensor of its own.
    const struct amla_tensor *k_rope AMLA_DEFAULT;
    // Separate values, [b, s_k, h_kv, d_v].
    const struct amla_tensor *v AMLA_DEFAULT;
    // Ragged queries: where each request's begin in q, [b + 1]; request i has
    // q_indptr[i + 1] - q_indptr[i] positions, at most s_q. Outputs of tokens before the first
    // request's are not written.
    const int32_t *q_indptr AMLA_DEFAULT;
    // b + 1; 0 if null.
    size_t q_indptr_len AMLA_DEFAULT;
    // A ragged cache: where each request's keys begin, [b + 1].
    const int32_t *kv_indptr AMLA_DEFAULT;
    // b + 1; 0 if null.
    size_t kv_indptr_len AMLA_DEFAULT;
    // Valid keys of each request, [b]; all of them if null. Rows beyond are never read, but where
    // sparse chooses them from a paged cache.
    const int32_t *cache_seqlens AMLA_DEFAULT;
    // Up to the last of them: b, if they are contiguous; 0 if null.
    size_t cache_seqlens_len AMLA_DEFAULT;
    // A paged cache: the page that holds keys i * page_size on of a request,
    // [b, max_blocks]. Entries of pages that a window hides from all queries, or behind a request's
    // last key, are never read.
    const int32_t *block_table AMLA_DEFAULT;
    // Entries of the block table in memory.
    size_t block_table_len AMLA_DEFAULT;
    // Entries of a request.
    size_t max_blocks AMLA_DEFAULT;
    // Keys of a page; 0 if the cache isn't paged.
    size_t page_size AMLA_DEFAULT;
    // Pages of the cache; more than INT32_MAX with sparse only.
    size_t pages AMLA_DEFAULT;
    // How far back query j of a request's n sees: its own key, len - n + j, and window - 1
    // before it. Later keys are for AMLA_CAUSAL to hide. 0 for no limit.
    size_t window AMLA_DEFAULT;
    // Which of a request's last keys each of its queries sees, instead of AMLA_CAUSAL:
    // [b, s_q, words] ([tokens, words] with q_indptr), words = tail / 64 rounded up; bit
    // i % 64 of word i / 64 is 1 where the query sees key len - tail + i. Keys before those it
    // sees anyway.
    const uint64_t *tail_mask AMLA_DEFAULT;
    // Words of it in memory; 0 if null.
    size_t tail_mask_len AMLA_DEFAULT;
    // How many keys tail_mask covers, at least 1; 0 if null. Of a shorter request the first bits count for nothing.
    size_t tail AMLA_DEFAULT;
    // Each query attends to chosen keys only; not with AMLA_CAUSAL, window or tail_mask. The block
    // table is then not looked at.
    const struct amla_indices *sparse AMLA_DEFAULT;
    // A second cache; with sparse only, and not with k_rope or v.
    const struct amla_extra *extra AMLA_DEFAULT;
    // Attention sink of each query head, [h_q]: the natural logarithm of another term in the sum
    // that O is divided by. lse doesn't include it.
    const float *sink AMLA_DEFAULT;
    // h_q; 0 if null.
    size_t sink_len AMLA_DEFAULT;
    // Where results go. Functions that write none don't look at it.
    const struct amla_output *output AMLA_DEFAULT;
    // The column of kv's rows at which the values begin: d_qk - d_v where the rotary part is first. 0
    // with v, with k_rope, and for FP8 and MODEL1 rows.
    size_t v_offset AMLA_DEFAULT;
    // With AMLA_LIST_STRIDES: entries of block_table from one request to the next; otherwise
    // max_blocks.
    size_t block_table_stride AMLA_DEFAULT;
    // With AMLA_LIST_STRIDES: numbers of cache_seqlens from one request to the next; otherwise 1.
    size_t cache_seqlens_stride AMLA_DEFAULT;
    // Keys of each range that threads compute in parallel: a multiple of 32, or 0 for a length that the number of keys
    // decides, with 16 ranges of a request at most. Results depend on it to the bit.
    size_t split_keys AMLA_DEFAULT;
};

// Why a call was refused. Set struct_size before each call; the rest is written when a
// function returns anything but AMLA_OK, and then only.
//
// Which of the numbers mean something follows from the status; the others are 0. Sizes
// beyond INT64_MAX are given as INT64_MAX.
struct amla_error_detail {
    // sizeof(struct amla_error_detail).
    uint32_t struct_size AMLA_SIZE(amla_error_detail);
    // What the function returned.
    amla_status status AMLA_DEFAULT;
    // What was given: a size, a length, an entry of a list.
    int64_t value AMLA_DEFAULT;
    // The smallest value allowed; what a plan was made for, of lists all rows.
    int64_t min AMLA_DEFAULT;
    // The largest value allowed; the alignment needed, in bytes.
    int64_t max AMLA_DEFAULT;
    // Which request, which of amla_merge()'s parts, or which dimension, counted from the
    // outermost.
    uint64_t index AMLA_DEFAULT;
    // Which entry of the request's part of a list; which query position or token of topk_length.
    uint64_t entry AMLA_DEFAULT;
    // What was given where it is a floating-point number.
    double number AMLA_DEFAULT;
    // The argument at fault, as it is spelt in amla_call, amla_output or the function; behind a
    // dot the field of what it points to. AMLA_CAUSAL is "causal"; extra's parts are "extra_kv",
    // "extra_indices" and "extra_topk_length".
    char argument[32] AMLA_DEFAULT;
    // The other one, where two exclude each other; what differs, where a plan doesn't fit.
    char other[32] AMLA_DEFAULT;
    // All of it as an English sentence, cut off where it is longer.
    char message[192] AMLA_DEFAULT;
};

// What a plan says.
struct amla_plan_info {
    // sizeof(struct amla_plan_info).
    uint32_t struct_size AMLA_SIZE(amla_plan_info);
    // Written as 0.
    uint32_t reserved AMLA_DEFAULT;
    // How many tasks there are.
    size_t tasks AMLA_DEFAULT;
    // FP32 numbers that each partial result takes.
    size_t partial_len AMLA_DEFAULT;
    // FP32 numbers that all partial results take: partial_tasks * partial_len, or SIZE_MAX where that is more.
    size_t partials_len AMLA_DEFAULT;
    // How many tasks have partial results: the first ones. The others write O and lse.
    size_t partial_tasks AMLA_DEFAULT;
    // Merges of partial results: of each row one for each 64 columns of O.
    size_t merges AMLA_DEFAULT;
};

// Calls `body` with `arg` and each number below `n`, once, on any threads in any order, and returns when all calls have.
typedef void (*amla_parallel_for)(void *pool, size_t n, void (*body)(void *arg, size_t i), void *arg);

// A result over some of the keys: O in FP32 and lse, with the strides and lengths of
// the output that it is merged into.
struct amla_part {
    // sizeof(struct amla_part).
    uint32_t struct_size AMLA_SIZE(amla_part);
    // 0.
    uint32_t reserved AMLA_DEFAULT;
    // O, FP32.
    const float *o AMLA_DEFAULT;
    // As the output's o_len.
    size_t o_len AMLA_DEFAULT;
    // The logarithms of the sums.
    const float *lse AMLA_DEFAULT;
    // As the output's lse_len.
    size_t lse_len AMLA_DEFAULT;
    // The largest scores, where the output has them; otherwise not looked at.
    const float *max_logits AMLA_DEFAULT;
    // As the output's max_logits_len.
    size_t max_logits_len AMLA_DEFAULT;
};

// The call was done.
#define AMLA_OK 0

// A pointer is null where there must be memory.
#define AMLA_ERROR_NULL_POINTER 1

// A struct's struct_size is none that this library knows.
#define AMLA_ERROR_STRUCT_SIZE 2

// A number that stands for a choice, or a bit of flags, has no meaning; or a reserved
// field isn't 0.
#define AMLA_ERROR_UNKNOWN_VALUE 3

// Memory isn't aligned as its elements need.
#define AMLA_ERROR_MISALIGNED 4

// A buffer's size in bytes doesn't fit into the address space.
#define AMLA_ERROR_BAD_EXTENT 5

// Memory that would be written overlaps other memory of the call.
#define AMLA_ERROR_ALIASED 6

// The memory doesn't hold a plan.
#define AMLA_ERROR_NOT_A_PLAN 7

// No kernel is compiled in for this pair of widths.
#define AMLA_ERROR_UNSUPPORTED_DIMS 8

// A count is out of its range.
#define AMLA_ERROR_OUT_OF_RANGE 9

// A buffer has fewer elements than needed (bytes, for workspaces and plans).
#define AMLA_ERROR_TOO_SHORT 10

// A list doesn't have the length that the sizes demand.
#define AMLA_ERROR_WRONG_LENGTH 11

// Sizes and strides overflow.
#define AMLA_ERROR_OVERFLOW 12

// Strides make two elements of an output overlap.
#define AMLA_ERROR_OVERLAP 13

// A request's cache_seqlens is negative, or more than the cache has.
#define AMLA_ERROR_SEQLEN 14

// A request's topk_length is negative, or more than topk.
#define AMLA_ERROR_TOPK_LENGTH 15

// An entry of the block table that holds keys is no page.
#define AMLA_ERROR_PAGE 16

// Offsets fall, start below 0, or leave a request more rows than it may have.
#define AMLA_ERROR_INDPTR 17

// A tensor's format has no rows of the width needed.
#define AMLA_ERROR_FORMAT 18

// Query heads don't divide among the KV heads.
#define AMLA_ERROR_HEADS 19

// Two arguments exclude each other.
#define AMLA_ERROR_CONFLICT 20

// The plan was made for another problem: another shape, or requests of other lengths.
#define AMLA_ERROR_PLAN_MISMATCH 21

// softmax_scale, or its product with log2(e), is infinite or not a number.
#define AMLA_ERROR_NON_FINITE_SCALE 22

// There is no backend of this name, or the processor lacks what it needs, or this process may not
// use it (amla_permit_amx, amla_set_max_backend).
#define AMLA_ERROR_BACKEND_UNAVAILABLE 23

// Refused for a reason that this interface has no number for yet; the message says which.
#define AMLA_ERROR_OTHER 24

// amla_set_max_backend() came after this process used a backend.
#define AMLA_ERROR_BACKEND_IN_USE 25

// BF16: what the kernel computes with, without a copy.
#define AMLA_DTYPE_BF16 1

// FP16.
#define AMLA_DTYPE_F16 2

// FP32.
#define AMLA_DTYPE_F32 3

// Rows of AMLA_FP8_ROW bytes for a cache of width 576 (FlashMLA's "V32"); inputs only.
// Strides count bytes. amla_encode_fp8() writes one.
#define AMLA_DTYPE_FP8 4

// Rows of AMLA_MODEL1_ROW bytes for a cache of width 512, and their scales apart in the
// same buffer (FlashMLA's "MODEL1"); inputs only. Strides count bytes.
// amla_encode_model1() writes one.
#define AMLA_DTYPE_MODEL1 5

// INT8 with an FP32 scale for each row; inputs only. amla_encode_int8() writes one.
#define AMLA_DTYPE_INT8 6

// ggml's block_q8_0, 32 numbers in 34 bytes; inputs only. Rows are whole blocks; lengths and strides count
// blocks. amla_encode_q8_0() writes them.
#define AMLA_DTYPE_Q8_0 7

// ggml's block_q4_0, 32 numbers in 18 bytes; as AMLA_DTYPE_Q8_0. amla_encode_q4_0() writes them.
#define AMLA_DTYPE_Q4_0 8

// e4m3 with an FP32 scale for each row; inputs only. amla_encode_e4m3() writes one.
#define AMLA_DTYPE_E4M3 9

// By exact powers of two; most blocks need none. The default.
#define AMLA_RESCALE_EXACT 0

// The paper's Algorithm 2, with the compensation of its appendix.
#define AMLA_RESCALE_COMPENSATED 1

// One BF16 for each. The default.
#define AMLA_PRECISION_BF16 0

// A BF16 pair, about 16 bits, for twice the work there.
#define AMLA_PRECISION_BF16X2 1

// One BF16 for each; and inputs of F16, F32, Q8_0 and Q4_0 are rounded to BF16 by a backend that
// multiplies BF16. Otherwise it leaves calls with such inputs to the backend of the same processor that
// multiplies in FP32.
#define AMLA_PRECISION_BF16_INPUTS 2

// Natural logarithms: FlashMLA's and CANN's. The default.
#define AMLA_LSE_BASE_E 0

// Binary logarithms: FlashInfer's.
#define AMLA_LSE_BASE_2 1

// Infinity, as in FlashMLA. The default.
#define AMLA_LSE_EMPTY_INFINITY 0

// Minus infinity, the logarithm of the empty sum.
#define AMLA_LSE_EMPTY_MINUS_INFINITY 1

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The version of the interface: AMLA_ABI_VERSION as the library was compiled. A program that
// finds another one here than in its header must not go on.
//
// @return The number.
uint32_t amla_abi_version(void);

// The version of the library.
//
// @return A string like "0.1.0", there as long as the library is.
const char *amla_version_string(void);

// Name of the backend that calls use unless amla_call.backend names another: the fastest that
// this process can use.
//
// @return A string like "avx512bf16" or "portable", there as long as the library is.
const char *amla_backend_name(void);

// Requests permission from Linux for this process to use AMX. Then the backend "amx" is available,
// and amla_backend_name returns it on processors that have AMX.
//
// Linux demands the request because signals then take 8 KiB more of a thread's stack. It refuses
// where a thread's alternate signal stack is too small for that, and refuses such stacks afterwards.
//
// Call it before anything else, as calls without a named backend use the fastest. The permission
// holds for all threads and can't be taken back. Without AMX the function does nothing. Other
// functions learn of the permission by the system call arch_prctl, on processors that have AMX.
//
// @return AMLA_OK if the process may use it, AMLA_ERROR_BACKEND_UNAVAILABLE otherwise.
amla_status amla_permit_amx(void);

// Caps the backend for the whole process, as oneDNN's dnnl_set_max_cpu_isa() does: for a host that
// meets a bad one in the field. Backends are in the order portable, avx2, avx512, avx512bf16, amx on
// x86, portable, neon, neonbf16 on AArch64. Those behind the cap are unavailable, whether the
// processor has the cap itself or not.
//
// Call it before anything else but amla_permit_amx(). From the first call on that plans, computes,
// merges or lists backends the cap stays. It is the library's one setting for a whole process. The
// library reads no environment variables; a host that wants one passes it here:
// `if (getenv("AMLA_MAX_BACKEND")) amla_set_max_backend(getenv("AMLA_MAX_BACKEND"));`
//
// @param name A backend's name.
// @return AMLA_OK; AMLA_ERROR_NULL_POINTER; AMLA_ERROR_BACKEND_UNAVAILABLE if there is no such
//   backend on this architecture; AMLA_ERROR_BACKEND_IN_USE if it comes too late.
amla_status amla_set_max_backend(const char *name);

// Name of a backend that this process can use, the narrowest first. The fastest is
// amla_backend_name.
//
// @param index Which one.
// @return A string, there as long as the library is; null if there are fewer.
const char *amla_available_backend(size_t index);

// Tells what the library can do.
//
// @param set Where the answer goes; set its struct_size.
// @return AMLA_OK, AMLA_ERROR_NULL_POINTER, AMLA_ERROR_MISALIGNED or AMLA_ERROR_STRUCT_SIZE.
amla_status amla_capabilities(struct amla_capability_set *set);

// What a status means.
//
// @param status What a function returned.
// @return An English sentence, there as long as the library is; for numbers that are no
//   status, a sentence that says so.
const char *amla_status_string(amla_status status);

// Tells how many bytes the plan of a call takes.
//
// Lengths and shapes of `call` are looked at, results aren't.
//
// @param call What is to be computed.
// @param size Where the number of bytes goes.
// @param detail Null, or where the reason goes if the call is refused.
// @return AMLA_OK, or whatever is wrong with the call.
amla_status amla_plan_size(const struct amla_call *call,
                           size_t *size,
                           struct amla_error_detail *detail);

// Cuts a call into tasks for some threads: amla_plan_for_threads() for 16.
//
// @param call What is to be computed; its output isn't looked at.
// @param plan Where the plan goes; any alignment.
// @param plan_size Bytes there, at least what amla_plan_size() says.
// @param detail Null, or where the reason goes if the call is refused.
// @return AMLA_OK, or whatever is wrong with the arguments; then nothing was written.
amla_status amla_plan(const struct amla_call *call,
                      void *plan,
                      size_t plan_size,
                      struct amla_error_detail *detail);

// Cuts a call into tasks for a number of threads. Any number may run them; of this number none should wait long for the others.
//
// The plan is numbers only: it may be copied, moved and stored. It serves every call with the
// same shape and lengths (window, topk and split_keys included), from layer to layer. Results are
// those of amla_run() to the bit, for any number of threads.
//
// @param call What is to be computed; its output isn't looked at.
// @param threads How many threads will run the tasks.
// @param plan Where the plan goes; any alignment.
// @param plan_size Bytes there, at least what amla_plan_size() says.
// @param detail Null, or where the reason goes if the call is refused.
// @return AMLA_OK, or whatever is wrong with the arguments; then nothing was written.
amla_status amla_plan_for_threads(const struct amla_call *call,
                                  size_t threads,
                                  void *plan,
                                  size_t plan_size,
                                  struct amla_error_detail *detail);

// Tells how many tasks a plan has, and how much memory their results take.
//
// @param plan What amla_plan() wrote.
// @param plan_size Bytes of it.
// @param info Where the answer goes; set its struct_size.
// @param detail Null, or where the reason goes if the call is refused.
// @return AMLA_OK, AMLA_ERROR_NOT_A_PLAN, or what is wrong with the other arguments.
amla_status amla_plan_query(const void *plan,
                            size_t plan_size,
                            struct amla_plan_info *info,
                            struct amla_error_detail *detail);

// Tells how much memory holds the partial results of any call of at most these sizes: any lengths, ragged or sparse, planned for any
// number of threads. For hosts that fix their memory before lengths are known.
//
// @param max_b Requests.
// @param max_s_q Query positions of a request.
// @param max_s_k Keys of a request, or with sparse attention indices of both caches.
// @param h_q Query heads.
// @param h_kv KV heads.
// @param d_v Width of values.
// @param split_keys As the call's.
// @param partials_len Where the FP32 numbers go: 0 where no call has partial results, SIZE_MAX where there can't be as many.
// @param detail Null, or where the reason goes if the sizes are refused.
// @return AMLA_OK, or what is wrong with the arguments.
amla_status amla_plan_bound(size_t max_b,
                            size_t max_s_q,
                            size_t max_s_k,
                            size_t h_q,
                            size_t h_kv,
                            size_t d_v,
                            size_t split_keys,
                            size_t *partials_len,
                            struct amla_error_detail *detail);

// Tells how many bytes of memory a thread works in, aligned to AMLA_WORKSPACE_ALIGN.
//
// It needn't be initialised and holds nothing between calls. Threads that run at the same
// time need one each.
//
// @param call What is to be computed; its output isn't looked at.
// @param size Where the number of bytes goes; never more than AMLA_WORKSPACE_MAX.
// @param detail Null, or where the reason goes if the call is refused.
// @return AMLA_OK, or whatever is wrong with the call.
amla_status amla_workspace_size(const struct amla_call *call,
                                size_t *size,
                                struct amla_error_detail *detail);

// Computes a call on one thread: attends every query to its keys.
//
// It takes up to 64 KiB of the thread's stack, as amla_run_tasks() does. Like all functions here
// it computes in the default floating-point environment on x86 and AArch64: rounding to the
// nearest, subnormals as they are, no traps. The thread's own is back when it returns, with its
// flags as they were.
//
// @param call What is to be computed, and where results go.
// @param workspace Memory to work in, aligned to AMLA_WORKSPACE_ALIGN.
// @param workspace_size Bytes there, at least what amla_workspace_size() says.
// @param detail Null, or where the reason goes if the call is refused.
// @return AMLA_OK, or whatever is wrong with the arguments; then the outputs are untouched.
amla_status amla_run(const struct amla_call *call,
                     void *workspace,
                     size_t workspace_size,
                     struct amla_error_detail *detail);

// A dense call of DeepSeek's MLA in one line: amla_run() of contiguous BF16 queries and cache, into
// FP32, with the default options.
//
// As with AMLA_CAUSAL the queries of a request are those of its last s_q keys: query j sees the first
// s_k - (s_q - 1 - j). With s_q = 1, a token at a time, all see all keys. A row that sees none gets
// O = 0 and an infinite lse. All requests have s_k keys; for lengths of their own, pages, other formats
// or several threads there is the full call, and for the reason of a refusal its detail.
//
// @param q Absorbed queries, BF16, [b, s_q, h_q, AMLA_MLA_D_QK].
// @param kv The cache, BF16, [b, s_k, AMLA_MLA_D_QK]; the first AMLA_MLA_D_V numbers of a row are the value.
// @param b Requests.
// @param s_q Query positions of a request.
// @param s_k Keys of a request.
// @param h_q Query heads.
// @param softmax_scale Factor on the scores.
// @param o Where O goes, [b, s_q, h_q, AMLA_MLA_D_V].
// @param lse Where the natural logarithms of the sums of exponentials go, [b, h_q, s_q]; null if they aren't wanted.
// @param workspace Memory to work in, aligned to AMLA_WORKSPACE_ALIGN.
// @param workspace_size Bytes there; AMLA_WORKSPACE_MAX is enough.
// @return AMLA_OK, or whatever is wrong with the arguments; then the outputs are untouched.
amla_status amla_mla_decode(const uint16_t *q,
                            const uint16_t *kv,
                            size_t b,
                            size_t s_q,
                            size_t s_k,
                            size_t h_q,
                            float softmax_scale,
                            float *o,
                            float *lse,
                            void *workspace,
                            size_t workspace_size);

// Computes tasks begin, begin + 1, ..., end - 1 of a plan.
//
// Any number of threads may do so at the same time, for disjoint ranges and with a workspace
// each. Tasks have no order. The first partial_tasks of a plan have partial results: a call touches only its own tasks'
// part of `partials`, from begin * partial_len on. The others write their rows of the output. When all tasks are done,
// amla_combine() or amla_combine_range() merges the partial results.
//
// @param call What is to be computed, and where results go.
// @param plan What amla_plan() wrote for a call with this shape and these lengths.
// @param plan_size Bytes of it.
// @param begin The first task.
// @param end One more than the last task.
// @param workspace Memory to work in, this thread's alone, aligned to AMLA_WORKSPACE_ALIGN.
// @param workspace_size Bytes there, at least what amla_workspace_size() says.
// @param partials Where all partial results go; the same memory for all threads. It needn't be
//   initialised.
// @param partials_len FP32 numbers there, at least what amla_plan_query() says.
// @param detail Null, or where the reason goes if the call is refused; this thread's alone.
// @return AMLA_OK, or whatever is wrong with the arguments; then output and `partials` are untouched.
amla_status amla_run_tasks(const struct amla_call *call,
                           const void *plan,
                           size_t plan_size,
                           size_t begin,
                           size_t end,
                           void *workspace,
                           size_t workspace_size,
                           float *partials,
                           size_t partials_len,
                           struct amla_error_detail *detail);

// Merges all partial results, in the order of the keys, and writes their rows of the outputs.
//
// @param call What was computed, and where results go.
// @param plan The plan that the tasks are of.
// @param plan_size Bytes of it.
// @param partials What amla_run_tasks() wrote for all tasks.
// @param partials_len FP32 numbers there, at least what amla_plan_query() says.
// @param detail Null, or where the reason goes if the call is refused.
// @return AMLA_OK, or whatever is wrong with the arguments; then the outputs are untouched.
amla_status amla_combine(const struct amla_call *call,
                         const void *plan,
                         size_t plan_size,
                         const float *partials,
                         size_t partials_len,
                         struct amla_error_detail *detail);

// Merges partial results in the order of the keys: merges begin, begin + 1, ..., end - 1 of a plan. Any number of threads may do
// so at the same time, for disjoint ranges, when all tasks are done.
//
// @param call What was computed, and where results go.
// @param plan The plan that the tasks are of.
// @param plan_size Bytes of it.
// @param begin The first merge.
// @param end One more than the last merge.
// @param partials What amla_run_tasks() wrote for all tasks.
// @param partials_len FP32 numbers there, at least what amla_plan_query() says.
// @param detail Null, or where the reason goes if the call is refused; this thread's alone.
// @return AMLA_OK, or whatever is wrong with the arguments; then the outputs are untouched.
amla_status amla_combine_range(const struct amla_call *call,
                               const void *plan,
                               size_t plan_size,
                               size_t begin,
                               size_t end,
                               const float *partials,
                               size_t partials_len,
                               struct amla_error_detail *detail);

// A call of a plan on the caller's threads: as many as there are workspaces. Results are those of amla_run() to the bit.
//
// `parallel_for` is called once, or not at all where one thread has all there is to do: OpenMP's loop, a thread pool's, a loop that
// starts threads. It has the caller's floating-point environment. What it leaves undone is done afterwards. With
// amla_plan_for_threads() for this number of threads none should wait long for the others.
//
// @param call What is to be computed, and where results go.
// @param plan What amla_plan() or amla_plan_for_threads() wrote for a call with this shape and these lengths.
// @param plan_size Bytes of it.
// @param parallel_for Calls `body` with `arg` and each number below `n`, once, on any threads in any order, and returns when
//   all calls have.
// @param pool What `parallel_for` gets first; may be null.
// @param workspaces Memory to work in, aligned to AMLA_WORKSPACE_ALIGN, for all threads: one behind the other, each of the
//   size that amla_workspace_size() says.
// @param workspaces_size Bytes there, of one workspace at least.
// @param partials Where partial results go. It needn't be initialised; null where there are none.
// @param partials_len FP32 numbers there, at least what amla_plan_query() says.
// @param detail Null, or where the reason goes if the call is refused.
// @return AMLA_OK, or whatever is wrong with the arguments; then the outputs are untouched.
amla_status amla_run_parallel(const struct amla_call *call,
                              const void *plan,
                              size_t plan_size,
                              amla_parallel_for parallel_for,
                              void *pool,
                              void *workspaces,
                              size_t workspaces_size,
                              float *partials,
                              size_t partials_len,
                              struct amla_error_detail *detail);

// Merges results over different keys of the same queries into `total`, which holds one of them.
// Keys are a shared prefix and those behind it, or caches sharded over devices or processes.
//
// A part's weight is the exponential of its lse. Rows that saw no key have the total's
// lse_empty and weigh nothing. With AMLA_LSE_EMPTY_MINUS_INFINITY, infinity is a number. Sums
// are in FP64 and in the given order: the same parts in the same order give the same bits.
// Results must be in FP32, and computed without a sink.
//
// @param b Requests; 1 for ragged queries.
// @param s_q Query positions of a request; for ragged queries all tokens.
// @param h_q Query heads.
// @param d_v Width of a row of O.
// @param total Strides, format and memory, which holds one of the results.
// @param parts The others, parts_len of them.
// @param parts_len At most AMLA_MERGE_MAX.
// @param detail Null, or where the reason goes if the call is refused.
// @return AMLA_OK, or whatever is wrong with the arguments; then the total is untouched.
amla_status amla_merge(size_t b,
                       size_t s_q,
                       size_t h_q,
                       size_t d_v,
                       const struct amla_output *total,
                       const struct amla_part *parts,
                       size_t parts_len,
                       struct amla_error_detail *detail);

// Encodes a row of 576 BF16 numbers for AMLA_DTYPE_FP8. The scale of each 128 of the first 512 is
// their largest magnitude over 448. The last 64 stay BF16.
//
// @param row BF16 numbers.
// @param row_len 576.
// @param bytes Where the row goes.
// @param bytes_len AMLA_FP8_ROW.
// @param detail Null, or where the reason goes if the call is refused.
// @return AMLA_OK, or whatever is wrong with the arguments; then nothing was written.
amla_status amla_encode_fp8(const uint16_t *row,
                            size_t row_len,
                            uint8_t *bytes,
                            size_t bytes_len,
                            struct amla_error_detail *detail);

// Encodes a row of 512 BF16 numbers for AMLA_DTYPE_MODEL1. The scale of each 64 of the first 448
// is the power of two that takes their largest magnitude to 448 at most. The last 64 stay BF16.
//
// @param row BF16 numbers.
// @param row_len 512.
// @param bytes Where the row goes.
// @param bytes_len AMLA_MODEL1_ROW.
// @param scales Where its scales go.
// @param scales_len AMLA_MODEL1_SCALES.
// @param detail Null, or where the reason goes if the call is refused.
// @return AMLA_OK, or whatever is wrong with the arguments; then nothing was written.
amla_status amla_encode_model1(const uint16_t *row,
                               size_t row_len,
                               uint8_t *bytes,
                               size_t bytes_len,
                               uint8_t *scales,
                               size_t scales_len,
                               struct amla_error_detail *detail);

// Encodes a row of BF16 numbers for AMLA_DTYPE_INT8, by its largest magnitude over 127. INT8
// has no NaN, which becomes 0; an infinity makes the scale infinite, and the whole row NaN.
//
// @param row BF16 numbers.
// @param row_len How many.
// @param values Where the row goes.
// @param values_len As row_len.
// @param scale Where its scale goes.
// @param detail Null, or where the reason goes if the call is refused.
// @return AMLA_OK, or whatever is wrong with the arguments; then nothing was written.
amla_status amla_encode_int8(const uint16_t *row,
                             size_t row_len,
                             int8_t *values,
                             size_t values_len,
                             float *scale,
                             struct amla_error_detail *detail);

// Encodes a row of BF16 numbers for AMLA_DTYPE_E4M3, by its largest magnitude over 448. NaN stays
// NaN; an infinity makes the scale infinite, and the whole row NaN.
//
// @param row BF16 numbers.
// @param row_len How many.
// @param values Where the row goes.
// @param values_len As row_len.
// @param scale Where its scale goes.
// @param detail Null, or where the reason goes if the call is refused.
// @return AMLA_OK, or whatever is wrong with the arguments; then nothing was written.
amla_status amla_encode_e4m3(const uint16_t *row,
                             size_t row_len,
                             uint8_t *values,
                             size_t values_len,
                             float *scale,
                             struct amla_error_detail *detail);

// Encodes a row of FP32 numbers as ggml's blocks for AMLA_DTYPE_Q8_0, bit for bit as its
// quantize_row_q8_0_ref does.
//
// @param row FP32 numbers.
// @param row_len 32 * blocks_len.
// @param blocks Where the row goes: blocks of 34 bytes, aligned to 2.
// @param blocks_len How many blocks.
// @param detail Null, or where the reason goes if the call is refused.
// @return AMLA_OK, or whatever is wrong with the arguments; then nothing was written.
amla_status amla_encode_q8_0(const float *row,
                             size_t row_len,
                             void *blocks,
                             size_t blocks_len,
                             struct amla_error_detail *detail);

// Encodes a row of FP32 numbers as ggml's blocks for AMLA_DTYPE_Q4_0, bit for bit as its
// quantize_row_q4_0_ref does.
//
// @param row FP32 numbers.
// @param row_len 32 * blocks_len.
// @param blocks Where the row goes: blocks of 18 bytes, aligned to 2.
// @param blocks_len How many blocks.
// @param detail Null, or where the reason goes if the call is refused.
// @return AMLA_OK, or whatever is wrong with the arguments; then nothing was written.
amla_status amla_encode_q4_0(const float *row,
                             size_t row_len,
                             void *blocks,
                             size_t blocks_len,
                             struct amla_error_detail *detail);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus


// Initialisers of contiguous tensors, outputs and dense calls. Other fields are 0: set those that the
// call needs besides.

// A contiguous tensor [n0, n1, n2, width]: queries [b, s_q, h_q, d_qk], a cache [b, s_k, h_kv, d_qk] or
// [pages, page_size, h_kv, d_qk].
//
// For AMLA_DTYPE_FP8 width is AMLA_FP8_ROW. For AMLA_DTYPE_INT8 set scales too, [n0, n1, n2] of them.
//
// @return The tensor.
static inline struct amla_tensor amla_tensor_contiguous(amla_dtype dtype, const void *data,
                                                        size_t n0, size_t n1, size_t n2,
                                                        size_t width)
{
    struct amla_tensor tensor = AMLA_ZERO;
    tensor.struct_size = (uint32_t)sizeof tensor;
    tensor.dtype = dtype;
    tensor.data = data;
    tensor.len = n0 * n1 * n2 * width;
    tensor.strides[0] = n1 * n2 * width;
    tensor.strides[1] = n2 * width;
    tensor.strides[2] = width;
    tensor.scales_len = n0 * n1 * n2;
    tensor.scale_strides[0] = n1 * n2;
    tensor.scale_strides[1] = n2;
    tensor.scale_strides[2] = 1;
    return tensor;
}

// Contiguous outputs: o [b, s_q, h_q, d_v], and lse [b, h_q, s_q] with natural logarithms.
//
// @return The output.
static inline struct amla_output amla_output_contiguous(amla_dtype dtype, void *o, float *lse,
                                                        size_t b, size_t s_q, size_t h_q,
                                                        size_t d_v)
{
    struct amla_output output = AMLA_ZERO;
    output.struct_size = (uint32_t)sizeof output;
    output.dtype = dtype;
    output.o = o;
    output.o_len = b * s_q * h_q * d_v;
    output.o_strides[0] = s_q * h_q * d_v;
    output.o_strides[1] = h_q * d_v;
    output.o_strides[2] = d_v;
    output.lse = lse;
    output.lse_len = b * h_q * s_q;
    output.lse_strides[0] = h_q * s_q;
    output.lse_strides[1] = s_q;
    output.lse_strides[2] = 1;
    return output;
}

// A dense call of MLA: one KV head, rows of AMLA_MLA_D_QK numbers whose first AMLA_MLA_D_V are the
// value. For other widths or more KV heads change d_qk, d_v and h_kv.
//
// @return The call.
static inline struct amla_call amla_call_mla(const struct amla_tensor *q,
                                             const struct amla_tensor *kv,
                                             const struct amla_output *output, size_t b,
                                             size_t s_q, size_t s_k, size_t h_q,
                                             float softmax_scale)
{
    struct amla_call call = AMLA_ZERO;
    call.struct_size = (uint32_t)sizeof call;
    call.b = b;
    call.s_q = s_q;
    call.s_k = s_k;
    call.h_q = h_q;
    call.h_kv = 1;
    call.d_qk = AMLA_MLA_D_QK;
    call.d_v = AMLA_MLA_D_V;
    call.softmax_scale = softmax_scale;
    call.q = q;
    call.kv = kv;
    call.output = output;
    return call;
}

// A detail for a function to write the reason of a refusal to.
//
// @return The detail.
static inline struct amla_error_detail amla_error_detail_init(void)
{
    struct amla_error_detail detail = AMLA_ZERO;
    detail.struct_size = (uint32_t)sizeof detail;
    return detail;
}

#undef AMLA_ZERO
#undef AMLA_DEFAULT
#undef AMLA_SIZE

#endif  /* AMLA_H */
