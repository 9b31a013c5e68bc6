"""Terms that are added to a policy loss: distance to a reference policy, and entropy.

The one idea: a KL divergence is estimated from the tokens that were sampled, by one of Schulman's three
estimators ("Approximating KL divergence", joschu.net/blog/kl-approx.html). Which of them makes a good *loss* is
another question than which makes a good estimate, and `kl_penalty` says so.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

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


def entropy_of(logits: Tensor) -> Tensor:
    """`(N,)` entropy in nats of the distributions with `logits` `(N, V)`: log Σ exp z − Σ p·z.

    A logit of −inf is a token that can't be sampled and adds nothing.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    probabilities = torch.softmax(logits, dim=-1)
    weighted = probabilities * torch.where(torch.isneginf(logits), 0.0, logits)
    return torch.logsumexp(logits, dim=-1) - weighted.sum(dim=-1)
