"""What the lab says of rules: claims held, and wrong turns found out."""

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
    Trial,
    exact,
    figures,
    judge,
    run,
    sample,
    verdicts,
)
from turngym.trainers.lab.estimates import Samples, oracle_variance, tree_samples, z_limit
from turngym.trainers.lab.run import estimates, oracle


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


def test_what_claims_to_be_unbiased_is_unbiased_everywhere():
    """Fewer trees than the command draws, and the same limit."""
    found = verdicts(
        run(samples=20_000, seed=1, rules=UNBIASED, problems=["bandit", "stopping", "traps"], workers=1)
    )
    for verdict in found:
        if verdict.trial in UNBIASED:
            assert verdict.holds, (verdict.trial, verdict.bias_z, verdict.limit)
    assert [v.scales for v in found if v.trial == "dr_grpo"] == [pytest.approx((2 / 3, 2 / 3), abs=0.02)]


def test_a_baseline_by_turn_is_biased_where_the_policy_may_stop_and_nowhere_else_and_ours_is_not():
    results = run(samples=20_000, rules=["turn_index", "tree"], problems=["stopping", "sparse"], workers=1)
    quality = {(r.trial, r.problem): r.quality for r in results}
    assert quality["turn_index", "stopping"].tilt_z > 20
    assert quality["turn_index", "sparse"].bias_z < z_limit(20)  # every episode has ten turns
    assert quality["tree", "stopping"].bias_z < z_limit(20)
    # it forgets late turns, which nobody else may have reached
    assert PROBLEMS["stopping"].components[quality["turn_index", "stopping"].astray].startswith("turn 4")


def test_forks_that_looked_ahead_are_found_out():
    results = run(samples=50_000, rules=["tree_failed", "tree_finished"], problems=["stopping"], workers=1)
    assert all(r.quality.bias_z > 6 for r in results)


def test_a_rule_that_gives_exact_advantages_is_judged_to_be_what_it_is():
    mdp = PROBLEMS["traps"]
    forest = sample(mdp, "group", 20_000, roots=3, seed=2)
    found = tree_samples(forest, oracle(forest))
    quality = judge(found, exact(mdp), oracle_variance(found, 3))
    assert quality.bias_z < z_limit(quality.components)
    assert quality.sign_error.value == quality.silent == 0
    # one rollout with exact advantages is the unit of ESS, and costs a third of a tree
    assert quality.ess == pytest.approx(128 / (quality.steps / 3), rel=0.05)


def test_the_wrong_sign_everywhere_is_an_error_of_1():
    forest = sample(PROBLEMS["random"], "group", 1000, roots=3, seed=2)
    right = oracle(forest)
    for credit in right:
        credit.advantages.update({node: -a for node, a in credit.advantages.items()})
    quality = judge(tree_samples(forest, right), exact(forest.mdp), 1.0)
    assert quality.sign_error.value == 1
    assert quality.scale == pytest.approx(-1, abs=0.2)


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
    quality = judge(samples, known, 3.0)
    # mean 1.5, variance over n .75, standard error sqrt(.75 / 3) = .5
    assert quality.bias_z == pytest.approx(1.0)
    assert quality.bias.value == pytest.approx(0.0)  # (1.5 − 1)² is what the noise explains
    assert quality.scale == pytest.approx(1.5)
    assert quality.tilt_z == 0
    # 125 env steps an estimate: one an update of 128, whose variance is .75
    assert quality.variance.value == pytest.approx(0.75 * 125 / 128)
    assert quality.cosine.value == pytest.approx(1.0)
    # 3 wrong of 8 with a sign; 14 should have one
    assert quality.sign_error.value == pytest.approx(3 / 8)
    assert quality.silent == pytest.approx(1 - 8 / 14)
    assert quality.replayed == pytest.approx(25 / 125)
    assert quality.ess == pytest.approx(1.5**2 * 3.0 / 0.75 * 128 / 125)


def test_rules_over_batches_see_all_trees_of_an_update():
    forest = sample(PROBLEMS["stopping"], "group", 1000, roots=3, seed=0)
    size = round(128 / (forest.steps @ forest.count / 1000))
    found = estimates(Trial(rule="reinforce_pp_baseline"), forest)
    assert len(found.order) == 1000 // size
    first = forest.spread().trees[:size]
    by_hand = tree_samples(forest.spread().head(size), get_rule("reinforce_pp_baseline")(first))
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
    lies = {"grpo": Trial(rule="grpo", claim="unbiased")}
    monkeypatch.setattr("turngym.trainers.lab.run.TRIALS", lies)
    monkeypatch.setattr("turngym.trainers.lab.trials.TRIALS", lies)
    (verdict,) = verdicts(run(samples=2000, problems=["stopping"], workers=1))
    assert verdict.refuted


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
            *("--samples", "2000", "--workers", "1", "--json", str(tmp_path / "lab.json")),
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
