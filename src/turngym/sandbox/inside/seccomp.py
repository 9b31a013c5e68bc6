"""The system-call filter of sandboxed code, as a classic BPF program built here.

The one idea: a short list of calls that code in a sandbox has no business with, each answered with EPERM, so
that a program sees an ordinary refusal. libseccomp has no well-kept wheel, and the program is sixty comparisons.

`clone3` hides its flags behind a pointer, which a filter can't read, so it answers ENOSYS and the C library
falls back to `clone`, whose flags are checked. Calls of another architecture or of the x32 ABI are refused.

What it does not do: it is not an allow list. Namespaces, dropped capabilities and the read-only root do the
main work; the filter narrows what is left of the kernel's surface.
"""

from __future__ import annotations

import errno
import struct

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_LD_W_ABS, _JEQ, _JGE, _JSET, _RET = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_OFFSET_NR, _OFFSET_ARCH, _OFFSET_ARGS = 0, 4, 16
_X32_BIT = 0x40000000
_NAMESPACE_FLAGS = 0x7E020080  # NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET, NEWTIME
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_FAMILIES = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6

# name: (x86_64, aarch64); None where the architecture lacks the call.
REFUSED: dict[str, tuple[int | None, int | None]] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "open_tree": (428, 428),
    "mount_setattr": (442, 442),
    "setns": (308, 268),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "syslog": (103, 116),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "fanotify_init": (300, 262),
    "lookup_dcookie": (212, 18),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "vhangup": (153, 58),
    "nfsservctl": (180, 42),
    "uselib": (134, None),
    "ustat": (136, None),
    "sysfs": (139, None),
    "_sysctl": (156, None),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    # Memory that lives without a process that has it mapped: no limit of a process would count it.
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
}
SUPERVISOR_NEEDS = frozenset({"umount2", "setns", "open_tree", "mount_setattr"})
"""What the supervisor does itself, before the filter or in other processes than the agent's."""
# What a session needs to become its own fork: see `pysession.fork_into`.
_FORKING: dict[str, tuple[int | None, int | None]] = {"mount": (165, 40), "move_mount": (429, 429)}
_UNSHARE, _CLONE, _CLONE3 = (272, 97), (56, 220), (435, 435)
_PERSONALITY, _SOCKET, _IOCTL = (135, 92), (41, 198), (16, 29)


def supported(machine: str) -> bool:
    """True where `build` knows the call numbers of `machine` (as `os.uname` names it)."""
    return machine in _AUDIT_ARCH


def build(machine: str, *, forking: bool) -> bytes:
    """The filter program for `machine`, 8 bytes an instruction.

    Args:
        machine: "x86_64" or "aarch64".
        forking: allow the four calls by which a live session forks (new namespaces, `mount`, `move_mount`).
    """
    column = 0 if machine == "x86_64" else 1
    deny = _ret(_ERRNO | errno.EPERM)
    code = [_load(_OFFSET_ARCH), _jump(_JEQ, _AUDIT_ARCH[machine], 1, 0), _ret(_KILL), _load(_OFFSET_NR)]
    if machine == "x86_64":
        code += [_jump(_JGE, _X32_BIT, 0, 1), _ret(_ERRNO | errno.ENOSYS)]
    refused = dict(REFUSED) if forking else {**REFUSED, **_FORKING}
    for numbers in refused.values():
        number = numbers[column]
        if number is not None:
            code += [_jump(_JEQ, number, 0, 1), deny]
    code += [_jump(_JEQ, _CLONE3[column], 0, 1), _ret(_ERRNO | errno.ENOSYS)]
    if not forking:
        for numbers in (_UNSHARE, _CLONE):
            code += _when(numbers[column], 0, [_jump(_JSET, _NAMESPACE_FLAGS, 0, 1), deny])
    code += _when(_PERSONALITY[column], 0, [_jump(_JEQ, 0, 2, 0), _jump(_JEQ, 0xFFFFFFFF, 1, 0), deny])
    families = [_jump(_JEQ, family, len(_FAMILIES) - i, 0) for i, family in enumerate(_FAMILIES)]
    code += _when(_SOCKET[column], 0, [*families, deny])
    code += _when(_IOCTL[column], 1, [_jump(_JEQ, _TIOCSTI, 1, 0), _jump(_JEQ, _TIOCLINUX, 0, 1), deny])
    return b"".join([*code, _ret(_ALLOW)])


def _load(offset: int) -> bytes:
    return struct.pack("HBBI", _LD_W_ABS, 0, 0, offset)


def _jump(kind: int, value: int, if_true: int, if_false: int) -> bytes:
    return struct.pack("HBBI", kind, if_true, if_false, value)


def _ret(value: int) -> bytes:
    return struct.pack("HBBI", _RET, 0, 0, value)


def _when(number: int, argument: int, body: list[bytes]) -> list[bytes]:
    """Run `body` on the low half of an argument when the call is `number`; then allow."""
    block = [_load(_OFFSET_ARGS + 8 * argument), *body, _ret(_ALLOW)]
    return [_jump(_JEQ, number, 0, len(block)), *block]
