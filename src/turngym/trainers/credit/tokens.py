"""Token-level advantage estimation with a critic: GAE that skips observations, λ by length (SAO).

The one idea: with one rollout a task there is no group to compare with, so a value network gives the baseline, token
by token. Observation tokens are no actions: the last token of a turn is linked to the first token of the next.

Source: SAO, from formulas and tables extracted from its PDF; λ by length is that of VAPO. The values come from the
caller, since a tree has no place for them; the mask on the ratio is a loss (DIS), not a rule of credit.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from turngym.errors import CreditError
from turngym.trainers.credit.base import Array, Credit, Truncated, read_paths
from turngym.trainers.options import Positive, Share, checked
from turngym.tree import Tree


def adaptive_lambda(length: int, alpha: float = 1.5) -> float:
    """λ = 1 − 1/(α · length), not below 0: the look-ahead grows with the number of sampled tokens.

    >>> [round(adaptive_lambda(n), 4) for n in (1, 10, 100, 1000)]
    [0.3333, 0.9333, 0.9933, 0.9993]
    """
    return max(0.0, 1 - 1 / (alpha * length)) if length else 0.0


def token_gae(
    rewards: Array, values: Array, sampled: npt.NDArray[np.bool_], *, gamma: float = 1.0, lam: float
) -> Array:
    """`(T,)` GAE over the sampled tokens of one path; 0 at the others, which carry nothing.

        δ_t = r_t + γ · V(next sampled token) − V_t,      A_t = δ_t + γ · λ · A(next sampled token)

    Args:
        rewards: `(T,)` reward of each token; what stands at a token that was not sampled is not read.
        values: `(T,)` V before each token, likewise.
        sampled: `(T,)` True where the policy sampled.
        gamma: discount a token.
        lam: λ.

    >>> values, sampled = np.array([0.2, 0.4, 9.0, 0.6]), np.array([True, True, False, True])
    >>> token_gae(np.array([0.0, 0.0, 9.0, 1.0]), values, sampled, lam=0.9).round(3).tolist()
    [0.704, 0.56, 0.0, 0.4]
    """
    out = np.zeros(len(rewards))
    following = value_after = 0.0
    for t in np.flatnonzero(sampled)[::-1]:
        following = rewards[t] + gamma * value_after - values[t] + gamma * lam * following
        out[t], value_after = following, values[t]
    return out


@checked
def sao(
    tree: Tree,
    values: Mapping[int, npt.ArrayLike],
    *,
    gamma: Share = 1.0,
    alpha: Positive = 1.5,
    truncated: Truncated = "mask",
) -> Credit:
    """`token_gae` on each path with λ = 1 − 1/(α · sampled tokens of the path); a shared action gets the mean.

    The reward of an action stands at its last sampled token. Whiten the batch afterwards (`batch.whiten`), as the
    paper does.

    Biased by the error of V through λ < 1, the less the longer the path.

    Args:
        tree: paths of one task; one is enough.
        values: for each action its `(T,)` values, by node index: the critic's guess before each token.
        gamma: discount a token.
        alpha: α.
        truncated: what to do with paths that a budget of ours cut.

    Raises:
        CreditError: for a path without a stop or a reward, or an action without `(T,)` finite values.
    """
    paths = read_paths(tree, "sao", truncated)
    guess = {int(node): _checked_values(tree, int(node), values) for node in np.flatnonzero(paths.trained)}
    total = {node: np.zeros(len(tree[node].ids)) for node in guess}
    count = dict.fromkeys(guess, 0)
    for leaf, masked in zip(paths.leaves, paths.masked, strict=True):
        nodes = [] if masked else tree.actions(leaf)
        sampled = [tree[node].loss_mask for node in nodes]
        if not nodes:
            continue
        rewards = [_at_last(mask, paths.reward[node]) for mask, node in zip(sampled, nodes, strict=True)]
        mask = np.concatenate(sampled)
        lam = adaptive_lambda(int(mask.sum()), alpha)
        path_values = np.concatenate([guess[node] for node in nodes])
        advantages = token_gae(np.concatenate(rewards), path_values, mask, gamma=gamma, lam=lam)
        ends = np.cumsum([len(m) for m in sampled])[:-1]
        for node, own in zip(nodes, np.split(advantages, ends), strict=True):
            total[node] += own
            count[node] += 1
    return paths.credit({node: total[node] / count[node] for node in guess})


def _at_last(mask: npt.NDArray[np.bool_], reward: float) -> Array:
    """`(T,)` the reward at the last token that was sampled, 0 elsewhere."""
    out = np.zeros(len(mask))
    out[np.flatnonzero(mask)[-1:]] = reward
    return out


def _checked_values(tree: Tree, node: int, values: Mapping[int, npt.ArrayLike]) -> Array:
    given = np.asarray(values.get(node, ()), np.float64)
    if given.shape != tree[node].ids.shape or not np.isfinite(given[tree[node].loss_mask]).all():
        raise CreditError(
            f"sao: {tree.rollout_id}: values of node {node} have shape {given.shape}, its ids {tree[node].ids.shape}; "
            "give one finite value before each sampled token"
        )
    return given
