"""The contract of an environment as a check that anyone can run: `turngym env check ID`.

`contract.py` holds the contract, one sentence and one test each. The tests see an environment from outside, through
the interface that the agent loop uses, so that an author runs the same suite as the environments of this package.

What it can't see: whether the task is any good, whether its reward can be cheated, and an action that never returns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from turngym.envs.base import TurnEnv
from turngym.envs.bench import Bench, Violation, short
from turngym.envs.contract import CONTRACT, Rule
from turngym.registry import make


@dataclass(frozen=True, slots=True)
class Check:
    """What one check saw."""

    name: str
    claim: str
    "the sentence of the contract"
    passed: bool
    seen: str
    repair: str
    "how to make it pass"


@dataclass(frozen=True, slots=True)
class Report:
    """What all checks saw of one environment. `str(report)` is for people."""

    subject: str
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """True where every check passed."""
        return all(check.passed for check in self.checks)

    def __str__(self) -> str:
        lines = [f"{self.subject}: {'ok' if self.ok else 'FAILED'}"]
        for check in self.checks:
            lines.append(f"  {'ok  ' if check.passed else 'FAIL'} {check.name}: {check.seen}")
            if not check.passed:
                lines += [f"       contract: {check.claim}", f"       repair: {check.repair}"]
        return "\n".join(lines)


def check_env(
    subject: str | Callable[[], TurnEnv], *, seed: int = 0, turns: int = 12, actions: int = 100
) -> Report:
    """Check one environment against the contract.

    Args:
        subject: a registered id, or what makes a fresh environment (`lambda: make("…", rooms=3)`).
        seed: everything follows from it.
        turns: the longest episode that is forked, restored and replayed at every turn.
        actions: how many random and how many hostile actions it has to answer.

    Returns:
        A report; nothing is raised for what the environment does wrong once it exists.

    Raises:
        UnknownName: for an unknown id.
        MissingDependency: where the environment's package is not installed.
    """
    factory = partial(make, subject) if isinstance(subject, str) else subject
    with contextlib.closing(factory()) as env:
        name = subject if isinstance(subject, str) else type(env).__name__
        bench = Bench(factory, type(env), seed, turns, actions)
    return Report(name, tuple(_try(rule, bench) for rule in CONTRACT))


def _try(rule: Rule, bench: Bench) -> Check:
    try:
        return Check(rule.name, rule.claim, True, rule.test(bench), rule.repair)
    except Violation as violation:
        seen = str(violation)
    except Exception as error:  # noqa: BLE001 - the boundary: whatever an environment throws is a finding
        seen = f"{type(error).__name__}: {short(str(error), 300)}"
    return Check(rule.name, rule.claim, False, seen, rule.repair)


__all__ = ["Check", "Report", "check_env"]
