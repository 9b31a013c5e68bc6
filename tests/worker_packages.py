"""What tests of adapters share: virtual environments, made from PyPI once and kept in the user's cache; and tasks played by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from missing import skip_or_fail
from turngym.envs.adapters.worker_env import WorkerEnv
from turngym.envs.adapters.worker_venv import Pins, interpreter
from turngym.errors import MissingDependency


def require_worker(pins: Pins) -> None:
    """Make the environment with `pins`, or skip the test; where CI is set, that it can't be made is a failure."""
    try:
        interpreter(pins)
    except MissingDependency as error:
        skip_or_fail(str(error))


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def play(env: WorkerEnv, task: str, policy: Callable[[], str]) -> dict[str, Any]:
    """Play `task` to its end; returns the last info."""
    env.reset(seed=0, options={"task": task})
    while True:
        _, reward, terminated, truncated, info = env.step(policy())
        if terminated or truncated:
            assert reward == float(info["success"])
            return info


def solve(env: WorkerEnv, task: str) -> dict[str, Any]:
    """Play the package's solution."""
    return play(env, task, env.optimal_action)


def stay_silent(env: WorkerEnv, task: str) -> dict[str, Any]:
    """Say nothing of use until the episode ends."""
    return play(env, task, lambda: "Done.")
