"""A cache sharded over the ranks of torch.distributed: each rank decodes over its keys, one all-gather merges the results.

    python distributed.py               # 1, 2 and 4 ranks on this machine
    python distributed.py --ranks 3     # others

Every rank ends up with the results over all keys. The ranks' results are compared with those of one process without shards.
"""

from __future__ import annotations

import argparse
import datetime
import multiprocessing
import os
import sys
import tempfile

import torch
import torch.distributed as dist

import amla

LENGTHS = [1000, 3, 257]
"""Keys of each request. The second has fewer than there are ranks: some ranks have none of them."""

S_Q, H_Q, D_QK, D_V = 2, 16, 576, 512
SCALE = 192**-0.5
LIMIT = 1e-6
"""On differences, relative to the largest number."""


def decode_sharded(q: torch.Tensor, shard: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """O and lse over the keys of all ranks.

    Args:
      q: `[b, s_q, h_q, d_qk]`, the same on all ranks.
      shard: this rank's part of the cache, `[b, s_k, 1, d_qk]`.
      lengths: int32, `[b]`, the keys of each request in it.

    Returns:
      O, float32, `[b, s_q, h_q, d_v]`, and lse, float32, `[b, h_q, s_q]`.
    """
    b, s_q, h_q, _ = q.shape
    rows = b * s_q * h_q
    message = torch.empty(1, rows * (D_V + 1))
    messages = torch.empty(dist.get_world_size(), rows * (D_V + 1))

    def results(message: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """O and lse in a message."""
        o, lse = message.split([rows * D_V, rows])
        return o.view(b, s_q, h_q, D_V), lse.view(b, h_q, s_q)

    out, lse = results(message[0])
    amla.decode(q, shard, softmax_scale=SCALE, cache_seqlens=lengths, out=out, lse=lse)
    dist.all_gather_into_tensor(messages, message)
    outs, lses = zip(*map(results, messages))
    return amla.merge(outs, lses)


def problem() -> tuple[torch.Tensor, torch.Tensor]:
    """Queries `[b, s_q, h_q, d_qk]` and the keys of all ranks, `[b, s_k, 1, d_qk]`, in FP32."""
    generator = torch.Generator().manual_seed(7)
    q = torch.randn(len(LENGTHS), S_Q, H_Q, D_QK, generator=generator)
    kv = torch.randn(len(LENGTHS), max(LENGTHS), 1, D_QK, generator=generator)
    return q, kv


def shard_of(rank: int, ranks: int, kv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's keys: an equal part of each request's, in order. Behind them there is NaN."""
    parts = []
    for request, length in zip(kv, LENGTHS):
        begin, end = rank * length // ranks, (rank + 1) * length // ranks
        parts.append(request[begin:end])
    lengths = torch.tensor([len(part) for part in parts], dtype=torch.int32)
    shard = torch.full((len(parts), int(lengths.max()), 1, D_QK), torch.nan)
    for row, part in zip(shard, parts):
        row[: len(part)] = part
    return shard, lengths


def run(rank: int, ranks: int, store: str) -> None:
    """One rank. It exits with 1 if a result is off."""
    wait = datetime.timedelta(minutes=2)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=wait)
    q, kv = problem()
    out, lse = decode_sharded(q, *shard_of(rank, ranks, kv))
    lengths = torch.tensor(LENGTHS, dtype=torch.int32)
    want_out, want_lse = amla.decode(q, kv, softmax_scale=SCALE, cache_seqlens=lengths, threads=1)
    worst = [float((got - want).abs().max() / want.abs().max()) for got, want in ((out, want_out), (lse, want_lse))]
    right = all(off <= LIMIT for off in worst)
    if rank == 0 or not right:
        keys = " + ".join(map(str, LENGTHS))
        verdict = "as without shards" if right else "WRONG"
        print(f"{ranks} ranks, {keys} keys: O within {worst[0]:.1e}, lse within {worst[1]:.1e}: {verdict}", flush=True)
    dist.destroy_process_group()
    sys.exit(not right)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    arguments = parser.parse_args()
    # All ranks are on this machine.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    failed = 0
    for ranks in arguments.ranks:
        with tempfile.TemporaryDirectory() as folder:
            store = os.path.join(folder, "store")
            context = multiprocessing.get_context("fork")
            processes = [context.Process(target=run, args=(rank, ranks, store)) for rank in range(ranks)]
            for process in processes:
                process.start()
            for process in processes:
                process.join()
            failed += any(process.exitcode for process in processes)
    print(f"{len(arguments.ranks) - failed} of {len(arguments.ranks)} numbers of ranks agree within {LIMIT:g}")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
