"""Policies without a model: what they choose, with which log-prob, and what they refuse."""

from __future__ import annotations

import asyncio
import math
from collections import Counter

import numpy as np
import pytest

from rollouts import Steps, corridor, corridors
from turngym.agents.chat import ByteRenderer
from turngym.agents.policies.scripted import Expert, Mixture, Oracle, Replay
from turngym.agents.policy import Policy, Sample, SampleParams, Turn, whole_sample
from turngym.envs.text.corridor import Corridor
from turngym.errors import ConfigError, HarnessFault
from turngym.tree import Tree

CONTEXT = np.array([1], np.int32)


def started() -> Corridor:
    (task,) = corridors(1)
    env = corridor(task)
    env.reset(seed=task.seed)
    return env


def sample(policy: Policy, env: Corridor, *, seed: int = 0, index: int = 0) -> Sample:
    turn = Turn(env, env.observation, index)
    return asyncio.run(policy.sample(CONTEXT, SampleParams(seed=seed), turn))


def test_scripts_are_policies_and_games_are_experts() -> None:
    for policy in (Oracle(), Mixture(0.5), Replay([])):
        assert isinstance(policy, Policy)
        assert policy.version == 0
        assert policy.window is None
    assert isinstance(started(), Expert)
    assert not isinstance(Steps(), Expert)


def test_the_oracle_says_the_optimal_action_with_certainty() -> None:
    env = started()
    said = sample(Oracle(), env)
    assert ByteRenderer().text(said.ids) == env.optimal_action()
    assert said.logprobs.tolist() == [0.0] * said.ids.size
    assert said.finish_reason == "stop"
    assert said.ids[-1] == ByteRenderer.END


def test_an_action_chosen_whole_has_its_log_prob_on_the_first_token() -> None:
    said = whole_sample(np.array([5, 6, 7], np.int32), -1.5, 3)
    assert said.logprobs.tolist() == [-1.5, 0.0, 0.0]
    assert said.logprobs.dtype == np.float32
    assert said.version == 3


@pytest.mark.parametrize("epsilon", [0.2, 0.7])
def test_a_mixture_errs_as_often_as_it_says_and_says_so_in_its_log_prob(epsilon: float) -> None:
    env = started()
    logprobs = Counter(round(float(sample(Mixture(epsilon), env, seed=s).logprobs[0]), 5) for s in range(400))
    erred, right = round(math.log(epsilon), 5), round(math.log(1 - epsilon), 5)
    assert set(logprobs) == {erred, right}
    assert abs(logprobs[erred] / 400 - epsilon) < 4 * math.sqrt(epsilon * (1 - epsilon) / 400)


def test_the_ends_of_a_mixture() -> None:
    env = started()
    oracle = sample(Oracle(), env).ids.tolist()
    for seed in range(50):
        never = sample(Mixture(0.0), env, seed=seed)
        assert (never.ids.tolist(), never.logprobs[0]) == (oracle, 0.0)
        assert sample(Mixture(1.0), env, seed=seed).logprobs[0] == 0.0
    assert Mixture(1.0).name == "scripted:random"
    assert Mixture(0.25).name == "scripted:epsilon?epsilon=0.25"


def test_a_mixture_is_a_function_of_its_seed_and_leaves_the_world_alone() -> None:
    env = started()
    before, key = np.random.get_state()[1].tolist(), env.state_key()
    said = [sample(Mixture(1.0), env, seed=seed).ids.tobytes() for seed in range(30)]
    assert said == [sample(Mixture(1.0), env, seed=seed).ids.tobytes() for seed in range(30)]
    assert len(set(said)) > 1
    assert env.state_key() == key
    assert np.random.get_state()[1].tolist() == before


@pytest.mark.parametrize("epsilon", [-0.1, 1.1, float("nan")])
def test_an_epsilon_that_is_no_probability_is_refused(epsilon: float) -> None:
    with pytest.raises(ConfigError, match="probability"):
        Mixture(epsilon)


def test_a_script_without_an_environment_is_refused() -> None:
    with pytest.raises(ConfigError, match="pass it the turn"):
        asyncio.run(Oracle().sample(CONTEXT, SampleParams()))


def test_an_environment_that_no_script_can_play_is_refused() -> None:
    env = Steps()
    env.reset(seed=0)
    with pytest.raises(ConfigError, match="Steps has no optimal_action"):
        asyncio.run(Oracle().sample(CONTEXT, SampleParams(), Turn(env, "", 0)))


def test_a_recording_is_said_turn_by_turn_and_its_end_is_a_fault_of_the_harness() -> None:
    env, replay = started(), Replay(["one", "two"])
    assert [replay.renderer.text(sample(replay, env, index=i).ids) for i in (0, 1)] == ["one", "two"]
    with pytest.raises(HarnessFault, match="2 actions, and turn 2"):
        sample(replay, env, index=2)


def test_a_recording_reads_a_path_of_a_tree() -> None:
    tree, renderer = Tree(task_id="t", rollout_id="t"), ByteRenderer()
    node = tree.add(-1, 0, [1], origin=1)  # type: ignore[arg-type]
    for text in ("one", "two"):
        ids = renderer.action(text)
        node = tree.add(
            node, 1, ids, origin=np.zeros(ids.size, np.uint8), logprobs=np.zeros(ids.size), version=0
        )  # type: ignore[arg-type]
    assert Replay.of(tree, node, renderer).actions == ["one", "two"]


@pytest.mark.parametrize(
    "wrong", [{"max_tokens": 0}, {"temperature": -1}, {"top_p": 0}, {"top_p": 2}, {"top_k": -1}]
)
def test_sampling_parameters_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        SampleParams(**wrong)  # type: ignore[arg-type]
