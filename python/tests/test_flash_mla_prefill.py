"""FlashMLA's grids of sparse prefill and of ragged dense attention."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest
from optional import needs

torch = needs("torch")
flash_mla = needs("amla.flash_mla")
import oracle  # noqa: E402

D_V = 512
QUERIES = 6
"""Queries of a case that are compared with the definition."""


class Sparse(NamedTuple):
    s_q: int
    s_kv: int
    topk: int
    h_q: int
    d_qk: int
    sink: bool = False
    lengths: bool = False
    no_indices: bool = False

    @property
    def work(self) -> int:
        return self.s_q * self.topk * self.h_q


class Ragged(NamedTuple):
    s_q: int
    s_k: int
    varlen: bool
    h_q: int
    h_kv: int
    d_qk: int
    causal: bool

    @property
    def work(self) -> int:
        return self.s_q * self.s_k * self.h_q


def _cases() -> list[Sparse | Ragged]:
    flags = [False, True]
    regular = [(128, 128), (256, 256), (512, 512)]
    irregular = [(592, 128), (1840, 256), (1592, 384), (1521, 512)]
    # More indices than keys.
    beyond = [(95, 128), (153, 256), (114, 384)]
    sizes = [(s_q, *s, {}) for s in regular + irregular + beyond for s_q in [1, 62, 213]]
    features = [{"sink": sink, "lengths": lengths} for sink in flags for lengths in flags]
    sizes += [(s_q, *s, f) for s in irregular + beyond for s_q in [62, 213] for f in features[1:]]
    all_features = {"sink": True, "lengths": True}
    few = [(1, 128, 128), (1, 256, 256), (1234, 4321, 4096), (4096, 2048, 2048)]
    sizes += [(*s, {**all_features, "no_indices": True}) for s in few]
    sizes += [(s_q, *s, all_features) for s in [(32, 2048), (64, 8192)] for s_q in [1, 1024]]
    sparse = [Sparse(s_q, s_kv, topk, h_q, d_qk, **f) for s_q, s_kv, topk, f in sizes for h_q in [128, 64] for d_qk in [512, 576]]
    ragged = [
        Ragged(s, s, varlen, *heads, d_qk, causal)
        for s in [4096, 8192]
        for varlen in flags
        for heads in [(128, 128), (32, 4)]
        for d_qk in [128, 192]
        for causal in flags
    ]
    return [*sparse, *ragged]


CASES = _cases()
SAMPLE = [
    *random.Random(1).sample([c for c in CASES if isinstance(c, Sparse) and c.work <= 1 << 20], 12),
    *random.Random(2).sample([c for c in CASES if isinstance(c, Sparse) and c.lengths and c.work <= 1 << 23], 12),
    # FlashMLA has no small ones.
    *[c._replace(s_q=60 + c.s_q // 256, s_k=100 + c.s_q // 64) for c in CASES if isinstance(c, Ragged)],
]


def test_grid(case: Sparse | Ragged) -> None:
    (sparse if isinstance(case, Sparse) else ragged)(case)


def sparse(case: Sparse) -> None:
    seed = CASES.index(case)
    generator, rng = torch.Generator().manual_seed(seed), random.Random(seed)
    # FP16 too, which FlashMLA hasn't here.
    dtype = [torch.bfloat16, torch.float16][seed % 2]

    def numbers(*shape: int) -> torch.Tensor:
        return (torch.randn(shape, generator=generator) / 10 + (rng.random() - 0.5) / 10).clamp(-10, 10).to(dtype)

    q, kv = numbers(case.s_q, case.h_q, case.d_qk), numbers(case.s_kv, 1, case.d_qk)
    # Every key once, in any order; then what is no key.
    order = torch.rand(case.s_q, max(case.topk, case.s_kv), generator=generator)
    order[:, case.s_kv :] = -1
    drawn, indices = order.topk(case.topk)
    nothing = [-(2**31), -123456, -1, case.s_kv, 114514, 1919810, 2147480000, 2**31 - 1]
    nothing = torch.tensor(nothing)[torch.randint(len(nothing), indices.shape, generator=generator)]
    valid = drawn >= 0
    if case.no_indices:
        # Of some queries.
        valid &= torch.randn(case.s_q, 1, generator=generator) >= -1
    indices = indices.where(valid, nothing).int()
    sink = topk_length = None
    if case.sink:
        sink, ends = torch.randn(2, case.h_q, generator=generator)
        sink = sink.masked_fill(ends > 0.5, torch.inf).masked_fill(ends < -0.5, -torch.inf)
    if case.lengths:
        topk_length = torch.randint(case.topk + 1, (case.s_q,), generator=generator, dtype=torch.int32)
        valid &= torch.arange(case.topk) < topk_length[:, None]
    q, kv, indices = (oracle.with_gaps(x, fill) for x, fill in ((q, torch.nan), (kv, torch.nan), (indices, 0)))
    results = flash_mla.flash_mla_sparse_fwd(q, kv, indices.unsqueeze(1), 0.5, attn_sink=sink, topk_length=topk_length)
    out, max_logits, lse = results
    assert out.dtype == dtype and out.shape == (case.s_q, case.h_q, D_V) and out.is_contiguous()
    for x in max_logits, lse:
        assert x.dtype == torch.float32 and x.shape == (case.s_q, case.h_q) and x.is_contiguous()
    compared = sorted({0, case.s_q - 1, *rng.sample(range(case.s_q), min(case.s_q, QUERIES))})
    k = kv[indices[compared].where(valid[compared], 0).long()]
    want_out, want_lse, largest = oracle.attend(q[compared], k, k[..., :D_V], 0.5, valid[compared], sink)
    oracle.assert_close("out", out[compared], want_out, 8e-4, 3.01 / 128, 7e-6)
    oracle.assert_close("max_logits", max_logits[compared].T, largest, 1e-6, 2.01 / 65536)
    oracle.assert_close("lse", lse[compared].T, want_lse, 1e-6, 2.01 / 65536)


def ragged(case: Ragged) -> None:
    seed = case.s_q + case.d_qk + case.h_q
    generator, rng = torch.Generator().manual_seed(seed), random.Random(seed)
    dtype = torch.float16 if case.causal else torch.bfloat16
    b, d_v, scale = 2, 128, (case.d_qk + 100) ** -0.5
    lengths_q, lengths_k = [case.s_q] * b, [case.s_k] * b
    if case.varlen:
        lengths_q = [max(int(rng.normalvariate(n, n / 2)), 1) for n in lengths_q]
        lengths_k = [max(int(rng.normalvariate(n, n / 2)), n_q) for n, n_q in zip(lengths_k, lengths_q)]
    begins_q, begins_k = ([0, *torch.tensor(lengths).cumsum(0).tolist()] for lengths in (lengths_q, lengths_k))

    def numbers(*shape: int) -> torch.Tensor:
        return oracle.with_gaps((torch.randn(shape, generator=generator) / 10).to(dtype), torch.nan)

    q = numbers(begins_q[-1], case.h_q, case.d_qk)
    k, v = numbers(begins_k[-1], case.h_kv, case.d_qk), numbers(begins_k[-1], case.h_kv, d_v)
    out, lse = flash_mla.flash_attn_varlen_func(
        q,
        k,
        v,
        torch.tensor(begins_q, dtype=torch.int32),
        torch.tensor(begins_k, dtype=torch.int32),
        max(lengths_q),
        max(lengths_k),
        softmax_scale=scale,
        causal=case.causal,
        is_varlen=case.varlen,
    )
    assert out.dtype == dtype and out.shape == (begins_q[-1], case.h_q, d_v)
    assert lse.dtype == torch.float32 and lse.shape == (begins_q[-1], case.h_q)
    for request in range(b):
        rows_q, rows_k = (slice(begins[request], begins[request + 1]) for begins in (begins_q, begins_k))
        n_q, n_k = lengths_q[request], lengths_k[request]
        positions = torch.tensor(sorted({0, n_q - 1, *rng.sample(range(n_q), min(n_q, QUERIES))}))
        visible = oracle.causal(n_q, n_k)[positions] if case.causal else torch.ones(len(positions), n_k, dtype=torch.bool)
        want_out, want_lse, _ = oracle.attend(q[rows_q][positions], k[rows_k], v[rows_k], scale, visible)
        oracle.assert_close("out", out[rows_q][positions], want_out, 1e-3, 8.01 / 128, 7e-6)
        oracle.assert_close("lse", lse[rows_q][positions].T, want_lse, 1e-6, 2.01 / 65536)


def test_a_gradient_is_refused() -> None:
    x = torch.ones(1, 1, 128, requires_grad=True)
    begins = torch.tensor([0, 1], dtype=torch.int32)
    with pytest.raises(NotImplementedError, match="backward"):
        flash_mla.flash_attn_varlen_func(x, x, x, begins, begins, 1, 1)
    with torch.no_grad():
        out, lse = flash_mla.flash_attn_varlen_func(x, x, x, begins, begins, 1, 1)
    assert torch.equal(out, x) and lse.shape == (1, 1)


def test_dropout_is_refused() -> None:
    x, begins = torch.ones(1, 1, 128), torch.tensor([0, 1], dtype=torch.int32)
    with pytest.raises(ValueError, match="dropout_p is 0.5"):
        flash_mla.flash_attn_varlen_func(x, x, x, begins, begins, 1, 1, dropout_p=0.5)
