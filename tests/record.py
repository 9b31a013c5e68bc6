"""Trees that several tests of the record share."""

from __future__ import annotations

import numpy as np

from turngym.tree import Kind, Origin, Tree
from turngym.types import Outcome, StopReason

LOG_PROBS = np.array(
    # least subnormal, greatest float32, the float32 that JSON readers get wrong, one third, zeros of both signs
    [1e-45, -3.4028235e38, np.uint32(0x15AE43FD).view(np.float32), -1 / 3, 0.0, -0.0],
    np.float32,
)


def rich_tree(rollout_id: str = "run/0") -> Tree:
    """A small tree in which every field is used."""
    tree = Tree(
        task_id="corridor/7 é🏝", rollout_id=rollout_id, seed=(1 << 63) - 1, renderer_hash="ab12",
        meta={"env": "turngym/Corridor-v0", "temperature": 0.7, "turns": 3, "greedy": False},
    )  # fmt: skip
    tree.add(
        -1,
        Kind.OBSERVATION,
        [1, 2**31 - 1],
        origin=[Origin.TEMPLATE, Origin.ENV],
        starts_context=True,
        state_key="ab" * 16,
    )
    act = tree.add(
        0,
        Kind.ACTION,
        range(6),
        origin=Origin.SAMPLED,
        logprobs=LOG_PROBS,
        version=[0, 1, 2, 3, 4, 2**31 - 1],
    )
    tree[act].reward, tree[act].advantage = -0.0, LOG_PROBS
    tree.add(act, Kind.OBSERVATION, [], origin=Origin.ENV)
    summary = tree.add(
        2,
        Kind.SUMMARY,
        [7, 8],
        origin=[Origin.SAMPLED, Origin.HARNESS],
        logprobs=[-2.5, np.nan],
        reward=5e-324,
    )
    tree[summary].advantage = 0.1
    tree.add(summary, Kind.OBSERVATION, [9], origin=Origin.HARNESS, starts_context=True)
    leaf = tree.add(0, Kind.ACTION, [], origin=Origin.SAMPLED)
    tree[leaf].stop, tree[leaf].outcome, tree[leaf].advantage = (
        StopReason.EPISODE_TOKENS,
        Outcome.TRUNCATED,
        0.0,
    )
    tree[leaf].metrics.update(
        {"success": 0.0, "loss": float("nan"), "worst": -np.inf, "f32": np.float32(0.1), "n": np.int64(3)}
    )
    tree[leaf].log.update({"error": 'half \ud800, é, 🏝, \x00, \u2028, "quoted"\n', "": "\udfff"})
    return tree
