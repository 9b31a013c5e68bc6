"""Credit rule `ui_s1`: returns that stop at the first turn that left the expert's path.

The one idea: a rollout on recorded screens goes on after a mistake only because a patch put it back on the expert's
path. What it earned after the patch says nothing about the turns before, so no return flows across a mismatch.
"""

from __future__ import annotations

import numpy as np

from turngym.trainers.credit.base import (
    Array,
    Credit,
    Paths,
    Truncated,
    centre,
    mean,
    read_paths,
    standardise,
)
from turngym.trainers.credit.gigpo import Norm
from turngym.trainers.options import NotNegative, Share, checked
from turngym.tree import Tree

MATCH = "match"
"""Key of `node.metrics` at an action: 1 where it is the expert's, 0 where it is not."""


@checked
def ui_s1(
    tree: Tree,
    *,
    gamma: Share = 0.5,
    episode_weight: NotNegative = 1.0,
    step_weight: NotNegative = 1.0,
    norm: Norm = "std",
    truncated: Truncated = "mask",
) -> Credit:
    """Episode advantage plus the advantage among the actions of the same turn.

        Q(n) = r(n) + γ · Q(next) where n matches, else r(n), and then nothing flows to the turns before n
        A(n) = w_e · (R − mean R) / (std R + 1e-6)  +  w_s · (Q(n) − mean_t Q) / (std_t Q + 1e-6)

    t is the turn of n; grouping by it is sound here, since on recorded screens every rollout sees the expert's
    screen at turn t. A turn that one rollout alone reached adds 0.

    Biased: every value is in its own mean, and γ and the stops cut returns short.

    Source: UI-S1 (arXiv:2509.11543), the authors' credit code. That code takes the mean over episodes over rows, a
    rollout once a turn; here it counts once.

    Args:
        tree: paths of one task, with `metrics["match"]` at every action.
        gamma: γ.
        episode_weight: w_e.
        step_weight: w_s.
        norm: divide by deviations (over n − 1), or by nothing.
        truncated: what to do with paths that a budget of ours cut.

    Raises:
        CreditError: for a path without a stop or a reward, or an action without a `match`.
    """
    paths = read_paths(tree, "ui_s1", truncated)
    scale = centre if norm == "mean" else lambda values: standardise(values, "unbiased")
    q, turns = _returns_until_mismatch(paths, gamma), paths.turns()
    step = np.zeros(len(tree))
    actions = np.isfinite(q) & paths.is_action
    for turn in np.unique(turns[actions]):
        members = actions & (turns == turn)
        step[members] = scale(q[members])
    episode = paths.leaf_means(scale(paths.returns), masked=False)
    return paths.credit(episode_weight * episode + step_weight * step)


def _returns_until_mismatch(paths: Paths, gamma: float) -> Array:
    """`(N,)` Q of every action on a path that counts; NaN where none runs."""
    out, carried = np.full(len(paths.parent), np.nan), np.zeros(len(paths.parent))
    counted = np.isfinite(paths.leaf_means(paths.returns, masked=True))
    heard = paths.heard()
    for node in np.flatnonzero(counted)[::-1].tolist():
        following = mean(carried[heard[node]]) if heard[node] else 0.0
        if not paths.is_action[node]:
            carried[node] = following
        elif paths.metric(MATCH, [node], "1 for the expert's action and 0 for another")[0]:
            out[node] = carried[node] = paths.reward[node] + gamma * following
        else:
            out[node] = paths.reward[node]
    return out
