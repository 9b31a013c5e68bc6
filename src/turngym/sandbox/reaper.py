"""Ends the containers of an owner that has died, or hangs: `python -m turngym.sandbox.reaper PID TTL_S`.

A container ends by itself when its owner's connection closes. What that leaves is a container that the owner had
asked for and not yet started, one whose engine missed the end of the connection, and those of an owner that hangs:
they are found by their labels and removed from here, a process of its own, so that nothing depends on the owner.

It starts with a sweep of what owners that are dead left on this machine. Its standard input is the owner's voice:
lines `beat`, `end CONTAINER`, `ttl SECONDS` and `bye`.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Final

from turngym.errors import HarnessFault, MissingDependency
from turngym.sandbox import engine

_BEATS_PER_TTL = 4
_QUIET_S: Final = 3.0
"a request that the engine was working on when the owner died can still make a container for so long"
_READY = b"ready\n"


class Reaper:
    """The owner's side: one process that sees to it, and a thread that tells it that the owner lives."""

    def __init__(self, ttl_s: float) -> None:
        self.owner = os.getpid()
        self.ttl_s = ttl_s
        self.process = subprocess.Popen(
            [sys.executable, "-m", "turngym.sandbox.reaper", str(self.owner), str(ttl_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            cwd="/",
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with self.process.stdout as said:
            if said.readline() != _READY:
                raise HarnessFault("the container reaper did not start; its words stand above")
        self._speaking = threading.Lock()
        self._hurry = threading.Event()
        threading.Thread(target=self._beat, name="turngym-reaper-heartbeat", daemon=True).start()

    @property
    def alive(self) -> bool:
        """True while it does its duty for this process."""
        return self.owner == os.getpid() and self.process.poll() is None

    def end(self, container: str) -> None:
        """Have `container` removed, without waiting for it."""
        self._say(f"end {container}")

    def be_quick(self, ttl_s: float) -> None:
        """Let it wait for at most `ttl_s` from now on."""
        if ttl_s < self.ttl_s:
            self.ttl_s = ttl_s
            self._hurry.set()
            self._say(f"ttl {ttl_s}")

    def close(self) -> None:
        """Have everything removed that this process still holds, and wait for it."""
        self._say("bye")
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.wait()

    def _say(self, line: str) -> bool:
        with self._speaking:
            if self.process.stdin is None or self.process.stdin.closed:
                return False
            try:
                os.write(self.process.stdin.fileno(), f"{line}\n".encode())
            except BrokenPipeError:
                return False
        return True

    def _beat(self) -> None:
        while self._say("beat"):
            self._hurry.wait(self.ttl_s / _BEATS_PER_TTL)
            self._hurry.clear()


_reapers: dict[str, Reaper] = {}
"by engine"
_making = threading.Lock()


def reaper(ttl_s: float) -> Reaper:
    """The reaper of this process at the present engine, started now if it has none that lives.

    Raises:
        HarnessFault: it did not start.
    """
    host = os.environ.get("DOCKER_HOST", "")
    with _making:
        known = _reapers.get(host)
        if known is None or not known.alive:
            known = _reapers[host] = Reaper(ttl_s)
        known.be_quick(ttl_s)
        return known


@atexit.register
def _close_reapers() -> None:
    for each in _reapers.values():
        if each.alive:
            each.close()


# ---------------------------------------------------------------------- its own process


def serve(owner_pid: int, ttl_s: float) -> None:
    """Wait for the end of the owner, or for its silence, then remove what it has made."""
    label = engine.owner_label(owner_pid)
    owner = os.pidfd_open(owner_pid)
    os.write(1, _READY)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    threading.Thread(target=_sweep, name="sweep", daemon=True).start()
    rest, patience_s = b"", _QUIET_S
    while select.select([0, owner], [], [], ttl_s)[0] == [0] and (heard := os.read(0, 1 << 16)):
        *lines, rest = (rest + heard).split(b"\n")
        for line in lines:
            word, _, name = line.decode().partition(" ")
            if word == "end":
                engine.remove(name)
            elif word == "ttl":
                ttl_s = float(name)
            elif word == "bye":
                patience_s = 0.0  # nothing is under way
    quiet_since = time.monotonic()
    while True:
        for each in _containers(f"{engine.OWNER}={label}"):
            engine.remove(each["Id"])
            quiet_since = time.monotonic()
        if time.monotonic() >= quiet_since + patience_s:
            return
        time.sleep(0.1)


def _containers(*labels: str) -> list[dict[str, Any]]:
    return list(engine.client().containers(all=True, filters={"label": list(labels)}))


def _sweep() -> None:
    """Remove the containers of owners of this machine that are dead."""
    for each in _containers(engine.OWNER, f"{engine.MACHINE}={engine.machine_label()}"):
        if not engine.owner_lives(each["Labels"][engine.OWNER]):
            engine.remove(each["Id"])


def main() -> None:
    """Serve until there is nothing left to do, or no engine any more that could be told to."""
    import requests  # noqa: PLC0415 - comes with the Docker SDK

    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        serve(int(sys.argv[1]), float(sys.argv[2]))
    except (requests.ConnectionError, MissingDependency) as error:
        sys.exit(
            f"turngym: the container engine is gone, and nobody looks after its containers now ({error})"
        )


if __name__ == "__main__":
    main()
