"""How far a gradient estimate is from the exact one: bias, variance, direction, signs, worth.

The one idea: one tree gives one estimate of the gradient, Σ A(n) ∇ log π(a|s) over its actions (over the root's
children), and trees are independent. Everything here is a mean over trees with a standard error, and trees that are
equal are counted, not computed again. What compares rules is stated at equal env steps: an update is the mean over as
many trees as `BUDGET` env steps pay for.

For a component of the gradient, z = (mean − exact) / standard error. The largest |z| of m components stays below
`z_limit(m)` with a chance of 99.9 % where there is no bias (Šidák's bound for all of them at once).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import NormalDist

import numpy as np

from turngym.trainers.credit.base import Credit
from turngym.trainers.lab.forest import Forest
from turngym.trainers.lab.mdps import Array, Exact, IntArray, exact

BUDGET = 128
"""Env steps of one update, at which variance, cosine and ESS are stated."""
CONFIDENCE = 0.999
"""Chance that an unbiased estimate stays within its limit."""
_Z95 = NormalDist().inv_cdf(0.975)
_ZERO = 1e-12
_CERTAIN = 1000.0


@dataclass(frozen=True, slots=True)
class Interval:
    """A number and half the width of its 95 % interval."""

    value: float
    half: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ± {self.half:.3f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """n independent estimates of a gradient with D components, of which U are different."""

    gradient: Array
    "`(U, D)`"
    count: IntArray
    "`(U,)` how often each came"
    order: IntArray
    "`(n,)` which one came, one after the other"
    steps: Array
    "`(U,)` env steps that each cost, with exact forks"
    replayed: Array
    "`(U,)` env steps that each costs beyond them where forks replay the turns before"
    wrong: Array
    "`(U,)` advantages with the wrong sign"
    signed: Array
    "`(U,)` advantages that have a sign and should have one"
    due: Array
    "`(U,)` advantages that should have one"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """What the lab says of a rule in a problem."""

    n: int
    "independent estimates"
    components: int
    "components of the gradient that vary or should"
    bias_z: float
    "largest |mean − exact| over its standard error"
    worst: int
    "the component where that is"
    bias: Interval
    "|mean − exact| / |exact|, what noise adds to it taken off"
    scale: float
    "the multiple of the exact gradient that comes nearest to the mean"
    tilt_z: float
    "as `bias_z`, against `scale` times the exact gradient: above the limit, no learning rate repairs the bias"
    tilt: float
    "|mean − scale · exact| / |scale · exact|, noise taken off, 1 at most"
    astray: int
    "the component that is furthest from its direction, in standard errors"
    variance: Interval
    "of an estimate from `BUDGET` env steps, summed over components, over |exact|²"
    cosine: Interval
    "mean cosine between an estimate from `BUDGET` env steps and the exact gradient"
    sign_error: Interval
    "share of wrong signs among the advantages that have one and should"
    silent: float
    "share of the advantages that should have a sign and are 0"
    ess: float
    "rollouts with exact advantages that carry as much signal over noise as `BUDGET` env steps with this rule"
    steps: float
    "env steps of one estimate, with exact forks"
    replayed: float
    "share of env steps that come on top where forks replay the turns before; `variance` grows by as much"


def z_limit(components: int) -> float:
    """What the largest |z| of that many components stays below with a chance of 99.9 %, if all are unbiased.

    >>> round(z_limit(1), 2), round(z_limit(100), 2)
    (3.29, 4.42)
    """
    return NormalDist().inv_cdf((1 + CONFIDENCE ** (1 / max(components, 1))) / 2)


def tree_samples(forest: Forest, credits: Sequence[Credit]) -> Samples:
    """One estimate a tree.

    Args:
        forest: n trees, U of them different.
        credits: what a rule says about the U.
    """
    tree = np.repeat(np.arange(len(credits)), [len(credit.advantages) for credit in credits])
    nodes = np.fromiter(
        chain.from_iterable(credit.advantages for credit in credits), np.int64, count=len(tree)
    )
    given = np.fromiter(
        (
            a if isinstance(a, float) else float(a.mean())
            for credit in credits
            for a in credit.advantages.values()
        ),
        np.float64,
        count=len(tree),
    )
    before = np.cumsum([0, *(len(taken) for taken in forest.taken)])
    return samples_of(forest, tree, np.concatenate(forest.taken)[before[tree] + nodes], given)


def samples_of(forest: Forest, tree: IntArray, pair: IntArray, given: Array) -> Samples:
    """One estimate a tree, from what stands before ∇ log π at each of its actions.

    Args:
        forest: n trees, U of them different.
        tree: `(N,)` which of the U an action stands in.
        pair: `(N,)` state · A + action.
        given: `(N,)` advantages, or what a loss made of them.
    """
    truth, count = exact(forest.mdp).advantage.ravel(), len(forest.trees)
    weight = np.bincount(tree * truth.size + pair, given, count * truth.size).reshape(count, -1)
    due = np.abs(truth[pair]) > _ZERO
    signed = due & (np.abs(given) > _ZERO)
    wrong = signed & (given * truth[pair] < 0)
    scores = forest.mdp.scores.reshape(truth.size, -1)
    return Samples(
        gradient=weight @ scores / forest.roots,
        count=forest.count,
        order=forest.order,
        steps=forest.steps.astype(np.float64),
        replayed=forest.replayed.astype(np.float64),
        wrong=np.bincount(tree, wrong, count).astype(np.float64),
        signed=np.bincount(tree, signed, count).astype(np.float64),
        due=np.bincount(tree, due, count).astype(np.float64),
    )


def pooled(samples: Samples, size: int) -> Samples:
    """Estimates that are each the mean of `size` estimates drawn one after the other; what is left over is dropped."""
    batches = samples.order[: len(samples.order) // size * size].reshape(-1, size)
    return Samples(
        gradient=samples.gradient[batches].mean(1),
        count=np.ones(len(batches), np.int64),
        order=np.arange(len(batches)),
        steps=samples.steps[batches].sum(1),
        replayed=samples.replayed[batches].sum(1),
        wrong=samples.wrong[batches].sum(1),
        signed=samples.signed[batches].sum(1),
        due=samples.due[batches].sum(1),
    )


def update_size(samples: Samples) -> int:
    """How many estimates `BUDGET` env steps pay for, at least one."""
    cost = samples.count @ samples.steps / samples.count.sum()
    return max(1, round(BUDGET / float(cost)))


def judge(samples: Samples, known: Exact, rollout_variance: float) -> Quality:
    """Hold estimates against the exact gradient.

    Args:
        samples: at least two estimates.
        known: what dynamic programming says.
        rollout_variance: Σ over components of the variance of one rollout with exact advantages (`oracle_variance`).
    """
    truth, n = known.gradient, len(samples.order)
    share = samples.count / n
    mean = share @ samples.gradient
    away = samples.gradient - mean
    error = np.sqrt(share @ away**2 / (n - 1))
    scale = float(mean @ truth / (truth @ truth))
    z, z_tilt = _z(mean - truth, error), _z(mean - scale * truth, error)
    noise, length = float(error @ error), float(np.linalg.norm(truth))
    size, cost = (away**2).sum(1), float(share @ samples.steps)
    spread = float(share @ size)
    per_update = cost / BUDGET / length**2
    return Quality(
        n=n,
        components=int(((error > _ZERO) | (np.abs(truth) > _ZERO)).sum()),
        bias_z=float(z.max()),
        worst=int(z.argmax()),
        bias=_distance(samples.gradient, share, mean - truth, noise, n, length),
        scale=scale,
        tilt_z=float(z_tilt.max()),
        tilt=min(
            _distance(samples.gradient, share, mean - scale * truth, noise, n, abs(scale) * length).value, 1.0
        ),
        astray=int(z_tilt.argmax()),
        variance=Interval(
            spread * per_update, _Z95 * math.sqrt(share @ (size - spread) ** 2 / n) * per_update
        ),
        cosine=_cosine(samples, truth),
        sign_error=_ratio(samples.wrong, samples.signed, share, n),
        silent=1 - _ratio(samples.signed, samples.due, share, n).value,
        ess=scale**2 * rollout_variance / spread * BUDGET / cost if spread else 0.0,
        steps=cost,
        replayed=float(share @ samples.replayed) / cost,
    )


def oracle_variance(samples: Samples, roots: int) -> float:
    """Σ over components of the variance of one rollout, from `samples` of `roots` independent ones each."""
    share = samples.count / len(samples.order)
    return float(share @ ((samples.gradient - share @ samples.gradient) ** 2).sum(1)) * roots


def _z(gap: Array, error: Array) -> Array:
    """`(D,)` |gap| in standard errors, `_CERTAIN` at most; 0 where there is neither a gap nor noise."""
    z = np.divide(np.abs(gap), error, out=np.full_like(gap, _CERTAIN), where=error > 0)
    return np.where(np.abs(gap) <= _ZERO, 0.0, np.minimum(z, _CERTAIN))


def _distance(gradient: Array, share: Array, gap: Array, noise: float, n: int, length: float) -> Interval:
    """Length of `gap` in units of `length`: the noise in its square taken off, the interval that along the gap."""
    measured = float(np.linalg.norm(gap))
    if measured <= _ZERO:
        return Interval(0.0, 0.0)
    if length <= _ZERO:
        return Interval(math.inf, 0.0)
    along = gradient @ (gap / measured)
    error = math.sqrt(share @ (along - share @ along) ** 2 / n)
    return Interval(math.sqrt(max(measured**2 - noise, 0.0)) / length, _Z95 * error / length)


def _cosine(samples: Samples, truth: Array) -> Interval:
    """Over updates of as many estimates as `BUDGET` env steps pay for."""
    updates = pooled(samples, update_size(samples)).gradient
    lengths = np.linalg.norm(updates, axis=1)
    cosines = np.divide(updates @ truth, lengths, out=np.zeros(len(updates)), where=lengths > _ZERO)
    cosines /= np.linalg.norm(truth)
    half = _Z95 * float(cosines.std(ddof=1)) / math.sqrt(len(cosines)) if len(cosines) > 1 else math.inf
    return Interval(float(cosines.mean()), half)


def _ratio(part: Array, whole: Array, share: Array, n: int) -> Interval:
    """Share of one count in another over all trees, its interval by the delta method; 0 of 0 is 0."""
    total = float(share @ whole)
    if not total:
        return Interval(0.0, 0.0)
    value = float(share @ part) / total
    error = math.sqrt(share @ (part - value * whole) ** 2 / n) / total
    return Interval(value, _Z95 * error)
