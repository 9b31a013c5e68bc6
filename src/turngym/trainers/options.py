"""Options of credit rules and losses: keyword-only parameters, checked against their own type hints.

The one idea: the signature of a rule is its configuration. `bind` refuses a name, an option or a value that the
signature does not allow before a run starts; `checked` holds a direct call to the same. Ranges stand in the hints
as pydantic fields. Positional parameters carry data and are not looked at.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, get_args, get_origin, get_type_hints

from pydantic import Field, TypeAdapter, ValidationError

from turngym.errors import ConfigError, unknown_name

P = ParamSpec("P")
R = TypeVar("R")

Share = Annotated[float, Field(ge=0, le=1)]
"""A number from 0 to 1."""
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""A finite number from 0 up."""
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""A finite number above 0."""


@functools.cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Hint of each keyword-only parameter."""
    hints = get_type_hints(inspect.unwrap(function), include_extras=True)
    parameters = inspect.signature(function).parameters.values()
    return {p.name: hints[p.name] for p in parameters if p.kind is p.KEYWORD_ONLY}


def _check(where: str, hint: Any, option: str, value: object) -> None:
    try:
        TypeAdapter(hint).validate_python(value, strict=True)
    except ValidationError as error:
        if get_origin(hint) is Literal:
            raise unknown_name(f"{option} of {where}", str(value), get_args(hint)) from error
        raise ConfigError(f"{where}: {option} = {value!r}: {error.errors()[0]['msg']}") from error


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Make every call of `function` refuse options that its hints do not allow.

    Raises (on a call):
        UnknownName: for a word that is not among the choices.
        ConfigError: for a value of another type or out of range.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        hints = _hints(function)
        for option, value in kwargs.items():
            if option in hints:
                _check(function.__name__, hints[option], option, value)
        return function(*args, **kwargs)

    return call


def bind(
    kind: str, functions: Mapping[str, Callable[P, R]], name: str, options: Mapping[str, Any]
) -> Callable[..., R]:
    """Look up `name` and fix its options.

    Args:
        kind: what is looked up, in the singular ("credit rule").
        functions: every name that is known.
        name: what was asked for.
        options: keyword-only parameters of that function; those left out keep their defaults.

    Raises:
        UnknownName: for a name, an option or a choice that does not exist.
        ConfigError: for a value of another type or out of range.
    """
    if name not in functions:
        raise unknown_name(kind, name, functions)
    hints = _hints(functions[name])
    for option, value in options.items():
        if option not in hints:
            raise unknown_name(f"option of {kind} {name}", option, hints)
        _check(f"{kind} {name}", hints[option], option, value)
    return functools.partial(functions[name], **options)
