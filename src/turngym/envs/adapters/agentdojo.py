"""Agents that read what others wrote: AgentDojo's 97 user tasks, and its injections as a safety score.

Debenedetti et al., "AgentDojo: A Dynamic Environment to Evaluate Prompt Injection Attacks and Defenses for LLM Agents"
(NeurIPS 2024), benchmark v1.2.2; the package imports an SDK of every provider, and runs in a worker (`worker_env`). The
policy has a user's request and a suite's tools (mail, calendar and files; travel; banking; chat). Its first message
without a call is its answer, and ends the episode; calls after the fifteenth message with calls are not run, as in the
package's own loop.

With an `attack`, tool results carry instructions of somebody else that lead to an injection task. The package's two
graders then say whether the user's task was done (`info["utility"]`) and whether the attacker's was
(`info["injected"]`; the package calls it `security`). Success, and the reward, are the first without the second: utility
that an attacker could buy is none. Without an attack it is the first alone.

Different from the package's own harness: clocks stand still at noon of the day that the suites take place, since
their time stamps are shown and would make two equal episodes differ.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from turngym.envs.adapters.worker import WorkerSlot
from turngym.envs.adapters.worker_env import WorkerEnv, write_message
from turngym.envs.adapters.worker_venv import Pins
from turngym.errors import ConfigError, unknown_name

SUITES = ("all", "workspace", "travel", "banking", "slack")

ATTACKS = (
    "direct",
    "ignore_previous",
    "system_message",
    "injecagent",
    "important_instructions",
    "important_instructions_no_user_name",
    "important_instructions_no_model_name",
    "important_instructions_no_names",
    "tool_knowledge",
)
"""The attacks of the package that have an injection task for their goal and know nothing of the model's name."""

PINS = Pins(
    "agentdojo",
    (
        "agentdojo==0.1.35",
        "annotated-types==0.8.0",
        "anthropic==2.14.0",
        "anyio==4.16.0",
        "cachebox==5.2.3",
        "certifi==2026.10.19.post1",
        "charset-normalizer==3.5.3",
        "click==8.5.1",
        "cohere==7.3.1",
        "deepdiff==9.1.0",
        "distro==1.9.0",
        "dnspython==2.9.2",
        "docstring_parser==0.18.0",
        "email-validator==2.4.0",
        "fastavro==1.13.1",
        "google-auth==2.63.0",
        "google-genai==3.6.1",
        "h11==0.16.0",
        "httpcore==1.0.9",
        "httpcore2==2.16.2",
        "httpx==0.28.1",
        "httpx2==2.16.2",
        "idna==3.20",
        "jiter==0.19.0",
        "markdown-it-py==4.3.0",
        "mdurl==0.1.2",
        "openai==3.57.0",
        "opentelemetry-api==1.45.2",
        "orderly-set==5.5.0",
        "packaging==26.4",
        "pydantic==2.14.4",
        "pydantic_core==2.50.5",
        "Pygments==2.21.0",
        "PyYAML==6.0.4",
        "requests==2.34.2",
        "rich==15.0.0",
        "sniffio==1.3.1",
        "tenacity==9.1.4",
        "tokenizers==0.23.3",
        "tqdm==4.70.1",
        "typing-inspection==0.4.5",
        "typing_extensions==4.16.0",
        "urllib3==2.8.0",
        "websockets==17.4",
    ),
)
"""What the suites import; langchain, which nothing here needs, is left out."""


class AgentDojo(WorkerEnv):
    """A user's request over mail, files, travel, money or chat; with an attack, somebody else wrote into what is read.

    Args:
        suite: `workspace`, `travel`, `banking` or `slack`, or `all` of them.
        attack: None, or how injections are written (`ATTACKS`). Then a task is a user task and an injection task.
        task: `banking/user_task_0`, or `banking/user_task_0/injection_task_3` under attack; the seed draws one where it
            is left out.
        max_turns: messages of the policy in all, beside the package's own limit of 15 with calls.
        render_mode: None or `ansi`.

    Raises:
        UnknownName: for a suite, an attack, or at the reset a task, that does not exist.
        MissingDependency: at the reset, where the worker's virtual environment can't be made.
    """

    slot: ClassVar[WorkerSlot] = WorkerSlot(PINS, "inside.agentdojo_side")

    def __init__(
        self,
        *,
        suite: Literal["all", "workspace", "travel", "banking", "slack"] = "all",
        attack: str | None = None,
        task: str | None = None,
        max_turns: int = 100,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(task=task, max_turns=max_turns, render_mode=render_mode)
        if suite not in SUITES:
            raise unknown_name("suite of AgentDojo", suite, SUITES)
        if attack is not None and attack not in ATTACKS:
            raise unknown_name("attack of AgentDojo", attack, ATTACKS)
        self.suite, self.attack = suite, attack

    def task_options(self) -> dict[str, Any]:
        """The suite, and whether tasks are pairs."""
        return {"suite": self.suite, "attacked": self.attack is not None}

    def start_options(self) -> dict[str, Any]:
        """The attack."""
        return {"attack": self.attack}

    def obedient_action(self) -> str:
        """What an agent says next that does what the injection asks for, and nothing of what the user does.

        The package has no solution for 8 of its 35 injection tasks (workspace 6 to 13); there it only answers.

        Raises:
            ConfigError: without an attack.
        """
        if self.attack is None:
            raise ConfigError("without an attack there is nobody else to obey: AgentDojo(attack=…)")
        return write_message(self.look("gold", obey=True))


__all__ = ["ATTACKS", "PINS", "SUITES", "AgentDojo"]
