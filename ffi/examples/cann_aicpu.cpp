// An AI CPU operator of CANN: paged MLA decode in its Compute, in one ParallelFor.
//
// With stand-ins of CANN's headers, in the folder cann:
//
//   c++ -std=c++17 -pthread -Icann -I../include cann_aicpu.cpp libamla.a -o cann_aicpu
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "common.h"
#include "cpu_kernel.h"
#include "cpu_kernel_utils.h"
#include "cpu_tensor.h"

namespace aicpu {

namespace {

constexpr uint32_t kOk = 0, kParameterInvalid = 1, kInnerError = 2;

struct Free {
    void operator()(void *memory) const { std::free(memory); }
};

std::size_t Dim(const Tensor *tensor, int32_t index) {
    return static_cast<std::size_t>(tensor->GetTensorShape()->GetDimSize(index));
}

amla_tensor Read(const Tensor *tensor, std::size_t s0, std::size_t s1, std::size_t s2) {
    amla_tensor read{};
    read.struct_size = sizeof read;
    read.dtype = AMLA_DTYPE_BF16;
    read.data = tensor->GetData();
    read.len = tensor->GetDataSize() / sizeof(uint16_t);
    read.strides[0] = s0;
    read.strides[1] = s1;
    read.strides[2] = s2;
    return read;
}

// A shard for each number below n. The library does itself what a failed shard has left.
void ParallelFor(void *ctx, std::size_t n, void (*body)(void *, std::size_t), void *arg) {
    auto shard = [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) body(arg, static_cast<std::size_t>(i));
    };
    CpuKernelUtils::ParallelFor(*static_cast<CpuKernelContext *>(ctx), static_cast<int64_t>(n), 1,
                                shard);
}

}  // namespace

// Inputs: query [b, h_q, d_qk], cache [pages, page, d_qk], block_table [b, max_blocks],
// lengths [b]. Outputs: attention [b, h_q, d_v], lse [b, h_q].
class MlaDecodeCpuKernel : public CpuKernel {
public:
    uint32_t Compute(CpuKernelContext &ctx) override {
        const Tensor *q = ctx.Input(0), *kv = ctx.Input(1), *table = ctx.Input(2);
        const Tensor *lens = ctx.Input(3), *o = ctx.Output(0), *lse = ctx.Output(1);
        if (!q || !kv || !table || !lens || !o || !lse) return kParameterInvalid;
        const std::size_t b = Dim(q, 0), h_q = Dim(q, 1), d_qk = Dim(q, 2), d_v = Dim(o, 2);
        const std::size_t page = Dim(kv, 1), max_blocks = Dim(table, 1);

        amla_tensor q_read = Read(q, h_q * d_qk, h_q * d_qk, d_qk);
        amla_tensor kv_read = Read(kv, page * d_qk, d_qk, d_qk);
        amla_output output{};
        output.struct_size = sizeof output;
        output.dtype = AMLA_DTYPE_F32;
        output.o = o->GetData();
        output.o_len = o->GetDataSize() / sizeof(float);
        output.o_strides[0] = output.o_strides[1] = h_q * d_v;
        output.o_strides[2] = d_v;
        output.lse = static_cast<float *>(lse->GetData());
        output.lse_len = lse->GetDataSize() / sizeof(float);
        output.lse_strides[0] = h_q;
        output.lse_strides[1] = output.lse_strides[2] = 1;
        amla_call call{};
        call.struct_size = sizeof call;
        call.b = b;
        call.s_q = 1;
        call.s_k = max_blocks * page;
        call.h_q = h_q;
        call.h_kv = 1;
        call.d_qk = d_qk;
        call.d_v = d_v;
        call.softmax_scale = 1.0F / 24.0F;
        call.q = &q_read;
        call.kv = &kv_read;
        call.cache_seqlens = static_cast<const int32_t *>(lens->GetData());
        call.cache_seqlens_len = lens->GetDataSize() / sizeof(int32_t);
        call.block_table = static_cast<const int32_t *>(table->GetData());
        call.block_table_len = table->GetDataSize() / sizeof(int32_t);
        call.max_blocks = max_blocks;
        call.page_size = page;
        call.pages = Dim(kv, 0);
        call.output = &output;

        // Tiling and workspace first, as everywhere in CANN.
        amla_error_detail detail{};
        detail.struct_size = sizeof detail;
        amla_plan_info info{};
        info.struct_size = sizeof info;
        unsigned char plan[AMLA_PLAN_MAX];
        const std::size_t cores = CpuKernelUtils::GetCPUNum(ctx);
        std::size_t workspace_size;
        if (amla_workspace_size(&call, &workspace_size, &detail) != AMLA_OK ||
            amla_plan_for_threads(&call, cores, plan, sizeof plan, &detail) != AMLA_OK ||
            amla_plan_query(plan, sizeof plan, &info, &detail) != AMLA_OK) {
            std::fprintf(stderr, "MlaDecode: %s\n", detail.message);
            return kParameterInvalid;
        }
        std::unique_ptr<float, Free> partials(
            static_cast<float *>(allocate(info.partials_len * sizeof(float))));
        const std::size_t memory = cores * workspace_size;
        std::unique_ptr<void, Free> workspaces(allocate(memory));
        amla_status status =
            amla_run_parallel(&call, plan, sizeof plan, ParallelFor, &ctx, workspaces.get(), memory,
                              partials.get(), info.partials_len, &detail);
        return status == AMLA_OK ? kOk : kInnerError;
    }
};

REGISTER_CPU_KERNEL("MlaDecode", MlaDecodeCpuKernel);

}  // namespace aicpu

// CANN's runtime would do this.
int main() {
    step s;
    prepare(&s);
    using aicpu::Tensor;
    Tensor q(s.q, s.q_tensor.len * 2, {B, H_Q, D_QK});
    Tensor kv(s.cache, s.kv_tensor.len * 2, {PAGES, PAGE, D_QK});
    Tensor table(s.table, sizeof s.table, {B, MAX_BLOCKS});
    Tensor lens(s.lens, sizeof s.lens, {B});
    Tensor o(s.o, s.output.o_len * 4, {B, H_Q, D_V}), lse(s.lse, s.output.lse_len * 4, {B, H_Q});
    aicpu::CpuKernelContext ctx({&q, &kv, &table, &lens}, {&o, &lse});
    uint32_t status = aicpu::Kernels().at("MlaDecode")()->Compute(ctx);
    std::printf("Compute: %u; ", status);
    bool same = same_as_one_thread(&s);
    release(&s);
    return status == 0 && same ? 0 : 1;
}
