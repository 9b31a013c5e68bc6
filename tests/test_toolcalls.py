"""Tool calls in text: what is read, what is refused in words, and that nothing raises."""

from __future__ import annotations

import copy
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngym.envs.state import state_digest
from turngym.toolcalls import CallError, format_call, parse_calls
from turngym.types import ToolCall


def tagged(body: str) -> str:
    return f"<tool_call>{body}</tool_call>"


def error(text: str) -> str:
    result = parse_calls(text)
    assert isinstance(result, CallError), result
    return result.message


def with_argument(json_text: str) -> str:
    return tagged(f'{{"name": "a", "arguments": {{"x": {json_text}}}}}')


def test_one_call_with_words_around_it() -> None:
    text = 'I go east.\n<tool_call>\n{"name": "go", "arguments": {"direction": "east"}}\n</tool_call> Done.'
    assert parse_calls(text) == [ToolCall("go", {"direction": "east"})]


def test_several_calls_keep_their_order() -> None:
    text = tagged('{"name": "a"}') + " then " + tagged('{"name": "b", "arguments": {"n": 1}}')
    assert parse_calls(text) == [ToolCall("a", {}), ToolCall("b", {"n": 1})]


def test_a_bare_object_is_a_call() -> None:
    assert parse_calls('  {"name": "open", "arguments": {}}\n') == [ToolCall("open", {})]


def test_prose_gets_an_example_of_a_call() -> None:
    assert (
        error("let me think")
        == 'no tool call found; write <tool_call>{"name": …, "arguments": {…}}</tool_call>'
    )


def test_one_malformed_call_spoils_the_message() -> None:
    assert "not valid JSON" in error(tagged('{"name": "a"}') + tagged("{oops}"))


def test_a_call_that_is_not_closed_is_named() -> None:
    assert "not closed" in error('<tool_call>{"name": "a"}')
    assert "not closed" in error(tagged('{"name": "a"}') + '<tool_call>{"name": "b"}')


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("", "not valid JSON"),
        ("[]", '"name"'),
        ("1", '"name"'),
        ('{"arguments": {}}', '"name"'),
        ('{"name": 3}', '"name"'),
        ('{"name": null}', '"name"'),
        ('{"name": "a", "arguments": []}', '"arguments" must be an object'),
        ('{"name": "a", "arguments": null}', '"arguments" must be an object'),
        ('{"name": "a", "arguments": "{}"}', '"arguments" must be an object'),
        ('{"name": "a", "parameters": {}}', "no 'parameters'"),
        ('{"name": "a", "name": "b"}', "'name' stands twice"),
        ('{"name": "a", "arguments": {"x": 1, "x": 2}}', "'x' stands twice"),
        ('{"name": "a", "arguments": {"x": {"y": 1, "y": 1}}}', "'y' stands twice"),
        ('{"name": "a",}', "not valid JSON"),
        ('{"name": "a"} {"name": "b"}', "Extra data at character 14"),
        ('{"name": "a\nb"}', "control character"),
        ('{"name": "a\x00b"}', "control character"),
        ("{'name': 'a'}", "double quotes"),
    ],
)
def test_a_malformed_call_is_answered_with_what_is_wrong(body: str, words: str) -> None:
    assert words in error(tagged(body))


@pytest.mark.parametrize(
    ("number", "words"),
    [
        ("NaN", "NaN is not a JSON number"),
        ("Infinity", "Infinity is not a JSON number"),
        ("-Infinity", "-Infinity is not a JSON number"),
        ("1e999", "too large"),
        ("-1e999", "too large"),
        ("1" + "0" * 5000, "5001 digits"),
        ("9" * 309, "309 digits"),
        ("-" + "9" * 309, "309 digits"),
    ],
)
def test_a_number_that_floats_cannot_hold_is_refused(number: str, words: str) -> None:
    assert words in error(with_argument(number))
    assert words in error(with_argument(f'[1, {{"y": {number}}}]'))


def test_the_largest_integer_that_passes_is_a_float() -> None:
    for sign in ("", "-"):
        (call,) = parse_calls(with_argument(sign + "9" * 308))  # type: ignore[misc]
        assert abs(float(call.arguments["x"])) == pytest.approx(1e308)


@pytest.mark.parametrize("half", ["\\ud800", "\\uDFFF", "\ud800", "a\\ud83d \\ude00"])
def test_half_a_surrogate_pair_is_refused(half: str) -> None:
    assert "surrogate" in error(with_argument(f'"{half}"'))
    assert "surrogate" in error(tagged(f'{{"name": "{half}"}}'))
    assert "surrogate" in error(with_argument(f'{{"{half}": 1}}'))


def test_a_whole_surrogate_pair_is_one_character() -> None:
    assert parse_calls(with_argument('"\\ud83d\\ude00"')) == [ToolCall("a", {"x": "😀"})]


def test_nesting_stops_at_32_levels() -> None:
    """The arguments are level 1, so 31 lists below them pass."""
    (call,) = parse_calls(with_argument("[" * 31 + "]" * 31))  # type: ignore[misc]
    copy.deepcopy(call.arguments)
    state_digest(call.arguments)
    for levels in (32, 33, 500, 10_000):
        assert "nested deeper" in error(with_argument("[" * levels + "]" * levels))
        assert "nested deeper" in error(with_argument('{"a":' * levels + "1" + "}" * levels))


def test_wide_is_not_deep() -> None:
    (call,) = parse_calls(with_argument("[" + "[],{}," * 1000 + "0]"))  # type: ignore[misc]
    assert len(call.arguments["x"]) == 2001


def test_brackets_in_texts_are_not_nesting() -> None:
    assert parse_calls(with_argument(f'"{"[" * 5000}"')) == [ToolCall("a", {"x": "[" * 5000})]


def test_a_megabyte_is_refused_by_its_length() -> None:
    assert "1000000 characters" in error("x" * 1_000_000)
    assert "at most 100000" in error(tagged("[" * 1_000_000))


def test_messages_stay_short_whatever_the_call_holds() -> None:
    """An observation quotes the message: a key of 90,000 characters must not fill the context."""
    assert len(error(tagged(f'{{"name": "a", "{"k" * 90_000}": 1}}'))) < 250
    assert len(error(with_argument(f'{{"{"k" * 40_000}": 1, "{"k" * 40_000}": 1}}'))) < 250


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>" * 9_000,
        "</tool_call>" * 8_000,
        tagged("") * 4_000,
        "<tool_call>{" * 8_000,
        "{" * 50_000 + "}" * 50_000,
        '{"a":' * 16_000 + "1" + "}" * 16_000,
        "[" * 100_000,
        "\x00" * 100_000,
        with_argument('"' + "\\ud800" * 16_000 + '"'),
        with_argument("9" * 99_000),
        with_argument("0." + "9" * 99_000),
    ],
    ids=lambda text: repr(text[:16]),
)
def test_hostile_text_costs_little_time(text: str) -> None:
    """Nine thousand open tags took seconds when a regular expression looked for the end of each."""
    start = time.perf_counter()
    parse_calls(text)
    assert time.perf_counter() - start < 0.5


arguments = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=9,
    ),
    max_size=4,
)  # fmt: skip


@given(name=st.text(max_size=20), arguments=arguments)
def test_format_and_parse_are_inverse(name: str, arguments: dict[str, object]) -> None:
    assert parse_calls(f"so {format_call(ToolCall(name, arguments))} then") == [ToolCall(name, arguments)]


@pytest.mark.parametrize(
    "text", ["</tool_call>", "<tool_call>", "a</tool_call><tool_call>b", "</div>", "\\", '"']
)
def test_arguments_may_speak_of_the_tags(text: str) -> None:
    call = ToolCall("say", {"text": text})
    assert parse_calls(format_call(call)) == [call]


@given(
    st.text(alphabet=st.characters(codec=None), max_size=60)
    | st.text('{}[]":,\\u0d8<>/_tolcan 1eE.-+"', max_size=60)
)
def test_no_text_raises(text: str) -> None:
    for candidate in (text, tagged(text), "{" + text + "}", with_argument(text), with_argument(f'"{text}"')):
        result = parse_calls(candidate)
        if isinstance(result, CallError):
            assert result.message
        else:
            for call in result:  # what passes can be copied, hashed and encoded
                json.dumps(call.arguments, allow_nan=False, ensure_ascii=False).encode()
                state_digest(call.name, call.arguments)
