"""Mastermind: find a code of coloured pegs from how many are exact and how many are misplaced.

Information gathering with a combinatorial state. The written policy is Knuth's minimax ("The computer as master
mind", J. Recreational Mathematics 9, 1976): guess the code that leaves the fewest codes open in the worst case.
Its own worst case, found by playing against every code, plus `slack` is the turn limit. A lucky guess can win
as long as a turn is left, so an instance is doomed only when none is.

Knobs: `pegs`, `colours`, `palette`, `slack`, and `turn_reward`, which pays a share of the reward for what each
guess tells. Minimax looks one guess ahead: it wins always, but not always in the fewest turns on average.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from turngym.envs.folds import Fold
from turngym.envs.text.game import Feedback, TextGame, information
from turngym.errors import ConfigError
from turngym.types import ToolCall

COLOURS = ("red", "blue", "green", "gold", "pink", "grey", "white", "black")
_MAX_CODES = 1296

Code = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Secret:
    """What never changes in an episode."""

    palette: tuple[str, ...]
    "colours in play; a code is a tuple of indices into it"
    code: Code
    turns: int


@dataclass(slots=True)
class MastermindState:
    """The guesses so far."""

    layout: Secret
    history: tuple[tuple[Code, tuple[int, int]], ...] = ()
    "(guess, (exact, misplaced)) of every well-formed guess"
    turn: int = 0
    won: bool = False
    lost: bool = False


class Mastermind(TextGame[MastermindState]):
    """A hidden code; each guess is answered with its exact and its misplaced pegs. Reward 1 for the code.

    Args:
        pegs: length of the code, 1 to 6.
        colours: colours in play, 2 to 8; colours ** pegs may be at most 1296.
        palette: how many colours there are to draw those in play from, `colours` to 8.
        slack: turns allowed beyond what the written policy needs in the worst case.
        turn_reward: share of the reward, 0 to 1, that is paid for information: a guess that leaves k of n
            consistent codes earns turn_reward · log(n / k) / log(all codes), the right guess 1 − turn_reward
            more. A won episode always sums to 1. A lost one keeps what it earned, so this changes what is optimal.
        fold: `train` or `test` instances.
        render_mode: None or `ansi`.
    """

    tools: ClassVar = {"guess": ("code",)}

    def __init__(
        self,
        *,
        pegs: int = 3,
        colours: int = 3,
        palette: int = 6,
        slack: int = 3,
        turn_reward: float = 0.0,
        fold: Fold = "train",
        render_mode: str | None = None,
    ) -> None:
        if not (1 <= pegs <= 6 and 2 <= colours <= palette <= len(COLOURS) and colours**pegs <= _MAX_CODES):
            raise ConfigError(
                f"Mastermind needs 1 ≤ pegs ≤ 6, 2 ≤ colours ≤ palette ≤ 8, colours ** pegs ≤ {_MAX_CODES}; "
                f"got pegs={pegs}, colours={colours}, palette={palette}"
            )
        if slack < 0 or not 0 <= turn_reward <= 1:
            raise ConfigError(f"Mastermind needs slack ≥ 0, 0 ≤ turn_reward ≤ 1; got {slack}, {turn_reward}")
        super().__init__(fold=fold, render_mode=render_mode)
        self.pegs, self.colours, self.palette = pegs, colours, palette
        self.slack, self.turn_reward = slack, turn_reward

    def deal(self) -> MastermindState:
        """Draw the colours in play and the code."""
        rng, book = self.np_random, codebook(self.pegs, self.colours)
        chosen = sorted(rng.choice(self.palette, size=self.colours, replace=False).tolist())
        code = book.codes[int(rng.integers(len(book.codes)))]
        return MastermindState(
            Secret(tuple(COLOURS[i] for i in chosen), code, book.worst_case() + self.slack)
        )

    def turn_limit(self, state: MastermindState) -> int:
        """The written policy's worst case plus the slack."""
        return state.layout.turns

    def instance(self, state: MastermindState) -> Any:
        """The colours in play and the code."""
        return state.layout.palette, state.layout.code

    def rules(self, state: MastermindState) -> str:
        """How to win and how to call the tool."""
        example = " ".join(state.layout.palette[i % self.colours] for i in range(self.pegs))
        return (
            "Find the hidden code. A colour can come more than once. After each guess you are told how many "
            "pegs are exact and how many are misplaced.\n"
            "Tools: guess(code). One call a turn:\n"
            f'<tool_call>{{"name": "guess", "arguments": {{"code": "{example}"}}}}</tool_call>'
        )

    def opening(self, state: MastermindState) -> str:
        """Length of the code, the colours in play and the turns."""
        return f"{self.pegs} pegs of {' '.join(state.layout.palette)}. You have {state.layout.turns} turns."

    def call(self, state: MastermindState, call: ToolCall) -> Feedback:
        """Compare the guess with the code."""
        guess = self._read(state, call.arguments["code"])
        if guess is None:
            return Feedback(f"Error: a code is {self.pegs} of {' '.join(state.layout.palette)}.")
        reply = compare(guess, state.layout.code)
        before = len(self._open_codes(state)) if self.turn_reward else 1
        state.history = (*state.history, (guess, reply))
        if guess == state.layout.code:
            state.won = True
            return Feedback("Correct.", reward=1 - self.turn_reward + self._pay(before, 1))
        after = len(self._open_codes(state)) if self.turn_reward else 1
        return Feedback(f"{reply[0]} exact, {reply[1]} misplaced.", reward=self._pay(before, after))

    def doomed(self, state: MastermindState) -> bool:
        """True where no turn is left to guess in."""
        return not state.won and state.turn >= state.layout.turns

    def best_call(self, state: MastermindState) -> ToolCall:
        """Knuth's minimax guess over the codes that are still open."""
        book = codebook(self.pegs, self.colours)
        return self._guess(state, book.codes[book.best(self._open_codes(state))])

    def random_call(self, state: MastermindState, rng: Any) -> ToolCall:
        """Any code, ruled out or not."""
        return self._guess(state, rng.integers(self.colours, size=self.pegs).tolist())

    def _guess(self, state: MastermindState, code: Any) -> ToolCall:
        return ToolCall("guess", {"code": " ".join(state.layout.palette[i] for i in code)})

    def _read(self, state: MastermindState, text: Any) -> Code | None:
        words, palette = text.split() if isinstance(text, str) else [], state.layout.palette
        if len(words) != self.pegs or any(word not in palette for word in words):
            return None
        return tuple(palette.index(word) for word in words)

    def _open_codes(self, state: MastermindState) -> npt.NDArray[np.intp]:
        return codebook(self.pegs, self.colours).consistent(state.history)

    def _pay(self, before: int, after: int) -> float:
        return self.turn_reward * information(before, after, self.colours**self.pegs)


def compare(guess: Code, code: Code) -> tuple[int, int]:
    """(exact, misplaced) pegs of `guess` against `code`.

    >>> compare((0, 0, 1), (0, 1, 2))
    (1, 1)
    """
    exact = sum(a == b for a, b in zip(guess, code, strict=True))
    common = sum(min(guess.count(c), code.count(c)) for c in set(guess))
    return exact, common - exact


@functools.cache
def codebook(pegs: int, colours: int) -> Codebook:
    """The one codebook of these sizes: its table and its moves are shared by all episodes."""
    return Codebook(pegs, colours)


class Codebook:
    """Every code of a size, the table of all answers and the minimax moves found so far."""

    def __init__(self, pegs: int, colours: int) -> None:
        self.codes: list[Code] = list(itertools.product(range(colours), repeat=pegs))
        self._index = {code: i for i, code in enumerate(self.codes)}
        self._base = pegs + 1
        table = np.array(self.codes, np.int8)  # (N, pegs)
        counts = np.stack([(table == c).sum(1) for c in range(colours)], 1)  # (N, colours)
        exact = sum((column[:, None] == column[None, :]).astype(np.int64) for column in table.T)
        common = sum(np.minimum(column[:, None], column[None, :]) for column in counts.T)
        self._answers: npt.NDArray[np.int64] = exact * self._base + (common - exact)  # (N, N), < base ** 2
        self._moves: dict[bytes, int] = {}
        self._worst_case = 0

    def consistent(self, history: tuple[tuple[Code, tuple[int, int]], ...]) -> npt.NDArray[np.intp]:
        """Indices of the codes that would have given every answer of `history`."""
        kept = np.ones(len(self.codes), np.bool_)
        for guess, (exact, misplaced) in history:
            kept &= self._answers[self._index[guess]] == exact * self._base + misplaced
        return np.flatnonzero(kept)

    def best(self, candidates: npt.NDArray[np.intp]) -> int:
        """Index of the guess whose largest class of `candidates` is smallest.

        Ties go to a candidate before any other code, then to the lower index, so the policy is deterministic.
        """
        key = candidates.tobytes()
        if key not in self._moves:
            size, answers = len(self.codes), self._base**2
            cells = self._answers[:, candidates] + answers * np.arange(size)[:, None]
            classes = np.bincount(cells.ravel(), minlength=size * answers).reshape(size, answers)
            cost = 2 * classes.max(1)
            cost[candidates] -= 1
            self._moves[key] = int(cost.argmin())
        return self._moves[key]

    def worst_case(self) -> int:
        """Guesses that `best` needs for the hardest code."""
        if not self._worst_case:
            self._worst_case = self._depth(np.arange(len(self.codes)))
        return self._worst_case

    def _depth(self, candidates: npt.NDArray[np.intp]) -> int:
        move = self.best(candidates)
        answers = self._answers[move, candidates]
        rest = [candidates[answers == a] for a in np.unique(answers) if a != self._answers[move, move]]
        return 1 + max((self._depth(group) for group in rest), default=0)
