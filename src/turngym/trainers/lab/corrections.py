"""Losses and corrections on trees that another policy sampled, against the exact gradient of the current one.

The one idea: the gradient of a loss by the log-prob of each action says what it makes of that action; projected on
∇ log π and averaged over trees it is an estimate like any other, and `estimates.judge` holds it against the truth. The
advantages are those of `rloo` everywhere, which is unbiased for the policy that sampled, so what is measured is what
became of the mismatch.

The sampling policy is one of `BEHAVIOURS`: some updates old, quantised, or cut off below its likeliest actions. The
recorded log-probs are its own. Needs torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from turngym.trainers.credit import get_rule
from turngym.trainers.lab.estimates import BUDGET, Quality, Samples, judge, pooled, samples_of
from turngym.trainers.lab.forest import Forest, sample
from turngym.trainers.lab.mdps import PROBLEMS, Array, IntArray, Mdp, exact
from turngym.trainers.lab.study import LEAST, ROOTS, SAMPLES, chosen_problems, in_processes
from turngym.trainers.losses import TokenBatch, corrected, effective_share, get_correction, get_loss

LEARNING_RATE = 0.5
"""Of the exact gradient steps between an old policy and the current one."""
GRID = 0.5
"""Distance of the logits that a quantised policy can hold."""
TOP = 0.6
"""A cut policy never takes actions below this share of the likeliest one's chance."""


def _older(mdp: Mdp, updates: int) -> Array:
    """Logits from which so many exact gradient steps lead to about the current ones: the steps are taken back."""
    logits = mdp.logits
    for _ in range(updates):
        logits = logits - LEARNING_RATE * exact(mdp.with_logits(logits)).gradient.reshape(logits.shape)
    return logits


def _cut(mdp: Mdp) -> Array:
    below = mdp.logits - mdp.logits.max(1, keepdims=True) < math.log(TOP)
    return np.where(below, -np.inf, mdp.logits)


BEHAVIOURS: Mapping[str, Callable[[Mdp], Array]] = MappingProxyType(
    {
        "4 updates old": lambda mdp: _older(mdp, 4),
        "16 updates old": lambda mdp: _older(mdp, 16),
        "quantised": lambda mdp: np.round(mdp.logits / GRID) * GRID,
        "cut": _cut,
    }
)
"""Logits `(R, A)` of the policy that samples, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """What is done about the mismatch."""

    loss: str = "ppo"
    "name of a loss"
    options: Mapping[str, Any] = field(default_factory=dict)
    "of the loss"
    correction: str | None = None
    "name of a correction, if any; the current policy is then the proximal one, so the loss's own ratio is 1"
    correction_options: Mapping[str, Any] = field(default_factory=dict)
    blind: bool = False
    "take the policy that sampled for the current one"
    over_batch: bool = False
    "a weight depends on all trees of an update"


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "nothing": Method(loss="pg", blind=True),
        "pg": Method(loss="pg"),
        "ppo": Method(),
        "cispo": Method(loss="cispo"),
        "sao": Method(loss="sao"),
        "p3o": Method(loss="p3o", over_batch=True),
        "token_tis": Method(correction="token_tis"),
        "icepop": Method(correction="icepop"),
        "sequence_tis": Method(correction="sequence_tis"),
        "sequence_tis without a cap": Method(correction="sequence_tis", correction_options={"cap": 1e8}),
        "mis": Method(correction="mis"),
        "geometric_rejection": Method(
            correction="geometric_rejection", correction_options={"low": 0.8, "high": 1.25}
        ),
        "ais": Method(correction="ais", over_batch=True),
        "m2po": Method(correction="m2po", over_batch=True),
    }
)
"""Every method by its name. Where a cap or a band is not given, it is the default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrected:
    """What came out of a method on the trees of a behaviour in a problem."""

    behaviour: str
    method: str
    problem: str
    quality: Quality
    kept: float
    "effective share of what the actions with an advantage are weighed with, (Σw)² / (n Σw²); a penalty's part is in it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """N actions of U trees, one token each."""

    tree: IntArray
    "`(N,)`"
    sequence: IntArray
    "`(N,)` path, unique over the trees"
    pair: IntArray
    "`(N,)` state · A + action"
    advantage: Array
    "`(N,)`"

    def of(self, trees: IntArray) -> Tokens:
        """Those of some trees, one after the other; trees and paths are numbered anew."""
        starts = np.searchsorted(self.tree, np.arange(int(self.tree[-1]) + 2))
        spans = [np.arange(starts[u], starts[u + 1]) for u in trees]
        index = np.concatenate(spans)
        tree = np.repeat(np.arange(len(trees)), [len(span) for span in spans])
        return Tokens(
            tree=tree,
            sequence=self.sequence[index] + tree * (int(self.sequence.max()) + 1),
            pair=self.pair[index],
            advantage=self.advantage[index],
        )


def run_corrections(
    *,
    samples: int = SAMPLES,
    seed: int = 0,
    problems: Sequence[str] | None = None,
    workers: int | None = None,
    on_done: Callable[[str], None] | None = None,
) -> list[Corrected]:
    """Every method on the trees of every behaviour in every problem; arguments and errors as `study.run`.

    A tenth of the trees is drawn for each; methods that look at all trees of an update see a fifth of these.
    """
    chosen = chosen_problems(problems, samples)
    found = in_processes(_study, chosen, (max(samples // 10, LEAST), seed), workers=workers, on_done=on_done)
    return [result for results in found for result in results]


def _study(problem: str, samples: int, seed: int) -> list[Corrected]:
    mdp, out = PROBLEMS[problem], []
    for place, (behaviour, logits_of) in enumerate(BEHAVIOURS.items()):
        start = [seed, 1 + place, list(PROBLEMS).index(problem)]
        drawn = sample(mdp.with_logits(logits_of(mdp)), "group", samples, roots=ROOTS, seed=start)
        head = drawn.head(samples // 5).spread()
        for name, method in METHODS.items():
            found, kept = off_policy(method, head if method.over_batch else drawn, mdp)
            quality = judge(found, exact(mdp), 1.0)
            out.append(
                Corrected(behaviour=behaviour, method=name, problem=problem, quality=quality, kept=kept)
            )
    return out


def off_policy(method: Method, forest: Forest, mdp: Mdp) -> tuple[Samples, float]:
    """Estimates for the policy of `mdp` from trees that `forest.mdp` sampled, and the share that the weights keep."""
    tokens = tokens_of(forest)
    with np.errstate(divide="ignore"):  # of actions that one of the two never takes
        current, behaviour = np.log(mdp.policy.ravel()), np.log(forest.mdp.policy.ravel())
    target = replace(forest, mdp=mdp)
    if not method.over_batch:
        coefficient = _coefficients(method, tokens, current, behaviour)
        found = samples_of(target, tokens.tree, tokens.pair, coefficient)
        return found, _kept(coefficient, tokens, forest.count[tokens.tree])
    size = max(1, round(BUDGET / float(forest.steps.mean())))
    whole = [np.arange(i, i + size) for i in range(0, len(forest.trees) - size + 1, size)]
    parts = [_coefficients(method, tokens.of(batch), current, behaviour) for batch in whole]
    coefficient = np.concatenate(parts)
    used = target.head(len(whole) * size)
    first = slice(len(coefficient))
    found = samples_of(used, tokens.tree[first], tokens.pair[first], coefficient)
    kept = _kept(coefficient, tokens.of(np.concatenate(whole)), np.ones(len(coefficient), np.int64))
    return pooled(found, size), kept


def tokens_of(forest: Forest) -> Tokens:
    """The actions of a forest of groups, tree after tree, with their `rloo` advantages."""
    credits = get_rule("rloo")(forest.trees)
    nodes = [np.flatnonzero(taken >= 0) for taken in forest.taken]
    first = [
        tree.columns()[0][index] == 0 for tree, index in zip(forest.trees, nodes, strict=True)
    ]  # a path's first action is a child of the root
    return Tokens(
        tree=np.repeat(np.arange(len(nodes)), [len(index) for index in nodes]),
        sequence=np.concatenate(first).cumsum() - 1,
        pair=np.concatenate([taken[index] for taken, index in zip(forest.taken, nodes, strict=True)]),
        advantage=np.array(
            [credit.advantages[int(i)] for credit, index in zip(credits, nodes, strict=True) for i in index]
        ),
    )


def _coefficients(method: Method, tokens: Tokens, current: Array, behaviour: Array) -> Array:
    """`(N,)` what multiplies ∇ log π of each action: minus the gradient of the summed loss by its log-prob."""
    logprobs = torch.tensor(current[tokens.pair], requires_grad=True)
    recorded = torch.tensor((current if method.blind else behaviour)[tokens.pair])
    batch = TokenBatch(
        logprobs=logprobs,
        loss_mask=torch.ones(len(tokens.pair), dtype=torch.bool),
        denominator=1.0,
        behaviour_logprobs=recorded,
        proximal_logprobs=logprobs.detach() if method.correction else None,
        advantages=torch.tensor(tokens.advantage),
        sequence_ids=torch.tensor(tokens.sequence),
        effective_share=effective_share(logprobs - recorded),
    )
    if method.correction:
        correction = get_correction(method.correction, loss=method.loss, **method.correction_options)
        batch, _ = corrected(batch, correction)
    loss, _ = get_loss(method.loss, **method.options)(batch)
    (gradient,) = torch.autograd.grad(loss, logprobs)
    return -gradient.numpy()


def _kept(coefficient: Array, tokens: Tokens, count: IntArray) -> float:
    """Effective share of coefficient / advantage over all actions that were drawn."""
    told = tokens.advantage != 0
    weight, count = coefficient[told] / tokens.advantage[told], count[told]
    square = float(count @ weight**2)
    return float(count @ weight) ** 2 / (float(count.sum()) * square) if square else 0.0
