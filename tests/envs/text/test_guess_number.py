"""GuessNumber's rules, by a transcript worked out by hand."""

from __future__ import annotations

from math import log
from typing import Any

import pytest

from turngym.envs.text.guess_number import GuessNumber, GuessState, Range
from turngym.toolcalls import format_call
from turngym.types import ToolCall


def guess(number: Any) -> str:
    return format_call(ToolCall("guess", {"number": number}))


def game(*, turn_reward: float = 0.0) -> GuessNumber:
    """16 numbers, 10 to 25; the hidden one is 12; 6 turns."""
    env = GuessNumber(size=16, turn_reward=turn_reward)
    env.reset(seed=0)
    env.set_state(GuessState(Range(10, 25, 12, 6), 10, 25))
    return env


def test_a_won_game_reads_as_worked_out_by_hand() -> None:
    env = game()
    for number, text in [
        (17, "Lower. It is in 10 to 16."),
        (99, "Lower. It is in 10 to 16."),  # nothing new
        (11, "Higher. It is in 12 to 16."),
        (-5, "Higher. It is in 12 to 16."),
    ]:
        observation, reward, terminated, truncated, info = env.step(guess(number))
        assert (observation, reward, terminated, truncated, info["doomed"]) == (
            text,
            0.0,
            False,
            False,
            False,
        )
    observation, reward, terminated, _, info = env.step(guess(12))
    assert (observation, reward, terminated, info["success"], info["doomed"]) == (
        "Correct.",
        1.0,
        True,
        True,
        False,
    )


def test_information_is_paid_by_how_much_a_guess_rules_out() -> None:
    env = game(turn_reward=0.5)
    # 16 → 8 → 2 → (nothing new) → 1: log2 gains of 1, 2, 0 and 1 bit out of 4, half of the reward for all 4.
    env.set_state(GuessState(Range(10, 25, 11, 6), 10, 25))
    rewards = [env.step(guess(n))[1] for n in (18, 12, 30, 11)]
    assert rewards == pytest.approx([0.125, 0.5 * log(8 / 2) / log(16), 0.0, 0.5 + 0.125])
    assert sum(rewards) == pytest.approx(1.0)


@pytest.mark.parametrize("number", [True, "12", 12.0, None, [12], {"a": 1}])
def test_only_an_integer_is_a_guess(number: Any) -> None:
    env = game()
    assert env.step(guess(number))[0] == "Error: number is an integer."


def test_zero_is_a_guess() -> None:
    assert game().step(guess(0))[0].startswith("Higher.")


def test_the_last_turn_dooms_and_truncates() -> None:
    env = game()
    for _ in range(5):
        *_, truncated, info = env.step(guess(25))
        assert not truncated
        assert not info["doomed"]
    *_, terminated, truncated, info = env.step(guess(25))
    assert (terminated, truncated, info["success"], info["doomed"]) == (False, True, False, True)


@pytest.mark.parametrize("size", [2, 3, 7, 8, 33, 100])
def test_bisection_finds_every_number_without_slack(size: int) -> None:
    env = GuessNumber(size=size, low_max=1, slack=0)
    env.reset(seed=0)
    worst = 0
    for number in range(1, size + 1):
        env.reset(seed=0)
        env.set_state(GuessState(Range(1, size, number, size.bit_length()), 1, size))
        turns, over = 0, False
        while not over:
            *_, over, truncated, _ = env.step(env.optimal_action())
            assert over or not truncated
            turns += 1
        worst = max(worst, turns)
    assert worst == int(log(size, 2) + 1e-9) + 1 == env.turn_limit(env.get_state())
