"""Snapshots, forks and sessions: everything is carried, and afterwards nobody sees the others."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from turngym.errors import ConfigError
from turngym.sandbox.base import ForkLost, Limits
from turngym.sandbox.inside import hugepages
from turngym.sandbox.inside.worlds import MAX_LAYERS


async def value(box, code, **kwargs):
    result = await (await box.interpreter()).run(code, **kwargs)
    assert result.error is None, result.text
    return result.display.get("text/plain")


def test_a_session_keeps_its_state_and_shows_its_last_expression(inside):
    async def body(box):
        python = await box.interpreter()
        first = await python.run("import os\nx = 20\nprint('hello')\nx + 1")
        second = await python.run("x * 2\n")
        nothing = await python.run("y = x")
        return first, second, nothing

    first, second, nothing = inside(body)
    assert (first.stdout, first.display["text/plain"]) == (b"hello\n", "21")
    assert second.display["text/plain"] == "40"
    assert nothing.display == {}
    assert nothing.ok


@pytest.mark.skipif(
    "[madvise]" not in hugepages.read().get("enabled", ""), reason="the kernel gives no huge pages on request"
)
def test_large_memory_is_in_huge_pages_so_that_forks_copy_few_page_tables(inside):
    """`hg` among a mapping's flags: the C library has asked for them, which it does after a look at `/sys`."""

    async def body(box):
        found = await value(
            box,
            "held = bytearray(8 << 20)\n"
            "any(' hg ' in line for line in open('/proc/self/smaps') if line.startswith('VmFlags'))",
        )
        return found, await value(box, "import os; os.listdir('/sys')")

    assert inside(body) == ("True", "[]")


def test_rich_forms_are_shown(inside):
    code = "class T:\n  def _repr_html_(self): return '<b>'\n  def _repr_png_(self): return b'\\x89'\nT()"
    result = inside(lambda box: run(box, code))
    assert result.display["text/html"] == "<b>"
    assert result.display["image/png"] == "iQ=="  # base64 of the byte 0x89


async def run(box, code, language="python", **kwargs):
    return await (await box.interpreter(language)).run(code, **kwargs)


def test_an_error_is_a_result_with_the_traceback_of_the_cell_only(inside):
    result = inside(lambda box: run(box, "def f():\n    return 1 / 0\nf()"))
    assert result.error == "ZeroDivisionError: division by zero"
    assert b"return 1 / 0" in result.stderr
    assert b"pysession" not in result.stderr
    assert not result.ok


@pytest.mark.parametrize("code", ["import sys; sys.exit(3)", "1 +", "raise KeyboardInterrupt"])
def test_a_session_outlives_errors_exits_and_bad_syntax(inside, code):
    async def body(box):
        await run(box, "x = 1")
        failed = await run(box, code)
        return failed, await run(box, "x")

    failed, after = inside(body)
    assert failed.error
    assert not failed.restarted
    assert after.display["text/plain"] == "1"


def test_a_cell_past_its_time_is_interrupted_and_the_session_lives(inside):
    async def body(box):
        await run(box, "x = 1")
        late = await run(box, "while True: pass", timeout_s=0.3)
        return late, await run(box, "x")

    late, after = inside(body)
    assert late.limit_hit == "wall"
    assert late.error is not None
    assert "KeyboardInterrupt" in late.error
    assert after.display["text/plain"] == "1"


@pytest.mark.parametrize(
    ("code", "limit"),
    [
        ("import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass", "wall"),
        ("import os; os._exit(1)", None),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", None),
        (
            "x = []\nimport subprocess\nps = [subprocess.Popen(['python3', '-c', 'x = b\"x\" * (90 << 20); import time; time.sleep(9)']) for _ in range(6)]\nps[0].wait()",
            "memory",
        ),
    ],
)
def test_a_session_that_can_not_be_saved_starts_afresh_and_says_so(inside, code, limit):
    async def body(box):
        await run(box, "x = 1")
        lost = await run(box, code, timeout_s=8 if limit == "memory" else 0.5)
        return lost, await run(box, "'x' in dir()")

    lost, after = inside(body)
    assert lost.restarted
    assert lost.limit_hit == limit
    assert "afresh" in lost.text
    assert after.display["text/plain"] == "False"


def test_a_fork_carries_variables_folder_files_and_open_files(inside):
    async def body(box):
        await value(
            box,
            "import os; os.makedirs('d'); os.chdir('d'); x = [1]; f = open('log', 'w+'); _ = f.write('one '); g = iter(range(9)); next(g)",
        )
        (fork,) = await box.fork()
        await value(fork, "x.append(2); _ = f.write('fork'); f.flush()")
        await value(box, "x.append(3); _ = f.write('box'); f.flush()")
        look = "import os; x, os.getcwd(), open('log').read(), f.tell(), next(g)"
        return await value(box, look), await value(fork, look)

    box, fork = inside(body)
    assert box == "([1, 3], '/workspace/d', 'one box', 7, 1)"
    assert fork == "([1, 2], '/workspace/d', 'one fork', 8, 1)"


def test_a_fork_carries_the_global_random_generator(inside):
    async def body(box):
        await value(box, "import random; random.seed(1); random.gauss(0, 1)")
        (fork,) = await box.fork()
        snapshot = await box.snapshot()
        draw = "random.random(), random.gauss(0, 1), random.getrandbits(99)"
        seen = [await value(fork, draw), await value(box, draw)]
        await box.restore(snapshot)
        return [*seen, await value(box, draw)]

    one, two, three = inside(body)
    assert one == two == three


def test_what_a_library_does_at_a_fork_is_done_once(inside):
    async def body(box):
        await value(box, "import os\nseen = []\nos.register_at_fork(after_in_child=lambda: seen.append(1))")
        (fork,) = await box.fork()
        return [await value(each, "seen") for each in (box, fork)]

    assert inside(body) == ["[1]", "[1]"]


def test_forks_can_not_see_or_signal_each_other(inside):
    async def body(box):
        await value(box, "import os, signal; x = 1")
        forks = await box.fork(3)
        seen = [
            await value(f, "sorted(int(p) for p in os.listdir('/proc') if p.isdigit())")
            for f in (box, *forks)
        ]
        await value(forks[0], "try: os.kill(-1, signal.SIGTERM)\nexcept OSError as e: print(e)")
        await run(forks[1], "os._exit(0)")
        return seen, await value(box, "x"), await value(forks[2], "x")

    seen, box, other = inside(body)
    assert set(seen) == {"[2]"}  # not even the keeper, which is process 1
    assert box == other == "1"


def test_forks_share_no_network_or_shared_memory(inside):
    listen = "import socket; s = socket.socket(); s.bind(('127.0.0.1', 7777)); s.listen()"
    knock = "import socket; c = socket.socket(); r = c.connect_ex(('127.0.0.1', 7777)); c.close(); r"

    async def body(box):
        await value(box, "x = 1")
        (fork,) = await box.fork()
        await value(box, listen)
        await value(box, "open('/dev/shm/x', 'w').close()")
        return (
            await value(box, knock),
            await value(fork, knock),
            await value(fork, "import os; os.listdir('/dev/shm')"),
        )

    own, other, shm = inside(body)
    assert own == "0"
    assert other == "111"  # ECONNREFUSED
    assert shm == "[]"


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("import socket; conn = socket.socket()", "socket 'conn'"),
        (
            "import threading; e = threading.Event(); t = threading.Thread(target=e.wait, name='worker', daemon=True); t.start()",
            "thread 'worker'",
        ),
        ("import subprocess; child = subprocess.Popen(['sleep', '30'])", "subprocess 'child'"),
        ("import os; pid = os.spawnlp(os.P_NOWAIT, 'sleep', 'sleep', '30')", "subprocess"),
        ("import os; r, w = os.pipe()", "pipe:"),
        (
            "import mmap; f = open('m', 'w+b'); _ = f.write(b'x' * 4096); f.flush(); m = mmap.mmap(f.fileno(), 4096)",
            "shared mapping of /workspace/m",
        ),
        ("import os; f = open('gone', 'w'); os.unlink('gone')", "gone (deleted)"),
    ],
)
def test_what_a_fork_can_not_carry_is_named_and_nothing_has_changed(inside, code, name):
    async def body(box):
        await value(box, "x = 1; k = open('kept', 'w')")
        await value(box, code)
        with pytest.raises(ForkLost, match="can't carry") as caught:
            await box.fork()
        assert (
            await value(box, "_ = k.write('still here'); k.flush(); x, open('kept').read()")
            == "(1, 'still here')"
        )
        return caught.value.lost

    assert any(name in each for each in inside(body))


def test_forged_words_of_a_session_are_read_as_words(inside):
    forge = (
        "import json, os, struct\n"
        "words = json.dumps({'op': 'done', 'error': 5, 'display': [1], 'status': 'x'}).encode()\n"
        "os.write(3, struct.pack('<II', len(words), 0) + words)"
    )
    result = inside(lambda box: run(box, forge))
    assert (result.error, result.display, result.exit_code) == ("5", {}, None)


def test_a_session_that_does_not_answer_is_named_and_starts_afresh(inside):
    async def body(box):
        await run(
            box, "import os, signal; signal.signal(signal.SIGALRM, lambda *_: os._exit(0)); signal.alarm(1)"
        )
        await asyncio.sleep(1.5)
        with pytest.raises(ForkLost, match="does not answer"):
            await box.fork()
        return await run(box, "1"), await run(box, "2")

    first, second = inside(body)
    assert first.restarted
    assert second.display["text/plain"] == "2"


def test_a_running_command_is_named(inside):
    async def body(box):
        running = asyncio.create_task(box.exec(["sleep", "0.6"]))
        await asyncio.sleep(0.2)
        with pytest.raises(ForkLost, match="running command"):
            await box.fork()
        await running
        assert len(await box.fork()) == 1

    inside(body)


def test_a_snapshot_is_restored_again_and_again(inside):
    async def body(box):
        await box.write("f", b"then")
        await value(box, "x = 'then'")
        before = await box.digest()
        snapshot = await box.snapshot()
        for i in range(40):  # more than PID namespaces nest: restoring does not go deeper
            await box.write("f", b"now")
            await box.write(f"more{i}", b"")
            await value(box, "x = 'now'")
            await box.restore(snapshot)
            assert await value(box, "x, open('f').read()") == "('then', 'then')"
        assert await box.digest() == before
        await box.drop(snapshot)
        with pytest.raises(Exception, match="no such"):
            await box.restore(snapshot)
        assert await value(box, "x") == "'then'"

    inside(body)


def test_a_chain_of_forks_that_is_too_deep_is_named_and_the_session_lives_on(inside):
    async def body(box):
        await value(box, "x = 1; f = open('f', 'w')")
        depth = 0

        async def go_deeper():
            nonlocal depth
            while depth < 40:
                (fork,) = await box.fork()
                await fork.close()
                depth += 1

        with pytest.raises(ForkLost, match=r"forks deep \(the kernel says"):
            await go_deeper()
        assert depth > 20
        assert await value(box, "_ = f.write('on'); f.flush(); x, open('f').read()") == "(1, 'on')"
        await box.write("g", b"files can still be written")

    inside(body)


def test_a_snapshot_of_another_family_is_refused(bubblewrap):
    async def body():
        async with await bubblewrap.create() as one, await bubblewrap.create() as other:
            with pytest.raises(ConfigError, match="another sandbox family"):
                await other.restore(await one.snapshot())

    asyncio.run(body())


def test_bash_keeps_and_carries_its_state(inside):
    async def body(box):
        setup = "declare -A m=([k]='v w'); f() { echo \"f:$1\"; }; alias ll='ls -l'; set -u; mkdir d; cd d; export E=1; umask 027"
        assert (await run(box, setup, "bash")).ok
        (fork,) = await box.fork()
        look = 'f "${m[k]}"; pwd; env | grep -c ^E=1; umask; alias ll; echo $-'
        seen = [(await run(b, look, "bash")).stdout for b in (box, fork)]
        await run(fork, "echo fork > new", "bash")
        return seen, (await run(box, "ls", "bash")).stdout, await run(box, "false", "bash")

    (one, other), listing, failed = inside(body)
    assert one == other
    assert one.startswith(b"f:v w\n/workspace/d\n1\n0027\nalias ll='ls -l'\n")
    assert listing == b""
    assert failed.exit_code == 1


def test_bash_names_its_jobs_and_survives_what_it_waits_for(inside):
    async def body(box):
        await run(box, "x=1", "bash")
        late = await run(box, "sleep 30; echo after", "bash", timeout_s=0.3)
        kept = await run(box, "echo $x", "bash")
        await run(box, "sleep 30 &", "bash")
        with pytest.raises(ForkLost, match="job"):
            await box.fork()
        ended = await run(box, "exit 4", "bash")
        return late, kept, ended, await run(box, "echo ${x-gone}", "bash")

    late, kept, ended, after = inside(body)
    assert late.limit_hit == "wall"
    assert not late.restarted
    assert kept.stdout == b"1\n"
    assert ended.restarted
    assert after.stdout == b"gone\n"


def test_layers_are_merged_before_there_are_too_many(inside):
    async def body(box):
        for i in range(40):  # MAX_LAYERS is 32
            await box.write(f"f{i}", str(i).encode())
            if i % 3 == 0 and i:
                await box.exec(["rm", f"f{i - 1}"])
            (fork,) = await box.fork()
            await box.close()
            box = fork
        names = (await box.exec(["ls"])).stdout.split()
        await box.close()
        return names

    expected = {f"f{i}".encode() for i in range(40)} - {f"f{i - 1}".encode() for i in range(3, 40, 3)}
    assert set(inside(body)) == expected


def test_a_sandbox_that_can_not_fork_sessions_refuses_namespaces(bubblewrap):
    code = "import ctypes; ctypes.CDLL(None).unshare(0x10000000)"

    async def body():
        async with await bubblewrap.create(Limits(), forkable=False) as box:
            refused = await value(box, code)
            await box.write("f", b"")
            with pytest.raises(ForkLost, match="forkable"):
                await box.fork()
        async with await bubblewrap.create(Limits()) as box:
            return refused, await value(box, code)

    assert asyncio.run(body()) == ("-1", "0")


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(["write", "append", "fork", "delete"])), max_size=12
    )
)
def test_any_sequence_of_forks_and_changes_equals_separate_dictionaries(inside, acts):
    async def body(first):
        boxes, models = [first], [{}]
        for step, (which, act) in enumerate(acts):
            i = which % len(boxes)
            if act == "fork" and len(boxes) < 4:
                boxes += await boxes[i].fork()
                models.append(dict(models[i]))
            elif act == "write":
                models[i][f"f{step}"] = step
                await value(boxes[i], f"v{step} = {step}; _ = open('f{step}', 'w').write('{step}')")
            elif act == "append" and models[i]:
                name = min(models[i])
                models[i][name] = int(f"{models[i][name]}7")
                await boxes[i].exec(["sh", "-c", f"printf 7 >> {name}"])
            elif act == "delete" and models[i]:
                name = max(models[i])
                del models[i][name]
                await boxes[i].exec(["rm", name])
        for box, model in zip(boxes, models, strict=True):
            seen = await value(box, "import os; {f: int(open(f).read()) for f in sorted(os.listdir())}")
            assert seen == repr(dict(sorted(model.items())))
        for box in boxes[1:]:
            await box.close()

    inside(body)


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        (
            "shopt -s extglob\nf() { case $1 in @(a|b)) echo yes;; esac; }",
            "f b; shopt -q extglob && echo on",
            "yes on",
        ),
        ("set -- 'a b' c", 'echo "$1" $#', "a b 2"),
        ("mkdir -p x y; cd x; cd ../y", "cd -", "/workspace/x"),
        (
            "mkdir -p 'p q' r; cd 'p q'; pushd ../r >&2; pushd / >&2",
            "popd >&2; popd >&2; pwd",
            "/workspace/p q",
        ),
        ("f() { echo carried; }; export -f f", "bash -c f", "carried"),
        ("SECONDS=1000", "echo $((SECONDS / 100))", "10"),
        (
            "[[ abc =~ b(.) ]]; BASH_MINE=1; COMP_MINE=2",
            'echo "$BASH_MINE$COMP_MINE${BASH_REMATCH[1]}"',
            "12c",
        ),
        ("set -euo pipefail; alias q='echo alias'; shopt -s expand_aliases", "q; echo $-", "alias ehuBc"),
    ],
)
def test_a_shell_is_carried_with_all_that_it_can_write_down(inside, before, after, shown):
    async def body(box):
        shell = await box.interpreter("bash")
        assert (await shell.run(before)).ok
        (fork,) = await box.fork()
        both = [await (await each.interpreter("bash")).run(after) for each in (box, fork)]
        await fork.close()
        return [result.stdout.split(b"\n") for result in both]

    for lines in inside(body):
        assert b" ".join(lines).decode().strip() == shown


def test_numbers_that_a_shell_draws_go_on_the_same_in_all_forks(inside):
    async def body(box):
        await (await box.interpreter("bash")).run("RANDOM=42; echo $RANDOM")
        forks = await box.fork(2)
        draws = [
            (await (await each.interpreter("bash")).run("echo $RANDOM $RANDOM")).text
            for each in (box, *forks)
        ]
        for each in forks:
            await each.close()
        return draws

    assert len(set(inside(body))) == 1


@pytest.mark.parametrize(
    ("language", "code", "lost"),
    [
        ("python", "import os; os.mkdir('d'); os.chdir('d'); os.rmdir('../d')", "working directory"),
        (
            "python",
            "import os; open('f', 'w').close(); f = open('f'); os.chmod('f', 0)",
            "open file /workspace/f",
        ),
        ("python", "import signal; signal.signal(signal.SIGALRM, print); signal.alarm(100)", "a real timer"),
        (
            "python",
            "import os; os.dup2(os.open('/dev/null', os.O_WRONLY), 2)",
            "stderr, which leads to /dev/null",
        ),
        ("python", "import os; os.close(1)", "stdout, which was closed"),
        ("bash", "exec 2>/dev/null", "stderr, which leads to /dev/null"),
        ("bash", "ulimit -n 77", "ulimit"),
    ],
)
def test_what_a_fork_can_not_carry_is_named_and_the_session_goes_on(inside, language, code, lost):
    async def body(box):
        session = await box.interpreter(language)
        await session.run("x = 7" if language == "python" else "x=7")
        await session.run(code)
        for act in (box.fork, box.snapshot):
            with pytest.raises(ForkLost, match=lost):
                await act()
        return await session.run(
            "open('seen', 'w').write(str(x))" if language == "python" else "echo $x > seen"
        )

    async def whole(box):
        result = await body(box)
        return result.restarted, (
            await box.exec(["cat", "/workspace/seen", "/workspace/d/seen"])
        ).stdout.strip()

    if "chdir" in code:  # there is no folder to write into any more
        assert inside(body).error.startswith("FileNotFoundError")
    else:
        assert inside(whole) == (False, b"7")


def test_a_shell_that_can_not_read_what_it_wrote_down_says_that_it_was_started_afresh(inside):
    async def body(box):
        shell = await box.interpreter("bash")
        await shell.run("cd /tmp; declare() { echo 'if'; }; x=1")  # the dump now has a command without an end
        (fork,) = await box.fork()
        other = await fork.interpreter("bash")
        results = [await other.run("pwd"), await other.run("pwd")]
        await fork.close()
        return results

    told, then = inside(body)
    assert told.restarted
    assert then.stdout == b"/workspace\n"


def test_folders_in_folders_without_end_are_digested_and_forked(inside):
    """Deeper than a path can say, and through more forks than one stack of layers has room for."""
    dig = "import os\nfor _ in range(60):\n    os.mkdir('d' * 100); os.chdir('d' * 100)\nopen('f', 'w').write({!r})"

    async def body(box):
        assert (await box.exec(["python3", "-c", dig.format("one")])).exit_code == 0
        digests = [await box.digest()]
        for turn in range(MAX_LAYERS + 3):
            await box.write("turn", b"%d" % turn)
            (fork,) = await box.fork()
            await fork.close()
        await box.exec(["rm", "turn"])
        digests.append(await box.digest())
        return digests, (await box.exec(["sh", "-c", "echo still > written; cat written"])).stdout

    (before, after), written = inside(body)
    assert before == after
    assert written == b"still\n"


def test_holes_of_a_file_cost_nothing_and_are_zeros(inside):
    async def body(box):
        seen = []
        for make in (
            "truncate -s 3M x",
            "head -c 3M /dev/zero > x",
            "truncate -s 3M x; printf a | dd of=x bs=1 seek=2500000 conv=notrunc",
            "head -c 3M /dev/zero > x; printf a | dd of=x bs=1 seek=2500000 conv=notrunc",
            "truncate -s 3145729 x",
            "truncate -s 4T x",
        ):
            assert (await box.exec(["sh", "-c", f"rm -f x; {make}"])).exit_code == 0
            seen.append(await box.digest())
        return seen

    hole, zeros, letter, dense, longer, vast = inside(body)
    assert hole == zeros
    assert letter == dense
    assert len({hole, letter, longer, vast}) == 4
