"""Sets of whole numbers as sorted lists of closed intervals."""

from __future__ import annotations

from itertools import pairwise

Interval = tuple[int, int]


def normalise(intervals: list[Interval]) -> list[Interval]:
    """Sort intervals and merge those that overlap or touch: (1, 2) and (3, 5) become (1, 5).

    Raises:
        ValueError: for an interval whose end lies before its start.
    """
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if end < start:
            raise ValueError("an interval ends before it starts")
        if merged and start <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def contains(intervals: list[Interval], point: int) -> bool:
    """Whether some interval contains the point; both ends belong to an interval. Intervals are normalised."""
    low, high = 0, len(intervals) - 1
    while low <= high:
        middle = (low + high) // 2
        start, end = intervals[middle]
        if point < start:
            high = middle - 1
        elif point > end:
            low = middle + 1
        else:
            return True
    return False


def measure(intervals: list[Interval]) -> int:
    """How many numbers lie in at least one of the intervals."""
    return sum(end - start + 1 for start, end in normalise(intervals))


def intersect(first: list[Interval], second: list[Interval]) -> list[Interval]:
    """The numbers that are in both sets."""
    first, second = normalise(first), normalise(second)
    common: list[Interval] = []
    i = j = 0
    while i < len(first) and j < len(second):
        start = max(first[i][0], second[j][0])
        end = min(first[i][1], second[j][1])
        if start <= end:
            common.append((start, end))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return common


def subtract(first: list[Interval], second: list[Interval]) -> list[Interval]:
    """The numbers of the first set that are not in the second."""
    rest: list[Interval] = []
    cuts = normalise(second)
    for start, end in normalise(first):
        position = start
        for cut_start, cut_end in cuts:
            if cut_end < position or cut_start > end:
                continue
            if cut_start > position:
                rest.append((position, cut_start - 1))
            position = cut_end + 1
        if position <= end:
            rest.append((position, end))
    return rest


def gaps(intervals: list[Interval]) -> list[Interval]:
    """What lies between the first and the last number and in none of the intervals."""
    merged = normalise(intervals)
    return [(left[1] + 1, right[0] - 1) for left, right in pairwise(merged)]


def widen(intervals: list[Interval], before: int = 1, after: int = 0) -> list[Interval]:
    """Let every interval start `before` numbers earlier and end `after` numbers later."""
    return normalise([(start - before, end + after) for start, end in intervals])


PROBES = (
    "normalise([(5, 7), (1, 2), (3, 4)])",
    "normalise([(1, 10), (2, 3), (12, 12)])",
    "normalise([(1, 3), (5, 6)])",
    "normalise([])",
    "normalise([(3, 1)])",
    "normalise([(4, 4)])",
    "[contains([(1, 3), (6, 9), (12, 12)], n) for n in range(0, 14)]",
    "contains([], 3)",
    "[contains([(2, 4)], n) for n in (1, 2, 4, 5)]",
    "[contains([(0, 1), (3, 4), (6, 7), (9, 10), (12, 13)], n) for n in range(-1, 15)]",
    "measure([(1, 3), (2, 5), (10, 10)])",
    "measure([])",
    "intersect([(1, 5), (8, 12)], [(4, 9), (12, 20)])",
    "intersect([(1, 2)], [(3, 4)])",
    "intersect([(1, 9)], [(2, 3), (5, 5)])",
    "intersect([(1, 4), (6, 8)], [(1, 4)])",
    "subtract([(1, 10)], [(3, 4), (7, 7)])",
    "subtract([(1, 10)], [(1, 10)])",
    "subtract([(1, 5), (8, 9)], [(5, 8)])",
    "subtract([(1, 5)], [(0, 2), (5, 6)])",
    "subtract([(1, 3)], [(4, 5)])",
    "gaps([(1, 2), (5, 6), (10, 10)])",
    "gaps([(1, 2)])",
    "widen([(5, 6), (10, 10)])",
    "widen([(5, 6), (10, 10)], 0, 3)",
    "widen([(5, 6), (9, 10)], after=1)",
)
NAMES = {
    "normalise": ("merge", "tidy"),
    "contains": ("covers", "includes"),
    "measure": ("size", "cardinality"),
    "subtract": ("difference", "without"),
    "gaps": ("holes", "between"),
    "widen": ("grow", "extend"),
}
