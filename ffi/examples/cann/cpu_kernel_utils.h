// A stand-in for CANN's header of this name: see README.md in this folder.
#pragma once

#include <functional>
#include <thread>
#include <vector>

#include "cpu_kernel.h"

namespace aicpu {

class CpuKernelUtils {
public:
    static uint32_t GetCPUNum(const CpuKernelContext &) { return 4; }

    // Calls work(begin, end) over shards of 0..total, each at most about per_unit_size long.
    static uint32_t ParallelFor(const CpuKernelContext &, int64_t total, int64_t per_unit_size,
                                const std::function<void(int64_t, int64_t)> &work) {
        std::vector<std::thread> threads;
        for (int64_t begin = 0; begin < total; begin += per_unit_size) {
            int64_t end = begin + per_unit_size < total ? begin + per_unit_size : total;
            threads.emplace_back(work, begin, end);
        }
        for (auto &thread : threads) thread.join();
        return 0;
    }
};

}  // namespace aicpu
