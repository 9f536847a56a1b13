"""FlashMLA's Python interface over `amla`, for torch tensors on the CPU.

    from amla.flash_mla import flash_mla_with_kvcache, get_mla_metadata

Signatures, shapes, results and conventions are those of FlashMLA 1.0.0. More is allowed here: any page size, all widths and
numbers of heads of `amla.decode`, sparse attention over BF16 and FP16 caches, dense attention over FP8 caches. There is no
backward pass.

A query that sees no key has an output of 0 and an lse of infinity. lse is natural, and leaves sinks out.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

import amla.torch

__all__ = [
    "FlashMLASchedMeta",
    "flash_attn_varlen_func",
    "flash_mla_sparse_fwd",
    "flash_mla_with_kvcache",
    "get_mla_metadata",
]


@dataclasses.dataclass
class FlashMLASchedMeta:
    """The sizes of the first call of `flash_mla_with_kvcache` with it. Later calls must have the same."""

    config: dict[str, Any] | None = None


def get_mla_metadata(*args: Any, **kwargs: Any) -> tuple[FlashMLASchedMeta, None]:
    """An empty `FlashMLASchedMeta`, and None. Arguments are ignored, as by FlashMLA."""
    return FlashMLASchedMeta(), None


def flash_mla_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    block_table: torch.Tensor | None,
    cache_seqlens: torch.Tensor | None,
    head_dim_v: int,
    tile_scheduler_metadata: FlashMLASchedMeta,
    num_splits: None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    is_fp8_kvcache: bool = False,
    indices: torch.Tensor | None = None,
    attn_sink: torch.Tensor | None = None,
    extra_k_cache: torch.Tensor | None = None,
    extra_indices_in_kvcache: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
    extra_topk_length: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Decodes over a paged cache: dense attention, or sparse with `indices`.

    Args:
      q: BF16 or FP16, `[b, s_q, h_q, d]`, d 576 or 512.
      k_cache: of q's dtype, `[pages, page_size, h_kv, d]`. With `is_fp8_kvcache` bytes (`float8_e4m3fn`, `uint8` or `int8`):
        `[pages, page_size, 1, 656]`, rows of FP8 for d 576, or `[pages, page_size, 1, 584]`, pages of MODEL1 for d 512.
      block_table: int32, `[b, max_blocks]`, the pages of each request. Sparse attention doesn't use it.
      cache_seqlens: int32, `[b]`, the keys of each request. Sparse attention doesn't use it.
      head_dim_v: the width of values, 512.
      tile_scheduler_metadata: of `get_mla_metadata`.
      num_splits: None.
      softmax_scale: the factor on scores, by default `d ** -0.5`.
      causal: query j of s_q sees the first `len - (s_q - 1 - j)` keys. Not with `indices`.
      is_fp8_kvcache: whether the caches have bytes.
      indices: int32, `[b, s_q, topk]`, `page * page_size + key in the page`. Negative ones, and those beyond the cache, are
        skipped.
      attn_sink: float32, `[h_q]`, the natural logarithm of another term of each head's sum.
      extra_k_cache, extra_indices_in_kvcache: a second cache, and the keys of it, with the same layouts.
      topk_length, extra_topk_length: int32, `[b]`: how many of the indices count.

    Returns:
      out of q's dtype, `[b, s_q, h_q, head_dim_v]`, and lse, float32, `[b, h_q, s_q]`.

    Raises:
      ValueError: arguments don't fit each other, or don't fit the first call with the same metadata.
      TypeError: `tile_scheduler_metadata` isn't of `get_mla_metadata`.
    """
    if num_splits is not None:
        raise ValueError("num_splits must be None: get_mla_metadata() returns it")
    sparse = {
        "topk_length": topk_length,
        "extra_k_cache": extra_k_cache,
        "extra_indices_in_kvcache": extra_indices_in_kvcache,
        "extra_topk_length": extra_topk_length,
    }
    if indices is not None:
        if causal:
            raise ValueError("causal must be False with indices")
        where: dict[str, Any] = {"indices": indices, "attn_sink": attn_sink, "paged": True, **sparse}
        where["extra_k_cache"] = _cache("extra_k_cache", extra_k_cache, q, is_fp8_kvcache)
    else:
        if block_table is None or cache_seqlens is None:
            raise ValueError("block_table and cache_seqlens must be given without indices")
        for name, argument in [("attn_sink", attn_sink), *sparse.items()]:
            if argument is not None:
                raise ValueError(f"{name} must be None without indices")
        where = {"block_table": block_table, "cache_seqlens": cache_seqlens, "causal": causal}
    cache = _cache("k_cache", k_cache, q, is_fp8_kvcache)
    config = _checked_config(
        tile_scheduler_metadata,
        b=q.shape[0],
        s_q=q.shape[1],
        h_q=q.shape[2],
        page_size=k_cache.shape[1],
        h_kv=k_cache.shape[2],
        causal=causal,
        is_fp8_kvcache=is_fp8_kvcache,
        topk=None if indices is None else indices.shape[-1],
        extra_page_size=None if extra_k_cache is None else extra_k_cache.shape[1],
        extra_topk=None if extra_indices_in_kvcache is None else extra_indices_in_kvcache.shape[-1],
    )
    results = torch.ops.amla.decode(q, cache, head_dim_v=head_dim_v, softmax_scale=softmax_scale, **where)
    tile_scheduler_metadata.config = config
    return results


def _cache(name: str, cache: torch.Tensor | None, q: torch.Tensor, is_fp8_kvcache: bool) -> torch.Tensor | None:
    """A cache as `amla.decode` takes it."""
    if cache is None:
        return None
    if not is_fp8_kvcache:
        if cache.dtype != q.dtype:
            raise ValueError(f"{name} has {cache.dtype}, q {q.dtype}: they must be the same without is_fp8_kvcache")
        return cache
    if cache.dtype not in (torch.float8_e4m3fn, torch.uint8, torch.int8):
        raise ValueError(f"{name} has {cache.dtype}: with is_fp8_kvcache it must be float8_e4m3fn, uint8 or int8")
    return cache.view(torch.uint8)


def _checked_config(metadata: FlashMLASchedMeta, **config: Any) -> dict[str, Any]:
    """The sizes of a call, which must be those of the first call with this metadata."""
    if not isinstance(metadata, FlashMLASchedMeta):
        raise TypeError("tile_scheduler_metadata must be the FlashMLASchedMeta of get_mla_metadata()")
    for name, first in (metadata.config or {}).items():
        if config[name] != first:
            raise ValueError(f"{name} is {config[name]}, but was {first} in the first call with this tile_scheduler_metadata")
    return config


def flash_mla_sparse_fwd(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    sm_scale: float,
    d_v: int = 512,
    attn_sink: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sparse attention of a prefill.

    Args:
      q: `[s_q, h_q, d]`.
      kv: `[s_kv, h_kv, d]`, of the same dtype.
      indices: int32, `[s_q, h_kv, topk]`, the keys of each query. Negative ones and those from s_kv on are skipped.
      sm_scale: the factor on scores.
      d_v: the width of values, the first columns of kv.
      attn_sink: float32, `[h_q]`, the natural logarithm of another term of each head's sum.
      topk_length: int32, `[s_q]`: how many of the indices count.

    Returns:
      out of q's dtype, `[s_q, h_q, d_v]`.
      max_logits, float32, `[s_q, h_q]`: each row's largest score, minus infinity without keys.
      lse, float32, `[s_q, h_q]`.
    """
    # Each query is a request of one position, and kv one page: lse is then [s_q, h_q, 1], contiguous.
    out, lse, max_logits = torch.ops.amla.decode_with_max_logits(
        q.unsqueeze(1),
        kv.unsqueeze(0),
        indices=indices.unsqueeze(1),
        softmax_scale=sm_scale,
        head_dim_v=d_v,
        attn_sink=attn_sink,
        topk_length=topk_length,
        paged=True,
    )
    return out.squeeze(1), max_logits.squeeze(2), lse.squeeze(2)


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_qo: torch.Tensor,
    cu_seqlens_kv: torch.Tensor,
    max_seqlen_qo: int,
    max_seqlen_kv: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    deterministic: bool = False,
    is_varlen: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Dense attention of ragged queries over ragged keys with values of their own, forward only.

    Args:
      q: `[tokens_q, h_q, d_qk]`.
      k: `[tokens_kv, h_kv, d_qk]`, of the same dtype.
      v: `[tokens_kv, h_kv, d_v]`, of the same dtype.
      cu_seqlens_qo, cu_seqlens_kv: int32, `[b + 1]`, where each request's tokens begin.
      max_seqlen_qo, max_seqlen_kv, is_varlen: not used; the lengths are those of `cu_seqlens`.
      dropout_p: 0.
      softmax_scale: the factor on scores, by default `d_qk ** -0.5`.
      causal: a request's query j of n sees its first `len - (n - 1 - j)` keys.
      deterministic: not used; results always are deterministic.

    Returns:
      out of q's dtype, `[tokens_q, h_q, d_v]`, and lse, float32, `[tokens_q, h_q]`, whose memory is `[h_q, tokens_q]`.

    Raises:
      ValueError: arguments don't fit each other.
      NotImplementedError: a gradient would be needed.
    """
    if dropout_p != 0.0:
        raise ValueError(f"dropout_p is {dropout_p}, not 0")
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        raise NotImplementedError("there is no backward pass: call it under torch.no_grad()")
    out, lse = torch.ops.amla.decode(
        q, k, v=v, cu_seqlens_q=cu_seqlens_qo, cu_seqlens_k=cu_seqlens_kv, softmax_scale=softmax_scale, causal=causal
    )
    return out, lse.transpose(0, 1)
