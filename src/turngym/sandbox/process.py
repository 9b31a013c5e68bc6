"""`unsafe-process`: the sandbox contract with no sandbox.

Commands are ordinary processes of this user in a temporary folder. They can read and change every file that the
user can, use the network, and see all processes. It protects from nothing; it is there for machines without
Linux, for debugging, and as the other end of the scale in benchmarks. It is never chosen for anyone.

Time limits hold for the command's process group only, memory and process limits not at all; `/workspace` is the
folder itself, so absolute paths in commands mean the host's. Snapshots copy the folder. There are no sessions.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import itertools
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, Self

from turngym.errors import ConfigError
from turngym.sandbox.base import (
    WORKSPACE,
    Backend,
    ExecResult,
    Language,
    Limits,
    Sandbox,
    SandboxLost,
    Snapshot,
)

_numbers = itertools.count(1)


class UnsafeProcess(Backend):
    """Makes folders."""

    name = "unsafe-process"

    @classmethod
    def unavailable(cls) -> str | None:
        """See `Backend.unavailable`."""
        return None

    async def create(self, limits: Limits | None = None, *, forkable: bool = True) -> UnsafeSandbox:
        """See `Backend.create`."""
        return UnsafeSandbox(limits or Limits(), _Family(f"unsafe-process-{next(_numbers)}"))


@dataclass(slots=True)
class _Family:
    """The sandboxes that descend from one, and what they share."""

    name: str
    open: int = 0
    "sandboxes that are not closed"
    snapshots: dict[int, Path] = field(default_factory=dict)


class UnsafeSandbox(Sandbox):
    """A temporary folder."""

    def __init__(self, limits: Limits, family: _Family) -> None:
        self.limits = limits
        self.folder = Path(tempfile.mkdtemp(prefix="turngym-unsafe-"))
        self._family = family
        self._closed = False
        family.open += 1

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
        if self._closed:
            raise SandboxLost("this sandbox was closed; make another one")
        timeout = self.limits.seconds(timeout_s)
        started = time.monotonic()
        clean = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(self.folder), "LANG": "C.UTF-8"}
        # Files and not pipes: whoever has left the process group may hold them as long as he likes.
        with contextlib.ExitStack() as files:
            given, out, err = (files.enter_context(tempfile.TemporaryFile()) for _ in range(3))
            given.write(stdin)
            given.seek(0)
            try:
                process = await asyncio.create_subprocess_exec(
                    *argv,
                    stdin=given,
                    stdout=out,
                    stderr=err,
                    cwd=self._host(cwd or "."),
                    env={**clean, **(env or {})},
                    start_new_session=True,
                )
            except OSError as error:
                code = 127 if error.errno == errno.ENOENT else 126
                return ExecResult(exit_code=code, stderr=f"{argv[0]}: {error.strerror}\n".encode())
            in_time = True
            try:
                await asyncio.wait_for(process.wait(), timeout)
            except TimeoutError:
                in_time = False
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            status = await process.wait()
            cap = self.limits.output_kib << 10
            dropped = [max(0, file.seek(0, os.SEEK_END) - cap) for file in (out, err)]
            for file in (out, err):
                file.seek(0)
            return ExecResult(
                exit_code=128 - status if status < 0 else status,
                stdout=out.read(cap),
                stderr=err.read(cap),
                stdout_dropped=dropped[0],
                stderr_dropped=dropped[1],
                wall_s=time.monotonic() - started,
                limit_hit="wall" if not in_time else "output" if any(dropped) else None,
            )

    def _unresolved(self, path: str) -> Path:
        return self.folder / (
            path.removeprefix(WORKSPACE).lstrip("/") if path.startswith(WORKSPACE) else path
        )

    def _host(self, path: str) -> Path:
        host = self._unresolved(path).resolve()
        if not host.is_relative_to(self.folder.resolve()):
            raise OSError(errno.EACCES, "outside the workspace", path)
        return host

    async def read(self, path: str, *, max_mib: int = 64, follow: bool = True) -> bytes:
        """See `Sandbox.read`."""
        host = self._host(path)
        if not follow and self._unresolved(path).is_symlink():
            raise OSError(errno.ELOOP, "a symbolic link", path)
        if host.exists() and not host.is_file():
            raise OSError(errno.EINVAL, "not a regular file", path)
        if host.stat().st_size > max_mib << 20:
            raise OSError(errno.EFBIG, "the file is too large", path)
        return host.read_bytes()

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """See `Sandbox.write`."""
        host = self._host(path)
        if host.exists() and not host.is_file():
            raise OSError(errno.EINVAL, "not a regular file", path)
        host.parent.mkdir(parents=True, exist_ok=True)
        host.write_bytes(data)
        host.chmod(mode)

    async def snapshot(self) -> Snapshot:
        """See `Sandbox.snapshot`."""
        number = next(_numbers)
        copy = Path(tempfile.mkdtemp(prefix="turngym-unsafe-"))
        shutil.copytree(self.folder, copy, symlinks=True, dirs_exist_ok=True)
        self._family.snapshots[number] = copy
        return Snapshot(self._family.name, number)

    async def restore(self, snapshot: Snapshot) -> None:
        """See `Sandbox.restore`."""
        source = self._find(snapshot)
        shutil.rmtree(self.folder)
        shutil.copytree(source, self.folder, symlinks=True)

    async def drop(self, snapshot: Snapshot) -> None:
        """See `Sandbox.drop`."""
        shutil.rmtree(self._find(snapshot))
        self._family.snapshots.pop(snapshot.id or 0)

    def _find(self, snapshot: Snapshot) -> Path:
        known = self._family.snapshots
        if snapshot.family != self._family.name or snapshot.id is None or snapshot.id not in known:
            raise ConfigError(
                f"no snapshot {snapshot.family}/{snapshot.id} here; it was dropped or is another family's"
            )
        return known[snapshot.id]

    async def fork(self, n: int = 1) -> list[Self]:
        """See `Sandbox.fork`."""
        forks = [type(self)(self.limits, self._family) for _ in range(n)]
        for each in forks:
            shutil.copytree(self.folder, each.folder, symlinks=True, dirs_exist_ok=True)
        return forks

    async def allow_replay(self) -> None:
        """See `Sandbox.allow_replay`. Without sessions there is no state that a fork could lose."""

    async def interpreter(self, language: Language = "python") -> NoReturn:
        """Not here: a session that can't be forked would be another contract."""
        raise ConfigError("unsafe-process has no interpreter sessions; use exec, or the bubblewrap backend")

    async def digest(self) -> str:
        """See `Sandbox.digest`."""
        total = hashlib.sha256()
        for path in sorted(self.folder.rglob("*")):
            info = path.lstat()
            total.update(
                f"{path.relative_to(self.folder)}\0{info.st_mode:o}\0".encode("utf-8", "surrogateescape")
            )
            total.update(
                os.fsencode(path.readlink())
                if path.is_symlink()
                else path.read_bytes()
                if path.is_file()
                else b""
            )
        return total.hexdigest()

    async def close(self) -> None:
        """See `Sandbox.close`."""
        if self._closed:
            return
        self._closed = True
        shutil.rmtree(self.folder)
        self._family.open -= 1
        if self._family.open == 0:
            for copy in self._family.snapshots.values():
                shutil.rmtree(copy)
            self._family.snapshots.clear()
