"""The cells that run now, and the sessions that run them."""

from __future__ import annotations

import _socket as socket
import os
import time

from . import bash, hugepages, wire
from .bash import BashSession
from .core import Core, Place, Session
from .jobs import Capture, Usage
from .sessions import START_WITHIN_S, Broken, PythonSession

TYPE_CHECKING = False  # as in `typing`, which is not loaded for it
if TYPE_CHECKING:
    from typing import Any


_ALONE = 2
"threads of a session that runs nothing: its own and that of the first process"


class Cells:
    """Starts sessions, gives them cells, and answers when a cell or its session is over."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.busy: dict[Session, Place] = {}
        self.resting: dict[Session, Place] = {}
        """Sessions between two cells that may have left something running; they keep to their limits then, too."""

    def mind_the_clock(self, now: float) -> None:
        """Interrupt what has run for too long, and end what ignores that."""
        for session, place in list(self.busy.items()):
            if now > session.deadline and session.overdue(now):
                self.end(session, place, "wall")

    def cancel(self, call: int) -> None:
        """Treat the cell of that request, if it still runs, as if its time were over."""
        for session in self.busy:
            if session.call == call:
                session.deadline = 0.0

    def look(self, processes: dict[int, list[int]]) -> None:
        """Measure, and end what uses too much.

        Args:
            processes: those of each session, by its first one.
        """
        for session, place in list(self.busy.items()):
            session.usage.look(processes[session.first])
            if session.usage.exceeded:
                self.end(session, place, session.usage.exceeded)
        for session, place in list(self.resting.items()):
            if not (place.live and session.alive and place.sessions.get(session.language) is session):
                del self.resting[session]  # it was let go, or goes on as a fork
                continue
            session.usage.look(processes[session.first])
            if session.usage.exceeded:
                session.kill()  # its next cell is told
            if session.usage.exceeded or session.usage.threads <= _ALONE:
                del self.resting[session]

    def run(self, call: int, place: Place, header: wire.Header, body: bytes) -> None:
        """Start a cell; the answer comes when it is over.

        Raises:
            Broken: the session does not start.
        """
        session = place.sessions.get(header["language"])
        if session is not None and session.call is not None:
            self._core.answer(call, {"misuse": "a cell is running in this session; wait for it"})
            return
        if session is not None and not session.alive:
            self.end(session, place, session.usage.exceeded, call=call)
            return
        if session is None:
            session = self._start_session(place, header["language"])
            if isinstance(session, BashSession) and place.bash_state:
                try:
                    session.restore(place.bash_state)
                except Broken:  # it wrote down what it can't read
                    self.end(session, place, None, call=call)
                    return
        self.resting.pop(session, None)
        try:
            session.begin(call, body, header["timeout_s"])
        except Broken:
            self.end(session, place, None, call=call)
            return
        self.busy[session] = place
        self._listen(session, place)

    def _listen(self, session: Session, place: Place) -> None:
        self._core.watch.add(session.fileno(), lambda: self._session_spoke(session, place))
        for capture in (session.out, session.err):
            self._core.listen(capture)

    def _quiet(self, session: Session) -> None:
        self._core.watch.remove(session.fileno())
        for capture in (session.out, session.err):
            if capture.open:
                self._core.watch.remove(capture.fd)

    def _start_session(self, place: Place, language: str) -> Session:
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        out, out_in = os.pipe()
        err, err_in = os.pipe()
        null = os.open("/dev/null", os.O_RDONLY)
        python = language == "python"
        argv = self._core.config["python_session"] if python else bash.ARGV
        env = hugepages.ENVIRONMENT if python else {}
        plan = self._core.plan(argv, {"env": env})
        fds = [null, out_in, err_in, theirs.detach()]
        captures = (Capture(out, self._core.cap), Capture(err, self._core.cap))
        usage = Usage(self._core.limits["memory_mib"], self._core.limits["pids"])
        forking = python and self._core.config["forkable"]
        with hugepages.Shown(self._core.config["huge_pages"] if python else None):
            try:
                box = self._core.start(place, plan, fds, forking=forking)
            except OSError:
                for each in (ours, *captures):
                    each.close()
                raise
            os.close(box.network)
            session: Session
            try:
                if python:
                    session = PythonSession(
                        ours, *captures, usage, keeper=box.keeper, report=box.report, parent=None
                    )
                    session.ask(None, START_WITHIN_S)
                else:
                    session = BashSession(ours, *captures, usage, keeper=box.keeper, report=box.report)
            except Broken:
                session.kill()
                raise
        place.sessions[language] = session
        return session

    def _session_spoke(self, session: Session, place: Place) -> None:
        try:
            replies = session.pump()
        except Broken:
            self.end(session, place, "wall" if session.interrupted else None)
            return
        for reply in replies:
            self._cell_ended(
                session, place, reply, limit="wall" if session.interrupted else None, restarted=False
            )

    def end(self, session: Session, place: Place, limit: str | None, *, call: int | None = None) -> None:
        """End a session, and answer its cell if one runs (or the one that was just asked for)."""
        if call is not None:
            session.call = call
        place.sessions.pop(session.language, None)
        if session.language == "bash":
            place.bash_state = b""
        self._cell_ended(session, place, {}, limit=limit, restarted=True)
        session.kill()

    def _cell_ended(
        self, session: Session, place: Place, reply: dict[str, Any], *, limit: str | None, restarted: bool
    ) -> None:
        if session.call is None:
            return  # words that nobody has asked for
        call, session.call = session.call, None
        for capture in (session.out, session.err):
            if capture.open:
                capture.pump()
        if self.busy.pop(session, None) is not None:
            self._quiet(session)
        out, out_dropped = session.out.take()
        err, err_dropped = session.err.take()
        if limit is None:
            limit = (
                "output"
                if out_dropped or err_dropped
                else "disk"
                if place.live and place.world.full()
                else None
            )
        answer = {
            "wall_s": time.monotonic() - session.started,
            "limit_hit": limit,
            "restarted": restarted,
            "error": reply.get("error"),
            "display": reply.get("display"),
            "status": reply.get("status"),
            "out": len(out),
            "out_dropped": out_dropped,
            "err_dropped": err_dropped,
        }
        if session.alive and not restarted:
            self.resting[session] = place
        self._core.answer(call, answer, out + err)
