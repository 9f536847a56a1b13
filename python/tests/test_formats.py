"""Storage formats: `encode`, and `decode` over what it returns."""

import numpy as np
import pytest
from golden import assert_close, dense, numbers
from ml_dtypes import bfloat16, float8_e4m3fn

import amla

FORMATS = ["fp8", "model1", "int8", "e4m3", "q8_0", "q4_0"]
# Relative error of a cache in the format.
TOLERANCE = {"q4_0": 0.2, "int8": 0.03, "q8_0": 0.02}


def width(format: str) -> int:
    return 512 if format == "model1" else 576


def decoded(rows: amla.Rows, format: str) -> np.ndarray:
    """The numbers of rows, by the format's definition."""
    data = rows.data
    shape = data.shape[:-1]
    if format == "int8":
        return data.astype(np.float32) * rows.scale[..., None]
    if format == "e4m3":
        return data.view(float8_e4m3fn).astype(np.float32) * rows.scale[..., None]
    if format == "fp8":
        values = data[..., :512].view(float8_e4m3fn).astype(np.float32).reshape(*shape, 4, 128)
        scales = data[..., 512:528].copy().view(np.float32)
        rope = data[..., 528:].copy().view(bfloat16).astype(np.float32)
        return np.concatenate([(values * scales[..., None]).reshape(*shape, 512), rope], -1)
    if format == "model1":
        pages, page_size = shape[:2]
        flat = data.reshape(pages, -1)
        values = flat[:, : page_size * 576].reshape(pages, page_size, 576)
        scales = flat[:, page_size * 576 :].reshape(pages, page_size, 8)[..., :7]
        numbers = values[..., :448].view(float8_e4m3fn).astype(np.float32).reshape(pages, page_size, 7, 64)
        numbers = numbers * np.exp2(scales.astype(np.float32) - 127)[..., None]
        rope = values[..., 448:].copy().view(bfloat16).astype(np.float32)
        return np.concatenate([numbers.reshape(pages, page_size, 448), rope], -1)[:, :, None]
    size = 34 if format == "q8_0" else 18
    blocks = data.reshape(*shape, -1, size)
    d = blocks[..., :2].copy().view(np.float16).astype(np.float32)
    q = blocks[..., 2:]
    q = q.view(np.int8) if size == 34 else np.concatenate([q & 15, q >> 4], -1).astype(np.int8) - 8
    return (q * d).reshape(*shape, -1)


@pytest.mark.parametrize("dtype", [bfloat16, np.float32, np.float16, np.uint16])
@pytest.mark.parametrize("format", FORMATS)
def test_encode_and_decode(format, dtype):
    rng = np.random.default_rng(1)
    d = width(format)
    x = numbers(rng, 2, 96, 1, d)
    x = x.view(np.uint16) if dtype == np.uint16 else x.astype(dtype)
    rows = amla.encode(x, format)
    assert rows.format == format and (rows.scale is None) == (format not in ("int8", "e4m3"))
    original = x.view(bfloat16) if dtype == np.uint16 else x
    assert_close(decoded(rows, format), original.astype(np.float64), TOLERANCE.get(format, 0.05))
    q = numbers(rng, 2, 2, 8, d)
    out, lse = amla.decode(q, rows, out_dtype="float32", head_dim_v=512)
    kv = decoded(rows, format)
    want, want_lse = dense(q, kv, kv[..., :512], d**-0.5)
    assert_close(out, want)
    assert_close(lse, want_lse, 1e-3)


@pytest.mark.parametrize("format", FORMATS)
def test_encode_in_place(format):
    rng = np.random.default_rng(2)
    x = numbers(rng, 3, 16, 1, width(format))
    want = amla.encode(x, format)
    data = np.zeros((6, *want.data.shape[1:]), want.data.dtype)
    scale = None if want.scale is None else np.zeros((6, 16, 1), np.float32)
    out = amla.Rows(data[1::2], format, scale if scale is None else scale[1::2])
    assert amla.encode(x, format, out=out) is out
    assert (data[1::2] == want.data).all() and (data[::2] == 0).all()
    if scale is not None:
        assert (scale[1::2] == want.scale).all() and (scale[::2] == 0).all()


def test_plain_bytes_are_flashmla_s():
    rng = np.random.default_rng(3)
    for format, d in [("fp8", 576), ("model1", 512)]:
        x, q = numbers(rng, 2, 64, 1, d), numbers(rng, 2, 1, 8, d)
        rows = amla.encode(x, format)
        want, _ = amla.decode(q, rows)
        for data in (rows.data, rows.data.view(float8_e4m3fn)):
            assert (amla.decode(q, data)[0] == want).all()
        assert want.shape == (2, 1, 8, 512)


def test_other_widths_and_queries():
    rng = np.random.default_rng(4)
    k, v, q = numbers(rng, 1, 40, 2, 128), numbers(rng, 1, 40, 2, 128), numbers(rng, 1, 1, 4, 128)
    rows = [amla.encode(x, "q8_0") for x in (q, k, v)]
    out, _ = amla.decode(rows[0], rows[1], v=rows[2])
    assert out.dtype == np.float32
    want, _ = dense(*(decoded(x, "q8_0") for x in rows), 128**-0.5)
    assert_close(out, want, 1e-5)


@pytest.mark.parametrize(
    ("error", "message", "x", "format", "out"),
    [
        (ValueError, "bf16 rows aren't encoded", (2, 576), "bf16", None),
        (ValueError, r"x has dimensions \[2, 512\], which fp8 rows can't have", (2, 512), "fp8", None),
        (ValueError, r"x has dimensions \[2, 512\], which model1 rows can't have", (2, 512), "model1", None),
        (ValueError, r"x has dimensions \[2, 40\], which q8_0 rows can't have", (2, 40), "q8_0", None),
        (ValueError, "x has no dimensions", (), "q8_0", None),
        (ValueError, "x has rows of no numbers", (2, 0), "int8", None),
        (ValueError, "x has rows of no numbers", (2, 0), "e4m3", None),
        (TypeError, "out is no amla.Rows", (2, 576), "fp8", 3),
        (ValueError, "out has q8_0 rows, not fp8", (2, 576), "fp8", ("q8_0", (2, 612))),
        (ValueError, r"out has dimensions \[2, 612\], not \[2, 578\]", (2, 544), "q8_0", ("q8_0", (2, 612))),
    ],
)
def test_refused(error, message, x, format, out):
    if isinstance(out, tuple):
        out = amla.Rows(np.zeros(out[1], np.uint8), out[0])
    with pytest.raises(error, match=message):
        amla.encode(np.zeros(x, bfloat16), format, out=out)
