"""Training runs that race for success at equal env steps: what `learning.py` and `credit.py` share."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from turngym.trainers.statistics import t_quantile

BASELINE = "grpo"
"""The rule that the others are measured against."""
GROUP = ("rollout.plan=group", "rollout.plan_options={size=8}")
ELPO = (
    "rollout.plan=bisect",
    "rollout.plan_options={roots=5, targets=1, suffixes_min=1, suffixes_max=3}",
    "credit.rule=elpo",
    "credit.options={}",
)
COLOURS = ("#8da0b3", "#d1495b", "#2e6f95", "#edae49", "#66a182", "#8d6a9f", "#3d405b", "#c98474")


@dataclass(frozen=True, kw_only=True)
class Race:
    """One environment, one start, and rules that differ in how they spend the env steps."""

    title: str
    recipe: str
    "of `turngym train`"
    env_steps: int
    "of training, forks included"
    common: Sequence[str]
    "settings of every run"
    runs: Mapping[str, Sequence[str]]
    "settings of each rule; `BASELINE` is one of them"

    def run(self, seeds: int, folder: Path) -> dict[str, np.ndarray]:
        """`(seeds, 49)` held-out success of every rule, on an even grid of env steps from 0 to `env_steps`.

        Runs are processes of one thread each, as many at once as there are cores to use. One that is already in
        `folder` is read.
        """
        jobs = [(rule, seed) for seed in range(seeds) for rule in self.runs]
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            done = list(pool.map(lambda job: self._run_one(*job, folder / f"{job[0]}-{job[1]}"), jobs))
        return {
            rule: np.stack([curve for (name, _), curve in zip(jobs, done, strict=True) if name == rule])
            for rule in self.runs
        }

    def heading(self, seeds: int) -> str:
        """What stands over the table."""
        return f"{self.title}, {self.env_steps:,} env steps, {seeds} seeds"

    @property
    def grid(self) -> np.ndarray:
        """`(49,)` env steps at which curves are compared."""
        return np.linspace(0, self.env_steps, 49)

    def _run_one(self, rule: str, seed: int, folder: Path) -> np.ndarray:
        settings = [
            f"run.env_steps={self.env_steps}",
            "run.updates=1000",
            "run.checkpoint_every=1000",
            "run.keep_trees_every=0",
            *self.common,
            *self.runs[rule],
            f"run.seed={seed}",
        ]
        summary, asked = folder / "summary.json", folder / "settings.json"
        if not summary.is_file():
            flags = [part for setting in settings for part in ("--set", setting)]
            command = [sys.executable, "-m", "turngym", "train", self.recipe]
            subprocess.run(
                [*command, "--out", str(folder), "--quiet", *flags],
                check=True,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
            asked.write_text(json.dumps([self.recipe, *settings], indent=1))
        elif not asked.is_file() or json.loads(asked.read_text()) != [self.recipe, *settings]:
            sys.exit(f"{folder} was run with other settings: remove it, or choose another --out")
        if json.loads(summary.read_text())["reason"] != "done":
            sys.exit(f"{folder} was not run to its end: remove it")
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        metrics: list[dict[str, Any]] = [json.loads(line) for line in lines]
        points = [(m["progress/env_steps"], m["eval/success"]) for m in metrics if "eval/success" in m]
        return np.interp(self.grid, *zip(*points, strict=True))

    def steps_ratio(self, curves: Mapping[str, np.ndarray], rule: str) -> float:
        """Env steps at which the mean curve of `rule` first reaches the baseline's final success, over the baseline's
        own; NaN where it never does."""
        level = curves[BASELINE].mean(0)[-1]
        first, reference = (_first_reach(curves[name].mean(0), level, self.grid) for name in (rule, BASELINE))
        return first / reference

    def ratios(self, curves: Mapping[str, np.ndarray]) -> dict[str, float]:
        """`steps_ratio` of every other rule; where it never came to the baseline's final success, what it is above:
        all env steps over those of the baseline."""
        out = {rule: self.steps_ratio(curves, rule) for rule in curves if rule != BASELINE}
        own = curves[BASELINE].mean(0)
        bound = self.env_steps / _first_reach(own, own[-1], self.grid)
        return {rule: ratio if np.isfinite(ratio) else bound for rule, ratio in out.items()}

    def table(self, curves: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
        """A row for every rule; what it is `beside` the baseline are differences of the same seeds."""
        beside = {rule: values.mean(1) - curves[BASELINE].mean(1) for rule, values in curves.items()}
        return [
            {
                "rule": rule,
                "start": round(float(values[:, 0].mean()), 3),
                "final": round(float(values[:, -1].mean()), 3),
                "95 % ±": round(float(interval(values)[-1]), 3),
                "mean of the curve": round(float(values.mean()), 3),
                f"beside {BASELINE}": round(float(beside[rule].mean()), 3),
                "± of that": round(float(interval(beside[rule])), 3),
                "share of grpo's steps": round(self.steps_ratio(curves, rule), 3),
            }
            for rule, values in curves.items()
        ]


def _first_reach(curve: np.ndarray, level: float, grid: np.ndarray) -> float:
    reached = np.flatnonzero(curve >= level)
    return float(grid[reached[0]]) if reached.size else float("nan")


def interval(values: np.ndarray) -> np.ndarray:
    """`(K,)` half width of the 95 % t interval over `(S, K)` seeds."""
    seeds = values.shape[0]
    return t_quantile(seeds - 1) * values.std(0, ddof=1) / np.sqrt(seeds)


def plot(races: Sequence[tuple[Race, Mapping[str, np.ndarray]]], path: Path) -> None:
    """Mean and 95 % interval over seeds of every rule, a panel for each race."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(races), figsize=(8 * len(races), 4.5), dpi=160, squeeze=False)
    rules = dict.fromkeys(rule for _, curves in races for rule in curves)
    colours = dict(zip(rules, COLOURS, strict=False))
    for axes, (race, curves) in zip(panels[0], races, strict=True):
        for rule, values in curves.items():
            colour = colours[rule]
            mean, half = values.mean(0), interval(values)
            axes.plot(race.grid, mean, color=colour, lw=2, label=rule)
            axes.fill_between(race.grid, mean - half, mean + half, color=colour, alpha=0.12, lw=0)
        axes.axhline(curves[BASELINE].mean(0)[-1], color=COLOURS[0], lw=1, ls=":")
        axes.set(
            title=race.title,
            xlabel="env steps of training, forks included",
            ylabel="success on held-out tasks",
        )
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, loc="lower right")
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def parse_arguments(doc: str | None, *, seeds: int, name: str, plot: str) -> argparse.Namespace:
    """The flags of a race: `json`, `seeds`, `out` (a folder, by default `runs/name`) and `plot` (by default in `docs`)."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0] if doc else None)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument("--out", type=Path, default=Path("runs", name))
    parser.add_argument("--plot", type=Path, default=Path(__file__).parent.parent / "docs" / plot)
    return parser.parse_args()
