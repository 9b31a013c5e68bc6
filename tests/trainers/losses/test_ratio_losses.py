"""Losses with other ratios than PPO's, in numbers computed by hand."""

from __future__ import annotations

import math

import pytest
import torch

from loss_batches import arrays
from turngym.errors import ConfigError, UnknownName
from turngym.trainers.losses import (
    TokenBatch,
    appo,
    between,
    cispo,
    decoupled_ppo,
    get_loss,
    gspo,
    p3o,
    ppo,
    sao,
    tbpo,
)
from turngym.trainers.losses.appo import discounted_future


def batch(log_ratios: list[float], advantages: list[float], **fields) -> TokenBatch:
    """Tokens of one sequence and one turn; log-ratios are to the behaviour policy."""
    behaviour = torch.full((len(log_ratios),), -1.5, dtype=torch.float64)
    ids = torch.zeros(len(log_ratios), dtype=torch.int64)
    return TokenBatch(
        logprobs=(behaviour + torch.tensor(log_ratios, dtype=torch.float64)).requires_grad_(),
        loss_mask=torch.ones(len(log_ratios), dtype=torch.bool),
        denominator=1.0,
        behaviour_logprobs=behaviour,
        advantages=torch.tensor(advantages, dtype=torch.float64),
        **{"sequence_ids": ids, "turn_ids": ids, "positions": torch.arange(len(log_ratios)), **fields},
    )


def slopes(loss, tokens: TokenBatch) -> list[float]:
    """d loss / d log π of each token."""
    value, _ = loss(tokens)
    (gradient,) = torch.autograd.grad(value, tokens.logprobs)
    return gradient.tolist()


# ---------------------------------------------------------------------- whole segments


def test_gspo_gives_all_tokens_the_ratio_of_their_sequence():
    # mean of .1, −.05, .02, .03 = .025; exp = 1.02532
    tokens = batch([0.1, -0.05, 0.02, 0.03], [1.0] * 4)
    wide = get_loss("gspo", clip_high=0.1)
    value, statistics = wide(tokens)
    assert value.item() == pytest.approx(-4 * 1.02532, abs=1e-4)
    assert statistics["ratio/mean"] == statistics["ratio/max"] == pytest.approx(1.02532, abs=1e-5)
    assert slopes(wide, tokens) == pytest.approx([-1.02532] * 4, abs=1e-5)


def test_gspo_clips_a_sequence_as_one():
    # 1.02532 lies above 1 + 4e-4: a good sequence rests, although its second token became less likely; a bad one moves
    assert slopes(gspo, batch([0.1, -0.05, 0.02, 0.03], [1.0] * 4)) == [0.0] * 4
    assert slopes(gspo, batch([0.1, -0.05, 0.02, 0.03], [-1.0] * 4)) == pytest.approx([1.02532] * 4, abs=1e-5)
    _, statistics = gspo(batch([0.1, -0.05, 0.02, 0.03], [1.0] * 4))
    assert statistics["clip/high_share"] == 1.0


def test_gspo_per_turn_sets_a_ratio_per_turn():
    turns = torch.tensor([0, 0, 1, 1])
    tokens = batch([0.1, -0.05, 0.02, 0.03], [1.0] * 4, turn_ids=turns)
    # means .025 and .025: equal on purpose, then not
    assert slopes(get_loss("gspo", level="turn", clip_high=0.1), tokens) == pytest.approx(
        [-math.exp(0.025)] * 4
    )
    tokens = batch([0.04, 0.04, -0.02, -0.02], [1.0] * 4, turn_ids=turns)
    expected = [-math.exp(0.04)] * 2 + [-math.exp(-0.02)] * 2
    assert slopes(get_loss("gspo", level="turn", clip_high=0.1), tokens) == pytest.approx(expected)


def test_tbpo_binds_a_bad_sequence_from_both_sides():
    wide = get_loss("tbpo", clip_low=0.1, clip_high=0.1)
    # ratio e^.2 = 1.221 > 1.1: GSPO would push the bad sequence down, TBPO rests
    assert slopes(wide, batch([0.2, 0.2], [-1.0, -1.0])) == [0.0, 0.0]
    assert wide(batch([0.2, 0.2], [-1.0, -1.0]))[0].item() == pytest.approx(2.2)
    assert slopes(wide, batch([-0.2, -0.2], [-1.0, -1.0])) == [0.0, 0.0]
    assert slopes(wide, batch([0.05, 0.05], [-1.0, -1.0])) == pytest.approx([math.exp(0.05)] * 2)
    assert slopes(wide, batch([-0.2, -0.2], [1.0, 1.0])) == pytest.approx([-math.exp(-0.2)] * 2)


def test_tbpo_drops_a_sequence_that_the_engine_sampled_otherwise():
    # mean log π_old − log μ = .02 lies above log 1.01 = .00995
    tokens = batch([0.02, 0.02], [1.0, 1.0], proximal_logprobs=torch.full((2,), -1.48, dtype=torch.float64))
    value, statistics = tbpo(tokens)
    assert value.item() == 0.0
    assert statistics["reject/sequence_share"] == 1.0
    with pytest.raises(ConfigError, match="is above mismatch_high"):
        tbpo(tokens, mismatch_low=0.9, mismatch_high=0.5)


# ---------------------------------------------------------------------- detached weights


def test_cispo_keeps_the_gradient_of_a_token_that_ppo_would_clip():
    tokens = batch([math.log(2.0), math.log(0.5)], [1.0, -1.0])
    assert slopes(ppo, tokens) == [0.0, 0.0]
    assert slopes(cispo, tokens) == pytest.approx([-1.28, 0.5])
    _, statistics = cispo(tokens, clip_low=0.3)
    assert (statistics["cap/low_share"], statistics["cap/high_share"]) == (0.5, 0.5)
    assert slopes(get_loss("cispo", clip_low=0.3), tokens) == pytest.approx([-1.28, 0.7])


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize(
    ("options", "kept", "rejected"),
    [
        ({}, [0.71, 1.0, 3.9, 4.1, 5.9], [0.69, 6.1]),
        ({"clip_low": 0.8, "clip_high": 3.0}, [0.25, 0.69, 3.9], [0.1, 4.1]),
        ({"clip_low": 1.0}, [1e-6], [6.1]),
    ],
)
def test_sao_keeps_what_lies_inside_the_band(options, kept, rejected, advantage):
    ratios = kept + rejected
    tokens = batch([math.log(r) for r in ratios], [advantage] * len(ratios))
    expected = [-advantage * r for r in kept] + [0.0] * len(rejected)
    assert slopes(get_loss("sao", **options), tokens) == pytest.approx(expected)


def test_the_bounds_of_sao_are_strict():
    tokens = batch([math.log1p(-0.3), math.log1p(5.0)], [1.0, 1.0])
    assert slopes(sao, tokens) == [0.0, 0.0]
    _, statistics = sao(tokens)
    assert (statistics["reject/low_share"], statistics["reject/high_share"]) == (0.5, 0.5)


def test_p3o_bounds_weights_by_the_effective_share():
    # w = .8, 1, 1.3, 3: E = 6.1² / (4 · 12.33) = .7545, so every weight is .7545, and the KL weighs .2455
    ratios = [0.8, 1.0, 1.3, 3.0]
    tokens = batch([math.log(r) for r in ratios], [1.0, 1.0, -1.0, 2.0], effective_share=0.7545)
    _, statistics = p3o(tokens)
    assert statistics["cap/high_share"] == 1.0
    pull = [0.2455 * (1 - 1 / r) for r in ratios]  # d k3 / d log π = 1 − μ/π
    assert slopes(p3o, tokens) == pytest.approx(
        [p - 0.7545 * a for p, a in zip(pull, (1.0, 1.0, -1.0, 2.0), strict=True)]
    )


# ---------------------------------------------------------------------- anchors and futures


def test_decoupled_ppo_weighs_by_the_anchor_and_clips_around_it():
    anchor = torch.tensor([-1.5 + math.log(2.0), -1.5 + math.log(8.0)], dtype=torch.float64)
    # π_θ/μ = 2.2 and 8.8: π_θ/π_prox = 1.1 both, weights 2 and min(8, 5)
    tokens = batch([math.log(2.2), math.log(8.8)], [1.0, 1.0], proximal_logprobs=anchor)
    value, statistics = decoupled_ppo(tokens)
    assert value.item() == pytest.approx(-1.1 * 2 - 1.1 * 5)
    assert statistics["cap/high_share"] == 0.5
    assert slopes(decoupled_ppo, tokens) == pytest.approx([-2.2, -5.5])
    # in sum π_θ/π_prox · π_prox/μ = π_θ/μ, which is pg's weight
    assert slopes(get_loss("decoupled_ppo", cap=10.0), tokens) == pytest.approx([-2.2, -8.8])


def test_an_anchor_between_two_versions():
    logprobs, behaviour = torch.tensor([-1.0, -1.0, -1.0, -1.0]), torch.tensor([-2.0, -2.0, -2.0, -2.0])
    # anchor 8, current 10: sampled by 6 → α = 2/4, by 8 → 0, by 9 (newer than the anchor) → 0, by 10 → 0
    anchor = between(logprobs, behaviour, version=torch.tensor([6, 8, 9, 10]), proximal=8, current=10)
    assert anchor.tolist() == [-1.5, -2.0, -2.0, -2.0]


def test_the_discounted_future_of_two_sequences_in_any_order():
    # sequence 0: positions 0, 1, 3 with 1, 2, 4 at discount .5: 1 + .5·2 + .125·4 = 2.5 ; 2 + .25·4 = 3 ; 4
    values = torch.tensor([4.0, 10.0, 1.0, 2.0])
    ids, positions = torch.tensor([0, 1, 0, 0]), torch.tensor([3, 2, 0, 1])
    assert discounted_future(values, ids, positions, 0.5).tolist() == [4.0, 10.0, 2.5, 3.0]
    assert discounted_future(torch.zeros(0), ids[:0], positions[:0], 0.5).tolist() == []


def test_appo_future_sums():
    # d = 0, .2, −.1, .3 at half-life 64: sums .390 .395 .197 .300, all above log 1.2, so f = 1.2 and A' = 2.2 A
    log_ratios = [0.0, 0.2, -0.1, 0.3]
    sums = discounted_future(
        torch.tensor(log_ratios, dtype=torch.float64), torch.zeros(4).long(), torch.arange(4), 2 ** (-1 / 64)
    )
    assert sums.tolist() == pytest.approx([0.390, 0.395, 0.197, 0.300], abs=1e-3)
    value, statistics = appo(batch(log_ratios, [1.0] * 4))
    assert statistics["future/mean"] == pytest.approx(1.2)
    clipped = [1.0, math.exp(0.2), math.exp(-0.1), 1.28]
    assert value.item() == pytest.approx(-2.2 * sum(clipped))


def test_appo_drops_a_sequence_in_which_the_dual_clip_binds_twice():
    twice = batch([math.log(4.0), math.log(4.0), 0.0], [-1.0, -1.0, 1.0])
    value, statistics = appo(twice)
    assert (value.item(), statistics["reject/sequence_share"]) == (0.0, 1.0)
    once = batch([math.log(4.0), 0.0, 0.0], [-1.0, -1.0, 1.0])
    assert appo(once)[1]["reject/sequence_share"] == 0.0


def test_appo_leaves_a_ratio_above_the_dual_clip_out_of_the_future():
    _, statistics = appo(batch([0.0, math.log(4.0)], [1.0, 1.0]), future_clip=10.0)
    assert statistics["future/mean"] == 1.0


# ---------------------------------------------------------------------- inputs


def test_ids_shares_and_masks_that_do_not_fit_are_refused():
    fields = {"logprobs": torch.zeros(2), "loss_mask": torch.ones(2, dtype=torch.bool), "denominator": 1.0}
    with pytest.raises(ConfigError, match="turn_ids must be int64"):
        TokenBatch(**fields, turn_ids=torch.zeros(2))
    with pytest.raises(ConfigError, match="observation_mask must be bool"):
        TokenBatch(**fields, observation_mask=torch.zeros(2))
    with pytest.raises(ConfigError, match="both loss_mask and observation_mask"):
        TokenBatch(**fields, observation_mask=torch.tensor([True, False]))
    with pytest.raises(ConfigError, match="observation_denominator must be positive"):
        TokenBatch(**fields, observation_denominator=0.0)
    for share in (0.0, 1.1, math.nan):
        with pytest.raises(ConfigError, match="effective_share"):
            TokenBatch(**fields, effective_share=share)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gspo", {"clip_low": 1.5}),
        ("sao", {"clip_high": math.inf}),
        ("cispo", {"clip_low": -0.1}),
        ("decoupled_ppo", {"cap": 0.0}),
        ("appo", {"half_life": 0.0}),
        ("tbpo", {"mismatch_high": 0.0}),
    ],
)
def test_values_out_of_range_are_refused(name, options):
    with pytest.raises(ConfigError, match=name):
        get_loss(name, **options)


def test_an_unknown_level_is_refused_with_the_nearest():
    with pytest.raises(UnknownName, match="Did you mean 'turn'"):
        get_loss("gspo", level="turns")


def test_wild_ratios_stay_finite():
    fields = arrays(20, seed=1)
    fields["logprobs"] = torch.where(torch.arange(20) % 2 == 0, -1e4, -1e-4).double().requires_grad_()
    for name in ("gspo", "tbpo", "cispo", "sao", "p3o", "appo", "decoupled_ppo", "distillation"):
        loss, statistics = get_loss(name)(
            TokenBatch(
                loss_mask=torch.ones(20, dtype=torch.bool), denominator=1.0, effective_share=0.5, **fields
            )
        )
        (gradient,) = torch.autograd.grad(loss, fields["logprobs"])
        assert math.isfinite(loss.item())
        assert torch.isfinite(gradient).all()
        assert all(math.isfinite(value) for value in statistics.values())
