"""Shell: every kind of task is solved by its written command, judged by files alone, in a shell that survives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest

from turngym.envs.tool.shell.env import Shell
from turngym.envs.tool.shell.tasks import LEVELS, Kind
from turngym.errors import ConfigError
from turngym.toolcalls import format_call
from turngym.types import ToolCall

KINDS = [kind for kinds in LEVELS.values() for kind in kinds]
DONE = format_call(ToolCall("done", {}))


def run(command: str) -> str:
    return format_call(ToolCall("run", {"command": command}))


@pytest.fixture
def env(sandbox: str) -> Iterator[Shell]:
    with closing(Shell(level=1, command_s=5)) as made:
        made.reset(seed=0)
        yield made


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_task_is_done_by_its_command_and_not_by_nothing(
    sandbox: str, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Shell(fold="train")) as env:
        monkeypatch.setattr(env, "_kinds", (kind,))
        for seed in range(3):
            env.reset(seed=seed)
            text, *_, info = env.step(run(env.task.solution))
            assert (text, info["tool_errors"]) == ("ok", []), env.task
            _, reward, terminated, _, info = env.step(DONE)
            assert (reward, terminated, info["success"]) == (1.0, True, True), env.task
            env.reset(seed=seed)
            nothing_to_do = dict(env.task.files) == dict(env.task.wanted)
            assert env.step(DONE)[1] == float(nothing_to_do)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_links_in_the_place_of_files_are_not_what_was_asked_for(
    sandbox: str, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Shell(fold="train")) as env:
        monkeypatch.setattr(env, "_kinds", (kind,))
        env.reset(seed=0)
        words = ["mkdir -p ~/kept"]
        for number, (path, wanted) in enumerate(env.task.wanted):
            if wanted is None:
                words.append(f"ln -sfn /nowhere {path}")
            elif not path.endswith("/"):
                words.append(f"mkdir -p $(dirname {path}); cat > ~/kept/{number} <<'E'\n{wanted}\nE")
                words.append(f"ln -sfn ~/kept/{number} {path}")
        env.step(run("\n".join(words)))
        changed = [path for path, _ in env.task.wanted if not path.endswith("/")]
        assert env.step(DONE)[1] == float(not changed)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_tasks_differ_and_say_what_matters(kind: Kind) -> None:
    dealt = [kind(np.random.default_rng(seed)) for seed in range(30)]
    assert len({each.words + str(each.files) for each in dealt}) > 25
    for each in dealt:
        assert dict(each.files) | dict(each.wanted) == dict(each.wanted)


def test_most_tasks_are_not_done_at_the_start() -> None:
    for kind in KINDS:
        done = [
            dict(each.files) == dict(each.wanted) for each in map(kind, map(np.random.default_rng, range(50)))
        ]
        assert sum(done) <= 5, kind.__name__


def test_the_files_are_looked_at_when_no_turn_is_left(sandbox: str) -> None:
    with closing(Shell(level=1, max_turns=1)) as env:
        env.reset(seed=0)
        assert env.step(env.optimal_action())[1:3] == (1.0, True)
        env.reset(seed=0)
        assert env.step("hello")[1:3] == (0.0, True)


def test_harm_to_other_files_is_a_failure(env: Shell) -> None:
    other = next(path for path, content in env.task.files if dict(env.task.wanted)[path] == content)
    env.step(run(env.task.solution))
    env.step(run(f"echo more >> {other}"))
    assert env.step(DONE)[1] == 0.0


def test_the_shell_keeps_its_state_and_says_what_went_wrong(env: Shell) -> None:
    env.step(run("mkdir sub; cd sub; name=value; f() { echo called; }"))
    assert env.step(run("pwd; echo $name; f"))[0] == "/workspace/sub\nvalue\ncalled"
    assert env.step(run("false"))[0] == "[exit status 1]"
    assert "not found" in env.step(run("no-such-program"))[0]
    assert "NUL" in env.step(run("a\0b"))[0]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("sleep 100", "wall limit"),
        ("yes", "bytes dropped"),
        ("exit 3", "started afresh"),
        ("kill -9 $$", "started afresh"),
        ("exec true", "started afresh"),
    ],
)
def test_a_command_that_breaks_the_shell_is_the_policys_own_doing(
    env: Shell, command: str, said: str
) -> None:
    env.command_s = 1
    text, reward, terminated, truncated, _ = env.step(run(command))
    assert said in text
    assert len(text) < 3000
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert env.step(run("echo alive"))[0] == "alive"


def test_a_fork_of_a_shell_goes_its_own_way(env: Shell) -> None:
    env.step(run("cd /tmp; n=1; g() { echo g$n; }; alias hi='echo hi'"))
    (child,) = env.fork()
    with closing(child):
        assert child.step(run("pwd; g"))[0] == env.step(run("pwd; g"))[0] == "/tmp\ng1"
        child.step(run("n=2; echo x > theirs"))
        assert env.step(run("echo $n; ls theirs"))[0].startswith("1\nls: cannot access")
        assert child.step(run("g; cat theirs"))[0] == "g2\nx"


@pytest.mark.parametrize("level", [-1, 4, "1"])
def test_a_level_that_does_not_exist_is_refused(level: int) -> None:
    with pytest.raises(ConfigError, match="level"):
        Shell(level=level)
