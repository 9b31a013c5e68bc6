"""The picture is drawn from whatever a run has, without touching global state."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from conftest import require
from turngym.view.curve import draw_curve
from turngym.view.history import ENV_STEPS, SUCCESS, History

EVAL = {"eval/success": 1.0, "eval/success_low": 0.98, "eval/success_high": 1.0}


@pytest.mark.parametrize(
    "rows",
    [
        {},
        {0: EVAL},
        {1: {SUCCESS: 0.5, ENV_STEPS: 10.0}},
        {0: EVAL, 1: {SUCCESS: 0.0, ENV_STEPS: 10.0}, 2: {SUCCESS: 1.0, ENV_STEPS: 2e6} | EVAL},
    ],
    ids=["nothing", "evaluation", "training", "both"],
)
def test_any_history_gives_a_picture(tmp_path: Path, rows: dict[int, dict[str, float]]) -> None:
    require("matplotlib", "turngym[train]")
    history = History()
    for update, row in rows.items():
        history.add(update, row)
    draw_curve(history, tmp_path / "curve.png", title="a policy on an environment")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert [p.name for p in tmp_path.iterdir()] == ["curve.png"]


def test_pyplot_is_not_imported(tmp_path: Path) -> None:
    require("matplotlib", "turngym[train]")
    draw_curve(History(), tmp_path / "curve.png", title="")
    assert "matplotlib.pyplot" not in sys.modules
