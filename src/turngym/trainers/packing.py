"""Rows to packs: every token that rows share is laid out, and computed, once.

The one idea: sorted by their ids, rows are the leaves of a trie in depth-first order, so a row adds to the rows before
it exactly the tokens behind the longest prefix that it shares with its neighbour. A pack is these added tokens, one
row after the other. A token keeps the position that it has in its row, and sees the tokens of its own root path: in
depth-first order, token q sees token k where k ≤ q < `last[k]`. A token with several children predicts several tokens;
each row's targets say from where.

It works on ids alone, so whatever rows have in common is shared: the prompt of a group, the path down to a fork, the
instructions that several tasks open with, the task behind which each restarted context begins. What a loss reads is
the flat layout's, token for token: two rows that train a token with different advantages read one log-prob and clip
it apart.

Sources: tree attention in AReaL (arXiv:2505.24298 and its documentation), Tree Training (arXiv:2511.00413). Cutting
the depth-first order where least is computed twice is ours. `tree_attention.py` has the masks and the forward.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from turngym.errors import ConfigError
from turngym.trainers.rows import Row
from turngym.types import IntArray


@dataclass(frozen=True, slots=True)
class Pack:
    """`T` tokens of a forest of `N` rows, in depth-first order; none stands twice."""

    rows: tuple[Row, ...]
    "in the order in which they were laid out"
    ids: IntArray
    "`(T,)`"
    positions: IntArray
    "`(T,)` place of each token in its rows"
    last: IntArray
    "`(T,)` one past the last token that has this one on its path"
    paths: tuple[IntArray, ...]
    "of each row, `(its length,)` where its tokens stand in the pack"
    shared: IntArray
    "`(N,)` tokens that each row shares with those before it; the others follow those of the row before"

    @property
    def starts(self) -> IntArray:
        """`(N + 1,)` where the tokens that each row adds begin, and T."""
        added = np.array([path.size for path in self.paths]) - self.shared
        return np.concatenate([[0], added.cumsum()]).astype(np.int32)

    @property
    def sources(self) -> IntArray:
        """`(M + O,)` where tokens are predicted from: the rows' targets one after the other, then what they observed."""
        targets = [path[row.targets - 1] for row, path in zip(self.rows, self.paths, strict=True)]
        observed = [path[row.observed - 1] for row, path in zip(self.rows, self.paths, strict=True)]
        return np.concatenate(targets + observed)


def pack(rows: Sequence[Row], tokens: int) -> list[Pack]:
    """Packs of at most `tokens` tokens each (a longer row has one to itself) with as little computed twice as can be.

    Args:
        rows: contexts with their targets, in any order.
        tokens: budget of one forward.

    Raises:
        ConfigError: for a budget below 1.
    """
    if tokens < 1:
        raise ConfigError(f"a pack holds at least one token, got a budget of {tokens}")
    ordered, shared = depth_first(rows)
    cuts = _cuts([row.ids.size for row in ordered], shared.tolist(), tokens)
    return [lay_out(ordered[a:b], shared[a:b]) for a, b in pairwise(cuts)]


def depth_first(rows: Sequence[Row]) -> tuple[list[Row], IntArray]:
    """Rows in the order of their ids, and `(N,)` the length of the prefix that each shares with the one before."""
    ordered = sorted(rows, key=lambda row: row.ids.astype(">u4").tobytes())
    shared = [0, *(_common_prefix(a.ids, b.ids) for a, b in pairwise(ordered))]
    return ordered, np.array(shared[: len(ordered)], np.int32)


def lay_out(rows: Sequence[Row], shared: IntArray) -> Pack:
    """The pack of rows in depth-first order.

    Args:
        rows: at least one.
        shared: `(N,)` prefix that each shares with the one before it, or less to share less; that of the first row is
            taken as 0.
    """
    shared = shared.astype(np.int32)
    shared[0] = 0
    added = [row.ids.size - int(k) for row, k in zip(rows, shared, strict=True)]
    total = sum(added)
    last = np.empty(total, np.int32)
    paths: list[IntArray] = []
    path, start = np.empty(0, np.int32), 0
    for count, k in zip(added, shared.tolist(), strict=True):
        last[path[k:]] = start  # nothing below these comes any more
        path = np.concatenate([path[:k], np.arange(start, start + count, dtype=np.int32)])
        paths.append(path)
        start += count
    last[path] = total
    return Pack(
        rows=tuple(rows),
        ids=np.concatenate([row.ids[k:] for row, k in zip(rows, shared, strict=True)]),
        positions=np.concatenate(
            [np.arange(k, row.ids.size, dtype=np.int32) for row, k in zip(rows, shared, strict=True)]
        ),
        last=last,
        paths=tuple(paths),
        shared=shared,
    )


def token_ratio(rows: Sequence[Row]) -> float:
    """Tokens of the flat layout per token that has to be computed: what there is to gain."""
    ordered, shared = depth_first(rows)
    flat = sum(row.ids.size for row in ordered)
    return flat / max(flat - int(shared.sum()), 1)


def _common_prefix(a: IntArray, b: IntArray) -> int:
    length = min(a.size, b.size)
    differs = a[:length] != b[:length]
    return int(differs.argmax()) if differs.any() else length


def _cuts(lengths: Sequence[int], shared: Sequence[int], limit: int) -> list[int]:
    """Where to cut N rows in depth-first order, from 0 to N: fewest tokens in all, then fewest packs."""
    best: list[tuple[int, int]] = [(0, 0)]
    begin: list[int] = []
    for end in range(1, len(lengths) + 1):
        choices = (
            (best[first][0] + tokens, best[first][1] + 1, first)
            for first, tokens in _packs_up_to(end, lengths, shared, limit)
        )
        computed, packs, first = min(choices)
        best.append((computed, packs))
        begin.append(first)
    cuts = [len(lengths)]
    while cuts[-1] > 0:
        cuts.append(begin[cuts[-1] - 1])
    return cuts[::-1]


def _packs_up_to(
    end: int, lengths: Sequence[int], shared: Sequence[int], limit: int
) -> Iterator[tuple[int, int]]:
    """First row and tokens of each pack that ends before row `end` and keeps the limit, the smallest first."""
    behind = 0  # what the rows after the first add
    for first in range(end - 1, -1, -1):
        tokens = lengths[first] + behind
        if tokens > limit and first < end - 1:
            return
        yield first, tokens
        behind += lengths[first] - shared[first]
