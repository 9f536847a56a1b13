"""Plans, threads, merges, and calls of several threads at once."""

import os
import threading
import time

import numpy as np
import pytest
from golden import assert_close, numbers
from ml_dtypes import bfloat16

import amla


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def test_threads_give_the_same_bits(rng):
    q, kv = numbers(rng, 3, 2, 16, 576), numbers(rng, 3, 5000, 1, 576)
    lengths = np.array([5000, 0, 700], np.int32)
    want = amla.decode(q, kv, cache_seqlens=lengths, threads=1)
    for threads in (2, 3, 7):
        got = amla.decode(q, kv, cache_seqlens=lengths, threads=threads)
        plan = amla.Plan(q, kv, cache_seqlens=lengths, threads=threads)
        assert plan.threads == threads and plan.tasks >= 3
        planned = [amla.decode(q, kv, cache_seqlens=lengths, plan=plan, threads=n) for n in (None, 1, 2)]
        for out, lse in (got, *planned):
            assert (out == want[0]).all() and (lse == want[1]).all()


def test_plans_compare(rng):
    q, kv = numbers(rng, 1, 1, 8, 576), numbers(rng, 1, 5000, 1, 576)
    plans = [amla.Plan(q, kv, threads=threads) for threads in (2, 2, 1)]
    assert plans[0] == plans[1] and plans[0] != plans[2] and plans[0] != 3
    assert hash(plans[0]) == hash(plans[1])
    assert plans[0].partial_tasks > 0 and plans[0].partials_len > 0
    assert repr(plans[2]) == f"amla.Plan(tasks={plans[2].tasks}, threads=1)"


def test_number_of_threads():
    before = amla.get_num_threads()
    assert before >= 1
    amla.set_num_threads(3)
    assert amla.get_num_threads() == 3
    for wrong in (0, 5000):
        with pytest.raises(ValueError, match=f"threads is {wrong}, not in 1..=1024"):
            amla.set_num_threads(wrong)
    amla.set_num_threads(before)


def test_merge(rng):
    q, kv = numbers(rng, 2, 2, 8, 576), numbers(rng, 2, 90, 1, 576)
    want, want_lse = amla.decode(q, kv, out_dtype="float32")
    for base in ("e", "2"):
        parts = [amla.decode(q, kv[:, i : i + 30], out_dtype="float32", lse_base=base) for i in (0, 30, 60)]
        outs, lses = ([part[i] for part in parts] for i in (0, 1))
        out, lse = amla.merge(outs, lses, lse_base=base)
        assert_close(out, want.astype(np.float64))
        assert_close(lse * (np.log(2) if base == "2" else 1), want_lse.astype(np.float64), 1e-5)
        # A tensor of all, outputs of one's own, and the first part as the output.
        stacked = amla.merge(np.stack(outs), np.stack(lses), lse_base=base)
        own = np.empty_like(out), np.empty_like(lse)
        given = amla.merge(outs, lses, out=own[0], lse=own[1], lse_base=base)
        assert given[0] is own[0] and given[1] is own[1]
        in_place = amla.merge(outs, lses, out=outs[0], lse=lses[0], lse_base=base)
        assert in_place[0] is outs[0]
        for merged in (stacked, given, in_place):
            assert (merged[0] == out).all() and (merged[1] == lse).all()


def test_merge_of_empty_rows():
    out, lse = np.ones((2, 1, 4, 64), np.float32), np.zeros((2, 4, 1), np.float32)
    for empty in (np.inf, -np.inf):
        merged, merged_lse = amla.merge([out, 5 * out], [lse, np.full_like(lse, empty)], empty_lse=empty)
        assert (merged == 1).all() and (merged_lse == 0).all()


def test_merge_refuses():
    out, lse = np.full((2, 1, 4, 64), 7, np.float32), np.full((2, 4, 1), 7, np.float32)
    for error, message, arguments, named in [
        (ValueError, "there is nothing to merge", ([], []), {}),
        (ValueError, "there are 1 outs, but 2 lses", ([out], [lse, lse]), {}),
        (TypeError, "outs is bfloat16, not float32", ([out.astype(bfloat16)], [lse]), {}),
        (ValueError, "outs is not contiguous", ([out[..., ::2]], [lse]), {}),
        (ValueError, r"lses has dimensions \[2, 1, 4\], not \[2, 4, 1\]", ([out], [lse.reshape(2, 1, 4)]), {}),
        (ValueError, "out overlaps outs in memory", ([out, out], [lse, lse]), {"out": out}),
        (TypeError, r"merge\(\) got an unexpected keyword argument 'base'", ([out], [lse]), {"base": 2}),
    ]:
        with pytest.raises(error, match=message):
            amla.merge(*arguments, **named)
    assert (out == 7).all() and (lse == 7).all()


def test_calls_of_several_threads(rng):
    """They share the pool and its memory, and run at once: the GIL is released."""
    q, kv = numbers(rng, 2, 2, 32, 576), numbers(rng, 2, 3000, 1, 576)
    want = amla.decode(q, kv, threads=1)
    results = []

    def calls(threads):
        results.extend(amla.decode(q, kv, threads=threads) for _ in range(5))

    workers = [threading.Thread(target=calls, args=(n,)) for n in (1, 1, 2, 2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(results) == 20
    for out, lse in results:
        assert (out == want[0]).all() and (lse == want[1]).all()


def test_the_gil_is_released(rng):
    q, kv = numbers(rng, 8, 4, 128, 576), numbers(rng, 8, 8000, 1, 576)
    counts, done = [], threading.Event()

    def count():
        while not done.is_set():
            counts.append(time.perf_counter())

    counter = threading.Thread(target=count)
    counter.start()
    start = time.perf_counter()
    amla.decode(q, kv, threads=1)
    end = time.perf_counter()
    done.set()
    counter.join()
    # With the GIL held there would be none from beginning to end.
    middle = [t for t in counts if start + (end - start) / 4 < t < end - (end - start) / 4]
    assert middle


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes don't fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_after_a_fork(rng):
    q, kv = numbers(rng, 2, 2, 32, 576), numbers(rng, 2, 3000, 1, 576)
    want, _ = amla.decode(q, kv, threads=2)
    child = os.fork()
    if child == 0:
        # Nothing of the child may go on with the other tests.
        try:
            out, _ = amla.decode(q, kv, threads=2)
            os._exit(0 if (out == want).all() else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
