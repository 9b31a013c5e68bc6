"""What two paths of a task have in common, and the credit rule `unique`: rare ways to success are worth more.

The one idea: reinforcement makes a policy repeat the first way that worked. Within a group, paths that went the same
way are one *strategy*, and what each of them is worth is shared among them.

A strategy is told without a judge: by the states that the environment went through, in the order in which each was
first reached, so that going round in circles is no new way; or by the actions, token for token, where they are terse.
A judge who read the paths may write his own partition instead.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import numpy as np

from turngym.errors import CreditError
from turngym.trainers.credit.base import Credit, Std, Truncated, read_paths, standardise
from turngym.trainers.options import Share, checked
from turngym.tree import Tree

By = Literal["states", "actions", "label"]
"""States first reached, in order; tokens of the actions, in order; the number at `metrics["strategy"]` of the leaf."""

STRATEGY = "strategy"
"""Key of `node.metrics` at a leaf: number of the cluster that a judge put the path into."""

STRATEGY_SHARE = "credit/strategy_share"


@checked
def unique(
    tree: Tree,
    *,
    strength: Share = 0.5,
    by: By = "states",
    std: Std = "unbiased",
    truncated: Truncated = "mask",
) -> Credit:
    """Uniqueness-aware GRPO: A_i = f_i^(−α) · (R_i − mean R) / (std R + 1e-6), f_i paths with the strategy of path i, itself included.

    α = 0 is `grpo`; with α = 1 all paths of a strategy together weigh as much as one. Failures are weighed as well: many
    that are alike are punished less each. An action that several paths share gets the mean over them.

    Biased: as `grpo`, and what a path is worth depends on what the others did.

    Source: Hu et al., "Rewarding the Rare" (arXiv:2601.08763, equations 1 to 5). There a larger model of the same
    family clusters the rollouts (`by="label"` takes its numbers), and α in [0, 1] is not given: the default is ours.

    Args:
        tree: paths of one task; with `by="states"` with state keys from the environment (`LoopOptions.state_keys`).
        strength: α.
        by: what makes two paths one strategy. Paths that part only at their last action reach no state that is recorded
            after it, so by states they are one.
        std: divide by the deviation over G − 1 ("unbiased") or over G ("population").
        truncated: what to do with paths that a budget of ours cut.

    Raises:
        CreditError: for a path without a stop or a reward, a decision point without a state key, a leaf without a label.
    """
    paths = read_paths(tree, "unique", truncated)
    keys = strategies(tree, paths.leaves, by, rule="unique")
    size = Counter(keys)
    weights = np.array([float(size[key]) ** -strength for key in keys], np.float64)
    advantages = weights * standardise(paths.returns, std)
    return paths.credit(
        paths.leaf_means(advantages, masked=False),
        metrics={STRATEGY_SHARE: len(size) / len(keys)} if keys else {},
    )


def strategies(tree: Tree, leaves: Sequence[int], by: By, *, rule: str) -> list[str]:
    """`(G,)` a word of 32 hex digits for each path: equal words for equal strategies, in this tree and all others.

    Args:
        tree: with what `by` reads.
        leaves: `(G,)` the last node of each path.
        by: see `By`.
        rule: name of who asks, for messages.

    Raises:
        CreditError: for a decision point without a state key, or a leaf without a label.
    """
    parts = {"states": _states, "actions": _actions, "label": _label}[by]
    return [hashlib.blake2b(parts(tree, leaf, rule), digest_size=16).hexdigest() for leaf in leaves]


def _states(tree: Tree, leaf: int, rule: str) -> bytes:
    reached: dict[str, None] = {}
    for action in tree.actions(leaf):
        node = tree[tree[action].parent]
        key = node.state_key
        if key is None:
            raise CreditError(
                f"{rule}: {tree.rollout_id}: node {node.index} has no state key, so nobody knows which way its paths went: "
                'roll out with state_keys=true, or set by = "actions" or "label"'
            )
        reached[key] = None
    return bytes.fromhex("".join(reached))


def _actions(tree: Tree, leaf: int, rule: str) -> bytes:
    spans = [tree[action].ids.astype("<i4").tobytes() for action in tree.actions(leaf)]
    return b"".join(len(span).to_bytes(4, "little") + span for span in spans)


def _label(tree: Tree, leaf: int, rule: str) -> bytes:
    label = tree[leaf].metrics.get(STRATEGY)
    if label is None:
        raise CreditError(
            f'{rule}: {tree.rollout_id}: leaf {leaf} has no label: write the number of its cluster to metrics["{STRATEGY}"]'
        )
    return repr(float(label)).encode()
