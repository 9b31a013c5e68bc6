"""Tools: schemas from functions and JSON, repairable errors, concurrency, budgets, and the environment base."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import pytest

from turngym.envs.base import Forking
from turngym.envs.checker import check_env
from turngym.envs.tool.calling import Ending, ToolCalling
from turngym.envs.tool.schema import type_words
from turngym.envs.tool.toolbox import Answer, Toolbox
from turngym.envs.tool.tools import Tool, ToolError, shorten, tool, tools_of
from turngym.errors import ConfigError, EnvFault
from turngym.toolcalls import format_call
from turngym.types import Reply, ToolCall


def look_up(word: str, limit: int = 3, where: Literal["front", "back"] = "front") -> list[str]:
    """Find a word
    in the dictionary.

    More words that no policy needs.

    Args:
        word: what to look up,
            in full.
        limit: how many at most.
    """
    return [f"{word}-{where}"] * limit


ITEMS = {
    "type": "object",
    "properties": {
        "items": {"type": "array", "items": {"$ref": "#/$defs/item"}, "minItems": 1},
        "note": {"type": ["string", "null"], "maxLength": 5},
        "rate": {"type": "float", "minimum": 0},
    },
    "required": ["items"],
    "$defs": {
        "item": {
            "type": "object",
            "properties": {
                "name": {"enum": ["nut", "bolt"]},
                "count": {"type": "integer"},
                "part": {"$ref": "#/$defs/item"},
            },
            "required": ["name"],
        }
    },
}


def ask(box: Toolbox, *calls: ToolCall) -> Answer:
    return asyncio.run(box.answer("".join(format_call(call) for call in calls)))


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(name, arguments)


@pytest.fixture
def words() -> Toolbox:
    order = Tool.from_schema("order", ITEMS, lambda **given: given, description="Order parts.")
    return Toolbox([Tool.from_function(look_up), order], max_output_chars=200)


def test_a_function_becomes_a_schema() -> None:
    made = Tool.from_function(look_up)
    assert made.description == "Find a word in the dictionary."
    assert made.schema == {
        "type": "object",
        "properties": {
            "word": {"type": "string", "description": "what to look up, in full."},
            "limit": {"type": "integer", "default": 3, "description": "how many at most."},
            "where": {"type": "string", "enum": ["front", "back"], "default": "front"},
        },
        "required": ["word"],
    }
    assert made.signature == 'look_up(word: string, limit: integer = 3, where: "front" | "back" = "front")'
    assert made.spec()["function"]["parameters"] == made.schema


def test_names_of_pydantic_are_free_for_arguments() -> None:
    def save(schema: str, model_config: int, copy: bool = False, _x: int = 0) -> str:
        return f"{schema} {model_config} {copy}"

    assert (
        ask(Toolbox([Tool.from_function(save)]), call("save", schema="s", model_config=1)).text == "s 1 False"
    )


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (call("lookup", word="a"), "no tool 'lookup' (did you mean 'look_up'?)"),
        (call("look_up", wrd="a"), "no argument 'wrd' (did you mean 'word'?)"),
        (call("look_up"), "'word' is missing"),
        (call("look_up", word="a", limit="3"), "'limit': input should be a valid integer, got '3'"),
        (call("look_up", word="a", limit=True), "'limit': input should be a valid integer, got True"),
        (call("look_up", word="a", limit=2.5), "'limit'"),
        (call("look_up", word="a", where="frnt"), "'where': input should be 'front' or 'back', got 'frnt'"),
        (call("order", items=[]), "'items'"),
        (
            call("order", items=[{"name": "nut"}, {"name": "screw"}]),
            "'items[1].name': input should be 'nut' or 'bolt'",
        ),
        (call("order", items=[{"name": "nut", "cuont": 1}]), "'items[0].cuont' (did you mean 'count'?)"),
        (call("order", items=[{"name": "nut"}], note="too long"), "'note'"),
        (call("order", items=[{"name": "nut"}], rate=-1), "'rate'"),
        (call("order", items=[{"name": "nut", "part": {"count": 1}}], note=7), "'note'"),
    ],
)
def test_a_wrong_call_is_answered_with_what_repairs_it(words: Toolbox, wrong: ToolCall, said: str) -> None:
    words.max_output_chars = 4000
    answer = ask(words, wrong)
    assert answer.text.startswith("Error: ")
    assert said in answer.text
    assert answer.errors in (("unknown_tool",), ("bad_arguments",))
    assert wrong.name == "lookup" or f"It is {wrong.name}(" in answer.text


def test_a_tool_with_a_schema_gets_the_json_as_it_was(words: Toolbox) -> None:
    given = {"items": [{"name": "bolt", "count": 2}], "note": None, "rate": 3}
    (result,) = ask(words, ToolCall("order", given)).results
    assert result.value == given
    assert type(result.value["rate"]) is int
    assert json.loads(result.content) == given


def test_one_wrong_call_keeps_the_others_from_running(words: Toolbox) -> None:
    answer = ask(words, call("look_up", word="a"), call("look_up"))
    assert answer.errors == ("not_run", "bad_arguments")
    assert [m.name for m in answer.messages] == ["look_up", "look_up"]


def test_text_without_a_call_and_malformed_calls_are_told_apart(words: Toolbox) -> None:
    assert asyncio.run(words.answer("hello")).errors == ("no_call",)
    assert asyncio.run(words.answer("<tool_call>{")).errors == ("malformed",)
    assert ask(words, *[call("look_up", word="a")] * 17).errors == ("too_many",)


def test_async_calls_of_a_turn_overlap() -> None:
    everybody = asyncio.Barrier(3)

    async def meet(who: int) -> int:
        """Wait for the others."""
        await everybody.wait()
        return who

    async def play() -> Answer:
        async with asyncio.timeout(20):
            return await Toolbox([Tool.from_function(meet)]).answer(
                "".join(format_call(call("meet", who=i)) for i in range(3))
            )

    assert asyncio.run(play()).text == "0\n1\n2"


def test_plain_functions_overlap_where_they_say_so_and_keep_their_order_where_not() -> None:
    everybody, seen = threading.Barrier(3, timeout=20), []

    def meet() -> None:
        everybody.wait()

    async def note(word: str) -> None:
        await asyncio.sleep(0.01 if word == "a" else 0)
        seen.append(word)

    box = Toolbox([Tool.from_function(meet, concurrent=True), Tool.from_function(note, concurrent=False)])
    assert ask(box, *[call("meet")] * 3).text == "ok\nok\nok"
    ask(box, *[call("note", word=word) for word in "abc"])
    assert seen == ["a", "b", "c"]


def test_what_the_policy_caused_is_an_answer_and_what_it_did_not_is_raised() -> None:
    def divide(by: int) -> float:
        if by == 0:
            raise ToolError("by must not be 0")
        return 1 / (by - 1)

    box = Toolbox([Tool.from_function(divide)])
    assert ask(box, call("divide", by=0)).errors == ("refused",)
    for calls in ([call("divide", by=1)], [call("divide", by=1), call("divide", by=2)]):
        with pytest.raises(ZeroDivisionError):
            ask(box, *calls)


def test_long_output_keeps_its_beginning_and_its_end(words: Toolbox) -> None:
    text = ask(words, call("look_up", word="w" * 90, limit=9)).text
    assert text.startswith('["www')
    assert text.endswith('front"]')
    assert "characters left out" in text
    assert len(text) < 250
    assert shorten("abc", 3) == "abc"
    assert shorten("abc", 1).startswith("a\n[… 2 characters")


def test_tools_that_make_no_sense_are_refused() -> None:
    def bare(x):  # type: ignore[no-untyped-def]
        return x

    def star(*x: int) -> int:
        return len(x)

    for function in (bare, star):
        with pytest.raises(ConfigError, match=function.__name__):
            Tool.from_function(function)
    for schema in (
        {"type": "array"},
        {"properties": {"a": {"type": "strin"}}},
        {"properties": {"a": {"$ref": "#/no"}}},
    ):
        with pytest.raises(ConfigError, match="odd"):
            Tool.from_schema("odd", schema, look_up)
    with pytest.raises(ConfigError, match="two tools"):
        Toolbox([Tool.from_function(look_up), Tool.from_function(look_up)])


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string | null"),
        ({"type": ["integer", "string"]}, "integer | string"),
        ({"$ref": "#/$defs/item"}, "item"),
        ({"const": 3}, "3"),
        ({}, "any"),
    ],
)
def test_types_read_as_words(schema: Mapping[str, Any], words: str) -> None:
    assert type_words(schema) == words


class Counter(ToolCalling):
    """Count to three."""

    forking: ClassVar[Forking] = Forking.EXACT

    def __init__(self, *, max_turns: int | None = 6, render_mode: str | None = None) -> None:
        super().__init__(max_turns=max_turns, render_mode=render_mode)
        self.count = 0

    def start(self, options: Mapping[str, Any]) -> Reply:
        self.refuse_options(options)
        self.count = 0
        return self.opening("Count to three.", rules="You count.")

    @tool
    def add(self, by: int = 1) -> int:
        """Add to the counter."""
        if by < 1:
            raise ToolError("by must be positive")
        self.count += by
        return self.count

    @tool(name="crash")
    def broken(self) -> None:
        """Break the environment."""
        raise ZeroDivisionError("as asked")

    async def judge(self, answer: Answer, last: bool) -> Ending | None:
        return Ending(success=self.count == 3, text="The end.") if self.count >= 3 else None

    def get_state(self) -> int:
        return self.count

    def set_state(self, state: int) -> None:
        self.count = state

    def optimal_action(self) -> str:
        return format_call(call("add"))

    def random_action(self, rng: Any) -> str:
        return format_call(call("add", by=int(rng.integers(0, 3))))


def test_a_tool_environment_keeps_the_contract() -> None:
    report = check_env(Counter)
    assert report.ok, str(report)


def test_an_episode_of_tool_calls() -> None:
    env = Counter()
    text, info = env.reset(seed=0)
    assert "- add(by: integer = 1): Add to the counter." in text
    assert [t["function"]["name"] for t in info["tools"]] == ["add", "crash"]
    *_, info = env.step("three?")
    assert info["tool_errors"] == ["no_call"]
    text, reward, terminated, _, info = env.step(format_call(call("add")) + format_call(call("add", by=2)))
    assert (text, reward, terminated, info["success"], info["tool_calls"]) == (
        "1\n3\nThe end.",
        1.0,
        True,
        True,
        2,
    )
    env.reset(seed=0)
    assert env.step(format_call(call("add", by=4)))[1:3] == (0.0, True)
    env.close()


def test_running_out_of_turns_is_a_failure() -> None:
    env = Counter(max_turns=2)
    env.reset(seed=0)
    assert env.step("a")[2:4] == (False, False)
    *_, truncated, info = env.step("b")
    assert truncated
    assert info["success"] is False
    env.close()


def test_the_turns_that_are_left_are_part_of_the_state() -> None:
    """After a wasted turn the counter stands where it stood, and less can be done from there."""
    env = Counter(max_turns=2)
    env.reset(seed=0)
    fresh = env.state_key()
    env.step("a")
    assert env.count == 0
    assert env.state_key() != fresh
    env.close()


def test_a_tool_that_breaks_is_a_fault() -> None:
    env = Counter()
    env.reset(seed=0)
    with pytest.raises(EnvFault, match="as asked"):
        env.step(format_call(call("crash")))
    env.close()


def test_marked_methods_are_inherited_and_replaced() -> None:
    class Louder(Counter):
        @tool
        def add(self, by: int = 2) -> int:
            """Add more."""
            return self.count + by

    assert [t.name for t in tools_of(Louder())] == ["add", "crash"]
    assert tools_of(Louder())[0].description == "Add more."
