"""Speaks for `tau2`: airline, retail and telecom of τ²-bench (Barres et al., 2025; Yao et al., 2024).

What runs is the package's own: tasks, policies, domain environments and `evaluate_simulation`. An episode is the record
of what was said and called. The domain's database (24 MB, half a second to read) is not part of it: it follows from the
calls. So tools are called, and episodes are graded, in a forked copy of this process that takes a fresh database from
it and plays the calls so far; the package's own `set_state` does that, and compares every result.

The rules of the conversation are those of the package's orchestrator: the agent or the user says something or makes
calls; the conversation ends when the user stops it, after 200 steps, or after 10 calls that failed.
"""

from __future__ import annotations

import copy
import functools
import gc
import importlib
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any, Literal, NoReturn

from . import tau2_script
from .canonical import digest
from .hints import nearest, nearest_argument
from .limits import in_a_copy

Header = dict[str, Any]
Call = dict[str, Any]
Who = Literal["assistant", "user"]

_MAX_STEPS = 200
_MAX_ERRORS = 10


@dataclass
class Episode:
    """One task as far as it has come."""

    task: str
    seed: int
    "of a user that is a model"
    record: list[Header] = field(default_factory=list)
    "messages as the package dumps them, without their time stamps"
    steps: int = 0
    errors: int = 0


class Package:
    """See `serve.Package`."""

    def __init__(self) -> None:
        _without_models()
        importlib.import_module("loguru").logger.remove()
        self._message = importlib.import_module("tau2.data_model.message")
        self._simulation = importlib.import_module("tau2.data_model.simulation")
        self._evaluator = importlib.import_module("tau2.evaluator.evaluator")
        self._agent = importlib.import_module("tau2.agent.llm_agent")
        self._user = importlib.import_module("tau2.user.user_simulator")
        self._greeting = importlib.import_module("tau2.orchestrator.orchestrator").DEFAULT_FIRST_AGENT_MESSAGE
        self._registry = importlib.import_module("tau2.registry").registry
        vars(importlib.import_module("tau2.domains.telecom.tools"))["uuid"] = SimpleNamespace(uuid4=_bill_id)

    def tasks(self, domain: str) -> list[str]:
        """`domain/id` of the package's base split."""
        return [f"{domain}/{name}" for name in self._tasks(domain)]

    def start(self, task: str, seed: int) -> tuple[Episode, Header]:
        """The agent's greeting has been said, and the user is next."""
        domain, _, _ = task.partition("/")
        episode = Episode(task, seed, [{"role": "assistant", "content": self._greeting.content}])
        fresh, _ = self._fresh(domain)
        prompt = self._agent.SYSTEM_PROMPT.format(
            agent_instruction=self._agent.AGENT_INSTRUCTION, domain_policy=fresh.get_policy()
        )
        system = f"{prompt}\nYou have begun with: {self._greeting.content}"
        return episode, {"system": system, "tools": self._tools(domain), "messages": [], "next": "user"}

    def act(
        self,
        episode: Episode,
        who: Who = "assistant",
        calls: list[Call] | None = None,
        say: str = "",
        problem: str = "",
    ) -> Header:
        """One message of the agent or of the user; `next` says who is next to speak."""
        episode.steps += 1
        if not problem and calls is None and not say.strip():
            problem = "the message is empty; say something or make a call"
        if problem:
            episode.errors += 1
            return self._checked(
                episode, {"messages": [{"role": "tool", "content": f"Error: {problem}"}], "next": who}
            )
        if calls is not None:
            return self._checked(episode, {"messages": self._call(episode, who, calls), "next": who})
        episode.record.append({"role": who, "content": say})
        spoken = self._message.UserMessage(role="user", content=say)
        if who == "user" and self._user.UserSimulator.is_stop(spoken):
            return self._graded(episode, say)
        other: Who = "assistant" if who == "user" else "user"
        return self._checked(episode, {"messages": [{"role": "user", "content": say}], "next": other})

    def gold(self, episode: Episode) -> Header:
        """The agent's next actions of the solution, or words that let the user do theirs."""
        return tau2_script.agent(self._task(episode.task), episode.record)

    def script(self, episode: Episode) -> Header:
        """What the scripted user says or does next."""
        tools = self._user_tools(episode.task.partition("/")[0])
        named = {tool["name"]: bool(tool["parameters"]["properties"]) for tool in tools}
        return tau2_script.user(self._task(episode.task), episode.record, named)

    def view(self, episode: Episode) -> Header:
        """The conversation as a model sees it that plays the user: the package's prompt, and the roles swapped."""
        domain, _, _ = episode.task.partition("/")
        task = self._task(episode.task)
        tools = self._user_tools(domain)
        simulator = self._user.UserSimulator(tools=tools or None, instructions=str(task.user_scenario))
        swapped = {"assistant": "user", "user": "assistant", "tool": "tool"}
        seen = [m for m in episode.record if _heard_by_user(m)]
        return {
            "system": simulator.system_prompt,
            "tools": tools,
            "messages": [{**m, "role": swapped[m["role"]]} for m in seen],
            "seed": episode.seed + len(episode.record),
        }

    def key(self, episode: Episode) -> str:
        """Digest of the record."""
        return digest(episode)

    def verify(self, episode: Episode) -> str:
        """The key, after playing every call again and comparing what it answered."""
        self._in_a_copy(episode, lambda: self._played(episode) and None)
        return digest(episode)

    # ------------------------------------------------------------------ databases

    @functools.cache  # noqa: B019 - there is one package, as long as the process
    def _fresh(self, domain: str) -> tuple[Any, Any]:
        """Two fresh environments of a domain (a grader needs as many), never to be changed but in a copy."""
        make = self._registry.get_env_constructor(domain)
        both = make(), make()
        gc.collect()
        gc.freeze()  # so that a copy's collector does not touch, and so duplicate, what was loaded
        return both

    def _in_a_copy(self, episode: Episode, work: Callable[[], Any]) -> Any:
        """Do `work` where making an environment of this domain takes one of the fresh ones."""
        domain, _, _ = episode.task.partition("/")
        spare = list(self._fresh(domain))

        def prepared() -> Any:
            self._registry._domains[domain] = lambda **_: spare.pop()
            return work()

        return in_a_copy(prepared)

    def _played(self, episode: Episode) -> Any:
        """A fresh environment in which everything in the record has been called."""
        domain, _, _ = episode.task.partition("/")
        initial = self._task(episode.task).initial_state
        env = self._registry.get_env_constructor(domain)()
        env.set_state(
            initialization_data=initial.initialization_data if initial else None,
            initialization_actions=initial.initialization_actions if initial else None,
            message_history=self._messages(episode),
        )
        return env

    # ------------------------------------------------------------------ the conversation

    def _call(self, episode: Episode, who: Who, calls: list[Call]) -> list[Header]:
        """Make the calls; what the tools answered."""
        domain, _, _ = episode.task.partition("/")
        tools = self._tools(domain) if who == "assistant" else self._user_tools(domain)
        known = {tool["name"]: tool["parameters"].get("properties", {}) for tool in tools}
        number = len(episode.record)
        made = [
            self._message.ToolCall(
                id=f"{number}-{i}", name=c["name"], arguments=c["arguments"], requestor=who
            )
            for i, c in enumerate(calls)
        ]

        def answers() -> list[Header]:
            env = self._played(episode)
            return [env.get_response(call).model_dump(exclude={"timestamp", "turn_idx"}) for call in made]

        answered = self._in_a_copy(episode, answers)
        called = [call.model_dump() for call in made]
        episode.record += [{"role": who, "content": None, "tool_calls": called}, *answered]
        episode.errors += sum(answer["error"] for answer in answered)
        shown = []
        for call, answer in zip(made, answered, strict=True):
            content = str(answer["content"])
            if call.name in known:
                content += nearest_argument(content, known[call.name])
            else:
                content += nearest(call.name, known)
            shown.append({"role": "tool", "name": call.name[:64], "content": content})
        episode.steps += 1
        return shown

    def _checked(self, episode: Episode, shown: Header) -> Header:
        """`shown`, or the end where a limit of the package is reached."""
        if episode.steps < _MAX_STEPS and episode.errors < _MAX_ERRORS:
            return shown
        reason = "max_steps" if episode.steps >= _MAX_STEPS else "too_many_errors"
        said = shown["messages"] or [{"role": "user", "content": "The conversation is over."}]
        return {"messages": said, "next": "assistant", "cut": True, "info": {"termination": reason}}

    def _graded(self, episode: Episode, say: str) -> Header:
        """The package's own evaluation of the whole record."""
        reward, parts = self._in_a_copy(episode, lambda: self._evaluated(episode))
        return {
            "messages": [{"role": "user", "content": say}],
            "next": "assistant",
            "over": True,
            "success": reward >= 1.0,
            "reward": reward,
            "info": {"termination": "user_stop", "reward_parts": parts},
        }

    def _evaluated(self, episode: Episode) -> tuple[float, dict[str, float]]:
        """The reward, and what it is the product of."""
        nothing = {"id": "", "task_id": "", "start_time": "", "end_time": "", "duration": 0.0}
        run = self._simulation.SimulationRun(
            **nothing, termination_reason="user_stop", messages=self._messages(episode)
        )
        verdict = self._evaluator.evaluate_simulation(
            simulation=run,
            task=self._task(episode.task),
            evaluation_type=self._evaluator.EvaluationType.ALL,
            solo_mode=False,
            domain=episode.task.partition("/")[0],
        )
        parts = {kind.value: value for kind, value in (verdict.reward_breakdown or {}).items()}
        return float(verdict.reward), parts

    def _messages(self, episode: Episode) -> list[Any]:
        """The record as the package's messages; their time stamps only order them."""
        kinds = {
            "assistant": self._message.AssistantMessage,
            "user": self._message.UserMessage,
            "tool": self._message.ToolMessage,
        }
        return [
            kinds[m["role"]].model_validate({**copy.deepcopy(m), "timestamp": f"{i:06d}"})
            for i, m in enumerate(episode.record)
        ]

    # ------------------------------------------------------------------ what never changes

    @functools.cache  # noqa: B019 - as above
    def _tasks(self, domain: str) -> dict[str, Any]:
        return {task.id: task for task in self._registry.get_tasks_loader(domain)("base")}

    def _task(self, task: str) -> Any:
        domain, _, name = task.partition("/")
        return self._tasks(domain)[name]

    @functools.cache  # noqa: B019 - as above
    def _tools(self, domain: str) -> list[Header]:
        return [tool.openai_schema["function"] for tool in self._fresh(domain)[0].get_tools()]

    @functools.cache  # noqa: B019 - as above
    def _user_tools(self, domain: str) -> list[Header]:
        env, _ = self._fresh(domain)
        return [tool.openai_schema["function"] for tool in env.get_user_tools()] if env.user_tools else []


def _heard_by_user(message: Header) -> bool:
    """The user does not see what the agent calls, nor what its tools answer."""
    if message["role"] == "tool":
        return bool(message["requestor"] == "user")
    return message["role"] == "user" or not message.get("tool_calls")


def _bill_id() -> uuid.UUID:
    """In place of a random id for a customer's next bill, one that follows from the customer."""
    return uuid.uuid5(uuid.NAMESPACE_OID, str(sys._getframe(1).f_locals["customer_id"]))


def _without_models() -> None:
    """Put an empty module where the package imports clients of language models: no model is asked for anything here."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise RuntimeError("no language model is asked from here")

    module = ModuleType("tau2.utils.llm_utils")
    vars(module).update(generate=refuse, get_cost=refuse)
    sys.modules[module.__name__] = module
