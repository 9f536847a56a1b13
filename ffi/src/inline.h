// Initialisers of contiguous tensors, outputs and dense calls. Other fields are 0: set those that the
// call needs besides.

// A contiguous tensor [n0, n1, n2, width]: queries [b, s_q, h_q, d_qk], a cache [b, s_k, h_kv, d_qk] or
// [pages, page_size, h_kv, d_qk].
//
// For AMLA_DTYPE_FP8 width is AMLA_FP8_ROW. For AMLA_DTYPE_INT8 set scales too, [n0, n1, n2] of them.
//
// @return The tensor.
static inline struct amla_tensor amla_tensor_contiguous(amla_dtype dtype, const void *data,
                                                        size_t n0, size_t n1, size_t n2,
                                                        size_t width)
{
    struct amla_tensor tensor = AMLA_ZERO;
    tensor.struct_size = (uint32_t)sizeof tensor;
    tensor.dtype = dtype;
    tensor.data = data;
    tensor.len = n0 * n1 * n2 * width;
    tensor.strides[0] = n1 * n2 * width;
    tensor.strides[1] = n2 * width;
    tensor.strides[2] = width;
    tensor.scales_len = n0 * n1 * n2;
    tensor.scale_strides[0] = n1 * n2;
    tensor.scale_strides[1] = n2;
    tensor.scale_strides[2] = 1;
    return tensor;
}

// Contiguous outputs: o [b, s_q, h_q, d_v], and lse [b, h_q, s_q] with natural logarithms.
//
// @return The output.
static inline struct amla_output amla_output_contiguous(amla_dtype dtype, void *o, float *lse,
                                                        size_t b, size_t s_q, size_t h_q,
                                                        size_t d_v)
{
    struct amla_output output = AMLA_ZERO;
    output.struct_size = (uint32_t)sizeof output;
    output.dtype = dtype;
    output.o = o;
    output.o_len = b * s_q * h_q * d_v;
    output.o_strides[0] = s_q * h_q * d_v;
    output.o_strides[1] = h_q * d_v;
    output.o_strides[2] = d_v;
    output.lse = lse;
    output.lse_len = b * h_q * s_q;
    output.lse_strides[0] = h_q * s_q;
    output.lse_strides[1] = s_q;
    output.lse_strides[2] = 1;
    return output;
}

// A dense call of MLA: one KV head, rows of AMLA_MLA_D_QK numbers whose first AMLA_MLA_D_V are the
// value. For other widths or more KV heads change d_qk, d_v and h_kv.
//
// @return The call.
static inline struct amla_call amla_call_mla(const struct amla_tensor *q,
                                             const struct amla_tensor *kv,
                                             const struct amla_output *output, size_t b,
                                             size_t s_q, size_t s_k, size_t h_q,
                                             float softmax_scale)
{
    struct amla_call call = AMLA_ZERO;
    call.struct_size = (uint32_t)sizeof call;
    call.b = b;
    call.s_q = s_q;
    call.s_k = s_k;
    call.h_q = h_q;
    call.h_kv = 1;
    call.d_qk = AMLA_MLA_D_QK;
    call.d_v = AMLA_MLA_D_V;
    call.softmax_scale = softmax_scale;
    call.q = q;
    call.kv = kv;
    call.output = output;
    return call;
}

// A detail for a function to write the reason of a refusal to.
//
// @return The detail.
static inline struct amla_error_detail amla_error_detail_init(void)
{
    struct amla_error_detail detail = AMLA_ZERO;
    detail.struct_size = (uint32_t)sizeof detail;
    return detail;
}
