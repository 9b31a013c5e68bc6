"""Credit rules: pure functions from a tree to one advantage per action. NumPy only.

    rule = get_rule("tree")
    statistics = apply(rule, trees)      # writes node.advantage

`base.py` says what counts, each rule has its formula in its docstring, `registry.py` has the names. By what a rule
compares:

    whole paths         grpo.py (also Spark, ARPO, SUPO, MemAgent), median.py, strategies.py; over a batch: reinforce.py
    a known value       prior.py (of the task), turns.py (of the state), tokens.py (before each token), tree_value.py
    turns               turns.py, otb.py, gigpo.py and graph.py (same state), semi_online.py (same turn)
    branches of a fork  tree_rloo.py, vine.py, subtrees.py, tree_grpo.py, elpo.py, murphy.py, logo.py, appo.py
    pairs, rewards      pairs.py, shaping.py: what comes after and before credit
"""

from turngym.trainers.credit.base import BatchRule, Credit, CreditRule
from turngym.trainers.credit.batch import lift, whiten
from turngym.trainers.credit.elpo import CRITICAL_TURN, elpo
from turngym.trainers.credit.graph import graph
from turngym.trainers.credit.grpo import dr_grpo, grpo, rloo
from turngym.trainers.credit.registry import (
    BATCH_RULES,
    LOWER_CLIP_EXTRA,
    NEEDS_STATE_KEYS,
    NEEDS_VALUES,
    RULES,
    TREE_RULES,
    ReadsValues,
    apply,
    get_rule,
    must_be_written,
    options_of,
)
from turngym.trainers.credit.tree_grpo import tree_grpo
from turngym.trainers.credit.tree_rloo import tree_rloo
from turngym.trainers.credit.vine import vine

__all__ = [
    "BATCH_RULES",
    "CRITICAL_TURN",
    "LOWER_CLIP_EXTRA",
    "NEEDS_STATE_KEYS",
    "NEEDS_VALUES",
    "RULES",
    "TREE_RULES",
    "BatchRule",
    "Credit",
    "CreditRule",
    "ReadsValues",
    "apply",
    "dr_grpo",
    "elpo",
    "get_rule",
    "graph",
    "grpo",
    "lift",
    "must_be_written",
    "options_of",
    "rloo",
    "tree_grpo",
    "tree_rloo",
    "vine",
    "whiten",
]
