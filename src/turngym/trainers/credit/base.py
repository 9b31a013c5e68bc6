"""What every credit rule reads of a tree, and what it hands back.

The one idea: a rule sees *paths that count*. A path that ended in a fault counts nowhere. A path that one of our
own budgets cut counts in the statistics, and under `truncated="mask"` trains nothing but the actions that it
shares with a path that ended by itself (DAPO's overlong filter, arXiv:2503.14476). Every path is one rollout and
counts once, into however many contexts it was split.

Returns are sums of rewards without a discount, rounded once (`math.fsum`), so two paths with the same rewards in
another order have the same return to the last bit, and a group of equal returns is told from one with float noise.
What shaping wrote at a leaf is one more reward of the action that the path ended with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from turngym.errors import CreditError
from turngym.tree import Kind, Tree
from turngym.types import IntArray, Outcome

Array = npt.NDArray[np.float64]

Truncated = Literal["mask", "fail"]
"""What to do with a path that a budget of ours cut: count it and train nothing on it, or treat it as any other."""

Std = Literal["unbiased", "population"]
"""Divide the squared deviations by G − 1, or by G."""

SHAPING = "shaping"
"""Key of `node.metrics` at a leaf: what is added to the return of its path for training (`shaping.py`)."""

_EPSILON = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """What a rule says about one tree."""

    advantages: dict[int, float | Array]
    "advantage of each trained action and summary, by node index: a number, or `(T,)` one a token with 0 where not sampled; 0 is scored without a signal, absent is not trained"
    lower_clip_extra: dict[int, float] = field(default_factory=dict)
    "what the loss adds to the lower clip width on these nodes (ELPO); absent means 0"
    rollouts: int
    "paths that entered the statistics"
    masked: int
    "of these, the paths that were cut by a budget and train nothing of their own"
    void: int
    "paths that ended in a fault or were aborted: in no statistic"
    zero_variance: bool
    "two or more paths entered the statistics, and all their returns are equal to the last bit"
    metrics: dict[str, float] = field(default_factory=dict)
    "numbers of the rule's own about this tree, by key (`credit/…`); `apply` averages them over the trees"


CreditRule = Callable[[Tree], Credit]
"""A pure function of a tree, with its options bound."""

BatchRule = Callable[[Sequence[Tree]], list[Credit]]
"""A pure function of all trees of an update, one `Credit` a tree: what `registry.get_rule` gives for every name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """The paths of a tree that count: G of them, over N nodes."""

    tree: Tree
    rule: str
    "name of the rule that asks, for messages"
    parent: list[int]
    "`(N,)` parent of each node, −1 at the root"
    reward: Array
    "`(N,)` reward of each node, 0 where there is none"
    leaves: list[int]
    "`(G,)` the last node of each path"
    ends: list[int]
    "`(G,)` the last action of each path; its leaf, where it has none of its own"
    returns: Array
    "`(G,)` sum of the rewards on each path"
    masked: npt.NDArray[np.bool_]
    "`(G,)` cut by a budget, and to be masked"
    trained: npt.NDArray[np.bool_]
    "`(N,)` actions and summaries on a path that is not masked"
    is_action: npt.NDArray[np.bool_]
    "`(N,)` actions and summaries"
    void: int
    "paths that do not count"

    def leaf_means(self, values: Array, *, masked: bool) -> Array:
        """`(N,)` mean of `values` `(G,)` over the paths through each node, exact where they are equal; NaN where none runs.

        Args:
            values: one number a path.
            masked: whether masked paths are among those that are averaged.
        """
        total, count = np.zeros(len(self.parent)), np.zeros(len(self.parent))
        least, most = np.full(len(self.parent), np.inf), np.full(len(self.parent), -np.inf)
        for leaf, value, is_masked in zip(self.leaves, values, self.masked, strict=True):
            if masked or not is_masked:
                total[leaf] = least[leaf] = most[leaf] = value
                count[leaf] = 1
        for node in range(len(self.parent) - 1, 0, -1):  # children come after their parents
            above = self.parent[node]
            total[above] += total[node]
            count[above] += count[node]
            least[above] = min(least[above], least[node])
            most[above] = max(most[above], most[node])
        average = np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)
        return np.where(least == most, least, average)

    def branch_values(self) -> Array:
        """`(N,)` V: the return at a leaf, the mean over the children elsewhere; NaN where no path counts.

        Each child counts once, whatever number of leaves is below it, so V(n) estimates the value of n without
        bias as long as nobody looked at what comes after n before forking there.
        """
        value = np.full(len(self.parent), np.nan)
        value[self.leaves] = self.returns
        below: list[list[float]] = [[] for _ in self.parent]
        for node in range(len(self.parent) - 1, -1, -1):
            if below[node]:
                value[node] = mean(below[node])
            if node and not np.isnan(value[node]):
                below[self.parent[node]].append(float(value[node]))
        return value

    def branch_scores(self, score: Callable[[int, list[int]], Array]) -> Array:
        """`(N,)` what `score(node, its children)` says at each branching; a chain inherits, and starts with 0.

        So the span from one branching to the next has one score, into however many turns it is cut.
        """
        out = np.zeros(len(self.parent))
        for node, below in enumerate(self.children()):  # parents come before their children
            out[below] = score(node, below) if len(below) > 1 else out[node]
        return out

    def returns_to_go(self, gamma: float) -> Array:
        """`(N,)` Q: reward of a node + γ · what comes after it, the mean over `heard`; NaN where no path counts."""
        out, heard = np.full(len(self.parent), np.nan), self.heard()
        out[self.leaves] = self.reward[self.leaves]
        for node in range(len(heard) - 1, -1, -1):
            if heard[node]:
                discount = gamma if self.is_action[node] else 1.0
                out[node] = self.reward[node] + discount * mean(out[heard[node]])
        return out

    def heard(self) -> list[list[int]]:
        """`(N,)` lists: `children`, without those of masked paths alone where a path that is not masked runs as well."""
        unmasked = np.isfinite(self.leaf_means(self.returns, masked=False))
        return [
            [child for child in below if unmasked[child] or not unmasked[node]]
            for node, below in enumerate(self.children())
        ]

    def walk_weights(self) -> Array:
        """`(N,)` chance that a walk which takes one of `heard` at random comes through a node, times the root's children.

        1 everywhere in a tree that branches at its root only. Below a fork a walk draws one ordinary trajectory, so
        these weights make the gradient of a tree that of single trajectories.
        """
        weight, heard = np.ones(len(self.parent)), self.heard()
        for node, below in enumerate(heard):  # parents come before their children
            if below:
                weight[below] = weight[node] / len(below)
        return weight * (len(heard[self.top(heard)]) if self.leaves else 0)

    def main(self) -> npt.NDArray[np.bool_]:
        """`(N,)` True on the paths that were played from the start: at a fork below the root, the oldest child."""
        main = np.zeros(len(self.parent), np.bool_)
        if not self.leaves:
            return main
        children = self.children()
        main[0], top = True, self.top(children)
        for node, below in enumerate(children):  # parents come before their children
            if main[node]:
                main[below if node == top else below[:1]] = True
        return main

    def turns(self) -> npt.NDArray[np.int64]:
        """`(N,)` actions on the way from the root down to each node, the node itself included."""
        out = self.is_action.astype(np.int64)
        for node in range(1, len(self.parent)):
            out[node] += out[self.parent[node]]
        return out

    def metric(self, key: str, nodes: Sequence[int], what: str) -> Array:
        """`(len(nodes),)` the number that each of `nodes` carries as `metrics[key]`.

        Args:
            key: name of the number.
            nodes: node indices.
            what: what the number is and who writes it, for the message.

        Raises:
            CreditError: where a node has no such number, or it is not finite.
        """
        values = [self.tree[node].metrics.get(key, math.nan) for node in nodes]
        for node, value in zip(nodes, values, strict=True):
            if not math.isfinite(value):
                found = "has none" if key not in self.tree[node].metrics else f"is {value}"
                raise CreditError(
                    f"{self.rule}: {self.tree.rollout_id}: metrics[{key!r}] of node {node} {found}: write {what} there first"
                )
        return np.array(values, np.float64)

    def state_keys(self, children: list[list[int]]) -> dict[int, str]:
        """The state key of every observation at which an action on a path that counts was taken, by node, in their order.

        Args:
            children: what `children` returns.

        Raises:
            CreditError: for one without.
        """
        keys: dict[int, str] = {}
        for node, below in enumerate(children):
            if not any(self.is_action[child] for child in below):
                continue
            key = self.tree[node].state_key
            if key is None:
                raise CreditError(
                    f"{self.rule}: {self.tree.rollout_id}: node {node} has no state key, so nobody knows which "
                    "actions were taken in the same state: roll out with state_keys=true, or choose another rule"
                )
            keys[node] = key
        return keys

    def children(self) -> list[list[int]]:
        """`(N,)` lists: the children of each node that lie on a path that counts, oldest first."""
        counted = np.isfinite(self.leaf_means(self.returns, masked=True))
        out: list[list[int]] = [[] for _ in self.parent]
        for node in range(1, len(self.parent)):
            if counted[node]:
                out[self.parent[node]].append(node)
        return out

    def top(self, children: list[list[int]]) -> int:
        """The node from which the first actions start: the root, or the last of the observations below it."""
        node = 0
        while len(children[node]) == 1 and not self.tree[children[node][0]].is_action:
            node = children[node][0]
        return node

    def credit(
        self,
        advantages: Array | Mapping[int, Array],
        lower_clip_extra: dict[int, float] | None = None,
        metrics: dict[str, float] | None = None,
    ) -> Credit:
        """Keep the trained nodes of `advantages`: `(N,)`, or an array `(T,)` for each trained node.

        Raises:
            CreditError: where one of them is not finite.
        """
        nodes = np.flatnonzero(self.trained).tolist()
        kept: dict[int, float | Array] = (
            {node: advantages[node] for node in nodes}
            if isinstance(advantages, Mapping)
            else {node: float(advantages[node]) for node in nodes}
        )
        for node, advantage in kept.items():
            if not np.isfinite(advantage).all():
                raise CreditError(
                    f"{self.rule}: {self.tree.rollout_id}: advantage of node {node} is {advantage}; "
                    f"returns lie in [{self.returns.min()}, {self.returns.max()}]: scale the rewards"
                )
        return Credit(
            advantages=kept,
            lower_clip_extra=lower_clip_extra or {},
            rollouts=len(self.leaves),
            masked=int(self.masked.sum()),
            void=self.void,
            zero_variance=len(self.leaves) > 1 and all_equal(self.returns),
            metrics=metrics or {},
        )


def read_paths(tree: Tree, rule: str, truncated: Truncated) -> Paths:
    """Collect the paths of `tree` that count.

    Args:
        tree: a tree whose paths have all ended.
        rule: name of the rule that asks, for messages.
        truncated: see `Truncated`. A path that succeeded is not truncated, whatever limit came after.

    Raises:
        CreditError: for a path that has not ended, carries no reward, or has a return that is not finite.
    """
    parent, _, kind, _, reward, *_ = tree.columns()
    leaves, ends, returns, masked, void = [], [], [], [], 0
    shaping = np.zeros(len(tree))
    branches = np.bincount(parent[1:], minlength=len(tree))
    trained = np.zeros(len(tree), np.bool_)
    for leaf in tree.leaves:
        stop = tree[leaf].stop
        if stop is None:
            raise CreditError(
                f"{rule}: {tree.rollout_id}: leaf {leaf} has no stop: its path has not ended; "
                "finish it, or set stop to ABORTED to leave it out"
            )
        if stop.is_fault:
            void += 1
            continue
        path = tree.path(leaf)
        added = tree[leaf].metrics.get(SHAPING, 0.0)
        leaves.append(leaf)
        ends.append(_end(leaf, parent, kind, branches))
        shaping[ends[-1]] += added
        returns.append(_path_return(tree, rule, leaf, reward[path], added, needed=not stop.is_budget))
        masked.append(truncated == "mask" and was_cut(tree, leaf))
        if not masked[-1]:
            trained[path] = True
    return Paths(
        tree=tree,
        rule=rule,
        parent=parent.tolist(),
        reward=np.nan_to_num(reward, nan=0.0) + shaping,
        leaves=leaves,
        ends=ends,
        returns=np.array(returns, np.float64),
        masked=np.array(masked, np.bool_),
        trained=trained & (kind != Kind.OBSERVATION),
        is_action=kind != Kind.OBSERVATION,
        void=void,
    )


def _end(leaf: int, parent: IntArray, kind: IntArray, branches: npt.NDArray[np.int64]) -> int:
    """The last action on the path to `leaf`: a budget cuts behind an observation. `leaf`, where another path shares it."""
    node = leaf
    while kind[node] == Kind.OBSERVATION:
        node = int(parent[node])
        if node < 0 or branches[node] > 1:
            return leaf
    return node


def was_cut(tree: Tree, leaf: int) -> bool:
    """Whether a budget of ours ended the path to `leaf` before it succeeded."""
    stop = tree[leaf].stop
    return stop is not None and stop.is_budget and tree[leaf].outcome is not Outcome.SUCCESS


def _path_return(tree: Tree, rule: str, leaf: int, rewards: Array, shaping: float, *, needed: bool) -> float:
    emitted = rewards[~np.isnan(rewards)].tolist()
    if needed and not emitted:  # a budget can cut a path before its first action; it has earned nothing then
        raise CreditError(
            f"{rule}: {tree.rollout_id}: no node on the path to leaf {leaf} has a reward; "
            "not scored is not 0: write the reward first"
        )
    try:
        total = math.fsum([*emitted, shaping])
    except OverflowError:
        total = math.inf
    if not math.isfinite(total):
        raise CreditError(f"{rule}: {tree.rollout_id}: the rewards on the path to leaf {leaf} sum to {total}")
    return total


# ---------------------------------------------------------------------- statistics of one group


def all_equal(values: Sequence[float] | Array) -> bool:
    """True where all values are equal to the last bit: asked before any statistic, which would round."""
    return all(value == values[0] for value in values)


def mean(values: Sequence[float] | Array) -> float:
    """The mean, exact where all values are equal."""
    return float(values[0]) if all_equal(values) else math.fsum(values) / len(values)


def centre(values: Array) -> Array:
    """`(G,)` values minus their mean; exactly 0 for a group of one and for a group of equals."""
    return values - mean(values) if len(values) else values


def standardise(values: Array, std: Std) -> Array:
    """`(G,)` values minus their mean over (standard deviation + 1e-6); exactly 0 where `centre` is."""
    centred = centre(values)
    if not centred.any():
        return centred
    degrees = len(values) - (1 if std == "unbiased" else 0)
    return centred / (math.sqrt(math.fsum(centred**2) / degrees) + _EPSILON)


def leave_one_out(values: Array) -> Array:
    """`(G,)` for each value the mean of the others; itself where there is no other."""
    if len(values) < 2 or all_equal(values):
        return values.copy()
    return (math.fsum(values) - values) / (len(values) - 1)
