"""Speaks for `agentdojo`, benchmark v1.2.2 (Debenedetti et al., 2024).

What runs is the package's own: suites, attacks, its `ToolsExecutor` and its two graders. Two of its modules read the
clock for time stamps that tools show; they get one that stands still.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import importlib
import json
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from .hints import nearest

Header = dict[str, Any]
Call = dict[str, Any]

_VERSION = "v1.2.2"
_SUITES = ("workspace", "travel", "banking", "slack")
_MAX_ROUNDS = 15
"""Messages with calls that the package's `ToolsExecutionLoop` runs."""

_NOW = datetime.datetime(2024, 5, 15, 12, 0)


@dataclass
class Episode:
    """One task as far as it has come."""

    task: str
    attack: str | None
    state: Any
    "the package's environment, a pydantic model"
    rounds: int = 0
    "messages with calls"
    calls: list[Any] = field(default_factory=list)
    "`FunctionCall`s so far"


class Package:
    """See `serve.Package`."""

    def __init__(self) -> None:
        suites = importlib.import_module("agentdojo.task_suite.load_suites")
        self._suites = {name: suites.get_suite(_VERSION, name) for name in _SUITES}
        self._runtime = importlib.import_module("agentdojo.functions_runtime")
        self._types = importlib.import_module("agentdojo.types")
        self._executor = importlib.import_module("agentdojo.agent_pipeline.tool_execution").ToolsExecutor()
        importlib.import_module("agentdojo.attacks")  # registers them
        self._load_attack = importlib.import_module("agentdojo.attacks.attack_registry").load_attack
        pipeline = importlib.import_module("agentdojo.agent_pipeline.agent_pipeline")
        self._system = pipeline.load_system_message("default")
        for module in ("email_client", "cloud_drive_client"):
            clock = SimpleNamespace(datetime=SimpleNamespace(now=lambda: _NOW))
            vars(importlib.import_module(f"agentdojo.default_suites.v1.tools.{module}"))["datetime"] = clock

    def tasks(self, suite: str, attacked: bool) -> list[str]:
        """`suite/user_task`, or with an attack `suite/user_task/injection_task`, of one suite or `all`."""
        names = _SUITES if suite == "all" else (suite,)
        users = [(name, task) for name in names for task in self._suites[name].user_tasks]
        if not attacked:
            return [f"{name}/{task}" for name, task in users]
        return [
            f"{name}/{task}/{goal}" for name, task in users for goal in self._suites[name].injection_tasks
        ]

    def start(self, task: str, attack: str | None) -> tuple[Episode, Header]:
        """The user's request in an environment into which the attack has written."""
        suite, user, _ = self._parts(task)
        prompt = [{"role": "user", "content": user.PROMPT}]
        episode = Episode(task, attack, self._beginning(task, attack))
        return episode, {"system": self._system.strip(), "tools": self._tools(suite.name), "messages": prompt}

    def act(
        self, episode: Episode, calls: list[Call] | None = None, say: str = "", problem: str = ""
    ) -> Header:
        """Run the calls; a message without any is the answer, which the package grades."""
        over = episode.rounds >= _MAX_ROUNDS
        episode.rounds += 1
        if problem and not over:
            return {"messages": [{"role": "tool", "content": f"Error: {problem}"}]}
        made = [
            self._runtime.FunctionCall(function=c["name"], args=c["arguments"], id=str(i))
            for i, c in enumerate(calls or [])
        ]
        episode.calls += made
        if not made or over:
            return self._graded(episode, say)
        return {"messages": [self._run(episode, call) for call in made]}

    def gold(self, episode: Episode, obey: bool = False) -> Header:
        """All calls of the user task's solution in one message, then what it answers; or those of the injection task."""
        _, user, goal = self._parts(episode.task)
        task = goal if obey else user
        calls = [] if episode.calls else task.ground_truth(self._beginning(episode.task, episode.attack))
        if not calls:
            return {"say": task.GROUND_TRUTH_OUTPUT}
        return {"calls": [{"name": call.function, "arguments": dict(call.args)} for call in calls]}

    def key(self, episode: Episode) -> str:
        """See `serve.Package`."""
        seen = [
            episode.task,
            episode.attack,
            episode.rounds,
            episode.state.model_dump(mode="json"),
            [call.model_dump(mode="json") for call in episode.calls],
        ]
        return hashlib.blake2b(json.dumps(seen, sort_keys=True).encode(), digest_size=16).hexdigest()

    def _parts(self, task: str) -> tuple[Any, Any, Any]:
        """The suite, the user task, and the injection task or None."""
        name, user, *goal = task.split("/")
        suite = self._suites[name]
        return suite, suite.user_tasks[user], suite.injection_tasks[goal[0]] if goal else None

    def _beginning(self, task: str, attack: str | None) -> Any:
        """A fresh environment as the user task begins."""
        _, user, _ = self._parts(task)
        state = self._loaded(
            task.partition("/")[0], json.dumps(self._injections(task, attack), sort_keys=True)
        )
        return user.init_environment(state.model_copy(deep=True))

    @functools.cache  # noqa: B019 - there is one package, as long as the process
    def _tools(self, suite: str) -> list[Header]:
        return [
            {"name": f.name, "description": f.description, "parameters": f.parameters.model_json_schema()}
            for f in self._suites[suite].tools
        ]

    @functools.lru_cache(maxsize=256)  # noqa: B019 - as above
    def _injections(self, task: str, attack: str | None) -> dict[str, str]:
        if attack is None:
            return {}
        suite, user, goal = self._parts(task)
        target = SimpleNamespace(name="local")
        injections: dict[str, str] = self._load_attack(attack, suite, target).attack(user, goal)
        return injections

    @functools.lru_cache(maxsize=128)  # noqa: B019 - as above
    def _loaded(self, suite: str, injections: str) -> Any:
        """A suite's environment, read from YAML, which takes a second; never to be changed."""
        return self._suites[suite].load_and_inject_default_environment(json.loads(injections))

    def _run(self, episode: Episode, call: Any) -> Header:
        suite, _, _ = self._parts(episode.task)
        known = [f.name for f in suite.tools]
        if call.function not in known:
            content = f"Error: there is no tool {call.function[:200]!r}.{nearest(call.function, known)}"
        else:
            content = self._result(self._runtime.FunctionsRuntime(suite.tools), episode, call)
        return {"role": "tool", "name": call.function[:64], "content": content}

    def _result(self, runtime: Any, episode: Episode, call: Any) -> str:
        """What the package's executor says; an error goes before the result, as its OpenAI pipeline has it."""
        asked = self._types.ChatAssistantMessage(role="assistant", content=None, tool_calls=[call])
        try:
            *_, messages, _ = self._executor.query("", runtime, episode.state, [asked])
        except (RecursionError, MemoryError, TypeError, ValueError) as error:
            return f"Error: {type(error).__name__}: {error}"  # of reading or writing what the policy sent
        return str(messages[-1]["error"] or self._types.get_text_content_as_str(messages[-1]["content"]))

    def _graded(self, episode: Episode, answer: str) -> Header:
        """The package's word on the user's task and the attacker's."""
        suite, user, goal = self._parts(episode.task)
        before = self._beginning(episode.task, episode.attack)
        said = [self._types.text_content_block_from_string(answer)]
        utility = bool(suite._check_task_result(user, said, before, episode.state, episode.calls))
        info: Header = {"utility": utility}
        if goal is not None:
            info["injected"] = bool(
                suite._check_task_result(goal, said, before, episode.state, episode.calls)
            )
        success = utility and not info.get("injected", False)
        return {
            "messages": [{"role": "user", "content": "Thank you."}],
            "over": True,
            "success": success,
            "reward": float(success),
            "info": info,
        }
