/*
 * The stack of each exported function, on every backend that this processor runs: at most 64 KiB.
 * A call runs on a thread whose stack was painted. The deepest word that changed gives the number
 * of bytes below the caller's frame.
 *
 * Prints for each function and backend: both names, the bytes, the call that took most.
 */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "amla.h"

enum {
    LIMIT = 64 << 10, /* bytes */
    STACK = 32 << 10, /* words */
    ROWS = 300, KEYS = 2100, PAGE = 16, PAGES = KEYS / PAGE + 1, PLACES = 200, TAIL = 70,
    ELEMENTS = 2 * KEYS * 576, O_LEN = 2 * ROWS * 512, LSE_LEN = 2 * ROWS
};

#define PAINT UINT64_C(0xa5a5a5a5a5a5a5a5)

static void check(int condition, const char *what) {
    if (!condition) {
        fflush(stdout);
        fprintf(stderr, "stack: %s\n", what);
        exit(1);
    }
}

/* The functions, and the most that each took. */

enum {
    ABI_VERSION, VERSION_STRING, BACKEND_NAME, PERMIT_AMX, SET_MAX_BACKEND, AVAILABLE_BACKEND,
    CAPABILITIES,
    STATUS_STRING, PLAN_SIZE, PLAN, PLAN_FOR_THREADS, PLAN_BOUND, PLAN_QUERY, WORKSPACE_SIZE, RUN, RUN_TASKS, COMBINE,
    COMBINE_RANGE, RUN_PARALLEL, MERGE,
    MLA_DECODE, ENCODE_FP8, ENCODE_MODEL1, ENCODE_INT8, ENCODE_E4M3,
    ENCODE_Q8_0, ENCODE_Q4_0, FUNCTIONS
};

struct deepest {
    size_t depth;
    char call[96];
};

static _Alignas(4096) uint64_t stack[STACK];
static const void *frame;
static struct deepest deepest[FUNCTIONS];
static char description[sizeof deepest->call] = "";

/* Notes the frame of the caller, and calls. */
#define BELOW(call) (frame = __builtin_frame_address(0), (call))

static void *thread(void *function) {
    (*(void (**)(void))function)();
    return NULL;
}

/* Bytes below the noted frame that a function takes, on a thread of its own. */
static size_t depth_of(void (*function)(void)) {
    static size_t lowest = 0;
    pthread_attr_t attributes;
    pthread_t id;
    /* Below the words that the call before changed, the paint is intact. */
    for (size_t i = lowest; i < STACK; i++) stack[i] = PAINT;
    check(pthread_attr_init(&attributes) == 0, "pthread_attr_init");
    check(pthread_attr_setstack(&attributes, stack, sizeof stack) == 0, "pthread_attr_setstack");
    check(pthread_create(&id, &attributes, thread, &function) == 0, "pthread_create");
    check(pthread_join(id, NULL) == 0, "pthread_join");
    pthread_attr_destroy(&attributes);
    for (lowest = 0; lowest < STACK && stack[lowest] == PAINT; lowest++) {}
    check(lowest > 0, "all of the stack is used");
    return (uintptr_t)frame - (uintptr_t)&stack[lowest];
}

/* Arguments: a thread's function takes them from here. */

static uint16_t numbers[ELEMENTS], with_infinity[ELEMENTS];
static int32_t table[PAGES], places[2 * PLACES], q_indptr[2], kv_indptr[2], lens[1];
static uint64_t mask[4];
static float sink[ROWS], o[O_LEN], lse[LSE_LEN], part_o[O_LEN], part_lse[LSE_LEN];
static _Alignas(AMLA_WORKSPACE_ALIGN) unsigned char workspace[AMLA_WORKSPACE_MAX];
static unsigned char plan[AMLA_PLAN_MAX];
static float *partials;

static struct amla_tensor q, kv, q_rope, k_rope, v, extra_kv;
static struct amla_indices indices;
static struct amla_extra extra;
static struct amla_output output;
static struct amla_call call;
static const char *backend;
static struct amla_part parts[AMLA_MERGE_MAX];
static struct amla_plan_info info;
static struct amla_capability_set capabilities;
static struct amla_error_detail detail;
static size_t plan_size, workspace_size, parts_len, row_len, encoded_len;
static uint8_t encoded[AMLA_FP8_ROW], scales[AMLA_MODEL1_SCALES];
static int8_t values[576];
static float floats[576];
static uint16_t blocks[576 / 32 * 17];
static float scale;
static amla_status status;
static const char *volatile text;
static volatile uint32_t version;

static void nothing(void) { version = BELOW(0); }
static __attribute__((noinline)) unsigned limit(void) {
    volatile unsigned char local[LIMIT];
    local[0] = 1;
    return local[0];
}
static void of_known_depth(void) { version = BELOW(limit()); }
static void abi_version(void) { version = BELOW(amla_abi_version()); }
static void version_string(void) { text = BELOW(amla_version_string()); }
static void backend_name(void) { text = BELOW(amla_backend_name()); }
static void permit_amx(void) { status = BELOW(amla_permit_amx()); }
static void set_max_backend(void) { status = BELOW(amla_set_max_backend("portable")); }
static void available_backend(void) { text = BELOW(amla_available_backend(SIZE_MAX)); }
static void get_capabilities(void) { status = BELOW(amla_capabilities(&capabilities)); }
static void status_string(void) { text = BELOW(amla_status_string(status)); }
static void get_plan_size(void) { status = BELOW(amla_plan_size(&call, &plan_size, &detail)); }
static void make_plan(void) { status = BELOW(amla_plan(&call, plan, sizeof plan, &detail)); }
static void make_plan_for_threads(void) {
    status = BELOW(amla_plan_for_threads(&call, 4, plan, sizeof plan, &detail));
}
static void bound_plan(void) {
    size_t most;
    status = BELOW(amla_plan_bound(call.b, call.s_q, call.s_k, call.h_q, call.h_kv, call.d_v,
                                   call.split_keys, &most, &detail));
}
static void query(void) { status = BELOW(amla_plan_query(plan, sizeof plan, &info, &detail)); }
static void get_workspace_size(void) {
    status = BELOW(amla_workspace_size(&call, &workspace_size, &detail));
}
static void run(void) {
    status = BELOW(amla_run(&call, workspace, sizeof workspace, &detail));
}
static void run_tasks(void) {
    status = BELOW(amla_run_tasks(&call, plan, sizeof plan, 0, info.tasks, workspace,
                                  sizeof workspace, partials, info.partials_len, &detail));
}
static void combine(void) {
    status = BELOW(
        amla_combine(&call, plan, sizeof plan, partials, info.partials_len, &detail));
}
static void combine_rows(void) {
    status = BELOW(amla_combine_range(&call, plan, sizeof plan, 0, info.merges, partials,
                                     info.partials_len, &detail));
}
static void one_by_one(void *pool, size_t n, void (*body)(void *, size_t), void *arg) {
    (void)pool;
    for (size_t i = 0; i < n; i++) body(arg, i);
}
static void run_parallel(void) {
    status = BELOW(amla_run_parallel(&call, plan, sizeof plan, one_by_one, NULL, workspace,
                                     sizeof workspace, partials, info.partials_len, &detail));
}
static void merge(void) {
    status = BELOW(amla_merge(call.b, call.s_q, call.h_q, call.d_v, &output, parts, parts_len,
                              &detail));
}
static void mla_decode(void) {
    status = BELOW(amla_mla_decode(numbers, numbers, call.b, call.s_q, call.s_k, call.h_q, 0.04F,
                                   o, lse, workspace, sizeof workspace));
}
static void encode_fp8(void) {
    status = BELOW(amla_encode_fp8(numbers, row_len, encoded, encoded_len, &detail));
}
static void encode_model1(void) {
    status = BELOW(amla_encode_model1(numbers, row_len, encoded, encoded_len, scales,
                                      sizeof scales, &detail));
}
static void encode_int8(void) {
    status = BELOW(amla_encode_int8(numbers, row_len, values, encoded_len, &scale, &detail));
}
static void encode_e4m3(void) {
    status = BELOW(amla_encode_e4m3(numbers, row_len, encoded, encoded_len, &scale, &detail));
}
static void encode_q8_0(void) {
    status = BELOW(amla_encode_q8_0(floats, row_len, blocks, encoded_len, &detail));
}
static void encode_q4_0(void) {
    status = BELOW(amla_encode_q4_0(floats, row_len, blocks, encoded_len, &detail));
}

static const struct {
    const char *name;
    void (*call)(void);
    int of_backend;
} functions[FUNCTIONS] = {
    [ABI_VERSION] = {"amla_abi_version", abi_version, 0},
    [VERSION_STRING] = {"amla_version_string", version_string, 0},
    [BACKEND_NAME] = {"amla_backend_name", backend_name, 0},
    [PERMIT_AMX] = {"amla_permit_amx", permit_amx, 0},
    [SET_MAX_BACKEND] = {"amla_set_max_backend", set_max_backend, 0},
    [AVAILABLE_BACKEND] = {"amla_available_backend", available_backend, 0},
    [CAPABILITIES] = {"amla_capabilities", get_capabilities, 0},
    [STATUS_STRING] = {"amla_status_string", status_string, 0},
    [PLAN_SIZE] = {"amla_plan_size", get_plan_size, 1},
    [PLAN] = {"amla_plan", make_plan, 1},
    [PLAN_FOR_THREADS] = {"amla_plan_for_threads", make_plan_for_threads, 1},
    [PLAN_BOUND] = {"amla_plan_bound", bound_plan, 1},
    [PLAN_QUERY] = {"amla_plan_query", query, 1},
    [WORKSPACE_SIZE] = {"amla_workspace_size", get_workspace_size, 1},
    [RUN] = {"amla_run", run, 1},
    [RUN_TASKS] = {"amla_run_tasks", run_tasks, 1},
    [COMBINE] = {"amla_combine", combine, 1},
    [COMBINE_RANGE] = {"amla_combine_range", combine_rows, 1},
    [RUN_PARALLEL] = {"amla_run_parallel", run_parallel, 1},
    [MERGE] = {"amla_merge", merge, 0},
    [MLA_DECODE] = {"amla_mla_decode", mla_decode, 0},
    [ENCODE_FP8] = {"amla_encode_fp8", encode_fp8, 0},
    [ENCODE_MODEL1] = {"amla_encode_model1", encode_model1, 0},
    [ENCODE_INT8] = {"amla_encode_int8", encode_int8, 0},
    [ENCODE_E4M3] = {"amla_encode_e4m3", encode_e4m3, 0},
    [ENCODE_Q8_0] = {"amla_encode_q8_0", encode_q8_0, 0},
    [ENCODE_Q4_0] = {"amla_encode_q4_0", encode_q4_0, 0},
};

static amla_status measure(int function) {
    detail.struct_size = sizeof detail;
    info.struct_size = sizeof info;
    capabilities.struct_size = sizeof capabilities;
    size_t depth = depth_of(functions[function].call);
    if (depth > deepest[function].depth) {
        deepest[function].depth = depth;
        memcpy(deepest[function].call, description, sizeof description);
    }
    return status;
}

static void done(int function) {
    if (measure(function) != AMLA_OK) {
        fprintf(stderr, "%s, %s: ", functions[function].name, description);
        check(0, detail.message);
    }
}

static int failures;

/* Prints the most that functions took, and resets it. */
static void report(int of_backend) {
    for (int i = 0; i < FUNCTIONS; i++) {
        if (functions[i].of_backend != of_backend) continue;
        struct deepest *d = &deepest[i];
        check(d->depth > 0, functions[i].name);
        printf("%s %s %zu %s%s\n", functions[i].name, of_backend ? backend : "-", d->depth,
               d->depth > LIMIT ? "TOO MUCH " : "", d->call);
        failures += d->depth > LIMIT;
        memset(d, 0, sizeof *d);
    }
}

/* Calls. */

enum {
    CAUSAL = 1, ROPE = 2, PAGED = 4, RAGGED = 8, WINDOW = 16, MASK = 32, SPARSE = 64, EXTRA = 128,
    SINK = 256, INFINITE = 512, LONG = 1024, Q_F16 = 2048
};

/* What a call has besides its sizes; v is 0 where values are the head of the keys. */
static const struct kind {
    const char *name;
    unsigned features;
    amla_dtype kv, v;
} kinds[] = {
    {"dense", 0, AMLA_DTYPE_BF16, 0},
    {"causal", CAUSAL, AMLA_DTYPE_BF16, 0},
    {"paged, window, sink", PAGED | WINDOW | SINK, AMLA_DTYPE_BF16, 0},
    {"paged, mask", PAGED | MASK, AMLA_DTYPE_BF16, 0},
    {"ragged, causal", RAGGED | CAUSAL, AMLA_DTYPE_BF16, 0},
    {"several ranges", LONG, AMLA_DTYPE_BF16, 0},
    {"V apart", 0, AMLA_DTYPE_BF16, AMLA_DTYPE_BF16},
    {"V apart, INT8", CAUSAL, AMLA_DTYPE_BF16, AMLA_DTYPE_INT8},
    {"V apart, keys F16", 0, AMLA_DTYPE_F16, AMLA_DTYPE_BF16},
    {"V apart, F16", MASK, AMLA_DTYPE_F16, AMLA_DTYPE_F16},
    {"rotary parts apart", ROPE, AMLA_DTYPE_BF16, 0},
    {"rotary parts apart, paged, F16", ROPE | PAGED, AMLA_DTYPE_F16, 0},
    {"Q F16", Q_F16, AMLA_DTYPE_BF16, 0},
    {"F16", 0, AMLA_DTYPE_F16, 0},
    {"FP8, paged", PAGED, AMLA_DTYPE_FP8, 0},
    {"MODEL1", 0, AMLA_DTYPE_MODEL1, 0},
    {"INT8, causal", CAUSAL, AMLA_DTYPE_INT8, 0},
    {"sparse", SPARSE, AMLA_DTYPE_BF16, 0},
    {"sparse, second cache", SPARSE | EXTRA | SINK, AMLA_DTYPE_BF16, 0},
    {"sparse, second cache, paged, FP8", SPARSE | EXTRA | PAGED, AMLA_DTYPE_FP8, 0},
    {"sparse, MODEL1", SPARSE, AMLA_DTYPE_MODEL1, 0},
    {"V infinite", INFINITE | CAUSAL, AMLA_DTYPE_BF16, 0},
    {"V infinite, F16", INFINITE | MASK, AMLA_DTYPE_F16, 0},
    {"V infinite, apart", INFINITE | MASK, AMLA_DTYPE_BF16, AMLA_DTYPE_BF16},
};

static const size_t widths[][2] = {{576, 512}, {512, 512}, {320, 256},
                                   {192, 128}, {128, 128}, {64, 64}};
static const size_t heads[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  12,  16,
                               17, 28, 29, 32, 33, 48, 64, 65, 128, ROWS};

static struct amla_tensor tensor(amla_dtype dtype, const uint16_t *data, size_t rows, size_t n,
                                 size_t width) {
    size_t row = dtype == AMLA_DTYPE_FP8      ? AMLA_FP8_ROW
                 : dtype == AMLA_DTYPE_MODEL1 ? AMLA_MODEL1_ROW
                                              : width;
    size_t bytes = dtype == AMLA_DTYPE_BF16 || dtype == AMLA_DTYPE_F16 ? 2 : 1;
    return (struct amla_tensor){
        .struct_size = sizeof(struct amla_tensor), .dtype = dtype, .data = data,
        .len = sizeof numbers / bytes, .strides = {rows * n * row, n * row, row},
        .scales = (const float *)(const void *)numbers, .scales_len = KEYS + PAGE,
        .scale_strides = {rows * n, n, 1},
        .model1_scales = rows * row, .model1_scale_stride = AMLA_MODEL1_SCALES};
}

/* Describes a call; 0 if these widths have no such kind. */
static int describe(const struct kind *kind, size_t h_q, const size_t *width, unsigned mode) {
    unsigned has = kind->features;
    size_t d_qk = width[0], d_v = width[1], s_q = has & (CAUSAL | MASK) ? 2 : 1;
    size_t s_k = has & LONG ? KEYS : PLACES, page = has & PAGED ? PAGE : s_k;
    if ((kind->kv == AMLA_DTYPE_FP8 && d_qk != 576) || (has & ROPE && d_qk == d_v) ||
        (kind->kv == AMLA_DTYPE_MODEL1 && (d_qk != 512 || d_v != 512)))
        return 0;
    size_t d_k = has & ROPE ? d_v : d_qk;
    const uint16_t *of_keys = has & INFINITE && !kind->v ? with_infinity : numbers;
    const uint16_t *of_values = has & INFINITE ? with_infinity : numbers;
    amla_dtype of_q = has & Q_F16 ? AMLA_DTYPE_F16 : AMLA_DTYPE_BF16;
    q = tensor(of_q, numbers, s_q, h_q, d_k);
    q_rope = tensor(of_q, numbers, s_q, h_q, d_qk - d_v);
    kv = extra_kv = tensor(kind->kv, of_keys, page, 1, d_k);
    k_rope = tensor(kind->kv, numbers, page, 1, d_qk - d_v);
    v = tensor(kind->v, of_values, page, 1, d_v);
    indices = (struct amla_indices){.struct_size = sizeof indices, .indices = places,
                                    .indices_len = PLACES, .strides = {PLACES, PLACES},
                                    .topk = PLACES};
    extra = (struct amla_extra){.struct_size = sizeof extra, .kv = &extra_kv,
                                .pages = s_k / page, .page_size = page, .indices = &indices};
    output = (struct amla_output){.struct_size = sizeof output,
                                  .dtype = 1 + mode % 3, .o = o, .o_len = O_LEN,
                                  .o_strides = {s_q * h_q * d_v, h_q * d_v, d_v},
                                  .lse = lse, .lse_len = LSE_LEN,
                                  .lse_strides = {s_q * h_q, s_q, 1},
                                  .lse_base = mode / 2 % 2, .lse_empty = mode % 2};
    call = (struct amla_call){.struct_size = sizeof call, .flags = has & CAUSAL ? AMLA_CAUSAL : 0,
                              .b = 1, .s_q = s_q, .s_k = s_k, .h_q = h_q, .h_kv = 1,
                              .d_qk = d_qk, .d_v = d_v, .softmax_scale = mode % 2 ? 1 : -0.5F,
                              .rescale = mode % 2, .precision = mode / 2 % 2,
                              .backend = backend, .q = &q, .kv = &kv, .output = &output};
    if (has & ROPE) call.q_rope = &q_rope, call.k_rope = &k_rope;
    if (kind->v) call.v = &v;
    if (has & PAGED) {
        call.page_size = PAGE;
        call.pages = PAGES;
        extra.pages = PAGES;
        call.block_table = table, call.block_table_len = call.max_blocks = PAGES;
    }
    if (has & RAGGED) {
        q_indptr[1] = (int32_t)s_q;
        kv_indptr[1] = (int32_t)s_k;
        call.q_indptr = q_indptr, call.q_indptr_len = 2;
        call.kv_indptr = kv_indptr, call.kv_indptr_len = 2;
    }
    if (has & WINDOW) {
        lens[0] = (int32_t)s_k - 7;
        call.window = 150;
        call.cache_seqlens = lens, call.cache_seqlens_len = 1;
    }
    if (has & MASK) call.tail_mask = mask, call.tail_mask_len = 4, call.tail = TAIL;
    if (has & SPARSE) call.sparse = &indices;
    if (has & EXTRA) call.extra = &extra;
    if (has & SINK) call.sink = sink, call.sink_len = h_q;
    snprintf(description, sizeof description, "%zu rows of %zu, %zu: %s; %s, %s", s_q * h_q, d_qk,
             d_v, kind->name, call.rescale ? "compensated" : "exact",
             call.precision ? "BF16x2" : "BF16");
    return 1;
}

/* The described call, through all functions that take one. */
static void compute(void) {
    for (int i = PLAN_SIZE; i <= RUN; i++) done(i);
    partials = malloc((info.partials_len + 1) * sizeof *partials);
    check(partials != NULL, "out of memory");
    done(RUN_TASKS);
    done(COMBINE);
    done(COMBINE_RANGE);
    done(RUN_PARALLEL);
    free(partials);
}

/* Fused and skinny kernels take the most stack: they see all kinds in all widths. With more heads,
 * the widths take turns. */
static void calls(void) {
    enum { KINDS = sizeof kinds / sizeof *kinds, WIDTHS = sizeof widths / sizeof *widths };
    unsigned turn = 0;
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        for (size_t kind = 0; kind < KINDS; kind++)
            for (size_t width = 0; width < WIDTHS; width++, turn++)
                if ((heads[i] <= 17 || (i + kind) % WIDTHS == width) &&
                    describe(&kinds[kind], heads[i], widths[width], (i + turn) % 4))
                    compute();
}

/* Messages take stack too. */
static void refusals(void) {
    static const size_t width[] = {128, 128};
    static float results[1 << 16];
    partials = results;
    for (int wrong = 0; wrong < 8; wrong++) {
        describe(&kinds[2], 2, width, 0);
        done(PLAN);
        done(PLAN_QUERY);
        check(info.partials_len <= sizeof results / sizeof *results, "partials");
        switch (wrong) {
        case 0: call.d_v = 127; break;
        case 1: call.softmax_scale = INFINITY; break;
        case 2: call.pages = 3; break;
        case 3: kv.len = 1; break;
        case 4: call.sparse = &indices; break;
        case 5: call.struct_size = 0; break;
        case 6: call.s_q = SIZE_MAX; break;
        case 7: call.backend = "portabl"; break;
        }
        snprintf(description, sizeof description, "refusal %d", wrong);
        for (int i = PLAN_SIZE; i <= RUN_PARALLEL; i++)
            if (i != PLAN_QUERY && i != PLAN_BOUND) check(measure(i) != AMLA_OK, description);
    }
    describe(&kinds[2], 2, width, 0);
    memset(plan, 0, sizeof plan);
    strcpy(description, "no plan");
    check(measure(PLAN_QUERY) == AMLA_ERROR_NOT_A_PLAN, description);
    check(measure(RUN_TASKS) == AMLA_ERROR_NOT_A_PLAN, description);
    check(measure(COMBINE) == AMLA_ERROR_NOT_A_PLAN, description);
}

static void merges(void) {
    for (parts_len = 0; parts_len <= AMLA_MERGE_MAX + 1; parts_len += 13)
        for (unsigned mode = 0; mode < 4; mode++) {
            describe(&kinds[0], 3, widths[0], mode);
            output.dtype = AMLA_DTYPE_F32;
            output.o_len = 3 * 512;
            output.lse_len = 3;
            for (size_t i = 0; i < AMLA_MERGE_MAX; i++)
                parts[i] = (struct amla_part){.struct_size = sizeof parts[i], .o = part_o,
                                              .o_len = output.o_len, .lse = part_lse,
                                              .lse_len = output.lse_len};
            snprintf(description, sizeof description, "%zu parts", parts_len);
            check((measure(MERGE) == AMLA_OK) == (parts_len <= AMLA_MERGE_MAX), "merge");
        }
}

static void mla_decodes(void) {
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        describe(&kinds[1], heads[i], widths[0], 0);
        done(MLA_DECODE);
        call.s_q = 0;
        strcpy(description, "a refusal");
        check(measure(MLA_DECODE) == AMLA_ERROR_OUT_OF_RANGE, "done, though wrong");
    }
}

static void encoders(void) {
    static const size_t lens_of[][2] = {{576, AMLA_FP8_ROW}, {512, AMLA_MODEL1_ROW}, {576, 576},
                                       {576, 576},          {576, 18},              {576, 18}};
    for (int i = 0; i < 576; i++) floats[i] = (float)(i * 29 % 97) - 48.0f;
    for (int i = 0; i < 6; i++) {
        row_len = lens_of[i][0];
        encoded_len = lens_of[i][1];
        strcpy(description, "a row");
        done(ENCODE_FP8 + i);
        row_len--;
        strcpy(description, "a refusal");
        check(measure(ENCODE_FP8 + i) != AMLA_OK, "encoded, though wrong");
    }
}

static void fill(void) {
    uint32_t state = 1;
    for (size_t i = 0; i < ELEMENTS; i++) {
        state = state * UINT32_C(1664525) + UINT32_C(1013904223);
        /* Finite as BF16 (up to 2), FP16 and FP8, of either sign. */
        numbers[i] = with_infinity[i] = (uint16_t)(0x3c00 | (state >> 16 & 0x8377));
    }
    /* In the values of early keys, whatever the width. */
    with_infinity[1000] = 0x7f80;
    with_infinity[2000] = 0xff80;
    for (int32_t i = 0; i < PAGES; i++) table[i] = i ^ (i < PAGES - 4 ? 2 : 0);
    for (int32_t i = 0; i < PLACES; i++) places[i] = i % 9 ? i * 7 % PLACES : -1;
    for (size_t i = 0; i < 4; i++) mask[i] = UINT64_C(0xaaaaaaaaaaaaaaab);
}

int main(void) {
    /* Nothing but the calls may run on the stack. */
    sigset_t all;
    sigfillset(&all);
    check(pthread_sigmask(SIG_BLOCK, &all, NULL) == 0, "pthread_sigmask");
    check(depth_of(nothing) < 4 << 10, "a thread's own stack");
    size_t known = depth_of(of_known_depth);
    check(known >= LIMIT && known < LIMIT + 256, "a known depth");

    fill();
    measure(PERMIT_AMX);
    measure(ABI_VERSION);
    measure(VERSION_STRING);
    measure(BACKEND_NAME);
    measure(AVAILABLE_BACKEND);
    check(measure(SET_MAX_BACKEND) == AMLA_ERROR_BACKEND_IN_USE, "a cap, though too late");
    done(CAPABILITIES);
    for (status = -1; status <= AMLA_ERROR_BACKEND_IN_USE + 1; status++) measure(STATUS_STRING);
    merges();
    mla_decodes();
    encoders();
    report(0);
    size_t backends = 0;
    for (; (backend = amla_available_backend(backends)) != NULL; backends++) {
        calls();
        refusals();
        report(1);
    }
    check(backends == capabilities.backends_len, "backends");
    return failures != 0;
}
