"""The checker passes what keeps the contract, and catches each way to break it by the check that is meant to."""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from turngym.envs import contract
from turngym.envs.base import Forking, Snapshot, TurnEnv
from turngym.envs.checker import Report, check_env
from turngym.envs.contract import CONTRACT
from turngym.envs.spaces import Utf8Text
from turngym.errors import UnknownName, unknown_name
from turngym.types import Message, Reply


class Dice(TurnEnv):
    """Reach 20 by rolling; `stop` ends the game. Keeps the contract."""

    forking: ClassVar[Forking] = Forking.EXACT
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __init__(self, *, goal: int = 20, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        self.goal = goal
        self.rolls: list[int] = []

    def start(self, options: Mapping[str, Any]) -> Reply:
        for name in options:
            raise unknown_name("reset option of Dice", name, [])
        self.rolls = []
        return Reply(f"Roll {self.goal} or more.")

    def act(self, action: str) -> Reply:
        if action == "roll":
            self.rolls.append(self.roll())
        won = sum(self.rolls) >= self.goal
        over = won or action == "stop"
        return Reply(f"Sum {sum(self.rolls)}.", reward=float(won), terminated=over, success=won)

    def roll(self) -> int:
        return int(self.np_random.integers(1, 7))

    def get_state(self) -> Any:
        return self.rolls

    def set_state(self, state: Any) -> None:
        self.rolls = state

    def optimal_action(self) -> str:
        return "roll"

    def random_action(self, rng: np.random.Generator) -> str:
        return "roll" if rng.random() < 0.8 else "rest"


class ReplayedDice(Dice):
    """The same, forking by replay."""

    forking: ClassVar[Forking] = Forking.REPLAY


class AsyncDice(ReplayedDice):
    """The same, written asynchronously."""

    async def start_async(self, options: Mapping[str, Any]) -> Reply:
        return Dice.start(self, options)

    async def act_async(self, action: str) -> Reply:
        return Dice.act(self, action)


def failing(report: Report) -> set[str]:
    return {check.name for check in report.checks if not check.passed}


@pytest.mark.parametrize("cls", [Dice, ReplayedDice, AsyncDice])
def test_what_keeps_the_contract_passes_every_check(cls: type[TurnEnv]) -> None:
    report = check_env(cls)
    assert report.ok, str(report)
    assert len(report.checks) == len(CONTRACT)
    assert report.subject == cls.__name__


def test_an_environment_without_forks_is_not_asked_for_them() -> None:
    class Plain(Dice):
        forking: ClassVar[Forking] = Forking.NONE

    report = check_env(Plain)
    assert report.ok, str(report)
    assert [c.seen for c in report.checks].count("not asked for: forking is none") == 2


# ---------------------------------------------------------------------- each way to break it


class ShallowCopy(Dice):
    def copy_state(self, state: Any) -> Any:
        return state


class HiddenState(Dice):
    """The bonus is no part of the state."""

    bonus = 0

    def start(self, options: Mapping[str, Any]) -> Reply:
        self.bonus = 0
        return super().start(options)

    def act(self, action: str) -> Reply:
        self.bonus += 1
        reply = super().act(action)
        return replace(reply, text=f"{reply.text} Bonus {self.bonus}.")


class SharedState(Dice):
    rolled: ClassVar[list[int]] = []

    def start(self, options: Mapping[str, Any]) -> Reply:
        self.rolled.clear()
        return super().start(options)

    def act(self, action: str) -> Reply:
        self.rolled.append(1)
        reply = super().act(action)
        return replace(reply, text=f"{reply.text} Turn {len(self.rolled)}.")


class Unseeded(Dice):
    def roll(self) -> int:
        return random.SystemRandom().randint(1, 6)


class GlobalRandom(Dice):
    def roll(self) -> int:
        random.seed(int(self.np_random.integers(1000)))
        return random.randint(1, 6)


class GlobalNumpy(Dice):
    def roll(self) -> int:
        np.random.seed(int(self.np_random.integers(1000)))
        return int(np.random.randint(1, 7))


class Leftover(Dice):
    """A reset keeps the game before."""

    def start(self, options: Mapping[str, Any]) -> Reply:
        before = self.rolls
        reply = super().start(options)
        self.rolls = before
        return reply


class Brittle(Dice):
    def act(self, action: str) -> Reply:
        action.encode()  # raises for lone surrogates
        return super().act(action)


class Scarred(Dice):
    """Never forgets an odd action."""

    scars = 0

    def act(self, action: str) -> Reply:
        self.scars += action not in ("roll", "rest")
        reply = super().act(action)
        return replace(reply, text=f"{reply.text} Scars {self.scars}.") if self.scars else reply


class Prints(Dice):
    def act(self, action: str) -> Reply:
        sys.stdout.write("hello")
        return super().act(action)


class Warns(Dice):
    def act(self, action: str) -> Reply:
        warnings.warn("old", DeprecationWarning, stacklevel=2)
        return super().act(action)


class Writes(Dice):
    def act(self, action: str) -> Reply:
        if action == "save":
            Path("saved.game").write_text("", encoding="utf-8")
        return super().act(action)


class IgnoresOptions(Dice):
    def start(self, options: Mapping[str, Any]) -> Reply:
        return super().start({})


class OtherWords(Dice):
    def act(self, action: str) -> Reply:
        return replace(super().act(action), messages=[Message("user", "Something else.")])


class SaysTooLittle(Dice):
    def act(self, action: str) -> Reply:
        reply = super().act(action)
        return replace(reply, messages=[Message("user", reply.text[:3])])


class WrongRole(Dice):
    def act(self, action: str) -> Reply:
        reply = super().act(action)
        return replace(reply, messages=[Message("assistant", reply.text)])


class OddSuccess(Dice):
    def act(self, action: str) -> Reply:
        return replace(super().act(action), success="yes", terminated=True)  # type: ignore[arg-type]


class RewardOutOfRange(Dice):
    def act(self, action: str) -> Reply:
        return replace(super().act(action), reward=2.0)


class AsyncDiffers(Dice):
    async def act_async(self, action: str) -> Reply:
        return self.act(action)

    async def step_async(self, action: str) -> Any:
        text, *rest = await super().step_async(action)
        return (text + "?", *rest)


class TrustsReplays(Dice):
    def _verify(self, snapshot: Snapshot) -> None:
        pass

    def _replaying(self, recorded: Any) -> Any:
        self.np_random.bit_generator.state = recorded.rng_state
        yield from (None, *recorded.actions)


class Hopeless(Dice):
    def optimal_action(self) -> str:
        return "stop"


class ClosesOnce(Dice):
    closed = False

    def close(self) -> None:
        if self.closed:
            raise RuntimeError("closed already")
        self.closed = True
        super().close()


class ShortSpace(Dice):
    observation_space = Utf8Text(3)


BROKEN = [
    (ShallowCopy, "a fork equals its parent and is isolated"),
    (ShallowCopy, "a snapshot can be restored any time"),
    (HiddenState, "a fork equals its parent and is isolated"),
    (HiddenState, "a snapshot can be restored any time"),
    (SharedState, "interleaved episodes equal serial ones"),
    (SharedState, "a fork equals its parent and is isolated"),
    (Unseeded, "a seed decides the episode"),
    (Unseeded, "interleaved episodes equal serial ones"),
    (GlobalRandom, "the process is left alone"),
    (GlobalNumpy, "the process is left alone"),
    (Leftover, "a seed decides the episode"),
    (Brittle, "bad actions are answered"),
    (Scarred, "bad actions are answered"),
    (Prints, "the process is left alone"),
    (Warns, "the process is left alone"),
    (Writes, "the process is left alone"),
    (IgnoresOptions, "misuse is refused"),
    (OtherWords, "replies are well formed"),
    (SaysTooLittle, "replies are well formed"),
    (WrongRole, "replies are well formed"),
    (OddSuccess, "replies are well formed"),
    (RewardOutOfRange, "replies are well formed"),
    (AsyncDiffers, "asynchronous equals synchronous"),
    (TrustsReplays, "a replay that differs is caught"),
    (Hopeless, "its own optimal policy succeeds"),
    (ClosesOnce, "it can be closed twice"),
    (ShortSpace, "gymnasium accepts it"),
]


@pytest.mark.parametrize(("cls", "name"), BROKEN)
def test_each_way_to_break_the_contract_is_caught(
    cls: type[TurnEnv], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    report = check_env(cls)
    assert name in failing(report), str(report)
    assert not report.ok
    words = str(report)
    assert f"FAIL {name}" in words
    assert "repair:" in words


def test_every_check_was_seen_to_fail() -> None:
    assert {name for _, name in BROKEN} == {rule.name for rule in CONTRACT}


def test_an_answer_that_takes_too_long_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "PATIENCE_S", 0.0)
    assert "bad actions are answered" in failing(check_env(Dice, actions=3))


def test_the_report_follows_from_the_seed() -> None:
    one, two, other = (check_env(HiddenState, seed=s) for s in (5, 5, 6))
    strip = [
        replace(c, seen="") if c.name == "bad actions are answered" else c for c in one.checks
    ]  # it has a time
    assert strip == [replace(c, seen="") if c.name == "bad actions are answered" else c for c in two.checks]
    assert failing(one) == failing(other)


def test_an_id_that_nobody_registered_is_no_report() -> None:
    with pytest.raises(UnknownName, match="Corridor-v0"):
        check_env("turngym/Coridor-v0")


def test_every_rule_says_what_it_holds_and_how_to_repair_it() -> None:
    for rule in CONTRACT:
        assert rule.claim.endswith(".")
        assert len(rule.repair) > 20
