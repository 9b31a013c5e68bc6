"""Environments in sandboxes: the contract, and a backend that dies in mid-episode."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import closing
from typing import Any

import pytest

from engines import require_engine
from rollouts import Before, counted_leaves, void_leaves
from turngym.agents.branching import make_plan
from turngym.agents.policies.scripted import Oracle
from turngym.agents.rollout.collect import collect
from turngym.envs.checker import check_env
from turngym.envs.tool.python.env import PythonTasks
from turngym.errors import ForkDiverged, MissingDependency
from turngym.sandbox import engine
from turngym.sandbox.docker import ContainerLease
from turngym.tasks.task import Task
from turngym.toolcalls import format_call
from turngym.types import Outcome, ToolCall


@pytest.mark.parametrize(
    ("env_id", "turns", "actions"),
    [("turngym/PythonTasks-v0", 4, 30), ("turngym/Shell-v0", 4, 30), ("turngym/Repair-v0", 3, 10)],
)
def test_the_contract_holds(sandbox: str, env_id: str, turns: int, actions: int) -> None:
    report = check_env(env_id, turns=turns, actions=actions)
    assert report.ok, str(report)


def kill(env: Any) -> None:
    """End the backend's process under a running episode."""
    lease = env.machine._family.anchor._family.lease
    if isinstance(lease, ContainerLease):
        engine.client().kill(lease.container)
    else:
        os.kill(lease.pid, signal.SIGKILL)


def python(code: str) -> str:
    return format_call(ToolCall("python", {"code": code}))


def test_a_snapshot_outlives_its_sandbox(sandbox: str) -> None:
    with closing(PythonTasks()) as env:
        env.reset(seed=0)
        env.step(python("n = 41; open('file', 'w').write('x')"))
        snapshot, key = env.snapshot(), env.state_key()
        look = python("n, open('file').read()")
        before = env.step(look)[:4]
        kill(env)
        env.restore(snapshot)
        assert (env.state_key(), env.step(look)[:4]) == (key, before)
        (child,) = env.fork()  # what was played again is a state like any other
        with closing(child):
            assert child.step(look)[:4] == env.step(look)[:4] == before


def test_a_snapshot_whose_sandbox_is_gone_and_whose_replies_change_is_no_state(sandbox: str) -> None:
    with closing(PythonTasks()) as env:
        env.reset(seed=0)
        env.step(python("1"))
        env.step(python("import time; time.monotonic_ns()"))
        snapshot = env.snapshot()
        kill(env)
        with pytest.raises(ForkDiverged) as caught:
            env.restore(snapshot)
        assert caught.value.turn == 2


@pytest.mark.parametrize("backend", ["best", "docker"])
def test_an_episode_whose_backend_dies_is_refilled(sandbox: str, backend: str) -> None:
    if backend == "docker":
        require_engine()
    policy = Before(Oracle(), lambda sample, turn: kill(turn.env) if sample == 2 else None)
    task = Task(task_id="p", env_id="turngym/PythonTasks-v0", options={"sandbox": backend}, seed=1)
    (tree,) = asyncio.run(collect([task], policy, make_plan("group", size=2), live_paths=1))
    assert tree is not None
    assert [tree[leaf].outcome for leaf in void_leaves(tree)] == [Outcome.ENV_FAULT]
    assert [tree[leaf].outcome for leaf in counted_leaves(tree)] == [Outcome.SUCCESS] * 2


def test_an_image_that_is_missing_is_said_with_the_command_that_gets_it(sandbox: str) -> None:
    require_engine()
    with (
        closing(PythonTasks(sandbox="docker:no-such-image:7")) as env,
        pytest.raises(MissingDependency, match=r"`docker pull no-such-image:7`"),
    ):
        env.reset(seed=0)
