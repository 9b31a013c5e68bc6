"""Options of credit rules and losses: keyword-only parameters, checked against their own type hints.

The one idea: the signature of a rule is its configuration. `bind` refuses a name, an option or a value that the
signature does not allow before a run starts; `checked` holds a direct call to the same. Ranges stand in the hints
as pydantic fields. Positional parameters carry data and are not looked at.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ParamSpec, TypeVar

from pydantic import Field

from turngym.errors import unknown_name
from turngym.options import check_keywords, check_values

P = ParamSpec("P")
R = TypeVar("R")

Share = Annotated[float, Field(ge=0, le=1)]
"""A number from 0 to 1."""
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""A finite number from 0 up."""
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""A finite number above 0."""


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Make every call of `function` refuse options that its hints do not allow.

    Raises (on a call):
        UnknownName: for a word that is not among the choices.
        ConfigError: for a value of another type or out of range.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        check_values(function, kwargs, what=function.__name__)
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
    check_keywords(functions[name], options, what=f"{kind} {name}")
    return functools.partial(functions[name], **options)
