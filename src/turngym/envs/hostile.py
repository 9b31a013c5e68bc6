"""Actions that a confused or malicious policy might send: random text, and text made to break parsers.

The policy can cause all of it, so an environment answers all of it. Everything follows from one generator.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

_DEEP = 10_000
_LONG = 1_000_000

_CONTROL = ("", " ", "\n\n\n", "\0", "\x1b[2J\x1b[31m", "\r\b\b\b", "\x7f\x80\x9f\u2028", "\ufeff\u202e\0")
_SURROGATES = ("\ud800", "\udfff\ud800", "[\ud83d]", '{"name": "\ud800", "arguments": {}}')
_HUGE = (
    "x" * _LONG,
    "[" * _LONG,
    "[1 " * (_LONG // 3),
    "9" * _LONG,
    " \n" * (_LONG // 2),
    "[" + "9" * 5_000 + "]",
)
_NESTED = (
    "[" * _DEEP + "]" * _DEEP,
    '{"a":' * _DEEP + "1" + "}" * _DEEP,
    "<tool_call>" * 9_000,
    "<tool_call>" + "[" * _DEEP + "]" * _DEEP + "</tool_call>",
)
_BROKEN_CALLS = (
    "{",
    '{"name": ',
    '{"name": "go", "arguments": }',
    '{"name": "go"}}',
    '{"name": null}',
    '{"name": 1, "arguments": {}}',
    '{"name": "go", "arguments": []}',
    '{"name": "go", "arguments": {"direction": null}}',
    '{"name": "go", "arguments": {"direction": [[]]}}',
    '{"name": "' + "g" * 50_000 + '", "arguments": {}}',
    '{"name": "guess", "arguments": {"number": ' + "9" * 5_000 + "}}",
    '{"name": "guess", "arguments": {"number": -1e308}}',
    '{"name": "guess", "arguments": {"number": true}}',
    '{"n": 1e999, "name": NaN}',
    "<tool_call></tool_call>",
    "<tool_call>null</tool_call>",
)
_ODD_MOVES = ("[-1 -1]", "[1.5 2]", "[²]", "[١ ٢]", "[nan]", "[ ]", "[]", "][", "[99 99 99 99]")
_INJECTIONS = (
    "'; DROP TABLE t; --",
    "%s%n%x",
    "{0.__class__}",
    "../../etc/passwd",
    "$(id)",
    "${HOME}",
    "`id`",
)
_INTERPRETER = (
    "save",
    "restore",
    "restart",
    "quit",
    "undo",
    "script",
    "tw-print state",
    "look then quit",
    "look. q",
)

CORPUS = (
    *_CONTROL,
    *_SURROGATES,
    *_HUGE,
    *_NESTED,
    *_BROKEN_CALLS,
    *_ODD_MOVES,
    *_INJECTIONS,
    *_INTERPRETER,
)
"""Known breakers of parsers, regular expressions, terminals, encoders and interpreters."""

_PIECES = (
    *('{"name": ', '"arguments": {', "}", "]", "[", '"', "\\", "<tool_call>", "</tool_call>", ": ", ", "),
    *("go", "take", "open", "guess", "hit", "left", "north", "look", "1", "-7", "1e400", "null", "true"),
    *("\0", "\x1b", "\ud800", "\u202e", "é", "漢", "🎲", "\n", " "),
)
_WORDS = (
    *(
        "go",
        "take",
        "open",
        "left",
        "right",
        "up",
        "down",
        "north",
        "hit",
        "stick",
        "look",
        "key",
        "door",
        "red",
    ),
    *("the", "a", "1", "2", "3", "4", "[", "]", "{", "}", ".", ",", ":", '"'),
)


def hostile_texts(rng: np.random.Generator, count: int) -> Iterator[str]:
    """`count` hostile texts: the corpus first, then texts cut short and random strings of its pieces."""
    yield from CORPUS[:count]
    short = [text for text in CORPUS if len(text) < 100]
    for _ in range(count - len(CORPUS)):
        if rng.random() < 0.2:
            text = short[int(rng.integers(len(short)))]
            yield text[: int(rng.integers(len(text) + 1))]
        else:
            yield "".join(_some(rng, _PIECES, 20))


def random_texts(rng: np.random.Generator, count: int) -> Iterator[str]:
    """`count` texts of random words, numbers and punctuation, as an untrained policy writes them."""
    for _ in range(count):
        yield " ".join(_some(rng, _WORDS, 12))


def _some(rng: np.random.Generator, words: tuple[str, ...], limit: int) -> list[str]:
    """Fewer than `limit` of `words`, drawn with replacement."""
    return [words[int(i)] for i in rng.integers(len(words), size=int(rng.integers(limit)))]
