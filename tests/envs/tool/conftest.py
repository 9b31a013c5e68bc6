"""Fixtures of the tool environments' tests."""

from __future__ import annotations

import pytest

from engines import require_sandbox


@pytest.fixture(scope="session")
def sandbox() -> str:
    """Name of a sandbox backend that runs here."""
    return require_sandbox()
