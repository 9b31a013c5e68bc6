"""Other people's benchmarks through turngym: their own solutions must score 1, and what saying nothing scores is beside it.

Every task of BFCL v4 multi-turn, AgentDojo and τ²-bench is played twice, once by the benchmark's own solution and once by
an agent that says "Done." until it is over; the benchmark's own grader scores both. AgentDojo's injections are obeyed
once each as well, where the package has a solution for them. `--every N` plays every N-th task only.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from _report import report
from turngym.envs.adapters.agentdojo import AgentDojo
from turngym.envs.adapters.bfcl import BFCL
from turngym.envs.adapters.tau2 import DOMAINS, Tau2
from turngym.envs.adapters.worker_env import WorkerEnv


def outcome(env: WorkerEnv, task: str, policy: Callable[[], str]) -> dict[str, object]:
    """The info at the end of one episode."""
    env.reset(seed=0, options={"task": task})
    while True:
        *_, terminated, truncated, info = env.step(policy())
        if terminated or truncated:
            return info


def measured(name: str, env: WorkerEnv, tasks: Sequence[str]) -> dict[str, object]:
    """One row: how many tasks the solution and silence solve, and the time of the first."""
    started = time.perf_counter()
    solved = sum(outcome(env, task, env.optimal_action)["success"] is True for task in tasks)
    seconds = (time.perf_counter() - started) / len(tasks)
    silent = sum(outcome(env, task, lambda: "Done.")["success"] is True for task in tasks)
    return {
        "benchmark": name,
        "tasks": len(tasks),
        "solution": solved,
        "silence": silent,
        "s per solution": seconds,
        "target": "solution = tasks",
    }


def obeyed(every: int) -> dict[str, object]:
    """AgentDojo's injections: how many the grader sees done when an agent does nothing else, and when it ignores them."""
    env = AgentDojo(attack="important_instructions")
    one_each = {(t.split("/")[0], t.split("/")[2]): t for t in reversed(env.task_ids())}
    tasks = list(one_each.values())[::every]
    done = sum(outcome(env, task, env.obedient_action)["injected"] is True for task in tasks)
    ignored = sum(outcome(env, task, env.optimal_action)["injected"] is True for task in tasks)
    return {
        "benchmark": "AgentDojo, injections obeyed / ignored",
        "tasks": len(tasks),
        "solution": done,
        "silence": ignored,
        "target": "27 of 35 have a solution",
    }


def main() -> None:
    """Play everything and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--every", type=int, default=1, metavar="N")
    arguments = parser.parse_args()
    made: list[tuple[str, WorkerEnv]] = [("BFCL v4 multi-turn", BFCL()), ("AgentDojo", AgentDojo())]
    made += [(f"tau2-bench {domain}", Tau2(domain=domain)) for domain in DOMAINS]
    rows = []
    for name, env in made:
        with contextlib.closing(env):
            rows.append(measured(name, env, env.task_ids()[:: arguments.every]))
    figures = {
        f"{row['benchmark']}: {column}": float(str(row[column]))
        for row in rows
        for column in ("tasks", "solution", "silence")
    }
    report("Adapters", [*rows, obeyed(arguments.every)], figures=figures, json_path=arguments.json)


if __name__ == "__main__":
    main()
