"""Rows are the contexts that the policy saw, and every trained action is in exactly one of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollouts import corridor, corridors
from turngym.agents.branching import make_plan
from turngym.agents.policies.scripted import Mixture
from turngym.agents.rollout.collect import collect
from turngym.errors import ConfigError, TreeError
from turngym.trainers.credit import LOWER_CLIP_EXTRA, apply, get_rule
from turngym.trainers.rows import Row, rows_of, signal_only, trained_paths, tree_rows
from turngym.tree import Kind, Origin, Tree
from turngym.types import Outcome, StopReason

HASH = "ab" * 16


@dataclass(frozen=True)
class Shape:
    """A random tree: every token is unique, so that a token in a row tells the node that it came from."""

    parents: tuple[int, ...]
    seed: int
    restarts: bool = True
    void: bool = True

    def tree(self) -> Tree:
        rng = np.random.default_rng(self.seed)
        tree = Tree(task_id="t", rollout_id=f"t{self.seed}", renderer_hash=HASH)
        tree.add(-1, Kind.OBSERVATION, self.ids(tree, 2), origin=Origin.TEMPLATE, starts_context=True)
        points = [0]
        for choice in self.parents:
            parent = points[choice % len(points)]
            action = self.action(tree, parent, rng)
            if rng.random() < 0.8:
                restart = self.restarts and rng.random() < 0.3
                ids = self.ids(tree, int(rng.integers(1, 4)))
                points.append(
                    tree.add(action, Kind.OBSERVATION, ids, origin=Origin.ENV, starts_context=restart)
                )
        for leaf in tree.leaves:
            fault = self.void and rng.random() < 0.2
            tree[leaf].stop = StopReason.ENV_FAULT if fault else StopReason.TERMINATED
            tree[leaf].outcome = Outcome.ENV_FAULT if fault else Outcome.FAILURE
        return tree

    @staticmethod
    def ids(tree: Tree, count: int) -> list[int]:
        return list(range(tree.tokens, tree.tokens + count))

    def action(self, tree: Tree, parent: int, rng: np.random.Generator) -> int:
        """An action whose tokens are sampled, or partly forced by the template; scored in four of five cases."""
        count = int(rng.integers(1, 5))
        origin = np.where(rng.random(count) < 0.8, int(Origin.SAMPLED), int(Origin.TEMPLATE)).astype(np.uint8)
        sampled = origin == int(Origin.SAMPLED)
        node = tree.add(
            parent,
            Kind.SUMMARY if rng.random() < 0.2 else Kind.ACTION,
            self.ids(tree, count),
            origin=origin,
            logprobs=np.where(sampled, -rng.random(count), np.nan),
            version=int(rng.integers(5)),
        )
        draw = rng.random()
        if draw < 0.4:
            tree[node].advantage = float(rng.choice([-1.0, 0.0, 2.0]))
        elif draw < 0.8:
            tree[node].advantage = rng.random(count)
        if rng.random() < 0.3:
            tree[node].metrics[LOWER_CLIP_EXTRA] = 0.115
        return node


def shapes(**fixed: bool) -> st.SearchStrategy[Shape]:
    parents = st.lists(st.integers(0, 30), min_size=1, max_size=14).map(tuple)
    return st.builds(Shape, parents, st.integers(0, 10_000), **{k: st.just(v) for k, v in fixed.items()})


def counts(tree: Tree) -> set[int]:
    """Nodes on a path that counts."""
    return {node for leaf in tree.leaves if not tree.void(leaf) for node in tree.path(leaf)}


def expected_tokens(tree: Tree) -> dict[int, tuple[float, float, float, int]]:
    """What must be trained: unique token → (log-prob, advantage, extra clip width, version)."""
    out = {}
    for index in counts(tree):
        node = tree[index]
        if not node.is_action or node.advantage is None:
            continue
        advantages = np.broadcast_to(np.float32(node.advantage), node.ids.shape)
        extra = np.float32(node.metrics.get(LOWER_CLIP_EXTRA, 0.0))
        for i in np.flatnonzero(node.loss_mask):
            out[int(node.ids[i])] = (node.logprobs[i], advantages[i], extra, int(node.version[i]))
    return out


def trained_tokens(rows: list[Row]) -> dict[int, tuple[float, float, float, int]]:
    """What is trained; fails where a token is trained twice."""
    out: dict[int, tuple[float, float, float, int]] = {}
    for row in rows:
        columns = zip(
            row.ids[row.targets].tolist(),
            row.behaviour_logprobs,
            row.advantages,
            row.lower_clip_extra,
            row.version.tolist(),
            strict=True,
        )
        for token, *rest in columns:
            assert token not in out
            out[token] = tuple(rest)  # type: ignore[assignment]
    return out


# ---------------------------------------------------------------------- every action once


@given(shapes())
def test_every_sampled_token_of_a_scored_action_is_trained_exactly_once(shape: Shape) -> None:
    tree = shape.tree()
    assert trained_tokens(tree_rows(tree)) == expected_tokens(tree)


@given(shapes())
def test_every_answer_to_an_action_before_or_of_the_last_trained_one_is_observed_exactly_once(
    shape: Shape,
) -> None:
    tree = shape.tree()
    rows, plain = tree_rows(tree, observed=True), tree_rows(tree)
    node_of = {int(token): node for node in tree for token in node.ids}
    seen: list[int] = []
    for row, short in zip(rows, plain, strict=True):
        assert short.observed.size == 0
        assert (row.targets.tolist(), row.leaf) == (short.targets.tolist(), short.leaf)
        assert row.ids[: short.ids.size].tolist() == short.ids.tolist()
        assert np.all(np.diff(row.observed) > 0)
        seen += row.ids[row.observed].tolist()
    assert len(seen) == len(set(seen))
    expected = set()
    for row in plain:  # the tokens of a row are unique, so they tell its path
        path = tree.path(row.leaf)
        last = path.index(node_of[int(row.ids[row.targets[-1]])].index)
        context = {node_of[int(t)].index for t in row.ids if node_of[int(t)].is_action}
        for before, node in pairwise(path[: last + 2]):
            answers = not tree[node].is_action and not tree[node].starts_context
            if answers and before in context:
                expected.update(tree[node].ids.tolist())
    assert set(seen) == expected


def test_what_the_template_wrote_is_no_answer() -> None:
    tree = Tree(task_id="t", rollout_id="t", renderer_hash=HASH)
    tree.add(
        -1, Kind.OBSERVATION, [1, 2], origin=Origin.ENV, starts_context=True
    )  # the task: nobody acted yet
    action = tree.add(0, Kind.ACTION, [3], origin=Origin.SAMPLED, logprobs=[-1.0], version=0)
    answer = [Origin.TEMPLATE, Origin.ENV, Origin.ENV, Origin.HARNESS]
    tree.add(action, Kind.OBSERVATION, [4, 5, 6, 7], origin=answer)
    tree[action].advantage = 0.5
    tree[2].stop, tree[2].outcome = StopReason.TURNS, Outcome.TRUNCATED
    (row,) = tree_rows(tree, observed=True)
    assert row.ids.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert (row.targets.tolist(), row.observed.tolist()) == ([2], [4, 5])


@given(shapes())
def test_a_row_is_the_context_of_its_last_trained_action(shape: Shape) -> None:
    tree = shape.tree()
    node_of = {int(token): node.index for node in tree for token in node.ids}
    for row in tree_rows(tree):
        assert np.all(np.diff(row.targets) > 0)
        assert row.targets[0] >= 1
        last = node_of[int(row.ids[row.targets[-1]])]
        assert row.ids.tolist() == tree.context(last).tolist()
        # Every trained token stands behind exactly what the policy was given when it sampled it.
        for position in row.targets.tolist():
            node = node_of[int(row.ids[position])]
            before = (
                [*tree.context(tree[node].parent), *tree[node].ids] if not tree[node].starts_context else []
            )
            assert row.ids[: position + 1].tolist() == before[: position + 1]


@given(shapes())
def test_paths_are_counted_once_whatever_their_contexts(shape: Shape) -> None:
    tree = shape.tree()
    expected = 0
    for leaf in tree.leaves:
        scored = any(tree[i].is_action and tree[i].advantage is not None for i in tree.path(leaf))
        expected += scored and not tree.void(leaf)
    assert trained_paths(tree) == expected


@given(st.lists(shapes(), max_size=4))
@settings(max_examples=30)
def test_rows_of_many_trees_are_the_rows_of_each(many: list[Shape]) -> None:
    trees = [shape.tree() for shape in many]
    rows = rows_of(trees, renderer_hash=HASH)
    assert [r.ids.tolist() for r in rows] == [r.ids.tolist() for t in trees for r in tree_rows(t)]


# ---------------------------------------------------------------------- contexts


def chain(restarts: frozenset[int], *, turns: int = 6) -> Tree:
    """One path that restarts its context before the given turns. Tokens are unique."""
    tree = Tree(task_id="t", rollout_id="t", renderer_hash=HASH)
    node = tree.add(-1, Kind.OBSERVATION, [0, 1], origin=Origin.ENV, starts_context=True)
    for turn in range(turns):
        ids = [10 * turn + 2, 10 * turn + 3, 10 * turn + 4]
        action = tree.add(
            node, Kind.ACTION, ids, origin=Origin.SAMPLED, logprobs=[-1.0, -2.0, -3.0], version=turn
        )
        tree[action].advantage = float(turn % 3)
        if turn < turns - 1:
            node = tree.add(
                action,
                Kind.OBSERVATION,
                [10 * turn + 5],
                origin=Origin.ENV,
                starts_context=turn + 1 in restarts,
            )
    tree[action].stop = StopReason.TERMINATED
    return tree


@given(st.frozensets(st.integers(1, 5)))
def test_a_rollout_in_many_contexts_trains_the_same_tokens_with_the_same_weight(
    restarts: frozenset[int],
) -> None:
    whole, split = chain(frozenset()), chain(restarts)
    rows = tree_rows(split)
    assert len(rows) == 1 + len(restarts)
    assert trained_tokens(rows) == trained_tokens(tree_rows(whole))
    assert trained_paths(split) == trained_paths(whole) == 1
    # What a loss divides by must not depend on it either, though some contexts have no signal of their own.
    kept = sum(row.targets.size for row in signal_only(rows))
    assert kept == sum(row.targets.size for row in signal_only(tree_rows(whole))) == 18


def test_an_action_at_the_start_of_a_context_can_not_be_trained() -> None:
    tree = Tree(task_id="t", rollout_id="t")
    tree.add(-1, Kind.ACTION, [1], origin=Origin.SAMPLED, logprobs=[-1.0], version=0, starts_context=True)
    tree[0].advantage = 1.0
    tree[0].stop = StopReason.TERMINATED
    with pytest.raises(TreeError, match="node 0 is an action at the start of a context"):
        tree_rows(tree)


# ---------------------------------------------------------------------- what is not trained


def test_an_advantage_of_none_is_not_trained_and_zero_is() -> None:
    tree = chain(frozenset(), turns=3)
    first, second, third = tree.actions(len(tree) - 1)
    tree[first].advantage, tree[second].advantage, tree[third].advantage = 0.0, None, 1.0
    (row,) = tree_rows(tree)
    assert row.advantages.tolist() == [0.0] * 3 + [1.0] * 3
    assert row.ids[row.targets].tolist() == [2, 3, 4, 22, 23, 24]
    tree[third].advantage = None
    (row,) = tree_rows(tree)
    assert row.ids.tolist() == [0, 1, 2, 3, 4]  # nothing behind the last trained action


def test_a_void_path_trains_nothing_of_its_own() -> None:
    tree = chain(frozenset())
    (leaf,) = tree.leaves
    tree[leaf].stop = StopReason.HARNESS_FAULT
    assert tree_rows(tree) == []
    assert trained_paths(tree) == 0


def test_a_tree_of_another_renderer_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=rf"t was rendered by {HASH}, this policy renders as cd"):
        rows_of([chain(frozenset())], renderer_hash="cd" * 16)
    nobody = Tree(task_id="t", rollout_id="nameless")
    with pytest.raises(ConfigError, match="nameless was rendered by nobody"):
        rows_of([nobody], renderer_hash=HASH)


def test_only_trees_with_a_signal_are_kept() -> None:
    flat, mixed = chain(frozenset()), chain(frozenset({2}))
    flat.rollout_id = "flat"
    for action in flat.actions(len(flat) - 1):
        flat[action].advantage = 0.0
    rows = rows_of([flat, mixed], renderer_hash=HASH)
    assert {row.rollout_id for row in signal_only(rows)} == {"t"}
    assert len(signal_only(rows)) == 2


# ---------------------------------------------------------------------- real trees


@pytest.mark.parametrize("plan", ["group", "random_node", "coin", "bisect"])
@pytest.mark.parametrize("rule", ["grpo", "tree"])
def test_trees_that_were_played_train_each_action_once_in_the_context_it_was_sampled_in(
    plan: str, rule: str
) -> None:
    policy = Mixture(0.4)
    trees = asyncio.run(collect(corridors(3), policy, make_plan(plan), make_env=corridor))
    grown = [tree for tree in trees if tree is not None]
    apply(get_rule(rule), grown)
    rows = rows_of(grown, renderer_hash=policy.renderer.hash)
    (end,) = policy.renderer.stop_ids
    trained = Counter(
        (row.rollout_id, row.ids[: position + 1].tobytes())
        for row in rows
        for position in row.targets.tolist()
        if row.ids[position] == end
    )
    # Each action ends with its own end-of-turn id; up to there, its row is what the policy had seen and said.
    scored = [(t, n) for t in grown for n in t if n.is_action and n.advantage is not None]
    assert trained == Counter((t.rollout_id, t.context(n.index).tobytes()) for t, n in scored)
    assert sum(row.targets.size for row in rows) == sum(tree.sampled_tokens for tree in grown)
