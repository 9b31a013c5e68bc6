"""Try every rule in every problem, and say whether what it claims holds.

    results = run(samples=100_000, seed=0)
    figures(results)["bias_z/tree"]

A claim is judged over all problems at once: the largest z of all components of all problems stands against the limit
for that many. Rules that claim to be unbiased are judged on `samples` trees a problem; those that say how they are biased
on a twentieth of them, which is enough to see it.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from itertools import repeat
from typing import TypeVar

import numpy as np

from turngym.errors import ConfigError, unknown_name
from turngym.trainers.credit.base import Credit
from turngym.trainers.lab.estimates import (
    BUDGET,
    Quality,
    Samples,
    judge,
    oracle_variance,
    pooled,
    tree_samples,
    z_limit,
)
from turngym.trainers.lab.forest import Forest, Plan, sample
from turngym.trainers.lab.mdps import PROBLEMS, exact
from turngym.trainers.lab.trials import TRIALS, Trial, named

T = TypeVar("T")

SAMPLES = 100_000
"""Trees a problem on which a claim to be unbiased is judged."""
LEAST = 1000
"""Fewer are refused."""
ROOTS = 3
"""Children of each root."""
FEWER = 20
"""Trees that a claim to be unbiased takes, over those on which a bias is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came out of a trial in a problem."""

    trial: str
    problem: str
    quality: Quality


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A trial over all problems."""

    trial: str
    results: Sequence[Result]

    @property
    def limit(self) -> float:
        """What `bias_z` stays below with a chance of 99.9 %, if the claim to be unbiased holds."""
        return z_limit(sum(r.quality.components for r in self.results))

    @property
    def worst(self) -> Result:
        """Where the bias is most certain."""
        return max(self.results, key=lambda r: r.quality.bias_z)

    @property
    def astray(self) -> Result | None:
        """Where the direction is furthest from the exact one, of those where that is certain."""
        certain = [r for r in self.results if r.quality.tilt_z > self.limit]
        return max(certain, key=lambda r: r.quality.tilt, default=None)

    @property
    def scales(self) -> tuple[float, float]:
        """Smallest and largest multiple of the exact gradient that the means come nearest to."""
        found = [r.quality.scale for r in self.results]
        return min(found), max(found)

    @property
    def bias_z(self) -> float:
        """Largest |mean − exact| over its standard error, over all components of all problems."""
        return self.worst.quality.bias_z

    @property
    def tilt_z(self) -> float:
        """As `bias_z`, in direction alone."""
        return max(r.quality.tilt_z for r in self.results)

    @property
    def holds(self) -> bool:
        """Whether the trial came out as its claim says."""
        match TRIALS[self.trial].claim:
            case "unbiased":
                return self.bias_z < self.limit
            case "scaled":
                return self.tilt_z < self.limit < self.bias_z
            case "biased":
                return self.bias_z > self.limit

    @property
    def refuted(self) -> bool:
        """Whether a claim to be unbiased, or scaled, did not hold; a bias that was not seen may still be there."""
        return TRIALS[self.trial].claim != "biased" and not self.holds

    def mean(self, field: str) -> float:
        """Mean over the problems of a number of `Quality`, or of the middle of an interval."""
        values = [getattr(r.quality, field) for r in self.results]
        return float(np.mean([getattr(value, "value", value) for value in values]))


def run(
    *,
    samples: int = SAMPLES,
    seed: int = 0,
    rules: Sequence[str] | None = None,
    problems: Sequence[str] | None = None,
    workers: int | None = None,
    on_done: Callable[[str], None] | None = None,
) -> list[Result]:
    """Every trial in every problem.

    Args:
        samples: trees a problem, 1,000 or more.
        seed: everything follows from it.
        rules: names of trials or of rules; None means all.
        problems: names of problems; None means all.
        workers: processes; None means one a core that this process may use, and a problem each at most.
        on_done: called with the name of each problem that is finished.

    Raises:
        UnknownName: for a rule or a problem that does not exist.
        ConfigError: for too few samples.
    """
    trials, chosen = list(named(rules)), chosen_problems(problems, samples)
    found = in_processes(_study, chosen, (tuple(trials), samples, seed), workers=workers, on_done=on_done)
    return [result for results in found for result in results]


def in_processes(
    work: Callable[..., T],
    problems: Sequence[str],
    rest: tuple[object, ...],
    *,
    workers: int | None,
    on_done: Callable[[str], None] | None,
) -> list[T]:
    """`work(problem, *rest)` for each problem, in their order; the last, which are the largest, start first."""
    count = min(workers or len(os.sched_getaffinity(0)), len(problems))
    order = list(reversed(problems))
    found = []
    with ExitStack() as stack:
        if count > 1:
            pool = stack.enter_context(ProcessPoolExecutor(count, multiprocessing.get_context("spawn")))
            results: Iterator[T] = pool.map(work, order, *(repeat(argument) for argument in rest))
        else:
            results = (work(name, *rest) for name in order)
        for name, result in zip(order, results, strict=True):
            found.append(result)
            if on_done is not None:
                on_done(name)
    return found[::-1]


def chosen_problems(problems: Sequence[str] | None, samples: int) -> list[str]:
    """Names of problems, checked, all where None is given; see `run` for what is raised."""
    if samples < LEAST:
        raise ConfigError(
            f"the lab needs samples ≥ {LEAST}, got {samples}: standard errors mean nothing below"
        )
    for name in problems or ():
        if name not in PROBLEMS:
            raise unknown_name("problem of the lab", name, PROBLEMS)
    return list(problems or PROBLEMS)


def _study(problem: str, trials: Sequence[str], samples: int, seed: int) -> list[Result]:
    """All trials in one problem; forests are drawn once a plan."""
    mdp, known = PROBLEMS[problem], exact(PROBLEMS[problem])
    fewer, start = samples // FEWER, [seed, list(PROBLEMS).index(problem)]
    claimed = {"group", *(TRIALS[name].plan for name in trials if TRIALS[name].claim != "biased")}

    @cache
    def forest(plan: Plan) -> Forest:
        return sample(mdp, plan, samples if plan in claimed else fewer, roots=ROOTS, seed=start)

    @cache
    def head(plan: Plan) -> Forest:
        return forest(plan).head(fewer)

    rollout_variance = oracle_variance(tree_samples(forest("group"), oracle(forest("group"))), ROOTS)
    out = []
    for name in trials:
        trial = TRIALS[name]
        drawn = head(trial.plan) if trial.claim == "biased" else forest(trial.plan)
        measured = estimates(trial, drawn.head(len(drawn.order) // 2) if trial.over_batch else drawn)
        out.append(Result(trial=name, problem=problem, quality=judge(measured, known, rollout_variance)))
    return out


def estimates(trial: Trial, forest: Forest) -> Samples:
    """What a trial's rule says about a forest: an estimate a tree, or one for all trees of an update."""
    rule = trial.bound()
    if not trial.over_batch:
        return tree_samples(forest, rule(forest.trees))
    drawn = forest.spread()
    size = max(1, round(BUDGET / float(drawn.steps.mean())))
    whole = range(0, len(drawn.trees) // size * size, size)
    credits = [credit for i in whole for credit in rule(drawn.trees[i : i + size])]
    return pooled(tree_samples(drawn.head(len(credits)), credits), size)


def oracle(forest: Forest) -> list[Credit]:
    """Exact advantages for each tree of a forest."""
    truth = exact(forest.mdp).advantage.ravel()
    return [
        Credit(
            advantages={int(node): float(truth[taken[node]]) for node in np.flatnonzero(taken >= 0)},
            rollouts=forest.roots,
            masked=0,
            void=0,
            zero_variance=False,
        )
        for taken in forest.taken
    ]


# ---------------------------------------------------------------------- figures


def verdicts(results: Sequence[Result]) -> list[Verdict]:
    """The results of each trial together, in the order of `TRIALS`."""
    by_trial = {name: [r for r in results if r.trial == name] for name in TRIALS}
    return [Verdict(trial=name, results=found) for name, found in by_trial.items() if found]


def figures(results: Sequence[Result]) -> dict[str, float]:
    """Numbers for machines, over all problems: `bias_z/RULE` (largest) and `limit_z/RULE`, and means of the others.

    `claims_refuted` counts the trials whose claim to be unbiased did not hold, `claims` all trials.
    """
    judged = verdicts(results)
    out: dict[str, float] = {}
    for verdict in judged:
        out |= {
            f"bias_z/{verdict.trial}": verdict.bias_z,
            f"limit_z/{verdict.trial}": verdict.limit,
            f"tilt_z/{verdict.trial}": verdict.tilt_z,
            f"tilt/{verdict.trial}": verdict.astray.quality.tilt if verdict.astray is not None else 0.0,
            f"scale_min/{verdict.trial}": verdict.scales[0],
            f"scale_max/{verdict.trial}": verdict.scales[1],
        }
        for name in ("cosine", "sign_error", "variance", "ess"):
            out[f"{name}/{verdict.trial}"] = verdict.mean(name)
    refuted = sum(verdict.refuted for verdict in judged)
    return out | {"claims_refuted": float(refuted), "claims": float(len(judged))}
