"""Learning from a teacher's distributions on the student's own tokens: `distillation` and `dense_distillation`.

The one idea: on what the student itself sampled, the teacher grades every token, not only the outcome. Two forms:
from the teacher's log-prob of the sampled token alone, as a policy gradient; or from its whole distribution (or the k
likeliest tokens, which a cache can hold), as a divergence with a gradient of its own.

Reverse KL(student ‖ teacher) makes the student commit to what the teacher would also say; forward KL(teacher ‖ student)
makes it cover all of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from turngym.errors import ConfigError
from turngym.trainers.losses.base import TokenBatch, Trained, log_ratio, means
from turngym.trainers.losses.policy_gradient import ratio_statistics
from turngym.trainers.options import checked

TAIL_FLOOR = 1e-6
"""Least probability of all tokens that a cache leaves out, in teacher and student: a cache in float16 can sum to more
than 1, and a student that rules the others out would else be infinitely far away."""


@checked
def distillation(batch: TokenBatch) -> tuple[Tensor, dict[str, float]]:
    """Policy gradient of the reverse KL, from the sampled tokens alone.

        A    = log π_teacher − log μ
        loss = −Σ w · A · π_θ/μ / denominator

    On the sampled policy the expected gradient is that of KL(π_θ ‖ π_teacher) at each token; what a token does to the
    later ones is left out, as in the source.

    Source: Lu et al., "On-policy distillation" (Thinking Machines, 2025); the objective: Agarwal et al.
    (arXiv:2306.13649).

    Args:
        batch: with `behaviour_logprobs` and `teacher_logprobs`.

    Returns:
        the loss, and `loss/distillation`, `tokens/trained`, `ratio/mean`, `ratio/max` (π_θ/μ), `kl/behaviour_k3`,
        `kl/teacher_k1`.

    Raises:
        ConfigError: for a missing field.
        HarnessFault: for NaN or inf on a trained token.
    """
    trained = Trained(batch, "distillation")
    logprobs, behaviour = trained["logprobs"], trained.constant("behaviour_logprobs")
    advantages = trained.constant("teacher_logprobs") - behaviour
    ratio = log_ratio(logprobs, behaviour).exp()
    loss = trained.reduce(-advantages * ratio)
    statistics = ratio_statistics(ratio, logprobs, behaviour) | means(**{"kl/teacher_k1": -advantages})
    return loss, {"loss/distillation": float(loss.detach()), **statistics}


@checked
def dense_distillation(batch: TokenBatch) -> tuple[Tensor, dict[str, float]]:
    """The divergence to a teacher that was computed from whole distributions: Σ w · D / denominator.

    Source: generalised knowledge distillation (Agarwal et al., arXiv:2306.13649) at its two ends.

    Args:
        batch: with `teacher_divergence` (see `divergence`).

    Returns:
        the loss, and `loss/dense_distillation`, `tokens/trained`, `kl/teacher`.

    Raises:
        ConfigError: for a missing field.
        HarnessFault: for NaN or inf on a trained token.
    """
    trained = Trained(batch, "dense_distillation")
    gap = trained["teacher_divergence"]
    loss = trained.reduce(gap)
    return loss, {
        "loss/dense_distillation": float(loss.detach()),
        "tokens/trained": float(len(trained)),
        **means(**{"kl/teacher": gap}),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherTopK:
    """The k likeliest tokens of a teacher at each of N places.

    Raises:
        ConfigError: for shapes that differ.
    """

    ids: Tensor
    "`(N, k)` int64, no id twice in a row"
    logprobs: Tensor
    "`(N, k)` in nats, of the full distribution: their probabilities sum to 1 or less"

    def __post_init__(self) -> None:
        if self.ids.ndim != 2 or self.ids.shape != self.logprobs.shape:
            raise ConfigError(
                f"TeacherTopK: ids {tuple(self.ids.shape)} and logprobs {tuple(self.logprobs.shape)} must both be (N, k)"
            )


@checked
def divergence(
    logits: Tensor, teacher: Tensor | TeacherTopK, *, direction: Literal["forward", "reverse"] = "reverse"
) -> Tensor:
    """`(N,)` KL in nats between student and teacher at each place; the gradient flows to the student.

    Of a `TeacherTopK` all other tokens are one event, in both distributions. Lumping outcomes can only lower a KL, so
    that is a lower bound, still 0 for equal distributions, and exact at k = V.

    Args:
        logits: `(N, V)` of the student.
        teacher: `(N, V)` logits of the teacher, or its likeliest tokens.
        direction: `reverse` is KL(student ‖ teacher), `forward` KL(teacher ‖ student).
    """
    student = torch.log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), dim=-1)
    if isinstance(teacher, TeacherTopK):
        student, target = _lump(student, teacher)
    else:
        target = torch.log_softmax(teacher.detach().to(student.dtype), dim=-1)
    first, second = (student, target) if direction == "reverse" else (target, student)
    probability = first.exp()
    # a token that the first distribution can't give adds nothing, whatever the second says
    gap = torch.where(probability > 0, first - second, 0.0)
    return (probability * gap).sum(dim=-1)


def _lump(student: Tensor, teacher: TeacherTopK) -> tuple[Tensor, Tensor]:
    """`(N, k + 1)` log-probs of both over the cached tokens and all others; `(N, k)` where there are no others."""
    target = teacher.logprobs.detach().to(student.dtype)
    picked = student.gather(1, teacher.ids)
    if teacher.ids.shape[1] == student.shape[1]:
        return picked, torch.log_softmax(target, dim=-1)
    # summed as probabilities: log-sum-exp has no gradient where all others are impossible
    others = student.exp().scatter(1, teacher.ids, 0.0).sum(dim=-1, keepdim=True).clamp(min=TAIL_FLOOR).log()
    left = (1 - target.exp().sum(dim=-1, keepdim=True)).clamp(min=TAIL_FLOOR).log()
    return torch.cat([picked, others], 1), torch.log_softmax(torch.cat([target, left], 1), dim=-1)
