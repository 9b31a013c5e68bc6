"""How fast sandboxes start, run, fork, and how much they hold: `python benchmarks/sandbox.py --json FILE`.

    cold_ms            from `create` to the first result of a command
    warm_ms            from the pool's `take` to the first result of a command
    exec_ms            one more command in a live sandbox
    fork_ms            fork of a sandbox with 1,000 files of 10 KB and a live Python session that holds 50 MB
    fork_ms_turn_200   the same after 200 turns (a cell and a command each)
    idle_mib           proportional set size of 64 idle sandboxes with everything that belongs to them, each
    fork_to_result_ms  fork_ms and what the copy's session then answers to a first question about what it holds
    fork_speedup_over_docker
                       the same by `docker commit` and `docker run` of a Python that makes the 50 MB again (the copy has
                       the files, not the session), up to its answer to the same question, divided by fork_to_result_ms

All are medians, of the bubblewrap backend. Beside it run the docker backend, `unsafe-process` (a bare subprocess, as
the floor), and SWE-ReX's local runtime, which isolates nothing, in a virtual environment that is made for it. Docker is
the engine that runs, or one that is started for this (as root, where `dockerd` is installed).
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import time
import venv
from collections.abc import Awaitable, Callable
from pathlib import Path

from _engine import running_engine
from _report import parse_json_flag, report
from turngym.sandbox import Limits, Sandbox, backend
from turngym.sandbox.pool import Pool

TARGETS = {
    "cold_ms": "<= 60",
    "warm_ms": "<= 5",
    "exec_ms": "<= 5",
    "fork_ms": "<= 15",
    "fork_ms_turn_200": "<= 15",
    "idle_mib": "<= 20",
    "fork_speedup_over_docker": ">= 60",
}
SWE_REX = "swe-rex==1.4.0"
LIMITS = Limits(memory_mib=1024, disk_mib=64)
HOLD = """
held = bytearray(50 << 20)
held[::4096] = b"x" * len(held[::4096])
"""
WRITE = """
import os
for i in range(1000):
    with open(f"file{i}", "wb") as file:
        file.write(os.urandom(10_240))
"""
QUESTION = "len(held), len(open('file999', 'rb').read())"
ANSWER = "(52428800, 10240)"


async def median_ms(body: Callable[[], Awaitable[object]], n: int) -> float:
    times = []
    for _ in range(n):
        started = time.perf_counter()
        await body()
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1000


async def cold(name: str, n: int = 20) -> float:
    made: list[Sandbox] = []

    async def once() -> None:
        made.append(await backend(name).create(LIMITS))
        await made[-1].exec(["true"])

    await once()  # the first one of a process starts the warden as well
    result = await median_ms(once, n)
    for box in made:
        await box.close()
    return result


async def warm(n: int = 20) -> float:
    pool = Pool(backend("bubblewrap"), size=n + 1, limits=LIMITS)
    await pool.fill()
    taken = []

    async def once() -> None:
        taken.append(pool.take())
        box = await taken[-1].__aenter__()
        await box.exec(["true"])

    result = await median_ms(once, n)
    for each in taken:
        await each.__aexit__(None, None, None)
    await pool.close()
    return result


async def execute(name: str, n: int = 100) -> float:
    async with await backend(name).create(LIMITS) as box:
        await box.exec(["true"])
        return await median_ms(lambda: box.exec(["true"]), n)


async def fork(turns: int, n: int = 20, name: str = "bubblewrap") -> tuple[float, float]:
    """Medians of `n` forks, each of a sandbox restored from the same snapshot, as a tree search does it.

    The first ends with the fork, the second with the copy's answer to a question.
    """
    async with await backend(name).create(LIMITS) as box:
        python = await box.interpreter()
        filled = await python.run(HOLD + WRITE)
        assert filled.ok, filled.text
        for turn in range(turns):
            done = await python.run(f"turn = {turn}; _ = open('notes', 'a').write('{turn}\\n')")
            assert done.ok, done.text
            await box.exec(["sh", "-c", f"echo {turn} >> log"])
        snapshot = await box.snapshot()
        forked, answered = [], []
        for _ in range(n):
            await box.restore(snapshot)
            started = time.perf_counter()
            (child,) = await box.fork()
            forked.append(time.perf_counter() - started)
            seen = await (await child.interpreter()).run(QUESTION)
            answered.append(time.perf_counter() - started)
            assert seen.display["text/plain"] == ANSWER
            await child.close()
        return statistics.median(forked) * 1000, statistics.median(answered) * 1000


def tree_pss_mib(root: int) -> float:
    """Proportional set size of a process and its descendants."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(folder.name))
    total, todo = 0, [root]
    while todo:
        pid = todo.pop()
        todo += children.get(pid, [])
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended and waits to be reaped
        total += next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return total / 1024


async def idle(n: int = 64) -> float:
    made = [await backend("bubblewrap").create(LIMITS) for _ in range(n)]
    for box in made:
        await box.exec(["true"])
    warden = made[0]._family.lease._warden.process.pid
    total = tree_pss_mib(warden)
    for box in made:
        await box.close()
    return total / n


def commit_and_run(argv: list[str], answer: bytes, n: int = 7) -> float:
    """Median milliseconds of what people do who have only an engine: commit a running container, run `argv` in the copy.

    They end with `answer`, the first line that the copy prints.
    """
    from turngym.sandbox import engine, image

    client = engine.client()
    config = client.create_host_config(network_mode="none")
    code = f"import os; os.makedirs('/data'); os.chdir('/data')\n{HOLD}{WRITE}\nprint('ready', flush=True); import time; time.sleep(3600)"
    parent = client.create_container(image.DEFAULT_IMAGE, ["python3", "-c", code], host_config=config)["Id"]
    client.start(parent)
    while b"ready" not in client.logs(parent):
        time.sleep(0.1)
    times = []
    for _ in range(n):
        started = time.perf_counter()
        copy = client.commit(parent)["Id"]
        child = client.create_container(copy, argv, host_config=config, working_dir="/data")["Id"]
        with engine.attach(child) as stream:
            client.start(child)
            seen = b""
            while not seen.endswith(b"\n"):
                seen += stream.recv(4096)
            times.append(time.perf_counter() - started)
        assert seen.endswith(answer + b"\n"), seen
        client.remove_container(child, force=True)
        client.remove_image(copy, force=True)
    client.remove_container(parent, force=True)
    return statistics.median(times) * 1000


def swe_rex(n: int = 10, commands: int = 100) -> dict[str, float]:
    """What SWE-ReX's local runtime takes, in a virtual environment of its own."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "turngym" / "bench-swe-rex"
    python = cache / "bin" / "python"
    worker = [python, Path(__file__).with_name("_sandbox_swerex.py"), str(n), str(commands)]
    if not python.exists():
        venv.create(cache, with_pip=True, clear=True)
    subprocess.run([python, "-m", "pip", "install", "-q", SWE_REX], check=True)
    done = subprocess.run(worker, capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


async def containers(figures: dict[str, float]) -> str | None:
    """Add what the docker backend and plain Docker take; returns why not, where there is no engine."""
    with running_engine() as reason:
        if reason is None:
            figures["docker_cold_ms"] = await cold("docker", n=5)
            figures["docker_exec_ms"] = await execute("docker")
            figures["docker_fork_ms"], _ = await fork(0, name="docker")
            figures["docker_commit_and_run_ls_ms"] = commit_and_run(["ls", "file999"], b"file999")
            state = f"{HOLD}print(({QUESTION}))"
            figures["docker_commit_and_run_ms"] = commit_and_run(["python3", "-c", state], ANSWER.encode())
            figures["fork_speedup_over_docker"] = (
                figures["docker_commit_and_run_ms"] / figures["fork_to_result_ms"]
            )
        return reason


async def main() -> None:
    json_path = parse_json_flag()
    fork_ms, fork_to_result_ms = await fork(0)
    figures = {
        "cold_ms": await cold("bubblewrap"),
        "warm_ms": await warm(),
        "exec_ms": await execute("bubblewrap"),
        "fork_ms": fork_ms,
        "fork_to_result_ms": fork_to_result_ms,
        "fork_ms_turn_200": (await fork(200))[0],
        "idle_mib": await idle(),
    }
    without = await containers(figures)
    figures["unsafe_process_exec_ms"] = await execute("unsafe-process")
    figures |= {f"swe_rex_local_{name}": value for name, value in swe_rex().items()}
    rows = [
        {"figure": name, "value": value, "target": TARGETS.get(name, "")} for name, value in figures.items()
    ]
    if without is not None:
        rows.append(
            {"figure": "fork_speedup_over_docker", "value": f"not measured: {without}", "target": ">= 60"}
        )
    report("Sandboxes", rows, figures, json_path)


if __name__ == "__main__":
    asyncio.run(main())
