"""What the parts of the supervisor share: the connection, the configuration, what is waited for, the places."""

from __future__ import annotations

import os
import sys

from . import linux, seccomp, wire
from .bash import BashSession
from .box import Box, Plan
from .jobs import Capture, Job
from .sessions import PythonSession
from .watch import Watch
from .worlds import World

TYPE_CHECKING = False  # as in `typing`, which is not loaded for it
if TYPE_CHECKING:
    from _socket import socket
    from typing import Any

Session = PythonSession | BashSession


class Place:
    """One sandbox as the supervisor keeps it: files, sessions, and commands that run now."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sessions: dict[str, Session] = {}
        self.bash_state = b""
        self.jobs: set[Job] = set()
        self.spare: Box | None = None
        self.network: int | None = None
        """One that a command has left as it was. The kernel takes longer to make one, and to bury it, than to run a command."""
        self.live = True


class Core:
    """See the module."""

    def __init__(self, control: socket, config: dict[str, Any]) -> None:
        self.control = control
        self.config = config
        self.limits: dict[str, Any] = config["limits"]
        self.cap: int = self.limits["output_kib"] << 10
        self.watch = Watch()
        machine = os.uname().machine
        self.programs = {forking: seccomp.build(machine, forking=forking) for forking in (False, True)}
        # Keepers whose command is over. The kernel takes milliseconds to take their namespaces down, which nobody
        # should wait for.
        self.ending: list[int] = []
        self.addressed: Place | None = None
        """Where a command will probably be run next."""

    def answer(self, call: int | None, header: wire.Header, body: bytes = b"") -> None:
        """Send a frame to the host."""
        self.control.sendall(wire.pack({"call": call, **header}, body))

    def plan(self, argv: list[str], header: wire.Header) -> Plan:
        """What to run for a request."""
        env = {**self.config["env"], **header.get("env", {})}
        return Plan(argv=argv, env=env, cwd=header.get("cwd") or "/workspace")

    def box(self, place: Place, *, forking: bool = False) -> Box:
        """A new box for `place`."""
        network = linux.new_network() if place.network is None else place.network
        place.network = None
        return Box(place.world.root, self.programs[forking], network, self.limits, forking=forking)

    def give_back(self, place: Place, network: int, *, untouched: bool) -> None:
        """Take a network whose command is over: the next one of `place` gets it if it is `untouched`."""
        if untouched and place.live and place.network is None:
            place.network = network
        else:
            os.close(network)

    def end(self, place: Place) -> None:
        """Let go of what is kept ready for `place`, where nothing will be started any more."""
        place.live = False
        if place.spare is not None:
            place.spare.discard()
            self.ending.append(place.spare.keeper)
            place.spare = None
        if place.network is not None:
            os.close(place.network)
            place.network = None

    def start(self, place: Place, plan: Plan, fds: list[int], *, forking: bool = False) -> Box:
        """Run `plan` in the box that is ready, or in a new one, which is returned. `fds` are closed."""
        try:
            if forking or place.spare is None:
                chosen = self.box(place, forking=forking)
            else:
                chosen, place.spare = place.spare, None
            try:
                chosen.start(plan, fds)
            except OSError as error:
                sys.stderr.write(f"turngym: a keeper has ended early ({error}); its report says why\n")
        finally:
            for fd in fds:
                os.close(fd)
        return chosen

    def listen(self, capture: Capture) -> None:
        """Keep reading a pipe until its end, which may have been."""
        if capture.open:
            self.watch.add(capture.fd, lambda: self._pump(capture))

    def _pump(self, capture: Capture) -> None:
        if not capture.pump():
            self.watch.remove(capture.fd)
            capture.close()
