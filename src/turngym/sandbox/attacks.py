"""What an agent might try, as programs that print ESCAPED where they get it.

Each runs as the agent does: `code` by `python3 -c` with `SECRET` (a file of the host that everyone may read and
write), `HOST_PID`, `HOST_HOME` and `HOST_NAMES` (of the variables that only the host has) in its environment, or in a
live session (`session`), which has a wider kernel interface; `host` attacks also act from the host's side. See
`selfcheck` for how they are judged.

Every program prints in one way (`_PRELUDE`): `tell(name, happened)` for a thing that must not happen.
"""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from turngym.sandbox.base import ExecResult, Sandbox

_PRELUDE = """
import ctypes, errno, mmap, os, resource, signal, socket, stat, struct, subprocess, sys, time
libc = ctypes.CDLL(None, use_errno=True)
SECRET, HOST_PID = globals().get('SECRET') or os.environ['SECRET'], int(globals().get('HOST_PID') or os.environ['HOST_PID'])
def tell(name, happened):
    print(('ESCAPED ' if happened else 'refused ') + name, flush=True)
def works(act, *args):
    try:
        return act(*args) not in (-1, False, None)
    except (OSError, MemoryError, ValueError, PermissionError):
        return False
def hold(processes, mib):  # whether all of them had their memory at once, for a second
    end, begin = os.pipe()
    for _ in range(processes):
        if os.fork() == 0:
            b = b'x' * (mib << 20); os.write(begin, b'x'); time.sleep(30); os._exit(0)
    os.close(begin); n = 0
    while n < processes and (more := os.read(end, processes)): n += len(more)
    time.sleep(1)
    return n == processes
def reads(path):
    return works(lambda: open(path, 'rb').read(64) or None)
def writes(path):
    return works(lambda: open(path, 'ab').write(b'x'))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One thing that must be refused."""

    name: str
    "what is tried"
    code: str = ""
    "the program"
    session: bool = False
    "run it in a live session instead of a command of its own"
    host: Callable[[Sandbox], Awaitable[str]] | None = None
    "the whole attack, where it needs the host's side; returns what it saw"


# -- name: program. A blank line in a program would end it nowhere: these are read as they stand.
_COMMANDS = {
    "fork bomb": """
n = 0
try:
    while n < 1000:
        if os.fork() == 0:
            time.sleep(4); os._exit(0)
        n += 1
except OSError: pass
tell(f'{n} processes', n > 100)""",
    "thread bomb": """
import threading
n = 0
try:
    while n < 1000:
        threading.Thread(target=time.sleep, args=(2,), daemon=True).start(); n += 1
except RuntimeError: pass
tell(f'{n} threads', n > 100); os._exit(0)""",
    "memory bomb": """
b = []
try:
    while len(b) < 2048: b.append(b'x' * (1 << 20))
except MemoryError: pass
tell('2 GiB', len(b) == 2048)""",
    "memory bomb in many processes": "tell('1.6 GiB for a second', hold(16, 100))",
    "shared memory bomb": """
n = 0
try:
    with open('/dev/shm/x', 'wb') as f:
        while n < 200: f.write(b'x' * (1 << 20)); f.flush(); n += 1
except OSError: pass
tell(f'{n} MiB of shared memory', n > 60)""",
    "memory that no process has mapped": """
tell('System V', libc.shmget(0, 1 << 20, 0o1600) >= 0)
fd = works(os.memfd_create, 'x') and os.memfd_create('x'); n = 0
try:
    while fd and n < 1500: os.write(fd, b'x' * (1 << 20)); n += 1
except OSError: pass
tell(f'{n} MiB of anonymous file', n > 400)""",
    "shared memory in many processes": """
m = mmap.mmap(-1, 1 << 30)
for i in range(0, 1 << 30, 4096): m[i] = 1
time.sleep(2); tell('1 GiB of shared memory', True)""",
    "disk bomb": """
n = 0
try:
    for i, d in enumerate(('/workspace', '/tmp', '/home/agent', '/dev/shm') * 8):
        open(f'{d}/{i}', 'wb').write(b'x' * (10 << 20)); n += 10
except OSError: pass
tell(f'{n} MiB of disk', n > 60)""",
    "giant file": "tell('a terabyte', works(lambda: os.posix_fallocate(os.open('x', os.O_CREAT | os.O_RDWR), 0, 1 << 40) or 1))",
    "inode exhaustion": """
n = 0
try:
    while n < 20000: open(str(n), 'w').close(); n += 1
except OSError: pass
tell(f'{n} files', n > 6000)""",
    "descriptor exhaustion": """
n = 0
try:
    while n < 20000: os.dup(0); n += 1
except OSError: pass
tell(f'{n} descriptors', n > 6000)""",
    "output flood": "for _ in range(300): os.write(1, b'x' * (1 << 20))",
    "zombie army": """
n = 0
try:
    while n < 5000:
        if os.fork() == 0: os._exit(0)
        n += 1
except OSError: pass
tell(f'{n} zombies', n > 100)""",
    "read a file of the host": "tell('read', reads(SECRET)); tell('by /proc', reads('/proc/self/root' + SECRET))",
    "write a file of the host": "tell('write', writes(SECRET))",
    "read the password file": "tell('shadow', reads('/etc/shadow')); tell('root user', 'HOME=/root' in open('/etc/passwd').read() if os.path.exists('/etc/passwd') else False)",
    "read the host's homes": """
names = ('.ssh', '.bashrc', '.profile', '.bash_history', '.config', '.gitconfig', '.netrc')
for home in ('/root', os.environ['HOST_HOME']): tell(home, any(os.path.exists(f'{home}/{n}') for n in names))""",
    "write the system": "for p in ('/usr/bin/x', '/bin/sh', '/etc/x', '/lib/x', '/x', '/dev/x', '/.layers/x'): tell(p, writes(p))",
    "write the interpreter": "tell('stdlib', writes(os.__file__)); tell('site', writes(sys.prefix + '/lib/x.pth')); tell('exe', writes(sys.executable))",
    "write the supervisor's code": "tell('code', writes('/.turngym/turngym_inside/supervisor.py')); tell('new', writes('/.turngym/x.py'))",
    "leave by /proc/1": "for p in ('root', 'cwd'): tell(p, reads(f'/proc/1/{p}' + SECRET) or works(os.listdir, f'/proc/1/{p}/.layers/l1'))",
    "leave by an open directory": "fd = os.open('/', os.O_RDONLY); tell('dot dot', works(lambda: os.open('../../..' + SECRET, os.O_RDONLY, dir_fd=fd)))",
    "kernel settings": "for p in ('kernel/core_pattern', 'kernel/hostname', 'vm/overcommit_memory', 'kernel/modprobe', 'fs/binfmt_misc/register'): tell(p, writes('/proc/sys/' + p))",
    "magic keys": "tell('sysrq', writes('/proc/sysrq-trigger'))",
    "kernel memory": "for p in ('/proc/kcore', '/dev/mem', '/dev/kmem', '/proc/kmsg', '/dev/port'): tell(p, reads(p))",
    "/sys and control groups": "for p in ('/sys/fs/cgroup', '/sys/kernel', '/sys/class'): tell(p, works(os.listdir, p) and bool(os.listdir(p)))",
    "trace the keeper": """
tell('ptrace', libc.ptrace(16, 1, 0, 0) == 0); tell('seize', libc.ptrace(0x4206, 1, 0, 0) == 0)
tell('mem', works(lambda: os.open('/proc/1/mem', os.O_RDWR)))
class V(ctypes.Structure): _fields_ = [('b', ctypes.c_void_p), ('n', ctypes.c_size_t)]
b = ctypes.create_string_buffer(8); v = V(ctypes.addressof(b), 8)
tell('vm_readv', libc.process_vm_readv(1, ctypes.byref(v), 1, ctypes.byref(V(0x400000, 8)), 1, 0) > 0)""",
    "signal the host": """
tell('host pid', HOST_PID > 200 and works(lambda: os.kill(HOST_PID, 0) or 1))
n = sum(works(lambda p=p: os.kill(p, 0) or 1) for p in range(100, 40000)); tell(f'{n} others', n > 60)""",
    "see processes of the host": "n = [p for p in os.listdir('/proc') if p.isdigit()]; tell(f'{len(n)} processes', len(n) > 5)",
    "kill the keeper": "for s in (9, 15, 19, 6, 11): os.kill(1, s) if works(lambda: os.kill(1, s) or 1) else None\ntime.sleep(0.3); tell('alive', False)",
    "kill everything": "libc.signal(15, 1); libc.kill(-1, 9); tell('alone', False)",
    "mount": """
tell('tmpfs', libc.mount(b'x', b'/tmp', b'tmpfs', 0, None) == 0); tell('bind', libc.mount(b'/', b'/tmp', None, 4096, None) == 0)
tell('remount', libc.mount(None, b'/', None, 32 | 4096, None) == 0); tell('umount', libc.umount2(b'/workspace', 2) == 0)
tell('fsopen', libc.syscall(430, b'tmpfs', 0) >= 0); tell('open_tree', libc.syscall(428, -100, b'/', 1) >= 0)""",
    "change the root": "tell('chroot', works(lambda: os.chroot('/tmp') or 1)); tell('pivot', libc.syscall(155 if os.uname().machine == 'x86_64' else 41, b'/tmp', b'/tmp') == 0)",
    "device nodes": """
for major, minor in ((1, 1), (8, 0), (254, 0), (5, 1)):
    for kind in (stat.S_IFBLK, stat.S_IFCHR):
        tell(f'{major}:{minor}', works(lambda: os.mknod('d', kind | 0o666, os.makedev(major, minor)) or 1))""",
    "disks of the host": "import glob\nfor p in glob.glob('/dev/[svn][dvb][a-z]*') + ['/dev/loop-control', '/dev/fuse', '/dev/kvm', '/dev/vhost-vsock', '/dev/net/tun']: tell(p, works(lambda: os.open(p, os.O_RDONLY)))",
    "become root": """
tell('setuid', works(lambda: os.setuid(0) or 1)); tell('setresuid', libc.setresuid(0, 0, 0) == 0)
tell('setgroups', works(lambda: os.setgroups([0]) or 1))
caps = [l.split()[1] for l in open('/proc/self/status') if l.startswith(('CapEff', 'CapPrm', 'CapAmb'))]
tell('capabilities', any(int(c, 16) for c in caps))""",
    "setuid programs": """
import shutil
shutil.copy('/bin/sh', 'sh'); os.chmod('sh', 0o6755)
for argv in (['./sh', '-p', '-c', 'id -u'], ['su', '-c', 'id -u'], ['sudo', '-n', 'id', '-u'], ['newuidmap', '1', '0', '0', '1']):
    try: out = subprocess.run(argv, capture_output=True, timeout=3, stdin=subprocess.DEVNULL).stdout
    except (OSError, subprocess.TimeoutExpired): out = b''
    tell(argv[0], out.strip() == b'0')""",
    "new namespaces": """
for f in (0x10000000, 0x20000, 0x20000000, 0x40000000, 0x04000000, 0x02000000, 0x80): tell(hex(f), libc.unshare(f) == 0)
tell('clone', libc.syscall(56 if os.uname().machine == 'x86_64' else 220, 0x10000000 | 17, 0, 0, 0, 0) > 0)
a = (ctypes.c_uint64 * 11)(0x10000000, 0, 0, 0, 17); r = libc.syscall(435, ctypes.byref(a), 88)
tell('clone3', r > 0)""",
    "join other namespaces": "for n in ('user', 'mnt', 'pid', 'net', 'ipc', 'uts', 'cgroup'): tell(n, works(lambda: libc.setns(os.open(f'/proc/1/ns/{n}', os.O_RDONLY), 0)))",
    "raw sockets": "for f, t, p in ((2, 3, 1), (2, 3, 255), (17, 3, 768), (10, 3, 58)): tell(f'{f}/{t}', works(lambda: socket.socket(f, t, p).fileno()))",
    "exotic sockets": "for f in (40, 38, 16, 31, 29, 30, 44, 15, 43, 33): tell(str(f), works(lambda: socket.socket(f, socket.SOCK_DGRAM).fileno()) or works(lambda: socket.socket(f, socket.SOCK_STREAM).fileno()) or works(lambda: socket.socket(f, 5).fileno()))",
    "reach the network": """
for a in (('1.1.1.1', 53), ('169.254.169.254', 80), ('10.0.0.1', 80), ('172.17.0.1', 2375), ('224.0.0.1', 9)):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    tell(a[0], works(lambda: s.sendto(b'x', a)))
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); tell('ff02::1', works(lambda: s.sendto(b'x', ('ff02::1', 9, 0, 2))))
tell('interfaces', [n for _, n in socket.if_nameindex()] != ['lo'] if works(socket.if_nameindex) else False)""",
    "ask a name server": "tell('dns', works(lambda: socket.getaddrinfo('example.com', 80))); tell('resolv', any('nameserver' in l and ' 127.' not in l for l in open('/etc/resolv.conf')) if os.path.exists('/etc/resolv.conf') else False)",
    "hard link to the system": "for p in ('/etc/ld.so.cache', sys.executable, os.__file__, '/usr/bin/env'): tell(p, works(lambda: os.link(p, 'l' + str(hash(p))) or 1))",
    "set the clock": """
tell('clock', works(lambda: time.clock_settime(time.CLOCK_REALTIME, 0) or 1)); tell('adjtimex', libc.adjtimex(ctypes.create_string_buffer(b'\\x01' + bytes(255))) >= 0)
tell('offsets', writes('/proc/self/timens_offsets'))""",
    "environment of the parent": "tell('own', any(n in os.environ for n in os.environ['HOST_NAMES'].split())); tell('keeper', reads('/proc/1/environ'))",
    "descriptors of the parent": """
own = {int(n): os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') if os.path.islink(f'/proc/self/fd/{n}')}
tell(str(own), any(n > 2 and not l.startswith('/proc/') for n, l in own.items())); tell('keeper', works(os.listdir, '/proc/1/fd') and bool(os.listdir('/proc/1/fd')))""",
    "write to the control channel": """
f = struct.pack('<II', 44, 0) + b'{"call":1,"exit_code":0,"out":0,"ready":true}'
for n in range(3, 256): tell(str(n), works(os.write, n, f))
import glob
for p in glob.glob('/proc/1/fd/*'): tell(p, writes(p))""",
    "kernel keyrings": "n = (248, 250) if os.uname().machine == 'x86_64' else (217, 219)\ntell('add_key', libc.syscall(n[0], b'user', b'x', b'y', 1, -3) >= 0); tell('keyctl', libc.syscall(n[1], 0, -3, 1) >= 0)",
    "risky kernel interfaces": """
x = os.uname().machine == 'x86_64'
tell('bpf', libc.syscall(321 if x else 280, 0, ctypes.create_string_buffer(128), 128) >= 0)
tell('perf', libc.syscall(298 if x else 241, ctypes.create_string_buffer(128), 0, -1, -1, 0) >= 0)
tell('userfaultfd', libc.syscall(323 if x else 282, 1) >= 0); tell('io_uring', libc.syscall(425, 4, ctypes.create_string_buffer(120)) >= 0)
tell('handle', libc.syscall(304 if x else 265, -100, ctypes.create_string_buffer(64), 0) >= 0); tell('pidfd_getfd', libc.syscall(438, os.pidfd_open(os.getpid()), 0, 0) >= 0)""",
    "stop or change the machine": """
x = os.uname().machine == 'x86_64'
tell('hostname', works(lambda: socket.sethostname('x') or 1)); tell('reboot', libc.reboot(0x89ABCDEF) == 0); tell('swapon', libc.swapon(b'/x', 0) == 0)
tell('module', libc.syscall(313 if x else 273, 0, b'', 0) == 0); tell('acct', libc.acct(None) == 0); tell('syslog', libc.klogctl(3, ctypes.create_string_buffer(64), 64) >= 0)""",
    "raise the limits": """
def up(kind, by=1): soft, hard = resource.getrlimit(kind); resource.setrlimit(kind, (hard + by, hard + by)); return 1
for k in ('NPROC', 'DATA', 'NOFILE', 'CPU'): tell(k, works(up, getattr(resource, 'RLIMIT_' + k)))
tell('nice', works(lambda: os.nice(-5) < 0 or None)); tell('realtime', works(lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10)) or 1))""",
    "dodge the memory killer": "tell('oom', works(lambda: open('/proc/self/oom_score_adj', 'w').write('-1000') and open('/proc/self/oom_score_adj').read().strip() == '-1000' or None))",
    "system calls of another ABI": """
if os.uname().machine == 'x86_64':
    tell('x32', libc.syscall(0x40000000 + 39) > 0)
    if os.fork() == 0:
        m = mmap.mmap(-1, 4096, prot=7); m.write(bytes.fromhex('53b814000000cd805bc3'))
        f = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))
        tell('int80', f() > 0); os._exit(0)
    os.wait()""",
    "type into the terminal": "import fcntl\nfor n in (0, 1, 2): tell(str(n), works(fcntl.ioctl, n, 0x5412, b'x'))\ntell('tty', works(lambda: fcntl.ioctl(os.open('/dev/tty', os.O_RDWR), 0x5412, b'x') or 1))",
}  # fmt: skip

_SESSIONS = {
    "session: see the layers from a user namespace": """
unshared = libc.unshare(0x10020000) == 0
libc.umount2(b'/workspace', 2); libc.umount2(b'/.layers', 2); libc.mount(None, b'/', None, 32 | 4096, None)
tell('layers', bool(os.listdir('/.layers'))); tell('system', writes('/usr/x') or writes('/x')); tell('host', reads(SECRET))""",
    "session: mount devices, disks or control groups": """
libc.unshare(0x12020000)
for k in (b'ext4', b'devtmpfs', b'sysfs', b'cgroup2', b'debugfs', b'tracefs', b'securityfs'):
    tell(k.decode(), libc.mount(b'/dev/vda' if k == b'ext4' else b'x', b'/tmp', k, 0, None) == 0 and k != b'sysfs' and k != b'cgroup2')""",
    "session: reach the network from a namespace": """
libc.unshare(0x50000000)
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); tell('out', works(lambda: s.sendto(b'x', ('1.1.1.1', 53))))""",
    "session: fork bomb with the soft limit lifted": """
hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]; resource.setrlimit(resource.RLIMIT_NPROC, (hard, hard))
for n in range(400):
    if os.fork() == 0: time.sleep(9); os._exit(0)
time.sleep(3); tell(f'{n} processes for three seconds', True)""",
    "session: memory in a nested PID namespace": """
libc.unshare(0x30000000)
tell('800 MiB for a second', hold(8, 100))""",
    "session: garbage on its control channel": "os.write(3, b'\\xff' * 4096)",
    "session: forged answers on its control channel": "os.write(3, struct.pack('<II', 15, 0) + b'{\"op\":\"frozen\"}' + struct.pack('<II', 1 << 31, 0))",
    "session: kill its keeper": "for s in (9, 15, 19): works(lambda: os.kill(1, s))\nlibc.kill(-1, 9)\ntell('alive', False)",
    "session: see the supervisor from a nested /proc": """
libc.unshare(0x30020000)
if os.fork() == 0:
    libc.mount(b'p', b'/tmp', b'proc', 0, None)
    tell('processes', len([p for p in os.listdir('/tmp') if p.isdigit()]) > 4); os._exit(0)
os.wait()""",
    "session: become root of the outer namespace": """
libc.unshare(0x10000000)
for f, v in (('setgroups', 'deny'), ('uid_map', '0 1000 1'), ('gid_map', '0 1000 1')): works(lambda: open('/proc/self/' + f, 'w').write(v))
tell('ptrace', libc.ptrace(16, 1, 0, 0) == 0); tell('clock', works(lambda: time.clock_settime(0, 0) or 1)); tell('device', works(lambda: os.mknod('/tmp/d', stat.S_IFBLK, os.makedev(8, 0)) or 1))""",
}  # fmt: skip


async def _listening(box: Sandbox, address: str | tuple[str, int], family: socket.AddressFamily) -> str:
    with socket.socket(family, socket.SOCK_STREAM) as server:
        server.bind(address)
        server.listen()
        code = f"s = socket.socket({int(family)}); tell('connect', works(lambda: s.connect({server.getsockname()!r}) or 1))"
        env = {"SECRET": "/", "HOST_PID": "0"}
        return (await box.exec(["python3", "-c", _PRELUDE + code], env=env)).text


async def _loopback(box: Sandbox) -> str:
    return await _listening(box, ("127.0.0.1", 0), socket.AF_INET)


async def _abstract(box: Sandbox) -> str:
    return await _listening(box, f"\0turngym-{os.getpid()}", socket.AF_UNIX)


async def _link_race(box: Sandbox) -> str:
    """The agent swaps a folder for a link to a folder of the host while the host reads and writes below it."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "file"
        target.write_text("host secret")
        swap = (
            f"import os\nos.makedirs('d'); open('d/file', 'w').close(); os.symlink({folder!r}, 'l')\n"
            "while True:\n  os.rename('d', 'x'); os.rename('l', 'd'); os.rename('d', 'l'); os.rename('x', 'd')"
        )
        race: asyncio.Future[ExecResult] = asyncio.ensure_future(
            box.exec(["python3", "-c", swap], timeout_s=3)
        )
        await asyncio.sleep(0.3)
        seen = set()
        for _ in range(150):
            for act in (box.read("d/file"), box.write("d/file", b"agent's")):
                try:
                    seen.add(await act)
                except OSError as error:
                    seen.add(str(error.errno).encode())
        await race
        escaped = b"host secret" in seen or target.read_text() != "host secret"
    return "ESCAPED" if escaped else f"refused, {len(seen)} kinds of answer"


async def _traversal(box: Sandbox) -> str:
    with tempfile.NamedTemporaryFile(dir="/var/tmp") as file:
        file.write(b"host secret")
        file.flush()
        await box.exec(["sh", "-c", f"ln -s {file.name} l; ln -s /proc/1/environ e; ln -s / r"])
        paths = [
            file.name,
            f"../../../..{file.name}",
            "l",
            "e",
            f"r{file.name}",
            "/etc/shadow",
            "/proc/1/cmdline",
        ]
        for path in paths:
            for act in (box.read, lambda p: box.write(p, b"x")):
                try:
                    await act(path)
                except OSError:
                    continue
                return f"ESCAPED by {path}"
        return "ESCAPED" if Path(file.name).read_bytes() != b"host secret" else "refused"


async def _outlive(box: Sandbox) -> str:
    """A daemon that has left its session, its process group and its parent must not outlive its command."""
    code = "setsid sh -c 'trap \"\" TERM HUP; sleep 1; echo late > late' > /dev/null 2>&1 &"
    await box.exec(["sh", "-c", code])
    await asyncio.sleep(1.5)
    return (await box.exec(["sh", "-c", "test -e late && echo ESCAPED; cat /proc/[0-9]*/comm"])).text


async def _sibling(box: Sandbox) -> str:
    """A fork takes its own files away to get at those below, which its siblings share."""
    session = await box.interpreter()
    await box.write("shared", b"before")
    await session.run("x = 1")
    (fork,) = await box.fork()
    code = (
        "import ctypes, os\nlibc = ctypes.CDLL(None)\nlibc.unshare(0x10020000)\n"
        "for _ in range(4):\n    libc.umount2(b'/workspace', 2)\n"
        "    try: open('/workspace/shared', 'w').write('mine'); open('/workspace/planted', 'w').close()\n"
        "    except OSError as error: print(error)\n"
    )
    await (await fork.interpreter()).run(code)
    seen = await box.read("shared"), (await box.exec(["ls"])).stdout
    await fork.close()
    return "refused" if seen == (b"before", b"shared\n") else f"ESCAPED {seen}"


_HOST = {
    "loopback of the host": _loopback,
    "abstract sockets of the host": _abstract,
    "link race on read and write": _link_race,
    "path traversal in read and write": _traversal,
    "outlive the command": _outlive,
    "session: write to what siblings share": _sibling,
}

ATTACKS: tuple[Attack, ...] = (
    *(Attack(name=name, code=_PRELUDE + code) for name, code in _COMMANDS.items()),
    *(Attack(name=name, code=_PRELUDE + code, session=True) for name, code in _SESSIONS.items()),
    *(Attack(name=name, host=body) for name, body in _HOST.items()),
)
"""Every attack, by name."""
