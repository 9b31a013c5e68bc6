"""What becomes of a test whose dependency is missing."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def skip_or_fail(words: str) -> NoReturn:
    """Skip the running test; where CI is set, fail it. `words` name what is missing and how to get it."""
    if os.environ.get("CI"):
        pytest.fail(words)
    pytest.skip(words)
