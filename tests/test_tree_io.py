"""Tree files: bit for bit, whole or not at all, readable by others, and nothing wrong passes in silence."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import require
from turngym.errors import ConfigError, MissingDependency, TreeError
from turngym.tree import FORMAT_VERSION, Kind, Origin, Tree
from turngym.tree_io import arrow_schema, load_trees, save_trees
from turngym.types import Outcome, StopReason

FORMATS = ["jsonl", "parquet"]
LOG_PROBS = np.array(
    # least subnormal, greatest float32, the float32 that JSON readers get wrong, one third, zeros of both signs
    [1e-45, -3.4028235e38, np.uint32(0x15AE43FD).view(np.float32), -1 / 3, 0.0, -0.0],
    np.float32,
)


@pytest.fixture(params=FORMATS)
def suffix(request: pytest.FixtureRequest) -> str:
    if request.param == "parquet":
        require("pyarrow", "turngym[data]")
    return str(request.param)


def rich_tree(rollout_id: str = "run/0") -> Tree:
    """A small tree in which every field is used."""
    tree = Tree(
        task_id="corridor/7 é🏝", rollout_id=rollout_id, seed=(1 << 63) - 1, renderer_hash="ab12",
        meta={"env": "turngym/Corridor-v0", "temperature": 0.7, "turns": 3, "greedy": False},
    )  # fmt: skip
    tree.add(
        -1,
        Kind.OBSERVATION,
        [1, 2**31 - 1],
        origin=[Origin.TEMPLATE, Origin.ENV],
        starts_context=True,
        state_key="ab" * 16,
    )
    act = tree.add(
        0,
        Kind.ACTION,
        range(6),
        origin=Origin.SAMPLED,
        logprobs=LOG_PROBS,
        version=[0, 1, 2, 3, 4, 2**31 - 1],
    )
    tree[act].reward, tree[act].advantage = -0.0, LOG_PROBS
    tree.add(act, Kind.OBSERVATION, [], origin=Origin.ENV)
    summary = tree.add(
        2,
        Kind.SUMMARY,
        [7, 8],
        origin=[Origin.SAMPLED, Origin.HARNESS],
        logprobs=[-2.5, np.nan],
        reward=5e-324,
    )
    tree[summary].advantage = 0.1
    tree.add(summary, Kind.OBSERVATION, [9], origin=Origin.HARNESS, starts_context=True)
    leaf = tree.add(0, Kind.ACTION, [], origin=Origin.SAMPLED)
    tree[leaf].stop, tree[leaf].outcome, tree[leaf].advantage = (
        StopReason.EPISODE_TOKENS,
        Outcome.TRUNCATED,
        0.0,
    )
    tree[leaf].metrics.update(
        {"success": 0.0, "loss": float("nan"), "worst": -np.inf, "f32": np.float32(0.1), "n": np.int64(3)}
    )
    tree[leaf].log.update({"error": 'half \ud800, é, 🏝, \x00, \u2028, "quoted"\n', "": "\udfff"})
    return tree


# ---------------------------------------------------------------------- round trips


def test_every_field_survives_bit_for_bit(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"trees.{suffix}"
    trees = [rich_tree(), rich_tree("run/1")]
    save_trees(trees, path)
    again = load_trees(path)
    assert again == trees
    assert again[0][1].logprobs.tobytes() == LOG_PROBS.tobytes()
    assert isinstance(again[0][1].advantage, np.ndarray)
    assert again[0][1].advantage.tobytes() == LOG_PROBS.tobytes()
    assert again[0].meta == trees[0].meta
    assert again[0][5].log == trees[0][5].log


def test_saving_again_gives_the_same_bytes(tmp_path: Path, suffix: str) -> None:
    first, second = tmp_path / f"a.{suffix}", tmp_path / f"b.{suffix}"
    save_trees([rich_tree()], first)
    save_trees(load_trees(first), second)
    assert first.read_bytes() == second.read_bytes()


def test_a_loaded_tree_goes_on_growing(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"t.{suffix}"
    tree = rich_tree()
    tree.save(path)
    again = Tree.load(path)
    for t in (tree, again):
        t[1].reward, t[1].advantage = 2.0, 3.0
        for _ in range(40):
            t.add(len(t) - 1, Kind.OBSERVATION, [1, 2, 3], origin=Origin.ENV)
    assert again == tree
    assert again.leaves == tree.leaves


def test_snapshots_stay_in_memory(tmp_path: Path, suffix: str) -> None:
    tree = rich_tree()
    tree[0].snapshot = object()
    tree.save(tmp_path / f"t.{suffix}")
    assert Tree.load(tmp_path / f"t.{suffix}")[0].snapshot is None


def test_no_trees_make_an_empty_file(tmp_path: Path, suffix: str) -> None:
    save_trees([], tmp_path / f"none.{suffix}")
    assert load_trees(tmp_path / f"none.{suffix}") == []


def test_only_empty_spans(tmp_path: Path, suffix: str) -> None:
    tree = Tree(task_id="", rollout_id="")
    tree.add(-1, Kind.OBSERVATION, [], origin=Origin.ENV)
    tree.save(tmp_path / f"t.{suffix}")
    assert Tree.load(tmp_path / f"t.{suffix}") == tree


def test_many_rows_cross_the_chunks_of_the_readers(tmp_path: Path, suffix: str) -> None:
    trees = []
    for number in range(3):
        tree = Tree(task_id="t", rollout_id=f"r/{number}")
        for node in range(1500):
            tree.add(node - 1, Kind.OBSERVATION, [number, node], origin=Origin.ENV)
        trees.append(tree)
    save_trees(trees, tmp_path / f"t.{suffix}")
    assert load_trees(tmp_path / f"t.{suffix}") == trees


def test_load_of_one_refuses_a_file_of_two(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"t.{suffix}"
    save_trees([rich_tree(), rich_tree()], path)
    with pytest.raises(TreeError, match=r"holds 2 trees: read it with turngym\.tree_io\.load_trees"):
        Tree.load(path)


def test_a_surrogate_pair_in_two_halves_comes_back_whole(tmp_path: Path, suffix: str) -> None:
    """The one text that JSON can't keep apart (see `node.as_json`)."""
    tree = rich_tree()
    tree[0].log["split"] = "\ud83d" + "\ude00"
    tree.save(tmp_path / f"t.{suffix}")
    assert Tree.load(tmp_path / f"t.{suffix}")[0].log["split"] == "😀"


# ---------------------------------------------------------------------- other readers


@pytest.fixture
def datasets(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    module = require("datasets", "turngym[data]")
    module.disable_progress_bars()
    return module


@pytest.mark.parametrize(("suffix", "builder"), [("parquet", "parquet"), ("jsonl", "json")])
def test_datasets_opens_the_file_and_reads_the_same_bits(
    tmp_path: Path, datasets: Any, suffix: str, builder: str
) -> None:
    tree = rich_tree()
    tree.save(tmp_path / f"t.{suffix}")
    rows = datasets.load_dataset(
        builder, data_files=str(tmp_path / f"t.{suffix}"), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert len(rows) == len(tree)
    for node, row in zip(tree, rows, strict=True):
        assert (row["node"], row["parent"], row["kind"]) == (node.index, node.parent, node.kind.name.lower())
        assert (row["task_id"], row["seed"], row["state_key"]) == (tree.task_id, tree.seed, node.state_key)
        assert row["ids"] == node.ids.tolist()
        assert row["origin"] == node.origin.tolist()
        assert row["version"] == node.version.tolist()
        assert np.array(row["logprobs"], np.float32).tobytes() == node.logprobs[node.loss_mask].tobytes()
        assert row["reward"] == node.reward
        assert row["starts_context"] is node.starts_context
        assert json.loads(row["log"]) == node.log
    assert np.array(rows[1]["advantages"], np.float32).tobytes() == LOG_PROBS.tobytes()
    assert (rows[3]["advantage"], rows[3]["advantages"]) == (0.1, None)
    assert (rows[5]["stop"], rows[5]["outcome"]) == ("episode_tokens", "truncated")


def test_arrow_schema_saves_datasets_from_guessing(tmp_path: Path, datasets: Any) -> None:
    """A JSON reader guesses the types from the first piece of a file, where these columns hold only nulls."""
    tree = Tree(task_id="t", rollout_id="r")
    for node in range(50):
        tree.add(node - 1, Kind.OBSERVATION, [1] * 20, origin=Origin.ENV)
    leaf = tree.add(49, Kind.ACTION, [1], origin=Origin.SAMPLED, logprobs=[-1.0], reward=1.0)
    tree[leaf].advantage, tree[leaf].stop = [0.5], StopReason.TURNS
    tree.save(tmp_path / "t.jsonl")
    rows = datasets.load_dataset(
        "json", data_files=str(tmp_path / "t.jsonl"), split="train", cache_dir=str(tmp_path / "cache"),
        chunksize=2048, features=datasets.Features.from_arrow_schema(arrow_schema()),
    )  # fmt: skip
    assert (rows[leaf]["advantages"], rows[leaf]["stop"], rows[leaf]["reward"]) == ([0.5], "turns", 1.0)


# ---------------------------------------------------------------------- whole or not at all


def test_another_suffix_names_both_formats(tmp_path: Path) -> None:
    for name in ("t.json", "t", "t.pq"):
        with pytest.raises(ConfigError, match=r"\.parquet or \.jsonl"):
            rich_tree().save(tmp_path / name)
        with pytest.raises(ConfigError, match=r"\.parquet or \.jsonl"):
            load_trees(tmp_path / name)


def test_without_pyarrow_parquet_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependency, match=r"pip install turngym\[data\]"):
        rich_tree().save(tmp_path / "t.parquet")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    with pytest.raises(MissingDependency, match=r"pip install turngym\[data\]"):
        load_trees(tmp_path / "t.parquet")
    rich_tree().save(tmp_path / "t.jsonl")
    assert Tree.load(tmp_path / "t.jsonl") == rich_tree()


def test_a_save_that_fails_leaves_the_previous_file_and_no_litter(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"t.{suffix}"
    rich_tree().save(path)
    broken = rich_tree()
    broken[4].metrics["oops"] = object()  # type: ignore[assignment]
    with pytest.raises(TreeError, match="run/0: metrics of node 4 can't be written as JSON: object"):
        broken.save(path)
    with pytest.raises(TreeError, match=r"tree 1 \(empty\) has no nodes"):
        save_trees([rich_tree(), Tree(task_id="t", rollout_id="empty")], path)
    assert Tree.load(path) == rich_tree()
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_the_previous_file(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"t.{suffix}"
    rich_tree().save(path)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        rich_tree("other").save(path)
    assert Tree.load(path) == rich_tree()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_kill_during_save_leaves_the_previous_file(tmp_path: Path, suffix: str, moment: str) -> None:
    path = tmp_path / f"t.{suffix}"
    rich_tree().save(path)
    script = f"""
import os, signal
from turngym.tree import Tree
tree = Tree.load({str(path)!r})
tree.rollout_id = "other"
os.{moment} = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
tree.save({str(path)!r})
"""
    done = subprocess.run([sys.executable, "-c", script], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert Tree.load(path) == rich_tree()


# ---------------------------------------------------------------------- files that are wrong


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
