"""What was done in a sandbox, so that a fork which can't carry the live state can be made by doing it again.

The one idea: a sandbox whose caller allows it keeps one snapshot and a list of what was done since. A fork that the
kernel or the agent's code prevents (an open socket, a thread, too many forks of forks) starts from that snapshot and
does everything again; each reply has to be the one that came the first time, or it is a `ForkDiverged`.

It repeats effects inside the sandbox, which has no others. What depends on the clock, on chance that is not seeded, or
on addresses in memory is bound to differ, but for the addresses of objects in their `repr`, which are left out.
"""

from __future__ import annotations

import hashlib
import re
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from turngym.errors import ForkDiverged
from turngym.sandbox.channel import Channel
from turngym.sandbox.inside.wire import Header

RECORDED: Final = frozenset({"exec", "cell", "write"})
"""Requests that change a sandbox."""
MAX_BYTES: Final = 64 << 20
"""Of the requests of a history; what is longer is not done again."""
_ADDRESS = re.compile(rb"\b0x[0-9a-f]{6,16}\b")
_COMPARED = ("exit_code", "status", "error", "display", "limit_hit", "restarted")

Ask = Callable[[Header, bytes], Awaitable[tuple[Header, bytes]]]


@dataclass(frozen=True, slots=True)
class Act:
    """One request and what came of it."""

    header: Header
    body: bytes
    came: bytes
    "SHA-256 of the reply"


class Start:
    """The snapshot that a history begins with; it is dropped with the last reference to it."""

    def __init__(self, channel: Channel, number: int) -> None:
        self.number = number
        weakref.finalize(self, channel.submit, {"op": "drop", "snaps": [number]}).atexit = False


@dataclass(frozen=True, slots=True)
class History:
    """A start and what was done since. It grows by becoming another one, so that forks share what they have in common."""

    start: Start
    before: History | None = None
    "this history without its last act; None at the start"
    last: Act | None = None
    size: int = 0
    "bytes of the requests"

    def and_then(self, header: Header, body: bytes, words: Header, data: bytes) -> History:
        """This history with one more act."""
        act = Act(header, body, _digest(words, data))
        return History(self.start, self, act, self.size + len(body) + len(str(header)))

    def acts(self) -> list[Act]:
        """From the first to the last."""
        found: list[Act] = []
        at: History | None = self
        while at is not None and at.last is not None:
            found.append(at.last)
            at = at.before
        return found[::-1]

    async def repeat(self, ask: Ask) -> None:
        """Do everything again by `ask`.

        Raises:
            ForkDiverged: something else came of it; `turn` is the number of the act.
        """
        acts = self.acts()
        for number, act in enumerate(acts):
            words, data = await ask(act.header, act.body)
            if _digest(words, data) != act.came:
                what = " ".join(act.header.get("argv", ())) or act.body.decode(errors="replace")
                raise ForkDiverged(
                    f"act {number} of {len(acts)} was done again to make a fork, and something else came of it: "
                    f"{act.header['op']} {what[:200]!r} now gives {data[-200:]!r}",
                    turn=number,
                )


def _digest(words: Header, data: bytes) -> bytes:
    told = repr([words.get(name) for name in _COMPARED]).encode("utf-8", "backslashreplace")
    return hashlib.sha256(_ADDRESS.sub(b"0x", told) + b"\0" + _ADDRESS.sub(b"0x", data)).digest()
