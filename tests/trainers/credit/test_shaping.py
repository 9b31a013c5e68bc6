"""Shaping, and credit over contexts: a rollout counts once, one that ran out of its budget is masked everywhere."""

from __future__ import annotations

import json

import numpy as np
import pytest
from credit_trees import Leaf, Turn, actions, grow, score
from hypothesis import given
from hypothesis import strategies as st

from turngym.errors import ConfigError, CreditError, UnknownName
from turngym.trainers.credit import RULES
from turngym.trainers.credit.base import SHAPING, read_paths
from turngym.trainers.credit.shaping import (
    JUDGE,
    Memory,
    Shaping,
    judge_trust,
    overlong_penalty,
    repeated_penalty,
    trusted_judge,
)
from turngym.tree import Kind, Origin, Tree
from turngym.types import Outcome, StopReason

WON, LOST, CUT = Outcome.SUCCESS, Outcome.FAILURE, Outcome.TRUNCATED


def test_the_penalty_grows_over_the_buffer():
    found = overlong_penalty([16000, 16384, 18432, 20480], limit=20480, buffer=4096)
    assert found.tolist() == [0.0, 0.0, -0.5, -1.0]
    assert overlong_penalty([20480], limit=20480, buffer=4096, factor=0.5).tolist() == [-0.5]


@given(lengths=st.lists(st.integers(0, 30_000), min_size=2))
def test_a_longer_path_is_never_punished_less_and_nothing_is_rewarded(lengths):
    penalty = overlong_penalty(np.sort(lengths), limit=20_000, buffer=4_000)
    assert (np.diff(penalty) <= 0).all()
    assert (penalty <= 0).all()


@pytest.mark.parametrize(
    "options", [{"buffer": 0}, {"buffer": 101}, {"factor": -1.0}, {"factor": float("nan")}]
)
def test_a_buffer_that_does_not_fit_is_refused(options):
    with pytest.raises(ConfigError, match="overlong_penalty needs"):
        overlong_penalty([1], **{"limit": 100, "buffer": 10} | options)


# ---------------------------------------------------------------------- what rules read


@pytest.mark.parametrize("name", RULES)
def test_every_rule_sees_a_shaped_return_as_a_reward_at_the_leaf(name):
    shaped, rewarded = grow([[0.5, 0.25], 1.0, [0.0]]), grow([[0.625, 0.25], 0.75, [0.0]])
    added = dict(zip(shaped.leaves, (0.125, 0.0, -0.25, 0.0), strict=True))
    for leaf, value in added.items():
        shaped[leaf].metrics[SHAPING] = value
    before = score(name, grow([[0.5, 0.25], 1.0, [0.0]])).advantages
    found = score(name, shaped).advantages
    assert found == score(name, rewarded).advantages
    assert found != before
    assert [shaped[leaf].reward for leaf in shaped.leaves] == [0.5, 0.25, 1.0, 0.0]  # the environment's


@pytest.mark.parametrize("name", RULES)
def test_every_rule_sees_shaping_where_a_budget_cut_behind_an_observation(name):
    def cut(reward: float) -> Tree:
        tree = grow([Turn([], reward=reward), 1.0, [0.0]])
        tree[tree.leaves[0]].stop = StopReason.TURNS
        return tree

    shaped = cut(1.0)
    shaped[shaped.leaves[0]].metrics[SHAPING] = -0.5
    found = score(name, shaped, truncated="fail").advantages
    assert found == score(name, cut(0.5), truncated="fail").advantages
    assert found != score(name, cut(1.0), truncated="fail").advantages


def test_shaping_of_a_cut_that_others_share_the_last_action_of_stays_at_the_leaf():
    tree = grow([Turn([1.0, 0.0], reward=0.0)])
    action = actions(tree)[0]
    leaf = tree.add(action, Kind.OBSERVATION, [3], origin=Origin.ENV)
    tree[leaf].stop = StopReason.TURNS
    tree[leaf].metrics[SHAPING] = -0.5
    paths = read_paths(tree, "rule", "fail")
    assert paths.reward[leaf] == -0.5
    assert paths.reward[action] == 0.0
    assert paths.ends[paths.leaves.index(leaf)] == leaf


def test_shaping_is_no_score():
    tree = grow([Leaf(None), 1.0])
    tree[tree.leaves[0]].metrics[SHAPING] = -0.5
    with pytest.raises(CreditError, match="not scored is not 0"):
        score("grpo", tree)


def test_terms_add_up_and_void_paths_have_none():
    tree = grow([Leaf(0.0, outcome=LOST), Leaf(1.0, outcome=WON), Leaf(None, StopReason.ENV_FAULT)])
    for leaf in tree.leaves:
        tree[leaf].outcome = tree[leaf].outcome or Outcome.ENV_FAULT
        tree[leaf].metrics[JUDGE] = 0.5
    shaping = Shaping({"overlong": {"limit": 2, "buffer": 2}, "trusted_judge": {"weight": 0.5}})
    assert shaping([tree]) == {"shaping/overlong": -0.5, "shaping/trusted_judge": 0.25}
    assert [tree[leaf].metrics.get(SHAPING) for leaf in tree.leaves] == [-0.25, -0.25, None]
    assert Shaping({})([tree]) == {}


@pytest.mark.parametrize(
    ("wanted", "error", "words"),
    [
        ({"medz": {}}, UnknownName, "Did you mean 'meds'"),
        ({"meds": {"limit": 3}}, UnknownName, "option of shaping meds 'limit'"),
        ({"meds": {"by": "mood"}}, UnknownName, "'mood'"),
        ({"meds": {"scale": -1.0}}, ConfigError, "scale = -1.0"),
        ({"overlong": {"limit": 9}}, ConfigError, "overlong needs buffer"),
        ({"overlong": {"limit": 9, "buffer": 10}}, ConfigError, "0 < buffer"),
        ({"overlong": 3}, ConfigError, "must be a table"),
    ],
)
def test_what_can_not_be_added_is_refused_before_a_run(wanted, error, words):
    with pytest.raises(error, match=words):
        Shaping(wanted)


# ---------------------------------------------------------------------- failures that come back


def failed(*ways: int, name: str = "tree", outcome: Outcome = LOST) -> Tree:
    """A path of two turns for each number, which is the token of its first action."""
    tree = Tree(task_id="task", rollout_id=name)
    root = tree.add(-1, Kind.OBSERVATION, [0], origin=Origin.TEMPLATE)
    for way in ways:
        first = tree.add(root, Kind.ACTION, [way], origin=Origin.SAMPLED, logprobs=[-1.0], version=0)
        seen = tree.add(first, Kind.OBSERVATION, [1], origin=Origin.ENV)
        last = tree.add(seen, Kind.ACTION, [9], origin=Origin.SAMPLED, logprobs=[-1.0], version=0, reward=0.0)
        tree[last].stop, tree[last].outcome = StopReason.TERMINATED, outcome
    return tree


def added(tree: Tree) -> list[float]:
    return [round(tree[leaf].metrics[SHAPING], 4) for leaf in tree.leaves]


MEDS = {"meds": {"by": "actions", "scale": 0.1, "most": 0.2}}


def test_a_failure_costs_the_more_the_more_often_the_task_failed_so():
    shaping = Shaping(MEDS)
    first = [failed(5, 5, 6), failed(5, name="again")]
    shaping(first)  # nothing is known yet, and one update is counted as one
    assert [added(tree) for tree in first] == [[0.0] * 3, [0.0]]
    second = failed(5, 6, 7)
    metrics = shaping([second])
    assert added(second) == [-0.1386, -0.0693, 0.0]  # .1 · log 4, .1 · log 2
    assert metrics["shaping/meds"] == pytest.approx(-0.0693, abs=1e-4)
    third = failed(5, 6, 7)
    shaping([third])
    assert added(third) == [-0.1609, -0.1099, -0.0693]  # .1 · log 5, log 3, log 2
    assert repeated_penalty([10**9], scale=0.1, most=0.2).tolist() == [-0.2]


def test_successes_and_paths_that_were_cut_are_no_failures():
    shaping = Shaping(MEDS)
    for outcome in (WON, CUT):
        shaping([failed(5, outcome=outcome)])
    tree = failed(5)
    shaping([tree])
    assert added(tree) == [0.0]
    won = failed(5, outcome=WON)
    shaping([won])
    assert added(won) == [0.0]


def test_other_tasks_have_failures_of_their_own():
    shaping, other = Shaping(MEDS), failed(5)
    other.task_id = "another"
    shaping([failed(5)])
    shaping([other])
    assert added(other) == [0.0]


def test_what_was_remembered_survives_a_checkpoint():
    shaping, resumed = Shaping(MEDS), Shaping(MEDS)
    shaping([failed(5, 5, 6)])
    resumed.load(json.loads(json.dumps(shaping.state())))
    trees = [failed(5, 6), failed(5, 6)]
    for way, tree in zip((shaping, resumed), trees, strict=True):
        way([tree])
    assert added(trees[0]) == added(trees[1]) == [-0.1099, -0.0693]
    assert resumed.state() == shaping.state()


def test_tasks_that_were_played_longest_ago_are_forgotten(monkeypatch):
    monkeypatch.setattr("turngym.trainers.credit.shaping.REMEMBERED", 2)
    shaping = Shaping(MEDS)
    for task in ("a", "b", "a", "c"):
        tree = failed(5)
        tree.task_id = task
        shaping([tree])
    assert sorted(shaping.state()["failures"]) == ["a", "c"]


# ---------------------------------------------------------------------- a judge


def judged(*paths: tuple[Outcome, float]) -> Tree:
    tree = grow([Leaf(float(outcome is WON), outcome=outcome) for outcome, _ in paths])
    for leaf, (_, opinion) in zip(tree.leaves, paths, strict=True):
        tree[leaf].metrics[JUDGE] = opinion
    return tree


def test_a_judge_counts_as_far_as_he_agrees_with_the_outcomes():
    agrees = judged((WON, 1.0), (WON, 0.6), (LOST, 0.8))
    assert trusted_judge(agrees, agrees.leaves, Memory()).tolist() == pytest.approx([0.3, 0.18, 0.24])
    differs = judged((WON, 0.2), (LOST, 0.7))
    # exp(.2 − .7) = .6065
    expected = [0.3 * 0.6065 * 0.2, 0.3 * 0.6065 * 0.7]
    assert trusted_judge(differs, differs.leaves, Memory()).tolist() == pytest.approx(expected, abs=1e-4)
    late = trusted_judge(agrees, agrees.leaves, Memory(updates=500))
    assert late.tolist() == pytest.approx([0.3 / np.e, 0.18 / np.e, 0.24 / np.e])


def test_a_judge_alone_decides_nothing():
    for outcome in (WON, LOST):
        tree = judged((outcome, 1.0), (outcome, 0.0))
        assert trusted_judge(tree, tree.leaves, Memory()).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("opinion", [1.5, -0.1, float("nan"), None])
def test_a_path_without_a_sound_score_is_named(opinion):
    tree = judged((WON, 0.5), (LOST, 0.5))
    leaf = tree.leaves[1]
    if opinion is None:
        del tree[leaf].metrics[JUDGE]
    else:
        tree[leaf].metrics[JUDGE] = opinion
    with pytest.raises(CreditError, match=f"trusted_judge: tree: leaf {leaf} has the score"):
        Shaping({"trusted_judge": {}})([tree])


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=9))
def test_trust_is_a_share_and_falls_with_what_the_judge_likes_in_failures(paths):
    scores, right = np.array([s for s, _ in paths]), np.array([r for _, r in paths])
    trust = judge_trust(scores, right)
    assert 0 <= trust <= 1
    if right.any() and not right.all():
        assert trust >= judge_trust(np.where(right, scores, np.minimum(scores + 0.1, 1)), right)


# ---------------------------------------------------------------------- contexts


def contexts(count: int, leaf: Leaf) -> Turn | Leaf:
    return Turn([contexts(count - 1, leaf)], starts_context=True) if count > 1 else leaf


def test_three_contexts_and_one_are_two_rollouts():
    # per-segment statistics would give +.5 and −1.5
    tree = grow([contexts(3, Leaf(1.0)), 0.0])
    assert len(tree.segments(tree.leaves[0])) == 3
    found = score("grpo", tree).advantages
    assert [found[n] for n in actions(tree)] == pytest.approx([0.7071] * 3 + [-0.7071], abs=1e-4)
    memory = score("dr_grpo", tree).advantages  # no deviation: overwritten memories
    assert [memory[n] for n in actions(tree)] == [0.5] * 3 + [-0.5]


def test_an_overlong_rollout_is_masked_in_all_its_contexts_and_stays_in_the_statistics():
    tree = grow([contexts(3, Leaf(0.0, StopReason.TURNS)), 1.0, 1.0])
    credit = score("grpo", tree)
    assert sorted(credit.advantages) == actions(tree)[-2:]
    assert (credit.rollouts, credit.masked) == (3, 1)
    assert list(credit.advantages.values()) == pytest.approx(
        [0.5774] * 2, abs=1e-4
    )  # mean 2/3, deviation .5774


def test_a_summary_is_trained_with_the_advantage_of_its_rollout():
    tree = Tree(task_id="t", rollout_id="summarised")
    tree.add(-1, Kind.OBSERVATION, [0], origin=Origin.TEMPLATE)

    def sampled(parent: int, kind: Kind, reward: float | None = None) -> int:
        return tree.add(parent, kind, [1], origin=Origin.SAMPLED, logprobs=[-1.0], version=0, reward=reward)

    asked = tree.add(sampled(0, Kind.ACTION), Kind.OBSERVATION, [2], origin=Origin.HARNESS)
    summary = sampled(asked, Kind.SUMMARY)
    fresh = tree.add(summary, Kind.OBSERVATION, [0, 1], origin=Origin.HARNESS, starts_context=True)
    won, lost = sampled(fresh, Kind.ACTION, 1.0), sampled(0, Kind.ACTION, 0.0)
    tree[won].stop = tree[lost].stop = StopReason.TERMINATED
    found = score("grpo", tree).advantages
    assert found[summary] == found[won] == pytest.approx(0.7071, abs=1e-4)
    assert found[lost] == pytest.approx(-0.7071, abs=1e-4)
