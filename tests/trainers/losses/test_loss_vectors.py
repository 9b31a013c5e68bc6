"""Losses and their statistics in numbers computed by hand."""

from __future__ import annotations

import math

import pytest
import torch

from turngym.errors import ConfigError, UnknownName
from turngym.trainers.losses import (
    Aggregation,
    TokenBatch,
    entropy_bonus,
    entropy_of,
    entropy_shaped,
    get_loss,
    get_penalty,
    kl,
    kl_penalty,
    pg,
    ppo,
)


def batch(ratios: list[float], advantages: list[float], **fields) -> TokenBatch:
    behaviour = torch.full((len(ratios),), -1.5)
    return TokenBatch(
        logprobs=behaviour + torch.tensor(ratios).log(),
        loss_mask=torch.ones(len(ratios), dtype=torch.bool),
        denominator=fields.pop("denominator", 1.0),
        behaviour_logprobs=behaviour,
        advantages=torch.tensor(advantages),
        **fields,
    )


def slope(loss, tokens: TokenBatch) -> float:
    """d loss / d log π of the only token."""
    tokens.logprobs.requires_grad_()
    value, _ = loss(tokens)
    (gradient,) = torch.autograd.grad(value, tokens.logprobs)
    return float(gradient)


# clip 0.2 below and 0.28 above, dual clip 3; where the loss is clipped its slope is 0
@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "moves"),
    [
        (1.0, 2.0, -2.0, True),
        (1.2, 2.0, -2.4, True),  # below 1.28
        (1.5, 2.0, -2.56, False),  # −2 · 1.28
        (0.5, 2.0, -1.0, True),  # a good token that became unlikely is pulled back
        (1.0, -2.0, 2.0, True),
        (0.9, -2.0, 1.8, True),  # above .8
        (0.5, -2.0, 1.6, False),  # 2 · .8
        (1.5, -2.0, 3.0, True),  # a bad token that became likely is pushed down
        (2.9, -2.0, 5.8, True),
        (4.0, -2.0, 6.0, False),  # dual clip: 2 · 3
        (4.0, 0.0, 0.0, False),
    ],
)
def test_ppo_clips_as_computed_by_hand(ratio, advantage, loss, moves):
    rule = get_loss("ppo", clip_high=0.28)
    value, _ = rule(batch([ratio], [advantage]))
    assert float(value) == pytest.approx(loss, rel=1e-5)
    expected = -advantage * ratio if moves else 0.0  # d(−A·r)/d log π = −A·r
    assert slope(rule, batch([ratio], [advantage])) == pytest.approx(expected, rel=1e-5)


def test_dual_clip_can_be_switched_off():
    value, statistics = ppo(batch([4.0], [-2.0]), dual_clip=None)
    assert float(value) == pytest.approx(8.0)
    assert statistics["clip/dual_share"] == 0.0


def test_elpo_lets_negative_updates_reach_further_down_on_marked_tokens():
    # 1 − (.2 + .115) = .685: a ratio of .7 still moves there, and nowhere else
    extra = torch.tensor([0.115])
    assert slope(ppo, batch([0.7], [-1.0], lower_clip_extra=extra)) == pytest.approx(0.7)
    assert slope(ppo, batch([0.68], [-1.0], lower_clip_extra=extra)) == 0.0
    assert slope(ppo, batch([0.7], [-1.0])) == 0.0
    value, _ = ppo(batch([0.1, 0.1], [-1.0, -1.0], lower_clip_extra=torch.tensor([0.115, 0.0])))
    assert float(value) == pytest.approx(0.685 + 0.8)


def test_the_ratio_is_taken_to_the_proximal_policy():
    tokens = batch([1.5], [1.0], proximal_logprobs=torch.tensor([-1.5 + math.log(1.4)]))
    value, statistics = ppo(tokens)
    assert float(value) == pytest.approx(-1.5 / 1.4)  # inside the clip
    assert statistics["ratio/mean"] == pytest.approx(1.5 / 1.4)
    assert statistics["kl/behaviour_k3"] == pytest.approx(1.5 - math.log(1.5) - 1)


def test_pg_is_reinforce_on_the_sampled_policy():
    value, _ = pg(batch([1.0, 1.0], [2.0, -1.0], denominator=4.0))
    assert float(value) == pytest.approx(-1 / 4)
    assert slope(pg, batch([1.0], [2.0])) == pytest.approx(-2.0)  # −A ∇log π


def test_pg_weighs_with_the_ratio_elsewhere():
    value, statistics = pg(batch([0.5, 2.0], [1.0, 1.0]))
    assert float(value) == pytest.approx(-2.5)
    assert (statistics["ratio/mean"], statistics["ratio/max"]) == pytest.approx((1.25, 2.0))


def test_weights_and_denominator():
    value, _ = pg(batch([1.0, 1.0], [1.0, 1.0], weights=torch.tensor([0.5, 0.25]), denominator=3.0))
    assert float(value) == pytest.approx(-0.25)


def test_ppo_statistics():
    _, statistics = ppo(batch([1.5, 0.5, 4.0, 1.0], [1.0, -1.0, -1.0, 5.0]))
    k3 = [r - math.log(r) - 1 for r in (1.5, 0.5, 4.0, 1.0)]
    assert statistics == {
        "loss/ppo": pytest.approx(-1.2 + 0.8 + 3.0 - 5.0),
        "tokens/trained": 4.0,
        "ratio/mean": pytest.approx(7 / 4),
        "ratio/max": pytest.approx(4.0),
        "kl/behaviour_k3": pytest.approx(sum(k3) / 4),
        "clip/low_share": 0.25,
        "clip/high_share": 0.25,
        "clip/dual_share": 0.25,
    }


@pytest.mark.parametrize("name", ["pg", "ppo"])
@pytest.mark.parametrize("gap", [-1e4, -60.0, 60.0, 1e4])
def test_a_wild_ratio_stays_finite(name, gap):
    tokens = batch([1.0], [1.0])
    tokens = TokenBatch(
        logprobs=torch.tensor([gap], requires_grad=True),
        loss_mask=tokens.loss_mask,
        denominator=1.0,
        behaviour_logprobs=torch.zeros(1),
        advantages=torch.ones(1),
    )
    value, statistics = get_loss(name)(tokens)
    value.backward()
    assert math.isfinite(value.item())
    assert statistics["ratio/max"] == pytest.approx(math.exp(20 if gap > 0 else -20), rel=1e-4)
    assert torch.isfinite(tokens.logprobs.grad).all()


# ---------------------------------------------------------------------- penalties


def test_kl_estimators():
    sampled, other = torch.tensor([-1.0]), torch.tensor([-1.0 + math.log(2.0)])
    d = math.log(2.0)
    assert float(kl(sampled, other, estimator="k1")) == pytest.approx(-d)
    assert float(kl(sampled, other, estimator="k2")) == pytest.approx(d**2 / 2)
    assert float(kl(sampled, other, estimator="k3")) == pytest.approx(2 - d - 1)


def test_k1_and_k3_are_unbiased():
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.2, 0.6])
    exact = float((p * (p / q).log()).sum())
    for estimator in ("k1", "k3"):
        assert float((p * kl(p.log(), q.log(), estimator=estimator)).sum()) == pytest.approx(exact, abs=1e-6)


def test_what_the_penalty_says_about_its_gradient():
    reference = torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64)
    logits = torch.tensor([0.3, -0.4, 0.1], dtype=torch.float64, requires_grad=True)

    def expected_gradient(estimator: str) -> torch.Tensor:
        policy = torch.softmax(logits, 0)
        per_token = kl(torch.log_softmax(logits, 0), reference.log(), estimator=estimator)
        return torch.autograd.grad((policy.detach() * per_token).sum(), logits)[0]

    def divergence_gradient(reverse: bool) -> torch.Tensor:
        policy = torch.softmax(logits, 0)
        a, b = (policy, reference) if reverse else (reference, policy)
        return torch.autograd.grad((a * (a / b).log()).sum(), logits)[0]

    torch.testing.assert_close(expected_gradient("k1"), torch.zeros(3, dtype=torch.float64))
    torch.testing.assert_close(expected_gradient("k2"), divergence_gradient(reverse=True))
    torch.testing.assert_close(expected_gradient("k3"), divergence_gradient(reverse=False))


def test_kl_penalty_reads_the_reference():
    tokens = batch([1.0, 1.0], [0.0, 0.0], reference_logprobs=torch.tensor([-1.5, -2.5]), denominator=2.0)
    value, statistics = kl_penalty(tokens, estimator="k2")
    assert float(value) == statistics["loss/kl"] == pytest.approx(0.25)
    assert statistics["kl/reference_k3"] == pytest.approx((math.exp(-1) + 1 - 1) / 2)


def test_entropy_shaping_adds_the_doubt_and_turns_no_sign():
    # α = .4, κ = 2: min(.4·H, |A|/2) = min(.4, .5), min(.4, .5), min(.8, .1), 0, min(0, .5)
    advantages = torch.tensor([1.0, -1.0, -0.2, 0.0, 1.0])
    entropy = torch.tensor([1.0, 1.0, 2.0, 3.0, 0.0], requires_grad=True)
    shaped, statistics = entropy_shaped(advantages, entropy, scale=0.4)
    assert shaped.tolist() == pytest.approx([1.4, -0.6, -0.1, 0.0, 1.0])
    assert statistics == {"entropy/shaping": pytest.approx(0.18)}  # (.4 + .4 + .1) / 5
    assert not shaped.requires_grad
    with pytest.raises(ConfigError, match="cap > 1"):
        entropy_shaped(advantages, entropy, scale=0.4, cap=1.0)


def test_entropy_of_a_distribution():
    logits = torch.tensor(
        [[0.0, 0.0, 0.0, 0.0], [5.0, -math.inf, 5.0, -math.inf], [0.0, math.log(3.0), -math.inf, -math.inf]]
    )
    expected = [math.log(4), math.log(2), -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))]
    assert entropy_of(logits).tolist() == pytest.approx(expected)
    logits.requires_grad_()
    entropy_of(logits).sum().backward()
    assert torch.isfinite(logits.grad).all()


def test_entropy_bonus_is_minus_the_mean():
    value, statistics = entropy_bonus(
        batch([1.0, 1.0], [0.0, 0.0], entropy=torch.tensor([0.5, 1.5]), denominator=2.0)
    )
    assert float(value) == statistics["loss/entropy"] == pytest.approx(-1.0)
    assert statistics["entropy/mean"] == pytest.approx(1.0)


# ---------------------------------------------------------------------- aggregation


def test_three_aggregations_of_two_rollouts():
    # rollout 0 has one trained token with loss 6, rollout 1 three with loss 1, 1, 4; one token is not trained
    losses = torch.tensor([6.0, 1.0, 1.0, 4.0, 99.0])
    mask = torch.tensor([True, True, True, True, False])
    rollout = torch.tensor([0, 1, 1, 1, 1])

    def aggregate(aggregation: Aggregation) -> float:
        weights = aggregation.weights(mask, rollout)
        return float((losses * weights).sum()) / aggregation.denominator(tokens=4, rollouts=2)

    assert aggregate(Aggregation()) == pytest.approx(12 / 4)
    assert aggregate(Aggregation(name="constant", length=10)) == pytest.approx(12 / 20)
    assert aggregate(Aggregation(name="sequence_mean")) == pytest.approx((6 + 2) / 2)


def test_aggregation_refuses_what_it_cannot_honour():
    with pytest.raises(UnknownName, match="Did you mean 'token_mean'"):
        Aggregation(name="token-mean")
    with pytest.raises(ConfigError, match="positive number of tokens"):
        Aggregation(name="constant")
    with pytest.raises(ConfigError, match="the others take none"):
        Aggregation(length=10)
    with pytest.raises(ConfigError, match="needs sequence_ids"):
        Aggregation(name="sequence_mean").weights(torch.ones(2, dtype=torch.bool))


# ---------------------------------------------------------------------- registry and inputs


def test_unknown_losses_and_options_are_refused_with_the_nearest():
    with pytest.raises(UnknownName, match="Did you mean 'ppo'"):
        get_loss("popo")
    with pytest.raises(UnknownName, match=r"'clip_hi'.*Did you mean 'clip_high'"):
        get_loss("ppo", clip_hi=0.3)
    with pytest.raises(UnknownName, match="option of loss pg 'clip_low'"):
        get_loss("pg", clip_low=0.2)
    with pytest.raises(UnknownName, match="estimator of penalty kl_penalty"):
        get_penalty("kl_penalty", estimator="k4")


@pytest.mark.parametrize(
    "options", [{"clip_low": 1.2}, {"clip_high": -0.1}, {"dual_clip": 1.0}, {"clip_low": "0.2"}]
)
def test_values_out_of_range_are_refused(options):
    with pytest.raises(ConfigError, match="ppo"):
        get_loss("ppo", **options)
    with pytest.raises(ConfigError, match="ppo"):
        ppo(batch([1.0], [1.0]), **options)


def test_a_lower_clip_below_0_is_refused():
    with pytest.raises(ConfigError, match="above 1"):
        ppo(batch([1.0], [1.0], lower_clip_extra=torch.tensor([0.9])))


@pytest.mark.parametrize(
    ("loss", "field"),
    [
        (pg, "behaviour_logprobs"),
        (pg, "advantages"),
        (ppo, "behaviour_logprobs"),
        (ppo, "advantages"),
        (kl_penalty, "reference_logprobs"),
        (entropy_bonus, "entropy"),
    ],
)
def test_a_missing_input_names_loss_and_field(loss, field):
    ones = torch.ones(2)
    fields = dict.fromkeys(("behaviour_logprobs", "advantages", "reference_logprobs", "entropy"), ones)
    fields[field] = None
    with pytest.raises(ConfigError, match=f"loss {loss.__name__} needs {field}"):
        loss(TokenBatch(logprobs=ones, loss_mask=ones.bool(), denominator=1.0, **fields))


def test_a_batch_refuses_shapes_masks_and_denominators_that_do_not_fit():
    logprobs, mask = torch.zeros(3), torch.ones(3, dtype=torch.bool)
    with pytest.raises(ConfigError, match=r"advantages has shape \(2,\), logprobs \(3,\)"):
        TokenBatch(logprobs=logprobs, loss_mask=mask, denominator=1.0, advantages=torch.zeros(2))
    with pytest.raises(ConfigError, match=r"\(N,\)"):
        TokenBatch(logprobs=torch.zeros(1, 3), loss_mask=mask[None], denominator=1.0)
    with pytest.raises(ConfigError, match="loss_mask must be bool"):
        TokenBatch(logprobs=logprobs, loss_mask=torch.ones(3), denominator=1.0)
    for denominator in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ConfigError, match="denominator"):
            TokenBatch(logprobs=logprobs, loss_mask=mask, denominator=denominator)
