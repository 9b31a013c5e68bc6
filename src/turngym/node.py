"""A node of a `tree.Tree`: the words for who wrote what, and a light view of one span of tokens.

The arrays belong to the tree; a `Node` is two words of memory that know where to look. Its array fields are
views of the tree's memory that refuse writes; what may change after a node was added (reward, advantage, values, state
key, snapshot, stop, outcome, metrics, log) is set through its properties, which keep the rules of the record.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from turngym.errors import TreeError
from turngym.types import FloatArray, IntArray, Outcome, StopReason

if TYPE_CHECKING:
    from turngym.tree import Tree


class Kind(IntEnum):
    """Who wrote a node."""

    OBSERVATION = 0
    ACTION = 1
    SUMMARY = 2


class Origin(IntEnum):
    """Where a token came from. The loss sees SAMPLED tokens and no others."""

    SAMPLED = 0
    ENV = 1
    TEMPLATE = 2
    HARNESS = 3


@dataclass(slots=True)
class Sparse:
    """Fields that few nodes have, by node index."""

    advantages: dict[int, FloatArray] = field(default_factory=dict)
    values: dict[int, FloatArray] = field(default_factory=dict)
    snapshot: dict[int, Any] = field(default_factory=dict)
    stop: dict[int, StopReason] = field(default_factory=dict)
    outcome: dict[int, Outcome] = field(default_factory=dict)
    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    log: dict[int, dict[str, str]] = field(default_factory=dict)


class Node:
    """A view of one node. Reading an array gives a view of the tree's memory that refuses writes."""

    __slots__ = ("index", "tree")

    def __init__(self, tree: Tree, index: int) -> None:
        self.tree = tree
        self.index = index

    def __repr__(self) -> str:
        return f"Node({self.index}, {self.kind.name}, {len(self.ids)} tokens, parent={self.parent})"

    def _span(self, column: npt.NDArray[Any]) -> npt.NDArray[Any]:
        end = self.tree._end
        view = column[(end[self.index - 1] if self.index else 0) : end[self.index]]
        view.flags.writeable = False
        return view

    @property
    def parent(self) -> int:
        """Index of the parent, −1 at the root."""
        return int(self.tree._parent[self.index])

    @property
    def kind(self) -> Kind:
        """Who wrote the span."""
        return Kind(int(self.tree._kind[self.index]))

    @property
    def is_action(self) -> bool:
        """True for an ACTION or a SUMMARY: what the policy sampled."""
        return bool(self.tree._kind[self.index])  # OBSERVATION is 0

    @property
    def starts_context(self) -> bool:
        """True where earlier nodes are not in the context of what follows."""
        return bool(self.tree._starts[self.index])

    @property
    def ids(self) -> IntArray:
        """`(T,)` token ids that this node adds."""
        return self._span(self.tree._ids)

    @property
    def origin(self) -> npt.NDArray[np.uint8]:
        """`(T,)` an `Origin` per token."""
        return self._span(self.tree._origin)

    @property
    def logprobs(self) -> FloatArray:
        """`(T,)` behaviour log-probs in nats; NaN where not sampled."""
        return self._span(self.tree._logprobs)

    @property
    def version(self) -> IntArray:
        """`(T,)` policy version per token; −1 where not sampled."""
        return self._span(self.tree._version)

    @property
    def loss_mask(self) -> npt.NDArray[np.bool_]:
        """`(T,)` True where the loss may look: SAMPLED tokens."""
        mask: npt.NDArray[np.bool_] = self.origin == Origin.SAMPLED
        return mask

    @property
    def reward(self) -> float | None:
        """Reward emitted after this action; None where the environment emitted none."""
        value = float(self.tree._reward[self.index])
        return None if math.isnan(value) else value

    @reward.setter
    def reward(self, value: float | None) -> None:
        if value is not None and not math.isfinite(value):
            raise TreeError(
                f"{self.tree.rollout_id}: reward of node {self.index} must be finite, got {value}"
            )
        self.tree._reward[self.index] = math.nan if value is None else value

    @property
    def advantage(self) -> float | FloatArray | None:
        """None: not scored yet. 0: scored, no signal. `(T,)`: one per token (float32, refuses writes)."""
        array = self.tree._sparse.advantages.get(self.index)
        if array is not None:
            return array
        value = float(self.tree._advantage[self.index])
        return None if math.isnan(value) else value

    @advantage.setter
    def advantage(self, value: float | npt.ArrayLike | None) -> None:
        tree, index = self.tree, self.index
        if value is not None and not self.is_action:
            raise TreeError(f"{tree.rollout_id}: node {index} is an observation and can't have an advantage")
        number, array = math.nan, None
        if value is not None and np.ndim(value) == 0:
            number = float(value)  # type: ignore[arg-type]
            finite = math.isfinite(number)
        elif value is not None:
            with np.errstate(over="ignore"):  # what is too large for float32 is refused in words below
                array = np.array(value, np.float32)
            array.flags.writeable = False
            finite = bool(np.isfinite(array).all())
            if array.shape != self.ids.shape:
                raise TreeError(
                    f"{tree.rollout_id}: advantage of node {index} has shape {array.shape}, its ids {self.ids.shape}"
                )
        if value is not None and not finite:
            raise TreeError(f"{tree.rollout_id}: advantage of node {index} must be finite, got {value}")
        tree._advantage[index] = number
        _put(tree._sparse.advantages, index, array)

    @property
    def values(self) -> FloatArray | None:
        """`(T,)` a critic's value before each sampled token (float32, refuses writes), or None. Lives in memory only."""
        return self.tree._sparse.values.get(self.index)

    @values.setter
    def values(self, value: npt.ArrayLike | None) -> None:
        array = None if value is None else np.array(value, np.float32)
        if array is not None:
            array.flags.writeable = False
            if array.shape != self.ids.shape:
                raise TreeError(
                    f"{self.tree.rollout_id}: values of node {self.index} have shape {array.shape}, its ids {self.ids.shape}"
                )
        _put(self.tree._sparse.values, self.index, array)

    @property
    def state_key(self) -> str | None:
        """32 hex digits of the environment's state at this decision point, or None."""
        key = self.tree._key[self.index].tobytes()
        return key.hex() if any(key) else None

    @state_key.setter
    def state_key(self, value: str | None) -> None:
        self.tree._key[self.index] = np.void(raw_key(value, self.tree.rollout_id))

    @property
    def snapshot(self) -> Any:
        """Handle to restore the environment here, or None. Lives in memory only: files do not hold it."""
        return self.tree._sparse.snapshot.get(self.index)

    @snapshot.setter
    def snapshot(self, value: Any) -> None:
        _put(self.tree._sparse.snapshot, self.index, value)

    @property
    def stop(self) -> StopReason | None:
        """Why the path ended here; None at inner nodes."""
        return self.tree._sparse.stop.get(self.index)

    @stop.setter
    def stop(self, value: StopReason | None) -> None:
        _put(self.tree._sparse.stop, self.index, value)

    @property
    def outcome(self) -> Outcome | None:
        """How the path that ends here counts; None at inner nodes."""
        return self.tree._sparse.outcome.get(self.index)

    @outcome.setter
    def outcome(self, value: Outcome | None) -> None:
        _put(self.tree._sparse.outcome, self.index, value)

    @property
    def metrics(self) -> dict[str, float]:
        """Numbers about this node that are aggregated. Write with `node.metrics["key"] = value`."""
        return self.tree._sparse.metrics.setdefault(self.index, {})

    @property
    def log(self) -> dict[str, str]:
        """Words for people. Write with `node.log["key"] = text`."""
        return self.tree._sparse.log.setdefault(self.index, {})


def raw_key(value: str | None, rollout_id: str) -> bytes:
    """The 16 bytes of a state key; all zero for None.

    Raises:
        TreeError: where `value` is not 32 hex digits.
    """
    if value is None:
        return bytes(16)
    try:
        raw = bytes.fromhex(value)
    except ValueError:
        raw = b""
    if len(raw) != 16 or len(value) != 32:  # fromhex skips white space
        raise TreeError(f"{rollout_id}: a state key is 32 hex digits, got {value!r}")
    return raw


def as_json(entry: Mapping[str, Any]) -> str:
    """`entry` as ASCII JSON, equal exactly where the entries are: NaN is NaN, and −0.0 is not 0.0.

    NumPy scalars become plain numbers. A lone surrogate survives; a high one that is followed by a low one comes
    back as the one character that the pair encodes.

    Raises:
        TypeError, ValueError: where JSON has no word for a value.
    """
    return json.dumps(entry, sort_keys=True, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} {value!r} is not a word or a number")


def _put(column: dict[int, Any], index: int, value: Any) -> None:
    if value is None:
        column.pop(index, None)
    else:
        column[index] = value
