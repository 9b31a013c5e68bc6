"""Machines: frozen and thawed anywhere, whatever the agent left running; lost ones are faults and are replaced."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import pytest

from turngym.envs.tool.machines import Blueprint, Machine, Machines, scrub, wait
from turngym.errors import EnvFault, ForkDiverged
from turngym.sandbox.base import Limits, SandboxLost

T = TypeVar("T")
BLUEPRINT = Blueprint(limits=Limits(wall_s=10, memory_mib=256, disk_mib=16), warm="import json\nstart = 1")


@pytest.fixture(scope="module")
def stock(sandbox: str) -> Iterator[Machines]:
    made = Machines(BLUEPRINT)
    yield made
    wait(made.close())


@pytest.fixture
def on(stock: Machines) -> Callable[[Callable[[Machine], Awaitable[T]]], T]:
    """Run an async function on a fresh machine, and close that."""

    def run(body: Callable[[Machine], Awaitable[T]]) -> T:
        async def whole() -> T:
            machine = await stock.start()
            try:
                return await body(machine)
            finally:
                await machine.close()

        return asyncio.run(whole())

    return run


async def said(machine: Machine, code: str) -> str:
    return (await machine.cell("python", code, timeout_s=10)).text


def test_a_machine_starts_as_it_was_prepared_and_alone(on: Callable[..., None]) -> None:
    async def body(machine: Machine) -> None:
        assert await said(machine, "start") == "1"
        await said(machine, "start = 2; open('mine', 'w').write('x')")

    async def after(machine: Machine) -> None:
        assert await said(machine, "import os; start, os.listdir()") == "(1, [])"

    on(body)
    on(after)


def test_a_frozen_machine_is_thawed_after_the_one_that_froze_it_was_closed(stock: Machines) -> None:
    async def play() -> None:
        machine = await stock.start()
        await said(machine, "kept = [1]; open('file', 'w').write('a')")
        frozen = await machine.freeze()
        await said(machine, "kept.append(2); open('file', 'w').write('b')")
        await machine.close()
        one, two = await frozen.thaw(), await frozen.thaw()
        await said(one, "kept.append(3)")
        assert await said(one, "kept, open('file').read()") == "([1, 3], 'a')"
        assert await said(two, "kept, open('file').read()") == "([1], 'a')"
        await one.close()
        await two.close()

    asyncio.run(play())


def test_what_can_not_be_frozen_is_done_again(on: Callable[..., None]) -> None:
    async def body(machine: Machine) -> None:
        await machine.write("given.txt", b"given")
        await said(machine, "import threading, time; n = 5")
        await machine.freeze()
        await said(machine, "threading.Thread(target=time.sleep, args=(60,), daemon=True).start(); n += 1")
        await machine.write("later.txt", b"later")
        await machine.exec(["cp", "later.txt", "copy.txt"], timeout_s=10)
        frozen = await machine.freeze()
        assert len(frozen.since) == 3
        again = await frozen.thaw()
        expression = "n, threading.active_count(), open('given.txt').read(), open('copy.txt').read()"
        assert await said(again, expression) == await said(machine, expression) == "(6, 2, 'given', 'later')"
        assert await again.digest() == await machine.digest()
        await again.close()

    on(body)


def test_what_goes_differently_when_it_is_done_again_is_no_fork(on: Callable[..., None]) -> None:
    async def body(machine: Machine) -> None:
        await said(
            machine,
            "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        )
        await said(machine, "print(time.monotonic_ns())")
        with pytest.raises(ForkDiverged, match="cell was done again"):
            await (await machine.freeze()).thaw()

    on(body)


def test_snapshots_and_machines_that_nobody_holds_are_let_go(stock: Machines) -> None:
    async def play() -> Machine:
        machine = await stock.start()
        for _ in range(3):
            await machine.freeze()
        return machine

    machine = asyncio.run(play())
    family = machine._family
    before = family.users
    wait(machine.close())
    del machine
    gc.collect()
    assert family.users == before - 2  # the machine, and the only snapshot that was still its


def test_a_lost_family_is_a_fault_and_the_next_machine_is_of_another(sandbox: str) -> None:
    stock = Machines(BLUEPRINT)

    async def play() -> None:
        machine = await stock.start()
        await machine._family.anchor._family.end()  # type: ignore[attr-defined]
        with pytest.raises(SandboxLost):
            await said(machine, "1")
        assert issubclass(SandboxLost, EnvFault)
        other = await stock.start()
        assert await said(other, "start") == "1"
        await other.close()
        await machine.close()

    asyncio.run(play())
    wait(stock.close())


def test_many_machines_spread_over_families(sandbox: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turngym.envs.tool.machines.FAMILY_SIZE", 2)
    stock = Machines(BLUEPRINT)

    async def play() -> None:
        made = await asyncio.gather(*(stock.start() for _ in range(5)))
        assert len(stock._families) == 3
        assert [await said(machine, "start") for machine in made] == ["1"] * 5
        for machine in made:
            await machine.close()

    asyncio.run(play())
    wait(stock.close())


def test_a_preparation_that_fails_says_so(sandbox: str) -> None:
    with pytest.raises(EnvFault, match="ZeroDivisionError"):
        asyncio.run(Machines(Blueprint(limits=Limits(), warm="1 / 0")).start())


def test_the_same_code_hashes_the_same_everywhere(sandbox: str) -> None:
    async def play() -> list[str]:
        out = []
        for _ in range(2):
            stock = Machines(BLUEPRINT)
            machine = await stock.start()
            out.append(await said(machine, "hash('a'), list({'x', 'y', 'z', 'w'})"))
            await machine.close()
            await stock.close()
        return out

    one, two = asyncio.run(play())
    assert one == two


def test_addresses_are_blotted_out() -> None:
    assert scrub("<object at 0x7f00deadbeef>, 0x10, 0xFF") == "<object at 0x…>, 0x10, 0xFF"
