"""TreeRPO, TreePO, TreeRL, TRACE, SPO: numbers computed by hand, and what each refuses."""

from __future__ import annotations

import numpy as np
import pytest
from credit_trees import actions, grow, score
from hypothesis import given
from hypothesis import strategies as st

from turngym.errors import CreditError
from turngym.trainers.credit import get_rule
from turngym.trainers.credit.subtrees import flip_chance, mixed_chance, value_targets
from turngym.tree import Kind, Origin, Tree
from turngym.types import StopReason

FORKED = ("tree_rpo", "trace", "spo")


def over_actions(tree: Tree, name: str, **options: object) -> list[float]:
    advantages = score(name, tree, **options).advantages
    return [float(advantages[node]) for node in actions(tree)]


@pytest.mark.parametrize("name", FORKED)
def test_a_span_between_two_forks_has_one_advantage(name):
    tree = grow([[[[1.0, 0.0]]], 0.0])  # three turns, then a fork
    first, second, third, *_ = over_actions(tree, name)
    assert first == second == third > 0


@pytest.mark.parametrize("name", [*FORKED, "tree_po", "tree_rl"])
def test_what_comes_before_the_first_fork_gets_0(name):
    assert over_actions(grow([[[1.0, 0.0]]]), name)[:2] == pytest.approx([0.0, 0.0])


def test_tree_rpo_divides_by_the_deviation_of_a_coin():
    # V: .5 and 0, mean .25, sqrt(.25·.75) = .4330; leaves 1 and 0: mean .5, deviation .5
    tree = grow([[1.0, 0.0], 0.0])
    assert over_actions(tree, "tree_rpo") == pytest.approx([0.5774, 1.0, -1.0, -0.5774], abs=1e-3)


@given(
    returns=st.lists(
        st.lists(st.sampled_from([0.0, 0.25, 1.0]), min_size=1, max_size=4), min_size=1, max_size=4
    )
)
def test_tree_rpo_sums_to_0_at_every_fork_whatever_the_order(returns):
    tree, mirrored = grow(list(returns)), grow([r[::-1] for r in returns[::-1]])
    found = score("tree_rpo", tree).advantages
    for node in tree:
        siblings = [found[child] for child in tree.children(node.index) if child in found]
        if len(siblings) > 1:
            assert sum(siblings) == pytest.approx(0, abs=1e-6)
    assert sorted(found.values()) == pytest.approx(sorted(score("tree_rpo", mirrored).advantages.values()))


@pytest.mark.parametrize("value", [-0.1, 1.5])
def test_tree_rpo_refuses_what_is_no_coin(value):
    with pytest.raises(CreditError, match=r"tree_rpo: tree: returns lie in .*\[0, 1\]: rescale"):
        score("tree_rpo", grow([0.5, value]))


def test_trace_compares_the_share_of_wins_below_a_branch_with_that_below_its_fork():
    # three of four below the left branch, none of one below the right: fork 3/5; deviation of .75 and 0: .5303
    tree = grow([[1.0, 1.0, 1.0, 0.0], 0.0])
    left, *leaves, right = over_actions(tree, "trace")
    assert [left, right] == pytest.approx([(0.75 - 0.6) / 0.5303, -0.6 / 0.5303], abs=1e-3)
    assert leaves == pytest.approx([0.5, 0.5, 0.5, -1.5], abs=1e-4)  # mean .75, deviation .5
    population = over_actions(tree, "trace", std="population")
    assert population[0] == pytest.approx((0.75 - 0.6) / 0.375, abs=1e-3)


def test_trace_backs_up_the_share_of_wins():
    tree = grow([[1.0, 1.0, 1.0, 0.0], 0.0])
    targets = value_targets(tree)
    assert targets[0] == pytest.approx(0.6)
    assert targets[actions(tree)[0]] == pytest.approx(0.75)
    tree[actions(tree)[-1]].stop = StopReason.ENV_FAULT
    assert actions(tree)[-1] not in value_targets(tree)


def test_where_outcomes_are_likely_to_be_mixed():
    assert [round(mixed_chance(0.5, m), 4) for m in (1, 2, 4, 8)] == [0.0, 0.5, 0.875, 0.9922]
    assert [round(mixed_chance(0.1, m), 4) for m in (1, 2, 4, 8)] == [0.0, 0.18, 0.3438, 0.5695]
    assert [round(flip_chance(0.7, k, won=False), 4) for k in (1, 2, 4)] == [0.7, 0.91, 0.9919]
    assert [round(flip_chance(0.7, k, won=True), 4) for k in (1, 2, 4)] == [0.3, 0.51, 0.7599]


def test_spo_is_the_difference_of_values():
    # V: left mean(1, .5) = .75, right .25, root .5
    assert over_actions(grow([[1.0, 0.5], [0.25]]), "spo") == pytest.approx([0.25, 0.25, -0.25, -0.25, -0.25])


def test_spo_trains_the_uncertain_tokens_alone():
    tree = Tree(task_id="t", rollout_id="tokens")
    tree.add(-1, Kind.OBSERVATION, [0], origin=Origin.TEMPLATE)
    chances = [0.95, 0.9, 0.89, np.nan]
    for reward in (1.0, 0.0):
        node = tree.add(
            0,
            Kind.ACTION,
            [1, 2, 3, 4],
            origin=[0, 0, 0, 2],
            logprobs=np.log(chances),
            version=0,
            reward=reward,
        )
        tree[node].stop = StopReason.TERMINATED
    assert get_rule("spo")([tree])[0].advantages[1].tolist() == [0.0, 0.0, 0.5, 0.0]
    assert get_rule("spo", threshold=1.0)([tree])[0].advantages[2].tolist() == [-0.5, -0.5, -0.5, 0.0]


def test_tree_rl_adds_the_local_to_the_global_advantage():
    # leave-one-out: ±2/3; V(A) = 2/3, V(root) = 0; A: 2/3 − 0 + 2/3; its leaves: 0 + 2/3
    tree = grow([[1.0, 1.0], [0.0, 0.0]])
    copy = over_actions(tree, "tree_rl", power=-0.5)
    assert copy == pytest.approx([0.9428, 0.6667, 0.6667, -0.9428, -0.6667, -0.6667], abs=1e-3)
    # two copies of the shared action, each divided by √2
    trained_once = over_actions(tree, "tree_rl")
    assert trained_once == pytest.approx([1.8856, 0.6667, 0.6667, -1.8856, -0.6667, -0.6667], abs=1e-3)


def test_tree_rl_counts_the_copies_that_are_trained():
    tree = grow([[1.0, 1.0], [0.0, 0.0]])
    tree[tree.leaves[0]].stop = StopReason.TURNS
    assert over_actions_of_trained(tree)[0] == pytest.approx(4 / 3)  # one copy is left


def over_actions_of_trained(tree: Tree) -> list[float]:
    return [a for _, a in sorted(score("tree_rl", tree).advantages.items())]


def test_tree_po_averages_over_the_forks_above_a_path():
    # paths 1, 0 | 0. Root: mean 1/3: 2/3, −1/3, −1/3; left fork: mean .5: .5, −.5
    every = np.array([2 / 3, 0.5, -1 / 3, -0.5, -1 / 3])
    won, lost, right = (2 / 3 + 0.5) / 2, (-1 / 3 - 0.5) / 2, -1 / 3
    expected = np.array([(won + lost) / 2, won, lost, right]) / every.std()
    assert over_actions(grow([[1.0, 0.0], 0.0]), "tree_po") == pytest.approx(expected, abs=1e-4)
