"""Number the nodes of a tree anew.

Paths that grow at the same time add their nodes in the order of the clock. A tree that is to be a function of its
seed alone is put into the order of its paths afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt

from turngym.errors import TreeError
from turngym.node import Sparse
from turngym.tree import Tree


def reorder(tree: Tree, order: Sequence[int]) -> npt.NDArray[np.int64]:
    """Make the node that is `order[i]` node `i`, in place. Nodes and arrays read before stand for other nodes then.

    Args:
        tree: whose nodes are numbered anew.
        order: a permutation of its nodes, in which parents still come before children.

    Returns:
        `(N,)` the new index of each old one.

    Raises:
        TreeError: for anything else than such a permutation. The tree is unchanged then.
    """
    old = np.asarray(order, np.int64)
    count = len(tree)
    if old.shape != (count,) or not np.array_equal(np.sort(old), np.arange(count)):
        raise TreeError(f"{tree.rollout_id}: the order must name each of {count} nodes once")
    if np.array_equal(old, np.arange(count)):
        return old
    new = np.empty(count, np.int64)
    new[old] = np.arange(count)
    above = tree._parent[:count][old]
    parent = np.where(above < 0, -1, new[above])
    if (parent >= np.arange(count)).any():
        raise TreeError(f"{tree.rollout_id}: in this order a child would come before its parent")
    ends = tree._end[:count]
    lengths = np.diff(ends, prepend=0)[old]
    new_ends = np.cumsum(lengths)
    # Token i of the node that is now at place p stood at (old start of the node) + i.
    tokens = np.repeat(ends[old] - new_ends, lengths) + np.arange(tree.tokens)
    per_token: tuple[npt.NDArray[Any], ...] = (tree._ids, tree._origin, tree._logprobs, tree._version)
    for column in per_token:
        column[: tree.tokens] = column[tokens]
    per_node: tuple[npt.NDArray[Any], ...] = (
        tree._kind,
        tree._starts,
        tree._reward,
        tree._advantage,
        tree._key,
    )
    for column in per_node:
        column[:count] = column[old]
    tree._parent[:count], tree._end[:count] = parent, new_ends
    for f in fields(Sparse):
        entries = getattr(tree._sparse, f.name)
        setattr(tree._sparse, f.name, {int(new[index]): value for index, value in entries.items()})
    tree._children = None
    return new
