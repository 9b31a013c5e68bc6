"""Where a critic speaks: the contexts of a tree with its places, and the way back from numbers to the record.

The one idea: V of a state is read at the last token before the action, and V before a token at the one that predicts it. So
a row of what is trained serves as it is: its targets are the tokens behind the places.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from turngym.errors import TreeError
from turngym.trainers.credit import ReadsValues
from turngym.trainers.credit.base import Array
from turngym.trainers.credit.turns import VALUE
from turngym.trainers.rows import Row, unscored_row
from turngym.tree import Node, Tree


def value_rows(tree: Tree, where: ReadsValues) -> list[Row]:
    """The contexts of `tree` with the places where a critic speaks, each in the first row that holds it.

    `targets` are the tokens behind those places, so the last may lie one past the row; `nodes` say whose the values
    are: the state's (any node that an action follows), or the action's, one a sampled token; and, behind all of its own,
    that of the last node of a path that a budget cut. Paths that ended in a fault are left out.

    Raises:
        TreeError: where nothing was seen yet.
    """
    rows: list[Row] = []
    owned: set[int] = set()
    for leaf in tree.leaves:
        if tree.void(leaf):
            continue
        asked = _asked(tree, leaf, where) - owned
        for segment in tree.segments(leaf):
            here = asked.intersection(segment)
            if here:
                owned |= here
                rows.append(_row([tree[i] for i in segment], here, leaf, where))
    return rows


def _asked(tree: Tree, leaf: int, where: ReadsValues) -> set[int]:
    """Nodes on the path to `leaf` that get values."""
    path = tree.path(leaf)
    cut = {leaf} if _was_cut(tree[leaf]) else set()
    if where == "tokens":
        return {node for node in path if tree[node].loss_mask.any()} | cut
    return {node for node, after in pairwise(path) if tree[after].is_action} | cut


def _was_cut(node: Node) -> bool:
    return node.stop is not None and node.stop.is_budget


def _row(nodes: Sequence[Node], asked: set[int], leaf: int, where: ReadsValues) -> Row:
    last = max(i for i, node in enumerate(nodes) if node.index in asked)
    targets: list[npt.NDArray[np.int64]] = []
    owners: list[int] = []
    start = 0
    for node in nodes[: last + 1]:
        end = start + node.ids.size
        if node.index in asked:
            own = start + np.flatnonzero(node.loss_mask) if where == "tokens" else np.empty(0, np.int64)
            last_too = [end] if where == "states" or _was_cut(node) else []
            behind = np.concatenate([own, last_too]).astype(np.int64)
            targets.append(behind)
            owners += [node.index] * behind.size
        start = end
    if targets[0][0] == 0:
        raise TreeError(
            f"{nodes[0].tree.rollout_id}: node {nodes[0].index} asks for a value before the first token"
        )
    return unscored_row(
        np.concatenate([node.ids for node in nodes[: last + 1]]),
        np.concatenate(targets),
        rollout_id=nodes[0].tree.rollout_id,
        nodes=owners,
        leaf=leaf,
    )


def write_values(tree: Tree, row: Row, values: Array, where: ReadsValues) -> None:
    """Put `values` `(M,)`, one a target of `row`, where credit rules look for them."""
    for index in dict.fromkeys(row.nodes.tolist()):
        own, node = values[row.nodes == index], tree[index]
        if where == "states" or _was_cut(node):
            node.metrics[VALUE], own = float(own[-1]), own[:-1]
        if own.size:
            said = np.full(node.ids.size, math.nan)
            said[node.loss_mask] = own
            node.values = said
