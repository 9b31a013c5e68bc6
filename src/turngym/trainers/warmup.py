"""Supervised learning before reinforcement learning: a policy that never succeeds has nothing to learn from.

The environment's own scripted policy plays training tasks, erring on purpose, and the model learns what the script did
where it did not err. The demonstrations are trees like any other, rendered by the policy's own renderer; the loss is
`sft`; the weights are those that go on to learn by reinforcement.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from turngym.agents.branching import make_plan
from turngym.agents.policies.local import LocalPolicy
from turngym.agents.policies.scripted import Mixture, by_expert
from turngym.agents.rollout.collect import collect
from turngym.errors import HarnessFault
from turngym.seeding import derive, generator
from turngym.tasks.task import Task
from turngym.trainers.config import LossConfig, OptimiserConfig, WarmupConfig
from turngym.trainers.learner import Learner
from turngym.tree import Tree

BATCH = 16
"""Demonstrations in one optimiser step."""


async def demonstrate(
    tasks: Sequence[Task], policy: LocalPolicy, *, epsilon: float, seed: int, live_paths: int = 64
) -> list[Tree]:
    """One tree a task, played by the environment's script; actions to imitate have an advantage, errors have none.

    Args:
        tasks: of an environment with `optimal_action` and `random_action`.
        policy: whose renderer makes the tokens.
        epsilon: share of random actions, below one half: they lead into states from which the script has to recover.
        seed: of the coin and the errors.
        live_paths: paths that are live at once.

    Raises:
        ConfigError: the environment has no script.
        HarnessFault: no demonstration could be played.
    """
    script = Mixture(epsilon, renderer=policy.renderer)
    grown = await collect(tasks, script, make_plan("group", size=1), seed=seed, live_paths=live_paths)
    trees = [tree for tree in grown if tree is not None and not tree.void(tree.leaves[0])]
    if not trees:
        raise HarnessFault(f"none of {len(tasks)} demonstrations could be played; the log names each fault")
    for tree in trees:
        for node in tree:
            if by_expert(node, epsilon):
                node.advantage = 1.0
    return trees


async def warm_up(
    policy: LocalPolicy, tasks: Sequence[Task], config: WarmupConfig, *, seed: int
) -> dict[str, float]:
    """Teach `policy` what the script does on the first `config.episodes` of `tasks`.

    Returns:
        `warmup/episodes`, `warmup/updates`, and `warmup/nll`, the surprise per token in the last epoch.
    """
    epsilon, chosen = config.epsilon, [tasks[i % len(tasks)] for i in range(config.episodes)]
    trees = await demonstrate(chosen, policy, epsilon=epsilon, seed=derive(seed, "demonstrations"))
    batches = -(-len(trees) // BATCH)
    learner = Learner(
        policy.model,
        loss=LossConfig(name="sft"),
        optimiser=OptimiserConfig(lr=config.lr, warmup=batches // 4, schedule="cosine"),
        renderer_hash=policy.renderer.hash,
        updates=config.epochs * batches,
        seed=derive(seed, "learner"),
    )
    surprise: list[float] = []
    for epoch in range(config.epochs):
        order = generator(seed, "epoch", epoch).permutation(len(trees))
        said: list[dict[str, Any]] = [
            learner.update([trees[i] for i in order[start : start + BATCH]])
            for start in range(0, len(trees), BATCH)
        ]
        surprise = [statistics["nll/mean"] for statistics in said if "nll/mean" in statistics]
    policy.weights_changed(version=policy.version)
    return {
        "warmup/episodes": float(len(trees)),
        "warmup/updates": float(learner.updates_done),
        "warmup/nll": float(np.mean(surprise)) if surprise else math.nan,
    }
