"""Random scored trees for small models, and what it means that two gradients agree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from turngym.tree import Kind, Origin, Tree
from turngym.types import Outcome, StopReason

HASH = "ab" * 16
VOCABULARY = 40


def random_tree(parents: Sequence[int], seed: int) -> Tree:
    """A scored tree over few ids, so that branches also share tokens by chance; contexts restart here and there."""
    rng = np.random.default_rng(seed)
    tree = Tree(task_id="t", rollout_id=f"t{seed}", renderer_hash=HASH)
    prompt = rng.integers(0, VOCABULARY, 6)
    tree.add(-1, Kind.OBSERVATION, prompt, origin=Origin.TEMPLATE, starts_context=True)
    points = [0]
    for choice in parents:
        count = int(rng.integers(1, 6))
        action = tree.add(
            points[choice % len(points)],
            Kind.ACTION,
            rng.integers(0, 3, count),
            origin=Origin.SAMPLED,
            logprobs=-rng.uniform(0.5, 5, count),
            version=0,
        )
        tree[action].advantage = float(rng.normal()) if rng.random() < 0.5 else rng.normal(size=count)
        restart = rng.random() < 0.25
        seen = [*prompt, *rng.integers(0, VOCABULARY, 2)] if restart else rng.integers(0, VOCABULARY, 2)
        points.append(tree.add(action, Kind.OBSERVATION, seen, origin=Origin.ENV, starts_context=restart))
    for leaf in tree.leaves:
        tree[leaf].stop, tree[leaf].outcome = StopReason.TERMINATED, Outcome.FAILURE
    return tree


def assert_close_gradients(
    expected: dict[str, torch.Tensor], seen: dict[str, torch.Tensor], tolerance: float
) -> None:
    assert expected.keys() == seen.keys()
    largest = max(float(g.norm()) for g in expected.values())
    for name, gradient in expected.items():
        gap = float((gradient - seen[name]).norm())
        assert gap <= tolerance * max(float(gradient.norm()), 1e-2 * largest), name
