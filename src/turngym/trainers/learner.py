"""The learner: scored trees in, better weights out.

One `update` takes the rows of a batch, cuts them into mini-batches (optimiser steps) and those into micro-batches
(forwards under a token budget). Denominators are counted over the mini-batch before it is cut, so micro-batching
changes memory and nothing else. Tokens that were not sampled never reach the loss.

Full weights or a LoRA adapter (PEFT); the policy that samples holds the same model object, so there is nothing to
synchronise on one machine but its caches (`LocalPolicy.weights_changed`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from turngym.errors import ConfigError, HarnessFault
from turngym.seeding import generator
from turngym.trainers.config import LossConfig, OptimiserConfig, PolicyConfig
from turngym.trainers.layouts import Part, get_layout
from turngym.trainers.losses import (
    Aggregation,
    TokenBatch,
    check_inputs,
    entropy_of,
    get_loss,
    get_penalty,
    merge,
)
from turngym.trainers.rows import Row, rows_of, signal_only, trained_paths
from turngym.tree import Tree


def with_adapter(model: Any, config: PolicyConfig, *, seed: int) -> Any:
    """`model` with a fresh LoRA adapter on all its linear layers, or as it is where `lora_rank` is 0."""
    if config.lora_rank == 0:
        return model
    from peft import LoraConfig, get_peft_model  # noqa: PLC0415 - only where it is used

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed % (1 << 31))
        return get_peft_model(
            model,
            LoraConfig(
                r=config.lora_rank,
                lora_alpha=config.lora_alpha,  # PEFT divides by the rank
                target_modules="all-linear",
                task_type="CAUSAL_LM",
            ),
        )


def checkpoint_activations(model: Any) -> None:
    """Let `model` compute the activations of each layer again in the backward instead of keeping them."""
    # transformers 5 renamed the method
    name = "activation_checkpointing_enable"
    enable = getattr(model, name, None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})


_FIELDS = ("behaviour_logprobs", "advantages", "lower_clip_extra")
"""What this learner puts into a `TokenBatch`, beside what is always there. A loss that needs more is refused."""


class Learner:
    """Updates one model.

    Args:
        model: a Hugging Face causal language model, or a PEFT one; parameters that require a gradient learn.
        loss: what is minimised.
        optimiser: how.
        renderer_hash: of the policy's renderer; trees of another one are refused.
        pad_id: id to pad rows with; any will do, since causal attention never looks right of a token.
        temperature: that the actions were sampled with; log-probs are of the same distribution.
        updates: how many there will be, for the schedule.
        seed: of the shuffles into mini-batches.
    """

    def __init__(
        self,
        model: Any,
        *,
        loss: LossConfig,
        optimiser: OptimiserConfig,
        renderer_hash: str,
        pad_id: int = 0,
        temperature: float = 1.0,
        updates: int = 1,
        seed: int = 0,
    ) -> None:
        if temperature <= 0:
            raise ConfigError(
                "training needs a sampling temperature above 0: greedy actions have no gradient"
            )
        self.model = model
        self.renderer_hash, self.temperature, self.seed = renderer_hash, temperature, seed
        self.loss_config, self.config = loss, optimiser
        self.loss = get_loss(loss.name, **loss.options)
        check_inputs(self.loss, _FIELDS)
        self.aggregation = Aggregation(name=loss.aggregation, length=loss.horizon or None)
        self.penalties = [
            (coefficient, get_penalty(name))
            for name, coefficient in (("entropy_bonus", loss.entropy), ("kl_penalty", loss.kl))
            if coefficient
        ]
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.optimiser = torch.optim.AdamW(
            self.parameters,
            lr=optimiser.lr,
            betas=(optimiser.beta1, optimiser.beta2),
            weight_decay=optimiser.weight_decay,
        )
        self.updates, self.updates_done = updates, 0
        self._reference = _reference(model) if loss.kl else None
        self.layout = get_layout(optimiser.layout, model, pad_id=pad_id)

    def update(self, trees: Sequence[Tree]) -> dict[str, float]:
        """One cycle over scored trees: `epochs` × `minibatches` optimiser steps.

        Returns:
            Statistics of the last epoch under `loss/*`, `ratio/*`, `clip/*`, `kl/*`, `entropy/*`, `tokens/*`,
            `learner/*`. Where no token has a signal nothing is updated and `learner/skipped` is 1.

        Raises:
            ConfigError: for trees of another renderer.
            HarnessFault: for a loss or gradient that is not finite; the weights are then unchanged by that step.
        """
        rows = rows_of(trees, renderer_hash=self.renderer_hash)
        # Rows without a signal count in denominators, whether or not they are spared the forward pass.
        tokens = sum(row.targets.size for row in rows)
        if not self.penalties:
            rows = signal_only(rows)
        lr = self.config.lr * learning_rate_factor(self.config, self.updates_done, self.updates)
        for group in self.optimiser.param_groups:
            group["lr"] = lr
        statistics = {
            "learner/lr": lr,
            "learner/rows": float(len(rows)),
            "learner/row_tokens": float(sum(row.ids.size for row in rows)),
            "learner/skipped": float(not rows),
        }
        if rows:
            statistics |= self._fit(rows, tokens, rollouts=sum(trained_paths(tree) for tree in trees))
        self.updates_done += 1
        return statistics

    def _fit(self, rows: Sequence[Row], tokens: int, rollouts: int) -> dict[str, float]:
        was_training = self.model.training
        self.model.train()
        try:
            rng = generator(self.seed, "update", self.updates_done)
            statistics: dict[str, float] = {}
            with_signal = sum(row.targets.size for row in rows)
            for _ in range(self.config.epochs):
                parts, norms = [], []
                for batch in _split(rows, self.config.minibatches, rng):
                    share = sum(row.targets.size for row in batch) / with_signal
                    denominator = self.aggregation.denominator(
                        tokens=tokens * share, rollouts=rollouts * len(batch) / len(rows)
                    )
                    part, norm = self._step(batch, denominator)
                    parts.append(part)
                    norms.append(norm)
                statistics = merge(parts)
                for name in [n for n in statistics if n.startswith("loss/")]:
                    statistics[name] /= len(parts)
                statistics["learner/grad_norm"] = float(np.mean(norms))
            return statistics
        finally:
            self.model.train(was_training)

    def _step(self, rows: Sequence[Row], denominator: float) -> tuple[dict[str, float], float]:
        """One optimiser step. Returns statistics and the gradient's norm before clipping."""
        self.optimiser.zero_grad(set_to_none=True)
        parts = []
        for part in self.layout.parts(rows, self.config.micro_tokens):
            with part.attention(self.model):
                loss, statistics = self._forward(part, denominator)
                if not torch.isfinite(loss):
                    raise HarnessFault(
                        f"the loss is {loss.item()} at update {self.updates_done}: nothing was changed"
                    )
                loss.backward()  # type: ignore[no-untyped-call]
            parts.append(statistics)
        limit = self.config.grad_clip or math.inf
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, limit))
        if not math.isfinite(norm):
            raise HarnessFault(
                f"the gradient's norm is {norm} at update {self.updates_done}: nothing was changed"
            )
        self.optimiser.step()
        return merge(parts), norm

    def _forward(self, part: Part, denominator: float) -> tuple[Tensor, dict[str, float]]:
        device, rows = self.parameters[0].device, part.rows
        logits = self._target_logits(self.model, part)
        targets = torch.from_numpy(np.concatenate([r.ids[r.targets] for r in rows]).astype(np.int64))
        targets = targets.to(device)
        logprobs = _logprobs(logits, targets)
        reference = None
        if self._reference is not None:
            with torch.no_grad(), self._reference() as model, part.attention(model):
                reference = _logprobs(self._target_logits(model, part), targets)

        def column(name: str) -> Tensor:
            return torch.from_numpy(np.concatenate([getattr(r, name) for r in rows])).to(device)

        batch = TokenBatch(
            logprobs=logprobs,
            loss_mask=torch.ones_like(logprobs, dtype=torch.bool),
            denominator=denominator,
            behaviour_logprobs=column("behaviour_logprobs"),
            advantages=column("advantages"),
            lower_clip_extra=column("lower_clip_extra"),
            reference_logprobs=reference,
            entropy=entropy_of(logits) if self.loss_config.entropy else None,
        )
        loss, statistics = self.loss(batch)
        for coefficient, penalty in self.penalties:
            term, more = penalty(batch)
            loss = loss + coefficient * term
            statistics |= more
        return loss, statistics

    def _target_logits(self, model: Any, part: Part) -> Tensor:
        """`(M, V)` logits, float32 or wider, that predict the trained tokens, divided by the sampling temperature."""
        logits = part.logits(model)
        return logits.to(torch.promote_types(logits.dtype, torch.float32)) / self.temperature

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds beside the weights."""
        return {
            "optimiser": self.optimiser.state_dict(),
            "updates_done": self.updates_done,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.optimiser.load_state_dict(state["optimiser"])
        self.updates_done = state["updates_done"]


def _logprobs(logits: Tensor, targets: Tensor) -> Tensor:
    """`(M,)` log-probs of `targets` `(M,)` under `logits` `(M, V)`."""
    return torch.log_softmax(logits, -1).gather(1, targets[:, None]).squeeze(1)


def _reference(model: Any) -> Callable[[], AbstractContextManager[Any]]:
    """The policy before training, to be entered: the model with its adapter switched off, or a frozen copy."""
    if hasattr(model, "disable_adapter"):
        return partial(_without_adapter, model)
    return partial(nullcontext, copy.deepcopy(model).eval().requires_grad_(False))


@contextmanager
def _without_adapter(model: Any) -> Iterator[Any]:
    with model.disable_adapter():
        yield model


def learning_rate_factor(config: OptimiserConfig, done: int, updates: int) -> float:
    """Factor of the learning rate for the update after `done` updates."""
    if done < config.warmup:
        return (done + 1) / (config.warmup + 1)
    left = max(0.0, 1 - (done - config.warmup) / max(1, updates - config.warmup))
    match config.schedule:
        case "constant":
            return 1.0
        case "linear":
            return left
        case "cosine":
            return 0.5 * (1 - math.cos(math.pi * left))


def _split(rows: Sequence[Row], parts: int, rng: np.random.Generator) -> list[list[Row]]:
    """Shuffled mini-batches of about equal numbers of rows; fewer where there are fewer rows."""
    order = rng.permutation(len(rows)) if parts > 1 else np.arange(len(rows))
    return [[rows[i] for i in chunk] for chunk in np.array_split(order, min(parts, len(rows)))]
