"""Credit rule `tree_grpo`: the sum of two group baselines, one within a tree and one across the trees of a task.

The one idea: leaves of one tree share a long prefix, so comparing them says something about the late turns;
leaves of all trees of the task keep the comparison honest about the early ones.
"""

from __future__ import annotations

import numpy as np

from turngym.trainers.credit.base import Credit, Std, Truncated, read_paths, standardise
from turngym.trainers.options import checked
from turngym.tree import Tree


@checked
def tree_grpo(tree: Tree, *, std: Std = "unbiased", truncated: Truncated = "mask") -> Credit:
    """Inter-tree plus intra-tree advantage of each path, averaged over the paths that share an action.

        A = (R − mean_task) / (std_task + 1e-6)  +  (R − mean_tree) / (std_tree + 1e-6)

    R `(G,)` are the returns of all paths of the task; the paper's trees are the subtrees under the root's
    children here (so an expansion of the root itself starts a tree of its own). A tree with one path, or with
    equal returns, adds 0; the released code gives the raw return to a tree with one path.

    Biased: as `grpo`, and a path whose tree was expanded more often counts more often.

    Source: Ji et al., Tree-GRPO (arXiv:2509.21240), and the authors' code.

    Args:
        tree: paths of one task.
        std: divide by the deviation over G − 1 ("unbiased") or over G ("population").
        truncated: what to do with paths that a budget of ours cut.

    Raises:
        CreditError: for a path without a stop or a reward.
    """
    paths = read_paths(tree, "tree_grpo", truncated)
    advantage = standardise(paths.returns, std)
    if not paths.leaves:
        return paths.credit(np.zeros(len(tree)))
    depth = len(tree.path(paths.top(paths.children())))
    first_action = np.array([(tree.path(leaf)[depth : depth + 1] or [leaf])[0] for leaf in paths.leaves])
    for action in np.unique(first_action):
        members = first_action == action
        advantage[members] += standardise(paths.returns[members], std)
    return paths.credit(paths.leaf_means(advantage, masked=False))
