"""Files that are wrong: a row that breaks a rule is named, and nothing wrong passes in silence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import require
from record import rich_tree
from turngym.errors import TreeError
from turngym.tree import FORMAT_VERSION, Tree
from turngym.tree_io import arrow_schema, load_trees, save_trees


@pytest.fixture(params=["jsonl", "parquet"])
def suffix(request: pytest.FixtureRequest) -> str:
    if request.param == "parquet":
        require("pyarrow", "turngym[data]")
    return str(request.param)


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_rows(rows: list[dict[str, Any]], path: Path) -> None:
    """The same rows in either format, whatever they say."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = [name for name in arrow_schema().names if name in rows[0]]
    fields = [arrow_schema().field(name) for name in names]
    pq.write_table(pa.table({f.name: pa.array([row[f.name] for row in rows], f.type) for f in fields}), path)


def set_field(row: int, field: str, value: Any) -> Callable[[list[dict[str, Any]]], None]:
    def edit(rows: list[dict[str, Any]]) -> None:
        rows[row][field] = value

    return edit


def set_all(field: str, value: Any) -> Callable[[list[dict[str, Any]]], None]:
    def edit(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            row[field] = value

    return edit


def swap(rows: list[dict[str, Any]]) -> None:
    rows[2], rows[3] = rows[3], rows[2]


def drop_column(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        del row["logprobs"], row["reward"]


BAD: list[tuple[Callable[[list[dict[str, Any]]], None], str]] = [
    # 12 rows: two trees of six nodes, see rich_tree
    (set_all("format_version", FORMAT_VERSION + 1), "row 0, format_version: this turngym reads format 1"),
    (set_field(7, "format_version", 0), "row 7, format_version"),
    (drop_column, "logprobs, reward is missing"),
    (swap, "row 2, node: rows are missing or out of order: expected tree 0, nodes 0 to 5"),
    (lambda rows: rows.pop(3), "row 3, node: rows are missing"),
    (lambda rows: rows.pop(0), "row 0, node: rows are missing"),
    (lambda rows: rows.pop(), "row 11, node: the file ends after 5 of the 6 nodes of tree 1: it was cut"),
    (lambda rows: rows.__delitem__(slice(6, None)), "row 6, trees: the file ends after 1 of 2 trees"),
    (lambda rows: rows.__delitem__(slice(0, 6)), "row 0, tree: rows are missing"),
    (lambda rows: rows.extend(rows[:6]), "row 12, tree: rows are missing or out of order: expected tree 2"),
    (set_field(0, "nodes", 0), "row 0, nodes"),
    (set_field(4, "nodes", 5), "row 4, nodes"),
    (set_field(9, "trees", 3), "row 9, trees"),
    (set_field(3, "node", None), "row 3, node: an integer"),
    (set_field(2, "task_id", "other"), "row 2, task_id: differs from the first row of its tree"),
    (set_field(11, "meta", "{}"), "row 11, meta: differs"),
    (set_field(8, "seed", 1), "row 8, seed: differs"),
    (lambda rows: [row.update(seed=-5) for row in rows[6:]], "row 6: run/1: a seed is"),
    (lambda rows: [row.update(meta="[1]") for row in rows[:6]], "row 0: .* is not a JSON object"),
    (set_field(1, "parent", 1), "row 1, parent: the first node has parent -1"),
    (set_field(1, "parent", -1), "row 1, parent"),
    (set_field(0, "parent", 0), "row 0, parent"),
    (set_field(3, "kind", "thought"), "row 3, kind: observation or action or summary is needed, got 'thought'"),
    (set_field(3, "kind", None), "row 3, kind"),
    (set_field(3, "starts_context", None), "row 3, starts_context: true or false is needed"),
    (set_field(3, "stop", "tired"), "row 3, stop: null or one of terminated, .*, got 'tired'"),
    (set_field(3, "outcome", "win"), "row 3, outcome"),
    (set_field(3, "state_key", "beef"), "row 3, state_key: 32 hex digits or null is needed, got 'beef'"),
    (set_field(3, "metrics", "{"), "row 3, metrics: a JSON object is needed"),
    (set_field(3, "metrics", None), "row 3, metrics"),
    (set_field(3, "log", "[]"), "row 3, log: a JSON object is needed"),
    (set_field(3, "ids", None), "row 3, ids: null instead of the tokens"),
    (set_field(3, "ids", [1, None]), "row 3, ids: not every element is a int32"),
    (set_field(3, "ids", [1]), "row 3, origin: not as many values as ids"),
    (set_field(3, "origin", None), "row 3, origin: not as many"),
    (set_field(3, "logprobs", []), "row 3, logprobs: exactly the sampled tokens"),
    (set_field(3, "logprobs", None), "row 3, logprobs: exactly the sampled tokens"),
    (set_field(3, "logprobs", [None]), "row 3, logprobs: a finite number"),
    (set_field(3, "version", []), "row 3, version: not as many"),
    (set_field(3, "origin", [0, 4]), "row 3, origin: an origin is 0 to 3"),
    (set_field(3, "origin", [0, 0]), "row 3, logprobs: exactly the sampled tokens"),
    (set_field(3, "logprobs", [-2.5, -1.0]), "row 3, logprobs: exactly the sampled tokens"),
    (set_field(3, "version", [-1, 2]), "row 3, version: tokens that were not sampled"),
    (set_field(3, "kind", "observation"), "row 3, (origin: an observation holds|advantage: an observation)"),
    (set_field(2, "advantage", 0.0), "row 2, advantage: an observation"),
    (set_field(4, "advantages", [0.0]), "row 4, advantages: an observation"),
    (set_field(3, "advantages", [0.0, 0.0]), "row 3, advantages: a node has one advantage or one a token"),
    (set_field(1, "advantages", [0.0]), "row 1, advantages: not as many"),
    (set_field(1, "advantages", [None] + [0.0] * 5), "row 1, advantages: a finite number"),
]  # fmt: skip


@pytest.mark.parametrize(("edit", "words"), BAD, ids=[words[:40] for _, words in BAD])
def test_a_wrong_row_is_named(tmp_path: Path, suffix: str, edit: Any, words: str) -> None:
    save_trees([rich_tree(), rich_tree("run/1")], tmp_path / "good.jsonl")
    rows = rows_of(tmp_path / "good.jsonl")
    edit(rows)
    path = tmp_path / f"bad.{suffix}"
    write_rows(rows, path)
    with pytest.raises(TreeError, match=f"bad.{suffix}.*{words}"):
        load_trees(path)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (set_field(3, "node", "3"), "row 3, node: an integer"),
        (set_field(3, "node", 3.0), "row 3, node: an integer"),
        (set_field(3, "seed", 1 << 63), "row 3, seed"),
        (set_all("seed", 1 << 63), "row 0"),
        (set_field(3, "ids", [1.5, 2]), "row 3, ids: not every element is a int32"),
        (set_field(3, "ids", [1 << 31, 2]), "row 3, ids: not every element is a int32"),
        (set_field(3, "ids", "ab"), "row 3, ids: a list"),
        (set_field(3, "ids", {"a": 1}), "row 3, ids: a list"),
        (set_field(3, "origin", [0, -1]), "row 3, origin: not every element is a uint8"),
        (set_field(3, "logprobs", [[-2.5]]), "row 3, logprobs: not every element is a float32"),
        (set_field(3, "logprobs", [-1e300]), "row 3, logprobs: a finite number"),
        (set_field(3, "reward", "1"), "row 3, reward: a number or null"),
        (set_field(3, "reward", True), "row 3, reward: a number or null"),
        (set_field(3, "starts_context", 1), "row 3, starts_context: true or false"),
        (set_field(3, "stop", ["turns"]), "row 3, stop"),
        (set_field(3, "state_key", 7), "row 3, state_key"),
        (set_all("task_id", 7), "row 0"),
    ],
)  # fmt: skip
def test_json_of_other_types_is_refused(tmp_path: Path, edit: Any, words: str) -> None:
    """Parquet files have a schema; JSON may hold anything anywhere."""
    test_a_wrong_row_is_named(tmp_path, "jsonl", edit, words)


@pytest.mark.parametrize(
    "line", [b"\n", b"[1]\n", b"null\n", b"{}\n", b'{"tree": 0', b"\xff\xfe\n", b'{"tree": NaN}\n']
)
def test_a_line_that_is_no_row(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "t.jsonl"
    rich_tree().save(path)
    path.write_bytes(path.read_bytes() + line)
    with pytest.raises(TreeError, match=r"t\.jsonl, row 6"):
        load_trees(path)


def test_a_file_cut_anywhere_is_noticed(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"t.{suffix}"
    save_trees([rich_tree(), rich_tree()], path)
    whole = path.read_bytes()
    for length in range(1, len(whole) - 1, 97):
        path.write_bytes(whole[:length])
        with pytest.raises(TreeError, match=path.name):
            load_trees(path)


def test_a_flipped_byte_in_parquet_is_noticed_or_harmless(tmp_path: Path) -> None:
    require("pyarrow", "turngym[data]")
    path = tmp_path / "t.parquet"
    rich_tree().save(path)
    whole = path.read_bytes()
    for position in range(0, len(whole), 61):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :])
        try:
            (tree,) = load_trees(path)
        except TreeError:
            continue
        assert tree == rich_tree()


def test_parquet_by_other_writers_is_read(tmp_path: Path) -> None:
    """Wider integers, dictionary columns, columns of one's own, another order: what pandas or datasets make of it."""
    pa = require("pyarrow", "turngym[data]")
    import pyarrow.parquet as pq

    rich_tree().save(tmp_path / "t.parquet")
    table = pq.read_table(tmp_path / "t.parquet")
    table = table.set_column(
        table.schema.get_field_index("ids"), "ids", table["ids"].cast(pa.large_list(pa.int64()))
    )
    table = table.set_column(table.schema.get_field_index("kind"), "kind", table["kind"].dictionary_encode())
    table = table.append_column("mine", pa.array(range(len(table)))).select(table.column_names[::-1])
    pq.write_table(table, tmp_path / "other.parquet", row_group_size=2)
    assert Tree.load(tmp_path / "other.parquet") == rich_tree()


def test_a_parquet_file_of_something_else(tmp_path: Path) -> None:
    pa = require("pyarrow", "turngym[data]")
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"question": ["?"]}), tmp_path / "t.parquet")
    with pytest.raises(TreeError, match=r"column advantage, .* is missing: not a file of trees"):
        load_trees(tmp_path / "t.parquet")
    (tmp_path / "t.parquet").write_text("no Parquet at all")
    with pytest.raises(TreeError, match="not a Parquet file of trees"):
        load_trees(tmp_path / "t.parquet")


def test_a_file_that_is_not_there_is_an_os_error(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(FileNotFoundError):
        load_trees(tmp_path / f"none.{suffix}")
    with pytest.raises(FileNotFoundError):
        rich_tree().save(tmp_path / "no folder" / f"t.{suffix}")
