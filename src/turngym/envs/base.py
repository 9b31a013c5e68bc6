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
import math
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar, Self

import gymnasium
import numpy as np

from turngym.envs.episode import (
    Episode,
    Forking,
    Snapshot,
    bound_arguments,
    clean_text,
    constructor_options,
    reply_digest,
    reply_messages,
)
from turngym.envs.spaces import Utf8Text
from turngym.envs.state import state_digest
from turngym.errors import ConfigError, EnvFault, ForkDiverged, TurngymError, unknown_name
from turngym.options import check_values
from turngym.types import Reply

Step = tuple[str, float, bool, bool, dict[str, Any]]


_NO_FOLDS = {"fold": "It keeps no folds: train on it with tasks.folds = false."}


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

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 - Gymnasium's own declaration
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
        """Remember the constructor's arguments, so that `fork` can make a sibling; refuse unknown and impossible ones."""
        known = constructor_options(cls.__init__)
        if known is not None:
            for name in kwargs:
                if name not in known:
                    raise unknown_name(f"option of {cls.__name__}", name, known, hint=_NO_FOLDS.get(name, ""))
        check_values(cls.__init__, kwargs, what=cls.__name__)
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
                raise ConfigError(
                    f"{cls.__name__}: write {sync} or {asynchronous}; the base class supplies the other"
                )

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
        raise NotImplementedError(f"{type(self).__name__} has forking=exact: define get_state and set_state")

    def set_state(self, state: Any) -> None:
        """Put back what `get_state` gave; the object is private to this environment."""
        raise NotImplementedError(f"{type(self).__name__} has forking=exact: define get_state and set_state")

    def copy_state(self, state: Any) -> Any:
        """A copy that shares nothing mutable. Override where `copy.deepcopy` is slow or wrong."""
        return copy.deepcopy(state)

    # ------------------------------------------------------------------ Gymnasium

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin an episode. The same seed gives the same episode.

        Raises:
            EnvFault: where the environment can't start.
        """
        chosen = self._open(seed, options)
        try:
            reply = self._run("start", chosen)
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
        chosen = self._open(seed, options)
        try:
            reply = await self.start_async(chosen)
        except asyncio.CancelledError:
            self._episode = None  # nobody knows how far it came
            raise
        except Exception as error:
            raise self._fault("reset", error) from error
        return self._opened(reply)

    async def step_async(self, action: str) -> Step:
        """`step` without blocking the event loop. One that is cancelled voids the episode."""
        self._check_action(action)
        try:
            reply = await self.act_async(action)
        except asyncio.CancelledError:
            self._episode = None
            raise
        except Exception as error:
            raise self._fault("step", error) from error
        return self._stepped(action, reply)

    def render(self) -> str | None:
        """The last observation, in render mode `ansi`."""
        return self._episode.observation if self.render_mode == "ansi" and self._episode else None

    @property
    def observation(self) -> str:
        """The last observation's text."""
        return self._running().observation

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
        return Snapshot(type(self), self._bound(), state, self._rng_state(), episode.copy(), self.state_key())

    def restore(self, snapshot: Snapshot) -> None:
        """Return to `snapshot`, and verify that the state is the one it was taken in.

        Raises:
            ConfigError: for a snapshot of another class, or of one made with other arguments.
            EnvFault: where the state can't be put back.
            ForkDiverged: where the state differs; `turn` names the first turn whose reply differs. The episode is
                void then: `reset` or another `restore` starts a new one.
        """
        self._check_snapshot(snapshot)
        if self.forking is Forking.EXACT:
            self._put_back(snapshot)
            self._verify(snapshot)
        else:
            self._replay(snapshot)

    async def restore_async(self, snapshot: Snapshot) -> None:
        """`restore` without blocking the event loop."""
        self._check_snapshot(snapshot)
        if self.forking is Forking.EXACT:
            self._put_back(snapshot)
            self._verify(snapshot)
        else:
            await self._replay_async(snapshot)

    def fork(self, n: int = 1) -> list[Self]:
        """`n` environments in this state, isolated from it and from each other."""
        snapshot = self.snapshot()
        with self._siblings(n) as children:
            for child in children:
                child.restore(snapshot)
        return children

    async def fork_async(self, n: int = 1) -> list[Self]:
        """`fork` without blocking the event loop."""
        snapshot = self.snapshot()
        with self._siblings(n) as children:
            for child in children:
                await child.restore_async(snapshot)
        return children

    @property
    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What the constructor was given: positional arguments, and those by name."""
        return self._arguments

    def sibling(self) -> Self:
        """A fresh environment made with the same arguments."""
        args, kwargs = self._arguments
        other = type(self)(*args, **kwargs)
        other.spec = self.spec
        return other

    @contextmanager
    def _siblings(self, n: int) -> Iterator[list[Self]]:
        """`n` siblings, closed again where what is done with them fails."""
        children: list[Self] = []
        try:
            children.extend(self.sibling() for _ in range(n))
            yield children
        except BaseException:
            for child in children:
                child.close()
            raise

    def _check_snapshot(self, snapshot: Snapshot) -> None:
        if snapshot.env_class is not type(self):
            raise ConfigError(
                f"a snapshot of {snapshot.env_class.__name__} can't be restored in {type(self).__name__}"
            )
        if snapshot.arguments != self._bound():
            raise ConfigError(
                f"a snapshot of {type(self).__name__} made with {dict(snapshot.arguments)} can't be restored in one "
                f"made with {self._bound()}: use env.sibling()"
            )

    def _put_back(self, snapshot: Snapshot) -> None:
        self.np_random.bit_generator.state = snapshot.rng_state
        self._episode = snapshot.episode.copy()
        try:
            self.set_state(self.copy_state(snapshot.state))
        except Exception as error:
            raise self._fault("restore", error) from error

    def _replay(self, snapshot: Snapshot) -> None:
        """Come to the state of `snapshot` by its recorded actions."""
        for action in self._replaying(snapshot.episode):
            if action is None:
                self.reset(options=snapshot.episode.options)
            else:
                self.step(action)
        self._verify(snapshot)

    async def _replay_async(self, snapshot: Snapshot) -> None:
        """`_replay` without blocking the event loop."""
        for action in self._replaying(snapshot.episode):
            if action is None:
                await self.reset_async(options=snapshot.episode.options)
            else:
                await self.step_async(action)
        self._verify(snapshot)

    def _replaying(self, recorded: Episode) -> Generator[str | None, None, None]:
        """Yield what repeats `recorded` (None for the reset, then each action), and compare every reply."""
        self.np_random.bit_generator.state = recorded.rng_state
        for turn, digest in enumerate(recorded.digests):
            yield recorded.actions[turn - 1] if turn else None
            if self._running().digests[turn] != digest:
                self._episode = None
                raise ForkDiverged(
                    f"{type(self).__name__}: replay gives another reply at turn {turn}", turn=turn
                )

    def _verify(self, snapshot: Snapshot) -> None:
        if self.state_key() != snapshot.state_key:
            self._episode = None
            raise ForkDiverged(
                f"{type(self).__name__}: the state differs after restoring turn {snapshot.turn}",
                turn=snapshot.turn,
            )

    # ------------------------------------------------------------------ inside

    def _run(self, hook: str, argument: Any) -> Any:
        """Call the author's hook, through an event loop of this environment where it is async."""
        if getattr(type(self), f"{hook}_async") is getattr(TurnEnv, f"{hook}_async"):
            return getattr(self, hook)(argument)
        if _in_event_loop():
            raise ConfigError(
                f"{type(self).__name__} is asynchronous: inside an event loop, await reset_async, step_async, "
                "restore_async and fork_async"
            )
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(getattr(self, f"{hook}_async")(argument))

    def _open(self, seed: int | None, options: dict[str, Any] | None) -> dict[str, Any]:
        """Begin to remember an episode; returns the options that `start` is given."""
        super().reset(seed=seed)
        kept = copy.deepcopy(options) if options else None
        self._episode = Episode(self._rng_state(), kept)
        return kept or {}

    def _rng_state(self) -> Mapping[str, Any]:
        state: Mapping[str, Any] = self.np_random.bit_generator.state
        return state

    def _bound(self) -> dict[str, Any]:
        return bound_arguments(type(self), *self._arguments)

    def _opened(self, reply: Reply) -> tuple[str, dict[str, Any]]:
        reply = self._checked("reset", reply)
        episode = self._running()
        episode.observation = reply.text
        episode.digests.append(reply_digest(reply.text, reply))
        return reply.text, {**reply.info, "messages": reply_messages(reply, "user")}

    def _stepped(self, action: str, reply: Reply) -> Step:
        reply = self._checked("step", reply)
        episode = self._running()
        episode.observation = reply.text
        episode.actions.append(action)
        episode.digests.append(reply_digest(reply.text, reply))
        episode.over = bool(reply.terminated or reply.truncated)
        info = {**reply.info, "messages": reply_messages(reply, "tool")}
        if episode.over:
            info["success"] = reply.success
        return reply.text, float(reply.reward), bool(reply.terminated), bool(reply.truncated), info

    def _checked(self, where: str, reply: Any) -> Reply:
        """`reply` with clean text; a reply that breaks the contract is a fault of the environment."""
        if not isinstance(reply, Reply) or not isinstance(reply.text, str):
            raise self._fault(where, TypeError(f"expected a Reply with text, got {str(reply)[:80]}"))
        low, high = self.reward_range if where == "step" else (0, 0)  # Gymnasium's reset has no reward
        reward = reply.reward
        if not (
            isinstance(reward, (int, float, np.number)) and low <= reward <= high and math.isfinite(reward)
        ):
            raise self._fault(
                where, ValueError(f"reward {reward!r} is not a finite number in [{low}, {high}]")
            )
        if len(reply.text) > self.max_observation_chars:
            raise self._fault(where, ValueError(f"observation of {len(reply.text)} characters"))
        return reply if reply.text.isascii() else replace(reply, text=clean_text(reply.text))

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


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


__all__ = ["Episode", "Forking", "Snapshot", "Step", "TurnEnv"]
