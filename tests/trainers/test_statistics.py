"""Estimators against numbers worked out by hand, intervals against their promise in simulation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngym.errors import ConfigError
from turngym.trainers.statistics import compare_pairs, pass_at_k, pass_hat_k, share, sign_flip_p, t_quantile

counts = st.integers(1, 12).flatmap(
    lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))
)  # (attempts, successes, k)


def test_pass_at_k_and_pass_hat_k_by_hand() -> None:
    # n = 5, c = 2, k = 3: of C(5, 3) = 10 triples, C(3, 3) = 1 has no success and none has three.
    assert pass_at_k(5, 2, 3) == 9 / 10
    assert pass_hat_k(5, 2, 3) == 0
    # n = 5, c = 4, k = 3: C(4, 3) = 4 of 10 triples are all successes; each triple has at least one.
    assert pass_hat_k(5, 4, 3) == 4 / 10
    assert pass_at_k(5, 4, 3) == 1


@given(counts)
def test_both_equal_the_share_among_all_subsets_of_k(count: tuple[int, int, int]) -> None:
    attempts, successes, k = count
    subsets = list(itertools.combinations([i < successes for i in range(attempts)], k))
    assert pass_at_k(attempts, successes, k) == pytest.approx(np.mean([any(s) for s in subsets]))
    assert pass_hat_k(attempts, successes, k) == pytest.approx(np.mean([all(s) for s in subsets]))


@given(counts)
def test_pass_at_1_is_the_mean_and_more_successes_never_lower_either(count: tuple[int, int, int]) -> None:
    attempts, successes, k = count
    assert pass_at_k(attempts, successes, 1) == pytest.approx(successes / attempts)
    assert pass_hat_k(attempts, successes, 1) == pytest.approx(successes / attempts)
    assert (
        pass_hat_k(attempts, successes, k)
        <= successes / attempts + 1e-12
        <= pass_at_k(attempts, successes, k) + 2e-12
    )
    if successes < attempts:
        assert pass_at_k(attempts, successes, k) <= pass_at_k(attempts, successes + 1, k)
        assert pass_hat_k(attempts, successes, k) <= pass_hat_k(attempts, successes + 1, k)


@pytest.mark.parametrize(("attempts", "successes", "k"), [(4, 5, 1), (4, -1, 1), (4, 2, 0), (4, 2, 5)])
def test_impossible_counts_are_refused(attempts: int, successes: int, k: int) -> None:
    with pytest.raises(ConfigError, match="need 0 ≤ successes ≤ attempts"):
        pass_at_k(attempts, successes, k)
    with pytest.raises(ConfigError, match="need 0 ≤ successes ≤ attempts"):
        pass_hat_k(attempts, successes, k)


@pytest.mark.parametrize(
    ("freedom", "table"),
    [
        (1, 12.7062),
        (2, 4.3027),
        (3, 3.1824),
        (4, 2.7764),
        (5, 2.5706),
        (6, 2.4469),
        (10, 2.2281),
        (30, 2.0423),
        (199, 1.9720),
    ],
)
def test_student_quantiles_match_the_tables(freedom: int, table: float) -> None:
    assert t_quantile(freedom) == pytest.approx(table, rel=0.01 if freedom < 6 else 0.001)


def test_an_interval_by_hand() -> None:
    # 9 of 10 tasks, one attempt each: n_eff = 10, t_9 = 2.2622, t² = 5.1173; centre = (9 + 2.5587) / 15.1173 = 0.7646;
    # half = 2.2622 · √(0.7646 · 0.2354 / 15.1173) = 0.2468.
    estimate = share([1.0] * 9 + [0.0])
    assert estimate.value == pytest.approx(0.9)
    assert estimate.low == pytest.approx(0.7646 - 0.2468, abs=2e-4)
    assert estimate.high == 1.0  # 0.7646 + 0.2468 = 1.0114 is cut


def test_attempts_that_agree_count_as_one_and_independent_ones_as_many() -> None:
    agreeing = share([1.0, 0.0] * 20, [8] * 40)
    single = share([1.0, 0.0] * 20)
    assert (agreeing.low, agreeing.high) == (single.low, single.high)
    spread = share([0.5] * 40, [8] * 40)
    assert spread.high - spread.low < 0.5 * (single.high - single.low)


@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("tasks", [1, 2, 5, 200])
@pytest.mark.parametrize("attempts", [1, 8])
def test_no_interval_has_width_zero_at_the_extremes(value: float, tasks: int, attempts: int) -> None:
    estimate = share([value] * tasks, [attempts] * tasks)
    assert estimate.high - estimate.low > 1.5 / (tasks + 4)
    assert estimate.low <= value <= estimate.high


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.integers(1, 16))
def test_an_interval_stays_in_the_unit_interval_and_holds_its_mean(
    values: list[float], attempts: int
) -> None:
    estimate = share(values, [attempts] * len(values))
    assert 0 <= estimate.low < estimate.high <= 1
    assert estimate.low - 1e-9 <= estimate.value <= estimate.high + 1e-9
    assert estimate.tasks == len(values)


def test_nothing_scored_is_nan_and_a_share_outside_the_unit_interval_is_refused() -> None:
    assert math.isnan(share([]).value)
    with pytest.raises(ConfigError, match="in \\[0, 1\\]"):
        share([0.5, 1.5])
    with pytest.raises(ConfigError, match="finite"):
        share([0.5, math.nan])


@pytest.mark.parametrize("tasks", [2, 3, 5, 10, 20, 50])
@pytest.mark.parametrize("rate", [0.02, 0.05, 0.3, 0.5, 0.95, 0.99])
def test_single_attempts_are_covered(tasks: int, rate: float) -> None:
    """Exact coverage: the sum of the binomial probabilities of all counts whose interval holds the rate."""
    covered = 0.0
    for wins in range(tasks + 1):
        estimate = share([1.0] * wins + [0.0] * (tasks - wins))
        if estimate.low <= rate <= estimate.high:
            covered += math.comb(tasks, wins) * rate**wins * (1 - rate) ** (tasks - wins)
    assert covered >= 0.94


@pytest.mark.parametrize("tasks", [3, 10, 50])
@pytest.mark.parametrize("attempts", [2, 8])
@pytest.mark.parametrize("beta", [(1.0, 1.0), (9.5, 0.5), (1.9, 0.1), (95.0, 5.0)])
def test_clustered_attempts_are_covered(tasks: int, attempts: int, beta: tuple[float, float]) -> None:
    """Tasks of unequal difficulty: rates from a Beta with means 0.5 and 0.95, from alike to all-or-nothing."""
    rng = np.random.default_rng(7)
    truth = beta[0] / sum(beta)
    hits = 0
    for _ in range(600):
        rates = rng.binomial(attempts, rng.beta(*beta, tasks)) / attempts
        estimate = share(rates.tolist(), [attempts] * tasks)
        hits += estimate.low <= truth <= estimate.high
    assert hits / 600 >= 0.92


def test_a_naive_interval_would_fail_the_same_simulation() -> None:
    """The control: 400 attempts at 50 tasks, treated as 400 tasks, miss a mean that clustering covers."""
    rng = np.random.default_rng(7)
    hits = 0
    for _ in range(300):
        wins = rng.binomial(8, rng.beta(0.5, 0.5, 50)).sum()
        estimate = share([1.0] * wins + [0.0] * (400 - wins))
        hits += estimate.low <= 0.5 <= estimate.high
    assert hits / 300 < 0.75


def test_a_paired_comparison_by_hand() -> None:
    # Five tasks, one attempt: A wins on 4 where B loses, both win on 1. Differences 1, 1, 1, 1, 0.
    a: list[tuple[int, int] | None] = [(1, 1)] * 5
    b: list[tuple[int, int] | None] = [(1, 0)] * 4 + [(1, 1)]
    result = compare_pairs(a, b)
    assert result.difference.value == pytest.approx(0.8)
    # McNemar: all 4 discordant tasks favour A: 2 · (1/2)⁴.
    assert result.p_value == pytest.approx(0.125)
    # Agresti-Min: centre = 4 / 7, variance = (4 + 1) / 7 − (4 / 7)² = 0.3878, half = 2.7764 · √(0.3878 / 7) = 0.6534.
    assert result.difference.low == pytest.approx(0.5714 - 0.6534, abs=3e-3)
    assert result.difference.high == 1.0
    assert (result.better, result.worse, result.left_out) == (4, 0, 0)


def test_tasks_without_a_result_on_one_side_are_left_out_and_counted() -> None:
    result = compare_pairs([(2, 1), None, (2, 2), (2, 0)], [(2, 1), (2, 0), (0, 0), (2, 1)])
    assert (result.difference.tasks, result.left_out) == (2, 2)
    assert result.difference.value == pytest.approx(-0.25)


def test_two_policies_that_agree_everywhere_still_get_an_interval() -> None:
    result = compare_pairs([(1, 1)] * 20, [(1, 1)] * 20)
    assert result.difference.low < -0.05 < 0.05 < result.difference.high
    assert result.p_value == 1.0


def test_comparing_other_tasks_or_nothing() -> None:
    with pytest.raises(ConfigError, match="same tasks"):
        compare_pairs([(1, 1)], [])
    assert math.isnan(compare_pairs([None], [(1, 1)]).p_value)


def test_the_paired_interval_covers() -> None:
    rng = np.random.default_rng(11)
    for tasks in (5, 20, 100):
        hits = 0
        for _ in range(400):
            easy = rng.beta(2, 0.5, tasks)
            wins_a, wins_b = rng.binomial(2, easy), rng.binomial(2, easy * 0.9)
            truth = 0.8 * 0.1
            result = compare_pairs([(2, int(c)) for c in wins_a], [(2, int(c)) for c in wins_b])
            hits += result.difference.low <= truth <= result.difference.high
        assert hits / 400 >= 0.92, tasks


@given(st.lists(st.integers(-4, 4), max_size=9))
def test_the_permutation_test_equals_enumeration(differences: list[int]) -> None:
    sums = [
        sum(d * s for d, s in zip(differences, signs, strict=True))
        for signs in itertools.product((-1, 1), repeat=len(differences))
    ]
    expected = np.mean([abs(s) >= abs(sum(differences)) for s in sums])
    assert sign_flip_p(differences) == pytest.approx(expected)


def test_the_permutation_test_holds_its_level() -> None:
    rng = np.random.default_rng(3)
    rejected = np.mean([sign_flip_p(rng.integers(-3, 4, 25)) <= 0.05 for _ in range(400)])
    assert rejected <= 0.08
