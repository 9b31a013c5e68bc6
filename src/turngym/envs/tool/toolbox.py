"""What a text of the policy asks of its tools, run, and put into words.

    box = Toolbox([Tool.from_function(look_up)], max_output_chars=2000)
    answer = await box.answer('<tool_call>{"name": "look_up", "arguments": {"word": "fork"}}</tool_call>')
    answer.text

Every call of a turn is checked before any is run: a mistake in one of them leaves the world as it was, and each
call gets an answer of its own. Calls that may overlap run at once, the others in the order in which they were written.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from turngym.envs.tool.schema import nearest
from turngym.envs.tool.tools import Tool, ToolError, render, shorten
from turngym.errors import ConfigError
from turngym.toolcalls import CallError, parse_calls
from turngym.types import Message, ToolCall

ErrorKind = Literal["no_call", "malformed", "too_many", "unknown_tool", "bad_arguments", "refused", "not_run"]
"""Why a call was not answered with a result. `refused` is the tool's own word; `not_run` is a good call beside a bad one."""


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one call."""

    call: ToolCall
    content: str
    "what the policy reads"
    error: ErrorKind | None = None
    value: Any = None
    "what the function returned"


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one turn."""

    messages: tuple[Message, ...]
    results: tuple[Result, ...] = ()
    "one for each call; none where the text could not be read as calls"
    errors: tuple[ErrorKind, ...] = ()

    @property
    def text(self) -> str:
        """All that the policy reads."""
        return "\n".join(message.content for message in self.messages)

    @classmethod
    def error(cls, words: str, kind: ErrorKind) -> Answer:
        """The answer to a text that could not be read."""
        return cls((Message("tool", f"Error: {words}"),), errors=(kind,))


class Toolbox:
    """The tools of one environment."""

    def __init__(self, tools: Iterable[Tool], *, max_output_chars: int = 4000, max_calls: int = 16) -> None:
        """Gather tools.

        Args:
            tools: with names of their own.
            max_output_chars: of one result; the middle of a longer one is left out, with a mark.
            max_calls: in one turn; a text with more is answered with an error, and none is run.

        Raises:
            ConfigError: for two tools of one name, or a limit below one.
        """
        self.tools: dict[str, Tool] = {}
        for each in tools:
            if self.tools.setdefault(each.name, each) is not each:
                raise ConfigError(f"two tools are called {each.name!r}")
        if max_output_chars < 1 or max_calls < 1:
            raise ConfigError(
                f"max_output_chars and max_calls must be at least 1, got {max_output_chars} and {max_calls}"
            )
        self.max_output_chars = max_output_chars
        self.max_calls = max_calls

    def describe(self) -> str:
        """The tools for a system message: a signature and a description each."""
        lines = ['Call tools like this: <tool_call>{"name": …, "arguments": {…}}</tool_call>', "Tools:"]
        for each in self.tools.values():
            lines.append(f"- {each.signature}" + (f": {each.description}" if each.description else ""))
            for key, inner in each.schema.get("properties", {}).items():
                if "description" in inner:
                    lines.append(f"    {key}: {inner['description']}")
        return "\n".join(lines)

    def specs(self) -> list[dict[str, Any]]:
        """The tools as OpenAI-style endpoints and chat templates take them."""
        return [each.spec() for each in self.tools.values()]

    async def answer(self, text: str) -> Answer:
        """Run what `text` asks for.

        Raises:
            Exception: whatever a function raises beside `ToolError`; calls that still run are cancelled.
        """
        calls = parse_calls(text)
        if isinstance(calls, CallError):
            return Answer.error(calls.message, "malformed" if calls.attempted else "no_call")
        if len(calls) > self.max_calls:
            return Answer.error(f"at most {self.max_calls} calls a turn, got {len(calls)}", "too_many")
        return await self.run(calls)

    async def run(self, calls: list[ToolCall]) -> Answer:
        """Check every call, then run them; where one is wrong, none is run."""
        checked = [self._check(call) for call in calls]
        if any(isinstance(each, Result) for each in checked):
            left = "Not run, since another call of this turn was wrong."
            results = [
                each if isinstance(each, Result) else Result(call, left, "not_run")
                for call, each in zip(calls, checked, strict=True)
            ]
        else:
            ready = [each for each in checked if not isinstance(each, Result)]
            results = await self._run_all(calls, ready)
        messages = tuple(
            Message("tool", result.content, name=result.call.name, tool_call_id=result.call.id or None)
            for result in results
        )
        return Answer(messages, tuple(results), tuple(r.error for r in results if r.error is not None))

    def _check(self, call: ToolCall) -> tuple[Tool, Mapping[str, Any]] | Result:
        found = self.tools.get(call.name)
        if found is None:
            name = call.name if len(call.name) <= 40 else call.name[:40] + "…"
            words = (
                f"there is no tool {name!r}{nearest(call.name, self.tools)}. Tools: {', '.join(self.tools)}"
            )
            return Result(call, self._shortened(f"Error: {words}."), "unknown_tool")
        try:
            return found, found.arguments(call.arguments)
        except ToolError as error:
            return Result(call, self._shortened(f"Error: {error}"), "bad_arguments")

    async def _run_all(
        self, calls: list[ToolCall], ready: list[tuple[Tool, Mapping[str, Any]]]
    ) -> list[Result]:
        in_order = asyncio.Lock()
        if len(calls) == 1:
            return [await self._run_one(calls[0], *ready[0], in_order)]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._run_one(call, *each, in_order))
                    for call, each in zip(calls, ready, strict=True)
                ]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed
        return [task.result() for task in tasks]

    async def _run_one(
        self, call: ToolCall, found: Tool, arguments: Mapping[str, Any], in_order: asyncio.Lock
    ) -> Result:
        try:
            if inspect.iscoroutinefunction(found.function):
                if found.concurrent:
                    value = await found.function(**arguments)
                else:
                    async with in_order:  # locks are fair, and tasks start in the order of the calls
                        value = await found.function(**arguments)
            elif found.concurrent:
                value = await asyncio.to_thread(found.function, **arguments)
            else:
                async with in_order:
                    value = found.function(**arguments)
        except ToolError as error:
            return Result(call, self._shortened(f"Error: {error}"), "refused")
        return Result(call, self._shortened(render(value)), value=value)

    def _shortened(self, text: str) -> str:
        return shorten(text, self.max_output_chars)


__all__ = ["Answer", "ErrorKind", "Result", "Toolbox"]
