"""Credit rule `appo`: continuations of a path say something about its beginning and are not trained themselves.

The one idea: what can be won from the middle of a path tells the tokens before that point apart; the paths that were
played to find out are measurements. `branching_scores` says from where to measure.

Source: APPO, the authors' code. Its weights by future ratio belong to the loss; they are
`future_weights` here, in NumPy, since no gradient runs through them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from turngym.trainers.credit.base import Array, Credit, Truncated, read_paths, standardise
from turngym.trainers.options import checked
from turngym.tree import Tree

HALF_LIFE_64 = 2.0 ** (-1 / 64)
"""γ a token with which a future ratio counts half after 64 tokens."""


@checked
def appo(tree: Tree, *, truncated: Truncated = "mask") -> Credit:
    """Two groups: A(n) = z(R of the path through n) + mean of z(R) over the branches that leave it after n.

    The first path below each child of the root is an initial path, and every other path a branch of the initial
    path that it leaves. z standardises over n (+ 1e-6) within all initial paths, and within all branches. Actions on
    branches are not trained.

    Biased: the own return is in each mean, divided by deviations, and what branches say is added at full weight.

    Source: the authors' code. Its branches start after a token; here they start at a turn.

    Args:
        tree: paths of one task; the oldest child of a fork is the path that was there before the fork.
        truncated: what to do with paths that a budget of ours cut; a branch that was masked is not heard.

    Raises:
        CreditError: for a path without a stop or a reward.
    """
    paths = read_paths(tree, "appo", truncated)
    main = paths.main()
    initial = np.array([main[leaf] for leaf in paths.leaves], np.bool_)
    score = np.empty(len(paths.leaves))
    for kind in (initial, ~initial):
        score[kind] = standardise(paths.returns[kind], "population")
    advantage, total, count = np.zeros(len(tree)), np.zeros(len(tree)), np.zeros(len(tree))
    for leaf, value, starts, masked in zip(paths.leaves, score, initial, paths.masked, strict=True):
        shared = [node for node in tree.path(leaf) if main[node]]
        if starts:
            advantage[[node for node in shared if paths.is_action[node]]] = value
        elif not masked:
            total[shared] += value
            count[shared] += 1
    advantage += np.divide(total, count, out=np.zeros(len(tree)), where=count > 0)
    return replace(paths, trained=paths.trained & main).credit(advantage)


def future_sums(log_ratio: Array, *, gamma: float = HALF_LIFE_64, at_most: float = np.inf) -> Array:
    """`(T,)` F_t = Σ_{k ≥ t} γ^(k−t) d_k over the sampled tokens of one path, those with d_k > `at_most` left out.

    >>> future_sums(np.array([0.0, 0.2, -0.1, 0.3])).round(3).tolist()
    [0.39, 0.395, 0.197, 0.3]
    """
    out, following = np.zeros(len(log_ratio)), 0.0
    for t in range(len(log_ratio) - 1, -1, -1):
        following = gamma * following + (log_ratio[t] if log_ratio[t] <= at_most else 0.0)
        out[t] = following
    return out


def branching_scores(entropy: Array, future: Array) -> Array:
    """`(T,)` BS_t = z(entropy) · z(future), z over the sampled tokens of one path (deviation over T, + 1e-6).

    Give the sums of `future_sums` as they are. The released code clips exp(F) to [1 − ε, 1 + ε] first; on long paths
    every token then sits at the same end, z is 0 everywhere, and the choice of where to branch is arbitrary.

    Args:
        entropy: `(T,)` entropy of the policy before each token, in nats.
        future: `(T,)` future sums under a policy that was updated since; with the policy that sampled they are noise.
    """
    return standardise(entropy, "population") * standardise(future, "population")


def future_weights(
    log_ratio: Array,
    advantages: Array,
    *,
    gamma: float = HALF_LIFE_64,
    cap: float = 3.0,
    high: float = 0.2,
    safe: float = 6.0,
) -> Array:
    """`(T,)` what the loss multiplies advantages with: 1 + f_t, f_t = clip(exp F_t, 1, 1 + high).

    Ratios above `cap` are left out of F. Where the advantage is negative and the ratio above `safe`, f is 1. On the
    first update all ratios are 1, and the weight is 2 everywhere: half the learning rate for a fair comparison.

    Args:
        log_ratio: `(T,)` log π_θ − log π_old of the sampled tokens of one path.
        advantages: `(T,)`.
        gamma: γ a token.
        cap: c.
        high: width of the upper clip.
        safe: ratio above which a token with a negative advantage is not pushed down harder.
    """
    sums = future_sums(log_ratio, gamma=gamma, at_most=float(np.log(cap)))
    weight = np.clip(np.exp(np.minimum(sums, 20.0)), 1.0, 1.0 + high)
    away: npt.NDArray[np.bool_] = (advantages < 0) & (log_ratio > np.log(safe))
    return 1 + np.where(away, 1.0, weight)
