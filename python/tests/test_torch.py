"""The operators `torch.ops.amla.*`: eager, compiled, and checked by torch itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from optional import needs

torch = needs("torch")
needs("amla.torch")
import amla  # noqa: E402


def numbers(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def ints(*values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def calls() -> dict[str, tuple[tuple[torch.Tensor, torch.Tensor], dict[str, Any]]]:
    """Each layout with what hides keys in it: positional and named arguments of `decode`."""
    q = numbers(2, 3, 4, 576)
    kv = numbers(2, 50, 1, 576, seed=2)
    lengths = ints(50, 7)
    bytes_656 = amla.encode(kv, "fp8").data
    int8 = amla.encode(kv, "int8")
    model1 = amla.encode(kv[..., :512].contiguous(), "model1").data
    return {
        "dense": ((q, kv), {"causal": True, "cache_seqlens": lengths, "softmax_scale": 0.1}),
        "bf16": ((q.bfloat16(), kv.bfloat16()), {"out_dtype": torch.float32, "lse_base": "2"}),
        "window": ((q, kv), {"causal": True, "window": 9, "threads": 1, "split_keys": 32}),
        "tail_mask": ((q, kv), {"tail_mask": numbers(2, 3, 20) > 0}),
        "values": ((q, kv), {"v": numbers(2, 50, 1, 128, seed=3), "attn_sink": numbers(4)}),
        "ropes": ((q[..., :512], kv[..., :512]), {"q_rope": q[..., 512:], "k_rope": kv[..., 512:]}),
        "value_offset": ((q, kv), {"value_offset": 64}),
        "paged": ((q, numbers(5, 16, 1, 576)), {"block_table": ints([3, 0], [4, 1]), "cache_seqlens": ints(30, 17)}),
        "ragged": ((q.flatten(0, 1), kv.flatten(0, 1)), {"cu_seqlens_q": ints(0, 2, 6), "cu_seqlens_k": ints(0, 60, 100)}),
        "sparse": ((q, kv), {"indices": ints(4, -1, 9, 99, 0).expand(2, 3, 5), "topk_length": ints(5, 2)}),
        "within_requests": ((q, kv), {"indices": ints(4, 9).expand(2, 3, 2), "paged": False, "empty_lse": -torch.inf}),
        "fp8": ((q.bfloat16(), bytes_656), {}),
        "int8": ((q.bfloat16(), int8.data), {"kv_format": "int8", "kv_scale": int8.scale}),
        "model1": (
            (q[..., :512].bfloat16(), model1),
            {
                "indices": ints(7, 8).expand(2, 3, 2),
                "extra_k_cache": model1,
                "extra_indices_in_kvcache": ints(3, -1, 1).expand(2, 3, 3),
                "extra_topk_length": ints(3, 1),
            },
        ),
    }


CALLS = calls()


def direct(arguments: tuple[torch.Tensor, torch.Tensor], options: dict[str, Any], **more: Any) -> tuple[torch.Tensor, ...]:
    """The same without the operator."""
    (q, kv), options = arguments, dict(options)
    if (kind := options.pop("kv_format", None)) is not None:
        kv = amla.Rows(kv, kind, options.pop("kv_scale"))
    return amla.decode(q, kv, **options, **more)


def assert_same(got: tuple[torch.Tensor, ...], want: tuple[torch.Tensor, ...]) -> None:
    assert len(got) == len(want)
    for a, b in zip(got, want):
        assert a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride()
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", CALLS)
def test_operators_are_the_function(name: str) -> None:
    arguments, options = CALLS[name]
    want = direct(arguments, options)
    assert_same(torch.ops.amla.decode(*arguments, **options), want)
    with_max_logits = torch.ops.amla.decode_with_max_logits(*arguments, **options)
    assert_same(with_max_logits, direct(arguments, options, max_logits=True))
    results = tuple(torch.full_like(x, torch.nan) for x in want)
    out_options = {key: value for key, value in options.items() if key != "out_dtype"}
    assert torch.ops.amla.decode_out(*arguments, **out_options, out=results[0], lse=results[1]) is None
    assert_same(results, want)


@pytest.mark.parametrize("name", CALLS)
def test_opcheck(name: str) -> None:
    """torch's own check: the schema, the fake implementation's shapes, dtypes and strides, and AOTAutograd."""
    arguments, options = CALLS[name]
    torch.library.opcheck(torch.ops.amla.decode.default, arguments, options)
    if name not in ("dense", "ragged", "model1"):
        return
    torch.library.opcheck(torch.ops.amla.decode_with_max_logits.default, arguments, options)
    out, lse = torch.ops.amla.decode(*arguments, **options)
    torch.library.opcheck(torch.ops.amla.decode_out.default, arguments, {**options, "out": out, "lse": lse})


def two_layers(q: torch.Tensor, kv: torch.Tensor, projection: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Operators among others, halves of the cache merged, and one that writes to its argument."""
    half = kv.shape[1] // 2
    halves = [kv[:, :half], kv[:, half:]]
    parts = [torch.ops.amla.decode(q * 2, part, softmax_scale=0.1) for part in halves]
    out, lse = torch.ops.amla.merge(*map(list, zip(*parts)))
    again = torch.cat([out @ projection, q[..., 512:]], dim=-1)
    o, lse_2, largest = torch.ops.amla.decode_with_max_logits(again, kv, cache_seqlens=lengths, causal=True)
    torch.ops.amla.decode_out(o @ projection, kv[..., :512].contiguous(), head_dim_v=512, out=out, lse=lse)
    return out.sum(-1) + o.sum(-1) + (lse + lse_2 + largest).transpose(1, 2)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(backend: str, dynamic: bool) -> None:
    torch.compiler.reset()
    compiled = torch.compile(two_layers, backend=backend, fullgraph=True, dynamic=dynamic)
    for b, s_k in [(1, 20), (3, 34)]:
        q, kv = numbers(b, 2, 4, 576), numbers(b, s_k, 1, 576, seed=2)
        arguments = q, kv, numbers(512, 512, seed=3) / 20, torch.full((b,), s_k - 1, dtype=torch.int32)
        torch.testing.assert_close(compiled(*arguments), two_layers(*arguments), rtol=1e-5, atol=1e-4)


def test_compile_flash_mla() -> None:
    from amla.flash_mla import flash_mla_sparse_fwd, flash_mla_with_kvcache, get_mla_metadata

    def step(q: torch.Tensor, cache: torch.Tensor, block_table: torch.Tensor, lengths: torch.Tensor, indices: torch.Tensor):
        metadata, _ = get_mla_metadata()
        out, lse = flash_mla_with_kvcache(q, cache, block_table, lengths, 512, metadata, causal=True)
        return out, lse, *flash_mla_sparse_fwd(q.flatten(0, 1), cache[0], indices, 0.1)

    q, cache = numbers(2, 3, 4, 576).bfloat16(), numbers(4, 64, 1, 576, seed=2).bfloat16()
    arguments = q, cache, ints([0, 3], [1, 2]), ints(100, 64), ints(*range(6, 24)).view(6, 1, 3)
    torch.compiler.reset()
    assert_same(torch.compile(step, backend="aot_eager", fullgraph=True)(*arguments), step(*arguments))


def test_merge() -> None:
    q, kv = numbers(2, 3, 4, 576), numbers(2, 50, 1, 576, seed=2)
    parts = [torch.ops.amla.decode(q, part, lse_base="2") for part in kv.split([1, 30, 19], dim=1)]
    outs, lses = map(list, zip(*parts))
    torch.library.opcheck(torch.ops.amla.merge.default, (outs, lses), {"lse_base": "2"})
    got = torch.ops.amla.merge(outs, lses, lse_base="2")
    assert_same(got, amla.merge(outs, lses, lse_base="2"))
    for a, b in zip(got, amla.decode(q, kv, lse_base="2")):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def refusals() -> dict[str, tuple[Callable[[], Any], type[Exception], str]]:
    q, kv = numbers(1, 1, 4, 576), numbers(1, 50, 1, 576)
    decode = torch.ops.amla.decode
    return {
        "width": (lambda: decode(q, kv[..., :560]), ValueError, "560"),
        "length": (lambda: decode(q, kv, cache_seqlens=ints(51)), ValueError, "51"),
        "option": (lambda: decode(q, kv, precision="fp64"), ValueError, "fp64"),
        "scale": (lambda: decode(q, kv, kv_scale=numbers(1, 50, 1)), ValueError, "kv_scale needs kv_format"),
        "kind": (lambda: decode(q, kv, causal=torch.ones(2)), (RuntimeError, TypeError), "causal"),
        "unknown": (lambda: decode(q, kv, scale=1.0), (RuntimeError, TypeError), "scale"),
        "device": (lambda: decode(q.to_sparse(), kv), NotImplementedError, "amla::decode"),
    }


REFUSALS = refusals()


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name: str) -> None:
    call, error, message = REFUSALS[name]
    with pytest.raises(error, match=message):
        call()


def test_backward_warns() -> None:
    q = numbers(1, 1, 4, 576).requires_grad_()
    out, _ = torch.ops.amla.decode(q, numbers(1, 50, 1, 576))
    with pytest.warns(UserWarning, match="amla::decode"):
        out.sum().backward()


def test_queries_of_bytes_are_refused() -> None:
    q = amla.encode(numbers(1, 1, 4, 576), "fp8").data
    with pytest.raises(ValueError, match="q has rows of bytes"):
        torch.ops.amla.decode(q, numbers(1, 9, 1, 576))


def test_given_results_count_as_changed() -> None:
    """A backward pass that saved them is refused, as they are overwritten."""
    q, kv = numbers(1, 1, 4, 576), numbers(1, 9, 1, 576, seed=2)
    out, lse = amla.decode(q, kv)
    for decode in (amla.decode, torch.ops.amla.decode_out):
        weights = torch.ones_like(out, requires_grad=True)
        loss = (out * weights).sum()
        decode(q, kv, out=out, lse=lse)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
