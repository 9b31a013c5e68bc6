"""Which credit learns from fewer env steps: python benchmarks/learning.py [--json FILE] [--seeds N] [--out DIR]

Corridor with traps, one start (the policy that ships), equal env steps, equal optimiser, several seeds. Four ways to
spend the steps:

* `grpo`: groups of whole paths, one advantage a path;
* `tree`: paths and coin forks in the middle of live episodes, leave-one-out among siblings;
* `elpo`: bisection for the first irrecoverable turn of a failed path, hierarchical advantages;
* `graph`: groups of whole paths, which are compared wherever they meet in the same state.

Every run is evaluated on the same held-out tasks at the same env steps. The figures are the env steps at which the mean
curve of a rule first reaches GRPO's final success, as a share of GRPO's steps. The plot goes to `docs/learning.png`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from _race import Race, plot
from _report import report

GROUP = ["rollout.plan=group", "rollout.plan_options={size=8}", "credit.options={}"]
RACE = Race(
    title="Corridor with traps",
    recipe="demo",
    env_steps=8_000,
    common=["run.evaluate_every=4", "tasks.held_out=150", "rollout.trees=4"],
    runs={
        "grpo": [*GROUP, "credit.rule=grpo"],
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
        "graph": [*GROUP, "credit.rule=graph"],
    },
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/learning"))
    parser.add_argument("--plot", type=Path, default=Path(__file__).parent.parent / "docs" / "learning.png")
    arguments = parser.parse_args()

    curves = RACE.run(arguments.seeds, arguments.out)
    ratios = {rule: RACE.steps_ratio(curves, rule) for rule in ("tree", "elpo", "graph")}
    figures = {f"steps_ratio_{rule}": ratio for rule, ratio in ratios.items() if np.isfinite(ratio)}
    if figures:
        figures["steps_ratio_best"] = min(figures.values())
    figures |= {f"final_success_{rule}": float(values[:, -1].mean()) for rule, values in curves.items()}
    plot([(RACE, curves)], arguments.plot)
    title = f"{RACE.title}, {RACE.env_steps:,} env steps, {arguments.seeds} seeds"
    report(title, RACE.table(curves), figures, arguments.json)


if __name__ == "__main__":
    main()
