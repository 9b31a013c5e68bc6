"""Amounts of money in cents: reading, writing, sharing and paying back."""

from __future__ import annotations


def parse(text: str, separator: str = ",") -> int:
    """Cents of an amount such as "1,234.5" or "-3". `separator` groups thousands.

    Raises:
        ValueError: for what is no amount, or has more than two decimals.
    """
    cleaned = text.strip().replace(separator, "")
    negative = cleaned.startswith("-")
    if negative:
        cleaned = cleaned[1:]
    whole, point, decimals = cleaned.partition(".")
    if not whole.isdigit() or len(decimals) > 2 or (point and not decimals.isdigit()):
        raise ValueError("not an amount")
    cents = int(whole) * 100 + int(decimals.ljust(2, "0"))
    return -cents if negative else cents


def show(cents: int, separator: str = ",") -> str:
    """An amount with two decimals and grouped thousands: -123456 is "-1,234.56"."""
    sign = "-" if cents < 0 else ""
    whole, rest = divmod(abs(cents), 100)
    digits = str(whole)
    groups: list[str] = []
    while len(digits) > 3:
        groups.insert(0, digits[-3:])
        digits = digits[:-3]
    groups.insert(0, digits)
    return f"{sign}{separator.join(groups)}.{rest:02d}"


def share(cents: int, weights: list[int]) -> list[int]:
    """Split an amount by weights so that nothing is lost: the first ones get the cents that are left over.

    Raises:
        ValueError: where the weights do not add up to more than 0.
    """
    total = sum(weights)
    if total <= 0:
        raise ValueError("weights must be positive")
    parts = [cents * weight // total for weight in weights]
    left = cents - sum(parts)
    for i in range(left):
        parts[i % len(parts)] += 1
    return parts


def discount(cents: int, percent: int, minimum: int = 0) -> int:
    """The price less some percent, rounded half up, and never below `minimum`."""
    reduced = (cents * (100 - percent) + 50) // 100
    return max(reduced, minimum)


def change(cents: int, coins: tuple[int, ...] = (200, 100, 50, 20, 10, 5, 2, 1)) -> dict[int, int]:
    """Pay an amount with as few coins as the largest-first rule gives: coin to number.

    Raises:
        ValueError: where the coins can't make the amount.
    """
    paid: dict[int, int] = {}
    for coin in sorted(coins, reverse=True):
        count, cents = divmod(cents, coin)
        if count > 0:
            paid[coin] = count
    if cents != 0:
        raise ValueError("the coins can't make this amount")
    return paid


def interest(cents: int, rate: int, years: int = 1) -> int:
    """What an amount grows to at `rate` percent a year, rounded down to cents at the end of each year."""
    for _ in range(years):
        cents = cents + cents * rate // 100
    return cents


PROBES = (
    "parse('12')",
    "parse('1,234.5')",
    "parse(' 0.05 ')",
    "parse('-3.20')",
    "parse('1 000', ' ')",
    "parse('1.234')",
    "parse('abc')",
    "parse('5.')",
    "parse('-')",
    "[show(n) for n in (0, 5, 50, 123, 99999, 100000, 123456789)]",
    "[show(n) for n in (-1, -123456)]",
    "show(123456700, ' ')",
    "show(100099)",
    "share(100, [1, 1, 1])",
    "share(101, [2, 1])",
    "share(5, [1, 1, 1, 1])",
    "share(1000, [1, 3])",
    "share(10, [0, 0])",
    "share(10, [1, -1])",
    "[discount(999, p) for p in (0, 10, 50, 100)]",
    "discount(1000, 90, 500)",
    "discount(25, 50)",
    "change(388)",
    "change(0)",
    "change(30, (25, 10, 5))",
    "change(30, (20, 20, 10))",
    "change(3, (2,))",
    "interest(10000, 5)",
    "interest(10050, 3, 3)",
    "interest(100, 5, 0)",
)
NAMES = {
    "parse": ("read_amount", "to_cents"),
    "show": ("format_amount", "render"),
    "share": ("split", "allocate"),
    "discount": ("reduce_price", "rebate"),
    "change": ("coins_for", "make_change"),
    "interest": ("compound", "grow"),
    "separator": ("grouping", "thousands"),
}
