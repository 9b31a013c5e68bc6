"""GEM's side of overhead.py: prints one number, µs per env step. Runs in a virtual environment that has GEM.

Arguments: turns of an episode, environments in the vector, env steps per repeat, repeats.
"""

from __future__ import annotations

import contextlib
import sys
import time

import gem
from gem.vector.sync_vector_env import SyncVectorEnv

TURNS, ENVS, STEPS, REPEATS = (int(argument) for argument in sys.argv[1:])


class Trivial(gem.Env):
    """Says "ok" until the last turn."""

    def reset(
        self, seed=None
    ):  # no annotations: GEM's own are not checked, and this file runs without turngym
        self.turn = 0
        return "go", {}

    def step(self, action):
        self.turn += 1
        return "ok", 0.0, self.turn >= TURNS, False, {}


def vector_seconds() -> float:
    env = SyncVectorEnv([f"trivial-{i}" for i in range(ENVS)], [Trivial] * ENVS)
    env.reset()
    actions = ["step"] * ENVS
    started = time.process_time()
    for _ in range(STEPS // ENVS):
        env.step(actions)
    return time.process_time() - started


def bare_seconds() -> float:
    env = Trivial()
    env.reset()
    started = time.process_time()
    for _ in range(STEPS):
        if env.step("step")[2]:
            env.reset()
    return time.process_time() - started


with contextlib.redirect_stdout(sys.stderr):  # GEM prints as it goes
    whole, bare = (min(f() for _ in range(REPEATS)) for f in (vector_seconds, bare_seconds))
print((whole - bare) / STEPS * 1e6)
