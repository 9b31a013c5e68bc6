"""Plain commands out of an assistant's text, for environments that know no tool calls."""

from __future__ import annotations

from turngym.toolcalls import CallError, parse_calls


def command(text: str) -> str:
    """The command in an assistant's text: the text itself, or what its one tool call says.

    >>> command(" take key "), command('{"name": "act", "arguments": {"action": "take key"}}')
    ('take key', 'take key')
    >>> command('<tool_call>{"name": "left", "arguments": {}}</tool_call>')
    'left'
    """
    calls = parse_calls(text)
    if isinstance(calls, CallError) or len(calls) != 1:
        return text.strip()
    said = calls[0].arguments.get("action", calls[0].name)
    return said if isinstance(said, str) else text.strip()
