"""An owner that is killed at any moment leaves nothing: no process, no mount, no control group, no file."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from missing import skip_or_fail
from turngym.sandbox.bubblewrap import Bubblewrap

WITHIN_S = 25.0  # below the 30 s of a lease: the warden sees its owner die
# Starts, runs, forks, restores and closes as fast as it can, and writes down each sandbox process.
OWNER = """
import asyncio, sys
from turngym.sandbox.base import Limits
from turngym.sandbox.bubblewrap import Bubblewrap

async def use(backend):
    while True:
        box = await backend.create(Limits(disk_mib=16))
        print(box._family.lease.pid, flush=True)
        python = await box.interpreter()
        await python.run("x = bytearray(1 << 20); f = open('f', 'w')")
        sleeping = asyncio.ensure_future(box.exec(["sh", "-c", "setsid sleep 300 & sleep 0.05"]))
        await sleeping
        snapshot = await box.snapshot()
        forks = await box.fork(2)
        await box.restore(snapshot)
        for each in (*forks, box):
            await each.close()

async def main():
    backend = Bubblewrap()
    await asyncio.gather(use(backend), use(backend))

asyncio.run(main())
"""


def traces(state: Path, wardens: set[str]) -> list[str]:
    """Everything of these owners that is still there."""
    found = [str(p) for p in state.iterdir()]
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                command = (folder / "cmdline").read_bytes()
                environment = (folder / "environ").read_bytes()
                status = (folder / "status").read_text()
            except OSError:
                continue
            users = {str(2_000_000_000 + int(warden)) for warden in wardens}
            uid = status.split("Uid:")[1].split()[0]
            if os.fsencode(state) in command + environment or uid in users:
                words = command.decode(errors="replace").split("\0")
                found.append(f"process {folder.name}: {' '.join(words)}")
    found += [line for line in Path("/proc/mounts").read_text().splitlines() if str(state) in line]
    # `os.walk`, unlike `Path.glob`, goes on where a control group vanishes under it.
    for parent, groups, _ in os.walk("/sys/fs/cgroup"):
        found += [
            f"{parent}/{g}" for g in groups if g.rpartition("-")[0] in {f"turngym-{w}" for w in wardens}
        ]
    return found


def kill_once(delay_s: float, *, group: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder)
        state.chmod(0o711)
        owner = subprocess.Popen(
            [sys.executable, "-c", OWNER],
            env={**os.environ, "TURNGYM_STATE_DIR": folder},
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert owner.stdout is not None
        first = owner.stdout.readline()
        assert first.strip().isdigit()
        wardens = {p.name for p in state.iterdir()}
        time.sleep(delay_s)
        (os.killpg if group else os.kill)(owner.pid, signal.SIGKILL)
        owner.wait()
        owner.stdout.close()
        deadline = time.monotonic() + WITHIN_S
        while (left := traces(state, wardens)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert left == [], f"killed after {delay_s:.3f} s"


@pytest.fixture(autouse=True)
def bubblewrap_can_run():
    reason = Bubblewrap.unavailable()
    if reason is not None:
        skip_or_fail(f"bubblewrap: {reason}")


def delays(n: int) -> list[float]:
    return [random.Random(i).uniform(0, 0.8) for i in range(n)]


def test_the_traces_of_a_living_owner_are_found():
    """The check itself can fail: a warden and its sandboxes show up while their owner lives."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        environment = {**os.environ, "TURNGYM_STATE_DIR": folder}
        owner = subprocess.Popen([sys.executable, "-c", OWNER], env=environment, stdout=subprocess.PIPE)
        assert owner.stdout is not None
        owner.stdout.readline()
        wardens = {p.name for p in Path(folder).iterdir()}
        found = traces(Path(folder), wardens)
        owner.kill()
        owner.wait()
        owner.stdout.close()
        assert any("warden.py" in each for each in found), found
        assert len([each for each in found if each.startswith("process")]) > 2
        deadline = time.monotonic() + WITHIN_S
        while (left := traces(Path(folder), wardens)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert left == []


@pytest.mark.parametrize("delay_s", delays(10))
def test_nothing_is_left_of_a_killed_owner(delay_s):
    kill_once(delay_s, group=False)


@pytest.mark.slow
@pytest.mark.parametrize("delay_s", delays(50)[10:])
def test_nothing_is_left_of_a_killed_owner_and_its_process_group(delay_s):
    kill_once(delay_s, group=True)
