"""Credit rule `vine`: what an action changed in the value of its state.

The one idea: the value of a state needs no critic where rollouts from that state exist; their mean is the value.
"""

from __future__ import annotations

import numpy as np

from turngym.trainers.credit.base import Credit, Truncated, read_paths
from turngym.trainers.options import checked
from turngym.tree import Tree


@checked
def vine(tree: Tree, *, truncated: Truncated = "mask") -> Credit:
    """Monte Carlo value differences: A(n) = V(n) − V(parent of n), V(n) = mean return of the paths through n.

    V holds the rewards of whole paths, so the reward of n itself is in the difference (r + V(s′) − V(s) with
    γ = 1), and the advantages along a path sum to its return minus the group mean.

    Biased: the return of a path is in the V that serves as its baseline, which shrinks the signal at a branching
    into k by (k − 1)/k, and an action without siblings gets 0, although it may have mattered. The more states
    are forked, the smaller both are.

    Source: Kazemnejad et al., VinePO (arXiv:2410.01679), which draws fresh rollouts at every step of a main
    path; here every path of the tree is trained, with the rollouts that are there.

    Args:
        tree: paths of one task.
        truncated: what to do with paths that a budget of ours cut.

    Raises:
        CreditError: for a path without a stop or a reward.
    """
    paths = read_paths(tree, "vine", truncated)
    value, children = paths.leaf_means(paths.returns, masked=True), paths.children()
    advantage = np.zeros(len(tree))
    for node, below in enumerate(children):
        if len(below) > 1:  # an only child has the value of its parent
            advantage[below] = value[below] - value[node]
    return paths.credit(advantage)
