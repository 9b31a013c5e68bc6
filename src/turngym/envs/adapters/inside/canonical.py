"""A digest of somebody else's objects, equal where their values are equal, whatever their identity.

Pickle can't serve: its bytes depend on which equal strings are one object. Here an object is its class and its
attributes, sets are sorted, and an object that contains itself is named by how far up it stands.
"""

from __future__ import annotations

import datetime
import enum
import hashlib
import json
import random
from typing import Any

Path = tuple[int, ...]


def digest(value: Any, *, skip: frozenset[str] = frozenset()) -> str:
    """32 hex digits (BLAKE2b-128).

    Args:
        value: what JSON holds, sets, dates, enums, random generators, and objects with a `__dict__`.
        skip: attributes that nothing in the future depends on.

    Raises:
        TypeError: for an object whose state can't be seen.
    """
    text = json.dumps(_plain(value, skip, ()), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _plain(value: Any, skip: frozenset[str], path: Path) -> Any:
    """`value` as JSON; `path` holds the ids of the objects that it lies in."""
    match value:
        case None | bool() | str() | float():
            return value
        case enum.Enum():
            return [type(value).__qualname__, value.name]
        case int():
            return ["int", hex(value)]  # decimal digits are limited
        case bytes() | datetime.date() | datetime.time() | datetime.timedelta():
            return [type(value).__qualname__, repr(value)]
    if id(value) in path:
        return ["above", len(path) - path.index(id(value))]
    return [type(value).__qualname__, _inside(value, skip, (*path, id(value)))]


def _inside(value: Any, skip: frozenset[str], path: Path) -> Any:
    """What `value` holds."""
    match value:
        case dict():
            items = ([_plain(k, skip, path), _plain(v, skip, path)] for k, v in value.items())
            return sorted(json.dumps(item) for item in items)
        case list() | tuple():
            return [_plain(item, skip, path) for item in value]
        case set() | frozenset():
            return sorted(json.dumps(_plain(item, skip, path)) for item in value)
        case random.Random():
            return _plain(value.getstate(), skip, path)
        case _ if hasattr(value, "__dict__"):
            return {name: _plain(item, skip, path) for name, item in vars(value).items() if name not in skip}
    raise TypeError(f"no canonical digest for {type(value).__qualname__}")
