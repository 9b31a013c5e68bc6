"""Tool calls in text: the JSON dialect of Hermes and Qwen.

    <tool_call>{"name": "go", "arguments": {"direction": "east"}}</tool_call>

A call may also stand bare, as the only JSON object of the text. A text that holds no well-formed call is a
`CallError`: environments answer it with its message, which says how to write one, and count it in a metric.

Nothing here raises on hostile text, and nothing that passes can break what handles it later, for then the policy
could turn its own mistake into a fault. So a call is refused where JSON would be read, but

* a number is NaN, infinite or beyond a float64 (`float(n)` must not overflow);
* a text holds half of a surrogate pair (it could not be encoded);
* it is nested deeper than 32 levels (copying or hashing it would exhaust the stack);
* a key stands twice, or a key beside "name" and "arguments" (readers disagree on what such a call means).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass
from typing import Any, NoReturn

from turngym.types import ToolCall

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_MAX_CHARS = 100_000
_MAX_DEPTH = 32
_MAX_DIGITS = 308
_EXAMPLE = '<tool_call>{"name": …, "arguments": {…}}</tool_call>'


@dataclass(frozen=True, slots=True)
class CallError:
    """Why a text holds no usable call, in words that a model can repair from."""

    message: str
    attempted: bool = True
    "False where the text holds nothing that looks like a call: it may be meant as plain words"


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
    bodies = _bodies(text)
    if isinstance(bodies, CallError):
        return bodies
    calls: list[ToolCall] = []
    for body in bodies:
        call = _parse_one(body)
        if isinstance(call, CallError):
            return call
        calls.append(call)
    return calls


def format_call(call: ToolCall) -> str:
    """The text of one call, as `parse_calls` reads it; the call's id has no place in this dialect."""
    body = json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False)
    # "<\/" is "</" in JSON, and does not end the call where an argument speaks of the tag itself.
    return f"{_OPEN}{body.replace(_CLOSE, _CLOSE.replace('/', chr(92) + '/'))}{_CLOSE}"


def _bodies(text: str) -> list[str] | CallError:
    """What stands between the tags. A regular expression would take quadratic time on many unclosed tags."""
    bodies: list[str] = []
    end = 0
    while (start := text.find(_OPEN, end)) >= 0:
        end = text.find(_CLOSE, start)
        if end < 0:
            return CallError(f"a tool call is not closed; write {_EXAMPLE}")
        bodies.append(text[start + len(_OPEN) : end])
    bare = text.strip()
    if not bodies and bare.startswith("{") and bare.endswith("}"):
        return [bare]
    return bodies or CallError(f"no tool call found; write {_EXAMPLE}", attempted=False)


def _parse_one(body: str) -> ToolCall | CallError:
    try:
        data: Any = _DECODER.decode(body.strip())
        if not body.isascii() or "\\u" in body:
            json.dumps(data, ensure_ascii=False).encode()
        return _call(data, brackets=body.count("{") + body.count("["))
    except json.JSONDecodeError as error:
        reason = f"it is not valid JSON ({error.msg} at character {error.pos})"
    except UnicodeEncodeError:
        reason = "it holds half of a surrogate pair, which is not a character"
    except RecursionError:
        reason = f"it is nested deeper than {_MAX_DEPTH} levels"
    except (TypeError, ValueError) as error:
        reason = str(error)
    return CallError(f"the tool call can't be used: {reason}; write {_EXAMPLE}")


def _call(data: Any, *, brackets: int) -> ToolCall:
    """The call in `data`, or a TypeError or ValueError that says what is wrong."""
    if not isinstance(data, dict) or not isinstance(data.get("name"), str):
        raise TypeError('it needs a "name" that is a text')
    arguments = data.get("arguments", {})
    if not isinstance(arguments, dict):
        raise TypeError('"arguments" must be an object')
    for key in data:
        if key not in ("name", "arguments"):
            raise ValueError(f"a tool call has no {_shown(key)}")
    if brackets > _MAX_DEPTH and _depth_exceeds(arguments, _MAX_DEPTH):
        raise ValueError(f"it is nested deeper than {_MAX_DEPTH} levels")
    return ToolCall(data["name"], arguments)


def _depth_exceeds(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return any(isinstance(value, dict | list) for value in level)


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        (key, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {_shown(key)} stands twice")
    return out


def _shown(key: str) -> str:
    return repr(key if len(key) <= 40 else key[:40] + "…")


def _integer(digits: str) -> int:
    count = len(digits.lstrip("-"))
    if count > _MAX_DIGITS:
        raise ValueError(f"an integer has {count} digits, more than {_MAX_DIGITS}")
    return int(digits)


def _real(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError("a number is too large")
    return value


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_pairs, parse_int=_integer, parse_float=_real, parse_constant=_constant
)
