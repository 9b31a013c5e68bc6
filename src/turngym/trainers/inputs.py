"""What a loss reads, gathered: the flat arrays of `TokenBatch` from rows, and which of them a run can give.

The one idea: a loss says what it needs (`check_inputs`), a configuration says what there is. What is missing is an
error at start that names the setting which would bring it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from turngym.errors import ConfigError, TreeError
from turngym.trainers.config import LossConfig, OptimiserConfig
from turngym.trainers.credit.base import was_cut
from turngym.trainers.losses import Aggregation, Correction, Loss, TokenBatch, check_inputs
from turngym.trainers.losses.vcpo import sequence_log_weights
from turngym.trainers.ranks import Ranks
from turngym.trainers.rows import Row, by_rollout, shared_action
from turngym.tree import Tree

Computed = Literal["proximal_logprobs", "weights"]
"""Columns of a row that the tree does not have."""

_ALWAYS = (
    "behaviour_logprobs",
    "advantages",
    "lower_clip_extra",
    "sequence_ids",
    "turn_ids",
    "positions",
    "effective_share",
)
_SETTINGS = {
    "proximal_logprobs": 'loss.proximal = "start" (or "average", "between")',
    "teacher_logprobs": 'loss.teacher = "local:…"',
    "teacher_divergence": 'loss.teacher = "local:…"',
}


@dataclass(frozen=True, slots=True)
class Totals:
    """What is counted over a whole optimiser step, on all ranks, before it is cut into forwards."""

    denominator: float
    "of the loss"
    share: float | None = None
    "effective share of π_θ/μ, for a loss that reads it"
    observed: float = 0.0
    "tokens of the environment that are to be predicted"


def available(config: LossConfig) -> set[str]:
    """Fields of `TokenBatch` that a learner of this configuration fills for its loss."""
    fields = set(_ALWAYS)
    if config.proximal != "behaviour":
        fields.add("proximal_logprobs")
    if config.teacher:
        fields |= {"teacher_logprobs", "teacher_divergence"}
    return fields


def must_be_met(config: LossConfig, loss: Loss, optimiser: OptimiserConfig) -> None:
    """Refuse a loss whose inputs are missing, and settings that nothing would read.

    Raises:
        ConfigError: names the setting that would help.
    """
    fields = available(config)
    for name, setting in _SETTINGS.items():
        if name not in fields and reads(loss, name):
            raise ConfigError(f"loss {config.name} needs {name}: set {setting}")
    if config.teacher and not any(reads(loss, name) for name in _SETTINGS if "teacher" in name):
        raise ConfigError(f"loss {config.name} learns from no teacher: leave loss.teacher out")
    if config.entropy_shaping and not reads(loss, "advantages"):
        raise ConfigError(f"loss {config.name} takes no advantages: leave loss.entropy_shaping out")
    anchored = config.proximal in ("start", "average")
    for name, wanted in (
        (f"correction {config.correction}", config.correction),
        ("optimiser.ess_base", optimiser.ess_base),
    ):
        if wanted and not anchored:
            raise ConfigError(
                f'{name} compares trainer and engine: set loss.proximal = "start" (or "average")'
            )
    check_inputs(loss, fields)


def reads(loss: Loss | Correction, field: str) -> bool:
    """Whether `loss` can't do without `field` of `TokenBatch`."""
    everything = {*_ALWAYS, *_SETTINGS}
    check_inputs(loss, everything)
    try:
        check_inputs(loss, everything - {field})
    except ConfigError:
        return True
    return False


def reader_of_rollouts(config: LossConfig, loss: Loss, correction: Correction | None) -> str | None:
    """The setting that looks at whole rollouts, or None. `appo` says itself which of several futures it takes."""
    if config.aggregation == "sequence_mean":
        return "loss.aggregation = sequence_mean"
    if config.name != "appo" and reads(loss, "sequence_ids"):
        return f"loss {config.name}"
    if correction is not None and reads(correction, "sequence_ids"):
        return f"correction {config.correction}"
    return None


def refuse_shared(trees: Sequence[Tree], reader: str) -> None:
    """For what looks at whole rollouts: a token that several of them share would count in the first one alone.

    Args:
        trees: of one update.
        reader: the setting that looks at whole rollouts, for the message.

    Raises:
        TreeError: names the first such action.
    """
    for tree in trees:
        node = shared_action(tree)
        if node is not None:
            raise TreeError(
                f"{tree.rollout_id}: action {node} belongs to several rollouts, and {reader} looks at each as a whole: "
                "choose another one, or fork at the root only"
            )


def refuse_unscored(trees: Sequence[Tree]) -> None:
    """For trees that no credit rule has seen: nothing of them would be trained, and nobody would know.

    Raises:
        TreeError: names the first one.
    """
    for tree in trees:
        counts = any(
            not (tree.void(leaf) or was_cut(tree, leaf)) and tree.actions(leaf) for leaf in tree.leaves
        )
        if counts and all(node.advantage is None for node in tree if node.is_action):
            raise TreeError(
                f"{tree.rollout_id}: no action has an advantage: give credit first, as with trainers.credit.apply"
            )


# ---------------------------------------------------------------------- arrays


def column(rows: Sequence[Row], name: str, device: torch.device) -> Tensor | None:
    """`(M,)` a column of the rows one after the other; None where they have none."""
    values = [getattr(row, name) for row in rows]
    return None if values[0] is None else torch.from_numpy(np.concatenate(values)).to(device)


def ids_of(rows: Sequence[Row], device: torch.device) -> dict[str, Any]:
    """Tensors `(M,)` int64 `sequence_ids`, `turn_ids` and `positions`: a row is a sequence, an action lies in one row."""
    sequences = np.repeat(np.arange(len(rows)), [row.targets.size for row in rows])
    nodes = np.concatenate([row.nodes for row in rows]).astype(np.int64)
    positions = np.concatenate([row.targets for row in rows]).astype(np.int64)
    arrays = {"sequence_ids": sequences, "turn_ids": sequences << 32 | nodes, "positions": positions}
    return {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}


def targets_of(rows: Sequence[Row], device: torch.device) -> Tensor:
    """`(M,)` int64 ids of the trained tokens."""
    return torch.from_numpy(np.concatenate([r.ids[r.targets] for r in rows]).astype(np.int64)).to(device)


def with_column(rows: Sequence[Row], name: Computed, values: Tensor) -> list[Row]:
    """The rows with `(M,)` values in column `name`."""
    pieces = torch.split(values.detach().to("cpu", torch.float32), [row.targets.size for row in rows])
    columns: list[dict[str, Any]] = [{name: piece.numpy()} for piece in pieces]
    return [replace(row, **filled) for row, filled in zip(rows, columns, strict=True)]


def weighted(
    rows: Sequence[Row], aggregation: Aggregation, correction: Correction | None, ranks: Ranks
) -> tuple[list[Row], dict[str, float]]:
    """Rows of one optimiser step with the weights of their tokens, and the correction's statistics.

    Weights are computed over the whole step on all ranks, before it is cut into forwards, so that the cut changes nothing.
    """
    weights: Tensor | None = None
    if rows and aggregation.name in ("sequence_mean", "turn_constant"):
        ids = ids_of(rows, torch.device("cpu"))
        turns = torch.unique(ids["turn_ids"], return_inverse=True)[1]
        everything = torch.ones(turns.numel(), dtype=torch.bool)
        weights = aggregation.weights(everything, _rollouts(rows), turns)
    statistics: dict[str, float] = {}
    if correction is not None:
        everyone = ranks.gather(list(rows))
        step = [row for theirs in everyone for row in theirs]
        before = sum(len(theirs) for theirs in everyone[: ranks.rank])
        factors, statistics = correction(_recorded(step)) if step else (torch.zeros(0), {})
        sizes = [row.targets.size for row in step]
        own = torch.cat([torch.zeros(0), *torch.split(factors, sizes)[before : before + len(rows)]])
        weights = own if weights is None else weights * own
    return (list(rows) if weights is None else with_column(rows, "weights", weights)), statistics


def _recorded(rows: Sequence[Row]) -> TokenBatch:
    """What is known of rows before they are computed: for corrections, which compare what was recorded."""
    cpu = torch.device("cpu")
    behaviour = column(rows, "behaviour_logprobs", cpu)
    assert behaviour is not None
    return TokenBatch(
        logprobs=behaviour,
        loss_mask=torch.ones(behaviour.numel(), dtype=torch.bool),
        denominator=1.0,
        behaviour_logprobs=behaviour,
        proximal_logprobs=column(rows, "proximal_logprobs", cpu),
        advantages=column(rows, "advantages", cpu),
        **ids_of(rows, cpu),
    )


def _rollouts(rows: Sequence[Row]) -> Tensor:
    """`(M,)` int64: the rollout of each token, numbered from 0."""
    names = {name: number for number, name in enumerate(by_rollout(rows))}
    numbers = [names[row.rollout_id, row.leaf] for row in rows]
    return torch.from_numpy(np.repeat(np.array(numbers, np.int64), [row.targets.size for row in rows]))


def rollout_log_weights(rows: Sequence[Row]) -> Tensor:
    """`(S,)` Σ log π_old − log μ over the trained tokens of each rollout, all its contexts together.

    An action that several rollouts share counts in the first one that holds it.
    """
    if not rows:
        return torch.zeros(0)
    return sequence_log_weights(replace(_recorded(rows), sequence_ids=_rollouts(rows)))


def observed_batch(rows: Sequence[Row], logits: Tensor, total: float) -> TokenBatch:
    """What `next_observation` reads: the `O` observed tokens of the rows and no token of the policy.

    Args:
        rows: of one forward.
        logits: `(O, V)` that predict them.
        total: observed tokens of the whole step, over all forwards and ranks.
    """
    ids = np.concatenate([row.ids[row.observed] for row in rows]).astype(np.int64)
    logprobs = token_logprobs(logits, torch.from_numpy(ids).to(logits.device))
    everywhere = torch.ones_like(logprobs, dtype=torch.bool)
    return TokenBatch(
        logprobs=logprobs,
        loss_mask=~everywhere,
        denominator=1.0,
        observation_mask=everywhere,
        observation_denominator=max(total, 1.0),
    )


def token_logprobs(logits: Tensor, targets: Tensor) -> Tensor:
    """`(M,)` log-probs of `targets` `(M,)` under `logits` `(M, V)`."""
    return torch.log_softmax(logits, -1).gather(1, targets[:, None]).squeeze(1)


def not_finite(rows: Sequence[Row], logprobs: Tensor) -> list[Row]:
    """Rows with a log-prob or a recorded number that is NaN or infinite; all of them where none has."""
    pieces = torch.split(logprobs.detach(), [row.targets.size for row in rows])
    bad = [
        row
        for row, mine in zip(rows, pieces, strict=True)
        if not (
            torch.isfinite(mine).all()
            and np.isfinite(row.behaviour_logprobs).all()
            and np.isfinite(row.advantages).all()
        )
    ]
    return bad or list(rows)


def names_of(rows: Sequence[Row]) -> str:
    """The trees that rows come from, for a message."""
    names = list(dict.fromkeys(row.rollout_id for row in rows))
    return f"{len(names)} trees, {names[0]} among them" if len(names) > 3 else " and ".join(names)
