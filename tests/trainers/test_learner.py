"""The learner: gradients only where tokens were sampled, cuts that change nothing, LoRA and full weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from turngym.errors import ConfigError, HarnessFault, UnknownName
from turngym.trainers.config import LossConfig, OptimiserConfig, PolicyConfig
from turngym.trainers.inputs import Totals
from turngym.trainers.learner import Learner
from turngym.trainers.model import with_adapter
from turngym.trainers.rows import rows_of
from turngym.tree import Kind, Origin, Tree
from turngym.types import Outcome, StopReason

HASH = "ab" * 16
VOCABULARY = 32


def tiny_model(seed: int = 0) -> LlamaForCausalLM:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(
            LlamaConfig(
                vocab_size=VOCABULARY,
                hidden_size=16,
                intermediate_size=24,
                num_hidden_layers=2,
                num_attention_heads=2,
                max_position_embeddings=128,
                initializer_range=0.2,
            )
        )


def true_logprobs(model: LlamaForCausalLM, ids: np.ndarray) -> np.ndarray:
    """`(T - 1,)` log-probs of ids[1:] under the model."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor(ids, dtype=torch.long)[None]).logits[0, :-1]
    logprobs = torch.log_softmax(logits.float(), -1)
    return logprobs.gather(1, torch.tensor(ids[1:], dtype=torch.long)[:, None])[:, 0].numpy()


def group_tree(model: LlamaForCausalLM, advantages: list[float], *, name: str = "t", seed: int = 0) -> Tree:
    """A root prompt and one two-turn path per advantage, with the model's own log-probs."""
    rng = np.random.default_rng(seed)
    tree = Tree(task_id=name, rollout_id=name, renderer_hash=HASH)
    tree.add(-1, Kind.OBSERVATION, rng.integers(0, VOCABULARY, 5), origin=Origin.ENV, starts_context=True)
    for advantage in advantages:
        node = 0
        for turn in range(2):
            ids = rng.integers(0, VOCABULARY, int(rng.integers(2, 6)))
            whole = np.concatenate([tree.context(node), ids])
            logprobs = true_logprobs(model, whole)[-ids.size :]
            node = tree.add(
                node, Kind.ACTION, ids, origin=Origin.SAMPLED, logprobs=logprobs, version=0, reward=0.0
            )
            tree[node].advantage = advantage
            if turn == 0:
                node = tree.add(node, Kind.OBSERVATION, rng.integers(0, VOCABULARY, 3), origin=Origin.ENV)
        tree[node].stop = StopReason.TERMINATED
        tree[node].outcome = Outcome.FAILURE
    return tree


def learner(model: LlamaForCausalLM, *, loss: LossConfig | None = None, **options: object) -> Learner:
    optimiser = OptimiserConfig(**{"lr": 1e-3, "grad_clip": 0.0, **options})  # type: ignore[arg-type]
    return Learner(model, loss=loss or LossConfig(), optimiser=optimiser, renderer_hash=HASH)


def gradient(model: LlamaForCausalLM, trees: list[Tree], **options: object) -> torch.Tensor:
    """The gradient of the first optimiser step."""
    taught = learner(model, **options)
    taught.optimiser.step = lambda closure=None: None  # type: ignore[assignment,method-assign]
    taught.update(trees)
    return torch.cat([p.grad.flatten() for p in taught.parameters if p.grad is not None])


def test_the_first_gradient_is_the_policy_gradient_of_sampled_tokens() -> None:
    model = tiny_model()
    tree = group_tree(model, [1.0, -0.5])
    seen = gradient(model, [tree])
    model.zero_grad()
    total, tokens = torch.zeros(()), 0
    for leaf in tree.leaves:
        ids = torch.tensor(tree.context(leaf), dtype=torch.long)
        logprobs = torch.log_softmax(model(input_ids=ids[None]).logits[0, :-1], -1).gather(1, ids[1:, None])[
            :, 0
        ]
        at = 0
        for index in tree.path(leaf):
            node = tree[index]
            if node.is_action:
                total = total - float(node.advantage) * logprobs[at - 1 : at - 1 + node.ids.size].sum()  # type: ignore[arg-type]
                tokens += node.ids.size
            at += node.ids.size
    (total / tokens).backward()
    expected = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(seen, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["pg", "ppo"])
def test_tokens_that_were_not_sampled_get_no_gradient(name: str) -> None:
    """Tokens of the environment that the vocabulary knows nowhere else: their rows in the output layer stay put."""
    model = tiny_model()
    tree = Tree(task_id="t", rollout_id="t", renderer_hash=HASH)
    tree.add(-1, Kind.OBSERVATION, [1, 2, 30], origin=Origin.ENV, starts_context=True)
    action = tree.add(
        0, Kind.ACTION, [4, 5, 29], origin=[0, 0, 3], logprobs=[-1.0, -1.0, np.nan], version=[0, 0, -1]
    )
    tree.add(action, Kind.OBSERVATION, [30, 31], origin=Origin.ENV)
    last = tree.add(2, Kind.ACTION, [6], origin=Origin.SAMPLED, logprobs=[-1.0], version=0)
    for node in (action, last):
        tree[node].advantage = 1.0
    (row,) = rows_of([tree], renderer_hash=HASH)
    assert row.targets.tolist() == [3, 4, 8]
    # The loss as a function of logits: its derivative at every position that predicts no sampled token is 0.
    taught = learner(model, loss=LossConfig(name=name))
    logits = torch.zeros(1, row.ids.size, VOCABULARY, requires_grad=True)

    class Fixed(torch.nn.Linear):
        def forward(self, **_: object) -> object:
            return type("Output", (), {"logits": logits})()

    taught.model = Fixed(1, 1)
    (part,) = taught.layout.parts([row], 100)
    loss, _ = taught._forward(part, Totals(3.0))
    loss.backward()
    assert logits.grad is not None
    touched = sorted(set(logits.grad[0].abs().sum(-1).nonzero().flatten().tolist()))
    assert touched == [2, 3, 7]


def test_micro_batches_change_nothing() -> None:
    trees = [group_tree(tiny_model(), [1.0, -1.0, 0.5], name=str(s), seed=s) for s in range(3)]
    whole = gradient(tiny_model(), trees)
    cut = gradient(tiny_model(), trees, micro_tokens=1)
    torch.testing.assert_close(cut, whole, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("minibatches", [1, 2])
def test_trees_without_a_signal_count_in_the_denominator(minibatches: int) -> None:
    """They are left out of the forward pass to save time, which must not make the others weigh more."""
    loud = [group_tree(tiny_model(), [1.0, -1.0], name=str(s), seed=s) for s in range(2)]
    silent = [group_tree(tiny_model(), [0.0, 0.0], name=f"silent {s}", seed=s) for s in range(2)]
    alone = gradient(tiny_model(), loud, minibatches=minibatches)
    diluted = gradient(tiny_model(), loud + silent, minibatches=minibatches)
    torch.testing.assert_close(diluted, alone / 2, rtol=1e-5, atol=1e-7)


def test_a_shared_prefix_is_trained_once() -> None:
    model = tiny_model()
    tree = group_tree(model, [1.0])
    fork = tree.add(2, Kind.ACTION, [7], origin=Origin.SAMPLED, logprobs=[-1.0], version=0)
    tree[fork].advantage = -1.0
    rows = rows_of([tree], renderer_hash=HASH)
    trained = sum(row.targets.size for row in rows)
    assert trained == tree.sampled_tokens


def test_zero_advantages_move_no_weight_and_are_reported() -> None:
    model = tiny_model()
    before = [p.clone() for p in model.parameters()]
    statistics = learner(model).update([group_tree(model, [0.0, 0.0])])
    assert statistics["learner/skipped"] == 1
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_updates_raise_the_likelihood_of_what_was_good() -> None:
    model = tiny_model()
    tree = group_tree(model, [1.0, -1.0])
    good, bad = (tree.context(leaf) for leaf in tree.leaves)
    gap = true_logprobs(model, good).sum() - true_logprobs(model, bad).sum()
    taught = learner(model, lr=3e-3)
    for _ in range(5):
        taught.update([tree])
    assert true_logprobs(model, good).sum() - true_logprobs(model, bad).sum() > gap + 1


def test_lora_trains_the_adapter_alone_and_starts_at_the_base() -> None:
    base = tiny_model()
    tree = group_tree(base, [1.0, -1.0])
    ids = torch.tensor(tree.context(tree.leaves[0]), dtype=torch.long)[None]
    before = base(input_ids=ids).logits.detach().clone()
    model = with_adapter(base, PolicyConfig(lora_rank=2, lora_alpha=4), seed=1)
    torch.testing.assert_close(model(input_ids=ids).logits, before)
    frozen = {n: p.clone() for n, p in model.named_parameters() if not p.requires_grad}
    taught = Learner(
        model,
        loss=LossConfig(kl=0.1, entropy=0.01),
        optimiser=OptimiserConfig(lr=1e-2),
        renderer_hash=HASH,
    )
    assert taught.parameters
    assert all("lora_" in n for n, p in model.named_parameters() if p.requires_grad)
    first = taught.update([tree])
    assert first["loss/kl"] == pytest.approx(0, abs=1e-6)
    second = taught.update([tree])
    assert second["kl/reference_k3"] > 0
    assert all(torch.equal(p, frozen[n]) for n, p in model.named_parameters() if n in frozen)


def test_the_kl_reference_of_a_full_model_does_not_move() -> None:
    model = tiny_model()
    tree = group_tree(model, [1.0, -1.0])
    taught = learner(model, loss=LossConfig(kl=0.5), lr=1e-2)
    assert taught.update([tree])["loss/kl"] == pytest.approx(0, abs=1e-6)
    assert taught.update([tree])["kl/reference_k3"] > 1e-6


def test_the_loss_is_of_the_distribution_that_was_sampled() -> None:
    """At temperature 2 the recorded log-probs are those of logits / 2, so the first ratio is 1."""
    model = tiny_model()
    rng = np.random.default_rng(0)
    prompt, ids = rng.integers(0, VOCABULARY, 4), rng.integers(0, VOCABULARY, 3)
    whole = torch.tensor(np.concatenate([prompt, ids]), dtype=torch.long)
    with torch.no_grad():
        scaled = torch.log_softmax(model(input_ids=whole[None]).logits[0, :-1] / 2, -1)
    tree = Tree(task_id="t", rollout_id="t", renderer_hash=HASH)
    tree.add(-1, Kind.OBSERVATION, prompt, origin=Origin.ENV, starts_context=True)
    logprobs = scaled.gather(1, whole[1:, None])[-3:, 0].numpy()
    tree[tree.add(0, Kind.ACTION, ids, origin=Origin.SAMPLED, logprobs=logprobs, version=0)].advantage = 1.0
    taught = Learner(
        model, loss=LossConfig(), optimiser=OptimiserConfig(lr=0.0), renderer_hash=HASH, temperature=2.0
    )
    assert taught.update([tree])["ratio/max"] == pytest.approx(1, abs=1e-5)


def test_a_loss_that_is_not_finite_changes_nothing() -> None:
    model = tiny_model()
    tree = group_tree(model, [1.0, -1.0])
    with torch.no_grad():
        model.lm_head.weight[0, 0] = float("nan")
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(HarnessFault):
        learner(model).update([tree])
    assert all(
        torch.equal(
            a,
            b,
        )
        or a.isnan().any()
        for a, b in zip(before, model.parameters(), strict=True)
    )


def test_trees_of_another_renderer_are_refused() -> None:
    model = tiny_model()
    tree = group_tree(model, [1.0, -1.0])
    tree.renderer_hash = "cd" * 16
    with pytest.raises(ConfigError, match="same tokenizer"):
        learner(model).update([tree])


def test_options_that_nothing_honours_are_refused() -> None:
    with pytest.raises(UnknownName, match="clip_high"):
        learner(tiny_model(), loss=LossConfig(options={"clip_hig": 0.3}))
    with pytest.raises(ConfigError, match=r"needs proximal_logprobs: set loss\.proximal"):
        learner(tiny_model(), loss=LossConfig(name="decoupled_ppo"))
    with pytest.raises(ConfigError, match=r"needs teacher_divergence: set loss\.teacher"):
        learner(tiny_model(), loss=LossConfig(name="dense_distillation"))
    with pytest.raises(ConfigError, match="learns from no teacher"):
        learner(tiny_model(), loss=LossConfig(teacher="local:sprout"))
    with pytest.raises(ConfigError, match="32"):
        learner(tiny_model(), loss=LossConfig(name="distillation", teacher="local:sprout"))
    with pytest.raises(ConfigError, match="compares trainer and engine"):
        learner(tiny_model(), loss=LossConfig(correction="token_tis"))
    with pytest.raises(ConfigError, match="weighs by"):
        learner(tiny_model(), loss=LossConfig(name="pg", correction="token_tis", proximal="start"))
    with pytest.raises(ConfigError, match="constant"):
        learner(tiny_model(), loss=LossConfig(aggregation="constant"))
    with pytest.raises(ConfigError, match="temperature"):
        Learner(
            tiny_model(), loss=LossConfig(), optimiser=OptimiserConfig(), renderer_hash=HASH, temperature=0
        )


def test_state_continues_the_optimiser_exactly() -> None:
    model, trees = tiny_model(), [group_tree(tiny_model(), [1.0, -1.0], seed=s) for s in range(2)]
    straight = learner(model)
    for tree in trees:
        straight.update([tree])
    first = tiny_model()
    half = learner(first)
    half.update([trees[0]])
    second = tiny_model()
    second.load_state_dict(first.state_dict())
    resumed = learner(second)
    resumed.load(half.state())
    resumed.update([trees[1]])
    for a, b in zip(model.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
