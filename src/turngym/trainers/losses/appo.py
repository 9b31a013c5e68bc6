"""PPO that weighs a token by what happens to the tokens after it: `appo`.

The one idea: where an update also makes the rest of the path more likely, the token led somewhere the policy now wants
to go, so its advantage counts more. The weight is the discounted sum of the later log-ratios.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from turngym.trainers.losses.base import TokenBatch, Trained, log_ratio, means, segment_sum
from turngym.trainers.losses.policy_gradient import proximal_surrogate
from turngym.trainers.options import NotNegative, Positive, Share, checked


@checked
def appo(
    batch: TokenBatch,
    *,
    clip_low: Share = 0.2,
    clip_high: NotNegative = 0.28,
    dual_clip: Annotated[float, Field(gt=1, allow_inf_nan=False)] = 3.0,
    future: NotNegative = 1.0,
    future_clip: NotNegative = 0.2,
    half_life: Positive = 64.0,
) -> tuple[Tensor, dict[str, float]]:
    """`ppo` with future-weighted advantages.

        D_k = log π_θ − log π_old, 0 where above log dual_clip
        F_t = Σ_{k ≥ t} 2^(−(k − t)/half_life) D_k          within the sequence, k and t from `positions`
        f_t = clip(exp F_t, 1, 1 + future_clip), without a gradient
        A'  = A · (1 + future · f_t), then `ppo`; a sequence in which the dual clip binds twice or more is dropped
        loss = Σ w·l / denominator; dropped sequences stay in the denominator

    On the sampled policy f = 1, so the gradient is 1 + `future` times that of `ppo`: twice, by default. The authors
    bound f anew where A < 0 and r > 6; the dual clip has no gradient there, so this is left out. A token that several
    paths share has several futures, and this loss takes the one of the sequence it stands in. Sequences may not be
    cut by a micro-batch.

    Source: APPO's released code, which differs from what is written about it.

    Args:
        batch: with `behaviour_logprobs`, `advantages`, `sequence_ids`, `positions`; `proximal_logprobs` (default:
            behaviour), `lower_clip_extra` (default: 0).
        clip_low: as in `ppo`.
        clip_high: as in `ppo`.
        dual_clip: as in `ppo`.
        future: share of the advantage that the future multiplies.
        future_clip: f is at most 1 + this.
        half_life: distance after which a later token counts half, in positions.

    Returns:
        the loss, and `loss/appo` and what `ppo` returns; `future/mean` (f), `reject/sequence_share`.

    Raises:
        ConfigError: for a missing field, or a lower clip width above 1 in sum.
        HarnessFault: for NaN or inf on a trained token.
    """
    trained = Trained(batch, "appo")
    ids, log = trained.ids("sequence_ids"), log_ratio(trained.constant("logprobs"), trained.proximal())
    positions: Tensor = trained.needed("positions")[trained.index]
    kept = torch.where(log.exp() <= dual_clip, log, 0.0)
    ahead = discounted_future(kept, ids, positions, 2 ** (-1 / half_life)).exp().clamp(1, 1 + future_clip)
    advantages = trained.constant("advantages") * (1 + future * ahead)
    per_token, statistics = proximal_surrogate(
        trained, advantages, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip
    )
    dual = ((advantages < 0) & (log.exp() > dual_clip)).float()
    dropped = (segment_sum(dual, ids) > 1)[ids]
    loss = trained.reduce(torch.where(dropped, 0.0, per_token))
    more = means(**{"future/mean": ahead, "reject/sequence_share": dropped.float()})
    return loss, {"loss/appo": float(loss.detach()), **statistics, **more}


def discounted_future(values: Tensor, ids: Tensor, positions: Tensor, discount: float) -> Tensor:
    """`(M,)` Σ_{k ≥ t} discount^(k − t) values_k within each sequence.

    Solved by doubling: after step j each entry holds the sum over the 2^j tokens from it on.

    Args:
        values: `(M,)`.
        ids: `(M,)` sequence of each token.
        positions: `(M,)` int64, k and t.
        discount: per position, up to 1.
    """
    order = positions.argsort(stable=True)
    order = order[ids[order].argsort(stable=True)]
    total = values[order]
    # the factor that carries the sum from the next token to this one; 0 across sequences
    carry = torch.zeros_like(total)
    same = ids[order].diff() == 0
    carry[:-1] = torch.where(same, discount ** positions[order].diff().to(total.dtype), 0.0)
    step = 1
    while step < total.numel():
        later_total, later_carry = torch.zeros_like(total), torch.zeros_like(carry)
        later_total[:-step], later_carry[:-step] = total[step:], carry[step:]
        total, carry = total + carry * later_total, carry * later_carry
        step *= 2
    return torch.empty_like(total).index_copy(0, order, total)
