"""The shared words: stop reasons, outcomes, budgets, messages, and dataclasses built from outside data."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest

from turngym.errors import ConfigError, UnknownName
from turngym.types import Budget, Message, Outcome, Reply, StopReason, ToolCall, from_mapping


@pytest.mark.parametrize(
    ("stop", "fault", "budget"),
    [
        (StopReason.TERMINATED, False, False),
        (StopReason.ENV_LIMIT, False, False),
        (StopReason.TURNS, False, True),
        (StopReason.CONTEXT, False, True),
        (StopReason.EPISODE_TOKENS, False, True),
        (StopReason.TOOL_OUTPUT, False, True),
        (StopReason.WALL_TIME, False, True),
        (StopReason.ENV_FAULT, True, False),
        (StopReason.HARNESS_FAULT, True, False),
        (StopReason.ABORTED, True, False),
    ],
)
def test_a_path_ends_by_the_task_a_budget_or_a_fault(stop: StopReason, fault: bool, budget: bool) -> None:
    assert (stop.is_fault, stop.is_budget) == (fault, budget)


@pytest.mark.parametrize("stop", StopReason)
@pytest.mark.parametrize("success", [True, False, None])
def test_the_outcome_follows_from_stop_and_verifier(stop: StopReason, success: bool | None) -> None:
    outcome = Outcome.of(stop, success)
    assert outcome.counts == (not stop.is_fault)  # a fault is never a reward
    if stop.is_fault:
        expected = {
            "env_fault": Outcome.ENV_FAULT,
            "harness_fault": Outcome.HARNESS_FAULT,
            "aborted": Outcome.ABORTED,
        }
        assert outcome is expected[stop]
    elif success:
        assert outcome is Outcome.SUCCESS
    else:
        assert outcome is (Outcome.TRUNCATED if stop.is_budget else Outcome.FAILURE)


def test_words_are_their_values() -> None:
    """Files and metric keys hold them as text."""
    assert f"stop/{StopReason.EPISODE_TOKENS}" == "stop/episode_tokens"
    assert StopReason("turns") is StopReason.TURNS
    assert pickle.loads(pickle.dumps(Outcome.SUCCESS)) is Outcome.SUCCESS


# ---------------------------------------------------------------------- budgets


def test_a_budget_without_limits() -> None:
    budget = Budget()
    assert budget.turn_tokens == 64
    assert [getattr(budget, f.name) for f in dataclasses.fields(budget) if f.name != "turn_tokens"] == [
        None
    ] * 5


@pytest.mark.parametrize(
    "name", ["turns", "turn_tokens", "context_tokens", "episode_tokens", "observation_tokens"]
)
@pytest.mark.parametrize("value", [0, -1, 2.5, 8.0, "8", True, float("nan")])
def test_a_limit_is_a_positive_integer(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"budget {name} must be a positive integer, got"):
        Budget(**{name: value})


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), "8", True])
def test_wall_time_is_a_positive_number(value: Any) -> None:
    with pytest.raises(ConfigError, match="budget wall_time_s must be a positive number"):
        Budget(wall_time_s=value)
    assert Budget(wall_time_s=0.5).wall_time_s == 0.5
    assert Budget(wall_time_s=2).wall_time_s == 2


def test_one_action_always_has_a_limit() -> None:
    with pytest.raises(ConfigError, match="turn_tokens"):
        Budget(turn_tokens=None)  # type: ignore[arg-type]


# ---------------------------------------------------------------------- messages


def test_a_message_leaves_out_what_is_empty() -> None:
    assert Message("user", "go").to_dict() == {"role": "user", "content": "go"}


def test_a_message_has_the_common_form() -> None:
    call = ToolCall("go", {"direction": "east"}, id="c1")
    assert Message("assistant", "", (call,)).to_dict() == {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "go", "arguments": {"direction": "east"}}}
        ],
    }
    assert Message("tool", "done", name="go", tool_call_id="c1").to_dict() == {
        "role": "tool",
        "content": "done",
        "name": "go",
        "tool_call_id": "c1",
    }


def test_a_dict_of_a_message_is_ones_own() -> None:
    call = ToolCall("go", {"n": 1})
    Message("assistant", "", (call,)).to_dict()["tool_calls"][0]["function"]["arguments"]["n"] = 2
    assert call.arguments == {"n": 1}


def test_replies_share_no_info() -> None:
    one, other = Reply("a"), Reply("b")
    one.info["x"] = 1
    assert other.info == {}


# ---------------------------------------------------------------------- data from outside


def test_from_mapping_builds_the_dataclass() -> None:
    assert from_mapping(Budget, {"turns": 8}, where="[budget]") == Budget(turns=8)


def test_from_mapping_names_the_nearest_field() -> None:
    with pytest.raises(UnknownName, match=r"unknown option of \[budget\] 'turn'\. Did you mean 'turns'\?"):
        from_mapping(Budget, {"turn": 8}, where="[budget]")


def test_from_mapping_passes_on_what_the_class_refuses() -> None:
    with pytest.raises(ConfigError, match="turns must be a positive integer, got '8'"):
        from_mapping(Budget, {"turns": "8"}, where="[budget]")


def test_from_mapping_says_what_is_missing() -> None:
    with pytest.raises(ConfigError, match=r"a call: .*missing 1 required positional argument: 'arguments'"):
        from_mapping(ToolCall, {"name": "go"}, where="a call")
