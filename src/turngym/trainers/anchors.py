"""The other policies that a loss compares with: where training began, an average of the weights, a teacher.

The one idea: each is a context in which a model answers. `with anchor() as model:` gives a model whose log-probs
are those of that policy, and leaves the learner's own as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from turngym.errors import ConfigError

Anchor = Callable[[], AbstractContextManager[Any]]
"""Enter it for a model of transformers; without gradients."""


class Start:
    """The policy as it was when this was made: a copy of the weights that learn.

    Args:
        model: that learns.
        parameters: its weights that do.
    """

    def __init__(self, model: Any, parameters: Sequence[Tensor]) -> None:
        self._model, self._parameters = model, parameters
        self._kept = [p.detach().clone() for p in parameters]

    def __call__(self) -> AbstractContextManager[Any]:
        """The model with the weights of then."""
        return _with_weights(self._model, self._parameters, self._kept)

    def state(self) -> list[Tensor]:
        """For a checkpoint."""
        return self._kept

    def load(self, state: Sequence[Tensor]) -> None:
        """From a checkpoint."""
        for kept, saved in zip(self._kept, state, strict=True):
            kept.copy_(saved)


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

    def __call__(self) -> AbstractContextManager[Any]:
        """The model with averaged weights."""
        averages = [total / self._weight for total in self._sums]
        return _with_weights(self._model, self._parameters, averages)

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"sums": self._sums, "weight": self._weight}

    def load(self, state: dict[str, Any]) -> None:
        """From a checkpoint."""
        self._weight = state["weight"]
        for total, saved in zip(self._sums, state["sums"], strict=True):
            total.copy_(saved)


@contextmanager
def evaluating(model: Any) -> Iterator[Any]:
    """The model without dropout, in the mode that it was in afterwards."""
    was_training = model.training
    model.eval()
    try:
        yield model
    finally:
        model.train(was_training)


@contextmanager
def _with_weights(model: Any, parameters: Sequence[Tensor], weights: Sequence[Tensor]) -> Iterator[Any]:
    if any(isinstance(p, DTensor) for p in parameters):
        exchange = partial(_copy_shards, model, parameters)
        mine = [p.data.clone() for p in parameters]
    else:
        exchange = partial(_point_to, parameters)
        mine = [p.data for p in parameters]
    try:
        exchange(weights)
        with evaluating(model):
            yield model
    finally:
        exchange(mine)


def _point_to(parameters: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
    for parameter, other in zip(parameters, weights, strict=True):
        parameter.data = other


def _copy_shards(model: Any, parameters: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
    """FSDP2 gathers from memory that it remembers, and not at all where it has gathered already."""
    for parameter, other in zip(parameters, weights, strict=True):
        parameter.data.copy_(other)
    for module in model.modules():
        if hasattr(module, "reshard"):
            module.reshard()
