"""The losses that make a policy better: `pg` and `ppo`.

The one idea: both weigh the advantage of a token by the ratio of the optimised to the sampling policy, whose
gradient at ratio 1 is the policy gradient; PPO stops where the ratio has moved far enough.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from turngym.errors import ConfigError
from turngym.trainers.losses.base import TokenBatch, Trained, log_ratio, means
from turngym.trainers.losses.penalties import kl
from turngym.trainers.options import NotNegative, Share, checked


@checked
def pg(batch: TokenBatch) -> tuple[Tensor, dict[str, float]]:
    """Importance-weighted policy gradient: l = −A · π_θ/μ per token, Σ w·l / denominator.

    On the sampled policy the gradient is REINFORCE's, −A ∇log π_θ. The ratio is per token, so off the sampled
    policy the estimate is biased by what the earlier tokens of the path would have changed.

    Source: Williams (1992); the weighted form as in off-policy actor-critic (Degris et al., arXiv:1205.4839).

    Args:
        batch: with `behaviour_logprobs` and `advantages`.

    Returns:
        the loss, and `loss/pg`, `tokens/trained`, `ratio/mean`, `ratio/max` (π_θ/μ), `kl/behaviour_k3`.

    Raises:
        ConfigError: for a missing field.
        HarnessFault: for NaN or inf on a trained token.
    """
    trained = Trained(batch, "pg")
    logprobs, behaviour = trained["logprobs"], trained.constant("behaviour_logprobs")
    ratio = log_ratio(logprobs, behaviour).exp()
    loss = trained.reduce(-trained.constant("advantages") * ratio)
    return loss, {"loss/pg": float(loss.detach()), **ratio_statistics(ratio, logprobs, behaviour)}


@checked
def ppo(
    batch: TokenBatch,
    *,
    clip_low: Share = 0.2,
    clip_high: NotNegative = 0.2,
    dual_clip: Annotated[float, Field(gt=1, allow_inf_nan=False)] | None = 3.0,
) -> tuple[Tensor, dict[str, float]]:
    """Clipped surrogate with separate widths and dual clip.

        r = π_θ/π_old
        l = max(−A·r, −A·clip(r, 1 − clip_low − lower_clip_extra, 1 + clip_high))
        where A < 0:  l = min(l, −A·dual_clip)
        loss = Σ w·l / denominator

    Source: Schulman et al. (arXiv:1707.06347), eq. 7; clip-higher: DAPO (arXiv:2503.14476), 0.2 and 0.28; dual
    clip: Ye et al. (arXiv:1912.09729); a wider lower clip on some tokens: ELPO (arXiv:2602.09598).

    Args:
        batch: with `behaviour_logprobs` and `advantages`; `proximal_logprobs` (default: behaviour) and
            `lower_clip_extra` (default: 0) if there are any.
        clip_low: the ratio is clipped below 1 − this, from 0 to 1.
        clip_high: the ratio is clipped above 1 + this.
        dual_clip: bound of the loss in units of −A where A < 0, above 1; None switches it off.

    Returns:
        the loss, and `loss/ppo`, `tokens/trained`, `ratio/mean`, `ratio/max` (π_θ/π_old), `kl/behaviour_k3`;
        `clip/low_share`, `clip/high_share`, `clip/dual_share`: tokens without a gradient for that reason.

    Raises:
        ConfigError: for a missing field, or a lower clip width above 1 in sum.
        HarnessFault: for NaN or inf on a trained token.
    """
    trained = Trained(batch, "ppo")
    per_token, statistics = proximal_surrogate(
        trained, trained.constant("advantages"), clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip
    )
    loss = trained.reduce(per_token)
    return loss, {"loss/ppo": float(loss.detach()), **statistics}


def proximal_surrogate(
    trained: Trained, advantages: Tensor, *, clip_low: float, clip_high: float, dual_clip: float | None
) -> tuple[Tensor, dict[str, float]]:
    """`(M,)` the losses l of `ppo` for these `(M,)` advantages, and its statistics without the loss."""
    logprobs, behaviour = trained["logprobs"], trained.constant("behaviour_logprobs")
    ratio = log_ratio(logprobs, trained.proximal()).exp()
    low = 1 - clip_low - trained.constant("lower_clip_extra", 0.0)
    if bool((low < 0).any()):
        raise ConfigError(
            f"loss {trained.loss}: clip_low {clip_low} plus lower_clip_extra is above 1 on some token"
        )
    per_token, shares = clipped(ratio, advantages, low, 1 + clip_high)
    ceiling = torch.inf if dual_clip is None else dual_clip
    dual = (advantages < 0) & (ratio > ceiling)
    if dual_clip is not None:
        per_token = torch.where(dual, -advantages * dual_clip, per_token)
    shares["clip/dual_share"] = dual.float()
    return per_token, {**ratio_statistics(ratio, logprobs, behaviour), **means(**shares)}


def clipped(ratio: Tensor, advantages: Tensor, low: Tensor, high: float) -> tuple[Tensor, dict[str, Tensor]]:
    """max(−A·r, −A·clip(r, low, high)) per token, all `(M,)`, and 1 where that has no gradient, by the side."""
    bounded = torch.clamp(ratio, low, torch.full_like(low, high))
    return torch.maximum(-advantages * ratio, -advantages * bounded), {
        "clip/low_share": ((advantages < 0) & (ratio < low)).float(),
        "clip/high_share": ((advantages > 0) & (ratio > high)).float(),
    }


def ratio_statistics(ratio: Tensor, logprobs: Tensor, behaviour: Tensor) -> dict[str, float]:
    """`tokens/trained`, `ratio/mean`, `ratio/max`, `kl/behaviour_k3` from `(M,)` arrays."""
    averages = {"ratio/mean": ratio, "kl/behaviour_k3": kl(behaviour, logprobs, estimator="k3")}
    return {
        "tokens/trained": float(ratio.numel()),
        "ratio/max": float(ratio.detach().max()) if ratio.numel() else 0.0,
        **means(**averages),
    }
