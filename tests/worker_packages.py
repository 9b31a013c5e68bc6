"""Virtual environments that tests of adapters need: made from PyPI once, and kept in the user's cache."""

from __future__ import annotations

import os

import pytest

from turngym.envs.adapters.worker_venv import Pins, interpreter
from turngym.errors import MissingDependency


def require_worker(pins: Pins) -> None:
    """Make the environment with `pins`, or skip the test; where CI is set, that it can't be made is a failure."""
    try:
        interpreter(pins)
    except MissingDependency as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))
