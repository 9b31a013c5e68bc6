"""The exact-credit lab: every credit rule against the exact policy gradient of small problems.

    results = run(samples=100_000)          # or: turngym lab
    figures(results)["bias_z/tree"]

`mdps.py` has the problems and their exact values, `env.py` the same as environments with forks, `forest.py` draws trees
by the hundred thousand, `trials.py` says what each rule claims, `estimates.py` measures, `study.py` judges, `report.py`
writes it down; `corrections.py` does the same for losses on trees that another policy sampled.
"""

from turngym.trainers.lab.estimates import BUDGET, Interval, Quality, Samples, judge, tree_samples, z_limit
from turngym.trainers.lab.forest import Forest, sample
from turngym.trainers.lab.mdps import PROBLEMS, Exact, Mdp, build, exact, random_mdp
from turngym.trainers.lab.study import Result, Verdict, figures, run, verdicts
from turngym.trainers.lab.trials import CONTROLS, TRIALS, Trial

__all__ = [
    "BUDGET",
    "CONTROLS",
    "PROBLEMS",
    "TRIALS",
    "Exact",
    "Forest",
    "Interval",
    "Mdp",
    "Quality",
    "Result",
    "Samples",
    "Trial",
    "Verdict",
    "build",
    "exact",
    "figures",
    "judge",
    "random_mdp",
    "run",
    "sample",
    "tree_samples",
    "verdicts",
    "z_limit",
]
