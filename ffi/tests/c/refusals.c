/*
 * What the library refuses: each status, with the argument that it names, from every function that
 * looks at what is wrong; and that nothing was written.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "amla.h"

enum {
    B = 2, S_K = 40, H_Q = 3, D = 128, PAGE = 16, BLOCKS = 3, PAGES = 6, TOPK = 5,
    Q_LEN = B * H_Q * D, KV_LEN = PAGES * PAGE * D, O_LEN = Q_LEN, LSE_LEN = B * H_Q,
    PARTIALS = 1 << 17,
    LONG = 5000 /* keys enough for partial results */
};

/* A good call and all that it points to. */
static struct world {
    struct amla_call call;
    struct amla_tensor q, kv, rope, v, extra_kv;
    struct amla_output output;
    struct amla_indices indices, extra_indices;
    struct amla_extra extra;
    struct amla_part part;
    const void *plan_memory;
    size_t plan_size, begin, end, workspace_size, partials_len, parts;
    void *workspace;
    amla_parallel_for parallel_for;
    float *partials;
    size_t d_v;
} w;

static uint16_t q[Q_LEN], kv[KV_LEN + 1], v[B * S_K * D];
static int32_t lens[B] = {S_K, 7}, table[B * BLOCKS] = {5, 0, 2, 1, -1, 99};
static int32_t q_indptr[B + 1] = {0, 1, 2}, kv_indptr[B + 1] = {0, 40, 47};
static int32_t places[B * TOPK], counts[B] = {TOPK, 0};
static uint64_t mask[B] = {~UINT64_C(0), 1};
static float sink[H_Q], scales[PAGES * PAGE];
static float o[O_LEN + 1], lse[LSE_LEN], part_o[O_LEN], part_lse[LSE_LEN];
static float partials[PARTIALS];
static unsigned char plan[AMLA_PLAN_MAX], other_plan[AMLA_PLAN_MAX], out_plan[AMLA_PLAN_MAX],
    long_plan[AMLA_PLAN_MAX];
static _Alignas(AMLA_WORKSPACE_ALIGN) unsigned char workspace[AMLA_WORKSPACE_MAX + 1];
static size_t plan_size;
static int failures;

/* A refused call starts nothing. */
static void never(void *pool, size_t n, void (*body)(void *, size_t), void *arg) {
    (void)pool, (void)n, (void)body, (void)arg;
    failures++, fprintf(stderr, "parallel_for was called\n");
}

static void good(void) {
    memset(&w, 0, sizeof w);
    w.q = (struct amla_tensor){.struct_size = sizeof w.q, .dtype = AMLA_DTYPE_BF16, .data = q,
                               .len = Q_LEN, .strides = {H_Q * D, H_Q * D, D}};
    w.kv = (struct amla_tensor){.struct_size = sizeof w.kv, .dtype = AMLA_DTYPE_BF16, .data = kv,
                                .len = KV_LEN, .strides = {PAGE * D, D, D},
                                .scales = scales, .scales_len = PAGES * PAGE,
                                .scale_strides = {PAGE, 1, 0}};
    w.rope = w.v = w.extra_kv = w.kv;
    w.v.data = v;
    w.v.len = B * S_K * D;
    w.v.strides[0] = S_K * D;
    w.output = (struct amla_output){.struct_size = sizeof w.output, .dtype = AMLA_DTYPE_F32,
                                    .o = o, .o_len = O_LEN, .o_strides = {H_Q * D, H_Q * D, D},
                                    .lse = lse, .lse_len = LSE_LEN, .lse_strides = {H_Q, 1, 1}};
    w.indices = (struct amla_indices){.struct_size = sizeof w.indices, .indices = places,
                                      .indices_len = B * TOPK, .strides = {TOPK, TOPK},
                                      .topk = TOPK, .topk_length = counts, .topk_length_len = B};
    w.extra_indices = w.indices;
    w.extra = (struct amla_extra){.struct_size = sizeof w.extra, .kv = &w.extra_kv,
                                  .pages = PAGES, .page_size = PAGE,
                                  .indices = &w.extra_indices};
    w.part = (struct amla_part){.struct_size = sizeof w.part, .o = part_o, .o_len = O_LEN,
                                .lse = part_lse, .lse_len = LSE_LEN};
    w.call = (struct amla_call){
        .struct_size = sizeof w.call, .b = B, .s_q = 1, .s_k = S_K, .h_q = H_Q, .h_kv = 1,
        .d_qk = D, .d_v = D, .softmax_scale = 0.1F, .q = &w.q, .kv = &w.kv,
        .cache_seqlens = lens, .cache_seqlens_len = B, .block_table = table,
        .block_table_len = B * BLOCKS, .max_blocks = BLOCKS, .page_size = PAGE, .pages = PAGES,
        .output = &w.output};
    w.plan_memory = plan;
    w.plan_size = plan_size;
    w.begin = 0;
    w.end = B;
    w.workspace = workspace;
    w.workspace_size = AMLA_WORKSPACE_MAX;
    w.parallel_for = never;
    w.partials = partials;
    w.partials_len = PARTIALS;
    w.parts = 1;
    w.d_v = D;
}

/* Not paged, for what pages exclude. */
static void contiguous(void) {
    w.call.block_table = NULL;
    w.call.block_table_len = w.call.max_blocks = w.call.page_size = w.call.pages = 0;
    w.kv.strides[0] = S_K * D;
}

/* All of the keys are one row. */
static void long_keys(void) {
    contiguous();
    w.kv.strides[0] = w.kv.strides[1] = 0;
    w.call.s_k = LONG;
    w.call.cache_seqlens = NULL;
    w.call.cache_seqlens_len = 0;
    w.plan_memory = long_plan;
}

static void sparse(void) {
    w.call.sparse = &w.indices;
    w.call.extra = &w.extra;
}

/* Who looks at what is wrong. */
enum { SIZES = 1, RUN = 2, TASKS = 4, COMBINE = 8, MERGE = 16, QUERY = 32, PARALLEL = 64,
       PLANNED = TASKS | COMBINE | PARALLEL, CALL = SIZES | RUN | PLANNED,
       COMPUTE = RUN | TASKS | PARALLEL, OUTPUT = RUN | PLANNED };

static void fill(void) {
    memset(o, 0xa5, sizeof o);
    memset(lse, 0xa5, sizeof lse);
    memset(partials, 0xa5, sizeof partials);
    memset(out_plan, 0xa5, sizeof out_plan);
}

static int is_filled(const void *memory, size_t bytes) {
    const unsigned char *bytes_of = memory;
    for (size_t i = 0; i < bytes; i++)
        if (bytes_of[i] != 0xa5) return 0;
    return 1;
}

static void expect(const char *name, const char *function, amla_status want, amla_status got,
                   const struct amla_error_detail *detail, const char *argument) {
    int ok = got == want && detail->status == want && strcmp(detail->argument, argument) == 0 &&
             detail->message[0] != 0 && detail->struct_size == sizeof *detail &&
             is_filled(o, sizeof o) && is_filled(lse, sizeof lse) &&
             is_filled(partials, sizeof partials) && is_filled(out_plan, sizeof out_plan);
    if (!ok) {
        failures++;
        fprintf(stderr, "%s, %s: status %d (want %d), argument %s (want %s), %s, %s\n", name,
                function, got, want, detail->argument, argument, detail->message,
                is_filled(o, sizeof o) ? "o untouched" : "o WRITTEN");
    }
}

static struct amla_error_detail last;

static void refused(const char *name, int who, amla_status want, const char *argument) {
    struct amla_error_detail detail;
    size_t size = 7;
    struct amla_plan_info info = {.struct_size = sizeof info};
#define TRY(function, call)                                                                       \
    do {                                                                                          \
        memset(&detail, 0, sizeof detail);                                                        \
        detail.struct_size = sizeof detail;                                                       \
        amla_status got = call;                                                                   \
        expect(name, function, want, got, &detail, argument);                                     \
        last = detail;                                                                            \
    } while (0)
    fill();
    if (who & SIZES) {
        TRY("amla_plan_size", amla_plan_size(&w.call, &size, &detail));
        TRY("amla_workspace_size", amla_workspace_size(&w.call, &size, &detail));
        TRY("amla_plan", amla_plan(&w.call, out_plan, sizeof out_plan, &detail));
        TRY("amla_plan_for_threads",
            amla_plan_for_threads(&w.call, 3, out_plan, sizeof out_plan, &detail));
        if (size != 7) failures++, fprintf(stderr, "%s: size WRITTEN\n", name);
    }
    if (who & RUN)
        TRY("amla_run", amla_run(&w.call, w.workspace, w.workspace_size, &detail));
    if (who & TASKS)
        TRY("amla_run_tasks",
            amla_run_tasks(&w.call, w.plan_memory, w.plan_size, w.begin, w.end, w.workspace,
                           w.workspace_size, w.partials, w.partials_len, &detail));
    if (who & COMBINE) {
        TRY("amla_combine", amla_combine(&w.call, w.plan_memory, w.plan_size, w.partials,
                                         w.partials_len, &detail));
        TRY("amla_combine_range", amla_combine_range(&w.call, w.plan_memory, w.plan_size, 0, 0,
                                                   w.partials, w.partials_len, &detail));
    }
    if (who & PARALLEL)
        TRY("amla_run_parallel",
            amla_run_parallel(&w.call, w.plan_memory, w.plan_size, w.parallel_for, NULL,
                              w.workspace, w.workspace_size, w.partials, w.partials_len,
                              &detail));
    if (who & MERGE)
        TRY("amla_merge", amla_merge(B, 1, H_Q, w.d_v, &w.output, &w.part, w.parts, &detail));
    if (who & QUERY) {
        TRY("amla_plan_query", amla_plan_query(w.plan_memory, w.plan_size, &info, &detail));
        if (info.tasks || info.partials_len) failures++, fprintf(stderr, "%s: info\n", name);
    }
#undef TRY
    good();
}

/* change; then the call is refused. */
#define REFUSED(who, status, argument, ...)                                                       \
    do {                                                                                          \
        __VA_ARGS__;                                                                              \
        refused(#__VA_ARGS__, who, AMLA_ERROR_##status, argument);                                \
    } while (0)

#define DETAIL(condition)                                                                         \
    do {                                                                                          \
        if (!(condition)) failures++, fprintf(stderr, "line %d: %s\n", __LINE__, #condition);     \
    } while (0)

static void pointers(void) {
    REFUSED(CALL, NULL_POINTER, "q", w.call.q = NULL);
    REFUSED(CALL, NULL_POINTER, "kv", w.call.kv = NULL);
    REFUSED(CALL, NULL_POINTER, "q", w.q.data = NULL);
    REFUSED(CALL, NULL_POINTER, "kv", w.kv.data = NULL);
    REFUSED(CALL, NULL_POINTER, "kv.scales", w.kv.dtype = AMLA_DTYPE_INT8; w.kv.scales = NULL);
    REFUSED(CALL, NULL_POINTER, "cache_seqlens", w.call.cache_seqlens = NULL);
    REFUSED(CALL, NULL_POINTER, "block_table", w.call.block_table = NULL);
    REFUSED(CALL, NULL_POINTER, "tail_mask", w.call.tail = 9);
    REFUSED(CALL, NULL_POINTER, "sink", w.call.sink_len = H_Q);
    REFUSED(CALL, NULL_POINTER, "sparse", w.call.extra = &w.extra);
    REFUSED(CALL, NULL_POINTER, "extra_kv", sparse(); w.extra.kv = NULL);
    REFUSED(CALL, NULL_POINTER, "extra_indices", sparse(); w.extra.indices = NULL);
    REFUSED(CALL, NULL_POINTER, "indices", sparse(); w.indices.indices = NULL);
    REFUSED(OUTPUT, NULL_POINTER, "output", w.call.output = NULL);
    REFUSED(OUTPUT | MERGE, NULL_POINTER, "o", w.output.o = NULL);
    REFUSED(OUTPUT | MERGE, NULL_POINTER, "lse", w.output.lse = NULL);
    REFUSED(OUTPUT | MERGE, NULL_POINTER, "max_logits", w.output.max_logits_len = 1);
    REFUSED(COMPUTE, NULL_POINTER, "workspace", w.workspace = NULL);
    REFUSED(PLANNED, NULL_POINTER, "partials", long_keys(); w.partials = NULL);
    REFUSED(PARALLEL, NULL_POINTER, "parallel_for", w.parallel_for = NULL);
    REFUSED(PLANNED | QUERY, NULL_POINTER, "plan", w.plan_memory = NULL);
    REFUSED(MERGE, NULL_POINTER, "parts.o", w.part.o = NULL);
    REFUSED(MERGE, NULL_POINTER, "parts.lse", w.part.lse = NULL);

    void *odd = (char *)kv + 1;
    REFUSED(CALL, MISALIGNED, "kv", w.kv.data = odd);
    DETAIL(last.max == 2);
    REFUSED(CALL, MISALIGNED, "kv", w.kv.dtype = AMLA_DTYPE_F32; w.kv.data = (char *)kv + 2);
    DETAIL(last.max == 4);
    REFUSED(CALL, MISALIGNED, "kv", w.kv.dtype = AMLA_DTYPE_Q8_0; w.kv.data = odd);
    REFUSED(CALL, MISALIGNED, "kv", w.kv.dtype = AMLA_DTYPE_Q4_0; w.kv.data = odd);
    DETAIL(last.max == 2);
    REFUSED(CALL, MISALIGNED, "cache_seqlens", w.call.cache_seqlens = odd);
    REFUSED(COMPUTE, MISALIGNED, "workspace", w.workspace = workspace + 1);
    DETAIL(last.max == AMLA_WORKSPACE_ALIGN);
    REFUSED(COMPUTE, MISALIGNED, "workspace", w.workspace = workspace + 32);
    REFUSED(OUTPUT, MISALIGNED, "o", w.output.o = (char *)o + 2);

    REFUSED(CALL, BAD_EXTENT, "kv", w.kv.len = SIZE_MAX / 2);
    REFUSED(CALL, BAD_EXTENT, "kv", w.kv.len = SIZE_MAX);
    REFUSED(OUTPUT, BAD_EXTENT, "o", w.output.o_len = SIZE_MAX);
    REFUSED(CALL, BAD_EXTENT, "kv", w.kv.dtype = AMLA_DTYPE_INT8; w.kv.len = PTRDIFF_MAX + (size_t)1);

    REFUSED(OUTPUT, ALIASED, "o", w.output.lse = o + O_LEN - 1);
    DETAIL(strcmp(last.other, "lse") == 0);
    REFUSED(OUTPUT, ALIASED, "o", w.output.o = kv);
    REFUSED(RUN, ALIASED, "lse", w.output.lse = (float *)(void *)workspace);
    REFUSED(OUTPUT, ALIASED, "lse", w.output.lse = (float *)(void *)lens; w.output.lse_len = 1);
    REFUSED(TASKS | PARALLEL, ALIASED, "partials", long_keys(); w.partials = (float *)(void *)workspace;
            w.partials_len = sizeof workspace / sizeof(float));
    REFUSED(COMBINE, ALIASED, "o", w.output.o = partials);
    REFUSED(MERGE, ALIASED, "o", w.part.o = o);
    REFUSED(OUTPUT, ALIASED, "o", w.output.o = &w.q; w.output.o_len = 1);
    REFUSED(TASKS, ALIASED, "workspace", w.q.data = workspace);
}

static void structs(void) {
    const uint32_t sizes[] = {0, 4, UINT32_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint32_t size = sizes[i];
        REFUSED(CALL, STRUCT_SIZE, "call", w.call.struct_size = size);
        DETAIL(last.value == size && last.max == (int64_t)sizeof w.call);
        REFUSED(CALL, STRUCT_SIZE, "kv", w.kv.struct_size = size);
        REFUSED(CALL, STRUCT_SIZE, "indices", sparse(); w.indices.struct_size = size);
        REFUSED(CALL, STRUCT_SIZE, "extra", sparse(); w.extra.struct_size = size);
        REFUSED(OUTPUT | MERGE, STRUCT_SIZE, "output", w.output.struct_size = size);
        REFUSED(MERGE, STRUCT_SIZE, "parts", w.part.struct_size = size);
    }
    REFUSED(CALL, STRUCT_SIZE, "call", w.call.struct_size = sizeof w.call + 8);

    REFUSED(CALL, UNKNOWN_VALUE, "flags", w.call.flags = 4);
    DETAIL(last.value == 4);
    REFUSED(CALL, UNKNOWN_VALUE, "flags", w.call.flags = 0x80000001U);
    REFUSED(CALL, UNKNOWN_VALUE, "call.reserved", w.call.reserved = 1);
    REFUSED(CALL, UNKNOWN_VALUE, "q.dtype", w.q.dtype = 0);
    REFUSED(CALL, UNKNOWN_VALUE, "kv.dtype", w.kv.dtype = AMLA_DTYPE_E4M3 + 1);
    REFUSED(CALL, UNKNOWN_VALUE, "page_size", w.call.page_size = 0);
    REFUSED(CALL, UNKNOWN_VALUE, "indices.reserved", sparse(); w.indices.reserved = 1);
    REFUSED(CALL, UNKNOWN_VALUE, "extra.reserved", sparse(); w.extra.reserved = 1);
    REFUSED(CALL, UNKNOWN_VALUE, "rescale", w.call.rescale = 2);
    REFUSED(CALL, UNKNOWN_VALUE, "precision", w.call.precision = 3);
    REFUSED(OUTPUT, UNKNOWN_VALUE, "output.dtype", w.output.dtype = AMLA_DTYPE_FP8);
    REFUSED(OUTPUT | MERGE, UNKNOWN_VALUE, "lse_base", w.output.lse_base = 2);
    REFUSED(OUTPUT | MERGE, UNKNOWN_VALUE, "lse_empty", w.output.lse_empty = 2);
    REFUSED(MERGE, UNKNOWN_VALUE, "parts.reserved", w.part.reserved = 1);
    REFUSED(CALL, BACKEND_UNAVAILABLE, "backend", w.call.backend = "portabl");
    REFUSED(CALL, BACKEND_UNAVAILABLE, "backend", w.call.backend = "portable2");
    REFUSED(CALL, BACKEND_UNAVAILABLE, "backend", w.call.backend = "");
}

static void problems(void) {
    REFUSED(CALL, UNSUPPORTED_DIMS, "d_qk", w.call.d_v = 127);
    REFUSED(CALL, OUT_OF_RANGE, "s_q", w.call.s_q = 0);
    DETAIL(last.value == 0 && last.min == 1 && last.max == INT32_MAX);
    REFUSED(CALL, OUT_OF_RANGE, "s_k", w.call.s_k = SIZE_MAX);
    DETAIL(last.value == INT64_MAX);
    REFUSED(CALL, OUT_OF_RANGE, "h_kv", w.call.h_kv = 0);
    REFUSED(CALL, OUT_OF_RANGE, "pages", w.call.pages = SIZE_MAX);
    REFUSED(CALL, TOO_SHORT, "q", w.q.len = Q_LEN - 1);
    DETAIL(last.value == Q_LEN - 1 && last.min == Q_LEN);
    REFUSED(CALL, TOO_SHORT, "kv", w.kv.len = KV_LEN - 1);
    REFUSED(CALL, TOO_SHORT, "block_table", w.call.block_table_len = BLOCKS);
    REFUSED(CALL, TOO_SHORT, "scales", w.kv.dtype = AMLA_DTYPE_INT8; w.kv.scales_len--);
    REFUSED(CALL, TOO_SHORT, "scales", w.kv.dtype = AMLA_DTYPE_E4M3; w.kv.scales_len--);
    /* Strides that count numbers, not blocks. */
    REFUSED(CALL, TOO_SHORT, "kv", w.kv.dtype = AMLA_DTYPE_Q8_0; w.kv.len /= 32);
    REFUSED(CALL, TOO_SHORT, "kv", w.kv.dtype = AMLA_DTYPE_Q4_0; w.kv.len /= 32);
    REFUSED(CALL, TOO_SHORT, "v", contiguous(); w.call.v = &w.v; w.v.len--);
    REFUSED(CALL, TOO_SHORT, "indices", sparse(); w.indices.indices_len--);
    REFUSED(CALL, TOO_SHORT, "tail_mask", w.call.tail_mask = mask; w.call.tail = 64;
            w.call.tail_mask_len = 1);
    REFUSED(OUTPUT, TOO_SHORT, "o", w.output.o_len--);
    REFUSED(OUTPUT, TOO_SHORT, "lse", w.output.lse_len--);
    REFUSED(COMPUTE, TOO_SHORT, "workspace", w.workspace_size = 1 << 20);
    REFUSED(PLANNED, TOO_SHORT, "partials", long_keys(); w.partials_len = 100);
    REFUSED(PLANNED | QUERY, TOO_SHORT, "plan", w.plan_size--);
    REFUSED(CALL, WRONG_LENGTH, "cache_seqlens", w.call.cache_seqlens_len = 1);
    REFUSED(CALL, WRONG_LENGTH, "q_indptr", w.call.q_indptr = q_indptr; w.call.q_indptr_len = B);
    REFUSED(CALL, WRONG_LENGTH, "sink", w.call.sink = sink; w.call.sink_len = 1);
    REFUSED(MERGE, WRONG_LENGTH, "parts.o_len", w.part.o_len--);
    REFUSED(CALL, OVERFLOW, "kv", w.kv.strides[0] = SIZE_MAX);
    REFUSED(CALL, OVERFLOW, "q", w.q.strides[0] = SIZE_MAX);
    REFUSED(OUTPUT, OVERFLOW, "o", w.output.o_strides[0] = SIZE_MAX);
    REFUSED(OUTPUT, OVERLAP, "o", w.output.o_strides[0] = D);
    REFUSED(OUTPUT, OVERLAP, "lse", w.output.lse_strides[1] = 0);
    static const int64_t wide[B * TOPK];
    float max_logits[1];
    REFUSED(OUTPUT, TOO_SHORT, "max_logits", w.output.max_logits = max_logits;
            w.output.max_logits_len = 1);
    REFUSED(MERGE, TOO_SHORT, "lse", w.output.lse = NULL; w.output.lse_len = 0;
            w.part.lse_len = 0);
    REFUSED(CALL, CONFLICT, "indices", sparse(); w.indices.indices64 = wide);
    DETAIL(strcmp(last.other, "indices64") == 0);
    REFUSED(CALL, TOO_SHORT, "indices", sparse(); w.indices.indices = NULL;
            w.indices.indices64 = wide; w.indices.indices_len = 1);
    REFUSED(CALL, OVERFLOW, "indices", sparse(); w.indices.strides[0] = SIZE_MAX);
    REFUSED(CALL, WRONG_LENGTH, "cache_seqlens", w.call.flags = AMLA_LIST_STRIDES;
            w.call.block_table_stride = BLOCKS; w.call.cache_seqlens_stride = 2);
    REFUSED(CALL, TOO_SHORT, "block_table", w.call.flags = AMLA_LIST_STRIDES;
            w.call.cache_seqlens_stride = 1; w.call.block_table_stride = B * BLOCKS);
    REFUSED(CALL, OUT_OF_RANGE, "v_offset", w.call.v_offset = 65);
    DETAIL(last.value == 65 && last.max == (int64_t)(w.call.d_qk - w.call.d_v));
    REFUSED(CALL, OUT_OF_RANGE, "tail_mask", w.call.tail_mask = mask; w.call.tail_mask_len = 1);
    int32_t bad_lens[B] = {S_K, S_K + 1};
    REFUSED(CALL, SEQLEN, "cache_seqlens", w.call.cache_seqlens = bad_lens);
    DETAIL(last.index == 1 && last.value == S_K + 1 && last.max == S_K);
    bad_lens[1] = -1;
    REFUSED(CALL, SEQLEN, "cache_seqlens", w.call.cache_seqlens = bad_lens);
    int32_t bad_counts[B] = {TOPK + 1, 0};
    REFUSED(CALL, TOPK_LENGTH, "topk_length", sparse(); w.indices.topk_length = bad_counts);
    DETAIL(last.index == 0 && last.value == TOPK + 1 && last.max == TOPK);
    REFUSED(CALL, TOPK_LENGTH, "extra_topk_length", sparse();
            w.extra_indices.topk_length = bad_counts);
    const int32_t pages[] = {-1, PAGES, INT32_MIN, INT32_MAX};
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++) {
        int32_t bad[B * BLOCKS] = {5, 0, pages[i], 1};
        REFUSED(CALL, PAGE, "block_table", w.call.block_table = bad);
        DETAIL(last.index == 0 && last.entry == 2 && last.value == pages[i]);
        DETAIL(last.max == PAGES - 1);
    }
    int32_t falling[B + 1] = {0, 2, 1};
    REFUSED(CALL, INDPTR, "q_indptr", w.call.q_indptr = falling; w.call.q_indptr_len = B + 1);
    REFUSED(CALL, INDPTR, "kv_indptr", contiguous(); w.call.s_k = 39; w.call.cache_seqlens = NULL;
            w.call.cache_seqlens_len = 0; w.call.kv_indptr = kv_indptr;
            w.call.kv_indptr_len = B + 1);
    REFUSED(CALL, FORMAT, "kv", w.kv.dtype = AMLA_DTYPE_FP8);
    REFUSED(CALL, FORMAT, "kv", w.kv.dtype = AMLA_DTYPE_MODEL1);
    REFUSED(MERGE, FORMAT, "o", w.output.dtype = AMLA_DTYPE_BF16);
    REFUSED(CALL, HEADS, "h_q", w.call.h_kv = 2);
    REFUSED(CALL, CONFLICT, "indices", sparse(); w.call.window = 3);
    DETAIL(strcmp(last.other, "window") == 0);
    REFUSED(CALL, CONFLICT, "indices", sparse(); w.call.flags = AMLA_CAUSAL);
    REFUSED(CALL, CONFLICT, "block_table", w.call.kv_indptr = kv_indptr;
            w.call.kv_indptr_len = B + 1);
    REFUSED(CALL, NON_FINITE_SCALE, "softmax_scale", w.call.softmax_scale = NAN);
    DETAIL(isnan(last.number));
    REFUSED(CALL, NON_FINITE_SCALE, "softmax_scale", w.call.softmax_scale = INFINITY);
    REFUSED(CALL, NON_FINITE_SCALE, "softmax_scale", w.call.softmax_scale = 3e38F);
    REFUSED(MERGE, OUT_OF_RANGE, "parts_len", w.parts = AMLA_MERGE_MAX + 1);
}

static void plans(void) {
    REFUSED(TASKS, OUT_OF_RANGE, "end", w.end = B + 1);
    DETAIL(last.value == B + 1 && last.max == B);
    REFUSED(TASKS, OUT_OF_RANGE, "end", w.end = SIZE_MAX);
    REFUSED(TASKS, OUT_OF_RANGE, "begin", w.begin = 2; w.end = 1);
    REFUSED(PLANNED, PLAN_MISMATCH, "plan", w.plan_memory = other_plan);
    REFUSED(PLANNED, PLAN_MISMATCH, "plan", w.call.window = 3);
    /* Any byte of it changed is no plan, or another one. */
    unsigned char bad[AMLA_PLAN_MAX];
    for (size_t i = 0; i < plan_size; i++) {
        struct amla_error_detail detail = {.struct_size = sizeof detail};
        memcpy(bad, plan, plan_size);
        bad[i] ^= 0x41;
        fill();
        amla_status got = amla_run_tasks(&w.call, bad, plan_size, 0, 0, workspace,
                                         sizeof workspace, partials, PARTIALS, &detail);
        if (got == AMLA_ERROR_TOO_SHORT || got == AMLA_ERROR_PLAN_MISMATCH)
            continue;
        expect("a damaged plan", "amla_run_tasks", AMLA_ERROR_NOT_A_PLAN, got, &detail, "plan");
    }
    memset(bad, 0, sizeof bad);
    REFUSED(PLANNED | QUERY, NOT_A_PLAN, "plan", w.plan_memory = bad);
    memset(bad, 0xff, sizeof bad);
    REFUSED(PLANNED | QUERY, NOT_A_PLAN, "plan", w.plan_memory = bad);
}

/* Arguments of amla_mla_decode(), all of them good: a request of 2 positions, 3 keys and 2 heads. */
static struct {
    const uint16_t *q, *kv;
    size_t b, s_q, s_k, h_q;
    float scale, *o, *lse;
    void *workspace;
    size_t workspace_size;
} m;

static void good_mla(void) {
    static uint16_t mla_q[2 * 2 * AMLA_MLA_D_QK], mla_kv[3 * AMLA_MLA_D_QK];
    static float mla_o[2 * 2 * AMLA_MLA_D_V], mla_lse[2 * 2];
    m.q = mla_q, m.kv = mla_kv, m.o = mla_o, m.lse = mla_lse;
    m.b = 1, m.s_q = 2, m.s_k = 3, m.h_q = 2, m.scale = 0.1F;
    m.workspace = workspace, m.workspace_size = sizeof workspace;
}

static amla_status run_mla(void) {
    return amla_mla_decode(m.q, m.kv, m.b, m.s_q, m.s_k, m.h_q, m.scale, m.o, m.lse, m.workspace,
                           m.workspace_size);
}

static void refused_mla(const char *name, amla_status want) {
    amla_status got = run_mla();
    good_mla();
    int touched = !is_filled(m.o, 2 * 2 * AMLA_MLA_D_V * sizeof *m.o) ||
                  !is_filled(m.lse, 2 * 2 * sizeof *m.lse);
    if (got != want || touched) {
        failures++;
        fprintf(stderr, "amla_mla_decode, %s: status %d (want %d)%s\n", name, got, want,
                touched ? ", WRITTEN" : "");
    }
}

#define REFUSED_MLA(status, ...)                                                                  \
    do {                                                                                          \
        __VA_ARGS__;                                                                              \
        refused_mla(#__VA_ARGS__, AMLA_ERROR_##status);                                           \
    } while (0)

static void mla(void) {
    good_mla();
    memset(m.o, 0xa5, 2 * 2 * AMLA_MLA_D_V * sizeof *m.o);
    memset(m.lse, 0xa5, 2 * 2 * sizeof *m.lse);
    REFUSED_MLA(NULL_POINTER, m.q = NULL);
    REFUSED_MLA(NULL_POINTER, m.kv = NULL);
    REFUSED_MLA(NULL_POINTER, m.o = NULL);
    REFUSED_MLA(NULL_POINTER, m.workspace = NULL);
    REFUSED_MLA(MISALIGNED, m.q = (const uint16_t *)((const char *)m.q + 1));
    REFUSED_MLA(MISALIGNED, m.kv = (const uint16_t *)((const char *)m.kv + 1));
    REFUSED_MLA(MISALIGNED, m.o = (float *)((char *)m.o + 2));
    REFUSED_MLA(MISALIGNED, m.lse = (float *)((char *)m.lse + 1));
    REFUSED_MLA(MISALIGNED, m.workspace = workspace + 32);
    REFUSED_MLA(ALIASED, m.lse = m.o + 1);
    REFUSED_MLA(ALIASED, m.o = (float *)(uintptr_t)m.q);
    REFUSED_MLA(ALIASED, m.lse = (float *)(uintptr_t)m.kv);
    REFUSED_MLA(ALIASED, m.o = (float *)(void *)workspace);
    REFUSED_MLA(ALIASED, m.q = (const uint16_t *)(void *)workspace);
    REFUSED_MLA(OUT_OF_RANGE, m.s_q = 0);
    REFUSED_MLA(OUT_OF_RANGE, m.h_q = 0);
    REFUSED_MLA(NON_FINITE_SCALE, m.scale = NAN);
    REFUSED_MLA(NON_FINITE_SCALE, m.scale = -INFINITY);
    REFUSED_MLA(NON_FINITE_SCALE, m.scale = 3e38F);
    REFUSED_MLA(TOO_SHORT, m.workspace_size = 0);
    REFUSED_MLA(TOO_SHORT, m.workspace_size = 1 << 20);
    const size_t vast[] = {SIZE_MAX, SIZE_MAX / 2, SIZE_MAX / AMLA_MLA_D_QK, (size_t)1 << 56};
    for (size_t i = 0; i < sizeof vast / sizeof *vast; i++) {
        REFUSED_MLA(BAD_EXTENT, m.b = vast[i]);
        REFUSED_MLA(BAD_EXTENT, m.s_q = vast[i]);
        REFUSED_MLA(BAD_EXTENT, m.s_k = vast[i]);
        REFUSED_MLA(BAD_EXTENT, m.h_q = vast[i]);
    }
    DETAIL(run_mla() == AMLA_OK && m.lse[0] > 0);
}

/* What has functions of its own. */
static void others(void) {
    struct amla_error_detail detail = {.struct_size = sizeof detail}, unknown = {.struct_size = 5};
    struct amla_plan_info info = {.struct_size = 3};
    struct amla_capability_set set = {.struct_size = sizeof set};
    size_t size;
    DETAIL(amla_run(NULL, workspace, sizeof workspace, &detail) == AMLA_ERROR_NULL_POINTER);
    DETAIL(amla_plan_size(NULL, &size, NULL) == AMLA_ERROR_NULL_POINTER);
    DETAIL(amla_plan_size(&w.call, NULL, NULL) == AMLA_ERROR_NULL_POINTER);
    DETAIL(amla_workspace_size(&w.call, NULL, NULL) == AMLA_ERROR_NULL_POINTER);
    DETAIL(amla_plan(&w.call, NULL, 1000, NULL) == AMLA_ERROR_NULL_POINTER);
    DETAIL(amla_plan(&w.call, out_plan, plan_size - 1, NULL) == AMLA_ERROR_TOO_SHORT);
    DETAIL(amla_plan(&w.call, kv, sizeof kv, NULL) == AMLA_ERROR_ALIASED);
    DETAIL(amla_plan_query(plan, plan_size, NULL, NULL) == AMLA_ERROR_NULL_POINTER);
    DETAIL(amla_plan_query(plan, plan_size, &info, NULL) == AMLA_ERROR_STRUCT_SIZE);
    DETAIL(amla_merge(B, 1, H_Q, D, NULL, NULL, 0, NULL) == AMLA_ERROR_NULL_POINTER);
    DETAIL(amla_merge(B, 1, H_Q, D, &w.output, NULL, 1, NULL) == AMLA_ERROR_NULL_POINTER);
    /* A detail of another size is refused before anything is done. */
    fill();
    DETAIL(amla_run(&w.call, workspace, sizeof workspace, &unknown) == AMLA_ERROR_STRUCT_SIZE);
    DETAIL(is_filled(o, sizeof o) && unknown.status == 0);

    uint16_t row[576] = {0};
    uint8_t bytes[AMLA_FP8_ROW], row_scales[AMLA_MODEL1_SCALES];
    int8_t values[576];
    float scale;
    DETAIL(amla_encode_fp8(NULL, 576, bytes, sizeof bytes, NULL) == AMLA_ERROR_NULL_POINTER);
    DETAIL(amla_encode_fp8(row, 576, NULL, 656, NULL) == AMLA_ERROR_NULL_POINTER);
    DETAIL(amla_encode_fp8(row, 575, bytes, sizeof bytes, NULL) == AMLA_ERROR_WRONG_LENGTH);
    DETAIL(amla_encode_fp8(row, 576, bytes, 655, NULL) == AMLA_ERROR_WRONG_LENGTH);
    DETAIL(amla_encode_fp8(row, 576, (uint8_t *)row, 656, NULL) == AMLA_ERROR_ALIASED);
    DETAIL(amla_encode_model1(row, 512, bytes, 576, row_scales, 7, NULL) ==
           AMLA_ERROR_WRONG_LENGTH);
    DETAIL(amla_encode_int8(row, 576, values, 575, &scale, NULL) == AMLA_ERROR_WRONG_LENGTH);
    DETAIL(amla_encode_int8(row, 576, values, 576, NULL, NULL) == AMLA_ERROR_NULL_POINTER);
    DETAIL(amla_encode_e4m3(row, 576, bytes, 575, &scale, NULL) == AMLA_ERROR_WRONG_LENGTH);
    DETAIL(amla_encode_e4m3(row, 576, bytes, 576, NULL, NULL) == AMLA_ERROR_NULL_POINTER);
    float numbers[64] = {0};
    uint16_t blocks[2 * 17];
    DETAIL(amla_encode_q8_0(numbers, 64, blocks, 1, NULL) == AMLA_ERROR_WRONG_LENGTH);
    DETAIL(amla_encode_q8_0(numbers, 63, blocks, 2, NULL) == AMLA_ERROR_WRONG_LENGTH);
    DETAIL(amla_encode_q8_0(NULL, 64, blocks, 2, NULL) == AMLA_ERROR_NULL_POINTER);
    DETAIL(amla_encode_q8_0(numbers, 64, numbers, 2, NULL) == AMLA_ERROR_ALIASED);
    DETAIL(amla_encode_q8_0(numbers, 32, (char *)blocks + 1, 1, NULL) == AMLA_ERROR_MISALIGNED);
    DETAIL(amla_encode_q4_0(numbers, 64, blocks, 1, NULL) == AMLA_ERROR_WRONG_LENGTH);
    DETAIL(amla_encode_q4_0(numbers, 64, NULL, 2, NULL) == AMLA_ERROR_NULL_POINTER);
    DETAIL(amla_encode_q4_0(numbers, 64, numbers, 2, NULL) == AMLA_ERROR_ALIASED);
    DETAIL(amla_encode_q4_0(numbers, SIZE_MAX, blocks, 2, NULL) == AMLA_ERROR_BAD_EXTENT);

    DETAIL(amla_set_max_backend(NULL) == AMLA_ERROR_NULL_POINTER);
    DETAIL(amla_set_max_backend("") == AMLA_ERROR_BACKEND_UNAVAILABLE);
    DETAIL(amla_set_max_backend("portabl") == AMLA_ERROR_BACKEND_UNAVAILABLE);
    DETAIL(amla_set_max_backend("portable") == AMLA_ERROR_BACKEND_IN_USE);
    mla();
    int amx = amla_permit_amx() == AMLA_OK;
    DETAIL(amx || amla_permit_amx() == AMLA_ERROR_BACKEND_UNAVAILABLE);
    DETAIL(amla_capabilities(NULL) == AMLA_ERROR_NULL_POINTER);
    DETAIL(amla_capabilities(&set) == AMLA_OK);
    DETAIL(set.struct_size == sizeof set && set.abi_version == AMLA_ABI_VERSION);
    DETAIL(set.dims_len > 0 && set.dims[0][0] == 576 && set.dims[0][1] == 512);
    DETAIL(set.input_dtypes & 1U << AMLA_DTYPE_FP8 && set.output_dtypes & 1U << AMLA_DTYPE_F32);
    int available = 0, listed = 0;
    for (size_t i = 0; i < set.backends_len; i++) {
        available |= amla_available_backend(i) == amla_backend_name();
        listed |= strcmp(amla_available_backend(i), "amx") == 0;
    }
    DETAIL(available && listed == amx);
    DETAIL(amla_available_backend(set.backends_len) == NULL);
    DETAIL(strcmp(amla_available_backend(0), "portable") == 0);
    DETAIL(amla_version_string()[0] != 0);
    for (amla_status status = -1; status <= AMLA_ERROR_BACKEND_IN_USE + 1; status++)
        for (amla_status other = 0; other < status; other++)
            DETAIL(status > AMLA_ERROR_BACKEND_IN_USE ||
                   strcmp(amla_status_string(status), amla_status_string(other)) != 0);
}

int main(void) {
    struct amla_error_detail detail = {.struct_size = sizeof detail};
    good();
    if (amla_plan_size(&w.call, &plan_size, &detail) || plan_size > sizeof plan ||
        amla_plan(&w.call, plan, plan_size, &detail)) {
        fprintf(stderr, "the good call: %s\n", detail.message);
        return 1;
    }
    w.call.cache_seqlens = NULL;
    w.call.cache_seqlens_len = 0;
    w.call.s_k = 7;
    if (amla_plan(&w.call, other_plan, plan_size, &detail)) {
        fprintf(stderr, "the other call: %s\n", detail.message);
        return 1;
    }
    good();
    struct amla_plan_info info = {.struct_size = sizeof info};
    long_keys();
    if (amla_plan(&w.call, long_plan, plan_size, &detail) ||
        amla_plan_query(long_plan, plan_size, &info, &detail) || !info.partials_len) {
        fprintf(stderr, "the call of many keys: %s\n", detail.message);
        return 1;
    }
    good();
    pointers();
    structs();
    problems();
    plans();
    others();
    /* All that is wrong was what was changed. */
    if (amla_run(&w.call, workspace, sizeof workspace, &detail) ||
        amla_run_tasks(&w.call, plan, plan_size, 0, B, workspace, sizeof workspace, partials,
                       PARTIALS, &detail) ||
        amla_combine(&w.call, plan, plan_size, partials, PARTIALS, &detail)) {
        fprintf(stderr, "the good call: %s\n", detail.message);
        return 1;
    }
    printf("%d failures\n", failures);
    return failures != 0;
}
