"""Names of the credit rules, and `apply`, which writes what a rule says into the record."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from turngym.trainers.credit.appo import appo
from turngym.trainers.credit.base import Array, BatchRule, Credit, mean
from turngym.trainers.credit.batch import lift, token_advantages
from turngym.trainers.credit.elpo import elpo
from turngym.trainers.credit.gigpo import gigpo
from turngym.trainers.credit.graph import graph
from turngym.trainers.credit.grpo import dr_grpo, grpo, rloo
from turngym.trainers.credit.logo import logo
from turngym.trainers.credit.median import mc_grpo
from turngym.trainers.credit.murphy import murphy
from turngym.trainers.credit.otb import SCORE_NORM, otb
from turngym.trainers.credit.prior import PRIOR_VALUE, pvpo, v_half
from turngym.trainers.credit.reinforce import reinforce_pp, reinforce_pp_baseline
from turngym.trainers.credit.semi_online import MATCH, ui_s1
from turngym.trainers.credit.strategies import unique
from turngym.trainers.credit.subtrees import spo, trace, tree_po, tree_rl, tree_rpo
from turngym.trainers.credit.tokens import sao
from turngym.trainers.credit.tree_grpo import tree_grpo
from turngym.trainers.credit.tree_rloo import tree_rloo
from turngym.trainers.credit.tree_value import tree_value
from turngym.trainers.credit.turns import returns_to_go, turn_gae
from turngym.trainers.credit.vine import vine
from turngym.trainers.options import bind
from turngym.tree import Tree

LOWER_CLIP_EXTRA = "lower_clip_extra"
"""Key of `node.metrics` under which `apply` leaves `Credit.lower_clip_extra` for `rows`."""

TREE_RULES: Mapping[str, Callable[..., Credit]] = MappingProxyType(
    {
        "grpo": grpo,
        "dr_grpo": dr_grpo,
        "rloo": rloo,
        "mc_grpo": mc_grpo,
        "pvpo": pvpo,
        "v_half": v_half,
        "otb": otb,
        "returns_to_go": returns_to_go,
        "turn_gae": turn_gae,
        "gigpo": gigpo,
        "unique": unique,
        "ui_s1": ui_s1,
        "tree": tree_rloo,
        "graph": graph,
        "tree_value": tree_value,
        "tree_grpo": tree_grpo,
        "tree_rpo": tree_rpo,
        "tree_po": tree_po,
        "tree_rl": tree_rl,
        "trace": trace,
        "spo": spo,
        "vine": vine,
        "elpo": elpo,
        "appo": appo,
        "murphy": murphy,
        "logo": logo,
    }
)
"""Rules that score each tree alone."""

BATCH_RULES: Mapping[str, Callable[..., list[Credit]]] = MappingProxyType(
    {"reinforce_pp": reinforce_pp, "reinforce_pp_baseline": reinforce_pp_baseline, "sao": sao}
)
"""Rules that look at all trees of an update at once."""

NEEDS_STATE_KEYS = frozenset({"gigpo", "graph", "unique"})
"""Rules that look at the states that were reached; roll out with `LoopOptions.state_keys`."""

_READS = {"pvpo": PRIOR_VALUE, "v_half": PRIOR_VALUE, "otb": SCORE_NORM, "ui_s1": MATCH}
"""Rules that read what neither a rollout nor a critic writes, and its key in `node.metrics`."""

RULES: Mapping[str, Callable[..., Any]] = MappingProxyType({**TREE_RULES, **BATCH_RULES})
"""Every credit rule by its name; options are the keyword-only parameters."""

ReadsValues = Literal["states", "tokens"]
"""Where a critic has to speak: `metrics["value"]` of each state in which an action was taken and each at which a path was
cut, or `values` of each action, before every sampled token."""

NEEDS_VALUES: Mapping[str, ReadsValues] = MappingProxyType(
    {"turn_gae": "states", "tree_value": "states", "sao": "tokens"}
)
"""Rules that can't do without a critic."""


def get_rule(name: str, **options: Any) -> BatchRule:
    """The rule `name` with its options bound, over all trees of an update.

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
    rule = bind("credit rule", RULES, name, options)
    return rule if name in BATCH_RULES else lift(rule)


def options_of(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Every option that rule `name` runs with: those given, and the defaults of the others.

    >>> options_of("turn_gae", {"lam": 1.0})
    {'gamma': 0.99, 'lam': 1.0, 'truncated': 'mask'}
    """
    bound = inspect.signature(bind("credit rule", RULES, name, options))
    return {p.name: p.default for p in bound.parameters.values() if p.kind is p.KEYWORD_ONLY}


def must_be_written(name: str, options: Mapping[str, Any]) -> str | None:
    """The key in `node.metrics` that whoever uses the rule `name` has to write before it scores; None for most rules."""
    if name == "otb" and options.get("norms") == "lower_bound":
        return None
    return _READS.get(name)


def apply(rule: BatchRule, trees: Sequence[Tree]) -> dict[str, float]:
    """Write the advantages of `rule` into `trees` and say how they came out.

    Sets `node.advantage` of every action (None where the rule does not train it) and
    `node.metrics["lower_clip_extra"]` where the rule gives one; what an earlier rule wrote is removed. Every
    tree is scored before the first one is written.

    Returns:
        Under `credit/*`: `trees`, `rollouts` (paths in a statistic), `void_rollouts`, `masked_rollouts`,
        `trained_nodes`; shares of the trees: `empty_share` (no path counts, nothing is trained),
        `single_share` (one path: no baseline), `zero_variance_share` (two or more, all returns equal); over
        the trained nodes, each with the mean over its sampled tokens: `mean`, `abs_mean`, `abs_max` (over tokens),
        `nonzero_share`. And the means of `Credit.metrics` over the trees that have them.

    Raises:
        CreditError: for a tree that the rule can't score.
    """
    scored = rule(trees)
    for tree, credit in zip(trees, scored, strict=True):
        for node in tree:
            if node.is_action:
                node.advantage = credit.advantages.get(node.index)
                node.metrics.pop(LOWER_CLIP_EXTRA, None)
        for index, extra in credit.lower_clip_extra.items():
            tree[index].metrics[LOWER_CLIP_EXTRA] = extra
    return _statistics(trees, scored)


def _statistics(trees: Sequence[Tree], scored: Sequence[Credit]) -> dict[str, float]:
    tokens: list[Array] = [
        np.full(1, advantage) if isinstance(advantage, float) else token_advantages(tree, node, advantage)
        for tree, credit in zip(trees, scored, strict=True)
        for node, advantage in credit.advantages.items()
    ]
    advantages = [mean(values) if len(values) else 0.0 for values in tokens]
    absolute = [mean(abs(values)) if len(values) else 0.0 for values in tokens]
    count, nodes = max(len(scored), 1), max(len(advantages), 1)
    return {
        "credit/trees": float(len(scored)),
        "credit/rollouts": float(sum(c.rollouts for c in scored)),
        "credit/void_rollouts": float(sum(c.void for c in scored)),
        "credit/masked_rollouts": float(sum(c.masked for c in scored)),
        "credit/trained_nodes": float(len(advantages)),
        "credit/empty_share": sum(c.rollouts == 0 for c in scored) / count,
        "credit/single_share": sum(c.rollouts == 1 for c in scored) / count,
        "credit/zero_variance_share": sum(c.zero_variance for c in scored) / count,
        "credit/mean": math.fsum(advantages) / nodes,
        "credit/abs_mean": math.fsum(absolute) / nodes,
        "credit/abs_max": max((float(abs(values).max()) for values in tokens if len(values)), default=0.0),
        "credit/nonzero_share": sum(a > 0 for a in absolute) / nodes,
        **_own_metrics(scored),
    }


def _own_metrics(scored: Sequence[Credit]) -> dict[str, float]:
    keys = sorted({key for credit in scored for key in credit.metrics})
    return {key: mean([c.metrics[key] for c in scored if key in c.metrics]) for key in keys}
