"""Losses: pure functions from flat arrays of tokens to a scalar and its statistics.

    loss, statistics = get_loss("ppo", clip_high=0.28)(TokenBatch(logprobs=…, …))

`base.py` has the arrays, `aggregation.py` the denominators, `mismatch.py` the corrections between trainer and engine,
each loss its formula in its docstring.
"""

from turngym.trainers.losses.aggregation import Aggregation
from turngym.trainers.losses.appo import appo
from turngym.trainers.losses.base import Loss, TokenBatch, effective_share, merge
from turngym.trainers.losses.decoupled import between, decoupled_ppo
from turngym.trainers.losses.distillation import TeacherTopK, dense_distillation, distillation, divergence
from turngym.trainers.losses.gspo import gspo, tbpo
from turngym.trainers.losses.mismatch import Correction, corrected
from turngym.trainers.losses.penalties import entropy_bonus, entropy_of, entropy_shaped, kl, kl_penalty
from turngym.trainers.losses.policy_gradient import pg, ppo
from turngym.trainers.losses.registry import (
    CORRECTIONS,
    LOSSES,
    PENALTIES,
    check_inputs,
    get_correction,
    get_loss,
    get_penalty,
)
from turngym.trainers.losses.reinforce import cispo, p3o, sao
from turngym.trainers.losses.supervised import next_observation, sft, weighted_sft

__all__ = [
    "CORRECTIONS",
    "LOSSES",
    "PENALTIES",
    "Aggregation",
    "Correction",
    "Loss",
    "TeacherTopK",
    "TokenBatch",
    "appo",
    "between",
    "check_inputs",
    "cispo",
    "corrected",
    "decoupled_ppo",
    "dense_distillation",
    "distillation",
    "divergence",
    "effective_share",
    "entropy_bonus",
    "entropy_of",
    "entropy_shaped",
    "get_correction",
    "get_loss",
    "get_penalty",
    "gspo",
    "kl",
    "kl_penalty",
    "merge",
    "next_observation",
    "p3o",
    "pg",
    "ppo",
    "sao",
    "sft",
    "tbpo",
    "weighted_sft",
]
