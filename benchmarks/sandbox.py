"""How fast sandboxes start, run, fork, and how much they hold: `python benchmarks/sandbox.py --json FILE`.

    cold_ms            from `create` to the first result of a command
    warm_ms            from the pool's `take` to the first result of a command
    exec_ms            one more command in a live sandbox
    fork_ms            fork of a sandbox with 1,000 files of 10 KB and a live Python session that holds 50 MB
    fork_ms_turn_200   the same after 200 turns (a cell and a command each)
    idle_mib           proportional set size of 64 idle sandboxes with everything that belongs to them, each

All are medians. `unsafe-process` is run beside it as the floor: a bare subprocess.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from _report import parse_json_flag, report
from turngym.sandbox import Limits, Sandbox, backend
from turngym.sandbox.pool import Pool

TARGETS = {"cold_ms": 60, "warm_ms": 5, "exec_ms": 5, "fork_ms": 15, "fork_ms_turn_200": 15, "idle_mib": 20}
LIMITS = Limits(memory_mib=1024, disk_mib=64)
FILL = """
import os
held = bytearray(50 << 20)
held[::4096] = b"x" * len(held[::4096])
for i in range(1000):
    with open(f"file{i}", "wb") as file:
        file.write(os.urandom(10_240))
"""


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


async def fork(turns: int, n: int = 20) -> float:
    """Median of `n` forks, each of a sandbox restored from the same snapshot, as a tree search does it."""
    async with await backend("bubblewrap").create(LIMITS) as box:
        python = await box.interpreter()
        filled = await python.run(FILL)
        assert filled.ok, filled.text
        for turn in range(turns):
            done = await python.run(f"turn = {turn}; _ = open('notes', 'a').write('{turn}\\n')")
            assert done.ok, done.text
            await box.exec(["sh", "-c", f"echo {turn} >> log"])
        snapshot = await box.snapshot()
        times = []
        for _ in range(n):
            await box.restore(snapshot)
            started = time.perf_counter()
            (child,) = await box.fork()
            times.append(time.perf_counter() - started)
            seen = await (await child.interpreter()).run("len(held)")
            assert seen.display["text/plain"] == str(50 << 20)
            await child.close()
        return statistics.median(times) * 1000


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


async def main() -> None:
    json_path = parse_json_flag()
    figures = {
        "cold_ms": await cold("bubblewrap"),
        "warm_ms": await warm(),
        "exec_ms": await execute("bubblewrap"),
        "fork_ms": await fork(0),
        "fork_ms_turn_200": await fork(200),
        "idle_mib": await idle(),
    }
    rows = [
        {"figure": name, "value": value, "target": f"<= {TARGETS[name]}"} for name, value in figures.items()
    ]
    floor = {"cold_ms": await cold("unsafe-process"), "exec_ms": await execute("unsafe-process")}
    rows += [
        {"figure": f"{name}, unsafe-process", "value": value, "target": ""} for name, value in floor.items()
    ]
    report("Sandboxes", rows, figures, json_path)


if __name__ == "__main__":
    asyncio.run(main())
