"""What to do when a descriptor is ready: what the supervisor needs of `selectors`, without what that loads."""

from __future__ import annotations

import select

TYPE_CHECKING = False  # as in `typing`, which is not loaded for it
if TYPE_CHECKING:
    from collections.abc import Callable


class Watch:
    """Descriptors that are waited for, each with a function to call."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._calls: dict[int, Callable[[], None]] = {}

    def __contains__(self, fd: int) -> bool:
        return fd in self._calls

    def add(self, fd: int, call: Callable[[], None], *, writing: bool = False) -> None:
        """From now on `call` when `fd` can be read (or written to), or is at its end."""
        self._epoll.register(fd, select.EPOLLOUT if writing else select.EPOLLIN)
        self._calls[fd] = call

    def remove(self, fd: int) -> None:
        """Wait for it no more; before it is closed."""
        del self._calls[fd]
        self._epoll.unregister(fd)

    def serve(self, patience_s: float | None) -> bool:
        """Wait for at most `patience_s` and make the calls that are due; False where there were none."""
        events = self._epoll.poll(patience_s)
        due = [(fd, self._calls[fd]) for fd, _ in events]
        for fd, call in due:
            if self._calls.get(fd) is call:  # a call before this one may have ended it
                call()
        return bool(due)
