"""Questions about a generated database, each with the query that answers it.

A template is a function of a `Writer`, which draws tables, columns and values and knows their names and words. The
words of a question never name a column, so that an agent has to look at the schema. `write` draws a template; whether
the result makes a good task is judged by `sql.problems`, which has the data.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from turngym.envs.tool.sql.domains import Category, Column, Day, Number, Ref, Schema, Table
from turngym.envs.tool.sql.engine import quoted

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Question:
    """A question and the query that answers it."""

    text: str
    sql: str
    "the query, without the limit"
    ranked: bool = False
    "rows are ordered by their last column, which has to be free of ties"
    limit: int | None = None
    "how many rows of a ranking are asked for"

    @property
    def reference(self) -> str:
        """The query that answers the question."""
        return self.sql if self.limit is None else f"{self.sql} LIMIT {self.limit}"

    @property
    def tie_check(self) -> str:
        """A query whose last column shows whether the ranking is ambiguous."""
        return self.sql if self.limit is None else f"{self.sql} LIMIT {self.limit + 1}"


class Writer:
    """Draws parts of questions about one schema."""

    def __init__(self, schema: Schema, rng: np.random.Generator) -> None:
        self.schema = schema
        self.rng = rng

    def one(self, options: list[T] | tuple[T, ...]) -> T:
        """One of `options`."""
        return options[int(self.rng.integers(len(options)))]

    def thing(self) -> Table:
        """A table of things."""
        return self.one(self.schema.domain.things)

    def event(self) -> tuple[Table, Ref, Table]:
        """A table of events, a reference in it, and the table of things that it refers to."""
        event = self.one(self.schema.domain.events)
        ref = self.one(event.refs)
        return event, ref, self.schema.domain.table(ref.table)

    def number(self, table: Table) -> Number:
        """A column of numbers."""
        column: Number = self.one(table.pick(Number))
        return column

    def category(self, table: Table) -> Category:
        """A column with few values."""
        column: Category = self.one(table.pick(Category))
        return column

    def table(self, table: Table) -> str:
        """A table as SQL names it."""
        return quoted(self.schema.table(table))

    def column(self, column: Column, of: str = "") -> str:
        """A column as SQL names it, of the alias `of`."""
        return _of(self.schema.column(column), of)

    def label(self, table: Table, of: str = "") -> str:
        """The column with the names of things."""
        return _of(self.schema.label(table), of)

    def join(self, event: Table, ref: Ref, thing: Table) -> str:
        """Events `e` with their things `t`."""
        on = f"{_of(self.schema.ref(ref), 'e')} = {_of(self.schema.key(thing), 't')}"
        return f"{self.table(event)} AS e JOIN {self.table(thing)} AS t ON {on}"

    def where(self, table: Table, of: str = "") -> tuple[str, str]:
        """A condition on rows of a table: the words that follow the plural, and the SQL."""
        column = self.one([c for c in table.columns if not isinstance(c, Day)])
        if isinstance(column, Category):
            value = self.one(column.values)
            return column.phrase.format(v=value), f"{self.column(column, of)} = {_text(value)}"
        third = (column.high - column.low) // 3
        bound = int(self.rng.integers(column.low + third, column.high - third + 1))
        sign, words = self.one([(">", "above"), ("<", "below")])
        return f"whose {column.noun} is {words} {bound}", f"{self.column(column, of)} {sign} {bound}"

    def month(self, event: Table) -> tuple[str, str]:
        """A condition on the date of an event."""
        (day,) = event.pick(Day)
        month = datetime.date(int(self.rng.integers(2021, 2024)), int(self.rng.integers(1, 13)), 1)
        return f"in {month:%B %Y}", f"substr({self.column(day)}, 1, 7) = '{month:%Y-%m}'"


def write(schema: Schema, rng: np.random.Generator) -> Question:
    """A random question."""
    writer = Writer(schema, rng)
    return writer.one(TEMPLATES)(writer)


def _of(name: str, alias: str) -> str:
    return f"{alias}.{quoted(name)}" if alias else quoted(name)


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


# ---------------------------------------------------------------------- templates


def _count(w: Writer) -> Question:
    table = w.one(w.schema.domain.tables)
    words, condition = w.where(table)
    return Question(
        f"How many {table.plural} are there {words}?",
        f"SELECT count(*) FROM {w.table(table)} WHERE {condition}",
    )


def _count_two(w: Writer) -> Question:
    table = w.one(w.schema.domain.tables)
    (first, one), (second, two) = w.where(table), w.where(table)
    return Question(
        f"How many {table.plural} {first} are also {table.plural} {second}?",
        f"SELECT count(*) FROM {w.table(table)} WHERE {one} AND {two}",
    )


def _names(w: Writer) -> Question:
    table = w.thing()
    words, condition = w.where(table)
    return Question(
        f"List the names of all {table.plural} {words}.",
        f"SELECT {w.label(table)} FROM {w.table(table)} WHERE {condition}",
    )


def _names_with(w: Writer) -> Question:
    table = w.thing()
    (words, condition), number = w.where(table), w.number(table)
    return Question(
        f"For all {table.plural} {words}, give the name and the {number.noun}.",
        f"SELECT {w.label(table)}, {w.column(number)} FROM {w.table(table)} WHERE {condition}",
    )


def _top(w: Writer) -> Question:
    table, k = w.thing(), int(w.rng.integers(2, 6))
    number, (way, words) = w.number(table), w.one([("DESC", "highest"), ("ASC", "lowest")])
    return Question(
        f"Which {k} {table.plural} have the {words} {number.noun}? "
        f"Give the name and the {number.noun}, {words} first.",
        f"SELECT {w.label(table)}, {w.column(number)} FROM {w.table(table)} "
        f"ORDER BY {w.column(number)} {way}",
        ranked=True,
        limit=k,
    )  # fmt: skip


def _aggregate(w: Writer) -> Question:
    table = w.one(w.schema.domain.tables)
    (words, condition), number = w.where(table), w.number(table)
    function, name = w.one([("avg", "average"), ("sum", "total"), ("max", "highest"), ("min", "lowest")])
    return Question(
        f"What is the {name} {number.noun} of {table.plural} {words}?",
        f"SELECT {function}({w.column(number)}) FROM {w.table(table)} WHERE {condition}",
    )


def _per_category(w: Writer) -> Question:
    table = w.one(w.schema.domain.tables)
    column = w.column(category := w.category(table))
    return Question(
        f"How many {table.plural} are there for each {category.noun}?",
        f"SELECT {column}, count(*) FROM {w.table(table)} GROUP BY {column}",
    )


def _average_per_category(w: Writer) -> Question:
    table, number = (table := w.one(w.schema.domain.tables)), w.number(table)
    column = w.column(category := w.category(table))
    return Question(
        f"What is the average {number.noun} of {table.plural} for each {category.noun}? Highest average first.",
        f"SELECT {column}, avg({w.column(number)}) AS a FROM {w.table(table)} GROUP BY {column} ORDER BY a DESC",
        ranked=True,
    )


def _having(w: Writer) -> Question:
    event, ref, thing = w.event()
    least = int(w.rng.integers(3, 8))
    name = w.label(thing, "t")
    return Question(
        f"Give the name of every one of the {thing.plural} with at least {least} {event.plural}, "
        f"and how many {event.plural} those are.",
        f"SELECT {name}, count(*) FROM {w.join(event, ref, thing)} GROUP BY t.{quoted(w.schema.key(thing))} "
        f"HAVING count(*) >= {least}",
    )


def _join_count(w: Writer) -> Question:
    event, ref, thing = w.event()
    words, condition = w.where(thing, "t")
    return Question(
        f"How many {event.plural} were {ref.phrase} {thing.plural} {words}?",
        f"SELECT count(*) FROM {w.join(event, ref, thing)} WHERE {condition}",
    )


def _join_total(w: Writer) -> Question:
    event, ref, thing = w.event()
    (words, condition), number = w.where(thing, "t"), w.number(event)
    return Question(
        f"Over all {event.plural} {ref.phrase} {thing.plural} {words}: what is the total {number.noun}?",
        f"SELECT sum({w.column(number, 'e')}) FROM {w.join(event, ref, thing)} WHERE {condition}",
    )


def _never(w: Writer) -> Question:
    event, ref, thing = w.event()
    return Question(
        f"Which {thing.plural} have no {event.plural} at all? List their names.",
        f"SELECT {w.label(thing)} FROM {w.table(thing)} WHERE {quoted(w.schema.key(thing))} NOT IN "
        f"(SELECT {quoted(w.schema.ref(ref))} FROM {w.table(event)})",
    )


def _never_such(w: Writer) -> Question:
    event, ref, thing = w.event()
    words, condition = w.where(event)
    return Question(
        f"List the names of the {thing.plural} without any {event.plural} {words}.",
        f"SELECT {w.label(thing)} FROM {w.table(thing)} WHERE {quoted(w.schema.key(thing))} NOT IN "
        f"(SELECT {quoted(w.schema.ref(ref))} FROM {w.table(event)} WHERE {condition})",
    )


def _largest_total(w: Writer) -> Question:
    event, ref, thing = w.event()
    number, k = w.number(event), int(w.rng.integers(2, 5))
    return Question(
        f"Rank the {thing.plural} by the total {number.noun} of their {event.plural}: "
        f"give the name and the total of the first {k}, highest total first.",
        f"SELECT {w.label(thing, 't')}, sum({w.column(number, 'e')}) AS s FROM {w.join(event, ref, thing)} "
        f"GROUP BY t.{quoted(w.schema.key(thing))} HAVING s IS NOT NULL ORDER BY s DESC",
        ranked=True,
        limit=k,
    )


def _category_total(w: Writer) -> Question:
    event, ref, thing = w.event()
    category, number = w.category(thing), w.number(event)
    column = w.column(category, "t")
    return Question(
        f"For each {category.noun} of {thing.plural} that have {event.plural}: "
        f"what is the total {number.noun} of those {event.plural}?",
        f"SELECT {column}, sum({w.column(number, 'e')}) FROM {w.join(event, ref, thing)} GROUP BY {column}",
    )


def _two_hops(w: Writer) -> Question:
    event = w.one(w.schema.domain.events)
    near, far = event.refs if w.rng.integers(2) else event.refs[::-1]
    thing, other = w.schema.domain.table(near.table), w.schema.domain.table(far.table)
    words, condition = w.where(other, "o")
    on = f"{_of(w.schema.ref(far), 'e')} = {_of(w.schema.key(other), 'o')}"
    return Question(
        f"List, once each, the names of {thing.plural} that have {event.plural} {far.phrase} {other.plural} {words}.",
        f"SELECT DISTINCT {w.label(thing, 't')} FROM {w.join(event, near, thing)} "
        f"JOIN {w.table(other)} AS o ON {on} WHERE {condition}",
    )


def _both(w: Writer) -> Question:
    event, ref, thing = w.event()
    category = w.category(event)
    first, second = (category.values[int(i)] for i in w.rng.permutation(len(category.values))[:2])
    key = quoted(w.schema.key(thing))
    some = f"{key} IN (SELECT {quoted(w.schema.ref(ref))} FROM {w.table(event)} WHERE {w.column(category)} = "
    return Question(
        f"Which {thing.plural} have both {event.plural} {category.phrase.format(v=first)} and {event.plural} "
        f"{category.phrase.format(v=second)}? List their names.",
        f"SELECT {w.label(thing)} FROM {w.table(thing)} WHERE {some}{_text(first)}) AND {some}{_text(second)})",
    )


def _above_average(w: Writer) -> Question:
    table, number = (table := w.thing()), w.number(table)
    return Question(
        f"List the names of the {table.plural} whose {number.noun} is above the average of all {table.plural}.",
        f"SELECT {w.label(table)} FROM {w.table(table)} "
        f"WHERE {w.column(number)} > (SELECT avg({w.column(number)}) FROM {w.table(table)})",
    )


def _in_month(w: Writer) -> Question:
    event = w.one(w.schema.domain.events)
    (words, condition), number = w.month(event), w.number(event)
    return Question(
        f"How many {event.plural} were there {words}, and what was their highest {number.noun}?",
        f"SELECT count(*), max({w.column(number)}) FROM {w.table(event)} WHERE {condition}",
    )


def _distinct(w: Writer) -> Question:
    event, ref, thing = w.event()
    words, condition = w.where(event)
    return Question(
        f"How many different {thing.plural} have {event.plural} {words}?",
        f"SELECT count(DISTINCT {quoted(w.schema.ref(ref))}) FROM {w.table(event)} WHERE {condition}",
    )


def _missing(w: Writer) -> Question:
    lossy: list[tuple[Table, Any]] = [
        (t, c) for t in w.schema.domain.events for c in t.pick(Number) if c.nullable
    ]
    if not lossy:
        return _distinct(w)
    table, column = w.one(lossy)
    category = w.category(table)
    return Question(
        f"For each {category.noun}, how many {table.plural} lack a {column.noun}? Leave out where none do.",
        f"SELECT {w.column(category)}, count(*) FROM {w.table(table)} WHERE {w.column(column)} IS NULL "
        f"GROUP BY {w.column(category)}",
    )


TEMPLATES: tuple[Callable[[Writer], Question], ...] = (
    *(_count, _count_two, _names, _names_with, _top, _aggregate, _per_category, _average_per_category, _having),
    *(_join_count, _join_total, _never, _never_such, _largest_total, _category_total, _two_hops, _both),
    *(_above_average, _in_month, _distinct, _missing),
)  # fmt: skip
