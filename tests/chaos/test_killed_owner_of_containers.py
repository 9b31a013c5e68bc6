"""An owner that is killed at any moment leaves no container, no process of one, no control group and no reaper."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engines import require_engine
from turngym.sandbox import engine

WITHIN_S = 29.0  # below the 30 s of a lease: the reaper sees its owner die
USER = "61613"
# Starts, runs, forks, restores and closes as fast as it can; the first line comes when it begins.
OWNER = """
import asyncio
from turngym.sandbox import Limits, backend

async def use():
    while True:
        box = await backend("docker").create(Limits(disk_mib=16))
        python = await box.interpreter()
        await python.run("x = bytearray(1 << 20); f = open('f', 'w')")
        await box.exec(["sh", "-c", "setsid sleep 300 & sleep 0.05"])
        snapshot = await box.snapshot()
        forks = await box.fork(2)
        await box.restore(snapshot)
        for each in (*forks, box):
            await each.close()

async def main():
    print("begins", flush=True)
    await asyncio.gather(use(), use())

asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def engine_runs() -> None:
    require_engine()


@contextmanager
def owner() -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, start_new_session=True)
    assert started.stdout is not None
    with started.stdout:
        assert started.stdout.readline() == b"begins\n"
        yield started
    started.wait()


def traces(label: str) -> list[str]:
    """Everything of the owner called `label` that is still there."""
    containers = engine.client().containers(all=True, filters={"label": f"{engine.OWNER}={label}"})
    found = [f"container {each['Id']} {each['Status']}" for each in containers]
    watch = f"turngym.sandbox.reaper\0{label.partition('@')[0]}\0".encode()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                command, status = (folder / "cmdline").read_bytes(), (folder / "status").read_text()
            except OSError:
                continue
            if watch in command or status.split("Uid:")[1].split()[0] == USER:
                found.append(f"process {folder.name}: {command[:200]!r}")
    groups = {f"{parent}/{name}" for parent, names, _ in os.walk("/sys/fs/cgroup") for name in names}
    return found + [group for group in groups if any(each["Id"] in group for each in containers)]


def nothing_left(label: str) -> list[str]:
    deadline = time.monotonic() + WITHIN_S
    while (left := traces(label)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return left


def kill_once(delay_s: float, *, group: bool) -> None:
    with owner() as process:
        label = engine.owner_label(process.pid)
        time.sleep(delay_s)
        (os.killpg if group else os.kill)(process.pid, signal.SIGKILL)
    assert nothing_left(label) == [], f"killed after {delay_s:.3f} s"


def delays(n: int) -> list[float]:
    return [random.Random(i).uniform(0, 5.0) for i in range(n)]


def test_the_traces_of_a_living_owner_are_found():
    """The check itself can fail."""
    with owner() as process:
        label = engine.owner_label(process.pid)
        deadline = time.monotonic() + 60
        seen: set[str] = set()
        while not {"container", "process"} <= seen:
            assert time.monotonic() < deadline, seen
            time.sleep(0.2)
            seen |= {each.split()[0] for each in traces(label)}
        process.kill()
    assert nothing_left(label) == []


@pytest.mark.parametrize("delay_s", delays(4))
def test_nothing_is_left_of_a_killed_owner(delay_s):
    kill_once(delay_s, group=False)


@pytest.mark.slow
@pytest.mark.parametrize("delay_s", delays(50)[4:])
def test_nothing_is_left_of_a_killed_owner_and_its_process_group(delay_s):
    kill_once(delay_s, group=True)
