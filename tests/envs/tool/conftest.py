"""Fixtures of the tool environments' tests."""

from __future__ import annotations

import pytest

from missing import skip_or_fail
from turngym.errors import MissingDependency
from turngym.sandbox.base import backend


@pytest.fixture(scope="session")
def sandbox() -> str:
    """Name of a sandbox backend that runs here; where none does, skip, or fail where CI is set."""
    try:
        return backend("best").name
    except MissingDependency as error:
        skip_or_fail(str(error))
