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
from typing import Any, ClassVar, cast

import numpy as np

from turngym.envs.adapters.worker import Overrun, WorkerSlot
from turngym.envs.base import Forking, TurnEnv
from turngym.envs.state import state_digest
from turngym.errors import ConfigError, unknown_name
from turngym.toolcalls import CallError, format_call, parse_calls
from turngym.types import Message, Reply, ToolCall

Shown = Mapping[str, Any]
"""What a package shows: `messages`; at the start `system` and `tools`; at the end `over` or `cut`, `reward`, `success`."""

_SPENT = "spent"
"""The key of an episode that ended in the middle of a message."""

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
        verifies: the method of the package that gives the key of an episode that is restored.
    """

    forking: ClassVar[Forking] = Forking.EXACT
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    blocking: ClassVar[bool] = True

    slot: ClassVar[WorkerSlot]
    act_cpu_s: ClassVar[float] = 20.0
    verifies: ClassVar[str] = "key"

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
        return self.opened(self.begin(options))

    def act(self, action: str) -> Reply:
        """Give one message of the policy to the package."""
        try:
            shown = self.send(read_message(action), turn=self._state.turn + 1)
        except Overrun:
            return self.overrun()
        return self.answered(shown)

    # What these two are made of, for environments in which somebody else speaks in between.

    def begin(self, options: Mapping[str, Any]) -> Shown:
        """Start an episode; what it shows first."""
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
        return cast(Shown, shown)

    def send(self, message: Mapping[str, Any], *, turn: int) -> Shown:
        """Give one message to the package; `turn` is how many the policy has sent then.

        Raises:
            Overrun: where it cost more than it may; the episode is as it was.
        """
        patience = max(120.0, 15 * self.act_cpu_s)  # on a busy machine CPU seconds take long
        shown, header, episode = self.slot.ask(
            "act", self._state.episode, cpu_s=self.act_cpu_s, deadline_s=patience, **message
        )
        self._state = WorkerState(self._state.task, episode, header["key"], turn)
        return cast(Shown, shown)

    def look(self, op: str, **arguments: Any) -> Any:
        """What the method `op` of the package says about the episode, which it leaves as it is."""
        value, _, _ = self.slot.ask(op, self._state.episode, **arguments)
        return value

    def opened(self, shown: Shown) -> Reply:
        """The first reply: the system message with the tools before what is shown."""
        return self._reply(shown, system=f"{shown['system']}\n\n{describe(shown['tools'])}")

    def answered(self, shown: Shown) -> Reply:
        """The reply to a message."""
        return self._reply(shown)

    def overrun(self) -> Reply:
        """The reply to a message that used up its CPU seconds, the memory or the stack: the policy's failure."""
        before = self._state
        self._state = WorkerState(before.task, before.episode, _SPENT, before.turn + 1)
        text = f"That took more than {self.act_cpu_s:g} seconds or too much memory. The episode is over."
        return Reply(text, terminated=True, success=False, messages=[Message("user", text)])

    def get_state(self) -> WorkerState:
        """The episode; nothing in it is ever changed."""
        return self._state

    def set_state(self, state: WorkerState) -> None:
        """Take over `state` with the key of what the worker reads back."""
        key = state.key
        if key != _SPENT:
            key, _, _ = self.slot.ask(self.verifies, state.episode)
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
        gold = self.look("gold")
        return write_message(gold)

    def random_action(self, rng: np.random.Generator) -> str:
        """The solution's message, or its calls without one argument, drawn with the caller's generator."""
        gold = self.look("gold")
        for call in gold.get("calls", []):
            names = sorted(call["arguments"])
            if names and rng.random() < 0.3:
                del call["arguments"][names[int(rng.integers(len(names)))]]
        return write_message(gold)

    def _reply(self, shown: Shown, *, system: str | None = None) -> Reply:
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


def _specs(shown: Shown) -> dict[str, Any]:
    """The tools as OpenAI-style endpoints and chat templates take them, where they are new."""
    if "tools" not in shown:
        return {}
    return {"tools": [{"type": "function", "function": tool} for tool in shown["tools"]]}


def _message(shown: Shown) -> Message:
    content = shown["content"].strip() or "(nothing)"
    return Message(shown["role"], content.encode("utf-8", "replace").decode(), name=shown.get("name"))


def _cut(message: Message, limit: int) -> Message:
    """The message in at most `limit` characters and a note of how many are missing."""
    over = len(message.content) - max(limit, 0)
    if over <= 0 or message.role == "system":
        return message
    kept = message.content[: max(limit, 0)]
    return Message(message.role, f"{kept} [cut: {over} more characters]".strip(), name=message.name)


__all__ = ["Shown", "WorkerEnv", "WorkerState", "read_message", "write_message"]
