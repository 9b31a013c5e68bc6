"""Base of turngym's own games: a mutable state dataclass, JSON tool calls, exact forks.

A game defines its state, how to set it up, the tools that a call may name and the words that come back. This
base answers malformed calls (they cost a turn: the policy caused them), ends the episode at the game's own turn
limit, keeps instances of the train and the test fold apart, and tells graders in `info["doomed"]` whether the
task can still be solved. Each game writes down an optimal policy, `optimal_action`.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from turngym.envs.base import Forking, TurnEnv
from turngym.envs.folds import Fold, check_fold, deal_until, in_fold
from turngym.errors import unknown_name
from turngym.toolcalls import CallError, format_call, parse_calls
from turngym.types import Message, Reply, ToolCall


class GameState(Protocol):
    """What every game's state has."""

    turn: int
    won: bool
    lost: bool


S = TypeVar("S", bound=GameState)


@dataclass(frozen=True, slots=True)
class Feedback:
    """What the game says to one well-formed call."""

    text: str
    reward: float = 0.0


def information(before: int, after: int, total: int) -> float:
    """Share of all there is to learn, in [0, 1], that narrowing `before` possibilities to `after` gives.

    log(before / after) / log(total): summed over an episode that starts at `total` and ends at 1 it gives 1.

    >>> information(8, 2, 16)
    0.5
    """
    return math.log(before / after) / math.log(total)


class TextGame(TurnEnv, ABC, Generic[S]):
    """A game over text and tool calls.

    Args:
        fold: instances of `train` and `test` never meet: a content hash decides which fold an instance is in.
        render_mode: None or `ansi`.
    """

    forking: ClassVar[Forking] = Forking.EXACT
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    tools: ClassVar[Mapping[str, tuple[str, ...]]]
    "tool name → names of its arguments, in order"

    _state: S

    def __init__(self, *, fold: Fold = "train", render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        check_fold(fold)
        self.fold: Fold = fold

    # ------------------------------------------------------------------ what a game writes

    @abstractmethod
    def deal(self) -> S:
        """A random instance, solvable within the turn limit, from `self.np_random` alone."""

    @abstractmethod
    def instance(self, state: S) -> Any:
        """What makes two fresh instances the same task: hashed to choose the fold."""

    @abstractmethod
    def turn_limit(self, state: S) -> int:
        """Actions allowed in this instance; running out of them is the policy's failure."""

    @abstractmethod
    def rules(self, state: S) -> str:
        """The system message."""

    @abstractmethod
    def opening(self, state: S) -> str:
        """The first user message."""

    @abstractmethod
    def call(self, state: S, call: ToolCall) -> Feedback:
        """Apply a call whose name and argument names are right. Mutates `state`."""

    @abstractmethod
    def doomed(self, state: S) -> bool:
        """True where no sequence of actions can still win. Exact, for graders only."""

    @abstractmethod
    def best_call(self, state: S) -> ToolCall:
        """An optimal call in `state`; any call where the game is doomed."""

    @abstractmethod
    def random_call(self, state: S, rng: Any) -> ToolCall:
        """A well-formed call drawn uniformly from those that a player might try."""

    def copy_state(self, state: S) -> S:
        """Shallow: games keep immutable values in their state's fields."""
        return copy.copy(state)

    # ------------------------------------------------------------------ the contract

    def start(self, options: Mapping[str, Any]) -> Reply:
        """Deal instances until one belongs to this fold (a fifth of all belong to `test`)."""
        for name in options:
            raise unknown_name(f"reset option of {type(self).__name__}", name, [])
        self._state = deal_until(
            self.deal,
            lambda state: in_fold(self.instance(state), self.fold),
            what=f"instance of {type(self).__name__} in the {self.fold} fold",
        )
        rules, opening = self.rules(self._state), self.opening(self._state)
        messages = [Message("system", rules), Message("user", opening)]
        return Reply(f"{rules}\n\n{opening}", messages=messages, info={"doomed": self.doomed(self._state)})

    def act(self, action: str) -> Reply:
        """One action is one tool call and costs one turn, well-formed or not."""
        state = self._state
        state.turn += 1
        feedback = self._answer(state, action)
        over = state.won or state.lost
        return Reply(
            feedback.text,
            reward=feedback.reward,
            terminated=over,
            truncated=not over and state.turn >= self.turn_limit(state),
            success=state.won,
            info={"doomed": not state.won and self.doomed(state)},
        )

    def get_state(self) -> S:
        """The state itself; `snapshot` copies it."""
        return self._state

    def set_state(self, state: S) -> None:
        """Put a state back."""
        self._state = state

    def optimal_action(self) -> str:
        """The optimal policy's text in the current state. Looks at the hidden state: for scripts and graders."""
        return format_call(self.best_call(self._state))

    def random_action(self, rng: Any) -> str:
        """A random well-formed action, drawn with the caller's `numpy.random.Generator`."""
        return format_call(self.random_call(self._state, rng))

    def _answer(self, state: S, action: str) -> Feedback:
        calls = parse_calls(action)
        if isinstance(calls, CallError):
            return Feedback(f"Error: {calls.message}")
        if len(calls) != 1:
            return Feedback(f"Error: one call a turn, got {len(calls)}.")
        call = calls[0]
        wanted = self.tools.get(call.name)
        if wanted is None:
            return Feedback(f"Error: no tool {call.name[:40]!r}. Tools: {', '.join(self.tools)}.")
        if set(call.arguments) != set(wanted):
            return Feedback(f"Error: {call.name} takes {', '.join(wanted) or 'no arguments'}.")
        return self.call(state, call)
