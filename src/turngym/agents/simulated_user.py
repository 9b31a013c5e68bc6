"""A policy in the role of an environment's user.

An environment with a user (`envs.adapters.tau2`) takes any object that has `async reply(messages, seed=)`. This one asks
a policy, which may be another than the one that acts, or the same. Nothing of what the user says is trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from turngym.agents.policy import Policy, SampleParams
from turngym.errors import ConfigError
from turngym.types import IntArray, Message


class PolicyUser:
    """Replies with what a policy samples after the conversation as the user sees it.

    A conversation that has outgrown the policy's window loses its oldest messages behind the system message.

    Args:
        policy: who plays the user; the caller closes it.
        params: how a reply is sampled; its seed is replaced by the environment's.

    Raises:
        ConfigError: at a reply, where the system message alone does not fit the window.
    """

    def __init__(self, policy: Policy, params: SampleParams | None = None) -> None:
        self.policy = policy
        self.params = params or SampleParams(max_tokens=256)

    async def reply(self, messages: Sequence[Message], *, seed: int) -> str:
        """What the user says next: a function of the messages, the seed and the policy's weights."""
        sample = await self.policy.sample(self._context(list(messages)), replace(self.params, seed=seed))
        return self.policy.renderer.text(sample.ids)

    def _context(self, messages: list[Message]) -> IntArray:
        """`(T,)` ids of the system message and the latest messages that fit."""
        window, room = self.policy.window, self.params.max_tokens
        for first in range(1, max(len(messages), 2)):
            ids = self.policy.renderer.open([messages[0], *messages[first:]]).ids
            if window is None or ids.size + room <= window:
                return ids
        raise ConfigError(
            f"the user's instructions and one message take {ids.size} tokens, and {room} for the reply; "
            f"{self.policy.name} has a window of {window}: use a policy with a larger one for the user"
        )


__all__ = ["PolicyUser"]
