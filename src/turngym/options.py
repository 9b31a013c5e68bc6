"""`name=value` as people write it on a command line or in a policy's spec: values are TOML, bare words are strings."""

from __future__ import annotations

import functools
import inspect
import tomllib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

from turngym.errors import ConfigError, unknown_name


def parse_value(text: str) -> Any:
    """A TOML value where `text` is one, else `text` itself.

    >>> [parse_value(t) for t in ("3", "0.5", "true", "[1, 2]", "tiny", '"3"')]
    [3, 0.5, True, [1, 2], 'tiny', '3']
    """
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if len(parsed) == 1 else text


def parse_options(settings: Iterable[str], *, where: str) -> dict[str, Any]:
    """Each `name=value` of `settings` once.

    Args:
        settings: as written.
        where: what they belong to, for the message ("--option", "policy 'local:sprout?…'").

    Raises:
        ConfigError: for a setting without `=` or a name that stands twice.

    >>> parse_options(["rooms=5", "fold=test"], where="--option")
    {'rooms': 5, 'fold': 'test'}
    """
    out: dict[str, Any] = {}
    for setting in settings:
        name, found, text = setting.partition("=")
        name = name.strip()
        if not found or not name:
            raise ConfigError(f"{where}: write name=value, got {setting!r}")
        if name in out:
            raise ConfigError(f"{where}: {name!r} stands twice")
        out[name] = parse_value(text.strip())
    return out


def call_with(
    factory: Callable[..., Any], options: Mapping[str, Any], *, what: str, given: tuple[Any, ...] = ()
) -> Any:
    """`factory(*given, **options)` where every option is a keyword-only argument of `factory`.

    Args:
        factory: takes its options as keyword-only arguments, or as `**kwargs`.
        options: names to values.
        what: what is being made, for the message ("policy 'scripted:epsilon'").
        given: positional arguments that are no options.

    Raises:
        UnknownName: for an option that `factory` does not have, naming the nearest.
        ConfigError: for an option that it needs and did not get, or a value that its hint does not allow.
    """
    check_keywords(factory, options, what=what)
    parameters = inspect.signature(factory).parameters.values()
    needed = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    missing = [name for name in needed if name not in options]
    if missing:
        raise ConfigError(f"{what} needs the option {missing[0]!r}: write it as {missing[0]}=value")
    return factory(*given, **options)


def check_keywords(function: Callable[..., Any], options: Mapping[str, Any], *, what: str) -> None:
    """Refuse options that are no keyword-only argument of `function` (unless it takes any), and impossible values.

    Args:
        function: see `check_values`.
        options: names to values.
        what: what they are options of, for the message.

    Raises:
        UnknownName: for an option that `function` does not have, naming the nearest, or a word that is not among the choices.
        ConfigError: for a value of another type or out of range.
    """
    parameters = inspect.signature(function).parameters.values()
    known = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        for name in options:
            if name not in known:
                hint = "" if known else f"{what} has no options."
                raise unknown_name(f"option of {what}", name, known, hint=hint)
    check_values(function, options, what=what)


def check_values(function: Callable[..., Any], options: Mapping[str, Any], *, what: str) -> None:
    """Refuse values that the type hints of `function` do not allow; a parameter without a hint takes anything.

    Args:
        function: with type hints, whose ranges stand in them as pydantic fields.
        options: names to values.
        what: what they are options of, for the message.

    Raises:
        UnknownName: for a word that is not among the choices.
        ConfigError: for a value of another type or out of range.
    """
    hints = _hints(function)
    for option, value in options.items():
        if option in hints:
            _check(what, hints[option], option, value)


@functools.cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(inspect.unwrap(function), include_extras=True)
    except Exception:  # noqa: BLE001 - a stranger's hints may name what is not there at run time
        return {}


@functools.cache
def _adapter(hint: Any) -> Any:
    """What pydantic checks `hint` with; None where it does not know how."""
    from pydantic import ConfigDict, TypeAdapter  # noqa: PLC0415
    from pydantic.errors import PydanticUserError  # noqa: PLC0415

    for config in (
        ConfigDict(arbitrary_types_allowed=True),
        None,
    ):  # some types bring a configuration of their own
        try:
            return TypeAdapter(hint, config=config)
        except PydanticUserError:
            continue
    return None


def _check(where: str, hint: Any, option: str, value: object) -> None:
    from pydantic import ValidationError  # noqa: PLC0415 - `import turngym` stays cheap

    adapter = _adapter(hint)
    if adapter is None:
        return
    # TOML and JSON have lists only, where a hint may say tuple.
    strict = not isinstance(value, (list, tuple, Mapping))
    try:
        adapter.validate_python(value, strict=strict)
    except ValidationError as error:
        if get_origin(hint) is Literal:
            raise unknown_name(f"{option} of {where}", str(value), get_args(hint)) from error
        said = "; or ".join(dict.fromkeys(each["msg"] for each in error.errors()))
        raise ConfigError(f"{where}: {option} = {value!r}: {said}") from error
