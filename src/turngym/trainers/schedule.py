"""When what is learnt from how many rows: learning rates, and the cut into mini-batches."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from turngym.trainers.config import OptimiserConfig
from turngym.trainers.rows import Row


def learning_rate_factor(config: OptimiserConfig, done: int, updates: int) -> float:
    """Factor of the learning rate for the update after `done` updates."""
    if done < config.warmup:
        return (done + 1) / (config.warmup + 1)
    left = max(0.0, 1 - (done - config.warmup) / max(1, updates - config.warmup))
    match config.schedule:
        case "constant":
            return 1.0
        case "linear":
            return left
        case "cosine":
            return 0.5 * (1 - math.cos(math.pi * left))


def minibatches(rows: Sequence[Row], parts: int, rng: np.random.Generator) -> list[list[Row]]:
    """Shuffled mini-batches of about equal numbers of rows; fewer where there are fewer rows."""
    if not rows:
        return []
    order = rng.permutation(len(rows)) if parts > 1 else np.arange(len(rows))
    return [[rows[i] for i in chunk] for chunk in np.array_split(order, min(parts, len(rows)))]
