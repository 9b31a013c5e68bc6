"""Continuous batching: every pending action advances by one token per step, whatever it is waiting behind.

`Engine.step` admits waiting requests, runs one forward for all live rows, samples one token each and hands back the
actions that ended. It starts no thread and takes no lock; `policies.local` drives it. How
logits come about is a `Backend`: `CachedBackend` keeps keys and values of every conversation between turns,
`PlainBackend` computes everything anew for models whose state can't be kept that way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from turngym.agents.policies.kv import Forward
from turngym.agents.policies.sampling import draw, uniforms
from turngym.agents.policy import Sample, SampleParams
from turngym.types import IntArray

# Prefilling rows one by one as they return costs a forward each, so returning rows wait for each other: until they
# are a quarter of the live ones, or for this many steps.
_GATHER_SHARE = 0.25
_GATHER_STEPS = 8
# Rows of a plain forward that are computed at once, and their tokens.
_PLAIN_ROWS = 8


@dataclass(slots=True)
class Stats:
    """What the engine has done since it was made. Counts of tokens, unless said otherwise."""

    requests: int = 0
    "actions asked for"
    sampled: int = 0
    prefilled: int = 0
    "computed before sampling: what was not in a cache"
    reused: int = 0
    "found in the slot of the same conversation"
    copied: int = 0
    "found in another slot and copied: forks and shared prompts"
    evicted: int = 0
    "slots whose content was given up for another conversation"
    decode_steps: int = 0
    "forwards that sampled"
    prefill_forwards: int = 0
    restarted: int = 0
    "actions begun anew since the weights changed under them"


@dataclass(slots=True, eq=False)
class Row:
    """One action in the making."""

    context: IntArray
    params: SampleParams
    stop_ids: frozenset[int]
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    slot: int = -1
    waited: int = 0
    "steps in the queue"
    uniform: npt.NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        self.uniform = uniforms(self.params.seed, self.params.max_tokens)

    @property
    def newest(self) -> int:
        """The token that the model has not seen yet."""
        return self.ids[-1] if self.ids else int(self.context[-1])

    @property
    def room(self) -> int:
        """Tokens that context and action may come to."""
        return self.context.size + self.params.max_tokens

    def take(self, token: int, logprob: float) -> bool:
        """Append a token; True where the action has ended."""
        self.ids.append(token)
        self.logprobs.append(logprob)
        return token in self.stop_ids or len(self.ids) == self.params.max_tokens

    def sample(self, version: int) -> Sample:
        """The finished action."""
        reason = "stop" if self.ids[-1] in self.stop_ids else "length"
        ids = np.array(self.ids, np.int32)
        return Sample(ids, np.array(self.logprobs, np.float32), version, reason)  # type: ignore[arg-type]

    def restart(self) -> None:
        """Forget what was sampled."""
        self.ids.clear()
        self.logprobs.clear()
        self.slot = -1


class Backend(Protocol):
    """Where logits come from."""

    def admit(self, rows: Sequence[Row]) -> list[Row]:
        """Make room for as many of `rows` as fit and compute what precedes their newest token; returns those."""
        ...

    def logits(self, rows: Sequence[Row]) -> Tensor:
        """`(B, V)` behind the newest token of each row."""
        ...

    def release(self, row: Row) -> None:
        """The row ended or was cancelled. What was computed for it may be kept for the next turn."""
        ...

    def reset(self) -> None:
        """Forget everything: the weights changed, or a forward failed."""
        ...


class PlainBackend:
    """No cache: each step encodes every row from its first token."""

    def __init__(self, forward: Forward, max_rows: int) -> None:
        self._forward = forward
        self._max_rows = max_rows
        self._live = 0

    def admit(self, rows: Sequence[Row]) -> list[Row]:
        """As many as `max_rows` allows."""
        admitted = list(rows[: self._max_rows - self._live])
        self._live += len(admitted)
        return admitted

    def logits(self, rows: Sequence[Row]) -> Tensor:
        """A few rows at a time, since logits of a large vocabulary take much memory."""
        texts = [np.concatenate([row.context, np.array(row.ids, np.int32)]) for row in rows]
        parts = [self._forward.plain(texts[i : i + _PLAIN_ROWS]) for i in range(0, len(texts), _PLAIN_ROWS)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def release(self, row: Row) -> None:
        """Nothing is kept."""
        self._live -= 1

    def reset(self) -> None:
        """Nothing is kept."""
        self._live = 0


class Engine:
    """Rows in, samples out.

    `submit`, `cancel` and `invalidate` may be called at any time from any thread and take effect at the next step;
    steps themselves are called one after the other.
    """

    def __init__(self, backend: Backend, stats: Stats) -> None:
        self._backend = backend
        self._stats = stats
        self._submitted: deque[Row] = deque()
        self._cancelled: deque[Row] = deque()
        self._stale = False
        self._waiting: deque[Row] = deque()
        self._live: list[Row] = []

    def submit(self, row: Row) -> None:
        """Queue an action."""
        self._submitted.append(row)

    def cancel(self, row: Row) -> None:
        """Nobody waits for this action any more: its slot is free at the next step."""
        self._cancelled.append(row)

    def invalidate(self) -> None:
        """The weights changed: caches are dropped and live rows begin anew, so that every action is sampled by one
        version from its own keys and values."""
        self._stale = True

    @property
    def idle(self) -> bool:
        """True where a step would do nothing."""
        return not (self._submitted or self._cancelled or self._waiting or self._live)

    def step(self, version: int) -> list[tuple[Row, Sample | Exception]]:
        """Advance every live row by one token.

        Args:
            version: of the weights, for the samples.

        Returns:
            The rows that ended, each with its sample, or with the error that its step died of.
        """
        # Rows are submitted before they are cancelled, so this order finds each cancelled row in the queue.
        gone = [self._cancelled.popleft() for _ in range(len(self._cancelled))]
        self._waiting.extend(self._submitted.popleft() for _ in range(len(self._submitted)))
        if gone:
            self._drop(gone)
        if self._stale:
            self._stale = False
            self._restart()
        try:
            with torch.inference_mode():
                return self._advance(version)
        except Exception as error:  # noqa: BLE001 - the boundary to the model: any failure voids what it touched
            failed, self._live = self._live, []
            self._backend.reset()
            return [(row, error) for row in failed]

    def _advance(self, version: int) -> list[tuple[Row, Sample | Exception]]:
        self._admit()
        if not self._live:
            return []
        rows = self._live
        uniform = np.array([row.uniform[len(row.ids)] for row in rows])
        logits = self._backend.logits(rows)
        ids, logprobs = draw(logits, [row.params for row in rows], uniform)
        self._stats.decode_steps += 1
        self._stats.sampled += len(rows)
        ended = [
            row for row, i, p in zip(rows, ids.tolist(), logprobs.tolist(), strict=True) if row.take(i, p)
        ]
        self._remove(ended)
        return [(row, row.sample(version)) for row in ended]

    def _admit(self) -> None:
        waiting, live = self._waiting, len(self._live)
        if not waiting:
            return
        for row in waiting:
            row.waited += 1
        if live and len(waiting) < _GATHER_SHARE * live and waiting[0].waited < _GATHER_STEPS:
            return
        before, candidates = self._live, list(waiting)
        waiting.clear()
        self._live = before + candidates  # where admission fails, they are lost with the live rows
        admitted = self._backend.admit(candidates)
        self._live = before + admitted
        waiting.extend(row for row in candidates if row not in admitted)
        self._stats.requests += len(admitted)

    def _drop(self, gone: list[Row]) -> None:
        self._waiting = deque(row for row in self._waiting if row not in gone)
        self._remove([row for row in self._live if row in gone])

    def _remove(self, rows: list[Row]) -> None:
        if rows:
            self._live = [row for row in self._live if row not in rows]
        for row in rows:
            self._backend.release(row)

    def _restart(self) -> None:
        self._backend.reset()
        for row in self._live:
            row.restart()
        self._stats.restarted += len(self._live)
        self._waiting.extendleft(reversed(self._live))
        self._live = []


__all__ = ["Backend", "Engine", "PlainBackend", "Row", "Stats"]
