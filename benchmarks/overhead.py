"""What the agent loop costs beyond the environment: python benchmarks/overhead.py [--json FILE]

A trivial environment says "ok" for 32 turns, and a scripted policy says "step". Measured is CPU time on one core
per env step, less that of the environment's own hooks, as the best of several repeats, for

* the loop as `play` runs it: sample, render, step, record every token in a tree;
* the same with a snapshot at every decision point, as tree rollouts have it;
* Gymnasium's and GEM's `SyncVectorEnv` over 32 equivalent environments, which step and reset, and nothing more.

GEM goes into a virtual environment of its own in the cache folder, since its pins meet nobody else's. Where it
can't be installed or run, the table says why and its figure is left out.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
import venv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium

from _report import parse_json_flag, report
from turngym.agents.loop import LoopOptions, begin, play
from turngym.agents.policies.scripted import ScriptedPolicy
from turngym.agents.policy import Turn
from turngym.envs.base import Forking, TurnEnv
from turngym.tree import Tree
from turngym.types import Reply

TURNS, ENVS, STEPS, REPEATS = 32, 32, 8192, 9
GEM = ["--no-deps", "--ignore-requires-python", "gem-llm==0.1.0"]
GEM_NEEDS = ["numpy", "reasoning-gym==0.1.23"]  # what `import gem` imports, of all that it pins


class Trivial(TurnEnv):
    """Says "ok" until the last turn."""

    forking = Forking.EXACT

    def start(self, options: Mapping[str, Any]) -> Reply:
        self.turn = 0
        return Reply("go")

    def act(self, action: str) -> Reply:
        self.turn += 1
        return Reply("ok", terminated=self.turn >= TURNS, success=True)

    def get_state(self) -> int:
        return self.turn

    def set_state(self, state: int) -> None:
        self.turn = state


class TrivialGymnasium(gymnasium.Env[str, str]):
    """The same for Gymnasium."""

    observation_space = gymnasium.spaces.Text(8)
    action_space = gymnasium.spaces.Text(8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        self.turn = 0
        return "go", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.turn += 1
        return "ok", 0.0, self.turn >= TURNS, False, {}


class Constant(ScriptedPolicy):
    """Says "step"."""

    def choose(self, turn: Turn, seed: int) -> tuple[str, float]:
        return "step", 0.0


def best_us(timed: Callable[[], None]) -> float:
    """µs of CPU time per env step, where `timed` takes `STEPS` of them: the best repeat."""
    seconds = []
    for _ in range(REPEATS):
        started = time.process_time()
        timed()
        seconds.append(time.process_time() - started)
    return min(seconds) / STEPS * 1e6


def loop_us(options: LoopOptions) -> float:
    """One path a tree, `STEPS` env steps in all, less the environment's own hooks."""
    policy = Constant("scripted:constant")

    async def episodes() -> None:
        env = Trivial()
        for seed in range(STEPS // TURNS):
            tree = Tree(
                task_id="trivial", rollout_id=str(seed), seed=seed, renderer_hash=policy.renderer.hash
            )
            root = await begin(env, tree, policy, options, task_seed=seed)
            await play(env, tree, root, policy, options, seed=seed)

    def hooks() -> None:
        env = Trivial()
        for _ in range(STEPS // TURNS):
            env.start({})
            for _ in range(TURNS):
                env.act("step")

    return best_us(lambda: asyncio.run(episodes())) - best_us(hooks)


def gymnasium_us() -> float:
    """`SyncVectorEnv.step`, less the environment's own `step` and `reset`."""
    vector = gymnasium.vector.SyncVectorEnv([TrivialGymnasium] * ENVS)
    vector.reset()
    actions = ("step",) * ENVS

    def steps() -> None:
        for _ in range(STEPS // ENVS):
            vector.step(actions)

    def bare() -> None:
        env = TrivialGymnasium()
        env.reset()
        for _ in range(STEPS):
            if env.step("step")[2]:
                env.reset()

    return best_us(steps) - best_us(bare)


def gem_us() -> float | str:
    """The same for GEM, or why it could not be measured."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "turngym" / "bench-gem"
    python = cache / ("Scripts" if os.name == "nt" else "bin") / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    worker = [python, Path(__file__).with_name("_overhead_gem.py"), *map(str, (TURNS, ENVS, STEPS, REPEATS))]
    try:
        if not (cache / "ready").exists():
            venv.create(cache, with_pip=True, clear=True)
            for packages in (GEM_NEEDS, GEM):
                subprocess.run([*install, *packages], check=True, capture_output=True, text=True)
            (cache / "ready").touch()
        done = subprocess.run(worker, check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        return (error.stderr.strip().splitlines() or [str(error)])[-1]
    return float(done.stdout)


def main() -> None:
    json_path = parse_json_flag()
    gem = gem_us()
    figures = {
        "us_per_step": loop_us(LoopOptions()),
        "us_per_step_snapshots": loop_us(LoopOptions(snapshots=True)),
        "gymnasium_us_per_step": gymnasium_us(),
    }
    if isinstance(gem, float):
        figures["gem_us_per_step"] = gem
    what = {
        "us_per_step": "agent loop: sample, render, step, record",
        "us_per_step_snapshots": "the same, with a snapshot every turn",
        "gymnasium_us_per_step": f"Gymnasium SyncVectorEnv({ENVS}): step and reset only",
        "gem_us_per_step": f"GEM SyncVectorEnv({ENVS}): step and reset only",
    }
    rows = [
        {
            "figure": name,
            "what": words,
            "µs per env step": figures.get(name, f"not measured: {gem}"),
            "target": "<= 60" if name == "us_per_step" else "",
        }
        for name, words in what.items()
    ]
    report(f"Overhead beyond the environment, one core, episodes of {TURNS} turns", rows, figures, json_path)


if __name__ == "__main__":
    main()
