"""The default backend: bubblewrap, as root or as an ordinary user, with no daemon and no image.

The one idea: bubblewrap builds the outer walls once (user, pid, mount, net, ipc, uts and cgroup namespaces, a
read-only system, no host home, a clean environment); inside, a supervisor starts each command in namespaces of its
own and keeps files in overlay layers, so that starting, freezing and forking are a few system calls each.

It protects the host's files, processes, network and settings, other sandboxes, and the supervisor, from code that
runs in it: that code has no capability, a filtered kernel interface, and limits on time, memory, processes, files
and output. Sandboxes of one family (forks of one another) are walled off from each other in the same way.

It does not protect from a hole in the Linux kernel; use a virtual machine for code that is out to find one. A
sandbox made with `forkable=True` lets Python sessions make user namespaces, `mount` and `move_mount`, which is
how they fork and which opens more of the kernel to them; `forkable=False` refuses those calls. It does not hide
what the machine is (`/proc/cpuinfo`, `uname`), what is installed under `/usr`, or how busy the machine is. Memory
and process limits across processes are sampled twenty times a second; where control groups are not writable there
is no second line behind that, and code that hides shared memory from the sampling can hold more than its limit.

Needs Linux 5.11 (overlay mounts in user namespaces), x86_64 or aarch64, and `bwrap` (0.8 was tested).
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self, cast

from turngym.errors import ConfigError, unknown_name
from turngym.sandbox.base import (
    WORKSPACE,
    Backend,
    ExecResult,
    ForkLost,
    Language,
    Limits,
    Sandbox,
    SandboxLost,
    Snapshot,
)
from turngym.sandbox.channel import Channel, ChannelClosed
from turngym.sandbox.inside import seccomp
from turngym.sandbox.inside.box import MAX_FAMILY_PIDS
from turngym.sandbox.inside.wire import Header
from turngym.sandbox.inside.worlds import LAYERS
from turngym.sandbox.interpreter import Interpreter
from turngym.sandbox.lease import TTL_S, Lease, WardenClient, warden

_START_WITHIN_S = 60.0
_ANSWER_WITHIN_S = 60.0
_FAMILY = 8
"how many times one sandbox's memory a whole family may hold (a backstop, where control groups are writable)"
_ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime", "mime.types", "ssl/certs")
_PASSWD = "root:x:0:0:root:/:/bin/false\nagent:x:1000:1000:agent:/home/agent:/bin/bash\n"
_GROUP = "root:x:0:\nagent:x:1000:\n"
_SESSION = (
    "import sys; sys.path.insert(0, '/.turngym'); from turngym_inside import pysession; "
    "sys.path[0] = ''; pysession.main()"
)
_SUPERVISOR = (
    "import sys; sys.path.insert(0, '/.turngym'); from turngym_inside import supervisor; supervisor.main()"
)


class Bubblewrap(Backend):
    """Makes bubblewrap sandboxes."""

    name = "bubblewrap"

    def __init__(self, *, python: str | None = None, ttl_s: float = TTL_S) -> None:
        """Choose the interpreter and the lease.

        Args:
            python: the Python of the sandbox; by default the one that runs now, without its virtual environment.
            ttl_s: seconds after which the sandboxes of an owner that hangs are ended.

        Raises:
            ConfigError: there is no such interpreter.
        """
        base: str = python or getattr(sys, "_base_executable", None) or sys.executable
        path = Path(base).resolve()
        if not path.exists():
            raise ConfigError(f"no Python at {base}; give the path of an interpreter")
        self.python = str(path)
        self.prefix = str(path.parent.parent)
        self.ttl_s = ttl_s

    @classmethod
    def unavailable(cls) -> str | None:
        """See `Backend.unavailable`."""
        return _unavailable()

    async def create(self, limits: Limits | None = None, *, forkable: bool = True) -> BubblewrapSandbox:
        """See `Backend.create`."""
        family = await asyncio.to_thread(self._start, limits or Limits(), forkable)
        try:
            await asyncio.wait_for(
                asyncio.shield(asyncio.wrap_future(family.channel.greeting)), _START_WITHIN_S
            )
        except (ChannelClosed, TimeoutError) as error:
            await family.end()
            raise SandboxLost(f"the sandbox did not start: {family.last_words()}") from error
        return BubblewrapSandbox(family, 0)

    def _start(self, limits: Limits, forkable: bool) -> Family:
        client = warden(python=self.python, prefix=self.prefix)
        ours, theirs = socket.socketpair()
        log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the family
        with theirs:
            answer, number = client.start(
                self._argv(client, limits, forkable),
                stdin=theirs.fileno(),
                stderr=log.fileno(),
                memory_mib=_FAMILY * (limits.memory_mib + limits.disk_mib),
                pids=MAX_FAMILY_PIDS,
                ttl_s=self.ttl_s,
            )
            words = answer.result(_START_WITHIN_S)[0]
        if "fault" in words:
            raise SandboxLost(words["fault"])
        return Family(Channel(ours), Lease(client, number, words["pid"]), limits, log)

    def _argv(self, client: WardenClient, limits: Limits, forkable: bool) -> list[str]:
        bwrap = shutil.which("bwrap")
        assert bwrap is not None, "checked by `unavailable`"
        args = [
            bwrap, "--unshare-all", "--die-with-parent", "--new-session", "--as-pid-1", "--clearenv",
            "--uid", "0", "--gid", "0", "--cap-add", "ALL", "--hostname", "sandbox",
            "--ro-bind", "/usr", "/usr",
        ]  # fmt: skip
        for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
            path = Path("/", name)
            if path.is_symlink():
                args += ["--symlink", os.readlink(path), str(path)]
            elif path.is_dir():
                args += ["--ro-bind", str(path), str(path)]
        for name in _ETC:
            args += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
        if not Path(self.prefix).is_relative_to("/usr"):
            args += ["--ro-bind", client.prefix, self.prefix]
        args += ["--proc", "/proc", "--dev", "/dev", "--ro-bind", client.inside, "/.turngym"]
        for path_ in (LAYERS, WORKSPACE, "/tmp", "/home/agent"):
            args += ["--dir", path_]
        args += ["--remount-ro", "/dev", "--remount-ro", "/"]
        return [
            *args,
            "--",
            self.python,
            "-I",
            "-S",
            "-c",
            _SUPERVISOR,
            json.dumps(self._config(limits, forkable)),
        ]

    def _config(self, limits: Limits, forkable: bool) -> dict[str, Any]:
        folder = str(Path(self.python).parent)
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
            "python_session": [self.python, "-P", "-s", "-c", _SESSION],
            "env": {
                "PATH": f"{folder}:/usr/local/bin:/usr/bin:/bin",
                "HOME": "/home/agent",
                "USER": "agent",
                "LANG": "C.UTF-8",
                "TMPDIR": "/tmp",
            },
        }


class Family:
    """One supervisor: the sandboxes that descend from one cold start."""

    def __init__(self, channel: Channel, lease: Lease, limits: Limits, log: IO[bytes]) -> None:
        self.channel = channel
        self.lease = lease
        self.limits = limits
        self.id = f"bubblewrap-{lease.pid}-{lease.number}"
        self.worlds = {0}
        self._log = log
        # A family that nobody closed is ended with the last reference to it.
        self._finalizer = weakref.finalize(self, _abandon, channel, lease, log)
        self._finalizer.atexit = False

    async def ask(
        self, header: Header, body: bytes = b"", *, within_s: float = _ANSWER_WITHIN_S
    ) -> tuple[Header, bytes]:
        """A request to the supervisor.

        Raises:
            SandboxLost: it is gone, does not answer, or says that the sandbox broke.
            ForkLost: state that can't be carried.
            OSError: what the file system refused.
        """
        try:
            words, data = await asyncio.wait_for(self.channel.request(header, body), within_s)
        except ChannelClosed as error:
            raise SandboxLost(f"the sandbox is gone: {self.last_words()}") from error
        except TimeoutError as error:
            raise SandboxLost(f"the sandbox did not answer {header['op']!r} within {within_s:g} s") from error
        if "lost" in words:
            names = [str(name) for name in words["lost"]]
            raise ForkLost(f"a fork can't carry {', '.join(names)}; close them first", lost=names)
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


class BubblewrapSandbox(Sandbox):
    """One sandbox; see the module for what it protects from and what not."""

    def __init__(self, family: Family, world: int) -> None:
        self._family = family
        self._world = world
        self._closed = False
        self.limits = family.limits

    async def _ask(
        self, header: Header, body: bytes = b"", *, within_s: float = _ANSWER_WITHIN_S
    ) -> tuple[Header, bytes]:
        if self._closed:
            raise SandboxLost("this sandbox was closed; make another one")
        return await self._family.ask({**header, "world": self._world}, body, within_s=within_s)

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
        if not argv or any("\0" in word for word in argv):
            raise ConfigError(f"argv must be words without NUL bytes, got {list(argv)!r:.200}")
        timeout = self.limits.wall_s if timeout_s is None else timeout_s
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

    async def read(self, path: str, *, max_mib: int = 64) -> bytes:
        """See `Sandbox.read`."""
        return (await self._ask({"op": "read", "path": absolute(path), "limit": max_mib << 20}))[1]

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """See `Sandbox.write`."""
        await self._ask({"op": "write", "path": absolute(path), "mode": mode}, data)

    async def digest(self) -> str:
        """See `Sandbox.digest`."""
        return cast(str, (await self._ask({"op": "digest"}))[0]["digest"])

    async def _freeze(self, n: int, *, keep: bool) -> Header:
        words, _ = await self._ask({"op": "freeze", "n": n, "keep": keep})
        self._family.worlds.update(words["worlds"])
        return words

    async def snapshot(self) -> Snapshot:
        """See `Sandbox.snapshot`."""
        words = await self._freeze(0, keep=True)
        return Snapshot(self._family.id, words["snap"])

    async def fork(self, n: int = 1) -> list[Self]:
        """See `Sandbox.fork`."""
        if n < 1:
            raise ConfigError(f"fork needs n of at least 1, got {n}")
        words = await self._freeze(n, keep=False)
        return [type(self)(self._family, world) for world in words["worlds"]]

    async def restore(self, snapshot: Snapshot) -> None:
        """See `Sandbox.restore`."""
        self._check(snapshot)
        words, _ = await self._ask({"op": "spawn", "snap": snapshot.id, "n": 1})
        (world,) = words["worlds"]
        old, self._world = self._world, world
        self._family.worlds.add(world)
        self._family.worlds.discard(old)
        await self._family.ask({"op": "drop", "worlds": [old]})

    async def drop(self, snapshot: Snapshot) -> None:
        """See `Sandbox.drop`."""
        self._check(snapshot)
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
        ConfigError: for an empty path or a NUL byte.
    """
    if not path or "\0" in path:
        raise ConfigError(f"not a path: {path!r}")
    return path if path.startswith("/") else f"{WORKSPACE}/{path}"


@functools.cache
def _unavailable() -> str | None:
    if not sys.platform.startswith("linux"):
        return "it needs Linux."
    if not seccomp.supported(os.uname().machine):
        return f"it does not know the system calls of {os.uname().machine}."
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        return "the program bwrap is not installed: `apt-get install bubblewrap` (or dnf, pacman, apk)."
    argv = [bwrap, "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--", "/bin/true"]
    drop: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd="/", **drop)
    if done.returncode:
        return (
            f"user namespaces are switched off here ({done.stderr.strip()}). Switch them on with "
            "`sysctl -w user.max_user_namespaces=65536`; on Debian also `sysctl -w kernel.unprivileged_userns_clone=1`, "
            "on Ubuntu `sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`; in a container run it with "
            "`--security-opt seccomp=unconfined --security-opt systempaths=unconfined`."
        )
    return None
