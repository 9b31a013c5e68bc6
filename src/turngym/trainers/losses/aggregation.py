"""How the losses of single tokens become one number.

The one idea: every aggregation in use is a weight per token and one global denominator. Both are computed once
over the whole batch, before it is cut into micro-batches, so the cut changes nothing.

    token_mean      Σ l / (number of trained tokens)                       DAPO (arXiv:2503.14476)
    constant        Σ l / (number of rollouts · length)                    Dr. GRPO (arXiv:2503.20783)
    sequence_mean   Σ_i (1/n_i) Σ_t l / (number of rollouts), n_i tokens   GRPO (arXiv:2402.03300)
    turn_constant   Σ_u (1/n_u) Σ_t l / (number of rollouts · length)      AsyncWebRL: turns u, n_u tokens in one

Dividing by a rollout's own length, in tokens or in turns, scales down what long rollouts say; where failures are long,
the policy stays long-winded. `constant` and `turn_constant` divide by a number that no rollout can change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from turngym.errors import ConfigError, unknown_name

AggregationName = Literal["token_mean", "constant", "sequence_mean", "turn_constant"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregation:
    """Which weights and which denominator.

    Raises:
        UnknownName: for another name.
        ConfigError: for `constant` or `turn_constant` without a length, or a length with another name.
    """

    name: AggregationName = "token_mean"
    "see the module"
    length: int | None = None
    "`constant`: tokens of the longest rollout that the budget allows; `turn_constant`: turns of a typical one; keep it for the whole run"

    def __post_init__(self) -> None:
        names = get_args(AggregationName)
        if self.name not in names:
            raise unknown_name("aggregation", self.name, names)
        needs_length = self.name in ("constant", "turn_constant")
        if needs_length != (self.length is not None) or (self.length or 1) <= 0:
            raise ConfigError(
                f"aggregation {self.name} with length {self.length}: "
                "constant needs a positive number of tokens, turn_constant one of turns, the others take none"
            )

    def denominator(self, *, tokens: float, rollouts: float) -> float:
        """The global denominator of `TokenBatch`.

        Args:
            tokens: trained tokens of the whole batch, over all micro-batches and ranks.
            rollouts: paths of the whole batch with at least one trained token.
        """
        match self.name:
            case "token_mean":
                return float(tokens)
            case "constant" | "turn_constant":
                return float(rollouts * (self.length or 1))
            case "sequence_mean":
                return float(rollouts)

    def weights(
        self, loss_mask: Tensor, sequence_ids: Tensor | None = None, turn_ids: Tensor | None = None
    ) -> Tensor:
        """`(N,)` float32 weight of each token; 0 where the mask is False.

        Args:
            loss_mask: `(N,)` bool, over the whole batch.
            sequence_ids: `(N,)` int64 ≥ 0, the rollout that a token belongs to; `sequence_mean` only. A token
                that several rollouts share has no such number: use another aggregation for trees.
            turn_ids: `(N,)` int64 ≥ 0, the action that a token belongs to; `turn_constant` only.

        Raises:
            ConfigError: for an aggregation without the ids that it needs.
        """
        weights = loss_mask.to(torch.float32)
        match self.name:
            case "sequence_mean":
                name, ids = "sequence_ids", sequence_ids
            case "turn_constant":
                name, ids = "turn_ids", turn_ids
            case _:
                return weights
        if ids is None:
            raise ConfigError(f"aggregation {self.name} needs {name}")
        trained = ids[loss_mask]
        weights[loss_mask] = 1.0 / torch.bincount(trained)[trained].to(torch.float32)
        return weights
