"""Whole training runs with the default policy: resumed runs, interrupted runs, runs with broken environments."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from test_metrics_page import undefined
from turngym.envs.base import Forking
from turngym.envs.text.corridor import Corridor
from turngym.errors import CheckpointError, ConfigError, EnvFault, HarnessFault, UnknownName
from turngym.events import Event, Measured, RunEnded, TreesGrown
from turngym.registry import register
from turngym.trainers.config import TrainConfig
from turngym.trainers.evaluate import Evaluation, evaluate
from turngym.trainers.loop import Trainer, train
from turngym.types import Reply
from turngym.view.run_folder import RunFolder

SMALL = [
    "run.updates=4",
    "run.evaluate_every=2",
    "run.checkpoint_every=2",
    "tasks.held_out=6",
    "tasks.options={rooms=3, one_way=1, decoys=1, slack=2}",
    "rollout.trees=2",
    "rollout.plan_options={size=3}",
    "rollout.budget.turn_tokens=16",
]


def small(*settings: str) -> TrainConfig:
    return TrainConfig().override([*SMALL, *settings])


class Recorder:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def on(self, event: Event) -> None:
        self.events.append(event)

    def metrics(self) -> dict[int, dict[str, float]]:
        return {e.update: dict(e.metrics) for e in self.events if isinstance(e, Measured)}


def weights(folder: Path, update: int) -> bytes:
    return (folder / "checkpoints" / f"update-{update:06d}" / "policy" / "model.safetensors").read_bytes()


def comparable(metrics: dict[str, float]) -> dict[str, float]:
    return {
        k: v
        for k, v in metrics.items()
        if not k.startswith("time/") and "seconds" not in k and k != "progress/train_s"
    }


def test_a_resumed_run_is_the_uninterrupted_run(tmp_path: Path) -> None:
    straight, first, second = Recorder(), Recorder(), Recorder()
    result = train(small(), folder=tmp_path / "a", listeners=[straight])
    train(small("run.updates=2"), folder=tmp_path / "b", listeners=[first])
    resumed = train(small(), folder=tmp_path / "b", listeners=[second], resume=True)
    assert weights(tmp_path / "a", 4) == weights(tmp_path / "b", 4)
    assert (result.env_steps, result.policy_tokens) == (resumed.env_steps, resumed.policy_tokens)
    for update in (3, 4):
        assert comparable(straight.metrics()[update]) == comparable(second.metrics()[update])
    assert weights(tmp_path / "a", 2) != weights(tmp_path / "a", 4)


def test_a_run_that_is_stopped_in_an_evaluation_makes_up_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rows(folder: Path) -> list[dict[str, float]]:
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        return [comparable(json.loads(line)) for line in lines]

    def listeners(folder: Path) -> list[RunFolder]:
        return [RunFolder(folder, curve=False, tensorboard=False, keep_trees_every=0)]

    async def stopped_at_two(*args: Any, update: int, **kwargs: Any) -> Evaluation:
        if update == 2:
            raise asyncio.CancelledError
        return await evaluate(*args, update=update, **kwargs)

    straight, broken = tmp_path / "a", tmp_path / "b"
    train(small(), folder=straight, listeners=listeners(straight))
    with monkeypatch.context() as patch:
        patch.setattr("turngym.trainers.loop.evaluate", stopped_at_two)
        with pytest.raises(asyncio.CancelledError):
            train(small(), folder=broken, listeners=listeners(broken))
    assert [row["update"] for row in rows(broken)] == [0, 1, 2]
    assert "eval/success" not in rows(broken)[2]
    train(small(), folder=broken, listeners=listeners(broken), resume=True)
    assert rows(broken) == rows(straight)
    assert weights(straight, 4) == weights(broken, 4)


def test_a_plan_that_the_environment_can_not_honour_is_refused_at_once(tmp_path: Path) -> None:
    recorder = Recorder()
    coin = ["rollout.plan=coin", "rollout.plan_options={roots=2, probability=0.5}"]
    with pytest.raises(ConfigError, match="forking=none"):
        train(small("tasks.env=tests/NoForks-v0", *coin), folder=tmp_path, listeners=[recorder])
    assert recorder.events == []


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (["credit.rule=pvpo"], "prior_value"),
        (["credit.rule=otb"], "score_norm"),
        (["credit.rule=ui_s1"], "match"),
        (["credit.shaping.trusted_judge.weight=0.5"], "judge"),
    ],
)
def test_credit_that_reads_what_nobody_writes_is_refused_at_once(
    settings: list[str], key: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=rf"metrics\['{key}'\]"):
        train(small("credit.options={}", *settings), folder=tmp_path)


def test_what_shaping_remembers_is_resumed(tmp_path: Path) -> None:
    once = ["run.updates=1", "run.checkpoint_every=1", "run.evaluate_every=9", "tasks.held_out=2"]
    config = small(*once, "run.updates=2", "tasks.train=2", "credit.shaping.meds.by=actions")
    straight = Recorder()
    train(config, folder=tmp_path / "a", listeners=[straight])
    train(config.override(once[:1]), folder=tmp_path / "b")
    train(config, folder=tmp_path / "b", resume=True)
    assert weights(tmp_path / "a", 2) == weights(tmp_path / "b", 2)
    a, b = (
        json.loads((tmp_path / run / "checkpoints/update-000002/run.json").read_text())["shaping"]
        for run in ("a", "b")
    )
    assert a == b
    assert (a["updates"], len(a["failures"])) == (2, 2)
    assert all("shaping/meds" in straight.metrics()[update] for update in (1, 2))


def test_a_critic_resumes_to_the_bit_and_learns_before_the_policy_does(tmp_path: Path) -> None:
    settings = ["credit.rule=tree_value", "critic.kind=probe", "critic.warmup=1", "run.checkpoint_every=1"]
    straight, second = Recorder(), Recorder()
    train(small(*settings, "run.updates=2"), folder=tmp_path / "a", listeners=[straight])
    train(small(*settings, "run.updates=1"), folder=tmp_path / "b")
    train(small(*settings, "run.updates=2"), folder=tmp_path / "b", listeners=[second], resume=True)
    assert weights(tmp_path / "a", 2) == weights(tmp_path / "b", 2)
    found = [
        torch.load(tmp_path / run / "checkpoints" / "update-000002" / "critic.pt", weights_only=True)
        for run in ("a", "b")
    ]
    assert all(
        torch.equal(found[0]["weights"][name], found[1]["weights"][name]) for name in found[0]["weights"]
    )
    metrics = straight.metrics()
    assert comparable(metrics[2]) == comparable(second.metrics()[2])
    assert metrics[0]["critic/targets"] > 0  # the warm-up, before the evaluation of update 0
    assert metrics[0]["progress/env_steps"] > 0
    assert undefined(metrics[0] | metrics[2]) == []
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "a" / "checkpoints" / "update-000002" / "policy")
    assert not any("head" in name.removeprefix("lm_head") for name in saved.state_dict())


def test_no_task_is_lost_or_repeated_across_a_resume(tmp_path: Path) -> None:
    first, second = Recorder(), Recorder()
    config = small("tasks.train=8")
    train(config.override(["run.updates=2"]), folder=tmp_path, listeners=[first])
    train(config, folder=tmp_path, listeners=[second], resume=True)
    seen = [
        tree.task_id
        for recorder in (first, second)
        for event in recorder.events
        if isinstance(event, TreesGrown) and event.fold == "train"
        for tree in event.trees
    ]
    assert len(seen) == 8 == len(set(seen))


GROUP = ["rollout.plan=group", "rollout.plan_options={size=3}"]


@pytest.mark.parametrize(
    "settings",
    [
        ["credit.rule=tree", "rollout.plan=coin", "rollout.plan_options={roots=2, probability=0.3}"],
        ["credit.rule=elpo", "rollout.plan=bisect", "rollout.plan_options={roots=3}"],
        ["credit.rule=tree_grpo", "rollout.plan=random_node", "rollout.plan_options={roots=2, draws=2}"],
        [*GROUP, "credit.rule=graph"],
        [*GROUP, "credit.rule=gigpo"],
        [*GROUP, "policy.lora_rank=2", "loss.kl=0.01", "loss.entropy=0.01"],
        [*GROUP, "loss.aggregation=constant", "loss.horizon=64", "credit.rule=dr_grpo"],
    ],
    ids=["tree", "elpo", "tree_grpo", "graph", "gigpo", "lora", "constant"],
)
def test_every_way_to_train_runs_and_resumes(settings: list[str], tmp_path: Path) -> None:
    plain = [s for s in SMALL if not s.startswith("rollout.plan_options")]
    config = TrainConfig().override([*plain, *settings, "run.updates=1"])
    train(config, folder=tmp_path)
    result = train(config.override(["run.updates=2"]), folder=tmp_path, resume=True)
    assert result.updates == 2


def test_a_learning_rate_of_zero_keeps_the_log_prob_gap_at_noise(tmp_path: Path) -> None:
    """What the engine recorded and what the learner computes agree on every token, update after update."""
    recorder = Recorder()
    train(small("optimiser.lr=0.0", "loss.entropy=0.001"), folder=tmp_path, listeners=[recorder])
    for update, metrics in recorder.metrics().items():
        if update:
            assert abs(metrics["ratio/max"] - 1) < 1e-3
            assert metrics["kl/behaviour_k3"] < 1e-6


def test_the_next_batch_is_sampled_by_the_updated_weights(tmp_path: Path) -> None:
    """With a real learning rate, too, the first ratio of each batch is 1: no stale cache, no stale weights."""
    recorder = Recorder()
    train(small("optimiser.lr=0.003", "loss.entropy=0.001"), folder=tmp_path, listeners=[recorder])
    assert all(abs(m["ratio/max"] - 1) < 1e-3 for u, m in recorder.metrics().items() if u)
    versions = [
        int(node.version.max())
        for event in recorder.events
        if isinstance(event, TreesGrown) and event.fold == "train"
        for tree in event.trees
        for node in tree
        if node.is_action
    ]
    assert sorted(set(versions)) == [0, 1, 2, 3]


class Fragile(Corridor):
    """Breaks now and then in its second turn, for no fault of the policy."""

    def act(self, action: str) -> Reply:
        if self._state.turn == 2 and len(self._state.layout.keys[0][0]) == 4:  # a blue or a gold door
            raise RuntimeError("the machine room is on fire")
        return super().act(action)


class Broken(Corridor):
    def act(self, action: str) -> Reply:
        raise OSError("no such device")


register("turngym/TestFragile-v0", f"{__name__}:Fragile", description="for tests")


class NoForks(Corridor):
    forking = Forking.NONE


register("tests/NoForks-v0", f"{__name__}:NoForks", description="for tests")
register("turngym/TestBroken-v0", f"{__name__}:Broken", description="for tests")


def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])


def test_a_crash_inside_an_environment_voids_that_path_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _importable(monkeypatch)
    recorder = Recorder()
    settings = [
        "tasks.env=turngym/TestFragile-v0",
        "run.updates=2",
        "rollout.trees=4",
        "rollout.max_fault_share=0.9",
    ]
    train(small(*settings), folder=tmp_path, listeners=[recorder])
    metrics = recorder.metrics()
    assert metrics[1]["faults/paths"] + metrics[2]["faults/paths"] > 0
    for event in recorder.events:
        if isinstance(event, TreesGrown) and event.fold == "train":
            for tree in event.trees:
                for leaf in tree.leaves:
                    if tree.void(leaf):
                        assert tree[leaf].advantage is None


def test_environments_that_always_break_stop_the_run_and_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _importable(monkeypatch)
    recorder = Recorder()
    with pytest.raises((HarnessFault, EnvFault)):
        train(small("tasks.env=turngym/TestBroken-v0"), folder=tmp_path, listeners=[recorder])
    assert any(isinstance(e, RunEnded) and e.reason != "done" for e in recorder.events)


def test_a_run_is_not_written_over(tmp_path: Path) -> None:
    train(small("run.updates=1"), folder=tmp_path)
    with pytest.raises(CheckpointError, match="resume"):
        Trainer(small(), folder=tmp_path)


def test_a_resume_with_another_configuration_names_the_field(tmp_path: Path) -> None:
    train(small("run.updates=1"), folder=tmp_path)
    with pytest.raises(CheckpointError, match=r"optimiser\.lr"):
        Trainer(small("optimiser.lr=0.1"), folder=tmp_path, resume=True)
    with pytest.raises(CheckpointError, match="no checkpoint"):
        Trainer(small(), folder=tmp_path / "elsewhere", resume=True)


@pytest.mark.parametrize(
    ("setting", "error", "words"),
    [
        ("credit.rule=gpro", UnknownName, "grpo"),
        ("rollout.plan=grup", UnknownName, "group"),
        ("loss.name=poo", UnknownName, "ppo"),
        ("policy.spec=local:spruot", ConfigError, "sprout"),
        ("policy.spec=scripted:oracle", ConfigError, "local"),
        ("tasks.env=turngym/Coridor-v0", UnknownName, "Corridor"),
        ("rollout.temperature=0.0", ConfigError, "temperature"),
        ("credit.rule=turn_gae", ConfigError, "turn_gae needs a critic"),
        ("critic.kind=probe", ConfigError, "grpo reads no critic"),
    ],
)
def test_what_can_t_be_honoured_is_refused_at_the_start(
    setting: str, error: type[Exception], words: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=words):
        train(small(setting), folder=tmp_path)


def _start(folder: Path, *flags: str) -> subprocess.Popen[bytes]:
    sets = [part for s in [*SMALL, "run.updates=40", "run.checkpoint_every=1"] for part in ("--set", s)]
    recipe = folder.parent / "recipe.toml"
    recipe.write_text("")
    command = [
        sys.executable,
        "-m",
        "turngym",
        "train",
        str(recipe),
        "--out",
        str(folder),
        "--quiet",
        *sets,
        *flags,
    ]
    return subprocess.Popen(command, stderr=subprocess.PIPE, env=os.environ | {"OMP_NUM_THREADS": "1"})


def _wait_for_update(process: subprocess.Popen[bytes], folder: Path, update: int) -> None:
    deadline = time.monotonic() + 120
    while not any(p.name >= f"update-{update:06d}" for p in folder.glob("checkpoints/update-*")):
        assert process.poll() is None, process.stderr and process.stderr.read().decode()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _last_update(folder: Path) -> int:
    newest = max(folder.glob("checkpoints/update-*"))
    state: dict[str, Any] = json.loads((newest / "run.json").read_text())
    assert torch.load(newest / "state.pt", weights_only=True)["updates_done"] == state["update"]
    return int(state["update"])


def test_ctrl_c_stops_cleanly_and_the_run_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = _start(folder)
    _wait_for_update(process, folder, 2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors.decode()
    assert b"--resume" in errors
    reached = _last_update(folder)
    config = TrainConfig().override([*SMALL, f"run.updates={reached + 1}", "run.checkpoint_every=1"])
    assert train(config, folder=folder, resume=True).updates == reached + 1


def test_a_killed_run_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = _start(folder)
    _wait_for_update(process, folder, 2)
    time.sleep(0.3)
    process.kill()
    process.communicate()
    reached = _last_update(folder)
    config = TrainConfig().override([*SMALL, f"run.updates={reached + 1}", "run.checkpoint_every=1"])
    assert train(config, folder=folder, resume=True).updates == reached + 1
