"""A programming problem, and every one that the templates make.

Hidden cases are drawn once for each problem, from its own name, so that a problem is the same in every episode. The
reference solutions are run here, in this process: they are ours.
"""

from __future__ import annotations

import copy
import functools
import itertools
import random
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from string import Template as Text
from typing import Any

from turngym.envs.tool.python.templates import TEMPLATES, Template

SHOWN, HIDDEN = 2, 24


@dataclass(frozen=True, slots=True)
class Problem:
    """One function to write. All values are Python literals as text."""

    name: str
    "unique"
    entry: str
    "name of the function"
    statement: str
    "what it has to do, with its signature and examples"
    solution: str
    "source of a reference solution, the whole function"
    cases: tuple[str, ...] = ()
    "hidden argument tuples"
    expected: tuple[str, ...] = ()
    "what the function gives for each"
    check: str = ""
    "HumanEval's own check in place of cases; see `humaneval`"


@functools.cache
def procedural() -> tuple[Problem, ...]:
    """Every problem that the templates make."""
    return tuple(_problem(template, *chosen) for template in TEMPLATES for chosen in _choices(template))


def _choices(template: Template) -> Iterator[tuple[str, dict[str, str]]]:
    """Every combination of parameters, with its name; `a,b` names parameters that are chosen together."""
    for combination in itertools.product(*template.choices.values()):
        given: dict[str, str] = {}
        label = []
        for names, values in zip(template.choices, combination, strict=True):
            together = values if "," in names else (values,)
            given |= {name: str(value) for name, value in zip(names.split(","), together, strict=True)}
            label.append("/".join(map(str, together if isinstance(together[0], int) else together[:1])))
        yield f"{template.name}({', '.join(label)})", given


def _problem(template: Template, name: str, given: Mapping[str, str]) -> Problem:
    body = textwrap.indent(_fill(template.body, given), "    ")
    solution = f"def {template.name}{template.signature}:\n{body}\n"
    function = load(solution, template.name)
    rng = random.Random(name)
    drawn = [template.inputs(rng) for _ in range(SHOWN + HIDDEN)]
    results = [repr(function(*copy.deepcopy(arguments))) for arguments in drawn]
    shown = [
        f"{template.name}({', '.join(map(repr, arguments))}) == {result}"
        for arguments, result in zip(drawn[:SHOWN], results, strict=False)
    ]
    statement = f"Write {template.name}{template.signature}\n{_fill(template.statement, given)}\nExamples:\n"
    return Problem(
        name=name,
        entry=template.name,
        statement=statement + "\n".join(shown),
        solution=solution,
        cases=tuple(repr(arguments) for arguments in drawn[SHOWN:]),
        expected=tuple(results[SHOWN:]),
    )


def load(source: str, entry: str) -> Any:
    """The function `entry` of a reference solution."""
    scope: dict[str, Any] = {}
    exec(source, scope)
    return scope[entry]


def _fill(text: str, given: Mapping[str, str]) -> str:
    """`text` with its parameters filled in; the value of a parameter may name others."""
    while "$" in text:
        text = Text(text).substitute(given)
    return text
