"""Speaks for `bfcl_eval`: the multi-turn tasks of the Berkeley Function-Calling Leaderboard, v4 (Patil et al., 2025).

What runs is the package's own: its task loader, its `execute_multi_turn_func_call` and its `multi_turn_checker`. That function
keeps API objects in its module's globals for ever, and evaluates call strings; here the episode's own objects are put
there for the length of a call, and a call string is made of a method that exists, argument names that are names, and
the `repr` of JSON values.
"""

from __future__ import annotations

import ast
import copy
import importlib
import inspect
import json
import keyword
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from .canonical import digest
from .hints import nearest, nearest_argument

Header = dict[str, Any]
Call = dict[str, Any]

_CATEGORIES = ("base", "miss_func", "miss_param", "long_context")
_WHO = "turngym"
"""The name under which the package files its objects."""

_UNSEEN = frozenset({"_last_modified"})
"""A clock that no tool shows."""

_JSON_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}


@dataclass
class Episode:
    """One task as far as it has come."""

    task: str
    apis: dict[str, Any]
    "class name → its object"
    turn: int = 0
    "of the user, the first is 0"
    steps: int = 0
    "messages with calls in this turn of the user"
    calls: list[list[list[str]]] = field(default_factory=lambda: [[]])
    "call strings that ran, by turn of the user and by message"


class Package:
    """See `serve.Package`."""

    def __init__(self) -> None:
        self._utils = importlib.import_module("bfcl_eval.utils")
        self._running = importlib.import_module("bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils")
        self._checker = importlib.import_module("bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker")
        self._prompts = importlib.import_module("bfcl_eval.constants.default_prompts")
        self._entries: dict[str, Header] = {}
        self._answers: dict[str, list[list[str]]] = {}
        self._names: dict[str, list[str]] = {}
        for category in _CATEGORIES:
            name = f"multi_turn_{category}"
            entries = self._utils.load_dataset_entry(name, include_language_specific_hint=False)
            self._names[category] = [entry["id"] for entry in entries]
            self._entries |= {entry["id"]: entry for entry in entries}
            answers = self._utils.load_ground_truth_entry(name)
            self._answers |= {entry["id"]: entry["ground_truth"] for entry in answers}

    def tasks(self, category: str) -> list[str]:
        """The ids of one category, or of `all`."""
        wanted = _CATEGORIES if category == "all" else (category,)
        return [task for name in wanted for task in self._names[name]]

    def start(self, task: str) -> tuple[Episode, Header]:
        """Fresh API objects, the tools and the user's first message."""
        entry = self._entries[task]
        episode = Episode(task, self._make(entry))
        style = self._prompts.PROMPT_STYLE_TEMPLATES["classic"]
        system = f"{style['persona']}{style['task']}\n\n{style['multiturn_behavior']}"
        return episode, {"system": system, "tools": self._tools(episode), "messages": self._user(episode)}

    def act(
        self, episode: Episode, calls: list[Call] | None = None, say: str = "", problem: str = ""
    ) -> Header:
        """Run the calls, or go on to the user's next message; the official checker judges after the last."""
        if calls is None and not problem:
            return self._next_turn(episode)
        shown = (
            [{"role": "tool", "content": f"Error: {problem}"}] if problem else self._run(episode, calls or [])
        )
        episode.steps += 1
        if episode.steps <= self._prompts.MAXIMUM_STEP_LIMIT:
            return {"messages": shown}
        return {"messages": shown, "cut": True, "info": {"error_type": "multi_turn:force_terminated"}}

    def gold(self, episode: Episode) -> Header:
        """The answer's calls for this turn of the user, then a message without calls."""
        answer = self._answers[episode.task][episode.turn]
        if not answer or episode.calls[-1]:
            return {"say": "Done."}
        return {"calls": [_parsed(call, self._methods(episode)) for call in answer]}

    def key(self, episode: Episode) -> str:
        """See `serve.Package`."""
        return digest(episode, skip=_UNSEEN)

    def _make(self, entry: Header) -> dict[str, Any]:
        """The package's own objects for a task, taken out of the globals that it files them in."""
        before = set(vars(self._running))
        _, apis = self._running.execute_multi_turn_func_call(
            [],
            entry["initial_config"],
            entry["involved_classes"],
            _WHO,
            entry["id"],
            long_context="long_context" in entry["id"],
        )
        self._forget(before)
        return dict(apis)

    def _forget(self, before: set[str]) -> None:
        for name in set(vars(self._running)) - before:
            del vars(self._running)[name]

    @contextmanager
    def _filed(self, episode: Episode) -> Iterator[None]:
        """The episode's objects where the package looks for them."""
        before = set(vars(self._running))
        for class_name, api in episode.apis.items():
            name = re.sub(r"[-./:]", "_", f"{_WHO}_{episode.task}_{class_name}_instance")
            vars(self._running)[name] = api
        try:
            yield
        finally:
            self._forget(before)

    def _run(self, episode: Episode, calls: list[Call]) -> list[Header]:
        """The results in the order of the calls. What does not run is answered, and not held against the policy."""
        methods, entry = self._methods(episode), self._entries[episode.task]
        shown: list[Header] = []
        ran: list[str] = []
        for call in calls:
            refusal = _refusal(call, methods)
            if refusal is None:
                text = f"{call['name']}({','.join(f'{k}={v!r}' for k, v in call['arguments'].items())})"
                with self._filed(episode):
                    (result,), _ = self._running.execute_multi_turn_func_call(
                        [text],
                        entry["initial_config"],
                        entry["involved_classes"],
                        _WHO,
                        episode.task,
                        long_context="long_context" in episode.task,
                    )
                ran.append(text)
                result += nearest_argument(result, inspect.signature(methods[call["name"]]).parameters)
            shown.append({"role": "tool", "name": call["name"][:64], "content": refusal or result})
        if ran:
            episode.calls[-1].append(ran)
        return shown

    @staticmethod
    def _methods(episode: Episode) -> dict[str, Any]:
        """Every function that the package would run in this task, those that it holds back included: its own rule."""
        found: dict[str, Any] = {}
        for api in episode.apis.values():
            members = inspect.getmembers(api, predicate=inspect.ismethod)
            found |= {name: method for name, method in members if not name.startswith("_")}
        return found

    def _next_turn(self, episode: Episode) -> Header:
        if episode.turn + 1 < len(self._entries[episode.task]["question"]):
            episode.turn, episode.steps = episode.turn + 1, 0
            episode.calls.append([])
            return {"messages": self._user(episode), "tools": self._tools(episode)}
        verdict = self._grade(episode)
        return {
            "messages": [{"role": "user", "content": "That is all, thank you."}],
            "over": True,
            "success": verdict["valid"],
            "reward": float(verdict["valid"]),
            "info": {"error_type": verdict.get("error_type", "")},
        }

    def _tools(self, episode: Episode) -> list[Header]:
        """What the policy is told of the functions: all but those that are held back until a later turn."""
        entry = self._entries[episode.task]
        late = entry.get("missed_function", {}).items()
        functions = [
            *entry["function"],
            *(f for turn, held in late if int(turn) <= episode.turn for f in held),
        ]
        return [_schema(json.dumps(function)) for function in functions]

    def _user(self, episode: Episode) -> list[Header]:
        """The user's message, or the tools that were held back until now and the package's words for it."""
        entry = self._entries[episode.task]
        held_back = entry.get("missed_function", {}).get(str(episode.turn))
        if held_back is None:
            return list(entry["question"][episode.turn])
        words = self._prompts.DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_PROMPTING
        functions = "\n".join(json.dumps(_schema(json.dumps(function))) for function in held_back)
        return [{"role": "user", "content": words.format(functions=functions)}]

    def _grade(self, episode: Episode) -> Header:
        """The official checker's word; it plays the calls and the answer from the start."""
        before = set(vars(self._running))
        answer, entry = self._answers[episode.task], copy.deepcopy(self._entries[episode.task])
        try:
            verdict: Header = self._checker.multi_turn_checker(episode.calls, answer, entry, "", _WHO)
        finally:
            self._forget(before)
        return verdict


def _refusal(call: Call, methods: dict[str, Any]) -> str | None:
    """Why a call is not given to the package; None where it is."""
    if call["name"] not in methods:
        return f"Error: there is no function {call['name'][:200]!r}.{nearest(call['name'], methods)}"
    for name in call["arguments"]:
        if not name.isidentifier() or keyword.iskeyword(name):
            return f"Error: {name[:200]!r} is no parameter of {call['name']}."
    return None


def _parsed(call: str, methods: dict[str, Any]) -> Call:
    """A call string of the answers as a JSON call; positional arguments get their names from the signature."""
    tree = ast.parse(call.strip(), mode="eval").body
    assert isinstance(tree, ast.Call)
    assert isinstance(tree.func, ast.Name)
    parameters = list(inspect.signature(methods[tree.func.id]).parameters)
    arguments = {name: ast.literal_eval(value) for name, value in zip(parameters, tree.args, strict=False)}
    arguments |= {str(k.arg): ast.literal_eval(k.value) for k in tree.keywords}
    return {"name": tree.func.id, "arguments": arguments}


@cache
def _schema(function: str) -> Header:
    """The package's function documentation with JSON Schema's names of types."""
    document = json.loads(function)
    return {
        "name": document["name"],
        "description": document["description"],
        "parameters": _typed(document["parameters"]),
    }


def _typed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_typed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: _typed(value) for key, value in schema.items()}
    if isinstance(schema.get("type"), str):
        out["type"] = _JSON_TYPES.get(schema["type"], schema["type"])
    return out
