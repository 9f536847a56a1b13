/*
 * Calls in floating-point environments that hosts leave behind: subnormals as zeros, rounding
 * elsewhere than to the nearest, trapping exceptions. On every backend that this processor runs
 * results are those of the default environment, to the bit, and the environment is as it was.
 */
#define _GNU_SOURCE
#include <fenv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "amla.h"

enum { KEYS = 200, ROWS = 70, D_QK = 576, D_V = 512 };

static void check(int condition, const char *what) {
    if (condition) return;
    fprintf(stderr, "environment: %s\n", what);
    exit(1);
}

/* Control registers, flags included. */

struct registers {
    uint64_t control, flags;
};

#if defined(__x86_64__)

#include <immintrin.h>

enum { FLAGS = 0x3f };

static struct registers get(void) {
    unsigned now = _mm_getcsr();
    return (struct registers){now & ~(unsigned)FLAGS, now & FLAGS};
}

static void set(struct registers to) { _mm_setcsr((unsigned)(to.control | to.flags)); }

/* DAZ, FTZ, each rounding, and traps of invalid, division by zero and overflow. */
static const uint64_t environments[] = {0x1fc0, 0x9f80, 0x9fc0, 0x3f80, 0x5f80, 0x7f80, 0x1900};

#elif defined(__aarch64__)

static struct registers get(void) {
    struct registers now;
    __asm__ volatile("mrs %0, fpcr\n\tmrs %1, fpsr" : "=r"(now.control), "=r"(now.flags));
    return now;
}

static void set(struct registers to) {
    __asm__ volatile("msr fpcr, %0\n\tmsr fpsr, %1" : : "r"(to.control), "r"(to.flags));
}

/* FZ, each rounding, default NaN, and traps, which a processor may not have. */
static const uint64_t environments[] = {1 << 24, 1 << 22, 2 << 22, 3 << 22, 1 << 25, 7 << 8};

#else
#error "no such registers are known here"
#endif

/* Results, and what the environment was when they were there. */

struct results {
    float o[ROWS * D_V], lse[ROWS], part_o[ROWS * D_V], part_lse[ROWS], scale;
    float mla_o[ROWS * D_V], mla_lse[ROWS], parallel_o[ROWS * D_V], parallel_lse[ROWS];
    unsigned char fp8[AMLA_FP8_ROW], model1[AMLA_MODEL1_ROW], scales[AMLA_MODEL1_SCALES];
    int8_t int8[D_QK];
};

static uint16_t q[ROWS * D_QK], row[D_QK];
static unsigned char kv[KEYS * D_QK * 2];
static _Alignas(AMLA_WORKSPACE_ALIGN) unsigned char workspace[2 * AMLA_WORKSPACE_MAX];
static struct results usual, other;
static unsigned char plan[AMLA_PLAN_MAX];

/* What a cache holds: BF16 near 1, F16 subnormals, FP8 code 0x07, a number below FP16's normal
 * ones, with scale 1. */
static void fill(amla_dtype dtype) {
    uint32_t state = 1;
    for (size_t i = 0; i < sizeof kv / 2; i++) {
        state = state * UINT32_C(1664525) + UINT32_C(1013904223);
        uint16_t bits = (uint16_t)(dtype == AMLA_DTYPE_F16 ? state >> 16 & 0x83ff
                                                           : 0x3f00 | (state >> 16 & 0x80ff));
        memcpy(kv + 2 * i, &bits, 2);
    }
    if (dtype == AMLA_DTYPE_FP8)
        for (size_t k = 0; k < KEYS; k++) {
            unsigned char *key = kv + k * AMLA_FP8_ROW;
            static const float ones[4] = {1, 1, 1, 1};
            for (size_t i = 0; i < 512; i++) key[i] = (unsigned char)((k + i) % 8 | (i % 2) << 7);
            memcpy(key + 512, ones, sizeof ones);
        }
    for (size_t i = 0; i < ROWS * D_QK; i++) {
        state = state * UINT32_C(1664525) + UINT32_C(1013904223);
        q[i] = (uint16_t)(0x3e00 | (state >> 16 & 0x81ff));
    }
    for (size_t i = 0; i < D_QK; i++) row[i] = q[i];
}

static void done(amla_status status, const struct amla_error_detail *detail) {
    check(status == AMLA_OK, detail->message);
}

static size_t loops;

/* The host's own code: it has the environment that the host had when it called. */
static void parallel_for(void *pool, size_t n, void (*body)(void *, size_t), void *arg) {
    const struct registers *outside = pool;
    loops++;
    check(get().control == outside->control, "a pool computes in another environment");
    for (size_t i = n; i > 0; i--) body(arg, i - 1);
    check(get().control == outside->control, "a pool's environment is another");
}

static void compute(const char *backend, amla_dtype dtype, size_t h_q, unsigned mode,
                    struct results *to) {
    size_t width = dtype == AMLA_DTYPE_FP8 ? AMLA_FP8_ROW : D_QK;
    struct amla_error_detail detail = {.struct_size = sizeof detail};
    struct amla_plan_info info = {.struct_size = sizeof info};
    struct amla_tensor queries = {.struct_size = sizeof queries, .dtype = AMLA_DTYPE_BF16,
                                  .data = q, .len = h_q * D_QK,
                                  .strides = {h_q * D_QK, h_q * D_QK, D_QK}};
    struct amla_tensor keys = {.struct_size = sizeof keys, .dtype = dtype, .data = kv,
                               .len = KEYS * width, .strides = {KEYS * width, width, width}};
    struct amla_output output = {.struct_size = sizeof output, .dtype = AMLA_DTYPE_F32,
                                 .o = to->o, .o_len = h_q * D_V,
                                 .o_strides = {h_q * D_V, h_q * D_V, D_V}, .lse = to->lse,
                                 .lse_len = h_q, .lse_strides = {h_q, 1, 1}};
    struct amla_call call = {.struct_size = sizeof call, .b = 1, .s_q = 1, .s_k = KEYS,
                             .h_q = h_q, .h_kv = 1, .d_qk = D_QK, .d_v = D_V,
                             .softmax_scale = 0.04F, .rescale = mode % 2, .precision = mode / 2,
                             .backend = backend, .q = &queries, .kv = &keys, .output = &output};
    done(amla_run(&call, workspace, sizeof workspace, &detail), &detail);

    if (dtype == AMLA_DTYPE_BF16 && mode == 0)
        done(amla_mla_decode(q, (const uint16_t *)(const void *)kv, 1, 1, KEYS, h_q, 0.04F,
                             to->mla_o, to->mla_lse, workspace, sizeof workspace), &detail);

    output.o = to->part_o, output.lse = to->part_lse;
    done(amla_plan(&call, plan, sizeof plan, &detail), &detail);
    done(amla_plan_query(plan, sizeof plan, &info, &detail), &detail);
    float *partials = malloc(info.partials_len * sizeof *partials);
    check(partials != NULL, "out of memory");
    done(amla_run_tasks(&call, plan, sizeof plan, 0, info.tasks, workspace, sizeof workspace,
                        partials, info.partials_len, &detail), &detail);
    done(amla_combine(&call, plan, sizeof plan, partials, info.partials_len, &detail), &detail);
    free(partials);
    struct registers outside = get();
    output.o = to->parallel_o, output.lse = to->parallel_lse;
    done(amla_plan_for_threads(&call, 2, plan, sizeof plan, &detail), &detail);
    done(amla_run_parallel(&call, plan, sizeof plan, parallel_for, &outside, workspace,
                           sizeof workspace, NULL, 0, &detail), &detail);
    output.o = to->part_o, output.lse = to->part_lse;
    struct amla_part part = {.struct_size = sizeof part, .o = to->o, .o_len = h_q * D_V,
                             .lse = to->lse, .lse_len = h_q};
    done(amla_merge(1, 1, h_q, D_V, &output, &part, 1, &detail), &detail);

    done(amla_encode_fp8(row, D_QK, to->fp8, sizeof to->fp8, &detail), &detail);
    done(amla_encode_model1(row, D_V, to->model1, sizeof to->model1, to->scales,
                            sizeof to->scales, &detail), &detail);
    done(amla_encode_int8(row, D_QK, to->int8, sizeof to->int8, &to->scale, &detail), &detail);
}

int main(void) {
    static const amla_dtype dtypes[] = {AMLA_DTYPE_BF16, AMLA_DTYPE_F16, AMLA_DTYPE_FP8};
    static const size_t heads[] = {1, 3, 5, 8, 12, 28, ROWS};
    const struct registers as_started = get();
    size_t calls = 0;
    const char *backend;
    for (size_t b = 0; (backend = amla_available_backend(b)) != NULL; b++)
        for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
            fill(dtypes[d]);
            for (size_t h = 0; h < sizeof heads / sizeof *heads; h++)
                for (unsigned mode = 0; mode < 4; mode++) {
                    memset(&usual, 0, sizeof usual);
                    compute(backend, dtypes[d], heads[h], mode, &usual);
                    size_t e = calls++ % (sizeof environments / sizeof *environments);
                    memset(&other, 0, sizeof other);
                    set((struct registers){environments[e], 0});
                    const struct registers before = get();
                    compute(backend, dtypes[d], heads[h], mode, &other);
                    const struct registers after = get();
                    set(as_started);
                    check(memcmp(&before, &after, sizeof before) == 0, "registers differ");
                    if (memcmp(&usual, &other, sizeof usual) != 0) {
                        fprintf(stderr, "%s, %zu heads, environment %zu: ", backend, heads[h], e);
                        check(0, "results differ");
                    }
                }
        }
    check(calls > 0, "no backend");
    check(loops > 0, "no call had two tasks");
    printf("%zu calls\n", calls);
    return 0;
}
