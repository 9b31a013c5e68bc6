"""Credit rule `mc_grpo`: the median as baseline, for small groups.

The one idea: in a group of three to five, one lucky rollout moves the mean past its neighbours and flips the sign of
their advantages; it can't move the median.
"""

from __future__ import annotations

import numpy as np

from turngym.trainers.credit.base import Array, Credit, Truncated, read_paths
from turngym.trainers.options import Positive, checked
from turngym.tree import Tree


@checked
def mc_grpo(
    tree: Tree, *, floor: Positive = 0.25, compensate: bool = False, truncated: Truncated = "mask"
) -> Credit:
    """Median-centred advantages: A_i = (R_i − m) / (MAD + floor), m the median of R `(G,)`, MAD that of |R − m|.

    The path in the middle, and whatever equals it, gets 0. Sample an odd number of paths; of an even number the
    lower middle is taken.

    With rewards of 0 and 1 the MAD is 0 in every group with a clear majority, so the released `floor` of 0.001
    gives the minority ±1000, which only gradient clipping survives; hence a floor in the units of the reward.

    Biased: R_i has a say in its own median, and the scale is the group's.

    Source: MC-GRPO, the authors' code (their paper does not mention the MAD).

    Args:
        tree: paths of one task; a group of one or of equal returns gets 0.
        floor: added to the MAD, in units of the reward; 0.25 suits rewards of 0 and 1.
        compensate: multiply by G / (paths that do not get 0), as the released code does.
        truncated: what to do with paths that a budget of ours cut.

    Raises:
        CreditError: for a path without a stop or a reward.
    """
    paths = read_paths(tree, "mc_grpo", truncated)
    if not paths.leaves:
        return paths.credit(np.zeros(len(tree)))
    centred = paths.returns - _lower_median(paths.returns)
    advantage = centred / (_lower_median(np.abs(centred)) + floor)
    if compensate and centred.any():
        advantage *= len(centred) / np.count_nonzero(centred)
    return paths.credit(paths.leaf_means(advantage, masked=False))


def _lower_median(values: Array) -> float:
    return float(np.sort(values)[(len(values) - 1) // 2])
