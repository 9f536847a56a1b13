/*
 * Calls with random numbers in random fields, pointers and what memory there is apart: each is done
 * or refused, a refused one has written nothing, and none ends the program.
 *
 *   numbers ROUNDS
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "amla.h"

enum { LEN = 1 << 15, PARTIALS = 1 << 17 };

static uint64_t state = 1;

static uint32_t any(uint32_t below) {
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(state >> 33) % below;
}

/* Small ones, ones that sizes are made of, ones near where arithmetic ends. */
static size_t number(void) {
    static const size_t special[] = {0, 1, 2, 16, 64, 128, 576, 512, 656, 4096, LEN,
                                     SIZE_MAX, SIZE_MAX / 2, SIZE_MAX / 64, INT32_MAX,
                                     (size_t)INT32_MAX + 1, UINT32_MAX};
    return any(2) ? any(9) : special[any(sizeof special / sizeof *special)];
}

static uint64_t data[LEN], out[LEN], more[LEN];
static int32_t list[64];
static float partials[PARTIALS];
static _Alignas(AMLA_WORKSPACE_ALIGN) unsigned char workspace[AMLA_WORKSPACE_MAX];

static void scramble(size_t *fields, size_t n, uint32_t one_in) {
    for (size_t i = 0; i < n; i++)
        if (any(one_in) == 0) fields[i] = number();
}

/* Never more than there is. */
static void length(size_t *len, size_t max) {
    if (any(6) == 0) *len = any((uint32_t)max + 1);
}

static struct amla_tensor tensor(size_t heads, size_t width) {
    static const size_t bytes[] = {1, 2, 2, 4, 1, 1, 1, 34, 18, 1};
    struct amla_tensor t = {.struct_size = sizeof t, .dtype = AMLA_DTYPE_BF16, .data = data,
                            .strides = {heads * width, heads * width, width},
                            .scales = (const float *)(const void *)data, .scales_len = LEN,
                            .model1_scales = 576, .model1_scale_stride = 8};
    if (any(6) == 0) t.dtype = any(10);
    t.len = sizeof data / bytes[t.dtype];
    length(&t.len, t.len);
    scramble(t.strides, 3, 8);
    scramble(t.scale_strides, 3, 8);
    scramble(&t.model1_scales, 1, 8);
    scramble(&t.model1_scale_stride, 1, 8);
    return t;
}

static struct amla_indices indices(void) {
    struct amla_indices i = {.struct_size = sizeof i, .indices = list, .indices_len = 64,
                             .strides = {4, 4}, .topk = 4};
    if (any(3) == 0) i.topk_length = list, i.topk_length_len = any(4);
    scramble(i.strides, 2, 8);
    scramble(&i.topk, 1, 8);
    return i;
}

static int round_of(void) {
    static const size_t widths[][2] = {{64, 64}, {128, 128}, {192, 128}, {576, 512}, {512, 512}};
    const size_t *width = widths[any(5)];
    struct amla_call call = {.struct_size = sizeof call, .b = any(3), .s_q = 1 + any(3),
                             .s_k = any(20), .h_q = 1 + any(4), .h_kv = 1, .d_qk = width[0],
                             .d_v = width[1], .softmax_scale = 0.1F};
    for (size_t i = 0; i < 64; i++) list[i] = any(9) ? (int32_t)any(6) : (int32_t)number();
    if (any(2)) /* Offsets that rise, and lengths that fit. */
        for (int32_t i = 0; i < 8; i++) list[i] = i;
    scramble(&call.b, 7, 12); /* b, s_q, s_k, h_q, h_kv, d_qk, d_v */
    if (any(4) == 0) call.flags = any(3);
    if (any(8) == 0) call.precision = any(4);
    if (any(8) == 0) call.rescale = any(3);
    struct amla_tensor q = tensor(call.h_q, width[0]), kv = tensor(call.h_kv, width[0]);
    struct amla_tensor q_rope = tensor(call.h_q, 64), k_rope = tensor(call.h_kv, 64);
    struct amla_tensor v = tensor(call.h_kv, width[1]), extra_kv = tensor(call.h_kv, width[0]);
    struct amla_indices chosen = indices(), extra_chosen = indices();
    struct amla_extra extra = {.struct_size = sizeof extra, .kv = &extra_kv, .pages = any(9),
                               .page_size = any(5), .indices = &extra_chosen};
    scramble(&extra.pages, 2, 8);
    call.q = &q;
    call.kv = &kv;
    if (any(4) == 0) call.q_rope = &q_rope;
    if (any(4) == 0) call.k_rope = &k_rope;
    if (any(4) == 0) call.v = &v;
    if (any(4) == 0) call.q_indptr = list, call.q_indptr_len = any(5);
    if (any(4) == 0) call.kv_indptr = list, call.kv_indptr_len = any(5);
    if (any(2) == 0) call.cache_seqlens = list, call.cache_seqlens_len = any(4);
    if (any(2) == 0) {
        call.block_table = list;
        call.block_table_len = any(65);
        call.max_blocks = any(9);
        call.page_size = any(9);
        call.pages = any(9);
        scramble(&call.max_blocks, 3, 12); /* max_blocks, page_size, pages */
    }
    if (any(4) == 0) call.window = number();
    if (any(4) == 0) call.tail_mask = more, call.tail_mask_len = any(64), call.tail = number();
    if (any(4) == 0) call.sparse = &chosen;
    if (any(8) == 0) call.extra = &extra;
    if (any(4) == 0) call.sink = (const float *)(const void *)data, call.sink_len = any(5);

    struct amla_output output = {.struct_size = sizeof output, .dtype = 1 + any(3), .o = out,
                                 .o_len = sizeof out / 4, .lse = (float *)(void *)(out + LEN / 2),
                                 .lse_len = LEN / 4,
                                 .o_strides = {call.s_q * call.h_q * call.d_v,
                                               call.h_q * call.d_v, call.d_v},
                                 .lse_strides = {call.h_q * call.s_q, call.s_q, 1},
                                 .lse_base = any(2), .lse_empty = any(2)};
    output.o_len = output.dtype == AMLA_DTYPE_F32 ? LEN : 2 * LEN;
    length(&output.o_len, output.o_len);
    length(&output.lse_len, output.lse_len);
    scramble(output.o_strides, 3, 10);
    scramble(output.lse_strides, 3, 10);
    call.output = &output;

    struct amla_error_detail detail = {.struct_size = sizeof detail};
    struct amla_plan_info info = {.struct_size = sizeof info};
    unsigned char plan[AMLA_PLAN_MAX];
    memset(out, 0xa5, sizeof out);
    amla_status status = amla_run(&call, workspace, sizeof workspace, &detail);
    if (status != AMLA_OK) {
        static uint64_t filled[LEN];
        memset(filled, 0xa5, sizeof filled);
        if (memcmp(out, filled, sizeof out) != 0 || detail.status != status) {
            fprintf(stderr, "written, though refused: %s\n", detail.message);
            exit(1);
        }
    }
    /* What planning makes of it. */
    if (amla_plan(&call, plan, sizeof plan, NULL) == AMLA_OK &&
        amla_plan_query(plan, sizeof plan, &info, NULL) == AMLA_OK &&
        info.partials_len <= PARTIALS) {
        amla_status tasks = amla_run_tasks(&call, plan, sizeof plan, 0, info.tasks, workspace,
                                           sizeof workspace, partials, PARTIALS, NULL);
        amla_status combined = amla_combine(&call, plan, sizeof plan, partials, PARTIALS, NULL);
        if (status == AMLA_OK && (tasks != AMLA_OK || combined != AMLA_OK)) {
            fprintf(stderr, "done by amla_run(), refused in tasks: %d, %d\n", tasks, combined);
            exit(1);
        }
    }
    return status == AMLA_OK;
}

int main(int argc, char **argv) {
    unsigned long rounds = argc > 1 ? strtoul(argv[1], NULL, 10) : 1000, done = 0;
    for (unsigned long i = 0; i < rounds; i++) done += (unsigned long)round_of();
    printf("%lu of %lu calls were done\n", done, rounds);
    return done > 0 && done < rounds ? 0 : 1;
}
