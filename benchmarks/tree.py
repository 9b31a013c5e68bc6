"""The record at its target size: 100,000 nodes of 50 tokens, in memory and on disk.

Targets: at most 130 MB in memory with a state key on every node, saved in at most 5 s in either format, adding an
action of 12 tokens in at most 8 µs and an observation in at most 5 µs. Memory is measured twice: the arrays
(`Tree.nbytes`) and the growth of the process's resident set, which the dicts of rarely used fields are part of.
"""

from __future__ import annotations

import gc
import tempfile
import time
from pathlib import Path

import numpy as np

from _report import parse_json_flag, report
from turngym.tree import Kind, Origin, Tree
from turngym.tree_io import load_trees, save_trees
from turngym.types import Outcome, StopReason

NODES, TOKENS, LEAF_EVERY, REPEATS = 100_000, 50, 16, 5


def resident_bytes() -> int:
    """Resident set of this process (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def grow() -> Tree:
    """Paths of 16 nodes that branch from the root, no two nodes with the same numbers."""
    rng = np.random.default_rng(0)
    tree = Tree(task_id="corridor/7", rollout_id="bench/0", seed=7, meta={"env": "turngym/Corridor-v0"})
    for node in range(NODES):
        ids = rng.integers(0, 150_000, TOKENS, np.int32)
        parent = 0 if node % LEAF_EVERY == 1 else node - 1
        key = rng.bytes(16).hex()
        if node % 2:
            scores = -rng.random(TOKENS, np.float32)
            tree.add(
                parent,
                Kind.ACTION,
                ids,
                origin=Origin.SAMPLED,
                logprobs=scores,
                version=3,
                reward=0.0,
                state_key=key,
            )
            tree[node].advantage = 0.25
        else:
            tree.add(parent, Kind.OBSERVATION, ids, origin=Origin.ENV, state_key=key)
    for leaf in tree.leaves:
        tree[leaf].stop, tree[leaf].outcome = StopReason.TERMINATED, Outcome.SUCCESS
        tree[leaf].metrics["success"] = 1.0
    return tree


def microseconds_per_add(kind: Kind) -> float:
    """Best of some runs of 10,000 additions of 12 tokens below one root, as the agent loop makes them."""
    ids = np.arange(12, dtype=np.int32)
    mixed = np.array([Origin.TEMPLATE] * 3 + [Origin.ENV] * 9, np.uint8)
    scores = np.full(12, -0.5, np.float32)
    best = float("inf")
    for _ in range(REPEATS):
        tree = Tree(task_id="t", rollout_id="r")
        tree.add(-1, Kind.OBSERVATION, ids, origin=mixed)
        start = time.perf_counter()
        for _ in range(10_000):
            if kind is Kind.ACTION:
                tree.add(0, kind, ids, origin=Origin.SAMPLED, logprobs=scores, version=1)
            else:
                tree.add(0, kind, ids, origin=mixed)
        best = min(best, time.perf_counter() - start)
    return best / 10_000 * 1e6


def main() -> None:
    json_path = parse_json_flag()
    gc.collect()
    before = resident_bytes()
    started = time.perf_counter()
    tree = grow()
    build = time.perf_counter() - started
    gc.collect()
    resident = resident_bytes() - before
    figures = {
        "bytes_per_node": resident / NODES,
        "array_bytes_per_node": tree.nbytes / NODES,
        "memory_mb": resident / 1e6,
        "build_seconds": build,
        "action_add_us": microseconds_per_add(Kind.ACTION),
        "observation_add_us": microseconds_per_add(Kind.OBSERVATION),
    }
    with tempfile.TemporaryDirectory() as folder:
        for suffix in ("parquet", "jsonl"):
            path = Path(folder) / f"trees.{suffix}"
            started = time.perf_counter()
            save_trees([tree], path)
            figures[f"{suffix}_save_seconds"] = time.perf_counter() - started
            started = time.perf_counter()
            (again,) = load_trees(path)
            figures[f"{suffix}_load_seconds"] = time.perf_counter() - started
            figures[f"{suffix}_mb"] = path.stat().st_size / 1e6
            if again != tree:
                raise SystemExit(f"{suffix}: what was read differs from what was saved")
            del again
    figures["save_seconds"] = max(figures["parquet_save_seconds"], figures["jsonl_save_seconds"])
    targets = {
        "memory_mb": "<= 130",
        "save_seconds": "<= 5",
        "action_add_us": "<= 8",
        "observation_add_us": "<= 5",
    }
    rows = [{"figure": n, "measured": v, "target": targets.get(n, "")} for n, v in figures.items()]
    report(f"The record: {NODES:,} nodes of {TOKENS} tokens", rows, figures, json_path)


if __name__ == "__main__":
    main()
