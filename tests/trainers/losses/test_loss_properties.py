"""What holds for every loss: nothing but trained tokens counts, and parts add up to the whole."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from loss_batches import CASES, IDS, LEAVES, READ, SURROGATES, arrays, evaluate, loss_of, needed, token_batch
from test_metrics_page import undefined
from turngym.errors import ConfigError, HarnessFault, UnknownName
from turngym.trainers.losses import LOSSES, PENALTIES, Aggregation, TokenBatch, check_inputs, merge, pg

every_case = pytest.mark.parametrize("case", CASES)
every_name = pytest.mark.parametrize("name", {**LOSSES, **PENALTIES})
FLOATS = [name for name, value in arrays(1, seed=0).items() if value.is_floating_point()]


def poisoned(fields: dict[str, Tensor], mask: Tensor, poison: float) -> dict[str, Tensor]:
    """The fields with something else outside the mask; ids become one that is in use, or a wild one."""
    out = {}
    for key, value in fields.items():
        wrong = poison if value.is_floating_point() else (5 if poison == 0 else -(10**12))
        out[key] = torch.where(mask, value, wrong)
    return out


@every_case
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, 1e30, 0.0])
def test_a_token_outside_the_mask_counts_for_nothing_whatever_stands_there(case, poison):
    fields = arrays(12, seed=1)
    mask = torch.tensor([True, False, False] * 4)
    loss, statistics, gradients = evaluate(case, fields, mask)
    loss_2, statistics_2, gradients_2 = evaluate(case, poisoned(fields, mask, poison), mask)
    assert loss == loss_2
    assert statistics == statistics_2
    for clean, dirty in zip(gradients, gradients_2, strict=True):
        assert torch.equal(clean, dirty)
        assert torch.equal(dirty[~mask], torch.zeros(8, dtype=torch.float64))
    assert any(g[mask].abs().sum() > 0 for g in gradients)


@every_case
@pytest.mark.parametrize("field", FLOATS)
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_bad_number_on_a_trained_token_names_loss_and_field(case, field, poison):
    fields, mask = arrays(4, seed=2), torch.ones(4, dtype=torch.bool)
    fields[field][2] = poison
    name = CASES[case][0]
    if field not in READ[name]:
        evaluate(case, fields, mask)  # it is not even looked at
        return
    with pytest.raises(HarnessFault, match=rf"loss {name}: {field} .* 1 of 4 trained tokens"):
        evaluate(case, fields, mask)


@every_case
@pytest.mark.parametrize("seed", [3, 30])
def test_gradients_equal_finite_differences(case, seed):
    """Of the loss itself, or of what its docstring says that its gradient belongs to."""
    fields, step = arrays(40, seed), 1e-6
    mask = torch.rand(40, generator=torch.Generator().manual_seed(4)) > 0.3
    _, _, gradients = evaluate(case, fields, mask)
    name, options = CASES[case]
    frozen = None
    if name in SURROGATES:
        lists = {key: value.tolist() for key, value in fields.items()}
        frozen = SURROGATES[name](lists, mask.nonzero().squeeze(1).tolist(), options)
    for key, gradient in zip(LEAVES, gradients, strict=True):
        slopes = torch.zeros(40, dtype=torch.float64)
        for i in range(40):
            bump = torch.zeros(40, dtype=torch.float64)
            bump[i] = step
            moved = [fields[key] + s * bump for s in (1, -1)]
            if frozen is None:
                up, down = (float(evaluate(case, {**fields, key: m}, mask)[0]) for m in moved)
            else:
                up, down = (frozen(m.tolist()) / 7.0 if key == "logprobs" else 0.0 for m in moved)
            slopes[i] = (up - down) / (2 * step)
        torch.testing.assert_close(gradient, slopes, atol=1e-7, rtol=1e-5)


@every_case
def test_the_value_is_that_of_the_formula(case):
    name, options = CASES[case]
    if name not in SURROGATES:
        return
    fields, mask = arrays(40, seed=3), torch.rand(40, generator=torch.Generator().manual_seed(4)) > 0.3
    lists = {key: value.tolist() for key, value in fields.items()}
    expected = SURROGATES[name](lists, mask.nonzero().squeeze(1).tolist(), options)(lists["logprobs"])
    assert float(evaluate(case, fields, mask, 1.0)[0]) == pytest.approx(expected)


@every_case
@settings(max_examples=12)
@given(tokens=st.integers(1, 60), cuts=st.lists(st.integers(0, 60), max_size=5), seed=st.integers(0, 1000))
def test_micro_batches_add_up_to_the_batch(case, tokens, cuts, seed):
    """Cut anywhere, or between sequences where the loss looks at whole ones."""
    fields = arrays(tokens, seed, torch.float32)
    mask = torch.rand(tokens, generator=torch.Generator().manual_seed(seed)) > 0.3
    mask[0] = True
    denominator = float(mask.sum())
    loss, statistics, gradients = evaluate(case, fields, mask, denominator)
    bounds = {cut for cut in cuts if cut < tokens}
    if case in IDS:
        ids = fields["sequence_ids"]
        bounds = {cut for cut in bounds if cut > 0 and ids[cut] != ids[cut - 1]}
    parts = [
        evaluate(case, {key: value[a:b] for key, value in fields.items()}, mask[a:b], denominator)
        for a, b in itertools.pairwise(sorted({0, tokens, *bounds}))
    ]
    assert float(sum(part[0] for part in parts)) == pytest.approx(float(loss), abs=1e-6, rel=1e-5)
    for i, gradient in enumerate(gradients):
        torch.testing.assert_close(torch.cat([part[2][i] for part in parts]), gradient, atol=1e-6, rtol=1e-5)
    merged = merge([part[1] for part in parts])
    assert merged.keys() == statistics.keys()
    assert [merged[key] for key in statistics] == pytest.approx(list(statistics.values()), abs=1e-6, rel=1e-5)


@every_case
@given(seed=st.integers(0, 1000))
@settings(max_examples=20)
def test_the_order_of_tokens_does_not_matter(case, seed):
    fields, mask = arrays(20, seed), torch.rand(20, generator=torch.Generator().manual_seed(seed)) > 0.4
    order = torch.randperm(20, generator=torch.Generator().manual_seed(seed + 1))
    loss, _, gradients = evaluate(case, fields, mask)
    shuffled, _, moved = evaluate(case, {key: value[order] for key, value in fields.items()}, mask[order])
    torch.testing.assert_close(shuffled, loss)
    for a, b in zip(gradients, moved, strict=True):
        torch.testing.assert_close(a[order], b)


@every_case
def test_a_batch_without_trained_tokens_is_0_with_a_gradient_of_0(case):
    loss, statistics, gradients = evaluate(case, arrays(5, seed=5), torch.zeros(5, dtype=torch.bool))
    assert loss == 0
    assert statistics["tokens/trained"] == 0
    assert all(math.isfinite(value) for value in statistics.values())
    assert all(torch.equal(g, torch.zeros(5, dtype=torch.float64)) for g in gradients)
    assert merge([statistics]) == {"tokens/trained": 0}


@every_case
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 1e-2)])
def test_narrow_numbers_are_computed_in_float32(case, dtype, tolerance):
    fields, mask = arrays(256, seed=6, dtype=dtype), torch.ones(256, dtype=torch.bool)
    loss, _, gradients = evaluate(case, fields, mask, 256.0)
    exact, _, wide = evaluate(
        case, {key: v.double() if v.is_floating_point() else v for key, v in fields.items()}, mask, 256.0
    )
    assert loss.dtype == torch.float32
    assert float(loss) == pytest.approx(float(exact), rel=1e-4, abs=1e-6)
    for narrow, reference in zip(gradients, wide, strict=True):
        assert narrow.dtype == dtype
        torch.testing.assert_close(narrow.double(), reference, rtol=tolerance, atol=1e-5)


@every_case
def test_no_gradient_flows_into_what_was_recorded(case):
    fields = arrays(6, seed=7)
    for name in FLOATS:
        fields[name].requires_grad_()
    loss, _ = loss_of(case)(token_batch(case, fields, torch.ones(6, dtype=torch.bool), 1.0))
    loss.backward()
    (expected,) = READ[CASES[case][0]] & set(LEAVES)
    assert {key for key, value in fields.items() if value.grad is not None} == {expected}


# 1 + b·f = 2 where no token has moved yet: the docstring of appo says so
@pytest.mark.parametrize(
    ("case", "factor"),
    [
        ("ppo", 1),
        ("decoupled_ppo", 1),
        ("gspo", 1),
        ("gspo turn", 1),
        ("tbpo", 1),
        ("cispo", 1),
        ("sao", 1),
        ("p3o", 1),
        ("distillation", 1),
        ("weighted_sft", 1),
        ("appo", 2),
    ],
)
def test_on_the_sampled_policy_the_gradient_is_that_of_pg(case, factor):
    fields, mask = arrays(30, seed=8), torch.rand(30, generator=torch.Generator().manual_seed(9)) > 0.3
    fields["behaviour_logprobs"] = fields["proximal_logprobs"] = fields["logprobs"].clone()
    fields["teacher_logprobs"] = fields["behaviour_logprobs"] + fields["advantages"]
    gradients = []
    for loss in (loss_of(case), pg):
        logprobs = fields["logprobs"].clone().requires_grad_()
        batch = TokenBatch(
            loss_mask=mask, denominator=5.0, effective_share=1.0, **{**fields, "logprobs": logprobs}
        )
        gradients.append(torch.autograd.grad(loss(batch)[0], logprobs)[0])
    torch.testing.assert_close(gradients[0], factor * gradients[1])


@every_case
def test_a_missing_input_names_loss_and_field(case):
    name = CASES[case][0]
    check_inputs(loss_of(case), needed(case))
    for field in needed(case):
        with pytest.raises(ConfigError, match=f"loss {name} needs {field}"):
            check_inputs(loss_of(case), needed(case) - {field})


@every_name
def test_an_unknown_option_is_refused(name):
    from turngym.trainers.losses import get_loss, get_penalty

    with pytest.raises(UnknownName, match=f"option of (loss|penalty) {name} 'clip_hi'"):
        (get_loss if name in LOSSES else get_penalty)(name, clip_hi=0.2)


@every_case
def test_every_statistic_is_defined_on_the_metrics_page(case):
    _, statistics, _ = evaluate(case, arrays(5, seed=10), torch.ones(5, dtype=torch.bool))
    assert undefined(statistics) == []


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
