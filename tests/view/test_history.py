"""The figures of a run: rows by update, series over env steps, evaluations with their intervals."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngym.errors import ConfigError
from turngym.view.curve import short_number
from turngym.view.history import ENV_STEPS, SUCCESS, History, plain, smoothed, sparkline


def run_of(updates: int) -> History:
    """Success rises by 0.1 an update at 100 env steps each; evaluations before the first and after every second."""
    history = History()
    for update in range(updates + 1):
        row = {} if update == 0 else {SUCCESS: update / 10, ENV_STEPS: 100.0 * update}
        if update % 2 == 0:
            row |= {"eval/success": update / 10, "eval/success_low": 0.0, "eval/success_high": 1.0}
        history.add(update, row)
    return history


def test_series_run_over_env_steps() -> None:
    history = run_of(3)
    assert history.series(SUCCESS) == [(100, 0.1), (200, 0.2), (300, 0.3)]
    assert [(e.update, e.env_steps, e.success) for e in history.evaluations()] == [(0, 0, 0.0), (2, 200, 0.2)]


def test_figures_of_one_update_that_come_in_parts_are_one_row() -> None:
    history = History()
    history.add(1, {SUCCESS: 0.5})
    history.add(1, {"eval/success": 0.4})
    assert history.rows == {1: {SUCCESS: 0.5, "eval/success": 0.4}}


def test_what_came_after_a_checkpoint_is_forgotten() -> None:
    history = run_of(5)
    history.cut(2)
    assert list(history.rows) == [0, 1, 2]


def test_a_key_that_is_missing_or_nan_gives_nothing() -> None:
    history = History()
    history.add(1, {SUCCESS: math.nan})
    assert history.series(SUCCESS) == history.series("no/such") == history.evaluations() == []
    assert history.last("no/such") is None


def test_a_file_is_read_back_without_the_line_that_a_crash_cut(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"update":1,"a":0.5}\n{"update":2,"a":null}\n{"update":3,"a":0.')
    rows = History.read(path).rows
    assert rows[1] == {"a": 0.5}
    assert math.isnan(rows[2]["a"])
    assert 3 not in rows
    path.write_bytes(b'{"a":0.5}\n')
    with pytest.raises(ConfigError, match="line 1 is no row of metrics"):
        History.read(path)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_the_average_stays_within_what_it_averages(values: list[float]) -> None:
    average = smoothed(values)
    assert average[0] == pytest.approx(values[0])
    assert all(min(values) - 1e-9 <= a <= max(values) + 1e-9 for a in average)
    assert len(sparkline(average)) == len(values)


@given(st.floats(-1, 2))
def test_a_sparkline_never_leaves_its_bars(value: float) -> None:
    assert sparkline([value]) in "▁▂▃▄▅▆▇█"


def test_numbers_and_configurations_for_people() -> None:
    assert short_number(1e9) == "1e+03M"
    assert plain({"a": None, "b": {"c": None, "d": 1}}) == {"b": {"d": 1}}
