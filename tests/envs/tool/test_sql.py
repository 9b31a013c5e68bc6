"""SQL-v0: what is asked can be answered, what cheats is wrong, and mistakes are told in words to repair from."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from conftest import require
from turngym.envs.tool.sql import spider
from turngym.envs.tool.sql.domains import draw_schema, populate
from turngym.envs.tool.sql.engine import Database, QueryLimits
from turngym.envs.tool.sql.env import Sql
from turngym.envs.tool.sql.problems import REFERENCE, Problem, generate, judge
from turngym.envs.tool.sql.questions import TEMPLATES, Writer
from turngym.errors import ConfigError, MissingDependency, UnknownName
from turngym.toolcalls import format_call
from turngym.types import ToolCall

LIMITS = QueryLimits()


@pytest.fixture
def env() -> Any:
    with closing(Sql()) as env:
        env.reset(seed=1)
        yield env


def call(env: Sql, name: str, **arguments: Any) -> str:
    return env.step(format_call(ToolCall(name, arguments)))[0]


# ---------------------------------------------------------------------- problems


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda t: t.__name__)
def test_every_template_asks_what_its_query_answers_without_an_error(template: Any) -> None:
    answered = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        schema = draw_schema(rng)
        database = populate(schema, rng)
        question = template(Writer(schema, rng))
        for sql in (question.reference, question.tie_check):
            result = database.run(sql, REFERENCE)
            assert result.error is None, question
            answered += result.total > 0
        assert question.text[0].isupper()
        assert question.text[-1] in "?."
    assert answered > 10


def test_problems_are_many_and_their_answers_differ_between_databases() -> None:
    problems = [generate(np.random.default_rng(seed)) for seed in range(60)]
    assert len({p.question for p in problems}) > 55
    assert len({p.about for p in problems}) == 6
    for problem in problems:
        shown = problem.database.run(problem.sql, REFERENCE)
        assert 1 <= shown.total <= 60
        assert judge(problem, problem.sql, LIMITS)


def test_references_hold_in_every_generated_database() -> None:
    for seed in range(20):
        problem = generate(np.random.default_rng(seed))
        for each in (problem.database, *problem.hidden):
            with closing(sqlite3.connect(":memory:")) as db:
                db.deserialize(each.image)
                assert db.execute("PRAGMA foreign_key_check").fetchall() == []


def literal_of(database: Database, sql: str) -> str:
    """A query that states the result of `sql` as constants."""
    rows = database.run(sql, REFERENCE).rows
    cells = [", ".join("NULL" if c is None else repr(c) for c in row) for row in rows]
    return " UNION ALL ".join(f"SELECT {row}" for row in cells[:50])


def test_stating_what_was_seen_is_wrong() -> None:
    for seed in range(40):
        problem = generate(np.random.default_rng(seed))
        stated = literal_of(problem.database, problem.sql)
        assert not judge(problem, stated, LIMITS)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1",
        "SELECT NULL",
        "",
        "SELECT 'nan'",
        "SELECT 9e999",
        "SELECT 1 WHERE 0",
        "SELECT 1; SELECT 2",
        "PRAGMA table_info(x)",
    ],
)
def test_answers_that_answer_nothing_are_wrong(sql: str) -> None:
    for seed in range(20):
        assert not judge(generate(np.random.default_rng(seed)), sql, LIMITS)


def test_another_query_with_the_same_meaning_is_right() -> None:
    database = Database.build(["CREATE TABLE t (a, b)"], [("t", [(1, "x"), (2, "y"), (3, "x")])])
    other = Database.build(["CREATE TABLE t (a, b)"], [("t", [(1, "y"), (2, "y")])])
    problem = Problem("t", database, (other,), "?", "SELECT count(*) FROM t WHERE b = 'x'", ordered=False)
    assert judge(problem, "SELECT sum(CASE b WHEN 'x' THEN 1 ELSE 0 END) AS n FROM t;", LIMITS)
    assert not judge(problem, "SELECT 2", LIMITS)  # right on what can be seen
    assert not judge(problem, "SELECT count(*) - 1 FROM t WHERE a", LIMITS)  # likewise


def test_folds_never_meet() -> None:
    seen: dict[str, set[tuple[str, str]]] = {}
    for fold in ("train", "test"):
        with closing(Sql(fold=fold)) as env:  # type: ignore[arg-type]
            problems = [env.reset(seed=seed) and env.get_state().problem for seed in range(25)]
        seen[fold] = {(p.sql, p.question) for p in problems}
    assert not seen["train"] & seen["test"]


# ---------------------------------------------------------------------- the environment


def test_the_schema_is_found_by_looking(env: Sql) -> None:
    problem = env.get_state().problem
    listed = call(env, "tables").splitlines()
    assert [line.partition(":")[0] for line in listed] == [name for name, _ in problem.database.tables]
    name, columns = problem.database.tables[0]
    shown = call(env, "describe", table=name.swapcase())
    assert shown.startswith("CREATE TABLE")
    assert " | ".join(columns) in shown
    assert "(3 rows)" in shown


def test_one_answer_ends_the_episode(env: Sql) -> None:
    sql = env.get_state().problem.sql
    text, reward, terminated, _, info = env.step(format_call(ToolCall("answer", {"sql": sql})))
    assert (text, reward, terminated, info["success"]) == ("Right.", 1.0, True, True)


def test_a_second_answer_in_the_same_turn_does_not_count(env: Sql) -> None:
    sql = env.get_state().problem.sql
    both = [format_call(ToolCall("answer", {"sql": s})) for s in ("SELECT 1", sql)]
    text, reward, terminated, _, info = env.step("".join(both))
    assert (reward, terminated, info["success"]) == (0.0, True, False)
    assert "given already" in text


def test_names_that_do_not_exist_get_the_nearest(env: Sql) -> None:
    name, columns = env.get_state().problem.database.tables[0]
    assert f"did you mean {name!r}" in call(env, "describe", table=name + "x")
    assert f"did you mean {name!r}" in call(env, "query", sql=f"SELECT * FROM {name}x")
    assert f"did you mean {columns[1]!r}" in call(env, "query", sql=f"SELECT x.{columns[1]}q FROM {name} x")
    assert "did you mean 'query'" in call(env, "qery", sql="SELECT 1")
    assert "did you mean 'sql'" in call(env, "query", sqll="SELECT 1")
    assert "sql" in call(env, "query", sql=3)


def test_errors_say_what_to_do(env: Sql) -> None:
    assert "read only" in call(
        env, "query", sql=f"DROP TABLE {env.get_state().problem.database.tables[0][0]}"
    )
    assert "syntax error" in call(env, "query", sql="SELEC 1")
    endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c"
    assert "too many steps" in call(env, "query", sql=endless)


def test_output_stays_within_its_budget() -> None:
    with closing(Sql(max_output_chars=300)) as env:
        env.reset(seed=1)
        name, _ = env.get_state().problem.database.tables[-1]
        text = call(env, "query", sql=f"SELECT * FROM {name} a, {name} b")
        assert len(text) < 400
        assert "left out" in text


def test_a_fork_can_answer_where_its_parent_went_wrong(env: Sql) -> None:
    call(env, "tables")
    (child,) = env.fork()
    with closing(child):
        assert env.step(format_call(ToolCall("answer", {"sql": "SELECT 1"})))[4]["success"] is False
        assert child.step(child.optimal_action())[4]["success"] is True


def test_running_out_of_turns_is_a_failure() -> None:
    with closing(Sql(max_turns=2)) as env:
        env.reset(seed=1)
        call(env, "tables")
        *_, truncated, info = env.step("I give up")
        assert truncated
        assert info["success"] is False


def test_options_that_do_not_exist_are_refused() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'spider'"):
        Sql(pack="spyder")  # type: ignore[arg-type]
    with pytest.raises(UnknownName, match="Did you mean 'train'"):
        Sql(fold="trian")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="max_steps"):
        Sql(max_steps=0)


# ---------------------------------------------------------------------- Spider


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"turngym\[spider\]"):
        Sql(pack="spider")


@pytest.fixture
def package() -> None:
    require("intercode", "turngym[spider]")


@pytest.mark.usefixtures("package")
def test_the_whole_dump_is_read() -> None:
    databases = spider.databases()
    assert len(databases) == 20
    assert sum(len(d.tables) for d in databases.values()) == 81
    assert databases["employee_hire_evaluation"].run("SELECT count(*) FROM evaluation").rows == ((6,),)
    song = databases["singer"].run("SELECT Title FROM song WHERE Song_ID = 1")
    assert song.rows == (("Do They Know It's Christmas",),)


@pytest.mark.usefixtures("package")
def test_every_spider_reference_is_right_and_nothing_constant_is() -> None:
    problems = spider.problems()
    assert len(problems) == 23
    for problem in problems:
        assert len(problem.hidden) == 2, problem
        assert judge(problem, problem.sql, LIMITS), problem
        assert not judge(problem, "SELECT 1 WHERE 0", LIMITS), problem
        stated = literal_of(problem.database, problem.sql)
        assert not stated or not judge(problem, stated, LIMITS), problem


@pytest.mark.usefixtures("package")
def test_spider_is_played_like_the_others() -> None:
    with closing(Sql(pack="spider", fold="test")) as env:
        env.reset(seed=0)
        assert env.get_state().problem in spider.problems()
        env.step(env.optimal_action())
        assert env.step(env.optimal_action())[4]["success"] is True
