"""Credit rule `elpo`: error-localised policy optimisation.

The one idea: one early, irrecoverable turn decides most failures of long episodes. Bisection over forks finds it
(`agents/branching.py`); this rule mixes what the branchings say with what the whole paths say, and lets the loss
push further down on the critical turn and all that followed it.
"""

from __future__ import annotations

from turngym.errors import CreditError
from turngym.trainers.credit.base import Array, Credit, Paths, Std, Truncated, read_paths, standardise
from turngym.trainers.options import NotNegative, Share, checked
from turngym.tree import Tree
from turngym.types import Outcome

CRITICAL_TURN = "critical_turn"
"""Key of `node.metrics` at a failed leaf: 0-based index of the first irrecoverable turn of its path."""


@checked
def elpo(
    tree: Tree,
    *,
    branch_share: Share = 0.5,
    critical_clip: NotNegative = 0.115,
    std: Std = "unbiased",
    truncated: Truncated = "mask",
) -> Credit:
    """Branch and trajectory advantages mixed, and a wider lower clip from the critical turn on.

        A(n)   = λ · A_b(n) + (1 − λ) · A_t(n)
        A_b(n) = (V(m) − mean) / (std + 1e-6) over m and its siblings, m the nearest of n and its ancestors that
                 has siblings, V the recursive mean over children; 0 above the first branching
        A_t(n) = mean over the paths through n of (R − mean R) / (std R + 1e-6)

    On a failed leaf with `metrics["critical_turn"] = t`, the actions of its path from turn t on get
    `critical_clip` in `Credit.lower_clip_extra`: the loss clips their ratio at 1 − (clip_low + critical_clip),
    so negative updates reach further down (to 0.685 with the paper's numbers).

    Biased: both parts divide by deviations, every value is in its own mean, and the forks were chosen because a
    path failed.

    Source: Liang et al., ELPO (arXiv:2602.09598), hierarchical advantage and error-localised clipping, from
    third-party notes that quote the equations; the authors' code was not available. That a chain below a
    branching inherits its branch advantage is our reading.

    Args:
        tree: paths of one task, with the critical turns that bisection wrote.
        branch_share: λ, the part of the branch advantage.
        critical_clip: addition to the lower clip width.
        std: divide by the deviation over G − 1 ("unbiased") or over G ("population").
        truncated: what to do with paths that a budget of ours cut.

    Raises:
        CreditError: for a path without a stop or a reward, or a critical turn that its path does not have.
    """
    paths = read_paths(tree, "elpo", truncated)
    trajectory = paths.leaf_means(standardise(paths.returns, std), masked=False)
    advantage = branch_share * _branch_advantages(paths, std) + (1 - branch_share) * trajectory
    critical = {node: critical_clip for node in _critical_nodes(paths) if paths.trained[node]}
    return paths.credit(advantage, critical if critical_clip else {})


def _branch_advantages(paths: Paths, std: Std) -> Array:
    """`(N,)` A_b of every node."""
    value = paths.branch_values()
    return paths.branch_scores(lambda _, below: standardise(value[below], std))


def _critical_nodes(paths: Paths) -> set[int]:
    """Actions at or after the critical turn of a failed path."""
    nodes: set[int] = set()
    for leaf in paths.leaves:
        turn = paths.tree[leaf].metrics.get(CRITICAL_TURN)
        if turn is None or paths.tree[leaf].outcome is Outcome.SUCCESS:
            continue
        actions = paths.tree.actions(leaf)
        if not 0 <= turn < len(actions) or turn != int(turn):
            raise CreditError(
                f"{paths.rule}: {paths.tree.rollout_id}: {CRITICAL_TURN} of leaf {leaf} is {turn}, "
                f"and its path has turns 0 to {len(actions) - 1}"
            )
        nodes.update(actions[int(turn) :])
    return nodes
