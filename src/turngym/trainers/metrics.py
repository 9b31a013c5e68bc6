"""Numbers about a batch of grown trees. Every key is defined in `docs/metrics.md`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from turngym.tree import Tree
from turngym.types import Outcome


def rollout_metrics(trees: Sequence[Tree]) -> dict[str, float]:
    """Means over paths under `rollout/*`, counts under `stop/*` and `faults/*`.

    `rollout/success` and `rollout/reward` estimate those of a path played from the start: below a fork, paths are
    averaged before they are averaged with others, so that a tree that forked where it failed does not look worse.
    A mean over nothing has no key: where every path is void, there is no success, not a success of 0.
    """
    counted = [(tree, leaf) for tree in trees for leaf in _counted(tree)]
    leaves = [(tree, leaf) for tree in trees for leaf in tree.leaves]
    stops = Counter(str(tree[leaf].stop) for tree, leaf in leaves)
    successes = [
        _root_mean(t, {i: float(t[i].outcome is Outcome.SUCCESS) for i in _counted(t)}) for t in trees
    ]
    rewards = [_root_mean(t, {i: t.path_return(i) for i in _counted(t)}) for t in trees]
    means = {
        "rollout/success": _mean(successes),
        "rollout/reward": _mean(rewards),
        "rollout/turns": _mean([float(len(t.actions(i))) for t, i in counted]),
        "rollout/action_tokens": _mean([float(n.ids.size) for t in trees for n in t if n.is_action]),
    }
    return {
        **{name: value for name, value in means.items() if not math.isnan(value)},
        "rollout/paths": float(len(counted)),
        "rollout/unique_tokens": float(sum(t.tokens for t in trees)),
        "rollout/path_tokens": float(sum(t[n].ids.size for t, i in counted for n in t.path(i))),
        "faults/paths": float(len(leaves) - len(counted)),
        **{f"stop/{reason}": float(count) for reason, count in sorted(stops.items())},
    }


def _counted(tree: Tree) -> list[int]:
    return [leaf for leaf in tree.leaves if not tree.void(leaf)]


def _root_mean(tree: Tree, values: dict[int, float]) -> float:
    """Value of the root, where a node is worth the mean of its children; NaN for a tree without counted paths."""
    worth = [math.nan] * len(tree)
    for node in range(len(tree) - 1, -1, -1):
        below = [worth[c] for c in tree.children(node) if not math.isnan(worth[c])]
        worth[node] = sum(below) / len(below) if below else values.get(node, math.nan)
    return worth[0]


def _mean(values: Sequence[float]) -> float:
    """The mean of what is a number; NaN where nothing is."""
    kept = [value for value in values if not math.isnan(value)]
    return sum(kept) / len(kept) if kept else math.nan
