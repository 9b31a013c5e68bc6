"""REINFORCE++, MC-GRPO, PVPO, V_0.5, OTB: numbers computed by hand, and what each refuses."""

from __future__ import annotations

import math

import numpy as np
import pytest
from credit_trees import Leaf, Turn, actions, grow, score
from hypothesis import given
from hypothesis import strategies as st

from turngym.errors import ConfigError, CreditError
from turngym.trainers.credit import apply, get_rule, lift, whiten
from turngym.trainers.credit.base import Credit
from turngym.trainers.credit.otb import score_norms
from turngym.trainers.credit.prior import error_gain, shrinkage, wants_more
from turngym.tree import Kind, Origin, Tree
from turngym.types import StopReason


def over_actions(tree: Tree, credit: Credit) -> list[float]:
    return [float(credit.advantages[node]) for node in actions(tree)]


def batch(name: str, trees: list[Tree], **options: object) -> list[list[float]]:
    credits = get_rule(name, **options)(trees)
    return [over_actions(tree, credit) for tree, credit in zip(trees, credits, strict=True)]


# ---------------------------------------------------------------------- REINFORCE++


def test_group_mean_and_batch_deviation():
    # centred .75, −.25 ×3 | .25 ×3, −.75; sum of squares 1.5, over 7: deviation .4629
    first, second = batch("reinforce_pp_baseline", [grow([1.0, 0.0, 0.0, 0.0]), grow([1.0, 1.0, 1.0, 0.0])])
    assert first == pytest.approx([1.6202, -0.5401, -0.5401, -0.5401], abs=1e-3)
    assert second == pytest.approx([0.5401, 0.5401, 0.5401, -1.6202], abs=1e-3)


def test_a_task_without_a_signal_stays_at_0_unless_the_batch_is_recentred():
    # the loser has three turns: token-weighted mean (.5 − 3·.5)/6 < 0
    trees = [grow([1.0, [[0.0]]]), grow([1.0, 1.0])]
    assert batch("reinforce_pp_baseline", trees)[1] == [0.0, 0.0]
    assert min(batch("reinforce_pp_baseline", trees, recentre=True)[1]) > 0


def test_reinforce_whitens_returns_to_go_over_all_trees():
    # Q: 1, 1 | 0 | .5 (of the second turn) and 1.5; five tokens, mean .8, sum of squares 1.3, over 4: .5701
    trees = [grow([[1.0]]), grow([0.0]), grow([Turn([0.5], reward=1.0)])]
    expected = [[0.2, 0.2], [-0.8], [0.7, -0.3]]
    found = batch("reinforce_pp", trees)
    for tree, numbers in zip(found, expected, strict=True):
        assert tree == pytest.approx([x / 0.5701 for x in numbers], abs=1e-3)


def test_long_actions_weigh_by_their_tokens_and_those_not_sampled_do_not_weigh():
    tree = Tree(task_id="t", rollout_id="long")
    tree.add(-1, Kind.OBSERVATION, [0], origin=Origin.TEMPLATE)
    origin = [Origin.SAMPLED, Origin.SAMPLED, Origin.SAMPLED, Origin.TEMPLATE]
    long = tree.add(
        0, Kind.ACTION, [1] * 4, origin=origin, logprobs=[-1, -1, -1, np.nan], version=0, reward=0.0
    )
    short = tree.add(0, Kind.ACTION, [1], origin=Origin.SAMPLED, logprobs=[-1], version=0, reward=1.0)
    tree[long].stop = tree[short].stop = StopReason.TERMINATED
    # 0, 0, 0, 1: mean .25, deviation sqrt(.75/3) = .5
    credit = get_rule("reinforce_pp")([tree])[0]
    assert [credit.advantages[long], credit.advantages[short]] == pytest.approx([-0.5, 1.5], abs=1e-6)


@given(
    values=st.lists(st.lists(st.integers(-4, 4), min_size=1, max_size=5), min_size=1, max_size=4),
)
def test_whitened_tokens_have_mean_0_and_deviation_1(values):
    trees = [grow([float(v) for v in group]) for group in values]
    whitened = np.concatenate(batch("reinforce_pp", trees))
    if len({v for group in values for v in group}) == 1:
        assert not whitened.any()
    else:
        assert whitened.mean() == pytest.approx(0, abs=1e-9)
        assert whitened.std(ddof=1) == pytest.approx(1, abs=1e-6)


def test_whitening_keeps_per_token_advantages_apart_and_leaves_the_others_at_0():
    tree = grow([1.0])
    tree.add(0, Kind.ACTION, [1, 2, 3], origin=[0, 0, 2], logprobs=[-1, -1, np.nan], version=0, reward=0.0)
    credit = Credit(
        advantages={1: 3.0, 2: np.array([1.0, 2.0, 0.0])}, rollouts=2, masked=0, void=0, zero_variance=False
    )
    (white,) = whiten([tree], [credit])  # 3, 1, 2: mean 2, deviation 1
    assert white.advantages[1] == pytest.approx(1.0)
    assert white.advantages[2] == pytest.approx([-1.0, 0.0, 0.0])


def test_lift_scores_each_tree_alone():
    def count(tree: Tree) -> Credit:
        return Credit(advantages={1: float(len(tree))}, rollouts=1, masked=0, void=0, zero_variance=False)

    assert [c.advantages for c in lift(count)([grow([1.0]), grow([1.0, 0.0])])] == [{1: 2.0}, {1: 3.0}]


def test_an_action_with_an_advantage_per_token_is_counted_by_its_mean():
    tree = grow([1.0])

    def rule(_: Tree) -> Credit:
        return Credit(advantages={1: np.array([-2.0])}, rollouts=1, masked=0, void=0, zero_variance=False)

    statistics = apply(lift(rule), [tree])
    assert (statistics["credit/mean"], statistics["credit/abs_mean"], statistics["credit/abs_max"]) == (
        -2,
        2,
        2,
    )
    assert list(tree[1].advantage) == [-2.0]


# ---------------------------------------------------------------------- MC-GRPO


def test_the_median_is_the_baseline_and_the_floor_keeps_the_scale_finite():
    tree = grow([0.2, 0.5, 0.9])  # median .5, MAD .3
    assert over_actions(tree, score("mc_grpo", tree)) == pytest.approx([-0.3 / 0.55, 0.0, 0.4 / 0.55])
    tree = grow([1.0, 0.0, 0.0])  # MAD 0
    assert over_actions(tree, score("mc_grpo", tree)) == [4.0, 0.0, 0.0]


def test_the_released_constants_give_the_released_numbers():
    options = {"floor": 1e-3, "compensate": True}
    tree = grow([1.0, 0.0, 0.0])
    assert over_actions(tree, score("mc_grpo", tree, **options)) == pytest.approx([3000, 0, 0])
    tree = grow([0.2, 0.5, 0.9])
    expected = [-1.4950, 0.0, 1.9934]
    assert over_actions(tree, score("mc_grpo", tree, **options)) == pytest.approx(expected, abs=1e-3)


def test_an_even_group_takes_the_lower_middle():
    tree = grow([0.0, 0.0, 1.0, 1.0])
    assert over_actions(tree, score("mc_grpo", tree))[:2] == [0.0, 0.0]


def test_a_floor_of_0_is_refused():
    with pytest.raises(ConfigError, match="floor"):
        get_rule("mc_grpo", floor=0.0)


# ---------------------------------------------------------------------- values known before


def with_prior(rewards: list[float], prior: float) -> Tree:
    tree = grow(rewards)
    tree[0].metrics["prior_value"] = prior
    return tree


def test_pvpo_subtracts_the_static_value():
    tree = with_prior([1.0, 0.0], 0.3)
    assert over_actions(tree, score("pvpo", tree)) == pytest.approx([0.7, -0.3])


@pytest.mark.parametrize(
    ("prior", "rewards", "weight", "baseline"),
    [
        (0.2, [1.0, 1.0, -1.0, -1.0], 0.0, 0.2),  # gap² .04 < 1/4: noise explains it
        (0.8, [-1.0] * 4, 0.9228, -0.8611),  # Δ² = 3.24 − .25 = 2.99; w = 2.99/3.24
    ],
)
def test_the_mean_is_believed_as_far_as_noise_does_not_explain_it(prior, rewards, weight, baseline):
    assert shrinkage(np.array(rewards), prior, 1.0) == pytest.approx(weight, abs=1e-3)
    tree = with_prior(rewards, prior)
    credit = score("v_half", tree, variance=1.0)
    assert over_actions(tree, credit) == pytest.approx([r - baseline for r in rewards], abs=1e-3)
    assert apply(get_rule("v_half", variance=1.0), [tree])["credit/prior_share"] == pytest.approx(
        1 - weight, abs=1e-3
    )


def test_without_the_own_return_a_lone_path_has_the_prior_as_baseline():
    tree = with_prior([1.0], 0.25)
    assert over_actions(tree, score("v_half", tree, leave_one_out=True)) == [0.75]
    tree = with_prior([1.0, 0.0], 0.25)  # others: 0 and 1, one each: Δ² = max(0, .0625 − .25) and .5625 − .25
    weight = 0.3125 / (0.3125 + 0.25)
    expected = [1 - 0.25, 0 - (weight + (1 - weight) * 0.25)]
    assert over_actions(tree, score("v_half", tree, leave_one_out=True)) == pytest.approx(expected)


def test_rollouts_are_added_while_the_baseline_gains_more_than_they_cost():
    lost = -np.ones(16)
    gains = [error_gain(2.99, k, 1.0) for k in (4, 8, 12, 16)]
    assert gains == pytest.approx([0.0433, 0.0129, 0.0061, 0.0035], abs=1e-4)  # cost .0039
    asked = [wants_more(lost[:k], 0.8, variance=1.0, cap=64) for k in (0, 3, 4, 8, 12)]
    assert asked == [True] * 5
    even = np.array([1.0, 1.0, -1.0, -1.0])
    assert not wants_more(even, 0.2, variance=1.0)  # the prior is believed
    assert not wants_more(lost, 0.8, variance=1.0)  # the cap
    gap = (0.8 + 1) ** 2 - 1 / 16  # 3.18 at k = 16
    assert 1 / 16 * gap / (gap + 1 / 16) - 1 / 17 * gap / (gap + 1 / 17) < 1 / 256
    assert not wants_more(lost, 0.8, variance=1.0, cap=64)


def test_the_stopping_rule_does_not_depend_on_the_unit_of_the_reward():
    won = np.array([1.0, 1.0, 1.0, 1.0, 1.0])
    assert wants_more(won, 0.1) == wants_more(2 * won - 1, 2 * 0.1 - 1, variance=1.0)


@pytest.mark.parametrize("options", [{"start": 0}, {"cap": 3}, {"variance": 0.0}, {"cost": -1.0}])
def test_a_stopping_rule_that_makes_no_sense_is_refused(options):
    with pytest.raises(ConfigError, match="wants_more"):
        wants_more(np.ones(4), 0.5, **options)


@pytest.mark.parametrize("name", ["pvpo", "v_half"])
@pytest.mark.parametrize("prior", [None, math.nan, math.inf])
def test_a_task_without_a_finite_prior_is_refused(name, prior):
    tree = grow([1.0, 0.0], name="new task")
    if prior is None:
        del tree[0].metrics["prior_value"]
    else:
        tree[0].metrics["prior_value"] = prior
    with pytest.raises(
        CreditError, match=rf"{name}: new task: .*'prior_value'.* node 0 .*write the expected return"
    ):
        score(name, tree)


# ---------------------------------------------------------------------- OTB


def test_a_rollout_counts_by_the_norm_of_its_gradient_so_far():
    tree = grow([Turn([Leaf(1.0)]), Turn([Leaf(0.0)]), Leaf(0.0)])  # actions 1 → 3, 4 → 6, 7
    for node, norm in {1: 0.5, 3: 1.5, 4: 0.25, 6: 0.75, 7: 0.25}.items():
        tree[node].metrics["score_norm"] = norm
    # turn 0: W .5, .25, .25: baseline .5.  turn 1: W 2 and 1: baseline 2/3
    advantages = score("otb", tree).advantages
    assert [advantages[n] for n in (1, 4, 7)] == pytest.approx([0.5, -0.5, -0.5])
    assert [advantages[n] for n in (3, 6)] == pytest.approx([1 / 3, -2 / 3])


def test_a_turn_that_one_path_reached_has_no_baseline_and_no_signal():
    tree = grow([[[1.0]], 0.0])  # turns 1 and 2 belong to the first path alone
    assert over_actions(tree, score("otb", tree)) == pytest.approx([0.5, 0.0, 0.0, -0.5])


def test_norms_of_0_fall_back_to_the_mean():
    tree = grow([1.0, 0.0])
    for node in actions(tree):
        tree[node].metrics["score_norm"] = 0.0
    assert over_actions(tree, score("otb", tree)) == [0.5, -0.5]


def test_score_norms_are_the_squared_length_of_the_gradient_at_the_logits():
    probabilities = np.array([0.5, 0.3, 0.2])
    gradient = np.eye(3) - probabilities  # rows: ∇ log π(a) = e_a − π
    expected = (gradient**2).sum(1)
    assert score_norms(np.log(probabilities), np.full(3, (probabilities**2).sum())) == pytest.approx(expected)


def test_the_lower_bound_needs_nothing_but_the_record():
    tree = grow([1.0, 0.0])
    for node in actions(tree):
        del tree[node].metrics["score_norm"]
    assert over_actions(tree, score("otb", tree, norms="lower_bound")) == [0.5, -0.5]
    with pytest.raises(CreditError, match="score_norm"):
        score("otb", tree)
