"""JSON schemas as pydantic validators, and what pydantic finds as words that a model can repair from.

The one idea: pydantic checks, in its strict JSON mode, and the caller keeps the JSON as it was. So a tool that
belongs to somebody else gets exactly what the policy wrote.

Understood: `type` (one or several), `properties`, `required`, `additionalProperties`, `items`, `enum`, `const`, `anyOf`,
`oneOf` (as `anyOf`), local `$ref`, bounds on numbers, and lengths. Other keywords (`pattern`, `format`, `if` …)
are not checked here: they are left to the tool itself to refuse. Unlike plain JSON schema, an object with
`properties` takes no others unless `additionalProperties` says so, since an argument that nobody reads is a mistake.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Union

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from turngym.errors import ConfigError

_NAMES = {
    "dict": "object",
    "map": "object",
    "list": "array",
    "tuple": "array",
    "float": "number",
    "double": "number",
    "int": "integer",
    "bool": "boolean",
    "str": "string",
}
"Types as some benchmarks write them."
_PLAIN: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "null": None,
    "any": Any,
}
_BOUNDS = {
    "minimum": "ge",
    "maximum": "le",
    "exclusiveMinimum": "gt",
    "exclusiveMaximum": "lt",
    "multipleOf": "multiple_of",
}
_LENGTHS = {"string": ("minLength", "maxLength"), "array": ("minItems", "maxItems")}
_SHOWN_ERRORS = 4
_SHOWN_CHARS = 60


class Arguments(BaseModel):
    """Base of every model made here: strict, and closed to what was not declared."""

    model_config = ConfigDict(strict=True, extra="forbid", arbitrary_types_allowed=True)


class OpenArguments(Arguments):
    """The same for objects that declare `additionalProperties`."""

    model_config = ConfigDict(strict=True, extra="allow")


def arguments_model(
    name: str, fields: Mapping[str, tuple[Any, Any]], *, base: type[Arguments] = Arguments
) -> type[Arguments]:
    """A model whose JSON has exactly the keys of `fields`.

    Args:
        name: shown in pydantic's own messages.
        fields: key → (type, default); `...` for a key that has to be there. Any text may be a key: inside, fields
            have names of their own, so that none collides with those of `BaseModel`.
        base: what to derive from.
    """
    made: dict[str, Any] = {
        f"field_{i}": (kind, Field(default, alias=key))
        for i, (key, (kind, default)) in enumerate(fields.items())
    }
    return create_model(name, __base__=base, **made)


def model_from_schema(name: str, schema: Mapping[str, Any]) -> type[Arguments]:
    """A validator of the object that `schema` describes.

    Raises:
        ConfigError: where `schema` is not the schema of an object, or names a type or `$ref` that does not exist.
    """
    if _kinds(schema) not in (["object"], []):
        raise ConfigError(f"the arguments of {name} must be an object, not {schema.get('type')!r}")
    return _Reader(name, schema).model(schema)


def describe_errors(error: ValidationError, schema: Mapping[str, Any]) -> str:
    """What is wrong with the arguments, one sentence a mistake; wrong names get the nearest that `schema` has."""
    known = set(_keys(schema))
    found = error.errors(include_url=False, include_context=False)
    words = list(dict.fromkeys(_describe(e["type"], e["loc"], e["msg"], e["input"], known) for e in found))
    more = f"; and {len(words) - _SHOWN_ERRORS} more" if len(words) > _SHOWN_ERRORS else ""
    return "; ".join(words[:_SHOWN_ERRORS]) + more


def nearest(name: str, known: Iterable[str]) -> str:
    """` (did you mean …?)`, or nothing where nothing is near."""
    close = difflib.get_close_matches(name[:200], sorted(known), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""


def type_words(schema: Mapping[str, Any]) -> str:
    """A type in a few characters, for signatures.

    >>> type_words({"type": "array", "items": {"enum": ["a", "b"]}})
    'array of "a" | "b"'
    """
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return " | ".join(f'"{v}"' if isinstance(v, str) else str(v) for v in values)
    if options := schema.get("anyOf", schema.get("oneOf")):
        return " | ".join(dict.fromkeys(type_words(option) for option in options))
    if "$ref" in schema:
        return str(schema["$ref"]).rsplit("/", 1)[-1]
    kinds = _kinds(schema)
    if kinds == ["array"] and isinstance(schema.get("items"), Mapping):
        return f"array of {type_words(schema['items'])}"
    return " | ".join(kinds) or "any"


class _Reader:
    """Reads one schema; `$ref` is looked up in its root."""

    def __init__(self, name: str, root: Mapping[str, Any]) -> None:
        self._name = name
        self._root = root
        self._open: tuple[str, ...] = ()

    def model(self, schema: Mapping[str, Any]) -> type[Arguments]:
        required = schema.get("required", ())
        fields: dict[str, tuple[Any, Any]] = {
            key: (self.type(inner), ... if key in required else None)
            for key, inner in schema.get("properties", {}).items()
        }
        base = OpenArguments if schema.get("additionalProperties") else Arguments
        return arguments_model(self._name, fields, base=base)

    def type(self, schema: Any) -> Any:
        """What pydantic takes as a type."""
        if not isinstance(schema, Mapping):  # true and false are schemas, too
            return Any
        if "$ref" in schema:
            return self._referred(schema["$ref"])
        if "enum" in schema:
            return _literal(schema["enum"])
        if "const" in schema:
            return _literal([schema["const"]])
        if options := schema.get("anyOf", schema.get("oneOf")):
            return Union[tuple(self.type(option) for option in options)]  # noqa: UP007 - made at run time
        kinds = _kinds(schema)
        return Union[tuple(self._one(kind, schema) for kind in kinds)] if kinds else Any  # noqa: UP007 - likewise

    def _one(self, kind: str, schema: Mapping[str, Any]) -> Any:
        bounds = {ours: schema[theirs] for theirs, ours in _BOUNDS.items() if theirs in schema}
        low, high = _LENGTHS.get(kind, ("", ""))
        lengths: dict[str, Any] = {"min_length": schema.get(low), "max_length": schema.get(high)}
        if kind in ("integer", "number"):
            return Annotated[_PLAIN[kind], Field(**bounds)]
        if kind == "string":
            return Annotated[str, Field(**lengths)]
        if kind == "array":
            return Annotated[list[self.type(schema.get("items"))], Field(**lengths)]  # type: ignore[misc]
        if kind == "object":
            if schema.get("properties"):
                return self.model(schema)
            return dict[str, self.type(schema.get("additionalProperties"))]  # type: ignore[misc]
        if kind not in _PLAIN:
            raise ConfigError(
                f"{self._name}: {kind!r} is no type of JSON schema{nearest(kind, [*_PLAIN, 'object', 'array'])}"
            )
        return _PLAIN[kind]

    def _referred(self, reference: str) -> Any:
        if reference in self._open:  # a type that contains itself: its inside is left to the tool
            return Any
        target: Any = self._root
        try:
            for part in reference.removeprefix("#/").split("/"):
                target = target[part.replace("~1", "/").replace("~0", "~")]
        except (KeyError, TypeError) as error:
            raise ConfigError(f"{self._name}: $ref {reference!r} leads nowhere") from error
        self._open = (*self._open, reference)
        try:
            return self.type(target)
        finally:
            self._open = self._open[:-1]


def _kinds(schema: Mapping[str, Any]) -> list[str]:
    kinds = schema.get("type", [])
    return [_NAMES.get(kind, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds)]


def _literal(values: Sequence[Any]) -> Any:
    if all(isinstance(value, str | int | bool | None) for value in values):
        return Literal[tuple(values)]
    return Any  # pydantic knows no literal floats, lists and objects


def _keys(schema: Any) -> Iterator[str]:
    """Names of properties, at any depth."""
    if isinstance(schema, Mapping):
        yield from schema.get("properties", ())
        for inner in schema.values():
            yield from _keys(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from _keys(inner)


def _describe(kind: str, where: Sequence[int | str], words: str, given: Any, known: set[str]) -> str:
    # Between the keys pydantic says which member of a union it tried.
    place = [part for part in where[:-1] if isinstance(part, int) or part in known] + list(where[-1:])
    if kind == "missing":
        return f"{_place(place)} is missing"
    if kind == "extra_forbidden":
        return f"there is no argument {_place(place)}{nearest(str(where[-1]), known)}"
    if where and isinstance(where[-1], str) and where[-1] not in known:
        place = place[:-1]
    shown = repr(given)
    shown = shown if len(shown) <= _SHOWN_CHARS else shown[:_SHOWN_CHARS] + "…"
    return f"{_place(place)}: {words[0].lower()}{words[1:]}, got {shown}"


def _place(where: Sequence[int | str]) -> str:
    """`items[2].name`, quoted."""
    out = ""
    for part in where:
        text = str(part)[:_SHOWN_CHARS]
        out += f"[{text}]" if isinstance(part, int) else f".{text}" if out else text
    return repr(out)
