"""Trees in files: Parquet or JSON Lines, one row a node, read back bit for bit.

Both open with `datasets.load_dataset("parquet" | "json", data_files=…)`, pandas or any other reader (for a large
JSON file see `arrow_schema`). The columns:

    tree, trees               index of the tree in the file; how many trees the file holds
    nodes                     how many nodes this tree has, so that a file that was cut is noticed
    task_id, rollout_id, seed, renderer_hash, format_version, meta    the same in every row of a tree
    node, parent              index of the node in its tree; its parent, −1 at the root
    kind                      "observation", "action" or "summary"
    starts_context            earlier nodes are not in the context of what follows
    reward, advantage         float64, null where none
    state_key, stop, outcome  words, null where none
    metrics, log              JSON objects as text (and so is meta)
    ids, origin, version      one integer a token; an origin is a `tree.Origin`
    logprobs                  one float32 for each token with origin 0 (sampled), and none for the others
    advantages                one float32 a token where a credit rule gave one to each, else null

`logprobs` holds no nulls for the tokens between, since Arrow's JSON reader, and so `datasets`, loses leading nulls of
a list (apache/arrow#51305).

A file is written beside its place and moved there when it is complete, so a save that is killed leaves the
previous file. Snapshots are handles into a running process and are not saved. JSON Lines needs nothing beyond
turngym's core; Parquet needs pyarrow and is a fraction of the size. What rows must hold is in `tree_rows.py`.
"""

from __future__ import annotations

import importlib
import os
import secrets
from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
import numpy.typing as npt
import orjson

from turngym.errors import ConfigError, MissingDependency, TreeError
from turngym.node import as_json
from turngym.tree import FORMAT_VERSION, Origin, Tree
from turngym.tree_rows import KINDS, NODE_COLUMNS, TOKEN_COLUMNS, Rows, Spans, refuse, trees_of

T = TypeVar("T")

_COLUMNS = frozenset(NODE_COLUMNS) | frozenset(TOKEN_COLUMNS)
_CHUNK_ROWS = 1024
_ROW_GROUP = 1 << 16
_UNLUCKY = np.array([0x15AE43FD], np.uint32).view(np.float32)[0]
"""7.038531e-26: the one float32 (and its negative) whose shortest decimal, read as a float64 as JSON readers do,
rounds to its neighbour. Found by trying all 2³² of them."""


def save_trees(trees: Iterable[Tree], path: str | Path) -> None:
    """Write `trees` to `path`, in one piece or not at all.

    Args:
        trees: in the order in which `load_trees` gives them back.
        path: ends in `.parquet` or `.jsonl`; an existing file is replaced when the new one is complete.

    Raises:
        ConfigError: for another suffix.
        MissingDependency: for `.parquet` without pyarrow.
        TreeError: for a tree without nodes, or with metrics, log or meta that JSON has no words for.
        OSError: where the disk is full or the folder does not exist; the previous file is untouched.
    """
    path = Path(path)
    write = _by_suffix(path, {".parquet": _write_parquet, ".jsonl": _write_jsonl})
    with atomic_write(path) as file:
        write(list(trees), file)


def load_trees(path: str | Path) -> list[Tree]:
    """Read every tree in `path`.

    Raises:
        ConfigError: for a suffix other than `.parquet` and `.jsonl`.
        MissingDependency: for `.parquet` without pyarrow.
        TreeError: for a file that is cut, reordered, of another format version or that breaks a rule of the
            record; names the file, the row and the column.
        OSError: where there is no such file.
    """
    path = Path(path)
    read = _by_suffix(path, {".parquet": _read_parquet, ".jsonl": _read_jsonl})
    return trees_of(read(path))


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """A binary file that takes the place of `path` when the block ends, and vanishes where the block raises."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _by_suffix(path: Path, table: Mapping[str, T]) -> T:
    if path.suffix not in table:
        raise ConfigError(
            f"{path}: trees are stored as .parquet or .jsonl, not as {path.suffix or 'no suffix'!r}"
        )
    return table[path.suffix]


# ---------------------------------------------------------------------- what the formats share


def _node_columns(tree: Tree, number: int, trees: int) -> dict[str, list[Any]]:
    """One list per node column, in the order of `NODE_COLUMNS`."""
    n = len(tree)
    if not n:
        raise TreeError(f"tree {number} ({tree.rollout_id}) has no nodes and would leave no row")
    parent, _, kind, starts, reward, advantage, key, *_ = tree.columns()
    hexes = key.tobytes().hex()
    keys = [hexes[i : i + 32] for i in range(0, 32 * n, 32)]
    no_key = "0" * 32
    sparse = tree._sparse
    every = {
        "tree": number,
        "trees": trees,
        "nodes": n,
        "task_id": tree.task_id,
        "rollout_id": tree.rollout_id,
        "seed": int(tree.seed),
        "renderer_hash": tree.renderer_hash,
        "format_version": FORMAT_VERSION,
        "meta": _json_text(tree.meta, tree, "meta"),
    }
    return {name: [value] * n for name, value in every.items()} | {
        "node": list(range(n)),
        "parent": parent.tolist(),
        "kind": [KINDS[k] for k in kind.tolist()],
        "starts_context": starts.tolist(),
        "reward": _nullable(reward),
        "advantage": _nullable(advantage),
        "state_key": [None if k == no_key else k for k in keys],
        "stop": [sparse.stop.get(i) for i in range(n)],
        "outcome": [sparse.outcome.get(i) for i in range(n)],
        "metrics": _json_column(sparse.metrics, tree, "metrics"),
        "log": _json_column(sparse.log, tree, "log"),
    }


def _scores(tree: Tree) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Log-probs of the sampled tokens, and where those of each node end."""
    _, ends, *_, origin, logprobs, _ = tree.columns()
    sampled = origin == int(Origin.SAMPLED)
    return logprobs[sampled], np.concatenate([[0], np.cumsum(sampled)])[ends]


def _nullable(column: npt.NDArray[np.float64]) -> list[float | None]:
    return [None if value != value else value for value in column.tolist()]  # noqa: PLR0124 - NaN


def _json_column(column: Mapping[int, Mapping[str, Any]], tree: Tree, name: str) -> list[str]:
    out = ["{}"] * len(tree)
    for index, entry in column.items():
        if entry:
            out[index] = _json_text(entry, tree, f"{name} of node {index}")
    return out


def _json_text(entry: Mapping[str, Any], tree: Tree, what: str) -> str:
    try:
        return as_json(entry)
    except (TypeError, ValueError) as error:
        raise TreeError(f"{tree.rollout_id}: {what} can't be written as JSON: {error}") from error


def _check_names(path: Path, names: Iterable[str], row: str = "") -> None:
    missing = _COLUMNS.difference(names)
    if missing:
        raise TreeError(f"{path}{row}: column {', '.join(sorted(missing))} is missing: not a file of trees")


# ---------------------------------------------------------------------- JSON Lines


def _write_jsonl(trees: list[Tree], file: BinaryIO) -> None:
    option = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
    for number, tree in enumerate(trees):
        columns = _node_columns(tree, number, len(trees))
        _, ends, *_, ids, origin, _, version = tree.columns()
        scores, score_ends = _scores(tree)
        scores = _decimal(scores)
        advantages = tree._sparse.advantages
        start, first = 0, 0
        bounds = zip(ends.tolist(), score_ends.tolist(), *columns.values(), strict=True)
        for node, (end, last, *values) in enumerate(bounds):
            row = dict(zip(columns, values, strict=True))
            row["ids"] = ids[start:end]
            row["origin"] = origin[start:end]
            row["logprobs"] = scores[first:last]
            row["version"] = version[start:end]
            row["advantages"] = _decimal(advantages[node]) if node in advantages else None
            file.write(orjson.dumps(row, option=option))
            start, first = end, last


def _decimal(values: npt.NDArray[np.float32]) -> npt.NDArray[np.floating[Any]]:
    """`values` in the precision whose shortest decimals every JSON reader takes back to the same float32."""
    return values.astype(np.float64) if (np.abs(values) == _UNLUCKY).any() else values


def _read_jsonl(path: Path) -> Rows:
    nodes: dict[str, list[Any]] = {name: [] for name in NODE_COLUMNS}
    lengths: dict[str, list[npt.NDArray[np.int64]]] = {
        name: [np.empty(0, np.int64)] for name in TOKEN_COLUMNS
    }
    flat: dict[str, list[npt.NDArray[Any]]] = {name: [np.empty(0, d)] for name, d in TOKEN_COLUMNS.items()}
    with path.open("rb") as file:
        row = 0
        while lines := list(islice(file, _CHUNK_ROWS)):  # numbers as Python objects take 30 bytes each
            chunk = [_parsed(line, path, row + i) for i, line in enumerate(lines)]
            for name, column in nodes.items():
                column.extend([data[name] for data in chunk])
            for name in TOKEN_COLUMNS:
                spans = _json_spans([data[name] for data in chunk], path, row, name)
                lengths[name].append(spans.lengths)
                flat[name].append(spans.flat)
            row += len(lines)
    return Rows(
        path,
        nodes,
        {name: Spans(np.concatenate(lengths[name]), np.concatenate(flat[name])) for name in TOKEN_COLUMNS},
    )


def _parsed(line: bytes, path: Path, row: int) -> dict[str, Any]:
    try:
        data = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise TreeError(f"{path}, row {row}: not JSON ({error}): the file was cut or edited") from error
    if not isinstance(data, dict):
        raise TreeError(f"{path}, row {row}: not a JSON object but {type(data).__name__}")
    if not data.keys() >= _COLUMNS:
        _check_names(path, data, f", row {row}")
    return data


def _json_spans(values: list[Any], path: Path, first_row: int, name: str) -> Spans:
    dtype = TOKEN_COLUMNS[name]
    wrong = np.array([not isinstance(v, list | None) for v in values])
    refuse(path, name, wrong, "a list with one number a token is needed", first_row=first_row)
    lengths = np.array([-1 if v is None else len(v) for v in values], np.int64)
    flat = list(chain.from_iterable(v for v in values if v))
    try:
        return Spans(lengths, _flat(flat, dtype))
    except (TypeError, ValueError, OverflowError):
        wrong = np.array([not _fits(v or [], dtype) for v in values])
        refuse(path, name, wrong, f"not every element is a {dtype.name}", first_row=first_row)
        raise


def _fits(values: list[Any], dtype: np.dtype[Any]) -> bool:
    try:
        _flat(values, dtype)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def _flat(values: list[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if dtype.kind == "f":
        with np.errstate(over="ignore"):  # an infinity is refused with its row later
            return np.fromiter(values, np.float64, len(values)).astype(dtype)  # None becomes NaN
    return np.frombuffer(array(dtype.char, values), dtype)  # refuses floats, null and what does not fit


# ---------------------------------------------------------------------- Parquet


def _arrow(name: str = "pyarrow") -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingDependency(
            "Parquet files need pyarrow: pip install turngym[data] (or use .jsonl)"
        ) from error


def arrow_schema() -> Any:
    """The columns as a `pyarrow.Schema`.

    `datasets` guesses the types of a JSON file from its first 10 MB and fails where a column holds only nulls there
    and numbers later; `features=datasets.Features.from_arrow_schema(arrow_schema())` leaves nothing to guess.

    Raises:
        MissingDependency: without pyarrow.
    """
    pa = _arrow()
    kinds = {int: pa.int64(), float: pa.float64(), bool: pa.bool_(), str: pa.string()}
    return pa.schema(
        [pa.field(name, kinds[kind]) for name, kind in NODE_COLUMNS.items()]
        + [pa.field(name, pa.list_(pa.from_numpy_dtype(dtype))) for name, dtype in TOKEN_COLUMNS.items()]
    )


def _write_parquet(trees: list[Tree], file: BinaryIO) -> None:
    pa, parquet, schema = _arrow(), _arrow("pyarrow.parquet"), arrow_schema()
    batches = [_batch(tree, number, len(trees), pa, schema) for number, tree in enumerate(trees)]
    parquet.write_table(
        pa.Table.from_batches(batches, schema),
        file,
        compression="zstd",
        row_group_size=_ROW_GROUP,
        write_page_checksum=True,
    )


def _batch(tree: Tree, number: int, trees: int, pa: Any, schema: Any) -> Any:
    columns = _node_columns(tree, number, trees)
    arrays = [pa.array(values, schema.field(name).type) for name, values in columns.items()]
    _, ends, *_, ids, origin, _, version = tree.columns()
    scores, score_ends = _scores(tree)
    for flat, flat_ends in ((ids, ends), (origin, ends), (scores, score_ends), (version, ends)):
        offsets = pa.array(np.concatenate([[0], flat_ends]).astype(np.int32))
        arrays.append(pa.ListArray.from_arrays(offsets, flat))
    advantages = tree._sparse.advantages
    arrays.append(pa.array([advantages.get(i) for i in range(len(tree))], schema.field("advantages").type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _read_parquet(path: Path) -> Rows:
    pa, parquet, schema = _arrow(), _arrow("pyarrow.parquet"), arrow_schema()
    with path.open("rb") as file:
        try:
            reader = parquet.ParquetFile(file, page_checksum_verification=True)
            _check_names(path, reader.schema_arrow.names)
            table = reader.read(columns=schema.names).select(schema.names).cast(schema)
            table.validate(full=True)
        except (pa.ArrowException, OSError) as error:
            raise TreeError(f"{path}: not a Parquet file of trees, or one that was cut: {error}") from error
    return Rows(
        path,
        {name: table[name].to_pylist() for name in NODE_COLUMNS},
        {name: _arrow_spans(table[name], path, name) for name in TOKEN_COLUMNS},
    )


def _arrow_spans(column: Any, path: Path, name: str) -> Spans:
    lists = column.combine_chunks()
    lengths = _arrow("pyarrow.compute").fill_null(lists.value_lengths(), -1).to_numpy().astype(np.int64)
    values = lists.flatten()
    dtype = TOKEN_COLUMNS[name]
    nulls = values.is_null().to_numpy(zero_copy_only=False)
    if dtype.kind == "f":
        return Spans(lengths, values.to_numpy(zero_copy_only=False))  # null becomes NaN
    spans = Spans(lengths, values.fill_null(0).to_numpy())
    refuse(path, name, spans.count(nulls) > 0, f"not every element is a {dtype.name}")
    return spans
