#include "amla_ggml.h"

#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "amla.h"
#include "ggml-backend.h"

/* Rows of amla's panel, and bits of a word. */
enum { PANEL_ROWS = 64, WORD = 64 };

/* What a key costs besides its products with rows, in rows. Measured. */
enum { KEY_COST = 5 };

/* Sources of the nodes. A plan has the mask where the others have the plan. */
enum { Q, K, V, MASK, PLAN = MASK, SOURCES };

/* What a mask was translated to. */
enum keys { TAIL_MASK, INDICES };

/* What a plan's memory begins with. */
struct plan {
    /* Numbers that threads have drawn for tasks of the layer. */
    _Atomic size_t drawn;
    /* Whether amla refused a layer. */
    _Atomic bool refused;
    amla_status status;
    char message[192];
    enum keys keys;
    /* Keys of the tail, or indices of a token. */
    size_t width;
    struct amla_plan_info info;
    unsigned char bytes[AMLA_PLAN_MAX];
};

/* Sizes of an attention, and offsets of a plan's lists in its memory. */
struct layout {
    size_t b, s_q, s_k, h_q, d_qk, d_v;
    size_t threads, split_keys;
    /* Words of a token's bits, one bit for each key. */
    size_t words;
    /* Each token's bits; each stream's length; tail masks or indices; each token's number of indices. */
    size_t bits, lens, lists, counts;
    size_t workspaces, end;
};

/* A call with the structs that it points to. */
struct attention {
    struct amla_tensor q, kv;
    struct amla_output output;
    struct amla_indices indices;
    struct amla_call call;
};

static size_t min(size_t a, size_t b) { return a < b ? a : b; }

static size_t max(size_t a, size_t b) { return a > b ? a : b; }

/* -- Which tensors amla computes ------------------------------------------------------------------------------------ */

/* 0 if amla has no such format. */
static amla_dtype dtype(enum ggml_type type) {
    switch (type) {
        case GGML_TYPE_F32: return AMLA_DTYPE_F32;
        case GGML_TYPE_F16: return AMLA_DTYPE_F16;
        case GGML_TYPE_BF16: return AMLA_DTYPE_BF16;
        case GGML_TYPE_Q8_0: return AMLA_DTYPE_Q8_0;
        case GGML_TYPE_Q4_0: return AMLA_DTYPE_Q4_0;
        default: return 0;
    }
}

static bool has_dims(size_t d_qk, size_t d_v) {
    struct amla_capability_set set = {.struct_size = sizeof set};
    bool found = false;
    if (amla_abi_version() != AMLA_ABI_VERSION || amla_capabilities(&set) != AMLA_OK) return false;
    for (size_t i = 0; i < set.dims_len; i++) found |= set.dims[i][0] == d_qk && set.dims[i][1] == d_v;
    return found;
}

static const struct ggml_tensor *root(const struct ggml_tensor *t) { return t->view_src ? t->view_src : t; }

/* Contiguous rows that are some blocks apart, in memory that the processor can read. */
static bool has_rows(const struct ggml_tensor *t) {
    size_t size = ggml_type_size(t->type);
    bool blocks = t->nb[0] == size && t->nb[1] % size == 0 && t->nb[2] % size == 0 && t->nb[3] % size == 0;
    return blocks && (root(t)->buffer == NULL || ggml_backend_buffer_is_host(root(t)->buffer));
}

/* The column of k at which v begins; SIZE_MAX if v isn't columns of k. */
static size_t v_offset(const struct ggml_tensor *k, const struct ggml_tensor *v) {
    bool rows = root(k) == root(v) && k->type == v->type && k->nb[0] == v->nb[0] && k->nb[1] == v->nb[1] &&
                k->ne[1] == v->ne[1] && k->ne[2] == v->ne[2] && k->ne[3] == v->ne[3] &&
                (k->ne[3] == 1 || k->nb[3] == v->nb[3]);
    if (!rows || v->view_offs < k->view_offs) return SIZE_MAX;
    size_t bytes = v->view_offs - k->view_offs, size = ggml_type_size(k->type);
    return bytes % size == 0 ? bytes / size * (size_t)ggml_blck_size(k->type) : SIZE_MAX;
}

static bool is_supported(const struct ggml_tensor *q, const struct ggml_tensor *k, const struct ggml_tensor *v) {
    if (q->type != GGML_TYPE_F32 || dtype(k->type) == 0 || !has_rows(q) || !has_rows(k)) return false;
    if (q->ne[0] != k->ne[0] || k->ne[2] != 1 || k->ne[3] != q->ne[3] || ggml_is_empty(q) || ggml_is_empty(k)) return false;
    if (k->ne[1] >= INT32_MAX || !has_dims((size_t)k->ne[0], (size_t)v->ne[0])) return false;
    size_t offset = v_offset(k, v);
    return offset == 0 || offset == (size_t)(k->ne[0] - v->ne[0]);
}

static bool is_mask(const struct ggml_tensor *mask, const struct ggml_tensor *q, const struct ggml_tensor *k) {
    return (mask->type == GGML_TYPE_F16 || mask->type == GGML_TYPE_F32) && has_rows(mask) && mask->ne[0] == k->ne[1] &&
           mask->ne[1] >= q->ne[1] && mask->ne[2] == 1 && (mask->ne[3] == 1 || mask->ne[3] == q->ne[3]);
}

/* -- Memory --------------------------------------------------------------------------------------------------------- */

/* Memory is as aligned as workspaces must be. */
static size_t align(size_t bytes) { return (bytes + AMLA_WORKSPACE_ALIGN - 1) / AMLA_WORKSPACE_ALIGN * AMLA_WORKSPACE_ALIGN; }

static char *memory_of(const struct ggml_tensor *plan) {
    size_t at = (size_t)(uintptr_t)plan->data;
    return (char *)plan->data + (align(at) - at);
}

static size_t reserve(struct layout *l, size_t bytes) {
    size_t at = l->end;
    l->end = align(at + bytes);
    return at;
}

static struct layout layout_of(const struct ggml_tensor *q, const struct ggml_tensor *k, const struct ggml_tensor *v,
                               size_t threads) {
    struct layout l = {.b = (size_t)q->ne[3], .s_q = (size_t)q->ne[1], .s_k = (size_t)k->ne[1], .h_q = (size_t)q->ne[2],
                       .d_qk = (size_t)q->ne[0], .d_v = (size_t)v->ne[0], .threads = threads};
    size_t rows = l.b * l.s_q, panels = l.b * ((l.s_q * l.h_q + PANEL_ROWS - 1) / PANEL_ROWS);
    /* One KV split where threads have panels enough: partial results would take much memory, and merges some time. */
    if (threads == 1 || panels >= 2 * threads) l.split_keys = (l.s_k + 31) / 32 * 32;
    l.words = (l.s_k + WORD - 1) / WORD;
    reserve(&l, sizeof(struct plan));
    l.bits = reserve(&l, rows * l.words * sizeof(uint64_t));
    l.lens = reserve(&l, l.b * sizeof(int32_t));
    l.lists = reserve(&l, rows * max(l.words * sizeof(uint64_t), l.s_k * sizeof(int32_t)));
    l.counts = reserve(&l, rows * sizeof(int32_t));
    l.workspaces = reserve(&l, threads * AMLA_WORKSPACE_MAX);
    return l;
}

/* -- Calls ---------------------------------------------------------------------------------------------------------- */

static struct amla_tensor tensor(const struct ggml_tensor *t) {
    /* ggml's dimensions of streams, of tokens or keys, and of heads. */
    static const int FROM[] = {3, 1, 2};
    struct amla_tensor tensor = {.struct_size = sizeof tensor, .dtype = dtype(t->type), .data = t->data};
    tensor.len = (size_t)(t->ne[0] / ggml_blck_size(t->type));
    for (int i = 0; i < 3; i++) {
        tensor.strides[i] = t->nb[FROM[i]] / ggml_type_size(t->type);
        tensor.len += (size_t)(t->ne[FROM[i]] - 1) * tensor.strides[i];
    }
    return tensor;
}

/* The call of a node with these sources, whose results go to `o`. */
static void attention_of(struct attention *a, const struct layout *l, char *memory, struct ggml_tensor *const *src,
                         float scale, float *o) {
    const struct plan *plan = (const struct plan *)(void *)memory;
    memset(a, 0, sizeof *a);
    a->q = tensor(src[Q]);
    a->kv = tensor(src[K]);
    a->output = amla_output_contiguous(AMLA_DTYPE_F32, o, NULL, l->b, l->s_q, l->h_q, l->d_v);
    a->output.lse_len = 0;
    a->call = amla_call_mla(&a->q, &a->kv, &a->output, l->b, l->s_q, l->s_k, l->h_q, scale);
    a->call.d_qk = l->d_qk;
    a->call.d_v = l->d_v;
    a->call.v_offset = v_offset(src[K], src[V]);
    a->call.split_keys = l->split_keys;
    if (plan->keys == TAIL_MASK) {
        a->call.cache_seqlens = (const int32_t *)(void *)(memory + l->lens);
        a->call.cache_seqlens_len = l->b;
        if (plan->width == 0) return;
        a->call.tail = plan->width;
        a->call.tail_mask = (const uint64_t *)(void *)(memory + l->lists);
        a->call.tail_mask_len = l->b * l->s_q * ((plan->width + WORD - 1) / WORD);
    } else {
        a->indices.struct_size = sizeof a->indices;
        a->indices.indices = (const int32_t *)(void *)(memory + l->lists);
        a->indices.indices_len = l->b * l->s_q * plan->width;
        a->indices.strides[0] = l->s_q * plan->width;
        a->indices.strides[1] = a->indices.topk = plan->width;
        a->indices.topk_length = (const int32_t *)(void *)(memory + l->counts);
        a->indices.topk_length_len = l->b * l->s_q;
        a->indices.topk_length_strides[0] = l->s_q;
        a->indices.topk_length_strides[1] = 1;
        a->call.flags = AMLA_LIST_STRIDES;
        a->call.sparse = &a->indices;
    }
}

/* -- The mask ------------------------------------------------------------------------------------------------------- */

static size_t ones(uint64_t x) {
    x -= x >> 1 & 0x5555555555555555;
    x = (x & 0x3333333333333333) + (x >> 2 & 0x3333333333333333);
    return (size_t)(((x + (x >> 4)) & 0x0f0f0f0f0f0f0f0f) * 0x0101010101010101 >> 56);
}

/* The lowest bit that is 1. */
static size_t lowest(uint64_t x) { return ones((x & (~x + 1)) - 1); }

/* One more than the highest bit that is 1. */
static size_t bit_length(uint64_t x) {
    for (int shift = 1; shift < WORD; shift *= 2) x |= x >> shift;
    return ones(x);
}

/* A token's bits: 1 where it sees the key, as all tokens do without a mask. False if the mask has other numbers than 0 and
 * minus infinity. */
static bool read_bits(const struct ggml_tensor *mask, size_t b, size_t j, size_t s_k, uint64_t *bits) {
    const char *row = mask ? (const char *)mask->data + j * mask->nb[1] + (mask->ne[3] > 1 ? b * mask->nb[3] : 0) : NULL;
    bool other = false;
    for (size_t k = 0; k < s_k; k += WORD, bits++) {
        size_t n = min(WORD, s_k - k);
        *bits = 0;
        if (mask == NULL) {
            *bits = UINT64_MAX >> (WORD - n);
        } else if (mask->type == GGML_TYPE_F16) {
            const uint16_t *x = (const uint16_t *)(const void *)row + k;
            for (size_t i = 0; i < n; i++) {
                bool sees = (x[i] & 0x7fff) == 0;
                other |= !sees & (x[i] != 0xfc00);
                *bits |= (uint64_t)sees << i;
            }
        } else {
            const float *x = (const float *)(const void *)row + k;
            for (size_t i = 0; i < n; i++) {
                bool sees = x[i] == 0;
                other |= !sees & (x[i] != -INFINITY);
                *bits |= (uint64_t)sees << i;
            }
        }
    }
    return !other;
}

/* Of a stream the first key that some token doesn't see, and one more than the last key that some token sees. */
struct span {
    size_t hidden, end;
};

static struct span span_of(const struct layout *l, const uint64_t *bits) {
    struct span span = {l->s_k, 0};
    for (size_t j = 0; j < l->s_q; j++, bits += l->words)
        for (size_t w = 0; w < l->words; w++) {
            if (~bits[w] != 0) span.hidden = min(span.hidden, w * WORD + lowest(~bits[w]));
            if (bits[w] != 0) span.end = max(span.end, w * WORD + bit_length(bits[w]));
        }
    span.hidden = min(span.hidden, span.end);
    return span;
}

/* A row's 64 bits from bit `at` on. Bits below 0 and behind the last word are 0. */
static uint64_t bits_from(const uint64_t *row, size_t words, ptrdiff_t at) {
    ptrdiff_t w = (at >= 0 ? at : at - (WORD - 1)) / WORD, n = (ptrdiff_t)words;
    unsigned shift = (unsigned)(at - w * WORD);
    uint64_t low = w >= 0 && w < n ? row[w] : 0, high = w + 1 >= 0 && w + 1 < n ? row[w + 1] : 0;
    return shift == 0 ? low : low >> shift | high << (WORD - shift);
}

/* Each stream's length, and tail masks of the keys from the first on that some of its tokens doesn't see. */
static void write_tail_masks(const struct layout *l, char *memory) {
    struct plan *plan = (struct plan *)(void *)memory;
    const uint64_t *bits = (const uint64_t *)(void *)(memory + l->bits);
    uint64_t *word = (uint64_t *)(void *)(memory + l->lists);
    int32_t *lens = (int32_t *)(void *)(memory + l->lens);
    plan->keys = TAIL_MASK;
    plan->width = 0;
    for (size_t b = 0; b < l->b; b++) {
        struct span span = span_of(l, bits + b * l->s_q * l->words);
        lens[b] = (int32_t)span.end;
        plan->width = max(plan->width, span.end - span.hidden);
    }
    for (size_t row = 0; row < l->b * l->s_q; row++, bits += l->words) {
        ptrdiff_t first = lens[row / l->s_q] - (ptrdiff_t)plan->width;
        for (size_t i = 0; i < plan->width; i += WORD) *word++ = bits_from(bits, l->words, first + (ptrdiff_t)i);
    }
}

static void write_indices(const struct layout *l, char *memory, size_t topk) {
    struct plan *plan = (struct plan *)(void *)memory;
    const uint64_t *bits = (const uint64_t *)(void *)(memory + l->bits);
    int32_t *indices = (int32_t *)(void *)(memory + l->lists), *counts = (int32_t *)(void *)(memory + l->counts);
    plan->keys = INDICES;
    plan->width = topk;
    for (size_t row = 0; row < l->b * l->s_q; row++, bits += l->words, indices += topk) {
        size_t n = 0;
        for (size_t w = 0; w < l->words; w++)
            for (uint64_t word = bits[w]; word != 0; word &= word - 1)
                indices[n++] = (int32_t)(w * WORD + lowest(word));
        counts[row] = (int32_t)n;
    }
}

/* Whether indices take less time than tail masks, by the keys that panels of rows read, and the most indices of a token. With
 * tail masks a panel has rows of several tokens, and skips keys that none of these sees. With indices it has one token's rows. */
static bool are_scattered(const struct layout *l, const uint64_t *bits, size_t *topk) {
    size_t tokens = max(1, PANEL_ROWS / l->h_q), tail = 0, indices = 0;
    *topk = 0;
    for (size_t first = 0, n; first < l->b * l->s_q; first += n, bits += n * l->words) {
        /* A panel has rows of one stream. */
        n = min(tokens, l->s_q - first % l->s_q);
        size_t keys = 0, counts[PANEL_ROWS] = {0};
        for (size_t w = 0; w < l->words; w++) {
            uint64_t any = 0;
            for (size_t i = 0; i < n; i++) {
                any |= bits[i * l->words + w];
                counts[i] += ones(bits[i * l->words + w]);
            }
            keys += bit_length(any);
        }
        tail += keys * (n * l->h_q + KEY_COST);
        for (size_t i = 0; i < n; i++) {
            indices += counts[i] * (l->h_q + KEY_COST);
            *topk = max(*topk, counts[i]);
        }
    }
    /* A key takes somewhat more by its index. */
    return indices < tail / 8 * 7;
}

/* -- What nodes compute --------------------------------------------------------------------------------------------- */

static void refuse(struct plan *plan, amla_status status, const char *message) {
    plan->status = status;
    snprintf(plan->message, sizeof plan->message, "%s", message);
}

/* The mask's bits, what they are translated to, and amla's plan. */
static void compute_plan(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    struct layout l = layout_of(dst->src[Q], dst->src[K], dst->src[V], (size_t)dst->ne[1]);
    char *memory = memory_of(dst);
    struct plan *plan = (struct plan *)(void *)memory;
    uint64_t *bits = (uint64_t *)(void *)(memory + l.bits);
    struct amla_error_detail detail = amla_error_detail_init();
    struct attention a;
    size_t topk;
    (void)userdata;
    if (ith != 0) return;
    memset(plan, 0, sizeof *plan);
    atomic_init(&plan->drawn, 0);
    atomic_init(&plan->refused, false);
    plan->info.struct_size = sizeof plan->info;
    for (size_t row = 0; row < l.b * l.s_q; row++)
        if (!read_bits(dst->src[MASK], row / l.s_q, row % l.s_q, l.s_k, bits + row * l.words)) {
            refuse(plan, AMLA_ERROR_OTHER, "the mask has other numbers than 0 and minus infinity");
            return;
        }
    if (are_scattered(&l, bits, &topk)) {
        write_indices(&l, memory, topk);
    } else {
        write_tail_masks(&l, memory);
    }
    /* Neither scale nor results are looked at. */
    attention_of(&a, &l, memory, dst->src, 1, NULL);
    amla_status status = amla_plan_for_threads(&a.call, min(l.threads, (size_t)nth), plan->bytes, sizeof plan->bytes, &detail);
    if (status == AMLA_OK) status = amla_plan_query(plan->bytes, sizeof plan->bytes, &plan->info, &detail);
    if (status != AMLA_OK) refuse(plan, status, detail.message);
}

/* A node's user data is the scale itself, so that nothing has to outlive the graph. */
static void *to_userdata(float scale) {
    uint32_t bits;
    memcpy(&bits, &scale, sizeof bits);
    return (void *)(uintptr_t)bits;
}

static float to_scale(void *userdata) {
    uint32_t bits = (uint32_t)(uintptr_t)userdata;
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return scale;
}

/*
 * A task for whichever thread is free. Each thread draws one number too many, and the last of all these begins anew for the
 * next layer.
 */
static size_t draw(struct plan *plan, size_t tasks, size_t threads) {
    size_t task = atomic_fetch_add(&plan->drawn, 1);
    if (task + 1 == tasks + threads) atomic_store(&plan->drawn, 0);
    return task;
}

/* Tasks, which write O, or partial results behind it. */
static void compute_tasks(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    struct layout l = layout_of(dst->src[Q], dst->src[K], dst->src[V], (size_t)dst->src[PLAN]->ne[1]);
    char *memory = memory_of(dst->src[PLAN]);
    struct plan *plan = (struct plan *)(void *)memory;
    size_t thread = (size_t)ith, threads = min(l.threads, (size_t)nth), tasks = plan->info.tasks, task;
    size_t o_len = l.b * l.s_q * l.h_q * l.d_v, partials_len = (size_t)dst->ne[0] - o_len;
    float *o = (float *)dst->data, *partials = partials_len > 0 ? o + o_len : NULL;
    char *workspace = memory + l.workspaces + thread * AMLA_WORKSPACE_MAX;
    struct attention a;
    if (thread >= threads) return;
    attention_of(&a, &l, memory, dst->src, to_scale(userdata), o);
    /* No task: whether amla takes the arguments, which is the same for all threads. */
    if (plan->status != AMLA_OK || amla_run_tasks(&a.call, plan->bytes, sizeof plan->bytes, 0, 0, workspace,
                                                  AMLA_WORKSPACE_MAX, partials, partials_len, NULL) != AMLA_OK) {
        for (size_t i = o_len * thread / threads; i < o_len * (thread + 1) / threads; i++) o[i] = NAN;
        atomic_store(&plan->refused, true);
        return;
    }
    while ((task = draw(plan, tasks, threads)) < tasks)
        amla_run_tasks(&a.call, plan->bytes, sizeof plan->bytes, task, task + 1, workspace, AMLA_WORKSPACE_MAX, partials,
                       partials_len, NULL);
}

/* Merges, in a node of their own: ggml's threads wait for each other between nodes. */
static void compute_merges(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    struct ggml_tensor *const *src = dst->src + 1;
    struct layout l = layout_of(src[Q], src[K], src[V], (size_t)src[PLAN]->ne[1]);
    char *memory = memory_of(src[PLAN]);
    const struct plan *plan = (const struct plan *)(void *)memory;
    size_t thread = (size_t)ith, threads = (size_t)nth, merges = plan->info.merges;
    size_t o_len = (size_t)ggml_nelements(dst), partials_len = (size_t)dst->view_src->ne[0] - o_len;
    float *o = (float *)dst->data;
    struct attention a;
    if (plan->status != AMLA_OK || merges == 0) return;
    attention_of(&a, &l, memory, src, to_scale(userdata), o);
    amla_combine_range(&a.call, plan->bytes, sizeof plan->bytes, merges * thread / threads, merges * (thread + 1) / threads,
                       o + o_len, partials_len, NULL);
}

/* -- The interface -------------------------------------------------------------------------------------------------- */

struct ggml_tensor *amla_ggml_plan(struct ggml_context *ctx, struct ggml_tensor *q, struct ggml_tensor *k,
                                   struct ggml_tensor *v, struct ggml_tensor *mask, int n_threads) {
    struct ggml_tensor *sources[] = {q, k, v, mask};
    if (n_threads < 1 || !is_supported(q, k, v) || (mask && !is_mask(mask, q, k))) return NULL;
    size_t threads = (size_t)n_threads, bytes = layout_of(q, k, v, threads).end + AMLA_WORKSPACE_ALIGN;
    /* The shape says for how many threads it is. */
    struct ggml_tensor *plan = ggml_custom_4d(ctx, GGML_TYPE_I8, (int64_t)((bytes + threads - 1) / threads), n_threads, 1, 1,
                                              sources, mask ? SOURCES : MASK, compute_plan, 1, NULL);
    /* No other node gets its memory, which amla_ggml_error() reads at the end. */
    ggml_set_output(plan);
    return plan;
}

struct ggml_tensor *amla_ggml_attn(struct ggml_context *ctx, struct ggml_tensor *q, struct ggml_tensor *k,
                                   struct ggml_tensor *v, struct ggml_tensor *plan, float scale, float max_bias,
                                   float logit_softcap) {
    struct ggml_tensor *sources[] = {q, k, v, plan};
    if (plan == NULL || max_bias != 0 || logit_softcap != 0 || !isfinite(scale) || !is_supported(q, k, v)) return NULL;
    for (int i = 0; i < PLAN; i++)
        if (!ggml_are_same_shape(sources[i], plan->src[i])) return NULL;
    struct layout l = layout_of(q, k, v, (size_t)plan->ne[1]);
    size_t row = l.d_v * sizeof(float), o_len = l.b * l.s_q * l.h_q * l.d_v, partials_len;
    if (amla_plan_bound(l.b, l.s_q, l.s_k, l.h_q, 1, l.d_v, l.split_keys, &partials_len, NULL) != AMLA_OK) return NULL;
    struct ggml_tensor *tasks = ggml_custom_4d(ctx, GGML_TYPE_F32, (int64_t)(o_len + partials_len), 1, 1, 1, sources, SOURCES,
                                               compute_tasks, GGML_N_TASKS_MAX, to_userdata(scale));
    struct ggml_tensor *o = ggml_view_4d(ctx, tasks, v->ne[0], q->ne[2], q->ne[1], q->ne[3], row, row * l.h_q,
                                         row * l.h_q * l.s_q, 0);
    if (partials_len == 0) return o;
    return ggml_custom_inplace(ctx, o, sources, SOURCES, compute_merges, GGML_N_TASKS_MAX, to_userdata(scale));
}

const char *amla_ggml_error(const struct ggml_tensor *plan) {
    const struct plan *computed = (const struct plan *)(void *)memory_of(plan);
    if (computed->status != AMLA_OK) return computed->message;
    return computed->refused ? "amla refused the attention of a layer" : NULL;
}
