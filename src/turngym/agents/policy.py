"""The contract of a policy: token ids in, sampled token ids with their log-probs out.

A policy never sees text that it has to tokenise: the loop hands it the ids of the context (see `agents.chat`)
and records the ids that it sampled, so what is trained is what was sampled. Policies that decide on text or on
the environment itself (scripts, oracles) read the optional `Turn` instead and ignore the ids.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from turngym.agents.chat import Renderer
from turngym.envs.base import TurnEnv
from turngym.errors import ConfigError
from turngym.types import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleParams:
    """How to sample one action."""

    max_tokens: int = 64
    "the action ends after this many tokens, with finish reason `length`"
    temperature: float = 1.0
    "0 is greedy; recorded log-probs are always those of the distribution that was sampled from"
    top_p: float = 1.0
    "keep the smallest set of tokens whose probability reaches this"
    top_k: int = 0
    "keep this many tokens; 0 keeps all"
    seed: int = 0
    "the action is a function of the context, these parameters and the policy's weights"

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ConfigError(f"max_tokens must be at least 1, got {self.max_tokens}")
        if not 0 <= self.temperature < math.inf or not 0 < self.top_p <= 1 or self.top_k < 0:
            raise ConfigError(
                f"need a finite temperature ≥ 0, 0 < top_p ≤ 1, top_k ≥ 0; got {self.temperature}, {self.top_p}, {self.top_k}"
            )


@dataclass(frozen=True, slots=True)
class Sample:
    """One action as it was sampled."""

    ids: IntArray
    "`(T,)`, T ≥ 1; ends with an end-of-turn id exactly when `finish_reason` is `stop`"
    logprobs: FloatArray
    "`(T,)` log-probs in nats under the distribution that was sampled from"
    version: int
    "version of the weights that sampled it"
    finish_reason: Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Turn:
    """What a scripted policy may look at. Policies that learn ignore it."""

    env: TurnEnv
    observation: str
    index: int
    "0 for the first action of the path"


@runtime_checkable
class Policy(Protocol):
    """Anything that acts. `sample` is called concurrently for every live episode and batches behind the call."""

    name: str
    "as a person would ask for it (`local:sprout`)"
    window: int | None
    "tokens that fit one context with its action; None is unlimited"

    @property
    def renderer(self) -> Renderer:
        """Turns messages into this policy's ids; the same object serves sampling and training."""
        ...

    @property
    def version(self) -> int:
        """Number of updates in the weights that the next token is sampled from."""
        ...

    async def sample(self, context_ids: IntArray, params: SampleParams, turn: Turn | None = None) -> Sample:
        """Sample one action after `context_ids` `(T,)`.

        Raises:
            HarnessFault: where the engine broke; the sample is void and retried.
        """
        ...

    async def close(self) -> None:
        """Release weights, caches and connections. Safe to call twice."""
        ...


def whole_sample(ids: IntArray, logprob: float, version: int) -> Sample:
    """A finished sample whose total log-prob sits on its first token: for actions chosen as one piece."""
    logprobs = np.zeros(ids.size, np.float32)
    logprobs[0] = logprob
    return Sample(ids, logprobs, version, "stop")
