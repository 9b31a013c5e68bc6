"""Many forks agree with their parents, and many episodes leave nothing behind."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from turngym.sandbox.base import Limits
from turngym.sandbox.pool import Pool

TURNS = (
    "n += 1; names.append(f'v{n}')",
    "open(f'f{n}', 'w').write(str(n))",
    "names.sort(reverse=n % 2 == 0)",
    "os.makedirs(f'/workspace/d{n % 3}', exist_ok=True); os.chdir(f'/workspace/d{n % 3}')",
    "log.write(f'{n};'); log.flush()",
    "rng = random.Random(n); n += rng.randrange(3)",
)
LOOK = "n, names, os.getcwd(), log.tell(), sorted(os.listdir('/workspace')), rng.random()"


async def forks_agree(bubblewrap, count: int) -> None:
    """Each fork, taken at a random turn, sees what its parent sees; afterwards each sees its own turns only."""
    chance = random.Random(0)
    done = 0
    while done < count:
        async with await bubblewrap.create(Limits(disk_mib=16)) as box:
            python = await box.interpreter()
            start = "import os, random; n, names, rng = 0, [], random.Random(0); log = open('/workspace/log', 'w')"
            assert (await python.run(start)).ok
            for _ in range(chance.randrange(1, 12)):
                if (done := done + 1) > count:
                    return
                for turn in chance.choices(TURNS, k=chance.randrange(1, 4)):
                    assert (await python.run(turn)).ok
                (fork,) = await box.fork()
                other = await fork.interpreter()
                seen = (await python.run(LOOK)).display["text/plain"]
                assert (await other.run(LOOK)).display["text/plain"] == seen
                await other.run("n += 1000; open('/workspace/only_fork', 'w').close()")
                after = (await python.run(LOOK)).display["text/plain"]
                assert "only_fork" not in after
                assert after.rpartition(",")[0] == seen.rpartition(",")[0]  # all but the next random number
                await fork.close()


def test_forks_at_random_turns_agree(bubblewrap):
    asyncio.run(forks_agree(bubblewrap, 20))


@pytest.mark.slow
def test_a_thousand_forks_at_random_turns_agree(bubblewrap):
    asyncio.run(forks_agree(bubblewrap, 1000))


def footprint(warden: int) -> tuple[int, ...]:
    """Descriptors of this process, then descriptors, mounts, number and resident KiB of the warden and all below."""
    listing = subprocess.run(
        ["ps", "-eo", "pid=,ppid=,rss="], capture_output=True, text=True, check=True
    ).stdout
    rows = [tuple(int(word) for word in line.split()) for line in listing.splitlines()]
    below = {warden}
    for _ in range(8):
        below |= {pid for pid, parent, _ in rows if parent in below}
    descriptors = mounts = 0
    for pid in below:
        with suppress(
            OSError
        ):  # a process that ends between the listing and the look has nothing left to count
            descriptors += len(os.listdir(f"/proc/{pid}/fd"))
            mounts += len(Path(f"/proc/{pid}/mountinfo").read_text().splitlines())
    resident = sum(rss for pid, _, rss in rows if pid in below)
    return len(os.listdir("/proc/self/fd")), descriptors, mounts, len(below), resident


async def settled(warden: int, within_s: float = 20.0) -> tuple[int, ...]:
    """The footprint once it stands still for a second: the kernel takes its time to end processes."""
    deadline = time.monotonic() + within_s
    seen, since = footprint(warden), time.monotonic()
    while time.monotonic() < min(deadline, since + 1.0):
        await asyncio.sleep(0.2)
        now = footprint(warden)
        if now[:4] != seen[:4]:
            since = time.monotonic()
        seen = now
    return seen


def assert_steady(before: tuple[int, ...], after: tuple[int, ...]) -> None:
    """Nothing was left, but for a network that waits for the next command."""
    assert after[0] == before[0]
    assert after[1] <= before[1] + 1
    assert after[2:4] == before[2:4]


async def episodes(bubblewrap, count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The footprint after a tenth of `count` episodes, and after all."""
    pool = Pool(bubblewrap, size=1, limits=Limits(disk_mib=16))
    early: tuple[int, ...] = ()
    for i in range(count):
        async with pool.take() as box:
            python = await box.interpreter()
            await python.run("x = bytearray(1 << 20); open('f', 'w').write('x' * 10_000)")
            await box.exec(["sh", "-c", "echo x > g; sleep 100 &"])
            (fork,) = await box.fork()
            await (await fork.interpreter()).run("x[0] = 1")
            await fork.close()
            if i % 7 == 0:
                await python.run("import os; os._exit(1)")
        if i == count // 10:
            async with pool.take() as box:
                early = await settled(box._family.lease._warden.process.pid)
    async with pool.take() as box:
        late = await settled(box._family.lease._warden.process.pid)
    await pool.close()
    return early, late


@pytest.mark.parametrize("count", [60, pytest.param(5000, marks=pytest.mark.slow)])
def test_episodes_leave_no_descriptor_process_or_memory(bubblewrap, count):
    early, late = asyncio.run(episodes(bubblewrap, count))
    assert_steady(early, late)
    assert late[4] < early[4] + 4096  # KiB; one leaked layer or object an episode would be more


def test_a_fork_on_the_heels_of_a_request_leaves_no_process(bubblewrap):
    """What is prepared for the next command must not be prepared in a sandbox that has just gone on as another."""

    async def body() -> tuple[tuple[int, ...], tuple[int, ...]]:
        async with await bubblewrap.create(Limits(disk_mib=16)) as box:
            warden = box._family.lease._warden.process.pid
            await box.drop(await box.snapshot())
            before = await settled(warden)
            for _ in range(5):
                _, snapshot = await asyncio.gather(box.digest(), box.snapshot())
                await box.drop(snapshot)
            return before, await settled(warden)

    before, after = asyncio.run(body())
    assert_steady(before, after)
