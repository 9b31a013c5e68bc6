"""The `docker` backend: the same sandboxes in a container, by the Docker SDK; Podman's socket is spoken to alike.

The one idea: the engine builds the outer walls from an image of one's choice, and the supervisor that the bubblewrap
backend uses runs behind them as an ordinary user. So one container holds a whole family, a command takes
milliseconds, and a live session forks exactly, without `commit` and without running anything again.

The container has no network, no capability, `no-new-privileges`, a read-only root, a system-call filter, limits on
processes, memory and CPU, and a user id that no account has. The agent's code runs one wall further in, as described
in `bubblewrap`, with the same filter and the same limits on each command.

It protects from what `bubblewrap` protects from, and its limits on memory, processes and CPU of a whole family are the
kernel's own even where turngym may not make control groups. It does not protect from a hole in the Linux kernel, nor
from one in the engine, which runs as root unless it is rootless. So that the supervisor can make namespaces, `/proc` is
not masked by the engine, and its AppArmor profile is not applied: whoever breaks out of the inner walls finds an
ordinary user without capabilities, in the engine's namespaces. The image's own files can be read by the agent. What
commands of an image keep in a volume of its (`VOLUME`) is read-only.

Needs an engine that runs Linux containers (Docker 20.10 and Podman 4.3 were tested) on Linux 5.12, user namespaces
switched on there, and an image with Python 3.11 or newer; bash, for bash sessions. `turngym sandbox image build`
makes such an image without a registry.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import struct
import tempfile
import threading
import time
import weakref
from pathlib import Path
from typing import Any, Final, Self

from turngym.errors import MissingDependency
from turngym.sandbox import engine
from turngym.sandbox.base import Backend, Limits, SandboxLost
from turngym.sandbox.channel import Channel
from turngym.sandbox.image import DEFAULT_IMAGE
from turngym.sandbox.inside import seccomp
from turngym.sandbox.inside.box import MAX_FAMILY_PIDS
from turngym.sandbox.inside.worlds import LAYERS, PLACES
from turngym.sandbox.lease import TTL_S
from turngym.sandbox.reaper import Reaper, reaper
from turngym.sandbox.supervised import FAMILY, Family, SupervisedSandbox, supervisor_config

_START_WITHIN_S = 60.0
_USER: Final = 61_613
"a user id that no account has (systemd keeps 61184 to 65519 for passing users)"
_INSIDE = Path(__file__).parent / "inside"
_CODE = "/.turngym"
# What the container runs first: it reads the supervisor's package from its standard input, and goes on there.
_BOOT = """
import json, os, struct, sys
if sys.version_info < (3, 11): sys.exit(f"the image has Python {sys.version}; sandboxes need 3.11 or newer")
def read(n):
    data = b""
    while len(data) < n: data += os.read(0, n - len(data)) or os._exit(0)
    return data
os.mkdir("/.turngym/turngym_inside")
for name, text in json.loads(read(*struct.unpack("<I", read(4)))).items():
    with open(f"/.turngym/turngym_inside/{name}", "w") as file: file.write(text)
sys.path.insert(0, "/.turngym")
from turngym_inside import container
container.main()
"""
_BEATS_PER_TTL = 4
_ULIMITS = {"nofile": 16_384, "nproc": MAX_FAMILY_PIDS, "core": 0}
"of the supervisor; commands get less"
_OURS = ("HOME", "USER", "LANG", "TMPDIR")


class Docker(Backend):
    """Makes sandboxes in containers."""

    name = "docker"

    def __init__(self, image: str = DEFAULT_IMAGE, *, cpus: float = 2.0, ttl_s: float = TTL_S) -> None:
        """Choose the image and the lease.

        Args:
            image: its name; see the module for what it has to contain.
            cpus: CPUs that a family may keep busy.
            ttl_s: seconds after which the sandboxes of an owner that hangs are ended.
        """
        self.image = image
        self.cpus = cpus
        self.ttl_s = ttl_s

    @classmethod
    def unavailable(cls) -> str | None:
        """See `Backend.unavailable`."""
        try:
            engine.client().ping()
        except MissingDependency as error:
            return str(error)
        except OSError as error:  # as are all errors of the SDK's transport
            return f"the container engine does not answer: {error}; restart it, as with `systemctl restart docker`"
        return None

    @classmethod
    def of_image(cls, image: str) -> Self:
        """See `Backend.of_image`."""
        return cls(image)

    async def create(self, limits: Limits | None = None, *, forkable: bool = True) -> SupervisedSandbox:
        """See `Backend.create`.

        Raises:
            MissingDependency: no engine answers, or it does not have the image.
            SandboxLost: the container did not start.
        """
        family = await asyncio.to_thread(self._start, limits or Limits(), forkable)
        return await family.first(_START_WITHIN_S)

    def _start(self, limits: Limits, forkable: bool) -> Family:
        import docker  # noqa: PLC0415 - an extra

        client, watch = engine.client(), reaper(self.ttl_s)
        try:
            container = client.create_container_from_config(self._container(limits, forkable))["Id"]
            with contextlib.ExitStack() as undo:
                undo.callback(engine.remove, container)
                stream = undo.enter_context(engine.attach(container))
                client.start(container)
                stream.sendall(_package())
                undo.pop_all()
        except (docker.errors.APIError, OSError) as error:
            if '"python3": executable file not found' in str(error):
                raise MissingDependency(
                    f"image {self.image} has no python3, 3.11 or newer, which sandboxes need; "
                    "add it, or make an image with `turngym sandbox image build`"
                ) from error
            raise SandboxLost(f"the engine did not start a container: {error}") from error
        lease = ContainerLease(container, watch)
        log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the family
        channel = Channel(stream, engine.Demultiplexer(log))
        _keep_alive(channel, self.ttl_s)
        return Family(f"docker-{container[:12]}", channel, lease, limits, log)

    def _container(self, limits: Limits, forkable: bool) -> dict[str, Any]:
        """What to ask the engine for, in the words of its API (`POST /containers/create`)."""
        image = engine.image_config(self.image)
        env = dict(line.split("=", 1) for line in image.get("Env") or () if "=" in line)
        env.setdefault("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        config = supervisor_config(
            limits,
            forkable=forkable,
            python="python3",
            env={name: value for name, value in env.items() if name not in _OURS},
        )
        return {
            "Image": self.image,
            "Entrypoint": ["python3", "-I", "-S", "-c", _BOOT, json.dumps({**config, "ttl_s": self.ttl_s})],
            "Cmd": [],
            "User": f"{_USER}:{_USER}",
            "WorkingDir": "/",
            "Hostname": "sandbox",
            "NetworkDisabled": True,
            **({"Healthcheck": {"Test": ["NONE"]}} if image.get("Healthcheck") else {}),
            "Labels": {
                engine.OWNER: engine.owner_label(os.getpid()),
                engine.MACHINE: engine.machine_label(),
            },
            **dict.fromkeys(("OpenStdin", "StdinOnce", "AttachStdin", "AttachStdout", "AttachStderr"), True),
            "HostConfig": self._host_config(limits),
        }

    def _host_config(self, limits: Limits) -> dict[str, Any]:
        memory = FAMILY * (limits.memory_mib + limits.disk_mib) << 20
        machine = engine.machine()
        return {
            "NetworkMode": "none",
            "AutoRemove": True,
            "CapDrop": ["ALL"],
            "ReadonlyRootfs": True,
            "SecurityOpt": [
                "no-new-privileges",
                # Podman reads profiles from files of its own machine only.
                *(["seccomp=unconfined", "unmask=ALL"] if machine.podman else [f"seccomp={_profile()}"]),
                "apparmor=unconfined",
            ],
            # A masked /proc can't be mounted anew in the namespaces inside.
            "MaskedPaths": [],
            "ReadonlyPaths": [],
            "PidsLimit": MAX_FAMILY_PIDS,
            "Memory": memory,
            "MemorySwap": memory,
            "Ulimits": [{"Name": name, "Soft": n, "Hard": n} for name, n in _ULIMITS.items()],
            "NanoCpus": int(min(self.cpus, machine.cpus) * 1e9),
            "Dns": ["127.0.0.1"],
            "IpcMode": "private",
            "LogConfig": {"Type": "none"},
            "Tmpfs": {
                _CODE: "mode=1777,size=2m",
                **dict.fromkeys(
                    (LAYERS, *(f"/{p}" for p in PLACES if p != "dev/shm")), "mode=755,size=4k,ro"
                ),
            },
        }


class ContainerLease:
    """The right to one container."""

    def __init__(self, container: str, watch: Reaper) -> None:
        self.container = container
        self._reaper = watch

    async def end(self) -> None:
        """Remove the container and wait until it is gone. Ending twice is harmless."""
        await asyncio.to_thread(engine.remove, self.container)

    def end_soon(self) -> None:
        """Ask for its removal without waiting for it."""
        self._reaper.end(self.container)


def _package() -> bytes:
    """The supervisor's package as `_BOOT` reads it: the length, then names and texts."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in sorted(_INSIDE.glob("*.py"))}
    data = json.dumps(texts).encode()
    return struct.pack("<I", len(data)) + data


def _profile() -> str:
    """The engine's system-call filter: what the inner one refuses, but for what the supervisor itself needs."""
    names = sorted(set(seccomp.REFUSED) - seccomp.SUPERVISOR_NEEDS)
    refused = {"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": 1}
    return json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [refused]})


def _keep_alive(channel: Channel, ttl_s: float) -> None:
    """Give the container a sign of life now and then, for as long as anybody holds the channel."""
    held = weakref.ref(channel)

    def beat() -> None:
        while (live := held()) is not None and not live.closed:
            live.submit({"op": "beat"})
            del live
            time.sleep(ttl_s / _BEATS_PER_TTL)

    threading.Thread(target=beat, name="turngym-container-heartbeat", daemon=True).start()
