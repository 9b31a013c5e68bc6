"""Mastermind's answers by hand and by definition, and the minimax policy's known figures."""

from __future__ import annotations

from math import log
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngym.envs.text.mastermind import Mastermind, MastermindState, Secret, codebook, compare
from turngym.toolcalls import format_call
from turngym.types import ToolCall

CODES = st.lists(st.integers(0, 3), min_size=4, max_size=4).map(tuple)


def guess(code: Any) -> str:
    return format_call(ToolCall("guess", {"code": code}))


def game(*, turn_reward: float = 0.0) -> Mastermind:
    """Three pegs of red, blue, green, gold; the code is blue blue gold; 6 turns."""
    env = Mastermind(colours=4, turn_reward=turn_reward)
    env.reset(seed=0)
    env.set_state(MastermindState(Secret(("red", "blue", "green", "gold"), (1, 1, 3), 6)))
    return env


def test_a_won_game_reads_as_worked_out_by_hand() -> None:
    env = game()
    for code, text in [
        ("red red red", "0 exact, 0 misplaced."),
        ("blue gold red", "1 exact, 1 misplaced."),
        ("gold blue blue", "1 exact, 2 misplaced."),
        ("  gold green  blue ", "0 exact, 2 misplaced."),
    ]:
        observation, reward, terminated, truncated, info = env.step(guess(code))
        assert (observation, reward, terminated, truncated, info["doomed"]) == (
            text,
            0.0,
            False,
            False,
            False,
        )
    observation, reward, terminated, _, info = env.step(guess("blue blue gold"))
    assert (observation, reward, terminated, info["success"], info["doomed"]) == (
        "Correct.",
        1.0,
        True,
        True,
        False,
    )


@pytest.mark.parametrize(
    "code", ["red red", "red red red red", "red red pink", "", 7, None, ["red"] * 3, {"a": 1}]
)
def test_a_code_of_another_form_is_answered_with_the_right_one(code: Any) -> None:
    env = game()
    assert env.step(guess(code))[0] == "Error: a code is 3 of red blue green gold."
    assert env.get_state().history == ()


def test_information_is_paid_by_how_many_codes_a_guess_rules_out() -> None:
    env = game(turn_reward=0.5)
    # No red in it: 27 of 64 codes are left.
    assert env.step(guess("red red red"))[1] == pytest.approx(0.5 * log(64 / 27) / log(64))
    # No red, two blues: the third peg is green or gold in one of three places: 6 codes.
    assert env.step(guess("blue blue blue"))[1] == pytest.approx(0.5 * log(27 / 6) / log(64))
    assert env.step(guess("blue blue gold"))[1] == pytest.approx(0.5 + 0.5 * log(6) / log(64))


def test_the_last_turn_dooms_and_truncates() -> None:
    env = game()
    steps = [env.step(guess("red red red")) for _ in range(6)]
    assert [truncated for *_, truncated, _ in steps] == [False] * 5 + [True]
    assert [info["doomed"] for *_, info in steps] == [False] * 5 + [True]


@given(guess=CODES, code=CODES)
def test_misplaced_pegs_are_those_that_match_after_the_exact_ones_are_taken_out(
    guess: Any, code: Any
) -> None:
    rest = [(g, c) for g, c in zip(guess, code, strict=True) if g != c]
    left = [c for _, c in rest]
    misplaced = 0
    for colour, _ in rest:
        if colour in left:
            left.remove(colour)
            misplaced += 1
    assert compare(guess, code) == (4 - len(rest), misplaced)


@given(history=st.lists(CODES, max_size=4), code=CODES)
def test_the_consistent_codes_are_those_that_give_the_same_answers(history: list[Any], code: Any) -> None:
    book = codebook(4, 4)
    answered = tuple((g, compare(g, code)) for g in history)
    expected = [i for i, c in enumerate(book.codes) if all(compare(g, c) == a for g, a in answered)]
    assert book.consistent(answered).tolist() == expected
    assert book.codes.index(code) in expected


def test_minimax_has_knuths_figures() -> None:
    # Knuth 1976: four pegs of six colours never need more than 5 guesses, and 1122 is the first of them.
    book = codebook(4, 6)
    assert book.worst_case() == 5
    assert book.codes[book.best(np.arange(1296))] == (0, 0, 1, 1)


@pytest.mark.parametrize(("pegs", "colours"), [(1, 2), (1, 8), (2, 3), (3, 4), (4, 3)])
def test_the_policy_finds_every_code_without_slack(pegs: int, colours: int) -> None:
    env = Mastermind(pegs=pegs, colours=colours, palette=8, slack=0)
    env.reset(seed=0)
    layout = env.get_state().layout
    worst = 0
    for code in codebook(pegs, colours).codes:
        env.reset(seed=0)
        env.set_state(MastermindState(Secret(layout.palette, code, layout.turns)))
        turns, over = 0, False
        while not over:
            *_, over, truncated, _ = env.step(env.optimal_action())
            assert over or not truncated
            turns += 1
        worst = max(worst, turns)
    assert worst == layout.turns


def test_a_palette_of_all_colours_in_play_fixes_them() -> None:
    env = Mastermind(colours=4, palette=4)
    for seed in range(5):
        env.reset(seed=seed)
        assert env.get_state().layout.palette == ("red", "blue", "green", "gold")
