"""Databases as values, queries in processes, execution match: nothing gets out, nothing gets written, nothing hangs."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from turngym.envs.tool.sql import engine
from turngym.envs.tool.sql.engine import Database, QueryLimits, QueryResult
from turngym.envs.tool.sql.match import same_result
from turngym.errors import EnvFault


@pytest.fixture(scope="module")
def people() -> Database:
    rows = [(i, f"name {i}", i % 3, "2024-05-01") for i in range(200)]
    return Database.build(
        ["CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT, team INTEGER, born TEXT)"],
        [("people", rows)],
    )


def test_a_query_gives_columns_rows_and_their_number(people: Database) -> None:
    result = people.run("SELECT team AS t, count(*) FROM people GROUP BY team", QueryLimits(max_rows=2))
    assert result == QueryResult(("t", "count(*)"), ((0, 67), (1, 67)), total=3)


def test_the_image_is_a_sqlite_file(people: Database, tmp_path: Path) -> None:
    people.save(tmp_path / "people.sqlite")
    with sqlite3.connect(tmp_path / "people.sqlite") as db:
        assert db.execute("SELECT count(*) FROM people").fetchone() == (200,)
    db.close()
    assert people.tables == (("people", ("id", "name", "team", "born")),)


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM people",
        "UPDATE people SET name = 'x'",
        "INSERT INTO people VALUES (999, 'x', 1, '')",
        "DROP TABLE people",
        "CREATE TABLE t (a)",
        "CREATE TEMP TABLE t (a)",
        "CREATE VIEW v AS SELECT 1",
        "ATTACH 'stolen.db' AS other",
        "ATTACH '/etc/passwd' AS other",
        "VACUUM INTO 'stolen.db'",
        "PRAGMA query_only = OFF",
        "PRAGMA temp_store_directory = '/tmp'",
        "PRAGMA database_list",
        "BEGIN; DELETE FROM people",
        "SELECT load_extension('/tmp/evil.so')",
        "SELECT random()",
        "SELECT hex(randomblob(4))",
        "SELECT length(zeroblob(1000000000))",
        "SELECT sqlite_version()",
        "SELECT writefile('x', 'y')",
        "SELECT * FROM pragma_database_list",
        "SELECT date('now')",
        "SELECT datetime(x'6e6f77')",
        "SELECT datetime(CAST('now' AS BLOB))",
        "SELECT datetime(x'6e6f7700')",
        "SELECT strftime('%s')",
        "SELECT date(' NOW ')",
        "SELECT unixepoch('subsec')",
    ],
)
def test_what_is_more_than_reading_is_refused(people: Database, sql: str, tmp_path: Path) -> None:
    before = people.image
    assert people.run(sql).error is not None
    assert people.image == before
    assert people.run("SELECT count(*) FROM people").rows == ((200,),)


@pytest.mark.parametrize(
    "sql", ["", ";", "SELECT", "SELECT '\0'", "SELECT \ud800", "-- nothing", "SELEC 1", "x" * 100_000]
)
def test_what_is_no_query_is_an_error_or_empty(people: Database, sql: str) -> None:
    result = people.run(sql)
    assert result.error is not None or result.rows == ()


def test_dates_of_the_database_can_be_reckoned_with(people: Database) -> None:
    result = people.run(
        "SELECT strftime('%Y', born), date(born, '+1 month'), CAST(julianday(born) AS INT) FROM people LIMIT 1"
    )
    assert result.rows == (("2024", "2024-06-01", 2460431),)


ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c"


def test_a_query_without_end_is_ended_after_its_steps_and_the_worker_lives_on(people: Database) -> None:
    started = time.monotonic()
    result = people.run(ENDLESS, QueryLimits(max_steps=200_000))
    assert result == QueryResult(error="interrupted", limit="steps")
    assert time.monotonic() - started < 5
    assert people.run("SELECT 1").rows == ((1,),)


def test_a_worker_that_does_not_answer_is_killed_and_replaced(people: Database) -> None:
    slow = QueryLimits(max_steps=10**12, wall_s=0.3)
    assert people.run(ENDLESS, slow).limit == "wall"
    assert people.run("SELECT 1").rows == ((1,),)


def test_memory_is_limited_by_the_kernel(people: Database) -> None:
    hoard = (
        "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT 200000) "
        "SELECT printf('%9999d', x) AS t FROM c ORDER BY t DESC"
    )
    result = people.run(hoard, QueryLimits(max_steps=10**9, memory_mib=200, wall_s=60))
    assert result.limit == "memory"
    assert people.run("SELECT 1").rows == ((1,),)


def test_results_are_kept_within_a_budget_and_counted_in_full(people: Database) -> None:
    wide = people.run("SELECT printf('%9999d', a.id) FROM people a, people b", QueryLimits(max_rows=100_000))
    assert wide.total == 40_000
    assert sum(len(str(row[0])) for row in wide.rows) < 2 << 20


def test_a_worker_that_somebody_kills_is_replaced(people: Database) -> None:
    people.run("SELECT 1")
    victim = engine._POOL._idle.get_nowait()
    engine._POOL._idle.put(victim)
    os.kill(victim._process.pid, signal.SIGKILL)
    victim._process.wait()
    assert people.run("SELECT 2").rows == ((2,),)


def test_workers_that_cannot_live_are_a_fault_and_no_failure(people: Database) -> None:
    with pytest.raises(EnvFault, match="worker"):
        people.run("SELECT 1", QueryLimits(memory_mib=1))


def test_a_forked_process_has_workers_of_its_own(people: Database) -> None:
    people.run("SELECT 1")
    child = os.fork()
    if child == 0:
        os._exit(0 if people.run("SELECT 3").rows == ((3,),) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert people.run("SELECT 2").rows == ((2,),)


OWNER = """
import sys, time
from turngym.envs.tool.sql import engine
engine.Database.build(["CREATE TABLE t (a)"], ()).run("SELECT 1")
worker = engine._POOL._idle.get_nowait()
print(worker._process.pid, flush=True)
time.sleep(60)
"""


def test_no_worker_outlives_an_owner_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        worker = int(owner.stdout.readline())
        assert Path(f"/proc/{worker}").exists()
        owner.kill()
    for _ in range(100):
        if not Path(f"/proc/{worker}").exists():
            return
        time.sleep(0.1)
    pytest.fail("the worker is still there")


# ---------------------------------------------------------------------- match


def result(*rows: tuple[object, ...]) -> QueryResult:
    columns = tuple(f"c{i}" for i in range(len(rows[0]) if rows else 1))
    return QueryResult(columns, rows, len(rows))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("expected", "given", "ordered", "same"),
    [
        ([(1,), (2,)], [(2,), (1,)], False, True),
        ([(1,), (2,)], [(2,), (1,)], True, False),
        ([(1,), (1,), (2,)], [(1,), (2,), (2,)], False, False),  # a multiset, not a set
        ([(1,), (1,)], [(1,)], False, False),
        ([("a", 1), ("b", 2)], [(1, "a"), (2, "b")], False, True),  # columns in another order
        ([("a", 1), ("b", 2)], [(2, "a"), (1, "b")], False, False),  # but whole rows
        ([(1, 2), (2, 1)], [(2, 1), (1, 2)], False, True),
        ([(0.1 + 0.2,)], [(0.3,)], False, True),
        ([(3,)], [(3.0,)], False, True),
        ([(3,)], [("3",)], False, False),
        ([(None,)], [(0,)], False, False),
        ([(None,)], [("",)], False, False),
        ([(1.0,)], [(1.001,)], False, False),
        ([], [], False, True),
        ([], [(1,)], False, False),
        ([(1, 1)], [(1,)], False, False),
        # Two rows share the first place of the ranking by the second column: they may stand in any order.
        ([("x", 9), ("a", 9), ("c", 3)], [("a", 9), ("x", 9), ("c", 3)], True, True),
        ([("x", 9), ("a", 9), ("c", 3)], [("x", 9), ("c", 3), ("a", 9)], True, False),
        # Sorted by something that isn't shown: the sequence counts.
        ([("b",), ("a",), ("c",)], [("a",), ("b",), ("c",)], True, False),
    ],
)
def test_execution_match(
    expected: list[tuple[object, ...]], given: list[tuple[object, ...]], ordered: bool, same: bool
) -> None:
    assert same_result(result(*expected), result(*given), ordered=ordered) is same


def test_an_error_or_a_cut_result_never_matches() -> None:
    whole = result((1,), (2,))
    assert not same_result(whole, QueryResult(error="no such table: t"), ordered=False)
    assert not same_result(whole, QueryResult(("c",), ((1,),), total=2), ordered=False)
