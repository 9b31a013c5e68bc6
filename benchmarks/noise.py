"""How many env steps buy a sure gradient, for ways to spend them: python benchmarks/noise.py [--json FILE] [--steps N]

The policy that ships plays Corridor with traps, and the gradient of every single tree is computed. Of n of them, with G the
mean gradient and Σ its covariance over trees,

    |G|²  =  (|Σ gᵢ|² − Σ|gᵢ|²) / (n·(n − 1)),      tr Σ  =  mean |gᵢ|² − |G|²

both without bias, and the gradient noise scale is tr Σ / |G|² trees (McCandlish et al., arXiv:1812.06162): a batch of that
many has as much noise as signal. Times the env steps of a tree it is comparable between plans; the smaller, the fewer steps
a rule needs where noise is what limits it. ± is one standard error, by the jackknife over trees. The figure
`noise_best` is the smallest of the other ways, as a share of GRPO's.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import torch

from _report import report
from turngym.agents.branching import make_plan
from turngym.agents.loop import LoopOptions
from turngym.agents.policies import load_policy
from turngym.agents.policies.local import LocalPolicy
from turngym.agents.rollout.collect import collect
from turngym.tasks.task import procedural
from turngym.trainers.config import LossConfig, OptimiserConfig
from turngym.trainers.credit import apply, get_rule
from turngym.trainers.learner import Learner
from turngym.trainers.rows import rows_of
from turngym.tree import Tree
from turngym.types import Budget

EPISODE = 12.3
"Env steps of one episode of the policy that ships, to begin with about equal numbers of them."
Way = tuple[str, dict[str, float], list[tuple[str, dict[str, Any]]]]
WAYS: dict[str, Way] = {
    "groups of 8": ("group", {"size": 8}, [("grpo", {}), ("rloo", {}), ("gigpo", {}), ("graph", {})]),
    "groups of 16": ("group", {"size": 16}, [("rloo", {}), ("graph", {})]),
    "groups of 4": ("group", {"size": 4}, [("rloo", {}), ("graph", {})]),
    "groups of 2": ("group", {"size": 2}, [("rloo", {})]),
    "8 paths, a fork every 17th turn": (
        "coin",
        {"roots": 8, "probability": 0.06},
        [("tree", {"pool": 2.0}), ("graph", {})],
    ),
    "2 paths, a fork every 8th turn": ("coin", {"roots": 2, "probability": 0.12}, [("tree", {"pool": 2.0})]),
}


def grow(policy: LocalPolicy, plan: str, options: dict[str, float], tasks: int) -> list[Tree]:
    """Trees of one plan."""
    drawn = procedural(
        "turngym/Corridor-v0", fold="train", count=tasks, seed=5, options={"rooms": 8, "one_way": 3}
    )
    loop = LoopOptions(budget=Budget(turn_tokens=24), state_keys=True)
    grown = asyncio.run(collect(drawn, policy, make_plan(plan, **options), options=loop, seed=3))
    return [tree for tree in grown if tree is not None]


class Sketch:
    """Gradients as `(W,)` random projections of themselves, which keep lengths and angles to some percent.

    Source: Johnson & Lindenstrauss (1984), with one random sign and one bin an entry (count sketch).
    """

    def __init__(self, size: int, width: int = 32768) -> None:
        draw = torch.Generator().manual_seed(0)
        self.bins = torch.randint(width, (size,), generator=draw)
        self.signs = torch.randint(2, (size,), generator=draw) * 2.0 - 1.0
        self.width = width

    def __call__(self, gradient: torch.Tensor) -> np.ndarray:
        return torch.zeros(self.width).index_add_(0, self.bins, self.signs * gradient).double().numpy()


def gradients(
    learner: Learner, sketch: Sketch, trees: list[Tree], rule: str, options: dict[str, Any]
) -> np.ndarray:
    """`(n, W)` the gradient of each tree, as it counts in a batch of them: its mean over tokens, times its tokens."""
    apply(get_rule(rule, **options), trees)
    out = np.zeros((len(trees), sketch.width))
    for i, tree in enumerate(trees):
        if not learner.update([tree])["learner/skipped"]:
            whole = torch.cat([p.grad.flatten() for p in learner.parameters if p.grad is not None])
            tokens = sum(row.targets.size for row in rows_of([tree], renderer_hash=learner.renderer_hash))
            out[i] = tokens * sketch(whole)
    return out


def noise_scale(gradients: np.ndarray) -> float:
    """tr Σ / |G|² of `(n, P)` gradients."""
    n, total, squares = len(gradients), gradients.sum(0), float(np.square(gradients).sum())
    signal = (float(np.square(total).sum()) - squares) / (n * (n - 1))
    return (squares / n - signal) / signal


def jackknife(gradients: np.ndarray) -> float:
    """One standard error of `noise_scale`."""
    n = len(gradients)
    without = np.array([noise_scale(np.delete(gradients, i, axis=0)) for i in range(n)])
    return float(np.sqrt((n - 1) / n * np.square(without - without.mean()).sum()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--steps", type=int, default=8_000, help="env steps a plan, about")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    policy = load_policy("local:sprout")
    assert isinstance(policy, LocalPolicy)
    learner = Learner(
        policy.model,
        loss=LossConfig(name="pg"),
        optimiser=OptimiserConfig(lr=0.0, grad_clip=0.0, layout="packed"),
        renderer_hash=policy.renderer.hash,
    )
    sketch = Sketch(sum(p.numel() for p in learner.parameters))
    rows, needed = [], {}
    for name, (plan, options, rules) in WAYS.items():
        paths = options.get("size") or options["roots"] * (1 + 6 * options["probability"])
        trees = grow(policy, plan, options, round(arguments.steps / EPISODE / paths))
        steps = float(np.mean([int(tree.meta["env_steps"]) for tree in trees]))
        for rule, rule_options in rules:
            found = gradients(learner, sketch, trees, rule, rule_options)
            scale, error = noise_scale(found), jackknife(found)
            needed[name, rule] = scale * steps
            rows.append(
                {
                    "plan": name,
                    "rule": rule,
                    "trees": len(trees),
                    "env steps a tree": round(steps, 1),
                    "noise scale, trees": f"{scale:.1f} ± {error:.1f}",
                    "in env steps": round(scale * steps),
                }
            )
    first, *others = needed.values()
    report("Gradient noise scale", rows, {"noise_best": min(others) / first}, arguments.json)


if __name__ == "__main__":
    main()
