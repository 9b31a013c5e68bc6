"""The training loop: draw tasks, grow trees, give credit, update, and now and then evaluate.

    tasks  = ledger.draw(n)
    trees  = await collect(tasks, policy, plan)        live environments, live forks
    reading = critic.read(trees)                       a value per state, where the rule asks for it
    credit = apply(rule, trees)                        one advantage per action
    critic.fit(trees, reading)
    learner.update(trees)                              the same model that sampled
    policy.weights_changed()                           its caches belong to the old weights

Synchronous: a batch is sampled by the weights that it updates. Every random number is derived from `run.seed` and a
counter, so a run that was interrupted and resumed is the run that was not.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from turngym.agents.branching import TreeBudget, forks_inside, make_plan
from turngym.agents.grow import make_env
from turngym.agents.loop import LoopOptions, check_first_prompt, check_options
from turngym.agents.policies import load_policy
from turngym.agents.policies.local import LocalPolicy
from turngym.agents.rollout.collect import collect
from turngym.errors import CheckpointError, ConfigError, HarnessFault
from turngym.events import (
    Listener,
    Listeners,
    Measured,
    PathFinished,
    PhaseStarted,
    RunEnded,
    RunStarted,
    TreesGrown,
)
from turngym.seeding import derive
from turngym.tasks.task import procedural
from turngym.trainers.checkpoint import must_match, newest_checkpoint, save_checkpoint
from turngym.trainers.config import TrainConfig
from turngym.trainers.credit import NEEDS_STATE_KEYS, apply, get_rule, must_be_written
from turngym.trainers.credit.shaping import JUDGE, Shaping
from turngym.trainers.critic import Critic, make_critic
from turngym.trainers.evaluate import Evaluation, evaluate
from turngym.trainers.learner import Learner
from turngym.trainers.ledger import PromptLedger
from turngym.trainers.metrics import rollout_metrics
from turngym.trainers.model import with_adapter
from turngym.trainers.warmup import warm_up
from turngym.trainers.weights import load_weights, save_weights
from turngym.tree import Tree

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What a training run came to."""

    first: Evaluation | None
    "before the first update; None in a resumed run, whose run folder has it"
    last: Evaluation
    "after the last update"
    updates: int
    env_steps: int
    policy_tokens: int
    train_seconds: float
    "rollouts and updates, without evaluations and start-up; those before a resume included"


def train(
    config: TrainConfig, *, folder: Path, listeners: Sequence[Listener] = (), resume: bool = False
) -> RunResult:
    """Run `config` in `folder`; see `Trainer`. Ctrl-C saves a checkpoint and raises `KeyboardInterrupt`."""
    return asyncio.run(Trainer(config, folder=folder, listeners=listeners, resume=resume).run())


class Trainer:
    """One training run.

    Args:
        config: everything that decides the result.
        folder: checkpoints are written below it.
        listeners: see `events`.
        resume: continue from the newest whole checkpoint in `folder`.

    Raises:
        ConfigError: for anything in `config` that can't be honoured.
        CheckpointError: where `resume` finds no checkpoint, or one of another configuration; or where a new run would
            write over an old one.
    """

    def __init__(
        self, config: TrainConfig, *, folder: Path, listeners: Sequence[Listener] = (), resume: bool = False
    ) -> None:
        self.config, self.folder = config, folder
        self.events = Listeners(listeners)
        rollout, seed = config.rollout, config.run.seed
        self.plan = make_plan(rollout.plan, **rollout.plan_options)
        self.rule = get_rule(config.credit.rule, **config.credit.options)
        self.shaping = Shaping(config.credit.shaping)
        _refuse_unwritten(config)
        self.tree_budget = TreeBudget(
            leaves=rollout.leaves or None,
            policy_tokens=rollout.policy_tokens or None,
            env_steps=rollout.env_steps or None,
        )
        self.options = LoopOptions(
            budget=rollout.budget,
            temperature=rollout.temperature,
            state_keys=config.credit.rule in NEEDS_STATE_KEYS or self.shaping.needs_state_keys,
        )
        folds = ("train", "test") if config.tasks.folds else (None, None)
        # Without folds, the names of the roots keep training and held-out seeds apart.
        self.train_tasks, self.held_out = (
            procedural(
                config.tasks.env,
                fold=fold,
                count=count,
                seed=derive(seed, "tasks", role),
                options=config.tasks.options,
            )
            for fold, count, role in zip(
                folds, (config.tasks.train, config.tasks.held_out), ("train", "test"), strict=True
            )
        )
        self.ledger = PromptLedger(self.train_tasks, seed=derive(seed, "ledger"))
        self.policy = _local_policy(config)
        self.learner = Learner(
            self.policy.model,
            loss=config.loss,
            optimiser=config.optimiser,
            renderer_hash=self.policy.renderer.hash,
            temperature=rollout.temperature,
            updates=config.run.updates,
            seed=derive(seed, "learner"),
        )
        self.critic = self._make_critic()
        self.update = self.env_steps = self.policy_tokens = 0
        self.train_seconds = 0.0
        self.warmed = not (config.warmup.episodes or config.critic.warmup)
        self._saved = self._evaluated = -1
        self._untold: dict[str, float] = {}
        self._void: list[Tree] = []
        "trees of the last batch in which every path broke"
        with closing(make_env(self.train_tasks[0])) as env:
            check_options(replace(self.options, snapshots=forks_inside(self.plan)), self.policy, env)
        self._restore(resume)

    # ------------------------------------------------------------------ the loop

    async def run(self) -> RunResult:
        """Train to the end of the configuration."""
        run = self.config.run
        self.events.on(RunStarted("train", self.config.to_mapping(), self.update, run.updates))
        try:
            with closing(make_env(self.train_tasks[0])) as env:
                await check_first_prompt(env, self.policy, self.options, task_seed=self.train_tasks[0].seed)
            first = await self._evaluate(await self._warm_up()) if self.update == 0 else None
            last = first
            if first is None and self._evaluation_due():  # the run was stopped in it
                last = await self._evaluate({})
            while not self._finished():
                self._untold = await self._cycle()
                if self._evaluation_due():
                    last = await self._evaluate(self._untold)
                else:
                    self.events.on(Measured(self.update, self._untold))
                self._untold = {}
                if self._finished() or self.update % run.checkpoint_every == 0:
                    self._save()
            last = last or await self._evaluate({})
            self._save()  # a warm-up without updates has something to keep as well
        except asyncio.CancelledError:
            self.ledger.rollback()
            if self._untold:
                self.events.on(Measured(self.update, self._untold))
            if self.warmed:
                self._save()
            self.events.on(RunEnded("interrupted"))
            raise
        except Exception as error:
            self.events.on(RunEnded(f"{type(error).__name__}: {error}"))
            raise
        finally:
            await self.policy.close()
        self.events.on(RunEnded("done"))
        return RunResult(
            first=first,
            last=last,
            updates=self.update,
            env_steps=self.env_steps,
            policy_tokens=self.policy_tokens,
            train_seconds=self.train_seconds,
        )

    async def _warm_up(self) -> dict[str, float]:
        """Demonstrations, then batches for the critic alone, where the configuration asks for them.

        A run that was stopped here begins anew.
        """
        if self.warmed:
            return {}
        metrics: dict[str, float] = {}
        self.events.on(PhaseStarted("warm-up"))
        if self.config.warmup.episodes:
            seed = derive(self.config.run.seed, "warmup")
            metrics |= await warm_up(self.policy, self.train_tasks, self.config.warmup, seed=seed)
            self.learner.begin_here()
            self.critic = self._make_critic()  # a copy is one of the policy that begins to learn
        for batch in range(self.config.critic.warmup):
            started = time.monotonic()
            trees, _ = await self._grow_batch("critic", batch)
            metrics |= {key: v for key, v in self._score(trees).items() if key.startswith("critic/")}
            self._commit(trees, started)
        self.warmed = True
        return metrics

    def _make_critic(self) -> Critic | None:
        return make_critic(
            self.config,
            self.policy.model,
            layout=self.learner.layout,
            seed=derive(self.config.run.seed, "critic"),
        )

    def _score(self, trees: Sequence[Tree]) -> dict[str, float]:
        """Shape rewards and give credit. A critic speaks before, and learns after it has judged."""
        metrics = self.shaping(trees)
        if self.critic is None:
            return metrics | apply(self.rule, trees)
        reading = self.critic.read(trees)
        return metrics | apply(self.rule, trees) | self.critic.fit(trees, reading)

    def _commit(self, trees: Sequence[Tree], started: float) -> None:
        """Count what a batch has cost; its tasks are done."""
        self.ledger.commit()
        for tree in (*trees, *self._void):  # what broke has cost as much
            self.env_steps += int(tree.meta["env_steps"])
            self.policy_tokens += tree.sampled_tokens
        self.train_seconds += time.monotonic() - started

    def _finished(self) -> bool:
        run = self.config.run
        return self.update >= run.updates or bool(run.env_steps and self.env_steps >= run.env_steps)

    def _evaluation_due(self) -> bool:
        """After this update, and not done yet."""
        due = self._finished() or self.update % self.config.run.evaluate_every == 0
        return due and self._evaluated < self.update

    async def _cycle(self) -> dict[str, float]:
        """One batch: grow, credit, update. Returns its metrics."""
        started = time.monotonic()
        trees, faults = await self._grow_batch("rollout", self.update)
        grown = time.monotonic()
        metrics = rollout_metrics(trees) | {"faults/paths": float(faults)} | self._score(trees)
        self.events.on(TreesGrown(self.update + 1, "train", trees))
        self.events.on(PhaseStarted("update"))
        metrics |= self.learner.update(trees)
        self.update += 1
        self.policy.weights_changed(version=self.update)
        ended = time.monotonic()
        self._commit(trees, started)
        return metrics | {
            "progress/env_steps": float(self.env_steps),
            "progress/policy_tokens": float(self.policy_tokens),
            "progress/epoch": self.ledger.epoch,
            "progress/train_s": self.train_seconds,
            "time/rollout_s": grown - started,
            "time/update_s": ended - grown,
            "time/tokens_per_s": sum(t.sampled_tokens for t in trees) / max(grown - started, 1e-9),
        }

    async def _grow_batch(self, *batch: str | int) -> tuple[list[Tree], int]:
        """`rollout.trees` trees with at least one path that counts, and the number of paths that faults voided.

        The words and numbers of `batch` name its seed.

        Tasks whose environment broke every time are replaced by the next ones; their paths are counted all the same.
        """
        rollout = self.config.rollout
        trees: list[Tree] = []
        paths = faults = 0
        self._void = []
        self.events.on(PhaseStarted("rollout"))
        for attempt in range(1 + rollout.retries):
            missing = rollout.trees - len(trees)
            if not missing:
                break
            grown = await collect(
                self.ledger.draw(missing),
                self.policy,
                self.plan,
                options=self.options,
                budget=self.tree_budget,
                seed=derive(self.config.run.seed, *batch, attempt),
                live_paths=rollout.live_paths,
                retries=rollout.retries,
                on_leaf=lambda tree, leaf: self.events.on(PathFinished(tree, leaf)),
            )
            for tree in grown:
                # An environment that never started has cost a path as well.
                void = [True] if tree is None else [tree.void(leaf) for leaf in tree.leaves]
                paths, faults = paths + len(void), faults + sum(void)
                if tree is not None:
                    (self._void if all(void) else trees).append(tree)
        if not trees or faults / paths > rollout.max_fault_share:
            raise HarnessFault(
                f"update {self.update + 1}: {faults} of {paths} paths ended in faults, more than "
                f"rollout.max_fault_share = {rollout.max_fault_share}: the environments are broken; "
                "the log names each fault, and the last checkpoint can be resumed"
            )
        return trees, faults

    async def _evaluate(self, metrics: dict[str, float]) -> Evaluation:
        """Play the held-out tasks, and report their numbers together with those of the update."""
        started = time.monotonic()
        evaluation = await evaluate(
            self.held_out,
            self.policy,
            attempts=self.config.tasks.attempts,
            options=self.options,
            seed=derive(self.config.run.seed, "eval"),
            live_paths=self.config.rollout.live_paths,
            retries=self.config.rollout.retries,
            listeners=[self.events],
            update=self.update,
        )
        # The prefixes it left in the caches would change last bits of what follows, and a resumed run has none of them.
        self.policy.weights_changed(version=self.update)
        progress = {"progress/env_steps": float(self.env_steps), "time/eval_s": time.monotonic() - started}
        self.events.on(Measured(self.update, metrics | progress | evaluation.metrics()))
        self._evaluated = self.update
        return evaluation

    # ------------------------------------------------------------------ checkpoints

    def _save(self) -> None:
        if self._saved == self.update:
            return

        def write(folder: Path) -> None:
            save_weights(self.policy, folder / "policy")
            torch.save(self.learner.state(), folder / "state.pt")
            if self.critic is not None:
                torch.save(self.critic.state(), folder / "critic.pt")
            counters = {
                "update": self.update,
                "env_steps": self.env_steps,
                "policy_tokens": self.policy_tokens,
                "train_seconds": self.train_seconds,
                "warmed": self.warmed,
                "evaluated": self._evaluated,
                "ledger": self.ledger.state(),
                "shaping": self.shaping.state(),
                "config": self.config.to_mapping(),
            }
            (folder / "run.json").write_text(json.dumps(counters, indent=1), encoding="utf-8")

        save_checkpoint(
            self.folder / "checkpoints", self.update, write, keep=self.config.run.keep_checkpoints
        )
        self._saved = self.update

    def _restore(self, resume: bool) -> None:
        newest = newest_checkpoint(self.folder / "checkpoints")
        if not resume:
            if newest is not None:
                raise CheckpointError(
                    f"{self.folder} holds a run already: resume it, or choose another folder"
                )
            return
        if newest is None:
            raise CheckpointError(f"{self.folder} has no checkpoint to resume from: start without --resume")
        counters: dict[str, Any] = json.loads((newest / "run.json").read_text(encoding="utf-8"))
        config = self.config.to_mapping()
        must_match(counters["config"], config, where=str(newest), what="run", may_change=_MAY_CHANGE)
        load_weights(self.policy, newest / "policy")
        self.learner.load(torch.load(newest / "state.pt", weights_only=True))
        if self.critic is not None:
            self.critic.load(torch.load(newest / "critic.pt", weights_only=True))
        self.ledger.load(counters["ledger"])
        self.shaping.load(counters["shaping"])
        self.update, self.env_steps = counters["update"], counters["env_steps"]
        self.policy_tokens, self.train_seconds = counters["policy_tokens"], counters["train_seconds"]
        self.warmed, self._evaluated = counters["warmed"], counters["evaluated"]
        self.policy.weights_changed(version=self.update)
        self._saved = self.update
        logger.info("resuming from %s", newest)


def _refuse_unwritten(config: TrainConfig) -> None:
    """For what credit reads and nothing in a run writes.

    Raises:
        ConfigError: names the key.
    """
    credit = config.credit
    for what, key in (
        (f"credit rule {credit.rule}", must_be_written(credit.rule, credit.options)),
        ("credit.shaping.trusted_judge", JUDGE if "trusted_judge" in credit.shaping else None),
    ):
        if key is not None:
            raise ConfigError(
                f"{what} reads metrics[{key!r}], which no part of this run writes: write it into trees of your own and call "
                "trainers.credit.apply, or choose another one"
            )


_MAY_CHANGE = (
    "run.updates",
    "run.env_steps",
    "run.evaluate_every",
    "run.checkpoint_every",
    "run.keep_checkpoints",
    "run.keep_trees_every",
    "rollout.live_paths",
)
"""Fields that a resumed run may set anew: how long it goes on and what it keeps."""


def _local_policy(config: TrainConfig) -> LocalPolicy:
    policy = load_policy(config.policy.spec)
    if not isinstance(policy, LocalPolicy):
        raise ConfigError(
            f"training needs a policy whose weights are here, like local:sprout or local:./folder; got {config.policy.spec!r}"
        )
    policy.model = with_adapter(policy.model, config.policy, seed=derive(config.run.seed, "adapter"))
    return policy


__all__ = ["RunResult", "Trainer", "train"]
