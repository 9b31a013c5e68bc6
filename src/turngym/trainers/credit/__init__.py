"""Credit rules: pure functions from a tree to one advantage per action. NumPy only.

    rule = get_rule("tree")
    statistics = apply(rule, trees)      # writes node.advantage

`base.py` says what counts, each rule has its formula in its docstring, `registry.py` has the names.
"""

from turngym.trainers.credit.base import Credit, CreditRule
from turngym.trainers.credit.elpo import CRITICAL_TURN, elpo
from turngym.trainers.credit.grpo import dr_grpo, grpo, rloo
from turngym.trainers.credit.registry import LOWER_CLIP_EXTRA, RULES, apply, get_rule
from turngym.trainers.credit.tree_grpo import tree_grpo
from turngym.trainers.credit.tree_rloo import tree_rloo
from turngym.trainers.credit.vine import vine

__all__ = [
    "CRITICAL_TURN",
    "LOWER_CLIP_EXTRA",
    "RULES",
    "Credit",
    "CreditRule",
    "apply",
    "dr_grpo",
    "elpo",
    "get_rule",
    "grpo",
    "rloo",
    "tree_grpo",
    "tree_rloo",
    "vine",
]
