"""Corrections for tokens that another policy sampled than the trainer believes: factors for `TokenBatch.weights`.

The one idea: engine and trainer differ (precision, kernels, stale weights), and ρ = π_old/μ measures by how much. A
correction turns ρ into a weight per token, once over the whole batch before it is cut, without a gradient; any loss
whose own ratio is π_θ/π_old then takes it. Rejected tokens get weight 0 and stay in the denominator, so that the others
don't grow by what was rejected (AReaL's rule).

A loss whose ratio is π_θ/μ (`pg`, `sao`, `p3o`, `distillation`) or that brings its own weight (`decoupled_ppo`) holds ρ
already: give it no correction but those that only reject, `geometric_rejection`, `k3_rejection` and `m2po`.

Bias and variance: a token's weight ignores what came before the token, a sequence's is unbiased and explodes with its
length (1.1^100 = 13780).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from turngym.errors import ConfigError
from turngym.trainers.losses.base import (
    LOG_RATIO_LIMIT,
    TokenBatch,
    Trained,
    effective_share,
    log_ratio,
    means,
    segment_mean,
    segment_sum,
)
from turngym.trainers.losses.penalties import kl
from turngym.trainers.options import NotNegative, Positive, checked

Correction = Callable[[TokenBatch], tuple[Tensor, dict[str, float]]]
"""`(N,)` float32 weights ≥ 0, 0 outside the mask, and statistics. It needs `behaviour_logprobs` and
`proximal_logprobs`; those of sequences need `sequence_ids`, whole sequences that is. It raises as a loss does."""


def corrected(batch: TokenBatch, correction: Correction) -> tuple[TokenBatch, dict[str, float]]:
    """The batch with its weights multiplied by those of a correction, and the correction's statistics."""
    weights, statistics = correction(batch)
    if batch.weights is not None:
        weights = torch.where(batch.loss_mask, batch.weights, 0.0) * weights
    return replace(batch, weights=weights), statistics


@checked
def token_tis(
    batch: TokenBatch, *, cap: Positive = 2.0, normalise: bool = False
) -> tuple[Tensor, dict[str, float]]:
    """Truncated importance sampling per token: min(ρ, cap).

    Source: Yao et al. (2025, "Your efficient RL framework secretly brings you off-policy RL training"); verl.

    Args:
        batch: see `Correction`.
        cap: largest weight; 1.5 to 5 are in use.
        normalise: divide by the mean weight of the batch.
    """
    trained = Trained(batch, "token_tis")
    log = _log_rho(trained)
    weights = log.exp().clamp(max=cap)
    return _result(trained, log, weights / weights.mean() if normalise else weights)


@checked
def sequence_tis(
    batch: TokenBatch, *, cap: Positive = 2.0, normalise: bool = False
) -> tuple[Tensor, dict[str, float]]:
    """Truncated importance sampling per sequence: min(Π ρ, cap) on each of its tokens.

    Source: verl; VCPO's loss is an unclipped `ppo` with this at cap 8 (see `vcpo.py`).

    Args:
        batch: see `Correction`.
        cap: largest weight; 2 to 10 are in use.
        normalise: divide by the mean weight of the batch's sequences.
    """
    trained = Trained(batch, "sequence_tis")
    log, ids = _log_rho(trained), trained.ids("sequence_ids")
    weights = _product(log, ids).clamp(max=cap)
    return _result(trained, log, (weights / weights.mean() if normalise else weights)[ids])


@checked
def mis(
    batch: TokenBatch, *, low: NotNegative = 0.5, high: Positive = 2.0
) -> tuple[Tensor, dict[str, float]]:
    """Masked importance sampling per sequence: Π ρ where low ≤ Π ρ ≤ high, else 0. Source: verl."""
    trained = Trained(batch, "mis")
    log, ids = _log_rho(trained), trained.ids("sequence_ids")
    weights = _product(log, ids)
    return _result(trained, log, (weights * _inside("mis", weights, low, high))[ids])


@checked
def geometric_rejection(
    batch: TokenBatch, *, low: NotNegative = 0.999, high: Positive = 1.001
) -> tuple[Tensor, dict[str, float]]:
    """1 on sequences with low ≤ exp(mean log ρ) ≤ high, else 0; the length plays no part. Source: verl."""
    trained = Trained(batch, "geometric_rejection")
    log = _log_rho(trained)
    mean = segment_mean(log, trained.ids("sequence_ids")).exp()
    return _result(trained, log, _inside("geometric_rejection", mean, low, high))


@checked
def k3_rejection(batch: TokenBatch, *, limit: Positive = 0.01) -> tuple[Tensor, dict[str, float]]:
    """1 on sequences with mean (ρ − log ρ − 1) ≤ limit, else 0; 0.001 to 0.01 are in use. Source: verl."""
    trained = Trained(batch, "k3_rejection")
    log = _log_rho(trained)
    k3 = kl(trained.constant("behaviour_logprobs"), trained.constant("proximal_logprobs"), estimator="k3")
    return _result(trained, log, (segment_mean(k3, trained.ids("sequence_ids")) <= limit).to(log.dtype))


@checked
def icepop(
    batch: TokenBatch, *, low: NotNegative = 0.5, high: Positive = 2.0
) -> tuple[Tensor, dict[str, float]]:
    """ρ per token where low ≤ ρ ≤ high, else 0: for mixtures of experts, whose outliers are noise.

    Source: IcePop (Ring-1T, arXiv:2510.18855), bounds from slime's recipe; verl's documentation has 0.5 and 5.
    """
    trained = Trained(batch, "icepop")
    log = _log_rho(trained)
    return _result(trained, log, log.exp() * _inside("icepop", log.exp(), low, high))


@checked
def ais(
    batch: TokenBatch, *, cap: Positive = 2.0, reference_divergence: Positive = 0.05
) -> tuple[Tensor, dict[str, float]]:
    """Between no correction and truncated importance sampling, as far as the batch supports it.

        e = (Σρ)²/(n Σρ²)                   how reliable the weights are
        d = mean |log ρ|                    how far the policies lie apart
        v = Σρ²A² / ΣA²                     how much weighting adds to the variance
        λ = e · d/(d + d₀) / (1 + max(0, v − 1))
        weight = (1 − λ) + λ·min(ρ, cap)

    Source: the abstract of AIS and a line in a survey, which name the three diagnostics. The map to λ is our
    reconstruction: it grows with d, shrinks with unreliable or costly weights.

    Args:
        batch: see `Correction`; with `advantages` as well.
        cap: largest weight.
        reference_divergence: d₀ in nats; the median of d over the first updates is a good choice.
    """
    trained = Trained(batch, "ais")
    log, advantages = _log_rho(trained), trained.constant("advantages")
    rho, energy = log.exp(), advantages.square().sum()
    divergence = log.abs().mean() if len(trained) else log.sum()
    growth = (
        (rho.square() * advantages.square()).sum() / energy if bool(energy > 0) else torch.ones_like(energy)
    )
    mix = (
        effective_share(log)
        * divergence
        / (divergence + reference_divergence)
        / (1 + (growth - 1).clamp(min=0))
    )
    weights, statistics = _result(trained, log, 1 - mix + mix * rho.clamp(max=cap))
    return weights, {**statistics, "correction/mix": float(mix)}


@checked
def m2po(batch: TokenBatch, *, limit: Positive = 0.04) -> tuple[Tensor, dict[str, float]]:
    """0 on the tokens with the largest (log ρ)², as few as bring the mean of the others below `limit`; 1 elsewhere.

    Use it with a loss that does not clip: `pg`, or `ppo` with `clip_low` 1, `clip_high` wide and no dual clip. For the
    paper's mask, on π_θ/μ, pass the current log-probs as `proximal_logprobs`. At least one token is kept.

    Source: M2PO (arXiv:2510.01161), as in AReaL, which takes π_old for π_θ and, unlike here, one micro-batch at a time.

    Args:
        batch: see `Correction`.
        limit: of the second moment of the log-ratio, in nats².
    """
    trained = Trained(batch, "m2po")
    log = _log_rho(trained)
    ascending, order = log.to(torch.float64).square().sort()
    moment = ascending.cumsum(0) / torch.arange(1, len(trained) + 1, device=log.device)
    kept = max(int((moment < limit).sum()), 1)  # the mean of an ascending series never falls
    return _result(trained, log, torch.zeros_like(log).index_fill(0, order[:kept], 1.0))


def _log_rho(trained: Trained) -> Tensor:
    return log_ratio(trained.constant("proximal_logprobs"), trained.constant("behaviour_logprobs"))


def _product(log_rho: Tensor, ids: Tensor) -> Tensor:
    """`(S,)` Π ρ of each sequence, its log clamped as that of a token."""
    return segment_sum(log_rho, ids).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def _inside(correction: str, values: Tensor, low: float, high: float) -> Tensor:
    if low > high:
        raise ConfigError(f"correction {correction}: low {low} is above high {high}")
    return ((values >= low) & (values <= high)).to(values.dtype)


def _result(trained: Trained, log_rho: Tensor, weights: Tensor) -> tuple[Tensor, dict[str, float]]:
    """Put `(M,)` weights back to `(N,)`, and describe them."""
    flat = torch.zeros(trained.batch.loss_mask.shape, dtype=torch.float32, device=log_rho.device)
    flat[trained.index] = weights.to(torch.float32)
    averages = {
        "correction/mean": weights,
        "correction/rejected_share": (weights == 0).float(),
        "correction/log_ratio_abs": log_rho.abs(),
    }
    return flat, {
        **means(**averages),
        "correction/max": float(weights.max()) if len(trained) else 0.0,
        "correction/effective_share": effective_share(log_rho),
    }
