"""Baselines that were known before the rollouts: PVPO, and V_0.5, which asks whether to believe them.

The one idea: a value of the task that does not come from its own few rollouts is a baseline without their noise. It
stands at the root of the tree, as `metrics["prior_value"]` in units of the return: the mean return of a reference
policy, a value model's guess, or a running mean of earlier updates.
"""

from __future__ import annotations

import numpy as np

from turngym.errors import ConfigError
from turngym.trainers.credit.base import Array, Credit, Paths, Truncated, mean, read_paths
from turngym.trainers.options import Positive, checked
from turngym.tree import Tree

PRIOR_VALUE = "prior_value"
"""Key of `node.metrics` at the root: expected return of the task, known before it was played."""
PRIOR_SHARE = "credit/prior_share"

BERNOULLI = 0.25
"""Largest variance of a return between 0 and 1."""
MARGINAL_COST = 1 / 256
"""Cost of one more rollout, in units of the largest variance of a return (the paper's .0039)."""


@checked
def pvpo(tree: Tree, *, truncated: Truncated = "mask") -> Credit:
    """Returns against a static value: A_i = R_i − V, R `(G,)` returns of the paths, V `metrics["prior_value"]`.

    Unbiased for a tree that branches at its root only, if nothing is masked: V does not depend on the rollouts.
    As the policy grows better than V, all advantages turn positive: refresh V.

    Source: PVPO, from third-party notes that quote the equations. Its filter of tasks is not here.

    Args:
        tree: paths of one task, with `metrics["prior_value"]` at the root.
        truncated: what to do with paths that a budget of ours cut.

    Raises:
        CreditError: for a path without a stop or a reward, or a root without a finite `prior_value`.
    """
    paths = read_paths(tree, "pvpo", truncated)
    advantage = paths.returns - _prior(paths) if paths.leaves else paths.returns
    return paths.credit(paths.leaf_means(advantage, masked=False))


@checked
def v_half(
    tree: Tree,
    *,
    variance: Positive = BERNOULLI,
    leave_one_out: bool = False,
    truncated: Truncated = "mask",
) -> Credit:
    """Group mean shrunk towards a value: A_i = R_i − (w · mean R + (1 − w) · V), w from `shrinkage`.

    Unbiased with `leave_one_out`, for a tree that branches at its root only, if nothing is masked: w and the mean
    are then made without R_i. Biased otherwise: both depend on R_i.

    Source: V_0.5, from third-party notes that quote the equations; `leave_one_out` is ours.

    Args:
        tree: paths of one task, with `metrics["prior_value"]` at the root.
        variance: largest variance that a return can have; 0.25 for returns in [0, 1], 1 for returns in [−1, 1].
        leave_one_out: the baseline of a path from the other paths; V alone where there is no other.
        truncated: what to do with paths that a budget of ours cut.

    Raises:
        CreditError: for a path without a stop or a reward, or a root without a finite `prior_value`.
    """
    paths = read_paths(tree, "v_half", truncated)
    if not paths.leaves:
        return paths.credit(np.zeros(len(tree)))
    prior, returns = _prior(paths), paths.returns
    others = (
        [np.delete(returns, i) for i in range(len(returns))] if leave_one_out else [returns] * len(returns)
    )
    weight = np.array([shrinkage(rest, prior, variance) for rest in others])
    means = np.array([mean(rest) if len(rest) else prior for rest in others])
    advantage = returns - (weight * means + (1 - weight) * prior)
    metrics = {PRIOR_SHARE: 1 - float(weight.mean())}
    return paths.credit(paths.leaf_means(advantage, masked=False), metrics=metrics)


def shrinkage(returns: Array, prior: float, variance: float = BERNOULLI) -> float:
    """Weight w of the group mean beside a prior value: Δ² / (Δ² + variance/k).

    Δ² = max(0, (mean − prior)² − variance/k) is what of the squared gap the noise of k returns does not explain, so
    the prior is believed until the gap exceeds one standard error.

    Args:
        returns: `(k,)` returns so far; none gives 0.
        prior: expected return, known before.
        variance: largest variance that a return can have.
    """
    if not len(returns):
        return 0.0
    gap = _unexplained(returns, prior, variance)
    return gap / (gap + variance / len(returns))


def wants_more(
    returns: Array,
    prior: float,
    *,
    variance: float = BERNOULLI,
    cost: float = MARGINAL_COST,
    start: int = 4,
    cap: int = 16,
) -> bool:
    """Whether one more rollout of this task is worth its cost (one-step look-ahead of V_0.5).

    True until there are `start`; then while the expected squared error of the baseline, (variance/k) · w(k), would
    fall by more than cost · variance from k to k + 1 with Δ² held, up to `cap`.

    Args:
        returns: `(k,)` returns so far.
        prior: expected return, known before.
        variance: largest variance that a return can have.
        cost: of one rollout, in units of `variance`.
        start: rollouts that are played in any case; with 1 or 2 the test misfires.
        cap: rollouts at most.

    Raises:
        ConfigError: unless 1 ≤ start ≤ cap and variance and cost are positive.
    """
    if not (1 <= start <= cap and variance > 0 and cost > 0):
        raise ConfigError(
            f"wants_more needs 1 ≤ start ≤ cap, variance > 0 and cost > 0; got start={start}, cap={cap}, "
            f"variance={variance}, cost={cost}"
        )
    k = len(returns)
    if k < start or k >= cap:
        return k < start
    return error_gain(_unexplained(returns, prior, variance), k, variance) > cost * variance


def error_gain(gap: float, k: int, variance: float) -> float:
    """By how much the squared error of the baseline falls from k to k + 1 returns, for a squared gap Δ².

    >>> [round(error_gain(2.99, k, 1.0), 4) for k in (4, 8, 12, 16)]
    [0.0432, 0.0129, 0.0061, 0.0035]
    """

    def error(count: int) -> float:
        return variance / count * gap / (gap + variance / count)

    return error(k) - error(k + 1)


def _unexplained(returns: Array, prior: float, variance: float) -> float:
    return max(0.0, (mean(returns) - prior) ** 2 - variance / len(returns))


def _prior(paths: Paths) -> float:
    return float(paths.metric(PRIOR_VALUE, [0], "the expected return of the task")[0])
