"""Which credit learns from fewer env steps: python benchmarks/learning.py [--json FILE] [--seeds N] [--out DIR]

Corridor with traps, one start (the policy that ships), equal env steps, equal optimiser, several seeds. Three ways to
spend the steps:

* `grpo`: groups of whole paths, one advantage a path;
* `tree`: paths and coin forks in the middle of live episodes, leave-one-out among siblings;
* `elpo`: bisection for the first irrecoverable turn of a failed path, hierarchical advantages.

Every run is evaluated on the same held-out tasks at the same env steps. The figures are the env steps at which the mean
curve of a rule first reaches GRPO's final success, as a share of GRPO's steps. The plot goes to `docs/learning.png`.

Runs are processes of one thread each, as many at once as there are cores to use.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from _report import report
from turngym.trainers.statistics import t_quantile

ENV_STEPS = 8_000
RUNS: dict[str, list[str]] = {
    "grpo": [
        "rollout.plan=group",
        "rollout.plan_options={size=8}",
        "credit.rule=grpo",
        "credit.options={}",
    ],
    "tree": [
        "rollout.plan=coin",
        "rollout.plan_options={roots=8, probability=0.06}",
        "credit.rule=tree",
        "credit.options={pool=2.0}",
    ],
    "elpo": [
        "rollout.plan=bisect",
        "rollout.plan_options={roots=5, targets=1, suffixes_min=1, suffixes_max=3}",
        "credit.rule=elpo",
        "credit.options={}",
    ],
}
COMMON = [
    "run.updates=1000",
    f"run.env_steps={ENV_STEPS}",
    "run.evaluate_every=4",
    "run.checkpoint_every=1000",
    "run.keep_trees_every=0",
    "tasks.held_out=150",
    "rollout.trees=4",
]


def run_one(rule: str, seed: int, folder: Path) -> list[tuple[float, float]]:
    """`(env steps, held-out success)` of one run; a run that is already in `folder` is read."""
    if not (folder / "summary.json").is_file():
        settings = [*RUNS[rule], *COMMON, f"run.seed={seed}"]
        flags = [part for setting in settings for part in ("--set", setting)]
        command = [
            sys.executable,
            "-m",
            "turngym",
            "train",
            "demo",
            "--out",
            str(folder),
            "--quiet",
            *flags,
        ]
        subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    metrics: list[dict[str, Any]] = [json.loads(line) for line in lines]
    return [(m["progress/env_steps"], m["eval/success"]) for m in metrics if "eval/success" in m]


def on_grid(curve: list[tuple[float, float]], grid: np.ndarray) -> np.ndarray:
    """`(K,)` success of one run, linear between its evaluations."""
    steps, success = zip(*curve, strict=True)
    return np.interp(grid, steps, success)


def first_reach(curve: np.ndarray, grid: np.ndarray, level: float) -> float:
    """Env steps at which `(K,)` first reaches `level`; NaN where it never does."""
    reached = np.flatnonzero(curve >= level)
    return float(grid[reached[0]]) if reached.size else float("nan")


def interval(values: np.ndarray) -> np.ndarray:
    """`(K,)` half width of the 95 % t interval over `(S, K)` seeds."""
    seeds = values.shape[0]
    return t_quantile(seeds - 1) * values.std(0, ddof=1) / np.sqrt(seeds)


def plot(curves: dict[str, np.ndarray], grid: np.ndarray, level: float, path: Path) -> None:
    """Mean and 95 % interval over seeds for every rule."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), dpi=160)
    for colour, (rule, values) in zip(("#8da0b3", "#d1495b", "#2e6f95"), curves.items(), strict=True):
        mean, half = values.mean(0), interval(values)
        axes.plot(grid, mean, color=colour, lw=2, label=rule)
        axes.fill_between(grid, mean - half, mean + half, color=colour, alpha=0.15, lw=0)
    axes.axhline(level, color="#8da0b3", lw=1, ls=":")
    axes.set(
        xlabel="env steps of training, forks included", ylabel="success on 150 held-out tasks", ylim=(0, 1)
    )
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/learning"))
    parser.add_argument("--plot", type=Path, default=Path(__file__).parent.parent / "docs" / "learning.png")
    arguments = parser.parse_args()

    jobs = [(rule, seed) for seed in range(arguments.seeds) for rule in RUNS]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        done = list(pool.map(lambda job: run_one(*job, arguments.out / f"{job[0]}-{job[1]}"), jobs))
    grid = np.linspace(0, ENV_STEPS, 49)
    curves = {
        rule: np.stack([on_grid(c, grid) for (r, _), c in zip(jobs, done, strict=True) if r == rule])
        for rule in RUNS
    }
    final = {rule: float(values[:, -1].mean()) for rule, values in curves.items()}
    reach = {rule: first_reach(values.mean(0), grid, final["grpo"]) for rule, values in curves.items()}
    rows = [
        {
            "rule": rule,
            "start": round(float(curves[rule][:, 0].mean()), 3),
            "final": round(final[rule], 3),
            "95 % ±": round(float(interval(curves[rule])[-1]), 3),
            "steps to grpo's final": reach[rule],
            "share of grpo's steps": round(reach[rule] / reach["grpo"], 3),
        }
        for rule in RUNS
    ]
    ratios = {rule: reach[rule] / reach["grpo"] for rule in ("tree", "elpo")}
    figures = {f"steps_ratio_{rule}": ratio for rule, ratio in ratios.items() if np.isfinite(ratio)}
    if figures:
        figures["steps_ratio_best"] = min(figures.values())
    figures |= {f"final_success_{rule}": success for rule, success in final.items()}
    plot(curves, grid, final["grpo"], arguments.plot)
    report(
        f"Corridor with traps, {ENV_STEPS:,} env steps, {arguments.seeds} seeds",
        rows,
        figures,
        arguments.json,
    )


if __name__ == "__main__":
    main()
