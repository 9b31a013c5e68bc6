"""The figures of a run in order, and the few series that every view draws from them.

Keys are those of `docs/metrics.md`. A key that a run does not emit gives an empty series, never an error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from turngym.errors import ConfigError

SUCCESS = "rollout/success"
REWARD = "rollout/reward"
ENV_STEPS = "progress/env_steps"
POLICY_TOKENS = "progress/policy_tokens"
TRAIN_SECONDS = "progress/train_s"
EVAL_SUCCESS = "eval/success"


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The success on held-out tasks after an update."""

    update: int
    env_steps: float
    "of training, until then"
    success: float
    low: float
    high: float

    @property
    def interval(self) -> list[float]:
        """[low, high]"""
        return [self.low, self.high]


class History:
    """Rows of metrics by update. Figures of one update that come in parts are one row."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, float]] = {}

    @classmethod
    def read(cls, path: Path) -> History:
        """Read a `metrics.jsonl`. A last line that a crash has cut is left out.

        Raises:
            ConfigError: for a line that is no row of metrics.
        """
        history = cls()
        raw = path.read_bytes()
        for number, line in enumerate(raw[: raw.rfind(b"\n") + 1].splitlines(), 1):
            try:
                row = orjson.loads(line)
                update = row.pop("update")
            except (orjson.JSONDecodeError, KeyError, AttributeError) as error:
                raise ConfigError(f"{path}, line {number} is no row of metrics ({error!r})") from error
            history.add(update, {k: math.nan if v is None else v for k, v in row.items()})
        return history

    def add(self, update: int, metrics: Mapping[str, float]) -> None:
        """Take the figures after update number `update`."""
        self.rows.setdefault(update, {}).update(metrics)

    def cut(self, last_update: int) -> None:
        """Forget what came after `last_update`: the run went back to the checkpoint there."""
        self.rows = {u: row for u, row in self.rows.items() if u <= last_update}

    def last(self, key: str) -> float | None:
        """The newest value of `key`; None where there is none."""
        return next((row[key] for row in reversed(self.rows.values()) if key in row), None)

    def series(self, key: str) -> list[tuple[float, float]]:
        """(env steps until then, value) in the order of the updates, without NaN."""
        out, steps = [], 0.0
        for row in self.rows.values():
            steps = row.get(ENV_STEPS, steps)
            if not math.isnan(row.get(key, math.nan)):
                out.append((steps, row[key]))
        return out

    def evaluations(self) -> list[Evaluated]:
        """Every evaluation on held-out tasks, oldest first."""
        out, steps = [], 0.0
        for update, row in self.rows.items():
            steps = row.get(ENV_STEPS, steps)
            value = row.get(EVAL_SUCCESS, math.nan)
            if not math.isnan(value):
                low, high = (row.get(f"{EVAL_SUCCESS}_{end}", value) for end in ("low", "high"))
                out.append(Evaluated(update, steps, value, low, high))
        return out


def smoothed(values: Iterable[float], keep: float = 0.8) -> list[float]:
    """Exponential moving average: each value is `keep` of the average so far and the rest of what is new.

    The start is corrected for the missing past (Kingma & Ba 2015, section 3), so the first value is itself.

    >>> [round(v, 3) for v in smoothed([1.0, 0.0])]
    [1.0, 0.444]
    """
    out, average, weight = [], 0.0, 0.0
    for value in values:
        average, weight = keep * average + (1 - keep) * value, keep * weight + (1 - keep)
        out.append(average / weight)
    return out


def sparkline(values: Iterable[float], *, low: float = 0.0, high: float = 1.0) -> str:
    """One bar of eighths per value.

    >>> sparkline([0.0, 0.5, 1.0])
    '▁▅█'
    """
    bars, span = "▁▂▃▄▅▆▇█", high - low or 1.0
    return "".join(bars[min(7, max(0, int((v - low) / span * 8)))] for v in values)


def plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration without what TOML can't say: fields that are None are left out."""
    return {k: plain(v) if isinstance(v, Mapping) else v for k, v in config.items() if v is not None}
