"""GuessNumber: find a hidden integer from "higher" and "lower".

The smallest information-gathering task: each guess splits what is left, and bisection finds any of n numbers in
⌊log2 n⌋ + 1 guesses, which with `slack` is the turn limit. A lucky guess can win as long as a turn is left, so
an instance is doomed only when none is.

Knobs: `size`, `low_max`, `slack`, and `turn_reward`, which pays a share of the reward for what each guess tells.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from turngym.envs.folds import Fold
from turngym.envs.text.game import Feedback, TextGame, information
from turngym.errors import ConfigError
from turngym.types import ToolCall


@dataclass(frozen=True, slots=True)
class Range:
    """What never changes in an episode."""

    low: int
    high: int
    "both ends can be the number"
    number: int
    turns: int


@dataclass(slots=True)
class GuessState:
    """What the guesses have left open."""

    layout: Range
    low: int
    high: int
    "the number is in [low, high]"
    turn: int = 0
    won: bool = False
    lost: bool = False


class GuessNumber(TextGame[GuessState]):
    """A hidden integer; every wrong guess says on which side it lies. Reward 1 for the right guess.

    Args:
        size: how many numbers are possible, 2 to 10,000.
        low_max: the lowest possible number is drawn from 1 to this.
        slack: turns allowed beyond what bisection needs in the worst case.
        turn_reward: share of the reward, 0 to 1, that is paid for information: a guess that leaves k of n open
            numbers earns turn_reward · log(n / k) / log(size), the right guess 1 − turn_reward more. A won
            episode always sums to 1. A lost one keeps what it earned, so this changes what is optimal.
        fold: `train` or `test` instances.
        render_mode: None or `ansi`.
    """

    tools: ClassVar = {"guess": ("number",)}

    def __init__(
        self,
        *,
        size: int = 50,
        low_max: int = 50,
        slack: int = 1,
        turn_reward: float = 0.0,
        fold: Fold = "train",
        render_mode: str | None = None,
    ) -> None:
        if not 2 <= size <= 10_000 or low_max < 1 or slack < 0 or not 0 <= turn_reward <= 1:
            raise ConfigError(
                "GuessNumber needs 2 ≤ size ≤ 10000, low_max ≥ 1, slack ≥ 0, 0 ≤ turn_reward ≤ 1; "
                f"got {size}, {low_max}, {slack}, {turn_reward}"
            )
        super().__init__(fold=fold, render_mode=render_mode)
        self.size, self.low_max, self.slack, self.turn_reward = size, low_max, slack, turn_reward

    def deal(self) -> GuessState:
        """Draw where the range starts and the number in it."""
        low = int(self.np_random.integers(1, self.low_max + 1))
        high = low + self.size - 1
        number = int(self.np_random.integers(low, high + 1))
        return GuessState(Range(low, high, number, self.size.bit_length() + self.slack), low, high)

    def turn_limit(self, state: GuessState) -> int:
        """Bisection's worst case plus the slack."""
        return state.layout.turns

    def instance(self, state: GuessState) -> Any:
        """The range and the number."""
        return state.layout.low, state.layout.high, state.layout.number

    def rules(self, state: GuessState) -> str:
        """How to win and how to call the tool."""
        return (
            "Find the hidden number. After each guess you are told if it is higher or lower.\n"
            "Tools: guess(number). One call a turn:\n"
            '<tool_call>{"name": "guess", "arguments": {"number": 7}}</tool_call>'
        )

    def opening(self, state: GuessState) -> str:
        """The range and the turns."""
        return f"It is in {state.low} to {state.high}. You have {state.layout.turns} turns."

    def call(self, state: GuessState, call: ToolCall) -> Feedback:
        """Compare the guess with the number."""
        guess = call.arguments["number"]
        if type(guess) is not int:  # JSON's true is an int to isinstance
            return Feedback("Error: number is an integer.")
        before = state.high - state.low + 1
        if guess == state.layout.number:
            state.won = True
            return Feedback("Correct.", reward=1 - self.turn_reward + self._pay(before, 1))
        if guess < state.layout.number:
            state.low, word = max(state.low, guess + 1), "Higher"
        else:
            state.high, word = min(state.high, guess - 1), "Lower"
        pay = self._pay(before, state.high - state.low + 1)
        return Feedback(f"{word}. It is in {state.low} to {state.high}.", reward=pay)

    def doomed(self, state: GuessState) -> bool:
        """True where no turn is left to guess in."""
        return not state.won and state.turn >= state.layout.turns

    def best_call(self, state: GuessState) -> ToolCall:
        """The middle of what is left."""
        return ToolCall("guess", {"number": (state.low + state.high) // 2})

    def random_call(self, state: GuessState, rng: Any) -> ToolCall:
        """Any number of the first range, ruled out or not."""
        return ToolCall("guess", {"number": int(rng.integers(state.layout.low, state.layout.high + 1))})

    def _pay(self, before: int, after: int) -> float:
        return self.turn_reward * information(before, after, self.size)
