"""Fixtures of the sandbox tests."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from missing import skip_or_fail
from turngym.sandbox.base import Limits, Sandbox
from turngym.sandbox.bubblewrap import Bubblewrap
from turngym.sandbox.supervised import SupervisedSandbox

T = TypeVar("T")
SMALL = Limits(wall_s=10, cpu_s=10, memory_mib=256, pids=32, disk_mib=16, files=2000, output_kib=64)


def require_bubblewrap() -> None:
    """Skip where bubblewrap can't run; where CI is set, fail."""
    reason = Bubblewrap.unavailable()
    if reason is not None:
        skip_or_fail(f"bubblewrap: {reason}")


@pytest.fixture(scope="session")
def bubblewrap() -> Bubblewrap:
    require_bubblewrap()
    return Bubblewrap()


@pytest.fixture
def inside(bubblewrap: Bubblewrap) -> Callable[[Callable[[SupervisedSandbox], Awaitable[T]]], T]:
    """Run an async function on a fresh sandbox, and close that."""

    def run(body: Callable[[SupervisedSandbox], Awaitable[T]]) -> T:
        async def whole() -> T:
            async with await bubblewrap.create(SMALL) as sandbox:
                return await body(sandbox)

        return asyncio.run(whole())

    return run


@pytest.fixture
def state_dir():
    """A folder that every user can walk to, unlike `tmp_path`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        path.chmod(0o711)
        yield path


@asynccontextmanager
async def closing(*sandboxes: Sandbox) -> AsyncIterator[None]:
    """Close `sandboxes` at the end."""
    try:
        yield
    finally:
        for each in sandboxes:
            await each.close()
