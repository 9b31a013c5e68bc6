"""Terms that are added to a policy loss (distance to a reference policy, entropy) or to its advantages (entropy).

The one idea: a KL divergence is estimated from the tokens that were sampled, by one of Schulman's three
estimators ("Approximating KL divergence", joschu.net/blog/kl-approx.html). Which of them makes a good *loss* is
another question than which makes a good estimate, and `kl_penalty` says so.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from turngym.errors import ConfigError
from turngym.trainers.losses.base import TokenBatch, Trained, log_ratio, means
from turngym.trainers.options import checked

Estimator = Literal["k1", "k2", "k3"]


@checked
def kl(sampled: Tensor, other: Tensor, *, estimator: Estimator = "k3") -> Tensor:
    """`(M,)` estimates of KL(sampled ‖ other) from the log-probs `(M,)` of tokens that the first one sampled.

    With d = log other − log sampled, clamped to ±20:

        k1 = −d              unbiased, can be negative
        k2 = d²/2            biased, low variance
        k3 = exp(d) − d − 1  unbiased, never negative
    """
    d = log_ratio(other, sampled)
    match estimator:
        case "k1":
            return -d
        case "k2":
            return d.square() / 2
        case "k3":
            return d.exp() - d - 1


@checked
def kl_penalty(batch: TokenBatch, *, estimator: Estimator = "k3") -> tuple[Tensor, dict[str, float]]:
    """Distance to the reference policy: Σ w · k(π_θ ‖ π_ref) / denominator; multiply by a coefficient and add.

    On the sampled policy the gradient of k2 is that of KL(π_θ ‖ π_ref); that of k3 is KL(π_ref ‖ π_θ)'s, equal
    to first order near the reference and the field's default (GRPO, arXiv:2402.03300); that of k1 is 0 in
    expectation, pure noise, so use k1 inside a reward only (Tang and Munos, arXiv:2506.09477).

    Args:
        batch: with `reference_logprobs`.
        estimator: which of `kl`.

    Returns:
        the term, and `loss/kl` (before the coefficient), `tokens/trained`, `kl/reference_k3`.

    Raises:
        ConfigError: for a missing field.
        HarnessFault: for NaN or inf on a trained token.
    """
    trained = Trained(batch, "kl_penalty")
    logprobs, reference = trained["logprobs"], trained.constant("reference_logprobs")
    loss = trained.reduce(kl(logprobs, reference, estimator=estimator))
    averages = {"kl/reference_k3": kl(logprobs, reference, estimator="k3")}
    return loss, {"loss/kl": float(loss.detach()), "tokens/trained": float(len(trained)), **means(**averages)}


@checked
def entropy_bonus(batch: TokenBatch) -> tuple[Tensor, dict[str, float]]:
    """Minus the entropy: −Σ w·H / denominator; multiply by a coefficient and add to keep the policy open.

    Args:
        batch: with `entropy` (see `entropy_of`).

    Returns:
        the term, and `loss/entropy` (before the coefficient), `tokens/trained`, `entropy/mean` in nats.

    Raises:
        ConfigError: for a missing field.
        HarnessFault: for NaN or inf on a trained token.
    """
    trained = Trained(batch, "entropy_bonus")
    entropy = trained["entropy"]
    loss = trained.reduce(-entropy)
    averages = {"entropy/mean": entropy}
    return loss, {
        "loss/entropy": float(loss.detach()),
        "tokens/trained": float(len(trained)),
        **means(**averages),
    }


def entropy_shaped(
    advantages: Tensor, entropy: Tensor, *, scale: float, cap: float = 2.0
) -> tuple[Tensor, dict[str, float]]:
    """`(N,)` advantages plus what the policy's doubt at each token is worth: A + min(scale · H, |A| / cap), without a gradient.

    Where the policy was unsure, success is praised more and failure blamed less. With cap > 1 no advantage changes
    its sign, and one of 0 stays 0, so a rollout without a signal teaches nothing here either.

    Biased: what is added depends on the token, so it is no baseline.

    Source: MSSR (arXiv:2512.18215), from its released code, which the paper calls necessary with one rollout a task;
    scale 0.4 and cap 2 there. A summary of the paper has the two constants the other way round. The code estimates H from the
    sampled token alone; here it is the entropy of the distribution, as in the paper.

    Args:
        advantages: `(N,)`.
        entropy: `(N,)` in nats, see `entropy_of`.
        scale: α, above 0.
        cap: κ, above 1.

    Returns:
        the advantages, and `entropy/shaping`, the mean of what was added.

    Raises:
        ConfigError: for numbers out of range.
    """
    if not (0 < scale < math.inf and 1 < cap < math.inf):
        raise ConfigError(f"entropy_shaped needs scale > 0 and cap > 1, got scale={scale}, cap={cap}")
    added = torch.minimum(scale * entropy.detach(), advantages.abs() / cap)
    return advantages + added, means(**{"entropy/shaping": added})


def entropy_of(logits: Tensor) -> Tensor:
    """`(N,)` entropy in nats of the distributions with `logits` `(N, V)`: log Σ exp z − Σ p·z.

    A logit of −inf is a token that can't be sampled and adds nothing.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    probabilities = torch.softmax(logits, dim=-1)
    weighted = probabilities * torch.where(torch.isneginf(logits), 0.0, logits)
    return torch.logsumexp(logits, dim=-1) - weighted.sum(dim=-1)
