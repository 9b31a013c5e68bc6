"""The same contract behind a container engine, and what the engine itself is asked to enforce."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engines import require_engine
from missing import skip_or_fail
from turngym.errors import MissingDependency
from turngym.sandbox import engine, image, reaper, selfcheck
from turngym.sandbox.attacks import ATTACKS
from turngym.sandbox.base import Limits, SandboxLost, backend
from turngym.sandbox.docker import Docker
from turngym.sandbox.pool import Pool

SMALL = Limits(wall_s=20, cpu_s=10, memory_mib=256, pids=32, disk_mib=16, files=2000, output_kib=64)
QUICK = (
    "read a file of the host",
    "/sys and control groups",
    "ask a name server",
    "session: write to what siblings share",
)


KEPT: set[str] = set()
"""Containers that environments of other tests keep ready for the next episode."""


@pytest.fixture(scope="module")
def docker() -> Docker:
    require_engine()
    gc.collect()
    KEPT.update(containers())
    return Docker()


def inside(docker, body, limits=SMALL):
    async def whole():
        async with await docker.create(limits) as box:
            return await body(box)

    return asyncio.run(whole())


def containers() -> list[str]:
    """Those of this process, without the ones that other tests keep."""
    label = f"{engine.OWNER}={engine.owner_label(os.getpid())}"
    found = [each["Id"] for each in engine.client().containers(all=True, filters={"label": label})]
    return [name for name in found if name not in KEPT]


def gone(within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while containers() and time.monotonic() < deadline:
        time.sleep(0.1)
    return not containers()


def test_the_engine_builds_the_outer_walls(docker):
    async def body(box):
        (container,) = containers()
        return engine.client().inspect_container(container)

    seen = inside(docker, body)
    host = seen["HostConfig"]
    assert host["CapDrop"] == ["ALL"]
    assert not host["CapAdd"]
    assert not host["Privileged"]
    assert host["ReadonlyRootfs"]
    assert "no-new-privileges" in host["SecurityOpt"]
    assert any(option.startswith("seccomp={") for option in host["SecurityOpt"])
    assert host["NetworkMode"] == "none"
    assert host["Memory"] == host["MemorySwap"] == 8 * (256 + 16) << 20
    assert host["PidsLimit"] > 0
    assert 0 < host["NanoCpus"] <= 2e9
    assert int(seen["Config"]["User"].split(":")[0]) > 60_000


def test_what_runs_outside_of_the_inner_walls_has_no_privileges_either(docker):
    """The first process of the container, as the engine's machine sees it."""

    async def body(box):
        (container,) = containers()
        pid = engine.client().inspect_container(container)["State"]["Pid"]
        status = Path(f"/proc/{pid}/status").read_text()
        return dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)

    fields = inside(docker, body)
    assert fields["NoNewPrivs"] == "1"
    assert fields["Seccomp"] == "2"
    assert set(fields["Uid"].split()) == {"61613"}


def test_commands_files_sessions_and_forks(docker):
    async def body(box):
        await box.write("dir/file", b"\xff\0")
        python, bash = await box.interpreter(), await box.interpreter("bash")
        await python.run("x = [1]; f = open('log', 'w'); _ = f.write('one')")
        await bash.run("y=1; cd /tmp")
        snapshot = await box.snapshot()
        (fork,) = await box.fork()
        await python.run("x.append(2)")
        await fork.write("new", b"")
        seen = [
            (await box.exec(["cat"], stdin=b"in" * 100_000)).stdout_dropped,
            await box.read("dir/file"),
            (
                await (await fork.interpreter()).run("_ = f.write(' two'); f.flush(); x, open('log').read()")
            ).text,
            (await python.run("x")).text,
            (await (await fork.interpreter("bash")).run("echo $y; pwd")).text,
            (await box.exec(["ls"])).text.split(),
        ]
        await box.restore(snapshot)
        seen.append((await (await box.interpreter()).run("x")).text)
        await fork.close()
        return seen

    assert inside(docker, body) == [
        200_000 - (64 << 10), b"\xff\0", "([1], 'one two')", "[1, 2]", "1\n/tmp", ["dir", "log"], "[1]",
    ]  # fmt: skip


def test_it_keeps_the_contract_and_refuses_a_few_attacks(docker, monkeypatch):
    monkeypatch.setattr(selfcheck, "ATTACKS", [a for a in ATTACKS if a.name in QUICK])
    report = asyncio.run(selfcheck.check(docker))
    assert [f for f in (*report.conformance, *report.attacks) if not f.ok] == []
    assert len(report.attacks) == len(QUICK)


@pytest.mark.slow
def test_it_refuses_every_attack(docker):
    report = asyncio.run(selfcheck.check(docker))
    assert [f for f in (*report.conformance, *report.attacks) if not f.ok] == []


def test_a_pool_hands_it_out_clean(docker):
    async def body():
        pool = Pool(docker, size=1, limits=SMALL)
        for _ in range(2):
            async with pool.take() as box:
                assert (await box.exec(["ls"])).stdout == b""
                await box.exec(["sh", "-c", "echo x > left"])
        await pool.close()
        return pool.counts

    counts = asyncio.run(body())
    assert (counts.made, counts.taken) == (1, 2)


# ---------------------------------------------------------------------- leases


def test_a_closed_sandbox_is_gone_when_close_returns(docker):
    inside(docker, lambda box: box.exec(["true"]))
    assert containers() == []


def test_a_forgotten_sandbox_is_removed_with_its_last_reference(docker):
    async def body():
        await docker.create(SMALL)

    asyncio.run(body())
    gc.collect()
    assert gone(within_s=20)


def test_a_container_whose_owner_is_silent_ends_by_itself(docker, monkeypatch):
    """As with an engine on another machine, that did not hear of the owner's end."""
    monkeypatch.setattr("turngym.sandbox.docker._keep_alive", lambda *_: None)
    monkeypatch.setattr(reaper.Reaper, "end", lambda *_: None)

    async def body():
        box = await Docker(ttl_s=2.0).create(SMALL)
        assert containers()
        assert gone(within_s=20)
        with pytest.raises(SandboxLost):
            await box.exec(["true"])
        await box.close()

    asyncio.run(body())


def test_a_killed_container_is_a_fault(docker):
    async def body(box):
        for container in containers():
            engine.remove(container)
        with pytest.raises(SandboxLost, match="gone"):
            await box.exec(["true"])

    inside(docker, body)


def test_the_next_owner_sweeps_what_a_dead_one_left(docker):
    """A container that was never started has no connection that could close."""
    config = docker._container(SMALL, forkable=True)
    config["Labels"][engine.OWNER] = "999999999@1"
    orphan = engine.client().create_container_from_config(config)["Id"]
    made = reaper.Reaper(30.0)
    try:
        deadline = time.monotonic() + 20
        left = [orphan]
        while left and time.monotonic() < deadline:
            time.sleep(0.2)
            left = [each for each in engine.client().containers(all=True, quiet=True) if each["Id"] == orphan]
        assert left == []
    finally:
        made.close()


# ---------------------------------------------------------------------- images


@contextmanager
def variant(changes: str) -> Iterator[str]:
    """The default image with a folder that everybody may write to and other settings, under another name."""
    name = "turngym-test-variant:latest"
    client = engine.client()
    made = client.create_container(
        image.DEFAULT_IMAGE,
        ["mkdir", "-m", "777", "/data"],
        host_config=client.create_host_config(network_mode="none"),
    )["Id"]
    client.start(made)
    client.wait(made)
    client.commit(made, name.partition(":")[0], "latest", changes=changes)
    client.remove_container(made)
    try:
        yield name
    finally:
        client.remove_image(name)


def test_variables_of_the_image_are_set_and_its_volumes_are_read_only(docker):
    with variant("ENV FLAVOUR=vanilla HOME=/nowhere\nVOLUME /data") as name:
        result = inside(
            Docker(name),
            lambda box: box.exec(["sh", "-c", "echo $FLAVOUR $HOME; mkdir /data/x || echo refused"]),
        )
    assert result.stdout == b"vanilla /home/agent\nrefused\n"


def test_an_image_without_python_is_named(docker, tmp_path):
    name = "turngym-test-bare:latest"
    with tarfile.open(tmp_path / "bare.tar", "w") as tar:
        tar.add(shutil.which("busybox"), "bin/sh")
    engine.import_image(tmp_path / "bare.tar", name)
    try:
        with pytest.raises(MissingDependency, match=f"{name} has no python3"):
            inside(Docker(name), lambda box: box.exec(["true"]))
    finally:
        engine.client().remove_image(name)
    assert containers() == []


@pytest.mark.slow
def test_a_debian_that_was_made_here_holds_sandboxes_and_refuses_a_few_attacks(docker, tmp_path, monkeypatch):
    if shutil.which("debootstrap") is None or os.geteuid() != 0:
        pytest.skip("debootstrap has to be installed, and to be run by root")
    name = "turngym-test-debian:latest"
    image.build("debian", tmp_path / "debian.tar")
    engine.import_image(tmp_path / "debian.tar", name)
    monkeypatch.setattr(selfcheck, "ATTACKS", [a for a in ATTACKS if a.name in QUICK])
    try:
        report = asyncio.run(selfcheck.check(Docker(name)))
        release = inside(Docker(name), lambda box: box.exec(["cat", "/etc/os-release"]))
    finally:
        engine.client().remove_image(name)
    assert [f for f in (*report.conformance, *report.attacks) if not f.ok] == []
    assert b"ID=debian" in release.stdout


def test_a_missing_image_is_an_error_with_the_command_that_gets_it(docker):
    with pytest.raises(MissingDependency, match=r"`docker pull no-such-image:7`"):
        inside(Docker("no-such-image:7"), lambda box: box.exec(["true"]))
    with pytest.raises(MissingDependency, match=r"`docker pull no-such-image:7`"):
        inside(backend("docker:no-such-image:7"), lambda box: box.exec(["true"]))
    with pytest.raises(MissingDependency, match=r"`docker pull no-such-image:7`"):
        asyncio.run(selfcheck.check(Docker("no-such-image:7")))


def test_an_engine_that_does_not_run_is_an_error_with_the_command_that_starts_it(monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing.sock")
    with pytest.raises(
        MissingDependency, match=r"no container engine answers at unix://.*systemctl start docker"
    ):
        backend("docker")


# ---------------------------------------------------------------------- Podman


@pytest.fixture
def podman(monkeypatch):
    """Podman's own engine, on a socket of its own."""
    if shutil.which("podman") is None:
        skip_or_fail("podman is not installed: apt-get install podman")
    home = Path(tempfile.mkdtemp(prefix="podman", dir="/tmp"))  # short: it counts the letters of its folders
    socket = home / "podman.sock"
    words = ["podman", "--root", str(home / "root"), "--runroot", str(home / "run")]
    words += ["--cgroup-manager", "cgroupfs", "--events-backend", "file"]
    if runc := shutil.which("runc"):  # crun does not run where both versions of control groups are mounted
        words += ["--runtime", runc]
    log = (home / "log").open("w")
    served = subprocess.Popen([*words, "system", "service", "--time", "0", f"unix://{socket}"], stderr=log)
    deadline = time.monotonic() + 30
    while not socket.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{socket}")
    yield Docker()
    served.terminate()
    served.wait()
    log.close()
    subprocess.run([*words, "system", "reset", "--force"], check=False, capture_output=True)
    shutil.rmtree(home)


@pytest.mark.slow
def test_podmans_socket_is_spoken_to_alike(podman, tmp_path):
    image.build("busybox", tmp_path / "image.tar")
    engine.import_image(tmp_path / "image.tar", image.DEFAULT_IMAGE)
    assert engine.machine().podman

    async def body(box):
        python = await box.interpreter()
        await python.run("x = 1; open('f', 'w').write('f')")
        (fork,) = await box.fork()
        await python.run("x = 2")
        seen = (await (await fork.interpreter()).run("x, open('f').read()")).text
        refused = await box.exec(["sh", "-c", "touch /usr/x || id -u"])
        await fork.close()
        return seen, refused.stdout

    assert inside(podman, body) == ("(1, 'f')", b"1000\n")
    assert containers() == []


def test_an_engine_that_was_stopped_is_named_with_what_starts_it(monkeypatch, tmp_path):
    class Stopped:
        closed = False

        def close(self):
            self.closed = True

    host = f"unix://{tmp_path}/docker.sock"
    monkeypatch.setenv("DOCKER_HOST", host)
    connection = Stopped()
    monkeypatch.setattr(engine, "_clients", {(os.getpid(), host): connection})
    assert "dockerd &" in Docker.unavailable()
    assert connection.closed
