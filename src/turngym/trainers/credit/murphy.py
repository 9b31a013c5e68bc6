"""Credit rule `murphy`: a failed attempt is worth what its feedback led to.

The one idea: an attempt that fails, and whose error message lets the next attempt succeed, was a good first half of a
solution. So rewards flow up a tree of attempts, and attempts at the same prompt are compared.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from turngym.trainers.credit.base import Array, Credit, Paths, Std, Truncated, mean, read_paths, standardise
from turngym.trainers.options import Share, checked
from turngym.tree import Tree


@checked
def murphy(
    tree: Tree,
    *,
    backup: Literal["max", "mean"] = "max",
    gamma: Share = 0.9,
    std: Std = "unbiased",
    truncated: Truncated = "mask",
) -> Credit:
    """Rewards backed up over attempts, then siblings as a group: A(n) = (c(n) − mean) / (std + 1e-6).

        "max"  (MaRS)   c(n) = max(r(n), max of c over the attempts that follow)
        "mean" (MeRS)   c(n) = (r(n) + γ · mean of c over them) / (S − s + 1)

    An attempt is the turns up to and with one that has a reward; s counts attempts on the path, S is the largest s of
    the tree. An attempt that nothing follows has c = r, so a solved first attempt is not divided by S. The group is
    the attempts that follow the same one; an attempt without siblings gets 0.

    Biased: c is in its own mean, divided by deviations, and a maximum over more children is larger.

    Source: MURPHY (arXiv:2511.07833), from an independent implementation.

    Args:
        tree: attempts at one task, each with its own reward.
        backup: how rewards flow up.
        gamma: γ of "mean".
        std: divide by the deviation over n − 1 ("unbiased") or over n ("population").
        truncated: what to do with paths that a budget of ours cut.

    Raises:
        CreditError: for a path without a stop or a reward.
    """
    paths = read_paths(tree, "murphy", truncated)
    ends = np.array([node.reward is not None and node.is_action for node in tree], np.bool_)
    ends[[end for end in paths.ends if tree[end].is_action]] = (
        True  # an attempt that was cut has ended as well
    )
    worth, advantage = _worth(paths, ends, backup, gamma), np.zeros(len(tree))
    for node, below in enumerate(paths.children()):
        if len(below) > 1:
            advantage[below] = standardise(worth[below], std)
        elif not ends[node]:  # the same attempt goes on
            advantage[below] = advantage[node]
    return paths.credit(advantage)


def _worth(paths: Paths, ends: npt.NDArray[np.bool_], backup: str, gamma: float) -> Array:
    """`(N,)` c of the first attempt that ends at or below each node."""
    out, attempt = np.zeros(len(ends)), ends.astype(np.int64)
    for node in range(1, len(ends)):
        attempt[node] += attempt[paths.parent[node]]
    last = max((int(attempt[leaf]) for leaf in paths.leaves), default=0)
    attempted = ends.copy()
    for node, children in reversed(list(enumerate(paths.children()))):
        below = [
            child for child in children if attempted[child]
        ]  # behind a cut comes an observation and no attempt
        attempted[node] |= bool(below)
        own = paths.reward[node] if ends[node] else 0.0
        if not below:
            out[node] = own
        elif not ends[node]:
            out[node] = max(out[below]) if backup == "max" else mean(out[below])
        elif backup == "max":
            out[node] = max(own, *out[below])
        else:
            out[node] = (own + gamma * mean(out[below])) / (last - attempt[node] + 1)
    return out
