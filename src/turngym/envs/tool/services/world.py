"""The services as plain data: people, calendar, mail, files, orders and money.

A `World` holds dictionaries of frozen records, so a copy of the dictionaries is a copy of the world. Its methods are
what tools can do to it, right or wrong: the policy is not enforced here, and what can't be done at all is a `ToolError`.

`canonical` is what two worlds are compared by. It leaves out what an assistant chooses freely (the words of a mail,
the numbers that new events get) and keeps what happened to money and orders, so that nothing can be undone unseen.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from turngym.envs.tool.schema import nearest
from turngym.envs.tool.tools import ToolError

Role = Literal["employee", "manager", "customer", "company"]
Status = Literal["pending", "shipped", "delivered", "cancelled", "refunded"]
Label = Literal["public", "internal", "confidential"]

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody in the directory: an employee, a customer or another company."""

    name: str
    role: Role


@dataclass(frozen=True, slots=True)
class Event:
    """A meeting on one day, in whole hours."""

    title: str
    day: str
    start: int
    hours: int
    organiser: str
    attendees: tuple[str, ...]
    "names, the organiser's among them, sorted"

    def overlaps(self, day: str, start: int, hours: int) -> bool:
        """True where it takes place in some of those hours."""
        return self.day == day and self.start < start + hours and start < self.start + self.hours


@dataclass(frozen=True, slots=True)
class Mail:
    """A mail that came in."""

    sender: str
    subject: str
    body: str


@dataclass(frozen=True, slots=True)
class Sent:
    """A mail that went out, to one person."""

    to: str
    attachment: str | None


@dataclass(frozen=True, slots=True)
class File:
    """A text file."""

    label: Label
    text: str


@dataclass(frozen=True, slots=True)
class Order:
    """What a customer bought."""

    customer: str
    item: str
    quantity: int
    price: int
    "of one piece"
    status: Status
    day: str
    "of the last change"
    past: tuple[Status, ...] = ()
    "earlier states"

    @property
    def total(self) -> int:
        """What the customer pays."""
        return self.quantity * self.price


@dataclass(frozen=True, slots=True)
class Payment:
    """Money that left an account."""

    account: str
    to: str
    amount: int
    reference: str


@dataclass(slots=True)
class World:
    """Everything that the services know."""

    today: str
    people: dict[str, Person] = field(default_factory=dict)
    events: dict[str, Event] = field(default_factory=dict)
    inbox: dict[str, Mail] = field(default_factory=dict)
    sent: list[Sent] = field(default_factory=list)
    files: dict[str, File] = field(default_factory=dict)
    orders: dict[str, Order] = field(default_factory=dict)
    accounts: dict[str, int] = field(default_factory=dict)
    payments: list[Payment] = field(default_factory=list)
    made: int = 0
    "events made so far"

    def copy(self) -> World:
        """A copy that shares only what never changes."""
        return World(
            self.today,
            self.people.copy(),
            self.events.copy(),
            self.inbox.copy(),
            self.sent.copy(),
            self.files.copy(),
            self.orders.copy(),
            self.accounts.copy(),
            self.payments.copy(),
            self.made,
        )

    def canonical(self) -> Any:
        """What two worlds are compared by, in an order that doesn't depend on how they came about."""
        return (
            sorted(
                (e.title, e.day, e.start, e.hours, e.organiser, e.attendees) for e in self.events.values()
            ),
            sorted((s.to, s.attachment or "") for s in self.sent),
            sorted(self.orders.items()),
            sorted(self.accounts.items()),
            sorted((p.account, p.to, p.amount, p.reference.lower()) for p in self.payments),
        )

    # ------------------------------------------------------------------ what can be looked at

    def person(self, name: str) -> Person:
        """Somebody, by name in any case."""
        return _find(
            "person",
            name,
            {key.lower(): value for key, value in self.people.items()},
            name.lower(),
            self.people,
        )

    def event(self, number: str) -> Event:
        """A meeting by its number."""
        return _find("event", number, self.events, number.upper(), self.events)

    def mail(self, number: str) -> Mail:
        """A mail by its number."""
        return _find("mail", number, self.inbox, number.upper(), self.inbox)

    def file(self, path: str) -> File:
        """A file by its path."""
        return _find("file", path, self.files, path, self.files)

    def order(self, number: str) -> Order:
        """An order by its number."""
        return _find("order", number, self.orders, number.upper(), self.orders)

    def busy(self, names: tuple[str, ...], day: str, start: int, hours: int, *, but: str = "") -> list[str]:
        """Which of `names` have a meeting in those hours, the one with the number `but` aside."""
        meetings = [e for key, e in self.events.items() if key != but and e.overlaps(day, start, hours)]
        return sorted({name for e in meetings for name in e.attendees} & set(names))

    # ------------------------------------------------------------------ what can be done

    def add_event(
        self, title: str, day: str, start: int, hours: int, organiser: str, attendees: list[str]
    ) -> str:
        """Put a meeting into the calendar; returns its number."""
        _check_time(day, start, hours)
        host = self.person(organiser).name
        names = tuple(sorted({host, *(self.person(name).name for name in attendees)}))
        self.made += 1
        number = f"N{self.made}"
        self.events[number] = Event(title.strip(), day, start, hours, host, names)
        return number

    def cancel_event(self, number: str) -> None:
        """Take a meeting out of the calendar."""
        self.event(number)
        del self.events[number.upper()]

    def move_event(self, number: str, day: str, start: int) -> None:
        """Give a meeting another time."""
        event = self.event(number)
        _check_time(day, start, event.hours)
        self.events[number.upper()] = replace(event, day=day, start=start)

    def send(self, to: list[str], attachment: str | None) -> None:
        """Send a mail to everybody in `to`."""
        if not to:
            raise ToolError("a mail needs somebody in `to`")
        if attachment is not None:
            self.file(attachment)
        names = sorted({self.person(name).name for name in to})
        self.sent += [Sent(name, attachment) for name in names]

    def set_status(self, number: str, status: Status) -> None:
        """Change the status of an order."""
        order = self.order(number)
        if order.status == status:
            raise ToolError(f"order {number} is {status} already")
        changed = replace(order, status=status, day=self.today, past=(*order.past, order.status))
        self.orders[number.upper()] = changed

    def set_quantity(self, number: str, quantity: int) -> None:
        """Change how many pieces are ordered."""
        if not 1 <= quantity <= 1000:
            raise ToolError("a quantity is 1 to 1000")
        self.orders[number.upper()] = replace(self.order(number), quantity=quantity)

    def pay(self, account: str, to: str, amount: int, reference: str) -> None:
        """Move money from an account to somebody."""
        balance = _find("account", account, self.accounts, account.lower(), self.accounts)
        payee = self.person(to).name
        if not 1 <= amount <= balance:
            raise ToolError(f"an amount is 1 to the balance of {account}, {balance}")
        self.accounts[account.lower()] = balance - amount
        self.payments.append(Payment(account.lower(), payee, amount, reference.strip()))


def _find(kind: str, said: str, known: Mapping[str, R], key: str, names: Mapping[str, Any]) -> R:
    if key not in known:
        raise ToolError(f"there is no {kind} {said[:60]!r}{nearest(said, names)}")
    return known[key]


def _check_time(day: str, start: int, hours: int) -> None:
    try:
        datetime.date.fromisoformat(day)
    except ValueError as error:
        raise ToolError(f"a day reads 2024-03-01, not {day[:40]!r}") from error
    if not (0 <= start <= 23 and 1 <= hours <= 24 - start):
        raise ToolError("start and hours are whole hours within one day")
