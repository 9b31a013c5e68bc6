"""Where the caller allows it, a fork that can't carry the live state is made by doing everything again."""

from __future__ import annotations

import asyncio
import logging

import pytest

from turngym.errors import ForkDiverged
from turngym.sandbox import history
from turngym.sandbox.base import ForkLost

THREAD = "import threading; e = threading.Event(); t = threading.Thread(target=e.wait, daemon=True); t.start(); x.append(2)"


async def show(box, code="x, open('log').read(), t.is_alive()"):
    result = await (await box.interpreter()).run(code)
    assert result.error is None, result.text
    return result.display.get("text/plain")


async def prepare(box):
    """Files, variables, a shell, and then a thread, which no fork can carry."""
    await box.write("log", b"zero ")
    await box.allow_replay()
    await show(box, "x = [1]; _ = open('log', 'a').write('one ')")
    await box.exec(["sh", "-c", "cat >> log"], stdin=b"two ")
    await (await box.interpreter("bash")).run("y=shell")
    await show(box, THREAD)


def test_a_fork_is_made_by_doing_everything_again_and_says_so(inside, caplog):
    async def body(box):
        await prepare(box)
        with caplog.at_level(logging.INFO, "turngym.sandbox.supervised"):
            forks = await box.fork(2)
        await show(forks[0], "x.append('fork'); _ = open('log', 'a').write('fork')")
        await forks[0].write("new", b"")
        seen = [await show(each) for each in (box, *forks)]
        shell = await (await forks[1].interpreter("bash")).run("echo $y; ls")
        for each in forks:
            await each.close()
        return seen, shell.stdout

    seen, shell = inside(body)
    assert seen == [
        "([1, 2], 'zero one two ', True)",
        "([1, 2, 'fork'], 'zero one two fork', True)",
        "([1, 2], 'zero one two ', True)",
    ]
    assert shell == b"shell\nlog\n"
    assert "thread" in caplog.text
    assert "done again" in caplog.text


def test_a_snapshot_is_restored_by_doing_everything_again(inside):
    async def body(box):
        await prepare(box)
        snapshot = await box.snapshot()
        await show(box, "x.append(3); _ = open('log', 'a').write('three')")
        (spawned,) = await box.spawn(snapshot)
        await box.restore(snapshot)
        seen = [await show(box), await show(spawned)]
        (fork,) = await spawned.fork()  # what was spawned may be forked by replay as well
        seen.append(await show(fork))
        await box.drop(snapshot)
        for each in (spawned, fork):
            await each.close()
        return seen

    assert inside(body) == ["([1, 2], 'zero one two ', True)"] * 3


def test_a_chain_of_forks_of_forks_has_no_end(inside):
    async def body(box):
        await box.allow_replay()
        python = await box.interpreter()
        await python.run("x = 0")
        for depth in range(1, 46):  # the kernel nests namespaces 32 deep
            assert (await python.run(f"x += 1; _ = open('f', 'a').write('{depth} ')")).ok
            (fork,) = await box.fork()
            assert await show(fork, "x, len(open('f').read().split())") == f"({depth}, {depth})"
            await fork.close()

    inside(body)


def test_something_else_the_second_time_is_a_divergence(inside):
    async def body(box):
        await box.allow_replay()
        await show(box, "import os; x = 1")
        await show(box, "os.urandom(4)")
        await show(box, THREAD.replace("x.append(2)", "x"))
        with pytest.raises(ForkDiverged, match=r"act 1 of 3 .*os\.urandom") as caught:
            await box.fork()
        assert await show(box, "x") == "1"
        return caught.value.turn

    assert inside(body) == 1


def test_addresses_of_objects_are_no_divergence(inside):
    async def body(box):
        await box.allow_replay()
        await show(box, "class C: pass\nx = [C()]")
        await show(box, "print(x); x")
        await show(box, THREAD)
        (fork,) = await box.fork()
        await fork.close()

    inside(body)


def test_while_something_runs_nothing_is_done_again(inside):
    async def body(box):
        await box.allow_replay()
        running = asyncio.create_task(box.exec(["sleep", "0.6"]))
        await asyncio.sleep(0.2)
        with pytest.raises(ForkLost, match="running command"):
            await box.fork()
        with pytest.raises(ForkLost, match="running command"):
            await box.snapshot()
        await running

    inside(body)


def test_too_much_to_do_again_is_lost(inside, monkeypatch):
    monkeypatch.setattr("turngym.sandbox.supervised.MAX_BYTES", 1000)

    async def body(box):
        await box.allow_replay()
        await box.write("f", b"x" * 2000)
        await show(box, "x = []")
        await show(box, THREAD)
        with pytest.raises(ForkLost, match="thread"):
            await box.fork()

    inside(body)
    assert history.MAX_BYTES > 1000


def test_without_leave_nothing_is_done_again(inside):
    async def body(box):
        await show(box, "x = []")
        await show(box, THREAD)
        with pytest.raises(ForkLost, match="thread"):
            await box.fork()
        with pytest.raises(ForkLost, match="thread"):
            await box.allow_replay()

    inside(body)
