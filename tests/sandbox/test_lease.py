"""Leases end sandboxes whose owner hangs, closes them, or loses them."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from turngym.sandbox import SandboxLost
from turngym.sandbox import lease as module
from turngym.sandbox.bubblewrap import Bubblewrap
from turngym.sandbox.inside.sessions import children_of


def gone(pid: int, within_s: float = 5.0) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if not Path(f"/proc/{pid}").exists():
            return True
        time.sleep(0.02)
    return False


def test_a_closed_sandbox_is_gone_when_close_returns(bubblewrap):
    async def body():
        box = await bubblewrap.create()
        pid = box._family.lease.pid
        assert Path(f"/proc/{pid}").exists()
        await box.close()
        assert not Path(f"/proc/{pid}").exists()

    asyncio.run(body())


def test_a_forgotten_sandbox_is_ended_with_its_last_reference(bubblewrap):
    async def body():
        box = await bubblewrap.create()
        return box._family.lease.pid

    pid = asyncio.run(body())
    gc.collect()
    assert gone(pid)


def test_a_lease_that_is_not_renewed_runs_out(bubblewrap, monkeypatch):
    async def body():
        box = await Bubblewrap(ttl_s=1.0).create()
        box._family.lease._warden._live.discard(box._family.lease.number)  # as in an owner that hangs
        assert gone(box._family.lease.pid)
        await box.close()

    asyncio.run(body())


def test_a_renewed_lease_goes_on(bubblewrap):
    async def body():
        box = await Bubblewrap(ttl_s=4.0).create()
        await asyncio.sleep(5.0)
        assert (await box.exec(["true"])).exit_code == 0
        await box.close()

    asyncio.run(body())


def test_a_process_that_ended_before_its_sandbox_started_costs_one_sandbox(bubblewrap):
    async def body():
        first = await bubblewrap.create()
        known = children(first._family.lease)  # those of sandboxes that other tests keep as well
        box = await bubblewrap.create()
        (waiting,) = children(box._family.lease) - known - {box._family.lease.pid}
        os.kill(waiting, signal.SIGKILL)
        while Path(f"/proc/{waiting}/stat").read_text().rpartition(") ")[2][0] != "Z":
            await asyncio.sleep(0.01)
        with pytest.raises(SandboxLost):
            await bubblewrap.create()
        assert gone(waiting)  # reaped
        async with await bubblewrap.create() as other:
            assert (await other.exec(["true"])).exit_code == 0
        await box.close()
        await first.close()

    def children(lease) -> set[int]:
        return set(children_of(lease._warden.process.pid))

    gc.collect()
    asyncio.run(body())


def test_the_next_warden_sweeps_what_a_killed_one_left(state_dir, bubblewrap):
    script = (
        "import asyncio, os, signal\n"
        "from turngym.sandbox.bubblewrap import Bubblewrap\n"
        "box = asyncio.run(Bubblewrap().create())\n"
        "client = box._family.lease._warden\n"
        "print(client.process.pid, box._family.lease.pid, flush=True)\n"
        "{}"
        "os._exit(0)\n"
    )
    env = {**os.environ, "TURNGYM_STATE_DIR": str(state_dir)}

    def owner(extra: str = "") -> list[int]:
        done = subprocess.run(
            [sys.executable, "-c", script.format(extra)], env=env, capture_output=True, text=True, check=True
        )
        return [int(word) for word in done.stdout.split()]

    warden, box = owner("os.kill(client.process.pid, signal.SIGKILL)\n")
    assert gone(warden)
    assert gone(box)  # it dies with its warden
    assert [p.name for p in state_dir.iterdir()] == [str(warden)]
    other, _ = owner()
    assert gone(other)
    assert list(state_dir.iterdir()) == []
    assert not list(Path("/sys/fs/cgroup").glob(f"**/turngym-{warden}-*"))


def test_a_forked_child_gets_a_warden_of_its_own(bubblewrap):
    script = (
        "import asyncio, os\n"
        "from turngym.sandbox.bubblewrap import Bubblewrap\n"
        "box = asyncio.run(Bubblewrap().create())\n"
        "if os.fork() == 0:\n"
        "    try:\n"
        "        asyncio.run(box.exec(['true']))\n"
        "    except Exception as error:\n"
        "        print(type(error).__name__, flush=True)\n"
        "    other = asyncio.run(Bubblewrap().create())\n"
        "    print(asyncio.run(other.exec(['echo', 'child'])).stdout, flush=True)\n"
        "    asyncio.run(other.close())\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "print(asyncio.run(box.exec(['echo', 'parent'])).stdout)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["SandboxLost", "b'child\\n'", "b'parent\\n'"]


def test_the_state_folder_can_be_chosen(monkeypatch, tmp_path):
    monkeypatch.setenv("TURNGYM_STATE_DIR", str(tmp_path))
    assert module.state_dir() == tmp_path
