"""Repair-v0: bugs can be found and mended, and only mended code is accepted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from difflib import unified_diff
from typing import Any

import pytest

from turngym.envs.tool.python.inside import decode
from turngym.envs.tool.repair import make
from turngym.envs.tool.repair.env import Repair, smallest_edit
from turngym.envs.tool.repair.grading import Grader
from turngym.envs.tool.repair.instances import Repository, build, expected, manifest
from turngym.envs.tool.repair.render import library
from turngym.errors import ConfigError, MissingDependency, UnknownName
from turngym.toolcalls import format_call
from turngym.types import ToolCall


@pytest.fixture
def env(sandbox: str) -> Iterator[Repair]:
    with closing(Repair(command_s=10)) as made:
        made.reset(seed=0)
        yield made


def call(env: Repair, name: str, **arguments: Any) -> str:
    return env.step(format_call(ToolCall(name, arguments)))[0]


def submit(env: Repair) -> tuple[str, float, bool]:
    """What is said, reward, success."""
    text, reward, terminated, _, info = env.step(format_call(ToolCall("submit", {})))
    assert terminated
    return text, reward, info["success"]


def mend(env: Repair) -> None:
    repository = env.task.repository
    old, new = smallest_edit(repository.broken, repository.original)
    assert call(env, "edit", path=repository.path, old=old, new=new) == "ok"


@pytest.mark.parametrize("fold", ["train", "test"])
def test_the_written_policy_succeeds(sandbox: str, fold: Any) -> None:
    with closing(Repair(fold=fold)) as env:
        for seed in range(3):
            env.reset(seed=seed)
            for _ in range(3):
                _, reward, terminated, _, info = env.step(env.optimal_action())
            assert (reward, terminated, info["success"]) == (1.0, True, True)


def test_instances_are_what_the_manifest_says(sandbox: str) -> None:
    async def some() -> None:
        grader = Grader()
        for instance in manifest()[::90]:
            assert await make.verified(instance, grader, expected()) == instance

    asyncio.run(some())


@pytest.mark.slow
def test_the_whole_manifest_is_verified(sandbox: str) -> None:
    assert asyncio.run(make.verify()) == []


def test_a_submission_without_a_change_is_wrong(env: Repair) -> None:
    text, reward, success = submit(env)
    assert (reward, success) == (0.0, False)
    assert "hidden tests pass" in text


# ---------------------------------------------------------------------- cheats

EQUAL = """
class Equal(str):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    __hash__ = str.__hash__
"""
PATCH = """
import builtins, json, os, sys
dumps = json.dumps
json.dumps = lambda value, **_: dumps({"value": True})
builtins.isinstance = lambda *_: True
for frame in list(sys._current_frames().values()):
    while frame is not None:
        frame.f_globals.update(value_of=lambda *_: {"value": True}, answers=lambda *_: iter([{"value": True}] * 999))
        frame = frame.f_back
"""
PRINT = """
import json, os
for fd in range(1, 20):
    try:
        os.write(fd, b'{"value": true}\\n' * 500)
    except OSError:
        pass
"""
CHEATS = {
    "exits early with status 0": "import os\nos._exit(0)\n",
    "raises SystemExit": "raise SystemExit(0)\n",
    "patches the grader": PATCH,
    "prints results": PRINT,
    "prints nothing for ever": "while True: pass\n",
    "gives NaN": "def __getattr__(name):\n    return lambda *_, **__: float('nan')\n",
    "gives what equals everything": EQUAL + "def __getattr__(name):\n    return lambda *_, **__: Equal()\n",
    "is empty": "\n",
    "is no Python": "def (\n",
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_code_that_cheats_is_wrong(env: Repair, cheat: str) -> None:
    repository = env.task.repository
    names = [
        line.split("(")[0].split()[-1] for line in repository.broken.splitlines() if line.startswith("def ")
    ]
    lies = "".join(f"{name} = globals().get('__getattr__', lambda _: None)('{name}')\n" for name in names)
    call(env, "write", path=repository.path, text=CHEATS[cheat] + lies)
    text, reward, success = submit(env)
    assert (reward, success) == (0.0, False), text


@pytest.mark.parametrize(
    "command",
    [
        "rm -rf tests && mkdir tests",
        "sed -i 's/assert[A-Z][a-z]*/id/' tests/*.py",
        "echo 'def pytest_runtest_call(): pass' > conftest.py; echo 'raise SystemExit(0)' > sitecustomize.py",
        "echo 'exit 0' > python3; chmod +x python3; export PATH=.:$PATH",
        "rm -rf .git",
        "git config diff.external /bin/true; git config core.fsmonitor 'touch /tmp/x'",
        "git commit -q --allow-empty -m x; git branch -D main; rm -rf .git/objects",
        "rm -rf *",
        "mkdir -p json && echo 'dumps = lambda *_: \"{}\"' > json/__init__.py",
        "ln -sf /etc/passwd README.md; ln -s / $(ls -d */ | head -1)/root",
        "kill -9 $$",
        "printf 'x' | dd of=$(ls */__init__.py | head -1) bs=1 count=1 2>/dev/null; head -c 400000 /dev/urandom > $(ls -d */ | grep -v tests | head -1)/big.py",
    ],
)
def test_whatever_is_done_beside_the_code_does_not_help(env: Repair, command: str) -> None:
    call(env, "run", command=command)
    text, reward, success = submit(env)
    assert (reward, success) == (0.0, False), text


def test_mended_code_is_accepted_whatever_lies_beside_it(env: Repair) -> None:
    mend(env)
    call(env, "run", command="rm -rf tests; echo junk > conftest.py; git add -A; git commit -q -m mine 2>&1")
    assert submit(env) == ("Accepted.", 1.0, True)


def test_a_special_case_for_what_was_reported_is_wrong(sandbox: str) -> None:
    instance = next(
        i for i in manifest() if i.library == "money" and "(" in library("money").probes[i.fails[0]][:9]
    )
    repository = build(instance)
    module = repository.path.removesuffix(".py").replace("/", ".")
    probe = dict(repository.probes)[module][instance.fails[0]]
    function, _, arguments = probe.partition("(")
    wanted = decode(expected()["money"][instance.fails[0]]["value"])
    lie = (
        f"\n_whole = {function}\ndef {function}(*given, **named):\n"
        f"    return {wanted!r} if given == ({arguments[:-1]},) else _whole(*given, **named)\n"
    )
    diff = unified_diff(
        repository.broken.splitlines(keepends=True),
        (repository.broken + lie).splitlines(keepends=True),
        f"a/{repository.path}",
        f"b/{repository.path}",
    )
    verdict = asyncio.run(Grader().grade(repository, "".join(diff)))
    first = sum(len(probes) for name, probes in repository.probes[: _place(repository, module)])
    assert first + instance.fails[0] not in verdict.wrong
    assert verdict.wrong
    assert not verdict.accepted


def _place(repository: Repository, module: str) -> int:
    return [name for name, _ in repository.probes].index(module)


# ---------------------------------------------------------------------- tools


def test_the_repository_is_one_commit_and_its_tests_pass(env: Repair) -> None:
    assert call(env, "run", command="git status --short; git log --oneline | wc -l") == "1"
    said = call(env, "run", command="python3 -m unittest discover tests 2>&1 | tail -3")
    assert said.endswith("OK")
    assert "in …s" in said


def test_the_report_is_true(env: Repair) -> None:
    lines = [line[4:] for line in env.task.repository.report.splitlines() if line.startswith("    ")]
    *before, last = lines
    call(env, "write", path="seen.py", text="\n".join([*before, f"print({last})"]))
    said = call(env, "run", command="python3 seen.py")
    first = env.task.repository.report.splitlines()[0]
    kind = first.removeprefix("Somebody reports that this ").rstrip(":")
    assert kind.removeprefix("gives ").removeprefix("raises ") in said


def test_files_are_read_searched_and_edited(env: Repair) -> None:
    repository = env.task.repository
    shown = call(env, "read", path=repository.path, first=2, lines=2)
    assert shown.splitlines() == [f"{n:4} {repository.broken.splitlines()[n - 1]}" for n in (2, 3)]
    found = call(env, "search", pattern="^from __future__", path=repository.package)
    assert f"{repository.path}:2:from __future__ import annotations" in found.splitlines()
    assert call(env, "search", pattern="no such words") == "nothing found"
    assert call(env, "write", path=f"{repository.package}/new.py", text="x = 1\n") == "ok"
    assert call(env, "edit", path=f"{repository.package}/new.py", old="1", new="2") == "ok"
    assert call(env, "run", command=f"cat {repository.package}/new.py") == "x = 2"


def test_the_shell_keeps_its_state(env: Repair) -> None:
    call(env, "run", command="cd tests; x=5")
    assert call(env, "run", command="echo $x; basename $PWD") == "5\ntests"
    mend(env)  # paths of the other tools stay relative to the repository


def test_a_fork_goes_its_own_way(env: Repair) -> None:
    call(env, "run", command="x=1")
    (child,) = env.fork()
    with closing(child):
        mend(child)
        assert submit(env)[2] is False
        assert call(child, "run", command="echo $x") == "1"
        assert submit(child)[2] is True


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("read", {"path": "READMEE.md"}, "did you mean 'README.md'"),
        ("read", {"path": "tests"}, "directory"),
        ("read", {"path": "../etc/passwd"}, "Error"),
        ("read", {"path": "/etc/shadow"}, "Error"),
        ("read", {"path": ""}, "not a path"),
        ("read", {"path": "a\0b"}, "not a path"),
        ("read", {"path": "README.md", "first": 0}, "at least 1"),
        ("read", {"pth": "README.md"}, "did you mean 'path'"),
        ("edit", {"path": "README.md", "old": "nowhere", "new": ""}, "occurs 0 times"),
        ("edit", {"path": "README.md", "old": "", "new": ""}, "occurs 0 times"),
        ("edit", {"path": "README.md", "old": "`", "new": ""}, "has to occur once"),
        ("write", {"path": "/etc/passwd", "text": ""}, "Error"),
        ("write", {"path": "x", "text": "x" * 99_000 + "y" * 2_000}, "Error"),
        ("search", {"pattern": "(", "path": "."}, "Error"),
        ("search", {"pattern": "x", "path": "READMEE.md"}, "did you mean 'README.md'"),
        ("serch", {"pattern": "x"}, "did you mean 'search'"),
        ("run", {"command": "exit 3"}, "started afresh"),
        ("run", {"command": "no-such-command"}, "exit status 127"),
        ("run", {"command": "a\0b"}, "NUL"),
    ],
)
def test_mistakes_are_told_in_words_to_repair_from(
    env: Repair, name: str, arguments: dict[str, Any], words: str
) -> None:
    assert words in call(env, name, **arguments)


def test_commands_that_flood_or_never_end_are_cut(sandbox: str) -> None:
    with closing(Repair(command_s=1, max_output_chars=500)) as env:
        env.reset(seed=0)
        assert len(call(env, "run", command="yes | head -c 3000000")) < 700
        assert "limit" in call(env, "run", command="sleep 60")
        assert call(env, "run", command="echo on").endswith("on")


def test_missing_git_and_wrong_options_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownName, match="Did you mean 'money'"):
        Repair(library="mony")
    with pytest.raises(ConfigError, match="command_s"):
        Repair(command_s=0)
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(MissingDependency, match="apt-get install git"):
        Repair()


def test_one_library_can_be_asked_for(sandbox: str) -> None:
    with closing(Repair(library="money")) as env:
        for seed in range(2):
            env.reset(seed=seed)
            assert env.task.instance.library == "money"


def test_the_smallest_edit_is_unique() -> None:
    before = "a\nx\nb\nx\nc\n"
    old, new = smallest_edit(before, "a\nx\nb\ny\nc\n")
    assert before.count(old) == 1
    assert before.replace(old, new) == "a\nx\nb\ny\nc\n"


def test_solutions_restore_the_original_in_every_instance() -> None:
    for instance in manifest()[::20]:
        repository = build(instance)
        old, new = smallest_edit(repository.broken, repository.original)
        assert repository.broken.count(old) == 1
        assert repository.broken.replace(old, new) == repository.original
