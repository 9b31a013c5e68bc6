"""What tests share. Import the helper with `from conftest import require`."""

from __future__ import annotations

import importlib
import os
from types import ModuleType

import pytest


def require(name: str, install: str) -> ModuleType:
    """Import the optional module `name`, or skip the test; where CI is set, its absence is a failure.

    Args:
        name: the module.
        install: what provides it, as `pip install` takes it ("turngym[data]").
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        words = f"{name} can't be imported ({error}): pip install {install}"
    if os.environ.get("CI"):
        pytest.fail(words)
    pytest.skip(words)
