"""Templates of small programming problems: words, a reference solution, and inputs, with parameters to fill in.

`$name` stands for a parameter. Every choice of parameters is a problem of its own: the hidden inputs tell its
solution from those of the other choices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turngym.envs.tool.python.inputs import (
    Inputs,
    brackets,
    grid,
    intervals,
    letters,
    numbers,
    points,
    positive,
    settings,
    two_lists,
    word_list,
    words,
)


@dataclass(frozen=True, slots=True)
class Template:
    """A family of problems."""

    name: str
    "of the function"
    signature: str
    "parameters and result, as in Python"
    statement: str
    body: str
    "the function's body, four spaces taken off"
    inputs: Inputs
    "random arguments"
    choices: Mapping[str, Sequence[Any]]
    "parameter → its values; every combination is a problem"


def settings_template(separator: str, equals: str) -> Template:
    """Its inputs depend on its parameters."""
    return Template(
        "parse_settings",
        "(text: str) -> dict[str, int]",
        "The text is settings like 'a${eq}1${sep}b${eq}2', with integers as values. Return them as a dict; "
        "of a key that stands twice the $which value counts. The empty text has none.",
        "out = {}\nfor part in text.split('$sep') if text else []:\n    key, value = part.split('$eq')\n    $store\n"
        "return out",
        settings(separator, equals),
        {
            "sep": [separator],
            "eq": [equals],
            "which,store": [("last", "out[key] = int(value)"), ("first", "out.setdefault(key, int(value))")],
        },
    )


TEMPLATES: tuple[Template, ...] = (
    Template(
        "count_multiples",
        "(values: list[int]) -> int",
        "Count the values that are multiples of $k.",
        "return sum(v % $k == 0 for v in values)",
        numbers(),
        {"k": range(2, 10)},
    ),
    Template(
        "sum_beyond",
        "(values: list[int]) -> int",
        "Return the sum of the values that are $side than $k.",
        "return sum(v for v in values if v $sign $k)",
        numbers(),
        {"side,sign": [("greater", ">"), ("less", "<")], "k": [-3, 0, 4, 10]},
    ),
    Template(
        "every_nth",
        "(text: str) -> str",
        "Return every $k-th character of the text, beginning with the one at index $start.",
        "return text[$start::$k]",
        letters("abcdefghij"),
        {"k": [2, 3, 4, 5], "start": [0, 1, 2]},
    ),
    Template(
        "rotate",
        "(values: list[int]) -> list[int]",
        "Return the list rotated $k places to the $side. An empty list stays empty.",
        "if not values:\n    return []\nk = ($step) % len(values)\nreturn values[k:] + values[:k]",
        numbers(),
        {"side,sign": [("left", ""), ("right", "-")], "k": [1, 2, 3, 5], "step": ["$sign$k"]},
    ),
    Template(
        "shift_letters",
        "(text: str) -> str",
        "Replace each lower-case letter by the one $k places further in the alphabet, going round after z. "
        "Other characters stay.",
        "return ''.join(chr((ord(c) - 97 + $k) % 26 + 97) if 'a' <= c <= 'z' else c for c in text)",
        words(),
        {"k": range(1, 13)},
    ),
    Template(
        "chunks",
        "(values: list[int]) -> list[list[int]]",
        "Cut the list into pieces of $k values; the $end piece may be shorter.",
        "first = $first\nhead = [values[:first]] if first else []\n"
        "return head + [values[i:i + $k] for i in range(first, len(values), $k)]",
        numbers(),
        {"end,first": [("last", "0"), ("first", "len(values) % $k")], "k": [2, 3, 4, 5]},
    ),
    Template(
        "windows",
        "(values: list[int]) -> list[int]",
        "Return the $what of every $k neighbouring values, from left to right. "
        "The result is empty where there are fewer than $k.",
        "return [$what(values[i:i + $k]) for i in range(len(values) - $k + 1)]",
        numbers(),
        {"what": ["min", "max", "sum"], "k": [2, 3, 4, 5]},
    ),
    Template(
        "extremes",
        "(values: list[int]) -> list[int]",
        "Return the $k $what different values in $order order; all of them where there are fewer.",
        "return sorted(set(values), reverse=$reverse)[:$k]",
        numbers(),
        {
            "what,order,reverse": [("largest", "falling", True), ("smallest", "rising", False)],
            "k": [2, 3, 4, 5],
        },
    ),
    Template(
        "digits",
        "(n: int) -> list[int]",
        "Return the digits of n in base $k, the most significant one first. 0 has one digit. n is not negative.",
        "out = [n % $k]\nwhile n >= $k:\n    n //= $k\n    out.append(n % $k)\nreturn out[::-1]",
        positive(5000),
        {"k": [2, 3, 4, 5, 6, 7, 8, 9, 12, 16]},
    ),
    Template(
        "long_runs",
        "(text: str) -> list[str]",
        "Return the runs of equal characters that are at least $k long, in order.",
        "import itertools\nruns = [''.join(group) for _, group in itertools.groupby(text)]\n"
        "return [run for run in runs if len(run) >= $k]",
        letters("ab", 20),
        {"k": [2, 3, 4]},
    ),
    Template(
        "count_words",
        "(text: str) -> int",
        "Count the words that have $what $k letters. Words are separated by spaces.",
        "return sum(len(word) $sign $k for word in text.split())",
        words(),
        {"what,sign": [("at least", ">="), ("at most", "<="), ("exactly", "==")], "k": [3, 4, 5, 6]},
    ),
    Template(
        "without",
        "(text: str) -> str",
        "Remove every character that is one of: $out",
        "return ''.join(c for c in text if c not in '$out')",
        letters("abcdeioux", 16),
        {"out": ["aeiou", "abc", "xyz", "ae", "iou", "b"]},
    ),
    Template(
        "by_remainder",
        "(values: list[int]) -> dict[int, list[int]]",
        "Group the values by their remainder on division by $k (0 to $top). "
        "Only remainders that occur are keys; values stay in order.",
        "out = {}\nfor v in values:\n    out.setdefault(v % $k, []).append(v)\nreturn out",
        numbers(),
        {"k,top": [(k, k - 1) for k in (2, 3, 4, 5, 7)]},
    ),
    Template(
        "merge",
        "(spans: list[tuple[int, int]]) -> list[tuple[int, int]]",
        "Merge spans (start, end) that overlap or have a gap of at most $k between them. "
        "Return the merged ones as tuples, sorted by start.",
        "out = []\nfor start, end in sorted(spans):\n    if out and start - out[-1][1] <= $k:\n"
        "        out[-1] = (out[-1][0], max(out[-1][1], end))\n    else:\n        out.append((start, end))\nreturn out",
        intervals,
        {"k": [0, 1, 2, 3, 5]},
    ),
    Template(
        "encode_runs",
        "(text: str) -> str",
        "Write each run of equal characters as $order, joined by '$sep'. The empty text stays empty.",
        "import itertools\nparts = [(c, len(list(group))) for c, group in itertools.groupby(text)]\n"
        "return '$sep'.join(f'$form' for c, n in parts)",
        letters("abc", 16),
        {
            "order,form": [
                ("the character and the length", "{c}{n}"),
                ("the length and the character", "{n}{c}"),
            ],
            "sep": ["-", ",", " ", "/"],
        },
    ),
    Template(
        "turn_grid",
        "(grid: list[list[int]]) -> list[list[int]]",
        "$words",
        "return $code",
        grid,
        {
            "words,code": [
                ("Transpose the grid: rows become columns.", "[list(row) for row in zip(*grid)]"),
                ("Turn the grid clockwise by 90 degrees.", "[list(row) for row in zip(*grid[::-1])]"),
                ("Turn the grid counter-clockwise by 90 degrees.", "[list(row) for row in zip(*grid)][::-1]"),
                ("Mirror the grid from left to right.", "[row[::-1] for row in grid]"),
                ("Mirror the grid from top to bottom.", "[row[:] for row in grid[::-1]]"),
                ("Turn the grid by 180 degrees.", "[row[::-1] for row in grid[::-1]]"),
            ]
        },
    ),
    Template(
        "line_sums",
        "(grid: list[list[int]]) -> list[int]",
        "Return the $what of every $line of the grid.",
        "return [$what(line) for line in $lines]",
        grid,
        {"what": ["sum", "min", "max"], "line,lines": [("row", "grid"), ("column", "zip(*grid)")]},
    ),
    Template(
        "running_remainders",
        "(values: list[int]) -> list[int]",
        "Return the running sums of the values (the first, the first two, …), each as a remainder modulo $k (0 to $top).",
        "out, total = [], 0\nfor v in values:\n    total += v\n    out.append(total % $k)\nreturn out",
        numbers(),
        {"k,top": [(k, k - 1) for k in (2, 3, 5, 7, 10)]},
    ),
    Template(
        "count_pairs",
        "(values: list[int]) -> int",
        "Count the pairs of positions i < j whose values have the $what $k.",
        "n = len(values)\nreturn sum($test for i in range(n) for j in range(i + 1, n))",
        numbers(0, 9),
        {
            "what,test": [
                ("sum", "values[i] + values[j] == $k"),
                ("absolute difference", "abs(values[i] - values[j]) == $k"),
            ],
            "k": [2, 3, 5, 8],
        },
    ),
    Template(
        "sequence",
        "(n: int) -> int",
        "A sequence begins with $a, $b; every further term is $rule. Return term n, counted from 0.",
        "a, b = $a, $b\nfor _ in range(n):\n    a, b = b, $code\nreturn a",
        positive(15),
        {
            "a,b": [(0, 1), (2, 1), (1, 3)],
            "rule,code": [
                ("the sum of the two before it", "a + b"),
                ("the last one plus twice the one before that", "b + 2 * a"),
                ("twice the last one minus the one before that, plus 1", "2 * b - a + 1"),
            ],
        },
    ),
    Template(
        "primes",
        "(n: int) -> list[int]",
        "Return the primes below n that leave the remainder $r on division by $k, in rising order.",
        "return [p for p in range(2, n) if p % $k == $r and all(p % d for d in range(2, int(p ** 0.5) + 1))]",
        positive(120),
        {"k,r": [(4, 1), (4, 3), (3, 1), (3, 2), (5, 1), (5, 2), (6, 5), (10, 3)]},
    ),
    Template(
        "balanced",
        "(text: str) -> bool",
        "Say whether the brackets $kinds in the text are balanced and well nested. Ignore all other characters.",
        "pairs = dict(zip('$close', '$open'))\nstack = []\nfor c in text:\n    if c in '$open':\n        stack.append(c)\n"
        "    elif c in pairs and (not stack or stack.pop() != pairs[c]):\n        return False\nreturn not stack",
        brackets,
        {
            "kinds,open,close": [
                ("( )", "(", ")"),
                ("[ ]", "[", "]"),
                ("( ) and [ ]", "([", ")]"),
                ("{ } and ( )", "{(", "})"),
            ]
        },
    ),
    Template(
        "repeated",
        "(words: list[str]) -> list[str]",
        "Return the words that occur $what, each once, $order.",
        "import collections\ncount = collections.Counter(words)\nreturn $sort(w for w in count if count[w] $test)",
        word_list("ab"),
        {
            "what,test": [("once", "== 1"), ("more than once", "> 1"), ("at least three times", ">= 3")],
            "order,sort": [
                ("in alphabetical order", "sorted"),
                ("in the order of their first occurrence", "list"),
            ],
        },
    ),
    Template(
        "clamp",
        "(values: list[int]) -> list[int]",
        "Replace each value below $low by $low and each above $high by $high.",
        "return [min($high, max($low, v)) for v in values]",
        numbers(),
        {"low": [-5, 0, 3], "high": [6, 9, 15]},
    ),
    Template(
        "interleave",
        "(a: list[int], b: list[int]) -> list[int]",
        "Take values in turn from $order. $rest",
        "import itertools\nout = []\nfor x, y in $zip:\n    out += [$pair]\nreturn out",
        two_lists,
        {
            "order,pair": [("a and b, a first", "x, y"), ("b and a, b first", "y, x")],
            "rest,zip": [
                ("Stop when one is used up.", "zip(a, b)"),
                ("Where one is used up, use 0 for its values.", "itertools.zip_longest(a, b, fillvalue=0)"),
                ("Where one is used up, use -1 for its values.", "itertools.zip_longest(a, b, fillvalue=-1)"),
            ],
        },
    ),
    Template(
        "rename",
        "(text: str) -> str",
        "The text is words with single spaces. Write it in $style.",
        "words = text.split()\nreturn $code",
        words(5),
        {
            "style,code": [
                ("snake_case", "'_'.join(words)"),
                ("kebab-case", "'-'.join(words)"),
                ("UPPER_CASE with underscores", "'_'.join(words).upper()"),
                ("PascalCase", "''.join(w.capitalize() for w in words)"),
                ("camelCase", "''.join(words[:1] + [w.capitalize() for w in words[1:]])"),
                ("dotted.case", "'.'.join(words)"),
            ]
        },
    ),
    Template(
        "unique",
        "(values: list[int]) -> list[int]",
        "Keep only the $which occurrence of each value; those that are kept stay in order.",
        "return [v for i, v in enumerate(values) if v not in $others]",
        numbers(0, 6),
        {"which,others": [("first", "values[:i]"), ("last", "values[i + 1:]")]},
    ),
    Template(
        "averages",
        "(values: list[int]) -> list[int]",
        "Return the averages of every $k neighbouring values, rounded $how.",
        "return [$code for i in range(len(values) - $k + 1)]",
        numbers(),
        {
            "how,code": [
                ("down", "sum(values[i:i + $k]) // $k"),
                ("up", "-(-sum(values[i:i + $k]) // $k)"),
            ],
            "k": [2, 3, 4],
        },
    ),
    Template(
        "check_digit",
        "(n: int) -> int",
        "Multiply the decimal digits of n, from the right, by $a, $b, $a, $b, … and add the products. "
        "Return the sum modulo $m.",
        "digits = [int(d) for d in reversed(str(n))]\n"
        "return sum(d * ($a, $b)[i % 2] for i, d in enumerate(digits)) % $m",
        positive(10**9),
        {"a,b": [(1, 3), (3, 1), (2, 7), (1, 2)], "m": [7, 10, 11]},
    ),
    Template(
        "near",
        "(points: list[tuple[int, int]]) -> int",
        "Count the points (x, y) whose $what distance from the origin is at most $k.",
        "return sum($code <= $limit for x, y in points)",
        points,
        {
            "what,code,power": [
                ("Manhattan", "abs(x) + abs(y)", 1),
                ("Chebyshev", "max(abs(x), abs(y))", 1),
                ("Euclidean", "x * x + y * y", 2),
            ],
            "k": [3, 5, 8],
            "limit": ["$k ** $power"],
        },
    ),
    Template(
        "histogram",
        "(values: list[int]) -> dict[int, int]",
        "Count the values in bins of width $k: bin b holds the values from b*$k up to, but not including, (b+1)*$k. "
        "Only bins that hold something are keys.",
        "out = {}\nfor v in values:\n    out[v // $k] = out.get(v // $k, 0) + 1\nreturn out",
        numbers(-20, 30),
        {"k": [2, 3, 5, 10]},
    ),
    Template(
        "censor",
        "(text: str) -> str",
        "Replace every letter of each word that has more than $k letters by '$mark'. "
        "Words are separated by single spaces.",
        "return ' '.join('$mark' * len(w) if len(w) > $k else w for w in text.split(' '))",
        words(),
        {"k": [2, 3, 4, 6], "mark": ["*", "#"]},
    ),
    Template(
        "longest_stretch",
        "(values: list[int]) -> int",
        "Return the length of the longest stretch of neighbouring values that is $what. An empty list has length 0.",
        "best = here = 0\nfor i, v in enumerate(values):\n    here = here + 1 if i and values[i - 1] $sign v else 1\n"
        "    best = max(best, here)\nreturn best",
        numbers(0, 5),
        {
            "what,sign": [
                ("rising strictly", "<"),
                ("never falling", "<="),
                ("falling strictly", ">"),
                ("never rising", ">="),
            ]
        },
    ),
    Template(
        "bits",
        "(values: list[int]) -> list[int]",
        "Keep the values whose binary form has $what $k ones. No value is negative.",
        "return [v for v in values if bin(v).count('1') $sign $k]",
        numbers(0, 127),
        {"what,sign": [("exactly", "=="), ("at least", ">=")], "k": [1, 2, 3, 4]},
    ),
    *(settings_template(separator, equals) for separator in ";,&" for equals in "=:"),
)
