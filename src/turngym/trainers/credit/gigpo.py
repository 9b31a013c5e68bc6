"""Credit rule `gigpo`: actions that were taken in the very same state are compared with one another.

The one idea: rollouts of one task keep coming back to the same states. Those visits are groups that nobody had to
pay for, and within such a group only the action and its luck differ.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Literal

import numpy as np

from turngym.trainers.credit.base import Array, Credit, Paths, Truncated, centre, read_paths, standardise
from turngym.trainers.options import NotNegative, Share, checked
from turngym.tree import Tree

Norm = Literal["mean", "std"]
"""Subtract the mean, or divide by the deviation as well."""

SHARED_STATE_SHARE = "credit/shared_state_share"
_FLOOR = 1e-3


@checked
def gigpo(
    tree: Tree,
    *,
    gamma: Share = 0.95,
    step_weight: NotNegative = 1.0,
    norm: Norm = "mean",
    truncated: Truncated = "mask",
) -> Credit:
    """Episode advantage plus ω times the advantage within the group of the state.

        A(n) = mean over the paths through n of (R − mean R) / F  +  ω · (Q(n) − mean_S Q) / F_S

    Q is the return-to-go with γ a turn, S all actions of the tree that were taken at observations with the state key
    of n (those of two visits in one rollout as well, so going round in circles is punished). F is 1, or with
    `norm="std"` the deviation: over G − 1 plus 1e-6 for paths; over the group, and at least 1e-3, for states.
    An action alone in its state has no second part.

    Biased: every value is in its own mean, visits of one rollout are in one group, and γ forgets late rewards.

    Source: Feng et al., GiGPO (arXiv:2505.10978), from an independent implementation. The released code counts a
    rollout once a turn in the mean over episodes; here it counts once.

    Args:
        tree: paths of one task, with state keys from the environment (`LoopOptions.state_keys`).
        gamma: γ.
        step_weight: ω.
        norm: what to divide by.
        truncated: what to do with paths that a budget of ours cut.

    Raises:
        CreditError: for a path without a stop or a reward, or an action at an observation without a state key.
    """
    paths = read_paths(tree, "gigpo", truncated)
    episode = centre(paths.returns) if norm == "mean" else standardise(paths.returns, "unbiased")
    q, groups = paths.returns_to_go(gamma), _same_state(paths)
    step = np.zeros(len(tree))
    for members in groups:
        step[members] = _step_advantages(q[members], norm)
    actions = sum(len(members) for members in groups)
    shared = sum(len(members) for members in groups if len(members) > 1)
    return paths.credit(
        paths.leaf_means(episode, masked=False) + step_weight * step,
        metrics={SHARED_STATE_SHARE: shared / actions} if actions else {},
    )


def _step_advantages(q: Array, norm: Norm) -> Array:
    centred = centre(q)
    return centred / max(float(q.std()), _FLOOR) if norm == "std" else centred


def _same_state(paths: Paths) -> list[list[int]]:
    """The actions on paths that count, by the state they were taken in."""
    children = paths.children()
    groups: dict[str, list[int]] = defaultdict(list)
    for node, key in paths.state_keys(children).items():
        groups[key] += [child for child in children[node] if paths.is_action[child]]
    return list(groups.values())
