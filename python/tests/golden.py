"""Attention by its definition, in numpy's FP64."""

from __future__ import annotations

from typing import Any

import numpy as np
from ml_dtypes import bfloat16


def numbers(rng: np.random.Generator, *dims: int, dtype: Any = bfloat16) -> np.ndarray:
    """Normal numbers of a dtype."""
    return rng.standard_normal(dims, np.float32).astype(dtype)


def rows(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, visible: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """O and lse of one request's queries `[s_q, h_q, d]` over keys `[s_k, h_kv, d]`; `visible` is `[s_q, s_k]`."""
    s_q, h_q, _ = q.shape
    s_k, h_kv, _ = k.shape
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, h_q // h_kv, axis=1) for x in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) * scale
    if visible is not None:
        scores = np.where(visible[None], scores, -np.inf)
    largest = scores.max(-1, initial=-np.inf)
    weights = np.exp(scores - np.where(np.isinf(largest), 0, largest)[..., None])
    total = weights.sum(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        lse = np.where(total > 0, np.log(total) + largest, np.inf)
        out = np.einsum("hqk,khd->qhd", weights, v) / total.T[..., None]
    return np.nan_to_num(out), lse


def dense(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, visible: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """The same of a batch; `visible` has a mask for each request, or is None."""
    masks = [None] * len(q) if visible is None else visible
    results = [rows(*request, scale, mask) for *request, mask in zip(q, k, v, masks)]
    return np.stack([out for out, _ in results]), np.stack([lse for _, lse in results])


def causal(s_q: int, s_k: int) -> np.ndarray:
    """Which of s_k keys each of the last s_q queries sees."""
    return np.tril(np.ones((s_q, s_k), bool), s_k - s_q)


def assert_close(got: Any, want: np.ndarray, tolerance: float = 4e-3) -> None:
    """Relative Frobenius error. BF16 outputs and probabilities have 8 bits."""
    got = np.asarray(got).astype(np.float64)
    assert got.shape == want.shape
    finite = np.isfinite(want)
    assert (got[~finite] == want[~finite]).all()
    error = np.linalg.norm(got[finite] - want[finite]) / max(np.linalg.norm(want[finite]), 1e-30)
    assert error < tolerance, error
