"""Numbers computed by hand for each rule."""

from __future__ import annotations

import math

import numpy as np
import pytest
from credit_trees import Leaf, Turn, actions, grow

from turngym.trainers.credit import (
    CRITICAL_TURN,
    dr_grpo,
    elpo,
    grpo,
    rloo,
    tree_grpo,
    tree_rloo,
    vine,
)
from turngym.trainers.credit.base import Credit
from turngym.tree import Tree
from turngym.types import Outcome

GROUP = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]


def over_actions(tree: Tree, credit: Credit) -> list[float]:
    return [credit.advantages[node] for node in actions(tree)]


@pytest.mark.parametrize(
    ("rule", "won", "lost"),
    [
        (grpo, 1.6202, -0.5401),  # deviation over G − 1: sqrt(1.5/7) = .4629; .75/.4629
        (lambda tree: grpo(tree, std="population"), 1.7320, -0.5773),  # sqrt(1.5/8) = .4330
        (dr_grpo, 0.75, -0.25),  # mean .25
        (rloo, 0.8571, -0.2857),  # 1 − 1/7; 0 − 2/7
        (tree_rloo, 0.8571, -0.2857),  # a root group is RLOO
        (vine, 0.75, -0.25),
    ],
)
def test_a_root_group_gets_the_published_numbers(rule, won, lost):
    tree = grow(GROUP)
    expected = [won if reward else lost for reward in GROUP]
    assert over_actions(tree, rule(tree)) == pytest.approx(expected, abs=1e-3)


def test_every_turn_of_a_path_gets_the_advantage_of_the_path():
    tree = grow([[[1.0]], [0.0]])  # three turns that win, two that lose
    assert over_actions(tree, rloo(tree)) == [1.0, 1.0, 1.0, -1.0, -1.0]


def test_a_shared_action_gets_the_mean_over_its_paths():
    tree = grow([[1.0, 0.0, 0.0], 0.0])  # R = 1, 0, 0, 0: RLOO 1, −1/3, −1/3, −1/3
    shared, *rest = over_actions(tree, rloo(tree))
    assert rest == pytest.approx([1.0, -1 / 3, -1 / 3, -1 / 3])
    assert shared == pytest.approx((1 - 2 / 3) / 3)


def test_per_turn_rewards_are_summed():
    tree = grow([Turn([Leaf(0.25)], reward=0.75), Turn([Leaf(-1.0)], reward=0.5)])  # returns 1 and −.5
    assert over_actions(tree, dr_grpo(tree)) == pytest.approx([0.75, 0.75, -0.75, -0.75])


def test_a_rollout_in_three_contexts_counts_once():
    # Per-segment statistics would give +.5 and −1.5.
    split = Turn([Turn([Leaf(1.0)], starts_context=True)], starts_context=True)
    tree = grow([split, 0.0])
    assert len(tree.segments(tree.leaves[0])) == 3
    assert over_actions(tree, grpo(tree)) == pytest.approx([0.7071] * 3 + [-0.7071], abs=1e-4)


def test_tree_grpo_adds_the_group_of_the_tree_to_the_group_of_the_task():
    # task: mean 1/3, deviation .5164; first tree: mean 2/3, deviation .5774; second tree: no variance
    tree = grow([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    first, *leaves_1, second, lost_1, lost_2, lost_3 = over_actions(tree, tree_grpo(tree))
    assert leaves_1 == pytest.approx([1.8683, 1.8683, -1.8002], abs=1e-3)
    assert [lost_1, lost_2, lost_3, second] == pytest.approx([-0.6455] * 4, abs=1e-3)
    assert first == pytest.approx((2 * 1.8683 - 1.8002) / 3, abs=1e-3)


def test_tree_grpo_gives_a_tree_with_one_path_the_task_part_only():
    tree = grow([[[1.0]], [0.0]])
    assert over_actions(tree, tree_grpo(tree)) == pytest.approx([0.7071] * 3 + [-0.7071] * 2, abs=1e-4)


def test_tree_compares_siblings_at_each_branching():
    # V: left = mean(1, .5) = .75, right = mean(.25) = .25. Two children at the root, scale 2.
    #   left  w = 2·1/2 = 1:    .75 − .25;   its leaves w = 2·1/2·1/2 = 1/2:  ±(1 − .5)
    #   right w = 1:            .25 − .75;   its only leaf inherits w and baseline
    tree = grow([[1.0, 0.5], [0.25]])
    assert over_actions(tree, tree_rloo(tree)) == pytest.approx([0.5, 0.25, -0.25, -0.5, -0.5])


def test_tree_counts_each_child_once_however_many_leaves_it_has():
    # V(left) = mean(mean(1, 1, 1, 0), 0) = .375, not the mean .6 of its five leaves
    tree = grow([[[1.0, 1.0, 1.0, 0.0], 0.0], 0.0])
    assert over_actions(tree, tree_rloo(tree))[0] == pytest.approx(0.375)


def test_tree_pools_the_baseline_with_the_branching_above():
    # left leaves: sibling's value .5 or 1, above .25, pool 1: (.5 + .25)/2 = .375 and .625; weight 1/2
    tree = grow([[1.0, 0.5], [0.25]])
    expected = [0.5, (1 - 0.375) / 2, (0.5 - 0.625) / 2, -0.5, -0.5]
    assert over_actions(tree, tree_rloo(tree, pool=1.0)) == pytest.approx(expected)


def test_tree_gives_no_signal_above_the_first_branching():
    tree = grow([[[1.0, 0.0]]])
    assert over_actions(tree, tree_rloo(tree)) == pytest.approx([0.0, 0.0, 0.5, -0.5])


def test_tree_cancels_what_was_earned_before_the_branching():
    plain = grow([[1.0, 0.0], 0.0])
    paid = grow([Turn([1.0, 0.0], reward=5.0), 5.0])
    assert over_actions(paid, tree_rloo(paid)) == pytest.approx(over_actions(plain, tree_rloo(plain)))


def test_vine_telescopes_to_the_return_minus_the_mean():
    tree = grow([[[1.0, 0.0], 0.0], 0.0])  # mean over leaves: root .25, left 1/3, left-left .5
    left, left_left, *_ = over_actions(tree, vine(tree))
    assert left == pytest.approx(1 / 3 - 1 / 4)
    assert left_left == pytest.approx(1 / 2 - 1 / 3)
    for leaf in tree.leaves:
        total = sum(vine(tree).advantages[node] for node in tree.actions(leaf))
        assert total == pytest.approx(tree.path_return(leaf) - 0.25)


def test_elpo_branch_part():
    tree = grow([1.0, 0.5, 0.0])  # mean .5, deviation .5
    assert over_actions(tree, elpo(tree, branch_share=1.0)) == pytest.approx([1.0, 0.0, -1.0], abs=1e-5)


def test_elpo_trajectory_part_is_grpo():
    tree = grow([[1.0, 0.0, 0.0], [0.0, 1.0]])
    assert over_actions(tree, elpo(tree, branch_share=0.0)) == pytest.approx(over_actions(tree, grpo(tree)))


def test_elpo_mixes_both_and_a_chain_inherits_its_branch_part():
    # branch: V = 1 and 0, deviation .7071: ±.7071; the only leaf below the first child inherits. Paths: the same.
    tree = grow([[1.0], 0.0])
    assert over_actions(tree, elpo(tree)) == pytest.approx([0.7071, 0.7071, -0.7071], abs=1e-4)
    # branch part at the root: V = .5 and 0: ±.7071; its children 1 and 0: ±.7071
    # paths 1, 0, 0: mean 1/3, deviation .57735: 1.1547, −.57735, −.57735; the shared action .28868
    tree = grow([[1.0, 0.0], 0.0])
    b, t = math.sqrt(0.5), 1 / math.sqrt(3)
    expected = [(b + t / 2) / 2, (b + 2 * t) / 2, (-b - t) / 2, (-b - t) / 2]
    assert over_actions(tree, elpo(tree)) == pytest.approx(expected, abs=1e-4)


def test_elpo_widens_the_clip_from_the_critical_turn_of_the_failed_path_on():
    # the failed path: actions 1, 3, 5, 7; bisection forked it after its first action, and a fork won
    tree = grow([[[[0.0]], 1.0]])
    failed, won = tree.leaves
    tree[failed].metrics[CRITICAL_TURN] = 1.0
    assert tree.actions(failed) == [1, 3, 5, 7]
    assert tree.actions(won) == [1, 8]
    assert elpo(tree).lower_clip_extra == {3: 0.115, 5: 0.115, 7: 0.115}
    assert elpo(tree, critical_clip=0.0).lower_clip_extra == {}
    tree[failed].outcome = Outcome.SUCCESS
    assert elpo(tree).lower_clip_extra == {}


def test_a_large_tree_is_scored_in_one_pass():
    tree = grow([[float(i % 3) for i in range(50)] for _ in range(50)])
    for rule in (grpo, dr_grpo, rloo, tree_rloo, tree_grpo, vine, elpo):
        assert np.isfinite(over_actions(tree, rule(tree))).all()
