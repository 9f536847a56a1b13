// The same step on std::thread, in one parallel loop.
//
//   c++ -std=c++17 -pthread -I../include decode_threads.cpp libamla.a -o decode_threads
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "common.h"

namespace {

constexpr std::size_t kThreads = 4;

// Calls body with each number below n; a real pool's threads would be there already.
void parallel_for(void *, std::size_t n, void (*body)(void *, std::size_t), void *arg) {
    std::vector<std::thread> threads;
    for (std::size_t i = 1; i < n; i++) threads.emplace_back(body, arg, i);
    if (n > 0) body(arg, 0);
    for (auto &thread : threads) thread.join();
}

}  // namespace

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
    must(amla_plan_for_threads(&s.call, kThreads, plan.data(), plan.size(), &detail), &detail);
    must(amla_plan_query(plan.data(), plan.size(), &info, &detail), &detail);
    must(amla_workspace_size(&s.call, &workspace_size, &detail), &detail);
    std::vector<float> partials(info.partials_len);
    void *workspaces = allocate(kThreads * workspace_size);

    must(amla_run_parallel(&s.call, plan.data(), plan.size(), parallel_for, nullptr, workspaces,
                           kThreads * workspace_size, partials.data(), partials.size(), &detail),
         &detail);
    std::free(workspaces);

    std::printf("%zu tasks on %zu threads; ", info.tasks, kThreads);
    bool same = same_as_one_thread(&s);
    release(&s);
    return same ? 0 : 1;
}
