"""When what is learnt from how many rows: learning rates, and the cut into mini-batches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from turngym.trainers.config import OptimiserConfig
from turngym.trainers.rows import Row, by_rollout


def learning_rate_factor(config: OptimiserConfig, done: int, updates: int) -> float:
    """Factor of the learning rate for the update after `done` of `updates` updates.

    A linear warm-up, then the schedule that the configuration names. After the warm-up the factors are those of the
    schedulers of the same names in transformers; during it they begin above 0, so that no update is wasted.
    """
    if done < config.warmup:
        return (done + 1) / (config.warmup + 1)
    left = max(0.0, 1 - (done - config.warmup) / max(1, updates - config.warmup))
    match config.schedule:
        case "constant":
            return 1.0
        case "inverse_sqrt":
            return _inverse_sqrt(done - config.warmup, config.warmup or UNWARMED_TIMESCALE)
        case "linear":
            fallen = left
        case "cosine":
            fallen = _cosine(left)
        case "wsd":
            falling = min(config.decay_updates, max(1, updates - config.warmup))
            fallen = _cosine(min(1.0, max(0, updates - done) / falling))
    return config.min_lr_share + (1 - config.min_lr_share) * fallen


UNWARMED_TIMESCALE = 10_000
"""Updates over which `inverse_sqrt` falls to 1/√2 where there was no warm-up, as in transformers."""


def _inverse_sqrt(since: int, timescale: int) -> float:
    return math.sqrt(timescale / (timescale + since))


def _cosine(left: float) -> float:
    """Half a cosine, from 1 where everything is left down to 0."""
    return 0.5 * (1 - math.cos(math.pi * left))


@contextmanager
def scaled(optimiser: torch.optim.Optimizer, factor: float) -> Iterator[None]:
    """The optimiser with its learning rates times `factor`, for one step."""
    rates = [group["lr"] for group in optimiser.param_groups]
    try:
        for group, rate in zip(optimiser.param_groups, rates, strict=True):
            group["lr"] = rate * factor
        yield
    finally:
        for group, rate in zip(optimiser.param_groups, rates, strict=True):
            group["lr"] = rate


def minibatches(rows: Sequence[Row], parts: int, rng: np.random.Generator) -> list[list[Row]]:
    """Shuffled mini-batches of about equal numbers of rollouts, fewer where there are fewer.

    The contexts of one rollout stay together: they share one weight, and what is said of a rollout is said of all of it.
    """
    rollouts = list(by_rollout(rows).values())
    if not rollouts:
        return []
    order = rng.permutation(len(rollouts)) if parts > 1 else np.arange(len(rollouts))
    chunks = np.array_split(order, min(parts, len(rollouts)))
    return [[row for i in chunk for row in rollouts[i]] for chunk in chunks]
