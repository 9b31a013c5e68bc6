"""Rules over all trees of an update: `lift` makes one of a rule over a single tree, `whiten` compares across tasks.

The one idea: what a batch rule adds is a last step on the credits of a per-tree rule, so it is written as that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from turngym.trainers.credit.base import Array, BatchRule, Credit, CreditRule, all_equal
from turngym.tree import Tree

_EPSILON = 1e-8


def lift(rule: CreditRule) -> BatchRule:
    """The batch rule that scores each tree alone."""
    return partial(_each, rule)


def _each(rule: CreditRule, trees: Sequence[Tree]) -> list[Credit]:
    return [rule(tree) for tree in trees]


def token_advantages(tree: Tree, node: int, advantage: float | Array) -> Array:
    """`(M,)` the advantage of each sampled token of a node."""
    mask = tree[node].loss_mask
    return np.broadcast_to(np.asarray(advantage, np.float64), mask.shape)[mask]


def whiten(trees: Sequence[Tree], credits: Sequence[Credit], *, recentre: bool = True) -> list[Credit]:
    """Put the advantages of a batch on one scale: A ← (A − mean) / sqrt(var + 1e-8).

    Mean and variance (over n − 1) are those of all sampled tokens of all trained actions, each token once. Fewer
    than two tokens, or advantages that are all equal, become 0 (without `recentre` they stay).

    Args:
        trees: the trees that were scored.
        credits: one for each.
        recentre: subtract the mean; without it an advantage of 0 stays 0.
    """
    tokens = [
        token_advantages(tree, node, advantage)
        for tree, credit in zip(trees, credits, strict=True)
        for node, advantage in credit.advantages.items()
    ]
    values = np.concatenate(tokens) if tokens else np.empty(0)
    if len(values) < 2 or all_equal(values):
        shift, scale = values[0] if len(values) and recentre else 0.0, 0.0 if recentre else 1.0
    else:
        average = math.fsum(values) / len(values)
        variance = math.fsum((values - average) ** 2) / (len(values) - 1)
        shift, scale = average if recentre else 0.0, 1 / math.sqrt(variance + _EPSILON)
    return [_rescaled(tree, credit, shift, scale) for tree, credit in zip(trees, credits, strict=True)]


def _rescaled(tree: Tree, credit: Credit, shift: float, scale: float) -> Credit:
    def moved(node: int, advantage: float | Array) -> float | Array:
        if isinstance(advantage, float):
            return (advantage - shift) * scale
        return np.where(tree[node].loss_mask, (advantage - shift) * scale, 0.0)

    return replace(credit, advantages={node: moved(node, a) for node, a in credit.advantages.items()})
