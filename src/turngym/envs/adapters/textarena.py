"""TextArena's single-player games (Guertler et al., 2025).

A game is a Python object; its attributes are the state, so a deep copy of them is an exact fork. The games draw
from the global `random`: each episode has it to itself for the length of a call (`isolation`). What the game says
since the last action is the observation; the whole history is the agent's business, not the environment's.

Success is the full reward of 1; less is the game's own measure of progress. An invalid move is answered once and
ends the game when it comes twice in a row: that is TextArena's rule, and the policy's failure.
"""

from __future__ import annotations

import copy
import functools
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from turngym.envs.adapters.command import command
from turngym.envs.base import Forking, TurnEnv
from turngym.envs.isolation import GlobalRandom, isolated, silence
from turngym.errors import ConfigError, unknown_name
from turngym.registry import import_extra
from turngym.types import Message, Reply

_MAX_CHARS = 4000
"""A longer message is read as an invalid move: some games match it with patterns of quadratic cost, and Python
refuses to read an integer of more than 4,300 digits."""

_GAME = -1
"""Who speaks in a message of the game itself (`textarena.GAME_ID`)."""

_MOVES = {
    "2048": "[{up|down|left|right}]",
    "Blackjack": "[{hit|stand}]",
    "Countdown": "[{0-5} {0-5} {+|-|*|/}]",
    "Crosswords": "[{0-9} {0-9} {A-Z}]",
    "Cryptarithm": "[{S|E|N|D|M|O|R|Y} {0-9}]",
    "FifteenPuzzle": "[{up|down|left|right}]",
    "FrozenLake": "[{up|down|left|right}]",
    "GuessTheNumber": "[{1-20}]",
    "LightsOut": "[{0-4} {0-4}]",
    "LogicPuzzle": "[{home|work|park} {alice|bob|charlie} {X|O}]",
    "Mastermind": "[{1-6} {1-6} {1-6} {1-6}]",
    "Minesweeper": "[{0-7} {0-7}]",
    "PegJump": "[{1-15} {1-15}]",
    "Secretary": "[{accept|continue}]",
    "Slitherlink": "[{h|v} {0-4} {0-4}]",
    "Sokoban": "[{up|down|left|right}]",
    "Sudoku": "[{1-9} {1-9} {1-9}]",
    "ThreeCardMonte": "[{0-2}]",
    "TowerOfHanoi": "[{A|B|C} {A|B|C}]",
}
"""What a move looks like, for random play: `{a-z}` is a range, `{x|y}` a choice."""


class TextArena(TurnEnv):
    """A single-player game of TextArena.

    Args:
        game: TextArena's id, `Mastermind-v0`.
        variant: a harder or easier version that TextArena registers, `hard` for `Mastermind-v0-hard`.
        max_turns: actions allowed, beside the game's own limit; running out of them is the policy's failure.
        render_mode: None or `ansi`.

    Raises:
        MissingDependency: without the package.
        UnknownName: for a game that TextArena does not have.
        ConfigError: at the reset, for a game of several players.
    """

    forking: ClassVar[Forking] = Forking.EXACT
    reward_range: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    blocking: ClassVar[bool] = True  # some search for a solvable board, and all share one lock

    def __init__(
        self, *, game: str, variant: str | None = None, max_turns: int = 200, render_mode: str | None = None
    ) -> None:
        super().__init__(render_mode=render_mode)
        if max_turns < 1:
            raise ConfigError(f"max_turns must be at least 1, got {max_turns}")
        with isolated():
            textarena = import_extra("textarena", extra="textarena")
        known = textarena.envs.registration.ENV_REGISTRY
        name = f"{game}-{variant}" if variant else game
        if f"{name}-raw" not in known:
            games = [k.removesuffix("-raw") for k in known if k.endswith("-raw")]
            raise unknown_name("game of TextArena", name, games)
        self.game, self.max_turns = name, max_turns
        self._make: Callable[[], Any] = functools.partial(textarena.make, f"{name}-raw")
        self._random, self._turn = GlobalRandom.seeded(0), 0
        with isolated():
            self._game = self._make()
        silence(sys.modules[type(self._game).__module__])
        self._constants = {key for key, value in vars(self._game).items() if callable(value)}

    def start(self, options: Mapping[str, Any]) -> Reply:
        """A new game with a seed of ours: a used one may keep something."""
        for name in options:
            raise unknown_name(f"reset option of {type(self).__name__}", name, [])
        seed = int(self.np_random.integers(1 << 31))
        self._random, self._turn = GlobalRandom.seeded(seed), 0
        with isolated(self._random):
            self._game = self._make()
            try:
                self._game.reset(num_players=1, seed=seed)
            except AssertionError as error:
                raise ConfigError(f"{self.game} is no game for one player: {error}") from error
            text = self._heard()
        return Reply(text, messages=[Message("user", text)])

    def act(self, action: str) -> Reply:
        """One message to the game; brackets are added where there are none, as TextArena's own wrapper does."""
        self._turn += 1
        said = command(action) if len(action) <= _MAX_CHARS else ""
        move = said if "[" in said or "]" in said else f"[{said}]"
        with isolated(self._random):
            over, _ = self._game.step(move)
            text = self._heard()
            reward = self._outcome() if over else 0.0
        return Reply(
            text,
            reward=reward,
            terminated=bool(over),
            truncated=not over and self._turn >= self.max_turns,
            success=bool(over) and reward >= 1.0,
            messages=[Message("user", text)],
        )

    def get_state(self) -> dict[str, Any]:
        """The game's attributes, the generators that it draws from, and the turn."""
        attributes = {key: value for key, value in vars(self._game).items() if key not in self._constants}
        return {"game": attributes, "random": self._random, "turn": self._turn}

    def set_state(self, state: dict[str, Any]) -> None:
        """Put the attributes into this environment's own game, and take away those that came later."""
        attributes = vars(self._game)
        for key in attributes.keys() - state["game"].keys() - self._constants:
            del attributes[key]
        attributes.update(state["game"])
        self._random, self._turn = state["random"], state["turn"]

    def copy_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """Deep."""
        return copy.deepcopy(state)

    def random_action(self, rng: Any) -> str:
        """A move of the right form, drawn with the caller's `numpy.random.Generator`."""
        pattern = _MOVES.get(self.game.split("-v")[0], "[{0-9}]")
        return re.sub(r"\{(.*?)\}", lambda found: _draw(found[1], rng), pattern)

    def _heard(self) -> str:
        """What the game said since the last time, without the echo of our own move."""
        _, messages = self._game.get_observation()
        told = [text for who, text, _ in messages if who == _GAME]
        if self._game.state.done:
            told.append(self._game.state.game_info[0].get("reason") or "The game is over.")
        return "\n".join(told)

    def _outcome(self) -> float:
        """The final reward. Some games of 0.7 swap reward and reason of an invalid move: that one counts as 0."""
        rewards, _ = self._game.close()
        return 0.0 if isinstance(rewards[0], str) else float(rewards[0])


def _draw(choices: str, rng: Any) -> str:
    words = choices.split("|")
    if len(words) == 1:
        low, _, high = choices.partition("-")
        if low.isdigit():
            return str(rng.integers(int(low), int(high) + 1))
        words = [chr(code) for code in range(ord(low), ord(high) + 1)]
    return words[int(rng.integers(len(words)))]
