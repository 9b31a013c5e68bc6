"""Grow one tree: play the forks of a plan in live environments, all at once.

Each new path gets an environment of its own: restored from the snapshot of the decision point where the environment
forks, or reset from the same seed where a path starts at the root. A path that ends in a fault is played again from
the same point, a bounded number of times, with another seed; the broken one stays in the tree, void.

The tree is a function of its seed: paths may finish in any order, and nodes are put into the order of the forks
before the plan sees them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

from turngym.agents.branching import Decisions, Fork, Plan, Purse, TreeBudget, forks_inside, group
from turngym.agents.loop import LoopOptions, begin, check_options, close_void, own_leaf, play
from turngym.agents.policy import Policy
from turngym.agents.rollout.scheduler import run_all
from turngym.envs.base import Forking, TurnEnv
from turngym.errors import ConfigError, EnvFault, Fault, ForkDiverged, TurngymError
from turngym.registry import make
from turngym.seeding import derive, generator
from turngym.tasks.task import Task
from turngym.tree import Tree
from turngym.tree_order import reorder

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
        options: how each path is played. Snapshots are switched on where `plan` may fork inside of an episode.
        budget: what the tree may cost.
        seed: root of every random number in the tree.
        rollout_id: name of the tree; defaults to the task's id and the seed.
        retries: how often a path that ended in a fault is played again.
        slots: bounds the paths that are live at once, over all trees that share it.
        on_leaf: called with each path that counts, as soon as it has finished; the leaf's number may change later.
        make_env: makes the environment of a task.

    Raises:
        EnvFault: where the environment can't start after all retries.
        ConfigError: where policy, environment, plan and options don't fit together.
    """
    if retries < 0:
        raise ConfigError(f"retries can't be negative, got {retries}")
    options = options or LoopOptions()
    tree = Tree(
        task_id=task.task_id,
        rollout_id=rollout_id or f"{task.task_id}@{seed}",
        seed=seed,
        renderer_hash=policy.renderer.hash,
        meta={"env": task.env_id, "policy": policy.name},
    )
    env = make_env(task)
    try:
        if forks_inside(plan):
            options = replace(options, snapshots=True)
        check_options(options, policy, env)
        purse = Purse(budget or TreeBudget())
        grower = _Grower(env, tree, policy, options, purse, task, retries, slots, on_leaf)
        await grower.plant()
        await _follow(plan(tree, purse, generator(seed, "plan")), grower)
    finally:
        shut(env)
    tree.meta["env_steps"] = purse.env_steps
    for node in tree:
        node.snapshot = None  # a live handle is of no use any more, and an exact one holds a whole state
    return tree


async def _follow(decisions: Decisions, grower: _Grower) -> None:
    """Play what the plan decides until it is done or the budget is; it sees the leaves of its last round either way."""
    forks = next(decisions, None)
    while forks is not None and grower.purse.leaves_left:
        leaves = await grower.play_all(forks)
        try:
            forks = decisions.send(leaves)
        except StopIteration:
            forks = None
    decisions.close()


class _Grower:
    """The state of one growing tree."""

    def __init__(
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
        self.at_root = False  # True while `env` stands at the root, where the first path from there takes it

    async def plant(self) -> None:
        """Begin the episode that the tree's root stands for."""
        options = replace(self.options, snapshots=self.env.forking is not Forking.NONE)
        for attempt in range(1 + self.retries):
            try:
                await begin(self.env, self.tree, self.policy, options, task_seed=self.task.seed)
                self.at_root = True
                return
            except Fault as error:
                logger.warning("%s could not start (attempt %d): %s", self.task.task_id, attempt + 1, error)
                fault = error
        raise EnvFault(
            f"{self.task.task_id} did not start in {1 + self.retries} attempts: {fault}"
        ) from fault

    async def play_all(self, forks: list[Fork]) -> list[int]:
        """Play every fork, as far as the budget goes. Returns the leaves that count, in the order of the forks.

        Raises:
            ConfigError: for a fork where no path can start.
        """
        for fork in forks:
            self._check_fork(fork)
        points = [fork.node for fork in forks for _ in range(fork.count)][: self.purse.leaves_left]
        first_member, first_node = self.members, len(self.tree)
        self.members += len(points)
        paths = await run_all(self._path(node, first_member + i) for i, node in enumerate(points))
        order = list(range(first_node))
        for leaf in (leaf for leaves in paths for leaf in leaves):
            order += [node for node in self.tree.path(leaf) if node >= first_node]
        new = reorder(self.tree, order)
        last = [int(new[leaves[-1]]) for leaves in paths]
        return [leaf for leaf in last if not self.tree.void(leaf)]

    def _check_fork(self, fork: Fork) -> None:
        node = self.tree[fork.node]
        if node.index and (node.snapshot is None or node.stop is not None):
            raise ConfigError(
                f"{self.tree.rollout_id}: the plan forks at {node}, where no path can start: fork at decision points "
                "(observations that a path went on from), and declare no plan root_only that forks below the root"
            )

    async def _path(self, node: int, member: int) -> list[int]:
        """One path, played again after a fault. Returns the leaf of every attempt; only the last one may count."""
        self.purse.leaves += 1
        leaves: list[int] = []
        for attempt in range(1 + self.retries):
            async with self.slots or nullcontext():
                leaves.append(await self._attempt(node, derive(self.tree.seed, "member", member, attempt)))
            if not self.tree.void(leaves[-1]):
                if self.on_leaf is not None:
                    self.on_leaf(self.tree, leaves[-1])
                return leaves
        self.purse.leaves -= 1
        return leaves

    async def _attempt(self, node: int, seed: int) -> int:
        tree, before = self.tree, len(self.tree.actions(node))
        try:
            env = await self._bring(node)
        except Fault as fault:
            return close_void(tree, own_leaf(tree, node, node), fault)
        try:
            leaf = await play(env, tree, node, self.policy, self.options, seed=seed)
        finally:
            shut(env)
        actions = tree.actions(leaf)[before:]
        self.purse.policy_tokens += sum(tree[a].ids.size for a in actions)
        self.purse.env_steps += len(actions)
        return leaf

    async def _bring(self, node: int) -> TurnEnv:
        """An environment for one path, in the state of the decision point `node`.

        Raises:
            Fault: where there is none to be had. Whatever breaks in an environment that was made and started before
                can't be the policy's doing.
        """
        if node == 0 and self.at_root:
            self.at_root = False
            return self.env
        snapshot, env = self.tree[node].snapshot, None
        replayed = snapshot.turn if snapshot is not None and snapshot.state is None else 0
        self.purse.env_steps += replayed
        try:
            env = self.env.sibling()
            async with asyncio.timeout(self.options.deadline_s * (1 + replayed)):
                if snapshot is not None:
                    await env.restore_async(snapshot)
                else:
                    await self._reset(env)
            return env
        except BaseException as error:
            if env is not None:
                shut(env)
            if isinstance(error, TurngymError) or not isinstance(error, Exception):
                raise
            raise EnvFault(
                f"can't bring an environment to node {node}: {type(error).__name__}: {error}"
            ) from error

    async def _reset(self, env: TurnEnv) -> None:
        _, info = await env.reset_async(seed=self.task.seed)
        ids = self.policy.renderer.open(info["messages"]).ids
        if ids.tobytes() != self.tree[0].ids.tobytes():
            raise ForkDiverged(f"{self.task.task_id}: another first observation from the same seed", turn=0)


def shut(env: TurnEnv) -> None:
    """Close `env`. One that broke may refuse; what was played in it stands."""
    try:
        env.close()
    except Exception:
        logger.warning("%s did not close", type(env).__name__, exc_info=True)
