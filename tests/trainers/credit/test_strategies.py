"""Strategies: which paths went the same way, and the rule that pays rare ways more."""

from __future__ import annotations

import numpy as np
import pytest
from credit_trees import Leaf, grow, score
from hypothesis import given, settings
from hypothesis import strategies as st

from turngym.errors import ConfigError, CreditError, UnknownName
from turngym.trainers.credit import RULES, apply, get_rule
from turngym.trainers.credit.strategies import STRATEGY, STRATEGY_SHARE, strategies
from turngym.tree import Kind, Origin, Tree
from turngym.types import StopReason


def path_tree(*ways: str, returns: list[float] | None = None) -> Tree:
    """A path a word; each letter is the state that an action was taken in."""
    tree = Tree(task_id="t", rollout_id="t")
    root = tree.add(-1, Kind.OBSERVATION, [0], origin=Origin.TEMPLATE, state_key=key(ways[0][0]))
    for way, value in zip(ways, returns or [0.0] * len(ways), strict=True):
        assert way[0] == ways[0][0]
        node = root
        for letter in (*way[1:], None):
            node = tree.add(node, Kind.ACTION, [7], origin=Origin.SAMPLED, logprobs=[-1.0], version=0)
            if letter:
                node = tree.add(node, Kind.OBSERVATION, [1], origin=Origin.ENV, state_key=key(letter))
        tree[node].reward, tree[node].stop = value, StopReason.TERMINATED
    return tree


def key(letter: str) -> str:
    return f"{ord(letter):032x}"


def clusters(tree: Tree, by: str = "states") -> list[int]:
    words = strategies(tree, tree.leaves, by, rule="test")  # type: ignore[arg-type]
    return [words.index(word) for word in words]


def labelled(labels: list[int], returns: list[float]) -> Tree:
    tree = grow([Leaf(r) for r in returns])
    for leaf, label in zip(tree.leaves, labels, strict=True):
        tree[leaf].metrics[STRATEGY] = float(label)
    return tree


def test_a_strategy_is_the_order_in_which_states_were_first_reached():
    assert clusters(path_tree("abc", "abc", "acb", "ab", "abab", "aabbc")) == [0, 0, 2, 3, 3, 0]


def test_a_strategy_is_the_actions_token_for_token():
    tree = Tree(task_id="t", rollout_id="t")
    root = tree.add(-1, Kind.OBSERVATION, [0], origin=Origin.TEMPLATE)
    for turns in ([[1, 2], [3]], [[1], [2, 3]], [[1, 2], [3]], [[1, 2, 3]]):  # cut elsewhere: another action
        node = root
        for ids in turns:
            node = tree.add(
                node, Kind.ACTION, ids, origin=Origin.SAMPLED, logprobs=[-1.0] * len(ids), version=0
            )
    assert clusters(tree, "actions") == [0, 1, 0, 3]


def test_a_strategy_has_one_word_in_all_trees():
    first, second = path_tree("abc", "ac"), path_tree("ac", "ad")
    (_, word), (same, _) = (strategies(t, t.leaves, "states", rule="test") for t in (first, second))
    assert word == same


def test_rare_ways_to_success_are_worth_more():
    # mean .75, deviation .5: z = .5, .5, .5, −1.5; strategies of 3, 3, 1, 3 paths
    tree = labelled([4, 4, 7, 4], [1.0, 1.0, 1.0, 0.0])
    found = {
        a: list(score("unique", tree, by="label", strength=a).advantages.values()) for a in (0.0, 0.5, 1.0)
    }
    assert found[0.0] == pytest.approx([0.5, 0.5, 0.5, -1.5], abs=1e-5)
    assert found[0.5] == pytest.approx([0.2887, 0.2887, 0.5, -0.8660], abs=1e-4)
    assert found[1.0] == pytest.approx([0.1667, 0.1667, 0.5, -0.5], abs=1e-4)
    assert apply(get_rule("unique", by="label"), [tree])[STRATEGY_SHARE] == 0.5


groups = st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.0, 1.0, 0.25])), min_size=1, max_size=9)


@settings(max_examples=50)
@given(groups, st.floats(0, 1))
def test_the_weight_of_a_path_lies_between_1_and_what_an_equal_share_would_be(paths, strength):
    labels, returns = [label for label, _ in paths], [value for _, value in paths]
    tree = labelled(labels, returns)
    plain = score("grpo", tree).advantages
    for leaf, advantage in score("unique", tree, by="label", strength=strength).advantages.items():
        assert abs(advantage) <= abs(plain[leaf]) + 1e-12
        assert abs(advantage) >= abs(plain[leaf]) * len(paths) ** -strength - 1e-12
        assert np.sign(advantage) == np.sign(plain[leaf])


@settings(max_examples=50)
@given(groups)
def test_at_full_strength_successes_of_one_strategy_share_what_one_is_worth(paths):
    labels, returns = [label for label, _ in paths], [value for _, value in paths]
    tree = labelled(labels, returns)
    plain, found = score("grpo", tree).advantages, score("unique", tree, by="label", strength=1.0).advantages
    for label in set(labels):
        members = [leaf for leaf, own in zip(tree.leaves, labels, strict=True) if own == label]
        assert sum(found[m] for m in members) == pytest.approx(np.mean([plain[m] for m in members]), abs=1e-9)


def test_by_states_the_rule_needs_no_judge():
    tree = path_tree("abc", "abc", "ac", "ad", returns=[1.0, 1.0, 1.0, 0.0])
    found = score("unique", tree, strength=1.0).advantages
    ends = [found[leaf] for leaf in tree.leaves]
    assert ends == pytest.approx([0.25, 0.25, 0.5, -1.5], abs=1e-5)


def test_what_is_missing_is_named():
    tree = grow([1.0, 0.0])
    with pytest.raises(CreditError, match=r'unique: tree: leaf 1 has no label: .* metrics\["strategy"\]'):
        score("unique", tree, by="label")
    tree[0].state_key = None
    with pytest.raises(CreditError, match="unique: tree: node 0 has no state key"):
        score("unique", tree)
    assert len(score("unique", tree, by="actions").advantages) == 2
    with pytest.raises(UnknownName, match="by of credit rule unique 'judge'"):
        get_rule("unique", by="judge")
    with pytest.raises(ConfigError, match=r"strength = 1\.5"):
        RULES["unique"](tree, strength=1.5)
