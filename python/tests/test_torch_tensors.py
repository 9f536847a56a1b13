"""torch's tensors, read by `decode`, `merge` and `encode`."""

import numpy as np
import pytest
from ml_dtypes import bfloat16
from optional import needs

import amla

torch = needs("torch")


def numbers(*dims, dtype=torch.bfloat16):
    return torch.randn(dims, generator=torch.Generator().manual_seed(3)).to(dtype)


def as_numpy(x):
    return x.view(torch.uint16).numpy().view(bfloat16) if x.dtype == torch.bfloat16 else x.numpy()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_same_as_numpy(dtype):
    q, kv = numbers(2, 2, 8, 576, dtype=dtype), numbers(2, 100, 1, 576, dtype=dtype)
    lengths = torch.tensor([100, 40], dtype=torch.int32)
    out, lse = amla.decode(q, kv, cache_seqlens=lengths, causal=True)
    assert isinstance(out, torch.Tensor) and out.dtype == dtype and lse.dtype == torch.float32
    want, want_lse = amla.decode(as_numpy(q), as_numpy(kv), cache_seqlens=lengths.numpy(), causal=True)
    assert (as_numpy(out) == want).all() and (lse.numpy() == want_lse).all()


def test_strides_and_subclasses():
    q, kv = numbers(2, 2, 8, 576), numbers(2, 100, 1, 576)
    want, _ = amla.decode(q, kv)
    swapped = q.permute(2, 1, 0, 3).contiguous().permute(2, 1, 0, 3)
    wide = torch.zeros(2, 100, 3, 600, dtype=torch.bfloat16)
    wide[:, :, 2:, 8:584] = kv
    assert torch.equal(amla.decode(swapped, wide[:, :, 2:, 8:584])[0], want)
    assert torch.equal(amla.decode(torch.nn.Parameter(q), kv)[0], want)
    expanded = kv[:1].expand(2, -1, -1, -1)
    assert torch.equal(amla.decode(q, expanded)[0][0], want[0])


def test_results():
    q, kv = numbers(2, 2, 8, 576), numbers(2, 100, 1, 576)
    out, lse = torch.empty(2, 2, 8, 512), torch.empty(2, 8, 2)
    results = amla.decode(q, kv, out=out, lse=lse)
    assert results[0] is out and results[1] is lse
    for dtype in (torch.float32, "float32", np.float32):
        assert torch.equal(amla.decode(q, kv, out_dtype=dtype)[0], out)
    assert len(amla.decode(q, kv, max_logits=True)) == 3
    # numpy's results of torch's queries, and the other way round.
    array = np.empty((2, 2, 8, 512), np.float32)
    assert amla.decode(q, kv, out=array)[0] is array and (array == out.numpy()).all()


@pytest.mark.parametrize("format", ["fp8", "model1", "int8", "e4m3", "q8_0", "q4_0"])
def test_encode(format):
    d = 512 if format == "model1" else 576
    x, q = numbers(2, 64, 1, d), numbers(2, 1, 8, d)
    rows = amla.encode(x, format)
    want = amla.encode(as_numpy(x), format)
    assert isinstance(rows.data, torch.Tensor) and (rows.data.numpy() == want.data).all()
    out, _ = amla.decode(q, rows)
    assert (as_numpy(out) == amla.decode(as_numpy(q), want)[0]).all()
    if format in ("fp8", "model1"):
        assert torch.equal(amla.decode(q, rows.data.view(torch.float8_e4m3fn))[0], out)


def test_merge():
    q, kv = numbers(2, 2, 8, 576), numbers(2, 100, 1, 576)
    parts = [amla.decode(q, kv[:, i : i + 50], out_dtype=torch.float32) for i in (0, 50)]
    out, lse = amla.merge([part[0] for part in parts], [part[1] for part in parts])
    want, want_lse = amla.decode(q, kv, out_dtype=torch.float32)
    torch.testing.assert_close(out, want, atol=1e-2, rtol=1e-2)
    torch.testing.assert_close(lse, want_lse)


def test_refusals():
    q, kv = numbers(2, 2, 8, 576), numbers(2, 100, 1, 576)
    with pytest.raises(ValueError, match="q is on device meta, not on the CPU"):
        amla.decode(q.to("meta"), kv)
    with pytest.raises(TypeError, match="q has dtype torch.float64, not bfloat16 or"):
        amla.decode(q.double(), kv)
    with pytest.raises(ValueError, match="q is a view that negates its memory"):
        amla.decode(torch.complex(q.float(), q.float()).conj().imag, kv)
    with pytest.raises(ValueError, match="out overlaps q in memory"):
        amla.decode(q, kv, out=q[..., :512])
    assert torch.equal(q, numbers(2, 2, 8, 576))


def test_by_dlpack():
    class Other:
        def __init__(self, tensor):
            self.tensor = tensor

        def __dlpack__(self, **options):
            return self.tensor.__dlpack__(**options)

    q, kv = numbers(2, 2, 8, 576), numbers(2, 100, 1, 576)
    out, lse = amla.decode(Other(q), Other(kv))
    want, want_lse = amla.decode(q, kv)
    assert isinstance(out, np.ndarray)
    assert (out == as_numpy(want)).all() and (lse == want_lse.numpy()).all()
    del q
    held = Other(numbers(2, 2, 8, 576))
    assert (amla.decode(held, Other(kv))[0] == out).all()


def test_default_device():
    q, kv = numbers(1, 1, 8, 576), numbers(1, 10, 1, 576)
    with torch.device("meta"):
        out, _ = amla.decode(q, kv)
    assert out.device.type == "cpu"
