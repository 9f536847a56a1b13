/*
 * Multi-head latent attention (MLA) by amla, as operators of a ggml graph.
 *
 * They use ggml's public custom operators, run on ggml's threads, and take all memory from the graph. The library
 * keeps no state and allocates nothing. C11 and C++.
 *
 *   plan = amla_ggml_plan(ctx, q, k, v, mask, n_threads);              once for all layers
 *   cur = amla_ggml_attn(ctx, q, k, v, plan, scale, max_bias, softcap); for each layer
 *   if (cur == NULL) cur = ggml_flash_attn_ext(ctx, q, k, v, mask, scale, max_bias, softcap);
 */
#ifndef AMLA_GGML_H
#define AMLA_GGML_H

#include "ggml.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The part of attention that all layers of a graph share: the mask translated for amla, the tasks for the threads,
 * and memory for them to work in. The mask's numbers are read when the graph is computed.
 *
 * Tensors are those of ggml_flash_attn_ext, of the first layer:
 *
 *   q     F32 [d_qk, n_tokens, n_head, n_stream], any strides
 *   k     F16, BF16, F32, Q8_0 or Q4_0 [d_qk, n_kv, 1, n_stream]
 *   v     a view of columns of k [d_v, n_kv, 1, n_stream]: the first d_v, or the last d_v where the rotary part is first
 *   mask  F16 or F32 [n_kv, n_tokens or more, 1, n_stream or 1]: 0 where a token sees a key, minus infinity elsewhere
 *
 * A token that sees no key gets zeros. Where the mask has any other number the results of all layers are NaN, and
 * amla_ggml_error() says why.
 *
 * @param ctx The graph's context.
 * @param mask Null if all tokens see all keys.
 * @param n_threads The most threads that will compute the graph; more threads don't help.
 * @return A node for amla_ggml_attn(); null if amla doesn't compute such tensors, so that the caller uses ggml's operator.
 */
struct ggml_tensor *amla_ggml_plan(struct ggml_context *ctx, struct ggml_tensor *q, struct ggml_tensor *k,
                                   struct ggml_tensor *v, struct ggml_tensor *mask, int n_threads);

/*
 * softmax(scale * q k^T + mask) v, as ggml_flash_attn_ext. Results have the error of FP32 products and sums, whatever the
 * type of the cache.
 *
 * @param plan What amla_ggml_plan() returned for tensors of these sizes and the layer's mask; may be null.
 * @param max_bias ALiBi's; not 0 isn't supported.
 * @param logit_softcap Not 0 isn't supported.
 * @return F32 [d_v, n_head, n_tokens, n_stream], contiguous; null if the caller must use ggml's operator.
 */
struct ggml_tensor *amla_ggml_attn(struct ggml_context *ctx, struct ggml_tensor *q, struct ggml_tensor *k,
                                   struct ggml_tensor *v, struct ggml_tensor *plan, float scale, float max_bias,
                                   float logit_softcap);

/*
 * Why results are NaN, when the graph has been computed.
 *
 * @return An English sentence, there as long as the plan's memory; null if all went well.
 */
const char *amla_ggml_error(const struct ggml_tensor *plan);

#ifdef __cplusplus
}
#endif

#endif
