"""An environment whose package runs in a worker: its state is a value that the worker gives and takes back.

Forks are exact: the state is the pickled episode, which no one changes, and the worker's digest of the live episode is
its key. Restoring asks the worker for the key of what it reads back, so a state that pickle loses something of is a
`ForkDiverged` and not another episode.

The policy calls tools as `turngym.toolcalls` reads them, several in one message if it likes; a message without any is
for the user. A message that tries to call and can't be read is answered with what is wrong with it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from turngym.envs.adapters.worker import CpuSpent, WorkerSlot
from turngym.envs.base import Forking, TurnEnv
from turngym.envs.state import state_digest
from turngym.errors import ConfigError, unknown_name
from turngym.toolcalls import CallError, format_call, parse_calls
from turngym.types import Message, Reply, ToolCall

_MAX_TOOL_CHARS = 100_000
"""Longer output of one tool is cut, with a note."""

_MAX_MESSAGE_CHARS = 300_000
"""All observations of one message together."""

_HOW = (
    'Call tools like this: <tool_call>{"name": …, "arguments": {…}}</tool_call>\n'
    "Several calls in one message run in order. A message without a call is for the user.\n"
    "Tools:"
)


@dataclass(frozen=True, slots=True)
class WorkerState:
    """An episode between two messages."""

    task: str
    episode: bytes
    "pickled by the worker, and read by the worker alone"
    key: str
    "the worker's digest of the live episode"
    turn: int
    "messages of the policy so far"


class WorkerEnv(TurnEnv):
    """Base of the adapters whose package runs in a worker. A subclass sets `slot` and says which tasks there are.

    Class attributes:
        slot: where its worker is found.
        act_cpu_s: CPU seconds that one message may cost, the grader at the end included. More is the policy's failure.
    """

    forking: ClassVar[Forking] = Forking.EXACT
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    blocking: ClassVar[bool] = True

    slot: ClassVar[WorkerSlot]
    act_cpu_s: ClassVar[float] = 20.0

    def __init__(
        self, *, task: str | None = None, max_turns: int = 100, render_mode: str | None = None
    ) -> None:
        super().__init__(render_mode=render_mode)
        if max_turns < 1:
            raise ConfigError(f"max_turns must be at least 1, got {max_turns}")
        self.task, self.max_turns = task, max_turns
        self._state = WorkerState("", b"", "", 0)

    def task_options(self) -> dict[str, Any]:
        """What chooses the set of tasks, as the worker's `tasks` takes it."""
        return {}

    def start_options(self) -> dict[str, Any]:
        """What the worker's `start` takes beside the task."""
        return {}

    def task_ids(self) -> Sequence[str]:
        """Every task that the seed may draw, in the benchmark's own order."""
        return _task_ids(self.slot, json.dumps(self.task_options(), sort_keys=True))

    def start(self, options: Mapping[str, Any]) -> Reply:
        """Begin the task that `options["task"]` or the constructor names, or one that the seed draws."""
        for name in options:
            if name != "task":
                raise unknown_name(f"reset option of {type(self).__name__}", name, ["task"])
        tasks = self.task_ids()
        wanted = options.get("task", self.task)
        drawn = tasks[int(self.np_random.integers(len(tasks)))]
        task = drawn if wanted is None else str(wanted)
        if task not in tasks:
            raise unknown_name(f"task of {type(self).__name__}", task, tasks)
        shown, header, episode = self.slot.ask("start", task=task, **self.start_options())
        self._state = WorkerState(task, episode, header["key"], 0)
        return self._reply(shown, system=f"{shown['system']}\n\n{describe(shown['tools'])}")

    def act(self, action: str) -> Reply:
        """Give one message of the policy to the package."""
        before = self._state
        message = read_message(action)
        try:
            shown, header, episode = self.slot.ask(
                "act", before.episode, cpu_s=self.act_cpu_s, deadline_s=self.act_cpu_s * 15, **message
            )
        except CpuSpent:
            self._state = WorkerState(before.task, before.episode, "spent", before.turn + 1)
            text = f"That took more than {self.act_cpu_s:g} seconds to compute. The episode is over."
            return Reply(text, terminated=True, success=False, messages=[Message("user", text)])
        self._state = WorkerState(before.task, episode, header["key"], before.turn + 1)
        return self._reply(shown)

    def get_state(self) -> WorkerState:
        """The episode; nothing in it is ever changed."""
        return self._state

    def set_state(self, state: WorkerState) -> None:
        """Take over `state` with the key of what the worker reads back."""
        key = state.key
        if key != "spent":
            key, _, _ = self.slot.ask("key", state.episode)
        self._state = WorkerState(state.task, state.episode, key, state.turn)

    def copy_state(self, state: WorkerState) -> WorkerState:
        """The state itself."""
        return state

    def state_key(self) -> str:
        """Digest of the task, the live episode, the turn and the generator."""
        episode, state = self._running(), self._state
        return state_digest(state.task, state.key, state.turn, self._rng_state(), episode.over)

    def optimal_action(self) -> str:
        """The message that the benchmark's own solution says next, whatever was said before."""
        gold, _, _ = self.slot.ask("gold", self._state.episode)
        return write_message(gold)

    def random_action(self, rng: np.random.Generator) -> str:
        """The solution's message, or its calls without one argument, drawn with the caller's generator."""
        gold, _, _ = self.slot.ask("gold", self._state.episode)
        for call in gold.get("calls", []):
            names = sorted(call["arguments"])
            if names and rng.random() < 0.3:
                del call["arguments"][names[int(rng.integers(len(names)))]]
        return write_message(gold)

    def _reply(self, shown: Mapping[str, Any], *, system: str | None = None) -> Reply:
        messages = [_message(m) for m in shown["messages"]]
        room = _MAX_MESSAGE_CHARS
        for i, message in enumerate(messages):
            messages[i] = _cut(message, min(room, _MAX_TOOL_CHARS))
            room -= len(messages[i].content)
        if system is not None:
            messages.insert(0, Message("system", system))
        terminated = bool(shown.get("over"))
        truncated = bool(shown.get("cut")) or (not terminated and self._state.turn >= self.max_turns)
        success = shown.get("success") if terminated else False if truncated else None
        return Reply(
            "\n\n".join(m.content for m in messages),
            reward=float(shown.get("reward", 0.0)),
            terminated=terminated,
            truncated=truncated,
            success=success,
            messages=messages,
            info={"task": self._state.task, **_specs(shown), **shown.get("info", {})},
        )


def read_message(action: str) -> dict[str, Any]:
    """What a policy's text asks for, as the worker's `act` takes it: `calls`, `say`, or the `problem` with it.

    >>> read_message("All done.")
    {'say': 'All done.'}
    >>> read_message('<tool_call>{"name": "ls", "arguments": {}}</tool_call>')
    {'calls': [{'name': 'ls', 'arguments': {}}]}
    >>> read_message("<tool_call>ls")["problem"][:28]
    'a tool call is not closed; w'
    """
    calls = parse_calls(action)
    if not isinstance(calls, CallError):
        return {"calls": [{"name": c.name, "arguments": dict(c.arguments)} for c in calls]}
    if calls.attempted:
        return {"problem": calls.message}
    return {"say": action.encode("utf-8", "replace").decode()}


def describe(tools: Sequence[Mapping[str, Any]]) -> str:
    """The tools for a system message: how to call them, and each as a line of JSON."""
    return "\n".join((_HOW, *(json.dumps(tool, ensure_ascii=False) for tool in tools)))


def write_message(message: Mapping[str, Any]) -> str:
    """The text of a policy that `read_message` reads as `message`."""
    if "calls" not in message:
        return str(message["say"])
    return "\n".join(format_call(ToolCall(c["name"], c["arguments"])) for c in message["calls"])


@functools.lru_cache(maxsize=64)
def _task_ids(slot: WorkerSlot, options: str) -> tuple[str, ...]:
    tasks, _, _ = slot.ask("tasks", **json.loads(options))
    return tuple(tasks)


def _specs(shown: Mapping[str, Any]) -> dict[str, Any]:
    """The tools as OpenAI-style endpoints and chat templates take them, where they are new."""
    if "tools" not in shown:
        return {}
    return {"tools": [{"type": "function", "function": tool} for tool in shown["tools"]]}


def _message(shown: Mapping[str, Any]) -> Message:
    content = shown["content"].strip() or "(nothing)"
    return Message(shown["role"], content.encode("utf-8", "replace").decode(), name=shown.get("name"))


def _cut(message: Message, limit: int) -> Message:
    """The message in at most `limit` characters and a note of how many are missing."""
    over = len(message.content) - max(limit, 0)
    if over <= 0 or message.role == "system":
        return message
    kept = message.content[: max(limit, 0)]
    return Message(message.role, f"{kept} [cut: {over} more characters]".strip(), name=message.name)


__all__ = ["WorkerEnv", "WorkerState", "read_message", "write_message"]
