"""The first process of a container: it builds the walls that the supervisor expects, and passes on what that says.

The container runs as an ordinary user without any capability. In a user namespace of its own that user may mount,
so the supervisor gets there what bubblewrap gives it: namespaces, a read-only system and an empty `/sys`.
"""

from __future__ import annotations

import _socket as socket
import os
import select
import sys
import time

from . import hugepages, linux, supervisor, wire

TYPE_CHECKING = False  # as in `typing`, which is not loaded for it
if TYPE_CHECKING:
    from typing import Any

_CHUNK = 1 << 18
_COVERED = ("/sys", "/dev/mqueue")


def main() -> None:
    """Serve on descriptors 0 and 1; the configuration is the first argument."""
    config: dict[str, Any] = wire.loads(sys.argv[1])
    config["huge_pages"] = hugepages.read()  # of the engine's machine
    try:
        _enter_namespaces()
    except OSError as error:
        _refuse(
            f"user namespaces are switched off on the engine's machine ({error}). Switch them on with "
            "`sysctl -w user.max_user_namespaces=65536`; on Debian also `sysctl -w "
            "kernel.unprivileged_userns_clone=1`, on Ubuntu `sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`"
        )
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        try:
            _build_walls()
        except OSError as error:
            theirs.sendall(wire.pack({"fault": str(error)}))
            os._exit(1)
        os.dup2(theirs.fileno(), 0)
        os.dup2(2, 1)
        config["python_session"][0] = sys.executable
        sys.argv[1] = wire.dumps(config).decode()
        supervisor.main()
    theirs.close()
    _relay(ours.detach(), config["ttl_s"])
    os._exit(0)  # as the first process: everything else ends with it


def _refuse(why: str) -> None:
    """Say why there will be no sandbox, and end."""
    os.write(1, wire.pack({"fault": why}))
    os._exit(1)


def _relay(supervisor_fd: int, ttl_s: float) -> None:
    """Pass on what the host and the supervisor say, until one of them is gone or the host was silent for too long.

    One thread: the kernel refuses more to a process that has left its PID namespace.
    """
    to_host, to_supervisor = bytearray(), bytearray()
    for fd in (1, supervisor_fd):
        os.set_blocking(fd, False)
    heard = time.monotonic()
    while (patience := heard + ttl_s - time.monotonic()) > 0:
        sources = [0] * (len(to_supervisor) < _CHUNK) + [supervisor_fd] * (len(to_host) < _CHUNK)
        sinks = [1] * bool(to_host) + [supervisor_fd] * bool(to_supervisor)
        readable, writable, _ = select.select(sources, sinks, [], patience)
        for fd, buffer in ((0, to_supervisor), (supervisor_fd, to_host)):
            if fd in readable:
                data = os.read(fd, _CHUNK)
                if not data:
                    return
                buffer.extend(data)
                heard = time.monotonic() if fd == 0 else heard
        for fd, buffer in ((1, to_host), (supervisor_fd, to_supervisor)):
            if fd in writable:
                del buffer[: os.write(fd, buffer)]


def _enter_namespaces() -> None:
    user = os.getuid()
    linux.unshare(
        linux.CLONE_NEWUSER
        | linux.CLONE_NEWNS
        | linux.CLONE_NEWPID
        | linux.CLONE_NEWIPC
        | linux.CLONE_NEWNET
        | linux.CLONE_NEWUTS
        | linux.CLONE_NEWCGROUP
    )
    linux.map_ids(0, user)


def _build_walls() -> None:
    linux.mount("none", "/", None, linux.MS_PRIVATE | linux.MS_REC)
    linux.make_read_only("/")
    safe = linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV
    for place in _COVERED:
        if os.path.isdir(place):
            linux.mount("tmpfs", place, "tmpfs", safe, "size=4k,nr_inodes=2")
    # The supervisor sees every process, unlike what `linux.mount_proc` shows the agent.
    linux.mount("proc", "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
