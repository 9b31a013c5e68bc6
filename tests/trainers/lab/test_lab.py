"""What the lab says of rules: claims held, and wrong turns found out."""

import functools
import json
import subprocess
import sys

import numpy as np
import pytest

from turngym.errors import ConfigError, UnknownName
from turngym.trainers.credit import RULES, get_rule
from turngym.trainers.lab import (
    PROBLEMS,
    TRIALS,
    Forest,
    Quality,
    Trial,
    exact,
    figures,
    judge,
    run,
    sample,
    verdicts,
)
from turngym.trainers.lab.estimates import Samples, oracle_variance, tree_samples, z_limit
from turngym.trainers.lab.forest import Plan
from turngym.trainers.lab.study import estimates, oracle


def claims_unbiased(rule: str) -> bool:
    return any(line.strip().startswith("Unbiased") for line in (RULES[rule].__doc__ or "").splitlines())


def test_every_rule_is_tried_as_it_comes():
    assert set(RULES) <= set(TRIALS)
    assert all(TRIALS[name].rule == name for name in RULES)


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_claims_in_the_lab_what_its_docstring_claims(rule):
    claims = {trial.claim for trial in TRIALS.values() if trial.rule == rule}
    assert claims_unbiased(rule) == ("unbiased" in claims)
    assert ("Biased by a constant factor only" in (RULES[rule].__doc__ or "")) == ("scaled" in claims)


UNBIASED = [name for name, trial in TRIALS.items() if trial.claim != "biased"]


@functools.cache
def quality(name: str, problem: str, trees: int) -> Quality:
    trial, mdp = TRIALS[name], PROBLEMS[problem]
    return judge(estimates(trial, forest(problem, trial.plan, trees)), exact(mdp), 1.0)


@functools.cache
def forest(problem: str, plan: Plan, trees: int) -> Forest:
    return sample(PROBLEMS[problem], plan, trees, roots=3, seed=1)


@pytest.mark.parametrize("name", UNBIASED)
@pytest.mark.parametrize(("problem", "trees"), [("bandit", 20_000), ("stopping", 20_000), ("traps", 3000)])
def test_what_claims_to_be_unbiased_is_unbiased(name, problem, trees):
    """Fewer trees and problems than the command has, and the same limit."""
    found = quality(name, problem, trees)
    z = found.tilt_z if TRIALS[name].claim == "scaled" else found.bias_z
    assert z < z_limit(100)
    assert found.scale == pytest.approx(2 / 3 if TRIALS[name].claim == "scaled" else 1, abs=0.05)


def test_a_baseline_by_turn_is_biased_where_the_policy_may_stop_and_nowhere_else_and_ours_is_not():
    biased = quality("turn_index", "stopping", 20_000)
    assert biased.tilt_z > 20
    assert quality("turn_index", "sparse", 5000).bias_z < z_limit(100)  # every episode has ten turns
    assert quality("tree", "stopping", 20_000).bias_z < z_limit(100)
    # it forgets late turns, which nobody else may have reached
    assert PROBLEMS["stopping"].components[biased.astray].startswith("turn 4")


@pytest.mark.parametrize(("name", "problem"), [("tree_failed", "traps"), ("tree_finished", "stopping")])
def test_forks_that_looked_ahead_are_found_out(name, problem):
    assert quality(name, problem, 5000).bias_z > z_limit(100)


def test_a_rule_that_gives_exact_advantages_is_judged_to_be_what_it_is():
    mdp = PROBLEMS["traps"]
    drawn = sample(mdp, "group", 20_000, roots=3, seed=2)
    found = tree_samples(drawn, oracle(drawn))
    said = judge(found, exact(mdp), oracle_variance(found, 3))
    assert said.bias_z < z_limit(said.components)
    assert said.sign_error.value == said.silent == 0
    # one rollout with exact advantages is the unit of ESS, and costs a third of a tree
    assert said.ess == pytest.approx(128 / (said.steps / 3), rel=0.05)


def test_the_wrong_sign_everywhere_is_an_error_of_1():
    drawn = sample(PROBLEMS["random"], "group", 1000, roots=3, seed=2)
    right = oracle(drawn)
    for credit in right:
        credit.advantages.update({node: -a for node, a in credit.advantages.items()})
    found = judge(tree_samples(drawn, right), exact(drawn.mdp), 1.0)
    assert found.sign_error.value == 1
    assert found.scale == pytest.approx(-1, abs=0.2)


def test_numbers_by_hand():
    """Two estimates of a gradient with one component, 1 (thrice) and 3 (once), where 1 is right."""
    samples = Samples(
        gradient=np.array([[1.0], [3.0]]),
        count=np.array([3, 1]),
        order=np.array([0, 0, 1, 0]),
        steps=np.array([100.0, 200.0]),
        replayed=np.array([0.0, 100.0]),
        wrong=np.array([1.0, 0.0]),
        signed=np.array([2.0, 2.0]),
        due=np.array([4.0, 2.0]),
    )
    mdp = PROBLEMS["bandit"]
    known = exact(mdp)
    object.__setattr__(known, "gradient", np.array([1.0]))
    said = judge(samples, known, 3.0)
    # mean 1.5, variance over n .75, standard error sqrt(.75 / 3) = .5
    assert said.bias_z == pytest.approx(1.0)
    assert said.bias.value == pytest.approx(0.0)  # (1.5 − 1)² is what the noise explains
    assert said.scale == pytest.approx(1.5)
    assert said.tilt_z == 0
    # 125 env steps an estimate: one an update of 128, whose variance is .75
    assert said.variance.value == pytest.approx(0.75 * 125 / 128)
    assert said.cosine.value == pytest.approx(1.0)
    # 3 wrong of 8 with a sign; 14 should have one
    assert said.sign_error.value == pytest.approx(3 / 8)
    assert said.silent == pytest.approx(1 - 8 / 14)
    assert said.replayed == pytest.approx(25 / 125)
    assert said.ess == pytest.approx(1.5**2 * 3.0 / 0.75 * 128 / 125)


def test_rules_over_batches_see_all_trees_of_an_update():
    drawn = sample(PROBLEMS["stopping"], "group", 1000, roots=3, seed=0)
    size = round(128 / (drawn.steps @ drawn.count / 1000))
    found = estimates(Trial(rule="reinforce_pp_baseline"), drawn)
    assert len(found.order) == 1000 // size
    first = drawn.spread().trees[:size]
    by_hand = tree_samples(drawn.spread().head(size), get_rule("reinforce_pp_baseline")(first))
    assert found.gradient[0] == pytest.approx(by_hand.gradient.mean(0))


def test_figures_name_what_every_rule_came_to():
    found = figures(run(samples=1000, rules=["rloo", "grpo"], problems=["bandit"], workers=1))
    for rule in ("rloo", "grpo"):
        assert {f"{name}/{rule}" for name in ("bias_z", "limit_z", "cosine", "sign_error", "ess")} <= set(
            found
        )
    assert found["bias_z/rloo"] < found["limit_z/rloo"] < found["bias_z/grpo"]
    assert found["claims_refuted"] == 0


def test_the_same_seed_gives_the_same_numbers_whatever_the_number_of_processes():
    def numbers(workers: int) -> dict[str, float]:
        return figures(run(samples=1000, rules=["tree"], problems=["bandit", "stopping"], workers=workers))

    assert numbers(1) == numbers(2)


def test_a_claim_that_does_not_hold_is_refuted(monkeypatch):
    from turngym.trainers.lab import study

    results = run(samples=40_000, rules=["grpo"], problems=["stopping"], workers=1)
    assert not verdicts(results)[0].refuted  # it claims to be biased
    monkeypatch.setattr(study, "TRIALS", {"grpo": Trial(rule="grpo", claim="unbiased")})
    assert verdicts(results)[0].refuted


def test_bad_input_is_refused():
    with pytest.raises(UnknownName, match="Did you mean 'grpo'"):
        run(rules=["gpro"])
    with pytest.raises(UnknownName, match="Did you mean 'stopping'"):
        run(problems=["stoping"])
    with pytest.raises(ConfigError, match="samples ≥ 1000"):
        run(samples=10)
    with pytest.raises(UnknownName, match="Did you mean 'coin'"):
        sample(PROBLEMS["bandit"], "coins", 10, roots=2, seed=0)


def test_the_command_prints_the_table_and_writes_figures_page_and_plot(tmp_path):
    done = subprocess.run(
        [
            *(sys.executable, "-m", "turngym", "lab", "rloo", "turn_index", "--problem", "stopping"),
            *("--samples", "2000", "--workers", "1", "--no-off-policy", "--json", str(tmp_path / "lab.json")),
            *("--docs", str(tmp_path / "docs")),
        ],
        capture_output=True,
        text=True,
        check=True,
        env={"COLUMNS": "200", "PATH": "", "PYTHONUTF8": "1"},
    )
    assert "rloo" in done.stdout
    assert "turn_index" in done.stdout
    assert "bias_z/rloo" in json.loads((tmp_path / "lab.json").read_text())["figures"]
    page = (tmp_path / "docs" / "credit.md").read_text()
    assert "| turn_index | group | biased |" in page
    assert (tmp_path / "docs" / "credit.png").stat().st_size > 5000
