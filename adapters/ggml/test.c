/*
 * amla's attention in a ggml graph and ggml_flash_attn_ext, on the same tensors, both against FP64.
 *
 *   amla_ggml_test                   correctness, then a short table of times
 *   amla_ggml_test --bench [TABLE]   times of all shapes, or of a table: f16, bf16, q8_0, masks, threads
 */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "amla_ggml.h"
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"

enum { D_QK = 576, D_V = 512, MAX_LAYERS = 16 };

static const float SCALE = 1.0F / 24.0F;

enum mask_kind { NO_MASK, PREFIX, CAUSAL, HOLES, SEQUENCES, INTERLEAVED, TREE, CHOSEN, NOTHING, OTHER_NUMBERS };

static const char *const MASK_NAMES[] = {"no mask",     "prefix", "causal", "holes",   "sequences",
                                         "interleaved", "tree",   "chosen", "nothing", "other numbers"};

struct shape {
    enum ggml_type type;
    int heads, keys, tokens, streams;
    bool rope_first;
    enum mask_kind mask;
    enum ggml_type mask_type;
    int layers, threads;
};

/* Layers' caches, which have room for more keys, and the two graphs over them. */
struct model {
    struct shape shape;
    struct ggml_context *tensors, *nodes;
    ggml_backend_t backend;
    ggml_backend_buffer_t memory;
    ggml_gallocr_t graphs[2];
    struct ggml_cgraph *ours, *theirs;
    struct ggml_tensor *q, *caches[MAX_LAYERS], *mask, *plan;
    struct ggml_tensor *our_o[MAX_LAYERS], *their_o[MAX_LAYERS];
};

static int failures;

static void check(bool good, const char *what) {
    if (!good) {
        printf("FAILED: %s\n", what);
        failures++;
    }
}

static void *allocate(size_t bytes) {
    void *memory = malloc(bytes);
    if (memory == NULL) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    return memory;
}

static uint32_t seed = 1;

static uint32_t random_bits(void) {
    seed = seed * 1664525U + 1013904223U;
    return seed >> 8;
}

/* Roughly normal, as a sum. */
static float random_number(void) {
    float sum = 0;
    for (int i = 0; i < 4; i++) sum += (float)random_bits() / 8388608.0F - 1.0F;
    return sum;
}

static void fill(struct ggml_tensor *t) {
    size_t n = (size_t)ggml_nelements(t);
    float *x = allocate(n * sizeof *x);
    void *data = allocate(ggml_nbytes(t));
    for (size_t i = 0; i < n; i++) x[i] = random_number();
    ggml_quantize_chunk(t->type, x, data, 0, ggml_nrows(t), t->ne[0], NULL);
    ggml_backend_tensor_set(t, data, 0, ggml_nbytes(t));
    free(data);
    free(x);
}

/* -- Masks, as llama.cpp makes them --------------------------------------------------------------------------------- */

/* Whether token j of a stream sees key k. */
static bool sees(const struct shape *s, int stream, int j, int k) {
    /* Streams have different lengths; the last keys are this step's tokens. */
    int len = s->mask == NO_MASK ? s->keys : s->keys - 5 - 67 * stream, own = len - s->tokens + j;
    if (k >= len) return false;
    switch (s->mask) {
        case CAUSAL: return k <= own;
        case HOLES: return k <= own && ((unsigned)k * 2654435761U >> 16) % 3 != 0 && j != 1;
        case SEQUENCES: return k >= len - s->tokens ? k == own : k / (len / s->tokens) == j;
        case INTERLEAVED: return k % s->tokens == own % s->tokens;
        /* A binary tree behind the prompt: a token sees itself and the nodes above it. */
        case TREE: {
            int node = k - (len - s->tokens), at = j;
            if (node < 0) return true;
            while (at > node) at = (at - 1) / 2;
            return at == node;
        }
        case CHOSEN: return k == own || ((unsigned)(k + 7 * j) * 2654435761U >> 16) % 16 == 0;
        case NOTHING: return false;
        default: return true;
    }
}

static void fill_mask(struct model *m) {
    size_t bytes = ggml_nbytes(m->mask);
    char *data = allocate(bytes);
    for (int64_t i3 = 0; i3 < m->mask->ne[3]; i3++)
        for (int64_t j = 0; j < m->mask->ne[1]; j++)
            for (int64_t k = 0; k < m->mask->ne[0]; k++) {
                bool seen = j < m->shape.tokens && sees(&m->shape, (int)i3, (int)j, (int)k);
                float x = seen ? 0 : -INFINITY;
                if (m->shape.mask == OTHER_NUMBERS && k == 3) x = -0.5F;
                char *at = data + i3 * (int64_t)m->mask->nb[3] + j * (int64_t)m->mask->nb[1] + k * (int64_t)m->mask->nb[0];
                if (m->mask->type == GGML_TYPE_F32) {
                    memcpy(at, &x, sizeof x);
                } else {
                    ggml_fp16_t h = ggml_fp32_to_fp16(x);
                    memcpy(at, &h, sizeof h);
                }
            }
    ggml_backend_tensor_set(m->mask, data, 0, bytes);
    free(data);
}

/* -- Graphs --------------------------------------------------------------------------------------------------------- */

/* q, k and v of a layer, as llama.cpp views them. */
struct layer {
    struct ggml_tensor *q, *k, *v;
};

static struct layer layer(const struct model *m, int i) {
    const struct shape *s = &m->shape;
    struct ggml_tensor *c = m->caches[i];
    size_t row = ggml_row_size(c->type, D_QK), rope = s->rope_first ? ggml_row_size(c->type, D_QK - D_V) : 0;
    struct ggml_tensor *k = ggml_view_4d(m->nodes, c, D_QK, 1, s->keys, s->streams, row, c->nb[1], c->nb[2], 0);
    struct ggml_tensor *v = ggml_view_4d(m->nodes, k, D_V, 1, s->keys, s->streams, row, c->nb[1], c->nb[2], rope);
    return (struct layer){ggml_permute(m->nodes, m->q, 0, 2, 1, 3), ggml_permute(m->nodes, k, 0, 2, 1, 3),
                          ggml_permute(m->nodes, v, 0, 2, 1, 3)};
}

static struct ggml_context *context(void) {
    struct ggml_init_params params = {.mem_size = 4 << 20, .no_alloc = true};
    return ggml_init(params);
}

static void open_model(struct model *m, struct shape shape) {
    const struct shape *s = &m->shape;
    memset(m, 0, sizeof *m);
    m->shape = shape;
    m->tensors = context();
    m->nodes = context();
    m->backend = ggml_backend_cpu_init();
    ggml_backend_cpu_set_n_threads(m->backend, s->threads);
    m->q = ggml_new_tensor_4d(m->tensors, GGML_TYPE_F32, D_QK, s->heads, s->tokens, s->streams);
    for (int i = 0; i < s->layers; i++)
        m->caches[i] = ggml_new_tensor_3d(m->tensors, s->type, D_QK, s->keys + 32, s->streams);
    /* Rows padded, as older versions have them. */
    if (s->mask != NO_MASK)
        m->mask = ggml_new_tensor_4d(m->tensors, s->mask_type, s->keys, (s->tokens + 31) / 32 * 32, 1, s->streams);
    m->memory = ggml_backend_alloc_ctx_tensors(m->tensors, m->backend);
    fill(m->q);
    for (int i = 0; i < s->layers; i++) fill(m->caches[i]);
    if (m->mask) fill_mask(m);
}

static void close_model(struct model *m) {
    for (int i = 0; i < 2; i++)
        if (m->graphs[i]) ggml_gallocr_free(m->graphs[i]);
    ggml_backend_buffer_free(m->memory);
    ggml_backend_free(m->backend);
    ggml_free(m->nodes);
    ggml_free(m->tensors);
}

static void build(struct model *m, bool with_theirs) {
    m->ours = ggml_new_graph(m->nodes);
    m->theirs = ggml_new_graph(m->nodes);
    for (int i = 0; i < m->shape.layers; i++) {
        struct layer l = layer(m, i);
        if (i == 0) m->plan = amla_ggml_plan(m->nodes, l.q, l.k, l.v, m->mask, m->shape.threads);
        m->our_o[i] = amla_ggml_attn(m->nodes, l.q, l.k, l.v, m->plan, SCALE, 0, 0);
        if (m->our_o[i] == NULL) {
            fprintf(stderr, "amla_ggml refused\n");
            exit(1);
        }
        ggml_set_output(m->our_o[i]);
        ggml_build_forward_expand(m->ours, m->our_o[i]);
        if (!with_theirs) continue;
        /* Their mask is F16. */
        struct ggml_tensor *mask = m->mask;
        if (mask && mask->type != GGML_TYPE_F16) mask = ggml_cast(m->nodes, mask, GGML_TYPE_F16);
        m->their_o[i] = ggml_flash_attn_ext(m->nodes, l.q, l.k, l.v, mask, SCALE, 0, 0);
        ggml_set_output(m->their_o[i]);
        ggml_build_forward_expand(m->theirs, m->their_o[i]);
    }
    for (int i = 0; i < (with_theirs ? 2 : 1); i++) {
        m->graphs[i] = ggml_gallocr_new(ggml_backend_cpu_buffer_type());
        if (!ggml_gallocr_alloc_graph(m->graphs[i], i == 0 ? m->ours : m->theirs)) exit(1);
    }
}

static double run(const struct model *m, struct ggml_cgraph *graph) {
    int64_t start = ggml_time_us();
    if (ggml_backend_graph_compute(m->backend, graph) != GGML_STATUS_SUCCESS) exit(1);
    return (double)(ggml_time_us() - start);
}

/* -- Correctness ---------------------------------------------------------------------------------------------------- */

/* The attention of one row by the definition, in FP64. */
static void reference(const struct model *m, int cache, int stream, int j, int h, double *o) {
    const struct shape *s = &m->shape;
    const struct ggml_tensor *c = m->caches[cache];
    const float *q = (const float *)((const char *)m->q->data + stream * m->q->nb[3] + j * m->q->nb[2] + h * m->q->nb[1]);
    double *p = allocate((size_t)s->keys * sizeof *p), most = -INFINITY, sum = 0;
    float row[D_QK];
    memset(o, 0, D_V * sizeof *o);
    for (int pass = 0; pass < 2; pass++)
        for (int k = 0; k < s->keys; k++) {
            if (!sees(s, stream, j, k)) continue;
            const char *data = (const char *)c->data + stream * c->nb[2] + k * c->nb[1];
            if (c->type == GGML_TYPE_F32) {
                memcpy(row, data, sizeof row);
            } else {
                ggml_get_type_traits(c->type)->to_float(data, row, D_QK);
            }
            if (pass == 0) {
                p[k] = 0;
                for (int i = 0; i < D_QK; i++) p[k] += (double)q[i] * row[i];
                p[k] *= SCALE;
                most = fmax(most, p[k]);
                continue;
            }
            double weight = exp(p[k] - most);
            sum += weight;
            for (int i = 0; i < D_V; i++) o[i] += weight * row[i + (s->rope_first ? D_QK - D_V : 0)];
        }
    for (int i = 0; i < D_V && sum > 0; i++) o[i] /= sum;
    free(p);
}

/* The largest difference of some rows from FP64, relative to each row's largest number. */
static double error_of(const struct model *m, struct ggml_tensor *const *outputs) {
    const struct shape *s = &m->shape;
    double o[D_V], error = 0;
    for (int i = 0; i < s->layers; i++)
        for (int stream = 0; stream < s->streams; stream++)
            for (int j = 0; j < s->tokens; j += s->tokens > 8 ? 5 : 1)
                for (int h = 0; h < s->heads; h += 1 + s->heads / 3) {
                    const struct ggml_tensor *t = outputs[i];
                    const float *x = (const float *)((const char *)t->data + stream * t->nb[3] + j * t->nb[2] + h * t->nb[1]);
                    double most = 0, worst = 0;
                    reference(m, i, stream, j, h, o);
                    for (int d = 0; d < D_V; d++) {
                        most = fmax(most, fabs(o[d]));
                        worst = isfinite(x[d]) ? fmax(worst, fabs(x[d] - o[d])) : INFINITY;
                    }
                    /* A row that sees no key is 0. */
                    error = fmax(error, most > 0 ? worst / most : worst);
                }
    return error;
}

static void describe(const struct shape *s, char *what, size_t size) {
    snprintf(what, size, "%-4s %3d heads %4d keys %3d tokens %d streams, %s%s, %s, %d threads", ggml_type_name(s->type),
             s->heads, s->keys, s->tokens, s->streams, MASK_NAMES[s->mask], s->rope_first ? ", rope first" : "",
             ggml_type_name(s->mask_type), s->threads);
}

static void check_outputs(const struct model *m, bool with_theirs) {
    char what[160];
    double error = error_of(m, m->our_o);
    describe(&m->shape, what, sizeof what);
    printf("%s: error %.1e", what, error);
    if (with_theirs) printf(", ggml's %.1e", error_of(m, m->their_o));
    printf("\n");
    check(amla_ggml_error(m->plan) == NULL, what);
    check(error < 1e-5, what);
}

static void test_shape(struct shape shape) {
    struct model m;
    open_model(&m, shape);
    build(&m, true);
    run(&m, m.ours);
    run(&m, m.theirs);
    check_outputs(&m, true);
    /* The same bits from another number of threads. */
    size_t bytes = ggml_nbytes(m.our_o[1]);
    void *before = allocate(bytes);
    memcpy(before, m.our_o[1]->data, bytes);
    memset(m.our_o[1]->data, 0xff, bytes);
    ggml_backend_cpu_set_n_threads(m.backend, 3 - shape.threads);
    run(&m, m.ours);
    check(memcmp(before, m.our_o[1]->data, bytes) == 0, "bits depend on threads");
    free(before);
    close_model(&m);
}

static void test_shapes(int threads) {
    const enum ggml_type types[] = {GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_F32, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0};
    for (int i = 0; i < 5; i++)
        for (int rope_first = 0; rope_first < 2; rope_first++)
            test_shape((struct shape){types[i], 16, 1024, 1, 1, rope_first, PREFIX, GGML_TYPE_F16, 2, threads});
    for (int mask = NO_MASK; mask <= NOTHING; mask++)
        for (int streams = 1; streams <= 2; streams++) {
            enum ggml_type type = mask % 2 ? GGML_TYPE_F16 : GGML_TYPE_F32;
            test_shape((struct shape){GGML_TYPE_F16, 16, 700, 7, streams, false, mask, type, 2, threads});
            test_shape((struct shape){GGML_TYPE_Q8_0, 5, 300, 40, streams, true, mask, type, 2, threads});
        }
    test_shape((struct shape){GGML_TYPE_F16, 128, 2048, 1, 1, false, PREFIX, GGML_TYPE_F16, 2, threads});
    test_shape((struct shape){GGML_TYPE_F16, 1, 8192, 1, 1, false, PREFIX, GGML_TYPE_F16, 2, threads});
    test_shape((struct shape){GGML_TYPE_F16, 16, 256, 130, 1, false, CAUSAL, GGML_TYPE_F16, 2, threads});
}

/* The next step, with another mask in the same graph. */
static void test_next_step(void) {
    struct model m;
    open_model(&m, (struct shape){GGML_TYPE_F16, 16, 512, 6, 1, false, NOTHING, GGML_TYPE_F16, 2, 2});
    build(&m, false);
    for (int mask = PREFIX; mask <= NOTHING; mask++) {
        m.shape.mask = mask;
        fill_mask(&m);
        run(&m, m.ours);
        check_outputs(&m, false);
    }
    close_model(&m);
}

static void test_refusals(void) {
    struct shape shape = {GGML_TYPE_F16, 16, 256, 2, 1, false, OTHER_NUMBERS, GGML_TYPE_F16, 1, 2};
    struct model m;
    open_model(&m, shape);
    struct layer l = layer(&m, 0);
    struct ggml_context *ctx = m.nodes;
    struct ggml_tensor *plan = amla_ggml_plan(ctx, l.q, l.k, l.v, m.mask, 2), *k = l.k, *v = l.v, *q = l.q, *mask = m.mask;
    struct ggml_tensor *q2 = ggml_view_4d(ctx, q, D_QK, 1, 16, 1, q->nb[1], q->nb[2], q->nb[3], 0);
    struct ggml_tensor *heads = ggml_view_4d(ctx, k, D_QK, 128, 2, 1, k->nb[1], 128 * k->nb[1], k->nb[3], 0);
    struct ggml_tensor *middle = ggml_view_4d(ctx, k, D_V, 256, 1, 1, k->nb[1], k->nb[2], k->nb[3], 32 * k->nb[0]);
    struct ggml_tensor *narrow = ggml_view_4d(ctx, k, 500, 256, 1, 1, k->nb[1], k->nb[2], k->nb[3], 0);
    struct ggml_tensor *apart = ggml_new_tensor_4d(ctx, GGML_TYPE_F16, D_V, 256, 1, 1);
    struct ggml_tensor *q5 = ggml_new_tensor_4d(ctx, GGML_TYPE_Q5_0, D_QK, 256, 1, 1);
    struct ggml_tensor *short_mask = ggml_view_4d(ctx, mask, 256, 1, 1, 1, mask->nb[1], mask->nb[2], mask->nb[3], 0);
    check(plan != NULL, "a plan");
    check(amla_ggml_plan(ctx, q, k, v, NULL, 0) == NULL, "no threads");
    check(amla_ggml_plan(ctx, ggml_cast(ctx, q, GGML_TYPE_F16), k, v, mask, 2) == NULL, "F16 queries");
    check(amla_ggml_plan(ctx, q, q5, ggml_view_4d(ctx, q5, D_V, 256, 1, 1, q5->nb[1], q5->nb[2], q5->nb[3], 0), mask, 2) ==
              NULL, "a Q5_0 cache");
    check(amla_ggml_plan(ctx, q, heads, ggml_view_4d(ctx, heads, D_V, 128, 2, 1, k->nb[1], 128 * k->nb[1], k->nb[3], 0),
                         NULL, 2) == NULL, "two KV heads");
    check(amla_ggml_plan(ctx, q, k, apart, mask, 2) == NULL, "values apart");
    check(amla_ggml_plan(ctx, q, k, middle, mask, 2) == NULL, "values in the middle");
    check(amla_ggml_plan(ctx, q, k, narrow, mask, 2) == NULL, "values of another width");
    check(amla_ggml_plan(ctx, q, k, ggml_transpose(ctx, v), mask, 2) == NULL, "transposed values");
    check(amla_ggml_plan(ctx, q, k, v, short_mask, 2) == NULL, "a mask with too few rows");
    check(amla_ggml_plan(ctx, q, k, v, ggml_cast(ctx, mask, GGML_TYPE_BF16), 2) == NULL, "a BF16 mask");
    check(amla_ggml_attn(ctx, q, k, v, NULL, SCALE, 0, 0) == NULL, "no plan");
    check(amla_ggml_attn(ctx, q2, k, v, plan, SCALE, 0, 0) == NULL, "a plan for other sizes");
    check(amla_ggml_attn(ctx, q, k, v, plan, SCALE, 8, 0) == NULL, "ALiBi");
    check(amla_ggml_attn(ctx, q, k, v, plan, SCALE, 0, 30) == NULL, "a soft cap");
    check(amla_ggml_attn(ctx, q, k, v, plan, INFINITY, 0, 0) == NULL, "an infinite scale");

    build(&m, false);
    run(&m, m.ours);
    bool nan = true;
    for (int64_t i = 0; i < ggml_nelements(m.our_o[0]); i++) nan &= isnan(((const float *)m.our_o[0]->data)[i]) != 0;
    const char *error = amla_ggml_error(m.plan);
    printf("a mask with other numbers: %s\n", error ? error : "no error");
    check(error != NULL && nan, "a mask with other numbers");
    close_model(&m);
}

/* -- Times ---------------------------------------------------------------------------------------------------------- */

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Medians of a layer's times, in microseconds, of rounds in turn. Layers have caches of their own, 32 MB or more in all, as
 * a model's don't stay in L2. */
static void time_shape(struct shape shape, int rounds, double times[2]) {
    enum { MOST = 101 };
    double all[2][MOST];
    struct model m;
    double cache = (double)ggml_row_size(shape.type, D_QK) * shape.keys * shape.streams;
    shape.layers = (int)fmax(2, fmin(MAX_LAYERS, ceil(32e6 / cache)));
    open_model(&m, shape);
    build(&m, true);
    for (int i = -1; i < rounds; i++)
        for (int which = 0; which < 2; which++) {
            double time = run(&m, which == 0 ? m.ours : m.theirs);
            if (i >= 0) all[which][i] = time / shape.layers;
        }
    for (int which = 0; which < 2; which++) {
        qsort(all[which], (size_t)rounds, sizeof(double), compare);
        times[which] = all[which][rounds / 2];
    }
    close_model(&m);
}

static void print_times(struct shape shape, int rounds) {
    double times[2];
    time_shape(shape, rounds, times);
    printf("| %s | %d | %d | %d | %s | %d | %.0f | %.0f | %.2f |\n", ggml_type_name(shape.type), shape.heads, shape.keys,
           shape.tokens, MASK_NAMES[shape.mask], shape.threads, times[0], times[1], times[1] / times[0]);
    fflush(stdout);
}

static void print_heads(enum ggml_type type, int most_keys, int rounds) {
    const int heads[] = {1, 2, 4, 8, 16, 128};
    for (int keys = 1024; keys <= most_keys; keys *= 4)
        for (int h = 0; h < 6; h++)
            print_times((struct shape){type, heads[h], keys, 1, 1, false, PREFIX, GGML_TYPE_F16, 0, 1},
                        heads[h] * keys > 65536 ? (rounds + 3) / 4 : rounds);
}

static void print_masks(int keys, int rounds) {
    for (int mask = CAUSAL; mask <= CHOSEN; mask++)
        print_times((struct shape){GGML_TYPE_F16, 16, keys, 8, 1, false, mask, GGML_TYPE_F16, 0, 1}, rounds);
    print_times((struct shape){GGML_TYPE_F16, 16, keys, 128, 1, false, CAUSAL, GGML_TYPE_F16, 0, 1}, rounds);
}

static void print_threads(int keys, int rounds) {
    for (int heads = 2; heads <= 128; heads *= 8)
        print_times((struct shape){GGML_TYPE_F16, heads, keys, 1, 1, false, PREFIX, GGML_TYPE_F16, 0, 2}, rounds);
}

static void print_tables(const char *table, int most_keys, int rounds) {
    const enum ggml_type types[] = {GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0};
    printf("\n| cache | heads | keys | tokens | mask | threads | us | ggml's us | ratio |\n"
           "|---|---|---|---|---|---|---|---|---|\n");
    for (int t = 0; t < 3; t++)
        if (table == NULL || strcmp(table, ggml_type_name(types[t])) == 0) print_heads(types[t], most_keys, rounds);
    int keys = most_keys / (most_keys > 1024 ? 4 : 1);
    if (table == NULL || strcmp(table, "masks") == 0) print_masks(keys, (rounds + 3) / 4);
    if (table == NULL || strcmp(table, "threads") == 0) print_threads(keys, rounds);
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--bench") == 0) {
        print_tables(argc > 2 ? argv[2] : NULL, 16384, 15);
        return 0;
    }
    test_refusals();
    test_next_step();
    for (int threads = 1; threads <= 2; threads++) test_shapes(threads);
    print_tables(NULL, 1024, 3);
    printf("%d failures\n", failures);
    return failures > 0;
}
