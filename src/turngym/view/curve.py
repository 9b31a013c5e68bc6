"""The learning curve: success over env steps, with the held-out evaluations and their intervals.

Drawn without pyplot, so no global state and no display is touched. Needs matplotlib (`turngym[train]`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from turngym.registry import import_extra
from turngym.tree_io import atomic_write
from turngym.view.history import SUCCESS, Evaluated, History, smoothed

_INK, _GRID, _TRAIN, _EVAL = "#22303c", "#e3e8ec", "#8fa9bf", "#d1495b"


def need_matplotlib() -> None:
    """Raise `MissingDependency` where matplotlib can't be imported."""
    import_extra("matplotlib", extra="train")


def draw_curve(history: History, path: Path, *, title: str) -> None:
    """Write the curve of a training run to `path` (PNG), whole or not at all.

    Args:
        history: with at least one evaluation or one update.
        path: is replaced when the new picture is complete.
        title: what was trained on what.

    Raises:
        MissingDependency: without matplotlib.
    """
    need_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415
    from matplotlib.ticker import FuncFormatter, PercentFormatter  # noqa: PLC0415

    figure = Figure(figsize=(8, 4.5), dpi=160, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    training, evaluations = history.series(SUCCESS), history.evaluations()
    _draw_training(axes, training)
    _draw_evaluations(axes, evaluations)
    farthest = max([x for x, _ in training] + [e.env_steps for e in evaluations], default=0.0) or 1.0
    axes.set(xlim=(-0.03 * farthest, 1.06 * farthest), ylim=(-0.02, 1.09))
    axes.set_xlabel("env steps of training", color=_INK)
    axes.set_ylabel("success", color=_INK)
    axes.set_title(title, loc="left", color=_INK, fontsize=12, fontweight="bold", pad=12)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: short_number(x)))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.grid(color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_INK, length=0)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    if training or evaluations:
        axes.legend(loc="lower right", frameon=False, labelcolor=_INK)
    with atomic_write(path) as file:
        figure.savefig(file, format="png")


def _draw_training(axes: Any, training: list[tuple[float, float]]) -> None:
    if not training:
        return
    steps, values = [x for x, _ in training], [y for _, y in training]
    axes.plot(steps, values, ".", color=_TRAIN, alpha=0.55, markersize=5, markeredgewidth=0)
    axes.plot(steps, smoothed(values), color=_TRAIN, linewidth=2, label="training tasks (moving average)")


def _draw_evaluations(axes: Any, evaluations: list[Evaluated]) -> None:
    if not evaluations:
        return
    steps, values = [e.env_steps for e in evaluations], [e.success for e in evaluations]
    whiskers = [[e.success - e.low for e in evaluations], [e.high - e.success for e in evaluations]]
    axes.errorbar(
        steps,
        values,
        yerr=whiskers,
        fmt="o-",
        color=_EVAL,
        linewidth=2,
        markersize=5,
        elinewidth=1.4,
        capsize=3,
        label="held-out tasks (95 % interval)",
    )
    for point in {evaluations[0].update: evaluations[0], evaluations[-1].update: evaluations[-1]}.values():
        axes.annotate(
            f"{point.success:.0%}",
            (point.env_steps, point.high),
            xytext=(0, 5),
            textcoords="offset points",
            ha="center",
            color=_EVAL,
            fontweight="bold",
        )


def short_number(value: float) -> str:
    """A number as axes and consoles show it.

    >>> [short_number(v) for v in (0, 950, 34_112, 1_250_000)]
    ['0', '950', '34.1k', '1.25M']
    """
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"
