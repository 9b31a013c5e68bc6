"""CPU seconds of a request, and work in a forked copy of this process that counts against them.

A copy starts with everything that this process has loaded, at the cost of some milliseconds, and takes every change
along when it ends. So what is expensive to load is loaded once and never changed.
"""

from __future__ import annotations

import math
import os
import pickle
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

_seconds = 0.0
"""Of the request that runs now."""


class Overrun(Exception):
    """The CPU seconds of this request are spent."""


OVERRUNS = (Overrun, MemoryError, RecursionError)
"""What a request's data can cause, whatever the package makes of it."""


def described(error: BaseException) -> str:
    """Which limit it was, as words after the name of a request."""
    if isinstance(error, MemoryError):
        return "ran out of memory"
    return "nested too deep" if isinstance(error, RecursionError) else "used up its CPU seconds"


@contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Run the block with at most `seconds` of CPU: `Overrun` goes off half a second before, SIGXCPU kills after."""
    global _seconds  # noqa: PLW0603 - a worker answers one request at a time
    _seconds = seconds
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    kill_at = math.ceil(used.ru_utime + used.ru_stime + seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (kill_at + 1, hard))  # the kernel counts whole seconds
    signal.signal(signal.SIGPROF, _spent)
    signal.setitimer(signal.ITIMER_PROF, max(seconds - 0.5, seconds / 2))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_CPU, (hard, hard))


def in_a_copy(work: Callable[[], Any]) -> Any:
    """What `work` returns, which must be picklable, in a forked copy of this process.

    Raises:
        Overrun: where it used up the CPU seconds of this request, or ran out of memory or stack.
        RuntimeError: where it raised anything else, or its process died.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        _answer(write, work)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
        raise Overrun("it took too long")
    if status or not data:
        raise RuntimeError(f"a copy of the worker died (wait status {status})")
    value, spent, error = pickle.loads(data)
    if spent:
        raise Overrun("it took too long")
    if error:
        raise RuntimeError(error)
    return value


def _answer(write: int, work: Callable[[], Any]) -> NoReturn:
    """The copy: do the work, send what came of it, and be gone without any clean-up that belongs to the original."""
    outcome: tuple[Any, bool, str] = (None, False, "")
    try:
        with cpu_limit(_seconds):
            outcome = (work(), False, "")
    except OVERRUNS:
        outcome = (None, True, "")
    except Exception as error:  # noqa: BLE001 - the original raises it
        outcome = (None, False, f"{type(error).__name__}: {error}")
    with os.fdopen(write, "wb") as pipe:
        pipe.write(pickle.dumps(outcome))
    os._exit(0)


def _spent(*_: object) -> NoReturn:
    raise Overrun("it took too long")
