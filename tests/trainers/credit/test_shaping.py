"""Shaping, and credit over contexts: a rollout counts once, one that ran out of its budget is masked everywhere."""

from __future__ import annotations

import numpy as np
import pytest
from credit_trees import Leaf, Turn, actions, grow, score
from hypothesis import given
from hypothesis import strategies as st

from turngym.errors import ConfigError
from turngym.trainers.credit.shaping import overlong_penalty
from turngym.tree import Kind, Origin, Tree
from turngym.types import StopReason


def test_the_penalty_grows_over_the_buffer():
    found = overlong_penalty([16000, 16384, 18432, 20480], limit=20480, buffer=4096)
    assert found.tolist() == [0.0, 0.0, -0.5, -1.0]
    assert overlong_penalty([20480], limit=20480, buffer=4096, factor=0.5).tolist() == [-0.5]


@given(lengths=st.lists(st.integers(0, 30_000), min_size=2))
def test_a_longer_path_is_never_punished_less_and_nothing_is_rewarded(lengths):
    penalty = overlong_penalty(np.sort(lengths), limit=20_000, buffer=4_000)
    assert (np.diff(penalty) <= 0).all()
    assert (penalty <= 0).all()


@pytest.mark.parametrize(
    "options", [{"buffer": 0}, {"buffer": 101}, {"factor": -1.0}, {"factor": float("nan")}]
)
def test_a_buffer_that_does_not_fit_is_refused(options):
    with pytest.raises(ConfigError, match="overlong_penalty needs"):
        overlong_penalty([1], **{"limit": 100, "buffer": 10} | options)


# ---------------------------------------------------------------------- contexts


def contexts(count: int, leaf: Leaf) -> Turn | Leaf:
    return Turn([contexts(count - 1, leaf)], starts_context=True) if count > 1 else leaf


def test_three_contexts_and_one_are_two_rollouts():
    # per-segment statistics would give +.5 and −1.5
    tree = grow([contexts(3, Leaf(1.0)), 0.0])
    assert len(tree.segments(tree.leaves[0])) == 3
    found = score("grpo", tree).advantages
    assert [found[n] for n in actions(tree)] == pytest.approx([0.7071] * 3 + [-0.7071], abs=1e-4)
    memory = score("dr_grpo", tree).advantages  # no deviation: overwritten memories
    assert [memory[n] for n in actions(tree)] == [0.5] * 3 + [-0.5]


def test_an_overlong_rollout_is_masked_in_all_its_contexts_and_stays_in_the_statistics():
    tree = grow([contexts(3, Leaf(0.0, StopReason.TURNS)), 1.0, 1.0])
    credit = score("grpo", tree)
    assert sorted(credit.advantages) == actions(tree)[-2:]
    assert (credit.rollouts, credit.masked) == (3, 1)
    assert list(credit.advantages.values()) == pytest.approx(
        [0.5774] * 2, abs=1e-4
    )  # mean 2/3, deviation .5774


def test_a_summary_is_trained_with_the_advantage_of_its_rollout():
    tree = Tree(task_id="t", rollout_id="summarised")
    tree.add(-1, Kind.OBSERVATION, [0], origin=Origin.TEMPLATE)

    def sampled(parent: int, kind: Kind, reward: float | None = None) -> int:
        return tree.add(parent, kind, [1], origin=Origin.SAMPLED, logprobs=[-1.0], version=0, reward=reward)

    asked = tree.add(sampled(0, Kind.ACTION), Kind.OBSERVATION, [2], origin=Origin.HARNESS)
    summary = sampled(asked, Kind.SUMMARY)
    fresh = tree.add(summary, Kind.OBSERVATION, [0, 1], origin=Origin.HARNESS, starts_context=True)
    won, lost = sampled(fresh, Kind.ACTION, 1.0), sampled(0, Kind.ACTION, 0.0)
    tree[won].stop = tree[lost].stop = StopReason.TERMINATED
    found = score("grpo", tree).advantages
    assert found[summary] == found[won] == pytest.approx(0.7071, abs=1e-4)
    assert found[lost] == pytest.approx(-0.7071, abs=1e-4)
