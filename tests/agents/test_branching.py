"""Plans decide where to fork by looking at a tree: tested on trees alone, without an environment or a policy.

`Ground` plays the driver. It grows chains of given lengths and outcomes, and a path that starts at a fork goes on to
the length of its chain.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turngym.agents.branching import (
    PLANS,
    Decisions,
    Fork,
    Plan,
    Purse,
    TreeBudget,
    forks_inside,
    make_plan,
    root_only,
    suffix_count,
)
from turngym.errors import ConfigError, UnknownName
from turngym.tree import Kind, Origin, Tree
from turngym.types import Outcome, StopReason

FAIL, WIN, VOID = Outcome.FAILURE, Outcome.SUCCESS, Outcome.ENV_FAULT


@dataclass
class Ground:
    """Plays forks. `outcome(ground, turn, member)` decides how a path that starts after `turn` actions ends."""

    outcome: Callable[[Ground, int, int], Outcome] = lambda ground, turn, member: FAIL
    length: Callable[[int], int] = lambda member: 6
    "actions of a path from the root"
    surprisal: Callable[[int, int], float] = lambda member, turn: 1.0
    budget: TreeBudget = field(default_factory=TreeBudget)
    tree: Tree = field(default_factory=lambda: Tree(task_id="t", rollout_id="t"))
    rounds: list[list[Fork]] = field(default_factory=list)
    members: int = 0

    def __post_init__(self) -> None:
        self.purse = Purse(self.budget)
        self.tree.add(-1, Kind.OBSERVATION, [0], origin=Origin.ENV, starts_context=True)

    def follow(self, plan: Plan, seed: int = 0) -> Tree:
        decisions = plan(self.tree, self.purse, np.random.default_rng(seed))
        forks = next(decisions, None)
        while forks is not None and self.purse.leaves_left:
            self.rounds.append(forks)
            points = [f.node for f in forks for _ in range(f.count)][: self.purse.leaves_left]
            leaves = [self.path(node) for node in points]
            counted = [leaf for leaf in leaves if not self.tree.void(leaf)]
            self.purse.leaves += len(counted)
            try:
                forks = decisions.send(counted)
            except StopIteration:
                return self.tree
        decisions.close()
        return self.tree

    def path(self, node: int) -> int:
        member, self.members = self.members, self.members + 1
        tree, start = self.tree, len(self.tree.actions(node))
        outcome = self.outcome(self, start, member)
        last = max(self.length(member), start + 1)
        for turn in range(start, last):
            logprob = -self.surprisal(member, turn)
            node = tree.add(node, Kind.ACTION, [1], origin=Origin.SAMPLED, logprobs=[logprob], version=0)
            if turn < last - 1:
                node = tree.add(node, Kind.OBSERVATION, [2], origin=Origin.ENV)
        tree[node].outcome = outcome
        tree[node].stop = StopReason.ENV_FAULT if outcome is VOID else StopReason.TERMINATED
        return node

    @property
    def forks(self) -> list[Fork]:
        return [fork for forks in self.rounds for fork in forks]

    def turn_of(self, node: int) -> int:
        return len(self.tree.actions(node))


# ---------------------------------------------------------------------- names and options


def test_every_plan_is_made_by_its_name() -> None:
    assert set(PLANS) == {"group", "random_node", "coin", "bisect"}
    for name in PLANS:
        assert Ground().follow(make_plan(name)).leaves


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("grup", {}, "Did you mean 'group'"),
        ("group", {"sise": 4}, "Did you mean 'size'"),
        ("group", {"size": 0}, "size ≥ 1"),
        ("group", {"size": "four"}, "plan 'group': size = 'four': Input should be a valid integer"),
        ("group", {"size": 2.5}, "valid integer"),
        ("group", {"size": True}, "valid integer"),
        ("random_node", {"roots": 0}, "roots ≥ 1"),
        ("random_node", {"draws": 0}, "draws ≥ 1"),
        ("random_node", {"rounds": -1}, "rounds ≥ 0"),
        ("coin", {"probability": 1.5}, "probability ≤ 1"),
        ("coin", {"probability": float("nan")}, "probability ≤ 1"),
        ("coin", {"width": 0}, "width ≥ 1"),
        ("bisect", {"suffixes_min": 0}, "suffixes_min"),
        ("bisect", {"suffixes_min": 4, "suffixes_max": 3}, "suffixes_min ≤ suffixes_max"),
        ("bisect", {"targets": 0}, "targets ≥ 1"),
        ("bisect", {"failures": 0}, "failures"),
        ("bisect", {"beta": float("inf")}, "finite beta"),
    ],
)
def test_what_a_plan_can_not_honour_is_refused_when_it_is_made(
    name: str, options: dict[str, object], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        make_plan(name, **options)


def test_an_unknown_plan_is_an_unknown_name() -> None:
    with pytest.raises(UnknownName):
        make_plan("tree")


def test_whole_numbers_do_for_fractions() -> None:
    assert Ground().follow(make_plan("coin", probability=0)).leaves


def test_only_the_group_is_known_to_stay_at_the_root() -> None:
    assert [name for name in PLANS if not forks_inside(make_plan(name))] == ["group"]

    def mine(tree: Tree, purse: Purse, rng: np.random.Generator) -> Decisions:
        yield [Fork(0, 1)]

    assert forks_inside(mine)
    assert not forks_inside(root_only(mine))


@pytest.mark.parametrize("name", ["leaves", "policy_tokens", "env_steps"])
def test_an_empty_budget_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be at least 1, got 0"):
        TreeBudget(**{name: 0})


def test_what_is_left_of_a_budget() -> None:
    assert Purse(TreeBudget()).leaves_left > 10**6
    assert Purse(TreeBudget(leaves=5), leaves=3).leaves_left == 2
    assert Purse(TreeBudget(leaves=5), leaves=7).leaves_left == 0
    assert Purse(TreeBudget(leaves=5, env_steps=10), leaves=3, env_steps=9).leaves_left == 2
    assert Purse(TreeBudget(leaves=5, env_steps=10), leaves=3, env_steps=10).leaves_left == 0
    assert Purse(TreeBudget(policy_tokens=10), policy_tokens=11).leaves_left == 0


# ---------------------------------------------------------------------- group, random_node, coin


def test_a_group_forks_at_the_root_only() -> None:
    ground = Ground()
    tree = ground.follow(make_plan("group", size=5))
    assert ground.rounds == [[Fork(0, 5)]]
    assert len(tree.children(0)) == 5


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 3), st.integers(0, 5))
@settings(max_examples=40)
def test_random_node_forks_so_many_times_whatever_it_draws(
    roots: int, draws: int, rounds: int, seed: int
) -> None:
    ground = Ground(length=lambda member: 1 + member % 4)
    tree = ground.follow(make_plan("random_node", roots=roots, draws=draws, rounds=rounds), seed)
    assert len(ground.rounds) == 1 + rounds
    assert all(len(forks) == roots * draws for forks in ground.rounds[1:])
    assert len(tree.leaves) == roots + rounds * roots * draws
    for fork in ground.forks:
        assert fork.node == 0 or (tree[fork.node].kind is Kind.OBSERVATION and tree.children(fork.node))


def test_random_node_draws_uniformly_from_the_decision_points_of_each_chain() -> None:
    # Chains of 2 and 5 actions offer the root and 1 or 4 inner points.
    drawn: dict[int, Counter[int]] = {0: Counter(), 1: Counter()}
    repeated = 0
    for seed in range(1000, 1250):
        ground = Ground(length=lambda member: (2, 5)[member % 2])
        tree = ground.follow(make_plan("random_node", roots=2, draws=4), seed)
        first, second = ground.rounds[1][:4], ground.rounds[1][4:]
        repeated += len({f.node for f in first}) < 4
        for chain, forks in enumerate((first, second)):
            top = tree.children(0)[chain]
            for fork in forks:
                assert fork.node == 0 or tree.path(fork.node)[1] == top
                drawn[chain][ground.turn_of(fork.node)] += 1
    assert set(drawn[0]) == {0, 1}
    assert set(drawn[1]) == {0, 1, 2, 3, 4}
    # χ² stays below its value at p = 0.001 with 1 and 4 degrees of freedom.
    for counts, limit in ((drawn[0], 10.83), (drawn[1], 18.47)):
        expected = counts.total() / len(counts)
        assert sum((n - expected) ** 2 for n in counts.values()) / expected < limit
    assert repeated == 250  # two points, four draws: with replacement


def test_random_node_draws_for_chains_that_count() -> None:
    # The first attempt of member 0 broke; its place was taken, and it gets no draws of its own.
    ground = Ground(outcome=lambda ground, turn, member: VOID if member == 0 else FAIL)
    tree = ground.follow(make_plan("random_node", roots=3, draws=2))
    assert len(ground.rounds[1]) == 2 * 2
    broken = tree.children(0)[0]
    assert all(f.node == 0 or tree.path(f.node)[1] != broken for f in ground.rounds[1])


def test_coins_fall_independently_of_what_comes_after() -> None:
    # A chain wins or loses by a toss after its forks were decided; both kinds must fork alike at every turn.
    rng = np.random.default_rng(0)
    counts = {(won, forked): 0 for won in (True, False) for forked in (True, False)}
    for seed in range(600):
        outcomes = [bool(rng.integers(2)) for _ in range(4)]
        ground = Ground(
            outcome=lambda ground, turn, member, outcomes=outcomes: (
                WIN if member < 4 and outcomes[member] else FAIL
            )  # type: ignore[misc]
        )
        tree = ground.follow(make_plan("coin", roots=4, probability=0.3), seed)
        nodes = {f.node for f in ground.rounds[1]}
        for member, chain in enumerate(tree.children(0)[:4]):
            leaf = next(leaf for leaf in tree.leaves if chain in tree.path(leaf))
            points = [n for n in tree.path(leaf)[1:] if not tree[n].is_action]
            assert len(points) == 5
            for point in points:
                counts[outcomes[member], point in nodes] += 1
    points = sum(counts.values())
    share = (counts[True, True] + counts[False, True]) / points
    assert abs(share - 0.3) < 4 * math.sqrt(0.3 * 0.7 / points)
    shares = [counts[won, True] / (counts[won, True] + counts[won, False]) for won in (True, False)]
    assert abs(shares[0] - shares[1]) < 4 * math.sqrt(2 * 0.3 * 0.7 / (points / 2))


def test_a_coin_of_probability_one_forks_everywhere_but_at_the_root() -> None:
    ground = Ground()
    tree = ground.follow(make_plan("coin", roots=2, probability=1.0, width=3))
    assert len(ground.rounds[1]) == 2 * 5
    assert all(fork.count == 3 and fork.node != 0 for fork in ground.rounds[1])
    assert len(tree.leaves) == 2 + 2 * 5 * 3


# ---------------------------------------------------------------------- bisect


@pytest.mark.parametrize(("rise", "count"), [(-0.5, 1.152), (0.0, 2.0), (0.5, 2.848)])
def test_the_number_of_suffixes_is_that_of_the_paper(rise: float, count: float) -> None:
    # methods: X from 1 to 3, β = 5: 1 + 2·σ(5·rise), σ(−2.5) = 0.07586, σ(2.5) = 0.92414
    assert suffix_count(rise, beta=5.0, low=1, high=3) == pytest.approx(count, abs=1e-3)


@pytest.mark.parametrize("rise", [-1e6, 1e6])
def test_a_huge_rise_asks_for_the_least_or_the_most(rise: float) -> None:
    assert suffix_count(rise, beta=5.0, low=1, high=3) == (1 if rise < 0 else 3)


def oracle(critical: int) -> Callable[[Ground, int, int], Outcome]:
    """Member 0 fails by its action number `critical`, member 1 wins; probes win before that action, not after."""

    def outcome(ground: Ground, turn: int, member: int) -> Outcome:
        if member < 2:
            return WIN if member else FAIL
        return WIN if turn <= critical else FAIL

    return outcome


@pytest.mark.parametrize("turns", [1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 33])
def test_perfect_probes_name_the_planted_turn_in_at_most_log2_probes(turns: int) -> None:
    for critical in range(turns):
        ground = Ground(outcome=oracle(critical), length=lambda member: turns)
        tree = ground.follow(make_plan("bisect", roots=2))
        (leaf,) = [n.index for n in tree if "critical_turn" in n.metrics]
        assert tree[leaf].metrics["critical_turn"] == critical
        assert leaf == tree.leaves[0]
        probes = ground.rounds[1:]
        assert all(len(forks) == 1 for forks in probes)
        assert len(probes) <= math.ceil(math.log2(turns))
        # Never the same prefix twice, and never the root or the whole path.
        probed = [ground.turn_of(forks[0].node) for forks in probes]
        assert len(set(probed)) == len(probed)
        assert all(0 < turn < turns for turn in probed)


@given(st.integers(2, 40), st.data())
@settings(max_examples=60)
def test_between_probes_the_turn_lies_between_the_last_living_and_the_first_dead_prefix(
    turns: int, data: st.DataObject
) -> None:
    critical = data.draw(st.integers(0, turns - 1))
    alive, dead = 0, turns
    ground = Ground(outcome=oracle(critical), length=lambda member: turns)
    ground.follow(make_plan("bisect", roots=2))
    for forks in ground.rounds[1:]:
        turn = ground.turn_of(forks[0].node)
        assert alive < turn < dead
        alive, dead = (turn, dead) if turn <= critical else (alive, turn)
    assert (alive, dead) == (critical, critical + 1)


@given(st.integers(2, 40), st.data())
@settings(max_examples=60)
def test_a_living_prefix_that_looks_dead_names_the_turn_too_early(turns: int, data: st.DataObject) -> None:
    critical = data.draw(st.integers(0, turns - 1))
    unlucky = data.draw(st.sets(st.integers(1, turns)))

    def outcome(ground: Ground, turn: int, member: int) -> Outcome:
        return FAIL if member >= 2 and turn in unlucky else oracle(critical)(ground, turn, member)

    ground = Ground(outcome=outcome, length=lambda member: turns)
    tree = ground.follow(make_plan("bisect", roots=2))
    (named,) = [n.metrics["critical_turn"] for n in tree if "critical_turn" in n.metrics]
    assert named <= critical


def test_a_prefix_is_alive_where_any_of_its_suffixes_wins() -> None:
    def outcome(ground: Ground, turn: int, member: int) -> Outcome:
        if member < 2:
            return WIN if member else FAIL
        return WIN if turn <= 4 and member % 3 == 0 else FAIL

    ground = Ground(outcome=outcome, length=lambda member: 8)
    tree = ground.follow(make_plan("bisect", roots=2, suffixes_min=3))
    assert all(fork.count == 3 for fork in ground.forks[1:])
    assert tree[tree.leaves[0]].metrics["critical_turn"] == 4


def test_suffixes_follow_the_rise_of_surprisal_at_the_probed_turn() -> None:
    # Turn 4 of 8 is probed first. Its action is 0.5 nats above the first one: 2.848 suffixes, then 1.152 for 0.5 below.
    for rise, count in [(0.5, 3), (0.0, 2), (-0.5, 1)]:
        ground = Ground(
            outcome=oracle(0),
            length=lambda member: 8,
            surprisal=lambda member, turn, rise=rise: 1.0 + rise * (turn == 4),  # type: ignore[misc]
        )
        ground.follow(make_plan("bisect", roots=2))
        assert ground.rounds[1][0].count == count


def test_the_failed_path_with_the_largest_rise_is_searched() -> None:
    # Members 0 to 3 fail, 4 wins; of the first three failures member 1 rises most. Member 3 would, but comes too late.
    rises = {0: 0.1, 1: 0.4, 2: 0.2, 3: 0.9}
    ground = Ground(
        outcome=lambda ground, turn, member: WIN if member == 4 else FAIL,
        surprisal=lambda member, turn: 1.0 + (rises.get(member, 0.0) if turn else 0.0),
    )
    tree = ground.follow(make_plan("bisect", roots=5, failures=3))
    named = [n.index for n in tree if "critical_turn" in n.metrics]
    assert [tree.children(0).index(tree.path(leaf)[1]) for leaf in named] == [1]
    ground = Ground(outcome=ground.outcome, surprisal=ground.surprisal)
    tree = ground.follow(make_plan("bisect", roots=5, failures=3, targets=2))
    named = [n.index for n in tree if "critical_turn" in n.metrics]
    assert [tree.children(0).index(tree.path(leaf)[1]) for leaf in named] == [1, 2]


@pytest.mark.parametrize("outcome", [FAIL, WIN])
def test_where_all_fail_or_all_win_nothing_is_searched(outcome: Outcome) -> None:
    ground = Ground(outcome=lambda ground, turn, member: outcome)
    tree = ground.follow(make_plan("bisect", roots=4))
    assert len(ground.rounds) == 1
    assert not any("critical_turn" in n.metrics for n in tree)


def test_a_path_that_a_budget_cut_is_searched_and_a_void_one_is_not() -> None:
    outcomes = [VOID, Outcome.TRUNCATED, WIN]
    ground = Ground(outcome=lambda ground, turn, member: outcomes[member] if member < 3 else FAIL)
    tree = ground.follow(make_plan("bisect", roots=3, failures=1))
    (leaf,) = [n.index for n in tree if "critical_turn" in n.metrics]
    assert tree[leaf].outcome is Outcome.TRUNCATED


def test_probes_that_are_all_void_end_the_search_without_a_verdict() -> None:
    def outcome(ground: Ground, turn: int, member: int) -> Outcome:
        return VOID if member >= 2 else (WIN if member else FAIL)

    ground = Ground(outcome=outcome)
    tree = ground.follow(make_plan("bisect", roots=2))
    assert len(ground.rounds) == 2
    assert not any("critical_turn" in n.metrics for n in tree)


@pytest.mark.parametrize("leaves", range(2, 12))
def test_an_empty_purse_ends_the_search_without_a_verdict(leaves: int) -> None:
    ground = Ground(outcome=oracle(5), length=lambda member: 16, budget=TreeBudget(leaves=leaves))
    tree = ground.follow(make_plan("bisect", roots=2, suffixes_min=2, suffixes_max=2))
    assert len(tree.leaves) == leaves
    named = [n.metrics["critical_turn"] for n in tree if "critical_turn" in n.metrics]
    # Four probes of two suffixes on top of two paths: with 9 leaves the last probe has one suffix, which suffices here.
    assert named == ([5.0] if leaves >= 9 else [])


def test_what_is_left_of_the_budget_goes_to_full_paths() -> None:
    ground = Ground(outcome=oracle(2), length=lambda member: 4, budget=TreeBudget(leaves=16))
    tree = ground.follow(make_plan("bisect", roots=2))
    probes = sum(fork.count for fork in ground.forks[1:-1])
    assert ground.forks[-1] == Fork(0, 16 - 2 - probes)
    assert len(tree.leaves) == 16
    ground = Ground(outcome=oracle(2), length=lambda member: 4)
    ground.follow(make_plan("bisect", roots=2))
    assert all(fork.node != 0 for fork in ground.forks[1:])
