"""Which credit learns from fewer env steps: python benchmarks/learning.py [--json FILE] [--seeds N] [--out DIR]

Corridor with traps, one start (the policy that ships), equal env steps, equal optimiser, several seeds. Three ways
to spend the steps:

* `grpo`: groups of whole paths, one advantage a path;
* `tree`: paths and coin forks in the middle of live episodes, leave-one-out among siblings;
* `elpo`: bisection for the first irrecoverable turn of a failed path, hierarchical advantages.

Every run is evaluated on the same held-out tasks at the same env steps. The figures are the env steps at which the mean
curve of a rule first reaches GRPO's final success, as a share of GRPO's steps. The plot goes to `docs/learning.png`.
"""

from __future__ import annotations

from _race import ELPO, GROUP, Race, parse_arguments, plot
from _report import report

RACE = Race(
    title="Corridor with traps",
    recipe="demo",
    env_steps=8_000,
    common=["run.evaluate_every=4", "tasks.held_out=150", "rollout.trees=4"],
    runs={
        "grpo": [*GROUP, "credit.rule=grpo", "credit.options={}"],
        "tree": [
            "rollout.plan=coin",
            "rollout.plan_options={roots=8, probability=0.06}",
            "credit.rule=tree",
            "credit.options={pool=2.0}",
        ],
        "elpo": ELPO,
    },
)


def main() -> None:
    arguments = parse_arguments(__doc__, seeds=3, name="learning", plot="learning.png")
    curves = RACE.run(arguments.seeds, arguments.out)
    figures = {f"steps_ratio_{rule}": ratio for rule, ratio in RACE.ratios(curves).items()}
    figures["steps_ratio_best"] = min(figures.values())
    figures |= {f"final_success_{rule}": float(values[:, -1].mean()) for rule, values in curves.items()}
    plot([(RACE, curves)], arguments.plot)
    report(RACE.heading(arguments.seeds), RACE.table(curves), figures, arguments.json)


if __name__ == "__main__":
    main()
