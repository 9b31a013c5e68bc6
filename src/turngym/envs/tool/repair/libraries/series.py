"""Numbers in a row: averages, ranks, smoothing, runs, and changes."""

from __future__ import annotations


def mean(values: list[float], skip: int = 0) -> float:
    """Average of the values, without the `skip` smallest and largest ones.

    Raises:
        ValueError: where nothing is left.
    """
    kept = sorted(values)[skip : len(values) - skip]
    if not kept:
        raise ValueError("no values")
    return sum(kept) / len(kept)


def median(values: list[float]) -> float:
    """The middle value; of an even number of values the average of the two in the middle.

    Raises:
        ValueError: without values.
    """
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    half = len(ordered) // 2
    if len(ordered) % 2 == 1:
        return ordered[half]
    return (ordered[half - 1] + ordered[half]) / 2


def moving(values: list[float], window: int = 3) -> list[float]:
    """Average of each value with up to `window - 1` values before it."""
    result: list[float] = []
    total = 0.0
    for i, value in enumerate(values):
        total += value
        if i >= window:
            total -= values[i - window]
        result.append(total / min(i + 1, window))
    return result


def ranks(values: list[float]) -> list[int]:
    """Place of each value, the largest first; equal values share the better place, as in sports."""
    return [1 + sum(other > value for other in values) for value in values]


def longest_rise(values: list[float], strict: bool = True) -> tuple[int, int]:
    """Start and length of the longest stretch that rises (or never falls, unless `strict`); the first of equal ones."""
    best_start = best_length = 0
    start = 0
    for i in range(len(values)):
        if i > 0 and (values[i] < values[i - 1] or (strict and values[i] == values[i - 1])):
            start = i
        if i - start + 1 > best_length:
            best_start, best_length = start, i - start + 1
    return best_start, best_length


def best_trade(prices: list[float], fee: float = 0) -> float:
    """Most that one purchase and one later sale can earn after the fee; 0 where it doesn't pay."""
    best: float = 0
    cheapest = float("inf")
    for price in prices:
        best = max(best, price - cheapest - fee)
        cheapest = min(cheapest, price)
    return best


def histogram(values: list[float], low: float, high: float, bins: int = 4) -> list[int]:
    """How many values lie in each of equally wide bins; the last bin includes `high`, others are left out."""
    counts = [0] * bins
    width = (high - low) / bins
    for value in values:
        if low <= value <= high:
            counts[min(int((value - low) / width), bins - 1)] += 1
    return counts


def normalise(values: list[float], low: float = 0, high: float = 1) -> list[float]:
    """Stretch the values so that the smallest becomes `low` and the largest `high`; equal values all become `low`."""
    least, most = min(values), max(values)
    if least == most:
        return [low for _ in values]
    return [low + (value - least) * (high - low) / (most - least) for value in values]


def changes(values: list[float], tolerance: float = 0) -> list[int]:
    """Positions at which a value differs by more than `tolerance` from the one before."""
    return [i for i in range(1, len(values)) if abs(values[i] - values[i - 1]) > tolerance]


PROBES = (
    "mean([1, 2, 6])",
    "mean([100, 2, 4, 0], 1)",
    "mean([1, 2], 1)",
    "mean([])",
    "[median(v) for v in ([3, 1, 2], [4, 1, 3, 2], [7], [1, 9])]",
    "median([])",
    "moving([1, 2, 3, 4, 5])",
    "moving([2, 4, 6, 8], 2)",
    "moving([5, 1], 1)",
    "moving([])",
    "ranks([10, 30, 20, 30])",
    "ranks([1, 1, 1])",
    "longest_rise([1, 2, 3, 1, 2, 3, 4])",
    "longest_rise([3, 2, 1])",
    "longest_rise([1, 1, 2], False)",
    "longest_rise([1, 1, 2])",
    "longest_rise([])",
    "longest_rise([1, 2, 1, 2])",
    "longest_rise([2, 1, 1, 1, 0], False)",
    "best_trade([7, 1, 5, 3, 6])",
    "best_trade([5, 4, 3])",
    "best_trade([1, 5], 2)",
    "best_trade([3, 10, 1, 5], 1)",
    "histogram([0, 1, 2, 3, 4], 0, 4)",
    "histogram([-1, 0, 9, 10, 11], 0, 10, 2)",
    "histogram([5, 6, 7.5], 5, 10, 2)",
    "histogram([1, 2, 3, 7, 8], 0, 8)",
    "normalise([2, 4, 6])",
    "normalise([3, 3])",
    "normalise([0, 5, 10], -1, 1)",
    "normalise([1, 1], 2, 3)",
    "changes([1, 1, 2, 2, 1])",
    "changes([1, 2, 4, 7], 2)",
    "changes([5, 3], 1)",
)
NAMES = {
    "mean": ("average", "trimmed_mean"),
    "median": ("middle", "centre"),
    "moving": ("smooth", "running"),
    "ranks": ("places", "standings"),
    "longest_rise": ("climb", "upward_run"),
    "best_trade": ("profit", "gain"),
    "histogram": ("bin_counts", "spread"),
    "normalise": ("rescale", "stretch"),
    "changes": ("jumps", "breaks"),
}
