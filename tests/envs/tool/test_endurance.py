"""Thousands of episodes in one process leave nothing behind: descriptors, processes, mounts and memory stay flat."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from turngym.envs.tool.python.env import PythonTasks
from turngym.envs.tool.shell.env import Shell
from turngym.toolcalls import format_call
from turngym.types import ToolCall

LOOKS = 12
"""How often the footprint is taken in a run."""
WARM = 3
"""Looks that are left out: allocators and caches fill in the first episodes."""
MAY_RISE = {"descriptors": 8.0, "threads": 2.0, "processes": 2.0, "mounts": 30.0, "mib": 8.0}
"""How much a straight line through the looks may rise over a run, of however many episodes.

A process that is kept ready for the next command may be missing in the first looks and be there in the last.
"""


@dataclass(frozen=True, slots=True)
class Footprint:
    """What this process and all below it hold."""

    descriptors: int
    threads: int
    processes: int
    mounts: int
    mib: float
    "of memory; pages that processes share count once"


def below(pid: int) -> Iterator[Path]:
    """`/proc` folders of the process `pid` and of all below it."""
    folder = Path(f"/proc/{pid}")
    yield folder
    for children in folder.glob("task/*/children"):
        with suppress(OSError):  # the thread has ended since it was listed
            for child in children.read_text().split():
                yield from below(int(child))


def footprint() -> Footprint:
    descriptors = threads = processes = mounts = kib = 0
    for folder in below(os.getpid()):
        with suppress(OSError):  # the process has ended since it was listed
            memory = (folder / "smaps_rollup").read_text().partition("\nPss:")[2]
            mounts += len((folder / "mountinfo").read_text().splitlines())
            descriptors += len(os.listdir(folder / "fd"))
            threads += len(os.listdir(folder / "task"))
            kib += int(memory.split()[0])
            processes += 1
    return Footprint(descriptors, threads, processes, mounts, kib / 1024)


def settled(within_s: float = 20.0) -> Footprint:
    """The footprint once no process comes or goes: what was let go takes its time to end."""
    gc.collect()
    deadline = time.monotonic() + within_s
    before, now = None, footprint()
    while before != (now.processes, now.descriptors) and time.monotonic() < deadline:
        before = now.processes, now.descriptors
        time.sleep(0.3)
        now = footprint()
    return now


def episode(env: PythonTasks | Shell, seed: int) -> None:
    """Acts, forks, a return, whatever an agent may do to its session, and the solution."""
    rng = np.random.default_rng(seed)
    name, argument, harm = (
        (
            "python",
            "code",
            ("import os; os._exit(1)", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"),
        )
        if isinstance(env, PythonTasks)
        else ("run", "command", ("kill -9 $$", "exit 3", "(sleep 100 &) ; sleep 100 &"))
    )
    env.reset(seed=seed)
    start = env.snapshot()
    over = env.step(env.random_action(rng))[2]
    if not over:
        for child in env.fork(2):
            with closing(child):
                child.step(child.random_action(rng))
    if not over and seed % 7 == 0:
        env.step(format_call(ToolCall(name, {argument: harm[seed // 7 % len(harm)]})))
    env.restore(start)
    over = False
    while not over:
        over = env.step(env.optimal_action())[2]


def rise(values: list[float]) -> float:
    """How much the least-squares line through `values` rises from the first to the last."""
    return float(np.polyfit(np.linspace(0, 1, len(values)), values, 1)[0])


@pytest.mark.parametrize("count", [36, pytest.param(5000, marks=pytest.mark.slow)])
def test_episodes_with_forks_leave_nothing_behind(sandbox: str, count: int, record_property: Any) -> None:
    looks: list[Footprint] = []
    with ExitStack() as stack:
        envs = [stack.enter_context(closing(kind())) for kind in (PythonTasks, Shell)]
        for seed in range(count):
            episode(envs[seed % 2], seed)
            if (seed + 1) % (count // LOOKS) == 0:
                looks.append(settled())
    rises = {name: rise([asdict(each)[name] for each in looks[WARM:]]) for name in MAY_RISE}
    record_property("rises", rises)
    assert {name: by for name, by in rises.items() if by > MAY_RISE[name]} == {}, looks
