"""The base class: twins, faults, forks, and what it refuses."""

from __future__ import annotations

import asyncio
import math
import pickle
from collections.abc import Mapping
from contextlib import closing
from typing import Any, ClassVar

import numpy as np
import pytest

from turngym.envs.base import Forking, Snapshot, TurnEnv
from turngym.errors import ConfigError, EnvFault, ForkDiverged, UnknownName
from turngym.types import Message, Reply


class Counter(TurnEnv):
    """Adds numbers to a random start; forks exactly."""

    forking: ClassVar[Forking] = Forking.EXACT
    reward_range: ClassVar[tuple[float, float]] = (0.0, 10.0)

    def __init__(self, *, limit: int = 5, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        self.limit = limit
        self.seen: list[int] = []

    def start(self, options: Mapping[str, Any]) -> Reply:
        self.seen = [int(self.np_random.integers(100))]
        return Reply(f"start {self.seen[0]}")

    def act(self, action: str) -> Reply:
        self.seen.append(int(action) + int(self.np_random.integers(10)))
        over = len(self.seen) > self.limit
        return Reply(str(sum(self.seen)), reward=1.0, terminated=over, success=over)

    def get_state(self) -> list[int]:
        return self.seen

    def set_state(self, state: list[int]) -> None:
        self.seen = state


class AsyncCounter(Counter):
    """The same, written asynchronously, forking by replay."""

    forking: ClassVar[Forking] = Forking.REPLAY

    async def start_async(self, options: Mapping[str, Any]) -> Reply:
        await asyncio.sleep(0)
        return Counter.start(self, options)

    async def act_async(self, action: str) -> Reply:
        await asyncio.sleep(0)
        return Counter.act(self, action)


class Replayed(Counter):
    """The same, forking by replay."""

    forking: ClassVar[Forking] = Forking.REPLAY


class Drifting(Replayed):
    """Replays another observation at turn 2: every instance after the first is off by one there."""

    made: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__(limit=9)
        Drifting.made += 1
        self.number = Drifting.made

    def act(self, action: str) -> Reply:
        reply = super().act(action)
        return Reply(f"{reply.text}!") if self.number > 1 and len(self.seen) == 3 else reply


class Says(TurnEnv):
    """Replies as it is told; `crash` crashes."""

    replies: ClassVar[dict[str, Any]] = {
        "nan": Reply("x", reward=math.nan),
        "inf": Reply("x", reward=math.inf),
        "text reward": Reply("x", reward="1.0"),  # type: ignore[arg-type]
        "high": Reply("x", reward=1.5),
        "low": Reply("x", reward=-1.5),
        "numpy": Reply("x", reward=np.float32(0.5)),  # type: ignore[arg-type]
        "none": None,
        "bytes": Reply(b"x"),  # type: ignore[arg-type]
        "long": Reply("x" * 101),
        "surrogate": Reply("a\ud800b", messages=[Message("user", "a\ud800b")]),
        "end": Reply("x", truncated=True),
    }
    reward_range: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    max_observation_chars: ClassVar[int] = 100

    def start(self, options: Mapping[str, Any]) -> Reply:
        if "crash" in options:
            raise KeyError("start")
        return Reply("hello", reward=options.get("reward", 0.0))

    def act(self, action: str) -> Reply:
        if action == "crash":
            raise ZeroDivisionError("on purpose")
        reply: Reply = self.replies[action]
        return reply


ACTIONS = ["1", "2", "3"]


def trace(env: TurnEnv, seed: int = 0) -> list[Any]:
    with closing(env):
        return [env.reset(seed=seed), *(env.step(a) for a in ACTIONS)]


async def trace_async(env: TurnEnv, seed: int = 0) -> list[Any]:
    out: list[Any] = [await env.reset_async(seed=seed)]
    out += [await env.step_async(a) for a in ACTIONS]
    return out


# ---------------------------------------------------------------------- twins


def test_an_author_writes_one_form_and_gets_the_other() -> None:
    expected = trace(Counter())
    assert trace(AsyncCounter()) == expected
    assert asyncio.run(trace_async(Counter())) == expected
    assert asyncio.run(trace_async(AsyncCounter())) == expected


def test_a_blocking_environment_runs_off_the_event_loop() -> None:
    import threading

    class Blocking(Counter):
        blocking: ClassVar[bool] = True

        def act(self, action: str) -> Reply:
            reply = super().act(action)
            reply.info["thread"] = threading.get_ident()
            return reply

    threads = {step[4]["thread"] for step in asyncio.run(trace_async(Blocking()))[1:]}
    assert threading.get_ident() not in threads


def test_writing_both_forms_is_refused() -> None:
    with pytest.raises(ConfigError, match="write act or act_async"):
        type(
            "Both",
            (TurnEnv,),
            {"act": lambda self, action: None, "act_async": lambda self, action: None},
        )


def test_writing_neither_form_is_a_fault_that_says_so() -> None:
    with pytest.raises(EnvFault, match="must define start or start_async"):
        TurnEnv().reset()


def test_an_asynchronous_environment_in_an_event_loop_names_the_right_methods() -> None:
    async def main() -> None:
        AsyncCounter().reset()

    with pytest.raises(ConfigError, match="await reset_async, step_async"):
        asyncio.run(main())


def test_a_step_that_is_cancelled_voids_the_episode() -> None:
    class Slow(Counter):
        async def act_async(self, action: str) -> Reply:
            await asyncio.sleep(60)
            raise AssertionError

    async def main() -> None:
        env = Slow()
        await env.reset_async(seed=0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await env.step_async("1")
        with pytest.raises(ConfigError, match="call reset"):
            await env.step_async("1")

    asyncio.run(main())


# ---------------------------------------------------------------------- faults


@pytest.mark.parametrize(
    "action", ["nan", "inf", "text reward", "high", "low", "none", "bytes", "long", "crash"]
)
def test_what_breaks_the_contract_is_a_fault_and_never_a_reward(action: str) -> None:
    env = Says()
    env.reset()
    with pytest.raises(EnvFault, match=r"Says\.step failed"):
        env.step(action)
    with pytest.raises(ConfigError, match="call reset"):
        env.step(action)
    env.reset()


def test_an_infinite_reward_is_a_fault_where_no_range_was_given() -> None:
    class Unbounded(Says):
        reward_range: ClassVar[tuple[float, float]] = (-math.inf, math.inf)

    env = Unbounded()
    env.reset()
    with pytest.raises(EnvFault, match="not a finite number"):
        env.step("inf")


def test_a_crash_keeps_its_cause() -> None:
    env = Says()
    env.reset()
    with pytest.raises(EnvFault, match=r"Says\.step failed: ZeroDivisionError: on purpose") as caught:
        env.step("crash")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(EnvFault, match=r"Says\.reset failed: KeyError"):
        env.reset(options={"crash": True})


def test_a_reward_at_the_reset_would_be_lost_and_is_a_fault() -> None:
    with pytest.raises(EnvFault, match="reward"):
        Says().reset(options={"reward": 1.0})


def test_numpy_rewards_become_floats() -> None:
    env = Says()
    env.reset()
    assert type(env.step("numpy")[1]) is float


def test_lone_surrogates_never_leave_the_environment() -> None:
    env = Says()
    env.reset()
    text, *_, info = env.step("surrogate")
    assert text == info["messages"][0].content == "a?b"


# ---------------------------------------------------------------------- refusals


def test_a_step_needs_a_running_episode_and_text() -> None:
    env = Says()
    with pytest.raises(ConfigError, match="call reset"):
        env.step("x")
    env.reset()
    with pytest.raises(ConfigError, match=r"text \(str\), got int"):
        env.step(3)  # type: ignore[arg-type]
    env.step("end")
    with pytest.raises(ConfigError, match="the episode is over"):
        env.step("x")
    env.close()
    env.close()
    with pytest.raises(ConfigError, match="call reset"):
        env.step("x")


def test_unknown_constructor_options_name_the_nearest() -> None:
    with pytest.raises(UnknownName, match="option of Counter 'limits'"):
        Counter(limits=3)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="'ansi'"):
        Counter(render_mode="human")


def test_ansi_renders_the_last_observation() -> None:
    env = Counter(render_mode="ansi")
    text, _ = env.reset(seed=0)
    assert env.render() == text
    assert Counter().render() is None


def test_the_end_says_whether_it_was_a_success_and_nothing_else_does() -> None:
    env = Counter(limit=1)
    _, info = env.reset(seed=0)
    assert "success" not in info
    *_, info = env.step("1")
    assert info["success"] is True


# ---------------------------------------------------------------------- forks


@pytest.mark.parametrize("cls", [Counter, Replayed, AsyncCounter])
def test_a_fork_goes_on_like_its_parent_and_alone(cls: type[Counter]) -> None:
    with closing(cls(limit=4)) as env:
        env.reset(seed=1)
        env.step("5")
        one, two = env.fork(2)
        with closing(one), closing(two):
            assert one.limit == 4
            assert one.state_key() == two.state_key() == env.state_key()
            two.step("9")
            assert one.step("7") == env.step("7")
            assert one.state_key() == env.state_key() != two.state_key()


@pytest.mark.parametrize("cls", [Counter, Replayed, AsyncCounter])
def test_forks_can_be_awaited(cls: type[Counter]) -> None:
    async def main() -> None:
        env = cls()
        await env.reset_async(seed=1)
        await env.step_async("5")
        (child,) = await env.fork_async()
        assert await child.step_async("7") == await env.step_async("7")

    asyncio.run(main())


def test_an_environment_without_forks_says_so() -> None:
    env = Says()
    env.reset()
    with pytest.raises(ConfigError, match="forking=none"):
        env.fork()


def test_a_snapshot_keeps_its_turn_and_survives_what_follows() -> None:
    env = Counter()
    env.reset(seed=2)
    env.step("1")
    snapshot = env.snapshot()
    expected = [env.step("2"), env.step("3")]
    env.restore(snapshot)
    assert snapshot.turn == 1
    assert [env.step("2"), env.step("3")] == expected
    with pytest.raises(AttributeError):
        snapshot.state = None  # type: ignore[misc]


def test_a_snapshot_can_be_sent_to_another_process() -> None:
    env = Replayed()
    env.reset(seed=2)
    env.step("1")
    sent: Snapshot = pickle.loads(pickle.dumps(env.snapshot()))
    other = Replayed()
    other.restore(sent)
    assert other.step("2") == env.step("2")


def test_a_snapshot_belongs_to_one_class_and_its_arguments() -> None:
    env = Counter(limit=4)
    env.reset(seed=0)
    snapshot = env.snapshot()
    with pytest.raises(ConfigError, match="snapshot of Counter can't be restored in Replayed"):
        Replayed(limit=4).restore(snapshot)
    with pytest.raises(
        ConfigError, match=r"made with \{'limit': 4\} can't be restored in one made with \{'limit': 5\}"
    ):
        Counter().restore(snapshot)
    Counter(limit=4, render_mode="ansi").restore(snapshot)  # how it is shown is no part of a state


def test_options_of_the_reset_are_kept_for_the_replay() -> None:
    class Offset(Replayed):
        def start(self, options: Mapping[str, Any]) -> Reply:
            reply = super().start(options)
            self.seen.append(options["offset"][0])
            return Reply(f"{reply.text} + {options['offset'][0]}")

    env, options = Offset(), {"offset": [7]}
    env.reset(seed=0, options=options)
    options["offset"][0] = 8
    (child,) = env.fork()
    assert child.observation == env.observation
    assert child.step("1") == env.step("1")


def test_a_replay_that_differs_names_the_first_turn_and_stops() -> None:
    Drifting.made = 0
    env = Drifting()
    env.reset(seed=0)
    for action in ("1", "2", "3"):
        env.step(action)
    child = env.sibling()
    with pytest.raises(ForkDiverged, match="another reply at turn 2") as caught:
        child.restore(env.snapshot())
    assert caught.value.turn == 2
    with pytest.raises(ConfigError, match="call reset"):  # it does not go on from another state
        child.step("1")
    with pytest.raises(ForkDiverged):
        env.fork()


def test_a_state_that_is_not_put_back_is_caught() -> None:
    class Forgets(Counter):
        def set_state(self, state: list[int]) -> None:
            self.seen = state[:-1]

    env = Forgets()
    env.reset(seed=0)
    env.step("1")
    with pytest.raises(ForkDiverged, match="state differs after restoring turn 1") as caught:
        env.fork()
    assert caught.value.turn == 1


def test_a_state_that_can_not_be_put_back_is_a_fault() -> None:
    class Breaks(Counter):
        def set_state(self, state: list[int]) -> None:
            raise OSError("the machine is gone")

    env = Breaks()
    env.reset(seed=0)
    with pytest.raises(EnvFault, match=r"Breaks\.restore failed: OSError: the machine is gone"):
        env.restore(env.snapshot())


def test_an_exact_environment_must_say_what_its_state_is() -> None:
    class Stateless(Says):
        forking: ClassVar[Forking] = Forking.EXACT

    env = Stateless()
    env.reset()
    with pytest.raises(NotImplementedError, match="define get_state and set_state"):
        env.state_key()


def test_a_state_of_none_is_a_state() -> None:
    class Empty(Says):
        forking: ClassVar[Forking] = Forking.EXACT

        def get_state(self) -> None:
            return None

        def set_state(self, state: None) -> None:
            pass

    env = Empty()
    env.reset(seed=0)
    assert env.fork()[0].state_key() == env.state_key()


def test_children_are_closed_where_forking_fails() -> None:
    closed: list[int] = []

    class Forgets(Counter):
        def set_state(self, state: list[int]) -> None:
            self.seen = []

        def close(self) -> None:
            closed.append(id(self))
            super().close()

    env = Forgets()
    env.reset(seed=0)
    with pytest.raises(ForkDiverged):
        env.fork(3)
    assert len(closed) == 3
