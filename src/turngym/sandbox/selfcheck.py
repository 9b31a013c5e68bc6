"""`check(backend)`: does a backend keep the contract, and does it hold against attacks?

The one idea: whoever writes a backend runs the same suite as the authors, on the machine where it will be used.
A *conformance* check is an async function on a fresh sandbox that raises `AssertionError`. An *attack* (see
`attacks`) is a program that runs as the agent and prints `ESCAPED` if it got what it wanted; some also have a
witness on the host. An attack is refused where it says so, or where it was ended for that: killed, at a limit, with its
session. One whose *sandbox* is lost succeeded in breaking that, and one that ends by itself without a word is broken.
"""

from __future__ import annotations

import asyncio
import functools
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from turngym.errors import MissingDependency, TurngymError
from turngym.sandbox.attacks import ATTACKS, Attack
from turngym.sandbox.base import Backend, Limits, Sandbox, SandboxLost

LIMITS = Limits(wall_s=6, cpu_s=4, memory_mib=192, pids=48, disk_mib=24, files=3000, output_kib=64)
_WITHIN_S = 120.0
_OWN_VARIABLES = {
    "PATH",
    "HOME",
    "USER",
    "LANG",
    "LC_CTYPE",
    "TMPDIR",
    "PWD",
    "SHLVL",
    "_",
    "PYTHONHASHSEED",
    "PYTHONDONTWRITEBYTECODE",
}
"what sandboxes set themselves"
_PLANTED = "TURNGYM_SELFCHECK"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One check or attack and what came of it."""

    name: str
    "what was tried"
    ok: bool
    "the check passed; the attack was refused"
    words: str = ""
    "why not, or how it was refused"
    seconds: float = 0.0
    "how long it took"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What `check` found."""

    backend: str
    "its name"
    user: int
    "the user id that the check ran as"
    conformance: tuple[Finding, ...] = field(default=())
    "one for each check"
    attacks: tuple[Finding, ...] = field(default=())
    "one for each attack"

    @property
    def succeeded(self) -> int:
        """Attacks that were not refused."""
        return sum(not each.ok for each in self.attacks)

    @property
    def ok(self) -> bool:
        """True where everything passed and every attack was refused."""
        return all(each.ok for each in (*self.conformance, *self.attacks))

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "backend": self.backend,
            "user": self.user,
            "ok": self.ok,
            "attacks": len(self.attacks),
            "succeeded": self.succeeded,
            "conformance": [asdict(each) for each in self.conformance],
            "findings": [asdict(each) for each in self.attacks],
        }


async def check(backend: Backend, *, progress: Callable[[Finding], None] = lambda _: None) -> Report:
    """Run every conformance check and every attack.

    Args:
        backend: what to check.
        progress: called with each finding as it comes.

    Raises:
        MissingDependency: the backend makes no sandbox here; says what to do.
    """

    async def noted(name: str, body: Callable[[], Awaitable[str]]) -> Finding:
        started = time.monotonic()
        try:
            words, ok = await asyncio.wait_for(body(), _WITHIN_S), True
        except MissingDependency:  # nothing was checked
            raise
        except (AssertionError, TurngymError, OSError, TimeoutError) as error:
            words, ok = f"{type(error).__name__}: {error}", False
        finding = Finding(name=name, ok=ok, words=words, seconds=time.monotonic() - started)
        progress(finding)
        return finding

    conformance = [
        await noted(name, functools.partial(_on_fresh, backend, body)) for name, body in CONFORMANCE.items()
    ]
    attacks = [await noted(each.name, functools.partial(_attack, backend, each)) for each in ATTACKS]
    return Report(
        backend=backend.name, user=os.geteuid(), conformance=tuple(conformance), attacks=tuple(attacks)
    )


async def _on_fresh(backend: Backend, body: Callable[[Sandbox], Awaitable[None]]) -> str:
    async with await backend.create(LIMITS) as box:
        await body(box)
    return ""


_REFUSED = ("refused", "limit]", "[killed]", "was started afresh")


async def _attack(backend: Backend, attack: Attack) -> str:
    """Run `attack`; returns how it was refused.

    Raises:
        AssertionError: it was not.
    """
    with tempfile.TemporaryDirectory() as folder:
        secret = Path(folder) / "secret"
        secret.write_text("host secret")
        secret.chmod(0o666)
        Path(folder).chmod(0o777)
        values = {
            "SECRET": str(secret),
            "HOST_PID": str(os.getpid()),
            "HOST_HOME": os.path.expanduser("~"),
            "HOST_NAMES": " ".join(_host_names()),
        }
        async with await backend.create(LIMITS) as box:
            words = await _run(box, attack, values)
            assert "ESCAPED" not in words, f"it got what it wanted: {words.strip()[-300:]}"
            assert attack.host or any(each in words for each in _REFUSED), f"it did nothing: {words[-300:]!r}"
            alive = await box.exec(["echo", "alive"])
            assert alive.stdout == b"alive\n", f"the sandbox does not work any more: {alive}"
        assert secret.read_text() == "host secret", "it changed a file of the host"
        assert os.listdir(folder) == ["secret"], "it made a file on the host"
    return (words.strip().splitlines() or ["refused"])[-1][:200]


async def _run(box: Sandbox, attack: Attack, values: dict[str, str]) -> str:
    if attack.host is not None:
        return await attack.host(box)
    if attack.session:
        code = "".join(f"{name} = {value!r}\n" for name, value in values.items()) + attack.code
        cell = await (await box.interpreter()).run(code)
        return cell.text
    result = await box.exec(["python3", "-c", attack.code], env=values)
    end = f"[{result.limit_hit} limit]" if result.limit_hit else "[killed]" if result.exit_code > 128 else ""
    return f"{result.text} {end}"


async def _exec_io(box: Sandbox) -> None:
    data = bytes(range(256)) * 4096
    result = await box.exec(["sh", "-c", "cat; echo err >&2; exit 7"], stdin=data)
    assert (result.exit_code, result.stdout, result.stderr) == (
        7,
        data[: LIMITS.output_kib << 10],
        b"err\n",
    ), "binary I/O"
    assert result.stdout_dropped == len(data) - (LIMITS.output_kib << 10), "dropped bytes are counted"
    assert result.limit_hit == "output", "the output limit is named"


async def _environment(box: Sandbox) -> None:
    result = await box.exec(["sh", "-c", 'pwd; printf %s "$V"'], cwd="/tmp", env={"V": "ü"})
    assert result.stdout == "/tmp\nü".encode(), "folder and environment"
    seen = {line.split("=")[0] for line in (await box.exec(["env"])).text.splitlines()}
    leaked = seen & set(_host_names())
    assert not leaked, f"leaked {sorted(leaked)}"


def _host_names() -> list[str]:
    """Variables of this process that a sandbox has no business with; one at least, so that there is something to leak."""
    os.environ.setdefault(_PLANTED, "planted")
    return sorted(set(os.environ) - _OWN_VARIABLES)


async def _missing(box: Sandbox) -> None:
    assert (await box.exec(["no-such-program"])).exit_code == 127, "a missing program is a result"


async def _files(box: Sandbox) -> None:
    for path in ("a", "deep/er/ünï – 文", "/workspace/x y", "/tmp/t"):
        await box.write(path, b"long" * 1000)
        await box.write(path, b"\0\xff", mode=0o700)
        assert await box.read(path) == b"\0\xff", f"read gives what write put into {path}"
    for path, kind in (("absent", FileNotFoundError), ("deep", IsADirectoryError)):
        try:
            await box.read(path)
        except kind:
            continue
        raise AssertionError(f"read of {path!r} raises {kind.__name__}")


async def _timeout(box: Sandbox) -> None:
    other = asyncio.ensure_future(box.exec(["sh", "-c", "sleep 2; echo done"]))
    started = time.monotonic()
    tree = await box.exec(["sh", "-c", "setsid sleep 50 & (sleep 50 &); sleep 50"], timeout_s=0.5)
    assert time.monotonic() - started < 5, "a timeout ends the command in time"
    assert (tree.limit_hit, tree.exit_code) == ("wall", 137), "a timeout is named"
    assert (await other).stdout == b"done\n", "and nothing else ends"
    assert b"sleep" not in (await box.exec(["sh", "-c", "cat /proc/[0-9]*/comm"])).stdout, "no survivor"


async def _limits(box: Sandbox) -> None:
    for limit, argv in {
        "cpu": ["python3", "-c", "while True: pass"],
        "memory": ["python3", "-c", "x = []\nwhile True: x.append(b'x' * (1 << 20))"],
        "pids": ["sh", "-c", "for _ in $(seq 200); do sleep 9 & done; wait"],
        "disk": ["python3", "-c", "open('x', 'wb').write(b'x' * (40 << 20))"],
        "files": ["python3", "-c", "for n in range(100_000): open(f'/tmp/{n}', 'x').close()"],
    }.items():
        result = await box.exec(argv, timeout_s=60)
        refused = any(each in result.stderr for each in (b"MemoryError", b"fork", b"No space left"))
        assert result.limit_hit == limit or refused, f"{limit}: {result}"
        await box.exec(["rm", "-f", "x"])


async def _snapshots(box: Sandbox) -> None:
    await box.write("f", b"1")
    before = await box.digest()
    snapshot = await box.snapshot()
    (fork,) = await box.fork()
    await box.write("f", b"2")
    await fork.write("g", b"3")
    assert await fork.read("f") == b"1", "a fork does not see its parent"
    assert (await box.exec(["ls"])).stdout == b"f\n", "nor a parent its fork"
    (other,) = await box.spawn(snapshot)
    assert await other.digest() == before, "spawn makes another one from a snapshot"
    assert await box.read("f") == b"2", "and leaves this one alone"
    await box.restore(snapshot)
    assert await box.digest() == before, "restore brings everything back"
    await box.drop(snapshot)
    await other.close()
    await fork.close()


async def _replay(box: Sandbox) -> None:
    python = await box.interpreter()
    await box.allow_replay()
    await python.run(
        "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    )
    await python.run("open('f', 'w').write('1'); x = 1")
    (fork,) = await box.fork()
    seen = await (await fork.interpreter()).run("x, open('f').read(), threading.active_count()")
    assert seen.display.get("text/plain") == "(1, '1', 2)", (
        "what can't be carried is done again, where allowed"
    )
    await fork.close()


async def _cancelled(box: Sandbox) -> None:
    slow = asyncio.ensure_future(box.exec(["sh", "-c", "sleep 0.5; touch done"]))
    await asyncio.sleep(0.1)
    slow.cancel()
    await asyncio.gather(slow, return_exceptions=True)
    await asyncio.sleep(1)
    assert (await box.exec(["ls"])).stdout == b"", "a command that nobody waits for is ended"


async def _sessions(box: Sandbox) -> None:
    python = await box.interpreter("python")
    await python.run("x = [1]")
    (fork,) = await box.fork()
    await python.run("x.append(2)")
    seen = await (await fork.interpreter("python")).run("x")
    assert seen.display["text/plain"] == "[1]", "a live session forks"
    late = await python.run("while True: pass", timeout_s=0.5)
    assert late.limit_hit == "wall", "a cell has a time limit"
    bash = await box.interpreter("bash")
    await bash.run("y=1; cd /tmp")
    assert (await bash.run("echo $y; pwd")).stdout == b"1\n/tmp\n", "bash keeps its state"
    await fork.close()


async def _closed(box: Sandbox) -> None:
    (fork,) = await box.fork()
    await fork.close()
    await fork.close()
    try:
        await fork.exec(["true"])
    except SandboxLost:
        return
    raise AssertionError("a closed sandbox raises SandboxLost")


CONFORMANCE: dict[str, Callable[[Sandbox], Awaitable[None]]] = {
    "exec: bytes in and out": _exec_io,
    "exec: folder and environment": _environment,
    "exec: a missing program": _missing,
    "exec: timeouts": _timeout,
    "exec: limits": _limits,
    "exec: cancelled": _cancelled,
    "read and write": _files,
    "snapshot, spawn, restore, fork": _snapshots,
    "sessions": _sessions,
    "replay": _replay,
    "close": _closed,
}
