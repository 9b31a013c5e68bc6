"""A tool: a name, a description, a JSON schema of its arguments, and the function behind it.

    @tool
    def look_up(word: str, limit: int = 3) -> list[str]:
        \"\"\"Find definitions.

        Args:
            word: what to look up.
            limit: how many definitions at most.
        \"\"\"

The types of the signature become the schema, the docstring the descriptions. Somebody else's tool comes with a
schema of its own (`Tool.from_schema`); its function is given the arguments as the policy wrote them.

What the policy caused is raised as a `ToolError`, which it reads. Anything else that a function raises is a fault of
the environment, and is never scored.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeVar, get_type_hints, overload

from pydantic import ValidationError
from pydantic_core import to_json

from turngym.envs.tool.schema import (
    Arguments,
    arguments_model,
    describe_errors,
    model_from_schema,
    type_words,
)
from turngym.errors import ConfigError, TurngymError

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__turngym_tool__"


class ToolError(TurngymError, RuntimeError):
    """A call that can't be answered for a reason that the policy can repair; it is given the message."""


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool. Make it with `from_function` or `from_schema`."""

    name: str
    description: str
    schema: Mapping[str, Any]
    "JSON schema of the arguments, an object"
    function: Callable[..., Any]
    "takes the arguments by name; sync or async"
    concurrent: bool
    "may overlap with other calls of its turn; the others run one after another, as they were written"
    model: type[Arguments]
    "validates the arguments"
    native: bool
    "the function takes validated Python values; otherwise the arguments as the policy wrote them"

    @classmethod
    def from_function(
        cls,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        concurrent: bool | None = None,
    ) -> Self:
        """A tool from a function with annotated parameters.

        Args:
            function: a plain or an async one; a bound method is fine.
            name: its own by default.
            description: the docstring's first paragraph by default.
            concurrent: by default async functions may overlap and others may not. A plain function that may is run
                in a thread.

        Raises:
            ConfigError: for a parameter without an annotation, one that can't be passed by name, or `*args`.
        """
        name = name or function.__name__
        summary, notes = _docstring(function)
        hints = get_type_hints(function, include_extras=True)
        fields: dict[str, tuple[Any, Any]] = {}
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise ConfigError(f"tool {name}: {parameter} can't be passed by name")
            if parameter.name not in hints:
                raise ConfigError(f"tool {name}: annotate its parameter {parameter.name!r} with a type")
            default = ... if parameter.default is parameter.empty else parameter.default
            fields[parameter.name] = (hints[parameter.name], default)
        model = arguments_model(name, fields)
        schema = _tidy(model.model_json_schema(by_alias=True))
        for key, words in notes.items():
            if key in fields:
                schema["properties"][key]["description"] = words
        return cls(
            name=name,
            description=summary if description is None else description,
            schema=schema,
            function=function,
            concurrent=inspect.iscoroutinefunction(function) if concurrent is None else concurrent,
            model=model,
            native=True,
        )

    @classmethod
    def from_schema(
        cls,
        name: str,
        schema: Mapping[str, Any],
        function: Callable[..., Any],
        *,
        description: str = "",
        concurrent: bool | None = None,
    ) -> Self:
        """A tool from a JSON schema: see `schema` for what is checked.

        Raises:
            ConfigError: for a schema that makes no sense.
        """
        chosen = inspect.iscoroutinefunction(function) if concurrent is None else concurrent
        model = model_from_schema(name, schema)
        return cls(name, description, schema, function, chosen, model, native=False)

    def arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """`given` as the function takes it.

        Raises:
            ToolError: says every mistake, with the nearest name, and the signature.
        """
        try:
            checked = self.model.model_validate_json(json.dumps(given), strict=True)
        except ValidationError as error:
            words = describe_errors(error, self.schema)
            raise ToolError(
                f"{self.name} can't be called like that: {words}. It is {self.signature}"
            ) from error
        if not self.native:
            return dict(given)
        named = type(checked).model_fields.items()
        return {
            str(info.alias): getattr(checked, name)
            for name, info in named
            if name in checked.model_fields_set
        }

    @property
    def signature(self) -> str:
        """How to call it, in a line: `look_up(word: string, limit: integer = 3)`."""
        required = self.schema.get("required", ())
        parts = []
        for key, inner in self.schema.get("properties", {}).items():
            default = (
                "" if key in required else f" = {json.dumps(inner['default'])}" if "default" in inner else "?"
            )
            mark, value = ("?", "") if default == "?" else ("", default)
            parts.append(f"{key}{mark}: {type_words(inner)}{value}")
        return f"{self.name}({', '.join(parts)})"

    def spec(self) -> dict[str, Any]:
        """The tool as OpenAI-style endpoints and chat templates take it."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.schema)}
        return {"type": "function", "function": function}


@overload
def tool(function: F) -> F: ...
@overload
def tool(
    *, name: str | None = ..., description: str | None = ..., concurrent: bool | None = ...
) -> Callable[[F], F]: ...
def tool(function: Any = None, **options: Any) -> Any:
    """Mark a method of a `ToolCalling` environment as a tool; options as in `Tool.from_function`."""

    def mark(marked: F) -> F:
        setattr(marked, _MARK, options)
        return marked

    return mark if function is None else mark(function)


def tools_of(thing: object) -> list[Tool]:
    """The marked methods of `thing`, in the order in which its class defines them, base classes first."""
    marked: dict[str, Mapping[str, Any]] = {}
    for cls in reversed(type(thing).__mro__):
        marked.update(
            {key: getattr(value, _MARK) for key, value in vars(cls).items() if hasattr(value, _MARK)}
        )
    return [Tool.from_function(getattr(thing, key), **options) for key, options in marked.items()]


def render(value: Any) -> str:
    """What a tool returned, as text: strings as they are, None as `ok`, all else as JSON."""
    if isinstance(value, str):
        return value
    return "ok" if value is None else to_json(value, fallback=str, inf_nan_mode="constants").decode()


def shorten(text: str, limit: int) -> str:
    """`text` in at most `limit` characters and a mark: its beginning and its end.

    >>> shorten("abcdefghij", 4)
    'ab\\n[… 6 characters left out …]\\nij'
    """
    if len(text) <= limit:
        return text
    head, tail = limit - limit // 2, limit // 2
    return f"{text[:head]}\n[… {len(text) - limit} characters left out …]\n{text[len(text) - tail :]}"


def _docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The first paragraph, and the words on each parameter in a Google-style `Args` section."""
    text = inspect.getdoc(function) or ""
    summary = " ".join(text.partition("\n\n")[0].split())
    section = re.search(r"^Args:\n((?:[ \t]+.*\n?|\n)+)", text, re.MULTILINE)
    notes: dict[str, str] = {}
    key = ""
    for line in inspect.cleandoc(section[1]).splitlines() if section else ():
        if match := re.match(r"(\w+)(?: \(.*?\))?: (.*)", line):
            key = match[1]
            notes[key] = match[2].strip()
        elif key and line.strip():
            notes[key] += f" {line.strip()}"
    return summary, notes


def _tidy(schema: Any) -> Any:
    """Without the titles that pydantic adds, which are the names again."""
    if isinstance(schema, dict):
        return {
            key: {name: _tidy(inner) for name, inner in value.items()}
            if key in ("properties", "$defs")
            else _tidy(value)
            for key, value in schema.items()
            if not (key == "title" and isinstance(value, str))
            and not (key == "additionalProperties" and value is False)
        }
    return [_tidy(inner) for inner in schema] if isinstance(schema, list) else schema


__all__ = ["Tool", "ToolError", "render", "shorten", "tool", "tools_of"]
