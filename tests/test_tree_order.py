"""Numbering the nodes of a tree anew changes their numbers and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turngym.errors import TreeError
from turngym.tree import Kind, Origin, Tree
from turngym.tree_order import reorder
from turngym.types import StopReason


def random_tree(parents: list[int], seed: int) -> Tree:
    """Node i + 1 hangs below `parents[i]` modulo what there is; every field that a node can have differs."""
    rng = np.random.default_rng(seed)
    tree = Tree(task_id="t", rollout_id="t")
    for index, parent in enumerate([-1, *(p % (i + 1) for i, p in enumerate(parents))]):
        ids = rng.integers(0, 100, rng.integers(0, 4))
        if index % 2:
            node = tree.add(
                parent,
                Kind.ACTION,
                ids,
                origin=Origin.SAMPLED,
                logprobs=-rng.random(ids.size),
                version=index,
                reward=float(index),
            )
            tree[node].advantage = float(index) if index % 3 else rng.random(ids.size)
        else:
            node = tree.add(
                parent,
                Kind.OBSERVATION,
                ids,
                origin=Origin.ENV,
                state_key=f"{index + 1:032x}",
                starts_context=bool(rng.integers(2)),
            )
        tree[node].metrics["index"] = index
        tree[node].log["index"] = str(index)
        tree[node].snapshot = ("snapshot", index)
    for leaf in tree.leaves:
        tree[leaf].stop = StopReason.TURNS
    return tree


def described(tree: Tree, node: int) -> str:
    """Every field of a node but its number and its parent's."""
    fields = (
        *("ids", "origin", "logprobs", "version", "kind", "starts_context", "reward", "advantage"),
        *("state_key", "snapshot", "stop", "outcome", "metrics", "log"),
    )
    return repr([getattr(tree[node], name) for name in fields] + [tree.context(node)])


def random_order(tree: Tree, seed: int) -> list[int]:
    rng = np.random.default_rng(seed)
    ready, order = [0], []
    while ready:
        node = ready.pop(int(rng.integers(len(ready))))
        order.append(node)
        ready += tree.children(node)
    return order


trees = st.builds(random_tree, st.lists(st.integers(0, 20), max_size=12), st.integers(0, 5))


@settings(max_examples=30, deadline=None)
@given(trees, st.integers(0, 20))
def test_a_node_takes_everything_with_it(tree: Tree, seed: int) -> None:
    order = random_order(tree, seed)
    before = [(described(tree, n), tree.path(n), list(tree.children(n))) for n in range(len(tree))]
    new = reorder(tree, order)
    assert [int(new[old]) for old in order] == list(range(len(tree)))
    for old, (description, path, children) in enumerate(before):
        node = int(new[old])
        assert described(tree, node) == description
        assert tree.path(node) == [int(new[i]) for i in path]
        assert sorted(tree.children(node)) == sorted(int(new[i]) for i in children)


@settings(max_examples=30, deadline=None)
@given(trees, st.integers(0, 20))
def test_the_way_back_gives_the_same_tree(tree: Tree, seed: int) -> None:
    order = random_order(tree, seed)
    rows = [a.tobytes() for a in tree.columns()]
    new = reorder(tree, order)
    reorder(tree, new.tolist())
    assert [a.tobytes() for a in tree.columns()] == rows


@settings(max_examples=30, deadline=None)
@given(trees)
def test_a_tree_grows_on_after_it_was_reordered(tree: Tree) -> None:
    reorder(tree, random_order(tree, 1))
    last = len(tree) - 1
    context = tree.context(last).tolist()
    added = tree.add(last, Kind.OBSERVATION, [7, 8], origin=Origin.ENV)
    assert tree.children(last) == [added]
    assert tree.context(added).tolist() == [*context, 7, 8]


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ([0, 1], "each of 3 nodes once"),
        ([0, 1, 1], "each of 3 nodes once"),
        ([0, 1, 3], "each of 3 nodes once"),
        ([0, 2, 1], "child would come before"),
        ([1, 0, 2], "child would come before"),
    ],
)
def test_what_is_no_order_is_refused_and_changes_nothing(order: list[int], words: str) -> None:
    tree = random_tree([0, 1], 0)  # a chain of three
    rows = [a.tobytes() for a in tree.columns()]
    with pytest.raises(TreeError, match=words):
        reorder(tree, order)
    assert [a.tobytes() for a in tree.columns()] == rows
