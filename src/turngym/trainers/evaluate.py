"""Evaluate a policy: every task a number of times, results as they come, resumable.

Each attempt is an independent path from the task's first observation, so one task is one tree that branches at its
root. Seeds belong to the place of a task in the list, so an evaluation that was stopped and resumed finds what an
uninterrupted one would have found. What may be concluded is in `trainers.results` and `trainers.statistics`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from turngym.agents.branching import Decisions, Fork, Purse, root_only
from turngym.agents.grow import MakeEnv, grow, make_env
from turngym.agents.loop import LoopOptions, check_first_prompt, check_options
from turngym.agents.policy import Policy
from turngym.agents.rollout.scheduler import run_all
from turngym.envs.state import state_digest
from turngym.errors import ConfigError, EnvFault
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
from turngym.tasks.task import Task
from turngym.trainers.results import Attempt, Evaluation, Journal, TaskResult, compare
from turngym.trainers.statistics import Comparison, Estimate
from turngym.tree import Tree
from turngym.types import Outcome

logger = logging.getLogger(__name__)

__all__ = ["Attempt", "Comparison", "Estimate", "Evaluation", "TaskResult", "compare", "evaluate"]


async def evaluate(
    tasks: Sequence[Task],
    policy: Policy,
    *,
    attempts: int = 1,
    options: LoopOptions | None = None,
    seed: int = 0,
    live_paths: int = 64,
    retries: int = 2,
    folder: Path | None = None,
    resume: bool = False,
    listeners: Sequence[Listener] = (),
    update: int = 0,
    run_config: Mapping[str, Any] | None = None,
    make_env: MakeEnv = make_env,
) -> Evaluation:
    """Play every task `attempts` times and return what came out, in the order of the tasks.

    Args:
        tasks: what to play; ids must differ, since statistics cluster by task.
        policy: who plays; stays open.
        attempts: paths per task, with different seeds.
        options: how each path is played.
        seed: root of every random number.
        live_paths: paths that are live at once; trees are opened no faster than that.
        retries: how often a path that ended in a fault is played again.
        folder: where results are kept as they come; None keeps them in memory alone.
        resume: go on with the evaluation in `folder`: tasks whose attempts all count are not played again.
        listeners: told of each path, and at the end of the trees that were grown here.
        update: number of the update that the policy stands at, for the listeners.
        run_config: announce the evaluation to the listeners as a run of its own, with this configuration; None
            where it is part of a training run.
        make_env: makes the environment of a task.

    Raises:
        ConfigError: for a task that stands twice, or options that policy and environment can't honour.
        CheckpointError: for a `folder` that holds another evaluation; names what differs.
    """
    if attempts < 1 or live_paths < 1:
        raise ConfigError(f"need attempts ≥ 1 and live_paths ≥ 1, got {attempts} and {live_paths}")
    if not tasks:
        raise ConfigError("an evaluation needs at least one task")
    if len({task.task_id for task in tasks}) < len(tasks):
        twice = next(i for i, n in Counter(task.task_id for task in tasks).items() if n > 1)
        raise ConfigError(f"{twice!r} stands twice: to play a task more often, raise attempts")
    options = options or LoopOptions()
    with closing(make_env(tasks[0])) as env:
        check_options(options, policy, env)
        await check_first_prompt(env, policy, options, task_seed=tasks[0].seed)
    journal = None
    if folder is not None:
        journal = Journal(folder, _config(tasks, policy, attempts, options, seed), resume=resume)
    run = _Run(policy, attempts, options, seed, retries, live_paths, Listeners(listeners), make_env)
    started, reason = time.monotonic(), "done"
    if run_config is not None:
        run.events.on(RunStarted("eval", run_config))
    try:
        results = await run.play_all(tasks, journal)
        run.events.on(TreesGrown(update, "eval", [run.trees[i] for i in sorted(run.trees)]))
        seconds = time.monotonic() - started
        evaluation = Evaluation(policy=policy.name, attempts=attempts, results=results, seconds=seconds)
        if run_config is not None:
            run.events.on(Measured(update, evaluation.metrics()))
    except BaseException as error:
        stopped = isinstance(error, (asyncio.CancelledError, KeyboardInterrupt))
        reason = "interrupted" if stopped else f"{type(error).__name__}: {error}"
        raise
    finally:
        if journal is not None:
            journal.close()
        if run_config is not None:
            run.events.on(RunEnded(reason))
    return evaluation


class _Run:
    """What all tasks of one evaluation share."""

    def __init__(
        self,
        policy: Policy,
        attempts: int,
        options: LoopOptions,
        seed: int,
        retries: int,
        live_paths: int,
        events: Listeners,
        make_env: MakeEnv,
    ) -> None:
        self.policy, self.attempts, self.options, self.seed = policy, attempts, options, seed
        self.retries, self.events, self.make_env = retries, events, make_env
        self.paths, self.open_trees = asyncio.Semaphore(live_paths), asyncio.Semaphore(live_paths)
        self.trees: dict[int, Tree] = {}

    async def play_all(self, tasks: Sequence[Task], journal: Journal | None) -> tuple[TaskResult, ...]:
        """A result per task: the journal's where all its attempts count, else from playing it now."""
        known = {} if journal is None else dict(journal.results)
        done = {i for i, r in known.items() if len(r.attempts) >= self.attempts}
        missing = [(i, task) for i, task in enumerate(tasks) if task.task_id not in done]
        self.events.on(PhaseStarted("eval", len(missing) * self.attempts))

        async def play(index: int, task: Task) -> None:
            result = await self.play(index, task)
            known[task.task_id] = result if journal is None else journal.record(result)

        await run_all(play(i, task) for i, task in missing)
        return tuple(known[task.task_id] for task in tasks)

    async def play(self, index: int, task: Task) -> TaskResult:
        """All attempts at the task at place `index`."""
        leaves: list[int] = []

        @root_only
        def plan(tree: Tree, purse: Purse, rng: np.random.Generator) -> Decisions:
            leaves.extend((yield [Fork(0, self.attempts)]))

        try:
            async with self.open_trees:
                tree = await grow(
                    task,
                    self.policy,
                    plan,
                    options=self.options,
                    seed=derive(self.seed, "tree", index),
                    rollout_id=f"{task.task_id}@{self.seed}.{index}",
                    retries=self.retries,
                    slots=self.paths,
                    on_leaf=lambda tree, leaf: self.events.on(PathFinished(tree, leaf)),
                    make_env=self.make_env,
                )
        except EnvFault as error:
            logger.warning("%s: not played: %s", task.task_id, error)
            return TaskResult(task_id=task.task_id, faults={str(Outcome.ENV_FAULT): 1 + self.retries})
        self.trees[index] = tree
        return TaskResult.of(tree, leaves)


def _config(
    tasks: Sequence[Task], policy: Policy, attempts: int, options: LoopOptions, seed: int
) -> dict[str, Any]:
    """Everything that results depend on, as plain data."""
    return {
        "policy": {"name": policy.name, "version": policy.version, "renderer_hash": policy.renderer.hash},
        "tasks": {"count": len(tasks), "digest": state_digest(list(tasks))},
        "attempts": attempts,
        "seed": seed,
        "options": dataclasses.asdict(options),
    }
