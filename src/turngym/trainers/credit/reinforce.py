"""REINFORCE++ and its baseline version: advantages on one scale for the whole batch.

The one idea: a standard deviation over a group of a few rollouts is noise, and 0 for the easiest and the hardest
tasks; one over all tokens of the batch is steady, needs no group, and leaves each task its difficulty.

Source: Hu et al., REINFORCE++ (arXiv:2501.03262), and verl. The KL term that the paper folds into the reward is a
penalty of the loss here (`losses/penalties.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from turngym.trainers.credit.base import Credit, Truncated, centre, read_paths
from turngym.trainers.credit.batch import whiten
from turngym.trainers.options import Share, checked
from turngym.tree import Tree


@checked
def reinforce_pp(trees: Sequence[Tree], *, gamma: Share = 1.0, truncated: Truncated = "mask") -> list[Credit]:
    """Whitened returns-to-go: A = (Q − mean) / sqrt(var + 1e-8), Q as `returns_to_go`.

    Mean and variance run over the sampled tokens of all trees. A tree may have one path.

    Biased: Q is in its own mean, the scale is that of the batch, and the mean is over tokens, so long rollouts
    have more of a say in it.

    Args:
        trees: all trees of an update.
        gamma: discount a turn (the paper's is 1; theirs would be a token).
        truncated: what to do with paths that a budget of ours cut.

    Raises:
        CreditError: for a path without a stop or a reward.
    """
    batch = [read_paths(tree, "reinforce_pp", truncated) for tree in trees]
    return whiten(trees, [paths.credit(paths.returns_to_go(gamma)) for paths in batch])


@checked
def reinforce_pp_baseline(
    trees: Sequence[Tree], *, recentre: bool = False, truncated: Truncated = "mask"
) -> list[Credit]:
    """Group mean, batch deviation: A_i = (R_i − mean_group R) / sqrt(var + 1e-8).

    The variance (over n − 1) is that of R_i − mean_group R over the sampled tokens of all trees. A group of one or
    of equal returns gets 0 and is counted in the variance.

    Biased as `dr_grpo` (a constant) times the scale of the batch, which depends on every return in it.

    Args:
        trees: all trees of an update; the paths of each are a group.
        recentre: subtract the mean over tokens as well, as the released code does. Where longer rollouts fail more
            often that mean is below 0, and every task without a signal is then pushed up.
        truncated: what to do with paths that a budget of ours cut.

    Raises:
        CreditError: for a path without a stop or a reward.
    """
    batch = [read_paths(tree, "reinforce_pp_baseline", truncated) for tree in trees]
    centred = [paths.leaf_means(centre(paths.returns), masked=False) for paths in batch]
    credits = [paths.credit(advantage) for paths, advantage in zip(batch, centred, strict=True)]
    return whiten(trees, credits, recentre=recentre)
