// The same step on std::thread: each thread takes the next task until there is none.
//
//   c++ -std=c++17 -pthread -I../include decode_threads.cpp libamla.a -o decode_threads
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "common.h"

int main() {
    amla_error_detail detail{};
    detail.struct_size = sizeof detail;
    amla_plan_info info{};
    info.struct_size = sizeof info;
    step s;
    std::size_t plan_size, workspace_size;
    prepare(&s);
    must(amla_plan_size(&s.call, &plan_size, &detail), &detail);
    std::vector<unsigned char> plan(plan_size);
    must(amla_plan(&s.call, plan.data(), plan.size(), &detail), &detail);
    must(amla_plan_query(plan.data(), plan.size(), &info, &detail), &detail);
    must(amla_workspace_size(&s.call, &workspace_size, &detail), &detail);
    std::vector<float> partials(info.partials_len);

    std::atomic<std::size_t> next{0};
    std::atomic<bool> failed{false};
    auto work = [&] {
        void *workspace = allocate(workspace_size);
        for (std::size_t task; (task = next++) < info.tasks;) {
            if (amla_run_tasks(&s.call, plan.data(), plan.size(), task, task + 1, workspace,
                               workspace_size, partials.data(), partials.size(),
                               nullptr) != AMLA_OK) {
                failed = true;
            }
        }
        std::free(workspace);
    };
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; i++) threads.emplace_back(work);
    for (auto &thread : threads) thread.join();
    if (failed) return 1;
    must(amla_combine(&s.call, plan.data(), plan.size(), partials.data(), partials.size(), &detail),
         &detail);

    std::printf("%zu tasks on %zu threads; ", info.tasks, threads.size());
    bool same = same_as_one_thread(&s);
    release(&s);
    return same ? 0 : 1;
}
