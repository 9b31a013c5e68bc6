"""A policy in the role of the user: its replies follow from the conversation and the seed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from small_models import CHATML, byte_tokenizer, tiny_model
from turngym.agents.policies.local import LocalPolicy
from turngym.agents.policy import SampleParams
from turngym.agents.simulated_user import PolicyUser
from turngym.errors import ConfigError
from turngym.types import Message

TALK = [
    Message("system", "You are a customer."),
    Message("user", "Hi! How can I help you today?"),
    Message("assistant", "My phone has no service."),
    Message("user", "Please restart it."),
]


def ask(messages: list[Message], *, window: int | None = None, seed: int = 0, **params: Any) -> str:
    async def reply() -> str:
        policy = LocalPolicy(tiny_model(), byte_tokenizer(CHATML), window=window)
        try:
            return await PolicyUser(policy, SampleParams(max_tokens=12, **params)).reply(messages, seed=seed)
        finally:
            await policy.close()

    return asyncio.run(reply())


def test_a_reply_follows_from_the_conversation_and_the_seed() -> None:
    assert ask(TALK, seed=1) == ask(TALK, seed=1)
    assert len({ask(TALK, seed=seed) for seed in range(4)}) > 1
    assert ask(TALK, temperature=0.0) != ask(TALK[:2], temperature=0.0)


def test_a_long_conversation_loses_its_oldest_messages() -> None:
    long = [TALK[0], *([Message("user", "x" * 40), Message("assistant", "y" * 40)] * 8), *TALK[3:]]
    assert ask(long, window=220, temperature=0.0) != ask(long, temperature=0.0)


def test_instructions_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"take \d+ tokens, and 12 for the reply; local has a window of 64"):
        ask([Message("system", "z" * 200), TALK[1]], window=64)
