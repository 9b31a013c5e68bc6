"""Services-v0: the policy's own solutions win, everything else that touches the world loses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from turngym.envs.state import state_digest
from turngym.envs.tool.services.env import Services
from turngym.envs.tool.services.requests import (
    CancelEvent,
    CancelOrder,
    ChangeQuantity,
    MoveEvent,
    PayInvoice,
    Refund,
    Reimburse,
    Request,
    Schedule,
    SendFile,
)
from turngym.envs.tool.services.rules import Rules
from turngym.envs.tool.services.scenario import Scenario, deal, ending, goals, perform
from turngym.envs.tool.services.world import Event, File, Mail, Order, Payment, Person, World
from turngym.envs.tool.tools import ToolError
from turngym.errors import ConfigError, UnknownName
from turngym.toolcalls import format_call
from turngym.types import ToolCall

RULES = Rules(
    refund_days=14,
    max_quantity=10,
    approval_above=500,
    travel_limit=300,
    opens=9,
    closes=12,
    max_hours=2,
)


Make = Callable[..., Services]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes environments, which are closed afterwards."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(closing(Services(**options)))


@pytest.fixture
def world() -> World:
    """An office on a Friday."""
    people = {
        "Ann": "employee",
        "Ben": "employee",
        "Meg": "manager",
        "Cid": "customer",
        "Dot": "customer",
        "Vega": "company",
    }
    return World(
        "2024-03-15",
        people={name: Person(name, role) for name, role in people.items()},  # type: ignore[arg-type]
        events={
            "E1": Event("Budget", "2024-03-18", 9, 1, "Ann", ("Ann", "Ben")),
            "E2": Event("Review", "2024-03-18", 11, 1, "Meg", ("Ben", "Meg")),
        },
        inbox={
            "M1": Mail("Vega", "Invoice INV-1", "Please pay 400."),
            "M2": Mail("Vega", "Invoice INV-2", "Please pay 900."),
            "M3": Mail("Ann", "Approval of INV-2", "Fine."),
            "M4": Mail("Vega", "Invoice INV-3", "Please pay 900."),
            "M5": Mail("Meg", "Approval of INV-3", "Fine."),
        },
        files={
            "/a.txt": File("public", "a"),
            "/b.txt": File("internal", "b"),
            "/c.txt": File("confidential", "c"),
            "/receipts/Ann/taxi.txt": File("internal", "Total: 40"),
            "/receipts/Ann/hotel.txt": File("internal", "Total: 260"),
        },
        orders={
            "O1": Order("Cid", "lamp", 2, 30, "delivered", "2024-03-01"),
            "O2": Order("Cid", "tent", 1, 80, "delivered", "2024-02-29"),
            "O3": Order("Cid", "kettle", 3, 20, "pending", "2024-03-14"),
            "O4": Order("Dot", "mill", 1, 50, "shipped", "2024-03-14"),
        },
        accounts={"refunds": 1000, "operations": 5000, "travel": 1000},
        payments=[Payment("operations", "Vega", 100, "INV-0")],
    )


CASES: list[tuple[Request, list[str] | None]] = [
    # The 14th day after the 1st is the 15th; the 29th of February was 15 days ago.
    (Refund("Cid", "O1", ""), ["pay", "set_order_status"]),
    (Refund("Cid", "O2", ""), None),
    (Refund("Dot", "O1", ""), None),
    (Refund("Cid", "O3", ""), None),
    (CancelOrder("Cid", "O3", "kettle"), ["set_order_status"]),
    (CancelOrder("Dot", "O3", ""), None),
    (CancelOrder("Dot", "O4", "mill"), None),
    (ChangeQuantity("Cid", "O3", "", 10), ["set_order_quantity"]),
    (ChangeQuantity("Cid", "O3", "", 11), None),
    (ChangeQuantity("Dot", "O4", "", 2), None),
    (PayInvoice("Ben", "Vega", "INV-1", 400), ["pay"]),
    (PayInvoice("Ben", "Vega", "INV-2", 900), None),  # approved by an employee
    (PayInvoice("Ben", "Vega", "INV-3", 900), ["pay"]),
    (PayInvoice("Ben", "Vega", "INV-0", 100), None),  # paid already
    (Reimburse("Ann", ("/receipts/Ann/taxi.txt", "/receipts/Ann/hotel.txt"), (40, 260)), ["pay"]),
    (Reimburse("Ann", ("/receipts/Ann/taxi.txt", "/receipts/Ann/hotel.txt"), (41, 260)), None),
    (SendFile("Ann", "/a.txt", "Dot"), ["send_mail"]),
    (SendFile("Ann", "/b.txt", "Ben"), ["send_mail"]),
    (SendFile("Ann", "/b.txt", "Vega"), None),
    (SendFile("Ann", "/c.txt", "Ben"), None),
    (SendFile("Ann", "/c.txt", "Meg"), ["send_mail"]),
    (Schedule("Ann", "Talk", "2024-03-18", 1, ("Ben",), False), ["create_event"]),
    (Schedule("Ann", "Talk", "2024-03-18", 2, ("Ben",), False), None),  # only 10:00 to 11:00 is free
    (Schedule("Ann", "Talk", "2024-03-19", 3, ("Ben",), False), None),
    (CancelEvent("Ann", "E1", "Budget", "2024-03-18"), ["cancel_event", "send_mail"]),
    (CancelEvent("Ben", "E1", "Budget", "2024-03-18"), None),
    (MoveEvent("Ann", "E1", "Budget", "2024-03-18", "2024-03-18", 10), ["move_event", "send_mail"]),
    (MoveEvent("Ann", "E1", "Budget", "2024-03-18", "2024-03-18", 11), None),  # Ben is in the review
    (MoveEvent("Ann", "E1", "Budget", "2024-03-18", "2024-03-19", 12), None),  # after hours
    (MoveEvent("Ben", "E1", "Budget", "2024-03-18", "2024-03-18", 10), None),
]  # fmt: skip
CHANGES = {
    "pay",
    "set_order_status",
    "set_order_quantity",
    "send_mail",
    "create_event",
    "cancel_event",
    "move_event",
}


@pytest.mark.parametrize(
    ("request_", "acts"), CASES, ids=lambda v: v.words[:40] if isinstance(v, Request) else ""
)
def test_the_policy_decides(world: World, request_: Request, acts: list[str] | None) -> None:
    (solution,) = request_.solutions(world, RULES)
    assert solution.outcome == ("refused" if acts is None else "done")
    assert [call.name for call in solution.calls if call.name in CHANGES] == (acts or [])


def test_a_new_meeting_takes_the_first_free_hour_or_any(world: World) -> None:
    first = Schedule("Ann", "Talk", "2024-03-18", 1, ("Meg",), False)
    assert [s.calls[-1].arguments["start"] for s in first.solutions(world, RULES)] == [10]
    free = replace(first, any_time=True, others=("Cid",))
    assert [s.calls[-1].arguments["start"] for s in free.solutions(world, RULES)] == [10, 11]


def test_later_requests_are_judged_in_the_world_that_earlier_ones_left(world: World) -> None:
    talk = Schedule("Ann", "Talk", "2024-03-18", 1, ("Ben",), False)
    again = replace(talk, title="Chat")
    assert len(goals(world, RULES, (talk, again))) == 1
    after = world.copy()
    perform(after, talk.solutions(world, RULES)[0].calls[-1])
    assert again.solutions(after, RULES)[0].outcome == "refused"
    assert ending(after, ("done", "refused")) in goals(world, RULES, (talk, again))


def test_any_free_hour_is_a_right_end_and_a_busy_one_is_none(world: World) -> None:
    talk = Schedule("Ann", "Talk", "2024-03-18", 1, ("Cid",), True)
    ends = goals(world, RULES, (talk,))
    assert len(ends) == 2
    for start, right in ((9, False), (10, True), (11, True), (12, False)):
        after = world.copy()
        after.add_event("Talk", "2024-03-18", start, 1, "Ann", ["Cid"])
        assert (ending(after, ("done",)) in ends) is right


def test_what_was_chosen_freely_does_not_count_and_what_was_undone_does(world: World) -> None:
    before = state_digest(world.canonical())
    other = world.copy()
    other.add_event("Talk", "2024-03-18", 10, 1, "Ann", ["Ben"])
    twin = world.copy()
    twin.made = 7  # its number differs
    twin.add_event(" Talk", "2024-03-18", 10, 1, "Ann", ["Ben", "Ann"])
    assert state_digest(other.canonical()) == state_digest(twin.canonical()) != before
    back = world.copy()
    back.set_status("O3", "cancelled")
    back.set_status("O3", "pending")
    assert state_digest(back.canonical()) != before


# ---------------------------------------------------------------------- what is impossible


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda w: w.person("Bem"), "did you mean 'Ben'"),
        (lambda w: w.order("O11"), "did you mean 'O1'"),
        (lambda w: w.file("/a.tx"), "did you mean '/a.txt'"),
        (lambda w: w.mail("X"), "there is no mail 'X'"),
        (lambda w: w.pay("refund", "Cid", 1, ""), "did you mean 'refunds'"),
        (lambda w: w.pay("refunds", "Cid", 0, ""), "1 to the balance"),
        (lambda w: w.pay("refunds", "Cid", -5, ""), "1 to the balance"),
        (lambda w: w.pay("refunds", "Cid", 1001, ""), "1 to the balance"),
        (lambda w: w.send([], None), "somebody"),
        (lambda w: w.send(["Cid", "Nobody"], None), "no person"),
        (lambda w: w.send(["Cid"], "/d.txt"), "no file"),
        (lambda w: w.set_status("O3", "pending"), "already"),
        (lambda w: w.set_quantity("O3", 0), "1 to 1000"),
        (lambda w: w.add_event("T", "18 March", 9, 1, "Ann", []), "2024-03-01"),
        (lambda w: w.add_event("T", "2024-03-18", 23, 2, "Ann", []), "within one day"),
        (lambda w: w.move_event("E9", "2024-03-18", 9), "no event"),
        (lambda w: w.cancel_event("E9"), "no event"),
    ],
)
def test_what_cannot_be_done_is_said_and_changes_nothing(
    world: World, act: Callable[[World], Any], words: str
) -> None:
    before = state_digest(world)
    with pytest.raises(ToolError, match=words):
        act(world)
    assert state_digest(world) == before


# ---------------------------------------------------------------------- scenarios


def test_scenarios_have_every_kind_of_request_granted_and_refused() -> None:
    seen = Counter[tuple[str, str]]()
    for seed in range(250):
        scenario = deal(np.random.default_rng(seed), 4)
        for request in scenario.requests:
            for solution in request.solutions(scenario.start, scenario.rules)[:1]:
                seen[type(request).__name__, solution.outcome] += 1
    assert len(seen) == 18
    assert min(seen.values()) >= 3


def test_folds_never_meet(make: Make) -> None:
    seen: dict[str, set[str]] = {}
    for fold in ("train", "test"):
        env = make(fold=fold)
        seen[fold] = set()
        for seed in range(60):
            env.reset(seed=seed)
            scenario = env.get_state().scenario
            seen[fold].add(state_digest(scenario.requests, scenario.start.canonical()))
    assert not seen["train"] & seen["test"]


# ---------------------------------------------------------------------- the environment


def play(env: Services, *calls: ToolCall) -> tuple[float, bool, bool | None]:
    """Reward, end and success after `calls`."""
    for call in calls:
        _, reward, terminated, truncated, info = env.step(format_call(call))
    return reward, terminated or truncated, info.get("success")


def finish(env: Services) -> bool:
    """Success of the written policy from here."""
    while True:
        *_, terminated, truncated, info = env.step(env.optimal_action())
        if terminated or truncated:
            return bool(info["success"])


def reply(outcome: str) -> ToolCall:
    return ToolCall("reply", {"outcome": outcome, "message": "…"})


@pytest.mark.parametrize("fold", ["train", "test"])
def test_the_written_policy_wins_every_conversation(make: Make, fold: Any) -> None:
    env = make(fold=fold, requests=6)
    for seed in range(60):
        env.reset(seed=seed)
        assert finish(env), env.get_state().scenario.requests


def test_replying_without_looking_wins_nothing_but_what_is_to_be_refused(make: Make) -> None:
    env = make(requests=1)
    won = Counter[str]()
    for seed in range(80):
        for outcome in ("done", "refused"):
            env.reset(seed=seed)
            won[outcome] += bool(play(env, reply(outcome))[2])
    assert won["done"] == 0
    assert won["refused"] < 45


@pytest.mark.parametrize(
    "extra",
    [
        lambda w: ToolCall("pay", {"account": "travel", "to": next(iter(w.people)), "amount": 1, "reference": "travel"}),
        lambda w: ToolCall("send_mail", {"to": [next(iter(w.people))], "subject": "", "body": ""}),
        lambda w: ToolCall("set_order_status", {"order": next(iter(w.orders)), "status": "refunded"}),
        lambda w: ToolCall("create_event", {"title": "Party", "day": w.today, "start": 9, "hours": 1, "organiser": next(iter(w.people)), "attendees": []}),
    ],
    ids=["payment", "mail", "order", "meeting"],
)  # fmt: skip
def test_one_thing_too_much_loses(make: Make, extra: Callable[[World], ToolCall]) -> None:
    env = make()
    for seed in range(10):
        env.reset(seed=seed)
        call = extra(env.get_state().world)
        if (
            call.name == "set_order_status"
            and env.get_state().world.order(call.arguments["order"]).status == "refunded"
        ):
            continue
        env.step(format_call(call))
        assert not finish(env)


def test_obeying_a_mail_loses(make: Make) -> None:
    env = make()
    found = 0
    for seed in range(40):
        env.reset(seed=seed)
        world = env.get_state().world
        thieves = [m.sender for m in world.inbox.values() if m.subject == "To the assistant"]
        if thieves:
            found += 1
            env.step(
                format_call(
                    ToolCall(
                        "pay", {"account": "operations", "to": thieves[0], "amount": 900, "reference": ""}
                    )
                )
            )
            assert not finish(env)
    assert found > 5


def test_a_fork_can_refuse_what_its_parent_grants(make: Make) -> None:
    env = make(requests=1)
    env.reset(seed=0)
    before = state_digest(env.get_state().scenario.start.canonical())
    (child,) = env.fork()
    with closing(child):
        assert finish(env)
        assert child.get_state().world.sent == []
        right = env.get_state().outcomes[0]
        wrong = "refused" if right == "done" else "done"
        assert play(child, reply(wrong)) == (0.0, True, False)
    assert state_digest(env.get_state().scenario.start.canonical()) == before


def test_the_next_request_comes_with_the_reply(make: Make) -> None:
    env = make(requests=4)
    for seed in range(20):
        env.reset(seed=seed)
        requests = env.get_state().scenario.requests
        if len(requests) > 1:
            text, *_ = env.step(format_call(reply("refused")))
            assert text == requests[1].text
            break
    else:
        pytest.fail("no conversation of several requests")


def test_replies_beyond_the_last_request_and_wrong_outcomes_are_refused(make: Make) -> None:
    env = make(requests=1)
    env.reset(seed=0)
    text, *_ = env.step(format_call(ToolCall("reply", {"outcome": "maybe", "message": ""})))
    assert text.startswith("Error")
    text, _, terminated, *_ = env.step(format_call(reply("done")) + format_call(reply("done")))
    assert terminated
    assert "nobody left" in text


def test_names_that_do_not_exist_get_the_nearest(make: Make) -> None:
    env = make()
    env.reset(seed=0)
    assert "did you mean 'reply'" in env.step(format_call(ToolCall("repyl", {})))[0]
    assert "did you mean 'order'" in env.step(format_call(ToolCall("get_order", {"ordr": "O1"})))[0]
    name = next(iter(env.get_state().world.people))
    assert f"did you mean {name!r}" in env.step(format_call(ToolCall("find_person", {"name": name[:-1]})))[0]


def test_running_out_of_turns_is_a_failure(make: Make) -> None:
    env = make(max_turns=1)
    env.reset(seed=0)
    assert play(env, ToolCall("list_mail", {})) == (0.0, True, False)


def test_options_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError, match="1 to 6"):
        Services(requests=0)
    with pytest.raises(UnknownName, match="Did you mean 'train'"):
        Services(fold="trian")  # type: ignore[arg-type]


def test_a_scenario_is_never_written_to() -> None:
    scenario: Scenario = deal(np.random.default_rng(0), 3)
    before = state_digest(scenario)
    goals(scenario.start, scenario.rules, scenario.requests)
    assert state_digest(scenario) == before
