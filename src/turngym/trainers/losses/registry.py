"""Names of the losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from torch import Tensor

from turngym.trainers.losses.base import Loss
from turngym.trainers.losses.penalties import entropy_bonus, kl_penalty
from turngym.trainers.losses.policy_gradient import pg, ppo
from turngym.trainers.options import bind

LOSSES: Mapping[str, Callable[..., tuple[Tensor, dict[str, float]]]] = MappingProxyType(
    {"pg": pg, "ppo": ppo}
)
"""Policy losses by name; options are the keyword-only parameters."""

PENALTIES: Mapping[str, Callable[..., tuple[Tensor, dict[str, float]]]] = MappingProxyType(
    {"kl_penalty": kl_penalty, "entropy_bonus": entropy_bonus}
)
"""Terms to add to a policy loss, by name."""


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
