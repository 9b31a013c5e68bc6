"""What tests share. Import the helper with `from conftest import require`."""

from __future__ import annotations

import importlib
import os
from types import ModuleType

from hypothesis import HealthCheck, settings

from missing import skip_or_fail

# A busy machine is no failure, and in CI the same commit gets the same examples.
settings.register_profile(
    "turngym",
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("turngym")


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
    skip_or_fail(words)
