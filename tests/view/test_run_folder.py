"""The run folder holds what the run said, once each, whole, and says at the start what it can't do."""

from __future__ import annotations

import asyncio
import json
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import require
from turngym.agents.branching import make_plan
from turngym.agents.policies.scripted import Oracle
from turngym.agents.rollout.collect import collect
from turngym.envs.text.corridor import Corridor
from turngym.errors import MissingDependency
from turngym.events import Measured, PhaseStarted, RunEnded, RunStarted, TreesGrown
from turngym.tasks.task import procedural
from turngym.trainers.config import TrainConfig
from turngym.tree import Tree
from turngym.tree_io import load_trees
from turngym.view.run_folder import RunFolder, run_title

CONFIG = TrainConfig().to_mapping()


def bare(folder: Path, **options: Any) -> RunFolder:
    return RunFolder(folder, **{"keep_trees_every": 0, "curve": False, "tensorboard": False, **options})


def measures(update: int) -> Mapping[str, float]:
    row = {} if update == 0 else {"rollout/success": 0.1 * update, "progress/env_steps": 50.0 * update}
    if update % 2 == 0:
        row |= {
            "eval/success": 0.3 + update / 10,
            "eval/success_low": 0.2,
            "eval/success_high": 0.9,
            "eval/tasks": 200,
        }
    return row


def play_run(view: RunFolder, first: int, last: int, reason: str = "done") -> None:
    view.on(RunStarted("train", CONFIG, first, 10))
    for update in range(first + (first > 0), last + 1):
        view.on(PhaseStarted("update"))
        view.on(Measured(update, measures(update)))
    view.on(RunEnded(reason))


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def trees() -> list[Tree]:
    tasks = procedural("turngym/Corridor-v0", fold="train", count=2)
    plan = make_plan("group", size=2)
    grown = asyncio.run(collect(tasks, Oracle(), plan, make_env=lambda task: Corridor(**task.options)))
    return [tree for tree in grown if tree is not None]


def test_metrics_are_on_disk_as_soon_as_they_are_measured(tmp_path: Path) -> None:
    view = bare(tmp_path)
    view.on(RunStarted("train", CONFIG, 0, 10))
    view.on(Measured(1, {"rollout/success": 0.5}))
    assert rows(tmp_path) == [{"update": 1, "rollout/success": 0.5}]


def test_the_configuration_is_kept_so_that_it_runs_again(tmp_path: Path) -> None:
    config = TrainConfig().override(["rollout.budget.turns=7", "optimiser.lr=1e-3"])
    bare(tmp_path / "new" / "run").on(RunStarted("train", config.to_mapping(), 0, 10))
    assert TrainConfig.load(tmp_path / "new" / "run" / "config.toml") == config


def test_none_in_a_configuration_is_left_out(tmp_path: Path) -> None:
    bare(tmp_path).on(RunStarted("eval", {"tasks": {"fold": None, "count": 3}}))
    assert tomllib.loads((tmp_path / "config.toml").read_text()) == {"tasks": {"count": 3}}


def test_the_summary_says_before_and_after(tmp_path: Path) -> None:
    play_run(bare(tmp_path), 0, 4)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["reason"] == "done"
    assert (summary["success_before"], summary["success_after"]) == (0.3, 0.7)
    assert summary["interval_before"] == summary["interval_after"] == [0.2, 0.9]
    assert (summary["updates"], summary["env_steps"], summary["held_out_tasks"]) == (4, 200, 200)


def test_a_run_that_was_killed_and_resumed_has_every_update_once(tmp_path: Path) -> None:
    killed = bare(tmp_path)
    killed.on(RunStarted("train", CONFIG, 0, 10))
    for update in range(6):  # the checkpoint is at 3: updates 4 and 5 are lost and done again
        killed.on(Measured(update, measures(update)))
    play_run(bare(tmp_path), 3, 6)
    assert [row["update"] for row in rows(tmp_path)] == [0, 1, 2, 3, 4, 5, 6]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["success_before"], summary["success_after"]) == (0.3, pytest.approx(0.9))


def test_a_new_run_does_not_go_on_with_the_metrics_of_an_old_one(tmp_path: Path) -> None:
    play_run(bare(tmp_path), 0, 4)
    play_run(bare(tmp_path), 0, 1)
    assert [row["update"] for row in rows(tmp_path)] == [0, 1]


def test_trees_are_kept_at_the_updates_asked_for(tmp_path: Path, trees: list[Tree]) -> None:
    view = bare(tmp_path, keep_trees_every=2, tree_format="jsonl")
    view.on(RunStarted("train", CONFIG, 0, 10))
    for update in range(5):
        view.on(TreesGrown(update, "train", trees))
    view.on(TreesGrown(4, "eval", trees))
    names = sorted(p.name for p in (tmp_path / "trees").iterdir())
    assert names == ["eval-000004.jsonl", "update-000000.jsonl", "update-000002.jsonl", "update-000004.jsonl"]
    assert load_trees(tmp_path / "trees" / "update-000002.jsonl") == trees


def test_trees_are_parquet_by_default(tmp_path: Path, trees: list[Tree]) -> None:
    require("pyarrow", "turngym[train]")
    view = bare(tmp_path, keep_trees_every=1)
    view.on(RunStarted("train", CONFIG, 0, 10))
    view.on(TreesGrown(12, "train", trees))
    assert load_trees(tmp_path / "trees" / "update-000012.parquet") == trees


def test_the_curve_is_redrawn_at_evaluations_alone(tmp_path: Path) -> None:
    require("matplotlib", "turngym[train]")
    view, picture = bare(tmp_path, curve=True), tmp_path / "curve.png"
    view.on(RunStarted("train", CONFIG, 0, 10))
    view.on(Measured(0, measures(0)))
    first = picture.read_bytes()
    assert first.startswith(b"\x89PNG")
    view.on(Measured(1, measures(1)))
    assert picture.read_bytes() == first
    view.on(Measured(2, measures(2)))
    assert picture.read_bytes() != first


def test_tensorboard_reads_the_same_numbers(tmp_path: Path) -> None:
    require("tensorboard", "turngym[train]")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    play_run(bare(tmp_path, tensorboard=True), 0, 4)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    found = [(e.step, e.tensor_proto.float_val[0]) for e in events.Tensors("rollout/success")]
    assert [step for step, _ in found] == [1, 2, 3, 4]
    assert np.allclose([value for _, value in found], [0.1, 0.2, 0.3, 0.4])


@pytest.mark.parametrize(
    ("package", "wanted"),
    [
        ("matplotlib", {"curve": True}),
        ("tensorboard.summary", {"tensorboard": True}),
        ("pyarrow", {"keep_trees_every": 1}),
    ],
)
def test_a_missing_package_is_named_before_the_run_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, wanted: dict[str, Any]
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependency, match=r"pip install 'turngym\[train\]'"):
        bare(tmp_path / "run", **wanted)
    assert not (tmp_path / "run").exists()


def test_a_title_says_what_was_trained_on_what() -> None:
    assert run_title(CONFIG) == "local:sprout on turngym/Corridor-v0  (grpo, group)"
    assert (
        run_title({"policy": {"spec": "scripted:oracle"}, "tasks": {"env": "X-v0"}})
        == "scripted:oracle on X-v0"
    )
