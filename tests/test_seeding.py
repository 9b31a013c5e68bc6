"""Seeds: the same for ever, unrelated to each other, and nobody else's randomness is touched."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngym.errors import ConfigError
from turngym.seeding import derive, generator, turn_seed

STEP = st.integers(0, 2**32 - 1) | st.text(max_size=6)


def test_seeds_stay_what_they_are() -> None:
    """Written down once: a change here changes the result of every run that anybody has published."""
    assert derive(0, "task", 3) == 3646371652942923487
    assert derive(2**63 - 1, "a", 0, 1) == 441011089515851021
    assert generator(7, "x").random() == 0.4604524743808862


def test_turn_seeds_are_splitmix64() -> None:
    """Steele et al., 2014; the first outputs of the reference implementation for the seed 1234567, halved."""
    reference = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [turn_seed(1234567, turn) for turn in range(4)] == [value >> 1 for value in reference]


@given(root=st.integers(0, 2**63 - 1), path=st.lists(STEP, max_size=4), turn=st.integers(0, 10**6))
def test_seeds_have_63_bits_and_no_memory(root: int, path: list[int | str], turn: int) -> None:
    assert 0 <= derive(root, *path) < 2**63
    assert derive(root, *path) == derive(root, *path)
    assert 0 <= turn_seed(root, turn) < 2**63
    assert generator(root, *path).integers(1 << 62) == generator(root, *path).integers(1 << 62)


def test_no_two_places_of_a_run_share_a_seed() -> None:
    seeds = {derive(root) for root in range(20)}
    seeds |= {
        derive(root, level, i)
        for root, level, i in itertools.product(range(20), ["task", "member", "eval"], range(100))
    }
    seeds |= {derive(root, i, j) for root, i, j in itertools.product(range(20), range(10), range(10))}
    turns = {turn_seed(derive(0, "member", m), turn) for m, turn in itertools.product(range(100), range(100))}
    assert len(seeds) == 20 + 6000 + 2000
    assert len(turns) == 10_000


def test_words_and_lengths_make_a_difference() -> None:
    paths: list[tuple[int | str, ...]] = [
        (),
        (0,),
        (0, 0),
        ("",),
        ("0",),
        ("a", "b"),
        ("ab",),
        ("b", "a"),
        ("a", 0),
        (0, "a"),
    ]
    assert len({derive(1, *path) for path in paths}) == len(paths)


@pytest.mark.parametrize("step", [-1, 2**32, 2**63])
def test_a_step_that_would_be_split_is_refused(step: int) -> None:
    """SeedSequence cuts integers into words of 32 bits: (2**32,) and (0, 1) would share a seed."""
    with pytest.raises(ConfigError, match="integer in"):
        derive(0, step)


def test_bits_of_turn_seeds_are_fair() -> None:
    """Each of 63 bits over 4096 turns of neighbouring members: a fair coin is off by 5 sigma with chance 4e-5."""
    seeds = np.array([turn_seed(member, turn) for member in range(64) for turn in range(64)], np.uint64)
    shares = [((seeds >> np.uint64(bit)) & np.uint64(1)).mean() for bit in range(63)]
    assert np.abs(np.array(shares) - 0.5).max() < 5 * 0.5 / 64


def test_global_generators_are_not_touched() -> None:
    state, array = random.getstate(), np.random.get_state()[1].copy()
    derive(0, "task", 1)
    generator(0, "x").random()
    turn_seed(0, 0)
    assert random.getstate() == state
    assert (np.random.get_state()[1] == array).all()
