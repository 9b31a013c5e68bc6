"""The loop: what the policy is given, how each budget ends a path, and what becomes of everything that breaks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import numpy as np
import pytest

from rollouts import Before, Say, Steps, Toss, Watch, Wrapped, corridor, corridors
from turngym.agents.loop import LoopOptions, begin, check_first_prompt, check_options, play
from turngym.agents.policies.scripted import Mixture, Oracle
from turngym.agents.policy import Policy, Sample, SampleParams, Turn
from turngym.envs.base import Forking, TurnEnv
from turngym.errors import ConfigError, EnvFault, HarnessFault
from turngym.tasks.task import Task
from turngym.tree import Kind, Origin, Tree
from turngym.types import Budget, IntArray, Message, Outcome, Reply, StopReason


async def one_path(
    env: TurnEnv, policy: Policy, options: LoopOptions | None = None, *, seed: int = 0, task_seed: int = 7
) -> tuple[Tree, int]:
    options = options or LoopOptions()
    tree = Tree(task_id="t", rollout_id="t", seed=seed, renderer_hash=policy.renderer.hash)
    root = await begin(env, tree, policy, options, task_seed=task_seed)
    return tree, await play(env, tree, root, policy, options, seed=seed)


def run(env: TurnEnv, policy: Policy, *, budget: Budget | None = None, **options: Any) -> tuple[Tree, int]:
    return asyncio.run(one_path(env, policy, LoopOptions(budget=budget or Budget(), **options)))


class Endless(Steps):
    """Never ends. Observations are 10 characters; actions of `Say("go")` are 2 characters and the end of turn."""

    def start(self, options: Mapping[str, Any]) -> Reply:
        return Reply("0123456789")

    def act(self, action: str) -> Reply:
        return Reply("0123456789", reward=0.25)


# ---------------------------------------------------------------------- what the policy is given


@pytest.mark.parametrize("task", corridors(5, rooms=9), ids=lambda task: task.task_id)
def test_the_policy_is_given_the_context_of_the_tree_token_for_token(task: Task) -> None:
    policy = Watch(Mixture(0.7))
    tree, leaf = asyncio.run(one_path(corridor(task), policy, task_seed=task.seed))
    actions = tree.actions(leaf)
    assert len(policy.seen) == len(actions) > 3
    # Compared after the episode: a buffer that grows must not change what was handed out before.
    for action, (context, ids) in zip(actions, policy.seen, strict=True):
        np.testing.assert_array_equal(context, tree.context(tree[action].parent))
        np.testing.assert_array_equal(ids, tree[action].ids)


def test_a_policy_can_not_write_into_its_context() -> None:
    class Writes(Wrapped):
        async def sample(
            self, context_ids: IntArray, params: SampleParams, turn: Turn | None = None
        ) -> Sample:
            with pytest.raises(ValueError, match="read-only"):
                context_ids[0] = 0
            return await super().sample(context_ids, params, turn)

    tree, leaf = run(Steps(), Writes(Say()))
    assert tree[leaf].outcome is Outcome.SUCCESS


def test_an_episode_reads_as_it_was_played() -> None:
    tree, leaf = run(Steps(length=2), Say("win"))
    kinds = [tree[i].kind for i in tree.path(leaf)]
    assert kinds == [Kind.OBSERVATION, Kind.ACTION, Kind.OBSERVATION, Kind.ACTION]
    assert [tree[i].reward for i in tree.actions(leaf)] == [0.0, 1.0]
    assert (tree[leaf].stop, tree[leaf].outcome) == (StopReason.TERMINATED, Outcome.SUCCESS)
    assert [tree[i].starts_context for i in tree.path(leaf)] == [True, False, False, False]
    assert tree.sampled_tokens == 2 * len("win.")
    assert all(tree[i].origin.tolist() == [Origin.SAMPLED] * 4 for i in tree.actions(leaf))


def test_an_action_that_was_cut_is_closed_by_the_next_observation() -> None:
    class Cut(Wrapped):
        async def sample(
            self, context_ids: IntArray, params: SampleParams, turn: Turn | None = None
        ) -> Sample:
            sample = await super().sample(context_ids, params, turn)
            return Sample(sample.ids[:-1], sample.logprobs[:-1], 0, "length")

    policy = Cut(Say("win"))
    tree, leaf = run(Steps(length=2), policy)
    end = policy.renderer.stop_ids[0]
    first, observation, last = tree.path(leaf)[1:]
    assert end not in tree[first].ids
    assert tree[observation].ids[0] == end
    assert tree[last].outcome is Outcome.SUCCESS


def test_state_keys_are_recorded_where_asked_for() -> None:
    plain, leaf = run(Steps(), Say())
    assert all(plain[i].state_key is None for i in plain.path(leaf))
    keyed, leaf = run(Steps(), Say(), state_keys=True)
    keys = [keyed[i].state_key for i in keyed.path(leaf) if not keyed[i].is_action]
    assert None not in keys
    assert len(set(keys)) == 4
    snapped, leaf = run(Steps(), Say(), snapshots=True)
    assert [snapped[i].state_key for i in snapped.path(leaf) if not snapped[i].is_action] == keys
    assert [snapped[i].snapshot.turn for i in snapped.path(leaf) if not snapped[i].is_action] == [0, 1, 2, 3]


def test_every_turn_has_a_seed_of_its_own() -> None:
    policy = Watch(Say())
    run(Endless(), policy, budget=Budget(turns=50))
    assert len({p.seed for p in policy.params}) == 50


# ---------------------------------------------------------------------- budgets


def test_the_turn_budget_stops_before_the_next_action() -> None:
    tree, leaf = run(Endless(), Say("go"), budget=Budget(turns=3))
    assert (tree[leaf].stop, tree[leaf].outcome) == (StopReason.TURNS, Outcome.TRUNCATED)
    assert len(tree.actions(leaf)) == 3
    assert tree[leaf].kind is Kind.OBSERVATION
    assert tree.path_return(leaf) == 0.75


@pytest.mark.parametrize(("context_tokens", "turns"), [(17, 1), (32, 1), (33, 2), (48, 2), (49, 3)])
def test_the_context_budget_holds_prompt_and_action(context_tokens: int, turns: int) -> None:
    # The root is [user] 10 bytes [end] [assistant] = 13 tokens. A turn adds "go" [end] and [tool] 10 bytes [end]
    # [assistant] = 16. So prompts have 13, 29, 45 tokens, and with an action of up to 4 they need 17, 33, 49.
    tree, leaf = run(Endless(), Say("go"), budget=Budget(context_tokens=context_tokens, turn_tokens=4))
    assert tree[leaf].stop is StopReason.CONTEXT
    assert len(tree.actions(leaf)) == turns
    assert tree.context(leaf).size == 13 + 16 * turns


def test_the_window_of_the_model_is_a_context_budget() -> None:
    policy = Say("go")
    policy.window = 33
    tree, leaf = run(Endless(), policy, budget=Budget(turn_tokens=4))
    assert tree[leaf].stop is StopReason.CONTEXT
    assert len(tree.actions(leaf)) == 2


def test_a_first_prompt_that_does_not_fit_is_an_error_that_says_what_to_do() -> None:
    """At the start of a run; in the middle of one it is the end of that task alone."""
    options = LoopOptions(budget=Budget(context_tokens=16, turn_tokens=4))
    with pytest.raises(ConfigError, match=r"13 tokens .* up to 4.* holds 16.*lower budget.turn_tokens"):
        asyncio.run(check_first_prompt(Endless(), Say("go"), options, task_seed=0))
    tree, leaf = run(Endless(), Say("go"), budget=options.budget)
    assert tree[leaf].stop is StopReason.CONTEXT
    assert tree.actions(leaf) == []


@pytest.mark.parametrize(("tokens", "turns"), [(1, 1), (3, 1), (4, 2), (6, 2), (7, 3)])
def test_the_episode_token_budget_counts_what_the_policy_sampled(tokens: int, turns: int) -> None:
    tree, leaf = run(Endless(), Say("go"), budget=Budget(episode_tokens=tokens))
    assert tree[leaf].stop is StopReason.EPISODE_TOKENS
    assert len(tree.actions(leaf)) == turns


def test_an_action_may_not_have_more_tokens_than_the_episode_has_left() -> None:
    policy = Watch(Say("go"))
    run(Endless(), policy, budget=Budget(episode_tokens=8, turn_tokens=4))
    assert [p.max_tokens for p in policy.params] == [4, 4, 2]


@pytest.mark.parametrize(("tokens", "stop"), [(12, StopReason.TOOL_OUTPUT), (13, StopReason.TURNS)])
def test_an_observation_beyond_its_budget_ends_the_path_at_the_action(tokens: int, stop: StopReason) -> None:
    tree, leaf = run(Endless(), Say("go"), budget=Budget(observation_tokens=tokens, turns=2))
    assert tree[leaf].stop is stop
    if stop is StopReason.TOOL_OUTPUT:
        assert tree[leaf].is_action
        assert tree[leaf].reward == 0.25
        assert tree[leaf].outcome is Outcome.TRUNCATED


def test_wall_time_ends_a_path_between_turns() -> None:
    class Slow(Wrapped):
        async def sample(
            self, context_ids: IntArray, params: SampleParams, turn: Turn | None = None
        ) -> Sample:
            await asyncio.sleep(0.02)
            return await super().sample(context_ids, params, turn)

    tree, leaf = run(Endless(), Slow(Say("go")), budget=Budget(wall_time_s=0.1, turns=50))
    assert tree[leaf].stop is StopReason.WALL_TIME
    assert 1 <= len(tree.actions(leaf)) <= 5


def test_a_path_that_continues_counts_the_turns_and_tokens_before_it() -> None:
    async def fork() -> tuple[Tree, int, int]:
        policy, options = Say("go"), LoopOptions(budget=Budget(turns=5, episode_tokens=12))
        tree = Tree(task_id="t", rollout_id="t")
        env = Endless()
        root = await begin(env, tree, policy, options, task_seed=0)
        first = await play(env, tree, root, policy, options, seed=0)
        point = tree[tree.actions(first)[2]].parent
        second = await play(env, tree, point, policy, options, seed=1)
        return tree, first, second

    tree, first, second = asyncio.run(fork())
    assert len(tree.actions(first)) == len(tree.actions(second)) == 4  # 4 actions of 3 tokens
    assert tree[second].stop is StopReason.EPISODE_TOKENS


def test_a_limit_of_the_task_is_a_failure_and_a_success_stays_one() -> None:
    class Limit(Steps):
        def act(self, action: str) -> Reply:
            return Reply("over", truncated=True, success=action == "win")

    tree, leaf = run(Limit(), Say("lose"))
    assert (tree[leaf].stop, tree[leaf].outcome) == (StopReason.ENV_LIMIT, Outcome.FAILURE)
    tree, leaf = run(Limit(), Say("win"))
    assert (tree[leaf].stop, tree[leaf].outcome) == (StopReason.ENV_LIMIT, Outcome.SUCCESS)


# ---------------------------------------------------------------------- what breaks


def raising(error: BaseException) -> Callable[..., Any]:
    def hook(*args: object) -> Any:
        raise error

    return hook


class BreaksAt(Steps):
    """Does `how` in its third turn instead of answering."""

    def __init__(self, how: Callable[[], Any]) -> None:
        super().__init__()
        self.how = how

    def act(self, action: str) -> Reply:
        reply = super().act(action)
        return self.how() if self.turn == 3 else reply


BROKEN_REPLIES: dict[str, Callable[[], Any]] = {
    "raises": raising(ZeroDivisionError("lost")),
    "raises EnvFault": raising(EnvFault("container is gone")),
    "times out inside": raising(TimeoutError()),
    "reward is NaN": lambda: Reply("x", reward=float("nan")),
    "reward is infinite": lambda: Reply("x", reward=float("inf")),
    "reward is a word": lambda: Reply("x", reward="1.0"),  # type: ignore[arg-type]
    "last reward is NaN": lambda: Reply("x", reward=float("nan"), terminated=True, success=True),
    "no reply": lambda: None,
    "text is bytes": lambda: Reply(b"x"),  # type: ignore[arg-type]
    "messages of no role": lambda: Reply("x", messages=[Message("oracle", "x")]),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("how", BROKEN_REPLIES.values(), ids=BROKEN_REPLIES)
def test_an_environment_that_breaks_is_a_fault_and_never_a_reward(how: Callable[[], Any]) -> None:
    tree, leaf = run(BreaksAt(how), Say())
    assert (tree[leaf].stop, tree[leaf].outcome) == (StopReason.ENV_FAULT, Outcome.ENV_FAULT)
    assert tree.void(leaf)
    assert "fault" in tree[leaf].log
    assert tree.actions(leaf)[-1] == leaf
    assert len(tree.actions(leaf)) == 3
    assert tree[leaf].reward in (None, 0.0)


def test_a_harness_fault_inside_of_the_environment_is_ours() -> None:
    tree, leaf = run(BreaksAt(raising(HarnessFault("warden is gone"))), Say())
    assert tree[leaf].stop is StopReason.HARNESS_FAULT


def test_what_the_policy_can_cause_stays_its_failure() -> None:
    (task,) = corridors(1)
    tree, leaf = asyncio.run(one_path(corridor(task), Say("\ud800 no call \x00"), task_seed=task.seed))
    assert (tree[leaf].stop, tree[leaf].outcome) == (StopReason.ENV_LIMIT, Outcome.FAILURE)
    assert not tree.void(leaf)


class BadSample(Wrapped):
    """Hands out `bad` in its second turn."""

    def __init__(self, bad: Callable[[Sample], Any]) -> None:
        super().__init__(Say("go"))
        self.bad = bad

    async def sample(self, context_ids: IntArray, params: SampleParams, turn: Turn | None = None) -> Sample:
        sample = await super().sample(context_ids, params, turn)
        assert turn is not None
        return self.bad(sample) if turn.index == 1 else sample  # type: ignore[no-any-return]


BAD_SAMPLES: dict[str, Callable[[Sample], Any]] = {
    "raises HarnessFault": raising(HarnessFault("out of memory")),
    "raises": raising(KeyError("token")),
    "times out inside": raising(TimeoutError()),
    "NaN": lambda s: Sample(s.ids, s.logprobs * np.nan, 0, "stop"),
    "too few logprobs": lambda s: Sample(s.ids, s.logprobs[:-1], 0, "stop"),
    "float ids": lambda s: Sample(s.ids + 0.5, s.logprobs, 0, "stop"),
    "nothing": lambda s: None,
}


@pytest.mark.parametrize("bad", BAD_SAMPLES.values(), ids=BAD_SAMPLES)
def test_a_policy_that_breaks_is_a_fault_of_the_harness(bad: Callable[[Sample], Any]) -> None:
    tree, leaf = run(Endless(), BadSample(bad))
    assert (tree[leaf].stop, tree[leaf].outcome) == (StopReason.HARNESS_FAULT, Outcome.HARNESS_FAULT)
    assert tree[leaf].kind is Kind.OBSERVATION
    assert len(tree.actions(leaf)) == 1
    assert len(tree) == 3


def test_a_fault_in_the_first_action_leaves_the_shared_decision_point_as_it_was() -> None:
    tree, leaf = run(Endless(), Before(Say(), raising(HarnessFault("gone"))))
    assert tree[0].stop is None
    assert tree[0].outcome is None
    assert tree[0].log == {}
    assert tree[leaf].parent == 0
    assert tree[leaf].ids.size == 0
    assert tree[leaf].stop is StopReason.HARNESS_FAULT
    assert tree.leaves == [leaf]


@pytest.mark.parametrize("error", [ConfigError("no such option"), KeyboardInterrupt()])
def test_a_refusal_is_raised_as_it_is(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught:
        run(Endless(), Before(Say(), raising(error)))
    assert caught.value is error


def test_a_refusal_of_the_environment_is_raised_as_it_is() -> None:
    error = ConfigError("no such option")
    with pytest.raises(ConfigError) as caught:
        run(BreaksAt(raising(error)), Say())
    assert caught.value is error


def test_a_state_that_can_not_be_copied_voids_the_path_and_leaves_no_open_end() -> None:
    class Uncopyable(Steps):
        def copy_state(self, state: Any) -> Any:
            if state == 2:
                raise RuntimeError("holds a socket")
            return state

    tree, leaf = run(Uncopyable(), Say(), snapshots=True)
    assert tree[leaf].stop is StopReason.ENV_FAULT
    assert all(tree[i].stop is not None for i in tree.leaves)


def test_a_root_that_can_not_be_copied_leaves_the_tree_empty() -> None:
    class Uncopyable(Steps):
        def copy_state(self, state: Any) -> Any:
            raise RuntimeError("holds a socket")

    async def twice() -> None:
        env, tree = Uncopyable(), Tree(task_id="t", rollout_id="t")
        for _ in range(2):
            with pytest.raises(EnvFault, match="holds a socket"):
                await begin(env, tree, Say(), LoopOptions(snapshots=True), task_seed=0)
            assert len(tree) == 0

    asyncio.run(twice())


# ---------------------------------------------------------------------- deadlines


async def forever(*args: object) -> Any:
    await asyncio.Event().wait()


def hanging(name: str) -> TurnEnv:
    """A `Steps` whose hook `name` never answers."""

    class Hangs(TurnEnv):
        async def start_async(self, options: Mapping[str, Any]) -> Reply:
            if name == "start":
                await forever()
            return Reply("go")

        async def act_async(self, action: str) -> Reply:
            await forever()
            return Reply("never")

    return Hangs()


def test_a_step_beyond_the_deadline_is_a_fault_of_the_environment() -> None:
    tree, leaf = run(hanging("act"), Say(), deadline_s=0.05)
    assert tree[leaf].stop is StopReason.ENV_FAULT
    assert "no answer within 0.05 s" in tree[leaf].log["fault"]


def test_a_step_that_blocks_a_thread_beyond_the_deadline_is_a_fault_too() -> None:
    class Blocks(Steps):
        blocking = True

        def act(self, action: str) -> Reply:
            time.sleep(0.3)
            return super().act(action)

    tree, leaf = run(Blocks(), Say(), deadline_s=0.05)
    assert tree[leaf].stop is StopReason.ENV_FAULT


def test_a_reset_beyond_the_deadline_is_a_fault_of_the_environment() -> None:
    with pytest.raises(EnvFault, match=r"reset took longer than 0\.05 s"):
        run(hanging("start"), Say(), deadline_s=0.05)


def test_a_sample_beyond_the_deadline_is_a_fault_of_the_harness() -> None:
    class Hangs(Wrapped):
        async def sample(
            self, context_ids: IntArray, params: SampleParams, turn: Turn | None = None
        ) -> Sample:
            return await forever()  # type: ignore[no-any-return]

    tree, leaf = run(Steps(), Hangs(Say()), deadline_s=0.05)
    assert tree[leaf].stop is StopReason.HARNESS_FAULT
    assert "no answer within 0.05 s" in tree[leaf].log["fault"]


def test_cancelling_a_path_is_no_fault() -> None:
    async def cancelled(path: Awaitable[Any]) -> bool:
        task = asyncio.ensure_future(path)
        await asyncio.sleep(0.01)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return True
        return False

    assert asyncio.run(cancelled(one_path(hanging("act"), Say())))


# ---------------------------------------------------------------------- options


def test_options_that_can_not_be_honoured_are_refused_at_the_start() -> None:
    class Fixed(Steps):
        forking = Forking.NONE

    policy = Say()
    policy.window = 100
    with pytest.raises(ConfigError, match="window of 100"):
        check_options(LoopOptions(budget=Budget(context_tokens=101)), policy, Steps())
    with pytest.raises(ConfigError, match="forking=none"):
        check_options(LoopOptions(snapshots=True), policy, Fixed())
    for wrong in ({"deadline_s": 0}, {"deadline_s": float("nan")}, {"temperature": -1.0}, {"top_p": 0.0}):
        with pytest.raises(ConfigError):
            check_options(LoopOptions(**wrong), policy, Steps())  # type: ignore[arg-type]
    check_options(LoopOptions(budget=Budget(context_tokens=100), snapshots=True), policy, Steps())


def test_same_seed_same_tree() -> None:
    first, _ = run(Steps(length=9), Toss())
    second, _ = run(Steps(length=9), Toss())
    assert first == second


def test_the_oracle_wins_in_the_real_game() -> None:
    for task in corridors(5):
        tree, leaf = asyncio.run(one_path(corridor(task), Oracle(), task_seed=task.seed))
        assert tree[leaf].outcome is Outcome.SUCCESS
        assert tree.path_return(leaf) == 1.0
