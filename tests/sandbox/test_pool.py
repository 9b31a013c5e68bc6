"""A pool hands out clean sandboxes only."""

from __future__ import annotations

import asyncio
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from turngym.errors import ConfigError
from turngym.sandbox.base import SandboxLost
from turngym.sandbox.pool import Pool

POLLUTION = (
    "echo x > new; mkdir -p a/b; echo y > a/b/c",
    "rm -rf given",
    "chmod 000 given; chmod 000 .",
    "echo changed > given/file",
    "ln -s / root; mkfifo pipe",
    "echo x > /tmp/t; echo x > /dev/shm/s; echo x > /home/agent/.profile",
    "head -c 100M /dev/zero > big",
    "(setsid sleep 100 &)",
)


async def prepare(box):
    await box.write("given/file", b"as given")
    python = await box.interpreter()
    await python.run("state = ['clean']")


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(POLLUTION), min_size=1, max_size=5))
def test_what_comes_back_dirty_is_handed_out_clean(bubblewrap, acts):
    async def body():
        pool = Pool(bubblewrap, size=1, prepare=prepare)
        for act in acts:
            async with pool.take() as box:
                assert await box.read("given/file") == b"as given"
                assert (await box.exec(["ls", "-A", ".", "/tmp", "/dev/shm", "/home/agent"])).stdout.split() == [
                    b".:", b"given", b"/dev/shm:", b"/home/agent:", b"/tmp:",
                ]  # fmt: skip
                python = await box.interpreter()
                assert (await python.run("state")).display["text/plain"] == "['clean']"
                await python.run("state.append('dirty')")
                await box.exec(["sh", "-c", act])
        await pool.close()
        assert pool.counts.made == 1
        assert pool.counts.taken == len(acts)

    asyncio.run(body())


def test_a_broken_sandbox_is_replaced_and_never_handed_out(bubblewrap):
    async def body():
        pool = Pool(bubblewrap, size=1)
        async with pool.take() as box:
            os.kill(box._family.lease.pid, 9)
        async with pool.take() as other:
            assert (await other.exec(["echo", "fine"])).stdout == b"fine\n"
        await pool.close()
        assert (pool.counts.made, pool.counts.discarded) == (
            2,
            2,
        )  # the broken one, and the one of the closed pool

    asyncio.run(body())


def test_one_that_differs_from_its_snapshot_is_discarded(bubblewrap, monkeypatch):
    async def body():
        pool = Pool(bubblewrap, size=1)
        async with pool.take() as box:
            restore = box.restore

            async def forgetful(snapshot):
                await restore(snapshot)
                await box.write("left", b"over")

            monkeypatch.setattr(box, "restore", forgetful)
        async with pool.take() as other:
            assert other is not box
            assert (await other.exec(["ls"])).stdout == b""
        await pool.close()

    asyncio.run(body())


def test_at_most_size_are_out_at_once(bubblewrap):
    async def body():
        pool = Pool(bubblewrap, size=2)
        await pool.fill()
        out, most = 0, 0

        async def use():
            nonlocal out, most
            async with pool.take() as box:
                out += 1
                most = max(most, out)
                await box.exec(["true"])
                out -= 1

        await asyncio.gather(*(use() for _ in range(6)))
        await pool.close()
        assert most == 2
        assert pool.counts.made == 2
        with pytest.raises(SandboxLost, match="closed"):
            async with pool.take():
                pass

    asyncio.run(body())


def test_filling_counts_those_in_use_and_keeps_what_could_be_started(bubblewrap, monkeypatch):
    async def body():
        pool = Pool(bubblewrap, size=2)
        async with pool.take():
            await pool.fill()
            assert pool.counts.made == 2
            await pool.fill()
            assert pool.counts.made == 2
        await pool.close()

        other = Pool(bubblewrap, size=3)
        make, calls = bubblewrap.create, []

        async def second_fails(*args, **kwargs):
            calls.append(None)
            if len(calls) == 2:
                raise SandboxLost("no room")
            return await make(*args, **kwargs)

        monkeypatch.setattr(bubblewrap, "create", second_fails)
        with pytest.raises(SandboxLost, match="no room"):
            await other.fill()
        assert other.counts.made == 2
        await other.fill()
        assert other.counts.made == 3
        await other.close()

    asyncio.run(body())


def test_whatever_goes_wrong_in_a_reset_the_sandbox_is_replaced(bubblewrap):
    async def body():
        pool = Pool(bubblewrap, size=1)
        async with pool.take() as box:
            await box._family.ask({"op": "drop", "snaps": [2]})  # the clean snapshot
        async with pool.take() as other:
            assert (await other.exec(["true"])).exit_code == 0
            assert pool.counts.discarded == 1
        await pool.close()

    asyncio.run(body())


def test_a_pool_of_nothing_is_refused(bubblewrap):
    with pytest.raises(ConfigError, match="at least 1"):
        Pool(bubblewrap, size=0)
