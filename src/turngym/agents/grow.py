"""Grow one tree: play the forks of a plan in live environments, all at once.

Each new path gets an environment of its own: restored from the snapshot of the decision point where the environment
forks, or reset from the same seed where a path starts at the root. A path that ends in a fault is played again from
the same point, a bounded number of times, with another seed; the broken one stays in the tree, void.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

from turngym.agents.branching import Fork, Plan, Purse, TreeBudget, group
from turngym.agents.loop import LoopOptions, begin, check_options, play
from turngym.agents.policy import Policy
from turngym.agents.rollout.scheduler import run_all
from turngym.envs.base import Forking, TurnEnv
from turngym.errors import EnvFault, ForkDiverged
from turngym.registry import make
from turngym.seeding import derive, generator
from turngym.tasks.task import Task
from turngym.tree import Tree

logger = logging.getLogger(__name__)

MakeEnv = Callable[[Task], TurnEnv]
LeafSeen = Callable[[Tree, int], None]


def make_env(task: Task) -> TurnEnv:
    """The registered environment of a task."""
    return make(task.env_id, **task.options)


async def grow(
    task: Task,
    policy: Policy,
    plan: Plan = group,
    *,
    options: LoopOptions | None = None,
    budget: TreeBudget | None = None,
    seed: int = 0,
    rollout_id: str | None = None,
    retries: int = 2,
    slots: asyncio.Semaphore | None = None,
    on_leaf: LeafSeen | None = None,
    make_env: MakeEnv = make_env,
) -> Tree:
    """Play one task as `plan` says, and return its tree.

    Args:
        task: what to play.
        policy: who plays; called concurrently for all live paths.
        plan: where to fork (`branching.make_plan`).
        options: how each path is played. Snapshots are switched on where the environment forks.
        budget: what the tree may cost.
        seed: root of every random number in the tree.
        rollout_id: name of the tree; defaults to the task's id and the seed.
        retries: how often a path that ended in a fault is played again.
        slots: bounds the paths that are live at once, over all trees that share it.
        on_leaf: called with each finished path, for progress.
        make_env: makes the environment of a task.

    Raises:
        EnvFault: where the environment can't start after all retries.
        ConfigError: where policy, environment and options don't fit together.
    """
    env = make_env(task)
    try:
        options = options or LoopOptions()
        if env.forking is not Forking.NONE:
            options = replace(options, snapshots=True)
        check_options(options, policy, env)
        tree = Tree(
            task_id=task.task_id,
            rollout_id=rollout_id or f"{task.task_id}@{seed}",
            seed=seed,
            renderer_hash=policy.renderer.hash,
            meta={"env": task.env_id, "policy": policy.name},
        )
        await _plant(env, tree, policy, options, task, retries)
        grower = _Grower(env, tree, policy, options, Purse(budget or TreeBudget()), task, retries, slots, on_leaf)
        decisions = plan(tree, grower.purse, generator(seed, "plan"))
        forks = next(decisions, None)
        while forks is not None:
            leaves = await grower.play_all(forks)
            try:
                forks = decisions.send(leaves)
            except StopIteration:
                forks = None
        tree.meta["env_steps"] = grower.purse.env_steps
        _drop_snapshots(tree)
        return tree
    finally:
        env.close()


class _Grower:
    """The state of one growing tree."""

    def __init__(  # noqa: PLR0917
        self,
        env: TurnEnv,
        tree: Tree,
        policy: Policy,
        options: LoopOptions,
        purse: Purse,
        task: Task,
        retries: int,
        slots: asyncio.Semaphore | None,
        on_leaf: LeafSeen | None,
    ) -> None:
        self.env, self.tree, self.policy, self.options, self.purse = env, tree, policy, options, purse
        self.task, self.retries, self.slots, self.on_leaf = task, retries, slots, on_leaf
        self.members = 0

    async def play_all(self, forks: list[Fork]) -> list[int]:
        """Play every fork, as far as the budget goes. Returns the leaves that count, in the order of the forks."""
        left = self.purse.leaves_left
        points = [fork.node for fork in forks for _ in range(fork.count)][:left]
        first = self.members
        self.members += len(points)
        leaves = await run_all(self._path(node, first + i) for i, node in enumerate(points))
        return [leaf for leaf in leaves if leaf is not None]

    async def _path(self, node: int, member: int) -> int | None:
        """One path, retried after a fault. None where every attempt was void."""
        self.purse.leaves += 1
        for attempt in range(1 + self.retries):
            async with self.slots or nullcontext():
                leaf = await self._attempt(node, derive(self.tree.seed, "member", member, attempt))
            if leaf is not None and not self.tree.void(leaf):
                if self.on_leaf is not None:
                    self.on_leaf(self.tree, leaf)
                return leaf
        self.purse.leaves -= 1
        return None

    async def _attempt(self, node: int, seed: int) -> int | None:
        tree, env = self.tree, self.env.sibling()
        try:
            await self._bring(env, node)
            before = len(tree.actions(node))
            leaf = await play(env, tree, node, self.policy, self.options, seed=seed)
            actions = tree.actions(leaf)[before:]
            self.purse.policy_tokens += sum(tree[a].ids.size for a in actions)
            self.purse.env_steps += len(actions)
            return leaf
        except EnvFault as error:
            logger.warning("%s: can't bring an environment to node %d: %s", tree.rollout_id, node, error)
            return None
        finally:
            env.close()

    async def _bring(self, env: TurnEnv, node: int) -> None:
        """Put `env` into the state of the decision point `node`."""
        snapshot = self.tree[node].snapshot
        if snapshot is not None:
            env.restore(snapshot)
            if snapshot.state is None:
                self.purse.env_steps += snapshot.turn
            return
        _, info = await env.reset_async(seed=self.task.seed)
        ids = self.policy.renderer.open(info["messages"]).ids
        if ids.tobytes() != self.tree[node].ids.tobytes():
            raise ForkDiverged(f"{self.task.task_id}: another first observation from the same seed", turn=0)


async def _plant(
    env: TurnEnv, tree: Tree, policy: Policy, options: LoopOptions, task: Task, retries: int
) -> None:
    for attempt in range(1 + retries):
        try:
            await begin(env, tree, policy, options, task_seed=task.seed)
            return
        except EnvFault:
            if attempt == retries:
                raise
            logger.warning("%s: the environment could not start, trying again", task.task_id)


def _drop_snapshots(tree: Tree) -> None:
    """Live handles are of no use once a tree has grown, and an exact one holds a whole state."""
    for node in tree:
        node.snapshot = None
