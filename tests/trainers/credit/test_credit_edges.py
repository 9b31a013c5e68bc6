"""Faults, budgets, groups of one, equal returns, trees that can't be scored."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from credit_trees import ALONE, TIMED, UNDISCOUNTED, Leaf, Turn, actions, annotated, grow, score

from turngym.errors import ConfigError, CreditError, UnknownName
from turngym.trainers.credit import BATCH_RULES, CRITICAL_TURN, LOWER_CLIP_EXTRA, RULES, apply, get_rule
from turngym.tree import Kind, Origin, Tree
from turngym.types import Outcome, StopReason

every_rule = pytest.mark.parametrize("name", RULES)


def every_rule_but(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", [name for name in RULES if name not in names])


VOID = Leaf(1.0, StopReason.ENV_FAULT)
CUT = Leaf(0.0, StopReason.TURNS)


@every_rule_but(*ALONE)
def test_a_group_of_one_gets_0_and_not_its_reward(name):
    tree = grow([[[1.0]]])
    assert list(score(name, tree).advantages.values()) == [0.0, 0.0, 0.0]


@every_rule_but(*ALONE)
@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e-300, -7.3e5])
@pytest.mark.parametrize("size", [2, 3, 7, 49])
def test_equal_returns_get_exactly_0(name, value, size):
    if name == "tree_rpo" and value < 0:
        pytest.skip("returns outside [0, 1] are refused")
    tree = grow([value] * size + [[value] * size, [[value] * 3]])
    for options in [{}, {"pool": 0.7}] if name == "tree" else [UNDISCOUNTED.get(name, {})]:
        credit = score(name, tree, **options)
        assert set(credit.advantages.values()) == {0.0}
        assert credit.zero_variance


@every_rule_but(*ALONE, *TIMED)
def test_the_order_of_equal_rewards_is_not_variance(name):
    # .1 + .2 + .3 and .3 + .2 + .1 differ in the last bit when they are added one by one
    def chain(*rewards: float) -> Turn:
        a, b, c = rewards
        return Turn([Turn([Leaf(c)], reward=b)], reward=a)

    credit = score(name, grow([chain(0.1, 0.2, 0.3), chain(0.3, 0.2, 0.1)]))
    assert set(credit.advantages.values()) == {0.0}


@every_rule
@pytest.mark.parametrize("stop", [StopReason.ENV_FAULT, StopReason.HARNESS_FAULT, StopReason.ABORTED])
def test_a_fault_is_in_no_statistic_and_trains_nothing(name, stop):
    clean = grow([1.0, 0.0, 0.0])
    broken = grow([1.0, 0.0, 0.0, Leaf(None, stop), [Leaf(1.0, stop)]])
    with_fault = score(name, broken)
    assert with_fault.advantages == score(name, clean).advantages
    assert (with_fault.rollouts, with_fault.void) == (3, 2)


@every_rule
def test_a_fault_below_a_branching_leaves_the_tree_as_if_it_never_grew(name):
    clean, broken = grow([[1.0], 0.0]), grow([[1.0, VOID], 0.0])
    values = [list(score(name, tree).advantages.values()) for tree in (clean, broken)]
    assert values[0] == pytest.approx(values[1])


@every_rule
def test_a_tree_of_faults_trains_nothing(name):
    tree = grow([VOID, [VOID, VOID]])
    credit = score(name, tree)
    assert (credit.advantages, credit.rollouts, credit.void) == ({}, 0, 3)
    assert score(name, Tree(task_id="t", rollout_id="empty")).advantages == {}


@every_rule
def test_a_path_without_an_action_trains_nothing(name):
    tree = Tree(task_id="t", rollout_id="long prompt")
    tree.add(-1, Kind.OBSERVATION, [0], origin=Origin.TEMPLATE)
    tree[0].stop = StopReason.CONTEXT
    credit = score(name, annotated(tree))
    assert (credit.advantages, credit.rollouts) == ({}, 1)


@every_rule_but("appo")
def test_a_masked_path_is_counted_and_not_trained(name):
    tree = grow([1.0, 1.0, [CUT], [CUT, 0.0]])
    masked, failed = score(name, tree), score(name, tree, truncated="fail")
    assert actions(tree) == [1, 2, 3, 5, 6, 8, 9]
    assert sorted(masked.advantages) == [1, 2, 6, 9]  # 6 is shared with a path that ended by itself
    assert sorted(failed.advantages) == [1, 2, 3, 5, 6, 8, 9]
    if name not in BATCH_RULES:  # those whiten over what is trained
        assert masked.advantages[1] == pytest.approx(failed.advantages[1])  # same statistics
    assert (masked.rollouts, masked.masked, failed.masked) == (5, 2, 0)


def test_a_masked_path_has_no_say_in_the_mean_over_the_paths_through_a_shared_action():
    # returns 1, 0 (cut), 0, 0: .75, −.25, −.25, −.25; the shared action hears the first only
    credit = score("dr_grpo", grow([[1.0, CUT], 0.0, 0.0]))
    assert list(credit.advantages.values()) == [0.75, 0.75, -0.25, -0.25]


def test_a_masked_path_gets_no_wider_clip():
    tree = grow([[1.0, [CUT]], 0.0])  # the path that was cut: actions 1, 4, 6
    assert tree[6].stop is StopReason.TURNS
    tree[6].metrics[CRITICAL_TURN] = 0.0
    assert set(score("elpo", tree).lower_clip_extra) == {1}
    assert set(score("elpo", tree, truncated="fail").lower_clip_extra) == {1, 4, 6}


@every_rule
def test_a_success_at_the_limit_is_trained(name):
    tree = grow([Leaf(1.0, StopReason.TURNS, Outcome.SUCCESS), 0.0])
    assert len(score(name, tree).advantages) == 2


@every_rule
def test_a_limit_of_the_task_is_no_budget_of_ours(name):
    assert len(score(name, grow([Leaf(0.0, StopReason.ENV_LIMIT), 1.0])).advantages) == 2


@every_rule
def test_what_cannot_be_scored_names_rule_tree_and_field(name):
    with pytest.raises(CreditError, match=rf"{name}: broken: leaf 2 has no stop"):
        score(name, grow([1.0, Leaf(0.0, None)], name="broken"))
    with pytest.raises(CreditError, match=rf"{name}: broken: .* leaf 2 has a reward"):
        score(name, grow([1.0, Leaf(None)], name="broken"))
    with pytest.raises(CreditError, match=rf"{name}: broken: the rewards .* sum to inf"):
        score(name, grow([Turn([Leaf(1.7e308)], reward=1.7e308), 0.0], name="broken"))


@every_rule_but("returns_to_go", "mc_grpo")  # without a baseline, and with 0 as the lower middle
def test_a_path_cut_before_its_first_reward_has_earned_nothing(name):
    tree = grow([1.0, Leaf(None, StopReason.CONTEXT)])
    assert score(name, tree, truncated="fail").advantages[2] < 0


@pytest.mark.parametrize("turn", [-1.0, 1.0, 0.5, np.nan, np.inf])
def test_a_critical_turn_that_the_path_does_not_have_is_refused(turn):
    tree = grow([1.0, 0.0])
    tree[2].metrics[CRITICAL_TURN] = turn
    with pytest.raises(CreditError, match=r"elpo: tree: critical_turn of leaf 2"):
        score("elpo", tree)


def test_a_critical_turn_of_a_fault_is_not_read():
    tree = grow([1.0, 0.0, VOID])
    tree[3].metrics[CRITICAL_TURN] = 99.0
    assert score("elpo", tree).lower_clip_extra == {}


# ---------------------------------------------------------------------- registry


def test_unknown_names_and_options_are_refused_with_the_nearest():
    with pytest.raises(UnknownName, match="Did you mean 'grpo'"):
        get_rule("gpro")
    with pytest.raises(UnknownName, match=r"'truncate'.*Did you mean 'truncated'"):
        get_rule("grpo", truncate="mask")
    with pytest.raises(UnknownName, match=r"std of credit rule grpo.*Known: population, unbiased"):
        get_rule("grpo", std="sample")


def test_an_option_of_another_rule_is_refused():
    with pytest.raises(UnknownName, match="option of credit rule rloo 'std'"):
        get_rule("rloo", std="unbiased")


@pytest.mark.parametrize(
    "options",
    [{"branch_share": 1.5}, {"branch_share": "0.5"}, {"critical_clip": -0.1}, {"branch_share": True}],
)
def test_values_out_of_range_are_refused_before_and_during_the_run(options):
    with pytest.raises(ConfigError, match="elpo"):
        get_rule("elpo", **options)
    with pytest.raises(ConfigError, match="elpo"):
        RULES["elpo"](grow([1.0, 0.0]), **options)


def test_a_bound_rule_survives_pickling():
    trees = [grow([1.0, 0.0])]
    for rule in (get_rule("grpo", std="population"), get_rule("reinforce_pp", gamma=0.5)):
        assert pickle.loads(pickle.dumps(rule))(trees) == rule(trees)


@every_rule
def test_rules_leave_the_record_as_it_was(name):
    spec = [[1.0, 0.0, CUT], 0.0, VOID]
    tree = grow(spec)
    score(name, tree)
    assert tree == grow(spec)


# ---------------------------------------------------------------------- apply


def test_apply_writes_what_the_rule_says_and_nothing_else():
    tree = grow([1.0, 0.0, CUT, VOID])
    apply(get_rule("dr_grpo"), [tree])
    assert [node.advantage for node in tree] == [
        None,
        pytest.approx(2 / 3),
        pytest.approx(-1 / 3),
        None,
        None,
    ]


def test_apply_removes_what_an_earlier_rule_wrote():
    tree = grow([1.0, [0.0]])
    tree[4].metrics[CRITICAL_TURN] = 0.0
    apply(get_rule("elpo"), [tree])
    assert [node.metrics.get(LOWER_CLIP_EXTRA) for node in tree] == [None, None, 0.115, None, 0.115]
    apply(get_rule("grpo"), [tree])
    assert [node.metrics.get(LOWER_CLIP_EXTRA) for node in tree] == [None] * 5
    tree[1].stop = StopReason.ENV_FAULT
    apply(get_rule("grpo"), [tree])
    assert [node.advantage for node in tree] == [None, None, 0.0, None, 0.0]


def test_apply_counts():
    trees = [grow([1.0, 0.0]), grow([1.0, 1.0, CUT, VOID]), grow([1.0, 1.0]), grow([1.0]), grow([VOID])]
    statistics = apply(get_rule("dr_grpo"), trees)
    assert statistics == {
        "credit/trees": 5,
        "credit/rollouts": 8,
        "credit/void_rollouts": 2,
        "credit/masked_rollouts": 1,
        "credit/trained_nodes": 7,
        "credit/empty_share": 0.2,
        "credit/single_share": 0.2,
        "credit/zero_variance_share": 0.2,  # the second has a masked 0 in its group
        "credit/mean": pytest.approx((0.5 - 0.5 + 1 / 3 + 1 / 3) / 7),
        "credit/abs_mean": pytest.approx((0.5 + 0.5 + 1 / 3 + 1 / 3) / 7),
        "credit/abs_max": 0.5,
        "credit/nonzero_share": pytest.approx(4 / 7),
    }
    assert apply(get_rule("grpo"), [])["credit/trees"] == 0


def test_apply_scores_every_tree_before_it_writes_one():
    good, bad = grow([1.0, 0.0]), grow([1.0, Leaf(None)])
    with pytest.raises(CreditError):
        apply(get_rule("grpo"), [good, bad])
    assert good[1].advantage is None
