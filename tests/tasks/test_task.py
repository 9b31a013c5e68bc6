"""Tasks are data: equal roots give equal tasks, folds and sets keep apart."""

from __future__ import annotations

import pytest

from rollouts import corridor
from turngym.envs.text.corridor import Layout
from turngym.errors import ConfigError
from turngym.tasks.task import procedural

ENV = "turngym/Corridor-v0"


def test_the_same_root_gives_the_same_tasks_and_more_of_them_change_none() -> None:
    few, many = procedural(ENV, fold="train", count=5), procedural(ENV, fold="train", count=50)
    assert many[:5] == few
    assert procedural(ENV, fold="train", count=5, seed=1) != few


def test_ids_and_seeds_are_unique_and_seeds_fit_32_bits() -> None:
    tasks = [
        *procedural(ENV, fold="train", count=300),
        *procedural(ENV, fold="test", count=300),
        *procedural(ENV, fold=None, count=300),
        *procedural(ENV, fold="train", count=300, options={"rooms": 5}),
    ]
    assert len({task.task_id for task in tasks}) == len(tasks)
    assert len({task.seed for task in tasks[:900]}) == 900
    assert all(0 <= task.seed < 2**31 for task in tasks)


def test_options_reach_the_environment_and_stand_in_the_id() -> None:
    (task,) = procedural(ENV, fold="test", count=1, options={"rooms": 5, "decoys": 0})
    assert task.task_id == f"{ENV}?decoys=0,rooms=5#test/0"
    assert dict(task.options) == {"rooms": 5, "decoys": 0, "fold": "test"}
    assert corridor(task).rooms == 5


def test_without_folds_the_environment_is_given_no_fold() -> None:
    (task,) = procedural(ENV, fold=None, count=1)
    assert dict(task.options) == {}
    assert task.task_id == f"{ENV}#seed/0"


def test_equal_tasks_have_equal_first_observations() -> None:
    def openings() -> list[str]:
        return [corridor(t).reset(seed=t.seed)[0] for t in procedural(ENV, fold="train", count=20)]

    assert openings() == openings()


def test_no_instance_is_in_both_folds() -> None:
    def layouts(fold: str) -> set[Layout]:
        tasks = [(corridor(task), task) for task in procedural(ENV, fold=fold, count=60)]
        for env, task in tasks:
            env.reset(seed=task.seed)
        return {env.get_state().layout for env, _ in tasks}

    assert not layouts("train") & layouts("test")


def test_an_option_that_contradicts_the_fold_is_refused() -> None:
    with pytest.raises(ConfigError, match="fold 'train' can't have the option fold='test'"):
        procedural(ENV, fold="train", count=1, options={"fold": "test"})
    assert procedural(ENV, fold="test", count=1, options={"fold": "test"})


@pytest.mark.parametrize("count", [0, -3])
def test_an_empty_set_is_refused(count: int) -> None:
    with pytest.raises(ConfigError, match="at least one task"):
        procedural(ENV, fold="train", count=count)
