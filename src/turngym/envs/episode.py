"""What an environment remembers about its running episode, and a point of it to return to."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from turngym.envs.state import state_digest
from turngym.types import Message, Reply, Role

if TYPE_CHECKING:
    from turngym.envs.base import TurnEnv


class Forking(StrEnum):
    """How an environment forks."""

    EXACT = "exact"
    """The state is copied; no env step is spent."""
    REPLAY = "replay"
    """The recorded actions are played again into a fresh environment and every observation is compared."""
    NONE = "none"
    """`fork` and `restore` raise."""


@dataclass(slots=True)
class Episode:
    """Enough of the running episode to replay it and to compare."""

    rng_state: Mapping[str, Any]
    "state of `np_random` before `start`"
    options: dict[str, Any] | None
    actions: list[str] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    "one digest per reply; the first belongs to the reset"
    observation: str = ""
    over: bool = False

    def copy(self) -> Episode:
        """A copy that shares nothing mutable."""
        return Episode(
            self.rng_state,
            self.options,
            self.actions.copy(),
            self.digests.copy(),
            self.observation,
            self.over,
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A point of an episode that `TurnEnv.restore` returns to, in any environment made with the same arguments."""

    env_class: type[TurnEnv]
    arguments: Mapping[str, Any]
    state: Any
    "a private copy of the state (exact), or None (replay)"
    rng_state: Mapping[str, Any]
    episode: Episode
    state_key: str

    @property
    def turn(self) -> int:
        """Number of actions taken before the snapshot."""
        return len(self.episode.actions)


def reply_digest(text: str, reply: Reply) -> str:
    """Digest of what the policy and the trainer see of a reply: two equal replies have equal digests."""
    return state_digest(text, float(reply.reward), bool(reply.terminated), bool(reply.truncated))


def reply_messages(reply: Reply, role: Role) -> list[Message]:
    """What is new as chat messages: the author's own, or the text as one message of `role`."""
    if reply.messages is None:
        return [Message(role, reply.text)]
    return [m if m.content.isascii() else replace(m, content=clean_text(m.content)) for m in reply.messages]


def clean_text(text: str) -> str:
    """`text` without lone surrogates: no tokenizer and no file takes them."""
    return text.encode("utf-8", "replace").decode()


def bound_arguments(cls: type[TurnEnv], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Constructor arguments by name, defaults filled in; `render_mode` never changes a state and is left out."""
    bound = _signature(cls.__init__).bind(None, *args, **kwargs)
    bound.apply_defaults()
    return {name: value for name, value in bound.arguments.items() if name not in ("self", "render_mode")}


@functools.cache
def constructor_options(init: Callable[..., None]) -> frozenset[str] | None:
    """Names of the arguments that an `__init__` takes; None where it takes any."""
    parameters = _signature(init).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return frozenset(p.name for p in parameters if p.name != "self")


@functools.cache
def _signature(init: Callable[..., None]) -> inspect.Signature:
    return inspect.signature(init)
