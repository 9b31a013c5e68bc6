"""Warm sandboxes: taken in microseconds, returned clean or not at all.

The one idea: a returned sandbox is not cleaned, it is *restored* from the snapshot that was taken right after it
was prepared, and its digest is compared with the one of that moment. One that differs, or breaks on the way, is
closed and replaced; it is never handed out.

    pool = Pool(backend("bubblewrap"), size=8)
    async with pool.take() as sandbox:
        await sandbox.exec(["true"])
    await pool.close()
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from turngym.errors import ConfigError
from turngym.sandbox.base import Backend, Limits, Sandbox, SandboxLost, Snapshot

logger = logging.getLogger(__name__)

Prepare = Callable[[Sandbox], Awaitable[None]]


@dataclass(slots=True)
class PoolCounts:
    """What a pool has done."""

    made: int = 0
    "sandboxes started"
    taken: int = 0
    "sandboxes handed out"
    reset: int = 0
    "sandboxes restored and verified"
    discarded: int = 0
    "sandboxes that broke or came back different"


@dataclass(slots=True)
class _Slot:
    sandbox: Sandbox
    clean: Snapshot
    digest: str


class Pool:
    """At most `size` sandboxes of one kind. Use it from one event loop."""

    def __init__(
        self,
        backend: Backend,
        *,
        size: int = 4,
        limits: Limits | None = None,
        forkable: bool = True,
        prepare: Prepare | None = None,
    ) -> None:
        """Make an empty pool; `fill` warms it.

        Args:
            backend: what makes the sandboxes.
            size: sandboxes at the same time, idle ones included; whoever comes when all are taken waits.
            limits: of each sandbox.
            forkable: see `Backend.create`.
            prepare: brings a new sandbox into the state that everybody gets it in (files, a session).

        Raises:
            ConfigError: for a size below one.
        """
        if size < 1:
            raise ConfigError(f"a pool needs a size of at least 1, got {size}")
        self.size = size
        self.counts = PoolCounts()
        self._backend = backend
        self._limits = limits
        self._forkable = forkable
        self._prepare = prepare
        self._idle: list[_Slot] = []
        self._room = asyncio.Semaphore(size)
        self._out = 0
        "taken, or being reset"
        self._resets: set[asyncio.Task[None]] = set()
        self._closed = False

    async def fill(self) -> None:
        """Start sandboxes until the pool is full, those in use included.

        Raises:
            SandboxLost: one could not be started; those that could are there.
        """
        missing = self.size - len(self._idle) - self._out
        outcomes = await asyncio.gather(*(self._add() for _ in range(missing)), return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    async def _add(self) -> None:
        async with self._room:
            self._idle.append(await self._make())

    @contextlib.asynccontextmanager
    async def take(self) -> AsyncIterator[Sandbox]:
        """A clean sandbox for the time of the `async with`; it is reset in the background afterwards.

        Raises:
            SandboxLost: none could be started.
        """
        if self._closed:
            raise SandboxLost("the pool was closed")
        await self._room.acquire()
        self._out += 1
        try:
            slot = self._idle.pop() if self._idle else await self._make()
        except BaseException:
            self._out -= 1
            self._room.release()
            raise
        self.counts.taken += 1
        try:
            yield slot.sandbox
        finally:
            task = asyncio.ensure_future(self._take_back(slot))
            self._resets.add(task)
            task.add_done_callback(self._resets.discard)

    async def _make(self) -> _Slot:
        sandbox = await self._backend.create(self._limits, forkable=self._forkable)
        try:
            if self._prepare is not None:
                await self._prepare(sandbox)
            clean = await sandbox.snapshot()
            slot = _Slot(sandbox, clean, await sandbox.digest())
        except BaseException:
            await sandbox.close()
            raise
        self.counts.made += 1
        return slot

    async def _take_back(self, slot: _Slot) -> None:
        try:
            if await self._reset(slot):
                self.counts.reset += 1
                self._idle.append(slot)
            else:
                self.counts.discarded += 1
                await slot.sandbox.close()
        finally:
            self._out -= 1
            self._room.release()

    async def _reset(self, slot: _Slot) -> bool:
        if self._closed:
            return False
        try:
            await slot.sandbox.restore(slot.clean)
            seen = await slot.sandbox.digest()
        except Exception as error:  # noqa: BLE001 - whatever is wrong with it, nobody gets it
            logger.warning("a sandbox broke in use and is replaced: %s", error)
            return False
        if seen != slot.digest:
            logger.error("a sandbox came back from its snapshot with another digest and is discarded")
            return False
        return True

    async def close(self) -> None:
        """Close every idle sandbox; one that is in use is closed when it comes back."""
        self._closed = True
        await asyncio.gather(*self._resets)
        idle, self._idle = self._idle, []
        await asyncio.gather(*(slot.sandbox.close() for slot in idle))
