"""`name=value` as people write it on a command line or in a policy's spec: values are TOML, bare words are strings."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

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
        ConfigError: for an option that it needs and did not get.
    """
    parameters = inspect.signature(factory).parameters.values()
    known = {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY}
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        for name in options:
            if name not in known:
                hint = "" if known else f"{what} has no options."
                raise unknown_name(f"option of {what}", name, known, hint=hint)
    missing = [p.name for p in known.values() if p.default is p.empty and p.name not in options]
    if missing:
        raise ConfigError(f"{what} needs the option {missing[0]!r}: write it as {missing[0]}=value")
    return factory(*given, **options)
