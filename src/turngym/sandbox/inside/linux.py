"""The Linux calls that the standard library does not wrap, by ctypes.

Numbers of calls at or above 424 are the same on every architecture (`include/uapi/asm-generic/unistd.h`).
"""

from __future__ import annotations

import _socket as socket  # the classes of `socket` load `selectors` and `enum` first
import ctypes
import fcntl
import os
import select
import struct

TYPE_CHECKING = False  # as in `typing`, which is not loaded for it
if TYPE_CHECKING:
    from collections.abc import Sequence

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
MNT_DETACH = 2

PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 4, 22, 38
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522

_PIDFD_SEND_SIGNAL, _OPEN_TREE, _MOVE_MOUNT, _OPENAT2, _MOUNT_SETATTR = 424, 428, 429, 437, 442
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_F_EMPTY_PATH = 4
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_MOUNT_ATTR_RDONLY = 1
_RESOLVE_NO_MAGICLINKS, _RESOLVE_IN_ROOT = 0x02, 0x10
SIGINT, SIGKILL, SIGPIPE, _SIGCHLD, SIGXCPU, SIGXFSZ = 2, 9, 13, 17, 24, 25
"As `signal` has them, which loads `enum` first."
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    """Give the caller new namespaces."""
    _check(_libc.unshare(flags), "unshare")


def setns(fd: int, kind: int) -> None:
    """Move the caller (or, for a PID namespace, its future children) into the namespace behind `fd`."""
    _check(_libc.setns(fd, kind), "setns")


def mount(source: str, target: str, fstype: str | None = None, flags: int = 0, data: str = "") -> None:
    """`mount(2)`."""
    kind = None if fstype is None else fstype.encode()
    options = data.encode() or None
    _check(
        _libc.mount(os.fsencode(source), os.fsencode(target), kind, ctypes.c_ulong(flags), options),
        f"mount on {target}",
    )


def bind_read_only(source: str, target: str) -> None:
    """Show the folder `source` at `target` as well, where nobody can write to it."""
    mount(source, target, None, MS_BIND)
    mount("none", target, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def mount_proc() -> None:
    """A `/proc` of the caller's PID namespace that shows a process only those that it may trace: not its keeper."""
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, "hidepid=2")


def umount(target: str) -> None:
    """Detach the mounts at `target`; they vanish with their last user."""
    _check(_libc.umount2(os.fsencode(target), MNT_DETACH), f"umount {target}")


def open_tree(path: str) -> int:
    """A detached copy of the mount at `path`, as a file descriptor that `move_mount` attaches anywhere."""
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC
    return int(_check(_libc.syscall(_OPEN_TREE, _AT_FDCWD, os.fsencode(path), flags), f"open_tree {path}"))


def move_mount(fd: int, target: str) -> None:
    """Attach the detached mount behind `fd` at `target`."""
    path = os.fsencode(target)
    _check(
        _libc.syscall(_MOVE_MOUNT, fd, b"", _AT_FDCWD, path, _MOVE_MOUNT_F_EMPTY_PATH),
        f"move_mount {target}",
    )


def kill_if_there(pid: int, number: int) -> None:
    """Send a signal to a process that may have ended by itself."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def pidfd_send_signal(handle: int, number: int) -> None:
    """Send a signal to the process behind a pidfd."""
    _check(_libc.syscall(_PIDFD_SEND_SIGNAL, handle, number, 0, 0), "pidfd_send_signal")


def make_read_only(path: str) -> None:
    """Make the mount at `path` and everything mounted below it read-only (Linux 5.12)."""
    attributes = struct.pack("QQQQ", _MOUNT_ATTR_RDONLY, 0, 0, 0)
    call = (_MOUNT_SETATTR, _AT_FDCWD, os.fsencode(path), _AT_RECURSIVE, attributes, len(attributes))
    _check(_libc.syscall(*call), f"mount_setattr {path}")


def open_in_root(root: int, path: str, flags: int, mode: int = 0) -> int:
    """Open `path` as if the directory behind `root` were `/`: no symlink, `..` or race leads out (openat2)."""
    how = struct.pack("QQQ", flags | os.O_CLOEXEC, mode, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)
    return int(
        _check(_libc.syscall(_OPENAT2, root, os.fsencode(path), how, len(how)), f"open {path}"),
    )


def clone(flags: int) -> int:
    """`fork()` into new namespaces with one system call: 0 in the child, its pid in the parent.

    The caller must have one thread. Neither Python nor the C library is told (no hook of `os.register_at_fork` runs,
    and the child keeps the parent's thread id there), so the child should do little and fork once more for anything
    of substance.
    """
    number = 56 if os.uname().machine == "x86_64" else 220
    return _check(int(_libc.syscall(number, ctypes.c_ulong(flags | _SIGCHLD), 0, 0, 0, 0)), "clone")


def prctl(option: int, value: int, other: int = 0) -> None:
    """`prctl(2)`."""
    _check(_libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(other), 0, 0), f"prctl {option}")


def map_ids(inside: int, outside: int) -> None:
    """Map one id of the parent user namespace to `inside`, for user and group, in the caller's new one.

    The map files of a process that can't be dumped belong to the host's root, hence the switch.
    """
    prctl(PR_SET_DUMPABLE, 1)
    for name, line in (
        ("setgroups", "deny"),
        ("uid_map", f"{inside} {outside} 1"),
        ("gid_map", f"{inside} {outside} 1"),
    ):
        fd = os.open(f"/proc/self/{name}", os.O_WRONLY)
        try:
            os.write(fd, line.encode())
        finally:
            os.close(fd)
    prctl(PR_SET_DUMPABLE, 0)


def drop_privileges() -> None:
    """Give up every capability for good.

    The bounding set is left alone: with `no_new_privs` no program that is executed later can gain from it.
    """
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    _check(_libc.capset(header, bytes(24)), "capset")


def restrict(program: bytes) -> None:
    """From here on refuse the system calls that the filter `program` refuses (see `seccomp.build`)."""
    code = ctypes.create_string_buffer(program, len(program))
    fprog = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    _check(_libc.prctl(PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, fprog, 0, 0), "seccomp")


def wait_readable(fds: list[int], seconds: float) -> list[int]:
    """Those of `fds` that can be read (or are at their end) within `seconds`. Unlike `select`, for any number."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return [fd for fd, _ in poll.poll(max(0.0, seconds) * 1000)]


def fork_first() -> int:
    """`fork()` of the first process of a new PID namespace. The caller's later children are in its own again."""
    own = os.open("/proc/self/ns/pid", os.O_RDONLY)
    unshare(CLONE_NEWPID)
    pid = -1
    try:
        pid = os.fork()
    finally:
        if pid != 0:
            setns(own, CLONE_NEWPID)
        os.close(own)
    return pid


def new_network() -> int:
    """A descriptor of a network namespace that has a loopback and nothing else; the caller stays where it is."""
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    try:
        unshare(CLONE_NEWNET)
        try:
            raise_loopback()
            return os.open("/proc/self/ns/net", os.O_RDONLY)
        finally:
            setns(own, CLONE_NEWNET)
    finally:
        os.close(own)


def raise_loopback() -> None:
    """Bring `lo` up in a new network namespace."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        request = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack("16sH14x", fcntl.ioctl(sock.fileno(), _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(sock.fileno(), _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))
    finally:
        sock.close()


def send_with_fds(sock: socket.socket, data: bytes, fds: Sequence[int]) -> None:
    """Send bytes and file descriptors over a Unix socket."""
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(fds)}i", *fds))
    sock.sendall(data[sock.sendmsg([data], [rights]) :])


def recv_with_fds(sock: socket.socket, size: int) -> tuple[bytes, list[int], int]:
    """Receive bytes, file descriptors and the sender's pid (0 unless `SO_PASSCRED` is set) from a Unix socket."""
    space = socket.CMSG_SPACE(32 * 4) + socket.CMSG_SPACE(12)
    data, ancillary, _, _ = sock.recvmsg(size, space, socket.MSG_CMSG_CLOEXEC)
    fds: list[int] = []
    pid = 0
    for level, kind, payload in ancillary:
        if level != socket.SOL_SOCKET:
            continue
        if kind == socket.SCM_RIGHTS:
            fds += struct.unpack_from(f"{len(payload) // 4}i", payload)
        elif kind == socket.SCM_CREDENTIALS:
            pid = struct.unpack("iII", payload[:12])[0]
    return data, fds, pid
