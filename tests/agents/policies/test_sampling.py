"""Sampling is exact: the tokens and the log-probs are those of the distribution that is asked for."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import TopKLogitsWarper, TopPLogitsWarper

from turngym.agents.policies.sampling import draw, uniforms
from turngym.agents.policy import SampleParams

# Probabilities 0.5, 0.3, 0.2; cumulative 0.5, 0.8, 1.
LOGITS = torch.log(torch.tensor([[0.5, 0.3, 0.2]]))


def one(uniform: float, logits: torch.Tensor = LOGITS, **params: float) -> tuple[int, float]:
    ids, logprobs = draw(logits, [SampleParams(**params)], np.array([uniform]))  # type: ignore[arg-type]
    assert logprobs.dtype == np.float32
    return int(ids[0]), float(logprobs[0])


@pytest.mark.parametrize(
    ("uniform", "token", "probability"),
    [(0.0, 0, 0.5), (0.49, 0, 0.5), (0.51, 1, 0.3), (0.79, 1, 0.3), (0.81, 2, 0.2), (1 - 2**-53, 2, 0.2)],
)
def test_a_token_is_the_inverse_of_the_cumulative_distribution(
    uniform: float, token: int, probability: float
) -> None:
    assert one(uniform) == (token, pytest.approx(math.log(probability), abs=1e-6))


def test_temperature_sharpens() -> None:
    # Temperature 0.5 squares: 0.25, 0.09, 0.04 of 0.38.
    assert one(0.0, temperature=0.5) == (0, pytest.approx(math.log(0.25 / 0.38), abs=1e-6))
    assert one(0.90, temperature=0.5) == (2, pytest.approx(math.log(0.04 / 0.38), abs=1e-6))


def test_greedy_is_the_largest_logit_and_certain() -> None:
    assert one(0.99, temperature=0.0) == (0, 0.0)
    assert one(0.5, torch.tensor([[1.0, 3.0, 3.0]]), temperature=0.0) == (1, 0.0)


def test_filters_renormalise() -> None:
    # The two likeliest: 0.5 / 0.8 and 0.3 / 0.8.
    assert one(0.99, top_k=2) == (1, pytest.approx(math.log(0.3 / 0.8), abs=1e-6))
    assert one(0.99, top_p=0.6) == (1, pytest.approx(math.log(0.3 / 0.8), abs=1e-6))
    assert one(0.99, top_p=0.5) == (0, pytest.approx(0.0, abs=1e-6))
    assert one(0.99, top_p=1e-9) == (0, pytest.approx(0.0, abs=1e-6))
    # top_p counts over what top_k left: 0.625 alone reaches 0.6.
    assert one(0.99, top_k=2, top_p=0.6) == (0, pytest.approx(0.0, abs=1e-6))
    assert one(0.99, top_k=50) == one(0.99)


def test_top_k_keeps_exactly_k_among_equals() -> None:
    drawn = [one(float(u), torch.zeros(1, 4), top_k=2) for u in np.linspace(0, 0.999, 50)]
    assert {token for token, _ in drawn} == {0, 1}
    assert [p for _, p in drawn] == pytest.approx([math.log(0.5)] * 50)


def test_a_token_of_no_probability_is_never_drawn() -> None:
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]])
    assert {one(u, logits)[0] for u in (0.0, 0.2, 0.5, 0.7, 1 - 2**-53)} == {1, 3}


def test_rows_do_not_see_each_other() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 50, generator=generator) * 3
    params = [
        SampleParams(),
        SampleParams(temperature=0.0),
        SampleParams(top_k=3),
        SampleParams(top_p=0.4, temperature=2.0),
        SampleParams(temperature=0.3),
        SampleParams(top_k=5, top_p=0.9),
    ]
    uniform = np.linspace(0.1, 0.9, 6)
    ids, logprobs = draw(logits, params, uniform)
    for i, p in enumerate(params):
        alone, alone_logprobs = draw(logits[i : i + 1], [p], uniform[i : i + 1])
        assert alone[0] == ids[i]
        assert alone_logprobs[0] == pytest.approx(logprobs[i], abs=1e-6)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), top_k=st.integers(0, 12), top_p=st.floats(0.01, 1.0))
def test_filters_keep_what_transformers_keeps(seed: int, top_k: int, top_p: float) -> None:
    logits = torch.randn(1, 10, generator=torch.Generator().manual_seed(seed)) * 2
    expected = logits
    if top_k:
        expected = TopKLogitsWarper(top_k)(torch.zeros(1, 1), expected)
    if top_p < 1:
        expected = TopPLogitsWarper(top_p)(torch.zeros(1, 1), expected)
    reference = torch.log_softmax(expected, -1)[0]
    for u in np.linspace(0, 0.9999, 40):
        token, logprob = one(float(u), logits, top_k=top_k, top_p=top_p)
        assert logprob == pytest.approx(float(reference[token]), abs=1e-5)


def test_frequencies_follow_probabilities() -> None:
    count = 20_000
    ids, _ = draw(LOGITS.expand(count, 3), [SampleParams()] * count, uniforms(5, count))
    # Standard deviation of a share is at most sqrt(0.25 / 20,000) = 0.0035.
    assert np.bincount(ids) / count == pytest.approx([0.5, 0.3, 0.2], abs=0.014)


def test_uniform_numbers_belong_to_their_seed() -> None:
    assert uniforms(3, 8).tolist() == uniforms(3, 8).tolist()
    assert uniforms(3, 8)[:4].tolist() == uniforms(3, 4).tolist()
    assert uniforms(3, 8).tolist() != uniforms(4, 8).tolist()
    assert uniforms(-1, 2).tolist() == uniforms(2**64 - 1, 2).tolist()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_logits_that_are_not_finite_are_an_error(bad: float, temperature: float) -> None:
    with pytest.raises(FloatingPointError, match="diverged"):
        one(0.5, torch.tensor([[0.0, bad, 1.0]]), temperature=temperature)
