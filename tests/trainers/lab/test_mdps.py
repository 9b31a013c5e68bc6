"""The exact values are those of the problems: by finite differences, by hand, and by playing."""

import numpy as np
import pytest

from turngym.errors import ConfigError, UnknownName
from turngym.trainers.lab.env import LabEnv
from turngym.trainers.lab.mdps import PROBLEMS, Mdp, build, exact, random_mdp


def slopes(mdp: Mdp) -> np.ndarray:
    """The gradient of the expected return by central differences."""
    out = np.zeros(mdp.logits.shape)
    for place in np.argwhere(np.isfinite(mdp.logits)):
        ends = []
        for step in (1e-5, -1e-5):
            logits = mdp.logits.copy()
            logits[tuple(place)] += step
            ends.append(exact(mdp.with_logits(logits)).value)
        out[tuple(place)] = (ends[0] - ends[1]) / 2e-5
    return out.ravel()


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_exact_gradient_is_the_slope_of_the_exact_value(name):
    mdp = PROBLEMS[name]
    assert exact(mdp).gradient == pytest.approx(slopes(mdp), abs=1e-9)
    assert np.linalg.norm(exact(mdp).gradient) > 0.04


@pytest.mark.parametrize("seed", range(5))
def test_so_it_is_in_problems_drawn_at_random(seed):
    mdp = random_mdp(seed, layers=4, width=2, actions=3)
    assert exact(mdp).gradient == pytest.approx(slopes(mdp), abs=1e-9)


def test_values_by_hand():
    mdp = build(
        "two turns",
        "",
        {"first": [(0.1, {"second": 0.5}), (0.3, {})], "second": [(1.0, {}), (0.0, {})]},
        ("a", "b"),
        logits={"first": (0.0, 0.0), "second": (0.0, np.log(3.0))},
        forks={},
    )
    known = exact(mdp)
    # second: pays 1 with chance 1/4. first: a pays .1 and leads there half the time, b pays .3
    assert known.v[1] == pytest.approx(0.25)
    assert known.q[0] == pytest.approx([0.1 + 0.5 * 0.25, 0.3])
    assert known.visits == pytest.approx([1.0, 0.25])
    # first: π (Q − V) = .5 · (.225 − .2625);  second: visits · π · (Q − V) = .25 · .25 · .75
    assert known.gradient == pytest.approx([-0.01875, 0.01875, 0.046875, -0.046875])


@pytest.mark.parametrize("name", PROBLEMS)
def test_advantages_cancel_in_every_state_and_returns_lie_in_the_unit_interval(name):
    mdp, known = PROBLEMS[name], exact(PROBLEMS[name])
    assert (mdp.policy * known.advantage).sum(1) == pytest.approx(0.0, abs=1e-12)
    reachable = mdp.policy > 0
    assert known.q[reachable].min() >= 0
    assert known.q[reachable].max() <= 1


def test_a_move_that_leads_back_is_refused():
    with pytest.raises(ConfigError, match="leads back from 'b' to 'a'"):
        build("x", "", {"a": [(0.0, {"b": 1.0})], "b": [(0.0, {"a": 1.0})]}, ("go",), forks={})
    with pytest.raises(ConfigError, match="sum to more than 1"):
        build("x", "", {"a": [(0.0, {"b": 1.5})], "b": [(0.0, {})]}, ("go",), forks={})


# ---------------------------------------------------------------------- as environments


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_problem_keeps_the_contract_of_an_environment(name):
    from turngym.envs.checker import check_env

    report = check_env(lambda: LabEnv(name), turns=4, actions=20)
    assert report.ok, str(report)


def test_an_unknown_problem_is_refused_by_its_nearest_name():
    with pytest.raises(UnknownName, match="Did you mean 'stopping'"):
        LabEnv("stoping")


def test_playing_the_policy_earns_the_exact_value():
    rng, earned = np.random.default_rng(0), []
    env = LabEnv("noisy tool")
    for seed in range(3000):
        env.reset(seed=seed)
        total, over = 0.0, False
        while not over:
            choice = rng.choice(len(env.mdp.actions), p=env.mdp.policy[env.state])
            _, reward, over, _, _ = env.step(env.mdp.actions[choice])
            total += reward
        earned.append(total)
    error = np.std(earned) / np.sqrt(len(earned))
    assert abs(np.mean(earned) - exact(env.mdp).value) < 4 * error
    assert error < 0.01


def test_what_is_hidden_is_not_in_the_observation_and_is_in_the_state_key():
    env, other = LabEnv("traps"), LabEnv("traps")
    env.reset(seed=0)
    other.reset(seed=0)
    open_, lost = env.step("safe")[0], other.step("snare")[0]
    assert open_ == lost
    assert env.state_key() != other.state_key()
