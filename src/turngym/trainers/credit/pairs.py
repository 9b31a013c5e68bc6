"""REFUEL: pairs of answers at one point of a conversation, and what the policy is regressed to.

The one idea: the difference of two log-ratios is a guess of the difference of two returns. Fitting it needs neither a
critic nor a clip, and reaches every turn, since the rest of each conversation is played by the policy that is to improve.

Source: Gao et al., REFUEL (arXiv:2410.04612), from memory of the paper. The squared error is a loss; this module makes
its targets.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from turngym.trainers.credit.base import Truncated, read_paths
from turngym.trainers.options import Positive, checked
from turngym.tree import Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two actions at the same decision point."""

    first: int
    "node index of one action"
    second: int
    "node index of the other"
    target: float
    "D = return-to-go from `first` on minus that from `second` on"


@checked
def refuel_pairs(tree: Tree, *, limit: Positive | None = None, truncated: Truncated = "mask") -> list[Pair]:
    """Every pair of sibling actions at every fork, with D = Q(first) − Q(second).

    The loss over the pairs is ((1/η) · (Δ(first) − Δ(second)) − D)², Δ = log π_θ − log π_k summed over the sampled
    tokens of that action alone. D = 0 pulls the two ratios together and is kept.

    Q is the return-to-go without a discount, the mean over what follows where the tree forks again. Unbiased as a
    regression target if no fork looked ahead and nothing is masked or limited.

    Args:
        tree: paths of one task, played to their end by the policy that sampled.
        limit: D is clipped to ±limit; None leaves it.
        truncated: a masked path is in no pair.

    Raises:
        CreditError: for a path without a stop or a reward.
    """
    paths = read_paths(tree, "refuel_pairs", truncated)
    q = paths.returns_to_go(1.0)
    bound = float("inf") if limit is None else limit
    return [
        Pair(first=first, second=second, target=min(max(float(q[first] - q[second]), -bound), bound))
        for below in paths.children()
        for first, second in combinations([node for node in below if paths.trained[node]], 2)
    ]
