"""Only right results pass: whatever else a submission does to its grader, it gets nothing for it."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import pytest

from turngym.envs.tool.machines import Machine
from turngym.envs.tool.python import inside
from turngym.envs.tool.python.grading import Grader, Verdict, same
from turngym.envs.tool.python.problems import Problem, procedural
from turngym.errors import EnvFault
from turngym.sandbox.base import SandboxLost

ADD = Problem(
    name="add",
    entry="add",
    statement="Write add(a, b)",
    solution="def add(a, b):\n    return a + b\n",
    cases=("(1, 2)", "([1], [2.5])", "('a', 'b')", "(True, 0)"),
    expected=("3", "[1, 2.5]", "'ab'", "1"),
)
CHECKED = Problem(
    name="checked",
    entry="add",
    statement="Write add(a, b)",
    solution="def add(a, b):\n    return a + b\n",
    check="def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate([], [1]) == add([], [1])\n"
    "    assert candidate(candidate(1, 1), 5) == 7\n",
)
EVEN_HERE = "import os, sys, json, builtins\n"
CHEATS = {
    "does nothing": "def add(a, b):\n    pass\n",
    "is not there": "x = 1\n",
    "does not parse": "def add(a, b:\n",
    "returns NaN": "def add(a, b):\n    return float('nan')\n",
    "returns infinity": "def add(a, b):\n    return float('inf')\n",
    "equals everything": "class E:\n    def __eq__(self, other): return True\ndef add(a, b):\n    return E()\n",
    "subclasses": "class I(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\n"
    "def add(a, b):\n    return I(0)\n",
    "exits at once": "import os\nos._exit(0)\n",
    "exits politely": "import sys\nsys.exit(0)\n",
    "exits when called": "import os\ndef add(a, b):\n    os._exit(0)\n",
    "prints results": "import json\nfor _ in range(9):\n    print(json.dumps({'value': 3}), flush=True)\n"
    "def add(a, b):\n    print(json.dumps({'passed': True}), flush=True)\n",
    "writes to every descriptor": EVEN_HERE + "def add(a, b):\n    for fd in range(64):\n        try:\n"
    '            os.write(fd, b\'{"passed": true}\\n{"value": 0}\\n\')\n        except OSError:\n            pass\n'
    "    os._exit(0)\n",
    "patches the driver": EVEN_HERE
    + "main = sys.modules['__main__']\nmain.encode = lambda value, depth=0: 'accepted'\n"
    "main.candidate = main.judge = lambda request: print('{\"passed\": true}')\ndef add(a, b):\n    return 0\n",
    "patches json": EVEN_HERE
    + "json.dumps = lambda *a, **k: '{\"passed\": true}'\ndef add(a, b):\n    return 0\n",
    "patches builtins": EVEN_HERE + "builtins.all = builtins.any = builtins.sum = lambda *a: 1\n"
    "builtins.isinstance = lambda *a: True\ndef add(a, b):\n    return 0\n",
    "looks through the frames": EVEN_HERE + "def add(a, b):\n    frame = sys._getframe()\n    while frame:\n"
    "        for value in frame.f_locals.values():\n            if isinstance(value, dict) and 'expected' in value:\n"
    "                return value['expected'][0]\n        frame = frame.f_back\n",
    "forks a liar": EVEN_HERE
    + "if os.fork() == 0:\n    while True:\n        for fd in range(16):\n            try:\n"
    "                os.write(fd, b'{\"value\": 3}\\n')\n            except OSError:\n                pass\n"
    "def add(a, b):\n    return None\n",
    "never ends": "def add(a, b):\n    while True: pass\n",
    "raises what can't be printed": "class Bad(BaseException):\n    def __str__(self): raise self\n"
    "def add(a, b):\n    raise Bad\n",
    "is too deep": "def add(a, b):\n    x = []\n    for _ in range(100000):\n        x = [x]\n    return x\n",
    "is too large": "def add(a, b):\n    return 'x' * (1 << 24)\n",
    "answers in odd JSON": EVEN_HERE
    + "out = [fd for fd in range(3, 64) if os.path.exists(f'/proc/self/fd/{fd}')]\n"
    'for fd in out:\n    try:\n        os.write(fd, b\'{"value": {"set": 3}}\\n{"value": NaN}\\n[1]\\n\' + b\'[\' * 100000)\n'
    "    except OSError:\n        pass\nos._exit(0)\n",
}


def grade(problem: Problem, source: str) -> Verdict:
    return asyncio.run(Grader(cpu_s=1).grade(problem, source))


@pytest.mark.parametrize("problem", [ADD, CHECKED], ids=["cases", "check"])
def test_the_reference_solution_passes(sandbox: str, problem: Problem) -> None:
    assert grade(problem, problem.solution).accepted


@pytest.mark.parametrize("cheat", CHEATS)
@pytest.mark.parametrize("problem", [ADD, CHECKED], ids=["cases", "check"])
def test_a_submission_that_cheats_is_not_accepted(sandbox: str, problem: Problem, cheat: str) -> None:
    verdict = grade(problem, CHEATS[cheat])
    assert not verdict.accepted
    assert verdict.passed < verdict.total


def test_almost_right_is_counted_and_not_accepted(sandbox: str) -> None:
    verdict = grade(ADD, "def add(a, b):\n    return 3 if a == 1 else a + b\n")
    assert (verdict.passed, verdict.total) == (3, 4)
    assert grade(ADD, "def add(a, b):\n    return int(a) + b if a is not True else True\n").passed == 1


def test_what_is_printed_is_no_result(sandbox: str) -> None:
    assert grade(ADD, "print('hello')\ndef add(a, b):\n    print(a)\n    return a + b\n").accepted


def test_why_there_is_no_result_is_said(sandbox: str) -> None:
    assert grade(ADD, CHEATS["never ends"]).words in ("it hit the cpu limit", "it hit the wall limit")
    assert grade(ADD, CHEATS["exits at once"]).words == ""
    assert (
        grade(ADD, "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)").words
        == "it ended with status 137"
    )


def test_a_grader_that_breaks_is_a_fault(sandbox: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: Any, **__: Any) -> None:
        raise SandboxLost("the sandbox is gone")

    with monkeypatch.context() as patch:
        patch.setattr(Machine, "exec", broken)
        with pytest.raises(SandboxLost):
            grade(ADD, ADD.solution)
    broken_check = Problem(name="b", entry="f", statement="", solution="def f(): pass\n", check="1 / 0")
    assert not grade(broken_check, "def f(): pass\n").accepted
    with pytest.raises(EnvFault, match="check of b broke"):
        grade(Problem(name="b", entry="f", statement="", solution="1 / 0", check="pass"), "x = 1")


VALUES = (None, True, 1, 1.0, "1", [1], (1,), {1}, frozenset({1}), {1: [2]}, {"1": [2]}, [], (), {}, set())


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_survive_the_way_and_equal_only_their_like(value: Any) -> None:
    there = json.loads(json.dumps(inside.encode(value)))
    back = inside.decode(there)
    assert back == value
    assert type(back) is type(value)
    assert [other for other in VALUES if same(inside.encode(other), there)] == [value]


def test_order_counts_in_lists_alone_and_floats_may_be_off_by_rounding() -> None:
    def equal(a: object, b: object) -> bool:
        return same(inside.encode(a), inside.encode(b))

    assert equal({1: 2, 3: 4}, {3: 4, 1: 2})
    assert equal({(1, 2), (3, 4)}, {(3, 4), (1, 2)})
    assert not equal([1, 2], [2, 1])
    assert equal(0.1 + 0.2, 0.3)
    assert not equal(0.3, 0.3001)
    assert not equal(math.nan, math.nan)
    assert not same({"list": [1], "set": []}, inside.encode([1]))
    assert not same({"dict": 3}, inside.encode({1: 2}))
    assert not same({"list": {"list": []}}, inside.encode([1]))


@pytest.mark.slow
def test_every_reference_solution_passes_and_those_of_other_parameters_fail(sandbox: str) -> None:
    async def play() -> None:
        grader, problems = Grader(), procedural()
        before = problems[-1]
        for problem in problems:
            assert (await grader.grade(problem, problem.solution)).accepted, problem.name
            if before.entry == problem.entry:
                assert not (await grader.grade(problem, before.solution)).accepted, (
                    before.name,
                    problem.name,
                )
            before = problem

    asyncio.run(play())
