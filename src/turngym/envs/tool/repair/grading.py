"""Grades a diff in a sandbox that the agent never sees.

As in `turngym.envs.tool.python.grading`, the code is asked and never told: it gets the hidden probes, and what they should
give stays in this process. So a diff that edits tests, patches what runs them, prints results or exits early changes
nothing: only code that gives the right results for all probes is accepted.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from turngym.envs.tool.machines import Blueprint, machines
from turngym.envs.tool.python import inside as codec
from turngym.envs.tool.python.grading import read_answers, same
from turngym.envs.tool.repair import inside
from turngym.envs.tool.repair.instances import Answer, Repository
from turngym.sandbox.base import Limits

_LIMITS = Limits(wall_s=90, cpu_s=20, memory_mib=512, pids=32, disk_mib=32, output_kib=1024)
_PROGRAM = Path(inside.__file__).read_text(encoding="utf-8")
_CODEC = Path(codec.__file__).read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the hidden probes say of a diff."""

    answers: tuple[Answer, ...]
    "as far as they came"
    wrong: tuple[int, ...]
    "numbers of the probes with a wrong answer, or none"
    total: int
    words: str = ""
    "why there was nothing to see"

    @property
    def accepted(self) -> bool:
        """True where every probe gives what it should."""
        return not self.wrong and self.total > 0


class Grader:
    """Runs hidden probes."""

    def __init__(self, sandbox: str = "best") -> None:
        self._machines = machines(Blueprint(limits=_LIMITS, forkable=False, sandbox=sandbox))

    async def grade(self, repository: Repository, diff: str) -> Verdict:
        """Apply `diff` to the repository, as far as it is about the package's code, and run the probes.

        Raises:
            SandboxLost: a sandbox broke; what the code does to its own is its failure.
        """
        request = {
            "files": dict(repository.files),
            "package": repository.package,
            "diff": diff,
            "probes": repository.probes,
            "codec": _CODEC,
        }
        machine = await self._machines.start()
        try:
            argv = ["python3", "-I", "-S", "-c", _PROGRAM]
            done = await machine.exec(argv, json.dumps(request).encode(), timeout_s=_LIMITS.wall_s)
        finally:
            await machine.close()
        answers = read_answers(done.stdout, len(repository.expected))
        refused = answers and answers[0].get("refused")
        return Verdict(
            tuple(answers),
            _wrong(answers, [json.loads(each) for each in repository.expected]),
            len(repository.expected),
            str(refused) if refused else "",
        )


def _wrong(answers: Sequence[Answer], right: Sequence[Answer]) -> tuple[int, ...]:
    missing = range(len(answers), len(right))
    pairs = enumerate(zip(answers, right, strict=False))
    return (*(i for i, (given, wanted) in pairs if not is_right(given, wanted)), *missing)


def is_right(given: Answer, wanted: Answer) -> bool:
    """True where both are the same value, or errors of one type."""
    if "error" in wanted:
        return bool(given.get("error") == wanted["error"])
    try:
        return "value" in given and same(given["value"], wanted["value"])
    except RecursionError:  # it was made to be too deep to look at
        return False
