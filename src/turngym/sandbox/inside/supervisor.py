"""The first process of a bubblewrap sandbox: it starts commands, keeps sessions, and freezes and forks worlds.

No code of the agent ever runs in this process, and none can reach it: it is in namespaces above theirs. It ends
when its connection to the host closes, and as it is the first process of its PID namespace, everything else ends
with it. One thread, one loop; a request is a frame (see `wire`) with a `call` number, the answer carries it back.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from . import bash, box, linux, seccomp, wire
from .bash import BashSession
from .jobs import Capture, Job, Usage, processes_below
from .sessions import Broken, Holder, Lost, PythonSession
from .worlds import Busy, Frozen, World, Worlds, digest, read_file, write_file

LOOK_EVERY_S = 0.05
_YOUNG_S = 0.02

Session = PythonSession | BashSession


class Place:
    """One sandbox as the supervisor keeps it: files, sessions, and commands that run now."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sessions: dict[str, Session] = {}
        self.bash_state = b""
        self.jobs: set[Job] = set()
        self.spare: box.Box | None = None
        self.live = True

    def use_up_spare(self) -> list[int]:
        """End the box that is ready, as the files change under it; returns the keepers to reap."""
        if self.spare is None:
            return []
        self.spare.discard()
        keeper, self.spare = self.spare.keeper, None
        return [keeper]


class Snap:
    """A frozen `Place`."""

    def __init__(self, frozen: Frozen, holder: Holder | None, bash_state: bytes) -> None:
        self.frozen = frozen
        self.holder = holder
        self.bash_state = bash_state

    def drop(self) -> None:
        """Let go of files and sessions."""
        self.frozen.drop()
        if self.holder is not None:
            self.holder.release()


class Supervisor:
    """The loop and its requests."""

    def __init__(self, control: socket.socket, config: dict[str, Any]) -> None:
        self.control = control
        self.config = config
        self.limits: dict[str, Any] = config["limits"]
        self.worlds = Worlds(self.limits["disk_mib"], self.limits["files"])
        self.places: dict[int, Place] = {0: Place(self.worlds.base())}
        self.snaps: dict[int, Snap] = {}
        self.numbers = 1
        self.selector = selectors.DefaultSelector()
        self.selector.register(control, selectors.EVENT_READ, self._requests)
        self.unpacker = wire.Unpacker()
        self.jobs: set[Job] = set()
        self.busy: dict[Session, Place] = {}
        self.looked = 0.0
        # Keepers whose command is over. The kernel takes milliseconds to take their namespaces down, which nobody
        # should wait for.
        self.ending: list[int] = []
        self.addressed: Place | None = None
        # Places that went on as another one: unmounting takes milliseconds too.
        self.leftovers: list[Place] = []
        machine = os.uname().machine
        self.programs = {forking: seccomp.build(machine, forking=forking) for forking in (False, True)}
        self.cap = self.limits["output_kib"] << 10

    # -- the loop

    def serve(self) -> None:
        """Answer requests until the host closes the connection."""
        self._answer(None, {"ready": True})
        self.addressed = self.places[0]
        while True:
            events = self.selector.select(0 if self.addressed or self.leftovers else self._patience())
            if not events:
                self._use_the_pause()
            for key, _ in events:
                if self.selector.get_map().get(key.fd) is key:  # an event before this one may have ended it
                    key.data()
            self._mind_the_clock()

    def _use_the_pause(self) -> None:
        """Nothing is asked for now: tidy up, and make the box that a command will want next."""
        for old in self.leftovers:
            self.ending += old.use_up_spare()
            old.world.drop()
        self.leftovers.clear()
        place, self.addressed = self.addressed, None
        if place is not None and place.live and place.spare is None and not place.jobs:
            place.spare = box.Box(place.world.root, self.programs[False])
        self.ending = [pid for pid in self.ending if not os.waitpid(pid, os.WNOHANG)[0]]

    def _patience(self) -> float | None:
        deadlines = [job.deadline for job in self.jobs] + [session.deadline for session in self.busy]
        if not deadlines:
            return LOOK_EVERY_S if self.ending else None
        return max(0.0, min(min(deadlines) - time.monotonic(), LOOK_EVERY_S))

    def _mind_the_clock(self) -> None:
        now = time.monotonic()
        for job in self.jobs:
            if now > job.deadline:
                job.kill("wall")
        for session, place in list(self.busy.items()):
            if now > session.deadline and session.overdue(now):
                self._session_ended(session, place, "wall")
        if (self.jobs or self.busy) and now - self.looked > LOOK_EVERY_S:
            self.looked = now
            self._look(now)

    def _look(self, now: float) -> None:
        young = all(now - each.started < _YOUNG_S for each in (*self.jobs, *self.busy))
        if young:
            return
        groups = processes_below({job.keeper for job in self.jobs} | {session.first for session in self.busy})
        for job in self.jobs:
            job.usage.look(groups[job.keeper])
            if job.usage.exceeded:
                job.kill(job.usage.exceeded)
        for session, place in list(self.busy.items()):
            session.usage.look(groups[session.first])
            if session.usage.exceeded:
                self._session_ended(session, place, session.usage.exceeded)

    # -- requests

    def _requests(self) -> None:
        data = self.control.recv(1 << 20)
        if not data:
            os._exit(0)  # the host is gone: so are we, and with us everything else
        for header, body in self.unpacker.feed(data):
            call = header["call"]
            try:
                request: Callable[[int, wire.Header, bytes], None] = getattr(self, f"_do_{header['op']}")
                request(call, header, body)
            except Lost as lost:
                self._answer(call, {"lost": lost.names})
            except (Broken, wire.BadFrame) as error:
                self._answer(call, {"fault": str(error)})
            except OSError as error:
                self._answer(call, {"errno": error.errno, "reason": error.strerror or str(error)})
            except KeyError as error:
                self._answer(call, {"fault": f"no such sandbox or snapshot: {error}"})

    def _answer(self, call: int | None, header: wire.Header, body: bytes = b"") -> None:
        self.control.sendall(wire.pack({"call": call, **header}, body))

    def _do_read(self, call: int, header: wire.Header, body: bytes) -> None:
        data = read_file(self.places[header["world"]].world, header["path"], header["limit"])
        self._answer(call, {}, data)

    def _do_write(self, call: int, header: wire.Header, body: bytes) -> None:
        write_file(self.places[header["world"]].world, header["path"], body, header["mode"])
        self._answer(call, {})

    def _do_digest(self, call: int, header: wire.Header, body: bytes) -> None:
        place = self.places[header["world"]]
        self._answer(call, {"digest": digest(place.world)})
        self.addressed = place  # a pool asks this last, and then somebody wants to run a command

    # -- commands

    def _plan(self, argv: list[str], header: wire.Header, *, forking: bool = False) -> box.Plan:
        return box.Plan(
            argv=argv,
            env={**self.config["env"], **header.get("env", {})},
            cwd=header.get("cwd") or "/workspace",
            cpu_s=self.limits["cpu_s"],
            memory_mib=self.limits["memory_mib"],
            pids=self.limits["pids"],
            forking=forking,
        )

    def _start(self, place: Place, plan: box.Plan, fds: list[int]) -> tuple[int, int]:
        """Run `plan` in the box that is ready, or in a new one; returns keeper and report. `fds` are closed."""
        if plan.forking or place.spare is None:
            chosen = box.Box(place.world.root, self.programs[plan.forking])
        else:
            chosen, place.spare = place.spare, None
        try:
            chosen.start(plan, fds)
        except OSError as error:
            sys.stderr.write(f"turngym: a keeper has ended early ({error}); its report says why\n")
        finally:
            for fd in fds:
                os.close(fd)
        return chosen.keeper, chosen.report

    def _do_exec(self, call: int, header: wire.Header, body: bytes) -> None:
        started = time.monotonic()
        place = self.places[header["world"]]
        stdin, stdin_in = os.pipe()
        out, out_in = os.pipe()
        err, err_in = os.pipe()
        keeper, report = self._start(place, self._plan(header["argv"], header), [stdin, out_in, err_in])
        job = Job(
            call=call,
            world=header["world"],
            keeper=keeper,
            report=report,
            out=Capture(out, self.cap),
            err=Capture(err, self.cap),
            usage=Usage(self.limits["memory_mib"], self.limits["pids"]),
            started=started,
            timeout_s=header["timeout_s"],
        )
        self.jobs.add(job)
        place.jobs.add(job)
        for capture in (job.out, job.err):
            self.selector.register(capture.fd, selectors.EVENT_READ, lambda c=capture: self._pump(c))
        self.selector.register(report, selectors.EVENT_READ, lambda: self._job_ended(job, place))
        job.stdin_fd, job.stdin_left = stdin_in, memoryview(body)
        os.set_blocking(stdin_in, False)
        self._feed(job)
        if job.stdin_fd >= 0:
            self.selector.register(stdin_in, selectors.EVENT_WRITE, lambda: self._feed(job))

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
        if job.stdin_fd in self.selector.get_map():
            self.selector.unregister(job.stdin_fd)
        os.close(job.stdin_fd)
        job.stdin_fd = -1

    def _pump(self, capture: Capture) -> None:
        if not capture.pump():
            self.selector.unregister(capture.fd)
            capture.close()

    def _finish(self, capture: Capture) -> tuple[bytes, int]:
        """What is left in a pipe whose writers are gone, and an end to it."""
        if capture.open:
            capture.pump()
            self.selector.unregister(capture.fd)
            capture.close()
        return capture.take()

    def _job_ended(self, job: Job, place: Place) -> None:
        self.selector.unregister(job.report)
        self.jobs.discard(job)
        place.jobs.discard(job)
        if job.stdin_fd >= 0:
            self._close_stdin(job)
        out, out_dropped = self._finish(job.out)
        err, err_dropped = self._finish(job.err)
        job.out.dropped, job.err.dropped = out_dropped, err_dropped
        result = job.result(self.limits["cpu_s"])
        if result["limit_hit"] is None and place.live and place.world.full():
            result["limit_hit"] = "disk"
        result.update(out=len(out), out_dropped=out_dropped, err_dropped=err_dropped)
        if not result.pop("reaped"):
            self.ending.append(job.keeper)
        self._answer(job.call, result, out + err)
        self.addressed = place

    # -- sessions

    def _do_cell(self, call: int, header: wire.Header, body: bytes) -> None:
        place = self.places[header["world"]]
        session = place.sessions.get(header["language"])
        if session is not None and session.call is not None:
            self._answer(call, {"fault": "a cell is running in this session; wait for it"})
            return
        if session is None:
            session = self._start_session(place, header["language"])
        try:
            session.begin(call, body, header["timeout_s"])
        except Broken:
            self._session_ended(session, place, None, call=call)
            return
        self.busy[session] = place
        self._listen(session, place)

    def _listen(self, session: Session, place: Place) -> None:
        self.selector.register(session, selectors.EVENT_READ, lambda: self._session_spoke(session, place))
        for capture in (session.out, session.err):
            self.selector.register(capture.fd, selectors.EVENT_READ, lambda c=capture: self._pump(c))

    def _quiet(self, session: Session) -> None:
        self.selector.unregister(session)
        for capture in (session.out, session.err):
            if capture.open:
                self.selector.unregister(capture.fd)

    def _start_session(self, place: Place, language: str) -> Session:
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        out, out_in = os.pipe()
        err, err_in = os.pipe()
        null = os.open("/dev/null", os.O_RDONLY)
        python = language == "python"
        argv = self.config["python_session"] if python else bash.ARGV
        # Huge pages make the page tables that a fork has to copy 512 times smaller.
        env = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"} if python else {}
        plan = self._plan(argv, {"env": env}, forking=python and self.config["forkable"])
        keeper, report = self._start(place, plan, [null, out_in, err_in, theirs.detach()])
        captures = (Capture(out, self.cap), Capture(err, self.cap))
        usage = Usage(self.limits["memory_mib"], self.limits["pids"])
        session: Session
        if python:
            session = PythonSession(ours, *captures, usage, keeper=keeper, report=report, parent=None)
            session.ask(None)
        else:
            session = BashSession(ours, *captures, usage, keeper=keeper, report=report)
            if place.bash_state:
                session.restore(place.bash_state)
        place.sessions[language] = session
        return session

    def _session_spoke(self, session: Session, place: Place) -> None:
        try:
            replies = session.pump()
        except Broken:
            self._session_ended(session, place, "wall" if session.interrupted else None)
            return
        for reply in replies:
            self._cell_ended(
                session, place, reply, limit="wall" if session.interrupted else None, restarted=False
            )

    def _session_ended(
        self, session: Session, place: Place, limit: str | None, *, call: int | None = None
    ) -> None:
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
        self._answer(call, answer, out + err)

    # -- snapshots and forks

    def _do_freeze(self, call: int, header: wire.Header, body: bytes) -> None:
        """Freeze a place; it goes on, together with `n` forks, from what is frozen."""
        place = self.places[header["world"]]
        if place.jobs or any(session.call is not None for session in place.sessions.values()):
            raise Lost([f"{len(place.jobs)} running command(s)" if place.jobs else "a running cell"])
        shell = place.sessions.get("bash")
        state = shell.state() if isinstance(shell, BashSession) else place.bash_state
        python = place.sessions.get("python")
        live = python if isinstance(python, PythonSession) else None
        snap = self._freeze(place, live, state)
        try:
            first, *others = self._spawn(snap, 1 + header["n"])
        except (Broken, Lost, OSError):
            place.world.thaw()
            snap.frozen.drop()
            if live is not None:
                live.thaw()
            raise
        if shell is not None:
            shell.kill()
        self.leftovers.append(place)
        self.places[header["world"]] = first
        numbers = [self._keep(self.places, other) for other in others]
        number = None
        if header["keep"]:
            number = self._keep(self.snaps, snap)
        else:
            snap.drop()
        self._answer(call, {"worlds": numbers, "snap": number})

    def _freeze(self, place: Place, python: PythonSession | None, bash_state: bytes) -> Snap:
        if python is not None:
            if not self.config["forkable"]:
                raise Lost(["the Python session (this sandbox was made with forkable=False)"])
            try:
                python.freeze()
            except Lost:
                python.thaw()
                raise
        try:
            frozen = self.worlds.freeze(place.world)
        except Busy as busy:
            if python is not None:
                python.thaw()
            raise Lost([str(busy.strerror)]) from busy
        return Snap(frozen, None if python is None else Holder(python), bash_state)

    def _spawn(self, snap: Snap, n: int) -> list[Place]:
        places = [Place(self.worlds.above(snap.frozen)) for _ in range(n)]
        for place in places:
            place.bash_state = snap.bash_state
        if snap.holder is not None:
            try:
                sessions = snap.holder.session.forks([p.world for p in places], snap.holder, self.cap)
            except (Broken, Lost, OSError):
                for place in places:
                    place.world.drop()
                raise
            for place, session in zip(places, sessions, strict=True):
                place.sessions["python"] = session
        return places

    def _do_spawn(self, call: int, header: wire.Header, body: bytes) -> None:
        places = self._spawn(self.snaps[header["snap"]], header["n"])
        self._answer(call, {"worlds": [self._keep(self.places, place) for place in places]})

    def _do_drop(self, call: int, header: wire.Header, body: bytes) -> None:
        for number in header.get("snaps", ()):
            self.snaps.pop(number).drop()
        for number in header.get("worlds", ()):
            self._drop_place(self.places.pop(number))
        self._answer(call, {})

    def _drop_place(self, place: Place) -> None:
        place.live = False
        self.ending += place.use_up_spare()
        for job in place.jobs:
            job.kill(None)
        for session in list(place.sessions.values()):
            if session.call is not None:
                self._session_ended(session, place, None)
            session.kill()
        place.world.drop()

    def _keep(self, shelf: dict[int, Any], item: object) -> int:
        self.numbers += 1
        shelf[self.numbers] = item
        return self.numbers


def main() -> None:
    """Serve on descriptor 0; the configuration is the first argument."""
    linux.prctl(linux.PR_SET_DUMPABLE, 0)
    linux.mount("none", "/", None, linux.MS_PRIVATE | linux.MS_REC)
    os.umask(0o022)
    control = socket.socket(fileno=os.dup(0))
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    Supervisor(control, json.loads(sys.argv[1])).serve()
