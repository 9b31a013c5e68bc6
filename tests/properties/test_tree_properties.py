"""The record under random trees: any branching, context starts, empty spans, every field, both files."""

from __future__ import annotations

import copy
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import require
from turngym.errors import TreeError
from turngym.tree import Kind, Origin, Tree
from turngym.tree_io import load_trees, save_trees
from turngym.types import Outcome, StopReason

INT32 = st.integers(0, 2**31 - 1)
FLOAT32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
FLOAT64 = st.floats(allow_nan=False, allow_infinity=False)
# All of Unicode, lone surrogates included; a split pair alone can't survive JSON.
TEXT = st.text(st.characters(codec=None), max_size=8).filter(
    lambda text: not re.search("[\ud800-\udbff][\udc00-\udfff]", text)
)
NAME = st.text(st.characters(codec="utf-8"), max_size=8)
KEY = st.binary(min_size=16, max_size=16).map(bytes.hex)


@st.composite
def fields(draw: st.DrawFn) -> dict[str, Any]:
    """What `Tree.add` takes beside the parent."""
    kind = draw(st.sampled_from(Kind))
    ids = draw(st.lists(INT32, max_size=6))
    origins = list(Origin) if kind is not Kind.OBSERVATION else list(Origin)[1:]
    origin: Any = draw(
        st.sampled_from(origins) | st.lists(st.sampled_from(origins), min_size=len(ids), max_size=len(ids))
    )
    each = [origin] * len(ids) if isinstance(origin, Origin) else origin
    count = each.count(Origin.SAMPLED)
    scores = iter(draw(st.lists(FLOAT32, min_size=count, max_size=count)))
    logprobs = [next(scores) if o is Origin.SAMPLED else float("nan") for o in each]
    return {
        "kind": kind,
        "ids": draw(st.sampled_from([list, np.array]))(ids) if ids else ids,
        "origin": origin,
        "logprobs": logprobs if Origin.SAMPLED in each or draw(st.booleans()) else None,
        "version": draw(st.integers(-1, 2**31 - 1) | st.lists(INT32, min_size=len(ids), max_size=len(ids))),
        "starts_context": draw(st.booleans()),
        "reward": draw(st.none() | FLOAT64),
        "state_key": draw(st.none() | KEY),
    }


@st.composite
def trees(draw: st.DrawFn, max_nodes: int = 12) -> Tree:
    tree = Tree(
        task_id=draw(NAME), rollout_id=draw(NAME), seed=draw(st.integers(0, 2**63 - 1)), renderer_hash=draw(NAME),
        meta=draw(st.dictionaries(TEXT, TEXT | st.integers() | FLOAT64 | st.booleans(), max_size=3)),
    )  # fmt: skip
    for index in range(draw(st.integers(1, max_nodes))):
        add(tree, draw(st.integers(0, index - 1)) if index else -1, draw(fields()))
        node = tree[index]
        if node.is_action:
            each = st.lists(FLOAT32, min_size=len(node.ids), max_size=len(node.ids))
            node.advantage = draw(st.none() | FLOAT64 | each)
        node.stop = draw(st.none() | st.sampled_from(StopReason))
        node.outcome = draw(st.none() | st.sampled_from(Outcome))
        node.metrics.update(draw(st.dictionaries(TEXT, st.floats() | st.integers(), max_size=2)))
        node.log.update(draw(st.dictionaries(TEXT, TEXT, max_size=2)))
    return tree


def shaped(nodes: list[tuple[int, Kind, bool, int]]) -> Tree:
    tree = Tree(task_id="t", rollout_id="r")
    for index, (parent, kind, starts, count) in enumerate(nodes):
        ids, mixed = [10 * index + i for i in range(count)], [Origin.SAMPLED, Origin.TEMPLATE] * 3
        origin: Any = Origin.ENV if kind is Kind.OBSERVATION else mixed[:count]
        scores = None if kind is Kind.OBSERVATION else [-0.5, float("nan")] * 3
        tree.add(
            parent % index if index else -1, kind, ids,
            origin=origin, logprobs=scores and scores[:count], version=1, starts_context=starts,
        )  # fmt: skip
    return tree


# Trees by their shape alone, drawn in few pieces: ten times as fast as `trees`.
SHAPES = st.lists(
    st.tuples(st.integers(0, 30), st.sampled_from(Kind), st.booleans(), st.integers(0, 4)),
    min_size=1,
    max_size=25,
).map(shaped)


def add(tree: Tree, parent: int, fields: dict[str, Any]) -> int:
    rest = {name: value for name, value in fields.items() if name not in ("kind", "ids")}
    return tree.add(parent, fields["kind"], fields["ids"], **rest)


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
@given(saved=st.lists(trees(max_nodes=6), max_size=2))
@settings(max_examples=50)
def test_files_give_back_the_same_bits(suffix: str, saved: list[Tree]) -> None:
    if suffix == "parquet":
        require("pyarrow", "turngym[data]")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"trees.{suffix}"
        save_trees(saved, path)
        loaded = load_trees(path)
    assert loaded == saved
    for one, other in zip(saved, loaded, strict=True):
        for a, b in zip(one.columns(), other.columns(), strict=True):
            assert (a.dtype, a.tobytes()) == (b.dtype, b.tobytes())
        assert [n.metrics.keys() for n in one] == [n.metrics.keys() for n in other]
        assert [n.log for n in one] == [n.log for n in other]


@given(SHAPES)
def test_a_context_is_the_path_since_its_last_start(tree: Tree) -> None:
    for node in range(len(tree)):
        path = tree.path(node)
        starts = [place for place, i in enumerate(path) if tree[i].starts_context]
        visible = path[starts[-1] if starts else 0 :]
        assert tree.context(node).tolist() == [token for i in visible for token in tree[i].ids.tolist()]


@given(SHAPES)
def test_segments_partition_the_path_at_context_starts(tree: Tree) -> None:
    for leaf in tree.leaves:
        segments = tree.segments(leaf)
        assert [i for segment in segments for i in segment] == tree.path(leaf)
        assert all(segments)
        assert all(tree[segment[0]].starts_context for segment in segments[1:])
        assert not any(tree[i].starts_context for segment in segments for i in segment[1:])
        last = [token for i in segments[-1] for token in tree[i].ids.tolist()]
        assert tree.context(leaf).tolist() == last


@given(SHAPES)
def test_paths_walk_up_to_the_root(tree: Tree) -> None:
    for node in range(len(tree)):
        path = tree.path(node)
        assert (path[0], path[-1]) == (0, node)
        assert [tree[i].parent for i in path] == [-1, *path[:-1]]
        assert tree.actions(node) == [i for i in path if tree[i].is_action]


@given(st.data())
def test_children_and_leaves_agree_at_every_size(data: st.DataObject) -> None:
    """Children are cached on the first question and kept up from there: the answers must not depend on when."""
    early, late = Tree(task_id="t", rollout_id="r"), Tree(task_id="t", rollout_id="r")
    for index in range(data.draw(st.integers(1, 25))):
        parent = data.draw(st.integers(0, index - 1)) if index else -1
        for tree in (early, late):
            tree.add(parent, Kind.OBSERVATION, [index], origin=Origin.ENV)
        expected = [
            [child for child in range(index + 1) if early[child].parent == node] for node in range(index + 1)
        ]
        assert [early.children(node) for node in range(index + 1)] == expected
        assert early.leaves == [node for node in range(index + 1) if not expected[node]]
    assert [late.children(node) for node in range(len(late))] == expected


@given(SHAPES)
def test_budgets_count_every_node_once(tree: Tree) -> None:
    assert tree.tokens == sum(len(node.ids) for node in tree)
    assert tree.sampled_tokens == sum(int(node.loss_mask.sum()) for node in tree)
    covered = {i for leaf in tree.leaves for i in tree.path(leaf)}
    assert covered == set(range(len(tree)))


@given(trees())
@settings(max_examples=30)
def test_what_was_sampled_is_what_has_a_log_prob_and_a_version(tree: Tree) -> None:
    for node in tree:
        assert (np.isfinite(node.logprobs) == node.loss_mask).all()
        assert (node.version[~node.loss_mask] == -1).all()
        assert node.is_action or not node.loss_mask.any()


def longer(values: Any, fields: dict[str, Any]) -> list[Any]:
    """One value more than there are tokens."""
    return [*([values] * (len(fields["ids"]) + 1))]


BREAKERS = {
    "origin too long": lambda f, _: f | {"origin": longer(Origin.ENV, f)},
    "logprobs too long": lambda f, _: f | {"logprobs": longer(-1.0, f)},
    "version too long": lambda f, _: f | {"version": longer(1, f), "origin": Origin.SAMPLED, "kind": Kind.ACTION, "logprobs": [-1.0] * len(f["ids"])},
    "unknown origin": lambda f, _: f | {"ids": [1], "origin": [4], "logprobs": None},
    "log-prob without sampling": lambda f, _: f | {"ids": [1, 2], "origin": [2, 1], "logprobs": [-1.0, float("nan")]},
    "sampling without log-prob": lambda f, _: f | {"ids": [1], "kind": Kind.ACTION, "origin": Origin.SAMPLED, "logprobs": None},
    "infinite log-prob": lambda f, _: f | {"ids": [1], "kind": Kind.ACTION, "origin": Origin.SAMPLED, "logprobs": [-np.inf]},
    "sampled observation": lambda f, _: f | {"ids": [1], "kind": Kind.OBSERVATION, "origin": Origin.SAMPLED, "logprobs": [-1.0]},
    "reward NaN": lambda f, _: f | {"reward": float("nan")},
    "reward infinite": lambda f, _: f | {"reward": float("inf")},
    "ids of floats": lambda f, _: f | {"ids": [0.5]},
    "ids in two dimensions": lambda f, _: f | {"ids": [[1]]},
    "key too short": lambda f, _: f | {"state_key": "ab"},
    "second root": lambda f, _: f | {"parent": -1},
    "parent not born yet": lambda f, n: f | {"parent": n},
    "negative parent": lambda f, _: f | {"parent": -2},
}  # fmt: skip


@pytest.mark.parametrize("breaker", BREAKERS)
@given(tree=SHAPES, node=fields())
@settings(max_examples=25)
def test_a_node_that_breaks_a_rule_is_refused_without_trace(
    breaker: str, tree: Tree, node: dict[str, Any]
) -> None:
    broken = BREAKERS[breaker]({"parent": 0, **node}, len(tree))
    before = copy.deepcopy(tree)
    with pytest.raises(TreeError):
        add(tree, broken.pop("parent"), broken)
    assert tree == before
    index = add(tree, 0, node)
    assert add(before, 0, node) == index
    assert tree == before
