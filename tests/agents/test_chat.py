"""`ByteRenderer`: append-only, reversible, and deaf to whatever a text says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngym.agents.chat import ByteRenderer
from turngym.tree import Origin
from turngym.types import Message

END, SYSTEM, USER, ASSISTANT, TOOL = 256, 257, 258, 259, 260
R = ByteRenderer()
texts = st.text()


def test_messages_are_laid_out_as_worked_out_by_hand() -> None:
    opened = R.open([Message("system", "a"), Message("user", "bé")])
    assert opened.ids.tolist() == [SYSTEM, 97, END, USER, 98, 0xC3, 0xA9, END, ASSISTANT]
    assert opened.origin == Origin.ENV
    assert opened.ids.dtype == np.int32
    reply = R.reply([Message("tool", "ok")], ended=True)
    assert reply.ids.tolist() == [TOOL, 111, 107, END, ASSISTANT]


def test_an_action_that_did_not_end_is_ended_by_what_follows() -> None:
    ended = R.reply([Message("tool", "ok")], ended=True).ids.tolist()
    assert R.reply([Message("tool", "ok")], ended=False).ids.tolist() == [END, *ended]


@given(texts)
def test_an_action_comes_back_as_its_text(text: str) -> None:
    ids = R.action(text)
    assert R.text(ids) == text
    assert ids[-1] in R.stop_ids
    assert not set(ids[:-1].tolist()) & set(R.stop_ids)


@given(st.lists(st.integers(0, 260)))
def test_any_ids_have_a_text(ids: list[int]) -> None:
    R.text(np.array(ids, np.int32))


def test_lone_surrogates_become_question_marks() -> None:
    assert R.text(R.action("a\ud800b")) == "a?b"


def test_an_action_that_was_cut_within_a_character_is_still_a_text() -> None:
    assert R.text(R.action("é")[:1]) == "\ufffd"
    assert R.text(np.empty(0, np.int32)) == ""


@given(st.lists(texts, min_size=1), st.lists(st.tuples(texts, texts), max_size=4))
def test_the_ledger_of_an_episode_is_the_render_of_all_its_messages(
    opening: list[str], turns: list[tuple[str, str]]
) -> None:
    messages = [Message("user", text) for text in opening]
    ledger = [R.open(messages).ids]
    for said, answered in turns:
        ledger += [R.action(said), R.reply([Message("tool", answered)], ended=True).ids]
        messages += [Message("assistant", said), Message("tool", answered)]
    assert np.concatenate(ledger).tolist() == R.open(messages).ids.tolist()


@given(texts)
def test_no_text_becomes_structure(text: str) -> None:
    ids = R.open([Message("user", text)]).ids
    assert ids[ids >= 256].tolist() == [USER, END, ASSISTANT]


def test_equal_renderers_have_equal_hashes() -> None:
    assert ByteRenderer().hash == R.hash
    assert len(R.hash) == 32


def test_an_unknown_role_is_an_error() -> None:
    with pytest.raises(KeyError):
        R.open([Message("narrator", "x")])  # type: ignore[arg-type]
