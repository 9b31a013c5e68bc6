"""Random arguments for the functions that problems ask for."""

from __future__ import annotations

import string
from collections.abc import Callable
from random import Random
from typing import Any

Inputs = Callable[[Random], tuple[Any, ...]]


def numbers(low: int = -9, high: int = 20, least: int = 0, most: int = 12) -> Inputs:
    """One list of integers."""
    return lambda rng: ([rng.randint(low, high) for _ in range(rng.randint(least, most))],)


def positive(high: int, low: int = 0) -> Inputs:
    """One integer."""
    return lambda rng: (rng.randint(low, high),)


def _word(rng: Random, letters: str = string.ascii_lowercase, most: int = 9) -> str:
    return "".join(rng.choice(letters) for _ in range(rng.randint(1, most)))


def words(most: int = 8) -> Inputs:
    """One text of lower-case words with single spaces."""
    return lambda rng: (" ".join(_word(rng) for _ in range(rng.randint(0, most))),)


def letters(alphabet: str, most: int = 16) -> Inputs:
    """One text over `alphabet`."""
    return lambda rng: ("".join(rng.choice(alphabet) for _ in range(rng.randint(0, most))),)


def word_list(alphabet: str = "abc", most: int = 9) -> Inputs:
    """One list of short words, some of which repeat."""
    return lambda rng: ([_word(rng, alphabet, 3) for _ in range(rng.randint(0, most))],)


def grid(rng: Random) -> tuple[Any, ...]:
    """One rectangular list of lists of digits, at least one by one."""
    width = rng.randint(1, 4)
    return ([[rng.randint(0, 9) for _ in range(width)] for _ in range(rng.randint(1, 4))],)


def points(rng: Random) -> tuple[Any, ...]:
    """One list of points with integer coordinates."""
    return ([(rng.randint(-9, 9), rng.randint(-9, 9)) for _ in range(rng.randint(0, 9))],)


def intervals(rng: Random) -> tuple[Any, ...]:
    """One list of `(start, end)` with start before end."""
    starts = [rng.randint(0, 30) for _ in range(rng.randint(0, 7))]
    return ([(start, start + rng.randint(1, 6)) for start in starts],)


def two_lists(rng: Random) -> tuple[Any, ...]:
    """Two lists of integers of different lengths."""
    return tuple([rng.randint(0, 9) for _ in range(rng.randint(0, 6))] for _ in range(2))


def settings(separator: str, equals: str) -> Inputs:
    """One text of settings, some keys twice."""
    return lambda rng: (
        separator.join(
            f"{rng.choice('abcde')}{equals}{rng.randint(0, 99)}" for _ in range(rng.randint(0, 6))
        ),
    )


def brackets(rng: Random) -> tuple[Any, ...]:
    """One bracketed text that is balanced about half of the time."""
    text = ""
    for _ in range(rng.randint(0, 4)):
        pair = rng.choice(["()", "[]", "{}"])
        cut = rng.randint(0, len(text))
        text = rng.choice([f"{pair[0]}{text}{pair[1]}", f"{text}{pair}", f"{text[:cut]}x{text[cut:]}"])
    if text and rng.random() < 0.5:
        cut = rng.randrange(len(text))
        text = text[:cut] + text[cut + 1 :]
    return (text,)
