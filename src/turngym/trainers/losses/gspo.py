"""Losses whose ratio belongs to a whole sequence or turn: `gspo` and `tbpo`.

The one idea: the ratio of a single token is noisy, above all where experts are routed. The geometric mean over a
segment is not, and clipping then keeps or drops the segment as one. Its spread is far smaller than a token's, and so
are the widths.

A segment may not be cut by a micro-batch: its mean is taken over the trained tokens that stand in the batch.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from turngym.errors import ConfigError
from turngym.trainers.losses.base import TokenBatch, Trained, log_ratio, means, segment_mean
from turngym.trainers.losses.policy_gradient import clipped, ratio_statistics
from turngym.trainers.options import NotNegative, Positive, Share, checked

LOG_RATIO_CEILING = 10.0
"""The log of a segment's ratio is clamped here from above; beyond it the gradient is 0."""


@checked
def gspo(
    batch: TokenBatch,
    *,
    level: Literal["sequence", "turn"] = "sequence",
    clip_low: Share = 3e-4,
    clip_high: NotNegative = 4e-4,
) -> tuple[Tensor, dict[str, float]]:
    """Clipped surrogate of a segment's ratio, with a gradient per token.

        s_i     = exp(mean over the segment of log π_θ − log π_old)
        s_{i,t} = sg(s_i) · π_θ / sg(π_θ)                            value s_i, gradient s_i ∇log π_θ
        l       = max(−A·s_{i,t}, −A·clip(s_{i,t}, 1 − clip_low, 1 + clip_high))
        loss    = Σ w·l / denominator

    With one advantage a segment this is GSPO, with several its token form; the paper aggregates with
    `sequence_mean`. At level `turn` the segments are actions, so that twenty turns don't average the signal away, and
    a token that several paths share has one ratio.

    Source: Zheng et al. (arXiv:2507.18071), as in verl; the widths are quoted from memory of the paper. The turn
    level is that of Tree-GRPO's code (arXiv:2509.21240).

    Args:
        batch: with `behaviour_logprobs`, `advantages` and the ids of the level, `sequence_ids` or `turn_ids`;
            `proximal_logprobs` (default: behaviour) if there are any.
        level: what a segment is.
        clip_low: the ratio is clipped below 1 − this, from 0 to 1.
        clip_high: the ratio is clipped above 1 + this.

    Returns:
        the loss, and `loss/gspo`, `tokens/trained`, `ratio/mean`, `ratio/max` (s_i at each token),
        `kl/behaviour_k3`, `clip/low_share`, `clip/high_share`.

    Raises:
        ConfigError: for a missing field.
        HarnessFault: for NaN or inf on a trained token.
    """
    trained = Trained(batch, "gspo")
    logprobs, behaviour = trained["logprobs"], trained.constant("behaviour_logprobs")
    ratio = segment_ratio(logprobs, trained.proximal(), trained.ids(f"{level}_ids"))
    low = torch.full_like(behaviour, 1 - clip_low)
    per_token, shares = clipped(ratio, trained.constant("advantages"), low, 1 + clip_high)
    loss = trained.reduce(per_token)
    statistics = ratio_statistics(ratio, logprobs, behaviour) | means(**shares)
    return loss, {"loss/gspo": float(loss.detach()), **statistics}


@checked
def tbpo(
    batch: TokenBatch,
    *,
    clip_low: Share = 3e-4,
    clip_high: NotNegative = 4e-4,
    mismatch_low: Share = 0.99,
    mismatch_high: Positive = 1.01,
) -> tuple[Tensor, dict[str, float]]:
    """A trust band on a sequence's ratio that binds negative advantages from both sides.

        s_{i,t} as in `gspo`, v_i = exp(mean over the sequence of log π_old − log μ)
        A ≥ 0:  l = max(−A·s, −A·clip(s, 1 − clip_low, 1 + clip_high))
        A < 0:  l = −A·clip(s, 1 − clip_low, 1 + clip_high)            PPO would not clip above
        l = 0 on a sequence with v_i outside [mismatch_low, mismatch_high]
        loss = Σ w·l / denominator; dropped sequences stay in the denominator

    Source: the abstract of QaRL (arXiv:2604.07853) and a third party's notes; no equation was seen. This is our
    reading, and the four numbers are ours, on GSPO's scale.

    Args:
        batch: with `behaviour_logprobs`, `advantages`, `sequence_ids`; `proximal_logprobs` (default: behaviour).
        clip_low: the ratio is clipped below 1 − this, from 0 to 1.
        clip_high: the ratio is clipped above 1 + this.
        mismatch_low: lower end of the band for trainer against engine.
        mismatch_high: upper end.

    Returns:
        the loss, and `loss/tbpo` and what `gspo` returns; `clip/dual_share` counts what is clipped above at A < 0,
        `reject/sequence_share` the tokens of dropped sequences.

    Raises:
        ConfigError: for a missing field, or a band whose ends are the wrong way round.
        HarnessFault: for NaN or inf on a trained token.
    """
    if mismatch_low > mismatch_high:
        raise ConfigError(f"loss tbpo: mismatch_low {mismatch_low} is above mismatch_high {mismatch_high}")
    trained = Trained(batch, "tbpo")
    logprobs, behaviour = trained["logprobs"], trained.constant("behaviour_logprobs")
    proximal, ids = trained.proximal(), trained.ids("sequence_ids")
    advantages, ratio = trained.constant("advantages"), segment_ratio(logprobs, proximal, ids)
    low = torch.full_like(behaviour, 1 - clip_low)
    per_token, shares = clipped(ratio, advantages, low, 1 + clip_high)
    dual = (advantages < 0) & (ratio > 1 + clip_high)
    per_token = torch.where(dual, -advantages * (1 + clip_high), per_token)
    mismatch = segment_mean(log_ratio(proximal, behaviour), ids).exp()
    dropped = (mismatch < mismatch_low) | (mismatch > mismatch_high)
    loss = trained.reduce(torch.where(dropped, 0.0, per_token))
    shares |= {"clip/dual_share": dual.float(), "reject/sequence_share": dropped.float()}
    statistics = ratio_statistics(ratio, logprobs, behaviour) | means(**shares)
    return loss, {"loss/tbpo": float(loss.detach()), **statistics}


def segment_ratio(logprobs: Tensor, proximal: Tensor, ids: Tensor) -> Tensor:
    """`(M,)` s_{i,t} of `gspo`: the segment's value, the token's own gradient."""
    own = logprobs.detach()
    mean = segment_mean(log_ratio(own, proximal), ids)
    return (mean + logprobs - own).clamp(max=LOG_RATIO_CEILING).exp()
