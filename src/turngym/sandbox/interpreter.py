"""Python and bash sessions that keep their state from cell to cell, and through forks of their sandbox.

A cell that runs past its time is interrupted; a session that ignores the interrupt, or that its own code ends, is
replaced by a fresh one, and the result says so (`restarted`). Forking is a matter of the sandbox, not of the
session: `Sandbox.fork` carries variables, working directory, open files and the file system together, and names
what it can't carry in `ForkLost`.

The last expression of a Python cell is displayed as `repr` and, where its class defines them, as the rich forms
that Jupyter uses (`_repr_html_`, `_repr_png_` in base64, …).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from turngym.errors import ConfigError
from turngym.sandbox.base import Language, LimitName, Limits

_MARGIN_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """What became of one cell."""

    stdout: bytes = b""
    "what it printed, at most `Limits.output_kib`"
    stderr: bytes = b""
    "what it printed to stderr, a traceback included; likewise"
    display: Mapping[str, str] = field(default_factory=dict)
    "MIME type to rendering of the last expression; empty where that is None"
    error: str | None = None
    "type and message of the exception that ended a Python cell; None where none did"
    exit_code: int | None = None
    "status of the last command of a bash cell"
    limit_hit: LimitName | None = None
    "the limit that ended the cell, or that cut its output"
    restarted: bool = False
    "the session is a new one: its variables are gone"
    wall_s: float = 0.0
    "seconds"
    dropped: int = 0
    "bytes of output past the cap"

    @property
    def ok(self) -> bool:
        """True where the cell ran to its end without an error."""
        return (
            self.error is None
            and not self.exit_code
            and not self.restarted
            and self.limit_hit in (None, "output")
        )

    @property
    def text(self) -> str:
        """What a terminal would show: stdout, the displayed value, stderr, and what went wrong with the session."""
        parts = [self.stdout.decode("utf-8", "replace"), self.display.get("text/plain", "")]
        parts.append(self.stderr.decode("utf-8", "replace"))
        if self.dropped:
            parts.append(f"[… {self.dropped} bytes dropped]")
        if self.limit_hit not in (None, "output"):
            parts.append(f"[the cell hit the {self.limit_hit} limit]")
        if self.restarted:
            parts.append("[the session ended and was started afresh; its variables are gone]")
        return "\n".join(part.rstrip("\n") for part in parts if part)


class Ask(Protocol):
    """A request to the backend: header, body, and a deadline, to the answer's header and body."""

    async def __call__(
        self, header: dict[str, Any], body: bytes = b"", *, within_s: float = ...
    ) -> tuple[dict[str, Any], bytes]:
        """Send, and wait."""
        ...


class Interpreter:
    """A session of one sandbox. It starts with its first cell."""

    def __init__(self, ask: Ask, language: Language, limits: Limits) -> None:
        self._ask = ask
        self.language = language
        self.limits = limits

    async def run(self, code: str, *, timeout_s: float | None = None) -> CellResult:
        """Run one cell.

        Args:
            code: source in the session's language.
            timeout_s: seconds instead of `Limits.wall_s`.

        Raises:
            ConfigError: a NUL byte in the code.
            SandboxLost: the sandbox broke; a session that breaks is a result.
        """
        if "\0" in code:
            raise ConfigError("a cell can't contain NUL bytes; write binary data with Sandbox.write")
        timeout = self.limits.seconds(timeout_s)
        header = {"op": "cell", "language": self.language, "timeout_s": timeout}
        words, data = await self._ask(
            header, code.encode("utf-8", "surrogatepass"), within_s=timeout + _MARGIN_S
        )
        # The session is the agent's own process: its words may be anything.
        error, display, status = words["error"], words["display"], words["status"]
        return CellResult(
            stdout=data[: words["out"]],
            stderr=data[words["out"] :],
            display={str(k): str(v) for k, v in display.items()} if isinstance(display, dict) else {},
            error=_describe(error),
            exit_code=status if isinstance(status, int) else None,
            limit_hit=words["limit_hit"],
            restarted=words["restarted"],
            wall_s=words["wall_s"],
            dropped=words["out_dropped"] + words["err_dropped"],
        )


def _describe(error: object) -> str | None:
    if isinstance(error, dict):
        return f"{error.get('type')}: {error.get('message')}"
    return None if error is None else str(error)
