"""Sandboxes for episodes: started warm, frozen at any turn, thawed anywhere in the process.

The one idea: every episode of one kind descends from one prepared sandbox (a *family*). Beginning an episode, forking
it, and going back to a snapshot are then the same thing, a spawn from something frozen, and a snapshot can be thawed
for any environment of the process, long after the one that took it was closed.

A freeze that the agent's own doing prevents (a thread, an open socket) falls back to the last one that worked and to
what was done since, which is done again after thawing; where that goes differently, it is a `ForkDiverged`.

Sandboxes answer on any event loop and thread. What has to be waited for in synchronous methods of an environment runs
on a loop of this module's own (`wait`).
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import re
import threading
import weakref
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from turngym.errors import EnvFault, ForkDiverged
from turngym.sandbox.base import (
    ExecResult,
    ForkLost,
    Language,
    Limits,
    Sandbox,
    SandboxLost,
    Snapshot,
    backend,
)
from turngym.sandbox.interpreter import CellResult

logger = logging.getLogger(__name__)

T = TypeVar("T")

FAMILY_SIZE = 48
"""Machines and frozen ones that share one supervisor; it is one thread, so more would wait for each other."""

_once = threading.RLock()
_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,16}\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """What every machine of one kind starts as."""

    limits: Limits
    warm: str = ""
    "Python cell that is run before anybody gets the machine; empty for machines without a Python session"
    forkable: bool = True
    "False for machines that are never forked with a live session: less of the kernel is open to them"
    sandbox: str = "best"
    "name of the backend"


@dataclass(frozen=True, slots=True)
class _Act:
    """Something that was done to a machine since it was last frozen, and what came of it."""

    method: str
    arguments: tuple[Any, ...]
    timeout_s: float
    said: str
    turn: int


class _Shot:
    """A snapshot of a family; unless it is the first one, it is dropped with its last reference."""

    def __init__(self, family: _Family, snapshot: Snapshot, *, first: bool = False) -> None:
        self.family = family
        self.snapshot = snapshot
        if not first:
            family.users += 1
            weakref.finalize(self, family.release, family.anchor.drop, snapshot).atexit = False

    async def spawn(self) -> Machine:
        """A machine in the state of this snapshot."""
        (sandbox,) = await self.family.anchor.spawn(self.snapshot)
        return Machine(self, sandbox)


class _Family:
    """One cold start and all that descends from it."""

    def __init__(self, anchor: Sandbox, snapshot: Snapshot) -> None:
        self.anchor = anchor
        self.users = 0
        self.first = _Shot(self, snapshot, first=True)
        self._pid = os.getpid()

    def release(
        self, closing: Callable[..., Coroutine[Any, Any, None]], *arguments: Any
    ) -> Future[None] | None:
        """One user less; None in a forked process, where the sandboxes are the parent's."""
        self.users -= 1
        return _submit(_quietly(closing(*arguments))) if os.getpid() == self._pid else None


@dataclass(frozen=True, slots=True)
class Frozen:
    """A machine at one moment. It holds what it needs until nobody refers to it."""

    shot: _Shot
    since: tuple[_Act, ...]
    "what is done again after thawing; nothing where the freeze itself worked"

    async def thaw(self) -> Machine:
        """A machine that goes on from here.

        Raises:
            ForkDiverged: what had to be done again went differently.
            SandboxLost: the family is gone.
        """
        machine = await self.shot.spawn()
        for act in self.since:
            machine.turn = act.turn
            said = await machine.repeat(act)
            if said != act.said:
                await machine.close()
                raise ForkDiverged(
                    f"{act.method} was done again and gave {said[:200]!r}, before {act.said[:200]!r}",
                    turn=act.turn,
                )
        return machine


class Machine:
    """The sandbox of one episode."""

    def __init__(self, shot: _Shot, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self.limits = sandbox.limits
        self._family = shot.family
        self._shot = shot
        self._since: list[_Act] = []
        self.turn = 0
        "of the episode, in which things are done now; 0 is the reset"
        shot.family.users += 1
        self._release = weakref.finalize(self, shot.family.release, sandbox.close)
        self._release.atexit = False

    async def cell(self, language: Language, code: str, *, timeout_s: float) -> CellResult:
        """Run a cell in this machine's session of `language`."""
        result = await (await self._sandbox.interpreter(language)).run(code, timeout_s=timeout_s)
        self._since.append(_Act("cell", (language, code), timeout_s, scrub(result.text), self.turn))
        return result

    async def exec(self, argv: Sequence[str], stdin: bytes = b"", *, timeout_s: float) -> ExecResult:
        """Run a command to its end."""
        result = await self._sandbox.exec(argv, stdin=stdin, timeout_s=timeout_s)
        self._since.append(_Act("exec", (tuple(argv), stdin), timeout_s, scrub(result.text), self.turn))
        return result

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Write a file, as `Sandbox.write` does."""
        await self._sandbox.write(path, data, mode=mode)
        self._since.append(_Act("write", (path, data, mode), 0.0, "", self.turn))

    async def read(self, path: str, *, follow: bool = True) -> bytes:
        """Read a file, as `Sandbox.read` does."""
        return await self._sandbox.read(path, follow=follow)

    async def digest(self) -> str:
        """SHA-256 over all files, as `Sandbox.digest` does."""
        return await self._sandbox.digest()

    async def repeat(self, act: _Act) -> str:
        """Do it again; returns what came of it."""
        match act.method:
            case "cell":
                return scrub((await self.cell(*act.arguments, timeout_s=act.timeout_s)).text)
            case "exec":
                return scrub((await self.exec(*act.arguments, timeout_s=act.timeout_s)).text)
            case _:
                path, data, mode = act.arguments
                await self.write(path, data, mode=mode)
                return ""

    async def freeze(self) -> Frozen:
        """This moment; the machine goes on."""
        try:
            self._shot = _Shot(self._family, await self._sandbox.snapshot())
            self._since.clear()
        except ForkLost as error:
            logger.info("frozen as the moment before %d acts: %s", len(self._since), error)
        return Frozen(self._shot, tuple(self._since))

    async def close(self) -> None:
        """Give everything back. Closing twice is harmless."""
        closing = self._release()
        if closing is not None:
            await asyncio.wrap_future(closing)

    def abandon(self) -> None:
        """`close`, without waiting for it."""
        self._release()


class Machines:
    """Makes machines of one kind. Get the one of this process with `machines`."""

    def __init__(self, blueprint: Blueprint) -> None:
        self.blueprint = blueprint
        self._families: list[_Family] = []
        self._starting = asyncio.Lock()  # belongs to this module's loop

    async def start(self) -> Machine:
        """A machine as the blueprint says.

        Raises:
            MissingDependency: no backend can run here.
            SandboxLost: none could be started.
        """
        return await asyncio.wrap_future(_submit(self._start()))

    async def _start(self) -> Machine:
        async with self._starting:
            room = [family for family in self._families if family.users < FAMILY_SIZE]
            if room:
                try:
                    return await room[-1].first.spawn()
                except SandboxLost as error:
                    logger.warning("a family of sandboxes was lost, and the episodes in it: %s", error)
                    self._families.remove(room[-1])
            family = await self._found()
            self._families.append(family)
            self._retire()
            return await family.first.spawn()

    async def _found(self) -> _Family:
        kind = backend(self.blueprint.sandbox)
        anchor = await kind.create(self.blueprint.limits, forkable=self.blueprint.forkable)
        try:
            if self.blueprint.warm:
                await _warm(anchor, self.blueprint.warm)
            return _Family(anchor, await anchor.snapshot())
        except BaseException:
            await anchor.close()
            raise

    def _retire(self) -> None:
        """Close families that nobody uses, beside the newest."""
        for family in self._families[:-1]:
            if family.users == 0:
                self._families.remove(family)
                _submit(_quietly(family.anchor.close()))

    async def close(self) -> None:
        """End every machine of this kind."""
        families, self._families = self._families, []
        for family in families:
            await asyncio.wrap_future(_submit(_quietly(family.anchor.close())))


def machines(blueprint: Blueprint) -> Machines:
    """The machines of that kind in this process."""
    with _once:
        return _machines(blueprint, os.getpid())


@functools.cache
def _machines(blueprint: Blueprint, pid: int) -> Machines:
    return Machines(blueprint)


async def _warm(anchor: Sandbox, code: str) -> None:
    done = await (await anchor.interpreter("python")).run(code)
    if not done.ok:
        raise EnvFault(f"a machine could not be prepared: {done.text[-500:]}")


async def _quietly(closing: Coroutine[Any, Any, None]) -> None:
    try:
        await closing
    except SandboxLost as error:
        logger.debug("it was gone already: %s", error)


def wait(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run `coroutine` on this module's loop, and block until it is done."""
    return _submit(coroutine).result()


def scrub(text: str) -> str:
    """`text` without the addresses of objects, which differ from process to process.

    >>> scrub("<function f at 0x7f2a1c03e980>")
    '<function f at 0x…>'
    """
    return _ADDRESS.sub("0x…", text)


def _submit(coroutine: Coroutine[Any, Any, T]) -> Future[T]:
    with _once:
        loop = _loop(os.getpid())
    return asyncio.run_coroutine_threadsafe(coroutine, loop)


@functools.cache
def _loop(pid: int) -> asyncio.AbstractEventLoop:
    """The loop of a process; a fork without exec gets its own."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="turngym-machines", daemon=True).start()
    return loop
