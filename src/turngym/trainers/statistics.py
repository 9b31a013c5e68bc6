"""What an evaluation may claim: estimates over tasks with intervals that respect how the numbers came about.

The one idea: the *task* is the unit. Attempts at one task resemble each other, so 200 tasks × 8 attempts are not 1,600
independent samples; every interval here is clustered by task (Miller 2024, "Adding Error Bars to Evals", section 2.2).

* `pass_at_k`: some of k attempts succeed (Chen et al. 2021, "Evaluating LLMs Trained on Code", eq. 1).
* `pass_hat_k`: all of k attempts succeed, written pass^k (Yao et al. 2024, "τ-bench", section 4).
* `share`: mean over tasks of a number in [0, 1], with a 95 % interval.
* `compare_pairs`: two policies on the same tasks.

An interval of width zero at 0 % or 100 % would be a lie, and so would one that leaves [0, 1]. So `share` takes the
effective sample size of the clustered mean (Korn & Graubard 1998) into the interval of Agresti & Coull (1998), which
always contains Wilson's and whose coverage does not sink below the nominal level near 0 and 1 as Wilson's does there.

Numbers go in, numbers come out: what counts as success and which attempts are void is decided in `evaluate`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from turngym.errors import ConfigError

LEVEL = 0.95
"""Confidence level of every interval."""

_Z = NormalDist().inv_cdf((1 + LEVEL) / 2)
_FINEST = 1000
"Task differences are whole multiples of 1 / this at the finest, for the exact test."


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over tasks with its 95 % interval; all three are NaN where no task could be scored."""

    value: float
    low: float
    high: float
    tasks: int
    "clusters that the estimate rests on"

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Policy A against policy B over the tasks that both have results for."""

    difference: Estimate
    "mean over tasks of A's success minus B's"
    p_value: float
    "two-sided and exact: how often signs drawn at random make the difference as large"
    better: int
    "tasks on which A succeeded more often"
    worse: int
    "tasks on which B did"
    left_out: int
    "tasks that one of the two has no result for"

    def metrics(self, prefix: str = "compare") -> dict[str, float]:
        """The figures under the keys of `docs/metrics.md`."""
        estimate = self.difference
        return {
            f"{prefix}/difference": estimate.value,
            f"{prefix}/difference_low": estimate.low,
            f"{prefix}/difference_high": estimate.high,
            f"{prefix}/p_value": self.p_value,
            f"{prefix}/better": float(self.better),
            f"{prefix}/worse": float(self.worse),
            f"{prefix}/left_out": float(self.left_out),
        }


def pass_at_k(attempts: int, successes: int, k: int) -> float:
    """Unbiased estimate of P(at least one of k attempts succeeds): 1 − C(n − c, k) / C(n, k).

    Args:
        attempts: n, attempts that count; at least k.
        successes: c.
        k: attempts allowed.

    >>> round(pass_at_k(4, 1, 2), 6)
    0.5
    """
    _check_counts(attempts, successes, k)
    return 1.0 - math.comb(attempts - successes, k) / math.comb(attempts, k)


def pass_hat_k(attempts: int, successes: int, k: int) -> float:
    """Unbiased estimate of P(all of k attempts succeed), pass^k: C(c, k) / C(n, k). Arguments as in `pass_at_k`.

    >>> round(pass_hat_k(4, 2, 2), 6)
    0.166667
    """
    _check_counts(attempts, successes, k)
    return math.comb(successes, k) / math.comb(attempts, k)


def share(values: Sequence[float], samples: Sequence[int] | None = None) -> Estimate:
    """Mean of one number in [0, 1] per task, with an interval clustered by task.

    With m the mean over T tasks and s² the variance of that mean, the effective sample size is m(1 − m)/s². Tasks are
    a sample of the tasks that might have been drawn, so it lies between T (attempts at a task all agree) and the
    number N of samples (they are independent); where s² came out as an accident of few tasks, these bounds hold it.
    Student's quantile with T − 1 degrees of freedom stands in for the normal one, so that few tasks widen the
    interval; a single task says nothing about others, and its interval is [0, 1].

    Args:
        values: `(T,)` one per task: the success rate of its attempts, or an unbiased estimate such as `pass_at_k`.
        samples: `(T,)` independent samples behind each value: attempts for a rate, ⌊n/k⌋ for pass@k. None means one.

    >>> print(share([1.0] * 50))
    1.000 [0.911, 1.000]
    """
    rates = _finite(values)
    count = rates.size
    if not count:
        return Estimate(math.nan, math.nan, math.nan, 0)
    if rates.min() < 0 or rates.max() > 1:
        raise ConfigError(f"a share is in [0, 1], got values from {rates.min()} to {rates.max()}")
    mean = float(rates.mean())
    if count == 1:
        return Estimate(mean, 0.0, 1.0, 1)
    total = count if samples is None else max(count, int(np.sum(samples)))
    variance = float(rates.var(ddof=1)) / count
    effective = total if variance == 0 else min(max(mean * (1 - mean) / variance, count), total)
    if variance == 0 and mean in (0.0, 1.0):
        effective = count  # nothing was seen of how attempts at one task differ: assume that they don't
    quantile = t_quantile(count - 1)
    padded = effective + quantile**2
    centre = (effective * mean + quantile**2 / 2) / padded
    half = quantile * math.sqrt(centre * (1 - centre) / padded)
    return Estimate(mean, max(0.0, centre - half), min(1.0, centre + half), count)


def compare_pairs(a: Sequence[tuple[int, int] | None], b: Sequence[tuple[int, int] | None]) -> Comparison:
    """Compare two policies task by task: pairing removes the spread between easy and hard tasks.

    The interval is Agresti & Min's (2005) for matched pairs, carried over to rates: two pseudo-tasks are added, half
    a task at −1, one at 0, half at +1, so that two policies that agree everywhere still get an interval of some width.
    The p-value is that of the sign-flip permutation test, enumerated exactly; with one attempt a task it is
    McNemar's exact test.

    Args:
        a: `(T,)` (attempts that count, successes) of policy A per task; None or 0 attempts where it has none.
        b: the same tasks in the same order for policy B.
    """
    if len(a) != len(b):
        raise ConfigError(f"a paired comparison needs the same tasks: {len(a)} and {len(b)} were given")
    pairs = [(x, y) for x, y in zip(a, b, strict=True) if x and y and x[0] and y[0]]
    left_out = len(a) - len(pairs)
    differences = np.array([x[1] / x[0] - y[1] / y[0] for x, y in pairs])
    count = differences.size
    if not count:
        return Comparison(Estimate(math.nan, math.nan, math.nan, 0), math.nan, 0, 0, left_out)
    mean = float(differences.mean())
    low, high = -1.0, 1.0
    if count > 1:
        padded = count + 2
        centre = float(differences.sum()) / padded
        variance = (float(np.square(differences).sum()) + 1) / padded - centre**2
        half = t_quantile(count - 1) * math.sqrt(variance / padded)
        low, high = max(-1.0, centre - half), min(1.0, centre + half)
    scale = min(_FINEST, math.lcm(*(n for x, y in pairs for n in (x[0], y[0]))))
    steps = np.rint(differences * scale).astype(np.int64)
    return Comparison(
        Estimate(mean, low, high, count),
        sign_flip_p(steps),
        int(np.count_nonzero(steps > 0)),
        int(np.count_nonzero(steps < 0)),
        left_out,
    )


def sign_flip_p(differences: npt.ArrayLike) -> float:
    """Two-sided p-value of Σd under random signs, over all 2^T of them.

    The distribution of Σ±|d| is built by convolution, one task at a time, in O(T · Σ|d|).

    Args:
        differences: `(T,)` whole numbers.

    >>> sign_flip_p([1, 1, 1])  # only +++ and −−− reach 3: 2 of 8
    0.25
    """
    steps = np.abs(np.asarray(differences, np.int64))
    reach = int(steps.sum())
    odds = np.zeros(2 * reach + 1)
    odds[reach] = 1.0
    for step in steps[steps > 0].tolist():
        moved = np.zeros_like(odds)
        moved[step:] = odds[:-step] / 2
        moved[:-step] += odds[step:] / 2
        odds = moved
    seen = abs(int(np.sum(np.asarray(differences, np.int64))))
    if seen == 0:
        return 1.0
    return min(1.0, float(odds[: reach - seen + 1].sum() + odds[reach + seen :].sum()))


def t_quantile(freedom: int) -> float:
    """Two-sided 95 % quantile of Student's t with `freedom` ≥ 1 degrees of freedom.

    Closed forms for 1 and 2; above, the Cornish-Fisher expansion (Abramowitz & Stegun 1964, 26.7.5), whose error is
    0.7 % at 3 and below 0.1 % from 6 on.

    >>> [round(t_quantile(n), 3) for n in (1, 2, 10, 100)]
    [12.706, 4.303, 2.228, 1.984]
    """
    if freedom < 1:
        raise ConfigError(f"Student's t needs at least 1 degree of freedom, got {freedom}")
    tail = (1 + LEVEL) / 2
    if freedom == 1:
        return math.tan(math.pi * (tail - 0.5))
    if freedom == 2:
        return (2 * tail - 1) / math.sqrt(2 * tail * (1 - tail))
    z, v = _Z, float(freedom)
    terms = (
        z,
        (z**3 + z) / 4 / v,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96 / v**2,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384 / v**3,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160 / v**4,
    )
    return math.fsum(terms)


def _check_counts(attempts: int, successes: int, k: int) -> None:
    if not 0 <= successes <= attempts or not 1 <= k <= attempts:
        raise ConfigError(
            f"need 0 ≤ successes ≤ attempts and 1 ≤ k ≤ attempts; got {successes} of {attempts} with k = {k}"
        )


def _finite(values: Sequence[float]) -> npt.NDArray[np.float64]:
    array = np.asarray(values, np.float64)
    if array.ndim != 1 or not np.isfinite(array).all():
        raise ConfigError("one finite number per task is needed; leave out tasks without a result")
    return array
