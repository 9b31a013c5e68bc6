"""Credit rule `tree_value`: at every state, the siblings and a critic are the baseline together.

The one idea: siblings know the state exactly and are few; a critic has seen many rollouts and errs. Where a tree forks,
both estimate the same value, so they are averaged; where it does not, the critic is all there is, and still knows more
about the state than the siblings of a branching far above.

Formula of our own: `tree` with `turn_gae`'s baseline as one more sibling, as the shrinkage of V_0.5 does for a whole task.
"""

from __future__ import annotations

import numpy as np

from turngym.trainers.credit.base import Credit, Truncated, leave_one_out, read_paths
from turngym.trainers.credit.turns import VALUE
from turngym.trainers.options import Positive, checked
from turngym.tree import Tree


@checked
def tree_value(tree: Tree, *, trust: Positive = 2.0, truncated: Truncated = "mask") -> Credit:
    """Return-to-go minus the mean of the siblings' and the critic's, weighed as in `tree`.

        A(n) = w(n) · (Q(n) − b(n))
        b(n) = (k · mean of Q over the k siblings of n + trust · V(s)) / (k + trust)

    Q(n) is the return from n on, the mean over what follows; s is the state in which n was taken, V its
    `metrics["value"]`; w is 1 in a tree that branches at its root only, and else the root's children times the
    chance of the walk to n (`Paths.walk_weights`). An action without siblings has b(n) = V(s).

    The best `trust` is the variance of one return over the squared error of the critic. A critic that knows nothing
    says 0 and costs variance; it does not cost the gradient's direction.

    Unbiased (times the number of root children) if nothing is masked, no fork looked ahead (see `tree`) and V was
    fitted on other rollouts.

    Args:
        tree: paths of one task with the critic's values; one path is enough.
        trust: as how many siblings the critic counts.
        truncated: what to do with paths that a budget of ours cut.

    Raises:
        CreditError: for a path without a stop or a reward, or a state without a finite value.
    """
    paths = read_paths(tree, "tree_value", truncated)
    following, baseline = paths.returns_to_go(1.0), np.zeros(len(tree))
    for state, children in enumerate(paths.children()):
        below = [node for node in children if paths.is_action[node]]
        if below:
            value = paths.metric(VALUE, [state], "the critic's value of the state")[0]
            others = len(below) - 1
            siblings = leave_one_out(following[below]) if others else 0.0
            baseline[below] = (others * siblings + trust * value) / (others + trust)
    return paths.credit(np.where(paths.trained, paths.walk_weights() * (following - baseline), 0.0))
