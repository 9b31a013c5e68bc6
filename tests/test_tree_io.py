"""Tree files: bit for bit, whole or not at all, readable by others, and nothing wrong passes in silence."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import require
from record import LOG_PROBS, rich_tree
from turngym.errors import ConfigError, MissingDependency, TreeError
from turngym.tree import Kind, Origin, Tree
from turngym.tree_io import arrow_schema, load_trees, save_trees
from turngym.types import StopReason


@pytest.fixture(params=["jsonl", "parquet"])
def suffix(request: pytest.FixtureRequest) -> str:
    if request.param == "parquet":
        require("pyarrow", "turngym[data]")
    return str(request.param)


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
