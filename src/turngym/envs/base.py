"""The contract of an environment: a `gymnasium.Env` over text that can be forked in the middle of an episode.

An author writes `start` and `act` (or their async twins) and, for exact forks, `get_state` and `set_state`; the
base class supplies Gymnasium's `reset` and `step`, the async versions, snapshots, forks with verification, and
turns a crash of the environment into an `EnvFault`, so that it can never be scored as a failure of the policy.

`forking` says what a fork costs and guarantees:

* `exact`: the state is copied; no env step is spent.
* `replay`: the recorded actions are played again into a fresh environment and every observation is compared.
* `none`: `fork` and `restore` raise.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Self

import gymnasium

from turngym.envs.spaces import Utf8Text
from turngym.envs.state import state_digest
from turngym.errors import ConfigError, EnvFault, ForkDiverged, TurngymError, unknown_name
from turngym.types import Message, Reply

Step = tuple[str, float, bool, bool, dict[str, Any]]


class Forking(StrEnum):
    """How an environment forks."""

    EXACT = "exact"
    REPLAY = "replay"
    NONE = "none"


@dataclass(slots=True)
class Episode:
    """What the base class remembers about the running episode: enough to replay it and to compare."""

    rng_state: Mapping[str, Any]
    "state of `np_random` before `start`"
    options: dict[str, Any] | None
    actions: list[str] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    "one digest per observation; the first belongs to the reset"
    observation: str = ""
    over: bool = False

    def copy(self) -> Episode:
        """A copy that shares nothing mutable."""
        return Episode(
            self.rng_state, self.options, self.actions.copy(), self.digests.copy(), self.observation, self.over
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A point of an episode that `restore` returns to. Belongs to one class and set of constructor arguments."""

    env_class: type[TurnEnv]
    state: Any
    "a private copy of the state (exact), or None (replay)"
    rng_state: Mapping[str, Any]
    episode: Episode
    state_key: str

    @property
    def turn(self) -> int:
        """Number of actions taken before the snapshot."""
        return len(self.episode.actions)


class TurnEnv(gymnasium.Env[str, str]):
    """Base of every turngym environment. Action: the assistant's text. Observation: text.

    `reset(seed=, options=) → (obs, info)` and `step(action) → (obs, reward, terminated, truncated, info)` follow
    Gymnasium. `info["messages"]` holds what is new as typed chat messages; when an episode has ended,
    `info["success"]` holds the verifier's word (True, False, or None where the task has no such notion).

    Class attributes that an author may set:
        forking: see the module.
        reward_range: (low, high) that every reward must lie in; a reward outside is a fault.
        blocking: True where `act` takes long enough (> 10 ms) to be run off the event loop.
        max_observation_chars: longer observations are a fault of the environment.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"]}  # noqa: RUF012 - Gymnasium's own declaration
    observation_space: gymnasium.Space[str] = Utf8Text()
    action_space: gymnasium.Space[str] = Utf8Text()

    forking: ClassVar[Forking] = Forking.NONE
    reward_range: ClassVar[tuple[float, float]] = (-math.inf, math.inf)
    blocking: ClassVar[bool] = False
    max_observation_chars: ClassVar[int] = 1_000_000

    _arguments: tuple[tuple[Any, ...], dict[str, Any]]
    _episode: Episode | None
    _runner: asyncio.Runner | None

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Remember the constructor's arguments, so that `fork` can make a sibling; refuse unknown ones."""
        known = _constructor_options(cls)
        if known is not None:
            for name in kwargs:
                if name not in known:
                    raise unknown_name(f"option of {cls.__name__}", name, known)
        env = super().__new__(cls)
        env._arguments = (args, kwargs)
        env._episode = None
        env._runner = None
        return env

    def __init__(self, *, render_mode: str | None = None) -> None:
        if render_mode not in (None, "ansi"):
            raise ConfigError(f"{type(self).__name__} renders as 'ansi' (text) only, not {render_mode!r}")
        self.render_mode = render_mode

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for sync, asynchronous in (("start", "start_async"), ("act", "act_async")):
            if sync in vars(cls) and asynchronous in vars(cls):
                raise ConfigError(f"{cls.__name__}: write either {sync} or {asynchronous}; the base class supplies the other")

    # ------------------------------------------------------------------ what an author writes

    def start(self, options: Mapping[str, Any]) -> Reply:
        """Begin an episode with randomness from `self.np_random` alone, and give the first observation."""
        raise NotImplementedError(f"{type(self).__name__} must define start or start_async")

    def act(self, action: str) -> Reply:
        """Answer one action. What the policy can cause is answered; raise only where the environment is broken."""
        raise NotImplementedError(f"{type(self).__name__} must define act or act_async")

    async def start_async(self, options: Mapping[str, Any]) -> Reply:
        """`start` for environments that wait for something."""
        return await asyncio.to_thread(self.start, options) if self.blocking else self.start(options)

    async def act_async(self, action: str) -> Reply:
        """`act` for environments that wait for something."""
        return await asyncio.to_thread(self.act, action) if self.blocking else self.act(action)

    def get_state(self) -> Any:
        """Everything that the future depends on, except `np_random` (the base class carries that)."""
        raise NotImplementedError(f"{type(self).__name__} has forking=exact and must define get_state and set_state")

    def set_state(self, state: Any) -> None:
        """Put back what `get_state` gave; the object is private to this environment."""
        raise NotImplementedError(f"{type(self).__name__} has forking=exact and must define get_state and set_state")

    def copy_state(self, state: Any) -> Any:
        """A copy that shares nothing mutable. Override where `copy.deepcopy` is slow or wrong."""
        return copy.deepcopy(state)

    # ------------------------------------------------------------------ Gymnasium

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode. The same seed gives the same episode.

        Raises:
            EnvFault: where the environment can't start.
        """
        self._open(seed, options)
        try:
            reply = self._run("start", options or {})
        except Exception as error:
            raise self._fault("reset", error) from error
        return self._opened(reply)

    def step(self, action: str) -> Step:
        """Take one action: the assistant's whole text.

        Raises:
            ConfigError: before `reset`, after the end, or where `action` is not a string.
            EnvFault: where the environment broke. The episode is void; `reset` starts another.
        """
        self._check_action(action)
        try:
            reply = self._run("act", action)
        except Exception as error:
            raise self._fault("step", error) from error
        return self._stepped(action, reply)

    async def reset_async(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """`reset` without blocking the event loop."""
        self._open(seed, options)
        try:
            reply = await self.start_async(options or {})
        except Exception as error:
            raise self._fault("reset", error) from error
        return self._opened(reply)

    async def step_async(self, action: str) -> Step:
        """`step` without blocking the event loop."""
        self._check_action(action)
        try:
            reply = await self.act_async(action)
        except Exception as error:
            raise self._fault("step", error) from error
        return self._stepped(action, reply)

    def render(self) -> str | None:  # type: ignore[override]
        """The last observation, in render mode `ansi`."""
        return self._episode.observation if self.render_mode == "ansi" and self._episode else None

    def close(self) -> None:
        """Release everything. Safe to call twice."""
        self._episode = None
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    # ------------------------------------------------------------------ forks

    def state_key(self) -> str:
        """32 hex digits of the full state. Equal keys promise equal futures under equal actions.

        Exact environments digest their state and generator; the others digest how they got here.
        """
        episode = self._running()
        if self.forking is Forking.EXACT:
            return state_digest(self.get_state(), self.np_random.bit_generator.state, episode.over)
        return state_digest(episode.rng_state, episode.options, episode.actions, episode.digests)

    def snapshot(self) -> Snapshot:
        """Remember this point of the episode. Costs no env step.

        Raises:
            ConfigError: where `forking` is none.
        """
        episode = self._running()
        if self.forking is Forking.NONE:
            raise ConfigError(f"{type(self).__name__} can't be forked (forking=none): use root groups on it")
        state = self.copy_state(self.get_state()) if self.forking is Forking.EXACT else None
        return Snapshot(type(self), state, self._rng_state(), episode.copy(), self.state_key())

    def restore(self, snapshot: Snapshot) -> None:
        """Return to `snapshot`, and verify that the state is the one it was taken in.

        Raises:
            ForkDiverged: where it is not; `turn` names the first turn whose observation differs.
        """
        if snapshot.env_class is not type(self):
            raise ConfigError(f"a snapshot of {snapshot.env_class.__name__} can't be restored in {type(self).__name__}")
        if snapshot.state is None:
            self._replay(snapshot.episode)
        else:
            self.np_random.bit_generator.state = snapshot.rng_state
            self._episode = snapshot.episode.copy()
            self.set_state(self.copy_state(snapshot.state))
        if self.state_key() != snapshot.state_key:
            raise ForkDiverged(
                f"{type(self).__name__}: state differs after restoring turn {snapshot.turn}", turn=snapshot.turn
            )

    def fork(self, n: int = 1) -> list[Self]:
        """`n` environments in this state, isolated from it and from each other."""
        snapshot = self.snapshot()
        children = [self.sibling() for _ in range(n)]
        for child in children:
            child.restore(snapshot)
        return children

    def sibling(self) -> Self:
        """A fresh environment made with the same arguments."""
        args, kwargs = self._arguments
        other = type(self)(*args, **kwargs)
        other.spec = self.spec
        return other

    def _replay(self, episode: Episode) -> None:
        self.np_random.bit_generator.state = episode.rng_state
        self.reset(options=episode.options)
        mine = self._running()
        for turn, digest in enumerate(episode.digests):
            if turn:
                self.step(episode.actions[turn - 1])
            if mine.digests[turn] != digest:
                raise ForkDiverged(
                    f"{type(self).__name__}: replay gives another observation at turn {turn}", turn=turn
                )

    # ------------------------------------------------------------------ inside

    def _run(self, hook: str, argument: Any) -> Reply:
        """Call the author's hook, through an event loop of this environment where it is async."""
        if getattr(type(self), f"{hook}_async") is getattr(TurnEnv, f"{hook}_async"):
            reply: Reply = getattr(self, hook)(argument)
            return reply
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(getattr(self, f"{hook}_async")(argument))

    def _open(self, seed: int | None, options: dict[str, Any] | None) -> None:
        super().reset(seed=seed)
        self._episode = Episode(self._rng_state(), options)

    def _rng_state(self) -> Mapping[str, Any]:
        state: Mapping[str, Any] = self.np_random.bit_generator.state
        return state

    def _opened(self, reply: Reply) -> tuple[str, dict[str, Any]]:
        episode = self._running()
        text = self._checked(reply)
        episode.observation = text
        episode.digests.append(_digest(text, reply))
        return text, {**reply.info, "messages": self._messages(reply, text, first=True)}

    def _stepped(self, action: str, reply: Reply) -> Step:
        episode = self._running()
        text = self._checked(reply)
        episode.observation = text
        episode.actions.append(action)
        episode.digests.append(_digest(text, reply))
        episode.over = reply.terminated or reply.truncated
        info = {**reply.info, "messages": self._messages(reply, text, first=False)}
        if episode.over:
            info["success"] = reply.success
        return text, float(reply.reward), bool(reply.terminated), bool(reply.truncated), info

    def _messages(self, reply: Reply, text: str, *, first: bool) -> list[Message]:
        if reply.messages is not None:
            return list(reply.messages)
        return [Message("user" if first else "tool", text)]

    def _checked(self, reply: Reply) -> str:
        low, high = self.reward_range
        if not low <= reply.reward <= high:  # false for NaN as well
            raise self._fault("step", ValueError(f"reward {reply.reward!r} is not in [{low}, {high}]"))
        if len(reply.text) > self.max_observation_chars:
            raise self._fault("step", ValueError(f"observation of {len(reply.text)} characters"))
        return reply.text if reply.text.isascii() else reply.text.encode("utf-8", "replace").decode()

    def _check_action(self, action: str) -> None:
        if not isinstance(action, str):
            raise ConfigError(f"an action is the assistant's text (str), got {type(action).__name__}")
        if self._running().over:
            raise ConfigError("the episode is over: call reset() before the next step()")

    def _running(self) -> Episode:
        if self._episode is None:
            raise ConfigError(f"{type(self).__name__}: call reset() first")
        return self._episode

    def _fault(self, where: str, error: Exception) -> TurngymError:
        """What to raise for `error`. Faults and refusals pass as they are; anything else is an `EnvFault`."""
        self._episode = None
        if isinstance(error, TurngymError):
            return error
        return EnvFault(f"{type(self).__name__}.{where} failed: {type(error).__name__}: {error}")


@functools.cache
def _constructor_options(cls: type) -> frozenset[str] | None:
    parameters = inspect.signature(cls.__init__).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return frozenset(p.name for p in parameters if p.name != "self")


def _digest(text: str, reply: Reply) -> str:
    return state_digest(text, float(reply.reward), bool(reply.terminated), bool(reply.truncated))


__all__ = ["Forking", "Snapshot", "Step", "TurnEnv"]
