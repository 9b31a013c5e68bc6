"""Frames between the host, the supervisor and the sessions: a JSON header, then raw bytes.

    uint32 length of the header | uint32 length of the body | header | body        (little endian)

JSON, because none of the three trusts the next one in: nothing here can run code when it is decoded.
"""

from __future__ import annotations

import struct
from _json import encode_basestring_ascii, make_encoder, make_scanner

TYPE_CHECKING = False  # as in `typing`, which is not loaded for it
if TYPE_CHECKING:
    from typing import Any

PREFIX = struct.Struct("<II")
MAX_FRAME = 1 << 30

Header = dict[str, "Any"]


class BadFrame(ValueError):
    """Bytes that are not a frame, or one that is larger than the reader allows."""


class _Reading:
    """What `make_scanner` reads of a `json.JSONDecoder`."""

    strict = True
    object_hook = object_pairs_hook = array_hook = None
    parse_float, parse_int, parse_constant = float, int, float


_scan = make_scanner(_Reading())  # type: ignore[arg-type]  # any object with these attributes


def _refuse(value: object) -> None:
    raise TypeError(f"{type(value).__name__} has no form in JSON")


_encode = make_encoder(None, _refuse, encode_basestring_ascii, None, ":", ",", False, False, True)


def dumps(value: object) -> bytes:
    """`value` in JSON, by the C half of `json`: the other half loads `re` and `enum` first."""
    return "".join(_encode(value, 0)).encode()


def loads(data: bytes | str) -> Any:
    """The value of a JSON text that has no space around it.

    Raises:
        ValueError: it is none.
    """
    text = data if isinstance(data, str) else data.decode()
    try:
        value, end = _scan(text, 0)
    # Python 3.11 raises SystemError where it would say what is wrong, had `json` been loaded.
    except (StopIteration, SystemError, RecursionError):
        end = -1
    if end != len(text):
        raise ValueError(f"not JSON: {text:.80}")
    return value


def pack(header: Header, body: bytes = b"") -> bytes:
    """One frame."""
    head = dumps(header)
    return PREFIX.pack(len(head), len(body)) + head + body


class Unpacker:
    """Cuts a stream into frames."""

    def __init__(self, max_frame: int = MAX_FRAME) -> None:
        self._buffer = bytearray()
        self._max = max_frame

    def feed(self, data: bytes) -> list[tuple[Header, bytes]]:
        """Add `data`; return the frames that are complete now.

        Raises:
            BadFrame: for a header that is not a JSON object, or a frame above the limit.
        """
        self._buffer += data
        frames = []
        while len(self._buffer) >= PREFIX.size:
            head, body = PREFIX.unpack_from(self._buffer)
            if head + body > self._max:
                raise BadFrame(f"a frame of {head + body} bytes; the limit is {self._max}")
            end = PREFIX.size + head + body
            if len(self._buffer) < end:
                break
            try:
                header = loads(bytes(self._buffer[PREFIX.size : PREFIX.size + head]))
            except ValueError as error:
                raise BadFrame(str(error)) from error
            if not isinstance(header, dict):
                raise BadFrame(f"the header is {type(header).__name__}, not an object")
            frames.append((header, bytes(self._buffer[PREFIX.size + head : end])))
            del self._buffer[:end]
        return frames
