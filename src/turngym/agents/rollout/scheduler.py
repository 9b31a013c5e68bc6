"""Run many things at once without lock-step: each advances alone, and order is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def run_all(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Results in the order given. The first error cancels the rest and is raised as it is, not as a group."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(c) for c in coroutines]
    except BaseExceptionGroup as errors:
        first = _first(errors)
    else:
        return [task.result() for task in tasks]
    raise first  # outside of `except`, so that its own cause and context stay what they are


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
