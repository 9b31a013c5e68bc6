"""The warm-up: what the script did is learnt, what it erred is not, and a run with one is resumed as any other."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from test_metrics_page import undefined
from turngym.agents.policies import load_policy
from turngym.agents.policies.local import LocalPolicy
from turngym.errors import ConfigError, HarnessFault
from turngym.events import Event, Measured
from turngym.tasks.task import procedural
from turngym.trainers.config import TrainConfig, WarmupConfig
from turngym.trainers.loop import train
from turngym.trainers.warmup import BATCH, demonstrate, warm_up

ROOMS = {"rooms": 3, "one_way": 1, "decoys": 1, "slack": 2}
SMALL = [
    "run.updates=2",
    "run.evaluate_every=2",
    "run.checkpoint_every=1",
    "tasks.held_out=4",
    "tasks.options={rooms=3, one_way=1, decoys=1, slack=2}",
    "rollout.trees=2",
    "rollout.plan_options={size=2}",
    "rollout.budget.turn_tokens=16",
    "warmup.episodes=20",
    "warmup.epochs=1",
]


def sprout() -> LocalPolicy:
    policy = load_policy("local:sprout")
    assert isinstance(policy, LocalPolicy)
    return policy


def test_errors_of_the_script_are_not_imitated() -> None:
    tasks = procedural("turngym/Corridor-v0", fold="train", count=30, options=ROOMS)
    trees = asyncio.run(demonstrate(tasks, sprout(), epsilon=0.4, seed=0))
    actions = [node for tree in trees for node in tree if node.is_action]
    imitated = [node for node in actions if node.advantage == 1.0]
    assert 0.4 < len(imitated) / len(actions) < 0.8
    assert {node.advantage for node in actions} == {None, 1.0}
    clean = asyncio.run(demonstrate(tasks[:4], sprout(), epsilon=0.0, seed=0))
    assert all(node.advantage == 1.0 for tree in clean for node in tree if node.is_action)


def test_the_policy_learns_what_the_script_does() -> None:
    tasks = procedural("turngym/Corridor-v0", fold="train", count=8, options=ROOMS)
    seen = {}
    for epochs in (1, 6):
        config = WarmupConfig(episodes=2 * BATCH, epochs=epochs, epsilon=0.0)
        seen[epochs] = asyncio.run(warm_up(sprout(), tasks, config, seed=0))
    assert seen[6]["warmup/nll"] < 0.7 * seen[1]["warmup/nll"]
    assert seen[6]["warmup/updates"] == 12
    assert seen[6]["warmup/episodes"] == 32  # more than there are tasks: those are played again
    assert undefined(seen[6]) == []


def test_a_run_warms_up_once_and_is_resumed_as_it_was(tmp_path: Path) -> None:
    rows: list[Event] = []

    class Recorder:
        def on(self, event: Event) -> None:
            rows.append(event)

    config = TrainConfig().override(SMALL)
    train(config, folder=tmp_path / "whole", listeners=[Recorder()])
    first = next(event for event in rows if isinstance(event, Measured))
    assert first.update == 0
    assert first.metrics["warmup/episodes"] == 20
    assert "eval/success" in first.metrics
    for updates in (0, 1):  # the policy after its warm-up is a checkpoint like any other
        train(config.override([f"run.updates={updates}"]), folder=tmp_path / "parts", resume=updates > 0)
    train(config, folder=tmp_path / "parts", resume=True)
    weights = [
        (tmp_path / name / "checkpoints" / "update-000002" / "policy" / "model.safetensors").read_bytes()
        for name in ("whole", "parts")
    ]
    assert weights[0] == weights[1]


def test_without_demonstrations_there_is_nothing_to_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: object, **__: object) -> list[None]:
        return [None]

    monkeypatch.setattr("turngym.trainers.warmup.collect", nothing)
    tasks = procedural("turngym/Corridor-v0", fold="train", count=1)
    with pytest.raises(HarnessFault, match="none of 1 demonstrations"):
        asyncio.run(demonstrate(tasks, sprout(), epsilon=0.0, seed=0))


@pytest.mark.parametrize(
    ("field", "value"), [("epsilon", 0.5), ("epochs", 0), ("episodes", -1), ("lr", np.inf)]
)
def test_what_makes_no_sense_is_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=field):
        WarmupConfig(**{field: value})
