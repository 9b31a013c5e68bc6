"""Credit rule `graph`: `tree`, where paths of one task meet again in the same state.

The one idea: rollouts of one task keep coming back to the same states, and a state that three of them passed through
is a branching that nobody had to fork. What the others made of it is a baseline for what was done there, and what
they made of the state that an action led to is a part of what the action is worth.

Formula of our own; meeting states are those of GiGPO (arXiv:2505.10978), which compares actions there by their
returns; that a step is worth the mean of all that followed where it led is the back-up of Monte-Carlo evaluation
(Sutton & Barto, "Reinforcement Learning", 5.1 and 6.3).
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Literal

import numpy as np

from turngym.trainers.credit.base import Array, Credit, Paths, Truncated, mean, read_paths
from turngym.trainers.credit.tree_rloo import branchings
from turngym.trainers.options import NotNegative, checked
from turngym.tree import Tree

Values = Literal["pooled", "own"]
"""An action is worth what all rollouts made of the state that it led to, or what came after it in its own."""


@checked
def graph(
    tree: Tree, *, values: Values = "pooled", pool: NotNegative = 2.0, truncated: Truncated = "mask"
) -> Credit:
    """Leave-one-out over the rollouts that met in a state.

    A rollout is a child of the root with all that was forked below it. G(s) of one is what followed its first
    visits to a state s; with several branches the mean, with V of `tree`. For an action n at s that led to s':

        A(n) = w(n) · (Q(n) − b(n))
        Q(n) = r(n) + mean of G(s') over all rollouts that met there, n's own branch for its own
        b(n) = (j · mean of G(s) over the j other rollouts that met here + pool · b') / (j + pool)

    w, and b' less what was earned on the way, are those of the rule `tree`. Where nobody else was, Q is what n's own
    branch came to. With `values="own"` it always is.

    Unbiased (times the number of root children) under the conditions of `tree` with `values="own"`. With "pooled"
    as well where a state key says all that the future depends on; biased by what it leaves out otherwise, and by what
    the policy remembers of the way.

    Args:
        tree: paths of one task, with state keys from the environment (`LoopOptions.state_keys`).
        values: what an action is worth.
        pool: as how many rollouts the baseline of `tree` counts.
        truncated: what to do with paths that a budget of ours cut.

    Raises:
        CreditError: for a path without a stop or a reward, or an action at an observation without a state key.
    """
    paths = read_paths(tree, "graph", truncated)
    if not paths.leaves:
        return paths.credit({})
    value, above, weight = branchings(paths, pool=0.0)
    children, earned = paths.children(), _earned(paths)
    keys, rollout = paths.state_keys(children), _rollouts(paths, children)
    met = _first_visits(paths, children, keys, rollout, value - earned)
    advantage = np.zeros(len(tree))
    for node in np.flatnonzero(paths.trained & np.isfinite(value)).tolist():
        here, mine = paths.parent[node], rollout[node]
        baseline, others = above[node] - earned[here], _others(met[keys[here]], mine)
        if others and math.isnan(baseline):
            baseline = mean(others)
        elif others:
            baseline += (mean(others) - baseline) * len(others) / (len(others) + pool)
        worth = value[node] - earned[here]
        there = children[node][0] if children[node] else -1
        if values == "pooled" and there in keys:
            own = value[there] - earned[there]
            worth = paths.reward[node] + mean([own, *_others(met[keys[there]], mine)])
        advantage[node] = weight[node] * (worth - baseline)
    return paths.credit(np.where(np.isnan(advantage), 0.0, advantage))


def _rollouts(paths: Paths, children: list[list[int]]) -> list[int]:
    """`(N,)` the child of the root, or of the last observation before the first actions, that a node is below."""
    rollout, top = [-1] * len(paths.parent), paths.top(children)
    for node, below in enumerate(children):  # parents come before their children
        for child in below:
            rollout[child] = child if node == top else rollout[node]
    return rollout


def _earned(paths: Paths) -> Array:
    """`(N,)` sum of the rewards from the root to a node, its own included."""
    earned = paths.reward.copy()
    for node in range(1, len(earned)):
        earned[node] += earned[paths.parent[node]]
    return earned


def _first_visits(
    paths: Paths, children: list[list[int]], keys: dict[int, str], rollout: list[int], to_go: Array
) -> dict[str, dict[int, float]]:
    """What followed the first visits to a state, by key and rollout. Where one starts, a state is met by all of them."""
    visits: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for node, key in keys.items():
        for mine in {rollout[child] for child in children[node]}:
            before = visits[key][mine]
            if not any(_is_above(paths, earlier, node) for earlier in before):
                before.append(node)
    start = paths.top(children)
    return {
        key: {
            mine: mean([to_go[mine] + paths.reward[mine] if n == start else to_go[n] for n in nodes])
            for mine, nodes in by.items()
        }
        for key, by in visits.items()
    }


def _is_above(paths: Paths, ancestor: int, node: int) -> bool:
    while node > ancestor:
        node = paths.parent[node]
    return node == ancestor


def _others(met: dict[int, float], mine: int) -> list[float]:
    return [value for rollout, value in met.items() if rollout != mine]
