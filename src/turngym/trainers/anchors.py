"""The other policies that a loss compares with: where training began, an average of the weights, a teacher.

The one idea: each is a context in which a model answers. `with anchor() as model:` gives a model whose log-probs
are those of that policy, and leaves the learner's own as it was.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from turngym.errors import ConfigError

Anchor = Callable[[], AbstractContextManager[Any]]
"""Enter it for a model of transformers; without gradients."""


def initial(model: Any) -> Anchor:
    """The policy as it is now: the model with its adapter switched off, or a frozen copy."""
    if hasattr(model, "disable_adapter"):
        return partial(_without_adapter, model)
    return frozen(copy.deepcopy(model))


def frozen(model: Any) -> Anchor:
    """A model that is never trained."""
    return partial(nullcontext, model.eval().requires_grad_(False))


def teacher(spec: str, model: Any) -> Anchor:
    """The policy `spec` as a teacher of `model`.

    Raises:
        ConfigError: where it is not a model in this process, or one of another vocabulary.
    """
    from turngym.agents.policies import load_policy  # noqa: PLC0415 - only where there is a teacher

    loaded = getattr(load_policy(spec), "model", None)
    if loaded is None:
        raise ConfigError(f"loss.teacher: {spec!r} has no weights here: a teacher is a local: policy")
    mine, theirs = (m.get_input_embeddings().weight.shape[0] for m in (model, loaded))
    if mine != theirs:
        raise ConfigError(
            f"loss.teacher: {spec!r} has {theirs} tokens and the policy {mine}: "
            "a teacher grades the policy's own tokens, so both need one tokenizer"
        )
    return frozen(loaded.to(next(model.parameters()).device))


class Average:
    """A running average of the weights that learn: the anchor of PPO-EWMA (Hilton et al., arXiv:2110.00641).

        a ← decay · a + (1 − decay) · θ after each optimiser step, over 1 − decayⁿ after n of them

    Args:
        model: that learns.
        parameters: its weights that do.
        decay: from 0 (the newest weights) to below 1.
    """

    def __init__(self, model: Any, parameters: Sequence[Tensor], decay: float) -> None:
        self._model, self._parameters, self._decay = model, parameters, decay
        self._sums = [torch.zeros_like(p) for p in parameters]
        self._weight = 0.0
        self.step()

    @torch.no_grad()
    def step(self) -> None:
        """Take in the weights as they are."""
        self._weight = self._decay * self._weight + (1 - self._decay)
        for total, parameter in zip(self._sums, self._parameters, strict=True):
            total.lerp_(parameter, 1 - self._decay)

    @contextmanager
    def __call__(self) -> Iterator[Any]:
        """The model with averaged weights."""
        mine = [p.data for p in self._parameters]
        try:
            for parameter, total in zip(self._parameters, self._sums, strict=True):
                parameter.data = total / self._weight
            yield self._model
        finally:
            for parameter, data in zip(self._parameters, mine, strict=True):
                parameter.data = data

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"sums": self._sums, "weight": self._weight}

    def load(self, state: dict[str, Any]) -> None:
        """From a checkpoint."""
        self._weight = state["weight"]
        for total, saved in zip(self._sums, state["sums"], strict=True):
            total.copy_(saved)


@contextmanager
def _without_adapter(model: Any) -> Iterator[Any]:
    with model.disable_adapter():
        yield model
