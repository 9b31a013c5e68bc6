"""The record: everything that the policy saw or said in one task is one tree of token spans.

A *node* is a span of tokens added in one go: an OBSERVATION (written by the environment or the template) or an
ACTION (sampled by the policy; a SUMMARY is an action whose text becomes the next context). A chat episode is a
tree with one leaf, a GRPO group branches at its root only, a tree rollout anywhere. An observation that
*starts a context* hides the tokens before it from what follows, while credit still flows along the parent edge.

A node stores only the tokens that it adds, so a shared prefix is stored, sampled and trained once.
`tree.context(node)` is exactly what the policy was given there: nothing is ever decoded and encoded again.

Storage is one set of arrays for the whole tree (13 bytes a token, about 60 a node); `tree[i]` is a light view
(`node.py`). Files are Parquet or JSON Lines, one row a node, and open with `datasets.load_dataset` (`tree_io.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from turngym.errors import TreeError
from turngym.node import Kind, Node, Origin, Sparse, as_json, raw_key
from turngym.types import IntArray

FORMAT_VERSION = 1
"""Version of the file format; raised when a reader of the old one would misread the new one."""

_GROWTH = 1.25
# Comparing an array with a member of an IntEnum costs three times the comparison with a plain integer.
_OBSERVATION, _SAMPLED = int(Kind.OBSERVATION), int(Origin.SAMPLED)
_ORIGINS = bytes(Origin)

__all__ = ["FORMAT_VERSION", "Kind", "Node", "Origin", "Tree"]


class Tree:
    """One task's rollouts. Nodes are integers in the order of their birth; parents come before children.

    Args:
        task_id: the task that every node belongs to.
        rollout_id: unique name of this tree within a run; one leaf is `f"{rollout_id}/{leaf}"`.
        seed: the integer in [0, 2⁶³) from which every random number below this tree was derived.
        renderer_hash: hash of the renderer that made the ids; training refuses another one.
        meta: words and numbers that travel with the tree (environment id, policy name, …).

    Raises:
        TreeError: a seed out of range, or a name that is not valid Unicode: neither could be written to a file.
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
        if not 0 <= seed < 1 << 63:
            raise TreeError(
                f"{rollout_id}: a seed is an integer in [0, 2**63), got {seed}; see seeding.derive"
            )
        try:
            f"{task_id}{rollout_id}{renderer_hash}".encode()
        except UnicodeEncodeError as error:
            raise TreeError(
                f"task_id, rollout_id and renderer_hash must be valid Unicode: {error}"
            ) from error
        self.task_id = task_id
        self.rollout_id = rollout_id
        self.seed = seed
        self.renderer_hash = renderer_hash
        self.meta: dict[str, str | int | float | bool] = dict(meta or {})
        self._nodes = 0
        self._tokens = 0
        # What most nodes leave out stands in the arrays already, so `add` need not write it.
        self._ids: npt.NDArray[np.int32] = np.empty(256, np.int32)
        self._origin: npt.NDArray[np.uint8] = np.empty(256, np.uint8)
        self._logprobs: npt.NDArray[np.float32] = np.full(256, np.nan, np.float32)
        self._version: npt.NDArray[np.int32] = np.full(256, -1, np.int32)
        self._parent: npt.NDArray[np.int32] = np.empty(16, np.int32)
        self._end: npt.NDArray[np.int64] = np.empty(16, np.int64)
        self._kind: npt.NDArray[np.uint8] = np.empty(16, np.uint8)
        self._starts: npt.NDArray[np.bool_] = np.empty(16, np.bool_)
        self._reward: npt.NDArray[np.float64] = np.full(16, np.nan)
        self._advantage: npt.NDArray[np.float64] = np.full(16, np.nan)
        self._key: npt.NDArray[np.void] = np.zeros(16, "V16")
        self._sparse = Sparse()
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
            version: policy version of the sampled tokens, one or `(T,)`; the others get −1.
            starts_context: earlier nodes are not in the context of what follows.
            reward: what the environment emitted after this action; finite.
            state_key: 32 hex digits, `env.state_key()` at this decision point.

        Raises:
            TreeError: arrays of unequal length, ids that are not integers, a bad parent, a sampled token without
                a finite log-prob, a log-prob on a token that was not sampled, a sampled token in an observation,
                a reward that is not finite, a malformed state key. The tree is unchanged then.
        """
        index, start = self._nodes, self._tokens
        if not -1 <= parent < index or (parent == -1) != (index == 0):
            raise self._error(
                f"node {index} can't have parent {parent}: the first node has parent -1, every other one an earlier node"
            )
        if reward is not None and not math.isfinite(reward):
            raise self._error(f"reward of node {index} must be finite, got {reward}")
        key = None if state_key is None else raw_key(state_key, self.rollout_id)
        span = self._checked_ids(ids)
        end = start + span.size
        if end > self._ids.size or index >= self._parent.size:
            self._reserve(index + 1, end)
        origins, sampled = self._checked_origins(origin, kind, span.size)
        if sampled or logprobs is not None:
            self._set_scores(origins, logprobs, version, slice(start, end))
        # From here on nothing can fail, so a node that was refused leaves no trace.
        self._ids[start:end] = span
        self._origin[start:end] = origins
        self._parent[index] = parent
        self._end[index] = end
        self._kind[index] = int(kind)
        self._starts[index] = starts_context
        if reward is not None:
            self._reward[index] = reward
        if key is not None:
            self._key[index] = key
        self._nodes, self._tokens = index + 1, end
        if self._children is not None:
            self._children.append([])
            if parent >= 0:
                self._children[parent].append(index)
        return index

    def _error(self, words: str) -> TreeError:
        return TreeError(f"{self.rollout_id}: {words}")

    def _checked_ids(self, ids: npt.ArrayLike) -> npt.NDArray[np.integer[Any]]:
        span = np.asarray(ids)
        if span.ndim != 1 or (span.dtype.kind not in "iu" and span.size):
            raise self._error(
                f"ids of node {self._nodes} must be (T,) integers, got {span.dtype} {span.shape}"
            )
        return span

    def _checked_origins(self, origin: Origin | npt.ArrayLike, kind: Kind, count: int) -> tuple[Any, bool]:
        """Origins as an integer or `(T,)`, and whether any token was sampled."""
        if isinstance(origin, Origin):
            origins: Any = int(origin)
            sampled = origin is Origin.SAMPLED
        else:
            origins = self._sized(origin, np.uint8, "origin", count)
            # Bytes answer "any?" at a quarter of the cost of a NumPy mask on the short spans that most nodes are.
            raw = origins.tobytes()
            if raw.strip(_ORIGINS):
                raise self._error(f"origin of node {self._nodes} holds {origins.max()}; an Origin is 0 to 3")
            sampled = _SAMPLED in raw
        if sampled and kind == _OBSERVATION:
            raise self._error(
                f"node {self._nodes} is an OBSERVATION with SAMPLED tokens, which nothing could ever train: "
                "add what the policy wrote as an ACTION or a SUMMARY"
            )
        return origins, sampled

    def _set_scores(
        self, origins: Any, logprobs: npt.ArrayLike | None, version: int | npt.ArrayLike, span: slice
    ) -> None:
        """Check and write log-probs and versions of a span, where its tokens were sampled."""
        count = span.stop - span.start
        scores = self._sized(np.nan if logprobs is None else logprobs, np.float32, "logprobs", count)
        versions = version if version.__class__ is int else self._sized(version, np.int32, "version", count)
        finite = np.isfinite(scores)
        where: Any = True
        if origins.__class__ is int and origins == _SAMPLED:
            wrong = 0 in finite.tobytes()
        else:
            where = origins == np.uint8(_SAMPLED)
            wrong = 1 in (finite != where).tobytes() or 1 in (np.isnan(scores) == where).tobytes()
        if wrong:
            raise self._error(
                f"node {self._nodes}: exactly the SAMPLED tokens carry a (finite) log-prob, "
                "and NaN stands elsewhere"
            )
        np.copyto(self._logprobs[span], scores, where=where)
        np.copyto(self._version[span], versions, where=where)

    def _sized(
        self, values: npt.ArrayLike, dtype: type[np.generic], name: str, count: int
    ) -> npt.NDArray[Any]:
        array = np.asarray(values, dtype)
        if not array.ndim:
            return np.full(count, array)
        if array.shape != (count,):
            raise self._error(
                f"{name} of node {self._nodes} has shape {array.shape}, its ids have {count} tokens"
            )
        return array

    def _reserve(self, nodes: int, tokens: int) -> None:
        if tokens > self._ids.size:
            size, used = max(tokens, int(self._ids.size * _GROWTH) + 256), self._tokens
            self._ids = _grown(self._ids, used, size)
            self._origin = _grown(self._origin, used, size)
            self._logprobs = _grown(self._logprobs, used, size, np.nan)
            self._version = _grown(self._version, used, size, -1)
        if nodes > self._parent.size:
            size, used = max(nodes, int(self._parent.size * _GROWTH) + 16), self._nodes
            self._parent = _grown(self._parent, used, size)
            self._end = _grown(self._end, used, size)
            self._kind = _grown(self._kind, used, size)
            self._starts = _grown(self._starts, used, size)
            self._reward = _grown(self._reward, used, size, np.nan)
            self._advantage = _grown(self._advantage, used, size, np.nan)
            self._key = _grown(self._key, used, size, np.void(bytes(16)))

    # ------------------------------------------------------------------ reading

    def __len__(self) -> int:
        return self._nodes

    def __getitem__(self, index: int) -> Node:
        self._must_exist(index)
        return Node(self, index)

    def _must_exist(self, index: int) -> None:
        if not 0 <= index < self._nodes:
            raise IndexError(f"{self.rollout_id} has {self._nodes} nodes, there is no node {index}")

    def __iter__(self) -> Iterator[Node]:
        return (Node(self, i) for i in range(self._nodes))

    def __eq__(self, other: object) -> bool:
        """True where both hold the same record, bit for bit (what lives in memory only, snapshots and values, is not compared)."""
        if not isinstance(other, Tree):
            return NotImplemented
        mine, theirs = self._sparse, other._sparse
        return (
            (self.task_id, self.rollout_id, self.seed, self.renderer_hash)
            == (other.task_id, other.rollout_id, other.seed, other.renderer_hash)
            and all(a.tobytes() == b.tobytes() for a, b in zip(self.columns(), other.columns(), strict=True))
            and (mine.stop, mine.outcome) == (theirs.stop, theirs.outcome)
            and as_json(self.meta) == as_json(other.meta)
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
        per_node = (
            self._parent,
            self._end,
            self._kind,
            self._starts,
            self._reward,
            self._advantage,
            self._key,
        )
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
        self._must_exist(index)
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
        """Indices from the root down to `node`, both included; empty for −1, the parent of the root."""
        if node != -1:
            self._must_exist(node)
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
        if node != -1:
            self._must_exist(node)
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


def _grown(array: npt.NDArray[Any], used: int, size: int, fill: Any = None) -> npt.NDArray[Any]:
    new = np.empty(size, array.dtype)
    new[:used] = array[:used]
    if fill is not None:
        new[used:] = fill
    return new


def _filled(column: Mapping[int, Mapping[str, Any]]) -> dict[int, str]:
    """Entries as JSON, without the empty dicts that reading `node.metrics` leaves behind."""
    return {index: as_json(entry) for index, entry in column.items() if entry}
