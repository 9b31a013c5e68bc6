"""Frames between an environment and its worker: a JSON header, then raw bytes.

    uint32 length of the header | uint32 length of the body | header | body        (little endian)

Both sides import this file; it needs nothing but the standard library.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any

PREFIX = struct.Struct("<II")
MAX_FRAME = 1 << 28


class BadFrame(ValueError):
    """Bytes that are not a frame."""


def send(
    sock: socket.socket, header: dict[str, Any], body: bytes = b"", *, until: float | None = None
) -> None:
    """Send one frame.

    Args:
        sock: a stream socket.
        header: what JSON can hold.
        body: anything.
        until: `time.monotonic()` to give up at; None waits for ever.

    Raises:
        TimeoutError: at `until`.
        OSError: where the other side is gone.
    """
    head = json.dumps(header, separators=(",", ":")).encode()
    _patience(sock, until)
    sock.sendall(PREFIX.pack(len(head), len(body)) + head + body)


def receive(sock: socket.socket, *, until: float | None = None) -> tuple[dict[str, Any], bytes] | None:
    """The next frame, or None where the other side is gone.

    Raises:
        TimeoutError: at `until`.
        BadFrame: for a frame above the limit, or a header that is not an object.
    """
    prefix = _exactly(sock, PREFIX.size, until)
    if prefix is None:
        return None
    head, body = PREFIX.unpack(prefix)
    if head + body > MAX_FRAME:
        raise BadFrame(f"a frame of {head + body} bytes; the limit is {MAX_FRAME}")
    data = _exactly(sock, head + body, until)
    if data is None:
        return None
    header = json.loads(data[:head])
    if not isinstance(header, dict):
        raise BadFrame(f"the header is {type(header).__name__}, not an object")
    return header, data[head:]


def _exactly(sock: socket.socket, count: int, until: float | None) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        _patience(sock, until)
        part = sock.recv(min(count - len(data), 1 << 20))
        if not part:
            return None
        data += part
    return bytes(data)


def _patience(sock: socket.socket, until: float | None) -> None:
    sock.settimeout(None if until is None else max(until - time.monotonic(), 1e-3))
