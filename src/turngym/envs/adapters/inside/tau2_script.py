"""The two sides of a solved conversation: what the package's solutions would have the agent and the user do.

A solution is a list of actions of the agent and (in telecom) of the user. An action is done once it has been called
with the same arguments. The agent makes its own, and asks the user for theirs by the names of their tools.

The scripted user tells why it calls, and then what else it was told. It uses the tools that the agent names: with the
arguments that the solution has for it, or without any where the tool takes none. It hangs up when everything in the
solution is done, or when the agent has said three things that led to nothing.
"""

from __future__ import annotations

import re
from itertools import takewhile
from typing import Any

Header = dict[str, Any]

_STOP = "###STOP###"
_PATIENCE = 3
"""Answers without any call in between, before the user hangs up."""


def agent(task: Any, record: list[Header]) -> Header:
    """The agent's next message by the solution."""
    pending = _pending(task, record)
    mine = list(takewhile(lambda action: action.requestor == "assistant", pending))
    if mine:
        return {"calls": [{"name": a.name, "arguments": a.arguments} for a in mine]}
    if pending:
        theirs = takewhile(lambda action: action.requestor == "user", pending)
        return {
            "say": f"Please use {', '.join(dict.fromkeys(a.name for a in theirs))}, and tell me what you see."
        }
    facts = task.evaluation_criteria.communicate_info or []
    return {"say": f"Everything is done. {'; '.join(facts)}".strip()}


def user(task: Any, record: list[Header], tools: dict[str, bool]) -> Header:
    """The scripted user's next message; `tools` are the names of the user's tools, True where one takes arguments."""
    said = [m for m in record if m["role"] == "user" and not m.get("tool_calls")]
    if not said:
        return {"say": _reason(task)}
    if record[-1]["role"] == "tool":
        results = takewhile(lambda m: m["role"] == "tool", reversed(record))
        return {"say": "\n".join(["I have done that.", *reversed([str(m["content"]) for m in results])])}
    pending = _pending(task, record)
    if calls := _asked(record[-1]["content"], pending, tools):
        return {"calls": calls}
    told = " ".join(m["content"] for m in record if m["role"] == "assistant" and m["content"]).replace(
        ",", ""
    )
    missing = [f for f in task.evaluation_criteria.communicate_info or [] if f.lower() not in told.lower()]
    idle = _idle(record)
    if (not pending and not missing) or idle >= _PATIENCE:
        return {"say": _STOP}
    return {"say": _details(task) if idle == 1 else "Please go on."}


def _pending(task: Any, record: list[Header]) -> list[Any]:
    """The solution's actions that have not been called yet, in order."""
    made = [call for m in record for call in m.get("tool_calls") or []]
    pending = []
    for action in task.evaluation_criteria.actions or []:
        wanted = (action.requestor, action.name, action.arguments)
        found = next((c for c in made if (c["requestor"], c["name"], c["arguments"]) == wanted), None)
        if found is None:
            pending.append(action)
        else:
            made.remove(found)
    return pending


def _asked(said: str, pending: list[Any], tools: dict[str, bool]) -> list[Header]:
    """Calls of the tools that the agent names, in its order."""
    solution = {a.name: a.arguments for a in reversed(pending) if a.requestor == "user"}
    calls = []
    for name in dict.fromkeys(re.findall(r"\w+", said)):
        if name in tools and (name in solution or not tools[name]):
            calls.append({"name": name, "arguments": solution.get(name, {})})
    return calls


def _idle(record: list[Header]) -> int:
    """What the user has said since the last call of anybody."""
    since = list(takewhile(lambda m: m["role"] != "tool", reversed(record)))
    return sum(m["role"] == "user" for m in since)


def _reason(task: Any) -> str:
    told = task.user_scenario.instructions
    if isinstance(told, str):
        return told
    return "\n".join(part for part in (told.reason_for_call, told.known_info) if part)


def _details(task: Any) -> str:
    told = task.user_scenario.instructions
    return told if isinstance(told, str) else str(told.task_instructions)
