"""Frames between the host, the supervisor and the sessions: a JSON header, then raw bytes.

    uint32 length of the header | uint32 length of the body | header | body        (little endian)

JSON, because none of the three trusts the next one in: nothing here can run code when it is decoded.
"""

from __future__ import annotations

import json
import struct

TYPE_CHECKING = False  # as in `typing`, which is not loaded for it
if TYPE_CHECKING:
    from typing import Any

PREFIX = struct.Struct("<II")
MAX_FRAME = 1 << 30

Header = dict[str, "Any"]


class BadFrame(ValueError):
    """Bytes that are not a frame, or one that is larger than the reader allows."""


def pack(header: Header, body: bytes = b"") -> bytes:
    """One frame."""
    head = json.dumps(header, separators=(",", ":")).encode()
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
                header = json.loads(bytes(self._buffer[PREFIX.size : PREFIX.size + head]))
            except ValueError as error:
                raise BadFrame(str(error)) from error
            if not isinstance(header, dict):
                raise BadFrame(f"the header is {type(header).__name__}, not an object")
            frames.append((header, bytes(self._buffer[PREFIX.size + head : end])))
            del self._buffer[:end]
        return frames
