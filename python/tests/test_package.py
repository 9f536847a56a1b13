"""What the package says of itself, and its benchmark."""

import ast
import inspect
import json
import math
import pathlib
import re
import subprocess
import sys

import pytest

import amla


def test_stub_has_all_names():
    stub = ast.parse(pathlib.Path(amla.__file__).with_name("__init__.pyi").read_text())
    named = {node.name for node in stub.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    named |= {node.target.id for node in stub.body if isinstance(node, ast.AnnAssign) and node.value is None}
    assert named == set(amla.__all__)
    assert pathlib.Path(amla.__file__).with_name("py.typed").exists()


@pytest.mark.parametrize("name", ["decode", "Plan", "merge", "encode", "Rows"])
def test_signatures_are_the_stub_s(name):
    """`help` shows what type checkers know."""
    stub = ast.parse(pathlib.Path(amla.__file__).with_name("__init__.pyi").read_text())
    node = next(node for node in stub.body if getattr(node, "name", None) == name)
    if isinstance(node, ast.ClassDef):
        node = next(part for part in node.body if getattr(part, "name", None) == "__init__")
    arguments = node.args
    defaults = [ast.unparse(d) if d else None for d in arguments.kw_defaults]
    want = [arg.arg for arg in arguments.args if arg.arg != "self"]
    signature = inspect.signature(getattr(amla, name))
    assert [p.name for p in signature.parameters.values() if p.kind is not p.KEYWORD_ONLY] == want
    own = {p.name: p.default for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY}
    assert list(own) == [arg.arg for arg in arguments.kwonlyargs]
    for (argument, value), default in zip(own.items(), defaults):
        assert repr(value) == default or default == "..." and value == math.inf, argument


def test_docstrings():
    for name in set(amla.__all__) - {"__version__"}:
        assert getattr(amla, name).__doc__, name
    # Each of its arguments is described.
    for argument in inspect.signature(amla.decode).parameters:
        assert re.search(rf"\b{argument}\b", amla.decode.__doc__), argument


def test_backends():
    assert amla.backend() in amla.backends() and amla.backends()[0] == "portable"


@pytest.mark.parametrize("call", ["set_max_backend('portable'); assert amla.backends() == ['portable']", "permit_amx()"])
def test_settings_of_a_process(call):
    subprocess.run([sys.executable, "-c", f"import amla; amla.{call}"], check=True)


def test_settings_come_first():
    amla.backend()
    with pytest.raises(ValueError, match="portable can't be made the cap: this process has used a backend already"):
        amla.set_max_backend("portable")


def bench(*arguments: str) -> str:
    command = [sys.executable, "-m", "amla.bench", "--threads", "1", "--rounds", "2", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_bench():
    report = json.loads(bench("--heads", "2", "--keys", "64", "--json"))
    [row] = report["rows"]
    assert {"amla", "numpy"} <= set(row["ms"]) and all(ms > 0 for ms in row["ms"].values())
    text = bench("--heads", "2", "--keys", "64")
    assert "| 2 | 64 |" in text and "amla    #" in text


def test_bench_of_overhead():
    report = json.loads(bench("--overhead", "--json"))
    assert report["kernel_us"] > 0 and "numpy" in report["calls"]
    assert "over the kernel" in bench("--overhead")
