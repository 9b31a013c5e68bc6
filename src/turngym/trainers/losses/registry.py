"""Names of the losses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from turngym.errors import ConfigError
from turngym.trainers.losses import mismatch
from turngym.trainers.losses.appo import appo
from turngym.trainers.losses.base import Loss, TokenBatch
from turngym.trainers.losses.decoupled import decoupled_ppo
from turngym.trainers.losses.distillation import dense_distillation, distillation
from turngym.trainers.losses.gspo import gspo, tbpo
from turngym.trainers.losses.mismatch import Correction
from turngym.trainers.losses.penalties import entropy_bonus, kl_penalty
from turngym.trainers.losses.policy_gradient import pg, ppo
from turngym.trainers.losses.reinforce import cispo, p3o, sao
from turngym.trainers.losses.supervised import next_observation, sft, weighted_sft
from turngym.trainers.options import bind

LOSSES: Mapping[str, Callable[..., tuple[Tensor, dict[str, float]]]] = MappingProxyType(
    {
        "pg": pg,
        "ppo": ppo,
        "decoupled_ppo": decoupled_ppo,
        "appo": appo,
        "gspo": gspo,
        "tbpo": tbpo,
        "cispo": cispo,
        "sao": sao,
        "p3o": p3o,
        "distillation": distillation,
        "dense_distillation": dense_distillation,
        "sft": sft,
        "weighted_sft": weighted_sft,
    }
)
"""Policy losses by name; options are the keyword-only parameters."""

PENALTIES: Mapping[str, Callable[..., tuple[Tensor, dict[str, float]]]] = MappingProxyType(
    {"kl_penalty": kl_penalty, "entropy_bonus": entropy_bonus, "next_observation": next_observation}
)
"""Terms to add to a policy loss, by name."""

CORRECTIONS: Mapping[str, Callable[..., tuple[Tensor, dict[str, float]]]] = MappingProxyType(
    {
        "token_tis": mismatch.token_tis,
        "sequence_tis": mismatch.sequence_tis,
        "mis": mismatch.mis,
        "geometric_rejection": mismatch.geometric_rejection,
        "k3_rejection": mismatch.k3_rejection,
        "icepop": mismatch.icepop,
        "ais": mismatch.ais,
        "m2po": mismatch.m2po,
    }
)
"""Corrections of the mismatch between trainer and engine, by name."""

CORRECTABLE = frozenset({"ppo", "appo", "gspo", "tbpo", "cispo"})
"""Losses whose ratio is π_θ/π_old, so that the weight π_old/μ is still missing."""
REJECTIONS = frozenset({"geometric_rejection", "k3_rejection", "m2po"})
"""Corrections that only drop tokens: any loss may take them."""


def get_loss(name: str, **options: Any) -> Loss:
    """The policy loss `name` with its options bound.

    Raises:
        UnknownName: for a loss or an option that does not exist; an option that this loss does not use is
            refused even if another loss has it.
        ConfigError: for an option of another type or out of range.

    >>> get_loss("pg", clip_low=0.2)
    Traceback (most recent call last):
    turngym.errors.UnknownName: unknown option of loss pg 'clip_low'.
    """
    return bind("loss", LOSSES, name, options)


def get_penalty(name: str, **options: Any) -> Loss:
    """The term `name` with its options bound; raises as `get_loss`."""
    return bind("penalty", PENALTIES, name, options)


def get_correction(name: str, *, loss: str, **options: Any) -> Correction:
    """The correction `name` with its options bound.

    Args:
        name: of `CORRECTIONS`.
        loss: the name of the loss that is to take it.
        options: keyword-only parameters of the correction.

    Raises:
        UnknownName: as `get_loss`.
        ConfigError: as `get_loss`, and for a loss that would weigh the mismatch twice.
    """
    correction = bind("correction", CORRECTIONS, name, options)
    if name not in REJECTIONS and loss not in CORRECTABLE:
        raise ConfigError(
            f"correction {name} weighs by π_old/μ, and so does loss {loss} or it takes no such weight: "
            f"use one of {', '.join(sorted(REJECTIONS))}, or a loss of {', '.join(sorted(CORRECTABLE))}"
        )
    return correction


def check_inputs(loss: Loss, fields: Iterable[str]) -> None:
    """Try a loss, with its options bound, on an empty batch: what it misses shows before a run starts.

    Args:
        loss: from `get_loss`, `get_penalty` or `get_correction`.
        fields: names of the fields of `TokenBatch` that the caller will fill; log-probs, mask and denominator are
            always there.

    Raises:
        ConfigError: for a field that the loss needs and that is not among them.

    >>> check_inputs(get_loss("gspo"), ["behaviour_logprobs", "advantages"])
    Traceback (most recent call last):
    turngym.errors.ConfigError: loss gspo needs sequence_ids: put it into the TokenBatch
    """
    empty = torch.zeros(0)
    values: dict[str, Any] = dict.fromkeys(fields, empty)
    values |= {name: empty.long() for name in ("sequence_ids", "turn_ids", "positions") if name in values}
    values |= {name: 1.0 for name in ("effective_share", "observation_denominator") if name in values}
    if "observation_mask" in values:
        values["observation_mask"] = empty.bool()
    loss(TokenBatch(**{"logprobs": empty, "loss_mask": empty.bool(), "denominator": 1.0, **values}))
