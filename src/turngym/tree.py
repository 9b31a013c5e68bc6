"""The record: everything that the policy saw or said in one task is one tree of token spans.

A *node* is a span of tokens added in one go: an OBSERVATION (written by the environment or the template) or an
ACTION (sampled by the policy; a SUMMARY is an action whose text becomes the next context). A chat episode is a
tree with one leaf, a GRPO group branches at its root only, a tree rollout anywhere. An observation that
*starts a context* hides the tokens before it from what follows, while credit still flows along the parent edge.

A node stores only the tokens that it adds, so a shared prefix is stored, sampled and trained once.
`tree.context(node)` is exactly what the policy was given there: nothing is ever decoded and encoded again.

Storage is one set of arrays for the whole tree (13 bytes a token, about 60 a node); `tree[i]` is a light view.
Files are Parquet or JSON Lines, one row a node, and open with `datasets.load_dataset` (`tree_io.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from turngym.errors import TreeError
from turngym.types import FloatArray, IntArray, Outcome, StopReason

FORMAT_VERSION = 1
"""Version of the file format; raised when a reader of the old one would misread the new one."""

_GROWTH = 1.25


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
class _Sparse:
    """Fields that few nodes have, by node index."""

    advantages: dict[int, FloatArray] = field(default_factory=dict)
    snapshot: dict[int, Any] = field(default_factory=dict)
    stop: dict[int, StopReason] = field(default_factory=dict)
    outcome: dict[int, Outcome] = field(default_factory=dict)
    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    log: dict[int, dict[str, str]] = field(default_factory=dict)


class Tree:
    """One task's rollouts. Nodes are integers in the order of their birth; parents come before children.

    Args:
        task_id: the task that every node belongs to.
        rollout_id: unique name of this tree within a run; one leaf is `f"{rollout_id}/{leaf}"`.
        seed: the integer from which every random number below this tree was derived.
        renderer_hash: hash of the renderer that made the ids; training refuses another one.
        meta: words and numbers that travel with the tree (environment id, policy name, …).
    """

    def __init__(
        self,
        *,
        task_id: str,
        rollout_id: str,
        seed: int = 0,
        renderer_hash: str = "",
        meta: Mapping[str, str | int | float | bool] | None = None,
    ) -> None:
        self.task_id = task_id
        self.rollout_id = rollout_id
        self.seed = seed
        self.renderer_hash = renderer_hash
        self.meta: dict[str, str | int | float | bool] = dict(meta or {})
        self._nodes = 0
        self._tokens = 0
        self._ids: npt.NDArray[np.int32] = np.empty(256, np.int32)
        self._origin: npt.NDArray[np.uint8] = np.empty(256, np.uint8)
        self._logprobs: npt.NDArray[np.float32] = np.empty(256, np.float32)
        self._version: npt.NDArray[np.int32] = np.empty(256, np.int32)
        self._parent: npt.NDArray[np.int32] = np.empty(16, np.int32)
        self._end: npt.NDArray[np.int64] = np.empty(16, np.int64)
        self._kind: npt.NDArray[np.uint8] = np.empty(16, np.uint8)
        self._starts: npt.NDArray[np.bool_] = np.empty(16, np.bool_)
        self._reward: npt.NDArray[np.float64] = np.empty(16, np.float64)
        self._advantage: npt.NDArray[np.float64] = np.empty(16, np.float64)
        self._key: npt.NDArray[np.void] = np.empty(16, "V16")
        self._sparse = _Sparse()
        self._children: list[list[int]] | None = None

    # ------------------------------------------------------------------ growing

    def add(
        self,
        parent: int,
        kind: Kind,
        ids: npt.ArrayLike,
        *,
        origin: Origin | npt.ArrayLike,
        logprobs: npt.ArrayLike | None = None,
        version: int | npt.ArrayLike = -1,
        starts_context: bool = False,
        reward: float | None = None,
        state_key: str | None = None,
    ) -> int:
        """Append a node and return its index.

        Args:
            parent: index of the parent; −1 for the first node, which is the root.
            kind: who wrote the span.
            ids: `(T,)` token ids, T ≥ 0.
            origin: one `Origin` for the whole span, or `(T,)`.
            logprobs: `(T,)` behaviour log-probs in nats, NaN where not sampled; None means all NaN.
            version: policy version of every token (−1 where not sampled), or `(T,)`.
            starts_context: earlier nodes are not in the context of what follows.
            reward: what the environment emitted after this action; finite.
            state_key: 32 hex digits, `env.state_key()` at this decision point.

        Raises:
            TreeError: arrays of unequal length, a bad parent, a sampled token without a log-prob, a
                log-prob on a token that was not sampled, a reward that is not finite.
        """
        index = self._nodes
        if not -1 <= parent < index or (parent == -1) != (index == 0):
            raise TreeError(
                f"{self.rollout_id}: node {index} can't have parent {parent}: "
                "the first node has parent -1, every other one an earlier node"
            )
        span = np.asarray(ids, np.int32)
        if span.ndim != 1:
            raise TreeError(f"{self.rollout_id}: ids of node {index} must be (T,), got shape {span.shape}")
        start = self._tokens
        end = start + span.size
        self._reserve(index + 1, end)
        self._ids[start:end] = span
        self._fill(self._origin, "origin", origin, index, start, end)
        self._fill(self._version, "version", version, index, start, end)
        self._fill(self._logprobs, "logprobs", np.nan if logprobs is None else logprobs, index, start, end)
        unscored = origin.__class__ is Origin and origin is not Origin.SAMPLED and logprobs is None
        if not unscored and not self._logprobs_match_origin(start, end):
            raise TreeError(
                f"{self.rollout_id}: node {index}: exactly the SAMPLED tokens carry a log-prob, and NaN stands elsewhere"
            )
        self._parent[index] = parent
        self._end[index] = end
        self._kind[index] = kind
        self._starts[index] = starts_context
        self._reward[index] = np.nan
        self._advantage[index] = np.nan
        self._key[index] = np.void(bytes(16))
        self._nodes, self._tokens = index + 1, end
        if self._children is not None:
            self._children.append([])
            if parent >= 0:
                self._children[parent].append(index)
        if reward is not None:
            self[index].reward = reward
        if state_key is not None:
            self[index].state_key = state_key
        return index

    def _logprobs_match_origin(self, start: int, end: int) -> bool:
        sampled = self._origin[start:end] == Origin.SAMPLED
        return bool((sampled != np.isnan(self._logprobs[start:end])).all())

    def _fill(
        self, column: npt.NDArray[Any], name: str, value: npt.ArrayLike, index: int, start: int, end: int
    ) -> None:
        shape = () if isinstance(value, (int, float)) else np.shape(value)
        if shape and shape != (end - start,):
            raise TreeError(
                f"{self.rollout_id}: {name} of node {index} has shape {shape}, its ids have {end - start} tokens"
            )
        column[start:end] = value

    def _reserve(self, nodes: int, tokens: int) -> None:
        if tokens > self._ids.size:
            size = max(tokens, int(self._ids.size * _GROWTH) + 256)
            for name in ("_ids", "_origin", "_logprobs", "_version"):
                setattr(self, name, _grown(getattr(self, name), self._tokens, size))
        if nodes > self._parent.size:
            size = max(nodes, int(self._parent.size * _GROWTH) + 16)
            for name in ("_parent", "_end", "_kind", "_starts", "_reward", "_advantage", "_key"):
                setattr(self, name, _grown(getattr(self, name), self._nodes, size))

    # ------------------------------------------------------------------ reading

    def __len__(self) -> int:
        return self._nodes

    def __getitem__(self, index: int) -> Node:
        if not 0 <= index < self._nodes:
            raise IndexError(f"{self.rollout_id} has {self._nodes} nodes, there is no node {index}")
        return Node(self, index)

    def __iter__(self) -> Iterator[Node]:
        return (Node(self, i) for i in range(self._nodes))

    def __eq__(self, other: object) -> bool:
        """True where both hold the same record, bit for bit (snapshots are handles and not compared)."""
        if not isinstance(other, Tree):
            return NotImplemented
        mine, theirs = self._sparse, other._sparse
        return (
            (self.task_id, self.rollout_id, self.seed, self.renderer_hash, self.meta)
            == (other.task_id, other.rollout_id, other.seed, other.renderer_hash, other.meta)
            and all(a.tobytes() == b.tobytes() for a, b in zip(self.columns(), other.columns(), strict=True))
            and (mine.stop, mine.outcome) == (theirs.stop, theirs.outcome)
            and _filled(mine.metrics) == _filled(theirs.metrics)
            and _filled(mine.log) == _filled(theirs.log)
            and mine.advantages.keys() == theirs.advantages.keys()
            and all(a.tobytes() == theirs.advantages[i].tobytes() for i, a in mine.advantages.items())
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Tree({self.rollout_id!r}, task={self.task_id!r}, nodes={len(self)}, tokens={self.tokens}, leaves={len(self.leaves)})"

    def columns(self) -> tuple[npt.NDArray[Any], ...]:
        """The arrays behind the record, trimmed: parent, end, kind, starts_context, reward, advantage, state
        key (per node), then ids, origin, logprobs, version (per token)."""
        n, t = self._nodes, self._tokens
        per_node = (self._parent, self._end, self._kind, self._starts, self._reward, self._advantage, self._key)
        per_token = (self._ids, self._origin, self._logprobs, self._version)
        return tuple(a[:n] for a in per_node) + tuple(a[:t] for a in per_token)

    @property
    def tokens(self) -> int:
        """Unique tokens: a shared prefix counts once."""
        return self._tokens

    @property
    def sampled_tokens(self) -> int:
        """Unique tokens that the policy sampled, whatever number of paths runs through them."""
        return int(np.count_nonzero(self._origin[: self._tokens] == Origin.SAMPLED))

    @property
    def nbytes(self) -> int:
        """Bytes held by the arrays."""
        return sum(a.base.nbytes if a.base is not None else a.nbytes for a in self.columns())

    def children(self, index: int) -> list[int]:
        """Indices of the children of a node, oldest first."""
        if self._children is None:
            self._children = [[] for _ in range(self._nodes)]
            for child, parent in enumerate(self._parent[: self._nodes].tolist()):
                if parent >= 0:
                    self._children[parent].append(child)
        return self._children[index]

    @property
    def leaves(self) -> list[int]:
        """Indices of the nodes without children, oldest first."""
        inner = np.zeros(self._nodes + 1, np.bool_)
        inner[self._parent[: self._nodes]] = True  # -1 lands on the spare last slot
        return [int(i) for i in np.flatnonzero(~inner[: self._nodes])]

    def path(self, node: int) -> list[int]:
        """Indices from the root down to `node`, both included."""
        out: list[int] = []
        parent = self._parent
        while node >= 0:
            out.append(node)
            node = int(parent[node])
        out.reverse()
        return out

    def actions(self, node: int) -> list[int]:
        """The actions (and summaries) on the path down to `node`: turn t is element t."""
        return [i for i in self.path(node) if self._kind[i] != Kind.OBSERVATION]

    def segments(self, leaf: int) -> list[list[int]]:
        """The path to `leaf` cut before each node that starts a context.

        A rollout that was summarised k times has k + 1 segments; it still counts once in every statistic.
        """
        out: list[list[int]] = []
        for node in self.path(leaf):
            if not out or self._starts[node]:
                out.append([])
            out[-1].append(node)
        return out

    def context(self, node: int) -> IntArray:
        """`(T,)` ids from the last context start down to `node` included: what the policy sees there."""
        spans: list[IntArray] = []
        while node >= 0:
            start = int(self._end[node - 1]) if node else 0
            spans.append(self._ids[start : self._end[node]])
            if self._starts[node]:
                break
            node = int(self._parent[node])
        spans.reverse()
        return np.concatenate(spans) if spans else np.empty(0, np.int32)

    def path_return(self, node: int) -> float:
        """Sum of the rewards on the path down to `node`; nodes without a reward add nothing."""
        return float(np.nansum(self._reward[self.path(node)]))

    def void(self, leaf: int) -> bool:
        """True where the path to `leaf` ended in a fault or was aborted: it never enters a statistic."""
        stop = self._sparse.stop.get(leaf)
        return stop is not None and stop.is_fault

    # ------------------------------------------------------------------ files

    def save(self, path: str | Path) -> None:
        """Write this tree alone to `path` (`.parquet` or `.jsonl`); see `tree_io.save_trees` for many."""
        from turngym.tree_io import save_trees  # noqa: PLC0415 - the record does not need the file formats

        save_trees([self], path)

    @classmethod
    def load(cls, path: str | Path) -> Tree:
        """Read the only tree in `path`.

        Raises:
            TreeError: where the file holds another number of trees, or another format version.
        """
        from turngym.tree_io import load_trees  # noqa: PLC0415

        trees = load_trees(path)
        if len(trees) != 1:
            raise TreeError(f"{path} holds {len(trees)} trees: read it with turngym.tree_io.load_trees")
        return trees[0]


def _grown(array: npt.NDArray[Any], used: int, size: int) -> npt.NDArray[Any]:
    new = np.empty(size, array.dtype)
    new[:used] = array[:used]
    return new


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
        return bool(self.tree._kind[self.index] != Kind.OBSERVATION)

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
        return None if np.isnan(value) else value

    @reward.setter
    def reward(self, value: float | None) -> None:
        if value is not None and not np.isfinite(value):
            raise TreeError(f"{self.tree.rollout_id}: reward of node {self.index} must be finite, got {value}")
        self.tree._reward[self.index] = np.nan if value is None else value

    @property
    def advantage(self) -> float | FloatArray | None:
        """None: not scored yet. 0: scored, no signal. `(T,)`: one per token."""
        array = self.tree._sparse.advantages.get(self.index)
        if array is not None:
            return array
        value = float(self.tree._advantage[self.index])
        return None if np.isnan(value) else value

    @advantage.setter
    def advantage(self, value: float | npt.ArrayLike | None) -> None:
        tree, index = self.tree, self.index
        if value is not None and not self.is_action:
            raise TreeError(f"{tree.rollout_id}: node {index} is an observation and can't have an advantage")
        if value is not None and not np.all(np.isfinite(value)):
            raise TreeError(f"{tree.rollout_id}: advantage of node {index} must be finite, got {value}")
        tree._sparse.advantages.pop(index, None)
        tree._advantage[index] = np.nan
        if value is None:
            return
        if np.ndim(value) == 0:
            tree._advantage[index] = value
        elif np.shape(value) == self.ids.shape:
            tree._sparse.advantages[index] = np.array(value, np.float32)
        else:
            raise TreeError(
                f"{tree.rollout_id}: advantage of node {index} has shape {np.shape(value)}, its ids {self.ids.shape}"
            )

    @property
    def state_key(self) -> str | None:
        """32 hex digits of the environment's state at this decision point, or None."""
        key = self.tree._key[self.index].tobytes()
        return key.hex() if any(key) else None

    @state_key.setter
    def state_key(self, value: str | None) -> None:
        try:
            raw = bytes(16) if value is None else bytes.fromhex(value)
        except ValueError:
            raw = b""
        if len(raw) != 16:
            raise TreeError(f"{self.tree.rollout_id}: a state key is 32 hex digits, got {value!r}")
        self.tree._key[self.index] = np.void(raw)

    @property
    def snapshot(self) -> Any:
        """Handle to restore the environment here, or None. Lives in memory only."""
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


def _filled(column: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Without the empty dicts that reading `node.metrics` leaves behind."""
    return {index: entry for index, entry in column.items() if entry}


def _put(column: dict[int, Any], index: int, value: Any) -> None:
    if value is None:
        column.pop(index, None)
    else:
        column[index] = value
