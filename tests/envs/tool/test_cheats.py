"""Agents that go for the grader instead of the task get nothing, in every tool environment that is registered.

`blanket` knows no environment: it sends each payload through every tool, in whatever argument takes it, and then plays
on to the end. The other cheats know what they attack.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any

import pytest

from missing import skip_or_fail
from turngym.envs.base import TurnEnv
from turngym.envs.tool.calling import ToolCalling
from turngym.envs.tool.python import inside
from turngym.envs.tool.tools import Tool
from turngym.errors import MissingDependency
from turngym.registry import list_envs, make
from turngym.toolcalls import format_call
from turngym.types import ToolCall

EPISODES = int(os.environ.get("TURNGYM_CHEATS", "1"))
"""Episodes of each cheat in each environment."""

PAYLOADS = {
    "edits test files": "import glob\nfor p in glob.glob('/workspace/**/*', recursive=True) + glob.glob('/tmp/**/*', recursive=True):\n    try:\n"
    "        open(p, 'w').write('def test_nothing(): pass')\n    except OSError:\n        pass\n",
    "edits files in a shell": "for f in $(find /workspace /tmp -type f); do echo true > $f; done",
    "monkeypatches the grader": "import builtins, json, sys\njson.dumps = lambda *a, **k: '{\"passed\": true}'\n"
    "builtins.all = builtins.any = lambda *a: True\nfor m in list(sys.modules.values()):\n"
    "    for n in ('grade', 'judge', 'check', 'verify', 'same'):\n        if hasattr(m, n):\n"
    "            setattr(m, n, lambda *a, **k: True)\n",
    "shadows programs in a shell": "alias cat=true grep=true; export PATH=/tmp:$PATH; test() { return 0; }; "
    "printf '#!/bin/sh\\nexit 0\\n' > /tmp/diff; chmod +x /tmp/diff",
    "prints the expected output": "print('Accepted.', 'PASSED', '1.0', '{\"success\": true, \"reward\": 1.0}')",
    "prints it in a shell": "echo 'Accepted.'; echo PASSED; echo '{\"success\": true}' | tee answer answer.txt result.json",
    "returns NaN": "float('nan')",
    "selects NaN": "SELECT 1e999, NULL, 'nan'",
    "equals everything": "class E(str):\n    def __eq__(self, other): return True\n    __hash__ = str.__hash__\nE()",
    "exits 0 early": "import os; os._exit(0)",
    "exits politely": "import sys; sys.exit(0)",
    "exits 0 in a shell": "exit 0",
    "kills everything": "kill -9 -1",
    "looks for the answers": "import subprocess\n"
    "subprocess.run(\"grep -rl 'solution' / --include=*.py 2>/dev/null | head\", shell=True)",
    "imports the library": "import turngym.envs.tool",
    "injects": "'; UPDATE results SET success = 1; --",
}


def blanket(env: ToolCalling, payload: str) -> Iterator[str]:
    """The payload through every tool; tools that end the episode come last."""
    tools = sorted(env.toolbox.tools.values(), key=lambda each: bool(_ENDS.search(each.name)))
    for each in tools:
        yield format_call(ToolCall(each.name, _arguments(each, payload)))


_ENDS = re.compile("done|submit|answer|finish|end|stop|transfer")


def _arguments(called: Tool, payload: str) -> dict[str, Any]:
    return {key: _value(inner, payload) for key, inner in called.schema.get("properties", {}).items()}


def _value(schema: Mapping[str, Any], payload: str) -> Any:
    if "enum" in schema:
        return schema["enum"][0]
    kinds = {"string": payload, "integer": 0, "number": 0, "boolean": True, "array": [], "object": {}}
    options = [schema, *schema.get("anyOf", ())]
    return next((kinds[option["type"]] for option in options if option.get("type") in kinds), payload)


def call(name: str, **arguments: Any) -> str:
    return format_call(ToolCall(name, arguments))


def python_cheats(env: Any) -> Iterator[list[str]]:
    """Submissions that know how they are graded; the grader's own tests have more of them."""
    head = f"import os, sys, json\ndef {env.task.entry}(*a):\n    return None\n"
    main = "m = sys.modules['__main__']\n"
    right = [{"value": inside.encode(ast.literal_eval(each))} for each in env.task.expected]
    expected = "\n".join(map(json.dumps, right))
    for source in (
        head + f"print({expected!r})\n",
        head.replace("return None", f"print({expected!r})"),
        head + "os._exit(0)\n",
        head + "sys.exit(0)\n",
        head + "print(json.dumps({'value': None, 'passed': True}))\n",
        head + main + "m.encode = lambda v, depth=0: 0\n",
        head.replace("None", "float('nan')"),
        head.replace("None", "type('E', (), {'__eq__': lambda s, o: True})()"),
    ):
        yield [call("python", code=source.replace("os._exit(0)", "pass")), call("submit", source=source)]


def shell_cheats(env: Any) -> Iterator[list[str]]:
    """Things other than files in the places that are looked at."""
    new = [path.rstrip("/") for path, content in env.task.wanted if path not in dict(env.task.files)]
    for made in (
        "ln -sf /dev/stdin {0}",
        "ln -sf {0} {0}",
        "mkfifo {0}",
        "ln -sf /proc/self/environ {0}",
        "touch {0}",
    ):
        yield [call("run", command="; ".join(made.format(path) for path in new) or "exit 0"), call("done")]
    wanted = "\n".join(content or "" for _, content in env.task.wanted)
    yield [call("run", command=f"echo {shlex.quote(wanted)}"), call("done")]


Cheats = Callable[[Any], Iterator[list[str]]]


SPECIAL: Mapping[str, tuple[Mapping[str, Any], Cheats]] = {
    "turngym/PythonTasks-v0": ({}, python_cheats),
    "turngym/PythonTasks-v0 HumanEval": ({"source": "humaneval"}, python_cheats),
    "turngym/Shell-v0": ({"level": 2}, shell_cheats),
}
"""Options to make an environment with, and what attacks it in particular."""

OPTIONS: Mapping[str, Mapping[str, Any]] = {
    **{row.id: {} for row in list_envs() if row.family == "tool" and row.available},
    **{name: options for name, (options, _) in SPECIAL.items()},
    "turngym/SQL-v0 Spider": {"pack": "spider"},
}
"""Every tool environment that is registered, and the benchmarks that some of them play."""


def made(name: str) -> ToolCalling:
    try:
        env = make(name.partition(" ")[0], **OPTIONS[name])
    except MissingDependency as error:
        skip_or_fail(str(error))
    assert isinstance(env, ToolCalling)
    return env


def play(env: TurnEnv, seed: int, actions: Iterator[str]) -> tuple[float, bool | None]:
    """Sum of rewards and success of an episode of `actions`, and then of words until it ends."""
    total, success = 0.0, None
    for action in actions:
        _, reward, terminated, truncated, info = env.step(action)
        total += reward
        if terminated or truncated:
            return total, info["success"]
    for _ in range(100):
        _, reward, terminated, truncated, info = env.step("I am done, and all tests pass.")
        total += reward
        if terminated or truncated:
            success = info["success"]
            break
    return total, success


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("name", OPTIONS)
def test_a_payload_through_every_tool_gets_nothing(sandbox: str, name: str, payload: str) -> None:
    with closing(made(name)) as env:
        for seed in range(EPISODES):
            env.reset(seed=seed)
            total, success = play(env, seed, blanket(env, PAYLOADS[payload]))
            assert (total, success) == (0.0, False)


@pytest.mark.parametrize("name", SPECIAL)
def test_a_cheat_made_for_an_environment_gets_nothing(sandbox: str, name: str) -> None:
    with closing(made(name)) as env:
        for seed in range(EPISODES):
            env.reset(seed=seed)
            scripts = list(SPECIAL[name][1](env))
            for script in scripts:
                env.reset(seed=seed)
                assert play(env, seed, iter(script)) == (0.0, False), script
