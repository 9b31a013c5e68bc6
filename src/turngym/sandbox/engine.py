"""The connection to a container engine: Docker's, or Podman's by its Docker-compatible socket (`DOCKER_HOST`).

What goes wrong here is told with the command that repairs it.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import socket
import struct
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from turngym.errors import ConfigError, MissingDependency
from turngym.sandbox.base import SandboxLost
from turngym.sandbox.channel import Answer
from turngym.sandbox.image import DEFAULT_IMAGE
from turngym.sandbox.inside import wire

if TYPE_CHECKING:
    from docker import APIClient

OWNER: Final = "turngym.owner"
"label: who has made a container, as `owner_label` writes it"
MACHINE: Final = "turngym.machine"
"label: where process ids of owners mean something, as `machine_label` writes it"
_GONE_WITHIN_S = 30.0
_DEFAULT_HOST = "unix:///var/run/docker.sock"
_STREAM_HEADER = struct.Struct(">BxxxI")
_STDOUT = 1
_clients: dict[tuple[int, str], APIClient] = {}
"by process, as a fork must not share a connection with its parent, and by engine"
_connecting = threading.Lock()


def client() -> APIClient:
    """The connection of this process to the engine that `DOCKER_HOST` names, or to the default one.

    Raises:
        MissingDependency: the SDK is not installed, or no engine answers; says what to do.
    """
    host = os.environ.get("DOCKER_HOST", "")
    key = os.getpid(), host
    with _connecting:
        if key in _clients:
            try:
                _knock(host or _DEFAULT_HOST)
            except OSError:  # stopped meanwhile: connecting again says what to do
                _clients.pop(key).close()
        if key not in _clients:
            for old in [each for each in _clients if each[0] == key[0]]:
                _clients.pop(old).close()
            _clients[key] = _connect(host)
        return _clients[key]


def _connect(host: str) -> APIClient:
    try:
        import docker  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingDependency("the Docker SDK is not installed: pip install 'turngym[docker]'") from error
    try:
        _knock(host or _DEFAULT_HOST)
        return docker.APIClient(version="auto", **docker.utils.kwargs_from_env())
    except (docker.errors.DockerException, OSError) as error:
        raise MissingDependency(
            f"no container engine answers at {host or _DEFAULT_HOST} ({error}). Start one with "
            "`systemctl start docker`, `dockerd &`, or `podman system service --time 0 unix:///tmp/podman.sock &` "
            "and `export DOCKER_HOST=unix:///tmp/podman.sock`"
        ) from error


def _knock(host: str) -> None:
    """See whether anybody listens at a Unix socket: the SDK leaves its own open where nobody does.

    Raises:
        OSError: nobody does.
    """
    if host.startswith("unix://"):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(host.removeprefix("unix://"))


@atexit.register
def _disconnect() -> None:
    for (pid, _), each in _clients.items():
        if pid == os.getpid():
            each.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What sandboxes need to know of an engine."""

    podman: bool
    "it is Podman's"
    cpus: float
    "how many its machine has"


def machine() -> Machine:
    """The engine that `client` is connected to; asked once."""
    return _machine(os.environ.get("DOCKER_HOST", ""))


@functools.cache
def _machine(_host: str) -> Machine:
    components = client().version().get("Components") or []
    podman = any("podman" in str(each.get("Name", "")).lower() for each in components)
    return Machine(podman=podman, cpus=float(client().info()["NCPU"]))


def image_config(image: str) -> dict[str, Any]:
    """What the engine knows of `image`.

    Raises:
        MissingDependency: it is not there; says how to get it.
    """
    import docker  # noqa: PLC0415 - an extra

    try:
        found = client().inspect_image(image)
    except docker.errors.ImageNotFound as error:
        way = "turngym sandbox image build" if image == DEFAULT_IMAGE else f"docker pull {image}"
        raise MissingDependency(f"the engine has no image {image}. To get it: `{way}`") from error
    config: dict[str, Any] = found.get("Config") or {}
    return config


def import_image(tar: Path, name: str) -> None:
    """Give the engine the image whose root file system is in `tar`.

    Raises:
        ConfigError: the name is not one of an image, or the engine does not take it.
    """
    import docker  # noqa: PLC0415 - an extra

    repository, _, tag = name.partition(":")
    try:
        answer = client().import_image_from_file(str(tar), repository=repository, tag=tag or "latest")
    except docker.errors.APIError as error:
        raise ConfigError(f"the engine does not take the image {name!r}: {error.explanation}") from error
    if "error" in str(answer):
        raise ConfigError(f"the engine does not take the image {name!r}: {answer}")


def remove(container: str) -> None:
    """End a container and wait until the engine has forgotten it. Harmless where that has happened already.

    Raises:
        SandboxLost: it does not go away.
    """
    import docker  # noqa: PLC0415 - an extra

    deadline = time.monotonic() + _GONE_WITHIN_S
    while True:
        try:
            client().remove_container(container, force=True, v=True)
        except docker.errors.NotFound:
            return
        except docker.errors.APIError as error:  # a removal is under way already, or the engine is busy
            if time.monotonic() > deadline:
                raise SandboxLost(f"container {container[:12]} does not go away: {error}") from error
            time.sleep(0.05)


def owner_label(pid: int) -> str:
    """The process `pid` in words that no later process can have: its id and when it was started."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    return f"{pid}@{stat.rpartition(')')[2].split()[19]}"


def owner_lives(label: str) -> bool:
    """True while the process that `owner_label` named is there."""
    try:
        return owner_label(int(label.partition("@")[0])) == label
    except (OSError, ValueError):
        return False


def machine_label() -> str:
    """This boot of this machine, and the PID namespace that process ids are of."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"


def attach(container: str) -> socket.socket:
    """A connection to the standard streams of a container that was not started yet."""
    streams = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
    raw = client().attach_socket(container, streams)
    with contextlib.closing(raw._response):  # what holds the connection, which goes on in its duplicate
        return socket.socket(fileno=os.dup(raw.fileno()))


class Demultiplexer:
    """Takes the two output streams of a container apart: frames on stdout, words for people on stderr.

    The engine puts eight bytes before each piece: the stream's number and the length.
    """

    def __init__(self, log: IO[bytes]) -> None:
        self._log = log
        self._frames = wire.Unpacker()
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Answer]:
        """Add `data`; return the frames that are complete now."""
        self._buffer += data
        frames: list[Answer] = []
        while len(self._buffer) >= _STREAM_HEADER.size:
            stream, size = _STREAM_HEADER.unpack_from(self._buffer)
            end = _STREAM_HEADER.size + size
            if len(self._buffer) < end:
                break
            piece = bytes(self._buffer[_STREAM_HEADER.size : end])
            del self._buffer[:end]
            if stream == _STDOUT:
                frames += self._frames.feed(piece)
            elif not self._log.closed:
                self._log.write(piece)
        return frames
