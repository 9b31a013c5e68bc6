"""Learning rates over a run: as transformers has them, and as a run wants them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from turngym.errors import ConfigError
from turngym.trainers.config import OptimiserConfig
from turngym.trainers.schedule import learning_rate_factor

WARMUP, UPDATES, LR = 3, 20, 0.5
# our name and options: the scheduler in transformers and its own
SAME: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "linear": ({}, "linear", {"num_training_steps": UPDATES}),
    "cosine": ({}, "cosine", {"num_training_steps": UPDATES}),
    "cosine floor": (
        {"min_lr_share": 0.1},
        "cosine_with_min_lr",
        {"num_training_steps": UPDATES, "min_lr_rate": 0.1},
    ),
    "linear floor": (
        {"min_lr_share": 0.2},
        "polynomial_decay",
        {"num_training_steps": UPDATES, "lr_end": 0.2 * LR, "power": 1.0},
    ),
    "inverse_sqrt": ({}, "inverse_sqrt", {}),
    "wsd": (
        {"decay_updates": 6, "min_lr_share": 0.05},
        "wsd",
        {"num_training_steps": UPDATES, "num_decay_steps": 6, "min_lr_ratio": 0.05},
    ),
}


def factors(updates: int = UPDATES, **options: Any) -> list[float]:
    config = OptimiserConfig(**options)
    return [learning_rate_factor(config, done, updates) for done in range(updates)]


@pytest.mark.parametrize("warmup", [WARMUP, 0])
@pytest.mark.parametrize("case", SAME)
def test_after_the_warm_up_the_rates_are_those_of_transformers(case: str, warmup: int) -> None:
    options, theirs, arguments = SAME[case]
    bare = theirs in ("inverse_sqrt", "wsd")
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LR)
    make = getattr(transformers.optimization, f"get_{theirs}_schedule{'' if bare else '_with_warmup'}")
    scheduler = make(optimiser, num_warmup_steps=warmup, **arguments)
    expected = []
    for _ in range(UPDATES):
        expected.append(scheduler.get_last_lr()[0] / LR)
        optimiser.step()
        scheduler.step()
    found = factors(schedule=case.partition(" ")[0], warmup=warmup, **options)
    assert found[warmup:] == pytest.approx(expected[warmup:], abs=1e-9)
    assert found[:warmup] == pytest.approx([(k + 1) / (warmup + 1) for k in range(warmup)])


@pytest.mark.parametrize(
    ("options", "expected"),
    # warm-up over 2 updates: 1/3, 2/3; then 4 updates of decay that starts at 1
    [
        ({"schedule": "constant"}, [1 / 3, 2 / 3, 1, 1, 1, 1]),
        ({"schedule": "linear"}, [1 / 3, 2 / 3, 1, 0.75, 0.5, 0.25]),
        ({"schedule": "linear", "min_lr_share": 0.2}, [1 / 3, 2 / 3, 1, 0.8, 0.6, 0.4]),
        ({"schedule": "wsd", "decay_updates": 2}, [1 / 3, 2 / 3, 1, 1, 1, 0.5]),
        ({"schedule": "inverse_sqrt"}, [1 / 3, 2 / 3, 1, (2 / 3) ** 0.5, 0.5**0.5, 0.4**0.5]),
    ],
)
def test_rates_by_hand(options: dict[str, Any], expected: list[float]) -> None:
    assert factors(6, warmup=2, **options) == pytest.approx(expected)


@given(
    schedule=st.sampled_from(["linear", "cosine", "wsd"]),
    floor=st.floats(0, 1),
    warmup=st.integers(0, 8),
    updates=st.integers(1, 30),
)
def test_a_schedule_rises_to_its_peak_then_falls_and_never_leaves_its_range(
    schedule: str, floor: float, warmup: int, updates: int
) -> None:
    extra = {"decay_updates": 5} if schedule == "wsd" else {}
    config = OptimiserConfig(schedule=schedule, min_lr_share=floor, warmup=warmup, **extra)  # type: ignore[arg-type]
    rates = [learning_rate_factor(config, done, updates) for done in range(updates + 3)]
    assert rates[:warmup] == sorted(rates[:warmup])
    assert rates[warmup:] == sorted(rates[warmup:], reverse=True)
    assert all(0 < rate <= 1 for rate in rates[:warmup])
    assert all(floor - 1e-12 <= rate <= 1 for rate in rates[warmup:])
    if warmup < updates:
        assert rates[warmup] == 1.0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"min_lr_share": 0.1}, "min_lr_share means nothing to schedule constant"),
        ({"schedule": "inverse_sqrt", "min_lr_share": 0.1}, "means nothing to schedule inverse_sqrt"),
        ({"schedule": "linear", "decay_updates": 4}, "decay_updates means nothing to schedule linear"),
        ({"schedule": "wsd"}, "wsd needs decay_updates"),
        ({"schedule": "linear", "min_lr_share": 1.5}, "min_lr_share is a share"),
        ({"schedule": "linear", "min_lr_share": -0.1}, "min_lr_share must be finite and at least 0"),
    ],
)
def test_numbers_that_a_schedule_does_not_read_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        OptimiserConfig(**options)
