// C++20: each struct by designated initialisers that leave fields out, struct_size among them.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "amla.h"

int main() {
    constexpr std::size_t keys = 100, heads = 16, d_qk = AMLA_MLA_D_QK, d_v = AMLA_MLA_D_V;
    std::vector<std::uint16_t> q(heads * d_qk), kv(keys * d_qk, 0x3e80); // 0.25
    std::vector<float> o(heads * d_v), lse(heads);
    alignas(AMLA_WORKSPACE_ALIGN) static unsigned char workspace[AMLA_WORKSPACE_MAX];
    const amla_tensor queries{.dtype = AMLA_DTYPE_BF16, .data = q.data(), .len = q.size(),
                              .strides = {0, 0, d_qk}};
    const amla_tensor cache{.dtype = AMLA_DTYPE_BF16, .data = kv.data(), .len = kv.size(),
                            .strides = {0, d_qk}};
    const amla_output output{.dtype = AMLA_DTYPE_F32, .o = o.data(), .o_len = o.size(),
                             .o_strides = {0, 0, d_v}, .lse = lse.data(), .lse_len = lse.size(),
                             .lse_strides = {0, 1}};
    const amla_call call{.b = 1, .s_q = 1, .s_k = keys, .h_q = heads, .h_kv = 1, .d_qk = d_qk,
                         .d_v = d_v, .softmax_scale = 1.0F / 24, .q = &queries, .kv = &cache,
                         .output = &output};
    amla_error_detail detail{};
    if (amla_run(&call, workspace, sizeof workspace, &detail) != AMLA_OK) {
        std::puts(detail.message);
        return 1;
    }
    std::printf("o[0] = %g, lse[0] = %g\n", double(o[0]), double(lse[0]));

    const amla_indices chosen{.topk = 3};
    const amla_extra extra{.pages = 2, .indices = &chosen};
    const amla_part part{.o = o.data(), .o_len = o.size(), .lse = lse.data(), .lse_len = lse.size()};
    const amla_plan_info info{.struct_size = sizeof info};
    const amla_capability_set set{};
    const bool sizes = chosen.struct_size == sizeof chosen && extra.struct_size == sizeof extra &&
                       part.struct_size == sizeof part && info.struct_size == sizeof info &&
                       set.struct_size == sizeof set && detail.struct_size == sizeof detail;
    const bool zeros = chosen.indices == nullptr && extra.kv == nullptr && part.reserved == 0 &&
                       info.tasks == 0 && set.dims[15][1] == 0 && detail.message[0] == 0 &&
                       call.backend == nullptr && cache.strides[2] == 0;
    return sizes && zeros ? 0 : 1;
}
