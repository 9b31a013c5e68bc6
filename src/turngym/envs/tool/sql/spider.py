"""The Spider development databases that the package `intercode-bench` ships (Yu et al., 2018; Yang et al., 2023).

The package has a dump for MySQL of 20 databases, and 23 questions with their reference queries. The dump is read
here, statement by statement, and becomes SQLite files; foreign keys are kept. Nothing of the package is imported.

Hidden databases are the one that can be seen with more rows, put together from the values that its columns have.
"""

from __future__ import annotations

import csv
import functools
import importlib.util
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np

from turngym.envs.tool.sql.engine import Database, quoted
from turngym.envs.tool.sql.problems import REFERENCE, Problem
from turngym.errors import ConfigError, MissingDependency
from turngym.seeding import generator

_DATA = Path("assets", "datasets")
_HIDDEN = 2
_ADDED = 100
_REFERRED_TO = 12
_TRIES = 40
_USE = re.compile(r"USE `(\w+)`")
_CREATE = re.compile(r"CREATE TABLE `(\w+)` \((.*)\) ENGINE=.*", re.DOTALL)
_COLUMN = re.compile(r"`([^`]+)` (\w+)(?:\([\d,]+\))?")
_KEY_PREFIX = re.compile(r"`(\(\d+\))")
_INSERT = re.compile(r"INSERT INTO `(\w+)` VALUES ", re.DOTALL)
_LITERAL = re.compile(r"""(\w+)\s*=\s*['"]([^'"]+)['"]""")
_TYPES = {
    **dict.fromkeys(("int", "bigint", "smallint", "tinyint", "year"), "INTEGER"),
    **dict.fromkeys(("double", "float", "decimal"), "REAL"),
}
_INVENTED = {
    "INTEGER": range(1, 41),
    "REAL": (0.5, 1.5, 2.5, 10.0),
    "TEXT": ("amber", "birch", "clay", "dune"),
}
"""Values of columns that are empty in the package."""
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "0": "\0"}


def folder() -> Path:
    """Where the package keeps its data.

    Raises:
        MissingDependency: it is not installed.
    """
    spec = importlib.util.find_spec("intercode")
    if spec is None or not spec.submodule_search_locations:
        raise MissingDependency(
            "the Spider databases come with the package intercode-bench. To get it: pip install 'turngym[spider]'"
        )
    return Path(next(iter(spec.submodule_search_locations))) / _DATA


@functools.cache
def databases() -> dict[str, Database]:
    """Name → database, for all of the dump."""
    return {name: _build(script) for name, script in _by_database(folder() / "spider_dev.sql").items()}


@functools.cache
def problems() -> tuple[Problem, ...]:
    """Every question of the package, in its order."""
    with (folder() / "sql_queries.csv").open(encoding="utf-8", newline="") as file:
        return tuple(_problem(row["query"], row["gold"], row["db"]) for row in csv.DictReader(file))


def _problem(question: str, sql: str, name: str) -> Problem:
    database = databases()[name]
    shown = database.run(sql, REFERENCE)
    hidden: list[Database] = []
    for i in range(_TRIES):
        other = _grown(database, sql, generator(i, "spider", name))
        result = other.run(sql, REFERENCE)
        telling = result.rows and result.rows != shown.rows
        if telling and len(result.rows) < REFERENCE.max_rows and _one_winner(other, sql):
            hidden.append(other)
        if len(hidden) == _HIDDEN:
            break
    return Problem(
        f"the Spider database {name}",
        database,
        tuple(hidden),
        question.strip(),
        sql,
        "order by" in sql.lower(),
    )


def _one_winner(database: Database, sql: str) -> bool:
    """True unless the query asks for the first of a ranking, and several share that place."""
    ranking = re.fullmatch(r"SELECT (.*) ORDER BY (.*) DESC LIMIT 1", sql, re.DOTALL)
    if ranking is None:
        return True
    first_two = database.run(
        f"SELECT {ranking[2]}, {ranking[1]} ORDER BY {ranking[2]} DESC LIMIT 2", REFERENCE
    )
    return len({row[0] for row in first_two.rows}) == len(first_two.rows)


def _by_database(dump: Path) -> dict[str, list[str]]:
    """Database → its CREATE and INSERT statements, as MySQL writes them."""
    found: dict[str, list[str]] = {}
    name = ""
    for statement in _statements(dump.read_text(encoding="utf-8")):
        if use := _USE.match(statement):
            name = use[1]
            found[name] = []
        elif statement.startswith(("CREATE TABLE", "INSERT INTO")):
            found[name].append(statement)
    return found


def _statements(dump: str) -> Iterator[str]:
    """Split at semicolons outside of texts; comments are dropped."""
    lines = (line for line in dump.splitlines() if not line.startswith(("--", "/*")))
    start, text = 0, "\n".join(lines)
    for token in re.finditer(r"'(?:[^'\\]|\\.|'')*'|;", text, re.DOTALL):
        if token[0] == ";":
            yield text[start : token.start()].strip()
            start = token.end()


def _build(statements: list[str]) -> Database:
    with closing(sqlite3.connect(":memory:")) as db:
        for statement in statements:
            if create := _CREATE.match(statement):
                db.execute(_create(create[1], create[2]))
            elif insert := _INSERT.match(statement):
                db.execute(f"INSERT INTO {quoted(insert[1])} VALUES {_texts(statement[insert.end() :])}")
        db.commit()
        return Database.of(db)


def _create(table: str, body: str) -> str:
    parts = []
    for raw in body.strip().splitlines():
        line = raw.strip().rstrip(",")
        if column := _COLUMN.match(line):
            required = " NOT NULL" if "NOT NULL" in line else ""
            parts.append(f"{quoted(column[1])} {_TYPES.get(column[2].lower(), 'TEXT')}{required}")
        elif line.startswith("PRIMARY KEY"):
            parts.append(_KEY_PREFIX.sub("`", line))
        elif line.startswith("CONSTRAINT"):
            parts.append(line)
        elif not re.match(r"(UNIQUE |FULLTEXT )?KEY ", line):
            raise ConfigError(f"can't read the definition of the Spider table {table}: {line!r}")
    return f"CREATE TABLE {quoted(table)} ({', '.join(parts)})"


def _texts(values: str) -> str:
    """MySQL's texts with backslashes as SQLite writes them."""

    def plain(match: re.Match[str]) -> str:
        inner = re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[1]), match[1], flags=re.DOTALL)
        return "'" + inner.replace("''", "'").replace("'", "''") + "'"

    return re.sub(r"'((?:[^'\\]|\\.|'')*)'", plain, values, flags=re.DOTALL)


def _grown(database: Database, sql: str, rng: np.random.Generator) -> Database:
    """A copy with more rows, put together from values that their columns have or that `sql` looks for.

    References stay whole.
    """
    sought: dict[str, list[str]] = {}
    for column, value in _LITERAL.findall(sql):
        sought.setdefault(column.lower(), []).append(value)
    with closing(sqlite3.connect(":memory:")) as db:
        db.deserialize(database.image)
        for table, columns in database.tables:
            _grow(db, table, columns, sought, rng)
        while any(_drop_orphans(db, table) for table, _ in database.tables):
            pass
        db.commit()
        return Database.of(db)


def _grow(
    db: sqlite3.Connection,
    table: str,
    columns: tuple[str, ...],
    sought: dict[str, list[str]],
    rng: np.random.Generator,
) -> None:
    info = db.execute(f"PRAGMA table_info({quoted(table)})").fetchall()
    keys = [name for _, name, _, _, _, place in info if place]
    kinds = {name: kind for _, name, kind, *_ in info}
    parents = {
        row[3]: (row[2], row[4] or row[3]) for row in db.execute(f"PRAGMA foreign_key_list({quoted(table)})")
    }
    pools = []
    for column in columns:
        home, name = parents.get(column, (table, column))
        values = [v for (v,) in db.execute(f"SELECT {quoted(name)} FROM {quoted(home)} ORDER BY rowid")]
        if keys == [column] and column not in parents:
            if not all(isinstance(value, int) for value in values):
                return  # a list of codes, which has no others
            first = max(values, default=0) + 1
            pools.append(list(range(first, first + _ADDED)))
        else:
            values = values or list(_INVENTED[kinds[column]])
            if column in parents:  # few of them, so that some are referred to often
                values = [values[i] for i in rng.integers(len(values), size=_REFERRED_TO).tolist()]
            elif isinstance(values[0], str):
                values += sought.get(column.lower(), []) * (1 + len(values) // 4)
            pools.append([values[i] for i in rng.integers(len(values), size=_ADDED).tolist()])
    places = ", ".join("?" * len(columns))
    db.executemany(f"INSERT OR IGNORE INTO {quoted(table)} VALUES ({places})", zip(*pools, strict=True))


def _drop_orphans(db: sqlite3.Connection, table: str) -> int:
    """Delete rows of `table` that refer to what is not there; how many."""
    found = db.execute(f"PRAGMA foreign_key_check({quoted(table)})")
    orphans = {(rowid,) for _, rowid, _, _ in found if rowid is not None}
    db.executemany(f"DELETE FROM {quoted(table)} WHERE rowid = ?", sorted(orphans))
    return len(orphans)
