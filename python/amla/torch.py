"""`decode` and `merge` as PyTorch's operators `torch.ops.amla.*`: `torch.compile(fullgraph=True)` takes them in.

    import amla.torch
    out, lse = torch.ops.amla.decode(q, kv, cache_seqlens=lens, causal=True)

| operator | results |
|---|---|
| `decode(q, kv, ...)` | out, lse |
| `decode_with_max_logits(q, kv, ...)` | out, lse, max_logits |
| `decode_out(q, kv, ..., out, lse)` | none; it writes `out` and `lse` |
| `merge(outs, lses, ...)` | out, lse |

Arguments, shapes and results are those of `amla.decode` and `amla.merge`, for tensors on the CPU. `kv_format` and `kv_scale`, the
arguments of `amla.Rows`, say how rows of `kv` are stored. There is no backward pass: PyTorch warns where one is needed.
"""

from __future__ import annotations

from typing import Any

import torch

import amla

__all__: list[str] = []

_ARGUMENTS = """
    Tensor q, Tensor kv, *, Tensor? v=None, Tensor? q_rope=None, Tensor? k_rope=None, int? head_dim_v=None,
    int value_offset=0, float? softmax_scale=None, bool causal=False, int? window=None, Tensor? tail_mask=None,
    Tensor? cache_seqlens=None, Tensor? block_table=None, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None,
    Tensor? indices=None, Tensor? topk_length=None, Tensor? extra_k_cache=None, Tensor? extra_indices_in_kvcache=None,
    Tensor? extra_topk_length=None, bool? paged=None, Tensor? attn_sink=None, int? split_keys=None,
    str precision="bf16", str inputs="as_given", str rescale="exact", str? backend=None, ScalarType? out_dtype=None,
    str lse_base="e", float? empty_lse=None, int? threads=None, str? kv_format=None, Tensor? kv_scale=None
"""
# Options of a schema have no infinity as default: None stands for it, and isn't passed on.

_MODEL1_BYTES = 584
_ROPE = 64


def _decode(
    q: torch.Tensor,
    kv: torch.Tensor,
    *,
    kv_format: str | None = None,
    kv_scale: torch.Tensor | None = None,
    **options: Any,
):
    if q.element_size() == 1:
        raise ValueError("q has rows of bytes, which amla.decode takes, but no operator")
    if kv_format is not None:
        kv = amla.Rows(kv, kv_format, kv_scale)
    elif kv_scale is not None:
        raise ValueError("kv_scale needs kv_format")
    return amla.decode(q, kv, **options)


def _decode_with_max_logits(q: torch.Tensor, kv: torch.Tensor, **options: Any):
    return _decode(q, kv, max_logits=True, **options)


def _decode_out(q: torch.Tensor, kv: torch.Tensor, **options: Any) -> None:
    _decode(q, kv, **options)


def _value_width(q: torch.Tensor, kv: torch.Tensor, options: dict[str, Any]) -> int:
    """`head_dim_v`, by default as `amla.decode` has it."""
    if (width := options.get("head_dim_v")) is not None:
        return width
    if (v := options.get("v")) is not None:
        return v.shape[-1]
    if options.get("k_rope") is not None:
        return q.shape[-1]
    bytes_of_model1 = kv.shape[-1] == _MODEL1_BYTES and kv.element_size() == 1
    return q.shape[-1] if bytes_of_model1 else q.shape[-1] - _ROPE


def _decode_fake(q: torch.Tensor, kv: torch.Tensor, **options: Any):
    *positions, h_q, _ = q.shape
    out = q.new_empty((*positions, h_q, _value_width(q, kv, options)), dtype=options.get("out_dtype") or q.dtype)
    # [b, h_q, s_q], [h_q, tokens].
    lse = q.new_empty((*positions[:-1], h_q, positions[-1]), dtype=torch.float32)
    return out, lse


def _decode_with_max_logits_fake(q: torch.Tensor, kv: torch.Tensor, **options: Any):
    out, lse = _decode_fake(q, kv, **options)
    return out, lse, torch.empty_like(lse)


def _decode_out_fake(q: torch.Tensor, kv: torch.Tensor, **options: Any) -> None:
    pass


def _merge(outs: list[torch.Tensor], lses: list[torch.Tensor], **options: Any):
    return amla.merge(outs, lses, **options)


def _merge_fake(outs: list[torch.Tensor], lses: list[torch.Tensor], **options: Any):
    return torch.empty_like(outs[0]), torch.empty_like(lses[0])


# Of the ways to register an operator this one costs the least per call: no wrapper lies between the dispatcher and the function.
_library = torch.library.Library("amla", "DEF")
for _name, _schema, _function, _fake in [
    ("decode", f"({_ARGUMENTS}) -> (Tensor, Tensor)", _decode, _decode_fake),
    (
        "decode_with_max_logits",
        f"({_ARGUMENTS}) -> (Tensor, Tensor, Tensor)",
        _decode_with_max_logits,
        _decode_with_max_logits_fake,
    ),
    ("decode_out", f"({_ARGUMENTS}, Tensor(a!) out, Tensor(b!) lse) -> ()", _decode_out, _decode_out_fake),
    (
        "merge",
        '(Tensor[] outs, Tensor[] lses, *, str lse_base="e", float? empty_lse=None) -> (Tensor, Tensor)',
        _merge,
        _merge_fake,
    ),
]:
    _library.define(_name + _schema, tags=(torch.Tag.needs_exact_strides,))
    _library.impl(_name, _function, "CPU")
    torch.library.register_fake(f"amla::{_name}", _fake, lib=_library)
