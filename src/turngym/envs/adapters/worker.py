"""A process in a virtual environment of its own that speaks for one package (`inside/serve.py` is its other half).

One worker serves every environment of its package in this process, one request at a time. That is safe, since it keeps
no episode: a request brings the state and the answer takes the next one back. So a worker that died has lost nothing
but the request it was at, which is an `EnvFault` (never a reward), and the next request starts another.

Only one death is somebody's doing: a request that has spent its CPU seconds is killed by the kernel with SIGXCPU, and
raises `Overrun`, as one does that runs out of memory or stack. Time that passes otherwise (a busy machine, a stopped
process) ends at the deadline in a fault.

A worker is a process of this user, and no sandbox: it runs the package's code on the policy's data, never the policy's
code.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Any

from turngym.envs.adapters.inside import frames
from turngym.envs.adapters.worker_venv import Pins, interpreter
from turngym.errors import EnvFault

logger = logging.getLogger(__name__)

_START_S = 600.0
"""The first import of a large package compiles it, which takes minutes on a busy machine."""

_BOOT = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("inside", sys.argv[1])
sys.modules["inside"] = importlib.util.module_from_spec(spec)
from inside import serve
serve.main(sys.argv[2], int(sys.argv[3]))
"""
"""Nothing is put on the path: the folder above `inside` has modules that are called like the packages they adapt."""

_INSIDE = Path(__file__).with_name("inside") / "__init__.py"


class Overrun(Exception):
    """The request used more CPU, memory or stack than it may: the doing of its data, and so of the policy."""


class Worker:
    """One process.

    Args:
        python: the interpreter of its virtual environment.
        side: the module that speaks for the package, `inside.bfcl_side`.
        variables: environment variables; it gets no others but PATH, HOME and LANG.
        memory_mib: address space; an allocation beyond it fails in the package's code.

    Raises:
        EnvFault: where it does not start.
    """

    def __init__(self, python: Path, side: str, variables: dict[str, str], *, memory_mib: int) -> None:
        self.side = side
        self._sock, theirs = socket.socketpair()
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
        with theirs:
            self._process = subprocess.Popen(
                [str(python), "-s", "-c", _BOOT, str(_INSIDE), side, str(memory_mib)],
                stdin=theirs.fileno(),
                stdout=self._errors,
                stderr=self._errors,
                cwd=python.parent.parent,
                env=_clean_environment() | variables,
                start_new_session=True,  # Ctrl-C is for us to answer
            )
        self._receive("start", time.monotonic() + _START_S)

    @property
    def alive(self) -> bool:
        """True while the process runs."""
        return self._process.poll() is None

    def ask(
        self, op: str, body: bytes = b"", *, cpu_s: float, deadline_s: float, **arguments: Any
    ) -> tuple[Any, dict[str, Any], bytes]:
        """Send one request and wait for its answer.

        Args:
            op: a method of `inside.serve.Package`.
            body: the pickled episode.
            cpu_s: CPU seconds that the request may use.
            deadline_s: seconds to wait in all.
            arguments: of the method.

        Returns:
            What the method returned, the whole header, and the episode as it is now.

        Raises:
            Overrun: where the request used up its CPU seconds, the memory or the stack.
            EnvFault: where the package raised, the worker died, or the deadline passed. Past a deadline it is killed.
        """
        until = time.monotonic() + deadline_s
        try:
            frames.send(self._sock, {"op": op, "cpu_s": cpu_s, **arguments}, body, until=until)
        except OSError:
            logger.debug("sending to the %s worker failed; reading says why", self.side, exc_info=True)
        header, body = self._receive(op, until)
        if "overrun" in header:
            raise Overrun(f"{self.side}: {op} {header['overrun']}")
        if "error" in header:
            raise EnvFault(f"{self.side} failed at {op}: {header['error'][:1000]}")
        return header["value"], header, body

    def _receive(self, op: str, until: float) -> tuple[dict[str, Any], bytes]:
        cause: Exception | None = None
        received = None
        try:
            received = frames.receive(self._sock, until=until)
        except TimeoutError as error:
            self.close()
            raise EnvFault(f"the {self.side} worker did not answer {op} in time, and was stopped") from error
        except (OSError, ValueError) as error:
            cause = error
        if received is not None:
            return received
        code = self._wait()
        said = self._last_words()
        self.close()
        if code == -signal.SIGXCPU:
            raise Overrun(f"{self.side}: {op} used up its CPU seconds")
        raise EnvFault(f"the {self.side} worker died at {op} (exit code {code}): {said}") from cause

    def _wait(self) -> int:
        try:
            return self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _last_words(self) -> str:
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(size - 2000, 0))
        return self._errors.read().decode(errors="replace").strip() or "it said nothing"

    def close(self) -> None:
        """Stop the process. Safe to call twice."""
        self._sock.close()
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._errors.close()


class WorkerSlot:
    """Where environments of one package find their worker: started when first needed, and again after it died.

    Args:
        pins: its virtual environment, made where there is none.
        side: the module that speaks for the package, `inside.bfcl_side`.
        variables: environment variables for it.
        memory_mib: its address space.
    """

    def __init__(
        self, pins: Pins, side: str, *, variables: dict[str, str] | None = None, memory_mib: int = 4096
    ) -> None:
        self.pins, self.side = pins, side
        self._variables, self._memory_mib = variables or {}, memory_mib
        self._lock = threading.Lock()
        self._worker: Worker | None = None
        self._owner = 0

    def ask(
        self, op: str, body: bytes = b"", *, cpu_s: float = 60.0, deadline_s: float = 300.0, **arguments: Any
    ) -> tuple[Any, dict[str, Any], bytes]:
        """`Worker.ask`, after waiting for those before us."""
        with self._lock:
            return self._ready().ask(op, body, cpu_s=cpu_s, deadline_s=deadline_s, **arguments)

    def close(self) -> None:
        """Stop the worker. The next request starts another."""
        with self._lock:
            if self._worker is not None and self._owner == os.getpid():
                self._worker.close()
            self._worker = None

    def _ready(self) -> Worker:
        mine = self._owner == os.getpid()  # a fork of this process gets a worker of its own
        if self._worker is None or not mine or not self._worker.alive:
            if self._worker is not None and mine:
                self._worker.close()
            self._worker = None
            self._worker = Worker(
                interpreter(self.pins), self.side, self._variables, memory_mib=self._memory_mib
            )
            self._owner = os.getpid()
            atexit.register(self.close)
        return self._worker


def _clean_environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    return kept | {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}


__all__ = ["Overrun", "Worker", "WorkerSlot"]
