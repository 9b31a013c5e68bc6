"""Scored trees to rows of tokens: the flat layout.

A row is one context exactly as the policy saw it: the spans from a context start down to the last trained action. A
path that restarted its context k times gives k + 1 rows. Every action is trained once, in the first row that holds
it; later rows that share it carry it as context only. So the sum over rows is the sum over nodes, whatever the
branching, and a rollout's weight does not depend on the number of its contexts.

A prefix that several rows share stands in each of them; a layout may compute it once (`packing.py`).

Where the learner also learns to predict the environment (`next_observation`), a row names the tokens that the
environment said in answer to an action, each in one row as well, and goes on to the answer to its last trained action.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from turngym.errors import ConfigError, TreeError
from turngym.trainers.credit import LOWER_CLIP_EXTRA
from turngym.tree import Node, Origin, Tree
from turngym.types import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class Row:
    """`T` tokens of context, of which `M` are trained."""

    rollout_id: str
    "the tree that it comes from"
    ids: IntArray
    "`(T,)`"
    targets: IntArray
    "`(M,)` positions in `ids` of the trained tokens, ascending, each ≥ 1"
    behaviour_logprobs: FloatArray
    "`(M,)` recorded when sampled"
    advantages: FloatArray
    "`(M,)`"
    lower_clip_extra: FloatArray
    "`(M,)`"
    version: IntArray
    "`(M,)` policy version that sampled each"
    nodes: IntArray
    "`(M,)` node of the tree that each belongs to"
    leaf: int
    "the path that it was taken from: a rollout that restarted its context has several rows with one leaf"
    proximal_logprobs: FloatArray | None = None
    "`(M,)` of the policy that ratios are taken against, where a learner computed them"
    weights: FloatArray | None = None
    "`(M,)` factor of each token's loss, where a learner computed it"
    observed: IntArray = field(default_factory=lambda: np.empty(0, np.int32))
    "`(O,)` positions in `ids` of what the environment answered to an action, ascending, where a learner predicts it"


def rows_of(trees: Iterable[Tree], *, renderer_hash: str, observed: bool = False) -> list[Row]:
    """The rows of every tree, as `tree_rows` gives them.

    Raises:
        ConfigError: for a tree that another renderer made: its ids mean something else.
    """
    rows: list[Row] = []
    for tree in trees:
        if tree.renderer_hash != renderer_hash:
            raise ConfigError(
                f"{tree.rollout_id} was rendered by {tree.renderer_hash or 'nobody'}, this policy renders as {renderer_hash}: "
                "train on trees that were sampled with the same tokenizer and template"
            )
        rows += tree_rows(tree, observed=observed)
    return rows


def tree_rows(tree: Tree, *, observed: bool = False) -> list[Row]:
    """The rows of one scored tree; actions whose advantage is None are not trained, rows without any are left out.

    A path that ended in a fault trains nothing of its own, whatever advantage stands there.

    Args:
        tree: with advantages.
        observed: whether rows name the answers of the environment; without it they end with their last trained action.

    Raises:
        TreeError: where an action stands at the very start of a context: nothing predicts its first token.
    """
    rows: list[Row] = []
    owned: set[int] = set()
    for leaf in tree.leaves:
        for segment in () if tree.void(leaf) else tree.segments(leaf):
            nodes = [tree[i] for i in segment]
            trained = [n for n in nodes if n.is_action and n.index not in owned and n.advantage is not None]
            trained = [n for n in trained if n.loss_mask.any()]
            if trained:
                nodes = nodes[: nodes.index(trained[-1]) + 1 + observed]
                answers = [n for n in _answers(nodes) if n.index not in owned] if observed else []
                names = {n.index for n in trained}, {n.index for n in answers}
                owned.update(*names)
                rows.append(_row(nodes, *names, leaf))
    return rows


def _answers(nodes: Sequence[Node]) -> list[Node]:
    """The observations behind the first action of a context, with those of the harness and the template."""
    first = next(i for i, node in enumerate(nodes) if node.is_action)
    return [node for node in nodes[first:] if not node.is_action]


def _row(nodes: Sequence[Node], trained: set[int], answers: set[int], leaf: int) -> Row:
    spans: list[IntArray] = []
    columns: list[tuple[npt.NDArray[np.int64], FloatArray, FloatArray, FloatArray, IntArray, IntArray]] = []
    observed: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)]
    start = 0
    for node in nodes:
        spans.append(node.ids)
        if node.index in answers:
            observed.append(start + np.flatnonzero(node.origin == Origin.ENV))
        if node.index in trained:
            mask = node.loss_mask
            count = int(mask.sum())
            columns.append(
                (
                    start + np.flatnonzero(mask),
                    node.logprobs[mask],
                    np.broadcast_to(np.asarray(node.advantage, np.float32), mask.shape)[mask],
                    np.full(count, node.metrics.get(LOWER_CLIP_EXTRA, 0.0), np.float32),
                    node.version[mask],
                    np.full(count, node.index, np.int32),
                )
            )
        start += node.ids.size
    targets, behaviour, advantages, extra, version, owners = (
        np.concatenate(c) for c in zip(*columns, strict=True)
    )
    rollout_id = nodes[0].tree.rollout_id
    if targets[0] == 0:
        raise TreeError(f"{rollout_id}: node {nodes[0].index} is an action at the start of a context")
    return Row(
        rollout_id=rollout_id,
        ids=np.concatenate(spans),
        targets=targets.astype(np.int32),
        behaviour_logprobs=behaviour,
        advantages=advantages,
        lower_clip_extra=extra,
        version=version,
        nodes=owners,
        leaf=leaf,
        observed=np.concatenate(observed).astype(np.int32),
    )


def unscored_row(
    ids: npt.ArrayLike,
    targets: npt.ArrayLike,
    *,
    rollout_id: str,
    nodes: npt.ArrayLike | None = None,
    leaf: int = 0,
) -> Row:
    """A row that asks for what is known before `targets` `(M,)` of `ids` `(T,)`; whatever a loss reads is 0.

    The last target may be T: what is known at the end. `nodes` `(M,)` are 0 where none are given.
    """
    places = np.asarray(targets, np.int32)
    nothing, integers = np.zeros(places.size, np.float32), np.zeros(places.size, np.int32)
    return Row(
        rollout_id=rollout_id,
        ids=np.asarray(ids, np.int32),
        targets=places,
        behaviour_logprobs=nothing,
        advantages=nothing,
        lower_clip_extra=nothing,
        version=integers,
        nodes=integers if nodes is None else np.asarray(nodes, np.int32),
        leaf=leaf,
    )


def by_rollout(rows: Iterable[Row]) -> dict[tuple[str, int], list[Row]]:
    """The contexts of each rollout, in their order."""
    found: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        found.setdefault((row.rollout_id, row.leaf), []).append(row)
    return found


def signal_only(rows: Sequence[Row]) -> list[Row]:
    """Rows of trees that have an advantage other than 0: for losses that give the others no gradient and read nothing of them.

    Trees stay whole: if rows were dropped one by one, statistics and the cut into mini-batches would depend on how often
    a rollout restarted its context. Denominators are counted before.
    """
    with_signal = {row.rollout_id for row in rows if row.advantages.any()}
    return [row for row in rows if row.rollout_id in with_signal]


def trained_paths(tree: Tree) -> int:
    """Paths that count and have a trained action: each counts once, into however many contexts it was split."""
    scored = {node.index for node in tree if node.is_action and node.advantage is not None}
    return sum(not tree.void(leaf) and not scored.isdisjoint(tree.path(leaf)) for leaf in tree.leaves)


def shared_action(tree: Tree) -> int | None:
    """An action that is trained and lies on several paths that count, or None: it belongs to no single rollout."""
    seen: set[int] = set()
    for leaf in tree.leaves:
        path = [i for i in tree.path(leaf) if tree[i].is_action and tree[i].advantage is not None]
        if tree.void(leaf):
            continue
        for node in path:
            if node in seen:
                return node
        seen.update(path)
    return None
