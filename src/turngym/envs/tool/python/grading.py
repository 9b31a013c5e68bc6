"""Grades a submission in sandboxes that the agent never sees.

The one idea: the submission is asked, and never told. It gets hidden inputs and gives results, in a sandbox that is
thrown away; what it should have given stays in this process, where the results are compared. Printing, exiting early,
patching the test runner or returning objects that equal everything can't help: only right results do.
"""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from turngym.envs.tool.machines import Blueprint, Machine, machines
from turngym.envs.tool.python import inside
from turngym.envs.tool.python.problems import Problem
from turngym.errors import EnvFault
from turngym.sandbox.base import Limits

_PROGRAM = Path(inside.__file__).read_text(encoding="utf-8")
_ROUNDS = 8
_PATIENCE = 10
"seconds on the clock for each CPU second: the machine may be busy with other episodes"
_TOLERANCE = 1e-9

Answers = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the hidden tests say."""

    passed: int
    total: int
    words: str = ""
    "why there was no more to see"

    @property
    def accepted(self) -> bool:
        """True where every test passed."""
        return self.passed == self.total > 0


class Grader:
    """Runs hidden tests.

    Args:
        sandbox: name of the backend.
        cpu_s: CPU seconds that a submission may take for all cases together.
    """

    def __init__(self, sandbox: str = "best", *, cpu_s: float = 10.0) -> None:
        limits = Limits(
            wall_s=_PATIENCE * cpu_s, cpu_s=cpu_s, memory_mib=512, pids=16, disk_mib=16, output_kib=4096
        )
        self._machines = machines(Blueprint(limits=limits, forkable=False, sandbox=sandbox))

    async def grade(self, problem: Problem, source: str) -> Verdict:
        """Test `source`, a Python module that defines the problem's function.

        Raises:
            SandboxLost: a sandbox broke; what a submission does to its own is its failure.
        """
        if problem.check:
            return await self._check(problem, source)
        cases = [inside.encode(ast.literal_eval(case)) for case in problem.cases]
        expected = [inside.encode(ast.literal_eval(result)) for result in problem.expected]
        answers, words = await self._ask(problem, source, cases)
        passed = sum(_is_right(answer, right) for answer, right in zip(answers, expected, strict=False))
        return Verdict(passed, len(expected), words)

    async def _check(self, problem: Problem, source: str) -> Verdict:
        """HumanEval: its check is code, so it runs against answers that were collected before."""
        answers: list[tuple[Any, dict[str, Any]]] = []
        for _ in range(_ROUNDS):
            said = await self._judge(problem, answers)
            if "passed" in said:
                return Verdict(int(said["passed"]), 1)
            given, words = await self._ask(problem, source, said["need"])
            given += [{"error": words or "no answer"}] * (len(said["need"]) - len(given))
            answers += zip(said["need"], given, strict=True)
        return Verdict(0, 1, "the check asked for new inputs again and again")

    async def _judge(self, problem: Problem, answers: Sequence[Any]) -> dict[str, Any]:
        request = {
            "reference": problem.solution,
            "entry": problem.entry,
            "check": problem.check,
            "answers": answers,
        }
        machine = await self._machines.start()
        try:
            output, words = await _run(machine, "judge", request)
        finally:
            await machine.close()
        try:
            said: dict[str, Any] = json.loads(output)
        except ValueError as error:
            raise EnvFault(f"the check of {problem.name} broke: {words or output[-200:]!r}") from error
        return said

    async def _ask(self, problem: Problem, source: str, cases: Sequence[Any]) -> tuple[Answers, str]:
        """What the submission gives for each case, as far as it came, and why it came no further."""
        request = {"source": source, "entry": problem.entry, "cases": cases}
        machine = await self._machines.start()
        try:
            output, words = await _run(machine, "candidate", request)
        finally:
            await machine.close()
        return read_answers(output, len(cases)), words


async def _run(machine: Machine, role: str, request: dict[str, Any]) -> tuple[bytes, str]:
    argv = ["python3", "-I", "-S", "-c", _PROGRAM, role]
    done = await machine.exec(argv, json.dumps(request).encode(), timeout_s=machine.limits.wall_s)
    if done.limit_hit is not None:
        return done.stdout, f"it hit the {done.limit_hit} limit"
    return done.stdout, "" if done.exit_code == 0 else f"it ended with status {done.exit_code}"


def read_answers(output: bytes, cases: int) -> Answers:
    """One answer a line, up to the first line that is none. The submission may have written anything."""
    answers: Answers = []
    for line in output.split(b"\n")[:cases]:
        try:
            answer = json.loads(line, parse_constant=_refuse)
        except (ValueError, RecursionError):
            break
        if not isinstance(answer, dict):
            break
        answers.append(answer)
    return answers


def _is_right(answer: dict[str, Any], right: Any) -> bool:
    try:
        return "value" in answer and same(answer["value"], right)
    except RecursionError:  # it was made to be too deep to look at
        return False


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no result")


def same(given: Any, right: Any) -> bool:
    """True where two encoded values are the same value of the same type; floats within 1e-9, sets and dicts in any order."""
    if type(given) is not type(right):
        return False
    if isinstance(right, float):
        return math.isclose(given, right, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
    if isinstance(right, list):
        return len(given) == len(right) and all(map(same, given, right))
    if isinstance(right, dict):
        if given.keys() != right.keys():
            return False
        ((kind, items),) = right.items()
        mine = given[kind]
        if kind in ("dict", "set", "frozenset") and isinstance(mine, list):
            mine, items = sorted(mine, key=json.dumps), sorted(items, key=json.dumps)
        return same(mine, items)
    return bool(given == right)
