"""Growing a tree: forks are equal and isolated, faults are played again and never count, and a seed is a tree."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from rollouts import (
    TASK,
    Before,
    Dawdle,
    Say,
    Steps,
    Toss,
    Watch,
    Wrapped,
    corridor,
    corridors,
    counted_leaves,
    void_leaves,
)
from turngym.agents.branching import Decisions, Fork, Plan, Purse, TreeBudget, make_plan, root_only
from turngym.agents.grow import grow
from turngym.agents.loop import LoopOptions
from turngym.agents.policies.scripted import Mixture, Oracle, Replay
from turngym.agents.policy import Policy, Sample, SampleParams, Turn
from turngym.envs.base import Forking, TurnEnv
from turngym.envs.text.corridor import Corridor
from turngym.errors import ConfigError, EnvFault, HarnessFault
from turngym.tasks.task import Task
from turngym.trainers.metrics import rollout_metrics
from turngym.tree import Kind, Tree
from turngym.types import Budget, IntArray, Outcome, Reply, StopReason


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Faults are logged, which is for people and not for the report of a test that wants them."""
    caplog.set_level("CRITICAL", logger="turngym")


def steps(env_class: type[Steps] = Steps, *, length: int = 4) -> Callable[[Task], Steps]:
    return lambda task: env_class(length=length)


def grown(policy: Policy, plan: Plan, make_env: Callable[[Task], TurnEnv], **options: Any) -> Tree:
    return asyncio.run(grow(TASK, policy, plan, make_env=make_env, **options))


def plan_of(*rounds: list[Fork]) -> Plan:
    """Plays `rounds`, whatever comes of them."""

    def plan(tree: Tree, purse: Purse, rng: np.random.Generator) -> Decisions:
        for forks in rounds:  # noqa: UP028 - a tuple's iterator takes no leaves
            yield forks

    return plan


def replaying() -> type[Steps]:
    class Replaying(Steps):
        forking = Forking.REPLAY

    return Replaying


def forkless() -> type[Steps]:
    class Forkless(Steps):
        forking = Forking.NONE

    return Forkless


def exact() -> type[Steps]:
    class Exact(Steps):
        pass

    return Exact


GROUND = {"exact": exact, "replay": replaying}
PLANS = {
    "group": make_plan("group", size=6),
    "random_node": make_plan("random_node", roots=3, draws=3, rounds=2),
    "coin": make_plan("coin", roots=3, probability=0.5, width=2),
    "bisect": make_plan("bisect", roots=6, suffixes_max=4),
}


# ---------------------------------------------------------------------- forks


@pytest.mark.parametrize("ground", GROUND)
@pytest.mark.parametrize("plan", PLANS)
def test_every_fork_stands_in_the_state_of_its_decision_point(ground: str, plan: str) -> None:
    seen: list[tuple[bytes, str, str]] = []

    class Looks(Wrapped):
        async def sample(
            self, context_ids: IntArray, params: SampleParams, turn: Turn | None = None
        ) -> Sample:
            assert turn is not None
            seen.append((context_ids.tobytes(), turn.env.state_key(), turn.observation))
            return await super().sample(context_ids, params, turn)

    tree = grown(
        Looks(Toss()), PLANS[plan], steps(GROUND[ground]()), seed=3, options=LoopOptions(state_keys=True)
    )
    keys = {tree.context(n.index).tobytes(): n.state_key for n in tree if n.kind is Kind.OBSERVATION}
    assert len(seen) == sum(n.is_action for n in tree)
    assert len({context for context, *_ in seen}) > 4
    for context, key, observation in seen:
        assert key == keys[context]
        assert observation.encode() in bytes(i for i in np.frombuffer(context, np.int32) if i < 256)


@pytest.mark.parametrize("ground", GROUND)
def test_equal_actions_after_a_fork_give_equal_observations(ground: str) -> None:
    # Both children of every decision point say the same, so the game's random numbers must be the same as well.
    forks = [[Fork(0, 1)], *([Fork(2 * turn, 1)] for turn in range(4))]
    tree = grown(Say("win"), plan_of(*forks), steps(GROUND[ground]()))
    first, *others = counted_leaves(tree)
    assert len(others) == 4
    for leaf in others:
        assert tree.context(leaf).tolist() == tree.context(first).tolist()


@pytest.mark.parametrize(("ground", "replayed"), [("exact", 0), ("replay", 0 + 1 + 2 + 3)])
def test_a_fork_costs_the_steps_that_it_replays(ground: str, replayed: int) -> None:
    env_class = GROUND[ground]()
    forks = [[Fork(0, 1)], [Fork(0, 1), Fork(2, 1), Fork(4, 1), Fork(6, 1)]]
    tree = grown(Say(), plan_of(*forks), steps(env_class))
    played = 4 + (4 + 3 + 2 + 1)
    assert tree.meta["env_steps"] == env_class.stepped == played + replayed


def test_an_asynchronous_environment_forks_by_replay_inside_of_the_event_loop() -> None:
    class Remote(TurnEnv):
        forking = Forking.REPLAY

        async def start_async(self, options: Mapping[str, Any]) -> Reply:
            await asyncio.sleep(0)
            self.turn = 0
            return Reply("go")

        async def act_async(self, action: str) -> Reply:
            await asyncio.sleep(0)
            self.turn += 1
            return Reply("on", terminated=self.turn == 4, success=True)

    tree = grown(Say(), plan_of([Fork(0, 1)], [Fork(4, 2)]), lambda task: Remote())
    assert len(counted_leaves(tree)) == 3
    assert not void_leaves(tree)


def test_an_environment_without_forks_grows_root_groups() -> None:
    env_class = forkless()
    tree = grown(Say(), make_plan("group", size=5), steps(env_class))
    assert len(tree.children(0)) == 5
    assert [tree[leaf].outcome for leaf in tree.leaves] == [Outcome.SUCCESS] * 5
    assert env_class.opened == 5  # the environment that planted the root plays the first path


@pytest.mark.parametrize("plan", ["random_node", "coin", "bisect"])
def test_an_environment_without_forks_refuses_other_plans_at_the_start(plan: str) -> None:
    env_class = forkless()
    with pytest.raises(ConfigError, match=r"forking=none.*group"):
        grown(Say(), PLANS[plan], steps(env_class))
    assert env_class.stepped == 0
    assert env_class.opened == env_class.closed


def test_a_plan_of_ones_own_can_declare_that_it_stays_at_the_root() -> None:
    @root_only
    def until_won(tree: Tree, purse: Purse, rng: np.random.Generator) -> Decisions:
        won = False
        while not won:
            leaves = yield [Fork(0, 2)]
            won = any(tree[leaf].outcome is Outcome.SUCCESS for leaf in leaves)

    tree = grown(Toss(), until_won, steps(forkless()), budget=TreeBudget(leaves=40))
    assert any(tree[leaf].outcome is Outcome.SUCCESS for leaf in tree.leaves)


@pytest.mark.parametrize("node", [1, 8])
def test_a_fork_where_no_path_can_start_is_refused(node: int) -> None:
    # Node 1 is an action; node 8 is the observation at which the turn budget ended the path.
    options = LoopOptions(budget=Budget(turns=4))
    with pytest.raises(ConfigError, match=r"the plan forks at Node\(.*no path can start"):
        grown(Say(), plan_of([Fork(0, 1)], [Fork(node, 1)]), steps(length=9), options=options)


def test_a_plan_that_breaks_its_word_to_stay_at_the_root_is_refused() -> None:
    with pytest.raises(ConfigError, match="declare no plan root_only that forks below the root"):
        grown(Say(), root_only(plan_of([Fork(0, 1)], [Fork(2, 1)])), steps())


def test_an_environment_that_starts_differently_from_one_seed_is_a_diverged_fork() -> None:
    class Drifts(forkless()):  # type: ignore[misc]
        def start(self, options: Mapping[str, Any]) -> Reply:
            return Reply(f"instance {type(self).opened}")

    tree = grown(Say(), make_plan("group", size=3), steps(Drifts), retries=1)
    assert len(counted_leaves(tree)) == 1  # the environment that planted the root
    assert len(void_leaves(tree)) == 4
    assert all("ForkDiverged" in tree[leaf].log["fault"] for leaf in void_leaves(tree))
    assert Drifts.opened == Drifts.closed == 5


def test_a_replay_that_diverges_voids_the_fork() -> None:
    class Drifts(replaying()):  # type: ignore[misc]
        def act(self, action: str) -> Reply:
            reply = super().act(action)
            return Reply(f"{reply.text} of {id(self)}", reply.reward, reply.terminated, success=reply.success)

    tree = grown(Say(), plan_of([Fork(0, 1)], [Fork(4, 1)]), steps(Drifts), retries=0)
    assert len(counted_leaves(tree)) == 1
    (leaf,) = void_leaves(tree)
    assert tree[leaf].parent == 4
    assert tree[leaf].stop is StopReason.ENV_FAULT
    assert "turn 1" in tree[leaf].log["fault"]


def test_no_snapshot_outlives_the_growth() -> None:
    tree = grown(Toss(), PLANS["random_node"], steps())
    assert all(node.snapshot is None for node in tree)


def test_plans_that_stay_at_the_root_take_no_snapshots_inside() -> None:
    class Copies(exact()):  # type: ignore[misc]
        copied = 0

        def copy_state(self, state: Any) -> Any:
            Copies.copied += 1
            return state

    grown(Say(), make_plan("group", size=3), steps(Copies))
    assert Copies.copied == 1 + 2  # taken once at the root, put back for every path but the first


# ---------------------------------------------------------------------- faults


class Faulty:
    """Breaks the calls whose numbers it is given, over all environments that share it."""

    def __init__(self, *calls: int) -> None:
        self.calls, self.count = set(calls), 0

    def __call__(self) -> None:
        self.count += 1
        if self.count in self.calls:
            raise OSError("connection reset")


def flaky_game(
    faulty: Faulty, *, start: bool = False, state: bool = False, close: bool = False
) -> type[Corridor]:
    """Corridor that breaks in `act`, or in the hook named."""

    class Flaky(Corridor):
        def act(self, action: str) -> Reply:
            if not (start or state or close):
                faulty()
            return super().act(action)

        def start(self, options: Mapping[str, Any]) -> Reply:
            if start:
                faulty()
            return super().start(options)

        def set_state(self, state_: Any) -> None:
            if state:
                faulty()
            super().set_state(state_)

        def close(self) -> None:
            super().close()
            if close:
                faulty()

    return Flaky


def play_corridor(
    env_class: type[Corridor], policy: Policy | None = None, plan: Plan | None = None, **more: Any
) -> Tree:
    (task,) = corridors(1)
    plan = plan or make_plan("group", size=4)
    make = more.pop("make_env", lambda task: env_class(**task.options))
    return asyncio.run(grow(task, policy or Oracle(), plan, make_env=make, **more))


@pytest.mark.parametrize("hook", ["act", "set_state"])
def test_a_fault_is_played_again_and_touches_no_statistic(hook: str) -> None:
    clean = rollout_metrics([play_corridor(Corridor)])
    tree = play_corridor(flaky_game(Faulty(2, 3), state=hook == "set_state"))
    metrics = rollout_metrics([tree])
    assert len(void_leaves(tree)) == metrics["faults/paths"] == metrics["stop/env_fault"] == 2
    for key in ("rollout/success", "rollout/reward", "rollout/turns", "rollout/paths", "rollout/path_tokens"):
        assert metrics[key] == clean[key]
    assert metrics["rollout/success"] == 1
    assert all(tree[leaf].outcome is Outcome.ENV_FAULT for leaf in void_leaves(tree))


def test_a_path_that_is_played_again_has_another_seed() -> None:
    seeds = []

    def look(sample: int, turn: Turn) -> None:
        if sample in (1, 2):
            raise HarnessFault("engine restarts")

    policy = Watch(Before(Say(), look))
    inner = policy.inner.sample

    async def note(context_ids: IntArray, params: SampleParams, turn: Turn | None = None) -> Sample:
        seeds.append(params.seed)
        return await inner(context_ids, params, turn)

    policy.inner.sample = note  # type: ignore[method-assign]
    tree = grown(policy, make_plan("group", size=1), steps(length=1))
    assert len(set(seeds)) == 3
    assert len(void_leaves(tree)) == 2
    assert [tree[leaf].outcome for leaf in counted_leaves(tree)] == [Outcome.SUCCESS]


def test_a_path_that_breaks_every_time_is_void_and_left_out() -> None:
    tree = play_corridor(flaky_game(Faulty(*range(1, 4))), plan=make_plan("group", size=2), retries=2)
    assert len(void_leaves(tree)) == 3
    assert len(counted_leaves(tree)) == 1
    assert rollout_metrics([tree])["rollout/success"] == 1


def test_where_every_path_is_void_there_is_no_success_not_a_success_of_zero() -> None:
    tree = play_corridor(flaky_game(Faulty(*range(1, 100))), retries=1)
    assert len(void_leaves(tree)) == 8
    assert "rollout/success" not in rollout_metrics([tree])


def test_a_budget_of_leaves_counts_no_void_path() -> None:
    tree = play_corridor(
        flaky_game(Faulty(*range(1, 7))),
        plan=plan_of([Fork(0, 2)], [Fork(0, 9)]),
        retries=2,
        budget=TreeBudget(leaves=5),
    )
    assert len(void_leaves(tree)) == 6
    assert len(counted_leaves(tree)) == 5


def test_a_fault_of_the_harness_is_counted_apart() -> None:
    def first(sample: int, turn: Turn) -> None:
        if sample == 1:
            raise HarnessFault("engine restarts")

    tree = grown(Before(Say(), first), make_plan("group", size=2), steps())
    assert [tree[leaf].stop for leaf in void_leaves(tree)] == [StopReason.HARNESS_FAULT]
    assert len(counted_leaves(tree)) == 2
    assert tree[0].stop is None


def test_an_environment_that_starts_at_the_second_try_grows_a_tree() -> None:
    tree = play_corridor(flaky_game(Faulty(1, 2), start=True))
    assert len(counted_leaves(tree)) == 4
    assert not void_leaves(tree)


def test_an_environment_that_never_starts_is_a_fault_that_names_task_and_cause() -> None:
    with pytest.raises(EnvFault, match=r"Corridor-v0#train/0 did not start in 3 attempts.*connection reset"):
        play_corridor(flaky_game(Faulty(*range(1, 10)), start=True), retries=2)


def test_a_sibling_that_can_not_be_made_voids_its_path_alone() -> None:
    class Scarce(Steps):
        def __init__(self, length: int = 4) -> None:
            super().__init__(length)
            if type(self).opened == 3:
                raise OSError("no more containers")

    tree = grown(Say(), make_plan("group", size=4), steps(Scarce), retries=0)
    assert len(counted_leaves(tree)) == 3
    assert "no more containers" in tree[void_leaves(tree)[0]].log["fault"]


def test_an_environment_that_hangs_while_it_is_restored_is_a_fault() -> None:
    class Hangs(TurnEnv):
        forking = Forking.REPLAY
        hang = False

        async def start_async(self, options: Mapping[str, Any]) -> Reply:
            if self.hang:
                await asyncio.Event().wait()
            Hangs.hang = True
            return Reply("go")

        async def act_async(self, action: str) -> Reply:
            return Reply("over", terminated=True, success=True)

    tree = grown(
        Say(),
        make_plan("group", size=2),
        lambda task: Hangs(),
        retries=0,
        options=LoopOptions(deadline_s=0.1),
    )
    assert len(counted_leaves(tree)) == 1
    assert "TimeoutError" in tree[void_leaves(tree)[0]].log["fault"]


def test_an_environment_that_does_not_close_costs_nothing() -> None:
    tree = play_corridor(flaky_game(Faulty(*range(1, 100)), close=True))
    assert len(counted_leaves(tree)) == 4
    assert not void_leaves(tree)


def test_a_refusal_in_mid_growth_is_raised_bare_and_closes_everything() -> None:
    env_class = exact()
    error = ConfigError("no such option")

    def second(sample: int, turn: Turn) -> None:
        if sample == 6:
            raise error

    with pytest.raises(ConfigError) as caught:
        grown(Dawdle(Before(Say(), second), 0), make_plan("group", size=4), steps(env_class))
    assert caught.value is error
    assert env_class.opened == env_class.closed > 1


@pytest.mark.parametrize("after", [0, 1, 3, 10, 30])
def test_cancelling_in_mid_growth_closes_every_environment_and_leaves_no_task(after: int) -> None:
    env_class = exact()

    async def cancelled() -> None:
        growing = asyncio.create_task(
            grow(TASK, Dawdle(Toss(), 0), PLANS["random_node"], make_env=steps(env_class, length=50))
        )
        for _ in range(after):
            await asyncio.sleep(0)
        growing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await growing
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(cancelled())
    assert env_class.opened == env_class.closed


def test_every_environment_is_closed_and_none_is_live_too_long() -> None:
    env_class = exact()
    tree = grown(Toss(), PLANS["random_node"], steps(env_class))
    assert env_class.opened == env_class.closed == len(tree.leaves)


def test_negative_retries_are_refused() -> None:
    with pytest.raises(ConfigError, match="retries"):
        grown(Say(), PLANS["group"], steps(), retries=-1)


# ---------------------------------------------------------------------- one seed, one tree


@pytest.mark.parametrize("plan", PLANS)
def test_a_seed_is_a_tree_however_paths_interleave(plan: str) -> None:
    (task,) = corridors(1, rooms=9)

    def tree(policy: Policy, live: int | None) -> Tree:
        async def play() -> Tree:
            slots = asyncio.Semaphore(live) if live else None
            return await grow(task, policy, PLANS[plan], seed=5, slots=slots, make_env=corridor)

        return asyncio.run(play())

    serial = tree(Mixture(0.4), 1)
    assert len(serial.leaves) > 5
    for seed, live in [(0, None), (1, 1), (2, 2), (3, 4), (4, None)]:
        interleaved = tree(Dawdle(Mixture(0.4), seed), live)
        assert interleaved == serial
    assert tree(Mixture(0.4), None) == serial


def test_faults_do_not_disturb_the_order() -> None:
    def tree(seed: int) -> Tree:
        class SeededFaults(Wrapped):
            async def sample(
                self, context_ids: IntArray, params: SampleParams, turn: Turn | None = None
            ) -> Sample:
                if params.seed % 5 == 0:
                    raise HarnessFault("gone")
                return await super().sample(context_ids, params, turn)

        return grown(Dawdle(SeededFaults(Toss()), seed), PLANS["random_node"], steps(length=6), seed=1)

    first = tree(0)
    assert len(void_leaves(first)) > 1
    for seed in range(1, 5):
        assert tree(seed) == first


def test_other_seeds_give_other_trees() -> None:
    trees = [grown(Toss(), make_plan("group", size=4), steps(), seed=seed) for seed in range(3)]
    assert trees[0] != trees[1] != trees[2]


def test_nodes_are_in_the_order_of_the_forks() -> None:
    tree = grown(Dawdle(Toss(), 0), plan_of([Fork(0, 3)], [Fork(2, 2)]), steps())
    seen: list[int] = []
    for leaf in tree.leaves:
        seen += [node for node in tree.path(leaf) if node not in seen]
    assert seen == list(range(len(tree)))


@pytest.mark.parametrize("live", [1, 2, 7])
def test_no_more_paths_are_live_than_there_are_slots(live: int) -> None:
    policy = Dawdle(Toss(), 0)

    async def play() -> None:
        await grow(TASK, policy, make_plan("group", size=20), slots=asyncio.Semaphore(live), make_env=steps())

    asyncio.run(play())
    assert policy.most_live == live


def test_replay_says_what_was_recorded() -> None:
    (task,) = corridors(1)
    first = asyncio.run(grow(task, Mixture(0.5), make_plan("group", size=1), make_env=corridor))
    (leaf,) = first.leaves
    replay = Replay.of(first, leaf, Mixture(0.5).renderer)
    again = asyncio.run(grow(task, replay, make_plan("group", size=1), make_env=corridor))
    assert again.context(again.leaves[0]).tolist() == first.context(leaf).tolist()


# ---------------------------------------------------------------------- budgets and listeners


def test_the_budget_of_leaves_is_kept_exactly() -> None:
    tree = grown(Say(), plan_of([Fork(0, 3)], [Fork(2, 9), Fork(4, 9)]), steps(), budget=TreeBudget(leaves=7))
    assert len(counted_leaves(tree)) == 7


@pytest.mark.parametrize(
    ("budget", "rounds"),
    [
        # One path has 4 env steps and 4 actions of 4 tokens; a round of two has twice that.
        (TreeBudget(env_steps=8), 1),
        (TreeBudget(env_steps=9), 2),
        (TreeBudget(policy_tokens=32), 1),
        (TreeBudget(policy_tokens=33), 2),
    ],
)
def test_a_budget_that_is_spent_starts_no_further_round(budget: TreeBudget, rounds: int) -> None:
    tree = grown(Say(), plan_of(*([Fork(0, 2)] for _ in range(5))), steps(), budget=budget)
    assert len(counted_leaves(tree)) == 2 * rounds


def test_a_plan_that_never_ends_is_ended_by_the_budget_and_sees_its_last_leaves() -> None:
    seen: list[int] = []

    def endless(tree: Tree, purse: Purse, rng: np.random.Generator) -> Decisions:
        while True:
            seen.extend((yield [Fork(0, 2)]))

    tree = grown(Say(), endless, steps(), budget=TreeBudget(leaves=5))
    assert seen == counted_leaves(tree)
    assert len(seen) == 5


def test_an_empty_plan_grows_a_root() -> None:
    tree = grown(Say(), plan_of(), steps())
    assert len(tree) == 1
    assert tree.meta["env_steps"] == 0


def test_each_path_that_counts_is_reported_once() -> None:
    reported: list[bytes] = []
    tree = play_corridor(
        flaky_game(Faulty(2)),
        Mixture(0.5),
        on_leaf=lambda tree, leaf: reported.append(tree.context(leaf).tobytes()),
    )
    assert sorted(reported) == sorted(tree.context(leaf).tobytes() for leaf in counted_leaves(tree))
    assert len(void_leaves(tree)) == 1
