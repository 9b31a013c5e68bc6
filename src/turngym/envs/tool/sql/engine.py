"""Queries on databases that are values: bytes of a SQLite file, run by worker processes that a query can't outwit.

`Database` holds an image of a SQLite file and never changes; a fork shares it. `run` gives it and a query to one of a
few worker processes (see `worker`), which keep the databases that they saw last. A worker that doesn't answer in time
is killed and replaced.

A worker ends with its owner's end of the pipe, so nothing is left behind a process that is killed.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Literal

from turngym.envs.state import state_digest
from turngym.envs.tool.sql import worker
from turngym.errors import EnvFault

Cell = None | int | float | str | bytes
LimitName = Literal["steps", "memory", "wall"]

_WORKERS = max(2, os.cpu_count() or 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryLimits:
    """What one query may use."""

    max_steps: int = 5_000_000
    "virtual-machine steps (a few million take a second)"
    max_rows: int = 1000
    "rows that are kept; the rest is counted"
    memory_mib: int = 512
    "address space of the worker process"
    wall_s: float = 10.0
    "seconds after which the worker is killed: the last resort, since steps end a query long before"


@dataclass(frozen=True, slots=True)
class QueryResult:
    """What a query gave: rows, or an error."""

    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Cell, ...], ...] = ()
    "the first `QueryLimits.max_rows`"
    total: int = 0
    "how many there are in all"
    error: str | None = None
    "SQLite's message"
    limit: LimitName | None = None
    "the limit that ended it"


@dataclass(frozen=True)
class Database:
    """A SQLite file as a value."""

    image: bytes = field(repr=False)
    "the bytes of the file"
    tables: tuple[tuple[str, tuple[str, ...]], ...]
    "name and columns of every table"

    @classmethod
    def build(cls, script: Iterable[str], rows: Iterable[tuple[str, Sequence[Sequence[Cell]]]]) -> Database:
        """A database from statements that make its tables, and the rows of each table.

        Raises:
            sqlite3.Error: for what SQLite doesn't take.
        """
        with contextlib.closing(sqlite3.connect(":memory:")) as db:
            for statement in script:
                db.execute(statement)
            for table, values in rows:
                if values:
                    db.executemany(
                        f"INSERT INTO {quoted(table)} VALUES ({','.join('?' * len(values[0]))})", values
                    )
            db.commit()
            return cls.of(db)

    @classmethod
    def of(cls, db: sqlite3.Connection) -> Database:
        """What an open connection holds."""
        names = [
            name
            for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY rowid")
        ]
        columns = (
            tuple(row[1] for row in db.execute(f"PRAGMA table_info({quoted(name)})")) for name in names
        )
        return cls(db.serialize(), tuple(zip(names, columns, strict=True)))

    @cached_property
    def key(self) -> str:
        """Digest of the image."""
        return state_digest(self.image)

    def save(self, path: str | Path) -> None:
        """Write the SQLite file."""
        Path(path).write_bytes(self.image)

    def run(self, sql: str, limits: QueryLimits | None = None) -> QueryResult:
        """Run one query in a worker process.

        Raises:
            EnvFault: no worker can be started.
        """
        return _POOL.run(self, sql, limits or QueryLimits())


def quoted(name: str) -> str:
    """`name` as SQL writes names that may be keywords.

    >>> quoted("order")
    '"order"'
    """
    return '"' + name.replace('"', '""') + '"'


class _Died(Exception):
    """The worker ended, or did not answer in time."""

    def __init__(self, *, late: bool) -> None:
        super().__init__("late" if late else "ended")
        self.late = late


class _Worker:
    """One worker process."""

    def __init__(self, memory_mib: int) -> None:
        self.memory_mib = memory_mib
        self._known: set[str] = set()
        script = str(Path(worker.__file__).resolve())
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", script, str(memory_mib)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            start_new_session=True,  # Ctrl-C is for the owner; the worker ends with it
        )

    def ask(self, request: dict[str, Any], image: bytes, wall_s: float) -> dict[str, Any]:
        """One query; the image goes along when the worker doesn't hold it."""
        deadline = time.monotonic() + wall_s
        if request["key"] not in self._known:
            request = {**request, "image": image}
        reply = self._exchange(request, deadline)
        if "unknown" in reply:
            reply = self._exchange({**request, "image": image}, deadline)
        self._known.add(request["key"])
        return reply

    def _exchange(self, request: dict[str, Any], deadline: float) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            worker.write_frame(stdin, request)  # type: ignore[arg-type]
            if not wait([stdout], max(0.0, deadline - time.monotonic())):  # type: ignore[list-item]
                raise _Died(late=True)
            reply = worker.read_frame(stdout)  # type: ignore[arg-type]
        except OSError as error:
            raise _Died(late=False) from error
        if reply is None:
            raise _Died(late=False)
        answer: dict[str, Any] = reply
        return answer

    def end(self) -> None:
        """Kill the process and let go of its pipes."""
        self._process.kill()
        self._process.wait()
        self.leave()

    def leave(self) -> None:
        """Let go of the pipes of a process that belongs to somebody else by now."""
        self._process.returncode = self._process.returncode or 0
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what was not flushed has nobody to read it
                    pipe.close()


class _Pool:
    """A few workers, started when they are needed, shared by every environment of this process."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        """Start empty; a process that was forked off leaves the workers to its parent."""
        for inherited in self._drained():
            inherited.leave()
        self._room = threading.BoundedSemaphore(self._size)
        self._idle = queue.SimpleQueue()

    def run(self, database: Database, sql: str, limits: QueryLimits) -> QueryResult:
        """See `Database.run`."""
        request = {
            "key": database.key,
            "sql": sql,
            "max_steps": limits.max_steps,
            "max_rows": limits.max_rows,
        }
        for _ in range(2):
            try:
                with self._worker(limits.memory_mib) as chosen:
                    reply = chosen.ask(request, database.image, limits.wall_s)
            except _Died as death:
                if death.late:
                    return QueryResult(error="interrupted", limit="wall")
                continue
            return _result(reply)
        return self._after_two_deaths(limits)

    def _after_two_deaths(self, limits: QueryLimits) -> QueryResult:
        """A query that ends every worker is the policy's doing, unless workers end whatever they are asked."""
        try:
            with self._worker(limits.memory_mib) as fresh:
                probe = {"key": "", "sql": "SELECT 1", "max_steps": 1000, "max_rows": 1}
                fresh.ask(probe, Database.build(["CREATE TABLE t (a)"], ()).image, limits.wall_s)
        except _Died as death:
            raise EnvFault("the worker process for queries ends at once; is there memory left?") from death
        return QueryResult(error="the query ended the database engine", limit="memory")

    @contextlib.contextmanager
    def _worker(self, memory_mib: int) -> Iterator[_Worker]:
        with self._room:
            try:
                chosen = self._idle.get_nowait()
            except queue.Empty:
                chosen = _Worker(memory_mib)
            if chosen.memory_mib != memory_mib:
                chosen.end()
                chosen = _Worker(memory_mib)
            try:
                yield chosen
            except BaseException:
                chosen.end()
                raise
            self._idle.put(chosen)

    def close(self) -> None:
        """End every idle worker."""
        for each in self._drained():
            each.end()

    def _drained(self) -> Iterator[_Worker]:
        with contextlib.suppress(queue.Empty):
            while True:
                yield self._idle.get_nowait()


def _result(reply: dict[str, Any]) -> QueryResult:
    if "error" in reply:
        return QueryResult(error=reply["error"], limit=reply["limit"])
    rows = tuple(tuple(row) for row in reply["rows"])
    return QueryResult(tuple(reply["columns"]), rows, reply["total"])


_POOL = _Pool(_WORKERS)
atexit.register(_POOL.close)
