"""Starts one command in namespaces of its own, below the supervisor.

The one idea: every command and every session is alone. It has its own process ids, loopback and IPC, so nothing
that it starts can outlive it, hide from its time limit, or be reached by another; they meet in files only. The
first process of each (*the keeper*) is ours: it reaps orphans, reports what was used, and when it ends the kernel
kills the rest.
"""

from __future__ import annotations

import _socket as socket
import errno
import fcntl
import os
import resource
import sys
import time

from . import hugepages, linux, wire
from .worlds import LAYERS, PLACES

TYPE_CHECKING = False  # as in `typing`, which is not loaded for it
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

AGENT_ID = 1000
REPORT, DOOR = 3, 4
MAX_FAMILY_PIDS = 16_384


class Plan:
    """What to run."""

    def __init__(self, *, argv: Sequence[str], env: Mapping[str, str], cwd: str) -> None:
        self.argv = argv
        self.env = env
        self.cwd = cwd


class Box:
    """Namespaces that wait for their command. Making them takes longer than running one, so one is kept ready."""

    def __init__(
        self, root: str, program: bytes, network: int, limits: Mapping[str, float], *, forking: bool
    ) -> None:
        """Start the keeper.

        Args:
            root: where the world is mounted.
            program: the system-call filter.
            network: see `linux.new_network`.
            limits: `cpu_s`, `memory_mib` and `pids` of the command.
            forking: it is for a live session that may fork: its process limit is kept by the supervisor only, and it
                looks for huge pages when it starts.
        """
        report, report_in = os.pipe()
        door, door_in = socket.socketpair()
        try:
            self.keeper = linux.fork_first()
        except OSError:  # no process is left to this family
            for fd in (report, report_in, network, door.detach(), door_in.detach()):
                os.close(fd)
            raise
        if self.keeper == 0:
            _run_forked(lambda: _keeper(root, program, network, limits, forking, report_in, door_in.fileno()))
        os.close(report_in)
        door_in.close()
        self.report = report
        """A pipe that carries the keeper's report and closes when everything is over."""
        self.network = network
        self.made = time.monotonic()
        self._door = door

    def start(self, plan: Plan, fds: Sequence[int]) -> None:
        """Run `plan`.

        Args:
            plan: what to run.
            fds: what becomes descriptors 0, 1, 2 and, for a session, 3 of it; the caller closes its own copies.

        Raises:
            OSError: the keeper has ended; its report says why.
        """
        words = wire.dumps(vars(plan))
        try:
            linux.send_with_fds(self._door, words, fds)
        finally:
            self._door.close()

    def discard(self) -> None:
        """End a box that is not needed; the caller reaps the keeper when that has ended."""
        self._door.close()
        os.kill(self.keeper, linux.SIGKILL)
        os.close(self.report)
        os.close(self.network)


def _run_forked(body: Callable[[], None]) -> None:
    """Run `body` in a forked child and end there, whatever happens."""
    try:
        body()
    except BaseException as error:  # noqa: BLE001 - the boundary of a forked process
        sys.stderr.write(f"turngym: {error!r}\n")
        sys.stderr.flush()
    finally:
        os._exit(125)


def _keeper(
    root: str,
    program: bytes,
    network: int,
    limits: Mapping[str, float],
    forking: bool,
    report: int,
    door: int,
) -> None:
    linux.setns(network, linux.CLONE_NEWNET)
    # The supervisor's own descriptors must not be reachable from here: a copied pipe end would also keep other
    # commands' pipes from closing.
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 16) for fd in (report, door)]
    os.dup2(high[0], REPORT, inheritable=False)
    os.dup2(high[1], DOOR, inheritable=False)
    os.closerange(DOOR + 1, 65536)
    try:
        _enter(root, forking)
        linux.drop_privileges()
        linux.restrict(program)
        _set_limits(limits, forking)
        plan, fds = _receive()
    except OSError as error:
        os.write(REPORT, wire.dumps({"error": str(error)}))
        os._exit(125)
    try:
        command = _spawn(plan, fds)
    except OSError as error:
        os.write(fds[2], f"turngym: {plan.argv[0]}: {error.strerror or error}\n".encode())
        os.write(REPORT, wire.dumps({"status": 127 if error.errno == errno.ENOENT else 126}))
        os._exit(0)
    for fd in (0, 1, 2, *fds):
        os.close(fd)
    os.write(REPORT, wire.dumps(_reap(command)))
    os._exit(0)


def _spawn(plan: Plan, fds: list[int]) -> int:
    """Start the command. Limits and folder are inherited, so no Python has to run between fork and exec."""
    os.chdir(plan.cwd)
    return os.posix_spawn(
        _find(plan.argv[0], plan.env.get("PATH", os.defpath)),
        list(plan.argv),
        plan.env,
        file_actions=[(os.POSIX_SPAWN_DUP2, fd, target) for target, fd in enumerate(fds)],
        setsid=True,
        setsigdef=[linux.SIGPIPE, linux.SIGXFSZ],
    )


def _find(program: str, path: str) -> str:
    if "/" in program:
        return program
    for folder in path.split(":"):
        candidate = f"{folder}/{program}"
        if os.access(candidate, os.X_OK) and not os.path.isdir(candidate):
            return candidate
    raise OSError(errno.ENOENT, "no such program")


def _receive() -> tuple[Plan, list[int]]:
    door = socket.socket(fileno=DOOR)
    words, fds, _ = linux.recv_with_fds(door, 1 << 16)
    while more := door.recv(1 << 16):
        words += more
    door.close()
    if not words:
        os._exit(0)  # not needed after all
    return Plan(**wire.loads(words)), fds


def _enter(root: str, forking: bool) -> None:
    linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWIPC)
    os.chdir("/")
    for place in PLACES:
        linux.mount(f"{root}/{place}", f"/{place}", None, linux.MS_BIND)
    if forking:
        linux.bind_read_only(f"{LAYERS}/{hugepages.ROOT}", "/sys")
    linux.umount(LAYERS)
    linux.mount_proc()
    linux.unshare(linux.CLONE_NEWUSER)
    linux.map_ids(AGENT_ID, 0)


def _set_limits(limits: Mapping[str, float], forking: bool) -> None:
    cpu = max(1, round(limits["cpu_s"] + 0.499))
    memory = int(limits["memory_mib"]) << 20
    pids = int(limits["pids"])
    hard_pids = MAX_FAMILY_PIDS if forking else pids + 1
    for kind, soft, wanted in (
        (resource.RLIMIT_CPU, cpu, cpu + 1),
        (resource.RLIMIT_DATA, memory, memory),
        (resource.RLIMIT_NPROC, pids + 1, hard_pids),
        (resource.RLIMIT_NOFILE, 1024, 1024),
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_MEMLOCK, 1 << 16, 1 << 16),
    ):
        ceiling = resource.getrlimit(kind)[1]
        hard = wanted if ceiling == resource.RLIM_INFINITY else min(wanted, ceiling)
        resource.setrlimit(kind, (min(soft, hard), hard))


def _network_untouched() -> bool:
    """True where no packet ever passed through the loopback of this network namespace, and no socket is left in it."""
    try:
        with open("/proc/self/net/sockstat", "rb") as file:
            sockets = file.readline().split()
        with open("/proc/self/net/dev", "rb") as file:
            counters = file.read().rpartition(b"lo:")[2].split()
    except OSError:
        return False  # nobody knows
    return sockets[-1:] == [b"0"] and bool(counters) and not any(map(int, counters))


def _reap(command: int) -> dict[str, float | bool]:
    """Wait for `command`, then end what it left behind, and say what all of them used."""
    status = None
    while status is None:
        pid, code = os.wait()
        if pid == command:
            status = code
    try:
        os.kill(-1, linux.SIGKILL)
        while True:
            os.wait()
    except (ProcessLookupError, ChildProcessError):
        pass  # nobody is left
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "status": os.waitstatus_to_exitcode(status),
        "cpu_s": used.ru_utime + used.ru_stime,
        "rss_mib": used.ru_maxrss / 1024,
        "untouched": _network_untouched(),
    }
