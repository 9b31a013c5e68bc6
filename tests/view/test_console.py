"""The console shows where a run stands: live in a terminal, as lines elsewhere."""

from __future__ import annotations

import asyncio
import io

import pytest
from rich.console import Console

from turngym.agents.branching import make_plan
from turngym.agents.policies.scripted import Oracle
from turngym.agents.rollout.collect import collect
from turngym.envs.text.corridor import Corridor
from turngym.events import Event, Measured, PathFinished, PhaseStarted, RunEnded, RunStarted, TreesGrown
from turngym.tasks.task import procedural
from turngym.trainers.config import TrainConfig
from turngym.tree import Kind, Origin, Tree
from turngym.types import Outcome, StopReason
from turngym.view.console import ConsoleView, duration, frame
from turngym.view.progress import Progress

CONFIG = TrainConfig().to_mapping()
EVAL = {"eval/success": 0.51, "eval/success_low": 0.44, "eval/success_high": 0.58}


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def forked() -> Tree:
    """Root 0, action 1 (3 tokens) and observation 2, then two actions: leaf 3 (2 tokens) won, leaf 4 (5) void."""
    tree = Tree(task_id="t", rollout_id="t@0")
    tree.add(-1, Kind.OBSERVATION, [1], origin=Origin.ENV)
    tree.add(0, Kind.ACTION, [1, 2, 3], origin=Origin.SAMPLED, logprobs=[0.0] * 3)
    tree.add(1, Kind.OBSERVATION, [1], origin=Origin.ENV)
    tree.add(2, Kind.ACTION, [1, 2], origin=Origin.SAMPLED, logprobs=[0.0] * 2)
    tree.add(2, Kind.ACTION, [1, 2, 3, 4, 5], origin=Origin.SAMPLED, logprobs=[0.0] * 5)
    tree[3].stop, tree[3].outcome = StopReason.TERMINATED, Outcome.SUCCESS
    tree[4].stop, tree[4].outcome = StopReason.ENV_FAULT, Outcome.ENV_FAULT
    return tree


def training(clock: Clock) -> list[Event]:
    return [
        RunStarted("train", CONFIG, 0, 10),
        Measured(0, EVAL),
        PhaseStarted("rollout"),
        TreesGrown(1, "train", [forked()]),
        Measured(
            1,
            {
                "rollout/success": 0.25,
                "rollout/reward": 0.3,
                "progress/env_steps": 1500.0,
                "progress/policy_tokens": 2e6,
            },
        ),
        PhaseStarted("rollout"),
        Measured(
            2,
            {
                "rollout/success": 0.75,
                "rollout/reward": 0.8,
                "progress/env_steps": 3000.0,
                "progress/policy_tokens": 4e6,
            }
            | EVAL,
        ),
    ]


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def lines_console() -> Console:
    return Console(file=io.StringIO(), width=120)


def test_a_shared_prefix_is_counted_once_and_a_phase_starts_at_zero() -> None:
    progress, tree = Progress(Clock()), forked()
    progress.take(PhaseStarted("rollout"))
    progress.take(PathFinished(tree, 3))
    progress.take(PathFinished(tree, 4))
    assert (progress.paths, progress.successes) == (2, 1)
    assert (progress.tokens, progress.env_steps) == (3 + 2 + 5, 3)
    progress.take(PhaseStarted("eval", 8))
    assert (progress.paths, progress.tokens, progress.phase_total) == (0, 0, 8)


def test_paths_that_finish_in_another_order_than_they_grew_are_counted_in_full() -> None:
    progress, tree = Progress(Clock()), forked()
    progress.take(PathFinished(tree, 4))
    progress.take(PathFinished(tree, 3))
    assert progress.tokens == 3 + 2 + 5


def test_the_remaining_time_follows_the_pace_of_this_process() -> None:
    clock = Clock()
    progress = Progress(clock)
    progress.take(RunStarted("train", CONFIG, 4, 10))
    assert progress.remaining_s is None
    clock.now = 30.0
    progress.take(Measured(6, {}))  # two updates in 30 s, four to go
    assert progress.remaining_s == pytest.approx(60)
    progress.take(RunStarted("eval", {}))
    progress.take(PhaseStarted("eval", 10))
    progress.take(PathFinished(forked(), 3))
    clock.now += 5
    assert progress.remaining_s == pytest.approx(45)


def test_faults_of_the_whole_run_are_shown() -> None:
    progress = Progress(Clock())
    for event in training(Clock()):
        progress.take(event)
    assert progress.all_faults == 1


def test_the_live_display_names_everything() -> None:
    clock = Clock()
    progress = Progress(clock)
    for event in training(clock):
        progress.take(event)
    clock.now = 192.0
    console = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=100)
    console.print(frame(progress))
    text = shown(console)
    for part in (
        "training local:sprout on turngym/Corridor-v0  (grpo, group)",
        "update 2/10",
        "3:12 gone, 12:48 to go",
        "growing trees",
        "0.528",  # (0.8 · 0.2 · 0.25 + 0.2 · 0.75) / 0.36
        "reward     0.800",
        "0.510 [0.440, 0.580] after update 2, 0.510 at the start",
        "3k env steps, 4M tokens",
        "faults     1",
    ):
        assert part in text


def test_without_a_terminal_every_update_is_a_line() -> None:
    console, clock = lines_console(), Clock()
    with ConsoleView(console, clock=clock) as view:
        for event in training(clock):
            view.on(event)
        view.on(RunEnded("interrupted"))
    lines = shown(console).splitlines()
    assert lines[0] == "training local:sprout on turngym/Corridor-v0  (grpo, group)"
    assert lines[1] == "update 0/10  held-out 0.510 [0.440, 0.580]  0:00"
    assert (
        lines[2] == "update 1/10  success 0.250 (average 0.250)  reward 0.300  1.5k env steps  1 faults  0:00"
    )
    assert "held-out 0.510 [0.440, 0.580]" in lines[3]
    assert len(lines) == 4  # whoever started the run says why it ended


def test_a_long_evaluation_speaks_now_and_then() -> None:
    console, clock = lines_console(), Clock()
    view = ConsoleView(console, clock=clock)
    view.on(RunStarted("eval", {"policy": {"spec": "scripted:oracle"}, "tasks": {"env": "X-v0"}}))
    view.on(PhaseStarted("eval", 100))
    for _ in range(100):
        clock.now += 1.0
        view.on(PathFinished(forked(), 3))
    lines = shown(console).splitlines()
    assert lines[0] == "evaluating scripted:oracle on X-v0"
    assert lines[1] == "31/100 paths · 100% solved · 0 tokens/s"
    assert len(lines) == 1 + 3


def test_the_live_display_stops_when_the_run_raises() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)

    def run() -> None:
        with ConsoleView(console) as view:
            view.on(RunStarted("train", CONFIG, 0, 10))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        run()
    assert shown(console).rstrip("\n").endswith("\x1b[?25h")  # the cursor is back


def test_a_run_is_the_same_with_and_without_a_console() -> None:
    tasks = procedural("turngym/Corridor-v0", fold="train", count=3)

    def grow(view: ConsoleView | None) -> list[Tree | None]:
        return asyncio.run(
            collect(
                tasks,
                Oracle(),
                make_plan("group", size=2),
                make_env=lambda task: Corridor(**task.options),
                on_leaf=lambda tree, leaf: view.on(PathFinished(tree, leaf)) if view else None,
            )
        )

    assert grow(ConsoleView(lines_console())) == grow(None)


def test_durations() -> None:
    assert [duration(s) for s in (0, 59.9, 60, 3599, 3600, 90061)] == [
        "0:00",
        "0:59",
        "1:00",
        "59:59",
        "1:00:00",
        "25:01:01",
    ]
