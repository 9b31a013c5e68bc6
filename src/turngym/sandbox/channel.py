"""Requests to another process over a socket, from any thread and any event loop.

One daemon thread reads for all channels of this process and resolves futures, so a sandbox is not tied to the event
loop that made it: an environment may be stepped from one `asyncio.run` after another. The frames are those of
`inside.wire`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import selectors
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Protocol

from turngym.sandbox.inside import wire

logger = logging.getLogger(__name__)

Answer = tuple[wire.Header, bytes]
_LARGE = 1 << 16


class Unpacker(Protocol):
    """Cuts what the other side sends into frames; `wire.Unpacker`, or one for a stream with more around them."""

    def feed(self, data: bytes) -> list[Answer]:
        """Add `data`; return the frames that are complete now."""
        ...


class ChannelClosed(ConnectionError):
    """The other side is gone."""


class Channel:
    """One connection. Answers are matched to requests by number."""

    def __init__(self, sock: socket.socket, unpacker: Unpacker | None = None) -> None:
        self._sock = sock
        self._unpacker = unpacker or wire.Unpacker()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[Answer]] = {}
        self._writing = threading.Lock()
        self._closed = False
        self._owner = os.getpid()
        self.greeting: Future[Answer] = Future()
        """The first frame, which the other side sends unasked when it is ready."""
        _reader().add(self)

    def fileno(self) -> int:
        """For selectors."""
        return self._sock.fileno()

    @property
    def closed(self) -> bool:
        """True once the other side is gone or `close` was called."""
        return self._closed

    def submit(self, header: wire.Header, body: bytes = b"", fds: Sequence[int] = ()) -> Future[Answer]:
        """Send a request; the future holds the answer, or `ChannelClosed`."""
        return self._submit(next(self._numbers), header, body, fds)

    def _submit(
        self, number: int, header: wire.Header, body: bytes, fds: Sequence[int] = ()
    ) -> Future[Answer]:
        future: Future[Answer] = Future()
        future.set_running_or_notify_cancel()
        data = wire.pack({**header, "call": number}, body)
        with self._writing:
            if self._closed or self._owner != os.getpid():
                future.set_exception(
                    ChannelClosed("the connection is closed, or belongs to the parent process")
                )
                return future
            self._waiting[number] = future
            try:
                if fds:
                    data = data[socket.send_fds(self._sock, [data], list(fds)) :]
                self._sock.sendall(data)
            except OSError:
                logger.debug("sending failed; the reader sees the end of the connection", exc_info=True)
        return future

    async def request(self, header: wire.Header, body: bytes = b"") -> Answer:
        """`submit`, and wait for the answer without blocking the event loop.

        A caller that is cancelled takes the request along: the other side gets `cancel` with its number.

        Raises:
            ChannelClosed: the other side is gone.
        """
        number = next(self._numbers)
        if len(body) > _LARGE:
            future = await asyncio.to_thread(self._submit, number, header, body)
        else:
            future = self._submit(number, header, body)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self.submit({"op": "cancel", "of": number})
            raise

    def pump(self) -> None:
        """Read what is there and resolve futures; called by the reader thread."""
        try:
            data = self._sock.recv(1 << 20)
            frames = self._unpacker.feed(data)
        except (OSError, wire.BadFrame):
            data, frames = b"", []
        for header, body in frames:
            number = header.pop("call", None)
            future = self.greeting if number is None else self._waiting.pop(number, None)
            if future is not None and not future.done():
                future.set_result((header, body))
        if not data:
            self.close()

    def close(self) -> None:
        """Close the connection; requests that wait get `ChannelClosed`."""
        with self._writing:
            if self._closed:
                return
            self._closed = True
            if self._owner != os.getpid():
                return  # the connection goes on in the parent process
            _reader().remove(self)
            waiting = [self.greeting, *self._waiting.values()]
            self._waiting.clear()
        for future in waiting:
            if not future.done():
                future.set_exception(ChannelClosed("the connection was closed"))


class _Reader:
    """The thread that reads for all channels."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._selector = selectors.DefaultSelector()
        self._wakeup, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        self._selector.register(self._wakeup, selectors.EVENT_READ, None)
        self._leaving: list[Channel] = []
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="turngym-sandbox-reader", daemon=True)
        self._thread.start()

    def add(self, channel: Channel) -> None:
        with self._lock:
            self._selector.register(channel, selectors.EVENT_READ, channel)

    def remove(self, channel: Channel) -> None:
        """Stop reading; the socket is closed by the reader itself, so that its number is never reused under it."""
        with self._lock:
            self._selector.unregister(channel)
            self._leaving.append(channel)
        with contextlib.suppress(OSError):  # the other side has closed it already
            channel._sock.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(BlockingIOError):  # a wake-up is already under way
            os.write(self._wake, b"x")

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    os.read(self._wakeup, 4096)
                elif not key.data.closed:
                    key.data.pump()
            with self._lock:
                for channel in self._leaving:
                    channel._sock.close()
                self._leaving.clear()


_the_reader: _Reader | None = None
_making = threading.Lock()


def _reader() -> _Reader:
    """The reader of this process; a fork without exec gets its own."""
    global _the_reader  # noqa: PLW0603 - one thread for the process
    with _making:
        if _the_reader is None or _the_reader.pid != os.getpid():
            _the_reader = _Reader()
        return _the_reader
