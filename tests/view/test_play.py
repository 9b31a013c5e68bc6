"""One episode in the console: every word is shown, a human's shorthand becomes a call, hostile text is harmless."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Mapping
from typing import Any

import pytest
from rich.console import Console

from turngym.agents.loop import LoopOptions
from turngym.agents.policies.scripted import Oracle, Replay
from turngym.envs.base import TurnEnv
from turngym.envs.text.corridor import Corridor
from turngym.types import Budget, Outcome, Reply
from turngym.view.play import Human, spoken, watch

TOOLS = {"go": ("direction",), "guess": ("number",), "open": (), "put": ("what", "where")}


def played(env: TurnEnv, policy: Any, **options: Any) -> tuple[Outcome, str]:
    console = Console(file=io.StringIO(), width=120)
    outcome = asyncio.run(watch(env, policy, LoopOptions(**options), console, seed=3))
    assert isinstance(console.file, io.StringIO)
    return outcome, console.file.getvalue()


def test_an_episode_is_shown_from_the_rules_to_the_reward() -> None:
    outcome, text = played(Corridor(rooms=4), Oracle())
    assert outcome is Outcome.SUCCESS
    assert (
        text.index("Take the key")
        < text.index("You have")
        < text.index("assistant")
        < text.index("The door opens.")
    )
    assert text.rstrip().endswith("reward 1")
    assert "success (terminated) after" in text


def test_a_budget_and_a_fault_are_named() -> None:
    outcome, text = played(Corridor(), Oracle(), budget=Budget(turns=1))
    assert outcome is Outcome.TRUNCATED
    assert "truncated (turns) after 1 turn, reward 0" in text
    outcome, text = played(Corridor(), Replay([]))
    assert outcome is Outcome.HARNESS_FAULT
    assert "the recording has 0 actions" in text


def test_markup_and_control_characters_of_an_environment_are_only_text() -> None:
    class Rude(TurnEnv):
        def start(self, options: Mapping[str, Any]) -> Reply:
            return Reply("[bold red]boo[/] [/nothing] \x1b[2J\x07")

        def act(self, action: str) -> Reply:
            return Reply("over", terminated=True, success=False)

    _, text = played(Rude(), Replay(["[red]hm"]))
    assert "[bold red]boo[/] [/nothing]" in text
    assert "[red]hm" in text
    assert "\x1b" not in text
    assert "\x07" not in text


@pytest.mark.parametrize(
    ("line", "action"),
    [
        ("go east", '<tool_call>{"name": "go", "arguments": {"direction": "east"}}</tool_call>'),
        ("  guess   -7 ", '<tool_call>{"name": "guess", "arguments": {"number": -7}}</tool_call>'),
        ("open", '<tool_call>{"name": "open", "arguments": {}}</tool_call>'),
        (
            "put book shelf",
            '<tool_call>{"name": "put", "arguments": {"what": "book", "where": "shelf"}}</tool_call>',
        ),
        ("go", "go"),
        ("go far east", "go far east"),
        ("what now?", "what now?"),
        ("", ""),
        ('<tool_call>{"name": "open"}</tool_call>', '<tool_call>{"name": "open"}</tool_call>'),
    ],
)
def test_a_typed_line_becomes_a_call_where_it_reads_like_one(line: str, action: str) -> None:
    assert spoken(line, TOOLS) == action


def test_a_human_plays_and_leaves_with_the_end_of_the_input(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = iter(["go east"])

    def typed(self: Console, *args: Any, **kwargs: Any) -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr(Console, "input", typed)
    console = Console(file=io.StringIO(), width=120)
    with pytest.raises(SystemExit) as left:
        asyncio.run(watch(Corridor(rooms=4), Human(console), LoopOptions(), console, seed=3))
    assert left.value.code == 0
    assert isinstance(console.file, io.StringIO)
    assert "left the episode" in console.file.getvalue()
    assert '{"direction": "east"}' in console.file.getvalue()
