"""Runs in a process of its own: one query at a time, on a copy of a database in memory, reading only.

The process is what keeps a query from harming whoever trains: its memory is limited by the kernel, it can write no
file, and it can be killed. Within it SQLite's authorizer lets nothing through but reading and a list of functions
without side effects and without randomness; a count of virtual-machine steps ends what runs too long, at the same
step on every machine.

The file is run as a script (`python -I -S worker.py`) and imports the standard library alone. Frames on stdin and
stdout are a length (4 bytes, big-endian) and a pickle. The other end is `engine`.
"""

from __future__ import annotations

import pickle
import resource
import sqlite3
import struct
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO

FUNCTIONS = frozenset(
    {
        *("abs", "avg", "cast", "ceil", "ceiling", "char", "coalesce", "concat", "concat_ws", "count"),
        *("cume_dist", "date", "datetime", "dense_rank", "exp", "first_value", "floor", "format", "glob"),
        *(
            "group_concat",
            "hex",
            "ifnull",
            "iif",
            "instr",
            "julianday",
            "lag",
            "last_value",
            "lead",
            "length",
        ),
        *("like", "ln", "log", "log10", "log2", "lower", "ltrim", "max", "min", "mod", "nth_value", "ntile"),
        *("nullif", "percent_rank", "pow", "power", "printf", "quote", "rank", "replace", "round"),
        *("row_number", "rtrim", "sign", "sqrt", "strftime", "string_agg", "substr", "substring", "sum"),
        *("time", "timediff", "total", "trim", "typeof", "unicode", "unixepoch", "upper"),
    }
)
"""What a query may call. Left out: what draws random numbers, allocates on demand, or looks out of the database."""

PRAGMAS = frozenset({"table_info", "table_xinfo", "foreign_key_list", "index_list", "index_info"})
_ACTIONS = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, 33})  # 33 is SQLITE_RECURSIVE
_CLOCKS = ("date", "time", "datetime", "julianday", "unixepoch", "strftime")
_NOW = frozenset({"now", "subsec", "subsecond"})
_STEP = 1000
_KEPT_BYTES = 1 << 20
_KEPT_DATABASES = 16
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 16_384,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 10_000,
    sqlite3.SQLITE_LIMIT_COLUMN: 100,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 200,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 50,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 200,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
}
"""The length holds for the texts of a query; a database that is larger is still read."""


def read_frame(stream: BinaryIO) -> Any:
    """The next message, or None at the end of the stream."""
    head = stream.read(4)
    if len(head) < 4:
        return None
    (length,) = struct.unpack(">I", head)
    body = stream.read(length)
    return pickle.loads(body) if len(body) == length else None


def write_frame(stream: BinaryIO, message: Any) -> None:
    """Send a message."""
    body = pickle.dumps(message)
    stream.write(struct.pack(">I", len(body)) + body)
    stream.flush()


class Steps:
    """A progress handler that ends a query after a number of virtual-machine steps."""

    def __init__(self) -> None:
        self.left = 0
        self.used_up = False

    def __call__(self) -> int:
        """Called every thousand steps; anything but 0 ends the query."""
        self.left -= _STEP
        self.used_up = self.left < 0
        return int(self.used_up)


def authorize(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    """SQLite's question whether a statement may do something."""
    if (
        action in _ACTIONS
        or (action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in FUNCTIONS)
        or (action == sqlite3.SQLITE_PRAGMA and (first or "").lower() in PRAGMAS)
    ):
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def _clock(name: str) -> Callable[..., Any]:
    """SQLite's function `name` over its own private connection, refusing to tell the present time."""
    inner = sqlite3.connect(":memory:")

    def call(*arguments: Any) -> Any:
        when = arguments[1:2] if name == "strftime" else arguments[:1]
        words = str(when[0], "utf-8", "replace") if when and isinstance(when[0], bytes) else str(*when)
        if not when or words.split("\0")[0].strip().lower() in _NOW:
            raise ValueError("the present time is not part of the database")
        return inner.execute(f"SELECT {name}({','.join('?' * len(arguments))})", arguments).fetchone()[0]

    return call


def open_image(image: bytes, steps: Steps) -> sqlite3.Connection:
    """A private copy of a database that can be read only."""
    db = sqlite3.connect(":memory:")
    db.deserialize(image)
    db.text_factory = lambda raw: raw.decode("utf-8", "replace")
    for name in _CLOCKS:
        db.create_function(name, -1, _clock(name), deterministic=True)
    db.execute("PRAGMA query_only = ON")
    db.execute("PRAGMA temp_store = MEMORY")
    for limit, value in _LIMITS.items():
        db.setlimit(limit, value)
    db.set_authorizer(authorize)
    db.set_progress_handler(steps, _STEP)
    return db


def answer(db: sqlite3.Connection, steps: Steps, request: dict[str, Any]) -> dict[str, Any]:
    """Run one query: `columns`, the first `rows`, and how many there are; or an `error`, and the `limit` that was hit."""
    steps.left, steps.used_up = request["max_steps"], False
    try:
        cursor = db.execute(request["sql"])
        columns = [column[0] for column in cursor.description or ()]
        rows, total = _kept(cursor, request["max_rows"])
    except MemoryError:
        return {"error": "out of memory", "limit": "memory"}
    except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
        if steps.used_up:
            return {"error": "interrupted", "limit": "steps"}
        memory = "out of memory" in str(error)
        return {"error": str(error), "limit": "memory" if memory else None}
    return {"columns": columns, "rows": rows, "total": total}


def _kept(cursor: Iterable[tuple[Any, ...]], max_rows: int) -> tuple[list[tuple[Any, ...]], int]:
    """The first rows that fit, and the number of all."""
    rows: list[tuple[Any, ...]] = []
    total, size = 0, 0
    for row in cursor:
        total += 1
        if len(rows) < max_rows and size < _KEPT_BYTES:
            size += sum(len(cell) if isinstance(cell, str | bytes) else 8 for cell in row)
            rows.append(row)
    return rows, total


def main() -> None:
    """Serve until stdin ends."""
    memory = int(sys.argv[1]) << 20
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    known: OrderedDict[str, tuple[sqlite3.Connection, Steps]] = OrderedDict()
    while (request := read_frame(sys.stdin.buffer)) is not None:
        key = request["key"]
        if "image" in request:
            steps = Steps()
            known[key] = open_image(request["image"], steps), steps
            while len(known) > _KEPT_DATABASES:
                known.popitem(last=False)[1][0].close()
        if key not in known:
            write_frame(sys.stdout.buffer, {"unknown": key})
            continue
        known.move_to_end(key)
        write_frame(sys.stdout.buffer, answer(*known[key], request))


if __name__ == "__main__":
    main()
