"""Losses: pure functions from flat arrays of tokens to a scalar and its statistics.

    loss, statistics = get_loss("ppo", clip_high=0.28)(TokenBatch(logprobs=…, …))

`base.py` has the arrays, `aggregation.py` the denominators, each loss its formula in its docstring.
"""

from turngym.trainers.losses.aggregation import Aggregation
from turngym.trainers.losses.base import Loss, TokenBatch, merge
from turngym.trainers.losses.penalties import entropy_bonus, entropy_of, kl, kl_penalty
from turngym.trainers.losses.policy_gradient import pg, ppo
from turngym.trainers.losses.registry import LOSSES, PENALTIES, get_loss, get_penalty

__all__ = [
    "LOSSES",
    "PENALTIES",
    "Aggregation",
    "Loss",
    "TokenBatch",
    "entropy_bonus",
    "entropy_of",
    "get_loss",
    "get_penalty",
    "kl",
    "kl_penalty",
    "merge",
    "pg",
    "ppo",
]
