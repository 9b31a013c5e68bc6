"""TextArena: exact forks of Python objects, one global generator for each episode, its games won by who knows the answer."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

from conftest import require
from turngym.envs import _TEXTARENA
from turngym.envs.adapters.textarena import TextArena
from turngym.envs.bench import Bench
from turngym.errors import ConfigError, UnknownName


@pytest.fixture(autouse=True)
def _textarena() -> None:
    require("textarena", "turngym[textarena]")


def hanoi(disks: int, source: str = "A", target: str = "C", spare: str = "B") -> Iterator[str]:
    if disks:
        yield from hanoi(disks - 1, source, spare, target)
        yield f"[{source} {target}]"
        yield from hanoi(disks - 1, spare, target, source)


def lights(game: Any) -> Iterator[str]:
    """Chase the lights down from each possible first row until one of them puts out all."""
    size, grid = game.size, np.array(game.state.game_state["grid"])
    for first in product((0, 1), repeat=size):
        board, presses = grid.copy(), []
        for row in range(size):
            for column in range(size):
                if first[column] if row == 0 else board[row - 1, column]:
                    presses.append(f"[{row} {column}]")
                    for r, c in (
                        (row, column),
                        (row - 1, column),
                        (row + 1, column),
                        (row, column - 1),
                        (row, column + 1),
                    ):
                        if 0 <= r < size and 0 <= c < size:
                            board[r, c] = not board[r, c]
        if not board.any():
            return iter(presses)
    raise AssertionError("no solution")


def crossword(game: Any) -> Iterator[str]:
    for row, cells in enumerate(game.state.game_state["solution"]):
        for column, letter in enumerate(cells):
            if letter != ".":
                yield f"[{row} {column} {letter}]"


def sudoku(game: Any) -> Iterator[str]:
    for row, column in product(range(9), repeat=2):
        if game.game_board[row][column] == 0:
            yield f"[{row + 1} {column + 1} {game.full_grid[row][column]}]"


def mines(game: Any) -> Iterator[str]:
    yield f"[{game.rows // 2} {game.cols // 2}]"
    for row, column in product(range(game.rows), range(game.cols)):
        if game.grid[row][column] != -1 and not game.revealed[row][column]:
            yield f"[{row} {column}]"


def highest(game: Any) -> Iterator[str]:
    draws = game.state.game_state["draws"]
    yield from ["[continue]"] * draws.index(max(draws))
    yield "[accept]"


ANSWERS: dict[str, Callable[[Any], Iterator[str]]] = {
    "Crosswords-v0": crossword,
    "Cryptarithm-v0": lambda game: (
        f"[{a} {d}]" for a, d in zip("SENDMORY", "95671082", strict=True)
    ),  # 9567 + 1085
    "GuessTheNumber-v0": lambda game: iter([f"[{game.state.game_state['game_number']}]"]),
    "LightsOut-v0": lights,
    "Mastermind-v0": lambda game: iter(
        ["[" + " ".join(map(str, game.state.game_state["secret_code"])) + "]"]
    ),
    "Minesweeper-v0": mines,
    "Secretary-v0": highest,
    "Sudoku-v0": sudoku,
    "ThreeCardMonte-v0": lambda game: iter([f"[{game.ball_pos}]"]),
    "TowerOfHanoi-v0": lambda game: hanoi(3),
}


@pytest.mark.parametrize("game", ANSWERS)
@pytest.mark.parametrize("seed", [0, 1])
def test_who_knows_the_answer_wins(game: str, seed: int) -> None:
    env = TextArena(game=game)
    env.reset(seed=seed)
    for move in ANSWERS[game](env._game):
        text, reward, terminated, _, info = env.step(move)
        if terminated:
            break
    assert terminated, text
    assert (reward, info["success"]) == (1.0, True)


@pytest.mark.parametrize("game", _TEXTARENA)
def test_every_registered_game_can_be_played_at_random(game: str) -> None:
    env = TextArena(game=game, max_turns=30)
    first, info = env.reset(seed=0)
    assert first == info["messages"][0].content != ""
    rng = np.random.default_rng(0)
    turns, over = 0, False
    while not over:
        text, reward, terminated, truncated, info = env.step(env.random_action(rng))
        turns, over = turns + 1, terminated or truncated
        assert text
        assert -1 <= reward <= 1
    assert turns <= 30
    assert info["success"] in (True, False)


@pytest.mark.parametrize("game", ["2048-v0", "Blackjack-v0", "Secretary-v0"])
def test_episodes_do_not_hear_the_process_or_each_other(game: str) -> None:
    """These draw from the global `random` while they are played."""

    def play(env: TextArena, noise: bool) -> list[Any]:
        rng, out = np.random.default_rng(0), [env.reset(seed=4)]
        for _ in range(6):
            if noise:
                random.seed(99)
                np.random.seed(99)
            step = env.step(env.random_action(rng))
            out.append(step)
            if step[2]:
                break
        return out

    state = random.getstate()
    quiet = play(TextArena(game=game), noise=False)
    assert random.getstate() == state
    assert play(TextArena(game=game), noise=True) == quiet
    random.setstate(state)


def test_forks_of_a_random_game_share_its_future() -> None:
    env = TextArena(game="2048-v0")
    env.reset(seed=1)
    (child,) = env.fork()
    moves = ["[down]", "[left]", "[down]", "[right]"]
    assert [env.step(m) for m in moves] == [child.step(m) for m in moves]


def test_restoring_takes_away_what_came_later() -> None:
    env = TextArena(game="Minesweeper-v0")
    env.reset(seed=1)
    snapshot = env.snapshot()
    env._game.later = 1
    env.restore(snapshot)
    assert not hasattr(env._game, "later")


def test_two_invalid_moves_in_a_row_end_the_game() -> None:
    env = TextArena(game="Mastermind-v0")
    env.reset(seed=0)
    text, _, terminated, _, _ = env.step("the red one")
    assert "invalid move" in text
    assert not terminated
    _, reward, terminated, _, info = env.step("the red one")
    assert terminated
    assert (reward, info["success"]) == (0.0, False)


def test_brackets_are_added_where_there_are_none() -> None:
    env = TextArena(game="Mastermind-v0")
    env.reset(seed=0)
    (child,) = env.fork()
    assert env.step("1 2 3 4") == child.step("[1 2 3 4]")


def test_a_message_without_end_is_an_invalid_move() -> None:
    env = TextArena(game="GuessTheNumber-v0")
    env.reset(seed=0)
    for _ in range(2):
        _, _, terminated, _, info = env.step("[" + "9" * 5000 + "]")
    assert terminated
    assert info["success"] is False


def test_a_reason_in_place_of_a_reward_counts_as_nothing() -> None:
    # Countdown of TextArena 0.7 hands back ("Invalid action format. …", 0.568) for an invalid move, swapped.
    env = TextArena(game="Countdown-v0")
    env.reset(seed=0)
    env.step("no")
    _, reward, terminated, _, info = env.step("no")
    assert terminated
    assert (reward, info["success"]) == (0.0, False)


def test_what_a_game_prints_goes_to_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    env = TextArena(game="LogicPuzzle-v0")
    env.reset(seed=0)
    env.step("no")
    env.step("no")  # it prints how much was right
    assert capsys.readouterr().out == ""


def test_variants_are_named_beside_the_game() -> None:
    env = TextArena(game="Mastermind-v0", variant="hard")
    assert env.game == "Mastermind-v0-hard"
    assert "8" in env.reset(seed=0)[0]


def test_games_that_do_not_exist_or_need_company_are_refused() -> None:
    with pytest.raises(
        UnknownName, match=r"game of TextArena 'Mastermint-v0'\. Did you mean 'Mastermind-v0'"
    ):
        TextArena(game="Mastermint-v0")
    with pytest.raises(ConfigError, match="no game for one player"):
        TextArena(game="TicTacToe-v0").reset(seed=0)
    with pytest.raises(ConfigError, match="max_turns"):
        TextArena(game="2048-v0", max_turns=0)


def test_moves_for_random_play_have_the_right_form() -> None:
    rng = np.random.default_rng(0)
    moves = {TextArena(game="ThreeCardMonte-v0").random_action(rng) for _ in range(40)}
    assert moves == {"[0]", "[1]", "[2]"}
    assert {TextArena(game="TowerOfHanoi-v0").random_action(rng)[1] for _ in range(40)} == {"A", "B", "C"}


def test_a_script_of_the_checker_uses_random_play() -> None:
    bench = Bench(lambda: TextArena(game="2048-v0"), TextArena, seed=0, turns=5, actions=0)
    assert all(action.startswith("[") for script in bench.scripts for action in script.actions)
