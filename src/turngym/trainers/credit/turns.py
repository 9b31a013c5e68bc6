"""Credit by time: discounted returns-to-go, and advantage estimation (GAE) over turns.

The one idea: an action is responsible for what comes after it, and for nothing before. A value of the state where it
was taken, given by a critic as `metrics["value"]` of that observation, is the baseline; λ trades the critic's error
against the noise of the rewards.

Where a tree forks, what comes after a node is the mean over its children.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from turngym.trainers.credit.base import Array, Credit, Paths, Truncated, mean, read_paths, was_cut
from turngym.trainers.options import Share, checked
from turngym.tree import Tree

VALUE = "value"
"""Key of `node.metrics` at an observation: a critic's guess of the return from there on."""

Cut = Literal["mask", "fail", "bootstrap"]
"""`Truncated`, or go on from the critic's value of the observation at which the path was cut."""


@checked
def returns_to_go(tree: Tree, *, gamma: Share = 1.0, truncated: Truncated = "mask") -> Credit:
    """REINFORCE: A(n) = Q(n) = r(n) + γ · (mean of Q over the actions that follow), without a baseline.

    Unbiased (times the number of root children) for γ = 1 and a tree that branches at its root only, if nothing is
    masked. Biased with γ < 1, which forgets late rewards, and below a fork, where actions count once a branch.

    Source: Williams (1992); Sutton & Barto, "Reinforcement Learning", 13.3.

    Args:
        tree: paths of one task; one is enough.
        gamma: discount a turn.
        truncated: what to do with paths that a budget of ours cut.

    Raises:
        CreditError: for a path without a stop or a reward.
    """
    paths = read_paths(tree, "returns_to_go", truncated)
    return paths.credit(paths.returns_to_go(gamma))


@checked
def turn_gae(tree: Tree, *, gamma: Share = 0.99, lam: Share = 0.9, truncated: Cut = "mask") -> Credit:
    """Generalised advantage estimation with a turn as the action.

        δ(n) = r(n) + γ · V(next) − V(state of n),      A(n) = δ(n) + γ · λ · A(next)

    V is `metrics["value"]` of the observation at which an action was taken; V(next) is 0 after the last action.
    With γ = λ = 1, A is the return-to-go minus V.

    Below a fork, where actions count once a branch, A is weighed as in `tree`: times the root's children and the
    chance of the walk that takes a branch at random (`Paths.walk_weights`).

    Unbiased (times the number of root children) for γ = λ = 1, if nothing is masked, no fork looked ahead (see
    `tree`) and V was fitted on other rollouts. Biased otherwise by the error of V, the less the larger λ.

    Source: Schulman et al. (arXiv:1506.02438), over turns as in turn-level PPO. Agents: γ .99, λ .9; an outcome at
    the end alone: 1 and 1.

    Args:
        tree: paths of one task with the critic's values; one path is enough.
        gamma: discount a turn.
        lam: λ.
        truncated: what to do with paths that a budget of ours cut; "bootstrap" trains them, and takes V of the
            observation where they were cut as what would have come.

    Raises:
        CreditError: for a path without a stop or a reward, or a state without a finite value.
    """
    paths = paths_up_to_cuts(tree, "turn_gae", truncated)
    return paths.credit(paths.walk_weights() * _estimate(paths, gamma, lam, truncated))


def state_returns(
    tree: Tree, *, gamma: float = 1.0, lam: float = 1.0, truncated: Cut = "mask"
) -> dict[int, float]:
    """What a critic is fitted to: the λ-return of each state in which a trained action was taken, by node index.

        G(s) = V(s) + mean of A(n) over the actions that were taken in s,      A as `turn_gae`, not weighed

    With λ = 1 that is the mean return from s on, whatever V is.

    Args:
        tree: paths of one task with the critic's values.
        gamma: discount a turn.
        lam: λ of the critic.
        truncated: as of `turn_gae`: what was masked is no target.

    Raises:
        CreditError: as `turn_gae`.
    """
    paths = paths_up_to_cuts(tree, "state_returns", truncated)
    advantage = _estimate(paths, gamma, lam, truncated)
    taken = [[child for child in below if paths.trained[child]] for below in paths.heard()]
    return {
        state: tree[state].metrics[VALUE] + mean(advantage[below])
        for state, below in enumerate(taken)
        if below
    }


def paths_up_to_cuts(tree: Tree, rule: str, truncated: Cut) -> Paths:
    """`read_paths`, where a path that goes on from its cut is trained like any other."""
    return read_paths(tree, rule, "mask" if truncated == "mask" else "fail")


def _estimate(paths: Paths, gamma: float, lam: float, truncated: Cut) -> Array:
    """`(N,)` A of each trained action, 0 elsewhere."""
    cut = values_at_cuts(paths) if truncated == "bootstrap" else {}
    size = len(paths.parent)
    advantage, following, value_after = np.zeros(size), np.zeros(size), np.zeros(size)
    value_after[list(cut)] = list(cut.values())
    for node, heard in reversed(list(enumerate(paths.heard()))):
        if heard:
            following[node], value_after[node] = mean(following[heard]), mean(value_after[heard])
        if paths.trained[node]:
            value = paths.metric(VALUE, [paths.parent[node]], "the critic's value of the state")[0]
            delta = paths.reward[node] + gamma * value_after[node] - value
            advantage[node] = following[node] = delta + gamma * lam * following[node]
            value_after[node] = value
    return advantage


def values_at_cuts(paths: Paths) -> dict[int, float]:
    """V at the leaf of each path that was cut before it succeeded."""
    cut = [leaf for leaf in paths.leaves if was_cut(paths.tree, leaf)]
    what = "the critic's value of the state where the path was cut"
    return dict(zip(cut, paths.metric(VALUE, cut, what).tolist(), strict=True))
