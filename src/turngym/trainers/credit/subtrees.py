"""Rules that compare the branches below a fork: TreeRPO, TreePO, TreeRL, TRACE, SPO.

The one idea: branches of one fork share everything before it, so what differs between their values is due to what
each of them did. The rules differ in what the value is, what they divide by, and how many levels of the tree they
look at. A value is that of all paths below; a span from one fork to the next has one advantage, whatever number of
turns it has.

`tree_rloo` is the one of this kind that is unbiased; these are not, since each value is in its own baseline.
"""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from pydantic import Field

from turngym.errors import CreditError
from turngym.trainers.credit.base import (
    Array,
    Credit,
    Std,
    Truncated,
    all_equal,
    centre,
    leave_one_out,
    read_paths,
)
from turngym.trainers.options import Positive, Share, checked
from turngym.tree import Tree

_EPSILON = 1e-6


@checked
def tree_rpo(tree: Tree, *, truncated: Truncated = "mask") -> Credit:
    """Siblings as a group, with the deviation of a coin: A = (V − mean) / sqrt(mean · (1 − mean) + 1e-6).

    V in [0, 1] is the return at a leaf and the mean over children elsewhere, the mean that of V and its siblings.
    A fork whose children are all equal adds 0, and so does what comes before the first fork.

    Biased: V is in its own mean, and the deviation scales each fork by its difficulty.

    Source: TreeRPO (arXiv:2506.05183), from memory of the paper.

    Args:
        tree: paths of one task, with returns in [0, 1].
        truncated: what to do with paths that a budget of ours cut.

    Raises:
        CreditError: for a path without a stop or a reward, or with a return outside [0, 1].
    """
    paths = read_paths(tree, "tree_rpo", truncated)
    if ((paths.returns < 0) | (paths.returns > 1)).any():
        raise CreditError(
            f"tree_rpo: {tree.rollout_id}: returns lie in [{paths.returns.min()}, {paths.returns.max()}], and the "
            "deviation of a coin needs [0, 1]: rescale the rewards, or take trace or tree"
        )
    value = paths.branch_values()

    def score(_: int, below: list[int]) -> Array:
        centred = centre(value[below])
        chance = float(value[below].mean())
        return centred / math.sqrt(max(chance * (1 - chance), 0.0) + _EPSILON)

    return paths.credit(paths.branch_scores(score))


@checked
def trace(tree: Tree, *, std: Std = "unbiased", truncated: Truncated = "mask") -> Credit:
    """Value of a branch against that of its fork: A = (V(c) − V(fork)) / (std of V over the children + 1e-6).

    V is the mean return of all paths below, `value_targets`, so a child with many paths counts more in V(fork).

    Biased: a branch is in the value of its own fork; divided by a deviation; and where the budget goes is decided
    by how rollouts ended.

    Source: TRACE, from notes that quote the back-up; its own advantage was not to be seen, so this form is our
    reading. `mixed_chance` and `flip_chance` say where to spend rollouts.

    Args:
        tree: paths of one task.
        std: divide by the deviation over n − 1 ("unbiased") or over n ("population").
        truncated: what to do with paths that a budget of ours cut.

    Raises:
        CreditError: for a path without a stop or a reward.
    """
    paths = read_paths(tree, "trace", truncated)
    value = paths.leaf_means(paths.returns, masked=True)

    def score(node: int, below: list[int]) -> Array:
        if all_equal(value[below]):
            return np.zeros(len(below))
        deviation = float(value[below].std(ddof=1 if std == "unbiased" else 0))
        gap: Array = value[below] - value[node]
        return gap / (deviation + _EPSILON)

    return paths.credit(paths.branch_scores(score))


def value_targets(tree: Tree) -> dict[int, float]:
    """Back-up of TRACE: mean return of the paths below each node, by node index; what a value predictor is fitted to.

    Raises:
        CreditError: for a path without a stop or a reward.
    """
    paths = read_paths(tree, "trace", "fail")
    value = paths.leaf_means(paths.returns, masked=True)
    return {int(node): float(value[node]) for node in np.flatnonzero(np.isfinite(value))}


def mixed_chance(success: float, count: int) -> float:
    """Chance that `count` rollouts with this chance of success do not all end alike: 1 − v^m − (1 − v)^m.

    >>> [round(mixed_chance(0.1, m), 4) for m in (1, 2, 4, 8)]
    [0.0, 0.18, 0.3438, 0.5695]
    """
    return 1 - success**count - (1 - success) ** count


def flip_chance(success: float, count: int, *, won: bool) -> float:
    """Chance that one of `count` rollouts from a prefix ends otherwise than the rollout it was taken from.

    1 − v^k where that one `won`, 1 − (1 − v)^k where it lost; v is the chance of success from the prefix.

    >>> [round(flip_chance(0.7, k, won=False), 4) for k in (1, 2, 4)]
    [0.7, 0.91, 0.9919]
    """
    return 1 - (success if won else 1 - success) ** count


@checked
def spo(tree: Tree, *, threshold: Share = 0.9, truncated: Truncated = "mask") -> Credit:
    """Segment advantages on uncertain tokens: A = V(end of the segment) − V(its start), 0 where π ≥ ρ.

    V is the mean over children; a segment runs from one fork to the next. Inside it, the sampled tokens with a
    recorded probability below ρ get A and the others 0. The paper divides by the number of the former; which
    denominator is used is the loss's choice here, and the tokens with 0 are in it.

    Biased: V(end) is in V(start), and leaving out tokens by their probability changes the direction of the gradient.

    Source: Guo et al., SPO (arXiv:2505.23564), tree variant, from memory of the paper.

    Args:
        tree: paths of one task.
        threshold: ρ; 1 trains every token that was not certain.
        truncated: what to do with paths that a budget of ours cut.

    Raises:
        CreditError: for a path without a stop or a reward.
    """
    paths = read_paths(tree, "spo", truncated)
    value = paths.branch_values()
    segment = paths.branch_scores(lambda _, below: centre(value[below]))
    out = {}
    for node in np.flatnonzero(paths.trained).tolist():
        uncertain = np.exp(tree[node].logprobs) < threshold  # NaN where not sampled, which is below nothing
        out[node] = np.where(uncertain, segment[node], 0.0)
    return paths.credit(out)


@checked
def tree_rl(
    tree: Tree, *, power: Annotated[float, Field(ge=-1, le=1)] = 0.5, truncated: Truncated = "mask"
) -> Credit:
    """Global plus local advantage: A(n) = c^power · (V(n) − V(the fork above n) + V(n)).

    V(n) is the mean over the c paths below n of R_l − mean of the other paths' R, so V(root) = 0 and V(n) is itself
    an advantage over the root. The paper trains every path as a sequence of its own and divides by √c: a shared
    action is then trained c times with 1/√c, in all √c, which is `power=0.5` here, where it is trained once.

    Biased: a path is in the values above it, and shared actions count neither once nor once a path.

    Source: Hou et al., TreeRL (arXiv:2506.11902), the authors' code, mode "state value reward".

    Args:
        tree: paths of one task.
        power: 0 to train each action once; −0.5 for the number that the paper gives to one copy.
        truncated: what to do with paths that a budget of ours cut.

    Raises:
        CreditError: for a path without a stop or a reward.
    """
    paths = read_paths(tree, "tree_rl", truncated)
    value = paths.leaf_means(paths.returns - leave_one_out(paths.returns), masked=True)
    local = paths.branch_scores(lambda node, below: value[below] - value[node])
    copies = np.zeros(len(tree))
    for leaf in np.array(paths.leaves, np.intp)[~paths.masked].tolist():
        copies[tree.path(leaf)] += 1
    return paths.credit((local + value) * np.maximum(copies, 1) ** power)


@checked
def tree_po(tree: Tree, *, epsilon: Positive = 1e-6, truncated: Truncated = "mask") -> Credit:
    """Mean over the levels of a tree: A_i = mean_j (R_i − mean_j R) / (std + ε).

    j runs over the forks above path i, and mean_j over all paths below that fork; std is the deviation (over n) of
    all these differences of the tree. A shared action gets the mean over its paths.

    Biased: R_i is in every mean and in the deviation; a path with more forks above has a steadier baseline.

    Source: TreePO (arXiv:2508.17445), from a summary; that all levels weigh the same, and over what the deviation
    runs, is from memory. Forks stand for the paper's segments of fixed length.

    Args:
        tree: paths of one task; a tree of equal returns gets 0.
        epsilon: ε.
        truncated: what to do with paths that a budget of ours cut.

    Raises:
        CreditError: for a path without a stop or a reward.
    """
    paths = read_paths(tree, "tree_po", truncated)
    value, children = paths.leaf_means(paths.returns, masked=True), paths.children()
    levels = [
        value_i - value[[node for node in tree.path(leaf) if len(children[node]) > 1]]
        for leaf, value_i in zip(paths.leaves, paths.returns, strict=True)
    ]
    every = np.concatenate(levels) if levels else np.empty(0)
    if not every.any():
        return paths.credit(np.zeros(len(tree)))
    advantage = np.array([level.mean() if len(level) else 0.0 for level in levels])
    return paths.credit(paths.leaf_means(advantage / (every.std() + epsilon), masked=False))
