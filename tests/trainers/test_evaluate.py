"""An evaluation counts what counts, keeps faults apart, and goes on where it was stopped."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from turngym.agents.branching import make_plan
from turngym.agents.loop import LoopOptions
from turngym.agents.policies.scripted import Mixture, Oracle, Replay
from turngym.agents.rollout.collect import collect
from turngym.envs.base import TurnEnv
from turngym.envs.text.corridor import Corridor
from turngym.errors import CheckpointError, ConfigError
from turngym.events import Event, PathFinished, PhaseStarted, TreesGrown
from turngym.tasks.task import Task, procedural
from turngym.trainers.evaluate import Evaluation, compare, evaluate
from turngym.types import Budget, Outcome, Reply, StopReason


class Coin(TurnEnv):
    """One turn; the seed of the reset decides whether it is won."""

    def start(self, options: Mapping[str, Any]) -> Reply:
        self.face = int(self.np_random.integers(2))
        return Reply("heads or tails?")

    def act(self, action: str) -> Reply:
        return Reply("", reward=float(self.face), terminated=True, success=self.face == 1)


class Flaky(Coin):
    """`Coin` that breaks in its first `failures` steps, over all instances."""

    failures = 0

    def act(self, action: str) -> Reply:
        if type(self).failures > 0:
            type(self).failures -= 1
            raise OSError("the coin fell through the floor")
        return super().act(action)


def coins(count: int) -> list[Task]:
    return procedural("Coin-v0", fold=None, count=count)


def corridors(count: int) -> list[Task]:
    return procedural("turngym/Corridor-v0", fold="test", count=count)


def corridor(task: Task) -> TurnEnv:
    return Corridor(**task.options)


def heads() -> Replay:
    return Replay(["heads"])


def run(
    tasks: list[Task], policy: Any, make: Callable[[Task], TurnEnv] = corridor, **kwargs: Any
) -> Evaluation:
    return asyncio.run(evaluate(tasks, policy, make_env=make, **kwargs))


class Recorder:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def on(self, event: Event) -> None:
        self.events.append(event)


def test_an_oracle_wins_everything_and_the_interval_says_how_sure_that_is() -> None:
    evaluation = run(corridors(20), Oracle())
    assert evaluation.success.value == 1.0
    assert evaluation.success.low == pytest.approx(0.789, abs=2e-3)  # see test_statistics
    metrics = evaluation.metrics()
    assert metrics["eval/outcome/success"] == metrics["eval/tasks"] == metrics["eval/attempts"] == 20
    assert metrics["eval/stop/terminated"] == 20
    assert metrics["eval/attempts_missing"] == metrics["eval/faults/env_fault"] == 0
    assert metrics["eval/env_steps"] == pytest.approx(20 * metrics["eval/turns"])


def test_attempts_differ_in_their_seeds_and_give_pass_at_k_and_pass_hat_k() -> None:
    evaluation = run(corridors(30), Mixture(0.3), attempts=6)
    summary = evaluation.summary()
    assert list(summary) == ["success", "pass@2", "pass^2", "pass@4", "pass^4", "pass@6", "pass^6"]
    assert summary["pass^6"].value < summary["pass^2"].value < summary["success"].value
    assert summary["success"].value < summary["pass@2"].value < summary["pass@6"].value
    assert any(0 < r.successes < 6 for r in evaluation.results)
    assert summary["pass@6"].value == pytest.approx(sum(r.successes > 0 for r in evaluation.results) / 30)


def test_a_path_that_a_budget_cut_is_not_solved_and_is_listed_with_its_limit() -> None:
    evaluation = run(corridors(10), Oracle(), options=LoopOptions(budget=Budget(turns=2)))
    metrics = evaluation.metrics()
    assert metrics["eval/success"] == 0
    assert metrics["eval/outcome/truncated"] == metrics["eval/stop/turns"] == 10


def test_a_fault_is_played_again_counted_apart_and_never_a_failure() -> None:
    clean = run(coins(12), heads(), lambda task: Coin(), attempts=2)
    Flaky.failures = 2
    flaky = run(coins(12), heads(), lambda task: Flaky(), attempts=2, live_paths=1)
    assert Flaky.failures == 0
    assert flaky.success == clean.success
    assert flaky.metrics()["eval/faults/env_fault"] == 2
    assert flaky.metrics()["eval/attempts"] == 24


def test_a_task_that_never_works_is_missing_not_lost() -> None:
    Flaky.failures = 3  # the first attempt and its two retries
    evaluation = run(coins(12), heads(), lambda task: Flaky(), live_paths=1)
    metrics = evaluation.metrics()
    assert metrics["eval/attempts"] == 11
    assert metrics["eval/attempts_missing"] == 1
    assert evaluation.success.tasks == 11


def test_an_environment_that_can_not_start_is_a_fault_of_every_try() -> None:
    class Dead(Coin):
        def start(self, options: Mapping[str, Any]) -> Reply:
            raise OSError("no coin")

    evaluation = run(coins(2), heads(), lambda task: Dead(), retries=1)
    assert evaluation.metrics()["eval/faults/env_fault"] == 4
    assert "eval/success" not in evaluation.metrics()
    assert evaluation.success.tasks == 0


def test_results_are_those_of_collect_with_the_same_seed() -> None:
    tasks, policy = corridors(8), Mixture(0.4)
    evaluation = run(tasks, policy, attempts=3, seed=5)
    trees = asyncio.run(collect(tasks, policy, make_plan("group", size=3), seed=5, make_env=corridor))
    wins = [sum(tree[leaf].outcome is Outcome.SUCCESS for leaf in tree.leaves) for tree in trees if tree]
    assert [r.successes for r in evaluation.results] == wins


def test_the_number_of_live_paths_changes_nothing() -> None:
    tasks = corridors(8)
    one = run(tasks, Mixture(0.4), attempts=3, live_paths=1)
    many = run(tasks, Mixture(0.4), attempts=3, live_paths=64)
    assert one.results == many.results


def test_listeners_hear_every_path_and_the_trees() -> None:
    recorder = Recorder()
    run(corridors(4), Oracle(), attempts=2, listeners=[recorder], update=7)
    assert recorder.events[0] == PhaseStarted("eval", 8)
    assert sum(isinstance(e, PathFinished) for e in recorder.events) == 8
    grown = recorder.events[-1]
    assert isinstance(grown, TreesGrown)
    assert (grown.update, grown.fold, len(grown.trees)) == (7, "eval", 4)


# ---------------------------------------------------------------------- resume


class Stopper:
    """Stops the evaluation as Ctrl-C does, after a number of paths."""

    def __init__(self, paths: int) -> None:
        self.left = paths

    def on(self, event: Event) -> None:
        if isinstance(event, PathFinished):
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt


def test_a_stopped_evaluation_goes_on_and_finds_what_an_uninterrupted_one_finds(tmp_path: Path) -> None:
    tasks, policy = corridors(20), Mixture(0.4)
    whole = run(tasks, policy, attempts=3, seed=1, live_paths=4)
    with pytest.raises(KeyboardInterrupt):
        run(tasks, policy, attempts=3, seed=1, live_paths=4, folder=tmp_path, listeners=[Stopper(31)])
    done = len((tmp_path / "results.jsonl").read_text().splitlines())
    assert 5 <= done <= 10
    recorder = Recorder()
    resumed = run(
        tasks, policy, attempts=3, seed=1, live_paths=4, folder=tmp_path, resume=True, listeners=[recorder]
    )
    assert sum(isinstance(e, PathFinished) for e in recorder.events) == (20 - done) * 3
    assert resumed.results == whole.results
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 20


def test_a_line_cut_by_a_crash_is_dropped_and_its_task_played_again(tmp_path: Path) -> None:
    whole = run(corridors(4), Oracle(), folder=tmp_path)
    path = tmp_path / "results.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    assert run(corridors(4), Oracle(), folder=tmp_path, resume=True).results == whole.results
    assert [json.loads(line)["task_id"] for line in path.read_text().splitlines()] == [
        t.task_id for t in corridors(4)
    ]


def test_a_line_that_is_no_result_is_named(tmp_path: Path) -> None:
    run(corridors(3), Oracle(), folder=tmp_path)
    path = tmp_path / "results.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], '{"task_id": "x", "attempts": 3}', lines[2]]) + "\n")
    with pytest.raises(CheckpointError, match="line 2 is no result"):
        run(corridors(3), Oracle(), folder=tmp_path, resume=True)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"attempts": 2}, "attempts = 1, this evaluation has 2"),
        ({"seed": 9}, "seed = 0, this evaluation has 9"),
        ({"options": LoopOptions(temperature=0.5)}, "options.temperature = 1.0, this evaluation has 0.5"),
        (
            {"options": LoopOptions(budget=Budget(turns=3))},
            "options.budget.turns = None, this evaluation has 3",
        ),
        ({"tasks": corridors(4)}, "tasks.count = 3, this evaluation has 4"),
        ({"policy": Mixture(0.5)}, "policy.name = 'scripted:oracle', this evaluation has 'scripted:epsilon"),
    ],
)
def test_a_folder_of_another_evaluation_is_refused_by_the_field_that_differs(
    tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    run(corridors(3), Oracle(), folder=tmp_path)
    arguments = {"tasks": corridors(3), "policy": Oracle(), **change}
    with pytest.raises(CheckpointError, match="made with") as caught:
        run(arguments.pop("tasks"), arguments.pop("policy"), folder=tmp_path, resume=True, **arguments)
    assert named in str(caught.value)


def test_a_folder_with_results_is_not_touched_without_resume(tmp_path: Path) -> None:
    run(corridors(3), Oracle(), folder=tmp_path)
    before = (tmp_path / "results.jsonl").read_bytes()
    with pytest.raises(CheckpointError, match="resume"):
        run(corridors(3), Oracle(), folder=tmp_path)
    assert (tmp_path / "results.jsonl").read_bytes() == before


def test_resume_in_an_empty_folder_starts_and_in_a_finished_one_plays_nothing(tmp_path: Path) -> None:
    first = run(corridors(3), Oracle(), folder=tmp_path / "new", resume=True)
    recorder = Recorder()
    second = run(corridors(3), Oracle(), folder=tmp_path / "new", resume=True, listeners=[recorder])
    assert not any(isinstance(e, PathFinished) for e in recorder.events)
    assert first.results == second.results


def test_resume_plays_tasks_again_whose_attempts_were_lost_to_faults(tmp_path: Path) -> None:
    Flaky.failures = 3
    broken = run(coins(5), heads(), lambda task: Flaky(), live_paths=1, folder=tmp_path)
    assert broken.metrics()["eval/attempts_missing"] == 1
    mended = run(coins(5), heads(), lambda task: Flaky(), live_paths=1, folder=tmp_path, resume=True)
    metrics = mended.metrics()
    assert metrics["eval/attempts_missing"] == 0
    assert metrics["eval/faults/env_fault"] == 3  # what broke stays counted


# ---------------------------------------------------------------------- comparing, bad input


def test_comparing_two_policies_on_the_same_tasks() -> None:
    tasks = corridors(40)
    better, worse = run(tasks, Mixture(0.05)), run(tasks, Mixture(0.8))
    result = compare(better, worse)
    assert result.difference.low > 0
    assert result.p_value < 1e-3
    assert result.difference.value == pytest.approx(better.success.value - worse.success.value)


def test_comparing_on_other_tasks_names_the_first_that_differs() -> None:
    with pytest.raises(ConfigError, match=r"differ at .*test/0"):
        compare(run(corridors(3), Oracle()), run(coins(3), heads(), lambda task: Coin()))
    with pytest.raises(ConfigError, match="one has 3, the other 2"):
        compare(run(corridors(3), Oracle()), run(corridors(2), Oracle()))


def test_bad_arguments_are_refused_before_anything_is_played(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="stands twice"):
        run([*corridors(2), corridors(1)[0]], Oracle())
    with pytest.raises(ConfigError, match="attempts ≥ 1"):
        run(corridors(1), Oracle(), attempts=0)
    with pytest.raises(ConfigError, match="at least one task"):
        run([], Oracle())
    with pytest.raises(ConfigError, match="temperature"):
        run(corridors(1), Oracle(), options=LoopOptions(temperature=-1.0), folder=tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_attempts_are_read_off_the_tree() -> None:
    evaluation = run(corridors(1), Oracle())
    (attempt,) = evaluation.results[0].attempts
    assert (attempt.outcome, attempt.stop, attempt.reward) == (Outcome.SUCCESS, StopReason.TERMINATED, 1.0)
    assert attempt.turns == evaluation.results[0].env_steps
    assert attempt.policy_tokens == evaluation.results[0].policy_tokens
