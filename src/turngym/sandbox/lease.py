"""Leases: no sandbox outlives its owner.

Each owner process has one warden (see `warden`), started with its first sandbox. A lease is renewed by a heartbeat
for as long as the owner lives and has not closed it. An owner that is killed is noticed at once, through its
process descriptor; one that hangs or is stopped loses its sandboxes after the time to live; a child that it forked
holds no lease, and can't keep the parent's alive.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import itertools
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Final

from turngym.errors import ConfigError, HarnessFault
from turngym.sandbox.channel import Answer, Channel, ChannelClosed

TTL_S: Final = 30.0
_START_WITHIN_S = 60.0
_BEATS_PER_TTL = 4
_HERE = Path(__file__).parent


class Lease:
    """The right to one sandbox process, until it is ended or no longer renewed."""

    def __init__(self, warden: WardenClient, number: int, pid: int) -> None:
        self._warden = warden
        self.number = number
        self.pid = pid

    async def end(self) -> None:
        """End the process and wait until it is gone. Ending twice is harmless."""
        with contextlib.suppress(ChannelClosed):  # without its warden the process is gone as well
            await asyncio.shield(asyncio.wrap_future(self.end_soon()))

    def end_soon(self) -> Future[Answer]:
        """Ask for the end without waiting for it."""
        return self._warden.end(self.number)


class WardenClient:
    """The owner's side of its warden."""

    def __init__(self, *, python: str, prefix: str) -> None:
        self.owner = os.getpid()
        self.python = python
        ours, theirs = socket.socketpair()
        config = {
            "owner_pid": self.owner,
            "inside": str(_HERE / "inside"),
            "state_dir": str(state_dir()),
            "python": python,
            "prefix": prefix,
        }
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the client
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_HERE / "warden.py"), json.dumps(config)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=self._log,
                start_new_session=True,
                cwd="/",
            )
        self.channel = Channel(ours)
        self._numbers = itertools.count(1)
        self._live: set[int] = set()
        self._shortest_s = TTL_S
        self._hurry = threading.Event()
        try:
            words = self.channel.greeting.result(_START_WITHIN_S)[0]
        except (TimeoutError, ChannelClosed) as error:
            self.close()
            raise HarnessFault(f"the sandbox warden did not start: {self.last_words()}") from error
        self.inside: str = words["inside"]
        """Where the supervisor's package lies, readable by every user."""
        self.prefix: str = words["prefix"]
        """Where the interpreter's prefix lies, readable by every user."""
        self._beat = threading.Thread(target=self._heartbeat, name="turngym-sandbox-heartbeat", daemon=True)
        self._beat.start()

    def start(
        self,
        argv: Sequence[str],
        *,
        stdin: int,
        stderr: int,
        memory_mib: int,
        pids: int,
        ttl_s: float = TTL_S,
    ) -> tuple[Future[Answer], int]:
        """Start a process on a lease; returns the answer to come (with its `pid`) and the number of the lease."""
        number = next(self._numbers)
        self._live.add(number)
        self._shortest_s = min(self._shortest_s, ttl_s)
        self._hurry.set()
        header = {
            "op": "start",
            "lease": number,
            "argv": list(argv),
            "ttl_s": ttl_s,
            "memory_mib": memory_mib,
            "pids": pids,
        }
        return self.channel.submit(header, fds=[stdin, stderr]), number

    def end(self, number: int) -> Future[Answer]:
        """End a lease; the answer comes when its process is gone."""
        self._live.discard(number)
        return self.channel.submit({"op": "end", "lease": number})

    def _heartbeat(self) -> None:
        while not self.channel.closed:
            self._hurry.wait(self._shortest_s / _BEATS_PER_TTL)
            self._hurry.clear()
            live = sorted(self._live)
            if live:
                self.channel.submit({"op": "renew", "leases": live})

    def last_words(self) -> str:
        """What the warden wrote to stderr."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace").strip()[-2000:] or "it said nothing"

    def close(self) -> None:
        """End every sandbox of this process and the warden."""
        self.channel.close()
        self._hurry.set()
        if self.owner == os.getpid():
            try:
                self.process.wait(_START_WITHIN_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._log.close()


def state_dir() -> Path:
    """Where wardens keep their folders: `TURNGYM_STATE_DIR`, or one in the system's temporary folder."""
    chosen = os.environ.get("TURNGYM_STATE_DIR")
    path = Path(chosen) if chosen else Path(tempfile.gettempdir()) / f"turngym-sandbox-{os.geteuid()}"
    if not path.is_absolute():
        raise ConfigError(f"TURNGYM_STATE_DIR must be an absolute path, got {chosen!r}")
    return path


_warden: WardenClient | None = None
_making = threading.Lock()


def warden(*, python: str, prefix: str) -> WardenClient:
    """The warden of this process, started now if it has none that lives.

    Raises:
        HarnessFault: it did not start.
    """
    global _warden  # noqa: PLW0603 - one for the process
    with _making:
        if _warden is None or _warden.owner != os.getpid() or _warden.channel.closed:
            if _warden is not None and _warden.owner == os.getpid():
                _warden.close()
            _warden = WardenClient(python=python, prefix=prefix)
        return _warden


@atexit.register
def _close_warden() -> None:
    if _warden is not None and _warden.owner == os.getpid():
        _warden.close()
