"""The loop of a worker: `main` answers requests on file descriptor 0 until the other side is gone.

It keeps no episode. A request brings the pickled state and the answer takes the next one back, so that a state is a
value: the environment that holds it can be forked, put back, or go on in another worker. Only this process ever
unpickles what it pickled. Each request starts from the same global generators, and so depends on its own data alone.

A request has CPU seconds (`limits`). Just before they are spent, an exception goes off in the package's code, which often
answers it; code that no exception reaches is killed by the kernel (SIGXCPU), which says whose doing it was.
"""

from __future__ import annotations

import importlib
import os
import pickle
import random
import resource
import signal
import socket
import traceback
from typing import Any, Protocol

from . import frames
from .limits import OVERRUNS, cpu_limit, described

Header = dict[str, Any]


class Package(Protocol):
    """What a `*_side` module supplies as its class `Package`. An episode is any object that can be pickled."""

    def tasks(self, **options: Any) -> list[str]:
        """Names of the tasks, in the package's own order."""

    def start(self, task: str, **options: Any) -> tuple[Any, Header]:
        """A new episode, and what it shows first."""

    def act(self, episode: Any, **message: Any) -> Header:
        """Change the episode by one message of the policy; returns what it shows."""

    def gold(self, episode: Any, **options: Any) -> Header:
        """The message that the package's own solution says next."""

    def key(self, episode: Any) -> str:
        """Digest of everything that the future depends on."""

    # Any other public method reads an episode, as these two do.


def answer(package: Package, request: Header, body: bytes) -> tuple[Header, bytes]:
    """Answer one request. `op` names the method of `Package`; the rest are its arguments."""
    op = request.pop("op")
    random.seed(0)
    if op == "tasks":
        return {"value": package.tasks(**request)}, b""
    if op == "start":
        episode, shown = package.start(**request)
    elif op == "act":
        episode = pickle.loads(body)
        shown = package.act(episode, **request)
    else:
        return {"value": getattr(package, op)(pickle.loads(body), **request)}, b""
    return {"value": shown, "key": package.key(episode)}, pickle.dumps(episode, protocol=5)


def _take_over(memory_mib: int) -> socket.socket:
    """The connection, and nothing else on the three standard streams that a package could read or write by accident."""
    sock = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_AS, (memory_mib << 20, memory_mib << 20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner decides
    return sock


def main(module: str, memory_mib: int) -> None:
    """Load the package, say so, and answer until the other side is gone."""
    sock = _take_over(memory_mib)
    package: Package = importlib.import_module(module).Package()
    frames.send(sock, {"ready": module})
    while (received := frames.receive(sock)) is not None:
        request, body = received
        try:
            with cpu_limit(request.pop("cpu_s")):
                header, body = answer(package, request, body)
        except OVERRUNS as error:
            header, body = {"overrun": described(error)}, b""
        except Exception as error:  # noqa: BLE001 - the other side raises it
            traceback.print_exc()
            header, body = {"error": f"{type(error).__name__}: {error}"}, b""
        frames.send(sock, header, body)
