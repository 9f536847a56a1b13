/*
 * One decode step over a paged cache, on one thread.
 *
 *   cc -I../include decode.c libamla.a -o decode -lm
 */
#include "common.h"

/* A row by the definition, in double precision: the largest error of its O. */
static double error_of(const struct step *s, int b, int h) {
    const uint16_t *q = s->q + ((size_t)b * H_Q + h) * D_QK;
    const float *o = s->o + ((size_t)b * H_Q + h) * D_V;
    static double weight[S_K], sum[D_V];
    double max = -INFINITY, total = 0, error = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int k = 0; k < s->lens[b]; k++) {
            size_t page = (size_t)s->table[b * MAX_BLOCKS + k / PAGE];
            const uint16_t *row = s->cache + (page * PAGE + k % PAGE) * D_QK;
            double score = 0;
            for (int i = 0; i < D_QK && pass == 0; i++) {
                uint32_t x = (uint32_t)q[i] << 16, y = (uint32_t)row[i] << 16;
                float a, c;
                memcpy(&a, &x, sizeof a);
                memcpy(&c, &y, sizeof c);
                score += (double)a * c;
            }
            if (pass == 0) {
                weight[k] = score * (double)s->call.softmax_scale;
                max = fmax(max, weight[k]);
                continue;
            }
            double p = exp(weight[k] - max);
            total += p;
            for (int i = 0; i < D_V; i++) {
                uint32_t y = (uint32_t)row[i] << 16;
                float v;
                memcpy(&v, &y, sizeof v);
                sum[i] = (k == 0 ? 0 : sum[i]) + p * v;
            }
        }
    }
    for (int i = 0; i < D_V; i++) error = fmax(error, fabs(sum[i] / total - (double)o[i]));
    return error;
}

int main(void) {
    struct amla_error_detail detail = {.struct_size = sizeof detail};
    struct step s;
    size_t workspace_size;
    if (amla_abi_version() != AMLA_ABI_VERSION) return 1;
    /* This program's signals have room for AMX's tiles. */
    amla_permit_amx();
    prepare(&s);
    must(amla_workspace_size(&s.call, &workspace_size, &detail), &detail);
    void *workspace = allocate(workspace_size);
    must(amla_run(&s.call, workspace, workspace_size, &detail), &detail);
    double error = fmax(error_of(&s, 0, 0), error_of(&s, B - 1, H_Q - 1));
    printf("amla %s, %s: %d requests x %d heads, largest error %.1e\n", amla_version_string(),
           amla_backend_name(), B, H_Q, error);
    free(workspace);
    release(&s);
    return error < 1e-3 ? 0 : 1;
}
