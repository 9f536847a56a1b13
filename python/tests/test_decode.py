"""`decode` against its definition, with numpy's arrays."""

import math

import numpy as np
import pytest
from golden import assert_close, causal, dense, numbers, rows
from ml_dtypes import bfloat16

import amla

SCALE = 576**-0.5


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def problem(rng, b=2, s_q=2, h_q=8, s_k=100, d=576, dtype=bfloat16):
    return numbers(rng, b, s_q, h_q, d, dtype=dtype), numbers(rng, b, s_k, 1, d, dtype=dtype)


@pytest.mark.parametrize("dtype", [bfloat16, np.float16, np.float32])
def test_mla(rng, dtype):
    q, kv = problem(rng, dtype=dtype)
    out, lse = amla.decode(q, kv)
    assert out.dtype == dtype and lse.dtype == np.float32
    want, want_lse = dense(q, kv, kv[..., :512], SCALE)
    assert_close(out, want)
    assert_close(lse, want_lse, 1e-5)


def test_uint16_is_bf16(rng):
    q, kv = problem(rng)
    want, want_lse = amla.decode(q, kv)
    out, lse = amla.decode(q.view(np.uint16), kv.view(np.uint16))
    assert out.dtype == np.uint16
    assert (out.view(bfloat16) == want).all() and (lse == want_lse).all()


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32", np.float32, np.dtype("float16"), bfloat16])
def test_out_dtype(rng, name):
    q, kv = problem(rng)
    out, _ = amla.decode(q, kv, out_dtype=name)
    assert out.dtype == (bfloat16 if name == "bfloat16" else np.dtype(name))
    assert_close(out, dense(q, kv, kv[..., :512], SCALE)[0])


def test_causal_window_and_lengths(rng):
    q, kv = problem(rng, s_q=4)
    lengths = np.array([100, 61], np.int32)
    hidden = [np.arange(100) < n for n in lengths]
    for window in [None, 20]:
        masks = []
        for n, known in zip(lengths, hidden):
            mask = np.zeros((4, 100), bool)
            mask[:, :n] = causal(4, n)
            if window:
                mask &= np.arange(100) >= n - 3 + np.arange(4)[:, None] - window
            masks.append(mask & known)
        out, lse = amla.decode(q, kv, causal=True, cache_seqlens=lengths, window=window)
        want, want_lse = dense(q, kv, kv[..., :512], SCALE, masks)
        assert_close(out, want)
        assert_close(lse, want_lse, 1e-5)


def test_tail_mask(rng):
    q, kv = problem(rng, s_q=4)
    tail = rng.random((2, 4, 70)) < 0.5
    masks = np.ones((2, 4, 100), bool)
    masks[:, :, 30:] = tail
    want, want_lse = dense(q, kv, kv[..., :512], SCALE, masks)
    for mask in (tail, tail.astype(np.uint8)):
        out, lse = amla.decode(q, kv, tail_mask=mask)
        assert_close(out, want)
        assert_close(lse, want_lse, 1e-5)


def test_values_apart_and_heads(rng):
    q, k, v = numbers(rng, 2, 3, 8, 192), numbers(rng, 2, 50, 2, 192), numbers(rng, 2, 50, 2, 128)
    out, lse = amla.decode(q, k, v=v)
    want, want_lse = dense(q, k, v, 192**-0.5)
    assert_close(out, want)
    assert_close(lse, want_lse, 1e-5)


def test_parts_of_rows(rng):
    q, kv = problem(rng)
    want, want_lse = amla.decode(q, kv)
    split = {"q_rope": q[..., 512:], "k_rope": kv[..., 512:]}
    out, lse = amla.decode(q[..., :512], kv[..., :512], **split)
    assert (out == want).all() and (lse == want_lse).all()
    # One of the two alone.
    out, _ = amla.decode(q, kv[..., :512], k_rope=kv[..., 512:])
    assert (out == want).all()
    # [rope | latent].
    first = [np.concatenate([x[..., 512:], x[..., :512]], -1) for x in (q, kv)]
    out, lse = amla.decode(*first, value_offset=64)
    assert_close(out, want.astype(np.float64))
    assert_close(lse, want_lse.astype(np.float64), 1e-5)


def test_paged(rng):
    q, kv = problem(rng, s_k=128)
    pages = np.zeros((7, 32, 1, 576), bfloat16)
    table = np.array([[3, 0, 6, 2], [5, 1, 4, -1]], np.int32)
    for request in range(2):
        for block in range(4 - request):
            pages[table[request, block]] = kv[request, 32 * block :][:32]
    lengths = np.array([128, 90], np.int32)
    want = amla.decode(q, kv, causal=True, cache_seqlens=lengths)
    for given in (table, np.repeat(table, 2, 0)[::2]):
        out, lse = amla.decode(q, pages, causal=True, cache_seqlens=lengths, block_table=given)
        assert (out == want[0]).all() and (lse == want[1]).all()


def test_ragged(rng):
    q, kv = numbers(rng, 7, 8, 576), numbers(rng, 120, 1, 576)
    starts, keys = np.array([0, 3, 7], np.int32), np.array([0, 50, 120], np.int32)
    out, lse = amla.decode(q, kv, cu_seqlens_q=starts, cu_seqlens_k=keys, causal=True)
    assert out.shape == (7, 8, 512) and lse.shape == (8, 7)
    for i in range(2):
        a, b, c, d = *starts[i : i + 2], *keys[i : i + 2]
        want, want_lse = rows(q[a:b], kv[c:d], kv[c:d, :, :512], SCALE, causal(b - a, d - c))
        assert_close(out[a:b], want)
        assert_close(lse[:, a:b], want_lse, 1e-5)


def test_tokens_of_no_request_are_zero(rng):
    q, kv = numbers(rng, 6, 8, 576), numbers(rng, 1, 50, 1, 576)
    out, lse = amla.decode(q, kv, cu_seqlens_q=np.array([1, 4], np.int32))
    assert (out[[0, 4, 5]] == 0).all() and (lse[:, [0, 4, 5]] == 0).all()
    assert (out[1:4] != 0).any()


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_sparse(rng, index):
    q, kv = problem(rng, s_q=2, s_k=64)
    pages = kv.reshape(4, 32, 1, 576)
    chosen = rng.permuted(np.tile(np.arange(128, dtype=index), (2, 2, 1)), axis=-1)[..., :40]
    lengths = np.array([[40, 3], [0, 25]], np.int32)
    chosen[0, 0, 5] = -1
    out, lse = amla.decode(q, pages, indices=chosen, topk_length=lengths)
    flat = kv.reshape(128, 1, 576)
    for b in range(2):
        for j in range(2):
            own = chosen[b, j, : lengths[b, j]]
            keys = flat[own[own >= 0]]
            want, want_lse = rows(q[b, j : j + 1], keys, keys[..., :512], SCALE)
            assert_close(out[b, j : j + 1], want)
            assert_close(lse[b, :, j : j + 1], want_lse, 1e-5)
    # The same for each KV head, in any memory.
    with_heads = amla.decode(q, pages, indices=np.repeat(chosen, 2, -1)[..., None, ::2].copy(), topk_length=lengths)
    assert (with_heads[0] == out).all()
    # Numbers within each request.
    own = chosen % 64
    out, _ = amla.decode(q, kv, indices=own, paged=False)
    want, _ = amla.decode(q, pages, indices=own + np.array([0, 64], index)[:, None, None])
    assert (out[1] == want[1]).all()


def test_extra_cache(rng):
    q, kv = problem(rng, s_k=64)
    extra = numbers(rng, 3, 16, 1, 576)
    indices, more = (rng.integers(0, n, (2, 2, 20), np.int32) for n in (128, 48))
    out, lse = amla.decode(
        q,
        kv,
        indices=indices,
        extra_k_cache=extra,
        extra_indices_in_kvcache=more,
        extra_topk_length=np.array([20, 7], np.int32),
    )
    for b, n in enumerate([20, 7]):
        for j in range(2):
            keys = np.concatenate([kv.reshape(-1, 1, 576)[indices[b, j]], extra.reshape(-1, 1, 576)[more[b, j, :n]]])
            want, want_lse = rows(q[b, j : j + 1], keys, keys[..., :512], SCALE)
            assert_close(out[b, j : j + 1], want)
            assert_close(lse[b, :, j : j + 1], want_lse, 1e-5)


def test_sink(rng):
    q, kv = problem(rng)
    sink = rng.standard_normal(8).astype(np.float32)
    out, lse = amla.decode(q, kv, attn_sink=sink)
    want, want_lse = dense(q, kv, kv[..., :512], SCALE)
    share = 1 / (1 + np.exp(sink[None, :, None] - want_lse))
    assert_close(out, want * share.transpose(0, 2, 1)[..., None])
    assert_close(lse, want_lse, 1e-5)


def test_results(rng):
    q, kv = problem(rng)
    want, want_lse = amla.decode(q, kv, out_dtype="float32")
    big = np.full((2, 2, 8, 600), 7, np.float32)
    lse = np.full((2, 2, 8), 7, np.float32).transpose(0, 2, 1)
    result = amla.decode(q, kv, out=big[..., :512], lse=lse)
    assert result[1] is lse and (result[0] == want).all() and (lse == want_lse).all()
    assert (big[..., 512:] == 7).all()
    _, base_2 = amla.decode(q, kv, lse_base="2")
    assert_close(base_2, want_lse.astype(np.float64) / math.log(2), 1e-6)
    _, _, largest = amla.decode(q, kv, max_logits=True)
    scores = np.einsum("bqhd,bkd->bhqk", q.astype(np.float64), kv[:, :, 0].astype(np.float64)) * SCALE
    assert_close(largest, scores.max(-1), 1e-5)
    given = np.empty_like(largest)
    assert amla.decode(q, kv, max_logits=given)[2] is given and (given == largest).all()
    assert len(amla.decode(q, kv, max_logits=False)) == 2


def test_empty_lse(rng):
    q, kv = problem(rng)
    lengths = np.array([0, 100], np.int32)
    out, lse = amla.decode(q, kv, cache_seqlens=lengths)
    assert (out[0] == 0).all() and (lse[0] == np.inf).all()
    _, lse = amla.decode(q, kv, cache_seqlens=lengths, empty_lse=-math.inf)
    assert (lse[0] == -np.inf).all() and np.isfinite(lse[1]).all()


def test_strides(rng):
    q, kv = problem(rng)
    want, _ = amla.decode(q, kv)
    # Heads outermost, gaps between rows, and one cache for all requests.
    swapped = q.transpose(2, 1, 0, 3).copy().transpose(2, 1, 0, 3)
    gaps = np.zeros((2, 100, 3, 640), bfloat16)
    gaps[:, :, 1:2, :576] = kv
    out, _ = amla.decode(swapped, gaps[:, :, 1:2, :576])
    assert (out == want).all()
    shared = np.broadcast_to(kv[:1], kv.shape)
    assert shared.strides[0] == 0
    out, _ = amla.decode(q, shared)
    assert (out[0] == want[0]).all()
    lengths = np.broadcast_to(np.array([100], np.int32), 2)
    assert (amla.decode(q, kv, cache_seqlens=lengths)[0] == want).all()


def test_options(rng):
    q, kv = problem(rng, dtype=np.float32)
    want, _ = dense(q, kv, kv[..., :512], SCALE)
    for name in amla.backends():
        for options in [
            {},
            {"precision": "bf16x2"},
            {"rescale": "compensated"},
            {"inputs": "bf16"},
            {"split_keys": 32},
        ]:
            out, _ = amla.decode(q, kv, backend=name, **options)
            assert_close(out, want, 1e-2 if options.get("inputs") else 4e-3)


def test_other_objects(rng):
    class Interface:
        def __init__(self, array):
            self.__array_interface__ = array.__array_interface__
            self.array = array

    class Dlpack:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    class Temporary(Dlpack):
        """Nobody but the capsule holds the memory."""

        def __dlpack__(self, **options):
            return self.array.copy().__dlpack__(**options)

    q, kv = problem(rng, dtype=np.float32)
    want, _ = amla.decode(q, kv)
    for wrap in (Interface, Dlpack, Temporary):
        out, _ = amla.decode(wrap(q), wrap(kv))
        assert (out == want).all()
        strided, _ = amla.decode(wrap(q[:, ::2]), wrap(kv))
        assert (strided == want[:, ::2]).all()
    with pytest.raises(TypeError, match="out is of type Dlpack, neither torch's tensor nor numpy's array"):
        amla.decode(q, kv, out=Dlpack(np.empty_like(want)))


def test_no_requests():
    out, lse = amla.decode(np.zeros((0, 1, 8, 576), bfloat16), np.zeros((0, 9, 1, 576), bfloat16))
    assert out.shape == (0, 1, 8, 512) and lse.shape == (0, 8, 1)
