"""Grow one tree a task, with a fixed number of live paths over all trees."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from turngym.agents.branching import Plan, TreeBudget, group
from turngym.agents.grow import LeafSeen, MakeEnv, grow, make_env
from turngym.agents.loop import LoopOptions
from turngym.agents.policy import Policy
from turngym.agents.rollout.scheduler import run_all
from turngym.errors import ConfigError, EnvFault
from turngym.seeding import derive
from turngym.tasks.task import Task
from turngym.tree import Tree

logger = logging.getLogger(__name__)


async def collect(
    tasks: Sequence[Task],
    policy: Policy,
    plan: Plan = group,
    *,
    options: LoopOptions | None = None,
    budget: TreeBudget | None = None,
    seed: int = 0,
    live_paths: int = 64,
    retries: int = 2,
    on_leaf: LeafSeen | None = None,
    make_env: MakeEnv = make_env,
) -> list[Tree | None]:
    """One tree a task, in the order of `tasks`; None where its environment could not start after all retries.

    Args:
        tasks: what to play; a task that stands twice gets two trees with different seeds.
        policy: who plays; its engine batches over every live path.
        plan: where to fork.
        options: how each path is played.
        budget: what each tree may cost.
        seed: root of every random number.
        live_paths: paths that are live at once. A path that ends makes room for the next; nothing waits for a batch.
            Trees are opened no faster than that.
        retries: see `grow`.
        on_leaf: called with each finished path.
        make_env: makes the environment of a task.

    Raises:
        ConfigError: where policy, environment, plan and options don't fit together.
    """
    if live_paths < 1:
        raise ConfigError(f"live_paths must be at least 1, got {live_paths}")
    paths, open_trees = asyncio.Semaphore(live_paths), asyncio.Semaphore(live_paths)

    async def one(index: int, task: Task) -> Tree | None:
        try:
            async with open_trees:
                return await grow(
                    task,
                    policy,
                    plan,
                    options=options,
                    budget=budget,
                    seed=derive(seed, "tree", index),
                    rollout_id=f"{task.task_id}@{seed}.{index}",
                    retries=retries,
                    slots=paths,
                    on_leaf=on_leaf,
                    make_env=make_env,
                )
        except EnvFault as error:
            logger.warning("%s: no tree: %s", task.task_id, error)
            return None

    return await run_all(one(i, task) for i, task in enumerate(tasks))
