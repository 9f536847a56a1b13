/*
 * What the examples share: a decode step of DeepSeek-V3's shape over a paged cache, with made-up
 * numbers. C11 and C++17.
 */
#ifndef AMLA_EXAMPLES_COMMON_H
#define AMLA_EXAMPLES_COMMON_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "amla.h"

enum { B = 4, S_K = 3000, H_Q = 16, D_QK = 576, D_V = 512, PAGE = 64, MAX_BLOCKS = 47, PAGES = 200 };

/* Queries, cache, results, and the call over them. */
struct step {
    uint16_t *q, *cache;
    int32_t lens[B], table[B * MAX_BLOCKS];
    float *o, *lse;
    struct amla_tensor q_tensor, kv_tensor;
    struct amla_output output;
    struct amla_call call;
};

static inline void *allocate(size_t bytes) {
    /* A multiple of the alignment, as aligned_alloc() wants it. */
    void *memory = aligned_alloc(AMLA_WORKSPACE_ALIGN, (bytes + 63) / 64 * 64);
    if (memory == NULL) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    return memory;
}

static inline void must(amla_status status, const struct amla_error_detail *detail) {
    if (status != AMLA_OK) {
        fprintf(stderr, "%s: %s\n", amla_status_string(status), detail->message);
        exit(1);
    }
}

/* BF16 numbers between -1 and 1. */
static inline void numbers(uint16_t *out, size_t n, uint32_t seed) {
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525U + 1013904223U;
        float x = (float)(seed >> 8) / 8388608.0F - 1.0F;
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        out[i] = (uint16_t)(bits >> 16);
    }
}

static inline void prepare(struct step *s) {
    const size_t q_len = (size_t)B * H_Q * D_QK, cache_len = (size_t)PAGES * PAGE * D_QK;
    memset(s, 0, sizeof *s);
    s->q = (uint16_t *)allocate(q_len * sizeof *s->q);
    s->cache = (uint16_t *)allocate(cache_len * sizeof *s->cache);
    s->o = (float *)allocate((size_t)B * H_Q * D_V * sizeof *s->o);
    s->lse = (float *)allocate((size_t)B * H_Q * sizeof *s->lse);
    numbers(s->q, q_len, 1);
    numbers(s->cache, cache_len, 2);
    /* Requests of different lengths, their pages anywhere. */
    for (int32_t b = 0, page = 0; b < B; b++) {
        s->lens[b] = S_K - 700 * b;
        for (int32_t i = 0; i < MAX_BLOCKS; i++)
            s->table[b * MAX_BLOCKS + i] = i * PAGE < s->lens[b] ? page++ * 7 % PAGES : -1;
    }

    s->q_tensor.struct_size = sizeof s->q_tensor;
    s->q_tensor.dtype = AMLA_DTYPE_BF16;
    s->q_tensor.data = s->q;
    s->q_tensor.len = q_len;
    s->q_tensor.strides[0] = s->q_tensor.strides[1] = (size_t)H_Q * D_QK;
    s->q_tensor.strides[2] = D_QK;

    s->kv_tensor.struct_size = sizeof s->kv_tensor;
    s->kv_tensor.dtype = AMLA_DTYPE_BF16;
    s->kv_tensor.data = s->cache;
    s->kv_tensor.len = cache_len;
    s->kv_tensor.strides[0] = (size_t)PAGE * D_QK;
    s->kv_tensor.strides[1] = s->kv_tensor.strides[2] = D_QK;

    s->output.struct_size = sizeof s->output;
    s->output.dtype = AMLA_DTYPE_F32;
    s->output.o = s->o;
    s->output.o_len = (size_t)B * H_Q * D_V;
    s->output.o_strides[0] = s->output.o_strides[1] = (size_t)H_Q * D_V;
    s->output.o_strides[2] = D_V;
    s->output.lse = s->lse;
    s->output.lse_len = (size_t)B * H_Q;
    s->output.lse_strides[0] = H_Q;
    s->output.lse_strides[1] = s->output.lse_strides[2] = 1;

    s->call.struct_size = sizeof s->call;
    s->call.b = B;
    s->call.s_q = 1;
    s->call.s_k = S_K;
    s->call.h_q = H_Q;
    s->call.h_kv = 1;
    s->call.d_qk = D_QK;
    s->call.d_v = D_V;
    s->call.softmax_scale = 1.0F / 24.0F;
    s->call.q = &s->q_tensor;
    s->call.kv = &s->kv_tensor;
    s->call.cache_seqlens = s->lens;
    s->call.cache_seqlens_len = B;
    s->call.block_table = s->table;
    s->call.block_table_len = (size_t)B * MAX_BLOCKS;
    s->call.max_blocks = MAX_BLOCKS;
    s->call.page_size = PAGE;
    s->call.pages = PAGES;
    s->call.output = &s->output;
}

static inline void release(struct step *s) {
    free(s->q);
    free(s->cache);
    free(s->o);
    free(s->lse);
}

/* The same on one thread, which the examples with several compare with, bit for bit. */
static inline int same_as_one_thread(struct step *s) {
    struct amla_error_detail detail;
    size_t workspace_size, o_bytes = s->output.o_len * sizeof(float);
    size_t lse_bytes = s->output.lse_len * sizeof(float);
    memset(&detail, 0, sizeof detail);
    detail.struct_size = sizeof detail;
    must(amla_workspace_size(&s->call, &workspace_size, &detail), &detail);
    void *workspace = allocate(workspace_size);
    struct amla_output one = s->output, *all = &s->output;
    one.o = allocate(o_bytes);
    one.lse = (float *)allocate(lse_bytes);
    s->call.output = &one;
    must(amla_run(&s->call, workspace, workspace_size, &detail), &detail);
    s->call.output = all;
    int same = memcmp(one.o, all->o, o_bytes) == 0 && memcmp(one.lse, all->lse, lse_bytes) == 0;
    free(one.o);
    free(one.lse);
    free(workspace);
    printf("o[0] = %g, lse[0] = %g: %s\n", (double)s->o[0], (double)s->lse[0],
           same ? "the same bits as one thread" : "NOT what one thread computes");
    return same;
}

#endif
