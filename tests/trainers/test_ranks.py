"""Two processes have the weights of one, whatever each of them was given."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import two_ranks

SCRIPT = Path(two_ranks.__file__)


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two ranks came to, on gloo."""
    out = tmp_path_factory.mktemp("ranks")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    errors = [out / f"rank{rank}.txt" for rank in range(2)]
    ranks = []
    for rank, path in enumerate(errors):
        command = [sys.executable, str(SCRIPT), str(rank), str(out / "rendezvous"), str(out)]
        with path.open("w") as file:
            ranks.append(subprocess.Popen(command, env=environment, stderr=file))
    try:
        while any(process.poll() is None for process in ranks):
            assert not any(process.poll() for process in ranks), "\n".join(
                path.read_text() for path in errors
            )
            time.sleep(0.2)
        assert not any(process.returncode for process in ranks), "\n".join(
            path.read_text() for path in errors
        )
    finally:
        for process in ranks:  # one that is left alone waits for the other for half an hour
            process.kill()
            process.wait()
    return [torch.load(out / f"rank{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("name", [*two_ranks.SETTINGS, "sharded", "sharded anchored"])
def test_two_ranks_have_the_weights_of_one(name: str, together: list[dict[str, Any]]) -> None:
    setting = {"sharded": "plain", "sharded anchored": "anchored"}.get(name, name)
    alone, statistics = two_ranks.trained(setting, slice(None))
    for rank in together:
        weights, theirs = rank[name]
        for mine, other in zip(alone, weights, strict=True):
            torch.testing.assert_close(other, mine, rtol=1e-5, atol=1e-7)
        keys = {
            "tokens/trained",
            "tokens/observation",
            "learner/grad_norm",
            "learner/lr_factor",
            "ratio/mean",
        }
        for key in keys & statistics.keys():
            assert theirs[key] == pytest.approx(statistics[key], rel=1e-5), key


@pytest.mark.parametrize("name", ["probe", "network", "sharded"])
def test_two_ranks_have_the_critic_of_one(name: str, together: list[dict[str, Any]]) -> None:
    alone, statistics = two_ranks.criticised("probe" if name == "sharded" else name, slice(None))
    for rank in together:
        weights, theirs = rank[f"critic {name}"]
        for mine, other in zip(alone, weights, strict=True):
            torch.testing.assert_close(other, mine, rtol=1e-4, atol=1e-6)
        for key in ("critic/targets", "critic/loss", "critic/explained_variance", "critic/grad_norm"):
            assert theirs[key] == pytest.approx(statistics[key], rel=1e-4), key
