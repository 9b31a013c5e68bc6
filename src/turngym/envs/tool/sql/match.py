"""Execution match: do two query results say the same?

The rows are compared as a multiset. Where the question asks for an order, the columns by which the reference is
sorted have to be sorted in the same way, so that rows which share a place may stand in any order. Numbers are equal up to
nine significant digits, whether they are stored as integers or reals; a text is never equal to a number. The order
of the columns doesn't matter, as in the test-suite evaluation of Zhong et al. (2020), "Semantic Evaluation for
Text-to-SQL with Distilled Test Suites", whose idea of more databases than the one that can be seen is `sql.env`'s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from turngym.envs.tool.sql.engine import Cell, QueryResult

Row = tuple[object, ...]


def same_result(expected: QueryResult, given: QueryResult, *, ordered: bool) -> bool:
    """True where `given` says what `expected` says, for some order of its columns.

    Args:
        expected: of the reference query; complete.
        given: of the query to judge.
        ordered: the order of the rows counts, too.
    """
    if given.error is not None or given.total != expected.total or len(given.rows) != given.total:
        return False
    wanted, got = _canonical(expected.rows), _canonical(given.rows)
    if not wanted:
        return len(expected.columns) == len(given.columns)
    if len(wanted[0]) != len(got[0]):
        return False
    bag = Counter(wanted)
    for order in _column_orders(wanted, got):
        rows = [tuple(row[i] for i in order) for row in got]
        if Counter(rows) == bag and (not ordered or _same_order(wanted, rows)):
            return True
    return False


def _same_order(wanted: Sequence[Row], rows: Sequence[Row]) -> bool:
    sorted_columns = [i for i in range(len(wanted[0])) if _is_sorted([row[i] for row in wanted])]
    if not sorted_columns:  # sorted by something that isn't shown
        return list(wanted) == list(rows)
    return all(row[i] == other[i] for row, other in zip(wanted, rows, strict=True) for i in sorted_columns)


def _is_sorted(values: list[Any]) -> bool:
    """True for values of one type that never fall, or never rise."""
    if len({kind for kind, _ in values}) > 1:
        return False
    steps = list(pairwise(value for _, value in values if value is not None))
    return all(a <= b for a, b in steps) or all(a >= b for a, b in steps)


def _column_orders(wanted: Sequence[Row], got: Sequence[Row]) -> Iterator[list[int]]:
    """Every assignment of a column of `got` to each of `wanted` with the same values in it."""
    contents = [Counter(column) for column in zip(*got, strict=True)]
    fits = [
        [i for i, values in enumerate(contents) if values == Counter(column)]
        for column in zip(*wanted, strict=True)
    ]

    def extend(chosen: list[int]) -> Iterator[list[int]]:
        if len(chosen) == len(fits):
            yield chosen
            return
        for i in fits[len(chosen)]:
            if i not in chosen:
                yield from extend([*chosen, i])

    for tried, order in enumerate(extend([])):
        if tried == _MAX_ORDERS:
            return
        yield order


_MAX_ORDERS = 720


def _canonical(rows: Sequence[Sequence[Cell]]) -> list[Row]:
    return [tuple(_cell(cell) for cell in row) for row in rows]


def _cell(cell: Cell) -> object:
    """A value that is equal exactly where two cells count as equal."""
    if isinstance(cell, int | float):
        return "number", float(f"{cell:.9g}")
    return type(cell).__name__, cell
