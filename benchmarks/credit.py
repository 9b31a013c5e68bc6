"""Credit rules at equal env steps, in training: python benchmarks/credit.py [--json FILE] [--seeds N] [--out DIR]

Two races, each from one start with equal env steps and an equal optimiser, on held-out tasks:

* Corridor with traps, from the policy that ships;
* Shell, a tool environment: real files and a real bash, from the recipe `tools` after its warm-up.

Every rule plays as its authors do: groups of whole paths, or with the forks that it needs. The figure
`steps_ratio_best` is the smallest share of GRPO's env steps in Corridor at which a rule other than GRPO reaches GRPO's
final success; a rule that does not has the least that it could be (`Race.ratios`). The plot goes to `docs/rules.png`.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from _race import ELPO, GROUP, Race, parse_arguments, plot
from _report import report

COIN = ["rollout.plan=coin", "rollout.plan_options={roots=5, probability=0.12}"]
RULES = {
    "grpo": [*GROUP, "credit.rule=grpo", "credit.options={}"],
    "gigpo": [*GROUP, "credit.rule=gigpo", "credit.options={}"],
    "graph": [*GROUP, "credit.rule=graph", "credit.options={}"],
    "tree": [*COIN, "credit.rule=tree", "credit.options={pool=2.0}"],
    "tree_grpo": [
        "rollout.plan=random_node",
        "rollout.plan_options={roots=4, draws=1}",
        "credit.rule=tree_grpo",
        "credit.options={}",
    ],
    "elpo": ELPO,
    "trace": [*COIN, "credit.rule=trace", "credit.options={}"],
    "appo": [*COIN, "credit.rule=appo", "credit.options={}"],
}
CORRIDOR = Race(
    title="Corridor with traps",
    recipe="demo",
    env_steps=3_000,
    common=["run.evaluate_every=4", "tasks.held_out=100", "rollout.trees=4", "optimiser.layout=packed"],
    runs=RULES,
)
SHELL = Race(
    title="Shell",
    recipe="tools",
    env_steps=4_000,
    common=[
        "run.evaluate_every=20",
        "tasks.held_out=100",
        "rollout.trees=4",
        "warmup.episodes=0",
        "optimiser.layout=packed",
        "optimiser.lr=2e-4",  # that of the recipe is for batches twice as large: with these it first unlearns
    ],
    runs={rule: settings for rule, settings in RULES.items() if rule != "graph"},
)


def warmed(folder: Path) -> Path:
    """The policy of the recipe `tools` after its warm-up."""
    if not (folder / "summary.json").is_file():
        command = [sys.executable, "-m", "turngym", "train", "tools", "--quiet", "--out", str(folder)]
        subprocess.run([*command, "--set", "run.updates=0"], check=True)
    return folder / "checkpoints" / "update-000000" / "policy"


def main() -> None:
    arguments = parse_arguments(__doc__, seeds=5, name="credit", plot="rules.png")

    start = f"policy.spec=local:{warmed(arguments.out / 'warm').resolve()}"
    shell = replace(SHELL, common=[*SHELL.common, start])
    races = {"corridor": CORRIDOR, "shell": shell}
    figures = {}
    raced = []
    for name, race in races.items():
        curves = race.run(arguments.seeds, arguments.out / name)
        raced.append((race, curves))
        figures |= {f"steps_ratio_{name}_{rule}": ratio for rule, ratio in race.ratios(curves).items()}
        figures |= {f"final_success_{name}_{rule}": float(c[:, -1].mean()) for rule, c in curves.items()}
        report(race.heading(arguments.seeds), race.table(curves), {})
    figures["steps_ratio_best"] = min(
        ratio for name, ratio in figures.items() if name.startswith("steps_ratio_corridor")
    )
    plot(raced, arguments.plot)
    report(
        "Credit in training",
        [{"figure": k, "value": round(v, 3)} for k, v in figures.items()],
        figures,
        arguments.json,
    )


if __name__ == "__main__":
    main()
