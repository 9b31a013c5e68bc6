"""One token per row from logits, with the exact log-prob of the distribution that it was sampled from.

Each request brings its own uniform numbers (a Philox stream keyed by its seed) and each token is the inverse of the
cumulative distribution at one of them, tokens in the order of their ids. So an action depends on its context, its
parameters and the weights, and on nothing else that is in the batch. No global random state is touched.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from turngym.agents.policy import SampleParams


def uniforms(seed: int, count: int) -> npt.NDArray[np.float64]:
    """`(count,)` numbers in [0, 1) that belong to `seed`."""
    return np.random.Generator(np.random.Philox(key=seed & 0xFFFFFFFFFFFFFFFF)).random(count)


def draw(
    logits: Tensor, params: Sequence[SampleParams], uniform: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Sample one token per row.

    Filters apply as in transformers: temperature, then `top_k`, then `top_p` over what `top_k` left. Log-probs are
    those of the filtered and renormalised distribution, in float32. Temperature 0 is the distribution with all its
    mass on the largest logit (the lowest id among equals), so its log-prob is 0.

    Args:
        logits: `(B, V)` unnormalised log-probs of the model.
        params: B of them.
        uniform: `(B,)` in [0, 1).

    Returns:
        `(B,)` ids and `(B,)` log-probs in nats.

    Raises:
        FloatingPointError: where a row has no finite logit to choose, so the weights or caches are broken.
    """
    scores = logits.float()
    temperature = torch.tensor([p.temperature for p in params], dtype=torch.float32, device=scores.device)
    greedy = temperature == 0
    if bool(greedy.all()):
        ids = scores.argmax(-1)
        logprobs = scores.new_zeros(ids.shape)
    else:
        scores = scores / torch.where(greedy, 1.0, temperature)[:, None]
        if any(p.top_k or p.top_p < 1 for p in params):
            scores = _filtered(scores, params)
        rows = torch.log_softmax(scores, -1)
        ids = torch.where(greedy, scores.argmax(-1), _invert(rows, uniform))
        logprobs = torch.where(greedy, 0.0, rows.gather(-1, ids[:, None])[:, 0])
    chosen = scores.gather(-1, ids[:, None])[:, 0] + logprobs
    if not bool(torch.isfinite(chosen).all()):
        raise FloatingPointError("the model gives logits that are not finite: its weights have diverged")
    return ids.cpu().numpy(), logprobs.cpu().numpy()


def _invert(logprobs: Tensor, uniform: npt.NDArray[np.float64]) -> Tensor:
    """`(B,)` the first id whose cumulative probability exceeds the uniform number."""
    precise = torch.float32 if logprobs.device.type == "mps" else torch.float64  # Apple's GPU has no doubles
    cumulative = logprobs.exp().cumsum(-1, dtype=precise)
    target = torch.as_tensor(uniform, device=logprobs.device).to(precise)[:, None] * cumulative[:, -1:]
    # right=True steps over tokens of probability 0, whose cumulative value equals their neighbour's.
    return torch.searchsorted(cumulative, target, right=True)[:, 0].clamp_(max=logprobs.shape[-1] - 1)


def _filtered(scores: Tensor, params: Sequence[SampleParams]) -> Tensor:
    """`(B, V)` scores with −inf where `top_k` or `top_p` drops a token. The likeliest token always stays."""
    vocabulary = scores.shape[-1]
    ordered, order = scores.sort(dim=-1, descending=True, stable=True)
    top_k = torch.tensor([p.top_k or vocabulary for p in params], device=scores.device)[:, None]
    ordered = ordered.masked_fill(torch.arange(vocabulary, device=scores.device) >= top_k, -torch.inf)
    top_p = torch.tensor([p.top_p for p in params], device=scores.device)[:, None]
    probabilities = ordered.softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    ordered = ordered.masked_fill((before >= top_p) & (top_p < 1), -torch.inf)
    return torch.empty_like(scores).scatter_(-1, order, ordered)
