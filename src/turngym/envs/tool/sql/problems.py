"""Whole problems: a database that can be seen, others that can't, a question, and the reference query.

An answer has to be right on the hidden databases as well, which have the same tables and other rows; so a query that
states what was seen (`SELECT 7`) or that is right by accident fails. The idea is that of Zhong et al. (2020),
"Semantic Evaluation for Text-to-SQL with Distilled Test Suites".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from turngym.envs.tool.sql.domains import draw_schema, populate
from turngym.envs.tool.sql.engine import Database, QueryLimits, QueryResult
from turngym.envs.tool.sql.match import same_result
from turngym.envs.tool.sql.questions import Question, write

MAX_ANSWER_ROWS = 60
_HIDDEN = 2
REFERENCE = QueryLimits(max_steps=50_000_000, max_rows=5000)
"""For queries of ours."""
_MAX_DRAWS = 200


@dataclass(frozen=True, slots=True)
class Problem:
    """What never changes in an episode."""

    about: str
    "what the database is about, in words"
    database: Database
    "the one that the agent sees"
    hidden: tuple[Database, ...]
    "others with the same tables"
    question: str
    sql: str
    "the reference query"
    ordered: bool
    "rows are compared as a sequence"


def generate(rng: np.random.Generator) -> Problem:
    """A random problem whose answer is neither empty, long, ambiguous, nor the same on every database."""
    schema = draw_schema(rng)
    database, *hidden = (populate(schema, rng) for _ in range(1 + _HIDDEN))
    for _ in range(_MAX_DRAWS):
        question = write(schema, rng)
        if _makes_a_task(question, [database, *hidden]):
            return Problem(
                schema.domain.name,
                database,
                tuple(hidden),
                question.text,
                question.reference,
                question.ranked,
            )
    raise AssertionError(f"no good question about {schema} in {_MAX_DRAWS} draws")


def _makes_a_task(question: Question, databases: list[Database]) -> bool:
    shown, *others = (each.run(question.reference, REFERENCE) for each in databases)
    if not 1 <= shown.total <= MAX_ANSWER_ROWS or all(cell in (None, 0) for cell in shown.rows[0]):
        return False
    if any(same_result(shown, other, ordered=question.ranked) for other in others):
        return False
    return not question.ranked or all(
        _free_of_ties(each.run(question.tie_check, REFERENCE)) for each in databases
    )


def _free_of_ties(result: QueryResult) -> bool:
    keys = [row[-1] for row in result.rows]
    return len(set(keys)) == len(keys) and None not in keys


def judge(problem: Problem, sql: str, limits: QueryLimits) -> bool:
    """True where `sql` gives what the reference query gives, on the database that was seen and on the hidden ones."""
    return all(
        same_result(each.run(problem.sql, REFERENCE), each.run(sql, limits), ordered=problem.ordered)
        for each in (problem.database, *problem.hidden)
    )
