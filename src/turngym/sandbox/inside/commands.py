"""The commands that run now."""

from __future__ import annotations

import os
import time

from . import wire
from .core import Core, Place
from .jobs import Capture, Job, Usage

_IN_HASTE_S = 0.003
"A command that comes this soon after its box was made: the next box is made while it runs, not after it."


class Commands:
    """Starts commands, feeds them, and answers when they are over."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.jobs: set[Job] = set()

    def mind_the_clock(self, now: float) -> None:
        """End what has run for too long."""
        for job in self.jobs:
            if now > job.deadline:
                job.kill("wall")

    def cancel(self, call: int) -> None:
        """End the command of that request, if it still runs."""
        for job in self.jobs:
            if job.call == call:
                job.kill(None)

    def look(self, processes: dict[int, list[int]]) -> None:
        """Measure, and end what uses too much.

        Args:
            processes: those of each keeper.
        """
        for job in self.jobs:
            job.usage.look(processes[job.box.keeper])
            if job.usage.exceeded:
                job.kill(job.usage.exceeded)

    def run(self, call: int, place: Place, header: wire.Header, body: bytes) -> None:
        """Start a command; the answer comes when it is over."""
        started = time.monotonic()
        stdin, stdin_in = os.pipe()
        out, out_in = os.pipe()
        err, err_in = os.pipe()
        try:
            box = self._core.start(place, self._core.plan(header["argv"], header), [stdin, out_in, err_in])
        except OSError:
            for fd in (stdin_in, out, err):
                os.close(fd)
            raise
        job = Job(
            call=call,
            box=box,
            out=Capture(out, self._core.cap),
            err=Capture(err, self._core.cap),
            usage=Usage(self._core.limits["memory_mib"], self._core.limits["pids"]),
            started=started,
            timeout_s=header["timeout_s"],
        )
        self.jobs.add(job)
        place.jobs.add(job)
        for capture in (job.out, job.err):
            self._core.listen(capture)
        self._core.watch.add(box.report, lambda: self._job_ended(job, place))
        job.stdin_fd, job.stdin_left = stdin_in, memoryview(body)
        os.set_blocking(stdin_in, False)
        self._feed(job)
        if job.stdin_fd >= 0:
            self._core.watch.add(stdin_in, lambda: self._feed(job), writing=True)
        if started - box.made < _IN_HASTE_S:
            self._core.addressed = place

    def _feed(self, job: Job) -> None:
        try:
            while job.stdin_left:
                job.stdin_left = job.stdin_left[os.write(job.stdin_fd, job.stdin_left) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            pass  # the command does not want the rest
        self._close_stdin(job)

    def _close_stdin(self, job: Job) -> None:
        if job.stdin_fd in self._core.watch:
            self._core.watch.remove(job.stdin_fd)
        os.close(job.stdin_fd)
        job.stdin_fd = -1

    def _finish(self, capture: Capture) -> tuple[bytes, int]:
        """What is left in a pipe whose writers are gone, and an end to it."""
        if capture.open:
            capture.pump()
            self._core.watch.remove(capture.fd)
            capture.close()
        return capture.take()

    def _job_ended(self, job: Job, place: Place) -> None:
        self._core.watch.remove(job.box.report)
        self.jobs.discard(job)
        place.jobs.discard(job)
        if job.stdin_fd >= 0:
            self._close_stdin(job)
        out, out_dropped = self._finish(job.out)
        err, err_dropped = self._finish(job.err)
        job.out.dropped, job.err.dropped = out_dropped, err_dropped
        result = job.result(self._core.limits["cpu_s"])
        if result["limit_hit"] is None and place.live and place.world.full():
            result["limit_hit"] = "disk"
        result.update(out=len(out), out_dropped=out_dropped, err_dropped=err_dropped)
        if not result.pop("reaped"):
            self._core.ending.append(job.box.keeper)
        self._core.give_back(place, job.box.network, untouched=result.pop("untouched"))
        self._core.answer(job.call, result, out + err)
        self._core.addressed = place
