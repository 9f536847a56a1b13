/*
 * The same step on OpenMP's threads, in one parallel loop.
 *
 *   cc -fopenmp -I../include decode_openmp.c libamla.a -o decode_openmp -lm
 */
#include <omp.h>

#include "common.h"

/* Calls body with each number below n; the library needs no more of a thread pool. */
static void parallel_for(void *pool, size_t n, void (*body)(void *, size_t), void *arg) {
    (void)pool;
#pragma omp parallel for schedule(static, 1)
    for (size_t i = 0; i < n; i++) body(arg, i);
}

int main(void) {
    struct amla_error_detail detail = {.struct_size = sizeof detail};
    struct amla_plan_info info = {.struct_size = sizeof info};
    struct step s;
    size_t plan_size, workspace_size;
    prepare(&s);

    /* Once for all layers of a step: the plan depends on shape and lengths alone. */
    size_t threads = (size_t)omp_get_max_threads();
    must(amla_plan_size(&s.call, &plan_size, &detail), &detail);
    void *plan = allocate(plan_size);
    must(amla_plan_for_threads(&s.call, threads, plan, plan_size, &detail), &detail);
    must(amla_plan_query(plan, plan_size, &info, &detail), &detail);
    must(amla_workspace_size(&s.call, &workspace_size, &detail), &detail);
    float *partials = allocate(info.partials_len * sizeof *partials);
    void *workspaces = allocate(threads * workspace_size);

    must(amla_run_parallel(&s.call, plan, plan_size, parallel_for, NULL, workspaces,
                           threads * workspace_size, partials, info.partials_len, &detail),
         &detail);

    printf("%zu tasks on %zu threads; ", info.tasks, threads);
    int same = same_as_one_thread(&s);
    free(plan);
    free(partials);
    free(workspaces);
    release(&s);
    return same ? 0 : 1;
}
