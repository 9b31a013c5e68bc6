"""Losses that raise the likelihood of given tokens: `sft`, `weighted_sft`, and `next_observation`.

The one idea: −log π_θ, on tokens that the caller names. The first two train on demonstrated actions; the third is the
only loss of this package that looks at tokens which no policy sampled, and it reads a mask of its own for that.
"""

from __future__ import annotations

from torch import Tensor

from turngym.trainers.losses.base import TokenBatch, Trained, means
from turngym.trainers.options import checked


@checked
def sft(batch: TokenBatch) -> tuple[Tensor, dict[str, float]]:
    """Supervised fine-tuning: −Σ w · log π_θ / denominator.

    What it learns is what stands under `loss_mask`. Intervention training (InT, known to us from its abstract) is this
    loss on a failed path up to its first wrong step, followed by the corrected step; masking all but the corrected step
    is our suggestion.

    Args:
        batch: no other field than the log-probs.

    Returns:
        the loss, and `loss/sft`, `tokens/trained`, `nll/mean`.

    Raises:
        HarnessFault: for NaN or inf on a trained token.
    """
    trained = Trained(batch, "sft")
    surprise = -trained["logprobs"]
    loss = trained.reduce(surprise)
    return loss, {
        "loss/sft": float(loss.detach()),
        "tokens/trained": float(len(trained)),
        **means(**{"nll/mean": surprise}),
    }


@checked
def weighted_sft(batch: TokenBatch) -> tuple[Tensor, dict[str, float]]:
    """Advantage-weighted likelihood without an importance weight: −Σ w · A · log π_θ / denominator.

    This is the gradient of RLTF's self-distillation: log π_θ is that of the *second* answer behind the prompt of the
    *first*, where no feedback stands; A is the second answer's reward minus the mean reward of the first ones. Tokens
    with a negative advantage are pushed down without a bound: keep updates few, or zero those advantages.

    Source: RLTF (arXiv:2602.02482), from a third party's notes that quote the gradient and its baseline.

    Args:
        batch: with `advantages`.

    Returns:
        the loss, and `loss/weighted_sft`, `tokens/trained`, `nll/mean`.

    Raises:
        ConfigError: for a missing field.
        HarnessFault: for NaN or inf on a trained token.
    """
    trained = Trained(batch, "weighted_sft")
    surprise = -trained["logprobs"]
    loss = trained.reduce(trained.constant("advantages") * surprise)
    return loss, {
        "loss/weighted_sft": float(loss.detach()),
        "tokens/trained": float(len(trained)),
        **means(**{"nll/mean": surprise}),
    }


@checked
def next_observation(batch: TokenBatch) -> tuple[Tensor, dict[str, float]]:
    """Predict what the environment said: −Σ log π_θ / observation_denominator over `observation_mask`.

    An auxiliary term: multiply by a coefficient and add it to a policy loss. It never reads a token under `loss_mask`,
    and it ignores `weights`, which belong to those.

    With every observation under the mask it teaches what actions do to the world; with the feedback on an answer
    alone it is feedback modelling.

    Source: the abstracts of PaW (arXiv:2606.02388) and of RLTF (feedback modelling, arXiv:2602.02482): cross-entropy on
    those tokens. PaW's selection by action entropy, its noise-tolerant loss and its balance by reward are not in
    the abstract and not here; a selection is a smaller mask.

    Args:
        batch: with `observation_mask` and `observation_denominator`; `logprobs` at those tokens.

    Returns:
        the term, and `loss/next_observation` (before the coefficient), `tokens/trained`, `tokens/observation`.

    Raises:
        ConfigError: for a missing field.
        HarnessFault: for NaN or inf on a token under the mask.
    """
    named = Trained(batch, "next_observation")
    seen = Trained(batch, "next_observation", mask=named.needed("observation_mask"))
    loss = -seen["logprobs"].sum() / named.needed("observation_denominator")
    return loss, {
        "loss/next_observation": float(loss.detach()),
        "tokens/trained": float(len(named)),
        "tokens/observation": float(len(seen)),
    }
