// A stand-in for CANN's header of this name: see README.md in this folder.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cpu_tensor.h"

namespace aicpu {

class CpuKernelContext {
public:
    CpuKernelContext(std::vector<Tensor *> inputs, std::vector<Tensor *> outputs)
        : inputs_(std::move(inputs)), outputs_(std::move(outputs)) {}
    Tensor *Input(uint32_t index) const { return index < inputs_.size() ? inputs_[index] : nullptr; }
    Tensor *Output(uint32_t index) const {
        return index < outputs_.size() ? outputs_[index] : nullptr;
    }

private:
    std::vector<Tensor *> inputs_, outputs_;
};

class CpuKernel {
public:
    virtual uint32_t Compute(CpuKernelContext &ctx) = 0;
    virtual ~CpuKernel() = default;
};

using KernelCreator = std::function<std::shared_ptr<CpuKernel>()>;

inline std::map<std::string, KernelCreator> &Kernels() {
    static std::map<std::string, KernelCreator> kernels;
    return kernels;
}

}  // namespace aicpu

#define REGISTER_CPU_KERNEL(type, clazz)                                                \
    static const bool registered_##clazz = [] {                                         \
        aicpu::Kernels()[type] = [] { return std::make_shared<clazz>(); };              \
        return true;                                                                    \
    }()
