"""Variance control for stale rollouts: a learning rate and a baseline that know the importance weights.

The one idea: the effective sample size of the sequences' weights says how many rollouts a batch is worth. An update that
rests on few takes a smaller step, and the baseline that minimises the variance weighs each rollout by its squared weight
and gradient norm. The first is `optimiser.ess_base` of a run, the second a number for callers of their own, since a norm
of the gradient a rollout takes a backward each; the loss is an unclipped `ppo` (`clip_low` 1, `clip_high` wide, no
dual clip) with the correction `sequence_tis` at cap 8, aggregated by `sequence_mean`.

Source: VCPO's released code.
"""

from __future__ import annotations

import torch
from torch import Tensor

from turngym.errors import ConfigError
from turngym.trainers.losses.base import (
    LOG_RATIO_LIMIT,
    TokenBatch,
    Trained,
    effective_share,
    log_ratio,
    segment_sum,
)


def sequence_log_weights(batch: TokenBatch) -> Tensor:
    """`(S,)` Σ log π_old − log μ over the trained tokens of each sequence, in ascending order of their ids.

    Args:
        batch: with `proximal_logprobs`, `behaviour_logprobs` and `sequence_ids`.

    Raises:
        ConfigError: for a missing field.
        HarnessFault: for NaN or inf on a trained token.
    """
    trained = Trained(batch, "vcpo")
    log = log_ratio(trained.constant("proximal_logprobs"), trained.constant("behaviour_logprobs"))
    return segment_sum(log, trained.ids("sequence_ids")).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def learning_rate_factor(log_weights: Tensor, *, base: float = 1.0) -> float:
    """√min(1, E/base) with E the effective share of the sequences: multiply the learning rate of this step by it, and of no other.

    Args:
        log_weights: `(B,)` of every sequence of the step, over all ranks.
        base: E of a healthy batch.
    """
    if not 0 < base <= 1:
        raise ConfigError(f"learning_rate_factor: base must lie above 0 and up to 1, got {base}")
    return float(min(1.0, effective_share(log_weights) / base) ** 0.5)


def optimal_baseline(log_weights: Tensor, gradient_norms: Tensor, returns: Tensor) -> Tensor:
    """Scalar b* = Σ w²‖g‖²R / Σ w²‖g‖² of one group; the mean of the returns where every gradient is 0.

    Args:
        log_weights: `(G,)`.
        gradient_norms: `(G,)` norm of the gradient of each rollout's mean log-prob, without its weight;
            `logit_gradient_square` is a cheap stand-in for its square.
        returns: `(G,)`.
    """
    log = log_weights.detach()
    # only proportions count, so the largest weight is set to 1 and nothing overflows
    share = ((log - log.max()).exp() * gradient_norms.detach()).square()
    total = share.sum()
    return (share * returns).sum() / total if bool(total > 0) else returns.mean()


def logit_gradient_square(logits: Tensor, targets: Tensor) -> Tensor:
    """`(N,)` squared norm of d log π(target) / d logits: 1 − 2π(target) + Σ_v π_v². No gradient is kept.

    Args:
        logits: `(N, V)`.
        targets: `(N,)` int64.

    Source: the optimal token baseline in verl.
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    probabilities = torch.softmax(logits.detach().to(wide), dim=-1)
    target = probabilities.gather(1, targets[:, None]).squeeze(1)
    return 1 - 2 * target + probabilities.square().sum(dim=-1)
