"""The supervisor's side of one running command: its pipes, its clock, and what it uses."""

from __future__ import annotations

import os
import time

from . import linux, wire

TYPE_CHECKING = False  # as in `typing`, which is not loaded for it
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from .box import Box

_READ = 1 << 16


class Capture:
    """Keeps the first `cap` bytes of a pipe and counts the rest, so that a flood costs no memory."""

    def __init__(self, fd: int, cap: int) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self.open = True
        self.kept = bytearray()
        self.dropped = 0
        self._cap = cap

    def pump(self, rounds: int = 16) -> bool:
        """Read what is there; False at the end of the pipe."""
        if not self.open:
            return False
        for _ in range(rounds):
            try:
                data = os.read(self.fd, _READ)
            except BlockingIOError:
                return True
            if not data:
                return False
            room = self._cap - len(self.kept)
            self.kept += data[:room]
            self.dropped += max(0, len(data) - room)
        return True

    def take(self) -> tuple[bytes, int]:
        """What was kept and how many bytes were not; starts afresh."""
        kept, dropped = bytes(self.kept), self.dropped
        self.kept.clear()
        self.dropped = 0
        return kept, dropped

    def close(self) -> None:
        """Close the pipe."""
        if self.open:
            self.open = False
            os.close(self.fd)


class Usage:
    """Watches what the processes of one namespace use, for the limits that the kernel keeps per process only."""

    def __init__(self, memory_mib: float, pids: int) -> None:
        self.memory_mib = memory_mib
        self.pids = pids
        self.peak_mib = 0.0
        self.threads = 0
        """Of all processes, at the last look."""
        self.exceeded: str | None = None

    def look(self, processes: Iterable[int]) -> None:
        """Measure `processes` now, and note a limit that is exceeded.

        Memory of one's own is added up; of memory shared between processes the largest share counts, since adding
        up would count the same page again for each of them.
        """
        self.threads, own_kib, shared_kib = 0, 0, 0
        for pid in processes:
            try:
                with open(f"/proc/{pid}/status", "rb") as file:
                    fields = dict(line.split(b":", 1) for line in file if b":" in line)
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended while we looked
            self.threads += int(fields[b"Threads"])
            if b"RssAnon" in fields:  # not of a zombie
                own_kib += int(fields[b"RssAnon"].split()[0])
                shared_kib = max(shared_kib, int(fields[b"RssShmem"].split()[0]))
        mib = (own_kib + shared_kib) / 1024
        self.peak_mib = max(self.peak_mib, mib)
        if mib > self.memory_mib:
            self.exceeded = "memory"
        elif self.threads > self.pids + 1:
            self.exceeded = "pids"


class Job:
    """One command that runs now."""

    def __init__(
        self,
        *,
        call: int,
        box: Box,
        out: Capture,
        err: Capture,
        usage: Usage,
        started: float,
        timeout_s: float,
    ) -> None:
        self.call = call
        self.box = box
        self.out = out
        self.err = err
        self.usage = usage
        self.started = started
        self.deadline = self.started + timeout_s
        self.limit: str | None = None
        self.stdin_fd = -1
        self.stdin_left = memoryview(b"")

    def kill(self, limit: str | None) -> None:
        """End every process of the command; `limit` says why."""
        self.limit = self.limit or limit
        linux.kill_if_there(self.box.keeper, linux.SIGKILL)

    def result(self, cpu_limit_s: float) -> dict[str, Any]:
        """What the keeper said about the command, in the words of `base.ExecResult`."""
        words = read_report(self.box.report)
        if not words:
            os.waitpid(self.box.keeper, 0)  # it was killed: only its end is the end of the others
        status = int(words.get("status", -linux.SIGKILL))
        cpu_s = float(words.get("cpu_s", 0.0))
        limit = self.limit
        if limit is None and (
            status == -linux.SIGXCPU or (status == -linux.SIGKILL and cpu_s >= cpu_limit_s)
        ):
            limit = "cpu"
        if limit is None and (self.out.dropped or self.err.dropped):
            limit = "output"
        return {
            "exit_code": 128 - status if status < 0 else status,
            "wall_s": time.monotonic() - self.started,
            "cpu_s": cpu_s,
            "peak_memory_mib": max(self.usage.peak_mib, float(words.get("rss_mib", 0.0))),
            "limit_hit": limit,
            "fault": words.get("error"),
            "reaped": not words,
            "untouched": words.get("untouched", False),
        }


def read_report(fd: int) -> dict[str, Any]:
    """The keeper's last words, which it writes in one go, {} where it was killed."""
    data = os.read(fd, _READ)
    os.close(fd)
    words: dict[str, Any] = wire.loads(data) if data else {}
    return words


def processes_below(roots: set[int]) -> dict[int, list[int]]:
    """Every process in sight under the nearest of `roots` that it descends from.

    An orphan falls to the first process of its PID namespace, so no process ever leaves the tree of its keeper,
    not even by namespaces of its own.
    """
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended while we looked
    groups: dict[int, list[int]] = {root: [] for root in roots}
    for pid in parents:
        at = pid
        while at not in roots and at in parents:
            at = parents[at]
        if at in roots:
            groups[at].append(pid)
    return groups
