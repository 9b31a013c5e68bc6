"""The process that starts sandboxes and outlives their owner just long enough to end them.

    owner ──socket──▶ warden ──fork──▶ bwrap ──▶ supervisor ──▶ commands

The one idea: the parent of every sandbox is neither the owner (which may be killed, or fork, or be a 40 GB
trainer that is slow to fork) nor init, but a small process of one thread with one duty. It ends a sandbox when its
lease runs out, all of them when its owner is gone, and each dies with the warden should that be killed too.

It runs as a plain script with no package in reach. Its folder holds a locked file as long as it lives; a warden
that starts removes the folders (and control groups) of those that don't.

As root it moves sandboxes to a user id that owns nothing, and shows that user the interpreter from a mount
namespace of its own where the path to it is closed to others.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_UNUSED_IDS = 2_000_000_000
_NEWNS = 0x00020000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
_MNT_DETACH = 2
_CGROUP_ROOT = Path("/sys/fs/cgroup")
_PREFIX = struct.Struct("<II")
_END_WITHIN_S = 1.0
_MAX_WORDS = 1 << 17
_NEVER = float("inf")
_SIGNALS = (signal.SIGINT, signal.SIGHUP)


class Lease:
    """One sandbox process and how long it may live without a word from its owner."""

    def __init__(self, pid: int, ttl_s: float, groups: list[Path]) -> None:
        self.pid = pid
        self.ttl_s = ttl_s
        self.groups = groups
        self.expires = time.monotonic() + ttl_s
        self.ending: list[int] = []
        self.kill_at = _NEVER

    def kill(self) -> None:
        """End the sandbox: bwrap takes its supervisor along, and that everything else.

        The group, because bwrap's child is tied to it only after a while, and would wait for it for ever until then.
        """
        os.killpg(self.pid, signal.SIGKILL)


class Starter:
    """A process in control groups of its own that waits for what it is to run.

    The kernel moves a process into a control group only after a grace period of ten milliseconds or so. So the next
    sandbox's process is moved while nobody waits for it.
    """

    def __init__(self, name: str, parents: list[Path], user: int | None) -> None:
        """Fork it.

        Args:
            name: of its control groups.
            parents: where these are made.
            user: the id that it gives itself before it runs anything; None for the present one.
        """
        self.groups = _make_groups(name, parents)
        self._door, inner = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if self.pid == 0:
            self._door.close()
            _run_when_told(inner, self.groups, user)
        inner.close()
        os.setpgid(self.pid, self.pid)

    def run(self, argv: list[str], stdin: int, stderr: int, *, memory_mib: int, pids: int) -> None:
        """Limit the groups and let the process become `argv`.

        Raises:
            OSError: it has ended, or the groups refuse the limits.
        """
        _limit_groups(self.groups, memory_mib, pids)
        with self._door:
            socket.send_fds(self._door, [json.dumps(argv).encode()], [stdin, stderr])

    def discard(self) -> None:
        """End it, and wait until it is gone."""
        self._door.close()
        os.waitpid(self.pid, 0)


def _run_when_told(door: socket.socket, groups: list[Path], user: int | None) -> None:
    try:
        signal.set_wakeup_fd(-1)
        for number in (*_SIGNALS, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        trouble = _join(groups)
        words, fds, _, _ = socket.recv_fds(door, _MAX_WORDS, 2)
        if not words:
            os._exit(0)  # the warden is gone, or needs no more sandboxes
        stdin, stderr = fds
        os.dup2(stdin, 0)
        os.dup2(stderr, 1)
        os.dup2(stderr, 2)
        for fd in fds:
            os.close(fd)
        if trouble is not None:
            raise trouble
        if user is not None:
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
        argv = json.loads(words)
        os.execv(argv[0], argv)
    except OSError as error:
        os.write(2, f"can't start bwrap: {error}\n".encode())
    finally:
        os._exit(126)


def _join(groups: list[Path]) -> OSError | None:
    """Move the caller into `groups`; returns why that failed, for when somebody listens."""
    try:
        for group in groups:
            (group / "cgroup.procs").write_text("0")
    except OSError as error:
        return error
    return None


class Warden:
    """The loop."""

    def __init__(self, control: socket.socket, config: dict[str, Any]) -> None:
        self.control = control
        self.leases: dict[int, Lease] = {}
        self.busy_groups: list[Path] = []
        self.buffer = bytearray()
        self.fds: list[int] = []
        self.owner = os.pidfd_open(config["owner_pid"])
        self.wakeup, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        self.group_parents = group_parents()
        self.home = _make_home(Path(config["state_dir"]), self.group_parents)
        self.user = unused_id() if os.geteuid() == 0 else None
        self.prefix = config["prefix"]
        self.starter: Starter | None = None
        self.started = 0
        self.unstage: Callable[[], object] = lambda: None
        _copy_inside(Path(config["inside"]), self.home / "inside", config["python"])
        self.staged = self._stage() if self.user is not None else self.prefix

    def _stage(self) -> str:
        """Show the interpreter under a path that every user can walk."""
        import ctypes  # noqa: PLC0415 - only root needs it

        libc = ctypes.CDLL(None, use_errno=True)
        target = self.home / "python"
        target.mkdir()
        read_only = ctypes.c_ulong(_MS_REMOUNT | _MS_BIND | _MS_RDONLY)
        if (
            libc.unshare(_NEWNS)
            or libc.mount(b"none", b"/", None, ctypes.c_ulong(_MS_PRIVATE | _MS_REC), None)
            or libc.mount(os.fsencode(self.prefix), bytes(target), None, ctypes.c_ulong(_MS_BIND), None)
            or libc.mount(None, bytes(target), None, read_only, None)
        ):
            number = ctypes.get_errno()
            raise OSError(number, f"can't show {self.prefix} to sandboxes: {os.strerror(number)}")
        self.unstage = lambda: libc.umount2(bytes(target), _MNT_DETACH)
        return str(target)

    def serve(self) -> None:
        """Run until the owner is gone, then end every sandbox."""
        try:
            self._say({"ready": True, "inside": str(self.home / "inside"), "prefix": self.staged})
            self._next_starter()
            while True:
                sources = [self.control.fileno(), self.owner, self.wakeup]
                ready, _, _ = select.select(sources, [], [], self._patience())
                if self.owner in ready or (self.control.fileno() in ready and not self._hear()):
                    return
                if self.wakeup in ready:
                    os.read(self.wakeup, 512)
                self._reap()
                self._expire()
        finally:
            self._end_all()

    def _patience(self) -> float | None:
        soonest = min((min(lease.expires, lease.kill_at) for lease in self.leases.values()), default=_NEVER)
        return None if soonest == _NEVER else max(0.0, soonest - time.monotonic())

    def _hear(self) -> bool:
        space = socket.CMSG_SPACE(8 * 4)
        try:
            data, ancillary, _, _ = self.control.recvmsg(1 << 16, space, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            return False
        for level, kind, payload in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds = array.array("i")
                fds.frombytes(payload)
                self.fds += fds
        self.buffer += data
        while len(self.buffer) >= _PREFIX.size:
            head, body = _PREFIX.unpack_from(self.buffer)
            end = _PREFIX.size + head + body
            if len(self.buffer) < end:
                break
            request = json.loads(bytes(self.buffer[_PREFIX.size : _PREFIX.size + head]))
            del self.buffer[:end]
            self._do(request)
        return bool(data)

    def _say(self, words: dict[str, Any]) -> None:
        head = json.dumps({"call": None, **words}).encode()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the next `_hear` sees the end
            self.control.sendall(_PREFIX.pack(len(head), 0) + head)

    def _do(self, request: dict[str, Any]) -> None:
        call = request["call"]
        match request["op"]:
            case "start":
                try:
                    self.leases[request["lease"]] = self._start(request)
                    self._say({"call": call, "pid": self.leases[request["lease"]].pid})
                except OSError as error:
                    self._say({"call": call, "fault": str(error)})
                with contextlib.suppress(OSError):  # the next request tries again, and says so
                    self._next_starter()
            case "renew":
                now = time.monotonic()
                for number in request["leases"]:
                    if number in self.leases:
                        self.leases[number].expires = now + self.leases[number].ttl_s
            case "end":
                lease = self.leases.get(request["lease"])
                if lease is None:
                    self._say({"call": call})
                else:
                    lease.ending.append(call)
                    lease.kill_at = min(
                        lease.kill_at, time.monotonic() + request.get("after_s", _END_WITHIN_S)
                    )

    def _start(self, request: dict[str, Any]) -> Lease:
        stdin, stderr = self.fds[:2]
        del self.fds[:2]
        starter = self._next_starter()
        self.starter = None
        try:
            starter.run(
                request["argv"], stdin, stderr, memory_mib=request["memory_mib"], pids=request["pids"]
            )
        except OSError:
            self._discard(starter)
            raise
        finally:
            os.close(stdin)
            os.close(stderr)
        return Lease(starter.pid, request["ttl_s"], starter.groups)

    def _discard(self, starter: Starter) -> None:
        starter.discard()
        self.busy_groups += _remove_groups(starter.groups)

    def _next_starter(self) -> Starter:
        if self.starter is None:
            self.started += 1
            self.starter = Starter(f"turngym-{os.getpid()}-{self.started}", self.group_parents, self.user)
        return self.starter

    def _reap(self) -> None:
        for number, lease in list(self.leases.items()):
            if os.waitpid(lease.pid, os.WNOHANG)[0]:
                del self.leases[number]
                self.busy_groups += _remove_groups(lease.groups)
                for call in lease.ending:
                    self._say({"call": call})

    def _expire(self) -> None:
        now = time.monotonic()
        for lease in self.leases.values():
            if now >= min(lease.expires, lease.kill_at):
                lease.kill()
                lease.expires = lease.kill_at = _NEVER

    def _end_all(self) -> None:
        for lease in self.leases.values():
            lease.kill()
        for lease in self.leases.values():
            os.waitpid(lease.pid, 0)
            self.busy_groups += lease.groups
        if self.starter is not None:
            self._discard(self.starter)
        _remove_groups(self.busy_groups, patience_s=60)  # a busy machine takes its time to bury the dead
        self.unstage()
        _remove_home(self.home)


def unused_id(uid_map: Path = Path("/proc/self/uid_map")) -> int | None:
    """A user id that nothing belongs to; None where this user namespace has no id but root's.

    One of its own, far above those of accounts, where the namespace has such; else its last one.
    """
    wanted, last = _UNUSED_IDS + os.getpid(), 0
    for line in uid_map.read_text(encoding="ascii").splitlines():
        first, _, count = map(int, line.split())
        if first <= wanted < first + count:
            return wanted
        last = max(last, first + count - 1)
    return last or None


def _make_home(state: Path, group_parents: list[Path]) -> Path:
    """A folder for this warden, after removing those of wardens that are dead."""
    state.mkdir(mode=0o711, parents=True, exist_ok=True)
    if state.stat().st_uid != os.geteuid():
        raise PermissionError(
            f"{state} belongs to another user; set TURNGYM_STATE_DIR to a folder of your own"
        )
    closed = [path for path in (state, *state.parents) if not path.stat().st_mode & 0o001]
    if os.geteuid() == 0 and unused_id() and closed:
        raise PermissionError(
            f"{closed[-1]} is closed to other users, and root's sandboxes run as one; "
            "set TURNGYM_STATE_DIR to a folder that every user can walk to"
        )
    for old in state.iterdir():
        _sweep(old)
    home = state / str(os.getpid())
    home.mkdir(mode=0o711)
    lock = os.open(home / "lock", os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.write(lock, "\n".join(map(str, group_parents)).encode())  # for whoever sweeps
    return home


def _sweep(old: Path) -> None:
    try:
        lock = os.open(old / "lock", os.O_RDWR)
    except FileNotFoundError:
        # Either being made this very moment or half removed; only age tells.
        with contextlib.suppress(FileNotFoundError):
            if time.time() - old.stat().st_mtime > 60:
                _remove_home(old)
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        group_parents = os.read(lock, 1 << 16).decode().splitlines()
    except BlockingIOError:
        return  # its warden lives
    finally:
        os.close(lock)
    _kill_strays(old)
    for parent in group_parents:
        _remove_groups(list(Path(parent).glob(f"turngym-{old.name}-*")))
    _remove_home(old)


def _kill_strays(home: Path) -> None:
    """End what a warden left that was killed while it started a sandbox: a bwrap that had no time to notice."""
    mark = os.fsencode(home / "inside") + b"\0"
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended, or is another user's
                if mark in (folder / "cmdline").read_bytes():
                    os.kill(int(folder.name), signal.SIGKILL)


def _remove_home(home: Path) -> None:
    """Remove the folder of a warden, part by part: the interpreter may still be mounted in it.

    `python` is only ever removed as an empty folder. What stays behind is swept by the next warden.
    """
    shutil.rmtree(home / "inside", ignore_errors=True)
    with contextlib.suppress(OSError):
        (home / "python").rmdir()
    with contextlib.suppress(OSError):
        (home / "lock").unlink(missing_ok=True)
        home.rmdir()


def _copy_inside(source: Path, target: Path, python: str) -> None:
    """Copy the supervisor's package to where every user can read it, compiled by the interpreter that will run it."""
    package = target / "turngym_inside"
    shutil.copytree(source, package, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (target, package, *package.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)
    subprocess.run([python, "-I", "-S", "-m", "compileall", "-q", str(package)], check=True)


def group_parents(root: Path = _CGROUP_ROOT, membership: str | None = None) -> list[Path]:
    """Where this user may make control groups that limit memory and processes.

    Version 1 has a tree for each controller. In version 2 a group with processes passes no controller on, so it is the
    nearest one above ours that does, which root and a delegated user's services have, and a container may not.

    Args:
        root: where control groups are mounted.
        membership: of this process, by default that of `/proc/self/cgroup`.
    """
    if not (root / "cgroup.controllers").exists():
        return [path for path in (root / "memory", root / "pids") if os.access(path, os.W_OK)]
    lines = (membership or Path("/proc/self/cgroup").read_text()).splitlines()
    own = next((Path(line.removeprefix("0::/")) for line in lines if line.startswith("0::/")), Path())
    if ".." in own.parts:
        return []  # of a namespace that we are not in: above it nothing is ours
    for group in (root / own, *(root / parent for parent in own.parents)):
        passed_on = group / "cgroup.subtree_control"
        if (
            os.access(group, os.W_OK)
            and os.access(group / "cgroup.procs", os.W_OK)
            and {"memory", "pids"} <= set(passed_on.read_text().split())
        ):
            return [group]
    return []


def _make_groups(name: str, parents: list[Path]) -> list[Path]:
    """Control groups for one sandbox, one in each of `parents`."""
    made = []
    for parent in parents:
        group = parent / name
        try:
            group.mkdir()
        except OSError:
            continue  # not ours to write: the limits of single processes remain
        made.append(group)
    return made


def _limit_groups(groups: list[Path], memory_mib: int, pids: int) -> None:
    limits = {"memory.max": memory_mib << 20, "memory.limit_in_bytes": memory_mib << 20, "pids.max": pids}
    for group in groups:
        for file, value in limits.items():
            if (group / file).exists():
                (group / file).write_text(str(value))


def _remove_groups(groups: list[Path], patience_s: float = 0.5) -> list[Path]:
    """Remove control groups; returns those whose last process is still being taken down after `patience_s`."""
    deadline = time.monotonic() + patience_s
    left = []
    for group in groups:
        while group.exists():
            try:
                group.rmdir()
            except FileNotFoundError:
                break
            except OSError:
                if time.monotonic() > deadline:
                    left.append(group)
                    break
                time.sleep(0.01)
    return left


if __name__ == "__main__":
    Warden(socket.socket(fileno=0), json.loads(sys.argv[1])).serve()
