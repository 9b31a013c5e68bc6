"""Where a run stands, as numbers: what the console shows. Takes events, reads a clock, draws nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from turngym.events import Event, Measured, PathFinished, PhaseStarted, RunEnded, RunStarted, TreesGrown
from turngym.tree import Tree
from turngym.types import Outcome
from turngym.view.history import History


class Progress:
    """The state of one run. Times are in seconds of `clock`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.kind = ""
        self.config: Mapping[str, Any] = {}
        self.first_update = self.update = self.updates = 0
        self.phase = ""
        self.phase_total: int | None = None
        self.paths = self.successes = self.tokens = self.env_steps = self.faults = 0
        "in the running phase"
        self.all_faults = 0
        "in the whole run"
        self.history = History()
        self.reason: str | None = None
        self.started = self.phase_started = clock()
        self._counted: dict[str, set[int]] = {}

    def take(self, event: Event) -> None:
        """Move on by one event."""
        match event:
            case RunStarted(kind, config, first_update, updates):
                self.kind, self.config = kind, config
                self.first_update = self.update = first_update
                self.updates, self.started = updates, self._clock()
            case PhaseStarted(name, total):
                self.phase, self.phase_total, self.phase_started = name, total, self._clock()
                self.paths = self.successes = self.tokens = self.env_steps = self.faults = 0
                self._counted.clear()
            case PathFinished(tree, leaf):
                self._count(tree, leaf)
            case TreesGrown(_, _, trees):
                self.faults = sum(tree.void(leaf) for tree in trees for leaf in tree.leaves)
                self.all_faults += self.faults
                self._counted.clear()
            case Measured(update, metrics):
                self.update = update
                self.history.add(update, metrics)
            case RunEnded(reason):
                self.reason = reason

    @property
    def elapsed_s(self) -> float:
        """Since the run started in this process."""
        return self._clock() - self.started

    @property
    def remaining_s(self) -> float | None:
        """Until the end at the pace so far; None while there is nothing to go by."""
        if self.kind == "train":
            done, left = self.update - self.first_update, self.updates - self.update
            return self.elapsed_s / done * left if done else None
        if not self.paths or not self.phase_total:
            return None
        return self.phase_s / self.paths * (self.phase_total - self.paths)

    @property
    def phase_s(self) -> float:
        """Since the running phase began."""
        return self._clock() - self.phase_started

    @property
    def tokens_per_s(self) -> float:
        """Tokens that the policy sampled per second of the running phase, in paths that have ended."""
        return self.tokens / max(self.phase_s, 1e-9)

    def _count(self, tree: Tree, leaf: int) -> None:
        """Count a finished path; actions that it shares with an earlier one are not counted again."""
        seen = self._counted.setdefault(tree.rollout_id, set())
        fresh = [a for a in tree.actions(leaf) if a not in seen]
        seen.update(fresh)
        self.paths += 1
        self.successes += tree[leaf].outcome is Outcome.SUCCESS
        self.env_steps += len(fresh)
        self.tokens += sum(tree[a].ids.size for a in fresh)
