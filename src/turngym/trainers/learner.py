"""The learner: scored trees in, better weights out.

One `update` takes the rows of a batch, cuts them into mini-batches (optimiser steps) and those into forwards under a
token budget (`layouts.py`). Denominators and weights are counted over the mini-batch before it is cut, over all
processes (`ranks.py`), so the cut changes memory and nothing else. Tokens that were not sampled never reach the loss.

Full weights or a LoRA adapter (PEFT); the policy that samples holds the same model object, so there is nothing to
synchronise on one machine but its caches (`LocalPolicy.weights_changed`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from turngym.errors import ConfigError, HarnessFault
from turngym.seeding import generator
from turngym.trainers.anchors import Anchor, Average, Start, evaluating, teacher
from turngym.trainers.config import LossConfig, OptimiserConfig
from turngym.trainers.inputs import (
    Totals,
    column,
    ids_of,
    must_be_met,
    names_of,
    not_finite,
    observed_batch,
    reader_of_rollouts,
    reads,
    refuse_shared,
    refuse_unscored,
    rollout_log_weights,
    targets_of,
    token_logprobs,
    weighted,
    with_column,
)
from turngym.trainers.layouts import Part, get_layout
from turngym.trainers.losses import (
    Aggregation,
    TokenBatch,
    between,
    divergence,
    effective_share,
    entropy_of,
    entropy_shaped,
    get_correction,
    get_loss,
    get_penalty,
    merge,
    next_observation,
)
from turngym.trainers.losses.base import log_ratio
from turngym.trainers.losses.vcpo import learning_rate_factor as stale_rate_factor
from turngym.trainers.model import checkpoint_activations
from turngym.trainers.ranks import Ranks, whole
from turngym.trainers.rows import Row, by_rollout, rows_of, signal_only, trained_paths
from turngym.trainers.schedule import learning_rate_factor, minibatches, scaled
from turngym.tree import Tree


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

    Raises:
        ConfigError: for a loss whose inputs this configuration does not bring, or an option that nothing honours.
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
        must_be_met(loss, self.loss, optimiser)
        self.correction = (
            get_correction(loss.correction, loss=loss.name, **loss.correction_options)
            if loss.correction
            else None
        )
        self.aggregation = Aggregation(name=loss.aggregation, length=loss.horizon or None)
        self.penalties = [
            (coefficient, get_penalty(name))
            for name, coefficient in (("entropy_bonus", loss.entropy), ("kl_penalty", loss.kl))
            if coefficient
        ]
        self._needs_share = reads(self.loss, "effective_share")
        # Whether rows without an advantage have neither a gradient nor a say in what others get.
        self._spares = reads(self.loss, "advantages") and not (
            self.penalties
            or loss.next_observation
            or self._needs_share
            or self.correction
            or optimiser.ess_base
        )
        self._reader = reader_of_rollouts(loss, self.loss, self.correction)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.optimiser = torch.optim.AdamW(
            self.parameters,
            lr=optimiser.lr,
            betas=(optimiser.beta1, optimiser.beta2),
            weight_decay=optimiser.weight_decay,
        )
        self.updates, self.updates_done = updates, 0
        self.ranks = Ranks(model, self.parameters)
        self._teacher = teacher(loss.teacher, model) if loss.teacher else None
        self._reference: Start | None = None
        self._average: Average | None = None
        self._anchored_late = False
        self._anchor()
        self.layout = get_layout(optimiser.layout, model, pad_id=pad_id)
        if optimiser.checkpointing:
            checkpoint_activations(model)

    def _anchor(self) -> None:
        loss = self.loss_config
        self._reference = Start(self.model, self.parameters) if loss.kl else None
        self._average = (
            Average(self.model, self.parameters, loss.proximal_decay) if loss.proximal == "average" else None
        )

    def begin_here(self) -> None:
        """Take the weights as they are now as those where training begins, after something else has taught them."""
        self._anchored_late = True
        self._anchor()

    def update(self, trees: Sequence[Tree]) -> dict[str, float]:
        """One cycle over scored trees: `epochs` × `minibatches` optimiser steps.

        Returns:
            Statistics of the last epoch under `loss/*`, `ratio/*`, `clip/*`, `kl/*`, `entropy/*`, `tokens/*`,
            `learner/*`. Where no token has a signal nothing is updated and `learner/skipped` is 1.

        Raises:
            ConfigError: for trees of another renderer.
            TreeError: for a tree that no credit rule has scored; for actions that several rollouts share, where the
                aggregation, the loss or its correction looks at whole rollouts.
            HarnessFault: for a loss or gradient that is not finite; names the trees. The weights are then unchanged
                by that step.
        """
        refuse_unscored(trees)
        if self._reader:
            refuse_shared(trees, self._reader)
        observed = bool(self.loss_config.next_observation)
        rows = rows_of(trees, renderer_hash=self.renderer_hash, observed=observed)
        # Rows without a signal count in denominators, whether or not they are spared the forward pass.
        tokens = round(self.ranks.total(sum(row.targets.size for row in rows)))
        rollouts = round(self.ranks.total(sum(trained_paths(tree) for tree in trees)))
        if self._spares:
            rows = signal_only(rows)
        lr = self.config.lr * learning_rate_factor(self.config, self.updates_done, self.updates)
        for group in self.optimiser.param_groups:
            group["lr"] = lr
        trained = any(self.ranks.gather(bool(rows)))
        statistics = {
            "learner/lr": lr,
            "learner/rows": float(len(rows)),
            "learner/row_tokens": float(sum(row.ids.size for row in rows)),
            "learner/skipped": float(not trained),
        }
        if trained:
            statistics |= self._fit(rows, tokens, rollouts)
        self.updates_done += 1
        return statistics

    def _fit(self, rows: Sequence[Row], tokens: int, rollouts: int) -> dict[str, float]:
        if self.loss_config.proximal in ("start", "average"):
            rows = self._with_proximal(rows)
        was_training = self.model.training
        self.model.train()
        try:
            rng = generator(self.seed, "update", self.updates_done)
            statistics: dict[str, float] = {}
            with_signal = self.ranks.total(sum(row.targets.size for row in rows))
            all_rollouts = self.ranks.total(len(by_rollout(rows)))
            for _ in range(self.config.epochs):
                parts, norms = [], []
                for batch in self._minibatches(rows, rng):
                    share = self.ranks.total(sum(row.targets.size for row in batch)) / with_signal
                    rollout_share = self.ranks.total(len(by_rollout(batch))) / all_rollouts
                    denominator = self.aggregation.denominator(
                        tokens=tokens * share, rollouts=rollouts * rollout_share
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

    def _minibatches(self, rows: Sequence[Row], rng: np.random.Generator) -> list[list[Row]]:
        """As many on every rank; some may be empty."""
        batches = minibatches(rows, self.config.minibatches, rng)
        most = max(self.ranks.gather(len(batches)))
        return batches + [[] for _ in range(most - len(batches))]

    def _step(self, rows: Sequence[Row], denominator: float) -> tuple[dict[str, float], float]:
        """One optimiser step. Returns statistics and the gradient's norm before clipping."""
        extra: dict[str, float] = {}
        if rows or self.correction:
            rows, extra = weighted(rows, self.aggregation, self.correction, self.ranks)
        totals = Totals(
            denominator=denominator,
            share=self._effective_share(rows) if self._needs_share else None,
            observed=self.ranks.total(sum(row.observed.size for row in rows)),
        )
        factor = 1.0
        if self.config.ess_base:
            log_weights = torch.cat(self.ranks.gather(rollout_log_weights(rows)))
            extra["learner/lr_factor"] = factor = stale_rate_factor(log_weights, base=self.config.ess_base)
        self.optimiser.zero_grad(set_to_none=True)
        parts = self._backward(rows, totals)
        self.ranks.sum_gradients()
        limit = self.config.grad_clip or math.inf
        norm = float(whole(torch.nn.utils.clip_grad_norm_(self.parameters, limit)))
        if not math.isfinite(norm):
            raise HarnessFault(
                f"the gradient's norm is {norm} at update {self.updates_done}, "
                f"{self._culprits(rows, totals)}: this step was not taken"
            )
        with scaled(self.optimiser, factor):
            self.optimiser.step()
        if self._average is not None:
            self._average.step()
        return merge([part for theirs in self.ranks.gather(parts) for part in theirs]) | extra, norm

    def _backward(self, rows: Sequence[Row], totals: Totals) -> list[dict[str, float]]:
        """Add the gradient of `rows` to the parameters'. Returns the statistics of each forward."""
        statistics = []
        for part in self._parts(rows):
            if part is None:
                nothing = self._idle()
                self._idle_under(self._reference)
                nothing.backward()  # type: ignore[no-untyped-call]
                continue
            with part.attention(self.model):
                loss, said = self._forward(part, totals)
                if not torch.isfinite(loss):
                    raise HarnessFault(
                        f"the loss is {loss.item()} at update {self.updates_done}, in {names_of(part.rows)}: this step was not taken"
                    )
                loss.backward()  # type: ignore[no-untyped-call]
            statistics.append(said)
        return statistics

    def _parts(self, rows: Sequence[Row]) -> list[Part | None]:
        """The forwards of these rows; None where this rank has nothing to do and another one has."""
        return self.ranks.padded(list(self.layout.parts(rows, self.config.micro_tokens)) if rows else [])

    def _idle(self) -> Tensor:
        """A forward that adds nothing."""
        ids = torch.zeros((1, 1), dtype=torch.long, device=self.parameters[0].device)
        logits: Tensor = self.model(input_ids=ids, use_cache=False).logits
        return logits.sum() * 0.0

    def _idle_under(self, anchor: Anchor | None) -> None:
        """What `_logprobs_of` is to the other ranks."""
        if anchor is not None:
            with torch.no_grad(), anchor():
                self._idle()

    def _forward(self, part: Part, totals: Totals) -> tuple[Tensor, dict[str, float]]:
        config, device, rows = self.loss_config, self.parameters[0].device, part.rows
        targets = targets_of(rows, device)
        logits, answers = self._target_logits(self.model, part).tensor_split([targets.numel()])
        logprobs = token_logprobs(logits, targets)
        advantages = column(rows, "advantages", device)
        shaping: dict[str, float] = {}
        entropy = entropy_of(logits) if config.entropy else None
        if config.entropy_shaping:
            assert advantages is not None
            doubt = entropy_of(logits.detach()) if entropy is None else entropy
            advantages, shaping = entropy_shaped(advantages, doubt, scale=config.entropy_shaping)
        batch = TokenBatch(
            logprobs=logprobs,
            loss_mask=torch.ones_like(logprobs, dtype=torch.bool),
            denominator=totals.denominator,
            behaviour_logprobs=column(rows, "behaviour_logprobs", device),
            proximal_logprobs=self._proximal(rows, logprobs),
            advantages=advantages,
            weights=column(rows, "weights", device),
            lower_clip_extra=column(rows, "lower_clip_extra", device),
            reference_logprobs=self._logprobs_of(self._reference, part, targets),
            entropy=entropy,
            effective_share=totals.share,
            **ids_of(rows, device),
            **self._graded(part, logits, targets),
        )
        try:
            loss, statistics = self.loss(batch)
            for coefficient, penalty in self.penalties:
                term, more = penalty(batch)
                loss = loss + coefficient * term
                statistics |= more
            if config.next_observation:
                # what the environment says was sampled at no temperature
                term, more = next_observation(
                    observed_batch(rows, answers * self.temperature, totals.observed)
                )
                loss = loss + config.next_observation * term
                statistics = more | statistics
        except HarnessFault as error:
            raise HarnessFault(f"{error}; they are in {names_of(not_finite(rows, logprobs))}") from error
        return loss, statistics | shaping

    # ------------------------------------------------------------------ other policies

    def _with_proximal(self, rows: Sequence[Row]) -> list[Row]:
        """Rows with the log-probs of π_old: the weights as they are now, or their average, in evaluation mode."""
        anchor: Anchor = self._average or self._present
        place = {id(row): i for i, row in enumerate(rows)}
        out: list[Row] = list(rows)
        for part in self._parts(rows):
            if part is None:
                self._idle_under(anchor)
                continue
            logprobs = self._logprobs_of(anchor, part, targets_of(part.rows, self.parameters[0].device))
            assert logprobs is not None
            done = with_column(part.rows, "proximal_logprobs", logprobs)
            for row, filled in zip(part.rows, done, strict=True):
                out[place[id(row)]] = filled
        return out

    def _present(self) -> AbstractContextManager[Any]:
        """The anchor that is the policy itself."""
        return evaluating(self.model)

    def _proximal(self, rows: Sequence[Row], logprobs: Tensor) -> Tensor | None:
        """`(M,)` log π_old of the rows, where it is not the behaviour policy's."""
        if self.loss_config.proximal != "between":
            return column(rows, "proximal_logprobs", logprobs.device)
        behaviour, version = (
            column(rows, name, logprobs.device) for name in ("behaviour_logprobs", "version")
        )
        assert behaviour is not None
        assert version is not None
        now = self.updates_done
        return between(logprobs, behaviour, version=version, proximal=now, current=now + 1)

    def _graded(self, part: Part, logits: Tensor, targets: Tensor) -> dict[str, Any]:
        """What the teacher says about the trained tokens."""
        if self._teacher is None:
            return {}
        with torch.no_grad(), self._teacher() as model, part.attention(model):
            theirs = self._target_logits(model, part)[: targets.numel()]
        gap = divergence(logits, theirs, direction=self.loss_config.teacher_direction)
        return {"teacher_logprobs": token_logprobs(theirs, targets), "teacher_divergence": gap}

    def _logprobs_of(self, anchor: Anchor | None, part: Part, targets: Tensor) -> Tensor | None:
        """`(M,)` log-probs of the trained tokens under another policy, without a gradient."""
        if anchor is None:
            return None
        with torch.no_grad(), anchor() as model, part.attention(model):
            return token_logprobs(self._target_logits(model, part)[: targets.numel()], targets)

    def _effective_share(self, rows: Sequence[Row]) -> float:
        """Of π_θ/μ over all trained tokens of the step, on all ranks."""
        device, logs = self.parameters[0].device, [torch.zeros(0)]
        for part in self._parts(rows):
            if part is None:
                self._idle_under(self._present)
                continue
            mine = self._logprobs_of(self._present, part, targets_of(part.rows, device))
            behaviour = column(part.rows, "behaviour_logprobs", device)
            assert mine is not None
            assert behaviour is not None
            logs.append(log_ratio(mine, behaviour).cpu())
        return effective_share(torch.cat([log for theirs in self.ranks.gather(logs) for log in theirs]))

    def _target_logits(self, model: Any, part: Part) -> Tensor:
        """`(M + O, V)` logits of a part, float32 or wider, divided by the sampling temperature."""
        logits = part.logits(model)
        return logits.to(torch.promote_types(logits.dtype, torch.float32)) / self.temperature

    # ------------------------------------------------------------------ faults and checkpoints

    def _culprits(self, rows: Sequence[Row], totals: Totals) -> str:
        """Whose gradient is not finite when it is computed alone."""
        if self.ranks.size > 1:
            return f"in one of {names_of(rows)} or of another rank"
        found = []
        for name in dict.fromkeys(row.rollout_id for row in rows):
            own = [row for row in rows if row.rollout_id == name]
            self.optimiser.zero_grad(set_to_none=True)
            self._backward(own, totals)
            if not all(bool(torch.isfinite(p.grad).all()) for p in self.parameters if p.grad is not None):
                found += own
        self.optimiser.zero_grad(set_to_none=True)
        return f"from {names_of(found)}" if found else "in the sum over trees that are finite each"

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds beside the weights."""
        state = {"optimiser": self.optimiser.state_dict(), "updates_done": self.updates_done}
        if self._average is not None:
            state["average"] = self._average.state()
        if self._reference is not None and self._anchored_late:  # else it is what `policy.spec` brings
            state["reference"] = self._reference.state()
        return state

    def load(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.optimiser.load_state_dict(state["optimiser"])
        self.updates_done = state["updates_done"]
        if self._average is not None:
            self._average.load(state["average"])
        if self._reference is not None and "reference" in state:
            self._reference.load(state["reference"])
            self._anchored_late = True
