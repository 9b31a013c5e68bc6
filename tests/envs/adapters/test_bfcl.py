"""BFCL: the package's own solutions score 1 by the package's own checker, and its evaluated strings take no orders."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from turngym.envs.adapters.bfcl import BFCL, PINS
from turngym.errors import ConfigError, UnknownName
from worker_packages import call, require_worker, solve, stay_silent


@pytest.fixture(autouse=True, scope="module")
def _worker() -> None:
    require_worker(PINS)


@pytest.mark.parametrize("category", ["base", "miss_func", "miss_param", "long_context"])
def test_solutions_score_one_and_silence_nothing(category: Any) -> None:
    env = BFCL(category=category)
    tasks = env.task_ids()
    assert len(tasks) == 200
    for task in tasks[::25]:
        assert solve(env, task)["success"], task
        assert stay_silent(env, task)["success"] is False, task


@pytest.mark.slow
def test_all_800_solutions_score_one(record_property: Any) -> None:
    env = BFCL()
    tasks = env.task_ids()
    assert len(tasks) == 800
    missed = [task for task in tasks if not solve(env, task)["success"]]
    empty = sum(stay_silent(env, task)["success"] for task in tasks)
    record_property("silence_succeeds", empty)
    assert (missed, empty) == ([], 0)


def test_one_call_less_or_another_value_is_a_failure() -> None:
    env = BFCL(task="multi_turn_base_0")
    for change in (lambda a: a.split("\n", 1)[1], lambda a: a.replace('"temp"', '"tmp"')):
        env.reset(seed=0)
        action = change(env.optimal_action())
        while True:
            _, reward, terminated, _, info = env.step(action)
            if terminated:
                break
            action = env.optimal_action()
        assert (reward, info["success"]) == (0.0, False)
        assert info["error_type"] == "multi_turn:instance_state_mismatch"


def test_a_turn_without_its_calls_is_what_the_checker_says() -> None:
    info = stay_silent(BFCL(), "multi_turn_base_0")
    assert info["error_type"] == "multi_turn:empty_turn_model_response"


def test_a_function_that_is_held_back_is_shown_when_its_turn_comes() -> None:
    env = BFCL(task="multi_turn_miss_func_0")
    _, info = env.reset(seed=0)
    assert "sort" not in {tool["function"]["name"] for tool in info["tools"]}
    for _ in range(3):
        text, *_, info = env.step("Done.")
    assert "sort" in {tool["function"]["name"] for tool in info["tools"]}
    assert '"name": "sort"' in text
    assert text.endswith("What about now?")


def test_schemas_speak_json_schema() -> None:
    types: set[str] = set()

    def look(schema: Any) -> None:
        if isinstance(schema, dict):
            types.update([schema["type"]] if isinstance(schema.get("type"), str) else [])
            for inner in schema.values():
                look(inner)

    for task in BFCL().task_ids()[:200:20]:
        for tool in BFCL(task=task).reset(seed=0)[1]["tools"]:
            look(tool["function"]["parameters"])
    assert types <= {"object", "array", "string", "number", "integer", "boolean"}


def test_too_many_messages_in_one_turn_end_the_episode_as_the_package_does() -> None:
    env = BFCL(task="multi_turn_base_0")
    env.reset(seed=0)
    steps = [env.step(call("ls")) for _ in range(21)]
    assert [truncated for *_, truncated, _ in steps] == [False] * 20 + [True]
    assert steps[-1][-1]["success"] is False
    assert steps[-1][-1]["error_type"] == "multi_turn:force_terminated"


def test_unknown_functions_and_parameters_name_the_nearest() -> None:
    env = BFCL(task="multi_turn_base_0")
    env.reset(seed=0)
    assert "Did you mean 'mkdir'?" in env.step(call("mkdirs", dir_name="x"))[0]
    said = env.step(call("cd", folders="x"))[0]
    assert said.endswith("unexpected keyword argument 'folders'. Did you mean 'folder'?")
    assert "a tool call is not closed" in env.step("<tool_call>ls")[0]


@pytest.mark.parametrize(
    "hostile",
    [
        call("__import__('pathlib').Path('pwned').touch"),
        call("open", file="pwned", mode="w"),
        call("_load_scenario", scenario={}),
        call("ls", **{"a=open('pwned','w'),b": 1}),
        call("ls", **{"lambda": 1}),
        call("cd", folder="'+str(open('pwned','w'))+'"),
        call("cd", folder="\\');open('pwned','w')#"),
        call("cd", folder="{open('pwned','w')}\n\r\0"),
    ],
)
def test_no_string_is_run_as_code(hostile: str) -> None:
    env = BFCL(task="multi_turn_base_0")
    env.reset(seed=0)
    written = [PINS.folder / "pwned", Path("pwned")]  # where the worker runs, and here
    for path in written:
        path.unlink(missing_ok=True)
    text, *_ = env.step(hostile)
    assert "rror" in text
    assert not any(path.exists() for path in written)


class Hurried(BFCL):
    act_cpu_s: ClassVar[float] = 1.0


def test_a_sum_that_never_ends_is_answered_and_two_of_them_are_the_policys_failure() -> None:
    env = Hurried(task=_task_with("power"))
    env.reset(seed=0)
    endless = call("power", base=7, exponent=10**9)
    text, _, terminated, _, _ = env.step(endless)
    assert (text, terminated) == ("Error during execution: it took too long", False)
    text, reward, terminated, _, info = env.step(endless + endless)
    assert (reward, terminated, info["success"]) == (0.0, True, False)
    assert "took more than 1 seconds or too much memory" in text
    env.fork()[0].close()  # what is over can be forked as well
    assert solve(env, env.task or "")["success"]


def test_folders_without_end_are_the_policys_failure() -> None:
    env = BFCL(task="multi_turn_base_0")
    env.reset(seed=0)
    deeper = call("mkdir", dir_name="d") + call("cd", folder="d")
    *_, terminated, _, info = env.step(deeper * 600)
    assert terminated
    assert info["success"] is False


def _task_with(function: str) -> str:
    for task in BFCL(category="base").task_ids():
        tools = BFCL(task=task).reset(seed=0)[1]["tools"]
        if function in {tool["function"]["name"] for tool in tools}:
            return task
    raise AssertionError(function)


def test_snapshots_outlive_the_worker() -> None:
    env = BFCL(task="multi_turn_base_3")
    env.reset(seed=0)
    env.step(env.optimal_action())
    snapshot, key = env.snapshot(), env.state_key()
    ahead = [env.step(env.optimal_action()) for _ in range(2)]
    env.slot.close()
    env.restore(snapshot)
    assert env.state_key() == key
    assert [env.step(env.optimal_action()) for _ in range(2)] == ahead


def test_the_same_state_by_another_way_has_the_same_key() -> None:
    one, two = BFCL(task="multi_turn_base_0"), BFCL(task="multi_turn_base_0")
    for env in (one, two):
        env.reset(seed=0)
    one.step(call("pwd"))
    two.step(call("pwd"))
    assert one.state_key() == two.state_key()
    one.step(call("cd", folder="document"))
    two.step(call("cd", folder="nowhere"))
    assert one.state_key() != two.state_key()


def test_long_output_is_cut_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turngym.envs.adapters.worker_env._MAX_TOOL_CHARS", 20)
    env = BFCL(task="multi_turn_base_0")
    env.reset(seed=0)
    text, *_ = env.step(call("ls", a=True))
    assert text.startswith('{"current_directory_')
    assert text.endswith("more characters]")


def test_what_does_not_exist_is_refused_by_name() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'miss_func'"):
        BFCL(category="mis_func")  # type: ignore[arg-type]
    with pytest.raises(
        UnknownName, match=r"task of BFCL 'multi_turn_bas_0'\. Did you mean 'multi_turn_base_"
    ):
        BFCL().reset(seed=0, options={"task": "multi_turn_bas_0"})
    with pytest.raises(UnknownName, match="task of BFCL"):
        BFCL(category="base", task="multi_turn_miss_func_0").reset(seed=0)
    with pytest.raises(ConfigError, match="max_turns"):
        BFCL(max_turns=0)
