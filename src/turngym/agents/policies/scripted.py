"""Deterministic policies that need no model: oracle, random, mixtures of the two, and replay.

They ship in the package, so that environments, trees, credit and evaluation are tested without a mock, and they
make the demonstrations of the default model. Each names the log-prob of its choice, on the first token of the action
(an action is chosen as one piece).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np

from turngym.agents.chat import ByteRenderer, Renderer
from turngym.agents.policy import Sample, SampleParams, Turn, whole_sample
from turngym.envs.base import TurnEnv
from turngym.errors import ConfigError, HarnessFault
from turngym.tree import Node, Tree
from turngym.types import IntArray


@runtime_checkable
class Expert(Protocol):
    """An environment that writes down how it is played: for scripts and graders, never for a model."""

    def optimal_action(self) -> str:
        """Text of the best action in the current state."""
        ...

    def random_action(self, rng: Any) -> str:
        """Text of a random well-formed action."""
        ...


class ScriptedPolicy(ABC):
    """Base: chooses a text, which the renderer turns into ids.

    A text is one piece, so `max_tokens` does not cut it: half of a tool call would be another action.
    """

    window: int | None = None

    def __init__(self, name: str, *, renderer: Renderer | None = None) -> None:
        self.name = name
        self.renderer: Renderer = renderer or ByteRenderer()

    @property
    def version(self) -> int:
        """Scripts don't learn."""
        return 0

    @abstractmethod
    def choose(self, turn: Turn, seed: int) -> tuple[str, float]:
        """The action's text and the log-prob with which this policy chooses it here."""

    async def sample(self, context_ids: IntArray, params: SampleParams, turn: Turn | None = None) -> Sample:
        """One action, whole. Raises `ConfigError` without a `Turn`: a script decides on the environment."""
        if turn is None:
            raise ConfigError(f"{self.name} decides on the environment, not on tokens: pass it the turn")
        text, logprob = self.choose(turn, params.seed)
        return whole_sample(self.renderer.action(text), logprob, 0)

    async def close(self) -> None:  # noqa: B027 - nothing to release is a complete answer
        """Nothing to release."""


class Oracle(ScriptedPolicy):
    """The environment's own optimal policy."""

    def __init__(self, *, renderer: Renderer | None = None) -> None:
        super().__init__("scripted:oracle", renderer=renderer)

    def choose(self, turn: Turn, seed: int) -> tuple[str, float]:
        """The optimal action, with certainty."""
        return _expert(turn.env).optimal_action(), 0.0


class Mixture(ScriptedPolicy):
    """Random with probability `epsilon`, optimal otherwise; `epsilon=1` is the random policy.

    The recorded log-prob is that of the branch taken, `log ε` or `log (1 − ε)`, and not that of the action: a random draw
    has many outcomes, and the optimal action may be among them.
    """

    def __init__(self, epsilon: float, *, renderer: Renderer | None = None) -> None:
        if not 0 <= epsilon <= 1:
            raise ConfigError(f"epsilon is a probability, got {epsilon}")
        super().__init__(
            "scripted:random" if epsilon == 1 else f"scripted:epsilon?epsilon={epsilon}", renderer=renderer
        )
        self.epsilon = epsilon

    def choose(self, turn: Turn, seed: int) -> tuple[str, float]:
        """Toss the coin, then act."""
        rng = np.random.Generator(np.random.Philox(seed))
        expert = _expert(turn.env)
        if rng.random() < self.epsilon:
            return expert.random_action(rng), math.log(self.epsilon)
        return expert.optimal_action(), math.log1p(-self.epsilon)


def by_expert(node: Node, epsilon: float) -> bool:
    """True for an action of `Mixture(epsilon)` that was not random.

    The recorded log-prob tells which branch was taken, for any `epsilon` but one half.
    """
    return bool(node.is_action and node.logprobs[0] == np.float32(math.log1p(-epsilon)))


class Replay(ScriptedPolicy):
    """Says given texts, one a turn. Running past the last one is a fault of the harness, not of the policy."""

    def __init__(self, actions: Sequence[str], *, renderer: Renderer | None = None) -> None:
        super().__init__("scripted:replay", renderer=renderer)
        self.actions = list(actions)

    @classmethod
    def of(cls, tree: Tree, leaf: int, renderer: Renderer) -> Replay:
        """Replays the path to `leaf`, as `renderer` (the one that recorded it) reads its actions."""
        return cls([renderer.text(tree[i].ids) for i in tree.actions(leaf)], renderer=renderer)

    def choose(self, turn: Turn, seed: int) -> tuple[str, float]:
        """The recorded action of this turn."""
        if turn.index >= len(self.actions):
            raise HarnessFault(
                f"the recording has {len(self.actions)} actions, and turn {turn.index} was asked for"
            )
        return self.actions[turn.index], 0.0


def _expert(env: TurnEnv) -> Expert:
    # isinstance(env, Expert) would say the same ten times slower.
    if not (hasattr(env, "optimal_action") and hasattr(env, "random_action")):
        raise ConfigError(
            f"{type(env).__name__} has no optimal_action() and random_action(): scripts can't play it"
        )
    return cast(Expert, env)
