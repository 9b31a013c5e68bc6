"""What happens in a run, as events. The console, the run folder and TensorBoard listen; nothing depends on them, so
a run is the same with `--quiet`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from turngym.tree import Tree


@dataclass(frozen=True, slots=True)
class RunStarted:
    """A run begins or resumes. `config` is the whole configuration as plain data."""

    kind: str
    "train or eval"
    config: Mapping[str, Any]
    first_update: int = 0
    updates: int = 0
    "number of updates that the run ends at; 0 for an evaluation"


@dataclass(frozen=True, slots=True)
class PhaseStarted:
    """Something long begins: `rollout`, `update`, `eval`. `total` counts its steps (paths, micro-batches)."""

    name: str
    total: int | None = None


@dataclass(frozen=True, slots=True)
class PathFinished:
    """One path of one tree has ended and counts."""

    tree: Tree
    leaf: int


@dataclass(frozen=True, slots=True)
class Measured:
    """Metrics after update number `update`; every key is defined in `docs/metrics.md`."""

    update: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class TreesGrown:
    """The trees of one update or evaluation, scored."""

    update: int
    fold: str
    "train or eval"
    trees: Sequence[Tree]


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The run is over. `reason` is `done`, `interrupted` or the error's text."""

    reason: str


Event = RunStarted | PhaseStarted | PathFinished | Measured | TreesGrown | RunEnded


class Listener(Protocol):
    """Anything that wants to know."""

    def on(self, event: Event) -> None:
        """Take one event. Must be quick, and must not raise for what it can't show."""
        ...


class Listeners:
    """Passes each event to all of them, in order."""

    def __init__(self, listeners: Sequence[Listener] = ()) -> None:
        self._listeners = tuple(listeners)

    def on(self, event: Event) -> None:
        """Pass the event on."""
        for listener in self._listeners:
            listener.on(event)
