"""Environments that break on purpose and policies that watch or dawdle, for tests of the loop and of rollouts.

The ground is `Steps`, a game of `length` turns whose observations are random numbers: say "win" in the last turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from turngym.agents.policies.scripted import ScriptedPolicy
from turngym.agents.policy import Policy, Sample, SampleParams, Turn
from turngym.envs.base import Forking, TurnEnv
from turngym.envs.text.corridor import Corridor
from turngym.tasks.task import Task, procedural
from turngym.tree import Tree
from turngym.types import IntArray, Reply

TASK = Task(task_id="steps", env_id="steps", seed=7)


def corridor(task: Task) -> Corridor:
    return Corridor(**task.options)


def corridors(count: int, **options: Any) -> list[Task]:
    return procedural("turngym/Corridor-v0", fold="train", count=count, options=options)


class Steps(TurnEnv):
    """Says a random number a turn. Counts, over all instances of a class, what was opened, stepped and closed."""

    forking = Forking.EXACT
    opened: ClassVar[int] = 0
    closed: ClassVar[int] = 0
    stepped: ClassVar[int] = 0

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.opened = cls.closed = cls.stepped = 0

    def __init__(self, length: int = 4) -> None:
        super().__init__()
        self.length, self.turn, self.open = length, 0, True
        type(self).opened += 1

    def start(self, options: Mapping[str, Any]) -> Reply:
        self.turn = 0
        return Reply(f"start {self.np_random.integers(1000)}")

    def act(self, action: str) -> Reply:
        type(self).stepped += 1
        self.turn += 1
        over = self.turn == self.length
        won = over and action == "win"
        text = f"{self.turn}: {self.np_random.integers(1000)}"
        return Reply(text, reward=float(won), terminated=over, success=won)

    def get_state(self) -> Any:
        return self.turn

    def set_state(self, state: Any) -> None:
        self.turn = state

    def close(self) -> None:
        super().close()
        if self.open:
            type(self).closed += 1
        self.open = False


class Say(ScriptedPolicy):
    """Says the same every turn."""

    def __init__(self, text: str = "win") -> None:
        super().__init__(f"scripted:say-{text}")
        self.text = text

    def choose(self, turn: Turn, seed: int) -> tuple[str, float]:
        return self.text, 0.0


class Toss(ScriptedPolicy):
    """Says "win" or "lose", by its seed."""

    def __init__(self) -> None:
        super().__init__("scripted:toss")

    def choose(self, turn: Turn, seed: int) -> tuple[str, float]:
        return ("win" if seed % 2 else "lose"), float(np.log(0.5))


class Wrapped:
    """Another policy, behind something that happens before or after each sample."""

    def __init__(self, policy: Policy) -> None:
        self.inner = policy
        self.name, self.renderer, self.window = policy.name, policy.renderer, policy.window

    @property
    def version(self) -> int:
        return self.inner.version

    async def sample(self, context_ids: IntArray, params: SampleParams, turn: Turn | None = None) -> Sample:
        return await self.inner.sample(context_ids, params, turn)

    async def close(self) -> None:
        await self.inner.close()


class Watch(Wrapped):
    """Remembers what it was given, and what it said to that."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self.seen: list[tuple[IntArray, IntArray]] = []
        self.params: list[SampleParams] = []

    async def sample(self, context_ids: IntArray, params: SampleParams, turn: Turn | None = None) -> Sample:
        sample = await super().sample(context_ids, params, turn)
        self.seen.append((context_ids, sample.ids))
        self.params.append(params)
        return sample


class Dawdle(Wrapped):
    """Gives way to other paths a random number of times before it answers: episodes interleave in any order."""

    def __init__(self, policy: Policy, seed: int) -> None:
        super().__init__(policy)
        self.rng = np.random.default_rng(seed)
        self.live = self.most_live = 0

    async def sample(self, context_ids: IntArray, params: SampleParams, turn: Turn | None = None) -> Sample:
        self.live += 1
        self.most_live = max(self.most_live, self.live)
        for _ in range(int(self.rng.integers(0, 6))):
            await asyncio.sleep(0)
        self.live -= 1
        return await super().sample(context_ids, params, turn)


class Before(Wrapped):
    """Calls `act(number of the sample, turn)` first; what that raises, the policy raises."""

    def __init__(self, policy: Policy, act: Callable[[int, Turn], object]) -> None:
        super().__init__(policy)
        self.act, self.samples = act, 0

    async def sample(self, context_ids: IntArray, params: SampleParams, turn: Turn | None = None) -> Sample:
        assert turn is not None
        self.samples += 1
        self.act(self.samples, turn)
        return await super().sample(context_ids, params, turn)


def void_leaves(tree: Tree) -> list[int]:
    return [leaf for leaf in tree.leaves if tree.void(leaf)]


def counted_leaves(tree: Tree) -> list[int]:
    return [leaf for leaf in tree.leaves if not tree.void(leaf)]
