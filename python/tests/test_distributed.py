"""The example that shards a cache over torch.distributed's ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from optional import needs

needs("torch")
EXAMPLE = Path(__file__).parents[1] / "examples/distributed.py"



def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=EXAMPLE.parent, capture_output=True, text=True, check=False, timeout=300
    )


def test_ranks_agree() -> None:
    result = run(EXAMPLE)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert [line.split(" ranks")[0] for line in lines[:-1]] == ["1", "2", "4"]
    assert all(line.endswith("as without shards") for line in lines[:-1])
    assert lines[-1] == "3 of 3 numbers of ranks agree within 1e-06"


def test_wrong_results_are_told() -> None:
    """Rank 1's shard has other keys."""
    change = """
import sys, distributed
right = distributed.shard_of
distributed.shard_of = lambda rank, ranks, kv: right(rank, ranks, kv * (1 + rank))
sys.exit(distributed.main())
"""
    result = run("-c", change, "--ranks", "1", "2")
    assert result.returncode == 1, result.stderr
    assert result.stdout.count("WRONG") == 2
    assert result.stdout.splitlines()[-1] == "1 of 2 numbers of ranks agree within 1e-06"
