"""Token-level advantage estimation with a critic: GAE that skips observations, λ by length (SAO).

The one idea: with one rollout a task there is no group to compare with, so a value network gives the baseline, token
by token. Observation tokens are no actions: the last token of a turn is linked to the first token of the next.

Source: SAO, from formulas and tables extracted from its PDF; λ by length is that of VAPO. The values are
`node.values` of each action, which `trainers.critic` writes; the mask on the ratio is a loss (DIS), not a rule of credit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from turngym.errors import CreditError
from turngym.trainers.credit.base import Array, Credit, Paths
from turngym.trainers.credit.batch import whiten as whitened
from turngym.trainers.credit.turns import Cut, paths_up_to_cuts, values_at_cuts
from turngym.trainers.options import Positive, Share, checked
from turngym.tree import Tree


def adaptive_lambda(length: int, alpha: float = 1.5) -> float:
    """λ = 1 − 1/(α · length), not below 0: the look-ahead grows with the number of sampled tokens.

    >>> [round(adaptive_lambda(n), 4) for n in (1, 10, 100, 1000)]
    [0.3333, 0.9333, 0.9933, 0.9993]
    """
    return max(0.0, 1 - 1 / (alpha * length)) if length else 0.0


def token_gae(
    rewards: Array,
    values: Array,
    sampled: npt.NDArray[np.bool_],
    *,
    gamma: float = 1.0,
    lam: float,
    after: float = 0.0,
) -> Array:
    """`(T,)` GAE over the sampled tokens of one path; 0 at the others, which carry nothing.

        δ_t = r_t + γ · V(next sampled token) − V_t,      A_t = δ_t + γ · λ · A(next sampled token)

    Args:
        rewards: `(T,)` reward of each token; what stands at a token that was not sampled is not read.
        values: `(T,)` V before each token, likewise.
        sampled: `(T,)` True where the policy sampled.
        gamma: discount a token.
        lam: λ.
        after: V behind the last token: 0 at an end, the critic's value where the path was cut.

    >>> values, sampled = np.array([0.2, 0.4, 9.0, 0.6]), np.array([True, True, False, True])
    >>> token_gae(np.array([0.0, 0.0, 9.0, 1.0]), values, sampled, lam=0.9).round(3).tolist()
    [0.704, 0.56, 0.0, 0.4]
    """
    out = np.zeros(len(rewards))
    following, value_after = 0.0, after
    for t in np.flatnonzero(sampled)[::-1]:
        following = rewards[t] + gamma * value_after - values[t] + gamma * lam * following
        out[t], value_after = following, values[t]
    return out


@checked
def sao(
    trees: Sequence[Tree],
    *,
    gamma: Share = 1.0,
    alpha: Positive = 1.5,
    whiten: bool = True,
    truncated: Cut = "mask",
) -> list[Credit]:
    """`token_gae` on each path with λ = 1 − 1/(α · sampled tokens of the path); a shared action gets the mean.

    The reward of an action stands at its last sampled token. The advantages of all trees are put on one scale
    (`batch.whiten`), as the paper does.

    Biased by the error of V through λ < 1, the less the longer the path, by the scale of the batch, and below a fork,
    where actions count once a branch.

    Args:
        trees: all trees of an update; one path a tree is enough.
        gamma: discount a token.
        alpha: α.
        whiten: put the batch on one scale; without it, advantages are in units of the reward.
        truncated: what to do with paths that a budget of ours cut; "bootstrap", as the paper does, trains them and takes
            `metrics["value"]` of the observation where they were cut as what would have come.

    Raises:
        CreditError: for a path without a stop or a reward, or an action without a finite value before each sampled
            token.
    """
    batch = [paths_up_to_cuts(tree, "sao", truncated) for tree in trees]
    credits = [
        paths.credit(_estimate(paths, gamma, lambda n: adaptive_lambda(n, alpha), truncated))
        for paths in batch
    ]
    return whitened(trees, credits) if whiten else credits


def token_returns(
    tree: Tree, *, gamma: float = 1.0, lam: float = 1.0, truncated: Cut = "mask"
) -> dict[int, Array]:
    """What a critic is fitted to: the λ-return before each sampled token of each trained action, by node index.

    `(T,)` V + A of `token_gae`, the mean over the paths through an action; where a token was not sampled it says
    nothing. With λ = 1 that is the return-to-go, whatever V is.

    Args:
        tree: paths of one task with the critic's values.
        gamma: discount a token.
        lam: λ of the critic.
        truncated: as of `sao`: what was masked is no target.

    Raises:
        CreditError: as `sao`.
    """
    paths = paths_up_to_cuts(tree, "token_returns", truncated)
    advantages = _estimate(paths, gamma, lambda _: lam, truncated)
    return {node: _values(paths, node) + own for node, own in advantages.items()}


def _estimate(paths: Paths, gamma: float, lam: Callable[[int], float], truncated: Cut) -> dict[int, Array]:
    """`(T,)` A of each trained action, where `lam(sampled tokens of the path)` is λ."""
    tree = paths.tree
    cut = values_at_cuts(paths) if truncated == "bootstrap" else {}
    guess = {int(node): _values(paths, int(node)) for node in np.flatnonzero(paths.trained)}
    total = {node: np.zeros(len(tree[node].ids)) for node in guess}
    count = dict.fromkeys(guess, 0)
    for leaf, masked in zip(paths.leaves, paths.masked, strict=True):
        nodes = [] if masked else tree.actions(leaf)
        if not nodes:
            continue
        sampled = [tree[node].loss_mask for node in nodes]
        rewards = [_at_last(mask, paths.reward[node]) for mask, node in zip(sampled, nodes, strict=True)]
        mask = np.concatenate(sampled)
        values = np.concatenate([guess[node] for node in nodes])
        to_come = cut.get(leaf, 0.0)
        own = token_gae(
            np.concatenate(rewards), values, mask, gamma=gamma, lam=lam(int(mask.sum())), after=to_come
        )
        ends = np.cumsum([len(m) for m in sampled])[:-1]
        for node, piece in zip(nodes, np.split(own, ends), strict=True):
            total[node] += piece
            count[node] += 1
    return {node: total[node] / count[node] for node in guess}


def _at_last(mask: npt.NDArray[np.bool_], reward: float) -> Array:
    """`(T,)` the reward at the last token that was sampled, 0 elsewhere."""
    out = np.zeros(len(mask))
    out[np.flatnonzero(mask)[-1:]] = reward
    return out


def _values(paths: Paths, node: int) -> Array:
    """`(T,)` the critic's, 0 where not sampled."""
    found, mask = paths.tree[node].values, paths.tree[node].loss_mask
    if found is None or not np.isfinite(found[mask]).all():
        what = "has no values" if found is None else "has values that are not finite"
        raise CreditError(
            f"{paths.rule}: {paths.tree.rollout_id}: node {node} {what}: write a critic's before each sampled token first"
        )
    return np.where(mask, found.astype(np.float64), 0.0)
