"""The sandbox contract: where an agent's commands run, and what becomes of them.

The one idea: a sandbox is a value. `snapshot` freezes it (files and live interpreters), `fork` makes copies that
go their own ways, `restore` goes back, and none of them ever sees what another does afterwards.

What the agent can cause (a command that times out, floods, or eats its memory) is told by `ExecResult.limit_hit`
and is its own doing. What it can't cause is `SandboxLost`, an `EnvFault`, and voids the sample.

Backends are registered by name. `best` is the first that this machine can run; `unsafe-process`, which isolates
nothing, is never chosen for anyone who did not ask for it by name.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib import import_module
from typing import TYPE_CHECKING, Literal, Self

from turngym.errors import ConfigError, EnvFault, MissingDependency, TurngymError, unknown_name

if TYPE_CHECKING:
    from turngym.sandbox.history import History
    from turngym.sandbox.interpreter import Interpreter

Language = Literal["python", "bash"]
LimitName = Literal["wall", "cpu", "memory", "pids", "disk", "output"]

WORKSPACE = "/workspace"
"""Where commands start, and what relative paths are relative to."""

_BACKENDS = {
    "bubblewrap": "turngym.sandbox.bubblewrap:Bubblewrap",
    "docker": "turngym.sandbox.docker:Docker",
    "unsafe-process": "turngym.sandbox.process:UnsafeProcess",
}
_CHOSEN_BY_BEST = ("bubblewrap",)


class SandboxLost(EnvFault):
    """The sandbox is gone, for a reason that its commands could not cause."""


class ForkLost(TurngymError, RuntimeError):
    """State that a fork can't carry: open sockets, threads, subprocesses. `lost` names each."""

    def __init__(self, message: str, *, lost: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.lost = tuple(lost)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_fork_lost, (str(self), self.lost)


def _rebuild_fork_lost(message: str, lost: tuple[str, ...]) -> ForkLost:
    return ForkLost(message, lost=lost)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one sandbox may use. The network is always off."""

    wall_s: float = 60.0
    "seconds that one command or cell may take; the caller's `timeout_s` replaces it"
    cpu_s: float = 60.0
    "CPU seconds of one process"
    memory_mib: int = 1024
    "memory of one command or session with all its processes"
    pids: int = 128
    "processes and threads of one command or session"
    disk_mib: int = 256
    "bytes written since the last snapshot or fork (files live in memory)"
    files: int = 65_536
    "files made since the last snapshot or fork"
    output_kib: int = 256
    "bytes kept of stdout and of stderr each; the rest is counted and dropped"

    def __post_init__(self) -> None:
        for f in fields(self):
            if not getattr(self, f.name) > 0:
                raise ConfigError(f"sandbox limit {f.name} must be positive, got {getattr(self, f.name)!r}")

    def seconds(self, timeout_s: float | None) -> float:
        """What a command or cell may take: `timeout_s`, or `wall_s` where that is None.

        Raises:
            ConfigError: it is no positive, finite number.
        """
        if timeout_s is None:
            return self.wall_s
        if not 0 < timeout_s < math.inf:
            raise ConfigError(f"timeout_s must be positive and finite, got {timeout_s!r}")
        return timeout_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """What became of one command."""

    exit_code: int
    "the command's exit status; 128 + n where signal n ended it"
    stdout: bytes = b""
    "at most `Limits.output_kib`, from the start"
    stderr: bytes = b""
    "likewise"
    stdout_dropped: int = 0
    "bytes of stdout past the cap"
    stderr_dropped: int = 0
    "bytes of stderr past the cap"
    wall_s: float = 0.0
    "seconds from the request to the end of the command"
    cpu_s: float = 0.0
    "user and system seconds of the command and every process that it waited for"
    peak_memory_mib: float = 0.0
    "largest resident size seen"
    limit_hit: LimitName | None = None
    "the limit that ended the command, or that cut its output; None where none did"

    @property
    def text(self) -> str:
        """Stdout then stderr as text, with a mark where output was dropped."""
        return _text(self.stdout, self.stdout_dropped) + _text(self.stderr, self.stderr_dropped)


def _text(data: bytes, dropped: int) -> str:
    mark = f"\n[… {dropped} bytes dropped]\n" if dropped else ""
    return data.decode("utf-8", "replace") + mark


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A handle on a frozen sandbox. It lives until it is dropped or the last sandbox of its family is closed."""

    family: str
    "the sandboxes that descend from one cold start; a snapshot can be restored by any of them"
    id: int | None
    "the number that the backend knows it by; None where the live state was lost and is made by replay"
    history: History | None = field(default=None, compare=False, repr=False)
    "what was done since replay was allowed (see `Sandbox.allow_replay`)"


class Sandbox(abc.ABC):
    """One isolated machine for one agent. Use it as an async context manager, or call `close`."""

    limits: Limits

    @abc.abstractmethod
    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> ExecResult:
        """Run one command to its end. Every process that it started ends with it.

        Args:
            argv: the program and its arguments; no shell is involved.
            stdin: bytes that it can read, then end of file.
            timeout_s: seconds instead of `Limits.wall_s`.
            cwd: directory to start in; the workspace by default.
            env: variables added to the clean environment.

        Returns:
            The result, also where the command does not exist (exit code 127, the reason on stderr).

        Raises:
            SandboxLost: the sandbox broke.
        """

    @abc.abstractmethod
    async def read(self, path: str, *, max_mib: int = 64, follow: bool = True) -> bytes:
        """The bytes of a regular file that the agent can write. No symlink leads out of the sandbox.

        Args:
            path: absolute, or from the workspace.
            max_mib: largest size.
            follow: False where `path` has to be a file itself, and no symbolic link to one.

        Raises:
            OSError: with the errno of the refusal (no such file, a FIFO, larger than `max_mib`, ELOOP for a link that
                is not followed).
        """

    @abc.abstractmethod
    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Put `data` into a regular file, with its parent directories. No symlink leads out of the sandbox.

        Raises:
            OSError: with the errno of the refusal (a FIFO in the way, disk full).
        """

    @abc.abstractmethod
    async def snapshot(self) -> Snapshot:
        """Freeze the present state, and go on from it.

        Raises:
            ForkLost: state that can't be carried; nothing has changed.
        """

    @abc.abstractmethod
    async def restore(self, snapshot: Snapshot) -> None:
        """Go back to `snapshot`: files and interpreters are as they were, everything since is gone."""

    @abc.abstractmethod
    async def drop(self, snapshot: Snapshot) -> None:
        """Let go of `snapshot`; it can't be restored any more."""

    @abc.abstractmethod
    async def fork(self, n: int = 1) -> list[Self]:
        """Make `n` copies of the present state: files, working directories, live interpreters.

        Raises:
            ForkLost: state that can't be carried; nothing has changed.
        """

    async def spawn(self, snapshot: Snapshot, n: int = 1) -> list[Self]:
        """Make `n` sandboxes in the state of `snapshot`, whatever the state of this one, which stays as it is.

        Raises:
            ConfigError: the snapshot is of another family.
        """
        made = await self.fork(n)
        for each in made:
            await each.restore(snapshot)
        return made

    @abc.abstractmethod
    async def allow_replay(self) -> None:
        """From now on, where a fork or a snapshot would raise `ForkLost`, do again what was done since this call.

        Forks inherit it. What is done again has to come out as it did (the addresses of objects aside), or the fork
        fails with `ForkDiverged`, an `EnvFault`. While a command or a cell runs nothing can be forked all the same.

        Raises:
            ForkLost: the present state can't be carried, so it can't be started from either.
        """

    @abc.abstractmethod
    async def interpreter(self, language: Language = "python") -> Interpreter:
        """The session of this sandbox in `language`; it keeps its state from cell to cell, and through forks."""

    @abc.abstractmethod
    async def digest(self) -> str:
        """SHA-256 over every path, mode and content that the agent can write."""

    @abc.abstractmethod
    async def close(self) -> None:
        """End every process and free every file. Closing twice is harmless."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Backend(abc.ABC):
    """Makes sandboxes of one kind."""

    name: str

    @classmethod
    @abc.abstractmethod
    def unavailable(cls) -> str | None:
        """Why this machine can't run the backend and the command that would change it; None where it can."""

    @classmethod
    def of_image(cls, image: str) -> Self:
        """A backend that makes its sandboxes of `image`.

        Raises:
            ConfigError: this kind knows no images.
        """
        raise ConfigError(
            f"sandbox backend {cls.name} has no images; write {cls.name!r}, or 'docker:{image}'"
        )

    @abc.abstractmethod
    async def create(self, limits: Limits | None = None, *, forkable: bool = True) -> Sandbox:
        """Start a sandbox.

        Args:
            limits: what it may use.
            forkable: live interpreters can be forked; the backend says what that exposes.

        Raises:
            MissingDependency: this machine can't run the backend.
            SandboxLost: it did not start.
        """


def backend(name: str = "best") -> Backend:
    """The backend called `name`, or the best one that this machine can run.

    Args:
        name: one of `backends()`, or `best`; `docker:IMAGE` for containers of an image of one's own.

    Raises:
        UnknownName: no backend has that name.
        MissingDependency: this machine can't run it (or any, for "best"); says what to install.
    """
    if name == "best":
        reasons = []
        for candidate in _CHOSEN_BY_BEST:
            kind = _load(candidate)
            reason = kind.unavailable()
            if reason is None:
                return kind()
            reasons.append(f"{candidate}: {reason}")
        raise MissingDependency(
            "no sandbox backend can run here. "
            + " ".join(reasons)
            + " `unsafe-process` runs anywhere and isolates nothing; it has to be asked for by name."
        )
    name, _, image = name.partition(":")
    if name not in _BACKENDS:
        raise unknown_name("sandbox backend", name, ["best", *_BACKENDS])
    kind = _load(name)
    reason = kind.unavailable()
    if reason is not None:
        raise MissingDependency(f"sandbox backend {name}: {reason}")
    return kind.of_image(image) if image else kind()


def backends() -> tuple[str, ...]:
    """Names of all backends, whether or not this machine can run them."""
    return tuple(_BACKENDS)


def _load(name: str) -> type[Backend]:
    module, _, attribute = _BACKENDS[name].partition(":")
    kind: type[Backend] = getattr(import_module(module), attribute)
    return kind
