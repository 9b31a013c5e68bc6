"""The space of all text."""

from __future__ import annotations

import pytest
from gymnasium.error import CustomSpaceError
from gymnasium.spaces import Text
from gymnasium.vector.utils import create_shared_memory
from hypothesis import given
from hypothesis import strategies as st

from turngym.envs.spaces import Utf8Text


@given(st.text(st.characters(codec=None), max_size=50))
def test_any_text_is_in_it(text: str) -> None:
    assert text in Utf8Text()


def test_what_is_no_text_or_too_long_is_not() -> None:
    assert "abcd" not in Utf8Text(3)
    assert "abc" in Utf8Text(3)
    assert b"abc" not in Utf8Text()
    assert 3 not in Utf8Text()


def test_samples_are_short_and_follow_from_the_seed() -> None:
    one, two = Utf8Text(seed=3), Utf8Text(seed=3)
    texts = [one.sample() for _ in range(50)]
    assert texts == [two.sample() for _ in range(50)]
    assert all(text in one and text.isascii() and len(text) <= 64 for text in texts)
    assert len(one.sample(mask=(5, None))) == 5


def test_equal_spaces_are_equal() -> None:
    assert Utf8Text(5) == Utf8Text(5) != Utf8Text(6)
    assert Utf8Text(5) != Text(5)
    assert repr(Utf8Text(5)) == "Utf8Text(5)"


def test_shared_memory_is_refused_with_the_way_around() -> None:
    with pytest.raises(CustomSpaceError, match="'shared_memory': False"):
        create_shared_memory(Utf8Text(), n=2)
