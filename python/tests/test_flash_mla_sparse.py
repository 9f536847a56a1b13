"""FlashMLA's grid of sparse decoding: FP8 rows and MODEL1 pages with poison where no key is chosen, sinks, a second cache."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest
from optional import needs

torch = needs("torch")
flash_mla = needs("amla.flash_mla")
import amla  # noqa: E402
import oracle  # noqa: E402

D_V = 512
REQUESTS = 2
"""Requests of a case that are compared with the definition."""
POISON = 0xFF
"""This byte over and over is NaN in E4M3, E8M0, BF16 and FP32."""
NO_KEYS = [-1, -123456, -(2**31), 2147480000, 2**31 - 1]


class Cache(NamedTuple):
    s_k: int
    topk: int
    page_size: int


class Case(NamedTuple):
    b: int
    h_q: int
    s_q: int
    d_qk: int
    varlen: bool
    cache: Cache
    extra: Cache | None = None
    topk_lengths: bool = False
    extra_topk_lengths: bool = False
    sink: bool = True
    no_indices: bool = False
    zero_lengths: bool = False


def _features() -> list[tuple[int, bool, bool, bool]]:
    """d_qk, and whether there are a second cache, lengths in it, and lengths in the first."""
    flags = [False, True]
    model1 = [(512, *f) for f in [(False, False), (True, False), (True, True)]]
    return [(576, False, False, False), *[(*m, lengths) for m in model1 for lengths in flags]]


def _cases() -> list[Case]:
    sizes = [(512, 64, 2), (512, 64, 64), (512, 64, 69), (1024, 576, 2), (1024, 576, 61)]
    sizes += [(2046, 2048, 2), (2046, 2048, 64), (2046, 2048, 576)]
    corners = [(512, 64, 61), (650, 576, 53)]
    flags = [True, False]
    rarities = [(sink, none, zero) for none in flags for zero in flags for sink in flags if none or zero or sink]
    cases = []
    for d_qk, second, extra_lengths, lengths in _features():
        for caches, positions, oddities in [(sizes, [1, 3], [(True, False, False)]), (corners, [3], rarities)]:
            cases += [
                Case(b, h_q, s_q, d_qk, varlen, Cache(*cache), extra and Cache(*extra), lengths, extra_lengths, *oddity)
                for h_q in [64, 128]
                for cache in caches
                for extra in (caches if second else [None])
                for b in [4, 74, 321]
                for s_q in positions
                for varlen in ([True, False] if b == 74 and not lengths and not extra_lengths else [True])
                for oddity in oddities
            ]
    return cases


CASES = _cases()


def _sample() -> list[Case]:
    """Four cases of each combination of features, with few requests."""
    cases = []
    for features in _features():
        alike = [c for c in CASES if c.b == 4 and (c.d_qk, c.extra is not None, c.extra_topk_lengths, c.topk_lengths) == features]
        cases += random.Random(1).sample(alike, 4)
    return cases


SAMPLE = _sample()


ROWS = 997
"""Slot i of a cache has row i modulo this number. Places of keys matter, not their numbers."""


def quantized(rows: torch.Tensor, pages: int, page_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A cache `[pages, page_size, 1, bytes]` in memory with gaps between pages, and its rows' numbers, `[ROWS, d]`."""
    d = rows.shape[-1]
    stored = amla.encode(rows.view(ROWS, 1, 1, d), "fp8" if d == 576 else "model1").data.view(torch.uint8).view(ROWS, -1)
    width = stored.shape[-1]
    # FlashMLA's: a row more in each page of FP8 rows, MODEL1 pages of a multiple of 576 bytes.
    stride = (page_size + 1) * width if d == 576 else -(-page_size * width // 576) * 576
    memory = torch.full((pages, stride), POISON, dtype=torch.uint8)
    cache = memory.as_strided((pages, page_size, 1, width), (stride, width, width, 1))
    for part, begin in parts(cache):
        part.copy_(stored[:, begin : begin + part.shape[-1]][torch.arange(pages * page_size) % ROWS].view(part.shape))
    return cache, dequantized(stored)


def parts(cache: torch.Tensor) -> list[tuple[torch.Tensor, int]]:
    """Views `[pages, page_size, bytes]` of a row's parts, and where they begin in a page of one row."""
    pages, page_size, _, width = cache.shape
    if width == 656:
        return [(cache.squeeze(2), 0)]
    stride = cache.stride(0)
    rows = cache.as_strided((pages, page_size, 576), (stride, 576, 1))
    return [(rows, 0), (cache.as_strided((pages, page_size, 8), (stride, 8, 1), page_size * 576), 576)]


def dequantized(stored: torch.Tensor) -> torch.Tensor:
    """The numbers of pages of one row each, by FlashMLA's description of both formats."""
    if stored.shape[-1] == 656:
        nope, scales, rope = stored.split([512, 16, 128], dim=-1)
        scales = scales.contiguous().view(torch.float32)
    else:
        nope, rope, scales = stored.split([448, 128, 8], dim=-1)
        # E8M0: 2^(byte - 127).
        scales = torch.exp2(scales[..., :7].float() - 127)
    nope = nope.contiguous().view(torch.float8_e4m3fn).float().unflatten(-1, (scales.shape[-1], -1))
    rope = rope.contiguous().view(torch.bfloat16).float()
    return torch.cat([(nope * scales[..., None]).flatten(-2), rope], dim=-1)


class Chosen(NamedTuple):
    """A cache of bytes, and the keys that each query attends to."""

    cache: torch.Tensor
    numbers: torch.Tensor  # [ROWS, d]
    indices: torch.Tensor  # [b, s_q, topk]
    topk_length: torch.Tensor | None

    def keys(self, request: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The numbers of a request's keys, `[s_q, topk, 1, d]`, and which of them are some."""
        indices = self.indices[request].long()
        valid = (indices >= 0) & (indices < self.cache.shape[0] * self.cache.shape[1])
        if self.topk_length is not None:
            valid &= torch.arange(indices.shape[-1]) < self.topk_length[request]
        return self.numbers[indices.where(valid, 0) % ROWS].unsqueeze(2), valid


def choose(case: Case, cache: Cache, lengths: bool, generator: torch.Generator, rng: random.Random) -> Chosen:
    b, s_q, page_size = case.b, case.s_q, cache.page_size
    keys = [cache.s_k] * b
    if case.varlen:
        keys = [max(int(rng.normalvariate(cache.s_k, cache.s_k / 2)), s_q) for _ in keys]
    if case.zero_lengths:
        keys = [n * rng.randrange(2) for n in keys]
    blocks = max(max(keys), 1) // (4 * page_size) * 4 + 4
    block_table = torch.randperm(b * blocks, generator=generator).view(b, 1, blocks)
    # Any of a request's keys in any order; -1 behind the last.
    order = torch.rand(b, s_q, max(*keys, cache.topk), generator=generator)
    order.masked_fill_(torch.arange(order.shape[-1]) >= torch.tensor(keys)[:, None, None], -1)
    drawn, key = order.topk(cache.topk)
    page = block_table.expand(b, s_q, blocks).gather(2, (key // page_size).clamp(max=blocks - 1))
    nothing = torch.tensor([*NO_KEYS, b * blocks * page_size])[torch.randint(6, key.shape, generator=generator)]
    valid = drawn >= 0
    if case.no_indices:
        valid = torch.zeros_like(valid)
    indices = (page * page_size + key % page_size).where(valid, nothing).int()
    topk_length = torch.randint(cache.topk + 1, (b,), generator=generator, dtype=torch.int32) if lengths else None
    rows = (torch.randn(ROWS, case.d_qk, generator=generator) / 10).clamp(-1, 1).bfloat16()
    stored, numbers = quantized(rows, b * blocks, page_size)
    counted = valid if topk_length is None else valid & (torch.arange(cache.topk) < topk_length[:, None, None])
    unused = torch.ones(b * blocks * page_size, dtype=torch.bool)
    unused[indices[counted].long()] = False
    for part, _ in parts(stored):
        part[unused.view(-1, page_size)] = POISON
    return Chosen(stored, numbers, oracle.with_gaps(indices, 0), topk_length)


def test_grid(case: Case) -> None:
    seed = CASES.index(case)
    generator, rng = torch.Generator().manual_seed(seed), random.Random(seed)
    q = torch.randn(case.b, case.s_q, case.h_q, case.d_qk, generator=generator).clamp(-1, 1).bfloat16()
    q = oracle.with_gaps(q, torch.nan)
    sink = None
    if case.sink:
        sink, ends = torch.randn(2, case.h_q, generator=generator)
        sink = sink.masked_fill(ends > 0.5, torch.inf).masked_fill(ends < -0.5, -torch.inf)
    first = choose(case, case.cache, case.topk_lengths, generator, rng)
    scopes, more = [first], {}
    if case.extra is not None:
        extra = choose(case, case.extra, case.extra_topk_lengths, generator, rng)
        scopes.append(extra)
        more = {
            "extra_k_cache": extra.cache.view(torch.float8_e4m3fn),
            "extra_indices_in_kvcache": extra.indices,
            "extra_topk_length": extra.topk_length,
        }
    scale = case.d_qk**-0.55
    # Bytes have any of FlashMLA's dtypes.
    stored = [torch.float8_e4m3fn, torch.uint8, torch.int8][seed % 3]
    out, lse = flash_mla.flash_mla_with_kvcache(
        q,
        first.cache.view(stored),
        None,
        None,
        D_V,
        flash_mla.get_mla_metadata()[0],
        None,
        scale,
        False,
        True,
        first.indices,
        attn_sink=sink,
        topk_length=first.topk_length,
        **more,
    )
    assert out.dtype == torch.bfloat16 and out.shape == (case.b, case.s_q, case.h_q, D_V)
    assert lse.dtype == torch.float32 and lse.shape == (case.b, case.h_q, case.s_q)
    assert out.isfinite().all() and not lse.isnan().any()
    compared = rng.sample(range(case.b), REQUESTS)
    wanted = []
    for request in compared:
        k, valid = (torch.cat(parts, dim=1) for parts in zip(*[scope.keys(request) for scope in scopes]))
        wanted.append(oracle.attend(q[request], k, k[..., :D_V], scale, valid, sink)[:2])
    want_out, want_lse = map(torch.stack, zip(*wanted))
    oracle.assert_close("out", out[compared], want_out, 1e-3, 2.01 / 128, 5e-6)
    oracle.assert_close("lse", lse[compared], want_lse, 1e-6, 8.01 / 65536)


def test_bf16_cache_is_allowed_too() -> None:
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(1, 1, 16, 576, generator=generator).bfloat16()
    cache = torch.randn(3, 7, 1, 576, generator=generator).bfloat16()
    indices = torch.tensor([[[20, -1, 3, 21, 9]]], dtype=torch.int32)
    out, lse = flash_mla.flash_mla_with_kvcache(
        q, cache, None, None, D_V, flash_mla.get_mla_metadata()[0], softmax_scale=0.1, indices=indices
    )
    k = cache.flatten(0, 1)[[20, 3, 9]]
    want_out, want_lse, _ = oracle.attend(q[0], k, k[..., :D_V], 0.1, torch.ones(1, 3, dtype=torch.bool))
    oracle.assert_close("out", out[0], want_out, 1e-2, 2.01 / 128, 2e-5)
    oracle.assert_close("lse", lse[0], want_lse, 1e-6, 8.01 / 65536)


def test_an_extra_cache_of_another_kind_is_refused() -> None:
    q = torch.zeros(1, 1, 1, 512, dtype=torch.bfloat16)
    cache = amla.encode(torch.zeros(1, 2, 1, 512), "model1").data
    indices = torch.zeros(1, 1, 1, dtype=torch.int32)
    with pytest.raises(ValueError, match="extra_k_cache has torch.float32"):
        flash_mla.flash_mla_with_kvcache(
            q,
            cache,
            None,
            None,
            D_V,
            flash_mla.get_mla_metadata()[0],
            is_fp8_kvcache=True,
            indices=indices,
            extra_k_cache=torch.zeros(1, 2, 1, 512),
            extra_indices_in_kvcache=indices,
        )
