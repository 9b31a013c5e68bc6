"""Many paths and many trees at once: order, the first error, bounds, and results that do not depend on either."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from rollouts import TASK, Before, Dawdle, Say, Steps, Toss, corridor, corridors, counted_leaves, void_leaves
from turngym.agents.branching import TreeBudget, make_plan
from turngym.agents.policies.scripted import Mixture
from turngym.agents.policy import Policy, Turn
from turngym.agents.rollout.collect import collect
from turngym.agents.rollout.scheduler import run_all
from turngym.envs.text.corridor import Corridor
from turngym.errors import ConfigError, EnvFault
from turngym.tasks.task import Task
from turngym.tree import Tree
from turngym.types import Reply


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL", logger="turngym")


# ---------------------------------------------------------------------- run_all


async def after(delay_s: float, result: Any) -> Any:
    await asyncio.sleep(delay_s)
    if isinstance(result, BaseException):
        raise result
    return result


def test_results_are_in_the_order_given() -> None:
    assert asyncio.run(run_all(after(0.03 - 0.01 * i, i) for i in range(3))) == [0, 1, 2]
    assert asyncio.run(run_all([])) == []


def test_the_first_error_is_raised_as_it_is_and_cancels_the_others() -> None:
    error, cause = ConfigError("wrong"), KeyError("why")
    error.__cause__ = cause
    ended: list[str] = []

    async def other() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("other")

    async def nested() -> list[Any]:
        return await run_all([other(), run_all([other(), after(0.01, error)])])

    with pytest.raises(ConfigError) as caught:
        asyncio.run(nested())
    assert caught.value is error
    assert error.__cause__ is cause
    assert ended == ["other", "other"]


def test_nothing_waits_for_a_batch() -> None:
    """With two slots, a long path and two short ones: the third starts when the first short one ends."""
    order: list[str] = []
    slots = asyncio.Semaphore(2)

    async def path(name: str, turns: int) -> None:
        async with slots:
            order.append(f"{name} starts")
            for _ in range(turns):
                await asyncio.sleep(0)
            order.append(f"{name} ends")

    async def play() -> None:
        await run_all([path("long", 20), path("short", 2), path("third", 2)])

    asyncio.run(play())
    assert order == ["long starts", "short starts", "short ends", "third starts", "third ends", "long ends"]


# ---------------------------------------------------------------------- collect


def trees(policy: Policy, *, count: int = 12, plan: str = "random_node", **options: Any) -> list[Tree | None]:
    make_env = options.pop("make_env", corridor)
    return asyncio.run(collect(corridors(count), policy, make_plan(plan), make_env=make_env, **options))


@pytest.mark.parametrize("plan", ["group", "random_node", "coin", "bisect"])
def test_trees_do_not_depend_on_how_many_paths_are_live_or_how_they_interleave(plan: str) -> None:
    serial = trees(Mixture(0.4), plan=plan, live_paths=1)
    for seed, live_paths in [(0, 1), (1, 3), (2, 64)]:
        assert trees(Dawdle(Mixture(0.4), seed), plan=plan, live_paths=live_paths) == serial


def test_a_tree_is_the_one_that_its_task_would_grow_alone() -> None:
    many = trees(Mixture(0.4), count=6)
    few = trees(Mixture(0.4), count=3)
    assert many[:3] == few


def test_trees_are_named_by_task_seed_and_place() -> None:
    grown = asyncio.run(
        collect([TASK, TASK], Toss(), make_plan("group", size=2), seed=9, make_env=lambda t: Steps())
    )
    assert [tree.rollout_id for tree in grown if tree] == ["steps@9.0", "steps@9.1"]
    assert grown[0] != grown[1]


@pytest.mark.parametrize("live_paths", [1, 2, 5])
def test_live_paths_and_open_environments_are_bounded_over_all_trees(live_paths: int) -> None:
    class Counted(Corridor):
        live = most_live = 0

        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            Counted.live += 1
            Counted.most_live = max(Counted.most_live, Counted.live)
            self.counted = True

        def close(self) -> None:
            super().close()
            Counted.live -= self.counted
            self.counted = False

    policy = Dawdle(Mixture(0.3), 0)
    trees(policy, count=8, plan="group", live_paths=live_paths, make_env=lambda task: Counted(**task.options))
    assert policy.most_live == live_paths
    assert Counted.live == 0
    # One for each live path, and one that waits at the root for its first path, for each open tree.
    assert Counted.most_live <= 2 * live_paths


def test_a_task_that_can_not_start_has_no_tree_and_the_others_go_on() -> None:
    class Dead(Corridor):
        def start(self, options: Mapping[str, Any]) -> Reply:
            raise OSError("no display")

    broken = corridors(5)[2].task_id
    grown = trees(
        Mixture(0.3),
        count=5,
        make_env=lambda task: (Dead if task.task_id == broken else Corridor)(**task.options),
    )
    assert [tree is None for tree in grown] == [False, False, True, False, False]
    assert all(counted_leaves(tree) for tree in grown if tree)


def test_an_environment_that_crashes_now_and_then_costs_only_its_own_paths() -> None:
    class Flaky(Corridor):
        acted = 0

        def act(self, action: str) -> Reply:
            Flaky.acted += 1
            if Flaky.acted % 50 == 0:
                raise EnvFault("browser is gone")
            return super().act(action)

    grown = trees(Mixture(0.3), plan="group", make_env=lambda task: Flaky(**task.options))
    assert all(tree and len(counted_leaves(tree)) == 8 for tree in grown)
    assert sum(len(void_leaves(tree)) for tree in grown if tree) == Flaky.acted // 50 > 5


def test_a_refusal_ends_everything_and_comes_out_bare() -> None:
    error = ConfigError("no such option")

    def tenth(sample: int, turn: Turn) -> None:
        if sample == 10:
            raise error

    with pytest.raises(ConfigError) as caught:
        trees(Before(Mixture(0.3), tenth))
    assert caught.value is error


def test_budgets_hold_for_each_tree() -> None:
    grown = trees(Mixture(0.4), plan="bisect", budget=TreeBudget(leaves=11))
    assert [len(counted_leaves(tree)) for tree in grown if tree] == [11] * 12


@pytest.mark.parametrize("live_paths", [0, -1])
def test_no_live_paths_at_all_are_refused(live_paths: int) -> None:
    with pytest.raises(ConfigError, match="live_paths must be at least 1"):
        trees(Say(), live_paths=live_paths)


def test_no_tasks_give_no_trees() -> None:
    assert asyncio.run(collect([], Say(), make_env=lambda task: Steps())) == []


def test_interrupting_closes_every_environment() -> None:
    class Steady(Steps):
        pass

    async def interrupted(tasks: list[Task]) -> None:
        collecting = asyncio.create_task(
            collect(
                tasks, Dawdle(Toss(), 0), make_plan("random_node"), make_env=lambda task: Steady(length=30)
            )
        )
        for _ in range(25):
            await asyncio.sleep(0)
        assert Steady.opened > Steady.closed
        collecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await collecting
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(interrupted([TASK] * 6))
    assert Steady.opened == Steady.closed
