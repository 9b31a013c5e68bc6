"""Environments: the contract (`base`), its check (`checker`), turngym's own games and adapters to other people's.

`register_all` makes every id known; `import turngym` calls it. Nothing is imported before it is made.
"""

from __future__ import annotations

from turngym.registry import register

_OWN_GAMES = {
    "turngym/Corridor-v0": "corridor:Corridor",
    "turngym/GuessNumber-v0": "guess_number:GuessNumber",
    "turngym/Mastermind-v0": "mastermind:Mastermind",
    "turngym/Ledger-v0": "ledger:Ledger",
}

_TOOL = {
    "turngym/Shell-v0": "shell.env:Shell",
    "turngym/PythonTasks-v0": "python.env:PythonTasks",
    "turngym/Repair-v0": "repair.env:Repair",
    "turngym/SQL-v0": "sql.env:Sql",
    "turngym/Services-v0": "services.env:Services",
}

_TOY_TEXT = {
    "turngym/FrozenLake-v1": "FrozenLake",
    "turngym/Taxi-v4": "Taxi",
    "turngym/CliffWalking-v1": "CliffWalking",
    "turngym/Blackjack-v1": "Blackjack",
}
"Their versions are Gymnasium's own."

_TEXTARENA = {
    "2048-v0": "slide tiles until two make the target tile",
    "Blackjack-v0": "beat the dealer over five hands of cards",
    "Countdown-v0": "combine six numbers to the target",
    "Crosswords-v0": "fill in a small crossword letter by letter",
    "Cryptarithm-v0": "find the digits that make SEND + MORE = MONEY true",
    "FifteenPuzzle-v0": "slide the tiles of a 4×4 board into order",
    "FrozenLake-v0": "cross a frozen lake without falling into a hole",
    "GuessTheNumber-v0": "find a number from higher and lower",
    "LightsOut-v0": "turn off every light; each press toggles its neighbours too",
    "LogicPuzzle-v0": "fill in logic grids from written clues",
    "Mastermind-v0": "find a secret code from black and white pegs",
    "Minesweeper-v0": "reveal every cell without a mine",
    "PegJump-v0": "jump pegs over pegs until one is left",
    "Secretary-v0": "stop at the highest of five values shown one by one",
    "Slitherlink-v0": "draw one loop that satisfies the numbers",
    "Sokoban-v0": "push every box onto a target",
    "Sudoku-v0": "fill in a 9×9 Sudoku",
    "ThreeCardMonte-v0": "follow a ball under shuffled cups",
    "TowerOfHanoi-v0": "move three disks to the last tower",
}
"""The single-player games of TextArena 0.7 that play offline as installed.

Left out: Bandit (never pays the right answer: it compares a name with a table), Set (takes the same card three
times for a set), RushHour (searches for a solvable board for seconds), Klondike and UltimateTexasHoldem (no Python
3.11), the games that download a word list (Hangman, Wordle, WordLadder, WordSearch) and those that ask a language
model (GuessWho, TwentyQuestions).
"""

_BENCHMARKS: dict[str, tuple[str, dict[str, str], str]] = {
    "turngym/BFCL-v4": ("bfcl:BFCL", {}, "BFCL: function calling over several requests of a user"),
    "turngym/AgentDojo-v1": (
        "agentdojo:AgentDojo",
        {},
        "AgentDojo: a user's request over mail, files, travel, money or chat, with prompt injections or without",
    ),
    "turngym/Tau2-Airline-v0": (
        "tau2:Tau2",
        {"domain": "airline"},
        "τ²-bench: customer service of an airline",
    ),
    "turngym/Tau2-Retail-v0": ("tau2:Tau2", {"domain": "retail"}, "τ²-bench: customer service of a shop"),
    "turngym/Tau2-Telecom-v0": (
        "tau2:Tau2",
        {"domain": "telecom"},
        "τ²-bench: technical support of a phone company, whose user acts on the phone",
    ),
}
"""Their packages run in virtual environments of their own, which are made when they are first reset."""


def register_all() -> None:
    """Register every environment of this package. May be called again."""
    for env_id, place in _OWN_GAMES.items():
        register(env_id, f"turngym.envs.text.{place}")
    for env_id, place in _TOOL.items():
        register(env_id, f"turngym.envs.tool.{place}")
    for env_id, name in _TOY_TEXT.items():
        register(env_id, f"turngym.envs.adapters.toy_text:{name}")
    register(
        "turngym/TextWorld-v0",
        "turngym.envs.adapters.textworld:TextWorld",
        requires="textworld",
        extra="textworld",
    )
    for env_id, (place, kwargs, description) in _BENCHMARKS.items():
        register(env_id, f"turngym.envs.adapters.{place}", kwargs=kwargs, description=description)
    for game, description in _TEXTARENA.items():
        register(
            f"turngym/TextArena-{game}",
            "turngym.envs.adapters.textarena:TextArena",
            kwargs={"game": game},
            description=f"TextArena: {description}",
            requires="textarena",
            extra="textarena",
        )


__all__ = ["register_all"]
