"""Random token batches for losses, what each loss reads, and the surrogates whose gradient it claims."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from turngym.trainers.losses import LOSSES, PENALTIES, Loss, TokenBatch, get_loss, get_penalty

WIDE = {"clip_low": 0.2, "clip_high": 0.3}
"""Random log-ratios of ±0.3 lie far outside the widths that whole sequences are clipped at by default."""

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in {**LOSSES, **PENALTIES}},
    "gspo wide": ("gspo", WIDE),
    "gspo turn": ("gspo", {**WIDE, "level": "turn"}),
    "tbpo": ("tbpo", {**WIDE, "mismatch_low": 0.7, "mismatch_high": 1.3}),
    "cispo floor": ("cispo", {"clip_low": 0.1, "clip_high": 0.1}),
    "sao narrow": ("sao", {"clip_low": 0.2, "clip_high": 0.3}),
    "sao without floor": ("sao", {"clip_low": 1.0}),
    "appo short": ("appo", {"half_life": 2.0, "dual_clip": 1.5, "future_clip": 2.0}),
    "decoupled_ppo capped": ("decoupled_ppo", {"cap": 1.1, "dual_clip": None}),
    "kl_penalty k1": ("kl_penalty", {"estimator": "k1"}),
}
"""Every registered loss under its own name, and some with other options."""

COMMON = {"logprobs", "weights"}
POLICY = COMMON | {"behaviour_logprobs", "advantages"}
READ = {
    "pg": POLICY,
    "ppo": POLICY | {"proximal_logprobs", "lower_clip_extra"},
    "decoupled_ppo": POLICY | {"proximal_logprobs", "lower_clip_extra"},
    "appo": POLICY | {"proximal_logprobs", "lower_clip_extra"},
    "gspo": POLICY | {"proximal_logprobs"},
    "tbpo": POLICY | {"proximal_logprobs"},
    "cispo": POLICY | {"proximal_logprobs"},
    "sao": POLICY,
    "p3o": POLICY,
    "distillation": COMMON | {"behaviour_logprobs", "teacher_logprobs"},
    "dense_distillation": {"teacher_divergence", "weights"},
    "sft": COMMON,
    "weighted_sft": COMMON | {"advantages"},
    "kl_penalty": COMMON | {"reference_logprobs"},
    "entropy_bonus": {"entropy", "weights"},
    "next_observation": {"logprobs"},
}
"""Float fields that each loss looks at."""
OPTIONAL = {"weights", "lower_clip_extra"}
IDS = {
    "appo": {"sequence_ids", "positions"},
    "gspo": {"sequence_ids"},
    "gspo turn": {"turn_ids"},
    "gspo wide": {"sequence_ids"},
    "tbpo": {"sequence_ids"},
    "appo short": {"sequence_ids", "positions"},
}
"""Integer fields that each case needs."""
LEAVES = ("logprobs", "entropy", "teacher_divergence")
"""Fields that a gradient flows through."""


def loss_of(case: str) -> Loss:
    name, options = CASES[case]
    return (get_loss if name in LOSSES else get_penalty)(name, **options)


def needed(case: str) -> set[str]:
    """Fields without which the case can't be computed, beside log-probs."""
    name = CASES[case][0]
    fields = (READ[name] - OPTIONAL - {"logprobs"}) | IDS.get(case, set())
    if name in ("ppo", "appo", "gspo", "tbpo", "cispo"):
        fields.discard("proximal_logprobs")  # the behaviour policy's by default
    extra = {"p3o": {"effective_share"}, "next_observation": {"observation_mask", "observation_denominator"}}
    return fields | extra.get(name, set())


def arrays(tokens: int, seed: int, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Sequences of 1 to 7 tokens one after the other, turns within them, positions with gaps."""
    g = torch.Generator().manual_seed(seed)

    def normal(scale: float) -> Tensor:
        return scale * torch.randn(tokens, generator=g, dtype=torch.float64)

    def starts(share: float) -> Tensor:
        return torch.rand(tokens, generator=g) < share

    logprobs = -normal(1.0).abs() - 0.1
    proximal = logprobs + normal(0.2)
    first = starts(0.25)
    floats = {
        "logprobs": logprobs,
        "behaviour_logprobs": logprobs + normal(0.3),
        "proximal_logprobs": proximal,
        "reference_logprobs": logprobs + normal(0.5),
        "teacher_logprobs": logprobs + normal(0.5),
        "advantages": normal(1.0),
        "weights": normal(1.0).abs(),
        "lower_clip_extra": 0.1 * (normal(1.0) > 0),
        "entropy": normal(1.0).abs(),
        "teacher_divergence": normal(1.0).abs(),
    }
    ids = {
        "sequence_ids": 3 + 2 * first.long().cumsum(0),
        "turn_ids": (first | starts(0.3)).long().cumsum(0),
        "positions": torch.randint(1, 4, (tokens,), generator=g).cumsum(0),
    }
    return {name: value.to(dtype) for name, value in floats.items()} | ids


def token_batch(case: str, fields: dict[str, Tensor], mask: Tensor, denominator: float = 7.0) -> TokenBatch:
    """A batch whose tokens under `mask` are those that the case may look at."""
    observed = CASES[case][0] == "next_observation"
    return TokenBatch(
        loss_mask=torch.zeros_like(mask) if observed else mask,
        observation_mask=mask if observed else None,
        observation_denominator=denominator if observed else None,
        denominator=denominator,
        effective_share=0.8,
        **fields,
    )


def evaluate(
    case: str, fields: dict[str, Tensor], mask: Tensor, denominator: float = 7.0
) -> tuple[Tensor, dict[str, float], list[Tensor]]:
    """Loss, statistics, and the gradients on `LEAVES`."""
    leaves = {key: fields[key].clone().requires_grad_() for key in LEAVES}
    loss, statistics = loss_of(case)(token_batch(case, {**fields, **leaves}, mask, denominator))
    gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    filled = [
        torch.zeros_like(leaf) if g is None else g for g, leaf in zip(gradients, leaves.values(), strict=True)
    ]
    return loss.detach(), statistics, filled


# ---------------------------------------------------------------------- surrogates
# A loss with a stop-gradient has another slope than its value. What its docstring claims is the slope of a function in
# which the detached parts are numbers; those functions are written out here a second time, token by token.

Fields = dict[str, list[float]]
Surrogate = Callable[[Fields, list[int], dict[str, Any]], Callable[[list[float]], float]]


def _segments(fields: Fields, trained: list[int], key: str) -> dict[float, list[int]]:
    groups: dict[float, list[int]] = {}
    for t in trained:
        groups.setdefault(fields[key][t], []).append(t)
    return groups


def _clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def _gspo(f: Fields, trained: list[int], o: dict[str, Any]) -> Callable[[list[float]], float]:
    low, high = 1 - o.get("clip_low", 3e-4), 1 + o.get("clip_high", 4e-4)
    frozen = {}
    for tokens in _segments(f, trained, f"{o.get('level', 'sequence')}_ids").values():
        mean = sum(f["logprobs"][t] - f["proximal_logprobs"][t] for t in tokens) / len(tokens)
        frozen |= dict.fromkeys(tokens, mean)

    def loss(logprobs: list[float]) -> float:
        total = 0.0
        for t in trained:
            a, s = f["advantages"][t], math.exp(frozen[t] + logprobs[t] - f["logprobs"][t])
            total += f["weights"][t] * max(-a * s, -a * _clip(s, low, high))
        return total

    return loss


def _tbpo(f: Fields, trained: list[int], o: dict[str, Any]) -> Callable[[list[float]], float]:
    low, high = 1 - o["clip_low"], 1 + o["clip_high"]
    mean, kept = {}, set()
    for tokens in _segments(f, trained, "sequence_ids").values():
        m = sum(f["logprobs"][t] - f["proximal_logprobs"][t] for t in tokens) / len(tokens)
        v = sum(f["proximal_logprobs"][t] - f["behaviour_logprobs"][t] for t in tokens) / len(tokens)
        mean |= dict.fromkeys(tokens, m)
        if o["mismatch_low"] <= math.exp(v) <= o["mismatch_high"]:
            kept |= set(tokens)

    def loss(logprobs: list[float]) -> float:
        total = 0.0
        for t in kept:
            a, s = f["advantages"][t], math.exp(mean[t] + logprobs[t] - f["logprobs"][t])
            bounded = -a * _clip(s, low, high)
            total += f["weights"][t] * (max(-a * s, bounded) if a >= 0 else bounded)
        return total

    return loss


def _cispo(f: Fields, trained: list[int], o: dict[str, Any]) -> Callable[[list[float]], float]:
    low, high = 1 - o.get("clip_low", 1.0), 1 + o.get("clip_high", 0.28)
    r = {t: _clip(math.exp(f["logprobs"][t] - f["proximal_logprobs"][t]), low, high) for t in trained}
    return lambda logprobs: -sum(f["weights"][t] * r[t] * f["advantages"][t] * logprobs[t] for t in trained)


def _sao(f: Fields, trained: list[int], o: dict[str, Any]) -> Callable[[list[float]], float]:
    x = {t: math.exp(f["logprobs"][t] - f["behaviour_logprobs"][t]) for t in trained}
    kept = [t for t in trained if 1 - o.get("clip_low", 0.3) < x[t] < 1 + o.get("clip_high", 5.0)]
    return lambda logprobs: -sum(f["weights"][t] * x[t] * f["advantages"][t] * logprobs[t] for t in kept)


def _p3o(f: Fields, trained: list[int], o: dict[str, Any]) -> Callable[[list[float]], float]:
    x = {t: min(math.exp(f["logprobs"][t] - f["behaviour_logprobs"][t]), 0.8) for t in trained}

    def loss(logprobs: list[float]) -> float:
        total = 0.0
        for t in trained:
            d = f["behaviour_logprobs"][t] - logprobs[t]
            k3 = math.exp(d) - d - 1
            total += f["weights"][t] * (-x[t] * f["advantages"][t] * logprobs[t] + 0.2 * k3)
        return total

    return loss


def _appo(f: Fields, trained: list[int], o: dict[str, Any]) -> Callable[[list[float]], float]:
    c, half_life, width = o.get("dual_clip", 3.0), o.get("half_life", 64.0), o.get("future_clip", 0.2)
    d = {t: f["logprobs"][t] - f["proximal_logprobs"][t] for t in trained}
    advantage, kept = {}, set()
    for tokens in _segments(f, trained, "sequence_ids").values():
        for t in tokens:
            ahead = 0.0
            for k in tokens:
                gap = f["positions"][k] - f["positions"][t]
                if gap >= 0 and d[k] <= math.log(c):
                    ahead += 0.5 ** (gap / half_life) * d[k]
            advantage[t] = f["advantages"][t] * (1 + _clip(math.exp(ahead), 1, 1 + width))
        if sum(f["advantages"][t] < 0 and math.exp(d[t]) > c for t in tokens) < 2:
            kept |= set(tokens)

    def loss(logprobs: list[float]) -> float:
        total = 0.0
        for t in kept:
            a, r = advantage[t], math.exp(logprobs[t] - f["proximal_logprobs"][t])
            value = max(-a * r, -a * _clip(r, 0.8 - f["lower_clip_extra"][t], 1.28))
            total += f["weights"][t] * (min(value, -a * c) if a < 0 else value)
        return total

    return loss


SURROGATES: dict[str, Surrogate] = {
    "gspo": _gspo,
    "tbpo": _tbpo,
    "cispo": _cispo,
    "sao": _sao,
    "p3o": _p3o,
    "appo": _appo,
}
