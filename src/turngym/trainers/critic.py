"""A critic: what it guesses is the baseline of rules without a group, and it learns from how the guesses turned out.

    reading = critic.read(trees)         before credit: V of every state, or before every sampled token
    apply(rule, trees)
    critic.fit(trees, reading)           towards λ-returns; so no value has seen the rollouts that it judges

V stands on the last hidden state of a decoder: that of the last token before an action's first one is the value of the
state in which the action is taken. Two kinds:

    probe     a head on the policy's own hidden states. It takes them as they are, and no gradient of it reaches the
              policy; its forward is all that it costs.
    network   a copy of the policy, made when the run starts, with a head, and an optimiser for both. Twice the memory,
              and free to see what the policy does not look at. SAO freezes its attention, without which the critic's
              gradient grew and the result fell.

What learns in the copy is what learns in the policy: all its weights, or its adapter. A head that shares and changes the
policy's trunk is left out: its loss would pull on the policy with a scale that belongs to the rewards.

Sources: Schulman et al. (arXiv:1506.02438); SAO, for λ = 1, two updates a step, frozen attention and a warm-up.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from turngym.errors import ConfigError, HarnessFault
from turngym.trainers.config import CriticConfig, TrainConfig
from turngym.trainers.credit import NEEDS_VALUES, ReadsValues, options_of
from turngym.trainers.credit.base import Array
from turngym.trainers.credit.tokens import token_returns
from turngym.trainers.credit.turns import state_returns
from turngym.trainers.layouts import Layout
from turngym.trainers.ranks import Ranks, whole
from turngym.trainers.rows import Row
from turngym.trainers.tree_attention import unwrapped
from turngym.trainers.value_rows import value_rows, write_values
from turngym.tree import Tree


@dataclass(frozen=True, slots=True)
class Reading:
    """What a critic said about some trees, kept until it has learnt from how they ended."""

    rows: list[list[Row]]
    "of each tree; `targets` are the tokens behind the places where it spoke"
    values: dict[int, Array]
    "`(M,)` of each row, by `id(row)`"
    hidden: list[tuple[Sequence[Row], Tensor]]
    "rows of each forward and `(M, H)` what a probe saw there; empty for a network, which looks again"


def make_critic(config: TrainConfig, model: Any, *, layout: Layout, seed: int) -> Critic | None:
    """The critic that the credit rule of a run needs, or None where it needs none.

    Args:
        config: of the run.
        model: the policy's.
        layout: of the learner's forwards.
        seed: of the first weights of a hidden layer.

    Raises:
        ConfigError: for a rule that needs a critic where there is none, a critic that the rule does not read, or one
            that can't be made for this model.
    """
    rule, kind = config.credit.rule, config.critic.kind
    where = NEEDS_VALUES.get(rule)
    if where is None:
        if kind:
            raise ConfigError(
                f"credit rule {rule} reads no critic: leave critic.kind = {kind!r} out, or use {', '.join(NEEDS_VALUES)}"
            )
        return None
    if not kind:
        raise ConfigError(f'credit rule {rule} needs a critic: set critic.kind = "probe" (or "network")')
    options = options_of(rule, config.credit.options)
    return Critic(
        model,
        config.critic,
        where=where,
        gamma=options.get("gamma", 1.0),
        truncated=options["truncated"],
        layout=layout,
        micro_tokens=config.optimiser.micro_tokens,
        seed=seed,
    )


class Critic:
    """Guesses returns, and learns to.

    Args:
        model: the policy's: a Hugging Face causal language model, or a PEFT one.
        config: see `CriticConfig`.
        where: see `ReadsValues`.
        gamma: of the returns: a turn, or a token where it speaks before tokens.
        truncated: what the credit rule does with paths that a budget cut.
        layout: of the forwards; the model must be of the kind that it was made for.
        micro_tokens: tokens in one forward.
        seed: of the first weights of a hidden layer.

    Raises:
        ConfigError: for a model whose output layer can't be left out; for a `network` of sharded weights, which have no
            copy, or without anything that learns.
    """

    def __init__(
        self,
        model: Any,
        config: CriticConfig,
        *,
        where: ReadsValues,
        gamma: float,
        truncated: Any,
        layout: Layout,
        micro_tokens: int,
        seed: int = 0,
    ) -> None:
        self.config, self.where, self.layout, self.micro_tokens = config, where, layout, micro_tokens
        self.returns = {"gamma": gamma, "lam": config.lam, "truncated": truncated}
        self.probing = config.kind == "probe"
        self.trunk = model if self.probing else _own(model)
        weight = unwrapped(model).get_input_embeddings().weight
        self.device, self.dtype = weight.device, torch.promote_types(weight.dtype, torch.float32)
        width = self._width()
        self._standard = _Standard(width)
        self.head = nn.Sequential(self._standard, *_layers(width, config.hidden, seed)).to(
            self.device, self.dtype
        )
        own = {} if self.probing else {n: p for n, p in self.trunk.named_parameters() if p.requires_grad}
        head = self.head.state_dict(prefix="head.", keep_vars=True)
        self._saved: dict[str, Tensor] = {**own, **head}
        if config.freeze_attention:
            _freeze_attention(self.trunk)
        self.parameters = [p for p in self._saved.values() if p.requires_grad]
        self.optimiser = torch.optim.AdamW(self.parameters, lr=config.lr, weight_decay=0.0)
        self._ranks = Ranks(self.head, self.parameters)
        self._trunk_ranks = Ranks(self.trunk, list(self.trunk.parameters()))

    def read(self, trees: Sequence[Tree]) -> Reading:
        """Write what the critic guesses into `trees`: `metrics["value"]` of states, or `values` of actions.

        Raises:
            TreeError: for a state at the very start of a context, where nothing was seen yet.
        """
        rows = [value_rows(tree, self.where) for tree in trees]
        values: dict[int, Array] = {}
        with torch.no_grad(), _mode(self.trunk, training=False):
            hidden = list(self._hidden([row for own in rows for row in own]))
            self._standard.learn([seen for _, seen in hidden], self._ranks)
            for part, seen in hidden:
                said = torch.split(self._value(seen), [row.targets.size for row in part])
                values |= {id(row): v.double().cpu().numpy() for row, v in zip(part, said, strict=True)}
        for tree, own in zip(trees, rows, strict=True):
            for row in own:
                write_values(tree, row, values[id(row)], self.where)
        return Reading(rows, values, hidden if self.probing else [])

    def fit(self, trees: Sequence[Tree], reading: Reading) -> dict[str, float]:
        """Learn from how `trees` ended: `epochs` optimiser steps over all of them.

        Args:
            trees: those of the reading, with their values.
            reading: what `read` gave.

        Returns:
            `critic/*`; without `critic/explained_variance` where all returns are equal.

        Raises:
            CreditError: for a path without a stop or a reward.
            HarnessFault: for a gradient that is not finite; the weights are then unchanged by that step.
        """
        targets = {
            id(row): target
            for tree, own in zip(trees, reading.rows, strict=True)
            for row, target in zip(own, self._targets(tree, own), strict=True)
        }
        rows = [row for own in reading.rows for row in own]
        values, wanted = (
            _joined(self._ranks.gather(_joined([column[id(row)] for row in rows])))
            for column in (reading.values, targets)
        )
        known = np.isfinite(wanted)
        statistics = {"critic/targets": float(known.sum())} | _explained(values[known], wanted[known])
        if not known.any():
            return statistics
        with _mode(self.trunk, training=not self.probing):
            for _ in range(self.config.epochs):
                loss, norm = self._step(reading, rows, targets, int(known.sum()))
        return statistics | {"critic/loss": loss, "critic/grad_norm": norm}

    def _step(
        self, reading: Reading, rows: Sequence[Row], targets: dict[int, Array], count: int
    ) -> tuple[float, float]:
        """One optimiser step. Returns the mean loss before it, and the norm of the gradient before clipping."""
        error = F.mse_loss if self.config.loss == "mse" else F.huber_loss
        self.optimiser.zero_grad(set_to_none=True)
        total = 0.0
        for part, seen in reading.hidden if self.probing else self._hidden(rows):
            target = torch.from_numpy(_joined([targets[id(row)] for row in part])).to(self.device, self.dtype)
            known = torch.isfinite(target)
            loss = error(self._value(seen)[known], target[known], reduction="sum") / count
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        self._ranks.sum_gradients()
        limit = self.config.grad_clip or math.inf
        norm = float(whole(nn.utils.clip_grad_norm_(self.parameters, limit)))
        if not math.isfinite(norm):
            raise HarnessFault(f"the norm of the critic's gradient is {norm}: nothing was changed")
        self.optimiser.step()
        return self._ranks.total(total), norm

    def _targets(self, tree: Tree, rows: Sequence[Row]) -> list[Array]:
        """`(M,)` the returns of each row; NaN where none is known."""
        if self.where == "states":
            returns = state_returns(tree, **self.returns)
            return [np.array([returns.get(int(node), math.nan) for node in row.nodes]) for row in rows]
        own, targets = token_returns(tree, **self.returns), []
        for row in rows:
            target = np.full(row.nodes.size, math.nan)  # a cut has no return of its own
            for node in own.keys() & set(row.nodes.tolist()):
                said = own[node][tree[node].loss_mask]
                target[np.flatnonzero(row.nodes == node)[: said.size]] = said
            targets.append(target)
        return targets

    def _hidden(self, rows: Sequence[Row]) -> Iterator[tuple[Sequence[Row], Tensor]]:
        """The rows of each forward and `(M, H)` the last hidden states where the critic speaks."""
        parts = list(self.layout.parts(rows, self.micro_tokens)) if rows else []
        with _without_output(self.trunk):
            for part in self._trunk_ranks.padded(parts):
                if part is None:  # this rank has nothing to do and another one has
                    self.trunk(
                        input_ids=torch.zeros((1, 1), dtype=torch.long, device=self.device), use_cache=False
                    )
                    continue
                with part.attention(self.trunk):
                    yield part.rows, part.logits(self.trunk).to(self.dtype)

    def _value(self, hidden: Tensor) -> Tensor:
        """`(M,)`."""
        value: Tensor = self.head(hidden).squeeze(-1)
        return value

    def _width(self) -> int:
        """H, and whether the trunk answers with hidden states at all."""
        ids = torch.zeros((1, 1), dtype=torch.long, device=self.device)
        with torch.no_grad(), _mode(self.trunk, training=False), _without_output(self.trunk):
            return int(self.trunk(input_ids=ids, use_cache=False).logits.shape[-1])

    # ------------------------------------------------------------------ checkpoints

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds: all weights that are not the policy's, and the optimiser."""
        return {
            "weights": {name: p.detach() for name, p in self._saved.items()},
            "optimiser": self.optimiser.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        with torch.no_grad():
            for name, parameter in self._saved.items():
                parameter.copy_(state["weights"][name])
        self.optimiser.load_state_dict(state["optimiser"])


def _joined(arrays: Sequence[Array]) -> Array:
    return np.concatenate([np.empty(0), *arrays])


def _explained(values: Array, returns: Array) -> dict[str, float]:
    """1 − Var(G − V) / Var(G); nothing where all returns are equal."""
    spread = float(returns.var()) if returns.size else 0.0
    return {"critic/explained_variance": 1 - float((returns - values).var()) / spread} if spread else {}


# ---------------------------------------------------------------------- head and trunk


class _Standard(nn.Module):
    """Hidden states by their mean and spread in the first batch that was read.

    What all states have in common is most of a hidden state (in `sprout`, the spread over states is a fifteenth of
    its size), and a head would learn for long to look past it. Nothing is said before the first batch, and what it gave
    stays, so values don't move when nothing was learnt.
    """

    mean: Tensor
    scale: Tensor
    known: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("scale", torch.ones(width))
        self.register_buffer("known", torch.tensor(0.0))

    def forward(self, hidden: Tensor) -> Tensor:
        """`(M, H)`."""
        return (hidden - self.mean) / self.scale

    def learn(self, hidden: Sequence[Tensor], ranks: Ranks) -> None:
        """Take mean and spread from `hidden`, each `(M, H)`, of all ranks, unless they are known."""
        if self.known:
            return
        width = self.mean.numel()
        mine = torch.cat([torch.zeros(0, width), *(h.cpu() for h in hidden)]).double()
        everyone = ranks.gather((len(mine), mine.sum(0), mine.square().sum(0)))
        count = sum(counted for counted, _, _ in everyone)
        if not count:
            return
        mean = torch.stack([total for _, total, _ in everyone]).sum(0) / count
        square = torch.stack([squares for _, _, squares in everyone]).sum(0) / count
        least = 0.01 * square.mean().sqrt()  # what hardly varies must not explode when it does
        self.mean.copy_(mean)
        self.scale.copy_((square - mean.square()).clamp(min=0).sqrt().clamp(min=least))
        self.known.fill_(1.0)


def _layers(width: int, hidden: int, seed: int) -> list[nn.Module]:
    """From hidden states to values, which are 0 at first."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed % (1 << 31))
        before = [nn.Linear(width, hidden), nn.SiLU()] if hidden else []
        last = nn.Linear(hidden or width, 1)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return [*before, last]


def _own(model: Any) -> Any:
    """A copy of the policy without its output layer."""
    if any(isinstance(p, DTensor) for p in model.parameters()):
        raise ConfigError(
            'critic.kind = "network" copies the policy, and sharded weights have no copy: use "probe"'
        )
    trunk = copy.deepcopy(model)
    unwrapped(trunk).set_output_embeddings(nn.Identity())
    if not any(p.requires_grad for p in trunk.parameters()):
        raise ConfigError('critic.kind = "network" has nothing that learns: use "probe"')
    return trunk


def _freeze_attention(trunk: Any) -> None:
    layers = [module for module in trunk.modules() if type(module).__name__.endswith("Attention")]
    if not layers:
        raise ConfigError(
            f"critic.freeze_attention: {type(unwrapped(trunk)).__name__} has no layers called attention"
        )
    for layer in layers:
        layer.requires_grad_(False)


@contextmanager
def _without_output(model: Any) -> Iterator[None]:
    """`model` with hidden states in the place of its logits, which are then not computed."""
    base = unwrapped(model)
    output = base.get_output_embeddings()
    if output is None:
        raise ConfigError(
            f"a critic reads hidden states: {type(base).__name__} has no output layer to leave out"
        )
    base.set_output_embeddings(nn.Identity())
    try:
        yield
    finally:
        base.set_output_embeddings(output)


@contextmanager
def _mode(model: Any, *, training: bool) -> Iterator[None]:
    was_training = model.training
    model.train(training)
    try:
        yield
    finally:
        model.train(was_training)
