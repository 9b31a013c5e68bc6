"""The console: a live display where there is a terminal, plain lines where there is none.

It listens like everything else in `turngym.view`, so a run with `--quiet` is the same run.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.logging import RichHandler
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from turngym.events import Event, Listener, Measured, PathFinished, PhaseStarted, RunEnded, RunStarted
from turngym.view.curve import short_number
from turngym.view.history import ENV_STEPS, POLICY_TOKENS, REWARD, SUCCESS, Evaluated, smoothed, sparkline
from turngym.view.progress import Progress
from turngym.view.run_folder import run_title

_BARS = 40
_LABEL = 10
_SAY_EVERY_S = 30.0
_PHASES = {"rollout": "growing trees", "update": "updating the policy", "eval": "playing held-out tasks"}


def stdout() -> Console:
    """Where results go. What is not a terminal gets long lines, so that programs can read them."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 200)


@contextmanager
def display(quiet: bool) -> Iterator[list[Listener]]:
    """The progress display on standard error as a listener, or none; warnings of the library appear above it."""
    console = Console(stderr=True)
    handler = RichHandler(console=console, show_path=False, show_time=False)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[handler])
    if quiet:
        yield []
        return
    with ConsoleView(console) as view:
        yield [view]


class ConsoleView:
    """Shows one run. Use it as a context manager, so that the terminal is whole again whatever happens.

    Args:
        console: where to; standard error by default, so that results on standard output stay clean.
        live: redraw in place; None does so where `console` is a terminal.
        clock: seconds.
    """

    def __init__(
        self,
        console: Console | None = None,
        *,
        live: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.console = console or Console(stderr=True)
        self.progress = Progress(clock)
        self._lock = threading.Lock()
        is_live = self.console.is_terminal if live is None else live
        self._live = (
            Live(console=self.console, refresh_per_second=4, get_renderable=self._frame) if is_live else None
        )
        self._said = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def on(self, event: Event) -> None:
        """Take the event in; draw or print where it is worth it."""
        with self._lock:
            self.progress.take(event)
        if self._live is None:
            self._print(event)
        elif isinstance(event, RunStarted):
            self._live.start()
        elif isinstance(event, RunEnded):
            self._live.stop()

    def _frame(self) -> RenderableType:
        with self._lock:
            return frame(self.progress)

    def _print(self, event: Event) -> None:
        progress = self.progress
        match event:
            case RunStarted():
                self._say(headline(progress))
            case PathFinished() if progress.phase_s - self._said > _SAY_EVERY_S:
                self._said = progress.phase_s
                self._say(phase_line(progress))
            case PhaseStarted():
                self._said = 0.0
            case Measured() if progress.kind == "train":
                self._say(update_line(progress))
            case _:
                pass

    def _say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)


# ---------------------------------------------------------------------- what is shown


def frame(progress: Progress) -> RenderableType:
    """The live display, as it stands."""
    if progress.kind == "train":
        return Group(Text(headline(progress), style="bold"), _bar(progress), _facts(progress))
    return Group(
        Text(headline(progress), style="bold"), _bar(progress), Text(phase_line(progress), style="dim")
    )


def headline(progress: Progress) -> str:
    """What runs."""
    if progress.kind == "train":
        resumed = f", resumed at update {progress.first_update}" if progress.first_update else ""
        return f"training {run_title(progress.config)}{resumed}"
    return f"evaluating {run_title(progress.config)}"


def phase_line(progress: Progress) -> str:
    """What is being done right now."""
    if progress.reason is not None:
        return progress.reason
    parts = [_PHASES.get(progress.phase, progress.phase)] if progress.kind == "train" else []
    if progress.phase != "update":
        of = f"/{progress.phase_total}" if progress.phase_total else ""
        parts.append(f"{progress.paths}{of} paths")
        if progress.paths:
            parts.append(f"{progress.successes / progress.paths:.0%} solved")
            parts.append(f"{progress.tokens_per_s:,.0f} tokens/s")
    if progress.kind != "train" and progress.faults:
        parts.append(f"{progress.faults} faults")
    return " · ".join(p for p in parts if p)


def update_line(progress: Progress) -> str:
    """One update in one line, for logs."""
    row = progress.history.rows[progress.update]
    parts = [f"update {progress.update}/{progress.updates}"]
    if SUCCESS in row:
        parts.append(f"success {row[SUCCESS]:.3f} (average {_success(progress)[-1]:.3f})")
    if REWARD in row:
        parts.append(f"reward {row[REWARD]:.3f}")
    if ENV_STEPS in row:
        parts.append(f"{short_number(row[ENV_STEPS])} env steps")
    evaluations = progress.history.evaluations()
    if evaluations and evaluations[-1].update == progress.update:
        parts.append(f"held-out {_estimate(evaluations[-1])}")
    if progress.all_faults:
        parts.append(f"{progress.all_faults} faults")
    parts.append(duration(progress.elapsed_s))
    return "  ".join(parts)


def duration(seconds: float) -> str:
    """Seconds as h:mm:ss or m:ss.

    >>> duration(75), duration(3675)
    ('1:15', '1:01:15')
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _bar(progress: Progress) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    if progress.kind == "train":
        done, total, unit = progress.update, progress.updates, "update"
    else:
        done, total, unit = progress.paths, progress.phase_total or 0, "path"
    left = progress.remaining_s
    times = f"{duration(progress.elapsed_s)} gone" + (f", {duration(left)} to go" if left is not None else "")
    grid.add_row(
        Text(f"{unit} {done}/{total}".ljust(_LABEL)),
        ProgressBar(total=max(total, 1), completed=done, width=_BARS),
        Text(times, style="dim"),
    )
    return grid


def _facts(progress: Progress) -> RenderableType:
    history = progress.history
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=_LABEL, style="dim")
    grid.add_column()
    grid.add_row("now", phase_line(progress))
    success = _success(progress)
    if success:
        line = Text(f"{success[-1]:.3f} ")
        grid.add_row("success", line.append(sparkline(success[-_BARS:]), style="cyan"))
    reward = history.last(REWARD)
    if reward is not None:
        grid.add_row("reward", f"{reward:.3f}")
    evaluations = history.evaluations()
    if evaluations:
        text = Text(_estimate(evaluations[-1]), style="bold green")
        if len(evaluations) > 1:
            text.append(f" after update {evaluations[-1].update}", style="not bold dim")
            text.append(f", {evaluations[0].success:.3f} at the start", style="not bold dim")
        grid.add_row("held-out", text)
    steps, tokens = history.last(ENV_STEPS), history.last(POLICY_TOKENS)
    if steps is not None and tokens is not None:
        grid.add_row("spent", f"{short_number(steps)} env steps, {short_number(tokens)} tokens")
    grid.add_row("faults", Text(str(progress.all_faults), style="red" if progress.all_faults else ""))
    return grid


def _success(progress: Progress) -> list[float]:
    return smoothed(value for _, value in progress.history.series(SUCCESS))


def _estimate(point: Evaluated) -> str:
    return f"{point.success:.3f} [{point.low:.3f}, {point.high:.3f}]"
