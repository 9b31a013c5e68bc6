"""Digests are equal exactly where values are, whatever their identity; what can't be seen into is refused."""

from __future__ import annotations

import copy
import itertools
import pickle
import random
import re
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngym.envs.state import state_digest
from turngym.errors import ConfigError

leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=12,
)


class Colour(Enum):
    RED = 1
    BLUE = 2


@dataclass
class Point:
    x: int
    y: list[int]


class Slots:
    __slots__ = ("a", "b")

    def __init__(self, a: int, b: int) -> None:
        self.a, self.b = a, b


class Plain:
    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


@given(values)
def test_copies_have_the_same_digest(value: Any) -> None:
    assert (
        state_digest(value)
        == state_digest(copy.deepcopy(value))
        == state_digest(pickle.loads(pickle.dumps(value)))
    )


@given(leaves, leaves)
def test_different_leaves_have_different_digests(one: Any, two: Any) -> None:
    same = (
        type(one) is type(two) and one == two and str(one) == str(two)
    )  # −0.0 equals 0.0 and is another state
    assert (state_digest(one) == state_digest(two)) == same


@given(st.dictionaries(st.text(), st.integers(), min_size=2))
def test_the_order_of_mappings_and_sets_does_not_count(value: dict[str, int]) -> None:
    turned = dict(reversed(value.items()))
    assert state_digest(value) == state_digest(turned)
    assert state_digest(set(value)) == state_digest(set(turned))


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ([1, 2], [2, 1]),
        (["ab"], ["a", "b"]),
        ([[1], [2]], [[1, 2]]),
        ({"a": 1}, {"a": 2}),
        (1, True),
        (1, 1.0),
        ("1", 1),
        (b"a", "a"),
        (Colour.RED, Colour.BLUE),
        (Point(1, [2]), Point(1, [3])),
        (Slots(1, 2), Slots(1, 3)),
        (Plain(a=1), Plain(a=2)),
        (Plain(a=1), Plain(b=1)),
        (np.zeros(3), np.zeros(4)),
        (np.zeros(3), np.zeros(3, np.float32)),
        (np.array(["a", None], object), np.array(["a", "b"], object)),
        (np.random.default_rng(1), np.random.default_rng(2)),
        (random.Random(1), random.Random(2)),
        (re.compile("a"), re.compile("a", re.IGNORECASE)),
    ],
)
def test_what_differs_has_another_digest(one: Any, two: Any) -> None:
    assert state_digest(one) != state_digest(two)
    assert state_digest(one) == state_digest(copy.deepcopy(one))


def test_a_generator_that_was_drawn_from_is_in_another_state() -> None:
    for generator in (random.Random(1), np.random.default_rng(1)):
        before = state_digest(generator)
        generator.random()
        assert state_digest(generator) != before


def cyclic() -> Any:
    thing = Plain()
    thing.me = thing  # type: ignore[attr-defined]
    return thing


@pytest.mark.parametrize(
    "value",
    [cyclic(), iter([1]), itertools.count(), len, Plain, random, lambda: None, (i for i in ())],
    ids=str,
)
def test_what_can_not_be_seen_into_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="override state_key"):
        state_digest(value)
