"""How noisy a gradient is per env step, for ways to fork: python benchmarks/noise.py [--json FILE]

The default policy plays Corridor with traps. The credit rule `tree` is unbiased on all plans here, so they differ in
noise and in cost alone. The noise of a tree's gradient is taken as Σ w²A² over its sampled tokens (scores of different
tokens are nearly uncorrelated and of like size); times the env steps that the tree cost, it says how many steps buy
the same certainty. A group of eight whole paths, where `tree` is leave-one-out (RLOO), counts as 1.

The figure `noise_best` is the smallest of the other plans: below 1, forks pay.
"""

from __future__ import annotations

import asyncio

import numpy as np

from _report import parse_json_flag, report
from turngym.agents.branching import make_plan
from turngym.agents.loop import LoopOptions
from turngym.agents.policies import load_policy
from turngym.agents.rollout.collect import collect
from turngym.tasks.task import procedural
from turngym.trainers.credit import get_rule
from turngym.tree import Tree
from turngym.types import Budget

TASKS = 100
PLANS: dict[str, tuple[str, dict[str, float]]] = {
    "8 whole paths": ("group", {"size": 8}),
    "5 paths, a fork every 8th turn": ("coin", {"roots": 5, "probability": 0.12}),
    "8 paths, a fork every 17th turn": ("coin", {"roots": 8, "probability": 0.06}),
    "4 paths, a fork every 4th turn": ("coin", {"roots": 4, "probability": 0.25}),
}


def grow(plan: str, options: dict[str, float]) -> list[Tree]:
    """Trees of one plan; the same tasks for all."""
    tasks = procedural(
        "turngym/Corridor-v0", fold="train", count=TASKS, seed=5, options={"rooms": 8, "one_way": 3}
    )
    loop = LoopOptions(budget=Budget(turn_tokens=24))
    trees = asyncio.run(
        collect(tasks, load_policy("local:sprout"), make_plan(plan, **options), options=loop, seed=3)
    )
    return [tree for tree in trees if tree is not None]


def noise(trees: list[Tree], pool: float) -> float:
    """Mean over trees of Σ A² per sampled token, A as in one ordinary trajectory."""
    total = 0.0
    for tree, credit in zip(trees, get_rule("tree", pool=pool)(trees), strict=True):
        roots = sum(node.parent == 0 for node in tree)
        for index, advantage in credit.advantages.items():
            total += float(np.square(advantage / roots).sum()) * tree[index].ids.size
    return total / len(trees)


def main() -> None:
    json_path = parse_json_flag()
    rows, scores = [], {}
    for name, (plan, options) in PLANS.items():
        trees = grow(plan, options)
        steps = float(np.mean([int(tree.meta["env_steps"]) for tree in trees]))
        plain, pooled = (noise(trees, pool) * steps for pool in (0.0, 2.0))
        scores[name] = min(plain, pooled)
        one = next(iter(scores.values()))
        rows.append(
            {
                "plan": name,
                "env steps a tree": round(steps, 1),
                "paths": round(float(np.mean([len(tree.leaves) for tree in trees])), 1),
                "noise per step": round(plain / one, 2),
                "with pool=2": round(pooled / one, 2),
            }
        )
    first, *others = scores.values()
    report("Noise of the gradient per env step", rows, {"noise_best": min(others) / first}, json_path)


if __name__ == "__main__":
    main()
