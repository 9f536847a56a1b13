"""Packages that tests can do without."""

import importlib
import os
import sys
from types import ModuleType

import pytest


def needs(name: str) -> ModuleType:
    """The module. Without it the file's tests are skipped, aloud, or fail with `CI=true`."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if os.environ.get("CI") == "true":
            raise
        reason = f"NOT RUN: {error}"
        print(reason, file=sys.__stderr__)
        pytest.skip(reason, allow_module_level=True)
