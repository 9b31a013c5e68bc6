"""Learning from a teacher, from demonstrations, and from what the environment says."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loss_batches import arrays
from turngym.errors import ConfigError, UnknownName
from turngym.trainers.losses import (
    LOSSES,
    PENALTIES,
    Aggregation,
    TeacherTopK,
    TokenBatch,
    distillation,
    divergence,
    merge,
    next_observation,
    pg,
    sft,
    weighted_sft,
)


def logits(rows: int, seed: int, vocabulary: int = 9) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(rows, vocabulary, generator=g, dtype=torch.float64)


def top(teacher: torch.Tensor, k: int) -> TeacherTopK:
    values, ids = torch.log_softmax(teacher, -1).topk(k, dim=-1)
    return TeacherTopK(ids=ids, logprobs=values)


def test_divergence_by_hand():
    student, teacher = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.9, 0.1]]).log()
    reverse = 0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(0.5 / 0.1)
    forward = 0.9 * math.log(0.9 / 0.5) + 0.1 * math.log(0.1 / 0.5)
    assert divergence(student, teacher).tolist() == pytest.approx([reverse])
    assert divergence(student, teacher, direction="forward").tolist() == pytest.approx([forward])


def test_the_tail_is_one_event():
    # teacher .6 .3 .1, student .2 .5 .3, k = 1: (.2 against .6) and (.8 against .4)
    student, teacher = torch.tensor([[0.2, 0.5, 0.3]]).log(), torch.tensor([[0.6, 0.3, 0.1]]).log()
    expected = 0.2 * math.log(0.2 / 0.6) + 0.8 * math.log(0.8 / 0.4)
    assert divergence(student, top(teacher, 1)).tolist() == pytest.approx([expected])


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), direction=st.sampled_from(["forward", "reverse"]))
def test_a_longer_cache_comes_closer_from_below(seed, direction):
    student, teacher = logits(4, seed), logits(4, seed + 1)
    exact = divergence(student, teacher, direction=direction)
    bounds = [divergence(student, top(teacher, k), direction=direction) for k in range(1, 10)]
    assert all((bound >= -1e-9).all() for bound in bounds)
    assert all((a <= b + 1e-9).all() for a, b in zip(bounds, [*bounds[1:], exact], strict=True))
    torch.testing.assert_close(bounds[-1], exact)
    zero = divergence(teacher, top(teacher, 3), direction=direction)
    torch.testing.assert_close(zero, torch.zeros(4, dtype=torch.float64), atol=1e-9, rtol=0)


@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize("k", [None, 3, 9])
def test_gradients_of_the_divergence_equal_finite_differences(direction, k):
    teacher = logits(2, seed=1)
    cache = teacher if k is None else top(teacher, k)
    student = logits(2, seed=2).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: divergence(x, cache, direction=direction), student)


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_tokens_that_cannot_be_said_add_nothing(direction):
    banned = torch.tensor([[0.0, 1.0, -math.inf, -math.inf]], requires_grad=True)
    teacher = torch.tensor([[1.0, 0.0, -math.inf, -math.inf]])
    for cache in (teacher, top(teacher, 2), top(teacher, 4)):
        value = divergence(banned, cache, direction=direction)
        value.sum().backward()
        assert torch.isfinite(value).all()
        assert torch.isfinite(banned.grad).all()
    assert divergence(banned, teacher, direction=direction).item() == pytest.approx(
        divergence(banned[:, :2], teacher[:, :2], direction=direction).item()
    )


def test_a_cache_that_sums_to_more_than_1_is_brought_back():
    cache = TeacherTopK(ids=torch.tensor([[0, 1]]), logprobs=torch.tensor([[0.7, 0.31]]).log())
    student = torch.tensor([[0.7, 0.29, 0.01]]).log()
    for direction in ("forward", "reverse"):
        assert 0 <= float(divergence(student, cache, direction=direction)) < 0.2


def test_the_policy_gradient_form_is_the_reverse_kl_in_expectation():
    teacher = torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64)
    student = torch.tensor([0.3, -0.4, 0.1], dtype=torch.float64, requires_grad=True)
    logprobs = torch.log_softmax(student, 0)
    tokens = TokenBatch(
        logprobs=logprobs,
        loss_mask=torch.ones(3, dtype=torch.bool),
        denominator=1.0,
        behaviour_logprobs=logprobs.detach(),
        teacher_logprobs=teacher.log(),
        weights=logprobs.detach().exp(),  # every token as often as it is sampled
    )
    (sampled,) = torch.autograd.grad(distillation(tokens)[0], student)
    (exact,) = torch.autograd.grad(divergence(student[None], teacher.log()[None]).sum(), student)
    torch.testing.assert_close(sampled, exact)
    k1 = float((logprobs.detach() - teacher.log()).mean())
    assert distillation(tokens)[1]["kl/teacher_k1"] == pytest.approx(k1)


def test_directions_and_shapes_are_checked():
    with pytest.raises(UnknownName, match="Did you mean 'reverse'"):
        divergence(logits(1, 0), logits(1, 1), direction="revers")
    with pytest.raises(ConfigError, match=r"both be \(N, k\)"):
        TeacherTopK(ids=torch.zeros(2, 3, dtype=torch.int64), logprobs=torch.zeros(2, 2))


# ---------------------------------------------------------------------- given tokens


def given_tokens(**fields) -> TokenBatch:
    return TokenBatch(
        logprobs=torch.tensor([-1.0, -2.0, -3.0, -5.0], requires_grad=True),
        loss_mask=torch.tensor([True, True, False, False]),
        denominator=2.0,
        **fields,
    )


def test_sft_is_the_mean_surprise():
    value, statistics = sft(given_tokens())
    assert value.item() == statistics["nll/mean"] == pytest.approx(1.5)


def test_weighted_sft_has_no_ratio():
    value, _ = weighted_sft(given_tokens(advantages=torch.tensor([1.0, -2.0, 9.0, 9.0])))
    assert value.item() == pytest.approx((1.0 - 2.0 * 2.0) / 2)


def test_next_observation_learns_from_its_own_mask_alone():
    tokens = given_tokens(
        observation_mask=torch.tensor([False, False, True, False]),
        observation_denominator=4.0,
        weights=torch.tensor(
            [1.0, 1.0, 0.0, 0.0]
        ),  # of the sampled tokens: they don't silence an observation
    )
    value, statistics = next_observation(tokens)
    value.backward()
    assert value.item() == pytest.approx(3 / 4)
    assert tokens.logprobs.grad.tolist() == [0.0, 0.0, -0.25, 0.0]
    assert statistics == {
        "loss/next_observation": pytest.approx(0.75),
        "tokens/trained": 2.0,
        "tokens/observation": 1.0,
    }


@pytest.mark.parametrize("name", sorted({*LOSSES, *PENALTIES} - {"next_observation"}))
def test_no_other_loss_looks_at_an_observation(name):
    fields, sampled = arrays(12, seed=1), torch.tensor([True, False, False] * 4)
    leaf = fields["logprobs"].clone().requires_grad_()
    loss, _ = {**LOSSES, **PENALTIES}[name](
        TokenBatch(
            loss_mask=sampled,
            observation_mask=~sampled,
            observation_denominator=1.0,
            denominator=1.0,
            effective_share=0.5,
            **{**fields, "logprobs": leaf},
        )
    )
    if loss.grad_fn is not None:
        (gradient,) = torch.autograd.grad(loss, leaf, allow_unused=True)
        assert gradient is None or torch.equal(gradient[~sampled], torch.zeros(8, dtype=torch.float64))


def test_a_part_with_observations_alone_counts_in_the_merge():
    with_both = {
        "tokens/trained": 2.0,
        "tokens/observation": 1.0,
        "loss/next_observation": 0.5,
        "ratio/mean": 3.0,
    }
    observed = {
        "tokens/trained": 0.0,
        "tokens/observation": 4.0,
        "loss/next_observation": 1.0,
        "ratio/mean": 0.0,
    }
    assert merge([with_both, observed]) == {
        "tokens/trained": 2.0,
        "tokens/observation": 5.0,
        "loss/next_observation": 1.5,
        "ratio/mean": 3.0,
    }


# ---------------------------------------------------------------------- constant number of turns


def test_turn_constant_weighs_turns_alike_and_lets_no_rollout_choose_the_divisor():
    # rollout 0 has one turn of two tokens, rollout 1 has turns of one and of three; k = 4
    losses = torch.tensor([2.0, 4.0, 5.0, 1.0, 1.0, 7.0, 99.0])
    mask = torch.tensor([True] * 6 + [False])
    turns = torch.tensor([0, 0, 1, 2, 2, 2, 2])
    rule = Aggregation(name="turn_constant", length=4)
    weights = rule.weights(mask, turn_ids=turns)
    value = float((losses * weights).sum()) / rule.denominator(tokens=6, rollouts=2)
    assert value == pytest.approx((3 + 5 + 3) / (2 * 4))
    with pytest.raises(ConfigError, match="turn_constant needs turn_ids"):
        rule.weights(mask)
    with pytest.raises(ConfigError, match="one of turns"):
        Aggregation(name="turn_constant")


def test_turn_constant_scales_a_long_failure_like_a_short_success():
    # every token of a turn has gradient A/(n_u · N · k), whether its rollout has 1 turn or 10
    rule = Aggregation(name="turn_constant", length=5)
    turns = torch.cat([torch.zeros(3), torch.arange(1, 11).repeat_interleave(3)]).long()
    mask = torch.ones(33, dtype=torch.bool)
    leaf = torch.zeros(33, requires_grad=True)
    tokens = TokenBatch(
        logprobs=leaf,
        loss_mask=mask,
        denominator=rule.denominator(tokens=33, rollouts=2),
        behaviour_logprobs=torch.zeros(33),
        advantages=torch.ones(33),
        weights=rule.weights(mask, turn_ids=turns),
    )
    pg(tokens)[0].backward()
    torch.testing.assert_close(leaf.grad, torch.full((33,), -1 / (3 * 2 * 5)))
