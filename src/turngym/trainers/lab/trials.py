"""Which rule the lab tries with which options on which trees, and what it claims to be.

Every registered rule is tried as it comes, on the trees that it was made for: groups, or trees that forked on a coin. A
rule whose docstring says that it is unbiased under a condition is tried under that condition as well, and two wrong turns
are tried on purpose: a baseline by turn index, and forks that looked at how a path ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from turngym.errors import unknown_name
from turngym.trainers.credit import BATCH_RULES, Credit, get_rule, lift
from turngym.trainers.credit.base import BatchRule, read_paths
from turngym.trainers.lab.forest import Plan
from turngym.tree import Tree

Claim = Literal["unbiased", "scaled", "biased"]
"""What is said of the mean: the exact gradient; a multiple of it; neither."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One rule, one setting."""

    rule: str
    "name of a registered rule, or of `CONTROLS`"
    options: Mapping[str, Any] = field(default_factory=dict)
    plan: Plan = "group"
    claim: Claim = "biased"

    @property
    def over_batch(self) -> bool:
        """Whether an estimate takes all trees of an update."""
        return self.rule in BATCH_RULES

    def bound(self) -> BatchRule:
        """The rule with its options."""
        if self.rule in CONTROLS:
            return lift(CONTROLS[self.rule])
        return get_rule(self.rule, **self.options)


def turn_index(tree: Tree) -> Credit:
    """A control, not a rule to train with: the baseline of turn t is the mean over the other rollouts that have one.

        A_{i,t} = Q_{i,t} − mean of Q_{j,t} over j ≠ i with a turn t;   0 where there is none

    It looks innocent, since no return is in its own baseline, and with episodes of one length it is. Where the policy
    decides when to stop, late turns are compared with fewer rollouts, and those that nobody else reached are silent: the
    later a turn, the less it counts.

    Biased under voluntary stopping.
    """
    paths = read_paths(tree, "turn_index", "mask")
    q, turns = paths.returns_to_go(1.0), paths.turns()
    advantage = np.zeros(len(tree))
    for turn in np.unique(turns[paths.is_action]):
        members = np.flatnonzero(paths.is_action & (turns == turn))
        if len(members) > 1:
            advantage[members] = q[members] - (q[members].sum() - q[members]) / (len(members) - 1)
    return paths.credit(advantage)


CONTROLS = MappingProxyType({"turn_index": turn_index})
"""Rules that exist to be found out."""


def _coin(*names: str) -> Mapping[str, Trial]:
    return {name: Trial(rule=name, plan="coin") for name in names}


def _group(*names: str) -> Mapping[str, Trial]:
    return {name: Trial(rule=name) for name in names}


TRIALS: Mapping[str, Trial] = MappingProxyType(
    {
        "tree": Trial(rule="tree", plan="coin", claim="unbiased"),
        "tree_pool": Trial(rule="tree", options={"pool": 2.0}, plan="coin", claim="unbiased"),
        "tree_group": Trial(rule="tree", claim="unbiased"),
        "graph_own": Trial(rule="graph", options={"values": "own"}, plan="coin", claim="unbiased"),
        "rloo": Trial(rule="rloo", claim="unbiased"),
        "pvpo": Trial(rule="pvpo", claim="unbiased"),
        "v_half_loo": Trial(rule="v_half", options={"leave_one_out": True}, claim="unbiased"),
        "returns_to_go": Trial(rule="returns_to_go", claim="unbiased"),
        "tree_value": Trial(rule="tree_value", plan="coin", claim="unbiased"),
        "turn_gae_mc": Trial(rule="turn_gae", options={"gamma": 1.0, "lam": 1.0}, claim="unbiased"),
        "turn_gae_tree": Trial(
            rule="turn_gae", options={"gamma": 1.0, "lam": 1.0}, plan="coin", claim="unbiased"
        ),
        "dr_grpo": Trial(rule="dr_grpo", claim="scaled"),
        **_group("grpo", "mc_grpo", "v_half", "turn_gae", "gigpo", "unique", "ui_s1", "otb"),
        "graph": Trial(rule="graph", plan="coin"),
        "graph_group": Trial(rule="graph"),
        **_group("reinforce_pp", "reinforce_pp_baseline", "sao"),
        **_coin("tree_grpo", "tree_rpo", "tree_po", "tree_rl", "trace", "spo", "vine", "elpo"),
        **_coin("appo", "murphy", "logo"),
        "turn_index": Trial(rule="turn_index"),
        "rloo_forked": Trial(rule="rloo", plan="coin"),
        "tree_failed": Trial(rule="tree", plan="failed"),
        "tree_finished": Trial(rule="tree", plan="finished"),
    }
)
"""Every trial by its name. A registered rule's own name is its main one: the setting with the strongest claim for rules
that are unbiased as they come, the defaults for the others."""


def named(rules: Sequence[str] | None) -> Mapping[str, Trial]:
    """The trials of some rules, all where None is given; a trial's own name is one as well.

    Raises:
        UnknownName: for a name that is neither.
    """
    if rules is None:
        return TRIALS
    known = {*TRIALS, *(trial.rule for trial in TRIALS.values())}
    for name in rules:
        if name not in known:
            raise unknown_name("credit rule of the lab", name, known)
    return {name: trial for name, trial in TRIALS.items() if name in rules or trial.rule in rules}
