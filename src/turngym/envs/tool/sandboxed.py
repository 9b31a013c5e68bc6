"""Base of tool environments whose world is a sandbox: a live interpreter and files that fork in mid-episode.

An author deals a task, begins it in a machine, and marks tools that use `self.machine`. The base class keeps train and
test instances apart, freezes and thaws the machine with the episode, and closes it.

The state of an episode is its task, the author's own record of it (`self.notes`, copied shallowly), every file, and what
the live sessions hold. Sessions can't be hashed, so the state key covers them by the way that led there: two episodes
have equal keys where they took the same actions, got the same replies, and have the same files.

A snapshot outlives its sandbox: where that is gone, the actions are taken again in another one, and every reply is
compared.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar

from turngym.envs.base import Forking
from turngym.envs.episode import Snapshot
from turngym.envs.folds import Fold, check_fold, deal_until, in_fold
from turngym.envs.state import state_digest
from turngym.envs.tool.calling import ToolCalling
from turngym.envs.tool.machines import Blueprint, Frozen, Machine, machines, scrub, wait
from turngym.envs.tool.tools import ToolError
from turngym.errors import ConfigError
from turngym.sandbox.base import SandboxLost
from turngym.types import Reply

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(slots=True)
class _Live(Generic[T]):
    """The state of a running episode."""

    task: T
    notes: dict[str, Any]
    machine: Machine


@dataclass(frozen=True, slots=True)
class _Kept(Generic[T]):
    """The state in a snapshot."""

    task: T
    notes: dict[str, Any]
    frozen: Frozen


class SandboxEnv(ToolCalling, Generic[T]):
    """A tool environment in a sandbox.

    Args:
        fold: instances of `train` and `test` never meet.
        sandbox: name of the backend; `best` is the first that this machine can run.
        max_turns: actions allowed; running out of them is the policy's failure.
        max_output_chars: of one tool result; the middle of a longer one is left out.
        render_mode: None or `ansi`.
    """

    forking: ClassVar[Forking] = Forking.EXACT
    blueprint: ClassVar[Blueprint]
    "what the machine of an episode starts as"

    _live: _Live[T] | None = None

    def __init__(
        self,
        *,
        fold: Fold = "train",
        sandbox: str = "best",
        max_turns: int = 12,
        max_output_chars: int = 2000,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(max_turns=max_turns, max_output_chars=max_output_chars, render_mode=render_mode)
        check_fold(fold)
        self.fold: Fold = fold
        self._machines = machines(replace(self.blueprint, sandbox=sandbox))

    # ------------------------------------------------------------------ what an author writes

    @abstractmethod
    def deal(self) -> T:
        """A random task, from `self.np_random` alone. It never changes, and `state_digest` can read it."""

    @abstractmethod
    async def begin(self, task: T) -> Reply:
        """Prepare `self.machine` for a task of this fold, and say what it is: see `ToolCalling.opening`."""

    def belongs(self, task: T) -> bool:
        """True where a task belongs to this environment's fold; by default its content decides."""
        return in_fold(task, self.fold)

    # ------------------------------------------------------------------ what it may use

    @property
    def machine(self) -> Machine:
        """The sandbox of this episode."""
        return self._alive().machine

    @property
    def task(self) -> T:
        """The task of this episode."""
        return self._alive().task

    @property
    def notes(self) -> dict[str, Any]:
        """The author's record of this episode: immutable values by name, copied with the state."""
        return self._alive().notes

    async def bash(self, command: str, *, timeout_s: float) -> str:
        """Run a command in the live shell: what it printed and, where it failed, its exit status; "ok" for neither.

        Raises:
            ToolError: for a command that no shell can read.
        """
        if "\0" in command:
            raise ToolError("a command can't contain NUL characters")
        done = await self.machine.cell("bash", command, timeout_s=timeout_s)
        status = f"[exit status {done.exit_code}]" if done.exit_code else ""
        return "\n".join(part for part in (scrub(done.text), status) if part) or "ok"

    def _alive(self) -> _Live[T]:
        if self._live is None:
            raise ConfigError(f"{type(self).__name__}: call reset() first")
        return self._live

    # ------------------------------------------------------------------ the contract

    async def start_async(self, options: Mapping[str, Any]) -> Reply:
        """Deal a task of this fold, and begin it in a fresh machine."""
        self.refuse_options(options)
        self._leave()
        task = deal_until(
            self.deal, self.belongs, what=f"task of {type(self).__name__} in the {self.fold} fold"
        )
        self._live = _Live(task, {}, await self._machines.start())
        return await self.begin(task)

    async def act_async(self, action: str) -> Reply:
        """See `ToolCalling`."""
        self.machine.turn = self.turn + 1
        return await super().act_async(action)

    def state_key(self) -> str:
        """Digest of the task, the files, and all that was done and said."""
        live, episode = self._alive(), self._running()
        files, rng = wait(live.machine.digest()), self.np_random.bit_generator.state
        return state_digest(live.task, live.notes, files, episode.actions, episode.digests, rng, episode.over)

    def get_state(self) -> _Live[T]:
        """The live state; `copy_state` freezes it."""
        return self._alive()

    def copy_state(self, state: _Live[T] | _Kept[T]) -> _Live[T] | _Kept[T]:
        """Freeze a live state, or thaw a frozen one."""
        if isinstance(state, _Live):
            return _Kept(state.task, state.notes.copy(), wait(state.machine.freeze()))
        return _Live(state.task, state.notes.copy(), wait(state.frozen.thaw()))

    def set_state(self, state: _Live[T]) -> None:
        """Go on from a state that was thawed."""
        self._leave()
        self._live = state

    def restore(self, snapshot: Snapshot) -> None:
        """See `TurnEnv.restore`; a snapshot whose sandbox is gone is played again."""
        try:
            super().restore(snapshot)
        except SandboxLost as error:
            _log_replay(snapshot, error)
            self._replay(snapshot)

    async def restore_async(self, snapshot: Snapshot) -> None:
        """`restore` without blocking the event loop."""
        try:
            await super().restore_async(snapshot)
        except SandboxLost as error:
            _log_replay(snapshot, error)
            await self._replay_async(snapshot)

    def close(self) -> None:
        """Give the sandbox back."""
        if self._live is not None:
            wait(self._live.machine.close())
            self._live = None
        super().close()

    def _leave(self) -> None:
        if self._live is not None:
            self._live.machine.abandon()
            self._live = None


def _log_replay(snapshot: Snapshot, error: SandboxLost) -> None:
    logger.warning("turn %d is played again, as its sandbox was lost: %s", snapshot.turn, error)


__all__ = ["SandboxEnv"]
