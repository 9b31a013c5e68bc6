"""Corrections of the mismatch between trainer and engine, and what stale weights do to an update."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loss_batches import arrays
from test_metrics_page import undefined
from turngym.errors import ConfigError, HarnessFault, UnknownName
from turngym.trainers.losses import (
    CORRECTIONS,
    LOSSES,
    TokenBatch,
    check_inputs,
    corrected,
    effective_share,
    get_correction,
    get_loss,
    ppo,
)
from turngym.trainers.losses.registry import CORRECTABLE, REJECTIONS
from turngym.trainers.losses.vcpo import (
    learning_rate_factor,
    logit_gradient_square,
    optimal_baseline,
    sequence_log_weights,
)

every_correction = pytest.mark.parametrize("name", CORRECTIONS)
BY_SEQUENCE = {"sequence_tis", "mis", "geometric_rejection", "k3_rejection"}
BY_BATCH = {"ais", "m2po"}


def batch(rho: list[float], sequences: list[int] | None = None, **fields) -> TokenBatch:
    behaviour = torch.full((len(rho),), -2.0, dtype=torch.float64)
    return TokenBatch(
        logprobs=behaviour,
        loss_mask=fields.pop("loss_mask", torch.ones(len(rho), dtype=torch.bool)),
        denominator=fields.pop("denominator", 1.0),
        behaviour_logprobs=behaviour,
        proximal_logprobs=behaviour + torch.tensor(rho, dtype=torch.float64).log(),
        advantages=fields.pop("advantages", torch.ones(len(rho))),
        sequence_ids=torch.tensor(sequences or [0] * len(rho)),
        **fields,
    )


def weights(name: str, tokens: TokenBatch, **options) -> list[float]:
    return get_correction(name, loss="ppo", **options)(tokens)[0].tolist()


RHO = [0.3, 0.6, 1.0, 1.9, 2.5]


def test_token_tis_and_icepop():
    assert weights("token_tis", batch(RHO)) == pytest.approx([0.3, 0.6, 1.0, 1.9, 2.0])
    assert weights("icepop", batch(RHO)) == pytest.approx([0.0, 0.6, 1.0, 1.9, 0.0])
    mean = (0.3 + 0.6 + 1 + 1.9 + 2) / 5
    assert weights("token_tis", batch(RHO), normalise=True) == pytest.approx(
        [w / mean for w in (0.3, 0.6, 1.0, 1.9, 2.0)]
    )


def test_whole_sequences():
    # products: 1.2 · 1.5 = 1.8 ; 2 · 2 = 4 ; .5 · .8 = .4 ; geometric means 1.342, 2, .632
    tokens = batch([1.2, 2.0, 1.5, 0.5, 2.0, 0.8], [0, 1, 0, 2, 1, 2])
    assert weights("sequence_tis", tokens) == pytest.approx([1.8, 2.0, 1.8, 0.4, 2.0, 0.4])
    assert weights("sequence_tis", tokens, normalise=True) == pytest.approx(
        [w / 1.4 for w in (1.8, 2.0, 1.8, 0.4, 2.0, 0.4)]
    )
    assert weights("mis", tokens) == pytest.approx([1.8, 0.0, 1.8, 0.0, 0.0, 0.0])
    assert weights("geometric_rejection", tokens, low=0.5, high=1.5) == [1.0, 0.0, 1.0, 1.0, 0.0, 1.0]
    # mean ρ − log ρ − 1: (.0177 + .0945)/2 = .056 ; .307 ; (.193 + .023)/2 = .108
    assert weights("k3_rejection", tokens, limit=0.1) == [1.0, 0.0, 1.0, 0.0, 0.0, 0.0]


def test_the_geometric_mean_does_not_grow_with_the_length():
    short, long = batch([1.0005] * 2), batch([1.0005] * 2000)
    assert set(weights("geometric_rejection", short)) == set(weights("geometric_rejection", long)) == {1.0}
    assert weights("mis", long) == [0.0] * 2000  # 1.0005^2000 = 2.7


def test_m2po_drops_the_fewest_outliers():
    # |d| = 1, .5, .3, .1, .05, 0: without the two largest the mean of d² is .0256 < .04, with .5 it is .0705
    d = [1.0, -0.5, 0.3, -0.1, 0.05, 0.0]
    tokens = batch([math.exp(x) for x in d])
    assert weights("m2po", tokens) == [0.0, 0.0, 1.0, 1.0, 1.0, 1.0]
    assert weights("m2po", tokens, limit=10.0) == [1.0] * 6
    assert weights("m2po", batch([3.0, 2.0])) == [0.0, 1.0]  # never all


def test_ais_corrects_more_the_further_apart_and_less_the_less_reliable():
    def mix(rho: list[float], **fields) -> float:
        return get_correction("ais", loss="ppo")(batch(rho, **fields))[1]["correction/mix"]

    assert mix([1.0, 1.0]) == 0.0
    assert mix([1.05, 0.95]) < mix([1.2, 0.8])
    assert mix([math.exp(0.2), math.exp(-0.2)] * 4) > mix([math.exp(1.6)] + [1.0] * 7)  # equal mean |log ρ|
    # by hand: ρ = 1.2, .8, A = 1, 2: e = 4/4.16 ; d = .2027 ; v = (1.44 + .64·4)/5 = .8, no growth
    expected = 4 / 4.16 * 0.20273 / (0.20273 + 0.05)
    assert mix([1.2, 0.8], advantages=torch.tensor([1.0, 2.0])) == pytest.approx(expected, rel=1e-4)
    # A = 2, 1: v = (1.44·4 + .64)/5 = 1.28
    assert mix([1.2, 0.8], advantages=torch.tensor([2.0, 1.0])) == pytest.approx(expected / 1.28, rel=1e-4)
    assert weights("ais", batch([1.2, 0.8], advantages=torch.tensor([1.0, 2.0]))) == pytest.approx(
        [1 + 0.2 * expected, 1 - 0.2 * expected], rel=1e-4
    )


def test_statistics():
    _, statistics = get_correction("icepop", loss="ppo")(batch(RHO))
    assert statistics == {
        "correction/mean": pytest.approx(0.7),
        "correction/max": pytest.approx(1.9),
        "correction/rejected_share": pytest.approx(0.4),
        "correction/log_ratio_abs": pytest.approx(sum(abs(math.log(r)) for r in RHO) / 5),
        "correction/effective_share": pytest.approx(6.3**2 / (5 * (0.09 + 0.36 + 1 + 3.61 + 6.25))),
    }


def test_a_rejected_token_stays_in_the_denominator():
    tokens = batch(RHO, denominator=5.0)
    kept, _ = corrected(tokens, get_correction("icepop", loss="ppo"))
    assert kept.denominator == 5.0
    # ratio to π_old is 1/ρ; times ρ that is 1 for each kept token inside the clip .8 to 1.2
    value, _ = ppo(kept, clip_low=1.0, clip_high=9.0)
    assert float(value) == pytest.approx(-3 / 5)


def test_corrections_multiply_what_is_there():
    tokens = batch(RHO, weights=torch.tensor([0.5, 0.5, 0.5, 0.5, math.nan]), loss_mask=torch.arange(5) < 4)
    out, _ = corrected(tokens, get_correction("token_tis", loss="ppo"))
    assert out.weights.tolist() == pytest.approx([0.15, 0.3, 0.5, 0.95, 0.0])


# ---------------------------------------------------------------------- what holds for all of them


@every_correction
@pytest.mark.parametrize("poison", [math.nan, math.inf, 0.0])
def test_a_token_outside_the_mask_counts_for_nothing(name, poison):
    fields, mask = arrays(12, seed=1), torch.tensor([True, False, False] * 4)
    rule = get_correction(name, loss="ppo")
    clean, statistics = rule(TokenBatch(loss_mask=mask, denominator=1.0, **fields))
    dirty = {
        key: torch.where(mask, value, poison if value.is_floating_point() else -9)
        for key, value in fields.items()
    }
    weights_2, statistics_2 = rule(TokenBatch(loss_mask=mask, denominator=1.0, **dirty))
    assert torch.equal(clean, weights_2)
    assert statistics == statistics_2
    assert undefined(statistics) == []
    assert torch.equal(clean[~mask], torch.zeros(8))
    assert clean.dtype == torch.float32


@every_correction
@settings(max_examples=15)
@given(tokens=st.integers(1, 40), seed=st.integers(0, 1000))
def test_neither_order_nor_micro_batches_change_a_weight(name, tokens, seed):
    """Tokens may come in any order; a cut may not run through what the correction looks at as a whole."""
    fields = arrays(tokens, seed)
    mask = torch.rand(tokens, generator=torch.Generator().manual_seed(seed)) > 0.3
    wide = {"low": 0.8, "high": 1.25} if name == "geometric_rejection" else {}
    rule = get_correction(name, loss="ppo", **wide)
    whole, _ = rule(TokenBatch(loss_mask=mask, denominator=1.0, **fields))
    order = torch.randperm(tokens, generator=torch.Generator().manual_seed(seed))
    moved = {key: value[order] for key, value in fields.items()}
    torch.testing.assert_close(
        rule(TokenBatch(loss_mask=mask[order], denominator=1.0, **moved))[0], whole[order]
    )
    if name in BY_BATCH:
        return
    ids = fields["sequence_ids"] if name in BY_SEQUENCE else torch.arange(tokens)
    cut = next((i for i in range(tokens // 2, tokens) if i and ids[i] != ids[i - 1]), tokens)
    parts = [
        rule(
            TokenBatch(loss_mask=mask[part], denominator=1.0, **{key: v[part] for key, v in fields.items()})
        )[0]
        for part in (slice(0, cut), slice(cut, tokens))
    ]
    torch.testing.assert_close(torch.cat(parts), whole)


@every_correction
def test_on_the_sampled_policy_nothing_is_corrected(name):
    assert weights(name, batch([1.0] * 6, [0, 0, 1, 1, 2, 2])) == [1.0] * 6


@every_correction
def test_no_gradient_is_kept_and_missing_or_bad_inputs_are_named(name):
    rule, fields = get_correction(name, loss="ppo"), arrays(4, seed=2)
    fields["proximal_logprobs"].requires_grad_()
    mask = torch.ones(4, dtype=torch.bool)
    assert not rule(TokenBatch(loss_mask=mask, denominator=1.0, **fields))[0].requires_grad
    needs = {"proximal_logprobs", "behaviour_logprobs"}
    needs |= {"sequence_ids"} if name in BY_SEQUENCE else set()
    needs |= {"advantages"} if name == "ais" else set()
    check_inputs(rule, needs)
    for field in needs:
        with pytest.raises(ConfigError, match=f"{name} needs {field}"):
            check_inputs(rule, needs - {field})
    bad = {**fields, "behaviour_logprobs": torch.tensor([0.0, math.nan, 0.0, 0.0])}
    with pytest.raises(HarnessFault, match=f"{name}: behaviour_logprobs is NaN"):
        rule(TokenBatch(loss_mask=mask, denominator=1.0, **bad))


@every_correction
def test_an_empty_batch(name):
    whole, statistics = get_correction(name, loss="ppo")(
        TokenBatch(loss_mask=torch.zeros(3, dtype=torch.bool), denominator=1.0, **arrays(3, seed=3))
    )
    assert whole.tolist() == [0.0] * 3
    assert all(math.isfinite(value) for value in statistics.values())


def test_names_options_and_bands_are_checked():
    with pytest.raises(UnknownName, match="Did you mean 'token_tis'"):
        get_correction("token_tsi", loss="ppo")
    with pytest.raises(UnknownName, match=r"'caps'.*Did you mean 'cap'"):
        get_correction("token_tis", loss="ppo", caps=2.0)
    with pytest.raises(ConfigError, match="icepop: low 2"):
        weights("icepop", batch(RHO), low=2.0, high=0.5)


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_a_loss_is_not_given_the_same_weight_twice(loss):
    for name in REJECTIONS:
        get_correction(name, loss=loss)
    if loss in CORRECTABLE:
        get_correction("token_tis", loss=loss)
        return
    with pytest.raises(ConfigError, match=f"and so does loss {loss}"):
        get_correction("token_tis", loss=loss)


@pytest.mark.parametrize("loss", sorted(CORRECTABLE))
def test_a_correctable_loss_does_not_hold_the_mismatch_itself(loss):
    """π_θ = π_old: whatever μ is, the loss is that of an exact engine. A loss with μ in its ratio would notice."""
    fields = arrays(20, seed=4)
    fields["proximal_logprobs"] = fields["logprobs"].clone()
    options = {"mismatch_low": 0.0, "mismatch_high": 100.0} if loss == "tbpo" else {}
    mask, values = torch.ones(20, dtype=torch.bool), []
    for behaviour in (fields["behaviour_logprobs"], fields["logprobs"]):
        values.append(
            float(
                get_loss(loss, **options)(
                    TokenBatch(loss_mask=mask, denominator=1.0, **{**fields, "behaviour_logprobs": behaviour})
                )[0]
            )
        )
    assert values[0] == values[1]


# ---------------------------------------------------------------------- stale rollouts


def test_effective_share_and_learning_rate():
    equal, skewed = torch.ones(4).log(), torch.tensor([0.5, 1.0, 2.0, 8.0]).log()
    assert effective_share(equal) == pytest.approx(1.0)
    assert effective_share(skewed) == pytest.approx(0.4774, abs=1e-4)  # 11.5² / (4 · 69.25)
    assert effective_share(torch.tensor([0.8, 1.0, 1.3, 3.0]).log()) == pytest.approx(0.7545, abs=1e-4)
    assert effective_share(torch.tensor([900.0, 0.0])) == pytest.approx(0.5)
    assert effective_share(torch.zeros(0)) == 1.0
    assert learning_rate_factor(equal) == pytest.approx(1.0)
    assert learning_rate_factor(skewed) == pytest.approx(0.6910, abs=1e-4)
    assert learning_rate_factor(skewed, base=0.4) == 1.0
    with pytest.raises(ConfigError, match="base"):
        learning_rate_factor(equal, base=0.0)


def test_the_optimal_baseline():
    w, norms = torch.tensor([0.5, 1.0, 2.0, 8.0]).log(), torch.tensor([1.0, 2.0, 1.0, 1.0])
    returns = torch.tensor([1.0, 0.0, 0.0, 1.0])
    assert float(optimal_baseline(w, norms, returns)) == pytest.approx(0.8893, abs=1e-4)  # 64.25 / 72.25
    assert float(optimal_baseline(w, torch.zeros(4), returns)) == pytest.approx(0.5)
    assert float(optimal_baseline(w + 500, norms, returns)) == pytest.approx(0.8893, abs=1e-4)


def test_the_optimal_baseline_has_the_least_variance():
    g = torch.Generator().manual_seed(0)
    gradients, returns = torch.randn(6, 3, generator=g), torch.randn(6, generator=g)
    log_weights = torch.randn(6, generator=g)

    def second_moment(baseline: float) -> float:
        return float(((log_weights.exp() * (returns - baseline))[:, None] * gradients).square().sum())

    best = float(optimal_baseline(log_weights, gradients.norm(dim=1), returns))
    assert all(second_moment(best) <= second_moment(best + step) for step in (-0.1, -0.01, 0.01, 0.1))


def test_the_loss_of_vcpo_is_reinforce_with_a_truncated_sequence_weight():
    # products 3 · .5 = 1.5 and 4 · 4 = 16, cut to 8; at π_θ = π_old the gradient is −A · weight
    tokens = batch([3.0, 4.0, 0.5, 4.0], [0, 1, 0, 1], advantages=torch.tensor([1.0, -1.0, 1.0, -1.0]))
    logprobs = tokens.proximal_logprobs.clone().requires_grad_()
    rule = get_correction("sequence_tis", loss="ppo", cap=8.0)
    weighted, _ = corrected(replace(tokens, logprobs=logprobs), rule)
    value, _ = ppo(weighted, clip_low=1.0, clip_high=1e9, dual_clip=None)
    (gradient,) = torch.autograd.grad(value, logprobs)
    assert gradient.tolist() == pytest.approx([-1.5, 8.0, -1.5, 8.0])


def test_sequence_log_weights_are_sums():
    tokens = batch([2.0, 0.5, 4.0], [7, 3, 7])
    assert sequence_log_weights(tokens).exp().tolist() == pytest.approx([0.5, 8.0])


def test_the_squared_gradient_of_a_log_probability():
    logits = torch.randn(5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    targets = torch.tensor([0, 3, 6, 2, 2])
    leaf = logits.clone().requires_grad_()
    torch.log_softmax(leaf, -1).gather(1, targets[:, None]).sum().backward()
    torch.testing.assert_close(logit_gradient_square(logits, targets), leaf.grad.square().sum(-1))
