"""Losses and corrections off policy: what they are on policy, what keeps the gradient, and what can't."""

import numpy as np
import pytest

from turngym.trainers.credit import get_rule
from turngym.trainers.lab import PROBLEMS, exact, judge, sample, tree_samples, z_limit
from turngym.trainers.lab.corrections import (
    BEHAVIOURS,
    METHODS,
    Tokens,
    _kept,
    off_policy,
    run_corrections,
    tokens_of,
)


@pytest.mark.parametrize("name", METHODS)
def test_on_the_sampled_policy_every_method_is_the_policy_gradient(name):
    mdp = PROBLEMS["stopping"]
    drawn = sample(mdp, "group", 100, roots=3, seed=0)
    plain = tree_samples(drawn, get_rule("rloo")(drawn.trees))
    method = METHODS[name]
    found, kept = off_policy(method, drawn.spread() if method.over_batch else drawn, mdp)
    assert kept == pytest.approx(1)
    size = round(128 / (drawn.steps @ drawn.count / 100)) if method.over_batch else 1
    spread = plain.gradient[plain.order][: 100 // size * size].reshape(-1, size, plain.gradient.shape[1])
    assert found.gradient[found.order] == pytest.approx(spread.mean(1), abs=1e-6)


@pytest.mark.parametrize("behaviour", ["4 updates old", "16 updates old", "quantised"])
def test_the_product_over_the_path_keeps_the_gradient_and_no_weight_does_not(behaviour):
    mdp = PROBLEMS["stopping"]
    drawn = sample(mdp.with_logits(BEHAVIOURS[behaviour](mdp)), "group", 50_000, roots=3, seed=0)

    def z(method: str) -> float:
        return judge(off_policy(METHODS[method], drawn, mdp)[0], exact(mdp), 1.0).bias_z

    assert z("sequence_tis without a cap") < z_limit(100)
    assert z("nothing") > z_limit(100)
    assert z("pg") > z_limit(100)  # a token's weight forgets the tokens before


def test_no_weight_brings_back_what_was_never_sampled():
    mdp = PROBLEMS["stopping"]
    drawn = sample(mdp.with_logits(BEHAVIOURS["cut"](mdp)), "group", 5000, roots=3, seed=0)
    for name, method in METHODS.items():
        if not method.over_batch:
            assert judge(off_policy(method, drawn, mdp)[0], exact(mdp), 1.0).tilt_z > 20, name


@pytest.mark.parametrize("name", PROBLEMS)
def test_an_older_policy_is_a_worse_one(name):
    mdp = PROBLEMS[name]
    values = [
        exact(mdp.with_logits(BEHAVIOURS[old](mdp))).value for old in ("16 updates old", "4 updates old")
    ]
    assert values[0] < values[1] < exact(mdp).value


def test_tokens_of_several_trees_keep_their_paths_apart():
    drawn = sample(PROBLEMS["stopping"], "group", 200, roots=2, seed=0)
    tokens = tokens_of(drawn)
    assert len(np.unique(tokens.sequence)) == 2 * len(drawn.trees)
    twice = tokens.of(np.array([1, 0, 1]))
    length = [(tokens.tree == u).sum() for u in (1, 0)]
    assert [(twice.tree == u).sum() for u in range(3)] == [length[0], length[1], length[0]]
    assert twice.pair[: length[0]].tolist() == twice.pair[-length[0] :].tolist()
    assert len(np.unique(twice.sequence)) == 6


def test_the_share_that_weights_keep_by_hand():
    tokens = Tokens(
        tree=np.zeros(3, np.int64),
        sequence=np.arange(3),
        pair=np.zeros(3, np.int64),
        advantage=np.array([0.5, -1.0, 0.0]),
    )
    # weights 1 and 3 with counts 1 and 2; the last action has no advantage: 7² / (3 · 19)
    assert _kept(np.array([0.5, -3.0, 9.0]), tokens, np.array([1, 2, 5])) == pytest.approx(49 / 57)


def test_every_behaviour_and_method_is_tried_in_every_problem():
    found = run_corrections(samples=1000, problems=["bandit"], workers=1)
    assert {(r.behaviour, r.method) for r in found} == {(b, m) for b in BEHAVIOURS for m in METHODS}
    assert {r.quality.n > 1 for r in found} == {True}
