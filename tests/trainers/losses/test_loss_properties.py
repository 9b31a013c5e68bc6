"""What holds for every loss: nothing but trained tokens counts, and parts add up to the whole."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from turngym.errors import HarnessFault
from turngym.trainers.losses import LOSSES, PENALTIES, Aggregation, TokenBatch, merge

EVERY = {**LOSSES, **PENALTIES}
every_loss = pytest.mark.parametrize("name", EVERY)
FIELDS = (
    "logprobs",
    "behaviour_logprobs",
    "proximal_logprobs",
    "reference_logprobs",
    "advantages",
    "weights",
    "lower_clip_extra",
    "entropy",
)
READ = {
    "pg": {"logprobs", "behaviour_logprobs", "advantages", "weights"},
    "ppo": {
        "logprobs",
        "behaviour_logprobs",
        "proximal_logprobs",
        "advantages",
        "weights",
        "lower_clip_extra",
    },
    "kl_penalty": {"logprobs", "reference_logprobs", "weights"},
    "entropy_bonus": {"entropy", "weights"},
}


def arrays(tokens: int, seed: int, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)

    def normal(scale: float) -> Tensor:
        return scale * torch.randn(tokens, generator=g, dtype=torch.float64)

    logprobs = -normal(1.0).abs() - 0.1
    return {
        name: value.to(dtype)
        for name, value in {
            "logprobs": logprobs,
            "behaviour_logprobs": logprobs + normal(0.3),
            "proximal_logprobs": logprobs + normal(0.2),
            "reference_logprobs": logprobs + normal(0.5),
            "advantages": normal(1.0),
            "weights": normal(1.0).abs(),
            "lower_clip_extra": 0.1 * (normal(1.0) > 0),
            "entropy": normal(1.0).abs(),
        }.items()
    }


def evaluate(name: str, fields: dict[str, Tensor], mask: Tensor, denominator: float = 7.0):
    """Loss, statistics, and the gradients on log-probs and entropy."""
    leaves = {key: fields[key].clone().requires_grad_() for key in ("logprobs", "entropy")}
    batch = TokenBatch(loss_mask=mask, denominator=denominator, **{**fields, **leaves})
    loss, statistics = EVERY[name](batch)
    gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    filled = [
        torch.zeros_like(leaf) if g is None else g for g, leaf in zip(gradients, leaves.values(), strict=True)
    ]
    return loss.detach(), statistics, filled


@every_loss
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, 1e30, 0.0])
def test_a_token_outside_the_mask_counts_for_nothing_whatever_stands_there(name, poison):
    fields = arrays(12, seed=1)
    mask = torch.tensor([True, False, False] * 4)
    loss, statistics, gradients = evaluate(name, fields, mask)
    poisoned = {key: torch.where(mask, value, poison) for key, value in fields.items()}
    loss_2, statistics_2, gradients_2 = evaluate(name, poisoned, mask)
    assert loss == loss_2
    assert statistics == statistics_2
    for clean, dirty in zip(gradients, gradients_2, strict=True):
        assert torch.equal(clean, dirty)
        assert torch.equal(dirty[~mask], torch.zeros(8, dtype=torch.float64))
    assert any(g[mask].abs().sum() > 0 for g in gradients)


@every_loss
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_bad_number_on_a_trained_token_names_loss_and_field(name, field, poison):
    fields, mask = arrays(4, seed=2), torch.ones(4, dtype=torch.bool)
    fields[field][2] = poison
    if field not in READ[name]:
        evaluate(name, fields, mask)
        return
    with pytest.raises(HarnessFault, match=rf"loss {name}: {field} .* 1 of 4 trained tokens"):
        evaluate(name, fields, mask)


@every_loss
def test_gradients_equal_finite_differences(name):
    fields, mask, step = (
        arrays(40, seed=3),
        torch.rand(40, generator=torch.Generator().manual_seed(4)) > 0.3,
        1e-6,
    )
    _, _, gradients = evaluate(name, fields, mask)
    for key, gradient in zip(("logprobs", "entropy"), gradients, strict=True):
        slopes = torch.zeros(40, dtype=torch.float64)
        for i in range(40):
            bump = torch.zeros(40, dtype=torch.float64)
            bump[i] = step
            up, down = (evaluate(name, {**fields, key: fields[key] + s * bump}, mask)[0] for s in (1, -1))
            slopes[i] = (up - down) / (2 * step)
        torch.testing.assert_close(gradient, slopes, atol=1e-7, rtol=1e-5)


@every_loss
@settings(max_examples=40)
@given(tokens=st.integers(1, 60), cuts=st.lists(st.integers(0, 60), max_size=5), seed=st.integers(0, 1000))
def test_micro_batches_add_up_to_the_batch(name, tokens, cuts, seed):
    fields = arrays(tokens, seed, torch.float32)
    mask = torch.rand(tokens, generator=torch.Generator().manual_seed(seed)) > 0.3
    mask[0] = True
    denominator = float(mask.sum())
    loss, statistics, gradients = evaluate(name, fields, mask, denominator)
    bounds = sorted({0, tokens, *(cut for cut in cuts if cut < tokens)})
    parts = [
        evaluate(name, {key: value[a:b] for key, value in fields.items()}, mask[a:b], denominator)
        for a, b in itertools.pairwise(bounds)
    ]
    assert float(sum(part[0] for part in parts)) == pytest.approx(float(loss), abs=1e-6, rel=1e-6)
    for i, gradient in enumerate(gradients):
        torch.testing.assert_close(torch.cat([part[2][i] for part in parts]), gradient, atol=1e-6, rtol=1e-6)
    merged = merge([part[1] for part in parts])
    assert merged.keys() == statistics.keys()
    assert [merged[key] for key in statistics] == pytest.approx(list(statistics.values()), abs=1e-6, rel=1e-5)


@every_loss
@given(seed=st.integers(0, 1000))
@settings(max_examples=20)
def test_the_order_of_tokens_does_not_matter(name, seed):
    fields, mask = arrays(20, seed), torch.rand(20, generator=torch.Generator().manual_seed(seed)) > 0.4
    order = torch.randperm(20, generator=torch.Generator().manual_seed(seed + 1))
    loss, _, gradients = evaluate(name, fields, mask)
    shuffled, _, moved = evaluate(name, {key: value[order] for key, value in fields.items()}, mask[order])
    torch.testing.assert_close(shuffled, loss)
    for a, b in zip(gradients, moved, strict=True):
        torch.testing.assert_close(a[order], b)


@every_loss
def test_a_batch_without_trained_tokens_is_0_with_a_gradient_of_0(name):
    loss, statistics, gradients = evaluate(name, arrays(5, seed=5), torch.zeros(5, dtype=torch.bool))
    assert loss == 0
    assert statistics["tokens/trained"] == 0
    assert all(math.isfinite(value) for value in statistics.values())
    assert all(torch.equal(g, torch.zeros(5, dtype=torch.float64)) for g in gradients)
    assert merge([statistics]) == {"tokens/trained": 0}


@every_loss
def test_bfloat16_is_computed_in_float32(name):
    fields, mask = arrays(256, seed=6, dtype=torch.bfloat16), torch.ones(256, dtype=torch.bool)
    loss, _, gradients = evaluate(name, fields, mask, 256.0)
    exact, _, wide = evaluate(name, {key: value.double() for key, value in fields.items()}, mask, 256.0)
    assert loss.dtype == torch.float32
    assert float(loss) == pytest.approx(float(exact), rel=1e-4, abs=1e-6)
    for narrow, reference in zip(gradients, wide, strict=True):
        torch.testing.assert_close(narrow.double(), reference, rtol=1e-2, atol=1e-5)  # 8 bits of mantissa


@pytest.mark.parametrize("name", LOSSES)
def test_no_gradient_flows_into_what_was_recorded(name):
    fields = {key: value.requires_grad_() for key, value in arrays(6, seed=7).items()}
    loss, _ = EVERY[name](TokenBatch(loss_mask=torch.ones(6, dtype=torch.bool), denominator=1.0, **fields))
    loss.backward()
    assert {key for key, value in fields.items() if value.grad is not None} == {"logprobs"}


@settings(max_examples=50)
@given(lengths=st.lists(st.integers(1, 8), min_size=1, max_size=6), copies=st.integers(1, 4))
def test_a_sequence_weighs_1_whatever_its_length(lengths, copies):
    ids = torch.tensor([i for i, n in enumerate(lengths) for _ in range(n)])
    weights = Aggregation(name="sequence_mean").weights(torch.ones_like(ids, dtype=torch.bool), ids)
    sums = torch.zeros(len(lengths)).index_add(0, ids, weights)
    torch.testing.assert_close(sums, torch.ones(len(lengths)))
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(copies))
    torch.testing.assert_close(
        Aggregation(name="sequence_mean").weights(torch.ones_like(ids, dtype=torch.bool), ids[order]),
        weights[order],
    )
