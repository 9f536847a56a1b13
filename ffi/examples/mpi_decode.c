/*
 * A cache sharded over the ranks of MPI: each attends to its own keys, and a reduction of the
 * user's, which is amla_merge(), merges the results.
 *
 *   mpicc -I../include mpi_decode.c libamla.a -o mpi_decode -lm
 *   mpirun -n 4 ./mpi_decode
 *
 * Every rank knows the whole (made-up) cache, so that rank 0 can compare with the answer of one.
 */
#include <mpi.h>

#include "common.h"

enum { ROWS = B * H_Q, LEN = ROWS * D_V + ROWS };

static struct amla_output result(float *memory) {
    struct amla_output output = {
        .struct_size = sizeof output, .dtype = AMLA_DTYPE_F32,
        .o = memory, .o_len = (size_t)ROWS * D_V,
        .o_strides = {(size_t)H_Q * D_V, (size_t)H_Q * D_V, D_V},
        .lse = memory + (size_t)ROWS * D_V, .lse_len = ROWS, .lse_strides = {H_Q, 1, 1},
        /* The logarithm of an empty sum: a rank may have no keys of a request. */
        .lse_empty = AMLA_LSE_EMPTY_MINUS_INFINITY};
    return output;
}

/* inout = in merged with inout: O and lse of one result lie one behind the other. */
static void merge(void *in, void *inout, int *len, MPI_Datatype *type) {
    (void)type;
    for (int i = 0; i < *len; i++) {
        const float *other = (const float *)in + (size_t)i * LEN;
        struct amla_output total = result((float *)inout + (size_t)i * LEN);
        struct amla_part part = {.struct_size = sizeof part, .o = other,
                                 .o_len = (size_t)ROWS * D_V,
                                 .lse = other + (size_t)ROWS * D_V, .lse_len = ROWS};
        if (amla_merge(B, 1, H_Q, D_V, &total, &part, 1, NULL) != AMLA_OK)
            MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static void attend(struct step *s, float *memory) {
    struct amla_error_detail detail = {.struct_size = sizeof detail};
    struct amla_output output = result(memory);
    size_t workspace_size;
    s->call.output = &output;
    must(amla_workspace_size(&s->call, &workspace_size, &detail), &detail);
    void *workspace = allocate(workspace_size);
    must(amla_run(&s->call, workspace, workspace_size, &detail), &detail);
    free(workspace);
}

int main(int argc, char **argv) {
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    struct step s;
    prepare(&s);
    /* Probabilities are rounded relative to what a rank has seen; BF16 alone would show it. */
    s.call.precision = AMLA_PRECISION_BF16X2;
    float *whole = allocate(LEN * sizeof *whole), *own = allocate(LEN * sizeof *own);
    float *merged = allocate(LEN * sizeof *merged);
    attend(&s, whole);

    /* This rank's pages of each request. */
    for (int b = 0; b < B; b++) {
        int blocks = (s.lens[b] + PAGE - 1) / PAGE;
        int begin = blocks * rank / ranks, end = blocks * (rank + 1) / ranks;
        int32_t *row = s.table + b * MAX_BLOCKS;
        int len = (end * PAGE < s.lens[b] ? end * PAGE : s.lens[b]) - begin * PAGE;
        memmove(row, row + begin, (size_t)(end - begin) * sizeof *row);
        s.lens[b] = len > 0 ? len : 0;
    }
    attend(&s, own);

    MPI_Datatype type;
    MPI_Op op;
    MPI_Type_contiguous(LEN, MPI_FLOAT, &type);
    MPI_Type_commit(&type);
    /* Not commutative: the same ranks give the same bits. */
    MPI_Op_create(merge, 0, &op);
    MPI_Allreduce(own, merged, 1, type, op, MPI_COMM_WORLD);

    double error = 0, norm = 0, lse = 0;
    for (size_t i = 0; i < LEN; i++) {
        double difference = (double)merged[i] - (double)whole[i];
        if (i < (size_t)ROWS * D_V) {
            error += difference * difference;
            norm += (double)whole[i] * (double)whole[i];
        } else {
            lse = fmax(lse, fabs(difference / (double)whole[i]));
        }
    }
    error = sqrt(error / norm);
    if (rank == 0) printf("%d ranks: O %.1e, lse %.1e from one rank's\n", ranks, error, lse);
    MPI_Op_free(&op);
    MPI_Type_free(&type);
    MPI_Finalize();
    free(whole);
    free(own);
    free(merged);
    release(&s);
    return error <= 1e-6 && lse <= 1e-6 ? 0 : 1;
}
