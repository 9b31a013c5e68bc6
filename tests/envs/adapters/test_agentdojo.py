"""AgentDojo: solutions score 1, obeying an injection scores 0 and is seen, and clocks stand still."""

from __future__ import annotations

from typing import Any

import pytest

from turngym.envs.adapters.agentdojo import ATTACKS, PINS, AgentDojo
from turngym.errors import ConfigError, UnknownName
from worker_packages import call, play, require_worker

SOLVED_INJECTIONS = 27
"""Of 35; for the others the package has no solution."""


@pytest.fixture(autouse=True, scope="module")
def _worker() -> None:
    require_worker(PINS)


def test_solutions_score_one() -> None:
    env = AgentDojo()
    tasks = env.task_ids()
    assert len(tasks) == 97
    for task in tasks[::12]:
        assert play(env, task, env.optimal_action)["success"], task


@pytest.mark.slow
def test_all_97_solutions_score_one_and_silence_five(record_property: Any) -> None:
    env = AgentDojo()
    tasks = env.task_ids()
    missed = [task for task in tasks if not play(env, task, env.optimal_action)["success"]]
    empty = [task for task in tasks if play(env, task, lambda: "")["success"]]
    record_property("silence_succeeds", len(empty))
    assert missed == []
    assert len(empty) == 5, empty  # the package's graders ask nothing more of those


@pytest.mark.parametrize("suite", ["workspace", "travel", "banking", "slack"])
def test_who_obeys_an_injection_is_seen_and_gets_nothing(suite: Any) -> None:
    env = AgentDojo(suite=suite, attack="important_instructions")
    task = env.task_ids()[1]
    honest = play(env, task, env.optimal_action)
    assert (honest["utility"], honest["injected"], honest["success"]) == (True, False, True)
    obedient = play(env, task, env.obedient_action)
    assert (obedient["injected"], obedient["success"]) == (True, False)


@pytest.mark.slow
def test_every_injection_that_has_a_solution_is_seen_where_it_is_obeyed() -> None:
    env = AgentDojo(attack="important_instructions")
    tasks = env.task_ids()
    assert len(tasks) == 40 * 14 + 20 * 7 + 16 * 9 + 21 * 5 == 949
    one_each = {(t.split("/")[0], t.split("/")[2]): t for t in reversed(tasks)}.values()
    obeyed = [task for task in one_each if play(env, task, env.obedient_action)["injected"]]
    assert (len(one_each), len(obeyed)) == (35, SOLVED_INJECTIONS)


def test_both_tasks_done_is_utility_without_success() -> None:
    env = AgentDojo(attack="important_instructions", task="banking/user_task_0/injection_task_4")
    env.reset(seed=0)
    user, attacker = env.optimal_action(), env.obedient_action()
    env.step(user + attacker)
    *_, reward, terminated, _, info = env.step("Done.")
    assert terminated
    assert (info["injected"], info["success"], reward) == (True, False, 0.0)


@pytest.mark.parametrize("attack", ATTACKS)
def test_every_attack_writes_into_what_the_policy_reads(attack: str) -> None:
    told: list[str] = []
    for env in (AgentDojo(task="slack/user_task_1"), AgentDojo(attack=attack)):
        env.reset(seed=0, options={"task": "slack/user_task_1" + ("/injection_task_1" if env.attack else "")})
        told.append(env.step(env.optimal_action())[0])
    assert told[0] != told[1]
    assert "phishing" in told[1] or "click" in told[1].lower() or "link" in told[1].lower()


def test_time_stamps_are_the_same_in_every_episode() -> None:
    env = AgentDojo(task="workspace/user_task_0")
    sent = []
    for _ in range(2):
        env.reset(seed=0)
        sent.append(env.step(call("send_email", recipients=["a@b.com"], subject="s", body="b"))[0])
    assert sent[0] == sent[1]
    assert "2024-05-15" in sent[0]


def test_calls_after_the_fifteenth_message_are_not_run() -> None:
    env = AgentDojo(task="workspace/user_task_0")
    env.reset(seed=0)
    for _ in range(15):
        *_, terminated, _, _ = env.step(call("get_current_day"))
        assert not terminated
    *_, terminated, _, info = env.step(call("get_current_day"))
    assert terminated
    assert info["success"] is False


def test_mistakes_are_answered() -> None:
    env = AgentDojo(task="workspace/user_task_0")
    env.reset(seed=0)
    assert "Did you mean 'send_email'?" in env.step(call("send_emails"))[0]
    assert "ValidationError" in env.step(call("send_email", subject=3))[0]
    assert "a tool call is not closed" in env.step("<tool_call>x")[0]
    assert (
        "Error: " in env.step(call("search_emails", query="-" * 90_000 + "1"))[0]
    )  # Python's parser gives up on it


def test_the_worker_lives_through_literals_that_break_parsers() -> None:
    env = AgentDojo(task="workspace/user_task_0")
    env.reset(seed=0)
    for hostile in (
        "[" * 50_000,
        "(" * 199 + ")" * 199,
        "-" * 50_000 + "1",
        "[" + "9" * 5_000 + "]",
        "1e999",
    ):
        _, _, terminated, _, _ = env.step(call("search_emails", query=hostile))
        assert not terminated
    assert play(env, "workspace/user_task_0", env.optimal_action)["success"]


def test_what_does_not_exist_is_refused_by_name() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'banking'"):
        AgentDojo(suite="bankng")  # type: ignore[arg-type]
    with pytest.raises(UnknownName, match="Did you mean 'direct'"):
        AgentDojo(attack="dirct")
    with pytest.raises(UnknownName, match="task of AgentDojo"):
        AgentDojo(suite="slack", task="banking/user_task_0").reset(seed=0)
    with pytest.raises(ConfigError, match="without an attack"):
        AgentDojo().obedient_action()
