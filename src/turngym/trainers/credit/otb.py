"""Credit rule `otb`: the baseline that weighs each rollout by how hard it pulls on the policy.

The one idea: the variance of a policy gradient is smallest not for the mean return but for a mean in which a rollout
counts by the squared norm of its gradient. At the softmax layer that norm is known from the probabilities alone.

Source: optimal token baseline as in verl (multi-turn version: by turn). The baseline of minimal variance: Weaver & Tao
(2001); Greensmith et al. (2004).
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from turngym.trainers.credit.base import Array, Credit, Paths, Truncated, all_equal, read_paths
from turngym.trainers.options import Share, checked
from turngym.tree import Tree

SCORE_NORM = "score_norm"
"""Key of `node.metrics` at an action: sum over its sampled tokens of `score_norms`."""


def score_norms(logprobs: Array, collision: Array) -> Array:
    """`(T,)` squared norm of ∇ log π at the logits: 1 − 2π + Σ_v π_v².

    Args:
        logprobs: `(T,)` log-prob of each sampled token, in nats.
        collision: `(T,)` Σ_v π_v², the chance that two draws from that distribution agree.

    >>> score_norms(np.log([0.5, 1.0]), np.array([0.5, 1.0])).tolist()
    [0.5, 0.0]
    """
    return 1 - 2 * np.exp(logprobs) + collision


@checked
def otb(
    tree: Tree,
    *,
    gamma: Share = 1.0,
    norms: Literal["recorded", "lower_bound"] = "recorded",
    truncated: Truncated = "mask",
) -> Credit:
    """Return-to-go minus the norm-weighted mean over the paths at the same turn.

        A_{i,u} = Q_{i,u} − Σ_j Q_{j,u} W_{j,u} / Σ_j W_{j,u}

    Q_{j,u} is the return-to-go of path j from turn u, W_{j,u} the sum of the squared gradient norms of its actions
    up to and with u, j all paths that have a turn u; a shared action gets the mean over its paths. Where one path
    alone has a turn u, A is 0 (the released code takes 0 as its baseline, so a long failure and a long success are
    treated unlike).

    Biased: paths that reach turn u are those that did not stop before, so a baseline by turn looks at the policy's
    choice to stop; and Q_{i,u} is in its own baseline.

    Args:
        tree: paths of one task.
        gamma: discount a turn.
        norms: "recorded" reads `metrics["score_norm"]` of each action; "lower_bound" takes Σ (1 − π)² from the
            recorded log-probs, which leaves out the other tokens' Σ π_v².
        truncated: what to do with paths that a budget of ours cut.

    Raises:
        CreditError: for a path without a stop or a reward, or an action without a finite `score_norm`.
    """
    paths = read_paths(tree, "otb", truncated)
    walks = [tree.actions(leaf) for leaf in paths.leaves]
    size = {node: _norm(paths, node, norms) for node in sorted({node for walk in walks for node in walk})}
    to_go = [_to_go(paths.reward[walk], gamma) for walk in walks]
    weight = [np.cumsum([size[node] for node in walk]) for walk in walks]
    total, count = np.zeros(len(tree)), np.zeros(len(tree))
    for turn in range(max(map(len, walks), default=0)):
        here = [i for i, walk in enumerate(walks) if len(walk) > turn]
        q = np.array([to_go[i][turn] for i in here])
        advantage = q - _weighted_mean(q, np.array([weight[i][turn] for i in here]))
        for i, value in zip(here, advantage, strict=True):
            if not paths.masked[i]:
                total[walks[i][turn]] += value
                count[walks[i][turn]] += 1
    return paths.credit(np.divide(total, count, out=total, where=count > 0))


def _norm(paths: Paths, node: int, norms: str) -> float:
    if norms == "lower_bound":
        probabilities = np.exp(paths.tree[node].logprobs[paths.tree[node].loss_mask].astype(np.float64))
        return float(((1 - probabilities) ** 2).sum())
    return max(0.0, float(paths.metric(SCORE_NORM, [node], "the sum of score_norms over its tokens")[0]))


def _to_go(rewards: Array, gamma: float) -> Array:
    out = rewards.copy()
    for turn in range(len(out) - 2, -1, -1):
        out[turn] += gamma * out[turn + 1]
    return out


def _weighted_mean(values: Array, weights: Array) -> float:
    """Exact where all values are equal; the plain mean where all weights are 0."""
    if all_equal(values):
        return float(values[0])
    return float(np.average(values, weights=weights if weights.any() else None))
