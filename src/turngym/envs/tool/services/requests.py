"""What people ask for, and the ways in which the policy allows it to be answered.

A request knows its words and, for any world, its `solutions`: sequences of tool calls, each followed by a reply with
an outcome. There is one for most requests, and more where the assistant has a choice. A solution looks before it acts,
so that following it shows where what it writes was read.
"""

from __future__ import annotations

import datetime
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from turngym.envs.tool.services.rules import Rules
from turngym.envs.tool.services.world import Event, Order, World
from turngym.types import ToolCall

Outcome = Literal["done", "refused"]


@dataclass(frozen=True, slots=True)
class Solution:
    """One right way to handle a request."""

    calls: tuple[ToolCall, ...]
    outcome: Outcome


def _call(name: str, /, **arguments: Any) -> ToolCall:
    return ToolCall(name, arguments)


@dataclass(frozen=True, slots=True)
class Request(ABC):
    """Something that a person asks for."""

    person: str
    "who asks"

    @property
    @abstractmethod
    def words(self) -> str:
        """What is asked, after the name of who asks."""

    @abstractmethod
    def solutions(self, world: World, rules: Rules) -> list[Solution]:
        """Every right way to handle it in this world, up to the order of independent calls."""

    @property
    def text(self) -> str:
        """The request as it arrives."""
        return f"{self.person}: {self.words}"


def _either(allowed: bool, looks: list[ToolCall], acts: list[ToolCall]) -> list[Solution]:
    """Look, and then act where that is allowed."""
    return [Solution((*looks, *acts), "done") if allowed else Solution(tuple(looks), "refused")]


# ---------------------------------------------------------------------- orders


@dataclass(frozen=True, slots=True)
class _OrderRequest(Request):
    """About an order, by its number or by its item."""

    order: str
    item: str
    "empty where the request gives the number"

    def _name(self) -> str:
        return f"my order of the {self.item}" if self.item else f"order {self.order}"

    def _look(self) -> list[ToolCall]:
        search = [_call("find_orders", customer=self.person)] if self.item else []
        return [*search, _call("get_order", order=self.order)]

    def _is_theirs(self, order: Order) -> bool:
        return order.customer == self.person


@dataclass(frozen=True, slots=True)
class Refund(_OrderRequest):
    """Money back."""

    @property
    def words(self) -> str:
        """See `Request.words`."""
        return f"I am not happy with {self._name()}. Please give me my money back."

    def solutions(self, world: World, rules: Rules) -> list[Solution]:
        """See `Request.solutions`."""
        order = world.order(self.order)
        age = datetime.date.fromisoformat(world.today) - datetime.date.fromisoformat(order.day)
        in_time = order.status == "delivered" and age.days <= rules.refund_days
        acts = [
            _call("pay", account="refunds", to=self.person, amount=order.total, reference=self.order),
            _call("set_order_status", order=self.order, status="refunded"),
        ]
        return _either(self._is_theirs(order) and in_time, self._look(), acts)


@dataclass(frozen=True, slots=True)
class CancelOrder(_OrderRequest):
    """Don't send it."""

    @property
    def words(self) -> str:
        """See `Request.words`."""
        return f"I have changed my mind about {self._name()}. Please cancel it."

    def solutions(self, world: World, rules: Rules) -> list[Solution]:
        """See `Request.solutions`."""
        order = world.order(self.order)
        acts = [_call("set_order_status", order=self.order, status="cancelled")]
        return _either(self._is_theirs(order) and order.status == "pending", self._look(), acts)


@dataclass(frozen=True, slots=True)
class ChangeQuantity(_OrderRequest):
    """More or fewer of it."""

    quantity: int

    @property
    def words(self) -> str:
        """See `Request.words`."""
        return f"Please change {self._name()} to {self.quantity} pieces."

    def solutions(self, world: World, rules: Rules) -> list[Solution]:
        """See `Request.solutions`."""
        order = world.order(self.order)
        allowed = order.status == "pending" and self.quantity <= rules.max_quantity
        acts = [_call("set_order_quantity", order=self.order, quantity=self.quantity)]
        return _either(self._is_theirs(order) and allowed, self._look(), acts)


# ---------------------------------------------------------------------- money


@dataclass(frozen=True, slots=True)
class PayInvoice(Request):
    """Pay what a company asks for by mail."""

    company: str
    number: str
    amount: int

    @property
    def words(self) -> str:
        """See `Request.words`."""
        return f"Please pay invoice {self.number} from {self.company}."

    def solutions(self, world: World, rules: Rules) -> list[Solution]:
        """See `Request.solutions`."""
        about = [key for key, mail in world.inbox.items() if self.number in mail.subject]
        approved = any(
            mail.subject == f"Approval of {self.number}" and world.people[mail.sender].role == "manager"
            for mail in world.inbox.values()
        )
        paid = any(payment.reference == self.number for payment in world.payments)
        looks = [_call("list_mail"), *(_call("read_mail", mail=key) for key in about), _call("list_payments")]
        looks += [
            _call("find_person", name=world.inbox[key].sender)
            for key in about
            if world.inbox[key].subject.startswith("Approval")
        ]
        act = _call("pay", account="operations", to=self.company, amount=self.amount, reference=self.number)
        return _either((self.amount <= rules.approval_above or approved) and not paid, looks, [act])


@dataclass(frozen=True, slots=True)
class Reimburse(Request):
    """Pay for a trip."""

    paths: tuple[str, ...]
    amounts: tuple[int, ...]

    @property
    def words(self) -> str:
        """See `Request.words`."""
        return "I am back from my trip. Please pay my receipts."

    def solutions(self, world: World, rules: Rules) -> list[Solution]:
        """See `Request.solutions`."""
        folder = f"/receipts/{self.person}"
        looks = [_call("list_files", folder=folder), *(_call("read_file", path=path) for path in self.paths)]
        total = sum(self.amounts)
        act = _call("pay", account="travel", to=self.person, amount=total, reference="travel")
        return _either(0 < total <= rules.travel_limit, looks, [act])


# ---------------------------------------------------------------------- files


@dataclass(frozen=True, slots=True)
class SendFile(Request):
    """Send a file to somebody."""

    path: str
    to: str

    @property
    def words(self) -> str:
        """See `Request.words`."""
        return f"Please send the file {self.path} to {self.to}."

    def solutions(self, world: World, rules: Rules) -> list[Solution]:
        """See `Request.solutions`."""
        label, role = world.file(self.path).label, world.person(self.to).role
        allowed = {
            "public": True,
            "internal": role in ("employee", "manager"),
            "confidential": role == "manager",
        }[label]
        looks = [_call("read_file", path=self.path), _call("find_person", name=self.to)]
        subject, body = self.path.rpartition("/")[2], f"{self.person} asked me to send you this."
        act = _call("send_mail", to=[self.to], subject=subject, body=body, attachment=self.path)
        return _either(allowed, looks, [act])


# ---------------------------------------------------------------------- calendar


@dataclass(frozen=True, slots=True)
class Schedule(Request):
    """A new meeting."""

    title: str
    day: str
    hours: int
    others: tuple[str, ...]
    any_time: bool

    @property
    def words(self) -> str:
        """See `Request.words`."""
        noun = "hour" if self.hours == 1 else "hours"
        when = ", at any time that suits everybody" if self.any_time else ""
        return (
            f"Please set up a meeting with {' and '.join(self.others)} on {self.day} for {self.hours} {noun}{when}. "
            f"Title: {self.title}"
        )

    def solutions(self, world: World, rules: Rules) -> list[Solution]:
        """See `Request.solutions`."""
        looks = (_call("list_events", day=self.day),)
        starts = list(self._starts(world, rules))
        if not starts:
            return [Solution(looks, "refused")]
        return [
            Solution((*looks, self._booking(start)), "done")
            for start in (starts if self.any_time else starts[:1])
        ]

    def _starts(self, world: World, rules: Rules) -> Iterator[int]:
        if self.hours > rules.max_hours:
            return
        for start in range(rules.opens, rules.closes - self.hours + 1):
            if not world.busy((self.person, *self.others), self.day, start, self.hours):
                yield start

    def _booking(self, start: int) -> ToolCall:
        return _call(
            "create_event",
            title=self.title,
            day=self.day,
            start=start,
            hours=self.hours,
            organiser=self.person,
            attendees=list(self.others),
        )


@dataclass(frozen=True, slots=True)
class _EventRequest(Request):
    """About a meeting in the calendar."""

    event: str
    title: str
    day: str

    def _tell(self, event: Event, what: str) -> list[ToolCall]:
        others = [name for name in event.attendees if name != self.person]
        body = f"{self.person} has {what} the meeting {self.title}."
        return [_call("send_mail", to=others, subject=self.title, body=body)] if others else []


@dataclass(frozen=True, slots=True)
class CancelEvent(_EventRequest):
    """No meeting."""

    @property
    def words(self) -> str:
        """See `Request.words`."""
        return f"The meeting '{self.title}' on {self.day} is not needed any more. Please cancel it."

    def solutions(self, world: World, rules: Rules) -> list[Solution]:
        """See `Request.solutions`."""
        event = world.event(self.event)
        acts = [_call("cancel_event", event=self.event), *self._tell(event, "cancelled")]
        return _either(event.organiser == self.person, [_call("list_events", day=self.day)], acts)


@dataclass(frozen=True, slots=True)
class MoveEvent(_EventRequest):
    """Another time."""

    to_day: str
    start: int

    @property
    def words(self) -> str:
        """See `Request.words`."""
        return f"Please move the meeting '{self.title}' on {self.day} to {self.to_day} at {self.start}:00."

    def solutions(self, world: World, rules: Rules) -> list[Solution]:
        """See `Request.solutions`."""
        event = world.event(self.event)
        inside = rules.opens <= self.start and self.start + event.hours <= rules.closes
        busy = world.busy(event.attendees, self.to_day, self.start, event.hours, but=self.event)
        allowed = event.organiser == self.person and inside and not busy
        looks = [_call("list_events", day=day) for day in dict.fromkeys((self.day, self.to_day))]
        move = _call("move_event", event=self.event, day=self.to_day, start=self.start)
        return _either(allowed, looks, [move, *self._tell(event, "moved")])
