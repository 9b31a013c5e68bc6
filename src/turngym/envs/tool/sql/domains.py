"""What the generated databases are about, as data: tables, columns, and the words in which questions speak of them.

A domain has tables of things (with a unique name each) and tables of events that refer to things. `generate` turns a
domain and a seed into a schema, whose names are written in one of several styles, and `populate` fills it with rows,
as often as one likes.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from turngym.envs.tool.sql.engine import Cell, Database, quoted

_FIRST = [
    "Ada",
    "Ben",
    "Cleo",
    "Dev",
    "Ema",
    "Finn",
    "Gita",
    "Hugo",
    "Ines",
    "Jon",
    "Kira",
    "Leo",
    "Mina",
    "Nils",
    "Oda",
    "Paul",
    "Rosa",
    "Sven",
    "Tara",
    "Uma",
    "Vera",
    "Yuri",
]
_LAST = [
    "Adler",
    "Bauer",
    "Costa",
    "Dietz",
    "Evans",
    "Fuchs",
    "Garcia",
    "Horn",
    "Ito",
    "Jansen",
    "Kumar",
    "Lopez",
    "Moreau",
    "Novak",
    "Okoye",
    "Petrov",
    "Rossi",
    "Silva",
]
_CITIES = ("Aarhus", "Bergen", "Cadiz", "Dresden", "Evora", "Ghent", "Lyon", "Porto", "Turku")
_ADJECTIVES = [
    "Amber",
    "Bright",
    "Calm",
    "Deep",
    "Early",
    "Fair",
    "Golden",
    "Hidden",
    "Iron",
    "Jade",
    "Last",
    "Merry",
    "North",
    "Open",
    "Quiet",
    "Red",
    "Silver",
    "Tall",
]
_NOUNS = [
    "Anchor",
    "Bridge",
    "Cloud",
    "Door",
    "Engine",
    "Forest",
    "Garden",
    "Harbor",
    "Island",
    "Key",
    "Lantern",
    "Mirror",
    "River",
    "Stone",
    "Tower",
    "Valley",
]
_DAYS = (datetime.date(2021, 1, 1), 1096)

Style = Literal["snake", "camel", "upper"]


@dataclass(frozen=True, slots=True)
class Number:
    """A column of integers or amounts."""

    name: str
    noun: str
    "as in 'the average NOUN'"
    low: int
    high: int
    money: bool = False
    "two decimals"
    nullable: bool = False


@dataclass(frozen=True, slots=True)
class Category:
    """A column with few values."""

    name: str
    noun: str
    values: tuple[str, ...]
    phrase: str
    "how rows with the value {v} are told apart, after the plural: 'who live in {v}'"


@dataclass(frozen=True, slots=True)
class Day:
    """A column of dates (ISO 8601 text)."""

    name: str
    noun: str


@dataclass(frozen=True, slots=True)
class Ref:
    """A column that refers to a table of things."""

    table: str
    phrase: str
    "how an event belongs to a thing: 'made by'"


Column = Number | Category | Day


@dataclass(frozen=True, slots=True)
class Table:
    """Things, which have names, or events, which have `refs`."""

    name: str
    plural: str
    columns: tuple[Column, ...]
    refs: tuple[Ref, ...] = ()
    people: bool = False
    "names are of people"

    def pick(self, kind: type[Any]) -> list[Any]:
        """Its columns of one kind."""
        return [column for column in self.columns if isinstance(column, kind)]


@dataclass(frozen=True, slots=True)
class Domain:
    """A small world."""

    name: str
    tables: tuple[Table, ...]
    "things first"

    @property
    def things(self) -> list[Table]:
        """Tables without references."""
        return [table for table in self.tables if not table.refs]

    @property
    def events(self) -> list[Table]:
        """Tables with references."""
        return [table for table in self.tables if table.refs]

    def table(self, name: str) -> Table:
        """The table called `name`."""
        return next(table for table in self.tables if table.name == name)


def _city(phrase: str = "from {v}") -> Category:
    return Category("city", "city", _CITIES, phrase)


DOMAINS = (
    Domain(
        "a bookshop",
        (
            Table("customer", "customers", (_city("who live in {v}"), Number("age", "age", 18, 80), Day("joined", "joining date")), people=True),
            Table("book", "books", (Category("genre", "genre", ("crime", "poetry", "travel", "history", "cooking"), "of the genre {v}"), Number("pages", "number of pages", 80, 900), Number("price", "price", 5, 60, money=True))),
            Table("sale", "sales", (Number("quantity", "quantity", 1, 6), Number("paid", "amount paid", 5, 200, money=True), Day("sold_on", "date"), Category("method", "payment method", ("card", "cash", "voucher"), "paid by {v}")), (Ref("customer", "to"), Ref("book", "of"))),
        ),
    ),
    Domain(
        "a clinic",
        (
            Table("patient", "patients", (_city("who live in {v}"), Number("birth_year", "year of birth", 1935, 2015), Category("insurance", "insurance", ("public", "private", "none"), "with the insurance '{v}'")), people=True),
            Table("doctor", "doctors", (Category("specialty", "specialty", ("cardiology", "dermatology", "pediatrics", "surgery"), "whose specialty is {v}"), Number("salary", "salary", 4000, 12000), Number("experience", "years of experience", 1, 40)), people=True),
            Table("visit", "visits", (Day("visited_on", "date"), Number("fee", "fee", 20, 400, money=True), Number("minutes", "length in minutes", 5, 90, nullable=True), Category("outcome", "outcome", ("cured", "referred", "follow-up"), "with the outcome '{v}'")), (Ref("patient", "of"), Ref("doctor", "with"))),
        ),
    ),
    Domain(
        "an airline",
        (
            Table("pilot", "pilots", (_city("based in {v}"), Number("hours", "flying hours", 200, 9000), Category("license", "license", ("ATP", "CPL", "MPL"), "with the license {v}")), people=True),
            Table("aircraft", "aircraft", (Category("maker", "maker", ("Airbus", "Boeing", "Embraer", "ATR"), "made by {v}"), Number("seats", "number of seats", 40, 380), Number("built", "year of construction", 1998, 2023))),
            Table("flight", "flights", (Day("flown_on", "date"), Number("passengers", "number of passengers", 10, 350), Number("delay", "delay in minutes", 0, 180, nullable=True), Category("status", "status", ("landed", "diverted", "cancelled"), "with the status '{v}'")), (Ref("pilot", "flown by"), Ref("aircraft", "on"))),
        ),
    ),
    Domain(
        "a school",
        (
            Table("student", "students", (_city("from {v}"), Number("year", "school year", 5, 12), Category("club", "club", ("chess", "choir", "drama", "robotics"), "in the {v} club")), people=True),
            Table("course", "courses", (Category("subject", "subject", ("art", "biology", "history", "maths", "music"), "in the subject {v}"), Number("hours", "hours a week", 1, 8), Number("capacity", "capacity", 8, 40))),
            Table("enrolment", "enrolments", (Day("enrolled_on", "date"), Number("grade", "grade", 1, 100, nullable=True), Category("term", "term", ("autumn", "winter", "spring"), "in the {v} term")), (Ref("student", "of"), Ref("course", "in"))),
        ),
    ),
    Domain(
        "a chain of cinemas",
        (
            Table("theater", "theaters", (_city("in {v}"), Number("screens", "number of screens", 1, 16), Number("opened", "year of opening", 1950, 2022))),
            Table("film", "films", (Category("genre", "genre", ("comedy", "drama", "horror", "documentary"), "of the genre {v}"), Number("runtime", "running time in minutes", 70, 200), Category("rating", "rating", ("G", "PG", "R"), "rated {v}"))),
            Table("screening", "screenings", (Day("shown_on", "date"), Number("tickets", "number of tickets", 0, 250), Number("income", "income", 50, 2500, money=True), Category("slot", "time of day", ("matinee", "evening", "late"), "in the {v} slot")), (Ref("theater", "in"), Ref("film", "of"))),
        ),
    ),
    Domain(
        "a warehouse",
        (
            Table("supplier", "suppliers", (_city("in {v}"), Number("rating", "rating", 1, 100), Category("contract", "contract", ("annual", "open", "trial"), "with the contract '{v}'"))),
            Table("product", "products", (Category("category", "category", ("tools", "toys", "paper", "lamps", "garden"), "in the category {v}"), Number("weight", "weight in grams", 20, 9000), Number("price", "price", 1, 300, money=True))),
            Table("delivery", "deliveries", (Day("arrived_on", "date"), Number("units", "number of units", 1, 500), Number("cost", "cost", 10, 5000, money=True), Category("state", "state", ("accepted", "damaged", "returned"), "with the state '{v}'")), (Ref("supplier", "from"), Ref("product", "of"))),
        ),
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Schema:
    """A domain with the names that its tables and columns have in one database."""

    domain: Domain
    style: Style
    prefixed_id: bool
    "`customer_id` instead of `id`"
    plural_tables: bool
    extras: tuple[str, ...]
    "tables that have a column of remarks, which nobody asks about"

    def table(self, table: Table) -> str:
        """Name of a table."""
        return self._styled(table.plural if self.plural_tables else table.name)

    def key(self, table: Table) -> str:
        """Name of its primary key."""
        return self._styled(f"{table.name}_id" if self.prefixed_id else "id")

    def label(self, table: Table) -> str:
        """Name of the column with the names of things."""
        return self._styled("full_name" if table.people else "title")

    def column(self, column: Column) -> str:
        """Name of a column."""
        return self._styled(column.name)

    def ref(self, ref: Ref) -> str:
        """Name of the column that refers to a thing."""
        return self._styled(f"{ref.table}_ref" if self.prefixed_id else f"{ref.table}_id")

    def statements(self) -> list[str]:
        """CREATE TABLE for every table."""
        return [self._create(table) for table in self.domain.tables]

    def _create(self, table: Table) -> str:
        parts = [f"{quoted(self.key(table))} INTEGER PRIMARY KEY"]
        if not table.refs:
            parts.append(f"{quoted(self.label(table))} TEXT NOT NULL")
        for ref in table.refs:
            other = self.domain.table(ref.table)
            target = f"{quoted(self.table(other))}({quoted(self.key(other))})"
            parts.append(f"{quoted(self.ref(ref))} INTEGER NOT NULL REFERENCES {target}")
        for column in table.columns:
            kind = "TEXT"
            if isinstance(column, Number):
                kind = "REAL" if column.money else "INTEGER"
            parts.append(f"{quoted(self.column(column))} {kind}")
        if table.name in self.extras:
            parts.append(f"{quoted(self._styled('remark'))} TEXT")
        return f"CREATE TABLE {quoted(self.table(table))} ({', '.join(parts)})"

    def _styled(self, name: str) -> str:
        if self.style == "snake":
            return name
        if self.style == "upper":
            return name.upper()
        first, *rest = name.split("_")
        return first + "".join(word.capitalize() for word in rest)


def draw_schema(rng: np.random.Generator) -> Schema:
    """A domain and a style of names."""
    domain = DOMAINS[int(rng.integers(len(DOMAINS)))]
    styles: tuple[Style, ...] = ("snake", "camel", "upper")
    style = styles[int(rng.integers(3))]
    prefixed, plural = bool(rng.integers(2)), bool(rng.integers(2))
    extras = tuple(table.name for table in domain.tables if rng.integers(2))
    return Schema(domain, style, prefixed, plural, extras)


def populate(schema: Schema, rng: np.random.Generator) -> Database:
    """Fill the tables with random rows; every reference points at something."""
    sizes = {t.name: int(rng.integers(12, 40)) for t in schema.domain.things}
    sizes |= {t.name: int(rng.integers(60, 160)) for t in schema.domain.events}
    rows = [(schema.table(table), _rows(schema, table, sizes, rng)) for table in schema.domain.tables]
    return Database.build(schema.statements(), rows)


def _rows(schema: Schema, table: Table, sizes: dict[str, int], rng: np.random.Generator) -> list[list[Cell]]:
    count = sizes[table.name]
    columns: list[Sequence[Cell]] = [range(1, count + 1)]
    if not table.refs:
        columns.append(_names(table, count, rng))
    for ref in table.refs:
        # Some things have no event: questions ask for those, too.
        used = max(2, int(sizes[ref.table] * 0.8))
        columns.append((rng.permutation(sizes[ref.table])[rng.integers(used, size=count)] + 1).tolist())
    columns += [_values(column, count, rng) for column in table.columns]
    if table.name in schema.extras:
        remarks = np.array(["ok", "to check", "old record", ""], dtype=object)
        columns.append(rng.choice(remarks, size=count).tolist())
    return [list(row) for row in zip(*columns, strict=True)]


def _names(table: Table, count: int, rng: np.random.Generator) -> list[str]:
    first, last = (_FIRST, _LAST) if table.people else (_ADJECTIVES, _NOUNS)
    chosen = rng.choice(len(first) * len(last), size=count, replace=False).tolist()
    return [f"{first[n % len(first)]} {last[n // len(first)]}" for n in chosen]


def _values(column: Column, count: int, rng: np.random.Generator) -> list[Cell]:
    if isinstance(column, Category):
        return [column.values[int(i)] for i in rng.integers(len(column.values), size=count)]
    if isinstance(column, Day):
        start, days = _DAYS
        return [str(start + datetime.timedelta(days=int(d))) for d in rng.integers(days, size=count)]
    numbers: list[Any] = rng.integers(column.low, column.high + 1, size=count).tolist()
    if column.money:
        numbers = [
            n + cents / 100 for n, cents in zip(numbers, rng.integers(100, size=count).tolist(), strict=True)
        ]
    if column.nullable:
        numbers = [
            None if lost else n for n, lost in zip(numbers, (rng.random(count) < 0.15).tolist(), strict=True)
        ]
    return numbers
