"""The prompt ledger: every task exactly once an epoch, whatever was drawn, rolled back, killed and resumed."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turngym.errors import CheckpointError, ConfigError
from turngym.tasks.task import Task
from turngym.trainers.ledger import PromptLedger


def tasks(count: int) -> list[Task]:
    return [Task(task_id=f"task {i}", env_id="e", seed=i) for i in range(count)]


def ledger(count: int = 10, *, seed: int = 0) -> PromptLedger:
    return PromptLedger(tasks(count), seed=seed)


def uninterrupted(count: int, draws: int, seed: int) -> list[str]:
    return [task.task_id for task in ledger(count, seed=seed).draw(draws)]


def test_an_epoch_holds_every_task_once_in_an_order_of_its_own() -> None:
    one = ledger(50)
    epochs = [[task.task_id for task in one.draw(50)] for _ in range(3)]
    assert all(sorted(epoch) == sorted(t.task_id for t in tasks(50)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert uninterrupted(50, 50, seed=1) != epochs[0]


def test_a_draw_runs_over_the_end_of_an_epoch() -> None:
    one = ledger(10)
    drawn = [task.task_id for _ in range(10) for task in one.draw(7)]
    assert drawn == uninterrupted(10, 70, seed=0)
    assert set(Counter(drawn).values()) == {7}
    assert [task.task_id for task in ledger(3).draw(11)] == uninterrupted(3, 11, seed=0)


step = st.tuples(st.sampled_from(["train", "fail", "checkpoint", "kill"]), st.integers(1, 12))


@given(st.integers(1, 9), st.integers(0, 3), st.lists(step, max_size=30))
@settings(max_examples=60)
def test_no_task_is_lost_or_repeated_across_failures_checkpoints_and_kills(
    count: int, seed: int, steps: list[tuple[str, int]]
) -> None:
    """A run is what its last checkpoint holds; what it trained on is a prefix of the uninterrupted order."""
    one, saved = ledger(count, seed=seed), json.dumps(ledger(count, seed=seed).state())
    trained: list[str] = []
    kept = 0
    for what, draws in steps:
        if what == "kill":  # whatever was not in the checkpoint never happened
            one = ledger(count, seed=seed)
            one.load(json.loads(saved))
            del trained[kept:]
            continue
        drawn = [task.task_id for task in one.draw(draws)]
        if what == "fail":
            one.rollback()
            continue
        one.commit()
        trained += drawn
        if what == "checkpoint":
            saved, kept = json.dumps(one.state()), len(trained)
    assert trained == uninterrupted(count, len(trained), seed)
    assert one.epoch == len(trained) / count
    counts = Counter(trained)
    assert max(counts.values(), default=0) - min((counts[t.task_id] for t in tasks(count)), default=0) <= 1


def test_what_was_drawn_and_not_committed_is_drawn_again_after_a_resume() -> None:
    one = ledger()
    one.draw(4)
    one.commit()
    state = one.state()
    lost = one.draw(3)
    resumed = ledger()
    resumed.load(state)
    assert resumed.draw(3) == lost


def test_draws_before_one_commit_add_up() -> None:
    one = ledger()
    one.draw(4)
    one.draw(3)  # a refill of tasks whose environment broke
    one.commit()
    assert one.epoch == 0.7


@pytest.mark.parametrize(("other", "named"), [(ledger(11), "tasks=10"), (ledger(10, seed=1), "seed=0")])
def test_the_state_of_another_run_is_refused(other: PromptLedger, named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        other.load(ledger().state())


def test_tasks_that_can_not_be_told_apart_are_refused() -> None:
    with pytest.raises(ConfigError, match="every task_id once"):
        PromptLedger([*tasks(2), *tasks(1)], seed=0)
    with pytest.raises(ConfigError, match="at least one task"):
        PromptLedger([], seed=0)
