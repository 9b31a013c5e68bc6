"""PPO whose anchor is not the policy that sampled: `decoupled_ppo`, and a cheap anchor.

The one idea: clipping wants a *recent* policy to stay close to, the importance weight wants the policy that *sampled*.
Stale data pulls the two apart, so they get a log-prob each. Where the anchor comes from is the caller's choice: the
weights at the start of the update (AReaL), their running average (PPO-EWMA), or `between`.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from turngym.trainers.losses.base import TokenBatch, Trained, log_ratio, means
from turngym.trainers.losses.policy_gradient import proximal_surrogate
from turngym.trainers.options import NotNegative, Positive, Share, checked


@checked
def decoupled_ppo(
    batch: TokenBatch,
    *,
    clip_low: Share = 0.2,
    clip_high: NotNegative = 0.2,
    dual_clip: Annotated[float, Field(gt=1, allow_inf_nan=False)] | None = 3.0,
    cap: Positive = 5.0,
) -> tuple[Tensor, dict[str, float]]:
    """`ppo` around an anchor, times the weight of the anchor to the policy that sampled.

        v = min(π_prox/μ, cap), without a gradient
        loss = Σ w · v · l(π_θ/π_prox) / denominator, l as in `ppo`

    With the anchor at the sampling policy it is `ppo`. Don't combine it with a correction of `mismatch.py`, which is
    the same weight a second time.

    Source: AReaL (arXiv:2505.24298), eq. 5, cap from its code; with an averaged anchor it is PPO-EWMA (Hilton et al.,
    arXiv:2110.00641).

    Args:
        batch: with `behaviour_logprobs`, `proximal_logprobs` and `advantages`; `lower_clip_extra` (default: 0).
        clip_low: as in `ppo`.
        clip_high: as in `ppo`.
        dual_clip: as in `ppo`.
        cap: largest weight v.

    Returns:
        the loss, and `loss/decoupled_ppo` and what `ppo` returns; `cap/high_share`: tokens whose v was bounded.

    Raises:
        ConfigError: for a missing field, or a lower clip width above 1 in sum.
        HarnessFault: for NaN or inf on a trained token.
    """
    trained = Trained(batch, "decoupled_ppo")
    anchor, behaviour = trained.constant("proximal_logprobs"), trained.constant("behaviour_logprobs")
    weight = log_ratio(anchor, behaviour).exp()
    per_token, statistics = proximal_surrogate(
        trained, trained.constant("advantages"), clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip
    )
    loss = trained.reduce(weight.clamp(max=cap) * per_token)
    shares = means(**{"cap/high_share": (weight > cap).float()})
    return loss, {"loss/decoupled_ppo": float(loss.detach()), **statistics, **shares}


def between(logprobs: Tensor, behaviour: Tensor, *, version: Tensor, proximal: int, current: int) -> Tensor:
    """`(N,)` log π_prox without a forward pass: on the straight line from log μ to log π_θ, by policy version.

        α = (proximal − version) / (current − version), at least 0; 0 where a token is as new as the current policy
        log π_prox ≈ log μ + α (log π_θ − log μ)

    Source: AReaL's log-linear approximation (its documentation and code).

    Args:
        logprobs: `(N,)` of the current policy; no gradient is kept.
        behaviour: `(N,)` as recorded.
        version: `(N,)` policy version that sampled each token.
        proximal: version of the anchor.
        current: version of the current policy, `proximal` or later.
    """
    lag = (current - version).to(behaviour.dtype)
    alpha = torch.where(lag > 0, (proximal - version) / lag.clamp(min=1), 0.0).clamp(min=0)
    return behaviour + alpha * (logprobs.detach() - behaviour)
