"""`ToolCalling`: the base of environments in which every action is one or more tool calls.

An author marks methods as tools, begins the episode, and says after each turn whether it is over:

    class Counter(ToolCalling):
        \"\"\"Count to three.\"\"\"

        forking = Forking.EXACT

        def start(self, options):
            self.count = 0
            return self.opening("Count to three.")

        @tool
        def add(self, by: int = 1) -> int:
            \"\"\"Add to the counter.\"\"\"
            if by < 1:
                raise ToolError("by must be positive")
            self.count += by
            return self.count

        async def judge(self, answer, last):
            return Ending(success=self.count == 3) if self.count >= 3 else None

        def get_state(self): return self.count
        def set_state(self, state): self.count = state

Malformed calls, unknown tools and wrong arguments are answered with words that a model can repair from, cost a turn,
and are counted in `info["tool_errors"]`. The number of turns taken is part of the episode, not of the author's state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from turngym.envs.base import TurnEnv
from turngym.envs.state import state_digest
from turngym.envs.tool.toolbox import Answer, Toolbox
from turngym.envs.tool.tools import Tool, tools_of
from turngym.errors import ConfigError, unknown_name
from turngym.types import Message, Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How an episode ended."""

    success: bool | None
    reward: float | None = None
    "None gives 1 for a success and 0 for all else"
    text: str = ""
    "said to the policy after its tools' results"


class ToolCalling(TurnEnv):
    """An environment whose actions are tool calls.

    Args:
        max_turns: actions allowed; running out of them is the policy's failure. None sets no limit.
        max_output_chars: of one tool result; the middle of a longer one is left out.
        max_calls: in one turn.
        render_mode: None or `ansi`.
    """

    reward_range = (0.0, 1.0)

    def __init__(
        self,
        *,
        max_turns: int | None = None,
        max_output_chars: int = 4000,
        max_calls: int = 16,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(render_mode=render_mode)
        if max_turns is not None and max_turns < 1:
            raise ConfigError(f"max_turns must be at least 1, got {max_turns}")
        self.max_turns = max_turns
        self.toolbox = Toolbox(self.make_tools(), max_output_chars=max_output_chars, max_calls=max_calls)

    # ------------------------------------------------------------------ what an author writes, beside `start`

    def make_tools(self) -> Iterable[Tool]:
        """The tools; by default the methods marked with `@tool`. Called once, by the constructor."""
        return tools_of(self)

    async def judge(self, answer: Answer, last: bool) -> Ending | None:
        """Called after every turn: the end of the episode, or None where it goes on.

        Args:
            answer: what became of the calls.
            last: no turn is left. Where that is so and this returns None, the episode is truncated, a failure.
        """
        raise NotImplementedError(f"{type(self).__name__} must define judge")

    async def said(self, text: str, answer: Answer) -> Answer:
        """Answer a text without any call. By default: the error that says how to write one.

        Override it where words have a meaning (a question to a user, a final answer).
        """
        return answer

    # ------------------------------------------------------------------ what it may use

    @property
    def turn(self) -> int:
        """Actions taken before the one that is being answered. 0 in the first turn."""
        return len(self._running().actions)

    def opening(self, task: str, *, rules: str = "", info: Mapping[str, Any] | None = None) -> Reply:
        """The first reply: `rules` and the tools as system message, `task` as user message.

        `info["tools"]` has the tools as OpenAI-style endpoints take them.
        """
        system = f"{rules}\n\n{self.toolbox.describe()}" if rules else self.toolbox.describe()
        messages = [Message("system", system), Message("user", task)]
        told = {"tools": self.toolbox.specs(), **(info or {})}
        return Reply(f"{system}\n\n{task}", messages=messages, info=told)

    def refuse_options(self, options: Mapping[str, Any], known: Iterable[str] = ()) -> None:
        """Refuse reset options that are not `known`."""
        known = list(known)
        for name in options:
            if name not in known:
                raise unknown_name(f"reset option of {type(self).__name__}", name, known)

    # ------------------------------------------------------------------ the contract

    def state_key(self) -> str:
        """32 hex digits of the full state, turns taken included: what is left of them is part of the future."""
        return state_digest(super().state_key(), self.turn)

    async def act_async(self, action: str) -> Reply:
        """Run what the action asks for, then let `judge` speak."""
        last = self.max_turns is not None and self.turn + 1 >= self.max_turns
        answer = await self.toolbox.answer(action)
        if answer.errors == ("no_call",):
            answer = await self.said(action, answer)
        ending = await self.judge(answer, last)
        messages = list(answer.messages)
        info = {"tool_calls": len(answer.results), "tool_errors": list(answer.errors)}
        if ending is None:
            success = False if last else None
            return Reply(answer.text, truncated=last, success=success, messages=messages, info=info)
        if ending.text:
            messages.append(Message("tool", ending.text))
        reward = float(bool(ending.success)) if ending.reward is None else ending.reward
        text = "\n".join(message.content for message in messages)
        return Reply(text, reward, terminated=True, success=ending.success, messages=messages, info=info)


__all__ = ["Ending", "ToolCalling"]
