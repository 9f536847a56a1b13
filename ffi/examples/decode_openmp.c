/*
 * The same step on OpenMP's threads: a plan's tasks in any order, no barrier among them.
 *
 *   cc -fopenmp -I../include decode_openmp.c libamla.a -o decode_openmp -lm
 */
#include <omp.h>

#include "common.h"

int main(void) {
    struct amla_error_detail detail = {.struct_size = sizeof detail};
    struct amla_plan_info info = {.struct_size = sizeof info};
    struct step s;
    size_t plan_size, workspace_size;
    prepare(&s);

    /* Once for all layers of a step: the plan depends on shape and lengths alone. */
    must(amla_plan_size(&s.call, &plan_size, &detail), &detail);
    void *plan = allocate(plan_size);
    must(amla_plan(&s.call, plan, plan_size, &detail), &detail);
    must(amla_plan_query(plan, plan_size, &info, &detail), &detail);
    must(amla_workspace_size(&s.call, &workspace_size, &detail), &detail);
    float *partials = allocate(info.partials_len * sizeof *partials);
    char *workspaces = allocate((size_t)omp_get_max_threads() * workspace_size);

    int failed = 0;
#pragma omp parallel for schedule(dynamic) reduction(| : failed)
    for (size_t task = 0; task < info.tasks; task++) {
        void *own = workspaces + (size_t)omp_get_thread_num() * workspace_size;
        failed |= amla_run_tasks(&s.call, plan, plan_size, task, task + 1, own, workspace_size,
                                 partials, info.partials_len, NULL) != AMLA_OK;
    }
    if (failed) return 1;
    must(amla_combine(&s.call, plan, plan_size, partials, info.partials_len, &detail), &detail);

    printf("%zu tasks on %d threads; ", info.tasks, omp_get_max_threads());
    int same = same_as_one_thread(&s);
    free(plan);
    free(partials);
    free(workspaces);
    release(&s);
    return same ? 0 : 1;
}
