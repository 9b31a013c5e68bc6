"""APPO, LoGo, MURPHY, REFUEL: rules for forks of paths that were there before. Numbers computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from credit_trees import Leaf, Turn, actions, grow, score

from turngym.errors import ConfigError
from turngym.trainers.credit.appo import branching_scores, future_sums, future_weights
from turngym.trainers.credit.base import read_paths
from turngym.trainers.credit.pairs import Pair, refuel_pairs
from turngym.tree import Tree
from turngym.types import StopReason

CUT = Leaf(0.0, StopReason.TURNS)


def over_actions(tree: Tree, name: str, **options: object) -> list[float | None]:
    advantages = score(name, tree, **options).advantages
    return [advantages.get(node) for node in actions(tree)]


def test_the_oldest_child_of_a_fork_is_the_path_that_was_there():
    tree = grow([[[1.0, 0.0], 0.0], 1.0])  # actions: 1, 3, 5 (1.0), 6 (0.0), 7 (0.0), 8 (1.0)
    main = read_paths(tree, "test", "mask").main()
    assert [node for node in actions(tree) if main[node]] == [1, 3, 5, 8]
    tree[5].stop = StopReason.ENV_FAULT  # then the next one is
    main = read_paths(tree, "test", "mask").main()
    assert [node for node in actions(tree) if main[node]] == [1, 3, 6, 8]


# ---------------------------------------------------------------------- APPO


def test_branches_speak_for_the_turns_before_them_and_are_not_trained():
    # initial paths: 0, 1 → z −1, 1. Branches: 1 (from turn 2 of the first), 0 (from turn 1) → z 1, −1
    tree = grow([[[0.0, 1.0], 0.0], 1.0])
    # first turn hears both branches: −1 + 0; second hears the first: −1 + 1; third: −1
    assert over_actions(tree, "appo") == pytest.approx([-1.0, 0.0, -1.0, None, None, 1.0], abs=1e-5)


def test_appo_on_a_root_group_is_grpo():
    tree = grow([1.0, 0.0, 0.0, [0.0]])
    assert over_actions(tree, "appo") == pytest.approx(over_actions(tree, "grpo", std="population"))


def test_appo_does_not_hear_a_branch_that_was_masked():
    tree = grow([[0.0, 1.0, CUT], 1.0])  # branches 1 and 0 (cut): z ±1; only the first is heard
    assert over_actions(tree, "appo")[0] == pytest.approx(-1 + 1, abs=1e-5)
    assert over_actions(tree, "appo", truncated="fail")[0] == pytest.approx(-1 + 0, abs=1e-5)


def test_future_sums_and_the_trap_of_clipping_before_standardising():
    d, entropy = np.array([0.0, 0.2, -0.1, 0.3]), np.array([1.0, 2.0, 3.0, 4.0])
    sums = future_sums(d)
    assert sums == pytest.approx([0.390, 0.395, 0.197, 0.300], abs=1e-3)
    clipped = np.clip(np.exp(sums), 0.8, 1.2)
    assert branching_scores(entropy, clipped).tolist() == [0, 0, 0, 0]  # nothing to choose by
    scores = branching_scores(entropy, sums)
    assert np.abs(scores).min() > 0.01
    assert scores.argmax() == np.argmax((entropy - 2.5) * (sums - sums.mean()))


def test_future_sums_leave_out_ratios_above_the_cap():
    d = np.array([0.1, math.log(3.5), 0.2])
    assert future_sums(d, gamma=1.0, at_most=math.log(3.0)) == pytest.approx([0.3, 0.2, 0.2])


def test_future_weights_are_2_before_the_first_update_and_clipped_above():
    nothing = np.zeros(3)
    assert future_weights(nothing, np.ones(3)).tolist() == [2.0, 2.0, 2.0]
    assert future_weights(np.array([0.1, 0.05]), np.ones(2), gamma=1.0) == pytest.approx(
        [1 + math.exp(0.15), 1 + math.exp(0.05)]
    )
    up, down = np.array([1.0, 0.0]), np.array([-1.0, 0.0])
    assert future_weights(up, np.ones(2)).tolist() == [2.2, 2.0]
    assert future_weights(down, np.ones(2)).tolist() == [2.0, 2.0]
    # a token that has grown sevenfold although it was bad is not pushed harder by a good future
    grown = np.array([math.log(7.0), 0.5])
    assert future_weights(grown, -np.ones(2)).tolist() == [2.0, 2.2]


# ---------------------------------------------------------------------- LoGo


def test_rerolls_are_compared_with_one_another_and_not_with_their_anchor():
    # paths 1, 0: ±.7071. Rerolls from the second turn of the first: 1, 0, 0: mean 1/3, deviation .5774
    tree = grow([[1.0, 1.0, 0.0, 0.0], 0.0])
    r = 1 / math.sqrt(3)
    expected = [0.7071, 0.7071, 2 * r, -r, -r, -0.7071]
    assert over_actions(tree, "logo") == pytest.approx(expected, abs=1e-4)
    halved = over_actions(tree, "logo", local_weight=0.5)
    assert halved == pytest.approx([0.7071, 0.7071, r, -r / 2, -r / 2, -0.7071], abs=1e-4)


def test_a_reroll_of_many_turns_has_one_advantage_and_a_lone_one_gets_0():
    tree = grow([[0.0, [[1.0]], [0.0]], 1.0])
    *_, first, second, third, fourth, fifth, _ = over_actions(tree, "logo")
    assert [first, second, third] == pytest.approx([0.7071] * 3, abs=1e-4)
    assert [fourth, fifth] == pytest.approx([-0.7071] * 2, abs=1e-4)
    assert over_actions(grow([[0.0, [[1.0]]], 1.0]), "logo")[2:5] == [0.0, 0.0, 0.0]


# ---------------------------------------------------------------------- MURPHY


def attempts() -> Tree:
    # first attempts: failed (then 1, 0), solved, failed (then 0, 0)
    return grow([Turn([1.0, 0.0], reward=0.0), 1.0, Turn([0.0, 0.0], reward=0.0)])


def standardised(values: list[float]) -> list[float]:
    deviation = np.std(values, ddof=1)
    return list((np.array(values) - np.mean(values)) / deviation) if deviation else [0.0] * len(values)


@pytest.mark.parametrize(("backup", "worth"), [("max", [1.0, 1.0, 0.0]), ("mean", [0.225, 1.0, 0.0])])
def test_a_failed_attempt_is_worth_what_followed_and_a_solved_one_is_not_divided(backup, worth):
    # mean: (0 + .9 · .5) / (2 − 1 + 1) = .225
    tree = attempts()
    found = score("murphy", tree, backup=backup).advantages
    first, solved, last = (node for node in tree.children(0))
    assert [found[first], found[solved], found[last]] == pytest.approx(standardised(worth), abs=1e-4)
    refined = [found[node] for node in tree.children(tree.children(first)[0])]
    assert refined == pytest.approx([0.7071, -0.7071], abs=1e-4)
    assert [found[node] for node in tree.children(tree.children(last)[0])] == [0.0, 0.0]


def test_an_attempt_of_several_turns_has_one_advantage_and_a_lone_retry_gets_0():
    # attempts of two turns; the first fails and has one retry, which wins
    tree = grow([[Turn([[1.0]], reward=0.0)], [0.0]])
    assert over_actions(tree, "murphy") == pytest.approx(
        [0.7071, 0.7071, 0.0, 0.0, -0.7071, -0.7071], abs=1e-4
    )


# ---------------------------------------------------------------------- REFUEL


def test_every_pair_at_a_fork_is_regressed_to_the_difference_of_what_follows():
    tree = grow([Turn([1.0, 0.0], reward=2.0), 1.0])  # actions 1 → 3, 4; 5
    assert refuel_pairs(tree) == [Pair(first=1, second=5, target=1.5), Pair(first=3, second=4, target=1.0)]
    assert [pair.target for pair in refuel_pairs(tree, limit=1.0)] == [1.0, 1.0]


def test_equal_returns_make_a_pair_and_faults_and_masked_paths_make_none():
    tree = grow([1.0, 1.0, CUT, Leaf(1.0, StopReason.ENV_FAULT)])
    assert refuel_pairs(tree) == [Pair(first=1, second=2, target=0.0)]
    assert len(refuel_pairs(tree, truncated="fail")) == 3
    assert refuel_pairs(grow([[[1.0]]])) == []


def test_a_limit_of_0_is_refused():
    with pytest.raises(ConfigError, match="limit"):
        refuel_pairs(grow([1.0, 0.0]), limit=0.0)
