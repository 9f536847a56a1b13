/*
 * A program for version 1 of the interface: its structs by designated initialisers, as that version's
 * README and examples had them. It compiles against later headers as C99, C11 and C++20, and prints
 * what it printed.
 */
#include <stdio.h>

#include "amla.h"

enum { KEYS = 100, HEADS = 16, WIDTH = 576, VALUE = 512, PAGE = 25, PAGES = KEYS / PAGE, TOPK = 10 };
static uint16_t q[HEADS * WIDTH], kv[KEYS * WIDTH]; /* BF16 */
static float o[HEADS * VALUE], lse[HEADS], part_o[HEADS * VALUE], part_lse[HEADS];
static float partials[1 << 16];
/* C99 can't align it. */
static unsigned char memory[AMLA_WORKSPACE_MAX + AMLA_WORKSPACE_ALIGN], plan[AMLA_PLAN_MAX];

static int failed(amla_status status, const struct amla_error_detail *detail) {
    if (status != AMLA_OK) printf("%s: %s\n", amla_status_string(status), detail->message);
    return status != AMLA_OK;
}

int main(void) {
    unsigned char *workspace =
        memory + AMLA_WORKSPACE_ALIGN - (uintptr_t)memory % AMLA_WORKSPACE_ALIGN;
    const size_t workspace_size = AMLA_WORKSPACE_MAX;
    int32_t places[TOPK], table[PAGES];
    if (amla_abi_version() != AMLA_ABI_VERSION) return 1;
    for (int i = 0; i < KEYS * WIDTH; i++) kv[i] = 0x3e80; /* 0.25 */
    for (int i = 0; i < TOPK; i++) places[i] = 9 * i;
    for (int i = 0; i < PAGES; i++) table[i] = PAGES - 1 - i;

    /* README's program. */
    struct amla_tensor queries = {.struct_size = sizeof queries, .dtype = AMLA_DTYPE_BF16,
        .data = q, .len = HEADS * WIDTH, .strides = {HEADS * WIDTH, HEADS * WIDTH, WIDTH}};
    struct amla_tensor cache = {.struct_size = sizeof cache, .dtype = AMLA_DTYPE_BF16,
        .data = kv, .len = KEYS * WIDTH, .strides = {KEYS * WIDTH, WIDTH, WIDTH}};
    struct amla_output output = {.struct_size = sizeof output, .dtype = AMLA_DTYPE_F32,
        .o = o, .o_len = HEADS * VALUE, .o_strides = {HEADS * VALUE, HEADS * VALUE, VALUE},
        .lse = lse, .lse_len = HEADS, .lse_strides = {HEADS, 1, 1}};
    struct amla_call call = {.struct_size = sizeof call, .b = 1, .s_q = 1, .s_k = KEYS,
        .h_q = HEADS, .h_kv = 1, .d_qk = WIDTH, .d_v = VALUE, .softmax_scale = 1.0F / 24.0F,
        .q = &queries, .kv = &cache, .output = &output};
    struct amla_error_detail detail = {.struct_size = sizeof detail};
    if (failed(amla_run(&call, workspace, workspace_size, &detail), &detail)) return 1;
    printf("o[0] = %g, lse[0] = %g\n", (double)o[0], (double)lse[0]);

    /* As tasks, of a paged cache. */
    struct amla_plan_info info = {.struct_size = sizeof info};
    struct amla_output second = {.struct_size = sizeof second, .dtype = AMLA_DTYPE_F32,
        .o = part_o, .o_len = HEADS * VALUE, .o_strides = {HEADS * VALUE, HEADS * VALUE, VALUE},
        .lse = part_lse, .lse_len = HEADS, .lse_strides = {HEADS, 1, 1}};
    struct amla_tensor paged = {.struct_size = sizeof paged, .dtype = AMLA_DTYPE_BF16,
        .data = kv, .len = KEYS * WIDTH, .strides = {PAGE * WIDTH, WIDTH, WIDTH}};
    struct amla_call tasks = {.struct_size = sizeof tasks, .b = 1, .s_q = 1, .s_k = KEYS,
        .h_q = HEADS, .h_kv = 1, .d_qk = WIDTH, .d_v = VALUE, .softmax_scale = 1.0F / 24.0F,
        .q = &queries, .kv = &paged, .block_table = table, .block_table_len = PAGES,
        .max_blocks = PAGES, .page_size = PAGE, .pages = PAGES, .output = &second};
    if (failed(amla_plan(&tasks, plan, sizeof plan, &detail), &detail) ||
        failed(amla_plan_query(plan, sizeof plan, &info, &detail), &detail) ||
        failed(amla_run_tasks(&tasks, plan, sizeof plan, 0, info.tasks, workspace, workspace_size,
                              partials, 1 << 16, &detail), &detail) ||
        failed(amla_combine(&tasks, plan, sizeof plan, partials, 1 << 16, &detail), &detail))
        return 1;
    printf("o[0] = %g, lse[0] = %g\n", (double)part_o[0], (double)part_lse[0]);

    /* Both merged: all keys twice. */
    struct amla_part part = {.struct_size = sizeof part, .o = part_o, .o_len = HEADS * VALUE,
        .lse = part_lse, .lse_len = HEADS};
    if (failed(amla_merge(1, 1, HEADS, VALUE, &output, &part, 1, &detail), &detail)) return 1;
    printf("o[0] = %g, lse[0] = %g\n", (double)o[0], (double)lse[0]);

    /* Some keys of it, and as many of a second cache. */
    struct amla_indices chosen = {.struct_size = sizeof chosen, .indices = places,
        .indices_len = TOPK, .strides = {TOPK, TOPK}, .topk = TOPK};
    struct amla_extra extra = {.struct_size = sizeof extra, .kv = &cache, .pages = 1,
        .page_size = KEYS, .indices = &chosen};
    struct amla_call sparse = {.struct_size = sizeof sparse, .b = 1, .s_q = 1, .s_k = KEYS,
        .h_q = HEADS, .h_kv = 1, .d_qk = WIDTH, .d_v = VALUE, .softmax_scale = 1.0F / 24.0F,
        .q = &queries, .kv = &cache, .sparse = &chosen, .extra = &extra, .output = &output};
    if (failed(amla_run(&sparse, workspace, workspace_size, &detail), &detail)) return 1;
    printf("o[0] = %g, lse[0] = %g\n", (double)o[0], (double)lse[0]);

    struct amla_capability_set set = {.struct_size = sizeof set};
    if (amla_capabilities(&set) != AMLA_OK) return 1;
    printf("(%u, %u)\n", (unsigned)set.dims[0][0], (unsigned)set.dims[0][1]);
    return 0;
}
