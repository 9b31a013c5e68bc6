"""Asynchronous jobs: trying again, working in parallel with a limit, stages, and locks with turns."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any


class Log:
    """Notes of what happened, in order."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    async def add(self, line: str) -> None:
        """Note a line, after letting others run."""
        await asyncio.sleep(0)
        self.lines.append(line)


async def retry(job: Callable[[int], Awaitable[int]], attempts: int = 3, log: Log | None = None) -> int:
    """The result of the first attempt that works. Attempts are numbered from 1, and each failure is noted.

    Raises:
        ValueError: the last attempt failed, too.
    """
    for attempt in range(1, attempts + 1):
        try:
            return await job(attempt)
        except ValueError:
            if log is not None:
                await log.add(f"attempt {attempt} failed")
            if attempt == attempts:
                raise
    raise ValueError("no attempts")


async def together(jobs: list[Callable[[], Awaitable[int]]], limit: int = 2) -> list[int]:
    """Run all jobs, at most `limit` at the same time; results in the order of the jobs."""
    places = asyncio.Semaphore(limit)

    async def one(job: Callable[[], Awaitable[int]]) -> int:
        async with places:
            return await job()

    return list(await asyncio.gather(*(one(job) for job in jobs)))


async def pipeline(
    items: list[int], stages: list[Callable[[int], Awaitable[int | None]]], log: Log
) -> list[int]:
    """Send every item through all stages; a stage that gives None drops the item, which is noted."""
    finished: list[int] = []
    for item in items:
        current: Any = item
        for number, stage in enumerate(stages, start=1):
            current = await stage(current)
            if current is None:
                await log.add(f"stage {number} dropped {item}")
                break
        if current is not None:
            finished.append(current)
    return finished


class Turnstile:
    """Lets at most `places` in at a time; who waits is let in in the order of arrival."""

    def __init__(self, places: int = 1) -> None:
        self.free = places
        self.peak = 0
        self._inside = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def enter(self) -> None:
        """Come in, or wait until somebody leaves."""
        if self.free > 0 and not self._waiting:
            self.free -= 1
        else:
            ticket = asyncio.get_running_loop().create_future()
            self._waiting.append(ticket)
            await ticket
        self._inside += 1
        self.peak = max(self.peak, self._inside)

    def leave(self) -> None:
        """Go out; whoever waited longest comes in."""
        self._inside -= 1
        if self._waiting:
            self._waiting.popleft().set_result(None)
        else:
            self.free += 1


async def crowd(names: list[str], places: int, log: Log) -> int:
    """Send everybody through a turnstile and note who comes and goes; returns how many were inside at most."""
    gate = Turnstile(places)

    async def visit(name: str) -> None:
        await gate.enter()
        await log.add(f"{name} in")
        await log.add(f"{name} out")
        gate.leave()

    await asyncio.gather(*(visit(name) for name in names))
    return gate.peak


async def timed(job: Callable[[], Awaitable[int]], ticks: int = 5, default: int = -1) -> int:
    """The result of a job if it needs at most so many turns of the event loop, else `default`."""
    task = asyncio.ensure_future(job())
    for _ in range(ticks + 1):
        await asyncio.sleep(0)
        if task.done():
            return await task
    task.cancel()
    return default


PROBES = (
    "async def job(n):\n    if n < 3:\n        raise ValueError\n    return n * 10\nawait retry(job)",
    "async def job(n):\n    if n < 3:\n        raise ValueError\n    return n\nlog = Log()\n(await retry(job, 5, log), log.lines)",
    "async def job(n):\n    raise ValueError\nlog = Log()\nawait retry(job, 2, log)",
    "async def job(n):\n    raise ValueError\nlog = Log()\ntry:\n    await retry(job, 2, log)\nexcept ValueError:\n    pass\nlog.lines",
    "async def job(n):\n    return n\nawait retry(job, 1)",
    "async def job(n):\n    return n\nawait retry(job, 0)",
    "async def job(n):\n    if n < 4:\n        raise ValueError\n    return n\nawait retry(job)",
    "async def one():\n    return 1\nasync def two():\n    await asyncio.sleep(0)\n    return 2\nawait together([two, one])",
    "live = peak = 0\nasync def job():\n    global live, peak\n    live += 1\n    peak = max(peak, live)\n    await asyncio.sleep(0)\n    live -= 1\n    return peak\n(await together([job] * 6), peak)",
    "live = peak = 0\nasync def job():\n    global live, peak\n    live += 1\n    peak = max(peak, live)\n    await asyncio.sleep(0)\n    live -= 1\n    return 1\n(await together([job] * 6, 3), peak)",
    "await together([])",
    "async def double(n):\n    return n * 2\nasync def small(n):\n    return n if n < 10 else None\nlog = Log()\n(await pipeline([1, 5, 4, 20], [double, small], log), log.lines)",
    "async def odd(n):\n    return n if n % 2 else None\nasync def add(n):\n    return n + 1\nlog = Log()\n(await pipeline([1, 2, 3], [odd, add], log), log.lines)",
    "async def zero(n):\n    return 0\nawait pipeline([3], [zero], Log())",
    "log = Log()\n(await crowd(['a', 'b', 'c'], 1, log), log.lines)",
    "log = Log()\n(await crowd(['a', 'b', 'c', 'd'], 2, log), sorted(log.lines))",
    "log = Log()\nawait crowd(['a', 'b', 'c', 'd'], 2, log)\nlog.lines",
    "gate = Turnstile(2)\nawait gate.enter()\nawait gate.enter()\nfull = gate.free\ngate.leave()\n(full, gate.free, gate.peak)",
    "gate = Turnstile()\nawait gate.enter()\ngate.leave()\nawait gate.enter()\n(gate.free, gate.peak)",
    "async def slow():\n    for _ in range(3):\n        await asyncio.sleep(0)\n    return 7\n(await timed(slow), await timed(slow, 1), await timed(slow, 1, 0))",
    "async def slow():\n    for _ in range(4):\n        await asyncio.sleep(0)\n    return 7\n[await timed(slow, n) for n in range(6)]",
    "async def slow():\n    for _ in range(6):\n        await asyncio.sleep(0)\n    return 7\nawait timed(slow)",
)  # fmt: skip
NAMES = {
    "Turnstile": ("Gate", "Barrier"),
    "retry": ("attempt_until", "persist"),
    "together": ("run_all", "in_parallel"),
    "pipeline": ("through", "process"),
    "crowd": ("visitors", "queue_up"),
    "timed": ("within", "patiently"),
    "peak": ("most", "busiest"),
}
