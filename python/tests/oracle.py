"""Attention by its definition in FP64, and FlashMLA's limits on what is off."""

from __future__ import annotations

import torch


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    visible: torch.Tensor,
    sink: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """O, lse and the largest scores of one request, in FP64.

    Args:
      q: `[s_q, h_q, d_qk]`.
      k, v: `[s_k, h_kv, d_qk]` and `[s_k, h_kv, d_v]`; or `[s_q, s_k, h_kv, ...]` with other keys for each query, of which hidden
        ones may be NaN.
      visible: bool, `[s_q, s_k]`.
      sink: `[h_q]`.

    Returns:
      `[s_q, h_q, d_v]`, `[h_q, s_q]`, `[h_q, s_q]`. A query that sees no key has 0, infinity and minus infinity.
    """
    s_q, h_q, _ = q.shape
    s_k, h_kv = visible.shape[1], k.shape[-2]
    keys = "kh" if k.dim() == 3 else "qkh"
    q, k, v = q.double().view(s_q, h_kv, h_q // h_kv, -1), k.double(), v.double()
    if keys == "qkh":
        hidden = ~visible[:, :, None, None]
        k, v = k.masked_fill(hidden, 0), v.masked_fill(hidden, 0)
    scores = torch.einsum(f"qhgd,{keys}d->hgqk", q, k).reshape(h_q, s_q, s_k) * scale
    scores = scores.masked_fill(~visible, -torch.inf)
    largest = scores.amax(-1) if s_k else scores.new_full((h_q, s_q), -torch.inf)
    lse = scores.logsumexp(-1)
    total = lse if sink is None else torch.logaddexp(lse, sink.double()[:, None])
    empty = lse == -torch.inf
    weights = torch.exp(scores - total.masked_fill(empty, 0)[..., None])
    weights = weights.view(h_kv, h_q // h_kv, s_q, s_k)
    out = torch.einsum(f"hgqk,{keys}d->qhgd", weights, v).reshape(s_q, h_q, -1)
    return out, lse.masked_fill(empty, torch.inf), largest


def causal(s_q: int, s_k: int) -> torch.Tensor:
    """Which of s_k keys each of the last s_q queries sees."""
    return torch.ones(s_q, s_k, dtype=torch.bool).tril(s_k - s_q)


def assert_close(name: str, got: torch.Tensor, want: torch.Tensor, absolute: float, relative: float, cosine: float = 1.0) -> None:
    """FlashMLA's comparison: each number within either limit, and all of them within a cosine difference.

    NaN and infinities must be the same. `cosine` is the limit on `1 - 2 a.b / (a.a + b.b)`.
    """
    got, want = got.double(), want.double()
    assert got.shape == want.shape, name
    assert not want.isnan().any(), f"{name}: the oracle has NaN"
    infinite = want.isinf()
    assert torch.equal(got[infinite], want[infinite]), f"{name}: infinities differ"
    got, want = got[~infinite], want[~infinite]
    off = (got - want).abs()
    right = (off < absolute) | (off < relative * (want.abs() + 1e-6))
    assert right.all(), f"{name}: {int((~right).sum())} of {right.numel()} numbers off, the worst by {off.max()}"
    norms = float((got * got + want * want).sum())
    difference = 1 - 2 * float((got * want).sum()) / norms if norms > 1e-12 else 0.0
    assert difference <= cosine, f"{name}: cosine difference {difference}"


def with_gaps(x: torch.Tensor, fill: float | int) -> torch.Tensor:
    """The same numbers in memory that has others between its rows."""
    wider = torch.full((*x.shape[:-1], x.shape[-1] + 16), fill, dtype=x.dtype)
    wider[..., : x.shape[-1]] = x
    return wider[..., : x.shape[-1]]
