"""What the rows of a tree file must hold, and how they become trees again.

`tree_io` reads both file formats into `Rows`; everything after that is the same for both and happens here, on
whole columns at once. Nothing in a file is trusted: a record that is cut, reordered or edited is a `TreeError`
that names the file, the row and the column, since a wrong token would train silently.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from turngym.errors import TreeError
from turngym.node import raw_key
from turngym.tree import FORMAT_VERSION, Kind, Origin, Tree
from turngym.types import Outcome, StopReason

Mask = npt.NDArray[np.bool_]
T = TypeVar("T")

NODE_COLUMNS: dict[str, type] = {
    "tree": int,
    "trees": int,
    "nodes": int,
    "task_id": str,
    "rollout_id": str,
    "seed": int,
    "renderer_hash": str,
    "format_version": int,
    "meta": str,
    "node": int,
    "parent": int,
    "kind": str,
    "starts_context": bool,
    "reward": float,
    "advantage": float,
    "state_key": str,
    "stop": str,
    "outcome": str,
    "metrics": str,
    "log": str,
}
"""Columns with one value a row."""

TOKEN_COLUMNS: dict[str, np.dtype[Any]] = {
    "ids": np.dtype(np.int32),
    "origin": np.dtype(np.uint8),
    "logprobs": np.dtype(np.float32),
    "version": np.dtype(np.int32),
    "advantages": np.dtype(np.float32),
}
"""Columns with one value a token."""

KINDS = tuple(kind.name.lower() for kind in Kind)


@dataclass(slots=True)
class Spans:
    """A token column: the values of all rows in one array."""

    lengths: npt.NDArray[np.int64]
    "`(rows,)` values of each row, −1 where it has null instead of a list"
    flat: npt.NDArray[Any]
    "`(values,)`"
    ends: npt.NDArray[np.int64] = field(init=False)
    "`(rows,)` where the values of each row end in `flat`"

    def __post_init__(self) -> None:
        self.ends = np.cumsum(np.maximum(self.lengths, 0))

    def count(self, values: Mask) -> npt.NDArray[np.int64]:
        """`(rows,)` how many values of each row are True in `values` `(values,)`."""
        before = np.concatenate([[0], np.cumsum(values)])
        out: npt.NDArray[np.int64] = before[self.ends] - before[self.ends - np.maximum(self.lengths, 0)]
        return out


@dataclass(slots=True)
class Rows:
    """A file in columns, not checked yet."""

    path: Path
    nodes: dict[str, list[Any]]
    spans: dict[str, Spans]


def refuse(path: Path, column: str, wrong: Mask, words: str, *, first_row: int = 0) -> None:
    """Raise a `TreeError` for the first row that is True in `wrong`, if there is one."""
    if wrong.any():
        raise TreeError(f"{path}, row {first_row + int(wrong.argmax())}, {column}: {words}")


def trees_of(rows: Rows) -> list[Tree]:
    """The trees that `rows` hold.

    Raises:
        TreeError: for the first thing that is wrong.
    """
    if not rows.nodes["tree"]:
        return []
    version = _integers(rows, "format_version")
    refuse(
        rows.path,
        "format_version",
        version != FORMAT_VERSION,
        f"this turngym reads format {FORMAT_VERSION}; read the file with the version that wrote it",
    )
    cuts = _cuts(rows)
    columns = _checked_columns(rows)
    _check_tokens(rows, columns["kind"])
    _check_advantages(rows, columns)
    return [_tree(rows, columns, cut) for cut in cuts]


# ---------------------------------------------------------------------- columns with one value a row


def _integers(rows: Rows, name: str) -> npt.NDArray[np.int64]:
    array = np.array(rows.nodes[name])
    if array.dtype.kind != "i":
        wrong = np.array([type(v) is not int or not -(2**63) <= v < 2**63 for v in rows.nodes[name]])
        refuse(rows.path, name, wrong, "an integer (int64) is needed")
    return array.astype(np.int64)


def _numbers(rows: Rows, name: str) -> npt.NDArray[np.float64]:
    """Nullable floats; NaN where null."""
    values = rows.nodes[name]
    wrong = np.array([v is not None and type(v) not in (int, float) for v in values])
    refuse(rows.path, name, wrong, "a number or null is needed")
    array = np.array([np.nan if v is None else v for v in values], np.float64)
    refuse(rows.path, name, np.isinf(array), "a finite number or null is needed")
    return array


def _parsed(rows: Rows, name: str, parse: Callable[[Any], T], needed: str) -> list[T]:
    """Every value of a column through `parse`; what it raises becomes a `TreeError` with the row."""
    out: list[T] = []
    for row, value in enumerate(rows.nodes[name]):
        try:
            out.append(parse(value))
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise TreeError(f"{rows.path}, row {row}, {name}: {needed} is needed, got {value!r}") from error
    return out


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is not true or false")
    return value


def _entry(value: Any) -> dict[str, Any] | None:
    """A JSON object, None where it is empty."""
    if value == "{}":
        return None
    entry = json.loads(value)
    if not isinstance(entry, dict):
        raise TypeError(f"{value!r} is not a JSON object")
    return entry


def _cuts(rows: Rows) -> list[slice]:
    """The rows of each tree; they must be complete and in order."""
    tree, trees, nodes, node = (_integers(rows, name) for name in ("tree", "trees", "nodes", "node"))
    total, row = len(tree), 0
    cuts: list[slice] = []
    while row < total:
        cut = slice(row, row + max(int(nodes[row]), 1))
        wrong = {
            "tree": tree[cut] != len(cuts),
            "node": node[cut] != np.arange(len(node[cut])),
            "nodes": nodes[cut] != cut.stop - row,
            "trees": trees[cut] != trees[0],
        }
        if np.any(list(wrong.values())):
            name = min(wrong, key=lambda name: (not wrong[name].any(), int(wrong[name].argmax())))
            words = f"rows are missing or out of order: expected tree {len(cuts)}, nodes 0 to {cut.stop - row - 1}"
            refuse(rows.path, name, wrong[name], words, first_row=row)
        if cut.stop > total:
            raise TreeError(
                f"{rows.path}, row {total}, node: the file ends after {total - row} of the {cut.stop - row} nodes of "
                f"tree {len(cuts)}: it was cut"
            )
        cuts.append(cut)
        row = cut.stop
    if len(cuts) != trees[0]:
        raise TreeError(
            f"{rows.path}, row {total}, trees: the file ends after {len(cuts)} of {trees[0]} trees: it was cut"
        )
    return cuts


def _checked_columns(rows: Rows) -> dict[str, Any]:
    """Node columns in the types of the record."""
    path = rows.path
    parent, node = _integers(rows, "parent"), _integers(rows, "node")
    refuse(
        path,
        "parent",
        (parent < -1) | (parent >= node) | ((parent == -1) != (node == 0)),
        "the first node has parent -1, every other one an earlier node",
    )
    kinds = {word: number for number, word in enumerate(KINDS)}
    stops: dict[str | None, StopReason | None] = {None: None, **{s.value: s for s in StopReason}}
    outcomes: dict[str | None, Outcome | None] = {None: None, **{o.value: o for o in Outcome}}
    keys = _parsed(rows, "state_key", lambda value: raw_key(value, ""), "32 hex digits or null")
    return {
        "parent": parent.astype(np.int32),
        "kind": np.array(_parsed(rows, "kind", kinds.__getitem__, " or ".join(KINDS)), np.uint8),
        "starts_context": np.array(_parsed(rows, "starts_context", _flag, "true or false"), np.bool_),
        "reward": _numbers(rows, "reward"),
        "advantage": _numbers(rows, "advantage"),
        "state_key": np.frombuffer(b"".join(keys), "V16"),
        "stop": _parsed(rows, "stop", stops.__getitem__, f"null or one of {', '.join(StopReason)}"),
        "outcome": _parsed(rows, "outcome", outcomes.__getitem__, f"null or one of {', '.join(Outcome)}"),
        "metrics": _parsed(rows, "metrics", _entry, "a JSON object"),
        "log": _parsed(rows, "log", _entry, "a JSON object"),
    }


# ---------------------------------------------------------------------- columns with one value a token


def _check_tokens(rows: Rows, kind: npt.NDArray[np.uint8]) -> None:
    path, (ids, origin, scores, version) = (
        rows.path,
        (rows.spans[n] for n in ("ids", "origin", "logprobs", "version")),
    )
    refuse(path, "ids", ids.lengths < 0, "null instead of the tokens of a node")
    for name in ("origin", "version"):
        refuse(path, name, rows.spans[name].lengths != ids.lengths, "not as many values as ids")
    top = int(max(Origin))
    refuse(path, "origin", origin.count(origin.flat > top) > 0, f"an origin is 0 to {top}")
    sampled = origin.flat == int(Origin.SAMPLED)
    observation = kind == int(Kind.OBSERVATION)
    refuse(path, "origin", observation & (origin.count(sampled) > 0), "an observation holds sampled tokens")
    wrong = version.count(~sampled & (version.flat != -1)) > 0
    refuse(path, "version", wrong, "tokens that were not sampled have version -1")
    wrong = scores.lengths != origin.count(sampled)
    refuse(path, "logprobs", wrong, "exactly the sampled tokens (origin 0) have a log-prob")
    refuse(path, "logprobs", scores.count(~np.isfinite(scores.flat)) > 0, "a finite number is needed")


def _check_advantages(rows: Rows, columns: Mapping[str, Any]) -> None:
    path, spans = rows.path, rows.spans["advantages"]
    one, each = ~np.isnan(columns["advantage"]), spans.lengths >= 0
    observation = columns["kind"] == int(Kind.OBSERVATION)
    refuse(path, "advantage", observation & one, "an observation can't have an advantage")
    refuse(path, "advantages", observation & each, "an observation can't have an advantage")
    refuse(path, "advantages", one & each, "a node has one advantage or one a token, not both")
    refuse(
        path, "advantages", each & (spans.lengths != rows.spans["ids"].lengths), "not as many values as ids"
    )
    refuse(path, "advantages", spans.count(~np.isfinite(spans.flat)) > 0, "a finite number is needed")


# ---------------------------------------------------------------------- one tree


def _tree(rows: Rows, columns: Mapping[str, Any], cut: slice) -> Tree:
    tree = _empty_tree(rows, cut)
    ids = rows.spans["ids"]
    lengths, last = ids.lengths[cut], int(ids.ends[cut.stop - 1])
    tokens = slice(last - int(lengths.sum()), last)
    # Slices are copied: a tree must not keep the whole file alive, and Arrow's memory refuses writes.
    tree._nodes, tree._tokens = len(lengths), tokens.stop - tokens.start
    tree._end = np.cumsum(lengths)
    tree._parent = columns["parent"][cut].copy()
    tree._kind = columns["kind"][cut].copy()
    tree._starts = columns["starts_context"][cut].copy()
    tree._reward = columns["reward"][cut].copy()
    tree._advantage = columns["advantage"][cut].copy()
    tree._key = columns["state_key"][cut].copy()
    tree._ids = ids.flat[tokens].copy()
    tree._origin = rows.spans["origin"].flat[tokens].copy()
    tree._logprobs = _aligned_scores(rows, cut, tree._origin)
    tree._version = rows.spans["version"].flat[tokens].copy()
    for name in ("stop", "outcome", "metrics", "log"):
        setattr(tree._sparse, name, {i: v for i, v in enumerate(columns[name][cut]) if v is not None})
    spans = rows.spans["advantages"]
    for node in np.flatnonzero(spans.lengths[cut] >= 0).tolist():
        end = spans.ends[cut.start + node]
        tree[node].advantage = spans.flat[end - lengths[node] : end]
    return tree


def _aligned_scores(rows: Rows, cut: slice, origin: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Log-probs of the sampled tokens at their places, NaN elsewhere."""
    scores = rows.spans["logprobs"]
    last = int(scores.ends[cut.stop - 1])
    out = np.full(origin.size, np.nan, np.float32)
    out[origin == int(Origin.SAMPLED)] = scores.flat[last - int(scores.lengths[cut].sum()) : last]
    return out


def _empty_tree(rows: Rows, cut: slice) -> Tree:
    """The tree of these rows without its nodes: what every row repeats."""
    head: dict[str, Any] = {}
    for name in ("task_id", "rollout_id", "seed", "renderer_hash", "meta"):
        column = rows.nodes[name][cut]
        head[name] = column[0]
        if column.count(column[0]) != len(column):
            wrong = np.array([value != column[0] for value in column])
            refuse(rows.path, name, wrong, "differs from the first row of its tree", first_row=cut.start)
        if name != "seed" and not isinstance(column[0], str):
            raise TreeError(f"{rows.path}, row {cut.start}, {name}: a text is needed, got {column[0]!r}")
    try:
        return Tree(**{**head, "meta": _entry(head["meta"])})
    except (TypeError, ValueError) as error:
        raise TreeError(f"{rows.path}, row {cut.start}: {error}") from error
