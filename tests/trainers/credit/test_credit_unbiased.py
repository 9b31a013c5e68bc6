"""What each rule says about its bias, against the exact policy gradient of a small MDP.

Five states, three actions, at most three turns; action 0 stops (so the policy decides how long an episode is),
and every turn pays. The policy is a softmax table, so the exact gradient follows from dynamic programming:
∂J/∂θ[s, a] = d(s) π(a|s) (Q(s, a) − V(s)). A rule is unbiased where the mean over many trees of
Σ A(n) ∇log π(a_n|s_n) meets it within the standard error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from credit_trees import score

from turngym.trainers.credit import RULES
from turngym.trainers.credit.base import Array
from turngym.tree import Kind, Origin, Tree
from turngym.types import StopReason

TREES = 3000
ROOTS = 3

LOGITS = np.array([[0.2, 0.5, -0.3], [0.4, 0.0, 0.1], [-0.5, 0.3, 0.2], [0.0, 0.7, -0.2], [0.1, -0.4, 0.6]])
REWARD = np.array([[1.0, 0.0, -0.5], [-1.0, 0.5, 1.0], [0.5, -1.0, 0.0], [0.0, 2.0, -1.0], [1.5, -2.0, 0.5]])
NEXT = np.array([[-1, 1, 2], [-1, 3, 4], [-1, 3, 4], [-1, -1, -1], [-1, -1, -1]])  # −1: the episode is over
POLICY = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)
NORM = 1 - 2 * POLICY + (POLICY**2).sum(1, keepdims=True)
GUESS = np.array([0.3, -0.2, 0.5, 0.1, -0.4])  # what a critic that knows little says of each state
FORK = np.array([0.0, 0.9, 0.2, 0.1, 0.8])  # a coin per state, tossed when it is reached


def exact_gradient() -> Array:
    """`(5, 3)` from values (last states first) and visits (first states first)."""
    q, v, visits = np.zeros((5, 3)), np.zeros(5), np.eye(5)[0]
    for s in range(4, -1, -1):
        q[s] = REWARD[s] + np.where(NEXT[s] >= 0, v[NEXT[s]], 0.0)
        v[s] = POLICY[s] @ q[s]
    for s in range(5):
        for a in range(3):
            if NEXT[s, a] >= 0:
                visits[NEXT[s, a]] += visits[s] * POLICY[s, a]
    return visits[:, None] * POLICY * (q - v[:, None])


@dataclass
class Episode:
    """A tree that remembers the state and the choice at each of its actions."""

    tree: Tree
    rng: np.random.Generator
    taken: dict[int, tuple[int, int]]
    state_at: dict[int, int]

    def play(self, node: int, state: int, fork: Callable[[int], int]) -> None:
        """Act at observation `node`, `fork(state)` times, and play each branch to its end."""
        self.state_at[node] = state
        self.tree[node].metrics["value"] = GUESS[state]
        self.tree[node].state_key = f"{state + 1:032x}"
        for _ in range(fork(state)):
            choice = int(np.searchsorted(POLICY[state].cumsum(), self.rng.random()))
            action = self.tree.add(
                node,
                Kind.ACTION,
                [choice],
                origin=Origin.SAMPLED,
                logprobs=[np.log(POLICY[state, choice])],
                version=0,
                reward=REWARD[state, choice],
            )
            self.tree[action].metrics.update(match=1.0, score_norm=NORM[state, choice])
            self.taken[action] = (state, choice)
            if NEXT[state, choice] < 0:
                self.tree[action].stop = StopReason.TERMINATED
                continue
            below = self.tree.add(action, Kind.OBSERVATION, [3], origin=Origin.ENV)
            self.play(below, int(NEXT[state, choice]), fork)


def simulate(plan: str, seed: int) -> Episode:
    rng = np.random.default_rng(seed)
    episode = Episode(Tree(task_id="mdp", rollout_id=str(seed)), rng, {}, {})
    root = episode.tree.add(-1, Kind.OBSERVATION, [0], origin=Origin.TEMPLATE)

    def coin(state: int) -> int:
        return 1 + (plan == "coin") * int(rng.random() < FORK[state])

    episode.tree[root].metrics["prior_value"] = GUESS[0]
    episode.play(root, 0, lambda state: coin(state) if state else ROOTS)
    if plan in ("failed", "finished"):
        for leaf in episode.tree.leaves:
            forkable = [n for n in episode.tree.path(leaf)[2:] if n in episode.state_at]
            if forkable and (plan == "finished" or episode.tree.path_return(leaf) < 0):
                # "failed" looks at the return, "finished" at the length: a short path has fewer nodes to pick
                node = int(rng.choice(forkable))
                episode.play(node, episode.state_at[node], lambda _: 1)
    return episode


@functools.cache
def episodes(plan: str) -> list[Episode]:
    return [simulate(plan, seed) for seed in range(TREES)]


def estimate(episode: Episode, advantages: dict[int, float]) -> Array:
    """`(5, 3)` Σ A(n) ∇log π(a_n|s_n) over the root's children."""
    gradient = np.zeros((5, 3))
    for node, advantage in advantages.items():
        state, choice = episode.taken[node]
        gradient[state] -= advantage * POLICY[state]
        gradient[state, choice] += advantage
    return gradient / ROOTS


def z_scores(plan: str, credit: Callable[[Tree], dict[int, float]], factor: float = 1.0) -> Array:
    """`(15,)` distance of the mean estimate from the exact gradient in standard errors."""
    samples = np.array([estimate(e, credit(e.tree)) for e in episodes(plan)]).reshape(TREES, 15)
    error = samples.mean(0) - factor * exact_gradient().ravel()
    return np.abs(error) / (samples.std(0, ddof=1) / np.sqrt(TREES))


def weights(tree: Tree) -> dict[int, float]:
    """Weight of each node by its definition: chance of the walk that reaches it, times the root's children."""
    out = {}
    for node in tree:
        if node.is_action:
            chances = [1 / len(tree.children(tree[n].parent)) for n in tree.path(node.index)[1:]]
            out[node.index] = float(np.prod(chances)) * ROOTS
    return out


def test_the_exact_gradient_is_that_of_the_objective():
    def objective(logits: Array) -> float:
        policy = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        v = np.zeros(6)  # the last entry stands for the end
        for s in range(4, -1, -1):
            v[s] = policy[s] @ (REWARD[s] + v[NEXT[s]])
        return float(v[0])

    step = 1e-5
    for i, j in np.ndindex(5, 3):
        bump = np.zeros((5, 3))
        bump[i, j] = step
        slope = (objective(LOGITS + bump) - objective(LOGITS - bump)) / (2 * step)
        assert slope == pytest.approx(exact_gradient()[i, j], abs=1e-8)


@pytest.mark.parametrize("plan", ["none", "coin"])
def test_tree_is_unbiased_where_no_fork_looked_ahead(plan):
    assert z_scores(plan, lambda tree: score("tree", tree).advantages).max() < 4


def test_tree_with_all_weights_1_is_biased():
    def unweighted(tree: Tree) -> dict[int, float]:
        weight = weights(tree)
        return {node: a / weight[node] for node, a in score("tree", tree).advantages.items()}

    assert z_scores("none", unweighted).max() < 4  # without forks below the root all weights are 1
    assert z_scores("coin", unweighted).max() > 8


@pytest.mark.parametrize("plan", ["failed", "finished"])
def test_tree_is_biased_where_forks_looked_at_how_a_path_ended(plan):
    assert z_scores(plan, lambda tree: score("tree", tree).advantages).max() > 5


def test_pooling_with_the_branching_above_keeps_the_gradient_and_lowers_the_variance():
    def variance(pool: float) -> float:
        estimates = [estimate(e, score("tree", e.tree, pool=pool).advantages) for e in episodes("coin")]
        return float(np.array(estimates).var(0).sum())

    assert z_scores("coin", lambda tree: score("tree", tree, pool=2.0).advantages).max() < 4
    assert variance(2.0) < 0.9 * variance(0.0)  # .66 and .80 when this was written


def test_rloo_is_unbiased_for_root_groups_only():
    assert z_scores("none", lambda tree: score("rloo", tree).advantages).max() < 4
    assert z_scores("coin", lambda tree: score("rloo", tree).advantages).max() > 8


UNBIASED_AT_THE_ROOT = {
    "pvpo": {},
    "v_half": {"leave_one_out": True, "variance": 4.0},
    "returns_to_go": {},
    "turn_gae": {"gamma": 1.0, "lam": 1.0},
}


@pytest.mark.parametrize("name", UNBIASED_AT_THE_ROOT)
def test_a_baseline_that_knows_nothing_of_the_action_keeps_the_gradient(name):
    options = UNBIASED_AT_THE_ROOT[name]
    assert z_scores("none", lambda tree: score(name, tree, **options).advantages).max() < 4


def test_a_critic_that_errs_biases_gae_where_lambda_is_below_1():
    assert z_scores("none", lambda tree: score("turn_gae", tree, gamma=1.0, lam=0.5).advantages).max() > 8


def test_dr_grpo_is_rloo_times_a_constant():
    def advantages(tree: Tree) -> dict[int, float]:
        return score("dr_grpo", tree).advantages

    assert z_scores("none", advantages, factor=(ROOTS - 1) / ROOTS).max() < 4
    assert z_scores("none", advantages).max() > 6


BIASED = (
    "grpo",
    "tree_grpo",
    "vine",
    "elpo",
    "mc_grpo",
    "gigpo",
    "ui_s1",
    "otb",
    "trace",
    "spo",
    "tree_rl",
    "tree_po",
)
BIASED += ("appo", "murphy", "logo")


@pytest.mark.parametrize("name", BIASED)
def test_what_claims_to_be_biased_is_biased_in_direction_as_well(name):
    """Whatever the length of the estimate, it does not point along the exact gradient."""
    exact = exact_gradient().ravel()
    mean = np.mean([estimate(e, score(name, e.tree).advantages) for e in episodes("coin")], axis=0).ravel()
    factor = float(mean @ exact / (exact @ exact))
    assert z_scores("coin", lambda tree: score(name, tree).advantages, factor).max() > 8


def test_every_rule_is_judged_here():
    elsewhere = {"tree_rpo"}  # refuses the returns of this task
    over_batches = {
        "reinforce_pp",
        "reinforce_pp_baseline",
    }  # their scale is the batch's, the rest is the rule's below
    assert (
        set(RULES)
        == {"tree", "rloo", "dr_grpo"} | set(UNBIASED_AT_THE_ROOT) | set(BIASED) | elsewhere | over_batches
    )
