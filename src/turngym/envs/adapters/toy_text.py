"""Gymnasium's toy text environments in words: FrozenLake, Taxi, CliffWalking, Blackjack.

The dynamics are Gymnasium's own objects, drawing from this environment's `np_random`; here is only what turns their
numbers into text and text into their numbers. An action is one word, or a tool call that says it. What is no word
of the game costs a turn (and what a wasted turn costs there) and changes nothing. `optimal_action` solves the
tabular ones by value iteration on their published transition tables.

Success: the goal reached (FrozenLake, CliffWalking), the passenger delivered (Taxi), the hand won (Blackjack).
"""

from __future__ import annotations

import copy
import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
import numpy.typing as npt

from turngym.envs.adapters.command import command
from turngym.envs.base import Forking, TurnEnv
from turngym.errors import ConfigError, MissingDependency, unknown_name
from turngym.types import Message, Reply

Table = Mapping[int, Mapping[int, Sequence[tuple[float, int, float, bool]]]]
"state → action → (probability, next state, reward, over) of each outcome"


class ToyText(TurnEnv, ABC):
    """One of Gymnasium's toy text environments.

    Args:
        max_turns: actions allowed; running out of them is the policy's failure.
        render_mode: None or `ansi`.
        **native: options of Gymnasium's own environment.
    """

    forking: ClassVar[Forking] = Forking.EXACT
    native_id: ClassVar[str]
    words: ClassVar[Sequence[str]]
    "word of each native action, by its number"
    kept: ClassVar[Sequence[str]]
    "attributes of the native environment that change in an episode"
    wasted: ClassVar[float] = 0.0
    "reward of an action that is no word of the game"

    def __init__(self, *, max_turns: int, render_mode: str | None, **native: Any) -> None:
        super().__init__(render_mode=render_mode)
        if max_turns < 1:
            raise ConfigError(f"max_turns must be at least 1, got {max_turns}")
        self.max_turns = max_turns
        self._options = tuple(sorted(native.items()))
        self._native: Any = copy.copy(_prototype(self.native_id, self._options))
        self._turn = 0

    @abstractmethod
    def rules(self) -> str:
        """What the player is told before the first observation."""

    @abstractmethod
    def view(self) -> str:
        """The state in words."""

    @abstractmethod
    def remark(self, reward: float, over: bool) -> str:
        """What the state does not show of the last turn; may be empty."""

    @abstractmethod
    def won(self, reward: float) -> bool:
        """Whether an episode that ended with `reward` was a success."""

    @abstractmethod
    def best_action(self) -> int:
        """Number of an optimal native action."""

    def start(self, options: Mapping[str, Any]) -> Reply:
        """Reset Gymnasium's environment on our generator."""
        for name in options:
            raise unknown_name(f"reset option of {type(self).__name__}", name, [])
        self._native.np_random = self.np_random
        self._native.reset()
        self._turn = 0
        rules = (
            f"{self.rules()}\nAnswer with one word: {', '.join(self.words)}. You have {self.max_turns} turns."
        )
        view = self.view()
        return Reply(f"{rules}\n\n{view}", messages=[Message("system", rules), Message("user", view)])

    def act(self, action: str) -> Reply:
        """One word, one native step."""
        self._turn += 1
        word = command(action).lower().strip(" .!\"'[]")
        if word in self.words:
            _, reward, over, _, _ = self._native.step(self.words.index(word))
            text = f"{self.view()} {self.remark(float(reward), over)}".rstrip()
        else:
            reward, over = self.wasted, False
            text = f"That is no action here. Answer with one word: {', '.join(self.words)}."
        return Reply(
            text,
            reward=float(reward),
            terminated=bool(over),
            truncated=not over and self._turn >= self.max_turns,
            success=bool(over) and self.won(float(reward)),
            messages=[Message("user", text)],
        )

    def get_state(self) -> dict[str, Any]:
        """What changes in Gymnasium's environment, and the turn."""
        return {"turn": self._turn, **{name: getattr(self._native, name) for name in self.kept}}

    def set_state(self, state: dict[str, Any]) -> None:
        """Put it back, and draw from our generator from here on."""
        self._turn = state["turn"]
        for name in self.kept:
            setattr(self._native, name, state[name])
        self._native.np_random = self.np_random

    def close(self) -> None:
        """Close Gymnasium's environment as well."""
        self._native.close()
        super().close()

    def optimal_action(self) -> str:
        """The word of an optimal action. Looks at the hidden state: for scripts and graders."""
        return self.words[self.best_action()]

    def random_action(self, rng: Any) -> str:
        """A word, drawn uniformly with the caller's `numpy.random.Generator`."""
        return self.words[int(rng.integers(len(self.words)))]


class Grid(ToyText):
    """A toy text environment with a transition table `P[state][action] = [(probability, state, reward, over)]`."""

    kept: ClassVar[Sequence[str]] = ("s",)

    def best_action(self) -> int:
        """Greedy in the optimal action values."""
        return int(_solution(self.native_id, self._options)[self._native.s].argmax())

    def _place(self, columns: int) -> tuple[int, int]:
        row, column = divmod(int(self._native.s), columns)
        return row, column


class FrozenLake(Grid):
    """Cross a frozen lake from start to goal; the ice may carry you sideways (Gymnasium's FrozenLake-v1).

    Args:
        map_name: `4x4` or `8x8`.
        is_slippery: whether a move may end at a right angle to what was meant.
        success_rate: probability of going where it was meant, on slippery ice.
        max_turns: actions allowed; Gymnasium's own limit for `4x4` by default.
        render_mode: None or `ansi`.
    """

    native_id: ClassVar[str] = "FrozenLake-v1"
    words: ClassVar[Sequence[str]] = ("left", "down", "right", "up")
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __init__(
        self,
        *,
        map_name: str = "4x4",
        is_slippery: bool = True,
        success_rate: float = 1 / 3,
        max_turns: int = 100,
        render_mode: str | None = None,
    ) -> None:
        if map_name not in ("4x4", "8x8"):
            raise unknown_name("map of FrozenLake", map_name, ["4x4", "8x8"])
        slip = {"is_slippery": is_slippery, "success_rate": success_rate}
        super().__init__(max_turns=max_turns, render_mode=render_mode, map_name=map_name, **slip)

    def rules(self) -> str:
        """The map's letters and the ice."""
        return (
            "Cross the frozen lake from S to G. F is ice, H is a hole that ends the walk, @ is where you stand. "
            + (
                "The ice is slippery: you may slide sideways."
                if len(self._native.P[0][0]) > 1
                else "The ice holds."
            )
        )

    def view(self) -> str:
        """The map, with the player on it."""
        rows = [[cell.decode() for cell in row] for row in self._native.desc.tolist()]
        row, column = self._place(len(rows[0]))
        rows[row][column] = "@"
        board = "\n".join("".join(cells) for cells in rows)
        return f"{board}\nRow {row}, column {column}."

    def remark(self, reward: float, over: bool) -> str:
        """How the walk ended."""
        return ("You reached the goal." if reward > 0 else "You fell into a hole.") if over else ""

    def won(self, reward: float) -> bool:
        """The goal pays 1, a hole nothing."""
        return reward > 0


class CliffWalking(Grid):
    """Walk along a cliff from the lower left to the lower right corner (Gymnasium's CliffWalking-v1).

    Args:
        is_slippery: whether a move may end at a right angle to what was meant.
        max_turns: actions allowed.
        render_mode: None or `ansi`.
    """

    native_id: ClassVar[str] = "CliffWalking-v1"
    words: ClassVar[Sequence[str]] = ("up", "right", "down", "left")
    reward_range: ClassVar[tuple[float, float]] = (-100.0, -1.0)
    wasted: ClassVar[float] = -1.0

    def __init__(
        self, *, is_slippery: bool = False, max_turns: int = 100, render_mode: str | None = None
    ) -> None:
        super().__init__(max_turns=max_turns, render_mode=render_mode, is_slippery=is_slippery)

    def rules(self) -> str:
        """The map's letters and what a fall costs."""
        return (
            "Walk from the start S to the goal G in as few turns as you can. A turn costs 1; stepping onto the "
            "cliff C costs 100 and puts you back at the start. @ is where you stand."
        )

    def view(self) -> str:
        """The map, with the player on it."""
        cells = [["." for _ in range(12)] for _ in range(4)]
        cells[3] = ["S", *"C" * 10, "G"]
        row, column = self._place(12)
        cells[row][column] = "@"
        board = "\n".join("".join(line) for line in cells)
        return f"{board}\nRow {row}, column {column}."

    def remark(self, reward: float, over: bool) -> str:
        """A fall, or the goal."""
        return "You reached the goal." if over else "You fell off the cliff." if reward < -1 else ""

    def won(self, reward: float) -> bool:
        """Only the goal ends the episode."""
        return True


class Taxi(Grid):
    """Fetch a passenger and deliver them at one of four stands (Gymnasium's Taxi-v4; Dietterich, 2000).

    Args:
        is_rainy: whether a move may end at a right angle to what was meant.
        fickle_passenger: whether the passenger may change their mind on the way.
        max_turns: actions allowed; Gymnasium's own limit by default.
        render_mode: None or `ansi`.
    """

    native_id: ClassVar[str] = "Taxi-v4"
    words: ClassVar[Sequence[str]] = ("south", "north", "east", "west", "pickup", "dropoff")
    kept: ClassVar[Sequence[str]] = ("s", "fickle_step")
    reward_range: ClassVar[tuple[float, float]] = (-10.0, 20.0)
    wasted: ClassVar[float] = -1.0
    stands: ClassVar[Sequence[str]] = ("R", "G", "Y", "B")

    def __init__(
        self,
        *,
        is_rainy: bool = False,
        fickle_passenger: bool = False,
        max_turns: int = 200,
        render_mode: str | None = None,
    ) -> None:
        native = {"is_rainy": is_rainy, "fickle_passenger": fickle_passenger}
        super().__init__(max_turns=max_turns, render_mode=render_mode, **native)

    def rules(self) -> str:
        """The task, the map's walls and the rewards."""
        return (
            "Drive the taxi @ to the passenger, pick them up, and drop them off at their destination. The stands are "
            "R, G, Y and B; a | is a wall between two cells, a : is none. A turn costs 1, a wrong pickup or dropoff "
            "10; delivering earns 20."
        )

    def view(self) -> str:
        """The map, where everybody is, and where to go."""
        row, column, passenger, destination = self._native.decode(int(self._native.s))
        lines = [[cell.decode() for cell in line] for line in self._native.desc.tolist()]
        lines[1 + row][1 + 2 * column] = "@"
        board = "\n".join("".join(line) for line in lines)
        who = "in the taxi" if passenger == len(self.stands) else f"at {self.stands[passenger]}"
        return f"{board}\nTaxi: row {row}, column {column}. Passenger: {who}. Destination: {self.stands[destination]}."

    def remark(self, reward: float, over: bool) -> str:
        """A delivery, or what cost 10."""
        return "Delivered." if over else "Not possible here." if reward < -1 else ""

    def won(self, reward: float) -> bool:
        """Only a delivery ends the episode."""
        return True


class Blackjack(ToyText):
    """One hand of Blackjack from an endless deck (Gymnasium's Blackjack-v1; Sutton and Barto, Example 5.1).

    Args:
        natural: whether winning with the first two cards pays 1.5.
        sab: whether the rules are exactly those of the book (a natural beats all but another).
        max_turns: actions allowed; a hand can't take as many by playing.
        render_mode: None or `ansi`.
    """

    native_id: ClassVar[str] = "Blackjack-v1"
    words: ClassVar[Sequence[str]] = ("stick", "hit")
    kept: ClassVar[Sequence[str]] = ("player", "dealer")
    reward_range: ClassVar[tuple[float, float]] = (-1.0, 1.5)

    def __init__(
        self, *, natural: bool = False, sab: bool = True, max_turns: int = 30, render_mode: str | None = None
    ) -> None:
        super().__init__(max_turns=max_turns, render_mode=render_mode, natural=natural, sab=sab)

    def rules(self) -> str:
        """The game in three sentences."""
        return (
            "Blackjack: come closer to 21 than the dealer without going over. Face cards count 10, an ace 11 or 1. "
            "Hit for another card, stick to let the dealer draw up to 17."
        )

    def view(self) -> str:
        """Our hand and the dealer's first card."""
        total, _, usable = (int(number) for number in self._native._get_obs())
        ace = ", with an ace as 11" if usable else ""
        return f"Your cards: {_cards(self._native.player)} (sum {total}{ace}). Dealer shows: {_cards(self._native.dealer[:1])}."

    def remark(self, reward: float, over: bool) -> str:
        """The dealer's whole hand and the result."""
        if not over:
            return ""
        result = "You win." if reward > 0 else "You lose." if reward < 0 else "A draw."
        return f"Dealer's cards: {_cards(self._native.dealer)}. {result}"

    def won(self, reward: float) -> bool:
        """A draw is no win."""
        return reward > 0

    def best_action(self) -> int:
        """The optimal policy of Sutton and Barto, Figure 5.2: stick (0) or hit (1)."""
        total, dealer, usable = (int(number) for number in self._native._get_obs())
        if usable:
            return int(total < 18 or (total == 18 and dealer in (1, 9, 10)))
        if dealer in range(2, 7):
            return int(total < (13 if dealer < 4 else 12))
        return int(total < 17)


def action_values(table: Table, *, discount: float = 0.99) -> npt.NDArray[np.float64]:
    """Optimal action values `(states, actions)` of a transition table, by value iteration to 1e-9.

    Discounted a little, so that a shorter way to the goal is worth more than a longer one.
    """
    width = max(len(outcomes) for row in table.values() for outcomes in row.values())
    padding = (0.0, 0, 0.0, True)
    outcomes = np.array(
        [
            [[*cell, *[padding] * (width - len(cell))] for cell in table[s].values()]
            for s in range(len(table))
        ],
        float,
    )
    probability, after, reward, over = np.moveaxis(outcomes, -1, 0)  # each (states, actions, width)
    values = np.zeros(probability.shape[:2])
    while True:
        future = values.max(axis=1)[after.astype(int)] * (1 - over)
        updated = (probability * (reward + discount * future)).sum(axis=-1)
        if np.abs(updated - values).max() < 1e-9:
            return np.asarray(updated)
        values = updated


@functools.cache
def _prototype(native_id: str, options: tuple[tuple[str, Any], ...]) -> Any:
    """Gymnasium's environment, made once: its transition table is the same for all copies and never written."""
    try:
        return gymnasium.make(native_id, disable_env_checker=True, **dict(options)).unwrapped
    except gymnasium.error.UnregisteredEnv as error:
        raise MissingDependency(f"{error} To get a newer one: pip install -U gymnasium") from error


@functools.cache
def _solution(native_id: str, options: tuple[tuple[str, Any], ...]) -> npt.NDArray[np.float64]:
    return action_values(_prototype(native_id, options).P)


def _cards(hand: Sequence[int]) -> str:
    return ", ".join("ace" if card == 1 else str(card) for card in hand)
