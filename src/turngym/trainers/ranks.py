"""Processes that train one model together: each has trees of its own, all have the same weights after every step.

The one idea: denominators are counted over all ranks, so the gradients of the ranks *add up* to that of the whole batch,
whatever each of them holds; nothing is averaged. Replicated weights have their gradients summed here; sharded ones
(FSDP2, `torch.distributed.fsdp.fully_shard`) sum theirs in the backward, which needs every rank to run as many
forwards as the busiest.

Start it like any program of torch.distributed: `torchrun --nproc-per-node 2 …`, `init_process_group`, shard or not,
then make a `Learner`. One process needs nothing of this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

T = TypeVar("T")


class Ranks:
    """The process group as it is when a learner is made.

    Args:
        model: that learns; sharded modules are told to sum their gradients.
        parameters: of it that learn.
    """

    def __init__(self, model: Any, parameters: Sequence[Tensor]) -> None:
        together = dist.is_available() and dist.is_initialized()
        self.size = dist.get_world_size() if together else 1
        self.rank = dist.get_rank() if together else 0
        self.sharded = any(isinstance(p, DTensor) for p in parameters)
        self._parameters = parameters
        for module in model.modules():
            if hasattr(module, "set_gradient_divide_factor"):
                module.set_gradient_divide_factor(1.0)

    def gather(self, mine: T) -> list[T]:
        """What each rank has, in the order of the ranks."""
        if self.size == 1:
            return [mine]
        everyone: list[Any] = [None] * self.size
        dist.all_gather_object(everyone, mine)
        return everyone

    def total(self, mine: float) -> float:
        """The sum over the ranks."""
        return sum(self.gather(mine))

    def padded(self, parts: Sequence[T]) -> list[T | None]:
        """The parts, and None as often as another rank has more of them, where that matters."""
        most = max(self.gather(len(parts))) if self.sharded else len(parts)
        return [*parts, *[None] * (most - len(parts))]

    def sum_gradients(self) -> None:
        """Make the gradient of every parameter the sum over the ranks."""
        if self.size == 1 or self.sharded:
            return
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)


def whole(tensor: Tensor) -> Tensor:
    """A tensor that may be sharded, in one piece."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
