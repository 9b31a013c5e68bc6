"""`unsafe-process` keeps the plain part of the contract, and only for those who ask for it by name."""

from __future__ import annotations

import asyncio
import tempfile
import time

import pytest

from turngym.errors import ConfigError, MissingDependency
from turngym.sandbox.base import Limits, backend, backends
from turngym.sandbox.bubblewrap import Bubblewrap


def test_it_is_never_the_best_backend(monkeypatch):
    monkeypatch.setattr(Bubblewrap, "unavailable", classmethod(lambda cls: "not here."))
    assert "unsafe-process" in backends()
    with pytest.raises(MissingDependency, match="asked for by name"):
        backend()


def test_commands_files_limits_and_forks():
    async def body():
        async with await backend("unsafe-process").create(Limits(output_kib=1)) as box:
            await box.write("a/b", b"one")
            assert (await box.exec(["cat"], stdin=b"\xff")).stdout == b"\xff"
            assert (await box.exec(["sleep", "9"], timeout_s=0.2)).limit_hit == "wall"
            assert (await box.exec(["no-such-program"])).exit_code == 127
            flood = await box.exec(["head", "-c", "3000", "/dev/zero"])
            assert (len(flood.stdout), flood.stdout_dropped, flood.limit_hit) == (1024, 1976, "output")
            before = await box.digest()
            snapshot = await box.snapshot()
            (fork,) = await box.fork()
            await box.write("/workspace/a/b", b"two")
            assert await fork.read("a/b") == b"one"
            await box.restore(snapshot)
            assert await box.digest() == before
            await box.drop(snapshot)
            with pytest.raises(ConfigError, match="dropped"):
                await box.restore(snapshot)
            with pytest.raises(OSError, match="outside"):
                await box.read("../../etc/passwd")
            with pytest.raises(ConfigError, match="bubblewrap"):
                await box.interpreter()
            await fork.close()

    asyncio.run(body())


def test_time_is_up_for_those_too_who_left_the_process_group():
    async def body():
        async with await backend("unsafe-process").create() as box:
            started = time.monotonic()
            result = await box.exec(["sh", "-c", "echo begun; setsid sleep 4 & sleep 4"], timeout_s=0.5)
            assert time.monotonic() - started < 3
            return result.limit_hit, result.stdout

    assert asyncio.run(body()) == ("wall", b"begun\n")


def test_snapshots_are_gone_with_the_last_sandbox_of_their_family(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    async def body():
        box = await backend("unsafe-process").create()
        await box.write("f", b"x")
        snapshot = await box.snapshot()
        (fork,) = await box.fork()
        await box.close()
        await fork.write("f", b"y")
        await fork.restore(snapshot)
        assert await fork.read("f") == b"x"
        await fork.close()

    asyncio.run(body())
    assert list(tmp_path.iterdir()) == []


def test_a_backend_without_images_says_so():
    with pytest.raises(ConfigError, match="'docker:debian'"):
        backend("unsafe-process:debian")
