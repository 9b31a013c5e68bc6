"""The words of turngym as types.

Glossary
    task         frozen description of one problem (`tasks.Task`)
    environment  turns actions into observations and rewards (`envs.TurnEnv`)
    episode      one environment from its first observation to its stop
    turn         one action of the policy plus the environment's reply
    env step     one call of `env.step`; an optimiser step is an *update*
    observation  what the policy is given; the *state* is everything the environment knows
    action       the tokens that the policy emitted in a turn
    path         one root-to-leaf walk of a `Tree`; *trajectory* is the same thing in prose
    rollout      one path as a statistical unit
    group        rollouts of one task that share a baseline
    reward       emitted scalar; *return* its (discounted) sum; *value* an expected return;
                 *advantage* return minus baseline
    terminated   ended by the task; *truncated* ended by a limit
    fault        something broke that the policy could not cause: never a reward (see `errors`)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from turngym.errors import ConfigError, unknown_name

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call that the policy asked for."""

    name: str
    arguments: Mapping[str, Any]
    id: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message in the field's common form."""

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    name: str | None = None
    tool_call_id: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The message as chat templates and OpenAI-style endpoints take it; empty fields are left out."""
        out: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.tool_calls:
            out["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": dict(c.arguments)}}
                for c in self.tool_calls
            ]
        if self.name is not None:
            out["name"] = self.name
        if self.tool_call_id is not None:
            out["tool_call_id"] = self.tool_call_id
        return out


class StopReason(StrEnum):
    """Why a path ended. `docs/metrics.md` counts each under `stop/*`."""

    TERMINATED = "terminated"
    """The task ended the episode (solved or lost)."""
    ENV_LIMIT = "env_limit"
    """The environment truncated the episode by a limit that belongs to the task."""
    TURNS = "turns"
    """`Budget.turns` was used up."""
    CONTEXT = "context"
    """The next prompt would not fit `Budget.context_tokens`."""
    EPISODE_TOKENS = "episode_tokens"
    """`Budget.episode_tokens` was used up by tokens that the policy sampled."""
    TOOL_OUTPUT = "tool_output"
    """One observation was longer than `Budget.observation_tokens` and cutting was not allowed."""
    WALL_TIME = "wall_time"
    """`Budget.wall_time_s` ran out."""
    ENV_FAULT = "env_fault"
    """The environment broke in a way that the policy could not cause."""
    HARNESS_FAULT = "harness_fault"
    """The harness broke: our code, the engine, the network."""
    ABORTED = "aborted"
    """The run was stopped (Ctrl-C, shutdown) before the episode ended."""

    @property
    def is_fault(self) -> bool:
        """True where the path must never enter a statistic."""
        return self in _VOID

    @property
    def is_budget(self) -> bool:
        """True where a limit of ours, not the task, ended the path."""
        return self in _BUDGETS


_VOID = frozenset({StopReason.ENV_FAULT, StopReason.HARNESS_FAULT, StopReason.ABORTED})
_BUDGETS = frozenset(
    {
        StopReason.TURNS,
        StopReason.CONTEXT,
        StopReason.EPISODE_TOKENS,
        StopReason.TOOL_OUTPUT,
        StopReason.WALL_TIME,
    }
)


class Outcome(StrEnum):
    """How an episode counts."""

    SUCCESS = "success"
    FAILURE = "failure"
    TRUNCATED = "truncated"
    ENV_FAULT = "env_fault"
    HARNESS_FAULT = "harness_fault"
    ABORTED = "aborted"

    @classmethod
    def of(cls, stop: StopReason, success: bool | None) -> Outcome:
        """The outcome of a path that stopped for `stop`, with the verifier's word on it.

        A success that was reached stays a success whatever limit came after it; a limit of the task
        (`ENV_LIMIT`) is the policy's failure, a limit of ours is `TRUNCATED`.
        """
        if stop is StopReason.ABORTED:
            return cls.ABORTED
        if stop.is_fault:
            return cls.ENV_FAULT if stop is StopReason.ENV_FAULT else cls.HARNESS_FAULT
        if success:
            return cls.SUCCESS
        return cls.TRUNCATED if stop.is_budget else cls.FAILURE

    @property
    def counts(self) -> bool:
        """True where the episode enters statistics."""
        return self in (Outcome.SUCCESS, Outcome.FAILURE, Outcome.TRUNCATED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Every limit of one episode under its own name; None means no limit.

    A shared prefix is counted once: budgets of a whole tree count nodes, not paths.
    """

    turns: int | None = None
    "actions of the policy on one path"
    turn_tokens: int = 64
    "tokens that the policy may sample in one action"
    context_tokens: int | None = None
    "tokens in one prompt plus its action; the model's window is always a limit as well"
    episode_tokens: int | None = None
    "tokens that the policy may sample on one path"
    observation_tokens: int | None = None
    "tokens of one observation; a longer one ends the path with `StopReason.TOOL_OUTPUT`"
    wall_time_s: float | None = None
    "seconds for one path, forks counted from the fork"

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if value is None and f.name != "turn_tokens":
                continue
            kinds = (int, float) if f.name == "wall_time_s" else (int,)
            if type(value) not in kinds or not value > 0:
                kind = "number" if f.name == "wall_time_s" else "integer"
                raise ConfigError(
                    f"budget {f.name} must be a positive {kind}, got {value!r}; leave it out for the default"
                )


@dataclass(slots=True)
class Reply:
    """What an environment answers: the observation and what Gymnasium calls the rest of the tuple."""

    text: str
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    success: bool | None = None
    messages: Sequence[Message] | None = None
    info: dict[str, Any] = field(default_factory=dict)


def from_mapping(cls: type[Any], data: Mapping[str, Any], *, where: str) -> Any:
    """Build dataclass `cls` from `data`; an unknown field is an error that names the nearest one.

    Args:
        cls: a dataclass.
        data: field names to values, as read from TOML or a command line.
        where: what is being read, for the message ("[budget] of config.toml").

    Raises:
        UnknownName: for a field that `cls` does not have.
        ConfigError: for a value that `cls` refuses.
    """
    known = {f.name for f in fields(cls) if f.init}
    for name in data:
        if name not in known:
            raise unknown_name(f"option of {where}", name, known)
    try:
        return cls(**data)
    except TypeError as error:
        raise ConfigError(f"{where}: {error}") from error


__all__ = [
    "Budget",
    "FloatArray",
    "IntArray",
    "Message",
    "Outcome",
    "Reply",
    "Role",
    "StopReason",
    "ToolCall",
    "from_mapping",
]
