"""The default backend keeps the contract of `base.Sandbox`."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import subprocess
import sys
import time
import wsgiref
from pathlib import Path

import pytest

from turngym.errors import ConfigError, EnvFault, UnknownName
from turngym.sandbox.base import ForkLost, Limits, SandboxLost, backend
from turngym.sandbox.bubblewrap import Bubblewrap
from turngym.sandbox.inside.sessions import children_of
from turngym.sandbox.warden import group_parents, unused_id


def test_a_command_gets_its_arguments_input_environment_and_folder(inside):
    async def body(box):
        await box.write("d/x", b"")
        script = 'cat; printf "%s|%s|" "$1" "$V"; pwd; echo oops >&2; exit 3'
        return await box.exec(["sh", "-c", script, "sh", "a b"], stdin=b"\0in\xff", cwd="d", env={"V": "ü"})

    result = inside(body)
    assert result.exit_code == 3
    assert result.stdout == b"\0in\xff" + "a b|ü|/workspace/d\n".encode()
    assert result.stderr == b"oops\n"
    assert result.limit_hit is None
    assert 0 < result.wall_s < 10
    assert result.peak_memory_mib > 0


def test_a_command_that_does_not_exist_is_a_result(inside):
    result = inside(lambda box: box.exec(["no-such-program"]))
    assert result.exit_code == 127
    assert b"no-such-program" in result.stderr


def test_a_folder_that_does_not_exist_is_a_result(inside):
    result = inside(lambda box: box.exec(["true"], cwd="nowhere"))
    assert result.exit_code == 127


def test_a_signal_is_told_as_a_shell_tells_it(inside):
    assert inside(lambda box: box.exec(["sh", "-c", "kill -TERM $$"])).exit_code == 128 + 15


def test_the_environment_is_clean(inside, monkeypatch):
    monkeypatch.setenv("TURNGYM_SECRET", "1")
    result = inside(lambda box: box.exec(["env"]))
    assert {line.split(b"=")[0] for line in result.stdout.splitlines()} == {
        b"PATH",
        b"HOME",
        b"USER",
        b"LANG",
        b"TMPDIR",
        b"PYTHONHASHSEED",
        b"PYTHONDONTWRITEBYTECODE",
    }


def test_a_timeout_ends_the_whole_tree_and_nothing_else(inside):
    async def body(box):
        other = asyncio.create_task(box.exec(["sh", "-c", "sleep 1.5; echo done"]))
        await asyncio.sleep(0.1)
        tree = "setsid sh -c 'sleep 30 & sleep 30' & (sleep 30 &) ; sleep 30"
        started = time.monotonic()
        result = await box.exec(["sh", "-c", tree], timeout_s=0.5)
        elapsed = time.monotonic() - started
        return result, elapsed, await other

    result, elapsed, other = inside(body)
    assert result.limit_hit == "wall"
    assert result.exit_code == 137
    assert elapsed < 5
    assert other.stdout == b"done\n"


def test_what_a_command_leaves_behind_ends_with_it(inside):
    async def body(box):
        await box.exec(["sh", "-c", "setsid sh -c 'sleep 0.4; echo late > late' & true"])
        await asyncio.sleep(0.8)
        with pytest.raises(FileNotFoundError):
            await box.read("late")

    inside(body)


NETWORK = "readlink /proc/self/ns/net; cat /proc/net/dev /proc/net/sockstat"
TALK = """
import socket
server = socket.create_server(("127.0.0.1", 8000))
client = socket.create_connection(("127.0.0.1", 8000))
server.accept()[0].close()
client.close()
"""


def test_a_network_that_a_command_has_touched_serves_no_other(inside):
    async def body(box):
        quiet = [await seen(box) for _ in range(4)]
        talked = await box.exec(["python3", "-c", f"{TALK}print(open('/proc/net/dev').read())"])
        assert talked.exit_code == 0, talked.stderr
        return quiet, talked.stdout, [await seen(box) for _ in range(5)]

    async def seen(box):
        return (await box.exec(["sh", "-c", NETWORK])).stdout.splitlines()

    quiet, talked, after = inside(body)
    assert len({each[0] for each in quiet}) < len(quiet), "one that is as it was serves again"
    assert talked.splitlines()[2] != quiet[0][3]
    assert all(each[1:] == quiet[0][1:] for each in after)


def test_output_past_the_cap_is_counted_and_dropped(inside):
    result = inside(
        lambda box: box.exec(["sh", "-c", "head -c 1000000 /dev/zero; head -c 70000 /dev/zero >&2"])
    )
    assert len(result.stdout) == len(result.stderr) == 64 << 10
    assert result.stdout_dropped == 1_000_000 - 65_536
    assert result.stderr_dropped == 70_000 - 65_536
    assert result.limit_hit == "output"
    assert "934464 bytes dropped" in result.text


def test_a_large_input_reaches_the_command_and_a_deaf_command_is_no_fault(inside):
    data = os.urandom(3_000_000)

    async def body(box):
        heard = await box.exec(["sha256sum"], stdin=data)
        deaf = await box.exec(["true"], stdin=data)
        return heard, deaf

    heard, deaf = inside(body)
    assert heard.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()
    assert deaf.exit_code == 0


def test_a_caller_that_is_cancelled_takes_its_command_and_its_cell_along(inside):
    async def body(box):
        python = await box.interpreter()
        await python.run("x = 1")
        for start in (lambda: box.exec(["sleep", "30"]), lambda: python.run("while True: pass")):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(start(), 0.3)
        deadline = time.monotonic() + 10
        while True:
            try:
                (fork,) = await box.fork()  # refused while anything runs
                break
            except ForkLost:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.1)
        return (await (await fork.interpreter()).run("x")).display["text/plain"]

    assert inside(body) == "1"


def test_commands_run_side_by_side(inside):
    async def body(box):
        started = time.monotonic()
        results = await asyncio.gather(*(box.exec(["sh", "-c", f"sleep 0.5; echo {i}"]) for i in range(6)))
        return time.monotonic() - started, results

    elapsed, results = inside(body)
    assert [int(r.stdout) for r in results] == list(range(6))
    assert elapsed < 2.5


@pytest.mark.parametrize(
    ("script", "limit"),
    [
        ("x = []\nwhile True: x.append(bytearray(8 << 20))", "memory"),
        (
            "import os\nfor _ in range(8):\n  if os.fork() == 0:\n    x = b'x' * (100 << 20)\n    import time; time.sleep(9)\ntime = __import__('time'); time.sleep(9)",
            "memory",
        ),
        ("open('big', 'wb').write(b'x' * (20 << 20))", "disk"),
        ("for i in range(3000): open(str(i), 'w').close()", "disk"),
        ("import os, time\nfor _ in range(100): os.fork() or time.sleep(5)", "pids"),
    ],
)
def test_limits_hold(inside, script, limit):
    result = inside(lambda box: box.exec(["python3", "-c", script]))
    assert result.exit_code != 0
    # One process alone is refused by the kernel before the sampling sees it, or the other way round.
    refusal = {"memory": b"MemoryError", "pids": b"BlockingIOError"}.get(limit, b"-")
    assert limit == result.limit_hit or refusal in result.stderr


def test_cpu_time_is_limited(bubblewrap):
    async def body():
        async with await bubblewrap.create(Limits(cpu_s=1)) as box:
            return await box.exec(["python3", "-c", "while True: pass"], timeout_s=100)

    result = asyncio.run(body())
    assert result.limit_hit == "cpu"
    # The kernel counts towards the limit by whole ticks, and towards `cpu_s` exactly.
    assert 0.5 < result.cpu_s < 3


@pytest.mark.parametrize(
    "path", ["a", "/workspace/deep/er/ünï – 文.bin", "/tmp/t", "/home/agent/.x", "/dev/shm/s", " \n'"]
)
def test_files_come_back_as_they_went(inside, path):
    data = bytes(range(256)) * 300

    async def body(box):
        await box.write(path, b"longer than what follows" * 5000)
        await box.write(path, data, mode=0o750)
        seen = await box.exec(["stat", "-c", "%a %s", path])
        return await box.read(path), seen.stdout

    assert inside(body) == (data, b"750 76800\n")


@pytest.mark.parametrize(
    ("make", "path", "number"),
    [
        ("ln -s /etc/passwd l", "l", errno.ENOENT),
        ("ln -s /proc/self/environ l", "l", errno.ENOENT),
        ("ln -s ../../../../../../etc/hostname l", "l", errno.ENOENT),
        ("true", "../../../../proc/1/cmdline", errno.ENOENT),
        ("mkfifo l", "l", errno.EINVAL),
        ("mkdir l", "l", errno.EISDIR),
        ("ln -s l l", "l", errno.ELOOP),
        ("true", "absent", errno.ENOENT),
        ("true", "x" * 300, errno.ENAMETOOLONG),
    ],
)
def test_read_refuses_what_is_no_file_of_the_sandbox(inside, make, path, number):
    async def body(box):
        assert (await box.exec(["sh", "-c", make])).exit_code == 0
        with pytest.raises(OSError, match=r"\w") as caught:
            await box.read(path)
        return caught.value.errno

    assert inside(body) == number


def test_write_does_not_follow_a_link_out(inside):
    async def body(box):
        await box.exec(["sh", "-c", "ln -s /.turngym out; ln -s / root; mkfifo pipe"])
        with pytest.raises(FileExistsError):  # what the link names does not exist in here
            await box.write("out/x", b"x")
        with pytest.raises(OSError, match="No such device"):  # nobody reads the pipe
            await box.write("pipe", b"x")
        for path in ("/etc/x", "/x", "root/etc/x", "../x"):
            with pytest.raises(OSError, match="read-only"):
                await box.write(path, b"x")
        # The root of `write` is the root of what the agent can write: the link leads there and no further.
        await box.write("root/workspace/y", b"y")
        assert await box.read("y") == b"y"

    inside(body)


def test_a_sandbox_that_is_closed_says_so(bubblewrap):
    async def body():
        box = await bubblewrap.create()
        await box.close()
        await box.close()
        with pytest.raises(SandboxLost, match="closed"):
            await box.exec(["true"])

    asyncio.run(body())


def test_a_sandbox_that_dies_is_a_fault_and_never_a_result(bubblewrap):
    async def body():
        box = await bubblewrap.create()
        running = asyncio.create_task(box.exec(["sleep", "30"]))
        await asyncio.sleep(0.2)
        os.kill(box._family.lease.pid, 9)
        with pytest.raises(EnvFault):
            await asyncio.wait_for(running, 5)
        await box.close()

    asyncio.run(body())


def test_a_family_without_a_process_left_says_so_and_goes_on_when_there_is_one(inside):
    async def body(box):
        (supervisor,) = children_of(box._family.lease.pid)
        group = pids_group(supervisor)
        await box.exec(["true"])
        allowed = group.read_text()
        group.write_text("2")  # bwrap and the supervisor
        in_the_box_that_is_ready = await box.exec(["true"])
        assert in_the_box_that_is_ready.exit_code == 126
        before = len(os.listdir(f"/proc/{supervisor}/fd"))
        for _ in range(10):
            with pytest.raises(BlockingIOError):
                await box.exec(["true"])
        assert len(os.listdir(f"/proc/{supervisor}/fd")) <= before
        group.write_text(allowed)
        return await box.exec(["sh", "-c", "echo $$"])

    assert inside(body).stdout == b"2\n"


def pids_group(pid: int) -> Path:
    """The file with the process limit of the control group of `pid`."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, kinds, path = line.split(":", 2)
        if kinds in ("", "pids") and "turngym" in path:
            return Path("/sys/fs/cgroup", kinds) / path.lstrip("/") / "pids.max"
    pytest.skip("control groups are not writable here, so a family has no process limit of its own")


def test_a_sandbox_serves_one_event_loop_after_another(bubblewrap):
    box = asyncio.run(bubblewrap.create())
    assert asyncio.run(box.exec(["echo", "1"])).stdout == b"1\n"
    assert asyncio.run(box.exec(["echo", "2"])).stdout == b"2\n"
    asyncio.run(box.close())


def test_unknown_names_are_errors_that_name_the_nearest(inside):
    with pytest.raises(UnknownName, match="bubblewrap"):
        backend("bublewrap")

    async def body(box):
        with pytest.raises(UnknownName, match="python"):
            await box.interpreter("pyton")
        with pytest.raises(ConfigError, match="NUL"):
            await box.exec(["a\0b"])

    inside(body)


def test_no_backend_is_an_error_that_says_what_to_install(monkeypatch):
    from turngym.errors import MissingDependency
    from turngym.sandbox import bubblewrap as module

    monkeypatch.setattr(module.shutil, "which", lambda _: None)
    module._unavailable.cache_clear()
    try:
        with pytest.raises(MissingDependency, match="apt-get install bubblewrap"):
            backend()
        with pytest.raises(MissingDependency, match="apt-get install bubblewrap"):
            backend("bubblewrap")
    finally:
        module._unavailable.cache_clear()


def as_root_of_a_namespace(first: str, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `argv` after the shell's `first`, as root of a user namespace that has no other user."""
    words = ["unshare", "--user", "--map-root-user", "sh", "-c", f'{first} && exec "$@"', "sh", *argv]
    return subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, **env})


def test_namespaces_that_are_switched_off_are_an_error_that_says_how_to_switch_them_on(bubblewrap):
    off = "echo 0 > /proc/sys/user/max_user_namespaces"
    check = (sys.executable, "-m", "turngym", "sandbox", "check", "bubblewrap")
    done = as_root_of_a_namespace(off, *check)
    assert done.returncode == 2
    assert "`sysctl -w user.max_user_namespaces=65536`" in done.stderr


def test_root_of_a_namespace_without_other_users_gets_sandboxes(bubblewrap, tmp_path):
    play = (
        "import asyncio\nfrom turngym.sandbox import backend\nasync def main():\n"
        "    async with await backend('bubblewrap').create() as box:\n"
        "        print((await box.exec(['id', '-u'])).text)\nasyncio.run(main())\n"
    )
    done = as_root_of_a_namespace("true", sys.executable, "-c", play, TURNGYM_STATE_DIR=str(tmp_path))
    assert (done.stdout.strip(), done.stderr) == ("1000", "")


@pytest.mark.parametrize(
    ("lines", "user"),
    [
        ("0 0 4294967295", 2_000_000_000 + os.getpid()),  # the namespace of a machine
        ("0 1000 1", None),  # a user's own
        ("0 1000 1\n1 100000 65535", 65535),  # a container of a user's
        ("0 100000 65536", 65535),
    ],
)
def test_roots_sandboxes_run_as_a_user_that_the_namespace_has(tmp_path, lines, user):
    (tmp_path / "uid_map").write_text(lines)
    assert unused_id(tmp_path / "uid_map") == user


@pytest.mark.parametrize("language", ["python", "bash"])
def test_a_session_goes_on_after_it_closed_its_output(inside, language):
    close, say = {
        "python": ("import os; os.close(1); os.close(2)", "open('/workspace/f', 'a').write('x')"),
        "bash": ("exec >&- 2>&-", "printf x >> /workspace/f"),
    }[language]

    async def body(box):
        session = await box.interpreter(language)
        await session.run(close)
        results = [await session.run(say) for _ in range(3)]
        return [result.restarted for result in results], await box.read("f")

    assert inside(body) == ([False] * 3, b"xxx")


def test_what_a_cell_leaves_running_keeps_to_the_limits_between_cells(inside):
    """A background process that grows while no cell runs ends its session, and the next cell is told why."""
    grow = (
        "import subprocess; subprocess.Popen(['python3', '-c', 'import os, time; time.sleep(0.4); "
        '[os.fork() for _ in range(3)]; x = bytearray(100 << 20); x[::4096] = b"x" * len(x[::4096]); '
        'open(str(os.getpid()), "w").close(); time.sleep(60)\'])\nNone'
    )

    async def body(box):
        python = await box.interpreter()
        assert (await python.run(grow)).ok
        await asyncio.sleep(3)
        with pytest.raises(ForkLost, match="memory"):
            await box.fork()
        told, then = await python.run("1"), await python.run("2")
        return told.limit_hit, told.restarted, then.display["text/plain"]

    assert inside(body) == ("memory", True, "2")


def test_misuse_is_an_error_of_the_caller_and_nobody_is_hurt(inside):
    async def body(box):
        python = await box.interpreter()
        await python.run("x = 1")
        (sibling,) = await box.fork()
        for wrong in (
            box.read("\ud800"),
            box.write("a\0b", b""),
            box.exec(["echo", "\ud800"]),
            box.exec(["true"], env={"A=B": "1"}),
            box.exec(["true"], env={"A": "\0"}),
            box.exec(["true"], timeout_s=float("nan")),
            python.run("1", timeout_s=-1.0),
        ):
            with pytest.raises(ConfigError):
                await wrong
        both = await asyncio.gather(python.run("x"), python.run("x"), return_exceptions=True)
        assert [type(each) for each in both].count(ConfigError) == 1
        alive = await (await sibling.interpreter()).run("x")
        await sibling.close()
        return alive.display["text/plain"]

    assert inside(body) == "1"


def test_a_link_is_not_followed_where_that_is_not_wanted(inside):
    async def body(box):
        await box.write("real", b"here")
        await box.exec(["ln", "-s", "real", "link"])
        with pytest.raises(OSError, match="link") as refused:
            await box.read("link", follow=False)
        return refused.value.errno, await box.read("link"), await box.read("real", follow=False)

    assert inside(body) == (errno.ELOOP, b"here", b"here")


def test_an_ordinary_user_has_sandboxes_that_fork(bubblewrap, state_dir):
    """As root of CI sees to it: a user without any capability, who has to make namespaces of his own."""
    script = """
import asyncio, os
from turngym.sandbox.bubblewrap import Bubblewrap
async def main():
    async with await Bubblewrap().create() as box:
        python = await box.interpreter()
        await python.run("x = 1; open('f', 'w').write('y')")
        (fork,) = await box.fork()
        await python.run("x = 2")
        seen = await (await fork.interpreter()).run("x, open('f').read()")
        print(os.geteuid(), seen.display["text/plain"], (await fork.exec(["id", "-u"])).text)
        await fork.close()
asyncio.run(main())
"""
    become = ["unshare", "--user", "--map-user=1000", "--map-group=1000"] if os.geteuid() == 0 else []
    done = subprocess.run(
        [*become, sys.executable, "-c", script],
        env={**os.environ, "TURNGYM_STATE_DIR": str(state_dir)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split("\n")[0] == f"{1000 if become else os.geteuid()} (1, 'y') 1000", done.stderr


def groups_of_version_2(root: Path, passed_on: dict[str, str]) -> None:
    """What the kernel shows of a tree of control groups, each with the controllers that it passes on."""
    (root / "cgroup.controllers").write_text("cpu memory pids")
    for group, controllers in passed_on.items():
        (root / group).mkdir(parents=True, exist_ok=True)
        (root / group / "cgroup.subtree_control").write_text(controllers)
        (root / group / "cgroup.procs").touch()


@pytest.mark.parametrize(
    ("own", "parent"),
    [
        ("/user.slice/session.scope", "user.slice"),  # one with processes passes nothing on
        ("/user.slice/deep/down", "user.slice"),  # one without the memory controller is passed by
        ("/", None),  # a container's own root: processes are in it
        ("/system.slice/../..", None),  # of another namespace
    ],
)
def test_control_groups_of_version_2_are_made_below_the_nearest_that_passes_limits_on(tmp_path, own, parent):
    groups_of_version_2(
        tmp_path,
        {
            ".": "",
            "system.slice": "memory pids",
            "user.slice": "cpu memory pids",
            "user.slice/session.scope": "",
            "user.slice/deep": "pids",
            "user.slice/deep/down": "",
        },
    )
    found = group_parents(tmp_path, f"1:name=systemd:/elsewhere\n0::{own}\n")
    assert found == ([] if parent is None else [tmp_path / parent])


def test_packages_that_know_the_answers_are_empty_inside(bubblewrap):
    folder = os.path.dirname(os.path.realpath(wsgiref.__file__))

    async def seen(backend):
        async with await backend.create() as box:
            listed = await box.exec(["ls", folder])
            touched = await box.exec(["touch", f"{folder}/x"])
            return listed.exit_code, b"headers.py" in listed.stdout, touched.exit_code

    assert asyncio.run(seen(bubblewrap)) == (0, True, 1)
    assert asyncio.run(seen(Bubblewrap(hidden=["wsgiref"]))) == (0, False, 1)
    assert Bubblewrap(hidden=["no_such_package"]).hidden == []
