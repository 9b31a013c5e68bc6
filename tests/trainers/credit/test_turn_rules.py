"""Returns-to-go, GAE over turns and tokens, GiGPO, UI-S1: numbers computed by hand, and what each refuses."""

from __future__ import annotations

import math

import numpy as np
import pytest
from credit_trees import Leaf, Turn, actions, grow, score
from hypothesis import given
from hypothesis import strategies as st

from turngym.errors import CreditError, TreeError
from turngym.trainers.credit import NEEDS_STATE_KEYS, apply, get_rule
from turngym.trainers.credit.tokens import adaptive_lambda, sao, token_gae, token_returns
from turngym.trainers.credit.turns import state_returns
from turngym.tree import Kind, Origin, Tree
from turngym.types import Outcome, StopReason


def over_actions(tree: Tree, name: str, **options: object) -> list[float]:
    advantages = score(name, tree, **options).advantages
    return [float(advantages[node]) for node in actions(tree)]


def chain(*rewards: float) -> Turn | Leaf:
    first, *rest = rewards
    return Turn([chain(*rest)], reward=first) if rest else Leaf(first)


def decision(tree: Tree, action: int) -> int:
    return tree[action].parent


# ---------------------------------------------------------------------- returns-to-go


def test_returns_to_go_forget_what_came_before():
    assert over_actions(grow([chain(1.0, 2.0, 4.0)]), "returns_to_go") == [7.0, 6.0, 4.0]
    assert over_actions(grow([chain(1.0, 2.0, 4.0)]), "returns_to_go", gamma=0.5) == [3.0, 4.0, 4.0]


def test_after_a_fork_comes_the_mean_over_its_branches():
    # 2 + mean(mean(1, 0), 3) = 2 + 1.75, not the mean over the leaves
    tree = grow([Turn([[1.0, 0.0], 3.0], reward=2.0)])
    assert over_actions(tree, "returns_to_go") == [3.75, 0.5, 1.0, 0.0, 3.0]


def test_a_branch_that_was_cut_is_not_heard_where_another_one_is():
    cut = Leaf(0.0, StopReason.TURNS)
    tree = grow([[1.0, cut]])
    assert score("returns_to_go", tree).advantages == {1: 1.0, 3: 1.0}
    assert score("returns_to_go", tree, truncated="fail").advantages == {1: 0.5, 3: 1.0, 4: 0.0}


# ---------------------------------------------------------------------- GAE over turns


def test_gae_adds_the_discounted_errors_of_the_critic():
    tree = grow([chain(0.0, 1.0)])
    first, second = actions(tree)
    tree[decision(tree, first)].metrics["value"] = 0.5
    tree[decision(tree, second)].metrics["value"] = 0.8
    # δ_2 = 1 − .8 = .2; δ_1 = .9·.8 − .5 = .22; A_1 = .22 + .9·.5·.2 = .31
    assert over_actions(tree, "turn_gae", gamma=0.9, lam=0.5) == pytest.approx([0.31, 0.2])


@given(rewards=st.lists(st.integers(-4, 4), min_size=1, max_size=6))
def test_with_lambda_1_gae_is_the_return_to_go_minus_the_value(rewards):
    tree = grow([chain(*map(float, rewards)), 1.0])
    expected = [q - 0.25 for q in over_actions(tree, "returns_to_go")]
    assert over_actions(tree, "turn_gae", gamma=1.0, lam=1.0) == pytest.approx(expected)


def test_gae_looks_at_the_mean_of_the_branches_that_follow():
    # all values .25, λ = γ = 1: leaves .75 and −.25, half of them each; before them .25 − .25 + mean = .25
    assert over_actions(grow([[1.0, 0.0]]), "turn_gae", gamma=1.0, lam=1.0) == pytest.approx(
        [0.25, 0.375, -0.125]
    )


def cut_after_one_turn() -> Tree:
    tree = grow([chain(0.0, 1.0), Turn([], reward=0.0)])  # the second path ends at an observation
    tree[tree.leaves[-1]].stop = StopReason.TURNS
    return tree


def test_a_path_that_was_cut_is_masked_failed_or_goes_on_with_the_critic():
    tree = cut_after_one_turn()
    last = actions(tree)[-1]
    tree[tree.leaves[-1]].metrics["value"] = 0.75
    assert last not in score("turn_gae", tree).advantages
    assert score("turn_gae", tree, truncated="fail").advantages[last] == pytest.approx(-0.25)
    bootstrapped = score("turn_gae", tree, truncated="bootstrap", gamma=1.0).advantages[last]
    assert bootstrapped == pytest.approx(0.75 - 0.25)


def test_a_path_that_succeeded_at_the_limit_is_not_continued():
    tree = cut_after_one_turn()
    tree[tree.leaves[-1]].metrics["value"] = 0.75
    tree[tree.leaves[-1]].outcome = Outcome.SUCCESS
    last = actions(tree)[-1]
    found = score("turn_gae", tree, truncated="bootstrap", gamma=1.0).advantages[last]
    assert found == pytest.approx(-0.25)


def test_a_critic_is_fitted_to_the_mean_return_from_each_state_on():
    # the root: (1 + (2 + (1 + 0)/2)) / 2 = 1.75; behind the second action (1 + 0)/2, whatever the critic said
    tree = grow([1.0, Turn([1.0, 0.0], reward=2.0)])
    second = tree.children(actions(tree)[1])[0]
    assert state_returns(tree) == pytest.approx({0: 1.75, second: 0.5})
    # γ = λ = .5, all V .25: behind the fork .5; the root: δ of 1.0 is .75, of the other 2 + .125 − .25 = 1.875, and
    # .25 · .25 of what follows: .25 + (.75 + 1.9375)/2
    assert state_returns(tree, gamma=0.5, lam=0.5)[0] == pytest.approx(0.25 + (0.75 + 1.9375) / 2)


def test_a_masked_path_is_no_target_and_a_bootstrapped_one_is():
    tree = cut_after_one_turn()
    tree[tree.leaves[-1]].metrics["value"] = 0.75
    assert state_returns(tree)[0] == pytest.approx(1.0)
    assert state_returns(tree, truncated="fail")[0] == pytest.approx(0.5)
    assert state_returns(tree, truncated="bootstrap")[0] == pytest.approx((1 + 0.75) / 2)


# ---------------------------------------------------------------------- siblings and a critic


def test_tree_value_averages_siblings_and_critic():
    # V .25 everywhere, trust 1. Root: Q .5 (the mean of 1 and 0) and 1: baselines (1 + .25)/2 and (.5 + .25)/2.
    # Below the fork, half of: 1 − (0 + .25)/2 and 0 − (1 + .25)/2
    tree = grow([[1.0, 0.0], 1.0])
    found = over_actions(tree, "tree_value", trust=1.0)
    assert found == pytest.approx([-0.125, 0.4375, -0.3125, 0.625])
    # trust 3: (1 + .75)/4, …
    assert over_actions(tree, "tree_value", trust=3.0)[0] == pytest.approx(0.5 - 0.4375)


def test_without_siblings_the_critic_is_the_baseline():
    assert over_actions(grow([chain(1.0, 2.0)]), "tree_value") == pytest.approx([2.75, 1.75])


def test_tree_value_refuses_a_state_without_a_value():
    tree = grow([1.0, 0.0])
    del tree[0].metrics["value"]
    with pytest.raises(CreditError, match=r"tree_value: tree: metrics\['value'\] of node 0 has none.*critic"):
        score("tree_value", tree)


@pytest.mark.parametrize("value", [None, math.nan])
def test_a_state_without_a_value_is_refused(value):
    tree = cut_after_one_turn()
    tree[tree.leaves[-1]].metrics.pop("value")
    if value is not None:
        tree[tree.leaves[-1]].metrics["value"] = value
    score("turn_gae", tree)
    with pytest.raises(CreditError, match=r"turn_gae: tree: metrics\['value'\] of node .*critic"):
        score("turn_gae", tree, truncated="bootstrap")
    del tree[0].metrics["value"]
    with pytest.raises(CreditError, match=r"turn_gae: tree: metrics\['value'\] of node 0 has none"):
        score("turn_gae", tree)


# ---------------------------------------------------------------------- GAE over tokens


def test_lambda_grows_with_the_length_and_is_never_negative():
    assert [round(adaptive_lambda(n), 4) for n in (1, 10, 100, 1000)] == [0.3333, 0.9333, 0.9933, 0.9993]
    assert adaptive_lambda(0) == adaptive_lambda(1, alpha=0.5) == 0.0


def token_tree() -> Tree:
    """Two turns of two and one sampled tokens with an observation between them, and a token of the template."""
    tree = Tree(task_id="t", rollout_id="tokens")
    tree.add(-1, Kind.OBSERVATION, [0], origin=Origin.TEMPLATE)
    tree.add(0, Kind.ACTION, [1, 2, 9], origin=[0, 0, 2], logprobs=[-1, -1, np.nan], version=0, reward=0.0)
    tree.add(1, Kind.OBSERVATION, [3], origin=Origin.ENV)
    tree.add(2, Kind.ACTION, [4], origin=Origin.SAMPLED, logprobs=[-1], version=0, reward=1.0)
    tree[3].stop = StopReason.TERMINATED
    return tree


def test_token_gae_links_the_turns_over_the_observation():
    # .4; .6 − .4 + .9·.4 = .56; .4 − .2 + .9·.56 = .704
    sampled = np.array([True, True, False, True])
    found = token_gae(np.array([0, 0, 0, 1.0]), np.array([0.2, 0.4, np.nan, 0.6]), sampled, lam=0.9)
    assert found == pytest.approx([0.704, 0.56, 0.0, 0.4])


def valued(tree: Tree, values: dict[int, list[float]]) -> Tree:
    for node, said in values.items():
        tree[node].values = said
    return tree


def test_sao_takes_lambda_from_the_sampled_tokens_of_the_path():
    tree = valued(token_tree(), {1: [0.2, 0.4, np.nan], 3: [0.6]})
    alpha = 1 / (3 * 0.1)  # 1 − 1/(α·3) = .9
    (credit,) = sao([tree], alpha=alpha, whiten=False)
    assert credit.advantages[1] == pytest.approx([0.704, 0.56, 0.0])
    assert credit.advantages[3] == pytest.approx([0.4])


def test_sao_goes_on_from_a_cut_with_the_critic():
    tree = cut_after_one_turn()
    tree[tree.leaves[-1]].metrics["value"] = 0.75
    last = actions(tree)[-1]
    for truncated, expected in (("fail", 0.0 - 0.25), ("bootstrap", 0.75 - 0.25)):
        (credit,) = sao([tree], whiten=False, truncated=truncated)
        assert credit.advantages[last] == pytest.approx([expected])
        assert token_returns(tree, truncated=truncated)[last] == pytest.approx([expected + 0.25])
    (credit,) = sao([tree], whiten=False)
    assert last not in credit.advantages


def test_sao_gives_a_shared_action_the_mean_over_its_paths():
    tree = grow([[1.0, 0.0]])
    valued(tree, {node: [0.0] for node in actions(tree)})
    (credit,) = sao([tree], alpha=1e9, whiten=False)  # λ → 1
    assert [float(credit.advantages[n][0]) for n in actions(tree)] == pytest.approx([0.5, 1.0, 0.0])


def test_sao_puts_the_tokens_of_the_batch_on_one_scale():
    trees = [valued(token_tree(), {1: [v, v, 0.0], 3: [v]}) for v in (0.2, 0.9)]
    tokens = np.concatenate(
        [
            np.asarray(c.advantages[n])[t[n].loss_mask]
            for t, c in zip(trees, sao(trees), strict=True)
            for n in (1, 3)
        ]
    )
    assert (tokens.mean(), tokens.std(ddof=1)) == pytest.approx((0, 1), abs=1e-6)


def test_the_targets_of_a_token_critic_are_returns_to_go_for_lambda_1():
    tree = valued(token_tree(), {1: [0.2, 0.4, np.nan], 3: [0.6]})
    returns = token_returns(tree)
    assert returns[1][:2] == pytest.approx([1.0, 1.0])
    assert returns[3] == pytest.approx([1.0])
    assert token_returns(tree, lam=0.0)[1][:2] == pytest.approx([0.4, 0.6])  # V of the next token


@pytest.mark.parametrize(
    ("values", "words"), [({}, "has no values"), ({1: [0.2, math.nan, 0.0], 3: [0.6]}, "not finite")]
)
def test_sao_refuses_actions_without_a_value_before_each_token(values, words):
    with pytest.raises(CreditError, match=rf"sao: tokens: node 1 .*{words}.*before each sampled"):
        sao([valued(token_tree(), values)])


def test_values_that_do_not_fit_the_tokens_are_refused():
    with pytest.raises(TreeError, match=r"values of node 1 have shape \(2,\), its ids \(3,\)"):
        valued(token_tree(), {1: [0.2, 0.4]})


# ---------------------------------------------------------------------- GiGPO


def in_states(spec: list, states: list[int]) -> Tree:
    """The tree of `spec` with the state of each action, oldest first; the root's is shared by its children."""
    tree = grow(spec)
    for action, state in zip(actions(tree), states, strict=True):
        tree[decision(tree, action)].state_key = f"{state + 1:032x}"
    return tree


def two_walks() -> Tree:
    # a: s0 s1 s2, rewards 0 0 10; b: s0 s1 s1 s3, rewards 0
    return in_states([chain(0.0, 0.0, 10.0), chain(0.0, 0.0, 0.0, 0.0)], [0, 1, 2, 0, 1, 1, 3])


def test_gigpo_adds_the_advantage_within_the_state():
    # Q of a: 9.025, 9.5, 10; of b: 0. s0: ±4.5125; s1: 9.5, 0, 0: 6.3333, −3.1667 ×2; s2, s3 alone. Episodes ±5
    expected = [5 + 4.5125, 5 + 6.3333, 5.0, -5 - 4.5125, -5 - 3.1667, -5 - 3.1667, -5.0]
    assert over_actions(two_walks(), "gigpo") == pytest.approx(expected, abs=1e-3)
    step = [x - (5 if i < 3 else -5) for i, x in enumerate(expected)]
    doubled = over_actions(two_walks(), "gigpo", step_weight=2.0)
    assert doubled == pytest.approx([x + s for x, s in zip(expected, step, strict=True)], abs=1e-3)


def test_gigpo_without_its_second_part_is_dr_grpo_or_grpo():
    tree = two_walks()
    assert over_actions(tree, "gigpo", step_weight=0.0) == pytest.approx(over_actions(tree, "dr_grpo"))
    assert over_actions(tree, "gigpo", step_weight=0.0, norm="std") == pytest.approx(
        over_actions(tree, "grpo")
    )


def test_gigpo_in_std_mode_has_a_floor_under_almost_equal_returns():
    tree = in_states([1.0, 1.0 + 1e-9], [0, 0])
    step = np.subtract(over_actions(tree, "gigpo", norm="std"), over_actions(tree, "grpo"))
    assert np.abs(step).max() < 1e-5


def test_gigpo_says_how_many_actions_share_a_state():
    assert apply(get_rule("gigpo"), [two_walks()])["credit/shared_state_share"] == pytest.approx(5 / 7)
    assert "credit/shared_state_share" not in apply(get_rule("grpo"), [two_walks()])


@pytest.mark.parametrize("name", sorted(NEEDS_STATE_KEYS))
def test_a_rule_that_compares_states_refuses_a_tree_without_keys(name):
    tree = grow([1.0, 0.0])
    tree[0].state_key = None
    with pytest.raises(CreditError, match=rf"{name}: tree: node 0 has no state key.*state_keys=true"):
        score(name, tree)


def test_graph_compares_what_was_done_in_a_state_by_where_it_led():
    # a: s0 → s1 → end, 4; b: s0 → s1 → end, 1; c: s0 → s2 → end, 0. At s1 a and b got 4 and 1: both first steps are worth 2.5
    tree = in_states([chain(0.0, 4.0), chain(0.0, 1.0), chain(0.0, 0.0)], [0, 1, 0, 1, 0, 2])
    pooled = over_actions(tree, "graph", pool=0.0)
    assert pooled == pytest.approx([2.5 - 0.5, 4 - 1, 2.5 - 2, 1 - 4, 0 - 2.5, 0 - 2.5])
    own = over_actions(tree, "graph", values="own", pool=0.0)
    assert own == pytest.approx([4 - 0.5, 4 - 1, 1 - 2, 1 - 4, 0 - 2.5, 0 - 2.5])
    # b' of all of a's actions is 0.5, and counts here as much as the one rollout that was there
    assert over_actions(tree, "graph", values="own", pool=1.0)[1] == pytest.approx(4 - (1 + 0.5) / 2)


def test_graph_knows_what_was_earned_before_a_meeting():
    # b earns 8 on its way to s1, which a never had: at s1 it got 1 and a got 4
    tree = in_states([chain(0.0, 4.0), chain(8.0, 1.0)], [0, 1, 0, 1])
    assert over_actions(tree, "graph", pool=0.0) == pytest.approx([2.5 - 9, 4 - 1, 8 + 2.5 - 4, 1 - 4])


def test_graph_takes_the_first_visit_of_each_rollout():
    # a comes back to s1 after a step that earned 2: what followed its first visit there is 2 + 4
    tree = in_states([chain(0.0, 2.0, 4.0), chain(0.0, 1.0)], [0, 1, 1, 0, 1])
    assert over_actions(tree, "graph", values="own", pool=0.0)[-1] == pytest.approx(1 - 6)


def test_graph_without_meetings_is_the_rule_tree():
    tree = in_states([[1.0, 0.0], [0.0, 3.0]], [0, 1, 1, 0, 2, 2])
    assert over_actions(tree, "graph") == pytest.approx(over_actions(tree, "tree"))


# ---------------------------------------------------------------------- UI-S1


def semi_online(matches: list[list[float]]) -> Tree:
    tree = grow([chain(1.0, 0.5, 1.0) for _ in matches])
    for action, match in zip(actions(tree), [m for row in matches for m in row], strict=True):
        tree[action].metrics["match"] = match
    return tree


def test_no_return_flows_across_a_mismatch():
    # γ .5, rewards 1, .5, 1. All matched: 1.5, 1, 1. Second turn missed: 1, .5, 1.
    # Step advantages without deviations are the halves of the differences: .25, .25, 0
    tree = semi_online([[1, 1, 1], [1, 0, 1]])
    found = over_actions(tree, "ui_s1", norm="mean", episode_weight=0.0)
    assert found == pytest.approx([0.25, 0.25, 0.0, -0.25, -0.25, 0.0])


def test_ui_s1_standardises_within_the_turn_and_a_lone_turn_adds_0():
    tree = semi_online([[1, 1, 1], [1, 0, 1]])
    found = over_actions(tree, "ui_s1")  # episodes are equal
    assert found == pytest.approx([0.7071, 0.7071, 0.0, -0.7071, -0.7071, 0.0], abs=1e-4)
    tree = grow([chain(0.0, 0.0, 1.0), 0.0])
    alone = over_actions(tree, "ui_s1", episode_weight=0.0)[1:3]
    assert alone == [0.0, 0.0]


def test_ui_s1_refuses_an_action_that_nobody_compared_with_the_expert():
    tree = semi_online([[1, 1, 1], [1, 0, 1]])
    del tree[1].metrics["match"]
    with pytest.raises(CreditError, match=r"ui_s1: tree: metrics\['match'\] of node 1 has none"):
        score("ui_s1", tree)


def test_sao_pays_the_last_token_that_was_sampled_and_not_the_template_behind_it():
    tree = Tree(task_id="task", rollout_id="template")
    root = tree.add(-1, Kind.OBSERVATION, [0], origin=Origin.TEMPLATE)
    action = tree.add(
        root,
        Kind.ACTION,
        [5, 6, 7],
        origin=[Origin.SAMPLED, Origin.SAMPLED, Origin.TEMPLATE],
        logprobs=[-1.0, -1.0, np.nan],
        version=0,
        reward=1.0,
    )
    tree[action].stop = StopReason.TERMINATED
    # λ = 1 − 1/(1.5 · 2) = 2/3; the last sampled token: 1 − .4 = .6; the first: .4 − .2 + 2/3 · .6 = .6
    (credit,) = sao([valued(tree, {action: [0.2, 0.4, 9.0]})], whiten=False)
    assert credit.advantages[action] == pytest.approx([0.6, 0.6, 0.0])
