"""Times `amla.decode` against PyTorch and numpy: `python -m amla.bench`.

One token of each request attends to its cache, in BF16: `q [b, 1, heads, 576]`, `kv [b, keys, 1, 576]`. The same is computed by

| name | what |
|---|---|
| amla | `amla.decode` |
| sdpa | torch's `scaled_dot_product_attention`, heads as queries of one KV head |
| matmul | torch's `softmax(q @ k.T * scale) @ v` |
| numpy | the same in FP32, as numpy has no BF16; converted before |

All have the same number of threads. They run in turn, once in each round, and the median of all rounds counts. Before, results are
compared. `--overhead` times calls of one head and one key instead: what a call costs beside the kernel.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import amla

D_QK, D_V = 576, 512
SCALE = D_QK**-0.5
BAR = 40


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m amla.bench", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--heads", type=int, nargs="+", default=[16, 128], help="query heads")
    parser.add_argument("--keys", type=int, nargs="+", default=[1024, 4096, 16384], help="keys of a request")
    parser.add_argument("--batch", type=int, default=1, help="requests")
    parser.add_argument("--threads", type=int, default=amla.get_num_threads(), help="threads of each library")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--amx", action="store_true", help="have amla use Intel's AMX, as torch does by itself")
    parser.add_argument("--overhead", action="store_true", help="time calls of one head and one key")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--svg", metavar="FILE", help="draw a chart, which needs matplotlib")
    options = parser.parse_args(arguments)
    # Before numpy is imported.
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = str(options.threads)
    if options.amx and not amla.permit_amx():
        sys.exit("--amx: this processor has no AMX, or Linux doesn't permit it")
    amla.set_num_threads(options.threads)
    report = overhead(options.rounds) if options.overhead else compare(options)
    report = {**machine(options.threads), **report}
    if options.json:
        print(json.dumps(report))
    else:
        print_report(report)
    if options.svg:
        draw(report, options.svg)


def machine(threads: int) -> dict[str, Any]:
    """Where figures are from."""
    versions = {"amla": amla.__version__, "python": platform.python_version()}
    versions |= {name: sys.modules[name].__version__ for name in ("numpy", "torch") if name in sys.modules}
    return {"processor": processor(), "backend": amla.backend(), "threads": threads, "versions": versions}


def processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def medians(calls: dict[str, Callable[[], Any]], rounds: int, repeat: int = 1) -> dict[str, float]:
    """Seconds of each call, which take turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(repeat):
                call()
            times[name].append((time.perf_counter() - start) / repeat)
    return {name: statistics.median(all_times) for name, all_times in times.items()}


def has(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def compare(options: argparse.Namespace) -> dict[str, Any]:
    rows = []
    for heads in options.heads:
        for keys in options.keys:
            calls = contestants(options.batch, heads, keys, options.threads)
            seconds = medians(calls, options.rounds)
            rows.append({"batch": options.batch, "heads": heads, "keys": keys, "ms": {n: 1e3 * t for n, t in seconds.items()}})
    return {"rounds": options.rounds, "rows": rows}


def contestants(batch: int, heads: int, keys: int, threads: int) -> dict[str, Callable[[], Any]]:
    """The calls, each of which has been compared with the others."""
    import numpy as np

    rng = np.random.default_rng(1)
    q32, kv32 = (bf16_numbers(rng.standard_normal(dims, np.float32)) for dims in ((batch, heads, D_QK), (batch, keys, D_QK)))
    k32, v32 = kv32.transpose(0, 2, 1), kv32[..., :D_V]

    def by_numpy() -> np.ndarray:
        scores = q32 @ k32 * np.float32(SCALE)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return weights @ v32 / weights.sum(-1, keepdims=True)

    # The upper half of each number, which is its BF16.
    q16, kv16 = ((x.view(np.uint32) >> 16).astype(np.uint16) for x in (q32, kv32))
    q, kv = q16.reshape(batch, 1, heads, D_QK), kv16.reshape(batch, keys, 1, D_QK)
    calls: dict[str, Callable[[], Any]] = {"amla": lambda: amla.decode(q, kv, softmax_scale=SCALE)[0]}
    if has("torch"):
        calls |= by_torch(q16, kv16, threads)
    calls["numpy"] = by_numpy
    want = by_numpy()
    for name, call in calls.items():
        got = to_float32(call()).reshape(want.shape)
        error = float(np.linalg.norm(got - want) / np.linalg.norm(want))
        if not error < 2e-2:
            sys.exit(f"{name} is off by {error}")
    return calls


def bf16_numbers(x: Any) -> Any:
    """FP32 numbers, cut to BF16."""
    import numpy as np

    return (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def to_float32(x: Any) -> Any:
    """torch's tensor, or an array of FP32 or of BF16's bits."""
    import numpy as np

    if not isinstance(x, np.ndarray):
        return x.float().numpy()
    return x if x.dtype == np.float32 else (x.astype(np.uint32) << 16).view(np.float32)


def by_torch(q16: Any, kv16: Any, threads: int) -> dict[str, Callable[[], Any]]:
    import torch

    torch.set_num_threads(threads)
    q, kv = (torch.from_numpy(x).view(torch.bfloat16) for x in (q16, kv16))
    k, v = kv, kv[..., :D_V]

    def sdpa() -> torch.Tensor:
        with torch.inference_mode():
            q_heads, k_heads, v_heads = (x[:, None] for x in (q, k, v))
            return torch.nn.functional.scaled_dot_product_attention(q_heads, k_heads, v_heads, scale=SCALE)

    def matmul() -> torch.Tensor:
        with torch.inference_mode():
            return torch.softmax(q @ k.mT * SCALE, -1) @ v

    return {"sdpa": sdpa, "matmul": matmul}


def overhead(rounds: int) -> dict[str, Any]:
    """Times of calls of one head and one key, and of a request within a call of many, which is the kernel's part."""
    import numpy as np

    def numbers(requests: int) -> list[np.ndarray]:
        return [np.zeros((requests, 1, 1, D_QK), np.uint16) for _ in range(2)]

    many = 1024
    one, batch = numbers(1), numbers(many)
    out, lse = amla.decode(*one, threads=1)
    calls: dict[str, Callable[[], Any]] = {
        "numpy": lambda: amla.decode(*one, threads=1),
        "numpy, out and lse given": lambda: amla.decode(*one, out=out, lse=lse, threads=1),
    }
    if has("ml_dtypes"):
        import ml_dtypes

        typed = [x.view(ml_dtypes.bfloat16) for x in one]
        calls["numpy with ml_dtypes"] = lambda: amla.decode(*typed, threads=1)
    if has("torch"):
        import torch

        importlib.import_module("amla.torch")
        tensors = [torch.from_numpy(x).view(torch.bfloat16) for x in one]
        out_t, lse_t = amla.decode(*tensors, threads=1)
        calls["torch"] = lambda: amla.decode(*tensors, threads=1)
        calls["torch, out and lse given"] = lambda: amla.decode(*tensors, out=out_t, lse=lse_t, threads=1)
        calls["torch.ops.amla.decode"] = lambda: torch.ops.amla.decode(*tensors, threads=1)
        calls["torch.ops.amla.decode_out"] = lambda: torch.ops.amla.decode_out(*tensors, out=out_t, lse=lse_t, threads=1)
    for call in calls.values():
        call()
    seconds = medians(calls, 20 * rounds, 20)
    kernel = medians({"kernel": lambda: amla.decode(*batch, threads=1)}, rounds)["kernel"] / many
    rows = {name: {"us": 1e6 * t, "overhead_us": 1e6 * (t - kernel)} for name, t in seconds.items()}
    return {"kernel_us": 1e6 * kernel, "calls": rows}


def print_report(report: dict[str, Any]) -> None:
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    print(f"{report['processor']}, {report['backend']}, {report['threads']} threads; {versions}\n")
    if "calls" in report:
        print(f"one head, one key; the kernel takes {report['kernel_us']:.1f} us of a request among many\n")
        print("| call | us | over the kernel |\n|---|---|---|")
        for name, row in report["calls"].items():
            print(f"| {name} | {row['us']:.1f} | {row['overhead_us']:.1f} |")
        return
    names = list(report["rows"][0]["ms"])
    print(f"ms, medians of {report['rounds']} rounds; in brackets times amla's\n")
    print(f"| heads | keys | {' | '.join(names)} |\n|---|---|{'---|' * len(names)}")
    for row in report["rows"]:
        own = row["ms"]["amla"]
        cells = [f"{ms:.2f}" if name == "amla" else f"{ms:.2f} ({ms / own:.1f})" for name, ms in row["ms"].items()]
        print(f"| {row['heads']} | {row['keys']} | {' | '.join(cells)} |")
    for row in report["rows"]:
        print(f"\n{row['batch']} x {row['heads']} heads, {row['keys']} keys")
        largest = max(row["ms"].values())
        for name, ms in row["ms"].items():
            print(f"  {name:8}{'#' * max(1, round(BAR * ms / largest))} {ms:.2f} ms")


def draw(report: dict[str, Any], path: str) -> None:
    """Bars of times relative to amla's, a group for each problem."""
    if "rows" not in report:
        sys.exit("--svg draws the comparison, not --overhead")
    if not has("matplotlib"):
        sys.exit("--svg needs matplotlib: pip install matplotlib")
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    rows = report["rows"]
    names = list(rows[0]["ms"])
    figure, axes = pyplot.subplots(figsize=(8, 4), layout="constrained")
    for i, name in enumerate(names):
        at = [group + (i - (len(names) - 1) / 2) * 0.8 / len(names) for group in range(len(rows))]
        axes.bar(at, [row["ms"][name] / row["ms"]["amla"] for row in rows], 0.8 / len(names), label=name)
    axes.set_xticks(range(len(rows)), [f"{row['heads']} heads\n{row['keys']} keys" for row in rows])
    axes.set_ylabel("time, times amla's")
    axes.set_title(f"{report['processor']}, {report['threads']} threads", fontsize="medium")
    axes.legend()
    figure.savefig(path)


if __name__ == "__main__":
    main()
