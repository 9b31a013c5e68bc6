"""Losses that put the bound on a detached weight instead of the objective: `cispo`, `sao` and `p3o`.

The one idea: −sg(f(r))·A·log π_θ has the gradient of REINFORCE times a bounded weight f(r). Unlike PPO's clip, the
bound does not depend on the sign of the advantage, and the weight of a token says all that there is to say about it.
The value of such a loss is no measure of progress; the statistics are.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from turngym.trainers.losses.base import TokenBatch, Trained, log_ratio, means
from turngym.trainers.losses.penalties import kl
from turngym.trainers.losses.policy_gradient import ratio_statistics
from turngym.trainers.options import NotNegative, Share, checked


@checked
def cispo(
    batch: TokenBatch, *, clip_low: Share = 1.0, clip_high: NotNegative = 0.28
) -> tuple[Tensor, dict[str, float]]:
    """REINFORCE with a clipped importance weight: no token loses its gradient, rare pivotal ones least of all.

        r = π_θ/π_old
        loss = −Σ w · sg(clip(r, 1 − clip_low, 1 + clip_high)) · A · log π_θ / denominator

    Source: MiniMax-M1 (arXiv:2506.13585), eq. 4 and 5. The paper sets no lower bound, which is `clip_low` 1, and
    does not print its upper one: 0.28 is a default of other frameworks, and some go up to 7.

    Args:
        batch: with `behaviour_logprobs` and `advantages`; `proximal_logprobs` (default: behaviour).
        clip_low: the weight is at least 1 − this, from 0 to 1.
        clip_high: the weight is at most 1 + this.

    Returns:
        the loss, and `loss/cispo`, `tokens/trained`, `ratio/mean`, `ratio/max` (π_θ/π_old), `kl/behaviour_k3`;
        `cap/low_share`, `cap/high_share`: tokens whose weight was bounded.

    Raises:
        ConfigError: for a missing field.
        HarnessFault: for NaN or inf on a trained token.
    """
    trained = Trained(batch, "cispo")
    logprobs, behaviour = trained["logprobs"], trained.constant("behaviour_logprobs")
    ratio = log_ratio(logprobs, trained.proximal()).exp().detach()
    weight = ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = trained.reduce(-weight * trained.constant("advantages") * logprobs)
    shares = {
        "cap/low_share": (ratio < 1 - clip_low).float(),
        "cap/high_share": (ratio > 1 + clip_high).float(),
    }
    statistics = ratio_statistics(ratio, logprobs, behaviour) | means(**shares)
    return loss, {"loss/cispo": float(loss.detach()), **statistics}


@checked
def sao(
    batch: TokenBatch, *, clip_low: Share = 0.3, clip_high: NotNegative = 5.0
) -> tuple[Tensor, dict[str, float]]:
    """Direct importance sampling: REINFORCE with the raw ratio inside a band, nothing outside it.

        x = π_θ/μ
        f = x where 1 − clip_low < x < 1 + clip_high, else 0        for both signs of A
        loss = −Σ w · sg(f) · A · log π_θ / denominator              rejected tokens stay in the denominator

    No π_old: the band is laid around the policy that sampled, so the stale token drops out by itself.

    Source: SAO, from a third party's extraction of its formulas and tables: 0.3 and 5 for reasoning with tools,
    0.8 and 3 for a coding agent.

    Args:
        batch: with `behaviour_logprobs` and `advantages`.
        clip_low: lower width of the band, from 0 to 1.
        clip_high: upper width.

    Returns:
        the loss, and `loss/sao`, `tokens/trained`, `ratio/mean`, `ratio/max` (π_θ/μ), `kl/behaviour_k3`;
        `reject/low_share`, `reject/high_share`: tokens without a gradient, below and above the band.

    Raises:
        ConfigError: for a missing field.
        HarnessFault: for NaN or inf on a trained token.
    """
    trained = Trained(batch, "sao")
    logprobs, behaviour = trained["logprobs"], trained.constant("behaviour_logprobs")
    log = log_ratio(logprobs, behaviour).detach()  # the band is compared in logs, where float32 is even
    low = log <= (math.log1p(-clip_low) if clip_low < 1 else -math.inf)
    high = log >= math.log1p(clip_high)
    weight = torch.where(low | high, 0.0, log.exp())
    loss = trained.reduce(-weight * trained.constant("advantages") * logprobs)
    shares = {"reject/low_share": low.float(), "reject/high_share": high.float()}
    statistics = ratio_statistics(log.exp(), logprobs, behaviour) | means(**shares)
    return loss, {"loss/sao": float(loss.detach()), **statistics}


@checked
def p3o(batch: TokenBatch) -> tuple[Tensor, dict[str, float]]:
    """The effective sample size E sets both the bound of the weights and the pull towards the sampling policy.

        x = π_θ/μ,  E = (Σx)² / (n Σx²) over the n trained tokens of the whole batch
        loss = Σ w · (−sg(min(x, E)) · A · log π_θ + (1 − E) · k3(π_θ ‖ μ)) / denominator

    There is nothing to tune. The bound is one-sided, and it holds weights at 1 or below even on the sampled policy.

    Source: FeynRL's code (P3O). It takes E over each micro-batch; here the caller passes it in as
    `batch.effective_share` (`base.effective_share` computes it), so that micro-batches change nothing.

    Args:
        batch: with `behaviour_logprobs`, `advantages` and `effective_share`.

    Returns:
        the loss, and `loss/p3o`, `tokens/trained`, `ratio/mean`, `ratio/max` (π_θ/μ), `ratio/effective_share`,
        `kl/behaviour_k3`; `cap/high_share`: tokens whose weight was bounded.

    Raises:
        ConfigError: for a missing field.
        HarnessFault: for NaN or inf on a trained token.
    """
    trained = Trained(batch, "p3o")
    logprobs, behaviour = trained["logprobs"], trained.constant("behaviour_logprobs")
    share: float = trained.needed("effective_share")
    ratio = log_ratio(logprobs, behaviour).exp().detach()
    policy = -ratio.clamp(max=share) * trained.constant("advantages") * logprobs
    loss = trained.reduce(policy + (1 - share) * kl(logprobs, behaviour, estimator="k3"))
    statistics = ratio_statistics(ratio, logprobs, behaviour) | means(
        **{"cap/high_share": (ratio > share).float()}
    )
    return loss, {"loss/p3o": float(loss.detach()), "ratio/effective_share": share, **statistics}
