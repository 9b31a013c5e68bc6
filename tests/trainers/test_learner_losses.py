"""Every registered loss can be trained with, and cuts, layouts and processes change nothing about it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from scored_trees import HASH, VOCABULARY, assert_close_gradients, random_tree
from small_models import tiny_model
from turngym.agents.policies import load_policy
from turngym.agents.policies.local import LocalPolicy
from turngym.errors import ConfigError, HarnessFault, TreeError
from turngym.tasks.task import procedural
from turngym.trainers.anchors import Average, frozen
from turngym.trainers.config import LossConfig, OptimiserConfig
from turngym.trainers.inputs import Totals
from turngym.trainers.learner import Learner
from turngym.trainers.losses import CORRECTIONS, LOSSES
from turngym.trainers.rows import rows_of
from turngym.trainers.schedule import minibatches
from turngym.trainers.warmup import demonstrate
from turngym.tree import Tree
from turngym.types import StopReason

WIDE = {"clip_low": 0.9, "clip_high": 9.0}
TEACHER = "local:sprout"
CONFIGS = {
    **{name: LossConfig(name=name) for name in LOSSES},
    "decoupled_ppo": LossConfig(name="decoupled_ppo", proximal="start"),
    "decoupled_ppo average": LossConfig(name="decoupled_ppo", proximal="average"),
    "decoupled_ppo between": LossConfig(name="decoupled_ppo", proximal="between"),
    "gspo": LossConfig(name="gspo", options=WIDE),
    "gspo turn": LossConfig(name="gspo", options={**WIDE, "level": "turn"}),
    "tbpo": LossConfig(name="tbpo", options={**WIDE, "mismatch_low": 0.01, "mismatch_high": 99.0}),
    "sao": LossConfig(name="sao", options={"clip_low": 1.0, "clip_high": 99.0}),
    "turn_constant": LossConfig(aggregation="turn_constant", horizon=3),
    "next_observation": LossConfig(next_observation=0.3),
    "entropy_shaping": LossConfig(entropy_shaping=0.4, entropy=0.01),
}
DISTILLED = ("distillation", "dense_distillation")


def taught(loss: LossConfig, **options: object) -> Learner:
    """A learner of a small model in double precision; teachers are small models as well."""
    model = tiny_model("opt", seed=1, vocabulary=VOCABULARY).double()
    learner = Learner(
        model,
        loss=loss,
        optimiser=OptimiserConfig(**{"grad_clip": 0.0, "lr": 1e-3, **options}),  # type: ignore[arg-type]
        renderer_hash=HASH,
    )
    if loss.teacher:
        learner._teacher = frozen(tiny_model("opt", seed=2, vocabulary=VOCABULARY).double())
    return learner


@pytest.fixture
def any_teacher(monkeypatch: pytest.MonkeyPatch) -> None:
    """How a teacher is loaded is tested elsewhere: here it only has to be a model, which `taught` puts in."""
    monkeypatch.setattr("turngym.trainers.learner.teacher", lambda spec, model: None)


def configured(case: str) -> LossConfig:
    config = CONFIGS[case]
    return replace(config, teacher=TEACHER) if case in DISTILLED else config


FORKED, APART = [0, 1, 1, 2, 0, 3, 4, 4], [0, 1, 2, 0, 4, 0, 6, 7]
"""Parents of actions: some that several rollouts share, or none."""
OF_ROLLOUTS = ("gspo", "tbpo", "sequence_tis", "mis", "geometric_rejection", "k3_rejection")
"""What looks at each rollout as a whole."""


def trees(count: int = 3, case: str = "") -> list[Tree]:
    return [random_tree(APART if case in OF_ROLLOUTS else FORKED, seed) for seed in range(count)]


@pytest.mark.usefixtures("any_teacher")
@pytest.mark.parametrize("case", CONFIGS)
def test_every_loss_trains_and_no_cut_or_layout_changes_it(case: str) -> None:
    results = {}
    for name, options in {
        "whole": {},
        "cut": {"micro_tokens": 30},
        "packed": {"layout": "packed"},
        "checkpointed": {"layout": "packed", "micro_tokens": 60, "checkpointing": True},
    }.items():
        learner = taught(configured(case), **options)
        learner.optimiser.step = lambda closure=None: None  # type: ignore[assignment,method-assign]
        statistics = learner.update(trees(case=case))
        results[name] = statistics, {n: p.grad for n, p in learner.model.named_parameters()}
    statistics, gradients = results.pop("whole")
    assert statistics["learner/grad_norm"] > 0
    for other, theirs in results.values():
        assert_close_gradients(gradients, theirs, 1e-7)  # columns of rows are in single precision
        for key in ("loss/", "ratio/mean", "learner/grad_norm"):
            for name in (n for n in statistics if n.startswith(key)):
                assert other[name] == pytest.approx(statistics[name], rel=1e-6, abs=1e-8), name


@pytest.mark.parametrize("name", CORRECTIONS)
def test_every_correction_weighs_whole_batches(name: str) -> None:
    config = LossConfig(proximal="start", correction=name)
    norms = []
    for micro in (10_000, 30):
        learner = taught(config, micro_tokens=micro)
        statistics = learner.update(trees(case=name))
        assert {"correction/mean", "correction/max"} <= statistics.keys()
        norms.append(statistics["learner/grad_norm"])
    assert norms[0] == pytest.approx(norms[1], rel=1e-6)


def test_the_proximal_policy_is_the_one_at_the_start_of_the_update() -> None:
    """The recorded log-probs are far off, so against them the ratio is not 1."""
    assert taught(LossConfig()).update(trees())["ratio/max"] > 2
    assert taught(LossConfig(proximal="start")).update(trees())["ratio/max"] == pytest.approx(1, abs=1e-5)
    late = taught(LossConfig(proximal="start"), epochs=2).update(trees())
    assert late["ratio/max"] > 1.0001  # in the second pass the weights have moved, the anchor has not


def test_an_average_of_the_weights_follows_and_is_corrected_for_its_start() -> None:
    weight = torch.nn.Parameter(torch.tensor([1.0]))
    dropout = torch.nn.Dropout()
    average = Average(dropout, [weight], 0.5)
    with average() as model:
        assert model is dropout
        assert not dropout.training
        assert weight.tolist() == [1.0]
    assert dropout.training
    weight.data = torch.tensor([4.0])
    average.step()
    with average():
        assert weight.tolist() == [3.0]  # (0.5 · 0.5 · 1 + 0.5 · 4) / 0.75
    assert weight.tolist() == [4.0]
    other = Average(dropout, [torch.nn.Parameter(torch.tensor([9.0]))], 0.5)
    other.load(average.state())
    assert other._sums == average._sums


@pytest.mark.parametrize(
    "config",
    [
        LossConfig(aggregation="sequence_mean"),
        LossConfig(name="gspo"),
        LossConfig(name="tbpo"),
        *(LossConfig(proximal="start", correction=name) for name in OF_ROLLOUTS[2:]),
    ],
    ids=lambda config: config.correction or config.name,
)
def test_what_looks_at_whole_rollouts_refuses_actions_that_several_share(config: LossConfig) -> None:
    learner = taught(config)
    with pytest.raises(TreeError, match="t0: action 1 belongs to several rollouts"):
        learner.update(trees())
    learner.update([random_tree(APART, 0)])


def test_a_tree_without_credit_is_refused_and_one_whose_paths_were_all_cut_is_not() -> None:
    scored, unscored, cut = trees()
    for node in (*unscored, *cut):
        if node.is_action:
            node.advantage = None
    for leaf in cut.leaves:
        cut[leaf].stop = StopReason.TURNS
    learner = taught(LossConfig())
    with pytest.raises(TreeError, match="t1: no action has an advantage"):
        learner.update([scored, unscored])
    assert learner.update([scored, cut])["learner/rows"] > 0


def test_the_contexts_of_a_rollout_are_in_one_mini_batch() -> None:
    """As `sequence_mean` needs it: its weight is the same however the batch is cut."""
    long = random_tree([0, 1, 2, 3, 4, 5, 6, 7], 3)  # one rollout that restarts its context
    assert len(rows_of([long], renderer_hash=HASH)) > 1
    short = [random_tree([0], seed) for seed in range(10, 17)]
    for seed in range(3):
        rows = rows_of([long, *short], renderer_hash=HASH)
        batches = minibatches(rows, 4, np.random.default_rng(seed))
        assert len(batches) == 4
        assert sum(any(row.rollout_id == "t3" for row in batch) for batch in batches) == 1


@pytest.mark.parametrize("config", [LossConfig(kl=0.1), LossConfig(proximal="average")])
def test_anchors_begin_where_training_begins(config: LossConfig) -> None:
    """Not where the model was before a warm-up taught it."""
    learner = taught(config)
    with torch.no_grad():
        for parameter in learner.parameters:
            parameter.add_(0.5)
    learner.begin_here()
    statistics = learner.update(trees())
    if config.kl:
        assert statistics["kl/reference_k3"] == pytest.approx(0, abs=1e-9)
        other = taught(config)
        other.load(learner.state())
        for mine, theirs in zip(learner._reference._kept, other._reference._kept, strict=True):
            assert torch.equal(mine, theirs)
    else:
        assert statistics["ratio/max"] == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("name", ["p3o", "ais"])
def test_rows_without_an_advantage_stay_where_others_read_them(name: str) -> None:
    config = LossConfig(name=name) if name == "p3o" else LossConfig(proximal="start", correction=name)
    batch = trees(case="mis")
    for node in batch[0]:
        if node.is_action:
            node.advantage = 0.0
    rows = taught(config).update(batch)["learner/rows"]
    assert rows > taught(LossConfig()).update(batch)["learner/rows"]


def test_a_mean_over_rollouts_weighs_each_the_same_and_refuses_shared_actions() -> None:
    apart = [random_tree([0, 0, 0], seed) for seed in range(2)]
    learner = taught(LossConfig(aggregation="sequence_mean"))
    seen = []
    step = learner._backward

    def spy(rows, totals):  # type: ignore[no-untyped-def]
        seen.extend(rows)
        assert totals.denominator == 6
        return step(rows, totals)

    learner._backward = spy  # type: ignore[method-assign]
    learner.update(apart)
    per_rollout: dict[tuple[str, int], float] = {}
    for row in seen:
        assert row.weights is not None
        per_rollout[row.rollout_id, row.leaf] = (
            per_rollout.get((row.rollout_id, row.leaf), 0) + row.weights.sum()
        )
    assert list(per_rollout.values()) == pytest.approx([1.0] * 6)
    with pytest.raises(TreeError, match="t0: action 1 belongs to several rollouts"):
        learner.update([random_tree([0, 1, 1], 0)])


@pytest.mark.usefixtures("any_teacher")
def test_a_distilled_policy_comes_closer_to_its_teacher() -> None:
    learner = taught(configured("dense_distillation"), lr=3e-3)
    gaps = [learner.update(trees())["kl/teacher"] for _ in range(8)]
    assert gaps[-1] < 0.5 * gaps[0]


# ---------------------------------------------------------------------- stale rollouts


def test_a_step_that_rests_on_few_rollouts_is_smaller_and_the_next_one_is_not() -> None:
    """E and √E from the rows by hand; the first step of AdamW is proportional to its rate."""
    moved, rates = {}, {}
    for base in (0.0, 1.0):
        learner = taught(LossConfig(proximal="start"), ess_base=base)
        before = [p.detach().clone() for p in learner.parameters]
        rates[base] = learner.update(trees())
        moved[base] = torch.cat(
            [(p.detach() - b).flatten() for p, b in zip(learner.parameters, before, strict=True)]
        )
        assert learner.optimiser.param_groups[0]["lr"] == 1e-3
    assert "learner/lr_factor" not in rates[0.0]
    fresh = taught(LossConfig(proximal="start"))
    rows = fresh._with_proximal(rows_of(trees(), renderer_hash=HASH))
    logs: dict[tuple[str, int], float] = {}
    for row in rows:
        assert row.proximal_logprobs is not None
        gap = float((row.proximal_logprobs - row.behaviour_logprobs).sum())
        logs[row.rollout_id, row.leaf] = logs.get((row.rollout_id, row.leaf), 0.0) + gap
    assert len(logs) < len(rows)  # a rollout with several contexts is one
    weights = np.exp(np.clip(list(logs.values()), -20, 20))
    expected = (weights.sum() ** 2 / (len(weights) * (weights**2).sum())) ** 0.5
    assert 0.2 < expected < 0.95
    assert rates[1.0]["learner/lr_factor"] == pytest.approx(expected, rel=1e-5)
    torch.testing.assert_close(moved[1.0], expected * moved[0.0], rtol=1e-5, atol=1e-12)


def test_the_factor_of_a_stale_step_needs_an_anchor() -> None:
    with pytest.raises(
        ConfigError, match=r'ess_base compares trainer and engine: set loss\.proximal = "start"'
    ):
        taught(LossConfig(), ess_base=1.0)


# ---------------------------------------------------------------------- the environment, predicted


@pytest.mark.parametrize("observed", [True, False])
def test_only_what_predicts_an_action_or_an_answer_has_a_gradient(observed: bool) -> None:
    (row, *_) = rows_of([random_tree([0, 1, 2], 3)], renderer_hash=HASH, observed=observed)
    learner = taught(LossConfig(name="weighted_sft", next_observation=0.5 * observed))
    (part,) = learner.layout.parts([row], 10_000)
    logits: list[torch.Tensor] = []

    def keep(module: object, inputs: object, output: torch.Tensor) -> None:
        output.retain_grad()
        logits.append(output)

    learner.model.lm_head.register_forward_hook(keep)
    loss, _ = learner._forward(part, Totals(3.0, observed=float(row.observed.size)))
    loss.backward()
    assert logits[0].grad is not None
    touched = logits[0].grad[0].abs().sum(-1).nonzero().flatten()
    assert bool(row.observed.size) == observed
    assert touched.tolist() == sorted([*(row.targets - 1), *(row.observed - 1)])


def test_the_world_is_learnt_from_rollouts_without_a_reward() -> None:
    tasks = procedural("turngym/Corridor-v0", fold="train", count=6)
    policy = load_policy("local:sprout")
    assert isinstance(policy, LocalPolicy)
    played = asyncio.run(demonstrate(tasks, policy, epsilon=0.3, seed=0))
    for node in (node for tree in played for node in tree if node.is_action):
        node.advantage = 0.0
    surprise = {}
    for layout in ("flat", "packed"):
        learner = Learner(
            tiny_model("llama", vocabulary=policy.model.config.vocab_size, max_position_embeddings=4096),
            loss=LossConfig(next_observation=1.0),
            optimiser=OptimiserConfig(lr=1e-2, layout=layout),  # type: ignore[arg-type]
            renderer_hash=policy.renderer.hash,
        )
        surprise[layout] = [learner.update(played) for _ in range(8)]
    for steps in surprise.values():
        assert steps[0]["tokens/observation"] > 200
        assert steps[0]["learner/skipped"] == 0
        assert steps[-1]["loss/next_observation"] < 0.6 * steps[0]["loss/next_observation"]
    ends = [steps[-1]["loss/next_observation"] for steps in surprise.values()]
    assert ends[0] == pytest.approx(ends[1], rel=1e-2)


# ---------------------------------------------------------------------- faults are named


def test_a_number_that_is_not_finite_is_traced_to_its_tree() -> None:
    good, bad = random_tree([0, 0], 1), random_tree([0, 0], 2)
    learner = taught(LossConfig())
    huge = learner._target_logits

    def broken(model: object, part: object) -> torch.Tensor:
        logits = huge(model, part)  # type: ignore[arg-type]
        places = np.repeat([r.rollout_id == "t2" for r in part.rows], [r.targets.size for r in part.rows])  # type: ignore[attr-defined]
        return torch.where(torch.from_numpy(places)[:, None], torch.nan, logits)

    learner._target_logits = broken  # type: ignore[method-assign]
    with pytest.raises(HarnessFault, match=r"they are in t2$"):
        learner.update([good, bad])


def test_a_gradient_that_is_not_finite_is_traced_to_its_tree() -> None:
    good, bad = random_tree([0, 0], 1), random_tree([0, 0], 2)
    learner = taught(LossConfig())
    before = [p.clone() for p in learner.parameters]
    huge = learner._target_logits

    def steep(model: object, part: object) -> torch.Tensor:
        logits = huge(model, part)  # type: ignore[arg-type]
        if any(r.rollout_id == "t2" for r in part.rows):  # type: ignore[attr-defined]
            logits.register_hook(partial(torch.full_like, fill_value=torch.inf))
        return logits

    learner._target_logits = steep  # type: ignore[method-assign]
    with pytest.raises(
        HarnessFault, match=r"norm is (nan|inf) at update 0, from t2: this step was not taken"
    ):
        learner.update([good, bad])
    assert all(torch.equal(a, b) for a, b in zip(before, learner.parameters, strict=True))


def test_settings_that_nothing_reads_are_refused() -> None:
    with pytest.raises(ConfigError, match="correction_options are given"):
        LossConfig(correction_options={"cap": 2.0})
    with pytest.raises(ConfigError, match="proximal_decay must be below 1"):
        LossConfig(proximal_decay=1.0)
    with pytest.raises(ConfigError, match="loss sft takes no advantages"):
        taught(LossConfig(name="sft", entropy_shaping=0.4))
    with pytest.raises(ConfigError, match="ess_base is a share"):
        OptimiserConfig(ess_base=1.5)
