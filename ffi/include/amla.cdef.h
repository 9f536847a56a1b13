enum {
    AMLA_ABI_VERSION = 3,
    AMLA_WORKSPACE_ALIGN = 64,
    AMLA_WORKSPACE_MAX = 2097152,
    AMLA_PLAN_MAX = 256,
    AMLA_MERGE_MAX = 64,
    AMLA_DIMS_MAX = 16,
    AMLA_MLA_D_QK = 576,
    AMLA_MLA_D_V = 512,
    AMLA_FP8_ROW = 656,
    AMLA_MODEL1_ROW = 576,
    AMLA_MODEL1_SCALES = 8,
    AMLA_CAUSAL = 1,
    AMLA_LIST_STRIDES = 2,
    AMLA_FEATURE_PAGES = 1,
    AMLA_FEATURE_RAGGED = 2,
    AMLA_FEATURE_WINDOW = 4,
    AMLA_FEATURE_TAIL_MASK = 8,
    AMLA_FEATURE_SPARSE = 16,
    AMLA_FEATURE_SINK = 32,
    AMLA_FEATURE_MERGE = 64,
    AMLA_FEATURE_SPARSE_SPLIT = 128,
    AMLA_FEATURE_INDICES64 = 256,
    AMLA_FEATURE_MAX_LOGITS = 512,
    AMLA_FEATURE_LIST_STRIDES = 1024,
    AMLA_FEATURE_V_OFFSET = 2048
};
typedef int32_t amla_status;
struct amla_capability_set {
    uint32_t struct_size;
    uint32_t abi_version;
    uint64_t features;
    uint32_t input_dtypes;
    uint32_t output_dtypes;
    uint32_t dims_len;
    uint32_t backends_len;
    uint32_t dims[AMLA_DIMS_MAX][2];
};
typedef uint32_t amla_rescale;
typedef uint32_t amla_precision;
typedef uint32_t amla_dtype;
struct amla_tensor {
    uint32_t struct_size;
    amla_dtype dtype;
    const void *data;
    size_t len;
    size_t strides[3];
    const float *scales;
    size_t scales_len;
    size_t scale_strides[3];
    size_t model1_scales;
    size_t model1_scale_stride;
};
struct amla_indices {
    uint32_t struct_size;
    uint32_t reserved;
    const int32_t *indices;
    size_t indices_len;
    size_t strides[2];
    size_t topk;
    const int32_t *topk_length;
    size_t topk_length_len;
    const int64_t *indices64;
    size_t stride_h_kv;
    size_t topk_length_strides[2];
};
struct amla_extra {
    uint32_t struct_size;
    uint32_t reserved;
    const struct amla_tensor *kv;
    size_t pages;
    size_t page_size;
    const struct amla_indices *indices;
};
typedef uint32_t amla_lse_base;
typedef uint32_t amla_lse_empty;
struct amla_output {
    uint32_t struct_size;
    amla_dtype dtype;
    void *o;
    size_t o_len;
    size_t o_strides[3];
    float *lse;
    size_t lse_len;
    size_t lse_strides[3];
    amla_lse_base lse_base;
    amla_lse_empty lse_empty;
    float *max_logits;
    size_t max_logits_len;
};
struct amla_call {
    uint32_t struct_size;
    uint32_t flags;
    size_t b;
    size_t s_q;
    size_t s_k;
    size_t h_q;
    size_t h_kv;
    size_t d_qk;
    size_t d_v;
    float softmax_scale;
    amla_rescale rescale;
    amla_precision precision;
    uint32_t reserved;
    const char *backend;
    const struct amla_tensor *q;
    const struct amla_tensor *q_rope;
    const struct amla_tensor *kv;
    const struct amla_tensor *k_rope;
    const struct amla_tensor *v;
    const int32_t *q_indptr;
    size_t q_indptr_len;
    const int32_t *kv_indptr;
    size_t kv_indptr_len;
    const int32_t *cache_seqlens;
    size_t cache_seqlens_len;
    const int32_t *block_table;
    size_t block_table_len;
    size_t max_blocks;
    size_t page_size;
    size_t pages;
    size_t window;
    const uint64_t *tail_mask;
    size_t tail_mask_len;
    size_t tail;
    const struct amla_indices *sparse;
    const struct amla_extra *extra;
    const float *sink;
    size_t sink_len;
    const struct amla_output *output;
    size_t v_offset;
    size_t block_table_stride;
    size_t cache_seqlens_stride;
    size_t split_keys;
};
struct amla_error_detail {
    uint32_t struct_size;
    amla_status status;
    int64_t value;
    int64_t min;
    int64_t max;
    uint64_t index;
    uint64_t entry;
    double number;
    char argument[32];
    char other[32];
    char message[192];
};
struct amla_plan_info {
    uint32_t struct_size;
    uint32_t reserved;
    size_t tasks;
    size_t partial_len;
    size_t partials_len;
    size_t partial_tasks;
    size_t merges;
};
typedef void (*amla_parallel_for)(void *pool, size_t n, void (*body)(void *arg, size_t i), void *arg);
struct amla_part {
    uint32_t struct_size;
    uint32_t reserved;
    const float *o;
    size_t o_len;
    const float *lse;
    size_t lse_len;
    const float *max_logits;
    size_t max_logits_len;
};
enum {
    AMLA_OK = 0,
    AMLA_ERROR_NULL_POINTER = 1,
    AMLA_ERROR_STRUCT_SIZE = 2,
    AMLA_ERROR_UNKNOWN_VALUE = 3,
    AMLA_ERROR_MISALIGNED = 4,
    AMLA_ERROR_BAD_EXTENT = 5,
    AMLA_ERROR_ALIASED = 6,
    AMLA_ERROR_NOT_A_PLAN = 7,
    AMLA_ERROR_UNSUPPORTED_DIMS = 8,
    AMLA_ERROR_OUT_OF_RANGE = 9,
    AMLA_ERROR_TOO_SHORT = 10,
    AMLA_ERROR_WRONG_LENGTH = 11,
    AMLA_ERROR_OVERFLOW = 12,
    AMLA_ERROR_OVERLAP = 13,
    AMLA_ERROR_SEQLEN = 14,
    AMLA_ERROR_TOPK_LENGTH = 15,
    AMLA_ERROR_PAGE = 16,
    AMLA_ERROR_INDPTR = 17,
    AMLA_ERROR_FORMAT = 18,
    AMLA_ERROR_HEADS = 19,
    AMLA_ERROR_CONFLICT = 20,
    AMLA_ERROR_PLAN_MISMATCH = 21,
    AMLA_ERROR_NON_FINITE_SCALE = 22,
    AMLA_ERROR_BACKEND_UNAVAILABLE = 23,
    AMLA_ERROR_OTHER = 24,
    AMLA_ERROR_BACKEND_IN_USE = 25,
    AMLA_DTYPE_BF16 = 1,
    AMLA_DTYPE_F16 = 2,
    AMLA_DTYPE_F32 = 3,
    AMLA_DTYPE_FP8 = 4,
    AMLA_DTYPE_MODEL1 = 5,
    AMLA_DTYPE_INT8 = 6,
    AMLA_DTYPE_Q8_0 = 7,
    AMLA_DTYPE_Q4_0 = 8,
    AMLA_DTYPE_E4M3 = 9,
    AMLA_RESCALE_EXACT = 0,
    AMLA_RESCALE_COMPENSATED = 1,
    AMLA_PRECISION_BF16 = 0,
    AMLA_PRECISION_BF16X2 = 1,
    AMLA_PRECISION_BF16_INPUTS = 2,
    AMLA_LSE_BASE_E = 0,
    AMLA_LSE_BASE_2 = 1,
    AMLA_LSE_EMPTY_INFINITY = 0,
    AMLA_LSE_EMPTY_MINUS_INFINITY = 1
};
uint32_t amla_abi_version(void);
const char *amla_version_string(void);
const char *amla_backend_name(void);
amla_status amla_permit_amx(void);
amla_status amla_set_max_backend(const char *name);
const char *amla_available_backend(size_t index);
amla_status amla_capabilities(struct amla_capability_set *set);
const char *amla_status_string(amla_status status);
amla_status amla_plan_size(const struct amla_call *call,
                           size_t *size,
                           struct amla_error_detail *detail);
amla_status amla_plan(const struct amla_call *call,
                      void *plan,
                      size_t plan_size,
                      struct amla_error_detail *detail);
amla_status amla_plan_for_threads(const struct amla_call *call,
                                  size_t threads,
                                  void *plan,
                                  size_t plan_size,
                                  struct amla_error_detail *detail);
amla_status amla_plan_query(const void *plan,
                            size_t plan_size,
                            struct amla_plan_info *info,
                            struct amla_error_detail *detail);
amla_status amla_plan_bound(size_t max_b,
                            size_t max_s_q,
                            size_t max_s_k,
                            size_t h_q,
                            size_t h_kv,
                            size_t d_v,
                            size_t split_keys,
                            size_t *partials_len,
                            struct amla_error_detail *detail);
amla_status amla_workspace_size(const struct amla_call *call,
                                size_t *size,
                                struct amla_error_detail *detail);
amla_status amla_run(const struct amla_call *call,
                     void *workspace,
                     size_t workspace_size,
                     struct amla_error_detail *detail);
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
amla_status amla_combine(const struct amla_call *call,
                         const void *plan,
                         size_t plan_size,
                         const float *partials,
                         size_t partials_len,
                         struct amla_error_detail *detail);
amla_status amla_combine_range(const struct amla_call *call,
                               const void *plan,
                               size_t plan_size,
                               size_t begin,
                               size_t end,
                               const float *partials,
                               size_t partials_len,
                               struct amla_error_detail *detail);
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
amla_status amla_merge(size_t b,
                       size_t s_q,
                       size_t h_q,
                       size_t d_v,
                       const struct amla_output *total,
                       const struct amla_part *parts,
                       size_t parts_len,
                       struct amla_error_detail *detail);
amla_status amla_encode_fp8(const uint16_t *row,
                            size_t row_len,
                            uint8_t *bytes,
                            size_t bytes_len,
                            struct amla_error_detail *detail);
amla_status amla_encode_model1(const uint16_t *row,
                               size_t row_len,
                               uint8_t *bytes,
                               size_t bytes_len,
                               uint8_t *scales,
                               size_t scales_len,
                               struct amla_error_detail *detail);
amla_status amla_encode_int8(const uint16_t *row,
                             size_t row_len,
                             int8_t *values,
                             size_t values_len,
                             float *scale,
                             struct amla_error_detail *detail);
amla_status amla_encode_e4m3(const uint16_t *row,
                             size_t row_len,
                             uint8_t *values,
                             size_t values_len,
                             float *scale,
                             struct amla_error_detail *detail);
amla_status amla_encode_q8_0(const float *row,
                             size_t row_len,
                             void *blocks,
                             size_t blocks_len,
                             struct amla_error_detail *detail);
amla_status amla_encode_q4_0(const float *row,
                             size_t row_len,
                             void *blocks,
                             size_t blocks_len,
                             struct amla_error_detail *detail);
