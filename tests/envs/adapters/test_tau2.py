"""τ²-bench: solutions score 1 by the package's own evaluation, and a fork never asks the user twice."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from small_models import CHATML, byte_tokenizer, tiny_model
from turngym.agents.policies.local import LocalPolicy
from turngym.agents.policy import SampleParams
from turngym.agents.simulated_user import PolicyUser
from turngym.envs.adapters.tau2 import PINS, SimulatedUser, Tau2
from turngym.errors import ConfigError, EnvFault, UnknownName
from turngym.types import Message
from worker_packages import call, require_worker, solve, stay_silent

TASKS = {"airline": 50, "retail": 114, "telecom": 114}
SILENT = {"airline": 19, "retail": 7, "telecom": 0}
"""How many tasks are solved by saying nothing of use: what is right there is to change nothing."""

PHONE = "telecom/[mobile_data_issue]airplane_mode_on|user_abroad_roaming_enabled_off[PERSONA:None]"


@pytest.fixture(autouse=True, scope="module")
def _worker() -> None:
    require_worker(PINS)


@pytest.fixture
def make() -> Iterator[Callable[..., Tau2]]:
    """Makes environments, which are closed after the test: each has an event loop for its user."""
    with contextlib.ExitStack() as stack:

        def made(*, of: type[Tau2] = Tau2, **options: Any) -> Tau2:
            return stack.enter_context(contextlib.closing(of(**options)))

        yield made


@pytest.mark.parametrize("domain", ["airline", "retail", "telecom"])
def test_solutions_score_one(make: Callable[..., Tau2], domain: Any) -> None:
    env = make(domain=domain)
    tasks = env.task_ids()
    assert len(tasks) == TASKS[domain]
    for task in tasks[:: len(tasks) // 2 - 1]:
        assert solve(env, task)["success"], task


@pytest.mark.slow
@pytest.mark.parametrize("domain", ["airline", "retail", "telecom"])
def test_every_solution_scores_one(make: Callable[..., Tau2], domain: Any, record_property: Any) -> None:
    env = make(domain=domain)
    tasks = env.task_ids()
    missed = [task for task in tasks if not solve(env, task)["success"]]
    silent = sum(stay_silent(env, task)["success"] for task in tasks)
    record_property("silence_succeeds", silent)
    assert (missed, silent) == ([], SILENT[domain])


def test_another_value_in_the_database_is_a_failure(make: Callable[..., Tau2]) -> None:
    env = make(domain="retail", task="retail/0")
    env.reset(seed=0)
    action = env.optimal_action().replace("credit_card_9513926", "paypal_0000000")
    while True:
        _, reward, terminated, _, info = env.step(action)
        if terminated:
            break
        action = "Done."
    assert (reward, info["success"]) == (0.0, False)
    assert info["reward_parts"]["DB"] == 0.0


def test_the_user_acts_when_the_agent_names_a_tool(make: Callable[..., Tau2]) -> None:
    env = make(domain="telecom", task=PHONE)
    first, _ = env.reset(seed=0)
    assert "phone" in first.lower()
    text, *_ = env.step("Please use check_status_bar.")
    assert text.startswith("I have done that.\nStatus Bar:")
    assert "Airplane Mode" in text
    assert (
        "Airplane Mode"
        not in env.step("Please use toggle_airplane_mode, then check_status_bar.")[0].split("\n")[-1]
    )
    text, *_ = env.step("Is there anything else?")
    assert "I have done that" not in text


def test_a_user_who_gets_nowhere_hangs_up(make: Callable[..., Tau2]) -> None:
    env = make(domain="telecom", task=PHONE)
    info = stay_silent(env, PHONE)
    assert info["termination"] == "user_stop"
    assert info["success"] is False
    assert len(env.get_state().episode) < 20_000


def test_ten_errors_end_the_conversation(make: Callable[..., Tau2]) -> None:
    env = make(domain="telecom", task=PHONE)
    env.reset(seed=0)
    text, *_ = env.step(call("get_customer_by_phon", phone_number="555"))
    assert "Did you mean 'get_customer_by_phone'?" in text
    text, *_ = env.step(call("get_customer_by_id", customer="C1001"))
    assert "'customer'. Did you mean 'customer_id'?" in text
    assert "the message is empty" in env.step("   ")[0]
    assert "a tool call is not closed" in env.step("<tool_call>")[0]
    for _ in range(5):
        *_, truncated, _ = env.step(call("get_customer_by_id", customer_id=3))
        assert not truncated
    *_, truncated, info = env.step(call("get_customer_by_id", customer_id=3) + call("get_bill"))
    assert truncated
    assert (info["success"], info["termination"]) == (False, "too_many_errors")


def test_no_expression_is_run_as_code_or_for_ever(make: Callable[..., Tau2]) -> None:
    class Hurried(Tau2):
        act_cpu_s = 2.0

    env = make(of=Hurried, domain="retail", task="retail/0")
    env.reset(seed=0)
    assert "Invalid characters" in env.step(call("calculate", expression="__import__('os')"))[0]
    assert env.step(call("calculate", expression="2 * (3 + 4)"))[0] == "14.0"
    assert "it took too long" in env.step(call("calculate", expression="9**9**9"))[0]


def test_bill_numbers_follow_from_the_customer(make: Callable[..., Tau2]) -> None:
    env = make(domain="telecom", task=PHONE)
    seen = []
    for _ in range(2):
        env.reset(seed=0)
        for customer, line in (("C1002", "L1004"), ("C1003", "L1009")):  # neither has a bill to add to
            env.step(call("refuel_data", customer_id=customer, line_id=line, gb_amount=1.0))
            bills = json.loads(env.step(call("get_customer_by_id", customer_id=customer))[0])["bill_ids"]
            seen.append(bills[-1])
    assert seen[:2] == seen[2:]
    assert len(set(seen)) == 2
    env.slot.close()
    (child,) = env.fork()  # another worker that plays the calls again comes to the same numbers
    child.close()


class Chatty:
    """A user that writes down what it is told, and stops on the third time."""

    def __init__(self) -> None:
        self.heard: list[list[Message]] = []
        self.seeds: list[int] = []

    async def reply(self, messages: Sequence[Message], *, seed: int) -> str:
        self.heard.append(list(messages))
        self.seeds.append(seed)
        return [
            "My phone has no signal.",
            call("check_status_bar"),
            "It says airplane mode.",
            "###STOP###",
        ][len(self.heard) - 1]


def test_a_model_hears_the_conversation_from_the_users_side(make: Callable[..., Tau2]) -> None:
    user = Chatty()
    assert isinstance(user, SimulatedUser)
    env = make(domain="telecom", user=user, task=PHONE)
    text, info = env.reset(seed=0)
    assert text.endswith("My phone has no signal.")
    assert [m.role for m in info["messages"]] == ["system", "user"]
    env.step(call("get_customer_by_phone", phone_number="555-123-2002"))
    text, *_ = env.step("What does the status bar say?")
    assert text == "It says airplane mode."
    system, *talk = user.heard[2]
    assert "You are playing the role of a customer" in system.content
    assert "<scenario>" in system.content
    assert '"name": "toggle_airplane_mode"' in system.content
    assert [m.role for m in talk] == ["user", "assistant", "user", "assistant", "tool"]
    assert talk[0].content == "Hi! How can I help you today?"
    assert talk[3].content == call("check_status_bar")
    assert len(set(user.seeds)) == 3
    *_, terminated, _, info = env.step("Good bye.")
    assert terminated
    assert info["success"] is False


def test_a_fork_asks_the_user_nothing_again(make: Callable[..., Tau2]) -> None:
    user = Chatty()
    env = make(domain="telecom", user=user, task=PHONE)
    env.reset(seed=0)
    env.step(call("get_customer_by_phone", phone_number="555-123-2002"))
    asked = len(user.heard)
    env.slot.close()
    one, two = env.fork(2)
    with contextlib.closing(one), contextlib.closing(two):
        assert len(user.heard) == asked == 1
        assert one.state_key() == two.state_key() == env.state_key()


def test_a_policy_can_play_the_user() -> None:
    async def episode(seed: int) -> list[str]:
        policy = LocalPolicy(tiny_model(max_position_embeddings=16_384), byte_tokenizer(CHATML))
        env = Tau2(domain="airline", task="airline/0", user=PolicyUser(policy, SampleParams(max_tokens=8)))
        try:
            first, _ = await env.reset_async(seed=seed)
            (child,) = await env.fork_async()
            said = [first, (await env.step_async("How can I help?"))[0]]
            assert said[1] == (await child.step_async("How can I help?"))[0]
            child.close()
            return said
        finally:
            env.close()
            await policy.close()

    assert asyncio.run(episode(1)) == asyncio.run(episode(1))


def test_a_user_that_breaks_is_a_fault(make: Callable[..., Tau2]) -> None:
    class Broken:
        async def reply(self, messages: Sequence[Message], *, seed: int) -> str:
            raise OSError("no connection")

    with pytest.raises(EnvFault, match="no connection"):
        make(domain="airline", user=Broken()).reset(seed=0)


def test_what_does_not_exist_is_refused_by_name(make: Callable[..., Tau2]) -> None:
    with pytest.raises(UnknownName, match="Did you mean 'retail'"):
        Tau2(domain="retial")  # type: ignore[arg-type]
    with pytest.raises(UnknownName, match="task of Tau2"):
        make(domain="airline", task="airline/500").reset(seed=0)
    with pytest.raises(ConfigError, match=r"user = 'gpt': Input should be 'scripted'; or .*SimulatedUser"):
        Tau2(domain="airline", user="gpt")  # type: ignore[arg-type]
