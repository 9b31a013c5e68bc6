"""Tool calls in text: the JSON dialect of Hermes and Qwen.

    <tool_call>{"name": "go", "arguments": {"direction": "east"}}</tool_call>

A call may also stand bare, as the only JSON object of the text. A text that holds no well-formed call is a
`CallError`: environments answer it with its message, which says how to write one, and count it in a metric.
Nothing here raises on hostile text: not on nesting, control characters, lone surrogates or size.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from turngym.types import ToolCall

_TAGGED = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_MAX_CHARS = 100_000
_EXAMPLE = '<tool_call>{"name": …, "arguments": {…}}</tool_call>'


@dataclass(frozen=True, slots=True)
class CallError:
    """Why a text holds no usable call, in words that a model can repair from."""

    message: str


def parse_calls(text: str) -> list[ToolCall] | CallError:
    """Every call in `text` in order, or why there is none.

    One malformed call makes the whole text an error: running half of what was asked would hide the mistake.

    >>> parse_calls('<tool_call>{"name": "open", "arguments": {}}</tool_call>')
    [ToolCall(name='open', arguments={}, id='')]
    >>> parse_calls("let me think").message
    'no tool call found; write <tool_call>{"name": …, "arguments": {…}}</tool_call>'
    """
    if len(text) > _MAX_CHARS:
        return CallError(f"the message has {len(text)} characters; at most {_MAX_CHARS} are read")
    bodies = _TAGGED.findall(text)
    if not bodies:
        bare = text.strip()
        if not (bare.startswith("{") and bare.endswith("}")):
            return CallError(f"no tool call found; write {_EXAMPLE}")
        bodies = [bare]
    calls: list[ToolCall] = []
    for body in bodies:
        call = _parse_one(body)
        if isinstance(call, CallError):
            return call
        calls.append(call)
    return calls


def format_call(call: ToolCall) -> str:
    """The text of one call, as `parse_calls` reads it."""
    body = {"name": call.name, "arguments": dict(call.arguments)}
    return f"<tool_call>{json.dumps(body, ensure_ascii=False)}</tool_call>"


def _parse_one(body: str) -> ToolCall | CallError:
    try:
        data: Any = json.loads(body)
    except (ValueError, RecursionError) as error:
        return CallError(f"the tool call is not valid JSON ({_reason(error)}); write {_EXAMPLE}")
    if not isinstance(data, dict) or not isinstance(data.get("name"), str):
        return CallError(f'a tool call needs a "name"; write {_EXAMPLE}')
    arguments = data.get("arguments", {})
    if not isinstance(arguments, dict):
        return CallError('"arguments" must be an object')
    return ToolCall(data["name"], arguments)


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos}"
    return "nested too deep" if isinstance(error, RecursionError) else "a number that can't be read"
