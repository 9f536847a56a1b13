/*
 * The numeric suite, as a C host: reads cases from a file, computes each with amla_run() and again
 * with tasks, requires the same bits of both, and writes the results to another file for
 * the Rust side (suite.rs) to compare.
 *
 * Every buffer has memory of exactly its own size, so that the sanitizers and Valgrind see
 * whatever goes beyond. Where neither runs, "guarded" puts a page that can't be read behind each
 * input, for loads of every instruction set.
 *
 *   suite CASES RESULTS [guarded]
 */
#define _DEFAULT_SOURCE
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "amla.h"

static FILE *in, *out;

static void check(int ok, const char *what) {
    if (!ok) {
        fprintf(stderr, "suite: %s\n", what);
        exit(1);
    }
}

static uint64_t word(void) {
    uint64_t value;
    check(fread(&value, sizeof value, 1, in) == 1, "the file ends too early");
    return value;
}

static void *allocate(size_t bytes) {
    void *memory = malloc(bytes ? bytes : 1);
    check(memory != NULL, "out of memory");
    return memory;
}

/* Inputs with a page behind them that can't be read. */
static int guarded;
static struct {
    void *memory, *pages;
    size_t len;
} inputs[4 * AMLA_MERGE_MAX];

static void *input(size_t bytes) {
    if (!guarded) return allocate(bytes);
    size_t page = (size_t)sysconf(_SC_PAGESIZE), len = (bytes + page - 1) / page * page + page;
    unsigned char *pages = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(pages != MAP_FAILED && mprotect(pages + len - page, page, PROT_NONE) == 0, "no pages");
    size_t i = 0;
    while (i < sizeof inputs / sizeof *inputs && inputs[i].memory != NULL) i++;
    check(i < sizeof inputs / sizeof *inputs, "too many inputs");
    inputs[i].memory = pages + len - page - bytes;
    inputs[i].pages = pages;
    inputs[i].len = len;
    return inputs[i].memory;
}

static void drop(const void *memory) {
    for (size_t i = 0; memory != NULL && i < sizeof inputs / sizeof *inputs; i++)
        if (inputs[i].memory == memory) {
            check(munmap(inputs[i].pages, inputs[i].len) == 0, "no pages");
            inputs[i].memory = NULL;
            return;
        }
    free((void *)(uintptr_t)memory);
}

/* Bytes and their number; null where there are none to be. */
static void *blob(size_t *bytes) {
    uint64_t len = word();
    *bytes = 0;
    if (len == UINT64_MAX) return NULL;
    void *memory = input(len);
    check(fread(memory, 1, len, in) == len, "the file ends too early");
    *bytes = len;
    return memory;
}

static void give(const void *memory, size_t bytes) {
    check(fwrite(memory, 1, bytes, out) == bytes, "can't write");
}

static void done(amla_status status, const struct amla_error_detail *detail) {
    if (status != AMLA_OK) {
        fprintf(stderr, "suite: %s: %s\n", amla_status_string(status), detail->message);
        exit(1);
    }
}

static size_t size_of(amla_dtype dtype) {
    switch (dtype) {
    case AMLA_DTYPE_BF16:
    case AMLA_DTYPE_F16: return 2;
    case AMLA_DTYPE_F32: return 4;
    case AMLA_DTYPE_Q8_0: return 34;
    case AMLA_DTYPE_Q4_0: return 18;
    default: return 1;
    }
}

static void three(size_t *strides) {
    for (int i = 0; i < 3; i++) strides[i] = word();
}

static const struct amla_tensor *tensor(struct amla_tensor *t) {
    memset(t, 0, sizeof *t);
    if (!word()) return NULL;
    size_t bytes;
    t->struct_size = sizeof *t;
    t->dtype = (amla_dtype)word();
    three(t->strides);
    three(t->scale_strides);
    t->model1_scales = word();
    t->model1_scale_stride = word();
    t->data = blob(&bytes);
    t->len = bytes / size_of(t->dtype);
    t->scales = blob(&bytes);
    t->scales_len = bytes / sizeof(float);
    return t;
}

static const int32_t *ints(size_t *len) {
    size_t bytes;
    const int32_t *list = blob(&bytes);
    *len = bytes / sizeof *list;
    return list;
}

static const struct amla_indices *indices(struct amla_indices *i) {
    memset(i, 0, sizeof *i);
    if (!word()) return NULL;
    i->struct_size = sizeof *i;
    i->strides[0] = word();
    i->strides[1] = word();
    i->stride_h_kv = word();
    i->topk = word();
    i->topk_length_strides[0] = word();
    i->topk_length_strides[1] = word();
    if (word() == 32) {
        i->indices = ints(&i->indices_len);
    } else {
        size_t bytes;
        i->indices64 = blob(&bytes);
        i->indices_len = bytes / sizeof *i->indices64;
    }
    i->topk_length = ints(&i->topk_length_len);
    return i;
}

static void drop_tensor(const struct amla_tensor *t) {
    drop(t->data);
    drop(t->scales);
}

static void drop_indices(const struct amla_indices *i) {
    drop(i->indices);
    drop(i->indices64);
    drop(i->topk_length);
}

/* Memory that nothing has been written to. */
static void *workspace(const struct amla_call *call, size_t *bytes) {
    struct amla_error_detail detail = {.struct_size = sizeof detail};
    done(amla_workspace_size(call, bytes, &detail), &detail);
    check(*bytes <= AMLA_WORKSPACE_MAX, "AMLA_WORKSPACE_MAX");
    void *memory = aligned_alloc(AMLA_WORKSPACE_ALIGN, *bytes);
    check(memory != NULL, "out of memory");
    return memory;
}

/* Keys of a request at most. */
static size_t bound_keys(const struct amla_call *call) {
    if (!call->sparse) return call->s_k;
    return call->sparse->topk + (call->extra ? call->extra->indices->topk : 0);
}

static void run_tasks(const struct amla_call *call) {
    struct amla_error_detail detail = {.struct_size = sizeof detail};
    struct amla_plan_info info = {.struct_size = sizeof info};
    size_t plan_size, workspace_size;
    done(amla_plan_size(call, &plan_size, &detail), &detail);
    check(plan_size <= AMLA_PLAN_MAX, "AMLA_PLAN_MAX");
    /* At an odd address, and then moved: a plan is bytes. */
    unsigned char *made = allocate(plan_size + 1), *plan = allocate(plan_size);
    done(amla_plan(call, made + 1, plan_size, &detail), &detail);
    memcpy(plan, made + 1, plan_size);
    done(amla_plan_query(plan, plan_size, &info, &detail), &detail);
    check(info.partials_len == info.partial_tasks * info.partial_len &&
              info.partial_tasks <= info.tasks,
          "partials_len");
    size_t most = 0;
    done(amla_plan_bound(call->b, call->s_q, bound_keys(call), call->h_q, call->h_kv, call->d_v,
                         call->split_keys, &most, &detail), &detail);
    check(info.partials_len <= most, "amla_plan_bound");
    float *partials = allocate(info.partials_len * sizeof *partials);
    void *memory = workspace(call, &workspace_size);
    /* The last first, in ranges of 1, 2, 3, ... tasks, an empty one before each. */
    for (size_t end = info.tasks, n = 1; end > 0; n++) {
        size_t begin = end > n ? end - n : 0;
        done(amla_run_tasks(call, plan, plan_size, end, end, memory, workspace_size, partials,
                            info.partials_len, &detail), &detail);
        done(amla_run_tasks(call, plan, plan_size, begin, end, memory, workspace_size, partials,
                            info.partials_len, &detail), &detail);
        end = begin;
    }
    /* All at once, or the last ones first. */
    int at_once = info.partial_tasks % 3 == 0;
    if (at_once)
        done(amla_combine(call, plan, plan_size, partials, info.partials_len, &detail), &detail);
    for (size_t end = at_once ? 0 : info.merges, n = 1; end > 0; n++) {
        size_t begin = end > n ? end - n : 0;
        done(amla_combine_range(call, plan, plan_size, begin, end, partials, info.partials_len,
                               &detail), &detail);
        end = begin;
    }
    free(made);
    free(plan);
    free(partials);
    free(memory);
}

/* The first bytes of a struct, which say so. */
static void *shorter(const void *given, size_t bytes) {
    uint32_t size = (uint32_t)bytes;
    void *memory = allocate(bytes);
    memcpy(memory, given, bytes);
    memcpy(memory, &size, sizeof size);
    return memory;
}

/* Whether version 1 of the interface has the list, too. */
static int is_old(const struct amla_call *call, const struct amla_indices *i) {
    const size_t *strides = i->topk_length_strides;
    return !i->indices64 && !i->stride_h_kv && strides[0] == !call->q_indptr
        && strides[1] == !!call->q_indptr;
}

/* The call with the structs of version 1, if it had all that the call says. */
static int run_old(const struct amla_call *now, void *workspace, size_t workspace_size) {
    struct amla_error_detail detail = {.struct_size = sizeof detail};
    struct amla_call call = *now;
    struct amla_extra extra;
    void *sparse = NULL, *extra_indices = NULL;
    if (call.v_offset || call.split_keys || call.cache_seqlens_stride != 1 || call.block_table_stride != call.max_blocks
        || (call.sparse && !is_old(&call, call.sparse))
        || (call.extra && !is_old(&call, call.extra->indices)))
        return 0;
    call.flags &= ~AMLA_LIST_STRIDES;
    if (call.sparse)
        call.sparse = sparse = shorter(call.sparse, offsetof(struct amla_indices, indices64));
    if (call.extra) {
        extra = *call.extra;
        extra.indices = extra_indices =
            shorter(extra.indices, offsetof(struct amla_indices, indices64));
        call.extra = &extra;
    }
    void *output = shorter(call.output, offsetof(struct amla_output, max_logits));
    call.output = output;
    void *old = shorter(&call, offsetof(struct amla_call, v_offset));
    done(amla_run(old, workspace, workspace_size, &detail), &detail);
    free(old);
    free(output);
    free(sparse);
    free(extra_indices);
    return 1;
}

static void decode(void) {
    struct amla_error_detail detail = {.struct_size = sizeof detail};
    struct amla_tensor q, q_rope, kv, k_rope, v, extra_kv;
    struct amla_indices chosen, extra_chosen;
    struct amla_extra extra = {.struct_size = sizeof extra};
    struct amla_output output = {.struct_size = sizeof output};
    struct amla_call call = {.struct_size = sizeof call, .output = &output};
    size_t bytes, workspace_size;
    uint32_t scale;

    call.flags = (uint32_t)word();
    call.b = word();
    call.s_q = word();
    call.s_k = word();
    call.h_q = word();
    call.h_kv = word();
    call.d_qk = word();
    call.d_v = word();
    scale = (uint32_t)word();
    memcpy(&call.softmax_scale, &scale, sizeof scale);
    call.rescale = (amla_rescale)word();
    call.precision = (amla_precision)word();
    call.backend = blob(&bytes);
    call.q = tensor(&q);
    call.q_rope = tensor(&q_rope);
    call.kv = tensor(&kv);
    call.k_rope = tensor(&k_rope);
    call.v = tensor(&v);
    call.q_indptr = ints(&call.q_indptr_len);
    call.kv_indptr = ints(&call.kv_indptr_len);
    call.cache_seqlens = ints(&call.cache_seqlens_len);
    call.block_table = ints(&call.block_table_len);
    call.max_blocks = word();
    call.block_table_stride = word();
    call.page_size = word();
    call.pages = word();
    call.cache_seqlens_stride = word();
    call.v_offset = word();
    call.split_keys = word();
    call.window = word();
    call.tail_mask = blob(&bytes);
    call.tail_mask_len = bytes / sizeof *call.tail_mask;
    call.tail = word();
    call.sparse = indices(&chosen);
    extra.kv = tensor(&extra_kv);
    extra.pages = word();
    extra.page_size = word();
    extra.indices = indices(&extra_chosen);
    call.extra = extra.kv ? &extra : NULL;
    call.sink = blob(&bytes);
    call.sink_len = bytes / sizeof *call.sink;
    output.dtype = (amla_dtype)word();
    output.o_len = word();
    three(output.o_strides);
    output.lse_len = word();
    three(output.lse_strides);
    output.lse_base = (amla_lse_base)word();
    output.lse_empty = (amla_lse_empty)word();

    size_t o_bytes = output.o_len * size_of(output.dtype);
    size_t lse_bytes = output.lse_len * sizeof(float);
    void *o[3], *lse[3], *max_logits[2];
    for (int i = 0; i < 3; i++) {
        /* What strides step over must stay. */
        memset(o[i] = allocate(o_bytes), 0xa5, o_bytes);
        memset(lse[i] = allocate(lse_bytes), 0xa5, lse_bytes);
        if (i < 2) memset(max_logits[i] = allocate(lse_bytes), 0xa5, lse_bytes);
    }
    output.o = o[0];
    output.lse = lse[0];
    output.max_logits = max_logits[0];
    output.max_logits_len = output.lse_len;
    void *memory = workspace(&call, &workspace_size);
    done(amla_run(&call, memory, workspace_size, &detail), &detail);
    output.o = o[1];
    output.lse = lse[1];
    output.max_logits = max_logits[1];
    run_tasks(&call);
    check(memcmp(o[0], o[1], o_bytes) == 0 && memcmp(lse[0], lse[1], lse_bytes) == 0
              && memcmp(max_logits[0], max_logits[1], lse_bytes) == 0,
          "tasks have other bits than amla_run()");
    output.o = o[2];
    output.lse = lse[2];
    if (run_old(&call, memory, workspace_size))
        check(memcmp(o[0], o[2], o_bytes) == 0 && memcmp(lse[0], lse[2], lse_bytes) == 0,
              "structs of version 1 have other bits");
    /* Nobody needs lse. */
    memset(o[2], 0xa5, o_bytes);
    output.lse = NULL;
    output.lse_len = 0;
    output.max_logits = NULL;
    output.max_logits_len = 0;
    done(amla_run(&call, memory, workspace_size, &detail), &detail);
    check(memcmp(o[0], o[2], o_bytes) == 0, "O has other bits without lse");
    free(memory);
    give(o[0], o_bytes);
    give(lse[0], lse_bytes);
    give(max_logits[0], lse_bytes);

    for (int i = 0; i < 3; i++) {
        free(o[i]);
        free(lse[i]);
        if (i < 2) free(max_logits[i]);
    }
    const struct amla_tensor *tensors[] = {&q, &q_rope, &kv, &k_rope, &v, &extra_kv};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) drop_tensor(tensors[i]);
    drop_indices(&chosen);
    drop_indices(&extra_chosen);
    drop(call.backend);
    drop(call.q_indptr);
    drop(call.kv_indptr);
    drop(call.cache_seqlens);
    drop(call.block_table);
    drop(call.tail_mask);
    drop(call.sink);
}

/* amla_mla_decode() has the bits of the full call, as the inline functions describe it. */
static void mla(void) {
    struct amla_error_detail detail = amla_error_detail_init();
    size_t b = word(), s_q = word(), s_k = word(), h_q = word(), bytes, workspace_size;
    uint32_t bits = (uint32_t)word();
    float scale, *o[2], *lse[2];
    memcpy(&scale, &bits, sizeof scale);
    uint16_t *q = blob(&bytes), *kv = blob(&bytes);
    size_t lse_bytes = b * s_q * h_q * sizeof(float), o_bytes = lse_bytes * AMLA_MLA_D_V;
    for (int i = 0; i < 2; i++) {
        memset(o[i] = allocate(o_bytes), 0xa5, o_bytes);
        memset(lse[i] = allocate(lse_bytes), 0xa5, lse_bytes);
    }
    struct amla_tensor queries = amla_tensor_contiguous(AMLA_DTYPE_BF16, q, b, s_q, h_q,
                                                        AMLA_MLA_D_QK);
    struct amla_tensor cache = amla_tensor_contiguous(AMLA_DTYPE_BF16, kv, b, s_k, 1,
                                                      AMLA_MLA_D_QK);
    struct amla_output output = amla_output_contiguous(AMLA_DTYPE_F32, o[0], lse[0], b, s_q, h_q,
                                                       AMLA_MLA_D_V);
    struct amla_call call = amla_call_mla(&queries, &cache, &output, b, s_q, s_k, h_q, scale);
    call.flags = AMLA_CAUSAL;
    void *memory = workspace(&call, &workspace_size);
    done(amla_run(&call, memory, workspace_size, &detail), &detail);
    done(amla_mla_decode(q, kv, b, s_q, s_k, h_q, scale, o[1], lse[1], memory, workspace_size),
         &detail);
    check(memcmp(o[0], o[1], o_bytes) == 0 && memcmp(lse[0], lse[1], lse_bytes) == 0,
          "amla_mla_decode() has other bits than amla_run()");
    for (int i = 0; i < 2; i++) {
        free(o[i]);
        free(lse[i]);
    }
    free(memory);
    drop(q);
    drop(kv);
}

/* A row in each format. */
static void encode(void) {
    struct amla_error_detail detail = {.struct_size = sizeof detail};
    size_t bytes;
    float scale;
    uint16_t *row = blob(&bytes);
    size_t len = bytes / sizeof *row;
    check(len >= 576, "a row of 576 numbers");
    uint8_t fp8[AMLA_FP8_ROW], model1[AMLA_MODEL1_ROW], scales[AMLA_MODEL1_SCALES];
    int8_t *int8 = allocate(len);
    done(amla_encode_fp8(row, 576, fp8, sizeof fp8, &detail), &detail);
    done(amla_encode_model1(row, 512, model1, sizeof model1, scales, sizeof scales, &detail),
         &detail);
    done(amla_encode_int8(row, len, int8, len, &scale, &detail), &detail);
    give(fp8, sizeof fp8);
    give(model1, sizeof model1);
    give(scales, sizeof scales);
    give(int8, len);
    give(&scale, sizeof scale);
    free(int8);
    uint8_t *e4m3 = allocate(len);
    done(amla_encode_e4m3(row, len, e4m3, len, &scale, &detail), &detail);
    give(e4m3, len);
    give(&scale, sizeof scale);
    free(e4m3);
    drop(row);
    /* The same numbers in FP32: 18 blocks of them. */
    float *floats = blob(&bytes);
    void *q8_0 = allocate(18 * 34), *q4_0 = allocate(18 * 18);
    check(bytes == 576 * sizeof *floats, "576 FP32 numbers");
    done(amla_encode_q8_0(floats, 576, q8_0, 18, &detail), &detail);
    done(amla_encode_q4_0(floats, 576, q4_0, 18, &detail), &detail);
    give(q8_0, 18 * 34);
    give(q4_0, 18 * 18);
    free(q8_0);
    free(q4_0);
    drop(floats);
}

/* The first result and the others into one. */
static void merge(void) {
    struct amla_error_detail detail = {.struct_size = sizeof detail};
    struct amla_part parts[AMLA_MERGE_MAX];
    struct amla_output total = {.struct_size = sizeof total, .dtype = AMLA_DTYPE_F32};
    size_t b = word(), s_q = word(), h_q = word(), d_v = word(), bytes, count = word();
    total.lse_base = (amla_lse_base)word();
    total.lse_empty = (amla_lse_empty)word();
    size_t o_strides[3] = {s_q * h_q * d_v, h_q * d_v, d_v}, lse_strides[3] = {h_q * s_q, s_q, 1};
    memcpy(total.o_strides, o_strides, sizeof o_strides);
    memcpy(total.lse_strides, lse_strides, sizeof lse_strides);
    total.o = blob(&bytes);
    total.o_len = bytes / sizeof(float);
    total.lse = blob(&bytes);
    total.lse_len = bytes / sizeof(float);
    total.max_logits = allocate(bytes);
    memcpy(total.max_logits, total.lse, bytes);
    total.max_logits_len = total.lse_len;
    for (size_t i = 0; i < count; i++) {
        memset(&parts[i], 0, sizeof parts[i]);
        parts[i].struct_size = sizeof parts[i];
        parts[i].o = blob(&bytes);
        parts[i].o_len = bytes / sizeof(float);
        parts[i].lse = blob(&bytes);
        parts[i].lse_len = bytes / sizeof(float);
        parts[i].max_logits = parts[i].lse;
        parts[i].max_logits_len = parts[i].lse_len;
    }
    done(amla_merge(b, s_q, h_q, d_v, &total, parts, count, &detail), &detail);
    give(total.o, total.o_len * sizeof(float));
    give(total.lse, total.lse_len * sizeof(float));
    give(total.max_logits, total.max_logits_len * sizeof(float));
    drop(total.o);
    drop(total.lse);
    drop(total.max_logits);
    for (size_t i = 0; i < count; i++) {
        drop(parts[i].o);
        drop(parts[i].lse);
    }
}

int main(int argc, char **argv) {
    amla_permit_amx();
    guarded = argc == 4 && strcmp(argv[3], "guarded") == 0;
    check(argc == 3 + guarded, "usage: suite CASES RESULTS [guarded]");
    check(amla_abi_version() == AMLA_ABI_VERSION, "another amla.h");
    in = fopen(argv[1], "rb");
    out = fopen(argv[2], "wb");
    check(in && out, "can't open the files");
    uint64_t kind;
    unsigned long cases = 0;
    while (fread(&kind, sizeof kind, 1, in) == 1) {
        switch (kind) {
        case 0: decode(); break;
        case 1: encode(); break;
        case 2: merge(); break;
        case 3: mla(); break;
        default: check(0, "an unknown case");
        }
        cases++;
    }
    check(fclose(out) == 0, "can't write");
    fclose(in);
    printf("%lu cases\n", cases);
    return 0;
}
