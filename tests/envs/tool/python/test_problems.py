"""The procedural problems: many, different from each other, and the same in every process."""

from __future__ import annotations

import ast

from turngym.envs.folds import in_fold
from turngym.envs.tool.python.problems import HIDDEN, procedural
from turngym.envs.tool.python.templates import TEMPLATES


def test_there_are_more_than_two_hundred_different_problems_in_both_folds() -> None:
    problems = procedural()
    assert len(problems) >= 200
    assert len({problem.name for problem in problems}) == len(problems)
    assert len({problem.statement for problem in problems}) == len(problems)
    in_test = [problem for problem in problems if in_fold(problem.name, "test")]
    assert 0.1 < len(in_test) / len(problems) < 0.3
    assert {each.name for each in TEMPLATES} == {problem.entry for problem in problems}


def test_hidden_cases_tell_every_problem_from_its_siblings() -> None:
    assert len({(problem.entry, problem.cases, problem.expected) for problem in procedural()}) == len(
        procedural()
    )
    for problem in procedural():
        assert len(problem.cases) == len(problem.expected) == HIDDEN
        assert len(set(problem.expected)) > 1, f"{problem.name}: a constant would pass"
        for literal in (*problem.cases, *problem.expected):
            ast.literal_eval(literal)


def test_no_parameter_is_left_open() -> None:
    for problem in procedural():
        assert "$" not in problem.statement + problem.solution
        assert problem.statement.startswith(f"Write {problem.entry}(")


def test_a_problem_by_hand() -> None:
    (problem,) = [each for each in procedural() if each.name == "count_multiples(3)"]
    scope: dict[str, object] = {}
    exec(problem.solution, scope)
    assert scope["count_multiples"]([3, 4, -6, 0, 10]) == 3  # type: ignore[operator]
    assert "multiples of 3" in problem.statement
