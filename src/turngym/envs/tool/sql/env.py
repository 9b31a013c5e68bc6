"""Answer a question about a SQLite database with a query: look at the tables, try queries, then answer once.

The answer is judged by what it returns (execution match), on the database that the agent sees and on hidden ones with
the same tables and other rows. Databases are values: a query runs on a private copy, in another process, reading only
and within limits, so forks are exact and share everything.

Knobs: `pack` (`generated`, or `spider` for the databases that `intercode-bench` ships), `fold`, `max_steps`.
"""

from __future__ import annotations

import asyncio
import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from turngym.envs.base import Forking
from turngym.envs.folds import Fold, check_fold, deal_until, in_fold
from turngym.envs.tool.calling import Ending, ToolCalling
from turngym.envs.tool.schema import nearest
from turngym.envs.tool.sql import spider
from turngym.envs.tool.sql.engine import Cell, QueryLimits, QueryResult, quoted
from turngym.envs.tool.sql.problems import Problem, generate, judge
from turngym.envs.tool.toolbox import Answer
from turngym.envs.tool.tools import ToolError, tool
from turngym.errors import ConfigError, unknown_name
from turngym.toolcalls import format_call
from turngym.types import Reply, ToolCall

Pack = Literal["generated", "spider"]

_SHOWN_ROWS = 20
_SHOWN_CELL = 80
_UNKNOWN = re.compile(r"no such (table|column): (?:\w+\.)?(.+)")
_LIMIT_WORDS = {
    "steps": "the query took too many steps and was ended; make it simpler",
    "memory": "the query took too much memory and was ended; make it smaller",
    "wall": "the query took too long and was ended; make it simpler",
}
_RULES = (
    "Answer a question about {about} with one SQL query (SQLite). Look at the tables and try queries as you like; "
    "you can answer once. The answer has to be right for other rows in these tables as well."
)


@dataclass(slots=True)
class SqlState:
    """A running episode."""

    problem: Problem
    answered: bool = False
    won: bool = False


class Sql(ToolCalling):
    """Find the SQL query that answers a question about a database. Reward 1 for the right one.

    Args:
        pack: `generated` makes a database and a question from the seed; `spider` takes one of 23 questions over the
            Spider development databases (needs `turngym[spider]`).
        fold: problems of `train` and `test` never meet.
        max_turns: actions allowed.
        max_output_chars: of one result.
        max_steps: virtual-machine steps of one query, about five million a second.
        render_mode: None or `ansi`.

    Raises:
        MissingDependency: for `spider` without the package.
    """

    forking: ClassVar[Forking] = Forking.EXACT
    blocking: ClassVar[bool] = True

    def __init__(
        self,
        *,
        pack: Pack = "generated",
        fold: Fold = "train",
        max_turns: int = 12,
        max_output_chars: int = 4000,
        max_steps: int = 5_000_000,
        render_mode: str | None = None,
    ) -> None:
        if pack not in ("generated", "spider"):
            raise unknown_name("pack", pack, ["generated", "spider"])
        check_fold(fold)
        if max_steps < 1:
            raise ConfigError(f"max_steps must be at least 1, got {max_steps}")
        if pack == "spider":
            spider.folder()
        super().__init__(max_turns=max_turns, max_output_chars=max_output_chars, render_mode=render_mode)
        self.pack, self.fold = pack, fold
        self.limits = QueryLimits(max_steps=max_steps)
        self._state: SqlState

    def start(self, options: Mapping[str, Any]) -> Reply:
        """Draw a problem of this fold (a fifth of all belong to `test`)."""
        self.refuse_options(options)
        self._state = SqlState(self._draw())
        problem = self._state.problem
        return self.opening(
            problem.question, rules=_RULES.format(about=problem.about), info={"doomed": False}
        )

    def _draw(self) -> Problem:
        if self.pack == "spider":
            ours = [each for each in spider.problems() if self._is_ours(each)]
            return ours[int(self.np_random.integers(len(ours)))]
        return deal_until(lambda: generate(self.np_random), self._is_ours, what=f"{self.fold} question")

    def _is_ours(self, problem: Problem) -> bool:
        return in_fold((problem.sql, problem.question), self.fold)

    # ------------------------------------------------------------------ tools

    @tool
    async def tables(self) -> str:
        """List the tables and the number of their rows."""
        names = [name for name, _ in self._state.problem.database.tables]
        counts = [await self._queried(f"SELECT count(*) FROM {quoted(name)}") for name in names]
        return "\n".join(
            f"{name}: {_rows(counted)} rows" for name, counted in zip(names, counts, strict=True)
        )

    @tool
    async def describe(self, table: str) -> str:
        """Show how a table is defined, and its first three rows.

        Args:
            table: its name.
        """
        known = {name.lower(): name for name, _ in self._state.problem.database.tables}
        name = known.get(table.lower())
        if name is None:
            raise ToolError(
                f"there is no table {table[:60]!r}{nearest(table, known.values())}. Tables: {', '.join(known.values())}"
            )
        definition = await self._queried(f"SELECT sql FROM sqlite_master WHERE name = '{name}'")
        sample = await self._queried(f"SELECT * FROM {quoted(name)} LIMIT 3")
        return f"{definition.rows[0][0]!s}\n{_shown(sample)}"

    @tool
    async def query(self, sql: str) -> str:
        """Run a query and show the first rows of its result.

        Args:
            sql: one SELECT statement.
        """
        result = await self._queried(sql)
        if result.error is not None:
            raise ToolError(self._explained(result))
        return _shown(result)

    @tool(concurrent=False)
    async def answer(self, sql: str) -> str:
        """Give the query that answers the question. Ends the episode.

        Args:
            sql: one SELECT statement.
        """
        state = self._state
        if state.answered:
            raise ToolError("an answer was given already")
        won = await asyncio.to_thread(judge, state.problem, sql, self.limits)
        state.answered, state.won = True, won
        return "Right." if won else "Wrong."

    async def judge(self, answer: Answer, last: bool) -> Ending | None:
        """The end comes with the answer."""
        return Ending(success=self._state.won) if self._state.answered else None

    # ------------------------------------------------------------------ state and scripts

    def get_state(self) -> SqlState:
        """The state itself; `snapshot` copies it."""
        return self._state

    def set_state(self, state: SqlState) -> None:
        """Put a state back."""
        self._state = state

    def copy_state(self, state: SqlState) -> SqlState:
        """Shallow: the problem never changes."""
        return copy.copy(state)

    def optimal_action(self) -> str:
        """The reference query, given as the answer after a look at the tables."""
        if self.turn == 0:
            return format_call(ToolCall("tables", {}))
        return format_call(ToolCall("answer", {"sql": self._state.problem.sql}))

    def random_action(self, rng: np.random.Generator) -> str:
        """A look at a table, a simple query, or rarely a simple answer."""
        tables = self._state.problem.database.tables
        name, columns = tables[int(rng.integers(len(tables)))]
        column = quoted(columns[int(rng.integers(len(columns)))])
        sql = f"SELECT {column}, count(*) FROM {quoted(name)} GROUP BY {column}"
        kind = "answer" if rng.random() < 0.05 else ["tables", "describe", "query"][int(rng.integers(3))]
        arguments = {"tables": {}, "describe": {"table": name}}.get(kind, {"sql": sql})
        return format_call(ToolCall(kind, arguments))

    async def _queried(self, sql: str) -> QueryResult:
        return await asyncio.to_thread(self._state.problem.database.run, sql, self.limits)

    def _explained(self, result: QueryResult) -> str:
        """An error in words that a query can be repaired from."""
        if result.limit is not None:
            return _LIMIT_WORDS[result.limit]
        error = result.error or ""
        if error.startswith("not authorized") or "prohibited" in error:
            return f"{error}: queries read only, with functions that have no side effects"
        if unknown := _UNKNOWN.match(error):
            tables = self._state.problem.database.tables
            known = [n for n, _ in tables] if unknown[1] == "table" else [c for _, cs in tables for c in cs]
            return error + nearest(unknown[2], known)
        return error


def _rows(counted: QueryResult) -> str:
    return str(counted.rows[0][0]) if counted.rows else "too many"


def _shown(result: QueryResult) -> str:
    """A result as lines of cells."""
    rows = [" | ".join(_cell(cell) for cell in row) for row in result.rows[:_SHOWN_ROWS]]
    shown = f", the first {_SHOWN_ROWS} shown" if result.total > _SHOWN_ROWS else ""
    noun = "row" if result.total == 1 else "rows"
    return "\n".join([" | ".join(result.columns), *rows, f"({result.total} {noun}{shown})"])


def _cell(cell: Cell) -> str:
    if cell is None:
        return "NULL"
    text = f"x'{cell.hex()}'" if isinstance(cell, bytes) else str(cell)
    return text if len(text) <= _SHOWN_CELL else text[:_SHOWN_CELL] + "…"
