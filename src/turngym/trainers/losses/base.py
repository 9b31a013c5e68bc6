"""What every loss reads, and how its numbers add up.

The one idea: a loss is a pure function of flat arrays, one number a token. It picks the tokens under `loss_mask`
first and never touches the others, so whatever stands there (NaN, inf, tokens of the environment) can neither
leak into the loss nor receive a gradient. The sum is divided by a *global* denominator that the caller passes in:
the losses of micro-batches and ranks then add up to the loss of the whole batch, exactly. A loss that looks at whole
sequences or turns (it reads their ids) keeps this promise as long as none of them is cut in two.

Under data parallelism that averages gradients, multiply the loss by the number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from turngym.errors import ConfigError, HarnessFault

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to ± this before `exp`; beyond it the gradient is 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """N tokens, flat, in any order. Log-probs are in nats and of the token that stands there.

    Raises:
        ConfigError: for a shape other than `(N,)`, a mask that is not boolean, ids that are not int64, masks that
            overlap, a denominator that is not a positive finite number, a share outside (0, 1].
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
    sequence_ids: Tensor | None = None
    "`(N,)` int64: the context (one forward pass of the policy) that a token lies in; unique over the whole batch"
    turn_ids: Tensor | None = None
    "`(N,)` int64: the action that a token belongs to; unique over the whole batch, not per sequence"
    positions: Tensor | None = None
    "`(N,)` int64: place of the token in its sequence, other tokens counted or not; it gives order and distance"
    teacher_logprobs: Tensor | None = None
    "`(N,)` of the policy that is distilled"
    teacher_divergence: Tensor | None = None
    "`(N,)` in nats, see `distillation.divergence`; the gradient flows through it as well"
    effective_share: float | None = None
    "effective sample size of π_θ/μ over the whole batch as a share of its trained tokens, from above 0 to 1"
    observation_mask: Tensor | None = None
    "`(N,)` bool: True on tokens of the environment that `next_observation` learns to predict; no other loss reads it"
    observation_denominator: float | None = None
    "as `denominator`, for the tokens under `observation_mask`"

    def __post_init__(self) -> None:
        shape = self.logprobs.shape
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, Tensor) and (value.ndim != 1 or value.shape != shape):
                raise ConfigError(
                    f"TokenBatch: {f.name} has shape {tuple(value.shape)}, logprobs {tuple(shape)}: both must be (N,)"
                )
        for name in ("loss_mask", "observation_mask"):
            mask = getattr(self, name)
            if mask is not None and mask.dtype != torch.bool:
                raise ConfigError(f"TokenBatch: {name} must be bool, got {mask.dtype}")
        for name in ("denominator", "observation_denominator"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ConfigError(
                    f"TokenBatch: {name} must be positive and finite, got {value}; "
                    "skip the update where no token is trained"
                )
        for name in ("sequence_ids", "turn_ids", "positions"):
            ids = getattr(self, name)
            if ids is not None and ids.dtype != torch.int64:
                raise ConfigError(f"TokenBatch: {name} must be int64, got {ids.dtype}")
        if self.effective_share is not None and not 0 < self.effective_share <= 1:
            raise ConfigError(
                f"TokenBatch: effective_share must lie above 0 and up to 1, got {self.effective_share}"
            )
        if self.observation_mask is not None and bool((self.observation_mask & self.loss_mask).any()):
            raise ConfigError(
                "TokenBatch: a token is under both loss_mask and observation_mask: it was sampled or it was not"
            )


Loss = Callable[[TokenBatch], tuple[Tensor, dict[str, float]]]
"""A loss with its options bound: a scalar with a gradient, and its statistics."""


class Trained:
    """The M tokens of a batch that the loss may look at, in float32 or wider.

    Args:
        batch: the flat arrays.
        loss: name of the loss that asks, for messages.
        mask: `(N,)` bool, which tokens those are; None means `loss_mask`.
    """

    def __init__(self, batch: TokenBatch, loss: str, *, mask: Tensor | None = None) -> None:
        self.batch = batch
        self.loss = loss
        self.index = (batch.loss_mask if mask is None else mask).nonzero().squeeze(1)

    def __len__(self) -> int:
        return self.index.numel()

    def __getitem__(self, field: str) -> Tensor:
        """`(M,)` the trained tokens of a field that this loss can't do without.

        Raises:
            ConfigError: where the batch does not have it.
            HarnessFault: where it holds NaN or inf on a trained token.
        """
        values: Tensor = self.needed(field)[self.index]
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

    def needed(self, field: str) -> Any:
        """A field of the batch as it is.

        Raises:
            ConfigError: where the batch does not have it.
        """
        value = getattr(self.batch, field)
        if value is None:
            raise ConfigError(f"loss {self.loss} needs {field}: put it into the TokenBatch")
        return value

    def proximal(self) -> Tensor:
        """`(M,)` log π_old, without a gradient: the behaviour policy's where the batch has no other."""
        has_proximal = self.batch.proximal_logprobs is not None
        return self.constant("proximal_logprobs" if has_proximal else "behaviour_logprobs")

    def ids(self, field: str) -> Tensor:
        """`(M,)` int64: the ids of a field, renumbered from 0 without gaps."""
        ids: Tensor = self.needed(field)[self.index]
        renumbered: Tensor = torch.unique(ids, return_inverse=True)[1]
        return renumbered

    def reduce(self, per_token: Tensor) -> Tensor:
        """Weighted sum of `(M,)` over the global denominator: a scalar, 0 with a gradient of 0 if M is 0."""
        return (per_token * self.constant("weights", 1.0)).sum() / self.batch.denominator


def log_ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """`(M,)` difference of two log-probs, clamped to ±20 so that `exp` stays finite."""
    return (numerator - denominator).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def segment_sum(values: Tensor, ids: Tensor) -> Tensor:
    """`(S,)` sums of `(M,)` values over each of S segments.

    Args:
        values: `(M,)`.
        ids: `(M,)` int64 from `Trained.ids`.
    """
    segments = int(ids.max()) + 1 if ids.numel() else 0
    return values.new_zeros(segments).index_add(0, ids, values)


def segment_mean(values: Tensor, ids: Tensor) -> Tensor:
    """`(M,)` at each token, the mean of its segment; arguments as `segment_sum`."""
    sums, counts = segment_sum(values, ids), segment_sum(torch.ones_like(values), ids)
    return (sums / counts)[ids]


def effective_share(log_weights: Tensor) -> float:
    """Effective sample size of importance weights as a share of their number: (Σw)² / (n Σw²), 1 where n is 0.

    Args:
        log_weights: `(n,)` logarithms of the weights, of tokens or of sequences; no gradient is kept.

    >>> round(effective_share(torch.tensor([0.8, 1.0, 1.3, 3.0]).log()), 4)
    0.7545
    """
    if log_weights.numel() == 0:
        return 1.0
    log = log_weights.detach().to(torch.float64)
    share = float((2 * log.logsumexp(0) - (2 * log).logsumexp(0)).exp()) / log.numel()
    return min(share, 1.0)


def means(**per_token: Tensor) -> dict[str, float]:
    """Mean of each `(M,)` array (0 where M is 0), fetched from the device in one go."""
    count = max(next(iter(per_token.values())).numel(), 1)
    sums = torch.stack([values.detach().sum(dtype=torch.float64) for values in per_token.values()])
    return dict(zip(per_token, (sums / count).tolist(), strict=True))


def merge(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Statistics of the whole batch from those of its micro-batches (and ranks).

    `loss/*` and `tokens/*` add up, since their denominators are global; `*/max` is the largest; everything else
    is a mean over trained tokens and is weighted by `tokens/trained`. A part without any tokens adds nothing.

    >>> merge([{"tokens/trained": 1.0, "ratio/mean": 2.0}, {"tokens/trained": 3.0, "ratio/mean": 1.0}])
    {'tokens/trained': 4.0, 'ratio/mean': 1.25}
    """
    used = [part for part in parts if any(n > 0 for key, n in part.items() if key.startswith("tokens/"))]
    total = sum(part["tokens/trained"] for part in used)
    out: dict[str, float] = {"tokens/trained": total}
    for key in used[0] if used else ():
        if key.startswith(("loss/", "tokens/")):
            out[key] = math.fsum(part[key] for part in used)
        elif key.endswith("/max"):
            out[key] = max(part[key] for part in used)
        else:
            out[key] = math.fsum(part[key] * part["tokens/trained"] for part in used) / max(total, 1.0)
    return out
