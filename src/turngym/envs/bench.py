"""What the contract's tests stand on: two recorded episodes of an environment, and a way to repeat and compare them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, cast

import numpy as np

from turngym.envs.base import Step, TurnEnv
from turngym.envs.hostile import random_texts
from turngym.seeding import generator
from turngym.types import Message


class Violation(Exception):
    """The contract is broken; the message says what was seen."""


def require(condition: bool, seen: str) -> None:
    """Raise a `Violation` that says what was seen, unless `condition` holds."""
    if not condition:
        raise Violation(seen)


def short(value: object, limit: int = 60) -> str:
    """`repr(value)` in at most `limit` characters and its length."""
    text = value if isinstance(value, str) and limit > 60 else repr(value)
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"


class Scripted(Protocol):
    """An environment that knows how it is played."""

    def optimal_action(self) -> str:
        """What an optimal policy would say."""

    def random_action(self, rng: np.random.Generator) -> str:
        """A well-formed action."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Everything that can be seen of an environment at one turn."""

    observation: str
    reward: float
    terminated: bool
    truncated: bool
    success: bool | None
    messages: tuple[Message, ...]
    state_key: str

    @property
    def over(self) -> bool:
        """True at the end of an episode."""
        return self.terminated or self.truncated

    @classmethod
    def first(cls, env: TurnEnv, reset: tuple[str, dict[str, Any]]) -> Moment:
        """After a reset."""
        text, info = reset
        return cls(text, 0.0, False, False, None, tuple(info["messages"]), env.state_key())

    @classmethod
    def after(cls, env: TurnEnv, step: Step) -> Moment:
        """After a step."""
        text, reward, terminated, truncated, info = step
        messages = tuple(info["messages"])
        return cls(text, reward, terminated, truncated, info.get("success"), messages, env.state_key())

    def compare(self, turn: int, now: Moment) -> None:
        """Raise a `Violation` that names the first thing that differs in `now`."""
        for name in self.__slots__:
            old, new = getattr(self, name), getattr(now, name)
            require(old == new, f"turn {turn}: {name} was {short(old)}, then {short(new)}")


@dataclass(frozen=True, slots=True)
class Script:
    """An episode to repeat: its seed, its actions, and what was seen when it was first played."""

    seed: int
    actions: Sequence[str]
    moments: Sequence[Moment]
    "one more than actions: the first belongs to the reset"

    def reset(self, env: TurnEnv) -> None:
        """Begin the episode in `env`, and compare."""
        self.moments[0].compare(0, Moment.first(env, env.reset(seed=self.seed)))

    def step(self, env: TurnEnv, turn: int) -> None:
        """Take the action of `turn` (the first is 0) in `env`, and compare."""
        self.moments[turn + 1].compare(turn + 1, Moment.after(env, env.step(self.actions[turn])))

    def play(self, env: TurnEnv) -> None:
        """The whole episode."""
        self.reset(env)
        for turn in range(len(self.actions)):
            self.step(env, turn)

    async def play_async(self, env: TurnEnv) -> None:
        """The whole episode, through the asynchronous methods."""
        self.moments[0].compare(0, Moment.first(env, await env.reset_async(seed=self.seed)))
        for turn, action in enumerate(self.actions):
            self.moments[turn + 1].compare(turn + 1, Moment.after(env, await env.step_async(action)))


@dataclass(frozen=True)
class Bench:
    """An environment under test."""

    factory: Callable[[], TurnEnv]
    env_class: type[TurnEnv]
    seed: int
    turns: int
    "the longest script"
    actions: int
    "how many random and how many hostile actions to try"

    @contextlib.contextmanager
    def fresh(self) -> Iterator[TurnEnv]:
        """A new environment, closed afterwards."""
        with contextlib.closing(self.factory()) as env:
            yield env

    def rng(self, use: str) -> np.random.Generator:
        """The generator of one test."""
        return generator(self.seed, "checker", use)

    @cached_property
    def scripts(self) -> tuple[Script, Script]:
        """Two episodes of different seeds."""
        return self._record("first"), self._record("second")

    @property
    def scripted_turns(self) -> int:
        """Turns in both scripts together."""
        return sum(len(script.actions) for script in self.scripts)

    def choose(self, env: TurnEnv, rng: np.random.Generator) -> str:
        """An action that gets somewhere now and then: the environment's own policies where it has any."""
        if not hasattr(env, "random_action"):
            return next(random_texts(rng, 1))
        scripted = cast(Scripted, env)
        if hasattr(env, "optimal_action") and rng.random() < 0.5:
            return scripted.optimal_action()
        return scripted.random_action(rng)

    def _record(self, name: str) -> Script:
        rng = self.rng(name)
        seed = int(rng.integers(1 << 31))
        with self.fresh() as env:
            actions: list[str] = []
            moments = [Moment.first(env, env.reset(seed=seed))]
            while len(actions) < self.turns and not moments[-1].over:
                actions.append(self.choose(env, rng))
                moments.append(Moment.after(env, env.step(actions[-1])))
        return Script(seed, actions, moments)
