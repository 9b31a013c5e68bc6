"""Names of the credit rules, and `apply`, which writes what a rule says into the record."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from turngym.trainers.credit.base import Credit, CreditRule
from turngym.trainers.credit.elpo import elpo
from turngym.trainers.credit.grpo import dr_grpo, grpo, rloo
from turngym.trainers.credit.tree_grpo import tree_grpo
from turngym.trainers.credit.tree_rloo import tree_rloo
from turngym.trainers.credit.vine import vine
from turngym.trainers.options import bind
from turngym.tree import Tree

LOWER_CLIP_EXTRA = "lower_clip_extra"
"""Key of `node.metrics` under which `apply` leaves `Credit.lower_clip_extra` for the packing."""

RULES: Mapping[str, Callable[..., Credit]] = MappingProxyType(
    {
        "grpo": grpo,
        "dr_grpo": dr_grpo,
        "rloo": rloo,
        "tree": tree_rloo,
        "tree_grpo": tree_grpo,
        "vine": vine,
        "elpo": elpo,
    }
)
"""Every credit rule by its name; options are the keyword-only parameters."""


def get_rule(name: str, **options: Any) -> CreditRule:
    """The rule `name` with its options bound.

    Raises:
        UnknownName: for a rule, an option or a choice that does not exist; an option that this rule does not
            use is refused even if another rule has it.
        ConfigError: for an option of another type or out of range.

    >>> get_rule("grpo", std="population") is not None
    True
    >>> get_rule("rloo", std="population")
    Traceback (most recent call last):
    turngym.errors.UnknownName: unknown option of credit rule rloo 'std'. Known: truncated.
    """
    return bind("credit rule", RULES, name, options)


def apply(rule: CreditRule, trees: Sequence[Tree]) -> dict[str, float]:
    """Write the advantages of `rule` into `trees` and say how they came out.

    Sets `node.advantage` of every action (None where the rule does not train it) and
    `node.metrics["lower_clip_extra"]` where the rule gives one; what an earlier rule wrote is removed. Every
    tree is scored before the first one is written.

    Returns:
        Under `credit/*`: `trees`, `rollouts` (paths in a statistic), `void_rollouts`, `masked_rollouts`,
        `trained_nodes`; shares of the trees: `empty_share` (no path counts, nothing is trained),
        `single_share` (one path: no baseline), `zero_variance_share` (two or more, all returns equal); over
        the trained nodes: `mean`, `abs_mean`, `abs_max`, `nonzero_share`.

    Raises:
        CreditError: for a tree that the rule can't score.
    """
    scored = [rule(tree) for tree in trees]
    for tree, credit in zip(trees, scored, strict=True):
        for node in tree:
            if node.is_action:
                node.advantage = credit.advantages.get(node.index)
                node.metrics.pop(LOWER_CLIP_EXTRA, None)
        for index, extra in credit.lower_clip_extra.items():
            tree[index].metrics[LOWER_CLIP_EXTRA] = extra
    return _statistics(scored)


def _statistics(scored: Sequence[Credit]) -> dict[str, float]:
    advantages = [a for credit in scored for a in credit.advantages.values()]
    absolute = [abs(a) for a in advantages]
    trees, nodes = max(len(scored), 1), max(len(advantages), 1)
    return {
        "credit/trees": float(len(scored)),
        "credit/rollouts": float(sum(c.rollouts for c in scored)),
        "credit/void_rollouts": float(sum(c.void for c in scored)),
        "credit/masked_rollouts": float(sum(c.masked for c in scored)),
        "credit/trained_nodes": float(len(advantages)),
        "credit/empty_share": sum(c.rollouts == 0 for c in scored) / trees,
        "credit/single_share": sum(c.rollouts == 1 for c in scored) / trees,
        "credit/zero_variance_share": sum(c.zero_variance for c in scored) / trees,
        "credit/mean": math.fsum(advantages) / nodes,
        "credit/abs_mean": math.fsum(absolute) / nodes,
        "credit/abs_max": max(absolute, default=0.0),
        "credit/nonzero_share": sum(a > 0 for a in absolute) / nodes,
    }
