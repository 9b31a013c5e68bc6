"""What every loss reads, and how its numbers add up.

The one idea: a loss is a pure function of flat arrays, one number a token. It picks the tokens under `loss_mask`
first and never touches the others, so whatever stands there (NaN, inf, tokens of the environment) can neither
leak into the loss nor receive a gradient. The sum is divided by a *global* denominator that the caller passes in:
the losses of micro-batches and ranks then add up to the loss of the whole batch, exactly.

Under data parallelism that averages gradients, multiply the loss by the number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from turngym.errors import ConfigError, HarnessFault

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to ± this before `exp`; beyond it the gradient is 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """N tokens, flat, in any order. Log-probs are in nats and of the token that stands there.

    Raises:
        ConfigError: for a shape other than `(N,)`, a mask that is not boolean, a denominator that is not a
            positive finite number.
    """

    logprobs: Tensor
    "`(N,)` of the policy that is optimised, π_θ; the gradient flows through these"
    loss_mask: Tensor
    "`(N,)` bool: True where the policy sampled the token and credit was given"
    denominator: float
    "what the sum over the tokens is divided by, over all micro-batches and ranks (`aggregation.py`)"
    behaviour_logprobs: Tensor | None = None
    "`(N,)` of the policy that sampled, μ, as recorded then"
    proximal_logprobs: Tensor | None = None
    "`(N,)` of the policy at the start of the update cycle, π_old; None means it is the behaviour policy"
    reference_logprobs: Tensor | None = None
    "`(N,)` of a frozen policy, π_ref"
    advantages: Tensor | None = None
    "`(N,)`"
    weights: Tensor | None = None
    "`(N,)` factor of each token's loss, never negative (aggregation, importance); None means 1"
    lower_clip_extra: Tensor | None = None
    "`(N,)` addition to the lower clip width (ELPO); None means 0"
    entropy: Tensor | None = None
    "`(N,)` entropy of π_θ at the token, in nats; the gradient flows through it as well"

    def __post_init__(self) -> None:
        shape = self.logprobs.shape
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, Tensor) and (value.ndim != 1 or value.shape != shape):
                raise ConfigError(
                    f"TokenBatch: {f.name} has shape {tuple(value.shape)}, logprobs {tuple(shape)}: both must be (N,)"
                )
        if self.loss_mask.dtype != torch.bool:
            raise ConfigError(f"TokenBatch: loss_mask must be bool, got {self.loss_mask.dtype}")
        if not (math.isfinite(self.denominator) and self.denominator > 0):
            raise ConfigError(
                f"TokenBatch: denominator must be positive and finite, got {self.denominator}; "
                "skip the update where no token is trained"
            )


Loss = Callable[[TokenBatch], tuple[Tensor, dict[str, float]]]
"""A loss with its options bound: a scalar with a gradient, and its statistics."""


class Trained:
    """The M tokens of a batch that the loss may look at, in float32 or wider.

    Args:
        batch: the flat arrays.
        loss: name of the loss that asks, for messages.
    """

    def __init__(self, batch: TokenBatch, loss: str) -> None:
        self.batch = batch
        self.loss = loss
        self.index = batch.loss_mask.nonzero().squeeze(1)

    def __len__(self) -> int:
        return self.index.numel()

    def __getitem__(self, field: str) -> Tensor:
        """`(M,)` the trained tokens of a field that this loss can't do without.

        Raises:
            ConfigError: where the batch does not have it.
            HarnessFault: where it holds NaN or inf on a trained token.
        """
        values: Tensor | None = getattr(self.batch, field)
        if values is None:
            raise ConfigError(f"loss {self.loss} needs {field}: put it into the TokenBatch")
        values = values[self.index]
        values = values.to(torch.promote_types(values.dtype, torch.float32))
        bad = int((~torch.isfinite(values.detach())).sum())
        if bad:
            raise HarnessFault(
                f"loss {self.loss}: {field} is NaN or infinite on {bad} of {len(self)} trained tokens; "
                "look at the model's weights and at what the engine recorded"
            )
        return values

    def constant(self, field: str, default: float | None = None) -> Tensor:
        """`(M,)` as `self[field]`, without a gradient; `default` everywhere where the batch has none."""
        if default is not None and getattr(self.batch, field) is None:
            return torch.full_like(self["logprobs"].detach(), default)
        return self[field].detach()

    def reduce(self, per_token: Tensor) -> Tensor:
        """Weighted sum of `(M,)` over the global denominator: a scalar, 0 with a gradient of 0 if M is 0."""
        return (per_token * self.constant("weights", 1.0)).sum() / self.batch.denominator


def log_ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """`(M,)` difference of two log-probs, clamped to ±20 so that `exp` stays finite."""
    return (numerator - denominator).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def means(**per_token: Tensor) -> dict[str, float]:
    """Mean of each `(M,)` array (0 where M is 0), fetched from the device in one go."""
    count = max(next(iter(per_token.values())).numel(), 1)
    sums = torch.stack([values.detach().sum(dtype=torch.float64) for values in per_token.values()])
    return dict(zip(per_token, (sums / count).tolist(), strict=True))


def merge(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Statistics of the whole batch from those of its micro-batches (and ranks).

    `loss/*` and `tokens/*` add up, since their denominators are global; `*/max` is the largest; everything else
    is a mean over trained tokens and is weighted by `tokens/trained`. A part without trained tokens adds nothing.

    >>> merge([{"tokens/trained": 1.0, "ratio/mean": 2.0}, {"tokens/trained": 3.0, "ratio/mean": 1.0}])
    {'tokens/trained': 4.0, 'ratio/mean': 1.25}
    """
    used = [part for part in parts if part["tokens/trained"] > 0]
    total = sum(part["tokens/trained"] for part in used)
    out: dict[str, float] = {"tokens/trained": total}
    for key in used[0] if used else ():
        if key.startswith(("loss/", "tokens/")):
            out[key] = math.fsum(part[key] for part in used)
        elif key.endswith("/max"):
            out[key] = max(part[key] for part in used)
        else:
            out[key] = math.fsum(part[key] * part["tokens/trained"] for part in used) / total
    return out
