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

/* Rows of amla's panel: a cache row is converted once for all of them. */
enum { PANEL_ROWS = 64, WORD = 64 };
#ifndef FORCE
#define FORCE 0
#endif
enum { ROWS_OF_A_KEY = 8 };

/* Sources of the nodes. */
enum { Q, K, V, MASK, PLAN = MASK, SOURCES };

/* How the mask was translated. */
enum keys { TAIL, INDICES };

/* What stands at the start of a plan's memory. */
struct plan {
    /* Tasks that threads have taken, of all layers. */
    _Atomic size_t ticket;
    amla_status status;
    char message[192];
    enum keys keys;
    /* Keys that bits say who sees, or indices of each token. */
    size_t width;
    struct amla_plan_info info;
    unsigned char bytes[AMLA_PLAN_MAX];
};

/* Sizes of an attention, and where its lists are in a plan's memory. */
struct layout {
    size_t b, s_q, s_k, h_q, d_qk, d_v;
    /* Threads, and keys of a KV split. */
    size_t threads, split_keys;
    /* Words of a token's bits. */
    size_t words;
    /* Offsets: bits of all tokens, 1 for each key that they see; keys of each stream; tail masks or indices; how many
     * indices each token has. */
    size_t bits, lens, lists, counts, workspaces, end;
};

/* A call with what it points to. */
struct attention {
    struct amla_tensor q, kv;
    struct amla_output output;
    struct amla_indices indices;
    struct amla_call call;
};

static size_t min(size_t a, size_t b) { return a < b ? a : b; }

static size_t max(size_t a, size_t b) { return a > b ? a : b; }

/* -- Which tensors amla computes ------------------------------------------------------------------------------------ */

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

/* Contiguous rows, any strides of whole blocks between them, in memory that the processor reads. */
static bool has_rows(const struct ggml_tensor *t) {
    const struct ggml_tensor *root = t->view_src ? t->view_src : t;
    size_t size = ggml_type_size(t->type);
    bool whole = t->nb[0] == size && t->nb[1] % size == 0 && t->nb[2] % size == 0 && t->nb[3] % size == 0;
    return whole && (root->buffer == NULL || ggml_backend_buffer_is_host(root->buffer));
}

/* The columns of k before those of v; SIZE_MAX if v is no view of them. */
static size_t v_offset(const struct ggml_tensor *k, const struct ggml_tensor *v) {
    const struct ggml_tensor *roots[] = {k->view_src ? k->view_src : k, v->view_src ? v->view_src : v};
    bool same = roots[0] == roots[1] && k->type == v->type && k->ne[1] == v->ne[1] && k->ne[2] == v->ne[2] &&
                k->ne[3] == v->ne[3] && k->nb[1] == v->nb[1] && (k->ne[3] == 1 || k->nb[3] == v->nb[3]);
    if (!same || v->view_offs < k->view_offs) return SIZE_MAX;
    size_t bytes = v->view_offs - k->view_offs, size = ggml_type_size(k->type);
    return bytes % size == 0 ? bytes / size * (size_t)ggml_blck_size(k->type) : SIZE_MAX;
}

static bool is_supported(const struct ggml_tensor *q, const struct ggml_tensor *k, const struct ggml_tensor *v) {
    if (q->type != GGML_TYPE_F32 || dtype(k->type) == 0 || !has_rows(q) || !has_rows(k) || !has_rows(v)) return false;
    if (q->ne[0] != k->ne[0] || k->ne[2] != 1 || q->ne[3] != k->ne[3] || ggml_is_empty(q) || ggml_is_empty(k)) return false;
    size_t offset = v_offset(k, v);
    bool columns = offset == 0 || offset + (size_t)v->ne[0] == (size_t)k->ne[0];
    return columns && k->ne[1] < INT32_MAX && has_dims((size_t)k->ne[0], (size_t)v->ne[0]);
}

static bool is_mask(const struct ggml_tensor *m, const struct ggml_tensor *q, const struct ggml_tensor *k) {
    bool type = m->type == GGML_TYPE_F16 || m->type == GGML_TYPE_F32;
    return type && has_rows(m) && m->ne[0] == k->ne[1] && m->ne[1] >= q->ne[1] && m->ne[2] == 1 &&
           (m->ne[3] == 1 || m->ne[3] == q->ne[3]);
}

/* -- Memory --------------------------------------------------------------------------------------------------------- */

static size_t reserve(size_t *end, size_t bytes) {
    size_t at = *end;
    *end = (at + bytes + AMLA_WORKSPACE_ALIGN - 1) / AMLA_WORKSPACE_ALIGN * AMLA_WORKSPACE_ALIGN;
    return at;
}

/* Tokens have index lists only if none sees more keys. */
static size_t most_indices(size_t s_k) { return s_k / 2; }

static struct layout layout_of(const struct ggml_tensor *q, const struct ggml_tensor *k, const struct ggml_tensor *v,
                               size_t threads) {
    struct layout l = {.b = (size_t)q->ne[3], .s_q = (size_t)q->ne[1], .s_k = (size_t)k->ne[1], .h_q = (size_t)q->ne[2],
                       .d_qk = (size_t)q->ne[0], .d_v = (size_t)v->ne[0], .threads = threads};
    /* Partial results of many rows would take much memory. Where panels suffice for all threads, a task has all keys. */
    size_t panels = l.b * ((l.s_q * l.h_q + PANEL_ROWS - 1) / PANEL_ROWS);
    if (panels >= 4 * threads) l.split_keys = (l.s_k + 31) / 32 * 32;
    l.words = (l.s_k + WORD - 1) / WORD;
    reserve(&l.end, sizeof(struct plan));
    size_t rows = l.b * l.s_q, bits = rows * l.words * sizeof(uint64_t);
    l.bits = reserve(&l.end, bits);
    l.lens = reserve(&l.end, l.b * sizeof(int32_t));
    l.lists = reserve(&l.end, max(bits, rows * most_indices(l.s_k) * sizeof(int32_t)));
    l.counts = reserve(&l.end, rows * sizeof(int32_t));
    l.workspaces = reserve(&l.end, threads * AMLA_WORKSPACE_MAX);
    return l;
}

static char *aligned(const struct ggml_tensor *t) {
    uintptr_t at = (uintptr_t)t->data;
    return (char *)t->data + (AMLA_WORKSPACE_ALIGN - at % AMLA_WORKSPACE_ALIGN) % AMLA_WORKSPACE_ALIGN;
}

/* -- Calls ---------------------------------------------------------------------------------------------------------- */

static struct amla_tensor tensor(const struct ggml_tensor *t, amla_dtype type) {
    struct amla_tensor tensor = {.struct_size = sizeof tensor, .dtype = type, .data = t->data};
    size_t size = ggml_type_size(t->type);
    tensor.len = (size_t)t->ne[0] / (size_t)ggml_blck_size(t->type);
    for (int i = 0; i < 3; i++) {
        /* amla's dimensions: streams; tokens or keys; heads. */
        int from = (int[]){3, 1, 2}[i];
        tensor.strides[i] = t->nb[from] / size;
        tensor.len += ((size_t)t->ne[from] - 1) * tensor.strides[i];
    }
    return tensor;
}

/* The call of a node, whose results go to `o`; null if it isn't to be run. */
static void attention_of(struct attention *a, const struct layout *l, char *memory, const struct ggml_tensor *const *src,
                         float scale, float *o) {
    const struct plan *plan = (const struct plan *)memory;
    memset(a, 0, sizeof *a);
    a->q = tensor(src[Q], AMLA_DTYPE_F32);
    a->kv = tensor(src[K], dtype(src[K]->type));
    a->output = amla_output_contiguous(AMLA_DTYPE_F32, o, NULL, l->b, l->s_q, l->h_q, l->d_v);
    a->output.lse_len = 0;
    a->call = amla_call_mla(&a->q, &a->kv, o ? &a->output : NULL, l->b, l->s_q, l->s_k, l->h_q, scale);
    a->call.d_qk = l->d_qk;
    a->call.d_v = l->d_v;
    a->call.v_offset = v_offset(src[K], src[V]);
    a->call.split_keys = l->split_keys;
    if (plan->keys == TAIL) {
        a->call.cache_seqlens = (const int32_t *)(memory + l->lens);
        a->call.cache_seqlens_len = l->b;
        if (plan->width == 0) return;
        a->call.tail = plan->width;
        a->call.tail_mask = (const uint64_t *)(memory + l->lists);
        a->call.tail_mask_len = l->b * l->s_q * ((plan->width + WORD - 1) / WORD);
        return;
    }
    a->indices = (struct amla_indices){
        .struct_size = sizeof a->indices,
        .indices = (const int32_t *)(memory + l->lists),
        .indices_len = l->b * l->s_q * plan->width,
        .strides = {l->s_q * plan->width, plan->width},
        .topk = plan->width,
        .topk_length = (const int32_t *)(memory + l->counts),
        .topk_length_len = l->b * l->s_q,
        .topk_length_strides = {l->s_q, 1},
    };
    a->call.flags = AMLA_LIST_STRIDES;
    a->call.sparse = &a->indices;
}

/* -- The mask ------------------------------------------------------------------------------------------------------- */

/* Bits of a token's row, 1 where it sees the key; false if the mask has other numbers than 0 and minus infinity. Without a
 * mask all are 1. */
static bool read_row(const struct ggml_tensor *mask, size_t b, size_t j, size_t s_k, uint64_t *bits) {
    const char *row = mask ? (const char *)mask->data + j * mask->nb[1] + (mask->ne[3] == 1 ? 0 : b * mask->nb[3]) : NULL;
    bool other = false;
    for (size_t k = 0; k < s_k; k += WORD) {
        size_t n = min(WORD, s_k - k);
        uint64_t word = 0;
        if (mask == NULL) {
            word = n == WORD ? UINT64_MAX : ((uint64_t)1 << n) - 1;
        } else if (mask->type == GGML_TYPE_F16) {
            const uint16_t *x = (const uint16_t *)(const void *)row + k;
            for (size_t i = 0; i < n; i++) {
                bool sees = (x[i] & 0x7fff) == 0;
                other |= !sees & (x[i] != 0xfc00);
                word |= (uint64_t)sees << i;
            }
        } else {
            const float *x = (const float *)(const void *)row + k;
            for (size_t i = 0; i < n; i++) {
                bool sees = x[i] == 0;
                other |= !sees & (x[i] != -INFINITY);
                word |= (uint64_t)sees << i;
            }
        }
        bits[k / WORD] = word;
    }
    return !other;
}

static size_t ones(uint64_t x) {
    size_t n = 0;
    for (; x != 0; x &= x - 1) n++;
    return n;
}

/* The lowest bit that is 1. */
static size_t lowest(uint64_t x) { return ones((x & -x) - 1); }

static size_t highest(uint64_t x) {
    size_t i = 0;
    for (size_t step = WORD / 2; step > 0; step /= 2)
        if (x >> (i + step) != 0) i += step;
    return i;
}

/* What a stream's rows have in common: the first key that a token doesn't see, and one more than the last that one sees. */
struct span {
    size_t hidden, end;
};

static struct span span_of(const struct layout *l, const uint64_t *rows) {
    struct span span = {l->s_k, 0};
    for (size_t j = 0; j < l->s_q; j++) {
        const uint64_t *bits = rows + j * l->words;
        for (size_t w = 0; w < (span.hidden + WORD - 1) / WORD; w++)
            if (~bits[w] != 0) span.hidden = min(span.hidden, w * WORD + lowest(~bits[w]));
        for (size_t w = l->words; w-- > span.end / WORD;)
            if (bits[w] != 0) {
                span.end = max(span.end, w * WORD + highest(bits[w]) + 1);
                break;
            }
    }
    span.hidden = min(span.hidden, span.end);
    return span;
}

/* The 64 bits of a row from `at` on, which may be below 0. Others than the row's are 0. */
static uint64_t bits_at(const uint64_t *row, size_t words, ptrdiff_t at) {
    ptrdiff_t w = (at >= 0 ? at : at - (WORD - 1)) / WORD, n = (ptrdiff_t)words;
    unsigned shift = (unsigned)(at - w * WORD);
    uint64_t low = w >= 0 && w < n ? row[w] : 0, high = w + 1 >= 0 && w + 1 < n ? row[w + 1] : 0;
    return shift == 0 ? low : low >> shift | high << (WORD - shift);
}

/* How many keys each stream has, and bits from the first on that some token of it doesn't see. */
static void write_tail(const struct layout *l, char *memory) {
    struct plan *plan = (struct plan *)(void *)memory;
    const uint64_t *bits = (const uint64_t *)(const void *)(memory + l->bits);
    int32_t *lens = (int32_t *)(void *)(memory + l->lens);
    uint64_t *tail = (uint64_t *)(void *)(memory + l->lists);
    plan->keys = TAIL;
    plan->width = 0;
    for (size_t b = 0; b < l->b; b++) {
        struct span span = span_of(l, bits + b * l->s_q * l->words);
        lens[b] = (int32_t)span.end;
        plan->width = max(plan->width, span.end - span.hidden);
    }
    for (size_t row = 0; row < l->b * l->s_q; row++)
        for (size_t i = 0; i < plan->width; i += WORD) {
            ptrdiff_t key = lens[row / l->s_q] - (ptrdiff_t)plan->width + (ptrdiff_t)i;
            *tail++ = bits_at(bits + row * l->words, l->words, key);
        }
}

static void write_indices(const struct layout *l, char *memory, size_t topk) {
    struct plan *plan = (struct plan *)(void *)memory;
    const uint64_t *bits = (const uint64_t *)(const void *)(memory + l->bits);
    int32_t *counts = (int32_t *)(void *)(memory + l->counts), *indices = (int32_t *)(void *)(memory + l->lists);
    plan->keys = INDICES;
    plan->width = topk;
    for (size_t row = 0; row < l->b * l->s_q; row++, bits += l->words, indices += topk) {
        size_t n = 0;
        for (size_t w = 0; w < l->words; w++)
            for (uint64_t word = bits[w]; word != 0; word &= word - 1)
                indices[n++] = (int32_t)(w * WORD + lowest(word));
        counts[row] = (int32_t)n;
        /* The others don't count, but are read. */
        while (n < topk) indices[n++] = -1;
    }
}

/* Whether lists of indices take less time than a tail mask: keys that a panel of rows reads, times its rows. A tail mask has
 * panels with rows of several tokens, and skips keys that none of these sees. Index lists have panels of one token each. */
static bool are_scattered(const struct layout *l, const uint64_t *bits, size_t *topk) {
    size_t tokens = max(1, PANEL_ROWS / l->h_q), tail = 0, indices = 0;
    *topk = 0;
    for (size_t b = 0; b < l->b; b++)
        for (size_t j = 0; j < l->s_q; j += tokens) {
            const uint64_t *rows = bits + (b * l->s_q + j) * l->words;
            size_t n = min(tokens, l->s_q - j), words = 0, counts[PANEL_ROWS] = {0};
            for (size_t w = 0; w < l->words; w++) {
                uint64_t any = 0;
                for (size_t i = 0; i < n; i++) {
                    any |= rows[i * l->words + w];
                    counts[i] += ones(rows[i * l->words + w]);
                }
                words += any != 0;
            }
            tail += words * WORD * (n * l->h_q + ROWS_OF_A_KEY);
            for (size_t i = 0; i < n; i++) {
                *topk = max(*topk, counts[i]);
                indices += counts[i] * (l->h_q + ROWS_OF_A_KEY);
            }
        }
    if (FORCE) return FORCE == 2;
    return *topk > 0 && *topk <= most_indices(l->s_k) && indices < tail / 4 * 3;
}

/* -- Nodes ---------------------------------------------------------------------------------------------------------- */

static void refuse(struct plan *plan, amla_status status, const char *message) {
    plan->status = status;
    snprintf(plan->message, sizeof plan->message, "%s", message);
}

/* The mask's bits, then lengths and tail masks or indices, then the plan. */
static void compute_plan(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    char *memory = aligned(dst);
    struct plan *plan = (struct plan *)(void *)memory;
    struct layout l = layout_of(dst->src[Q], dst->src[K], dst->src[V], (size_t)dst->ne[1]);
    uint64_t *bits = (uint64_t *)(void *)(memory + l.bits);
    const struct ggml_tensor *mask = dst->src[MASK];
    struct amla_error_detail detail = amla_error_detail_init();
    struct attention a;
    size_t topk;
    (void)userdata;
    if (ith != 0) return;
    memset(plan, 0, sizeof *plan);
    atomic_init(&plan->ticket, 0);
    for (size_t row = 0; row < l.b * l.s_q; row++, bits += l.words) {
        if (!read_row(mask, row / l.s_q, row % l.s_q, l.s_k, bits)) {
            refuse(plan, AMLA_ERROR_OTHER, "the mask has other numbers than 0 and minus infinity");
            return;
        }
    }
    bits -= l.b * l.s_q * l.words;
    if (are_scattered(&l, bits, &topk)) {
        write_indices(&l, memory, topk);
    } else {
        write_tail(&l, memory);
    }
    plan->info.struct_size = sizeof plan->info;
    attention_of(&a, &l, memory, (const struct ggml_tensor *const *)dst->src, 1, NULL);
    amla_status status = amla_plan_for_threads(&a.call, min(l.threads, (size_t)nth), plan->bytes, sizeof plan->bytes, &detail);
    if (status == AMLA_OK) status = amla_plan_query(plan->bytes, sizeof plan->bytes, &plan->info, &detail);
    if (status != AMLA_OK) refuse(plan, status, detail.message);
}

/* The scale is a node's user data itself, so that there is nothing that must outlive the graph. */
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

/* O, with partial results behind it. Threads take tasks one by one, as they may be of different speed. */
static void compute_tasks(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    char *memory = aligned(dst->src[PLAN]);
    struct plan *plan = (struct plan *)(void *)memory;
    struct layout l = layout_of(dst->src[Q], dst->src[K], dst->src[V], (size_t)dst->src[PLAN]->ne[1]);
    size_t thread = (size_t)ith, threads = min(l.threads, (size_t)nth), o_len = l.b * l.s_q * l.h_q * l.d_v;
    size_t partials_len = (size_t)dst->ne[0] - o_len, tasks = plan->info.tasks, task = 0;
    float *o = (float *)dst->data, *partials = partials_len > 0 ? o + o_len : NULL;
    char *workspace = memory + l.workspaces + thread * AMLA_WORKSPACE_MAX;
    struct attention a;
    if (thread >= threads) return;
    amla_status status = plan->status;
    attention_of(&a, &l, memory, (const struct ggml_tensor *const *)dst->src, to_scale(userdata), o);
    /* The arguments of all threads are good, or none's. */
    if (status == AMLA_OK)
        status = amla_run_tasks(&a.call, plan->bytes, sizeof plan->bytes, 0, 0, workspace, AMLA_WORKSPACE_MAX, partials,
                                partials_len, NULL);
    if (status != AMLA_OK) {
        for (size_t i = o_len * thread / threads; i < o_len * (thread + 1) / threads; i++) o[i] = NAN;
        return;
    }
    /* Each thread takes one number too many: the next layer's begin at a multiple again. */
    while ((task = atomic_fetch_add(&plan->ticket, 1) % (tasks + threads)) < tasks)
        amla_run_tasks(&a.call, plan->bytes, sizeof plan->bytes, task, task + 1, workspace, AMLA_WORKSPACE_MAX, partials,
                       partials_len, NULL);
}

/* Behind all tasks, as ggml computes one node after the other. */
static void compute_merges(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    const struct ggml_tensor *const *src = (const struct ggml_tensor *const *)dst->src + 1;
    char *memory = aligned(src[PLAN]);
    const struct plan *plan = (const struct plan *)(void *)memory;
    struct layout l = layout_of(src[Q], src[K], src[V], (size_t)src[PLAN]->ne[1]);
    size_t merges = plan->info.merges, o_len = (size_t)ggml_nelements(dst);
    float *o = (float *)dst->data;
    struct attention a;
    if (plan->status != AMLA_OK || merges == 0) return;
    attention_of(&a, &l, memory, src, to_scale(userdata), o);
    amla_combine_range(&a.call, plan->bytes, sizeof plan->bytes, merges * (size_t)ith / (size_t)nth,
                       merges * ((size_t)ith + 1) / (size_t)nth, o + o_len, (size_t)dst->view_src->ne[0] - o_len, NULL);
}

/* -- The interface -------------------------------------------------------------------------------------------------- */

struct ggml_tensor *amla_ggml_plan(struct ggml_context *ctx, struct ggml_tensor *q, struct ggml_tensor *k,
                                   struct ggml_tensor *v, struct ggml_tensor *mask, int n_threads) {
    struct ggml_tensor *sources[] = {q, k, v, mask};
    if (n_threads < 1 || !is_supported(q, k, v) || (mask && !is_mask(mask, q, k))) return NULL;
    size_t threads = (size_t)n_threads, bytes = layout_of(q, k, v, threads).end + AMLA_WORKSPACE_ALIGN;
    struct ggml_tensor *plan = ggml_custom_4d(ctx, GGML_TYPE_I8, (int64_t)((bytes + threads - 1) / threads), n_threads, 1, 1,
                                              sources, mask ? SOURCES : MASK, compute_plan, 1, NULL);
    /* Its memory isn't used for other nodes, so that amla_ggml_error() can read it. */
    ggml_set_output(plan);
    return ggml_set_name(plan, "amla_plan");
}

struct ggml_tensor *amla_ggml_attn(struct ggml_context *ctx, struct ggml_tensor *q, struct ggml_tensor *k,
                                   struct ggml_tensor *v, struct ggml_tensor *plan, float scale, float max_bias,
                                   float logit_softcap) {
    struct ggml_tensor *sources[] = {q, k, v, plan};
    if (plan == NULL || max_bias != 0 || logit_softcap != 0 || !isfinite(scale) || !is_supported(q, k, v)) return NULL;
    for (int i = 0; i < MASK; i++)
        if (!ggml_are_same_shape(sources[i], plan->src[i])) return NULL;
    struct layout l = layout_of(q, k, v, (size_t)plan->ne[1]);
    size_t o_len = l.b * l.s_q * l.h_q * l.d_v, partials_len;
    if (amla_plan_bound(l.b, l.s_q, l.s_k, l.h_q, 1, l.d_v, l.split_keys, &partials_len, NULL) != AMLA_OK) return NULL;
    struct ggml_tensor *tasks = ggml_custom_4d(ctx, GGML_TYPE_F32, (int64_t)(o_len + partials_len), 1, 1, 1, sources, SOURCES,
                                               compute_tasks, GGML_N_TASKS_MAX, to_userdata(scale));
    size_t row = l.d_v * sizeof(float);
    struct ggml_tensor *o = ggml_view_4d(ctx, tasks, v->ne[0], q->ne[2], q->ne[1], q->ne[3], row, row * l.h_q,
                                         row * l.h_q * l.s_q, 0);
    if (partials_len == 0) return o;
    return ggml_custom_inplace(ctx, o, sources, SOURCES, compute_merges, GGML_N_TASKS_MAX, to_userdata(scale));
}

const char *amla_ggml_error(const struct ggml_tensor *tensor) {
    const struct plan *plan = (const struct plan *)(void *)aligned(tensor);
    return plan->status == AMLA_OK ? NULL : plan->message;
}
