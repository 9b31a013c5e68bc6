"""Group baselines over whole paths: GRPO, Dr. GRPO, RLOO.

The one idea: the other rollouts of the same task are the baseline, so no critic is needed. The group is the G
paths of one tree, each counted once. Every action of a path gets the advantage of the path; an action that several
paths share gets the mean over them (the node view: each token is trained once, with weight 1).

None of the three looks at where the tree branches; `tree_rloo` does. Rewards within a path are only summed.

Several methods that differ in how they roll out share this credit: `grpo` is that of Spark (arXiv:2601.20209; all
leaves of a task are one group), of ARPO (arXiv:2507.19849; the mean over the paths of a shared action) and of SUPO
(arXiv:2510.06727; a summary is an action, a rollout counts once into however many contexts it was summarised, and
one that ran out of its budget is in the statistics and trains nothing: `truncated="mask"`). `dr_grpo` is that of
MemAgent (arXiv:2507.02259; every conversation that rewrote the memory gets the advantage of its rollout).
"""

from __future__ import annotations

from turngym.trainers.credit.base import (
    Credit,
    Std,
    Truncated,
    centre,
    leave_one_out,
    read_paths,
    standardise,
)
from turngym.trainers.options import checked
from turngym.tree import Tree


@checked
def grpo(tree: Tree, *, std: Std = "unbiased", truncated: Truncated = "mask") -> Credit:
    """Group-relative advantages: A_i = (R_i − mean R) / (std R + 1e-6), R `(G,)` returns of the paths.

    Biased: the standard deviation scales each task by its difficulty, and R_i is in its own mean.

    Source: Shao et al., DeepSeekMath (arXiv:2402.03300). Papers and trainers differ in `std`; at G = 2
    the two choices differ by √2.

    Args:
        tree: paths of one task; a group of one or of equal returns gets 0.
        std: divide by the deviation over G − 1 ("unbiased") or over G ("population").
        truncated: what to do with paths that a budget of ours cut.

    Raises:
        CreditError: for a path without a stop or a reward.
    """
    paths = read_paths(tree, "grpo", truncated)
    return paths.credit(paths.leaf_means(standardise(paths.returns, std), masked=False))


@checked
def dr_grpo(tree: Tree, *, truncated: Truncated = "mask") -> Credit:
    """GRPO done right: A_i = R_i − mean R, R `(G,)` returns of the paths.

    Biased by a constant factor only: R_i is in its own mean, so the gradient of a root group of fixed size G
    comes out (G − 1)/G of the true one. Below the root it is biased as `rloo` is.

    Source: Liu et al. (arXiv:2503.20783). The paper pairs it with `Aggregation(name="constant")`.

    Args:
        tree: paths of one task; a group of one or of equal returns gets 0.
        truncated: what to do with paths that a budget of ours cut.

    Raises:
        CreditError: for a path without a stop or a reward.
    """
    paths = read_paths(tree, "dr_grpo", truncated)
    return paths.credit(paths.leaf_means(centre(paths.returns), masked=False))


@checked
def rloo(tree: Tree, *, truncated: Truncated = "mask") -> Credit:
    """Leave-one-out: A_i = R_i − mean of R_j over j ≠ i, R `(G,)` returns of the paths.

    Unbiased for a tree that branches at its root only, G ≥ 2 and nothing masked: the baseline is independent of
    path i. Biased once paths share actions: the baseline of a shared action then depends on that action.

    Source: Kool et al. (2019), "Buy 4 REINFORCE samples, get a baseline for free!"; Ahmadian et al.
    (arXiv:2402.14740).

    Args:
        tree: paths of one task; a group of one or of equal returns gets 0.
        truncated: what to do with paths that a budget of ours cut.

    Raises:
        CreditError: for a path without a stop or a reward.
    """
    paths = read_paths(tree, "rloo", truncated)
    return paths.credit(paths.leaf_means(paths.returns - leave_one_out(paths.returns), masked=False))
