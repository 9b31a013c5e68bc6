"""Sandboxes that are kept by a supervisor of ours (see `inside.supervisor`), whatever the walls around that are.

The one idea: a backend builds the outer walls and starts the supervisor behind them; from there on every backend is
the same. Forks of one cold start (*a family*) live under one supervisor, on one connection, on one lease.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import weakref
from collections.abc import Mapping, Sequence
from typing import IO, Any, Final, Protocol, Self, cast

from turngym.errors import ConfigError, unknown_name
from turngym.sandbox.base import (
    WORKSPACE,
    ExecResult,
    ForkLost,
    Language,
    Limits,
    Sandbox,
    SandboxLost,
    Snapshot,
)
from turngym.sandbox.channel import Channel, ChannelClosed
from turngym.sandbox.history import MAX_BYTES, RECORDED, History, Start
from turngym.sandbox.inside import hugepages
from turngym.sandbox.inside.wire import Header
from turngym.sandbox.interpreter import Interpreter

logger = logging.getLogger(__name__)

_ANSWER_WITHIN_S = 60.0
FAMILY: Final = 8
"how many times one sandbox's memory a whole family may hold (a backstop, where control groups are writable)"
SESSION: Final = (
    "import sys; sys.path.insert(0, '/.turngym'); from turngym_inside import pysession; "
    "sys.path[0] = ''; pysession.main()"
)


class Lease(Protocol):
    """The right to what the supervisor runs in."""

    async def end(self) -> None:
        """End it and wait until it is gone. Ending twice is harmless."""
        ...

    def end_soon(self) -> object:
        """Ask for the end without waiting for it."""
        ...


def supervisor_config(
    limits: Limits, *, forkable: bool, python: str, env: Mapping[str, str]
) -> dict[str, Any]:
    """What a supervisor needs to know.

    Args:
        limits: of each sandbox.
        forkable: live Python sessions can be forked.
        python: path of the interpreter inside.
        env: the clean environment of every command and session.
    """
    return {
        "limits": {
            "cpu_s": limits.cpu_s,
            "memory_mib": limits.memory_mib,
            "pids": limits.pids,
            "disk_mib": limits.disk_mib,
            "files": limits.files,
            "output_kib": limits.output_kib,
        },
        "forkable": forkable,
        "huge_pages": hugepages.read(),
        "python_session": [python, "-P", "-s", "-c", SESSION],
        "env": {
            "HOME": "/home/agent",
            "USER": "agent",
            "LANG": "C.UTF-8",
            "TMPDIR": "/tmp",
            # The same code does the same in every sandbox, and files are those that it writes on purpose.
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            **env,
        },
    }


class _TooDeep(ForkLost):
    """The kernel does not nest a fork of a fork any deeper."""


class _Busy(ForkLost):
    """Something runs at the moment."""


_LOST = {"state": ForkLost, "depth": _TooDeep, "busy": _Busy}


class Family:
    """One supervisor: the sandboxes that descend from one cold start."""

    def __init__(self, name: str, channel: Channel, lease: Lease, limits: Limits, log: IO[bytes]) -> None:
        self.channel = channel
        self.lease = lease
        self.limits = limits
        self.id = name
        self.worlds = {0}
        self._log = log
        # A family that nobody closed is ended with the last reference to it.
        self._finalizer = weakref.finalize(self, _abandon, channel, lease, log)
        self._finalizer.atexit = False

    async def first(self, within_s: float) -> SupervisedSandbox:
        """The sandbox of the cold start, once the supervisor is ready.

        Raises:
            SandboxLost: it did not start.
        """
        try:
            greeting = asyncio.wrap_future(self.channel.greeting)
            words, _ = await asyncio.wait_for(asyncio.shield(greeting), within_s)
        except (ChannelClosed, TimeoutError) as error:
            said = self.last_words()
            await self.end()
            raise SandboxLost(f"the sandbox did not start: {said}") from error
        except asyncio.CancelledError:
            await self.end()
            raise
        if "fault" in words:
            await self.end()
            raise SandboxLost(f"the sandbox did not start: {words['fault']}")
        return SupervisedSandbox(self, 0)

    async def ask(
        self, header: Header, body: bytes = b"", *, within_s: float = _ANSWER_WITHIN_S
    ) -> tuple[Header, bytes]:
        """A request to the supervisor.

        Raises:
            SandboxLost: it is gone, does not answer, or says that the sandbox broke.
            ForkLost: state that can't be carried.
            ConfigError: what is asked for makes no sense, as two cells at once in one session.
            OSError: what the file system refused.
        """
        try:
            async with asyncio.timeout(within_s):
                words, data = await self.channel.request(header, body)
        except ChannelClosed as error:
            raise SandboxLost(f"the sandbox is gone: {self.last_words()}") from error
        except TimeoutError as error:
            raise SandboxLost(f"the sandbox did not answer {header['op']!r} within {within_s:g} s") from error
        if "lost" in words:
            names = [str(name) for name in words["lost"]]
            message = f"a fork can't carry {', '.join(names)}; close them first"
            raise _LOST[words["why"]](message, lost=names)
        if "misuse" in words:
            raise ConfigError(words["misuse"])
        if words.get("fault"):
            raise SandboxLost(f"the sandbox broke: {words['fault']}")
        if "errno" in words:
            raise OSError(words["errno"], words["reason"], header.get("path"))
        return words, data

    def last_words(self) -> str:
        """What the supervisor wrote to stderr."""
        if self._log.closed:
            return "it was closed"
        self._log.seek(0)
        return self._log.read().decode(errors="replace").strip()[-2000:] or "it said nothing"

    async def end(self) -> None:
        """End every sandbox of the family."""
        self._finalizer.detach()
        self.channel.close()
        await self.lease.end()
        self._log.close()


def _abandon(channel: Channel, lease: Lease, log: IO[bytes]) -> None:
    channel.close()
    lease.end_soon()
    log.close()


class SupervisedSandbox(Sandbox):
    """One sandbox of a family."""

    def __init__(self, family: Family, world: int) -> None:
        self._family = family
        self._world = world
        self._closed = False
        self._history: History | None = None
        self.limits = family.limits

    async def _ask(
        self, header: Header, body: bytes = b"", *, within_s: float = _ANSWER_WITHIN_S
    ) -> tuple[Header, bytes]:
        if self._closed:
            raise SandboxLost("this sandbox was closed; make another one")
        words, data = await self._family.ask({**header, "world": self._world}, body, within_s=within_s)
        if self._history is not None and header["op"] in RECORDED:
            self._history = self._history.and_then(header, body, words, data)
        return words, data

    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> ExecResult:
        """See `Sandbox.exec`."""
        if not argv or not all(map(_plain, argv)):
            raise ConfigError(
                f"argv must be words without NUL bytes and lone surrogates, got {list(argv)!r:.200}"
            )
        for name, value in (env or {}).items():
            if not name or "=" in name or not (_plain(name) and _plain(value)):
                raise ConfigError(f"not a variable of an environment: {name!r:.100}={value!r:.100}")
        timeout = self.limits.seconds(timeout_s)
        header = {
            "op": "exec",
            "argv": list(argv),
            "timeout_s": timeout,
            "cwd": cwd and absolute(cwd),
            "env": dict(env or {}),
        }
        words, data = await self._ask(header, stdin, within_s=timeout + _ANSWER_WITHIN_S)
        return ExecResult(
            exit_code=words["exit_code"],
            stdout=data[: words["out"]],
            stderr=data[words["out"] :],
            stdout_dropped=words["out_dropped"],
            stderr_dropped=words["err_dropped"],
            wall_s=words["wall_s"],
            cpu_s=words["cpu_s"],
            peak_memory_mib=words["peak_memory_mib"],
            limit_hit=words["limit_hit"],
        )

    async def read(self, path: str, *, max_mib: int = 64, follow: bool = True) -> bytes:
        """See `Sandbox.read`."""
        header = {"op": "read", "path": absolute(path), "limit": max_mib << 20, "follow": follow}
        return (await self._ask(header))[1]

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """See `Sandbox.write`."""
        await self._ask({"op": "write", "path": absolute(path), "mode": mode}, data)

    async def digest(self) -> str:
        """See `Sandbox.digest`."""
        return cast(str, (await self._ask({"op": "digest"}))[0]["digest"])

    # -- forks

    async def allow_replay(self) -> None:
        """See `Sandbox.allow_replay`."""
        words = await self._freeze(0, keep=True)
        self._history = History(Start(self._family.channel, words["snap"]))

    async def _freeze(self, n: int, *, keep: bool) -> Header:
        header = {"op": "freeze", "n": n, "keep": keep}
        try:
            words, _ = await self._ask(header)
        except _TooDeep as lost:
            # From here on this sandbox is its own replay, which is as shallow as the start was.
            (world,) = await self._again(self._history, 1, lost)
            await self._move_to(world)
            words, _ = await self._ask(header)
        self._family.worlds.update(words["worlds"])
        return words

    async def _again(self, history: History | None, n: int, lost: ForkLost | None = None) -> list[int]:
        """Worlds in which all of `history` was done again. Where that is not allowed, raises `lost`."""
        if lost is not None:
            if history is None or isinstance(lost, _Busy) or history.size > MAX_BYTES:
                raise lost
            logger.info("%s; everything since replay was allowed is done again instead", lost)
        assert history is not None, "a snapshot without the live state has a history"
        words, _ = await self._family.ask({"op": "spawn", "snap": history.start.number, "n": n})
        worlds: list[int] = words["worlds"]
        self._family.worlds.update(worlds)
        try:
            for world in worlds:
                await history.repeat(functools.partial(self._repeat_act, world))
        except BaseException:
            self._family.worlds.difference_update(worlds)
            await self._family.ask({"op": "drop", "worlds": worlds})
            raise
        return worlds

    async def _repeat_act(self, world: int, header: Header, body: bytes) -> tuple[Header, bytes]:
        within_s = header.get("timeout_s", 0.0) + _ANSWER_WITHIN_S
        return await self._family.ask({**header, "world": world}, body, within_s=within_s)

    async def _move_to(self, world: int) -> None:
        """Go on as `world`, and let go of the present one."""
        old, self._world = self._world, world
        self._family.worlds.discard(old)
        await self._family.ask({"op": "drop", "worlds": [old]})

    def _others(self, worlds: Sequence[int], history: History | None) -> list[Self]:
        made = [type(self)(self._family, world) for world in worlds]
        for each in made:
            each._history = history
        return made

    async def snapshot(self) -> Snapshot:
        """See `Sandbox.snapshot`."""
        try:
            words = await self._freeze(0, keep=True)
        except ForkLost as lost:
            if self._history is None or isinstance(lost, _Busy):
                raise
            logger.info("%s; a snapshot of what was done is taken instead", lost)
            return Snapshot(self._family.id, None, self._history)
        return Snapshot(self._family.id, words["snap"], self._history)

    async def fork(self, n: int = 1) -> list[Self]:
        """See `Sandbox.fork`."""
        if n < 1:
            raise ConfigError(f"fork needs n of at least 1, got {n}")
        try:
            worlds = (await self._freeze(n, keep=False))["worlds"]
        except ForkLost as lost:
            worlds = await self._again(self._history, n, lost)
        return self._others(worlds, self._history)

    async def _spawn(self, snapshot: Snapshot, n: int) -> list[int]:
        self._check(snapshot)
        if snapshot.id is None:
            return await self._again(snapshot.history, n)
        try:
            words, _ = await self._ask({"op": "spawn", "snap": snapshot.id, "n": n})
        except _TooDeep as lost:
            return await self._again(snapshot.history, n, lost)
        self._family.worlds.update(words["worlds"])
        return cast("list[int]", words["worlds"])

    async def spawn(self, snapshot: Snapshot, n: int = 1) -> list[Self]:
        """See `Sandbox.spawn`. Nothing is frozen for it, so it costs half of a fork."""
        if n < 1:
            raise ConfigError(f"spawn needs n of at least 1, got {n}")
        return self._others(await self._spawn(snapshot, n), snapshot.history)

    async def restore(self, snapshot: Snapshot) -> None:
        """See `Sandbox.restore`."""
        (world,) = await self._spawn(snapshot, 1)
        await self._move_to(world)
        self._history = snapshot.history

    async def drop(self, snapshot: Snapshot) -> None:
        """See `Sandbox.drop`."""
        self._check(snapshot)
        if snapshot.id is not None:
            await self._ask({"op": "drop", "snaps": [snapshot.id]})

    def _check(self, snapshot: Snapshot) -> None:
        if snapshot.family != self._family.id:
            raise ConfigError(
                f"snapshot {snapshot.family}/{snapshot.id} is of another sandbox family; "
                "restore it in the sandbox that made it or in one of its forks"
            )

    async def interpreter(self, language: Language = "python") -> Interpreter:
        """See `Sandbox.interpreter`."""
        if language not in ("python", "bash"):
            raise unknown_name("interpreter", language, ["python", "bash"])
        return Interpreter(self._ask, language, self.limits)

    async def close(self) -> None:
        """See `Sandbox.close`."""
        if self._closed:
            return
        self._closed = True
        self._family.worlds.discard(self._world)
        if not self._family.worlds:
            await self._family.end()
            return
        try:
            await self._family.ask({"op": "drop", "worlds": [self._world]})
        except SandboxLost:
            await self._family.end()  # it is gone already, and its other sandboxes with it


def absolute(path: str) -> str:
    """`path` from the workspace, as an absolute path inside the sandbox.

    Raises:
        ConfigError: for an empty path, a NUL byte or a lone surrogate.
    """
    if not path or not _plain(path):
        raise ConfigError(f"not a path: {path!r}")
    return path if path.startswith("/") else f"{WORKSPACE}/{path}"


def _plain(word: str) -> bool:
    """True where the kernel can be told `word`."""
    try:
        return b"\0" not in os.fsencode(word)
    except UnicodeEncodeError:
        return False
