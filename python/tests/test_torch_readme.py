"""The README's examples that need torch print what it says. `.ci/python` runs the others without torch."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from optional import needs

needs("torch")
needs("transformers")
README = (Path(__file__).parents[1] / "README.md").read_text()
EXAMPLES = re.findall(r"^```py\n(.*?)^```\n\nIt prints `(.*?)`", README, re.M | re.S)


def test_all_are_found() -> None:
    assert len(EXAMPLES) == README.count("```py\n") == 3


@pytest.mark.parametrize(("example", "said"), EXAMPLES, ids=["compiler", "flash_mla", "transformers"])
def test_example(example: str, said: str) -> None:
    result = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == said
