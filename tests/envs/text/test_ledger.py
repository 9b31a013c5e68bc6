"""Ledger's rules, by a transcript worked out by hand, and what its pages add up to."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turngym.envs.text.ledger import ACCOUNTS, Book, Ledger, LedgerState
from turngym.toolcalls import format_call
from turngym.types import ToolCall

NEXT = format_call(ToolCall("next", {}))


def answer(amount: Any) -> str:
    return format_call(ToolCall("answer", {"amount": amount}))


def game() -> Ledger:
    """Two pages: ann gets 7 and pays 2, bob gets 3. Ann is asked; she has 5. Five turns."""
    env = Ledger(entries=3, accounts=2, page=2)
    env.reset(seed=0)
    book = Book(
        pages=("ann +7, bob +3", "ann -2"),
        balances=((0, 0), (7, 3), (5, 3)),
        remarks=("It rains.", "A dog barks."),
        asked="ann",
        turns=5,
    )
    env.set_state(LedgerState(book))
    return env


def test_a_won_game_reads_as_worked_out_by_hand() -> None:
    env = game()
    for action, text in [
        (answer(0), "Error: nothing is asked before the last page."),
        (NEXT, "Page 1: ann +7, bob +3. It rains."),
        (NEXT, "Page 2: ann -2. A dog barks. How much has ann?"),
        (NEXT, "No more pages. How much has ann?"),
    ]:
        observation, reward, terminated, truncated, info = env.step(action)
        assert (observation, reward, terminated, truncated, info["doomed"]) == (
            text,
            0.0,
            False,
            False,
            False,
        )
    observation, reward, terminated, _, info = env.step(answer(5))
    assert (observation, reward, terminated, info["success"], info["doomed"]) == (
        "Right.",
        1.0,
        True,
        True,
        False,
    )


def test_a_wrong_answer_ends_the_episode() -> None:
    env = game()
    env.step(NEXT)
    env.step(NEXT)
    observation, reward, terminated, truncated, info = env.step(answer(3))
    assert (observation, reward, terminated, truncated) == ("Wrong.", 0.0, True, False)
    assert info["success"] is False
    assert info["doomed"] is True


@pytest.mark.parametrize("amount", [True, "5", 5.0, None, [5]])
def test_only_an_integer_is_an_answer_and_another_is_not_final(amount: Any) -> None:
    env = game()
    env.step(NEXT)
    env.step(NEXT)
    observation, _, terminated, _, info = env.step(answer(amount))
    assert (observation, terminated, info["doomed"]) == ("Error: amount is an integer.", False, False)
    assert env.step(answer(5))[4]["success"] is True


def test_wasting_more_turns_than_the_slack_dooms() -> None:
    # Five turns, three needed (two pages, one answer): the third wasted turn is the first irrecoverable one.
    env = game()
    assert [env.step("…")[4]["doomed"] for _ in range(3)] == [False, False, True]


def test_the_written_policy_notes_every_balance() -> None:
    env = game()
    env.step(NEXT)
    assert env.optimal_action() == f"ann 7, bob 3\n{NEXT}"
    env.step(NEXT)
    assert env.optimal_action() == f"ann 5, bob 3\n{answer(5)}"


@given(
    seed=st.integers(0, 2**31),
    accounts=st.integers(1, 8),
    entries=st.integers(8, 60),
    page=st.integers(1, 9),
    noise=st.integers(0, 6),
)
@settings(max_examples=40, deadline=None)
def test_the_pages_add_up_to_the_balances(
    seed: int, accounts: int, entries: int, page: int, noise: int
) -> None:
    env = Ledger(accounts=accounts, entries=entries, page=page, noise=noise)
    env.reset(seed=seed)
    totals, count, text = dict.fromkeys(ACCOUNTS[:accounts], 0), 0, ""
    while "How much" not in text:
        text = env.step(NEXT)[0]
        found = re.findall(r"(\w+) ([+-]\d)", text)
        assert 1 <= len(found) <= page
        for name, amount in found:
            totals[name] += int(amount)
            assert 0 <= totals[name] <= 99
        count += len(found)
        assert text.count(". ") + text.count("?") >= noise
    assert count == entries
    asked = re.search(r"How much has (\w+)\?", text)
    assert asked is not None
    assert env.step(answer(totals[asked[1]]))[4]["success"] is True


def test_the_question_is_not_in_the_text_before_the_last_page() -> None:
    env = Ledger()
    text, _ = env.reset(seed=2)
    pages = len(env.get_state().layout.pages)
    seen = [text] + [env.step(NEXT)[0] for _ in range(pages)]
    assert ["How much" in text for text in seen] == [False] * pages + [True]
