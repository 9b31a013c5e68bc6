"""Credit rule `logo`: whole rollouts compared with one another, and rerolls from one state among themselves.

The one idea: in a world that remembers, two rollouts soon stand in different states, and comparing what they do there
is unfair. Rerolling one stretch a few times from the very same state is fair, and cheap.
"""

from __future__ import annotations

import numpy as np

from turngym.trainers.credit.base import Credit, Std, Truncated, read_paths, standardise
from turngym.trainers.options import NotNegative, checked
from turngym.tree import Tree


@checked
def logo(
    tree: Tree, *, local_weight: NotNegative = 1.0, std: Std = "unbiased", truncated: Truncated = "mask"
) -> Credit:
    """Global groups on whole paths, local groups on rerolls.

        on the first path below each child of the root    A = (R − mean) / (std + 1e-6) over these paths
        on another branch of a fork below the root        A = λ · (V − mean) / (std + 1e-6) over the other branches

    V is the return at a leaf and the mean over children elsewhere. The path that was forked is in the global group
    alone: it was there before anyone chose to reroll from it.

    Biased: each value is in its own mean, divided by deviations. But a local group is fresh, so how its state was
    chosen adds no bias given the state.

    Source: LoGo-GRPO of Memory-R2, from a reading of its full text. There a global group is one session's score, and
    so is a local one; whole returns are our generalisation to environments without sessions.

    Args:
        tree: paths of one task; the oldest child of a fork is the path that was there before the fork.
        local_weight: λ.
        std: divide by the deviation over n − 1 ("unbiased") or over n ("population").
        truncated: what to do with paths that a budget of ours cut.

    Raises:
        CreditError: for a path without a stop or a reward.
    """
    paths = read_paths(tree, "logo", truncated)
    main, value = paths.main(), paths.branch_values()
    advantage = np.zeros(len(tree))
    initial = np.array([main[leaf] for leaf in paths.leaves], np.bool_)
    scores = standardise(paths.returns[initial], std)
    for leaf, score in zip(np.array(paths.leaves, np.intp)[initial].tolist(), scores, strict=True):
        advantage[tree.path(leaf)] = score
    for node, below in enumerate(paths.children()):
        rerolls = [child for child in below if not main[child]]
        if not rerolls:
            continue
        if main[node] or len(below) > 1:
            advantage[rerolls] = local_weight * standardise(value[rerolls], std)
        else:
            advantage[rerolls] = advantage[node]
    return paths.credit(advantage)
