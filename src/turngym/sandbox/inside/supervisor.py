"""The first process of a bubblewrap sandbox: it starts commands, keeps sessions, and freezes and forks worlds.

No code of the agent ever runs in this process, and none can reach it: it is in namespaces above theirs. It ends
when its connection to the host closes, and as it is the first process of its PID namespace, everything else ends
with it. One thread, one loop; a request is a frame (see `wire`) with a `call` number, the answer carries it back.
"""

from __future__ import annotations

import _socket as socket
import errno
import os
import resource
import sys
import time

from . import linux, wire
from .bash import BashSession
from .cells import Cells
from .commands import Commands
from .core import Core, Place
from .jobs import processes_below
from .sessions import Broken, Holder, Lost, PythonSession
from .worlds import Busy, Frozen, Worlds, digest, read_file, write_file

TYPE_CHECKING = False  # as in `typing`, which is not loaded for it
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

LOOK_EVERY_S = 0.05
_LOOK_AT_REST_S = 0.25
_YOUNG_S = 0.02
_TIDY_AFTER_S = 0.002
_MAX_LEFTOVERS = 8


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
        self._core = Core(control, config)
        self._commands = Commands(self._core)
        self._cells = Cells(self._core)
        self._worlds = Worlds(self._core.limits["disk_mib"], self._core.limits["files"])
        self._places: dict[int, Place] = {0: Place(self._worlds.base())}
        self._snaps: dict[int, Snap] = {}
        self._numbers = 1
        self._unpacker = wire.Unpacker()
        self._looked = 0.0
        # Places that went on as another one: unmounting takes milliseconds too.
        self._leftovers: list[Place] = []
        self._core.watch.add(control.fileno(), self._requests)

    # -- the loop

    def serve(self) -> None:
        """Answer requests until the host closes the connection."""
        core = self._core
        core.answer(None, {"ready": True})
        core.addressed = self._places[0]
        while True:
            if not core.watch.serve(self._patience()):
                self._use_the_pause()
            self._mind_the_clock()

    def _use_the_pause(self) -> None:
        """Nothing is asked for now: make the box that a command will want next, or tidy up; one thing at a time."""
        core = self._core
        if core.addressed is not None:
            place, core.addressed = core.addressed, None
            if place.live and place.spare is None:
                try:
                    place.spare = core.box(place)
                except OSError as error:  # the command that wants it tries again, and is told
                    sys.stderr.write(f"turngym: nothing could be prepared: {error}\n")
        elif self._leftovers:
            old = self._leftovers.pop()
            core.end(old)
            old.world.drop()
        core.ending = [pid for pid in core.ending if not os.waitpid(pid, os.WNOHANG)[0]]

    def _patience(self) -> float | None:
        if self._core.addressed is not None:
            return 0.0
        if self._leftovers:
            return _TIDY_AFTER_S if len(self._leftovers) < _MAX_LEFTOVERS else 0.0
        deadlines = [each.deadline for each in (*self._commands.jobs, *self._cells.busy)]
        if not deadlines:
            if self._core.ending:
                return LOOK_EVERY_S
            return _LOOK_AT_REST_S if self._cells.resting else None
        return max(0.0, min(min(deadlines) - time.monotonic(), LOOK_EVERY_S))

    def _mind_the_clock(self) -> None:
        now = time.monotonic()
        self._commands.mind_the_clock(now)
        self._cells.mind_the_clock(now)
        running = (*self._commands.jobs, *self._cells.busy)
        due = any(now - each.started > _YOUNG_S for each in running)
        resting = self._cells.resting and now - self._looked > _LOOK_AT_REST_S
        if (due and now - self._looked > LOOK_EVERY_S) or resting:
            self._looked = now
            keepers = {job.box.keeper for job in self._commands.jobs}
            sessions = (*self._cells.busy, *self._cells.resting)
            processes = processes_below(keepers | {session.first for session in sessions})
            self._commands.look(processes)
            self._cells.look(processes)

    # -- requests

    def _requests(self) -> None:
        data = self._core.control.recv(1 << 18)
        if not data:
            os._exit(0)  # the host is gone: so are we, and with us everything else
        for header, body in self._unpacker.feed(data):
            call = header["call"]
            try:
                request: Callable[[int, wire.Header, bytes], None] = getattr(self, f"_do_{header['op']}")
                request(call, header, body)
            except Lost as lost:
                self._core.answer(call, {"lost": lost.names, "why": lost.why})
            except (Broken, wire.BadFrame) as error:
                self._core.answer(call, {"fault": str(error)})
            except OSError as error:
                self._core.answer(call, {"errno": error.errno, "reason": error.strerror or str(error)})
            except ValueError as error:  # a name that no file can have
                self._core.answer(call, {"errno": errno.EINVAL, "reason": str(error)})
            except KeyError as error:
                self._core.answer(call, {"misuse": f"no such sandbox or snapshot: {error}"})

    def _do_beat(self, call: int, header: wire.Header, body: bytes) -> None:
        """A sign of life, for whoever listens in between."""
        self._core.answer(call, {})

    def _do_exec(self, call: int, header: wire.Header, body: bytes) -> None:
        self._commands.run(call, self._places[header["world"]], header, body)

    def _do_cell(self, call: int, header: wire.Header, body: bytes) -> None:
        self._cells.run(call, self._places[header["world"]], header, body)

    def _do_cancel(self, call: int, header: wire.Header, body: bytes) -> None:
        self._commands.cancel(header["of"])
        self._cells.cancel(header["of"])
        self._core.answer(call, {})

    def _do_read(self, call: int, header: wire.Header, body: bytes) -> None:
        world = self._places[header["world"]].world
        data = read_file(world, header["path"], header["limit"], follow=header["follow"])
        self._core.answer(call, {}, data)

    def _do_write(self, call: int, header: wire.Header, body: bytes) -> None:
        write_file(self._places[header["world"]].world, header["path"], body, header["mode"])
        self._core.answer(call, {})

    def _do_digest(self, call: int, header: wire.Header, body: bytes) -> None:
        place = self._places[header["world"]]
        self._core.answer(call, {"digest": digest(place.world)})
        self._core.addressed = place  # a pool asks this last, and then somebody wants to run a command

    # -- snapshots and forks

    def _do_freeze(self, call: int, header: wire.Header, body: bytes) -> None:
        """Freeze a place; it goes on, together with `n` forks, from what is frozen."""
        place = self._places[header["world"]]
        if place.jobs or any(session.call is not None for session in place.sessions.values()):
            raise Lost([f"{len(place.jobs)} running command(s)" if place.jobs else "a running cell"], "busy")
        for session in place.sessions.values():
            if not session.alive:  # its next cell says so, and starts another one
                raise Lost(
                    [f"the {session.language} session, which has used up its {session.usage.exceeded}"]
                )
        shell = place.sessions.get("bash")
        try:
            state = shell.state() if isinstance(shell, BashSession) else place.bash_state
        except Broken as error:  # likewise for its next cell
            raise Lost(["the shell, which does not answer"]) from error
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
        self._leave(place)
        self._places[header["world"]] = first
        self._core.addressed = first
        numbers = [self._keep(self._places, other) for other in others]
        number = None
        if header["keep"]:
            number = self._keep(self._snaps, snap)
        else:
            snap.drop()
        self._core.answer(call, {"worlds": numbers, "snap": number})

    def _leave(self, place: Place) -> None:
        """Tidy `place` up later; from now on nobody makes anything in it."""
        place.live = False
        self._leftovers.append(place)

    def _freeze(self, place: Place, python: PythonSession | None, bash_state: bytes) -> Snap:
        if python is not None:
            if not self._core.config["forkable"]:
                raise Lost(["the Python session (this sandbox was made with forkable=False)"])
            try:
                python.freeze()
            except Lost:
                python.thaw()
                raise
            except Broken as error:  # its next cell finds out and starts afresh
                raise Lost(["the Python session, which does not answer"]) from error
        try:
            frozen = self._worlds.freeze(place.world)
        except OSError as error:
            if python is not None:
                python.thaw()
            if isinstance(error, Busy):
                raise Lost([str(error.strerror)]) from error
            raise
        return Snap(frozen, None if python is None else Holder(python), bash_state)

    def _spawn(self, snap: Snap, n: int) -> list[Place]:
        sessions = [] if snap.holder is None else snap.holder.session.forks(n, snap.holder, self._core.cap)
        places: list[Place] = []
        try:
            # The files are laid out while the session forks.
            while len(places) < n:
                places.append(Place(self._worlds.above(snap.frozen)))
                if sessions:
                    sessions[len(places) - 1].enter(places[-1].world)
            for session in sessions:
                session.adopt()
        except (Broken, Lost, OSError):
            for session in sessions:
                session.kill()
            for place in places:
                place.world.drop()
            raise
        for place in places:
            place.bash_state = snap.bash_state
        for place, session in zip(places, sessions, strict=False):
            place.sessions["python"] = session
        return places

    def _do_spawn(self, call: int, header: wire.Header, body: bytes) -> None:
        places = self._spawn(self._snaps[header["snap"]], header["n"])
        self._core.answer(call, {"worlds": [self._keep(self._places, place) for place in places]})

    def _do_drop(self, call: int, header: wire.Header, body: bytes) -> None:
        for number in header.get("snaps", ()):
            self._snaps.pop(number).drop()
        for number in header.get("worlds", ()):
            self._drop_place(self._places.pop(number))
        self._core.answer(call, {})

    def _drop_place(self, place: Place) -> None:
        self._core.end(place)
        for job in place.jobs:
            job.kill(None)
        for session in list(place.sessions.values()):
            if session.call is not None:
                self._cells.end(session, place, None)
            session.kill()
        place.world.drop()

    def _keep(self, shelf: dict[int, Any], item: object) -> int:
        self._numbers += 1
        shelf[self._numbers] = item
        return self._numbers


def main() -> None:
    """Serve on descriptor 0; the configuration is the first argument."""
    linux.prctl(linux.PR_SET_DUMPABLE, 0)
    linux.mount("none", "/", None, linux.MS_PRIVATE | linux.MS_REC)
    os.umask(0o022)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    control = socket.socket(fileno=os.dup(0))
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    Supervisor(control, wire.loads(sys.argv[1])).serve()
