"""Canonical digests of environment state.

Two states are equal exactly where their digests are. Pickle can't serve: its bytes depend on object identity,
so a replayed state would differ from a copied one.
"""

from __future__ import annotations

import copyreg
import dataclasses
import hashlib
import random
import re
import struct
from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import Any

import numpy as np

from turngym.errors import ConfigError

_PICKLE = 4


def state_digest(*parts: Any) -> str:
    """32 hex digits (BLAKE2b-128) of the values of `parts`, whatever their identity.

    Takes None, bool, int, float, str, bytes, enums, compiled patterns, NumPy arrays and scalars, random generators,
    dataclasses, mappings, sets, sequences of those, and plain objects by their attributes. Mappings and sets are
    sorted by digest.

    Raises:
        ConfigError: for a type without a canonical form (an object whose state Python can't see, a cycle), naming
            it; override `TurnEnv.state_key` then.

    >>> state_digest({"a": 1, "b": [2.0]}) == state_digest({"b": [2.0], "a": 1}) != state_digest({"a": 1})
    True
    """
    sink = hashlib.blake2b(digest_size=16)
    try:
        for part in parts:
            _feed(part, sink.update)
    except RecursionError as error:
        raise ConfigError(
            "no canonical digest for a state that contains itself: override state_key()"
        ) from error
    return sink.hexdigest()


def _feed(value: Any, put: Callable[[bytes], object]) -> None:  # noqa: PLR0912 - one branch a type
    match value:
        case None:
            put(b"N")
        case bool():
            put(b"T" if value else b"F")
        case Enum():
            put(b"E" + type(value).__qualname__.encode() + b"." + value.name.encode() + b";")
        case int():
            put(b"i%d;" % value)
        case float():
            put(b"f" + struct.pack("<d", value))
        case str():
            raw = value.encode("utf-8", "surrogatepass")
            put(b"s%d:" % len(raw) + raw)
        case bytes() | bytearray():
            put(b"b%d:" % len(value) + bytes(value))
        case np.ndarray():
            put(b"a" + str((value.dtype.str, value.shape)).encode())
            if value.dtype.hasobject:
                for item in value.flat:
                    _feed(item, put)
            else:
                put(np.ascontiguousarray(value).tobytes())
        case np.generic():
            _feed(value.item(), put)
        case np.random.Generator():
            _feed(value.bit_generator.state, put)
        case random.Random():
            _feed(value.getstate(), put)
        case re.Pattern():
            _feed((value.pattern, value.flags), put)
        case Mapping():
            put(b"m%d:" % len(value))
            for key in sorted(state_digest(k, v) for k, v in value.items()):
                put(key.encode())
        case AbstractSet():
            put(b"S%d:" % len(value))
            for key in sorted(state_digest(v) for v in value):
                put(key.encode())
        case list() | tuple() | deque():
            put(b"l%d:" % len(value))
            for item in value:
                _feed(item, put)
        case _:
            _feed_object(value, put)


def _feed_object(value: Any, put: Callable[[bytes], object]) -> None:
    put(b"o" + type(value).__qualname__.encode() + b":")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for f in dataclasses.fields(value):
            put(f.name.encode() + b"=")
            _feed(getattr(value, f.name), put)
    elif _is_plain(value):
        _feed(value.__reduce_ex__(_PICKLE)[2], put)
    else:
        raise ConfigError(
            f"no canonical digest for {type(value).__qualname__}: override state_key() in the environment"
        )


def _is_plain(value: Any) -> bool:
    """True where attributes and slots are the whole state. Pickle knows: it refuses what hides some of it."""
    if callable(value):
        return False
    try:
        rebuild, arguments, *_ = value.__reduce_ex__(_PICKLE)
    except TypeError:
        return False
    return rebuild is copyreg.__newobj__ and arguments == (type(value),)  # type: ignore[attr-defined]
