"""Trees drawn by the thousand are those that one would grow one by one."""

from collections import Counter

import numpy as np
import pytest

from turngym.trainers.lab import PROBLEMS, exact, sample


@pytest.mark.parametrize("plan", ["group", "coin", "failed", "finished"])
@pytest.mark.parametrize("name", ["stopping", "noisy tool", "corridor"])
def test_every_tree_is_an_episode_of_the_problem(name, plan):
    mdp = PROBLEMS[name]
    forest = sample(mdp, plan, 300, roots=3, seed=0)
    assert forest.count.sum() == len(forest.order) == 300
    for tree, taken, steps in zip(forest.trees, forest.taken, forest.steps, strict=True):
        assert steps == (taken >= 0).sum()
        assert len(tree.children(0)) == 3
        for node in tree:
            assert (taken[node.index] >= 0) == node.is_action
            if not node.is_action:
                continue
            state, action = divmod(int(taken[node.index]), len(mdp.actions))
            assert node.reward == mdp.reward[state, action]
            assert node.logprobs[0] == pytest.approx(np.log(mdp.policy[state, action]), rel=1e-6)
            assert tree[node.parent].state_key == f"{mdp.key[state] + 1:032x}"
            above = tree[node.parent].parent
            if above < 0:
                assert state == 0
            else:
                before = divmod(int(taken[above]), len(mdp.actions))
                assert mdp.chance[before][state] > 0
        assert all(tree[leaf].stop is not None for leaf in tree.leaves)


def test_equal_trees_are_counted_once_whatever_the_order_of_their_paths():
    forest = sample(PROBLEMS["bandit"], "group", 5000, roots=2, seed=0)
    assert len(forest.trees) == 6  # three arms, two draws without an order
    pairs = {
        tuple(taken[taken >= 0].tolist()): count
        for taken, count in zip(forest.taken, forest.count, strict=True)
    }
    policy = PROBLEMS["bandit"].policy[0]
    for (a, b), count in pairs.items():
        chance = policy[a] * policy[b] * (1 if a == b else 2)
        assert count == pytest.approx(5000 * chance, abs=4 * np.sqrt(5000 * chance))


def test_visits_and_returns_are_those_of_dynamic_programming():
    mdp = PROBLEMS["noisy tool"]
    forest = sample(mdp, "group", 20_000, roots=3, seed=0)
    seen: Counter[int] = Counter()
    for taken, count in zip(forest.taken, forest.count, strict=True):
        for pair in taken[taken >= 0].tolist():
            seen[pair // len(mdp.actions)] += int(count)
    visits = np.array([seen[s] for s in range(len(mdp.states))]) / 60_000
    assert visits == pytest.approx(exact(mdp).visits, abs=0.01)


def test_a_coin_forks_where_the_problem_says_and_as_often():
    mdp = PROBLEMS["stopping"]
    forest = sample(mdp, "coin", 5000, roots=2, seed=0)
    reached = forked = replayed = 0
    for tree, taken, count, again in zip(
        forest.trees, forest.taken, forest.count, forest.replayed, strict=True
    ):
        branchings = [
            n.index for n in tree if n.index and not n.is_action and len(tree.children(n.index)) > 1
        ]
        for node in branchings:
            assert int(taken[tree.children(node)[0]]) // 2 == 1  # turn 1, where the coin is tossed
        at_turn_1 = [n for n in tree if n.is_action and taken[n.index] // 2 == 1]
        reached += count * (len(at_turn_1) - len(branchings))
        forked += count * len(branchings)
        replayed += count * again
        assert again == len(branchings)  # one turn comes before a second branch at turn 1
    assert forked / reached == pytest.approx(0.6, abs=0.03)


def test_a_plan_that_looks_at_failures_forks_failures_only():
    mdp = PROBLEMS["stopping"]
    forest = sample(mdp, "failed", 500, roots=2, seed=0)
    for tree in forest.trees:
        for branch in tree.children(0):
            below = [leaf for leaf in tree.leaves if branch in tree.path(leaf)]
            first = min(below)  # the path that was there before the fork
            if len(below) > 1:
                assert tree.path_return(first) < exact(mdp).value


def test_the_head_of_a_forest_is_what_was_drawn_first():
    forest = sample(PROBLEMS["random"], "coin", 400, roots=2, seed=3)
    head, spread = forest.head(50), forest.spread()
    assert [head.trees[u].rollout_id for u in head.order] == [t.rollout_id for t in spread.trees[:50]]
    assert head.count.sum() == 50
    assert len(spread.trees) == 400
