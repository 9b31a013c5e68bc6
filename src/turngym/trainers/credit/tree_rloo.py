"""Credit rule `tree`: leave-one-out among siblings at every branching of a tree.

The one idea: where a tree forks, the sibling branches start from the very same state, so their mean value is a
baseline that no other rollout can match. Walking down a tree and taking a child at random at each branching
draws one ordinary trajectory; the probability of that walk is the weight of a node, and with it the gradient of
any tree is the gradient of single trajectories, only with less variance.

Formula of our own; the parts are RLOO (arXiv:2402.14740) and the recursive values of TreeRPO (arXiv:2506.05183).
Needs no critic and does no discounting.
"""

from __future__ import annotations

import numpy as np

from turngym.trainers.credit.base import Array, Credit, Paths, Truncated, leave_one_out, read_paths
from turngym.trainers.options import NotNegative, checked
from turngym.tree import Tree


@checked
def tree_rloo(tree: Tree, *, pool: NotNegative = 0.0, truncated: Truncated = "mask") -> Credit:
    """Siblings' leave-one-out with recursive values and unbiased weights.

    V(leaf) is the return of its path and V(n) the mean of V over n's children. For an action n let m be the
    nearest of n and its ancestors that has siblings:

        A(n) = w(n) · (V(n) − b(m))
        w(n) = (children of the root) · ∏ over the branchings on the way to n of 1/(children there)
        b(m) = (k · mean of V over the k siblings of m + pool · b(the branching above)) / (k + pool)

    Both values are returns of whole paths: what was earned before the branching is common and cancels, what was
    earned between m and n stays in V(n), which corrects the baseline to the state of n. A tree that branches at
    its root only gets w = 1 and exactly RLOO. An action above the first branching has no baseline and gets 0.
    With k = 1 (a fork in two) the siblings' mean is one noisy return; `pool` = 1 or 2 steadies it with the
    baseline from further up, which is older but has more rollouts in it, and keeps the gradient what it was.

    Unbiased (times the number of root children) if the root has two or more children that count, nothing is
    masked, and no fork looked ahead: the decision to fork at a node may use everything up to that node and
    other branches, but nothing that came after the node on a path through it. A coin, a fixed turn, the entropy
    at the node are fine. Biased where a plan forks a path because it failed (bisection), or picks among the
    nodes of finished paths, whose length tells how they ended: draw the turn before the rollout instead.

    Args:
        tree: paths of one task. Branches without a path that counts are as if never grown.
        pool: as how many siblings the baseline of the branching above counts; 0 leaves it out.
        truncated: what to do with paths that a budget of ours cut.

    Raises:
        CreditError: for a path without a stop or a reward.
    """
    paths = read_paths(tree, "tree", truncated)
    value, baseline, weight = branchings(paths, pool=pool)
    return paths.credit(np.where(np.isnan(baseline), 0.0, weight * (value - baseline)))


def branchings(paths: Paths, *, pool: float) -> tuple[Array, Array, Array]:
    """`(N,)` each: V of every node, b of the branching that it is below (NaN above the first one), and w."""
    value, children = paths.branch_values(), paths.children()
    baseline, weight = np.full(len(value), np.nan), np.ones(len(value))
    for node, below in enumerate(children):  # parents come before their children
        baseline[below], weight[below] = baseline[node], weight[node]
        if len(below) > 1:
            siblings, above, k = leave_one_out(value[below]), baseline[node], len(below) - 1
            pooled = (k * siblings + pool * above) / (k + pool)
            baseline[below] = np.where(np.isnan(above) | (siblings == above), siblings, pooled)
            weight[below] /= len(below)
    roots = len(children[paths.top(children)]) if paths.leaves else 0
    return value, baseline, roots * weight
