"""The critic: where it speaks, that it learns, and that the policy is none the wiser."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from scored_trees import HASH, VOCABULARY, random_tree
from small_models import tiny_model
from turngym.errors import ConfigError, HarnessFault, TreeError
from turngym.trainers.config import CriticConfig, LossConfig, OptimiserConfig, PolicyConfig, TrainConfig
from turngym.trainers.credit import NEEDS_VALUES, RULES, apply, get_rule
from turngym.trainers.critic import Critic, make_critic
from turngym.trainers.layouts import get_layout
from turngym.trainers.learner import Learner
from turngym.trainers.model import checkpoint_activations, with_adapter
from turngym.trainers.value_rows import value_rows
from turngym.tree import Kind, Origin, Tree
from turngym.types import StopReason


def model_of(seed: int = 0, kind: str = "llama") -> Any:
    return tiny_model(kind, seed=seed, vocabulary=VOCABULARY)


def rewarded(parents: list[int], seed: int = 0) -> Tree:
    """Every action pays 0 or 1."""
    tree = random_tree(parents, seed)
    rng = np.random.default_rng(seed)
    for node in tree:
        if node.is_action:
            node.reward = float(rng.integers(2))
    return tree


FORKED = [0, 1, 1, 2, 3, 0, 6, 6]


def critic(
    model: Any, *, where: str = "states", layout: str = "flat", seed: int = 0, **options: Any
) -> Critic:
    return Critic(
        model,
        CriticConfig(**{"kind": "probe", **options}),
        where=where,  # type: ignore[arg-type]
        gamma=1.0,
        truncated="mask",
        layout=get_layout(layout, model),  # type: ignore[arg-type]
        micro_tokens=64,
        seed=seed,
    )


def speaking(found: Critic) -> Critic:
    """With a head that says something else at every place."""
    generator = torch.Generator().manual_seed(1)
    for parameter in found.head.parameters():
        torch.nn.init.normal_(parameter, generator=generator)
    return found


def expected_values(found: Critic, model: Any, ids: np.ndarray) -> np.ndarray:
    """`(T,)` V behind each token of a context, by the model's own account of its last hidden states."""
    with torch.no_grad():
        out = model(input_ids=torch.tensor(ids, dtype=torch.long)[None], output_hidden_states=True)
        return found.head(out.hidden_states[-1][0])[:, 0].numpy()


@pytest.mark.parametrize("layout", ["flat", "packed"])
@pytest.mark.parametrize("kind", ["probe", "network"])
def test_the_value_of_a_state_is_read_behind_its_last_token(kind: str, layout: str) -> None:
    model, tree = model_of(), rewarded(FORKED)
    found = speaking(critic(model, kind=kind, layout=layout, hidden=4))
    found.read([tree])
    for node in tree:
        if any(tree[child].is_action for child in tree.children(node.index)):
            value = expected_values(found, model, tree.context(node.index))[-1]
            assert node.metrics["value"] == pytest.approx(value, abs=1e-4)
        else:
            assert "value" not in node.metrics


@pytest.mark.parametrize("layout", ["flat", "packed"])
def test_the_value_before_a_token_has_not_seen_it(layout: str) -> None:
    model, tree = model_of(), rewarded(FORKED)
    found = speaking(critic(model, where="tokens", layout=layout))
    found.read([tree])
    for node in tree:
        if not node.is_action:
            assert node.values is None
            continue
        value = expected_values(found, model, tree.context(node.index))[-node.ids.size - 1 : -1]
        assert node.values == pytest.approx(value, abs=1e-4)


def test_packed_forwards_compute_each_token_once() -> None:
    tree = rewarded(FORKED)
    rows = value_rows(tree, "states")
    (part,) = get_layout("packed", model_of()).parts(rows, 10_000)
    contexts = {
        tuple(tree.context(node.index)[: n + 1].tolist())
        for node in tree
        if any(tree[child].is_action for child in tree.children(node.index))
        for n in range(tree.context(node.index).size)
    }
    assert part.tokens == len(contexts) < sum(row.ids.size for row in rows)
    places = [int(node) for row in rows for node in row.nodes]
    assert len(places) == len(set(places))


def test_a_template_between_prompt_and_action_is_not_a_place() -> None:
    tree = Tree(task_id="t", rollout_id="t", renderer_hash=HASH)
    tree.add(-1, Kind.OBSERVATION, [1, 2], origin=Origin.ENV, starts_context=True)
    tree.add(0, Kind.ACTION, [3, 4, 9], origin=[0, 0, 2], logprobs=[-1, -1, np.nan], version=0, reward=1.0)
    tree[1].stop = StopReason.TERMINATED
    (row,) = value_rows(tree, "tokens")
    assert row.targets.tolist() == [2, 3]
    (row,) = value_rows(tree, "states")
    assert (row.targets.tolist(), row.nodes.tolist(), row.ids.tolist()) == ([2], [0], [1, 2])


def test_a_path_that_was_cut_has_a_value_at_its_end_and_a_fault_has_none() -> None:
    tree = rewarded([0, 0])
    cut, broken = tree.leaves
    tree[cut].stop, tree[broken].stop = StopReason.TURNS, StopReason.ENV_FAULT
    assert [n for row in value_rows(tree, "states") for n in row.nodes.tolist()] == [0, cut]
    tree[cut].stop = StopReason.ENV_FAULT
    assert value_rows(tree, "states") == []


def test_a_state_before_the_first_token_is_refused() -> None:
    tree = Tree(task_id="t", rollout_id="empty", renderer_hash=HASH)
    tree.add(-1, Kind.OBSERVATION, [], origin=Origin.ENV, starts_context=True)
    tree.add(0, Kind.ACTION, [3], origin=Origin.SAMPLED, logprobs=[-1], version=0)
    tree[1].stop = StopReason.TERMINATED
    with pytest.raises(TreeError, match="empty: node 0 asks for a value before the first token"):
        value_rows(tree, "states")


# ---------------------------------------------------------------------- learning


def test_it_says_0_at_first_and_what_it_learns_from_is_what_it_judged() -> None:
    tree = rewarded(FORKED)
    found = critic(model_of(), hidden=8)
    reading = found.read([tree])
    assert {float(v) for values in reading.values.values() for v in values} == {0.0}
    apply(get_rule("turn_gae", gamma=1.0, lam=1.0), [tree])
    first = found.fit([tree], reading)
    assert first["critic/explained_variance"] == 0.0
    assert first["critic/targets"] == sum(
        any(tree[c].is_action for c in tree.children(node.index)) for node in tree
    )
    assert found.read([tree]).values != reading.values
    assert tree[0].metrics["value"] != 0.0


def mazes(update: int) -> list[Tree]:
    """Chains of three turns whose prompt says how much they will pay, and noise besides."""
    rng = np.random.default_rng(update)
    trees = []
    for n in range(24):
        tree = Tree(task_id="t", rollout_id=f"{update}/{n}", renderer_hash=HASH)
        good = n % 2
        node = tree.add(-1, Kind.OBSERVATION, [7, 30 + good], origin=Origin.ENV, starts_context=True)
        for _ in range(3):
            node = tree.add(
                node, Kind.ACTION, rng.integers(0, 20, 2), origin=Origin.SAMPLED, logprobs=[-1, -1], version=0
            )
            tree[node].reward = 0.5 * good + float(rng.normal(0, 0.1))
            last = node
            node = tree.add(node, Kind.OBSERVATION, [7, 30 + good], origin=Origin.ENV)
        tree[node].stop = StopReason.TERMINATED
        assert tree[last].is_action
        trees.append(tree)
    return trees


@pytest.mark.parametrize("where", ["states", "tokens"])
@pytest.mark.parametrize("loss", ["mse", "huber"])
def test_what_it_learnt_explains_rollouts_that_it_has_not_seen(where: str, loss: str) -> None:
    found = critic(model_of(), where=where, loss=loss, lr=0.02, epochs=8)
    for update in range(6):
        trees = mazes(update)
        statistics = found.fit(trees, found.read(trees))
    assert statistics["critic/explained_variance"] > 0.5
    assert statistics["critic/loss"] < 0.15
    assert statistics["critic/grad_norm"] > 0


def test_a_network_learns_what_the_hidden_states_of_the_policy_do_not_show() -> None:
    model = model_of()
    with torch.no_grad():
        model.model.embed_tokens.weight[31] = model.model.embed_tokens.weight[
            30
        ]  # the policy can't tell them apart
    quality = {}
    for kind in ("probe", "network"):
        found = critic(model, kind=kind, lr=0.01, epochs=8)
        for update in range(6):
            trees = mazes(update)
            statistics = found.fit(trees, found.read(trees))
        quality[kind] = statistics["critic/explained_variance"]
    assert quality["probe"] < 0.4
    assert quality["network"] > 0.6


def test_targets_that_are_unknown_are_left_out_and_equal_ones_explain_nothing() -> None:
    trees = [rewarded([0], seed=s) for s in range(2)]
    for tree in trees:
        tree[1].reward = 1.0
    trees[1][trees[1].leaves[0]].stop = StopReason.TURNS  # masked
    found = critic(model_of())
    statistics = found.fit(trees, found.read(trees))
    assert statistics["critic/targets"] == 1
    assert "critic/explained_variance" not in statistics
    assert statistics["critic/loss"] < 1.0
    nothing = found.fit(trees[1:], found.read(trees[1:]))
    assert nothing == {"critic/targets": 0.0}


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    model, tree = model_of(), rewarded(FORKED)
    found = critic(model)
    reading = found.read([tree])
    reading.hidden[0][1][0] = float("nan")
    with pytest.raises(HarnessFault, match="critic's gradient is nan"):
        found.fit([tree], reading)
    assert all(not p.any() for p in found.head.parameters())


def test_what_all_states_share_is_taken_out_once_and_for_all() -> None:
    trees = [rewarded(FORKED, seed=s) for s in range(2)]
    found = critic(model_of())
    seen = torch.cat([hidden for _, hidden in found.read(trees[:1]).hidden])
    standard = found.head[0](seen)
    torch.testing.assert_close(standard.mean(0), torch.zeros(32), rtol=0, atol=1e-4)
    torch.testing.assert_close(standard.std(0, correction=0), torch.ones(32), rtol=1e-3, atol=0)
    found.read(trees[1:])
    assert torch.equal(found.head[0](seen), standard)


@pytest.mark.parametrize("kind", ["probe", "network"])
def test_layouts_and_the_cut_into_forwards_change_nothing(kind: str) -> None:
    trees = [rewarded(FORKED, seed=s) for s in range(2)]
    heads = []
    for layout, micro_tokens in (("flat", 16), ("packed", 1000)):
        found = critic(model_of(), kind=kind, layout=layout, lr=0.01)
        found.micro_tokens = micro_tokens
        for _ in range(2):
            found.fit(trees, found.read(trees))
        heads.append(torch.cat([p.flatten() for p in found.head.parameters()]))
    torch.testing.assert_close(heads[0], heads[1], rtol=1e-3, atol=1e-5)


def test_activations_may_be_computed_again() -> None:
    tree, heads = rewarded(FORKED), []
    for again in (False, True):
        model = model_of()
        if again:
            checkpoint_activations(model)
        found = critic(model, kind="network", layout="packed", lr=0.01)
        found.fit([tree], found.read([tree]))
        heads.append(torch.cat([p.flatten() for p in found.parameters]))
    torch.testing.assert_close(heads[0], heads[1])


# ---------------------------------------------------------------------- the policy


@pytest.mark.parametrize("kind", ["probe", "network"])
@pytest.mark.parametrize("rank", [0, 2])
def test_the_policy_is_to_the_bit_what_it_would_be_without_a_critic(kind: str, rank: int) -> None:
    weights = []
    for watched in (False, True):
        model = with_adapter(model_of(), PolicyConfig(lora_rank=rank), seed=0)
        learner = Learner(model, loss=LossConfig(), optimiser=OptimiserConfig(lr=1e-2), renderer_hash=HASH)
        found = critic(model, kind=kind, hidden=4) if watched else None
        output, names = model.get_output_embeddings(), list(model.state_dict())
        for seed in range(2):
            tree, state = rewarded(FORKED, seed=seed), torch.get_rng_state()
            if found is not None:
                before = [p.clone() for p in found.parameters]
                found.fit([tree], found.read([tree]))
                assert all(p.grad is None for p in learner.parameters) or seed
                assert any(not torch.equal(a, b) for a, b in zip(before, found.parameters, strict=True))
            assert torch.equal(state, torch.get_rng_state())
            learner.update([tree])
        assert model.get_output_embeddings() is output
        assert list(model.state_dict()) == names
        weights.append([p.detach() for p in learner.parameters])
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


def test_a_network_of_an_adapter_trains_an_adapter() -> None:
    model = with_adapter(model_of(), PolicyConfig(lora_rank=2), seed=0)
    found = critic(model, kind="network", lr=0.01)
    before = {name: p.clone() for name, p in found.trunk.named_parameters()}
    tree = rewarded(FORKED)
    for _ in range(2):  # an adapter's second matrix is 0 at first, as is the head
        found.fit([tree], found.read([tree]))
    moved = {name for name, p in found.trunk.named_parameters() if not torch.equal(p, before[name])}
    assert moved
    assert all("lora_" in name for name in moved)
    assert not any("base_layer" in name for name in found.state()["weights"])


def test_frozen_attention_stays_and_the_rest_learns() -> None:
    found = critic(model_of(), kind="network", freeze_attention=True, lr=0.01)
    before = {name: p.clone() for name, p in found.trunk.named_parameters()}
    tree = rewarded(FORKED)
    for _ in range(2):
        found.fit([tree], found.read([tree]))
    still = {name for name, p in found.trunk.named_parameters() if torch.equal(p, before[name])}
    assert still == {name for name in before if "self_attn" in name}


@pytest.mark.parametrize("options", [{}, {"kind": "network", "freeze_attention": True}, {"hidden": 3}])
def test_a_loaded_critic_is_the_one_that_was_saved(options: dict[str, Any]) -> None:
    trees = [rewarded(FORKED, seed=s) for s in range(3)]
    straight = critic(model_of(), lr=0.01, **options)
    for tree in trees[:2]:
        straight.fit([tree], straight.read([tree]))
    resumed = critic(model_of(seed=0 if options.get("kind") is None else 5), lr=0.01, seed=9, **options)
    resumed.load(copy.deepcopy(straight.state()))
    for found in (straight, resumed):
        found.fit(trees[2:], found.read(trees[2:]))
    states = (straight.state()["weights"], resumed.state()["weights"])
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    if options.get(
        "kind"
    ):  # also what is frozen came from the checkpoint, not from the policy of the second run
        assert any("self_attn" in name for name in states[0])


# ---------------------------------------------------------------------- what is refused


def made(*settings: str, model: Any = None) -> Critic | None:
    model = model or model_of()
    return make_critic(TrainConfig().override(settings), model, layout=get_layout("flat", model), seed=0)


def test_a_critic_is_made_exactly_for_the_rules_that_read_one() -> None:
    assert made("credit.rule=grpo") is None
    found = made(
        "credit.rule=turn_gae", "critic.kind=probe", "credit.options={gamma=0.5, truncated='bootstrap'}"
    )
    assert found is not None
    assert found.returns == {"gamma": 0.5, "lam": 1.0, "truncated": "bootstrap"}
    assert set(NEEDS_VALUES) <= set(RULES)


@pytest.mark.parametrize("rule", NEEDS_VALUES)
def test_each_rule_that_reads_a_critic_finds_its_values_where_the_critic_writes_them(rule: str) -> None:
    found = made(f"credit.rule={rule}", "critic.kind=probe")
    assert found is not None
    tree = rewarded(FORKED)
    reading = found.read([tree])
    apply(get_rule(rule), [tree])
    assert found.fit([tree], reading)["critic/targets"] > 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            ["credit.rule=grpo", "critic.kind=probe"],
            "credit rule grpo reads no critic: leave critic.kind = 'probe'",
        ),
        (["credit.rule=turn_gae"], 'credit rule turn_gae needs a critic: set critic.kind = "probe"'),
        (["critic.lr=0.1"], r"critic\.lr is given, and no critic\.kind"),
        (
            ["critic.kind=probe", "critic.freeze_attention=true"],
            r'critic\.freeze_attention is of critic\.kind = "network"',
        ),
        (["critic.kind=probe", "critic.lam=1.5"], r"critic\.lam is a share"),
        (["critic.kind=probe", "critic.epochs=0"], r"critic\.epochs must be finite and at least 1"),
    ],
)
def test_settings_that_nothing_would_use_are_refused(settings: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        made(*settings)


def test_every_option_of_the_critic_has_an_effect_that_is_tested_here() -> None:
    assert {f.name for f in dataclasses.fields(CriticConfig)} == {
        *("kind", "hidden", "freeze_attention", "lam", "loss", "lr", "epochs", "grad_clip", "warmup")
    }


def test_lambda_leans_on_the_values_that_were_read() -> None:
    """With λ = 0 the target of a state is its reward plus V of the next one."""
    tree = rewarded([0, 1])
    found = speaking(critic(model_of(), lam=0.0))
    found.read([tree])
    rows = value_rows(tree, "states")
    (targets,) = (
        found._targets(tree, rows) if len(rows) == 1 else (np.concatenate(found._targets(tree, rows)),)
    )
    first, second = (i for i in range(len(tree)) if tree[i].is_action)
    behind = tree[second].parent
    assert targets == pytest.approx([tree[first].reward + tree[behind].metrics["value"], tree[second].reward])


def test_the_gradient_is_clipped() -> None:
    tree, norms = rewarded(FORKED), []
    for limit in (0.0, 1e-3):
        found = critic(model_of(), grad_clip=limit, epochs=1)
        found.fit([tree], found.read([tree]))
        norms.append(float(torch.cat([p.grad.flatten() for p in found.head.parameters()]).norm()))  # type: ignore[union-attr]
    assert norms[1] == pytest.approx(1e-3, rel=1e-3)
    assert norms[0] > 1e-2


def test_a_model_without_attention_of_its_own_name_is_refused() -> None:
    model = model_of()
    for layer in model.model.layers:
        layer.self_attn.__class__ = type("Mixer", (layer.self_attn.__class__,), {})
    with pytest.raises(ConfigError, match="has no layers called attention"):
        critic(model, kind="network", freeze_attention=True)


def test_a_model_that_learns_nothing_has_no_network() -> None:
    with pytest.raises(ConfigError, match="nothing that learns"):
        critic(model_of().requires_grad_(False), kind="network")
