"""FlashMLA's grid of dense decoding: its shapes, paged caches with poisoned tails, and limits, in BF16 and FP16."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest
from optional import needs

torch = needs("torch")
flash_mla = needs("amla.flash_mla")
import oracle  # noqa: E402

D_QK, D_V, PAGE = 576, 512, 64
REQUESTS = 3
"""Requests of a case that are compared; the definition takes far longer than the call."""


class Case(NamedTuple):
    b: int
    s_q: int
    s_k: int
    h_q: int
    h_kv: int
    varlen: bool
    causal: bool
    zero_lengths: bool
    dtype: str


def _cases() -> list[Case]:
    flags = [False, True]
    sizes = [
        (b, s_q, s_k, h_q, h_kv, varlen, causal, False)
        for b in [1, 2, 6, 64]
        for s_q in [1, 2, 4]
        for s_k in [20, 140, 4096]
        for h_q in [1, 3, 9, 63, 64, 126, 128]
        for h_kv in [1, 2, 3, 8]
        for varlen in flags
        for causal in flags
        if h_q % h_kv == 0
    ]
    # Some requests have no keys.
    sizes += [
        (128, 2, 4096, h_q, h_kv, True, causal, True)
        for h_q in [1, 3, 9, 63, 64, 126, 128]
        for h_kv in [1, 2, 3, 8]
        for causal in flags
        if h_q % h_kv == 0
    ]
    return [Case(*size, dtype) for size in sizes for dtype in ["bfloat16", "float16"]]


CASES = _cases()
SAMPLE = [
    *random.Random(1).sample([c for c in CASES if c.b * c.s_k <= 900], 40),
    *random.Random(2).sample([c for c in CASES if c.b <= 2 and c.s_k == 4096], 5),
    *[c._replace(b=12, s_k=300) for c in random.Random(3).sample([c for c in CASES if c.zero_lengths], 6)],
]


def test_grid(case: Case) -> None:
    seed = CASES.index(case) if case in CASES else case.h_q
    generator, rng = torch.Generator().manual_seed(seed), random.Random(seed)
    dtype = getattr(torch, case.dtype)

    def numbers(*shape: int) -> torch.Tensor:
        return (torch.randn(shape, generator=generator) / 10).clamp(-1, 1).to(dtype)

    lengths = [case.s_k] * case.b
    if case.varlen:
        lengths = [max(int(rng.normalvariate(case.s_k, case.s_k / 2)), case.s_q) for _ in lengths]
    if case.zero_lengths:
        lengths = [length * rng.randrange(2) for length in lengths]
    q = numbers(case.b, case.s_q, case.h_q, D_QK)
    # Keys may come more than once. Their places matter, not their numbers.
    keys = numbers(5000, case.h_kv, D_QK)
    used = [-(-length // PAGE) for length in lengths]
    free = torch.randperm(sum(used) + 2, generator=generator).tolist()
    cache = torch.full((len(free), PAGE, case.h_kv, D_QK), torch.nan, dtype=dtype)
    block_table = torch.empty(case.b, max(used) + 1, dtype=torch.int32)
    # Entries that no key needs name no page.
    block_table[:, ::2], block_table[:, 1::2] = 2147480000, -1
    starts = [rng.randrange(len(keys)) for _ in lengths]
    for request, (length, start) in enumerate(zip(lengths, starts)):
        rows = keys[(start + torch.arange(length)) % len(keys)]
        for block in range(used[request]):
            page = free.pop()
            block_table[request, block] = page
            part = rows[block * PAGE : (block + 1) * PAGE]
            cache[page, : len(part)] = part
    metadata, num_splits = flash_mla.get_mla_metadata()
    out, lse = flash_mla.flash_mla_with_kvcache(
        q,
        cache,
        block_table,
        torch.tensor(lengths, dtype=torch.int32),
        D_V,
        metadata,
        num_splits,
        causal=case.causal,
    )
    assert out.dtype == dtype and out.shape == (case.b, case.s_q, case.h_q, D_V)
    assert lse.dtype == torch.float32 and lse.shape == (case.b, case.h_q, case.s_q)
    assert out.isfinite().all() and not lse.isnan().any()
    compared = sorted({0, case.b - 1, *rng.sample(range(case.b), min(case.b, REQUESTS - 2))})
    wanted = []
    for request in compared:
        k = keys[(starts[request] + torch.arange(lengths[request])) % len(keys)]
        visible = torch.ones(case.s_q, len(k), dtype=torch.bool)
        if case.causal:
            visible = oracle.causal(case.s_q, len(k))
        wanted.append(oracle.attend(q[request], k, k[..., :D_V], D_QK**-0.5, visible)[:2])
    want_out, want_lse = map(torch.stack, zip(*wanted))
    oracle.assert_close("out", out[compared], want_out, 8e-4, 2.01 / 128, 5e-6)
    oracle.assert_close("lse", lse[compared], want_lse, 1e-6, 8.01 / 65536)


def small_call(**changes: object) -> tuple[torch.Tensor, torch.Tensor]:
    """Two requests over three pages, with arguments replaced."""
    arguments = {
        "q": torch.ones(2, 1, 4, D_QK, dtype=torch.bfloat16),
        "k_cache": torch.ones(3, PAGE, 1, D_QK, dtype=torch.bfloat16),
        "block_table": torch.tensor([[0, 1], [2, -1]], dtype=torch.int32),
        "cache_seqlens": torch.tensor([70, 3], dtype=torch.int32),
        "head_dim_v": D_V,
        "tile_scheduler_metadata": flash_mla.get_mla_metadata()[0],
        **changes,
    }
    return flash_mla.flash_mla_with_kvcache(**arguments)


def test_width_512_takes_all_columns_as_values() -> None:
    cache = torch.arange(3.0).view(3, 1, 1, 1).expand(3, PAGE, 1, 512).bfloat16()
    out, _ = small_call(q=torch.zeros(2, 1, 4, 512, dtype=torch.bfloat16), k_cache=cache)
    # 64 keys of page 0, 6 of page 1; 3 of page 2.
    assert torch.equal(out[0], torch.full((1, 4, 512), 6 / 70).bfloat16())
    assert torch.equal(out[1], torch.full((1, 4, 512), 2.0).bfloat16())


def test_metadata_holds_for_calls_alike() -> None:
    metadata, none = flash_mla.get_mla_metadata("ignored", num_heads_k=1)
    assert none is None
    first = small_call(tile_scheduler_metadata=metadata)
    again = small_call(tile_scheduler_metadata=metadata)
    assert all(map(torch.equal, first, again))
    with pytest.raises(ValueError, match="causal is True, but was False"):
        small_call(tile_scheduler_metadata=metadata, causal=True)
    with pytest.raises(ValueError, match="h_q is 2, but was 4"):
        small_call(tile_scheduler_metadata=metadata, q=torch.ones(2, 1, 2, D_QK, dtype=torch.bfloat16))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"tile_scheduler_metadata": None}, TypeError, "get_mla_metadata"),
        ({"num_splits": torch.zeros(3)}, ValueError, "num_splits"),
        ({"block_table": None}, ValueError, "block_table"),
        ({"cache_seqlens": None}, ValueError, "cache_seqlens"),
        ({"attn_sink": torch.zeros(4)}, ValueError, "attn_sink"),
        ({"topk_length": torch.ones(2, dtype=torch.int32)}, ValueError, "topk_length"),
        ({"is_fp8_kvcache": True}, ValueError, "k_cache has torch.bfloat16"),
        ({"k_cache": torch.ones(3, PAGE, 1, D_QK, dtype=torch.float16)}, ValueError, "k_cache has torch.float16"),
        ({"cache_seqlens": torch.tensor([129, 3], dtype=torch.int32)}, ValueError, "129"),
        ({"indices": torch.zeros(2, 1, 5, dtype=torch.int32), "causal": True}, ValueError, "causal"),
    ],
)
def test_refusals(changes: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        small_call(**changes)


def test_a_refused_first_call_leaves_no_trace_in_the_metadata() -> None:
    metadata, _ = flash_mla.get_mla_metadata()
    with pytest.raises(ValueError):
        small_call(tile_scheduler_metadata=metadata, causal=True, cache_seqlens=torch.tensor([129, 3], dtype=torch.int32))
    small_call(tile_scheduler_metadata=metadata)
