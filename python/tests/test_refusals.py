"""Whatever is wrong is said, and nothing has been written then."""

import numpy as np
import pytest
from ml_dtypes import bfloat16

import amla

Q = np.zeros((2, 1, 8, 576), bfloat16)
KV = np.zeros((2, 100, 1, 576), bfloat16)
BYTES = np.zeros((2, 100, 1, 656), np.uint8)
PAGES = np.zeros((4, 64, 1, 576), bfloat16)
TABLE = np.zeros((2, 2), np.int32)
I32 = np.zeros(2, np.int32)


@pytest.mark.parametrize(
    ("kind", "message", "arguments"),
    [
        # The library's sentences, with Python's names.
        (ValueError, "dimension 3 of kv is 512, not 576", {"kv": KV[..., :512]}),
        (ValueError, "dimension 0 of kv is 1, not 2", {"kv": KV[:1]}),
        (ValueError, "dimension 1 of v is 99, not 100", {"v": KV[:, :99, :, :512]}),
        (ValueError, "softmax_scale is NaN, not a finite number", {"softmax_scale": float("nan")}),
        (ValueError, r"cache_seqlens\[1\] is 101, not in 0..=100", {"cache_seqlens": np.array([1, 101], np.int32)}),
        (ValueError, r"block_table\[1\]\[0\] is 4, not in 0..4", {"kv": PAGES, "block_table": np.array([[0, 1], [4, 0]], np.int32)}),
        (ValueError, "window is 0, not in 1..", {"window": 0}),
        (ValueError, "tail_mask and causal can't be combined", {"causal": True, "tail_mask": np.ones((2, 1, 9), bool)}),
        (ValueError, "split_keys is 33, not a positive multiple of 32", {"split_keys": 33}),
        (ValueError, "head_dim_v is 0, not in 1..=", {"head_dim_v": 0, "out": None}),
        (ValueError, r"\(576, 520\) is not a pair of multiples of 8", {"head_dim_v": 520}),
        (ValueError, "value_offset is 65, not in 0..=64", {"value_offset": 65}),
        (ValueError, "h_q is 8, not a multiple of h_kv, 3", {"kv": np.zeros((2, 100, 3, 576), bfloat16)}),
        (ValueError, "indices and causal can't be combined", {"causal": True, "indices": np.zeros((2, 1, 4), np.int32)}),
        (ValueError, r"cu_seqlens_q\[1\] is -3, less than cu_seqlens_q\[0\], 0", {"q": Q[:, 0], "cu_seqlens_q": np.array([0, -3, 2], np.int32), "out": None, "lse": None}),
        # Objects.
        (TypeError, "q is of type list, which is no tensor", {"q": [1.0]}),
        (TypeError, "q is a masked array", {"q": np.ma.masked_array(Q.astype(np.float32))}),
        (TypeError, "q has dtype float64, not bfloat16 or", {"q": Q.astype(np.float64)}),
        (TypeError, "q has dtype >f4, not bfloat16 or", {"q": Q.astype(">f4")}),
        (TypeError, "q is int32, which are no rows without amla.Rows", {"q": Q.astype(np.int32)}),
        (TypeError, "cache_seqlens is int64, not int32", {"cache_seqlens": I32.astype(np.int64)}),
        (TypeError, "indices is float32, not int32 or int64", {"indices": np.zeros((2, 1, 4), np.float32)}),
        (TypeError, r"decode\(\) got an unexpected keyword argument 'sofmax_scale'", {"sofmax_scale": 1.0}),
        (TypeError, "causal is of type int, not a bool", {"causal": 1}),
        (TypeError, "window is of type float, not an int", {"window": 2.5}),
        (TypeError, "softmax_scale is of type str, not a number", {"softmax_scale": "1"}),
        (TypeError, "plan is no amla.Plan", {"plan": 3}),
        (TypeError, "backend is of type int, not a str", {"backend": 3}),
        (TypeError, "out_dtype is int8, not bfloat16 or", {"out_dtype": np.int8}),
        # Values.
        (ValueError, "window is -1, less than 0", {"window": -1}),
        (ValueError, 'precision is "fp8", not "bf16" or "bf16x2"', {"precision": "fp8"}),
        (ValueError, 'backend is "sse", not one of portable', {"backend": "sse"}),
        (ValueError, "empty_lse is 0, not inf or -inf", {"empty_lse": 0}),
        (ValueError, "threads is 0, not in 1..=1024", {"threads": 0}),
        # Tensors.
        (ValueError, "q has 3 dimensions, not 4", {"q": Q[0]}),
        (ValueError, "q has 4 dimensions, not 3", {"cu_seqlens_q": np.array([0, 1, 2], np.int32)}),
        (ValueError, "q has 9 dimensions, more than 8", {"q": Q.reshape(2, 1, 8, 1, 1, 1, 1, 1, 576)}),
        (ValueError, "q has a stride of -9216 bytes in dimension 0", {"q": Q[::-1]}),
        (ValueError, "kv has stride 2 in dimension 3, the last", {"kv": np.zeros((2, 100, 1, 1152), bfloat16)[..., ::2]}),
        (ValueError, "q is not aligned to 2 bytes", {"q": np.zeros(18433, np.uint8)[1:].view(bfloat16).reshape(2, 1, 8, 576)}),
        (ValueError, r"cache_seqlens has dimensions \[3\], not \[2\]", {"cache_seqlens": np.zeros(3, np.int32)}),
        (ValueError, r"indices has dimensions \[2, 2, 4\], not \[2, 1, 4\]", {"indices": np.zeros((2, 2, 4), np.int32)}),
        (ValueError, r"tail_mask has dimensions \[2, 3, 9\], not \[2, 1, 9\]", {"tail_mask": np.ones((2, 3, 9), bool)}),
        (ValueError, "cu_seqlens_k is not contiguous", {"kv": KV[0], "cu_seqlens_k": np.zeros(6, np.int32)[::2]}),
        (ValueError, "kv has rows of 600 bytes; those of FP8 have 656", {"kv": BYTES[..., :600]}),
        (ValueError, "a paged cache needs block_table or indices", {"kv": PAGES, "paged": True}),
        (ValueError, "block_table and a cache without pages can't be combined", {"kv": PAGES, "block_table": TABLE, "paged": False}),
        (ValueError, "extra_k_cache and extra_indices_in_kvcache need each other", {"extra_k_cache": PAGES}),
        # Results.
        (ValueError, r"out has dimensions \[2, 1, 8, 500\]", {"out": np.zeros((2, 1, 8, 500), np.float32)}),
        (TypeError, "out is int8, not bfloat16 or", {"out": np.zeros((2, 1, 8, 512), np.int8)}),
        (TypeError, "out is float32, not float16", {"out": np.zeros((2, 1, 8, 512), np.float32), "out_dtype": "float16"}),
        (TypeError, "lse is float16, not float32", {"lse": np.zeros((2, 8, 1), np.float16)}),
        (ValueError, "out overlaps q in memory", {"out": Q[..., :512]}),
        (ValueError, "out has stride 0 in dimension 0", {"out": np.lib.stride_tricks.as_strided(np.zeros((8, 512), np.float32), (2, 1, 8, 512), (0, 0, 2048, 4))}),
        (ValueError, "max_logits doesn't have the strides of lse", {"max_logits": np.zeros((2, 8, 2), np.float32)[..., :1]}),
    ],
)
def test_refused(kind, message, arguments):
    results = {"out": np.full((2, 1, 8, 512), 7, np.float32), "lse": np.full((2, 8, 1), 7, np.float32)}
    arguments = {"q": Q, "kv": KV, **results, **arguments}
    q, kv = arguments.pop("q"), arguments.pop("kv")
    with pytest.raises(kind, match=message):
        amla.decode(q, kv, **arguments)
    for result in results.values():
        assert (result == 7).all()


def test_read_only_output():
    out = np.full((2, 1, 8, 512), 7, np.float32)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out can't be written"):
        amla.decode(Q, KV, out=out)
    assert (out == 7).all()


def test_results_overlap():
    memory = np.zeros(2 * 8 * 512 + 8, np.float32)
    out, lse = memory[: 2 * 8 * 512].reshape(2, 1, 8, 512), memory[-16:].reshape(2, 8, 1)
    with pytest.raises(ValueError, match="lse overlaps out in memory"):
        amla.decode(Q, KV, out=out, lse=lse)


def test_plan_of_another_problem():
    plan = amla.Plan(Q, KV)
    with pytest.raises(ValueError, match="the plan is for s_k 100, not 99"):
        amla.decode(Q, KV[:, :99], plan=plan)
    with pytest.raises(TypeError, match=r"Plan\(\) got an unexpected keyword argument 'out'"):
        amla.Plan(Q, KV, out=None, plan=plan)


def test_rows():
    with pytest.raises(ValueError, match='format is "fp4", not one of bf16'):
        amla.Rows(KV, "fp4")
    with pytest.raises(ValueError, match="int8 rows need a scale"):
        amla.Rows(KV, "int8")
    with pytest.raises(TypeError, match="kv is bfloat16, not uint8"):
        amla.decode(Q, amla.Rows(KV, "q8_0"))
    with pytest.raises(ValueError, match="kv is 656 bytes wide, not a multiple of 34 as q8_0 rows are"):
        amla.decode(Q, amla.Rows(BYTES, "q8_0"))
    scale = np.zeros((2, 100, 2), np.float32)
    with pytest.raises(ValueError, match=r"scale has dimensions \[2, 100, 2\], not \[2, 100, 1\]"):
        amla.decode(Q, amla.Rows(KV.astype(np.int8), "int8", scale))
    with pytest.raises(ValueError, match="kv is no tensor of MODEL1 pages"):
        amla.decode(Q[..., :512], BYTES[..., :584])
