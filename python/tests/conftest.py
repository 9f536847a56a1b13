"""Options of the tests."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--grid", action="store_true", help="all cases of FlashMLA's test grids, instead of a sample (an hour)")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test's argument `case` goes through its module's `CASES`, or `SAMPLE` without `--grid`."""
    if "case" in metafunc.fixturenames:
        cases = metafunc.module.CASES if metafunc.config.getoption("--grid") else metafunc.module.SAMPLE
        metafunc.parametrize("case", cases, ids=str)
