"""A Python session: runs cells in one namespace, and can turn into its own forks.

The agent's code lives in this very process, so nothing here is trusted: the supervisor checks from outside what
it is told, and the kernel keeps the walls. What this module does is be a good session for code that does not
attack it.
"""

from __future__ import annotations

import _random
import ast
import base64
import contextlib
import gc
import linecache
import os
import random
import resource
import signal
import socket
import stat
import subprocess
import sys
import threading
import traceback
import types
from typing import Any, NamedTuple

from . import linux, wire
from .worlds import PLACES

CONTROL = 3
_GENERATOR: Any = random._inst
_RICH = {
    "text/html": "_repr_html_",
    "text/markdown": "_repr_markdown_",
    "text/latex": "_repr_latex_",
    "image/svg+xml": "_repr_svg_",
    "image/png": "_repr_png_",
    "image/jpeg": "_repr_jpeg_",
    "application/json": "_repr_json_",
}


class OpenFile(NamedTuple):
    """A file that is open now, and how to open the fork's own copy of it."""

    fd: int
    path: str
    flags: int
    offset: int
    inheritable: bool


class _Luck(NamedTuple):
    """The state of the global random generator, which Python seeds anew in every process that it forks."""

    numbers: Any
    gauss_next: float | None

    @classmethod
    def now(cls) -> _Luck:
        """Read it past whatever the session's code has put in the place of Python's own methods."""
        return cls(_random.Random.getstate(_GENERATOR), _GENERATOR.gauss_next)

    def restore(self) -> None:
        """Put it back."""
        _random.Random.setstate(_GENERATOR, self.numbers)
        _GENERATOR.gauss_next = self.gauss_next


class Session:
    """State that lasts from cell to cell."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.module = types.ModuleType("__main__")
        self.module.__dict__["__builtins__"] = __builtins__
        sys.modules["__main__"] = self.module
        self.running = False
        self.cells = 0
        self.files: list[OpenFile] = []
        self.folder = ""
        self.frozen = False
        self._sigchld: Any = signal.SIG_DFL
        self._luck = _Luck.now()
        self.unpacker = wire.Unpacker()
        self.waiting: list[tuple[wire.Header, bytes, list[int]]] = []

    # -- talking to the supervisor

    def receive(self) -> tuple[wire.Header, bytes, list[int]]:
        """The next message, with the file descriptors that came along."""
        fds: list[int] = []
        while not self.waiting:
            data, more, _ = linux.recv_with_fds(self.control, 1 << 16)
            if not data:
                os._exit(0)  # the supervisor has let go of this session
            fds += more
            for header, body in self.unpacker.feed(data):
                self.waiting.append((header, body, fds))
                fds = []
        return self.waiting.pop(0)

    def send(self, header: wire.Header) -> None:
        """Answer the supervisor."""
        self.control.sendall(wire.pack(header))

    def serve(self) -> None:
        """Do what the supervisor asks until it closes the connection."""
        signal.signal(signal.SIGINT, self._interrupted)
        self.send({"op": "hello"})
        while True:
            header, body, fds = self.receive()
            match header["op"]:
                case "cell":
                    self.send(self.run(body.decode("utf-8", "surrogatepass")))
                case "freeze":
                    self.freeze()
                case "thaw":
                    self.thaw()
                case "fork":
                    self.fork(fds, header["each"], header)

    def _interrupted(self, *_: object) -> None:
        if self.running:
            raise KeyboardInterrupt

    # -- cells

    def run(self, code: str) -> wire.Header:
        """Run one cell; returns the reply."""
        self.cells += 1
        name = f"<cell {self.cells}>"
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        reply: wire.Header = {"op": "done", "error": None, "display": None}
        try:
            self.running = True
            try:
                value = self._execute(code, name)
                if value is not None:
                    self.module.__dict__["_"] = value
                    reply["display"] = _display(value)
            finally:
                self.running = False
        except BaseException as error:  # noqa: BLE001 - whatever the agent's code raises is its result
            reply["error"] = _say(error)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # the cell has closed it
                stream.flush()
        return reply

    def _execute(self, code: str, name: str) -> object:
        tree = ast.parse(code, name)
        last = tree.body[-1] if tree.body else None
        if isinstance(last, ast.Expr):
            del tree.body[-1]
        scope = self.module.__dict__
        exec(compile(tree, name, "exec"), scope)
        if not isinstance(last, ast.Expr):
            return None
        value: object = eval(compile(ast.Expression(last.value), name, "eval"), scope)
        return value

    # -- forks

    def freeze(self) -> None:
        """Say what can't be carried; else close the files of the workspace and stand still."""
        files = _open_files()
        lost = self._lost(files) or _not_back(files)
        if lost:
            self.send({"op": "frozen", "lost": lost})
            return
        self.frozen = True
        self.folder = os.getcwd()
        self.files = files
        for file in self.files:
            os.close(file.fd)
        # The forks' first processes are never waited for: let the kernel reap them.
        self._sigchld = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        gc.collect(0)
        self.send({"op": "frozen", "lost": []})

    def thaw(self) -> None:
        """Go on after all: the freeze was called off."""
        if self.frozen:
            self.frozen = False
            signal.signal(signal.SIGCHLD, self._sigchld)
            self._reopen()
        self.send({"op": "thawed"})

    def _lost(self, files: list[OpenFile]) -> list[str]:
        lost = [f"thread {t.name!r}" for t in threading.enumerate() if t is not threading.main_thread()]
        for name, value in list(self.module.__dict__.items()):
            if isinstance(value, socket.socket) and value.fileno() >= 0:
                lost.append(f"socket {name!r}")
            elif isinstance(value, subprocess.Popen) and value.poll() is None:
                lost.append(f"subprocess {name!r} ({value.args!r:.60})")
        lost += [f"open file {file.path}" for file in files if file.path.endswith(" (deleted)")]
        timers = {
            "real": signal.ITIMER_REAL,
            "virtual": signal.ITIMER_VIRTUAL,
            "profiling": signal.ITIMER_PROF,
        }
        lost += [f"a {name} timer" for name, kind in timers.items() if any(signal.getitimer(kind))]
        return lost

    def fork(self, fds: list[int], each: int, header: wire.Header) -> None:
        """Start one fork for every `each` descriptors of `fds`: control, stdout, stderr."""
        self._luck = _Luck.now()
        soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
        # A new user namespace passes the present limit on to all of its descendants together.
        resource.setrlimit(resource.RLIMIT_NPROC, (hard, hard))
        for start in range(0, len(fds), each):
            mine = fds[start : start + each]
            try:
                if linux.clone(linux.CLONE_NEWUSER | linux.CLONE_NEWNS | linux.CLONE_NEWPID) == 0:
                    others = [fd for fd in fds if fd not in mine]
                    self._become(mine, others, (soft, hard), header)
                    return
            except OSError as error:
                self.send({"op": "fork_failed", "reason": str(error)})
                break
        resource.setrlimit(resource.RLIMIT_NPROC, (soft, hard))
        for fd in fds:
            os.close(fd)

    def _become(self, fds: list[int], others: list[int], pids: tuple[int, int], header: wire.Header) -> None:
        """Turn this copy into the fork: its own walls, files and connection, then go on serving."""
        for fd in others:
            os.close(fd)
        self.waiting.clear()
        self.unpacker = wire.Unpacker()
        for fd, target in zip(fds, (CONTROL, 1, 2), strict=True):
            os.dup2(fd, target, inheritable=target != CONTROL)
            os.close(fd)
        try:
            linux.map_ids(header["inside_id"], header["inside_id"])
            # Here and not in `clone`, so that forks make theirs side by side: a network takes the kernel a millisecond.
            linux.unshare(linux.CLONE_NEWIPC | linux.CLONE_NEWNET)
            linux.raise_loopback()
            linux.mount_proc()
            _, _, mounts = self.receive()
            for fd, place in zip(mounts, PLACES, strict=True):
                linux.move_mount(fd, f"/{place}")
                os.close(fd)
            linux.drop_privileges()
            session = os.fork()
        except OSError as error:
            self.send({"op": "fork_failed", "reason": str(error)})
            os._exit(125)
        if session:
            _wait_for(session, [CONTROL, 1, 2])
        resource.setrlimit(resource.RLIMIT_NPROC, pids)
        linux.prctl(linux.PR_SET_DUMPABLE, 1)
        signal.signal(signal.SIGCHLD, self._sigchld)
        self.frozen = False
        self._reopen()
        self._luck.restore()
        self.send({"op": "hello"})

    def _reopen(self) -> None:
        os.chdir(self.folder)
        for file in self.files:
            fd = os.open(file.path, file.flags)
            os.lseek(fd, file.offset, os.SEEK_SET)
            if fd != file.fd:
                os.dup2(fd, file.fd)
                os.close(fd)
            os.set_inheritable(file.fd, file.inheritable)
        self.files = []


def _not_back(files: list[OpenFile]) -> list[str]:
    """What the session could not come back to, if it let go of it now."""
    lost = []
    try:
        os.getcwd()
    except OSError as error:
        lost.append(f"the working directory ({error.strerror})")
    for file in files:
        try:
            os.close(os.open(file.path, file.flags))
        except OSError as error:
            lost.append(f"open file {file.path} ({error.strerror})")
    return lost


def _wait_for(session: int, fds: list[int]) -> None:
    """Be the first process of a fork: reap orphans until the session ends, then end them all."""
    for fd in fds:
        os.close(fd)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while os.wait()[0] != session:
        pass
    os._exit(0)


def _open_files() -> list[OpenFile]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        try:
            kind = os.fstat(fd).st_mode
            path = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue  # the descriptor of the listing itself
        if fd <= CONTROL or not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)) or path.startswith("/proc/"):
            continue
        with open(f"/proc/self/fdinfo/{fd}") as file:
            fields = dict(line.split(":", 1) for line in file if ":" in line)
        flags = int(fields["flags"], 8) & ~(os.O_CREAT | os.O_EXCL | os.O_TRUNC)
        found.append(OpenFile(fd, path, flags, int(fields["pos"]), os.get_inheritable(fd)))
    return found


def _display(value: object) -> dict[str, str]:
    bundle = {"text/plain": repr(value)}
    for mime, method in _RICH.items():
        render = getattr(type(value), method, None)
        if render is None:
            continue
        data: Any = render(value)
        if data is None:
            continue
        if isinstance(data, bytes):
            data = base64.b64encode(data).decode()
        bundle[mime] = data if isinstance(data, str) else str(data)
    return bundle


def _say(error: BaseException) -> dict[str, str]:
    """Print the traceback without the frames of this module, and name the error."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    with contextlib.suppress(OSError, ValueError, AttributeError):  # the cell has closed or replaced stderr
        traceback.print_exception(type(error), error, frames)
    return {"type": type(error).__name__, "message": str(error)}


def main() -> None:
    """Serve on descriptor 3."""
    os.environ.pop("GLIBC_TUNABLES", None)  # ours, for this process alone: see `supervisor`
    control = socket.socket(fileno=CONTROL)
    control.set_inheritable(False)
    sys.argv = [""]
    Session(control).serve()
