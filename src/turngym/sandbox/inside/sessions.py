"""The supervisor's side of an interpreter session: start it, feed it cells, freeze it, fork it.

A frozen session is a process that stands still. Each fork of it is a grandchild in namespaces of its own, one
level further down, so neither side can signal or even see the other. The kernel nests PID namespaces 32 deep,
which bounds a chain of forks of forks (a snapshot and what goes on from it count as well). Restoring or forking one
snapshot again and again does not get deeper.
"""

from __future__ import annotations

import _socket as socket
import os
import time

from . import linux, wire
from .box import AGENT_ID
from .jobs import Capture, Usage
from .worlds import World

TYPE_CHECKING = False  # as in `typing`, which is not loaded for it
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

PATIENCE_S = 10.0
START_WITHIN_S = 25.0
"for an interpreter of ours to come up, on a machine that is very busy"
MAX_REPLY = 64 << 20
GRACE_S = 2.0
_FDS_A_FORK = 3
_FORKS_A_MESSAGE = 10
"as `linux.recv_with_fds` takes 32 descriptors at once"
_PLAIN_FDS = {"0", "1", "2", "3"}


class Lost(Exception):
    """State that a fork can't carry."""

    def __init__(self, names: list[str], why: str = "state") -> None:
        """Name it.

        Args:
            names: of each thing.
            why: "state" that the kernel can't copy, "depth" of nested namespaces, "busy" with a command or cell.
        """
        super().__init__(", ".join(names))
        self.names = names
        self.why = why


class Broken(Exception):
    """The session does not follow the protocol, or is gone."""


class Holder:
    """A session process that has forked: it lives as long as one of its forks or its snapshot needs it."""

    def __init__(self, session: PythonSession) -> None:
        self.session = session
        self.users = 1

    def release(self) -> None:
        """Count one user less; the last one ends it."""
        self.users -= 1
        if self.users == 0:
            self.session.kill()


class PythonSession:
    """A live Python session."""

    language = "python"

    def __init__(
        self,
        control: socket.socket,
        out: Capture,
        err: Capture,
        usage: Usage,
        *,
        keeper: int,
        report: int,
        parent: Holder | None,
    ) -> None:
        control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.control = control
        self.out = out
        self.err = err
        self.usage = usage
        self.keeper = keeper
        self.report = report
        self.parent = parent
        self.depth: int = 0 if parent is None else parent.session.depth + 1
        self.pid = 0
        self.first = keeper
        self._handles: list[int] = []
        self._handed: list[int] = []
        self.call: int | None = None
        self.started = time.monotonic()
        self.deadline = 0.0
        self.interrupted = False
        self.alive = True
        self._unpacker = wire.Unpacker(MAX_REPLY)
        self._ready: list[dict[str, Any]] = []

    # -- messages

    def fileno(self) -> int:
        """For selectors."""
        return self.control.fileno()

    def pump(self) -> list[dict[str, Any]]:
        """The messages that have arrived.

        Raises:
            Broken: at the end of the connection, or for bytes that are no message.
        """
        try:
            data, fds, pid = linux.recv_with_fds(self.control, 1 << 16)
        except OSError as error:
            raise Broken(str(error)) from error
        for fd in fds:
            os.close(fd)  # a session has nothing to send us
        if not data:
            raise Broken("the session has ended")
        self.pid = self.pid or pid
        try:
            return [header for header, _ in self._unpacker.feed(data)]
        except wire.BadFrame as error:
            raise Broken(str(error)) from error

    def ask(self, header: wire.Header | None, patience_s: float = PATIENCE_S) -> dict[str, Any]:
        """Send `header` (if any) and wait for the next message, at most `patience_s`.

        Raises:
            Broken: there was none.
            Lost: the session that was to become this fork says that it can't.
        """
        deadline = time.monotonic() + patience_s
        if header is not None:
            self.tell(header)
        sources = [self] if self.parent is None else [self, self.parent.session]
        while not self._ready:
            wait = deadline - time.monotonic()
            heard = linux.wait_readable([source.fileno() for source in sources], wait) if wait > 0 else []
            if not heard:
                raise Broken(f"the session did not answer within {patience_s:g} s")
            if self.fileno() not in heard:
                reasons = [str(words.get("reason")) for words in sources[1].pump()]
                deep = f"a session {self.depth} forks deep (the kernel says {', '.join(reasons)})"
                raise Lost([deep], "depth")
            try:
                self._ready += self.pump()
            except Broken as error:
                raise Broken(f"{error}: {self.last_words()}") from error
        return self._ready.pop(0)

    def last_words(self) -> str:
        """The end of what it wrote to stderr."""
        self.err.pump()
        return bytes(self.err.kept[-500:]).decode(errors="replace")

    def tell(self, header: wire.Header, body: bytes = b"", fds: Sequence[int] = ()) -> None:
        """Send one message, with descriptors.

        Raises:
            Broken: the session is gone or does not read.
        """
        data = wire.pack(header, body)
        self.control.settimeout(PATIENCE_S)
        try:
            linux.send_with_fds(self.control, data, fds)
        except OSError as error:
            raise Broken(str(error)) from error
        finally:
            self.control.settimeout(None)

    # -- becoming a fork

    def enter(self, world: World) -> None:
        """Give the new fork its files.

        Raises:
            Broken: it does not read.
        """
        mounts = world.mounts()
        try:
            self.tell({"op": "enter"}, fds=mounts)
        finally:
            for fd in mounts:
                os.close(fd)

    def adopt(self) -> None:
        """Wait until the new fork has come up, and hold on to its processes, so that their numbers stay theirs.

        Raises:
            Broken: it has not come up.
            Lost: the kernel does not nest namespaces any deeper.
        """
        greeting = self.ask(None)
        if greeting.get("op") != "hello":
            raise Broken(str(greeting.get("reason", "a fork did not come up")))
        self._let_go()
        self.first = _parent_of(self.pid)
        if self.first <= 1:
            raise Broken("a fork has ended at once")
        self._handles = [os.pidfd_open(self.first), os.pidfd_open(self.pid)]

    def _let_go(self) -> None:
        for fd in self._handed:
            os.close(fd)
        self._handed.clear()

    # -- cells

    def begin(self, call: int, code: bytes, timeout_s: float) -> None:
        """Start a cell."""
        self.call = call
        self.started = time.monotonic()
        self.deadline = self.started + timeout_s
        self.interrupted = False
        self.tell({"op": "cell"}, code)

    def overdue(self, now: float) -> bool:
        """Interrupt a cell at its deadline; True where it has ignored that for too long."""
        if self.interrupted:
            return now > self.deadline
        self.interrupted = True
        self.deadline = now + GRACE_S
        linux.kill_if_there(self.pid, linux.SIGINT)
        return False

    # -- life

    def kill(self) -> None:
        """End the session with everything that it started."""
        if not self.alive:
            return
        self.alive = False
        if self.parent is None:
            os.kill(self.keeper, linux.SIGKILL)
            os.waitpid(self.keeper, 0)
            os.close(self.report)
        for handle in self._handles:
            try:
                linux.pidfd_send_signal(handle, linux.SIGKILL)
            except ProcessLookupError:
                pass  # it was gone already
            os.close(handle)
        if self.parent is not None:
            self.parent.release()
        self._let_go()
        self.control.close()
        self.out.close()
        self.err.close()

    # -- forks

    def check_carriable(self) -> None:
        """Look from outside for what a fork can't carry.

        Raises:
            Lost: names each.
            Broken: the session has ended.
        """
        try:
            lost = self._lost()
        except (FileNotFoundError, ProcessLookupError) as error:
            raise Broken("the session has ended") from error
        if lost:
            raise Lost(lost)

    def _lost(self) -> list[str]:
        lost = redirected(self.pid, self.out, self.err)
        threads = len(os.listdir(f"/proc/{self.pid}/task"))
        if threads > 1:
            lost.append(f"{threads - 1} thread(s)")
        family = [*children_of(self.pid), *children_of(self.first)]
        for pid in family:
            if pid != self.pid:
                lost.append(f"subprocess {pid} ({name_of(pid)})")
        for fd in os.listdir(f"/proc/{self.pid}/fd"):
            if fd not in _PLAIN_FDS:
                link = link_of(f"/proc/{self.pid}/fd/{fd}")
                if not link.startswith("/") or link.endswith(" (deleted)") or link.startswith("/dev/pts"):
                    lost.append(f"descriptor {fd} ({link})")
        return lost + _shared_maps(self.pid)

    def freeze(self) -> None:
        """Make the session stand still.

        Raises:
            Lost: what the session says that it can't carry.
            Broken: it does not answer.
        """
        answer = self.ask({"op": "freeze"})
        if answer.get("op") != "frozen":
            raise Broken(f"expected 'frozen', got {answer.get('op')!r}")
        names = answer.get("lost")
        if names:
            raise Lost([str(name) for name in names])
        self.check_carriable()

    def thaw(self) -> None:
        """Undo `freeze`."""
        answer = self.ask({"op": "thaw"})
        while answer.get("op") != "thawed":  # a failed fork may have been reported in between
            answer = self.ask(None)

    def forks(self, n: int, holder: Holder, cap: int) -> list[PythonSession]:
        """Begin `n` forks. Each waits for `enter` to be given its files, and is there when `adopt` returns.

        Raises:
            Broken: the session does not read.
        """
        made = [self._fork_to_be(holder, cap) for _ in range(n)]
        sent = [fd for session in made for fd in session._handed]
        try:
            for start in range(0, len(sent), _FORKS_A_MESSAGE * _FDS_A_FORK):
                some = sent[start : start + _FORKS_A_MESSAGE * _FDS_A_FORK]
                self.tell({"op": "fork", "each": _FDS_A_FORK, "inside_id": AGENT_ID}, fds=some)
        except Broken:
            for session in made:
                session.kill()
            raise
        return made

    def _fork_to_be(self, holder: Holder, cap: int) -> PythonSession:
        ours, theirs = socket.socketpair()
        out, out_in = os.pipe()
        err, err_in = os.pipe()
        usage = Usage(self.usage.memory_mib, self.usage.pids)
        holder.users += 1
        session = PythonSession(
            ours, Capture(out, cap), Capture(err, cap), usage, keeper=0, report=-1, parent=holder
        )
        # Open here until the fork is up: one that was never made must not look like one that has ended.
        session._handed = [theirs.detach(), out_in, err_in]
        return session


def _shared_maps(pid: int) -> list[str]:
    found = []
    with open(f"/proc/{pid}/maps") as file:
        for line in file:
            fields = line.split(maxsplit=5)
            if fields[1][3] == "s" and fields[1][1] == "w":
                found.append(f"shared mapping of {fields[5].strip() if len(fields) > 5 else 'memory'}")
    return found


def redirected(pid: int, out: Capture, err: Capture) -> list[str]:
    """Which of stdin, stdout and stderr of `pid` lead elsewhere than at its start."""
    found = []
    for fd, (name, capture) in enumerate((("stdin", None), ("stdout", out), ("stderr", err))):
        path = f"/proc/{pid}/fd/{fd}"
        try:
            there = os.stat(path)
        except FileNotFoundError:
            found.append(f"{name}, which was closed")
            continue
        if capture is None:
            same = there.st_rdev == os.makedev(1, 3)  # /dev/null
        else:
            same = capture.open and os.path.samestat(there, os.fstat(capture.fd))
        if not same:
            found.append(f"{name}, which leads to {link_of(path)}")
    return found


def children_of(pid: int) -> list[int]:
    """The processes whose parent is the main thread of `pid`; none where that has ended."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(word) for word in file.read().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _parent_of(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def name_of(pid: int) -> str:
    """What `ps` calls the process."""
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except (FileNotFoundError, ProcessLookupError):
        return "ended"


def link_of(path: str) -> str:
    """Where a link below `/proc` leads to, as the kernel words it."""
    try:
        return os.readlink(path)
    except OSError:
        return "gone (deleted)"
