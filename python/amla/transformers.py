"""Hugging Face's DeepSeek models with absorbed attention over the compressed cache: V2, V3, and V3.2 with its indices.

    from amla.transformers import patch
    patch(model)
    model.generate(...)

The model's own code still computes queries and rotary parts, V3.2's indices and the cache. The cache is the model's own, of any
kind: it has `kv_lora_rank` latent columns and `qk_rope_head_dim` rotary ones for each token, whether or not the model is patched.
Attention multiplies them as they are, where the model would expand them to keys and values of all heads first.
"""

from __future__ import annotations

import importlib
from types import TracebackType
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

import amla.torch

__all__ = ["Patch", "patch"]

_NAME = "amla"
_ATTENTIONS = [
    ("deepseek_v2", "DeepseekV2Attention"),
    ("deepseek_v3", "DeepseekV3Attention"),
    ("deepseek_v32", "DeepseekV32Attention"),
]


class Patch:
    """A patched model. `undo()`, or the end of a `with` block, makes it what it was."""

    def __init__(self, model: PreTrainedModel, attentions: list[torch.nn.Module], implementation: str) -> None:
        self._model = model
        self._attentions = attentions
        self._implementation = implementation

    def undo(self) -> None:
        """Restores the model's attention. A second time it does nothing."""
        if self._attentions:
            self._model.set_attn_implementation(self._implementation)
        for attention in self._attentions:
            del attention.expand_kv
        self._attentions = []

    def __enter__(self) -> Patch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.undo()


def patch(model: PreTrainedModel) -> Patch:
    """Has all attention of a DeepSeek model computed by `amla`, until `undo()` of the result.

    Prefill and decode, masks of padding, static caches and `generate` work as before, in FP32, BF16 and FP16. Attention
    weights aren't returned. A token that sees no key, as those of padding, has an output of 0. There is no backward pass.

    Raises:
      TypeError: the model has other attention, or `kv_b_proj` isn't a plain linear layer.
      ValueError: the model is patched already.
      ImportError: this version of transformers stores expanded keys and values.
    """
    if model.config.sub_configs:
        raise TypeError(f"{type(model).__name__} has several models: patch its language model alone")
    classes = _attention_classes()
    attentions = [module for module in model.modules() if isinstance(module, classes)]
    if not attentions:
        raise TypeError(f"{type(model).__name__} has no attention of DeepSeek-V2, V3 or V3.2")
    for attention in attentions:
        if not hasattr(attention, "expand_kv"):
            raise ImportError("transformers stores expanded keys and values: it must be 5.24 or later")
        if "expand_kv" in vars(attention):
            raise ValueError("the model is patched already")
        projection = attention.kv_b_proj
        if type(projection) is not torch.nn.Linear or projection.bias is not None:
            raise TypeError(f"kv_b_proj is a {type(projection).__name__}, not a torch.nn.Linear without bias")
    AttentionInterface.register(_NAME, _attention)
    AttentionMaskInterface.register(_NAME, _mask)
    implementation = model.config._attn_implementation
    model.set_attn_implementation(_NAME)
    for attention in attentions:
        attention.expand_kv = _unexpanded
    return Patch(model, attentions, implementation)


def _attention_classes() -> tuple[type, ...]:
    classes = []
    for model, name in _ATTENTIONS:
        try:
            module = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
        except ModuleNotFoundError:
            continue  # An older version.
        classes.append(getattr(module, name))
    return tuple(classes)


def _unexpanded(latent: torch.Tensor, k_rope: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Instead of the model's `expand_kv`: keys and values stay what the cache has."""
    return latent, k_rope


def _mask(
    *,
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int = 0,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    **arguments: Any,
) -> torch.Tensor | None:
    """Which keys each query sees: bool, `[b, 1, s_q, s_k]`; None if causal, and the last key is the last query's."""
    # The offset in a static cache is a tensor, and its last keys aren't there yet.
    ends_alike = isinstance(q_offset, int) and q_offset + q_length == kv_offset + kv_length
    return sdpa_mask(
        q_length=q_length,
        kv_length=kv_length,
        q_offset=q_offset,
        kv_offset=kv_offset,
        allow_is_causal_skip=allow_is_causal_skip and ends_alike,
        allow_is_bidirectional_skip=False,
        **arguments,
    )


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    latent: torch.Tensor,
    k_rope: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    indices: torch.Tensor | None = None,
    **arguments: Any,
) -> tuple[torch.Tensor, None]:
    """Absorbed attention, as transformers calls it.

    Args:
      query: `[b, h_q, s_q, qk_nope_head_dim + qk_rope_head_dim]`.
      latent, k_rope: the cache's rows, `[b, 1, s_k, kv_lora_rank]` and `[b, 1, s_k, qk_rope_head_dim]`.
      attention_mask: of `_mask`.
      indices: V3.2's, int32, `[b, s_q, topk]`.

    Returns:
      `[b, s_q, h_q, v_head_dim]`, and no weights.
    """
    if dropout:
        raise ValueError("attention has no dropout here: set attention_dropout to 0, or call model.eval()")
    b, h_q, s_q, _ = query.shape
    nope, rank = module.qk_nope_head_dim, module.kv_lora_rank
    to_key, to_value = module.kv_b_proj.weight.view(h_q, -1, rank).split([nope, module.v_head_dim], dim=1)
    q_nope, q_rope = query.split([nope, module.qk_rope_head_dim], dim=-1)
    # Heads outermost: a matrix product for each, with the rows of all requests.
    absorbed = torch.bmm(q_nope.transpose(0, 1).reshape(h_q, b * s_q, nope), to_key)
    out, _ = torch.ops.amla.decode(
        absorbed.view(h_q, b, s_q, rank).permute(1, 2, 0, 3),
        latent.transpose(1, 2),
        q_rope=q_rope.transpose(1, 2),
        k_rope=k_rope.transpose(1, 2),
        softmax_scale=scaling,
        **_visible_keys(attention_mask, indices, (b, s_q, latent.shape[2])),
    )
    values = torch.bmm(out.permute(2, 0, 1, 3).reshape(h_q, b * s_q, rank), to_value.transpose(1, 2))
    return values.view(h_q, b, s_q, -1).permute(1, 2, 0, 3), None


def _visible_keys(mask: torch.Tensor | None, indices: torch.Tensor | None, sizes: tuple[int, int, int]) -> dict[str, Any]:
    """The arguments of `decode` that hide keys."""
    if mask is None:
        if indices is not None:
            raise ValueError("indices need an attention_mask")
        return {"causal": True}
    if mask.dtype != torch.bool or mask.dim() != 4 or mask.shape[1] != 1:
        raise ValueError(f"attention_mask must be bool, [b, 1, s_q, s_k], but is {mask.dtype}, {list(mask.shape)}")
    visible = mask[:, 0].expand(sizes)
    if indices is None:
        return {"tail_mask": visible.contiguous()}
    # Of fewer keys than topk the indexer also names those that the query doesn't see.
    seen = visible.gather(-1, indices.long())
    return {"indices": indices.masked_fill(~seen, -1), "paged": False}
